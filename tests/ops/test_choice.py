"""Choices, comparisons of whole tensors and other entries whose inputs are not just numbers, against PyTorch."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

import webtorch
from tests.ops.parity import compare, same_error


def values(*shape: int, seed: int = 1) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


X, Y = values(3, 4), values(4, seed=2)
MASK = values(3, 4, seed=3) > 0
GRADIENTS: dict[str, tuple[Callable[..., Any], list[torch.Tensor]]] = {
    "where": (lambda L, c, x, y: L.t.where(c, x, y), [MASK, X, Y]),
    "where with a number": (lambda L, c, x: L.t.where(c, x, 2.5), [MASK, X]),
    "where, the method": (lambda L, c, x, y: x.where(c, y * x), [MASK, X, Y]),
    "where hides the other branch": (
        lambda L, c, x: L.t.where(x > 0, x.clamp(min=0.1).log(), x),
        [MASK, X],
    ),
    "masked_fill": (lambda L, c, x: x.masked_fill(c, -3.0), [MASK, X]),
    "masked_fill with a tensor": (
        lambda L, c, x, v: x.masked_fill(c, v),
        [MASK, X, torch.tensor(0.7, dtype=torch.float64)],
    ),
    "masked_fill broadcast": (lambda L, c, x: x.masked_fill(c[:, :1], 1.0), [MASK, X]),
    "masked_fill_": (lambda L, c, x: (x * 2).masked_fill_(c, 0.5), [MASK, X]),
    "prelu": (lambda L, x, w: L.F.prelu(x, w), [X, values(1, seed=4)]),
    "prelu per channel": (lambda L, x, w: L.F.prelu(x, w), [values(2, 4, 3), values(4, seed=4)]),
    "sum_to_size": (lambda L, x: x.sum_to_size(1, 4), [X]),
    "sum_to_size, fewer dims": (lambda L, x: x.sum_to_size(4), [values(2, 3, 4)]),
    "type_as": (lambda L, x, y: x.type_as(y) * y, [X, Y]),
}


@pytest.mark.covers("C44", "C53")
@pytest.mark.parametrize("name", GRADIENTS)
def test_values_and_gradients(name: str, device: str) -> None:
    function, inputs = GRADIENTS[name]
    compare(function, inputs, device, layout=False)


PLAIN: dict[str, Callable[[Any], Any]] = {
    "where of ints": lambda t: t.where(
        t.tensor([True, False]), t.tensor([1, 2]), t.tensor([3.5, 4.5])
    ),
    "where of a number and ints": lambda t: t.where(t.tensor([True, False]), 1.5, t.tensor([3, 4])),
    "where of two numbers": lambda t: t.where(t.tensor([True, False]), 1.5, -2.0),
    "where, positions": lambda t: t.stack(t.where(t.tensor([[0, 1], [1, 1]]) > 0)),
    "where keeps nan apart": lambda t: t.where(
        t.tensor([True, False]), t.tensor([1.0, 2.0]), t.tensor([math.nan, math.nan])
    ),
    "masked_fill of ints": lambda t: t.tensor([1, 2, 3]).masked_fill(
        t.tensor([True, False, True]), 9
    ),
    "masked_fill of bools": lambda t: t.tensor([True, False]).masked_fill(
        t.tensor([True, False]), False
    ),
    "isclose": lambda t: t.isclose(
        t.tensor([1.0, 1.0, math.inf, -math.inf, math.nan, 0.0]),
        t.tensor([1.0 + 1e-6, 1.1, math.inf, math.inf, math.nan, 1e-9]),
    ),
    "isclose, tolerances": lambda t: t.isclose(
        t.tensor([1.0, 10.0, 0.0]), t.tensor([1.4, 10.4, 0.2]), rtol=0.0, atol=0.5
    ),
    "isclose, equal_nan": lambda t: t.isclose(
        t.tensor([math.nan, 1.0]), t.tensor([math.nan, math.nan]), equal_nan=True
    ),
    "isclose of ints": lambda t: t.isclose(t.tensor([100, 7]), t.tensor([101, 7]), rtol=0.01),
    "allclose": lambda t: [
        t.allclose(t.tensor([1.0, 2.0]), t.tensor([1.0, 2.0 + 1e-6])),
        t.allclose(t.tensor([1.0, 2.0]), t.tensor([1.0, 2.1])),
        t.tensor([math.nan]).allclose(t.tensor([math.nan]), equal_nan=True),
        t.allclose(t.zeros(0), t.zeros(0)),
    ],
    "equal": lambda t: [
        t.equal(t.tensor([1.0, 2.0]), t.tensor([1.0, 2.0])),
        t.equal(t.tensor([1.0, 2.0]), t.tensor([1.0, 3.0])),
        t.equal(t.zeros(2), t.zeros(3)),
        t.equal(t.tensor([math.nan]), t.tensor([math.nan])),
        t.equal(t.zeros(0), t.zeros(0)),
    ],
    "is_nonzero": lambda t: [
        t.is_nonzero(t.tensor([0.0])),
        t.is_nonzero(t.tensor(3)),
        t.is_nonzero(t.tensor([[False]])),
        t.tensor([math.nan]).is_nonzero(),
    ],
    "is_same_size": lambda t: [
        t.is_same_size(t.zeros(2, 3), t.ones(2, 3)),
        t.zeros(2, 3).is_same_size(t.zeros(3, 2)),
    ],
    "fill": lambda t: t.fill(t.tensor([1.0, 2.0]), 7.5),
    "fill with a tensor": lambda t: t.fill(t.tensor([1, 2]), t.tensor(4)),
    "type_as": lambda t: t.tensor([1.7, -2.3]).type_as(t.tensor([1], dtype=t.int32)),
}


@pytest.mark.parametrize("name", PLAIN)
def test_values(name: str, device: str) -> None:
    expected = PLAIN[name](torch)
    with webtorch.device(device):
        mine = PLAIN[name](webtorch)
    if isinstance(expected, torch.Tensor):
        assert mine.device.type == device
        assert str(mine.dtype) == str(expected.dtype)
        torch.testing.assert_close(
            torch.tensor(mine.tolist(), dtype=expected.dtype), expected, equal_nan=True
        )
    else:
        assert mine == expected


@pytest.mark.parametrize("n", [0, 1, 2])
def test_polygamma(n: int, device: str) -> None:
    x = torch.tensor([0.3, 1.0, 2.5, 7.0, 20.0], dtype=torch.float64)
    expected = torch.special.polygamma(n, x)
    with webtorch.device(device):
        ours = webtorch.tensor(x.tolist())
        found = [webtorch.special.polygamma(n, ours), webtorch.polygamma(n, ours)]
    for mine in found:
        torch.testing.assert_close(
            torch.tensor(mine.tolist(), dtype=torch.float64), expected, rtol=1e-5, atol=1e-6
        )


def test_polygamma_of_integers(device: str) -> None:
    """Order 1 is large at poles and no more, as PyTorch's is."""
    values = torch.tensor([-100, -7, -1, 0, 1, 5], dtype=torch.int32)
    for n in (1, 2):
        found = webtorch.polygamma(
            n, webtorch.tensor(values.tolist(), dtype=webtorch.int32, device=device)
        )
        torch.testing.assert_close(torch.tensor(found.tolist()), torch.polygamma(n, values))


