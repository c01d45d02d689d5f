"""What the host pays for PyTorch on "webgpu": `python -m benchmarks.pytorch [operations] [optimizers] [steps] [calls]`.

Processor time of the thread, in microseconds, on tensors of 4x4, beside the same on PyTorch's CPU, kernels included:
what is recorded here is computed outside the measured part. Each figure is the least of many short turns, and the turns
of all figures, ours and PyTorch's, alternate until a part's seconds are over: a machine's speed changes within a run. A
node of the backward pass is the difference between chains of 220 and 20. Of an optimizer's step, which computes, all
that is recorded is measured, over its parameters; of a step of a GPT, and of a token it generates, what records and
what computes.
Aimed at: 7 for an operation, 9 for a node, 20 for a parameter, on a machine whose PyTorch adds in 0.9.

A compiled call is one of a chain of `nn.Linear`, without the time its programs take to run. What PyTorch's guards and
wrappers take of it is measured with a backend whose graphs return what they returned first.
Aimed at: 60 for a call. `WEBTORCH_PYTORCH_ENGINE=cpu` needs no adapter.
"""

from __future__ import annotations

import functools
import inspect
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn
from torch._dynamo.backends.common import aot_autograd
from torch.nn import functional as F
from torch.optim import swa_utils

import webtorch.pytorch  # noqa: F401  (where PyTorch's autoloading is off)
from benchmarks.models import gpt
from webtorch.pytorch import programs
from webtorch.runtime.realize import Runtime

_CALLS, _LONG, _SHORT, _PARAMETERS = 50, 220, 20, 50
# Figures are measured so many seconds, in so many rows of turns at least.
_SECONDS, _ROWS, _ROW = 10.0, 5, 4
Op = Callable[[torch.Tensor], object]
# Measures once: the microseconds of each part of a figure.
Turn = Callable[[], tuple[float, ...]]
_DEVICES = ("webgpu", "cpu")
_NODE = "backward node"


def least(turns: dict[Any, Turn], seconds: float = _SECONDS) -> dict[Any, tuple[float, ...]]:
    """Return the least of each part, over turns that alternate."""
    best: dict[Any, tuple[float, ...]] = {}
    end, done = time.perf_counter() + seconds, 0
    while done < _ROWS or time.perf_counter() < end:
        for name, turn in turns.items():
            # The first of a row finds the processor's caches as another figure left them.
            for _ in range(_ROW):
                found = turn()
                best[name] = tuple(map(min, best.get(name, found), found))
        done += 1
    return best


def calls_of(run: Callable[[], object], calls: int = _CALLS) -> Turn:
    """Return what measures a call."""

    def turn() -> tuple[float, ...]:
        """Measure once."""
        start = time.thread_time()
        for _ in range(calls):
            run()
        took = time.thread_time() - start
        torch.webgpu.synchronize()
        return (took / calls * 1e6,)

    return turn


def nodes_of(op: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor, g: torch.Tensor) -> Turn:
    """Return what measures backward passes of two lengths."""

    def backward(length: int) -> float:
        y = x
        for _ in range(length):
            y = op(y)
        start = time.thread_time()
        torch.autograd.grad(y, x, g)
        took = time.thread_time() - start
        torch.webgpu.synchronize()
        return took * 1e6

    return lambda: (backward(_LONG), backward(_SHORT))


class Constant:
    """A program that returns what it returned first."""

    def __init__(self, executable: Any) -> None:
        self.executable, self.program = executable, executable.program
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
                    (micros,) = least({"": calls_of(lambda call=call: call(x))}, 0.0)[""]  # type: ignore[misc]
                kind = "forward" if grad else "inference"
                yield f"{kind}, {count} parameters, {name}", micros
    programs.capture = recorded


