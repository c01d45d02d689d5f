"""Parts of a tensor as they lie by other placements, with gradients. Floor 5.

A part's gradient lies as the part does, but that of what is still to be reduced is the same for all (`for_gradient`).
That is what lets the usual graph of the parts be the graph of the whole: `move` alone, which is all that sends, has
rules of its own.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from webtorch.distributed import collectives
from webtorch.distributed.counting import told
from webtorch.distributed.device_mesh import DeviceMesh
from webtorch.distributed.reduction import ReduceOp
from webtorch.distributed.tensor._dtensor_spec import (
    Placements,
    for_gradient,
    in_order,
    local_layout,
)
from webtorch.distributed.tensor.placement_types import (
    Partial,
    Placement,
    Replicate,
    Shard,
    _NormPartial,
    _StridedShard,
)
from webtorch.functions import public as webtorch
from webtorch.tensors.function import Function
from webtorch.tensors.modes import mode
from webtorch.tensors.tensor import Tensor

REPLICATE = Replicate()
_REDUCTIONS = {
    "sum": ReduceOp.SUM, "avg": ReduceOp.AVG, "max": ReduceOp.MAX, "min": ReduceOp.MIN, "product": ReduceOp.PRODUCT,
}  # fmt: skip


@dataclass(frozen=True)
class _Level:
    """One dimension of a mesh, where the dims of a tensor have these sizes before it splits one."""

    mesh: DeviceMesh
    number: int
    sizes: tuple[int, ...]

    @property
    def group(self) -> Any:
        """The processes along it."""
        return self.mesh.get_group(self.number)

    @property
    def count(self) -> int:
        """How many processes there are along it."""
        return self.mesh.size(self.number)

    @property
    def rank(self) -> int:
        """Where this process is along it."""
        return self.mesh.get_local_rank(self.number)

    def chunk(self, dim: int) -> int:
        """Return how long a whole chunk of a dim is."""
        return -(-self.sizes[dim] // self.count)

    def part(self, dim: int) -> tuple[int, int]:
        """Return where this process's part of a dim begins, and how long it is."""
        size, start = Shard.local_shard_size_and_offset(self.sizes[dim], self.count, self.rank)
        return start, size


def _padded(x: Tensor, dim: int, size: int) -> Tensor:
    """Return a tensor with zeros at the end of a dim, up to a size."""
    missing = size - x.shape[dim]
    if not missing:
        return x
    zeros = webtorch.zeros(
        *[missing if d == dim else s for d, s in enumerate(x.shape)], dtype=x.dtype, device=x.device
    )
    return webtorch.cat([x, zeros], dim)


def _gathered(x: Tensor, at: _Level, dim: int) -> Tensor:
    """Return the whole of a dim of which each process has a chunk."""
    part = _padded(x, dim, at.chunk(dim)).movedim(dim, 0).contiguous()
    shape = (part.shape[0] * at.count, *part.shape[1:])
    out = webtorch.empty(shape, dtype=x.dtype, device=x.device)
    collectives.all_gather_into_tensor(out, part, at.group)
    return out.movedim(0, dim).narrow(dim, 0, at.sizes[dim]).contiguous()


def _reduced(x: Tensor, at: _Level, kind: Partial) -> Tensor:
    """Return what all have, reduced."""
    if isinstance(kind, _NormPartial):
        return _reduced(x.abs() ** kind.norm_type, at, Partial()) ** (1 / kind.norm_type)
    out: Tensor = webtorch.clone(x, memory_format=webtorch.contiguous_format)
    collectives.all_reduce(out, _REDUCTIONS[kind.reduce_op], at.group)
    return out


def _scattered(x: Tensor, at: _Level, kind: Partial, dim: int) -> Tensor:
    """Return this process's chunk of what all have, reduced."""
    chunk, (_, size) = at.chunk(dim), at.part(dim)
    whole = _padded(x, dim, chunk * at.count).movedim(dim, 0).contiguous()
    out = webtorch.empty((chunk, *whole.shape[1:]), dtype=x.dtype, device=x.device)
    collectives.reduce_scatter_tensor(out, whole, _REDUCTIONS[kind.reduce_op], at.group)
    return out.movedim(0, dim).narrow(dim, 0, size).contiguous()


def _exchanged(x: Tensor, at: _Level, old: int, new: int) -> Tensor:
    """Return a chunk of another dim than that of which each process has one."""
    sent = _padded(_padded(x, old, at.chunk(old)), new, at.chunk(new) * at.count)
    parts = webtorch.stack(sent.chunk(at.count, new)).contiguous()
    out = webtorch.empty(parts.shape, dtype=x.dtype, device=x.device)
    collectives.all_to_all_single(out, parts, group=at.group)
    whole = webtorch.cat(list(out.unbind(0)), old).narrow(old, 0, at.sizes[old])
    return whole.narrow(new, 0, at.part(new)[1]).contiguous()


