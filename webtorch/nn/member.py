"""Where a class looks for the parameters, buffers and submodules of its modules.

They lie in tables of the module, which are the truth. Python would look for the name in the class and in the module,
fail, and then call `__getattr__`, which takes three times as long as all the rest. So the first look leaves a
descriptor at the class: it looks in the table, and where the name is not there it is as if it were not there either.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

_NOTHING = object()


def register_buffer(module: Any, name: str, value: object, persistent: bool) -> None:
    """Register a buffer that is set as an attribute; a class may have a `register_buffer` from before `persistent`."""
    register = module.register_buffer
    if "persistent" in inspect.signature(register).parameters:
        register(name, value, persistent)
        return
    if not persistent:
        raise RuntimeError(
            "Registering a non-persistent buffer on a Module subclass that implements register_buffer() without the "
            "persistent argument is not allowed."
        )
    register(name, value)


class Member:
    """A name that modules of a class have in a table."""

    __slots__ = ("kind", "look", "name", "table")

    def __init__(self, kind: type[Any], name: str, table: str, look: Callable[..., object]) -> None:
        self.kind, self.name, self.table, self.look = kind, name, table, look

    def __get__(self, module: object, kind: type[Any]) -> Any:
        # A class below has bases of its own, and its own way to look.
        if kind is self.kind and module is not None and kind.__getattr__ is self.look:
            try:
                return module.__dict__[self.table][self.name]
            except KeyError:
                pass
        if issubclass(kind, self.kind):
            try:
                return getattr(super(self.kind, kind if module is None else module), self.name)
            except AttributeError:
                pass
        raise AttributeError(f"type object {kind.__name__!r} has no attribute {self.name!r}")


def remember(kind: type[Any], name: str, table: str, look: Callable[..., object]) -> None:
    """Have modules of a class look in a table for a name that was found there. `look` is what was called instead."""
    if kind.__getattr__ is not look:
        return
    for base in kind.__mro__:
        found = vars(base).get(name, _NOTHING)
        if type(found) is Member:
            if found.kind is kind:
                return
        elif found is not _NOTHING:
            # The class has something of this name, which failed.
            return
    type.__setattr__(kind, name, Member(kind, name, table, look))


def public_names(kind: type[Any]) -> list[str]:
    """Return what a class lists, but for what it remembers of its modules."""
    found = [(n, type(value) is Member) for base in kind.__mro__ for n, value in vars(base).items()]
    hidden = {n for n, is_member in found if is_member} - {
        n for n, is_member in found if not is_member
    }
    return [n for n in dir(kind) if n not in hidden]
