"""`webtorch.amp`: mixed precision, as PyTorch's users know it.

May import floors 0 to 4.

    import webtorch as torch

    model = torch.nn.Linear(8, 8, device="cpu")
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = model(torch.ones(4, 8, device="cpu"))  # products in 16 bits
    print(y.dtype)
"""

from webtorch.amp.autocast_mode import autocast, custom_bwd, custom_fwd, is_autocast_available
from webtorch.amp.grad_scaler import GradScaler

__all__ = ["GradScaler", "autocast", "custom_bwd", "custom_fwd", "is_autocast_available"]
