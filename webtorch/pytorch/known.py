"""Calls of known kinds: what an operator records is looked up, and nothing of it is worked out. Floor 6.

What a kernel records follows from its tensors' types, sizes, strides and places, and from its numbers. The second call
with the same ones is watched (`tensors/remember.py`); from the third on the nodes that it recorded are made over the
new tensors' nodes, and PyTorch tensors of them: no operand is wrapped. Calls that look at data or draw random numbers,
and those of tensors that lie otherwise than their type says, take the usual way.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal

import torch

from webtorch.dispatch.call import active, inside
from webtorch.dispatch.call import watched as looked_at
from webtorch.ir.dtype import Scalar
from webtorch.ir.graph import IN_MEMORY, Form, Node
from webtorch.ir.view import numel
from webtorch.ops.purity import look as looking
from webtorch.pytorch.device import (
    TO_TORCH,
    TO_WEBTORCH,
    Blank,
    Lain,
    offset_of,
    opened,
    runtime,
)
from webtorch.pytorch.looking import LISTS, OTHERS, Looks
from webtorch.pytorch.native import recorder
from webtorch.pytorch.nativewrite import writer
from webtorch.pytorch.near import Near
from webtorch.runtime.realize import Runtime
from webtorch.tensors.modes import transforms
from webtorch.tensors.promotion import depending
from webtorch.tensors.remember import Place, Result, watched
from webtorch.tensors.storage import Storage
from webtorch.tensors.values import check_again

# Kinds of calls that an operator knows; a program that makes kinds without end starts anew.
_MOST_KINDS = 1024
# Operators of which so many kinds could not be known, and none could, are not asked any more.
_MOST_FAILURES = 8
_LONGEST = 128
# As many kinds of calls that go through lists are found by looks.
_MOST_BEGUN = 64
_Tensor, _Parameter = torch.Tensor, torch.nn.Parameter
_NUMBERS = frozenset((bool, int))
# The types in a list of sizes or the like.
_WHOLE = {int}
_PLAIN = {k: d for k, d in TO_WEBTORCH.items() if not d.is_complex}
_find: Callable[[torch.Tensor], Any] = torch._C.TensorBase.untyped_storage
# Kinds of nodes whose values a kernel finds in memory.
_IN_MEMORY = frozenset(IN_MEMORY)
_NEW: Any = object()

_FLOATS = frozenset(d for k, d in _PLAIN.items() if k.is_floating_point)
# Kinds of calls of which all is alike but how their tensors lie, that are found by looking at these.
_MOST_NEAR = 8

Key = tuple[object, ...]
# The strides of a tensor, and whether its memory holds the values row-major all the same.
Lying = tuple[tuple[int, ...], bool]
# An operand by its number, and what is asked of its values.
Ask = tuple[int, tuple[Any, ...]]
# What a kernel calls with the engine's values: its results as they are to lie.
Call = Callable[[Sequence[Any], dict[str, Any]], Any]


class Made(Blank):
    """One result of a call: what its node, its storage and its tensor are made of."""

    __slots__ = ("attrs", "elements", "kind", "shape")

    def __init__(self, result: Result, number: int, strides: tuple[int, ...], laid: bool) -> None:
        attrs, (shape, kind, elements), _, (size, _, _, _, dtype), _ = result.places[number]
        self.attrs, self.shape, self.kind, self.elements = attrs, shape, kind, elements
        nbytes = elements * kind.itemsize
        super().__init__(nbytes, kind, TO_TORCH[dtype], size, strides, laid=laid)


class _Free(float):
    """A number of a call that is watched: where it comes up again, later calls have theirs."""

    __slots__ = ("place",)

    place: int

    @classmethod
    def of(cls, value: float, place: int) -> _Free:
        """Return the number that stands in this place."""
        number = cls(value)
        number.place = place
        return number


def _ask(asks: Sequence[Ask], nodes: Sequence[Node]) -> None:
    """Raise PyTorch's error where the values of operands say so, and are in this process's memory."""
    for operand, ask in asks:
        check_again(nodes[operand], *ask)


class Plan:
    """What calls of one kind record."""

    __slots__ = (
        "ask", "attrs", "dtype", "form", "forms", "is_numbered", "is_straight", "kind", "leaves", "lined", "make",
        "marks", "numbers", "place", "places", "record", "results", "scalars", "shape", "single", "steps", "tensor",
        "written",
    )  # fmt: skip

    def __init__(
        self,
        result: Result,
        laid: Sequence[Lying],
        marks: Sequence[int],
        operands: int,
        asks: Sequence[Ask] = (),
    ) -> None:
        # What the caller wants to know of each result.
        self.marks = tuple(marks)
        self.leaves, self.make = result.leaves, result.kind
        self.places = [Made(result, i, *how) for i, how in enumerate(laid)]
        self.place = place = self.places[0]
        graph = place.attrs[0]
        self.steps, self.results = graph.steps, graph.results
        # For each number of the nodes, in their order, its place among those of the call, or itself.
        self.numbers: list[int | None] = []
        for step in self.steps:
            self.numbers += [x.place if type(x) is _Free else None for x in step[3]]
        self.is_numbered = any(n is not None for n in self.numbers)
        # What the nodes of such calls have in common, one after the other.
        self.forms = [Form() if step[0] == "map" else None for step in self.steps]
        # Records all of the nodes: made for the first call that asks for it.
        self.record: Callable[..., list[Node]] | None = None
        # The one node of a call with one result: what it records if that is one operation, or what stands for all.
        self.kind, self.attrs, self.scalars = "call", place.attrs, tuple[Scalar, ...]()
        self.shape, self.dtype = place.shape, place.kind
        self.form: Form | None = graph
        self.lined = True
        # Whether the call is one operation; the numbers of elementwise ones may be any.
        self.single = len(self.steps) == 1 and self.make is None
        if self.single:
            kind, srcs, self.attrs, self.scalars, self.shape, self.dtype, self.lined = self.steps[0]
            self.kind, self.leaves = kind, [self.leaves[s] for s in srcs]
            self.form = Form() if kind == "map" else None
        # Whether its sources are the operands as they come.
        self.is_straight = self.leaves == list(range(operands))
        # What records a call, and returns its results as new tensors, or overwrites tensors with them: the latter is
        # made for the first call that does.
        self.tensor = recorder(self)
        self.written: Any = _NEW
        # Asks what is to be asked of the operands' values before; None where that is nothing.
        self.ask = functools.partial(_ask, asks) if asks else None

    def takes(self, numbers: Sequence[float]) -> bool:
        """Whether numbers in the place of these give the same nodes with those numbers."""
        found = [n for n in self.numbers if n is not None]
        if self.single:
            return self.kind == "map" and self.numbers == list(range(len(numbers)))
        return sorted(set(found)) == list(range(len(numbers)))

    def write(
        self,
        outs: tuple[torch.Tensor, ...],
        nodes: list[Node],
        numbers: Sequence[float],
        line: object,
    ) -> None:
        """Record a call, and overwrite a tensor with each of its results."""
        if self.ask is not None:
            self.ask(nodes)
        if self.written is _NEW:
            self.written = writer(self, self._put)
        if self.written is not None:
            self.written(outs, nodes, numbers, line)
        elif self.make is None:
            self._put(outs, (self.node(nodes, numbers, line),), self.places)
        else:
            made = self._all(nodes, numbers, line) if numbers else self.results_of(nodes, line)
            self._put(outs, made, self.places)

    def results_of(self, nodes: list[Node], line: object) -> list[Node]:
        """Record a call with its own numbers, and return the nodes that stand for its results."""
        leaves = tuple(nodes) if self.is_straight else self._sources(nodes)
        results: list[weakref.ref[Node]] = []
        made = []
        for place in self.places:
            attrs = (*place.attrs[:2], results)
            node = Node("call", leaves, attrs, (), place.shape, place.kind, line, attrs[0])
            results.append(weakref.ref(node))
            made.append(node)
        return made

    def _all(self, nodes: list[Node], numbers: Sequence[float], line: object) -> list[Node]:
        """Record each operation of a call, with its numbers, and return the nodes of the results."""
        if self.record is None:
            self.record = self._printed()
        return self.record(nodes, numbers, line)

    def _printed(self) -> Callable[..., list[Node]]:
        """Return the function that a person would write to record this one kind of call: a line an operation."""
        scope: dict[str, Any] = {"Node": Node}

        def named(value: object) -> str:
            """Return the name of a value in the text."""
            name = f"v{len(scope)}"
            scope[name] = value
            return name

        given = [f"nodes[{x}]" if type(x) is int else named(x) for x in self.leaves]
        places = iter(self.numbers)
        lines = ["def record(nodes, numbers, line):"]
        for i, (kind, srcs, attrs, scalars, shape, dtype, lined) in enumerate(self.steps):
            sources = "".join([f"{given[s] if s >= 0 else f'm{-1 - s}'}, " for s in srcs])
            free = "".join([
                f"{named(x) if (n := next(places)) is None else f'numbers[{n}]'}, " for x in scalars
            ])  # fmt: skip
            rest = f"{named(shape)}, {named(dtype)}, {'line' if lined else 'None'}"
            made = f"Node({kind!r}, ({sources}), {named(attrs)}, ({free}), {rest}, {named(self.forms[i])})"
            lines.append(f"    m{i} = {made}")
        lines.append(f"    return [{', '.join([f'm{n}' for n in self.results])}]")
        exec("\n".join(lines), scope)
        record: Callable[..., list[Node]] = scope["record"]
        return record

    @staticmethod
    def _put(outs: Sequence[torch.Tensor], nodes: Sequence[Node], places: Sequence[Made]) -> None:
        for out, node, place in zip(outs, nodes, places, strict=True):
            memory = _find(out)._webgpu
            if type(memory) is Storage:
                memory.replace(node)
            elif memory.storage is not None:
                memory.storage.replace(node)
            else:
                memory.adopt(Storage(node, runtime(), place.elements))

    def node(self, nodes: list[Node], numbers: Sequence[float], line: object) -> Node:
        """Record a call with one result over the operands' nodes, and return its node."""
        if numbers and not self.single:
            return self._all(nodes, numbers, line)[0]
        return Node(
            self.kind,
            tuple(nodes) if self.is_straight else self._sources(nodes),
            self.attrs,
            tuple(numbers) if numbers else self.scalars,
            self.shape,
            self.dtype,
            line if self.lined else None,
            self.form,
        )

    def _sources(self, nodes: list[Node]) -> tuple[Node, ...]:
        return tuple([nodes[s] if type(s) is int else s for s in self.leaves])  # type: ignore[misc]

    def tensors(
        self,
        nodes: list[Node],
        numbers: Sequence[float],
        line: object,
        outs: Sequence[torch.Tensor] = (),
    ) -> Any:
        """Record a call over the operands' nodes, and return its results as new tensors; the last ones overwrite
        `outs`.
        """
        if self.ask is not None:
            self.ask(nodes)
        if self.tensor is not None and not outs:
            return self.tensor(nodes, numbers, line)
        home = opened.runtime
        assert home is not None
        if self.make is None:
            place = self.place
            if numbers and not self.single:
                (node,) = self._all(nodes, numbers, line)
            else:
                # As `node` does, without a frame.
                node = Node(
                    self.kind,
                    tuple(nodes) if self.is_straight else self._sources(nodes),
                    self.attrs,
                    tuple(numbers) if numbers else self.scalars,
                    self.shape,
                    self.dtype,
                    line if self.lined else None,
                    self.form,
                )
            return place.tensor(Storage.waiting(node, home, place.elements))
        places = self.places
        made = self._all(nodes, numbers, line) if numbers else self.results_of(nodes, line)
        if outs:
            new = len(made) - len(outs)
            self._put(outs, made[new:], places[new:])
            places = places[:new]
        return self.make(
            [
                place.tensor(Storage.waiting(node, home, place.elements))
                for place, node in zip(places, made, strict=False)
            ]
        )


