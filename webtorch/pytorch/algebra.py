"""Complex numbers, Fourier transforms and linear algebra of aten. Floor 6; imports the engine, not PyTorch.

Factorisations have no kernel on WebGPU: `ON_CPU` lists the operators that PyTorch's LAPACK computes instead. That is
a decision for each of them, not a fallback: `torch.webgpu.host_kernel_counts()` tells how often each one ran.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from webtorch.functions.fourier import complex_transform, half_transform, real_transform
from webtorch.ir.dtype import int32
from webtorch.ops.primitive import cast_to, conjugate
from webtorch.pytorch.functions import aten, op

ON_CPU = (
    "_linalg_svd.U", "_linalg_eigh.eigenvalues", "linalg_eig", "linalg_eig.out", "_linalg_eigvals",
    "linalg_eigvals.out", "linalg_qr.out", "geqrf", "geqrf.a", "ormqr", "ormqr.out",
    "linalg_householder_product", "linalg_householder_product.out", "linalg_cholesky_ex.L", "cholesky",
    "cholesky.out", "_cholesky_solve_helper", "cholesky_inverse", "cholesky_inverse.out", "linalg_lu.out",
    "linalg_lu_factor_ex.out", "linalg_lu_solve.out", "_linalg_solve_ex.result", "linalg_inv_ex.inverse",
    "_linalg_det.result", "_linalg_slogdet.sign", "linalg_ldl_factor_ex.out", "linalg_ldl_solve.out",
    "linalg_lstsq.out", "lu_unpack.out", "triangular_solve.X", "linalg_solve_triangular", "linalg_solve_triangular.out",
    "linalg_matrix_exp",
)  # fmt: skip


# ---- complex numbers ----------------------------------------------------------------------------


@aten("complex")
def _complex(re: Any, im: Any) -> Any:
    return op.complex(re, im)


@aten("polar")
def _polar(abs: Any, angle: Any) -> Any:
    return op.polar(abs, angle)


@aten("conj_physical")
def _conj_physical(x: Any) -> Any:
    return op.conj_physical(x)


# ---- Fourier transforms -------------------------------------------------------------------------


def _scaled(x: Any, normalization: int, sizes: Sequence[int]) -> Any:
    """Return x divided by nothing, by the root of the number of values, or by that number."""
    n = math.prod(sizes)
    if normalization == 0 or n in (0, 1):
        return x
    return x * (1 / math.sqrt(n) if normalization == 1 else 1 / n)


def _along(x: Any, dims: Sequence[int], inverse: bool) -> Any:
    return complex_transform(x, tuple(dims), inverse) if len(dims) else x


@aten("_fft_c2c")
def _fft_c2c(x: Any, dim: Sequence[int], normalization: int, forward: bool) -> Any:
    dims = [d % x.ndim for d in dim]
    return _scaled(_along(x, dims, not forward), normalization, [x._shape[d] for d in dims])


@aten("_fft_r2c")
def _fft_r2c(x: Any, dim: Sequence[int], normalization: int, onesided: bool) -> Any:
    dims = [d % x.ndim for d in dim]
    if onesided:
        out = _along(real_transform(x, dims[-1]), dims[:-1], False)
    else:
        out = _along(cast_to(x, x.dtype.to_complex()), dims, False)
    return _scaled(out, normalization, [x._shape[d] for d in dims])


@aten("_fft_c2r")
def _fft_c2r(x: Any, dim: Sequence[int], normalization: int, last_dim_size: int) -> Any:
    dims = [d % x.ndim for d in dim]
    out = half_transform(_along(x, dims[:-1], True), dims[-1], last_dim_size)
    return _scaled(out, normalization, [out._shape[d] for d in dims])


# ---- products -----------------------------------------------------------------------------------


@aten("linear_backward")
def _linear_backward(x: Any, g: Any, weight: Any, mask: Sequence[bool]) -> Any:
    rows = g.reshape(-1, g._shape[-1])
    gx = op.matmul(g, conjugate(weight)) if mask[0] else None
    gw = op.matmul(rows.t(), conjugate(x.reshape(-1, x._shape[-1]))) if mask[1] else None
    return gx, gw, op.sum(rows, 0) if mask[2] else None


@aten("_int_mm")
def _int_mm(x: Any, y: Any) -> Any:
    return op.mm(cast_to(x, int32), cast_to(y, int32))
