"""PyTorch tensors on webtorch's engine: storages, allocation, copies, views. Floor 6; imports PyTorch and the engine.

A PyTorch storage on "webgpu" has a made-up address and, as an attribute of its Python object (which PyTorch keeps for
the storage's life), a `Memory` that holds a webtorch storage. Tensors and views share it as they share the PyTorch
storage, and it is freed with the last of them. A kernel wraps its operands as webtorch tensors of the same geometry,
calls the engine, and puts the result in the memory of its output: all of it lazy, until a value is read.
"""

from __future__ import annotations

import ctypes
import functools
import itertools
import os
import threading
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch.autograd import forward_ad
from torch.optim.optimizer import register_optimizer_step_post_hook

from webtorch import errors
from webtorch.errors import DTypeError
from webtorch.functions.random import Generator, default_generator
from webtorch.ir import dtype as dtypes
from webtorch.ir.dtype import DType
from webtorch.ir.garbage import collect_seldom
from webtorch.ir.graph import Node
from webtorch.ir.lines import pass_over, user_depth
from webtorch.ir.view import (
    OVERWRITTEN,
    contiguous_strides,
    is_contiguous,
    is_overwritten,
    memory_order,
    numel,
)
from webtorch.ops import primitive
from webtorch.ops.layout import channels_last
from webtorch.ops.purity import looks
from webtorch.pytorch import hooks, interrupt, profiler
from webtorch.pytorch.strides import Laid
from webtorch.runtime.backends.webgpu.adapter import adapters
from webtorch.runtime.realize import Runtime
from webtorch.tensors.creation import from_contents
from webtorch.tensors.device import device as Device
from webtorch.tensors.device import device_of, resolve
from webtorch.tensors.storage import Storage
from webtorch.tensors.switches import levels
from webtorch.tensors.tensor import Tensor
from webtorch_autoload.device import hide
from webtorch_autoload.device import module as device_module

DEVICE = torch.device("webgpu", 0)
CPU = torch._C.DispatchKeySet(torch._C.DispatchKey.CPU)
TO_WEBTORCH: dict[torch.dtype, DType] = {
    torch.float32: dtypes.float32,
    torch.float16: dtypes.float16,
    torch.bfloat16: dtypes.bfloat16,
    torch.int64: dtypes.int64,
    torch.int32: dtypes.int32,
    torch.int16: dtypes.int16,
    torch.int8: dtypes.int8,
    torch.uint8: dtypes.uint8,
    torch.uint16: dtypes.uint16,
    torch.uint32: dtypes.uint32,
    torch.uint64: dtypes.uint64,
    torch.bool: dtypes.bool_,
    torch.float64: dtypes.float64,
    torch.complex32: dtypes.complex32,
    torch.complex64: dtypes.complex64,
    torch.complex128: dtypes.complex128,
}
TO_TORCH: dict[DType, torch.dtype] = {v: k for k, v in TO_WEBTORCH.items()}
# What the storages of tensors of a type hold: of complex numbers, their parts.
HELD: dict[torch.dtype, DType] = {k: v.to_real() for k, v in TO_WEBTORCH.items()}
# Types that are not the device's: refused, another one in their place, or the CPU engine's.
UNSUPPORTED: set[DType] = set()


# A tensor's offset in its storage. PyTorch's type allows for a symbol, which tensors that are traced have.
offset_of: Callable[[torch.Tensor], int] = vars(torch._C.TensorBase)["storage_offset"]


# ---- the device ---------------------------------------------------------------------------------


class _Open:
    __slots__ = ("host", "parallel", "prepare", "received", "runtime")

    def __init__(self) -> None:
        # The device's runtime, once it is open.
        self.runtime: Runtime | None = None
        # The CPU engine, once there has been a tensor of a type that WebGPU lacks.
        self.host: Runtime | None = None
        # Whether somebody has waited for tensors of other processes since an optimizer's last step.
        self.received = False
        # Whether somebody had, when the last step ended: then gradients are those of several processes.
        self.parallel = False
        # What is recorded before such a pass begins, to be computed with what is pending by then.
        self.prepare: Callable[[], None] | None = None


opened = _Open()


