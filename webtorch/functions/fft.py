"""torch.fft: the public transforms, their lengths, dims and norms.

The transforms themselves, unscaled, are in fourier.py.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from webtorch.errors import DTypeError
from webtorch.functions import creation, repeating
from webtorch.functions.factory import chosen_dtype, finish
from webtorch.functions.fourier import complex_transform, half_transform, real_transform
from webtorch.ir.dtype import DType
from webtorch.ir.view import normalize_dim
from webtorch.ops.primitive import cast_to, conjugate, pad_with
from webtorch.ops.record import Autocast, Example, composite
from webtorch.tensors.device import DeviceLike
from webtorch.tensors.formats import layout as Layout
from webtorch.tensors.promotion import Operand, get_default_dtype
from webtorch.tensors.tensor import Tensor

FFT = ("fft",)
_NORMS = ("backward", "ortho", "forward")


def _scale(norm: str | None, n: int, forward: bool) -> float:
    """Return the factor of a transform of n numbers."""
    norm = "backward" if norm is None else norm
    if norm not in _NORMS:
        raise RuntimeError(f'Invalid normalization mode: "{norm}"')
    if norm == "ortho":
        return 1 / math.sqrt(n)
    return 1 / n if (norm == "forward") == forward else 1.0


def _scaled(x: Tensor, factor: float) -> Tensor:
    return x if factor == 1.0 else x * factor


def _floating(name: str, x: Operand, wants_complex: bool) -> Tensor:
    """Return x as a type that has a transform: complex, or real where the transform takes that."""
    if not isinstance(x, Tensor):
        raise TypeError(
            f"{name}(): argument 'input' (position 1) must be Tensor, not {type(x).__name__}"
        )
    if x.dtype.kind == "float" and x.dtype.itemsize < 4:
        raise DTypeError(
            f"Unsupported dtype {x.dtype}: {name} takes float32 and wider. Use .float()"
        )
    if not x.dtype.has_gradient:
        x = cast_to(x, get_default_dtype())
    return cast_to(x, x.dtype.to_complex()) if wants_complex else x


def _real(name: str, x: Operand) -> Tensor:
    if isinstance(x, Tensor) and x.dtype.is_complex:
        title = name.removeprefix("fft_")
        kind = "real-valued" if title.endswith("n") else "real"
        raise RuntimeError(f"{title} expects a {kind} input tensor, but got {x.dtype.legacy}")
    return _floating(name, x, False)


def _resized(x: Tensor, dim: int, n: int) -> Tensor:
    """Return x cut to n along `dim`, or with zeros behind it."""
    size = x._shape[dim]
    if n < size:
        return x.narrow(dim, 0, n)
    if n == size:
        return x
    low, high = [0] * x.ndim, [0] * x.ndim
    high[dim] = n - size
    return pad_with(x, tuple(low), tuple(high), 0)


def _dim(x: Tensor, dim: int) -> int:
    if not x.ndim:
        raise IndexError(f"Dimension specified as {dim} but tensor has no dimensions")
    return normalize_dim(dim, x.ndim)


def _length(n: int) -> int:
    if n < 1:
        raise RuntimeError(f"Invalid number of data points ({n}) specified")
    return n


# PyTorch's list for the CPU; not for hfft and its inverse along several dims.
_IN_FLOAT32 = Autocast(cpu="fp32")


def _one(
    name: str, input: Tensor, n: int | None, dim: int, norm: str | None, inverse: bool
) -> Tensor:
    x = _floating(name, input, True)
    d = _dim(x, dim)
    length = _length(x._shape[d] if n is None else n)
    out = complex_transform(_resized(x, d, length), (d,), inverse)
    return _scaled(out, _scale(norm, length, not inverse))


def _half(
    name: str, input: Tensor, n: int | None, dim: int, norm: str | None, forward: bool
) -> Tensor:
    """The transform of real numbers; its first half."""
    x = _real(name, input)
    d = _dim(x, dim)
    length = _length(x._shape[d] if n is None else n)
    return _scaled(real_transform(_resized(x, d, length), d), _scale(norm, length, forward))


def _from_half(
    name: str, input: Tensor, n: int | None, dim: int, norm: str | None, forward: bool
) -> Tensor:
    x = _floating(name, input, True)
    d = _dim(x, dim)
    length = _length(2 * (x._shape[d] - 1) if n is None else n)
    if forward:
        x = conjugate(x)
    out = half_transform(_resized(x, d, length // 2 + 1), d, length)
    return _scaled(out, _scale(norm, length, forward))


@composite(function_in=FFT, autocast=_IN_FLOAT32, out="kind")
def fft_fft(input: Tensor, n: int | None = None, dim: int = -1, norm: str | None = None) -> Tensor:
    """The discrete Fourier transform along `dim`, of n numbers (cut, or with zeros behind)."""
    return _one("fft_fft", input, n, dim, norm, False)


@composite(function_in=FFT, autocast=_IN_FLOAT32)
def fft_ifft(input: Tensor, n: int | None = None, dim: int = -1, norm: str | None = None) -> Tensor:
    """The inverse of fft."""
    return _one("fft_ifft", input, n, dim, norm, True)


@composite(function_in=FFT, autocast=_IN_FLOAT32, out="kind")
def fft_rfft(input: Tensor, n: int | None = None, dim: int = -1, norm: str | None = None) -> Tensor:
    """The transform of real numbers: its first n // 2 + 1 terms, of which the others are conjugates."""
    return _half("fft_rfft", input, n, dim, norm, True)


