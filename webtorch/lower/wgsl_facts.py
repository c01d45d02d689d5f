"""What is known of index expressions without running them: linear forms and bounds. Floor 2;
imports floor 0."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import cast

from webtorch.ir import expr as ex
from webtorch.ir.dtype import (
    float32,
)
from webtorch.ir.expr import Expr

Affine = tuple[int, dict[int, int]]


def affine(x: Expr, memo: dict[Expr, Affine | None]) -> Affine | None:
    """Return (constant, {dim: coefficient}) if `x` is a linear form of loop variables, else
    None."""
    if x in memo:
        return memo[x]
    for node in ex.walk(x):
        if node in memo:
            continue
        found: Affine | None = None
        match node.op:
            case "const" if node.dtype.kind in ("int", "uint"):
                found = (int(cast(int, node.value)), {})
            case "index":
                found = (0, {cast("tuple[int, int]", node.value)[0]: 1})
            case "add" | "sub" if node.dtype.kind == "int":
                a, b = memo[node.args[0]], memo[node.args[1]]
                if a is not None and b is not None:
                    s = 1 if node.op == "add" else -1
                    terms = dict(a[1])
                    for d, c in b[1].items():
                        terms[d] = terms.get(d, 0) + s * c
                    found = (a[0] + s * b[0], {d: c for d, c in terms.items() if c})
            case "mul" if node.dtype.kind == "int":
                a, b = memo[node.args[0]], memo[node.args[1]]
                if a is not None and b is not None and (not a[1] or not b[1]):
                    if a[1]:
                        a, b = b, a
                    found = (a[0] * b[0], {d: c * a[0] for d, c in b[1].items() if c * a[0]})
            case _:
                pass
        memo[node] = found
    return memo[x]


Range = tuple[int, int]


def bounds(x: Expr, memo: dict[Expr, Range | None]) -> Range | None:
    """Return the smallest and largest value that integer expression `x` can take, or None where
    nothing is known."""
    for node in ex.walk(x):
        if node in memo:
            continue
        memo[node] = _bounds(node, memo)
    return memo[x]


def _bounds(node: Expr, memo: dict[Expr, Range | None]) -> Range | None:
    if node.op == "const" and node.dtype.kind in ("int", "uint"):
        return (int(cast(int, node.value)),) * 2
    if node.op == "index":
        return (0, cast("tuple[int, int]", node.value)[1] - 1)
    if node.dtype.kind != "int" or node.op in ("load", "arg", "reduced"):
        return None
    known = [memo[a] for a in node.args]
    if node.op == "mod":
        return _of_remainder(*known)
    if node.op == "cast" and (node.args[0].dtype.kind != "int" or node.dtype.itemsize < 4):
        return None
    of_values = known[1:] if node.op == "where" else known
    sides = [k for k in of_values if k is not None]
    rule = _BOUNDS.get(node.op)
    if rule is None or len(sides) < len(of_values):
        return None
    found = rule(*sides)
    # A sum that may wrap around tells nothing.
    return found if found and found[0] >= -(1 << 31) and found[1] < 1 << 31 else None


def _of_remainder(of: Range | None, divisor: Range | None) -> Range | None:
    if divisor is None or not divisor[0] == divisor[1] > 0:
        return None
    if of is not None and of[0] >= 0 and of[1] < divisor[0]:
        return of
    return (0, divisor[0] - 1)


def _of_product(x: Range, y: Range) -> Range:
    ends = [p * q for p in x for q in y]
    return (min(ends), max(ends))


def _of_quotient(x: Range, y: Range) -> Range | None:
    return (x[0] // y[0], x[1] // y[0]) if y[0] == y[1] > 0 else None


# The bounds of what is made of values with known ones.
_BOUNDS: dict[str, Callable[..., Range | None]] = {
    "add": lambda x, y: (x[0] + y[0], x[1] + y[1]),
    "sub": lambda x, y: (x[0] - y[1], x[1] - y[0]),
    "mul": _of_product,
    "floordiv": _of_quotient,
    "min": lambda x, y: (min(x[0], y[0]), min(x[1], y[1])),
    "max": lambda x, y: (max(x[0], y[0]), max(x[1], y[1])),
    "where": lambda x, y: (min(x[0], y[0]), max(x[1], y[1])),
    "neg": lambda x: (-x[1], -x[0]),
    "cast": lambda x: x,
}


def fits_int(x: Expr) -> bool:
    """Whether a float is known to lie within int32, NaN aside: a plain conversion is then
    enough."""
    known = _float_bounds(x)
    return known is not None and known[0] > -(2.0**31) and known[1] < 2.0**31


def _float_bounds(x: Expr) -> tuple[float, float] | None:
    if x.dtype is not float32:
        return None
    if x.op == "const":
        value = cast(float, x.value)
        return None if value != value else (value, value)
    if x.op == "abs":
        return 0.0, math.inf
    if x.op in ("round", "floor", "ceil", "trunc"):
        inner = _float_bounds(x.args[0])
        return None if inner is None else (inner[0] - 1, inner[1] + 1)
    if x.op in ("min", "max"):
        for a, b in (x.args, x.args[::-1]):
            if b.op == "const":
                limit = cast(float, b.value)
                low, high = _float_bounds(a) or (-math.inf, math.inf)
                clip = min if x.op == "min" else max
                return clip(low, limit), clip(high, limit)
    if x.op == "where" and x.args[0].op == "lt" and x.args[1:] == x.args[0].args:
        # The smaller of two.
        both = [_float_bounds(a) for a in x.args[1:]]
        known = [b for b in both if b is not None]
        if known:
            low = min(b[0] for b in known) if len(known) == 2 else -math.inf
            return low, min(b[1] for b in known)
    if x.op in ("add", "mul"):
        left = _float_bounds(x.args[0])
        right = left and _float_bounds(x.args[1])
        if left and right and all(math.isfinite(v) for v in (*left, *right)):
            if x.op == "add":
                return left[0] + right[0], left[1] + right[1]
            ends = [a * b for a in left for b in right]
            return min(ends), max(ends)
    return None