def _partitioned(x: Tensor, at: _Level, kind: Partial) -> Tensor:
    """Return what reduces to what all have."""
    if isinstance(kind, _NormPartial):
        return x / at.count ** (1 / kind.norm_type)
    if kind.reduce_op == "sum":
        return x if at.rank == 0 else webtorch.zeros_like(x)
    if kind.reduce_op == "product":
        return x if at.rank == 0 else webtorch.ones_like(x)
    return x


def _step(x: Tensor, at: _Level, src: Placement, dst: Placement) -> Tensor:
    """Return a part as it lies by another placement along one dimension of the mesh."""
    if isinstance(src, (Shard, _StridedShard)):
        if isinstance(src, Shard) and isinstance(dst, Shard):
            return _exchanged(x, at, src.dim, dst.dim)
        x = _gathered(x, at, src.dim)
    elif isinstance(src, Partial):
        if isinstance(dst, Shard) and not isinstance(src, _NormPartial):
            return _scattered(x, at, src, dst.dim)
        x = _reduced(x, at, src)
    if isinstance(dst, (Shard, _StridedShard)):
        return x.narrow(dst.dim, *at.part(dst.dim)).contiguous()
    return _partitioned(x, at, dst) if isinstance(dst, Partial) else x


def _splits(p: Placement, q: Placement) -> bool:
    """Whether two placements split the same dim."""
    return isinstance(p, Shard) and isinstance(q, Shard) and p.dim == q.dim


def _goes_apart(now: Sequence[Placement], dst: Sequence[Placement], i: int) -> bool:
    """Whether a chunk must become the whole before the placements along other dimensions of the mesh change."""
    if isinstance(now[i], _StridedShard):
        return list(now) != list(dst)
    if now[i] == dst[i]:
        # What splits a dim further on is within what has split it.
        return any(
            now[j] != dst[j] and (_splits(now[i], now[j]) or _splits(now[i], dst[j]))
            for j in range(i)
        )
    others = [p for j in range(len(dst)) if j != i for p in (now[j], dst[j])]
    alone = not any(_splits(p, q) for p in (now[i], dst[i]) for q in others)
    return not (isinstance(dst[i], Shard) and alone)


def redistribute_local(
    x: Tensor, mesh: DeviceMesh, shape: Sequence[int], src: Placements, dst: Placements
) -> Tensor:
    """Return this process's part by other placements, without gradients."""
    at = mesh.get_coordinate()
    if src == dst or at is None:
        return x
    before, told.moving = told.moving, True
    try:
        return _moved(x, mesh, shape, src, dst, at)
    finally:
        told.moving = before


def _moved(
    x: Tensor,
    mesh: DeviceMesh,
    shape: Sequence[int],
    src: Placements,
    dst: Placements,
    at: Sequence[int],
) -> Tensor:
    """Send what must be sent. `at`: this process's place in the mesh."""
    now = list(src)

    def go(i: int, to: Placement) -> Tensor:
        """Return the part after one dimension of the mesh has changed."""
        # As they are before this dimension splits one: strided chunks are of what all others have left.
        strided = isinstance(now[i], _StridedShard) or isinstance(to, _StridedShard)
        before = [REPLICATE if j == i or not (strided or j < i) else p for j, p in enumerate(now)]
        sizes, _ = local_layout(shape, mesh, before, at)
        found = _step(x, _Level(mesh, i, tuple(sizes)), now[i], to)
        now[i] = to
        return found

    for i in reversed(in_order(now)):
        if isinstance(now[i], _StridedShard) and _goes_apart(now, dst, i):
            x = go(i, REPLICATE)
    for i in range(mesh.ndim):
        # First what makes nothing larger.
        if isinstance(now[i], Partial) and isinstance(dst[i], Replicate):
            x = go(i, REPLICATE)
    for i in reversed(range(mesh.ndim)):
        if isinstance(now[i], Shard) and _goes_apart(now, dst, i):
            x = go(i, REPLICATE)
    for i in (*[i for i, p in enumerate(dst) if not isinstance(p, _StridedShard)], *in_order(dst)):
        if now[i] != dst[i]:
            x = go(i, dst[i])
    return x


@dataclass(frozen=True)
class _Way:
    """From where to where parts go, and how their gradients come back."""

    mesh: DeviceMesh
    shape: tuple[int, ...]
    src: Placements
    dst: Placements
    gradient: Placements
    back: Placements

    @property
    def factor(self) -> float:
        """What a gradient is multiplied with: a mean is of parts that have their share of it."""
        found = 1.0
        for i, (p, q) in enumerate(zip(self.src, self.dst, strict=True)):
            found /= self.mesh.size(i) if p.is_partial("avg") and p != q else 1
            found *= self.mesh.size(i) if q.is_partial("avg") and p != q else 1
        return found


