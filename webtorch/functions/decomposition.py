"""Eigenvalues, singular values, and what is made of them.

As in linalg.py the factorisations are LAPACK's and the derivatives are written with other operations.
Derivatives of eigenvectors and singular vectors are those of PyTorch: finite only where the values
differ from each other, and meaningful only for results that do not depend on the vectors' signs.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from webtorch.errors import DTypeError, ShapeError
from webtorch.functions import creation, joining, movement, random, ranges, reduce
from webtorch.functions.linalg import (
    EVERYWHERE,
    LINALG,
    _solve,
    call,
    check_float,
    check_info,
    check_matrix,
    expand_batch,
    identity,
    inv_ex,
    solve_triangular,
)
from webtorch.functions.norm import EPSILON
from webtorch.functions.orthogonal import linalg_qr, plus, qr_factors
from webtorch.functions.pointwise import where
from webtorch.ir.dtype import DType, float32, float64, int32, int64
from webtorch.ir.view import wrap_dim
from webtorch.ops.primitive import cast_to, conjugate, differentiated, fill, real_part
from webtorch.ops.record import Autocast, composite, return_type
from webtorch.tensors.tensor import Tensor


@return_type("linalg_eig")
class Eig(NamedTuple):
    """What linalg_eig returns."""

    eigenvalues: Tensor
    eigenvectors: Tensor


@return_type("linalg_eigh")
class Eigh(NamedTuple):
    """What linalg_eigh returns."""

    eigenvalues: Tensor
    eigenvectors: Tensor


@return_type("linalg_svd")
class SVD(NamedTuple):
    """What linalg_svd returns."""

    U: Tensor
    S: Tensor
    Vh: Tensor


@return_type("svd")
class OldSVD(NamedTuple):
    """What svd returns."""

    U: Tensor
    S: Tensor
    V: Tensor


@return_type("linalg_lstsq")
class Lstsq(NamedTuple):
    """What linalg_lstsq returns."""

    solution: Tensor
    residuals: Tensor
    rank: Tensor
    singular_values: Tensor


# -- symmetric eigenvalues ----------------------------------------------------------------------------


def _gaps(values: Tensor) -> Tensor:
    """Return values[j] - values[i], 1 on the diagonal."""
    return values.unsqueeze(-2) - values.unsqueeze(-1) + identity(values._shape[-1], values)


def _eigh_vjp(g: Tensor, out: Tensor, _a: Tensor, _uplo: str) -> tuple[Tensor]:
    gw, gv = g[:2]
    w, v = out[:2]
    core = None
    if gv is not None:
        n = w._shape[-1]
        core = (v.mH @ gv) * (1 - identity(n, w)) / _gaps(w)
        core = 0.5 * (core + core.mH)
    if gw is not None:
        core = plus(core, gw.diag_embed())
    assert core is not None
    return (v @ cast_to(core, v.dtype) @ v.mH,)


@composite(name="_eigh", function_in=(), vjp=_eigh_vjp, complex_rule=True, outputs=2)
def _eigh(a: Tensor, uplo: str) -> tuple[Tensor, ...]:
    n = a._shape[-1]
    return call("eigh", (a,), (uplo,), ((n,), (n, n), ()))


def _uplo(name: str, A: Tensor, UPLO: str) -> str:
    check_matrix(name, A, "A", square=True)
    if len(UPLO) != 1 or UPLO.upper() not in "UL":
        raise RuntimeError(f"Expected UPLO argument to be 'L' or 'U', but got {UPLO}")
    return UPLO.upper()


_NOT_CONVERGED = (
    "The algorithm failed to converge because the input matrix is ill-conditioned or has too many "
    "repeated eigenvalues (error code: {})."
)


@composite(
    name="linalg_eigh",
    family="index",
    function_in=LINALG,
    autocast=Autocast(cpu="fp32"),
    gradient_name="LinalgEighBackward0",
)
def eigh(A: Tensor, UPLO: str = "L") -> Eigh:
    """(eigenvalues in ascending order, eigenvectors) of symmetric matrices, from one triangle."""
    w, v, info = _eigh(A, _uplo("linalg.eigh", A, UPLO))
    w, v = check_info("linalg.eigh", info, _NOT_CONVERGED, w, v)
    return Eigh(w, v)


@composite(
    name="linalg_eigvalsh",
    family="index",
    function_in=LINALG,
    autocast=Autocast(cpu="fp32"),
    gradient_name="LinalgEighBackward0",
)
def eigvalsh(A: Tensor, UPLO: str = "L") -> Tensor:
    """The eigenvalues of symmetric matrices in ascending order, from one triangle."""
    uplo = _uplo("linalg.eigvalsh", A, UPLO)
    if differentiated(A):
        return eigh(A, UPLO).eigenvalues
    w, info = call("eigvalsh", (A,), (uplo,), ((A._shape[-1],), ()))
    (w,) = check_info("linalg.eigvalsh", info, _NOT_CONVERGED, w)
    return w


# -- eigenvalues of any matrix ------------------------------------------------------------------------


def _eig_vjp(g: Tensor, out: Tensor, a: Tensor) -> tuple[Tensor]:
    """Boeddeker et al., "On the computation of complex-valued gradients", 2019, 4.60 and 4.77."""
    gw, gv = g[:2]
    w, v = out[:2]
    if gv is None:
        core = gw.diag_embed()
    else:
        turned = v.mH @ gv
        core = turned - (v.mH @ v) * real_part(turned.diagonal(0, -2, -1)).unsqueeze(-2)
        gaps = conjugate(w.unsqueeze(-2) - w.unsqueeze(-1)) + identity(w._shape[-1], w)
        core = core / gaps * (1 - identity(w._shape[-1], w))
        if gw is not None:
            core = core + gw.diag_embed()
    found = _solve(v.mH, core @ v.mH)[0]
    return (found if a.dtype.is_complex else real_part(found),)


@composite(name="_eig", function_in=(), vjp=_eig_vjp, complex_rule=True, outputs=2)
def _eig(a: Tensor) -> tuple[Tensor, ...]:
    n = a._shape[-1]
    z = cast_to(a, a.dtype.to_complex())
    return call("eig", (z,), (a.dtype.is_complex,), ((n,), (n, n), ()))


@composite(
    name="linalg_eig",
    family="index",
    function_in=LINALG,
    out="castable",
    gradient_name="LinalgEigBackward0",
    lapack=("linalg_eig", "linalg_eig.out"),
)
def linalg_eig(A: Tensor) -> Eig:
    """(eigenvalues, eigenvectors of length 1) of any square matrices, complex also where A is real."""
    check_matrix("linalg.eig", A, "A", square=True)
    w, v, info = _eig(A)
    w, v = check_info("linalg.eig", info, _NOT_CONVERGED, w, v)
    return Eig(w, v)


@composite(
    name="linalg_eigvals",
    family="index",
    function_in=LINALG,
    out="castable",
    result="eigenvalues",
    gradient_name="LinalgEigBackward0",
    lapack=("_linalg_eigvals", "linalg_eigvals.out"),
)
def linalg_eigvals(A: Tensor) -> Tensor:
    """The eigenvalues of any square matrices, complex also where A is real."""
    check_matrix("linalg.eigvals", A, "A", square=True)
    w, _, info = _eig(A)
    (w,) = check_info("linalg.eigvals", info, _NOT_CONVERGED, w)
    return w


# -- singular values ----------------------------------------------------------------------------------


def _svd_vjp(g: tuple[Any, ...], out: tuple[Tensor, ...], a: Tensor, full: bool) -> tuple[Tensor]:
    gu, gs, gvh = g[:3]
    u, s, vh = out[:3]
    m, n = a._shape[-2:]
    k = min(m, n)
    if full:
        u, vh = u[..., :k], vh[..., :k, :]
        gu = None if gu is None else gu[..., :k]
        gvh = None if gvh is None else gvh[..., :k, :]
    if gu is None and gvh is None:
        return (u @ (gs.unsqueeze(-1) * vh),)
    one = identity(k, s)
    square = s.unsqueeze(-2) ** 2 - s.unsqueeze(-1) ** 2
    gaps = square + one
    core = None if gs is None else gs.diag_embed()
    if gu is not None:
        skew = u.mH @ gu
        core = plus(core, ((skew - skew.mH) / gaps) * s.unsqueeze(-2))
    if gvh is not None:
        skew = vh @ gvh.mH
        core = plus(core, s.unsqueeze(-1) * ((skew - skew.mH) / gaps))
    if gu is not None and gvh is not None and u.dtype.is_complex:
        # What both turn by one phase.
        phase = (u.mH @ gu).diagonal(0, -2, -1)
        core = core + ((phase - conjugate(phase)) / (2.0 * s)).diag_embed()
    assert core is not None
    result = u @ cast_to(core, u.dtype) @ vh
    if gu is not None and m > k:
        inner = gu / s.unsqueeze(-2)
        result = result + (inner - u @ (u.mH @ inner)) @ vh
    if gvh is not None and n > k:
        inner = gvh / s.unsqueeze(-1)
        result = result + u @ (inner - (inner @ vh.mH) @ vh)
    return (result,)


@composite(
    name="_svd", function_in=(), vjp=_svd_vjp, complex_rule=True, outputs=3, saves_values=True
)
def _svd(a: Tensor, full: bool) -> Any:
    m, n = a._shape[-2:]
    k = min(m, n)
    rows, columns = (m, n) if full else (k, k)
    if not a.numel():
        batch = a._shape[:-2]
        return (
            identity(m, a)[:, :rows].expand((*batch, m, rows)).contiguous(),
            fill((*batch, k), 0, a.dtype.to_real(), a.device),
            identity(n, a)[:columns].expand((*batch, columns, n)).contiguous(),
            fill(batch, 0, a.dtype.to_real(), a.device),
        )
    return call("svd", (a,), (full,), ((m, rows), (k,), (columns, n), ()))


_NO_SVD = "The algorithm failed to converge because the input matrix contained non-finite values."


def _check_driver(name: str, driver: object) -> None:
    if driver is not None:
        raise RuntimeError(
            f"{name}: keyword argument `driver=` is only supported on CUDA inputs with cuSOLVER "
            "backend."
        )


@composite(
    name="linalg_svd",
    family="index",
    function_in=LINALG,
    autocast=Autocast(cpu="fp32"),
    gradient_name="LinalgSvdBackward0",
)
def linalg_svd(A: Tensor, full_matrices: bool = True, *, driver: str | None = None) -> SVD:
    """(U, singular values in descending order, V^T) with A = U diag(S) V^T."""
    check_matrix("linalg.svd", A, "A")
    _check_driver("torch.linalg.svd", driver)
    u, s, vh, info = _svd(A, full_matrices)
    u, s, vh = check_info("linalg.svd", info, _NO_SVD, u, s, vh)
    return SVD(u, s, vh)


@composite(
    name="linalg_svdvals",
    family="index",
    function_in=LINALG,
    autocast=Autocast(cpu="fp32"),
    gradient_name="LinalgSvdBackward0",
)
def svdvals(A: Tensor, *, driver: str | None = None) -> Tensor:
    """The singular values in descending order."""
    check_matrix("linalg.svdvals", A, "A")
    _check_driver("torch.linalg.svdvals", driver)
    if differentiated(A):
        return linalg_svd(A, False).S
    s, info = call("svdvals", (A,), (), ((min(A._shape[-2:]),), ()))
    (s,) = check_info("linalg.svdvals", info, _NO_SVD, s)
    return s


@composite(
    name="svd", family="index", autocast=Autocast(cpu="fp32"), gradient_name="LinalgSvdBackward0"
)
def svd(input: Tensor, some: bool = True, compute_uv: bool = True) -> OldSVD:
    """(U, S, V) with input = U diag(S) V^T."""
    check_matrix("linalg.svd", input, "A")
    if compute_uv:
        u, s, vh = linalg_svd(input, not some)
        return OldSVD(u, s, vh.mH)
    m, n = input._shape[-2:]
    batch = input._shape[:-2]
    zeros = [fill((*batch, k, k), 0, input.dtype, input.device) for k in (m, n)]
    return OldSVD(zeros[0], svdvals(input), zeros[1])


# -- pseudo-inverse, least squares, rank, condition ---------------------------------------------------


def _tolerance(a: Tensor, largest: object, atol: Any, rtol: Any) -> Tensor:
    """Return max(atol, rtol * largest), of the shape of the batch."""
    if rtol is None:
        rtol = EPSILON[a.dtype.to_real()] * max(a._shape[-2:])
        if isinstance(atol, Tensor):
            rtol = where(atol > 0, 0.0, rtol)
        elif atol is not None and atol > 0:
            rtol = 0.0
    bound = largest * rtol
    if isinstance(atol, Tensor):
        return bound.maximum(cast_to(atol, bound.dtype))
    return bound.clamp(min=0.0 if atol is None else float(atol))


def _pinv_vjp(
    g: Tensor, out: Tensor, a: Tensor, _bound: object, _hermitian: bool = False
) -> tuple[Tensor]:
    """Golub and Pereyra, 1973."""
    gh, ph = g.mH, out.mH
    m, n = a._shape[-2:]
    if m <= n:
        k = gh @ out
        kp = k @ ph
        return (-((out @ k).mH) + kp - (a @ out) @ kp + (ph @ out) @ (gh - k @ a),)
    k = out @ gh
    pk = ph @ k
    return (-((k @ out).mH) + (gh - a @ k) @ out @ ph + pk - (pk @ out) @ a,)


@composite(name="_pinv", function_in=(), vjp=_pinv_vjp, complex_rule=True)
def _pinv(a: Tensor, bound: Any, hermitian: bool = False) -> Tensor:
    if hermitian:
        s, u, _ = _eigh(a, "L")
        vh = u.mH
    else:
        u, s, vh, _ = _svd(a, False)
    keep = s.abs() > bound.unsqueeze(-1)
    inverse = where(keep, 1 / where(keep, s, 1.0), 0.0)
    return vh.mH @ (inverse.unsqueeze(-1) * u.mH)


def _largest(a: Tensor, hermitian: bool) -> Tensor:
    values = eigvalsh(a.detach()).abs() if hermitian else svdvals(a.detach())
    return values.amax(-1) if values._shape[-1] else values.sum(-1)


@composite(
    name="linalg_pinv",
    family="index",
    function_in=LINALG,
    out="castable",
    gradient_name="LinalgPinvBackward0",
)
def pinv(
    A: Tensor,
    rcond: float | Tensor | None = None,
    hermitian: bool = False,
    *,
    atol: float | Tensor | None = None,
    rtol: float | Tensor | None = None,
) -> Tensor:
    """The pseudo-inverse; singular values up to max(atol, rtol * the largest) count as zero."""
    if A.ndim < 2:
        raise ShapeError(
            f"linalg.pinv({A.dtype.legacy}{{{list(A._shape)}}}): expected a tensor with 2 or more dimensions of float, "
            "double, cfloat or cdouble types"
        )
    check_matrix("linalg.pinv", A, "A", square=hermitian)
    for name, bound in (("rcond", rcond), ("atol", atol), ("rtol", rtol)):
        if isinstance(bound, Tensor) and bound.dtype.is_complex:
            raise DTypeError(f"linalg.pinv: {name} tensor of complex type is not supported.")
    if rcond is not None:
        rtol = rcond
    if not A.numel():
        return (
            fill((*A._shape[:-2], A._shape[-1], A._shape[-2]), 0, A.dtype, A.device) + 0 * A.sum()
        )
    return _pinv(A, _tolerance(A, _largest(A, hermitian), atol, rtol), hermitian)


@composite(family="index", autocast=Autocast(cpu="fp32"), gradient_name="LinalgPinvBackward0")
def pinverse(input: Tensor, rcond: float = 1e-15) -> Tensor:
    """The pseudo-inverse."""
    return pinv(input, rtol=rcond)


@composite(
    name="linalg_matrix_rank",
    family="index",
    function_in=LINALG,
    differentiable=False,
    autocast=Autocast(cpu="fp32"),
    out="castable",
)
def matrix_rank(
    A: Tensor,
    tol: float | Tensor | None = None,
    hermitian: bool = False,
    *,
    atol: float | Tensor | None = None,
    rtol: float | Tensor | None = None,
) -> Tensor:
    """How many singular values are larger than max(atol, rtol * the largest), int64."""
    check_matrix("linalg.matrix_rank", A, "A", square=hermitian)
    if tol is not None:
        atol, rtol = tol, 0.0
    a = A.detach()
    if not a.numel():
        return fill(a._shape[:-2], 0, int64, a.device)
    values = eigvalsh(a).abs() if hermitian else svdvals(a)
    bound = _tolerance(a, values.amax(-1), atol, rtol)
    return (values > bound.unsqueeze(-1)).sum(-1)


def _lstsq_vjp(
    g: Tensor, _out: Tensor, a: Tensor, b: Tensor, rcond: float
) -> tuple[Tensor, Tensor]:
    s = svdvals(a.detach())
    bound = s.amax(-1) * rcond
    p = _pinv(a, bound)
    gp = g @ b.mH
    return _pinv_vjp(gp, p, a, bound)[0], p.mH @ g


@composite(name="_lstsq", function_in=(), vjp=_lstsq_vjp, complex_rule=True)
def _lstsq(a: Tensor, b: Tensor, rcond: float) -> tuple[Tensor, ...]:
    m, n = a._shape[-2:]
    return call("lstsq", (a, b), (rcond,), ((n, b._shape[-1]), (), (min(m, n),)))


def _inverse_vjp(g: Tensor, out: Tensor, a: Tensor) -> tuple[Tensor]:
    return _pinv_vjp(g, out, a, None)


@composite(name="_inverse_of_full_rank", function_in=(), vjp=_inverse_vjp, complex_rule=True)
def _inverse_of_full_rank(a: Tensor) -> Tensor:
    """Return the pseudo-inverse of matrices of full rank."""
    return _gels(a, identity(a._shape[-2], a).expand((*a._shape[:-1], a._shape[-2])))[0]


def _gels_vjp(g: Tensor, _out: Tensor, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    p = _inverse_of_full_rank(a)
    return _pinv_vjp(g @ b.mH, p, a, None)[0], p.mH @ g


@composite(name="_gels", function_in=(), vjp=_gels_vjp, complex_rule=True)
def _gels(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """Return (x, info) by QR alone, for matrices of full rank; of zeros x is zero, as LAPACK's."""
    m, n = a._shape[-2:]
    q, r = qr_factors(a if m >= n else a.mH, "reduced")
    k = min(m, n)
    diagonal = r.diagonal(0, -2, -1)
    zero = diagonal == 0
    nothing = (a == 0).all(-1).all(-1)
    # A triangle of zeros becomes one that can be solved.
    r = where(nothing[..., None, None], identity(k, r), r)
    if m >= n:
        x = solve_triangular(r, q.mH @ b, upper=True)
    else:
        x = q @ solve_triangular(r.mH, b, upper=False)
    first = where(zero, ranges.arange(1, k + 1, device=a.device), 0)
    info = where(zero.any(-1) & ~nothing, where(zero, first, k + 1).amin(-1), 0)
    return where(nothing[..., None, None], 0.0, x), info


