"""Collectives of processes on one host: each puts its tensor into memory that all share, and computes its result from
what the others have put. Floor 5.

A device that reads and writes the host's memory (a card under Dawn, the CPU engine) needs no thread of the host for
that: a card copies 100 MB in 2.1 ms each way, where Gloo and copies by the processor take 45. Large sums of more than
two are added up by the hosts, a part each, where they lie: a card then copies all of it down and up once, and what it
has to compute meanwhile delays nobody. What each says of a call lies in memory that all read, too.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import secrets
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeAlias, TypeVar

from webtorch.distributed.engine import Foreign, engine
from webtorch.distributed.words import UNIT, Memory, Words, can_share
from webtorch.errors import OutOfMemoryError
from webtorch.functions.joining import cat
from webtorch.ir.dtype import DType, Scalar, bfloat16, float16, float32, int32
from webtorch.ir.graph import Node
from webtorch.lower.compiler import compile_graph
from webtorch.ops.primitive import IDENTITY, cast_to, copy
from webtorch.runtime.backend import Backend, Buffer, Executable, Shared
from webtorch.runtime.backends import get_backend
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
# From this size on each of more than two processes adds up a part, where it lies in the host's memory.
_IN_PARTS = 1 << 20
# Parts begin at whole vectors.
_WHOLE = 64
# Seconds between looks at whether the others run, and without a group's timeout.
_LOOK, _TIMEOUT = 0.05, 1800.0
# Set when a program ends by an error: threads wait for nobody then.
ending = threading.Event()
# Programs that are kept: sizes may change with each call.
_MOST_PROGRAMS = 256

# A group of Gloo's.
Group: TypeAlias = Foreign
# From what all have put, by rank, and the rank: a result.
Recipe = Callable[[Sequence[Tensor], int], Tensor]
_Said = TypeVar("_Said")


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
        size = values[0].numel() // len(values)
        return reduce([x[rank * size : (rank + 1) * size] for x in values], rank)

    return part


def _all(values: Sequence[Tensor], rank: int) -> Tensor:
    return cat(values)


def _joined(values: Sequence[Tensor], rank: int) -> Tensor:
    """Return a sum of which each has added up its part."""
    bounds = _bounds(values[0].numel(), len(values))
    return cat([x[a:b] for x, (a, b) in zip(values, bounds, strict=True) if b > a])


def _own(values: Sequence[Tensor], rank: int) -> Tensor:
    a, b = _bounds(values[0].numel(), len(values), 1)[rank]
    return values[rank][a:b]


def _bounds(elements: int, ranks: int, whole: int = _WHOLE) -> list[tuple[int, int]]:
    """Return where the part that each process adds up begins and ends; the last ones may be empty."""
    size = -(-elements // (ranks * whole)) * whole
    return [(min(r * size, elements), min(r * size + size, elements)) for r in range(ranks)]


class _Adding(NamedTuple):
    """How the hosts add up: a part by a recipe, where parts begin, and the result from what all have added up."""

    add: Recipe
    whole: int
    result: Recipe


_SUM_OF_PART, _MEAN_OF_PART = _own_part(_sum), _own_part(_mean)
_ADDED: dict[Recipe, _Adding] = {
    _sum: _Adding(_sum, _WHOLE, _joined),
    _mean: _Adding(_mean, _WHOLE, _joined),
    _SUM_OF_PART: _Adding(_sum, 1, _own),
    _MEAN_OF_PART: _Adding(_mean, 1, _own),
}


def _one(root: int, values: Sequence[Tensor], rank: int) -> Tensor:
    return values[root]


@functools.cache
def _of(root: int) -> Recipe:
    return functools.partial(_one, root)


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


def _code(recipe: Recipe) -> int:
    """Return by which number ranks tell each other what they call."""
    kinds = list(_RECIPES.values())
    return (
        len(kinds) + recipe.args[0]
        if isinstance(recipe, functools.partial)
        else kinds.index(recipe)
    )


def _called(code: int) -> str:
    """Return in words what a rank calls."""
    kinds = list(_RECIPES)
    if code >= len(kinds):
        return f"broadcast from rank {code - len(kinds)}"
    name, reduction = kinds[code]
    return f"{name.strip('_')} of {reduction}" if reduction else name.strip("_")


def _given(kind: int, count: int) -> str:
    """Return in words what a rank calls with what."""
    code, dtype = divmod(kind, len(TYPES))
    return f"calls {_called(code)} with {TYPES[dtype].name}[{count}]"


class MissingError(RuntimeError):
    """A rank has not said what it gives to a call."""


class _Place:
    """Memory of this process for one call at a time."""

    def __init__(self, number: int, size: int, backend: Backend) -> None:
        self.number = number
        # The call that has it; it is free once all have read that. More than any while it is not known which.
        self.call = _SOME_CALL
        self.take(size, backend)

    def take(self, size: int, backend: Backend) -> None:
        """Take memory of a size. Raises OutOfMemoryError."""
        self.memory, self.size = Memory(size), size
        found = backend.on_host(self.memory.view)
        if found is None:
            raise OutOfMemoryError(f"{size} bytes of memory cannot be shared by processes")
        self.shared = found


_SOME_CALL = 1 << 60


class Put(NamedTuple):
    """Where a buffer is being copied to, what waits until it is there, and before which call all is read by then."""

    place: _Place
    wait: Callable[[], None]
    read: int


class _Found(NamedTuple):
    """Memory of a rank in which something lies: as the host's, and as some of this device's."""

    file: int
    view: memoryview
    shared: Shared | None


class Turn:
    """One collective that is under way here."""

    def __init__(
        self, number: int, given: Buffer | None, recipe: Recipe | None, dtype: DType, elements: int
    ) -> None:
        self.number, self.given = number, given
        # What the result is made by of what all have put, so many elements each; None: there is none here.
        self.recipe, self.dtype, self.elements = recipe, dtype, elements
        # Whether the hosts add up; where this process has put what it gives, what all have said, and where all have
        # put theirs, once that is known.
        self.adding: _Adding | None = None
        self.place: _Place | None = None
        self.told: list[list[int]] | None = None
        self.found: list[_Found | None] | None = None
        # Set when the result has been enqueued, or will not be; then what waits until it is there.
        self.is_over = threading.Event()
        self.fence: Callable[[], None] | None = None

    def wait(self) -> None:
        """Wait until this process has read what the others have put."""
        self.is_over.wait()
        if self.fence is not None:
            self.fence()


class Exchange:
    """Memory that the processes of a group share. One thread calls `begin`, one `add`, one `take`, each for call after
    call, and who computes may `put` what a call gives before that: then it is copied before what is computed next.
    """

    def __init__(self, rank: int, size: int, backend: Backend, timeout: float) -> None:
        self._rank, self.size, self.backend, self._timeout = rank, size, backend, timeout
        self._processes = [os.getpid()] * size
        # What each says of calls; why nobody waits for that any more.
        self._words: Words | None = None
        self._lost = ""
        self._places: list[_Place] = []
        # By rank and the number of a place.
        self._theirs: list[dict[int, _Found]] = [{} for _ in range(size)]
        self._last: deque[Turn] = deque()
        # How many calls there were, how many results of them are enqueued, and how many of them this process has read
        # to the end, and all processes, as they say.
        self._number = self._taken = self._read = self._read_by_all = 0
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

        if can_share() and os.environ.get("WEBTORCH_SHARED_MEMORY") != "0":
            with contextlib.suppress(OSError):
                memory = Memory(UNIT)
                memory.view[:8] = token.to_bytes(8, "little")
                if any(found.on_host(memory.view) is None for found in (self.backend, _adder())):
                    memory = None
        file = -1 if memory is None else memory.file
        told = all_of(_host(), os.getpid(), file, token)
        self._processes = [process for _, process, _, _ in told]
        able = all(file >= 0 and host == told[0][0] for host, _, file, _ in told)
        words = []
        for _, process, file, token in told if able else ():
            try:
                words.append(Memory.of(process, file, UNIT))
                able = able and words[-1][:8] == token.to_bytes(8, "little")
            except OSError:
                able = False
        if able:
            self._words = Words(self._rank, words)
        return all(x == [1] for x in all_of(int(able)))

    def _wait(self, look: Callable[[int], _Said | None]) -> list[_Said]:
        """Return what a look at each rank gives, once it gives something. Raises MissingError where one has ended, or
        says nothing for the group's timeout.
        """
        words, began, found = self._words, time.monotonic(), []
        assert words is not None
        for rank in range(self.size):
            ended: list[int] = []
            while True:
                # What is said after this wakes the one that sleeps on it.
                bell = words.bell(rank)
                said = look(rank)
                if said is not None:
                    break
                # What an ended process has said before is asked for after it was seen to have ended.
                lost = [r for r in ended if look(r) is None]
                if lost:
                    self._lost = f"the process of rank {lost[0]} of the group has ended"
                elif time.monotonic() - began > self._timeout:
                    self._lost = f"timed out after {self._timeout:g} s"
                elif ending.is_set():
                    self._lost = "the program ends"
                if self._lost:
                    raise MissingError(self._lost)
                if not words.sleep(rank, bell, _LOOK):
                    ended = [r for r in range(rank, self.size) if not self._is_running(r)]
            found.append(said)
        words.order()
        return found

    def _is_running(self, rank: int) -> bool:
        """Whether the process of a rank runs."""
        try:
            with open(f"/proc/{self._processes[rank]}/stat", "rb") as file:
                return file.read().rpartition(b") ")[2][:1] not in b"ZX"
        except OSError:
            return False

    def put(self, given: Buffer, dtype: DType, elements: int, ahead: bool = True) -> Put | None:
        """Copy a buffer to where the others will find it. `ahead`: return None where that takes too much memory."""
        # Programs may read a whole word behind the end.
        size = elements * dtype.itemsize + UNIT
        with self._lock:
            place = self._free(size, ahead)
            if place is None:
                return None
            place.call = _SOME_CALL
        self._copy(given, place.shared.buffer(*self._copied_as(dtype, elements)), dtype, elements)
        # What is enqueued before a fence is done with it.
        taken = self._taken
        return Put(place, self.backend.fence(), taken)

    def _copied_as(self, dtype: DType, elements: int) -> tuple[DType, int]:
        """Return as what a card copies values: numbers of 16 bits in twos, where that comes out even. Their bits stay
        as they are, and it writes whole vectors: each part of one is a message of its own to the host's memory.
        """
        nbytes = elements * dtype.itemsize
        if self.backend is _adder() or dtype.itemsize >= int32.itemsize or nbytes % int32.itemsize:
            return dtype, elements
        return int32, nbytes // int32.itemsize

    def _copy(self, given: Buffer, into: Buffer, dtype: DType, elements: int) -> None:
        self._program(None, *self._copied_as(dtype, elements)).run((given, into))

    def memory(self, dtype: DType, elements: int) -> Buffer | None:
        """Return memory for the result of a sum, where programs write into what they are given."""
        copies = self._programs.get((None, *self._copied_as(dtype, elements), False))
        if copies is None or not copies.executable.reuses:
            return None
        return self.backend.allocate(dtype, elements)

    def _free(self, size: int, ahead: bool) -> _Place | None:
        """Return a place of this size at least that all have read."""
        free = sorted([p for p in self._places if p.call < self._read_by_all], key=_size_of)
        found = next((p for p in free if p.size >= size), None)
        if found is not None:
            return found
        # Of one size for all that ask for nearly as much.
        size = -(-(size + size // 4) // UNIT) * UNIT
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
        recipe: Recipe,
        dtype: DType,
        elements: int,
        put: Put | None = None,
        has_result: bool = True,
    ) -> Turn:
        """Copy a buffer to where the others find it, unless it has been `put`; None: this process gives nothing."""
        self._read_some()
        turn = Turn(self._number, given, recipe if has_result else None, dtype, elements)
        self._number += 1
        if has_result and self.size > 2 and elements * dtype.itemsize >= _IN_PARTS:
            turn.adding = _ADDED.get(recipe)
        assert self._words is not None
        try:
            if put is None and given is not None:
                put = self.put(given, dtype, elements, ahead=False)
            where = -1, -1, 0
            if put is not None:
                put.wait()
                self._read = max(self._read, put.read)
                turn.place = place = put.place
                place.call = turn.number
                where = place.number, place.memory.file, place.size
            if turn.adding is not None:
                # All find it where it has been put.
                turn.given = None
            kind = _code(recipe) * len(TYPES) + TYPES.index(dtype)
            self._words.say((turn.number, kind, elements, self._read, *where))
        except BaseException:
            turn.is_over.set()
            raise
        self._last.append(turn)
        return turn

    def _read_some(self) -> None:
        """Wait for what is read here, as far as calls are many or large: the others then have their memory again."""
        last = self._last
        while last and last[0].number < self._read:
            last.popleft()
        while self._is_full():
            turn = last.popleft()
            turn.wait()
            self._read = turn.number + 1

    def _is_full(self) -> bool:
        size = sum([t.elements * t.dtype.itemsize for t in self._last])
        return len(self._last) >= _MOST_UNREAD or (len(self._last) > 1 and size > _UNREAD_BYTES)

    def is_free(self) -> bool:
        """Whether a call begins without waiting for those before it."""
        return not self._is_full() or all(turn.is_over.is_set() for turn in self._last)

    def knows(self, recipe: Recipe, dtype: DType, elements: int) -> bool:
        """Whether there is a program of a recipe."""
        return (recipe, dtype, elements, False) in self._programs

    def hear(self, turn: Turn) -> None:
        """Wait until all have said what they give to a call. Raises MissingError."""
        words = self._words
        assert words is not None
        if turn.told is None:
            turn.told = self._wait(lambda rank: words.said(rank, turn.number))

    def _find(self, turn: Turn) -> list[_Found | None]:
        """Wait until all have said what they give to a call, and return where that is, where it is to be read. Raises
        RuntimeError where ranks differ in what they call, in size or type.
        """
        recipe = turn.recipe
        self.hear(turn)
        told = turn.told
        assert told is not None
        found: list[_Found | None] = [None] * self.size
        mine = told[self._rank]
        for rank, (number, kind, count, _, place, file, size) in enumerate(told):
            if [number, kind, count] != mine[:3]:
                raise RuntimeError(
                    f"rank {rank} {_given(kind, count)}, rank {self._rank} {_given(*mine[1:3])}: all ranks must call "
                    "the same collectives in one order, with tensors of one size and type"
                )
            if rank != self._rank and recipe is not None and place >= 0:
                found[rank] = self._memory_of(rank, place, file, size)
        if turn.adding is not None and turn.place is not None:
            found[self._rank] = _Found(
                turn.place.memory.file, turn.place.memory.view, turn.place.shared
            )
        with self._lock:
            self._read_by_all = max(self._read_by_all, min([header[3] for header in told]))
        return found

    def add(self, turn: Turn) -> None:
        """Add up this process's part of a sum, in the host's memory, and say so. Raises what `take` raises."""
        adding, words, host, dtype = turn.adding, self._words, _adder(), turn.dtype
        assert adding is not None and words is not None
        turn.found = self._find(turn)
        a, b = _bounds(turn.elements, self.size, adding.whole)[self._rank]
        if b > a:
            width = dtype.itemsize
            parts = []
            for found in turn.found:
                assert found is not None
                shared = host.on_host(found.view[a * width : b * width])
                assert shared is not None
                parts.append(shared.buffer(dtype, b - a))
            # Nobody else reads this part of what this process has put.
            self._program(adding.add, dtype, b - a, adds=True).run(parts)
        words.say_added(turn.number)

    def take(self, turn: Turn, into: Buffer | None = None) -> Buffer | None:
        """Return the result of a turn, in this memory if it can be. Raises RuntimeError where ranks differ in size or
        type; MissingError.
        """
        recipe, dtype, elements, words = turn.recipe, turn.dtype, turn.elements, self._words
        found = self._find(turn) if turn.found is None else turn.found
        if turn.adding is not None and words is not None:
            recipe = turn.adding.result
            if recipe is _joined:
                self._wait(lambda rank: words.added(rank, turn.number))
        given, turn.given = turn.given, None
        if recipe is None:
            return None
        kind = self._copied_as(dtype, elements)
        buffers: list[Buffer | None] = [
            None if f is None or f.shared is None else f.shared.buffer(dtype, elements)
            for f in found
        ]
        if kind[0] is not dtype:
            # A card does not keep what it reads of the host's memory: it is read once, in whole vectors.
            for rank, f in enumerate(found):
                if f is not None and f.shared is not None:
                    buffers[rank] = here = self.backend.allocate(dtype, elements)
                    self._copy(f.shared.buffer(*kind), here, dtype, elements)
        buffers[self._rank] = buffers[self._rank] or given
        result = self._program(recipe, dtype, elements).run(buffers, into)
        turn.fence = self.backend.fence()
        self._taken = turn.number + 1
        return result

    def _memory_of(self, rank: int, place: int, file: int, size: int) -> _Found:
        """Return the memory of another process at one of its places."""
        found = self._theirs[rank].get(place)
        # Numbers of files come again, but larger sizes do not become smaller.
        if found is None or (found.file, found.view.nbytes) != (file, size):
            view = Memory.of(self._processes[rank], file, size)
            found = self._theirs[rank][place] = _Found(file, view, self.backend.on_host(view))
        return found

    def _program(
        self, recipe: Recipe | None, dtype: DType, elements: int, adds: bool = False
    ) -> _Program:
        """Return the program of a recipe, or the one that copies. `adds`: it is the host's, and writes its result where
        what this process has put is.
        """
        key = recipe, dtype, elements, adds
        with self._lock:
            found = self._programs.get(key)
            if found is None:
                if len(self._programs) >= _MOST_PROGRAMS:
                    self._programs.clear()
                backend = _adder() if adds else self.backend
                found = self._programs[key] = self._compiled(recipe, dtype, elements, backend, adds)
        return found

    def _compiled(
        self, recipe: Recipe | None, dtype: DType, elements: int, backend: Backend, adds: bool
    ) -> _Program:
        count = 2 if recipe is None else self.size
        nodes = [Node.in_memory((elements,), dtype) for _ in range(count)]
        if recipe is None:
            # The first one's values, in the second one's memory.
            frozen = freeze([Held(_copied(nodes[0]), nodes[1])])
        else:
            with no_grad(), formulas.recorded():
                result = recipe([Tensor._from_node(n, meta_runtime()) for n in nodes], self._rank)
                made = copy(result)._storage.node
                # What one has put is overwritten by its next calls: the result has memory of its own.
                made = _copied(made) if made in nodes else made
                frozen = freeze([Held(made, nodes[self._rank] if adds else None)])
        program = compile_graph(to_graph(frozen), backend.limits)
        order = [nodes.index(n) for n in frozen.inputs]
        return _Program(backend.compile(program), order, frozen.args, threading.Lock())


class _Program(NamedTuple):
    """A program, which of the buffers that there are it takes, and its numbers."""

    executable: Executable
    order: Sequence[int]
    args: Sequence[Scalar]
    # Held while it is enqueued: several threads do.
    lock: threading.Lock

    def run(self, buffers: Sequence[Buffer | None], into: Buffer | None = None) -> Buffer:
        """Enqueue it with what there is, by rank, and return its result."""
        given = [b for n in self.order if (b := buffers[n]) is not None]
        with self.lock:
            return self.executable.run(given, self.args, None if into is None else {0: into})[0]


def _copied(node: Node) -> Node:
    return Node("map", (node,), (IDENTITY, "t", node.dtype), (), node.shape, node.dtype)


def _adder() -> Backend:
    """Return the device that adds up in the host's memory."""
    return get_backend("cpu")


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
