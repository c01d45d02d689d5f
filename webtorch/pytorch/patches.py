"""What of PyTorch's own Python is replaced for the device: checks and compositions that leave it out. Floor 6."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from typing import Any

import torch
from torch._ops import HigherOrderOperator, resolve_key

from webtorch.ir.dtype import float32
from webtorch.ops.layout import suggests_channels_last
from webtorch.pytorch.device import TO_WEBTORCH, UNSUPPORTED, is_narrowed
from webtorch.pytorch.kernels import forms_of
from webtorch.tensors.promotion import set_default_dtype


def _flexible() -> None:
    """Let `flex_attention` take the device: what it is composed of runs here."""
    module: Any = importlib.import_module("torch.nn.attention.flex_attention")
    original = module._validate_device

    def validate(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> None:
        """Check operands of other devices as PyTorch does."""
        if query.device.type != "webgpu":
            original(query, key, value)

    module._validate_device = validate


def _traced_convolutions() -> None:
    """Let traces give convolutions the strides that the kernel gives them; else they take them for row-major."""
    module: Any = torch._C
    original = module._conv_determine_backend_memory_format
    formats = {4: torch.channels_last, 5: torch.channels_last_3d}

    def determine(x: torch.Tensor, weight: torch.Tensor, backend: object) -> torch.memory_format:
        """Return the memory format of a convolution's result."""
        found: torch.memory_format = original(x, weight, backend)
        if x.device.type != "webgpu":
            return found
        last = any(map(suggests_channels_last, forms_of((x, weight))))
        return formats.get(x.dim(), found) if last else found

    module._conv_determine_backend_memory_format = determine


def _checked_traces() -> None:
    """Let `torch.jit.trace` compare what it traced with what the function returns: PyTorch does it in float64."""
    module: Any = importlib.import_module("torch.jit._trace")
    original = module._check_trace
    widened: Any = torch.Tensor.double

    def double(x: torch.Tensor, **options: object) -> torch.Tensor:
        """Return the tensor in float64, on the CPU if it was on the device."""
        return widened(x.cpu() if x.device.type == "webgpu" else x, **options)

    def check_trace(*args: object, **kwargs: object) -> object:
        """Compare the trace, with `double` as above meanwhile."""
        # Not by a mode of functions: traces name the lines that called.
        tensor: Any = torch.Tensor
        tensor.double = double
        try:
            return original(*args, **kwargs)
        finally:
            tensor.double = widened

    module._check_trace = check_trace


class _Reciprocal:
    """A gradient scaler's scale, of which PyTorch wants 1 / scale by way of float64: here float32 does it."""

    def __init__(self, scale: torch.Tensor) -> None:
        self.scale = scale
        self.device = scale.device

    def double(self) -> _Reciprocal:
        """Return this."""
        return self

    def reciprocal(self) -> _Reciprocal:
        """Return this."""
        return self

    def float(self) -> torch.Tensor:
        """Return 1 / scale."""
        return self.scale.reciprocal()


def _scaling() -> None:
    """Let `GradScaler` work without float64."""
    scaler: Any = torch.amp.GradScaler
    original = scaler.unscale_

    def unscale_(self: Any, optimizer: torch.optim.Optimizer) -> None:
        """Unscale the gradients with a float32 scale."""
        # One that is not enabled has no scale at all.
        scale = getattr(self, "_scale", None)
        if scale is None or scale.device.type != "webgpu":
            original(self, optimizer)
            return
        self._scale = _Reciprocal(scale)
        try:
            original(self, optimizer)
        finally:
            self._scale = scale

    scaler.unscale_ = unscale_


def _callbacks() -> None:
    """Let `x.apply_(function)` and its like, which call Python for each element, do so on the CPU and copy back."""
    for name in ("apply_", "map_", "map2_"):
        original = getattr(torch.Tensor, name)

        def run(
            x: torch.Tensor, *args: object, original: Callable[..., torch.Tensor] = original
        ) -> torch.Tensor:
            """Overwrite each element with what the function gives."""
            if x.device.type != "webgpu":
                found: torch.Tensor = original(x, *args)
                return found
            given = [a.cpu() if isinstance(a, torch.Tensor) else a for a in args]
            return x.copy_(original(x.detach().cpu(), *given))

        setattr(torch.Tensor, name, functools.wraps(original)(run))


def _default_type() -> None:
    """Let operators of integers follow PyTorch's default type: nothing that is known of calls says which one it was."""
    module: Any = torch._C

    def follow() -> None:
        """Take PyTorch's default type over."""
        kind = TO_WEBTORCH[torch.get_default_dtype()]
        set_default_dtype(float32 if kind in UNSUPPORTED and is_narrowed() else kind)

    for name in ("_set_default_dtype", "_set_default_tensor_type"):
        original = getattr(module, name)

        def change(kind: object, original: Callable[..., None] = original) -> None:
            """Set the type."""
            original(kind)
            follow()

        setattr(module, name, change)
    follow()


def _higher_order() -> None:
    """Let operators of higher order that have a kernel for the CPU by name, and none for the device, take that one."""
    of: Any = torch._C.DispatchKey
    names = {of.PrivateUse1: of.CPU, of.AutogradPrivateUse1: of.AutogradCPU}
    operator: Any = HigherOrderOperator
    original = operator.dispatch

    def dispatch(self: Any, key: Any, /, *args: object, **kwargs: object) -> object:
        """Call the operator's kernel."""
        cpu = names.get(key)
        if (
            cpu in self.py_kernels
            and key not in self._dispatch_cache
            and resolve_key(self, key) == key
        ):
            self.py_kernels.setdefault(key, self.py_kernels[cpu])
        return original(self, key, *args, **kwargs)

    operator.dispatch = dispatch


def apply() -> None:
    """Replace them."""
    _higher_order()
    _default_type()
    _callbacks()
    _scaling()
    _flexible()
    _traced_convolutions()
    _checked_traces()