_NOT_FULL_RANK = (
    "The least squares solution could not be computed because the input matrix does not have full "
    "rank (error code: {})."
)


@composite(
    name="linalg_lstsq",
    family="index",
    function_in=LINALG,
    autocast=Autocast(cpu="fp32"),
    out="cast",
    gradient_name="LinalgLstsqBackward0",
    other_names={"b": "B"},
)
def lstsq(A: Tensor, B: Tensor, rcond: float | None = None, *, driver: str | None = None) -> Lstsq:
    """(the X that makes A X - B smallest, residuals, ranks, singular values)."""
    name = "torch.linalg.lstsq"
    check_float(name, A, "input")
    if A.ndim < 2:
        raise ShapeError(f"{name}: input must have at least 2 dimensions.")
    if B.ndim < 1:
        raise ShapeError(f"{name}: other must have at least 1 dimension.")
    if A.dtype is not B.dtype:
        raise DTypeError(
            f"{name}: Expected input and other to have the same dtype, but got {A.dtype} and {B.dtype}"
        )
    if not 0 <= A.ndim - B.ndim <= 1 and not A.ndim < B.ndim:
        raise ShapeError(
            f"{name}: input.dim() must be greater or equal to other.dim() and (input.dim() - "
            "other.dim()) <= 1"
        )
    vector = (A.ndim - 1 == B.ndim and B._shape == A._shape[:-1]) or B.ndim == 1
    b = B.unsqueeze(-1) if vector else B
    if A._shape[-2] != b._shape[-2]:
        raise ShapeError(f"{name}: input.size(-2) should match other.size({-1 if vector else -2})")
    if driver not in (None, "gels", "gelsy", "gelsd", "gelss"):
        raise RuntimeError(
            f"{name}: parameter `driver` should be one of (gels, gelsy, gelsd, gelss)"
        )
    chosen = driver or "gelsy"
    m, n = A._shape[-2:]
    cut = _cut_of(chosen, EPSILON[A.dtype.to_real()], max(m, n), rcond)
    a, b = expand_batch(A, b)
    if chosen == "gels" and a.numel():
        x, info = _gels(a, b)
        (x,) = check_info(name, info, _NOT_FULL_RANK, x)
        rank = s = x
    else:
        x, rank, s = _lstsq(a, b, cut)
    empty = fill((0,), 0, A.dtype.to_real(), A.device)
    residuals = empty
    if m > n and chosen != "gelsy" and (chosen == "gels" or not n or _all_full(rank, n)):
        difference = a @ x - b
        residuals = (difference.abs() ** 2).sum(-2)
    ranks = fill((0,), 0, int64, A.device) if chosen == "gels" else cast_to(rank.detach(), int64)
    values = s.detach() if chosen in ("gelsd", "gelss") else empty
    return Lstsq(x.squeeze(-1) if vector else x, residuals, ranks, values)


