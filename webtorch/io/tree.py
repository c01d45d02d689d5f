"""A checkpoint's structure as JSON beside its tensors, so that no file ever holds code.

`encode` takes nested dicts, lists, tuples and scalars apart into named tensors and a text; `decode`
puts them together again. Tensors are named by their path ("model.fc.weight"), so that any reader of
safetensors finds them; the text goes into the file's metadata and adds what names cannot say.

JSON stands for itself, except that an object with a key "$..." is one of:

    {"$dict": [[key, value], ...]}   a dict whose keys are not all plain strings
    {"$tuple": [value, ...]}         a tuple
    {"$float": "nan"}                a float that JSON lacks: nan, inf, -inf
    {"$dtype": "float32"}            an element type
    {"$tensor": name, ...}           a tensor; the other fields are those of TensorRef

May import ir and the safetensors format. What a tensor is, the caller says.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Collection, Hashable
from dataclasses import dataclass, field
from typing import NoReturn

from webtorch.io.safetensors import METADATA_KEY, SafetensorError
from webtorch.ir import dtype as dtypes

VERSION = 1
# Bounds the recursion, for a structure that contains itself as for a hostile file.
MAX_DEPTH = 100
_DTYPE_NAMES = frozenset(dtype.name for dtype in (*dtypes.ALL, *dtypes.COMPLEX))


@dataclass(frozen=True, slots=True)
class Leaf:
    """What is to be remembered of a tensor besides its bytes."""

    # Equal for tensors that show the same memory in the same way: they are loaded as one tensor.
    identity: Hashable
    device: str
    requires_grad: bool = False
    parameter: bool = False


@dataclass(frozen=True, slots=True)
class TensorRef:
    """A tensor in the text: the name of its bytes in the file and what they do not say."""

    name: str
    device: str = "cpu"
    requires_grad: bool = False
    parameter: bool = False
    # A second name under which the same bytes are in the file, for readers that look for it there.
    copy: str | None = None


@dataclass(slots=True)
class Encoded:
    """Tensors by name, and the text; no text where the tensors are a plain dict by themselves."""

    tensors: dict[str, object] = field(default_factory=dict)
    text: str | None = None


def encode(value: object, leaf_of: Callable[[object], Leaf | None]) -> Encoded:
    """Take `value` apart. `leaf_of` returns what to remember of a tensor, None for anything else.

    Raises TypeError, naming the place, for a type that the format lacks, ValueError for a structure
    nested deeper than MAX_DEPTH, as one is that contains itself.
    """
    writer = _Writer(leaf_of)
    tree = writer.node(value, ())
    plain = isinstance(value, dict) and tree == {key: {"$tensor": key} for key in value}
    if plain:
        return Encoded(writer.tensors)
    text = json.dumps({"version": VERSION, "tree": tree}, separators=(",", ":"), allow_nan=False)
    return Encoded(writer.tensors, text)


class _Writer:
    def __init__(self, leaf_of: Callable[[object], Leaf | None]) -> None:
        self.leaf_of = leaf_of
        self.tensors: dict[str, object] = {}
        self.first: dict[Leaf, str] = {}

    def node(self, value: object, path: tuple[object, ...]) -> object:
        """Return a value as JSON has it; tensors are noted in `tensors`.

        Raises TypeError for what no checkpoint holds, ValueError below MAX_DEPTH levels.
        """
        if len(path) > MAX_DEPTH:
            raise ValueError(
                f"save: {_place(path[:4])}... is nested deeper than {MAX_DEPTH} levels; does it "
                "contain itself?"
            )
        leaf = self.leaf_of(value)
        if leaf is not None:
            return self.tensor(value, leaf, path)
        match value:
            case None | bool():
                return value
            # Subclasses (numpy.float64, an IntEnum) are saved as the plain number or string.
            case int():
                return int(value)
            case float():
                return float(value) if math.isfinite(value) else {"$float": str(float(value))}
            case str():
                return str.__str__(value)
            case list():
                return [self.node(item, (*path, i)) for i, item in enumerate(value)]
            case tuple() if not hasattr(value, "_fields"):
                return {"$tuple": [self.node(item, (*path, i)) for i, item in enumerate(value)]}
            case dict():
                return self.mapping(value, path)
            case dtypes.DType():
                return {"$dtype": value.name}
        raise refuse(value, path)

    def mapping(self, value: dict[object, object], path: tuple[object, ...]) -> object:
        """Return a dict as a JSON object, or as "$dict" pairs where a key is no plain string."""
        if all(type(key) is str and not key.startswith("$") for key in value):
            return {key: self.node(item, (*path, key)) for key, item in value.items()}
        return {
            "$dict": [
                [self.key(key, path), self.node(item, (*path, key))] for key, item in value.items()
            ]
        }

    def key(self, key: object, path: tuple[object, ...]) -> object:
        """Return a key as JSON has it. Raises TypeError for a tensor."""
        if self.leaf_of(key) is None:
            return self.node(key, (*path, key))
        raise TypeError(
            f"save: a key of the dict at {_place(path)} is a tensor; use its name or a number."
        )

    def tensor(self, value: object, leaf: Leaf, path: tuple[object, ...]) -> object:
        """Name a tensor by its path, note it, and return the reference to it."""
        base = name = ".".join(map(str, path)) or "tensor"
        count = 1
        while name in self.tensors or name == METADATA_KEY:
            count += 1
            name = f"{base}#{count}"
        self.tensors[name] = value

        first = self.first.setdefault(leaf, name)
        ref: dict[str, object] = {"$tensor": first}
        if first != name:
            ref["copy"] = name
        if leaf.device != "cpu":
            ref["device"] = leaf.device
        if leaf.requires_grad:
            ref["requires_grad"] = True
        if leaf.parameter:
            ref["parameter"] = True
        return ref


def decode(
    text: str, names: Collection[str], make: Callable[[TensorRef], object], *, file: str
) -> object:
    """Put together what `encode` took apart; `make` returns the tensor of a reference.

    names: the tensors that are in the file; all must be used, since one that the text does not
    know was added or renamed by a program that ignored it.

    Raises SafetensorError, naming `file`, for a text that `encode` cannot have written.
    """
    reader = _Reader(set(names), make, file)
    try:
        root = json.loads(text)
    except (ValueError, RecursionError) as error:
        reader.refuse(f"it is not JSON: {error}")
    match root:
        case {"version": int(version)} if version > VERSION:
            reader.refuse(f"its version is {version}, this webtorch reads {VERSION}; upgrade it")
        case {"version": 1, "tree": tree} if len(root) == 2:
            value = reader.node(tree, 0)
        case _:
            reader.refuse("it must be an object of version and tree")
    unused = sorted(reader.names - reader.used)
    if unused:
        reader.refuse(
            f"it does not mention the tensors {_short(unused)}; was the file edited? "
            "webtorch.io.safetensors.load_file reads tensors alone"
        )
    return value


class _Reader:
    def __init__(self, names: set[str], make: Callable[[TensorRef], object], file: str) -> None:
        self.names = names
        self.make = make
        self.file = file
        self.used: set[str] = set()
        # One tensor for one name, whatever the copies: that is how tied weights stay tied.
        self.made: dict[tuple[str, str, bool, bool], object] = {}

    def refuse(self, message: str) -> NoReturn:
        """Raise SafetensorError, naming the file."""
        raise SafetensorError(f"{self.file}: the checkpoint's structure is damaged: {message}.")

    def node(self, node: object, depth: int) -> object:
        """Return the value that a JSON node stands for."""
        if depth > MAX_DEPTH:
            self.refuse(f"it is nested deeper than {MAX_DEPTH} levels")
        match node:
            case None | bool() | int() | float() | str():
                return node
            case list():
                return [self.node(item, depth + 1) for item in node]
            case {"$tensor": str(name), **rest}:
                return self.tensor(name, rest)
            case {"$tuple": list(items), **rest} if not rest:
                return tuple(self.node(item, depth + 1) for item in items)
            case {"$float": "nan" | "inf" | "-inf" as word, **rest} if not rest:
                return float(word)
            case {"$dtype": str(word), **rest} if not rest and word in _DTYPE_NAMES:
                return dtypes.by_name(word)
            case {"$dict": list(pairs), **rest} if not rest:
                return self.mapping(pairs, depth)
            case dict() if not any(key.startswith("$") for key in node):
                return {key: self.node(item, depth + 1) for key, item in node.items()}
        self.refuse(f"{_short(node)} has no meaning here")

    def mapping(self, pairs: list[object], depth: int) -> dict[object, object]:
        """Return the dict of "$dict" pairs. Refuses keys that occur twice or cannot be hashed."""
        found: dict[object, object] = {}
        for pair in pairs:
            if not (isinstance(pair, list) and len(pair) == 2):
                self.refuse(f"a dict's item is [key, value], not {_short(pair)}")
            key = self.node(pair[0], depth + 1)
            try:
                fresh = key not in found
            except TypeError:
                self.refuse(f"{_short(pair[0])} cannot be a dict's key")
            if not fresh:
                self.refuse(f"the key {_short(pair[0])} occurs twice in a dict")
            found[key] = self.node(pair[1], depth + 1)
        return found

    def tensor(self, name: str, rest: dict[object, object]) -> object:
        """Return the tensor of a reference, the same object for the same name, device and options."""
        copy, device = rest.pop("copy", None), rest.pop("device", "cpu")
        requires_grad, parameter = rest.pop("requires_grad", False), rest.pop("parameter", False)
        if (
            rest
            or not isinstance(copy, str | None)
            or not isinstance(device, str)
            or not isinstance(requires_grad, bool)
            or not isinstance(parameter, bool)
        ):
            self.refuse(f"the description of the tensor {_short(name)} has a wrong field")
        mentioned = {name} if copy is None else {name, copy}
        missing = sorted(mentioned - self.names)
        if missing:
            self.refuse(f"the file has no tensor {_short(missing[0])}")
        self.used |= mentioned
        key = (name, device, requires_grad, parameter)
        if key not in self.made:
            self.made[key] = self.make(TensorRef(name, device, requires_grad, parameter, copy))
        return self.made[key]


def refuse(value: object, path: tuple[object, ...]) -> TypeError:
    """Return the error for a value that no checkpoint holds, at a place in it."""
    return TypeError(
        f"save: cannot save {_type_name(value)} at {_place(path)}. A checkpoint holds "
        f"tensors, numbers, strings, None, lists, tuples and dicts; {_advice(value)}."
    )


def _place(path: tuple[object, ...]) -> str:
    return "obj" + "".join(f"[{_short(key)}]" for key in path)


def _type_name(value: object) -> str:
    kind = type(value)
    return kind.__name__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__name__}"


def _advice(value: object) -> str:
    if hasattr(value, "state_dict"):
        return "save its state_dict()"
    if hasattr(value, "item") and hasattr(value, "tolist"):
        return "convert it with .item() or .tolist()"
    if hasattr(value, "__dict__") and not isinstance(value, type) and not callable(value):
        return "save what it consists of, such as vars() of it"
    return "convert it to these first"


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 100 else text[:97] + "..."
