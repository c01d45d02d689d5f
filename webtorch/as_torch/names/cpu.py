"""torch.cpu: PyTorch's module of the computer itself as a device, and torch.cpu.amp, the old names of torch.amp."""

from __future__ import annotations

import contextlib
import sys
import warnings
from collections.abc import Iterator

from webtorch.amp import GradScaler as _GradScaler
from webtorch.amp import autocast as _autocast
from webtorch.ir.dtype import DType, bfloat16
from webtorch.ir.lines import user_depth

amp = sys.modules[__name__]


def _deprecated(name: str) -> None:
    warnings.warn(
        f"`torch.cpu.amp.{name}(args...)` is deprecated. Please use `torch.amp.{name}('cpu', args...)` instead.",
        FutureWarning,
        stacklevel=user_depth(),
    )


class autocast(_autocast):
    """`torch.autocast("cpu")`, with a warning."""

    def __init__(
        self, enabled: bool = True, dtype: DType = bfloat16, cache_enabled: bool = True
    ) -> None:
        _deprecated("autocast")
        super().__init__("cpu", dtype, enabled, cache_enabled)


class GradScaler(_GradScaler):
    """`torch.amp.GradScaler("cpu")`, with a warning."""

    def __init__(
        self,
        init_scale: float = 2.0**16,
        growth_factor: float = 2.0,
        backoff_factor: float = 0.5,
        growth_interval: int = 2000,
        enabled: bool = True,
    ) -> None:
        _deprecated("GradScaler")
        super().__init__("cpu", init_scale, growth_factor, backoff_factor, growth_interval, enabled)


class Stream:
    """A queue of the computer's: what is done in it is done at once."""

    def __init__(self, priority: int = -1) -> None:
        """Take a priority, which has no effect."""

    def wait_stream(self, stream: object) -> None:
        """Do nothing."""


def is_available() -> bool:
    """Return True."""
    return True


def device_count() -> int:
    """Return 1."""
    return 1


def current_device() -> str:
    """Return "cpu"."""
    return "cpu"


def set_device(device: object) -> None:
    """Do nothing: there is one."""


def synchronize(device: object = None) -> None:
    """Do nothing: a read waits by itself."""


def is_initialized() -> bool:
    """Return True."""
    return True


def current_stream(device: object = None) -> Stream:
    """Return a queue."""
    return Stream()


@contextlib.contextmanager
def stream(stream: object) -> Iterator[None]:
    """Do nothing for a block."""
    yield
