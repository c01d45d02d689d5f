"""The part of Python's pickle format that PyTorch's weight files use, without Python's pickle.

`read` is an interpreter of its own: it knows containers, numbers and text, and calls only functions
that its caller lists by name. No name in a file is ever imported. `write` writes protocol 2, which
`torch.load(weights_only=True)` reads. Standard library only.
"""

from __future__ import annotations

import pickletools
import struct
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Mapping
from typing import Any

# Bounds the recursion, for a structure that contains itself as for a hostile file.
MAX_DEPTH = 100
_MAX_KEY_PARTS = 100

Refuse = Callable[[str], Exception]


class Name:
    """A name in a file that stands for no value by itself, such as a type of storage."""

    __slots__ = ("text",)

    def __init__(self, text: str) -> None:
        self.text = text

    def __repr__(self) -> str:
        return self.text


class Call(Name):
    """A name in a file that may be called; what is called is ours."""

    __slots__ = ("function",)

    def __init__(self, text: str, function: Callable[..., object]) -> None:
        super().__init__(text)
        self.function = function


class Given(Name):
    """A name in a file that the user allows: it stands for his class or function, which may be called."""

    __slots__ = ("value",)

    def __init__(self, text: str, value: object) -> None:
        super().__init__(text)
        self.value = value


class _Mark:
    pass


_MARK = _Mark()
_CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False}
_VALUES = frozenset((
    "BININT", "BININT1", "BININT2", "LONG1", "LONG4", "BINFLOAT", "BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8",
    "BINBYTES", "SHORT_BINBYTES", "BINBYTES8", "BINSTRING", "SHORT_BINSTRING", "INT", "LONG", "FLOAT", "UNICODE",
))  # fmt: skip
# What is written as it is; a program's own classes of numbers and containers are objects like others.
_PLAIN_TYPES = frozenset(
    (type(None), bool, int, float, str, bytes, list, tuple, set, dict, OrderedDict)
)
_NUMBER_MODULES = ("numpy", "webtorch")
_EMPTY: dict[str, Callable[[], object]] = {"EMPTY_DICT": dict, "EMPTY_LIST": list, "EMPTY_SET": set}
_TUPLES = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}


def _bytes_of(text: object, encoding: object) -> bytes:
    # How protocol 2 spells bytes.
    if not isinstance(text, str) or encoding != "latin1":
        raise TypeError("only text in latin1 is bytes")
    return text.encode("latin1")


def _ordered(*pairs: Iterable[tuple[object, object]]) -> OrderedDict[object, object]:
    out: OrderedDict[object, object] = OrderedDict()
    for key, value in pairs[0] if pairs else ():
        out[_key(key)] = value
    return out


def _counter(*counts: Any) -> Counter[object]:
    return Counter({_key(k): v for k, v in (counts[0] if counts else {}).items()})


def _bytearray(*data: Any) -> bytearray:
    if len(data) == 2 and data[1] == "latin-1":
        # How protocol 2 spells it.
        return bytearray(_bytes_of(data[0], "latin1"))
    # Of bytes only: a number would be a size.
    if data and not isinstance(data[0], bytes):
        raise TypeError("a bytearray is made of bytes")
    return bytearray(data[0]) if data else bytearray()


def _complex(real: object, imag: object) -> complex:
    if not (isinstance(real, float) and isinstance(imag, float)):
        raise TypeError("a complex number is made of two floats")
    return complex(real, imag)


def _set(items: Iterable[object] = ()) -> set[object]:
    return {_key(x) for x in items}


PLAIN: dict[str, Name] = {
    c.text: c
    for c in (
        Call("collections.OrderedDict", _ordered),
        Call("collections.Counter", _counter),
        Call("builtins.set", _set),
        Call("builtins.bytearray", _bytearray),
        Call("builtins.complex", _complex),
        Call("_codecs.encode", _bytes_of),
    )
}
_BLOCKED = ("sys", "os", "posix", "nt")
_PYTHON_2 = {"__builtin__": "builtins", "copy_reg": "copyreg"}


