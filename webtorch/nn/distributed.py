"""DistributedDataParallel: gradients that are the mean of those of all processes. May import nn's base files only.

Gradients travel in buckets while the backward pass goes on: a bucket is sent as soon as the gradients in it are there,
and in the order of the buckets, which all processes share. At the end of the pass the means take their places.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import NoneType
from typing import Any, NamedTuple

from webtorch.distributed.algorithms.join import Join, Joinable, JoinHook
from webtorch.distributed.bucket import GradBucket, default_cap
from webtorch.distributed.collectives import all_reduce, broadcast
from webtorch.distributed.group import ProcessGroup, go_on_as_usual
from webtorch.distributed.objects import broadcast_object_list
from webtorch.distributed.reduction import ReduceOp
from webtorch.distributed.world import default_group
from webtorch.functions.creation import tensor, zeros
from webtorch.functions.joining import cat
from webtorch.ir.dtype import DType, int32, int64
from webtorch.nn.module import Module
from webtorch.sparse.construction import sparse_coo_tensor
from webtorch.tensors.engine import queue_callback
from webtorch.tensors.modes import is_grad_enabled, no_grad
from webtorch.tensors.order import graph_of
from webtorch.tensors.tape import AccumulateGrad
from webtorch.tensors.tensor import Tensor

__all__ = ["DistributedDataParallel"]

_MIB = 1024 * 1024
# The gradients that are there first begin to travel soon.
_FIRST_BUCKET = _MIB
_UNFINISHED = (
    "Expected to have finished reduction in the prior iteration before starting a new one. This error indicates that "
    "your module has parameters that were not used in producing loss. You can enable unused parameter detection by "
    "passing the keyword argument `find_unused_parameters=True` to `torch.nn.parallel.DistributedDataParallel`, and by "
    "making sure all `forward` function outputs participate in calculating loss."
)


def _alike(tensors: Iterable[Tensor]) -> list[list[Tensor]]:
    """Return the tensors in lists of one type and device, in their order."""
    found: dict[object, list[Tensor]] = {}
    for x in tensors:
        found.setdefault((x.dtype, str(x.device)), []).append(x)
    return list(found.values())


def _send(tensors: Iterable[Tensor], group: ProcessGroup, root: int = 0) -> None:
    """Let tensors become those of process `root`, which sends those of one type as one."""
    with no_grad():
        for same in _alike(x.detach() for x in tensors):
            flat = cat([x.reshape(-1) for x in same])
            broadcast(flat, group=group, group_src=root)
            if group.rank() != root:
                for x, part in zip(same, flat.split([x.numel() for x in same]), strict=True):
                    x.copy_(part.reshape(x.shape))


def _buckets(parameters: Sequence[Tensor], cap: int, alone: set[int]) -> list[list[Tensor]]:
    """Return parameters in lists that are sent together, those whose gradients come first in front; those of the ids
    `alone` by themselves.
    """
    found = [[p] for p in reversed(parameters) if id(p) in alone]
    for same in _alike(p for p in reversed(parameters) if id(p) not in alone):
        size, limit = 0, min(cap, _FIRST_BUCKET)
        bucket: list[Tensor] = []
        for p in same:
            bucket.append(p)
            size += p.numel() * p.dtype.itemsize
            if size >= limit:
                found.append(bucket)
                bucket, size, limit = [], 0, cap
        if bucket:
            found.append(bucket)
    return found


def _leaves(value: object) -> Iterator[Tensor]:
    """Give the tensors in what a forward returns."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, Mapping):
        for part in value.values():
            yield from _leaves(part)
    elif isinstance(value, (list, tuple)):
        for part in value:
            yield from _leaves(part)
    elif hasattr(value, "__dataclass_fields__"):
        for part in vars(value).values():
            yield from _leaves(part)


def _used(outputs: object) -> set[int]:
    """Return the ids of the parameters that outputs depend on."""
    starts = [x.grad_fn for x in _leaves(outputs) if x.requires_grad]
    reached = {id(fn.variable) for fn in graph_of(starts) if isinstance(fn, AccumulateGrad)}
    return reached | {id(x) for x in _leaves(outputs)}