def _cut_of(driver: str, epsilon: float, size: int, rcond: float | None) -> float:
    """Return below what part of the largest singular value LAPACK's driver takes others for zero."""
    if rcond is None:
        return epsilon * size
    # "gelsd" takes what is no fraction for none given, "gelss" what is negative.
    unsaid = rcond < 0 or (driver == "gelsd" and (rcond == 0 or rcond >= 1))
    return epsilon if unsaid else float(rcond)


def _all_full(rank: Tensor, n: int) -> bool:
    return rank._storage.runtime.capturing or bool((rank == n).all().item())


# -- norms --------------------------------------------------------------------------------------------


@composite(
    name="linalg_matrix_norm",
    family="index",
    function_in=LINALG,
    autocast=Autocast(gpu="fp32_result"),
)
def matrix_norm(
    A: Tensor,
    ord: Any = "fro",
    dim: Any = (-2, -1),
    keepdim: bool = False,
    *,
    dtype: DType | None = None,
) -> Tensor:
    """The matrix norm over two dims: "fro", "nuc", +-1, +-2 or +-inf."""
    name = "linalg.matrix_norm"
    if isinstance(ord, complex):
        raise RuntimeError(f"{name}: Expected a non-complex scalar as the order of norm.")
    if isinstance(ord, str) and ord not in ("fro", "nuc"):
        raise RuntimeError(f"{name}: Order {ord} not supported.")
    if A.ndim < 2:
        raise ShapeError(
            f"{name}: The input tensor A must have at least 2 dimensions, but got {A.ndim}."
        )
    if len(dim) != 2:
        raise ShapeError(f"{name}: dim must be a 2-tuple. Got {', '.join(map(str, dim))}")
    dims = [wrap_dim(name, d, A.ndim) for d in dim]
    if dims[0] == dims[1]:
        raise ShapeError(f"{name}: dims must be different. Got ({dim[0]}, {dim[1]})")
    if not A.dtype.has_gradient:
        raise DTypeError(
            f"{name}: Expected a floating point or complex tensor as input. Got {A.dtype}"
        )
    x = A
    if dtype is not None:
        if dtype.kind != A.dtype.kind or dtype.itemsize < A.dtype.itemsize:
            raise DTypeError(
                f"{name}: the dtype of the input ({A.dtype}) should be convertible without narrowing "
                f"to the specified dtype ({dtype})"
            )
        x = cast_to(A, dtype)
    if ord == "fro":
        return reduce.vector_norm(x, 2, tuple(dims), keepdim)
    if ord not in ("nuc", 1, -1, 2, -2, math.inf, -math.inf):
        raise RuntimeError(f"{name}: Order {ord} not supported.")
    if ord == "nuc" or abs(ord) == 2:
        if x.dtype.to_real() not in (float32, float64):
            raise DTypeError(f"{name}: Low precision dtypes not supported. Got {x.dtype}")
        s = svdvals(movement.movedim(x, tuple(dims), (-2, -1)))
        if ord == "nuc" or (not s._shape[-1] and ord > 0):
            result = s.sum(-1)
        else:
            result = s.amax(-1) if ord > 0 else s.amin(-1)
    else:
        rows, columns = dims if abs(ord) == 1 else reversed(dims)
        sums = reduce.vector_norm(x, 1, rows, True)
        if ord > 0:
            result = sums.amax(columns, True) if sums._shape[columns] else sums.sum(columns, True)
        else:
            result = sums.amin(columns, True)
        result = result.squeeze(tuple(dims))
    if keepdim:
        for d in sorted(dims):
            result = result.unsqueeze(d)
    return result


