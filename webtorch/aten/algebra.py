"""Complex numbers, Fourier transforms, linear algebra and Sobol's points of aten. Floor 6; imports no PyTorch.

Eigenvalues of matrices that are not symmetric have no kernel on WebGPU: entries name the operators (`lapack`) that
PyTorch's LAPACK computes. That is a decision for each of them, not a fallback: `torch.webgpu.host_kernel_counts()`
tells how often each one ran.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from webtorch.aten.table import aten, op
from webtorch.functions.fourier import complex_transform, half_transform, real_transform
from webtorch.functions.sobol import points, scrambled
from webtorch.ir.dtype import DType, float32, int32
from webtorch.ops.layout import matrix_columns, of_operands
from webtorch.ops.primitive import cast_to, conjugate, fill
from webtorch.tensors.tensor import Tensor

# ---- complex numbers ----------------------------------------------------------------------------


@aten("complex", layout=of_operands)
def _complex(re: Tensor, im: Tensor) -> Tensor:
    return op.complex(re, im)


@aten("polar", layout=of_operands)
def _polar(abs: Tensor, angle: Tensor) -> Tensor:
    return op.polar(abs, angle)


@aten("conj_physical", direct=("conj_physical_",))
def _conj_physical(x: Tensor) -> Tensor:
    return op.conj_physical(x)


# ---- Fourier transforms -------------------------------------------------------------------------


def _scaled(x: Tensor, normalization: int, sizes: Sequence[int]) -> Tensor:
    """Return x divided by nothing, by the root of the number of values, or by that number."""
    n = math.prod(sizes)
    if normalization == 0 or n in (0, 1):
        return x
    return x * (1 / math.sqrt(n) if normalization == 1 else 1 / n)


def _along(x: Tensor, dims: Sequence[int], inverse: bool) -> Tensor:
    return complex_transform(x, tuple(dims), inverse) if len(dims) else x


@aten("_fft_c2c")
def _fft_c2c(x: Tensor, dim: Sequence[int], normalization: int, forward: bool) -> Tensor:
    dims = [d % x.ndim for d in dim]
    return _scaled(_along(x, dims, not forward), normalization, [x._shape[d] for d in dims])


@aten("_fft_r2c")
def _fft_r2c(x: Tensor, dim: Sequence[int], normalization: int, onesided: bool) -> Tensor:
    dims = [d % x.ndim for d in dim]
    if onesided:
        out = _along(real_transform(x, dims[-1]), dims[:-1], False)
    else:
        out = _along(cast_to(x, x.dtype.to_complex()), dims, False)
    return _scaled(out, normalization, [x._shape[d] for d in dims])


@aten("_fft_c2r")
def _fft_c2r(x: Tensor, dim: Sequence[int], normalization: int, last_dim_size: int) -> Tensor:
    dims = [d % x.ndim for d in dim]
    out = half_transform(_along(x, dims[:-1], True), dims[-1], last_dim_size)
    return _scaled(out, normalization, [out._shape[d] for d in dims])


# ---- products -----------------------------------------------------------------------------------


@aten("linear_backward")
def _linear_backward(
    x: Tensor, g: Tensor, weight: Tensor, mask: Sequence[bool]
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    many = math.prod(g._shape[:-1])
    rows = g.reshape(many, g._shape[-1])
    gx = op.matmul(g, conjugate(weight)) if mask[0] else None
    gw = op.matmul(rows.t(), conjugate(x.reshape(many, x._shape[-1]))) if mask[1] else None
    return gx, gw, op.sum(rows, 0) if mask[2] else None


@aten("matmul_backward")
def _matmul_backward(
    g: Tensor, x: Tensor, y: Tensor, mask: Sequence[bool]
) -> tuple[Tensor | None, Tensor | None]:
    """Of operands of two dims or more."""
    x_shape = x._shape
    gx = op.matmul(g, y.transpose(-2, -1)) if mask[0] else None
    if y.ndim == 2 and x.ndim > 2 and mask[1]:
        # One product of all rows, in the place of a sum of products.
        many = math.prod(x_shape[:-1])
        x, g = x.reshape(many, x_shape[-1]), g.reshape(many, g._shape[-1])
    gy = op.matmul(x.transpose(-2, -1), g) if mask[1] else None
    return (
        None if gx is None else gx.sum_to_size(x_shape),
        None if gy is None else gy.sum_to_size(y._shape),
    )


@aten("_int_mm")
def _int_mm(x: Tensor, y: Tensor) -> Tensor:
    return op.mm(cast_to(x, int32), cast_to(y, int32))


@aten("_trilinear")
def _trilinear(
    x: Tensor,
    y: Tensor,
    z: Tensor,
    expand_x: Sequence[int],
    expand_y: Sequence[int],
    expand_z: Sequence[int],
    dims: Sequence[int],
    unroll_dim: int = 1,
) -> Tensor:
    """The sum over `dims` of a product of three, each with dims of one in the places of its `expand`."""
    for dim in sorted(expand_x):
        x = op.unsqueeze(x, dim)
    for dim in sorted(expand_y):
        y = op.unsqueeze(y, dim)
    for dim in sorted(expand_z):
        z = op.unsqueeze(z, dim)
    return op.sum(op.mul(op.mul(x, y), z), tuple(dims))


@aten("linalg_cross")
def _cross(x: Tensor, y: Tensor, *, dim: int = -1) -> Tensor:
    return op.linalg_cross(x, y, dim=dim)


# ---- factorisations -----------------------------------------------------------------------------

aten("linalg_inv_ex", layout=matrix_columns)(op.linalg_inv_ex)
aten("linalg_lu_factor_ex", layout=matrix_columns)(op.linalg_lu_factor_ex)
aten("linalg_lu_solve", layout=matrix_columns)(op.linalg_lu_solve)
aten("linalg_solve_triangular", layout=matrix_columns)(op.linalg_solve_triangular)
aten("linalg_qr", layout=matrix_columns)(op.linalg_qr)
aten("linalg_householder_product", layout=matrix_columns)(op.linalg_householder_product)
aten("linalg_cholesky_ex", layout=matrix_columns)(op.linalg_cholesky_ex)
aten("cholesky", layout=matrix_columns)(op.cholesky)
aten("cholesky_inverse", layout=matrix_columns)(op.cholesky_inverse)
aten("triangular_solve", layout=matrix_columns)(op.triangular_solve)
aten("geqrf", layout=matrix_columns)(op.geqrf)
aten("ormqr", layout=matrix_columns)(op.ormqr)
aten("linalg_lstsq", layout=matrix_columns)(op.linalg_lstsq)
aten("linalg_ldl_factor_ex", layout=matrix_columns)(op.linalg_ldl_factor_ex)
aten("linalg_ldl_solve", layout=matrix_columns)(op.linalg_ldl_solve)
aten("linalg_lu")(op.linalg_lu)
aten("lu_unpack")(op.lu_unpack)


@aten("linalg_matrix_exp")
def _matrix_exp(a: Tensor) -> Tensor:
    return op.matrix_exp(a)


@aten("_cholesky_solve_helper", layout=matrix_columns)
def _cholesky_solve_helper(b: Tensor, factor: Tensor, upper: bool) -> Tensor:
    return op.cholesky_solve(b, factor, upper)


def _factored(a: Tensor) -> Tensor:
    """Return what a determinant's factors are of: PyTorch's gradients take those of the transpose so."""
    return a.mT if a.is_contiguous() and not a.dtype.is_complex else a


@aten("_linalg_solve_ex", layout=matrix_columns, out="exact")
def _solve_ex(
    a: Tensor, b: Tensor, *, left: bool = True, check_errors: bool = False
) -> tuple[Tensor, ...]:
    vector = b.ndim == 1 or (a.ndim - 1 == b.ndim and b._shape == a._shape[:-1])
    packed, pivots, info = op.linalg_lu_factor_ex(a, check_errors=check_errors)
    x = op.linalg_lu_solve(packed, pivots, b.unsqueeze(-1) if vector else b, left=left)
    return x.squeeze(-1) if vector else x, packed, pivots, info


@aten("_linalg_det", layout=matrix_columns, out="exact")
def _det(a: Tensor) -> tuple[Tensor, ...]:
    packed, pivots, _ = op.linalg_lu_factor_ex(_factored(a))
    return op._det(a), packed, pivots


@aten("_linalg_slogdet", layout=matrix_columns, out="exact")
def _slogdet(a: Tensor) -> tuple[Tensor, ...]:
    packed, pivots, _ = op.linalg_lu_factor_ex(_factored(a))
    return *op.linalg_slogdet(a), packed, pivots


@aten("_linalg_eigh", layout=matrix_columns, out="exact")
def _eigh(a: Tensor, uplo: str = "L", compute_v: bool = True) -> tuple[Tensor, Tensor]:
    if compute_v:
        values, vectors = op.linalg_eigh(a, uplo)
        return values, vectors
    return op.linalg_eigvalsh(a, uplo), fill((0,), 0, a.dtype, a.device)


@aten("_linalg_svd", layout=matrix_columns, out="exact")
def _svd(
    a: Tensor, full_matrices: bool = False, compute_uv: bool = True, *, driver: str | None = None
) -> tuple[Tensor, ...]:
    if compute_uv:
        return tuple(op.linalg_svd(a, full_matrices))
    empty = fill((0,), 0, a.dtype, a.device)
    return empty, op.linalg_svdvals(a), fill((0,), 0, a.dtype, a.device)


# ---- Sobol's points -----------------------------------------------------------------------------

# PyTorch composes these of nothing: they read memory as the CPU's.


@aten("_sobol_engine_draw", direct=("_sobol_engine_draw",))
def _draw(
    quasi: Tensor, n: int, directions: Tensor, dimension: int, begun: int, dtype: DType | None
) -> tuple[Tensor, Tensor]:
    found = points(quasi, directions, begun, begun + 1, n)
    return cast_to(found, dtype or float32) * 2.0**-30, found[-1] if n else quasi


@aten("_sobol_engine_ff_", direct=("_sobol_engine_ff_",))
def _fast_forward(quasi: Tensor, n: int, directions: Tensor, dimension: int, begun: int) -> Tensor:
    return points(quasi, directions, begun, begun + n, 1)[0]


@aten("_sobol_engine_scramble_", direct=("_sobol_engine_scramble_",))
def _scramble(directions: Tensor, matrices: Tensor, dimension: int) -> Tensor:
    return scrambled(directions, matrices)
