"""Process groups, and the works that their collectives return. Floor 5.

A tensor on the CPU is given to Gloo as it lies: Gloo reads and writes its memory. One on WebGPU is read first, which
its group's thread waits for, so that the caller goes on; `wait()` writes back what has come.
"""

from __future__ import annotations

import datetime
import functools
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import Future as Pending
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from webtorch.dispatch.call import refuse_scripts, settle_scripts
from webtorch.distributed.engine import Foreign, engine
from webtorch.distributed.reduction import ReduceOp
from webtorch.distributed.shared import Exchange as SharedMemory
from webtorch.distributed.shared import Recipe, Turn, recipe_for
from webtorch.futures import Future
from webtorch.ir import dtype as dtypes
from webtorch.ir.dtype import DType
from webtorch.ir.graph import Node
from webtorch.ops import primitive
from webtorch.runtime.backend import Backend, Buffer
from webtorch.runtime.realize import runtime_for
from webtorch.runtime.staging import HostMemory, in_huge_pages
from webtorch.tensors.arrays import see
from webtorch.tensors.creation import from_contents
from webtorch.tensors.host import tracing
from webtorch.tensors.modes import no_grad
from webtorch.tensors.storage import writes
from webtorch.tensors.tensor import Tensor

# Types that Gloo adds up in another one: those of 16 bits would be rounded at each step.
_SUMMED_AS = {"float16": "float32", "bfloat16": "float32", "bool": "uint8", "int16": "int32"}
# Types that Gloo does not move; their bytes it does.
_MOVED_AS_BYTES = frozenset(("bool", "int16", "uint16", "uint32", "uint64"))


# What collectives are to shared memory, by their names.
_KINDS = {
    "all_reduce": "allreduce_",
    "broadcast": "broadcast_",
    "reduce_scatter_tensor": "_reduce_scatter_base_",
    "all_gather_into_tensor": "_allgather_base_",
}
T = TypeVar("T")


class Exchange:
    """The tensors of one call as Gloo takes them, and what is to be done with those that it writes.

    `reduction`: what happens to their values; None where bytes are moved.
    """

    def __init__(
        self, title: str, size: int, pool: HostMemory, reduction: ReduceOp | None = None
    ) -> None:
        self.title, self.size, self.reduction, self._pool = title, size, reduction, pool
        # What it has of the host's memory until it is done.
        self._taken: list[Foreign] = []
        # What is written back when the work is done: in this thread, and in the one that waits.
        self._after: list[Callable[[], None]] = []
        self._written: list[tuple[Tensor, Foreign]] = []
        self._results: list[tuple[Tensor, Tensor]] = []
        # Memory of the host's for tensors that are on their way there, and what to wait for.
        self._arriving: dict[int, tuple[Foreign, Awaitable[object]]] = {}

    def begin(self, given: Sequence[Tensor], written: Sequence[Tensor], reads: bool = True) -> bool:
        """Compute what is read, and begin to read what is not in the host's memory, if it `reads` there; return whether
        all is there.
        """
        settle_scripts("tensors are sent to other processes")
        refuse_scripts("tensors are sent to other processes")
        if tracing.active:
            # The function that is captured runs as usual from here on.
            for runtime in {x._storage.runtime for x in (*given, *written)}:
                runtime.realize()
            tracing.refuse("it sends tensors to other processes, which a program cannot")
        for x in (*given, *written):
            _check(self.title, x)
        for x in written:
            if writes.guard is not None:
                writes.guard(x._storage)
            x._counter.version += 1
        for x in given if reads else ():
            if not x.is_cpu and x.numel() and id(x) not in self._arriving:
                values = x.detach()
                found = self._memory(x)
                self._arriving[id(x)] = (
                    found,
                    (values._pairs() if values.dtype.is_complex else values)._arriving(
                        _bytes(found)
                    ),
                )
        return all(x.is_cpu for x in (*given, *written))

    def host(self, x: Tensor, is_written: bool = True) -> Foreign:
        """Return what stands for a tensor: its own memory, or a copy of its values."""
        torch = engine().torch
        found = _view(x) if x.is_cpu else self._copy(x)
        given = found
        if x.dtype.is_complex:
            given = torch.view_as_real(given)
        elif self.reduction is not None:
            given = given.to(getattr(torch, _SUMMED_AS.get(x.dtype.name, x.dtype.name)))
        elif x.dtype.name in _MOVED_AS_BYTES:
            # The first dim may be what is split.
            given = given.reshape(given.shape[0] if given.dim() else 1, -1).contiguous()
            given = given.view(torch.uint8)
        given = given.contiguous()
        if is_written:
            self._after.append(functools.partial(self._settle, found, given))
            if not x.is_cpu:
                self._written.append((x, found))
        return given

    def _copy(self, x: Tensor) -> Foreign:
        if id(x) not in self._arriving:
            return self._memory(x)
        import asyncio

        found, coming = self._arriving[id(x)]
        asyncio.run(_arrive(coming))
        return found

    def _memory(self, like: Tensor) -> Foreign:
        """Return an uninitialised tensor of PyTorch's in the host's memory, until the call is done."""
        made = self._pool.take(tuple(like.shape), getattr(engine().torch, like.dtype.name))
        self._taken.append(made)
        return made

    def _settle(self, found: Foreign, given: Foreign) -> None:
        """Bring what came to the memory that it belongs to."""
        torch = engine().torch
        if self.reduction is ReduceOp.AVG:
            mode = None if given.is_floating_point() else "trunc"
            given.copy_(given.div(self.size, rounding_mode=mode))
        if given.data_ptr() == found.data_ptr():
            return
        if found.is_complex():
            given = torch.view_as_complex(given)
        elif self.reduction is None and given.dtype is not found.dtype:
            given = given.view(found.dtype)
        found.copy_(given.reshape(found.shape))

    def take(self, x: Tensor, result: Buffer) -> None:
        """Let a tensor become what has been computed for it, when the call is done."""
        node = Node.in_memory(tuple(x.shape), x.dtype, result)
        self._results.append((x, Tensor._from_node(node, x._storage.runtime)))

    def settle(self) -> None:
        """Bring all that came to where it belongs in the host's memory."""
        for after in self._after:
            after()
        self._after.clear()

    def finish(self) -> None:
        """Write what came to the device."""
        with no_grad():
            for x, found in self._written:
                primitive.write(x.detach(), _uploaded(found, x))
            for x, values in self._results:
                primitive.write(x.detach(), values)
        self._written.clear()
        self._results.clear()
        while self._taken:
            self._pool.keep(self._taken.pop())