@composite(name="linalg_norm", family="index", function_in=LINALG)
def linalg_norm(
    A: Tensor,
    ord: Any = None,
    dim: Any = None,
    keepdim: bool = False,
    *,
    dtype: DType | None = None,
) -> Tensor:
    """The vector norm, or the matrix norm where `ord` is given for two dims (or is a name)."""
    if isinstance(dim, int):
        dim = (dim,)
    if not A.dtype.has_gradient:
        raise DTypeError(
            f"linalg.norm: Expected a floating point or complex tensor as input. Got {A.dtype}"
        )
    if dim is not None and len(dim) not in (1, 2):
        raise ShapeError(
            f"linalg.norm: If dim is specified, it must be of length 1 or 2. Got {list(dim)}"
        )
    if ord is not None and dim is None and A.ndim not in (1, 2):
        raise ShapeError(
            "linalg.norm: If dim is not specified but ord is, the input must be 1D or 2D. Got "
            f"{A.ndim}D."
        )
    of_matrix = ord is not None and (len(dim) == 2 if dim is not None else A.ndim == 2)
    if of_matrix or isinstance(ord, str):
        return matrix_norm(A, ord, (0, 1) if dim is None else dim, keepdim, dtype=dtype)
    return reduce.vector_norm(A, 2 if ord is None else ord, dim, keepdim, dtype=dtype)


