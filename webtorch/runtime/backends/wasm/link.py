"""Joins relocatable WebAssembly objects, as LLVM writes them, into one module. Standard library only.

The module imports its memory ("env" "memory") and exports the wanted functions and its stack pointer:
threads are instances over one memory, each with a stack of its own. The format is that of
https://webassembly.github.io/spec/core/binary and of
https://github.com/WebAssembly/tool-conventions/blob/main/Linking.md.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

_MAGIC = b"\0asm\x01\0\0\0"
_TYPE, _IMPORT, _FUNCTION, _GLOBAL, _EXPORT, _CODE, _DATA = 1, 2, 3, 6, 7, 10, 11
_I32, _F32, _F64 = 0x7F, 0x7D, 0x7C
_UNDEFINED, _EXPLICIT_NAME = 0x10, 0x40
# Kinds of symbols, and of relocations.
_IS_FUNCTION, _IS_DATA, _IS_GLOBAL, _IS_SECTION, _IS_TAG, _IS_TABLE = range(6)
_FUNCTION_INDEX, _ADDRESS, _SIGNED_ADDRESS, _ADDRESS_WORD, _TYPE_INDEX, _GLOBAL_INDEX = (
    0, 3, 4, 5, 6, 7,
)  # fmt: skip
_WITH_ADDEND = (_ADDRESS, _SIGNED_ADDRESS, _ADDRESS_WORD)
STACK_POINTER = "__stack_pointer"
PAGE = 1 << 16


class LinkError(Exception):
    """An object that cannot be joined: it uses what kernels have no need of."""


def unsigned(value: int, width: int = 0) -> bytes:
    """Return `value` as LEB128, of `width` bytes if that is given."""
    out = bytearray()
    while True:
        byte, value = value & 0x7F, value >> 7
        more = value or len(out) + 1 < width
        out.append(byte | (0x80 if more else 0))
        if not more:
            return bytes(out)


def _signed(value: int, width: int) -> bytes:
    out = bytearray((value >> (7 * i)) & 0x7F | 0x80 for i in range(width))
    out[-1] &= 0x7F
    return bytes(out)


def _text(name: str) -> bytes:
    data = name.encode()
    return unsigned(len(data)) + data


def _vector(items: Sequence[bytes]) -> bytes:
    return unsigned(len(items)) + b"".join(items)


class _Reader:
    def __init__(self, data: bytes, at: int = 0) -> None:
        self.data, self.at = data, at

    def byte(self) -> int:
        """Return the next byte."""
        self.at += 1
        return self.data[self.at - 1]

    def number(self) -> int:
        """Return the next unsigned LEB128 number."""
        value = shift = 0
        while True:
            byte = self.byte()
            value |= (byte & 0x7F) << shift
            shift += 7
            if not byte & 0x80:
                return value

    def signed(self) -> int:
        """Return the next signed LEB128 number."""
        start = self.at
        value = self.number()
        bits = 7 * (self.at - start)
        return value - (1 << bits) if value >> (bits - 1) else value

    def take(self, count: int) -> bytes:
        """Return the next `count` bytes."""
        self.at += count
        return self.data[self.at - count : self.at]

    def text(self) -> str:
        """Return the next name: its length, then UTF-8."""
        return self.take(self.number()).decode()


@dataclass(slots=True)
class _Symbol:
    kind: int
    name: str
    defined: bool
    # The number in its index space, or of the segment of data.
    index: int = 0
    offset: int = 0


@dataclass(slots=True)
class _Relocation:
    kind: int
    offset: int
    index: int
    addend: int


@dataclass(slots=True)
class _Object:
    """What is of use in one object."""

    types: list[bytes] = field(default_factory=list)
    # Types of imported functions and their names, then the types of the object's own.
    imported: list[int] = field(default_factory=list)
    names: list[str] = field(default_factory=list)
    functions: list[int] = field(default_factory=list)
    code: bytearray = field(default_factory=bytearray)
    data: bytearray = field(default_factory=bytearray)
    # (first byte in the section, length) of each segment, and its alignment.
    segments: list[tuple[int, int]] = field(default_factory=list)
    aligned: list[int] = field(default_factory=list)
    symbols: list[_Symbol] = field(default_factory=list)
    relocations: dict[int, list[_Relocation]] = field(default_factory=dict)
    places: list[int] = field(default_factory=list)


def _parse(data: bytes) -> _Object:
    if data[:8] != _MAGIC:
        raise LinkError("this is no WebAssembly object")
    out = _Object()
    reader = _Reader(data, 8)
    sections: list[int] = []
    while reader.at < len(data):
        kind, size = reader.byte(), reader.number()
        part = _Reader(reader.take(size))
        sections.append(kind)
        if kind == _TYPE:
            for _ in range(part.number()):
                start = part.at
                part.byte()
                part.take(part.number())
                part.take(part.number())
                out.types.append(part.data[start : part.at])
        elif kind == _IMPORT:
            _imports(part, out)
        elif kind == _FUNCTION:
            out.functions = [part.number() for _ in range(part.number())]
        elif kind == _CODE:
            out.code = bytearray(part.data)
        elif kind == _DATA:
            out.data = bytearray(part.data)
            for _ in range(part.number()):
                # An active segment of memory 0: its place is a constant expression that is not used.
                if part.number() != 0:
                    raise LinkError("a segment of data is not active")
                while part.byte() != 0x0B:
                    pass
                length = part.number()
                out.segments.append((part.at, length))
                part.take(length)
        elif kind == 0:
            name = part.text()
            if name == "linking":
                _linking(part, out)
            elif name.startswith("reloc."):
                section = sections[part.number()]
                out.relocations[section] = [_relocation(part) for _ in range(part.number())]
    return out


def _imports(part: _Reader, out: _Object) -> None:
    for _ in range(part.number()):
        part.text()
        name = part.text()
        kind = part.byte()
        if kind == 0:
            out.imported.append(part.number())
            out.names.append(name)
        elif kind == 1:
            part.byte()
            _limits(part)
        elif kind == 2:
            _limits(part)
        else:
            part.take(2)


def _limits(part: _Reader) -> None:
    flags = part.number()
    part.number()
    if flags & 1:
        part.number()


def _relocation(part: _Reader) -> _Relocation:
    kind, offset, index = part.byte(), part.number(), part.number()
    return _Relocation(kind, offset, index, part.signed() if kind in _WITH_ADDEND else 0)


def _linking(part: _Reader, out: _Object) -> None:
    if part.number() != 2:
        raise LinkError("the object has another version of the linking section")
    while part.at < len(part.data):
        kind, size = part.byte(), part.number()
        inner = _Reader(part.take(size))
        if kind == 8:
            for _ in range(inner.number()):
                out.symbols.append(_symbol(inner))
        elif kind == 5:
            for _ in range(inner.number()):
                inner.text()
                out.aligned.append(inner.number())
                inner.number()


def _symbol(part: _Reader) -> _Symbol:
    kind, flags = part.byte(), part.number()
    defined = not flags & _UNDEFINED
    if kind == _IS_DATA:
        name = part.text()
        if not defined:
            return _Symbol(kind, name, False)
        index, offset = part.number(), part.number()
        part.number()
        return _Symbol(kind, name, True, index, offset)
    index = part.number()
    named = kind not in (_IS_SECTION,) and (defined or flags & _EXPLICIT_NAME)
    return _Symbol(kind, part.text() if named else "", defined, index)


@dataclass(frozen=True, slots=True)
class Module:
    """A module: its bytes, the functions that it imports from "env", and where its data end."""

    code: bytes
    imports: tuple[str, ...]
    end: int
    # The byte of the import of the memory that says whether it is shared: 3, or 1 where it is not.
    shared_at: int


def link(objects: Sequence[bytes], exports: Mapping[str, str], base: int, pages: int) -> Module:
    """Return one module of `objects`, which exports functions: `exports` gives the symbol of each name.

    Constants of the objects lie from address `base` on; the memory that the module is given has at least
    `pages` pages of 64 KiB and may be shared. Raises LinkError where a function that is called is in none of
    the objects and is not one of the few that JavaScript has (fmod), and for what kernels never use.
    """
    parsed = [_parse(data) for data in objects]
    for item in parsed:
        _check(item)
    types: dict[bytes, int] = {}
    for item in parsed:
        for text in item.types:
            types.setdefault(text, len(types))
    wanted = _from_outside(parsed)
    numbers = _numbers(parsed, list(wanted))
    end = _place(parsed, base)
    addresses = {
        s.name: o.places[s.index] + s.offset
        for o in parsed
        for s in o.symbols
        if s.kind == _IS_DATA and s.defined
    }
    bodies, segments, functions = [], [], []
    for item in parsed:
        for kind, content in ((_CODE, item.code), (_DATA, item.data)):
            for relocation in item.relocations.get(kind, ()):
                _apply(relocation, content, item, numbers, addresses, types)
        reader = _Reader(bytes(item.code))
        if item.code:
            reader.number()
        bodies.append(bytes(item.code[reader.at :]))
        functions += [unsigned(types[item.types[t]]) for t in item.functions]
        for (at, length), place in zip(item.segments, item.places, strict=True):
            constants = bytes(item.data[at : at + length])
            segments.append(b"\0\x41" + _signed(place, 5) + b"\x0b" + unsigned(length) + constants)

    imported = [_text("env") + _text(n) + b"\0" + unsigned(types[t]) for n, t in wanted.items()]
    memory = unsigned(1 + len(imported)) + _text("env") + _text("memory") + b"\x02"
    # A shared memory must say how large it may become.
    limits = b"\x03" + unsigned(pages) + unsigned(PAGE)
    names = [_text(name) + b"\0" + unsigned(numbers[symbol]) for name, symbol in exports.items()]
    before = _MAGIC + _section(_TYPE, _vector(list(types)))
    import_section = _section(_IMPORT, memory + limits + b"".join(imported))
    shared_at = len(before) + import_section.index(memory) + len(memory)
    sections = [
        import_section,
        _section(_FUNCTION, _vector(functions)),
        _section(_GLOBAL, _vector([bytes([_I32, 1, 0x41, 0, 0x0B])])),
        _section(_EXPORT, _vector([*names, _text(STACK_POINTER) + b"\x03\0"])),
        _section(_CODE, unsigned(len(functions)) + b"".join(bodies)),
    ]
    if segments:
        sections.append(_section(_DATA, _vector(segments)))
    return Module(before + b"".join(sections), tuple(wanted), end, shared_at)


def _from_outside(parsed: Sequence[_Object]) -> dict[str, bytes]:
    """Return names and types of the functions that are called and are in none of the objects."""
    wanted = {
        s.name: o.types[o.imported[s.index]]
        for o in parsed
        for s in o.symbols
        if s.kind == _IS_FUNCTION and not s.defined
    }
    own = {s.name for o in parsed for s in o.symbols if s.kind == _IS_FUNCTION and s.defined}
    imports = {name: kind for name, kind in wanted.items() if name not in own}
    missing = [name for name in imports if name not in JAVASCRIPT]
    if missing:
        raise LinkError(f"no such function in WebAssembly: {', '.join(missing)}")
    return imports


def _numbers(parsed: Sequence[_Object], imports: Sequence[str]) -> dict[str, int]:
    """Return the number of each function in the module, where imported ones come first."""
    numbers = {name: i for i, name in enumerate(imports)}
    count = len(imports)
    for item in parsed:
        for symbol in item.symbols:
            if symbol.kind == _IS_FUNCTION and symbol.defined:
                numbers[symbol.name] = count + symbol.index - len(item.imported)
        count += len(item.functions)
    return numbers


def _place(parsed: Sequence[_Object], base: int) -> int:
    """Give constants their addresses, from `base` on, and return where they end."""
    end = base
    for item in parsed:
        for (_, length), alignment in zip(item.segments, item.aligned, strict=True):
            step = 1 << alignment
            end = -(-end // step) * step
            item.places.append(end)
            end += length
    return end


def _section(kind: int, content: bytes) -> bytes:
    return bytes([kind]) + unsigned(len(content)) + content


def with_section(code: bytes, name: str, data: bytes) -> bytes:
    """Return a module with a section of its own, which does nothing and can be read back."""
    content = _text(name) + data
    return code + b"\0" + unsigned(len(content)) + content


# What the page can give a module: the remainder of JavaScript is C's fmod, exactly.
JAVASCRIPT = ("fmod", "fmodf")


def _check(item: _Object) -> None:
    """Name what is imported, and refuse what kernels never use."""
    for symbol in item.symbols:
        if symbol.kind == _IS_FUNCTION and not symbol.defined:
            symbol.name = symbol.name or item.names[symbol.index]
        if symbol.kind in (_IS_TABLE, _IS_TAG):
            raise LinkError("an object uses tables or exceptions")
        if symbol.kind == _IS_GLOBAL and symbol.defined:
            raise LinkError(f"an object has the global variable {symbol.name}")


def _apply(
    r: _Relocation,
    content: bytearray,
    item: _Object,
    numbers: dict[str, int],
    addresses: dict[str, int],
    types: dict[bytes, int],
) -> None:
    def put(data: bytes) -> None:
        """Write bytes at the relocation."""
        content[r.offset : r.offset + len(data)] = data

    if r.kind == _TYPE_INDEX:
        put(unsigned(types[item.types[r.index]], 5))
        return
    symbol = item.symbols[r.index]
    if r.kind == _FUNCTION_INDEX:
        put(unsigned(numbers[symbol.name], 5))
    elif r.kind == _GLOBAL_INDEX:
        # The only variable is the stack pointer.
        put(unsigned(0, 5))
    elif r.kind in _WITH_ADDEND and symbol.name in addresses:
        address = addresses[symbol.name] + r.addend
        if r.kind == _ADDRESS_WORD:
            put(address.to_bytes(4, "little"))
        else:
            put(unsigned(address, 5) if r.kind == _ADDRESS else _signed(address, 5))
    else:
        raise LinkError(f"an object refers to {symbol.name or 'something'} in a way not known here")
