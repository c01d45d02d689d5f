"""Shapes and types of what each node gives, found by running the graph."""

from __future__ import annotations

from typing import Any, NamedTuple

from webtorch.fx.interpreter import Interpreter
from webtorch.fx.node import Node, map_aggregate
from webtorch.ir.dtype import DType
from webtorch.nn import Module
from webtorch.tensors.formats import (
    channels_last,
    channels_last_3d,
    contiguous_format,
    memory_format,
)
from webtorch.tensors.size import Size
from webtorch.tensors.tensor import Tensor

__all__ = ["ShapeProp", "TensorMetadata"]


class TensorMetadata(NamedTuple):
    """What is known of a tensor without its values."""

    shape: Size
    dtype: DType
    requires_grad: bool
    stride: tuple[int, ...]
    memory_format: memory_format | None
    # Nothing is quantised here.
    is_quantized: bool
    qparams: dict[str, Any]


def _extract_tensor_metadata(result: Tensor, include_contiguity: bool = True) -> TensorMetadata:
    """Return what is known of a tensor."""
    formats = (contiguous_format, channels_last, channels_last_3d) if include_contiguity else ()
    lies = next((f for f in formats if result.is_contiguous(memory_format=f)), None)
    return TensorMetadata(
        result.shape, result.dtype, result.requires_grad, result.stride(), lies, False, {}
    )


class ShapeProp(Interpreter):
    """Runs a graph and notes at each node: `meta["tensor_meta"]` of its tensors, and `meta["type"]`."""

    def __init__(self, gm: Module, fake_mode: None = None) -> None:
        """Take a module with a graph."""
        super().__init__(gm)

    def run_node(self, n: Node) -> Any:
        """Return the value of a node, and note what it is like."""
        try:
            result = super().run_node(n)
        except Exception as error:
            raise RuntimeError(
                f"ShapeProp error for: node={n.format_node()} with meta={n.meta}"
            ) from error
        tensors = 0

        def look(value: object) -> object:
            """Return the metadata of a tensor, and anything else as it is."""
            nonlocal tensors
            if not isinstance(value, Tensor):
                return value
            tensors += 1
            return _extract_tensor_metadata(value)

        meta = map_aggregate(result, look)
        if tensors:
            n.meta["tensor_meta"] = meta
        n.meta["type"] = type(result)
        return result

    def propagate(self, *args: object) -> Any:
        """Return what the module gives for `args`, and note what each node gives."""
        return self.run(*args)
