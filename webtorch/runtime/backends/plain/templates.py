"""Scans, sorting and attention in plain Python. Imports floor 0 and `arithmetic`."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from typing import Any

from webtorch.ir.dtype import DType, bool_, float64
from webtorch.ir.kernel import Attention, Scan, Sort
from webtorch.runtime.backends.plain.arithmetic import NAMESPACE, f32, philox

Call = Callable[..., None]
_Read = Callable[[Any], Any]


def _reader(dtype: DType) -> _Read:
    return NAMESPACE.get(f"from_{dtype.name}", lambda x: x)


def _writer(dtype: DType) -> _Read:
    if dtype.kind in ("int", "uint"):
        return NAMESPACE[f"w_{dtype.name}"]
    return NAMESPACE.get(f"to_{dtype.name}", lambda x: x)


def dot(x: Sequence[float], y: Sequence[float]) -> float:
    """Return the sum of products."""
    return sum(map(operator.mul, x, y))


def scan(r: Scan) -> Call:
    """Return the running sum, product, max or min of rows."""
    read, write = _reader(r.buffers[0].dtype), _writer(r.buffers[1].dtype)
    kind = "f" if r.buffers[0].dtype.kind == "float" else "i"
    ops = {"sum": operator.add, "prod": operator.mul}
    combine = ops.get(r.op) or NAMESPACE[f"{kind}_{r.op}"]

    def run(source: Any, target: Any, status: object) -> None:
        """Accumulate each row."""
        for o in range(r.outer):
            for i in range(r.inner):
                total = None
                for k in range(r.length):
                    at = (o * r.length + k) * r.inner + i
                    x = read(source[at])
                    total = x if total is None else combine(total, x)
                    target[at] = write(total)

    return run


def sort(r: Sort) -> Call:
    """Return where the elements of sorted rows were."""
    read = _reader(r.buffers[0].dtype)

    def run(source: Any, target: Any, status: object) -> None:
        """Write the places of the ranks wanted."""
        for row in range(r.rows):
            values = [read(source[row * r.length + k]) for k in range(r.length)]
            # NaN is the largest number; a stable sort keeps ties in order, also when it is reversed.
            keys = [(x != x, 0 if x != x else x) for x in values]
            order = sorted(range(r.length), key=keys.__getitem__, reverse=r.descending)
            for k in range(r.count):
                target[row * r.count + k] = order[r.first + k]

    return run


def attention(r: Attention) -> Call:
    """Return attention, or a part of its gradients, row of scores by row of scores."""
    compute = _forward if r.part == "forward" else _gradients

    def run(*given: object) -> None:
        """Compute the results that the routine asks for."""
        compute(_Attention(r, given))

    return run


class _Attention:
    """Buffers and arguments of one call, and what they mean: elements, scores, dropout.

    A line is a query of a head: (batch, head, position).
    """

    def __init__(self, r: Attention, given: Sequence[Any]) -> None:
        self.r = r
        self.names = ["query", "key", "value"] + ["mask"] * r.mask
        self.names += ["grad"] * (r.part != "forward")
        self.types = {name: r.buffers[i].dtype for i, name in enumerate(self.names)}
        self.reads = {name: _reader(dtype) for name, dtype in self.types.items()}
        self.views = dict(zip(self.names, given))
        # What follows the operands: statistics and sums of the forward pass, then results.
        self.rest = given[len(self.names) : len(r.buffers)]
        self.scale, *self.dropout = given[len(r.buffers) : -1]
        self.group = r.heads // r.shared
        self.lines = [
            (b, h, n) for b in range(r.batch) for h in range(r.heads) for n in range(r.length)
        ]

    def put(self, place: int, target: Any, at: int, x: float) -> None:
        """Store a number, rounded as float32 results are, in the routine's buffer number `place`."""
        near = x if self.r.buffers[0].dtype is float64 else f32(x)
        target[at] = _writer(self.r.buffers[place].dtype)(near)

    def element(self, name: str, *where: int) -> Any:
        """Return an element of an operand."""
        i = self.names.index(name)
        at = self.r.offsets[i] + sum(map(operator.mul, where, self.r.strides[i]))
        return self.reads[name](self.views[name][at])

    def row(self, name: str, b: int, h: int, n: int) -> list[float]:
        """Return a vector of an operand; of keys and values head `h` reads those that it shares."""
        shared = name in ("key", "value")
        size = self.r.size if name in ("query", "key") else self.r.width
        return [self.element(name, b, h // self.group if shared else h, n, d) for d in range(size)]

    def seen(self, b: int, h: int, n: int) -> list[int]:
        """Return the columns that a row may see."""
        r = self.r
        last = min(n + 1, r.source) if r.causal else r.source
        if r.mask and self.types["mask"] is bool_:
            return [j for j in range(last) if self.element("mask", b, h, n, j)]
        return list(range(last))

    def scores(self, b: int, h: int, n: int, keys: Sequence[int]) -> list[float]:
        """Return a row's scores of these columns, with the mask added."""
        q = self.row("query", b, h, n)
        out = []
        for j in keys:
            s = self.scale * dot(q, self.row("key", b, h, j))
            if self.r.mask and self.types["mask"] is not bool_:
                s += self.element("mask", b, h, n, j)
            out.append(s)
        return out

    def kept(self, b: int, h: int, n: int, j: int) -> float:
        """Return the factor of dropout."""
        r = self.r
        if not r.dropout:
            return 1.0
        p, seed0, seed1, low, high = self.dropout
        number = ((b * r.heads + h) * r.length + n) * r.source + j + (low | high << 32)
        # The bits of a uniform number, as sampling has them.
        u = (philox(seed0, seed1, number & 0xFFFFFFFF, number >> 32)[0] >> 8) * 2.0**-24
        return 1 / (1 - p) if u >= p else 0.0


def _forward(x: _Attention) -> None:
    """Compute the result, and the largest score and the inverse sum of weights of each line."""
    r = x.r
    results = dict(zip(r.results, x.rest))
    for at, (b, h, n) in enumerate(x.lines):
        keys = x.seen(b, h, n)
        s = x.scores(b, h, n, keys)
        top = max(s, default=-math.inf)
        base = top if math.isfinite(top) else 0.0
        weights = [math.exp(score - base) for score in s]
        total = sum(weights)
        inverse = 1 / total if total else 0.0
        if 0 in results:
            out = [0.0] * r.width
            for j, weight in zip(keys, weights):
                weight *= inverse * x.kept(b, h, n, j)
                out = [o + weight * y for o, y in zip(out, x.row("value", b, h, j))]
            place = len(x.names) + r.results.index(0)
            for d, y in enumerate(out):
                x.put(place, results[0], at * r.width + d, y)
        if 1 in results:
            place = len(x.names) + r.results.index(1)
            x.put(place, results[1], 2 * at, base)
            x.put(place, results[1], 2 * at + 1, inverse)


def _gradients(x: _Attention) -> None:
    """Compute the gradient of queries, or those of keys and values."""
    r = x.r
    statistics, delta, *targets = x.rest
    of_queries = r.part == "query"
    count = len(x.lines) if of_queries else r.batch * r.shared * r.source
    sums = [[0.0] * (count * size) for size in ((r.size,) if of_queries else (r.size, r.width))]

    def add(number: int, line: int, factor: float, row: Sequence[float]) -> None:
        """Add a multiple of a vector to a line of a gradient."""
        for d, y in enumerate(row, line * len(row)):
            sums[number][d] += factor * y

    for at, (b, h, n) in enumerate(x.lines):
        keys = x.seen(b, h, n)
        g, q = x.row("grad", b, h, n), x.row("query", b, h, n)
        for j, score in zip(keys, x.scores(b, h, n, keys)):
            factor = x.kept(b, h, n, j)
            weight = math.exp(score - statistics[2 * at]) * statistics[2 * at + 1]
            ds = weight * (factor * dot(g, x.row("value", b, h, j)) - delta[at]) * x.scale
            if of_queries:
                add(0, at, ds, x.row("key", b, h, j))
            else:
                line = (b * r.shared + h // x.group) * r.source + j
                add(0, line, ds, q)
                add(1, line, weight * factor, g)
    for number, target in zip(r.results, targets):
        place = len(x.names) + 2 + r.results.index(number)
        for i, y in enumerate(sums[number]):
            x.put(place, target, i, y)
