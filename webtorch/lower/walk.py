"""Values of a loop nest, each computed once, in the outermost loop that knows what it depends on. Imports floor 0."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Generic, TypeAlias, TypeVar

from webtorch.ir import expr as ex
from webtorch.ir.expr import Expr

# What a value depends on: loop variables, by their dims, and reductions.
Dep: TypeAlias = int | tuple[str, int]
V = TypeVar("V")


class ValueWalk(ABC, Generic[V]):
    """Walks expressions from the leaves up; who writes them says what is there already and computes the rest."""

    def __init__(self) -> None:
        self.dep_memo: dict[Expr, frozenset[Dep]] = {}
        # Expressions are interned weakly: those made here must outlive what is known by them.
        self.alive: list[Expr] = []

    def deps(self, root: Expr) -> frozenset[Dep]:
        """Return the loop variables and reductions that `root` needs."""
        known = self.dep_memo.get(root)
        if known is not None:
            return known
        # Values are written from the leaves up, so that the parts are known in most cases.
        below = all(a in self.dep_memo for a in root.args)
        for node in (root,) if below else ex.walk(root):
            if node in self.dep_memo:
                continue
            found: frozenset[Dep] = frozenset().union(*[self.dep_memo[a] for a in node.args])
            if node.op == "index" and node.value[1] > 1:
                found = frozenset({node.value[0]})
            elif node.op == "reduced":
                found = frozenset({("reduced", node.value)})
            self.dep_memo[node] = found
        return self.dep_memo[root]

    def value(self, root: Expr) -> V:
        """Return `root`'s value, computing it in the outermost loop that can."""
        stack = [root]
        while stack:
            node = stack[-1]
            if self.find(node) is not None:
                stack.pop()
                continue
            missing = [a for a in self.operands(node) if self.find(a) is None]
            if missing:
                stack += reversed(missing)
                continue
            stack.pop()
            self.compute(node)
        return self.ready(root)

    def ready(self, node: Expr) -> V:
        """Return a value that has been computed."""
        found = self.find(node)
        assert found is not None
        return found

    def lanes(self, node: Expr) -> Iterable[Expr]:
        """Return the four lanes of a call of Philox: what finds one is known for all."""
        for lane in range(4):
            other = ex.make("philox", node.dtype, node.args, lane)
            self.dep_memo[other] = self.deps(node)
            self.alive.append(other)
            yield other

    @abstractmethod
    def find(self, node: Expr) -> V | None:
        """Return a value that is there already."""

    @abstractmethod
    def operands(self, node: Expr) -> Iterable[Expr]:
        """Return the nodes that must be there before a node is computed."""

    @abstractmethod
    def compute(self, node: Expr) -> None:
        """Write a node's value, whose operands are there, in the outermost scope that knows what it depends on."""
