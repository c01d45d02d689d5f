"""Optimizers of PyTorch: one call for each parameter. Floor 6.

Fused ones (`torch.optim.Adam(..., fused=True)`) are kernels that work through their lists with the op table's formulas.
All others do in PyTorch's own words (`stepping`) what it says of one parameter, where it would go through lists a dozen
times, or make a dozen calls for each. What one parameter takes is recorded once, and known for all that are alike
(`known`). Of a fused one 16-bit parameters are stepped in float32; where a gradient scaler found an infinity, nothing
changes.
"""

from __future__ import annotations

import functools
import math
import sys
from collections.abc import Callable, Iterable, Sequence
from itertools import repeat
from types import FunctionType
from typing import Any, TypeAlias, TypeVar

import torch

from webtorch.aten.table import op
from webtorch.ir.dtype import Number
from webtorch.ir.graph import Node
from webtorch.ir.lines import user_line
from webtorch.ops.optimize import (
    adam_eps,
    adam_scale,
    adam_step,
    square_average,
)
from webtorch.ops.precision import to_type, widened
from webtorch.pytorch.buckets import apart, put
from webtorch.pytorch.device import Lain, is_whole, lie, on_device, store, wrap
from webtorch.pytorch.interrupt import check, flag
from webtorch.pytorch.kernels import is_plain
from webtorch.pytorch.known import Key, Kinds, Plan
from webtorch.pytorch.stepping import Count, Kind, Place, Refused, Run, Shapes, stepped, waiting
from webtorch.pytorch.wide import placed
from webtorch.tensors.tensor import Tensor

Kernel = Callable[..., None]
# The tensors of one parameter, itself first; None where there is none. Those that all parameters share are the last:
# the scale of the gradients, whether one is infinite, and the learning rate where it is a tensor.
Row = tuple[torch.Tensor | None, ...]
Values = Sequence[Tensor | None]
# One of what all parameters have, after another; None or empty where they have none.
Lists = Sequence[list[torch.Tensor | None] | None]
Flags = tuple[bool, ...]
# What tensors become, by their places in the row. The gradient is given as the one to descend.
Formula = Callable[[Tensor, Tensor, Values, Sequence[Number], Flags], dict[int, Tensor]]
_V = TypeVar("_V")
Rate: TypeAlias = Tensor | Number
# The same of all tensors of a row, and of their numbers.
Written = Callable[[Values, Sequence[Number]], dict[int, Tensor]]


class _Rows:
    """What is recorded for the tensors of one parameter after another. `plain`: for no others than floats."""

    def __init__(self, plain: bool) -> None:
        self.kinds, self.plain = Kinds(free=True), plain

    def step(
        self,
        rows: Iterable[tuple[int, Row]],
        numbers: Sequence[float],
        flags: object,
        formula: Written,
        done: list[int],
    ) -> None:
        """Record the step of one parameter after another, with the same numbers. The places of those that are the
        formula's are added to `done`; while one is written it stands there as ~place.
        """
        if flag.pressed:
            check()
        kinds, line = self.kinds, user_line()
        are_free = kinds.free
        begun, free = kinds.begin((flags, *numbers))
        for number, row in rows:
            if kinds.free is not are_free:
                # They were found to be worked with.
                are_free = kinds.free
                begun, free = kinds.begin((flags, *numbers))
            nodes: list[Node] = []
            plan = kinds.find(row, {}, nodes, free, begun=begun)
            if type(plan) is Plan:
                outs: Any = tuple([row[place] for place in plan.marks])
                done.append(~number)
                plan.write(outs, nodes, free, line)
                done[-1] = number
            elif (made := self._learn(plan, row, numbers, nodes, free, formula)) is not None:
                done.append(~number)
                for target, x in made:
                    store(target, x.tensor, True)
                done[-1] = number

    def _learn(
        self,
        plan: Plan | Key | None,
        row: Row,
        numbers: Sequence[float],
        nodes: list[Node],
        free: Sequence[float],
        formula: Written,
    ) -> list[tuple[torch.Tensor, Lain]] | None:
        """Return what a step writes, and where, and keep what there is to know of it if its kind was seen before. None
        where it is not the formula's.
        """
        tensors = [x for x in row if x is not None]
        if self.plain and not all(map(_is_plain, tensors)):
            return None
        places: list[int] = []

        def call(values: Any, options: object) -> tuple[Lain, ...]:
            """Return what is written, as it is to lie."""
            found = placed(formula)(values[: len(row)], values[len(row) :])
            places.extend(found)
            return tuple([
                lie(to_type(x, values[place].dtype), _is_made(x, values))
                for place, x in found.items()
            ])  # fmt: skip

        values = [None if x is None else wrap(x) for x in row] + list(numbers)
        try:
            if type(plan) is tuple and all(map(is_whole, tensors)):
                made = self.kinds.watch(plan, call, values, {}, nodes, free, places)
            else:
                made = call(values, {})
        except Refused:
            return None
        written = [(row[place], x) for place, x in zip(places, made, strict=True)]
        return [(target, x) for target, x in written if target is not None]


