"""What a function refers to outside its arguments: watched, so that no captured value goes stale.
Floor 5.

A capture runs the function once and is then replayed without Python. What the function reads by
name (closures, globals, attributes of the modules and objects that it reaches) is a place here:
tensors are looked up anew at every replay, other values must be what they were, or the function is
captured again. What the captured call itself changed in a place is changed again by each replay.
"""

from __future__ import annotations

import copy
import dataclasses
import dis
import functools
import io
import pickle
import sys
import sysconfig
from collections import deque
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from types import CellType, CodeType, FunctionType, MemberDescriptorType, MethodType, ModuleType
from typing import Any, Literal

from webtorch.ir.dtype import DType
from webtorch.ir.lines import is_internal
from webtorch.nn import Module
from webtorch.optim import Optimizer
from webtorch.optim.lr_scheduler import LRScheduler
from webtorch.optim.optimizer import Group
from webtorch.tensors.device import device
from webtorch.tensors.tensor import Tensor

# Containers with more items are watched by identity and length only.
_MAX_ITEMS = 512
_MAX_PLACES = 20_000
_PLAIN = (bool, int, float, complex, str, bytes, type(None), DType, device)
# Tables of a module that are watched in a way of their own, or by the registration of hooks.
_TABLES = frozenset(
    ("_parameters", "_buffers", "_modules", "_non_persistent_buffers_set", "_backward_pre_hooks",
     "_backward_hooks", "_forward_hooks", "_forward_hooks_with_kwargs",
     "_forward_hooks_always_called", "_forward_pre_hooks", "_forward_pre_hooks_with_kwargs",
     "_state_dict_hooks", "_state_dict_pre_hooks", "_load_state_dict_pre_hooks",
     "_load_state_dict_post_hooks")
)  # fmt: skip
_LIBRARIES = tuple(
    p for p in {sysconfig.get_path(k) for k in ("stdlib", "purelib", "platlib")} if p
)
# Modules whose functions take a number without leaving a trace of it.
_MATHEMATICS = frozenset(("math", "cmath", "numpy", "statistics", "decimal", "fractions"))
_PACKAGE = __name__.split(".", maxsplit=1)[0]


class _Missing:
    def __repr__(self) -> str:
        return "nothing"


MISSING = _Missing()

Kind = Literal["cell", "item", "attribute"]


class Place:
    """A variable, attribute, key or list element outside a function, and what it held before."""

    __slots__ = ("before", "container", "key", "kind", "name", "slow")

    def __init__(self, container: Any, key: Any, kind: Kind, name: str, slow: bool = False) -> None:
        self.container, self.key, self.kind, self.name = container, key, kind, name
        # Whether it is looked at only after a module or an optimizer was changed.
        self.slow = slow
        self.before = self.get()

    def get(self) -> Any:
        """Return what is there now; MISSING where there is nothing."""
        try:
            if self.kind == "item":
                return self.container[self.key]
            if self.kind == "cell":
                return self.container.cell_contents
            return getattr(self.container, self.key)
        except (KeyError, IndexError, ValueError, AttributeError):
            return MISSING

    def set(self, value: object) -> None:
        """Put a value there."""
        if self.kind == "cell":
            self.container.cell_contents = value
        elif self.kind == "attribute":
            if value is MISSING:
                delattr(self.container, self.key)
            else:
                setattr(self.container, self.key, value)
        elif value is MISSING:
            self.container.pop(self.key, None)
        else:
            self.container[self.key] = value

    def holds(self) -> bool:
        """Whether what is there is what was there before."""
        value = self.get()
        return value is self.before or same(value, self.before)

    def change(self) -> str:
        """Say what is there now instead of what was there before."""
        value = self.get()
        if isinstance(value, (*_PLAIN, _Missing)) and isinstance(self.before, (*_PLAIN, _Missing)):
            return f"`{self.name}` was {self.before!r} and is {value!r}"
        if type(value) is type(self.before):
            return f"`{self.name}` is another {type(value).__name__}"
        return f"`{self.name}` was a {type(self.before).__name__} and is a {type(value).__name__}"


