"""Realizing: the pending graph of a device becomes a cached program, and runs. Floor 3; may import
floors 0 to 2.

Everything that is alive and pending is computed together, so nothing is ever computed twice; what
only served as an
intermediate step never reaches memory. The key of the cache is the structure of the graph without
its numbers (`runtime/frozen`).
"""

from __future__ import annotations

import contextlib
import threading
import time
import weakref
from collections import OrderedDict
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, Protocol

from webtorch.dispatch.call import active
from webtorch.errors import CHECKS, CaptureError, DeviceError, OutOfMemoryError
from webtorch.ir.dtype import Scalar
from webtorch.ir.garbage import not_collecting
from webtorch.ir.graph import Form, Graph, Node
from webtorch.lower.compiler import compile_graph
from webtorch.runtime import arrivals, kept
from webtorch.runtime.ahead import Ahead, Counters
from webtorch.runtime.arrivals import Arrival
from webtorch.runtime.backend import Backend, Executable, Sent, compiling
from webtorch.runtime.backends import get_backend
from webtorch.runtime.churn import Churn, Family
from webtorch.runtime.compilations import Compilation, note
from webtorch.runtime.frozen import (
    Frozen,
    Glance,
    Taken,
    Value,
    difference,
    family,
    freeze,
    glance,
    outline_of,
    reason_for,
    signature,
    to_graph,
)
from webtorch.runtime.interrupt import whole
from webtorch.runtime.known import Divided, Known, KnownParts
from webtorch.runtime.parts import FEWEST, Held, Part, changed_sizes, cut, structure
from webtorch.runtime.recording import Owner, Recording
from webtorch.runtime.trace import debug_level, show_pass, show_program, show_run
from webtorch.runtime.watch import watch

_MAX_PROGRAMS = 1024
_MAX_GLANCES = 1024
# Graphs that differ in sizes only are computed in parts once so many were compiled one after the other...
_IN_PARTS_FROM = 2
# ... unless the very same one has come so often: as a whole it runs faster.
_IN_PARTS_MOST = 32
_MAX_DIVIDED = 64
# How long the keys of whole graphs that are computed in parts are together: 400 tokens of 24 layers, 120 MB.
_MAX_KEYS = 1 << 22
# So often a graph is computed node by node before it is compiled, if the backend does that...
_SIGHTS = 2
# ... and if it has so many nodes, or if others of its form, of other sizes, were compiled one after the other.
_FEWEST_NODES = 256
_MAX_SIGHTS = 4096
# With so few values pending at most, a small graph of one of them is looked at as it stands.
_FEW = 16
_MOST_NODES = 32
# Above this number of values that NumPy sees, looking through them at every run would cost more
# than it saves.
_MAX_LENT_CHECKED = 64


def is_seen(node: Node) -> bool:
    """Whether a NumPy array sees the memory of a computed value."""
    if node.host is not None and not node.host():
        node.host = None
    return node.host is not None


def _reads_lent(node: Node) -> bool:
    for s in node.srcs:
        # A value is read as it is or through one view, which another thread may have computed.
        if s.kind == "view":
            s = next(iter(s.srcs), s)
        if s.host is not None and is_seen(s):
            return True
    return False


_NONE: weakref.WeakKeyDictionary[Owner, Node] = weakref.WeakKeyDictionary()

_REMEDY = (
    "Compiling costs far more than running: keep shapes fixed (pad to one size, use one batch size "
    "with drop_last=True, write into a tensor of the largest size and mask what is not used yet)."
)


_PART = "a part of a graph that comes at ever new sizes"


def _only(pending: Sequence[weakref.ref[Owner]]) -> weakref.ref[Owner] | None:
    """Return the last reference to the one owner that is alive; None where there are several, or none."""
    only: weakref.ref[Owner] | None = None
    for reference in pending:
        if reference() is not None:
            # There is one reference to an owner, however often it is made.
            if only is not None and only is not reference:
                return None
            only = reference
    return only


def _most() -> int:
    """Return how many nodes a graph of one value has at most that is looked at as it stands: larger ones may be steps
    of a script, and while one is learned or followed all may be.
    """
    if listener is None:
        return _MOST_NODES
    return 0 if active.count else listener.fewest - 1


def _wants_programs() -> bool:
    """Whether who listens wants a program of each read, of one call as well."""
    return bool(active.count) and listener is not None and listener.wants_programs()


def _key_of_call(
    owners: Sequence[Value], node: Node, form: Form, given: Sequence[Node]
) -> tuple[Any, ...]:
    """Return what the form of an operation on data leaves open: which results are wanted, which sources are one and the
    same, and the user's line where an error may name it.
    """
    called = node.kind == "call"
    key: Any = node.attrs[1] if called else 0
    count = len(given)
    if count > 1 and (given[0] is given[1] if count == 2 else len({*given}) < count):
        key = key, tuple([given.index(s) for s in given])
    if len(owners) > 1:
        key = key, *[owner.node.attrs[1] for owner in owners[1:]]
    if form.picks and node.line is not None:
        code, instruction = node.line
        key = key, code.co_filename, code.co_firstlineno, instruction
    return key


class Ready(NamedTuple):
    """A run that is prepared: with which buffers, where those stand that are to come, and its numbers."""

    executable: Executable
    buffers: list[Any]
    late: Sequence[tuple[int, Node]]
    args: Sequence[Scalar]


class Seen(NamedTuple):
    """What is known of pending values before they can be computed."""

    taken: Sequence[Taken]
    glance: Glance
    known: Known | None
    # All that was pending, what of it is settled once it is computed, and what is itself to come.
    pending: Sequence[weakref.ref[Owner]]
    settled: dict[int, weakref.ref[Owner]]
    coming: Sequence[weakref.ref[Owner]]
    run: Ready | None = None
    # Gives back what was taken for the run and not used.
    drop: Callable[[], None] | None = None

    def awaited(self) -> set[Node]:
        """Return the nodes of values to come that they stand on."""
        return {n for n in self.glance[1] if n.kind == "arriving"}

    def is_of(self, taken: Sequence[Taken]) -> bool:
        """Whether these are the very same values, which overwrite the same."""
        return len(taken) == len(self.taken) and all(
            a.owner is b.owner and a.node is b.node and a.donor is b.donor
            for a, b in zip(taken, self.taken, strict=True)
        )


