"""GGUF, the file format of llama.cpp: metadata and weights, quantised ones as floats. Floor 6.

Layout (https://github.com/ggml-org/ggml/blob/master/docs/gguf.md): a header, typed key-value pairs,
one entry for each tensor, and the data, aligned. Sizes stand with the fastest dimension first, so a
matrix of PyTorch's shape (rows, columns) is written as columns, rows. A quantised tensor is blocks
of 32 or 256 elements along a row. A file is untrusted: each number in it is checked before it is
used. It is mapped, and one tensor at a time is converted, in pieces, so that memory holds the
tensors and little else.
"""

from __future__ import annotations

import math
import os
import struct
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

from webtorch.functions import public as webtorch
from webtorch.io.safetensors import FilePath, map_file, replace_file
from webtorch.ir.dtype import DType
from webtorch.tensors.creation import from_bytes
from webtorch.tensors.tensor import Tensor

if TYPE_CHECKING:
    import numpy

Array = Any
_MAGIC = b"GGUF"
_DEFAULT_ALIGNMENT = 32
# More would be no model but a damaged length.
_MAX_COUNT = 1 << 24
_MAX_STRING = 1 << 28
_MAX_RANK = 8
_MAX_DEPTH = 8
# Elements converted at a time.
_PIECE = 1 << 22


class GGUFError(ValueError):
    """A GGUF file breaks a rule of the format, or holds what cannot be read here."""


@dataclass(frozen=True, slots=True)
class _Kind:
    """An element type: its name, elements and bytes of a block, and how blocks become float32."""

    name: str
    elements: int
    nbytes: int
    # The webtorch dtype of plain types.
    dtype: str | None = None
    unpack: Callable[[Array], Array] | None = None


class TensorEntry(NamedTuple):
    """A tensor of a file: its type's name, its shape as PyTorch has it, and where its bytes are."""

    type: str
    shape: tuple[int, ...]
    begin: int
    end: int


class GGUF(NamedTuple):
    """What `load_gguf` returns."""

    metadata: dict[str, Any]
    tensors: dict[str, Tensor]


# ---- quantised blocks -----------------------------------------------------------------------------
# Each function gets rows of bytes, one for each block, and returns rows of float32. The layouts are
# those of ggml-common.h.


def _half(b: Array, at: int) -> Array:
    return b[:, at : at + 2].copy().view("<f2").astype("f4")


def _nibbles(q: Array) -> Array:
    """Return the low halves of the bytes, then the high ones."""
    import numpy as np

    return np.concatenate([q & 15, q >> 4], 1)


def _q4_0(b: Array) -> Array:
    return _half(b, 0) * (_nibbles(b[:, 2:18]).astype("f4") - 8)


def _q4_1(b: Array) -> Array:
    return _half(b, 0) * _nibbles(b[:, 4:20]) + _half(b, 2)


def _fifth(b: Array, at: int) -> Array:
    """Return the fifth bits of 32 elements, as 16 or 0."""
    import numpy as np

    return np.unpackbits(b[:, at : at + 4], axis=1, bitorder="little") << 4


def _q5_0(b: Array) -> Array:
    return _half(b, 0) * ((_nibbles(b[:, 6:22]) | _fifth(b, 2)).astype("f4") - 16)


def _q5_1(b: Array) -> Array:
    return _half(b, 0) * (_nibbles(b[:, 8:24]) | _fifth(b, 4)) + _half(b, 2)


def _q8_0(b: Array) -> Array:
    return _half(b, 0) * b[:, 2:34].view("i1")


def _fours(q: Array) -> Array:
    """Return bytes (n, 2, 32) as 2-bit numbers (n, 2, 4, 32): one plane for each pair of bits."""
    import numpy as np

    shift = np.array([0, 2, 4, 6], "u1").reshape(1, 1, 4, 1)
    return (q.reshape(-1, 2, 1, 32) >> shift) & 3


def _q2_k(b: Array) -> Array:
    scales, q = b[:, :16], _fours(b[:, 16:80]).reshape(-1, 16, 16)
    d, low = _half(b, 80), _half(b, 82)
    return ((d * (scales & 15))[:, :, None] * q - (low * (scales >> 4))[:, :, None]).reshape(
        -1, 256
    )


