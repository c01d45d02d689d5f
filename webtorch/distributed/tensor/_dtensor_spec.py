"""What a DTensor is beside its part: a mesh, placements, and what the whole is like. Floor 5."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from webtorch.distributed.device_mesh import DeviceMesh
from webtorch.distributed.tensor.placement_types import (
    Partial,
    Placement,
    Replicate,
    Shard,
    _StridedShard,
)
from webtorch.ir.dtype import DType
from webtorch.ir.view import contiguous_strides
from webtorch.tensors.size import Size

Placements = tuple[Placement, ...]


class TensorMeta(NamedTuple):
    """What a whole tensor is like."""

    shape: Size
    stride: tuple[int, ...]
    dtype: DType


@dataclass(frozen=True)
class DTensorSpec:
    """A mesh, a placement for each of its dimensions, and what the whole is like."""

    mesh: DeviceMesh
    placements: Placements
    tensor_meta: TensorMeta

    @property
    def device_mesh(self) -> DeviceMesh:
        """The mesh."""
        return self.mesh

    @property
    def shape(self) -> Size:
        """The sizes of the whole."""
        return self.tensor_meta.shape

    @property
    def stride(self) -> tuple[int, ...]:
        """The strides of the whole, as if it lay in one piece."""
        return self.tensor_meta.stride

    @property
    def ndim(self) -> int:
        """The number of dimensions of the whole."""
        return len(self.tensor_meta.shape)

    @property
    def dim_map(self) -> list[int]:
        """The dimension of the mesh that splits each dimension, -1 where none does."""
        found = [-1] * self.ndim
        for i, p in enumerate(self.placements):
            if isinstance(p, Shard):
                found[p.dim] = i
        return found

    @property
    def num_shards(self) -> int:
        """How many parts there are."""
        count = 1
        for i, p in enumerate(self.placements):
            count *= self.mesh.size(i) if p.is_shard() else 1
        return count

    def is_replicated(self) -> bool:
        """Whether each process has all."""
        return all(p.is_replicate() for p in self.placements)


def in_order(placements: Sequence[Placement]) -> list[int]:
    """Return the dimensions of a mesh that split a dim, in the order in which they do: strided ones split what the
    others have left.
    """
    plain = [i for i, p in enumerate(placements) if isinstance(p, Shard)]
    return plain + [i for i, p in enumerate(placements) if isinstance(p, _StridedShard)]


def local_layout(
    shape: Sequence[int], mesh: DeviceMesh, placements: Sequence[Placement], at: Sequence[int]
) -> tuple[list[int], list[int]]:
    """Return the sizes of the part at a place of the mesh, and where it begins in the whole."""
    sizes, offsets = list(shape), [0] * len(shape)
    for i in in_order(placements):
        p = placements[i]
        assert isinstance(p, (Shard, _StridedShard))
        sizes[p.dim], offset = Shard.local_shard_size_and_offset(sizes[p.dim], mesh.size(i), at[i])
        # Of a part of which nothing is left PyTorch says the end.
        offsets[p.dim] = offsets[p.dim] + offset if sizes[p.dim] else shape[p.dim]
    return sizes, offsets


def compute_local_shape_and_global_offset(
    global_shape: Sequence[int], mesh: DeviceMesh, placements: Sequence[Placement]
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the sizes of this process's part, and where it begins in the whole."""
    at = mesh.get_coordinate()
    if at is None:
        return (0,), ()
    sizes, offsets = local_layout(global_shape, mesh, placements, at)
    return tuple(sizes), tuple(offsets)


def normalized(placements: Sequence[Placement] | None, mesh: DeviceMesh, rank: int) -> Placements:
    """Return placements with dimensions counted from the front; all replicated without any.

    Raises ValueError where they are reduced in different ways.
    """
    if placements is None:
        return (Replicate(),) * mesh.ndim
    found = tuple([
        replace(p, dim=p.dim + rank) if isinstance(p, (Shard, _StridedShard)) and p.dim < 0 else p for p in placements
    ])  # fmt: skip
    kinds = {p.reduce_op for p in found if isinstance(p, Partial)}
    # Sums and means may be taken in any order.
    if len(kinds) > 1 and kinds != {"sum", "avg"}:
        raise ValueError(
            "Mixed Partial reduce types are not supported in the same placement list. "
            f"Found reduce ops: {kinds}. "
            "Please ensure all Partial placements use the same reduce operation."
        )
    return found


def for_gradient(placements: Placements) -> Placements:
    """Return how the gradient of what lies so lies: what is still to be reduced has one gradient for all."""
    return tuple([Replicate() if isinstance(p, Partial) else p for p in placements])


def meta_of(shape: Sequence[int], dtype: DType, stride: Sequence[int] | None = None) -> TensorMeta:
    """Return what a whole tensor is like, row-major without strides."""
    sizes = tuple(shape)
    strides = contiguous_strides(sizes) if stride is None else tuple(stride)
    return TensorMeta(tuple.__new__(Size, sizes), strides, dtype)