def _is_plain(x: torch.Tensor) -> bool:
    """Whether a tensor is one of floats of the device, and nothing else."""
    return (
        type(x) in _PLAIN
        and x.layout is torch.strided
        and x.dtype in _FLOATS
        and on_device(x)
        and not x.is_neg()
    )


def _is_made(x: Tensor, values: Sequence[object]) -> bool:
    """Whether a result has memory of its own."""
    storage = x._storage
    return all(not isinstance(v, Tensor) or v._storage is not storage for v in values)


class _Update:
    """How a fused optimizer steps one parameter."""

    def __init__(self, formula: Formula) -> None:
        self.formula = formula
        self.rows = _Rows(plain=False)

    def step(self, rows: Iterable[Row], numbers: Sequence[float], flags: Flags) -> None:
        """Record the step of one parameter after another, with the same numbers.

        Of the flags the first says to maximize, and the second that row[2] holds nothing yet.
        """

        def formula(values: Values, numbers: Sequence[Number]) -> dict[int, Tensor]:
            """Return what is written."""
            return self._stepped(values, numbers, flags)

        rows = [*rows]
        given = [row[1] for row in rows]
        parts = apart(given)
        if parts is not given:
            rows = [(x, g, *rest) for (x, _, *rest), g in zip(rows, parts, strict=True)]
        self.rows.step(enumerate(rows), numbers, flags, formula, [])
        if rows and rows[0][-3] is not None:
            # Gradients without their scale are written, too.
            put(parts, given)

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
    _, _, decays, decoupled = flags
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
        flags = (maximize, False, bool(weight_decay), decoupled)
        fixed = [1 - beta1, beta2, 1 - beta2, float(eps)]
        decay: list[float] = []
        if weight_decay:
            decay = [1 - number[0] * weight_decay if decoupled and number else float(weight_decay)]
        most = largest if amsgrad else repeat(None)
        lists = params, grads, averages, squares, most, steps
        rows: Iterable[Row] = zip(*lists, *map(repeat, (grad_scale, found_inf, rate)))
        # log(0) is -inf, and expm1 of that -1: no correction.
        logs = [math.log(b) if b else -math.inf for b in (beta1, beta2)]
        _ADAM.step(rows, [*fixed, *number, *logs, *decay], flags)

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


_UNSCALED = _Rows(plain=False)


def _unscaled(values: Values, numbers: Sequence[Number]) -> dict[int, Tensor]:
    """A gradient without its scale, and whether one so far is infinite."""
    g, bad, scale = values
    assert g is not None and bad is not None and scale is not None
    return {0: g * scale, 1: op.maximum(bad, op.where(op.all(op.isfinite(g)), 0.0, 1.0))}


def _unscale(
    grads: Sequence[torch.Tensor], found_inf: torch.Tensor, inv_scale: torch.Tensor
) -> None:
    parts = apart(grads)
    rows = enumerate(zip(parts, repeat(found_inf), repeat(inv_scale)))
    _UNSCALED.step(rows, (), (), _unscaled, [])
    put(parts, grads)


KERNELS: dict[str, Kernel] = {
    "_amp_foreach_non_finite_check_and_unscale_": _unscale,
} | {
    f"{name}{overload}": kernel
    for name, kernel in (
        ("_fused_adam_", _adam(False)),
        ("_fused_adamw_", _adam(True)),
        ("_fused_sgd_", _sgd),
        ("_fused_adagrad_", _adagrad),
    )
    for overload in ("", ".tensor_lr")
}


# ---- optimizers as users make them -------------------------------------------------------------

_PLAIN = frozenset((torch.Tensor, torch.nn.Parameter))
_FLOATS = frozenset((torch.float32, torch.float16, torch.bfloat16))
# As many kinds of steps are known, and sizes of parameters.
_MOST = 256


