"""Collectives of tensors on "webgpu": Gloo moves the bytes, between memory of the hosts. Floor 6.

PyTorch's process groups call an operator (`c10d::allreduce_`) that is chosen by where the tensors are, so a group of
Gloo's serves the device as soon as its operators are registered: DistributedDataParallel, FSDP2, DTensor and whatever
else ends there need nothing more. An operator submits what its tensors wait for and begins to read them; a thread of
the group's sends what has arrived and writes what comes back, in the order of the calls, while the caller goes on.
"""

from __future__ import annotations

import collections
import dataclasses
import threading
import warnings
import weakref
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Any

import torch
from torch._C import _distributed_c10d as c10d
from torch.distributed import distributed_c10d
from torch.utils._pytree import tree_map

from webtorch.distributed.bucket import default_cap
from webtorch.distributed.calls import Call, Lane, Like, parts
from webtorch.distributed.shared import recipe_for
from webtorch.functions.joining import cat
from webtorch.ir.graph import Node
from webtorch.ir.lines import user_line
from webtorch.pytorch import interrupt, sharding
from webtorch.pytorch.copying import (
    can_expect,
    expect,
    overwrite,
)
from webtorch.pytorch.device import (
    TO_WEBTORCH,
    Lain,
    is_whole,
    lie,
    made_of,
    opened,
    place_of,
    runtime,
    store,
    wrap,
)
from webtorch.pytorch.known import Key, Kinds, Plan
from webtorch.runtime.arrivals import Arrival
from webtorch.tensors.tensor import Tensor
from webtorch_autoload.device import NAME, hide, libraries

# Messages from one process to another, which Gloo tells apart by their tags: they keep no order with collectives.
_MESSAGES = frozenset(("send", "recv_", "recv_any_source_"))
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


_lanes: weakref.WeakKeyDictionary[c10d.ProcessGroup, Lane] = weakref.WeakKeyDictionary()
_lock = threading.Lock()


def _is_fake(group: c10d.ProcessGroup) -> bool:
    """Whether it is PyTorch's group for plans of programs, which sends nothing."""
    return distributed_c10d._world.pg_map.get(group, ("", None))[0] == "fake"


def _lane(group: c10d.ProcessGroup) -> Lane:
    with _lock:
        found = _lanes.get(group)
        if found is None:
            world, timeout = distributed_c10d._world, None
            _, store = world.pg_map.get(group, (None, None))
            ranks = list(world.pg_group_ranks.get(group, range(group.size())))
            if store is not None:
                timeout = group._get_backend(torch.device("cpu")).options._timeout
            found = _lanes[group] = Lane(
                group.group_name, ranks, group.rank(), store, timeout, lambda: runtime().backend
            )
        return found


