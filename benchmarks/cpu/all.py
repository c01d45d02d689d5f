"""Every claim about the CPU, one after the other."""

from __future__ import annotations

from benchmarks.cpu import chain, convolution, growth, matmul, recording, rows, train
from benchmarks.harness import Row, main


def measure(quick: bool = False) -> list[Row]:
    """Return the rows of all scripts."""
    found: list[Row] = []
    for script in (recording, chain, rows, matmul, convolution, train, growth):
        found += script.measure(quick)
    return found


if __name__ == "__main__":
    main(__doc__ or "", measure)
