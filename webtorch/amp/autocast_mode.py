"""`autocast`, its settings, and what a custom Function needs to run under it. May import floor 4.

What autocast does to an operation stands in the operation's entry and in tensors/autocast.py.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Mapping
from typing import Any

from webtorch.ir.dtype import DType, float64
from webtorch.ir.lines import user_depth
from webtorch.tensors.autocast import KINDS, LOWER_PRECISION, state
from webtorch.tensors.tensor import Tensor

__all__ = [
    "autocast",
    "autocast_decrement_nesting",
    "autocast_increment_nesting",
    "clear_autocast_cache",
    "custom_bwd",
    "custom_fwd",
    "get_autocast_cpu_dtype",
    "get_autocast_dtype",
    "get_autocast_gpu_dtype",
    "is_autocast_available",
    "is_autocast_cache_enabled",
    "is_autocast_cpu_enabled",
    "is_autocast_enabled",
    "set_autocast_cache_enabled",
    "set_autocast_cpu_dtype",
    "set_autocast_cpu_enabled",
    "set_autocast_dtype",
    "set_autocast_enabled",
    "set_autocast_gpu_dtype",
]
_SELF = Callable[..., Any]


# ---- settings
# ------------------------------------------------------------------------------------------------------------


def is_autocast_available(device_type: str) -> bool:
    """Return whether autocast exists for a kind of device: "cpu" and "webgpu"."""
    return device_type in KINDS


def _kind(device_type: str) -> str:
    if not isinstance(device_type, str):
        raise ValueError(f"Expected `device_type` of type `str`, got: `{type(device_type)}`")
    if device_type not in KINDS:
        hint = " webtorch runs on 'webgpu' instead." if device_type == "cuda" else ""
        raise RuntimeError(
            f"User specified an unsupported autocast device_type '{device_type}': it is one of "
            f"{', '.join(KINDS)}.{hint}"
        )
    return device_type


def is_autocast_enabled(device_type: str | None = None) -> bool:
    """Return whether autocast is on for a kind of device; None asks for "webgpu".

    For PyTorch's other devices ("cuda"), on which no tensor can be here, it is not.
    """
    if device_type in ("cuda", "mps", "xpu", "xla", "hpu", "mtia"):
        return False
    return ("webgpu" if device_type is None else _kind(device_type)) in state.enabled


def set_autocast_enabled(device_type: str | bool, enabled: bool | None = None) -> None:
    """Turn autocast on or off for a kind of device ("webgpu", if only a bool is given)."""
    if isinstance(device_type, bool):
        set_autocast_enabled("webgpu", device_type)
        return
    kind = _kind(device_type)
    # A new dict: one that is in use elsewhere stays as it is.
    others = {k: d for k, d in state.enabled.items() if k != kind}
    state.enabled = {**others, kind: state.chosen[kind]} if enabled else others


def get_autocast_dtype(device_type: str) -> DType:
    """Return the lower precision of a kind of device: bfloat16 on "cpu", float16 on "webgpu", unless set."""
    return state.chosen[_kind(device_type)]


def set_autocast_dtype(device_type: str, dtype: DType) -> None:
    """Set the lower precision of a kind of device."""
    kind = _kind(device_type)
    state.chosen[kind] = dtype
    if kind in state.enabled:
        state.enabled = {**state.enabled, kind: dtype}


def _deprecated(old: str, new: str) -> None:
    text = f"torch.{old} is deprecated. Please use torch.{new} instead."
    warnings.warn(text, DeprecationWarning, stacklevel=user_depth())


def is_autocast_cpu_enabled() -> bool:
    """Return whether autocast is on for the CPU."""
    _deprecated("is_autocast_cpu_enabled()", "is_autocast_enabled('cpu')")
    return is_autocast_enabled("cpu")


def set_autocast_cpu_enabled(enabled: bool) -> None:
    """Turn autocast on or off for the CPU."""
    _deprecated("set_autocast_cpu_enabled(enabled)", "set_autocast_enabled('cpu', enabled)")
    set_autocast_enabled("cpu", enabled)


def get_autocast_cpu_dtype() -> DType:
    """Return the lower precision of the CPU."""
    _deprecated("get_autocast_cpu_dtype()", "get_autocast_dtype('cpu')")
    return get_autocast_dtype("cpu")


def set_autocast_cpu_dtype(dtype: DType) -> None:
    """Set the lower precision of the CPU."""
    _deprecated("set_autocast_cpu_dtype(dtype)", "set_autocast_dtype('cpu', dtype)")
    set_autocast_dtype("cpu", dtype)


def get_autocast_gpu_dtype() -> DType:
    """Return the lower precision of the GPU, which is that of "webgpu"."""
    _deprecated("get_autocast_gpu_dtype()", "get_autocast_dtype('cuda')")
    return get_autocast_dtype("webgpu")


def set_autocast_gpu_dtype(dtype: DType) -> None:
    """Set the lower precision of the GPU, which is that of "webgpu"."""
    _deprecated("set_autocast_gpu_dtype(dtype)", "set_autocast_dtype('cuda', dtype)")
    set_autocast_dtype("webgpu", dtype)


def is_autocast_cache_enabled() -> bool:
    """Return whether parameters are cast once per outermost context."""
    return state.cache_enabled


def set_autocast_cache_enabled(enabled: bool) -> None:
    """Choose whether parameters are cast once per outermost context."""
    state.cache_enabled = bool(enabled)


def clear_autocast_cache() -> None:
    """Forget the parameters that were cast."""
    state.forget()


def autocast_increment_nesting() -> int:
    """Count one more context that is open, and return how many are."""
    state.enter()
    return state.nesting


def autocast_decrement_nesting() -> int:
    """Count one context less, and return how many are open."""
    state.leave()
    return state.nesting


# ---- the context
# ------------------------------------------------------------------------------------------------------------


class autocast:
    """Inside, operations on one kind of device choose the precision of their float inputs.

    Products and convolutions run in `dtype` (bfloat16 on "cpu" and float16 on "webgpu" unless
    given), what needs range or many digits runs in float32, and what joins tensors takes the widest
    type; the rest runs in the type it is given. A context manager and a decorator. With
    enabled=False, operations inside run as usual. `cache_enabled`: whether a parameter is cast
    once, not at each use. Wrap the forward pass and the loss, not the backward pass.

    Raises RuntimeError for another kind of device; warns, and is off, for a dtype that is not
    float16 or bfloat16, and for "cuda", as PyTorch is where there is no CUDA.
    """

    def __init__(
        self,
        device_type: str,
        dtype: DType | None = None,
        enabled: bool = True,
        cache_enabled: bool | None = None,
    ) -> None:
        if not isinstance(device_type, str):
            raise ValueError(f"Expected `device_type` of type `str`, got: `{type(device_type)}`")
        self.device = device_type
        if device_type == "cuda":
            if enabled:
                warnings.warn(
                    "CUDA is not available. Disabling autocast. webtorch runs on 'webgpu' instead: "
                    "autocast(device_type=x.device.type).",
                    stacklevel=user_depth(),
                )
            self.device, enabled = "webgpu", is_autocast_enabled("webgpu")
            dtype = get_autocast_dtype("webgpu")
        self.fast_dtype = get_autocast_dtype(self.device) if dtype is None else dtype
        self._cache_enabled = state.cache_enabled if cache_enabled is None else cache_enabled
        if enabled and self.fast_dtype not in LOWER_PRECISION:
            name = self.device.upper()
            warnings.warn(
                f"In {name} autocast, but the target dtype is not supported. Disabling autocast.\n"
                f"{name} Autocast only supports dtypes of "
                f"{', '.join(map(str, LOWER_PRECISION))} currently.",
                stacklevel=user_depth(),
            )
            enabled = False
        self._enabled = bool(enabled)
        self._before: list[tuple[bool, DType, bool]] = []

    def __enter__(self) -> autocast:
        kind = self.device
        self._before.append((kind in state.enabled, state.chosen[kind], state.cache_enabled))
        autocast_increment_nesting()
        set_autocast_dtype(kind, self.fast_dtype)
        set_autocast_enabled(kind, self._enabled)
        state.cache_enabled = self._cache_enabled
        return self

    def __exit__(self, *error: object) -> None:
        enabled, dtype, state.cache_enabled = self._before.pop()
        autocast_decrement_nesting()
        set_autocast_dtype(self.device, dtype)
        set_autocast_enabled(self.device, enabled)

    def __call__(self, func: _SELF) -> _SELF:
        if not callable(func):
            raise TypeError(
                f"autocast()(func) requires a callable, but got {type(func).__name__}. "
                "Did you mean to use autocast as a context manager? For example:\n"
                "    with torch.autocast(device_type=...):\n"
                "        output = model(input)"
            )

        @functools.wraps(func)
        def run(*args: object, **kwargs: object) -> Any:
            """Call the function under this autocast."""
            with self:
                return func(*args, **kwargs)

        return run


# ---- custom functions
# ------------------------------------------------------------------------------------------------------------


def _cast(value: object, kind: str, dtype: DType) -> Any:
    """Return `value` with the float tensors of one kind of device, however deep, in `dtype`."""
    if isinstance(value, Tensor):
        chosen = (
            value.is_floating_point() and value.device.type == kind and value.dtype is not float64
        )
        return value.to(dtype) if chosen else value
    if isinstance(value, Mapping):
        return {_cast(k, kind, dtype): _cast(v, kind, dtype) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(_cast(v, kind, dtype) for v in value)
    return value


def custom_fwd(
    fwd: _SELF | None = None, *, device_type: str, cast_inputs: DType | None = None
) -> _SELF:
    """Decorate the `forward` of an autograd.Function that is used under autocast.

    With `cast_inputs`, float inputs are cast to that type while autocast is on, and `forward` runs
    with autocast off; without, it runs under the autocast of its caller.
    """
    if not isinstance(device_type, str):
        raise ValueError(f"Expected `device_type` of type `str`, got: `{type(device_type)}`")
    if fwd is None:
        return functools.partial(custom_fwd, device_type=device_type, cast_inputs=cast_inputs)

    @functools.wraps(fwd)
    def forward(ctx: Any, *args: Any, **kwargs: Any) -> Any:
        """Call the forward function, and note the autocast for its backward function."""
        on = is_autocast_enabled(device_type)
        ctx._dtype = get_autocast_dtype(device_type)
        ctx._fwd_used_autocast = on and cast_inputs is None
        if not on or cast_inputs is None:
            return fwd(ctx, *args, **kwargs)
        with autocast(device_type, enabled=False):
            return fwd(
                ctx,
                *_cast(args, device_type, cast_inputs),
                **_cast(kwargs, device_type, cast_inputs),
            )

    return forward


def custom_bwd(bwd: _SELF | None = None, *, device_type: str) -> _SELF:
    """Decorate the `backward` of an autograd.Function, to run under the autocast of its `forward`."""
    if not isinstance(device_type, str):
        raise ValueError(f"Expected `device_type` of type `str`, got: `{type(device_type)}`")
    if bwd is None:
        return functools.partial(custom_bwd, device_type=device_type)

    @functools.wraps(bwd)
    def backward(ctx: Any, *args: Any, **kwargs: Any) -> Any:
        """Call the backward function under the autocast of its forward function."""
        with autocast(device_type, dtype=ctx._dtype, enabled=ctx._fwd_used_autocast):
            return bwd(ctx, *args, **kwargs)

    return backward
