"""Pooling: one view that shows every window of the (padded) input, and one reduction over its last dimensions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from webtorch.errors import ShapeError
from webtorch.functions.convolution import Sizes, crop, ranked, sizes_of
from webtorch.functions.pointwise import where
from webtorch.functions.unfolding import FUNCTIONAL, spread, windows
from webtorch.ir.dtype import Scalar, bool_, int64, integer_limits
from webtorch.ir.view import numel
from webtorch.ops.layout import ChannelsLastAs, volumes_as_first
from webtorch.ops.primitive import fill, iota, pad_with, reduce_dims, scatter
from webtorch.ops.record import (
    ANEW,
    NARROW_INTEGERS,
    NOT_FLOATS,
    Anew,
    Autocast,
    Composite,
    Example,
    composite,
)
from webtorch.ops.splits import of_images
from webtorch.tensors.device import DeviceLike
from webtorch.tensors.modes import no_grad
from webtorch.tensors.switches import alert
from webtorch.tensors.tape import SavedTensor, attach, needs_grad, zeros_of
from webtorch.tensors.tensor import Tensor
from webtorch.tensors.values import check_places

EVERYWHERE = ("torch", "nn.functional")
# The gradient of what is a sum of its elements.
_LINEAR = Anew(unread=("input",))
# PyTorch's CPU has these in three dimensions, and some in two, for float32 alone.
_WIDE_ON_CPU = Autocast(cpu="fp32")


# ---- the geometry of pooling ---------------------------------------------------------------------


class Pool:
    """Sizes of one pooling: window counts and the border that all windows need."""

    __slots__ = ("counts", "dilation", "high", "kernel", "low", "rank", "sizes", "stride")

    def __init__(
        self,
        op: str,
        rank: int,
        x: Tensor,
        kernel_size: Sizes,
        stride: Sizes | None,
        padding: Sizes,
        dilation: Sizes,
        ceil_mode: bool,
    ) -> None:
        self.rank = rank
        self.kernel = sizes_of(op, "kernel_size", kernel_size, rank)
        unset = stride is None or (not isinstance(stride, int) and not len(stride))
        self.stride = self.kernel if unset else sizes_of(op, "stride", stride, rank)
        self.low = sizes_of(op, "padding", padding, rank)
        self.dilation = sizes_of(op, "dilation", dilation, rank)
        shape = tuple(x.shape)
        ranked = x.ndim in (rank + 1, rank + 2)
        if not ranked and rank > 1:
            raise ShapeError(
                f"non-empty {rank + 1}D or {rank + 2}D (batch mode) tensor expected for input, but got: "
                f"{list(shape)} for {op}"
            )
        if not ranked or 0 in shape[-rank - 1 :]:
            raise ShapeError(
                f"Expected {rank + 1}D or {rank + 2}D (batch mode) tensor with optional 0 "
                f"dim batch size for input, but got: {list(shape)} for {op}"
            )
        self.sizes = shape[-rank:]
        if any(k <= 0 for k in self.kernel):
            raise ShapeError(
                f"{op}: kernel size should be greater than zero, but got {self.kernel}"
            )
        if any(s <= 0 for s in self.stride):
            raise ShapeError(f"{op}: stride should not be zero or negative, but got {self.stride}")
        if any(d <= 0 for d in self.dilation):
            raise ShapeError(f"{op}: dilation should be greater than zero, but got {self.dilation}")
        for p, k, d in zip(self.low, self.kernel, self.dilation, strict=True):
            if p < 0:
                raise ShapeError(f"pad must be non-negative, but got pad: {p} ({op})")
            if p > (d * (k - 1) + 1) // 2:
                raise ShapeError(
                    f"pad should be at most half of effective kernel size, but got pad={p}, "
                    f"kernel_size={k} and dilation={d} ({op})"
                )
        counts, high = [], []
        for s, k, t, p, d in zip(
            self.sizes, self.kernel, self.stride, self.low, self.dilation, strict=True
        ):
            room = s + 2 * p - d * (k - 1) - 1
            count = room // t + 1
            if ceil_mode and room % t and count * t < s + p:
                # The last window starts inside the input or its left border.
                count += 1
            counts.append(count)
            high.append(max((count - 1) * t + d * (k - 1) + 1 - s - p, 0))
        self.counts, self.high = tuple(counts), tuple(high)
        if any(c < 1 for c in counts):
            given, made = (
                "x".join(map(str, (shape[-rank - 1], *self.sizes))),
                "x".join(map(str, (shape[-rank - 1], *counts))),
            )
            raise ShapeError(
                f"Given input size: ({given}). Calculated output size: ({made}). Output "
                f"size is too small: {op} needs a smaller kernel or more padding."
            )

    def border(self, x: Tensor, value: Scalar) -> Tensor:
        """Return x inside the border, cut to what windows touch."""
        lead = (0,) * (x.ndim - self.rank)
        if any(self.low) or any(self.high):
            return pad_with(x, (*lead, *self.low), (*lead, *self.high), value)
        return x

    def windows(self, x: Tensor) -> Tensor:
        """Return the windows over the bordered input."""
        used = tuple(
            (c - 1) * t + d * (k - 1) + 1
            for c, t, d, k in zip(self.counts, self.stride, self.dilation, self.kernel, strict=True)
        )
        x = crop(x, (0,) * x.ndim, (*x.shape[: -self.rank], *used))
        return windows(x, self.kernel, self.stride, self.dilation)

    def spread(self, g: Tensor) -> Tensor:
        """Return the cotangent of the input for the cotangent of the windows."""
        return spread(g, self.sizes, self.kernel, self.stride, self.dilation, self.low, self.high)


def along(values: Tensor, d: int, rank: int) -> Tensor:
    """Return a vector as the d-th of `rank` last dimensions."""
    return values.reshape((-1,) + (1,) * (rank - 1 - d))


# ---- maximum -------------------------------------------------------------------------------------


def lowest(x: Tensor) -> Scalar:
    """Return the value that no maximum chooses."""
    return -math.inf if x.dtype.is_floating_point else integer_limits(x.dtype)[0]


def _indices_too(given: str) -> tuple[str, ...]:
    """Return the forms of a pool whose other parameters are `given`: with `return_indices` it has two results."""
    return (
        f"({given}, return_indices: Literal[False] = False) -> Tensor",
        f"({given}, *, return_indices: Literal[True]) -> tuple[Tensor, Tensor]",
        f"({given}, return_indices: bool = False) -> Tensor | tuple[Tensor, Tensor]",
    )


_MAX = _indices_too(
    "input: Tensor, kernel_size: Sizes, stride: Sizes | None = None, padding: Sizes = 0, dilation: Sizes = 1, "
    "ceil_mode: bool = False"
)
_ADAPTIVE_MAX = _indices_too("input: Tensor, output_size: int | Sequence[int | None] | None")


def _to_maxima(g: Tensor, chosen: Tensor, pool: Pool) -> tuple[Tensor]:
    """Return the cotangents sent to the maxima."""
    numbers = iota(numel(pool.kernel), 0, 1, int64, g.device).reshape(pool.kernel)
    ones = (*g._shape, *(1,) * pool.rank)
    return (pool.spread(where(chosen.reshape(ones) == numbers, g.reshape(ones), 0.0)),)


def _max_pool(
    op: str,
    rank: int,
    input: Tensor,
    kernel_size: Sizes,
    stride: Sizes | None,
    padding: Sizes,
    dilation: Sizes,
    ceil_mode: bool,
    return_indices: bool,
) -> Any:
    if input.dtype is bool_:
        raise NotImplementedError(f"\"{op}\" not implemented for 'Bool': use input.float()")
    pool = Pool(op, rank, input, kernel_size, stride, padding, dilation, ceil_mode)
    lead = tuple(input.shape[:-rank])
    shape = (*lead, *pool.counts)
    if not input.numel():
        out = fill(shape, 0, input.dtype, input.device)
        out = attach(out, op, (input,), zeros_of, (), (input._shape,))
        return (out, fill(shape, 0, int64, input.device)) if return_indices else out
    dims = tuple(range(len(shape), len(shape) + rank))
    chosen: Any = None
    with no_grad():
        seen = pool.windows(pool.border(input.detach(), lowest(input)))
        out = reduce_dims(seen, "max", dims).reshape(shape).detach()
    if return_indices or needs_grad((input,)):
        with no_grad():
            # Number of the maximum within its window: the first one, as in PyTorch.
            chosen = reduce_dims(seen, "argmax", dims).reshape(shape)
    if needs_grad((input,)):
        attach(out, op, (input,), _to_maxima, (SavedTensor(chosen),), (pool,))
    if not return_indices:
        return out
    with no_grad():
        indices = _positions(pool, chosen)
    return out, indices


def max_pool_backward(
    rank: int,
    g: Tensor,
    input: Tensor,
    kernel_size: Sizes,
    stride: Sizes | None,
    padding: Sizes,
    dilation: Sizes,
    ceil_mode: bool,
    indices: Tensor,
) -> Tensor:
    """Return the cotangent of max pooling's input; `indices` say where the maxima were, and values of
    `input` nothing.
    """
    if not g.numel():
        return fill(tuple(input.shape), 0, g.dtype, g.device)
    pool = Pool("max_pool_backward", rank, input, kernel_size, stride, padding, dilation, ceil_mode)
    places = iota(numel(pool.sizes), 0, 1, int64, g.device).reshape(pool.sizes)
    seen = pool.windows(pool.border(places, -1))
    ones = (*g.shape, *(1,) * rank)
    return pool.spread(where(indices.reshape(ones) == seen, g.reshape(ones), 0.0))


def _positions(pool: Pool, chosen: Tensor) -> Tensor:
    """Return positions in the input's planes for numbers within windows."""
    total: Tensor | None = None
    rest = chosen
    parts: list[Tensor] = []
    for k in reversed(pool.kernel):
        parts.insert(0, rest % k)
        rest = rest // k
    for d in range(pool.rank):
        starts = iota(pool.counts[d], -pool.low[d], pool.stride[d], int64, chosen.device)
        at = parts[d] * pool.dilation[d] + along(starts, d, pool.rank)
        if pool.low[d]:
            # A window whose input is all -inf finds the border first; PyTorch names its first input position.
            at = where(at < 0, at % pool.dilation[d], at)
        total = at if total is None else total * pool.sizes[d] + at
    assert total is not None
    return total.contiguous()