class _Reducer:
    """Collects gradients in buckets, and sends them: as `dtype`, where one is given; those of the ids `sparse` as
    places and values. `is_static`: all passes use the same parameters.
    """

    def __init__(
        self,
        parameters: Sequence[Tensor],
        group: ProcessGroup,
        cap: int,
        views: bool,
        sparse: set[int],
        dtype: DType | None,
        is_static: bool,
    ) -> None:
        self.is_static = is_static
        self.group, self.views, self.sparse, self.dtype = group, views, sparse, dtype
        self.buckets = _buckets(parameters, cap, sparse)
        self.parameters = list(parameters)
        self.place = {id(p): i for i, bucket in enumerate(self.buckets) for p in bucket}
        self.hook: tuple[Any, Callable[[Any, GradBucket], Any]] | None = None
        self.sync = True
        # Of how many processes the mean is.
        self.count = group.size()
        # Parameters that a pass does not reach, where these are looked for; ids of those that no process reaches, where
        # that stays.
        self.unused: list[Tensor] | None = None
        self.never_used: set[int] | None = None
        self.begun = False
        self._clear()

    def _clear(self) -> None:
        self.missing = [len(bucket) for bucket in self.buckets]
        self.seen: set[int] = set()
        self.sent: list[tuple[GradBucket, Any]] = []
        self.begun = False

    def prepare(self, outputs: object, looks: bool) -> None:
        """Begin a pass; `looks` for parameters that the outputs do not depend on."""
        if looks:
            used = _used(outputs)
            self.unused = [p for p in self.parameters if id(p) not in used]

    def check(self) -> None:
        """Raise RuntimeError where the pass before has left out a parameter."""
        if self.begun:
            numbers = {id(p): i for i, p in enumerate(self.parameters)}
            left = sorted(numbers[i] for i in self.place if i not in self.seen)
            self._clear()
            raise RuntimeError(
                f"{_UNFINISHED} Parameter indices which did not receive grad for rank {self.group.rank()}: "
                f"{' '.join(map(str, left))}"
            )

    def ready(self, parameter: Tensor) -> None:
        """Take notice that a gradient is there."""
        if not self.sync:
            return
        if not self.begun:
            self.begun = True
            for p in self.unused or ():
                self._mark(p)
        if id(parameter) in self.seen:
            raise RuntimeError(
                "Expected to mark a variable ready only once. A parameter has had its gradient twice in one pass, or "
                "was taken for unused: checkpoint(use_reentrant=True) hides what it uses. Give use_reentrant=False"
            )
        self._mark(parameter)

    def _mark(self, parameter: Tensor) -> None:
        if id(parameter) in self.seen:
            return
        self.seen.add(id(parameter))
        self.missing[self.place[id(parameter)]] -= 1
        # In the order of the buckets, on all processes.
        while len(self.sent) < len(self.buckets) and not self.missing[len(self.sent)]:
            self._send(len(self.sent))
            if len(self.sent) == len(self.buckets):
                # Not before: a reentrant checkpoint's own pass may end first.
                queue_callback(self.finish)

    def _send(self, number: int, absent: bool = False) -> None:
        """Send a bucket; of zeros from a process that is `absent`."""
        bucket, last = self.buckets[number], number + 1 == len(self.buckets)
        with no_grad():
            given = [None if absent else p.grad for p in bucket]
            work: Any
            if id(bucket[0]) in self.sparse and self.hook is None:
                made = GradBucket(number, _sparse(bucket[0], given[0]), bucket, last)
                work = all_reduce(made.buffer(), group=self.group, async_op=True)
            else:
                flat = cat([_flat(p, g) for p, g in zip(bucket, given, strict=True)])
                made = GradBucket(
                    number, flat if self.dtype is None else flat.to(self.dtype), bucket, last
                )
                if self.hook is not None:
                    if not isinstance(self.hook[0], (ProcessGroup, NoneType)):
                        # It may count, or keep what it computes.
                        go_on_as_usual()
                    work = self.hook[1](self.hook[0], made)
                else:
                    op = ReduceOp.AVG if self.count == self.group.size() else ReduceOp.SUM
                    work = all_reduce(made.buffer(), op, self.group, async_op=True)
        self.sent.append((made, work))

    def finish(self) -> None:
        """Put the means in their places, at the end of the pass. Where parameters are missing it is not called: the
        next forward says which.
        """
        with no_grad():
            kept = self._unused_everywhere()
            for bucket, work in self.sent:
                for p, g in zip(bucket.parameters(), self._arrived(bucket, work), strict=True):
                    if id(p) in kept:
                        continue
                    if p.grad is None or self.views or g.is_sparse:
                        p.grad = g
                    else:
                        p.grad.copy_(g)
        self.unused = None
        self._clear()

    def _arrived(self, bucket: GradBucket, work: Any) -> list[Tensor]:
        """Wait for a bucket, and return the means."""
        found, size = work.wait(), self.group.size()
        if bucket.buffer().is_sparse:
            return [bucket.buffer() / self.count]
        if self.hook is not None:
            bucket.set_buffer(found[0] if isinstance(found, (list, tuple)) else found)
            if self.count != size:
                bucket.buffer().mul_(size / self.count)
        elif self.count != size:
            bucket.buffer().div_(self.count)
        if self.dtype is not None:
            bucket.set_buffer(bucket.buffer().to(bucket.parameters()[0].dtype))
        return bucket.gradients()

    def shadow(self, looks: bool) -> None:
        """Take part in a pass of the others, after the inputs of this process have ended."""
        self.unused = self.parameters if looks else None
        with no_grad():
            for number in range(len(self.buckets)):
                self._send(number, absent=True)
            self._unused_everywhere()
            for _, work in self.sent:
                work.wait()
        self.unused = None
        self._clear()

    def _unused_everywhere(self) -> set[int]:
        """Return the ids of parameters that no process has used: their gradients stay as they are."""
        if self.unused is None:
            return set()
        if self.never_used is not None:
            return self.never_used
        mine = {id(p) for p in self.unused}
        counts = tensor([int(id(p) not in mine) for p in self.parameters], dtype=int32)
        all_reduce(counts, group=self.group)
        found = {id(p) for p, n in zip(self.parameters, counts.tolist(), strict=True) if not n}
        if self.is_static:
            self.never_used = found
        return found