class Option:
    """A number in a group of an optimizer: read anew at each replay, but 0 or not is structure."""

    __slots__ = ("group", "key", "kind", "name", "zero")

    def __init__(self, group: Group, key: str, name: str) -> None:
        self.group, self.key, self.name = group, key, name
        self.kind = self._kind()

    def _kind(self) -> object:
        value = self.group.get(self.key)
        if isinstance(value, tuple):
            return tuple(type(v) for v in value)
        return isinstance(value, (int, float)) and not isinstance(value, bool), value == 0

    def holds(self) -> bool:
        """Whether it is 0 if it was."""
        return bool(self._kind() == self.kind)

    def change(self) -> str:
        """Say what it is now."""
        value = self.group.get(self.key)
        before = "" if isinstance(self.kind, tuple) and self.kind[1:] != (True,) else " and was 0"
        return f"option `{self.name}` is {value}{before or ' and was not'}: 0 or not is another program"


class Length:
    """How many items a container has."""

    __slots__ = ("container", "count", "name")

    def __init__(self, container: Any, name: str) -> None:
        self.container, self.name = container, name
        self.count = len(container)

    def holds(self) -> bool:
        """Whether it has as many as before."""
        return len(self.container) == self.count

    def change(self) -> str:
        """Say how many it has now."""
        count = len(self.container)
        if isinstance(self.container, dict) and count > self.count:
            return f"`{self.name}` has got {list(self.container)[self.count]!r}"
        return f"`{self.name}` had {self.count} items and has {count}"

    def undo(self) -> None:
        """Take away what has been added to a list or dict."""
        if isinstance(self.container, list):
            del self.container[self.count :]
        elif isinstance(self.container, dict):
            for key in list(self.container)[self.count :]:
                del self.container[key]


class Members(Length):
    """What a set holds."""

    __slots__ = ("members",)

    def __init__(self, container: Any, name: str) -> None:
        super().__init__(container, name)
        self.members = set(container)

    def holds(self) -> bool:
        """Whether it holds what it held before."""
        return bool(self.container == self.members)

    def change(self) -> str:
        """Say that it holds something else now."""
        return f"the set `{self.name}` holds other items"


def is_record(x: object) -> bool:
    """Whether a value is an instance of a dataclass, whose fields are taken apart like a dict's."""
    return dataclasses.is_dataclass(x) and not isinstance(x, type)


def attributes(x: object) -> dict[str, object]:
    """Return the attributes of an object, those in slots too."""
    own = getattr(x, "__dict__", None)
    found = dict(own) if isinstance(own, dict) else {}
    for kind in type(x).__mro__:
        slots = vars(kind).get("__slots__", ())
        for slot in (slots,) if isinstance(slots, str) else slots:
            if slot not in ("__dict__", "__weakref__") and hasattr(x, slot):
                found.setdefault(slot, getattr(x, slot))
    return found


def rebuilt(x: Any, part: Callable[[Any], Any]) -> Any:
    """Return a dict, list, tuple or record like `x` whose parts went through `part`; else `x`."""
    if type(x) is dict:
        return {k: part(v) for k, v in x.items()}
    if isinstance(x, dict):
        # With its order, its default, and what else its class knows.
        made = copy.copy(x)
        for key, value in x.items():
            made[key] = part(value)
        return made
    if isinstance(x, tuple) and hasattr(x, "_fields"):
        return type(x)(*[part(v) for v in x])
    if isinstance(x, (list, tuple)):
        return type(x)([part(v) for v in x])
    if is_record(x):
        made = copy.copy(x)
        for key, value in attributes(x).items():
            object.__setattr__(made, key, part(value))
        return made
    return x


def parts_of(x: object) -> list[object] | None:
    """Return what `rebuilt` takes apart; None for anything else."""
    if isinstance(x, dict):
        return list(x.values())
    if isinstance(x, (list, tuple)):
        return list(x)
    return list(attributes(x).values()) if is_record(x) else None


def same(a: object, b: object) -> bool:
    """Whether two plain values are equal, also in type."""
    return type(a) is type(b) and isinstance(a, _PLAIN) and bool(a == b or (a != a and b != b))