async def _arrive(coming: Awaitable[object]) -> None:
    await coming


def _bytes(x: Foreign) -> memoryview:
    """Return the memory of a contiguous tensor of PyTorch's."""
    return memoryview(x.reshape(-1).view(engine().torch.uint8).numpy())


def _view(x: Tensor) -> Foreign:
    """Return a tensor of PyTorch's on the memory of one of ours."""
    torch, x = engine().torch, x.detach()
    if not x.numel():
        return torch.empty(tuple(x.shape), dtype=getattr(torch, x.dtype.name))
    if x.dtype is dtypes.bfloat16:
        flat = torch.from_numpy(x._storage.lend().view("int16")).view(torch.bfloat16)
        return flat.as_strided(tuple(x._shape), tuple(x._strides), x._offset)
    return torch.from_numpy(see(x))


def _uploaded(found: Foreign, like: Tensor) -> Tensor:
    """Return what PyTorch's tensor holds where ours is."""
    contents = _bytes(found.contiguous())
    return from_contents(contents, like._shape, like.dtype, like._storage.runtime)


def _check(title: str, x: Tensor) -> None:
    if x.is_meta:
        raise RuntimeError(f"{title}: a tensor on the device 'meta' has no values to send")
    if "strided" not in str(x.layout):
        raise RuntimeError(f"{title}: tensors must be dense; convert it first with to_dense()")
    if x._levels:
        raise RuntimeError(f"{title}: there is no rule for vmap: call it outside")


