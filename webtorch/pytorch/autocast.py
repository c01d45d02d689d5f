"""What autocast does with PyTorch's operators on the device, by the entries' rules for accelerators. Floor 6."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch._ops import OpOverload

from webtorch.aten.table import AUTOCAST
from webtorch.pytorch.device import on_device
from webtorch.pytorch.kernels import AUTOCAST_KEYS, Kernel, dispatched, overloads, tensors_of
from webtorch.tensors.autocast import UNSAFE
from webtorch_autoload.device import libraries

# What was cast in the contexts that are open, by the id of a leaf.
_casts: dict[int, tuple[weakref.ref[torch.Tensor], torch.Tensor]] = {}


def _ruled(base: str, known: set[str]) -> list[tuple[str, OpOverload]]:
    """Return the overloads that autocast looks at: those of PyTorch's own list for CUDA, or all that make tensors."""
    has = torch._C._dispatch_has_kernel_for_dispatch_key
    found = [(base if o == "default" else f"{base}.{o}", f) for o, f in overloads(base)]
    found = [
        (n, f) for n, f in found if f"aten::{n}" in known and not _names_dims(f) and not _writes(f)
    ]
    return [(n, f) for n, f in found if has(f"aten::{n}", "AutocastCUDA")] or found


def _names_dims(operator: OpOverload) -> bool:
    return any("Dimname" in str(a.type) for a in operator._schema.arguments)


def _writes(operator: OpOverload) -> bool:
    return any(
        a.alias_info is not None and a.alias_info.is_write for a in operator._schema.arguments
    )


def _cast(value: object, dtype: torch.dtype) -> object:
    if isinstance(value, torch.Tensor):
        cast = value.is_floating_point() and value.dtype is not dtype and on_device(value)
        return _cast_of(value, dtype) if cast else value
    if isinstance(value, (list, tuple)):
        return type(value)(_cast(v, dtype) for v in value)
    return value


def _cast_of(x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Return a tensor in `dtype`; a parameter is cast once until the outermost context ends, as in PyTorch."""
    kept = (
        x.dtype is torch.float32
        and dtype is not torch.float32
        and x.requires_grad
        and x.is_leaf
        and not x._is_view()
        and torch.is_autocast_cache_enabled()
        and not torch.is_inference_mode_enabled()
    )
    if not kept:
        return x.to(dtype)
    found = _casts.get(id(x))
    if found is not None and found[0]() is x and found[1].dtype is dtype:
        return found[1]
    with torch.enable_grad():
        cast = x.to(dtype)
    _casts[id(x)] = weakref.ref(x), cast
    return cast


def _forget(original: Callable[[], None]) -> Callable[[], None]:
    def clear_autocast_cache() -> None:
        """Forget the parameters that were cast, on all devices."""
        _casts.clear()
        original()

    return clear_autocast_cache


def _widest_of(values: Iterable[object], found: torch.dtype) -> torch.dtype:
    for v in tensors_of(values):
        if on_device(v) and v.dtype is torch.float32:
            found = torch.float32
    return found


def _under_autocast(operator: OpOverload, rule: str) -> Kernel:
    """Return what an operator does under autocast: see `AutocastRule`."""
    names = [a.name for a in operator._schema.arguments]
    # The result's type is asked for where the operator has a word for it.
    dtype_at = names.index("dtype") if rule == "fp32_result" and "dtype" in names else None

    def run(*args: Any, **kwargs: Any) -> Any:
        """Run the operator below autocast, on the operands that the rule gives it."""
        if rule == "refuse":
            raise RuntimeError(UNSAFE)
        guard = torch._C._ExcludeDispatchKeyGuard(AUTOCAST_KEYS)
        if dtype_at is not None:
            given = args[dtype_at] if len(args) > dtype_at else kwargs.get("dtype")
            if given is None and args[0].is_floating_point():
                args, kwargs = args[:dtype_at], {**kwargs, "dtype": torch.float32}
            with guard:
                return operator(*args, **kwargs)
        dtype = torch.float32
        if rule in ("lower", "promote"):
            dtype = torch.get_autocast_dtype("webgpu")
        if rule == "promote":
            dtype = _widest_of((*args, *kwargs.values()), dtype)
        with guard:
            return operator(
                *[_cast(a, dtype) for a in args],
                **{k: _cast(v, dtype) for k, v in kwargs.items()},
            )

    return run


def register() -> None:
    """Register what autocast does: the entries' rules for accelerators."""
    library = torch.library.Library("aten", "IMPL")
    everything = torch.library.Library("_", "IMPL")
    everything.fallback(torch.library.fallthrough_kernel, "AutocastPrivateUse1")
    libraries.extend((library, everything))
    # The end of the outermost context calls it.
    torch.clear_autocast_cache = _forget(torch.clear_autocast_cache)
    known = dispatched()
    for base, rule in AUTOCAST.items():
        for name, operator in _ruled(base, known) if rule != "whole" else ():
            library.impl(name, _under_autocast(operator, rule), "AutocastPrivateUse1")
