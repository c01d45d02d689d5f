"""Collectives with gradients: what each process's loss gives is added up on its way back. Floor 5."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

from webtorch.distributed import collectives
from webtorch.distributed.group import ProcessGroup
from webtorch.distributed.reduction import ReduceOp
from webtorch.distributed.world import Group, default_group, get_group_rank
from webtorch.functions.creation import zeros_like
from webtorch.functions.movement import clone
from webtorch.tensors.function import Function
from webtorch.tensors.modes import no_grad
from webtorch.tensors.tensor import Tensor

# What a function keeps for its gradient: any attributes.
_Context: TypeAlias = Any

__all__ = [
    "all_gather",
    "all_reduce",
    "all_to_all",
    "all_to_all_single",
    "broadcast",
    "gather",
    "reduce",
    "reduce_scatter",
    "scatter",
]


def _processes(group: Group) -> ProcessGroup:
    found = default_group() if group is None else group
    assert isinstance(found, ProcessGroup)
    return found


class _AllReduce(Function):
    @staticmethod
    def forward(ctx: _Context, op: object, group: Group, x: Tensor) -> Tensor:
        """Return the sum of all."""
        ctx.op, ctx.group = op, group
        out = clone(x)
        collectives.all_reduce(out, op, group)
        return out

    @staticmethod
    def backward(ctx: _Context, grad: Tensor) -> tuple[Tensor | None, ...]:
        """Return the sum of all gradients."""
        return None, None, _AllReduce.apply(ctx.op, ctx.group, grad)


class _Broadcast(Function):
    @staticmethod
    def forward(ctx: _Context, src: int, group: Group, x: Tensor) -> Tensor:
        """Return the tensor of `src`."""
        ctx.src, ctx.group = src, group
        out = clone(x)
        collectives.broadcast(out, src, group)
        return out

    @staticmethod
    def backward(ctx: _Context, grad: Tensor) -> tuple[Tensor | None, ...]:
        """Return the sum of all gradients on `src`, zeros elsewhere."""
        return None, None, _Reduce.apply(ctx.src, ReduceOp.SUM, ctx.group, grad)


class _Reduce(Function):
    @staticmethod
    def forward(ctx: _Context, dst: int, op: object, group: Group, x: Tensor) -> Tensor:
        """Return the sum of all on `dst`, zeros elsewhere."""
        ctx.dst, ctx.group = dst, group
        out, found = clone(x), _processes(group)
        collectives.reduce(out, dst, op, group)
        return out if found.rank() == get_group_rank(found, dst) else zeros_like(x)

    @staticmethod
    def backward(ctx: _Context, grad: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradient of `dst`."""
        return None, None, None, _Broadcast.apply(ctx.dst, ctx.group, grad)


class _Gather(Function):
    @staticmethod
    def forward(ctx: _Context, dst: int, group: Group, x: Tensor) -> tuple[Tensor, ...]:
        """Return the tensors of all on `dst`, zeros elsewhere."""
        ctx.dst, ctx.group, found = dst, group, _processes(group)
        out = [zeros_like(x) for _ in range(found.size())]
        mine = found.rank() == get_group_rank(found, dst)
        collectives.gather(clone(x), out if mine else None, dst, group)
        return tuple(out)

    @staticmethod
    def backward(ctx: _Context, *grads: Tensor) -> tuple[Tensor | None, ...]:
        """Return the part of the gradients of `dst` for this process."""
        return None, None, _Scatter.apply(ctx.dst, ctx.group, *grads)


