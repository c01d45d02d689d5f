"""Floor 6: the browser face. A captured program becomes a folder that trains and infers in a tab, on WebGPU."""

from webtorch.web.export import export_json, export_program
from webtorch.web.program_json import BROWSER_LIMITS

__all__ = ["BROWSER_LIMITS", "export_json", "export_program"]
