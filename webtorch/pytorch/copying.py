"""Copies between PyTorch's tensors on the device and on the host, and within the device. Floor 6.

Small types travel as they are. Who reads a value waits for the device.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.nn.parameter import is_lazy

from webtorch.ir import dtype as dtypes
from webtorch.ir.dtype import DType, Number
from webtorch.ir.graph import Node
from webtorch.ir.lines import user_line
from webtorch.ops import primitive
from webtorch.ops.layout import of_first
from webtorch.pytorch import interrupt
from webtorch.pytorch.buckets import give, takes
from webtorch.pytorch.device import (
    TO_TORCH,
    TO_WEBTORCH,
    UNSUPPORTED,
    Lain,
    allocate,
    cast,
    changes,
    check_device,
    check_layout,
    flat,
    flush,
    is_whole,
    lie,
    made_of,
    memory_of,
    offset_of,
    place_of,
    refuse_overlap,
    runtime,
    shape_of,
    store,
    strides_in,
    webtorch_dtype,
    wrap,
)
from webtorch.pytorch.known import Kinds, Plan
from webtorch.runtime.staging import in_huge_pages
from webtorch.tensors.creation import from_contents
from webtorch.tensors.storage import Storage
from webtorch.tensors.tensor import Tensor

# So many recorded results are worth a program of their own.
_TURN = 64


def host_bytes(x: torch.Tensor) -> memoryview:
    """Return the bytes of a contiguous CPU tensor, which must be kept while they are used.

    Raises RuntimeError for a tensor without memory that the host may read.
    """
    count = x.numel() * x.element_size()
    if not count:
        return memoryview(bytearray())
    return memoryview((ctypes.c_char * count).from_address(host_address(x))).cast("B")


def host_address(x: torch.Tensor) -> int:
    """Return where a CPU tensor that is not empty lies. Raises RuntimeError where the host has no memory of it."""
    address = x.data_ptr() if x.device.type == "cpu" else 0
    if not address:
        raise RuntimeError(
            f"webgpu: a tensor of shape {tuple(x.shape)} and type {x.dtype} on '{x.device}' has no memory on the host "
            f"to copy from or to: its storage has {x.untyped_storage().nbytes()} bytes"
        )
    return address


def host_tensor(shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    """Return an uninitialised CPU tensor, whatever the default device is."""
    made: torch.Tensor = in_huge_pages(torch.empty(shape, dtype=dtype, device="cpu"))
    return made


def upload(x: torch.Tensor, dtype: DType) -> Tensor:
    """Return a CPU tensor's values on the device."""
    if x.numel():
        host_address(x)
    x = x.detach().to(TO_TORCH[dtype]).contiguous().resolve_neg().resolve_conj()
    return from_contents(host_bytes(x), shape_of(x), dtype, place_of(dtype))


def download(x: torch.Tensor) -> torch.Tensor:
    """Return a contiguous CPU copy of a tensor on the device. Waits for the device."""
    out = host_tensor(x.shape, x.dtype)
    if x.numel():
        values = wrap(x)
        values = values._pairs() if values.dtype.is_complex else values
        values._contents(host_bytes(out))
    return out


def _is_raw(x: torch.Tensor) -> bool:
    """Whether a tensor is all bytes of a storage of another type: how PyTorch copies storages."""
    if x.dtype is not torch.uint8 or x.device.type != "webgpu" or x.dim() != 1 or offset_of(x):
        return False
    memory = memory_of(x)
    kind = memory.dtype if memory.storage is None else memory.storage.dtype
    return kind is not dtypes.uint8 and x.numel() == memory.nbytes


# Copies within the device to a part of a tensor's memory, of a part to all of a memory, and those to new memory.
_parts, _wholes, _casts = Kinds(), Kinds(), Kinds()


