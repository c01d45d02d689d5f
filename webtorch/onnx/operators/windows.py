"""Products, convolutions and pooling. Floor 6."""

from __future__ import annotations

import math
from collections.abc import Sequence

from webtorch import linalg
from webtorch.functions import public as webtorch
from webtorch.nn import functional as F
from webtorch.onnx.operators.table import Attrs, Context, Numbers, Result, ints, op
from webtorch.tensors.tensor import Tensor


@op("MatMul")
def _matmul(c: Context, a: Attrs, n: int, x: Tensor, y: Tensor) -> Tensor:
    if x.ndim == 1 and y.ndim == 1:
        return (x * y).sum().to(x.dtype)
    return webtorch.matmul(x, y)


@op("Gemm")
def _gemm(c: Context, a: Attrs, n: int, x: Tensor, y: Tensor, z: Tensor | None = None) -> Tensor:
    alpha, beta = a.get("alpha", 1.0), a.get("beta", 1.0)
    x = x.t() if a.get("transA") else x
    if (
        z is not None
        and alpha == beta == 1
        and a.get("transB")
        and z.ndim == 1
        and z.shape[0] == y.shape[0]
    ):
        return F.linear(x, y, z)
    out = x @ (y.t() if a.get("transB") else y)
    if alpha != 1:
        out = out * alpha
    return out if z is None else out + (z if beta == 1 else z * beta)


@op("Einsum")
def _einsum(c: Context, a: Attrs, n: int, *x: Tensor) -> Tensor:
    return webtorch.einsum(a["equation"], *x)


@op("Det")
def _det(c: Context, a: Attrs, n: int, x: Tensor) -> Tensor:
    return linalg.det(x)


