"""Every operation's time on the CPU, small (256), medium (64 K) and large (16 M): a mean of at most 1.2x PyTorch's.

    python -m benchmarks.cpu.operations [--sizes 65536 ...] [--only PART_OF_A_NAME] [--out FILE]

Elementwise operations come from the op table; what takes other inputs is written below, once for both
libraries. A small call is all overhead: Python's, and that of starting a program.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

import webtorch
from benchmarks.harness import Row, Run, machine, write
from webtorch.ops.record import TABLE, Elementwise

SIZES = (256, 1 << 16, 1 << 24)
CALLS = Path(__file__).with_suffix(".txt")


def inputs(library: Any, size: int) -> dict[str, Any]:
    """Return the names that CALLS uses, as tensors of one library, of about `size` elements each."""
    rng = np.random.default_rng(0)
    side = math.isqrt(size)
    square = min(side, 512)
    spots = max(4, math.isqrt(size // 16 // 8) // 2 * 2)

    def real(*shape: int) -> Any:
        return library.from_numpy(rng.standard_normal(shape, dtype=np.float32))

    def whole(*shape: int, below: int = side) -> Any:
        return library.from_numpy(rng.integers(0, below, shape))

    return {
        "T": library,
        "F": library.nn.functional,
        "x": real(size),
        "a": real(side, side),
        "b": real(side, side),
        "i": whole(side, side),
        "m": library.from_numpy(rng.random((side, side)) < 0.5),
        "w": real(square, square),
        "e": library.eye(square),
        "c": real(max(1, size // (16 * spots * spots)), 16, spots, spots),
        "k": real(16, 16, 3, 3),
        "q": real(4, max(4, min(512, size // 128)), 32),
        "L": whole(side),
        "s": library.from_numpy(np.sign(rng.standard_normal(side)).astype(np.float32)),
        "g": library.from_numpy(
            rng.uniform(-1, 1, (max(1, size // (16 * spots * spots)), spots, spots, 2)).astype(
                np.float32
            )
        ),
    }


def elementwise() -> list[Elementwise]:
    """Return the entries of the op table that are one formula of numbers, and public."""
    return [
        op
        for op in TABLE.values()
        if isinstance(op, Elementwise) and op.function_in and op.torch and op.samples
    ]


def works(size: int) -> Iterator[tuple[str, Run, Run]]:
    """Yield (name, ours, PyTorch's) of everything that is timed, at one size."""
    rng = np.random.default_rng(1)
    for op in elementwise():
        low, high = max(-3.0, op.domain[0]), min(3.0, op.domain[1])
        if any(d.kind == "float" for d in op.dtypes):
            arrays = [rng.uniform(low, high, size).astype(np.float32) for _ in op.tensors]
        else:
            arrays = [rng.integers(1, 9, size) for _ in op.tensors]
        args, options = op.samples[0]
        place = op.function_in[0]
        ours = _found(
            webtorch, {"torch": "", "Tensor": "Tensor."}.get(place, f"{place}.") + op.name
        )
        mine, others = (
            partial(f, *map(library.from_numpy, arrays), *args, **options)
            for f, library in ((ours, webtorch), (_found(torch, op.torch), torch))
        )
        yield op.name, mine, others
    names = [inputs(library, size) for library in (webtorch, torch)]
    for text in CALLS.read_text(encoding="utf-8").splitlines():
        if not text.startswith("#"):
            code = compile(text, text, "eval")
            yield text, partial(eval, code, names[0]), partial(eval, code, names[1])


def _found(library: Any, path: str) -> Any:
    for part in path.split("."):
        library = getattr(library, part)
    return library


def _computed(run: Run) -> Run:
    """Return `run` with its results computed: PyTorch computes at once."""

    def call() -> object:
        found = run()
        webtorch.realize(*(x for x in _tensors(found)))
        return found

    return call


def _tensors(found: object) -> list[webtorch.Tensor]:
    if isinstance(found, webtorch.Tensor):
        return [found]
    return [t for part in found for t in _tensors(part)] if isinstance(found, (tuple, list)) else []


def _times(runs: list[Run], seconds: float) -> list[float]:
    """Return the fastest time of each, in turns, within about `seconds` for each."""
    best = [math.inf] * len(runs)
    spent = 0.0
    turns = 0
    while turns < 3 or (spent < seconds and turns < 40):
        for n, run in enumerate(runs):
            count = max(1, min(200, int(0.002 / max(best[n], 1e-7)))) if turns else 1
            started = time.perf_counter()
            for _ in range(count):
                run()
            took = time.perf_counter() - started
            best[n] = min(best[n], took / count)
            spent += took / len(runs)
        turns += 1
    return best


def measure(sizes: tuple[int, ...], only: str = "", seconds: float = 0.1) -> list[Row]:
    """Return a row for each operation and size. What one library refuses is named and left out."""
    torch.set_num_threads(2)
    webtorch.set_num_threads(2)
    rows: list[Row] = []
    for size in sizes:
        for name, ours, peer in works(size):
            if only not in name:
                continue
            run = _computed(ours)
            try:
                peer()
                run()
            except (AttributeError, RuntimeError, TypeError, IndexError, ValueError) as error:
                print(f"not timed: {name} of {size}: {str(error)[:90]}", file=sys.stderr)
                continue
            for _ in range(4):  # kernels that worked enough are compiled
                run()
            best = _times([run, peer], seconds)
            rows.append(Row(name, best[0], best[0], best[1], best[1], figures={"size": size}))
    return rows


def report(rows: list[Row]) -> None:
    """Print the mean for each size, and what is slower than twice PyTorch's time."""
    sizes = sorted({r.figures["size"] for r in rows})
    for size in sizes:
        mine = [r for r in rows if r.figures["size"] == size]
        ratios = [r.ratio or 1.0 for r in mine]
        mean = math.exp(sum(math.log(x) for x in ratios) / len(ratios))
        cost = sorted(r.ours for r in mine)[len(mine) // 2]
        print(
            f"\n{size:.0f} elements: {len(mine)} operations, geometric mean {mean:.2f}, "
            f"{sum(x > 5 for x in ratios)} above 5; the median call takes {cost * 1e6:.1f} us"
        )
        for row in sorted(mine, key=lambda r: -(r.ratio or 0)):
            if (row.ratio or 0) > 2 or "-v" in sys.argv:
                print(
                    f"  {row.ratio:6.2f}  {row.ours * 1e6:10.1f} us  {(row.peer or 0) * 1e6:10.1f} us  {row.name}"
                )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--sizes", type=int, nargs="*", default=list(SIZES), help="elements")
    parser.add_argument("--only", default="", help="a part of the names")
    parser.add_argument("--seconds", type=float, default=0.1, help="for each operation")
    parser.add_argument("--out", metavar="FILE", help="also write the figures as JSON")
    parser.add_argument("-v", action="store_true", help="print every operation")
    chosen = parser.parse_args()
    print(machine())
    rows = measure(tuple(chosen.sizes), chosen.only, chosen.seconds)
    report(rows)
    write(chosen.out, rows)
