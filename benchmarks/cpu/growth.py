"""Growth: time per element from 2^16 to 2^28 elements, and compile time from 6 to 96 layers.

Both should stay flat: the slowest element at most 1.5 times the fastest, and a layer at most 1.5
times as long to compile in a deep network as in a shallow one. The ratio is of sizes from 2^24 on,
which no cache of the processor holds; the note has all. Sizes end where a quarter of the memory is
full. Compile times are the processor's, of capture and planning without a device
(`compile(..., device="meta")`), on a GPT of small dimensions.
"""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Callable
from typing import Any

import numpy as np

import webtorch
from benchmarks.harness import Row, main
from benchmarks.models import Work, characters, gpt
from benchmarks.training import make_step

FLAT = 1.5
_FIRST, _LAST = 16, 28
_BEYOND = 24


def works() -> dict[str, Callable[[Any], Any]]:
    """Return elementwise work and reductions on a matrix of 256 columns."""
    return {
        "x * 2 + 1": lambda x: x * 2 + 1,
        "gelu": webtorch.nn.functional.gelu,
        "sum()": lambda x: x.sum(),
        "sum(-1)": lambda x: x.sum(-1),
        "softmax(-1)": lambda x: x.softmax(-1),
    }


def _memory() -> int:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError):
        return 8 << 30


def per_element(quick: bool) -> list[Row]:
    """Return, for each work, seconds for one element: the slowest size over the fastest."""
    webtorch.set_num_threads(2)
    most = min(_LAST, (_memory() // 4 // 12).bit_length() - 1) if not quick else _FIRST + 2
    rows: list[Row] = []
    for name, run in works().items():
        found: dict[int, float] = {}
        for power in range(_FIRST, most + 1, 2):
            x = webtorch.ones(2**power // 256, 256, device="cpu")
            webtorch.realize(x)
            times = []
            while len(times) < 5 or (not quick and sum(times) < 0.3 and len(times) < 200):
                started = time.perf_counter()
                webtorch.realize(run(x))
                times.append(time.perf_counter() - started)
            found[power] = min(times) / 2**power
            del x
            gc.collect()
        beyond = [t for p, t in found.items() if p >= min(_BEYOND, most)]
        slowest, fastest = max(beyond), min(beyond)
        note = ", ".join(f"2^{p}: {t * 1e9:.3g} ns" for p, t in found.items())
        rows.append(Row(f"{name}, one element", slowest, slowest, fastest, fastest, FLAT, note))
    return rows


def _compile_seconds(layers: int) -> float:
    job = Work("gpt", lambda t: gpt(t, layers, 32, 2, 16, 32), characters(2, 16, 32))
    with webtorch.device("cpu"):
        model = job.build(webtorch)
    optimizer = webtorch.optim.Adam(model.parameters(), lr=1e-3)
    step = webtorch.compile(make_step(webtorch, model, optimizer), device="meta")
    x, y = (webtorch.tensor(a, device="cpu") for a in job.batch(np.random.default_rng(0)))
    webtorch.realize(*model.parameters(), x, y)
    started = time.process_time()
    step(x, y)
    return time.process_time() - started


def per_layer(quick: bool) -> list[Row]:
    """Return seconds for one layer of a deep network against one of the shallowest."""
    _compile_seconds(2)
    found = {n: _compile_seconds(n) / n for n in ((2, 4) if quick else (6, 24, 96))}
    first, last = next(iter(found.values())), list(found.values())[-1]
    note = ", ".join(f"{n} layers: {t * n:.3g} s" for n, t in found.items())
    return [Row("compiling one layer of a GPT", last, last, first, first, FLAT, note)]


def measure(quick: bool = False) -> list[Row]:
    """Return one row for each work, and one for compiling. "PyTorch" is the fastest size here."""
    return [*per_layer(quick), *per_element(quick)]


if __name__ == "__main__":
    main(__doc__ or "", measure)
