"""`torch.utils.module_tracker`: which modules run now, forward or backward. Floor 6."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

from webtorch.autograd.graph import register_multi_grad_hook
from webtorch.nn.module import Module
from webtorch.nn.module_hooks import (
    register_module_forward_hook,
    register_module_forward_pre_hook,
)
from webtorch.tensors.engine import queue_callback
from webtorch.tensors.modes import mode
from webtorch.tensors.tensor import Tensor
from webtorch.utils._pytree import tree_leaves

__all__ = ["ModuleTracker"]


class ModuleTracker:
    """A block in which `parents` holds the names of the modules that run, and "Global"."""

    def __init__(self) -> None:
        """Know no module yet."""
        self.parents = {"Global"}
        self._names: weakref.WeakKeyDictionary[Module, str] = weakref.WeakKeyDictionary()
        self._seen: weakref.WeakSet[Module] = weakref.WeakSet()
        self._waiting = False
        self._hooks: list[Any] = []

    @property
    def is_bw(self) -> bool:
        """Whether a backward pass runs."""
        return mode.task is not None

    def _name(self, module: Module) -> str:
        name = self._names.setdefault(module, type(module).__name__)
        if module not in self._seen:
            for part, child in module.named_children():
                self._names[child] = f"{name}.{part}"
                self._name(child)
            self._seen.add(module)
        return name

    def _entering(self, name: str) -> Callable[..., None]:
        def enter(*_: object) -> None:
            """Note a module whose backward pass begins; when the whole pass ends, none runs."""
            if not self._waiting:
                self._waiting = True
                queue_callback(self._end)
            self.parents.add(name)

        return enter

    def _end(self) -> None:
        self.parents, self._waiting = {"Global"}, False

    def _watch(self, values: object, hook: Callable[..., None]) -> None:
        tensors = [x for x in tree_leaves(values) if isinstance(x, Tensor) and x.requires_grad]
        if tensors:
            self._hooks.append(register_multi_grad_hook(tensors, hook))

    def _before(self, module: Module, args: object) -> None:
        name = self._name(module)
        self.parents.add(name)
        self._watch(args, lambda *_: self.parents.discard(name))

    def _after(self, module: Module, _args: object, out: object) -> None:
        name = self._name(module)
        self.parents.discard(name)
        self._watch(out, self._entering(name))

    def __enter__(self) -> ModuleTracker:
        self._handles = [
            register_module_forward_pre_hook(self._before),
            register_module_forward_hook(self._after),
        ]
        return self

    def __exit__(self, *_: object) -> None:
        for handle in (*self._handles, *self._hooks):
            handle.remove()
        self._hooks.clear()
