"""Factorisations of matrices as WGSL: the functions of `Host` that WebGPU has kernels for. Floor 2; imports floor 0
and the shader's frame.

Methods are LAPACK's, by blocks of columns: a workgroup factors a block for each matrix, and products of one dispatch
bring the rest of all matrices up to date. Small matrices are one block, in workgroup memory, so a batch of them is one
dispatch.
"""

from __future__ import annotations

from collections.abc import Callable

from webtorch.errors import DeviceError
from webtorch.ir.kernel import Host
from webtorch.ir.limits import Limits
from webtorch.lower.templates.matrices.cholesky import cholesky
from webtorch.lower.templates.matrices.jacobi import orthogonal_columns
from webtorch.lower.templates.matrices.ldl import ldl_factor, ldl_rows
from webtorch.lower.templates.matrices.lu import lu_factor
from webtorch.lower.templates.matrices.qr import geqrf
from webtorch.lower.templates.matrices.squaring import squared
from webtorch.lower.templates.matrices.triangle import permutation, solve_triangular
from webtorch.lower.wgsl_shader import WgslPass

_KERNELS: tuple[Callable[[Host, Limits], list[WgslPass]], ...] = (
    cholesky, geqrf, ldl_factor, ldl_rows, lu_factor, orthogonal_columns, permutation, squared, solve_triangular,
)  # fmt: skip
FUNCTIONS = {kernel.__name__: kernel for kernel in _KERNELS}


def render(routine: Host, limits: Limits) -> list[WgslPass]:
    """Return the dispatches of a function of whole arrays. Raises DeviceError where there is no kernel."""
    found = FUNCTIONS.get(routine.function.removeprefix("complex "))
    if found is None:
        raise DeviceError(
            f"{routine.function}: no WebGPU kernel computes this; move the tensors to the CPU "
            "with x.cpu()"
        )
    return found(routine, limits)