@composite(
    name="linalg_cond",
    family="index",
    function_in=LINALG,
    autocast=Autocast(cpu="fp32"),
    out="castable",
)
def cond(A: Tensor, p: object = None) -> Tensor:
    """The condition number: the norm times the norm of the inverse."""
    if p not in (None, "fro", "nuc", 1, -1, 2, -2, math.inf, -math.inf):
        raise RuntimeError(f"linalg.cond got an invalid norm type: {p}")
    if p is None or p in (2, -2):
        check_matrix("linalg.cond", A, "A")
        if not A.numel():
            return fill(A._shape[:-2], 0, A.dtype.to_real(), A.device)
        s = svdvals(A)
        last = s.narrow(-1, s._shape[-1] - 1, 1).squeeze(-1)
        first = s.narrow(-1, 0, 1).squeeze(-1)
        return last / first if p == -2 else first / last
    check_matrix("linalg.cond", A, "A", square=True)
    if not A.numel():
        return fill(A._shape[:-2], 0, A.dtype.to_real(), A.device)
    inverse, info = inv_ex(A)
    singular = cast_to(info, int32) != 0
    # What the elimination leaves of a singular matrix may be infinite, which singular values refuse.
    inverse = where(singular.unsqueeze(-1).unsqueeze(-1), 0, inverse)
    return where(singular, math.inf, matrix_norm(A, p) * matrix_norm(inverse, p))


