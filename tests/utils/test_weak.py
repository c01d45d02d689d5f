"""Dicts of tensors that do not keep them alive."""

from __future__ import annotations

import copy
import gc

import pytest

import webtorch
from webtorch.utils.weak import TensorWeakRef, WeakIdKeyDictionary, WeakIdRef


def test_a_key_that_is_gone_is_in_no_dict_and_equal_tensors_are_other_keys() -> None:
    """Tensors are told apart by identity, also while the dict is gone through."""
    kept, gone = webtorch.ones(2), webtorch.ones(2)
    names = WeakIdKeyDictionary({kept: "kept", gone: "gone"})
    weak = TensorWeakRef(gone)
    assert names[kept] == "kept" and names.pop(webtorch.ones(2), "none") == "none"
    assert weak() is gone and names == copy.copy(names) and len(copy.deepcopy(names)) == 2
    for key in names:
        if key is kept:
            del gone
    del key
    gc.collect()
    assert weak() is None and [*names.items()] == [(kept, "kept")] and len(names) == 1
    assert (names | {kept: "new"})[kept] == "new" and names.popitem() == (kept, "kept")
    with pytest.raises(KeyError):
        names.popitem()


def test_a_reference_to_what_is_gone_is_equal_to_itself_only() -> None:
    """An identity may be that of another object by then."""
    x = webtorch.ones(1)
    one, other = WeakIdRef(x), WeakIdRef(x)
    assert one == other and hash(one) == hash(other)
    del x
    gc.collect()
    assert one == one and one != other and one() is None
