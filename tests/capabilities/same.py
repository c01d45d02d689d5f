"""The oracle of the capability tests: the same lines, run by PyTorch in float64."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import webtorch

Inputs = tuple[Any, ...]


def rows(table: dict[str, Any]) -> list[Any]:
    """Return the entries of a table as test parameters; a key names the rows that its entry holds."""
    return [
        pytest.param(entry, marks=pytest.mark.covers(*key.split()), id=key.replace(" ", "-"))
        for key, entry in table.items()
    ]


def values(*shape: int, seed: int = 0, low: float = -2.0, high: float = 2.0) -> torch.Tensor:
    """Return float64 numbers that float32 holds exactly."""
    generator = torch.Generator().manual_seed(seed)
    drawn = torch.rand(shape, generator=generator, dtype=torch.float64) * (high - low) + low
    return drawn.float().double()


def ours(x: Any, device: str, dtype: Any = None) -> Any:
    """Return the oracle's tensor as ours, on `device`; floating numbers as float32."""
    kind = getattr(webtorch, str(x.dtype).removeprefix("torch."))
    wanted = dtype or (webtorch.float32 if x.dtype.is_floating_point else kind)
    return webtorch.tensor(x.tolist(), dtype=wanted, device=device)


def close(actual: Any, expected: Any, rtol: float = 2e-5, atol: float = 2e-5) -> None:
    """Assert that a result (or a tuple of them) has the oracle's shape and values."""
    if isinstance(expected, (tuple, list)):
        assert len(actual) == len(expected)
        for a, b in zip(actual, expected, strict=True):
            close(a, b, rtol, atol)
        return
    assert tuple(actual.shape) == tuple(expected.shape)
    kind = torch.float64 if expected.dtype.is_floating_point else expected.dtype
    if expected.dtype.is_floating_point:
        assert actual.dtype.name.startswith(("float", "bfloat"))
    else:
        assert actual.dtype.name == str(expected.dtype).removeprefix("torch.")
    got = torch.tensor(actual.detach().tolist(), dtype=kind).reshape(expected.shape)
    torch.testing.assert_close(
        got, expected.detach().to(kind), rtol=rtol, atol=atol, equal_nan=True
    )


def same(
    function: Callable[..., Any],
    *inputs: torch.Tensor,
    device: str,
    gradients: bool = True,
    rtol: float = 2e-5,
    atol: float = 2e-5,
) -> None:
    """Assert that `function(library, *inputs)` has the same values and gradients in both libraries."""
    mine = [ours(x, device) for x in inputs]
    theirs = [x.clone() for x in inputs]
    if gradients:
        for a, b in zip(mine, theirs, strict=True):
            if b.dtype.is_floating_point:
                a.requires_grad_()
                b.requires_grad_()
    actual, expected = function(webtorch, *mine), function(torch, *theirs)
    close(actual, expected, rtol, atol)
    pairs = zip(*((r,) if not isinstance(r, (tuple, list)) else r for r in (actual, expected)))
    smooth = [(a, b) for a, b in pairs if b.requires_grad] if gradients else []
    if not smooth:
        return
    for number, (a, b) in enumerate(smooth):
        weight = values(*b.shape, seed=91 + number)
        a.backward(ours(weight, device), retain_graph=True)
        b.backward(weight, retain_graph=True)
    for a, b in zip(mine, theirs, strict=True):
        if b.grad is None:
            assert a.grad is None
        else:
            close(a.grad, b.grad, 5 * rtol, 5 * atol)