def _padding(a: Attrs, sizes: Sequence[int], kernel: Sequence[int]) -> tuple[list[int], list[int]]:
    """Return the padding before and after each dim that a node's attributes ask for."""
    rank = len(kernel)
    strides = a.get("strides") or [1] * rank
    dilations = a.get("dilations") or [1] * rank
    auto = a.get("auto_pad", "NOTSET")
    if auto in ("SAME_UPPER", "SAME_LOWER"):
        low, high = [], []
        for size, k, s, d in zip(sizes, kernel, strides, dilations, strict=True):
            whole = max(0, (-(-size // s) - 1) * s + (k - 1) * d + 1 - size)
            small, large = whole // 2, whole - whole // 2
            low.append(small if auto == "SAME_UPPER" else large)
            high.append(large if auto == "SAME_UPPER" else small)
        return low, high
    pads = a.get("pads") or [0] * 2 * rank
    if auto == "VALID":
        pads = [0] * 2 * rank
    return list(pads[:rank]), list(pads[rank:])


def pad_sides(x: Tensor, low: Sequence[int], high: Sequence[int], value: float = 0) -> Tensor:
    """Return x with so many elements before and after each of its last dims."""
    flat: list[int] = []
    for before, after in zip(reversed(low), reversed(high), strict=True):
        flat += [before, after]
    return F.pad(x, flat, value=value)


@op("Conv")
def convolution(
    c: Context, a: Attrs, n: int, x: Tensor, weight: Tensor, bias: Tensor | None = None
) -> Tensor:
    """Run `Conv`, for the nodes that are one with something around it."""
    rank = weight.ndim - 2
    low, high = _padding(a, x.shape[2:], weight.shape[2:])
    if low != high:
        x, low = pad_sides(x, low, high), [0] * rank
    convolve = (F.conv1d, F.conv2d, F.conv3d)[rank - 1]
    return convolve(
        x, weight, bias, a.get("strides") or 1, low, a.get("dilations") or 1, a.get("group", 1)
    )


@op("ConvTranspose")
def _conv_transpose(
    c: Context, a: Attrs, n: int, x: Tensor, weight: Tensor, bias: Tensor | None = None
) -> Tensor:
    rank = weight.ndim - 2
    kernel = list(weight.shape[2:])
    strides = a.get("strides") or [1] * rank
    dilations = a.get("dilations") or [1] * rank
    extra = a.get("output_padding") or [0] * rank
    whole = [
        (s - 1) * st + (k - 1) * d + 1 + e
        for s, st, k, d, e in zip(x.shape[2:], strides, kernel, dilations, extra, strict=True)
    ]
    pads = a.get("pads") or [0] * 2 * rank
    low, high = list(pads[:rank]), list(pads[rank:])
    auto = a.get("auto_pad", "NOTSET")
    target = a.get("output_shape")
    if target is None and auto in ("SAME_UPPER", "SAME_LOWER"):
        target = [s * st for s, st in zip(x.shape[2:], strides, strict=True)]
    if target is not None:
        target = list(target)[-rank:]
        total = [w - t for w, t in zip(whole, target, strict=True)]
        half = [t // 2 for t in total]
        rest = [t - h for t, h in zip(total, half, strict=True)]
        low, high = (half, rest) if auto == "SAME_UPPER" else (rest, half)
    elif auto == "VALID":
        low = high = [0] * rank
    convolve = (F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d)[rank - 1]
    if (
        low == high
        and all(p >= 0 for p in low)
        and all(e < max(s, d) for e, s, d in zip(extra, strides, dilations, strict=True))
    ):
        return convolve(x, weight, bias, strides, low, extra, a.get("group", 1), dilations)
    full = convolve(x, weight, bias, strides, 0, 0, a.get("group", 1), dilations)
    if any(extra):
        shape = (1, -1) + (1,) * rank
        grown = pad_sides(full, [0] * rank, extra)
        if bias is not None:
            mask = pad_sides(webtorch.ones_like(full[:1, :1]), [0] * rank, extra)
            grown = grown + bias.reshape(shape) * (1 - mask)
        full = grown
    return pad_sides(full, [-p for p in low], [-p for p in high])


def _windows(
    a: Attrs, x: Tensor
) -> tuple[Tensor, list[int], list[int], list[int], list[int], list[int]]:
    kernel = list(a["kernel_shape"])
    rank = len(kernel)
    strides = list(a.get("strides") or [1] * rank)
    dilations = list(a.get("dilations") or [1] * rank)
    low, high = _padding(a, x.shape[2:], kernel)
    return x, kernel, strides, dilations, low, high


def _fill_last(
    x: Tensor,
    a: Attrs,
    kernel: list[int],
    strides: list[int],
    dilations: list[int],
    low: list[int],
    high: list[int],
) -> list[int]:
    """Return the padding behind with which the last windows of ceil_mode are whole."""
    if not a.get("ceil_mode"):
        return list(high)
    found = []
    for size, k, s, d, p, q in zip(x.shape[2:], kernel, strides, dilations, low, high, strict=True):
        reach = (k - 1) * d + 1
        count = -(-(size + p + q - reach) // s) + 1
        if (count - 1) * s >= size + p:
            count -= 1  # a window that starts in the padding does not count
        found.append(max(q, (count - 1) * s + reach - size - p))
    return found


@op("MaxPool")
def _max_pool(c: Context, a: Attrs, n: int, x: Tensor) -> Result:
    x, kernel, strides, dilations, low, high = _windows(a, x)
    rank = len(kernel)
    high = _fill_last(x, a, kernel, strides, dilations, low, high)
    lowest = -math.inf if x.dtype.is_floating_point else webtorch.iinfo(x.dtype).min
    padded = pad_sides(x, low, high, lowest) if any(low) or any(high) else x
    pool = (F.max_pool1d, F.max_pool2d, F.max_pool3d)[rank - 1]
    out = pool(padded, kernel, strides, 0, dilations, False, n > 1)
    if n == 1:
        return out
    values, index = out
    # Positions in the padded plane become positions in all of the input.
    sizes, wide = list(x.shape[2:]), list(padded.shape[2:])
    coordinates = []
    rest = index
    for d in reversed(range(rank)):
        coordinates.append(rest % wide[d] - low[d])
        rest = webtorch.div(rest, wide[d], rounding_mode="floor")
    coordinates.reverse()
    order = range(rank) if not a.get("storage_order") else reversed(range(rank))
    flat = None
    for d in order:
        flat = coordinates[d] if flat is None else flat * sizes[d] + coordinates[d]
    planes = webtorch.arange(x.shape[0] * x.shape[1], device=x.device).reshape(
        (*x.shape[:2], *(1,) * rank)
    )
    return values, flat + planes * math.prod(sizes)


@op("AveragePool")
def _avg_pool(c: Context, a: Attrs, n: int, x: Tensor) -> Tensor:
    x, kernel, strides, dilations, low, high = _windows(a, x)
    last = _fill_last(x, a, kernel, strides, dilations, low, high)
    total = _window_sums(pad_sides(x, low, last), kernel, strides, dilations)
    ones = webtorch.ones((1, 1, *x.shape[2:]), dtype=x.dtype, device=x.device)
    if a.get("count_include_pad"):
        ones = pad_sides(ones, low, high, 1)
        behind = [q - p for p, q in zip(high, last, strict=True)]
        ones = pad_sides(ones, [0] * len(low), behind)
    else:
        ones = pad_sides(ones, low, last)
    return total / _window_sums(ones, kernel, strides, dilations)


def _window_sums(x: Tensor, kernel: list[int], strides: list[int], dilations: list[int]) -> Tensor:
    rank = len(kernel)
    if all(d == 1 for d in dilations):
        pool = (F.avg_pool1d, F.avg_pool2d, F.avg_pool3d)[rank - 1]
        return pool(x, kernel, strides) * math.prod(kernel)
    channels = x.shape[1]
    weight = webtorch.ones((channels, 1, *kernel), dtype=x.dtype, device=x.device)
    convolve = (F.conv1d, F.conv2d, F.conv3d)[rank - 1]
    return convolve(x, weight, None, strides, 0, dilations, channels)


@op("LpPool")
def _lp_pool(c: Context, a: Attrs, n: int, x: Tensor) -> Tensor:
    x, kernel, strides, dilations, low, high = _windows(a, x)
    p = a.get("p", 2)
    high = _fill_last(x, a, kernel, strides, dilations, low, high)
    return _window_sums(pad_sides(x.abs() ** p, low, high), kernel, strides, dilations) ** (1 / p)


@op("GlobalAveragePool")
def _global_avg(c: Context, a: Attrs, n: int, x: Tensor) -> Tensor:
    return x.mean(tuple(range(2, x.ndim)), keepdim=True)


@op("GlobalMaxPool")
def _global_max(c: Context, a: Attrs, n: int, x: Tensor) -> Tensor:
    return x.amax(tuple(range(2, x.ndim)), keepdim=True)


@op("GlobalLpPool")
def _global_lp(c: Context, a: Attrs, n: int, x: Tensor) -> Tensor:
    p = a.get("p", 2)
    return (x.abs() ** p).sum(tuple(range(2, x.ndim)), keepdim=True) ** (1 / p)


@op("MaxUnpool", host=(2,))
def _max_unpool(
    c: Context, a: Attrs, n: int, x: Tensor, index: Tensor, size: Numbers | None = None
) -> Tensor:
    kernel = a["kernel_shape"]
    strides = a.get("strides") or [1] * len(kernel)
    pads = a.get("pads") or [0] * 2 * len(kernel)
    rank = len(kernel)
    inner = [
        (s - 1) * st + k - pads[d] - pads[d + rank]
        for d, (s, st, k) in enumerate(zip(x.shape[2:], strides, kernel, strict=True))
    ]
    target = [*x.shape[:2], *inner]
    flat = webtorch.zeros((math.prod(target),), dtype=x.dtype, device=x.device)
    out = flat.scatter(0, index.reshape(-1), x.reshape(-1)).reshape(target)
    if size is None:
        return out
    wanted = ints(size) or []
    return pad_sides(out, [0] * x.ndim, [w - s for w, s in zip(wanted, target, strict=True)])
