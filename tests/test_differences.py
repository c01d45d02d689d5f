"""PyTorch's names that webtorch does not have: the list, the page, and what is said of them."""

from __future__ import annotations

import pytest
import torch

import webtorch
from tools import names


def test_list_and_page_are_what_pytorch_and_webtorch_say() -> None:
    """`python tools/stubs.py` (or tools/names.py) writes both."""
    for path, text in ((names.LIST, names.listed()), (names.PAGE, names.page())):
        assert path.read_text(encoding="utf-8") == text, f"{path.name}: run python tools/names.py"


def test_a_missing_name_says_whether_pytorch_has_it_and_what_is_near() -> None:
    assert hasattr(torch, "saddmm")
    with pytest.raises(AttributeError) as caught:
        webtorch.saddmm  # type: ignore[attr-defined]
    assert "PyTorch has it, webtorch does not. Sparse tensors have no jagged layouts" in str(
        caught.value
    )
    assert "nearest" not in str(caught.value)
    with pytest.raises(AttributeError, match="nearest that exists is 'softmax'") as caught:
        webtorch.softmaxx  # type: ignore[attr-defined]
    assert "PyTorch has it" not in str(caught.value)
    with pytest.raises(
        AttributeError,
        match=r"'Tensor' object has no attribute 'resize_as_sparse_'.*PyTorch has it",
    ):
        webtorch.ones(2).resize_as_sparse_()
    with pytest.raises(AttributeError, match=r"module 'webtorch.special' has no attribute 'gamma'"):
        webtorch.special.gamma  # type: ignore[attr-defined]
    assert not hasattr(webtorch.ones(2), "resize_as_sparse_")
