"""Positions as sums of strides: what a renderer needs to walk memory without dividing. Imports floor 0 only."""

from __future__ import annotations

from dataclasses import dataclass

from webtorch.ir.expr import Expr


@dataclass(frozen=True, slots=True)
class Affine:
    """offset + sum of stride * index(dim) over `strides`; dims that do not count are absent."""

    offset: int
    strides: dict[int, int]

    def stride(self, dim: int) -> int:
        """Return the stride of loop variable `dim`."""
        return self.strides.get(dim, 0)


def affine(position: Expr) -> Affine | None:
    """Return `position` as a sum of strides of loop variables, or None where it is something else."""
    found = _affine(position, {})
    if found is None:
        return None
    offset, strides = found
    return Affine(offset, {d: s for d, s in strides.items() if s})


def index_of(x: Expr) -> tuple[int, int]:
    """Return the dim and the size of a loop variable."""
    dim, size = x.value
    return dim, size


_Sum = tuple[int, dict[int, int]]


def _affine(x: Expr, memo: dict[Expr, _Sum | None]) -> _Sum | None:
    if x not in memo:
        memo[x] = _affine_of(x, memo)
    return memo[x]


def _affine_of(x: Expr, memo: dict[Expr, _Sum | None]) -> _Sum | None:
    if x.op == "const" and isinstance(x.value, int):
        return int(x.value), {}
    if x.op == "index":
        dim, size = x.value
        return 0, ({dim: 1} if size > 1 else {})
    if (
        x.op == "cast"
        and x.dtype.is_integral
        and x.dtype.itemsize >= 4
        and x.args[0].dtype.is_integral
    ):
        return _affine(x.args[0], memo)
    if x.op == "neg":
        a = _affine(x.args[0], memo)
        return None if a is None else _scaled(a, -1)
    if x.op not in ("add", "sub", "mul"):
        return None
    a, b = _affine(x.args[0], memo), _affine(x.args[1], memo)
    if a is None or b is None:
        return None
    if x.op == "mul":
        if not b[1]:
            return _scaled(a, b[0])
        return None if a[1] else _scaled(b, a[0])
    if x.op == "sub":
        b = _scaled(b, -1)
    strides = dict(a[1])
    for dim, stride in b[1].items():
        strides[dim] = strides.get(dim, 0) + stride
    return a[0] + b[0], strides


def _scaled(a: _Sum, factor: int) -> _Sum:
    return a[0] * factor, {d: s * factor for d, s in a[1].items()}
