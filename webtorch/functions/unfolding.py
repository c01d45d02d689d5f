"""Windows of images: as a view, as columns (unfold), and added back (fold).

`windows` shows every window of the (padded) input without copying. Its transpose, `spread`, gathers: each input
position adds up the windows that hold it, so gradients need no atomic writes and are the same on every run.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from webtorch.errors import ShapeError
from webtorch.functions.convolution import Sizes, crop, sizes_of
from webtorch.functions.slicing import pick
from webtorch.ir.dtype import INTEGERS
from webtorch.ir.view import numel
from webtorch.ops.primitive import as_view, fill, pad_with
from webtorch.ops.record import Example, composite
from webtorch.tensors.modes import unrecorded
from webtorch.tensors.tape import attach
from webtorch.tensors.tensor import Tensor

FUNCTIONAL = ("nn.functional",)


# ---- windows -------------------------------------------------------------------------------------


def windows(
    x: Tensor, kernel: tuple[int, ...], stride: tuple[int, ...], dilation: tuple[int, ...]
) -> Tensor:
    """Return the windows over the last dimensions of x, (*, S..), as a view (*, O.., K..). Differentiable."""
    rank = len(kernel)
    lead, sizes = tuple(x.shape[:-rank]), tuple(x.shape[-rank:])
    steps = tuple(x.stride())
    counts = tuple(
        (s - d * (k - 1) - 1) // t + 1
        for s, k, t, d in zip(sizes, kernel, stride, dilation, strict=True)
    )
    strides = (
        *steps[:-rank],
        *(st * t for st, t in zip(steps[-rank:], stride, strict=True)),
        *(st * d for st, d in zip(steps[-rank:], dilation, strict=True)),
    )
    return as_view(
        x,
        (*lead, *counts, *kernel),
        strides,
        x.storage_offset(),
        spread,
        (sizes, kernel, stride, dilation),
        "Windows",
    )


def spread(
    g: Tensor,
    sizes: tuple[int, ...],
    kernel: tuple[int, ...],
    stride: tuple[int, ...],
    dilation: tuple[int, ...],
    low: tuple[int, ...] | None = None,
    high: tuple[int, ...] | None = None,
) -> Any:
    """Return (*, sizes..), each position the sum of what (*, O.., K..) holds for it.

    This is the transpose of `windows` over `sizes` inside a border of `low` and `high` positions, whose
    sums are dropped. Differentiable.
    """
    rank = len(kernel)
    low, high = low or (0,) * rank, high or (0,) * rank
    lead = tuple(g.shape[: -2 * rank])
    before, after = (*(0,) * len(lead), *low), (*(0,) * len(lead), *high)
    with unrecorded():
        if not g.numel():
            out = fill((*lead, *sizes), 0, g.dtype, g.device)
        else:
            whole = tuple(a + s + b for a, s, b in zip(low, sizes, high, strict=True))
            if all(d == 1 for d in dilation):
                out = _spread_dense(g, whole, kernel, stride)
            else:
                out = _spread_taps(g, whole, kernel, stride, dilation)
            out = crop(out, before, (*lead, *sizes)).contiguous().detach()

    args = (before, after, kernel, stride, dilation)
    return attach(out, "Spread", (g,), _windows_inside, (), args)


def _windows_inside(
    h: Tensor,
    before: tuple[int, ...],
    after: tuple[int, ...],
    kernel: tuple[int, ...],
    stride: tuple[int, ...],
    dilation: tuple[int, ...],
) -> tuple[Tensor]:
    """Return the windows of a cotangent inside a border."""
    if any(before) or any(after):
        h = pad_with(h, before, after, 0)
    return (windows(h, kernel, stride, dilation),)


def _spread_dense(
    g: Tensor, sizes: tuple[int, ...], kernel: tuple[int, ...], stride: tuple[int, ...]
) -> Tensor:
    """Return the same for a dilation of 1, in one sum.

    Position i = s q + r is in windows q - j, at s j + r, for j < J = ceil(K / s): a view with dims
    q, r and j, summed over j.
    """
    rank = len(kernel)
    lead = tuple(g.shape[: -2 * rank])
    counts = tuple(g.shape[-2 * rank : -rank])
    held = tuple(-(-k // s) for k, s in zip(kernel, stride, strict=True))
    # Zeros around the windows, and after the kernel up to a multiple of the stride.
    edge = tuple(j - 1 for j in held)
    tail = tuple(j * s - k for j, s, k in zip(held, stride, kernel, strict=True))
    low = (*(0,) * len(lead), *edge, *(0,) * rank)
    high = (*(0,) * len(lead), *edge, *tail)
    g = pad_with(g, low, high, 0) if any(low) or any(high) else g.contiguous()
    steps = tuple(g.stride())
    over, inside = steps[-2 * rank : -rank], steps[-rank:]
    blocks = tuple(c + e for c, e in zip(counts, edge, strict=True))
    shape, strides, offset = list(lead), list(steps[: len(lead)]), g.storage_offset()
    for d in range(rank):
        shape += [blocks[d], stride[d]]
        strides += [over[d], inside[d]]
    for d in range(rank):
        # Counted backwards, j' = J - 1 - j, so that no stride is negative.
        shape.append(held[d])
        strides.append(over[d] - stride[d] * inside[d])
        offset += stride[d] * edge[d] * inside[d]
    out = as_view(g, shape, strides, offset)
    first = len(shape) - rank
    if any(j > 1 for j in held):
        out = out.sum(tuple(range(first, first + rank)))
    covered = tuple(b * s for b, s in zip(blocks, stride, strict=True))
    return _fit(out.reshape((*lead, *covered)), sizes)


def _spread_taps(
    g: Tensor,
    sizes: tuple[int, ...],
    kernel: tuple[int, ...],
    stride: tuple[int, ...],
    dilation: tuple[int, ...],
) -> Tensor:
    """The same for any dilation, one kernel position after the other."""
    rank = len(kernel)
    lead = tuple(g.shape[: -2 * rank])
    counts = tuple(g.shape[-2 * rank : -rank])
    spaced = tuple((c - 1) * s + 1 for c, s in zip(counts, stride, strict=True))
    total: Tensor | None = None
    for number in range(numel(kernel)):
        at: list[int] = []
        rest = number
        for k in reversed(kernel):
            at.insert(0, rest % k)
            rest //= k
        part = g
        for i in reversed(at):
            part = pick(part, part.ndim - 1, i)
        # (*, O, 1, ..) -> (*, O, s, ..): zeros between the windows.
        apart = tuple(n for c in counts for n in (c, 1))
        part = pad_with(
            part.reshape((*lead, *apart)),
            (0,) * (len(lead) + 2 * rank),
            (*(0,) * len(lead), *(n for s in stride for n in (0, s - 1))),
            0,
        )
        part = part.reshape((*lead, *(c * s for c, s in zip(counts, stride, strict=True))))
        part = crop(part, (0,) * part.ndim, (*lead, *spaced))
        before = tuple(i * d for i, d in zip(at, dilation, strict=True))
        after = tuple(s - b - n for s, b, n in zip(sizes, before, spaced, strict=True))
        part = pad_with(part, (*(0,) * len(lead), *before), (*(0,) * len(lead), *after), 0)
        total = part if total is None else total + part
    assert total is not None
    return total


def _fit(x: Tensor, sizes: tuple[int, ...]) -> Tensor:
    """Return x with its last dimensions cut or filled up with zeros to `sizes`."""
    lead = tuple(x.shape[: -len(sizes)])
    now = tuple(x.shape[-len(sizes) :])
    kept = tuple(min(a, b) for a, b in zip(now, sizes, strict=True))
    x = crop(x, (0,) * x.ndim, (*lead, *kept))
    if kept == sizes:
        return x
    missing = tuple(a - b for a, b in zip(sizes, kept, strict=True))
    return pad_with(x, (0,) * x.ndim, (*(0,) * len(lead), *missing), 0)


# ---- windows as columns --------------------------------------------------------------------------


def _columns(
    op: str,
    kernel_size: Sizes,
    dilation: Sizes,
    padding: Sizes,
    stride: Sizes | None,
    sizes: Sequence[int],
) -> tuple[tuple[int, int], tuple[int, int], tuple[int, int], tuple[int, int], tuple[int, int]]:
    """Return kernel, dilation, padding, stride and the numbers of windows."""
    kernel, dilation = (
        sizes_of(op, "kernel_size", kernel_size, 2),
        sizes_of(op, "dilation", dilation, 2),
    )
    padding, stride = sizes_of(op, "padding", padding, 2), sizes_of(op, "stride", stride, 2)
    for name, values, least in (
        ("kernel_size", kernel, 1),
        ("dilation", dilation, 1),
        ("stride", stride, 1),
        ("padding", padding, 0),
    ):
        if min(values) < least:
            raise ShapeError(f"{op}: {name} should be at least {least}, but got {values}")
    counts = tuple(
        (s + 2 * p - d * (k - 1) - 1) // t + 1
        for s, p, d, k, t in zip(sizes, padding, dilation, kernel, stride, strict=True)
    )
    if min(counts) < 1:
        raise ShapeError(
            f"Given input with spatial size ({sizes[0]}, {sizes[1]}), kernel_size={kernel}, "
            f"dilation={dilation}, padding={padding}, calculated shape of the array of sliding "
            f"blocks as {counts}, but its components must be at least one."
        )
    return kernel, dilation, padding, stride, counts  # type: ignore[return-value]


@composite(
    family="contract",
    function_in=FUNCTIONAL,
    name="functional_unfold",
    refuses=INTEGERS,
    gradient_name="Im2ColBackward0",
)
def im2col(
    input: Tensor, kernel_size: Sizes, dilation: Sizes = 1, padding: Sizes = 0, stride: Sizes = 1
) -> Tensor:
    """Return the windows of (N, C, H, W) or (C, H, W) as columns, (N, C kh kw, count)."""
    if input.ndim not in (3, 4) or 0 in input._shape[-3:]:
        raise ShapeError(
            "Expected 3D or 4D (batch mode) tensor with possibly 0 batch size and other non-zero dimensions for input, "
            f"but got: {list(input.shape)}"
        )
    lead = tuple(input.shape[:-2])
    kernel, dilation, padding, stride, counts = _columns(
        "unfold", kernel_size, dilation, padding, stride, input.shape[-2:]
    )
    border = (*(0,) * len(lead), *padding)
    x = pad_with(input, border, border, 0) if any(padding) else input
    n = len(lead)
    # (*, C, OH, OW, KH, KW) -> (*, C, KH, KW, OH, OW)
    seen = windows(x, kernel, stride, dilation).permute((*range(n), n + 2, n + 3, n, n + 1))
    return seen.reshape((*lead[:-1], lead[-1] * numel(kernel), numel(counts)))


@composite(
    family="contract",
    function_in=FUNCTIONAL,
    name="functional_fold",
    example=Example(((2, 12, 12),), ((4, 5), (2, 2))),
    gradient_name="Col2ImBackward0",
)
def col2im(
    input: Tensor,
    output_size: Sizes,
    kernel_size: Sizes,
    dilation: Sizes = 1,
    padding: Sizes = 0,
    stride: Sizes = 1,
) -> Tensor:
    """Add columns back into an image: (N, C kh kw, count) gives (N, C, *output_size)."""
    sizes = sizes_of("fold", "output_size", output_size, 2)
    if input.ndim not in (2, 3):
        raise ShapeError(
            f"fold: Expected 2D or 3D (batch mode) tensor for input, but got: {list(input.shape)}"
        )
    kernel, dilation, padding, stride, counts = _columns(
        "fold", kernel_size, dilation, padding, stride, sizes
    )
    flat, blocks = input.shape[-2:]
    if flat % numel(kernel):
        raise ShapeError(
            "Expected size of input's dimension 1 to be divisible by the product of kernel_size, "
            f"but got input.size(1)={flat} and kernel_size={kernel}. (fold)"
        )
    if blocks != numel(counts):
        raise ShapeError(
            f"Given output_size={sizes}, kernel_size={kernel}, dilation={dilation}, "
            f"padding={padding}, stride={stride}, expected size of input's dimension 2 to match "
            f"the calculated number of sliding blocks {counts[0]} * {counts[1]} = {numel(counts)}, "
            f"but got input.size(2)={blocks}. (fold)"
        )
    lead = (*input.shape[:-2], flat // numel(kernel))
    n = len(lead)
    x = input.reshape((*lead, *kernel, *counts)).permute((*range(n), n + 2, n + 3, n, n + 1))
    return spread(x, sizes, kernel, stride, dilation, padding, padding)