def overwritten(values: Any, options: object) -> Lain:
    """Return all of a memory after a copy to the first tensor, which is a part of it; nothing is written."""
    target, given = values
    if given.dtype is not target.dtype:
        given = cast(given, target.dtype)
    if given._shape != target._shape:
        given = given.expand(target._shape)
    old = target._storage
    made = Storage(old.node, old.runtime, old.elements)
    part = Tensor._from_storage(made, target._shape, target._strides, target._offset, False)
    primitive.write(part, given)
    # The storage that will hold the value says whose memory it takes over.
    made.donor = None
    return Lain(flat(made), (made.elements,), (1,), False)


def _copy_for(dst: torch.Tensor) -> Callable[[Any, object], Lain]:
    """Return what makes all of a memory of a part of another."""
    kind, shape = TO_WEBTORCH[dst.dtype], shape_of(dst)

    def call(values: Any, options: object) -> Lain:
        """Return the copy as it is to lie."""
        (found,) = values
        if found.dtype is not kind:
            found = cast(found, kind)
        return lie(found if found._shape == shape else found.expand(shape), False)

    return call


def copy_from(
    src: torch.Tensor | Number, dst: torch.Tensor, non_blocking: bool = False
) -> torch.Tensor:
    """Copy between devices, or within this one, converting and broadcasting to `dst`. A number fills it."""
    interrupt.check()
    if not isinstance(src, torch.Tensor):
        return dst.fill_(src)
    if is_lazy(dst) and is_lazy(src):
        # Parameters of lazy modules have no elements, and refuse to tell a shape.
        return dst
    if src.device.type == dst.device.type and not (src.is_neg() or dst.is_neg()):
        if give(src, dst) or takes(src, dst):
            return dst
        nodes: list[Node] = []
        if is_whole(dst):
            plan = None if is_whole(src) else _wholes.find((src,), {}, nodes, [], dst)
            if type(plan) is tuple:
                _wholes.watch(plan, _copy_for(dst), (wrap(src),), {}, nodes, ())
        else:
            plan = _parts.find((dst, src), {}, nodes, [], dst, inplace=True)
            if type(plan) is tuple and dst.numel():
                _parts.watch(plan, overwritten, (wrap(dst), wrap(src)), {}, nodes, ())
        if type(plan) is Plan:
            plan.write((dst,), nodes, (), user_line())
            return dst
    if dst.device.type == "webgpu":
        target = memory_of(dst)
        if src.device.type == "webgpu":
            if memory_of(src) is target:
                refuse_overlap(src, dst)
            if not _took_bytes(dst, src):
                store(dst, wrap(src), fresh=False)
            return dst
        if _is_raw(dst) and src.dtype is torch.uint8 and src.numel() == target.nbytes:
            values = src.contiguous()
            changes.count += 1
            target.raw, target.storage, target.laid = bytes(host_bytes(values)), None, None
            return dst
        if src.dtype not in TO_WEBTORCH or not UNSUPPORTED.isdisjoint(
            (TO_WEBTORCH[src.dtype], TO_WEBTORCH[dst.dtype])
        ):
            src = src.to(dst.dtype)
        # Data for the next turn of a loop: where nothing is read and no optimizer steps, each turn is then one
        # program, which works while the next is recorded.
        if not torch.is_grad_enabled() and src.numel() > 1 and len(runtime().pending) >= _TURN:
            flush()
        _put(dst, src)
        return dst
    if dst.device.type == "cpu" and dst.numel():
        host_address(dst)
    if _is_raw(src):
        values = host_tensor((src.numel(),), torch.uint8)
        host_bytes(values)[:] = memoryview(memory_of(src).contents()).cast("B")[: values.numel()]
        dst.copy_(values)
        return dst
    dst.copy_(download(src))
    return dst


def _took_bytes(dst: torch.Tensor, src: torch.Tensor) -> bool:
    """Copy memory that is bytes as it is; return whether it could be."""
    target = memory_of(dst)
    if (
        not _is_raw(src)
        or not (_is_raw(dst) or target.is_new)
        or not target.nbytes == dst.numel() == src.numel()
    ):
        return False
    source = memory_of(src)
    if source.laid is not None:
        source.turn()
    changes.count += 1
    target.raw, target.laid = source.raw, None
    target.storage = (
        None if source.storage is None else primitive.copy(flat(source.storage))._storage
    )
    return True