def _named(name: str, rank: int, rest: str = "") -> str:
    """Return PyTorch's name for the gradient of pooling, which has one dimension as two of which one is 1."""
    return "SqueezeBackward1" if rank == 1 else f"{name}{rank}D{rest}Backward0"


def _max_pooling(rank: int, doc: str, example: Example, **fields: object) -> Composite[..., Any]:
    """Declare max pooling of a rank, and the form that always gives indices."""

    def pool(
        input: Tensor,
        kernel_size: Sizes,
        stride: Sizes | None = None,
        padding: Sizes = 0,
        dilation: Sizes = 1,
        ceil_mode: bool = False,
        return_indices: bool = False,
    ) -> Any:
        """Return the maxima of windows, with indices if they are wanted."""
        rest = kernel_size, stride, padding, dilation, ceil_mode, return_indices
        return _max_pool(f"max_pool{rank}d", rank, input, *rest)

    def with_indices(
        input: Tensor,
        kernel_size: Sizes,
        stride: Sizes | None = None,
        padding: Sizes = 0,
        dilation: Sizes = 1,
        ceil_mode: bool = False,
        return_indices: bool = True,
    ) -> tuple[Tensor, Tensor]:
        """Return the maxima of windows, and where they are."""
        return pool(input, kernel_size, stride, padding, dilation, ceil_mode, True)

    title = _named("MaxPool", rank, "WithIndices")
    with_indices.__name__ = with_indices.__qualname__ = f"max_pool{rank}d_with_indices"
    composite(
        family="contract",
        function_in=FUNCTIONAL,
        torch=f"nn.functional.max_pool{rank}d_with_indices",
        splits=of_images(rank),
        doc=f"Return the maxima of max_pool{rank}d and where they were.",
        example=example,
        layout=volumes_as_first if rank == 3 else ChannelsLastAs(0),
        gradient_name=title,
        vjp=ANEW,
    )(with_indices)
    fields |= {
        "function_in": EVERYWHERE,
        "forms": _MAX,
        "layout": volumes_as_first if rank == 3 else ChannelsLastAs(0),
        "gradient_name": title,
        "vjp": ANEW,
    }
    return ranked("max_pool", rank, doc, pool, **fields)


