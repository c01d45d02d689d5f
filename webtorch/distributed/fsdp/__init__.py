"""`torch.distributed.fsdp`: modules whose parameters, gradients and optimizer states are sharded over processes.

from webtorch.distributed.fsdp import fully_shard

for layer in model.layers:
    fully_shard(layer)
fully_shard(model)
"""

from __future__ import annotations

from webtorch.distributed.fsdp.fully_sharded_data_parallel import FullyShardedDataParallel
from webtorch.distributed.fsdp.module import (
    FSDPModule,
    UnshardHandle,
    fully_shard,
    register_fsdp_forward_method,
    share_comm_ctx,
)
from webtorch.distributed.fsdp.policy import (
    CPUOffloadPolicy,
    DataParallelMeshDims,
    MixedPrecisionPolicy,
    OffloadPolicy,
)

__all__ = [
    "CPUOffloadPolicy", "DataParallelMeshDims", "FSDPModule", "FullyShardedDataParallel", "MixedPrecisionPolicy",
    "OffloadPolicy", "UnshardHandle", "fully_shard", "register_fsdp_forward_method", "share_comm_ctx",
]  # fmt: skip