class _Known:
    """What is known of the steps of one kind: which of their numbers change, and what is recorded."""

    def __init__(self) -> None:
        self.rows = _Rows(plain=True)
        self.last: list[float] | None = None
        self.changing: list[bool] = []

    def sorted_out(self, numbers: list[float]) -> tuple[tuple[str, ...], list[float]]:
        """Return what stands for the numbers: those that have always been the same by their words, and the others."""
        if self.last is None:
            self.changing = [False] * len(numbers)
        elif self.last != numbers:
            self.changing = [
                c or a != b for c, a, b in zip(self.changing, self.last, numbers, strict=True)
            ]
        self.last = numbers
        # What meets a 1 may be left out.
        free = [c and x != 1.0 for c, x in zip(self.changing, numbers, strict=True)]
        words = tuple(["" if f else repr(x) for f, x in zip(free, numbers, strict=True)])
        return words, [x for f, x in zip(free, numbers, strict=True) if f]


class _Stepper:
    """Steps parameters by what PyTorch says of one of them (`single`)."""

    def __init__(self, single: FunctionType) -> None:
        self.single = waiting(single)
        self.known: dict[Kind, _Known] = {}
        # By the sizes of a parameter, those of what is made of it.
        self.shapes: dict[object, Shapes] = {}
        # Kinds of calls that cannot be told so.
        self.refused: set[object] = set()

    def step(
        self, lists: Lists, options: dict[str, object], usual: Callable[[Sequence[int]], None]
    ) -> None:
        """Step parameters, and as `usual` does those whose step cannot be told."""
        columns = {n: x for n, x in enumerate(lists) if x}
        counts = {
            n: [count for count in x if count is not None]
            for n, x in columns.items()
            if x[0] is not None and x[0].is_cpu
        }
        tensors = [n for n in columns if n not in counts]
        shared = {k: x for k, x in options.items() if isinstance(x, torch.Tensor)}
        # Gradients are read only: parts of a reducer's bucket are taken out of it by one call.
        read = {1: apart(columns[1])} if 1 in tensors else {}
        rows = [*zip(*[read.get(n, columns[n]) for n in tensors], *map(repeat, shared.values()))]
        given: list[object] = [*lists]
        for place, n in enumerate(tensors):
            given[n] = [Place(place)]
        for place, name in enumerate(shared, len(tensors)):
            options[name] = Place(place)
        values: list[tuple[float, ...]] = [()] * len(rows)
        if counts:
            values = [*zip(*[[x.item() for x in each] for each in counts.values()])]
        done: list[int] = []
        for value, places in _grouped(values):
            for (n, (first, *_)), x in zip(counts.items(), value, strict=True):
                given[n] = [Count(x, first.dtype)]
            before = len(done)
            after = self._group(given, options, rows, places, done)
            if mine := done[before:]:
                for each, now in zip(counts.values(), after):
                    torch._foreach_copy_([each[p] for p in mine], [now] * len(mine))
        if len(done) < len(rows):
            usual(sorted({*range(len(rows))}.difference(done)))

    def _group(
        self,
        given: Sequence[object],
        options: dict[str, object],
        rows: Sequence[Row],
        places: Sequence[int],
        done: list[int],
    ) -> Sequence[torch.Tensor]:
        """Step those parameters at some places that have the same counts, and return the counts after it. The places of
        those whose step can be told are added to `done`.
        """
        after: Sequence[torch.Tensor] = ()
        before = len(done)
        for others in ({}, {"capturable": True}):
            # Numbers on the device are not waited for: what can be captured does not ask for them.
            if len(done) > before or (others and options.get("capturable") is not False):
                break
            asked = {**options, **others}
            kind = (
                *[k for k, x in asked.items() if x is True],
                *[n for n, x in enumerate(rows[0]) if x is None],
            )
            if kind in self.refused:
                continue
            try:
                run, after = self._run(given, asked, rows[places[0]])
                self._told(run, given, asked, rows, places, done)
                break
            except Exception:
                if done and done[-1] < 0:
                    # Nobody can tell how far it was written.
                    raise
                # What is wrong PyTorch's own function says, of those that are left.
                self.refused.add(kind)
        return after

    def _told(
        self,
        run: Run,
        given: Sequence[object],
        options: dict[str, object],
        rows: Sequence[Row],
        places: Sequence[int],
        done: list[int],
    ) -> None:
        groups: list[Sequence[int]] = [places]
        if run.sized:
            sizes = _grouped([_size(rows[p]) for p in places])
            groups = [[places[n] for n in some] for _, some in sizes]
        runs = [run, *[self._run(given, options, rows[some[0]])[0] for some in groups[1:]]]
        for each, some in zip(runs, groups, strict=True):
            self._record(each, given, options, [(p, rows[p]) for p in some], done)

    def _run(
        self, given: Sequence[object], options: dict[str, object], row: Row
    ) -> tuple[Run, list[torch.Tensor]]:
        """Run the step of a parameter for its numbers."""
        if len(self.shapes) >= _MOST:
            self.shapes.clear()
        shapes = self.shapes.setdefault(_size(row), {})
        assert row[0] is not None
        run = Run(row[0], shapes)
        try:
            return run, stepped(self.single, run, given, options, row)[1]
        except Refused:
            # Of what is made in between the sizes are not known yet.
            first = Run(row[0], shapes, iter(()))
            values = [None if x is None else wrap(x) for x in row]
            stepped(self.single, first, given, options, row, values)
        run = Run(row[0], shapes)
        return run, stepped(self.single, run, given, options, row)[1]

    def _record(
        self,
        run: Run,
        given: Sequence[object],
        options: dict[str, object],
        rows: Sequence[tuple[int, Row]],
        done: list[int],
    ) -> None:
        called = tuple(run.called)
        known = self.known.get(called)
        if known is None:
            if len(self.known) >= _MOST:
                return
            known = self.known[called] = _Known()
        words, free = known.sorted_out(run.numbers)

        def formula(values: Values, numbers: Sequence[Number]) -> dict[int, Tensor]:
            """Return what is written."""
            left = iter(numbers)
            own = iter([float(w) if w else next(left) for w in words])
            again = Run(run.like, run.shapes, own)
            try:
                stands, _ = stepped(self.single, again, given, options, rows[0][1], values)
            except Exception as error:
                raise Refused from error
            written = [(n, x._value) for n, x in enumerate(stands) if x is not None and x._seen]
            return {n: x for n, x in written if x is not None}

        known.rows.step(rows, free, " ".join(words), formula, done)


