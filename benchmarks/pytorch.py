"""What the host pays for one operation of PyTorch on "webgpu": `python -m benchmarks.pytorch`.

Processor time of the thread, in microseconds, the least of several repeats, on tensors of 4x4: what is recorded is
computed outside the measured part. A node of the backward pass is the difference between chains of 220 and 20.
Aimed at: 15 for an operation, 20 for a node.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

import torch

import webtorch.pytorch  # noqa: F401  (where PyTorch's autoloading is off)

_CALLS, _REPEATS = 200, 15
Op = Callable[[torch.Tensor], object]


def least(run: Callable[[], object], calls: int = _CALLS) -> float:
    """Return the microseconds of one call."""
    times = []
    for _ in range(_REPEATS):
        start = time.thread_time()
        for _ in range(calls):
            run()
        times.append(time.thread_time() - start)
        torch.webgpu.synchronize()
    return min(times) / calls * 1e6


def node(op: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor, g: torch.Tensor) -> float:
    """Return the microseconds of one node of the backward pass."""

    def backward(length: int) -> float:
        times = []
        for _ in range(_REPEATS):
            y = x
            for _ in range(length):
                y = op(y)
            start = time.thread_time()
            torch.autograd.grad(y, x, g)
            times.append(time.thread_time() - start)
            torch.webgpu.synchronize()
        return min(times)

    return (backward(220) - backward(20)) / 200 * 1e6


def main() -> None:
    """Print both tables."""
    x, y = (torch.ones(4, 4, device="webgpu") for _ in range(2))
    leaf = torch.ones(4, 4, device="webgpu", requires_grad=True)
    torch.webgpu.synchronize()
    rows: list[tuple[str, float]] = []
    operations: dict[str, Op] = {
        "add": lambda t: t + y,
        "multiply by a number": lambda t: t * 2,
        "add_": lambda t: t.add_(y),
        "matmul": lambda t: t @ y,
        "t()": lambda t: t.t(),
        "x[0]": lambda t: t[0],
        "empty": lambda t: torch.empty(4, 4, device="webgpu"),
    }
    for name, run in operations.items():
        rows.append((name, least(lambda run=run: run(x))))  # type: ignore[misc]
    chains: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
        "mul": lambda t: t * y,
        "relu": lambda t: t.relu(),
        "tanh": lambda t: t.tanh(),
        "matmul": lambda t: t @ y,
    }
    for name, op in chains.items():
        rows.append((f"backward node of {name}", node(op, leaf, x)))
    for name, micros in rows:
        sys.stdout.write(f"{name:<28}{micros:8.1f} us\n")


if __name__ == "__main__":
    main()
