"""Tensors of float64 and complex128 on "webgpu": WebGPU lacks these types, and webtorch's CPU engine has them. Floor 6.

Where WebGPU is the engine they are refused, unless WEBTORCH_FLOAT64=cpu asks for what follows.

To PyTorch they are tensors on the device like any other. An operator that takes one, or is asked for a result of such a
type, is computed on the host, which waits for the device where other operands lie there; its results of other types go
back to the device. Tensors without dims do not slow others down: they take their type.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from webtorch.ir.dtype import DType
from webtorch.ops.purity import looks
from webtorch.pytorch.device import UNSUPPORTED, cast, here, host, runtime
from webtorch.tensors.tensor import Tensor
from webtorch.utils._pytree import tree_map_only


def _each(values: Iterable[object]) -> Iterable[Any]:
    for v in values:
        if isinstance(v, (list, tuple)):
            yield from _each(v)
        else:
            yield v


def _is_wide(value: object) -> bool:
    kind = value.dtype if isinstance(value, Tensor) else value
    return isinstance(kind, DType) and kind in UNSUPPORTED


def placed(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a meaning that is computed where its operands can be."""

    def run(*values: Any, **options: Any) -> Any:
        """Compute it on the device, or on the host."""
        given = [*_each(values), *_each(options.values())]
        wide = [v for v in given if _is_wide(v)]
        if not wide or host() is runtime():
            return function(*values, **options)
        looks()
        kinds = {
            v.dtype for v in given if isinstance(v, Tensor) and v.ndim and v.dtype.kind == "float"
        }
        if len(kinds) == 1 and all(
            isinstance(v, Tensor) and not v.ndim and not v.dtype.is_complex for v in wide
        ):
            (kind,) = kinds
            there = [
                tree_map_only(Tensor, lambda x: cast(x, kind) if _is_wide(x) else x, v)
                for v in (values, options)
            ]
            return function(*there[0], **there[1])
        where = here(wide[0].dtype if isinstance(wide[0], Tensor) else wide[0])
        there = [tree_map_only(Tensor, lambda x: x.to(where), v) for v in (values, options)]
        found = function(*there[0], **there[1])
        return tree_map_only(Tensor, lambda x: x if _is_wide(x) else x.to(here()), found)

    return run
