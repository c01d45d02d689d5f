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
    """A block in which `parents` holds the names of the modules that run, and "Global".

    Trackers of users' derive from it and put PyTorch's names of its parts in place of these.
    """

    def __init__(self) -> None:
        """Know no module yet."""
        self.parents = {"Global"}
        self._known_modules: weakref.WeakKeyDictionary[Module, str] = weakref.WeakKeyDictionary()
        self._seen_modules: weakref.WeakSet[Module] = weakref.WeakSet()
        self._has_callback = False
        self._hooks: list[Any] = []

    @property
    def is_bw(self) -> bool:
        """Whether a backward pass runs."""
        return mode.task is not None

    def _get_mod_name(self, mod: Module) -> str:
        name = self._known_modules.setdefault(mod, type(mod).__name__)
        if mod not in self._seen_modules:
            for part, child in mod.named_children():
                self._known_modules[child] = f"{name}.{part}"
                self._get_mod_name(child)
            self._seen_modules.add(mod)
        return name

    def _maybe_set_engine_callback(self) -> None:
        """Let no module run when the whole backward pass ends."""
        if not self._has_callback:
            self._has_callback = True
            queue_callback(self._end)

    def _end(self) -> None:
        self.parents, self._has_callback = {"Global"}, False

    def _get_append_fn(self, name: str, is_bw: bool) -> Callable[..., None]:
        def enter(*_: object) -> None:
            """Note a module that begins."""
            if is_bw:
                self._maybe_set_engine_callback()
            self.parents.add(name)

        return enter

    def _get_pop_fn(self, name: str, is_bw: bool) -> Callable[..., None]:
        return lambda *_: self.parents.discard(name)

    def _watch(self, values: object, hook: Callable[..., None]) -> None:
        tensors = [x for x in tree_leaves(values) if isinstance(x, Tensor) and x.requires_grad]
        if tensors:
            self._hooks.append(register_multi_grad_hook(tensors, hook))

    def _fw_pre_hook(self, mod: Module, input: object) -> None:
        name = self._get_mod_name(mod)
        self._get_append_fn(name, False)()
        self._watch(input, self._get_pop_fn(name, True))

    def _fw_post_hook(self, mod: Module, input: object, output: object) -> None:
        name = self._get_mod_name(mod)
        self._get_pop_fn(name, False)()
        self._watch(output, self._get_append_fn(name, True))

    def __enter__(self) -> ModuleTracker:
        self._handles = [
            register_module_forward_pre_hook(self._fw_pre_hook),
            register_module_forward_hook(self._fw_post_hook),
        ]
        return self

    def __exit__(self, *_: object) -> None:
        for handle in (*self._handles, *self._hooks):
            handle.remove()
        self._hooks.clear()