max_pool1d = _max_pooling(
    1,
    "Return the maximum of each window of (N, C, L) or (C, L); `return_indices` adds where it was.",
    Example(((2, 3, 20),), (3, 2)),
)
max_pool2d = _max_pooling(
    2,
    "Return the maximum of each window of (N, C, H, W) or (C, H, W).\n\n"
    "`return_indices` adds where in its plane it was.",
    Example(((2, 3, 9, 8),), (3, 2)),
)
max_pool3d = _max_pooling(
    3,
    "Return the maximum of each window of (N, C, D, H, W) or (C, D, H, W); `return_indices` adds where it was.",
    Example(((1, 2, 6, 7, 5),), (2,)),
    autocast=_WIDE_ON_CPU,
)


def _max_unpool(
    op: str,
    rank: int,
    input: Tensor,
    indices: Tensor,
    kernel_size: Sizes,
    stride: Sizes | None,
    padding: Sizes,
    output_size: Sequence[int] | None,
) -> Tensor:
    alert(f"max_unpooling{max(rank, 2)}d_forward_out")
    kernel = sizes_of(op, "kernel_size", kernel_size, rank)
    stride = kernel if stride is None else sizes_of(op, "stride", stride, rank)
    padding = sizes_of(op, "padding", padding, rank)
    if tuple(input.shape) != tuple(indices.shape):
        raise ShapeError(
            f"{op}: Expected shape of indices to be same as that of the input tensor "
            f"({list(input.shape)}) but got indices tensor with shape: {list(indices.shape)}"
        )
    if indices.dtype is not int64:
        raise ShapeError(f"{op}: elements in indices should be type int64 but got: {indices.dtype}")
    default = tuple(
        (s - 1) * t - 2 * p + k
        for s, t, p, k in zip(input.shape[-rank:], stride, padding, kernel, strict=True)
    )
    sizes = default
    if output_size is not None:
        sizes = tuple(output_size)[-rank:]
        if len(tuple(output_size)) < rank:
            raise ValueError(
                f"output_size should be a sequence containing {rank} or {rank + 2} "
                f"elements, but it has a length of '{len(tuple(output_size))}' ({op})"
            )
        for d in range(rank):
            if not default[d] - stride[d] < sizes[d] < default[d] + stride[d]:
                raise ValueError(
                    f'invalid output_size "{sizes}" (dim {d} must be between '
                    f"{default[d] - stride[d]} and {default[d] + stride[d]}): {op}"
                )
    volume = "x".join(map(str, sizes))
    words = f"Found an invalid max index: {{index}} (output volumes are of size {volume}). "
    check_places(op, indices, numel(sizes), words)
    lead = tuple(input.shape[:-rank])
    planes, count = numel(lead), numel(tuple(input.shape[-rank:]))
    flat = fill((planes, numel(sizes)), 0, input.dtype, input.device)
    rows = iota(planes, 0, 1, int64, input.device).reshape(planes, 1).expand(planes, count)
    out = scatter(
        flat, [rows, indices.reshape(planes, count)], input.reshape(planes, count), "set", op
    )
    return out.reshape((*lead, *sizes))


