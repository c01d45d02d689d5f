"""What LAPACK has as one function, made of the factorisations that a device has kernels for.

`linalg.call` asks here for what WebGPU's templates do not have (lower/templates/matrices).
"""

from __future__ import annotations

import math

from webtorch.functions import creation, joining
from webtorch.functions.linalg import (
    _det,
    call,
    composed,
    identity,
    permutation_of,
)
from webtorch.functions.orthogonal import reflected, symmetrised
from webtorch.functions.pointwise import where
from webtorch.ir.dtype import int64
from webtorch.ops.primitive import cast_to, conjugate, iota, real_part
from webtorch.tensors.tensor import Tensor

# Taylor's polynomial of degree 18 has float32's accuracy up to this norm: Bader, Blanes and Casas, "Computing the
# matrix exponential with an optimized Taylor polynomial approximation", 2019, table 2. Larger matrices are halved, and
# their exponentials squared.
_TAYLOR_NORM = 3.010066362817634
_MOST_SQUARES = 64
# How many norms the eigenvalues of a matrix are moved by, so that all are positive and none is near zero.
_SHIFT = 1.0625


def _factors(a: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return (packed L and U, which row of the matrix each of theirs is, info)."""
    n = a._shape[-1]
    packed, pivots, info = call("lu_factor", (a,), (True,), ((n, n), (n,), ()))
    return packed, permutation_of(pivots, n), info


def _substituted(packed: Tensor, b: Tensor) -> Tensor:
    shape = (b._shape[-2:],)
    (y,) = call("solve_triangular", (packed, b), (False, True), shape)
    (x,) = call("solve_triangular", (packed, y), (True, False), shape)
    return x


@composed
def solve(a: Tensor, b: Tensor) -> tuple[Tensor, ...]:
    """Return (x, info) with a @ x = b."""
    packed, rows, info = _factors(a)
    return _substituted(packed, b.gather(-2, rows.unsqueeze(-1).expand(b._shape))), info


@composed
def inv(a: Tensor) -> tuple[Tensor, ...]:
    """Return (inverse, info)."""
    packed, rows, info = _factors(a)
    places = iota(a._shape[-1], 0, 1, int64, a.device)
    return _substituted(packed, cast_to(rows.unsqueeze(-1) == places, a.dtype)), info


@composed
def qr(a: Tensor, mode: str) -> tuple[Tensor, ...]:
    """Return (Q, R)."""
    m, n = a._shape[-2:]
    k = min(m, n)
    packed, tau = call("geqrf", (a,), (), ((m, n), (k,)))
    rows = m if mode == "complete" else k
    v = packed[..., :k].tril(-1) + identity(m, a)[:, :k]
    r = packed.triu()[..., :rows, :]
    return reflected(v, tau, identity(m, a)[:, :rows]), r


def _real(x: Tensor) -> Tensor:
    return real_part(x) if x.dtype.is_complex else x


def _orthogonal(a: Tensor, vectors: bool) -> tuple[Tensor, ...]:
    """Return (W, norms of its columns, info, V where it is wanted) with a @ V = W, whose columns are orthogonal."""
    m, n = a._shape[-2:]
    shapes = ((m, n), (n,), (), *(((n, n),) if vectors else ()))
    return call("orthogonal_columns", (a,), (vectors,), shapes)


@composed
def eigh(a: Tensor, uplo: str) -> tuple[Tensor, ...]:
    """Return (eigenvalues, eigenvectors, info) from one triangle.

    Of a matrix without negative eigenvalues the columns that Jacobi's method turns are orthogonal when they are
    multiples of eigenvectors; so all are moved by more than a norm, and none comes near zero.
    """
    n = a._shape[-1]
    whole = symmetrised(a.mH if uplo == "U" else a)
    norm = whole.abs().sum(-2).amax(-1)
    shift = where(norm == 0, 1.0, _SHIFT * norm)[..., None, None]
    turned, norms, info = _orthogonal(whole + shift * identity(n, a), False)
    vectors = (turned / norms.unsqueeze(-2)).flip(-1)
    values = _real(conjugate(vectors) * (whole @ vectors)).sum(-2)
    # In order also where rounding makes a difference between equal ones.
    return values.cummax(-1)[0], vectors, info


@composed
def eigvalsh(a: Tensor, uplo: str) -> tuple[Tensor, ...]:
    """Return (eigenvalues, info) from one triangle."""
    values, _, info = eigh(a, uplo)
    return values, info


@composed
def svd(a: Tensor, full: bool) -> tuple[Tensor, ...]:
    """Return (U, S, Vh, info)."""
    m, n = a._shape[-2:]
    if m < n:
        v, s, uh, info = svd(a.mH, full)
        return uh.mH, s, v.mH, info
    if m > 2 * n:
        # The singular values of R are those of Q R.
        q, r = qr(a, "complete" if full else "reduced")
        u, s, vh, info = svd(r[..., :n, :], False)
        u = q[..., :n] @ u
        return joining.cat((u, q[..., n:]), -1) if full else u, s, vh, info
    w, s, info, v = _orthogonal(a, True)
    # W is U S. Its QR factors give columns of length 1 also where singular values are zero, and are signs off U.
    packed, tau = call("geqrf", (w,), (), ((m, n), (n,)))
    signs = where(_real(packed.diagonal(0, -2, -1)) < 0, -1.0, 1.0).unsqueeze(-2)
    u = reflected(
        packed.tril(-1) + identity(m, a)[:, :n], tau, identity(m, a)[:, : m if full else n]
    )
    first = u[..., :n] * signs
    return joining.cat((first, u[..., n:]), -1) if full and m > n else first, s, v.mH, info


@composed
def svdvals(a: Tensor) -> tuple[Tensor, ...]:
    """Return (S, info)."""
    m, n = a._shape[-2:]
    if m < n:
        return svdvals(a.mH)
    if m > 2 * n:
        return svdvals(qr(a, "reduced")[1])
    return _orthogonal(a, False)[1:]


@composed
def cofactors(a: Tensor) -> tuple[Tensor, ...]:
    """Return the matrix of cofactors, also of singular matrices: det(U V) U adj(S) V^T."""
    n = a._shape[-1]
    u, s, vh, _ = svd(a, False)
    one = identity(n, s)
    others = where(one != 0, 1.0, s.unsqueeze(-2)).prod(-1)
    sign = (_det(u) * _det(vh))[..., None, None]
    return (sign * ((conjugate(u) * others.unsqueeze(-2)) @ conjugate(vh)),)


@composed
def lstsq(a: Tensor, b: Tensor, rcond: float) -> tuple[Tensor, ...]:
    """Return (x, rank, singular values): the shortest of the vectors that come closest."""
    u, s, vh, _ = svd(a, False)
    keep = s > rcond * s.amax(-1, keepdim=True)
    inverse = where(keep, 1 / where(keep, s, 1.0), 0.0)
    return vh.mH @ (inverse.unsqueeze(-1) * (u.mH @ b)), cast_to(keep, s.dtype).sum(-1), s


@composed
def ldl_solve(packed: Tensor, pivots: Tensor, b: Tensor, hermitian: bool) -> tuple[Tensor, ...]:
    """Return x with a @ x = b, where ldl_factor made `packed` and `pivots` of a.

    With all swaps of rows first, a is P L D L^H P^T.
    """
    n = packed._shape[-1]
    signed = _real(pivots.squeeze(-1))
    negative = signed < 0
    # The first of each pair: negative ones before it are even in number.
    first = negative & (cast_to(negative, int64).cumsum(-1) % 2 == 1)
    rows = permutation_of(where(first, iota(n, 1, 1, int64, b.device), signed.abs()), n)
    places = rows.unsqueeze(-1).expand(b._shape)
    (lower,) = call("ldl_rows", (packed, pivots), (), ((n, n),))
    (y,) = call("solve_triangular", (lower, b.gather(-2, places)), (False, True), (b._shape[-2:],))

    blocks = first.unsqueeze(-1)
    diagonal = packed.diagonal(0, -2, -1).unsqueeze(-1)
    z = y / where(negative.unsqueeze(-1), 1.0, diagonal)
    if n > 1:
        # Of a block of two the rows, divided by the element off the diagonal, so that nothing overflows.
        off = where(blocks[..., :-1, :], packed.diagonal(-1, -2, -1).unsqueeze(-1), 1.0)
        above = conjugate(off) if hermitian else off
        d1, d2 = diagonal[..., :-1, :] / above, diagonal[..., 1:, :] / off
        y1, y2 = y[..., :-1, :] / above, y[..., 1:, :] / off
        scale = d1 * d2 - 1.0
        gap = creation.zeros_like(y[..., :1, :])
        upper = joining.cat(((d2 * y1 - y2) / scale, gap), -2)
        below = joining.cat((gap, (d1 * y2 - y1) / scale), -2)
        z = where(blocks, upper, where(negative.unsqueeze(-1), below, z))

    (x,) = call(
        "solve_triangular", (lower.mH if hermitian else lower.mT, z), (True, True), (b._shape[-2:],)
    )
    return (x.scatter(-2, places, x),)


@composed
def matrix_exp(a: Tensor) -> tuple[Tensor, ...]:
    """Return the exponentials."""
    n = a._shape[-1]
    norm = a.abs().sum(-2).amax(-1)
    times = (norm / _TAYLOR_NORM).log2().ceil().clamp(0, _MOST_SQUARES)[..., None, None]
    x = a * (-times).exp2()
    x2 = x @ x
    x3 = x2 @ x
    x4, x5, x6 = x2 @ x2, x3 @ x2, x3 @ x3
    one = identity(n, a)

    def part(first: int) -> Tensor:
        """Return the polynomial's terms from a power on, divided by it."""
        c = [1 / math.factorial(first + k) for k in range(6)]
        return c[0] * one + c[1] * x + c[2] * x2 + c[3] * x3 + c[4] * x4 + c[5] * x5

    series = part(0) + x6 @ (part(6) + x6 @ (part(12) + x6 / math.factorial(18)))
    return call("squared", (series, cast_to(times, a.dtype)), (), ((n, n),))