class Survey:
    """All places that a function reaches, before it is captured."""

    def __init__(self, function: Callable[..., object], objects: Sequence[object] = ()) -> None:
        """`objects` are to be looked at too: arguments that are neither tensors nor numbers nor
        containers of those, and what an earlier capture of the call has met.
        """
        # Checked at every replay; those of `slow` only after a module or an optimizer was changed.
        self.quick: list[Place] = []
        self.slow: list[Place] = []
        self.options: list[Option] = []
        self.lengths: list[Length] = []
        self.codes: list[CodeType] = []
        self.modules: list[Module] = []
        self.optimizers: list[Optimizer] = []
        # What optimizers hold for their parameters besides tensors.
        self.states: list[Place] = []
        # Whether the code has functions at hand that turn numbers into others, unseen.
        self.calculates = False
        self._seen: set[int] = set()
        self._known: set[tuple[int, object]] = set()
        # What was walked, and its name. Keeps it alive, so that ids stay their own.
        self.reached: list[tuple[object, str]] = []
        self._waiting: deque[tuple[object, str]] = deque()
        # Names of what gives another value each time it is asked.
        self.iterators: list[str] = []
        # Random numbers that are not ours: by name, what draws them and its state.
        self.draws: dict[str, tuple[object, bytes]] = {}
        self._visit(function, "")
        for thing in objects:
            self._visit(thing, type(thing).__name__)
        while self._waiting:
            self._walk(*self._waiting.popleft())

    def module_names(self) -> dict[int, str]:
        """Return the names of the modules, as in `named_modules()` of the first that was met."""
        found: dict[int, str] = {}
        for module in self.modules:
            for name, part in module.named_modules():
                found.setdefault(id(part), name)
        return found

    def named(self, kinds: tuple[type, ...]) -> list[tuple[str, Any]]:
        """Return names and values of what was reached that is an instance of `kinds`."""
        names = {id(place.before): place.name for place in reversed(self.quick)}
        return [
            (names.get(id(value)) or name or type(value).__name__, value)
            for value, name in self.reached
            if isinstance(value, kinds)
        ]

    def drawn(self) -> str:
        """Return the name of what has drawn random numbers since; "" for nothing."""
        changed = (n for n, (source, state) in self.draws.items() if _state(source) != state)
        return next(changed, "")

    def undo(self) -> None:
        """Bind what the call has bound anew to what was there before, and take away what it appended."""
        for length in self.lengths:
            length.undo()
        for place in (*self.quick, *self.slow):
            if not place.holds():
                place.set(place.before)

    def _draw(self, source: object, name: str) -> None:
        """Watch what draws random numbers, and nothing else. (Other threads draw from the same as
        the function does only where it names it.)
        """
        state = _state(source)
        if state:
            self.draws[name] = source, state

    def _visit(self, value: object, name: str) -> None:
        """Walk `value` later, once."""
        if isinstance(value, _PLAIN) or id(value) in self._seen:
            return
        if isinstance(value, Tensor):
            for hooks in (value._hooks, value._post_accumulate):
                for hook in (hooks or {}).values():
                    self._visit(hook, name)
            return
        self._seen.add(id(value))
        self.reached.append((value, name))
        self._waiting.append((value, name))

    def _place(
        self, container: object, key: object, kind: Kind, name: str, *, slow: bool = False
    ) -> None:
        known = (id(container), key)
        if known in self._known or len(self._known) > _MAX_PLACES:
            return
        self._known.add(known)
        place = Place(container, key, kind, name, slow)
        (self.slow if slow else self.quick).append(place)
        self._visit(place.before, name)

    def _walk(self, value: object, name: str) -> None:
        match value:
            case FunctionType():
                self._function(value, name)
            case MethodType():
                self._visit(value.__self__, name or "self")
                self._visit(value.__func__, name)
            case functools.partial():
                for part in (value.func, *value.args, *value.keywords.values()):
                    self._visit(part, name)
            case Module():
                self._module(value, name)
            case Optimizer():
                self._optimizer(value, name)
            case LRScheduler():
                # Its steps are noted while they happen.
                self._visit(value.optimizer, f"{name}.optimizer")
            case dict():
                self._items(value, name, list(value))
            case list() | deque():
                self._items(value, name, range(len(value)))
            case tuple() | set() | frozenset():
                if isinstance(value, set):
                    kind = Members if len(value) <= _MAX_ITEMS else Length
                    self.lengths.append(kind(value, name))
                for i, item in enumerate(value):
                    self._visit(item, f"{name}[{i}]")
            case type():
                if _is_users(value.__module__):
                    self._class(value, name, values=True)
            case Iterator() if not isinstance(value, io.IOBase) and not _is_users(
                type(value).__module__
            ):
                self.iterators.append(name)
            case _:
                self._draw(value, name)
                self._object(value, name)

    def _items(self, container: Any, name: str, keys: Any) -> None:
        self.lengths.append(Length(container, name))
        if len(container) > _MAX_ITEMS:
            return
        for key in keys:
            shown = repr(key) if isinstance(key, _PLAIN) else type(key).__name__
            self._place(container, key, "item", f"{name}[{shown}]")

    def _function(self, function: FunctionType, name: str) -> None:
        inner = getattr(function, "__wrapped__", None)
        if inner is not None:
            self._visit(inner, name)
        if not is_code_of_user(function.__code__):
            # A decorator of this package, such as no_grad: what it wraps is in its closure.
            for cell in function.__closure__ or ():
                found = _contents(cell)
                if isinstance(found, (FunctionType, MethodType, Module, functools.partial)):
                    self._visit(found, name)
            return
        for cell_name, cell in zip(
            function.__code__.co_freevars, function.__closure__ or (), strict=True
        ):
            self.calculates |= _is_mathematics(_contents(cell))
            if cell_name != "__class__":
                self._place(cell, None, "cell", cell_name)
        for key in ("__defaults__", "__kwdefaults__"):
            if getattr(function, key):
                self._place(function, key, "attribute", f"{name or function.__name__}.{key}")
        self._code(function.__code__, function.__globals__)

    def _code(self, code: CodeType, space: dict[str, object]) -> None:
        if id(code) in self._seen:
            return
        self._seen.add(id(code))
        self.codes.append(code)
        self.calculates |= not _MATHEMATICS.isdisjoint(code.co_names)
        for global_name in _global_names(code):
            value = space.get(global_name, MISSING)
            if value is MISSING:
                continue
            self.calculates |= _is_mathematics(value)
            # `random`, `random.random` by its name, `numpy`.
            self._draw(getattr(value, "__self__", value), global_name)
            if isinstance(value, ModuleType):
                self._draw(sys.modules.get(f"{value.__name__}.random"), f"{global_name}.random")
                if _is_users(value.__name__) and getattr(value, "__file__", None):
                    for attribute in code.co_names:
                        if attribute in vars(value):
                            shown = f"{global_name}.{attribute}"
                            self._place(vars(value), attribute, "item", shown)
            elif not _is_library(value):
                self._place(space, global_name, "item", global_name)
        for constant in code.co_consts:
            if isinstance(constant, CodeType):
                self._code(constant, space)

    def _class(self, kind: type, name: str, *, values: bool = False) -> None:
        for base in kind.__mro__:
            if not _is_users(base.__module__):
                continue
            for key, value in list(vars(base).items()):
                if isinstance(value, (staticmethod, classmethod)):
                    value = value.__func__
                if isinstance(value, property):
                    value = value.fget
                if isinstance(value, FunctionType):
                    self._visit(value, f"{name}.{key}")
                elif values and isinstance(value, (*_PLAIN, Tensor)) and not key.startswith("__"):
                    self._place(base, key, "attribute", f"{name}.{key}")

    def _object(self, value: object, name: str) -> None:
        inner = (
            value.__dict__.get("function") if type(value).__name__ == "CompiledFunction" else None
        )
        if inner is not None:
            self._visit(inner, name)
            return
        kind = type(value)
        if not _is_users(kind.__module__):
            return
        self._class(kind, name)
        self._visit(kind, name)
        own = getattr(value, "__dict__", None)
        if isinstance(own, dict):
            self._items(own, name, list(own))
            for place in self.quick:
                if place.container is own:
                    place.name = f"{name}.{place.key}"
        for slot in getattr(kind, "__slots__", ()):
            # A derived class may compute what its base keeps: there is nothing to put back.
            kept = isinstance(getattr(kind, slot, None), MemberDescriptorType)
            if kept and hasattr(value, slot):
                self._place(value, slot, "attribute", f"{name}.{slot}")

    def _module(self, module: Module, name: str) -> None:
        self.modules.append(module)
        shown = name or "self"
        own = vars(module)
        self.lengths.append(Length(own, shown))
        for key in list(own):
            if key not in _TABLES:
                self._place(own, key, "item", f"{shown}.{key}", slow=True)
        for table in ("_parameters", "_buffers", "_modules"):
            for key in list(own[table]):
                self._place(own[table], key, "item", f"{shown}.{key}", slow=True)
        self._class(type(module), shown, values=True)
        for base in type(module).__mro__:
            if "forward" in vars(base) and _is_users(base.__module__):
                self._place(base, "forward", "attribute", f"{base.__name__}.forward")
        for hooks in ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks"):
            for hook in own[hooks].values():
                self._visit(hook, shown)

    def _optimizer(self, optimizer: Optimizer, name: str) -> None:
        self.optimizers.append(optimizer)
        # What they hold is watched in a way of its own.
        self._seen |= {id(optimizer.state), id(optimizer.param_groups)}
        self._seen |= {id(group) for group in optimizer.param_groups}
        kind = type(optimizer)
        if _is_users(kind.__module__):
            self._class(kind, name)
            for key in vars(optimizer):
                if not key.startswith("_") and key not in ("state", "param_groups", "defaults"):
                    self._place(vars(optimizer), key, "item", f"{name}.{key}")
        for state in optimizer.state.values():
            for key, value in state.items():
                if isinstance(value, (bool, int, float, str)):
                    shown = f"{key!r} in the state of {name or type(optimizer).__name__}"
                    self.states.append(Place(state, key, "item", shown))
        self._place(vars(optimizer), "state", "item", f"{name}.state")
        self._place(vars(optimizer), "param_groups", "item", f"{name}.param_groups")
        self.lengths.append(Length(optimizer.param_groups, f"{name}.param_groups"))
        for number, group in enumerate(optimizer.param_groups):
            for key, value in group.items():
                shown = f"{name}.param_groups[{number}][{key!r}]"
                if key == "params":
                    self.quick.append(Place(group, key, "item", shown))
                    self.lengths.append(Length(value, shown))
                elif isinstance(value, (bool, str, Tensor)) or value is None:
                    self._place(group, key, "item", shown)
                else:
                    self.options.append(Option(group, key, shown))


