"""How a call that fails is made once more: by the class of an argument that is no tensor, or with its arguments as they
are meant. PyTorch takes them in other orders, by other names, and tensors without dims for numbers. Calls that do not
fail pay nothing for it. Floor 4.
"""

from __future__ import annotations

import functools
import inspect
import numbers
import operator
import re
from collections.abc import Callable
from functools import partial
from typing import Any, TypeGuard

from webtorch.dispatch.call import Args, Callee, Kwargs, Run
from webtorch.ir.dtype import of_python
from webtorch.ops.purity import warn
from webtorch.ops.record import Elementwise, Op
from webtorch.tensors import override
from webtorch.tensors.tensor import Tensor

# The types of parameters that take whole numbers alone; the first group: several.
_INTEGERS = re.compile(
    r"int(?: \| None)?|((?:int \| )?(?:Sequence\[int\]|Sizes|Dims|Shape)(?: \| int)?(?: \| None)?)"
)
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
    """Return the arguments of a call in the order and by the names that its parameters have here, with Python's numbers
    in place of NumPy's and of tensors without dims that stand for these, and types of elements in place of Python's;
    None where nothing of this is needed.
    """
    op = callee.op if callee.op is not None else callee.like
    if isinstance(op, Op):
        if not op.other_names.keys().isdisjoint(kwargs):
            return args, {op.other_names.get(name, name): value for name, value in kwargs.items()}
        for overload in op.overloads:
            if (found := reordered(op, overload, args, kwargs, op.name)) is not None:
                return found
    given = override.flat((*args, *kwargs.values()))
    if not any(map(_stands_for_one, given)):
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


def is_foreign(value: object) -> TypeGuard[numbers.Real]:
    """Whether a value is a number that is none of Python's: one of NumPy's."""
    return isinstance(value, numbers.Real) and not isinstance(value, (int, float))


def with_python_numbers(args: Args, kwargs: Kwargs) -> tuple[Args, Kwargs]:
    """Return arguments with Python's numbers in place of others."""
    return (
        tuple([_of_python(x) for x in args]),
        {name: _of_python(x) for name, x in kwargs.items()},
    )


def with_python_sizes(
    function: Callable[..., object], args: Args, kwargs: Kwargs
) -> tuple[Args, Kwargs]:
    """Return arguments with Python's numbers in place of others where parameters take whole ones alone."""
    names = _whole_numbers(function)
    places = {number - 1 for number, _ in names.values()}
    return (
        tuple([_of_python(x) if i in places else x for i, x in enumerate(args)]),
        {name: _of_python(x) if name in names else x for name, x in kwargs.items()},
    )


def _of_python(value: object) -> object:
    if isinstance(value, (list, tuple)) and any(map(is_foreign, value)):
        return tuple([_of_python(x) for x in value])
    if not is_foreign(value):
        return value
    return operator.index(value) if isinstance(value, numbers.Integral) else float(value)


@functools.cache
def _whole_numbers(function: Callable[..., object]) -> dict[str, tuple[int, str]]:
    """Return the parameters of a function that take whole numbers and nothing else but None: the position of each,
    from 1 on (0: it is given by name), and what it takes in PyTorch's words.
    """
    parameters = inspect.signature(function).parameters
    found = {}
    for number, p in enumerate(parameters.values(), 1):
        match = _INTEGERS.fullmatch(str(p.annotation))
        if match and p.kind is not p.VAR_POSITIONAL:
            place = 0 if p.kind is p.KEYWORD_ONLY else number
            found[p.name] = place, "tuple of ints" if match[1] else "int"
    return found


def refuse_bools(function: Callable[..., object], args: Args, kwargs: Kwargs) -> None:
    """Raise TypeError where a bool is given for a whole number."""
    if not any(type(x) is bool for x in (*args, *kwargs.values())):
        return
    for name, (number, kind) in _whole_numbers(function).items():
        value = (
            kwargs[name]
            if name in kwargs
            else args[number - 1]
            if 0 < number <= len(args)
            else None
        )
        if type(value) is bool:
            place = "" if name in kwargs else f" (position {number - 1})"
            title = function.__name__.strip("_")
            raise TypeError(f"{title}(): argument '{name}'{place} must be {kind}, not bool")


def _stands_for_one(value: object) -> bool:
    """Whether a value may stand for one of Python's numbers: one of NumPy's, or a tensor without dims; or for a type
    of elements.
    """
    if isinstance(value, type):
        return of_python(value) is not value
    return not value._shape if isinstance(value, Tensor) else is_foreign(value)


def _number_for(kind: str, value: object) -> object:
    """Return the number or the type of elements that a value stands for where a parameter of this type wants one, alone
    or in a list.
    """
    if isinstance(value, (list, tuple)) and any(map(_stands_for_one, value)):
        found = [_number_for(kind, x) for x in value]
        return value if all(map(operator.is_, found, value)) else tuple(found)
    if not _stands_for_one(value) or _TENSORS.search(kind):
        return value
    if isinstance(value, type):
        return of_python(value) if "DType" in kind else value
    if not isinstance(value, Tensor):
        return _of_python(value)
    if value.requires_grad:
        return value
    whole = value.dtype.kind in ("int", "uint")
    return value.item() if (whole and _WHOLE.search(kind)) or _REAL.search(kind) else value
