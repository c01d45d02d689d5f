"""Tensors of float64 and complex128 on "webgpu": WebGPU lacks these types, and webtorch's CPU engine has them. Floor 6.

Where WebGPU is the engine they are refused, unless WEBTORCH_FLOAT64=cpu asks for what follows.

To PyTorch they are tensors on the device like any other. An operator that takes one, is asked for a result of such a
type, or makes one of integers as that is the default type, is computed on the host, which waits for the device where
other operands lie there; its results of other types go back to the device. Tensors without dims do not slow others
down: they take their type.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from webtorch.ir.dtype import DType
from webtorch.ops.purity import looks
from webtorch.pytorch.device import (
    TO_TORCH,
    UNSUPPORTED,
    cast,
    has_wide,
    here,
    host,
    runtime,
    webtorch_dtype,
)
from webtorch.tensors.device import device_of
from webtorch.tensors.promotion import get_default_dtype
from webtorch.tensors.tensor import Tensor
from webtorch.utils._pytree import tree_map_only


def _each(values: Iterable[object]) -> Iterable[Any]:
    for v in values:
        if isinstance(v, (list, tuple)):
            yield from _each(v)
        else:
            yield v


def _kind_of(value: object) -> object:
    return value.dtype if isinstance(value, Tensor) else value


def _is_wide(value: object) -> bool:
    kind = _kind_of(value)
    return isinstance(kind, DType) and kind in UNSUPPORTED


def _is_whole(value: object) -> bool:
    kind = _kind_of(value)
    return isinstance(kind, DType) and kind.kind in ("bool", "int", "uint")


def _refused(x: Tensor) -> Tensor:
    """Return a result of integers; raise DTypeError where it would have the default type, which is not available."""
    return x if _is_whole(x) else cast(x, webtorch_dtype(TO_TORCH[get_default_dtype()]))


def placed(function: Callable[..., object]) -> Callable[..., Any]:
    """Return a meaning that is computed where its operands can be."""

    def run(*values: object, **options: object) -> object:
        """Compute it on the device, or on the host."""
        given = [
            v for v in (*_each(values), *_each(options.values())) if isinstance(v, (Tensor, DType))
        ]
        wide = [v for v in given if _is_wide(v)]
        if (not wide and get_default_dtype() not in UNSUPPORTED) or host() is runtime():
            return function(*values, **options)
        if not wide and not all(map(_is_whole, given)):
            return function(*values, **options)
        looks()
        if not wide and not has_wide():
            return tree_map_only(Tensor, _refused, function(*values, **options))
        tensors = [v for v in given if isinstance(v, Tensor)]
        kinds = {v.dtype for v in tensors if v.ndim and v.dtype.kind == "float"}
        if len(kinds) == 1 and all(
            isinstance(v, Tensor) and not v.ndim and not v.dtype.is_complex for v in wide
        ):
            (kind,) = kinds
            there = [
                tree_map_only(Tensor, lambda x: cast(x, kind) if _is_wide(x) else x, v)
                for v in (values, options)
            ]
            return function(*there[0], **there[1])
        where = device_of(host())
        there = [tree_map_only(Tensor, lambda x: x.to(where), v) for v in (values, options)]
        found = function(*there[0], **there[1])
        return tree_map_only(Tensor, lambda x: x if _is_wide(x) else x.to(here()), found)

    return run
