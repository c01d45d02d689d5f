"""Sorts, attention and convolutions as loops and products, where NumPy is not there to do them. Imports
floors 0-2.

The texts are those of `lower/pysource.py`; each does the units begin..end-1 of a routine.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from webtorch.ir import expr as ex
from webtorch.ir.dtype import bool_, float32, int32
from webtorch.ir.kernel import (
    Attention,
    BufferSlot,
    Convolution,
    Kernel,
    Matmul,
    Reduce,
    Sort,
    Store,
)
from webtorch.lower.templates.generic import guarded, meeting, met

# Digits of 8 bits, from the last one, each pass stable (Knuth, The Art of Computer Programming 3,
# section 5.2.5). Two passes bring keys and places back to where they were.
_SORT = """
def sort(begin, end, b0: {kind}, b1: {out}, b2: {key}, b3: {key}, b4: int32, b5: int32,
         length: int, first: int, count: int):
    counts = local(int32, 256)
    for row in range(begin, end):
        base = row * length
        for i in range(length):
            x = {load}
            b2[base + i] = {bits} ^ {key}({turned})
            b4[base + i] = int32(i)
        for half in range({halves}):
{passes}
        for i in range(count):
            b1[row * count + i] = {out}(b4[base + first + i])
"""
_PASS = """
            shift = {key}(half) * {key}(16) + {key}({more})
            for d in range(256):
                counts[d] = int32(0)
            for i in range(length):
                d = int(shr({keys}[base + i], shift) & {key}(255))
                counts[d] = counts[d] + int32(1)
            total = int32(0)
            for d in range(256):
                size = counts[d]
                counts[d] = total
                total = total + size
            for i in range(length):
                key = {keys}[base + i]
                d = int(shr(key, shift) & {key}(255))
                to = base + int(counts[d])
                counts[d] = counts[d] + int32(1)
                {to_keys}[to] = key
                {to_places}[to] = {places}[base + i]
"""


def sort(r: Sort) -> str:
    """Return the loops of a sort, a unit of which is a row.

    After input and output come room for the keys and the places, each twice.
    """
    dtype, out = (b.dtype for b in r.buffers[:2])
    wide = dtype.itemsize == 8
    key, signed, width = ("uint64", "int64", 64) if wide else ("uint32", "int32", 32)
    largest, sign = (1 << width) - 1, 1 << (width - 1)
    load = "b0[base + i]"
    if dtype.kind == "float":
        if dtype is not float32:
            load = f"float32({load})"
        # Of a negative number all bits are turned over, of others the sign; -0 is 0, NaN the largest.
        bits = (
            f"where(isnan(x), {key}({largest}), where(x == float32(0.0), {key}({sign}), "
            f"where(bitcast(x, {key}) > {key}({largest >> 1}), invert(bitcast(x, {key})), "
            f"bitcast(x, {key}) | {key}({sign}))))"
        )
    elif dtype.name == key:
        bits = "x"
    else:
        load = load if dtype.name == signed else f"{signed}({load})"
        bits = f"bitcast(x, {key}) ^ {key}({sign})"
    forth = {"keys": "b2", "places": "b4", "to_keys": "b3", "to_places": "b5", "more": 0}
    back = {"keys": "b3", "places": "b5", "to_keys": "b2", "to_places": "b4", "more": 8}
    passes = "".join(_PASS.format(key=key, **words).rstrip() for words in (forth, back))
    return _SORT.format(
        kind=dtype.name,
        out=out.name,
        key=key,
        load=load,
        bits=bits,
        turned=largest if r.descending else 0,
        halves=width // 16,
        passes=passes.lstrip("\n"),
    ).strip()


# -- attention ---------------------------
# Keys that are seen at once: their scores stay in the first-level cache.
_BLOCK = 64
_FORWARD = """
def attention({parameters}):
    scores = local(float32, {block})
    total = local(float32, {width})
    for unit in range(begin, end):
{place}
        for d in range({width}):
            total[d] = float32(0.0)
        top = float32({lowest})
        weight = float32(0.0)
        for first in range(0, seen, {block}):
            turns = min({block}, seen - first)
            best = top
            for i in range(turns):
                j = first + i
{score}
                scores[i] = x
                best = maximum(best, x)
            factor = exp(top - best)
            top = best
            weight = weight * factor
            for d in range({width}):
                total[d] = total[d] * factor
            for i in range(turns):
                j = first + i
                p = exp(scores[i] - top)
                weight = weight + p
{kept}
                p = p * kept
                for d in range({width}):
                    total[d] = total[d] + p * {v_at_j}
        inverse = where(weight == float32(0.0), float32(0.0), float32(1.0) / weight)
{results}
"""
_QUERY = """
def attention({parameters}):
    total = local(float32, {size})
    for unit in range(begin, end):
{place}
        for d in range({size}):
            total[d] = float32(0.0)
{statistics}
        for j in range(seen):
{score}
{change}
            for d in range({size}):
                total[d] = total[d] + change * {k_at_j}
        for d in range({size}):
            {result}[unit * {size} + d] = {stored}
