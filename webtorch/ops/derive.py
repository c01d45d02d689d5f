"""Symbolic derivatives of scalar expressions, from the slopes in the functions' records. May import
floor 0 only.

A zero derivative is None, so no rule ever multiplies by a written-out zero: infinities and NaN of
an untaken branch stay
out of the result. Ties follow PyTorch: maximum and minimum give half to each side, abs gives 0 at
0.
"""

from __future__ import annotations

from webtorch.ir import expr as ex
from webtorch.ir.expr import FUNCTIONS, Expr


def derivative(root: Expr, variable: Expr) -> Expr | None:
    """Return d root / d variable, or None when it is zero everywhere."""
    slopes: dict[Expr, Expr | None] = {}
    for node in ex.walk(root):
        slopes[node] = (
            ex.const(1.0, variable.dtype)
            if node is variable
            else _slope(node, [slopes[a] for a in node.args])
        )
    return slopes[root]


def _slope(node: Expr, parts: list[Expr | None]) -> Expr | None:
    if all(p is None for p in parts):
        return None
    match node.op:
        case "cast":
            floats = node.dtype.kind == "float" and node.args[0].dtype.kind == "float"
            return ex.cast(_present(parts[0]), node.dtype) if floats else None
        case "where":
            condition, a, _ = node.args
            zero = ex.const(0.0, a.dtype)
            return ex.where(condition, parts[1] or zero, parts[2] or zero)
        case "load" | "bitcast":
            return None
    total = None
    for part, slope in zip(parts, FUNCTIONS[node.op].slopes, strict=False):
        if part is not None and slope is not None:
            term = _times(part, slope(*node.args, node))
            total = term if total is None else total + term
    return total


def _present(x: Expr | None) -> Expr:
    assert x is not None
    return x


def _times(outer: Expr, inner: Expr) -> Expr:
    if inner.op == "const" and inner.value == -1.0:
        return -outer
    if outer.op == "const" and outer.value == -1.0:
        return -inner
    return outer * inner