class _Scatter(Function):
    @staticmethod
    def forward(ctx: _Context, src: int, group: Group, *tensors: Tensor) -> Tensor:
        """Return the entry of `src` for this process."""
        ctx.src, ctx.group, found = src, group, _processes(group)
        out = zeros_like(tensors[0])
        mine = found.rank() == get_group_rank(found, src)
        collectives.scatter(out, [clone(x) for x in tensors] if mine else None, src, group)
        return out

    @staticmethod
    def backward(ctx: _Context, grad: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradients of all on `src`, zeros elsewhere."""
        return None, None, *_Gather.apply(ctx.src, ctx.group, grad)


class _AllToAll(Function):
    @staticmethod
    def forward(
        ctx: _Context, group: Group, out: Sequence[Tensor], *tensors: Tensor
    ) -> tuple[Tensor, ...]:
        """Return what all have for this process."""
        ctx.group, ctx.like = group, [zeros_like(x) for x in tensors]
        made = [zeros_like(x) for x in out]
        collectives.all_to_all(made, [clone(x) for x in tensors], group)
        return tuple(made)

    @staticmethod
    def backward(ctx: _Context, *grads: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradients of where they went."""
        return None, None, *_AllToAll.apply(ctx.group, ctx.like, *grads)


class _AllToAllSingle(Function):
    @staticmethod
    def forward(
        ctx: _Context,
        group: Group,
        out: Tensor,
        output_sizes: Sequence[int] | None,
        input_sizes: Sequence[int] | None,
        x: Tensor,
    ) -> Tensor:
        """Return what all have for this process."""
        ctx.group, ctx.like, ctx.sizes = group, zeros_like(x), (input_sizes, output_sizes)
        made = zeros_like(out)
        collectives.all_to_all_single(made, clone(x), output_sizes, input_sizes, group)
        return made

    @staticmethod
    def backward(ctx: _Context, grad: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradients of where it went."""
        made = _AllToAllSingle.apply(ctx.group, ctx.like, *ctx.sizes, grad)
        return None, None, None, None, made


class _AllGather(Function):
    @staticmethod
    def forward(ctx: _Context, group: Group, x: Tensor) -> tuple[Tensor, ...]:
        """Return the tensors of all."""
        ctx.group = group
        out = [zeros_like(x) for _ in range(_processes(group).size())]
        collectives.all_gather(out, x, group)
        return tuple(out)

    @staticmethod
    def backward(ctx: _Context, *grads: Tensor) -> tuple[Tensor | None, ...]:
        """Return the sum of what all give for this process's tensor."""
        out = zeros_like(grads[0])
        collectives.reduce_scatter(out, [clone(g) for g in grads], group=ctx.group)
        return None, out


class _ReduceScatter(Function):
    @staticmethod
    def forward(ctx: _Context, op: object, group: Group, *tensors: Tensor) -> Tensor:
        """Return the sum of the entries for this process."""
        ctx.group = group
        out = zeros_like(tensors[0])
        collectives.reduce_scatter(out, [clone(x) for x in tensors], op, group)
        return out

    @staticmethod
    def backward(ctx: _Context, grad: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradients of all."""
        return None, None, *_AllGather.apply(ctx.group, grad)


def all_reduce(tensor: Tensor, op: object = ReduceOp.SUM, group: Group = None) -> Tensor:
    """Return the sum of the tensors of all processes. Differentiable."""
    return _AllReduce.apply(op, group, tensor)


def broadcast(tensor: Tensor, src: int, group: Group = None) -> Tensor:
    """Return the tensor of process `src`. Differentiable."""
    return _Broadcast.apply(src, group, tensor)


def all_gather(tensor: Tensor, group: Group = None) -> tuple[Tensor, ...]:
    """Return the tensors of all processes. Differentiable."""
    return tuple(_AllGather.apply(group, tensor))


def reduce_scatter(
    output: Tensor, input_list: list[Tensor], op: object = ReduceOp.SUM, group: Group = None
) -> Tensor:
    """Return the sum of all processes' entries for this one. Differentiable."""
    return _ReduceScatter.apply(op, group, *input_list)


def reduce(tensor: Tensor, dst: int, op: object = ReduceOp.SUM, group: Group = None) -> Tensor:
    """Return the sum of the tensors of all on process `dst`, zeros elsewhere. Differentiable."""
    return _Reduce.apply(dst, op, group, tensor)


def gather(tensor: Tensor, dst: int = 0, group: Group = None) -> tuple[Tensor, ...]:
    """Return the tensors of all on process `dst`, zeros elsewhere. Differentiable."""
    return tuple(_Gather.apply(dst, group, tensor))


def scatter(tensors: Sequence[Tensor], src: int = 0, group: Group = None) -> Tensor:
    """Return the entry of process `src` for this one. Differentiable."""
    return _Scatter.apply(src, group, *tensors)


def _written(out: Tensor, made: Tensor) -> Tensor:
    """Return a result, which is written into the tensor that was given for it, too."""
    with no_grad():
        out.copy_(made)
    return made


def all_to_all(
    output_tensor_list: Sequence[Tensor], input_tensor_list: Sequence[Tensor], group: Group = None
) -> tuple[Tensor, ...]:
    """Send entry i to process i, and return what all have sent here, in the output's tensors, too. Differentiable."""
    made = _AllToAll.apply(group, output_tensor_list, *input_tensor_list)
    return tuple([_written(x, m) for x, m in zip(output_tensor_list, made, strict=True)])


def all_to_all_single(
    output: Tensor,
    input: Tensor,
    output_split_sizes: Sequence[int] | None = None,
    input_split_sizes: Sequence[int] | None = None,
    group: Group = None,
) -> Tensor:
    """Send part i of the input's first dim to process i, and return what all have sent here, joined, in the output,
    too. Differentiable.
    """
    made = _AllToAllSingle.apply(group, output, output_split_sizes, input_split_sizes, input)
    return _written(output, made)
