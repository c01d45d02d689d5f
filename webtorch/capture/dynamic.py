"""One capture for every size of a marked dimension. Floor 5.

The function is captured at a few sizes. Where the captures differ only in integers, each of them is
a polynomial of the sizes (of second degree at most: a batch, a sequence length, its square), which
is found by interpolation and checked at further sizes. A program for another size is then made from
the polynomials. What decides by a size (`x[:8]`, `if n > 4`) would not show: so the function is
captured, and no more, at each new size as well, until sizes around have shown enough.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import itertools
import math
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from fractions import Fraction
from typing import Any

from webtorch.capture.backward import Backward, stand_in
from webtorch.capture.captured import Capture, Returned, is_constant
from webtorch.capture.outside import attributes, is_record, parts_of, rebuilt
from webtorch.capture.trace import Compiler, NotReplayable, compile_varying
from webtorch.errors import OutOfMemoryError
from webtorch.ir.graph import Graph, GraphNode, Output
from webtorch.tensors.creation import without_data
from webtorch.tensors.host import HostScalar, RandomOffset
from webtorch.tensors.tensor import Tensor

# Programs that one capture keeps, one for each choice of sizes.
_MAX_SIZES = 64
# Further sizes that are captured as well before those between are believed.
_MAX_CHECKS = 16
# More sizes that vary on their own would need too many captures.
MAX_VARIABLES = 3

# Numbers are looked for among fractions of denominators up to this.
_MAX_DIVISOR = 1 << 24

Point = tuple[int, ...]


_PACKAGE = __name__.partition(".")[0] + "."


class NotPolynomial(Exception):
    """Captures at several sizes differ in more than polynomials of the sizes; says in what."""


def mark_dynamic(x: Any, dim: int | Sequence[int], *, min: int = 2, max: int | None = None) -> None:
    """Have functions that `webtorch.compile` returned take any size of dimension `dim` of `x`.

    The argument in whose place `x` is passed keeps the mark for all later calls: pass the first
    batch through `mark_dynamic`, and batches of every size share one capture. `dim` may be several
    dimensions; marked dimensions of one size (a batch of inputs and of labels) vary together. Sizes
    0 and 1 are captured on their own. `min` and `max` are accepted as in PyTorch.

    Raises IndexError for a dimension that there is not.
    """
    rank = x.dim()
    dims = [dim] if isinstance(dim, int) else list(dim)
    for d in dims:
        if not -rank <= d < rank:
            raise IndexError(
                f"Dimension out of range (expected to be in range of [{-rank}, {rank - 1}], "
                f"but got {d})"
            )
    x._marked = frozenset(getattr(x, "_marked", ())) | {d % rank for d in dims}


def placeholder(like: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Return a tensor that can be recorded with and never read, for captures at other sizes."""
    return stand_in(like, without_data(shape, like.dtype, like._storage.runtime))


def probes(point: Point) -> list[Point]:
    """Return the sizes to capture at: `point` first, as many as a polynomial needs, and two more."""
    count = len(_monomials(len(point)))
    steps = itertools.product(range(3), repeat=len(point))
    near = sorted(
        (s for s in steps if sum(map(bool, s)) <= 2), key=lambda s: (sum(s), tuple(-x for x in s))
    )
    chosen: list[Point] = []
    for step in near:
        candidate = [*chosen, tuple(p + s for p, s in zip(point, step, strict=True))]
        if _rank(candidate) == len(candidate):
            chosen = candidate
        if len(chosen) == count:
            break
    for far in (5, 8):
        # Different steps, so that sizes that were equal by chance part.
        chosen.append(tuple(p + far + i for i, p in enumerate(point)))
    return chosen


