"""`webtorch.utils.dlpack`: memory shared with other libraries. May import floors 0 to 4."""

from webtorch.functions.dlpack import from_dlpack, to_dlpack

__all__ = ["from_dlpack", "to_dlpack"]
