"""What the host pays for one operation of PyTorch on "webgpu": `python -m benchmarks.pytorch`.

Processor time of the thread, in microseconds, the least of several repeats, on tensors of 4x4: what is recorded is
computed outside the measured part. A node of the backward pass is the difference between chains of 220 and 20.
Aimed at: 15 for an operation, 20 for a node.

A compiled call is one of a chain of `nn.Linear`, without the time its programs take to run. What PyTorch's guards and
wrappers take of it is measured with a backend whose graphs return what they returned first.
Aimed at: 60 for a call.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch._dynamo.backends.common import aot_autograd

import webtorch.pytorch  # noqa: F401  (where PyTorch's autoloading is off)
from webtorch.pytorch import programs

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


class Constant:
    """A program that returns what it returned first."""

    def __init__(self, executable: Any) -> None:
        self.executable = executable
        self.outputs: list[Any] | None = None

    def run(self, buffers: Any, numbers: Any) -> list[Any]:
        """Return the outputs of the first call."""
        if self.outputs is None:
            self.outputs = self.executable.run(buffers, numbers)
        return list(self.outputs)


def constant(gm: torch.fx.GraphModule, inputs: Any) -> Callable[..., Any]:
    """Return a function that runs a graph at its first call only."""
    outputs: list[Any] = []

    def run(args: list[Any]) -> list[Any]:
        if not outputs:
            outputs.extend(gm(*args))
        args.clear()
        return list(outputs)

    run._boxed_call = True  # type: ignore[attr-defined]
    return run


def compiled_calls() -> Iterator[tuple[str, float]]:
    """Yield the microseconds of compiled calls, without those of the programs."""
    recorded = programs.capture

    def capture(*args: Any, **options: Any) -> Any:
        captured = recorded(*args, **options)
        captured.executable = Constant(captured.executable)
        return captured

    programs.capture = capture
    empty = aot_autograd(fw_compiler=constant, inference_compiler=constant)
    x = torch.ones(2, 4, device="webgpu")
    for count in (12, 144):
        model = torch.nn.Sequential(*[torch.nn.Linear(4, 4) for _ in range(count // 2)])
        model.to("webgpu")
        for name, backend in (("webgpu", "webgpu"), ("PyTorch's own", empty)):
            for grad in (False, True):
                torch._dynamo.reset()
                with torch.set_grad_enabled(grad):
                    call = torch.compile(model, backend=backend)
                    call(x), call(x)
                    micros = least(lambda call=call: call(x), 50)  # type: ignore[misc]
                kind = "forward" if grad else "inference"
                yield f"{kind}, {count} parameters, {name}", micros
    programs.capture = recorded


def main() -> None:
    """Print the tables."""
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
    rows += compiled_calls()
    for name, micros in rows:
        sys.stdout.write(f"{name:<48}{micros:8.1f} us\n")


if __name__ == "__main__":
    main()
