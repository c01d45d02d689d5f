"""Storages: what tensors and their views share. A storage's value is a graph node, computed or not.
Floor 4.
"""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from threading import get_ident
from typing import Any
from weakref import WeakKeyDictionary

from webtorch.ir.dtype import DType
from webtorch.ir.graph import Node
from webtorch.ir.view import numel
from webtorch.ops.primitive import IDENTITY
from webtorch.ops.purity import look
from webtorch.runtime.realize import Runtime, is_seen, open_runtimes
from webtorch.runtime.recording import Recording
from webtorch.tensors.modes import note_made, transforms


class Counter:
    """Counts the writes to tensors that keep their own count."""

    __slots__ = ("version",)

    def __init__(self, version: int = 0) -> None:
        self.version = version


class Left(Counter):
    """The count of a storage that a tensor has left. What still lies there, or was saved, counts with it; the memory is
    not held for it.
    """

    __slots__ = ("home", "last")

    def __init__(self, home: Storage) -> None:
        self.home = weakref.ref(home)
        self.last = home.version

    @property
    def version(self) -> int:
        """How often it was written."""
        home = self.home()
        if home is not None:
            self.last = home.version
        return self.last

    @version.setter
    def version(self, count: int) -> None:
        """Set the count, also where it is kept for several."""
        self.last, home = count, self.home()
        if home is not None:
            home.version = count


class Kept:
    """Buffers that were found in storages, to be taken again without looking; None once they may be others."""

    __slots__ = ("__weakref__", "buffers", "since")

    def __init__(self) -> None:
        self.buffers: list[Any] | None = None
        self.since: object = None

    def keep(self, buffers: list[object], since: object) -> None:
        """Keep what was found in storages after `since` was what `writes.latest` is."""
        self.buffers, self.since = buffers, since
        writes.kept.append(weakref.ref(self))


class _Writes:
    """Notes when a storage that exists gets another value, so that nothing kept is stale or lives longer."""

    __slots__ = ("guard", "kept", "latest")

    def __init__(self) -> None:
        # Another object after each write: threads may lose a count.
        self.latest = object()
        self.kept: list[weakref.ref[Kept]] = []
        # Who must know before a storage is written, while tensors are promised (`webtorch.scripts`).
        self.guard: Callable[[Storage], None] | None = None

    def note(self) -> None:
        """Tell who keeps buffers. To be called after the value has changed."""
        self.latest = object()
        if self.kept:
            kept, self.kept = self.kept, []
            for reference in kept:
                found = reference()
                if found is not None:
                    found.buffers = None


writes = _Writes()


class _Promised:
    """Stands among the holders of a value for a storage that is about to hold it, so that nobody takes
    its memory before.
    """

    __slots__ = ("node",)

    def __init__(self, node: Node) -> None:
        self.node = node

    def __call__(self) -> _Promised:
        return self


_new = object.__new__
_reference = weakref.ref
# Values that storages had when they were cloned without a copy.
_lazy: WeakKeyDictionary[Storage, Node] = WeakKeyDictionary()


def _may_hold(holder: Storage | _Promised, node: Node) -> bool:
    """Whether a storage holds a value, or did before a script was to write it: it is not looked at for that."""
    found = holder.node if type(holder) is _Promised else held(holder)  # type: ignore[arg-type]
    return found is None or found is node


def held(storage: Storage) -> Node | None:
    """Return the value of a storage, which is not looked at for that; None while a script promises another one."""
    try:
        return _node_of(storage)
    except AttributeError:
        resting = storage.resting
        return None if resting is None else resting[0]


def is_lazily_cloned(storage: Storage) -> bool:
    """Whether a storage has the value that it had when it was cloned without a copy."""
    return storage in _lazy and _lazy[storage] is storage.node