class Runtime:
    """The pending work of one device and its program cache."""

    # What machine code reads at each call (`pytorch/native`) has places of its own.
    __slots__ = (
        "__dict__", "__weakref__", "ahead", "apart", "lent", "pending", "recording", "running", "writing",
    )  # fmt: skip

    def __init__(self, backend: Backend, name: str = "") -> None:
        self.backend = backend
        self.kind = backend.name
        # What programs call the device: "cpu" where a card computes what they place there (`stand_in_for_cpu`).
        self.name = name or backend.name
        self.index = backend.index
        # Who places float64 on "cpu" has not chosen a device that lacks it: any number of elements is computed.
        self.bounds = {d: n for d, n in backend.bounds.items() if n < 0} if name else backend.bounds
        self.pending: list[weakref.ref[Owner]] = []
        # By id, the owners of values that are not pending (any more). One that is dead stays until
        # another takes its place in memory, or until there are many.
        self.settled: dict[int, weakref.ref[Owner]] = {}
        self.most_settled = 1024
        self.programs: OrderedDict[tuple[object, ...], Executable] = OrderedDict()
        # Those that have run since they were the oldest, by id, while there is little room: they stay once more.
        self.used: set[int] = set()
        # Some of them once more, by the keys of `signature`.
        self.single: dict[tuple[object, ...], weakref.ref[Executable]] = {}
        # What is known of graphs that are looked at with their calls not taken apart: small ones of one value, and
        # all where who records follows no scripts, and says so by `apart`.
        self.glances: dict[tuple[object, ...], Known] = {}
        self.apart = False
        self.counters = Counters()
        self.ahead = Ahead(backend, self.counters)
        self.churn = Churn(f"Programs on {backend.name}", _REMEDY)
        # By the keys of whole graphs, the parts in which they were computed.
        self.parted: dict[tuple[object, ...], KnownParts] = {}
        self.keys = 0
        # Graphs that are computed in parts, by structure.
        self.divided: dict[Any, Divided] = {}
        # By executable: the family it belongs to.
        self.families: dict[int, Family] = {}
        # Held while something is computed or a program is run; one thread at a time.
        self.lock = threading.RLock()
        # Held, for a moment, while owners get other values and while these are taken to be computed.
        # Who holds both has taken `lock` first.
        self.writing = threading.RLock()
        # How many threads (of one: how often) compute what they have taken.
        self.running = 0
        # What a thread captures: then it computes nothing.
        self.recording: Recording | None = None
        # What other processes send, and nothing has read yet.
        self.arriving: list[Arrival] = []
        # Values whose memory NumPy arrays see too.
        self.lent: dict[int, weakref.ref[Node]] = {}
        self.debug = debug_level()
        # How the backend computes the one value that is wanted, by itself; what does, once one has been computed.
        self.singles = backend.singles
        # By hashes of keys: how often graphs came that were computed without a program.
        self.sights: dict[int, int] = {}
        self.alone: Callable[..., Known | None] | None = None

    def add(self, owner: Owner) -> None:
        """Note that `owner` has a value that is not computed yet.

        What reads memory that a NumPy array sees is computed at once: nobody would know when the
        array is written.
        """
        recording = self.recording
        if recording is not None and recording.takes(owner):
            return
        pending = self.pending
        pending.append(weakref.ref(owner))
        ahead = self.ahead
        if len(pending) > ahead.bound and ahead.is_full(owner.node, len(pending)):
            ahead.full = True
            try:
                self.realize()
            finally:
                ahead.full = False
        elif self.lent and _reads_lent(owner.node):
            self.realize()

    def settle(self, owner: Owner) -> None:
        """Note an owner whose value is not pending, so that `known_owners` finds it."""
        self.settled[id(owner)] = weakref.ref(owner)
        if len(self.settled) > self.most_settled:
            self._forget_dead()
        recording = self.recording
        if recording is not None and recording.thread != threading.get_ident():
            recording.foreign.add(owner.node)

    @property
    def capturing(self) -> bool:
        """Whether the running thread captures on this device: then nothing may be computed."""
        recording = self.recording
        return recording is not None and recording.is_mine

    @property
    def overwritten(self) -> weakref.WeakKeyDictionary[Owner, Node]:
        """What owners held before the running thread's capture overwrote it."""
        recording = self.recording
        return _NONE if recording is None or not recording.is_mine else recording.overwritten

    def record(self, *, elsewhere: bool = False) -> Recording:
        """Compute what is pending, and begin a capture by the running thread."""
        self.receive()
        with self.lock:
            # Nothing is being computed now.
            self.realize()
            with self.writing:
                recording = self.recording = Recording(elsewhere=elsewhere)
                waiting = [o for r in self.pending if (o := r()) is not None]
                # What other threads have recorded since.
                recording.foreign.update([o.node for o in waiting if o.node.kind != "buffer"])
        return recording

    def stop_recording(self, keep: bool) -> None:
        """End a capture. `keep`: what it recorded is computed like any other work, or else nothing of
        it happened.
        """
        recording = self.recording
        if recording is None:
            return
        with self.writing:
            if keep:
                for written, node in recording.overwritten.items():
                    if node.shared:
                        # Another thread took the value meanwhile.
                        written.donor = None
            else:
                recording.restore()
            self.recording = None
            self.pending += recording.pending if keep else ()
            for reference in () if keep else recording.pending:
                owner = reference()
                if owner is not None:
                    self.settled[id(owner)] = reference

    def _forget_dead(self) -> None:
        for number, reference in self.settled.copy().items():
            if reference() is None:
                gone = self.settled.pop(number, None)
                if gone is not None and gone() is not None:
                    # Another thread has made an owner in the same place meanwhile.
                    self.settled.setdefault(number, gone)
        self.most_settled = max(1024, 2 * len(self.settled))

    def known_owners(self) -> list[Owner]:
        """Return every owner of a value of this device that exists."""
        with self.writing:
            recording = self.recording
            recorded = recording.pending if recording is not None else ()
            found = [*self.settled.copy().values(), *self.pending, *recorded]
        return list({id(o): o for r in found if (o := r()) is not None}.values())

    def _take(self) -> list[Taken]:
        """Return the values that are wanted and not computed, in the order they were recorded, and take
        all for settled.
        """
        settled, recording = self.settled, self.recording
        found: dict[int, Taken] = {}
        with self.writing:
            # Other threads go on recording: each call on the list is one step.
            pending = self.pending[:]
            del self.pending[: len(pending)]
            for reference in pending:
                owner = reference()
                if owner is None:
                    continue
                number = id(owner)
                settled[number] = reference
                node = owner.node if recording is None else recording.value_of(owner)
                if node.kind != "buffer" and number not in found:
                    found[number] = Taken(owner, node, owner.donor if node is owner.node else None)
                    if node is owner.node:
                        owner.donor = None
            self.running += 1
        if len(settled) > self.most_settled:
            self._forget_dead()
        return list(found.values())

    def lend(self, node: Node, seen: Callable[[], object]) -> None:
        """Note that NumPy arrays see the memory of `node`, for as long as `seen()` says so."""
        node.host = seen
        number, lent = id(node), self.lent
        lent[number] = weakref.ref(node, lambda _: lent.pop(number, None))

    def realize(self, wanted: Owner | None = None) -> None:
        """Compute everything that is pending on this device; where one value is `wanted` that does not stand on what
        other processes send, what stands on that stays pending. Raises CaptureError while a function is being captured
        that must not read.
        """
        recording = self.recording
        if recording is not None and recording.is_mine:
            if recording.stop is not None:
                recording.stop()
            if self.capturing:
                raise CaptureError(
                    "a captured function cannot read values: the program is recorded once and "
                    "replayed without Python, so nothing is "
                    "computed yet. Return the tensor and read it outside, or use webtorch.where "
                    "instead of a Python `if`."
                )
        # To enter a block with the lock takes twice as long.
        lock = self.lock
        lock.acquire()
        held: Sequence[weakref.ref[Owner]] = ()
        seen: Seen | None = None
        drop: Callable[[], None] | None = None
        try:
            if self.arriving:
                held, seen = self._receive(wanted)
                drop = None if seen is None else seen.drop
            if not self.pending and not self.apart:
                return
            few = len(self.pending) <= (_FEW if listener is None else listener.fewest)
            few = few and not _wants_programs() and (seen is None or seen.run is None)
            if few and recording is None and not self.lent and watch.listener is None:
                alone, known = self.alone, None
                if alone is not None and watch.before is None:
                    known = alone(self.pending, self.settled, self)
                if known is not None or (known := self._launch()) is not None:
                    # As `_count` does, without a frame.
                    counters, family = self.counters, known.family
                    counters.realized += 1
                    counters.hits += 1
                    self.churn.hits += 1
                    if family is not None:
                        family.in_a_row = 0
                    if (
                        active.count
                        or len(self.settled) > self.most_settled
                        or len(self.programs) > _MAX_PROGRAMS // 2
                    ):
                        self._tidy(known)
                    return
            self._compute_pending(few, seen)
        finally:
            if drop is not None:
                drop()
            if held:
                self.pending[:0] = held
            lock.release()

    def _compute_pending(self, few: bool, seen: Seen | None) -> None:
        """Compute all that is pending and can be computed. The caller holds the lock."""
        if self.apart:
            self.ahead.take(len(self.pending))
        taken = None if seen is None or seen.run is None else self._take_seen(seen)
        if taken is None:
            taken = self._take()
            if seen is not None and (seen.run is not None or not seen.is_of(taken)):
                seen = None
        try:
            if self.arriving and seen is None:
                taken = self._that_can_be(taken)
            if self.lent and len(self.lent) < _MAX_LENT_CHECKED:
                for number, r in self.lent.copy().items():
                    if (n := r()) is None or not is_seen(n):
                        self.lent.pop(number, None)
            if taken:
                self._compute(taken, few, seen)
        finally:
            self.running -= 1

    @property
    def reads_arriving(self) -> bool:
        """Whether something pending stands on what other processes send."""
        return bool(self.arriving) and bool(self._awaited())

    def _awaited(self) -> set[Node]:
        pending = [o.node for r in self.pending[:] if (o := r()) is not None]
        return arrivals.read(n for n in pending if n.kind != "arriving")

    def _receive(self, wanted: Owner | None) -> tuple[Sequence[weakref.ref[Owner]], Seen | None]:
        """Wait for what pending values stand on of other processes, unless one is `wanted` that does not. Return who is
        taken off the pending ones, as it waits for nothing but such a value or is not wanted; and what was seen of the
        others while there was nothing else to do. The caller holds the lock, which is free meanwhile.
        """
        seen = self._look()
        waits = seen is None or bool(seen.awaited())
        if waits and wanted is not None and (late := self._others(wanted)):
            return self._set_aside(late), None
        try:
            while True:
                awaited = self._awaited() if seen is None else seen.awaited()
                sent = arrivals.sent(self.arriving, awaited)
                if all(a.is_there for a in sent):
                    break
                if seen is not None:
                    seen = self._prepared(seen, sent)
                self.lock.release()
                try:
                    for arrival in sent:
                        arrival.wait()
                finally:
                    self.lock.acquire()
                if seen is not None:
                    # What others have recorded meanwhile is found when all is taken.
                    break
            arrivals.settle(self.arriving, awaited)
        except BaseException:
            if seen is not None and seen.drop is not None:
                seen.drop()
            raise
        return () if seen is not None and seen.run is not None else self._set_aside(None), seen

    @staticmethod
    def _prepared(seen: Seen, sent: Sequence[Arrival]) -> Seen:
        """Let the program that is known for what was seen be prepared, while what it reads is to come."""
        known, inputs = seen.known, seen.glance[1]
        executable = None if known is None else known.executable()
        if known is None or executable is None:
            return seen
        if known.order is not None:
            inputs = [inputs[n] for n in known.order]
        args = known.numbers(seen.glance[2])
        buffers = arrivals.places(sent, inputs)
        drop = None
        if executable.prepare is not None and not any(b is None for b in buffers):
            # What is wrong is told by the run.
            with contextlib.suppress(DeviceError, OutOfMemoryError):
                drop = executable.prepare(buffers, args)
        late = [(i, n) for i, n in enumerate(inputs) if n.kind != "buffer"]
        return seen._replace(run=Ready(executable, buffers, late, args), drop=drop)

    def _take_seen(self, seen: Seen) -> list[Taken] | None:
        """Take what was seen, whose run is prepared; None where others have recorded or computed something since."""
        with self.writing:
            pending, count = self.pending, len(seen.pending)
            if pending[:] != seen.pending or self.recording is not None:
                return None
            if any(t.owner.node is not t.node or t.owner.donor is not t.donor for t in seen.taken):
                return None
            for t in seen.taken:
                if t.donor is not None:
                    t.owner.donor = None
            del pending[:count]
            self.settled.update(seen.settled)
            for reference in seen.coming:
                late = reference()
                if late is not None and late.node.kind == "arriving":
                    pending.append(reference)
                elif late is not None:
                    self.settled[id(late)] = reference
            self.running += 1
        return [*seen.taken]

    def _set_aside(self, nodes: Collection[Node] | None) -> Sequence[weakref.ref[Owner]]:
        """Take those off the pending ones whose values are among these; None: are yet to come."""
        waiting = self.pending[:]
        # By owner: one that is sent again and again was noted each time.
        held: dict[int, weakref.ref[Owner]] = {}
        rest = []
        for r in waiting:
            owner = r()
            if owner is None:
                continue
            if owner.node.kind == "arriving" if nodes is None else owner.node in nodes:
                held.setdefault(id(owner), r)
            else:
                rest.append(r)
        if held:
            self.pending[: len(waiting)] = rest
        return [*held.values()]

    def _others(self, wanted: Owner) -> Collection[Node]:
        """Return the pending values that stand on what is yet to come, or none if `wanted` does. The others may be
        computed first: they leave the memory alone that these read.
        """
        if self.recording is not None or arrivals.waits(wanted.node):
            return ()
        owners = [o for r in self.pending[:] if (o := r()) is not None]
        late, data = arrivals.waiting([o.node for o in owners])
        with self.writing:
            for owner in owners:
                if owner.donor in data and owner.node not in late:
                    owner.donor = None
        return late

    def _look(self) -> Seen | None:
        """Look at what is pending before it can be computed; None where graphs are taken apart."""
        watched = watch.listener is not None or watch.before is not None
        if not self.apart or self.debug or watched or self.recording is not None:
            return None
        found: dict[int, Taken] = {}
        settled: dict[int, weakref.ref[Owner]] = {}
        coming: dict[int, weakref.ref[Owner]] = {}
        pending = self.pending[:]
        for reference in pending:
            owner = reference()
            if owner is None:
                continue
            if owner.node.kind == "arriving":
                coming.setdefault(id(owner), reference)
                continue
            settled[id(owner)] = reference
            if owner.node.kind != "buffer":
                found.setdefault(id(owner), Taken(owner, owner.node, owner.donor))
        taken = [*found.values()]
        seen = glance(taken) if taken else None
        if seen is None:
            return None
        return Seen(taken, seen, self.glances.get(seen[0]), pending, settled, [*coming.values()])

    def receive(self, node: Node | None = None) -> None:
        """Wait for a value that another process sends, or for all. Raises what kept it from coming."""
        if not self.arriving:
            return
        sent = self.arriving[:] if node is None else arrivals.sent(self.arriving, (node,))
        for arrival in sent:
            arrival.wait()
        found = [n for a in sent if a.reference is not None and (n := a.reference()) is not None]
        with self.lock:
            arrivals.settle(self.arriving, set(found))

    def _launch(self) -> Known | None:
        """Compute the one value that is wanted by the program that is known for others of its form. Return what is
        known of it, if there is one: what is read at once pays for no more than this.
        """
        pending = self.pending
        count = len(pending)
        wanted = pending[0] if count == 1 else _only(pending[:count])
        owner = None if wanted is None else wanted()
        if wanted is None or owner is None or self.debug or watch.before is not None:
            return self._launch_results()
        running = self.running
        # Whoever gives the owner another value from here on sees that it must be computed, too.
        self.running = running + 1
        try:
            node = owner.node
            form = node.form
            if form is None or node.kind == "buffer" or owner.donor is not None:
                return None
            known: Known | None
            key: Any = node.attrs[1] if node.kind == "call" else 0
            args: Sequence[Scalar] = node.scalars
            buffers = []
            given = node.srcs
            for s in given:
                if s.kind != "buffer":
                    seen = glance((owner,), _most())
                    if seen is None:
                        return None
                    key, inputs, args, _ = seen
                    buffers = [n.buffer for n in inputs]
                    known = self.glances.get(key)
                    break
                buffers.append(s.buffer)
            else:
                places = len(buffers)
                if places > 1 and (given[0] is given[1] if places == 2 else len({*given}) < places):
                    key = key, tuple([given.index(s) for s in given])
                if form.picks and node.line is not None:
                    code, instruction = node.line
                    key = key, code.co_filename, code.co_firstlineno, instruction
                known = form.programs.get(key)
                if known is None or known.runtime is not self:
                    # Values of one form may be on several devices.
                    return None
                if known.plan != b"" and known is not form.latest:
                    self._prepare(known, owner)
            if known is None:
                return None
            executable = known.executable()
            if executable is None:
                return None
            if known.order is not None:
                buffers = [buffers[n] for n in known.order]
            if known.args is not None:
                args = known.numbers(args)
            self.settled[id(owner)] = wanted
            # Nobody else takes from the list meanwhile, and what others add comes last.
            del pending[:count]
            try:
                node.become_buffer(executable.run(buffers, args)[0])
            except BaseException as error:
                if not isinstance(error, Exception):
                    # Stopped before it ran: the result is still wanted.
                    pending.insert(0, wanted)
                raise
        finally:
            self.running = running
        return known

    def _launch_results(self) -> Known | None:
        """Do the same where what is wanted are results of one call on data."""
        waiting = self.pending[:]
        owners = [owner for r in waiting if (owner := r()) is not None]
        if self.debug or watch.before is not None or len(owners) < 2:
            return None
        self.running += 1
        try:
            node = owners[0].node
            form, given = node.form, node.srcs
            if form is None or node.kind != "call":
                return None
            for s in given:
                if s.kind != "buffer":
                    return None
            for owner in owners:
                # Results of one call have one tuple of sources.
                other = owner.node
                if other.srcs is not given or other.form is not form or owner.donor is not None:
                    return None
            known: Known | None = form.programs.get(_key_of_call(owners, node, form, given))
            executable = None if known is None or known.runtime is not self else known.executable()
            if known is None or executable is None:
                return None
            buffers = [s.buffer for s in given]
            if known.order is not None:
                buffers = [buffers[n] for n in known.order]
            settled = self.settled
            for owner in owners:
                settled[id(owner)] = weakref.ref(owner)
            del self.pending[: len(waiting)]
            try:
                for owner, buffer in zip(owners, executable.run(buffers, known.args or ())):
                    owner.node.become_buffer(buffer)
            except BaseException as error:
                if not isinstance(error, Exception):
                    # Stopped on the way: the results are still wanted, and may be computed twice.
                    self.pending[:0] = waiting
                raise
        finally:
            self.running -= 1
        return known

    def _prepare(self, known: Known, owner: Owner) -> None:
        """Let the backend compute values like an owner's by itself from now on, where it can."""
        node, singles, executable = owner.node, self.singles, known.executable()
        form, given = node.form, node.srcs
        # Errors of some name the user's line.
        if form is None or singles is None or executable is None or form.picks:
            known.plan = b""
            return
        if known.plan is None:
            number = node.attrs[1] if node.kind == "call" else None
            same = [given.index(s) for s in given]
            known.plan = singles.plan(executable, node.kind, number, same, len(node.scalars), known)
        if known.plan:
            form.latest = known
            if self.alone is None:
                self.alone = singles.function(type(owner), Known)

    def _tidy(self, known: Known) -> None:
        """After a run of a known program, tell who listens, and drop what is known of the dead."""
        if len(self.programs) > _MAX_PROGRAMS // 2:
            self.used.add(id(known.executable()))
        if len(self.settled) > self.most_settled:
            self._forget_dead()
        if active.count and listener is not None:
            listener.ran(self, None, None)

    def _compute(self, taken: list[Taken], few: bool, seen: Seen | None) -> None:
        try:
            if watch.before is not None:
                # Who looks at what is computed sees every operation.
                freeze(taken)
                watch.before(self, [t.owner for t in taken])
            self._run(taken, few, seen)
        except Exception as error:
            if isinstance(error, OutOfMemoryError):
                error.before = {t.owner: t.donor for t in taken if t.donor is not None}
            # From here on each may be computed by itself, and nobody would see that another still
            # reads the memory that it would take.
            for t in taken:
                t.donor = None
            if isinstance(error, CHECKS):
                # What stands on a bad index gets what kernels give for it, in memory of its own. It was told once.
                with contextlib.suppress(*CHECKS):
                    self._run(taken)
                    self.backend.synchronize()
                raise
            # Without memory each would be compiled anew, and some would be written and others not.
            if not isinstance(error, OutOfMemoryError):
                self._run_apart(taken)
            raise
        except BaseException:
            # Stopped before it ran: the results are still wanted.
            self._give_back([t for t in taken if t.node.kind != "buffer"])
            raise

    def _give_back(self, taken: list[Taken]) -> None:
        """Let what was taken be pending again."""
        with self.writing:
            for t in taken:
                if t.owner.node is t.node:
                    t.owner.donor = t.donor
            self.pending[:0] = [weakref.ref(t.owner) for t in taken]

    def _that_can_be(self, taken: list[Taken]) -> list[Taken]:
        """Return what can be computed. The rest stands on what other threads have begun to receive since: it waits."""
        late, _ = arrivals.waiting([t.node for t in taken])
        if late:
            self._give_back([t for t in taken if t.node in late])
        return [t for t in taken if t.node not in late] if late else taken

    def _run_apart(self, owners: Sequence[Value]) -> None:
        """After a failure, compute what can be computed: one bad operation must not block
        everything else.

        What fails again stays as it is; reading it raises its error.
        """
        if len(owners) == 1:
            return
        for owner in owners:
            if owner.node.kind != "buffer":
                try:
                    self._run([owner])
                except Exception:
                    continue

    def flush(self) -> None:
        """Compute what is pending, at a point where that is useful but not needed (the end of an
        optimizer step).
        """
        if self.recording is None or not self.capturing:
            self.realize()

    def _run(self, owners: Sequence[Value], few: bool = False, found: Seen | None = None) -> None:
        """Compute values. `few`: what they stand on is little, as a rule. `found`: what was seen of them."""
        self.counters.realized += 1
        if found is not None and found.known is not None:
            self.apart = False
            if found.run is not None:
                self._run_ready(owners, found.run, found.known.family)
                return
            if self._run_known(owners, found.glance, found.known):
                return
        # Who listens is told the lines of these very nodes: graphs are not known by their form alone.
        quick = not self.debug and watch.listener is None
        if quick and not _wants_programs() and self._run_call(owners):
            if active.count and listener is not None:
                listener.ran(self, None, None)
            return
        apart, self.apart = self.apart, False
        seen = None
        if quick:
            if apart:
                seen = glance(owners) if found is None else found.glance
                if seen is not None and self._run_known(owners, seen, self.glances.get(seen[0])):
                    return
            elif few and len(owners) == 1 and owners[0].donor is None and owners[0].node.form:
                seen = glance(owners, _most())
        with not_collecting():
            frozen = freeze(owners)
            large = len(frozen.order) >= FEWEST and frozen.key not in self.programs
            parts = self._parts(frozen) if large else None
        if parts is not None:
            if seen is not None:
                self._keep(seen, Known(self, None, parts, seen[1], frozen, seen[3]))
            if parts.results:
                args = frozen.args if listener is None else list(map(_plain, frozen.args))
                self._run_known_parts(owners, parts, [n.buffer for n in frozen.inputs], args)
            else:
                self._run_in_parts(frozen, parts)
            return
        if quick and self._interpreted(frozen):
            return
        executable = self.program(frozen.key, frozen)
        if seen is not None:
            family = self.families.get(id(executable))
            self._keep(seen, Known(self, family, executable, seen[1], frozen, seen[3]))
        self._run_frozen(frozen, executable)

    def _interpreted(self, frozen: Frozen) -> bool:
        """Compute a graph without a program, if it has not come often and the backend can. Return whether it did."""
        interpret, order, key = self.backend.interpret, frozen.order, frozen.key
        if interpret is None or compiling.at_once or self.lent or key in self.programs:
            return False
        number = hash(key)
        times = self.sights.get(number, 0)
        if times >= _SIGHTS:
            return False
        form = family(order)
        if len(order) < _FEWEST_NODES:
            known = self.churn.known(form)
            if known is None or known.in_a_row < _IN_PARTS_FROM:
                return False
        outline = outline_of(order)
        buffers = interpret(order, [owner.node for owner in frozen.owners])
        if buffers is None:
            return False
        self.sights[number] = times + 1
        if len(self.sights) > _MAX_SIGHTS:
            del self.sights[next(iter(self.sights))]
        if not times:
            self.churn.met(form, outline)
        with whole:
            for owner, buffer in zip(frozen.owners, buffers, strict=True):
                owner.node.become_buffer(buffer)
                owner.donor = None
        if listener is not None:
            listener.ran(self, None, None)
        return True

    def _keep(self, seen: Glance, known: Known) -> None:
        """Keep what is known of graphs that look as one was seen."""
        if len(self.glances) >= _MAX_GLANCES:
            self.glances.pop(next(iter(self.glances)))
        self.glances[seen[0]] = known

    def _run_known(self, owners: Sequence[Value], seen: Glance, known: Known | None) -> bool:
        """Compute a graph whose calls need not be taken apart, because it is known. Return whether it is."""
        _, inputs, args, _ = seen
        if known is None:
            return False
        executable = known.executable()
        parts = None if known.parts is None else known.parts()
        if executable is None and (parts is None or not self._runs(parts)):
            return False
        buffers = [n.buffer for n in inputs]
        if known.order is not None:
            buffers = [buffers[i] for i in known.order]
        if executable is None:
            assert parts is not None
            self._run_known_parts(owners, parts, buffers, known.numbers(args))
            return True
        self._count(executable, known.family)
        self._write_run(owners, executable, buffers, known.numbers(args))
        if listener is not None:
            listener.ran(self, None, None)
        return True

    def _run_ready(self, owners: Sequence[Value], run: Ready, family: Family | None) -> None:
        """Compute a graph whose run is prepared, with what has come."""
        for place, node in run.late:
            run.buffers[place] = node.buffer
        self._count(run.executable, family)
        self._write_run(owners, run.executable, run.buffers, run.args)
        if listener is not None:
            listener.ran(self, None, None)

    def _runs(self, known: KnownParts) -> bool:
        """Whether a graph is still computed in these parts."""
        often = known.times.get(known.number, 0) >= _IN_PARTS_MOST
        return not self.lent and not often and known.is_there()

    def _run_known_parts(
        self, owners: Sequence[Value], known: KnownParts, values: list[Any], args: Sequence[Scalar]
    ) -> None:
        """Compute a graph in parts that are known. Its owners get their values at the end, as those of one program do:
        until then what they stand on stays in memory, and comes to lie at the same places each time.
        """
        known.times[known.number] = known.times.get(known.number, 0) + 1
        inputs, done = len(values), 0
        sent: Sent | None = None
        with whole:
            try:
                with self.backend.together() as sent:
                    for part, gone in known.parts:
                        executable = part.executable()
                        assert executable is not None
                        self._count(executable, None)
                        given = [values[i] for i in part.order or ()]
                        values += executable.run(given, part.numbers(args))
                        for i in gone:
                            values[i] = None
                        done += 1
            except BaseException:
                done = done if sent is None else min(done, sent.sent)
                self._settle_parts(owners, known.cut.parts[:done], values[inputs:])
                raise
            for owner, place in zip(owners, known.results, strict=True):
                owner.node.become_buffer(values[place])
                owner.donor = None
        self.ahead.divide(known.cut.varying)
        if listener is not None:
            listener.ran(self, None, None)

    @staticmethod
    def _settle_parts(owners: Sequence[Value], parts: Sequence[Part], values: list[Any]) -> None:
        """Note the values of the parts that had run when one failed: they may lie where others were."""
        order = freeze(owners).order
        made = iter(values)
        for part in parts:
            for node in [owners[n].node for n in part.owners] + [order[n] for n in part.nodes]:
                buffer = next(made)
                if buffer is not None:
                    node.become_buffer(buffer)
            for n in part.owners:
                owners[n].donor = None

    def _run_frozen(self, frozen: Frozen, executable: Executable) -> None:
        owners = frozen.owners
        started = time.perf_counter() if self.debug >= 4 else 0.0
        with whole:
            args = frozen.args if listener is None else list(map(_plain, frozen.args))
            if watch.listener is not None:
                watch.lines = [n.line for n in frozen.order]
            buffers = executable.run([n.buffer for n in frozen.inputs], args)
            for owner, buffer in zip(owners, buffers, strict=True):
                owner.node.become_buffer(buffer)
                owner.donor = None
        if listener is not None:
            listener.ran(self, frozen, executable)
        if self.debug >= 4:
            show_run(len(executable.program.steps), time.perf_counter() - started)

    def _parts(self, frozen: Frozen) -> KnownParts | None:
        """Return the parts in which a graph is computed that differs from those before it in sizes only; None if it is
        computed as a whole. What they run is known if it has been before.
        """
        found = self.parted.get(frozen.key)
        if found is not None and self._runs(found):
            return found
        form = family(frozen.order)
        known = self.churn.known(form)
        if known is None or self.lent:
            return None
        form = form, structure(frozen.order, frozen.owners)
        divided = self.divided.get(form)
        if divided is None:
            if known.in_a_row < _IN_PARTS_FROM:
                return None
            if len(self.divided) == _MAX_DIVIDED:
                self.divided.pop(next(iter(self.divided)))
            divided = self.divided[form] = Divided()
        number = hash(frozen.key)
        times = divided.times.get(number, 0)
        if times >= _IN_PARTS_MOST:
            return None
        if not divided.fits:
            outline = outline_of(frozen.order)
            before: Any = known.last
            divided.changing |= changed_sizes(before, outline)
            known.last = outline
            divided.cut = cut(frozen.order, frozen.owners, divided.changing)
            divided.fits = True
        if divided.cut is None:
            # As a whole. Of the next that is new in a row it is asked again.
            del self.divided[form]
            return None
        divided.times[number] = times + 1
        if len(divided.times) > _MAX_PROGRAMS:
            divided.times.pop(next(iter(divided.times)))
        self.keys += 0 if frozen.key in self.parted else len(frozen.key)
        while self.keys > _MAX_KEYS and self.parted:
            oldest = next(iter(self.parted))
            del self.parted[oldest]
            self.keys -= len(oldest)
        found = self.parted[frozen.key] = KnownParts(divided, divided.cut, number)
        return found

    def _run_in_parts(self, frozen: Frozen, found: KnownParts) -> None:
        """Compute a graph in parts, most of which are compiled already, and note them."""
        owners, count, places = frozen.owners, len(frozen.inputs), dict[Node, int]()
        place, at = {n: i for i, n in enumerate(frozen.inputs)}, 0
        for node in frozen.order:
            places[node] = at
            at += len(node.scalars)
        for n in found.cut.keeping:
            owners[n].donor = None
        work = [
            ([owners[n] for n in p.owners] + [Held(frozen.order[n]) for n in p.nodes], p.varying)
            for p in found.cut.parts
        ]
        parts = []
        # Values between parts go when the last that reads them is done.
        frozen.order.clear()
        with self.backend.together():
            while work:
                mine, varying = work.pop(0)
                with not_collecting():
                    part = freeze(mine)
                executable = self._found(part.key)
                if executable is None:
                    self.counters.misses += 1
                    # What should not have changed did, once all parts have been compiled.
                    found.divided.fits = varying and found.divided.fits
                    started = time.perf_counter()
                    executable = self._compiled(part.key, part, varying)
                    self._note(executable, time.perf_counter() - started, _PART)
                parts.append(Known(self, None, executable, place, part, places, part=True))
                place |= {r.node: n for n, r in enumerate(mine, count)}
                count += len(mine)
                self._run_frozen(part, executable)
        found.end(parts, place, len(frozen.inputs), owners)
        self.ahead.divide(found.cut.varying)
        if listener is not None:
            listener.ran(self, None, None)

    def _run_call(self, owners: Sequence[Value]) -> bool:
        """Compute the results of one call on data by a program of their own, with less work than a larger graph
        takes.
        """
        first = owners[0]
        node, donor = first.node, first.donor
        form, given = node.form, node.srcs
        called = node.kind == "call"
        if len(owners) > 1 and not called:
            return False
        if form is None:
            return self._run_single(first)
        for s in given:
            if s.kind != "buffer":
                return not called and self._run_single(first)
        for owner in owners[1:]:
            # Results of one call have one tuple of sources.
            other = owner.node
            if other.srcs is not given or other.form is not form or donor or owner.donor:
                return False
        key = _key_of_call(owners, node, form, given)
        if donor is not None:
            key = key, given.index(donor) if donor in given else -1, donor.dtype, donor.shape
            given = *given, donor
        known: Known | None = form.programs.get(key)
        executable = known.executable() if known is not None and known.runtime is self else None
        if known is None or executable is None:
            frozen = freeze(owners)
            if self._interpreted(frozen):
                return True
            known, executable = self._program_of_call(frozen, given, called)
            form.programs[key] = known
        else:
            self._count(executable, known.family)
        if known.order is None:
            buffers = [s.buffer for s in given]
        else:
            buffers = [given[n].buffer for n in known.order]
        args = node.scalars if known.args is None else known.args
        if donor is None and len(owners) == 1:
            node.become_buffer(executable.run(buffers, args)[0])
        else:
            self._write_run(owners, executable, buffers, args)
        return True

    def _program_of_call(
        self, frozen: Frozen, given: Sequence[Node], called: bool
    ) -> tuple[Known, Executable]:
        """Return the program of a call on data, and what others of its form are to know of it."""
        executable = self.program(frozen.key, frozen)
        places = {} if called else {frozen.owners[0].node: 0}
        family = self.families.get(id(executable))
        return Known(self, family, executable, given, frozen, places), executable

    def _run_single(self, owner: Value) -> bool:
        """Compute a value that is one operation on data or on views of data, and knows of no others like it."""
        found = signature(owner)
        if found is None:
            return False
        key, inputs, args = found
        known = self.single.get(key)
        executable = known() if known is not None else None
        if executable is None:
            frozen = freeze([owner])
            if self._interpreted(frozen):
                return True
            executable = self.program(frozen.key, frozen)
            self.single[key] = weakref.ref(executable)
        else:
            self._count(executable, self.families.get(id(executable)))
        buffers = [n.buffer for n in inputs]
        if owner.donor is None:
            owner.node.become_buffer(executable.run(buffers, args)[0])
        else:
            self._write_run([owner], executable, buffers, args)
        return True

    @staticmethod
    def _write_run(
        owners: Sequence[Value],
        executable: Executable,
        buffers: list[Any],
        args: Sequence[Scalar],
    ) -> None:
        """Run a program that may write into memory that it is given, which must not happen twice."""
        with whole:
            for owner, buffer in zip(owners, executable.run(buffers, args), strict=True):
                owner.node.become_buffer(buffer)
                owner.donor = None

    def caches(self) -> dict[str, dict[str, int]]:
        """Return the counters of this device's caches, by name."""
        return {"programs": self.churn.counts(len(self.programs)), **self.backend.caches()}

    def program(self, key: object, graph: Frozen | Graph, varying: bool = False) -> Executable:
        """Return the program of a graph from the cache, where `key` names it; else compile it.

        The sizes of a `varying` graph differ from one program to the next.
        """
        with self.lock:
            return self._program(key, graph, varying)

    def _program(self, key: object, graph: Frozen | Graph, varying: bool) -> Executable:
        executable = self._found(key)
        if executable is not None:
            return executable
        self.counters.misses += 1
        started = time.perf_counter()
        executable = self._compiled(key, graph, varying)
        nodes = graph.nodes if isinstance(graph, Graph) else graph.order
        form, outline = family(nodes), outline_of(nodes)
        if isinstance(graph, Frozen):
            # Who captured a graph says itself why.
            known = self.churn.known(form)
            before = None if known is None else known.last
            self._note(executable, time.perf_counter() - started, reason_for(before, outline))
        self.families[id(executable)] = self.churn.made(key, form, outline, difference)
        return executable

    def _note(self, executable: Executable, seconds: float, reason: str) -> None:
        """Log a compilation of a lazy run."""
        steps = len(executable.program.steps)
        entry = Compilation(
            "lazy runs", f"on {self.kind}", self.counters.misses, reason, steps, seconds
        )
        note(entry, self.debug > 0)

    def _found(self, key: Any) -> Executable | None:
        """Return the program that `key` names in the cache."""
        executable = self.programs.get(key)
        if executable is not None:
            self._count(executable, self.families.get(id(executable)))
        return executable

    def _count(self, executable: Executable, family: Family | None) -> None:
        """Count that a program was found."""
        self.counters.hits += 1
        self.churn.found(family)
        if len(self.programs) > _MAX_PROGRAMS // 2:
            self.used.add(id(executable))

    def _drop(self) -> None:
        """Drop the oldest program that has not run since it came to be that."""
        while True:
            key, old = self.programs.popitem(last=False)
            if id(old) not in self.used:
                break
            self.used.remove(id(old))
            self.programs[key] = old
        self.families.pop(id(old), None)
        self.churn.dropped(key)

    def _compiled(self, key: Any, graph: Frozen | Graph, varying: bool) -> Executable:
        """Compile the program of a graph and keep it."""
        started = time.perf_counter()
        form = graph if isinstance(graph, Graph) else to_graph(graph)
        executable = self._made_ready(form, started, varying)
        if self.debug:
            show_program(
                executable.program, self.backend, time.perf_counter() - started, self.debug
            )
        if watch.listener is not None:
            where = self.kind if self.kind == "cpu" else f"{self.kind}:{self.index}"
            watch.listener.compiled(executable.program, where, started, time.perf_counter())
        self.programs[key] = executable
        if len(self.programs) > _MAX_PROGRAMS:
            self.single.clear()
            self.used.add(id(executable))
            self._drop()
        return executable

    def foresee(self, graph: Graph) -> None:
        """Note what varying graph will be compiled some day, or another of its form: what they have in
        common is then compiled once.
        """
        limits = replace(self.backend.limits, varying=True)
        self.backend.foresee(compile_graph(graph, limits))

    def _made_ready(self, graph: Graph, started: float, varying: bool) -> Executable:
        """Compile a graph, or take its program from disk."""
        backend = self.backend
        shown = show_pass if self.debug >= 3 else None
        if varying:
            limits = replace(backend.limits, varying=True)
            return backend.compile(compile_graph(graph, limits, shown), varying=True)
        key = kept.key_of(graph, backend) if shown is None else None
        if shown is not None:
            return backend.compile(compile_graph(graph, backend.limits, shown))
        found = None if key is None else kept.load(key)
        if found is not None:
            backend.put_kept(found.program, found.rendered)
            return backend.compile(kept.with_lines(found.program, graph))
        program = compile_graph(kept.numbered(graph), backend.limits)
        executable = backend.compile(kept.with_lines(program, graph))
        if key is not None and time.perf_counter() - started >= kept.WORTH:
            kept.store(key, program, backend.kept_form(program))
        return executable


