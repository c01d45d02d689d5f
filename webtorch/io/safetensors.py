"""The safetensors file format: a strict reader and an atomic writer, on plain bytes.

Layout of a file (https://github.com/huggingface/safetensors#format): 8 bytes, the header's length
as an unsigned little-endian integer; the header, one JSON object that maps each tensor's name to
its dtype, shape and [begin, end) in the data; then the data, little-endian and row-major, with no
byte unused and none used twice.

A file is untrusted input: every number in it is checked before it is used, and the first broken
rule is reported as a SafetensorError. Nothing here knows about tensors or devices, so the module
may import the standard library only, and works without NumPy and in Pyodide.
"""

from __future__ import annotations

import contextlib
import json
import math
import mmap
import os
import secrets
import stat
import struct
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import BinaryIO, NoReturn, TypeAlias

Buffer: TypeAlias = bytes | bytearray | memoryview
FilePath: TypeAlias = str | os.PathLike[str]

# The reference implementation's bound: a header is parsed whole, so its size must be limited.
MAX_HEADER_BYTES = 100_000_000
METADATA_KEY = "__metadata__"

_LENGTH = struct.Struct("<Q")
# Sizes and offsets are signed 64-bit integers in every library that will read them.
_MAX_BYTES = 2**63 - 1
_WRITE_BYTES = 1 << 24


@dataclass(frozen=True, slots=True)
class _Format:
    code: str
    name: str
    itemsize: int


_FORMATS = (
    _Format("F64", "float64", 8),
    _Format("F32", "float32", 4),
    _Format("F16", "float16", 2),
    _Format("BF16", "bfloat16", 2),
    _Format("F8_E5M2", "float8_e5m2", 1),
    _Format("F8_E4M3", "float8_e4m3fn", 1),
    _Format("C64", "complex64", 8),
    _Format("I64", "int64", 8),
    _Format("I32", "int32", 4),
    _Format("I16", "int16", 2),
    _Format("I8", "int8", 1),
    _Format("U64", "uint64", 8),
    _Format("U32", "uint32", 4),
    _Format("U16", "uint16", 2),
    _Format("U8", "uint8", 1),
    _Format("BOOL", "bool", 1),
)
_BY_CODE = {row.code: row for row in _FORMATS}
_BY_NAME = {row.name: row for row in _FORMATS}


class SafetensorError(ValueError):
    """A safetensors file, or what was to be written to one, breaks a rule of the format."""


@dataclass(frozen=True, slots=True)
class RawTensor:
    """A tensor as the file sees it: dtype name ("float32"), shape, and little-endian bytes.

    `data` may be a function that returns the bytes: a writer then holds one tensor at a time. What
    a reader returns is always a read-only memoryview.
    """

    dtype: str
    shape: tuple[int, ...]
    data: Buffer | Callable[[], Buffer]

    @property
    def nbytes(self) -> int:
        """The size that dtype and shape ask for; raises KeyError for a dtype without a code."""
        return math.prod(self.shape) * _BY_NAME[self.dtype].itemsize


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """One header entry: dtype name, shape, and [begin, end) counted from the start of the file."""

    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int


@dataclass(frozen=True, slots=True)
class Header:
    """A checked header: the tensors in the order of the file's JSON, and the free-form metadata."""

    tensors: dict[str, TensorInfo]
    metadata: dict[str, str]


# Reading.


def read_header(path: FilePath, *, allow_misaligned: bool = False) -> Header:
    """Read and check a file's header without reading any tensor.

    Raises SafetensorError naming the file, the tensor, the values and the rule; OSError where the
    file cannot be read.
    """
    with open(path, "rb") as stream:
        file_bytes = os.fstat(stream.fileno()).st_size
        prefix = stream.read(_LENGTH.size)
        name = _display(path)
        header_bytes = _header_length(prefix, file_bytes, name)
        text = stream.read(header_bytes)
        if len(text) != header_bytes:
            _refuse(name, f"the file ended inside its header of {header_bytes} bytes")
        return _parse_header(text, file_bytes, name, allow_misaligned)


def load_file(path: FilePath, *, allow_misaligned: bool = False) -> dict[str, RawTensor]:
    """Map a file and return its tensors, in header order, as views of the mapping.

    No tensor is copied and none but bool ones are read: the system reads a tensor's pages when its
    bytes are used, so a part of a large file costs that part. The mapping lives as long as any of
    the views; do not truncate the file meanwhile (replacing it, as `save_file` does, is safe).

    allow_misaligned: accept tensors whose offset is not a multiple of their element size.

    Raises SafetensorError naming the file, the tensor, the values and the rule.
    """
    with open(path, "rb") as stream:
        return loads(_map(stream), name=_display(path), allow_misaligned=allow_misaligned)