class Storage:
    """Flat memory of one device and element type. Writing replaces the value; the version counts
    writes.
    """

    __slots__ = (
        "__weakref__", "donor", "dtype", "elements", "node", "notes", "resting", "runtime", "version",
    )  # fmt: skip
    # What programs have set on objects that show the memory; only then there is such.
    notes: dict[str, object]

    def __init__(
        self, node: Node, runtime: Runtime, elements: int | None = None, aside: bool = False
    ) -> None:
        """`elements`: how many `node` has, where the caller knows. `aside`: nobody is kept from writing it in place."""
        self.node = node
        self.runtime = runtime
        self.dtype: DType = node.dtype
        self.elements = numel(node.shape) if elements is None else elements
        self.version = 0
        # The computed value that a pending one will replace: its memory may be written in place.
        self.donor: Node | None = None
        # Where a script keeps the value and the count while nobody looks at them (`webtorch.scripts.resting`).
        self.resting: Any = None
        if node.shared and not aside:
            self._join(node)
        if transforms.count:
            note_made(self)
        if node.kind != "buffer":
            runtime.add(self)
        else:
            runtime.settle(self)

    @classmethod
    def waiting(cls, node: Node, runtime: Runtime, elements: int) -> Storage:
        """Return the storage of a value that was recorded just now, with less work."""
        self = _new(cls)
        self.node, self.runtime, self.dtype, self.elements = node, runtime, node.dtype, elements
        self.version, self.donor, self.resting = 0, None, None
        if transforms.count:
            note_made(self)
        pending = runtime.pending
        if runtime.recording is None and not runtime.lent and len(pending) < runtime.ahead.bound:
            pending.append(_reference(self))
        else:
            runtime.add(self)
        return self

    @classmethod
    def unowned(cls, node: Node, runtime: Runtime) -> Storage:
        """Return one of a value that only what is recorded next reads: whenever pending work is computed, it is a part
        of what reads it, and has no memory of its own.
        """
        self = _new(cls)
        self.node, self.runtime, self.dtype, self.elements = (
            node,
            runtime,
            node.dtype,
            numel(node.shape),
        )
        self.version, self.donor, self.resting = 0, None, None
        return self

    @classmethod
    def promised(cls, like: Storage) -> Storage:
        """Return a storage of the form of another one, which has no value yet."""
        self = _new(cls)
        self.runtime, self.dtype, self.elements = like.runtime, like.dtype, like.elements
        self.version, self.donor, self.resting = 0, None, None
        return self

    def _join(self, node: Node) -> None:
        """Note that this storage holds a value that others hold too."""
        with self.runtime.writing:
            holders = node.shared
            if isinstance(holders, list):
                if len(holders) & (len(holders) - 1) == 0:
                    holders[:] = [r for r in holders if (s := r()) is not None and s.node is node]
                holders.append(weakref.ref(self))
                for promised in holders:
                    if type(promised) is _Promised:
                        holders.remove(promised)
                        break

    def shares(self, node: Node) -> bool:
        """Whether something else holds a value of this storage."""
        holders = node.shared
        if isinstance(holders, bool):
            return holders
        return any((s := r()) is not None and s is not self and _may_hold(s, node) for r in holders)

    def replace(self, node: Node) -> None:
        """Give the storage a new value, as an in-place operation does."""
        if writes.guard is not None:
            writes.guard(self)
        runtime = self.runtime
        old = self.node
        if old.kind == "buffer" and old.host is not None and is_seen(old) and not runtime.capturing:
            self._write_through(old, node)
            self.version += 1
            return
        with runtime.writing:
            recording = runtime.recording
            if recording is not None:
                node = self._recorded(recording, node)
            old = self.node
            is_new = old.kind == "buffer"
            if is_new:
                self.donor = None if self.shares(old) else old
            if recording is None or self not in recording.public or recording.is_mine:
                self.node = node
                if node.shared:
                    self._join(node)
                if node.kind == "buffer":
                    self.donor = None
            # What is being computed holds this storage's old value and knows nothing of the new one: that is asked
            # after it is there. What reads memory that NumPy writes is computed now.
            waits = is_new or runtime.running or runtime.lent
            self.version += 1
        if waits or recording is not None:
            runtime.add(self)
        writes.note()

    def _recorded(self, recording: Recording, node: Node) -> Node:
        """Tell a capture that this storage gets another value, which is returned as the running thread
        sees it.
        """
        if recording.is_mine:
            recording.overwrite(self, self.node, node)
        elif recording.thread != get_ident():
            node = recording.apart(node)
            if self in recording.public:
                recording.public[self] = node
            else:
                recording.before.setdefault(self, self.node)
        return node

    def _give(self, node: Node) -> None:
        """Give the storage a value that needs nothing of the old one."""
        if writes.guard is not None:
            writes.guard(self)
        with self.runtime.writing:
            recording = self.runtime.recording
            if recording is not None:
                node = self._recorded(recording, node)
            if recording is None or self not in recording.public or recording.is_mine:
                self.node, self.donor = node, None

    def take_back(self, node: Node, version: int) -> None:
        """Hold a value of before again, as if nothing had been written since."""
        with self.runtime.writing:
            self.node, self.donor, self.version = node, None, version
            if node.shared:
                self._join(node)
        if node.kind == "buffer":
            self.runtime.settle(self)
        else:
            self.runtime.add(self)

    def _write_through(self, home: Node, node: Node) -> None:
        """Compute a new value now, into the memory `home` that NumPy arrays see too."""
        # Another storage that takes this value as well must not end up in this memory.
        self.donor = None if self.shares(node) or not home.buffer.writable else home
        self.node = node
        try:
            self.runtime.add(self)
            self.realize()
        except BaseException:
            self.node, self.donor = home, None
            raise
        self.settle(home, self.node)

    def settle(self, home: Node, node: Node) -> None:
        """Take the computed value `node` where `home` was: in the same memory, if NumPy sees it."""
        if home.host is not None and is_seen(home) and home.buffer.writable:
            if node.buffer is not home.buffer:
                home.buffer.array[...] = node.buffer.array
            node = home
        self._give(node)
        if node is not home and node.shared:
            self._join(node)
        writes.note()

    def share(self) -> Node:
        """Return the value for a second storage to hold; the memory stays until one is written."""
        node = self._now()
        seen = node.host is not None and is_seen(node)
        # What NumPy writes must not reach the second, and each run of a program has values of its own.
        recording = self.runtime.recording
        if seen or (recording is not None and node.kind == "buffer" and recording.is_mine):
            return Node(
                "map", (node,), (IDENTITY, "t", node.dtype.compute), (), node.shape, node.dtype
            )
        with self.runtime.writing:
            if self._now() is not node:
                # Another thread has written it meanwhile.
                return self.share()
            if not node.shared:
                node.shared = [weakref.ref(self)]
            if isinstance(node.shared, list):
                node.shared.append(_Promised(node))
        return node

    def clone_lazily(self) -> Storage:
        """Return a storage with the same value, whose memory is shared until one of the two is written."""
        node = self.realize()
        clone = Storage(self.share(), self.runtime)
        _lazy[self] = _lazy[clone] = node
        return clone

    def _copied(self, memo: dict[Any, Any]) -> Storage:
        """Return the copy of a `deepcopy`: what shares this memory shares that of its copies."""
        copies: dict[Storage, Storage] = memo.setdefault("torch", {})
        if self not in copies:
            copies[self] = Storage(self.share(), self.runtime)
        return copies[self]

    def own(self) -> Node:
        """Return the value as a buffer node of memory that no other storage holds."""
        runtime = self.runtime
        with runtime.lock:
            while True:
                node = self.realize()
                with runtime.writing:
                    if self._now() is not node:
                        # Another thread has written it meanwhile.
                        continue
                    if not self.shares(node):
                        return node
                    attrs = (IDENTITY, "t", node.dtype.compute)
                    self._give(Node("map", (node,), attrs, (), node.shape, node.dtype))
                runtime.add(self)
                writes.note()

    def lend(self) -> Any:
        """Return the memory as a flat NumPy array that sees every write to it. CPU only.

        From now on, and for as long as an array sees the memory, operations on this storage are
        computed when they are called.
        """
        runtime = self.runtime
        with runtime.lock:
            # What is pending must not see what the array's holder writes.
            runtime.realize()
            node = self.own()
            backend: Any = runtime.backend
            array, seen = backend.lend(node.buffer, node.host)
            # Arrays of before may be gone.
            if not is_seen(node):
                runtime.lend(node, seen)
        return array

    def grow(self, node: Node) -> None:
        """Take a larger value, as resize_ does. Raises RuntimeError while NumPy sees the memory."""
        if self.node.host is not None and is_seen(self.node):
            raise RuntimeError("Trying to resize storage that is not resizable")
        if self.elements:
            # Tensors that were all of it are a part of it now. It does not know them, and nothing else
            # is worth that it should: they are looked for. (Empty ones are written nowhere.)
            for holder in gc.get_referrers(self):
                if hasattr(type(holder), "_whole") and holder._storage is self:
                    holder._whole = False
        self._give(node)
        self.elements = numel(node.shape)
        self.runtime.add(self)
        self.version += 1
        writes.note()

    def realize(self) -> Node:
        """Return the value as a buffer node, computing everything pending on the device if needed, but for what waits
        for other processes where this does not.
        """
        look.looked = True
        runtime = self.runtime
        node = self._now()
        while node.kind != "buffer":
            runtime.realize(self)
            if node.kind != "buffer":
                # An earlier attempt failed and left it out, and raises its error here. Or another thread
                # has written the storage since, and nobody else wants the value of before.
                node = self._now()
                if node.kind == "arriving":
                    runtime.receive(node)
                elif node.kind != "buffer":
                    runtime.add(self)
                    runtime.realize()
        return node

    def _now(self) -> Node:
        """Return what the storage holds for the running thread."""
        recording = self.runtime.recording
        return self.node if recording is None else recording.value_of(self)

    @staticmethod
    def live(runtime: Runtime | None = None) -> list[Storage]:
        """Return every storage that exists on one device, or on all. For captures and reports."""
        runtimes = open_runtimes() if runtime is None else [runtime]
        return [o for r in runtimes for o in r.known_owners() if isinstance(o, Storage)]

    @property
    def nbytes(self) -> int:
        """Size in bytes, as PyTorch counts it."""
        return self.elements * self.dtype.itemsize


