"""A graph module in parts, each a module of its own. Floor 6."""

from __future__ import annotations

import functools
from collections.abc import Callable
from operator import attrgetter, getitem

from webtorch.fx.graph import Graph
from webtorch.fx.graph_module import GraphModule
from webtorch.fx.node import Node, map_arg
from webtorch.nn import Module

__all__ = ["Partition", "split_module"]


class Partition:
    """One part: its nodes by name, what it is given and gives, and the parts that it waits for."""

    def __init__(self, name: str) -> None:
        """Take the name."""
        self.name, self.submod_name = name, f"submod_{name}"
        self.node_names: list[str] = []
        # In order: dicts without values.
        self.inputs: dict[str, None] = {}
        self.outputs: dict[str, None] = {}
        self.dependencies: dict[str, None] = {}
        self.dependents: dict[str, None] = {}
        self.graph = Graph()
        self.environment: dict[Node, Node] = {}
        self.targets: dict[str, object] = {}

    def __repr__(self) -> str:
        return (
            f"name: {self.name},\n nodes: {self.node_names},\n inputs: {list(self.inputs)},\n outputs: "
            f"{list(self.outputs)},\n partitions depended on: {list(self.dependencies)},\n partition dependents: "
            f"{list(self.dependents)}"
        )


def split_module(
    m: GraphModule,
    root_m: Module,
    split_callback: Callable[[Node], int],
    qualname_map: dict[str, str] | None = None,
    keep_original_order: bool | None = False,
    keep_original_node_name: bool | None = False,
    keep_original_input_name: bool = True,
    *,
    partition_affix: str | None = None,
    tuple_return: bool = False,
) -> GraphModule:
    """Return a module that calls one submodule for each number that `split_callback` gives nodes.

    Values that other parts need are results, and arguments there; parameters are arguments. `qualname_map` is filled
    with the names of what parts hold, and the names that they had. Raises RuntimeError where parts wait for each other.
    """
    parts, home = _partitions(m.graph, split_callback, partition_affix)
    _find_uses(m.graph, home)
    order = list(parts.values()) if keep_original_order else _sorted(parts)
    by_name = {n.name: n for n in m.graph.nodes}
    for part in parts.values():
        for number, name in enumerate(part.inputs):
            title = name if keep_original_input_name else f"arg_{number}"
            given = part.graph.placeholder(title, type_expr=by_name[name].type)
            given.meta = by_name[name].meta.copy()
            part.environment[by_name[name]] = given
    for node, part in home.items():
        target = node.target
        if node.op == "call_module":
            target = str(target).replace(".", "_")
            part.targets[target] = m.get_submodule(str(node.target))
            if qualname_map is not None:
                qualname_map[f"{part.submod_name}.{target}"] = str(node.target)
        copied = part.graph.create_node(
            node.op,
            target,
            map_arg(node.args, part.environment.__getitem__),
            map_arg(node.kwargs, part.environment.__getitem__),
            node.name if keep_original_node_name else None,
            node.type,
        )
        copied.meta = node.meta.copy()
        part.environment[node] = copied
    found = _joined(m, order, by_name, tuple_return)
    found.meta["partition_names"] = {p.submod_name for p in parts.values()}
    return found


def _partitions(
    graph: Graph, split_callback: Callable[[Node], int], affix: str | None
) -> tuple[dict[str, Partition], dict[Node, Partition]]:
    """Return the parts by name, and the part of each node."""
    parts: dict[str, Partition] = {}
    home: dict[Node, Partition] = {}
    for node in graph.nodes:
        if node.op in ("placeholder", "get_attr", "output"):
            continue
        name = "_".join(filter(None, (affix, str(split_callback(node)))))
        part = home[node] = parts.setdefault(name, Partition(name))
        part.node_names.append(node.name)
    return parts, home


def _find_uses(graph: Graph, home: dict[Node, Partition]) -> None:
    """Note in the parts what each takes of others and of the whole, and what others or the whole take of it."""

    def use(made: Node, user: Partition | None) -> Node:
        """Note that a part, or the whole, uses a value."""
        source = home.get(made)
        if source is not user:
            if source is not None:
                source.outputs.setdefault(made.name)
                if user is not None:
                    source.dependents.setdefault(user.name)
                    user.dependencies.setdefault(source.name)
            if user is not None:
                user.inputs.setdefault(made.name)
        return made

    for node in graph.nodes:
        if node.op == "output" or node in home:
            noted = functools.partial(use, user=home.get(node))
            map_arg((node.args, node.kwargs), noted)


def _joined(
    m: GraphModule, order: list[Partition], by_name: dict[str, Node], tuple_return: bool
) -> GraphModule:
    """Return the module that calls the parts in order."""
    graph, held, made = Graph(), dict[str, object](), dict[Node, Node]()
    for node in m.graph.nodes:
        if node.op == "placeholder":
            default = node.args[0] if node.args else ...
            options = {} if default is ... else {"default_value": default}
            made[node] = graph.placeholder(str(node.target), type_expr=node.type, **options)
        elif node.op == "get_attr":
            made[node] = graph.create_node("get_attr", node.target, type_expr=node.type)
            held[str(node.target)] = attrgetter(str(node.target))(m)
        else:
            continue
        made[node].meta = node.meta.copy()
    for part in order:
        results = [by_name[n] for n in part.outputs]
        inner = tuple([part.environment[n] for n in results])
        one = len(results) == 1 and not tuple_return
        part.graph.output(inner[0] if one else inner)
        held[part.submod_name] = GraphModule(part.targets, part.graph)
        called = graph.create_node(
            "call_module", part.submod_name, tuple([made[by_name[n]] for n in part.inputs])
        )
        for i, node in enumerate(results):
            made[node] = called if one else graph.call_function(getitem, (called, i))
    for node in m.graph.find_nodes(op="output"):
        graph.output(map_arg(node.args[0], made.__getitem__))
    return GraphModule(held, graph)


def _sorted(parts: dict[str, Partition]) -> list[Partition]:
    """Return the parts so that each comes after those that it waits for."""
    ready = [p for p in parts.values() if not p.dependencies]
    found: list[Partition] = []
    while ready:
        part = ready.pop()
        found.append(part)
        for name in part.dependents:
            parts[name].dependencies.pop(part.name)
            if not parts[name].dependencies:
                ready.append(parts[name])
    if len(found) != len(parts):
        raise RuntimeError("cycle exists between partitions!")
    return found
