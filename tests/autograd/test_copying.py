"""Copies and pickles of tensors, generators, modules and optimizers, as PyTorch's."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
import torch

import webtorch

BOTH = pytest.mark.parametrize("m", [torch, webtorch], ids=["torch", "webtorch"])


@BOTH
def test_deep_copies_share_what_their_originals_share(m: Any) -> None:
    a = m.arange(6.0).reshape(2, 3)
    x, row, turned = copy.deepcopy((a, a[1], a.t()))
    x[1, 0] = 9.0
    assert row.tolist() == [9.0, 4.0, 5.0]
    assert turned[0].tolist() == [0.0, 9.0]
    assert a[1].tolist() == [3.0, 4.0, 5.0]
    assert (row.storage_offset(), turned.stride()) == (3, (1, 3))


@BOTH
def test_a_copy_shares_memory_and_attributes(m: Any) -> None:
    x = m.ones(2, requires_grad=True)
    x.note = "n"
    y = copy.copy(x)
    with m.no_grad():
        y[0] = 5
    assert x.tolist() == [5.0, 1.0]
    assert (y.note, y.requires_grad, y.is_leaf) == ("n", True, True)
    assert type(copy.copy(m.nn.Parameter(x.detach()))) is m.nn.Parameter


@BOTH
def test_pickles_keep_strides_types_and_attributes(m: Any) -> None:
    x = m.arange(24.0).reshape(2, 3, 4).permute(2, 0, 1)
    x.note = [1]
    y = pickle.loads(pickle.dumps(x))
    assert (y.stride(), y.tolist(), y.note) == (x.stride(), x.tolist(), [1])
    for value in (m.bfloat16, m.device("cpu"), m.Size([1, 2])):
        assert pickle.loads(pickle.dumps(value)) == value == copy.deepcopy(value)
    generator = m.Generator().manual_seed(3)
    for twin in (pickle.loads(pickle.dumps(generator)), copy.deepcopy(generator)):
        state = generator.get_state()
        assert m.equal(m.rand(2, generator=twin), m.rand(2, generator=generator))
        generator.set_state(state)


@BOTH
def test_gradients_of_parameters_stay_behind_and_of_tensors_come(m: Any) -> None:
    p, t = m.nn.Parameter(m.ones(2)), m.ones(2, requires_grad=True)
    (p * t * 2).sum().backward()
    assert copy.deepcopy(p).grad is None
    assert copy.deepcopy(t).grad.tolist() == [2.0, 2.0]


def test_only_leaves_are_copied_deeply() -> None:
    texts = []
    for m in (torch, webtorch):
        with pytest.raises(RuntimeError) as caught:
            copy.deepcopy(m.ones(2, requires_grad=True) * 2)
        texts.append(str(caught.value))
    assert texts[0] == texts[1]


@BOTH
def test_capsules_share_memory(m: Any) -> None:
    t = m.arange(3.0)
    again = m.utils.dlpack.from_dlpack(m.utils.dlpack.to_dlpack(t))
    again[0] = 7
    assert t.tolist() == [7.0, 1.0, 2.0]
