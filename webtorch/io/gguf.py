"""GGUF, the file format of llama.cpp: metadata and weights, quantised ones as floats or as they are. Floor 6.

Layout (https://github.com/ggml-org/ggml/blob/master/docs/gguf.md): a header, typed key-value pairs,
one entry for each tensor, and the data, aligned. Sizes stand with the fastest dimension first, so a
matrix of PyTorch's shape (rows, columns) is written as columns, rows. A quantised tensor is blocks
of 32 or 256 elements along a row. A file is untrusted: each number in it is checked before it is
used. It is mapped, and one tensor at a time is read, so that memory holds the tensors and little else.

A large model may be several files, name-00001-of-00003.gguf and so on (llama.cpp's gguf-split): the first has all
metadata, each its own tensors, and any of them stands for all.
"""

from __future__ import annotations

import math
import os
import re
import struct
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Literal, NamedTuple, NoReturn, overload

from webtorch.functions import public as webtorch
from webtorch.io.safetensors import FilePath, map_file, map_own, replace_file
from webtorch.ir.dtype import DType
from webtorch.ops.blocks import FORMATS
from webtorch.quantization.tensor import PackedTensor
from webtorch.tensors.creation import from_bytes, on_memory
from webtorch.tensors.device import DeviceLike
from webtorch.tensors.tensor import Tensor

_MAGIC = b"GGUF"
_DEFAULT_ALIGNMENT = 32
# More would be no model but a damaged length.
_MAX_COUNT = 1 << 24
_MAX_STRING = 1 << 28
_MAX_RANK = 8
_MAX_DEPTH = 8


class GGUFError(ValueError):
    """A GGUF file breaks a rule of the format, or holds what cannot be read here."""


@dataclass(frozen=True, slots=True)
class _Kind:
    """An element type: its name, and the elements and bytes of a block."""

    name: str
    elements: int
    nbytes: int
    # The webtorch dtype of plain types.
    dtype: str | None = None


class TensorEntry(NamedTuple):
    """A tensor of a file: its type's name, its shape as PyTorch has it, where its bytes are, and in which of
    `GGUFReader.files`.
    """

    type: str
    shape: tuple[int, ...]
    begin: int
    end: int
    part: int = 0


class GGUF(NamedTuple):
    """What `load_gguf` returns."""

    metadata: dict[str, Any]
    tensors: dict[str, Tensor]


class PackedGGUF(NamedTuple):
    """What `load_gguf` returns with `packed=True`."""

    metadata: dict[str, Any]
    tensors: dict[str, PackedTensor | Tensor]


# Numbers of element types: those of plain ones, and of blocks (`ops/blocks`).
_PLAIN = {
    0: "float32", 1: "float16", 24: "int8", 25: "int16", 26: "int32", 27: "int64", 28: "float64", 30: "bfloat16",
}  # fmt: skip
_BLOCKS = {
    2: "Q4_0", 3: "Q4_1", 6: "Q5_0", 7: "Q5_1", 8: "Q8_0", 10: "Q2_K", 11: "Q3_K", 12: "Q4_K", 13: "Q5_K", 14: "Q6_K",
    15: "Q8_K", 20: "IQ4_NL", 23: "IQ4_XS", 39: "MXFP4",
}  # fmt: skip
# Known types that need tables of their own; their sizes, so that the rest of a file can be read.
_UNREADABLE = {
    4: ("Q4_2", 0, 0), 5: ("Q4_3", 0, 0), 9: ("Q8_1", 32, 36), 16: ("IQ2_XXS", 256, 66),
    17: ("IQ2_XS", 256, 74), 18: ("IQ3_XXS", 256, 98), 19: ("IQ1_S", 256, 50), 21: ("IQ3_S", 256, 110),
    22: ("IQ2_S", 256, 82), 29: ("IQ1_M", 256, 56), 34: ("TQ1_0", 256, 54), 35: ("TQ2_0", 256, 66),
}  # fmt: skip
_TITLES = {
    "float32": "F32", "float16": "F16", "bfloat16": "BF16", "float64": "F64", "int8": "I8", "int16": "I16",
    "int32": "I32", "int64": "I64",
}  # fmt: skip


