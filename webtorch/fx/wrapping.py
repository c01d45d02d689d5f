"""Functions of users that a trace does not enter: `wrap`, and those of `math`.

They are Python's own functions and users' functions, which no interpreter of ours sees called. So while a trace is on,
other functions stand in their places among the globals of the modules that call them: these make a node where they are
given a proxy. One trace at a time does that.
"""

from __future__ import annotations

import builtins
import contextlib
import functools
import inspect
import threading
from collections.abc import Callable, Iterator
from typing import Any

from webtorch.fx.node import map_aggregate
from webtorch.fx.proxy import Proxy

# (Identity of the globals, name) -> the globals in which a function is wrapped.
_wrapped: dict[tuple[int, str], dict[str, object]] = {}
_ABSENT = object()


def wrap(fn_or_name: Any) -> Any:
    """Let calls of a function, or of what a module calls by that name, be nodes of a trace. For the top of a module;
    also a decorator.
    """
    if not callable(fn_or_name) and not isinstance(fn_or_name, str):
        raise RuntimeError(
            "Unsupported type for global function! Must be either a callable or string name"
        )
    frame = inspect.currentframe()
    assert frame is not None and frame.f_back is not None
    if frame.f_back.f_code.co_name != "<module>":
        raise NotImplementedError("wrap must be called at the top level of a module")
    name = fn_or_name if isinstance(fn_or_name, str) else fn_or_name.__name__
    module = frame.f_back.f_globals
    _wrapped[id(module), name] = module
    return fn_or_name


def find_proxy(*values: object) -> Proxy | None:
    """Return a proxy among values and what they contain, the last one."""
    found: list[Proxy] = []

    def look(x: object) -> None:
        """Keep a value that is a proxy."""
        if isinstance(x, Proxy):
            found.append(x)

    map_aggregate(values, look)
    return found[-1] if found else None


def _leaf(function: Callable[..., object]) -> Callable[..., Any]:
    """Return the function that makes a node where it is given a proxy."""

    @functools.wraps(function)
    def wrapped(*args: object, **kwargs: object) -> Any:
        """Return the proxy of a call of the function, or the call's result where no proxy is given."""
        proxy = find_proxy(args, kwargs)
        if proxy is None:
            return function(*args, **kwargs)
        made = proxy.tracer.create_proxy("call_function", function, args, kwargs)
        made.node.meta["is_wrapped"] = True
        return made

    wrapped.is_leaf = True  # type: ignore[attr-defined]
    return wrapped


class Places:
    """Where functions stand in others' places, while a trace is on."""

    def __init__(self) -> None:
        self._before: list[tuple[dict[str, object], str, object]] = []
        self._seen: set[int] = set()

    def put(self, module: dict[str, object], name: str) -> None:
        """Let the calls of a name of a module's globals be nodes."""
        before = module.get(name, _ABSENT)
        function: Any = getattr(builtins, name) if before is _ABSENT else before
        if not getattr(function, "is_leaf", False):
            self._before.append((module, name, before))
            module[name] = _leaf(function)

    def search(self, module: dict[str, object], functions: set[int]) -> None:
        """Do so with all functions of a set that a module's globals have, once for each module."""
        if id(module) in self._seen:
            return
        self._seen.add(id(module))
        for name, value in list(module.items()):
            if not name.startswith("_") and callable(value) and id(value) in functions:
                self.put(module, name)

    def put_back(self) -> None:
        """Undo it all."""
        while self._before:
            module, name, before = self._before.pop()
            if before is _ABSENT:
                del module[name]
            else:
                module[name] = before


_one_at_a_time = threading.RLock()


@contextlib.contextmanager
def wrapped_functions() -> Iterator[Places]:
    """A block in which calls of the functions that users have wrapped are nodes."""
    places = Places()
    with _one_at_a_time:
        try:
            for (_, name), module in list(_wrapped.items()):
                places.put(module, name)
            yield places
        finally:
            places.put_back()
