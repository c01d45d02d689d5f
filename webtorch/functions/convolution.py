"""Convolutions and transposed convolutions in one, two and three dimensions.

One primitive does the work: the two-dimensional convolution and its two gradients, each of which is
the derivative of the others. One dimension is two with a height of 1; three are a sum over the
kernel's depth.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from webtorch.errors import DTypeError, ShapeError
from webtorch.functions.contract import check_tensor
from webtorch.functions.slicing import pick, window
from webtorch.ir.dtype import bool_
from webtorch.ir.view import Shape
from webtorch.ops.layout import ChannelsLastAs
from webtorch.ops.precision import to_type
from webtorch.ops.primitive import as_view, conv2d_raw, fill, pad_with, unrounded
from webtorch.ops.record import LOWER, NARROW_INTEGERS, Anew, Composite, P, R, composite
from webtorch.ops.splits import of_convolution, of_images
from webtorch.tensors.tape import attach, zeros_of
from webtorch.tensors.tensor import Tensor

Sizes = int | Sequence[int]
EVERYWHERE = ("torch", "nn.functional")


def sizes_of(op: str, name: str, value: Any, rank: int) -> tuple[int, ...]:
    """Return `rank` numbers given as one number or as a sequence of `rank` (or 1) of them."""
    if isinstance(value, int):
        return (int(value),) * rank
    try:
        given = tuple(int(v) for v in value)
    except TypeError:
        raise TypeError(
            f"{op}(): argument '{name}' must be an int or a tuple of {rank} ints, not "
            f"{type(value).__name__}"
        ) from None
    if len(given) == 1:
        return given * rank
    if len(given) != rank:
        raise ShapeError(
            f"{op}: expected {name} to be a single integer value or a list of {rank} values to "
            f"match "
            f"the dimensions, but got {name}={list(given)}"
        )
    return given


def crop(x: Tensor, low: Sequence[int], sizes: Sequence[int]) -> Tensor:
    """Return the window of `sizes` that starts at `low`, as a view."""
    low, sizes, full = tuple(low), tuple(sizes), tuple(x.shape)
    if sizes == full:
        return x
    strides = tuple(x.stride())
    start = x.storage_offset() + sum(a * s for a, s in zip(low, strides, strict=True))
    high = tuple(f - a - n for f, a, n in zip(full, low, sizes, strict=True))
    return as_view(x, sizes, strides, start, pad_with, (low, high, 0), "Slice")


def _check(op: str, input: Tensor, weight: Tensor, bias: Tensor | None, rank: int) -> None:
    for i, (name, x) in enumerate((("input", input), ("weight", weight))):
        check_tensor(op, name, i + 1, x)
    if weight.ndim != rank + 2:
        raise ShapeError(
            f"{op}: expected {rank + 2}-dimensional weight (out, in / groups and {rank} kernel "
            f"sizes), "
            f"but got weight of size {list(weight.shape)}"
        )
    if input.ndim not in (rank + 1, rank + 2):
        raise ShapeError(
            f"Expected {rank + 1}D (unbatched) or {rank + 2}D (batched) input to {op}, but "
            f"got "
            f"input of size: {list(input.shape)}"
        )
    for name, given in (("weight", weight), ("bias", bias)):
        if given is not None and given.dtype is not input.dtype:
            raise DTypeError(
                f"expected scalar type {input.dtype.legacy} but found {given.dtype.legacy}. "
                f"Input type ({input.dtype.c_name}) and {name} type ({given.dtype.c_name}) "
                f"should "
                f"be the same: convert one of them, as in input.to({given.dtype})."
            )
    if input.dtype is bool_:
        raise NotImplementedError(
            f"\"{op}\" not implemented for 'Bool': convert the input and the weight to a number "
            f"type."
        )


def _paddings(
    op: str,
    padding: Sequence[int] | int | str,
    kernel: tuple[int, ...],
    stride: tuple[int, ...],
    dilation: tuple[int, ...],
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the zeros before and after each spatial dimension."""
    rank = len(kernel)
    if isinstance(padding, str):
        if padding == "valid":
            return (0,) * rank, (0,) * rank
        if padding != "same":
            raise ShapeError(
                f"{op}: Invalid padding string: '{padding}'; use 'same', 'valid' or numbers"
            )
        if any(s != 1 for s in stride):
            raise ShapeError(
                f"{op}: padding='same' is not supported for strided convolutions: stride is "
                f"{stride}"
            )
        total = tuple(d * (k - 1) for d, k in zip(dilation, kernel, strict=True))
        return tuple(t // 2 for t in total), tuple(t - t // 2 for t in total)
    given = sizes_of(op, "padding", padding, rank)
    if any(p < 0 for p in given):
        raise ShapeError(f"{op}: negative padding is not supported: padding is {given}")
    return given, given


def _check_geometry(
    op: str, stride: tuple[int, ...], dilation: tuple[int, ...], groups: int
) -> None:
    if any(s <= 0 for s in stride):
        raise ShapeError(f"{op}: non-positive stride is not supported: stride is {stride}")
    if any(d <= 0 for d in dilation):
        raise ShapeError(f"{op}: dilation should be greater than zero: dilation is {dilation}")
    if groups <= 0:
        raise ShapeError(f"{op}: expected groups to be greater than 0, but got groups={groups}")


def _raw(
    kind: str,
    a: Tensor,
    b: Tensor,
    shapes: tuple[Shape, Shape, Shape],
    stride: tuple[int, ...],
    padding: tuple[int, ...],
    dilation: tuple[int, ...],
    groups: int,
) -> Tensor:
    """Return the primitive's result; zeros where a size of 0 leaves nothing to add."""
    out_shape = shapes[2] if kind == "forward" else shapes[0]
    if a.numel() and b.numel() and 0 not in out_shape:
        return conv2d_raw(kind, a, b, *shapes, stride, padding, dilation, groups)
    out = fill(out_shape, 0, a.dtype, a.device)
    return attach(out, "Convolution", (a, b), zeros_of, (), (a._shape, b._shape))


def _biased(
    op: str,
    rank: int,
    convolve: Callable[..., Any],
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    *rest: object,
) -> Tensor:
    """Return convolve(op, rank, input, weight, *rest) plus a bias, rounded once."""
    _check(op, input, weight, bias, rank)
    if bias is None and rank < 3:
        return convolve(op, rank, input, weight, *rest)
    # A convolution of three dimensions is a sum of some.
    out = unrounded(convolve, op, rank, input, weight, *rest)
    if bias is not None:
        channels = out.shape[-rank - 1]
        if tuple(bias.shape) != (channels,):
            raise ShapeError(
                f"Given weight of size {list(weight.shape)}, expected bias to be 1-dimensional with {channels} "
                f"elements, but got bias of size {list(bias.shape)} instead ({op}: one for each output channel)"
            )
        out = out + bias.reshape((channels,) + (1,) * rank)
    return to_type(out, input.dtype)


def _convolve(
    op: str,
    rank: int,
    input: Tensor,
    weight: Tensor,
    stride: Sequence[int] | int,
    padding: Sequence[int] | int | str,
    dilation: Sequence[int] | int,
    groups: int,
) -> Tensor:
    """Convolve over `rank` spatial dimensions (1, 2 or 3)."""
    kernel = tuple(weight.shape[2:])
    stride, dilation = (
        sizes_of(op, "stride", stride, rank),
        sizes_of(op, "dilation", dilation, rank),
    )
    _check_geometry(op, stride, dilation, groups)
    low, high = _paddings(op, padding, kernel, stride, dilation)
    x = input if input.ndim == rank + 2 else input.unsqueeze(0)
    n, channels = x.shape[:2]
    out_channels, per_group = weight.shape[:2]
    if channels != per_group * groups:
        raise ShapeError(
            f"Given groups={groups}, weight of size {list(weight.shape)}, expected input"
            f"{list(input.shape)} to have {per_group * groups} channels, but got {channels} channels instead: {op}"
        )
    if out_channels % groups:
        raise ShapeError(
            f"{op}: expected weight to be divisible by {groups} at dimension 0 (groups={groups}), "
            f"but "
            f"got weight of size {list(weight.shape)} instead"
        )
    padded = tuple(s + a + b for s, a, b in zip(x.shape[2:], low, high, strict=True))
    reach = tuple(d * (k - 1) + 1 for d, k in zip(dilation, kernel, strict=True))
    if any(r > s for r, s in zip(reach, padded, strict=True)):
        raise ShapeError(
            f"Calculated padded input size per channel: ({' x '.join(map(str, padded))}). Kernel size: "
            f"({' x '.join(map(str, reach))}). Kernel size can't be greater than actual input size. {op}: this is the "
            "kernel's size with its dilation; use a smaller kernel or more padding."
        )
    if low != high:
        # 'same' with an even kernel: one zero more after than before.
        extra = tuple(b - a for a, b in zip(low, high, strict=True))
        x = pad_with(x, (0,) * (rank + 2), (0, 0, *extra), 0)
    out_sizes = tuple((s - r) // t + 1 for s, r, t in zip(padded, reach, stride, strict=True))
    shapes: tuple[Shape, Shape, Shape]
    match rank:
        case 1:
            shapes = (
                (n, channels, 1, x.shape[2]),
                (out_channels, per_group, 1, *kernel),
                (n, out_channels, 1, *out_sizes),
            )
            out = _raw(
                "forward",
                x.unsqueeze(2),
                weight.unsqueeze(2),
                shapes,
                (1, *stride),
                (0, *low),
                (1, *dilation),
                groups,
            )
            out = out.squeeze(2)
        case 2:
            shapes = (tuple(x.shape), tuple(weight.shape), (n, out_channels, *out_sizes))
            out = _raw("forward", x, weight, shapes, stride, low, dilation, groups)
        case _:
            out = _convolve_3d(x, weight, out_sizes, stride, low, dilation, groups)
    return out if input.ndim == rank + 2 else out.squeeze(0)


def _convolve_3d(
    x: Tensor,
    weight: Tensor,
    out_sizes: tuple[int, ...],
    stride: tuple[int, ...],
    padding: tuple[int, ...],
    dilation: tuple[int, ...],
    groups: int,
) -> Tensor:
    """Return the sum over the kernel's depth of two-dimensional convolutions of planes."""
    n, channels, _, height, width = x.shape
    out_channels, per_group, depth, *kernel = weight.shape
    x = pad_with(x, (0, 0, padding[0], 0, 0), (0, 0, padding[0], 0, 0), 0)
    planes = n * out_sizes[0]
    shapes = (
        (planes, channels, height, width),
        (out_channels, per_group, *kernel),
        (planes, out_channels, *out_sizes[1:]),
    )
    total: Any = None
    for k in range(depth):
        part = window(x, 2, k * dilation[0], out_sizes[0], stride[0])
        part = part.permute(0, 2, 1, 3, 4).reshape(shapes[0])
        out = _raw(
            "forward",
            part,
            pick(weight, 2, k),
            shapes,
            stride[1:],
            padding[1:],
            dilation[1:],
            groups,
        )
        total = out if total is None else total + out
    return (
        total.reshape(n, out_sizes[0], out_channels, *out_sizes[1:])
        .permute(0, 2, 1, 3, 4)
        .contiguous()
    )


def ranked(
    name: str, rank: int, doc: str, function: Callable[P, R], **fields: Any
) -> Composite[P, R]:
    """Declare an operation of `rank` spatial dimensions, one of a family: "conv" and 2 give conv2d."""
    title = f"{name}{rank}d"
    function.__name__ = function.__qualname__ = title
    function.__doc__ = doc
    place = f"nn.functional.{title}"
    fields.setdefault("splits", of_images(rank))
    return composite(family="contract", torch=place, **fields)(function)


_CONVOLUTION: dict[str, Any] = {
    "function_in": EVERYWHERE,
    "autocast": LOWER,
    "gradient_name": "ConvolutionBackward0",
    "vjp": Anew(unread=("bias",)),
    "gain": 1.0,
    "layout": ChannelsLastAs(0, 1),
}


def _convolution(rank: int, doc: str, **fields: object) -> Composite[..., Any]:
    def function(
        input: Tensor,
        weight: Tensor,
        bias: Tensor | None = None,
        stride: Sizes = 1,
        padding: Sizes | str = 0,
        dilation: Sizes = 1,
        groups: int = 1,
    ) -> Tensor:
        """Convolve in this many dimensions."""
        rest = stride, padding, dilation, groups
        return _biased(f"conv{rank}d", rank, _convolve, input, weight, bias, *rest)

    fields["splits"] = of_convolution(rank)
    return ranked("conv", rank, doc, function, **_CONVOLUTION, **fields)


conv1d = _convolution(
    1,
    'Convolve (N, C, L) or (C, L) with weight (out, C / groups, k). `padding`: numbers, "same" or "valid".',
)
conv2d = _convolution(
    2,
    "Convolve (N, C, H, W) or (C, H, W) with weight (out, C / groups, kh, kw).",
    operators=("convolution", "_convolution"),
)
conv3d = _convolution(
    3,
    "Convolve (N, C, D, H, W) or (C, D, H, W) with weight (out, C / groups, kd, kh, kw).",
    refuses=NARROW_INTEGERS,
)


# ---- transposed ----------------------------------------------------------------------------------


def _transposed(
    op: str,
    rank: int,
    input: Tensor,
    weight: Tensor,
    stride: Sequence[int] | int,
    padding: Sequence[int] | int | str,
    output_padding: Sequence[int] | int,
    groups: int,
    dilation: Sequence[int] | int,
) -> Tensor:
    """Return the gradient of a convolution with `weight` for its input, where `input` is the cotangent."""
    stride, dilation = (
        sizes_of(op, "stride", stride, rank),
        sizes_of(op, "dilation", dilation, rank),
    )
    padding, extra = (
        sizes_of(op, "padding", padding, rank),
        sizes_of(op, "output_padding", output_padding, rank),
    )
    _check_geometry(op, stride, dilation, groups)
    if any(p < 0 for p in padding) or any(e < 0 for e in extra):
        raise ShapeError(
            f"negative padding is not supported: padding {padding}, output_padding {extra} ({op})"
        )
    if any(e >= max(s, d) for e, s, d in zip(extra, stride, dilation, strict=True)):
        raise ShapeError(
            f"output padding must be smaller than either stride or dilation, but got "
            f"output_padding {extra}, stride {stride}, dilation {dilation} ({op})"
        )
    x = input if input.ndim == rank + 2 else input.unsqueeze(0)
    n, channels = x.shape[:2]
    _, per_group, *kernel = weight.shape
    _check_transposed_channels(op, input, weight, channels, groups)
    out_channels = per_group * groups
    sizes = tuple(
        (s - 1) * t - 2 * p + d * (k - 1) + e + 1
        for s, t, p, d, k, e in zip(
            x.shape[2:], stride, padding, dilation, kernel, extra, strict=True
        )
    )
    if any(s <= 0 for s in sizes):
        raise ShapeError(
            f"Given input size per channel: {list(x.shape[2:])}. Calculated output size per "
            f"channel: {list(sizes)}. Output size is too small: {op} needs less padding."
        )
    shapes: tuple[Shape, Shape, Shape]
    match rank:
        case 1:
            shapes = (
                (n, out_channels, 1, *sizes),
                (channels, per_group, 1, *kernel),
                (n, channels, 1, x.shape[2]),
            )
            out = _raw(
                "input",
                x.unsqueeze(2),
                weight.unsqueeze(2),
                shapes,
                (1, *stride),
                (0, *padding),
                (1, *dilation),
                groups,
            )
            out = out.squeeze(2)
        case 2:
            shapes = ((n, out_channels, *sizes), tuple(weight.shape), tuple(x.shape))
            out = _raw("input", x, weight, shapes, stride, padding, dilation, groups)
        case _:
            out = _transposed_3d(x, weight, sizes, stride, padding, dilation, groups)
    return out if input.ndim == rank + 2 else out.squeeze(0)


def _check_transposed_channels(
    op: str, input: Tensor, weight: Tensor, channels: int, groups: int
) -> None:
    if channels != weight.shape[0]:
        raise ShapeError(
            f"Given transposed=1, weight of size {list(weight.shape)}, expected input"
            f"{list(input.shape)} to have {weight.shape[0]} channels, but got {channels} channels instead: {op}"
        )
    if channels % groups:
        raise ShapeError(
            f"{op}: expected weight to be divisible by {groups} at dimension 0 (groups={groups}), but "
            f"got weight of size {list(weight.shape)} instead"
        )


def _transposed_3d(
    x: Tensor,
    weight: Tensor,
    sizes: tuple[int, ...],
    stride: tuple[int, ...],
    padding: tuple[int, ...],
    dilation: tuple[int, ...],
    groups: int,
) -> Tensor:
    """Return the sum over the kernel's depth of spread-out planes, each convolved in two dimensions."""
    n, channels, depth, height, width = x.shape
    _, per_group, kernel_depth, *kernel = weight.shape
    out_channels = per_group * groups
    planes = n * depth
    flat = x.permute(0, 2, 1, 3, 4).reshape(planes, channels, height, width)
    shapes = (
        (planes, out_channels, *sizes[1:]),
        (channels, per_group, *kernel),
        (planes, channels, height, width),
    )
    full = sizes[0] + 2 * padding[0]
    total: Any = None
    for k in range(kernel_depth):
        out = _raw(
            "input", flat, pick(weight, 2, k), shapes, stride[1:], padding[1:], dilation[1:], groups
        )
        # (N, D, 1, ..) -> (N, D, stride, ..): zeros between the planes, then zeros before and after.
        out = out.reshape(n, depth, 1, out_channels, *sizes[1:])
        out = pad_with(out, (0,) * 6, (0, 0, stride[0] - 1, 0, 0, 0), 0)
        out = out.reshape(n, depth * stride[0], out_channels, *sizes[1:])
        length = (depth - 1) * stride[0] + 1
        out = crop(out, (0,) * 5, (n, length, *out.shape[2:]))
        before = k * dilation[0]
        out = pad_with(out, (0, before, 0, 0, 0), (0, full - before - length, 0, 0, 0), 0)
        total = out if total is None else total + out
    total = crop(total, (0, padding[0], 0, 0, 0), (n, sizes[0], *total.shape[2:]))
    return total.permute(0, 2, 1, 3, 4).contiguous()


def _transposed_convolution(rank: int, shapes: str, weight: str) -> Composite[..., Any]:
    def function(
        input: Tensor,
        weight: Tensor,
        bias: Tensor | None = None,
        stride: Sizes = 1,
        padding: Sizes = 0,
        output_padding: Sizes = 0,
        groups: int = 1,
        dilation: Sizes = 1,
    ) -> Tensor:
        """Apply the transposed convolution in this many dimensions."""
        rest = stride, padding, output_padding, groups, dilation
        return _biased(f"conv_transpose{rank}d", rank, _transposed, input, weight, bias, *rest)

    doc = f"Return the transposed convolution of {shapes} with weight {weight}."
    fields = {**_CONVOLUTION, "refuses": NARROW_INTEGERS}
    return ranked("conv_transpose", rank, doc, function, **fields)


conv_transpose1d = _transposed_convolution(1, "(N, C, L) or (C, L)", "(C, out / groups, k)")
conv_transpose2d = _transposed_convolution(
    2, "(N, C, H, W) or (C, H, W)", "(C, out / groups, kh, kw)"
)
conv_transpose3d = _transposed_convolution(
    3, "(N, C, D, H, W) or (C, D, H, W)", "(C, out / groups, kd, kh, kw)"
)
