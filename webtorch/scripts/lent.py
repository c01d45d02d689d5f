"""Tensors on memory that a NumPy array sees stand in scripts as copies, which are made at the call.

What is done with such memory is computed when it is called, since whoever has the array may write it then, and what was
computed stands in no script. A copy is as good where a call neither gives a tensor on that memory nor writes it. It is
the same one for as long as what it is of does not change.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable

from webtorch.dispatch.call import Args, Callee, Kwargs
from webtorch.ir.graph import Node
from webtorch.ir.view import is_contiguous, numel
from webtorch.runtime.realize import is_seen
from webtorch.scripts.changes import history_of, tensors_in
from webtorch.tensors.base import TensorBase
from webtorch.tensors.creation import from_contents
from webtorch.tensors.storage import Storage, held
from webtorch.tensors.tensor import Tensor

# How many bytes are copied at most, and of how many tensors copies are kept.
_MOST_BYTES = 1 << 20
_MOST = 64

# Past `__getattr__`, which ends what a script has promised.
_storage_of: Callable[[Tensor], Storage] = vars(TensorBase)["_storage"].__get__


class Copy:
    """The copy of a tensor, and what that was like. It holds the memory, which a graph would hold as well."""

    def __init__(self, t: Tensor, contents: bytes) -> None:
        self.of = weakref.ref(t)
        self.form = t._shape, t.dtype
        self.place = t._storage, int(t._offset), numel(t._shape)
        self.counter, self.version = t._counter, t._counter.version
        self.contents = contents
        self.tensor = from_contents(contents, t._shape, t.dtype, t._storage.runtime)

    def is_good(self, t: object, contents: bytes) -> bool:
        """Whether a tensor is what it is a copy of, and as it was."""
        return self.of() is t and self.contents == contents and self.version == self.counter.version

    def now(self) -> bytes:
        """Return what is there now."""
        return _read(*self.place)

    def renew(self) -> None:
        """Let those who hold the copy see what is there now, and how often it was written."""
        contents, (shape, dtype) = self.now(), self.form
        storage = self.tensor._storage
        storage.node = from_contents(contents, shape, dtype, storage.runtime)._storage.node
        storage.version += self.counter.version - self.version


class Copies:
    """The copies of one thread, by the ids of what they are of."""

    def __init__(self) -> None:
        self.known: dict[int, Copy] = {}
        # Those of before that a graph may have saved.
        self.older: list[Copy] = []
        # Calls that have given a tensor on the memory, or written it.
        self.others: set[tuple[Callee, object]] = set()

    def stand_in(
        self, callee: Callee, args: Args, kwargs: Kwargs
    ) -> tuple[Args, Kwargs, list[tuple[Storage, Node]]] | None:
        """Return the arguments of a call with copies among them, and where these lie; None where there are none."""
        seen = {
            id(t): contents
            for t in tensors_in((*args, *kwargs.values()))
            if (contents := _contents(t)) is not None
        }
        if not seen or (callee.writes and id(args[0]) in seen):
            return None
        found: list[tuple[Storage, Node]] = []

        def copied(value: object) -> object:
            """Return a value with copies in place of tensors."""
            if type(value) is tuple or type(value) is list:
                return type(value)([copied(v) for v in value])
            contents = seen.get(id(value))
            if contents is None or not isinstance(value, Tensor):
                return value
            known = self.known.get(id(value))
            if known is None or not known.is_good(value, contents):
                if len(self.known) + len(self.older) >= _MOST:
                    return value
                if known is not None:
                    self.older.append(known)
                known = self.known[id(value)] = Copy(value, contents)
            storage = known.tensor._storage
            found.append((storage, storage.node))
            return known.tensor

        given, named = tuple(map(copied, args)), {n: copied(v) for n, v in kwargs.items()}
        return (given, named, found) if found else None

    def changed(self) -> list[Copy]:
        """Return the copies of what is another one now."""
        return [
            c
            for c in (*self.known.values(), *self.older)
            if c.counter.version != c.version or c.now() != c.contents
        ]

    def renew(self, copies: list[Copy]) -> None:
        """Let those who hold copies see what there is now."""
        for c in copies:
            c.renew()
        self.older = []
        self.known = {i: c for i, c in self.known.items() if c not in copies}

    def forget_dead(self) -> None:
        """Hold no memory of tensors that nobody has any more."""
        self.older = []
        self.known = {i: c for i, c in self.known.items() if c.of() is not None}


def is_touched(out: object, copies: list[tuple[Storage, Node]]) -> bool:
    """Whether a call has given a tensor on the memory of one of some copies, or has written it."""
    homes = {storage for storage, _ in copies}
    return any(held(storage) is not node for storage, node in copies) or any(
        _home(t) in homes for t in tensors_in((out,))
    )


def _home(t: Tensor) -> Storage | None:
    """Return the storage of a tensor, None of one that is promised."""
    try:
        return _storage_of(t)
    except AttributeError:
        return None


def _contents(t: Tensor) -> bytes | None:
    """Return what is in the memory of a tensor that NumPy sees; None of any other, and where it is too much."""
    storage = _home(t)
    node = None if storage is None else held(storage)
    if (
        storage is None
        or node is None
        or node.host is None
        or node.kind != "buffer"
        or not is_seen(node)
        or type(t) is not Tensor
        or t._requires_grad
        or t._levels
        # Other elements than those of the memory: two numbers for each complex one, and views as another type.
        or t.dtype is not storage.dtype
        or history_of(t) is not None
        or not is_contiguous(t._shape, t._strides)
    ):
        return None
    count = numel(t._shape)
    if count * t.dtype.itemsize > _MOST_BYTES:
        return None
    return _read(storage, int(t._offset), count)


def _read(storage: Storage, start: int, count: int) -> bytes:
    array = storage.node.buffer.array.reshape(-1)
    contents: bytes = array[start : start + count].tobytes()
    return contents
