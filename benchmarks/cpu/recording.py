"""Recording one small operation, and its share of a cached realize: at most 25 us.

A chain of operations on tensors of 4 elements is recorded and realized again and again; what is
left after the device's work is Python. PyTorch's figure is one eager operation of the same size.
"""

from __future__ import annotations

import time

import torch

import webtorch
from benchmarks.harness import Row, compare, main

REACH_SECONDS = 25e-6


def measure(quick: bool = False) -> list[Row]:
    """Return the time of one operation in chains of 10 and 100 of them, recorded and realized."""
    rows: list[Row] = []
    for length in (10,) if quick else (10, 100):
        a, b = webtorch.randn(4, device="cpu"), webtorch.randn(4, device="cpu")
        p, q = torch.randn(4), torch.randn(4)

        def ours(length: int = length, a: webtorch.Tensor = a, b: webtorch.Tensor = b) -> None:
            x = a
            for _ in range(length // 2):
                x = x * b + a
            webtorch.realize(x)

        def peer(length: int = length, p: torch.Tensor = p, q: torch.Tensor = q) -> None:
            x = p
            for _ in range(length // 2):
                x = x * q + p

        def recording(length: int = length, a: webtorch.Tensor = a, b: webtorch.Tensor = b) -> None:
            x = a
            for _ in range(length // 2):
                x = x * b + a

        turns = 3 if quick else 30
        row = compare(f"one of {length} ops", ours, peer, turns=turns, seconds=0.02)
        for name in ("ours", "ours_median", "peer", "peer_median"):
            setattr(row, name, getattr(row, name) / length)
        recorded = min(_seconds(recording) for _ in range(turns * 20)) / length
        row.figures = {"recorded_seconds": recorded, "reach_seconds": REACH_SECONDS}
        verdict = "reached" if row.ours <= REACH_SECONDS else "MISSED"
        row.note = f"recording alone {recorded * 1e6:.1f} us; at most 25 us: {verdict}"
        rows.append(row)
    return rows


def _seconds(run: object) -> float:
    started = time.perf_counter()
    run()  # type: ignore[operator]
    return time.perf_counter() - started


if __name__ == "__main__":
    main(__doc__ or "", measure)
