"""The typed errors that users see. Each also is the type that PyTorch raises in the same case.
Imports nothing of the package.
"""

from __future__ import annotations

from typing import Any


class WebtorchError(RuntimeError):
    """Base of the errors that have no better standard type; PyTorch raises RuntimeError in these
    cases.
    """


class ShapeError(WebtorchError):
    """Shapes do not fit the operation."""


class DTypeError(WebtorchError, NotImplementedError):
    """The element type is not supported by the operation or the device."""


class DeviceError(WebtorchError):
    """Tensors are on different devices, or the device does not exist here."""


class NoCudaError(DeviceError, AssertionError):
    """A program asks for CUDA: PyTorch's builds without it raise AssertionError."""


class OutOfMemoryError(WebtorchError):
    """The device has no memory left; names the largest live tensors."""

    def __init__(self, *args: object) -> None:
        """Take the message."""
        super().__init__(*args)
        # By storage whose new value could not be computed: the value before.
        self.before: dict[Any, Any] = {}


class NoValuesError(DeviceError, NotImplementedError):
    """Values are asked of a tensor on the device "meta", which has none."""


class AcceleratorError(WebtorchError):
    """Something is wrong with the device itself, not with what it was asked for."""


class DeviceLostError(AcceleratorError):
    """The device was lost or destroyed; its tensors cannot be used any more."""


class KernelError(WebtorchError):
    """A generated kernel was refused by the device's compiler: a defect of webtorch, shown with its
    source.
    """


class ShaderError(SyntaxError, WebtorchError):
    """A shader that the user wrote was refused: the compiler's message, with the lines around its place."""


class CacheChurnWarning(UserWarning):
    """A cache of compiled work makes new entries in a loop and never uses them again; names what
    changes from one to the next and what to do.
    """


class CaptureError(WebtorchError):
    """A function cannot be captured as one program; names the line and what to do."""


class LinAlgError(WebtorchError):
    """A matrix does not have what was asked of it (an inverse, a factorisation): torch.linalg's error."""


class NonFiniteError(FloatingPointError, WebtorchError):
    """A computed value is NaN or infinite, and `debug.check_numerics` was asked to say where it began."""


class DeviceCheckError(WebtorchError):
    """Values read on the device broke a rule of an operation; names the rule and the user's line."""


class IndexOutOfRangeError(IndexError, WebtorchError):
    """An index read on the device was out of range; names the operation, the value and the user's
    line.
    """


# What kernels report.
CHECKS = IndexOutOfRangeError, DeviceCheckError