def _size(row: Row) -> object:
    x = row[0]
    assert x is not None
    return x.shape, x.dtype


def _grouped(values: Sequence[_V]) -> Iterable[tuple[_V, Sequence[int]]]:
    """Return the different ones of values, each with its places."""
    if values.count(values[0]) == len(values):
        return [(values[0], range(len(values)))]
    groups: dict[_V, list[int]] = {}
    for place, value in enumerate(values):
        groups.setdefault(value, []).append(place)
    return groups.items()


def install() -> None:
    """Let all optimizers step parameters on the device by one call for each, where PyTorch would go through lists a
    dozen times, or make a dozen calls for each.
    """
    for module in [m for name, m in sys.modules.items() if name.startswith("torch.optim.")]:
        functions = vars(module)
        for name in [n for n in functions if n.startswith(_SINGLE)]:
            stepper = _Stepper(functions[name])
            for each in (name, name.replace(_SINGLE, _MULTI)):
                if each in functions:
                    setattr(module, each, _by(stepper, functions[each]))


_SINGLE, _MULTI = "_single_tensor_", "_multi_tensor_"


def _by(stepper: _Stepper, original: Callable[..., None]) -> Callable[..., None]:
    """Return what steps as `original` does, with fewer calls where nobody sees them."""

    @functools.wraps(original)
    def step(*lists: list[torch.Tensor | None] | None, **options: object) -> None:
        """Step as PyTorch does what is not on the device, or looked at."""
        if (
            torch.compiler.is_compiling()
            or not lists[0]
            or (first := lists[0][0]) is None
            or not on_device(first)
            or torch.is_grad_enabled()
            or not is_plain()
            or not all(x is None or isinstance(x, list) for x in lists)
            or not all(len({*map(id, x)}) == len(x) for x in lists if x and x[0] is not None)
        ):
            original(*lists, **options)
            return

        def usual(places: Sequence[int]) -> None:
            """Step some parameters as PyTorch does. It may put new states into the lists."""
            some = [[x[p] for p in places] if x else x for x in lists]
            original(*some, **options)
            for x, found in zip(lists, some, strict=True):
                if x and found:
                    for p, value in zip(places, found, strict=True):
                        x[p] = value

        # Numbers are compared; those on the CPU are at hand.
        numbers = {
            k: x.item() if isinstance(x, torch.Tensor) and x.is_cpu and x.numel() == 1 else x
            for k, x in options.items()
        }
        stepper.step(lists, numbers, usual)

    # TorchScript, which compiles some where `torch.distributed.optim` is imported, looks behind it by these names.
    script: Any = step
    script.__original_fn, script.__script_if_tracing_wrapper = original, True
    return step