def runtime() -> Runtime:
    """Return the device's runtime, opening the device at the first call. Raises RuntimeError in a forked child."""
    if interrupt.flag.forked:
        interrupt.check()
    if opened.runtime is None:
        # For development only: the engine's CPU backend, on which tests of the bridge run many times faster.
        opened.runtime = resolve(os.environ.get("WEBTORCH_PYTORCH_ENGINE") or _own_adapter())
        # Memory may die anywhere, in functions that Dynamo traces too.
        buffer = opened.runtime.backend.allocate(dtypes.float32, 1)
        hide(getattr(type(buffer), "__del__", None))
        collect_seldom()
        interrupt.install()
        hooks.install(begin_backward)
        register_optimizer_step_post_hook(hide(_after_step))
        profiler.install(flush)
        generator()
        _errors()
        # Layers and functions of PyTorch's call our kernels: errors name the line that called these. What
        # Dynamo makes of a function lives as long as its compiled graph, which must not hold it in turn.
        pass_over(os.path.dirname(torch.__file__), made="__compiled_fn")
    return opened.runtime


def _own_adapter() -> str:
    """Return the adapter of this process: the best one, and where a launcher has started several processes one for
    each, of those like the best; more processes than adapters share them.
    """
    rank = device_module.local_rank()
    if not rank:
        return "webgpu"
    found = adapters()
    alike = [a.index for a in found if a.is_hardware and a.backend_type == found[0].backend_type]
    return f"webgpu:{alike[rank % len(alike)]}" if alike else "webgpu"


def host() -> Runtime:
    """Return webtorch's CPU engine, which has the tensors of types that WebGPU lacks."""
    if opened.host is None:
        opened.host = resolve("cpu")
    return opened.host


def place_of(kind: DType) -> Runtime:
    """Return the runtime that has tensors of a type."""
    return host() if kind in UNSUPPORTED else runtime()


def _errors() -> None:
    """Let programs that catch PyTorch's errors of accelerators catch ours."""
    for ours, theirs in (
        (errors.OutOfMemoryError, torch.OutOfMemoryError),
        (errors.DeviceLostError, torch.AcceleratorError),
        (errors.LinAlgError, torch.linalg.LinAlgError),
    ):
        ours.__bases__ = (*ours.__bases__, theirs)


def flush() -> None:
    """Compute what is pending. In a forked child, which must not touch the device, do nothing."""
    if opened.runtime is not None and not interrupt.flag.forked:
        opened.runtime.flush()
        if opened.host is not None:
            opened.host.flush()


def begin_backward() -> None:
    """Compute an optimizer's step that has waited for other processes, with the forward pass after it: the device has
    nothing else to do by now.
    """
    # Passes that are only traced compute nothing.
    if opened.parallel and not torch._C._len_torch_dispatch_stack():
        # Passes within this one, and others before the next step, have no such step before them.
        opened.parallel = False
        if opened.prepare is not None:
            opened.prepare()
        flush()


def _after_step(optimizer: torch.optim.Optimizer, args: object, kwargs: object) -> None:
    """Compute what is pending at the end of an optimizer's step: then every step of a training loop is one program.
    Where gradients come from other processes, the next forward pass is recorded meanwhile, whether they are there or
    not: programs do not depend on times.
    """
    received, opened.received = opened.received, False
    opened.parallel = received
    if received or (opened.runtime is not None and opened.runtime.reads_arriving):
        return
    try:
        flush()
    except errors.OutOfMemoryError as error:
        _take_back(optimizer, error.before)
        raise


def _take_back(optimizer: torch.optim.Optimizer, before: Mapping[Storage, Node]) -> None:
    """Undo a step for which there was no memory: PyTorch, which is not lazy, would not have come to it.

    `before` are the values that storages had last.
    """
    for group in optimizer.param_groups:
        for param in group["params"]:
            if not on_device(param):
                continue
            state = optimizer.state.get(param, {})
            _hold_the_last_computed(param, before)
            there = [v for v in state.values() if isinstance(v, torch.Tensor) and on_device(v)]
            computed = [_hold_the_last_computed(v, before) for v in there]
            if False in computed:
                # The step made it.
                del optimizer.state[param]
            elif isinstance(state.get("step"), torch.Tensor) and not on_device(state["step"]):
                state["step"] -= 1


def _hold_the_last_computed(x: torch.Tensor, before: Mapping[Storage, Node]) -> bool:
    """Drop writes that are not computed yet; return whether the tensor has a computed value."""
    storage = memory_of(x).held
    if storage is None:
        return False
    if storage.node.kind != "buffer" and storage in before:
        storage.node, storage.donor = before[storage], None
        storage.runtime.settle(storage)
    return storage.node.kind == "buffer"


def is_open() -> bool:
    """Return whether the device has been opened in this process."""
    return opened.runtime is not None and not interrupt.flag.forked


def is_forked() -> bool:
    """Return whether this is a forked child of a process that had opened the device."""
    return interrupt.flag.forked