class _Call(Call):
    """One call of a collective by one rank."""

    def __init__(self, operator: _Operator, args: dict[str, Any]) -> None:
        self.operator, self.args = operator, args
        self.group = c10d.ProcessGroup.unbox(args["process_group"])
        lane = _lane(self.group)
        reduction = _REDUCTIONS[args["reduce_op"].op()] if "reduce_op" in args else None
        super().__init__(lane, reduction)
        root = args.get("root_rank")
        is_root = root is None or root == lane.rank
        reads, writes = operator.reads, operator.writes
        if operator.name == "broadcast_":
            reads, writes = (reads, ()) if is_root else ((), writes)
        elif operator.name == "reduce_" and not is_root:
            writes = ()
        given = self._tensors(reads)
        self._check(given)
        self.outs = self._tensors(writes)
        self.written = {id(x): _like(x) for x in self.outs if _is_dense(x)}
        # Whoever waits is told by this.
        self.work: _Work | None = None
        if lane.may_share:
            self._share(given)
        for x in given:
            if x.device.type == NAME and id(x) not in self.reading:
                if x.layout is torch.strided:
                    self.read(id(x), wrap(x.resolve_conj().resolve_neg()))
                else:
                    self.reading[id(x)], self.is_sparse = x.detach().cpu, True

    def _tensors(self, names: Sequence[str]) -> list[torch.Tensor]:
        return [x for name in names for x in _flat(self.args[name])]

    def _check(self, given: Sequence[torch.Tensor]) -> None:
        if self.reduction == "PREMUL_SUM":
            raise NotImplementedError(
                f"{self.title()}: Gloo has no PREMUL_SUM, and PyTorch tells only NCCL its factor; multiply the tensor "
                "first and use ReduceOp.SUM"
            )
        if self.reduction in ("BAND", "BOR", "BXOR") and any(x.is_floating_point() for x in given):
            raise RuntimeError(
                f"{self.title()}: Cannot use ReduceOp.{self.reduction} with non-integral dtype"
            )

    def _share(self, given: Sequence[torch.Tensor]) -> None:
        """Let the result be computed from memory that all ranks share, if it can be: all find the same."""
        given, written = (
            given or self._tensors(self.operator.reads),
            self.outs or self._tensors(self.operator.writes),
        )
        if len(given) != 1 or len(written) != 1:
            return
        x, parts = given[0], self.lane.size if self.operator.name.endswith("_base_") else 1
        dtype = TO_WEBTORCH.get(x.dtype)
        if x.layout is not torch.strided or x.device.type != NAME or dtype is None:
            return
        if x.numel() * parts not in (written[0].numel(), parts * parts * written[0].numel()):
            # Gloo says what is wrong.
            return
        root = self.args.get("root_rank", 0)
        self.share(recipe_for(self.operator.name, self.reduction, root, dtype, x.numel()), _like(x))

    def title(self) -> str:
        """Return what the call is, for errors."""
        name = self.operator.name.strip("_")
        given = self._tensors(self.operator.tensors)
        what = ", ".join([f"{x.dtype} {tuple(x.shape)}" for x in given[:3]])
        more = f" and {len(given) - 3} more" if len(given) > 3 else ""
        return f"{name} of {what}{more} on rank {self.lane.rank} of {self.lane.size} (group {self.lane.name!r})"

    def expect(self) -> bool:
        """Let what is written be values that come later, if it is not there; False where it must be waited for."""
        with self.lock:
            if self.end is not None or self.is_written:
                return True
            if not all(map(can_expect, self.outs)):
                return False
            # Where it writes nothing, its error comes all the same.
            self.end = Arrival(bring=self.bring)
            self.arrivals = {key: self.arrival(like) for key, like in self.written.items()}
            nodes = {k: self.arrivals[k].node(x.shape, x.dtype) for k, x in self.written.items()}
            # First of all, as another thread may compute what is pending at any time.
            runtime().arriving += [*self.arrivals.values(), self.end]
        # Who writes them may have to wait for values, of these too.
        for x in {id(x): x for x in self.outs}.values():
            expect(x, nodes[id(x)])
        return True

    def _stand_in(self, x: torch.Tensor) -> torch.Tensor:
        """Return what stands for a tensor in the host's memory."""
        if x.device.type != NAME:
            return x
        found: torch.Tensor = self.host(id(x), tuple(x.shape), TO_WEBTORCH[x.dtype])
        return found

    def connection(self) -> c10d.ProcessGroup:
        """Return the group that it is given to."""
        return self.lane.connection() or self.group

    def issue(self, gloo: c10d.ProcessGroup) -> list[c10d.Work]:
        """Give Gloo the call, or tell the others where its tensor is, and return the works."""
        if not self.is_shared:
            return super().issue(gloo)
        with torch.profiler.record_function(f"shared memory:{self.operator.name.strip('_')}"):
            return super().issue(gloo)

    def give(self, gloo: c10d.ProcessGroup) -> list[c10d.Work]:
        """Give Gloo the call, and return its works."""
        args = {**self.args, "process_group": gloo.boxed()}
        for name in self.operator.tensors:
            args[name] = tree_map(self._stand_in, args[name])
        if self.reduction == "AVG":
            args["reduce_op"] = torch.classes.c10d.ReduceOp()
        calls = [args]
        if self.operator.name == "allreduce_" and len(args["tensors"]) == 1:
            calls = [{**args, "tensors": [part]} for part in parts(args["tensors"][0])]
        works = []
        for each in calls:
            found = self.operator.overload(*[each[name] for name in self.operator.arguments])
            works.append(c10d.Work.unbox(found[-1] if type(found) is tuple else found))
        return works

    def receive(self) -> None:
        """Let sparse tensors have what has come for them."""
        for x in self.outs:
            host = self._host.get(id(x))
            if host is not None and x is not host and x.layout is not torch.strided:
                x.copy_(host)

    def overwrite(self, key: int, values: Tensor) -> None:
        """Write what has come for a tensor that nobody waits for."""
        for x in self.outs:
            if id(x) == key:
                overwrite(x, values)
                return

    def ended(self, works: Sequence[c10d.Work], error: RuntimeError | None) -> None:
        """Tell whoever waits."""
        work, self.work = self.work, None
        if work is not None:
            work.end(works, error)


