"""`torch.distributed.tensor`: tensors whose parts lie in processes. Floor 5.

    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    x = distribute_tensor(whole, mesh, [Shard(0), Replicate()])

Functions of `webtorch` take DTensors, and send what must be sent.
"""

from webtorch.distributed.device_mesh import DeviceMesh, init_device_mesh
from webtorch.distributed.tensor import functions as _functions
from webtorch.distributed.tensor import lookups as _lookups
from webtorch.distributed.tensor.distribute import (
    distribute_module,
    distribute_tensor,
    empty,
    full,
    ones,
    rand,
    randn,
    zeros,
)
from webtorch.distributed.tensor.dtensor import DTensor
from webtorch.distributed.tensor.placement_types import Partial, Placement, Replicate, Shard

__all__ = [
    "DTensor", "DeviceMesh", "Partial", "Placement", "Replicate", "Shard", "distribute_module", "distribute_tensor",
    "empty", "full", "init_device_mesh", "ones", "rand", "randn", "zeros",
]  # fmt: skip
del _functions, _lookups
