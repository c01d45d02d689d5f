"""DistributedDataParallel: gradients that are the mean of those of all processes. May import nn's base files only.

Gradients travel in buckets while the backward pass goes on: a bucket is sent as soon as the gradients in it are there,
and in the order of the buckets, which all processes share. At the end of the pass the means take their places.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from webtorch.distributed.bucket import GradBucket
from webtorch.distributed.collectives import all_reduce, broadcast
from webtorch.distributed.group import ProcessGroup
from webtorch.distributed.objects import broadcast_object_list
from webtorch.distributed.reduction import ReduceOp
from webtorch.distributed.world import default_group
from webtorch.functions.creation import tensor, zeros
from webtorch.functions.joining import cat
from webtorch.ir.dtype import int32
from webtorch.nn.module import Module
from webtorch.tensors.engine import graph_of, queue_callback
from webtorch.tensors.modes import is_grad_enabled, no_grad
from webtorch.tensors.tape import AccumulateGrad
from webtorch.tensors.tensor import Tensor

__all__ = ["DistributedDataParallel"]

_MIB = 1024 * 1024
# The gradients that are there first begin to travel soon.
_FIRST_BUCKET = _MIB
_BUCKET_CAP_MB = 25
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


def _buckets(parameters: Sequence[Tensor], cap: int) -> list[list[Tensor]]:
    """Return parameters in lists that are sent together, those whose gradients come first in front."""
    found: list[list[Tensor]] = []
    for same in _alike(reversed(parameters)):
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
    """Collects gradients in buckets, and sends them."""

    def __init__(
        self, parameters: Sequence[Tensor], group: ProcessGroup, cap: int, views: bool
    ) -> None:
        self.group, self.views = group, views
        self.buckets = _buckets(parameters, cap)
        self.parameters = list(parameters)
        self.place = {id(p): i for i, bucket in enumerate(self.buckets) for p in bucket}
        self.hook: tuple[Any, Callable[[Any, GradBucket], Any]] | None = None
        self.sync = True
        # Parameters that a pass does not reach, where these are looked for.
        self.unused: list[Tensor] | None = None
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
            queue_callback(self.finish)
            for p in self.unused or ():
                self._mark(p)
        self._mark(parameter)

    def _mark(self, parameter: Tensor) -> None:
        if id(parameter) in self.seen:
            return
        self.seen.add(id(parameter))
        self.missing[self.place[id(parameter)]] -= 1
        # In the order of the buckets, on all processes.
        while len(self.sent) < len(self.buckets) and not self.missing[len(self.sent)]:
            self._send(len(self.sent))

    def _send(self, number: int) -> None:
        bucket = self.buckets[number]
        with no_grad():
            parts = [
                zeros(p.numel(), dtype=p.dtype, device=p.device)
                if p.grad is None
                else _dense(p).reshape(-1)
                for p in bucket
            ]
            made = GradBucket(number, cat(parts), bucket, number + 1 == len(self.buckets))
            if self.hook is None:
                work = all_reduce(made.buffer(), ReduceOp.AVG, self.group, async_op=True)
            else:
                work = self.hook[1](self.hook[0], made)
        self.sent.append((made, work))

    def finish(self) -> None:
        """Put the means in their places, at the end of the pass."""
        if len(self.sent) < len(self.buckets):
            # The next forward says which are missing.
            return
        with no_grad():
            kept = self._unused_everywhere()
            for bucket, work in self.sent:
                found = work.wait()
                if self.hook is not None:
                    bucket.set_buffer(found[0] if isinstance(found, (list, tuple)) else found)
                for p, g in zip(bucket.parameters(), bucket.gradients(), strict=True):
                    if id(p) in kept:
                        continue
                    if p.grad is None or self.views:
                        p.grad = g
                    else:
                        p.grad.copy_(g)
        self.unused = None
        self._clear()

    def _unused_everywhere(self) -> set[int]:
        """Return the ids of parameters that no process has used: their gradients stay as they are."""
        if self.unused is None:
            return set()
        mine = {id(p) for p in self.unused}
        counts = tensor([int(id(p) not in mine) for p in self.parameters], dtype=int32)
        all_reduce(counts, group=self.group)
        return {id(p) for p, n in zip(self.parameters, counts.tolist(), strict=True) if not n}


def _dense(parameter: Tensor) -> Tensor:
    grad = parameter.grad
    assert grad is not None
    return grad.to_dense() if grad.is_sparse else grad


class DistributedDataParallel(Module):
    """A module whose gradients are the mean of those of all processes, each of which has a part of the batch.

    Made on every process, after `init_process_group`: parameters and buffers become those of process 0. Entries of the
    state dict have the prefix "module.". `device_ids`, `output_device` and `dim` are taken and mean nothing: the module
    stays on its device. Raises ValueError before there is a group.
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
    ) -> None:
        """Hold the module, and send it from process 0."""
        super().__init__()
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
        self._buffers_sent = [b for n, b in module.named_buffers() if n not in ignored]
        self._buffer_names = [n for n, _ in module.named_buffers() if n not in ignored]
        cap = _BUCKET_CAP_MB if bucket_cap_mb is None else bucket_cap_mb
        self._reducer = _Reducer(
            learned, self.process_group, int(cap * _MIB), gradient_as_bucket_view
        )
        if init_sync:
            self._same_everywhere([p for _, p in named])
            _send([*[p for _, p in named], *self._buffers_sent], self.process_group)
        del self._buffers_sent
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

    def register_comm_hook(self, state: object, hook: Callable[[Any, GradBucket], Any]) -> None:
        """Let `hook(state, bucket)` send each bucket: it returns a future of what takes the gradients' place."""
        if not callable(hook):
            raise TypeError("Communication hook must be callable.")
        if self._reducer.hook is not None:
            raise RuntimeError(
                "register_comm_hook or register_builtin_comm_hook can only be called once."
            )
        self._reducer.hook = state, hook

    def forward(self, *inputs: Any, **kwargs: Any) -> Any:
        """Call the module; what its backward pass gives will be sent."""
        reducer = self._reducer
        sync = is_grad_enabled() and self.require_backward_grad_sync
        if sync:
            reducer.check()
        if reducer.sync is not sync:
            reducer.sync = sync
        if self.broadcast_buffers and self.require_backward_grad_sync and self._buffer_names:
            buffers = dict(self.module.named_buffers())
            _send([buffers[n] for n in self._buffer_names], self.process_group)
        outputs = self.module(*inputs, **kwargs)
        if sync and (self.find_unused_parameters or self.static_graph):
            reducer.prepare(outputs, True)
        return outputs

    def _get_ddp_logging_data(self) -> dict[str, Any]:
        """Return what the buckets are."""
        sizes = [sum(p.numel() * p.dtype.itemsize for p in b) for b in self._reducer.buckets]
        return {"bucket_sizes": ", ".join(map(str, sizes)), "world_size": self.process_group.size()}