def _q3_k(b: Array) -> Array:
    import numpy as np

    high = np.unpackbits(b[:, :32, None], axis=2, bitorder="little")  # (n, 32, 8): bit 4 h + j
    high = high.transpose(0, 2, 1).reshape(-1, 2, 4, 32)
    q = _fours(b[:, 32:96]).astype("i1") - ((high ^ 1) << 2).astype("i1")
    s = b[:, 96:108]
    low = np.concatenate([s[:, :8] & 15, s[:, :8] >> 4], 1)
    shift = np.array([0, 2, 4, 6], "u1").reshape(1, 4, 1)
    top = ((s[:, None, 8:12] >> shift) & 3).reshape(-1, 16)
    scales = (low | (top << 4)).astype("i1") - 32
    return ((_half(b, 108) * scales)[:, :, None] * q.reshape(-1, 16, 16)).reshape(-1, 256)


def _six_bits(s: Array) -> tuple[Array, Array]:
    """Return the 8 scales and 8 minima of 6 bits in 12 bytes."""
    import numpy as np

    scale = np.concatenate([s[:, :4] & 63, (s[:, 8:] & 15) | ((s[:, :4] >> 6) << 4)], 1)
    low = np.concatenate([s[:, 4:8] & 63, (s[:, 8:] >> 4) | ((s[:, 4:8] >> 6) << 4)], 1)
    return scale, low


def _q4_k(b: Array) -> Array:
    import numpy as np

    scale, low = _six_bits(b[:, 4:16])
    q = b[:, 16:144].reshape(-1, 4, 32)
    q = np.stack([q & 15, q >> 4], 2).reshape(-1, 8, 32)
    return ((_half(b, 0) * scale)[:, :, None] * q - (_half(b, 2) * low)[:, :, None]).reshape(
        -1, 256
    )


def _q5_k(b: Array) -> Array:
    import numpy as np

    scale, low = _six_bits(b[:, 4:16])
    high = np.unpackbits(b[:, 16:48, None], axis=2, bitorder="little").transpose(0, 2, 1) << 4
    q = b[:, 48:176].reshape(-1, 4, 32)
    q = np.stack([q & 15, q >> 4], 2).reshape(-1, 8, 32) | high
    return ((_half(b, 0) * scale)[:, :, None] * q - (_half(b, 2) * low)[:, :, None]).reshape(
        -1, 256
    )


def _q6_k(b: Array) -> Array:
    import numpy as np

    low = b[:, :128].reshape(-1, 2, 64)
    low = np.concatenate([low & 15, low >> 4], 2).reshape(-1, 2, 4, 32)
    q = (low | (_fours(b[:, 128:192]) << 4)).astype("i1") - 32
    scales = b[:, 192:208].view("i1")
    return ((_half(b, 208) * scales)[:, :, None] * q.reshape(-1, 16, 16)).reshape(-1, 256)


def _q8_k(b: Array) -> Array:
    return b[:, :4].copy().view("<f4") * b[:, 4:260].view("i1")


_KINDS = {
    0: _Kind("F32", 1, 4, "float32"), 1: _Kind("F16", 1, 2, "float16"),
    2: _Kind("Q4_0", 32, 18, None, _q4_0), 3: _Kind("Q4_1", 32, 20, None, _q4_1),
    6: _Kind("Q5_0", 32, 22, None, _q5_0), 7: _Kind("Q5_1", 32, 24, None, _q5_1),
    8: _Kind("Q8_0", 32, 34, None, _q8_0), 10: _Kind("Q2_K", 256, 84, None, _q2_k),
    11: _Kind("Q3_K", 256, 110, None, _q3_k), 12: _Kind("Q4_K", 256, 144, None, _q4_k),
    13: _Kind("Q5_K", 256, 176, None, _q5_k), 14: _Kind("Q6_K", 256, 210, None, _q6_k),
    15: _Kind("Q8_K", 256, 292, None, _q8_k), 24: _Kind("I8", 1, 1, "int8"),
    25: _Kind("I16", 1, 2, "int16"), 26: _Kind("I32", 1, 4, "int32"), 27: _Kind("I64", 1, 8, "int64"),
    28: _Kind("F64", 1, 8, "float64"), 30: _Kind("BF16", 1, 2, "bfloat16"),
}  # fmt: skip
# Known types that need tables of their own; their sizes, so that the rest of a file can be read.
_UNREADABLE = {
    4: ("Q4_2", 0, 0), 5: ("Q4_3", 0, 0), 9: ("Q8_1", 32, 36), 16: ("IQ2_XXS", 256, 66),
    17: ("IQ2_XS", 256, 74), 18: ("IQ3_XXS", 256, 98), 19: ("IQ1_S", 256, 50),
    20: ("IQ4_NL", 32, 18), 21: ("IQ3_S", 256, 110), 22: ("IQ2_S", 256, 82),
    23: ("IQ4_XS", 256, 136), 29: ("IQ1_M", 256, 56), 34: ("TQ1_0", 256, 54),
    35: ("TQ2_0", 256, 66), 39: ("MXFP4", 32, 17),
}  # fmt: skip
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