def _key(value: object) -> object:
    """Return a dict's key or a set's item. Hashing a tuple of tuples of ... takes time without end,
    so only small ones are keys.
    """
    count = 0
    pending = [value]
    while pending:
        count += 1
        item = pending.pop()
        if isinstance(item, tuple):
            pending += item
        elif isinstance(item, Name) or item.__hash__ is None:
            raise TypeError(f"{type(item).__name__} is no key")
        if count > _MAX_KEY_PARTS:
            raise TypeError("a key has more than 100 parts")
    return value


_STUMBLES = (
    ValueError, IndexError, KeyError, TypeError, AttributeError, OverflowError, RecursionError, UnicodeDecodeError,
    UnicodeEncodeError, struct.error,
)  # fmt: skip


def read(
    data: bytes,
    names: Mapping[str, object],
    persistent: Callable[[object], object],
    build: Callable[[object, object], bool],
    refuse: Refuse,
    encoding: str = "utf-8",
) -> object:
    """Return the value that `data` describes.

    names: what each "module.name" of the file stands for, beside PLAIN: a `Call`, or a value.
    persistent: gives what a persistent id of the file stands for (a storage).
    build: sets the state of an object, and returns whether it could.
    refuse: makes the exception for a text that says what is wrong.
    encoding: of texts that Python 2 wrote; "bytes" for bytes.
    """
    machine = _Machine({**PLAIN, **names}, persistent, build, refuse)
    machine.encoding = encoding
    try:
        return machine.run(data)
    except Exception as error:
        # What the interpreter stumbled over; not what a function of the caller said on purpose.
        if type(error) not in _STUMBLES:
            raise
        raise refuse(f"its pickled part is damaged: {error!r:.200}") from error


