"""The primitives: the few operations that floor 4 records as graph nodes, and their gradient rules.
May import floor 0 only.

Everything that is not a primitive or an elementwise formula is written with these. They check
nothing: shapes and types are
right when they are called. They are not public.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from webtorch.ir import expr as ex
from webtorch.ir.dtype import FLOATS, DType, Scalar, int32, uint32
from webtorch.ir.expr import Expr
from webtorch.ir.view import Shape
from webtorch.ops.record import Composite, Elementwise, P, R, register, signature_of

if TYPE_CHECKING:
    from webtorch.tensors.device import DeviceLike
    from webtorch.tensors.tensor import Tensor


def _primitive(name: str, **fields: Any) -> Callable[[Callable[P, R]], Composite[P, R]]:
    """Declare a primitive of a function's types; `webtorch.tensors` gives it the body."""

    def declare(function: Callable[P, R]) -> Composite[P, R]:
        """Put the entry of a function into the table."""
        op: Composite[P, R] = Composite(
            name=name, family="composite", signature=signature_of(inspect.signature(function)),
            doc=inspect.getdoc(function) or "", function_in=(), **fields,
        )  # fmt: skip
        register(op)
        return op

    return declare


@_primitive("_view")
def as_view(
    x: Tensor,
    shape: Sequence[int],
    strides: Sequence[int],
    offset: int,
    vjp: Callable[..., Tensor] | None = None,
    args: tuple[object, ...] = (),
    name: str = "AsStrided",
) -> Tensor:
    """A view of x's own storage: shape, strides and absolute offset in elements. Shares memory. `vjp(g, *args)`
    maps the view's cotangent to x's (shape of x); None uses the general, slower rule for any
    strides. `name` is the printed name of the gradient function.
    """


@_primitive("_check_own_storage")
def check_own_storage(x: Tensor) -> None:
    """Raise CaptureError where x's storage is a copy's, which stands for a view in a capture."""


@_primitive("_pad")
def pad_with(x: Tensor, low: Sequence[int], high: Sequence[int], value: Scalar) -> Tensor:
    """Put x inside a border of `value`: per-dim counts before and after (all >= 0). Differentiable in x."""


@_primitive("_reduce")
def reduce_dims(x: Tensor, combine: str, dims: tuple[int, ...]) -> Tensor:
    """Combine over `dims` (a sorted tuple), which stay as size 1. combine: a name of `REDUCERS`.
    Not empty. Differentiable (sum, max, min).
    """


@_primitive("_take")
def take(
    x: Tensor, indices: Sequence[Tensor], name: str, wrap: bool = False, dims: Sequence[int] = ()
) -> Tensor:
    """out[b..., r...] = x[indices[0][b], indices[1][b], ..., r]: integer index tensors of one shape b
    pick along x's first dims. Bounds are checked on the device, errors name `name` and the dim (of
    `dims`, where x was permuted); wrap=True allows negative indices. Differentiable in x.
    """


@_primitive("_scatter")
def scatter(
    base: Tensor,
    indices: Sequence[Tensor],
    values: Tensor,
    combine: str,
    name: str,
    wrap: bool = False,
    dims: Sequence[int] = (),
) -> Tensor:
    """A copy of base with base[indices[0][b], ..., r] combined with values[b, r]; combine: set add mul
    max min. Differentiable for set and add.
    """


@_primitive("_matmul")
def matmul3(a: Tensor, b: Tensor) -> Tensor:
    """Batched product of (B, M, K) and (B, K, N); one type. Strided operands are read in place.
    Differentiable.
    """


@_primitive("_unrounded")
def unrounded(multiply: Callable[..., Tensor], *args: object) -> Tensor:
    """multiply(*args), a product or a convolution; that of 16-bit floats is the float32 sums."""


@_primitive("_conv2d")
def conv2d_raw(
    kind: str,
    a: Tensor,
    b: Tensor,
    input_shape: Shape,
    weight_shape: Shape,
    output_shape: Shape,
    stride: Shape,
    padding: Shape,
    dilation: Shape,
    groups: int,
) -> Tensor:
    """A convolution or one of its gradients. `kind` "forward": (input, weight); "input":
    (grad_output, weight); "weight": (input, grad_output).
    Differentiable in both.
    """


@_primitive("_attention")
def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    causal: bool,
    scale: Scalar,
    dropout: tuple[float, int, int] | None,
    again: Callable[..., object],
) -> Tensor:
    """softmax(query key^T scale + mask) value without scores in memory: query (B, H, L, E), key (B, G,
    S, E), value (B, G, S, V), H a multiple of G; mask (B, H, L, S), bool or float, or None;
    `dropout` None or (probability, seed, counter). `again(query, key, value, cotangent)` computes
    the three cotangents with differentiable operations, for second derivatives. Differentiable in
    query, key and value.
    """


@_primitive("_multiplies_narrow")
def multiplies_narrow(query: Tensor, key: Tensor) -> bool:
    """Whether query key^T, of 16 bits, runs on units of its own, or reads too few queries to cast all
    keys.
    """


@_primitive("_scan")
def scan(x: Tensor, combine: str, dim: int) -> Tensor:
    """Running sum, prod, max or min along `dim`. Differentiable for sum."""


