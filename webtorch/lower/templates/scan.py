"""Scans on WebGPU. Floor 2; imports floor 0, the renderer and the generic forms."""

from __future__ import annotations

from webtorch.ir.kernel import Scan
from webtorch.lower.templates.generic import scan_kernel
from webtorch.lower.wgsl import Engine, WgslPass, render_kernel
from webtorch.runtime.backend import Limits

__all__ = ["scan_kernel", "render"]


def render(routine: Scan, limits: Limits, engine: Engine) -> list[WgslPass]:
    """Return the dispatches of a scan."""
    return render_kernel(scan_kernel(routine), limits, engine)
