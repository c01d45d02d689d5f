"""Convolutions on WebGPU. Floor 2; imports floor 0, the renderer and the generic forms."""

from __future__ import annotations

from webtorch.ir.kernel import Convolution
from webtorch.lower.templates.generic import conv_kernel
from webtorch.lower.wgsl import Engine, WgslPass, render_kernel
from webtorch.runtime.backend import Limits

__all__ = ["conv_kernel", "render"]


def render(routine: Convolution, limits: Limits, engine: Engine) -> list[WgslPass]:
    """Return the dispatches of a convolution or of one of its gradients."""
    return render_kernel(conv_kernel(routine), limits, engine)