def generator() -> Generator:
    """Return the device's generator, seeded as `torch.manual_seed` said."""
    found = default_generator(device_of(runtime()))
    pending = device_module._pending_seed
    if pending:
        found.manual_seed(pending.pop())
    return found


def set_random_state(state: Sequence[int]) -> None:
    """Go back to a state of the device's generator, given as its bytes."""
    contents = from_contents(bytes(state), (len(state),), dtypes.uint8, resolve("cpu"))
    generator().set_state(contents)


def on_device(x: torch.Tensor) -> bool:
    """Whether a tensor is on the device."""
    return x.device.type == "webgpu"


def webtorch_dtype(dtype: torch.dtype, compiled: bool = False) -> DType:
    """Return webtorch's type. Raises DTypeError for a type that the device cannot hold.

    float64 and complex128 are the engine's, which on WebGPU has them in few elements, with WEBTORCH_FLOAT64=words in
    any number. WEBTORCH_FLOAT64=cpu has them computed by the CPU engine, but not in compiled programs,
    WEBTORCH_FLOAT64=float32 has float32 and complex64 in their place, WEBTORCH_FLOAT64=error raises; then float32
    serves in forward mode all the same, as PyTorch's tangent of a 0-d tensor times a Python number has the number's
    type.
    """
    found = TO_WEBTORCH.get(dtype)
    if found is None or found in UNSUPPORTED:
        how = "error" if found is None else _wide()
        if how == "cpu" and found is not None and not compiled:
            return found
        narrowed = how == "float32" or forward_ad._current_level >= 0
        if found is not None and found.has_gradient and narrowed:
            return dtypes.complex64 if dtype.is_complex else dtypes.float32
        instead = (
            "complex64" if dtype.is_complex else "float32" if dtype.is_floating_point else "int32"
        )
        hint = "" if found is None else (
            " Where a library asks for it, WEBTORCH_FLOAT64=float32 gives it float32, with a warning, and"
            " WEBTORCH_FLOAT64=cpu computes it on the CPU, WEBTORCH_FLOAT64=words on the device, from its bits."
        )  # fmt: skip
        raise DTypeError(
            f"webgpu: {dtype} is not available: WebGPU has float32, float16, bfloat16, complex64, int64 (32 "
            "bits of it), int32, int16, int8, uint8, uint16, uint32 and bool. Convert first, as in "
            f"x.to(torch.{instead}).{hint}"
        )
    return found


_warned_of_narrowing: list[bool] = []


def read_option() -> None:
    """Say which types are not the device's: float64 is, where WEBTORCH_FLOAT64 is "words" or says nothing."""
    asked = os.environ.get("WEBTORCH_FLOAT64", "").strip().lower()
    UNSUPPORTED.clear()
    UNSUPPORTED.update(
        d for d in TO_TORCH if not d.webgpu and not (d.has_gradient and asked in ("", "words"))
    )
    _blanks.clear()


def has_wide() -> bool:
    """Whether float64 and complex128 are available, as the CPU engine's."""
    return _wanted() == "cpu"


def is_narrowed() -> bool:
    """Whether float32 and complex64 are there in the place of float64 and complex128."""
    return _wanted() == "float32"


def _wanted() -> str:
    """Return what WEBTORCH_FLOAT64 says: "cpu", "error" or "float32".

    Where it says nothing, or "words", the CPU engine has uint64, and on WebGPU nothing goes to the host unasked. Raises
    ValueError for another value.
    """
    wanted = os.environ.get("WEBTORCH_FLOAT64", "").strip().lower()
    if wanted in ("", "words"):
        return "cpu" if host() is runtime() else "error"
    if wanted not in ("cpu", "error", "float32"):
        raise ValueError(
            f"WEBTORCH_FLOAT64={wanted!r}: the values are 'words', 'cpu', 'error' and 'float32'"
        )
    return wanted


def _wide() -> str:
    """Return the same; the first "float32" warns."""
    wanted = _wanted()
    if wanted == "float32" and not _warned_of_narrowing:
        _warned_of_narrowing.append(True)
        warnings.warn(
            "webgpu: a tensor of float64 was asked for and is float32 (WEBTORCH_FLOAT64=float32)",
            UserWarning,
            stacklevel=user_depth(),
        )
    return wanted


# ---- storages -----------------------------------------------------------------------------------


class _Changes:
    """Counts how often memory got another webtorch storage: compiled graphs then look at it anew."""

    count = 0


changes = _Changes()


