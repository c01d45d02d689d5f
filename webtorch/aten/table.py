"""What each aten operator means: the table, and how its entries are declared. Floor 6; imports the engine, not PyTorch.

An entry takes webtorch tensors and numbers in the order of the operator's schema and returns new tensors; it is named
after the operator ("relu" stands for relu, relu_ and relu.out) or one overload of it ("max.dim_max"). Eager kernels and
compiled graphs both run through these. Operators whose name and arguments are the op table's own need no line here:
`load` takes them from the op table.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, TypedDict, Unpack

from webtorch.ops.layout import Layout
from webtorch.ops.record import TABLE, AutocastRule, Elementwise, Op, OutRule, Overlap
from webtorch.tensors.autocast import rules_of

Function = Callable[..., Any]
# As PyTorch's schemas have them: one for all dims, or one for each; and dims, where none are all of them.
Sizes: TypeAlias = int | Sequence[int]
Dims: TypeAlias = int | Sequence[int] | None
FUNCTIONS: dict[str, Function] = {}
# Those of them that are the op table's as they are: a family that is loaded later may declare them.
_PLAIN: set[str] = set()
REDUCTIONS = ("none", "mean", "sum")


@dataclass(slots=True)
class Operator:
    """What a kernel must know of a PyTorch operator beside its meaning: the fields of an entry of the same names."""

    out: OutRule | Callable[..., OutRule] = "cast"
    overlap: Overlap = "any"
    layout: Layout | None = None


class Facts(TypedDict, total=False):
    """What may be stated of an operator: see `Operator`."""

    out: OutRule | Callable[..., OutRule]
    overlap: Overlap
    layout: Layout | None


# Operator, without its overload -> what is known of it: the fields of its entry, and what is stated here.
OPERATORS: dict[str, Operator] = {}
_STATED: dict[str, Facts] = {}
# Overloads that have a kernel though PyTorch could make them of others; what autocast does with
# operators. See the fields of an entry.
DIRECT: set[str] = set()
AUTOCAST: dict[str, AutocastRule] = {}


def aten(
    *names: str,
    direct: tuple[str, ...] = (),
    **facts: Unpack[Facts],
) -> Callable[[Function], Function]:
    """Declare the meaning of the operators `names`, and what else is to be known of them: see `Operator`."""
    DIRECT.update(direct)

    def declare(function: Function) -> Function:
        """Put the function into FUNCTIONS under each name."""
        for name in names:
            assert is_open(name), f"{name} is declared twice"
            _PLAIN.discard(name)
            FUNCTIONS[name] = function
            base = name.partition(".")[0]
            _STATED.setdefault(base, {}).update(facts)
        return function

    return declare


def is_open(name: str) -> bool:
    """Whether no family has declared an operator."""
    return name not in FUNCTIONS or name in _PLAIN


def _give(name: str, function: Function) -> None:
    """Let an operator that nobody has declared mean what an entry of the op table does."""
    if name not in FUNCTIONS:
        FUNCTIONS[name] = function
        _PLAIN.add(name)


def ruled_as(function: Function, *names: str) -> None:
    """Have autocast do with operators what it does with a function of ours that is no entry of the table."""
    rule = rules_of(function).gpu
    assert rule is not None, f"{names}: the function has no rule"
    AUTOCAST.update(dict.fromkeys(names, rule))


class _Table:
    """The op table's functions as attributes: `op.softmax(x, 1)`."""

    def __getattr__(self, name: str) -> Function:
        found = TABLE.get(name)
        if found is None:
            raise NotImplementedError(
                f"webgpu: webtorch has no operation '{name}' yet; run this part on the CPU with .cpu()"
            )
        setattr(self, name, found.function)
        return found.function


op = _Table()


def operators_of(entry: Op) -> tuple[str, ...]:
    """Return the names of the operators that an entry stands for, its own first."""
    own = entry.torch.removeprefix("nn.functional.").removeprefix("Tensor.").replace(".", "_")
    return tuple(filter(None, (own, *entry.aten, *entry.operators)))


def load() -> dict[str, Function]:
    """Return the meaning of every operator that has one: declared by a family, or the op table's as it is."""
    for entry in TABLE.values():
        name = entry.torch.rpartition(".")[2]
        if isinstance(entry, Elementwise) and name and not entry.name.startswith("_"):
            _give(name, entry.function)
            if entry.torch.startswith("special."):
                _give(f"special_{name}", entry.function)
        for name in entry.aten:
            _give(name, entry.function)
        DIRECT.update(entry.direct)
    seen: set[str] = set()
    for name, facts in _STATED.items():
        OPERATORS[name] = Operator(**facts)
    # What an entry that users find says counts for more than what one says that it is made of.
    for entry in sorted(TABLE.values(), key=lambda e: not e.function_in):
        fields: Facts = {"out": entry.out, "overlap": entry.overlap, "layout": entry.layout}
        for name in operators_of(entry):
            if name in seen:
                continue
            seen.add(name)
            OPERATORS[name] = Operator(**(fields | _STATED.get(name, Facts())))
            if entry.function_in and entry.autocast is not None and entry.autocast.gpu is not None:
                AUTOCAST.setdefault(name, entry.autocast.gpu)
    return FUNCTIONS


def dims_of(dim: Dims) -> Dims:
    """Return reduction dims; an empty list means all, as in PyTorch's older operators."""
    return None if dim is None or (not isinstance(dim, int) and len(dim) == 0) else dim


def meaning(packet: str, overload: str) -> Function | None:
    """Return the declared meaning of an overload."""
    full = f"{packet}.{overload}"
    for key in (
        full,
        full.removesuffix("_out"),
        packet,
        packet.removesuffix("_") if not packet.startswith("__") else packet,
    ):
        found = FUNCTIONS.get(key)
        if found is not None:
            return found
    return None
