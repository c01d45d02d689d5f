"""Functions of whole arrays: factorisations and what is made of them, by NumPy's LAPACK.

Imports NumPy and floors 0-2. Each function takes stacks of matrices (batch, rows, columns) and the
parameters of the node, and returns its results in order. Integers among them (pivots, ranks, info) are
numbers of the matrices' type. `info` is 0 where all is well, as in LAPACK; nothing here raises.
"""

from __future__ import annotations

import functools
import itertools
import struct
from collections.abc import Callable

import numpy as np

from webtorch.ir.kernel import Host
from webtorch.runtime.backends.cpu import jit
from webtorch.runtime.backends.cpu.memory import Array

Results = tuple[Array, ...]
FUNCTIONS: dict[str, Callable[..., Results]] = {}
# Rows that a blocked algorithm handles one by one.
_BLOCK = 32


def function(routine: Host) -> Callable[..., None]:
    """Return a function of flat arrays: the inputs, then the packed output."""
    run = FUNCTIONS[routine.function.removeprefix("complex ")]
    is_complex = routine.function.startswith("complex ")
    counts = [(_count(s), s) for s in routine.shapes]
    params = routine.params

    def call(*arrays: Array) -> None:
        """Run the routine, and pack its results one after the other."""
        inputs = [a[:count].reshape(shape) for a, (count, shape) in zip(arrays, counts)]
        if is_complex:
            inputs = [as_complex(a) for a in inputs]
        out, at = arrays[-1], 0
        for result in run(*inputs, *params):
            if is_complex:
                result = as_pairs(result, out)
            end = at + result.size
            out[at:end] = result.reshape(-1)
            at = end

    return call


def as_complex(x: Array) -> Array:
    """Return pairs along the last dim as complex numbers."""
    return np.ascontiguousarray(x).view("c16" if x.dtype == np.float64 else "c8")[..., 0]


def as_pairs(z: Array, like: Array) -> Array:
    """Return complex numbers as pairs along a last dim, of the type of `like`."""
    z = np.ascontiguousarray(z, "c16" if like.dtype == np.float64 else "c8")
    return z.reshape(-1).view(like.dtype).reshape((*np.shape(z), 2))


def _count(shape: tuple[int, ...]) -> int:
    return int(np.prod(shape))


def host_function(run: Callable[..., Results]) -> Callable[..., Results]:
    """Make a function of whole arrays known by its name."""
    FUNCTIONS[run.__name__.strip("_")] = run
    return run


def _each(run: Callable[..., Results], info_of: Callable[[Array], int], *stacks: Array) -> Results:
    """Return what `run` gives for whole stacks; where it fails, matrix by matrix, with its info."""
    dtype, count = stacks[0].dtype, stacks[0].shape[0]
    good = np.zeros(count, dtype)
    if all(np.isfinite(s).all() for s in stacks):
        try:
            return (*run(*stacks), good)
        except np.linalg.LinAlgError:
            pass
    parts: list[Results] = []
    shapes = [r.shape[1:] for r in run(*[np.broadcast_to(_one(s), s[:1].shape) for s in stacks])]
    for i in range(count):
        try:
            parts.append(run(*[s[i : i + 1] for s in stacks]))
        except np.linalg.LinAlgError:
            good[i] = info_of(stacks[0][i])
            parts.append(tuple(np.full((1, *s), np.nan, dtype) for s in shapes))
    return (*[np.concatenate(p) for p in zip(*parts)], good)


def _one(stack: Array) -> Array:
    """Return a matrix of the stack's size on which everything works."""
    return np.eye(stack.shape[1], stack.shape[2], dtype=stack.dtype)[None]


# -- triangular systems and LU ------------------------------------------------------------------------


def _substitute(a: Array, b: Array, unit: bool) -> Array:
    """Return x with a @ x = b for lower triangular a."""
    n = a.shape[1]
    if n <= _BLOCK:
        x = b.copy()
        for i in range(n):
            if i:
                x[:, i] -= np.matmul(a[:, i : i + 1, :i], x[:, :i])[:, 0]
            if not unit:
                x[:, i] /= a[:, i, i, None]
        return x
    half = n // 2
    top = _substitute(a[:, :half, :half], b[:, :half], unit)
    rest = b[:, half:] - a[:, half:, :half] @ top
    return np.concatenate([top, _substitute(a[:, half:, half:], rest, unit)], 1)


