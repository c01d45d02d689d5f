"""Fused optimizers of PyTorch (`torch.optim.Adam(..., fused=True)`): one kernel call for all parameters. Floor 6.

Each works through its tensor lists with the op table's formulas: what one parameter takes is recorded once, and known
for all that are alike (`known`). 16-bit parameters are stepped in float32. Where a gradient scaler found an infinity,
nothing changes. Adam as users write it, with neither `fused` nor `foreach`, is stepped here too: its counts of steps
are on the CPU then, and the corrections are numbers, as PyTorch computes them.
"""

from __future__ import annotations

import functools
import importlib
import math
from collections.abc import Callable, Iterable, Sequence
from itertools import groupby, repeat
from operator import itemgetter
from typing import Any, TypeAlias

import torch

from webtorch.aten.table import op
from webtorch.ir.dtype import Number
from webtorch.ir.graph import Node
from webtorch.ir.lines import user_line
from webtorch.ops.optimize import (
    adam_eps,
    adam_scale,
    adam_step,
    corrected_step,
    square_average,
)
from webtorch.ops.precision import to_type, widened
from webtorch.pytorch.device import Lain, is_whole, lie, on_device, store, wrap
from webtorch.pytorch.interrupt import check, flag
from webtorch.pytorch.kernels import is_plain
from webtorch.pytorch.known import Key, Kinds, Plan
from webtorch.pytorch.wide import placed
from webtorch.tensors.tensor import Tensor

Kernel = Callable[..., None]
# The tensors of one parameter, itself first; None where there is none. Those that all parameters share are the last:
# the scale of the gradients, whether one is infinite, and the learning rate where it is a tensor.
Row = tuple[torch.Tensor | None, ...]
Values = Sequence[Tensor | None]
Flags = tuple[bool, ...]
# What tensors become, by their places in the row. The gradient is given as the one to descend.
Formula = Callable[[Tensor, Tensor, Values, Sequence[Number], Flags], dict[int, Tensor]]
Rate: TypeAlias = Tensor | Number


class _Update:
    """How an optimizer steps one parameter."""

    def __init__(self, formula: Formula) -> None:
        self.formula = formula
        self.kinds = Kinds(free=True)

    def step(self, rows: Iterable[Row], numbers: Sequence[float], flags: Flags) -> None:
        """Record the step of one parameter after another, with the same numbers.

        Of the flags the first says to maximize, and the second that row[2] holds nothing yet.
        """
        if flag.pressed:
            check()
        kinds, line = self.kinds, user_line()
        are_free = kinds.free
        begun, free = kinds.begin((flags, *numbers))
        for row in rows:
            if kinds.free is not are_free:
                # They were found to be worked with.
                are_free = kinds.free
                begun, free = kinds.begin((flags, *numbers))
            nodes: list[Node] = []
            plan = kinds.find(row, {}, nodes, free, begun=begun)
            if type(plan) is Plan:
                outs: Any = tuple([row[place] for place in plan.marks])
                plan.write(outs, nodes, free, line)
            else:
                self._learn(plan, row, numbers, flags, nodes, free)

    def _learn(
        self,
        plan: Plan | Key | None,
        row: Row,
        numbers: Sequence[float],
        flags: Flags,
        nodes: list[Node],
        free: Sequence[float],
    ) -> None:
        """Record a step, and keep what there is to know of it if its kind was seen before."""
        places: list[int] = []

        def call(values: Any, options: object) -> tuple[Lain, ...]:
            """Return what is written, as it is to lie."""
            found = placed(self._stepped)(values[: len(row)], values[len(row) :], flags)
            places.extend(found)
            return tuple([lie(to_type(x, values[place].dtype), True) for place, x in found.items()])

        values = [wrap(x) if isinstance(x, torch.Tensor) else x for x in row] + list(numbers)
        if type(plan) is tuple and all(is_whole(x) for x in row if isinstance(x, torch.Tensor)):
            made = self.kinds.watch(plan, call, values, {}, nodes, free, places)
        else:
            made = call(values, {})
        for place, x in zip(places, made, strict=True):
            target = row[place]
            assert target is not None
            store(target, x.tensor, True)

    def _stepped(
        self, values: Values, numbers: Sequence[Number], flags: Flags
    ) -> dict[int, Tensor]:
        maximize, begins, *_ = flags
        x, grad, *_ = values
        scale, infinite, _ = values[-3:]
        assert x is not None and grad is not None
        found: dict[int, Tensor] = {}
        g = widened(grad)
        if scale is not None:
            # A scaled gradient is also written back without its scale.
            found[1] = g = g * op.reciprocal(scale)
        found |= self.formula(widened(x), -g if maximize else g, values, numbers, flags)
        if infinite is not None:
            failed = op.ne(infinite, 0.0)
            for place, value in found.items():
                # New memory begins at zero.
                old = 0.0 if begins and place == 2 else values[place]
                found[place] = op.where(failed, old, value)
        return found


