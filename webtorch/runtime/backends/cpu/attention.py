"""Attention on NumPy, some rows of scores at a time: never more than a few MB of them. Imports NumPy
and floors 0-2.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from webtorch.ir.dtype import bool_
from webtorch.ir.kernel import Attention
from webtorch.lower.templates.attention_backward import split as split_backward
from webtorch.runtime.backends.cpu.contraction import narrow, widen
from webtorch.runtime.backends.cpu.memory import Array
from webtorch.runtime.backends.cpu.numpy_math import philox, view
from webtorch.runtime.backends.cpu.threads import get_num_threads, run_parallel, split

# Bytes of scores that are computed at once.
_SCORES = 4 << 20
_LOWEST = np.finfo(np.float32).min


class _Heads:
    """The operands of one call: for each batch and head of keys, blocks of rows of its queries."""

    def __init__(self, r: Attention, arrays: Sequence[Array], args: Sequence[Any]) -> None:
        self.r = r
        self.inner = r.heads // r.shared
        shapes = {
            "query": (r.batch, r.heads, r.length, r.size),
            "key": (r.batch, r.shared, r.source, r.size),
            "value": (r.batch, r.shared, r.source, r.width),
            "mask": (r.batch, r.heads, r.length, r.source),
            "grad": (r.batch, r.heads, r.length, r.width),
        }
        names = ["query", "key", "value"] + ["mask"] * r.mask
        names += ["grad"] * (r.part != "forward")
        self.operands = {
            name: view(array, r.offsets[i], shapes[name], r.strides[i])
            for i, (name, array) in enumerate(zip(names, arrays))
        }
        self.types = {name: r.buffers[i].dtype for i, name in enumerate(names)}
        self.rest = list(arrays[len(names) :])
        self.wide: Any = np.float64 if r.buffers[0].dtype.name == "float64" else np.float32
        self.scale = self.wide(args[0])
        self.args = args

    def part(self, name: str, b: int, h: int, rows: slice = slice(None)) -> Array:
        """Return some rows of one head, widened."""
        return widen(self.operands[name][b, h, rows], self.types[name])

    def each(self, work: Callable[[int, int, slice, int], None]) -> None:
        """Call `work` with (batch, head of queries, rows, how many keys they may see) for all blocks;
        those that share a head of keys come one after the other, others on several threads.
        """
        r = self.r
        rows = max(1, min(r.length, _SCORES // (4 * max(r.source, 1))))

        def part(begin: int, end: int) -> Callable[[], None]:
            """Return the task of some of the heads."""

            def run() -> None:
                """Work on blocks of rows, head by head."""
                with np.errstate(all="ignore"):
                    for number in range(begin * self.inner, end * self.inner):
                        for first in range(0, r.length, rows):
                            last = min(first + rows, r.length)
                            seen = min(last, r.source) if r.causal else r.source
                            work(*divmod(number, r.heads), slice(first, last), seen)

            return run

        parts = split(0, r.batch * r.shared, get_num_threads())
        run_parallel([part(begin, end) for begin, end in parts])

    def scores(self, b: int, h: int, rows: slice, seen: int, key: Array) -> Array:
        """Return scaled scores, -infinity where a query does not see a key."""
        s = self.part("query", b, h, rows) @ key.T
        s *= self.scale
        if self.r.mask:
            mask = self.operands["mask"][b, h, rows, :seen]
            if self.types["mask"] is bool_:
                s[~mask.astype(bool)] = -np.inf
            else:
                s += widen(mask, self.types["mask"])
        if self.r.causal:
            s[np.arange(seen) > np.arange(rows.start, rows.stop)[:, None]] = -np.inf
        return s

    def kept(self, b: int, h: int, rows: slice, seen: int) -> Array | None:
        """Return the factors of dropout, or None."""
        r = self.r
        if not r.dropout:
            return None
        line: Any = (b * r.heads + h) * r.length + np.arange(rows.start, rows.stop, dtype=np.uint64)
        number = line[:, None] * np.uint64(r.source) + np.arange(seen, dtype=np.uint64)
        p, seed0, seed1, low, high = self.args[1:]
        number = number + np.uint64(int(low) | int(high) << 32)
        bits: Any = philox(
            np.asarray(seed0, np.uint32),
            np.asarray(seed1, np.uint32),
            number.astype(np.uint32),
            (number >> np.uint64(32)).astype(np.uint32),
        )[0]
        uniform = (bits >> np.uint32(8)).astype(np.float32) * np.float32(2.0**-24)
        scale = 1.0 / (1.0 - float(p))
        return (uniform >= np.float32(p)).astype(self.wide) * self.wide(scale)


def attention(routine: Attention) -> Callable[..., None]:
    """Return a function of (arrays, arguments)."""
    return _forward(routine) if routine.part == "forward" else _backward(routine)


def _backward(r: Attention) -> Callable[..., None]:
    runs = [({"query": _query, "key": _key}[one.part](one), n) for one, n in split_backward(r)]

    def run(arrays: Sequence[Array], args: Sequence[object]) -> None:
        """Run the parts, each with its own arrays."""
        for part, numbers in runs:
            part([arrays[n] for n in numbers], args)

    return run


def _forward(r: Attention) -> Callable[..., None]:
    def run(arrays: Sequence[Array], args: Sequence[object]) -> None:
        """Compute the output and the rows' statistics."""
        heads = _Heads(r, arrays, args)
        results = dict(zip(r.results, heads.rest, strict=True))
        out = results[0].reshape(r.batch, r.heads, r.length, r.width) if 0 in results else None
        stats = results[1].reshape(r.batch, r.heads, r.length, 2) if 1 in results else None

        def work(b: int, h: int, rows: slice, seen: int) -> None:
            """Compute a block of rows of one head."""
            shared = h // heads.inner
            s = heads.scores(b, h, rows, seen, heads.part("key", b, shared, slice(seen)))
            top = np.maximum(s.max(axis=1, initial=-np.inf), _LOWEST)
            s -= top[:, None]
            weights = np.exp(s, out=s)
            total = weights.sum(axis=1)
            inverse = np.divide(1.0, total, out=np.zeros_like(total), where=total != 0)
            if stats is not None:
                stats[b, h, rows, 0], stats[b, h, rows, 1] = top, inverse
            if out is None:
                return
            kept = heads.kept(b, h, rows, seen)
            if kept is not None:
                weights *= kept
            product = weights @ heads.part("value", b, shared, slice(seen))
            product *= inverse[:, None]
            out[b, h, rows] = narrow(product, r.buffers[-len(r.results)].dtype)

        heads.each(work)

    return run