class Work:
    """A collective that is under way."""

    def __init__(self, exchange: Exchange, result: Sequence[Tensor], group: ProcessGroup) -> None:
        self._exchange: Exchange | None = exchange
        self._title = exchange.title
        self._result, self._group = list(result), group
        self._gloo: Foreign = None
        self._pending: Pending[None] | None = None
        self._error: RuntimeError | None = None
        self._future: Future[list[Tensor]] | None = None
        self._source = -1

    def _start(self, issue: Callable[[Exchange], Foreign], here: bool) -> None:
        """Give Gloo the call, now or when the group's thread comes to it."""
        exchange = self._exchange
        assert exchange is not None
        if here:
            self._gloo = issue(exchange)
            return

        def run() -> None:
            """Issue the call and wait until its result is in the tensors."""
            work = issue(exchange)
            work.wait()
            exchange.settle()

        self._pending = self._group._in_order(run)

    def wait(self, timeout: datetime.timedelta | None = None) -> bool:
        """Wait until it is done. Raises RuntimeError with the collective, its tensors and the rank where it failed."""
        exchange, self._exchange = self._exchange, None
        if exchange is not None:
            try:
                if self._pending is not None:
                    self._pending.result(None if timeout is None else timeout.total_seconds())
                else:
                    _wait(self._gloo, timeout)
                    exchange.settle()
                    self._source = _source(self._gloo)
                exchange.finish()
            except Exception as error:
                self._error = RuntimeError(f"{self._title}: {error}")
                self._error.__cause__ = error
            self._pending = self._gloo = None
            self._complete()
        if self._error is not None:
            raise self._error
        return True

    def _complete(self) -> None:
        future = self._future
        if future is not None and not future._done:
            if self._error is not None:
                future.set_exception(self._error)
            else:
                future.set_result(self._result)

    def is_completed(self) -> bool:
        """Whether it is done, or has failed."""
        if self._exchange is None:
            return True
        done = self._pending.done() if self._pending is not None else self._gloo.is_completed()
        if done:
            self._ended()
        return bool(done)

    def _ended(self) -> None:
        try:
            self.wait()
        except RuntimeError:
            # Kept: whoever waits gets it.
            return

    def is_success(self) -> bool:
        """Whether it is done."""
        return self.is_completed() and self._error is None

    def exception(self) -> BaseException | None:
        """Return its error, if there is one by now."""
        self.is_completed()
        return self._error

    def result(self) -> list[Tensor]:
        """Return what it has written."""
        self.wait()
        return self._result

    def synchronize(self) -> None:
        """Wait until it is done."""
        self.wait()

    def source_rank(self) -> int:
        """Return the rank in the group whose message it was."""
        self.wait()
        return self._source

    _source_rank = source_rank

    def get_future(self) -> Future[list[Tensor]]:
        """Return a future of what it writes."""
        if self._future is None:
            future: Future[list[Tensor]] = Future()
            self._future = future

            def comes(wait: bool) -> bool:
                """Return whether the collective has ended; with `wait`, after waiting for it."""
                if wait:
                    self._ended()
                return self.is_completed()

            future._comes = comes
            if self._exchange is None:
                self._complete()
        return self._future


def _wait(gloo: Foreign, timeout: datetime.timedelta | None) -> None:
    if timeout is None:
        gloo.wait()
    else:
        gloo.wait(timeout)


def _source(gloo: Foreign) -> int:
    try:
        return int(gloo._source_rank())
    except RuntimeError:
        # It is no message that came.
        return -1


class _Passage:
    """A tensor on its way through memory that the processes share."""

    def __init__(
        self, shared: SharedMemory, recipe: Recipe, given: Tensor | None, written: Tensor | None
    ) -> None:
        x = given if given is not None else written
        assert x is not None
        self._shared, self._recipe, self._written = shared, recipe, written
        self._home, self._dtype, self._elements = x._storage.runtime.backend, x.dtype, x.numel()
        self._buffer = None if given is None else given.detach()._in_memory()
        self._is_here = self._home is shared.backend
        self._put = None
        if self._is_here and self._buffer is not None:
            self._put = shared.put(self._buffer, self._dtype, self._elements)

    def begin(self) -> tuple[Turn, Foreign]:
        """Tell the others where it is; return the turn, and the work that is done when all have told."""
        buffer, self._buffer = self._buffer, None
        if buffer is not None and not self._is_here:
            buffer = _moved(buffer, self._home, self._shared.backend, self._dtype, self._elements)
        recipe = None if self._written is None else self._recipe
        return self._shared.begin(buffer, recipe, self._dtype, self._elements, self._put)

    def end(self, begun: Pending[tuple[Turn, Foreign]], exchange: Exchange) -> None:
        """Wait for the others, and compute the result."""
        turn, work = begun.result()
        try:
            work.wait()
            result = self._shared.take(turn)
        finally:
            turn.is_over.set()
        x = self._written
        if x is not None and result is not None:
            if not self._is_here:
                result = _moved(result, self._shared.backend, self._home, x.dtype, x.numel())
            exchange.take(x, result)


def _moved(buffer: Buffer, here: Backend, there: Backend, dtype: DType, elements: int) -> Buffer:
    """Return a buffer on another device."""
    return there.upload(here.download(buffer), dtype, elements)