def _flat(value: object) -> list[torch.Tensor]:
    """Return the tensors of an argument: a tensor, a list of some, or a list of lists."""
    if isinstance(value, torch.Tensor):
        return [value]
    return [x for part in value for x in _flat(part)] if isinstance(value, list) else []


def _is_dense(x: torch.Tensor) -> bool:
    return x.device.type == NAME and x.layout is torch.strided


def _like(x: torch.Tensor) -> Like:
    dtype = TO_WEBTORCH[x.dtype]
    return Like(tuple(x.shape), dtype, place_of(dtype))


class _Work(c10d.Work):
    """The work of a call that a thread does. What PyTorch makes of a future would not raise its error."""

    def __init__(self, call: _Call) -> None:
        super().__init__()
        self._call: _Call | None = call
        self._found: list[torch.Tensor] = []
        self._error: RuntimeError | None = None
        # What ends, and what answers then, once somebody asks for them.
        self._end: torch.futures.Future[None] | None = None
        self._answering: torch.futures.Future[list[torch.Tensor]] | None = None
        # C++ hands it out by its Python object as long as there is one, and asks that for an answer.
        _open[id(self)] = self
        if len(_open) > _MOST_OPEN:
            for key in [key for key, work in _open.items() if work.is_completed()]:
                _open.pop(key, None)

    def start(self) -> None:
        """Let the threads of its group do it, after those before it."""
        call = self._call
        assert call is not None
        call.work = self
        # Gloo tells the profiler of the thread that gives it the call.
        call.start(at_once=torch.autograd._profiler_enabled())

    def end(self, works: Sequence[c10d.Work], error: RuntimeError | None) -> None:
        """Take note that it is done, or has failed."""
        assert self._call is not None
        self._found, self._error = self._call.outs, error
        if works:
            self._note(works)
        with _ending:
            self._call, end = None, self._end
        if end is not None:
            # What waits for it may call and await other collectives.
            _followers.submit(end.set_result, None)

    def _promise(self) -> torch.futures.Future[list[torch.Tensor]]:
        """Return a future of what it writes, when that is there."""
        with _ending:
            call, found = self._call, self._answering
            if call is not None:
                call.urge()
            if found is None:
                self._end = torch.futures.Future()
                # An error that a callback raises is one of C++'s futures too, where one that is set is a value.
                found = self._answering = self._end.then(self._answer)
                if call is None:
                    self._end.set_result(None)
        return found

    def _note(self, works: Sequence[c10d.Work]) -> None:
        """Keep what Gloo's works tell beside the tensors."""

    def _answer(self, end: object) -> list[torch.Tensor]:
        if self._error is not None:
            raise self._error
        return self._found

    def _comes_later(self) -> list[torch.Tensor] | None:
        """Return what is written, if it is not there and may come later: what reads it waits. Profiles end with it."""
        call, opened.received = self._call, True
        if torch.autograd._profiler_enabled():
            return None
        return call.outs if call is not None and call.expect() else None

    def wait(self, timeout: object = None) -> bool:
        """Return when what it writes may be used: as with CUDA, what reads that waits for it, and raises RuntimeError
        with the rank, the collective and its tensors where it failed. With a timeout, wait until it is done.
        """
        _open.pop(id(self), None)
        later = None if timeout else self._comes_later()
        call = self._call
        if later is None and not timeout and call is not None:
            call.bring()
        if later is not None:
            self._found = later
            if all(x.numel() == 1 for x in later):
                _numbers.append(self)
            return True
        try:
            self._promise().wait()
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
        if call is not None:
            call.urge()
        return call is None or call.is_written

    def is_success(self) -> bool:
        """Whether it is done."""
        return self.is_completed() and self.exception() is None

    def exception(self) -> BaseException | None:
        """Return its error, if there is one by now."""
        return self._error

    def result(self) -> list[torch.Tensor]:
        """Return what it has written, or will have."""
        return self._found or self._promise().value()

    def synchronize(self) -> None:
        """Wait until it is done."""
        self.wait()

    def get_future(self) -> torch.futures.Future[list[torch.Tensor]]:
        """Return a future of what it writes."""
        _open.pop(id(self), None)
        later = self._comes_later()
        if later is None:
            return self._promise()
        future: torch.futures.Future[list[torch.Tensor]] = torch.futures.Future()
        future.set_result(later)
        return future