class _Machine:
    encoding = "utf-8"

    def __init__(
        self,
        names: Mapping[str, object],
        persistent: Callable[[object], object],
        build: Callable[[object, object], bool],
        refuse: Refuse,
    ) -> None:
        self.names, self.persistent, self.build, self.refuse = names, persistent, build, refuse
        self.given = [x.value for x in names.values() if isinstance(x, Given)]
        self.stack: list[Any] = []
        self.memo: dict[int, object] = {}

    def run(self, data: bytes) -> object:
        """Run a pickle's opcodes; return the value that is left at STOP."""
        push, stack = self.stack.append, self.stack
        for opcode, argument, _ in pickletools.genops(data):
            arg: Any = argument
            name = opcode.name
            if name in _VALUES:
                push(self.text(arg.encode("latin1")) if "STRING" in name else arg)
            elif name in _CONSTANTS:
                push(_CONSTANTS[name])
            elif name in _EMPTY:
                push(_EMPTY[name]())
            elif name == "MARK":
                push(_MARK)
            elif name in ("BINPUT", "LONG_BINPUT", "PUT"):
                self.memo[int(arg)] = stack[-1]
            elif name == "MEMOIZE":
                self.memo[len(self.memo)] = stack[-1]
            elif name in ("BINGET", "LONG_BINGET", "GET"):
                push(self.memo[int(arg)])
            elif name == "EMPTY_TUPLE":
                push(())
            elif name in _TUPLES:
                count = _TUPLES[name]
                items = [self.pop() for _ in range(count)]
                push(tuple(items[::-1]))
            elif name == "TUPLE":
                push(tuple(self.since_mark()))
            elif name in ("LIST", "DICT"):
                items = self.since_mark()
                push(items if name == "LIST" else self.fill({}, items))
            elif name in ("APPEND", "APPENDS"):
                items = [self.pop()] if name == "APPEND" else self.since_mark()
                self.plain(items)
                self.expect(list).extend(items)
            elif name in ("SETITEM", "SETITEMS"):
                items = [self.pop(), self.pop()][::-1] if name == "SETITEM" else self.since_mark()
                self.fill(self.expect(dict), items)
            elif name == "ADDITEMS":
                items = self.since_mark()
                self.expect(set).update(_key(x) for x in items)
            elif name in ("GLOBAL", "STACK_GLOBAL"):
                push(self.named(name, arg))
            elif name in ("REDUCE", "NEWOBJ"):
                push(self.call(name))
            elif name == "BUILD":
                state = self.pop()
                if not self.build(stack[-1], state):
                    raise self.refuse(f"it sets the state of {type(stack[-1]).__name__}")
            elif name == "BINPERSID":
                push(self.persistent(self.pop()))
            elif name == "POP":
                self.pop()
            elif name == "STOP":
                value = self.pop()
                if stack:
                    raise ValueError("values are left over")
                self.plain([value])
                return value
            elif name not in ("PROTO", "FRAME"):
                raise self.refuse(f"it asks for {name}, which weights do not need")
        raise ValueError("it does not end")

    def text(self, data: bytes) -> str | bytes:
        """Return a text that Python 2 wrote."""
        return data if self.encoding == "bytes" else data.decode(self.encoding)

    def pop(self) -> Any:
        """Take the top of the stack. Raises ValueError for a mark."""
        value = self.stack.pop()
        if value is _MARK:
            raise ValueError("a mark is used as a value")
        return value

    def since_mark(self) -> list[object]:
        """Take what lies above the last mark, and the mark. Raises ValueError without one."""
        stack = self.stack
        at = len(stack) - 1
        while stack[at] is not _MARK:
            at -= 1
            if at < 0:
                raise ValueError("no mark")
        items = stack[at + 1 :]
        del stack[at:]
        return items

    def expect(self, kind: type[object]) -> Any:
        """Return the top of the stack, which stays. Raises TypeError unless it is a `kind`."""
        if not isinstance(self.stack[-1], kind):
            raise TypeError(f"a {kind.__name__} was expected, not {type(self.stack[-1]).__name__}")
        return self.stack[-1]

    def plain(self, items: list[object]) -> None:
        """Refuse items that are names themselves: code, not data."""
        for item in items:
            if isinstance(item, Name):
                raise self.refuse(f"it holds {item.text} itself, which is code, not data")

    def fill(self, into: Any, items: list[object]) -> Any:
        """Put keys and values, one after the other, into a dict; return it."""
        if len(items) % 2:
            raise ValueError("a key has no value")
        self.plain(items[1::2])
        for key, value in zip(items[::2], items[1::2], strict=True):
            into[_key(key)] = value
        return into

    def named(self, opcode: str, arg: Any) -> object:
        """Return what a global name stands for. Refuses names that are not allowed."""
        if opcode == "GLOBAL":
            # pickletools joins the two by a blank; a name with a blank in it is not found.
            module, _, name = arg.partition(" ")
        else:
            name, module = self.pop(), self.pop()
        full = f"{_PYTHON_2.get(module, module)}.{name}"
        if module in _BLOCKED:
            raise self.refuse(
                f"Trying to load unsupported GLOBAL {full} whose module {module} is blocked."
            )
        if full not in self.names:
            shown = full.removeprefix("builtins.")
            raise self.refuse(
                f"Unsupported global: GLOBAL {shown} was not an allowed global by default. Please use "
                f"`torch.serialization.add_safe_globals([{shown}])` or the "
                f"`torch.serialization.safe_globals([{shown}])` context manager to allowlist this global if you "
                f"trust this class/function.\n\nIt holds an object of {full!s:.200}, and making that would run code: "
                "with weights_only=True only tensors, numbers, text and containers of them are read, and "
                "classes given to torch.serialization.add_safe_globals. Where you trust the file, "
                "load it with weights_only=False"
            )
        found = self.names[full]
        return found.value if isinstance(found, Given) else found

    def call(self, opcode: str) -> object:
        """Return the result of an allowed function, or a new object of an allowed class."""
        args, what = self.pop(), self.pop()
        given = any(what is x for x in self.given)
        if not (given or isinstance(what, Call)) or not isinstance(args, tuple):
            raise self.refuse(f"it calls {what!r:.100}")
        if not given:
            return what.function(*args)
        if opcode == "NEWOBJ" and isinstance(what, type):
            made: object = what.__new__(what, *args)
            return made
        return what(*args)


