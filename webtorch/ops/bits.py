"""The bits of one element type seen as another: what `Tensor.view(dtype)` reads and writes. Floor 1.

A storage has one element type. A view of another type is computed from it bit by bit where it is read, in
the kernel that reads it; a write to the view is converted back. Words are uint32 for elements of up to
four bytes and int64 for eight: kernels compute in no smaller integers.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

from webtorch.ir import expr as ex
from webtorch.ir.dtype import (
    DType,
    bfloat16,
    bool_,
    float16,
    float32,
    float64,
    int8,
    int16,
    int32,
    int64,
    uint8,
    uint32,
)
from webtorch.ir.expr import Expr
from webtorch.ir.graph import Node
from webtorch.ir.view import numel
from webtorch.ops.record import Elementwise

# An integer type of each size, which holds every pattern of bits (a bool does not).
WHOLE: dict[int, DType] = {1: uint8, 2: int16, 4: int32, 8: int64}


def _word_const(value: int) -> Expr:
    return ex.const(value, uint32)


def _half_to_bits(x: Expr) -> Expr:
    """Return the pattern of a float16 that is given as the float32 of its value."""
    bits = ex.bitcast(x, uint32)
    magnitude = bits & _word_const(0x7FFFFFFF)
    # Below 2 ** -14 a half counts in steps of 2 ** -24.
    small = ex.cast(ex.unary("abs", x) * 2.0**24, uint32)
    normal = ex.shr(magnitude, 13) - _word_const(112 << 10)
    beyond = _word_const(0x7C00) | ex.shr(magnitude & _word_const(0x7FFFFF), 13)
    found = ex.where(magnitude < _word_const(0x47800000), normal, beyond)
    found = ex.where(magnitude < _word_const(0x38800000), small, found)
    return found | (ex.shr(bits, 16) & _word_const(0x8000))


def half_from_bits(word: Expr) -> Expr:
    """Return, as float32, the number that the lower 16 bits of a word are as float16."""
    magnitude = word & _word_const(0x7FFF)
    # Below the least normal number they count by ones: as the last bits of that number, which is taken off again.
    below = ex.bitcast(ex.shl(magnitude, 13) + _word_const(113 << 23), float32) - 2.0**-14
    small = ex.bitcast(below, uint32)
    normal = ex.shl(magnitude, 13) + _word_const(112 << 23)
    beyond = _word_const(0x7F800000) | ex.shl(magnitude & _word_const(0x3FF), 13)
    found = ex.where(magnitude < _word_const(0x7C00), normal, beyond)
    found = ex.where(magnitude < _word_const(0x400), small, found)
    return ex.bitcast(found | ex.shl(word & _word_const(0x8000), 16), float32)


def half_of(x: Expr) -> Expr | None:
    """Return the word of which `x` is the `half_from_bits`, or None."""
    if x.op != "bitcast" or x.dtype is not float32 or x.args[0].op != "or":
        return None
    sign = x.args[0].args[1]
    if sign.op != "shl" or sign.args[0].op != "and":
        return None
    word = sign.args[0].args[0]
    return word if word.dtype is uint32 and half_from_bits(word) is x else None


def _to_word(x: Expr, dtype: DType) -> Expr:
    """Return the bits of an element of `dtype`, which is given in its compute type."""
    if dtype is float64:
        return ex.bitcast(x, int64)
    if dtype.itemsize == 8:
        return ex.cast(x, int64)
    if dtype is float16:
        return _half_to_bits(x)
    if dtype is bfloat16:
        return ex.shr(ex.bitcast(x, uint32), 16)
    if dtype is float32 or dtype is int32:
        return ex.bitcast(x, uint32)
    if dtype is int8 or dtype is int16:
        return ex.bitcast(ex.cast(x, int32), uint32) & _word_const((1 << dtype.bits) - 1)
    return ex.cast(x, uint32)


def _from_word(word: Expr, dtype: DType) -> Expr:
    """Return the element of `dtype` with these bits, in its compute type."""
    if dtype is float64:
        return ex.bitcast(word, float64)
    if dtype is float16:
        return half_from_bits(word)
    if dtype is bfloat16:
        return ex.bitcast(ex.shl(word, 16), float32)
    if dtype is float32 or dtype is int32:
        return ex.bitcast(word, dtype)
    if dtype is int8 or dtype is int16:
        unused = 32 - dtype.bits
        return ex.cast(ex.shr(ex.bitcast(ex.shl(word, unused), int32), unused), dtype)
    if dtype is bool_:
        return ex.ne(word, 0)
    return ex.cast(word, dtype)


def _narrowed(source: DType, dtype: DType) -> Callable[..., Expr]:
    def formula(position: Expr, x: Expr) -> Expr:
        """Return one narrow element of a wide one."""
        word = _to_word(x, source)
        lane = ex.binary(
            "mod", position, ex.const(source.itemsize // dtype.itemsize, position.dtype)
        )
        mask = (1 << dtype.bits) - 1
        moved = ex.shr(word, ex.cast(lane, word.dtype) * dtype.bits)
        return _from_word(ex.cast(moved & ex.const(mask, word.dtype), uint32), dtype)

    return formula


def _widened(source: DType, dtype: DType) -> Callable[..., Expr]:
    def formula(*parts: Expr) -> Expr:
        """Return a wide element of narrow ones."""
        kind = int64 if dtype.itemsize == 8 else uint32
        words = [ex.cast(_to_word(x, source), kind) for x in parts]
        found = words[0]
        for i, word in enumerate(words[1:], 1):
            found = found | ex.shl(word, i * source.bits)
        return _from_word(found, dtype)

    return formula


@cache
def formula(source: DType, dtype: DType) -> Elementwise:
    """Return the formula that makes an element of `dtype` of the bits of those of `source`."""
    if source.itemsize > dtype.itemsize:
        expr = _narrowed(source, dtype)
    else:
        expr = _widened(source, dtype)
    return Elementwise(
        name=f"_bits_{source.name}_as_{dtype.name}",
        family="elementwise",
        signature="",
        doc="The same bits.",
        expr=expr,
        tensors=(),
        function_in=(),
    )


def reinterpreted(node: Node, dtype: DType) -> Node:
    """Return the bits of a value, in row-major order, as a flat value of `dtype`; bytes left over at the
    end are not in it.
    """
    source, count = node.dtype, numel(node.shape)
    op = formula(source, dtype)
    if source.itemsize == dtype.itemsize:
        flat = Node("view", (node,), ((1,), 0), (), (count,), source)
        return Node("map", (flat,), (op, "t", source.compute), (), (count,), dtype)
    if source.itemsize > dtype.itemsize:
        lanes = source.itemsize // dtype.itemsize
        each = Node("view", (node,), ((1, 0), 0), (), (count, lanes), source)
        made = Node("map", (each,), (op, "pt", source.compute), (), (count, lanes), dtype)
        return Node("view", (made,), ((1,), 0), (), (count * lanes,), dtype)
    lanes = dtype.itemsize // source.itemsize
    count //= lanes
    parts = tuple(
        [Node("view", (node,), ((lanes,), i), (), (count,), source) for i in range(lanes)]
    )
    return Node("map", parts, (op, "t" * lanes, source.compute), (), (count,), dtype)
