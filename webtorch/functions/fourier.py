"""Discrete Fourier transforms of any length.

On the CPU a transform is one node of NumPy's pocketfft. Elsewhere it is made of products: a length n = a b is a
transform of length a of all columns (a product with the a x a matrix of its roots), a turn of every number by
w_n^(i j), and the transforms of length b of the rows (Cooley and Tukey, 1965; the columns-first order of Gentleman
and Sande, 1966). A length with a large prime factor becomes a convolution of a power of two (Bluestein, 1970).

Between these steps numbers are planar, (batch, 2, n): then the two parts of the a rows of n / a numbers are the 2 a
rows of one matrix, and its product with the matrix of roots is one real product.
"""

from __future__ import annotations

import functools
import math

from webtorch.functions import creation, joining, movement, repeating
from webtorch.ir.view import numel
from webtorch.ops.primitive import (
    as_view,
    cast_to,
    complex_of,
    conjugate,
    fill,
    formula,
    host,
    matmul3,
    pad_with,
    pairs,
    real_part,
)
from webtorch.ops.record import composite
from webtorch.ops.roots import matrix_of_roots, turn
from webtorch.tensors.modes import records_for_pages
from webtorch.tensors.tensor import Tensor

# The longest transform that is one product, and the longest that may be where the length is a prime.
_RADIX, _PRIME = 64, 128


# -- the transforms, with gradients -------------------------------------------------------------------

# A rule is that of a holomorphic function: what is given to it, and what it gives, is conjugated. The matrix of a
# transform is symmetric.


def _on_cpu(x: Tensor) -> bool:
    return x._storage.runtime.kind == "cpu" and not records_for_pages()


def _complex_vjp(
    g: Tensor, _out: Tensor, _x: Tensor, dims: tuple[int, ...], inverse: bool
) -> tuple[Tensor]:
    return (complex_transform(g, dims, inverse),)


@composite(name="_fft_c2c", function_in=(), vjp=_complex_vjp)
def complex_transform(x: Tensor, dims: tuple[int, ...], inverse: bool) -> Tensor:
    """Return the sums over x * exp(-+ 2 pi i j k / n) along each of `dims`, unscaled; `inverse` has the +."""
    if _on_cpu(x):
        return complex_of(_hosted("fft_c2c", pairs(x), (dims, inverse), (*x._shape, 2)))
    out = x
    for d in dims:
        out = _along(out, d, inverse)
    return movement.clone(x) if out is x else out


def _real_vjp(g: Tensor, _out: Tensor, _x: Tensor, dim: int, n: int) -> tuple[Tensor]:
    low, high = [0] * g.ndim, [0] * g.ndim
    high[dim] = n - g._shape[dim]
    padded = pad_with(g, tuple(low), tuple(high), 0)
    return (real_part(complex_transform(padded, (dim,), False)),)


@composite(name="_fft_r2c", function_in=(), vjp=_real_vjp, once=True)
def _real_transform(x: Tensor, dim: int, n: int) -> Tensor:
    half = n // 2 + 1
    shape = (*x._shape[:dim], half, *x._shape[dim + 1 :])
    if _on_cpu(x):
        return complex_of(_hosted("fft_r2c", x, (dim,), (*shape, 2)))
    whole = complex_transform(cast_to(x, x.dtype.to_complex()), (dim,), False)
    return movement.clone(whole.narrow(dim, 0, half))


def real_transform(x: Tensor, dim: int) -> Tensor:
    """Return the first n // 2 + 1 sums of the transform of real numbers along `dim`, unscaled."""
    return _real_transform(x, dim, x._shape[dim])


def _half_vjp(g: Tensor, _out: Tensor, _x: Tensor, dim: int, n: int) -> tuple[Tensor]:
    terms = real_transform(g, dim)
    twice = (n - 1) // 2
    weights = [1.0] * terms._shape[dim]
    weights[1 : 1 + twice] = [2.0] * twice
    each = creation.tensor(weights, dtype=g.dtype, device=g.device)
    return (conjugate(terms * each.reshape((-1,) + (1,) * (g.ndim - dim - 1))),)


@composite(name="_fft_c2r", function_in=(), vjp=_half_vjp)
def half_transform(x: Tensor, dim: int, n: int) -> Tensor:
    """Return the n real sums of the inverse transform whose first n // 2 + 1 terms are x, unscaled.

    The other terms are the conjugates of these; the imaginary parts of the first and, for even n, of the last
    term do not count.
    """
    if _on_cpu(x):
        shape = (*x._shape[:dim], n, *x._shape[dim + 1 :])
        return _hosted("fft_c2r", pairs(x), (dim, n), shape)
    twice = (n - 1) // 2
    rest = conjugate(repeating.flip(x.narrow(dim, 1, twice), dim))
    whole = joining.cat((x, rest), dim) if twice else x
    return movement.clone(real_part(complex_transform(whole, (dim,), True)))


