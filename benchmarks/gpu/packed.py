"""Products of one and of four rows by packed weights: time, bytes of the weight a second, and what floats take.

python -m benchmarks.gpu.packed [ROWS COLUMNS]
"""

from __future__ import annotations

import sys
from collections.abc import Callable

import numpy as np

import webtorch
from benchmarks.gpu.device import device_seconds
from webtorch.nn import functional as F
from webtorch.quantization import FORMATS, PackedTensor


def seconds(step: Callable[[webtorch.Tensor], webtorch.Tensor], x: webtorch.Tensor) -> float:
    """Return what a step takes on the device, many of them back to back."""
    compiled = webtorch.compile(step)
    for _ in range(2):
        webtorch.realize(compiled(x))
    return device_seconds(compiled.latest().executable)


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