def _unpooling(rank: int, **fields: object) -> Composite[..., Tensor]:
    def function(
        input: Tensor,
        indices: Tensor,
        kernel_size: Sizes,
        stride: Sizes | None = None,
        padding: Sizes = 0,
        output_size: Sequence[int] | None = None,
    ) -> Tensor:
        """Put maxima back to where they were."""
        rest = kernel_size, stride, padding, output_size
        return _max_unpool(f"max_unpool{rank}d", rank, input, indices, *rest)

    doc = f"Put the values of max_pool{rank}d back where they were, zeros elsewhere."
    fields |= {"function_in": FUNCTIONAL, "refuses": NOT_FLOATS}
    fields["layout"] = ChannelsLastAs(0) if rank == 2 else None
    return ranked("max_unpool", rank, doc, function, **fields)


max_unpool1d = _unpooling(1, own_view=True)
max_unpool2d = _unpooling(2, autocast=_WIDE_ON_CPU, gradient_name="MaxUnpool2DBackward0")
max_unpool3d = _unpooling(3, autocast=_WIDE_ON_CPU, gradient_name="MaxUnpool3DBackward0")


# ---- mean, norm ----------------------------------------------------------------------------------


def _avg_pool(
    op: str,
    rank: int,
    input: Tensor,
    kernel_size: Sizes,
    stride: Sizes | None,
    padding: Sizes,
    ceil_mode: bool,
    count_include_pad: bool,
    divisor_override: int | None,
) -> Tensor:
    pool = Pool(op, rank, input, kernel_size, stride, padding, 1, ceil_mode)
    if divisor_override == 0:
        raise ShapeError(f"{op}: divisor must be not zero, but divisor_override is 0")
    shape = (*input.shape[:-rank], *pool.counts)
    if not input.numel():
        return input.sum() + fill(shape, 0, input.dtype, input.device)
    wide = input.to(input.dtype.compute)
    seen = pool.windows(pool.border(wide, 0))
    total = seen.sum(tuple(range(len(shape), len(shape) + rank)))
    if divisor_override is not None:
        return (total / divisor_override).to(input.dtype)
    divisor: Any = 1
    for d in range(rank):
        count = _counted(pool, d, count_include_pad)
        if len(set(count)) == 1:
            divisor = divisor * count[0]
            continue
        # Windows that reach over an edge have fewer elements: min(end, limit) - max(start, first).
        starts = iota(pool.counts[d], -pool.low[d], pool.stride[d], int64, input.device)
        first, limit = (
            (-pool.low[d], pool.sizes[d] + pool.low[d]) if count_include_pad else (0, pool.sizes[d])
        )
        within = (starts + pool.kernel[d]).clamp(max=limit) - starts.clamp(min=first)
        divisor = along(within, d, rank) * divisor
    if not isinstance(divisor, int):
        divisor = divisor.to(wide.dtype)
    return (total / divisor).to(input.dtype)


