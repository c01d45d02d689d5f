"""The primitives: the few operations that floor 4 records as graph nodes, and their gradient rules.
May import floor 0 only.

Everything that is not a primitive or an elementwise formula is written with these. They check
nothing: shapes and types are
right when they are called. They are not public.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from webtorch.ir import expr as ex
from webtorch.ir.dtype import FLOATS, DType, int32, uint32
from webtorch.ir.expr import Expr
from webtorch.ops.record import Elementwise, Op, register


def _primitive(name: str, signature: str, doc: str, **fields: Any) -> Op:
    op = Op(name=name, family="composite", signature=signature, doc=doc, function_in=(), **fields)
    register(op)
    return op


as_view = _primitive(
    "_view",
    "(x, shape, strides, offset, vjp=None, name='AsStrided')",
    "A view of x's own storage: shape, strides and absolute offset in elements. Shares memory. "
    "`vjp` maps the view's cotangent to "
    "x's (shape of x); None uses the general, slower rule for any strides. `name` is the printed "
    "name of the gradient function.",
)
check_own_storage = _primitive(
    "_check_own_storage",
    "(x)",
    "Raise CaptureError where x's storage is a copy's, which stands for a view in a capture.",
)
pad_with = _primitive(
    "_pad",
    "(x, low, high, value)",
    "x inside a border of `value`: per-dim counts before and after (all >= 0). Differentiable in "
    "x.",
)
reduce_dims = _primitive(
    "_reduce",
    "(x, combine, dims)",
    "Combine over `dims` (a sorted tuple), which stay as size 1. combine: sum prod max min any "
    "all argmax argmin. Not empty. Differentiable (sum, max, min).",
)
take = _primitive(
    "_take",
    "(x, indices, name, wrap=False, dims=())",
    "out[b..., r...] = x[indices[0][b], indices[1][b], ..., r]: integer index tensors of one "
    "shape b pick along x's first dims. "
    "Bounds are checked on the device, errors name `name` and the dim (of `dims`, where x was "
    "permuted); wrap=True allows negative indices. Differentiable in x.",
)
scatter = _primitive(
    "_scatter",
    "(base, indices, values, combine, name, wrap=False, dims=())",
    "A copy of base with base[indices[0][b], ..., r] combined with values[b, r]; combine: set add "
    "mul max min. Differentiable for set and add.",
)
matmul3 = _primitive(
    "_matmul",
    "(a, b)",
    "Batched product of (B, M, K) and (B, K, N); one type. Strided operands are read in place. "
    "Differentiable.",
)
unrounded = _primitive(
    "_unrounded",
    "(multiply, *args)",
    "multiply(*args), a product or a convolution; that of 16-bit floats is the float32 sums.",
)
conv2d_raw = _primitive(
    "_conv2d",
    "(kind, a, b, input_shape, weight_shape, output_shape, stride, padding, dilation, groups)",
    'kind "forward": (input, weight); "input": (grad_output, weight); "weight": (input, '
    "grad_output). Differentiable in both.",
)
attention = _primitive(
    "_attention",
    "(query, key, value, mask, causal, scale, dropout, again)",
    "softmax(query key^T scale + mask) value without scores in memory: query (B, H, L, E), key "
    "(B, G, S, E), value (B, G, S, V), H a multiple of G; mask (B, H, L, S), bool or float, or None; "
    "`dropout` None or (probability, seed, counter). `again(query, key, value, cotangent)` computes "
    "the three cotangents with differentiable operations, for second derivatives. Differentiable in "
    "query, key and value.",
)
suits_attention = _primitive(
    "_suits_attention",
    "(query, key, value, mask)",
    "Whether `attention` serves these better than products.",
)
multiplies_narrow = _primitive(
    "_multiplies_narrow",
    "(query, key)",
    "Whether query key^T, of 16 bits, runs on units of its own, or reads too few queries to cast all keys.",
)
scan = _primitive(
    "_scan",
    "(x, combine, dim)",
    "Running sum, prod, max or min along `dim`. Differentiable for sum.",
)
sort_places = _primitive(
    "_sort_places",
    "(x, descending, first, count)",
    "For each row of the matrix x, the places of its elements in order, `count` of them from rank "
    "`first` on: int64, (rows, count). NaN is the largest number; ties keep their order. Not "
    "differentiable.",
)
fill = _primitive(
    "_fill",
    "(shape, value, dtype, device)",
    "A new tensor of one value (a runtime argument).",
    grows=True,
)
empty = _primitive(
    "_empty",
    "(shape, dtype, device, like=())",
    "Uninitialised memory, for each example that one of the tensors `like` is batched over.",
)
iota = _primitive(
    "_iota",
    "(count, start, step, dtype, device)",
    "start + i * step for i < count, computed in dtype (1-d).",
)
philox = _primitive(
    "_philox",
    "(shape, seed, offset, dtype, device, kind='uniform', low=0)",
    "Counter-based random numbers: element i uses Philox4x32-10 with key `seed` (64 bits) and "
    "counter (i + offset), so a call uses up "
    "numel counters. kind 'uniform': float in [0, 1) from the upper 24 bits of lane 0 (8 for "
    "bfloat16, 11 for float16); 'normal': Box-Muller "
    "on lanes 0 and 1; 'bits': the upper 31 bits of lane 0 as int64; 'word0' and 'word1': those lanes "
    "as int32, ordered as their bits are.",
)
draw = _primitive(
    "_draw",
    "(formula, parameters, seed, offset)",
    "Random numbers of distributions: an elementwise formula of the parameters (tensors of one shape "
    "and type), of the element's position, and of the words of a seed and of a counter. The formula "
    "takes its own counters; how many elements use up is the caller's to say.",
)
cast_to = _primitive(
    "_cast",
    "(x, dtype)",
    "x converted to dtype (a new tensor even if the type is the same is not made). Differentiable "
    "between floats.",
)
formula = _primitive(
    "_formula",
    "(op, tensors, shape, dtype, device=None)",
    "An entry applied to the flat position (an int32) and to real tensors of `shape`. Not differentiable.",
)
pairs = _primitive(
    "_pairs",
    "(x)",
    "The real and imaginary parts of a complex x along a last dim of size 2: a view. Differentiable.",
)
paired = _primitive(
    "_paired",
    "(x)",
    "The complex tensor whose parts are along the last dim of x: a view where x's strides allow it "
    "(last 1, others even). Differentiable.",
)
seen_as = _primitive(
    "_seen_as",
    "(x, shape, strides, offset, dtype)",
    "x's memory as elements of dtype; the geometry is in these. Not differentiable.",
)
complex_of = _primitive(
    "_complex_of", "(x)", "What `paired` gives, of a new x that nobody else sees: no view of it."
)
real_part = _primitive("_real_part", "(x)", "The real part of a complex x: a view. Differentiable.")
imag_part = _primitive(
    "_imag_part", "(x)", "The imaginary part of a complex x: a view. Differentiable."
)
join = _primitive(
    "_join", "(re, im)", "The complex tensor of two real ones of one shape. Differentiable."
)
conjugate = _primitive("_conjugate", "(x)", "The conjugate; a real x itself. Differentiable.")
host = _primitive(
    "_host",
    "(name, inputs, params, shapes)",
    "The results, of `shapes` and the first input's type, of a function of whole arrays that only "
    "the CPU has: a tuple. Not differentiable.",
)
copy = _primitive("_copy", "(x)", "A contiguous copy of x in new storage. Differentiable.")
write = _primitive(
    "_write",
    "(x, values, fresh=False)",
    "Overwrite x's elements in place with `values` (same shape and type); version, views and "
    "gradients follow PyTorch.",
)

differentiated = _primitive(
    "_differentiated",
    "(x)",
    "Whether what is computed from x is recorded, for backward or for its tangent.",
)

in_memory = _primitive(
    "_in_memory", "(x)", "Whether x has been computed, so that nothing fuses with it."
)

shown = _primitive(
    "_shown", "(x)", "x with the dimensions that vmap hides as its first, outside autograd."
)

each = _primitive(
    "_each",
    "(x, like)",
    "x, with memory of its own for each example that `like` is batched over.",
)

# The identity formula: copies and conversions are map nodes with it. Not an entry of the table.
IDENTITY = Elementwise(
    name="_cast",
    family="elementwise",
    signature="(input)",
    doc="The input itself.",
    expr=lambda x: x,
    tensors=("input",),
    function_in=(),
)


def _iota(position: Expr, start: Expr, step: Expr) -> Expr:
    return start + ex.cast(position, start.dtype) * step


IOTA = Elementwise(
    name="_iota_formula",
    family="elementwise",
    signature="",
    doc="start + position * step.",
    expr=_iota,
    tensors=(),
    function_in=(),
)


# 0, 1, 2, ...: an index that needs no check where the dimension is long enough.
COUNT = Elementwise(
    name="_count",
    family="elementwise",
    signature="",
    doc="The position.",
    expr=lambda position: position,
    tensors=(),
    function_in=(),
)


def _bits(position: Expr, seed: tuple[Expr, Expr], offset: tuple[Expr, Expr], lane: int) -> Expr:
    low = ex.cast(position, uint32) + offset[0]
    high = offset[1] + ex.where(low < offset[0], ex.const(1, uint32), 0)
    return ex.philox(*seed, low, high, lane)


def _uniform(bits: int, compute: DType) -> Callable[..., Expr]:
    def formula(position: Expr, seed0: Expr, seed1: Expr, low: Expr, high: Expr) -> Expr:
        """Return a uniform number in [0, 1) for a position."""
        random = _bits(position, (seed0, seed1), (low, high), 0)
        return ex.cast(ex.shr(random, 32 - bits), compute) * 2.0**-bits

    return formula


def _normal(compute: DType) -> Callable[..., Expr]:
    def formula(position: Expr, seed0: Expr, seed1: Expr, low: Expr, high: Expr) -> Expr:
        """Return a normal number for a position, by the method of Box and Muller."""
        # Box and Muller, 1958. The first number is in (0, 1], so that its logarithm is finite.
        first, second = (
            ex.shr(_bits(position, (seed0, seed1), (low, high), lane), 8) for lane in (0, 1)
        )
        radius = ex.sqrt(ex.log((ex.cast(first, compute) + 1.0) * 2.0**-24) * -2.0)
        return radius * ex.cos(ex.cast(second, compute) * (2.0 * math.pi * 2.0**-24))

    return formula


def _integer_bits(position: Expr, seed0: Expr, seed1: Expr, low: Expr, high: Expr) -> Expr:
    return ex.cast(ex.shr(_bits(position, (seed0, seed1), (low, high), 0), 1), int32)


def _word(lane: int) -> Callable[..., Expr]:
    def formula(position: Expr, seed0: Expr, seed1: Expr, low: Expr, high: Expr) -> Expr:
        """Return 32 random bits for a position."""
        bits = _bits(position, (seed0, seed1), (low, high), lane)
        return ex.bitcast(bits ^ ex.const(1 << 31, uint32), int32)

    return formula


def _random_formula(name: str, expr: Callable[..., Expr]) -> Elementwise:
    return Elementwise(
        name=name,
        family="random",
        signature="",
        doc="Random numbers.",
        expr=expr,
        tensors=(),
        function_in=(),
    )


# How many random bits a uniform number of each type holds: never so many that rounding gives 1.
_UNIFORM_BITS = {"float16": 11, "bfloat16": 8}
RANDOM: dict[tuple[str, str], Elementwise] = {
    **{
        ("uniform", d.name): _random_formula(
            f"_uniform_{d.name}", _uniform(_UNIFORM_BITS.get(d.name, 24), d.compute)
        )
        for d in FLOATS
    },
    **{
        ("normal", d.name): _random_formula(f"_normal_{d.name}", _normal(d.compute)) for d in FLOATS
    },
    ("bits", "int64"): _random_formula("_bits", _integer_bits),
    **{(f"word{lane}", "int32"): _random_formula(f"_word{lane}", _word(lane)) for lane in (0, 1)},
}
