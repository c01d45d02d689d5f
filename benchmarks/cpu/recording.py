"""Recording one small operation, and its share of a cached realize: at most 25 us.

A chain of operations on tensors of 4 elements is recorded and realized again and again; what is
left after the device's work is Python. PyTorch's figure is one eager operation of the same size.

With gradients nothing is realized: one operation that records its gradient function, and one function of a
backward pass, which records the cotangents.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

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
    return rows + _with_gradients(quick)


# What is called with gradients: a name, how many operations a call is, and the call on x (4, 4), w (4, 4) and b (4).
Calls = list[tuple[str, int, Callable[[Any, Any, Any, Any], Any]]]


def _chain(_: Any, x: Any, w: Any, b: Any) -> Any:
    for _ in range(10):
        x = x * w + b
    return x


CALLS: Calls = [
    ("x * w + b", 20, _chain),
    ("linear", 1, lambda lib, x, w, b: lib.nn.functional.linear(x, w, b)),
    ("layer_norm", 1, lambda lib, x, w, b: lib.nn.functional.layer_norm(x, (4,), b, b)),
    ("gelu", 1, lambda lib, x, w, b: lib.nn.functional.gelu(x)),
    ("softmax", 1, lambda lib, x, w, b: x.softmax(-1)),
    ("matmul", 1, lambda lib, x, w, b: x @ w),
    ("sum", 1, lambda lib, x, w, b: x.sum()),
    ("transpose", 1, lambda lib, x, w, b: x.transpose(0, 1)),
    ("mse_loss", 1, lambda lib, x, w, b: lib.nn.functional.mse_loss(x, w)),
]


def _with_gradients(quick: bool) -> list[Row]:
    """Return the times of single operations that record gradients, forward and backward."""
    rows: list[Row] = []
    for name, count, call in CALLS[:2] if quick else CALLS:
        runs: list[Callable[[], object]] = []
        for lib, device in ((webtorch, "cpu"), (torch, "cpu")):
            given = [
                lib.ones(shape, device=device).requires_grad_() for shape in ((4, 4), (4, 4), (4,))
            ]
            g = lib.ones_like(call(lib, *given))

            def forward(lib: Any = lib, given: Any = given, call: Any = call) -> object:
                return call(lib, *given)

            def both(lib: Any = lib, given: Any = given, call: Any = call, g: Any = g) -> object:
                return lib.autograd.grad(call(lib, *given), given, g, allow_unused=True)

            runs += [forward, both]
        for title, ours, peer in (("", runs[0], runs[2]), (" and backward", runs[1], runs[3])):
            row = compare(
                f"{name} with gradients{title}", ours, peer, turns=3 if quick else 12, seconds=0.02
            )
            for field in ("ours", "ours_median", "peer", "peer_median"):
                setattr(row, field, getattr(row, field) / count)
            rows.append(row)
    return rows


def _seconds(run: object) -> float:
    started = time.perf_counter()
    run()  # type: ignore[operator]
    return time.perf_counter() - started


if __name__ == "__main__":
    main(__doc__ or "", measure)