def _flat(parameter: Tensor, gradient: Tensor | None) -> Tensor:
    """Return a gradient as it travels: zeros where there is none."""
    if gradient is None:
        return zeros(parameter.numel(), dtype=parameter.dtype, device=parameter.device)
    return (gradient.to_dense() if gradient.is_sparse else gradient).reshape(-1)


def _sparse(parameter: Tensor, gradient: Tensor | None) -> Tensor:
    """Return the gradient of an embedding, whose rows are few."""
    if gradient is not None:
        return gradient if gradient.is_sparse else gradient.to_sparse(1)
    rows = zeros(0, parameter.shape[1], dtype=parameter.dtype, device=parameter.device)
    places = zeros(1, 0, dtype=int64, device=parameter.device)
    return sparse_coo_tensor(places, rows, parameter.shape)


def _cast(value: Any, dtype: DType) -> Any:
    """Return inputs, nested as they are, with tensors of floating point in another type."""
    if isinstance(value, Tensor):
        return value.to(dtype) if value.is_floating_point() else value
    if isinstance(value, Mapping):
        return type(value)((k, _cast(v, dtype)) for k, v in value.items())  # type: ignore[call-arg]
    if type(value) in (list, tuple):
        return type(value)(_cast(v, dtype) for v in value)
    return value


@contextmanager
def _parameters_as(module: Module, dtype: DType) -> Iterator[None]:
    """Let a module compute with its parameters in another type; gradients are those of its own."""
    before = [(m, dict(m._parameters)) for m in module.modules()]
    # One that several modules share stays one.
    made = {id(p): _cast(p, dtype) for p in module.parameters()}
    try:
        for owner, own in before:
            owner._note_state()
            owner._parameters.update({n: made[id(p)] for n, p in own.items() if p is not None})
        yield
    finally:
        for owner, own in before:
            owner._parameters.update(own)


class _MixedPrecision(NamedTuple):
    """Types of parameters and inputs, of gradients on their way, and of buffers; None where they stay."""

    param_dtype: DType | None = None
    reduce_dtype: DType | None = None
    buffer_dtype: DType | None = None


class _Ended(JoinHook):
    """What DistributedDataParallel does in a process whose inputs have ended."""

    def __init__(self, model: DistributedDataParallel) -> None:
        self._model = model

    def main_hook(self) -> None:
        """Take part in a step of the others."""
        self._model._shadow()

    def post_hook(self, is_last_joiner: bool) -> None:
        """Take the parameters and buffers of a process that has trained to the end."""
        model = self._model
        (root,) = model._highest(model.process_group.rank() if is_last_joiner else -1)
        tensors = [*model.module.parameters(), *model.module.buffers()]
        _send(tensors, model.process_group, root)


