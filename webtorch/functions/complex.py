"""Complex numbers: making them, their parts, conjugates and signs.

A complex tensor is a view of real pairs (`tensors/primitives.py`). What stands here composes real operations
on the pairs, so that gradients follow PyTorch's convention by themselves: the cotangent of a complex number is
that of its two parts, as one number.
"""

from __future__ import annotations

from typing import Any

from webtorch.errors import DTypeError
from webtorch.functions import movement, pointwise
from webtorch.ir.dtype import bfloat16, float16, float32, float64
from webtorch.ops import circular, comparison, elementwise
from webtorch.ops.primitive import (
    conjugate,
    imag_part,
    join,
    paired,
    pairs,
    real_part,
)
from webtorch.ops.record import Autocast, Example, composite
from webtorch.tensors.tensor import Tensor

FUNCTION = ("torch",)


def parts_together(name: str, first: Any, second: Any) -> tuple[Tensor, ...]:
    """Return two real tensors of one dtype, broadcast to one shape. Raises RuntimeError."""
    for position, (x, title) in enumerate(((first, "real"), (second, "imag")), 1):
        if not isinstance(x, Tensor):
            title = title if name == "complex" else ("abs", "angle")[position - 1]
            raise TypeError(
                f"{name}(): argument '{title}' (position {position}) must be Tensor, not {type(x).__name__}"
            )
        if x.dtype.kind != "float" or x.dtype is bfloat16:
            raise DTypeError(
                "Expected both inputs to be Half, Float or Double tensors but got "
                f"{first.dtype.legacy} and {second.dtype.legacy}"
            )
    if first.dtype is not second.dtype:
        raise DTypeError(
            f"Expected object of scalar type {first.dtype.legacy} but got scalar type {second.dtype.legacy} for "
            "second argument"
        )
    return movement.broadcast_tensors(first, second)


@composite(name="complex", function_in=FUNCTION, once=True)
def complex_(real: Tensor, imag: Tensor) -> Tensor:
    """The complex tensor of a real and an imaginary part of one float type."""
    return join(*parts_together("complex", real, imag))


@composite(function_in=FUNCTION, autocast=Autocast(cpu="fp32"), gradient_name="PolarBackward0")
def polar(abs: Tensor, angle: Tensor) -> Tensor:
    """The complex tensor of absolute values and angles: abs * (cos(angle) + i sin(angle))."""
    size, turn = parts_together("polar", abs, angle)
    if size.dtype is float16:
        raise NotImplementedError("\"polar_cpu\" not implemented for 'Half'")
    return join(size * circular.cos(turn), size * circular.sin(turn))


@composite(family="movement", function_in=FUNCTION, geometry=("view_as_real",))
def view_as_real(input: Tensor) -> Tensor:
    """The real and imaginary parts of a complex tensor along a last dim of size 2: a view."""
    if not input.dtype.is_complex:
        raise RuntimeError("view_as_real is only supported for complex tensors")
    return pairs(input)


@composite(family="movement", function_in=FUNCTION, geometry=("view_as_complex",))
def view_as_complex(input: Tensor) -> Tensor:
    """The complex tensor whose parts are along the last dim of a real one: a view."""
    if input.dtype not in (float16, float32, float64):
        raise RuntimeError(
            f"view_as_complex is only supported for half, float and double tensors, but got a tensor of scalar "
            f"type: {input.dtype}"
        )
    if not input._shape:
        raise RuntimeError("Input tensor must have one or more dimensions")
    if input._shape[-1] != 2:
        raise RuntimeError("Tensor must have a last dimension of size 2")
    if input._strides[-1] != 1:
        raise RuntimeError("Tensor must have a last dimension with stride 1")
    if any(st % 2 for st in input._strides[:-1]):
        raise RuntimeError("Tensor must have a stride divisible by 2 for all but last dimension")
    if input._offset % 2:
        raise RuntimeError("Tensor must have a storage_offset divisible by 2")
    return paired(input)


@composite(function_in=FUNCTION, example=Example((), ("c6",)))
def view_as_real_copy(input: Tensor) -> Tensor:
    """What view_as_real gives, in memory of its own."""
    return movement.clone(view_as_real(input))


@composite(function_in=FUNCTION, example=Example(((5, 2),)))
def view_as_complex_copy(input: Tensor) -> Tensor:
    """What view_as_complex gives, in memory of its own."""
    return movement.clone(view_as_complex(input))


@composite(family="movement", function_in=FUNCTION)
def real(input: Tensor) -> Tensor:
    """The real part: a view; of real numbers, the tensor itself."""
    return real_part(input) if input.dtype.is_complex else input


@composite(family="movement", function_in=FUNCTION)
def imag(input: Tensor) -> Tensor:
    """The imaginary part of a complex tensor: a view."""
    if not input.dtype.is_complex:
        raise RuntimeError("imag is not implemented for tensors with non-complex dtypes.")
    return imag_part(input)


@composite(family="movement")
def conj(input: Tensor) -> Tensor:
    """The conjugate, in memory of its own; real numbers are their own conjugates: the tensor itself."""
    return conjugate(input)


@composite(
    family="movement", inplace=True, inplace_functions=("torch.conj_physical_",), overlap="whole"
)
def conj_physical(input: Tensor) -> Tensor:
    """The conjugate; a copy of real numbers."""
    return conjugate(input) if input.dtype.is_complex else movement.clone(input)


@composite(family="movement")
def resolve_conj(input: Tensor) -> Tensor:
    """The tensor itself: conj() makes a tensor of its own."""
    return input


@composite(family="movement")
def resolve_neg(input: Tensor) -> Tensor:
    """The tensor itself."""
    return input


@composite(
    inplace=True,
    gradient_name="SgnBackward0",
    once=True,
    on_values=True,
    overlap="whole",
    aten=("sgn",),
)
def sgn(input: Tensor) -> Tensor:
    """The number of absolute value 1 and the same angle, 0 for 0; the sign of real numbers."""
    if not input.dtype.is_complex:
        return elementwise.sign(input)
    size = elementwise.abs(input)
    one = pointwise.where(comparison.eq(size, 0), 1.0, size)
    return paired(pairs(input) / one.unsqueeze(-1))