@host_function
def solve_triangular(a: Array, b: Array, upper: bool, unit: bool) -> Results:
    """Return x with a @ x = b."""
    with np.errstate(all="ignore"):
        if upper:
            # Counted from the end, an upper triangle is a lower one.
            return (_substitute(a[:, ::-1, ::-1], b[:, ::-1], unit)[:, ::-1],)
        return (_substitute(a, b, unit),)


def _size(x: Array) -> Array:
    """Return what LAPACK compares pivots by."""
    return np.abs(x.real) + np.abs(x.imag) if np.iscomplexobj(x) else np.abs(x)


def _lu_matrix(a: Array, pivots: Array, first: int) -> None:
    """Factor the columns of a tall panel in place, with partial pivoting. Unblocked."""
    m, n = a.shape
    for j in range(min(m, n)):
        p = j + int(np.argmax(_size(a[j:, j])))
        pivots[first + j] = first + p
        if p != j:
            a[[j, p]] = a[[p, j]]
        if a[j, j] != 0:
            a[j + 1 :, j] /= a[j, j]
            a[j + 1 :, j + 1 :] -= np.outer(a[j + 1 :, j], a[j, j + 1 :])


# Columns begin..end-1 of an LU factorisation, and what follows of their rows: pivots are sought in the
# column, rows are swapped over their whole width. One row of the block at a time is kept apart, which
# shows that it is not what is written.
_PANEL = """
def panel(begin, end, b0: {kind}, b1: int64, m: int, n: int):
    row = local({kind}, 512)
    for j in range(begin, end):
        best = {kind}(-1)
        p = j
        for i in range(j, m):
            size = abs(b0[i * n + j])
            better = (size > best) | (isnan(size) & logical_not(isnan(best)))
            best = where(better, size, best)
            p = where(better, i, p)
        b1[j] = int64(p)
        if p != j:
            for c in range(n):
                x = b0[j * n + c]
                b0[j * n + c] = b0[p * n + c]
                b0[p * n + c] = x
        pivot = b0[j * n + j]
        width = end - j - 1
        for c in range(width):
            row[c] = b0[j * n + j + 1 + c]
        for i in range(j + 1, m):
            factor = b0[i * n + j]
            if pivot != {kind}(0):
                factor = factor / pivot
            b0[i * n + j] = factor
            for c in range(width):
                b0[i * n + j + 1 + c] = b0[i * n + j + 1 + c] - factor * row[c]
    for first in range(end, n, 512):
        width = min(n - first, 512)
        for j in range(begin, end):
            for c in range(width):
                row[c] = b0[j * n + first + c]
            for i in range(j + 1, end):
                factor = b0[i * n + j]
                for c in range(width):
                    b0[i * n + first + c] = b0[i * n + first + c] - factor * row[c]
"""
# From this many elements on, compiling pays, or once NumPy has factored so many matrices, at 20 us a row.
_LARGE = 32 * 32
_MANY = 100
_factored = itertools.count()


@functools.cache
def _panel(kind: str) -> jit.Native:
    return jit.function(_PANEL.strip().format(kind=kind))


def _lu(a: Array) -> tuple[Array, Array, int]:
    """Return (packed factors, pivots counted from 0, info) of one matrix. Golub and Van Loan, 3.2."""
    a = np.array(a, order="C")
    m, n = a.shape
    k = min(m, n)
    pivots = np.arange(k, dtype=np.int64)
    native = None
    pays = a.size >= _LARGE or next(_factored) >= _MANY
    if pays and a.dtype.name in ("float32", "float64") and jit.available():
        native = _panel(a.dtype.name)
        block = struct.pack("QQqq", a.ctypes.data, pivots.ctypes.data, m, n)
    with np.errstate(all="ignore"):
        for j in range(0, k, _BLOCK):
            end = min(j + _BLOCK, k)
            if native is not None:
                native.call(j, end, block)
            else:
                _lu_rows(a, pivots, j, end)
            if end < n:
                a[end:, end:] -= a[end:, j:end] @ a[j:end, end:]
    zero = np.flatnonzero(np.diagonal(a)[:k] == 0)
    return a, pivots, int(zero[0]) + 1 if zero.size else 0


def _lu_rows(a: Array, pivots: Array, begin: int, end: int) -> None:
    """Do what _PANEL does, by NumPy."""
    panel = a[begin:, begin:end].copy()
    _lu_matrix(panel, pivots, begin)
    for i in range(begin, end):
        p = pivots[i]
        if p != i:
            a[[i, p]] = a[[p, i]]
    a[begin:, begin:end] = panel
    if end < a.shape[1]:
        lower = panel[: end - begin]
        a[begin:end, end:] = _substitute(lower[None], a[None, begin:end, end:], True)[0]


