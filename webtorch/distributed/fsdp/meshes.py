"""The groups of processes that shards of a parameter lie in."""

from __future__ import annotations

import warnings
from dataclasses import dataclass

from webtorch.distributed import world
from webtorch.distributed.device_mesh import DeviceMesh, init_device_mesh
from webtorch.distributed.group import ProcessGroup
from webtorch.distributed.tensor.placement_types import Shard
from webtorch.ir.lines import user_depth


@dataclass(eq=False)
class DataParallelMeshInfo:
    """A mesh, with its dims over which parameters are sharded and replicated."""

    mesh: DeviceMesh
    shard_mesh_dim: int | None = None
    replicate_mesh_dim: int | None = None


@dataclass(eq=False)
class FSDPMeshInfo(DataParallelMeshInfo):
    """A mesh over one dim of which parameters are sharded, and over another one perhaps replicated."""

    def __post_init__(self) -> None:
        """Find the groups. Raises AssertionError without a dim to shard over."""
        if self.shard_mesh_dim is None:
            raise AssertionError("Expects non-None shard_mesh_dim")
        self.shard_process_group: ProcessGroup = self.mesh.get_group(self.shard_mesh_dim)
        self.shard_mesh_size = self.shard_process_group.size()
        self.shard_mesh_rank = self.shard_process_group.rank()
        # Gradients may have a group of their own, whose order they keep.
        self.reduce_scatter_process_group: ProcessGroup | None = None
        self.replicate_process_group: ProcessGroup | None = None
        if self.replicate_mesh_dim is not None:
            self.replicate_process_group = self.mesh.get_group(self.replicate_mesh_dim)


class HSDPMeshInfo(FSDPMeshInfo):
    """A mesh of replicas, each of which is sharded."""


@dataclass
class ShardPlacementResult:
    """What `shard_placement_fn` may return: the dim that is cut, and the mesh."""

    placement: Shard | None
    mesh_info: FSDPMeshInfo


ShardPlacementFnResult = Shard | ShardPlacementResult | None


def resolve_shard_placement(
    result: ShardPlacementFnResult, default_mesh_info: FSDPMeshInfo
) -> ShardPlacementResult:
    """Return what a `shard_placement_fn` means. Raises ValueError for anything else."""
    if result is None or isinstance(result, Shard):
        return ShardPlacementResult(result, default_mesh_info)
    if isinstance(result, ShardPlacementResult):
        return result
    raise ValueError(f"Invalid shard_placement_fn result: {result}")


def default_mesh(device_type: str) -> DeviceMesh:
    """Return the mesh of all processes, which are met if they have not been."""
    if not world.is_initialized():
        world.init_process_group()
    return init_device_mesh(device_type, (world.get_world_size(),))


def mesh_info_of(mesh: DeviceMesh) -> FSDPMeshInfo:
    """Return the groups of a mesh of one dim, or of two: replicas and shards. Raises ValueError for others."""
    if mesh.ndim not in (1, 2):
        raise ValueError(f"fully_shard expects a 1D or 2D DeviceMesh but got {mesh}")
    if mesh.ndim == 1:
        return FSDPMeshInfo(mesh, shard_mesh_dim=0)
    if mesh.mesh_dim_names is None:
        raise AssertionError("Please init the 2D mesh for HSDP with mesh_dim_names specified")
    return HSDPMeshInfo(mesh, shard_mesh_dim=1, replicate_mesh_dim=0)


def post_forward_info(reshard_after_forward: object, info: FSDPMeshInfo) -> FSDPMeshInfo | None:
    """Return over which groups a parameter is sharded between forward and backward; None: it stays whole."""
    size = info.shard_mesh_size
    if not isinstance(reshard_after_forward, (bool, int)):
        raise ValueError(
            "reshard_after_forward should be a bool or an int representing the "
            f"group size to reshard to, not {reshard_after_forward}"
        )
    if isinstance(reshard_after_forward, bool):
        return info if reshard_after_forward else None
    if (
        reshard_after_forward < 1
        or reshard_after_forward > size
        or size % reshard_after_forward != 0
    ):
        raise ValueError(
            "If passing reshard_after_forward as an int, it should be a "
            f"factor of {size}, not {reshard_after_forward}"
        )
    if reshard_after_forward == 1:
        warnings.warn(
            "reshard_after_forward=1 (int) means resharding parameters to world size 1, "
            "instead of reshard_after_forward=True (bool)",
            stacklevel=user_depth(),
        )
        return None
    if reshard_after_forward == size:
        return info
    ranks = info.mesh.mesh.view(-1, reshard_after_forward)
    mesh = DeviceMesh(info.mesh.device_type, ranks)
    return HSDPMeshInfo(mesh, shard_mesh_dim=1, replicate_mesh_dim=0)