def _rate(lr: float | torch.Tensor) -> tuple[torch.Tensor | None, list[float]]:
    """Return a learning rate as a tensor on the device, or as a number."""
    if not isinstance(lr, torch.Tensor):
        return None, [float(lr)]
    return (lr, []) if on_device(lr) else (None, [float(lr.item())])


def _adam_step(
    x: Tensor, g: Tensor, values: Values, numbers: Sequence[Number], flags: Flags
) -> dict[int, Tensor]:
    """Adam: averages of the gradient and of its square, and the largest of these (amsgrad)."""
    _, _, decays, decoupled, host = flags
    _, _, average, square, largest, step, *_, rate = values
    assert average is not None and square is not None
    weight, beta2, rest, eps, *others = numbers
    if decays and decoupled:
        # Of a tensor the device computes the factor.
        decay = others.pop()
        x = x * (decay if rate is None else 1 - rate * decay)
    elif decays:
        g = g + x * others.pop()
    by: Rate = others.pop(0) if rate is None else rate
    found = {2: op.lerp(widened(average), g, weight)}
    found[3] = seen = square_average(widened(square), g, beta2, rest)
    if largest is not None:
        found[4] = seen = op.maximum(widened(largest), seen)
    if host:
        (root,) = others
        found[0] = corrected_step(x, found[2], seen, by, root, eps)
        return found
    # The corrections meet numbers only, and no whole tensor.
    assert step is not None
    log1, log2 = others
    if rate is None:
        scale = adam_scale(step, by, log1, log2)
    else:
        scale = adam_scale(step, 1.0, log1, log2) * rate
    found[0] = adam_step(x, found[2], seen, scale, adam_eps(step, log2, eps))
    return found


_ADAM = _Update(_adam_step)


def _adam(decoupled: bool) -> Kernel:
    def kernel(
        params: Sequence[torch.Tensor],
        grads: Sequence[torch.Tensor],
        averages: Sequence[torch.Tensor],
        squares: Sequence[torch.Tensor],
        largest: Sequence[torch.Tensor],
        steps: Sequence[torch.Tensor],
        *,
        lr: float | torch.Tensor,
        beta1: float,
        beta2: float,
        weight_decay: float,
        eps: float,
        amsgrad: bool,
        maximize: bool,
        grad_scale: torch.Tensor | None = None,
        found_inf: torch.Tensor | None = None,
    ) -> None:
        """Update all parameters, averages and steps in place."""
        rate, number = _rate(lr)
        host = rate is None and all(s.device.type == "cpu" for s in steps)
        flags = (maximize, False, bool(weight_decay), decoupled, host)
        fixed = [1 - beta1, beta2, 1 - beta2, float(eps)]
        decay: list[float] = []
        if weight_decay:
            decay = [1 - number[0] * weight_decay if decoupled and number else float(weight_decay)]
        nothing = repeat(None)
        most = largest if amsgrad else nothing
        lists = params, grads, averages, squares, most, nothing if host else steps
        rows: Iterable[Row] = zip(*lists, *map(repeat, (grad_scale, found_inf, rate)))
        if not host:
            # log(0) is -inf, and expm1 of that -1: no correction.
            logs = [math.log(b) if b else -math.inf for b in (beta1, beta2)]
            _ADAM.step(rows, [*fixed, *number, *logs, *decay], flags)
            return
        counts = [s.item() for s in steps]
        for count, some in groupby(zip(counts, rows), itemgetter(0)):
            # As PyTorch computes them where it goes through lists.
            rest = [(number[0] / (1 - beta1**count)) * -1, (1 - beta2**count) ** 0.5]
            _ADAM.step((row for _, row in some), [*fixed, *rest, *decay], flags)

    return kernel


def _sgd_step(
    x: Tensor, g: Tensor, values: Values, numbers: Sequence[Number], flags: Flags
) -> dict[int, Tensor]:
    """Gradient descent with momentum."""
    _, begins, decays, has_momentum, nesterov = flags
    _, _, buffer, *_, rate = values
    others = list(numbers)
    by: Rate = others.pop(0) if rate is None else rate
    if decays:
        g = g + x * others.pop(0)
    if not has_momentum:
        return {0: x - g * by}
    if begins:
        kept = op.clone(g)
    else:
        assert buffer is not None
        kept = widened(buffer) * others[0] + g * others[1]
    return {2: kept, 0: x - (g + kept * others[0] if nesterov else kept) * by}


_SGD = _Update(_sgd_step)


def _sgd(
    params: Sequence[torch.Tensor],
    grads: Sequence[torch.Tensor],
    buffers: Sequence[torch.Tensor],
    *,
    weight_decay: float,
    momentum: float,
    lr: float | torch.Tensor,
    dampening: float,
    nesterov: bool,
    maximize: bool,
    is_first_step: bool,
    grad_scale: torch.Tensor | None = None,
    found_inf: torch.Tensor | None = None,
) -> None:
    rate, numbers = _rate(lr)
    begins = bool(momentum) and is_first_step
    flags = (maximize, begins, bool(weight_decay), bool(momentum), nesterov)
    if weight_decay:
        numbers.append(float(weight_decay))
    if momentum and (nesterov or not begins):
        numbers.append(float(momentum))
    if momentum and not begins:
        numbers.append(1.0 - dampening)
    kept = buffers if momentum else repeat(None)
    rows: Iterable[Row] = zip(params, grads, kept, *map(repeat, (grad_scale, found_inf, rate)))
    _SGD.step(rows, numbers, flags)


