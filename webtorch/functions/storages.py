"""The memory of tensors as PyTorch shows it: `UntypedStorage` counts bytes, `TypedStorage` elements of a type.

Both are written with the flat tensor that lies in the memory.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from typing import Any, Self
from weakref import WeakKeyDictionary, WeakValueDictionary

from webtorch.functions import creation
from webtorch.ir.dtype import (
    DType,
    bfloat16,
    bool_,
    complex64,
    complex128,
    float16,
    float32,
    float64,
    int8,
    int16,
    int32,
    int64,
    uint8,
)
from webtorch.ir.graph import Node
from webtorch.ops.purity import warn_once
from webtorch.runtime.realize import is_seen
from webtorch.tensors.above import give
from webtorch.tensors.device import DeviceLike, device, device_of
from webtorch.tensors.forward import home_of
from webtorch.tensors.modes import mode
from webtorch.tensors.promotion import get_default_dtype
from webtorch.tensors.storage import Storage
from webtorch.tensors.tensor import Tensor

# Copies of values that a card computes for the "cpu", while the values are there.
_copies: WeakKeyDictionary[Node, Any] = WeakKeyDictionary()


def _made(args: tuple[Any, ...], dtype: DType, where: DeviceLike) -> Storage:
    """Return memory of a type: of a number of elements, or with a sequence in it."""
    if len(args) > 1 or (args and isinstance(args[0], str)):
        raise TypeError(f"Storage: takes a size or a sequence, got {args!r}")
    content = args[0] if args else 0
    if isinstance(content, int):
        return creation.empty(content, dtype=dtype, device=where)._storage
    return creation.tensor(list(content), dtype=dtype, device=where)._storage


class _Memory:
    """What storages with and without a type have in common."""

    __slots__ = ()

    dtype: DType

    @property
    def _flat(self) -> Tensor:
        """The elements, as a tensor on the memory itself."""
        raise NotImplementedError

    def _readable(self) -> Tensor:
        if self.device.type == "meta":
            raise NotImplementedError("Not available for 'meta' device type")
        return self._flat

    @property
    def device(self) -> device:
        """The device that holds the memory."""
        return self._flat.device

    is_cuda = is_sparse = is_hpu = False

    def size(self) -> int:
        """Return the number of elements."""
        return len(self)

    def __len__(self) -> int:
        return self._flat.numel()

    def __setitem__(self, at: int | slice, value: Any) -> None:
        if isinstance(value, _Memory):
            value = value._flat
        self._readable()[at] = value

    def __iter__(self) -> Iterator[Any]:
        return iter(self.tolist())

    def tolist(self) -> list[Any]:
        """Return the elements."""
        return list(self._readable().tolist())

    def _lines(self) -> str:
        if self.device.type == "meta":
            return "...\n"
        return "".join(f" {value}\n" for value in self.tolist())

    def fill_(self, value: Any) -> Self:
        """Set all elements to a number."""
        self._flat.fill_(value)
        return self

    def _from(self, source: _Memory) -> Tensor:
        if source.device.type == "meta" != self.device.type:
            raise NotImplementedError("Cannot copy out of meta tensor; no data!")
        return source._flat

    def is_pinned(self, device: object = "cuda") -> bool:
        """Return False: memory is never page-locked."""
        return False

    def is_shared(self) -> bool:
        """Return False: processes share no memory."""
        return False

    def _write_file(self, f: Any, is_real_file: bool, save_size: bool, element_size: int) -> None:
        """Write the bytes to a file, after their number of elements if `save_size`."""
        if self.device.type == "meta":
            raise NotImplementedError("Cannot copy out of meta tensor; no data!")
        data = bytes(self._flat._to_bytes())
        if save_size:
            f.write((len(data) // element_size).to_bytes(8, "little"))
        f.write(data)

    def resizable(self) -> bool:
        """Whether the memory may become larger: NumPy does not see it."""
        node = self._memory._storage.node
        return node.host is None or not is_seen(node)

    def __sizeof__(self) -> int:
        return object.__sizeof__(self) + self.nbytes()

    def _fix_weakref(self) -> None:
        pass

    @property
    def _memory(self) -> StorageBase:
        raise NotImplementedError

    def nbytes(self) -> int:
        """Return the size in bytes."""
        raise NotImplementedError

    def _refuse(self, *_: object, **__: object) -> Any:
        raise RuntimeError(
            "Sharing memory between processes is only available on CPU, and not here"
        )

    share_memory_ = _share_fd_cpu_ = _share_filename_cpu_ = _refuse


# The objects that show memory.
_shown: WeakValueDictionary[Storage, UntypedStorage] = WeakValueDictionary()


class StorageBase(_Memory):
    """What `UntypedStorage` and classes of users' derive from."""

    __slots__ = ("__dict__", "__weakref__", "_part", "_storage")

    def __new__(cls, *args: object, **kwargs: object) -> Self:
        """Make an object of a class that is derived from this one."""
        if cls is StorageBase:
            raise RuntimeError(
                "Cannot directly construct StorageBase; subclass StorageBase and then construct that"
            )
        return super().__new__(cls)

    def __init__(self, *args: object, device: DeviceLike = None) -> None:
        """Take a number of bytes, or a sequence of them."""
        given = args[0] if len(args) == 1 else None
        if isinstance(given, StorageBase):
            given = given._storage
        # The bytes of the memory that are shown, None for all.
        self._part: tuple[int, int] | None = None
        self._storage: Storage = given if isinstance(given, Storage) else _made(args, uint8, device)
        # What programs set stays as long as the memory.
        if (notes := getattr(self._storage, "notes", None)) is not None:
            self.__dict__ = notes

    def __setattr__(self, name: str, value: object) -> None:
        super().__setattr__(name, value)
        if name in self.__dict__ and self._part is None:
            self._storage.notes = self.__dict__

    @classmethod
    def from_file(cls, filename: str, shared: bool = False, nbytes: int = 0) -> Self:
        """Return the first bytes of a file as a storage: writing to a shared one writes to the file."""
        flat = creation.from_file(filename, shared, nbytes, dtype=uint8, device="cpu")
        return cls._of_file(flat, filename if shared else None)

    @classmethod
    def _of_file(cls, flat: Tensor, filename: str | None) -> Self:
        made = cls(flat._storage)
        made._filename = filename
        return made

    @property
    def filename(self) -> str | None:
        """The file that the memory lies in, None where it is no file's, or a copy."""
        return self.__dict__.get("_filename")

    @property
    def _flat(self) -> Tensor:
        return self._seen_as(uint8)

    def _seen_as(self, dtype: DType) -> Tensor:
        """Return the memory as a flat tensor of a type."""
        storage = self._storage
        whole = Tensor._from_storage(storage, (storage.elements,), (1,), 0, True, storage.dtype, ())
        if dtype is not storage.dtype and (over := storage.nbytes % dtype.itemsize):
            # Bytes that fill no element are not seen.
            whole = whole[: storage.elements - over // storage.dtype.itemsize]
        seen = whole if dtype is storage.dtype else whole.view(dtype)
        if self._part is None:
            return seen
        start, stop = self._part
        return seen[start // dtype.itemsize : stop // dtype.itemsize]

    def __len__(self) -> int:
        return self._storage.nbytes if self._part is None else self._part[1] - self._part[0]

    def nbytes(self) -> int:
        """Return the size in bytes."""
        return len(self)

    size = nbytes

    @property
    def _memory(self) -> StorageBase:
        return self

    def element_size(self) -> int:
        """Return 1: a storage without a type counts bytes."""
        return 1

    @property
    def device(self) -> device:
        """The device that holds the memory."""
        return device_of(self._storage.runtime)

    def data_ptr(self) -> int:
        """Return the address of memory of the CPU, until it is written; elsewhere a number that stands for it."""
        runtime = self._storage.runtime
        if runtime.kind == "meta":
            return 0
        storage = home_of(self._storage) if mode.forward else self._storage
        start = self._part[0] if self._part else 0
        if self.device.type != "cpu" or runtime.capturing or runtime.recording is not None:
            return start + id(storage)
        if runtime.kind == "cpu":
            return start + int(storage.lend().ctypes.data)
        # A card computes what is on the "cpu" (`stand_in_for_cpu`): programs read a copy of the value.
        contents = self._flat._to_bytes()
        if storage.node not in _copies:
            _copies[storage.node] = ctypes.create_string_buffer(bytes(contents), len(contents))
        return start + ctypes.addressof(_copies[storage.node])

    def __getitem__(self, at: int | slice) -> Any:
        """Return a byte, or a storage of several: a part of this memory."""
        if not isinstance(at, slice):
            return self._readable()[at].item()
        start, stop, step = at.indices(len(self))
        if step != 1:
            raise RuntimeError(
                f"Trying to slice with a step of {step}, but only a step of 1 is supported"
            )
        return self._of_part(start, max(start, stop))

    def _of_part(self, start: int, stop: int) -> UntypedStorage:
        before = self._part[0] if self._part else 0
        part = UntypedStorage(self._storage)
        part._part = (before + start, before + stop)
        return part

    def clone(self) -> UntypedStorage:
        """Return a copy."""
        return UntypedStorage(self._flat.clone()._storage)

    def __copy__(self) -> UntypedStorage:
        return self.clone()

    def __deepcopy__(self, memo: dict[int, object]) -> UntypedStorage:
        return UntypedStorage(self._storage._copied(memo))

    def copy_(self, source: _Memory, non_blocking: bool = False) -> StorageBase:
        """Overwrite with the bytes of another storage."""
        given = source._untyped_storage if isinstance(source, TypedStorage) else source
        self._flat.copy_(self._from(given))
        return self

    def resize_(self, size: int) -> StorageBase:
        """Have `size` bytes; those that there were stay."""
        if size < len(self):
            raise RuntimeError(
                "A storage cannot shrink while tensors may be views of it: clone a part of it"
            )
        if size > len(self):
            dtype = self._storage.dtype
            self._seen_as(dtype).resize_(-(-size // dtype.itemsize))
        return self

    def __reduce__(self) -> tuple[object, ...]:
        return _of_tensor, (self._flat, False)

    def byteswap(self, dtype: DType) -> None:
        """Reverse the bytes of each element of a type; a complex number is two."""
        width = (dtype.to_real() if dtype.is_complex else dtype).itemsize
        self._flat.copy_(self._flat.clone().reshape(-1, width).flip(1).reshape(-1))

    def untyped(self) -> StorageBase:
        """Return the storage itself."""
        return self

    def new(self) -> UntypedStorage:
        """Return an empty storage on the same device."""
        return UntypedStorage(0, device=self.device)

    def to(self, *, device: DeviceLike, non_blocking: bool = False) -> StorageBase:
        """Return a copy on a device; the storage itself where it is there."""
        flat = self._flat
        moved = flat.to(device)
        return self if moved is flat else UntypedStorage(moved._storage)

    def cpu(self) -> StorageBase:
        """Return a copy in the computer's memory; the storage itself where it is there."""
        if self.device.type == "meta":
            raise NotImplementedError("Cannot copy out of meta tensor; no data!")
        return self.to(device="cpu")

    @property
    def _cdata(self) -> int:
        return id(self._storage)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, StorageBase) and other._storage is self._storage

    def __hash__(self) -> int:
        return hash(self._storage)

    def __repr__(self) -> str:
        return f"{self._lines()}[torch.storage.UntypedStorage(device={self.device}) of size {self.nbytes()}]"


class UntypedStorage(StorageBase):
    """The memory that a tensor and its views share, as PyTorch shows it. Sizes are in bytes."""

    __slots__ = ()


def _untyped(storage: Storage) -> UntypedStorage:
    """Return what shows a tensor's memory: one object for as long as somebody holds it."""
    found = _shown.get(storage)
    if found is None:
        found = _shown[storage] = UntypedStorage(storage)
    return found


_OLD = (
    "TypedStorage is deprecated. It will be removed in the future and UntypedStorage will be the only storage class. "
    "This should only matter to you if you are using storages directly.  To access UntypedStorage directly, use "
    "tensor.untyped_storage() instead of tensor.storage()"
)


class TypedStorage(_Memory):
    """The memory of tensors as elements of a type. Deprecated in PyTorch."""

    __slots__ = ("__weakref__", "_untyped_storage", "dtype")

    def __init__(
        self,
        *args: object,
        wrap_storage: StorageBase | None = None,
        dtype: DType | None = None,
        device: DeviceLike = None,
        _internal: bool = False,
    ) -> None:
        """Take a number of elements, a sequence of them, or memory to show as such."""
        if not _internal:
            warn_once(_OLD)
        if wrap_storage is not None:
            if args or dtype is None or device is not None:
                raise RuntimeError(
                    "TypedStorage: with wrap_storage= there is dtype= and nothing else"
                )
            self._untyped_storage: StorageBase = wrap_storage
        else:
            dtype = get_default_dtype() if dtype is None else dtype
            self._untyped_storage = UntypedStorage(_made(args, dtype, device))
        self.dtype = dtype

    @property
    def _flat(self) -> Tensor:
        return self._untyped_storage._seen_as(self.dtype)

    @classmethod
    def from_file(cls, filename: str, shared: bool, size: int) -> TypedStorage:
        """Raise RuntimeError: which type a file's elements have is known to `FloatStorage` and its kind."""
        raise RuntimeError("from_file can only be called on derived classes")

    def _seen_as(self, dtype: DType | None) -> Tensor:
        """Return the elements as a flat tensor. Raises RuntimeError for another type."""
        if dtype is not None and dtype is not self.dtype:
            raise RuntimeError(
                f"Expected a Storage of type {dtype.legacy} or an UntypedStorage, but got type "
                f"{self.dtype.legacy} for argument 1 'storage'"
            )
        return self._flat

    def __len__(self) -> int:
        return self.nbytes() // self.dtype.itemsize

    @property
    def device(self) -> device:
        """The device that holds the memory."""
        return self._untyped_storage.device

    def nbytes(self) -> int:
        """Return the size in bytes."""
        return self._untyped_storage.nbytes()

    def element_size(self) -> int:
        """Return the bytes of an element."""
        return self.dtype.itemsize

    def data_ptr(self) -> int:
        """Return the address of the memory."""
        return self._untyped_storage.data_ptr()

    @property
    def _cdata(self) -> int:
        return self._untyped_storage._cdata

    @property
    def _memory(self) -> StorageBase:
        return self._untyped_storage

    @property
    def _dtype(self) -> DType:
        return self.dtype

    def _pickle_storage_type(self) -> str:
        return f"{self.dtype.legacy}Storage"

    def __getitem__(self, at: int) -> Any:
        if isinstance(at, slice):
            raise RuntimeError("slices are only supported in UntypedStorage.__getitem__")
        if not isinstance(at, int):
            raise RuntimeError(f"can't index a {type(self)} with {type(at)}")
        return self._readable()[at].item()

    def untyped(self) -> StorageBase:
        """Return the memory without a type."""
        return self._untyped_storage

    def _of(self, flat: Tensor) -> TypedStorage:
        return TypedStorage(
            wrap_storage=UntypedStorage(flat._storage), dtype=flat.dtype, _internal=True
        )

    def clone(self) -> TypedStorage:
        """Return a copy."""
        return self._of(self._flat.clone())

    def __copy__(self) -> TypedStorage:
        return self.clone()

    def __deepcopy__(self, memo: dict[int, object]) -> TypedStorage:
        memory = self._untyped_storage.__deepcopy__(memo)
        return TypedStorage(wrap_storage=memory, dtype=self.dtype, _internal=True)

    def __reduce__(self) -> tuple[object, ...]:
        return _of_tensor, (self._flat, True)

    def copy_(self, source: _Memory, non_blocking: bool | None = None) -> TypedStorage:
        """Overwrite with the elements of another storage."""
        self._flat.copy_(self._from(source))
        return self

    def resize_(self, size: int) -> TypedStorage:
        """Have `size` elements; those that there were stay."""
        self._untyped_storage.resize_(size * self.dtype.itemsize)
        return self

    def cpu(self) -> TypedStorage:
        """Return a copy in the computer's memory; the same where it is there."""
        memory = self._untyped_storage.cpu()
        return TypedStorage(wrap_storage=memory, dtype=self.dtype, _internal=True)

    def to(self, *, device: DeviceLike, non_blocking: bool = False) -> TypedStorage:
        """Return a copy on a device; the same where it is there."""
        memory = self._untyped_storage.to(device=device)
        return TypedStorage(wrap_storage=memory, dtype=self.dtype, _internal=True)

    def type(self, dtype: Any = None, non_blocking: bool = False) -> Any:
        """Return the name of the class with this type, or the elements as another class's."""
        if dtype is None:
            return f"torch.{self.dtype.legacy}Storage"
        return self._of(self._flat.to(dtype.dtype).clone())

    def _as(self, dtype: DType) -> TypedStorage:
        return self if dtype is self.dtype else self._of(self._flat.to(dtype))

    def __repr__(self) -> str:
        return (
            f"{self._lines()}[torch.storage.TypedStorage(dtype={self.dtype}, device={self.device}) of size "
            f"{len(self)}]"
        )


def _of_tensor(flat: Tensor, typed: bool) -> StorageBase | TypedStorage:
    """Return the storage that a flat tensor has: how storages pickle."""
    memory = UntypedStorage(flat._storage)
    return TypedStorage(wrap_storage=memory, dtype=flat.dtype, _internal=True) if typed else memory


def _conversion(name: str, dtype: DType) -> Callable[[TypedStorage], TypedStorage]:
    def convert(self: TypedStorage) -> TypedStorage:
        """Return a copy of this type."""
        return self._as(dtype)

    convert.__name__ = name
    convert.__qualname__ = f"TypedStorage.{name}"
    convert.__doc__ = f"Return the elements as {dtype.name}."
    return convert


# What PyTorch's own code calls, which does not warn.
for _name, _public in {
    "_size": "size", "_resize_": "resize_", "_is_shared": "is_shared", "_share_memory_": "share_memory_",
    "_setitem": "__setitem__", "_getitem": "__getitem__", "_element_size": "element_size",
    "_deepcopy": "__deepcopy__", "_data_ptr": "data_ptr", "_nbytes": "nbytes", "_maybe_wrap_deepcopy": "clone",
}.items():  # fmt: skip
    setattr(TypedStorage, _name, getattr(TypedStorage, _public))

_CONVERSIONS = {
    "bfloat16": bfloat16, "bool": bool_, "byte": uint8, "char": int8, "complex_double": complex128,
    "complex_float": complex64, "double": float64, "float": float32, "half": float16, "int": int32, "long": int64,
    "short": int16,
}  # fmt: skip
for _name, _dtype in _CONVERSIONS.items():
    setattr(TypedStorage, _name, _conversion(_name, _dtype))


class _OfType(type):
    """A class whose calls make typed storages of one type, and whose instances are all such."""

    dtype: DType

    @property
    def _dtype(cls) -> DType:
        return cls.dtype

    def __call__(
        cls, *args: Any, wrap_storage: UntypedStorage | None = None, _internal: bool = True
    ) -> TypedStorage:
        return TypedStorage(*args, wrap_storage=wrap_storage, dtype=cls.dtype, _internal=True)

    def from_file(cls, filename: str, shared: bool, size: int) -> TypedStorage:
        """Return the first elements of a file as a storage: writing to a shared one writes to the file."""
        flat = creation.from_file(filename, shared, size, dtype=cls.dtype, device="cpu")
        memory = UntypedStorage._of_file(flat, filename if shared else None)
        return TypedStorage(wrap_storage=memory, dtype=cls.dtype, _internal=True)

    def from_buffer(
        cls, buffer: Any, byte_order: str = "native", count: int = -1, offset: int = 0
    ) -> TypedStorage:
        """Return a storage with a copy of elements that a buffer holds, in an order of bytes."""
        if byte_order not in ("native", "little", "big"):
            raise ValueError(
                f"invalid byte_order '{byte_order}' (expected 'big', 'little', or 'native')"
            )
        width = cls.dtype.itemsize
        data = memoryview(buffer).cast("B")[offset:]
        data = data[: len(data) - len(data) % width if count < 0 else count * width]
        memory = UntypedStorage(list(data))
        if byte_order == "big":
            memory.byteswap(cls.dtype)
        held = creation.empty(len(data) // width, dtype=cls.dtype)
        if len(data):
            flat = memory._flat
            held.copy_(flat.ne(0) if cls.dtype is bool_ else flat.view(cls.dtype))
        memory = UntypedStorage(held._storage)
        return TypedStorage(wrap_storage=memory, dtype=cls.dtype, _internal=True)

    def __instancecheck__(cls, other: object) -> bool:
        return isinstance(other, TypedStorage) and other.dtype is cls.dtype


def _class_of(dtype: DType) -> Any:
    text = {"dtype": dtype, "__module__": "webtorch", "__doc__": f"Storages of {dtype.name}."}
    return _OfType(f"{dtype.legacy}Storage", (), text)


BFloat16Storage = _class_of(bfloat16)
BoolStorage = _class_of(bool_)
ByteStorage = _class_of(uint8)
CharStorage = _class_of(int8)
ComplexDoubleStorage = _class_of(complex128)
ComplexFloatStorage = _class_of(complex64)
DoubleStorage = _class_of(float64)
FloatStorage = _class_of(float32)
HalfStorage = _class_of(float16)
IntStorage = _class_of(int32)
LongStorage = _class_of(int64)
ShortStorage = _class_of(int16)
_CLASSES: dict[DType, Any] = {
    c.dtype: c
    for c in (
        BFloat16Storage, BoolStorage, ByteStorage, CharStorage, ComplexDoubleStorage, ComplexFloatStorage,
        DoubleStorage, FloatStorage, HalfStorage, IntStorage, LongStorage, ShortStorage
    )
}  # fmt: skip


def _dtype_to_storage_type_map() -> dict[DType, str]:
    """Return the names of the classes by type."""
    return {dtype: found.__name__ for dtype, found in _CLASSES.items()}


def _storage_type(x: Tensor) -> Any:
    return _CLASSES[x.dtype]


def is_storage(obj: object) -> bool:
    """Return whether something is a tensor's storage."""
    return isinstance(obj, _Memory)


give(untyped=_untyped, typed=TypedStorage, storage_type=_storage_type)
