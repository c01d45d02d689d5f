"""The types of results: PyTorch's promotion among tensors and Python numbers. Floor 4."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import TypeAlias

from webtorch.ir.dtype import (
    DType,
    Number,
    bool_,
    float32,
    int64,
    kind_of_scalar,
    of_python,
    promote_types,
)
from webtorch.tensors.above import give
from webtorch.tensors.tensor import Tensor

Operand: TypeAlias = Tensor | Number
_default_dtype = float32
# What drops what was worked out from the default dtype.
depending: list[Callable[[], None]] = []


def get_default_dtype() -> DType:
    """Return the dtype of new floating-point tensors."""
    return _default_dtype


def set_default_dtype(d: DType) -> None:
    """Set the dtype of new floating-point tensors. Raises TypeError for other types."""
    global _default_dtype
    if not getattr(d, "is_floating_point", False):
        raise TypeError("only floating-point types are supported as the default type")
    _default_dtype = d
    _promoted.cache_clear()
    for drop in depending:
        drop()


def _combine(higher: DType | None, lower: DType | None) -> DType | None:
    """PyTorch's rule between a group of operands that sets the width and one that may only raise
    the category.
    """
    if higher is None or lower is None:
        return higher or lower
    if higher.is_complex:
        return higher
    if higher.kind == "float":
        return higher.to_complex() if lower.is_complex else higher
    if higher.kind == "bool" or lower.has_gradient:
        return promote_types(higher, lower)
    return higher


@lru_cache(maxsize=4096)
def _promoted(dims: tuple[DType, ...], zeros: tuple[DType, ...], kinds: tuple[str, ...]) -> DType:
    def join(types: Sequence[DType]) -> DType | None:
        """Return the type that all of some are promoted to; None of none."""
        out: DType | None = None
        for t in types:
            out = t if out is None else promote_types(out, t)
        return out

    scalars = {"bool": bool_, "int": int64, "float": _default_dtype}
    if "complex" in kinds:
        scalars["complex"] = _default_dtype.to_complex()
    found = _combine(join(dims), _combine(join(zeros), join([scalars[k] for k in kinds])))
    return _default_dtype if found is None else found


def result_type(*operands: Operand) -> DType:
    """Return the dtype that arithmetic on these tensors and numbers gives."""
    dims = tuple([o.dtype for o in operands if isinstance(o, Tensor) and o._shape])
    zeros = tuple([o.dtype for o in operands if isinstance(o, Tensor) and not o._shape])
    kinds = tuple([kind_of_scalar(o) for o in operands if not isinstance(o, Tensor)])
    return _promoted(dims, zeros, kinds)


def can_cast(from_: DType, to: DType) -> bool:
    """Return whether PyTorch allows writing results of one dtype to a tensor of another."""
    from_, to = of_python(from_), of_python(to)
    order = {"bool": 0, "uint": 1, "int": 1, "float": 2, "complex": 3}
    return order[from_.kind] <= order[to.kind]


give(get_default_dtype=get_default_dtype)
