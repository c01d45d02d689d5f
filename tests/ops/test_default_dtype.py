"""Operations that make floats of integers make the default float type."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch

import webtorch

CALLS: dict[str, Callable[[Any, Any], Any]] = {
    "logsumexp": lambda t, x: t.logsumexp(x, 1),
    "logsumexp of bools": lambda t, x: t.logsumexp(x > 2, 0),
    "logsumexp of nothing": lambda t, x: t.logsumexp(x[:0], 0),
    "cov": lambda t, x: t.cov(x),
    "cov, weighted": lambda t, x: t.cov(x, fweights=t.tensor([1, 2, 1])),
    "corrcoef": lambda t, x: t.corrcoef(x),
    "gradient": lambda t, x: t.gradient(x)[0],
    "gradient, spaced": lambda t, x: t.gradient(x, spacing=2.0, dim=1)[0],
}


@pytest.fixture(autouse=True)
def _default() -> Iterator[None]:
    yield
    webtorch.set_default_dtype(webtorch.float32)
    torch.set_default_dtype(torch.float32)


@pytest.mark.parametrize("name", CALLS)
def test_integers_become_the_default_float_type(name: str) -> None:
    values = [[1, 2, 4], [3, 1, 7]]
    here, there = webtorch.tensor(values), torch.tensor(values)
    # Changed between calls that are remembered.
    for kind in ("float32", "float64", "float32"):
        webtorch.set_default_dtype(getattr(webtorch, kind))
        torch.set_default_dtype(getattr(torch, kind))
        expected = CALLS[name](torch, there)
        for _ in range(4):
            found = CALLS[name](webtorch, here)
            assert found.dtype.name == kind == str(expected.dtype).removeprefix("torch.")
            np.testing.assert_allclose(
                np.array(found.tolist()), expected.numpy(), 1e-6 if kind == "float32" else 1e-14
            )