class Begun:
    """What calls that go through lists have in common, and the looks that find them."""

    __slots__ = ("looks", "parts")

    def __init__(self, parts: Key) -> None:
        self.parts, self.looks = parts, Looks()


class Kinds:
    """The kinds of calls that an operator knows. `free`: it records one elementwise operation, whatever its numbers."""

    __slots__ = ("__weakref__", "begun", "failures", "found", "free", "heavy", "looks", "near")

    def __init__(self, free: bool = False) -> None:
        # By kind of call: False where it was seen once, None where it cannot be known.
        self.found: dict[Key, Plan | Literal[False] | None] = {}
        # By what is known of a call without its tensors' geometry: see `Near`.
        self.near: dict[Key, list[Near]] = {}
        # The same by the forms of calls, most of which are found so.
        self.looks = Looks()
        # Of calls that go through lists, by what all of them have in common.
        self.begun: dict[Key, Begun] = {}
        self.failures = 0
        self.free = free
        # Whether programs begin with it rather than with another: what comes before it is seldom fused with it.
        self.heavy = False
        depending.append(self.forget)

    def forget(self) -> None:
        """Drop what is known."""
        self.found.clear()
        self.near.clear()
        self.begun.clear()
        self.looks = Looks()

    def find(
        self,
        args: Sequence[object],
        kwargs: dict[str, object],
        nodes: list[Node],
        numbers: list[float],
        out: torch.Tensor | None = None,
        inplace: bool = False,
        begun: Begun | None = None,
    ) -> Plan | Key | None:
        """Return the plan of a call, or its kind if it is to be watched; None where it takes the usual way.

        The nodes of its tensors and its free numbers are added to the lists. `out` is written; `inplace`: it may be
        the first argument as well. `begun`: what `begin` gave for other arguments, whose free numbers are there.
        """
        home = opened.runtime
        if home is None or self.failures >= _MOST_FAILURES or not is_calm(home):
            return None
        ahead = home.ahead
        if ahead.calls >= ahead.most << (not self.heavy):
            ahead.calls = 0
            home.flush()
        ahead.calls += 1
        home.apart = True
        is_first = out is not None and inplace and args[0] is out
        has_form = is_first or out is None
        looks = self.looks if begun is None else begun.looks
        if has_form:
            for look in looks.all:
                known = look(args, kwargs, nodes, numbers)
                if known is not None:
                    return known
        parts: list[object] = [] if begun is None else [*begun.parts]
        tensors: list[torch.Tensor] = []
        try:
            values = args
            if kwargs:
                # Names of options are looked at as their values are.
                values = [*args]
                for option in kwargs.items():
                    values += option
            if not _kinds(values, parts, nodes, tensors, numbers if self.free else None):
                return None
            if out is not None and not _target(out, parts, nodes, tensors, is_first):
                return None
        except AttributeError:
            # The storage of another device, or one that does not carry its memory yet.
            return None
        count = len(nodes)
        seen = tensors
        if count > 1 and (nodes[0] is nodes[1] if count == 2 else len(set(nodes)) < count):
            parts += _repeats(nodes), _repeats(tensors)
            # PyTorch compares different tensors only.
            seen = list({id(x): x for x in tensors}.values())
        brief = tuple(parts)
        near = self.near.get(brief)
        if near is not None:
            for each in near:
                if each.check(*seen):
                    offsets = each.offsets
                    if offsets is None or offsets == [offset_of(x) for x in seen]:
                        if has_form and seen is tensors and looks.patience:
                            looks.keep(args, kwargs, near, bool(numbers), is_first)
                        return each.plan
        return self._found_by_geometry(brief, tensors, seen, nodes)

    def _found_by_geometry(
        self,
        brief: Key,
        tensors: Sequence[torch.Tensor],
        seen: Sequence[torch.Tensor],
        nodes: Sequence[Node],
    ) -> Plan | Key | None:
        """Look a call up whose tensors lie as those of none that is near. `seen` are its different tensors."""
        key = brief, tuple([_lies(x) for x in tensors])
        found = self.look_up(key)
        if type(found) is Plan and seen:
            self._keep_near(brief, seen, found)
        elif found is None and not _are_typed(tensors, nodes):
            self.found[key] = None
        return found

    def look_up(self, key: Key) -> Plan | Key | None:
        """Return the plan of a kind, or the kind if it has come once; None where it is new, or cannot be known."""
        found = self.found.get(key, _NEW)
        if found is False:
            return key
        if found is not _NEW:
            return found
        if len(self.found) >= _MOST_KINDS:
            self.forget()
        self.found[key] = False
        return None

    def _keep_near(self, brief: Key, tensors: Sequence[torch.Tensor], plan: Plan) -> None:
        """Let a plan be found by a look at the tensors. The last ones are kept."""
        near = self.near.setdefault(brief, [])
        if len(near) >= _MOST_NEAR:
            near.pop(0)
        near.append(Near(tensors, plan))

    def begin(self, values: Sequence[object]) -> tuple[Begun, list[float]]:
        """Return what the kinds of several calls have in common, of numbers and the like, and their free numbers."""
        parts: list[object] = []
        numbers: list[float] = []
        _kinds(values, parts, [], [], numbers if self.free else None)
        key = tuple(parts)
        if (begun := self.begun.get(key)) is None:
            if len(self.begun) >= _MOST_BEGUN:
                self.begun.clear()
            begun = self.begun[key] = Begun(key)
        return begun, numbers

    def watch(
        self,
        key: Key,
        call: Call,
        values: Sequence[object],
        options: dict[str, object],
        nodes: list[Node],
        numbers: Sequence[float],
        marks: Sequence[int] = (),
    ) -> Any:
        """Call, and keep what there is to know of it; return what `call` gives, results as they lie.

        `marks` is kept with it, as the call leaves it.
        """
        plan, lying = None, list[Lying]()
        if numbers:
            # The numbers that the key leaves out, in their order.
            places = iter(range(len(numbers)))
            values = [_freed(x, places) for x in values]
            options = {k: _freed(x, places) for k, x in options.items()}

        def run(*values: object, **options: object) -> Any:
            """Call, and return the tensors by themselves."""
            found = call(values, options)
            several = type(found) is tuple
            for each in found if several else (found,):
                if type(each) is Lain:
                    lying.append((each.strides, each.laid))
            out.append(found)
            return tuple([tensor_of(x) for x in found]) if several else tensor_of(found)

        out: list[object] = []
        home = opened.runtime
        assert home is not None
        looking.asked = []
        try:
            _, result = watched(run, values, options, nodes, home)
            if result is not None and all(map(_is_all, result.places, lying)):
                asks = [(nodes.index(n), ask) for n, ask in looking.asked if n in nodes]
                plan = Plan(result, lying, marks, len(nodes), asks)
                self.heavy = any(step[0] in ("matmul", "conv", "attention") for step in plan.steps)
        finally:
            looking.asked = None
            self.found[key] = plan
            self.failures += 1 if plan is None else -(1 << 30)
        if plan is not None and numbers and not plan.takes(numbers):
            # The numbers are worked with: from now on they are part of the kind.
            self.free = False
            self.forget()
        return out[0]


