"""Formats of packed numbers: how the blocks unpack. May import floors 0 and 1.

A block is a few bytes for 32 to 256 neighbouring elements of a row, most laid out as llama.cpp has it
(ggml-common.h and ggml-quants.c of https://github.com/ggml-org/ggml). A format is one entry: the sizes, the axes in
which its elements are counted (the last one runs along neighbouring bytes), and the value of an element, as an
expression of the block's bytes and of the place on each axis. All that is computed of a format is made of that
expression: an operation that unpacks, byte by byte or by words of 32 bits, and sums of what a word holds, each times
its element of another vector, which are the products of a few rows.
"""

from __future__ import annotations

import functools
import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from webtorch.ir import expr as ex
from webtorch.ir.dtype import float16, float32, int16, int32, uint32
from webtorch.ir.expr import Expr
from webtorch.ops.bits import half_from_bits
from webtorch.ops.record import Elementwise

WORD = 4
_EACH_BYTE = 0x01010101
# Places of bits in a byte.
_FIRST, _SEVENTH = ex.const(0, int32), ex.const(6, int32)
_WORD_BITS = (1 << 32) - 1
# The bits of a float32's fraction, and those of 2 ** 23, whose fraction counts by ones.
_FRACTION, _OF_WHOLE = 23, 0x4B000000
# Elements that one turn of a loop over words sums: those of neighbouring words share scales, whose bits take longer
# than an element's.
_LANES = 32
# More windows than any format has.
_MOST_OPERANDS = 256
# Elements that one turn of a loop over bytes sums, over its short last axis: what is left of the turns are sums of a
# processor's lanes.
_SUMMED = 64


@dataclass(frozen=True, slots=True, eq=False)
class Format:
    """A format of blocks. `axes` are sizes, of which the elements are the row-major places. A word of data holds
    parts of elements that differ by the places on the axes `shared`.
    """

    name: str
    elements: int
    nbytes: int
    axes: tuple[int, ...]
    shared: tuple[int, ...]
    value: Callable[..., Expr]

    @property
    def together(self) -> int:
        """How many blocks fill whole words."""
        return WORD // math.gcd(self.nbytes, WORD)

    def row_bytes(self, columns: int) -> int:
        """Return how many bytes a row has. Raises ValueError where blocks do not fill it."""
        if columns % self.elements:
            raise ValueError(
                f"{self.name} has blocks of {self.elements} elements, which do not fill rows of {columns}: the last "
                f"dimension must be a multiple of {self.elements}"
            )
        return columns // self.elements * self.nbytes


FORMATS: dict[str, Format] = {}


def _format(
    name: str, nbytes: int, axes: tuple[int, ...], shared: tuple[int, ...] = ()
) -> Callable[[Callable[..., Expr]], Callable[..., Expr]]:
    """Declare a format by the value of an element."""

    def declare(value: Callable[..., Expr]) -> Callable[..., Expr]:
        """Put the format into the table."""
        FORMATS[name] = Format(name, math.prod(axes), nbytes, axes, shared, value)
        return value

    return declare


# ---- the parts of a block, as expressions of int32


class Block:
    """The bytes of a block, as a formula reads them. `data` is given a place, a stride for each axis, and a count of
    bytes. `halves`: whether processors read them, which know float16. `fused`: whether they multiply and add in one,
    as in products, of which no bit is promised.
    """

    __slots__ = ("data", "fused", "halves")

    def __init__(
        self, data: Callable[[int, tuple[int, ...], int], Expr], halves: bool, fused: bool
    ) -> None:
        self.data, self.halves, self.fused = data, halves, fused

    def above(self, scale: Expr, q: Expr, low: Expr) -> Expr:
        """Return a number times a scale, and the least number added."""
        return ex.fma(scale, _number(q), low) if self.fused else scale * _number(q) + low

    def byte(self, at: int, *strides: int) -> Expr:
        """Return a byte, 0 to 255. `strides` say by how many bytes a step along each axis moves."""
        return self.data(at, strides, 1)

    def signed(self, at: int, *strides: int) -> Expr:
        """Return a byte, -128 to 127."""
        byte = self.data(at, strides, 1)
        found = _byte_of(byte, known=False)
        if found is None:
            return ex.shr(ex.shl(byte, 24), 24)
        word, place = found
        # All bytes of a word at once: with the sign turned over they count from 0 on.
        turned = ex.const(_EACH_BYTE * 0x80 - (1 << 32), int32)
        return (ex.shr(word ^ turned, place) & 255) - 128

    def half(self, at: int) -> Expr:
        """Return the value of a float16."""
        word = self.data(at, (), 2)
        if self.halves:
            return ex.cast(ex.bitcast(ex.cast(word, int16), float16), float32)
        return half_from_bits(ex.bitcast(word, uint32))

    def word(self, at: int) -> Expr:
        """Return four bytes, the lowest first."""
        return self.data(at, (), 4)

    def short(self, at: int) -> Expr:
        """Return two bytes."""
        return self.data(at, (), 2)


def _byte_of(x: Expr, known: bool = True) -> tuple[Expr, Expr] | None:
    """Return the word and the place in it, if `x` is a byte of a word; with `known`, at a place that is a number."""
    if x.op != "and" or x.args[1].value != 255 or x.args[0].op != "shr":
        return None
    word, place = x.args[0].args
    if known and place.op != "const":
        return None
    return (word, place) if _is_of_bytes(place) else None


