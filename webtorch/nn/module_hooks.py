"""Hooks that apply to every module of the process. May import `hook` beside it."""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, Any

from webtorch.tensors.handle import Hook, RemovableHandle, add_hook

if TYPE_CHECKING:
    from webtorch.nn.module import Module

__all__ = [
    "register_module_backward_hook",
    "register_module_buffer_registration_hook",
    "register_module_forward_hook",
    "register_module_forward_pre_hook",
    "register_module_full_backward_hook",
    "register_module_full_backward_pre_hook",
    "register_module_module_registration_hook",
    "register_module_parameter_registration_hook",
]


class GlobalHooks:
    """The hooks that apply to every module of the process."""

    def __init__(self) -> None:
        self.forward_pre: OrderedDict[int, Hook] = OrderedDict()
        self.forward: OrderedDict[int, Hook] = OrderedDict()
        self.forward_with_kwargs: OrderedDict[int, bool] = OrderedDict()
        self.forward_always: OrderedDict[int, bool] = OrderedDict()
        self.backward_pre: OrderedDict[int, Hook] = OrderedDict()
        self.backward: OrderedDict[int, Hook] = OrderedDict()
        # Whether those see the last function of a call alone.
        self.backward_is_old = False
        self.register_parameter: OrderedDict[int, Hook] = OrderedDict()
        self.register_buffer: OrderedDict[int, Hook] = OrderedDict()
        self.register_module: OrderedDict[int, Hook] = OrderedDict()
        # How many symbolic traces are on, in all threads: they see calls of modules before hooks do.
        self.traces = 0

    def around_calls(self) -> bool:
        """Return whether a module call has to look at hooks at all."""
        return bool(
            self.forward_pre or self.forward or self.backward_pre or self.backward or self.traces
        )


GLOBAL = GlobalHooks()
# PyTorch's names of them.
_global_forward_hooks, _global_forward_pre_hooks = GLOBAL.forward, GLOBAL.forward_pre
_global_forward_hooks_with_kwargs = GLOBAL.forward_with_kwargs
_global_forward_hooks_always_called = GLOBAL.forward_always
_global_backward_hooks, _global_backward_pre_hooks = GLOBAL.backward, GLOBAL.backward_pre
_global_parameter_registration_hooks = GLOBAL.register_parameter
_global_buffer_registration_hooks = GLOBAL.register_buffer
_global_module_registration_hooks = GLOBAL.register_module


def register_module_forward_pre_hook(hook: Hook) -> RemovableHandle:
    """Call `hook(module, args)` before every module's forward."""
    return add_hook(GLOBAL.forward_pre, hook)


def register_module_forward_hook(
    hook: Hook, *, with_kwargs: bool = False, always_call: bool = False
) -> RemovableHandle:
    """Call `hook(module, args[, kwargs], output)` after every module's forward."""
    flags = (GLOBAL.forward_with_kwargs, with_kwargs), (GLOBAL.forward_always, always_call)
    return add_hook(GLOBAL.forward, hook, flags=flags)


def register_module_full_backward_pre_hook(hook: Hook) -> RemovableHandle:
    """Call `hook(module, grad_output)` when gradients reach a module's outputs."""
    return add_hook(GLOBAL.backward_pre, hook)


def register_module_full_backward_hook(hook: Hook) -> RemovableHandle:
    """Call `hook(module, grad_input, grad_output)` when a module's input gradients are known."""
    return _add_backward(hook, False)


def register_module_backward_hook(hook: Hook) -> RemovableHandle:
    """Call `hook(module, grad_input, grad_output)` with the gradients of the last function of every module's call."""
    return _add_backward(hook, True)


def _add_backward(hook: Hook, old: bool) -> RemovableHandle:
    if GLOBAL.backward and GLOBAL.backward_is_old is not old:
        raise RuntimeError(
            "Cannot use both regular backward hooks and full backward hooks as a global Module hook. Please use only "
            "one of them."
        )
    GLOBAL.backward_is_old = old
    return add_hook(GLOBAL.backward, hook)


def register_module_parameter_registration_hook(hook: Hook) -> RemovableHandle:
    """Call `hook(module, name, parameter)` whenever a parameter is registered."""
    return add_hook(GLOBAL.register_parameter, hook)


def register_module_buffer_registration_hook(hook: Hook) -> RemovableHandle:
    """Call `hook(module, name, buffer)` whenever a buffer is registered."""
    return add_hook(GLOBAL.register_buffer, hook)


def register_module_module_registration_hook(hook: Hook) -> RemovableHandle:
    """Call `hook(module, name, submodule)` whenever a submodule is registered."""
    return add_hook(GLOBAL.register_module, hook)


def registered(hooks: OrderedDict[int, Hook], owner: Module, name: str, value: object) -> Any:
    """Return `value` as the registration hooks leave it."""
    for hook in hooks.values():
        changed = hook(owner, name, value)
        if changed is not None:
            value = changed
    return value
