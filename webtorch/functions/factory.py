"""What functions that make tensors have in common: the options that they take, and what becomes of these.

Such a function is written as what it makes, `zeros(new)`: a tensor of a shape, type and device. A decorator adds the
arguments that tell these; what users see is one signature of both.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from webtorch.errors import ShapeError
from webtorch.functions import movement
from webtorch.functions.movement import laid_out, sizes_of
from webtorch.ir.dtype import DType, of_python
from webtorch.ir.view import Shape
from webtorch.ops.primitive import cast_to, each
from webtorch.tensors.above import ask
from webtorch.tensors.calls import check_out, store_in
from webtorch.tensors.device import DeviceLike
from webtorch.tensors.formats import layout as Layout
from webtorch.tensors.formats import memory_format as MemoryFormat
from webtorch.tensors.formats import strided
from webtorch.tensors.promotion import get_default_dtype
from webtorch.tensors.tensor import Tensor

# The shape, type and device of a tensor that is to be made.
New: TypeAlias = tuple[Shape, DType, DeviceLike]
Function: TypeAlias = Callable[..., Tensor]


def chosen_dtype(dtype: DType | None, otherwise: DType | None = None) -> DType:
    """Return the type that a `dtype=` argument means; Python's float, int, bool and complex are taken too."""
    if dtype is None:
        return get_default_dtype() if otherwise is None else otherwise
    found = of_python(dtype)
    if not isinstance(found, DType):
        raise TypeError(
            f"argument 'dtype' must be torch.dtype, not {type(dtype).__name__}: {dtype!r}"
        )
    return found


def own_options(input: Tensor, dtype: DType | None, device: DeviceLike) -> tuple[DType, Any]:
    """Return the type and device of a new tensor, which are input's unless given."""
    return chosen_dtype(dtype, input.dtype), input.device if device is None else device


def size_of(op: str, args: Sequence[object], size: Sequence[int] | None = None) -> Shape:
    """Return the shape of `f(2, 3)`, `f((2, 3))` or `f(size=(2, 3))`. Raises ShapeError for negative sizes."""
    shape = sizes_of(op, args, size)
    if shape and min(shape) < 0:
        raise ShapeError(
            f"Trying to create tensor with negative dimension {min(shape)}: {list(shape)}"
        )
    count = math.prod(shape)
    if count >= 1 << 60:
        raise RuntimeError(f"Storage size calculation overflowed with sizes={list(shape)}")
    if not count and math.prod([n or 1 for n in shape]) >= 1 << 63:
        raise RuntimeError("Stride calculation overflowed")
    return shape


def finish(
    result: Tensor, requires_grad: bool, out: Tensor | None = None, name: str = ""
) -> Tensor:
    """Apply `requires_grad=` and `out=` to a new tensor."""
    if out is not None:
        check_out(name, out)
        if name in ("normal", "bernoulli"):
            # Drawn in place, whatever the type.
            result = cast_to(result, out.dtype)
        if result.dtype is not out.dtype:
            raise RuntimeError(
                f"dtype {result.dtype.legacy} does not match dtype of out parameter ({out.dtype.legacy})"
            )
        result = store_in(out, result, name)
    if requires_grad:
        if not result.dtype.has_gradient:
            raise RuntimeError(
                "Only Tensors of floating point and complex dtype can require gradients"
            )
        result.requires_grad_(True)
    return result


def like(
    make: Callable[[Shape], Tensor], input: Tensor, memory_format: MemoryFormat | None = None
) -> Tensor:
    """Return make(shape) with the layout of `input` when that is dense, as PyTorch's *_like functions do."""
    strides = movement.strides_for(input._shape, input._strides, memory_format)
    return each(laid_out(strides, lambda x: make(x._shape), input.detach()), input)


def joined_signature(function: Function, make: Callable[..., object]) -> Function:
    """Return `function` with the name and documentation of `make`, and with what that takes besides its first argument:
    `function` passes this on as its `*own` and `**named`.
    """
    plain = inspect.signature(function)
    general = [p for p in plain.parameters.values() if p.name not in ("own", "named")]
    _, *taken = inspect.signature(make).parameters.values()
    own = [p for p in taken if p.name not in plain.parameters]

    def place(p: inspect.Parameter) -> tuple[bool, ...]:
        """Return what sorts it among those of its kind: by position its own come last; by name before the options, but
        behind `size`, the name of `*args`.
        """
        if p.kind is p.KEYWORD_ONLY:
            return (p.name != "size", p not in own)
        return (p in own,)

    parameters = sorted([*general, *own], key=lambda p: (p.kind, place(p)))
    function.__signature__ = plain.replace(parameters=parameters)  # type: ignore[attr-defined]
    function.__name__ = function.__qualname__ = make.__name__
    function.__doc__, function.__module__ = make.__doc__, make.__module__
    return function


def of_sizes(make: Function) -> Function:
    """Return `make(new, ...)` as a function of sizes, given one by one or together."""
    name = make.__name__

    def function(
        *args: object,
        size: Sequence[int] | None = None,
        out: Tensor | None = None,
        dtype: DType | None = None,
        layout: Layout | None = None,
        device: DeviceLike = None,
        pin_memory: bool = False,
        requires_grad: bool = False,
        **named: object,
    ) -> Tensor:
        """Make a tensor of the sizes."""
        if out is not None:
            check_out(name, out)
        wanted = chosen_dtype(dtype, None if out is None else out.dtype)
        where = device if out is None else out.device
        shape = size_of(name, args, size)
        if layout is not None and layout is not strided:
            if out is not None and out.layout is not layout:
                raise RuntimeError(
                    f"layout {layout} does not match layout of out parameter ({out.layout})"
                )
            return finish(ask("empty_sparse")(name, shape, wanted, where, layout), requires_grad)
        made = make((shape, wanted, where), **named)
        return finish(made, requires_grad, out, name)

    return joined_signature(function, make)


def like_another(make: Function) -> Function:
    """Return `make(new, ...)` as a function of a tensor whose shape, layout, type and device the new one has."""

    def function(
        input: Tensor,
        *own: object,
        dtype: DType | None = None,
        layout: Layout | None = None,
        device: DeviceLike = None,
        pin_memory: bool = False,
        requires_grad: bool = False,
        memory_format: MemoryFormat | None = None,
        **named: object,
    ) -> Tensor:
        """Make a tensor like another one."""
        wanted, where = own_options(input, dtype, device)

        def made(shape: Shape) -> Tensor:
            """Return the new tensor, row-major."""
            return make((shape, wanted, where), *own, **named)

        return finish(like(made, input, memory_format), requires_grad)

    return joined_signature(function, make)


def of_own_kind(make: Function) -> Function:
    """Return `make(new)` as a tensor's method of sizes: the new tensor has its type and device."""
    name = make.__name__

    def function(
        input: Tensor,
        *args: object,
        size: Sequence[int] | None = None,
        dtype: DType | None = None,
        layout: Layout | None = None,
        device: DeviceLike = None,
        pin_memory: bool = False,
        requires_grad: bool = False,
    ) -> Tensor:
        """Make a tensor of the sizes, of the kind that a tensor is of."""
        wanted, where = own_options(input, dtype, device)
        made = make((size_of(name, args, size), wanted, where))
        return finish(each(made, input), requires_grad)

    return joined_signature(function, make)