def _counted(pool: Pool, d: int, count_include_pad: bool) -> list[int]:
    """Return how many elements each window has along dimension d."""
    first, limit = (
        (-pool.low[d], pool.sizes[d] + pool.low[d]) if count_include_pad else (0, pool.sizes[d])
    )
    starts = [i * pool.stride[d] - pool.low[d] for i in range(pool.counts[d])]
    return [min(s + pool.kernel[d], limit) - max(s, first) for s in starts]


@composite(
    family="contract",
    splits=of_images(1),
    function_in=EVERYWHERE,
    refuses=NARROW_INTEGERS,
    gradient_name="SqueezeBackward1",
    once=True,
    vjp=_LINEAR,
    aten=("avg_pool1d",),
)
def avg_pool1d(
    input: Tensor,
    kernel_size: Sizes,
    stride: int | Sequence[int] | None = None,
    padding: Sizes = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
) -> Tensor:
    """Return the mean of each window of (N, C, L) or (C, L)."""
    return _avg_pool(
        "avg_pool1d", 1, input, kernel_size, stride, padding, ceil_mode, count_include_pad, None
    )


def _avg_pooling(rank: int, doc: str, **fields: object) -> Composite[..., Tensor]:
    def function(
        input: Tensor,
        kernel_size: Sizes,
        stride: Sizes | None = None,
        padding: Sizes = 0,
        ceil_mode: bool = False,
        count_include_pad: bool = True,
        divisor_override: int | None = None,
    ) -> Tensor:
        """Return the means of windows."""
        rest = kernel_size, stride, padding, ceil_mode, count_include_pad, divisor_override
        return _avg_pool(f"avg_pool{rank}d", rank, input, *rest)

    fields |= {
        "function_in": FUNCTIONAL,
        "refuses": NARROW_INTEGERS,
        "takes_out": True,
        "gradient_name": f"AvgPool{rank}DBackward0",
        "once": True,
        "vjp": _LINEAR,
        "aten": (f"avg_pool{rank}d",),
        "layout": ChannelsLastAs(0) if rank == 2 else None,
    }
    return ranked("avg_pool", rank, doc, function, **fields)


avg_pool2d = _avg_pooling(
    2,
    "Return the mean of each window of (N, C, H, W) or (C, H, W); `divisor_override` replaces the element count.",
)
avg_pool3d = _avg_pooling(
    3,
    "Return the mean of each window of (N, C, D, H, W) or (C, D, H, W).\n\n"
    "`divisor_override` replaces the element count.",
    autocast=_WIDE_ON_CPU,
)


