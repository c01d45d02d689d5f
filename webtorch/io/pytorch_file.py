"""The zip files that `torch.save` writes (.pt, .pth): read without running code, and written.

An archive holds "NAME/data.pkl", a pickle in which storages are persistent ids, and the bytes of each
storage in "NAME/data/KEY". Nothing is compressed. May import the tensor floor and nn.Parameter.
"""

from __future__ import annotations

import json
import math
import pickle
import pickletools
import struct
import zipfile
import zlib
from collections import OrderedDict
from collections.abc import Callable, Container
from typing import Any, BinaryIO, NoReturn, Protocol, cast

from webtorch.errors import DTypeError
from webtorch.functions import public as webtorch
from webtorch.functions.storages import StorageBase, TypedStorage, UntypedStorage, _untyped
from webtorch.io import objects
from webtorch.io.options import LoadEndianness, chosen, of_thread, packages
from webtorch.io.pickle_machine import PLAIN, Call, Name, Writer, read
from webtorch.ir import dtype as dtypes
from webtorch.ir.dtype import DType
from webtorch.ir.view import extent, is_contiguous, numel
from webtorch.nn.parameter import Buffer, Parameter, UninitializedBuffer, UninitializedParameter
from webtorch.ops.purity import warn
from webtorch.sparse.construction import sparse_compressed_tensor, sparse_coo_tensor
from webtorch.tensors.formats import LAYOUTS, sparse_coo, strided
from webtorch.tensors.formats import layout as Layout
from webtorch.tensors.size import Size
from webtorch.tensors.storage import Storage
from webtorch.tensors.tensor import Tensor

# Places a flat tensor that was saved on a device: (element count, dtype, bytes, saved device).
Place = Callable[[int, DType, memoryview, str], Tensor]
# Makes the memory of a storage of the file, as a flat tensor.
Load = Callable[["_Stored", DType], Tensor]

ZIP = b"PK\x03\x04"
_ALIGNMENT = 64
_DEVICES = "webtorch/devices.json"
_MAX_ENTRIES = 1_000_000
_MAX_PICKLE_BYTES = 1 << 30
STORAGES = {
    "Float": "float32", "Double": "float64", "Half": "float16", "BFloat16": "bfloat16", "Long": "int64",
    "Int": "int32", "Short": "int16", "Char": "int8", "Byte": "uint8", "Bool": "bool",
    "ComplexFloat": "complex64", "ComplexDouble": "complex128",
}  # fmt: skip
_STORAGE_OF = {name: kind for kind, name in STORAGES.items()}
DTYPES = {d.name: d for d in (*dtypes.ALL, *dtypes.COMPLEX)}
# PyTorch's types that have no counterpart, by name, so that an error can say which it is.
_ABSENT = (
    "float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz",
    "float8_e5m2fnuz", "float8_e8m0fnu", "qint8", "quint8", "qint32", "quint4x2", "quint2x4",
)  # fmt: skip


class CheckpointError(pickle.UnpicklingError, RuntimeError):
    """A file that is no archive of `torch.save`, is damaged, or holds more than data."""


class Source(Protocol):
    """What is read: the parts of a file by name, and how to say that one is damaged."""

    file: str

    def refuse(self, message: str) -> NoReturn:
        """Raise CheckpointError about this file."""

    def bytes_of(self, name: str) -> memoryview:
        """Return the bytes of a part. Raises CheckpointError where there is none."""

    def text_of(self, name: str) -> str | None:
        """Return a small text, or None where there is none."""


class Entry:
    """One stored file of the archive: where its bytes are."""

    __slots__ = ("begin", "checksum", "end", "name")

    def __init__(self, name: str, begin: int, end: int, checksum: int) -> None:
        self.name, self.begin, self.end, self.checksum = name, begin, end, checksum