def _is_all(place: Place, lying: Lying) -> bool:
    """Whether a result is all of its memory, row-major or in the order of its strides."""
    _, (_, _, elements), _, (shape, strides, offset, whole, dtype), _ = place
    if dtype.is_complex:
        return False
    in_order = strides == lying[0] and not offset and elements == numel(shape)
    return whole or in_order


def _freed(x: object, places: Iterator[int]) -> object:
    """Return a number as one that is free, with the next place."""
    return _Free.of(x, next(places)) if type(x) is float and x != 1.0 else x


def _repeats(values: Sequence[object]) -> tuple[int, ...]:
    """Return which values are the same ones."""
    numbers = [id(x) for x in values]
    return tuple([numbers.index(n) for n in numbers])


def is_calm(home: Runtime) -> bool:
    """Whether nobody looks at calls, and what is recorded may be known."""
    return not (
        (active.count and not alone())
        or transforms.count
        or home.recording is not None
        or home.lent
    )


def alone() -> bool:
    """Whether nobody looks at calls but a script, which then leaves alone what follows: PyTorch calls each operator
    with tensors that are wrapped anew. Who is asked about the classes of arguments has none here to see.
    """
    follower = active.follower
    if active.others and (inside() or looked_at()):
        return False
    if follower is not None:
        follower.refuse("PyTorch's operators are called")
    return True


