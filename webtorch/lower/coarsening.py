"""Thread coarsening: an invocation of a reduction computes several rows at once where these read the same data.

A product of a matrix and a vector reads the vector again for each row of the matrix: from a cache, but more bytes of it
than of the matrix. Two to four rows together read it once, and rows of several vectors share what is computed of the
matrix. Floor 2; imports floor 0.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from webtorch.ir import expr as ex
from webtorch.ir.expr import Expr
from webtorch.ir.kernel import Kernel, Reduce, Store
from webtorch.ir.limits import Limits

# Rows of one dim that are computed together, and of all dims.
_MOST, _MOST_OF_ALL = 4, 8
# Invocations that should be left, and those that one row has at most.
_INVOCATIONS, _OF_A_ROW = 1 << 16, 256
# What of a point's work has to be shared; a load counts as so many operations.
_SHARED, _LOAD = 0.2, 8
# Operations of one invocation's turn.
_MOST_NODES = 3000


def coarsened(kernel: Kernel, limits: Limits) -> Kernel:
    """Return a kernel that computes several outer points at each of its own, or the kernel itself."""
    if not limits.is_gpu or limits.varying or not _is_plain(kernel):
        return kernel
    rows = 1
    while rows < _MOST_OF_ALL:
        found = max(_choices(kernel, rows), default=(0.0, 0, 0))
        shared, dim, count = found
        if shared < _SHARED:
            break
        kernel, rows = _together(kernel, dim, count), rows * count
    return kernel


def _is_plain(kernel: Kernel) -> bool:
    """Whether rows are sums that need no other, and are stored each at its place."""
    if kernel.checks or any(s.level == "inner" or s.combine != "set" for s in kernel.stores):
        return False
    return not any(n.op == "reduced" for r in kernel.reduces for n in ex.walk(r.value))


def _choices(kernel: Kernel, rows: int) -> Iterator[tuple[float, int, int]]:
    """Yield what part of the work rows share, the dim along which they follow each other, and their count."""
    rank = len(kernel.outer)
    depends: dict[Expr, frozenset[int]] = {}
    works: list[tuple[int, frozenset[int]]] = []
    for node in ex.walk(*[r.value for r in kernel.reduces]):
        dims = frozenset([node.value[0]]) if node.op == "index" else frozenset[int]()
        depends[node] = dims.union(*[depends[a] for a in node.args])
        if node.args and any(d >= rank for d in depends[node]):
            works.append((_LOAD if node.op == "load" else 1, depends[node]))
    # A sum of what is the same at all points reads nothing.
    total = sum(w for w, _ in works) or 1
    invocations = kernel.outer_count * min(kernel.inner_count, _OF_A_ROW)
    for dim, size in enumerate(kernel.outer):
        same = sum(w for w, dims in works if dim not in dims)
        for count in range(2, min(_MOST, _MOST_OF_ALL // rows) + 1):
            if (
                size % count
                or invocations < count * _INVOCATIONS
                or len(works) * count > _MOST_NODES
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
