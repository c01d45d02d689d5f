"""Graphs as pictures, by the package pydot. Floor 6."""

from __future__ import annotations

import importlib
from typing import Any

from webtorch.fx.graph_module import GraphModule
from webtorch.fx.node import Node

__all__ = ["FxGraphDrawer"]

_COLOURS = {
    "placeholder": "AliceBlue", "call_module": "LemonChiffon1", "get_param": "Yellow2", "get_attr": "LightGrey",
    "output": "PowderBlue",
}  # fmt: skip


class FxGraphDrawer:
    """Draws the graph of a module, and those of graph modules within it, with what is known of their values."""

    def __init__(
        self,
        graph_module: GraphModule,
        name: str,
        ignore_getattr: bool = False,
        ignore_parameters_and_buffers: bool = False,
        skip_node_names_in_args: bool = True,
        parse_stack_trace: bool = False,
        dot_graph_shape: str | None = None,
        normalize_args: bool = False,
    ) -> None:
        """Draw. `ignore_getattr` leaves out nodes that look names up; `dot_graph_shape` is the shape of boxes."""
        try:
            self._pydot: Any = importlib.import_module("pydot")
        except ImportError as error:
            raise RuntimeError(
                "FXGraphDrawer requires the pydot package to be installed. Please install pydot through your favorite "
                "Python package manager."
            ) from error
        self._name, self._shape = name, dot_graph_shape or "record"
        self._skip_attributes, self._skip_names = ignore_getattr, skip_node_names_in_args
        self._normalize = normalize_args
        self._graphs: dict[str, Any] = {}
        self._draw(graph_module, name)

    def get_dot_graph(self, submod_name: str | None = None) -> Any:
        """Return the picture of the module, or of a graph module within it."""
        return self.get_submod_dot_graph(submod_name) if submod_name else self.get_main_dot_graph()

    def get_main_dot_graph(self) -> Any:
        """Return the picture of the module."""
        return self._graphs[self._name]

    def get_submod_dot_graph(self, submod_name: str) -> Any:
        """Return the picture of a graph module within it."""
        return self._graphs[f"{self._name}_{submod_name}"]

    def get_all_dot_graphs(self) -> dict[str, Any]:
        """Return all pictures by name."""
        return self._graphs

    def _draw(self, module: GraphModule, name: str) -> None:
        drawn = self._pydot.Dot(name, rankdir="TB")
        self._graphs[name] = drawn
        shown = [
            n for n in module.graph.nodes if not (self._skip_attributes and n.op == "get_attr")
        ]
        for node in shown:
            style = {
                "shape": self._shape, "fillcolor": _COLOURS.get(node.op, "LightSteelBlue1"),
                "style": '"filled,rounded"', "fontcolor": "#000000",
            }  # fmt: skip
            drawn.add_node(self._pydot.Node(node.name, label=self._label(module, node), **style))
            part = module.get_submodule(str(node.target)) if node.op == "call_module" else None
            if isinstance(part, GraphModule):
                self._draw(part, f"{name}_{node.target}")
        for node in shown:
            for user in node.users:
                drawn.add_edge(self._pydot.Edge(node.name, user.name))

    def _label(self, module: GraphModule, node: Node) -> str:
        """Return what stands in a node's box."""
        args, kwargs = node.args, node.kwargs
        if self._normalize:
            args, kwargs = node.normalized_arguments(module) or (args, kwargs)
        lines = [
            f"name=%{node.name}",
            f"op_code={node.op}",
            f"target={node._pretty_print_target(node.target)}",
        ]
        given = [a for a in args if not (self._skip_names and isinstance(a, Node))]
        if given:
            lines.append(f"args={tuple(given)}")
        if kwargs:
            lines.append(f"kwargs={dict(kwargs)}")
        lines.append(f"num_users={len(node.users)}")
        value = node.meta.get("val", node.meta.get("tensor_meta"))
        if value is not None and hasattr(value, "shape"):
            lines += [f"dtype={value.dtype}", f"shape={tuple(value.shape)}"]
        text = "\\n".join(lines)
        for mark in "{}<>|":
            text = text.replace(mark, f"\\{mark}")
        return f'"{{{text}\\n}}"'
