"""A chain of elementwise operations is one pass over memory: at most half of PyTorch's time."""

from __future__ import annotations

import numpy as np
import torch

import webtorch
from benchmarks.harness import Row, compare, main


def measure(quick: bool = False) -> list[Row]:
    """Return the time of `x = a*b + 0.5; x / (1 + abs(x))` on 16 M elements."""
    torch.set_num_threads(2)
    webtorch.set_num_threads(2)
    elements = 1 << (10 if quick else 24)
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal(elements, dtype=np.float32) for _ in range(2))
    p, q = torch.from_numpy(a), torch.from_numpy(b)
    s, t = webtorch.tensor(a, device="cpu"), webtorch.tensor(b, device="cpu")

    def ours() -> None:
        x = s * t + 0.5
        y = x / (1 + abs(x))
        del x
        webtorch.realize(y)

    def peer() -> None:
        x = p * q + 0.5
        x / (1 + abs(x))

    return [
        compare(f"chain of {elements} elements", ours, peer, reach=0.5, turns=2 if quick else 8)
    ]


if __name__ == "__main__":
    main(__doc__ or "", measure)
