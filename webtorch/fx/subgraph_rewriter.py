"""Replacing what a graph does, wherever it does it."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from webtorch.fx._symbolic_trace import symbolic_trace
from webtorch.fx.graph import Graph
from webtorch.fx.graph_module import GraphModule
from webtorch.fx.node import Node
from webtorch.fx.passes.utils.matcher_utils import InternalMatch, SubgraphMatcher
from webtorch.nn import Module

__all__ = ["Match", "ReplacedPatterns", "replace_pattern", "replace_pattern_with_filters"]

Pattern = Callable[..., Any] | Graph | GraphModule
Filter = Callable[[InternalMatch, Graph, Graph], bool]
Maker = Callable[[InternalMatch, Graph, Graph], Graph]


class Match(NamedTuple):
    """Where a pattern was found: the node that gives its result, and which node is which of the pattern's."""

    anchor: Node
    nodes_map: dict[Node, Node]


@dataclass
class ReplacedPatterns:
    """The same, with the nodes that have come in its place."""

    anchor: Node
    nodes_map: dict[Node, Node]
    replacements: list[Node]


def replace_pattern(
    gm: GraphModule,
    pattern: Callable[..., object] | GraphModule,
    replacement: Callable[..., object] | GraphModule,
) -> list[Match]:
    """Replace what a pattern does by what `replacement` does, wherever the module does it; of places that overlap
    the first. Both are functions of the same parameters. Returns the places.
    """
    found = replace_pattern_with_filters(gm, pattern, replacement)
    return [Match(m.anchor, m.nodes_map) for m in found]


def replace_pattern_with_filters(
    gm: GraphModule,
    pattern: Pattern,
    replacement: Pattern | None = None,
    match_filters: list[Filter] | None = None,
    ignore_literals: bool = False,
    replacement_callback: Maker | None = None,
    node_name_match: str = "",
) -> list[ReplacedPatterns]:
    """The same, only where all filters agree. A callback may make another replacement for each place."""
    graph, sought = gm.graph, _graph_of(pattern)
    matcher = SubgraphMatcher(sought, ignore_literals=ignore_literals)
    found = matcher.match(graph, node_name_match=node_name_match)
    found = [m for m in found if all(f(m, graph, sought) for f in match_filters or ())]
    if replacement_callback is None:
        if replacement is None:
            raise AssertionError(
                "Must provide either a replacement GraphModule or a replacement callback"
            )
        common = _graph_of(replacement)
    # What earlier replacements have put in a node's place.
    changed: dict[Node, Node] = {}
    out = []
    for match in found:
        if replacement_callback is not None:
            common = replacement_callback(match, graph, sought)
        out.append(_replace(graph, match, sought, common, changed))
    gm.recompile()
    if isinstance(replacement, Module):
        _take_attributes(gm, replacement)
    return out


def _graph_of(pattern: Pattern) -> Graph:
    if isinstance(pattern, GraphModule):
        return pattern.graph
    return pattern if isinstance(pattern, Graph) else symbolic_trace(pattern).graph


def _replace(
    graph: Graph, match: InternalMatch, sought: Graph, new: Graph, changed: dict[Node, Node]
) -> ReplacedPatterns:
    """Replace what was found at one place."""
    places = [n for n in new.nodes if n.op == "placeholder"]
    if len(match.placeholder_nodes) != len(places):
        raise AssertionError(
            f"Placeholder count mismatch: {len(match.placeholder_nodes)} vs {len(places)}"
        )
    values: dict[Node, Node] = {}
    for i, (place, given) in enumerate(zip(places, match.placeholder_nodes)):
        if isinstance(given, Node) and given in changed:
            for key, node in match.nodes_map.items():
                if node is given:
                    match.nodes_map[key] = changed[given]
                    break
            given = match.placeholder_nodes[i] = changed[given]
        values[place] = given
    with graph.inserting_before(_first_user(graph, match.returning_nodes)):
        results = graph.graph_copy(new, values)
    if isinstance(results, Node):
        results = (results,)
    added = [v for v in values.values() if v not in match.placeholder_nodes]
    if results is None or len(match.returning_nodes) != len(results):
        count = 0 if results is None else len(results)
        raise AssertionError(
            f"Returning nodes count mismatch: {len(match.returning_nodes)} vs {count}"
        )
    for old, result in zip(match.returning_nodes, results):
        old.replace_all_uses_with(result)
        changed[old] = result
    for node in reversed(sought.nodes):
        if node.op not in ("placeholder", "output"):
            graph.erase_node(match.nodes_map[node])
    return ReplacedPatterns(match.anchors[0], match.nodes_map, added)


def _first_user(graph: Graph, results: list[Node]) -> Node:
    """Return the first node that uses one of these; if none does, the one after the last of them."""
    users = {user for n in results for user in n.users}
    after = None
    for node in graph.nodes if users else reversed(graph.nodes):
        if node in users:
            return node
        if not users and node in results:
            break
        after = node
    if after is None:
        raise AssertionError("The insert point can't be None")
    return after


def _take_attributes(gm: GraphModule, replacement: Module) -> None:
    """Give a module what its new nodes look up and call, of the module that they come from."""
    gm.delete_all_unused_submodules()
    if isinstance(replacement, GraphModule):
        replacement.graph.lint()
    for node in gm.graph.nodes:
        if node.op not in ("call_module", "get_attr") or _found(gm, node) is not None:
            continue
        value = copy.deepcopy(_found(replacement, node))
        if value is None:
            raise RuntimeError(
                'Attempted to create a "',
                node.op,
                f'" node during subgraph rewriting with target {node.target}, but '
                "the referenced attribute does not exist in the replacement GraphModule",
            )
        if isinstance(value, Module):
            gm.add_submodule(str(node.target), value)
        else:
            setattr(gm, str(node.target), value)
    gm.graph.lint()


def _found(module: Module, node: Node) -> object:
    path, _, name = str(node.target).rpartition(".")
    try:
        return getattr(module.get_submodule(path), name, None)
    except AttributeError:
        return None