def _kind(code: int) -> _Kind | None:
    """Return an element type by its number; None where it is not known."""
    if code in _PLAIN:
        name = _PLAIN[code]
        return _Kind(_TITLES[name], 1, getattr(webtorch, name).itemsize, name)
    if code in _BLOCKS:
        form = FORMATS[_BLOCKS[code]]
        return _Kind(form.name, form.elements, form.nbytes)
    return _Kind(*_UNREADABLE[code]) if code in _UNREADABLE else None


_KINDS = {code: kind for code in range(40) if (kind := _kind(code)) is not None}
_BY_NAME = {k.name: k for k in _KINDS.values()}


# ---- reading --------------------------------------------------------------------------------------

_SCALARS = {
    0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<?", 10: "<Q", 11: "<q", 12: "<d",
}  # fmt: skip
_STRING, _ARRAY = 8, 9


def _refuse(file: str, message: str) -> NoReturn:
    raise GGUFError(f"{file}: {message}")


class _Cursor:
    """Reads numbers one after the other, and never past the end."""

    def __init__(self, view: memoryview, file: str) -> None:
        self.view, self.file, self.at = view, file, 0

    def take(self, count: int, what: str) -> memoryview:
        """Return the next `count` bytes. Refuses a file that ends before; `what` is what they are."""
        if count > len(self.view) - self.at:
            _refuse(
                self.file,
                f"the file ends inside {what}: {count} bytes are wanted at {self.at}, "
                f"{len(self.view) - self.at} are left; it was cut short or is damaged",
            )
        found = self.view[self.at : self.at + count]
        self.at += count
        return found

    def number(self, code: str, what: str) -> Any:
        """Return the next number, of a code of `struct`."""
        return struct.unpack(code, self.take(struct.calcsize(code), what))[0]

    def count(self, what: str, most: int = _MAX_COUNT) -> int:
        """Return the next 64-bit count. Refuses more than `most`."""
        n = int(self.number("<Q", what))
        if n > most:
            _refuse(self.file, f"{what} is {n}, more than {most}: the file is damaged")
        return n

    def text(self, what: str) -> str:
        """Return the next text, in UTF-8 after its length."""
        length = self.count(f"the length of {what}", _MAX_STRING)
        try:
            return bytes(self.take(length, what)).decode("utf-8")
        except UnicodeDecodeError as error:
            _refuse(self.file, f"{what} is not UTF-8: {error}")

    def value(self, kind: int, key: str, depth: int = 0) -> Any:
        """Return the next value of a metadata type: a number, a text, or an array of them."""
        what = f"the value of {key!r}"
        if kind in _SCALARS:
            return self.number(_SCALARS[kind], what)
        if kind == _STRING:
            return self.text(what)
        if kind != _ARRAY:
            _refuse(self.file, f"{what} has the type {kind}, which the format does not have")
        if depth >= _MAX_DEPTH:
            _refuse(self.file, f"{what} is nested deeper than {_MAX_DEPTH} levels")
        inner, count = self.number("<I", what), self.count(f"the length of {what}", len(self.view))
        if inner in _SCALARS:
            code = _SCALARS[inner][1]
            data = self.take(count * struct.calcsize(_SCALARS[inner]), what)
            return list(struct.unpack(f"<{count}{code}", data))
        return [self.value(inner, key, depth + 1) for _ in range(count)]