@host_function
def lu_factor(a: Array, pivot: bool) -> Results:
    """Return (packed factors, pivots counted from 1, info)."""
    count, m, n = a.shape
    out = np.empty_like(a)
    pivots = np.empty((count, min(m, n)), a.dtype)
    info = np.zeros(count, a.dtype)
    for i in range(count):
        out[i], p, info[i] = _lu(a[i])
        pivots[i] = p + 1
    return out, pivots, info


@host_function
def permutation(pivots: Array, rows: int) -> Results:
    """Return, for each row of the product L U, which row of the matrix it is. Pivots out of range swap something."""
    out = np.tile(np.arange(rows), (pivots.shape[0], 1))
    for i, swaps in enumerate(np.clip(pivots.astype(np.int64) - 1, 0, rows - 1)):
        for j, p in enumerate(swaps):
            out[i, [j, p]] = out[i, [p, j]]
    return (out.astype(pivots.dtype),)


def _singular_at(a: Array) -> int:
    return _lu(a)[2] or a.shape[0]


@host_function
def solve(a: Array, b: Array) -> Results:
    """Return (x, info) with a @ x = b."""
    return _each(lambda a, b: (np.linalg.solve(a, b),), _singular_at, a, b)


@host_function
def inv(a: Array) -> Results:
    """Return (inverse, info)."""
    return _each(lambda a: (np.linalg.inv(a),), _singular_at, a)


@host_function
def cofactors(a: Array) -> Results:
    """Return the matrix of cofactors, also of singular matrices: det(U V) U adj(S) V^T."""
    u, s, vh = np.linalg.svd(a)
    n = s.shape[-1]
    others = np.ones_like(s)
    for i in range(n):
        others[:, i] = np.prod(np.delete(s, i, -1), -1)
    sign = np.linalg.det(u) * np.linalg.det(vh)
    return ((sign[:, None, None] * ((u.conj() * others[:, None, :]) @ vh.conj())).astype(a.dtype),)


# -- symmetric and orthogonal factorisations ----------------------------------------------------------


def _indefinite_at(a: Array) -> int:
    for k in range(1, a.shape[0] + 1):
        try:
            np.linalg.cholesky(a[:k, :k])
        except np.linalg.LinAlgError:
            return k
    return a.shape[0]


@host_function
def cholesky(a: Array) -> Results:
    """Return (L, info) from the lower triangle."""
    return _each(lambda a: (np.linalg.cholesky(a),), _indefinite_at, a)


@host_function
def qr(a: Array, mode: str) -> Results:
    """Return (Q, R)."""
    if a.shape[1] and a.shape[2]:
        found = np.linalg.qr(a, mode)  # type: ignore[call-overload]
        return tuple(found)
    count, m, n = a.shape
    k = m if mode == "complete" else min(m, n)
    return np.broadcast_to(np.eye(m, k, dtype=a.dtype), (count, m, k)), np.zeros(
        (count, k, n), a.dtype
    )


@host_function
def geqrf(a: Array) -> Results:
    """Return (packed R and reflectors, tau)."""
    h, tau = np.linalg.qr(a, "raw")
    return np.swapaxes(h, -1, -2), tau


@host_function
def eigh(a: Array, uplo: str) -> Results:
    """Return (eigenvalues, eigenvectors, info) from one triangle."""
    return _each(lambda a: tuple(np.linalg.eigh(a, uplo)), lambda a: a.shape[0], a)  # type: ignore[call-overload]


@host_function
def eig(a: Array, given_complex: bool) -> Results:
    """Return (eigenvalues, eigenvectors, info). Those of a real matrix come in pairs of conjugates.

    Of a matrix that is not finite, info is -1.
    """

    def run(a: Array) -> Results:
        """Return eigenvalues and eigenvectors of one batch."""
        w, v = np.linalg.eig(a if given_complex else a.real)
        return w.astype(a.dtype), v.astype(a.dtype)

    return _each(run, lambda a: a.shape[0] if np.isfinite(a).all() else -1, a)


@host_function
def eigvalsh(a: Array, uplo: str) -> Results:
    """Return (eigenvalues, info) from one triangle."""
    return _each(lambda a: (np.linalg.eigvalsh(a, uplo),), lambda a: a.shape[0], a)  # type: ignore[call-overload]


