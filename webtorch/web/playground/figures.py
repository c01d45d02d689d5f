"""Matplotlib's backend in a page that has it: `show` puts the open figures among the output. Floor 6."""

from __future__ import annotations

import importlib
import io
from typing import Any

from webtorch.show import Drawing

_agg: Any = importlib.import_module("matplotlib.backends.backend_agg")
_pyplot: Any = importlib.import_module("matplotlib._pylab_helpers")
FigureCanvas, FigureManager = _agg.FigureCanvasAgg, _agg.FigureManagerBase


def show(*_args: object, **_more: object) -> None:
    """Draw every open figure, and close it."""
    for manager in _pyplot.Gcf.get_all_fig_managers():
        out = io.BytesIO()
        manager.canvas.print_png(out)
        Drawing("image/png", out.getvalue(), "", "")
    _pyplot.Gcf.destroy_all()