def _lp_pool(
    op: str,
    rank: int,
    input: Tensor,
    norm_type: float,
    kernel_size: Sizes,
    stride: Sizes | None,
    ceil_mode: bool,
) -> Tensor:
    if math.isinf(norm_type):
        # The largest element, or the smallest.
        sign = math.copysign(1.0, norm_type)
        largest = (max_pool1d, max_pool2d, max_pool3d)[rank - 1]
        return largest(input.abs() * sign, kernel_size, stride, ceil_mode=ceil_mode) * sign
    kernel = sizes_of(op, "kernel_size", kernel_size, rank)
    mean = _avg_pool(op, rank, input**norm_type, kernel, stride, 0, ceil_mode, True, None)
    # As in PyTorch: windows cut off by ceil_mode count as whole, and a sum that is not positive counts as 0.
    return (mean.sign() * mean.abs().relu() * numel(kernel)) ** (1.0 / norm_type)


def _lp_pooling(rank: int, shapes: str, example: Example) -> Composite[..., Tensor]:
    def function(
        input: Tensor,
        norm_type: float,
        kernel_size: Sizes,
        stride: Sizes | None = None,
        ceil_mode: bool = False,
    ) -> Tensor:
        """Return the norms of windows."""
        return _lp_pool(f"lp_pool{rank}d", rank, input, norm_type, kernel_size, stride, ceil_mode)

    doc = f"Return the p-norm of each window of {shapes}."
    layout = ChannelsLastAs(0) if rank == 2 else None
    return ranked(
        "lp_pool", rank, doc, function, function_in=FUNCTIONAL, example=example, layout=layout
    )


lp_pool1d = _lp_pooling(1, "(N, C, L) or (C, L)", Example(((2, 3, 20),), (2.0, 3)))
lp_pool2d = _lp_pooling(2, "(N, C, H, W) or (C, H, W)", Example(((2, 3, 9, 8),), (2.0, 3)))
lp_pool3d = _lp_pooling(3, "(N, C, D, H, W) or (C, D, H, W)", Example(((1, 2, 6, 7, 5),), (2.0, 2)))


# ---- adaptive ------------------------------------------------------------------------------------


def _output_sizes(
    op: str, input: Tensor, output_size: int | Sequence[int | None] | None, rank: int
) -> tuple[int, ...]:
    """Return the output sizes; None keeps a size."""
    shape = tuple(input.shape)
    if not isinstance(output_size, int | None) and len(tuple(output_size)) >= input.ndim:
        raise ValueError(f"Input dimension should be at least {len(tuple(output_size)) + 1}")
    if input.ndim not in (rank + 1, rank + 2) or 0 in shape[-rank:]:
        raise ShapeError(
            f"Expected {rank + 1}D or {rank + 2}D tensor with non-zero sizes for non-batch "
            f"dimensions, but got {list(shape)}"
        )
    given = (
        (output_size,) * rank
        if output_size is None or isinstance(output_size, int)
        else tuple(output_size)
    )
    if len(given) == 1:
        given = given * rank
    if len(given) != rank:
        raise ShapeError(f"{op}: output_size must be {rank} sizes, but got {list(given)}")
    sizes = tuple(s if n is None else int(n) for s, n in zip(shape[-rank:], given, strict=True))
    if any(n < 0 for n in sizes):
        raise ShapeError(
            f"{op}: elements of output_size must be greater than or equal to 0, but received "
            f"{list(sizes)}"
        )
    if numel((*shape[:-rank], *sizes)) >= 2**60:
        raise RuntimeError(
            f"Storage size calculation overflowed with sizes={[*shape[:-rank], *sizes]}"
        )
    return sizes


def _check_filled(op: str, shape: tuple[int, ...]) -> None:
    """Raise RuntimeError for no elements that come of another dim than the first."""
    for dim, size in enumerate(shape[1:], 1):
        if not size:
            raise RuntimeError(
                f"{op}(): Expected input to have non-zero size for non-batch dimensions, but input has sizes "
                f"{list(shape)} with dimension {dim} being empty"
            )


def _nothing(op: str, rank: int, input: Tensor, sizes: Sequence[int]) -> Tensor:
    """Return a result without elements. Its gradient is an error as PyTorch's, unless the batch is empty."""
    out = fill((*input.shape[:-rank], *sizes), 0, input.dtype, input.device)
    return attach(out, op, (input,), _no_cotangent, (), (op, rank, input._shape))


