"""torch._C: what packages call of PyTorch's C++ core without needing it."""

from __future__ import annotations

import contextlib
import enum

from webtorch.overrides import DisableTorchFunction as DisableTorchFunction
from webtorch.overrides import DisableTorchFunctionSubclass as DisableTorchFunctionSubclass
from webtorch.tensors.modes import mode
from webtorch.tensors.override import disabled as _disabled_torch_function_impl
from webtorch.tensors.override import state
from webtorch.tensors.tensor import Tensor as TensorBase

_TensorBase = TensorBase
# As `__torch_dispatch__` of a class, it says that the class replaces no kernel.
_disabled_torch_dispatch_impl = _disabled_torch_function_impl
# Blocks in which PyTorch's dispatcher asks no Python kernels and no transforms: nobody is asked here.
_DisableTorchDispatch = _DisableFuncTorch = contextlib.nullcontext


def _log_api_usage_once(event: str) -> None:
    """Do nothing: nothing is logged."""


def _current_graph_task_id() -> int:
    """Return a number for the running backward pass, -1 while none runs."""
    return -1 if mode.task is None else id(mode.task)


def _debug_only_are_vmap_fallback_warnings_enabled() -> bool:
    """Return False: there is no fallback, of which a warning could tell."""
    return False


def _debug_only_display_vmap_fallback_warnings(enabled: bool) -> None:
    """Do nothing: there is no fallback."""


def _get_tracing_state() -> None:
    """Return None: nothing is ever traced."""


def _is_torch_function_enabled() -> bool:
    """Whether classes with `__torch_function__` are asked."""
    return state.classes


def _is_torch_function_mode_enabled() -> bool:
    """Whether a mode with `__torch_function__` is on."""
    return bool(state.modes and state.modes_asked)


class DispatchKey(enum.Enum):
    """PyTorch's keys of its dispatcher, to name; nothing is dispatched by them."""

    CPU = 1
    CUDA = 2
    Meta = 3
    Autograd = 4
    AutogradCPU = 5
    AutogradCUDA = 6
    AutocastCPU = 7
    AutocastCUDA = 8
    AutocastXPU = 9
    AutocastMPS = 10
    CompositeExplicitAutograd = 11
    CompositeImplicitAutograd = 12
    XPU = 13
    AutogradXPU = 14
    MPS = 15
    AutogradMPS = 16
    PrivateUse1 = 17
    AutogradPrivateUse1 = 18


class DispatchKeySet:
    """A set of such keys."""

    def __init__(self, *keys: DispatchKey) -> None:
        """Take the keys."""
        self._keys = frozenset(keys)

    def __or__(self, other: DispatchKeySet) -> DispatchKeySet:
        return DispatchKeySet(*self._keys, *other._keys)

    def has(self, key: DispatchKey) -> bool:
        """Whether a key is in the set."""
        return key in self._keys