def _put(dst: torch.Tensor, src: torch.Tensor) -> None:
    """Overwrite a tensor on the device with one on the host."""
    # Small types travel as they are and are converted on the device, where that moves fewer bytes.
    kind = TO_WEBTORCH[src.dtype if src.element_size() < dst.element_size() else dst.dtype]
    store(dst, upload(src, kind), fresh=True)


def expect(x: torch.Tensor, node: Node) -> None:
    """Let a tensor on the device have a value that comes later, of an arrival's node: see `can_expect`."""
    store(x, Tensor._from_node(node, runtime()), fresh=True)
    held = memory_of(x).held
    if held is not None and held.node is node:
        # Nothing is computed in the memory of the old value.
        held.donor = None
    torch.autograd.graph.increment_version(x)


def can_expect(x: torch.Tensor) -> bool:
    """Whether a tensor may have a value that comes later."""
    kind = TO_WEBTORCH.get(x.dtype)
    plain = x.device.type == "webgpu" and x.layout is torch.strided and not x.is_neg()
    known = kind is not None and not kind.is_complex and kind not in UNSUPPORTED
    return plain and known and x.numel() > 0


def overwrite(dst: torch.Tensor, values: Tensor) -> None:
    """Overwrite a tensor on the device with one of its shape and type, from any thread: what others have recorded is
    left as it is.
    """
    store(dst, values, fresh=True)
    torch.autograd.graph.increment_version(dst)


def to_copy(
    x: torch.Tensor | Number,
    *,
    dtype: torch.dtype | None = None,
    layout: torch.layout | None = None,
    device: torch.device | None = None,
    pin_memory: bool | None = None,
    non_blocking: bool = False,
    memory_format: torch.memory_format | None = None,
) -> torch.Tensor:
    """`aten::_to_copy` from or to the device. Results keep the strides where these have no gaps."""
    interrupt.check()
    if not isinstance(x, torch.Tensor):
        # A number of a traced program, which PyTorch hands over as Python's.
        x = torch.tensor(x, dtype=dtype, device="cpu")
    if is_lazy(x):
        # A lazy module's parameter: it has a type and a place, and refuses to tell a shape.
        return torch.empty(0, dtype=dtype or x.dtype, device=device or x.device)
    within = x.device.type == "webgpu" and not x.is_neg() and (device is None or device == x.device)
    nodes: list[Node] = []
    plan = None
    if within and layout is None:
        plan = _casts.find((x, dtype, memory_format), {}, nodes, [])
        if type(plan) is Plan:
            out: torch.Tensor = plan.tensors(nodes, (), user_line())
            return out
    check_layout(layout)
    dtype = dtype or x.dtype
    shape = shape_of(x)
    if memory_format in (None, torch.preserve_format):
        strides = of_first(((shape, x.stride()),), shape)
    else:
        strides = strides_in(shape, memory_format)
    if device is not None and device.type != "webgpu":
        return torch.empty_strided(x.shape, strides, dtype=dtype, device=device).copy_(x)
    check_device(device)
    kind = webtorch_dtype(dtype)
    if within and not x.is_conj():
        # Copies of a type that stands for another one are not known by the type that is asked for.

        def call(values: Sequence[Tensor], options: object) -> Lain:
            """Return the copy as it is to lie."""
            (found,) = values
            same = found.dtype is kind
            return lie(found if same else cast(found, kind), not same, strides)

        values = (wrap(x),)
        if type(plan) is tuple and TO_TORCH[kind] is dtype:
            return made_of(_casts.watch(plan, call, values, {}, nodes, ()))
        return made_of(call(values, {}))
    return copy_from(x, allocate(x.shape, strides, dtype))


def item(x: torch.Tensor) -> Number:
    """Return the value of a tensor with one element. Waits for the device."""
    interrupt.check()
    if not x.numel():
        raise RuntimeError(
            f"item: Empty tensor not supported: shape {tuple(x.shape)} has no element to read"
        )
    return wrap(x).item()
