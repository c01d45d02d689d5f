"""Process groups, and the works that their collectives return. Floor 5."""

from __future__ import annotations

import contextlib
import datetime
import threading
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

from webtorch.dispatch.call import refuse_scripts, settle_scripts
from webtorch.distributed.calls import Call, Lane, Like
from webtorch.distributed.counting import told
from webtorch.distributed.engine import Foreign, engine
from webtorch.distributed.reduction import ReduceOp
from webtorch.distributed.shared import Recipe, recipe_for
from webtorch.futures import Future
from webtorch.ir.dtype import DType
from webtorch.ir.graph import Node
from webtorch.ir.view import Shape, numel
from webtorch.ops import primitive
from webtorch.runtime.arrivals import Arrival
from webtorch.runtime.backend import Buffer
from webtorch.runtime.realize import is_seen, open_runtimes, runtime_for
from webtorch.tensors.host import Given, HostCall, tracing
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


Hosts = list[Foreign]
# Gives Gloo a call with what stands for its tensors in the host's memory, those it reads and those it writes, and
# returns Gloo's work.
Issue = Callable[[Foreign, Hosts, Hosts], Foreign]


class Form(NamedTuple):
    """A collective as it was called, without its tensors: they go by numbers."""

    group: ProcessGroup
    title: str
    tensors: Sequence[Like]
    given: Sequence[int]
    written: Sequence[int]
    issue: Issue
    reduction: ReduceOp | None
    # What the result is computed by from memory that all share, if it can be.
    recipe: Recipe | None
    is_message: bool


class Exchange(Call):
    """The call of a collective, and what is to be done with the tensors that it writes."""

    def __init__(self, form: Form, written: Mapping[int, Tensor] = MappingProxyType({})) -> None:
        """`written`: the tensors that values arrive in, by number."""
        super().__init__(form.group.lane(), None if form.reduction is None else form.reduction.name)
        self.form = form
        self._out = {key: x for key, x in written.items() if x.numel()}
        self.written = {k: form.tensors[k] for k in form.written if numel(form.tensors[k].shape)}
        self.arrivals = {key: Arrival(bring=self.bring) for key in self.written}
        # Set when all is written, or will not be; then whose message it was, and its error.
        self.is_over = threading.Event()
        self.source = -1
        self.error: RuntimeError | None = None
        self.has_landed = False
        # What notes it where a function is captured, until it has begun.
        self.noted: Sending | None = None
        if form.recipe is not None:
            self.share(form.recipe, form.tensors[0])

    def title(self) -> str:
        """Return what the call is, for errors."""
        return self.form.title

    def begin(self, given: Mapping[int, Tensor], written: Mapping[int, Tensor]) -> None:
        """Compute what is read, begin to read it, and let it go on its way; note it where a function is captured."""
        settle_scripts("tensors are sent to other processes")
        refuse_scripts("tensors are sent to other processes")
        for x in written.values():
            if writes.guard is not None:
                writes.guard(x._storage)
            x._counter.version += 1
        if tracing.active and all(like.runtime.capturing for like in self.form.tensors):
            self.noted = Sending(self, given)
            tracing.calls.append(self.noted)
            return
        go_on_as_usual()
        for key, x in given.items():
            # What NumPy may write once the call has been waited for is read now.
            self.read(key, primitive.copy(x) if is_seen(x._storage.node) else x.detach())
        self.send()

    def send(self) -> None:
        """Let what is read go on its way."""
        form = self.form
        if not form.is_message:
            self.start()
            return
        try:
            self.start_message(self.give(form.group.gloo()))
        except RuntimeError as error:
            raise self.told(error) from error

    def give(self, gloo: Foreign) -> list[Foreign]:
        """Give Gloo the call."""
        form = self.form
        given, written = (
            [self.host(key, form.tensors[key].shape, form.tensors[key].dtype) for key in keys]
            for keys in (form.given, form.written)
        )
        return [form.issue(gloo, given, written)]

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
                for key, x in self._out.items():
                    self._expect(x, self.written[key], self.arrivals[key])
            self._out.clear()
        return bool(self.written)

    def _expect(self, x: Tensor, like: Like, arrival: Arrival) -> None:
        node = arrival.node(*_real(like))
        if self.noted is not None:
            self.noted.coming.append(node)
            self.noted.expected.append(arrival)
        else:
            # First of all, as another thread may compute what is pending at any time.
            like.runtime.arriving.append(arrival)
        values, target = Tensor._from_node(node, like.runtime), x.detach()
        primitive.write(target._pairs() if like.dtype.is_complex else target, values, True)
        if x._storage.node is node:
            # Nothing is computed in the memory of the old value.
            x._storage.donor = None

    def wait(self, timeout: datetime.timedelta | None = None) -> None:
        """Wait until it is done, and raise its error; note that where a function is captured."""
        if self.noted is not None and tracing.active:
            tracing.calls.append(Waiting(self.noted, timeout))
            return
        if timeout is None:
            self.bring()
        self.urge()
        if not self.is_over.wait(None if timeout is None else timeout.total_seconds()):
            raise RuntimeError(f"{self.title()}: not done after {timeout}")
        if self.error is not None:
            for arrival in self.arrivals.values():
                # What reads these values need not raise it again.
                arrival.error = None
            raise self.error

    def look(self) -> None:
        """Be under way: who asks how far it is decides by that."""
        if self.noted is not None and tracing.active:
            go_on_as_usual()