def _lies(x: torch.Tensor) -> tuple[object, ...]:
    return x.dtype, x.shape, x.stride(), offset_of(x)


def _are_typed(tensors: Sequence[torch.Tensor], nodes: Sequence[Node]) -> bool:
    """Whether the memory of all operands holds their types."""
    on_host = opened.host is not None and opened.host is not opened.runtime
    return all(
        _PLAIN.get(x.dtype) is n.dtype and (n.dtype.webgpu or not on_host)
        for x, n in zip(tensors, nodes, strict=False)
    )


def _target(
    out: torch.Tensor,
    parts: list[object],
    nodes: list[Node],
    tensors: list[torch.Tensor],
    is_first: bool,
) -> bool:
    """Add to `parts` what writing a result depends on; False if one of the operands lies there, too."""
    memory = _find(out)._webgpu
    if not is_first:
        tensors.append(out)
    parts += (is_first, memory.nbytes)
    if type(memory) is Storage:
        storage = memory
    else:
        storage = memory.storage
        if storage is None:
            return bool(memory.is_new and not memory.is_cut)
        if memory.is_cut:
            return False
    node = storage.node
    if _PLAIN.get(out.dtype) is not node.dtype:
        return False
    return all(n is not node for n in nodes[int(is_first) :])


def tensor_of(x: object) -> Any:
    """Return the tensor of a result, without how it lies."""
    return x.tensor if type(x) is Lain else x


