"""How tensors lie in memory, and the way from PyTorch's tensors to storages and back. Floor 6."""

from __future__ import annotations

from typing import NamedTuple

import torch

from webtorch.ir.graph import Node
from webtorch.ir.view import is_contiguous, numel
from webtorch.pytorch import device as bridge
from webtorch.pytorch.device import HELD, TO_WEBTORCH, memory_of, offset_of, webtorch_dtype
from webtorch.runtime.backend import Buffer
from webtorch.tensors.storage import Storage
from webtorch.tensors.tensor import Tensor


class Geometry(NamedTuple):
    """How a tensor lies in its storage of `elements`."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int
    elements: int
    dtype: torch.dtype

    def facts(self) -> dict[str, object]:
        """Return what there is to say of it to people."""
        contiguous = is_contiguous(self.shape, self.strides)
        facts: dict[str, object] = {
            "shape": self.shape,
            "dtype": str(self.dtype),
            "strides": "contiguous" if contiguous else self.strides,
            "storage_offset": self.offset,
        }
        if self.elements != numel(self.shape):
            facts["number of elements in memory"] = self.elements
        return facts


NOWHERE = Geometry((), (), 0, 0, torch.uint8)


def look(x: torch.Tensor) -> tuple[Storage, Geometry]:
    """Return the storage of an input and how the input lies there."""
    dtype = x.dtype
    storage = memory_of(x).typed(HELD[dtype])
    return storage, Geometry(tuple(x.shape), x.stride(), offset_of(x), storage.elements, dtype)


def storage_of(value: Storage | Buffer, form: Geometry) -> Storage:
    """Return what was saved as a storage: memory gets one, of which others may have the value too."""
    if type(value) is Storage:
        return value
    node = Node.in_memory((form.elements,), value.dtype, value)
    node.shared = True
    return Storage(node, bridge.runtime())


def own_storage(value: Storage | Buffer, form: Geometry) -> Storage:
    """Return a storage of its own with a saved value."""
    if type(value) is Storage:
        return Storage(value.share(), value.runtime)
    return storage_of(value, form)


def view_of(storage: Storage, form: Geometry) -> Tensor:
    """Return a webtorch tensor that lies in a storage in a given way."""
    kind = TO_WEBTORCH[form.dtype]
    if not kind.webgpu:
        kind = webtorch_dtype(form.dtype, compiled=True)
    whole = (
        form.offset == 0
        and not kind.is_complex
        and numel(form.shape) == storage.elements
        and is_contiguous(form.shape, form.strides)
    )
    return Tensor._from_storage(storage, form.shape, form.strides, form.offset, whole, kind)


def torch_tensor(
    storage: Storage,
    form: Geometry,
    made: dict[Storage, torch.UntypedStorage],
    like: torch.Tensor | None = None,
) -> torch.Tensor:
    """Return a PyTorch tensor on a webtorch storage; one that shares the version of `like`."""
    holder = made.get(storage)
    if holder is None:
        holder, memory = bridge.new_storage(
            storage.elements * storage.dtype.itemsize, storage.dtype
        )
        memory.storage = storage
        made[storage] = holder
    out: torch.Tensor
    if like is not None and like.dtype is form.dtype:
        out = like.detach()
    else:
        out = bridge._create((0,), form.dtype)
    bridge.set_memory(bridge.CPU, out, holder, form.offset, form.shape, form.strides)
    return out