def loads(
    buffer: Buffer | mmap.mmap, *, name: str = "<bytes>", allow_misaligned: bool = False
) -> dict[str, RawTensor]:
    """Return the tensors of a file that is in memory, as views of `buffer`; see `load_file`."""
    view = memoryview(buffer).toreadonly()
    header = parse_header(view, name=name, allow_misaligned=allow_misaligned)
    return records(view, header, name=name)


def parse_header(
    buffer: Buffer | mmap.mmap, *, name: str = "<bytes>", allow_misaligned: bool = False
) -> Header:
    """Check and return the header of a whole file that is in memory."""
    view = memoryview(buffer)
    header_bytes = _header_length(bytes(view[: _LENGTH.size]), len(view), name)
    text = bytes(view[_LENGTH.size : _LENGTH.size + header_bytes])
    return _parse_header(text, len(view), name, allow_misaligned)


def records(view: memoryview, header: Header, *, name: str = "<bytes>") -> dict[str, RawTensor]:
    """Return the tensors that `header`, which belongs to the file's bytes `view`, describes."""
    found: dict[str, RawTensor] = {}
    for key, info in header.tensors.items():
        data = view[info.begin : info.end]
        # Any other byte is undefined behaviour in the libraries that will compute with it.
        if info.dtype == "bool" and bytes(data).translate(None, b"\x00\x01"):
            _refuse(name, "every byte of a BOOL tensor must be 0 or 1, some are not", key)
        found[key] = RawTensor(info.dtype, info.shape, data)
    return found


def map_file(path: FilePath) -> memoryview:
    """Return a file's bytes as a read-only view, mapped where the system can map it."""
    with open(path, "rb") as stream:
        return memoryview(_map(stream)).toreadonly()


def map_own(path: FilePath) -> memoryview | None:
    """Return a file's bytes as memory of one's own: pages are read when they are, and written to no file. None where
    the system cannot.
    """
    with open(path, "rb") as stream:
        found = _map(stream, mmap.ACCESS_COPY)
    return memoryview(found) if isinstance(found, mmap.mmap) else None


def _map(stream: BinaryIO, access: int = mmap.ACCESS_READ) -> mmap.mmap | bytes:
    try:
        return mmap.mmap(stream.fileno(), 0, access=access)
    except (OSError, ValueError):
        # ValueError: an empty file. OSError: a pipe, or a file system without it (Pyodide's).
        return stream.read()


def _header_length(prefix: bytes, file_bytes: int, name: str) -> int:
    if len(prefix) < _LENGTH.size:
        _refuse(name, f"{file_bytes} bytes are too few: the header's length alone takes 8")
    (header_bytes,) = _LENGTH.unpack(prefix)
    # The usual mix-ups get their own words: a length read from these bytes would only confuse.
    if prefix.startswith(b"PK\x03\x04"):
        _refuse(
            name,
            "this is a zip archive, as torch.save writes, not a safetensors file: convert it in "
            "PyTorch with safetensors.torch.save_file",
        )
    if prefix.startswith(b"GGUF"):
        _refuse(name, "this is a GGUF file, not a safetensors file")
    if header_bytes > MAX_HEADER_BYTES:
        _refuse(name, f"the header's length is {header_bytes}, the limit is {MAX_HEADER_BYTES}")
    if header_bytes > file_bytes - _LENGTH.size:
        _refuse(
            name,
            f"the header's length is {header_bytes}, but only {file_bytes - _LENGTH.size} bytes "
            "follow it: the file is cut short or is no safetensors file",
        )
    return int(header_bytes)


def _parse_header(text: bytes, file_bytes: int, name: str, allow_misaligned: bool) -> Header:
    root = _parse_json(text, name)
    metadata = root.pop(METADATA_KEY, {})
    if not isinstance(metadata, dict) or not all(isinstance(v, str) for v in metadata.values()):
        _refuse(name, "the metadata must map strings to strings", METADATA_KEY)

    start = _LENGTH.size + len(text)
    data_bytes = file_bytes - start
    tensors: dict[str, TensorInfo] = {}
    for key, entry in root.items():
        row, shape, begin, end = _check_entry(entry, data_bytes, name, key)
        if begin % row.itemsize and begin != end and not allow_misaligned:
            _refuse(
                name,
                f"the data starts at byte {begin}, which is no multiple of {row.itemsize}, the "
                f"size of {row.code}; pass allow_misaligned=True to read it",
                key,
            )
        tensors[key] = TensorInfo(row.name, shape, start + begin, start + end)
    _check_cover(tensors, start, data_bytes, name)
    return Header(tensors, metadata)


