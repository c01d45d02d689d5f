"""Orthogonal factors: QR, and products of Householder reflections.

As in linalg.py the factorisations are LAPACK's and the derivatives are written with other operations.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from webtorch.errors import DTypeError, ShapeError
from webtorch.functions import creation, joining
from webtorch.functions.linalg import (
    LINALG,
    call,
    check_matrix,
    check_same_type,
    identity,
    solve_triangular,
)
from webtorch.ops.primitive import cast_to, conjugate, differentiated, fill, real_part
from webtorch.ops.purity import warn_once
from webtorch.ops.record import Autocast, composite, return_type
from webtorch.tensors.tensor import Tensor


@return_type("linalg_qr")
class QR(NamedTuple):
    """What linalg_qr returns."""

    Q: Tensor
    R: Tensor


@return_type("qr")
class OldQR(NamedTuple):
    """What qr returns."""

    Q: Tensor
    R: Tensor


@return_type("geqrf")
class Geqrf(NamedTuple):
    """What geqrf returns."""

    a: Tensor
    tau: Tensor


def plus(a: Tensor | None, b: Tensor | None) -> Any:
    """Return the sum of two cotangents, either of which may be missing."""
    return b if a is None else a if b is None else a + b


def symmetrised(m: Tensor) -> Tensor:
    """Return the symmetric matrix with the lower triangle of m."""
    low = m.tril(-1)
    if not m.dtype.is_complex:
        return m.tril() + low.mH
    return low + low.mH + cast_to(real_part(m.diagonal(0, -2, -1)).diag_embed(), m.dtype)


def _qr_vjp(g: tuple[Any, ...], out: tuple[Tensor, ...], a: Tensor, mode: str) -> tuple[Tensor]:
    """Walter and Lehmann, "Walter, Lehmann: Algorithmic differentiation of the QR decomposition", 2018."""
    gq, gr = g
    q, r = out
    m, n = a._shape[-2:]
    if mode == "complete" and m > n:
        raise RuntimeError(
            "The QR decomposition is not differentiable when mode='complete' and nrows > ncols"
        )
    if m >= n:
        core = None if gr is None else r @ gr.mH
        core = plus(core, None if gq is None else -(gq.mH @ q))
        total = plus(gq, q @ symmetrised(core))
        return (solve_triangular(r.mH, total, upper=False, left=False),)
    # A wide matrix: the factor of its first columns fixes Q; the rest of R is Q^T times the rest.
    y, u = a[..., m:], r[..., :m]
    gu, gv = (None, None) if gr is None else (gr[..., :m], gr[..., m:])
    gq = plus(gq, None if gv is None else y @ gv.mH)
    core = None if gu is None else u @ gu.mH
    core = plus(core, None if gq is None else -(gq.mH @ q))
    total = plus(gq, q @ symmetrised(core))
    left = solve_triangular(u.mH, total, upper=False, left=False)
    right = q @ gv if gv is not None else creation.zeros_like(y)
    return (joining.cat((left, right), -1),)


@composite(
    name="_qr",
    function_in=(),
    torch="",
    vjp=_qr_vjp,
    complex_rule=True,
    outputs=2,
    saves_values=True,
)
def qr_factors(a: Tensor, mode: str) -> Any:
    """Return the factors that LAPACK gives, of matrices without elements as well."""
    m, n = a._shape[-2:]
    k = m if mode == "complete" else min(m, n)
    if not a.numel():
        one = identity(m, a)[:, :k].expand((*a._shape[:-2], m, k)).contiguous()
        return one, fill((*a._shape[:-2], k, n), 0, a.dtype, a.device)
    return call("qr", (a,), (mode,), ((m, k), (k, n)))


@composite(
    name="linalg_qr",
    family="index",
    function_in=LINALG,
    torch="linalg.qr",
    autocast=Autocast(cpu="fp32"),
    gradient_name="LinalgQrBackward0",
)
def linalg_qr(A: Tensor, mode: str = "reduced") -> QR:
    """(Q, R) with A = Q R; mode "reduced", "complete" or "r" (Q is empty)."""
    check_matrix("linalg.qr", A, "A")
    if mode not in ("reduced", "complete", "r"):
        raise RuntimeError(
            f"qr received unrecognized mode '{mode}' but expected one of 'reduced' (default), 'r', or "
            "'complete'"
        )
    if mode == "r":
        if differentiated(A):
            a = A.detach()
            return QR(
                fill((0,), 0, A.dtype, A.device),
                _undifferentiable_r(A, qr_factors(a, "reduced")[1]),
            )
        return QR(fill((0,), 0, A.dtype, A.device), qr_factors(A, "reduced")[1])
    return QR(*qr_factors(A, mode))


def _no_qr(_g: Tensor, _out: Tensor, _a: Tensor, _r: object) -> Tensor:
    raise RuntimeError(
        "The derivative of linalg.qr depends on Q, which is not computed when mode='r'. Please use "
        "linalg.qr(A, mode='reduced') if you are going to require gradients through linalg.qr."
    )


@composite(name="_undifferentiable_r", function_in=(), torch="", vjp=_no_qr)
def _undifferentiable_r(a: Tensor, r: Tensor) -> Tensor:
    return r.clone()


@composite(
    name="qr", family="index", autocast=Autocast(cpu="fp32"), gradient_name="LinalgQrBackward0"
)
def qr(input: Tensor, some: bool = True) -> OldQR:
    """(Q, R) with input = Q R; not `some` gives a square Q."""
    warn_once(
        "torch.qr is deprecated in favor of torch.linalg.qr and will be removed in a future PyTorch release. "
        "The boolean parameter 'some' has been replaced with a string parameter 'mode'. Q, R = torch.qr(A, "
        "some) should be replaced with Q, R = torch.linalg.qr(A, 'reduced' if some else 'complete')"
    )
    check_matrix("linalg.qr", input, "A")
    return OldQR(*qr_factors(input, "reduced" if some else "complete"))


@composite(
    family="index",
    differentiable=False,
    autocast=Autocast(cpu="fp32"),
    out="castable",
)
def geqrf(input: Tensor) -> Geqrf:
    """(R above the Householder vectors in one matrix, tau)."""
    check_matrix("geqrf", input, "input")
    m, n = input._shape[-2:]
    if not input.numel():
        k = min(m, n)
        tau = fill((*input._shape[:-2], k), 0, input.dtype, input.device)
        return Geqrf(input.mT.clone().contiguous().mT, tau)
    packed, tau = call("geqrf", (input.detach(),), (), ((m, n), (min(m, n),)))
    return Geqrf(packed.mT.contiguous().mT, tau)  # by columns, as LAPACK has it


def _reflectors(name: str, v: Tensor, tau: Tensor) -> Tensor:
    """Return the Householder vectors, ones on the diagonal and zeros above."""
    check_matrix(name, v, "input")
    m, n = v._shape[-2:]
    if m < n:
        raise ShapeError(
            f"{name}: input.shape[-2] must be greater than or equal to input.shape[-1]"
        )
    if n < tau._shape[-1]:
        raise ShapeError(f"{name}: input.shape[-1] must be greater than or equal to tau.shape[-1]")
    if v.ndim - tau.ndim != 1 or v._shape[:-2] != tau._shape[:-1]:
        raise ShapeError(
            f"{name}: Expected batch dimensions of tau to be equal to input.shape[:-2], but got "
            f"{tuple(tau._shape[:-1])}"
        )
    if tau.dtype is not v.dtype:
        raise DTypeError(
            f"{name}: tau dtype {tau.dtype.legacy} does not match input dtype {v.dtype.legacy}"
        )
    return v.tril(-1) + identity(m, v)[:, :n]


def reflected(v: Tensor, tau: Tensor, x: Tensor, adjoint: bool = False) -> Tensor:
    """Return Q x, or Q^H x, where Q is the product of the reflections I - tau v v^H by the columns v.

    Q = I - V T V^H with T = (I + D N)^-1 D, where D has tau on its diagonal and N is V^H V above its own: Joffrain et
    al., "Accumulating Householder transformations, revisited", 2006.
    """
    k = tau._shape[-1]
    scale = tau.unsqueeze(-1)
    system = identity(k, v) + scale * (v.mH @ v).triu(1)
    inner = v.mH @ x
    if adjoint:
        inner = solve_triangular(system.mH, inner, upper=False, unitriangular=True)
        return x - v @ (conjugate(scale) * inner)
    return x - v @ solve_triangular(system, scale * inner, upper=True, unitriangular=True)


@composite(
    name="linalg_householder_product",
    family="index",
    function_in=LINALG,
    aliases=(),
    torch="linalg.householder_product",
    autocast=Autocast(cpu="fp32"),
    out="castable",
    gradient_name="LinalgHouseholderProductBackward0",
)
def householder_product(A: Tensor, tau: Tensor) -> Tensor:
    """The first columns of the product of the reflections I - tau v v^T."""
    v = _reflectors("torch.linalg.householder_product", A, tau)
    m, n = A._shape[-2:]
    return reflected(v[..., : tau._shape[-1]], tau, identity(m, A)[:, :n])


@composite(
    family="index", autocast=Autocast(cpu="fp32"), gradient_name="LinalgHouseholderProductBackward0"
)
def orgqr(input: Tensor, input2: Tensor) -> Tensor:
    """The first columns of the product of the reflections I - tau v v^T, tau the second tensor."""
    return householder_product(input, input2)


@composite(
    family="index",
    autocast=Autocast(cpu="fp32"),
    gradient_name="OrmqrBackward0",
)
def ormqr(
    input: Tensor, input2: Tensor, input3: Tensor, left: bool = True, transpose: bool = False
) -> Tensor:
    """The product of Q (of its transpose) and the third tensor; Q's reflections and their factors are the others."""
    tau, other = input2, input3
    check_matrix("torch.ormqr", input, "input")
    check_matrix("torch.ormqr", other, "other")
    side = -2 if left else -1
    if other._shape[side] < tau._shape[-1]:
        raise ShapeError(
            f"torch.ormqr: other.shape[{side}] must be greater than or equal to tau.shape[-1]"
        )
    if other._shape[side] != input._shape[-2]:
        raise ShapeError(f"torch.ormqr: other.shape[{side}] must be equal to input.shape[-2]")
    if tau._shape[-1] != min(other._shape[side], input._shape[-1]):
        raise ShapeError(
            f"torch.ormqr: tau.shape[-1] must be equal to min(other.shape[{side}], input.shape[-1])"
        )
    if input.ndim - tau.ndim != 1 or input.ndim != other.ndim:
        raise ShapeError(
            "torch.ormqr: Expected tau to have one dimension less than input, and other as many as "
            f"input, but got {tau.ndim}, {input.ndim} and {other.ndim}"
        )
    if input._shape[:-2] != tau._shape[:-1] or input._shape[:-2] != other._shape[:-2]:
        raise ShapeError(
            "torch.ormqr: Expected batch dimensions of tau and other to be equal to input.shape[:-2]"
        )
    check_same_type("torch.ormqr", input, tau)
    check_same_type("torch.ormqr", input, other)
    m = input._shape[-2]
    v = input.tril(-1) + identity(max(m, input._shape[-1]), input)[:m, : input._shape[-1]]
    v = v[..., : tau._shape[-1]]
    if left:
        return reflected(v, tau, other, adjoint=transpose)
    return reflected(v, tau, other.mH, adjoint=not transpose).mH
