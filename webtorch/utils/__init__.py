"""`webtorch.utils`: PyTorch's place for what is found elsewhere here. May import floors 0 to 5."""

from webtorch.utils import benchmark, checkpoint, data, dlpack, hooks

__all__ = ["benchmark", "checkpoint", "data", "dlpack", "hooks"]
