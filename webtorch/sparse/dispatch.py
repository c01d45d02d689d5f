"""Which function computes a call with sparse tensors. Floor 5.

While there are sparse tensors, an interpreter looks at the arguments of calls (`webtorch.dispatch.call`): dense calls
go on, and while there are none nobody looks. A call with a sparse tensor goes to the rule of its name; of those that
have none go on the calls that look at no element: sizes and types, flags and hooks of autograd, functions made of other
calls. All others raise as PyTorch's dispatcher does.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar, cast

from webtorch.dispatch.call import Args, Callee, Kwargs, Run, alone, install
from webtorch.ops.primitive import fill
from webtorch.ops.record import TABLE, Elementwise, Op
from webtorch.sparse.tensor import SparseTensor, alive, no_kernel
from webtorch.tensors.calls import store_in
from webtorch.tensors.override import flat
from webtorch.tensors.promotion import can_cast
from webtorch.tensors.tensor import Tensor

F = TypeVar("F", bound=Callable[..., Any])
RULES: dict[str, Callable[..., Any]] = {}
# Roles of calls that look at no element.
_ELSEWHERE = frozenset(
    (
        "parts",
        "fact",
        "flag",
        "place",
        "gradient",
        "mark",
        "hook",
        "function",
        "backward",
        "turn",
        "gradients",
        "step",
        "other",
    )
)


def rule(*names: str) -> Callable[[F], F]:
    """Decorate the function that computes calls of these names."""

    def note(function: F) -> F:
        """Take the function."""
        for name in names:
            RULES[name] = function
        return function

    return note


def rule_of(name: str) -> Callable[..., Any] | None:
    """Return what computes calls of a name; None where nothing does. What is elementwise is computed of the values."""
    found = RULES.get(name)
    op = TABLE.get(name)
    if found is None and op is not None:
        one = isinstance(op, Elementwise) and len(op.tensors) == 1
        return functools.partial(_on_values, op) if one or op.on_values else None
    return found


def _on_values(op: Op, input: SparseTensor, *args: object, **kwargs: object) -> SparseTensor:
    """Return an elementwise operation of the values. Raises NotImplementedError where it does not keep zeros."""
    if op.function(fill((), 0, input.dtype, "cpu"), *args, **kwargs).item():
        raise no_kernel(op.name, input)
    x = input if input.coalesced else RULES["coalesce"](input)
    values = op.function(x.values_of(), *args, **kwargs)
    return cast(SparseTensor, x.like(values, op.name.title().replace("_", "")))


def _written(name: str, out: Tensor, made: Any) -> object:
    """Return a tensor that takes what was made. Raises RuntimeError where it cannot."""
    if not isinstance(out, SparseTensor):
        return store_in(out, made, name) if not isinstance(made, SparseTensor) else out.copy_(made)
    if not isinstance(made, SparseTensor):
        raise RuntimeError(
            f"{name}: the result is dense, and cannot be written to a tensor of layout {out.layout}"
        )
    if not can_cast(made.dtype, out.dtype):
        raise RuntimeError(
            f"result type {made.dtype.legacy} can't be cast to the desired output type {out.dtype.legacy}"
        )
    return out.become(made if made.dtype is out.dtype else RULES["to"](made, out.dtype))


class Sparse:
    """The interpreter that computes calls with sparse tensors."""

    inside = watches = False

    @property
    def on(self) -> bool:
        """Whether there are sparse tensors."""
        return alive.count > 0

    def call(self, callee: Callee, run: Run, args: Args, kwargs: Kwargs) -> Any:
        """Return what the rule of a call gives, where an argument is sparse."""
        first = next((x for x in flat(args) if isinstance(x, SparseTensor)), None)
        if first is None and kwargs:
            first = next((x for x in flat(kwargs.values()) if isinstance(x, SparseTensor)), None)
        if first is None:
            return alone(callee, args, kwargs) if run is callee.run else run(args, kwargs)
        name = callee.name
        found = rule_of(name)
        if found is not None and kwargs.get("out") is not None:
            out = kwargs["out"]
            given = {n: v for n, v in kwargs.items() if n != "out"}
            if not any(isinstance(x, SparseTensor) for x in flat((*args, *given.values()))):
                raise no_kernel(name, first)
            return _written(name, out, found(*args, **given))
        if found is not None:
            return found(*args, **kwargs)
        if isinstance(kwargs.get("out"), SparseTensor) and callee.op and callee.op.factory:
            out = kwargs["out"]
            made = {"dtype": out.dtype, "device": out.device, "layout": out.layout, "out": None}
            return _written(name, out, run(args, {**kwargs, **made}))
        if callee.writes:
            return _in_place(name, first, args, kwargs)
        if callee.role in _ELSEWHERE:
            return run(args, kwargs)
        if name.startswith("__") and callee.op is None:
            # An operator, which calls the entry.
            return run(args, kwargs)
        raise no_kernel(name, first)


def _in_place(name: str, first: SparseTensor, args: Args, kwargs: Kwargs) -> object:
    """Compute the form in place of a rule: `mul_`, `__imul__`."""
    base = name[3:-2] if name.startswith("__i") else name.rstrip("_")
    base = _OPERATORS.get(base) or _other_names().get(base, base)
    found = rule_of(base)
    if found is None:
        raise no_kernel(name, first)
    x = args[0]
    if base not in RULES and isinstance(x, SparseTensor) and not x.coalesced:
        raise RuntimeError(f"{base}_ requires coalesced input")
    made = found(*args, **kwargs)
    if not isinstance(x, SparseTensor):
        if not can_cast(made.dtype, x.dtype):
            raise RuntimeError(
                f"Can't convert result type {made.dtype.legacy} to output {x.dtype.legacy} in {base} operation"
            )
        made = made.to_dense()
    return _written(name, x, made)


@functools.cache
def _other_names() -> dict[str, str]:
    """Other names of entries -> theirs."""
    return {other: op.name for op in TABLE.values() for other in op.aliases}


# Names of operators that entries have by others.
_OPERATORS = {
    "truediv": "div",
    "floordiv": "floor_divide",
    "multiply": "mul",
    "divide": "div",
    "negative": "neg",
}

install("sparse", Sparse())
