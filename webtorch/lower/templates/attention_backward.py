"""The gradients of attention: weights first, then three products. Floor 2; imports floor 0, the
renderer, attention's kernels and the products.

One kernel computes the weights W of a part of the heads again, and the gradient D of their scores, and
writes both to scratch memory (`attention_tiles.py`, `attention_units.py`); then query's cotangent is
D key, key's D^T query, and value's W^T cotangent. That is five products, where kernels without scratch
memory take seven, and the three are the fastest that there are (`gemm.py`, `matrix_units.py`). With
`causal` they leave out what no query sees: half of all. Where scratch memory for one head exceeds
`_MOST_SCRATCH`, scores are computed again in each kernel (`attention_again.py`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import lcm
from typing import Literal

from webtorch.ir import expr as ex
from webtorch.ir.dtype import DType, float16, float32
from webtorch.ir.expr import Expr
from webtorch.ir.kernel import Attention, BufferSlot
from webtorch.ir.limits import Limits
from webtorch.lower.templates import attention_again, attention_tiles, attention_units, matrix_units
from webtorch.lower.templates.attention_tiles import Part
from webtorch.lower.templates.gemm import product_passes, ranked
from webtorch.lower.templates.product import BATCH, COLUMN, PARTS, ROW, K, Product, linear
from webtorch.lower.templates.tuning import MatrixTile, Tile
from webtorch.lower.wgsl_shader import Engine, WgslPass, on_scratch

# Bytes of weights and gradients of scores that are in memory at once.
_MOST_SCRATCH = 1 << 30
# Parts that heads are split into, for scratch memory, rather than computing scores again.
_MOST_PARTS = 16


def parts(r: Attention, limits: Limits) -> list[Part] | None:
    """Return what is computed together, or None where weights take too much memory."""
    most = min(_MOST_SCRATCH, limits.max_binding_bytes)
    row = -(-r.source // 8) * 8
    one = 2 * r.heads // r.shared * r.length * row * scratch_type(r, limits).itemsize
    together = most // one
    if not together or attention_tiles.choose_weights(r, limits) is None:
        return None
    if together >= r.shared:
        step = -(-r.batch // -(-r.batch // (together // r.shared)))
        found = [Part(b, min(step, r.batch - b), 0, r.shared, row) for b in range(0, r.batch, step)]
    else:
        found = [
            Part(b, 1, h, min(together, r.shared - h), row)
            for b in range(r.batch)
            for h in range(0, r.shared, together)
        ]
    return found if len(found) <= _MOST_PARTS else None


def scratch_type(r: Attention, limits: Limits) -> DType:
    """Return the type that weights are stored in."""
    return float16 if r.buffers[0].dtype is float16 and limits.has_f16 else float32


def render(r: Attention, limits: Limits, engine: Engine) -> list[WgslPass]:
    """Return the dispatches of the gradients."""
    found = parts(r, limits)
    if found is None:
        return list(_again(r, limits))
    return [p for part in found for p in _stored(r, limits, engine, part)]


def split(r: Attention) -> Iterator[tuple[Attention, tuple[int, ...]]]:
    """Return routines that compute the gradients each by itself, with the numbers of their buffers."""
    reads = len(r.buffers) - len(r.results)
    kinds: tuple[tuple[Literal["query", "key"], tuple[int, ...]], ...]
    kinds = (("query", (0,)), ("key", (1, 2)))
    for name, results in kinds:
        places = [i for i, n in enumerate(r.results) if n in results]
        if places:
            numbers = (*range(reads), *(reads + i for i in places))
            wanted = tuple(r.results[i] - results[0] for i in places)
            buffers = tuple(r.buffers[n] for n in numbers)
            yield replace(r, part=name, results=wanted, buffers=buffers), numbers


def _again(r: Attention, limits: Limits) -> Iterator[WgslPass]:
    for one, numbers in split(r):
        tile = attention_again.choose(one, limits)
        assert tile is not None, "what records an attention asks whether a tile fits"
        for p in attention_again.passes(one, limits, tile):
            yield replace(p, slots=tuple(numbers[s] for s in p.slots))


def _stored(r: Attention, limits: Limits, engine: Engine, part: Part) -> Iterator[WgslPass]:
    reads = len(r.buffers) - len(r.results)
    dtype = scratch_type(r, limits)
    inner = r.heads // r.shared
    scratch = BufferSlot(dtype, "read", 2 * part.elements(r))
    products = [
        _render(_product(r, part, result, scratch), limits, engine, _MATRIX_TILES[result])
        for result in r.results
    ]
    # What a tile of a product reads beyond the diagonal must be 0; everywhere, where heads of query
    # that share a head of key are one after the other.
    block = lcm(*(side for _, side in products))
    if inner > 1 and max(r.results):
        block = 1 << 30
    part = replace(part, block=block)
    nbytes = scratch.elements * dtype.itemsize
    weights = replace(
        r,
        part="weights",
        results=(0,),
        buffers=(*r.buffers[:reads], replace(scratch, access="write")),
    )
    yield on_scratch(
        attention_units.weights(weights, limits, engine, part)
        or attention_tiles.weights(weights, limits, part),
        {reads: 0},
        range(reads),
        (nbytes,),
    )
    for i, (one, _) in enumerate(products):
        operand = (1, 0, 3 + r.mask)[r.results[i]]
        yield on_scratch(one, {1: 0}, (operand, -1, reads + i), (nbytes,))


def _product(r: Attention, part: Part, result: int, scratch: BufferSlot) -> Product:
    """Return the product that gives a result from the weights (0: of query, 1: of key, 2: of value)."""
    inner = r.heads // r.shared
    size = r.width if result == 2 else r.size
    number = (1, 0, 3 + r.mask)[result]
    strides, offset = r.strides[number], r.offsets[number]
    row = part.line
    first = 0 if result == 2 else scratch.elements // 2
    batches: tuple[int, ...]
    if result == 0:
        batches = (part.batches, part.heads, inner)
        m, k = r.length, r.source
        steps = [strides[0], strides[1], 0]
        start = offset + part.batch * strides[0] + part.head * strides[1]
        out = (part.batch * r.heads + part.head * inner) * m * size
    else:
        batches = (part.batches, part.heads)
        m, k = r.source, inner * r.length
        steps = [strides[0], strides[1] * inner]
        start = offset + part.batch * strides[0] + part.head * inner * strides[1]
        out = (part.batch * r.shared + part.head) * m * size
    batch = part.batches * part.heads * (inner if result == 0 else 1)
    v: list[Expr] = [ex.index(i, s) for i, s in enumerate((batch, m, size, k, 1, *batches))]
    if result == 0:
        left = linear([v[BATCH], v[ROW], v[K]], [m * row, row, 1], first)
    else:
        left = linear([v[BATCH], v[K], v[ROW]], [k * row, row, 1], first)
    right = linear([*v[PARTS:], v[COLUMN]], [*steps, strides[3]], start)
    if result == 0 or inner == 1 or strides[1] == r.length * strides[2]:
        right = right + v[K] * strides[2]
    else:
        right = right + ex.floordiv(v[K], r.length) * strides[1]
        right = right + ex.mod(v[K], r.length) * strides[2]
    place = linear([v[BATCH], v[ROW], v[COLUMN]], [m * size, size, 1], out)
    slots = (
        r.buffers[number],
        scratch,
        r.buffers[len(r.buffers) - len(r.results) + r.results.index(result)],
    )
    return Product(
        f"{r.name}_{('query', 'key', 'value')[result]}",
        batch,
        m,
        size,
        k,
        ex.load(1, scratch.dtype, left),
        ex.load(0, slots[0].dtype, right),
        place,
        slots,
        needs="all" if not r.causal or (result and inner > 1) else "from" if result else "before",
        parts=batches,
    )


# For heads of at most 64, on an H200: 64 rows start later on the diagonal than more, and a product has
# few columns to share what it reads among.
_TILE = Tile(64, 64, 16, 8, 4)
_MATRIX_TILES = (MatrixTile(2, 2, 2, 2, 64), MatrixTile(2, 2, 4, 2, 32), MatrixTile(2, 2, 4, 2, 32))


def _render(p: Product, limits: Limits, engine: Engine, own: MatrixTile) -> tuple[WgslPass, int]:
    """Return the dispatch of a product, and the side of the squares on the diagonal that it reads;
    `own` is its tile on matrix units, if it fits."""
    small = p.n <= _TILE.columns and p.m >= _TILE.rows
    found = matrix_units.choose(p, limits, engine)
    if found is not None:
        matrix = found[0]
        if small and p.m >= own.rows and own.shared_bytes <= limits.workgroup_memory_bytes:
            matrix = own
        return matrix_units.matrix_passes(p, limits, matrix, 1)[0], lcm(matrix.rows, matrix.depth)
    if not limits.is_gpu:
        return product_passes(p, limits, None, 1)[0], 4
    tile = next((t for _, t, n in ranked(p, limits) if n == 1), None)
    if tile is not None and small:
        tile = _TILE
    return product_passes(p, limits, tile, 1)[0], lcm(tile.rows, tile.depth) if tile else 4
