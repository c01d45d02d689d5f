"""The files that `torch.save` wrote before PyTorch 1.6, and writes with `_use_new_zipfile_serialization=False`.

One pickle comes after the other: a magic number, a version, what the machine was like, the object, the keys of its
storages; then the storages in the order of these, each as its number of elements and their bytes. Read as the other
files are: no code is run. May import the tensor floor and nn.Parameter.
"""

from __future__ import annotations

import io
import pickle
import pickletools
import struct
from typing import Any, BinaryIO, NoReturn, cast

from webtorch.io import objects
from webtorch.io.pickle_machine import Writer
from webtorch.io.pytorch_file import (
    DTYPES,
    STORAGES,
    CheckpointError,
    Saver,
    short,
    storage_bytes,
)

# The first bytes of such a file: a pickled magic number.
MAGIC = b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19."
_VERSION = 1001
_MACHINE = {
    "protocol_version": _VERSION,
    "little_endian": True,
    "type_sizes": {"short": 2, "int": 4, "long": 4},
}
# What Python stumbles over in a damaged pickle.
_STUMBLES = (ValueError, IndexError, KeyError, TypeError, AttributeError, EOFError, OverflowError)
_PUTS = ("BINPUT", "LONG_BINPUT", "PUT")
_GETS = ("BINGET", "LONG_BINGET", "GET")


class OldArchive:
    """The parts of such a file, under the names that they have in an archive."""

    def __init__(self, view: memoryview, file: str) -> None:
        self.view, self.file = view, file
        at, parts = 0, []
        for _ in range(5):
            end = self._end(at)
            parts.append(bytes(view[at:end]))
            at = end
        _, first, second, self._object, last = parts
        try:
            version, machine, listed = map(_value, (first, second, last))
            widths = _widths(self._object)
        except (*_STUMBLES, pickle.UnpicklingError) as error:
            self.refuse(f"its pickled part is damaged: {error!r:.200}")
        if version != _VERSION:
            self.refuse(f"its version is {short(version)}, only {_VERSION} is read")
        little = not isinstance(machine, dict) or machine.get("little_endian")
        self._order = "little" if little else "big"
        if not isinstance(listed, list) or not all(isinstance(key, str) for key in listed):
            self.refuse(f"the keys of its storages are {short(listed)}")
        self._storages: dict[str, memoryview] = {}
        for key in listed:
            if key not in widths or at + 8 > len(view):
                self.refuse(f"it is cut short, or has no storage {short(key)}")
            (count,) = struct.unpack_from("<q", view, at)
            begin, at = at + 8, at + 8 + count * widths[key]
            if count < 0 or at > len(view):
                self.refuse(f"the storage {short(key)} ends behind the end of the file")
            self._storages[key] = view[begin:at]
        # Where the file ends: another one may follow in a stream.
        self.end = at

    def refuse(self, message: str) -> NoReturn:
        """Raise CheckpointError about this file."""
        raise CheckpointError(f"load: {self.file}: {message}.")

    def _end(self, at: int) -> int:
        """Return where the pickle ends that begins at a place."""
        try:
            for opcode, _, position in pickletools.genops(cast(BinaryIO, _From(self.view, at))):
                if opcode.name == "STOP":
                    assert position is not None
                    return at + position + 1
        except _STUMBLES as error:
            self.refuse(f"it is damaged: {error}")
        self.refuse("it is cut short")

    def bytes_of(self, name: str) -> memoryview:
        """Return the bytes of a part: "data.pkl" or "data/KEY"."""
        if name == "data.pkl":
            return memoryview(self._object)
        found = self._storages.get(name.removeprefix("data/"))
        if found is None:
            self.refuse(f"there is no {short(name)} in it")
        return found

    def text_of(self, name: str) -> str | None:
        """Return the order of bytes; None for other texts."""
        return self._order if name == "byteorder" else None


class _From:
    """A memory view from a place on, as the file that `pickletools` reads."""

    def __init__(self, view: memoryview, at: int) -> None:
        self.view, self.start, self.position = view, at, at

    def tell(self) -> int:
        """Return how much has been read."""
        return self.position - self.start

    def read(self, count: int) -> bytes:
        """Return `count` bytes."""
        data = bytes(self.view[self.position : self.position + count])
        self.position += len(data)
        return data

    def readline(self) -> bytes:
        """Return the bytes up to the end of a line."""
        line = bytearray()
        while not line.endswith(b"\n") and (one := self.read(1)):
            line += one
        return bytes(line)


class _Plain(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> NoReturn:
        """Raise: numbers and texts name no class."""
        raise CheckpointError(f"load: {module}.{name} stands where a number or a list is expected.")


def _value(data: bytes) -> Any:
    """Return what a pickle of numbers, texts and containers of them holds. No code is run."""
    return _Plain(io.BytesIO(data)).load()


def _widths(data: bytes) -> dict[str, int]:
    """Return the element size of each storage that a pickle names, without making anything."""
    stack: list[Any] = []
    memo: dict[int, object] = {}
    found: dict[str, int] = {}
    for opcode, given, _ in pickletools.genops(data):
        arg: Any = given
        name = opcode.name
        if name in _PUTS or name == "MEMOIZE":
            memo[len(memo) if name == "MEMOIZE" else int(arg)] = stack[-1]
            continue
        taken: list[object] = []
        for kind in reversed(opcode.stack_before):
            if kind is pickletools.stackslice:
                continue
            if kind is pickletools.markobject:
                while (one := stack.pop()) is not pickletools.markobject:
                    taken.append(one)
            else:
                taken.append(stack.pop())
        taken.reverse()
        if name == "BINPERSID":
            _note(taken[0], found)
        for kind in opcode.stack_after:
            if kind is pickletools.markobject:
                stack.append(kind)
            elif name in _GETS:
                stack.append(memo.get(int(arg)))
            elif name.startswith("TUPLE"):
                stack.append(tuple(taken))
            else:
                # STACK_GLOBAL: the module and the name are on the stack.
                stack.append(" ".join(map(str, taken)) if name == "STACK_GLOBAL" else arg)
    return found


def _note(saved: object, found: dict[str, int]) -> None:
    """Note the element size of a storage, by the name of its class."""
    match saved:
        case ("storage", str(kind), str(key), *_):
            dtype = STORAGES.get(kind.rpartition(" ")[2].removesuffix("Storage"))
            found[key] = DTYPES[dtype].itemsize if dtype else 1


def dump(obj: object, stream: BinaryIO) -> None:
    """Write `obj` to a binary stream. Where a storage is on another device, it is loaded to the CPU."""
    saver = Saver(views=True)
    pickled = Writer(saver.special, objects.write).finish(obj)
    keys = sorted(str(i) for i in range(len(saver.storages)))
    stream.write(MAGIC)
    for value in (_VERSION, _MACHINE):
        stream.write(pickle.dumps(value, 2))
    stream.write(pickled)
    stream.write(pickle.dumps(keys, 2))
    for key in keys:
        storage = saver.storages[int(key)]
        data = storage_bytes(storage)
        stream.write(struct.pack("<q", data.nbytes // saver.width_of(storage)))
        stream.write(data)
