"""Sizes of PyTorch's tensors that change: their storages grow, and keep what fits. Floor 6."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import torch

from webtorch.ir.lines import user_depth
from webtorch.ir.view import contiguous_strides, numel
from webtorch.ops import primitive
from webtorch.pytorch.device import (
    CPU,
    DEVICE,
    HELD,
    Memory,
    changes,
    fill_empty,
    fills_empty,
    flat,
    memory_of,
    memory_of_storage,
    new_storage,
    offset_of,
    reach_of,
    set_memory,
    strides_in,
    swap,
)


def resize_storage(storage: torch.UntypedStorage, nbytes: int) -> torch.UntypedStorage:
    """`torch.UntypedStorage.resize_`: all tensors that share the storage see it; the bytes that fit are kept.

    Raises NotImplementedError with a PyTorch that cannot exchange what storages hold.
    """
    if nbytes < 0:
        raise RuntimeError(f"resize_: the size must not be negative, got {nbytes} bytes")
    old = storage.nbytes()
    if nbytes == old:
        return storage
    if swap is None:
        raise NotImplementedError(
            f"webgpu: storages cannot be resized with PyTorch {torch.__version__}: it takes 2.13"
        )
    taken, memory = _resized(memory_of_storage(storage), nbytes)
    changes.count += 1
    # PyTorch exchanges storages of different sizes only where one is empty.
    if old and nbytes:
        swap(storage, new_storage(0)[0])
    swap(storage, taken)
    carrier: Any = storage
    carrier._webgpu = memory
    return storage


def _resized(memory: Memory, nbytes: int) -> tuple[torch.UntypedStorage, Memory]:
    """Return a new storage of another size with as much of the contents as fits, and zeros."""
    storage, new = new_storage(nbytes, memory.dtype)
    new.is_cut = memory.is_cut or nbytes < memory.nbytes
    if memory.laid is not None:
        memory.turn()
    held = memory.storage
    if memory.is_new or not memory.nbytes or not nbytes:
        return storage, new
    if held is None or nbytes % held.dtype.itemsize:
        contents = bytes(memory.contents())[:nbytes]
        new.raw = contents + bytes(nbytes - len(contents))
        return storage, new
    kept, count = flat(held), nbytes // held.dtype.itemsize
    if count > held.elements:
        kept = primitive.pad_with(kept, (0,), (count - held.elements,), 0)
    else:
        kept = primitive.copy(primitive.as_view(kept, (count,), (1,), 0))
    new.adopt(kept._storage)
    return storage, new


def resize_(
    x: torch.Tensor, size: Sequence[int], *, memory_format: torch.memory_format | None = None
) -> torch.Tensor:
    """`aten::resize_`. Memory grows for all tensors that share it."""
    if memory_format is torch.preserve_format:
        raise RuntimeError(f"Unsupported memory format {memory_format}")
    if memory_format is None and tuple(x.shape) == tuple(size):
        return x
    strides = strides_in(tuple(size), memory_format)
    storage, offset, width = x.untyped_storage(), offset_of(x), x.element_size()
    had, need = storage.nbytes(), (offset + numel(tuple(size))) * width
    if need > had:
        # Older versions of PyTorch: other views of the tensor keep the old memory.
        storage = resize_storage(storage, need) if swap else _resized(memory_of(x), need)[0]
    set_memory(CPU, x, storage, offset, size, strides)
    if need > had and fills_empty():
        grown = torch.empty(0, dtype=x.dtype, device=DEVICE)
        set_memory(CPU, grown, storage, had // width, ((need - had) // width,), (1,))
        fill_empty(grown)
    return x


def set_(
    x: torch.Tensor,
    source: torch.UntypedStorage,
    offset: int,
    size: Sequence[int],
    stride: Sequence[int] = (),
) -> torch.Tensor:
    """`aten::set_`: the storage grows to what the geometry reaches."""
    stride = tuple(stride) or contiguous_strides(tuple(size))
    if min(stride, default=0) >= 0 and min(size, default=0) >= 0 <= offset:
        need = reach_of(size, stride, offset) * x.element_size()
        if need > source.nbytes():
            resize_storage(source, need)
    set_memory(CPU, x, source, offset, size, stride)
    return x


def resize_to(x: torch.Tensor, shape: Sequence[int], strides: Sequence[int] | None = None) -> None:
    """Give the `out=` argument of an operator its shape, and strides without gaps if these are not row-major."""
    if tuple(x.shape) != tuple(shape):
        if x.numel():
            warnings.warn(
                f"An output with one or more elements was resized since it had shape "
                f"{list(x.shape)}, which does not match the required output shape {list(shape)}. This behavior is "
                "deprecated, and in a future PyTorch release outputs will not be resized unless they have zero "
                "elements. You can explicitly reuse an out tensor t by resizing it, inplace, "
                "to zero elements with t.resize_(0).",
                UserWarning,
                stacklevel=user_depth(),
            )
        resize_(x, shape)
        if strides is not None:
            set_memory(CPU, x, x.untyped_storage(), offset_of(x), shape, strides)


def set_to_nothing(x: torch.Tensor) -> torch.Tensor:
    """`aten::set_`: an empty tensor."""
    set_memory(CPU, x, new_storage(0, HELD[x.dtype])[0], 0, (0,), (1,))
    return x
