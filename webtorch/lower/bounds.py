"""What is known of the values of expressions without running them: bounds. Floor 2; imports floor 0."""

from __future__ import annotations

import math

from webtorch.ir import expr as ex
from webtorch.ir.dtype import int64, integer_limits
from webtorch.ir.expr import FUNCTIONS, Expr, Range

UNKNOWN: Range = (-math.inf, math.inf)
_INT64 = integer_limits(int64)


def bounds(x: Expr, memo: dict[Expr, Range], limits: Range = _INT64) -> Range:
    """Return the smallest and the largest value that `x` can take, NaN aside.

    `limits` are those of the widest integer in which the backend computes. An integer that may leave its
    type wraps around, so nothing is known of it.
    """
    for node in ex.walk(x):
        if node not in memo:
            memo[node] = _bounds(node, [memo[a] for a in node.args], limits)
    return memo[x]


def _bounds(node: Expr, known: list[Range], limits: Range) -> Range:
    kind = node.dtype.kind
    if node.op == "const" and kind in ("int", "uint", "float"):
        return UNKNOWN if node.value != node.value else (node.value, node.value)
    if node.op == "index":
        return 0, node.value[1] - 1
    if node.op == "cast":
        found = known[0] if node.args[0].dtype.kind in ("int", "uint") else UNKNOWN
    elif node.op == "where" and node.args[0].op == "lt" and node.args[1:] == node.args[0].args:
        # The smaller of two: less than either.
        found = min(known[1][0], known[2][0]), min(known[1][1], known[2][1])
    elif (function := FUNCTIONS.get(node.op)) and function.bounds:
        found = function.bounds(*known)
    else:
        return UNKNOWN
    low, high = found
    if kind == "float":
        # Infinity less infinity tells nothing.
        return UNKNOWN if low != low or high != high else found
    if kind not in ("int", "uint"):
        return UNKNOWN
    least, most = integer_limits(node.dtype)
    fits = max(least, limits[0]) <= low and high <= min(most, limits[1])
    return found if fits else UNKNOWN


def fits(x: Expr, limits: Range) -> bool:
    """Whether a number lies within `limits` once its fraction is dropped, NaN aside."""
    low, high = bounds(x, {})
    return low > limits[0] - 1 and high < limits[1] + 1
