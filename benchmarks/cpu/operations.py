"""Every operation's time on the CPU, small (256), medium (64 K) and large (16 M): a mean of at most 1.2x PyTorch's.

    python -m benchmarks.cpu.operations [--sizes 65536 ...] [--only PART_OF_A_NAME] [--out FILE] [--write]

`--write` makes benchmarks/operations.md of what was measured. Elementwise operations come from the op table; what
takes other inputs is written below, once for both libraries. A small call is all overhead: Python's, and that of
starting a program.
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
from benchmarks.harness import Row, Run, machine, time_text, write
from webtorch.ops.record import TABLE, Elementwise

SIZES = (256, 1 << 16, 1 << 24)
CALLS = Path(__file__).with_suffix(".txt")
PAGE = Path(__file__).parents[1] / "operations.md"
NAMES = {256: "256", 1 << 16: "64 K", 1 << 24: "16 M"}
# What is slower than so many times PyTorch's time, at 64 K or 16 M elements, must have a reason.
SLOW = 5.0
# Below this PyTorch's call as a whole is what one of ours costs in Python, in seconds.
_A_CALL = 12e-6
CALL = (
    "the call, not the kernel: PyTorch's takes under 12 us as a whole, and one of ours 5 to 30, most of it Python "
    "from the arguments to the launch. A compiled step pays none of it"
)
# Reasons by the beginnings of names; the first that fits. What has none and is not `CALL` is not known.
REASONS: dict[tuple[str, ...], str] = {
    (
        "gcd",
        "lcm",
    ): "Euclid's loop in vectors until the last lane is done, by division of 64-bit integers",
    (
        "T.linalg.qr",
        "T.linalg.eigh",
        "T.linalg.svd",
        "T.linalg.det",
        "T.linalg.solve",
        "T.linalg.inv",
    ): ("NumPy's OpenBLAS, and panels of our own; PyTorch's is MKL"),
    ("T.fft", "T.stft", "T.istft"): "pocketfft, and for frames a copy of them; PyTorch's is MKL",
    ("T.searchsorted", "T.bucketize"): "five operations are recorded for each halving",
    ("T.randperm", "x.long().unique", "T.combinations"): (
        "sorts: random keys, so that a seed gives one order on every device; equal numbers together"
    ),
    ("m.nonzero", "a.masked_select", "T.bincount", "T.isin", "x.unique"): (
        "the result's size depends on the data, which is waited for: two programs with Python between"
    ),
    ("F.grid_sample", "F.interpolate"): "four gathers, whose places are computed for each element",
    (
        "T.cross",
        "F.pad",
    ): "parts are copied one after the other: the gradient of an index would be a scatter",
    ("a.cummax", "a.cummin"): "a scan of values, one of places, and a gather",
    (
        "a.topk",
        "x.topk",
        "a.kthvalue",
        "a.mode",
    ): "NumPy's partition or sort of rows, then a gather",
    (
        "F.cross_entropy",
    ): "maxima and sums of the rows, then the picked element: exponentials of all are computed once more",
    ("T.kron", "T.outer"): "indices of both factors are computed for each element of the result",
}


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
            arrays = [
                rng.random(size, dtype=np.float32) * np.float32(high - low) + np.float32(low)
                for _ in op.tensors
            ]
        else:
            arrays = [rng.integers(1, 9, size) for _ in op.tensors]
        args, options = op.samples[0]
        place = op.function_in[0]
        ours = _found(
            webtorch, {"torch": "", "Tensor": "Tensor."}.get(place, f"{place}.") + op.name
        )
        # Copies: what reads memory that NumPy sees, too, is another matter.
        mine, others = (
            partial(f, *[library.from_numpy(a).clone() for a in arrays], *args, **options)
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
        if isinstance(found, webtorch.Tensor):
            webtorch.realize(found)
        else:
            webtorch.realize(*_tensors(found))
        return found

    return call


def _tensors(found: object) -> list[webtorch.Tensor]:
    if isinstance(found, webtorch.Tensor):
        return [found]
    return [t for part in found for t in _tensors(part)] if isinstance(found, (tuple, list)) else []


def _times(runs: list[Run], seconds: float) -> list[float]:
    """Return the fastest time of each, in turns, within about `seconds` for each: at least three turns,
    or two where one takes a second.
    """
    best = [math.inf] * len(runs)
    spent = 0.0
    turns = 0
    while turns < (3 if spent < 1 else 2) or (spent < seconds and turns < 40):
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
            started = time.perf_counter()
            for turn in range(200):  # kernels that worked enough are compiled
                if time.perf_counter() - started < (0.5 if turn < 4 else 0.02):
                    run()
            best = _times([run, peer], seconds)
            rows.append(Row(name, best[0], best[0], best[1], best[1], figures={"size": size}))
    return rows


def summary(rows: list[Row]) -> tuple[int, float, int]:
    """Return how many operations there are, the geometric mean of the ratios, and how many are slow."""
    ratios = [r.ratio or 1.0 for r in rows]
    mean = math.exp(sum(math.log(x) for x in ratios) / max(len(ratios), 1))
    return len(ratios), mean, sum(x > SLOW for x in ratios)


def by_size(rows: list[Row]) -> dict[int, list[Row]]:
    """Return the rows of each size, from the smallest."""
    sizes = sorted({int(r.figures["size"]) for r in rows})
    return {size: [r for r in rows if r.figures["size"] == size] for size in sizes}


def report(rows: list[Row]) -> None:
    """Print the mean for each size, and what is slower than twice PyTorch's time."""
    for size, mine in by_size(rows).items():
        count, mean, slow = summary(mine)
        cost = sorted(r.ours for r in mine)[len(mine) // 2]
        print(
            f"\n{size} elements: {count} operations, geometric mean {mean:.2f}, "
            f"{slow} above {SLOW:g}; the median call takes {cost * 1e6:.1f} us"
        )
        for row in sorted(mine, key=lambda r: -(r.ratio or 0)):
            if (row.ratio or 0) > 2 or "-v" in sys.argv:
                print(
                    f"  {row.ratio:6.2f}  {row.ours * 1e6:10.1f} us  {(row.peer or 0) * 1e6:10.1f} us  {row.name}"
                )


def reason(row: Row) -> str:
    """Return why an operation is slow; empty where nobody has said it."""
    for beginnings, text in REASONS.items():
        if row.name.startswith(beginnings):
            return text
    return CALL if row.peer is not None and row.peer < _A_CALL else ""


def page(rows: list[Row], measured_on: dict[str, Any]) -> str:
    """Return benchmarks/operations.md: the means, the reasons of what is slow, and every time."""
    sizes = by_size(rows)
    lines = [
        "# Every operation on the CPU against PyTorch",
        "",
        f"`python -m benchmarks.cpu.operations --write`, {measured_on['date']}; "
        f"{measured_on['processors']} processors, {measured_on['system']}, "
        f"Python {measured_on['python']}, PyTorch {torch.__version__}, a load of "
        f"{measured_on['load']} at the start.",
        "The fastest of turns that alternate; two threads each; one call, computed at once, so that small "
        "ones are all overhead. "
        f"Reach: a geometric mean of 1.2 at 64 K and 16 M, and a reason for each above {SLOW:g} there.",
        "",
        f"| elements | operations | geometric mean | above {SLOW:g} |",
        "|---|---|---|---|",
    ]
    for size, mine in sizes.items():
        count, mean, slow = summary(mine)
        lines.append(f"| {_size(size)} | {count} | {mean:.2f} | {slow} |")
    lines += [
        "",
        f"## Above {SLOW:g}, and why",
        "",
        "| operation | elements | ratio | why |",
        "|---|---|---|---|",
    ]
    lines += [
        f"| {_cell(r.name)} | {_size(size)} | {r.ratio:.2f} | {reason(r)} |"
        for size, mine in sizes.items()
        if size > min(SIZES)
        for r in sorted(mine, key=lambda r: -(r.ratio or 0))
        if (r.ratio or 0) > SLOW
    ]
    titles = [f"{_size(s)}: webtorch | PyTorch | ratio" for s in sizes]
    lines += [
        "",
        "## All",
        "",
        f"| operation | {' | '.join(titles)} |",
        "|---" * (1 + 3 * len(sizes)) + "|",
    ]
    found = {(r.name, int(r.figures["size"])): r for r in rows}
    for name in dict.fromkeys(r.name for r in rows):
        cells = [_cell(name)]
        for size in sizes:
            row = found.get((name, size))
            if row is None:
                cells += ["", "", ""]
            else:
                cells += [time_text(row.ours), time_text(row.peer), f"{row.ratio:.2f}"]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _size(size: int) -> str:
    return NAMES.get(size, str(size))


def _cell(name: str) -> str:
    return f"`{name}`".replace("|", "\\|")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--sizes", type=int, nargs="*", default=list(SIZES), help="elements")
    parser.add_argument("--only", default="", help="a part of the names")
    parser.add_argument("--seconds", type=float, default=0.1, help="for each operation")
    parser.add_argument("--out", metavar="FILE", help="also write the figures as JSON")
    parser.add_argument("--write", action="store_true", help=f"make {PAGE.name} of the figures")
    parser.add_argument("--page", metavar="FILE", type=Path, default=PAGE, help="another file")
    parser.add_argument("-v", action="store_true", help="print every operation")
    chosen = parser.parse_args()
    quiet = machine()
    print(quiet)
    rows = measure(tuple(chosen.sizes), chosen.only, chosen.seconds)
    report(rows)
    write(chosen.out, rows)
    if chosen.write:
        chosen.page.write_text(page(rows, quiet), encoding="utf-8")
        slow = [r for r in rows if (r.ratio or 0) > SLOW and r.figures["size"] > min(SIZES)]
        if unknown := sorted({r.name for r in slow if not reason(r)}):
            sys.exit(f"slow, and REASONS says not why: {', '.join(unknown)}")