def _hosted(name: str, x: Tensor, params: tuple[object, ...], shape: tuple[int, ...]) -> Tensor:
    if not x.numel() or not numel(shape):
        return fill(shape, 0, x.dtype, x.device)
    return host(name, (x.contiguous(),), params, (shape,))[0]


# -- by products --------------------------------------------------------------------------------------


def _along(x: Tensor, dim: int, inverse: bool) -> Tensor:
    """Return the transform of a complex tensor along one dim, by products."""
    last = movement.movedim(x, dim, -1)
    n, count = last._shape[-1], numel(last._shape[:-1])
    if not count or n == 1:
        return x
    rows = last.contiguous().reshape((count, n))
    if _largest_factor(n) > _PRIME:
        out = _convolved(rows, inverse)
    else:
        planar = pairs(rows).permute(0, 2, 1).contiguous()
        out = complex_of(_planar(planar, inverse).permute(0, 2, 1).contiguous())
    return movement.movedim(out.reshape(last._shape), -1, dim)


def _planar(x: Tensor, inverse: bool) -> Tensor:
    """Return the transform along the last dim of real (batch, 2, n)."""
    batch, _, n = x._shape
    first = _first_factor(n)
    if first == n:
        roots = _roots(n, inverse, x)
        rows = as_view(x, (1, batch, 2 * n), (0, 2 * n, 1), 0)
        # Each row times the transposed matrix.
        out = matmul3(rows, as_view(roots, (1, 2 * n, 2 * n), (0, 1, 2 * n), 0))
        return out.reshape((batch, 2, n))
    rest = n // first
    roots = as_view(_roots(first, inverse, x), (batch, 2 * first, 2 * first), (0, 2 * first, 1), 0)
    columns = matmul3(roots, x.reshape((batch, 2 * first, rest)))
    strides = (2 * n, rest, 0, 1)
    shape = (batch, first, 2, rest)
    parts = [as_view(columns, shape, strides, part * n) for part in (0, 1)]
    turned = formula(turn(first, rest, inverse), parts, shape, x.dtype)
    found = _planar(turned.reshape((batch * first, 2, rest)), inverse)
    # (batch, i, part, k): the result k * first + i.
    found = found.reshape(shape).permute(0, 2, 3, 1).contiguous()
    return found.reshape((batch, 2, n))


@functools.lru_cache(maxsize=256)
def _factors(n: int) -> tuple[int, ...]:
    found, p = [], 2
    while p * p <= n:
        while n % p == 0:
            found.append(p)
            n //= p
        p += 1
    return (*found, n) if n > 1 else tuple(found)


def _largest_factor(n: int) -> int:
    return max(_factors(n), default=1)


@functools.lru_cache(maxsize=256)
def _first_factor(n: int) -> int:
    """Return the length of the first transforms: n itself where one product will do."""
    if n <= _RADIX:
        return n
    divisors = {1}
    for p in _factors(n):
        divisors |= {d * p for d in divisors if d * p <= _RADIX}
    divisors.discard(1)
    if not divisors:
        return _factors(n)[0]
    # Steps of about one length: as few of them as there must be.
    wanted = n ** (1 / math.ceil(math.log(n, _RADIX) - 1e-9))
    return min(divisors, key=lambda d: abs(math.log(d / wanted)))


def _roots(n: int, inverse: bool, like: Tensor) -> Tensor:
    """Return the real 2n x 2n matrix that multiplies planar columns by the complex matrix of roots."""
    entry = matrix_of_roots(n, inverse, like.dtype)
    return formula(entry, (), (2 * n, 2 * n), like.dtype, like.device)


# -- by a convolution ---------------------------------------------------------------------------------


@functools.lru_cache(maxsize=8)
def _chirp(n: int, inverse: bool) -> tuple[complex, ...]:
    sign = 1.0 if inverse else -1.0
    # k * k / 2 turns, of which only the part within one circle counts: exact as an integer.
    angles = [sign * math.pi * (k * k % (2 * n)) / n for k in range(n)]
    return tuple([complex(math.cos(a), math.sin(a)) for a in angles])


def _convolved(x: Tensor, inverse: bool) -> Tensor:
    """Return the transform of rows of any length n, as a convolution of 2 ** m >= 2 n - 1 numbers."""
    n = x._shape[-1]
    size = 1 << (2 * n - 2).bit_length()
    chirp = _chirp(n, inverse)
    table = creation.tensor(list(chirp), dtype=x.dtype, device=x.device)
    filter_ = creation.tensor(
        [z.conjugate() for z in (*chirp, *[0j] * (size - 2 * n + 1), *chirp[:0:-1])],
        dtype=x.dtype,
        device=x.device,
    )
    padded = pad_with(x * table, (0, 0), (0, size - n), 0)
    product = _along(padded, 1, False) * _along(filter_.reshape((1, size)), 1, False)
    return _along(product, 1, True).narrow(1, 0, n) * (table * (1.0 / size))