# A compiled DistributedDataParallel calls these before its forward pass: Dynamo must not compile what they call.
for _method in (_Work.wait, _Work.is_completed, _Work.is_success, _Work.exception, _Work.result):
    hide(_method)


class _Message(_Work):
    """The work of a message that arrives. It knows whose it is, once it is there."""

    source = -1

    def start_waiting(self, works: Sequence[c10d.Work]) -> None:
        """Let a thread wait for it."""
        assert self._call is not None
        self._call.work = self
        self._call.start_message(works)

    def _note(self, works: Sequence[c10d.Work]) -> None:
        self.source = int(works[0]._source_rank())

    def _source_rank(self) -> int:
        self._promise().wait()
        return self.source


class _Sent(_Work):
    """The work of a message that is sent: Gloo's, whose error names the call."""

    def __init__(self, call: _Call, work: c10d.Work) -> None:
        super().__init__(call)
        self._work = work

    def wait(self, timeout: object = None) -> bool:
        """Return when the message has been sent. Raises RuntimeError with the rank and the tensor."""
        _open.pop(id(self), None)
        call = self._call
        try:
            self._work.wait(*[timeout] if isinstance(timeout, timedelta) else [])
        except RuntimeError as error:
            if call is None:
                raise
            self._error = told = call.told(error)
            raise told from error
        finally:
            self._call = None
        return True

    def is_completed(self) -> bool:
        """Whether it has been sent, or has failed."""
        return self._call is None or self._work.is_completed()

    def result(self) -> list[torch.Tensor]:
        """Return nothing, as Gloo does."""
        return self._work.result()

    def get_future(self) -> torch.futures.Future[list[torch.Tensor]]:
        """Raise what Gloo raises: a message has no future."""
        return self._work.get_future()


# Runs what programs add to futures (`then`), of collectives within that, too.
_followers = ThreadPoolExecutor(16, thread_name_prefix="webtorch-follower")
# Held while one ends, or is asked for a future of that.
_ending = threading.Lock()
# Works that somebody in C++ may still ask.
_open: dict[int, _Work] = {}
_MOST_OPEN = 1024
# The last ones that gave a number: a reducer asks for that after it has waited (how many ranks still train).
_numbers: collections.deque[_Work] = collections.deque(maxlen=16)