@host_function
def svd(a: Array, full: bool) -> Results:
    """Return (U, S, Vh, info)."""
    if a.shape[1] and a.shape[2]:
        return _each(lambda a: tuple(np.linalg.svd(a, full)), lambda a: a.shape[1], a)
    count, m, n = a.shape
    rows, columns = (m, n) if full else (0, 0)
    return (
        np.broadcast_to(np.eye(m, rows, dtype=a.dtype), (count, m, rows)),
        np.zeros((count, 0), a.dtype),
        np.broadcast_to(np.eye(columns, n, dtype=a.dtype), (count, columns, n)),
        np.zeros(count, a.dtype),
    )


@host_function
def svdvals(a: Array) -> Results:
    """Return (S, info)."""
    if not (a.shape[1] and a.shape[2]):
        return np.zeros((a.shape[0], 0), a.dtype), np.zeros(a.shape[0], a.dtype)
    return _each(lambda a: (np.linalg.svd(a, compute_uv=False),), lambda a: a.shape[1], a)


@host_function
def lstsq(a: Array, b: Array, rcond: float) -> Results:
    """Return (x, rank, singular values): the shortest of the vectors that come closest."""
    count, m, n = a.shape
    x = np.zeros((count, n, b.shape[2]), a.dtype)
    rank = np.zeros(count, a.dtype)
    s = np.zeros((count, min(m, n)), a.dtype)
    for i in range(count):
        if m and n and rcond >= 1:
            # No singular value is larger than the largest.
            s[i] = np.linalg.svd(a[i], compute_uv=False)
        elif m and n:
            x[i], _, rank[i], s[i] = np.linalg.lstsq(a[i], b[i], rcond)
    return x, rank, s


# -- the exponential ----------------------------------------------------------------------------------

# Higham, "The scaling and squaring method for the matrix exponential revisited", 2005: degree 13.
_PADE = (
    64764752532480000.0, 32382376266240000.0, 7771770303897600.0, 1187353796428800.0,
    129060195264000.0, 10559470521600.0, 670442572800.0, 33522128640.0, 1323241920.0, 40840800.0,
    960960.0, 16380.0, 182.0, 1.0,
)  # fmt: skip
_PADE_NORM = 5.371920351148152


def _expm(a: Array) -> Array:
    wide = a.astype(np.complex128 if np.iscomplexobj(a) else np.float64)
    n = a.shape[0]
    norm = np.abs(wide).sum(0).max() if n else 0.0
    if not np.isfinite(norm):
        return np.full_like(a, np.nan)
    steps = max(0, int(np.ceil(np.log2(norm / _PADE_NORM)))) if norm > _PADE_NORM else 0
    x = wide / 2.0**steps
    c, one = _PADE, np.eye(n)
    x2 = x @ x
    x4 = x2 @ x2
    x6 = x4 @ x2
    odd = x @ (
        x6 @ (c[13] * x6 + c[11] * x4 + c[9] * x2) + c[7] * x6 + c[5] * x4 + c[3] * x2 + c[1] * one
    )
    even = (
        x6 @ (c[12] * x6 + c[10] * x4 + c[8] * x2) + c[6] * x6 + c[4] * x4 + c[2] * x2 + c[0] * one
    )
    out = np.linalg.solve(even - odd, even + odd)
    for _ in range(steps):
        out = out @ out
    return np.asarray(out)


@host_function
def matrix_exp(a: Array) -> Results:
    """Return the exponentials, computed in float64."""
    out = np.empty_like(a)
    for i in range(a.shape[0]):
        out[i] = _expm(a[i])
    return (out,)


# -- symmetric indefinite -----------------------------------------------------------------------------


def _sizes(a: Array) -> Array:
    """Return what LAPACK compares numbers by: of complex ones the sum of the parts' absolute values."""
    return np.abs(a.real) + np.abs(a.imag)


def _as_given(a: Array) -> Array:
    return a


def _block(a: Array, k: int, hermitian: bool) -> Array:
    """Return the 2 x 2 block of D that begins at k."""
    corner = np.conj(a[k + 1, k]) if hermitian else a[k + 1, k]
    return np.array([[a[k, k], corner], [a[k + 1, k], a[k + 1, k + 1]]])


