"""What is known of index expressions without running them: linear forms and bounds. Floor 2;
imports floor 0."""

from __future__ import annotations

import math
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
    if node.op == "where":
        known = known[1:]
    if node.op == "mod" and known[1] is not None and known[1][0] == known[1][1] > 0:
        if known[0] is not None and known[0][0] >= 0 and known[0][1] < known[1][0]:
            return known[0]
        return (0, known[1][0] - 1)
    if node.op in ("min", "max") and (known[0] is None) != (known[1] is None):
        return None
    if any(k is None for k in known):
        return None
    sides = cast("list[Range]", known)
    result: Range | None = None
    match node.op:
        case "add":
            result = (sides[0][0] + sides[1][0], sides[0][1] + sides[1][1])
        case "sub":
            result = (sides[0][0] - sides[1][1], sides[0][1] - sides[1][0])
        case "mul":
            ends = [p * q for p in sides[0] for q in sides[1]]
            result = (min(ends), max(ends))
        case "floordiv" if sides[1][0] == sides[1][1] > 0:
            result = (sides[0][0] // sides[1][0], sides[0][1] // sides[1][0])
        case "min":
            result = (min(sides[0][0], sides[1][0]), min(sides[0][1], sides[1][1]))
        case "max":
            result = (max(sides[0][0], sides[1][0]), max(sides[0][1], sides[1][1]))
        case "where":
            result = (min(s[0] for s in sides), max(s[1] for s in sides))
        case "neg":
            result = (-sides[0][1], -sides[0][0])
        case "cast" if node.args[0].dtype.kind == "int" and node.dtype.itemsize >= 4:
            result = sides[0]
        case _:
            return None
    # A sum that may wrap around tells nothing.
    return result if result[0] >= -(1 << 31) and result[1] < 1 << 31 else None


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
