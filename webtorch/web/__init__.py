"""Floor 6: the browser face. Captured functions become a page that trains and infers in a tab, on WebGPU."""

from webtorch.web.export import export_json
from webtorch.web.playground import build_playground
from webtorch.web.program_json import BROWSER_LIMITS

__all__ = ["BROWSER_LIMITS", "build_playground", "export_json"]