# -- functions of matrices ----------------------------------------------------------------------------


def _matrix_exp_vjp(g: Tensor, _out: Tensor, a: Tensor) -> tuple[Tensor]:
    """Al-Mohy and Higham, 2009: the derivative is a block of the exponential of a larger matrix."""
    n = a._shape[-1]
    t = a.mT
    zero = creation.zeros_like(t)
    # It is linear in g, and the larger matrix's norm is what rounding grows with.
    largest = g.detach().abs().sum((-2, -1), keepdim=True)
    size = where(largest > 0, largest, 1.0)
    top, bottom = joining.cat((t, g / size), -1), joining.cat((zero, t), -1)
    return (_matrix_exp(joining.cat((top, bottom), -2))[..., :n, n:] * size,)


@composite(name="_matrix_exp", function_in=(), vjp=_matrix_exp_vjp)
def _matrix_exp(a: Tensor) -> Tensor:
    return call("matrix_exp", (a,), (), (a._shape[-2:],))[0]


@composite(
    family="index",
    function_in=EVERYWHERE,
    gradient_name="LinalgMatrixExpBackward0",
)
def matrix_exp(input: Tensor) -> Tensor:
    """The exponentials of matrices (*, N, N)."""
    if not input.dtype.has_gradient:
        raise DTypeError(
            f"linalg.matrix_exp: Expected a floating point or complex tensor as input. Got {input.dtype}"
        )
    narrow = input.dtype.to_real() not in (float32, float64)
    a = cast_to(input, float32) if narrow else input
    check_matrix("linalg.matrix_exp", a, "A", square=True)
    return cast_to(_matrix_exp(a), input.dtype)


