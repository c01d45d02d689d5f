"""`torch.distributed.tensor.parallel`: modules whose parameters lie in the processes of a mesh. Floor 5.

parallelize_module(block, mesh["tp"], {"mlp.w1": ColwiseParallel(), "mlp.w2": RowwiseParallel()})
"""

from webtorch.distributed.tensor.lookups import loss_parallel
from webtorch.distributed.tensor.parallel.api import parallelize_module
from webtorch.distributed.tensor.parallel.style import (
    ColwiseParallel,
    ParallelStyle,
    PrepareModuleInput,
    PrepareModuleInputOutput,
    PrepareModuleOutput,
    RowwiseParallel,
    SequenceParallel,
)

__all__ = [
    "ColwiseParallel", "ParallelStyle", "PrepareModuleInput", "PrepareModuleInputOutput", "PrepareModuleOutput",
    "RowwiseParallel", "SequenceParallel", "loss_parallel", "parallelize_module",
]  # fmt: skip
