"""A call of a collective by one process: the way of its tensors to the others and back, of both faces. Floor 5.

What a call reads is computed and read, or copied to where the others find it, when it is called. Threads of its group
give Gloo the calls in their order and wait for them, while the caller goes on; what a call writes are values that
arrive, and what reads these waits. A small call on the processor costs less than to wake a thread: its caller gives it
to Gloo or says it, and who waits for it settles it.
"""

from __future__ import annotations

import contextlib
import datetime
import sys
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future as Pending
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import NamedTuple

from webtorch.distributed.engine import Foreign, engine
from webtorch.distributed.shared import Exchange, MissingError, Put, Recipe, Turn, ending
from webtorch.ir.dtype import DType
from webtorch.ir.graph import Node
from webtorch.ir.view import Shape, numel
from webtorch.runtime.arrivals import Arrival, patiently
from webtorch.runtime.backend import Backend, Buffer
from webtorch.runtime.realize import Runtime
from webtorch.runtime.staging import HostMemory, in_huge_pages
from webtorch.tensors.creation import from_contents
from webtorch.tensors.tensor import Tensor

# Types that Gloo adds up in another one: those of 16 bits would be rounded at each step.
_SUMMED_AS = {"float16": "float32", "bfloat16": "float32", "bool": "uint8", "int16": "int32"}
# Types that Gloo moves as they are.
_MOVED = frozenset((
    "float16", "bfloat16", "float32", "float64", "int8", "uint8", "int32", "int64",
))  # fmt: skip
# A sum of this size is cut into parts, which travel side by side.
_PART = 1 << 20
_MOST_PARTS = 8
# Messages that may be waited for at once: one may come only after others have been answered.
_MOST_MESSAGES = 64
# Seconds that ranks have to tell each other of a failure.
_MOMENT = 0.5
# Bytes up to which a call of tensors on the processor needs no thread.
_QUICK = 1 << 20
# Gloo lets go of who waits after this time, to look around.
_SLICE = datetime.timedelta(milliseconds=50)


def _is_checked() -> bool:
    """Whether PyTorch compares what ranks call before they do it (TORCH_DISTRIBUTED_DEBUG=DETAIL)."""
    c10d = engine().c10d
    level: object = c10d.get_debug_level()
    return level == c10d.DebugLevel.DETAIL


def _connected(store: Foreign, rank: int, size: int, timeout: Foreign, ways: int) -> Foreign:
    """Return a group of Gloo's with so many connections to each other process."""
    c10d, torch = engine().c10d, engine().torch
    kind = c10d.ProcessGroupGloo
    options = kind._Options()
    options._timeout, options._threads = timeout, ways
    options._devices = [kind.create_default_device() for _ in range(ways)]
    gloo = kind(store, rank, size, options)
    if _is_checked():
        others = c10d.PrefixStore("checks", store)
        gloo = c10d._ProcessGroupWrapper(gloo, kind(others, rank, size, timeout))
    made = c10d.ProcessGroup(store, rank, size)
    kind = c10d.ProcessGroup.BackendType.GLOO
    made._set_default_backend(kind)
    made._register_backend(torch.device("cpu"), kind, gloo)
    return made


def _own(store: Foreign) -> Foreign:
    """Return a store with a connection of its own: who waits for a key keeps a store's connection for itself, and
    ranks of which one connects here while another makes a group would wait for each other.
    """
    try:
        return store.clone()
    except RuntimeError:  # A user's class without `clone`.
        return store


def _host_memory(size: int) -> Foreign:
    torch = engine().torch
    return in_huge_pages(torch.empty((size,), dtype=torch.uint8, device="cpu"))


