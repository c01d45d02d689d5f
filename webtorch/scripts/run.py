"""One pass through a script: what it was given, and what it has promised."""

from __future__ import annotations

import math
import os
import weakref
from operator import attrgetter
from typing import Any

from webtorch.ir.dtype import DType
from webtorch.ir.graph import Node
from webtorch.runtime.realize import Runtime, is_seen
from webtorch.scripts.changes import changes
from webtorch.scripts.script import (
    Facts,
    Given,
    Offset,
    Pattern,
    Program,
    Step,
)
from webtorch.tensors import autocast
from webtorch.tensors.autocast import Casts
from webtorch.tensors.host import Varying
from webtorch.tensors.modes import mode
from webtorch.tensors.storage import Storage
from webtorch.tensors.tape import GradFn
from webtorch.tensors.tensor import Tensor

# Whether what need not be compared again is, to be sure: for tests.
_CHECKED = os.environ.get("WEBTORCH_SCRIPTS") == "always"
# What of an external tensor must be as it was, beside its offset.
_LIKE = attrgetter(
    "_shape", "_strides", "_whole", "dtype", "_requires_grad", "_inference", "_storage.elements", "_storage.dtype",
    "_storage.runtime", "_storage.node.shape",
)  # fmt: skip


def facts_of(t: Tensor) -> tuple[Any, ...] | None:
    """Return what an external tensor is like; None if it cannot stand in a script."""
    base = t._base
    graph = t._grad_fn is not None
    if (
        (t._hooks and not graph)
        or t._levels
        or (t._retains and not graph)
        or (base is not None and base._requires_grad and not graph)
        or t._storage.node.kind != "buffer"
        or (t._storage.node.host is not None and is_seen(t._storage.node))
    ):
        return None
    facts: tuple[Any, ...] = _LIKE(t)
    return (type(t), graph, *facts)