@_primitive("_sort_places")
def sort_places(x: Tensor, descending: bool, first: int, count: int) -> Tensor:
    """For each row of the matrix x, the places of its elements in order, `count` of them from rank
    `first` on: int64, (rows, count). NaN is the largest number; ties keep their order. Not
    differentiable.
    """


@_primitive("_fill", grows=True)
def fill(shape: Sequence[int], value: Scalar | complex, dtype: DType, device: DeviceLike) -> Tensor:
    """A new tensor of one value (a runtime argument)."""


@_primitive("_empty")
def empty(
    shape: Sequence[int], dtype: DType, device: DeviceLike, like: Sequence[Tensor] = ()
) -> Tensor:
    """Uninitialised memory, for each example that one of the tensors `like` is batched over."""


@_primitive("_iota")
def iota(count: int, start: Scalar, step: Scalar, dtype: DType, device: DeviceLike) -> Tensor:
    """Return start + i * step for i < count, computed in dtype (1-d)."""


@_primitive("_philox")
def philox(
    shape: Sequence[int],
    seed: int,
    offset: int,
    dtype: DType,
    device: DeviceLike,
    kind: str = "uniform",
    low: Scalar = 0,
) -> Tensor:
    """Counter-based random numbers: element i uses Philox4x32-10 with key `seed` (64 bits) and counter
    (i + offset), so a call uses up numel counters. kind 'uniform': float in [0, 1) from the upper
    24 bits of lane 0 (8 for bfloat16, 11 for float16); 'normal': Box-Muller on lanes 0 and 1;
    'bits': the upper 31 bits of lane 0 as int64; 'word0' and 'word1': those lanes as int32, ordered
    as their bits are.
    """


@_primitive("_draw")
def draw(formula: Elementwise, parameters: Sequence[Tensor], seed: int, offset: int) -> Tensor:
    """Random numbers of distributions: an elementwise formula of the parameters (tensors of one shape
    and type), of the element's position, and of the words of a seed and of a counter. The formula
    takes its own counters; how many elements use up is the caller's to say.
    """


@_primitive("_cast")
def cast_to(x: Tensor, dtype: DType) -> Tensor:
    """Return x converted to dtype (a new tensor even if the type is the same is not made). Differentiable
    between floats.
    """


@_primitive("_formula")
def formula(
    op: Elementwise,
    tensors: Sequence[Tensor],
    shape: Shape,
    dtype: DType,
    device: DeviceLike = None,
    compute: DType | None = None,
) -> Tensor:
    """An entry applied to the flat position (an int32) and to real tensors of `shape`, which it is given
    in the type `compute` (that of the result if None). Not differentiable.
    """


@_primitive("_pairs")
def pairs(x: Tensor) -> Tensor:
    """The real and imaginary parts of a complex x along a last dim of size 2: a view. Differentiable."""


@_primitive("_paired")
def paired(x: Tensor) -> Tensor:
    """The complex tensor whose parts are along the last dim of x: a view where x's strides allow it
    (last 1, others even). Differentiable.
    """


@_primitive("_seen_as")
def seen_as(
    x: Tensor, shape: Sequence[int], strides: Sequence[int], offset: int, dtype: DType
) -> Tensor:
    """Return x's memory as elements of dtype; the geometry is in these. Not differentiable."""


@_primitive("_complex_of")
def complex_of(x: Tensor) -> Tensor:
    """What `paired` gives, of a new x that nobody else sees: no view of it."""


@_primitive("_real_part")
def real_part(x: Tensor) -> Tensor:
    """The real part of a complex x: a view. Differentiable."""


@_primitive("_imag_part")
def imag_part(x: Tensor) -> Tensor:
    """The imaginary part of a complex x: a view. Differentiable."""


@_primitive("_join")
def join(re: Tensor, im: Tensor) -> Tensor:
    """The complex tensor of two real ones of one shape. Differentiable."""


@_primitive("_conjugate")
def conjugate(x: Tensor) -> Tensor:
    """The conjugate; a real x itself. Differentiable."""


@_primitive("_host")
def host(
    name: str,
    inputs: Sequence[Tensor],
    params: tuple[object, ...],
    shapes: Sequence[tuple[int, ...]],
) -> tuple[Tensor, ...]:
    """The results, of `shapes` and the first input's type, of a function of whole arrays that only the
    CPU has: a tuple. Not differentiable.
    """


@_primitive("_copy")
def copy(x: Tensor) -> Tensor:
    """A contiguous copy of x in new storage. Differentiable."""


@_primitive("_write")
def write(x: Tensor, values: Tensor, fresh: bool = False) -> Tensor:
    """Overwrite x's elements in place with `values` (same shape and type); version, views and
    gradients follow PyTorch.
    """


@_primitive("_differentiated")
def differentiated(x: Tensor) -> bool:
    """Whether what is computed from x is recorded, for backward or for its tangent."""


@_primitive("_in_memory")
def in_memory(x: Tensor) -> bool:
    """Whether x has been computed, so that nothing fuses with it."""


@_primitive("_shown")
def shown(x: Tensor) -> Tensor:
    """Return x with the dimensions that vmap hides as its first, outside autograd."""


@_primitive("_each")
def each(x: Tensor, like: Tensor) -> Tensor:
    """x, with memory of its own for each example that `like` is batched over."""


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