ERRORS: dict[str, tuple[Callable[..., Any], str]] = {
    "where shapes": (lambda L: L.t.where(L.t.ones(2) > 0, L.t.ones(3), L.t.ones(3)), "2"),
    "where condition": (lambda L: L.t.where(L.t.ones(2), L.t.ones(2), L.t.ones(2)), "bool"),
    "masked_fill mask": (lambda L: L.t.ones(2).masked_fill(L.t.ones(2), 1.0), "bool"),
    "masked_fill value": (
        lambda L: L.t.ones(2).masked_fill(L.t.ones(2) > 0, L.t.ones(2)),
        "0-dim",
    ),
    "prelu weight": (lambda L: L.F.prelu(L.t.ones(2, 3), L.t.ones(2)), "2"),
    "isclose dtypes": (
        lambda L: L.t.isclose(L.t.ones(2), L.t.ones(2, dtype=L.t.int64)),
        "float32",
    ),
    "isclose tolerance": (lambda L: L.t.isclose(L.t.ones(2), L.t.ones(2), rtol=-1.0), "rtol"),
    "is_nonzero of two": (lambda L: L.t.is_nonzero(L.t.ones(2)), "ambiguous"),
    "is_nonzero of none": (lambda L: L.t.is_nonzero(L.t.ones(0)), "ambiguous"),
    "sum_to_size": (lambda L: L.t.ones(2, 3).sum_to_size(2, 2), "2"),
}


@pytest.mark.parametrize("name", ERRORS)
def test_errors(name: str) -> None:
    function, text = ERRORS[name]
    same_error(_with_dtypes(function), [], "cpu", text)


def _with_dtypes(function: Callable[..., Any]) -> Callable[..., Any]:
    """Give the tensor functions of both libraries their dtypes."""

    def call(L: Any) -> Any:
        L.t.int64 = torch.int64 if L.t is torch else webtorch.int64
        return function(L)

    return call