class Lane:
    """What a process group has for tensors on their way: a connection of their own, since what else the group sends
    does not wait for them, and threads that keep the order of the calls: while one collective is written to the device,
    the next is sent, and those after it are read.
    """

    def __init__(
        self,
        name: str,
        ranks: Sequence[int],
        rank: int,
        store: Foreign,
        timeout: Foreign,
        backend: Callable[[], Backend],
    ) -> None:
        """`ranks`: of the group's processes among all; `backend`: of the device that reads shared memory."""
        self.name, self.ranks, self.rank, self.size = name, ranks, rank, len(ranks)
        if store is not None:
            store = engine().c10d.PrefixStore("webgpu", _own(store))
        self._store, self._timeout, self._backend = store, timeout, backend
        self.memory = HostMemory(_host_memory)
        self.collectives, self.sums, self.results = (
            ThreadPoolExecutor(1, thread_name_prefix=f"webtorch-{kind}-{name}")
            for kind in ("collectives", "sums", "results")
        )
        self.messages = ThreadPoolExecutor(
            _MOST_MESSAGES, thread_name_prefix=f"webtorch-messages-{name}"
        )
        # Of Gloo, from the first call on.
        self._connections: list[Foreign] = []
        # Held while a call is issued, and while `_queued`, of calls that a thread is yet to issue, is looked at.
        self._issuing, self._counting, self._queued = threading.Lock(), threading.Lock(), 0
        # Calls that have been issued and are not settled, in their order, with Gloo's works; held while one is.
        self._due: deque[tuple[Call, list[Foreign]]] = deque()
        self._settling = threading.RLock()
        # Memory that the processes share, where they can; None before that is known.
        self.shared: Exchange | None = None
        self.may_share = self.size > 1 and not _is_checked()
        self._failed = False
        # At the program's end too: a thread of Gloo's that frees a tensor then would want a Python that is gone.
        threads = self.collectives, self.sums, self.results, self.messages
        weakref.finalize(self, _let_end, threads, self._connections)

    def connection(self) -> Foreign:
        """Return the group for tensors, made at the first call: all ranks take part in that."""
        made = self._connections
        if not made and self._store is not None:
            # The same number on all ranks: each is a connection to every other.
            ways = max(1, min(_MOST_PARTS, 128 // self.size))
            made.append(_connected(self._store, self.rank, self.size, self._timeout, ways))
        return made[0] if made else None

    def exchange(self, connection: Foreign) -> Exchange | None:
        """Return the memory that all ranks share, if they can; at the first call all take part."""
        if self.may_share and self.shared is None:
            seconds = [] if self._timeout is None else [self._timeout.total_seconds()]
            self.shared = Exchange.open(connection, self.rank, self.size, self._backend(), *seconds)
            self.may_share = self.shared is not None
        return self.shared

    def shares(self) -> bool:
        """Whether the processes share memory, as far as calls have shown: the same calls show all the same."""
        self.settled()
        return self.shared is not None

    def silent(self) -> str:
        """Return in words which ranks do not say within a moment that a collective has failed for them too, once."""
        store, missing = self._store, [rank for rank in range(self.size) if rank != self.rank]
        # A thread that asks when the interpreter ends would abort the process.
        end = time.monotonic() + _MOMENT
        if store is None or self._failed:
            return ""
        self._failed = True

        def ask() -> None:
            """Say that it has failed here, and ask who else says so."""
            nonlocal missing
            with contextlib.suppress(Exception):
                store.set(f"failed {self.rank}", "")
                while missing and time.monotonic() < end:
                    missing = [rank for rank in missing if not store.check([f"failed {rank}"])]
                    time.sleep(_MOMENT / 10)

        # A store whose process is gone raises, or does not answer.
        thread = threading.Thread(target=ask, daemon=True)
        thread.start()
        thread.join(_MOMENT)
        if not missing:
            return ""
        named = ", ".join([str(self.ranks[rank]) for rank in missing])
        return (
            f"No word from rank {named}: it has ended, hangs, or has not come to this collective. "
        )

    def start(self, call: Call, at_once: bool) -> None:
        """Issue a call after those before it: by a thread, unless this one is to (`at_once`) or does so as soon."""
        if at_once:
            self.settled()
        with self._counting:
            here = not self._queued and self._issuing.acquire(blocking=False)
            if here and not at_once and not self._is_quick(call):
                self._issuing.release()
                here = False
            self._queued += not here
        if not here:
            if self._due:
                # It may have to wait for what nobody has waited for.
                self.urge()
            self.collectives.submit(self._issue, call)
            return
        try:
            self._give(call, here=not at_once)
        finally:
            self._issuing.release()

    def _is_quick(self, call: Call) -> bool:
        """Whether a call waits for nobody when it is issued, and is small; where no other is being issued."""
        connected = bool(self._connections) or self._store is None
        if call.is_shared:
            connected = self.shared is not None and call.is_known(self.shared)
        likes = [*call.given.values(), *call.written.values()]
        size = sum([numel(like.shape) * like.dtype.itemsize for like in likes])
        is_here = all(like.runtime.backend.name == "cpu" for like in likes)
        return connected and size <= _QUICK and is_here and not call.is_sparse

    def _issue(self, call: Call) -> None:
        try:
            with self._issuing:
                self._give(call, here=False)
        finally:
            with self._counting:
                self._queued -= 1

    def _give(self, call: Call, here: bool) -> None:
        """Issue a call; `here`: who waits for it settles it."""
        works = call.issued()
        if works is None:
            return
        call.is_here = here
        self._due.append((call, works))
        if not here or self._queued:
            self.urge()

    def urge(self) -> None:
        """Let a thread settle what has been issued."""
        self.results.submit(self.bring)

    def bring(self, call: Call | None = None) -> None:
        """Settle what has been issued, in its order, until `call` is settled."""
        while call is None or not call.is_written:
            if not self._settling.acquire(blocking=call is None):
                # Another one settles what is before it, perhaps no more.
                self.urge()
                return
            try:
                if not self._due:
                    return
                first, works = self._due[0]
                # Where that is interrupted another one waits for it again.
                patiently(partial(first.hear, works))
                self._due.popleft()
                first.settle(works)
            finally:
                self._settling.release()

    def settled(self) -> None:
        """Wait until Gloo has been given all calls so far, so that processes agree on their order."""
        self.collectives.submit(int).result()

    def close(self) -> None:
        """Wait until the threads end."""
        self.settled()
        self.urge()
        for thread in (self.collectives, self.sums, self.results, self.messages):
            thread.shutdown()


def _let_end(threads: Sequence[ThreadPoolExecutor], connections: list[Foreign]) -> None:
    """Let a lane's threads end, and Gloo's with its connection, which waits for them."""
    for thread in threads:
        thread.shutdown(wait=False)
    connections.clear()


class Like(NamedTuple):
    """What a tensor of a call is: its shape, its type, and whose it is."""

    shape: Shape
    dtype: DType
    runtime: Runtime

    @classmethod
    def of(cls, x: Tensor) -> Like:
        """Return what a tensor is."""
        return cls(tuple(x._shape), x.dtype, x._storage.runtime)


class Call:
    """One call of a collective by one process. Tensors go by numbers that the face gives them."""

    def __init__(self, lane: Lane, reduction: str | None) -> None:
        """`reduction`: what happens to the tensors' values; None where bytes are moved."""
        self.lane, self.reduction = lane, reduction
        # What it reads, as far as it is dense.
        self.given: dict[int, Like] = {}
        self.is_sparse = self.is_message = False
        # Whether no thread settles it unless it is urged to.
        self.is_here = False
        # What it writes, and those values, once somebody goes on before they have come; or whether it is done.
        self.written: dict[int, Like] = {}
        self.arrivals: dict[int, Arrival] = {}
        # What has its error, where it writes nothing.
        self.end: Arrival | None = None
        self.is_written = False
        self.lock = threading.Lock()
        # What gives tensors' values here, and these as Gloo takes them.
        self.reading: dict[int, Callable[[], Foreign]] = {}
        self._host: dict[int, Foreign] = {}
        # What it has of the host's memory until it is done.
        self._taken: list[Foreign] = []
        # By what the result is computed from memory that all ranks share, of such a tensor each; where this one is, and
        # where it has been copied to for the others, in the order of what is computed.
        self._recipe: Recipe | None = None
        self._like: Like | None = None
        self._given: Buffer | None = None
        self._put: Put | None = None
        self._turn: Turn | None = None
        # The memory in which the result is expected.
        self._place: Buffer | None = None
        # Where the hosts add up: done when this process has added up its part.
        self._added: Pending[None] | None = None

    def title(self) -> str:
        """Return what the call is, for errors."""
        raise NotImplementedError

    def give(self, gloo: Foreign) -> list[Foreign]:
        """Give Gloo the call, and return its works."""
        raise NotImplementedError

    def overwrite(self, key: int, values: Tensor) -> None:
        """Write what has come for a tensor that nobody waits for."""
        raise NotImplementedError

    def receive(self) -> None:
        """Let what is no value that may come later be where it belongs, before any is said to be there."""

    def ended(self, works: Sequence[Foreign], error: RuntimeError | None) -> None:
        """Take note that all is written, or will not be."""
        raise NotImplementedError

    def share(self, recipe: Recipe | None, like: Like) -> None:
        """Let the result be computed from memory that all ranks share, if they can; before anything is read."""
        self._recipe, self._like = recipe, like

    @property
    def is_shared(self) -> bool:
        """Whether it goes through shared memory, as far as is known."""
        return self._recipe is not None and self.lane.may_share

    def is_known(self, shared: Exchange) -> bool:
        """Whether it goes through shared memory without waiting, by a program that there is."""
        like, recipe = self._like, self._recipe
        if like is None or recipe is None:
            return False
        return shared.is_free() and shared.knows(recipe, like.dtype, numel(like.shape))

    def arrival(self, like: Like) -> Arrival:
        """Return what a value comes as, with the memory in which it is expected, where that is known."""
        shared = self.lane.shared
        if self.is_shared and shared is not None and shared.backend is like.runtime.backend:
            self._place = shared.memory(like.dtype, numel(like.shape))
        return Arrival(self._place, self.bring)

    def read(self, key: int, values: Tensor) -> None:
        """Submit what a tensor waits for, and begin to read it, unless it may not be read here."""
        if values.numel():
            given = (values._pairs() if values.dtype.is_complex else values)._in_memory()
            self.read_memory(key, given, Like.of(values))

    def read_memory(self, key: int, given: Buffer, like: Like) -> None:
        """Begin to read a tensor's memory, unless it may not be read here."""
        self.given[key] = like
        if not self.is_shared:
            self.reading[key] = self._begin(given, like)
            return
        # Through shared memory it is read by no processor, as a rule.
        self.reading[key] = lambda: self._begin(given, like)()
        self._given, shared = given, self.lane.shared
        if shared is not None and shared.backend is like.runtime.backend:
            self._put = shared.put(given, like.dtype, numel(like.shape))

    def _begin(self, given: Buffer, like: Like) -> Callable[[], Foreign]:
        """Begin to read memory of a device, and return what waits for that: what is recorded from now on delays it no
        more.
        """
        host = self._memory(like.shape, like.dtype.name)
        coming = like.runtime.backend.download_async(given, into=_bytes(host))

        def wait() -> Foreign:
            """Return what was read."""
            coming.result()
            return host

        return wait

    def _memory(self, shape: Sequence[int], dtype: str) -> Foreign:
        """Return an uninitialised tensor on the host, for this call."""
        made = self.lane.memory.take(shape, getattr(engine().torch, dtype))
        self._taken.append(made)
        return made

    def host(self, key: int, shape: Shape, dtype: DType) -> Foreign:
        """Return what stands for a tensor in the host's memory, of a type that Gloo takes."""
        found = self._host.get(key)
        if found is None:
            read = self.reading.get(key)
            found = self._memory(shape, dtype.name) if read is None else read()
            found = self._host[key] = self._for_gloo(found, dtype)
        return found

    def _for_gloo(self, host: Foreign, dtype: DType) -> Foreign:
        torch = engine().torch
        if self.reduction is not None:
            if dtype.is_complex:
                return torch.view_as_real(host)
            wide = _SUMMED_AS.get(dtype.name)
            return host if wide is None else self._memory(host.shape, wide).copy_(host)
        if dtype.name in _MOVED or not host.numel():
            return host
        # Bytes are moved as bytes; the first dim may be what is split.
        return host.reshape(host.shape[0] if host.dim() else 1, -1).view(torch.uint8)

    def _arrived(self, key: int, like: Like) -> Tensor:
        """Return what has come for a tensor, on its device."""
        torch, host = engine().torch, self._host[key]
        dtype = getattr(torch, like.dtype.name)
        if self.reduction == "AVG":
            mode = None if host.is_floating_point() else "trunc"
            host = host.div(self.lane.size, rounding_mode=mode)
        if self.reduction is None:
            host = host if host.dtype is dtype else host.view(dtype)
        elif like.dtype.is_complex:
            host = torch.view_as_complex(host)
        return _on_device(host.to(dtype).contiguous(), like)

    def start(self, at_once: bool = False) -> None:
        """Let it be done after those before it. `at_once`: this thread gives Gloo the call."""
        self.lane.start(self, at_once)

    def start_message(self, works: Sequence[Foreign]) -> None:
        """Let a thread wait for a message that Gloo has been given."""
        self.is_message = True
        self.lane.messages.submit(self.settle, works)

    def bring(self) -> None:
        """Settle it, if no thread does."""
        if self.is_here:
            self.lane.bring(self)

    def urge(self) -> None:
        """Let a thread settle it: nobody waits for it."""
        if self.is_here and not self.is_written:
            self.is_here = False
            self.lane.urge()

    def issued(self) -> list[Foreign] | None:
        """Give Gloo the call, or tell the others where its tensor is; return the works, None where that has failed."""
        lane = self.lane
        try:
            works = self.issue(self.connection())
        except Exception as error:
            self._fail(error)
            return None
        turn, shared = self._turn, lane.shared
        if turn is not None and turn.adding is not None and shared is not None:
            self._added = lane.sums.submit(shared.add, turn)
        return works

    def connection(self) -> Foreign:
        """Return the group that it is given to."""
        return self.lane.connection()

    def issue(self, gloo: Foreign) -> list[Foreign]:
        """Give Gloo the call, or tell the others where its tensor is, and return the works."""
        shared = self.lane.exchange(gloo) if self.is_shared else None
        like, recipe = self._like, self._recipe
        if shared is None or like is None or recipe is None:
            return self.give(gloo)
        given, home, elements = self._given, like.runtime.backend, numel(like.shape)
        if given is not None and home is not shared.backend:
            given = _moved(given, home, shared.backend, like.dtype, elements)
        self._turn = shared.begin(
            given, recipe, like.dtype, elements, self._put, has_result=bool(self.written)
        )
        return []

    def hear(self, works: Sequence[Foreign]) -> None:
        """Wait for the others; what is wrong is told by `settle`."""
        turn, shared = self._turn, self.lane.shared
        with contextlib.suppress(Exception):
            for work in works:
                self._wait(work)
            if turn is not None and shared is not None:
                shared.hear(turn)

    def _wait(self, work: Foreign) -> None:
        """Wait for a work of Gloo's; Ctrl+C and the end of the program do not reach who is within that."""
        while True:
            try:
                # A message is given up after such a time.
                work.wait(*[] if self.is_message else [_SLICE])
            except RuntimeError:
                if self.is_message or work.is_completed() or ending.is_set():
                    raise
            else:
                return

    def _take(self, works: Sequence[Foreign]) -> Buffer | None:
        """Wait for what Gloo does; return the result, where it is computed from shared memory."""
        turn, shared = self._turn, self.lane.shared
        try:
            for work in works:
                self._wait(work)
            if self._added is not None:
                self._added.result()
            return None if turn is None or shared is None else shared.take(turn, self._place)
        finally:
            if turn is not None:
                turn.is_over.set()

    def settle(self, works: Sequence[Foreign]) -> None:
        """Wait for what is done elsewhere, and let what came be where it belongs, or tell what is wrong."""
        try:
            self._place_all(works)
        except BaseException as error:
            self._fail(error)
            if not isinstance(error, Exception):
                raise
        else:
            # Only Gloo tells whose a message was.
            self.ended(works, None)

    def _place_all(self, works: Sequence[Foreign]) -> None:
        lane = self.lane
        result = self._take(works)
        self.receive()
        with self.lock:
            for key, like in self.written.items():
                if not numel(like.shape):
                    continue
                values = self._arrived(key, like) if result is None else self._made(result, like)
                arrival = self.arrivals.get(key)
                if arrival is None:
                    self.overwrite(key, values)
                else:
                    arrival.come(values._storage.node.buffer)
            self.is_written = True
            if self.end is not None:
                self.end.come(None)
        while self._taken:
            lane.memory.keep(self._taken.pop())
        self._let_go()

    def _made(self, result: Buffer, like: Like) -> Tensor:
        """Return a result of shared memory, on the tensor's device."""
        shared, home = self.lane.shared, like.runtime.backend
        assert shared is not None
        if home is not shared.backend:
            result = _moved(result, shared.backend, home, like.dtype, numel(like.shape))
        return Tensor._from_node(Node.in_memory(like.shape, like.dtype, result), like.runtime)

    def told(self, error: BaseException) -> RuntimeError:
        """Return an error of Gloo's, of the store or of shared memory, with what the call is and who is missing."""
        is_lost = isinstance(error, MissingError | engine().torch.distributed.DistError)
        silent = self.lane.silent() if is_lost or "transport" in str(error) else ""
        told = RuntimeError(f"{self.title()}: {silent}{str(error) or type(error).__name__}")
        told.__cause__ = error
        return told

    def _fail(self, error: BaseException) -> None:
        told = self.told(error)
        with self.lock:
            self.is_written = True
            for key, arrival in self.arrivals.items():
                # What is there instead is anything, as Gloo leaves it.
                like = self.written[key]
                zeros = engine().torch.zeros(
                    like.shape, dtype=getattr(engine().torch, like.dtype.name), device="cpu"
                )
                arrival.come(_on_device(zeros, like)._storage.node.buffer, told)
            if self.end is not None:
                self.end.come(None, told)
        self._let_go()
        self.ended((), told)

    def _let_go(self) -> None:
        """Let what was read go at once, not when its cycle is found: a loop then meets the same memory again."""
        self._given = self._put = self._turn = self._added = self._place = None
        self.reading.clear()
        self._host.clear()


def _at_end() -> None:
    """Let nobody wait for processes that may hang, where an error ends the program (Ctrl+C, too)."""
    if getattr(sys, "last_type", None) is not None:
        ending.set()


# What `atexit` calls comes after threads have been waited for.
_register: Callable[[Callable[[], None]], None] | None = getattr(
    threading, "_register_atexit", None
)
if _register is not None:
    _register(_at_end)


def _bytes(x: Foreign) -> memoryview:
    """Return the memory of a contiguous tensor of PyTorch's."""
    torch = engine().torch
    x = torch.view_as_real(x) if x.is_complex() else x
    return memoryview(x.reshape(-1).view(torch.uint8).numpy())


def _on_device(host: Foreign, like: Like) -> Tensor:
    return from_contents(_bytes(host), like.shape, like.dtype, like.runtime)


def _moved(buffer: Buffer, here: Backend, there: Backend, dtype: DType, elements: int) -> Buffer:
    """Return a buffer on another device."""
    return there.upload(here.download(buffer), dtype, elements)


def parts(x: Foreign) -> Sequence[Foreign]:
    """Return the parts of a tensor of PyTorch's that are summed up by themselves, side by side."""
    torch = engine().torch
    if x.layout is not torch.strided or not x.is_contiguous():
        return [x]
    count = min(_MOST_PARTS, x.numel() * x.element_size() // _PART)
    found: Sequence[Foreign] = x.view(-1).chunk(count) if count > 1 else [x]
    return found
