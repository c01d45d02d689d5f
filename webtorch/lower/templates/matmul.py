"""Matrix products on WebGPU. Floor 2; imports floor 0, the renderer and the generic forms."""

from __future__ import annotations

from webtorch.ir.kernel import Matmul
from webtorch.lower.templates.generic import matmul_kernel
from webtorch.lower.wgsl import Engine, WgslPass, render_kernel
from webtorch.runtime.backend import Limits

__all__ = ["matmul_kernel", "render"]


def render(routine: Matmul, limits: Limits, engine: Engine) -> list[WgslPass]:
    """Return the dispatches of a matrix product."""
    return render_kernel(matmul_kernel(routine), limits, engine)