class _Moved(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, way: _Way) -> Tensor:
        """Return the part by other placements."""
        ctx.way = way
        out = redistribute_local(x, way.mesh, way.shape, way.src, way.dst)
        return out.view_as(out) if out is x else out

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, None]:
        """Return the gradient as the part lies."""
        way: _Way = ctx.way
        back = move(g, way.mesh, way.shape, way.gradient, way.back,
                    _of_gradient(way.src, way.back), _of_gradient(way.dst, way.gradient))  # fmt: skip
        return (back if way.factor == 1.0 else back * way.factor), None


def _of_gradient(lies: Placements, gradient: Placements) -> Placements:
    """Return how the gradient of a gradient lies: where one gradient is that of all parts of what is still to be
    reduced, each part has some of its own.
    """
    return tuple([
        Partial() if isinstance(p, Partial) and not isinstance(q, Partial) else r
        for p, q, r in zip(lies, gradient, for_gradient(gradient), strict=True)
    ])  # fmt: skip


def seen_gradient(g: Tensor, mesh: DeviceMesh, shape: Sequence[int], lies: Placements) -> Tensor:
    """Return the gradient of a part that lies so as users see it: that of the whole, by `for_gradient(lies)`."""
    plain = for_gradient(lies)
    if plain == lies:
        return g
    seen = move(g, mesh, shape, plain, plain, back=_of_gradient(lies, plain))
    return seen if _share(mesh, lies) == 1 else seen * _share(mesh, lies)


def gradient_of_part(
    g: Tensor, mesh: DeviceMesh, shape: Sequence[int], src: Placements, lies: Placements
) -> Tensor:
    """Return what `seen_gradient` was given, of the whole's gradient by the placements `src`."""
    plain = for_gradient(lies)
    found = move(g, mesh, shape, src, plain, _of_gradient(lies, plain))
    return found if _share(mesh, lies) == 1 else found / _share(mesh, lies)


def _share(mesh: DeviceMesh, lies: Placements) -> int:
    """Return how many parts a mean is taken of, each of which has its share of the gradient."""
    return math.prod([mesh.size(i) for i, p in enumerate(lies) if p.is_partial("avg")])


def move(
    x: Tensor,
    mesh: DeviceMesh,
    shape: Sequence[int],
    src: Placements,
    dst: Placements,
    gradient: Placements | None = None,
    back: Placements | None = None,
) -> Tensor:
    """Return this process's part by other placements. Its gradient comes as `gradient` says, and that of `x` lies as
    `back` does; without them they are `for_gradient` of `dst` and `src`.
    """
    plain, first = for_gradient(dst), for_gradient(src)
    gradient = plain if gradient is None else gradient
    back = first if back is None else back
    if not (mode.grad and x.requires_grad):
        return redistribute_local(x, mesh, shape, src, dst)
    if src == dst and gradient == plain and back == first:
        return x
    now = src
    for i, p in enumerate(src):
        if p != dst[i] and not is_linear(p):
            x = _resolved(x, mesh, shape, now, i)
            now = (*now[:i], REPLICATE, *now[i + 1 :])
    if now == dst and gradient == plain and back == first:
        return x
    moved: Tensor = _Moved.apply(x, _Way(mesh, tuple(shape), now, dst, gradient, back))
    return moved


def is_linear(p: Placement) -> bool:
    """Whether what lies so is the sum, or the mean, of its parts, or no sum that is still to be taken."""
    return not isinstance(p, Partial) or (
        not isinstance(p, _NormPartial) and p.reduce_op in ("sum", "avg")
    )


def _resolved(x: Tensor, mesh: DeviceMesh, shape: Sequence[int], src: Placements, i: int) -> Tensor:
    """Reduce along a dimension of the mesh what is no sum. Its gradient is that of the operation, of all parts."""
    kind, others = src[i], [replace(p, dim=p.dim + 1) if isinstance(p, Shard) else p for p in src]
    assert isinstance(kind, Partial)
    apart = (*others[:i], Shard(0), *others[i + 1 :])
    joined = (*others[:i], REPLICATE, *others[i + 1 :])
    every = move(x.unsqueeze(0), mesh, (mesh.size(i), *shape), apart, joined)
    if isinstance(kind, _NormPartial):
        return every.norm(kind.norm_type, 0)
    if kind.reduce_op == "product":
        return every.prod(0)
    return every.amax(0) if kind.reduce_op == "max" else every.amin(0)
