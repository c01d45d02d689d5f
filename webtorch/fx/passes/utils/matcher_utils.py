"""Finding a small graph in a large one, backwards from its results."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from webtorch.fx.graph import Graph
from webtorch.fx.graph_module import _get_attr
from webtorch.fx.node import Node
from webtorch.tensors.tensor import Tensor

__all__ = ["InternalMatch", "SubgraphMatcher"]


@dataclass
class InternalMatch:
    """Where a pattern was found: which node, or literal, is which of the pattern's."""

    anchors: list[Node]
    nodes_map: dict[Node, Any] = field(default_factory=dict)
    # What the pattern's parameters are, and what it returns.
    placeholder_nodes: list[Any] = field(default_factory=list)
    returning_nodes: list[Node] = field(default_factory=list)
    name_node_map: dict[str, Node] = field(default_factory=dict)

    def __copy__(self) -> InternalMatch:
        return InternalMatch(
            self.anchors,
            self.nodes_map.copy(),
            self.placeholder_nodes.copy(),
            self.returning_nodes.copy(),
        )


class SubgraphMatcher:
    """Finds a pattern. Its parameters stand for anything, unless placeholders are to match; what it does must be
    used by nothing else, but for its results.
    """

    def __init__(
        self,
        pattern: Graph,
        match_output: bool = False,
        match_placeholder: bool = False,
        remove_overlapping_matches: bool = True,
        ignore_literals: bool = False,
    ) -> None:
        """Take the pattern. Raises for an empty one, and for one with nodes that nobody uses."""
        self.pattern, self.match_output = pattern, match_output
        self.match_placeholder = match_placeholder
        self.remove_overlapping_matches = remove_overlapping_matches
        self.ignore_literals = ignore_literals
        if len(pattern.nodes) == 0:
            raise ValueError("SubgraphMatcher cannot be initialized with an empty pattern")
        for node in pattern.nodes:
            if node.op != "output" and not node.is_impure() and not node.users:
                raise AssertionError(
                    "SubgraphMatcher cannot be initialized with an pattern with dead code"
                )
        output = pattern.output_node()
        self.pattern_placeholder_nodes = [n for n in pattern.nodes if n.op == "placeholder"]
        self.pattern_returning_nodes = output.all_input_nodes
        # Where the search begins: results that nothing else in the pattern uses.
        only_returned = [n for n in output.all_input_nodes if len(n.users) == 1]
        self.pattern_anchors = [output] if match_output else only_returned

    def match(self, graph: Graph, node_name_match: str = "") -> list[InternalMatch]:
        """Return all places at which the pattern is found."""
        candidates = [
            (anchor, [n for n in graph.nodes if self._alike(anchor, n, node_name_match)])
            for anchor in self.pattern_anchors
        ]
        candidates = [(anchor, nodes) for anchor, nodes in candidates if nodes]
        found: list[InternalMatch] = []

        def search(number: int, match: InternalMatch) -> None:
            """Add every match that goes on from this one with the anchors from `number` on."""
            if number == len(candidates):
                nodes = match.nodes_map
                match.placeholder_nodes = [nodes[n] for n in self.pattern_placeholder_nodes]
                match.returning_nodes = [nodes[n] for n in self.pattern_returning_nodes]
                found.append(match)
                return
            anchor, nodes_like_it = candidates[number]
            for node in nodes_like_it:
                attempt = copy.copy(match)
                if self._match_nodes(anchor, node, attempt, node_name_match):
                    search(number + 1, attempt)

        if candidates:
            search(0, InternalMatch(self.pattern_anchors))
        whole = [m for m in found if self._is_contained(m) and not _loops(_computed(m))]
        return self._without_overlaps(whole) if self.remove_overlapping_matches else whole

    def _alike(self, pn: Node, gn: Node, name: str = "") -> bool:
        """Whether a node may be one of the pattern's, by itself."""
        if not self.match_placeholder and pn.op == "placeholder":
            return True
        if name and name in gn.name:
            return True
        if pn.op != gn.op:
            return False
        if pn.op in ("placeholder", "output"):
            return True
        if pn.op == "get_attr":
            values = [_get_attr(n.graph.owning_module, str(n.target)) for n in (pn, gn)]
            if type(values[0]) is not type(values[1]):
                return False
            if not isinstance(values[0], Tensor):
                raise RuntimeError(f"Unsupported type {values[0]} when matching attributes")
            return True
        return pn.target == gn.target

    def _match_nodes(self, pn: Node, gn: Node, match: InternalMatch, name: str = "") -> bool:
        if pn in match.nodes_map:
            return match.nodes_map[pn] is gn
        if any(gn is n for n in match.nodes_map.values()) or not self._alike(pn, gn, name):
            return False
        match.nodes_map[pn] = gn
        if pn.op == "placeholder":
            return True
        if len(pn.args) != len(gn.args) or list(pn.kwargs) != list(gn.kwargs):
            return False
        given = [*pn.args, *pn.kwargs.values()], [*gn.args, *gn.kwargs.values()]
        return self._match_args(*given, match)

    def _match_args(
        self, mine: Sequence[object], theirs: Sequence[object], match: InternalMatch
    ) -> bool:
        if len(mine) != len(theirs):
            return False
        for a, b in zip(mine, theirs):
            if isinstance(a, Node) and isinstance(b, Node):
                alike = self._match_nodes(a, b, match)
            elif isinstance(a, (list, tuple)) and isinstance(b, (list, tuple)):
                alike = self._match_args(a, b, match)
            else:
                alike = _match_literals(a, b, match) or self.ignore_literals
            if not alike:
                return False
        return True

    def _is_contained(self, match: InternalMatch) -> bool:
        """Whether nothing outside uses what the pattern computes on the way."""
        inside = {gn: pn for pn, gn in match.nodes_map.items() if pn.op != "placeholder"}
        return all(
            pn in self.pattern_returning_nodes or all(user in inside for user in gn.users)
            for gn, pn in inside.items()
        )

    def _without_overlaps(self, matches: list[InternalMatch]) -> list[InternalMatch]:
        kept: list[InternalMatch] = []
        taken: set[Node] = set()
        for match in matches:
            nodes = _computed(match)
            if taken.isdisjoint(nodes):
                kept.append(match)
                taken.update(nodes)
        return kept


def _match_literals(mine: object, other: object, match: InternalMatch) -> bool:
    if isinstance(mine, Node):
        if mine.op != "placeholder":
            return False
        if mine in match.nodes_map:
            return bool(match.nodes_map[mine] == other)
        match.nodes_map[mine] = other
        return True
    return type(other) is type(mine) and bool(other == mine)


def _computed(match: InternalMatch) -> list[Node]:
    """Return the nodes that would be replaced."""
    return [gn for pn, gn in match.nodes_map.items() if pn.op not in ("placeholder", "output")]


def _loops(nodes: list[Node]) -> bool:
    """Whether something outside of these uses some of them and is used by others."""
    inside = set(nodes)
    pending = [user for n in nodes for user in n.users if user not in inside]
    seen: set[Node] = set()
    while pending:
        node = pending.pop()
        if node in inside:
            return True
        seen.add(node)
        pending += [user for user in node.users if user not in seen]
    return False
