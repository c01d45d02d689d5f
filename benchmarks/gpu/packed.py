"""Products of one and of four rows by packed weights: time, bytes of the weight a second, and what floats take.

python -m benchmarks.gpu.packed [ROWS COLUMNS]
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

import numpy as np

import webtorch
from webtorch.nn import functional as F
from webtorch.quantization import FORMATS, PackedTensor

_TURNS = 20


def seconds(step: Callable[[webtorch.Tensor], webtorch.Tensor], rows: webtorch.Tensor) -> float:
    """Return the best time of a step, of turns that are computed together, each of other rows."""
    best = float("inf")
    given = [rows * (i + 1) for i in range(_TURNS)]
    webtorch.realize(*given)
    for _ in range(6):
        webtorch.synchronize()
        start = time.perf_counter()
        kept = [step(x) for x in given]
        webtorch.realize(*kept)
        webtorch.synchronize()
        best = min(best, (time.perf_counter() - start) / _TURNS)
    return best


def main(rows: int, columns: int) -> None:
    """Print a line for each format."""
    webtorch.set_default_device("webgpu")
    print(f"({rows}, {columns})")
    for dtype in (webtorch.float32, webtorch.float16):
        weight = webtorch.randn(rows, columns).to(dtype)
        line = [f"{dtype!s:16}"]
        for count in (1, 4, 32):
            x = webtorch.randn(count, columns).to(dtype)
            t = seconds(lambda x, weight=weight: F.linear(x, weight), x)  # type: ignore[misc]
            line.append(f"{count} rows {t * 1e6:8.1f} us {weight.nbytes / t / 1e9:7.0f} GB/s")
        print("  ".join(line), flush=True)
    for name, form in FORMATS.items():
        count = rows * columns // form.elements * form.nbytes
        data = np.random.default_rng(0).integers(0, 60, count, dtype=np.uint8)
        packed = PackedTensor.from_bytes(data.tobytes(), name, (rows, columns))
        line = [f"{name:16}"]
        for count in (1, 4, 32):
            x = webtorch.randn(count, columns)
            t = seconds(lambda x, packed=packed: F.linear(x, packed), x)  # type: ignore[misc]
            line.append(f"{count} rows {t * 1e6:8.1f} us {packed.nbytes / t / 1e9:7.0f} GB/s")
        print("  ".join(line), flush=True)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:3])) if len(sys.argv) > 2 else main(8192, 28672)