@composite(function_in=FFT, autocast=_IN_FLOAT32, out="kind")
def fft_irfft(
    input: Tensor, n: int | None = None, dim: int = -1, norm: str | None = None
) -> Tensor:
    """The inverse of rfft: n real numbers, 2 (terms - 1) by default."""
    return _from_half("fft_irfft", input, n, dim, norm, False)


@composite(function_in=FFT, autocast=_IN_FLOAT32, out="kind")
def fft_hfft(input: Tensor, n: int | None = None, dim: int = -1, norm: str | None = None) -> Tensor:
    """The real transform of numbers of which each is the conjugate of its opposite, from their first half."""
    return _from_half("fft_hfft", input, n, dim, norm, True)


@composite(function_in=FFT, autocast=_IN_FLOAT32)
def fft_ihfft(
    input: Tensor, n: int | None = None, dim: int = -1, norm: str | None = None
) -> Tensor:
    """The inverse of hfft: the first half of the inverse transform of real numbers."""
    return conjugate(_half("fft_ihfft", input, n, dim, norm, False))


# -- several dims -------------------------------------------------------------------------------------


def _listed(value: Any) -> tuple[int, ...]:
    return (value,) if isinstance(value, int) else tuple(value)


def _shape_and_dims(
    x: Tensor, s: Sequence[int] | int | None, dim: Sequence[int] | int | None
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the dims to transform and their lengths, as PyTorch chooses them."""
    rank = x.ndim
    if dim is None:
        if s is None:
            dims = tuple(range(rank))
        else:
            if len(_listed(s)) > rank:
                raise RuntimeError(
                    f"Got shape with {len(_listed(s))} values but input tensor only has {rank} dimensions."
                )
            dims = tuple(range(rank - len(_listed(s)), rank))
    else:
        dims = tuple(normalize_dim(d, rank) for d in _listed(dim))
        if len(set(dims)) != len(dims):
            raise RuntimeError("FFT dims must be unique")
    if s is None:
        return tuple(x._shape[d] for d in dims), dims
    sizes = _listed(s)
    if len(sizes) != len(dims):
        raise RuntimeError(
            f"When given, dim and shape arguments must have the same length: got {len(dims)} dims and "
            f"{len(sizes)} sizes"
        )
    return tuple(x._shape[d] if n == -1 else n for n, d in zip(sizes, dims, strict=True)), dims


def _all_resized(x: Tensor, sizes: Sequence[int], dims: Sequence[int]) -> Tensor:
    for n, d in zip(sizes, dims, strict=True):
        x = _resized(x, d, _length(n))
    return x


def _many(
    name: str,
    input: Tensor,
    s: Sequence[int] | int | None,
    dim: Sequence[int] | int | None,
    norm: str | None,
    inverse: bool,
) -> Tensor:
    x = _floating(name, input, True)
    sizes, dims = _shape_and_dims(x, s, dim)
    x = _all_resized(x, sizes, dims)
    if not dims:
        return x.clone()
    out = complex_transform(x, dims, inverse)
    return _scaled(out, _scale(norm, math.prod(sizes), not inverse))


def _many_half(
    name: str,
    input: Tensor,
    s: Sequence[int] | int | None,
    dim: Sequence[int] | int | None,
    norm: str | None,
    forward: bool,
) -> Tensor:
    x = _real(name, input)
    sizes, dims = _shape_and_dims(x, s, dim)
    if not dims:
        raise RuntimeError(f"{name} must transform at least one axis")
    out = real_transform(_all_resized(x, sizes, dims), dims[-1])
    if len(dims) > 1:
        out = complex_transform(out, dims[:-1], False)
    return _scaled(out, _scale(norm, math.prod(sizes), forward))


def _many_from_half(
    name: str,
    input: Tensor,
    s: Sequence[int] | int | None,
    dim: Sequence[int] | int | None,
    norm: str | None,
    forward: bool,
) -> Tensor:
    x = _floating(name, input, True)
    sizes, dims = _shape_and_dims(x, s, dim)
    if not dims:
        raise RuntimeError(f"{name} must transform at least one axis")
    given = None if s is None else _listed(s)[-1]
    last = 2 * (x._shape[dims[-1]] - 1) if given is None or given == -1 else given
    _length(last)
    x = _all_resized(x, (*sizes[:-1], last // 2 + 1), dims)
    if forward:
        x = conjugate(x)
    if len(dims) > 1:
        x = complex_transform(x, dims[:-1], True)
    out = half_transform(x, dims[-1], last)
    return _scaled(out, _scale(norm, math.prod(sizes[:-1]) * last, forward))


_DIRECTIONS: dict[str, tuple[Any, bool, str]] = {
    "fft": (_many, False, "The transform"),
    "ifft": (_many, True, "The inverse transform"),
    "rfft": (_many_half, True, "The transform of real numbers, half of its last dim,"),
    "irfft": (_many_from_half, False, "The inverse of rfft"),
    "hfft": (_many_from_half, True, "The real transform of numbers with conjugate opposites"),
    "ihfft": (_many_half, False, "The inverse of hfft"),
}


def _declare(kind: str) -> None:
    run, flag, text = _DIRECTIONS[kind]

    def result(
        name: str,
        input: Tensor,
        s: Sequence[int] | int | None,
        dim: Sequence[int] | int | None,
        norm: str | None,
    ) -> Tensor:
        """Return the transform; one to half a spectrum from real numbers is conjugated."""
        found = run(name, input, s, dim, norm, flag)
        return conjugate(found) if kind == "ihfft" else found

    def transform_n(
        input: Tensor,
        s: Sequence[int] | int | None = None,
        dim: Sequence[int] | int | None = None,
        norm: str | None = None,
    ) -> Tensor:
        """Return the transform over several dims, by default all of them."""
        return result(f"fft_{kind}n", input, s, dim, norm)

    def transform_2(
        input: Tensor,
        s: Sequence[int] | int | None = None,
        dim: Sequence[int] | int | None = (-2, -1),
        norm: str | None = None,
    ) -> Tensor:
        """Return the transform over two dims."""
        return result(f"fft_{kind}2", input, s, dim, norm)

    for function, suffix, where in (
        (transform_n, "n", "along `dim` (all dims)"),
        (transform_2, "2", "along two dims"),
    ):
        function.__name__ = f"fft_{kind}{suffix}"
        function.__doc__ = f"{text} {where}, of sizes `s` (cut, or with zeros behind)."
        rule = None if "hfft" in kind else _IN_FLOAT32
        declare = composite(function_in=FFT, torch=f"fft.{kind}{suffix}", autocast=rule, out="kind")
        declare(function)


for _kind in _DIRECTIONS:
    _declare(_kind)


# -- frequencies and shifts ---------------------------------------------------------------------------


def _frequencies(
    name: str,
    n: int,
    numbers: list[int],
    d: float,
    dtype: DType | None,
    device: DeviceLike,
    requires_grad: bool,
    out: Tensor | None,
) -> Tensor:
    wanted = chosen_dtype(dtype)
    if not wanted.has_gradient:
        raise RuntimeError(f"{name} requires a floating point or complex dtype")
    _length(n)
    values = [k * (1.0 / (n * d)) for k in numbers]
    return finish(creation.tensor(values, dtype=wanted, device=device), requires_grad, out, name)


@composite(family="creation", function_in=FFT, factory=True, example=Example((), (9,), {"d": 0.5}))
def fft_fftfreq(
    n: int,
    d: float = 1.0,
    *,
    out: Tensor | None = None,
    dtype: DType | None = None,
    layout: Layout | None = None,
    device: DeviceLike = None,
    requires_grad: bool = False,
) -> Tensor:
    """The frequencies of the terms of a transform of n numbers, `d` apart."""
    numbers = [*range((n + 1) // 2), *range(-(n // 2), 0)]
    return _frequencies("fftfreq", n, numbers, d, dtype, device, requires_grad, out)


@composite(family="creation", function_in=FFT, factory=True, example=Example((), (9,)))
def fft_rfftfreq(
    n: int,
    d: float = 1.0,
    *,
    out: Tensor | None = None,
    dtype: DType | None = None,
    layout: Layout | None = None,
    device: DeviceLike = None,
    requires_grad: bool = False,
) -> Tensor:
    """The frequencies of the terms of rfft of n numbers, `d` apart."""
    numbers = list(range(n // 2 + 1))
    return _frequencies("rfftfreq", n, numbers, d, dtype, device, requires_grad, out)


def _shifted(input: Tensor, dim: Sequence[int] | int | None, back: bool) -> Tensor:
    dims = tuple(range(input.ndim)) if dim is None else _listed(dim)
    sizes = [input._shape[d] for d in dims]
    if not dims:
        return input.clone()
    return repeating.roll(input, [(n + 1) // 2 if back else n // 2 for n in sizes], list(dims))


@composite(family="movement", function_in=FFT)
def fft_fftshift(input: Tensor, dim: Sequence[int] | int | None = None) -> Tensor:
    """The terms in the order of their frequencies: zero in the middle."""
    return _shifted(input, dim, False)


@composite(family="movement", function_in=FFT)
def fft_ifftshift(input: Tensor, dim: Sequence[int] | int | None = None) -> Tensor:
    """The inverse of fftshift."""
    return _shifted(input, dim, True)