class DistributedDataParallel(Module, Joinable):
    """A module whose gradients are the mean of those of all processes, each of which has a part of the batch.

    Made on every process, after `init_process_group`: parameters and buffers become those of process 0. Entries of the
    state dict have the prefix "module.". `device_ids`, `output_device` and `dim` are taken and mean nothing: the module
    stays on its device. With `mixed_precision` it computes with parameters and inputs of another type, and gradients
    travel as that. Raises ValueError before there is a group.
    """

    def __init__(
        self,
        module: Module,
        device_ids: Sequence[Any] | None = None,
        output_device: Any = None,
        dim: int = 0,
        broadcast_buffers: bool = True,
        init_sync: bool = True,
        process_group: Any = None,
        bucket_cap_mb: float | None = None,
        find_unused_parameters: bool = False,
        check_reduction: bool = False,
        gradient_as_bucket_view: bool = False,
        static_graph: bool = False,
        mixed_precision: Any = None,
    ) -> None:
        """Hold the module, and send it from process 0."""
        super().__init__()
        Joinable.__init__(self)
        self.process_group = default_group() if process_group is None else process_group
        ignored = set(getattr(module, "_ddp_params_and_buffers_to_ignore", ()))
        named = [(n, p) for n, p in module.named_parameters() if n not in ignored]
        learned = [p for _, p in named if p.requires_grad]
        if not learned:
            raise RuntimeError(
                "DistributedDataParallel is not needed when a module doesn't have any parameters that require a "
                "gradient."
            )
        if bucket_cap_mb is not None and bucket_cap_mb <= 0:
            raise ValueError(f"bucket_cap_mb must be positive, got {bucket_cap_mb}")
        if device_ids is not None and len(device_ids) > 1:
            raise ValueError(
                "device_ids can only be None or contain a single element: a process has one device"
            )
        self.module = module
        self.device_ids, self.output_device, self.dim = device_ids, output_device, dim
        self.broadcast_buffers = broadcast_buffers
        self.find_unused_parameters = find_unused_parameters
        self.gradient_as_bucket_view = gradient_as_bucket_view
        self.static_graph = static_graph
        self.require_backward_grad_sync = True
        self.mixed_precision = mixed_precision
        # What sends the buckets, if the user says: a compiled step depends on it.
        self._comm_hook: tuple[object, Callable[[Any, GradBucket], object]] | None = None
        types = _MixedPrecision() if mixed_precision is None else mixed_precision
        if types.buffer_dtype is not None:
            for buffer in module.buffers():
                buffer.data = _cast(buffer, types.buffer_dtype)
        self._buffers_sent = [b for n, b in module.named_buffers() if n not in ignored]
        self._buffer_names = [n for n, _ in module.named_buffers() if n not in ignored]
        if init_sync:
            self._same_everywhere([p for _, p in named])
            _send([*[p for _, p in named], *self._buffers_sent], self.process_group)
        del self._buffers_sent
        nbytes = sum([p.numel() * p.dtype.itemsize for p in learned])
        lane = self.process_group.lane()
        cap = default_cap(nbytes, lane) if bucket_cap_mb is None else int(bucket_cap_mb * _MIB)
        self._reducer = _Reducer(
            learned, self.process_group, cap, gradient_as_bucket_view,
            {id(m.weight) for m in module.modules() if getattr(m, "sparse", False) is True},
            types.param_dtype if types.reduce_dtype is None else types.reduce_dtype, static_graph,
        )  # fmt: skip
        for p in learned:
            p.register_post_accumulate_grad_hook(self._reducer.ready)

    def _same_everywhere(self, parameters: Sequence[Tensor]) -> None:
        """Raise RuntimeError where another process has another model."""
        group = self.process_group
        mine = [(tuple(p.shape), p.dtype.name) for p in parameters]
        theirs = [mine]
        broadcast_object_list(theirs, group=group, group_src=0)
        wrong = tensor([0 if mine == theirs[0] else len(mine) + 1], dtype=int32)
        all_reduce(wrong, ReduceOp.MAX, group)
        if not int(wrong.item()):
            return
        if mine == theirs[0]:
            raise RuntimeError(
                f"DDP expects same model across all ranks, but Rank {group.rank()} has {len(mine)} params, while "
                "another has others."
            )
        raise RuntimeError(
            f"DDP expects same model across all ranks, but Rank {group.rank()} has {len(mine)} params, while rank 0 "
            f"has inconsistent {len(theirs[0])} params: {mine} and {theirs[0]}."
        )

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Let gradients of passes inside add up on each process; the next pass outside sends them all."""
        before, self.require_backward_grad_sync = self.require_backward_grad_sync, False
        try:
            yield
        finally:
            self.require_backward_grad_sync = before

    def register_comm_hook(self, state: object, hook: Callable[[Any, GradBucket], object]) -> None:
        """Let `hook(state, bucket)` send each bucket: it returns a future of what takes the gradients' place."""
        if not callable(hook):
            raise TypeError("Communication hook must be callable.")
        if self._reducer.hook is not None:
            raise RuntimeError(
                "register_comm_hook or register_builtin_comm_hook can only be called once."
            )
        self._reducer.hook = self._comm_hook = state, hook

    def forward(self, *inputs: Any, **kwargs: Any) -> Any:
        """Call the module; what its backward pass gives will be sent."""
        reducer = self._reducer
        sync = is_grad_enabled() and self.require_backward_grad_sync
        if sync:
            reducer.check()
        if reducer.sync is not sync:
            reducer.sync = sync
        root = self._begin(sync) if self._join_config.enable else 0
        if self.require_backward_grad_sync:
            self._send_buffers(root)
        types = self.mixed_precision
        if types is None or types.param_dtype is None:
            outputs = self.module(*inputs, **kwargs)
        else:
            with _parameters_as(self.module, types.param_dtype):
                outputs = self.module(
                    *_cast(inputs, types.param_dtype), **_cast(kwargs, types.param_dtype)
                )
        if sync and (self.find_unused_parameters or self.static_graph):
            reducer.prepare(outputs, True)
        return outputs

    def _send_buffers(self, root: int) -> None:
        if self.broadcast_buffers and self._buffer_names:
            buffers = dict(self.module.named_buffers())
            _send([buffers[n] for n in self._buffer_names], self.process_group, root)

    def join(
        self,
        divide_by_initial_world_size: bool = True,
        enable: bool = True,
        throw_on_early_termination: bool = False,
    ) -> Join:
        """Return a context in which processes have different numbers of inputs.

        Gradients are divided by the number of all processes, or of those that still have inputs.
        """
        return Join(
            [self], enable, throw_on_early_termination,
            divide_by_initial_world_size=divide_by_initial_world_size,
        )  # fmt: skip

    def join_hook(self, **kwargs: object) -> JoinHook:
        """Return what this process does after its inputs have ended."""
        self._divides_by_all = bool(kwargs.get("divide_by_initial_world_size", True))
        return _Ended(self)

    @property
    def join_device(self) -> Any:
        """The device of the parameters."""
        return self._reducer.parameters[0].device

    @property
    def join_process_group(self) -> ProcessGroup:
        """The processes."""
        group: ProcessGroup = self.process_group
        return group

    def _highest(self, *numbers: int) -> list[int]:
        """Return the highest of the processes' numbers, for each."""
        found = tensor(numbers, dtype=int32)
        all_reduce(found, ReduceOp.MAX, self.process_group)
        return [int(n) for n in found.tolist()]

    def _begin(self, sync: bool) -> int:
        """Tell those whose inputs have ended what comes, and return who sends buffers."""
        work, reducer = Join.notify_join_context(self), self._reducer
        reducer.count = self.process_group.size()
        if work is not None and not self._divides_by_all:
            reducer.count = int(work.result()[0].item())
        mine = self.require_backward_grad_sync, sync, self.process_group.rank()
        return self._highest(*map(int, mine))[2]

    def _shadow(self) -> None:
        """Take part in a step of the others."""
        sends, sync, root = self._highest(0, 0, -1)
        if not self._divides_by_all:
            # The others add up, and divide by how many they are: all must call the same reduction.
            self._reducer.count = 0
        if sends:
            self._send_buffers(root)
        if sync:
            self._reducer.shadow(self.find_unused_parameters or self.static_graph)

    def _get_ddp_logging_data(self) -> dict[str, object]:
        """Return what the buckets are."""
        sizes = [sum(p.numel() * p.dtype.itemsize for p in b) for b in self._reducer.buckets]
        return {"bucket_sizes": ", ".join(map(str, sizes)), "world_size": self.process_group.size()}
