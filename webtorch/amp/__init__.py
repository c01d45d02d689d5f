"""`webtorch.amp`: mixed precision, as PyTorch's users know it. May import floors 0 to 4."""

from webtorch.amp.autocast_mode import autocast, custom_bwd, custom_fwd, is_autocast_available
from webtorch.amp.grad_scaler import GradScaler

__all__ = ["GradScaler", "autocast", "custom_bwd", "custom_fwd", "is_autocast_available"]
