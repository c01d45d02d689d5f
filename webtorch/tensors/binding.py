"""How a call that fails is made once more: by the class of an argument that is no tensor, or with its arguments as they
are meant. PyTorch takes them in other orders, by other names, and tensors without dims for numbers. Calls that do not
fail pay nothing for it. Floor 4.
"""

from __future__ import annotations

import inspect
import operator
import re
from collections.abc import Callable
from functools import partial
from typing import Any

from webtorch.dispatch.call import Args, Callee, Kwargs, Run
from webtorch.ops.purity import warn
from webtorch.ops.record import Elementwise, Op
from webtorch.tensors import override
from webtorch.tensors.tensor import Tensor

# What is taken for a number, by the type of its parameter: whole ones, alone or in a list, and others.
_WHOLE = re.compile(r"\b(int|object|Any|Sizes|Dims)\b")
_REAL = re.compile(r"\b(float|Number|Scalar)\b")
_TENSORS = re.compile(r"\b(Tensor|Operand|Callable)\b")


def once_more(callee: Callee, run: Run, args: Args, kwargs: Kwargs) -> Callable[[], Any] | None:
    """Return how a call that has failed is made once more, by `run`; None where it would fail again."""
    if override.meets(callee, args, kwargs):
        return partial(override.override.call, callee, run, args, kwargs)
    meant = as_meant(callee, args, kwargs)
    return None if meant is None else partial(run, *meant)


def as_meant(callee: Callee, args: Args, kwargs: Kwargs) -> tuple[Args, Kwargs] | None:
    """Return the arguments of a call in the order and by the names that its parameters have here, with numbers in place
    of tensors without dims that stand for these; None where nothing of this is needed.
    """
    op = callee.op if callee.op is not None else callee.like
    if isinstance(op, Op):
        if not op.other_names.keys().isdisjoint(kwargs):
            return args, {op.other_names.get(name, name): value for name, value in kwargs.items()}
        for overload in op.overloads:
            if (found := reordered(op, overload, args, kwargs, op.name)) is not None:
                return found
    given = override.flat((*args, *kwargs.values()))
    if not any(isinstance(x, Tensor) and not x._shape for x in given):
        return None
    types, rest = _types_of(callee)
    named = {**dict(zip(types, args, strict=False)), **kwargs}
    numbers = {name: _number_for(types.get(name, ""), value) for name, value in named.items()}
    more = [_number_for(rest, value) for value in args[len(types) :]]
    if callee.writes and args:
        # What is written to is a tensor.
        if types:
            numbers[next(iter(types))] = args[0]
        else:
            more[0] = args[0]
    if all(numbers[n] is v for n, v in named.items()) and all(
        x is y for x, y in zip(more, args[len(types) :], strict=True)
    ):
        return None
    by_position = [numbers[name] for name, _ in zip(types, args, strict=False)]
    return (*by_position, *more), {name: numbers[name] for name in kwargs}


_NUMBERS = (bool, int, float, complex)
_KINDS = {"Tensor": (Tensor,), "Number": _NUMBERS, "Operand": (Tensor, *_NUMBERS)}


def reordered(
    op: Op, overload: str, args: Args, kwargs: Kwargs, called: str
) -> tuple[Args, Kwargs] | None:
    """Return the arguments of a call, which the user `called` so, that follows an overload, of whose order PyTorch
    warns unless it is that of the signature; None for other calls.
    """
    parameters = [p.split() for p in overload.split(", ")]
    if len(args) != len(parameters) or not all(
        isinstance(x, _KINDS[kind]) for x, (kind, _) in zip(args, parameters, strict=True)
    ):
        return None
    named = {name: x for (_, name), x in zip(parameters, args, strict=True)}
    operands = op.positional()
    factors = {name: x for name, x in named.items() if name not in operands}
    if not factors.keys().isdisjoint(kwargs):
        return None
    if (*operands, *factors) != tuple(named):
        shown = ", ".join([f"Tensor {name}" for name in operands])
        named_only = op.signature.partition("*, ")[2].rstrip(")").replace("=", " = ").split(", ")
        defaults = ", ".join([f"Number {text}" for text in named_only])
        warn(
            f"This overload of {called} is deprecated:\n"
            f"\t{called}({overload.replace('Operand', 'Tensor')})\n"
            "Consider using one of the following signatures instead:\n"
            f"\t{called}({shown}, *, {defaults})",
        )
    return tuple([named[name] for name in operands]), {**kwargs, **factors}


def _types_of(callee: Callee) -> tuple[dict[str, str], str]:
    """Return the types of a call's parameters by name, those that may be given by position first, and that of more
    arguments.
    """
    op = callee.op if callee.op is not None else callee.like
    if isinstance(op, Elementwise):
        return dict.fromkeys(op.tensors, "Tensor") | dict.fromkeys(op.numbers, "Scalar"), ""
    like = callee.parameters or inspect.signature(callee.like or callee.public or callee.run)
    rest = next((p for p in like.parameters.values() if p.kind is p.VAR_POSITIONAL), None)
    types = {
        p.name: str(p.annotation)
        for p in like.parameters.values()
        if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD) or rest is None
    }
    return types, "" if rest is None else str(rest.annotation)


def _number_for(kind: str, value: object) -> object:
    """Return the number that a tensor stands for where a parameter of this type wants one, alone or in a list."""
    if isinstance(value, (list, tuple)) and any(isinstance(x, Tensor) for x in value):
        found = [_number_for(kind, x) for x in value]
        return value if all(map(operator.is_, found, value)) else tuple(found)
    if (
        not isinstance(value, Tensor)
        or value._shape
        or value.requires_grad
        or _TENSORS.search(kind)
    ):
        return value
    whole = value.dtype.kind in ("int", "uint")
    return value.item() if (whole and _WHOLE.search(kind)) or _REAL.search(kind) else value