class Refilled(Storage):
    """A storage whose value goes and comes again, such as that of a parameter which processes gather when they need it.

    Neither is a write: what was saved of it for the backward pass finds the value that is there then.
    """

    __slots__ = ()

    def fill(self, node: Node) -> None:
        """Hold a value."""
        with self.runtime.writing:
            self.node, self.donor = node, None
        self.runtime.add(self)

    def empty(self) -> None:
        """Let go of the value. Whoever reads it from now on gets RuntimeError."""
        runtime = self.runtime
        # Not while another thread that computes goes through what is pending.
        with runtime.lock, runtime.writing:
            if held(self) is not None:
                del self.node
            # Nobody who goes through all owners of values meets it. A value that is not computed yet is now a part of
            # what reads it.
            runtime.pending[:] = [r for r in runtime.pending if r() is not self]
            runtime.settled.pop(id(self), None)

    def __getattr__(self, name: str) -> Any:
        """Raise RuntimeError for the value that is gone."""
        if name == "node":
            raise RuntimeError(
                f"this tensor of {self.elements} {self.dtype} elements holds no memory: it is a parameter of a module "
                "under fully_shard, which is gathered for the module's forward and backward alone. Call "
                "module.unshard() first, or use the sharded parameter, which the module has now."
            )
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")


class Following(Storage):
    """A storage with the value that a tensor which is a whole one has at the time, until it is written itself."""

    __slots__ = ("of",)

    def __init__(self, of: Callable[[], Any]) -> None:
        """`of` returns the tensor."""
        like = of()._storage
        self.of, self.runtime = of, like.runtime
        self.dtype, self.elements = like.dtype, like.elements
        self.version, self.donor, self.resting = 0, None, None

    def __getattr__(self, name: str) -> Any:
        """Return the tensor's value."""
        if name == "node":
            return self.of()._storage._now()
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")


# Past `__getattr__`, which ends what a script has promised.
_node_of: Callable[[Storage], Node] = vars(Storage)["node"].__get__
