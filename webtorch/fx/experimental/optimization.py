"""Modules for inference: batch norms become part of the layers before them, and dropouts go."""

from __future__ import annotations

import copy
from collections.abc import Iterable
from typing import Any

from webtorch import nn
from webtorch.fx._symbolic_trace import symbolic_trace
from webtorch.fx.graph_module import GraphModule
from webtorch.fx.interpreter import Transformer
from webtorch.fx.node import Argument, Node, Target
from webtorch.nn import Module
from webtorch.nn.utils.fusion import fuse_conv_bn_eval, fuse_linear_bn_eval

__all__ = ["fuse", "matches_module_pattern", "remove_dropout", "replace_node_module"]


def matches_module_pattern(pattern: Iterable[type], node: Node, modules: dict[str, Module]) -> bool:
    """Whether a node and the one before call modules of two classes."""
    if not node.args:
        return False
    return all(
        isinstance(n, Node)
        and n.op == "call_module"
        and type(modules.get(str(n.target))) is expected
        for expected, n in zip(pattern, (node.args[0], node))
    )


def replace_node_module(node: Node, modules: dict[str, Module], new_module: Module) -> None:
    """Put another module in the place of the one that a node calls."""
    parent, _, name = str(node.target).rpartition(".")
    modules[str(node.target)] = new_module
    setattr(modules[parent], name, new_module)


def fuse(model: Module, inplace: bool = False, no_trace: bool = False) -> Module:
    """Return a model whose convolutions and linear layers do what the batch norms after them did."""
    layers = {
        nn.Conv1d: nn.BatchNorm1d,
        nn.Conv2d: nn.BatchNorm2d,
        nn.Conv3d: nn.BatchNorm3d,
        nn.Linear: nn.BatchNorm1d,
    }
    if not inplace:
        model = copy.deepcopy(model)
    traced = no_trace and isinstance(model, GraphModule)
    module: Any = model if traced else symbolic_trace(model)
    modules = dict(module.named_modules())
    graph = copy.deepcopy(module.graph)
    for pattern in layers.items():
        for node in graph.nodes:
            if not matches_module_pattern(pattern, node, modules) or len(node.args[0].users) > 1:
                continue
            layer, norm = modules[str(node.args[0].target)], modules[str(node.target)]
            if norm.track_running_stats:
                join = fuse_linear_bn_eval if pattern[0] is nn.Linear else fuse_conv_bn_eval
                replace_node_module(node.args[0], modules, join(layer, norm))
                node.replace_all_uses_with(node.args[0])
                graph.erase_node(node)
    return GraphModule(module, graph)


def remove_dropout(model: Module) -> Module:
    """Return a model without its dropouts."""

    class WithoutDropout(Transformer):
        """Gives what a dropout is given."""

        def call_module(
            self, target: Target, args: tuple[Argument, ...], kwargs: dict[str, object]
        ) -> Any:
            """Call a module, if it is no dropout."""
            if isinstance(self.submodules[str(target)], nn.Dropout):
                return args[0]
            return super().call_module(target, args, kwargs)

    return WithoutDropout(symbolic_trace(model)).transform()
