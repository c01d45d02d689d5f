"""`torch.distributed`: several processes, whose tensors Gloo brings together. Floor 5.

    torchrun --nproc_per_node=2 train.py

    import webtorch as torch
    torch.distributed.init_process_group()
    torch.distributed.all_reduce(x)

PyTorch, whose Gloo it is, is loaded by `init_process_group` and by the stores, and by nothing before.
"""

from __future__ import annotations

from typing import Any

from webtorch.distributed.bucket import GradBucket
from webtorch.distributed.collectives import (
    P2POp,
    _coalescing_manager,
    all_gather,
    all_gather_coalesced,
    all_gather_into_tensor,
    all_gather_single,
    all_reduce,
    all_reduce_coalesced,
    all_to_all,
    all_to_all_single,
    barrier,
    batch_isend_irecv,
    broadcast,
    gather,
    irecv,
    isend,
    monitored_barrier,
    recv,
    reduce,
    reduce_scatter,
    reduce_scatter_single,
    reduce_scatter_tensor,
    scatter,
    send,
)
from webtorch.distributed.device_mesh import DeviceMesh
from webtorch.distributed.engine import engine as _engine
from webtorch.distributed.group import ProcessGroup, Work
from webtorch.distributed.objects import (
    all_gather_object,
    broadcast_object_list,
    gather_object,
    recv_object_list,
    scatter_object_list,
    send_object_list,
)
from webtorch.distributed.reduction import ReduceOp, reduce_op
from webtorch.distributed.rendezvous import FOREIGN as _FOREIGN
from webtorch.distributed.rendezvous import is_torchelastic_launched
from webtorch.distributed.world import (
    Backend,
    GroupMember,
    default_pg_timeout,
    destroy_process_group,
    get_backend,
    get_default_backend_for_device,
    get_global_rank,
    get_group_rank,
    get_node_local_rank,
    get_pg_count,
    get_process_group_ranks,
    get_rank,
    get_world_size,
    group,
    init_process_group,
    is_available,
    is_backend_available,
    is_gloo_available,
    is_initialized,
    is_mpi_available,
    is_nccl_available,
    is_ucc_available,
    is_xccl_available,
    new_group,
    new_subgroups,
    new_subgroups_by_enumeration,
    split_group,
    supports_complex,
)
from webtorch.distributed.world import default_group as _get_default_group


def __getattr__(name: str) -> Any:
    """Return what PyTorch has of stores, which is loaded for it."""
    if name in _FOREIGN:
        return getattr(_engine().torch.distributed, name)
    raise AttributeError(f"module 'webtorch.distributed' has no attribute {name!r}")