class Writer:
    """Writes a value as a pickle of protocol 2.

    `special` is asked first for each value: it returns None for one that it does not know, else a
    function that writes it through this writer. `other(writer, value, path)` writes what is neither
    plain data nor special.
    """

    def __init__(
        self,
        special: Callable[[object], Callable[[Writer], None] | None],
        other: Callable[[Writer, object, tuple[object, ...]], None],
    ) -> None:
        self.special, self.other = special, other
        self.out = bytearray(b"\x80\x02")
        # The values are kept, so that no other gets their id.
        self.memo: dict[int, tuple[int, object]] = {}

    def finish(self, value: object) -> bytes:
        """Return the pickle of `value`."""
        self.value(value, ())
        return bytes(self.out + b".")

    def remember(self, value: object) -> None:
        """Note that `value` has been written: its next occurrence refers to this one."""
        index = len(self.memo)
        self.memo[id(value)] = (index, value)
        self.out += b"r" + struct.pack("<I", index)

    def name(self, module: str, name: str) -> None:
        """Write the name of a class or function."""
        self.out += f"c{module}\n{name}\n".encode()

    def items(self, items: tuple[object, ...], path: tuple[object, ...] = ()) -> None:
        """Write a tuple, which is not noted as written."""
        if not items:
            self.out += b")"
            return
        if len(items) > 3:
            self.out += b"("
        for i, item in enumerate(items):
            self.value(item, (*path, i))
        self.out += {1: b"\x85", 2: b"\x86", 3: b"\x87"}.get(len(items), b"t")

    def value(self, value: object, path: tuple[object, ...] = ()) -> None:
        """Write any value."""
        if len(path) > MAX_DEPTH:
            raise ValueError(f"save: obj is nested deeper than {MAX_DEPTH} levels")
        if id(value) in self.memo:
            self.out += b"j" + struct.pack("<I", self.memo[id(value)][0])
            return
        write = self.special(value)
        if write is not None:
            write(self)
            return
        kind = type(value)
        if not (kind in _PLAIN_TYPES or kind.__module__.partition(".")[0] in _NUMBER_MODULES):
            self.other(self, value, path)
            return
        match value:
            case None:
                self.out += b"N"
            case bool():
                self.out += b"\x88" if value else b"\x89"
            # Subclasses (numpy.float64) are saved as the plain number or string.
            case int():
                self.integer(int(value))
            case float():
                self.out += b"G" + struct.pack(">d", value)
            case str():
                self.text(str.__str__(value))
            case bytes():
                self.name("_codecs", "encode")
                self.items((value.decode("latin1"), "latin1"))
                self.out += b"R"
            case list():
                self.out += b"]"
                self.remember(value)
                if value:
                    self.out += b"("
                    for i, item in enumerate(value):
                        self.value(item, (*path, i))
                    self.out += b"e"
            case tuple() if kind is tuple:
                self.items(value, path)
            case set():
                self.name("builtins", "set")
                self.items((list(value),), path)
                self.out += b"R"
            case dict():
                self.mapping(value, path)
            case _:
                self.other(self, value, path)

    def integer(self, value: int) -> None:
        """Write an int of any size."""
        if -(2**31) <= value < 2**31:
            self.out += b"J" + struct.pack("<i", value)
            return
        data = value.to_bytes(value.bit_length() // 8 + 1, "little", signed=True)
        if len(data) > 255:
            raise OverflowError(
                f"save: an integer takes {len(data)} bytes, PyTorch reads at most 255; save it as text"
            )
        self.out += b"\x8a" + bytes([len(data)]) + data

    def text(self, value: str) -> None:
        """Write text."""
        data = value.encode("utf-8", "surrogatepass")
        self.out += b"X" + struct.pack("<I", len(data)) + data

    def mapping(self, value: dict[object, object], path: tuple[object, ...]) -> None:
        """Write a dict, with the attributes of an OrderedDict (a state_dict's `_metadata`)."""
        ordered = isinstance(value, OrderedDict)
        if ordered:
            self.name("collections", "OrderedDict")
            self.out += b")R"
        else:
            self.out += b"}"
        self.remember(value)
        if value:
            self.out += b"("
            for key, item in value.items():
                self.value(key, (*path, key))
                self.value(item, (*path, key))
            self.out += b"u"
        if ordered and vars(value):
            self.value(dict(vars(value)), path)
            self.out += b"b"
