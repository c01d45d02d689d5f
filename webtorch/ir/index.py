"""Integer index arithmetic with ranges: how a view becomes a position. Standard library only.

An `Index` is a sum of atoms with integer factors plus a constant. Atoms are loop variables,
quotients, remainders and
values read at run time. Ranges are known, so that walking through reshapes and transposes gives
back plain strides:
`((i * 5 + j) // 5) == i` when `0 <= j < 5`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from math import gcd
from typing import Any

from webtorch.ir import expr as ex
from webtorch.ir.dtype import int32, int64
from webtorch.ir.expr import Expr
from webtorch.ir.view import Shape, contiguous_strides


class Atom:
    """A term that is not split further; `low` and `high` bound its value (both inclusive)."""

    __slots__ = ("base", "divisor", "expression", "high", "kind", "low", "value")
    kind: str
    low: int
    high: int
    # The loop's (dim, size) or the run-time value's expression; what a quotient or remainder is of.
    value: Any
    base: Index | None
    divisor: int
    # What computes it, once somebody has asked.
    expression: Expr | None

    def __repr__(self) -> str:
        if self.kind == "loop":
            return f"i{self.value}"
        if self.kind == "value":
            return f"<{self.value}>"
        return f"({self.base} {'//' if self.kind == 'div' else '%'} {self.divisor})"


_ATOMS: dict[tuple[object, ...], Atom] = {}
_FAR = 1 << 40


def _atom(kind: str, value: object, base: Index | None, divisor: int, low: int, high: int) -> Atom:
    key = (kind, value, base.key if base is not None else None, divisor, low, high)
    found = _ATOMS.get(key)
    if found is None:
        if len(_ATOMS) > 200_000:
            _ATOMS.clear()
        found = Atom()
        found.kind, found.value, found.base, found.divisor, found.low, found.high = (
            kind,
            value,
            base,
            divisor,
            low,
            high,
        )
        found.expression = None
        # Another thread may have made it meanwhile.
        found = _ATOMS.setdefault(key, found)
    return found


class Index:
    """An integer expression: `constant + sum(factor * atom)`. Immutable; equal ones compare equal."""

    __slots__ = ("constant", "hash", "key", "terms")

    def __init__(self, terms: tuple[tuple[Atom, int], ...], constant: int) -> None:
        self.terms = terms
        self.constant = constant
        self.key = (terms, constant)
        self.hash: int | None = None

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, Index) and self.key == other.key)

    def __hash__(self) -> int:
        if self.hash is None:
            self.hash = hash(self.key)
        return self.hash

    def __repr__(self) -> str:
        parts = [f"{f}*{a}" if f != 1 else str(a) for a, f in self.terms]
        if self.constant or not parts:
            parts.append(str(self.constant))
        return " + ".join(parts)

    def __add__(self, other: Index | int) -> Index:
        if isinstance(other, int):
            return Index(self.terms, self.constant + other) if other else self
        if not other.terms:
            return self + other.constant
        factors = dict(self.terms)
        for atom, factor in other.terms:
            factors[atom] = factors.get(atom, 0) + factor
        return _collect(factors, self.constant + other.constant)

    def __sub__(self, other: Index | int) -> Index:
        return self + (-other if isinstance(other, int) else other * -1)

    def __mul__(self, factor: int) -> Index:
        if factor == 1:
            return self
        if factor == 0:
            return constant(0)
        return Index(tuple((a, f * factor) for a, f in self.terms), self.constant * factor)

    @property
    def range(self) -> tuple[int, int]:
        """The lowest and highest possible value (inclusive, perhaps loose)."""
        low = high = self.constant
        for atom, factor in self.terms:
            if factor > 0:
                low += factor * atom.low
                high += factor * atom.high
            else:
                low += factor * atom.high
                high += factor * atom.low
        return low, high

    def __floordiv__(self, divisor: int) -> Index:
        if divisor == 1:
            return self
        whole, rest = self._split(divisor)
        low, high = rest.range
        if low // divisor == high // divisor:
            return whole + low // divisor
        if (
            len(rest.terms) == 1
            and rest.constant == 0
            and rest.terms[0][1] == 1
            and rest.terms[0][0].kind == "div"
        ):
            inner = rest.terms[0][0]
            assert inner.base is not None
            return whole + _quotient(inner.base, inner.divisor * divisor)
        return whole + _quotient(rest, divisor)

    def __mod__(self, divisor: int) -> Index:
        if divisor == 1:
            return constant(0)
        _, rest = self._split(divisor)
        low, high = rest.range
        if low // divisor == high // divisor:
            return rest - (low // divisor) * divisor
        if low < 0:
            rest = rest + (-(low // divisor)) * divisor
        coarse, fine, step = _separate(rest, divisor)
        if step == divisor:
            return fine
        if step > 1:
            return (coarse % (divisor // step)) * step + fine
        return Index(((_atom("mod", None, rest, divisor, 0, divisor - 1), 1),), 0)

    def _split(self, divisor: int) -> tuple[Index, Index]:
        """Return (q, r) with self == q * divisor + r, taking out of r all that the divisor divides."""
        whole: list[tuple[Atom, int]] = []
        rest: list[tuple[Atom, int]] = []
        for atom, factor in self.terms:
            quotient, remainder = divmod(factor, divisor)
            if remainder == 0:
                whole.append((atom, quotient))
            else:
                rest.append((atom, factor))
        quotient, remainder = divmod(self.constant, divisor)
        return Index(tuple(whole), quotient), Index(tuple(rest), remainder)

    @property
    def is_affine(self) -> bool:
        """Whether only loop variables occur."""
        return all(a.kind == "loop" for a, _ in self.terms)

    def expr(self) -> Expr:
        """Return the expression that computes this index: of int32, or of int64 where a value in it is."""
        total: Expr | None = None
        terms = []
        for atom, factor in self.terms:
            if atom.expression is None:
                atom.expression = _atom_expr(atom)
            terms.append((atom.expression, factor))
        long = any(term.dtype is int64 for term, _ in terms)
        for term, factor in terms:
            if long:
                term = ex.cast(term, int64)
            if factor != 1:
                term = term * factor
            total = term if total is None else total + term
        if total is None:
            return ex.const(self.constant, int32)
        return total + self.constant if self.constant else total


def _atom_expr(atom: Atom) -> Expr:
    if atom.kind == "loop":
        dim, size = atom.value
        return ex.index(dim, size)
    if atom.kind == "value":
        assert isinstance(atom.value, Expr)
        return atom.value
    assert atom.base is not None
    base = atom.base.expr()
    # Where the base cannot be negative, truncating division is the cheaper instruction everywhere.
    exact = atom.base.range[0] >= 0
    if atom.kind == "div":
        return (ex.truncdiv if exact else ex.floordiv)(base, atom.divisor)
    return (ex.truncmod if exact else ex.mod)(base, atom.divisor)


def _separate(base: Index, divisor: int) -> tuple[Index, Index, int]:
    """Return (coarse, fine, step) with base == coarse * step + fine, 0 <= fine < step, and step a
    divisor of `divisor`.

    The step is the largest found; 1 (with fine 0) when the terms cannot be separated.
    """
    step = divisor
    by_size = sorted(base.terms, key=lambda t: -abs(t[1]))
    best: tuple[Index, Index, int] = (base, constant(0), 1)
    for count in range(len(by_size) + 1):
        if count:
            step = gcd(step, by_size[count - 1][1])
        if step == 1:
            break
        fine = Index(tuple(t for t in base.terms if t in by_size[count:]), base.constant % step)
        low, high = fine.range
        if low >= 0 and high < step:
            coarse = Index(
                tuple((a, f // step) for a, f in base.terms if (a, f) in by_size[:count]),
                base.constant // step,
            )
            return coarse, fine, step
    return best


def _quotient(base: Index, divisor: int) -> Index:
    base, _, step = _separate(base, divisor)
    divisor //= step
    if divisor == 1:
        return base
    low, high = base.range
    if low // divisor == high // divisor:
        return constant(low // divisor)
    return Index(((_atom("div", None, base, divisor, low // divisor, high // divisor), 1),), 0)


def _collect(factors: dict[Atom, int], offset: int) -> Index:
    """Build a sum; (x // c) * c + x % c becomes x again."""
    for atom, factor in list(factors.items()):
        if atom.kind == "mod" and factor:
            assert atom.base is not None
            # The quotient in its flattened form, x // (a * b) for (x // a) // b: that is how it
            # stands in the sum.
            whole = atom.base // atom.divisor
            if len(whole.terms) == 1 and whole.constant == 0 and whole.terms[0][1] == 1:
                partner = whole.terms[0][0]
                if factors.get(partner) == factor * atom.divisor:
                    del factors[atom], factors[partner]
                    return _collect(factors, offset) + atom.base * factor
    terms = tuple(sorted(((a, f) for a, f in factors.items() if f), key=_order))
    return Index(terms, offset)


def _order(term: tuple[Atom, int]) -> tuple[int, int, str]:
    atom, factor = term
    if atom.kind == "loop":
        return (0, atom.value[0], "")
    return (1, -abs(factor), repr(atom))


def constant(value: int) -> Index:
    """Return a constant index."""
    return Index((), value)


def loop(dim: int, size: int) -> Index:
    """Return loop variable `dim`, 0..size-1; a loop of one turn is the constant 0."""
    if size == 1:
        return constant(0)
    return Index(((_atom("loop", (dim, size), None, 0, 0, size - 1), 1),), 0)


def value(expression: Expr, low: int = -_FAR, high: int = _FAR) -> Index:
    """Return a value that is known at run time only, with its bounds."""
    return Index(((_atom("value", expression, None, 0, low, high), 1),), 0)


@lru_cache(maxsize=1 << 14)
def delinearize(flat: Index, shape: Shape) -> tuple[Index, ...]:
    """Return the coordinates in `shape` of row-major position `flat`, which lies within the shape."""
    out: list[Index] = []
    for i, (size, stride) in enumerate(zip(shape, contiguous_strides(shape), strict=True)):
        if size == 1:
            out.append(constant(0))
            continue
        coordinate = flat // stride
        # The first dimension that is not 1 needs no remainder: flat is within the shape.
        if any(s != 1 for s in shape[:i]):
            coordinate = coordinate % size
        out.append(coordinate)
    return tuple(out)


@lru_cache(maxsize=1 << 14)
def linearize(coordinates: tuple[Index, ...], strides: Shape, offset: int = 0) -> Index:
    """Return `offset + sum(coordinate * stride)`."""
    total = constant(offset)
    for coordinate, stride in zip(coordinates, strides, strict=True):
        if stride:
            total = total + coordinate * stride
    return total


def replace_loops(target: Index, mapping: Callable[[int, int], Index]) -> Index:
    """Rebuild `target` with every loop variable (dim, size) replaced."""
    total = constant(target.constant)
    for atom, factor in target.terms:
        if atom.kind == "loop":
            new = mapping(*atom.value)
        elif atom.kind == "value":
            new = Index(((atom, 1),), 0)
        else:
            assert atom.base is not None
            base = replace_loops(atom.base, mapping)
            new = base // atom.divisor if atom.kind == "div" else base % atom.divisor
        total = total + new * factor
    return total


def split_points(target: Index) -> dict[int, int]:
    """Return {loop dim: divisor} of quotients and remainders that vanish if that loop is split at
    the divisor.

    Of several divisors for one loop the largest is returned; call again after splitting.
    """
    found: dict[int, int] = {}
    for atom, _ in target.terms:
        if atom.kind not in ("div", "mod") or atom.base is None:
            continue
        for dim, divisor in split_points(atom.base).items():
            found[dim] = max(found.get(dim, 0), divisor)
        for part, factor in atom.base.terms:
            if part.kind != "loop" or factor < 0:
                continue
            dim, size = part.value
            step = atom.divisor // gcd(atom.divisor, factor)
            if 1 < step < size and size % step == 0:
                found[dim] = max(found.get(dim, 0), step)
    return found
