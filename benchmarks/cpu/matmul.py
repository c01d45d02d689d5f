"""A product of 1024x1024 matrices: at most 1.3 times PyTorch's time."""

from __future__ import annotations

import numpy as np
import torch

import webtorch
from benchmarks.harness import Row, compare, main


def measure(quick: bool = False) -> list[Row]:
    """Return the time of one product."""
    torch.set_num_threads(2)
    webtorch.set_num_threads(2)
    n = 32 if quick else 1024
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal((n, n), dtype=np.float32) for _ in range(2))
    p, q = torch.from_numpy(a), torch.from_numpy(b)
    s, t = webtorch.tensor(a, device="cpu"), webtorch.tensor(b, device="cpu")
    row = compare(
        f"matmul {n}", lambda: webtorch.realize(s @ t), lambda: p @ q, reach=1.3,
        turns=2 if quick else 20, seconds=0.08,
    )  # fmt: skip
    row.figures = {"tflops": 2 * n**3 / row.ours * 1e-12}
    return [row]


if __name__ == "__main__":
    main(__doc__ or "", measure)