def _plain(number: Scalar) -> Scalar:
    """Return a number without what it remembers: that it is computed with decides nothing."""
    if isinstance(number, float):
        return float.__float__(number)
    return number if type(number) is bool else int.__int__(number)


class Listener(Protocol):
    """Who is told of what is computed."""

    # How many nodes a graph has, at least, that it wants to know of while it looks at no calls.
    fewest: int

    def wants_programs(self) -> bool:
        """Whether a read of one call is to be a program like others."""

    def ran(self, runtime: Runtime, frozen: Frozen | None, executable: Executable | None) -> None:
        """Take notice that pending work was computed: by one program, or otherwise (None)."""


listener: Listener | None = None
_RUNTIMES: dict[tuple[str, int, str], Runtime] = {}
_LOCK = threading.Lock()


def runtime_for(kind: str, index: int, name: str = "") -> Runtime:
    """Return the runtime of a device, opening the device on first use. Raises DeviceError.

    name: what programs call the device, if not by its kind. Two runtimes of a device compute one at a time.
    """
    found = _RUNTIMES.get((kind, index, name or kind))
    if found is None:
        with _LOCK:
            found = _RUNTIMES.get((kind, index, name or kind))
            if found is None:
                found = Runtime(get_backend(kind, index), name)
                others = [r for r in _RUNTIMES.values() if r.backend is found.backend]
                if others:
                    found.lock = others[0].lock
                _RUNTIMES[kind, index, name or kind] = found
    return found


def open_runtimes() -> list[Runtime]:
    """Return the runtimes that are in use."""
    return list(_RUNTIMES.values())


def runtime_named(device: str) -> Runtime | None:
    """Return the open runtime of a device such as "cpu" or "webgpu:0"."""
    for runtime in open_runtimes():
        if device in (runtime.kind, f"{runtime.kind}:{runtime.index}"):
            return runtime
    return None