class Archive:
    """The entries of a zip file in memory, all checked to lie inside it, apart and uncompressed. `unchecked`: of a
    file that tensors may have been written to.
    """

    def __init__(self, view: memoryview, file: str, unchecked: bool = False) -> None:
        self.view, self.file, self.unchecked = view, file, unchecked
        try:
            with zipfile.ZipFile(cast(Any, _Window(view))) as archive:
                found = archive.infolist()
        except (zipfile.BadZipFile, ValueError, NotImplementedError, OSError) as error:
            self.refuse(f"it is no complete zip archive ({error}); was it cut short?")
        if len(found) > _MAX_ENTRIES:
            self.refuse(f"it has {len(found)} entries")
        self.entries: dict[str, Entry] = {}
        for info in found:
            if info.filename in self.entries:
                self.refuse(f"two entries are called {short(info.filename)}")
            self.entries[info.filename] = self._entry(info)
        end = 0
        for entry in sorted(self.entries.values(), key=lambda e: (e.begin, e.end)):
            if entry.begin < end and entry.begin != entry.end:
                self.refuse(f"the bytes of {short(entry.name)} are another entry's too")
            end = max(end, entry.end)
        roots = [n for n in self.entries if n.endswith("/data.pkl") and n.count("/") == 1]
        if len(roots) != 1:
            self.refuse("it is a zip file, but not one of torch.save: there is no data.pkl in it")
        self.prefix = roots[0].removesuffix("data.pkl")
        if self.prefix + "constants.pkl" in self.entries:
            raise CheckpointError(
                "Cannot use ``weights_only=True`` with TorchScript archives passed to ``torch.load``. "
                f"load: {file}: it is a TorchScript program, which is code. Save the module's state_dict() instead."
            )

    def refuse(self, message: str) -> NoReturn:
        """Raise CheckpointError about this file."""
        raise CheckpointError(f"load: {self.file}: {message}.")

    def _entry(self, info: zipfile.ZipInfo) -> Entry:
        name, at, size = info.filename, info.header_offset, len(self.view)
        if info.compress_type != zipfile.ZIP_STORED or info.compress_size != info.file_size:
            self.refuse(f"{short(name)} is compressed, torch.save compresses nothing")
        if info.flag_bits & 1:
            self.refuse(f"{short(name)} is encrypted")
        if at < 0 or at + 30 > size or bytes(self.view[at : at + 4]) != ZIP:
            self.refuse(f"{short(name)} is not where the archive's directory says")
        name_size, extra_size = struct.unpack_from("<HH", self.view, at + 26)
        begin = at + 30 + name_size + extra_size
        if begin + info.file_size > size:
            self.refuse(f"{short(name)} ends behind the end of the file; was it cut short?")
        return Entry(name, begin, begin + info.file_size, info.CRC)

    def bytes_of(self, name: str) -> memoryview:
        """Return the bytes of an entry, its name without the archive's own. Checks them."""
        entry = self.entries.get(self.prefix + name)
        if entry is None:
            self.refuse(f"there is no {short(name)} in it")
        data = self.view[entry.begin : entry.end]
        # Zero stands for none.
        if entry.checksum and zlib.crc32(data) != entry.checksum and not self.unchecked:
            if not name.startswith("data/"):
                self.refuse(f"the bytes of {short(name)} are damaged: their checksum differs")
            warn(
                f"load: {self.file}: the bytes of {short(name)} are not those that their checksum is of: they have "
                "been written since, or are damaged"
            )
        return data

    def text_of(self, name: str) -> str | None:
        """Return a small text, or None where there is no such entry."""
        if self.prefix + name not in self.entries:
            return None
        try:
            return bytes(self.bytes_of(name)).decode("utf-8")
        except UnicodeDecodeError:
            self.refuse(f"{name} is no text")


class _Window:
    """A memory view as the file that `zipfile` reads."""

    def __init__(self, view: memoryview) -> None:
        self.view, self.position = view, 0

    def seekable(self) -> bool:
        """Return True."""
        return True

    def seek(self, offset: int, whence: int = 0) -> int:
        """Move to `offset` from the start, the position (whence 1) or the end (2); return the new position."""
        start = (0, self.position, len(self.view))[whence]
        if start + offset < 0:
            raise OSError("a position before the start")
        self.position = start + offset
        return self.position

    def tell(self) -> int:
        """Return the position, in bytes."""
        return self.position

    def read(self, count: int | None = -1) -> bytes:
        """Return `count` bytes from the position on, or all that are left for None and numbers below 0."""
        end = len(self.view) if count is None or count < 0 else self.position + count
        data = bytes(self.view[self.position : end])
        self.position += len(data)
        return data


class _Stored(TypedStorage):
    """A storage of the file. Its memory is made when it is looked at, or a tensor of it is."""

    __slots__ = ("elements", "key", "kind", "load", "part", "where")

    def __init__(
        self,
        key: str,
        kind: DType | str | None,
        where: str,
        elements: int,
        part: tuple[int, int] | None,
        load: Load,
    ) -> None:
        # kind: None for raw bytes, a name for a type that webtorch does not have.
        self.key, self.kind, self.where, self.elements = key, kind, where, elements
        # Where it begins in the storage that it is a part of, and its size.
        self.part, self.load = part, load
        if not isinstance(kind, str):
            self.dtype = kind or dtypes.uint8

    def __getattr__(self, name: str) -> Any:
        if name != "_untyped_storage":
            raise AttributeError(name)
        flat = self.load(self, self.dtype)
        memory, width = UntypedStorage(flat._storage), self.dtype.itemsize
        if self.part:
            start, size = self.part
            memory = memory._of_part(start * width, (start + size) * width)
        self._untyped_storage = memory
        return memory