class Sending(HostCall):
    """A collective of a function that is captured: each replay begins it again."""

    def __init__(self, first: Exchange, given: Mapping[int, Tensor]) -> None:
        self.form = first.form
        self.name = first.form.title.partition(" ")[0]
        # That of the capture, which goes on its way if the function runs as usual.
        self._first: Exchange | None = first
        reads = {k: x for k, x in given.items() if x.numel()}
        self._keys = list(reads)
        self.given = [Given(_value(x)) for x in reads.values()]
        self.coming: list[Node] = []
        self.expected: list[Arrival] = []

    def act(self, values: Sequence[Buffer], run: dict[HostCall, Exchange]) -> Sequence[Arrival]:
        """Begin it."""
        exchange, self._first = self._first, None
        if exchange is None:
            exchange = Exchange(self.form)
            coming = [exchange.arrivals[key] for key in exchange.written][: len(self.coming)]
        else:
            exchange.noted, coming = None, self.expected
        run[self] = exchange
        for key, values_of_key in zip(self._keys, values, strict=True):
            exchange.read_memory(key, values_of_key, self.form.tensors[key])
        exchange.send()
        return coming

    def forget(self) -> None:
        """Let go of the collective that was not begun."""
        self._first = None

    def is_possible(self) -> bool:
        """Whether its group is there."""
        return self.form.group.is_open


class Waiting(HostCall):
    """A wait for a collective of a function that is captured."""

    def __init__(self, of: Sending, timeout: datetime.timedelta | None) -> None:
        self.coming = ()
        self._of, self._timeout = of, timeout

    def act(self, values: Sequence[Buffer], run: dict[HostCall, Exchange]) -> Sequence[Arrival]:
        """Wait."""
        run[self._of].wait(self._timeout)
        return ()


def go_on_as_usual() -> None:
    """Let a function that is captured, which does what a program cannot repeat, run as usual from here on."""
    if tracing.active:
        for runtime in open_runtimes():
            if runtime.capturing:
                runtime.realize()


def _real(like: Like) -> tuple[Shape, DType]:
    """Return the shape and the type of a tensor's memory."""
    if like.dtype.is_complex:
        return (*like.shape, 2), like.dtype.to_real()
    return like.shape, like.dtype


def _value(x: Tensor) -> Node:
    """Return the value of a tensor, row-major."""
    x = x._pairs() if x.dtype.is_complex else x.detach()
    return (x if x._whole else primitive.copy(x))._storage.node


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
            self._call.wait(timeout)
        return True

    def is_completed(self) -> bool:
        """Whether it is done, or has failed."""
        self._call.look()
        self._call.urge()
        done = self._call.is_over.is_set()
        if done:
            self._call.land()
        return done

    def is_success(self) -> bool:
        """Whether it is done."""
        return self.is_completed() and self._call.error is None

    def exception(self) -> BaseException | None:
        """Return its error, if there is one by now."""
        self._call.look()
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
        self._call.look()
        self.wait()
        self._call.wait()
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

    @property
    def is_open(self) -> bool:
        """Whether it has not been destroyed."""
        return self._gloo is not None

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
        issue: Issue,
        reduction: ReduceOp | None = None,
        is_message: bool = False,
        root: int | None = None,
    ) -> Work:
        """Begin a collective, which `issue` gives to Gloo. `root`: whose tensor
        all get, where they do.
        """
        if told.listeners:
            told.tell(name)
        found = list({id(x): x for x in (*given, *written)}.values())
        keys = {id(x): key for key, x in enumerate(found)}
        title = self.title(name, found)
        for x in found:
            _check(title, x)
        form = Form(
            self, title, [Like.of(x) for x in found], [keys[id(x)] for x in given],
            [keys[id(x)] for x in written], issue, reduction, self._recipe(name, given, written, reduction, root),
            is_message,
        )  # fmt: skip
        call = Exchange(form, {keys[id(x)]: x for x in written})
        with no_grad():
            call.begin({keys[id(x)]: x for x in given}, {keys[id(x)]: x for x in written})
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
        what = ", ".join([f"{x.dtype} {tuple(x.shape)}" for x in tensors[:3]])
        more = f" and {len(tensors) - 3} more" if len(tensors) > 3 else ""
        of = f" of {what}{more}" if tensors else ""
        return f"{name}{of} on rank {self._rank} of {self.size()} (group {self.group_name!r})"

    def close(self) -> None:
        """Let go of the connections."""
        if self._lane is not None:
            self._lane.close()
        self._gloo = self._lane = None