class Flushes:
    """What the thread spends on computing what is pending, beside what it records."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self.original = Runtime.realize

    def __enter__(self) -> Flushes:
        flushes, original = self, self.original

        def realize(runtime: Runtime, *args: Any, **options: Any) -> Any:
            """Compute what is pending."""
            start = time.thread_time()
            try:
                return original(runtime, *args, **options)
            finally:
                flushes.seconds += time.thread_time() - start

        Runtime.realize = realize  # type: ignore[method-assign]
        return self

    def __exit__(self, *_: object) -> None:
        Runtime.realize = self.original  # type: ignore[method-assign]


def split(run: Callable[[], object], of: int = 1) -> Turn:
    """Return what measures what a call records, and what it computes, each `of` one of so many parts."""

    def turn() -> tuple[float, ...]:
        """Measure once."""
        with Flushes() as flushes:
            start = time.thread_time()
            run()
            took = time.thread_time() - start
        torch.webgpu.synchronize()
        return (took - flushes.seconds) / of * 1e6, flushes.seconds / of * 1e6

    return turn


def operations(where: str) -> Iterator[tuple[str, Turn]]:
    """Yield what measures operations and nodes of the backward pass."""
    x, y = (torch.ones(4, 4, device=where) for _ in range(2))
    w, b = (torch.ones(4, device=where) for _ in range(2))
    q, k, v = (torch.ones(1, 2, 4, 4, device=where) for _ in range(3))
    target = torch.zeros(4, dtype=torch.int64, device=where)
    leaf = torch.ones(4, 4, device=where, requires_grad=True)
    torch.webgpu.synchronize()
    calls: dict[str, Op] = {
        "add": lambda t: t + y,
        "multiply by a number": lambda t: t * 2,
        "add_": lambda t: t.add_(y),
        "relu": lambda t: t.relu(),
        "sum": lambda t: t.sum(),
        "matmul": lambda t: t @ y,
        "linear": lambda t: F.linear(t, y, b),
        "layer_norm": lambda t: F.layer_norm(t, (4,), w, b),
        "softmax": lambda t: t.softmax(-1),
        "cross_entropy": lambda t: F.cross_entropy(t, target),
        "attention": lambda t: F.scaled_dot_product_attention(q, k, v, is_causal=True),
        "t()": lambda t: t.t(),
        "x[0]": lambda t: t[0],
        "empty": lambda t: torch.empty(4, 4, device=where),
    }
    for name, run in calls.items():
        yield name, calls_of(lambda run=run: run(x))  # type: ignore[misc]
    chains: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
        "add": lambda t: t + y,
        "mul": lambda t: t * y,
        "relu": lambda t: t.relu(),
        "tanh": lambda t: t.tanh(),
        "matmul": lambda t: t @ y,
    }
    for name, op in chains.items():
        yield f"{_NODE} of {name}", nodes_of(op, leaf, x)


def optimizers() -> Iterator[tuple[str, type[torch.optim.Optimizer], dict[str, Any]]]:
    """Yield every optimizer of PyTorch as its users make it: plain, and with each of its options."""
    for title, kind in sorted(vars(torch.optim).items()):
        # One wants sparse gradients; the other calls the model, and reads numbers.
        if not isinstance(kind, type) or title in ("Optimizer", "SparseAdam", "LBFGS"):
            continue
        yield title, kind, {}
        for name, option in inspect.signature(kind).parameters.items():
            default, value = option.default, None
            if name in ("foreach", "fused"):
                value = name == "fused"
            elif default is False and name != "differentiable":
                value = True
            elif default == 0 and default is not False:
                value = 0.1
            if value is not None:
                options: dict[str, Any] = {name: value}
                if name in ("nesterov", "dampening"):
                    options["momentum"] = 0.1
                yield f"{title}, {name}={value}", kind, options


def steps_of(step: Callable[[], object], count: int) -> Turn:
    """Return what measures an optimizer's step, over its parameters, once it has been learned."""
    for _ in range(3):
        step()
    torch.webgpu.synchronize()
    return split(step, count)