def _is_of_bytes(place: Expr) -> bool:
    """Whether a count of bits is one of whole bytes."""
    if place.op == "const":
        return bool(place.value % 8 == 0)
    if place.op == "mul":
        return any(map(_is_of_bytes, place.args))
    return place.op == "add" and all(map(_is_of_bytes, place.args))


def _known(word: Expr) -> int:
    """Return the bits of a word that may be set."""
    if word.op == "and" and word.args[1].op == "const":
        return _known(word.args[0]) & word.args[1].value
    if word.op == "or":
        return _known(word.args[0]) | _known(word.args[1])
    if word.op == "shl" and word.args[1].op == "const":
        return _known(word.args[0]) << word.args[1].value & _WORD_BITS
    if word.op == "shr" and word.args[1].op == "const" and _known(word.args[0]) >> 31 == 0:
        return _known(word.args[0]) >> word.args[1].value
    if word.op == "where":
        return _known(word.args[1]) | _known(word.args[2])
    return _WORD_BITS


def _without_casts(root: Expr) -> Expr:
    """Return an expression in which small whole numbers become floats as `_placed` says."""

    def number(node: Expr, args: tuple[Expr, ...]) -> Expr | None:
        """Return what stands for a cast."""
        if node.op != "cast" or node.dtype is not float32 or args[0].dtype is not int32:
            return None
        x, less = args[0], 0
        if x.op == "sub" and x.args[1].op == "const":
            x, less = x.args[0], x.args[1].value
        if _known(x) >> _FRACTION:
            return None
        return ex.bitcast(x | _OF_WHOLE, float32) - float((1 << _FRACTION) + less)

    return ex.rewrite(root, number)


class _Placed(NamedTuple):
    """A number times 2 ** place, as float32."""

    number: Expr
    place: int


