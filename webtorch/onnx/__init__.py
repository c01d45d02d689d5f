"""`webtorch.onnx`: modules as ONNX files, and ONNX files as modules. Floor 6.

Both need the onnx package (`pip install onnx`), which is loaded when one is used.

    import webtorch as torch

    x = torch.ones(1, 2)
    torch.onnx.export(torch.nn.Linear(2, 3), (x,), "model.onnx")
    print(torch.onnx.load("model.onnx")(x))
"""

from __future__ import annotations

import enum
import importlib
from typing import Any

__all__ = [
    "ExportError",
    "ImportedModule",
    "ONNXProgram",
    "OnnxExporterError",
    "TrainingMode",
    "UnsupportedOperator",
    "export",
    "is_in_onnx_export",
    "load",
]


class TrainingMode(enum.Enum):
    """In which mode a module is exported."""

    EVAL = 0
    PRESERVE = 1
    TRAINING = 2


# Where the names live.
_HOMES = {
    "export": "exporter", "ONNXProgram": "exporter", "load": "importer", "ImportedModule": "importer",
    "UnsupportedOperator": "importer", "ExportError": "graph", "OnnxExporterError": "graph",
}  # fmt: skip


def is_in_onnx_export() -> bool:
    """Return whether an export is recording the program that asks."""
    from webtorch.onnx.recording import recorded

    return recorded()


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'webtorch.onnx' has no attribute '{name}'")
    try:
        home = importlib.import_module(f"webtorch.onnx.{_HOMES[name]}")
    except ImportError as error:
        if error.name not in ("onnx", "google", "google.protobuf"):
            raise
        raise ImportError(
            f"webtorch.onnx.{name} needs the onnx package: pip install onnx",
            name=error.name,
        ) from error
    found = getattr(home, name)
    globals()[name] = found
    return found
