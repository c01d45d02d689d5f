"""torch._utils and torch.nn.utils._named_member_accessor: what packages use of PyTorch's helpers."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Sequence
from typing import Any

from webtorch import webgpu
from webtorch.functions import public as webtorch
from webtorch.ir.dtype import DType
from webtorch.nn.module import Module
from webtorch.tensors.device import DeviceLike
from webtorch.tensors.tensor import Tensor


class ExceptionWrapper:
    """An exception of a worker with the text of its traceback, to be raised by another thread or process."""

    def __init__(self, exc_info: object = None, where: str = "in background") -> None:
        """Take the exception that is being handled."""
        info: Any = sys.exc_info() if exc_info is None else exc_info
        self.exc_type: Any = info[0]
        self.exc_msg = "".join(traceback.format_exception(*info))
        self.where = where

    def reraise(self) -> None:
        """Raise an exception of the same class, whose text says where it came from."""
        text = f"Caught {self.exc_type.__name__} {self.where}.\nOriginal {self.exc_msg}"
        if self.exc_type is KeyError:
            # A KeyError shows the repr of its text.
            raise KeyError(text)
        try:
            error = self.exc_type(text)
        except Exception:
            # A class that takes other arguments.
            raise RuntimeError(text) from None
        raise error


def _element_size(dtype: DType) -> int:
    """Return the bytes of one element."""
    if not isinstance(dtype, DType):
        raise RuntimeError(f"expected torch.dtype, but got {type(dtype)}")
    return dtype.itemsize


def _flatten_dense_tensors(tensors: Sequence[Tensor]) -> Tensor:
    """Return the elements of all tensors in one dim."""
    return webtorch.cat([x.contiguous().view(-1) for x in tensors])


def _unflatten_dense_tensors(flat: Tensor, tensors: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """Return views of `flat` that have the shapes of the tensors, in order."""
    parts = flat.split([x.numel() for x in tensors])
    return tuple([part.view(x.shape) for part, x in zip(parts, tensors, strict=True)])


def _get_device_index(device: DeviceLike, optional: bool = False, allow_cpu: bool = False) -> int:
    """Return the number of a device; that of the current one, 0, where it has none and `optional` is given."""
    if isinstance(device, int):
        return device
    found = webtorch.device("webgpu" if device is None else device)
    if found.type == "cpu" and not allow_cpu:
        raise ValueError(f"Expected a non cpu device, but got: {found}")
    if found.index is None:
        if not (optional or found.type == "cpu"):
            raise ValueError(
                f"Expected a torch.device with a specified index or an integer, but got: {device}"
            )
        return -1 if found.type == "cpu" else 0
    return found.index


def _get_available_device_type() -> str | None:
    """Return the name of the accelerator, or None."""
    return "webgpu" if webgpu.is_available() else None


def _get_device_module(device_type: str) -> Any:
    """Return the module of a kind of device: torch.cuda, torch.webgpu."""
    found = getattr(sys.modules["torch"], device_type, None)
    if found is None:
        raise RuntimeError(
            f"Device '{device_type}' does not have a corresponding module registered as 'torch.{device_type}'."
        )
    return found


def swap_tensor(
    module: Module, name: str, tensor: Tensor | None, allow_missing: bool = False
) -> Any:
    """Put a tensor in the place of a module's parameter, buffer or attribute; return what was there."""
    if not isinstance(module, Module):
        raise TypeError(f"{module} is not an instance of torch.nn.Module")
    if not isinstance(tensor, Tensor) and tensor is not None:
        raise TypeError(f"{tensor} is not an instance of torch.Tensor")
    if "." in name:
        raise KeyError('tensor name can\'t contain "."')
    if name == "":
        raise KeyError('tensor name can\'t be empty string ""')
    tables: tuple[dict[str, Any], ...] = (module._parameters, module._buffers)
    for table in tables:
        if name in table:
            before = table[name]
            table[name] = tensor
            return before
    if not (allow_missing or hasattr(module, name)):
        raise AttributeError(f"{module._get_name()} has no attribute `{name}`")
    before = getattr(module, name, None)
    if not (isinstance(before, Tensor) or before is None):
        raise TypeError(f"attribute `{name}`: {before} is not an instance of torch.Tensor")
    setattr(module, name, tensor)
    return before
