"""Carries PyTorch's test inputs over: values, layouts, and the functions that its test database calls."""

from __future__ import annotations

import contextlib
import operator
import types
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

import webtorch
from webtorch.ir.dtype import DType


class Missing(Exception):
    """PyTorch has a name that webtorch has not."""


class Unsupported(Exception):
    """An input of a kind that webtorch does not have at all: sparse, quantised, complex of 16 bits."""


def dtype(theirs: torch.dtype) -> DType:
    """Return our dtype of PyTorch's name."""
    found = getattr(webtorch, str(theirs).removeprefix("torch."), None)
    if not isinstance(found, DType):
        raise Unsupported(str(theirs))
    return found


Memory = dict[int, Any]


def tensor(theirs: torch.Tensor, device: str, memory: Memory | None = None) -> Any:
    """Return the same values in the same layout on our device; a leaf that wants a gradient if theirs
    does. Tensors carried with the same `memory` overlap where theirs do.
    """
    if theirs.layout is not torch.strided or theirs.is_quantized:
        raise Unsupported(f"{theirs.layout} {theirs.dtype}")
    plain = theirs.detach().resolve_conj().resolve_neg()
    storage = plain.untyped_storage()
    count = storage.nbytes() // plain.element_size()
    whole = torch.empty(0, dtype=plain.dtype).set_(storage, 0, (count,), (1,))
    target = dtype(plain.dtype)
    flat = None if memory is None else memory.get(storage._cdata)
    if flat is None or flat.dtype is not target:
        if count:
            data = bytearray(whole.view(torch.uint8).numpy())
            flat = webtorch.frombuffer(data, dtype=target).to(device)
        else:
            flat = webtorch.empty(0, dtype=target, device=device)
        if memory is not None:
            memory[storage._cdata] = flat
    shape, strides = tuple(plain.shape), tuple(plain.stride())
    if not (plain.is_contiguous() and plain.storage_offset() == 0 and plain.numel() == count):
        ours = flat.as_strided(shape, strides, plain.storage_offset())
    else:
        ours = flat.reshape(shape)
    ours = ours.detach()
    return ours.requires_grad_() if theirs.requires_grad else ours


def value(theirs: Any, device: str, memory: Memory | None = None) -> Any:
    """Return an argument as we take it: tensors, dtypes, devices and containers of these."""
    match theirs:
        case torch.nn.Parameter() | torch.Tensor():
            return tensor(theirs, device, memory)
        case torch.dtype():
            return dtype(theirs)
        case torch.device():
            return webtorch.device(device)
        case torch.Size():
            return tuple(theirs)
        case torch.memory_format() | torch.layout():
            found = getattr(webtorch, str(theirs).removeprefix("torch."), None)
            if found is None:
                raise Unsupported(str(theirs))
            return found
        case slice():
            return slice(
                *(value(v, device, memory) for v in (theirs.start, theirs.stop, theirs.step))
            )
        case dict():
            return {
                k: device if k == "device" and v is not None else value(v, device, memory)
                for k, v in theirs.items()
            }
        case tuple() if hasattr(theirs, "_fields"):
            return tuple(value(v, device, memory) for v in theirs)
        case list() | tuple():
            return type(theirs)(value(v, device, memory) for v in theirs)
        case torch.nn.Module():
            return getattr(webtorch.nn, type(theirs).__name__)()
        case types.FunctionType() | types.BuiltinFunctionType():
            return function(theirs)
    return theirs


def back(ours: Any) -> torch.Tensor:
    """Return our tensor as PyTorch's, on the CPU."""
    ours = ours.detach().cpu()
    target = getattr(torch, ours.dtype.name)
    if ours.dtype is webtorch.bfloat16:
        return torch.from_numpy(np.array(ours.float().numpy())).to(target).reshape(ours.shape)
    return torch.from_numpy(np.array(ours.numpy())).reshape(tuple(ours.shape))


# -- functions ----------------------------------------------------------------------------------------


def by_name(name: str) -> Callable[..., Any]:
    """Return our function called `name`, such as "linalg.solve". Raises Missing."""
    found: Any = webtorch
    for part in name.split("."):
        found = getattr(found, part, None)
        if found is None:
            raise Missing(name)
    return found  # type: ignore[no-any-return]


def _catalogue() -> dict[int, list[str]]:
    """Return where each function of PyTorch is found: id -> names."""
    found: dict[int, list[str]] = {}
    for place in ("", "nn.functional", "linalg", "special", "fft", "signal.windows", "masked"):
        module: Any = torch
        for part in filter(None, place.split(".")):
            module = getattr(module, part)
        for name in dir(module):
            item = getattr(module, name)
            if callable(item) and not isinstance(item, type):
                found.setdefault(id(item), []).append(f"{place}.{name}".lstrip("."))
    for name in dir(torch.Tensor):
        item = getattr(torch.Tensor, name)
        if callable(item):
            found.setdefault(id(item), []).append(f"Tensor.{name}")
    return found


_NAMES = _catalogue()
_made: dict[int, Any] = {}


class _Torch:
    """What the database's own helpers see as `torch`."""

    def __getattr__(self, name: str) -> Any:
        found = getattr(webtorch, name, None)
        if found is None:
            raise Missing(name)
        return found


_TORCH = _Torch()


def function(theirs: Any) -> Any:
    """Return our counterpart of a function that the database calls.

    Functions of PyTorch are found by name; the database's own helpers run again with webtorch as
    their `torch`. Raises Missing.
    """
    names = _NAMES.get(id(theirs), ())
    for name in names:
        with contextlib.suppress(Missing):
            return by_name(name)
    if names:
        raise Missing(names[0])
    if not isinstance(theirs, types.FunctionType):
        name = getattr(theirs, "__name__", "")
        if getattr(operator, name, None) is theirs:
            return theirs
        raise Missing(name or repr(theirs))
    if id(theirs) in _made:
        return _made[id(theirs)]
    if not theirs.__module__.startswith("torch.testing"):
        raise Missing(f"{theirs.__module__}.{theirs.__name__}")
    cells = tuple(types.CellType(_rebound(c.cell_contents)) for c in theirs.__closure__ or ())
    scope = {**theirs.__globals__, "torch": _TORCH}
    if "F" in scope:
        scope["F"] = webtorch.nn.functional
    made = types.FunctionType(theirs.__code__, scope, theirs.__name__, theirs.__defaults__, cells)
    made.__kwdefaults__ = theirs.__kwdefaults__
    _made[id(theirs)] = made
    # Its neighbours in the file, where it calls them.
    for name in theirs.__code__.co_names:
        item = theirs.__globals__.get(name)
        if isinstance(item, types.FunctionType) and item.__module__ == theirs.__module__:
            scope[name] = function(item)
    return made


def _rebound(item: Any) -> Any:
    if item is torch:
        return _TORCH
    return function(item) if callable(item) and not isinstance(item, type) else item
