"""The handle that removes a hook again: one for hooks of tensors, of the graph, of modules and of optimizers."""

from __future__ import annotations

import itertools
import weakref
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any

from webtorch.tensors.host import bindings

# What each kind of hook is called with, its registration says.
Hook = Callable[..., Any]


class RemovableHandle:
    """What registering a hook returns: `remove()` unregisters it, and so does leaving a `with`."""

    _ids = itertools.count()

    def __init__(
        self, hooks: OrderedDict[int, Any], *, extra: Sequence[dict[int, Any]] = ()
    ) -> None:
        """Reserve an id in `hooks`; `extra` are dicts of options that go with the same id."""
        self.id = next(RemovableHandle._ids)
        bindings.modules += 1
        # Weak: a handle that a user keeps must not keep the module alive.
        self.hooks_dict_ref = weakref.ref(hooks)
        self.extra_dict_ref = [weakref.ref(one) for one in extra if isinstance(one, OrderedDict)]

    def remove(self) -> None:
        """Unregister the hook; a second call does nothing."""
        bindings.modules += 1
        for reference in (self.hooks_dict_ref, *self.extra_dict_ref):
            hooks = reference()
            if hooks is not None:
                hooks.pop(self.id, None)

    def __getstate__(self) -> tuple[Any, int, list[Any]]:
        """Return the dicts themselves: a copy removes its hook from the copies of them."""
        return self.hooks_dict_ref(), self.id, [reference() for reference in self.extra_dict_ref]

    def __setstate__(self, state: tuple[Any, int, list[Any]]) -> None:
        """Take back what `__getstate__` returned; dicts that are gone stay gone."""
        hooks, self.id, extra = state
        gone: OrderedDict[int, object] = OrderedDict()
        self.hooks_dict_ref = weakref.ref(gone if hooks is None else hooks)
        self.extra_dict_ref = [weakref.ref(gone if one is None else one) for one in extra]
        # Ids stay unique in a process that reads handles of another one.
        RemovableHandle._ids = itertools.count(max(next(RemovableHandle._ids), self.id + 1))

    def __enter__(self) -> RemovableHandle:
        """Return the handle itself."""
        return self

    def __exit__(self, *exc: object) -> None:
        """Remove the hook."""
        self.remove()


def add_hook(
    hooks: OrderedDict[int, Any],
    hook: Hook,
    *,
    prepend: bool = False,
    flags: Sequence[tuple[OrderedDict[int, bool], bool]] = (),
) -> RemovableHandle:
    """Put a hook among others, last or first, and return its handle. `flags`: by hook what is True of some, and whether
    it is of this one.
    """
    handle = RemovableHandle(hooks, extra=[flagged for flagged, _ in flags])
    hooks[handle.id] = hook
    for flagged, wanted in flags:
        if wanted:
            flagged[handle.id] = True
    if prepend:
        hooks.move_to_end(handle.id, last=False)
    return handle