def _placed(x: Expr, less: int = 0) -> _Placed:
    """Return a whole number less another one as a float.

    Graphics cards make floats of whole numbers at a quarter of their speed or less. The bits of a byte of a word need
    no such step: among the last bits of 2 ** 23 they are added to it, and what is taken off again leaves them exactly,
    times the power of two where they stand. So a few masks and differences do for all bytes of a word.
    """
    if x.op == "sub" and x.args[1].op == "const":
        return _placed(x.args[0], less + x.args[1].value)
    if x.op == "add" and x.args[1].op == "const":
        return _placed(x.args[0], less - x.args[1].value)
    if x.op == "where":
        one, two = _placed(x.args[1], less), _placed(x.args[2], less)
        if one.place == two.place:
            return _Placed(ex.where(x.args[0], one.number, two.number), one.place)
    found = _byte_of(x)
    if found is None:
        return _Placed(_number(x) - float(less) if less else _number(x), 0)
    word, at = found[0], found[1].value
    bits = (_known(word) >> at & 255).bit_length()
    down = max(0, -(-(at + bits - _FRACTION) // 8) * 8)
    place = at - down
    mask = ex.const((1 << bits) - 1 << place, int32)
    whole = ex.bitcast(ex.shr(word, down) & mask | _OF_WHOLE, float32)
    return _Placed(whole - float((1 << _FRACTION) + less * (1 << place)), place)


def _cut(x: Expr, place: Expr, bits: int) -> Expr:
    """Return `bits` bits of a byte from a place on, among its eight. All bytes of a word are cut at once."""
    mask = (1 << bits) - 1
    found = _byte_of(x, known=False)
    if found is None:
        return ex.shr(x, place) & mask
    word, at = found
    return ex.shr(ex.shr(word, place) & mask * _EACH_BYTE, at) & 255


def _joined(low: Expr, high: Expr, place: int) -> Expr:
    """Return a number of the bits that two cuts gave, of which those of `high` begin at a place."""
    one, two = _byte_of(low, known=False), _byte_of(high, known=False)
    if one is None or two is None or one[1] is not two[1]:
        return low | ex.shl(high, place)
    return ex.shr(one[0] | ex.shl(two[0], place), one[1]) & 255


def _number(x: Expr) -> Expr:
    return ex.cast(x, float32)


def _first(axis: Expr, a: Expr, b: Expr) -> Expr:
    """Return `a` in the first place of an axis of two, else `b`. All bytes of a word are chosen at once."""
    one, two = _byte_of(a, known=False), _byte_of(b, known=False)
    if one is None or two is None or one[1] is not two[1]:
        return ex.where(ex.eq(axis, 0), a, b)
    return ex.shr(ex.where(ex.eq(axis, 0), one[0], two[0]), one[1]) & 255


def _looked_up(values: Sequence[int], index: Expr) -> Expr:
    """Return one of 16 numbers of 8 bits: four lie in a word."""
    words = []
    for at in range(0, 16, 4):
        bits = sum((v & 255) << (8 * i) for i, v in enumerate(values[at : at + 4]))
        words.append(ex.const(bits - ((bits >> 31) << 32), int32))
    high = ex.shr(index, 2)
    low = ex.where(ex.eq(high, 0), words[0], words[1])
    word = ex.where(high < 2, low, ex.where(ex.eq(high, 2), words[2], words[3]))
    # The byte goes to the top, and comes down with its sign.
    return ex.shr(ex.shl(word, (3 - (index & 3)) * 8), 24)


# ---- blocks of 32 elements


@_format("Q8_0", 34, (32,))
def _q8_0(b: Block, _c: Expr) -> Expr:
    return b.half(0) * _number(b.signed(2, 1))


@_format("Q4_0", 18, (2, 16), (0,))
def _q4_0(b: Block, h: Expr, _c: Expr) -> Expr:
    return b.half(0) * _number(_cut(b.byte(2, 0, 1), h * 4, 4) - 8)


@_format("Q4_1", 20, (2, 16), (0,))
def _q4_1(b: Block, h: Expr, _c: Expr) -> Expr:
    return b.above(b.half(0), _cut(b.byte(4, 0, 1), h * 4, 4), b.half(2))


# Four neighbouring bits times this have them in four bytes.
_BITS_APART = 1 | 1 << 7 | 1 << 14 | 1 << 21


def _bits_in_bytes(bits: Expr, c: Expr, place: Expr) -> Expr:
    """Return those of the bits from the first of four elements on that belong to the bytes of a word, in which element
    `c` is at a place, each the lowest of its byte.
    """
    if place.op != "const":
        return (ex.shr(bits, c - ex.shr(place, 3)) & 15) * _BITS_APART & _EACH_BYTE
    base, own = (c.args[0], c.args[1]) if c.op == "add" else (ex.const(0, int32), c)
    if own.op != "const":
        base, own = c, ex.const(0, int32)
    four = (ex.shr(bits, base + (own.value & -WORD)) & 15) * _BITS_APART & _EACH_BYTE
    # Blocks that begin within words.
    late = place.value - own.value % WORD * 8
    return ex.shl(four, late) if late >= 0 else ex.shr(four, -late)


def _with_fifth(b: Block, at: int, h: Expr, c: Expr, clear: int) -> Expr:
    """Return a number of five bits, whose fifth ones are a word before the others, less `clear`: those of a word at
    once, or tests of bits, which are masks of vectors.
    """
    q = _cut(b.byte(at + 4, 0, 1), h * 4, 4)
    found = _byte_of(q, known=False)
    if found is not None:
        word, place = found
        fifth = ex.shl(_bits_in_bytes(ex.shr(b.word(at), h * 16), c, place), 4)
        return (ex.shr(word | fifth, place) & 255) - clear
    bit = ex.shl(ex.const(1, int32), h * 16 + c)
    return ex.where(ex.eq(b.word(at) & bit, 0), q - clear, q + (16 - clear))


@_format("Q5_0", 22, (2, 16), (0,))
def _q5_0(b: Block, h: Expr, c: Expr) -> Expr:
    return b.half(0) * _number(_with_fifth(b, 2, h, c, 16))


@_format("Q5_1", 24, (2, 16), (0,))
def _q5_1(b: Block, h: Expr, c: Expr) -> Expr:
    return b.above(b.half(0), _with_fifth(b, 4, h, c, 0), b.half(2))


IQ4 = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)


@_format("IQ4_NL", 18, (2, 16), (0,))
def _iq4_nl(b: Block, h: Expr, _c: Expr) -> Expr:
    return b.half(0) * _number(_looked_up(IQ4, _cut(b.byte(2, 0, 1), h * 4, 4)))


# Twice the numbers of the four-bit float E2M1: the scale is halved.
E2M1 = (0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12)


@_format("MXFP4", 17, (2, 16), (0,))
def _mxfp4(b: Block, h: Expr, _c: Expr) -> Expr:
    e = b.byte(0)
    # 2 ** (e - 128); the two least have their bits below those of normal numbers.
    bits = ex.where(e < 2, ex.shl(ex.const(0x200000, int32), e), ex.shl(e - 1, 23))
    return ex.bitcast(bits, float32) * _number(_looked_up(E2M1, _cut(b.byte(1, 0, 1), h * 4, 4)))


# ---- blocks of 256 elements


@_format("Q2_K", 84, (2, 2, 2, 2, 16), (1, 2))
def _q2_k(b: Block, _n: Expr, p: Expr, o: Expr, _t: Expr, _c: Expr) -> Expr:
    scale = b.byte(0, 8, 4, 2, 1, 0)
    q = _cut(b.byte(16, 32, 0, 0, 16, 1), p * 4 + o * 2, 2)
    low = b.half(82) * _number(ex.shr(scale, 4))
    return b.half(80) * _number(scale & 15) * _number(q) - low


@_format("Q3_K", 110, (2, 2, 2, 2, 16), (1, 2))
def _q3_k(b: Block, n: Expr, p: Expr, o: Expr, _t: Expr, _c: Expr) -> Expr:
    q = _cut(b.byte(32, 32, 0, 0, 16, 1), p * 4 + o * 2, 2)
    high = _cut(b.byte(0, 0, 0, 0, 16, 1), n * 4 + p * 2 + o, 1)
    scale = _cut(b.byte(96, 0, 4, 2, 1, 0), n * 4, 4)
    top = _cut(b.byte(104, 0, 0, 2, 1, 0), n * 4 + p * 2, 2)
    scale = (scale | ex.shl(top, 4)) - 32
    return b.half(108) * _number(scale) * _number(_joined(q, high, 2) - 4)


def _six_bits(b: Block, k: Expr) -> tuple[Expr, Expr]:
    """Return a scale and a minimum of 6 bits, of which 8 each lie in the 12 bytes from the fourth on."""
    first, second, rest = (b.byte(at, 0, 2, 1, 0) for at in (4, 8, 12))
    scale, low = (
        _first(k, _cut(own, _FIRST, 6), _joined(_cut(rest, ex.const(at, int32), 4), _cut(own, _SEVENTH, 2), 4))
        for own, at in ((first, 0), (second, 4))
    )  # fmt: skip
    return b.half(0) * _number(scale), b.half(2) * _number(low)


@_format("Q4_K", 144, (2, 2, 2, 32), (2,))
def _q4_k(b: Block, k: Expr, _j: Expr, h: Expr, _c: Expr) -> Expr:
    scale, low = _six_bits(b, k)
    return b.above(scale, _cut(b.byte(16, 64, 32, 0, 1), h * 4, 4), -low)


@_format("Q5_K", 176, (2, 2, 2, 32), (2,))
def _q5_k(b: Block, k: Expr, j: Expr, h: Expr, _c: Expr) -> Expr:
    scale, low = _six_bits(b, k)
    fifth = _cut(b.byte(16, 0, 0, 0, 1), k * 4 + j * 2 + h, 1)
    q = _joined(_cut(b.byte(48, 64, 32, 0, 1), h * 4, 4), fifth, 4)
    return b.above(scale, q, -low)


@_format("Q6_K", 210, (2, 2, 2, 2, 16), (1,))
def _q6_k(b: Block, _n: Expr, u: Expr, v: Expr, _t: Expr, _c: Expr) -> Expr:
    low = _cut(b.byte(0, 64, 0, 32, 16, 1), u * 4, 4)
    high = _cut(b.byte(128, 32, 0, 0, 16, 1), u * 4 + v * 2, 2)
    scale = b.signed(192, 8, 4, 2, 1, 0)
    return b.half(208) * _number(scale) * _number(_joined(low, high, 4) - 32)


@_format("Q8_K", 292, (256,))
def _q8_k(b: Block, _c: Expr) -> Expr:
    return ex.bitcast(b.word(0), float32) * _number(b.signed(4, 1))


@_format("IQ4_XS", 136, (4, 2, 2, 16), (2,))
def _iq4_xs(b: Block, a: Expr, o: Expr, h: Expr, _c: Expr) -> Expr:
    low = _cut(b.byte(4, 1, 0, 0, 0), o * 4, 4)
    high = ex.shr(b.short(2), a * 4 + o * 2) & 3
    scale = (low | ex.shl(high, 4)) - 32
    q = _cut(b.byte(8, 32, 16, 0, 1), h * 4, 4)
    return b.half(0) * _number(scale) * _number(_looked_up(IQ4, q))


# ---- blocks of other packers: groups of neighbours with a scale and a zero (GPTQ, AWQ, HQQ), and floats of four bits
# (bitsandbytes). They write the parts of a block apart from each other; here these lie together.

_GROUPS = (32, 64, 128)
# The numbers that four bits stand for: quantiles of the normal distribution, and the float E2M1 scaled to 1.
NF4 = (
    -1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635, -0.18477343022823334,
    -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224,
    0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0,
)  # fmt: skip
_FP4 = (
    0.0,
    0.0052083334885537624,
    0.6666666865348816,
    1.0,
    0.3333333432674408,
    0.5,
    0.1666666716337204,
    0.25,
)
FP4 = (*_FP4, 0.0, *[-x for x in _FP4[1:]])


def _in_groups(count: int) -> None:
    """Declare numbers of 4 and of 8 bits with a scale and a zero, of float16 and of float32, for each `count`."""

    @_format(f"INT4_{count}", 4 + count // 2, (2, count // 2), (0,))
    def _int4(b: Block, h: Expr, _c: Expr) -> Expr:
        return (_number(_cut(b.byte(4, 0, 1), h * 4, 4)) - b.half(2)) * b.half(0)

    @_format(f"INT8_{count}", 8 + count, (count,))
    def _int8(b: Block, _c: Expr) -> Expr:
        zero = ex.bitcast(b.word(4), float32)
        return (_number(b.byte(8, 1)) - zero) * ex.bitcast(b.word(0), float32)


for _count in _GROUPS:
    _in_groups(_count)


def chosen(values: Sequence[float], index: Expr) -> Expr:
    """Return one of 16 numbers, bit by bit of the index."""
    found = [ex.const(v, float32) for v in values]
    for bit in range(4):
        low = ex.eq(_cut(index, ex.const(bit, int32), 1), 0)
        found = [ex.where(low, a, b) for a, b in zip(found[::2], found[1::2], strict=True)]
    return found[0]


@_format("NF4", 36, (2, 32), (0,))
def _nf4(b: Block, h: Expr, _c: Expr) -> Expr:
    return ex.bitcast(b.word(0), float32) * chosen(NF4, _cut(b.byte(4, 0, 1), h * 4, 4))


@_format("FP4", 36, (2, 32), (0,))
def _fp4(b: Block, h: Expr, _c: Expr) -> Expr:
    return ex.bitcast(b.word(0), float32) * chosen(FP4, _cut(b.byte(4, 0, 1), h * 4, 4))


# ---- operations made of a format


Window = tuple[int, tuple[int, ...]]


class Reading(NamedTuple):
    """An operation on windows of packed data. Its result has the dims `loops` behind those of the rows and of groups
    of blocks. Its operands are `windows`, offsets into a group and strides along the loops, in elements of the data;
    the places on the loops; and `lanes`, which are windows on a row of `span` elements for each group.
    """

    op: Elementwise
    loops: tuple[int, ...]
    windows: tuple[Window, ...]
    lanes: tuple[Window, ...]
    # Of a group: its elements, and its length in the data.
    span: int
    pitch: int
    # Sizes and strides in a row of the axes that the lanes are of.
    shared: tuple[tuple[int, int], ...] = ()


class _Axes:
    """The axes of a group of blocks, by words or by bytes: a group's blocks, the format's axes, and of the last one
    pieces of some words and the bytes in these. Some have a fixed place each.
    """

    def __init__(self, form: Format, words: int, blocks: int) -> None:
        """words: of a piece; 0: by bytes."""
        self.form, self.words, self.blocks = form, words, blocks
        self.piece = words * WORD
        inner = (form.axes[-1] // self.piece, self.piece) if words else (form.axes[-1],)
        self.sizes = (self.blocks, *form.axes[:-1], *inner)

    def strides_of(self, strides: tuple[int, ...]) -> tuple[int, ...]:
        """Return strides in bytes along all axes for those along the format's."""
        strides = strides or (0,) * len(self.form.axes)
        inner = (strides[-1] * self.piece, strides[-1]) if self.words else (strides[-1],)
        return (self.form.nbytes, *strides[:-1], *inner)

    def places_in(self, places: Sequence[Expr]) -> list[Expr]:
        """Return the places on the format's axes for those on all."""
        count = len(self.form.axes)
        last = places[count] * self.piece + places[count + 1] if self.words else places[count]
        return [*places[1:count], last]


class _Windows:
    """Collects which parts of the data a formula reads, as operands."""

    def __init__(self, axes: _Axes, loops: Sequence[int]) -> None:
        self.axes, self.loops = axes, loops
        self.found: dict[Window, int] = {}

    def operand(self, offset: int, strides: tuple[int, ...]) -> Callable[[Sequence[Expr]], Expr]:
        """Return what takes a window out of the operands."""
        number = self.found.setdefault((offset, strides), len(self.found))
        return lambda operands: operands[number]

    def read(
        self,
        at: int,
        strides: tuple[int, ...],
        count: int,
        fixed: dict[int, int],
        places: Sequence[Expr],
    ) -> Callable[[Sequence[Expr]], Expr]:
        """Return what makes some bytes, at a place that depends on the axes, of the operands."""
        axes = self.axes
        each = axes.strides_of(strides)
        apart = 1 if 0 in fixed else axes.blocks
        # Words between blocks of a group that is not known, which begin so many bytes later in their words.
        late = each[0] % WORD if apart > 1 else 0
        each = (each[0] - late, *each[1:])
        at += sum(each[i] * place for i, place in fixed.items())
        moving = [0 if i in fixed else each[i] for i in self.loops]
        if not axes.words:
            parts = [self.operand(at + i, tuple(moving)) for i in range(count)]
            return lambda operands: functools.reduce(
                lambda x, y: x | y,
                [ex.shl(p(operands), 8 * i) if i else p(operands) for i, p in enumerate(parts)],
            )
        steps = tuple([m // WORD if m % WORD == 0 else 0 for m in moving])
        rest = ex.const(0, int32)
        most = count - 1
        for i, m in zip(self.loops, moving, strict=True):
            if m % WORD:
                rest, most = rest + places[i] * m, most + m * (axes.sizes[i] - 1)
        mask = (1 << 8 * count) - 1 if count < WORD else None
        if late:
            parts_of = [self._word(at + late * b, most, steps) for b in range(apart)]

            def any_of(operands: Sequence[Expr]) -> Expr:
                """Return bytes of the words that the block has."""
                *others, word = (part(operands) for part in parts_of)
                for b in reversed(range(apart - 1)):
                    word = ex.where(ex.eq(places[0], b), others[b], word)
                return word if mask is None else ex.shr(word, rest * 8) & mask

            return any_of
        begin, within = divmod(at, WORD)
        first = self.operand(begin, steps)
        if within + most < WORD:
            place = rest * 8 + 8 * within

            def one(operands: Sequence[Expr]) -> Expr:
                """Return bytes of one word."""
                word = first(operands)
                return word if mask is None else ex.shr(word, place) & mask

            return one
        assert most < WORD, (axes.form.name, at, strides)
        whole = self._word(at, most, steps)

        def two(operands: Sequence[Expr]) -> Expr:
            """Return bytes of two neighbouring words."""
            word = whole(operands)
            return word if mask is None else ex.shr(word, rest * 8) & mask

        return two

    def _word(self, at: int, most: int, steps: tuple[int, ...]) -> Callable[[Sequence[Expr]], Expr]:
        """Return what makes a word, of which the bytes up to `most` count, of the words of which its bytes are."""
        begin, within = divmod(at, WORD)
        first = self.operand(begin, steps)
        if not within:
            return first
        if within + most < WORD:
            return lambda operands: ex.shr(first(operands), 8 * within)
        second = self.operand(begin + 1, steps)
        low = (1 << (32 - 8 * within)) - 1
        return lambda operands: (
            (ex.shr(first(operands), 8 * within) & low) | ex.shl(second(operands), 32 - 8 * within)
        )


def _value(
    windows: _Windows,
    fixed: dict[int, int],
    places: Sequence[Expr],
    operands: Sequence[Expr],
    fused: bool,
) -> Expr:
    """Return an element's value."""
    axes = windows.axes
    given = [ex.const(fixed[i], int32) if i in fixed else p for i, p in enumerate(places)]

    def data(at: int, strides: tuple[int, ...], count: int) -> Expr:
        """Return some bytes of the block."""
        return windows.read(at, strides, count, fixed, given)(operands)

    return axes.form.value(Block(data, not axes.words, fused), *axes.places_in(given))


class _Linear:
    """Takes values apart into sums of (what several of them share, a number of each), where None is one."""

    def __init__(self, values: Sequence[Expr]) -> None:
        # Of how many values each part is one.
        self.uses = Counter(node for v in values for node in set(ex.walk(v)))

    def is_shared(self, x: Expr) -> bool:
        """Whether several values have a part."""
        return self.uses[x] > 1

    def terms(self, x: Expr, scale: Expr | None = None) -> list[tuple[Expr | None, Expr | None]]:
        """Return the terms of scale * x."""

        def by(shared: Expr) -> Expr:
            """Return the scale times a factor that is shared."""
            return shared if scale is None else scale * shared

        if self.is_shared(x):
            return [(by(x), None)]
        a, b = (*x.args, *x.args)[:2] if x.args else (x, x)
        if x.op == "add":
            return [*self.terms(a, scale), *self.terms(b, scale)]
        if x.op == "sub" and self.is_shared(b):
            return [*self.terms(a, scale), (by(-b), None)]
        if x.op == "mul" and self.is_shared(a):
            return self.terms(b, by(a))
        if x.op == "mul" and self.is_shared(b):
            return self.terms(a, by(b))
        return [(scale, x)]


def _factored(values: Sequence[Expr], row: Sequence[Expr]) -> Expr:
    """Return the sum of values times elements of a row. What values share, as a block's scale and its minimum, is
    multiplied once.
    """
    linear = _Linear(values)
    # By what is shared, whether numbers are of it, and where these stand.
    sums: dict[tuple[Expr | None, bool], dict[int, Expr]] = {}
    for v, x in zip(values, row, strict=True):
        for scale, number in linear.terms(v):
            by_place = sums.setdefault((scale, number is None), {})
            place, term = 0, x
            if number is not None:
                placed = _placed(number.args[0]) if number.op == "cast" else _Placed(number, 0)
                place, term = placed.place, placed.number * x
            by_place[place] = by_place[place] + term if place in by_place else term
    parts = []
    for (scale, _), by_place in sums.items():
        terms = [t * 2.0**-place if place else t for place, t in by_place.items()]
        found = functools.reduce(lambda a, b: a + b, terms)
        parts.append(found if scale is None else scale * found)
    return functools.reduce(lambda a, b: a + b, parts)


class Quarter(NamedTuple):
    """Four neighbouring elements: the bytes of a word, each of so many bits, less a number, times a scale, and above
    `low`.
    """

    word: Expr
    bits: int
    less: int
    scale: Expr
    low: Expr | None


def quarter(values: Sequence[Expr]) -> Quarter | None:
    """Return what four values of words (`unpacking`) are made of, None where they are made otherwise."""
    found = [_scaled(x.args[0] if x.op == "cast" else x) for x in values]
    known = [f for f in found if f is not None]
    if len(known) < len(found) or len({(f.scale, f.low) for f in known}) != 1:
        return None
    four = [_whole_number(f.number) for f in known]
    bytes_of = [_byte_of(f[0]) for f in four if f is not None]
    places = [(b[0], b[1].value) for b in bytes_of if b is not None]
    less = {f[1] for f in four if f is not None}
    if (
        places != [(places[0][0] if places else None, at) for at in (0, 8, 16, 24)]
        or len(less) != 1
    ):
        return None
    word = places[0][0]
    most = max(_known(word) >> at & 255 for _, at in places)
    return Quarter(word, most.bit_length(), less.pop(), known[0].scale, known[0].low)


class _Scaled(NamedTuple):
    """scale * number + low."""

    scale: Expr
    number: Expr
    low: Expr | None


def _scaled(x: Expr) -> _Scaled | None:
    """Return a value as a whole number times a scale and what is added to it."""
    if x.op == "add":
        for a, low in (x.args, x.args[::-1]):
            found = _scaled(a) if a.op == "mul" else None
            if found is not None:
                return _Scaled(found.scale, found.number, low)
    if x.op == "mul":
        for scale, number in (x.args, x.args[::-1]):
            if _whole_number(number) is not None:
                return _Scaled(scale, number, None)
    return None


def _whole_number(x: Expr) -> tuple[Expr, int] | None:
    """Return the whole number, and what is taken off it, that became a float as `_without_casts` says."""
    if x.op != "sub" or x.args[1].op != "const" or x.args[0].op != "bitcast":
        return None
    bits, less = x.args[0].args[0], x.args[1].value
    if bits.op != "or" or bits.args[1].value != _OF_WHOLE or less < 1 << _FRACTION:
        return None
    return bits.args[0], int(less) - (1 << _FRACTION)


# ---- a row in bytes: sums of products of integers

# Neighbours in a row that have a scale in common: elements of four words of a format.
RUN = 16
# A number of a row is so many signed bytes, of which each is 128 less than that of the number and _CLEAR; of what has
# float16's eleven bits two are enough.
PLANES, PLANES_OF_HALVES = 3, 2
_CLEAR = 0x808080
# The largest number that has them is _MOST, less what rounding may add.
_MOST = {3: 0x7F7F7F - 1000, 2: 0x7F7F - 4}
# The bits of 1e-30, below which a run counts as zeros, so that the scale's inverse is finite; of infinity; of NaN.
_LEAST, _INFINITE, _NAN = 0x0DA24260, 0x7F800000, 0x7FC00000


def _in_bytes(planes: int, _position: Expr, *given: Expr) -> Expr:
    """Return a word of a run of a row: by its plane bytes of four elements, the highest first, or behind the planes its
    scale and its sum. `given`: the bits of the run's elements, those of the four, the plane, and which four they are.
    """
    largest_whole, clear = _MOST[planes], _CLEAR & (1 << 8 * planes) - 1
    run, four, (plane, place) = given[:RUN], given[RUN:-2], given[-2:]
    sizes = [x & 0x7FFFFFFF for x in run]
    most = functools.reduce(lambda a, b: ex.binary("max", a, b), sizes)
    held = ex.where(most < _INFINITE, most, 0)
    small = held < _LEAST
    largest = ex.bitcast(ex.where(small, _OF_WHOLE, held), float32)
    inverse = ex.where(small, ex.const(0.0, float32), float(largest_whole) / largest)
    scale = ex.where(small, ex.const(0.0, float32), largest * (1.0 / largest_whole))
    bits = ex.where(most < _INFINITE, ex.bitcast(scale, int32), _NAN)
    numbers = [ex.bitcast(x, float32) for x in run]
    while len(numbers) > 1:
        numbers = [a + b for a, b in zip(numbers[::2], numbers[1::2], strict=True)]
    word: Expr | None = None
    # (A place behind the planes is any: nobody reads what it gives.)
    down = (planes - 1 - plane & 3) * 8
    for i, x in enumerate(four):
        near = ex.bitcast(x, float32) * inverse
        if planes < PLANES:
            # Rounded, and its bits the last ones, where numbers from 2 ** 23 on have no fraction.
            q = ex.bitcast(near + 1.5 * 2**23, int32) + (clear - 0x4B400000)
        else:
            q = ex.cast(ex.unary("round", near), int32) + clear
        byte = ex.shl(ex.shr(q, down) & 255, 8 * i)
        word = byte if word is None else word | byte
    assert word is not None
    signs = ex.const(_EACH_BYTE * 0x80 - (1 << 32), int32)
    told = ex.where(ex.eq(place, 0), bits, ex.bitcast(numbers[0], int32))
    # What is infinite or NaN makes the scale NaN.
    return ex.where(plane < planes, ex.where(most < _INFINITE, word ^ signs, 0), told)


@functools.cache
def in_bytes(planes: int) -> Elementwise:
    """Return the operation that rounds a row to so many bytes a number."""
    return Elementwise(
        name=f"_in_{planes}_bytes", family="elementwise", signature="", doc="Rounds a row to bytes.",
        expr=functools.partial(_in_bytes, planes), tensors=(), function_in=(),
    )  # fmt: skip


def _four(numbers: Sequence[Expr | None]) -> tuple[Expr, int, int] | None:
    """Return a word, the most that its bytes are, and what is taken off each, whose bytes four numbers are; None where
    they are no such bytes.
    """
    places: list[tuple[Expr, int]] = []
    taken: set[int] = set()
    for number in numbers:
        if number is None or number.op != "cast":
            return None
        x, less = number.args[0], 0
        while x.op in ("sub", "add") and x.args[1].op == "const":
            less += x.args[1].value if x.op == "sub" else -x.args[1].value
            x = x.args[0]
        byte = _byte_of(x)
        if byte is None:
            return None
        places.append((byte[0], byte[1].value))
        taken.add(less)
    first, second = places[0][0], places[-1][0]
    if len(taken) != 1:
        return None
    (less,) = taken
    if places == [(first, at) for at in (0, 8, 16, 24)]:
        word = first
    elif places == [(first, 16), (first, 24), (second, 0), (second, 8)]:
        # Blocks that begin within words.
        word = (ex.shr(first, 16) & 0xFFFF) | ex.shl(second, 16)
    else:
        return None
    most = max(_known(of) >> at & 255 for of, at in places)
    if most < 128:
        return word, most, less
    # With their first bits turned over, bytes from 0 to 255 have a sign, and are 128 less.
    turned = ex.const(_EACH_BYTE * 0x80 - (1 << 32), int32)
    word = word.args[0] if word.op == "xor" and word.args[1] is turned else word ^ turned
    return word, 128, less - 128


def _dotted(values: Sequence[Expr], row: Sequence[Expr], planes: int) -> Expr | None:
    """Return the sum of values times elements of a row in bytes (`in_bytes`: the words of each run's planes, its scale
    and its sum); None where values are no bytes of words.
    """
    linear = _Linear(values)
    each = 4 * planes + 2
    total: dict[Expr | None, Expr] = {}

    def add(scale: Expr | None, term: Expr) -> None:
        """Add a term times what several share."""
        total[scale] = total[scale] + term if scale in total else term

    for number in range(len(values) // RUN):
        words = row[number * each : (number + 1) * each]
        unit, whole = (ex.bitcast(w, float32) for w in words[-2:])
        terms = [linear.terms(v) for v in values[number * RUN : (number + 1) * RUN]]
        if len({tuple([(s, n is None) for s, n in t]) for t in terms}) != 1:
            return None
        for place, (scale, first) in enumerate(terms[0]):
            if first is None:
                add(scale, whole)
                continue
            fours = [_four([t[place][1] for t in terms[i : i + 4]]) for i in range(0, RUN, 4)]
            known = [f for f in fours if f is not None]
            if len(known) < len(fours) or len({less for *_, less in known}) != 1:
                return None
            sums = [
                functools.reduce(
                    lambda a, b: a + b,
                    [ex.dot4(w, words[p * 4 + i]) for i, (w, *_) in enumerate(known)],
                )
                for p in range(planes)
            ]
            high = sums[0] * 256 + sums[1]
            # Small enough, all is one integer.
            if planes < PLANES:
                found = _number(high)
            elif RUN * max(most for _, most, _ in known) * 128 * 0x10200 < 1 << 31:
                found = _number(high * 256 + sums[2])
            else:
                found = _number(high) * 256.0 + _number(sums[2])
            less = known[0][2]
            add(scale, found * unit - whole * float(less) if less else found * unit)
    parts = [t if scale is None else scale * t for scale, t in total.items()]
    return functools.reduce(lambda a, b: a + b, parts)


def _reading(
    name: str, words: int, blocks: int, shared: Sequence[int], title: str, dots: int = 0
) -> Reading | None:
    """Return the operation that gives the elements of a format, or sums them, each times one of a row's, over the axes
    `shared`; `words` as of `_Axes`. dots: the row is in so many bytes a number; None where the format's elements are no
    bytes.
    """
    form = FORMATS[name]
    axes = _Axes(form, words, blocks)
    sizes = axes.sizes
    loops = [i for i in range(len(sizes)) if i not in shared]
    lengths = [math.prod(sizes[i + 1 :]) for i in range(len(sizes))]
    turns: list[dict[int, int]] = [{}]
    for i in shared:
        turns = [{**t, i: place} for t in turns for place in range(sizes[i])]
    lanes: tuple[Window, ...] = ()
    if shared:
        along = tuple([lengths[i] for i in loops])
        lanes = tuple([(sum(lengths[i] * p for i, p in t.items()), along) for t in turns])

    def formula(windows: _Windows, operands: Sequence[Expr], rest: Sequence[Expr]) -> Expr | None:
        """Return what the operation gives of windows, places and lanes."""
        places = [ex.const(0, int32)] * len(sizes)
        for i, place in zip(loops, rest, strict=False):
            places[i] = place
        fused = bool(shared) and not words
        values = [_value(windows, fixed, places, operands, fused) for fixed in turns]
        if not shared:
            return _without_casts(values[0]) if words else values[0]
        if dots:
            found = _dotted(values, rest[len(loops) :], dots)
            return None if found is None else _without_casts(found)
        row = [ex.bitcast(x, float32) for x in rest[len(loops) :]]
        if words:
            return _without_casts(_factored(values, row))
        total = values[0] * row[0]
        for v, x in zip(values[1:], row[1:], strict=True):
            total = ex.fma(v, x, total)
        return total

    # Which windows there are shows when the formula is written out.
    windows = _Windows(axes, loops)
    blank = [ex.input_(i, int32) for i in range(_MOST_OPERANDS)]
    given = len(lanes) // RUN * (4 * dots + 2) if dots else len(lanes)
    if formula(windows, blank, blank[: len(loops) + given]) is None:
        return None
    count = len(windows.found)

    def made(_position: Expr, *given: Expr) -> Expr:
        """Return the formula of the operands."""
        found = formula(windows, given[:count], given[count:])
        assert found is not None
        return found

    op = Elementwise(
        name=f"_{title}_{name.lower()}{'_of_words' * bool(words)}",
        family="elementwise",
        signature="",
        doc="Unpacks blocks.",
        expr=made,
        tensors=(),
        function_in=(),
    )
    span, pitch = axes.blocks * form.elements, axes.blocks * form.nbytes
    return Reading(
        op, tuple([sizes[i] for i in loops]), tuple(windows.found), lanes, span,
        pitch // WORD if words else pitch, tuple([(sizes[i], lengths[i]) for i in shared]),
    )  # fmt: skip


@functools.cache
def unpacking(name: str, words: bool) -> Reading:
    """Return the operation that unpacks data of a format: bytes, or words of four bytes."""
    blocks = FORMATS[name].together if words else 1
    found = _reading(name, int(words), blocks, (), "unpacked")
    assert found is not None
    return found


@functools.cache
def dotting(name: str, columns: int, planes: int = PLANES) -> Reading | None:
    """Return the operation that `multiplying` returns of words, for a row in bytes. None where there is none, of a
    format whose elements are no bytes of words, too.
    """
    form = FORMATS[name]
    if columns % (form.elements * form.together):
        return None
    shared = (0, *[i + 1 for i in form.shared], len(form.axes) + 1)
    title = "dotted" if planes == PLANES else f"dotted{planes}"
    return _reading(name, RUN // WORD, form.together, shared, title, dots=planes)


@functools.cache
def multiplying(name: str, words: bool, columns: int) -> Reading | None:
    """Return the operation that sums the elements which some words hold parts of, or of bytes those of some blocks that
    differ by more than their last axis, each times an element of a row, which is given as its bits. None where a row
    of so many columns ends within a group of blocks.
    """
    form = FORMATS[name]
    count = len(form.axes)
    if columns % (form.elements * (form.together if words else 1)):
        return None
    if words:
        each = form.together * math.prod([form.axes[i] for i in form.shared]) * WORD
        # Sizes are powers of two, and so is what divides both.
        piece = math.gcd(form.axes[-1] // WORD, max(1, _LANES // each))
        shared = (0, *[i + 1 for i in form.shared], count + 1)
        return _reading(name, piece, form.together, shared, "summed")
    blocks = math.gcd(columns // form.elements, max(1, _SUMMED // form.elements))
    return _reading(name, 0, blocks, range(count), f"summed{blocks}")