def _expected(point: Point) -> list[Point]:
    """Return sizes like those that may come, odd ones and multiples of four, near and far: by them a
    device finds out what varies in its kernels.
    """
    return [
        tuple([p + 2 + p % 2 + 1 + 2 * i for i, p in enumerate(point)]),
        tuple([max(3 * p, 67) // 2 * 2 + 1 + 2 * i for i, p in enumerate(point)]),
        tuple([(p // 4 + 1 + i) * 4 for i, p in enumerate(point)]),
        tuple([(max(3 * p, 67) // 4 + 1 + i) * 4 for i, p in enumerate(point)]),
    ]


def _monomials(count: int) -> list[tuple[int, ...]]:
    """Return the exponents of each monomial of degree two or less."""
    powers = itertools.product(range(3), repeat=count)
    return sorted((p for p in powers if sum(p) <= 2), key=lambda p: (sum(p), p))


def _row(point: Point) -> list[int]:
    return [
        math.prod([x**e for x, e in zip(point, powers, strict=True)])
        for powers in _monomials(len(point))
    ]


def _rank(points: list[Point]) -> int:
    rows = [[Fraction(m) for m in _row(p)] for p in points]
    rank = 0
    for column in range(len(rows[0]) if rows else 0):
        pivot = next((r for r in range(rank, len(rows)) if rows[r][column]), None)
        if pivot is None:
            continue
        rows[rank], rows[pivot] = rows[pivot], rows[rank]
        for r in range(len(rows)):
            if r != rank and rows[r][column]:
                factor = rows[r][column] / rows[rank][column]
                rows[r] = [a - factor * b for a, b in zip(rows[r], rows[rank], strict=True)]
        rank += 1
    return rank


def _inverse(points: list[Point]) -> list[list[Fraction]]:
    size = len(points)
    rows = [
        [Fraction(m) for m in (*_row(p), *(int(i == j) for j in range(size)))]
        for i, p in enumerate(points)
    ]
    for column in range(size):
        pivot = next(r for r in range(column, size) if rows[r][column])
        rows[column], rows[pivot] = rows[pivot], rows[column]
        scale = rows[column][column]
        rows[column] = [a / scale for a in rows[column]]
        for r in range(size):
            if r != column and rows[r][column]:
                factor = rows[r][column]
                rows[r] = [a - factor * b for a, b in zip(rows[r], rows[column], strict=True)]
    return [row[size:] for row in rows]


class Polynomial:
    """An integer, or a quotient of two, as a function of the sizes."""

    __slots__ = ("coefficients", "denominator", "divisor", "kind")

    def __init__(
        self,
        coefficients: Sequence[Fraction],
        kind: str = "int",
        divisor: Polynomial | int = 1,
    ) -> None:
        """`coefficients` are those of the monomials; a float is divided by `divisor`."""
        self.denominator = math.lcm(*(c.denominator for c in coefficients))
        self.coefficients = [int(c * self.denominator) for c in coefficients]
        self.kind, self.divisor = kind, divisor

    def at(self, row: list[int]) -> int | float:
        """Return the value where the monomials are `row`."""
        value = sum([c * m for c, m in zip(self.coefficients, row, strict=True) if c])
        whole, rest = divmod(value, self.denominator)
        if rest:
            raise NotPolynomial("a size is not whole")
        if self.kind == "int":
            return whole
        divisor = self.divisor.at(row) if isinstance(self.divisor, Polynomial) else self.divisor
        return whole / divisor


class _Fit:
    """Finds the common form of several values."""

    def __init__(self, points: list[Point]) -> None:
        self.count = len(_monomials(len(points[0])))
        self.inverse = _inverse(points[: self.count])
        self.rows = [_row(p) for p in points]

    def __call__(self, values: Sequence[Any], where: str) -> Any:
        """Return a form from which `_maker` makes each of `values` at its point."""
        first = values[0]
        if all(v is first for v in values):
            return first
        kinds = {type(v) for v in values}
        if len(kinds) != 1:
            raise NotPolynomial(f"{where}: {', '.join(sorted(k.__name__ for k in kinds))}")
        (kind,) = kinds
        if kind is int:
            return self._number(values, where)
        if kind is float:
            same = all(v == first or (v != v and first != first) for v in values)
            return first if same else self._quotient(values, where)
        if issubclass(kind, (tuple, list)):
            return self._sequence(kind, values, where)
        if kind is dict:
            if len({tuple(v) for v in values}) != 1:
                raise NotPolynomial(f"{where}: their names")
            return {k: self([v[k] for v in values], where) for k in first}
        if kind in (GraphNode, Graph, Output, Returned):
            return self._record(values, where)
        if _is_users_structure(first):
            return self._structure(values, where)
        if kind is RandomOffset:
            made = copy.copy(first)
            made.relative = self([v.relative for v in values], where)
            return made
        if kind is HostScalar:
            same = len({v.read() for v in values}) == 1
        else:
            same = all(v == first for v in values)
        if same:
            return first
        names = [getattr(v, "name", repr(v)) for v in values if v != first]
        raise NotPolynomial(f"{where}: {getattr(first, 'name', repr(first))} and {names[0]}")

    def _sequence(self, kind: type[Any], values: Sequence[Any], where: str) -> object:
        if len({len(v) for v in values}) != 1:
            raise NotPolynomial(f"{where}: their number")
        parts = [self(v, where) for v in zip(*values, strict=True)]
        return kind(*parts) if hasattr(kind, "_fields") else kind(parts)

    def _record(self, values: Sequence[Any], where: str) -> object:
        """Return a form of parts of captures: nodes, graphs, outputs."""
        first = values[0]
        if isinstance(first, GraphNode):
            where = f"{where} {first.kind}"
        changed = {
            f.name: self([getattr(v, f.name) for v in values], where)
            for f in dataclasses.fields(first)
            if f.name not in ("identity", "storage", "origin", "line")
        }
        return dataclasses.replace(first, **changed)

    def _structure(self, values: Sequence[object], where: str) -> object:
        """Return a form of structures of the user's classes."""
        first = values[0]
        if len({tuple(v if isinstance(v, dict) else attributes(v)) for v in values}) != 1:
            raise NotPolynomial(f"{where}: their names")
        columns = zip(*[parts_of(v) or () for v in values], strict=True)
        following = iter([self(v, where) for v in columns])
        return rebuilt(first, lambda _: next(following))

    def _number(self, values: Sequence[int], where: str) -> Polynomial | int:
        if all(v == values[0] for v in values):
            return values[0]
        coefficients = tuple(
            sum((a * v for a, v in zip(row, values, strict=False)), start=Fraction(0))
            for row in self.inverse
        )
        found = Polynomial(coefficients)
        for row, value in zip(self.rows, values, strict=True):
            try:
                right = found.at(row) == value
            except NotPolynomial:
                right = False
            if not right:
                raise NotPolynomial(f"{where}: {', '.join(map(str, values))}")
        return found

    def _quotient(self, values: Sequence[float], where: str) -> object:
        """Fit floats: means divide by a size, variances by a size less one."""
        failed = NotPolynomial(f"{where}: {', '.join(map(str, values))}")
        if not all(map(math.isfinite, values)):
            raise failed
        parts = [Fraction(v).limit_denominator(_MAX_DIVISOR) for v in values]
        if any(p.numerator / p.denominator != v for p, v in zip(parts, values, strict=True)):
            raise failed
        common = math.lcm(*(p.denominator for p in parts))
        for over in (
            [p.denominator for p in parts],
            [common] * len(parts),
        ):
            try:
                top = self._number([int(p * q) for p, q in zip(parts, over, strict=True)], where)
                divisor = self._number(over, where)
            except NotPolynomial:
                continue
            if isinstance(top, int):
                top = Polynomial((Fraction(top), *(Fraction(0),) * (self.count - 1)))
            return Polynomial(
                [Fraction(c, top.denominator) for c in top.coefficients], "float", divisor
            )
        raise failed


def _is_users_structure(x: object) -> bool:
    """Whether a value is a dict or a record of the user's, not one that a graph is made of."""
    return isinstance(x, dict) or (is_record(x) and not type(x).__module__.startswith(_PACKAGE))


Maker = Callable[[list[int]], Any]


def _maker(x: object) -> Maker | None:
    """Return what makes a form's value where the monomials of the sizes are known; None where it is
    the form itself for all sizes.
    """
    match x:
        case Polynomial():
            return x.at
        case RandomOffset() if isinstance(x.relative, Polynomial):
            relative = x.relative

            def offset(row: list[int]) -> Any:
                """Return the host number at these sizes."""
                made = copy.copy(x)
                made.relative = relative.at(row)
                return made

            return offset
        case GraphNode() | Graph() | Output() | Returned():
            names = [f.name for f in dataclasses.fields(x)]
            fields = {
                n: m
                for n in names
                if n not in ("identity", "storage", "origin", "line")
                and (m := _maker(getattr(x, n))) is not None
            }
            if not fields:
                return None
            return lambda row: dataclasses.replace(x, **{n: m(row) for n, m in fields.items()})
        case _ if isinstance(x, dict) or _is_users_structure(x):
            parts = _makers(parts_of(x) or ())
            if parts is None:
                return None

            def filled(row: list[int]) -> object:
                """Return the container with its parts at these sizes."""
                following = iter(parts(row))
                return rebuilt(x, lambda _: next(following))

            return filled
        case tuple() | list():
            kind: Any = type(x)
            made = _makers(x)
            if made is None or kind is list:
                return made
            if hasattr(kind, "_fields"):
                return lambda row: kind(*made(row))
            return lambda row: kind(made(row))
    return None


def _makers(items: Iterable[object]) -> Callable[[list[int]], list[object]] | None:
    whole = list(items)
    varied = [(i, m) for i, x in enumerate(whole) if (m := _maker(x)) is not None]
    if not varied:
        return None

    def make(row: list[int]) -> list[Any]:
        """Return all values at these sizes."""
        out = whole.copy()
        for i, m in varied:
            out[i] = m(row)
        return out

    return make


class Template:
    """A capture for every choice of sizes."""

    def __init__(self, points: list[Point], captures: list[Capture], compiler: Compiler) -> None:
        """Compare captures at `points`. Raises NotPolynomial."""
        self.base = captures[0]
        self.compiler = compiler
        self.others = _expected(points[0])
        self.made: OrderedDict[Point, Capture] = OrderedDict()
        self.points, self.parts = points, [_varying(c) for c in captures]
        for other in captures[1:]:
            self._compare(other)
        # Points at which the form is known to hold, and not to.
        self.right, self.wrong = set(points), set[Point]()
        # Whether it has been refused beyond the largest.
        self.ended = False
        forms = self._forms(self.points, self.parts)
        self.makers = {
            name: _maker(form) or (lambda row, f=form: f) for name, form in forms.items()
        }

    def _compare(self, other: Capture) -> None:
        base = self.base
        same = len(other.sources) == len(base.sources) and all(
            _one(a, b) for a, b in zip(base.sources, other.sources, strict=True)
        )
        if not same or other.donated != base.donated or other.dynamic != base.dynamic:
            raise NotPolynomial("what it reads")
        if (other.backward is None) != (base.backward is None):
            raise NotPolynomial("its gradient")

    @staticmethod
    def _forms(points: list[Point], parts: list[dict[str, object]]) -> dict[str, object]:
        fit = _Fit(points)
        return {name: fit([p[name] for p in parts], name) for name in parts[0]}

    def holds(self, point: Point, capture: Callable[[Point], Capture]) -> bool:
        """Whether the form gives what the function does at these sizes. `capture` captures it there,
        without values; sizes between many that were right are not looked at.
        """
        if point in self.right:
            return True
        if point in self.wrong:
            return False
        if len(self.right) >= len(self.points) + _MAX_CHECKS and self._is_between(point):
            return True
        if not self._is_right(point, capture):
            self.wrong.add(point)
            return False
        self.right.add(point)
        far = tuple([2 * n for n in point])
        if not self.ended and not self._is_between(far):
            if self._is_right(far, capture):
                self.right.add(far)
            else:
                self.ended = True
        return True

    def _is_right(self, point: Point, capture: Callable[[Point], Capture]) -> bool:
        try:
            other = capture(point)
            self._compare(other)
            self._forms([*self.points, point], [*self.parts, _varying(other)])
        except (NotPolynomial, NotReplayable, RuntimeError, ValueError, IndexError):
            # Whatever it is, the call itself will say so.
            return False
        return True

    def _is_between(self, point: Point) -> bool:
        """Whether there are smaller and larger sizes, in the same order, among the right ones."""
        alike = [p for p in self.right if _order(p) == _order(point)]
        return bool(alike) and all(
            min(p[i] for p in alike) <= n <= max(p[i] for p in alike) for i, n in enumerate(point)
        )

    def at(self, point: Point) -> Capture:
        """Return the capture for these sizes, made without running the function."""
        found = self.made.get(point)
        if found is None:
            if self.compiler is compile_varying:
                for other in self.others:
                    # At some sizes there may be more elements than a kernel can number.
                    with contextlib.suppress(OutOfMemoryError):
                        self.base.runtime.foresee(self.makers["operation"](_row(other)))
                self.others = []
            found = self.made[point] = self._make(point)
            if len(self.made) > _MAX_SIZES:
                self.made.popitem(last=False)
        else:
            self.made.move_to_end(point)
        return found

    def latest(self) -> Capture:
        """Return the capture of the sizes that were asked for last."""
        return self.made[next(reversed(self.made))]

    def _make(self, point: Point) -> Capture:
        row = _row(point)
        base = self.base
        made = {name: make(row) for name, make in self.makers.items()}
        graph = made["operation"]
        graph.verify()
        backward = base.backward
        if backward is not None:
            backward = copy.copy(backward)
            backward.forms, backward.shapes, backward.results, backward.graph = made["its gradient"]
            backward.executable = None
            backward.compiler = self.compiler
        return dataclasses.replace(
            base,
            graph=graph,
            executable=self.compiler(base.runtime, graph, graph),
            args=made["a number"],
            shapes=made["a result"],
            result=made["what it returns"],
            named=made["what it names"],
            effects=[(p, v) for (p, _), v in zip(base.effects, made["what it leaves behind"])],
            grads=[
                dataclasses.replace(g, after=g.after if a is _SAME else a)
                for g, a in zip(base.grads, made["a gradient"], strict=True)
            ],
            draws=[(g, n) for (g, _), n in zip(base.draws, made["random numbers"])],
            backward=backward,
        )


_SAME = "same"


def _varying(c: Capture) -> dict[str, object]:
    """Return what of a capture varies with the sizes, by the names that messages give."""
    return {
        "operation": c.graph,
        "a number": c.args,
        "a result": c.shapes,
        "what it returns": c.result,
        "what it names": c.named,
        "what it leaves behind": [v for _, v in c.effects],
        "a gradient": [_after(g.after) for g in c.grads],
        "random numbers": [n for _, n in c.draws],
        "its gradient": None if c.backward is None else _half(c.backward),
    }


def _order(point: Point) -> tuple[int, ...]:
    """Return which of each two sizes is the larger."""
    return tuple([(a > b) - (a < b) for a, b in itertools.combinations(point, 2)])


def _after(x: object) -> object:
    return x if isinstance(x, Returned) or x is None else _SAME


def _half(backward: Backward) -> object:
    return (
        [tuple(f) for f in backward.forms],
        [None if s is None else tuple(s) for s in backward.shapes],
        backward.results,
        backward.graph,
    )


def _one(a: Any, b: Any) -> bool:
    """Whether two captures read one thing: an argument, a storage, or equal constants."""
    if isinstance(a, int) or isinstance(b, int):
        return bool(a == b)
    if a is b:
        return True
    if not (is_constant(a) and is_constant(b)) or a.node.shape != b.node.shape:
        return False
    if a.node.buffer is None or b.node.buffer is None:
        return False
    backend = a.runtime.backend
    return bytes(backend.download(a.node.buffer)) == bytes(backend.download(b.node.buffer))