class _Reader:
    def __init__(self, archive: Source, place: Place) -> None:
        self.archive, self.place = archive, place
        self.swapped = False
        self.flat: dict[tuple[str, DType], Tensor] = {}
        self.devices: dict[str, str] = {}
        self.raw: dict[str, memoryview] = {}

    def load(self, trusted: bool, module: Any = pickle, **options: Any) -> object:
        """Return the value that the archive holds; `trusted` lets its pickle run code, by the unpickler of `module`.

        Raises CheckpointError for what is damaged, and for what weights do not need if not `trusted`.
        """
        archive = self.archive
        order = archive.text_of("byteorder")
        if order is None and chosen.endianness is LoadEndianness.BIG:
            order = "big"
        if order not in (None, "little", "big"):
            archive.refuse(f"its numbers are {short(order)}-endian, which is no order of bytes")
        self.swapped = order == "big"
        try:
            devices = json.loads(archive.text_of(_DEVICES) or "{}")
        except ValueError:
            devices = None
        if not isinstance(devices, dict) or not all(isinstance(d, str) for d in devices.values()):
            archive.refuse(f"{_DEVICES} is damaged")
        self.devices = devices
        data = archive.bytes_of("data.pkl")
        if len(data) > _MAX_PICKLE_BYTES:
            archive.refuse(f"data.pkl takes {len(data)} bytes, more than a description needs")

        def refuse(message: str) -> CheckpointError:
            """Return the error for a fault of the pickle, in PyTorch's words first."""
            first, _, second = message.partition("\n\n")
            if not second:
                first, second = "", message
            if "is blocked" in second:
                first, second = second, "it names what would run code"
            return CheckpointError(f"{_failed(first)}\n\nload: {archive.file}: {second}.")

        if trusted:
            return objects.read(bytes(data), self.names(), self.storage, module, **options)
        names = objects.allowed() | self.names()
        encoding = options.get("encoding", "utf-8")
        return read(bytes(data), names, self.storage, self.build, refuse, encoding)

    def names(self) -> dict[str, object]:
        """What the names that torch.save writes stand for."""
        calls: dict[str, Callable[..., object]] = {
            "torch._utils._rebuild_tensor": self.tensor_v1,
            "torch._utils._rebuild_tensor_v2": self.tensor_v2,
            "torch._utils._rebuild_tensor_v3": self.tensor_v3,
            "torch._utils._rebuild_meta_tensor_no_storage": self.meta_tensor,
            "torch._utils._rebuild_parameter": self.parameter,
            "torch._utils._rebuild_parameter_with_state": self.parameter_with_state,
            "torch._utils._rebuild_sparse_tensor": self.sparse,
            "torch._utils._rebuild_wrapper_subclass": self.wrapper,
            "torch._tensor._rebuild_from_type_v2": self.from_type,
            "torch.serialization._get_layout": self.layout,
            "torch.Size": self.size,
            "torch.device": self.device,
        }
        out: dict[str, object] = {name: Call(name, f) for name, f in calls.items()}
        out |= {f"torch.{name}": dtype for name, dtype in DTYPES.items()}
        out |= {f"torch.{name}": Name(f"torch.{name}") for name in _ABSENT}
        for kind in (*STORAGES, "QInt8", "QUInt8", "QInt32"):
            for where in ("torch", "torch.cuda"):
                out[f"{where}.{kind}Storage"] = Name(f"torch.{kind}Storage")
        for name in (
            "torch.storage.UntypedStorage", "torch.storage.TypedStorage", "torch.Tensor", "torch._tensor.Tensor",
            "torch.nn.parameter.Parameter", "torch.nn.Parameter", "torch.nn.parameter.Buffer",
        ):  # fmt: skip
            out[name] = Name(name)
        return out

    def storage(self, persistent_id: object) -> object:
        """Return the storage that a persistent id of the pickle names; its bytes are not read yet.

        In files from before PyTorch 1.6 a class of modules is one too, with its source.
        """
        if isinstance(persistent_id, tuple):
            # Python 2 wrote texts as bytes.
            persistent_id = tuple(
                one.decode("ascii", "replace") if isinstance(one, bytes) else one
                for one in persistent_id
            )
        match persistent_id:
            # Files from before PyTorch 1.6 have one more: None, or its key, offset and size within another storage.
            case ("storage", Name(text=kind), str(key), str(device), int(elements), *views):
                pass
            case ("module", kind, *source):
                objects.check_source(kind, source)
                return kind
            case _:
                self.archive.refuse(f"it names a storage as {short(persistent_id)}")
        if elements < 0 or isinstance(elements, bool):
            self.archive.refuse(f"the storage {short(key)} has {elements} elements")
        part = None
        match views:
            case [] | [None]:
                pass
            case [(_, int(start), int(size))] if 0 <= start <= start + size <= elements:
                part = (start, size)
            case _:
                self.archive.refuse(f"a part of a storage is {short(views)}")
        device = self.devices.get(key, device)
        kind = kind.rpartition(".")[2].removesuffix("Storage")
        if kind in ("Untyped", "Typed"):
            return _Stored(key, None, device, elements, part, self.memory)
        name = STORAGES.get(kind)
        known = DTYPES[name] if name else kind.lower()
        return _Stored(key, known, device, elements, part, self.memory)

    def view(
        self, stored: object, dtype: object, offset: Any, shape: Any, strides: Any, grad: object
    ) -> Tensor:
        """Return the tensor that sees a storage in one way."""
        refuse = self.archive.refuse
        if not isinstance(stored, _Stored):
            refuse(f"a tensor is made of {short(stored)}, not of a storage")
        if not isinstance(dtype, DType):
            raise DTypeError(
                f"load: {self.archive.file}: a tensor in it is {dtype}, which webtorch does not have"
            )
        if not (_counts(shape) and _counts(strides) and _counts((offset,))):
            refuse(f"a tensor has shape {short(shape)}, strides {short(strides)} at {offset!r}")
        if len(shape) != len(strides) or len(shape) > 64 or numel(shape) >= 2**63:
            refuse(f"a tensor has shape {short(shape)} and strides {short(strides)}")
        offset += stored.part[0] if stored.part else 0
        whole = self.memory(stored, dtype)
        elements = whole.numel()
        if numel(shape) and extent(tuple(shape), tuple(strides), offset)[1] >= elements:
            refuse(
                f"a tensor of shape {tuple(shape)} and strides {tuple(strides)} at {offset} does not "
                f"fit its storage of {elements} elements"
            )
        shape, strides = tuple(shape), tuple(strides)
        alone = offset == 0 and numel(shape) == elements and is_contiguous(shape, strides)
        # Not views to autograd: each is a leaf, as when it was saved.
        alone = alone and not dtype.is_complex
        out = Tensor._from_storage(whole._storage, shape, strides, offset, alone, dtype)
        return out.requires_grad_() if grad is True else out

    def memory(self, stored: _Stored, dtype: DType) -> Tensor:
        """Return a whole storage as a 1-d tensor of `dtype`, made once for all views of it."""
        key = (stored.key, dtype)
        found = self.flat.get(key)
        if found is not None:
            return found
        if stored.elements and any(k == stored.key for k, _ in self.flat):
            self.archive.refuse(
                f"the storage {short(stored.key)} is used with two element types, which webtorch "
                "cannot share"
            )
        data = self.archive.bytes_of(f"data/{stored.key}")
        width = 1 if stored.kind is None else dtype.itemsize
        if len(data) != stored.elements * width or len(data) % dtype.itemsize:
            self.archive.refuse(
                f"the storage {short(stored.key)} should have {stored.elements * width} bytes, the "
                f"file has {len(data)}"
            )
        if self.swapped:
            data = _swapped(data, (dtype.to_real() if dtype.is_complex else dtype).itemsize)
        made = self.place(len(data) // dtype.itemsize, dtype, data, stored.where)
        if not (made.dtype is dtype and made.dim() == 1 and made.is_contiguous()):
            self.archive.refuse(f"map_location gave {made.dtype} of shape {tuple(made.shape)}")
        self.flat[key] = made
        return made

    def tensor_v1(self, stored: object, offset: object, shape: object, strides: object) -> Tensor:
        """Stand for `torch._utils._rebuild_tensor`."""
        return self.view(stored, getattr(stored, "kind", None), offset, shape, strides, False)

    def tensor_v2(
        self, stored: object, offset: object, shape: object, strides: object, grad: object,
        hooks: object, more: Any = None
    ) -> Tensor:  # fmt: skip
        """Stand for `torch._utils._rebuild_tensor_v2`. Raises DTypeError for a negated tensor."""
        if more and (more.get("neg") or set(more) - {"neg", "conj"}):
            raise DTypeError(f"load: {self.archive.file}: a tensor in it is negated")
        found = self.view(stored, getattr(stored, "kind", None), offset, shape, strides, grad)
        if more and more.get("conj"):
            return found.detach().conj().requires_grad_(found.requires_grad)
        return found

    def tensor_v3(
        self, stored: object, offset: object, shape: object, strides: object, grad: object,
        hooks: object, dtype: object, more: object = None,
    ) -> Tensor:  # fmt: skip
        """Stand for `torch._utils._rebuild_tensor_v3`, of dtypes that have no storage class."""
        return self.view(stored, dtype, offset, shape, strides, grad)

    def meta_tensor(self, dtype: object, shape: Any, strides: Any, grad: object) -> Tensor:
        """Stand for `torch._utils._rebuild_meta_tensor_no_storage`: a tensor on "meta", without values."""
        if not (isinstance(dtype, DType) and _counts(shape) and _counts(strides)):
            self.archive.refuse(f"a tensor without values has shape {short(shape)} of {dtype}")
        if len(shape) != len(strides) or len(shape) > 64 or numel(shape) >= 2**63:
            self.archive.refuse(f"a tensor has shape {short(shape)} and strides {short(strides)}")
        made = webtorch.empty_strided(shape, strides, dtype=dtype, device="meta")
        return made.requires_grad_() if grad is True else made

    def layout(self, name: object) -> Layout:
        """Stand for `torch.serialization._get_layout`."""
        if name not in [str(one) for one in LAYOUTS]:
            self.archive.refuse(f"a tensor has the layout {short(name)}")
        return Layout(str(name))

    def sparse(self, layout: object, data: Any) -> Tensor:
        """Stand for `torch._utils._rebuild_sparse_tensor`: a tensor of places and values. They are checked."""
        count = 2 if layout is sparse_coo else 3
        fits = isinstance(data, tuple) and count < len(data) <= 4
        if (
            not (isinstance(layout, Layout) and fits)
            or not all(isinstance(t, Tensor) for t in data[:count])
            or not _counts(data[count])
        ):
            self.archive.refuse(f"a sparse tensor is made of {short(data)}")
        try:
            if layout is sparse_coo:
                coalesced = len(data) == 4 and data[3] is True
                return sparse_coo_tensor(*data[:3], check_invariants=True, is_coalesced=coalesced)
            return sparse_compressed_tensor(*data, layout=layout, check_invariants=True)
        except (RuntimeError, ValueError, IndexError) as error:
            self.archive.refuse(f"a sparse tensor is damaged: {error}")

    def wrapper(self, kind: Any, dtype: Any, shape: Any, strides: Any, offset: Any, layout: object,
                device: Any, grad: Any) -> Tensor:  # fmt: skip
        """Stand for `torch._utils._rebuild_wrapper_subclass`: a tensor of a class that wraps others."""
        if not (isinstance(kind, type) and issubclass(kind, Tensor)):
            self.archive.refuse(f"a tensor that wraps others is made of {short(kind)}")
        made: Tensor = Tensor._make_wrapper_subclass(
            kind, shape, strides, offset, None, dtype, layout, device, False, grad
        )
        return made

    def parameter(self, data: object, grad: object, hooks: object) -> Parameter:
        """Stand for `torch._utils._rebuild_parameter`; its hooks are dropped."""
        if not isinstance(data, Tensor):
            self.archive.refuse(f"a parameter is made of {short(data)}")
        return Parameter(data, bool(grad))

    def parameter_with_state(
        self, data: object, grad: object, hooks: object, state: object
    ) -> Parameter:
        """Stand for `torch._utils._rebuild_parameter_with_state`: a parameter with attributes."""
        made = self.parameter(data, grad, hooks)
        self.set_attributes(made, state)
        return made

    def from_type(self, make: object, kind: object, args: object, state: object) -> Tensor:
        """Stand for `torch._tensor._rebuild_from_type_v2`: a tensor of a class, with attributes."""
        if not isinstance(make, Call) or not isinstance(args, tuple):
            self.archive.refuse(f"a tensor is made by {short(make)}")
        made = make.function(*args)
        if not isinstance(made, Tensor):
            self.archive.refuse(f"{make.text} makes no tensor")
        if isinstance(kind, Name) and "arameter" in kind.text and not isinstance(made, Parameter):
            made = Parameter(made, made.requires_grad)
        elif isinstance(kind, type) and issubclass(kind, Tensor):
            made = objects.of_class(made, kind)
        self.set_attributes(made, state)
        return made

    def set_attributes(self, tensor: Tensor, state: Any) -> None:
        """Give a tensor the attributes that its owner had set on it."""
        if (restore := getattr(tensor, "__setstate__", None)) is not None:
            restore(state)
            return
        slots: dict[str, object] = {}
        if isinstance(state, tuple) and len(state) == 2:
            state, slots = state[0], state[1] or {}
        for name, value in slots.items():
            if name not in objects.slots_of(type(tensor)):
                self.archive.refuse(f"a tensor has an attribute {short(name)}")
            setattr(tensor, name, value)
        for name, value in (state or {}).items():
            if not isinstance(name, str) or name.startswith("__") or hasattr(Tensor, name):
                self.archive.refuse(f"a tensor has an attribute {short(name)}")
            tensor.__dict__[name] = value

    def size(self, sizes: Any) -> Size:
        """Stand for `torch.Size`."""
        if not _counts(sizes):
            self.archive.refuse(f"a size is {short(sizes)}")
        return Size(sizes)

    def device(self, *args: Any) -> webtorch.device:
        """Stand for `torch.device`."""
        try:
            return webtorch.device(*args)
        except RuntimeError as error:
            self.archive.refuse(f"it names the device {short(args)}: {error}")

    def build(self, target: object, state: object) -> bool:
        """Set an OrderedDict's attributes (PyTorch keeps a state_dict's versions there), or the state
        of an object that the user allows.
        """
        if type(target) is not OrderedDict or not isinstance(state, dict):
            return objects.build(target, state)
        for name, value in state.items():
            if name != "_metadata":
                return False
            vars(target)[name] = value
        return True


_UNSAFE = (
    "In PyTorch 2.6, we changed the default value of the `weights_only` argument in `torch.load` from `False` to "
    "`True`. Re-running `torch.load` with `weights_only` set to `False` will likely succeed, but it can result in "
    "arbitrary code execution. Do it only if you got the file from a trusted source."
)


def _failed(why: str) -> str:
    """Return PyTorch's words about a file that holds more than weights."""
    if "was not an allowed global" in why:
        return (
            "Weights only load failed. This file can still be loaded, to do so you have two options, \033[1mdo those "
            f"steps only if you trust the source of the checkpoint\033[0m. \n\t(1) {_UNSAFE}\n\t(2) Alternatively, to "
            "load with `weights_only=True` please check the recommended steps in the following error message.\n\t"
            f"WeightsUnpickler error: {why}"
        )
    if why:
        return f"Weights only load failed. {_UNSAFE}\n{why}"
    return (
        f"Weights only load failed. {_UNSAFE}\nPlease file an issue with the following so that we can make "
        "`weights_only=True` compatible with your use case: WeightsUnpickler error:"
    )


def _swapped(data: memoryview, width: int) -> memoryview:
    """Return numbers with the bytes of each in the other order."""
    out = bytearray(len(data))
    for at in range(width):
        out[at::width] = data[width - 1 - at :: width]
    return memoryview(out)


def load(
    view: memoryview,
    file: str,
    place: Place,
    trusted: bool,
    unchecked: bool = False,
    **options: object,
) -> object:
    """Return what `torch.save` wrote. No code of the file is run unless it is `trusted`; storages stay
    shared. `options`: the unpickler's, and its module.

    Raises CheckpointError for a file that is damaged or holds more than data, DTypeError for an
    element type that webtorch does not have.
    """
    return load_from(Archive(view, file, unchecked), place, trusted, **options)


def load_from(archive: Source, place: Place, trusted: bool, **options: object) -> object:
    """Return what the parts of a file hold, as `load` does."""
    return _Reader(archive, place).load(trusted, **options)


def known_names() -> dict[str, object]:
    """Return what loading only weights makes of names in files."""
    return {**PLAIN, **objects.allowed(), **_Reader(cast(Source, None), _nowhere).names()}


def names_in(view: memoryview, file: str, known: Container[str]) -> list[str]:
    """Return the names of classes and functions in a file that are not among those that are known."""
    archive = Archive(view, file)
    found: dict[str, None] = {}
    texts: list[str] = []
    for opcode, arg, _ in pickletools.genops(bytes(archive.bytes_of("data.pkl"))):
        if "UNICODE" in opcode.name:
            texts.append(str(arg))
        elif opcode.name == "GLOBAL":
            found[str(arg).replace(" ", ".")] = None
        elif opcode.name == "STACK_GLOBAL":
            found[".".join(texts[-2:])] = None
    return [name for name in found if name not in known]


def _nowhere(count: int, dtype: DType, data: memoryview, device: str) -> NoReturn:
    raise AssertionError("names are looked at, not tensors")


def _counts(values: object) -> bool:
    return isinstance(values, tuple) and all(type(v) is int and 0 <= v < 2**63 for v in values)


def short(value: object) -> str:
    """Return a value as text of at most 103 characters."""
    text = (
        repr(value) if isinstance(value, str | int | Name | tuple | None) else type(value).__name__
    )
    return text if len(text) <= 100 else text[:97] + "..."


# Writing.


# How classes of tensors pickle that are written as tensors; others say it themselves.
_OURS = tuple([kind.__reduce_ex__ for kind in (Tensor, Parameter, Buffer)])


class Saver:
    """Writes what PyTorch's kinds of values are in a pickle, and gathers their storages. `views`: as before 1.6."""

    def __init__(self, views: bool = False) -> None:
        self.views = views
        # By identity; the storages are kept so that no other gets their id.
        self.keys: dict[int, str] = {}
        self.storages: list[Storage] = []
        self.types: dict[int, DType] = {}
        self.widths: dict[int, int] = {}
        # Classes whose source has been written.
        self.containers: set[object] = set()

    def special(self, value: object) -> Callable[[Writer], None] | None:
        """Return the function that writes a value of PyTorch's kinds, None for others."""
        kind = type(value)
        if isinstance(value, Tensor) and value.layout is not strided:
            return lambda w: self.sparse(w, value)
        if isinstance(value, Layout):
            return lambda w: self.call(w, "torch.serialization", "_get_layout", (str(value),))
        if isinstance(value, Tensor) and kind.__reduce_ex__ in _OURS:
            if issubclass(kind, Parameter):
                return lambda w: self.parameter(w, value)
            return lambda w: self.tensor(w, value)
        if kind in (UninitializedParameter, UninitializedBuffer):
            # A size that is not known yet: PyTorch's class of that name, where it will be on the CPU.
            arguments: Any = value.__reduce_ex__(2)[1]
            given = (arguments[0], None, *arguments[2:])
            return lambda w: self.call(w, "torch.nn.parameter", kind.__name__, given)
        if isinstance(value, _Global):
            return lambda w: w.name(value.module, value.name)
        if isinstance(value, DType):
            return lambda w: w.name("torch", value.name)
        if isinstance(value, Size):
            return lambda w: self.call(w, "torch", "Size", (tuple(value),))
        if isinstance(value, webtorch.device):
            args = (value.type,) if value.index is None else (value.type, value.index)
            return lambda w: self.call(w, "torch", "device", args)
        if isinstance(value, StorageBase):
            return lambda w: self.reference(w, value._storage, None)
        if isinstance(value, TypedStorage):
            return lambda w: self.reference(w, value.untyped()._storage, value.dtype)
        if isinstance(value, _Reference):
            return lambda w: self.reference(w, value.storage, value.dtype)
        if self.views and isinstance(value, type) and value not in self.containers:
            source = objects.source_of(value)
            self.containers.add(value)
            return None if source is None else lambda w: self.container(w, value, source)
        return None

    def container(self, w: Writer, kind: type[object], source: tuple[str, str]) -> None:
        """Write a class of modules as a persistent id with its source."""
        w.items(("module", kind, *source))
        w.out += b"Q"

    def call(self, w: Writer, module: str, name: str, args: tuple[object, ...]) -> None:
        """Write the call of a function of PyTorch, by its name."""
        w.name(module, name)
        w.items(args)
        w.out += b"R"

    def parameter(self, w: Writer, value: Tensor) -> None:
        """Write a parameter as PyTorch does, with its attributes if it has some."""
        data = value.detach()
        args: tuple[object, ...] = (data, value.requires_grad, OrderedDict())
        if state := objects.attributes_of(value):
            self.call(w, "torch._utils", "_rebuild_parameter_with_state", (*args, state))
        else:
            self.call(w, "torch._utils", "_rebuild_parameter", args)
        w.remember(value)

    def sparse(self, w: Writer, x: Any) -> None:
        """Write a sparse tensor as PyTorch does: its layout and its parts."""
        data = (*x.places, x.kept, x.shape) + (x.coalesced,) * (x.layout is sparse_coo)
        if isinstance(x, Parameter):
            wrapped = x.detach(), x.requires_grad, OrderedDict[str, object]()
            self.call(w, "torch._utils", "_rebuild_parameter", wrapped)
        else:
            self.call(w, "torch._utils", "_rebuild_sparse_tensor", (x.layout, data))
        w.remember(x)

    def tensor(self, w: Writer, x: Tensor) -> None:
        """Write a tensor as PyTorch does, with its class and attributes if it has some."""
        name, args = self.form(x)
        # What a Module knows of a Buffer stands in the Module.
        kind = Tensor if type(x) is Buffer else type(x)
        # How a view was made is a part of its graph.
        state = {} if type(x) is Buffer else objects.state_of(x)
        if kind is Tensor and not state:
            self.call(w, "torch._utils", name, args)
        else:
            shown = _Global("torch", "Tensor") if kind is Tensor else kind
            wrapped = _Global("torch._utils", name), shown, args, state
            self.call(w, "torch._tensor", "_rebuild_from_type_v2", wrapped)
        w.remember(x)

    def form(self, x: Tensor) -> tuple[str, tuple[object, ...]]:
        """Return the name of the function that makes a plain tensor again, and its arguments."""
        if x._storage.runtime.kind == "meta" and not x.is_meta:
            # It wraps others, and has no memory itself.
            wrapped = (
                x.dtype,
                tuple(x._shape),
                tuple(x._strides),
                x._offset,
                x.layout,
                x.device,
                x.requires_grad,
            )
            return "_rebuild_wrapper_subclass", (type(x), *wrapped)
        if x.is_meta:
            shown = (x.dtype, tuple(x._shape), tuple(x._strides), x.requires_grad)
            return "_rebuild_meta_tensor_no_storage", shown
        args: tuple[object, ...] = (
            _Reference(x._storage, x.dtype), x._offset, tuple(x._shape), tuple(x._strides),
            x.requires_grad, OrderedDict(),
        )  # fmt: skip
        if x.dtype.name in _STORAGE_OF:
            return "_rebuild_tensor_v2", args
        return "_rebuild_tensor_v3", (*args, x.dtype)

    def reference(self, w: Writer, storage: Storage, dtype: DType | None) -> None:
        """Write the persistent id of a storage, None for one of bytes. Raises RuntimeError if it was written with
        another dtype.
        """
        kind = _STORAGE_OF.get(dtype.name) if dtype else None
        shown = dtype if kind and dtype else dtypes.uint8
        if storage.nbytes and self.types.setdefault(id(storage), shown) is not shown:
            raise RuntimeError(
                "Cannot save multiple tensors or storages that view the same data as different types"
            )
        key = self.keys.get(id(storage))
        if key is None:
            key = self.keys[id(storage)] = str(len(self.storages))
            self.storages.append(storage)
        w.out += b"("
        w.text("storage")
        if kind:
            w.name("torch", f"{kind}Storage")
        else:
            w.name("torch.storage", "UntypedStorage")
        w.text(key)
        # PyTorch has no such device as ours; where a storage was is in an entry of its own.
        w.text(_named_place(storage) or "cpu")
        width = self.widths.setdefault(id(storage), shown.itemsize)
        w.integer(storage.nbytes // width)
        w.out += b"NtQ" if self.views else b"tQ"

    def width_of(self, storage: Storage) -> int:
        """Return the size of the elements in which a storage's length is counted."""
        return self.widths[id(storage)]


class _Global:
    """What is written as the name of a function or class."""

    __slots__ = ("module", "name")

    def __init__(self, module: str, name: str) -> None:
        self.module, self.name = module, name


class _Reference:
    __slots__ = ("dtype", "storage")

    def __init__(self, storage: Storage, dtype: DType) -> None:
        # A storage of pairs is that of a complex tensor to PyTorch.
        self.storage, self.dtype = storage, dtype


def _named_place(storage: Storage) -> str | None:
    """Return what a program calls the place of a storage, None if it says nothing."""
    tags = (tag(_untyped(storage)) for _, tag, _ in packages)
    return next(filter(None, tags), None)


def storage_bytes(storage: Storage) -> memoryview:
    """Return the bytes of a storage."""
    nbytes = storage.elements * storage.dtype.itemsize
    if of_thread.skip_data:
        return memoryview(bytes(nbytes))
    flat = Tensor._from_storage(storage, (storage.elements,), (1,), 0, True)
    return memoryview(flat._to_bytes()).cast("B")[:nbytes] if nbytes else memoryview(b"")


def dump(obj: object, stream: BinaryIO) -> None:
    """Write `obj` to a seekable binary stream."""
    saver = Saver()
    pickled = Writer(saver.special, objects.write).finish(obj)
    devices: dict[str, str] = {}
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_STORED) as archive:
        put(archive, "data.pkl", pickled)
        put(archive, "byteorder", b"little")
        for key, storage in enumerate(saver.storages):
            flat = Tensor._from_storage(storage, (storage.elements,), (1,), 0, True)
            if not (flat.is_cpu or _named_place(storage)):
                devices[str(key)] = str(flat.device)
            put(archive, f"data/{key}", storage_bytes(storage))
        if devices:
            put(archive, _DEVICES, json.dumps(devices).encode())
        put(archive, "version", b"3\n")


def put(archive: zipfile.ZipFile, name: str, data: bytes | bytearray | memoryview) -> None:
    """Add an entry whose bytes begin at a multiple of 64, as PyTorch's own do."""
    # A fixed date: the same values give the same file.
    info = zipfile.ZipInfo(f"archive/{name}", (1980, 1, 1, 0, 0, 0))
    start = archive.fp.tell() if archive.fp is not None else 0
    begin = start + 30 + len(info.filename) + 4
    padding = math.ceil(begin / _ALIGNMENT) * _ALIGNMENT - begin
    info.extra = b"FB" + struct.pack("<H", padding) + b"Z" * padding
    data = memoryview(data)
    archive.writestr(info, data.cast("B") if data.nbytes else b"")
    if not chosen.checksums and archive.fp is not None:
        # In front of the bytes, and in the archive's directory.
        info.CRC, end = 0, archive.fp.tell()
        archive.fp.seek(start + 14)
        archive.fp.write(bytes(4))
        archive.fp.seek(end)