# -- random projections -------------------------------------------------------------------------------


def _range_basis(a: Tensor, q: int, niter: int) -> Tensor:
    """Halko, Martinsson and Tropp, 2009, algorithm 4.4: an orthonormal basis of about a's range."""
    basis = linalg_qr(a @ random.randn(a._shape[-1], q, dtype=a.dtype, device=a.device)).Q
    for _ in range(niter):
        basis = linalg_qr(a.mH @ basis).Q
        basis = linalg_qr(a @ basis).Q
    return basis


@composite(family="index", function_in=("torch",), drawn=True)
def svd_lowrank(
    A: Tensor, q: int | None = 6, niter: int = 2, M: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """(U, S, V) of about the q largest singular values of A (of A - M)."""
    chosen = 6 if q is None else q
    m, n = A._shape[-2:]
    a = A if M is None else A - M
    if m < n:
        a = a.mH
    basis = _range_basis(a, chosen, niter)
    u, s, vh = linalg_svd(basis.mH @ a, False)
    u, v = basis @ u, vh.mH
    return (v, s, u) if m < n else (u, s, v)


@composite(family="index", function_in=("torch",), drawn=True)
def pca_lowrank(
    A: Tensor, q: int | None = None, center: bool = True, niter: int = 2
) -> tuple[Tensor, Tensor, Tensor]:
    """(U, S, V) of about the q largest principal components of the rows of A."""
    m, n = A._shape[-2:]
    chosen = min(6, m, n) if q is None else q
    if not 0 <= chosen <= min(m, n):
        raise ValueError(
            f"q(={chosen}) must be non-negative integer and not greater than min(m, n)={min(m, n)}"
        )
    if niter < 0:
        raise ValueError(f"niter(={niter}) must be non-negative integer")
    return svd_lowrank(A - A.mean(-2, keepdim=True) if center else A, chosen, niter)
