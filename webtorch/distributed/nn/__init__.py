"""`torch.distributed.nn`: collectives with gradients. Floor 5."""

from webtorch.distributed.nn.functional import all_gather, all_reduce, broadcast, reduce_scatter
from webtorch.distributed.reduction import ReduceOp

__all__ = ["ReduceOp", "all_gather", "all_reduce", "broadcast", "reduce_scatter"]
