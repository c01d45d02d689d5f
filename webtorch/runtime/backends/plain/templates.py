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
    names = ["query", "key", "value"] + ["mask"] * r.mask
    names += ["grad"] * (r.part != "forward")
    types = {name: r.buffers[i].dtype for i, name in enumerate(names)}
    reads = {name: _reader(dtype) for name, dtype in types.items()}
    near = (lambda x: x) if r.buffers[0].dtype is float64 else f32
    group = r.heads // r.shared

    def run(*given: Any) -> None:
        """Compute the results that the routine asks for."""
        views = dict(zip(names, given))
        rest = list(given[len(names) : len(r.buffers)])
        args = given[len(r.buffers) : -1]
        scale = args[0]

        def element(name: str, *where: int) -> Any:
            """Return an element of an operand."""
            i = names.index(name)
            at = r.offsets[i] + sum(map(operator.mul, where, r.strides[i]))
            return reads[name](views[name][at])

        def row(name: str, b: int, h: int, n: int, size: int) -> list[float]:
            """Return a vector of an operand."""
            return [element(name, b, h, n, d) for d in range(size)]

        def seen(b: int, h: int, n: int) -> list[int]:
            """Return the columns that a row may see."""
            last = min(n + 1, r.source) if r.causal else r.source
            if r.mask and types["mask"] is bool_:
                return [j for j in range(last) if element("mask", b, h, n, j)]
            return list(range(last))

        def scores(b: int, h: int, n: int, keys: Sequence[int]) -> list[float]:
            """Return a row's scores of these columns, with the mask added."""
            q = row("query", b, h, n, r.size)
            out = []
            for j in keys:
                s = scale * dot(q, row("key", b, h // group, j, r.size))
                if r.mask and types["mask"] is not bool_:
                    s += element("mask", b, h, n, j)
                out.append(s)
            return out

        def kept(b: int, h: int, n: int, j: int) -> float:
            """Return the factor of dropout."""
            if not r.dropout:
                return 1.0
            p, seed0, seed1, low, high = args[1:]
            number = ((b * r.heads + h) * r.length + n) * r.source + j + (low | high << 32)
            # The bits of a uniform number, as sampling has them.
            u = (philox(seed0, seed1, number & 0xFFFFFFFF, number >> 32)[0] >> 8) * 2.0**-24
            return 1 / (1 - p) if u >= p else 0.0

        lines = [(b, h, n) for b in range(r.batch) for h in range(r.heads) for n in range(r.length)]
        if r.part == "forward":
            results = dict(zip(r.results, rest))
            for at, (b, h, n) in enumerate(lines):
                keys = seen(b, h, n)
                s = scores(b, h, n, keys)
                top = max(s, default=-math.inf)
                base = top if math.isfinite(top) else 0.0
                e = [math.exp(x - base) for x in s]
                total = sum(e)
                inverse = 1 / total if total else 0.0
                if 0 in results:
                    out = [0.0] * r.width
                    for j, x in zip(keys, e):
                        weight = x * inverse * kept(b, h, n, j)
                        v = row("value", b, h // group, j, r.width)
                        out = [o + weight * y for o, y in zip(out, v)]
                    write = _writer(r.buffers[len(names) + list(results).index(0)].dtype)
                    for d in range(r.width):
                        results[0][at * r.width + d] = write(near(out[d]))
                if 1 in results:
                    results[1][2 * at], results[1][2 * at + 1] = near(base), near(inverse)
            return
        statistics, delta = rest[:2]
        targets = rest[2:]
        sizes = {"query": (r.size,), "key": (r.size, r.width)}[r.part]
        count = len(lines) if r.part == "query" else r.batch * r.shared * r.source
        sums = {i: [0.0] * (count * size) for i, size in enumerate(sizes)}
        for at, (b, h, n) in enumerate(lines):
            keys = seen(b, h, n)
            g = row("grad", b, h, n, r.width)
            q = row("query", b, h, n, r.size)
            for j, score in zip(keys, scores(b, h, n, keys)):
                factor = kept(b, h, n, j)
                weight = math.exp(score - statistics[2 * at]) * statistics[2 * at + 1]
                v = row("value", b, h // group, j, r.width)
                ds = weight * (factor * dot(g, v) - delta[at]) * scale
                if r.part == "query":
                    k = row("key", b, h // group, j, r.size)
                    for d in range(r.size):
                        sums[0][at * r.size + d] += ds * k[d]
                    continue
                line = (b * r.shared + h // group) * r.source + j
                for d in range(r.size):
                    sums[0][line * r.size + d] += ds * q[d]
                for d in range(r.width):
                    sums[1][line * r.width + d] += weight * factor * g[d]
        for number, target in zip(r.results, targets):
            write = _writer(r.buffers[len(names) + 2 + r.results.index(number)].dtype)
            for i, x in enumerate(sums[number]):
                target[i] = write(near(x))

    return run
