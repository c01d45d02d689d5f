"""What each aten operator means, in calls of the op table: forward operators. Floor 6; imports the engine, not PyTorch.

An entry takes webtorch tensors and numbers in the order of the operator's schema and returns new tensors; it is named
after the operator ("relu" stands for relu, relu_ and relu.out) or one overload of it ("max.dim_max"). Eager kernels and
compiled graphs both run through these. Operators whose name and arguments are the table's own need no line here: `load`
takes them from the table.
"""

from __future__ import annotations

import importlib
import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from webtorch.errors import DTypeError, ShapeError
from webtorch.functions import indexing
from webtorch.functions.creation import fits
from webtorch.functions.norm import last_dims
from webtorch.functions.resize import resized
from webtorch.ir.dtype import bool_, float32, int32, int64, uint8
from webtorch.ir.lines import user_depth
from webtorch.ir.view import numel
from webtorch.ops.layout import Layout, channels_last_as, columns, of_operands
from webtorch.ops.precision import widened
from webtorch.ops.primitive import cast_to, copy, fill, iota
from webtorch.ops.record import TABLE, AutocastRule, Elementwise, Op, OutRule, Overlap
from webtorch.tensors.autocast import rules_of
from webtorch.tensors.tensor import Tensor

Function = Callable[..., Any]
FUNCTIONS: dict[str, Function] = {}
REDUCTIONS = ("none", "mean", "sum")


@dataclass(slots=True)
class Operator:
    """What a kernel must know of a PyTorch operator beside its meaning: the fields of an entry of the same names."""

    out: OutRule | Callable[..., OutRule] = "cast"
    overlap: Overlap = "any"
    layout: Layout | None = None


# Operator, without its overload -> what is known of it: the fields of its entry, and what is stated here.
OPERATORS: dict[str, Operator] = {}
_STATED: dict[str, dict[str, Any]] = {}
# Overloads that have a kernel though PyTorch could make them of others; those that are remembered; what autocast
# does with operators. See the fields of an entry.
DIRECT: set[str] = set()
REMEMBERED: set[str] = set()
AUTOCAST: dict[str, AutocastRule] = {}


def aten(
    *names: str,
    direct: tuple[str, ...] = (),
    remembered: tuple[str, ...] = (),
    **facts: Any,
) -> Callable[[Function], Function]:
    """Declare the meaning of the operators `names`, and what else is to be known of them: see `Operator`."""
    DIRECT.update(direct)
    REMEMBERED.update(remembered)

    def declare(function: Function) -> Function:
        """Put the function into FUNCTIONS under each name."""
        for name in names:
            assert name not in FUNCTIONS, f"{name} is declared twice"
            FUNCTIONS[name] = function
            base = name.partition(".")[0]
            _STATED.setdefault(base, {}).update(facts)
        return function

    return declare


def ruled_as(function: Callable[..., Any], *names: str) -> None:
    """Have autocast do with operators what it does with a function of ours that is no entry of the table."""
    rule = rules_of(function).gpu
    assert rule is not None, f"{names}: the function has no rule"
    AUTOCAST.update(dict.fromkeys(names, rule))


class _Table:
    """The op table's functions as attributes: `op.softmax(x, 1)`."""

    def __getattr__(self, name: str) -> Function:
        found = TABLE.get(name)
        if found is None:
            raise NotImplementedError(
                f"webgpu: webtorch has no operation '{name}' yet; run this part on the CPU with .cpu()"
            )
        setattr(self, name, found.function)
        return found.function


op = _Table()


def operators_of(entry: Op) -> tuple[str, ...]:
    """Return the names of the operators that an entry stands for, its own first."""
    own = entry.torch.removeprefix("nn.functional.").removeprefix("Tensor.").replace(".", "_")
    return tuple(filter(None, (own, *entry.aten, *entry.operators)))


def load() -> dict[str, Function]:
    """Return the meaning of every operator that has one: declared here, or the table's as it is."""
    # They declare the rest.
    for room in ("algebra", "attention", "gradients", "grouped", "layers", "random"):
        importlib.import_module(f"webtorch.pytorch.{room}")
    for entry in TABLE.values():
        name = entry.torch.rpartition(".")[2]
        if isinstance(entry, Elementwise) and name and not entry.name.startswith("_"):
            FUNCTIONS.setdefault(name, entry.function)
            if entry.torch.startswith("special."):
                FUNCTIONS.setdefault(f"special_{name}", entry.function)
        for name in entry.aten:
            FUNCTIONS.setdefault(name, entry.function)
        DIRECT.update(entry.direct)
        REMEMBERED.update(entry.remembered)
    seen: set[str] = set()
    for name, facts in _STATED.items():
        OPERATORS[name] = Operator(**facts)
    # What an entry that users find says counts for more than what one says that it is made of.
    for entry in sorted(TABLE.values(), key=lambda e: not e.function_in):
        fields = {"out": entry.out, "overlap": entry.overlap, "layout": entry.layout}
        for name in operators_of(entry):
            if name in seen:
                continue
            seen.add(name)
            OPERATORS[name] = Operator(**(fields | _STATED.get(name, {})))
            if entry.function_in and entry.autocast is not None and entry.autocast.gpu is not None:
                AUTOCAST.setdefault(name, entry.autocast.gpu)
    return FUNCTIONS