class GGUFReader:
    """An open file: `metadata`, `entries` by name, and `tensor(name)`, which reads one tensor."""

    def __init__(self, path: FilePath) -> None:
        """Map the file and read all but the tensors. Raises GGUFError for a damaged one."""
        self.file = os.fspath(path)
        self._view = map_file(path)
        self.metadata: dict[str, Any] = {}
        self.entries: dict[str, TensorEntry] = {}
        self._read()

    def _read(self) -> None:
        c = _Cursor(self._view, self.file)
        start = bytes(self._view[:4])
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
        if kind is None and code not in _UNREADABLE:
            _refuse(self.file, f"the tensor {name!r} has the type {code}, which is not known here")
        title, elements, nbytes = (
            (kind.name, kind.elements, kind.nbytes) if kind else _UNREADABLE[code]
        )
        row = sizes[0] if sizes else 1
        if elements and row % elements:
            _refuse(
                self.file,
                f"{name!r} is {title} with rows of {row}; blocks of {elements} must fill them",
            )
        size = math.prod(sizes) // (elements or 1) * nbytes
        begin, end = data + offset, data + offset + size
        if offset % alignment or end > len(self._view):
            _refuse(
                self.file,
                f"the tensor {name!r} would be at bytes {begin} to {end} of {len(self._view)}: the file "
                "was cut short or is damaged",
            )
        self.entries[name] = TensorEntry(title, tuple(reversed(sizes)), begin, end)

    def tensor(self, name: str, *, device: object = None, dtype: DType | None = None) -> Tensor:
        """Return one tensor: plain types as they are, quantised ones as float32, or all as `dtype`.

        Raises KeyError for a name that is not there, GGUFError for a type that is not read.
        """
        if name not in self.entries:
            raise KeyError(f"{self.file} has no tensor {name!r}; it has {_few(list(self.entries))}")
        entry = self.entries[name]
        kind = _BY_NAME.get(entry.type)
        if kind is None:
            readable = ", ".join(k for k in _BY_NAME)
            _refuse(
                self.file,
                f"{name!r} is {entry.type}, which is not read here ({readable} are): requantise the "
                "model (llama-quantize --allow-requantize), or read other tensors with keys=...",
            )
        where = webtorch.device(device) if device is not None else webtorch.get_default_device()
        view = self._view[entry.begin : entry.end]
        if kind.dtype is not None:
            plain: DType = getattr(webtorch, kind.dtype)
            if plain is webtorch.float64 and where.type != "cpu" and dtype is not None:
                return from_bytes(view, entry.shape, plain, "cpu").to(dtype).to(where)
            made = from_bytes(view, entry.shape, plain, where)
            return made if dtype is None or not plain.is_floating_point else made.to(dtype)
        return _dequantised(kind, view, entry.shape, dtype or webtorch.float32, where)

    def __iter__(self) -> Iterator[str]:
        return iter(self.entries)

    def __len__(self) -> int:
        return len(self.entries)


