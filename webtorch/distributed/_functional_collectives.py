"""Collectives that return what they give, and leave what they are given. Floor 5.

Groups are process groups, meshes of one dimension, (mesh, dimension), or None for all processes. What is returned is a
tensor whose values arrive: what reads them waits. Gradients are those of the sum of all processes' losses.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

from webtorch.distributed.device_mesh import DeviceMesh
from webtorch.distributed.nn import functional
from webtorch.distributed.reduction import ReduceOp
from webtorch.distributed.world import Group, default_group, get_world_size
from webtorch.functions import public as webtorch
from webtorch.tensors.override import disabled
from webtorch.tensors.tensor import Tensor

_Processes: TypeAlias = Group | DeviceMesh | tuple[DeviceMesh, int]


class AsyncCollectiveTensor(Tensor):
    """A result of a collective; operations with it give plain tensors."""

    __torch_function__ = disabled  # type: ignore[assignment]

    def wait(self) -> Tensor:
        """Return it as a plain tensor; what reads it waits."""
        return wait_tensor(self)


def wait_tensor(tensor: Tensor) -> Tensor:
    """Return a result as a plain tensor; what reads it waits."""
    return tensor.as_subclass(Tensor) if isinstance(tensor, AsyncCollectiveTensor) else tensor


def _group(of: _Processes) -> Group:
    if isinstance(of, DeviceMesh):
        return of.get_group()
    if isinstance(of, tuple):
        return of[0].get_group(of[1])
    return default_group() if of is None else of


def _op(name: str) -> ReduceOp:
    return ReduceOp[name.upper()]


def _arriving(x: Tensor) -> Tensor:
    return x.as_subclass(AsyncCollectiveTensor)


def all_reduce(self: Tensor, reduceOp: str, group: _Processes, tag: str = "") -> Tensor:
    """Return the sum of all processes' tensors, or what `reduceOp` says ("avg", "max", ...)."""
    return _arriving(functional.all_reduce(self, _op(reduceOp), _group(group)))


def broadcast(self: Tensor, src: int, group: _Processes, tag: str = "") -> Tensor:
    """Return the tensor of the process with the global rank `src`."""
    return _arriving(functional.broadcast(self, src, _group(group)))


def all_gather_single(self: Tensor, gather_dim: int, group: _Processes, tag: str = "") -> Tensor:
    """Return all processes' tensors, which have one shape, side by side along a dim."""
    return _arriving(webtorch.cat(functional.all_gather(self, _group(group)), gather_dim))


def reduce_scatter_single(
    self: Tensor, reduceOp: str, scatter_dim: int, group: _Processes, tag: str = ""
) -> Tensor:
    """Return this process's chunk, along a dim, of the sum of all tensors, or of what `reduceOp` says.

    Raises ValueError for a dim that cannot be divided by the number of processes.
    """
    found = _group(group)
    count, size = get_world_size(found), self.shape[scatter_dim]
    if size % count:
        raise ValueError(
            f"input dimension {scatter_dim} ({size} must be a multiple of group_size {count})"
        )
    parts = [x.contiguous() for x in self.chunk(count, scatter_dim)]
    out = webtorch.empty_like(parts[0])
    return _arriving(functional.reduce_scatter(out, parts, _op(reduceOp), found))


def all_to_all_single(
    self: Tensor,
    output_split_sizes: Sequence[int] | None,
    input_split_sizes: Sequence[int] | None,
    group: _Processes,
    tag: str = "",
) -> Tensor:
    """Send part i of the first dim to process i, and return what all have sent.

    The sizes say how long parts are, which are equal without them.
    """
    rows = self.shape[0] if output_split_sizes is None else sum(output_split_sizes)
    out = self.new_empty((rows, *self.shape[1:]))
    found: Any = functional.all_to_all_single(
        out, self.contiguous(), output_split_sizes, input_split_sizes, _group(group)
    )
    return _arriving(found)


# By their other names in PyTorch: all of them record gradients.
all_gather_tensor = all_gather_tensor_autograd = all_gather_single_autograd = all_gather_single
reduce_scatter_tensor = reduce_scatter_tensor_autograd = reduce_scatter_single
reduce_scatter_single_autograd = reduce_scatter_single
all_to_all_single_autograd = all_to_all_single