def parameters(where: str, count: int = _PARAMETERS) -> list[torch.Tensor]:
    """Return small parameters with their gradients."""
    found = [torch.ones(4, 4, device=where, requires_grad=True) for _ in range(count)]
    for p in found:
        p.grad = torch.ones(4, 4, device=where)
    return found


def stepping(where: str) -> Iterator[tuple[str, Turn]]:
    """Yield what measures steps of optimizers, and what goes with them, over the parameters."""
    for name, kind, options in optimizers():
        if where == "cpu":
            # Nothing captures steps there.
            options.pop("capturable", None)
        yield name, steps_of(kind(parameters(where), **options).step, _PARAMETERS)
    params = parameters(where)
    utils = nn.utils
    yield "clip_grad_norm_", steps_of(lambda: utils.clip_grad_norm_(params, 1.0), _PARAMETERS)
    yield "clip_grad_value_", steps_of(lambda: utils.clip_grad_value_(params, 1.0), _PARAMETERS)
    optimizer = torch.optim.SGD(params)
    zero = functools.partial(optimizer.zero_grad, set_to_none=False)
    yield "zero_grad(set_to_none=False)", steps_of(zero, _PARAMETERS)
    scaler = torch.amp.GradScaler(where)
    scaler.scale(torch.ones((), device=where))

    def scaled() -> None:
        """Unscale, step and update."""
        scaler.unscale_(optimizer)
        scaler.step(optimizer)
        scaler.update()

    yield "GradScaler with SGD", steps_of(scaled, _PARAMETERS)
    model = nn.ParameterList(params)
    for name, average in (("", None), (", EMA", swa_utils.get_ema_multi_avg_fn(0.9))):
        averaged = swa_utils.AveragedModel(model, multi_avg_fn=average)
        update = functools.partial(averaged.update_parameters, model)
        yield f"AveragedModel{name}", steps_of(update, _PARAMETERS)


def steps(where: str) -> Iterator[tuple[str, Turn]]:
    """Yield what measures a step of a GPT and a token."""
    model = gpt(torch, 2, 32, 4, 16, 32).to(where)
    optimizer = torch.optim.AdamW(model.parameters())
    x, y = (torch.zeros(2, 16, dtype=torch.int64, device=where) for _ in range(2))

    def step() -> None:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y.flatten())
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()

    def token() -> None:
        with torch.no_grad():
            model(x[:1, :8])[-1:].argmax(-1).item()

    for _ in range(4):
        step(), token()
    yield "a step of a GPT", split(step)
    yield "a token", split(token)


def show(part: Callable[[str], Iterator[tuple[str, Turn]]]) -> None:
    """Measure a part on both devices, and print it."""
    best = least({(name, where): turn for where in _DEVICES for name, turn in part(where)})
    for name, _ in list(best)[: len(best) // 2]:
        ours, theirs = (best[name, where] for where in _DEVICES)
        if name.startswith(_NODE):
            ours, theirs = (((x[0] - x[1]) / (_LONG - _SHORT),) for x in (ours, theirs))
        flush = f"{ours[1]:10.1f}" if len(ours) > 1 else f"{'':>10}"
        sys.stdout.write(f"{name:<48}{ours[0]:10.1f}{flush}{theirs[0]:10.1f}\n")


def main() -> None:
    """Print the tables."""
    asked = sys.argv[1:] or ["operations", "optimizers", "steps", "calls"]
    sys.stdout.write(f"{'':<48}{'webgpu':>10}{'computing':>10}{'CPU':>10}\n")
    if "operations" in asked:
        show(operations)
    if "optimizers" in asked:
        show(stepping)
    if "steps" in asked:
        show(steps)
    if "calls" in asked:
        for name, micros in compiled_calls():
            sys.stdout.write(f"{name:<48}{micros:10.1f}\n")


if __name__ == "__main__":
    main()
