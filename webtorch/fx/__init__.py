"""`webtorch.fx`: what a module does, as a graph that can be looked at and changed, and code made of it. Floor 6."""

from webtorch.fx import immutable_collections
from webtorch.fx._symbolic_trace import PH, ProxyableClassMeta, Tracer, symbolic_trace, wrap
from webtorch.fx.graph import CodeGen, Graph
from webtorch.fx.graph_module import GraphModule
from webtorch.fx.interpreter import Interpreter, Transformer
from webtorch.fx.node import Node, has_side_effect, map_arg
from webtorch.fx.proxy import Proxy
from webtorch.fx.subgraph_rewriter import replace_pattern

__all__ = [
    "PH",
    "CodeGen",
    "Graph",
    "GraphModule",
    "Interpreter",
    "Node",
    "Proxy",
    "ProxyableClassMeta",
    "Tracer",
    "Transformer",
    "has_side_effect",
    "immutable_collections",
    "map_arg",
    "replace_pattern",
    "symbolic_trace",
    "wrap",
]