def _state(source: object) -> bytes:
    """Return the state of Python's or NumPy's random numbers; b"" for anything else."""
    name = getattr(source, "__name__", type(source).__module__)
    if not isinstance(name, str) or name.split(".", maxsplit=1)[0] not in ("random", "numpy"):
        return b""
    read = getattr(source, "getstate", None) or getattr(source, "get_state", None)
    if read is not None:
        return pickle.dumps(read())
    generator = getattr(source, "bit_generator", None)
    return b"" if generator is None else pickle.dumps(generator.state)


def _is_mathematics(value: object) -> bool:
    if isinstance(value, ModuleType):
        name: object = value.__name__
    else:
        name = getattr(value, "__module__", None)
    return isinstance(name, str) and name.split(".", maxsplit=1)[0] in _MATHEMATICS


def _contents(cell: CellType) -> object:
    try:
        return cell.cell_contents
    except ValueError:
        return None


@functools.lru_cache(maxsize=4096)
def _global_names(code: CodeType) -> tuple[str, ...]:
    loads = ("LOAD_GLOBAL", "LOAD_NAME", "STORE_GLOBAL")
    found = (i.argval for i in dis.get_instructions(code) if i.opname in loads)
    return tuple(dict.fromkeys(found))


@functools.lru_cache(maxsize=4096)
def is_code_of_user(code: CodeType) -> bool:
    """Whether code is the user's own: neither this package's nor a library's."""
    return not is_internal(code) and not code.co_filename.startswith(_LIBRARIES)


