"""How a product of packed weights and a row is best spread over a card: rows together, invocations of a row and of a
workgroup.

WEBTORCH_CACHE=0 python -m benchmarks.gpu.spread [FORMAT ROWS COLUMNS GATES ...]

GATES: 2 for two matrices whose products are multiplied, else 1.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import Any

import numpy as np

import webtorch
from benchmarks.gpu.device import device_seconds
from webtorch.lower import wgsl_reduce
from webtorch.lower.wgsl_reduce import Geometry
from webtorch.nn import functional as F
from webtorch.quantization import FORMATS, PackedTensor
from webtorch.tensors.device import resolve

SHAPES = ("Q4_K", "14336", "4096", "2", "Q4_K", "4096", "14336", "1", "Q6_K", "64128", "4096", "1")


def packed(form: str, rows: int, columns: int) -> PackedTensor:
    """Return a matrix of random bytes."""
    count = rows * FORMATS[form].row_bytes(columns)
    data = np.random.default_rng(0).integers(0, 60, count, dtype=np.uint8)
    return PackedTensor.from_bytes(data.tobytes(), form, (rows, columns))


def measure(weights: list[PackedTensor], x: webtorch.Tensor) -> float:
    """Return the seconds of a product, of which nothing is known yet."""
    runtime: Any = resolve("webgpu")
    runtime.programs.clear()
    runtime.backend._rendered.clear()

    def step(x: webtorch.Tensor) -> webtorch.Tensor:
        products = [F.linear(x, w) for w in weights]
        return products[0] if len(products) == 1 else F.silu(products[0]) * products[1]

    compiled = webtorch.compile(step)
    for _ in range(2):
        webtorch.realize(compiled(x))
    return device_seconds(compiled.latest().executable, 0.01, 0.1)


def main(form: str, rows: int, columns: int, gates: int) -> None:
    """Print a line for each count of rows together."""
    weights = [packed(form, rows, columns) for _ in range(gates)]
    x = webtorch.randn(1, columns)
    card, chosen = wgsl_reduce.CARD, wgsl_reduce.choose_geometry
    nbytes = gates * weights[0].nbytes
    print(f"{form} ({rows}, {columns}) x {gates}: {measure(weights, x) * 1e6:.1f} us as chosen")
    for most in (1, 2, 4):
        wgsl_reduce.CARD = replace(card, most=most, most_of_all=most)
        line = [f"{most} together"]
        for size in (64, 128, 256):
            for ty in (16, 32, 64, 128):
                if ty > size:
                    continue

                def spread(writer: Any, ty: int = ty, size: int = size) -> Geometry:
                    found = chosen(writer)
                    # The row that is laid out, and other small kernels, stay.
                    return (
                        found if writer.kernel.inner_count < 64 else Geometry(size // ty, ty, False)
                    )

                wgsl_reduce.choose_geometry = spread
                t = measure(weights, x)
                line.append(f"{ty}/{size} {t * 1e6:.0f}")
        best = min(float(part.split()[1]) for part in line[1:])
        print("  ".join(line), f"  best {nbytes / best / 1e3:.0f} GB/s", flush=True)
    wgsl_reduce.CARD, wgsl_reduce.choose_geometry = card, chosen


if __name__ == "__main__":
    webtorch.set_default_device("webgpu")
    given = sys.argv[1:] or list(SHAPES)
    for i in range(0, len(given), 4):
        main(given[i], *map(int, given[i + 1 : i + 4]))