"""
_KEY = """
def attention({parameters}):
    for_key = local(float32, {size})
    for_value = local(float32, {width})
    for unit in range(begin, end):
        j = rem(unit, {source})
        rest = div(unit, {source})
        shared = rem(rest, {shared})
        b = div(rest, {shared})
        for d in range({size}):
            for_key[d] = float32(0.0)
        for d in range({width}):
            for_value[d] = float32(0.0)
        for head in range({inner}):
            h = shared * {inner} + head
            for t in range({first}, {length}):
                row = (b * {heads} + h) * {length} + t
{statistics}
{score}
{change}
                for d in range({size}):
                    for_key[d] = for_key[d] + change * {q_at_t}
                for d in range({width}):
                    for_value[d] = for_value[d] + used * {g_at_t}
{results}
"""


class _Attention:
    """The words of an attention's loops."""

    def __init__(self, r: Attention) -> None:
        self.r = r
        names = ["q", "k", "v"] + ["m"] * r.mask + ["g"] * (r.part != "forward")
        self.slots = {name: i for i, name in enumerate(names)}
        # Statistics and delta come before the results of the gradients.
        self.rest = len(names) + (2 if r.part != "forward" else 0)

    def load(self, name: str, b: str, h: str, position: str, element: str) -> str:
        """Return an element of an operand, as float32."""
        slot = self.slots[name]
        dtype = self.r.buffers[slot].dtype
        strides, offset = self.r.strides[slot], self.r.offsets[slot]
        terms = [
            i if s == 1 else f"{i} * {s}"
            for i, s in zip((b, h, position, element), strides, strict=True)
            if s
        ]
        text = f"b{slot}[{' + '.join([*terms, str(offset)] if offset or not terms else terms)}]"
        return text if dtype in (float32, bool_) else f"float32({text})"

    def stored(self, slot: int, value: str) -> str:
        """Return a float32 as an element of a result."""
        dtype = self.r.buffers[slot].dtype
        return value if dtype is float32 else f"{dtype.name}({value})"

    def lines(self, text: str, depth: int) -> str:
        """Indent lines."""
        return "\n".join("    " * depth + line for line in text.strip("\n").splitlines())

    def score(self) -> str:
        """Lines that make x, the score of query t and key j."""
        r = self.r
        lines = [
            "dot = float32(0.0)",
            f"for d in range({r.size}):",
            f"    dot += {self.load('q', 'b', 'h', 't', 'd')} * {self.load('k', 'b', 'shared', 'j', 'd')}",
            "x = dot * a0",
        ]
        if r.mask:
            mask = self.load("m", "b", "h", "t", "j")
            boolean = r.buffers[self.slots["m"]].dtype is bool_
            lines.append(f"x = where({mask}, x, float32(-inf))" if boolean else f"x = x + {mask}")
        return "\n".join(lines)

    def kept(self, row: str) -> str:
        """Lines that make kept, the factor of dropout of a weight."""
        if not self.r.dropout:
            return "kept = float32(1.0)"
        return "\n".join(
            [
                f"number = int64({row}) * int64({self.r.source}) + int64(j)",
                "number = number + int64(a4) + shl(int64(a5), int64(32))",
                "lanes = philox(uint32(a2), uint32(a3), uint32(number), uint32(shr(number, int64(32))))",
                "uniform = float32(shr(lanes[0], uint32(8))) * float32(5.960464477539063e-08)",
                "kept = where(uniform >= float32(a1), float32(1.0) / (float32(1.0) - float32(a1)), float32(0.0))",
            ]
        )

    def change(self, row: str) -> str:
        """Lines that make used, the weight after dropout, and change, the cotangent of the score."""
        g = self.load("g", "b", "h", "t", "d")
        v = self.load("v", "b", "shared", "j", "d")
        return "\n".join(
            [
                "p = exp(x - top) * inverse",
                self.kept(row),
                "used = p * kept",
                "change = float32(0.0)",
                f"for d in range({self.r.width}):",
                f"    change += {g} * {v}",
                "change = (change * kept - delta) * p * a0",
            ]
        )

    def statistics(self, row: str) -> str:
        """Lines that read what the forward pass and delta know of a row."""
        first = self.rest - 2
        return "\n".join(
            [
                f"top = b{first}[({row}) * 2]",
                f"inverse = b{first}[({row}) * 2 + 1]",
                f"delta = b{first + 1}[{row}]",
            ]
        )

    def text(self) -> str:
        """Return the loops."""
        r = self.r
        parameters = [
            "begin",
            "end",
            *(f"b{i}: {b.dtype.name}" for i, b in enumerate(r.buffers)),
            *(f"a{i}: {d.name}" for i, d in enumerate(r.args)),
        ]
        inner = r.heads // r.shared
        seen = f"min(t + 1, {r.source})" if r.causal else str(r.source)
        place = "\n".join(
            [
                f"t = rem(unit, {r.length})",
                f"rest = div(unit, {r.length})",
                f"h = rem(rest, {r.heads})",
                f"b = div(rest, {r.heads})",
                f"shared = div(h, {inner})",
                f"seen = {seen}" if r.causal else f"seen = min({r.source}, {r.source})",
            ]
        )
        words: dict[str, object] = {
            "parameters": ", ".join(parameters),
            "size": r.size, "width": r.width, "length": r.length, "source": r.source,
            "heads": r.heads, "shared": r.shared, "inner": inner, "block": _BLOCK,
            "place": self.lines(place, 2),
            "lowest": "-3.4028234663852886e+38",
            "k_at_j": self.load("k", "b", "shared", "j", "d"),
            "v_at_j": self.load("v", "b", "shared", "j", "d"),
            "q_at_t": self.load("q", "b", "h", "t", "d"),
        }  # fmt: skip
        if r.part == "forward":
            lines = []
            for i, kind in enumerate(r.results):
                slot = self.rest + i
                if kind == 0:
                    lines.append(f"for d in range({r.width}):")
                    value = self.stored(slot, "total[d] * inverse")
                    lines.append(f"    b{slot}[unit * {r.width} + d] = {value}")
                else:
                    lines.append(f"b{slot}[unit * 2] = top")
                    lines.append(f"b{slot}[unit * 2 + 1] = inverse")
            words["results"] = self.lines("\n".join(lines), 2)
            words["score"] = self.lines(self.score(), 4)
            words["kept"] = self.lines(self.kept("unit"), 4)
            return _FORWARD.format(**words).strip()
        words["g_at_t"] = self.load("g", "b", "h", "t", "d")
        if r.part == "query":
            words["statistics"] = self.lines(self.statistics("unit"), 2)
            words["score"] = self.lines(self.score(), 3)
            words["change"] = self.lines(self.change("unit"), 3)
            words["result"] = f"b{self.rest}"
            words["stored"] = self.stored(self.rest, "total[d]")
            return _QUERY.format(**words).strip()
        lines = []
        for i, kind in enumerate(r.results):
            slot, last = self.rest + i, r.width if kind else r.size
            value = self.stored(slot, "for_value[d]" if kind else "for_key[d]")
            lines += [f"for d in range({last}):", f"    b{slot}[unit * {last} + d] = {value}"]
        words["first"] = "j" if r.causal else "0"
        words["statistics"] = self.lines(self.statistics("row"), 4)
        words["score"] = self.lines(self.score(), 4)
        words["change"] = self.lines(self.change("row"), 4)
        words["results"] = self.lines("\n".join(lines), 2)
        return _KEY.format(**words).strip()


