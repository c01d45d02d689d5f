"""Graphs whose calls say their arguments by name, or use one spelling of an operator. Floor 6."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any, ClassVar

from webtorch.functions import public as torch
from webtorch.fx.graph_module import GraphModule
from webtorch.fx.interpreter import Transformer
from webtorch.fx.node import Node
from webtorch.fx.operator_schemas import normalize_function, normalize_module

__all__ = ["NormalizeArgs", "NormalizeOperators"]


class NormalizeArgs(Transformer):
    """Writes a graph anew whose calls of functions and modules say all arguments, by name unless told otherwise."""

    def __init__(self, module: GraphModule, normalize_to_only_use_kwargs: bool = True) -> None:
        """Take the module, and whether arguments by position become such by name."""
        super().__init__(module)
        self.normalize_to_only_use_kwargs = normalize_to_only_use_kwargs
        # The new values -> the nodes that they stand for.
        self.node_map: dict[object, Node] = {}

    def run_node(self, n: Node) -> Any:
        """Write a node anew, with what is known of it."""
        out = super().run_node(n)
        if n.op != "output":
            self.node_map[out] = n
            out.node.meta, out.node.type = n.meta, n.type
        return out

    def call_function(self, target: Any, args: tuple[object, ...], kwargs: dict[str, Any]) -> Any:
        """Write a call of a function."""
        by_name = self.normalize_to_only_use_kwargs
        found = normalize_function(target, args, kwargs, normalize_to_only_use_kwargs=by_name)
        if found is None:
            return super().call_function(target, args, kwargs)
        return self.tracer.create_proxy("call_function", target, found.args, found.kwargs)

    def call_module(self, target: Any, args: tuple[object, ...], kwargs: dict[str, Any]) -> Any:
        """Write a call of a module."""
        found = normalize_module(
            self.module, target, args, kwargs, self.normalize_to_only_use_kwargs
        )
        return super().call_module(target, *(found or (args, kwargs)))


class NormalizeOperators(Transformer):
    """Writes a graph anew in which functions of two operands are Python's operators: `torch.add(x, y)` is `x + y`."""

    binary_magic_method_remap: ClassVar[
        dict[Callable[..., object], Callable[[Any, Any], object]]
    ] = {
        torch.add: operator.add,
        torch.mul: operator.mul,
        torch.sub: operator.sub,
        torch.div: operator.truediv,
        torch.floor_divide: operator.floordiv,
        torch.remainder: operator.mod,
        torch.eq: operator.eq,
        torch.ne: operator.ne,
        torch.lt: operator.lt,
        torch.le: operator.le,
        torch.gt: operator.gt,
        torch.ge: operator.ge,
    }

    def call_function(self, target: Any, args: tuple[object, ...], kwargs: dict[str, Any]) -> Any:
        """Write a call of a function."""
        found = self.binary_magic_method_remap.get(target)
        if found is None or len(args) != 2:
            return super().call_function(target, args, kwargs)
        return super().call_function(found, args, {})
