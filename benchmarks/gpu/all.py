"""Every measurement on a real GPU: single operations, then training steps with their timelines.

`--out FILE` also writes each training program with the time of each of its dispatches beside FILE.
"""

from __future__ import annotations

import os
import time

from benchmarks.gpu import kernels, train
from benchmarks.gpu.device import describe
from benchmarks.harness import Row, machine, options, show, write


def run(argv: list[str] | None = None) -> list[Row]:
    """Measure everything, printing and writing after each part, so that a stop loses little."""
    chosen = options(__doc__ or "", argv)
    about = {**machine(), **describe()}
    print(about, flush=True)
    rows: list[Row] = []
    for name in ("mlp", "cnn", "gpt"):
        started = time.perf_counter()
        found, report = train.one(name, chosen.quick)
        rows += found
        show(found)
        print(f"{name}: {time.perf_counter() - started:.0f} s; {report.partition('in order:')[0]}")
        if chosen.out:
            with open(f"{os.path.splitext(chosen.out)[0]}-{name}.txt", "w") as file:
                file.write(report)
        write(chosen.out, rows, about=about)
    rows += kernels.measure(chosen.quick)
    show(rows)
    write(chosen.out, rows, about=about)
    return rows


if __name__ == "__main__":
    run()
