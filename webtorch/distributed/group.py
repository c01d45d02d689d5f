"""Process groups, and the works that their collectives return. Floor 5."""

from __future__ import annotations

import contextlib
import datetime
import threading
from collections.abc import Callable, Sequence

from webtorch.dispatch.call import refuse_scripts, settle_scripts
from webtorch.distributed.calls import Call, Lane, Like
from webtorch.distributed.engine import Foreign, engine
from webtorch.distributed.reduction import ReduceOp
from webtorch.distributed.shared import Recipe, recipe_for
from webtorch.futures import Future
from webtorch.ops import primitive
from webtorch.runtime.arrivals import Arrival
from webtorch.runtime.realize import is_seen, runtime_for
from webtorch.tensors.host import tracing
from webtorch.tensors.modes import no_grad
from webtorch.tensors.storage import writes
from webtorch.tensors.tensor import Tensor

# What collectives are to shared memory, by their names.
_KINDS = {
    "all_reduce": "allreduce_",
    "broadcast": "broadcast_",
    "reduce_scatter_tensor": "_reduce_scatter_base_",
    "all_gather_into_tensor": "_allgather_base_",
}


class Exchange(Call):
    """The call of a collective, and what is to be done with the tensors that it writes."""

    def __init__(
        self,
        group: ProcessGroup,
        title: str,
        written: Sequence[Tensor],
        issue: Callable[[Foreign, Exchange], Foreign],
        reduction: ReduceOp | None,
    ) -> None:
        """`issue` gives Gloo the call and returns Gloo's work."""
        super().__init__(group.lane(), None if reduction is None else reduction.name)
        self._title, self._issue_by = title, issue
        self._out = {id(x): x for x in written if x.numel()}
        self.written = {key: Like.of(x) for key, x in self._out.items()}
        self.arrivals = {key: Arrival() for key in self._out}
        # Set when all is written, or will not be; then whose message it was, and its error.
        self.is_over = threading.Event()
        self.source = -1
        self.error: RuntimeError | None = None
        self.has_landed = False

    def title(self) -> str:
        """Return what the call is, for errors."""
        return self._title

    def begin(self, given: Sequence[Tensor], written: Sequence[Tensor]) -> None:
        """Compute what is read, and begin to read it."""
        settle_scripts("tensors are sent to other processes")
        refuse_scripts("tensors are sent to other processes")
        if tracing.active:
            # The function that is captured runs as usual from here on.
            for runtime in {x._storage.runtime for x in (*given, *written)}:
                runtime.realize()
            tracing.refuse("it sends tensors to other processes, which a program cannot")
        for x in (*given, *written):
            _check(self._title, x)
        for x in written:
            if writes.guard is not None:
                writes.guard(x._storage)
            x._counter.version += 1
        for key, x in {id(x): x for x in given}.items():
            # What NumPy may write once the call has been waited for is read now.
            self.read(key, primitive.copy(x) if is_seen(x._storage.node) else x.detach())

    def of(self, x: Tensor) -> Foreign:
        """Return what stands for a tensor in the host's memory."""
        return self.host(id(x), tuple(x._shape), x.dtype)

    def give(self, gloo: Foreign) -> list[Foreign]:
        """Give Gloo the call."""
        return [self._issue_by(gloo, self)]

    def ended(self, works: Sequence[Foreign], error: RuntimeError | None) -> None:
        """Take note that all has come, or will not."""
        self.error = error
        if works:
            # Only a message tells.
            with contextlib.suppress(RuntimeError):
                self.source = int(works[0]._source_rank())
        self.is_over.set()

    def land(self) -> bool:
        """Let what is written be values that arrive; return whether there are any."""
        if self.is_over.is_set() and self.error is not None:
            return False
        if not self.has_landed:
            self.has_landed = True
            with no_grad():
                for key, like in self.written.items():
                    self._expect(self._out[key], like, self.arrivals[key])
            self._out.clear()
        return bool(self.written)

    def _expect(self, x: Tensor, like: Like, arrival: Arrival) -> None:
        shape, dtype = like.shape, like.dtype
        if dtype.is_complex:
            shape, dtype = (*shape, 2), dtype.to_real()
        # First of all, as another thread may compute what is pending at any time.
        like.runtime.arriving.append(arrival)
        node = arrival.node(shape, dtype)
        values, target = Tensor._from_node(node, like.runtime), x.detach()
        primitive.write(target._pairs() if like.dtype.is_complex else target, values, True)
        if x._storage.node is node:
            # Nothing is computed in the memory of the old value.
            x._storage.donor = None


def _check(title: str, x: Tensor) -> None:
    if x.is_meta:
        raise RuntimeError(f"{title}: a tensor on the device 'meta' has no values to send")
    if "strided" not in str(x.layout):
        raise RuntimeError(f"{title}: tensors must be dense; convert it first with to_dense()")
    if x._levels:
        raise RuntimeError(f"{title}: there is no rule for vmap: call it outside")