class Run:
    """What the calls since the last computation were given and gave, by number."""

    def __init__(self, root: Step) -> None:
        self.at = root
        # Slots: what calls gave, and the numbers by id of those that were made last in a place; of the first
        # `known` of them.
        self.slots: list[weakref.ref[Tensor]] = []
        self.ids: dict[int, int] = {}
        self.known = 0
        # The last call that was answered, once what was promised is computed or recorded.
        self.ended: Step | None = None
        # Tensors from outside, their numbers by id, and their storages with the first that lies there.
        self.externals: list[Tensor] = []
        self.numbers: dict[int, int] = {}
        self.storages: dict[Storage, int] = {}
        self.runtime: Runtime | None = None
        # Whether tensors are promised.
        self.promised = False
        # Whether a backward pass has given gradients.
        self.differentiated = False
        # What written storages held before.
        self.undo: dict[Storage, Node] = {}
        # Once something was computed: the program that ran, the first slot since, the values that the open graph
        # has saved, the storages that slots got, and generators: (generator, seed, offset at the beginning, offset
        # after it).
        self.program: Program | None = None
        self.first = 0
        self.saved: list[Node] = []
        self.handed: weakref.WeakSet[Storage] = weakref.WeakSet()
        self.drawn: dict[int, tuple[Any, int, int, int]] = {}
        # The values of external storages as they were met, and by id the first tensor that had each: storages may share
        # one. None is held here: a tensor may be given another value, and the memory of the first is wanted.
        self.values: list[weakref.ref[Node]] = []
        self.nodes: dict[int, int] = {}
        # The autocast contexts that were open, by number, and what each had cast before: number, leaf, whether
        # gradients were recorded, type.
        self.casts: list[Casts] = []
        self.cast_before: dict[Node, tuple[int, Any, bool, DType]] = {}
        # The numbers that calls were given and that may be any, by place.
        self.given = Given()
        # While it is recorded: why it cannot become a script; slots' facts; what was there at the beginning;
        # generators -> (generator, offset at the beginning, and after the last draw); functions that a backward pass
        # used up; external tensors whose offsets are noted, and of which that is in vain.
        self.refused = ""
        self.facts: list[Facts] = []
        self.begun: dict[int, tuple[weakref.ref[Node], weakref.ref[Storage]]] = {}
        self.generators: dict[int, tuple[Any, int, int]] = {}
        self.used_up: weakref.WeakSet[GradFn] = weakref.WeakSet()
        # The values that programs gave before it went on, and the counters that generators had used up then.
        self.computed: weakref.WeakKeyDictionary[Node, int] = weakref.WeakKeyDictionary()
        self.counted: dict[int, int] = {}
        self.noted: list[tuple[Tensor, Pattern]] = []
        self.spoilt: set[int] = set()
        # What slots are, while their calls are made in the usual way after all.
        self.made: list[Tensor] = []
        # The calls that were made, as they were this time; none while what they give is promised.
        self.taken: list[Step] = []
        # The writes that external storages had counted after the last call that read them.
        self.versions: dict[Storage, int] = {}

    # ---- what is on

    def modes(self) -> tuple[Any, ...]:
        """Return all that is on on which a call depends: gradients, inference mode, and what autocast does."""
        state = autocast.state
        if not state.key:
            return mode.grad, mode.inference
        return mode.grad, mode.inference, state.key, state.cache_enabled, self._context(state.casts)

    def _context(self, casts: Casts | None) -> int:
        """Return the number of an autocast context."""
        if casts is None:
            return -1
        for k, known in enumerate(self.casts):
            if known is casts:
                return k
        self.casts.append(casts)
        number = len(self.casts) - 1
        for owner, _, recorded, cast in casts.values():
            self.cast_before[cast._storage.node] = number, owner, recorded, cast.dtype
        return number

    def restore(self, modes: tuple[Any, ...]) -> None:
        """Turn on what `modes` returned."""
        mode.grad, mode.inference, *cast = modes
        state = autocast.state
        if not cast:
            state.enabled, state.casts = {}, None
            return
        kinds, state.cache_enabled, number = cast
        state.enabled, state.casts = dict(kinds), self.casts[number] if number >= 0 else None

    def cast(self, place: tuple[int, int, bool, DType]) -> Storage | None:
        """Return what an external tensor was cast to before the run: number of the context and of the tensor,
        whether gradients were recorded, and the type.
        """
        context, number, recorded, dtype = place
        cast = self.casts[context].cast_of(self.externals[number], recorded, dtype)
        return None if cast is None else cast._storage

    def runtime_of(self) -> Runtime | None:
        """Return the device of a run that has promised something; None where it was given no tensor."""
        if self.at.program is not None:
            return self.at.program.runtime
        return self.externals[0]._storage.runtime if self.externals else None

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
        return self.numbers.get(id(t))

    def add_slot(self, t: Tensor) -> None:
        """Give a tensor the next number of a slot."""
        self.slots.append(weakref.ref(t))

    def add_external(self, t: Tensor) -> int:
        """Give a tensor from outside the next number."""
        number = self.numbers[id(t)] = len(self.externals)
        self.externals.append(t)
        storage = t._storage
        self.storages.setdefault(storage, number)
        self._add_value(storage.node)
        return number

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

    def forget_slots(self, count: int) -> None:
        """Take back all but the first `count`."""
        del self.slots[count:]
        self.known = min(self.known, count)

    def forget_externals(self, count: int) -> None:
        """Take back all but the first `count`."""
        if len(self.externals) <= count:
            return
        for t in self.externals[count:]:
            if self.numbers.get(id(t), -1) >= count:
                del self.numbers[id(t)]
        self.storages = {s: n for s, n in self.storages.items() if n < count}
        self.nodes = {node: n for node, n in self.nodes.items() if n < count}
        del self.externals[count:], self.values[count:]
        for t, p in self.noted:
            if p.number >= count:
                t._offset = int(t._offset)
        self.noted = [(t, p) for t, p in self.noted if p.number < count]

    def go_on(self, step: Step, program: Program, saved: list[Node]) -> None:
        """Go on after something was computed: what there is now comes from outside, but for its graph."""
        if self.taken:
            self.taken.append(step)
        step.until = self.at.until
        self.at, self.program, self.saved = step, program, saved
        self.first = len(self.slots)
        self.ended = None
        self.differentiated = False
        self.undo.clear()
        self.values, self.nodes = [], {}
        for t in self.externals:
            self._add_value(t._storage.node)

    @property
    def is_complete(self) -> bool:
        """Whether the calls are all that a program computes."""
        return self.at.program is not None and self.at.ready

    @property
    def is_open(self) -> bool:
        """Whether a backward pass may still run the graph of something that is alive."""
        return self.program is not None and any(
            self.slots[k]() is not None for k in self.program.open
        )

    def is_outside(self, storage: Storage) -> bool:
        """Whether it is the storage of a tensor that no call of this run has given."""
        number = self.storages.get(storage)
        return number is not None and self.slot_of(self.externals[number]) is None

    def holds(self, t: Tensor) -> bool:
        """Whether a tensor was promised here and not looked at."""
        return self.promised and self.slot_of(t) is not None

    # ---- matching

    def varies(self, p: Pattern, value: Any) -> bool:
        """Whether a value is a number that a pattern lets vary, or the same."""
        if type(value) is not Varying:
            return False
        number = value.number
        return number == p.value or bool(p.loose and number and p.value)

    def takes(self, p: Pattern, value: Any) -> bool:
        """Whether a value is a number that may stand where a pattern has one; the program gets it."""
        if type(value) is not float or not may_vary(value):
            return False
        self.given[p.number] = value
        return True

    def is_like(self, p: Pattern, t: Any) -> bool:
        """Whether a value is an external tensor that is seen first, and as a pattern says; it gets its number."""
        number = p.number
        # What is dead is None, which an argument may be as well.
        if p.stamp != changes.count or t is None or p.last() is not t:
            if not self._compare(p, t):
                return False
        elif _CHECKED:
            assert facts_of(t) == p.facts, "a tensor was changed by what is no call"
        storage = t._storage
        node = storage.node
        if (node.kind != "buffer" or node.host is not None or node.shape != p.facts[-1]) and (
            facts_of(t) != p.facts
        ):
            return False
        self.externals.append(t)
        self.values.append(weakref.ref(node))
        holder = self.nodes.setdefault(id(node), number)
        if holder != number and self.values[holder]() is not node:
            holder = self.nodes[id(node)] = number
        return (
            self.numbers.setdefault(id(t), number) == number
            and (self.storages.setdefault(storage, number), holder) == p.alias
        )

    def _compare(self, p: Pattern, t: Any) -> bool:
        """Whether a value is an external tensor that is as a pattern says; if so, that is remembered."""
        if not isinstance(t, Tensor) or self.slot_of(t) is not None or facts_of(t) != p.facts:
            return False
        offset = t._offset
        if offset != p.value and not (p.loose and offset and p.value):
            return False
        p.last, p.stamp = weakref.ref(t), changes.count
        return True

    def is_prior(self, p: Pattern, t: Any) -> bool:
        """Whether a value is the slot of a pattern, which was computed and is seen first since; it gets its number."""
        if t is None or self.slots[p.value]() is not t or id(t) in self.numbers:
            return False
        self.add_external(t)
        return True

    def watches(self, step: Step, args: tuple[Any, ...]) -> bool:
        """Whether what a backward pass or an optimizer's step depends on is as it was."""
        if step.kind == "backward":
            leaves = [self.externals[j] for j, _ in step.leaves]
            for leaf in leaves:
                if leaf._hooks or leaf._post_accumulate or has_hooks(leaf):
                    return False
            found = [leaf._grad for leaf in leaves]
        elif step.kind == "gradients":
            # Which of them are reached is not known here.
            outside = [t for t in self.externals if self.slot_of(t) is None]
            return not any(t._hooks or has_hooks(t) for t in outside)
        else:
            watch = step.callee.watch if step.callee is not None else None
            values = None if watch is None else watch(*args)
            if values is None:
                return False
            found = values
        return step.watches is not None and step.watches(self, found, {})

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


def may_vary(number: float) -> bool:
    """Whether a number may stand where another one did: what is special about one is special in many ways."""
    return bool(number) and math.isfinite(number)


def has_hooks(leaf: Tensor) -> bool:
    """Whether somebody looks at what arrives at a leaf."""
    end = leaf._accumulate() if leaf._accumulate is not None else None
    return end is not None and bool(end.is_watched or end.edges)
