"""One pass through a script: what it was given, and what it has promised."""

from __future__ import annotations

import contextlib
import functools
import math
import os
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from operator import attrgetter
from typing import Any, TypeVar

from webtorch.dispatch.call import Args
from webtorch.ir.dtype import DType
from webtorch.ir.graph import Node
from webtorch.runtime.realize import Runtime, is_seen
from webtorch.scripts.changes import changes, history_of, tensors_in
from webtorch.scripts.script import (
    Facts,
    Given,
    Offset,
    Pattern,
    Picker,
    Program,
    Step,
    Writes,
    decide_alike,
    nothing,
)
from webtorch.scripts.turning import BEGIN
from webtorch.tensors import autocast
from webtorch.tensors.autocast import Casts
from webtorch.tensors.base import reference_aside
from webtorch.tensors.host import Varying
from webtorch.tensors.modes import mode
from webtorch.tensors.storage import Counter, Storage
from webtorch.tensors.tape import GradFn, Part, mark, part_of
from webtorch.tensors.tensor import Tensor

# Whether what need not be compared again is, to be sure: for tests.
CHECKED = os.environ.get("WEBTORCH_SCRIPTS") == "always"
# What of an external tensor must be as it was, beside its offset.
_LIKE = attrgetter(
    "_shape", "_strides", "_whole", "dtype", "_requires_grad", "_inference", "_storage.elements", "_storage.dtype",
    "_storage.runtime", "_storage.node.shape",
)  # fmt: skip


def facts_of(t: Tensor) -> tuple[object, ...] | None:
    """Return what an external tensor is like; None if it cannot stand in a script."""
    base = t._base
    graph = history_of(t) is not None
    if (
        t._levels
        or (t._retains and not graph)
        or (base is not None and base._requires_grad and not graph)
        or t._storage.node.kind != "buffer"
        or (t._storage.node.host is not None and is_seen(t._storage.node))
    ):
        return None
    facts: tuple[object, ...] = _LIKE(t)
    return (type(t), graph, t._counter is t._storage, *facts)


# Those of a leaf.
_HOOKS = attrgetter("_hooks", "_post_accumulate")
# Whole numbers below are floating ones.
_EXACT = 2**53
# Of more tensors that do not come again each is compared with all.
_MANY = 16


# The storage of a tensor, and what counts its writes.
Memory = tuple[Storage, Storage | Counter]


class _Regular:
    """Storages of external tensors that come again and again, each of another one; by id, with the patterns that they
    are for. They hold while nothing changes tensors.
    """

    def __init__(self) -> None:
        self.stamp = -1
        self.homes: dict[int, tuple[weakref.ref[Storage], list[Pattern]]] = {}
        # How often one that had come again was found in another place.
        self.again_elsewhere = 0

    def patterns(self, storage: Storage) -> list[Pattern]:
        """Return the patterns that a storage is for."""
        if self.stamp != changes.count:
            self.stamp = changes.count
            self.homes.clear()
        found = self.homes.get(id(storage))
        if found is None or found[0]() is not storage:
            return []
        return [q for q in found[1] if q.regular == self.stamp and q.last() is not None]

    def add(self, p: Pattern, storage: Storage, known: list[Pattern]) -> None:
        """Note a tensor that comes again, which is known for other patterns."""
        self.homes[id(storage)] = weakref.ref(storage), [*known, p]
        p.regular, p.also = self.stamp, ()
        for q in known:
            # Of two places on one way, the later one must not be given what the earlier one was.
            first, second = (p, q) if p.number < q.number else (q, p)
            if first.number != second.number and first.number not in second.also:
                second.also = (*second.also, first.number)
                self.again_elsewhere += 1


regular = _Regular()


class Prior:
    """A slot among the external tensors of a run that stands aside: nobody holds it for the run's sake."""

    __slots__ = ("slot",)

    def __init__(self, slot: int) -> None:
        self.slot = slot


_Made = TypeVar("_Made")

# Of a run; it has the numbers of so many for its graph.
_MOST_FUNCTIONS = 1 << 20


