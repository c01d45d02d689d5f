"""`webtorch.utils`: PyTorch's place for what is found elsewhere here. May import floors 0 to 5."""

from webtorch.utils import checkpoint, data, dlpack, hooks

__all__ = ["checkpoint", "data", "dlpack", "hooks"]