@functools.lru_cache(maxsize=4096)
def _is_users(module: str | None) -> bool:
    """Whether a module is the user's own: neither the standard library's nor a package's."""
    if module is None or module == "builtins":
        return False
    top = module.split(".", maxsplit=1)[0]
    if top == _PACKAGE:
        return module.startswith(f"{_PACKAGE}.demo")
    if top == "torch" or (top in sys.stdlib_module_names and top != "__main__"):
        return False
    file = getattr(sys.modules.get(top), "__file__", None)
    return file is None or not file.startswith(_LIBRARIES)


def _is_library(value: object) -> bool:
    """Whether a global is a function or class of some library, which nobody rebinds."""
    if isinstance(value, (FunctionType, type)):
        return not _is_users(value.__module__)
    return isinstance(value, type(len))


# ---- counters


# Methods that put something into a container and return nothing.
_ADDS = frozenset(("add", "append", "appendleft", "extend", "update"))


@functools.lru_cache(maxsize=4096)
def _reads(code: CodeType) -> tuple[dict[str, int], dict[str, int]]:
    """Return how often each name is read, and how often only to add something to it."""
    reads: dict[str, int] = {}
    counts: dict[str, int] = {}
    steps = [
        i
        for i in dis.get_instructions(code)
        if not i.opname.startswith(("COPY", "DUP", "SWAP", "ROT", "CACHE", "EXTENDED", "RESUME"))
    ]
    for position, step in enumerate(steps):
        name = step.argval
        if not isinstance(name, str):
            continue
        if step.opname.startswith("LOAD_") and not step.opname.startswith("LOAD_CONST"):
            reads[name] = reads.get(name, 0) + 1
            following = [s.opname for s in steps[position + 1 : position + 6]]
            if position + 1 < len(steps) and steps[position + 1].argval in _ADDS:
                # calls.append(1)
                counts[name] = counts.get(name, 0) + 1
            if (
                len(following) == 5
                and following[0].startswith("LOAD_")
                and following[1] in ("BINARY_SUBSCR", "BINARY_OP")
                and following[2].startswith("LOAD_")
                and following[3].startswith(("BINARY_OP", "INPLACE_"))
                and following[4] == "STORE_SUBSCR"
            ):
                # counts[0] += 1
                counts[name] = counts.get(name, 0) + 1
        elif step.opname in ("LOAD_CONST", "LOAD_SMALL_INT"):
            reads[name] = reads.get(name, 0) + 1
            following = [s.opname for s in steps[position + 1 : position + 5]]
            if (
                len(following) == 4
                and (following[0] == "BINARY_SUBSCR" or following[0] == "BINARY_OP")
                and following[1].startswith("LOAD_")
                and following[2].startswith(("BINARY_OP", "INPLACE_"))
                and following[3] == "STORE_SUBSCR"
            ):
                counts[name] = counts.get(name, 0) + 1
        if step.opname.startswith("STORE_") and position >= 3:
            load, constant, add = steps[position - 3 : position]
            if (
                load.argval == name
                and load.opname.startswith("LOAD_")
                and constant.opname in ("LOAD_CONST", "LOAD_SMALL_INT")
                and add.opname.startswith(("BINARY_OP", "INPLACE_"))
            ):
                counts[name] = counts.get(name, 0) + 1
    return reads, counts