def _dequantised(
    kind: _Kind, view: memoryview, shape: tuple[int, ...], dtype: DType, device: Any
) -> Tensor:
    import numpy as np

    assert kind.unpack is not None
    blocks = np.frombuffer(view, "u1").reshape(-1, kind.nbytes)
    narrow = {"float32": "f4", "float16": "f2", "float64": "f8"}.get(dtype.name, "f4")
    out: numpy.ndarray[Any, Any] = np.empty((len(blocks), kind.elements), narrow)
    step = max(1, _PIECE // kind.elements)
    with np.errstate(over="ignore", invalid="ignore"):
        for at in range(0, len(blocks), step):
            out[at : at + step] = kind.unpack(blocks[at : at + step])
    name = {"f4": "float32", "f2": "float16", "f8": "float64"}[narrow]
    made = from_bytes(memoryview(out.reshape(-1).data), shape, getattr(webtorch, name), device)
    return made.to(dtype)


def _few(names: list[str]) -> str:
    shown = ", ".join(map(repr, names[:8]))
    return shown + (f" and {len(names) - 8} more" if len(names) > 8 else "")


def load_gguf(
    path: FilePath,
    device: object = None,
    *,
    dtype: DType | None = None,
    keys: Collection[str] | None = None,
) -> GGUF:
    """Return (metadata, tensors) of a GGUF file.

    Quantised tensors (Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q2_K to Q6_K, Q8_K) become float32; F32, F16, BF16,
    F64 and integers stay what they are, unless `dtype` wants all floats of one type. Shapes are
    PyTorch's: (out_features, in_features). keys: only these tensors. `GGUFReader` reads them one by one.

    Raises GGUFError (a ValueError) for a damaged file and for IQ and ternary types, KeyError for a key
    that is not there.
    """
    reader = GGUFReader(path)
    names = list(reader.entries) if keys is None else list(keys)
    return GGUF(reader.metadata, {n: reader.tensor(n, device=device, dtype=dtype) for n in names})


# ---- writing --------------------------------------------------------------------------------------

_CODES = {k.dtype: n for n, k in _KINDS.items() if k.dtype is not None}


def save_gguf(
    tensors: Mapping[str, Tensor], path: FilePath, metadata: Mapping[str, object] | None = None
) -> None:
    """Write tensors, unquantised, and metadata (numbers, strings, bools, lists of these) to a file.

    Raises TypeError for other values and GGUFError for element types that the format lacks.
    """
    pairs = {"general.alignment": _DEFAULT_ALIGNMENT, **(metadata or {})}
    if pairs["general.alignment"] != _DEFAULT_ALIGNMENT:
        raise GGUFError(
            f"save_gguf: general.alignment is {_DEFAULT_ALIGNMENT} in files written here"
        )
    head = bytearray(_MAGIC + struct.pack("<IQQ", 3, len(tensors), len(pairs)))
    for key, value in pairs.items():
        head += _text(key)
        # The format's own key is a 32-bit number.
        kind = 4 if key == "general.alignment" else _kind_of(value, key)
        head += struct.pack("<I", kind) + _value(value, kind, key)
    offset = 0
    for name, t in tensors.items():
        code = _CODES.get(t.dtype.name)
        if code is None:
            _refuse(
                os.fspath(path), f"GGUF has no {t.dtype} (the tensor {name!r}); convert it first"
            )
        head += _text(name) + struct.pack(f"<I{t.ndim}Q", t.ndim, *reversed(tuple(t.shape)))
        head += struct.pack("<IQ", code, offset)
        offset += -(-t.numel() * t.dtype.itemsize // _DEFAULT_ALIGNMENT) * _DEFAULT_ALIGNMENT
    head += b"\0" * (-len(head) % _DEFAULT_ALIGNMENT)

    def write(stream: Any) -> None:
        """Write the head, then each tensor, padded to the alignment."""
        stream.write(bytes(head))
        for t in tensors.values():
            data = memoryview(t._to_bytes()).cast("B")[: t.numel() * t.dtype.itemsize]
            stream.write(data)
            stream.write(b"\0" * (-len(data) % _DEFAULT_ALIGNMENT))

    replace_file(path, write)


def _text(text: str) -> bytes:
    data = text.encode("utf-8")
    return struct.pack("<Q", len(data)) + data


def _kind_of(value: object, key: str) -> int:
    match value:
        case bool():
            return 7
        case int():
            return 5 if -(2**31) <= value < 2**31 else 11 if value < 2**63 else 10
        case float():
            return 12
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
    inner = kinds.pop() if len(kinds) == 1 else 12 if kinds <= {5, 11, 12} else -1
    if inner == -1:
        raise TypeError(f"save_gguf: the items of {key!r} must be of one type")
    return struct.pack("<IQ", inner, len(value)) + b"".join(_value(v, inner, key) for v in value)