def _parse_json(text: bytes, name: str) -> dict[str, object]:
    def unique(pairs: Iterable[tuple[str, object]]) -> dict[str, object]:
        """Return the pairs as a dict. Refuses a key that occurs twice."""
        found: dict[str, object] = {}
        for key, value in pairs:
            if key in found:
                _refuse(name, "the key occurs twice in one JSON object", key)
            found[key] = value
        return found

    def constant(word: str) -> NoReturn:
        """Raise ValueError for NaN and infinities."""
        raise ValueError(f"{word} is not JSON")

    if not text.startswith(b"{"):
        _refuse(name, f"the header must start with '{{', it starts with {text[:1]!r}")
    try:
        root = json.loads(text.decode("utf-8"), object_pairs_hook=unique, parse_constant=constant)
    except UnicodeDecodeError as error:
        _refuse(name, f"the header is not UTF-8: {error}")
    except SafetensorError:
        raise
    except ValueError as error:
        _refuse(name, f"the header is not JSON: {error}")
    except RecursionError:
        _refuse(name, "the header is nested too deeply to be one of a safetensors file")
    # It starts with a brace, so it is an object.
    assert isinstance(root, dict)
    for key in root:
        if not _is_text(key):
            _refuse(name, "the key has half of a surrogate pair, so it is no Unicode text", key)
    return root


_FIELDS = {"dtype", "shape", "data_offsets"}


def _check_entry(
    entry: object, data_bytes: int, name: str, key: str
) -> tuple[_Format, tuple[int, ...], int, int]:
    if not isinstance(entry, dict) or entry.keys() != _FIELDS:
        fields = sorted(entry) if isinstance(entry, dict) else type(entry).__name__
        _refuse(
            name,
            "an entry must be an object of exactly dtype, shape and data_offsets, "
            f"this one is {_short(fields)}",
            key,
        )
    code, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]

    row = _BY_CODE.get(code) if isinstance(code, str) else None
    if row is None:
        _refuse(name, f"unknown dtype {_short(code)}; known ones are {', '.join(_BY_CODE)}", key)
    if not isinstance(shape, list) or not all(_is_count(size) for size in shape):
        _refuse(name, f"a shape is a list of integers >= 0, this one is {_short(shape)}", key)
    if not (isinstance(offsets, list) and len(offsets) == 2 and all(map(_is_count, offsets))):
        _refuse(name, f"data_offsets is [begin, end], integers >= 0, not {_short(offsets)}", key)
    # Sizes of 0 do not hide the others: strides are computed from all of them.
    if math.prod(size or 1 for size in shape) * row.itemsize > _MAX_BYTES:
        _refuse(name, f"shape {_short(shape)} of {row.code} passes 2**63 bytes", key)

    begin, end = offsets
    if not begin <= end <= data_bytes:
        _refuse(
            name,
            f"data_offsets [{begin}, {end}] must be in order and inside the {data_bytes} bytes "
            "of data; a file that was cut short looks like this",
            key,
        )
    nbytes = math.prod(shape) * row.itemsize
    if end - begin != nbytes:
        _refuse(
            name,
            f"shape {_short(shape)} of {row.code} takes {nbytes} bytes, data_offsets "
            f"[{begin}, {end}] hold {end - begin}",
            key,
        )
    return row, tuple(shape), begin, end


def _check_cover(tensors: dict[str, TensorInfo], start: int, data_bytes: int, name: str) -> None:
    """Refuse data that two tensors share or that none uses: a second format could hide in it."""
    position = 0
    previous = None
    for key, info in sorted(tensors.items(), key=lambda item: (item[1].begin, item[1].end)):
        begin, end = info.begin - start, info.end - start
        if begin < position:
            _refuse(
                name,
                f"its bytes [{begin}, {end}] overlap those of {_short(previous)}, which end at "
                f"{position}",
                key,
            )
        if begin > position:
            _refuse(name, f"no tensor uses the bytes [{position}, {begin}] before it", key)
        position, previous = end, key
    if position != data_bytes:
        _refuse(
            name, f"{data_bytes - position} bytes follow the last tensor, which ends at {position}"
        )


def _is_count(value: object) -> bool:
    # bool is an int to Python, not to JSON.
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= _MAX_BYTES


def _is_text(text: object) -> bool:
    """Whether `text` is a str that UTF-8 can hold: JSON can spell half of a surrogate pair."""
    if not isinstance(text, str):
        return False
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def _short(value: object) -> str:
    text = ascii(value)
    return text if len(text) <= 100 else text[:97] + "..."


def _display(path: FilePath) -> str:
    return os.fspath(path)


def _refuse(name: str, message: str, key: object = None) -> NoReturn:
    where = name if key is None else f"{name}: {_short(key)}"
    raise SafetensorError(f"{where}: {message}.")


# Writing.