class _Few:
    """An attribute that few runs need: it is made when it is asked for first. `cached_property` takes a lock."""

    def __init__(self, make: Callable[[], object]) -> None:
        self.make = make

    def __set_name__(self, owner: type[object], name: str) -> None:
        self.name = name

    def __get__(self, run: Run, owner: object) -> object:
        found = run.__dict__[self.name] = self.make()
        return found


def _few(make: Callable[[], _Made]) -> _Made:
    made: Any = _Few(make)
    return made


class Run:
    """What the calls since the last computation were given and gave, by number."""

    # One is made for each step, and dicts of so many attributes grow several times.
    __slots__ = (
        "__dict__", "__weakref__", "at", "careful", "differentiated", "ended", "externals", "first", "given", "hooked",
        "hooks", "ids", "is_kept", "known", "moves", "noted", "opaque", "others", "program", "promised", "refused",
        "resting", "runtime", "sets_gradients", "slots", "taken", "undo",
    )  # fmt: skip

    def __init__(self, root: Step) -> None:
        self.at = root
        # Slots: what calls gave, and the numbers by id of those that were made last in a place; of the first
        # `known` of them.
        self.slots: list[weakref.ref[Tensor]] = []
        self.ids: dict[int, int] = {}
        self.known = 0
        # The last call that was answered, once what was promised is computed or recorded.
        self.ended: Step | None = None
        # Whether contexts of the user's functions keep what it gave.
        self.is_kept = False
        # Tensors from outside.
        self.externals: list[Any] = []
        self.runtime: Runtime | None = None
        # Whether tensors are promised.
        self.promised = False
        # Whether a backward pass has given gradients.
        self.differentiated = False
        # Whether the backward pass that was compared last may call hooks.
        self.hooked = False
        # Whether gradients were set: those that are set from then on are steps, whatever they are.
        self.sets_gradients = False
        # What written storages held before.
        self.undo: dict[Storage, Node] = {}
        # The hooks of slots, and the objects that calls were given and that may be any, by number.
        self.hooks: dict[int, OrderedDict[int, Callable[..., Any]]] = {}
        self.opaque: list[Any] = []
        # The tensors from outside whose `data` was set since something was computed, in order, with their memory before
        # and after.
        self.moves: list[tuple[Tensor, Memory, Memory]] = []
        # Once something was computed: the program that ran, and the first slot since.
        self.program: Program | None = None
        self.first = 0
        # The numbers of those that do not come again and again with memory of their own; and whether one of these may
        # share memory with one that does, or be the same: then it is not enough that those are the tensors of before.
        self.others: list[int] = []
        self.careful = False
        # The storages that rest and were not compared one by one, with the state that they are of, what picks the
        # tensors in it that are not among the external ones for it, and whether the others are known to be theirs.
        self.resting: tuple[Any, tuple[object, ...], Picker, bool] | None = None
        # The numbers that calls were given and that may be any, by place.
        self.given = Given()
        # While it is recorded: why it cannot become a script, and external tensors whose offsets are noted.
        self.refused = ""
        self.noted: list[tuple[Tensor, Pattern]] = []
        # The calls that were made, as they were this time; none while what they give is promised.
        self.taken: list[Step] = []

    # Of the first external tensors, as many as there are `values` (`number_externals`): their numbers by id, their
    # storages with the first that lies there, their values as they were met, and by id the first tensor that had each:
    # storages may share one. None is held here: a tensor may be given another value, and the memory of the first is
    # wanted.
    numbers: dict[int, int] = _few(dict)
    storages: dict[Storage, int] = _few(dict)
    values: list[weakref.ref[Node]] = _few(list)
    nodes: dict[int, int] = _few(dict)
    # Where those of `moves` lay before the first of these calls, by number, and where they lie now, of storages of
    # slots: what `Facts.storage` calls each.
    left: dict[int, Storage] = _few(dict)
    homes: dict[Storage, int] = _few(dict)
    # The checkpointed parts that were computed, first or again, by number.
    parts: list[Part] = _few(list)
    # The autocast contexts that were open, by number, and what each had cast before: number, leaf, type.
    casts: list[Casts] = _few(list)
    cast_before: dict[Node, tuple[int, object, DType]] = _few(dict)
    # While it is recorded: slots' facts; what was there at the beginning; generators -> (generator, offset at the
    # beginning, and after the last draw); which external tensors' offsets are noted in vain; and the writes that
    # external storages had counted after the last call that read them.
    facts: list[Facts] = _few(list)
    begun: dict[int, tuple[weakref.ref[Node], weakref.ref[Storage]]] = _few(dict)
    generators: dict[int, tuple[Any, int, int]] = _few(dict)
    spoilt: set[int] = _few(set)
    versions: dict[Storage, int] = _few(dict)
    # Once something was computed: the values that the open graph has saved; generators: (generator, seed, offset at the
    # beginning, offset after it); the counters that they had used up before the run went on; the storages that slots
    # got; the values that programs gave; and the functions that a backward pass used up.
    saved: list[Node] = _few(list)
    drawn: dict[int, tuple[Any, int, int, int]] = _few(dict)
    counted: dict[int, int] = _few(dict)
    handed: weakref.WeakSet[Storage] = _few(weakref.WeakSet)
    computed: weakref.WeakKeyDictionary[Node, int] = _few(weakref.WeakKeyDictionary)
    used_up: weakref.WeakSet[GradFn] = _few(weakref.WeakSet)
    # Once it stands aside: the turn of the functions of its graph in a backward pass, as `mark` says.
    turn: int | None = None
    # What slots are, while their calls are made in the usual way after all.
    made: list[Tensor] = _few(list)
    # Once it stands aside: what counts the writes of tensors from outside, and how many there had been; and whether
    # gradients were recorded for each.
    then: list[tuple[Any, int]] = _few(list)
    flags: list[bool] = _few(list)

    # ---- what is on

    def modes(self) -> tuple[object, ...]:
        """Return all that is on on which a call depends: gradients, inference mode, what autocast does, and which
        checkpointed parts are computed.
        """
        state = autocast.state
        parts: tuple[object, ...] = ()
        if mode.saved_hooks:
            parts = (tuple([self._part(part_of(hook)) for _, hook in mode.saved_hooks]),)
        if not state.key:
            return mode.grad, mode.inference, *parts
        context = self._context(state.casts)
        return mode.grad, mode.inference, state.key, state.cache_enabled, context, *parts

    def _part(self, part: Part | None) -> int:
        """Return the number of a checkpointed part, or of its second computation."""
        for k, known in enumerate(self.parts):
            if known is part:
                return k
        assert part is not None
        self.parts.append(part)
        return len(self.parts) - 1

    def _context(self, casts: Casts | None) -> int:
        """Return the number of an autocast context."""
        if casts is None:
            return -1
        for k, known in enumerate(self.casts):
            if known is casts:
                return k
        self.casts.append(casts)
        number = len(self.casts) - 1
        for owner, cast in casts.values():
            self.cast_before[cast._storage.node] = number, owner, cast.dtype
        return number

    def restore(self, modes: tuple[Any, ...]) -> None:
        """Turn on what `modes` returned."""
        mode.grad, mode.inference = modes[:2]
        cast, parts = split_modes(modes)
        mode.saved_hooks = tuple([(p.pack, p.unpack) for p in map(self.parts.__getitem__, parts)])
        state = autocast.state
        if not cast:
            state.enabled, state.casts = {}, None
            return
        kinds, state.cache_enabled, number = cast
        state.enabled, state.casts = dict(kinds), self.casts[number] if number >= 0 else None

    def cast(self, place: tuple[int, int, DType]) -> Storage | None:
        """Return what an external tensor was cast to before the run: number of the context and of the tensor, and the
        type.
        """
        context, number, dtype = place
        cast = self.casts[context].cast_of(self.externals[number], dtype)
        return None if cast is None else cast._storage

    def runtime_of(self) -> Runtime | None:
        """Return the device of a run that has promised something; None where it was given no tensor."""
        if self.at.program is not None:
            return self.at.program.runtime
        return self.externals[0]._storage.runtime if self.externals else None

    def lying_there(self) -> Tensor | None:
        """Return a tensor that lies on the device of what was promised; None where no script says which that is."""
        if self.externals:
            first: Tensor = self.externals[0]
            return first
        # It was given none yet, as a mask that is made with `zeros`: what comes next is computed there.
        pending = [self.at]
        while pending:
            step = pending.pop()
            if step.program is not None:
                out = object.__new__(Tensor)
                out._storage = object.__new__(Storage)
                out._storage.runtime = step.program.runtime
                return out
            pending += [s for s in step.following if s.ready]
        return None

    # ---- what tensors are

    def slot_of(self, t: Tensor) -> int | None:
        """Return the number of the slot that a tensor is."""
        ids, slots = self.ids, self.slots
        # The thread that follows may add some while another one asks.
        count = len(slots)
        for k in range(self.known, count):
            slot = slots[k]()
            if slot is not None:
                ids[id(slot)] = k
        self.known = count
        k = ids.get(id(t), -1)
        return k if 0 <= k < len(slots) and slots[k]() is t else None

    def external_of(self, t: Tensor) -> int | None:
        """Return the number of the external tensor that a tensor is."""
        self.number_externals()
        return self.numbers.get(id(t))

    def leaf_number(self, t: Tensor) -> int | None:
        """Return the number of an external tensor, or -1 - the number of a slot."""
        slot = self.slot_of(t)
        return self.external_of(t) if slot is None else -1 - slot

    def leaf(self, number: int) -> Tensor | None:
        """Return the tensor of a `leaf_number`; of a slot that nobody has any more, None."""
        return self.externals[number] if number >= 0 else self.slots[-1 - number]()

    def was_given(self, storage: Storage) -> bool:
        """Whether a tensor from outside lies in a storage, or did."""
        return storage in self.left.values() or any(t._storage is storage for t in self.externals)

    def was_given_one_of(self, values: Iterable[object]) -> bool:
        """Whether there is a tensor from outside among values, or one that such a tensor is a view of: it says whether
        gradients are recorded for that.
        """
        outside = [x for x in self.externals if type(x) is not Prior and self.slot_of(x) is None]
        return any(t is x or t is x._base for t in tensors_in(values) for x in outside)

    def add_slot(self, t: Tensor) -> None:
        """Give a tensor the next number of a slot."""
        self.slots.append(weakref.ref(t))

    def add_external(self, t: Tensor) -> None:
        """Give a tensor from outside the next number."""
        self.externals.append(t)
        self.number_externals()

    def number_externals(self) -> None:
        """Note numbers, storages and values of the external tensors that were met since that was done last."""
        for number in range(len(self.values), len(self.externals)):
            t = self.externals[number]
            if type(t) is Prior:
                self.values.append(nothing)  # type: ignore[arg-type]
                continue
            storage = self.left.get(number) or t._storage
            self.numbers.setdefault(id(t), number)
            self.storages.setdefault(storage, number)
            before = self.undo.get(storage)
            # One that is promised to be written has no value.
            self._add_value(storage.node if before is None else before)

    def _add_value(self, node: Node) -> None:
        """Note the value of the next external tensor."""
        self.values.append(weakref.ref(node))
        if self.holder_of(node) < 0:
            self.nodes[id(node)] = len(self.values) - 1

    def holder_of(self, node: Node) -> int:
        """Return the number of the first external tensor that was met with a value; -1: none."""
        number = self.nodes.get(id(node), -1)
        return number if number >= 0 and self.values[number]() is node else -1

    def home_of(self, node: Node) -> weakref.ref[Storage] | None:
        """Return the storage that had a value when the run began."""
        found = self.begun.get(id(node))
        return found[1] if found is not None and found[0]() is node else None

    def place_of_storage(self, t: Tensor) -> int:
        """Return what `Facts.storage` calls the storage of a tensor from outside."""
        place = self.homes.get(t._storage)
        return -1 - self.storages[t._storage] if place is None else place

    def home(self, place: int, t: Tensor) -> Storage:
        """Return the storage that `Facts.storage` calls so, for a tensor that is to lie there. It may be promised."""
        if place < 0:
            number = -1 - place
            return self.left.get(number) or self.externals[number]._storage
        found = next((storage for storage, k in self.homes.items() if k == place), None)
        return found or Storage.promised(t._storage)

    def note_move(self, number: int, before: Memory, place: int) -> None:
        """Take notice that the `data` of a tensor from outside has been set."""
        t = self.externals[number]
        self.left.setdefault(number, before[0])
        if place >= 0:
            self.homes[t._storage] = place
        self.moves.append((t, before, (t._storage, t._counter)))

    def move_back(self) -> None:
        """Let these tensors lie where they did."""
        for t, before, _ in reversed(self.moves):
            t._storage, t._counter = before

    def move_on(self) -> None:
        """Let these tensors lie where they are to."""
        for t, _, after in self.moves:
            t._storage, t._counter = after

    def forget_moves(self) -> None:
        """Something was computed: they lie where they do. A storage that has been left has no number any more."""
        if self.moves:
            for number, storage in self.left.items():
                if self.storages.get(storage) == number:
                    del self.storages[storage]
            for moved in (self.moves, self.left, self.homes):
                moved.clear()

    def forget_slots(self, count: int) -> None:
        """Take back all but the first `count`."""
        del self.slots[count:]
        self.known = min(self.known, count)

    @property
    def counts(self) -> tuple[int, int, int, int]:
        """How many external tensors, objects, checkpointed parts and autocast contexts there are."""
        return len(self.externals), len(self.opaque), len(self.parts), len(self.casts)

    def forget_given(self, externals: int, objects: int, parts: int, contexts: int) -> None:
        """Take back all but so many of what calls were given, as one that is none of the run's was: what comes next
        has the next number wherever calls are compared.
        """
        self.forget_externals(externals)
        del self.opaque[objects:], self.parts[parts:]
        if len(self.casts) > contexts:
            del self.casts[contexts:]
            self.cast_before = {n: c for n, c in self.cast_before.items() if c[0] < contexts}

    def forget_externals(self, count: int) -> None:
        """Take back all but the first `count`."""
        self.resting = None
        if len(self.externals) <= count:
            return
        for t in self.externals[count:]:
            if self.numbers.get(id(t), -1) >= count:
                del self.numbers[id(t)]
        self.storages = {s: n for s, n in self.storages.items() if n < count}
        self.nodes = {node: n for node, n in self.nodes.items() if n < count}
        del self.externals[count:], self.values[count:]
        self.others = [n for n in self.others if n < count]
        for t, p in self.noted:
            if p.number >= count:
                t._offset = int(t._offset)
        self.noted = [(t, p) for t, p in self.noted if p.number < count]

    def add_resting(self) -> None:
        """Put the tensors among the external ones that were left out because their storages rest."""
        found, self.resting = self.resting, None
        if found is not None:
            self.externals += found[2](found[1])

    def go_on(self, step: Step, program: Program, saved: list[Node]) -> None:
        """Go on after something was computed: what there is now comes from outside, but for its graph."""
        self.add_resting()
        if self.taken:
            self.taken.append(step)
        step.until = self.at.until
        self.at, self.program, self.saved = step, program, saved
        self.first = len(self.slots)
        self.ended = None
        self.differentiated = False
        self.undo.clear()
        self.forget_moves()
        self.values, self.nodes = [], {}

    @property
    def is_complete(self) -> bool:
        """Whether the calls are all that a program computes."""
        return self.at.program is not None and self.at.ready

    @property
    def is_open(self) -> bool:
        """Whether something is alive whose graph has not been made, and may be wanted."""
        return self.program is not None and any(
            self.slots[k]() is not None for k in self.program.open
        )

    @property
    def may_go_on(self) -> bool:
        """Whether a backward pass may still run all of the graph of something that is alive."""
        program = self.program
        return program is not None and any(
            self.slots[k]() is not None for k in program.open - program.partly
        )

    def gave_one_of(self, values: Iterable[object]) -> bool:
        """Whether there is a tensor among values whose whole graph a backward pass may run."""
        program = self.program
        open_now = frozenset() if program is None else program.open - program.partly
        return any(self.slot_of(t) in open_now for t in tensors_in(values))

    def stand_aside(self) -> None:
        """End, with values and without a graph: it is made of the calls when somebody looks."""
        self.add_resting()
        self.turn = mark(_MOST_FUNCTIONS)
        if self.at.kind != "computed":
            assert self.program is not None
            step = Step(self.at)
            step.kind = "computed"
            self.go_on(step, self.program, self.saved)
        self.ended = self.at
        homes: dict[Any, None] = {}
        for j, t in enumerate(self.externals):
            slot = self.slot_of(t)
            if slot is not None:
                self.externals[j] = Prior(slot)
            else:
                homes[t._storage] = homes[t._counter] = None
        self.then = [(home, home.version) for home in homes]
        self.flags = self._flags()

    def _flags(self) -> list[bool]:
        """Return for which tensors from outside gradients are recorded."""
        return [type(t) is not Prior and t._requires_grad for t in self.externals]

    @property
    def may_come_back(self) -> bool:
        """Whether all that calls were given is there, and none of it was written or marked since the run stood aside: a
        backward pass looks whether what was saved is as it was.
        """
        return (
            all(home.version == version for home, version in self.then)
            and all(self.slots[t.slot]() is not None for t in self.externals if type(t) is Prior)
            and self._flags() == self.flags
        )

    def come_back(self, at: Step) -> None:
        """Go on after a step, where the run stood aside."""
        self.at, self.ended = at, None
        self.externals[:] = [
            self.slots[t.slot]() if type(t) is Prior else t for t in self.externals
        ]

    @contextlib.contextmanager
    def as_then(self) -> Iterator[None]:
        """Inside, tensors from outside have been written as often as when the run ended."""
        now = [home.version for home, _ in self.then]
        for home, version in self.then:
            home.version = version
        try:
            yield
        finally:
            for (home, _), version in zip(self.then, now, strict=True):
                home.version = version

    def earlier(self) -> set[GradFn]:
        """Return the functions of tensors from outside, to which graphs of this run may lead."""
        outside = [t for t in self.externals if type(t) is not Prior and self.slot_of(t) is None]
        return {fn for t in outside if isinstance(fn := history_of(t), GradFn)}

    def is_outside(self, storage: Storage) -> bool:
        """Whether it is the storage of a tensor that no call of this run has given."""
        number = self.storages.get(storage)
        if number is None or type(self.externals[number]) is Prior:
            return False
        return self.slot_of(self.externals[number]) is None

    def holds(self, t: Tensor) -> bool:
        """Whether a tensor was promised here and not looked at."""
        return self.promised and self.slot_of(t) is not None

    # ---- matching

    def varies(self, p: Pattern, value: object) -> bool:
        """Whether a value is a number that a pattern lets vary, or the same."""
        if type(value) is not Varying:
            return False
        number = value.number
        return number == p.value or bool(p.loose and number and p.value)

    def takes(self, p: Pattern, value: Any) -> bool:
        """Whether a value is a number that may stand where a pattern has one; the program gets it."""
        if type(value) is not type(p.value) or not may_vary(value):
            return False
        self.given[p.number] = float(value)
        return not p.decides or decide_alike(p.decides, self.given)

    def keeps(self, p: Pattern, value: object) -> bool:
        """Whether a value is any object that is new, or the one that a pattern says."""
        if not p.value:
            return value is self.opaque[p.number]
        del self.opaque[p.number :]
        self.opaque.append(value)
        return True

    def is_like(self, p: Pattern, t: Any) -> bool:
        """Whether a value is an external tensor that is seen first, and as a pattern says; it gets its number. One that
        comes again, and has its memory for itself, need not be compared until something changes tensors.
        """
        number = p.number
        # What is dead is None, which an argument may be as well.
        again = t is not None and p.last() is t
        if not (again and p.stamp == changes.count) and not self._compare(p, t):
            return False
        storage = t._storage
        node = storage.node
        if (node.kind != "buffer" or node.host is not None or node.shape != p.facts[-1]) and (
            facts_of(t) != p.facts
        ):
            return False
        externals, others = self.externals, self.others
        externals.append(t)
        known = regular.patterns(storage)
        # Memory that others have, too, cannot be told by the tensors that are known.
        if (
            len(others) > _MANY
            or any(q.last() is not t for q in known)
            or (node.shared and storage.shares(node))
        ):
            self.careful = True
        first = number
        if not self.careful:
            if any(externals[k] is t for k in others) or not self.is_apart(known, t):
                return False
            lying = (k for k in others if (self.left.get(k) or externals[k]._storage) is storage)
            first = min(lying, default=number)
            if again and (first, first) == p.alias == (number, number):
                regular.add(p, storage, [q for q in known if q is not p])
                return True
            others.append(number)
            self.careful = bool(known)
        if self.careful:
            self.number_externals()
            return (
                self.numbers[id(t)] == number
                and (self.storages[storage], self.nodes[id(node)]) == p.alias
            )
        return (first, first) == p.alias

    def is_apart(self, known: list[Pattern], t: Tensor) -> bool:
        """Whether a tensor, the last one, is none that was met for one of its patterns."""
        last = len(self.externals) - 1
        return all(q.number >= last or self.externals[q.number] is not t for q in known)

    def is_elsewhere(self, p: Pattern, t: Tensor) -> bool:
        """Whether a tensor that came again was met in another place as well."""
        return any(self.externals[k] is t for k in p.also)

    def is_as_before(self, p: Pattern, t: Tensor) -> bool:
        """Whether a value that need not be compared would be found to be what it is: for tests. What rests goes on
        resting.
        """
        storages = {e._storage for e in self.externals if type(e) is not Prior}
        resting = [s for s in storages if s.resting is not None]
        for s in resting:
            s.node = s.resting[0]
        try:
            self.number_externals()
            number = p.number
            home = self.storages[t._storage], self.numbers[id(t)]
            return facts_of(t) == p.facts and self.slot_of(t) is None and home == (number, number)
        finally:
            for s in resting:
                if s.resting is not None:
                    del s.node

    def _compare(self, p: Pattern, t: object) -> bool:
        """Whether a value is an external tensor that is as a pattern says; if so, that is remembered."""
        if not isinstance(t, Tensor) or self.slot_of(t) is not None or facts_of(t) != p.facts:
            return False
        offset = t._offset
        if offset != p.value and not (p.loose and offset and p.value):
            return False
        if p.last() is not t:
            p.last, p.regular = reference_aside(t), -1
        p.stamp = changes.count
        return True

    def is_prior(self, p: Pattern, t: Any) -> bool:
        """Whether a value is the slot of a pattern, which was computed and is seen first since; it gets its number."""
        externals, others = self.externals, self.others
        if t is None or self.slots[p.value]() is not t or any(externals[k] is t for k in others):
            return False
        others.append(len(externals))
        externals.append(t)
        return True

    def watches(self, step: Step, args: tuple[object, ...]) -> bool:
        """Whether what a backward pass or an optimizer's step depends on is as it was."""
        if step.kind == "backward":
            # A promised tensor that gets hooks ends the script.
            if have_hooks(self.leaves_of(step, outside=True)):
                return False
            if step.place is not None and self.hook_at(step.place) is None:
                return False
            found = self.watched_of(step)
            self.hooked = found[-1] is not None
        elif step.kind == "gradients":
            # Which of them are reached is not known here.
            outside = [t for t in self.externals if self.slot_of(t) is None]
            return not any(t._hooks for t in outside) and not have_hooks(outside)
        else:
            watch = step.callee.watch if step.callee is not None else None
            watched = None if watch is None else watch(*args)
            return watched is not None and step.watches(self, watched, {})  # type: ignore[misc]
        return step.watches is not None and step.watches(self, found, {})

    def watched_of(self, step: Step) -> list[object]:
        """Return what a part of a backward pass depends on: gradients of leaves, and how many hooks there are."""
        leaves = self.leaves_of(step)
        return [
            *[None if leaf is None else leaf._grad for leaf in leaves],
            self.hook_counts(leaves, step.callee is BEGIN),
        ]

    def leaves_of(self, step: Step, outside: bool = False) -> list[Tensor | None]:
        """Return the leaves of a backward pass, `outside`: those of them that the run did not give."""
        externals = self.externals
        return [
            externals[j] if j >= 0 else self.slots[-1 - j]()
            for j, _ in step.leaves
            if j >= 0 or not outside
        ]

    def hook_counts(self, leaves: Sequence[Tensor | None], first: bool) -> tuple[int, ...] | None:
        """Return how many hooks leaves have, and slots if a backward pass is to begin; None where there are none."""
        slots = self.hooks if first else None
        pairs = [(None, None) if t is None else _HOOKS(t) for t in leaves]
        if not slots and not any(map(any, pairs)):
            return None
        counts = [len(hooks or ()) for pair in pairs for hooks in pair]
        return (*counts, *map(len, (slots or {}).values()))

    def hooks_of(self, step: Step) -> list[dict[int, Callable[..., object]]]:
        """Return the hooks that a backward pass may call."""
        leaves = [t for j, _ in step.leaves if (t := self.leaf(j)) is not None]
        found = [hooks for t in leaves for hooks in (t._hooks, t._post_accumulate) if hooks]
        return [*found, *self.hooks.values()]

    def place_of(self, owner: object, key: int) -> Any:
        """Return where a hook is found, among hooks under a key; None where it cannot be found again."""
        for number, known in enumerate(self.opaque):
            if known is owner:
                return (number, "function", 0, 0)
        if not isinstance(owner, dict) or key not in owner:
            return None
        index = list(owner).index(key), len(owner)
        for k, hooks in self.hooks.items():
            if hooks is owner:
                return (-1 - k, "", *index)
        for number, t in enumerate(self.externals):
            if type(t) is not Prior:
                for name in ("_hooks", "_post_accumulate"):
                    if getattr(t, name) is owner:
                        return (number, name, *index)
        return None

    def hook_at(self, place: Any) -> Any:
        """Return the hook that is found in a place now; None where there are more or fewer hooks than there were."""
        number, name, index, count = place
        if name == "function":
            context = self.opaque[number]
            if isinstance(context, Part):
                return context.compute
            return functools.partial(context._rule, context)
        owner = self.hooks[-1 - number] if number < 0 else getattr(self.externals[number], name)
        if len(owner or ()) != count:
            return None
        hook = list(owner.values())[index]
        return hook.hook if number < 0 else hook

    def count_writes(self, writes: Writes, sign: int, slots: bool = True) -> None:
        """Count writes of a call once more, or once less, on tensors from outside; with `slots`, on slots too."""
        externals, plain = self.externals, slots and not self.made
        for j, counted, version in writes:
            t = externals[j]
            if not plain:
                k = t.slot if type(t) is Prior else self.slot_of(t)
                if k is not None:
                    if not slots:
                        continue
                    # While calls are made in the usual way it is what was made for it.
                    t = self.made[k] if k < len(self.made) else t
            storage = t._storage
            if t._counter is not storage:
                t._counter.version += sign * counted
            storage.version += sign * version

    def note_offset(self, t: Tensor, p: Pattern) -> None:
        """Have the numbers that come of a tensor's offset say so, until the run ends."""
        if t._offset:
            t._offset = Offset.of(int(t._offset), p.number, self.spoilt)
            self.noted.append((t, p))

    def end(self) -> None:
        """Give what was noted for recording its usual form back."""
        for t, _ in self.noted:
            t._offset = int(t._offset)
        if self.noted:
            for reference in self.slots:
                slot = reference()
                if slot is not None:
                    slot._offset = int(slot._offset)
        self.noted = []


def split_modes(modes: tuple[Any, ...]) -> tuple[list[Any], tuple[int, ...]]:
    """Return what `Run.modes` says of autocast, whose context comes last, and the numbers of checkpointed parts."""
    cast = list(modes[2:])
    parts = cast.pop() if cast and type(cast[-1]) is tuple else ()
    return cast, parts


def keep_saved(args: Args, promised: bool) -> None:
    """Let the context of a user's function keep what was saved as it was given, which a script knows."""
    context, _, outputs, _, saved, _, recorded = args
    own = () if promised else {id(o) for o in outputs}
    kept = tuple([weakref.ref(t) if id(t) in own else t for t in saved])
    context._kept = kept if recorded else None


def may_vary(number: float) -> bool:
    """Whether a number may stand where another one did: what is special about one is special in many ways."""
    return (
        bool(number) and math.isfinite(number) and (type(number) is float or abs(number) < _EXACT)
    )


def have_hooks(leaves: Iterable[Tensor | None]) -> bool:
    """Whether somebody looks at what arrives at one of some leaves."""
    ends = [t._accumulate() for t in leaves if t is not None and t._accumulate is not None]
    return any(end is not None and bool(end.is_watched or end.edges) for end in ends)
