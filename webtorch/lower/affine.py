"""Positions as sums of strides: what a renderer needs to walk memory without dividing. Imports floor 0 only."""

from __future__ import annotations

from typing import NamedTuple

from webtorch.ir import expr as ex
from webtorch.ir.expr import Expr


class Affine(NamedTuple):
    """offset + sum of stride * index(dim) over `strides`; dims that do not count are absent."""

    offset: int
    strides: dict[int, int]

    def stride(self, dim: int) -> int:
        """Return the stride of loop variable `dim`."""
        return self.strides.get(dim, 0)


Memo = dict[Expr, Affine | None]


def affine(position: Expr, memo: Memo | None = None) -> Affine | None:
    """Return `position` as a sum of strides of loop variables, or None where it is something else."""
    memo = {} if memo is None else memo
    if position not in memo:
        for node in ex.walk(position):
            if node not in memo:
                memo[node] = _affine(node, memo)
    return memo[position]


def index_of(x: Expr) -> tuple[int, int]:
    """Return the dim and the size of a loop variable."""
    dim, size = x.value
    return dim, size


def _affine(x: Expr, memo: Memo) -> Affine | None:
    if x.op == "const" and isinstance(x.value, int):
        return Affine(int(x.value), {})
    if x.op == "index":
        dim, size = x.value
        return Affine(0, {dim: 1} if size > 1 else {})
    if (
        x.op == "cast"
        and x.dtype.is_integral
        and x.dtype.itemsize >= 4
        and x.args[0].dtype.is_integral
    ):
        return memo[x.args[0]]
    if x.op == "neg":
        a = memo[x.args[0]]
        return None if a is None else _scaled(a, -1)
    if x.op not in ("add", "sub", "mul"):
        return None
    a, b = memo[x.args[0]], memo[x.args[1]]
    if a is None or b is None:
        return None
    if x.op == "mul":
        if not b.strides:
            return _scaled(a, b.offset)
        return None if a.strides else _scaled(b, a.offset)
    if x.op == "sub":
        b = _scaled(b, -1)
    strides = dict(a.strides)
    for dim, stride in b.strides.items():
        strides[dim] = strides.get(dim, 0) + stride
    return _sum(a.offset + b.offset, strides)


def _scaled(a: Affine, factor: int) -> Affine:
    return _sum(a.offset * factor, {d: s * factor for d, s in a.strides.items()})


def _sum(offset: int, strides: dict[int, int]) -> Affine:
    return Affine(offset, {d: s for d, s in strides.items() if s})
