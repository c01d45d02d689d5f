"""Which of a program's checks of indices are the first of what they check. Standard library and floor 0 only."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from webtorch.ir import expr as ex
from webtorch.ir.expr import Expr
from webtorch.ir.kernel import Kernel, Routine


def first_checks(steps: Iterable[tuple[Routine | None, Sequence[int]]]) -> set[int]:
    """Return the numbers of the steps that check indices which none before them has checked; a step is what it runs,
    and on which values.
    """
    found: set[int] = set()
    known: dict[object, int] = {}
    same: dict[object, int] = {}
    for number, (routine, values) in enumerate(steps):
        for check in routine.checks if isinstance(routine, Kernel) else ():
            nodes = list(ex.walk(check.value))
            points = math.prod([n.value[1] for n in nodes if n.op == "index"])
            # What a kernel computes itself is no other's.
            own = number if any(n.op == "reduced" for n in nodes) else -1
            key = _index(nodes, values, same), check.low, check.high, own
            if known.get(key, 0) < points:
                known[key] = points
                found.add(number)
    return found


def _index(nodes: Sequence[Expr], values: Sequence[int], same: dict[object, int]) -> int:
    """Return a number of what an index, the last of its nodes, is made of, wherever its parts are loaded: in `same`,
    by what they are. Parts that are shared are seen once.
    """
    numbers: dict[Expr, int] = {}
    for node in nodes:
        made: object = (node.op, node.value, *[numbers[part] for part in node.args])
        if node.op == "load":
            made = node.op, values[node.value]
        numbers[node] = same.setdefault(made, len(same))
    return numbers[nodes[-1]]
