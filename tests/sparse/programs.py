"""Programs with sparse tensors that are run on PyTorch and here: random places, some of them twice, and dense dims."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

import webtorch

# What a program is given: the library, a sparse tensor, and a dense one of its shape.
Program = Callable[[Any, Any, Any], Any]


@dataclass(frozen=True)
class Case:
    """A sparse tensor: its shape, how many dims are sparse, and how many values there are."""

    shape: tuple[int, ...]
    sparse: int
    count: int
    seed: int = 0

    def arrays(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return places, values, and the elements of a dense tensor of the same shape."""
        rng = np.random.default_rng((self.seed, *self.shape, self.sparse, self.count))
        head, tail = self.shape[: self.sparse], self.shape[self.sparse :]
        places = np.stack([rng.integers(0, n, self.count) for n in head]).astype(np.int64)
        return places, rng.standard_normal((self.count, *tail)), rng.standard_normal(self.shape)


CASES = {
    "matrix": Case((4, 5), 2, 6),
    "twice": Case((3, 3), 2, 12),
    "empty": Case((3, 4), 2, 0),
    "one": Case((2, 3), 2, 1),
    "hybrid": Case((3, 4, 2), 2, 8),
    "rows": Case((5, 3), 1, 7),
    "cube": Case((2, 3, 4), 3, 9),
}
MATRICES = ("matrix", "twice", "empty", "one")


def made(lib: Any, case: Case, device: str, layout: str = "coo", grad: bool = True) -> list[Any]:
    """Return (values, the sparse tensor made of them, the dense tensor)."""
    places, values, elements = case.arrays()
    dtype = lib.float32 if device == "webgpu" else lib.float64
    here: dict[str, Any] = {} if lib is torch else {"device": device}
    v = lib.tensor(values.tolist(), dtype=dtype, **here).reshape(values.shape)
    d = lib.tensor(elements.tolist(), dtype=dtype, **here)
    v.requires_grad_(grad)
    d.requires_grad_(grad)
    i = lib.tensor(places.tolist(), dtype=lib.int64, **here).reshape(places.shape)
    s = lib.sparse_coo_tensor(i, v, case.shape)
    if layout != "coo":
        s = getattr(s, f"to_sparse_{layout}")()
    return [v, s, d]


def elements(x: Any) -> Any:
    """Return the elements of a result, as nested lists."""
    if isinstance(x, (torch.Tensor, webtorch.Tensor)):
        return x.to_dense().tolist()
    return x


def close(ours: Any, theirs: Any, device: str) -> None:
    """Compare two results."""
    assert type(ours).__name__ != "NotImplementedError"
    tensors = isinstance(theirs, torch.Tensor)
    if tensors:
        assert str(ours.layout) == str(theirs.layout)
        assert tuple(ours.shape) == tuple(theirs.shape)
        if device == "cpu":
            assert str(ours.dtype) == str(theirs.dtype).replace("torch.", "torch.")
    tolerance = 1e-4 if device == "webgpu" else 1e-9
    np.testing.assert_allclose(
        np.asarray(elements(ours)), np.asarray(elements(theirs)), rtol=tolerance, atol=tolerance
    )
