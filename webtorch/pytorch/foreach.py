"""Operations on lists of tensors, which optimizers are made of: `torch._foreach_add_` and its like. Floor 6.

PyTorch makes them of the operation of one tensor, called through its dispatcher for each. Here one call records all:
what one tensor's operation records is known by its kind (`known`). Lists of which a part is not known, and tensors
that are no floats of one type, are PyTorch's to go through.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import repeat
from typing import Any

import torch
from torch._ops import OpOverload

from webtorch.aten.table import FUNCTIONS, Function
from webtorch.ir.graph import Node
from webtorch.ir.lines import user_line
from webtorch.pytorch.buckets import apart, put
from webtorch.pytorch.device import Lain, is_whole, lie, made_of, on_device, store, wrap
from webtorch.pytorch.interrupt import check, flag
from webtorch.pytorch.kernels import dispatched, is_free, overloads
from webtorch.pytorch.known import Key, Kinds, Plan
from webtorch_autoload.device import hide

_PREFIX = "_foreach_"
_OVERLOADS = ("default", "Scalar", "ScalarList", "List", "Tensor")
# Their factor is given by position, that of single tensors by its name only.
_FACTORED = ("addcdiv", "addcmul")
# Those that PyTorch makes of another operation, or whose meaning takes other arguments.
_OTHERS = ("clone", "copy", "max", "mm", "powsum", "zero")
_LISTS = (tuple, list)


def _function(base: str, overload: str) -> Function | None:
    """Return the operation of one tensor."""
    if base in _OTHERS or (base in ("maximum", "minimum") and overload != "List"):
        return None
    if base == "norm":
        return FUNCTIONS["linalg_vector_norm"]
    return FUNCTIONS.get(base)


def _are_plain(row: Sequence[Any], options: dict[str, object]) -> bool:
    """Whether all are floats of one type and size, numbers, or 0-d: where PyTorch has nothing to check or convert."""
    first = row[0]
    if not first.is_floating_point() or first.dtype is torch.float64:
        return False
    for x in (*row, *options.values()):
        if isinstance(x, torch.Tensor):
            if (
                not on_device(x)
                or x.dtype is torch.float64
                or x.dtype is not first.dtype
                or x.shape not in (first.shape, ())
            ):
                return False
        elif x is not None and type(x) not in (int, float):
            return False
    return True


def _kernel(
    operator: OpOverload, base: str, function: Function, inplace: bool
) -> Callable[..., object]:
    kinds = Kinds(is_free(function))
    overload = operator._overloadname
    factored = base in _FACTORED

    def usual(*args: object, **kwargs: object) -> Any:
        """Go through the lists as PyTorch does."""
        key = torch._C.DispatchKey.CompositeExplicitAutograd
        return operator._op_dk(key, *args, **kwargs)

    def learn(
        key: Key,
        row: Sequence[Any],
        options: dict[str, object],
        nodes: list[Node],
        numbers: list[float],
    ) -> torch.Tensor | None:
        """Record the operation of one tensor, and keep what there is to know of it."""
        out = row[0]

        def call(values: Sequence[object], given: dict[str, object]) -> Lain:
            """Return the result as it is to lie."""
            return lie(function(*values, **given), True)

        values = [wrap(x) if isinstance(x, torch.Tensor) else x for x in row]
        given = {k: wrap(v) if isinstance(v, torch.Tensor) else v for k, v in options.items()}
        found = kinds.watch(key, call, values, given, nodes, numbers)
        if not inplace:
            return made_of(found)
        store(out, found.tensor, True)
        return None

    def kernel(first: Sequence[torch.Tensor], *rest: Any, **kwargs: Any) -> object:
        """Record the operation for each tensor of the lists."""
        if flag.pressed:
            check()
        count = len(first)
        lists = [x for x in rest if isinstance(x, _LISTS)]
        if (
            any(len(x) != count for x in lists)
            or (base == "norm" and len(rest) > 1)
            or (overload == "Tensor" and rest[0].dim())
        ):
            return usual(first, *rest, **kwargs)
        columns = [apart(x) if isinstance(x, _LISTS) else repeat(x) for x in rest]
        factors: Any = columns.pop() if factored and len(columns) == 3 else None
        line = user_line()
        results = []
        heads = apart(first)
        for number, row in enumerate(zip(heads, *columns, strict=False)):
            options = kwargs
            if factors is not None:
                options = {
                    "value": factors[number] if isinstance(factors, _LISTS) else next(factors)
                }
            nodes: list[Node] = []
            numbers: list[float] = []
            plan = kinds.find(row, options, nodes, numbers)
            if type(plan) is Plan:
                if inplace:
                    plan.write(row[:1], nodes, numbers, line)
                else:
                    results.append(plan.tensors(nodes, numbers, line))
            elif (
                type(plan) is tuple
                and _are_plain(row, options)
                and all(is_whole(x) for x in row if isinstance(x, torch.Tensor))
            ):
                results.append(learn(plan, row, options, nodes, numbers))
            else:
                alone = [[x[number]] if isinstance(x, _LISTS) else x for x in (heads, *rest)]
                found = usual(*alone, **kwargs)
                results += found or ()
        if inplace:
            put(heads, first)
        return None if inplace else results

    return kernel


def _operators() -> dict[str, tuple[OpOverload, str, Function]]:
    """Return the operators whose operation of one tensor has a meaning here, by their names."""
    found: dict[str, tuple[OpOverload, str, Function]] = {}
    for full in sorted(n for n in dispatched() if n.startswith(f"aten::{_PREFIX}")):
        name = full.removeprefix("aten::")
        packet, _, overload = name.partition(".")
        overload = overload or "default"
        base = packet.removeprefix(_PREFIX).removesuffix("_")
        function = _function(base, overload)
        if overload == "Tensor" and base in _FACTORED:
            # Of a list of numbers in a tensor of the CPU.
            continue
        if overload in _OVERLOADS and function is not None:
            found[name] = dict(overloads(packet))[overload], base, function
    return found


def registered() -> list[str]:
    """Return the names of the operators that are registered here."""
    return list(_operators())


def register(library: torch.library.Library) -> None:
    """Register the operators whose operation of one tensor has a meaning here."""
    for name, (operator, base, function) in _operators().items():
        inplace = operator._schema.arguments[0].is_write
        library.impl(name, hide(_kernel(operator, base, function, inplace)), "PrivateUse1")
