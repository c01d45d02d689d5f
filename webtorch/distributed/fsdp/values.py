"""Tensors in what modules are given and return, nested as they are."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

from webtorch.ir.dtype import DType
from webtorch.tensors.tensor import Tensor


def mapped(value: Any, function: Callable[[Tensor], Any]) -> Any:
    """Return a value whose tensors, also in lists, tuples, dicts, sets and dataclasses, are what a function makes of
    them; itself where that changes nothing.
    """
    if isinstance(value, Tensor):
        return function(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {f.name: getattr(value, f.name) for f in dataclasses.fields(value) if f.init}
        made = {name: mapped(v, function) for name, v in fields.items()}
        same = all(made[name] is v for name, v in fields.items())
        return value if same else dataclasses.replace(value, **made)
    if isinstance(value, Mapping):
        made = {key: mapped(v, function) for key, v in value.items()}
        if all(made[key] is v for key, v in value.items()):
            return value
        return made if type(value) is dict else type(value)(made)  # type: ignore[call-arg]
    if isinstance(value, (list, tuple, set)):
        items = list(value)
        parts = [mapped(v, function) for v in items]
        if all(p is v for p, v in zip(parts, items, strict=True)):
            return value
        return type(value)(*parts) if hasattr(value, "_fields") else type(value)(parts)
    return value


def with_gradients(value: Any) -> list[Tensor]:
    """Return the tensors in a value that require gradients."""
    found: list[Tensor] = []

    def look(x: Tensor) -> Tensor:
        """Note a tensor that requires a gradient."""
        if x.requires_grad:
            found.append(x)
        return x

    mapped(value, look)
    return found


def cast(value: Any, dtype: DType | None) -> Any:
    """Return a value whose tensors of floating point have another type; None: as they are."""
    if dtype is None:
        return value
    return mapped(value, lambda x: x.to(dtype) if x.is_floating_point() else x)
