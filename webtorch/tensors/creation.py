"""Tensors from bytes. Floor 4. (The public constructors are entries of the op table, in
webtorch/functions/creation.py.)
"""

from __future__ import annotations

from typing import Any

from webtorch.ir.dtype import DType, uint8
from webtorch.ir.graph import Node
from webtorch.ir.view import is_contiguous, numel
from webtorch.runtime.realize import Runtime, runtime_for
from webtorch.tensors.above import give
from webtorch.tensors.device import DeviceLike, resolve
from webtorch.tensors.storage import Storage
from webtorch.tensors.tensor import Tensor, check_type
from webtorch.tensors.views import complex_of

Bytes = bytes | bytearray | memoryview


def from_contents(
    contents: Bytes, shape: tuple[int, ...], dtype: DType, runtime: Runtime
) -> Tensor:
    """Return a tensor on `runtime` with a copy of `contents` (row-major, little-endian)."""
    check_type(dtype, shape, runtime)
    if dtype.is_complex:
        return complex_of(from_contents(contents, (*shape, 2), dtype.to_real(), runtime))
    elements = numel(shape)
    buffer = runtime.backend.upload(
        memoryview(contents).cast("B")[: elements * dtype.itemsize], dtype, elements
    )
    return Tensor._from_node(Node.in_memory(shape, dtype, buffer), runtime)


def without_data(shape: tuple[int, ...], dtype: DType, runtime: Runtime) -> Tensor:
    """Return a tensor that can be recorded with and never read."""
    if dtype.is_complex:
        return complex_of(without_data((*shape, 2), dtype.to_real(), runtime))
    return Tensor._from_node(Node.in_memory(shape, dtype), runtime)


def from_array(array: Any, dtype: DType, lent: bool = True) -> Tensor:
    """Return a CPU tensor on the memory of a NumPy array of that dtype, which others may see, if it is `lent`. Strides
    must not be negative.
    """
    if dtype.is_complex:
        part = dtype.to_real()
        return complex_of(from_array(array[..., None].view(part.name), part))
    runtime = runtime_for("cpu", 0)
    backend: Any = runtime.backend
    shape = tuple(array.shape)
    strides = tuple([s // array.itemsize for s in array.strides])
    buffer = backend.adopt(array, dtype)
    whole = is_contiguous(shape, strides)
    # Memory in another order is flat, and seen through strides.
    node = Node.in_memory(shape if whole else (buffer.elements,), dtype, buffer)
    if lent:
        runtime.lend(node, buffer.is_seen)
    return Tensor._from_storage(Storage(node, runtime), shape, strides, 0, whole)


def on_memory(memory: memoryview) -> Tensor:
    """Return a flat CPU tensor of bytes on memory that is written by nobody else: a copy where there is no NumPy."""
    try:
        import numpy

        return from_array(numpy.frombuffer(memory, numpy.uint8), uint8, lent=False)
    except ImportError:
        return from_bytes(memory, (memory.nbytes,), uint8, "cpu")


def from_bytes(
    buffer: Bytes, shape: tuple[int, ...], dtype: DType, device: DeviceLike = None
) -> Tensor:
    """Return a tensor with a copy of `buffer`'s elements (row-major, little-endian). Raises
    ValueError on a wrong length.
    """
    data = memoryview(buffer)
    data = data.cast("B") if data.nbytes else memoryview(b"")
    if data.nbytes != numel(tuple(shape)) * dtype.itemsize:
        raise ValueError(
            f"from_bytes: shape {tuple(shape)} of {dtype} needs "
            f"{numel(tuple(shape)) * dtype.itemsize} bytes, got {data.nbytes}"
        )
    return from_contents(data, tuple(shape), dtype, resolve(device))


give(from_contents=from_contents, from_bytes=from_bytes)
