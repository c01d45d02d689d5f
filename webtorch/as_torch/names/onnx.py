"""Names with which packages teach PyTorch's old exporter to ONNX their operators; nothing is taught."""

from __future__ import annotations

from typing import Any


def parse_args(*descriptors: str) -> Any:
    """Return a decorator that leaves a function as it is."""
    return lambda function: function


def register_custom_op_symbolic(
    symbolic_name: str, symbolic_fn: object, opset_version: int
) -> None:
    """Do nothing: the old exporter is not here."""


def unregister_custom_op_symbolic(symbolic_name: str, opset_version: int) -> None:
    """Do nothing: the old exporter is not here."""


def is_in_onnx_export() -> bool:
    """Return False."""
    return False
