"""How a product of packed weights and a row is best spread over a card: elements of one turn of an invocation, rows
together, invocations of a row and of a workgroup.

WEBTORCH_CACHE=0 python -m benchmarks.gpu.spread [--seconds 180] [FORMAT ROWS COLUMNS GATES ...]

GATES: 2 for two matrices whose products are multiplied, else 1. Several matrices of each shape take turns, so that
none stays in the card's caches; what lays the row out is timed with the product.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

import webtorch
from benchmarks.gpu.device import _rows, _slope, _submit
from webtorch.functions.packed import packed_product
from webtorch.lower import wgsl_reduce
from webtorch.lower.wgsl_reduce import Geometry
from webtorch.nn import functional as F
from webtorch.ops import blocks
from webtorch.quantization import FORMATS
from webtorch.tensors.device import resolve

# Of a layer of Llama 3's 8B shape, and of its head.
SHAPES = ("Q4_K 14336 4096 2", "Q4_K 4096 14336 1", "Q6_K 64128 4096 1", "Q4_K 6144 4096 1")
# Bytes of weights that take turns.
_BYTES = 200 << 20
# Seconds of work before something is timed.
_WARM = 0.25
# Invocations of a row, and of a workgroup.
SPREADS = ((16, 64), (32, 64), (32, 128), (32, 256), (64, 128), (128, 128))


def packed(form: str, rows: int, columns: int) -> webtorch.Tensor:
    """Return the data of a matrix of random bytes."""
    count = rows * FORMATS[form].row_bytes(columns)
    data = np.random.default_rng(0).integers(0, 60, min(count, 1 << 20), dtype=np.uint8)
    return webtorch.from_numpy(np.resize(data, count).view(np.int32)).to("webgpu")


class Measured:
    """Products of one shape."""

    def __init__(self, form: str, rows: int, columns: int, gates: int) -> None:
        self.form, self.rows = form, rows
        self.nbytes = gates * rows * FORMATS[form].row_bytes(columns)
        turns = max(2, -(-_BYTES // self.nbytes))
        self.sets = [[packed(form, rows, columns) for _ in range(gates)] for _ in range(turns)]
        self.x = webtorch.randn(1, columns)

    def fits(self, elements: int) -> bool:
        """Whether a turn of an invocation takes so many elements, of which groups of blocks have multiples."""
        form = FORMATS[self.form]
        shared = form.together * math.prod([form.axes[i] for i in form.shared]) * blocks.WORD
        return shared <= elements <= 64 // form.together

    def seconds(self) -> float:
        """Return the seconds of a product, of which nothing is known yet."""
        runtime: Any = resolve("webgpu")
        runtime.programs.clear()
        runtime.backend._rendered.clear()
        blocks.multiplying.cache_clear()

        def step(x: webtorch.Tensor, *weights: webtorch.Tensor) -> webtorch.Tensor:
            products = [packed_product(x, w, self.form, self.rows) for w in weights]
            return products[0] if len(products) == 1 else F.silu(products[0]) * products[1]

        compiled = webtorch.compile(step)
        rows: list[Any] = []
        for weights in (self.sets[0], *self.sets):
            webtorch.realize(compiled(self.x, *weights))
            executable = compiled.latest().executable
            rows += [row for _, row in _rows(executable)]
        rows = rows[len(rows) // (len(self.sets) + 1) :]
        # The clock of a card that was idle is low, and it was while this was compiled.
        warm = time.perf_counter()
        while time.perf_counter() - warm < _WARM:
            _submit(executable, rows, 20)
        return _slope(executable, rows, 0.003) / len(self.sets)


def tried(measured: Measured, most: int, of_all: int, ty: int, size: int) -> float:
    """Return the seconds with rows together, invocations of a row and of a workgroup."""
    card, chosen = wgsl_reduce.CARD, wgsl_reduce.choose_geometry

    def spread(writer: Any) -> Geometry:
        found = chosen(writer)
        # The row that is laid out, and other small kernels, stay.
        return found if writer.kernel.inner_count < 16 else Geometry(size // ty, ty, False)

    wgsl_reduce.CARD = replace(card, most=most, most_of_all=of_all)
    wgsl_reduce.choose_geometry = spread
    try:
        return measured.seconds()
    finally:
        wgsl_reduce.CARD, wgsl_reduce.choose_geometry = card, chosen


def main() -> None:
    """Print a line for each count of rows together."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=180.0)
    parser.add_argument("shapes", nargs="*")
    told = parser.parse_args()
    until = time.perf_counter() + told.seconds
    given = told.shapes or " ".join(SHAPES).split()
    all_measured: list[Measured] = []

    def line(measured: Measured, what: str, seconds: Callable[[], float]) -> float:
        found = seconds()
        print(f"  {what} {found * 1e6:.1f} us {measured.nbytes / found / 1e9:.0f} GB/s", flush=True)
        return found

    lanes, placed = blocks._LANES, blocks._placed
    for i in range(0, len(given), 4):
        form, *sizes = given[i : i + 4]
        measured = Measured(form, *map(int, sizes))
        all_measured.append(measured)
        blocks._LANES = lanes
        print(form, *sizes, f"{measured.nbytes / 1e6:.1f} MB")
        line(measured, "as chosen", measured.seconds)
        blocks._placed = lambda x, less=0: blocks._Placed(
            blocks._number(x - less if less else x), 0
        )
        line(measured, "with digits made floats", measured.seconds)
        blocks._placed = placed
    for i, measured in enumerate(all_measured):
        begun, left = time.perf_counter(), until - time.perf_counter()
        print(given[4 * i : 4 * i + 4])
        for each in (64, 32, 16):
            for most, of_all in ((4, 8), (4, 4), (2, 2)):
                blocks._LANES = each
                found = []
                for ty, size in SPREADS if measured.fits(each) else ():
                    if time.perf_counter() - begun > left / (len(all_measured) - i):
                        continue
                    found.append((tried(measured, most, of_all, ty, size), f"{ty}/{size}"))
                best = min(found, default=(1.0, ""))[0]
                texts = [f"{name} {t * 1e6:.1f}" for t, name in found]
                rate = measured.nbytes / best / 1e9
                named = f"  {each} elements, {most} of a dim and {of_all} of all together: "
                print(named, *texts, f" best {rate:.0f} GB/s", flush=True)
        blocks._LANES = lanes


if __name__ == "__main__":
    webtorch.set_default_device("webgpu")
    main()
