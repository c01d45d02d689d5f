"""Storages that an optimizer's step writes where they lie, at each step: parameters and state.

While nobody looks at one of them, none is touched: they have neither `node` nor `version`, as what is promised has not,
and the step needs one comparison for all. Whoever looks at either ends that for all (`wake`).
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Sequence
from operator import is_

from webtorch.ir.graph import Node
from webtorch.scripts.changes import changes
from webtorch.scripts.run import Run
from webtorch.scripts.script import KNOWN, NEW, STATIC, Program, Step, Writes, nothing, picker
from webtorch.tensors.host import Watched
from webtorch.tensors.storage import Storage
from webtorch.tensors.tensor import Tensor

# For how many steps at most storages do not rest where somebody looks at each: twice as many each time.
_MOST_BUSY = 256

_lock = threading.Lock()


class Tally:
    """How often storages were written that rest together. They hold it, and it holds nothing of the others."""

    __slots__ = ("__weakref__", "count", "group", "members")

    def __init__(self, group: Group) -> None:
        self.count = 0
        self.group = weakref.ref(group)
        self.members: list[weakref.ref[Storage]] = []


class Group:
    """Storages that rest. Their optimizer holds it, so that it goes with it."""

    __slots__ = (
        "__weakref__", "buffers", "early", "new", "numbers", "others", "stamp", "state", "tally", "tensors", "watched",
        "writes",
    )  # fmt: skip

    def __init__(self) -> None:
        # The tensors that lie there, and their numbers among the external ones.
        self.tensors: list[Tensor] = []
        self.numbers: list[int] = []
        # All of the optimizer's state, if it rests: what is the same tuple while nothing has changed in it, and what
        # picks the tensors that are seen first there. And how many tensors were seen before.
        self.state: object = None
        self.new = picker(())
        self.early = 0
        # What its optimizer's step depended on the last time.
        self.watched: Watched | None = None
        # The memory that the program is given, None where another storage has it: these places. None once it is over.
        self.buffers: list[object] | None = None
        self.others: list[int] = []
        # The writes of the step to others.
        self.writes: Writes = ()
        self.tally = Tally(self)
        # How many changes there had been when they came to rest.
        self.stamp = changes.count

    def holds(self, run: Run) -> bool:
        """Whether a run was given the tensors, and nobody has looked."""
        if self.buffers is None or self.stamp != changes.count:
            return False
        if run.resting is not None and run.resting[3]:
            return True
        # Those of the state are not among them where all of it has been compared as one.
        count = self.early if run.resting is not None else len(self.numbers)
        return all(map(is_, map(run.externals.__getitem__, self.numbers[:count]), self.tensors))

    def end(self) -> None:
        """Hold nothing any more. Those that still rest stay as they are until somebody looks."""
        self.buffers = self.state = self.watched = None
        self.tensors = []


# By optimizer; and those of which some may still rest.
_of_optimizer: weakref.WeakKeyDictionary[object, Group] = weakref.WeakKeyDictionary()
_tallies: weakref.WeakSet[Tally] = weakref.WeakSet()


def group_for(run: Run, program: Program) -> Group | None:
    """Return the storages of a program that rest, if they do."""
    found = program.resting()
    if run.resting is not None and run.resting[0] is not found:
        run.add_resting()
    if found is None:
        return None
    if found.holds(run):
        return found
    run.add_resting()
    if found.tally.count > 1:
        program.busy = program.most_busy = 1
    else:
        program.busy = program.most_busy = min(2 * program.most_busy, _MOST_BUSY)
    found.end()
    program.resting = nothing
    return None


def let_rest(run: Run, step: Step, program: Program, inputs: Sequence[object]) -> None:
    """Let the storages rest that an optimizer's step has written where they lay; `inputs`: the memory that its program
    was given.
    """
    if program.busy:
        program.busy -= 1
        return
    optimizer = step.args[0].value()
    if optimizer is None:
        return
    places = {
        number: i
        for i, ((kind, number), donated) in enumerate(program.inputs)
        if kind == "external" and donated
    }
    group = Group()
    buffers: list[object] = [None] * len(inputs)
    writes = []
    with _lock:
        for write in step.writes:
            number, _, version = write
            t, place = run.externals[number], places.get(number)
            storage = t._storage
            node: Node | None = None if storage.resting is not None else storage.node
            if (
                place is None
                or node is None
                or node.buffer is not inputs[place]
                or storage.shares(node)
                or node.host is not None
                or t._counter is not storage
                or storage.donor is not None
            ):
                writes.append(write)
                continue
            group.tensors.append(t)
            group.numbers.append(number)
            group.tally.members.append(weakref.ref(storage))
            buffers[place] = inputs[place]
            storage.resting = node, group.tally, version, storage.version
            del storage.node, storage.version
        group.buffers, group.writes = buffers, tuple(writes)
        group.others = [i for i, buffer in enumerate(buffers) if buffer is None]
    _tallies.add(group.tally)
    _of_optimizer[optimizer] = group
    _take_state(group, step, optimizer)
    program.resting = weakref.ref(group)


def _take_state(group: Group, step: Step, optimizer: object) -> None:
    """Let all of an optimizer's state rest as one, if each part does."""
    watched: Watched | None = None
    if step.callee is not None and step.callee.watch is not None:
        watched = step.callee.watch(optimizer)
    if watched is None:
        return
    count, resting = len(watched.values()), set(group.numbers)
    patterns = step.watched[count:]
    new = [i for i, p in enumerate(patterns) if p.form == NEW]
    if new and all(
        p.number in resting and not p.also if p.form in (NEW, KNOWN) else p.form == STATIC
        for p in patterns
    ):
        first = patterns[new[0]].number
        group.state, group.new = watched.state, picker(new)
        group.early = sum(number < first for number in group.numbers)
        group.watched = watched
        step.watches.rest(weakref.ref(group), watched, count)  # type: ignore[union-attr]


def value_of(storage: Storage) -> Node:
    """Return the value of a storage, which goes on resting if it does."""
    found = storage.resting
    return storage.node if found is None else found[0]


def wake(storage: Storage) -> bool:
    """Give a storage what it lacks since it rests; return whether it did."""
    with _lock:
        found = storage.resting
        if found is None:
            return False
        node, tally, each, version = found
        group = tally.group()
        if group is not None:
            group.end()
        storage.node, storage.version = node, version + each * tally.count
        storage.resting = None
    return True


def wake_all() -> None:
    """Let no storage rest."""
    for tally in list(_tallies):
        for reference in tally.members:
            storage = reference()
            if storage is not None:
                wake(storage)
