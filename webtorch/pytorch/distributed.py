"""Collectives of tensors on "webgpu": Gloo moves the bytes, between memory of the hosts. Floor 6.

PyTorch's process groups call an operator (`c10d::allreduce_`) that is chosen by where the tensors are, so a group of
Gloo's serves the device as soon as its operators are registered: DistributedDataParallel, FSDP2, DTensor and whatever
else ends there need nothing more. An operator submits what its tensors wait for and begins to read them; a thread of
the group's sends what has arrived and writes what comes back, in the order of the calls, while the caller goes on.
"""

from __future__ import annotations

import collections
import contextlib
import threading
import time
import warnings
import weakref
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch._C import _distributed_c10d as c10d
from torch.distributed import distributed_c10d
from torch.utils._pytree import tree_leaves, tree_map

from webtorch.distributed.shared import Exchange, Put, Recipe, Turn, recipe_for
from webtorch.functions.joining import cat
from webtorch.ir.graph import Node
from webtorch.ir.lines import user_line
from webtorch.pytorch import interrupt, sharding
from webtorch.pytorch.copying import (
    begin_download,
    can_expect,
    come,
    compute_first,
    computed,
    expect,
    host_tensor,
    overwrite,
    upload,
)
from webtorch.pytorch.device import (
    TO_WEBTORCH,
    Lain,
    is_whole,
    lie,
    made_of,
    opened,
    runtime,
    store,
    wrap,
)
from webtorch.pytorch.known import Kinds, Plan
from webtorch.runtime.arrivals import Arrival
from webtorch.runtime.backend import Buffer
from webtorch.runtime.staging import HostMemory
from webtorch.tensors.tensor import Tensor
from webtorch_autoload.device import NAME, hide, libraries

# Messages from one process to another, which Gloo tells apart by their tags: they keep no order with collectives.
_MESSAGES = frozenset(("send", "recv_", "recv_any_source_"))
# Types that Gloo adds up in another one: those of 16 bits would be rounded at each step.
_SUMMED_AS = {
    torch.float16: torch.float32,
    torch.bfloat16: torch.float32,
    torch.bool: torch.uint8,
    torch.int16: torch.int32,
}
# Types that Gloo moves as they are.
_MOVED = frozenset((
    torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.int8, torch.uint8, torch.int32, torch.int64,
))  # fmt: skip
_REDUCTIONS = {
    int(getattr(c10d.ReduceOp, name)): name for name in c10d.ReduceOp.RedOpType.__members__
}


@dataclass(frozen=True, slots=True)
class _Operator:
    """One collective, as its schema describes it."""

    name: str
    overload: torch._ops.OpOverload
    # The names of its arguments, with defaults where there are any.
    arguments: tuple[str, ...]
    defaults: Mapping[str, object]
    # Those whose tensors it reads, and those whose tensors it writes.
    reads: tuple[str, ...]
    writes: tuple[str, ...]
    # All of these, in their order.
    tensors: tuple[str, ...]
    # Whether it returns tensors beside its work.
    gives_tensors: bool

    @classmethod
    def of(cls, schema: Any) -> _Operator | None:
        """Return the collective of a schema; None where it moves no tensors."""
        name = schema.name.split("::")[1]
        tensors = [
            a.name
            for a in schema.arguments
            if "Tensor" in str(a.type) and "Optional" not in str(a.type)
        ]
        takes_group = any(a.name == "process_group" for a in schema.arguments)
        if not takes_group or tensors in ([], ["tensor"]):
            return None
        # The tensors of a barrier only say where it waits.
        written = [t for t in tensors if t.startswith("out")] or tensors
        read = [t for t in tensors if not t.startswith("out")]
        return cls(
            name,
            getattr(torch.ops.c10d, name).default,
            tuple(a.name for a in schema.arguments),
            {a.name: a.default_value for a in schema.arguments if a.has_default_value()},
            () if name.startswith("recv") else tuple(read),
            () if name == "send" else tuple(written),
            tuple(tensors),
            len(schema.returns) > 1,
        )

    def bind(self, args: Sequence[object], options: Mapping[str, object]) -> dict[str, Any]:
        """Return the arguments of a call by their names."""
        return {**self.defaults, **dict(zip(self.arguments, args)), **options}


