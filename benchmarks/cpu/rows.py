"""softmax, layer_norm, gelu and sums of a 4096x1024 matrix: at most 1.2 times PyTorch's time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

import webtorch
from benchmarks.harness import Row, compare, main


def works(t: Any, x: Any) -> dict[str, Callable[[], Any]]:
    """Return the works over `t`, which is webtorch or PyTorch, on the matrix `x`."""
    functional = t.nn.functional
    return {
        "softmax(-1)": lambda: t.softmax(x, -1),
        "layer_norm": lambda: functional.layer_norm(x, x.shape[-1:]),
        "gelu": lambda: functional.gelu(x),
        "sum(0)": lambda: x.sum(0),
        "sum(-1)": lambda: x.sum(-1),
    }


def measure(quick: bool = False) -> list[Row]:
    """Return one row for each of `works`."""
    torch.set_num_threads(2)
    webtorch.set_num_threads(2)
    shape = (16, 64) if quick else (4096, 1024)
    x = np.random.default_rng(0).standard_normal(shape, dtype=np.float32)
    theirs = works(torch, torch.from_numpy(x))
    ours = works(webtorch, webtorch.tensor(x, device="cpu"))
    return [
        compare(
            f"{name} of {shape[0]}x{shape[1]}",
            lambda name=name: webtorch.realize(ours[name]()),  # type: ignore[misc]
            theirs[name],
            reach=1.2,
            turns=2 if quick else 20,
        )
        for name in ours
    ]


if __name__ == "__main__":
    main(__doc__ or "", measure)