def attention(r: Attention) -> str:
    """Return the loops of attention or of a part of its gradients; a unit is a row of queries, or of keys.

    Scores are computed again wherever they are needed (Dao et al., 2022). float32 and 16-bit floats.
    """
    return _Attention(r).text()


# -- convolutions of few images ---------------------------


def is_product(r: Convolution) -> bool:
    """Whether windows are single elements: then images are their own columns."""
    return r.weight_shape[2:] == (1, 1) and r.stride == (1, 1) and r.padding == (0, 0)


def unfolded_sizes(r: Convolution) -> list[int]:
    """Return how many float32 `unfolded` needs beside a convolution's own buffers: columns, then
    outputs' gradients in another order.
    """
    n = r.input_shape[0]
    o, cg, kh, kw = r.weight_shape
    spots = math.prod(r.output_shape[2:])
    columns = n * r.groups * cg * kh * kw * spots
    return [columns, n * o * spots] if r.kind == "weight" else [columns]


def unfolded(r: Convolution) -> Iterator[tuple[Kernel | Matmul, tuple[int, ...]]]:
    """Yield the steps of a float32 convolution by windows that are laid out as columns, each with the
    numbers of its buffers: the convolution's three, then those of `unfolded_sizes`.
    """
    n, g = r.input_shape[0], r.groups
    o, cg, kh, kw = r.weight_shape
    og, depth, spots = o // g, cg * kh * kw, math.prod(r.output_shape[2:])
    name = r.name
    if r.kind == "forward":
        # Columns of an image are (group, element of the window, spot).
        yield _columns(r, by_image=True), (0, 3)
        left, right = (0, og * depth, depth, 1), (g * depth * spots, depth * spots, spots, 1)
        yield _product(name, (n, g), og, spots, depth, left, right, n * o * spots), (1, 3, 2)
    elif r.kind == "input":
        left, right = (0, og * depth, 1, depth), (o * spots, og * spots, spots, 1)
        size = n * g * depth * spots
        yield _product(name, (n, g), depth, spots, og, left, right, size), (1, 0, 3)
        yield _folded(r), (3, 2)
    else:
        # Columns are (group, element of the window, image, spot): one sum over all images.
        yield _columns(r, by_image=False), (0, 3)
        yield _turned(r), (1, 4)
        long = n * spots
        product = _product(
            name, (g,), og, depth, long, (og * long, long, 1), (depth * long, 1, long), o * depth
        )
        yield product, (4, 3, 2)