class _Packing:
    """Tensors of one type and these shapes, one after the other in one: each way is one call, known by its kind."""

    def __init__(self) -> None:
        self.joins, self.parts = Kinds(), Kinds()
        # What has been packed last, and what has been packed since, of which values.
        self.last: list[weakref.ref[torch.Tensor]] = []
        self._ahead: tuple[list[Node], torch.Tensor] | None = None

    def pack_ahead(self) -> None:
        """Pack what has been packed last as it is now: its values are mostly those that will be sent next."""
        tensors = [x.detach() for r in self.last if (x := r()) is not None]
        self._ahead = None
        if tensors and len(tensors) == len(self.last):
            nodes: list[Node] = []
            plan = self.joins.find(tensors, {}, nodes, [])
            self._ahead = nodes, self._joined(tensors, plan, nodes)

    def pack(self, tensors: Sequence[torch.Tensor]) -> torch.Tensor:
        """Return all in one."""
        self.last = [weakref.ref(x) for x in tensors]
        tensors, nodes = [x.detach() for x in tensors], list[Node]()
        plan = self.joins.find(tensors, {}, nodes, [])
        ahead, self._ahead = self._ahead, None
        if ahead is not None and nodes and nodes == ahead[0]:
            return ahead[1]
        return self._joined(tensors, plan, nodes)

    def _joined(
        self, tensors: Sequence[torch.Tensor], plan: Plan | Key | None, nodes: list[Node]
    ) -> torch.Tensor:
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
            plan.write(tuple(tensors), nodes, (), user_line())
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


def _pack_ahead() -> None:
    """Pack what is sent in each step where the step's program computes it: then it needs no program of its own."""
    with torch.no_grad():
        for packing in _packings.values():
            packing.pack_ahead()


def _not_cut(
    original: Callable[[], torch.nn.parallel.DistributedDataParallel | None],
) -> torch.nn.parallel.DistributedDataParallel | None:
    """Return the module whose graph Dynamo is to cut at its buckets: none where processes share memory, since fewer
    programs gain more there than sums that begin sooner.
    """
    found = original()
    if found is not None and any(p.device.type == NAME for p in found.module.parameters()):
        return None if _lane(found.process_group).shared is not None else found
    return found


def _with_buckets(
    original: Callable[..., None],
    model: torch.nn.parallel.DistributedDataParallel,
    parameters: Sequence[torch.Tensor],
    *args: object,
) -> None:
    """Make a module's reducer, with buckets of our size where the user does not say."""
    own: Any = model
    if own.bucket_bytes_cap_default and all(p.device.type == NAME for p in parameters):
        nbytes = sum([p.numel() * p.element_size() for p in parameters])
        own.bucket_bytes_cap = cap = default_cap(nbytes, _lane(model.process_group))
        own._bucket_config = dataclasses.replace(own._bucket_config, bucket_bytes_cap=cap)
    original(model, parameters, *args)


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
        some = [tensors[n] for n in numbers]
        kind = some[0].dtype, tuple([x.shape for x in some])
        packing = _packings.setdefault(kind, _Packing())
        if group.rank() == rank:
            flat = packing.pack(some)
        else:
            flat = torch.empty(sum(x.numel() for x in some), dtype=kind[0], device=some[0].device)
        packed.append((packing, flat, some))
    sent = [group.broadcast([flat], options) for _, flat, _ in packed]
    for work, (packing, flat, some) in zip(sent, packed, strict=True):
        work.wait()
        if group.rank() != rank:
            packing.unpack(flat, [x.detach() for x in some])
            torch.autograd.graph.increment_version(some)


def _kernel(operator: _Operator) -> Callable[..., object]:
    """Return the kernel of a collective for tensors on the device."""

    def kernel(*args: object, **options: object) -> object:
        """Start the collective, and return its tensors and work."""
        interrupt.check()
        sharding.teach()
        given = operator.bind(args, options)
        if _is_fake(c10d.ProcessGroup.unbox(given["process_group"])):
            return operator.overload._op_dk(torch._C.DispatchKey.CPU, *args, **options)
        call = _Call(operator, given)
        if operator.name not in _MESSAGES:
            work: Any = _Work(call)
            work.start()
        else:
            try:
                issued = call.give(call.group)
            except RuntimeError as error:
                raise call.told(error) from error
            work = _Message(call) if call.outs else _Sent(call, issued[0])
            if call.outs:
                work.start_waiting(issued)
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
    kind: Any = torch.nn.parallel.DistributedDataParallel
    made = kind._ddp_init_helper
    kind._ddp_init_helper = lambda *args: _with_buckets(made, *args)
    kind._get_active_ddp_module = partial(hide(_not_cut), kind._get_active_ddp_module)
    opened.prepare = _pack_ahead
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
