"""Factors of symmetric matrices: Cholesky and LDL, and systems that are solved with them.

The factorisations are LAPACK's, as those of `linalg`.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from webtorch.errors import DTypeError, ShapeError
from webtorch.functions.linalg import (
    LINALG,
    _solve_triangular,
    call,
    check_float,
    check_info,
    check_matrix,
    check_same_type,
    expand_batch,
    identity,
    solve_triangular,
)
from webtorch.ir.dtype import int32
from webtorch.ir.view import broadcast_shapes
from webtorch.ops.primitive import (
    cast_to,
)
from webtorch.ops.purity import warn_once
from webtorch.ops.record import Autocast, composite, return_type
from webtorch.tensors.tensor import Tensor


@return_type("linalg_cholesky_ex")
class CholeskyEx(NamedTuple):
    """What linalg_cholesky_ex returns."""

    L: Tensor
    info: Tensor


@return_type("linalg_ldl_factor")
class LDLFactor(NamedTuple):
    """What linalg_ldl_factor returns."""

    LD: Tensor
    pivots: Tensor


@return_type("linalg_ldl_factor_ex")
class LDLFactorEx(NamedTuple):
    """What linalg_ldl_factor_ex returns."""

    LD: Tensor
    pivots: Tensor
    info: Tensor


def _cholesky_vjp(g: Tensor, out: Tensor, _a: Tensor, _upper: bool) -> tuple[Tensor]:
    """Murray, "Differentiation of the Cholesky decomposition", 2016."""
    phi = (out.mH @ g).tril()
    inner = solve_triangular(out.mH, phi + phi.tril(-1).mH, upper=True)
    return (0.5 * solve_triangular(out, inner, upper=False, left=False),)


@composite(name="_cholesky", function_in=(), vjp=_cholesky_vjp, complex_rule=True)
def _cholesky(a: Tensor, upper: bool) -> tuple[Tensor, ...]:
    """(L, info) from the lower or the `upper` triangle. The gradient is that of the lower one, as
    PyTorch's is: they differ in what they say of matrices that are not Hermitian.
    """
    return call("cholesky", (a.mH if upper else a,), (), (a._shape[-2:], ()))


@composite(
    name="linalg_cholesky_ex",
    family="index",
    function_in=LINALG,
    autocast=Autocast(cpu="fp32"),
    gradient_name="LinalgCholeskyExBackward0",
)
def cholesky_ex(A: Tensor, *, upper: bool = False, check_errors: bool = False) -> CholeskyEx:
    """(L with A = L L^T, info); `upper` gives L^T, from the upper triangle."""
    check_matrix("linalg.cholesky", A, "A", square=True)
    x, info = _cholesky(A, upper)
    info = cast_to(info, int32)
    if check_errors:
        (x,) = check_info("linalg.cholesky", info, _NOT_POSITIVE, x)
    return CholeskyEx(x.mH if upper else x, info)


_NOT_POSITIVE = (
    "The factorization could not be completed because the input is not positive-definite (the "
    "leading minor of order {} is not positive-definite)."
)


@composite(
    name="linalg_cholesky",
    family="index",
    function_in=LINALG,
    autocast=Autocast(cpu="fp32"),
    gradient_name="LinalgCholeskyExBackward0",
)
def linalg_cholesky(A: Tensor, *, upper: bool = False) -> Tensor:
    """L with A = L L^T. Raises LinAlgError where A is not positive definite."""
    return cholesky_ex(A, upper=upper, check_errors=True).L


@composite(
    name="cholesky",
    family="index",
    autocast=Autocast(cpu="fp32"),
    out="castable",
    gradient_name="CholeskyBackward0",
)
def cholesky(input: Tensor, upper: bool = False) -> Tensor:
    """L with input = L L^T; `upper` gives L^T."""
    warn_once(
        "torch.cholesky is deprecated in favor of torch.linalg.cholesky and will be removed in a future PyTorch "
        "release. L = torch.cholesky(A) should be replaced with L = torch.linalg.cholesky(A) and U = "
        "torch.cholesky(A, upper=True) should be replaced with U = torch.linalg.cholesky(A).mH This transform "
        "will produce equivalent results for all valid (symmetric positive definite) inputs."
    )
    check_matrix("cholesky", input, "A", square=True)
    x, info = _cholesky(input, upper)
    (x,) = check_info("cholesky", cast_to(info, int32), _NOT_POSITIVE, x)
    return x.mH if upper else x


@composite(family="index", autocast=Autocast(cpu="fp32"), out="castable")
def cholesky_solve(input: Tensor, input2: Tensor, upper: bool = False) -> Tensor:
    """The solution of A X = input, where A = L L^T (L^T L for `upper`), L the second tensor."""
    for x, what in ((input, "b"), (input2, "u")):
        if x.ndim < 2:
            raise ShapeError(
                f"{what} should have at least 2 dimensions, but has {x.ndim} dimensions instead"
            )
        check_float("cholesky_solve", x, what)
    if input2._shape[-1] != input2._shape[-2] or input2._shape[-2] != input._shape[-2]:
        raise ShapeError(
            f"Incompatible matrix sizes for cholesky_solve: each A matrix is {input2._shape[-1]} by "
            f"{input2._shape[-2]} but each b matrix is {input._shape[-2]} by {input._shape[-1]}"
        )
    return _cholesky_solve(*expand_batch(input, input2), upper)


def _cholesky_solve_vjp(
    g: Tensor, out: Tensor, _b: Tensor, factor: Any, upper: bool
) -> tuple[Tensor, Tensor]:
    gb = _cholesky_solve(g, factor, upper)
    common = gb @ out.mH
    common = -(common + common.mH)
    return gb, (factor @ common if upper else common @ factor)


@composite(name="_cholesky_solve", function_in=(), vjp=_cholesky_solve_vjp, complex_rule=True)
def _cholesky_solve(b: Tensor, factor: Any, upper: bool) -> Tensor:
    lower = factor.mH if upper else factor
    return _solve_triangular(lower.mH, _solve_triangular(lower, b, False, False), True, False)


_SINGULAR = (
    "The diagonal element {} is zero, the inversion could not be completed because the input matrix "
    "is singular."
)


@composite(
    family="index",
    autocast=Autocast(cpu="fp32"),
    out="castable",
)
def cholesky_inverse(input: Tensor, upper: bool = False) -> Tensor:
    """The inverse of A = L L^T from L."""
    check_matrix("cholesky_inverse", input, "A", square=True)
    if input.numel():
        zeros = cast_to(input.detach().diagonal(0, -2, -1) == 0, int32)
        info = zeros.amax(-1) * cast_to(zeros.argmax(-1) + 1, int32)
        check_info("cholesky_inverse", info, _SINGULAR)
    return _cholesky_inverse(input, upper)


def _cholesky_inverse_vjp(g: Tensor, out: Tensor, factor: Any, upper: bool) -> tuple[Tensor]:
    common = -(out @ ((g + g.mH) @ out))
    return (factor @ common if upper else common @ factor,)


@composite(name="_cholesky_inverse", function_in=(), vjp=_cholesky_inverse_vjp, complex_rule=True)
def _cholesky_inverse(factor: Any, upper: bool) -> Tensor:
    one = identity(factor._shape[-1], factor).expand(factor._shape)
    return _cholesky_solve(one, factor, upper)


@composite(name="linalg_ldl_factor_ex", family="index", function_in=LINALG, differentiable=False)
def ldl_factor_ex(A: Tensor, *, hermitian: bool = False, check_errors: bool = False) -> LDLFactorEx:
    """(L and D in one matrix, pivots, info) of symmetric matrices, or of `hermitian` complex ones, by
    Bunch and Kaufman's method.
    """
    check_matrix("torch.linalg.ldl_factor_ex", A, "A", square=True)
    n = A._shape[-1]
    turned = hermitian and A.dtype.is_complex
    packed, pivots, info = call("ldl_factor", (A.detach(),), (turned,), ((n, n), (n,), ()))
    info = cast_to(info, int32)
    if check_errors:
        packed, pivots = check_info(
            "torch.linalg.ldl_factor_ex", info, "D[{0},{0}] is zero.", packed, pivots
        )
    return LDLFactorEx(packed, cast_to(pivots, int32), info)


@composite(name="linalg_ldl_factor", family="index", function_in=LINALG, differentiable=False)
def ldl_factor(A: Tensor, *, hermitian: bool = False) -> LDLFactor:
    """(L and D in one matrix, pivots) of symmetric matrices."""
    found = ldl_factor_ex(A, hermitian=hermitian, check_errors=True)
    return LDLFactor(found.LD, found.pivots)


@composite(name="linalg_ldl_solve", family="index", function_in=LINALG, differentiable=False)
def ldl_solve(LD: Tensor, pivots: Tensor, B: Tensor, *, hermitian: bool = False) -> Tensor:
    """The solution of A X = B from what ldl_factor returned."""
    check_matrix("torch.linalg.ldl_solve", LD, "LD", square=True)
    check_matrix("torch.linalg.ldl_solve", B, "B")
    if pivots.dtype.kind != "int":
        raise DTypeError(
            f"torch.linalg.ldl_solve: Expected pivots to be integers. Got {pivots.dtype}"
        )
    check_same_type("torch.linalg.ldl_solve", LD, B)
    batch = broadcast_shapes(LD._shape[:-2], B._shape[:-2])
    n, k = B._shape[-2:]
    swaps = cast_to(pivots, LD.dtype).expand((*batch, n)).unsqueeze(-1)
    given = [LD.detach().expand((*batch, n, n)), swaps, B.detach().expand((*batch, n, k))]
    turned = hermitian and LD.dtype.is_complex
    return call("ldl_solve", given, (turned,), [(n, k)])[0]
