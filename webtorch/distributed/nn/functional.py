"""Collectives with gradients: what each process's loss gives is added up on its way back. Floor 5."""

from __future__ import annotations

from typing import Any, TypeAlias

from webtorch.distributed import collectives
from webtorch.distributed.reduction import ReduceOp
from webtorch.distributed.world import Group, default_group, get_group_rank
from webtorch.functions.creation import zeros_like
from webtorch.functions.movement import clone
from webtorch.tensors.function import Function
from webtorch.tensors.tensor import Tensor

# What a function keeps for its gradient: any attributes.
_Context: TypeAlias = Any

__all__ = ["all_gather", "all_reduce", "broadcast", "reduce_scatter"]


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
        found = default_group() if ctx.group is None else ctx.group
        whole = clone(grad)
        collectives.reduce(whole, ctx.src, group=ctx.group)
        mine = found.rank() == get_group_rank(found, ctx.src)
        return None, None, whole if mine else zeros_like(grad)


class _AllGather(Function):
    @staticmethod
    def forward(ctx: _Context, group: Group, x: Tensor) -> tuple[Tensor, ...]:
        """Return the tensors of all."""
        ctx.group = group
        found = default_group() if group is None else group
        assert not isinstance(found, int)
        out = [zeros_like(x) for _ in range(found.size())]
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
