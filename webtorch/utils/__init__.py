"""`webtorch.utils`: PyTorch's place for what is found elsewhere here. May import floors 0 to 5."""

from webtorch.nn.swapping import swap_tensors
from webtorch.utils import benchmark, checkpoint, data, dlpack, hooks

__all__ = ["benchmark", "checkpoint", "data", "dlpack", "hooks", "swap_tensors"]
