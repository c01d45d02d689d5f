"""What LAPACK has as one function, made of the factorisations that a device has kernels for.

`linalg.call` asks here for what WebGPU's templates do not have (lower/templates/matrices).
"""

from __future__ import annotations

from webtorch.functions.linalg import call, composed, permutation_of
from webtorch.ir.dtype import int64
from webtorch.ops.primitive import cast_to, iota
from webtorch.tensors.tensor import Tensor


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
