"""Convolutions of batches, forward, and forward with both gradients, against PyTorch's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

import webtorch
from benchmarks.harness import Row, compare, main

# Images, filters, stride.
Case = tuple[tuple[int, int, int, int], tuple[int, int, int, int], int]
CASES: tuple[Case, ...] = (
    ((64, 32, 8, 8), (64, 32, 3, 3), 1),
    ((64, 64, 4, 4), (128, 64, 3, 3), 1),
    ((32, 128, 16, 16), (128, 128, 3, 3), 1),
    ((32, 64, 32, 32), (128, 64, 3, 3), 2),
)
QUICK: tuple[Case, ...] = (((16, 2, 4, 4), (3, 2, 3, 3), 1),)


def works(t: Any, x: Any, w: Any, stride: int) -> dict[str, Callable[[], tuple[Any, ...]]]:
    """Return the works over `t`, which is webtorch or PyTorch; each returns what must be computed."""

    def forward() -> Any:
        return t.nn.functional.conv2d(x, w, stride=stride, padding=1)

    def everything() -> tuple[Any, ...]:
        y = forward()
        return y, *t.autograd.grad(y, (x, w), y.detach())

    def without() -> tuple[Any, ...]:
        with t.no_grad():
            return (forward(),)

    return {"": without, " and its gradients": everything}


def measure(quick: bool = False) -> list[Row]:
    """Return two rows for each case."""
    torch.set_num_threads(2)
    webtorch.set_num_threads(2)
    rng = np.random.default_rng(0)
    rows = []
    for images, filters, stride in QUICK if quick else CASES:
        x, w = (rng.standard_normal(shape, dtype=np.float32) for shape in (images, filters))
        p, q = (torch.from_numpy(a).requires_grad_() for a in (x, w))
        s, r = (webtorch.tensor(a, device="cpu", requires_grad=True) for a in (x, w))
        ours, theirs = works(webtorch, s, r, stride), works(torch, p, q, stride)
        n, c, h, _ = images
        for name, run in ours.items():
            row = compare(
                f"conv2d {n}x{c}x{h}x{h}, 3x3 to {filters[0]}, stride {stride}{name}",
                lambda run=run: webtorch.realize(*run()),  # type: ignore[misc]
                theirs[name],
                turns=2 if quick else 8,
                seconds=0.01 if quick else 0.05,
            )
            rows.append(row)
    return rows


if __name__ == "__main__":
    main(__doc__ or "", measure)