def _kinds(
    values: Sequence[Any],
    parts: list[object],
    nodes: list[Node],
    tensors: list[torch.Tensor],
    free: list[float] | None,
) -> bool:
    """Add to `parts` what a call records depends on, but how its tensors lie; False where that is not all."""
    for x in values:
        kind = type(x)
        if kind is _Tensor or kind is _Parameter:
            storage = _find(x)._webgpu
            if type(storage) is not Storage:
                memory = storage
                if memory.is_cut:
                    return False
                storage = memory.storage
                if storage is None:
                    if memory.laid is None:
                        return False
                    # How the values lie there.
                    parts.append(memory.laid.groups)
                    storage = memory.laid.storage
            node = storage.node
            dtype, place = node.dtype, node.kind
            if free is not None and dtype not in _FLOATS:
                free = None
            parts += dtype, node.shape, place in _IN_MEMORY and place
            nodes.append(node)
            tensors.append(x)
        elif kind is float:
            # Where a formula asks for a number, it is this one.
            if free is not None and x != 1.0:
                parts.append(float)
                free.append(x)
            else:
                # Zeros are told apart by their signs.
                parts.append(x or str(x))
        elif kind in _NUMBERS:
            parts += (kind, x)
        elif kind in OTHERS:
            parts.append(x)
        elif kind in LISTS:
            # Long lists are data.
            if len(x) > _LONGEST:
                return False
            if {*map(type, x)} == _WHOLE:
                parts.append(tuple(x))
                continue
            parts += (kind, len(x))
            if not _kinds(x, parts, nodes, tensors, free):
                return False
        else:
            return False
    return True
