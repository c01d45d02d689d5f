"""The values of tensors as nested lists and NumPy arrays. Floor 4."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from webtorch.ir.dtype import DType, Scalar
from webtorch.ir.view import is_contiguous, numel

if TYPE_CHECKING:
    import numpy as np

    from webtorch.tensors.tensor import Tensor


def nest(values: list[Scalar], shape: tuple[int, ...]) -> Any:
    """Return the values as nested lists of a shape, row-major."""
    if not shape:
        return values[0]
    if 0 in shape:
        return _empty(shape)
    for size in reversed(shape[1:]):
        values = [values[i : i + size] for i in range(0, len(values), size)]  # type: ignore[misc]
    return values


def _empty(shape: tuple[int, ...]) -> object:
    return [_empty(shape[1:]) for _ in range(shape[0])] if len(shape) > 1 else []


def _check_type(dtype: DType) -> None:
    if dtype.numpy:
        wider = "cfloat" if dtype.is_complex else "float"
        raise TypeError(
            f"Got unsupported ScalarType {dtype.legacy}: NumPy has no {dtype.name}; use .{wider}() first"
        )


def _numpy() -> Any:
    try:
        return importlib.import_module("numpy")
    except ImportError:
        raise RuntimeError(
            "Numpy is not available: it is not installed here (a page has none); use x.tolist()"
        ) from None


def as_numpy(contents: bytes | bytearray | memoryview, tensor: Tensor) -> np.ndarray:
    """Return contents of the device as an array of its own."""
    numpy = _numpy()
    _check_type(tensor.dtype)
    data = numpy.frombuffer(contents, dtype=numpy.dtype(tensor.dtype.name), count=tensor.numel())
    return data.reshape(tensor._shape).copy()


def see(tensor: Tensor) -> np.ndarray:
    """Return the array that shares a CPU tensor's memory."""
    numpy = _numpy()
    as_strided = numpy.lib.stride_tricks.as_strided
    _check_type(tensor.dtype)
    if not numel(tensor._shape):
        return numpy.empty(tensor._shape, tensor.dtype.name)
    flat = tensor._storage.lend()
    if tensor.dtype is not tensor._storage.dtype:
        # Parts of complex numbers, or a view of another type; bytes may be left over at the end.
        kept = flat.nbytes // tensor.dtype.itemsize * tensor.dtype.itemsize
        flat = flat.view("uint8")[:kept].view(tensor.dtype.name)
    if is_contiguous(tensor._shape, tensor._strides):
        found = flat[tensor._offset : tensor._offset + numel(tensor._shape)]
        return found.reshape(tensor._shape)
    itemsize = tensor.dtype.itemsize
    return as_strided(
        flat[tensor._offset :], tensor._shape, tuple([s * itemsize for s in tensor._strides])
    )
