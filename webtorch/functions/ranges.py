"""Tensors whose values follow from their positions: ranges, steps, the identity, indices of triangles."""

from __future__ import annotations

import math
from typing import Any

from webtorch.functions import movement, pointwise, repeating
from webtorch.functions.creation import (
    TORCH,
    fits,
    made_of,
    number_of,
)
from webtorch.functions.factory import chosen_dtype, finish
from webtorch.ir.dtype import (
    DType,
    Number,
    Scalar,
    bool_,
    int64,
    integer_limits,
)
from webtorch.ops import comparison
from webtorch.ops.primitive import cast_to, fill, iota, join
from webtorch.ops.record import Example, Family, composite
from webtorch.tensors.device import DeviceLike
from webtorch.tensors.formats import layout as Layout
from webtorch.tensors.promotion import get_default_dtype
from webtorch.tensors.tensor import Tensor

FAMILY: Family = "creation"


def filled(result: Tensor, requires_grad: bool, out: Tensor | None, name: str) -> Tensor:
    """Finish; an `out=` of as many elements keeps its shape, and takes them in order."""
    if out is not None and out.numel() == result.numel():
        result = movement.reshape(result, out._shape)
    return finish(result, requires_grad, out, name)


def _range_count(start: Scalar, end: Scalar, step: Scalar, dtype: DType) -> int:
    if not all(map(math.isfinite, (start, end))):
        raise RuntimeError(f"unsupported range: {start} -> {end}")
    if step == 0 or not math.isfinite(step):
        raise RuntimeError("step must be nonzero")
    if (step > 0 and end < start) or (step < 0 and end > start):
        raise RuntimeError(
            "upper bound and lower bound inconsistent with step sign: "
            f"arange({start}, {end}, {step})"
        )
    if isinstance(start, float) or isinstance(end, float) or isinstance(step, float):
        return math.ceil((end - start) / step)
    return -(-(end - start) // step)


@composite(function_in=TORCH, factory=True)
def arange(
    *args: object,
    start: Number | None = None,
    end: Number | None = None,
    step: Number | None = None,
    out: Tensor | None = None,
    dtype: DType | None = None,
    layout: Layout | None = None,
    device: DeviceLike = None,
    pin_memory: bool = False,
    requires_grad: bool = False,
) -> Tensor:
    """The numbers start, start + step, ... before end: arange(end), arange(start, end), arange(start, end, step).

    Without dtype, int64 when all three are integers, else the default float type.
    """
    if len(args) > 3:
        raise TypeError(
            f"arange() takes from 1 to 3 positional arguments but {len(args)} were given"
        )
    values = list(args)
    first: Any
    last: Any
    stride: Any
    if len(values) == 1 and end is None:
        first, last, stride = 0, values[0], step
    elif values:
        first, last, stride = (*values, None, None)[:3] if end is None else (values[0], end, None)
        stride = step if stride is None else stride
    else:
        first, last, stride = start, end, step
    if last is None:
        raise TypeError("arange() received an invalid combination of arguments: `end` is missing")
    numbers: list[Any] = [number_of(0 if v is None else v) for v in (first, last)]
    numbers.append(number_of(1 if stride is None else stride))
    if dtype is None and out is None:
        wanted = get_default_dtype() if any(isinstance(v, float) for v in numbers) else int64
    else:
        wanted = chosen_dtype(dtype, None if out is None else out.dtype)
    if wanted is bool_:
        raise NotImplementedError("\"arange\" not implemented for 'Bool'")
    if wanted.is_complex or any(isinstance(v, complex) for v in numbers):
        raise NotImplementedError('"arange" not implemented for complex numbers')
    if wanted is int64:
        if 0 < abs(numbers[2]) < 1:
            raise ValueError(
                f"arange: step must be nonzero: {numbers[2]} is 0 in {wanted}; pass a dtype that holds it"
            )
        numbers = [int(v) if math.isfinite(v) else v for v in numbers]
    low_end, high_end, step_by = numbers
    count = _range_count(low_end, high_end, step_by, wanted)
    kind: Any = float if wanted.kind == "float" else int
    first, stride = kind(low_end), kind(step_by)
    where = device if out is None else out.device
    counted = wanted
    if wanted.kind != "float" and count:
        low, high = integer_limits(wanted)
        if not (low <= first <= high and low <= first + (count - 1) * stride <= high):
            # Numbers past the end of a narrow type begin again at its other end.
            counted = int64
    result = cast_to(iota(count, first, stride, counted, where), wanted)
    return filled(result, requires_grad, out, "arange")


def _steps(start: Scalar, end: Scalar, steps: int, dtype: DType, device: DeviceLike) -> Tensor:
    """Return `steps` numbers from start to end, both exact: each half counts from its own end."""
    if steps <= 1:
        return fill((steps,), float(start), dtype, device)
    step = (float(end) - float(start)) / (steps - 1)
    near = iota(steps, float(start), step, dtype, device)
    back = repeating.flip(iota(steps, float(end), -step, dtype, device), 0)
    half = comparison.lt(iota(steps, 0, 1, int64, device), steps // 2)
    return pointwise.where(half, near, back)


def _complex_steps(
    start: complex, end: complex, steps: int, dtype: DType, device: DeviceLike
) -> Tensor:
    part = dtype.to_real()
    return join(
        _steps(start.real, end.real, steps, part, device),
        _steps(start.imag, end.imag, steps, part, device),
    )


def _compute_dtype(dtype: DType) -> DType:
    return get_default_dtype() if dtype.kind != "float" else dtype.compute


def _check_steps(name: str, steps: object) -> None:
    """Raise TypeError, as PyTorch does, unless the number of steps is an integer."""
    if isinstance(steps, float) or (isinstance(steps, Tensor) and steps.dtype.kind == "float"):
        raise TypeError(
            f"{name}(): argument 'steps' (position 3) must be int, not {type(steps).__name__}"
        )
    if int(number_of(steps)) < 0:
        raise RuntimeError(f"number of steps must be non-negative: {name} got {steps}")


@composite(function_in=TORCH, factory=True, looks_at=("start", "end"))
def linspace(
    start: Number | Tensor,
    end: Number | Tensor,
    steps: int,
    *,
    out: Tensor | None = None,
    dtype: DType | None = None,
    layout: Layout | None = None,
    device: DeviceLike = None,
    pin_memory: bool = False,
    requires_grad: bool = False,
) -> Tensor:
    """`steps` numbers at equal distances from start to end, both included."""
    _check_steps("linspace", steps)
    wanted = chosen_dtype(dtype, None if out is None else out.dtype)
    first, last, count = number_of(start), number_of(end), int(number_of(steps))
    wanted = _of_ends("linspace", wanted, dtype is None and out is None, (first, last))
    if wanted.is_complex:
        result = _complex_steps(complex(first), complex(last), count, wanted, device)
        return filled(result, requires_grad, out, "linspace")
    if wanted.kind != "float" and count > 1:
        # Rounding to the right integer needs the exact quotient, which float32 does not hold.
        return filled(
            made_of(_integer_steps(int(first), int(last), count), wanted, device),
            requires_grad,
            out,
            "linspace",
        )
    result = cast_to(_steps(first, last, count, _compute_dtype(wanted), device), wanted)
    return filled(result, requires_grad, out, "linspace")


def _of_ends(name: str, dtype: DType, free: bool, ends: tuple[object, ...]) -> DType:
    """Return the type of the steps between `ends`: complex where one is and nothing else is asked for (`free`)."""
    if dtype.is_complex or not any(isinstance(v, complex) for v in ends):
        return dtype
    if not free:
        raise RuntimeError(
            f"torch.{name}(): inferred dtype {get_default_dtype().to_complex().c_name} can't be safely cast to passed "
            f"dtype {dtype.legacy}"
        )
    return dtype.to_complex()


def _integer_steps(start: int, end: int, steps: int) -> list[int]:
    step = (end - start) / (steps - 1)
    half = steps // 2
    return [
        int(start + step * i) if i < half else int(end - step * (steps - i - 1))
        for i in range(steps)
    ]


def _wrapped(value: int, dtype: DType) -> int:
    """Return an integer as a type of fewer bits holds it."""
    low, high = integer_limits(dtype)
    return (value - low) % (high - low + 1) + low


def _power(base: float, exponent: float) -> float:
    try:
        found = float(base) ** exponent
    except (OverflowError, ZeroDivisionError):
        return math.inf
    # A root of a negative number is no real number.
    return math.nan if isinstance(found, complex) else found


@composite(function_in=TORCH, factory=True, looks_at=("start", "end"))
def logspace(
    start: Number | Tensor,
    end: Number | Tensor,
    steps: int,
    base: float = 10.0,
    *,
    out: Tensor | None = None,
    dtype: DType | None = None,
    layout: Layout | None = None,
    device: DeviceLike = None,
    pin_memory: bool = False,
    requires_grad: bool = False,
) -> Tensor:
    """Base ** x for `steps` numbers x at equal distances from start to end, both included."""
    _check_steps("logspace", steps)
    wanted = chosen_dtype(dtype, None if out is None else out.dtype)
    first, last, count = number_of(start), number_of(end), int(number_of(steps))
    wanted = _of_ends("logspace", wanted, dtype is None and out is None, (first, last, base))
    if wanted.is_complex:
        exponents = _complex_steps(complex(first), complex(last), count, wanted, device)
        return filled(pointwise.pow(complex(base), exponents), requires_grad, out, "logspace")
    if wanted.kind != "float":
        low, high = integer_limits(wanted)
        start, stop = (_wrapped(int(v), wanted) for v in (first, last))
        step = (stop - start) / (count - 1) if count > 1 else 0
        powers = [_power(base, start + step * i) for i in range(count)]
        numbers = [
            _wrapped(int(p), wanted) if -(2**31) < p < 2**31 or low < p < high else 0
            for p in powers
        ]
        return filled(made_of(numbers, wanted, device), requires_grad, out, "logspace")
    if wanted.itemsize == 2:
        # PyTorch takes the ends in the type of the result.
        first, last = wanted.from_bytes(wanted.to_bytes([float(first), float(last)]))
    result = pointwise.pow(float(base), _steps(first, last, count, _compute_dtype(wanted), device))
    return filled(cast_to(result, wanted), requires_grad, out, "logspace")


@composite(function_in=TORCH, factory=True)
def eye(
    n: int,
    m: int | None = None,
    *,
    out: Tensor | None = None,
    dtype: DType | None = None,
    layout: Layout | None = None,
    device: DeviceLike = None,
    pin_memory: bool = False,
    requires_grad: bool = False,
) -> Tensor:
    """The n x m matrix (n x n without m) with ones on its diagonal."""
    columns = n if m is None else m
    for name, value in (("n", n), ("m", columns)):
        if value < 0:
            raise RuntimeError(f"{name} must be greater or equal to 0, got {value}")
    wanted = chosen_dtype(dtype, None if out is None else out.dtype)
    where = device if out is None else out.device
    if not n or not columns:
        result = fill((n, columns), fits(0, wanted), wanted, where)
    else:
        rows = movement.reshape(iota(n, 0, 1, int64, where), (n, 1))
        result = cast_to(comparison.eq(rows, iota(columns, 0, 1, int64, where)), wanted)
    return finish(result, requires_grad, out, "eye")


def _corner(
    row: int, col: int, offset: int, lower: bool, dtype: DType | None, device: DeviceLike
) -> Tensor:
    if row < 0 or col < 0:
        raise RuntimeError(f"row and col must be non-negative, got {row} and {col}")
    places = [
        (i, j)
        for i in range(row)
        for j in range(col)
        if (j - i <= offset if lower else j - i >= offset)
    ]
    wanted = chosen_dtype(dtype, int64)
    if not places:
        return fill((2, 0), 0, wanted, device)
    return made_of([[i for i, _ in places], [j for _, j in places]], wanted, device)


@composite(function_in=TORCH, factory=True, example=Example((), (4, 5)))
def tril_indices(
    row: int,
    col: int,
    offset: int = 0,
    *,
    dtype: DType | None = None,
    device: DeviceLike = None,
    layout: Layout | None = None,
    pin_memory: bool = False,
) -> Tensor:
    """The positions (2, count) of the lower triangle of a row x col matrix, row by row."""
    return _corner(row, col, offset, True, dtype, device)


@composite(function_in=TORCH, factory=True, example=Example((), (4, 5)))
def triu_indices(
    row: int,
    col: int,
    offset: int = 0,
    *,
    dtype: DType | None = None,
    device: DeviceLike = None,
    layout: Layout | None = None,
    pin_memory: bool = False,
) -> Tensor:
    """The positions (2, count) of the upper triangle of a row x col matrix, row by row."""
    return _corner(row, col, offset, False, dtype, device)
