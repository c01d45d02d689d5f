"""Collectives of processes on one host: each puts its tensor into memory that all share, and computes its result from
what the others have put. Floor 5.

A device that reads and writes the host's memory (a card under Dawn, the CPU engine) needs no thread of the host for
that: a card copies 100 MB in 2.5 ms each way, where Gloo and copies by the processor take 45. What each says of a call
lies in memory that all read, too; who waits for it looks whether the others still run.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import mmap
import os
import secrets
import threading
import time
from array import array
from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeAlias

from webtorch.distributed.engine import Foreign, engine
from webtorch.errors import OutOfMemoryError
from webtorch.functions.joining import cat
from webtorch.ir.dtype import DType, Scalar, bfloat16, float16, float32
from webtorch.ir.graph import Node
from webtorch.lower.compiler import compile_graph
from webtorch.ops.primitive import IDENTITY, cast_to, copy, pad_with
from webtorch.runtime.backend import Backend, Buffer, Executable, Shared
from webtorch.runtime.frozen import freeze, to_graph
from webtorch.runtime.meta import formulas, meta_runtime
from webtorch.runtime.parts import Held
from webtorch.tensors.modes import no_grad
from webtorch.tensors.tensor import Tensor

# Types whose bytes are the same on every device.
TYPES = (float32, float16, bfloat16)
# The size of a tensor, in bytes: of smaller ones Gloo is as fast, and more memory than this is not kept for ever.
LEAST, MOST = 1 << 14, 256 << 20
# So many calls may be under way here that this process has not read to the end, and so many bytes from two on.
_MOST_UNREAD, _UNREAD_BYTES = 8, 128 << 20
# Memory that calls take before their turn has come: in the order in which the caller computes.
_MOST_AHEAD = 1 << 30
# From this size on each of many processes adds up a part, and reads the others' sums: with N of them it reads two times
# all, not N times.
_IN_PARTS = 1 << 20
_UNIT = 1 << 16
# Where what is said of calls lies, in words of eight bytes: behind the token, one place a call. Who begins a call has
# read what all said of those `_MOST_UNREAD` before it, so that none is two times that behind.
_FIRST_WORD, _WORDS, _SAID, _HEADER = 64, 16, 64, 7
# Seconds between looks at whether the others run, at most between looks at their memory, and without a group's timeout.
_LOOK, _PAUSE, _TIMEOUT = 0.05, 0.001, 1800.0
# Programs that are kept: sizes may change with each call.
_MOST_PROGRAMS = 256

# A group of Gloo's.
Group: TypeAlias = Foreign
# From what all have put, by rank, and the rank: a result.
Recipe = Callable[[Sequence[Tensor], int], Tensor]


def _wide(x: Tensor) -> Tensor:
    return x if x.dtype is float32 else cast_to(x, float32)


def _sum(values: Sequence[Tensor], rank: int) -> Tensor:
    # In the order of ranks, so that all find the same.
    total = functools.reduce(lambda a, b: a + b, map(_wide, values))
    return cast_to(total, values[0].dtype)


def _mean(values: Sequence[Tensor], rank: int) -> Tensor:
    total = functools.reduce(lambda a, b: a + b, map(_wide, values))
    return cast_to(total / len(values), values[0].dtype)


def _own_part(reduce: Recipe) -> Recipe:
    def part(values: Sequence[Tensor], rank: int) -> Tensor:
        """Return the rank's part of the reduced tensors."""
        size = part_size(values[0].numel(), len(values))
        missing = size * len(values) - values[0].numel()
        whole = [pad_with(x, (0,), (missing,), 0) if missing else x for x in values]
        return reduce([x[rank * size : (rank + 1) * size] for x in whole], rank)

    return part


