"""Masked tensors: results, masks and gradients are PyTorch's."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.masked

import webtorch
import webtorch.masked

VALUES = [[0.5, 1.0, 2.0], [3.0, -4.0, 5.0]]
MASK = [[True, False, False], [True, True, False]]
Program = Callable[[Any, Any], Any]

PROGRAMS: list[Program] = [
    lambda lib, x: x.sin() * 2 + x,
    lambda lib, x: x * lib.tensor(VALUES),
    lambda lib, x: x.sum(),
    lambda lib, x: x.mean(1),
    lambda lib, x: x.amax(0),
    lambda lib, x: x.prod(),
    lambda lib, x: x.std(1),
    lambda lib, x: lib.softmax(x, -1),
    lambda lib, x: lib.where(
        lib.tensor(MASK), x.exp(), lib.masked.masked_tensor(x.get_data().detach(), ~x.get_mask())
    ),
    lambda lib, x: x.transpose(0, 1).exp(),
    lambda lib, x: x[1],
    lambda lib, x: lib.cat([x, x]).transpose(0, 1),
    lambda lib, x: x.to_sparse().to_dense(),
    lambda lib, x: x.to_sparse_csr().to_dense(),
    lambda lib, x: x.to_tensor(7.0),
]


def _results(lib: Any, program: Program) -> list[Any]:
    """What a program gives: elements that count and mask, of its result and of the gradient."""
    x = lib.masked.masked_tensor(lib.tensor(VALUES), lib.tensor(MASK), requires_grad=True)
    y = program(lib, x)
    y.sum().backward()
    found: list[Any] = []
    for part in (y, x.grad):
        if lib.masked.is_masked_tensor(part):
            found.append(part.get_mask().tolist())
            part = part.to_tensor(0.0)
        found.append(torch.tensor(part.detach().tolist()))
    return found


@pytest.mark.parametrize("number", range(len(PROGRAMS)))
def test_results_masks_and_gradients_are_as_in_pytorch(number: int) -> None:
    """Of functions of elements, reductions, views, layouts and what mixes masked with other tensors."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        mine, theirs = (_results(lib, PROGRAMS[number]) for lib in (webtorch, torch))
    for a, b in zip(mine, theirs, strict=True):
        if isinstance(a, torch.Tensor):
            torch.testing.assert_close(a, b, equal_nan=True)
        else:
            assert a == b


@pytest.mark.parametrize("correction", [0, 1, 1.5, 2])
def test_a_variance_has_the_correction_that_was_asked_for(correction: float) -> None:
    """It is a number, of methods as of `masked.var` (PyTorch's methods take none)."""
    x, mask = torch.tensor(VALUES), torch.tensor(MASK)
    masked = webtorch.masked.masked_tensor(webtorch.tensor(VALUES), webtorch.tensor(MASK))
    for dim in (0, None):
        theirs = torch.masked.var(x, dim, correction=correction, mask=mask)
        found = webtorch.var(masked, dim, correction=correction).get_data()
        torch.testing.assert_close(torch.tensor(found.tolist()), theirs, equal_nan=True)


def test_masks_of_two_must_match_and_what_is_not_masked_is_refused() -> None:
    """The words are PyTorch's; a function that is not computed element by element says what to do."""
    x = webtorch.tensor(VALUES)
    mask = webtorch.tensor(MASK)
    one, other = (webtorch.masked.masked_tensor(x, m) for m in (mask, ~mask))
    with pytest.raises(ValueError, match="Input masks must match"):
        one + other
    with pytest.raises(TypeError, match="data must be a Tensor"):
        webtorch.masked.masked_tensor(one, mask)
    with pytest.raises(ValueError, match=r"must equal mask\.size"):
        webtorch.masked.masked_tensor(x, mask[:, :2])
    with pytest.warns(UserWarning, match="get_data"), pytest.raises(TypeError, match=r"aten\.sort"):
        webtorch.sort(one)


def test_a_masked_tensor_of_a_tensor_with_a_history_hands_its_gradient_on() -> None:
    """`as_masked_tensor`: masked to a leaf, with zeros to a function."""
    leaf = webtorch.tensor(VALUES, requires_grad=True)
    mask = webtorch.tensor(MASK)
    webtorch.masked.as_masked_tensor(leaf, mask).mean().backward()
    assert isinstance(leaf.grad, webtorch.masked.MaskedTensor)
    leaf = webtorch.tensor(VALUES, requires_grad=True)
    webtorch.masked.as_masked_tensor(leaf * 2, mask).sum().backward()
    assert leaf.grad is not None and leaf.grad.tolist() == [[2.0, 0.0, 0.0], [2.0, 2.0, 0.0]]


def test_it_prints_as_in_pytorch() -> None:
    """With "--" where nothing counts."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        shown = [
            repr(lib.masked.masked_tensor(lib.tensor(values), lib.tensor(mask)))
            for lib in (webtorch, torch)
            for values, mask in ((VALUES, MASK), ([1, 2], [True, False]), (3.0, True))
        ]
    assert shown[:3] == shown[3:]