def _no_cotangent(g: Tensor, op: str, rank: int, shape: tuple[int, ...]) -> tuple[Tensor]:
    """Return zeros for the input of a pool without elements."""
    # One dim is two in PyTorch, of which the first is 1.
    seen = (*g._shape[:-1], 1, g._shape[-1]) if rank == 1 else g._shape
    for dim, size in enumerate(seen[1:], 1):
        if not size:
            raise RuntimeError(
                f"{op.replace('1d', '2d')}_backward(): Expected grad_output to have non-zero size for non-batch "
                f"dimensions, but grad_output has sizes {list(seen)} with dimension {dim} being empty"
            )
    return (fill(shape, 0, g.dtype, g.device),)


def _in_bin(size: int, count: int, device: DeviceLike) -> Tensor:
    """Return which of `size` positions each of `count` bins holds: bool (count, size). Bins may overlap."""
    bins = iota(count, 0, 1, int64, device).reshape(count, 1)
    positions = iota(size, 0, 1, int64, device)
    # floor(i S / O) <= position < ceil((i + 1) S / O)
    return (positions >= bins * size // count) & (
        positions < ((bins + 1) * size + (count - 1)) // count
    )


def _adaptive_mean(x: Tensor, count: int) -> Tensor:
    """Return the means of `count` bins over the last dimension."""
    size = x.shape[-1]
    if size == count:
        return x
    lead = tuple(x.shape[:-1])
    if count and size % count == 0:
        return x.reshape((*lead, count, size // count)).mean(-1)
    held = _in_bin(size, count, x.device)
    counts = held.to(x.dtype).sum(-1)
    return where(held, x.unsqueeze(-2), 0.0).sum(-1) / counts


def _adaptive_avg(
    op: str, rank: int, input: Tensor, output_size: int | Sequence[int | None] | None
) -> Tensor:
    sizes = _output_sizes(op, input, output_size, rank)
    lead = tuple(input.shape[:-rank])
    if not input.numel() or 0 in sizes:
        if rank == 3:
            _check_filled(op, input._shape)
        return _nothing(op, rank, input, sizes)
    if all(s % n == 0 for s, n in zip(input.shape[-rank:], sizes, strict=True)):
        kernel = tuple(s // n for s, n in zip(input.shape[-rank:], sizes, strict=True))
        # (*, n1 k1, n2 k2, ..) -> (*, n1, k1, n2, k2, ..): one mean over every k.
        split = tuple(n for pair in zip(sizes, kernel, strict=True) for n in pair)
        dims = tuple(len(lead) + 2 * d + 1 for d in range(rank))
        return input.reshape((*lead, *split)).mean(dims)
    x = input.to(input.dtype.compute)
    for d in range(rank):
        at = len(lead) + d
        x = _adaptive_mean(x.transpose(at, -1), sizes[d]).transpose(at, -1)
    return x.contiguous().to(input.dtype)


def _adaptive_averaging(rank: int, doc: str, **fields: object) -> Composite[..., Tensor]:
    def function(input: Tensor, output_size: int | Sequence[int | None] | None) -> Tensor:
        """Return the means of as many windows as the result has elements."""
        return _adaptive_avg(f"adaptive_avg_pool{rank}d", rank, input, output_size)

    def pools(input: Tensor, output_size: int | Sequence[int | None] | None) -> bool:
        """Whether PyTorch calls a function of its own, which saves the input, and not `mean`."""
        sizes = (output_size,) if isinstance(output_size, int | None) else output_size
        return set(sizes) != {1}

    def name(input: Tensor, output_size: int | Sequence[int | None] | None) -> str:
        """Return what PyTorch calls the gradient function."""
        alone = rank > 1 and not pools(input, output_size)
        return "MeanBackward1" if alone else _named("AdaptiveAvgPool", rank)

    fields |= {"refuses": NOT_FLOATS, "gradient_name": name, "vjp": _LINEAR, "once": pools}
    return ranked("adaptive_avg_pool", rank, doc, function, **fields)


adaptive_avg_pool1d = _adaptive_averaging(
    1,
    "Return the means of `output_size` bins of (N, C, L) or (C, L).",
    function_in=EVERYWHERE,
)
adaptive_avg_pool2d = _adaptive_averaging(
    2,
    "Return the means of `output_size` bins of (N, C, H, W) or (C, H, W); None keeps a size.",
    function_in=FUNCTIONAL,
    layout=ChannelsLastAs(0),
)
adaptive_avg_pool3d = _adaptive_averaging(
    3,
    "Return the means of `output_size` bins of (N, C, D, H, W) or (C, D, H, W); None keeps a size.",
    function_in=FUNCTIONAL,
    autocast=_WIDE_ON_CPU,
)


def _adaptive_max_last(x: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Return the maxima of `count` bins over the last dimension and where they were."""
    size, lead = x.shape[-1], tuple(x.shape[:-1])
    with no_grad():
        held = _in_bin(size, count, x.device)
        seen = where(held, x.detach().unsqueeze(-2), lowest(x))
        last = (len(lead) + 1,)
        out = reduce_dims(seen, "max", last).reshape((*lead, count)).detach()
        chosen = reduce_dims(seen, "argmax", last).reshape((*lead, count))
        # A bin of only -inf: its first position, not the first of the row.
        starts = iota(count, 0, 1, int64, x.device) * size // count
        chosen = where(chosen < starts, starts, chosen)

    if needs_grad((x,)):
        attach(out, "AdaptiveMaxPool", (x,), _to_row_maxima, (SavedTensor(chosen),), (size,))
    return out, chosen


def _to_row_maxima(g: Tensor, chosen: Tensor, size: int) -> tuple[Tensor]:
    """Return the cotangents of rows of `size` elements, sent to the maxima of their bins."""
    hit = chosen.unsqueeze(-1) == iota(size, 0, 1, int64, g.device)
    return (where(hit, g.unsqueeze(-1), 0.0).sum(-2),)


def _adaptive_max(
    op: str,
    rank: int,
    input: Tensor,
    output_size: int | Sequence[int | None] | None,
    return_indices: bool,
) -> Any:
    sizes = _output_sizes(op, input, output_size, rank)
    full, lead = tuple(input.shape[-rank:]), tuple(input.shape[:-rank])
    if not input.numel() or 0 in sizes:
        _check_filled(op, input._shape)
        out = _nothing(op, rank, input, sizes)
        return (out, fill((*lead, *sizes), 0, int64, input.device)) if return_indices else out
    if all(s % n == 0 for s, n in zip(full, sizes, strict=True)):
        kernel = tuple(s // n for s, n in zip(full, sizes, strict=True))
        return _max_pool(op, rank, input, kernel, kernel, 0, 1, False, return_indices)
    # One dimension after the other, the last first: so the first maximum in row-major order wins, as in PyTorch.
    x = input
    indices: Tensor | None = None
    for d in reversed(range(rank)):
        at = len(lead) + d
        x, chosen = _adaptive_max_last(x.transpose(at, -1), sizes[d])
        x, chosen = x.transpose(at, -1), chosen.transpose(at, -1)
        step = numel(full[d + 1 :])
        if indices is None:
            indices = chosen * step
        elif return_indices:
            indices = indices.gather(at, chosen) + chosen * step
    out = x.contiguous()
    assert indices is not None
    return (out, indices.contiguous()) if return_indices else out


def _adaptive_maximum(rank: int, doc: str, **fields: object) -> Composite[..., Any]:
    def function(
        input: Tensor, output_size: int | Sequence[int | None] | None, return_indices: bool = False
    ) -> Any:
        """Return the maxima of as many windows as the result has elements."""
        name = f"adaptive_max_pool{rank}d"
        return _adaptive_max(name, rank, input, output_size, return_indices)

    fields |= {"function_in": FUNCTIONAL, "refuses": NOT_FLOATS, "forms": _ADAPTIVE_MAX}
    fields |= {"gradient_name": _named("AdaptiveMaxPool", rank), "vjp": ANEW}
    return ranked("adaptive_max_pool", rank, doc, function, **fields)


adaptive_max_pool1d = _adaptive_maximum(
    1,
    "Return the maxima of `output_size` bins of (N, C, L) or (C, L); `return_indices` adds where they were.",
)
adaptive_max_pool2d = _adaptive_maximum(
    2,
    "Return the maxima of `output_size` bins of (N, C, H, W) or (C, H, W); None keeps a size.",
    layout=ChannelsLastAs(0),
)
adaptive_max_pool3d = _adaptive_maximum(
    3,
    "Return the maxima of `output_size` bins of (N, C, D, H, W) or (C, D, H, W); None keeps a size.",
    autocast=_WIDE_ON_CPU,
)