def part_size(elements: int, ranks: int) -> int:
    """Return how many elements of a sum each process computes, the last ones of which may be none."""
    return -(-elements // ranks)


@functools.lru_cache(_MOST_PROGRAMS)
def _joined(elements: int) -> Recipe:
    return lambda values, rank: cat(values)[:elements]


def _all(values: Sequence[Tensor], rank: int) -> Tensor:
    return cat(values)


# Sums that are not those of parts, by those of a part.
_SUM_OF_PART, _MEAN_OF_PART = _own_part(_sum), _own_part(_mean)
_OF_PART: dict[Recipe, Recipe] = {_sum: _SUM_OF_PART, _mean: _MEAN_OF_PART}


@functools.cache
def _of(root: int) -> Recipe:
    return lambda values, rank: values[root]


def recipe_for(
    name: str, reduction: str | None, root: int, dtype: DType, elements: int
) -> Recipe | None:
    """Return what a collective of a tensor computes, by its name and that of its reduction; None where it does not go
    through shared memory.
    """
    if dtype not in TYPES or not LEAST <= elements * dtype.itemsize <= MOST:
        return None
    return _of(root) if name == "broadcast_" else _RECIPES.get((name, reduction))


_RECIPES: dict[tuple[str, str | None], Recipe] = {
    ("allreduce_", "SUM"): _sum,
    ("allreduce_", "AVG"): _mean,
    ("_reduce_scatter_base_", "SUM"): _SUM_OF_PART,
    ("_reduce_scatter_base_", "AVG"): _MEAN_OF_PART,
    ("_allgather_base_", None): _all,
}


def halves(recipe: Recipe, dtype: DType, elements: int) -> tuple[Recipe, Recipe | None]:
    """Return how each of more than two processes computes its part of a large sum, and how all that from the parts;
    the recipe itself and None for what is no such sum.
    """
    of_part = _OF_PART.get(recipe) if elements * dtype.itemsize >= _IN_PARTS else None
    return (recipe, None) if of_part is None else (of_part, _joined(elements))


class _Memory:
    """Memory that a process makes for others to read: a file without a name, found by the number that it has here."""

    def __init__(self, size: int) -> None:
        self.file = os.memfd_create("webtorch")
        try:
            os.ftruncate(self.file, size)
            self.view = memoryview(mmap.mmap(self.file, size))
        except OSError:
            os.close(self.file)
            raise

    @staticmethod
    def of(process: int, file: int, size: int) -> memoryview:
        """Return the memory of another process."""
        with open(f"/proc/{process}/fd/{file}", "r+b") as found:
            return memoryview(mmap.mmap(found.fileno(), size))

    def __del__(self) -> None:
        with contextlib.suppress(AttributeError, OSError):
            os.close(self.file)


class MissingError(RuntimeError):
    """A rank has not said what it gives to a call."""


class _Told:
    """What all say of a call, once `wait` has returned."""

    def __init__(self, exchange: Exchange, number: int, timeout: float) -> None:
        self._exchange, self._number, self._timeout = exchange, number, timeout
        self.headers: list[list[int]] = []

    def wait(self) -> None:
        """Wait for all ranks. Raises MissingError where one has ended, or says nothing for the group's timeout."""
        exchange, number = self._exchange, self._number
        began = looked = time.monotonic()
        found = [exchange.said(rank, number) for rank in range(exchange.size)]
        while None in found:
            now = time.monotonic()
            missing = [rank for rank, header in enumerate(found) if header is None]
            # What an ended process has said before is asked for after it was seen to have ended.
            ended = now - looked > _LOOK and [r for r in missing if not exchange.is_running(r)]
            time.sleep(min((now - began) / 8, _PAUSE))
            for rank in missing:
                found[rank] = exchange.said(rank, number)
            if ended and any(found[rank] is None for rank in ended):
                exchange.lost = f"the process of rank {ended[0]} of the group has ended"
            elif None in found and now - began > self._timeout:
                exchange.lost = f"timed out after {self._timeout:g} s"
            if exchange.lost:
                raise MissingError(exchange.lost)
            looked = now if now - looked > _LOOK else looked
        self.headers = [header for header in found if header is not None]


class _Place:
    """Memory of this process for one call at a time."""

    def __init__(self, number: int, size: int, backend: Backend) -> None:
        self.number = number
        # The call that has it; it is free once all have read that. More than any while it is not known which.
        self.call = _SOME_CALL
        self.take(size, backend)

    def take(self, size: int, backend: Backend) -> None:
        """Take memory of a size. Raises OutOfMemoryError."""
        self.memory, self.size = _Memory(size), size
        found = backend.on_host(self.memory.view)
        if found is None:
            raise OutOfMemoryError(f"{size} bytes of memory cannot be shared by processes")
        self.shared = found


_SOME_CALL = 1 << 60


class Put(NamedTuple):
    """Where a buffer is being copied to, and what waits until it is there."""

    place: _Place
    wait: Callable[[], None]


class Turn:
    """One collective that is under way here."""

    def __init__(
        self, number: int, given: Buffer | None, recipe: Recipe | None, dtype: DType, elements: int
    ) -> None:
        self.number, self.given = number, given
        # What the result is made by of what all have put, so many elements each; None: there is none here.
        self.recipe, self.dtype, self.elements = recipe, dtype, elements
        self.told: _Told | None = None
        # Set when the result has been enqueued, or will not be; then what waits until it is there.
        self.is_over = threading.Event()
        self.fence: Callable[[], None] | None = None

    def wait(self) -> None:
        """Wait until this process has read what the others have put."""
        self.is_over.wait()
        if self.fence is not None:
            self.fence()


class Exchange:
    """Memory that the processes of a group share. One thread calls `begin`, one `take`, each for call after call, and
    who computes may `put` what a call gives before that: then it is copied before what is computed next.
    """

    def __init__(self, rank: int, size: int, backend: Backend, timeout: float) -> None:
        self._rank, self.size, self.backend, self._timeout = rank, size, backend, timeout
        self._processes = [os.getpid()] * size
        # Where each says what it gives to a call; why nobody waits for that any more.
        self._words: list[memoryview] = []
        self.lost = ""
        self._places: list[_Place] = []
        # By rank and the number of a place: its file and size, and the memory as this device's.
        self._theirs: list[dict[int, tuple[int, int, Shared | None]]] = [{} for _ in range(size)]
        self._last: deque[Turn] = deque()
        # How many calls there were, how many of them this process has read to the end, and all processes, as they say.
        self._number = self._read = self._read_by_all = 0
        # Several threads put and take.
        self._lock = threading.Lock()
        self._programs: dict[object, _Program] = {}

    @classmethod
    def open(
        cls,
        group: Group,
        rank: int,
        size: int,
        backend: Backend,
        timeout: float = _TIMEOUT,
    ) -> Exchange | None:
        """Return the memory that all processes of a group share, None for all where one cannot. All of them call it."""
        made = cls(rank, size, backend, timeout)
        return made if made._agree(group) else None

    def _agree(self, group: Group) -> bool:
        """Tell the others where this process's memory is, and whether it can read all of theirs."""
        memory, token, torch = None, secrets.randbits(62), engine().torch

        def all_of(*numbers: int) -> list[list[int]]:
            """Return the numbers of all."""
            mine = torch.tensor(numbers, dtype=torch.int64, device="cpu")
            theirs = [torch.empty_like(mine) for _ in range(self.size)]
            group.allgather([theirs], [mine]).wait()
            return [x.tolist() for x in theirs]

        if hasattr(os, "memfd_create") and os.environ.get("WEBTORCH_SHARED_MEMORY") != "0":
            with contextlib.suppress(OSError):
                memory = _Memory(_UNIT)
                memory.view[:8] = token.to_bytes(8, "little")
                if self.backend.on_host(memory.view) is None:
                    memory = None
        file = -1 if memory is None else memory.file
        told = all_of(_host(), os.getpid(), file, token)
        self._processes = [process for _, process, _, _ in told]
        able = all(file >= 0 and host == told[0][0] for host, _, file, _ in told)
        for _, process, file, token in told if able else ():
            try:
                found = _Memory.of(process, file, _UNIT)
                able = able and found[:8] == token.to_bytes(8, "little")
                self._words.append(found.cast("q"))
            except OSError:
                able = False
        return all(x == [1] for x in all_of(int(able)))

    def _say(self, numbers: Sequence[int]) -> None:
        """Say what this process gives to a call, whose number comes first."""
        at = _FIRST_WORD + numbers[0] % _SAID * _WORDS
        # Who reads meanwhile sees that it is not all there.
        words = array("q", [*numbers, hash(tuple(numbers))])
        self._words[self._rank][at : at + len(words)] = memoryview(words)

    def said(self, rank: int, number: int) -> list[int] | None:
        """Return what a rank has said of a call, if it has."""
        at = _FIRST_WORD + number % _SAID * _WORDS
        words = self._words[rank]
        if words[at] != number:
            return None
        *numbers, proof = words[at : at + _HEADER + 1].tolist()
        return numbers if hash(tuple(numbers)) == proof else None

    def is_running(self, rank: int) -> bool:
        """Whether the process of a rank runs."""
        try:
            with open(f"/proc/{self._processes[rank]}/stat", "rb") as file:
                return file.read().rpartition(b") ")[2][:1] not in b"ZX"
        except OSError:
            return False

    def put(self, given: Buffer, dtype: DType, elements: int, ahead: bool = True) -> Put | None:
        """Copy a buffer to where the others will find it. `ahead`: return None where that takes too much memory."""
        # Programs may read a whole word behind the end.
        size = elements * dtype.itemsize + _UNIT
        with self._lock:
            place = self._free(size, ahead)
            if place is None:
                return None
            place.call = _SOME_CALL
        own = place.shared.buffer(dtype, elements)
        self._program(None, dtype, elements).run((given, own).__getitem__)
        return Put(place, self.backend.fence())

    def _free(self, size: int, ahead: bool) -> _Place | None:
        """Return a place of this size at least that all have read."""
        free = sorted([p for p in self._places if p.call < self._read_by_all], key=_size_of)
        found = next((p for p in free if p.size >= size), None)
        if found is not None:
            return found
        # Of one size for all that ask for nearly as much.
        size = -(-(size + size // 4) // _UNIT) * _UNIT
        if sum(map(_size_of, self._places)) + size > _MOST_AHEAD:
            if free:
                free[-1].take(size, self.backend)
                return free[-1]
            if ahead:
                return None
        made = _Place(len(self._places), size, self.backend)
        self._places.append(made)
        return made

    def begin(
        self,
        given: Buffer | None,
        recipe: Recipe | None,
        dtype: DType,
        elements: int,
        put: Put | None = None,
    ) -> tuple[Turn, _Told]:
        """Copy a buffer to where the others find it, unless it has been `put`; None: this process gives nothing. Return
        the turn, and the work that is done when all have. A turn without a recipe has no result here.
        """
        self._read_some()
        turn = Turn(self._number, given, recipe, dtype, elements)
        self._number += 1
        try:
            if put is None and given is not None:
                put = self.put(given, dtype, elements, ahead=False)
            where = -1, -1, 0
            if put is not None:
                put.wait()
                place = put.place
                place.call = turn.number
                where = place.number, place.memory.file, place.size
            self._say((turn.number, TYPES.index(dtype), elements, self._read, *where))
            turn.told = _Told(self, turn.number, self._timeout)
        except BaseException:
            turn.is_over.set()
            raise
        self._last.append(turn)
        return turn, turn.told

    def _read_some(self) -> None:
        """Wait for what is read here, as far as calls are many or large: the others then have their memory again."""
        last = self._last
        while len(last) >= _MOST_UNREAD or (
            len(last) > 1 and sum([t.elements * t.dtype.itemsize for t in last]) > _UNREAD_BYTES
        ):
            turn = last.popleft()
            turn.wait()
            self._read = turn.number + 1

    def take(self, turn: Turn) -> Buffer | None:
        """Return the result of a turn whose work is done. Raises RuntimeError where ranks differ in size or type."""
        recipe, dtype, elements = turn.recipe, turn.dtype, turn.elements
        assert turn.told is not None
        told = turn.told.headers
        shared: list[Shared | None] = [None] * self.size
        for rank, (number, kind, count, _, place, file, size) in enumerate(told):
            if [number, kind, count] != told[self._rank][:3]:
                raise RuntimeError(
                    f"rank {rank} gives {TYPES[kind].name}[{count}], rank {self._rank} gives "
                    f"{dtype.name}[{elements}]: all ranks must give tensors of one size and type"
                )
            if rank != self._rank and recipe is not None and place >= 0:
                shared[rank] = self._memory_of(rank, place, file, size)
        with self._lock:
            self._read_by_all = max(self._read_by_all, min([header[3] for header in told]))
        given, turn.given = turn.given, None
        if recipe is None:
            return None

        def put_by(rank: int) -> Buffer | None:
            """Return what a rank has put."""
            found = shared[rank]
            return given if found is None else found.buffer(dtype, elements)

        result = self._program(recipe, dtype, elements).run(put_by)
        turn.fence = self.backend.fence()
        return result

    def _memory_of(self, rank: int, place: int, file: int, size: int) -> Shared | None:
        """Return the memory of another process at one of its places."""
        found = self._theirs[rank].get(place)
        # Numbers of files come again, but larger sizes do not become smaller.
        if found is None or found[:2] != (file, size):
            view = _Memory.of(self._processes[rank], file, size)
            found = self._theirs[rank][place] = file, size, self.backend.on_host(view)
        return found[2]

    def _program(self, recipe: Recipe | None, dtype: DType, elements: int) -> _Program:
        """Return the program of a recipe, or the one that copies."""
        key = recipe, dtype, elements
        with self._lock:
            found = self._programs.get(key)
            if found is None:
                if len(self._programs) >= _MOST_PROGRAMS:
                    self._programs.clear()
                found = self._programs[key] = self._compiled(recipe, dtype, elements)
        return found

    def _compiled(self, recipe: Recipe | None, dtype: DType, elements: int) -> _Program:
        count = 2 if recipe is None else self.size
        nodes = [Node.in_memory((elements,), dtype) for _ in range(count)]
        if recipe is None:
            # The first one's values, in the second one's memory.
            copied = Node("map", (nodes[0],), (IDENTITY, "t", dtype), (), (elements,), dtype)
            frozen = freeze([Held(copied, nodes[1])])
        else:
            with no_grad(), formulas.recorded():
                result = recipe([Tensor._from_node(n, meta_runtime()) for n in nodes], self._rank)
                frozen = freeze([Held(copy(result)._storage.node)])
        program = compile_graph(to_graph(frozen), self.backend.limits)
        order = [nodes.index(n) for n in frozen.inputs]
        return _Program(self.backend.compile(program), order, frozen.args, threading.Lock())


class _Program(NamedTuple):
    """A program, which of the buffers that there are it takes, and its numbers."""

    executable: Executable
    order: Sequence[int]
    args: Sequence[Scalar]
    # Held while it is enqueued: several threads do.
    lock: threading.Lock

    def run(self, buffer: Callable[[int], Buffer | None]) -> Buffer:
        """Enqueue it, and return its result."""
        given = [b for n in self.order if (b := buffer(n)) is not None]
        with self.lock:
            return self.executable.run(given, self.args)[0]


def _size_of(place: _Place) -> int:
    return place.size


def _host() -> int:
    """Return a number of this host, since it was started."""
    try:
        with open("/proc/sys/kernel/random/boot_id", "rb") as file:
            name = file.read()
    except OSError:
        return -1
    return int.from_bytes(hashlib.sha256(name).digest()[:7], "little")