def _adagrad_step(
    x: Tensor, g: Tensor, values: Values, numbers: Sequence[Number], flags: Flags
) -> dict[int, Tensor]:
    """Adagrad: the sum of the squared gradients."""
    _, _, decays, slows = flags
    _, _, total, step, *_, rate = values
    assert total is not None and step is not None
    eps, *others = numbers
    by: Rate = others.pop(0) if rate is None else rate
    if decays:
        g = g + x * others.pop(0)
    kept = widened(total) + g * g
    slower = by / ((step - 1) * others.pop() + 1) if slows else by
    return {2: kept, 0: x - g * slower / (op.sqrt(kept) + eps)}


_ADAGRAD = _Update(_adagrad_step)


def _adagrad(
    params: Sequence[torch.Tensor],
    grads: Sequence[torch.Tensor],
    sums: Sequence[torch.Tensor],
    steps: Sequence[torch.Tensor],
    *,
    lr: float | torch.Tensor,
    lr_decay: float,
    weight_decay: float,
    eps: float,
    maximize: bool,
    grad_scale: torch.Tensor | None = None,
    found_inf: torch.Tensor | None = None,
) -> None:
    rate, number = _rate(lr)
    numbers = [float(eps), *number]
    numbers += [float(n) for n in (weight_decay, lr_decay) if n]
    flags = (maximize, False, bool(weight_decay), bool(lr_decay))
    rows: Iterable[Row] = zip(
        params, grads, sums, steps, *map(repeat, (grad_scale, found_inf, rate))
    )
    _ADAGRAD.step(rows, numbers, flags)


KERNELS: dict[str, Kernel] = {
    f"{name}{overload}": kernel
    for name, kernel in (
        ("_fused_adam_", _adam(False)),
        ("_fused_adamw_", _adam(True)),
        ("_fused_sgd_", _sgd),
        ("_fused_adagrad_", _adagrad),
    )
    for overload in ("", ".tensor_lr")
}


_PLAIN = frozenset((torch.Tensor, torch.nn.Parameter))


def _are_alone(params: Sequence[torch.Tensor], steps: Sequence[torch.Tensor]) -> bool:
    """Whether nobody sees the operators that step parameters one by one, and each has a count of its own."""
    return (
        is_plain()
        and not torch.is_grad_enabled()
        and _PLAIN.issuperset(map(type, params))
        and len({*map(id, steps)}) == len(steps)
    )


def install() -> None:
    """Let Adam step float32 parameters on the device by one call where PyTorch would go through lists a dozen times, or
    from parameter to parameter.
    """
    module: Any = importlib.import_module("torch.optim.adam")
    for name in ("_multi_tensor_adam", "_single_tensor_adam"):
        setattr(module, name, _in_one_call(getattr(module, name), name.startswith("_single")))


def _in_one_call(original: Callable[..., None], single: bool) -> Callable[..., None]:
    """Return what steps as Adam's `original` does, which goes through lists, or one by one (`single`)."""

    @functools.wraps(original)
    def step(
        params: list[torch.Tensor],
        grads: list[torch.Tensor],
        exp_avgs: list[torch.Tensor],
        exp_avg_sqs: list[torch.Tensor],
        max_exp_avg_sqs: list[torch.Tensor],
        state_steps: list[torch.Tensor],
        grad_scale: torch.Tensor | None,
        found_inf: torch.Tensor | None,
        **options: Any,
    ) -> None:
        """Step as PyTorch does where it is no single list of the device's."""
        lists = params, grads, exp_avgs, exp_avg_sqs, max_exp_avg_sqs, state_steps
        numbers = [options[name] for name in ("lr", "beta1", "beta2")]
        if (
            not params
            or torch.compiler.is_compiling()
            or options["capturable"]
            or options["differentiable"]
            or grad_scale is not None
            or found_inf is not None
            or any(isinstance(n, torch.Tensor) for n in numbers)
            or not all(
                p.dtype is torch.float32 is g.dtype and on_device(p) for p, g in zip(params, grads)
            )
            or not all(s.device.type == "cpu" for s in state_steps)
            or (single and not _are_alone(params, state_steps))
        ):
            original(*lists, grad_scale, found_inf, **options)
            return
        decoupled = options["decoupled_weight_decay"]
        given = {
            k: options[k]
            for k in ("amsgrad", "lr", "beta1", "beta2", "weight_decay", "eps", "maximize")
        }
        torch._foreach_add_(state_steps, torch.tensor(1.0, device="cpu"), alpha=1.0)
        (torch._fused_adamw_ if decoupled else torch._fused_adam_)(*lists, **given)

    # TorchScript, which compiles Adam where `torch.distributed.optim` is imported, looks behind it by these names.
    script: Any = step
    script.__original_fn, script.__script_if_tracing_wrapper = original, True
    return step