def only_counts(place: Place, codes: list[CodeType]) -> bool:
    """Whether a number is read only to be added to: nothing that is computed depends on it."""
    if type(place.before) not in (int, float):
        return False
    name = place.key
    if place.kind == "cell":
        name = place.name
    elif isinstance(place.container, list):
        name = place.name.partition("[")[0]
    return isinstance(name, str) and _only_added_to(name, codes)


def only_grows(length: Length, codes: list[CodeType]) -> bool:
    """Whether a container is only added to: nothing that is computed depends on what it holds."""
    return _only_added_to(length.name.rpartition(".")[2], codes)


def _only_added_to(name: str, codes: list[CodeType]) -> bool:
    read = counted = 0
    for code in codes:
        reads, counts = _reads(code)
        read += reads.get(name, 0)
        counted += counts.get(name, 0)
    return read == counted > 0


def holds_tensor(value: object, found: Callable[[Tensor], bool], depth: int = 4) -> bool:
    """Whether a value is or contains a tensor of which `found` holds."""
    if isinstance(value, Tensor):
        return found(value)
    if depth == 0 or isinstance(value, _PLAIN):
        return False
    if isinstance(value, Mapping):
        return any(holds_tensor(v, found, depth - 1) for v in value.values())
    if isinstance(value, (list, tuple, deque, set)):
        return any(holds_tensor(v, found, depth - 1) for v in value)
    return False


def new_items(length: Length) -> list[object]:
    """Return what a container has got since its length was noted; all of it if that is unclear."""
    container = length.container
    if isinstance(length, Members):
        return list(container - length.members)
    if isinstance(container, MutableMapping):
        return list(container.values())[length.count :]
    return list(container)[length.count :]
