"""Coarsening: an outer point of a reduction computes several rows at once where these share data or work.

A product of a matrix and a vector reads the vector again for each row of the matrix: from a cache, but more bytes of it
than of the matrix. On a card two to four rows together read it once. Rows of several vectors share what is computed of
the matrix, there and on threads, where packed weights are so unpacked once. Floor 2; imports floor 0.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from webtorch.ir import expr as ex
from webtorch.ir.expr import Expr
from webtorch.ir.kernel import Kernel, Reduce, Store


@dataclass(frozen=True, slots=True)
class Sharing:
    """When rows are computed together."""

    # How many of one dim, and of all dims.
    most: int
    most_of_all: int
    # Invocations that should be left, and those that one row has at most.
    invocations: int
    of_a_row: int
    # What of a point's work has to be shared; a load counts as so many operations.
    shared: float
    load: int
    # Operations of one invocation's turn.
    nodes: int
    # Operations of one row's turn from which on rows of one vector are computed by twos: more would hold so many
    # registers that few of them run side by side (unpacking Q4_K and Q6_K on an H200).
    dear: int
    # Whether places that rows compute alike are shared work, before anything is read of them.
    places: bool


CARD = Sharing(4, 8, 1 << 16, 256, 0.2, 8, 3000, 150, True)
# A processor's caches feed it: what counts is the work, of which a product's additions are shared by none. It goes from
# place to place without multiplying, and adds many neighbours at once where rows lie across the sum (`pysource`).
THREADS = Sharing(8, 8, 1, 1, 0.34, 0, 3000, 3000, False)


def coarsened(kernel: Kernel, sharing: Sharing, varying: bool = False, first: int = 0) -> Kernel:
    """Return a kernel that computes several outer points at each of its own, or the kernel itself. Outer dims before
    `first` stay as they are.
    """
    if varying or not kernel.reduces or not _is_plain(kernel):
        return kernel
    # Kernels of several sums hold as many for each row.
    each = len(kernel.reduces)
    most, most_of_all = sharing.most // each, sharing.most_of_all // each
    if sum(size > 1 for size in kernel.outer) == 1 and is_dear(kernel, sharing):
        most = most_of_all = max(2 // each, 1)
    sharing = replace(sharing, most=most, most_of_all=most_of_all)
    rows = 1
    while rows < sharing.most_of_all:
        choices = [c for c in _choices(kernel, rows, sharing) if c[1] >= first]
        found = max(choices, default=(0.0, 0, 0))
        shared, dim, count = found
        if shared < sharing.shared:
            break
        kernel, rows = _together(kernel, dim, count), rows * count
    return kernel


def is_dear(kernel: Kernel, sharing: Sharing) -> bool:
    """Whether one turn of a row's sum takes many operations."""
    operations = sum(1 for n in ex.walk(*[r.value for r in kernel.reduces]) if n.args)
    return operations > sharing.dear * len(kernel.reduces)


def _is_plain(kernel: Kernel) -> bool:
    """Whether rows are sums that need no other, and are stored each at its place."""
    if kernel.checks or any(s.level == "inner" or s.combine != "set" for s in kernel.stores):
        return False
    return not any(n.op == "reduced" for r in kernel.reduces for n in ex.walk(r.value))


def _choices(kernel: Kernel, rows: int, sharing: Sharing) -> Iterator[tuple[float, int, int]]:
    """Yield what part of the work rows share, the dim along which they follow each other, and their count."""
    rank = len(kernel.outer)
    depends: dict[Expr, frozenset[int]] = {}
    works: list[tuple[int, frozenset[int], bool]] = []
    of_data: set[Expr] = set()
    for node in ex.walk(*[r.value for r in kernel.reduces]):
        dims = frozenset([node.value[0]]) if node.op == "index" else frozenset[int]()
        depends[node] = dims.union(*[depends[a] for a in node.args])
        if node.op == "load" or any(a in of_data for a in node.args):
            of_data.add(node)
        if node.args and any(d >= rank for d in depends[node]):
            shares = sharing.places or node in of_data
            works.append((sharing.load if node.op == "load" else 1, depends[node], shares))
    # A sum of what is the same at all points reads nothing.
    total = sum(w for w, _, _ in works) or 1
    invocations = kernel.outer_count * min(kernel.inner_count, sharing.of_a_row)
    for dim, size in enumerate(kernel.outer):
        same = sum(w for w, dims, shares in works if shares and dim not in dims)
        for count in range(2, min(sharing.most, sharing.most_of_all // rows) + 1):
            if (
                size % count
                or invocations < count * sharing.invocations
                or len(works) * count > sharing.nodes
            ):
                continue
            yield same / total * (1 - 1 / count), dim, count


def _together(kernel: Kernel, dim: int, count: int) -> Kernel:
    """Return the kernel with `count` neighbours along an outer dim at each of its points."""
    size = kernel.outer[dim] // count
    reduces: list[Reduce] = []
    stores: list[Store] = []
    for i in range(count):
        memo: dict[Expr, Expr] = {}
        begin = len(reduces)

        def moved(
            node: Expr, args: tuple[Expr, ...], i: int = i, begin: int = begin
        ) -> Expr | None:
            """Return the place of the row of that number, and its sums."""
            del args
            if node.op == "index" and node.value[0] == dim:
                return ex.index(dim, size) * count + i
            return ex.reduced(begin + node.value, node.dtype) if node.op == "reduced" else None

        reduces += [replace(r, value=ex.rewrite(r.value, moved, memo)) for r in kernel.reduces]
        stores += [
            replace(
                s,
                position=ex.rewrite(s.position, moved, memo),
                value=ex.rewrite(s.value, moved, memo),
                valid=None if s.valid is None else ex.rewrite(s.valid, moved, memo),
            )
            for s in kernel.stores
        ]
    outer = (*kernel.outer[:dim], size, *kernel.outer[dim + 1 :])
    return replace(kernel, outer=outer, reduces=tuple(reduces), stores=tuple(stores))
