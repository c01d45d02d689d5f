"""`webtorch.utils`: PyTorch's place for what is found elsewhere here. May import floors 0 to 5."""

from webtorch.utils import benchmark, checkpoint, data, dlpack, hooks
from webtorch.utils.swapping import swap_tensors

__all__ = ["benchmark", "checkpoint", "data", "dlpack", "hooks", "swap_tensors"]
