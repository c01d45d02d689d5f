"""Memory shared with other libraries by DLPack, through NumPy's reader and writer."""

from __future__ import annotations

from typing import Any

from webtorch.errors import DeviceError
from webtorch.functions import creation
from webtorch.tensors.device import DeviceLike
from webtorch.tensors.tensor import Tensor

# DLPack's number of ordinary memory.
CPU = 1


def from_dlpack(ext_tensor: Any, *, device: DeviceLike = None, copy: bool | None = None) -> Tensor:
    """Return a CPU tensor that shares the memory of another library's array; with `copy`, a copy.

    ext_tensor: anything with `__dlpack__` on the CPU: an array of NumPy, a tensor of PyTorch. A write to
    one is seen in the other. Raises DeviceError for an array in another device's memory.
    """
    import numpy

    if type(ext_tensor).__name__ == "PyCapsule":
        ext_tensor = creation.Capsule(ext_tensor)
    if not hasattr(ext_tensor, "__dlpack__"):
        raise TypeError(f"from_dlpack: {type(ext_tensor).__name__} has no __dlpack__")
    kind, index = ext_tensor.__dlpack_device__()
    if int(kind) != CPU:
        raise DeviceError(
            f"from_dlpack: the array is on DLPack's device ({int(kind)}, {index}), not in the CPU's memory. "
            "Copy it to the CPU first"
        )
    if isinstance(ext_tensor, Tensor):
        found = ext_tensor.detach()
    else:
        array = numpy.from_dlpack(ext_tensor)
        found = creation.from_numpy(array.copy() if copy or not array.flags.writeable else array)
        copy = False
    if device is not None:
        found = found.to(device)
    return found.clone() if copy else found


def to_dlpack(tensor: Tensor) -> Tensor:
    """Return a DLPack capsule of a CPU tensor's memory."""
    # A capsule of version 1 says that the memory may be written.
    return tensor.__dlpack__(max_version=(1, 0))