class ProcessGroup:
    """Processes that call collectives together: PyTorch's Gloo between them."""

    def __init__(
        self, store: object, ranks: Sequence[int], rank: int, name: str, timeout: datetime.timedelta
    ) -> None:
        """Connect the processes of global `ranks`; `rank` is this one's number among them."""
        self.ranks, self._rank, self.group_name, self.timeout = list(ranks), rank, name, timeout
        self.store = store
        self._gloo: Foreign = engine().c10d.ProcessGroupGloo(store, rank, len(self.ranks), timeout)
        torch = engine().torch
        self._pool = HostMemory(
            lambda n: in_huge_pages(torch.empty(n, dtype=torch.uint8, device="cpu"))
        )
        # Threads in which calls are given to Gloo, and in which results of shared memory are computed, in their order.
        self._thread: ThreadPoolExecutor | None = None
        self._results: ThreadPoolExecutor | None = None
        self._shared = self._memory()
        self._last: Pending[Any] | None = None
        self.bound_device_id: object = None
        self.group_desc = "undefined"

    def _memory(self) -> SharedMemory | None:
        """Return the memory that all processes share, if they can, with a connection of its own."""
        if self.size() < 2:
            return None
        store = engine().c10d.PrefixStore("shared", self.store)
        gloo = engine().c10d.ProcessGroupGloo(store, self._rank, self.size(), self.timeout)
        return SharedMemory.open(gloo, self._rank, self.size(), runtime_for("cpu", 0).backend)

    def rank(self) -> int:
        """Return this process's number in the group."""
        return self._rank

    def size(self) -> int:
        """Return the number of processes."""
        return len(self.ranks)

    def name(self) -> str:
        """Return "gloo"."""
        return "gloo"

    def __repr__(self) -> str:
        return f"<ProcessGroup {self.group_name!r}: rank {self._rank} of {self.size()}, gloo>"

    def gloo(self) -> Foreign:
        """Return Gloo's group. Raises RuntimeError after `destroy_process_group`."""
        if self._gloo is None:
            raise RuntimeError(f"the process group {self.group_name!r} was destroyed")
        return self._gloo

    def _in_order(self, run: Callable[[], T]) -> Pending[T]:
        """Let the group's thread call `run` after what came before."""
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, thread_name_prefix=f"webtorch-{self.group_name}")
        self._last = found = self._thread.submit(run)
        return found

    def settled(self) -> None:
        """Wait until Gloo has been given all calls so far, so that processes agree on their order."""
        last, self._last = self._last, None
        if last is not None:
            last.exception()

    def call(
        self,
        name: str,
        given: Sequence[Tensor],
        written: Sequence[Tensor],
        issue: Callable[[Foreign, Exchange], Foreign],
        reduction: ReduceOp | None = None,
        is_message: bool = False,
        root: int | None = None,
    ) -> Work:
        """Begin a collective: `issue(gloo, exchange)` gives it to Gloo and returns Gloo's work. `root`: whose tensor
        all get, where they do.
        """
        gloo = self.gloo()
        exchange = Exchange(
            self.title(name, [*given, *written]), self.size(), self._pool, reduction
        )
        recipe = self._recipe(name, given, written, reduction, root)
        with no_grad():
            there = exchange.begin(given, written, recipe is None)
            work = Work(exchange, written or given, self)
            if recipe is not None:
                assert self._shared is not None
                x, y = (of[0] if of else None for of in (given, written))
                work._pending = self._pass(_Passage(self._shared, recipe, x, y), exchange)
                return work
        if there:
            self.settled()
        try:
            work._start(lambda found: issue(gloo, found), there or is_message)
        except RuntimeError as error:
            raise RuntimeError(f"{exchange.title}: {error}") from error
        return work

    def _recipe(
        self,
        name: str,
        given: Sequence[Tensor],
        written: Sequence[Tensor],
        reduction: ReduceOp | None,
        root: int | None,
    ) -> Recipe | None:
        """Return what a result is computed by from memory that all share, if it can be: all find the same."""
        kind = _KINDS.get(name)
        if self._shared is None or kind is None or (root is None and name == "broadcast"):
            return None
        x = (*given, *written)[0]
        if "strided" not in str(x.layout) or x.is_meta or x._levels:
            return None
        reduced = None if reduction is None else reduction.name
        return recipe_for(kind, reduced, root or 0, x.dtype, x.numel())

    def _pass(self, passage: _Passage, exchange: Exchange) -> Pending[None]:
        """Let the group's threads move a tensor through shared memory, after what came before."""
        if self._results is None:
            self._results = ThreadPoolExecutor(
                1, thread_name_prefix=f"webtorch-results-{self.group_name}"
            )
        begun = self._in_order(passage.begin)
        return self._results.submit(passage.end, begun, exchange)

    def title(self, name: str, tensors: Sequence[Tensor]) -> str:
        """Return what a call is, for errors."""
        given = list({id(x): x for x in tensors}.values())
        what = ", ".join([f"{x.dtype} {tuple(x.shape)}" for x in given[:3]])
        more = f" and {len(given) - 3} more" if len(given) > 3 else ""
        of = f" of {what}{more}" if given else ""
        return f"{name}{of} on rank {self._rank} of {self.size()} (group {self.group_name!r})"

    def close(self) -> None:
        """Let go of the connections."""
        self.settled()
        if self._thread is not None:
            self._thread.shutdown(wait=True)
        if self._results is not None:
            self._results.shutdown(wait=True)
        self._gloo = self._thread = self._results = self._shared = None