class Memory:
    """What a PyTorch storage on the device carries: a typed webtorch storage, or bytes whose type is not known yet.

    PyTorch's storages have no type. The type here is that of the first tensor that reads or writes the
    memory; a tensor of another type (`x.view(torch.int32)`) converts it through the host.

    `laid`: values that a kernel wrote row-major, where the tensors' strides say another order. They are turned
    when the memory is looked at in a way that they cannot be seen in, or written in part.
    """

    __slots__ = ("__weakref__", "dtype", "is_cut", "laid", "nbytes", "raw", "storage")

    def __init__(self, nbytes: int, dtype: DType | None, storage: Storage | None = None) -> None:
        self.nbytes = nbytes
        # Whether it has been made smaller: tensors may then reach beyond its end.
        self.is_cut = False
        self.dtype = dtype
        self.storage = storage
        self.raw: bytes | None = None
        self.laid: Laid | None = None

    def typed(self, dtype: DType) -> Storage:
        """Return the contents as a storage of `dtype`."""
        if self.laid is not None:
            self.turn()
        storage = self.storage
        if storage is not None and storage.dtype is dtype:
            return storage
        if storage is not None:
            changes.count += 1
        # Bytes that do not fill an element are kept too: another type will read them.
        count = -(-self.nbytes // dtype.itemsize)
        if storage is not None or self.raw is not None:
            contents = self.contents()
            missing = count * dtype.itemsize - self.nbytes
            if missing:
                contents = bytes(contents) + bytes(missing)
            storage = from_contents(contents, (count,), dtype, place_of(dtype))._storage
        else:
            storage = primitive.empty((count,), dtype, here(dtype))._storage
        self.storage, self.raw = storage, None
        return storage

    def turn(self) -> None:
        """Put values that were laid into the order that the tensors' strides say."""
        assert self.laid is not None
        shape, strides = self.laid.turned()
        values = Tensor._from_storage(self.laid.storage, shape, strides, 0, False)
        self.adopt(primitive.copy(values)._storage)

    def contents(self) -> bytes | bytearray | memoryview:
        """Return all bytes. Waits for the device."""
        if self.laid is not None:
            self.turn()
        if self.raw is not None:
            return self.raw
        if self.storage is None or not self.nbytes:
            return bytes(self.nbytes)
        return memoryview(flat(self.storage)._contents()).cast("B")[: self.nbytes]

    @property
    def held(self) -> Storage | None:
        """The storage with the values, in whatever order they lie."""
        return self.storage if self.laid is None else self.laid.storage

    @property
    def is_new(self) -> bool:
        """Whether nothing has been written yet."""
        return self.storage is None and self.raw is None and self.laid is None

    def adopt(self, storage: Storage) -> None:
        """Take over a storage that nothing else uses."""
        if self.storage is not None:
            changes.count += 1
        self.storage, self.raw, self.laid = storage, None, None


def flat(storage: Storage) -> Tensor:
    """Return a storage as a 1-d tensor."""
    return Tensor._from_storage(storage, (storage.elements,), (1,), 0, True)


# Addresses are never used twice. They are 4 GiB apart, so that data_ptr() tells tensors apart as usual.
_addresses = itertools.count(1 << 32, 1 << 32)
# PyTorch's storages that Python makes have no allocator and cannot grow by themselves: they take another's memory
# (from PyTorch 2.13 on).
swap = getattr(torch.UntypedStorage, "_swap_data_ptr_", None)
_construct: Callable[..., Any] = torch._C._construct_storage_from_data_pointer
_create = torch._C._acc.create_empty_tensor
_address_of, _length_of = torch.UntypedStorage.data_ptr, torch.UntypedStorage.nbytes
_storage_of: Callable[[torch.Tensor], Any] = torch._C.TensorBase.untyped_storage
# A tensor of other sizes and strides on the same storage, no view to PyTorch. `set_` costs three times as much.
_reinterpret: Callable[..., torch.Tensor] = torch._C._dynamo.guards._reinterpret_tensor  # type: ignore[attr-defined]
# The operator itself, without the wrapper that every call of `redispatch` would go through.
set_memory = torch.ops.aten.set_.source_Storage_storage_offset._handle.redispatch_boxed


# The words that every storage of PyTorch's begins with: a table of methods, counts, what it points to, how long it is.
_Words = ctypes.c_size_t * 7


@functools.cache
def words_of_storages() -> tuple[int, int, int] | None:
    """Return which word of a storage of Python's says where PyTorch's is, and which words of that are the address and
    the number of bytes, or None where it is unknown.

    Found by storages whose addresses and lengths are known.
    """
    made = [_construct(next(_addresses), DEVICE, 8191 + n) for n in range(3)]
    count = torch._C.StorageBase.__basicsize__ // ctypes.sizeof(ctypes.c_size_t)
    objects = [list((ctypes.c_size_t * count).from_address(id(storage))) for storage in made]
    places = [
        [n for n in range(count) if o[n] == s._cdata] for s, o in zip(made, objects, strict=True)
    ]
    if any(place != places[0] for place in places) or len(places[0]) != 1:
        return None
    words = list(zip(*(_Words.from_address(storage._cdata) for storage in made), strict=True))
    address, length = (tuple(f(s) for s in made) for f in (_address_of, _length_of))
    if address not in words or length not in words:
        return None
    return places[0][0], words.index(address), words.index(length)


def new_storage(nbytes: int, dtype: DType | None = None) -> tuple[torch.UntypedStorage, Memory]:
    """Return a new PyTorch storage on the device, and its memory."""
    memory = Memory(nbytes, dtype)
    storage = _construct(next(_addresses), DEVICE, nbytes)
    storage._webgpu = memory
    return storage, memory


def memory_of(x: torch.Tensor) -> Memory:
    """Return the memory behind a tensor on the device."""
    return memory_of_storage(x.untyped_storage())


def check_device(device: torch.device | None) -> None:
    """Raise RuntimeError for a device other than webgpu:0, and webgpu:n in process n of a launcher's."""
    if device is not None and device.index and device.index != device_module.local_rank():
        raise RuntimeError(f"webgpu: there is no device '{device}': {device_module.one_device()}")


def untyped_storage(size: int | Iterable[int] = 0, *, device: torch.device) -> torch.UntypedStorage:
    """Return `torch.UntypedStorage(size, device="webgpu")`."""
    check_device(device)
    runtime()
    if isinstance(size, int):
        if size < 0:
            raise RuntimeError(f"UntypedStorage: the size must not be negative, got {size} bytes")
        return new_storage(size)[0]
    contents = bytes(size)
    storage, memory = new_storage(len(contents))
    memory.raw = contents
    return storage


def memory_of_storage(storage: object) -> Memory:
    """Return the memory of a PyTorch storage."""
    found = getattr(storage, "_webgpu", None)
    return found if type(found) is Memory else _made_memory(storage)


_making = threading.Lock()


def _made_memory(storage: Any) -> Memory:
    """Return the memory of a PyTorch storage that carries its values' storage only: see `Blank.tensor`."""
    with _making:
        found: Memory | Storage | None = getattr(storage, "_webgpu", None)
        if found is None:
            raise RuntimeError(
                "webgpu: this tensor has no memory: its storage was made by something other than this device"
            )
        if isinstance(found, Storage):
            found = storage._webgpu = Memory(storage.nbytes(), found.dtype, found)
        return found


def allocate(size: Sequence[int], stride: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    """Return an uninitialised tensor."""
    if interrupt.flag.pressed:
        interrupt.check()
    key = tuple(size), tuple(stride), dtype
    return (_blanks.get(key) or _kept(key, _blank(*key))).tensor()


# How tensors lie that were asked for before, by what was asked.
_blanks: dict[tuple[object, ...], Blank] = {}
_MOST_BLANKS = 1024
read_option()


def _kept(key: tuple[object, ...], blank: Blank) -> Blank:
    # A type that stands for another one, or may, is looked at each time.
    if blank.dtype in key and blank.nbytes and blank.held not in UNSUPPORTED:
        if len(_blanks) >= _MOST_BLANKS:
            _blanks.clear()
        _blanks[key] = blank
    return blank


def _blank(size: tuple[int, ...], stride: tuple[int, ...], dtype: torch.dtype) -> Blank:
    kind = TO_WEBTORCH.get(dtype)
    if kind is None or kind in UNSUPPORTED or opened.runtime is None:
        kind = webtorch_dtype(dtype)
        dtype = TO_TORCH[kind]
    count = 1
    for n, step in zip(size, stride):
        if n < 1:
            if n:
                raise RuntimeError(
                    f"Trying to create tensor with negative dimension {n}: {list(size)}"
                )
            count = 0
            break
        count += (n - 1) * step
    nbytes = count * kind.itemsize
    if not 0 <= nbytes < 1 << 63:
        raise RuntimeError(
            f"Storage size calculation overflowed with sizes={list(size)} and strides={list(stride)}"
        )
    return Blank(nbytes, HELD[dtype], dtype, size, stride)


class Blank:
    """How new tensors of one kind lie in memory of their own: worked out once."""

    __slots__ = ("dtype", "held", "is_plain", "laid", "nbytes", "offset", "size", "strides")

    def __init__(
        self,
        nbytes: int,
        held: DType,
        dtype: torch.dtype,
        size: tuple[int, ...],
        strides: tuple[int, ...],
        offset: int = 0,
        laid: bool = False,
    ) -> None:
        """`laid`: whether the values are row-major though the strides say another order."""
        self.nbytes, self.held, self.dtype = nbytes, held, dtype
        self.size, self.strides, self.offset, self.laid = size, strides, offset, laid
        # PyTorch makes tensors that are row-major, and gives an empty one other strides than elsewhere.
        self.is_plain = not offset and 0 not in size and strides == contiguous_strides(size)

    def tensor(self, inner: Storage | None = None) -> torch.Tensor:
        """Return a new tensor, with a new storage of PyTorch's, on a webtorch storage, or on nothing yet.

        PyTorch's storage carries the webtorch storage itself, as the memory of most results is asked for nothing
        else: `memory_of` makes it when it is.
        """
        home: object = inner
        if inner is None or self.laid:
            home = Memory(self.nbytes, self.held, inner)
            if self.laid and inner is not None:
                home.storage, home.laid = None, Laid(inner, self.size, self.strides)
        x = _create(self.size, self.dtype)
        storage = _storage_of(x)
        if swap is not None:
            swap(storage, _construct(next(_addresses), DEVICE, self.nbytes))
        else:
            _, address, length = words_of_storages()  # type: ignore[misc]
            words = _Words.from_address(storage._cdata)
            words[address], words[length] = next(_addresses), self.nbytes
        if not self.is_plain:
            x = _reinterpret(x, self.size, self.strides, self.offset)
        storage._webgpu = home
        return x


# ---- operands and results -----------------------------------------------------------------------


def wrap(x: torch.Tensor) -> Tensor:
    """Return a tensor on the device as a webtorch tensor on the same memory."""
    return wrap_memory(x, memory_of(x))


def shape_of(x: torch.Tensor) -> tuple[int, ...]:
    """Return the sizes as numbers: while PyTorch traces they are tensors, of what it sees anyway."""
    shape = tuple(x.shape)
    return shape if not shape or type(shape[0]) is int else tuple(map(int, shape))


def wrap_memory(x: torch.Tensor, memory: Memory) -> Tensor:
    """Return a tensor as a webtorch tensor on `memory`, which is its own."""
    if memory.is_cut:
        _check_reach(x, memory)
    # A view can be of a type that is not available.
    kind = TO_WEBTORCH.get(x.dtype) or webtorch_dtype(x.dtype)
    shape, strides, offset = shape_of(x), x.stride(), offset_of(x)
    if kind.is_complex:
        storage = memory.typed(kind.to_real())
        out = Tensor._from_storage(storage, shape, strides, offset, False, kind)
        if x.is_conj():
            out = primitive.conjugate(out)
    else:
        found = memory.storage
        if memory.laid is not None:
            seen = memory.laid.view(shape, strides, offset)
            if seen is not None and memory.laid.storage.dtype is kind:
                found, (strides, offset) = memory.laid.storage, seen
                whole = not offset and strides == contiguous_strides(shape)
                whole = whole and x.numel() == found.elements
                out = Tensor._from_storage(found, shape, strides, offset, whole)
                return -out if x.is_neg() else out
        storage = found if found is not None and found.dtype is kind else memory.typed(kind)
        whole = offset == 0 and x.numel() == storage.elements and x.is_contiguous()
        out = Tensor._from_storage(storage, shape, strides, offset, whole)
    return -out if x.is_neg() else out


def reach(x: torch.Tensor) -> int:
    """Return how many bytes a tensor reaches from where it begins."""
    return reach_of(x.shape, x.stride(), 0) * x.element_size()


def reach_of(size: Sequence[int], stride: Sequence[int], offset: int) -> int:
    """Return how many elements of its memory a tensor reaches."""
    if 0 in size:
        return 0
    return offset + 1 + sum((n - 1) * s for n, s in zip(size, stride, strict=False))


def _check_reach(x: torch.Tensor, memory: Memory) -> None:
    """Raise RuntimeError for a tensor that reaches beyond the end of its memory."""
    need = reach_of(x.shape, x.stride(), offset_of(x)) * x.element_size()
    if need > memory.nbytes:
        raise RuntimeError(
            f"webgpu: a tensor of shape {tuple(x.shape)} and type {x.dtype} on '{x.device}' needs a storage of {need} "
            f"bytes, which was resized to {memory.nbytes}. Resize it again, as in x.untyped_storage().resize_({need})."
        )


class Lain(NamedTuple):
    """A result as it is to lie behind a new tensor of PyTorch's."""

    # All of a storage that nothing else uses.
    tensor: Tensor
    # Those of PyTorch's tensor.
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    # Whether the values are row-major though the strides say another order.
    laid: bool


def lie(result: Tensor, fresh: bool, strides: tuple[int, ...] | None = None) -> Lain:
    """Return a result with memory of its own.

    `fresh`: nothing else uses the result's storage. `strides`: those of the tensor, without gaps; None for row-major
    order.
    """
    kind, shape = result.dtype, result._shape
    if strides is None or is_contiguous(shape, strides):
        if not (fresh and (result._pairs() if kind.is_complex else result)._whole):
            result = primitive.copy(result)
        return Lain(result, shape, strides or contiguous_strides(shape), False)
    if kind.is_complex:
        order = memory_order(shape, strides)
        assert order is not None
        return Lain(primitive.copy(result.permute(order)), shape, strides, False)
    if fresh and result._strides == strides and _is_all(result):
        return Lain(result, shape, strides, False)
    if not (fresh and result._whole):
        result = primitive.copy(result)
    return Lain(result, shape, strides, True)


def new_tensor(result: Tensor, fresh: bool, strides: tuple[int, ...] | None = None) -> torch.Tensor:
    """Return a webtorch result as a new PyTorch tensor: see `lie`."""
    return made_of(lie(result, fresh, strides))


def made_of(x: Lain) -> torch.Tensor:
    """Return a result as a new PyTorch tensor."""
    return tensor_on(x.tensor._storage, TO_TORCH[x.tensor.dtype], x.shape, x.strides, 0, x.laid)


def tensor_on(
    inner: Storage,
    dtype: torch.dtype,
    shape: tuple[int, ...],
    strides: tuple[int, ...],
    offset: int,
    laid: bool = False,
) -> torch.Tensor:
    """Return a new PyTorch tensor, with a new storage of PyTorch's, on a webtorch storage."""
    nbytes = inner.elements * inner.dtype.itemsize
    return Blank(nbytes, inner.dtype, dtype, shape, strides, offset, laid).tensor(inner)


def _is_all(x: Tensor) -> bool:
    """Whether a tensor whose strides have no gaps is all of its storage."""
    return not x._offset and x._storage.elements == numel(x._shape)


def is_whole(x: torch.Tensor) -> bool:
    """Whether a tensor on the device is all of its memory, row-major and not empty."""
    memory = memory_of(x)
    return (
        memory.laid is None
        and not memory.is_cut
        and 0 < x.nbytes == memory.nbytes
        and not offset_of(x)
        and x.is_contiguous()
    )


def cast(x: Tensor, kind: DType) -> Tensor:
    """Return a result in another type, where tensors of that type are."""
    wide = kind in UNSUPPORTED
    if wide is (x.dtype in UNSUPPORTED) or host() is runtime():
        return primitive.cast_to(x, kind)
    looks()
    if wide:
        return primitive.cast_to(x.to(here(kind)), kind)
    return primitive.cast_to(x, kind).to(here(kind))


def store(out: torch.Tensor, result: Tensor, fresh: bool) -> None:
    """Overwrite `out` with a webtorch result, which is converted and broadcast to it."""
    dtype = TO_WEBTORCH.get(out.dtype) or webtorch_dtype(out.dtype)
    if out.is_neg():
        result, fresh = -result, True
    if result.dtype is not dtype:
        result, fresh = cast(result, dtype), True
    shape = shape_of(out)
    if result._shape != shape:
        result, fresh = result.expand(shape), False
    strides, offset = out.stride(), offset_of(out)
    if dtype.is_complex:
        if out.is_conj():
            result, fresh = primitive.conjugate(result), True
        result, dtype = result._pairs(), dtype.to_real()
        shape, strides, offset = (*shape, 2), (*[2 * s for s in strides], 1), 2 * offset
    memory = memory_of(out)
    if memory.is_cut:
        _check_reach(out, memory)
    elements = numel(shape)
    if not elements:
        return
    if memory.nbytes == elements * dtype.itemsize and offset == 0:
        # The whole memory is overwritten, in some order of the dims: nothing of the old value is read.
        if not is_contiguous(shape, strides):
            order = memory_order(shape, strides)
            if order is None:
                _write(memory.typed(dtype), shape, strides, offset, result, fresh)
                return
            turned = result.permute(order)
            if memory.storage is None and not turned._whole and not out.is_complex():
                _lay(memory, result, fresh, shape, strides)
                return
            result, fresh = turned, False
        if not result._whole:
            result, fresh = primitive.copy(result), True
        old = memory.storage
        if old is None or old.dtype is not dtype:
            if not fresh:
                result = primitive.copy(result)
            memory.adopt(result._storage)
            return
        node = result._node()
        if not fresh and node is result._storage.node:
            node = result._storage.share()
        old.replace(node)
        return
    _write(memory.typed(dtype), shape, strides, offset, result, fresh)


def _lay(
    memory: Memory, result: Tensor, fresh: bool, shape: tuple[int, ...], strides: tuple[int, ...]
) -> None:
    """Overwrite memory that is not row-major, or new, with a result, which stays as it lies."""
    if not (fresh and result._whole):
        result = primitive.copy(result)
    laid = Laid(result._storage, shape, strides)
    old = memory.laid
    if old is None or old.groups != laid.groups or old.storage.dtype is not result.dtype:
        memory.raw, memory.laid = None, laid
    else:
        old.storage.replace(result._node())


def _write(
    storage: Storage,
    shape: tuple[int, ...],
    strides: tuple[int, ...],
    offset: int,
    result: Tensor,
    fresh: bool,
) -> None:
    primitive.write(Tensor._from_storage(storage, shape, strides, offset, False), result, fresh)


def refuse_overlap(x: torch.Tensor, out: torch.Tensor, whole: bool = True) -> None:
    """Raise RuntimeError where what is written is read at another place. The two are in one memory.

    `whole`: a tensor may be read at the places where it is written.
    """
    read, written = ((t.data_ptr(), t.shape, t.stride(), t.nbytes) for t in (x, out))
    if (x is out and not whole) or is_overwritten(read, written, whole):
        raise RuntimeError(OVERWRITTEN)


# ---- geometry -----------------------------------------------------------------------------------


def empty(
    size: Sequence[int],
    dtype: torch.dtype | None,
    layout: torch.layout | None,
    device: torch.device | None,
    memory_format: torch.memory_format | None,
) -> torch.Tensor:
    """`aten::empty.memory_format`."""
    if interrupt.flag.pressed:
        interrupt.check()
    dtype = dtype or torch.get_default_dtype()
    key = (tuple(size), dtype, layout, device, memory_format)
    blank = _blanks.get(key)
    if blank is None:
        check_device(device)
        check_layout(layout)
        blank = _kept(key, _blank(key[0], strides_in(key[0], memory_format), dtype))
    out = blank.tensor()
    return fill_empty(out) if fills_empty() else out


def strides_in(size: tuple[int, ...], memory_format: torch.memory_format | None) -> tuple[int, ...]:
    """Return the strides of a tensor without gaps in a memory format; None is row-major order."""
    if memory_format not in (torch.channels_last, torch.channels_last_3d):
        return contiguous_strides(size)
    rank = 4 if memory_format is torch.channels_last else 5
    if len(size) != rank:
        raise RuntimeError(
            f"required rank {rank} tensor to use {str(memory_format).removeprefix('torch.')} format"
        )
    return channels_last(size)


def empty_strided(
    size: Sequence[int],
    stride: Sequence[int],
    dtype: torch.dtype | None,
    layout: torch.layout | None,
    device: torch.device | None,
) -> torch.Tensor:
    """`aten::empty_strided`."""
    check_device(device)
    check_layout(layout)
    out = allocate(size, stride, dtype or torch.get_default_dtype())
    return fill_empty(out) if fills_empty() else out


def check_layout(layout: torch.layout | None) -> None:
    """Raise NotImplementedError for a layout other than strided."""
    if layout not in (None, torch.strided):
        raise NotImplementedError(
            f"webgpu: layout {layout} is not available: tensors are dense; use .to_dense() first"
        )


_is_deterministic = torch._C._get_deterministic_algorithms
levels.append(torch.get_deterministic_debug_mode)


def fills_empty() -> bool:
    """Whether memory that nothing has been written to is to be filled with NaN or the largest number."""
    return _is_deterministic() and torch._C._get_deterministic_fill_uninitialized_memory()


def fill_empty(x: torch.Tensor) -> torch.Tensor:
    """Fill it so."""
    if x.is_floating_point() or x.is_complex():
        return x.fill_(float("nan"))
    return x.fill_(True if x.dtype is torch.bool else torch.iinfo(x.dtype).max)


def here(kind: DType = dtypes.float32) -> Device:
    """Return the device of tensors of a type, as webtorch has it."""
    return device_of(place_of(kind))