class _File:
    """One file: its bytes, `metadata`, and `entries` by name."""

    def __init__(self, path: FilePath) -> None:
        """Map the file and read all but the tensors. Raises GGUFError for a damaged one."""
        self.file = os.fspath(path)
        self.view = map_file(path)
        # The same file, mapped for tensors to lie on, and where those begin that do.
        self.own: memoryview | None = None
        self._given: set[int] = set()
        self.metadata: dict[str, Any] = {}
        self.entries: dict[str, TensorEntry] = {}
        self._read()

    def own_memory(self, entry: TensorEntry) -> memoryview | None:
        """Return the bytes of a tensor as memory for one tensor, the first that asks; None for others."""
        if entry.begin in self._given or entry.begin == entry.end:
            return None
        if self.own is None:
            self.own = map_own(self.file)
        if self.own is None or self.own.nbytes != self.view.nbytes:
            return None
        self._given.add(entry.begin)
        return self.own[entry.begin : entry.end]

    def _read(self) -> None:
        c = _Cursor(self.view, self.file)
        start = bytes(self.view[:4])
        if start != _MAGIC:
            _refuse(self.file, f"a GGUF file starts with {_MAGIC!r}, this one with {start!r}")
        c.at = 4
        version = c.number("<I", "the version")
        if version & 0xFFFF == 0 and version:
            _refuse(
                self.file, "the file is big-endian, which is not read here: convert it with gguf-py"
            )
        if version not in (2, 3):
            _refuse(self.file, f"the format's version is {version}; 2 and 3 are read")
        self.version = version
        tensors, pairs = c.count("the number of tensors"), c.count("the number of metadata entries")
        for _ in range(pairs):
            key = c.text("a metadata key")
            if key in self.metadata:
                _refuse(self.file, f"the metadata key {key!r} occurs twice")
            self.metadata[key] = c.value(c.number("<I", f"the type of {key!r}"), key)
        rows = []
        for _ in range(tensors):
            name = c.text("a tensor's name")
            rank = c.number("<I", f"the rank of {name!r}")
            if rank > _MAX_RANK:
                _refuse(
                    self.file,
                    f"the tensor {name!r} has {rank} dimensions, at most {_MAX_RANK} are read",
                )
            sizes = [c.count(f"a size of {name!r}", 1 << 48) for _ in range(rank)]
            rows.append(
                (name, sizes, c.number("<I", f"the type of {name!r}"), c.number("<Q", "an offset"))
            )
        alignment = self.metadata.get("general.alignment", _DEFAULT_ALIGNMENT)
        if not isinstance(alignment, int) or alignment <= 0 or alignment & (alignment - 1):
            _refuse(self.file, f"general.alignment is {alignment!r}, a power of two is wanted")
        data = -(-c.at // alignment) * alignment
        for name, sizes, code, offset in rows:
            self._entry(name, sizes, code, offset, data, alignment)

    def _entry(
        self, name: str, sizes: list[int], code: int, offset: int, data: int, alignment: int
    ) -> None:
        if name in self.entries:
            _refuse(self.file, f"the tensor {name!r} occurs twice")
        kind = _KINDS.get(code)
        if kind is None:
            _refuse(self.file, f"the tensor {name!r} has the type {code}, which is not known here")
        title, elements, nbytes = kind.name, kind.elements, kind.nbytes
        row = sizes[0] if sizes else 1
        if elements and row % elements:
            _refuse(
                self.file,
                f"{name!r} is {title} with rows of {row}; blocks of {elements} must fill them",
            )
        size = math.prod(sizes) // (elements or 1) * nbytes
        begin, end = data + offset, data + offset + size
        if offset % alignment or end > len(self.view):
            _refuse(
                self.file,
                f"the tensor {name!r} would be at bytes {begin} to {end} of {len(self.view)}: the file "
                "was cut short or is damaged",
            )
        self.entries[name] = TensorEntry(title, tuple(reversed(sizes)), begin, end)


_SPLIT = re.compile(r"(.*-)(\d{5})(-of-\d{5}\.gguf)")


def _split(first: _File) -> list[_File]:
    """Return a file with those that belong to it, in order. Refuses what is not whole."""
    said = [first.metadata.get(f"split.{key}", 1) for key in ("no", "count")]
    number, count = said
    if count == 1:
        return [first]
    place = Path(first.file)
    found = _SPLIT.fullmatch(place.name)
    if not all(type(n) is int for n in said) or not 0 <= number < count <= _MAX_COUNT:
        _refuse(
            first.file,
            f"split.no and split.count are {number!r} and {count!r}: the file is damaged",
        )
    if found is None or found[2] != f"{number + 1:05d}" or found[3] != f"-of-{count:05d}.gguf":
        _refuse(
            first.file,
            f"this is file {number + 1} of {count} of a model; their names must end in -{number + 1:05d}-of-{count:05d}"
            ".gguf and so on, so that the others are found",
        )
    names = [place.with_name(f"{found[1]}{n:05d}{found[3]}") for n in range(1, count + 1)]
    absent = [n.name for n in names if not n.exists()]
    if absent:
        raise FileNotFoundError(
            f"{first.file}: this is file {number + 1} of {count} of a model, and not beside it: {_few(absent)}"
        )
    files = [first if part == number else _File(name) for part, name in enumerate(names)]
    for part, file in enumerate(files):
        if (file.metadata.get("split.no"), file.metadata.get("split.count")) != (part, count):
            _refuse(
                file.file,
                f"the file does not say that it is {part + 1} of {count}: it is of another model",
            )
    return files


class GGUFReader:
    """A file that is open, or all files of a model: `metadata`, `entries` by name, and `tensor(name)`, which reads one
    tensor.
    """

    def __init__(self, path: FilePath) -> None:
        """Map the file and read all but the tensors; of a model in several files, all of them.

        Raises GGUFError for a damaged one, FileNotFoundError where one is absent.
        """
        self._files = _split(_File(path))
        first = self._files[0]
        self.file, self.version = first.file, first.version
        several = len(self._files) > 1
        # What one file has only as it is one of several.
        self.metadata = {
            k: v for k, v in first.metadata.items() if not (several and k.startswith("split."))
        }
        self.entries: dict[str, TensorEntry] = {}
        for part, file in enumerate(self._files):
            twice = self.entries.keys() & file.entries.keys()
            if twice:
                _refuse(file.file, f"{_few(sorted(twice))} stood in a file before it as well")
            self.entries |= {n: e._replace(part=part) for n, e in file.entries.items()}
        wanted = first.metadata.get("split.tensors.count")
        if several and wanted is not None and wanted != len(self.entries):
            _refuse(
                self.file, f"its files have {len(self.entries)} tensors, and it says {wanted!r}"
            )

    @property
    def files(self) -> list[str]:
        """The paths of its files, in order."""
        return [f.file for f in self._files]

    def _found(self, name: str) -> tuple[_Kind, TensorEntry]:
        """Return what is known of a tensor. Raises as `tensor` does."""
        if name not in self.entries:
            raise KeyError(f"{self.file} has no tensor {name!r}; it has {_few(list(self.entries))}")
        entry = self.entries[name]
        kind = _BY_NAME[entry.type]
        if kind.dtype is None and kind.name not in _BLOCKS.values():
            readable = ", ".join((*_TITLES.values(), *_BLOCKS.values()))
            _refuse(
                self.file,
                f"{name!r} is {entry.type}, which is not read here ({readable} are): requantise the "
                "model (llama-quantize --allow-requantize), or read other tensors with keys=...",
            )
        return kind, entry

    def tensor(self, name: str, *, device: DeviceLike = None, dtype: DType | None = None) -> Tensor:
        """Return one tensor: plain types as they are, quantised ones as float32, or all as `dtype`.

        Raises KeyError for a name that is not there, GGUFError for a type that is not read.
        """
        kind, entry = self._found(name)
        if kind.dtype is None:
            found = self._packed(entry, webtorch.float32, device).dequantize(dtype)
            # One at a time: what waits would keep its bytes.
            webtorch.realize(found)
            return found
        where = webtorch.device(device) if device is not None else webtorch.get_default_device()
        view = self._files[entry.part].view[entry.begin : entry.end]
        plain: DType = getattr(webtorch, kind.dtype)
        if plain is webtorch.float64 and where.type != "cpu" and dtype is not None:
            return from_bytes(view, entry.shape, plain, "cpu").to(dtype).to(where)
        made = from_bytes(view, entry.shape, plain, where)
        return made if dtype is None or not plain.is_floating_point else made.to(dtype)

    def packed(
        self, name: str, *, device: DeviceLike = None, dtype: DType | None = None
    ) -> PackedTensor | Tensor:
        """Return one tensor: of quantised types a packed one, which stands for `dtype` or float32, and others as
        `tensor` does. Raises as that does.
        """
        kind, entry = self._found(name)
        if kind.dtype is not None:
            return self.tensor(name, device=device, dtype=dtype)
        return self._packed(entry, dtype or webtorch.float32, device)

    def _packed(self, entry: TensorEntry, dtype: DType, device: DeviceLike) -> PackedTensor:
        where = webtorch.device(device) if device is not None else webtorch.get_default_device()
        own = self._files[entry.part].own_memory(entry) if where.type == "cpu" else None
        if own is not None:
            return PackedTensor(on_memory(own), entry.type, entry.shape, dtype)
        view = self._files[entry.part].view[entry.begin : entry.end]
        return PackedTensor.from_bytes(view, entry.type, entry.shape, dtype, device)

    def __iter__(self) -> Iterator[str]:
        return iter(self.entries)

    def __len__(self) -> int:
        return len(self.entries)


def _few(names: list[str]) -> str:
    shown = ", ".join(map(repr, names[:8]))
    return shown + (f" and {len(names) - 8} more" if len(names) > 8 else "")


@overload
def load_gguf(
    path: FilePath,
    device: DeviceLike = None,
    *,
    dtype: DType | None = None,
    keys: Collection[str] | None = None,
    packed: Literal[False] = False,
) -> GGUF: ...


@overload
def load_gguf(
    path: FilePath,
    device: DeviceLike = None,
    *,
    dtype: DType | None = None,
    keys: Collection[str] | None = None,
    packed: Literal[True],
) -> PackedGGUF: ...


def load_gguf(
    path: FilePath,
    device: DeviceLike = None,
    *,
    dtype: DType | None = None,
    keys: Collection[str] | None = None,
    packed: bool = False,
) -> GGUF | PackedGGUF:
    """Return (metadata, tensors) of a GGUF file.

    Quantised tensors (Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q2_K to Q6_K, Q8_K, IQ4_NL, IQ4_XS, MXFP4) become float32; F32,
    F16, BF16, F64 and integers stay what they are, unless `dtype` wants all floats of one type. `packed`: quantised
    tensors stay as they are, as `webtorch.quantization.PackedTensor`s. Shapes are PyTorch's: (out_features,
    in_features). keys: only these tensors. `GGUFReader` reads them one by one.

    Raises GGUFError (a ValueError) for a damaged file and for other IQ and ternary types, KeyError for a key that is
    not there.
    """
    reader = GGUFReader(path)
    names = list(reader.entries) if keys is None else list(keys)
    if packed:
        found = {n: reader.packed(n, device=device, dtype=dtype) for n in names}
        return PackedGGUF(reader.metadata, found)
    return GGUF(reader.metadata, {n: reader.tensor(n, device=device, dtype=dtype) for n in names})


# ---- writing --------------------------------------------------------------------------------------

_PACKED_CODES = {name: code for code, name in _BLOCKS.items()}
_CODES = {k.dtype: n for n, k in _KINDS.items() if k.dtype is not None}
_MOST_FLOAT32 = 3.4028234663852886e38


def save_gguf(
    tensors: Mapping[str, Tensor | PackedTensor],
    path: FilePath,
    metadata: Mapping[str, object] | None = None,
) -> None:
    """Write tensors, packed ones as they are, and metadata (numbers, strings, bools, lists of these) to a file.

    Numbers get 32 bits where they fit, as llama.cpp reads them, so that floats are rounded to float32. Raises TypeError
    for other values and GGUFError for element types that the format lacks.
    """
    write_gguf({n: tuple(t.shape) for n, t in tensors.items()}, tensors.items(), path, metadata)


def write_gguf(
    shapes: Mapping[str, Sequence[int]],
    tensors: Iterable[tuple[str, Tensor | PackedTensor]],
    path: FilePath,
    metadata: Mapping[str, object] | None = None,
) -> None:
    """Write a file as `save_gguf`, of tensors that come one after the other, so that memory need not hold all: their
    names and shapes are said before. Raises as that, and GGUFError where others come.
    """
    pairs = {"general.alignment": _DEFAULT_ALIGNMENT, **(metadata or {})}
    if pairs["general.alignment"] != _DEFAULT_ALIGNMENT:
        raise GGUFError(
            f"save_gguf: general.alignment is {_DEFAULT_ALIGNMENT} in files written here"
        )
    head = bytearray(_MAGIC + struct.pack("<IQQ", 3, len(shapes), len(pairs)))
    for key, value in pairs.items():
        head += _text(key)
        kind = _kind_of(value, key)
        head += struct.pack("<I", kind) + _value(value, kind, key)
    file = os.fspath(path)

    def entries(found: list[tuple[int, int]]) -> bytes:
        """Return the part of the head that says of each tensor its type and its offset."""
        out = bytearray()
        for (name, shape), (code, offset) in zip(shapes.items(), found, strict=True):
            out += _text(name) + struct.pack(f"<I{len(shape)}Q", len(shape), *reversed(shape))
            out += struct.pack("<IQ", code, offset)
        return bytes(out) + b"\0" * (-(len(head) + len(out)) % _DEFAULT_ALIGNMENT)

    def write(stream: BinaryIO) -> None:
        """Write the head, each tensor, padded to the alignment, and again the head, which now knows of them."""
        begin = stream.tell()
        stream.write(bytes(head) + entries([(0, 0)] * len(shapes)))
        found, offset = [], 0
        for (name, t), (said, shape) in zip(tensors, shapes.items(), strict=True):
            if name != said or tuple(t.shape) != tuple(shape):
                _refuse(file, f"{name!r} {tuple(t.shape)} comes where {said!r} {shape} was said")
            found.append((_code(t, name, file), offset))
            plain = t.bytes() if isinstance(t, PackedTensor) else t
            size = plain.numel() * plain.dtype.itemsize
            stream.write(memoryview(plain._to_bytes()).cast("B")[:size])
            stream.write(b"\0" * (-size % _DEFAULT_ALIGNMENT))
            offset += size + -size % _DEFAULT_ALIGNMENT
        end = stream.tell()
        stream.seek(begin)
        stream.write(bytes(head) + entries(found))
        stream.seek(end)

    replace_file(path, write)


def _code(t: Tensor | PackedTensor, name: str, file: str) -> int:
    """Return the number of a tensor's element type. Refuses those that the format lacks."""
    if isinstance(t, PackedTensor):
        codes, kind, what = _PACKED_CODES, t.format, t.format
    else:
        codes, kind, what = _CODES, t.dtype.name, str(t.dtype)
    if kind not in codes:
        _refuse(file, f"GGUF has no {what} (the tensor {name!r}); convert it first")
    return codes[kind]


def _text(text: str) -> bytes:
    data = text.encode("utf-8")
    return struct.pack("<Q", len(data)) + data


def _kind_of(value: object, key: str) -> int:
    """Return a value's type, the one that llama.cpp reads: of numbers that of 32 bits where they fit."""
    match value:
        case bool():
            return 7
        case int() if value < 0:
            return 5 if value >= -(2**31) else 11
        case int():
            return 4 if value < 2**32 else 10
        case float():
            return 6 if abs(value) <= _MOST_FLOAT32 or not math.isfinite(value) else 12
        case str():
            return _STRING
        case list() | tuple():
            return _ARRAY
    raise TypeError(
        f"save_gguf: the metadata {key!r} is a {type(value).__name__}; GGUF has no such type"
    )


def _value(value: Any, kind: int, key: str) -> bytes:
    if kind == _STRING:
        return _text(value)
    if kind != _ARRAY:
        return struct.pack(_SCALARS[kind], value)
    kinds = {_kind_of(v, key) for v in value} or {5}
    whole = kinds <= {4, 5, 10, 11}
    if whole:
        small = all(-(2**31) <= v < 2**31 for v in value)
        inner = 5 if small else 10 if min(value) >= 0 else 11
    else:
        inner = kinds.pop() if len(kinds) == 1 else 12 if kinds <= {4, 5, 6, 10, 11, 12} else -1
    if inner == -1:
        raise TypeError(f"save_gguf: the items of {key!r} must be of one type")
    return struct.pack("<IQ", inner, len(value)) + b"".join(_value(v, inner, key) for v in value)