def _product(
    name: str,
    batch: tuple[int, ...],
    m: int,
    n: int,
    k: int,
    left: tuple[int, ...],
    right: tuple[int, ...],
    elements: int,
) -> Matmul:
    read, write = BufferSlot(float32, "read", 0), BufferSlot(float32, "write", elements)
    return Matmul(name, batch, m, n, k, left, right, 0, 0, (read, read, write))


def _flat(indices: list[ex.Expr], sizes: tuple[int, ...]) -> ex.Expr:
    """Return the row-major number of a point."""
    out = ex.const(0, int32)
    for i, size in zip(indices, sizes, strict=True):
        out = out * size + i
    return out


def _window(
    r: Convolution, image: ex.Expr, channel: ex.Expr, tap: list[ex.Expr], spot: list[ex.Expr]
) -> ex.Expr:
    """Return the element of an image that a tap of the window at a spot meets; 0 outside."""
    _, c, h, w = r.input_shape
    y, x, valid = met(r, spot, tap)
    return guarded(0, float32, ((image * c + channel) * h + y) * w + x, valid)


def _columns(r: Convolution, by_image: bool) -> Kernel:
    """Return the kernel that lays windows out as columns."""
    n = r.input_shape[0]
    _, cg, kh, kw = r.weight_shape
    spots = r.output_shape[2:]
    outer = (n, r.groups, cg, kh, kw, *spots) if by_image else (r.groups, cg, kh, kw, n, *spots)
    i = [ex.index(d, size) for d, size in enumerate(outer)]
    image, group, c, *tap = i[:5] if by_image else (i[4], *i[:4])
    value = _window(r, image, group * cg + c, tap, i[5:])
    store = Store(1, _flat(i, outer), value)
    slots = (
        BufferSlot(float32, "read", math.prod(r.input_shape)),
        BufferSlot(float32, "write", math.prod(outer)),
    )
    return Kernel(f"{r.name}_columns", outer, (), slots, (), (), (store,))


def _turned(r: Convolution) -> Kernel:
    """Return the kernel that brings outputs' gradients into the order (channel, image, spot)."""
    n, o = r.output_shape[:2]
    spots = math.prod(r.output_shape[2:])
    outer = (o, n, spots)
    i = [ex.index(d, size) for d, size in enumerate(outer)]
    value = ex.load(0, float32, (i[1] * o + i[0]) * spots + i[2])
    size = math.prod(outer)
    slots = (BufferSlot(float32, "read", size), BufferSlot(float32, "write", size))
    return Kernel(f"{r.name}_turned", outer, (), slots, (), (), (Store(1, _flat(i, outer), value),))


def _folded(r: Convolution) -> Kernel:
    """Return the kernel that adds columns up to images."""
    n, c, h, w = r.input_shape
    kh, kw = r.weight_shape[2:]
    oh, ow = r.output_shape[2:]
    outer, inner = (n, c, h, w), (kh, kw)
    i = [ex.index(d, size) for d, size in enumerate((*outer, *inner))]
    y, x, valid = meeting(r, i[2:4], i[4:6])
    column = (((i[0] * c + i[1]) * kh + i[4]) * kw + i[5]) * oh * ow + y * ow + x
    reduce = Reduce("sum", guarded(0, float32, column, valid), float32)
    store = Store(1, _flat(i[:4], outer), ex.reduced(0, float32))
    slots = (
        BufferSlot(float32, "read", n * c * kh * kw * oh * ow),
        BufferSlot(float32, "write", math.prod(outer)),
    )
    return Kernel(f"{r.name}_folded", outer, inner, slots, (), (reduce,), (store,))