def save_file(
    tensors: Mapping[str, RawTensor], path: FilePath, metadata: Mapping[str, str] | None = None
) -> None:
    """Write `tensors` to `path`, whole or not at all.

    The bytes go to a new file beside the target, which then takes the target's place: a crash or an
    error, also one raised while a tensor is being read, leaves the old file as it was.

    Raises SafetensorError for a name, dtype, shape or size that the format does not allow.
    """
    replace_file(path, lambda stream: dump(tensors, stream, metadata, name=_display(path)))


def replace_file(path: FilePath, write: Callable[[BinaryIO], None]) -> None:
    """Let `write` fill a new file, which takes the place of `path` when it is complete."""
    target = os.path.realpath(path)
    if os.path.isdir(target):
        raise IsADirectoryError(f"save: {_display(path)} is a directory, give a file's name")
    if os.path.exists(target) and not stat.S_ISREG(os.stat(target).st_mode):
        # A pipe or a device is written to; putting a file in its place would destroy it.
        with open(target, "wb") as stream:
            write(stream)
        return

    folder = os.path.dirname(target)
    if not os.path.isdir(folder):
        raise RuntimeError(f"Parent directory {os.path.dirname(os.fspath(path))} does not exist.")
    temporary = f"{target}.{secrets.token_hex(6)}.tmp"
    try:
        with open(temporary, "xb") as stream:
            if os.path.exists(target):
                with contextlib.suppress(OSError):
                    os.chmod(temporary, stat.S_IMODE(os.stat(target).st_mode))
            write(stream)
            stream.flush()
            # The rename must not reach the disk before the data does.
            os.fsync(stream.fileno())
        os.replace(temporary, target)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)
        raise


def dump(
    tensors: Mapping[str, RawTensor],
    stream: BinaryIO,
    metadata: Mapping[str, str] | None = None,
    *,
    name: str = "<stream>",
) -> None:
    """Write `tensors` to a binary stream; the header keeps their order."""
    # Largest elements first: with no gaps allowed, only this order aligns every tensor.
    layout = sorted(tensors, key=lambda key: -_checked(key, tensors[key], name).itemsize)
    entries: dict[str, object] = {}
    begins: dict[str, int] = {}
    position = 0
    for key in layout:
        begins[key] = position
        position += tensors[key].nbytes
    if metadata:
        for item in metadata.items():
            if not all(map(_is_text, item)):
                _refuse(name, f"metadata maps Unicode text to text, not {_short(item)}")
        entries[METADATA_KEY] = dict(metadata)
    for key, tensor in tensors.items():
        entries[key] = {
            "dtype": _BY_NAME[tensor.dtype].code,
            "shape": list(tensor.shape),
            "data_offsets": [begins[key], begins[key] + tensor.nbytes],
        }

    text = json.dumps(entries, ensure_ascii=False, separators=(",", ":")).encode("utf-8")
    # The data starts at a multiple of 8, so that a mapped tensor is aligned in memory too.
    text += b" " * (-len(text) % 8)
    if len(text) > MAX_HEADER_BYTES:
        _refuse(name, f"the header would take {len(text)} bytes, the limit is {MAX_HEADER_BYTES}")
    stream.write(_LENGTH.pack(len(text)))
    stream.write(text)
    for key in layout:
        _write_data(stream, tensors[key], name, key)


def _checked(key: object, tensor: RawTensor, name: str) -> _Format:
    if not _is_text(key):
        _refuse(name, f"a tensor's name is Unicode text, not {_short(key)}")
    if key == METADATA_KEY:
        _refuse(name, "the name is reserved for the metadata; rename the tensor", METADATA_KEY)
    row = _BY_NAME.get(tensor.dtype)
    if row is None:
        known = ", ".join(_BY_NAME)
        _refuse(name, f"the format has no {tensor.dtype}; convert it to one of {known}", key)
    if not all(_is_count(size) for size in tensor.shape):
        _refuse(name, f"a shape is a tuple of integers >= 0, not {_short(tensor.shape)}", key)
    return row


def _write_data(stream: BinaryIO, tensor: RawTensor, name: str, key: str) -> None:
    source = tensor.data() if callable(tensor.data) else tensor.data
    view = memoryview(source)
    if view.nbytes != tensor.nbytes:
        _refuse(
            name,
            f"shape {tensor.shape} of {tensor.dtype} takes {tensor.nbytes} bytes, "
            f"{view.nbytes} were given",
            key,
        )
    if view.nbytes == 0:
        return
    flat = view.cast("B")
    # In pieces: a raw stream may take less than it is given, and a copy of all would double memory.
    position = 0
    while position < len(flat):
        piece = flat[position : position + _WRITE_BYTES]
        position += stream.write(piece)