class Work:
    """A collective that is under way."""

    def __init__(self, call: Exchange, result: Sequence[Tensor]) -> None:
        self._call, self._result = call, list(result)
        self._future: Future[list[Tensor]] | None = None

    def wait(self, timeout: datetime.timedelta | None = None) -> bool:
        """Return when what it writes may be used: what reads that waits for it, and raises RuntimeError with the
        collective, its tensors and the rank where it failed. With a timeout, or where it writes nothing, wait until it
        is done.
        """
        if not self._call.land() or timeout is not None:
            self._end(timeout)
        return True

    def _end(self, timeout: datetime.timedelta | None = None) -> None:
        """Wait until it is done, and raise its error."""
        call = self._call
        if not call.is_over.wait(None if timeout is None else timeout.total_seconds()):
            raise RuntimeError(f"{call.title()}: not done after {timeout}")
        if call.error is not None:
            for arrival in call.arrivals.values():
                # What reads these values need not raise it again.
                arrival.error = None
            raise call.error

    def is_completed(self) -> bool:
        """Whether it is done, or has failed."""
        done = self._call.is_over.is_set()
        if done:
            self._call.land()
        return done

    def is_success(self) -> bool:
        """Whether it is done."""
        return self.is_completed() and self._call.error is None

    def exception(self) -> BaseException | None:
        """Return its error, if there is one by now."""
        return self._call.error

    def result(self) -> list[Tensor]:
        """Return what it has written, or will have."""
        self.wait()
        return self._result

    def synchronize(self) -> None:
        """Wait until it is done."""
        self.wait()

    def source_rank(self) -> int:
        """Return the rank in the group whose message it was, when that is there."""
        self.wait()
        self._end()
        return self._call.source

    _source_rank = source_rank

    def get_future(self) -> Future[list[Tensor]]:
        """Return a future of what it writes, whose values may arrive later."""
        if self._future is None:
            future: Future[list[Tensor]] = Future()
            self._future = future

            def comes(wait: bool) -> bool:
                """Return whether there is a result; with `wait`, after waiting for it."""
                call = self._call
                if not future._done and (wait or call.land() or call.is_over.is_set()):
                    try:
                        future.set_result(self.result())
                    except RuntimeError as error:
                        future.set_exception(error)
                return future._done

            future._comes = comes
        return self._future


class ProcessGroup:
    """Processes that call collectives together: PyTorch's Gloo between them."""

    def __init__(
        self, store: object, ranks: Sequence[int], rank: int, name: str, timeout: datetime.timedelta
    ) -> None:
        """Connect the processes of global `ranks`; `rank` is this one's number among them."""
        self.ranks, self._rank, self.group_name, self.timeout = list(ranks), rank, name, timeout
        self.store = store
        self._gloo: Foreign = engine().c10d.ProcessGroupGloo(store, rank, len(self.ranks), timeout)
        self._lane: Lane | None = Lane(
            name, self.ranks, rank, store, timeout, lambda: runtime_for("cpu", 0).backend
        )
        self.bound_device_id: object = None
        self.group_desc = "undefined"

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

    def lane(self) -> Lane:
        """Return what it has for tensors on their way."""
        self.gloo()
        assert self._lane is not None
        return self._lane

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
        title = self.title(name, [*given, *written])
        call = Exchange(self, title, written, issue, reduction)
        recipe = self._recipe(name, given, written, reduction, root)
        if recipe is not None:
            call.share(recipe, Like.of((*given, *written)[0]))
        with no_grad():
            call.begin(given, written)
        if not is_message:
            call.start()
            return Work(call, written or given)
        try:
            call.start_message(call.give(self.gloo()))
        except RuntimeError as error:
            raise RuntimeError(f"{title}: {error}") from error
        return Work(call, written or given)

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
        if kind is None or (root is None and name == "broadcast"):
            return None
        x = (*given, *written)[0]
        if "strided" not in str(x.layout) or x.is_meta or x._levels:
            return None
        reduced = None if reduction is None else reduction.name
        return recipe_for(kind, reduced, root or 0, x.dtype, x.numel())

    def title(self, name: str, tensors: Sequence[Tensor]) -> str:
        """Return what a call is, for errors."""
        given = list({id(x): x for x in tensors}.values())
        what = ", ".join([f"{x.dtype} {tuple(x.shape)}" for x in given[:3]])
        more = f" and {len(given) - 3} more" if len(given) > 3 else ""
        of = f" of {what}{more}" if given else ""
        return f"{name}{of} on rank {self._rank} of {self.size()} (group {self.group_name!r})"

    def close(self) -> None:
        """Let go of the connections."""
        if self._lane is not None:
            self._lane.close()
        self._gloo = self._lane = None