# A sum of this size is cut into parts, which travel side by side.
_PART = 1 << 20
_MOST_PARTS = 8


class _Lane:
    """What a process group has for its tensors on the device: a connection of their own, since the group's own
    collectives on the CPU do not wait for them, and threads that keep the order of the calls: while one collective is
    written to the device, the next is sent, and those after it are read.
    """

    def __init__(self, group: c10d.ProcessGroup) -> None:
        self.rank, self.size, self.name = group.rank(), group.size(), group.group_name
        self.memory = HostMemory(lambda size: host_tensor((size,), torch.uint8))
        self.collectives, self.results, self.messages = (
            ThreadPoolExecutor(1, thread_name_prefix=f"webtorch-{kind}-{self.name}")
            for kind in ("collectives", "results", "messages")
        )
        self._connection: c10d.ProcessGroup | None = None
        # Memory that the processes share, where they can; None before that is known.
        self.shared: Exchange | None = None
        self.may_share = self.size > 1
        self._store: c10d.Store | None = None
        self._failed = False
        # PyTorch's group for plans of programs, which sends nothing.
        self.is_fake = distributed_c10d._world.pg_map.get(group, ("", None))[0] == "fake"

    def connection(self, group: c10d.ProcessGroup) -> c10d.ProcessGroup:
        """Return the group for collectives of the device, made at the first one: all ranks take part in that."""
        if self._connection is None:
            _, store = distributed_c10d._world.pg_map.get(group, (None, None))
            if store is None:
                return group
            self._store = store = c10d.PrefixStore(NAME, store)
            kind: Any = c10d.ProcessGroupGloo
            options = kind._Options()
            options._timeout = group._get_backend(torch.device("cpu")).options._timeout
            # The same number on all ranks: each is a connection to every other.
            options._threads = ways = max(1, min(_MOST_PARTS, 128 // self.size))
            options._devices = [kind.create_default_device() for _ in range(ways)]
            gloo = kind(store, self.rank, self.size, options)
            kind = c10d.ProcessGroup.BackendType.GLOO
            made = c10d.ProcessGroup(store, self.rank, self.size)
            made._set_default_backend(kind)
            made._register_backend(torch.device("cpu"), kind, gloo)
            self._connection = made
        return self._connection

    def exchange(self, connection: c10d.ProcessGroup) -> Exchange | None:
        """Return the memory that all ranks share, if they can; at the first call all take part."""
        if self.may_share and self.shared is None:
            self.shared = Exchange.open(connection, self.rank, self.size, runtime().backend)
            self.may_share = self.shared is not None
        return self.shared

    def silent(self, group: c10d.ProcessGroup) -> str:
        """Return in words which ranks do not say within a moment that a collective has failed for them too, once."""
        store, missing = self._store, [rank for rank in range(self.size) if rank != self.rank]
        if store is None or self._failed:
            return ""
        self._failed = True

        def ask() -> None:
            nonlocal missing
            store.set(f"failed {self.rank}", "")
            while missing:
                missing = [rank for rank in missing if not store.check([f"failed {rank}"])]
                time.sleep(_MOMENT / 10)

        # A store whose process is gone does not answer.
        thread = threading.Thread(target=_quietly, args=(ask,), daemon=True)
        thread.start()
        thread.join(_MOMENT)
        if not missing:
            return ""
        ranks = torch.distributed.get_process_group_ranks(group)
        named = ", ".join([str(ranks[rank]) for rank in missing])
        return (
            f"No word from rank {named}: it has ended, hangs, or has not come to this collective. "
        )

    def __del__(self) -> None:
        """Let the threads end."""
        self.collectives.shutdown(wait=False)
        self.results.shutdown(wait=False)
        self.messages.shutdown(wait=False)


# Seconds that ranks have to tell each other of a failure.
_MOMENT = 0.5


def _quietly(function: Callable[[], None]) -> None:
    with contextlib.suppress(Exception):
        function()


_lanes: weakref.WeakKeyDictionary[c10d.ProcessGroup, _Lane] = weakref.WeakKeyDictionary()
_lock = threading.Lock()


def _lane(group: c10d.ProcessGroup) -> _Lane:
    with _lock:
        found = _lanes.get(group)
        if found is None:
            found = _lanes[group] = _Lane(group)
        return found


class _Call:
    """One call of a collective by one rank."""

    def __init__(self, operator: _Operator, args: dict[str, Any]) -> None:
        self.operator, self.args = operator, args
        self.group = c10d.ProcessGroup.unbox(args["process_group"])
        self.lane = _lane(self.group)
        root = args.get("root_rank")
        is_root = root is None or root == self.lane.rank
        self.reads, self.writes = operator.reads, operator.writes
        if operator.name == "broadcast_":
            self.reads, self.writes = (self.reads, ()) if is_root else ((), self.writes)
        elif operator.name == "reduce_" and not is_root:
            self.writes = ()
        self.reduction = _REDUCTIONS[args["reduce_op"].op()] if "reduce_op" in args else None
        if self.reduction == "PREMUL_SUM":
            raise NotImplementedError(
                f"{self.title()}: Gloo has no PREMUL_SUM, and PyTorch tells only NCCL its factor; multiply the tensor "
                "first and use ReduceOp.SUM"
            )
        if self.reduction in ("BAND", "BOR", "BXOR") and any(
            x.is_floating_point() for name in self.reads for x in tree_leaves(args[name])
        ):
            raise RuntimeError(
                f"{self.title()}: Cannot use ReduceOp.{self.reduction} with non-integral dtype"
            )
        # The memory of what it reads, of a call that reads one tensor.
        self.given: Buffer | None = None
        # Where it has been copied to for the others, in the order of what is computed.
        self.put: Put | None = None
        # What it has of the host's memory until it is done.
        self._taken: list[torch.Tensor] = []
        # What it writes, once somebody waits who goes on before it has come; or whether it has been written.
        self.arrivals: list[tuple[torch.Tensor, Arrival]] | None = None
        self.is_written = False
        self._lock = threading.Lock()
        self.recipe = self._recipe() if self.lane.may_share else None
        self.turn: Turn | None = None
        # By the tensor on the device: what gives its values here. Of a sparse one they are read at once.
        self.arriving = {
            id(x): self._begin(x)
            for name in self.reads
            for x in tree_leaves(args[name])
            if x.device.type == NAME
        }
        shared = self.lane.shared
        if self.recipe is not None and self.given is not None and shared is not None:
            (x,) = tree_leaves([args[name] for name in operator.reads])
            self.put = shared.put(self.given, TO_WEBTORCH[x.dtype], x.numel())

    def _recipe(self) -> Recipe | None:
        """Return what the result is computed by from memory that all ranks share, if it can be: all find the same."""
        given = tree_leaves([self.args[name] for name in self.operator.reads])
        written = self.written()
        if len(given) != 1 or len(written) != 1:
            return None
        x, parts = given[0], self.lane.size if self.operator.name.endswith("_base_") else 1
        dtype = TO_WEBTORCH.get(x.dtype)
        if x.layout is not torch.strided or x.device.type != NAME or dtype is None:
            return None
        if x.numel() * parts not in (written[0].numel(), parts * parts * written[0].numel()):
            # Gloo says what is wrong.
            return None
        root = self.args.get("root_rank", 0)
        return recipe_for(self.operator.name, self.reduction, root, dtype, x.numel())

    def _begin(self, x: torch.Tensor) -> Callable[[], torch.Tensor]:
        """Submit what a tensor waits for, and begin to read it, unless it may not be read here."""
        if x.layout is not torch.strided:
            return x.detach().cpu
        if not x.numel():
            return lambda: host_tensor(x.shape, x.dtype)
        self.given = given = computed(x)

        def begin() -> Callable[[], torch.Tensor]:
            return begin_download(given, self.memory(x.shape, x.dtype))

        # Through shared memory it is read by no processor, as a rule.
        return begin() if self.recipe is None else lambda: begin()()

    def memory(self, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        """Return an uninitialised tensor on the host, for this call."""
        made = self.lane.memory.take(shape, dtype)
        self._taken.append(made)
        return made

    def title(self) -> str:
        """Return what the call is, for errors."""
        name = self.operator.name.strip("_")
        given = tree_leaves([self.args[arg] for arg in self.operator.tensors])
        what = ", ".join([f"{x.dtype} {tuple(x.shape)}" for x in given[:3]])
        more = f" and {len(given) - 3} more" if len(given) > 3 else ""
        return f"{name} of {what}{more} on rank {self.lane.rank} of {self.lane.size} (group {self.lane.name!r})"

    def written(self) -> list[torch.Tensor]:
        """Return the tensors that the call writes."""
        return [x for name in self.operator.writes for x in tree_leaves(self.args[name])]

    def to_host(self, x: torch.Tensor) -> torch.Tensor:
        """Return what stands for a tensor in the host's memory, of a type that Gloo takes."""
        if x.device.type != NAME:
            return x
        read = self.arriving.get(id(x))
        host = self.memory(x.shape, x.dtype) if read is None else read()
        if self.reduction is not None:
            if x.dtype in _SUMMED_AS:
                host = self.memory(x.shape, _SUMMED_AS[x.dtype]).copy_(host)
        elif x.dtype not in _MOVED:
            # Bytes are moved as bytes; the first dim may be what is split.
            host = host.reshape(x.shape[0] if x.dim() else 1, -1).view(torch.uint8)
        return host

    def expect(self) -> bool:
        """Let what is written be values that come later, if it is not there; False where it must be waited for."""
        with self._lock:
            if self.arrivals is None and not self.is_written:
                outs = [x for name in self.writes for x in tree_leaves(self.args[name])]
                if not all(map(can_expect, outs)):
                    return False
                # Where it writes nothing, its error comes all the same.
                self.arrivals = [(x, Arrival()) for x in outs]
                self.end = Arrival()
                # First of all, as another thread may compute what is pending at any time.
                runtime().arriving += [*[a for _, a in self.arrivals], self.end]
                for x, arrival in self.arrivals:
                    expect(x, arrival)
            return True

    def fail(self, error: Exception) -> None:
        """Tell who waits for values that they do not come."""
        with self._lock:
            self.is_written = True
            for x, arrival in self.arrivals or ():
                # What is there instead is anything, as Gloo leaves it.
                nothing = upload(host_tensor(x.shape, x.dtype).zero_(), TO_WEBTORCH[x.dtype])
                arrival.come(nothing._storage.node.buffer, error)
            if self.arrivals is not None:
                self.end.come(None, error)
        self._let_go()

    def to_device(self, x: torch.Tensor, host: torch.Tensor, arrival: Arrival | None) -> None:
        """Write what has come back."""
        if x is host:
            return
        if x.layout is not torch.strided:
            x.copy_(host)
            return
        if self.reduction == "AVG":
            host = host.div(
                self.lane.size, rounding_mode=None if host.is_floating_point() else "trunc"
            )
        if self.reduction is None and host.dtype is not x.dtype:
            host = host.view(x.dtype)
        host = host.reshape(x.shape)
        if arrival is None:
            overwrite(x, host)
        else:
            arrival.come(upload(host, TO_WEBTORCH[x.dtype])._storage.node.buffer)

    def issue(self, group: c10d.ProcessGroup) -> tuple[list[c10d.Work], dict[int, torch.Tensor]]:
        """Give Gloo the call, and return its works and the tensors in the host's memory, by those on the device."""
        host: dict[int, torch.Tensor] = {}
        shared = None if self.recipe is None else self.lane.exchange(group)
        if shared is not None:
            (x,) = tree_leaves([self.args[name] for name in self.operator.reads])
            with torch.profiler.record_function(f"shared memory:{self.operator.name.strip('_')}"):
                recipe = self.recipe if self.writes else None
                dtype, size = TO_WEBTORCH[x.dtype], x.numel()
                self.turn, work = shared.begin(self.given, recipe, dtype, size, self.put)
            return [work], host

        def stand_in(x: torch.Tensor) -> torch.Tensor:
            if id(x) not in host:
                host[id(x)] = self.to_host(x)
            return host[id(x)]

        args = {**self.args, "process_group": group.boxed()}
        for name in self.operator.tensors:
            args[name] = tree_map(stand_in, args[name])
        if self.reduction == "AVG":
            args["reduce_op"] = torch.classes.c10d.ReduceOp()
        calls = [args]
        if self.operator.name == "allreduce_" and len(args["tensors"]) == 1:
            calls = [{**args, "tensors": [part]} for part in _parts(args["tensors"][0])]
        works = []
        for each in calls:
            found = self.operator.overload(*[each[name] for name in self.operator.arguments])
            works.append(c10d.Work.unbox(found[-1] if type(found) is tuple else found))
        return works, host

    def settle(
        self, works: Sequence[c10d.Work], host: dict[int, torch.Tensor]
    ) -> list[torch.Tensor]:
        """Wait for what Gloo does, write what came, and return what was written."""
        try:
            for work in works:
                work.wait()
            result = self._take()
        finally:
            if self.turn is not None:
                self.turn.is_over.set()
        with torch.no_grad(), self._lock:
            coming = {id(x): arrival for x, arrival in self.arrivals or ()}
            for name in self.writes:
                for x in tree_leaves(self.args[name]):
                    if result is None:
                        self.to_device(x, host[id(x)], coming.get(id(x)))
                    elif id(x) in coming:
                        coming[id(x)].come(result)
                    else:
                        come(x, result)
            self.is_written = True
            if self.arrivals is not None:
                self.end.come(None)
        while self._taken:
            self.lane.memory.keep(self._taken.pop())
        self._let_go()
        return self.written()

    def _let_go(self) -> None:
        """Let what was read go at once, not when its cycle is found: a loop then meets the same memory again."""
        self.given = self.put = self.turn = None
        self.arriving.clear()

    def _take(self) -> Buffer | None:
        """Return the result, where it is computed from shared memory."""
        shared = self.lane.shared
        return None if self.turn is None or shared is None else shared.take(self.turn)


def _parts(x: torch.Tensor) -> Sequence[torch.Tensor]:
    """Return the parts of a dense tensor on the host that are summed up by themselves."""
    if x.layout is not torch.strided or not x.is_contiguous():
        return [x]
    count = min(_MOST_PARTS, x.numel() * x.element_size() // _PART)
    return x.view(-1).chunk(count) if count > 1 else [x]


class _Work(c10d.Work):
    """The work of a call that a thread does. What PyTorch makes of a future would not raise its error."""

    def __init__(self, call: _Call) -> None:
        super().__init__()
        self._call: _Call | None = call
        self._found: list[torch.Tensor] = []
        self._error: RuntimeError | None = None
        self._end: torch.futures.Future[None] = torch.futures.Future()
        # An error that a callback raises is one of C++'s futures too, where one that is set is a value.
        self._promise = self._end.then(self._answer)
        # C++ hands it out by its Python object as long as there is one, and asks that for an answer.
        _open[id(self)] = self
        if len(_open) > _MOST_OPEN:
            for key in [key for key, work in _open.items() if work.is_completed()]:
                _open.pop(key, None)

    def start(self) -> None:
        """Let the threads of its group do it, after those before it."""
        assert self._call is not None
        thread = self._call.lane.collectives
        if torch.autograd._profiler_enabled():
            # Gloo tells the profiler of the thread that gives it the call.
            thread.submit(int).result()
            self._issue()
        else:
            thread.submit(self._issue)

    def _issue(self) -> None:
        call = self._call
        assert call is not None
        try:
            issued = call.issue(call.lane.connection(call.group))
        except Exception as error:
            self._fail(error)
        else:
            call.lane.results.submit(self._settle, *issued)

    def _settle(self, works: Sequence[c10d.Work], host: dict[int, torch.Tensor]) -> None:
        assert self._call is not None
        try:
            self._found = self._call.settle(works, host)
            self._note(works)
        except Exception as error:
            self._fail(error)
        else:
            self._finish()

    def _note(self, works: Sequence[c10d.Work]) -> None:
        """Keep what Gloo's works tell beside the tensors."""

    def _fail(self, error: Exception) -> None:
        assert self._call is not None
        call = self._call
        silent = call.lane.silent(call.group) if "transport" in str(error) else ""
        self._error = RuntimeError(f"{call.title()}: {silent}{error}")
        self._error.__cause__ = error
        call.fail(self._error)
        self._finish()

    def _finish(self) -> None:
        self._call = None
        # What waits for it may call and await other collectives.
        _followers.submit(self._end.set_result, None)

    def _answer(self, end: object) -> list[torch.Tensor]:
        if self._error is not None:
            raise self._error
        return self._found

    def _comes_later(self) -> list[torch.Tensor] | None:
        """Return what is written, if it is not there and may come later: what reads it waits. Profiles end with it."""
        call, opened.received = self._call, True
        if torch.autograd._profiler_enabled():
            return None
        return call.written() if call is not None and call.expect() else None

    def wait(self, timeout: object = None) -> bool:
        """Return when what it writes may be used: as with CUDA, what reads that waits for it, and raises RuntimeError
        with the rank, the collective and its tensors where it failed. With a timeout, wait until it is done.
        """
        _open.pop(id(self), None)
        later = None if timeout else self._comes_later()
        if later is not None:
            self._found = later
            if all(x.numel() == 1 for x in later):
                _numbers.append(self)
            return True
        try:
            self._promise.wait()
        except RuntimeError:
            # PyTorch would tell it as an error of a callback.
            if self._error is not None:
                raise self._error from self._error.__cause__
            raise
        if all(x.numel() == 1 for x in self._found):
            _numbers.append(self)
        return True

    def is_completed(self) -> bool:
        """Whether it is done, or has failed."""
        call = self._call
        return call is None or call.is_written

    def is_success(self) -> bool:
        """Whether it is done."""
        return self.is_completed() and self.exception() is None

    def exception(self) -> BaseException | None:
        """Return its error, if there is one by now."""
        return self._error

    def result(self) -> list[torch.Tensor]:
        """Return what it has written, or will have."""
        return self._found or self._promise.value()

    def synchronize(self) -> None:
        """Wait until it is done."""
        self.wait()

    def get_future(self) -> torch.futures.Future[list[torch.Tensor]]:
        """Return a future of what it writes."""
        _open.pop(id(self), None)
        later = self._comes_later()
        if later is None:
            return self._promise
        future: torch.futures.Future[list[torch.Tensor]] = torch.futures.Future()
        future.set_result(later)
        return future


# A compiled DistributedDataParallel calls these before its forward pass: Dynamo must not compile what they call.
for _method in (_Work.wait, _Work.is_completed, _Work.is_success, _Work.exception, _Work.result):
    hide(_method)


class _Message(_Work):
    """The work of a message that arrives. It knows whose it is, once it is there."""

    source = -1

    def _comes_later(self) -> list[torch.Tensor] | None:
        return None

    def start_waiting(self, works: Sequence[c10d.Work], host: dict[int, torch.Tensor]) -> None:
        """Let a thread wait for it."""
        assert self._call is not None
        self._call.lane.messages.submit(self._settle, works, host)

    def _note(self, works: Sequence[c10d.Work]) -> None:
        self.source = int(works[0]._source_rank())

    def _source_rank(self) -> int:
        self.wait()
        return self.source


# Runs what programs add to futures (`then`), of collectives within that, too.
_followers = ThreadPoolExecutor(16, thread_name_prefix="webtorch-follower")
# Works that somebody in C++ may still ask.
_open: dict[int, _Work] = {}
_MOST_OPEN = 1024
# The last ones that gave a number: a reducer asks for that after it has waited (how many ranks still train).
_numbers: collections.deque[_Work] = collections.deque(maxlen=16)


class _Packing:
    """Tensors of one type and these shapes, one after the other in one: each way is one call, known by its kind."""

    def __init__(self) -> None:
        self.joins, self.parts = Kinds(), Kinds()

    def pack(self, tensors: Sequence[torch.Tensor]) -> torch.Tensor:
        """Return all in one."""
        nodes: list[Node] = []
        plan = self.joins.find(tensors, {}, nodes, [])
        if type(plan) is Plan:
            joined: torch.Tensor = plan.tensors(nodes, (), user_line())
            return joined

        def call(values: Sequence[Tensor], options: object) -> Lain:
            """Return all in one, as it is to lie."""
            return lie(cat([x.reshape((-1,)) for x in values]), True)

        values = [wrap(x) for x in tensors]
        if type(plan) is tuple:
            return made_of(self.joins.watch(plan, call, values, {}, nodes, ()))
        return made_of(call(values, {}))

    def unpack(self, flat: torch.Tensor, tensors: Sequence[torch.Tensor]) -> None:
        """Overwrite each with its part."""
        nodes: list[Node] = []
        whole = all(map(is_whole, tensors))
        plan = self.parts.find((flat,), {}, nodes, []) if whole else None
        if type(plan) is Plan:
            plan.write_all(tensors, nodes, (), user_line())
            return

        def call(values: Sequence[Tensor], options: object) -> tuple[Lain, ...]:
            """Return the parts as they are to lie."""
            given = values[0].split([x.numel() for x in tensors])
            return tuple([lie(v.reshape(tuple(x.shape)), False) for v, x in zip(given, tensors)])

        if type(plan) is tuple:
            made = self.parts.watch(plan, call, [wrap(flat)], {}, nodes, ())
        else:
            made = call([wrap(flat)], {})
        for x, part in zip(tensors, made, strict=True):
            store(x, part.tensor, True)


# By the type and the shapes of the tensors.
_packings: dict[object, _Packing] = {}


def _broadcast_coalesced(
    original: Callable[..., None],
    group: c10d.ProcessGroup,
    tensors: Sequence[torch.Tensor],
    size: int,
    rank: int = 0,
) -> None:
    """Let tensors of each process become those of one, as many at a time as `size` bytes hold. PyTorch copies each by
    itself, and waits for all.
    """
    if not all(x.device.type == NAME and x.layout is torch.strided for x in tensors):
        original(group, tensors, size, rank)
        return
    options, packed = c10d.BroadcastOptions(), []
    options.rootRank = rank
    for numbers in c10d._compute_bucket_assignment_by_size(list(tensors), [size])[0]:
        some = [tensors[n].detach() for n in numbers]
        kind = some[0].dtype, tuple([x.shape for x in some])
        packing = _packings.setdefault(kind, _Packing())
        if group.rank() == rank:
            flat = packing.pack(some)
        else:
            flat = torch.empty(sum(x.numel() for x in some), dtype=kind[0], device=some[0].device)
        packed.append((packing, flat, some))
    # Buffers are of the last forward pass: they need not wait for the sums of the step after it.
    for _, flat, _ in packed if group.rank() == rank else ():
        compute_first(flat)
    sent = [group.broadcast([flat], options) for _, flat, _ in packed]
    for work, (packing, flat, some) in zip(sent, packed, strict=True):
        work.wait()
        if group.rank() != rank:
            packing.unpack(flat, some)
            torch.autograd.graph.increment_version(some)


def _kernel(operator: _Operator) -> Callable[..., object]:
    """Return the kernel of a collective for tensors on the device."""

    def kernel(*args: object, **options: object) -> object:
        interrupt.check()
        sharding.teach()
        given = operator.bind(args, options)
        if _lane(c10d.ProcessGroup.unbox(given["process_group"])).is_fake:
            return operator.overload._op_dk(torch._C.DispatchKey.CPU, *args, **options)
        call = _Call(operator, given)
        if operator.name not in _MESSAGES:
            work: Any = _Work(call)
            work.start()
        else:
            issued, host = call.issue(call.group)
            work = issued[0]
            if call.writes:
                work = _Message(call)
                work.start_waiting(issued, host)
        return (
            (call.args[operator.writes[0]], work.boxed())
            if operator.gives_tensors
            else work.boxed()
        )

    return hide(kernel)


def register() -> None:
    """Register the collectives."""
    module: Any = torch.distributed
    module._broadcast_coalesced = partial(hide(_broadcast_coalesced), module._broadcast_coalesced)
    library = torch.library.Library("c10d", "IMPL")
    libraries.append(library)
    with warnings.catch_warnings():
        # PyTorch has kernels there, which hand the tensors to a group of the device's own.
        warnings.simplefilter("ignore")
        for schema in torch._C._jit_get_all_schemas():
            operator = _Operator.of(schema) if schema.name.startswith("c10d::") else None
            if operator is not None:
                kernel = _kernel(operator)
                library.impl(operator.name, kernel, "PrivateUse1")
                if operator.name == "allreduce_":
                    library.impl(operator.name, kernel, "SparsePrivateUse1")
