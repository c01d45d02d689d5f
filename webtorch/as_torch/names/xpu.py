"""torch.xpu: there is none."""

from typing import NoReturn


def is_available() -> bool:
    """Return False."""
    return False


def device_count() -> int:
    """Return 0."""
    return 0


def current_device() -> NoReturn:
    """Raise AssertionError, as PyTorch does without XPU."""
    raise AssertionError("Torch not compiled with XPU enabled")


def synchronize(device: object = None) -> NoReturn:
    """Raise AssertionError, as PyTorch does without XPU."""
    raise AssertionError("Torch not compiled with XPU enabled")
