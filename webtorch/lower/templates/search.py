"""What a tuner needs of products: which class a routine belongs to, which kernels could compute it,
and those kernels. Floor 2; imports floor 0 and the templates.
"""

from __future__ import annotations

from webtorch.ir.kernel import Convolution, Kernel, Matmul, Routine
from webtorch.ir.limits import Limits
from webtorch.lower.templates import conv, matmul, matrix_units
from webtorch.lower.templates.gemm import choose, product_passes, ranked, shape_class
from webtorch.lower.templates.generic import conv_kernel, matmul_kernel
from webtorch.lower.templates.product import Product
from webtorch.lower.templates.tuning import Tile
from webtorch.lower.wgsl_shader import Engine, WgslPass

# A tile (None for the kernel without workgroup memory) and the number of parts of k.
Choice = tuple[Tile | None, int]

# The most choices that are measured for a product.
_MOST = 16


def product_of(routine: Routine, limits: Limits, engine: Engine) -> tuple[Product, int] | None:
    """Return a routine as a product, with its columns in a row in memory, if a tile is chosen for
    it; None for everything else."""
    match routine:
        case Matmul() if matmul.is_product(routine, limits) and routine.unpacked is None:
            p = matmul.product(routine)
            return None if matrix_units.choose(p, limits, engine) else (p, 0)
        case Convolution() if conv.is_product(routine, limits):
            return None if conv.is_special(routine, limits, engine) else conv.product(routine)
    return None


def class_of(p: Product, limits: Limits) -> str:
    """Return the name of the class of shapes that a choice serves."""
    return shape_class(p, limits)


def candidates(p: Product, limits: Limits) -> list[Choice]:
    """Return the choices worth measuring, the one that is made without tuning first."""
    found: list[Choice] = [choose(p, limits, tuned=False)]
    if not limits.is_gpu:
        found += [(None, s) for s in (1, 2, 4, 8) if p.k >= 4 * s]
    else:
        # What the model thinks far slower is not.
        order = ranked(p, limits)
        found += [(tile, split) for seconds, tile, split in order if seconds < 2 * order[0][0]]
        del found[_MOST:]
    return list(dict.fromkeys(found))


def passes(p: Product, image_columns: int, limits: Limits, choice: Choice) -> list[WgslPass]:
    """Return the dispatches of a product with a given choice."""
    return product_passes(p, limits, *choice, image_columns)


def reference(routine: Matmul | Convolution) -> Kernel:
    """Return the generic form of a routine: every output sums its own terms."""
    return matmul_kernel(routine) if isinstance(routine, Matmul) else conv_kernel(routine)
