"""torch.serialization: `load`, `save`, what files may hold, and the archives that they are."""

from __future__ import annotations

import io
import os
import zipfile
from typing import Any

from webtorch.as_torch.names import unpickler
from webtorch.io import options, pytorch_file
from webtorch.io.checkpoint import MapLocation as MAP_LOCATION
from webtorch.io.checkpoint import load as load
from webtorch.io.checkpoint import save as save
from webtorch.io.objects import (
    SourceChangeWarning,
    add_safe_globals,
    clear_safe_globals,
    get_safe_globals,
    safe_globals,
)
from webtorch.io.options import (
    LoadEndianness,
    get_crc32_options,
    get_default_load_endianness,
    get_default_mmap_options,
    register_package,
    set_crc32_options,
    set_default_load_endianness,
    set_default_mmap_options,
    skip_data,
)

# Of Python's pickles in files.
DEFAULT_PROTOCOL = 2
__all__ = [
    "MAP_LOCATION",
    "LoadEndianness",
    "SourceChangeWarning",
    "add_safe_globals",
    "clear_safe_globals",
    "get_crc32_options",
    "get_default_load_endianness",
    "get_default_mmap_options",
    "get_safe_globals",
    "get_unsafe_globals_in_checkpoint",
    "load",
    "register_package",
    "safe_globals",
    "save",
    "set_crc32_options",
    "set_default_load_endianness",
    "set_default_mmap_options",
    "skip_data",
]

_serialization_tls = options.of_thread


def _is_zipfile(f: Any) -> bool:
    """Whether a file has the first bytes of a zip archive from its position on, which stays."""
    start = f.tell()
    found: bool = f.read(4) == pytorch_file.ZIP
    f.seek(start)
    return found


def get_unsafe_globals_in_checkpoint(f: object) -> list[str]:
    """Return the names in a file that `load(weights_only=True)` would refuse."""
    with _open_file_like(f, "rb") as stream:
        data = memoryview(stream.read())
    if bytes(data[:4]) != pytorch_file.ZIP:
        raise ValueError("Expected input to be a checkpoint returned by torch.save")
    return pytorch_file.names_in(data, str(f), unpickler._get_allowed_globals())


class _open_file_like:
    """A path opened, or a stream as it is."""

    def __init__(self, name_or_buffer: Any, mode: str) -> None:
        self.is_path = isinstance(name_or_buffer, str | os.PathLike)
        self.stream: Any = open(name_or_buffer, mode) if self.is_path else name_or_buffer  # noqa: SIM115
        self.mode = mode

    def __enter__(self) -> Any:
        return self.stream

    def __exit__(self, *_: object) -> None:
        if self.is_path:
            self.stream.close()
        elif "w" in self.mode:
            self.stream.flush()


class PyTorchFileReader:
    """Reads the records of an archive."""

    def __init__(self, name_or_buffer: Any) -> None:
        with _open_file_like(name_or_buffer, "rb") as stream:
            self._archive = zipfile.ZipFile(io.BytesIO(stream.read()))
        self._entries = {i.filename.partition("/")[2]: i for i in self._archive.infolist()}

    def __enter__(self) -> PyTorchFileReader:
        return self

    def __exit__(self, *_: object) -> None:
        self._archive.close()

    def get_record(self, name: str) -> bytes:
        """Return the bytes of a record."""
        if name not in self._entries:
            raise RuntimeError(f"PytorchStreamReader failed locating file {name}: file not found")
        return self._archive.read(self._entries[name])

    def has_record(self, name: str) -> bool:
        """Whether there is a record of that name."""
        return name in self._entries

    def get_all_records(self) -> list[str]:
        """Return the names of all records."""
        return list(self._entries)

    def get_record_offset(self, name: str) -> int:
        """Return where the bytes of a record begin in the file."""
        at = self._entries[name].header_offset
        stream: Any = self._archive.fp
        stream.seek(at + 26)
        sizes = stream.read(4)
        return at + 30 + int.from_bytes(sizes[:2], "little") + int.from_bytes(sizes[2:], "little")


class PyTorchFileWriter:
    """Writes the records of an archive."""

    def __init__(self, name_or_buffer: Any) -> None:
        self._opened = _open_file_like(name_or_buffer, "wb")
        self._memory = io.BytesIO()
        self._archive = zipfile.ZipFile(self._memory, "w", zipfile.ZIP_STORED)

    def __enter__(self) -> PyTorchFileWriter:
        return self

    def __exit__(self, *error: Any) -> None:
        self.write_end_of_file()
        self._opened.__exit__(*error)

    def write_record(self, name: str, data: Any, size: int) -> None:
        """Write a record: bytes, a text, or a storage."""
        if isinstance(data, str):
            data = data.encode()
        elif not isinstance(data, bytes | bytearray | memoryview):
            data = pytorch_file.storage_bytes(data.untyped()._storage)
        pytorch_file.put(self._archive, name, memoryview(data)[:size])

    def write_record_metadata(self, name: str, size: int) -> None:
        """Leave room for a record."""
        pytorch_file.put(self._archive, name, bytes(size))

    def write_end_of_file(self) -> None:
        """Write the archive's directory. Only the first call does."""
        if self._archive.fp is not None:
            pytorch_file.put(self._archive, "version", b"3\n")
            self._archive.close()
            self._opened.stream.write(self._memory.getvalue())


_open_zipfile_reader = PyTorchFileReader
_open_zipfile_writer = PyTorchFileWriter