def _ldl(a: Array, hermitian: bool) -> tuple[Array, Array, int]:
    """Return (packed L and D, pivots, info) from the lower triangle, as LAPACK's sytf2 and hetf2 do.

    Bunch and Kaufman, 1977. A pair of equal negative pivots marks a 2 x 2 block.
    """
    turned = np.conj if hermitian else _as_given
    a = np.tril(a).copy()
    if hermitian:
        np.fill_diagonal(a, a.diagonal().real)
    n = a.shape[0]
    pivots = np.zeros(n, np.int64)
    info, k = 0, 0
    alpha = (1 + np.sqrt(17.0)) / 8
    while k < n:
        step, p = 1, k
        size = _sizes(a[k, k])
        below = _sizes(a[k + 1 :, k])
        most = int(np.argmax(below)) + k + 1 if below.size else k
        largest = below.max() if below.size else 0.0
        if max(size, largest) == 0:
            info = info or k + 1
        elif size < alpha * largest:
            row = _sizes(np.concatenate([a[most, k:most], a[most + 1 :, most]]))
            other = row.max()
            if size * other >= alpha * largest * largest:
                p = k
            elif _sizes(a[most, most]) >= alpha * other:
                p = most
            else:
                p, step = most, 2
        if max(size, largest) != 0:
            q = k + step - 1
            if p != q:
                a[p + 1 :, [q, p]] = a[p + 1 :, [p, q]]
                middle = turned(a[q + 1 : p, q]).copy()
                a[q + 1 : p, q] = turned(a[p, q + 1 : p])
                a[p, q + 1 : p] = middle
                a[p, q] = turned(a[p, q])
                a[q, q], a[p, p] = a[p, p], a[q, q]
                if step == 2:
                    a[k + 1, k], a[p, k] = a[p, k], a[k + 1, k]
            if step == 1:
                if k < n - 1:
                    column = a[k + 1 :, k].copy()
                    a[k + 1 :, k + 1 :] -= np.tril(np.outer(column, turned(column)) / a[k, k])
                    a[k + 1 :, k] = column / a[k, k]
            elif k < n - 2:
                columns = a[k + 2 :, k : k + 2].copy()
                scaled = np.linalg.solve(_block(a, k, hermitian).T, columns.T).T
                a[k + 2 :, k + 2 :] -= np.tril(scaled @ turned(columns).T)
                a[k + 2 :, k : k + 2] = scaled
        if step == 1:
            pivots[k] = p + 1
        else:
            pivots[k] = pivots[k + 1] = -(p + 1)
        if hermitian:
            np.fill_diagonal(a, a.diagonal().real)
        k += step
    return a, pivots, info


@host_function
def ldl_factor(a: Array, hermitian: bool) -> Results:
    """Return (packed L and D, pivots, info)."""
    out, pivots, info = (
        np.empty_like(a),
        np.zeros(a.shape[:2], a.dtype),
        np.zeros(a.shape[0], a.dtype),
    )
    for i in range(a.shape[0]):
        out[i], pivots[i], info[i] = _ldl(a[i], hermitian)
    return out, pivots, info


@host_function
def ldl_solve(packed: Array, pivots: Array, b: Array, hermitian: bool) -> Results:
    """Return x with a @ x = b, where ldl_factor made `packed` and `pivots` of a."""
    out = b.copy()
    for i in range(packed.shape[0]):
        swaps = pivots[i].real.astype(np.int64).reshape(-1)
        out[i] = _ldl_solve(packed[i], swaps, b[i].copy(), hermitian)
    return (out,)


def _ldl_solve(a: Array, pivots: Array, x: Array, hermitian: bool) -> Array:
    turned = np.conj if hermitian else _as_given
    n, k = a.shape[0], 0
    with np.errstate(all="ignore"):
        while k < n:
            if pivots[k] > 0:
                p = pivots[k] - 1
                x[[k, p]] = x[[p, k]]
                x[k + 1 :] -= np.outer(a[k + 1 :, k], x[k])
                x[k] /= a[k, k]
                k += 1
            else:
                p = -pivots[k] - 1
                x[[k + 1, p]] = x[[p, k + 1]]
                x[k + 2 :] -= a[k + 2 :, k : k + 2] @ x[k : k + 2]
                x[k : k + 2] = np.linalg.solve(_block(a, k, hermitian), x[k : k + 2])
                k += 2
        k = n - 1
        while k >= 0:
            if pivots[k] > 0:
                x[k] -= turned(a[k + 1 :, k]) @ x[k + 1 :]
                p = pivots[k] - 1
                x[[k, p]] = x[[p, k]]
                k -= 1
            else:
                x[k - 1 : k + 1] -= turned(a[k + 1 :, k - 1 : k + 1]).T @ x[k + 1 :]
                p = -pivots[k] - 1
                x[[k, p]] = x[[p, k]]
                k -= 2
    return x