def dims_of(dim: Any) -> Any:
    """Return reduction dims; an empty list means all, as in PyTorch's older operators."""
    return None if dim is None or (not isinstance(dim, int) and len(dim) == 0) else dim


# ---- reductions ---------------------------------------------------------------------------------


@aten("sum", direct=("sum.dim_IntList",))
def _sum(x: Tensor, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Any:
    return op.sum(x, dims_of(dim), keepdim, dtype=dtype)


@aten("nansum")
def _nansum(x: Tensor, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Any:
    return op.nansum(x, dims_of(dim), keepdim, dtype=dtype)


@aten("mean", direct=("mean.dim",), remembered=("mean.dim",))
def _mean(x: Tensor, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Any:
    return op.mean(x, dims_of(dim), keepdim, dtype=dtype)


@aten("prod")
def _prod(x: Tensor, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Any:
    return op.prod(x, dim, keepdim, dtype=dtype)


@aten("amax", direct=("amax",))
def _amax(x: Tensor, dim: Any = (), keepdim: bool = False) -> Any:
    return op.amax(x, tuple(dim), keepdim)


@aten("amin")
def _amin(x: Tensor, dim: Any = (), keepdim: bool = False) -> Any:
    return op.amin(x, tuple(dim), keepdim)


@aten("any")
def _any(x: Tensor, dim: Any = None, keepdim: bool = False) -> Any:
    return op.any(x, dims_of(dim), keepdim)


@aten("all")
def _all(x: Tensor, dim: Any = None, keepdim: bool = False) -> Any:
    return op.all(x, dims_of(dim), keepdim)


@aten("count_nonzero")
def _count_nonzero(x: Tensor, dim: Any = None) -> Any:
    return op.count_nonzero(x, dims_of(dim))


@aten("max", "max.unary_out")
def _max(x: Tensor) -> Any:
    return op.max(x)


@aten("min", "min.unary_out")
def _min(x: Tensor) -> Any:
    return op.min(x)


@aten("max.dim", "max.dim_max")
def _max_dim(x: Tensor, dim: int, keepdim: bool = False) -> Any:
    return tuple(op.max(x, dim, keepdim))


@aten("min.dim", "min.dim_min")
def _min_dim(x: Tensor, dim: int, keepdim: bool = False) -> Any:
    return tuple(op.min(x, dim, keepdim))


@aten("median")
def _median(x: Tensor, dim: int | None = None, keepdim: bool = False) -> Any:
    if dim is None and not x.numel() and x.dtype.is_floating_point:
        return fill((), math.nan, x.dtype, x.device)
    found = op.median(x, dim, keepdim)
    return found if dim is None else tuple(found)


@aten("nanmedian")
def _nanmedian(x: Tensor, dim: int | None = None, keepdim: bool = False) -> Any:
    if dim is None and not x.numel() and x.dtype.is_floating_point:
        return fill((), math.nan, x.dtype, x.device)
    found = op.nanmedian(x, dim, keepdim)
    return found if dim is None else tuple(found)


@aten("aminmax", "_aminmax", "_aminmax.dim")
def _aminmax(x: Tensor, dim: int | None = None, keepdim: bool = False) -> Any:
    return tuple(op.aminmax(x, dim=dim, keepdim=keepdim))


def _spread(name: str) -> Function:
    """Return the meaning of `var` and its kin, which warn where there are too few numbers for the correction."""

    def run(
        x: Tensor, dim: Any = None, *, correction: float | None = None, keepdim: bool = False
    ) -> Any:
        """Compute it, and warn as PyTorch does."""
        correction = 1 if correction is None else correction
        found = getattr(op, name)(x, dims_of(dim), correction=correction, keepdim=keepdim)
        results = found[0].numel() if isinstance(found, tuple) else found.numel()
        if x.numel() // max(results, 1) <= correction:
            warnings.warn(
                f"{name}(): degrees of freedom is <= 0. Correction should be strictly less than the reduction "
                "factor (input numel divided by output numel).",
                UserWarning,
                stacklevel=user_depth(),
            )
        return found

    return run


for _name in ("var", "std"):
    aten(_name, f"{_name}.correction")(_spread(_name))
    aten(f"{_name}_mean.correction")(_spread(f"{_name}_mean"))


@aten("linalg_vector_norm")
def _vector_norm(
    x: Tensor, ord: float = 2, dim: Any = None, keepdim: bool = False, *, dtype: Any = None
) -> Any:
    return op.vector_norm(x, ord, dims_of(dim), keepdim, dtype=dtype)


@aten("norm")
def _norm(
    x: Tensor, p: Any = 2, dim: Any = None, keepdim: bool = False, *, dtype: Any = None
) -> Any:
    return op.norm(x, 2 if p is None else p, dims_of(dim), keepdim, dtype=dtype)


@aten("_logcumsumexp")
def _logcumsumexp(x: Tensor, dim: int) -> Any:
    return op.logcumsumexp(x, dim)


@aten("_softmax", out="exact", direct=("_softmax",), remembered=("_softmax",))
def _softmax(x: Tensor, dim: int, half_to_float: bool = False) -> Any:
    return op.softmax(x, dim, dtype=float32 if half_to_float else None)


@aten("_log_softmax", out="exact", direct=("_log_softmax",), remembered=("_log_softmax",))
def _log_softmax(x: Tensor, dim: int, half_to_float: bool = False) -> Any:
    return op.log_softmax(x, dim, dtype=float32 if half_to_float else None)


@aten("_safe_softmax", direct=("_safe_softmax",))
def _safe_softmax(x: Tensor, dim: int, dtype: Any = None) -> Any:
    out = op.softmax(x, dim, dtype=dtype)
    # Rows of nothing but -inf are zeros.
    return op.where(op.eq(op.amax(x, dim, True), float("-inf")), 0.0, out)


# ---- order and search ---------------------------------------------------------------------------


@aten("sort", "sort.values_stable")
def _sort(x: Tensor, stable: bool | None = None, dim: int = -1, descending: bool = False) -> Any:
    return tuple(op.sort(x, dim, descending, bool(stable)))


@aten("topk")
def _topk(x: Tensor, k: int, dim: int = -1, largest: bool = True, sorted: bool = True) -> Any:
    return tuple(op.topk(x, k, dim, largest, sorted))


@aten("nonzero", layout=columns)
def _nonzero(x: Tensor) -> Any:
    return op.nonzero(x)


@aten("_unique2")
def _unique2(
    x: Tensor, sorted: bool = True, return_inverse: bool = False, return_counts: bool = False
) -> Any:
    found, inverse, counts = op.unique(x, True, True, True)
    return found, inverse, counts


@aten("_unique")
def _unique(x: Tensor, sorted: bool = True, return_inverse: bool = False) -> Any:
    return _unique2(x)[:2]


@aten("unique_dim")
def _unique_dim(
    x: Tensor,
    dim: int,
    sorted: bool = True,
    return_inverse: bool = False,
    return_counts: bool = False,
) -> Any:
    return op.unique(x, True, True, True, dim)


@aten("unique_consecutive")
def _unique_consecutive(
    x: Tensor, return_inverse: bool = False, return_counts: bool = False, dim: int | None = None
) -> Any:
    return op.unique_consecutive(x, True, True, dim)


# ---- indexing -----------------------------------------------------------------------------------


def index_tensors(x: Tensor, indices: Sequence[Any]) -> dict[int, Any]:
    """Return index tensors by dimension, masks expanded (which reads them)."""
    for index in indices:
        if index is not None and index.dtype not in (int64, int32, bool_, uint8):
            raise IndexError(
                f"tensors used as indices must be long, int, byte or bool tensors, got {index.dtype}: use .long()"
            )
    return {d: i for d, i in enumerate(indexing.expand_masks(x._shape, indices)) if i is not None}


@aten("index", "_unsafe_index", direct=("index.Tensor",))
def _index(x: Tensor, indices: Sequence[Any]) -> Any:
    tensors = index_tensors(x, indices)
    return indexing.take_at(x, tensors) if tensors else copy(x)


@aten("index_put", "_index_put_impl_", "_unsafe_index_put", direct=("_index_put_impl_",))
def _index_put(
    x: Tensor, indices: Sequence[Any], values: Any, accumulate: bool = False, unsafe: bool = False
) -> Any:
    masks = [i for i in indices if i is not None]
    # A float64 number on the CPU comes as a number.
    is_number = not isinstance(values, Tensor)
    if (
        len(masks) == 1
        and masks[0].dtype is bool_
        and (is_number or values.numel() == 1)
        and indices[0] is not None
        and not accumulate
    ):
        # No positions are needed, so nothing is read from the device.
        mask = masks[0].reshape(masks[0]._shape + (1,) * (x.ndim - masks[0].ndim))
        value = values if is_number else values.reshape(())
        return op.where(mask, _fill(x.new_empty(()), value), x)
    if is_number or values.dtype is not x.dtype:
        given = "torch.float64" if is_number else values.dtype
        raise DTypeError(
            "Index put requires the source and destination dtypes match, got "
            f"{x.dtype} for the destination and {given} for the source: use values.to(x.dtype)"
        )
    out = copy(x)
    indexing.put_at(out, index_tensors(x, indices), values, accumulate=accumulate)
    return out


@aten("where", layout=of_operands)
def _where(condition: Any, x: Tensor, y: Tensor) -> Any:
    # PyTorch still takes conditions of bytes.
    return op.where(cast_to(condition, bool_) if condition.dtype is uint8 else condition, x, y)


@aten("gather", direct=("gather",))
def _gather(x: Tensor, dim: int, index: Any, *, sparse_grad: bool = False) -> Any:
    if not index.numel():
        return fill(index._shape, 0, x.dtype, x.device)
    return op.gather(x, dim, index)


def _whole(index: Any) -> Any:
    """Return an index of narrow integers, which PyTorch takes as well, as int64."""
    return cast_to(index, int64) if index.dtype.is_integral and index.dtype.itemsize < 4 else index


@aten("scatter_add")
def _scatter_add(x: Tensor, dim: int, index: Any, src: Tensor) -> Any:
    return op.scatter_add(x, dim, _whole(index), src)


@aten(
    "scatter",
    "scatter.src",
    "scatter.src_out",
    "scatter.value",
    "scatter.value_out",
)
def _scatter(x: Tensor, dim: int, index: Any, src: Tensor | None = None, value: Any = None) -> Any:
    src = value if src is None else src
    if isinstance(src, (bool, int, float)):
        return op.scatter(x, dim, index, value=src)
    return op.scatter(x, dim, index, src)


@aten("scatter.reduce", "scatter.reduce_out", "scatter.value_reduce", "scatter.value_reduce_out")
def _scatter_with(x: Tensor, dim: int, index: Any, src: Tensor, *, reduce: str) -> Any:
    if isinstance(src, (bool, int, float)):
        return op.scatter(x, dim, index, value=src, reduce=reduce)
    return op.scatter(x, dim, index, src, reduce=reduce)


@aten("scatter_reduce")
def _scatter_reduce(
    x: Tensor, dim: int, index: Any, src: Tensor, reduce: str, *, include_self: bool = True
) -> Any:
    return op.scatter_reduce(x, dim, index, src, reduce, include_self=include_self)


@aten("embedding", direct=("embedding",))
def _embedding(
    weight: Tensor,
    indices: Any,
    padding_idx: int = -1,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> Any:
    return op.embedding(indices, weight)


@aten("put", "put_")
def _put(x: Tensor, index: Any, source: Tensor, accumulate: bool = False) -> Any:
    if index.dtype is not int64:
        raise DTypeError(f"put_(): Expected a long tensor for index, but got {index.dtype}")
    if source.dtype is not x.dtype:
        raise DTypeError(
            "put_(): self and source expected to have the same dtype, but got "
            f"self.dtype = {x.dtype} and source.dtype = {source.dtype}"
        )
    if source.numel() != index.numel():
        raise IndexError(
            "put_(): Expected source and index to have the same number of elements, but got "
            f"source.numel() = {source.numel()}, index.numel() = {index.numel()}"
        )
    out = copy(x).reshape(-1)
    indexing.put_at(out, {0: index.reshape(-1)}, source.reshape(-1), accumulate=accumulate)
    return out.reshape(x._shape)


@aten("_trilinear")
def _trilinear(
    x: Tensor,
    y: Tensor,
    z: Tensor,
    expand_x: Sequence[int],
    expand_y: Sequence[int],
    expand_z: Sequence[int],
    dims: Sequence[int],
    unroll_dim: int = 1,
) -> Any:
    """The sum over `dims` of a product of three, each with dims of one in the places of its `expand`."""
    for dim in sorted(expand_x):
        x = op.unsqueeze(x, dim)
    for dim in sorted(expand_y):
        y = op.unsqueeze(y, dim)
    for dim in sorted(expand_z):
        z = op.unsqueeze(z, dim)
    return op.sum(op.mul(op.mul(x, y), z), tuple(dims))


@aten("linalg_cross")
def _cross(x: Tensor, y: Tensor, *, dim: int = -1) -> Any:
    return op.linalg_cross(x, y, dim=dim)


@aten("repeat_interleave.Tensor")
def _repeat_interleave(repeats: Any, *, output_size: int | None = None) -> Any:
    positions = iota(repeats.numel(), 0, 1, int64, repeats.device)
    return op.repeat_interleave(positions, repeats, 0, output_size=output_size)


# ---- filling ------------------------------------------------------------------------------------


def filled(shape: Sequence[int], value: Any, dtype: Any, device: Any) -> Any:
    """Return a tensor of one number. Raises RuntimeError, as PyTorch does, where the dtype cannot hold it."""
    return fill(tuple(shape), fits(value, dtype), dtype, device)


@aten("fill", "fill_")
def _fill(x: Tensor, value: Any) -> Any:
    if isinstance(value, (bool, int, float, complex)):
        return filled(x._shape, value, x.dtype, x.device)
    if value._shape:
        raise RuntimeError(
            "fill_ only supports 0-dimension value tensor but got tensor with "
            f"{len(value._shape)} dimensions."
        )
    return cast_to(value, x.dtype).expand(x._shape)


@aten("zero_")
def _zero(x: Tensor) -> Any:
    return fill(x._shape, 0, x.dtype, x.device)


# ---- activations --------------------------------------------------------------------------------


@aten("elu")
def elu(x: Tensor, alpha: float = 1, scale: float = 1, input_scale: float = 1) -> Any:
    """PyTorch's operator behind elu, selu and celu."""
    out = (
        op.elu(x, alpha)
        if input_scale == 1
        else op.where(op.gt(x, 0), x, op.expm1(x * input_scale) * alpha)
    )
    return out if scale == 1 else out * scale


@aten("_prelu_kernel", layout=of_operands)
def prelu_kernel(x: Tensor, weight: Tensor) -> Any:
    """X where positive, else x * weight."""
    return op.where(op.gt(x, 0), x, x * weight)


@aten("log_sigmoid_forward", out="exact")
def _log_sigmoid(x: Tensor) -> Any:
    return op.logsigmoid(x), fill((0,), 0, x.dtype, x.device)


@aten("clamp_max.Tensor")
def _clamp_max(x: Tensor, bound: Any) -> Any:
    return op.minimum(x, bound)


@aten("clamp_min.Tensor")
def _clamp_min(x: Tensor, bound: Any) -> Any:
    return op.maximum(x, bound)


@aten("hardtanh", layout=of_operands)
def _hardtanh(x: Tensor, low: float = -1, high: float = 1) -> Any:
    if x.dtype is bool_:
        raise DTypeError("Bool inputs not supported for hardtanh: use input.float()")
    if x.dtype.kind == "uint" and low < 0:
        raise DTypeError(
            f"cannot do hardtanh on an unsigned type with negative limits, got {x.dtype} and {low}"
        )
    return op.clamp(x, *((low, high) if x.dtype.is_floating_point else (int(low), int(high))))


@aten("__lshift__", "__ilshift__", "bitwise_left_shift")
def _left_shift(x: Tensor, y: Tensor) -> Any:
    return op.bitwise_left_shift(x, y)


@aten("__rshift__", "__irshift__", "bitwise_right_shift")
def _right_shift(x: Tensor, y: Tensor) -> Any:
    return op.bitwise_right_shift(x, y)


@aten("_assert_async")
def _assert_async(
    x: Tensor, message: str = "Expected Tensor with single nonzero value, but got zero"
) -> None:
    if not bool(x):
        raise RuntimeError(message)


# ---- convolutions -------------------------------------------------------------------------------


@aten(
    "convolution",
    "convolution_overrideable",
    layout=channels_last_as(0, 1),
    direct=("convolution_overrideable",),
    remembered=("convolution_overrideable",),
)
def convolution(
    x: Tensor,
    weight: Tensor,
    bias: Tensor,
    stride: Any,
    padding: Any,
    dilation: Any,
    transposed: bool,
    output_padding: Any,
    groups: int,
) -> Any:
    """Convolution over one to three dims, or its transpose."""
    rank = weight.ndim - 2

    def sizes(values: Any) -> tuple[int, ...]:
        """Return one size for each dim."""
        return tuple(values) * rank if len(values) == 1 else tuple(values)

    if transposed:
        run = (op.conv_transpose1d, op.conv_transpose2d, op.conv_transpose3d)[rank - 1]
        return run(
            x,
            weight,
            bias,
            sizes(stride),
            sizes(padding),
            sizes(output_padding),
            groups,
            sizes(dilation),
        )
    run = (op.conv1d, op.conv2d, op.conv3d)[rank - 1]
    return run(x, weight, bias, sizes(stride), sizes(padding), sizes(dilation), groups)


# ---- pooling, padding, resizing -----------------------------------------------------------------


def max_pool(rank: int) -> Function:
    """Return max pooling over `rank` dims with aten's arguments; gives values and positions."""

    def run(
        x: Tensor,
        kernel: Any,
        stride: Any = (),
        padding: Any = 0,
        dilation: Any = 1,
        ceil_mode: bool = False,
    ) -> Any:
        """Return the maxima and their positions."""
        pool = op.max_pool2d if rank == 2 else op.max_pool3d
        return tuple(
            pool(
                x,
                _sizes(kernel, rank),
                _sizes(stride, rank) or None,
                _sizes(padding, rank),
                _sizes(dilation, rank),
                ceil_mode,
                True,
            )
        )

    return run


def avg_pool(rank: int) -> Function:
    """Return average pooling over `rank` dims with aten's arguments."""

    def run(
        x: Tensor,
        kernel: Any,
        stride: Any = (),
        padding: Any = 0,
        ceil_mode: bool = False,
        count_include_pad: bool = True,
        divisor: Any = None,
    ) -> Any:
        """Return the means."""
        pool = op.avg_pool2d if rank == 2 else op.avg_pool3d
        return pool(
            x,
            _sizes(kernel, rank),
            _sizes(stride, rank) or None,
            _sizes(padding, rank),
            ceil_mode,
            count_include_pad,
            divisor,
        )

    return run


def _sizes(values: Any, rank: int) -> tuple[int, ...]:
    if isinstance(values, int):
        return (values,) * rank
    return tuple(values) * rank if len(values) == 1 else tuple(values)


for _rank in (2, 3):
    aten(f"max_pool{_rank}d_with_indices")(max_pool(_rank))
    aten(f"avg_pool{_rank}d")(avg_pool(_rank))


@aten("_adaptive_avg_pool2d", "adaptive_avg_pool2d", layout=channels_last_as(0))
def adaptive_avg_pool2d(x: Tensor, output_size: Any) -> Any:
    """Average pooling to a given size."""
    return op.adaptive_avg_pool2d(x, _sizes(output_size, 2))


@aten("_adaptive_avg_pool3d", "adaptive_avg_pool3d")
def adaptive_avg_pool3d(x: Tensor, output_size: Any) -> Any:
    """Average pooling to a given size."""
    return op.adaptive_avg_pool3d(x, _sizes(output_size, 3))


@aten("adaptive_max_pool2d")
def adaptive_max_pool2d(x: Tensor, output_size: Any) -> Any:
    """Max pooling to a given size; values and positions."""
    return tuple(op.adaptive_max_pool2d(x, _sizes(output_size, 2), True))


@aten("adaptive_max_pool3d")
def adaptive_max_pool3d(x: Tensor, output_size: Any) -> Any:
    """Max pooling to a given size; values and positions."""
    return tuple(op.adaptive_max_pool3d(x, _sizes(output_size, 3), True))


@aten("max_unpool2d", layout=channels_last_as(0))
def _max_unpool2d(x: Tensor, indices: Any, output_size: Any) -> Any:
    return _unpool(x, indices, output_size, 2)


@aten("max_unpool3d")
def _max_unpool3d(x: Tensor, indices: Any, output_size: Any, stride: Any, padding: Any) -> Any:
    return _unpool(x, indices, output_size, 3)


def _unpool(x: Tensor, indices: Any, output_size: Any, rank: int) -> Any:
    """Return zeros with each value at its position in the last `rank` dims."""
    lead, sizes = x._shape[: x.ndim - rank], tuple(output_size)
    zeros = fill((*lead, numel(sizes)), 0, x.dtype, x.device)
    flat = op.scatter(zeros, len(lead), indices.reshape((*lead, -1)), x.reshape((*lead, -1)))
    return flat.reshape((*lead, *sizes))


@aten("im2col")
def im2col(x: Tensor, kernel: Any, dilation: Any, padding: Any, stride: Any) -> Any:
    """Windows as columns."""
    return op.functional_unfold(
        x, _sizes(kernel, 2), _sizes(dilation, 2), _sizes(padding, 2), _sizes(stride, 2)
    )


@aten("col2im")
def col2im(
    x: Tensor, output_size: Any, kernel: Any, dilation: Any, padding: Any, stride: Any
) -> Any:
    """Columns added up to an image."""
    return op.functional_fold(
        x,
        _sizes(output_size, 2),
        _sizes(kernel, 2),
        _sizes(dilation, 2),
        _sizes(padding, 2),
        _sizes(stride, 2),
    )


def padding(mode: str) -> Function:
    """Return padding of the last dims by reflection or repetition."""
    return lambda x, pad: op.pad(x, tuple(pad), mode)


for _rank in (1, 2, 3):
    for _name, _mode in (("reflection", "reflect"), ("replication", "replicate")):
        # Of rows, and of reflected images, PyTorch makes it of the out= form.
        _made = _rank == 1 or (_rank, _mode) == (2, "reflect")
        _name = f"{_name}_pad{_rank}d"
        _layout = None if _rank == 1 else channels_last_as(0)
        aten(_name, direct=() if _made else (_name,), layout=_layout)(padding(_mode))


@aten("constant_pad_nd", layout=channels_last_as(0), direct=("constant_pad_nd",))
def _constant_pad_nd(x: Tensor, pad: Any, value: float = 0) -> Any:
    return op.pad(x, tuple(pad), "constant", value)


# PyTorch's operator -> interpolate's mode, whether it takes align_corners, and whether it widens the filter.
RESIZES: dict[str, tuple[str, bool, bool]] = {
    **{f"upsample_nearest{r}d": ("nearest", False, False) for r in (1, 2, 3)},
    **{f"_upsample_nearest_exact{r}d": ("nearest-exact", False, False) for r in (1, 2, 3)},
    "upsample_linear1d": ("linear", True, False),
    "upsample_bilinear2d": ("bilinear", True, False),
    "upsample_bicubic2d": ("bicubic", True, False),
    "upsample_trilinear3d": ("trilinear", True, False),
    **{f"_upsample_{m}2d_aa": (m, True, True) for m in ("bilinear", "bicubic", "lanczos")},
}


def resize(mode: str, has_corners: bool, antialias: bool) -> Function:
    """Return resizing with aten's arguments: output size, align_corners if there is a choice, the scales asked for."""

    def run(x: Tensor, output_size: Any, *rest: Any) -> Any:
        """Return the resized images."""
        corners, scales = (rest[0], rest[1:]) if has_corners else (False, rest)
        wanted = tuple(output_size)
        # PyTorch leaves out the last arguments where they are None.
        given = scales + (None,) * (len(wanted) - len(scales))
        # A scale that was asked for, not the quotient of the sizes, places the samples.
        steps = tuple(
            [
                1.0 / f if f else s / max(n, 1)
                for s, n, f in zip(x.shape[2:], wanted, given, strict=True)
            ]
        )
        return resized(x, wanted, steps, mode, bool(corners), antialias)

    return run


for _name, _how in RESIZES.items():
    aten(_name, out="exact")(resize(*_how))


# ---- normalisations: PyTorch's operators also return the statistics -----------------------------


def normalized(x: Tensor, dims: tuple[int, ...], eps: float) -> tuple[Any, Any, Any]:
    """Return ((x - mean) / deviation, mean, 1 / deviation) over `dims`, which stay; in float32 for 16-bit inputs."""
    x = widened(x)
    mean = op.mean(x, dims, True)
    centred = x - mean
    rstd = op.rsqrt(op.mean(op.square(centred), dims, True) + eps)
    return centred * rstd, mean, rstd


def affine(unit: Any, weight: Tensor, bias: Tensor, dtype: Any) -> Any:
    """Return unit * weight + bias as `dtype`."""
    if weight is not None:
        unit = unit * weight
    if bias is not None:
        unit = unit + bias
    return cast_to(unit, dtype)


@aten("native_layer_norm", direct=("native_layer_norm",), remembered=("native_layer_norm",))
def _native_layer_norm(
    x: Tensor, shape: Sequence[int], weight: Tensor, bias: Tensor, eps: float
) -> Any:
    dims = last_dims("layer_norm", x, shape, weight=weight, bias=bias)
    if not x.numel():
        lead = (*x._shape[: x.ndim - len(shape)], *(1,) * len(shape))
        return copy(x), fill(lead, 0, float32, x.device), fill(lead, 0, float32, x.device)
    unit, mean, rstd = normalized(x, dims, eps)
    return affine(unit, weight, bias, x.dtype), mean, rstd


def per_channel(vector: Any, rank: int) -> Any:
    """Return a vector over channels as it broadcasts against (N, C, ...)."""
    return None if vector is None else vector.reshape((1, -1) + (1,) * (rank - 2))


@aten(
    "native_group_norm",
    layout=channels_last_as(0),
    direct=("native_group_norm",),
    remembered=("native_group_norm",),
)
def _native_group_norm(
    x: Tensor, weight: Tensor, bias: Tensor, n: int, c: int, hw: int, groups: int, eps: float
) -> Any:
    if not x.numel():
        none = fill((n, groups), 0, float32, x.device)
        return copy(x), none, copy(none)
    unit, mean, rstd = normalized(x.reshape(n, groups, -1), (2,), eps)
    out = affine(
        unit.reshape(x._shape), per_channel(weight, x.ndim), per_channel(bias, x.ndim), x.dtype
    )
    return out, mean.reshape(n, groups), rstd.reshape(n, groups)


def _batch_dims(x: Tensor) -> tuple[int, ...]:
    return (0, *range(2, x.ndim))


def batch_norm(
    x: Tensor,
    weight: Tensor,
    bias: Tensor,
    running_mean: Any,
    running_var: Any,
    training: bool,
    momentum: float,
    eps: float,
) -> tuple[Any, Any, Any, Any, Any]:
    """Return (out, mean, 1 / deviation, new running mean, new running variance); the statistics are vectors."""
    if not training:
        mean, rstd = running_mean, op.rsqrt(running_var + eps)
        unit = (widened(x) - per_channel(mean, x.ndim)) * per_channel(rstd, x.ndim)
        return (
            affine(unit, per_channel(weight, x.ndim), per_channel(bias, x.ndim), x.dtype),
            mean,
            rstd,
            running_mean,
            running_var,
        )
    dims = _batch_dims(x)
    unit, mean, rstd = normalized(x, dims, eps)
    out = affine(unit, per_channel(weight, x.ndim), per_channel(bias, x.ndim), x.dtype)
    mean, rstd = mean.reshape(-1), rstd.reshape(-1)
    if running_mean is not None:
        count = numel(tuple(x._shape[d] for d in dims))
        if count <= 1:
            raise ValueError(
                f"Expected more than 1 value per channel when training, got input size {list(x._shape)}"
            )
        variance = (1.0 / op.square(rstd) - eps) * (count / (count - 1))
        running_mean = running_mean + momentum * (cast_to(mean, running_mean.dtype) - running_mean)
        running_var = running_var + momentum * (cast_to(variance, running_var.dtype) - running_var)
    return out, mean, rstd, running_mean, running_var


@aten("native_batch_norm", "_native_batch_norm_legit", layout=channels_last_as(0))
def _native_batch_norm(
    x: Tensor,
    weight: Tensor,
    bias: Tensor,
    running_mean: Any,
    running_var: Any,
    training: bool,
    momentum: float,
    eps: float,
) -> Any:
    out, mean, rstd, new_mean, new_var = batch_norm(
        x, weight, bias, running_mean, running_var, training, momentum, eps
    )
    if training and running_mean is not None:
        op.copy_(running_mean, new_mean)
        op.copy_(running_var, new_var)
    if not training:
        return out, fill((0,), 0, float32, x.device), fill((0,), 0, float32, x.device)
    return out, mean, rstd


@aten("_native_batch_norm_legit.no_stats")
def _batch_norm_no_stats(
    x: Tensor, weight: Tensor, bias: Tensor, training: bool, momentum: float, eps: float
) -> Any:
    return batch_norm(x, weight, bias, None, None, True, momentum, eps)[:3]


@aten("_native_batch_norm_legit_functional", layout=channels_last_as(0))
def _batch_norm_functional(
    x: Tensor,
    weight: Tensor,
    bias: Tensor,
    running_mean: Any,
    running_var: Any,
    training: bool,
    momentum: float,
    eps: float,
) -> Any:
    out, mean, rstd, new_mean, new_var = batch_norm(
        x, weight, bias, running_mean, running_var, training, momentum, eps
    )
    if not training:
        mean, rstd = fill((0,), 0, float32, x.device), fill((0,), 0, float32, x.device)
    return out, mean, rstd, new_mean, new_var


@aten("_native_batch_norm_legit_no_training", layout=channels_last_as(0))
def _batch_norm_no_training(
    x: Tensor,
    weight: Tensor,
    bias: Tensor,
    running_mean: Any,
    running_var: Any,
    momentum: float,
    eps: float,
) -> Any:
    out = batch_norm(x, weight, bias, running_mean, running_var, False, momentum, eps)[0]
    return out, fill((0,), 0, float32, x.device), fill((0,), 0, float32, x.device)


@aten("_batch_norm_with_update", layout=channels_last_as(0))
def _batch_norm_with_update(
    x: Tensor,
    weight: Tensor,
    bias: Tensor,
    running_mean: Any,
    running_var: Any,
    momentum: float,
    eps: float,
) -> Any:
    out, mean, rstd = _native_batch_norm(
        x, weight, bias, running_mean, running_var, True, momentum, eps
    )
    return out, mean, rstd, fill((0,), 0, uint8, x.device)


# ---- losses -------------------------------------------------------------------------------------


def class_weights(
    x: Tensor, target: Any, weight: Tensor | None, ignore_index: int
) -> tuple[Any, Any]:
    """Return the class numbers, ignored ones as 0, and each one's weight (0 where ignored), looked up with a check."""
    classes = x._shape[1 if x.ndim > 1 else 0]
    if target.dtype not in (int64, uint8):
        raise DTypeError(
            f"nll_loss: expected target dtype to be Long or Byte, but got {target.dtype}: use target.long()"
        )
    if weight is not None and weight._shape != (classes,):
        raise ShapeError(
            f"nll_loss: weight tensor should be defined either for all {classes} classes or no classes but got "
            f"weight tensor of shape: {list(weight._shape)}"
        )
    target = cast_to(target, int64)
    counted = op.ne(target, ignore_index)
    safe = op.where(counted, target, 0)
    table = fill((classes,), 1, x.dtype, x.device) if weight is None else weight
    weights = (
        indexing.take_at(table, {0: safe})
        if target.numel()
        else fill(target._shape, 0, x.dtype, x.device)
    )
    return safe, op.where(counted, weights, 0.0)


@aten(
    "nll_loss_forward",
    "nll_loss2d_forward",
    direct=("nll_loss_forward",),
    remembered=("nll_loss_forward",),
)
def _nll_loss(x: Tensor, target: Any, weight: Tensor, reduction: int, ignore_index: int) -> Any:
    safe, weights = class_weights(x, target, weight, ignore_index)
    dim = 1 if x.ndim > 1 else 0
    if x.ndim > 1 or target.ndim == 0:
        picked = op.gather(x, dim, safe.unsqueeze(dim)).squeeze(dim)
    else:
        picked = op.gather(x, 0, safe)
    # An ignored row counts nothing, also where it holds infinities.
    loss = op.where(op.ne(target, ignore_index), -(picked * weights), 0.0)
    if reduction == 0:
        return loss, fill((), 0, x.dtype, x.device)
    total = op.sum(weights)
    loss = op.sum(loss)
    return (loss / total if reduction == 1 else loss), total


def _pair(name: str) -> Function:
    def run(x: Tensor, y: Tensor, reduction: int = 1, *numbers: Any) -> Any:
        """Return the loss of two tensors; `reduction` is PyTorch's number."""
        return TABLE[name].function(x, y, **_extra(name, numbers), reduction=REDUCTIONS[reduction])

    return run


def _extra(name: str, numbers: tuple[Any, ...]) -> dict[str, Any]:
    names = {"smooth_l1_loss": "beta", "huber_loss": "delta"}
    return {names[name]: numbers[0]} if numbers else {}


for _name in ("mse_loss", "smooth_l1_loss", "huber_loss"):
    FUNCTIONS[_name] = _pair(_name)


@aten("binary_cross_entropy")
def binary_cross_entropy(
    x: Tensor, y: Tensor, weight: Tensor | None = None, reduction: int = 1
) -> Any:
    """The loss of probabilities."""
    return op.binary_cross_entropy(x, y, weight, reduction=REDUCTIONS[reduction])


# ---- mixed precision ----------------------------------------------------------------------------


@aten("_amp_update_scale_")
def _amp_update_scale(
    scale: Any, growth_tracker: Any, found_inf: Any, growth: float, backoff: float, interval: int
) -> Any:
    failed = op.ne(found_inf, 0.0)
    grown = op.eq(growth_tracker + 1, interval)
    tracker = op.where(op.logical_or(failed, grown), 0, growth_tracker + 1)
    new = op.where(failed, scale * backoff, op.where(grown, scale * growth, scale))
    op.copy_(growth_tracker, cast_to(tracker, growth_tracker.dtype))
    return new