def _changed(
    heads: _Heads, b: int, h: int, rows: slice, seen: int, stats: Array, delta: Array
) -> tuple[Array, Array, Array]:
    """Return the weights after dropout, the cotangents of the scores and that of the result."""
    shared = h // heads.inner
    s = heads.scores(b, h, rows, seen, heads.part("key", b, shared, slice(seen)))
    s -= stats[b, h, rows, 0, None]
    weights = np.exp(s, out=s)
    weights *= stats[b, h, rows, 1, None]
    g = heads.part("grad", b, h, rows)
    change = g @ heads.part("value", b, shared, slice(seen)).T
    kept = heads.kept(b, h, rows, seen)
    used = weights if kept is None else weights * kept
    if kept is not None:
        change *= kept
    change -= delta[b, h, rows, None]
    change *= weights
    change *= heads.scale
    return used, change, g


def _query(r: Attention) -> Callable[..., None]:
    def run(arrays: Sequence[Array], args: Sequence[object]) -> None:
        """Compute the gradient of the queries."""
        heads = _Heads(r, arrays, args)
        stats = heads.rest[0].reshape(r.batch, r.heads, r.length, 2)
        delta = heads.rest[1].reshape(r.batch, r.heads, r.length)
        out = heads.rest[2].reshape(r.batch, r.heads, r.length, r.size)

        def work(b: int, h: int, rows: slice, seen: int) -> None:
            """Compute a block of rows of one head."""
            _, change, _ = _changed(heads, b, h, rows, seen, stats, delta)
            product = change @ heads.part("key", b, h // heads.inner, slice(seen))
            out[b, h, rows] = narrow(product, r.buffers[-1].dtype)

        heads.each(work)

    return run


def _key(r: Attention) -> Callable[..., None]:
    def run(arrays: Sequence[Array], args: Sequence[object]) -> None:
        """Compute the gradients of the keys and values; heads of queries that share a head are added."""
        heads = _Heads(r, arrays, args)
        stats = heads.rest[0].reshape(r.batch, r.heads, r.length, 2)
        delta = heads.rest[1].reshape(r.batch, r.heads, r.length)
        shape = (r.batch, r.shared, r.source)
        sums = [np.zeros((*shape, last), heads.wide) for last in (r.size, r.width)]

        def work(b: int, h: int, rows: slice, seen: int) -> None:
            """Add what a block of rows of one head gives."""
            used, change, g = _changed(heads, b, h, rows, seen, stats, delta)
            shared = h // heads.inner
            if 0 in r.results:
                sums[0][b, shared, :seen] += change.T @ heads.part("query", b, h, rows)
            if 1 in r.results:
                sums[1][b, shared, :seen] += used.T @ g

        heads.each(work)
        for result, array in zip(r.results, heads.rest[2:], strict=True):
            array[...] = narrow(sums[result].reshape(-1), r.buffers[-1].dtype)

    return run
