"""Differences, distances, covariance, histograms and the most frequent value.

All are written with other operations, so their gradients follow.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

from webtorch.errors import ShapeError
from webtorch.functions import (
    creation,
    gather_scatter,
    joining,
    lookup,
    movement,
    ordering,
    pointwise,
    ranges,
    slicing,
)
from webtorch.functions.reduce import as_float, vector_norm
from webtorch.ir.dtype import bool_, int64, uint8
from webtorch.ir.view import normalize_dim
from webtorch.ops import elementwise
from webtorch.ops.layout import row_major
from webtorch.ops.precision import computed_wide
from webtorch.ops.primitive import cast_to, fill, imag_part, iota, join, real_part
from webtorch.ops.record import BOOL, Autocast, Example, Family, OutRule, composite, return_type
from webtorch.tensors.tensor import Tensor

FAMILY: Family = "index"


@return_type("mode")
class Mode(NamedTuple):
    """What mode returns."""

    values: Tensor
    indices: Tensor


@return_type("histogram")
class Histogram(NamedTuple):
    """What histogram returns."""

    hist: Tensor
    bin_edges: Tensor


@return_type("histogramdd")
class HistogramDD(NamedTuple):
    """What histogramdd returns."""

    hist: Tensor
    bin_edges: tuple[Tensor, ...]


def _out_of_diff(input: Tensor, n: int = 1, *_: object, **__: object) -> OutRule:
    return "cast" if n else "exact"


@composite(out=_out_of_diff)
def diff(
    input: Tensor,
    n: int = 1,
    dim: int = -1,
    prepend: Tensor | None = None,
    append: Tensor | None = None,
) -> Tensor:
    """The n-th difference of neighbours along a dim. Raises RuntimeError for a 0-d tensor."""
    if not input.ndim:
        raise ShapeError("diff expects input to be at least one-dimensional")
    if n < 0:
        raise RuntimeError(f"order must be non-negative but got {n}")
    d = normalize_dim(dim, input.ndim)
    for more in (prepend, append):
        if more is not None:
            _check_beside(input, more, d)
    parts = [p for p in (prepend, input, append) if p is not None and n]
    x = joining.cat(parts, dim) if len(parts) > 1 else input
    for _ in range(min(n, x._shape[d])):
        size = x._shape[d] - 1
        after, before = slicing.narrow(x, d, 1, size), slicing.narrow(x, d, 0, size)
        x = after ^ before if x.dtype.kind == "bool" else after - before
    return x.clone() if x is input else x


def _check_beside(x: Tensor, more: Tensor, d: int) -> None:
    """Raise ShapeError if what is put before or after `x` along a dim has another shape beside it."""
    if more.ndim != x.ndim:
        raise ShapeError(
            "diff expects prepend or append to be the same dimension as input, but got "
            f"{more.ndim} and {x.ndim} dims"
        )
    for k, (size, other) in enumerate(zip(x._shape, more._shape, strict=True)):
        if k != d and size != other:
            raise ShapeError(
                "diff expects the shape of tensor to prepend or append to match that of input except along the "
                f"differencing dimension; input.size({k}) = {size}, but got tensor.size({k}) = {other}"
            )


def _uneven_slopes(x: Tensor, places: Tensor, d: int) -> Tensor:
    """Return the second-order slopes inside, at places with steps of different lengths."""
    size = x._shape[d]
    steps = diff(places)
    shape = (1,) * d + (-1,) + (1,) * (x.ndim - d - 1)
    before, after = steps[:-1].reshape(shape), steps[1:].reshape(shape)
    first, middle, last = (slicing.narrow(x, d, k, size - 2) for k in range(3))
    total = before + after
    return (
        -after / (before * total) * first
        + (after - before) / (before * after) * middle
        + before / (after * total) * last
    )


def _slope_along(x: Tensor, d: int, spacing: Any, edge_order: int) -> Tensor:
    size = x._shape[d]
    uneven = isinstance(spacing, Tensor) and spacing.ndim == 1
    if uneven:
        inside = _uneven_slopes(x, spacing, d)
        steps = diff(spacing)
        count = len(steps)
        first, second, last, previous = (steps[k % count] for k in (0, 1, -1, -2))
    else:
        inside = (slicing.narrow(x, d, 2, size - 2) - slicing.narrow(x, d, 0, size - 2)) / (
            2 * spacing
        )
        first = second = last = previous = spacing

    def at(k: int) -> Tensor:
        """Return place k along the dim, from the end for negative k."""
        return slicing.narrow(x, d, k % size, 1)

    if edge_order == 1:
        low, high = (at(1) - at(0)) / first, (at(-1) - at(-2)) / last
    else:
        total = first + second
        low = (
            -(first + total) / (first * total) * at(0)
            + total / (first * second) * at(1)
            - first / (second * total) * at(2)
        )
        total = previous + last
        high = (
            last / (previous * total) * at(-3)
            - total / (previous * last) * at(-2)
            + (last + total) / (last * total) * at(-1)
        )
    return joining.cat((low, inside, high), d)


@composite(function_in=("torch",), refuses=(bool_, uint8))
def gradient(
    input: Tensor,
    *,
    spacing: object = 1,
    dim: Sequence[int] | int | None = None,
    edge_order: int = 1,
) -> tuple[Tensor, ...]:
    """The slopes along each of `dim` (all by default) by central differences, one tensor each."""
    name = "torch.gradient"
    if edge_order not in (1, 2):
        raise RuntimeError(f"{name} only supports edge_order=1 and edge_order=2.")
    if dim is None:
        dims = list(range(input.ndim))
    else:
        dims = [normalize_dim(d, input.ndim) for d in ((dim,) if isinstance(dim, int) else dim)]
    if len(set(dims)) != len(dims):
        raise RuntimeError(f"dim {dims[0]} appears multiple times in the list of dims")
    if spacing is None:
        spacing = 1
    if isinstance(spacing, (int, float, complex)):
        spacings: list[object] = [spacing] * len(dims)
    else:
        spacings = list(spacing) if isinstance(spacing, (list, tuple)) else [spacing]
        if len(spacings) != len(dims):
            raise RuntimeError(
                f"{name} expected spacing to be unspecified, a scalar, or a list of length equal to "
                f"'self.dim() = {input.ndim}', since dim argument was not given, but got a list of "
                f"length {len(spacings)}"
            )
    for d, each in zip(dims, spacings, strict=True):
        if isinstance(each, Tensor):
            if each._storage.runtime is not input._storage.runtime:
                raise RuntimeError(
                    f"{name} expected each tensor to be on the same device, but got devices "
                    f"{input.device} and {each.device}!"
                )
            if each.ndim != 1 or each._shape[0] != input._shape[d]:
                raise RuntimeError(
                    f"{name} expected each element in spacing to have one dimension of size "
                    f"{input._shape[d]}, but got an element with shape {list(each._shape)}"
                )
        if input._shape[d] < edge_order + 1:
            raise RuntimeError(f"{name} expected each dimension size to be at least edge_order+1")
    x = as_float(input)
    return tuple(_slope_along(x, d, s, edge_order) for d, s in zip(dims, spacings, strict=True))


@composite(autocast=Autocast(gpu="fp32"), gradient_name="DistBackward0")
def dist(input: Tensor, other: Tensor, p: float = 2) -> Tensor:
    """The p-norm of input - other."""
    if not isinstance(other, Tensor):
        raise TypeError(
            f"dist(): argument 'other' (position 2) must be Tensor, not {type(other).__name__}"
        )
    return (input - other).norm(p)


@composite(function_in=("torch",), aliases=("trapz",), refuses=BOOL)
def trapezoid(y: Tensor, x: Tensor | None = None, *, dx: float = 1, dim: int = -1) -> Tensor:
    """The integral of samples y at x (or at steps of dx) by the trapezoidal rule."""
    d = normalize_dim(dim, y.ndim)
    size = y._shape[d] - 1
    if size <= 0:
        return y.sum(d) * 0
    heights = slicing.narrow(y, d, 1, size) + slicing.narrow(y, d, 0, size)
    if x is None:
        return heights.sum(d) * (dx / 2)
    if x.ndim == 1:
        x = x.reshape((1,) * d + (-1,) + (1,) * (y.ndim - d - 1))
    return (heights * diff(x, 1, d)).sum(d) / 2


@composite(function_in=("torch",), refuses=BOOL)
def cumulative_trapezoid(
    y: Tensor, x: Tensor | None = None, *, dx: float = 1, dim: int = -1
) -> Tensor:
    """The running integral of samples y at x (or at steps of dx) by the trapezoidal rule."""
    d = normalize_dim(dim, y.ndim)
    size = max(y._shape[d] - 1, 0)
    heights = slicing.narrow(y, d, y._shape[d] - size, size) + slicing.narrow(y, d, 0, size)
    if x is None:
        return (heights * (dx / 2)).cumsum(d)
    if x.ndim == 1:
        x = x.reshape((1,) * d + (-1,) + (1,) * (y.ndim - d - 1))
    return (heights * diff(x, 1, d - y.ndim) / 2).cumsum(d)


def _check_weights(count: int, **weights: Tensor | None) -> None:
    """Raise PyTorch's errors for weights of observations that do not fit."""
    for name, w in weights.items():
        if w is None:
            continue
        if w.ndim > 1:
            raise RuntimeError(
                f"cov(): expected {name} to have one or fewer dimensions but got {name} with {w.ndim} "
                "dimensions"
            )
        kind, wanted = ("float", "floating point") if name == "aweights" else ("int", "integral")
        if w.dtype.kind != kind and not (kind == "int" and w.dtype.kind == "uint"):
            raise RuntimeError(
                f"cov(): expected {name} to have {wanted} dtype but got {name} with {w.dtype} dtype"
            )
        if w.numel() != count:
            raise RuntimeError(
                f"cov(): expected {name} to have the same numel as there are observations in the "
                f"input but got {w.numel()} != {count}"
            )
        if w.numel() and not w._storage.runtime.capturing and bool((w < 0).any().item()):
            raise RuntimeError(f"cov(): {name} cannot be negative")


@composite(refuses=BOOL)
def cov(
    input: Tensor,
    *,
    correction: int = 1,
    fweights: Tensor | None = None,
    aweights: Tensor | None = None,
) -> Tensor:
    """The covariance matrix of variables (rows) over observations (columns)."""
    if input.ndim > 2:
        raise RuntimeError(
            "cov(): expected input to have two or fewer dimensions but got an input with "
            f"{input.ndim} dimensions"
        )
    x = input if input.ndim == 2 else input.reshape((1, -1))
    _check_weights(x._shape[1], fweights=fweights, aweights=aweights)
    x = as_float(x)
    weights = None if fweights is None else cast_to(fweights, x.dtype.to_real())
    if aweights is not None:
        weights = aweights if weights is None else weights * aweights
    if weights is None:
        count: Any = x._shape[1]
        centred = x - x.mean(1, keepdim=True)
        product = centred @ centred.mH
        norm: Any = max(count - correction, 0)
    else:
        total = weights.sum()
        centred = x - (x * weights).sum(1, keepdim=True) / total
        product = (centred * weights) @ centred.mH
        if aweights is None:
            norm = total - correction
        else:
            norm = total - correction * (weights * aweights).sum() / total
        norm = norm.clamp(min=0)
    out = product / norm
    return out.reshape(()) if out.numel() == 1 else out


@composite(refuses=BOOL)
def corrcoef(input: Tensor) -> Tensor:
    """The correlation coefficients of variables (rows) over observations (columns)."""
    c = cov(input)
    if not c.ndim:
        return c / c
    if c.dtype.is_complex:
        spread = real_part(c.diagonal()).sqrt()
        found = c / spread.unsqueeze(0) / spread.unsqueeze(1)
        return join(real_part(found).clamp(-1, 1), imag_part(found).clamp(-1, 1))
    spread = c.diagonal().sqrt()
    return (c / spread.unsqueeze(0) / spread.unsqueeze(1)).clamp(-1, 1)


@composite(function_in=("torch",))
def combinations(input: Tensor, r: int = 2, with_replacement: bool = False) -> Tensor:
    """All combinations of r elements of a 1-d tensor, one a row."""
    if input.ndim != 1:
        raise RuntimeError("Expect a 1D vector, but got shape " + str(list(input._shape)))
    if r < 0:
        raise RuntimeError(f"Expect a non-negative number, but got {r}")
    pick = itertools.combinations_with_replacement if with_replacement else itertools.combinations
    rows = list(pick(range(input._shape[0]), r))
    if not rows or not r:
        return input.new_empty((len(rows) if r else 0, r) if r else (0,))
    where = creation.tensor(list(itertools.chain(*rows)), dtype=int64, device=input.device)
    return gather_scatter.index_select(input, 0, where).reshape((len(rows), r))


@composite(function_in=("torch",), example=Example(("i5",), ((2, 3),)))
def unravel_index(indices: Tensor, shape: Sequence[int] | int) -> tuple[Tensor, ...]:
    """The coordinates of flat indices into a tensor of `shape`, one tensor for each dim."""
    if indices.dtype.kind not in ("int", "uint"):
        raise TypeError(f"expected 'indices' to be integer dtype, but got {indices.dtype}")
    if not isinstance(shape, (int, list, tuple)):
        raise TypeError(f"expected 'shape' to be int or sequence of ints, but got {type(shape)}")
    sizes = (shape,) if isinstance(shape, int) else tuple(shape)
    if other := [type(size) for size in sizes if not hasattr(size, "__index__")]:
        raise TypeError(f"expected 'shape' sequence to only contain ints, but got {other[0]}")
    if any(size < 0 for size in sizes):
        raise ValueError(f"'shape' cannot have negative values, but got {sizes}")
    rest, out = cast_to(indices, int64), []
    for size in reversed(sizes):
        out.append(rest % size)
        rest = elementwise.floor_divide(rest, size)
    return tuple(reversed(out))


@composite()
def histc(input: Tensor, bins: int = 100, min: float = 0, max: float = 0) -> Tensor:
    """How many elements lie in each of equal bins between min and max (both 0: the data's range).

    On the CPU of floats only, as in PyTorch; elsewhere of integers, too.
    """
    if input._in_host_memory and not input.dtype.is_floating_point and max >= min:
        raise NotImplementedError(f"histc: not implemented for {input.dtype} on the CPU")
    return _histc(input, bins, min, max)


@composite(function_in=(), aten=("histc",), looks_at=("input",))
def _histc(input: Tensor, bins: int = 100, min: float = 0, max: float = 0) -> Tensor:
    """histc() of floats and integers on each device."""
    if bins <= 0:
        raise RuntimeError("bins must be > 0")
    if max < min:
        raise RuntimeError("torch.histc: max must be larger than min")
    if input.dtype.is_complex or input.dtype.kind == "bool":
        raise NotImplementedError(f"histc: not implemented for {input.dtype}")
    x = movement.reshape(input, (-1,))
    low, high = float(min), float(max)
    if low == high and x.numel():
        low, high = float(x.min().item()), float(x.max().item())
    _check_range("torch.histc: ", low, high)
    if low == high:
        low, high = low - 1, high + 1
    if input.dtype.is_floating_point:
        # In the type of the elements, step by step, as PyTorch finds a bin.
        start, end = (fill((), edge, x.dtype, x.device) for edge in (low, high))
        place = cast_to(((x - start) * bins / (end - start)).floor(), int64)
    else:
        # In integers, as PyTorch's accelerators count them.
        x, low, high = cast_to(x, int64), int(low), int(high)
        place = elementwise.floor_divide((x - low) * bins, high - low)
    # The upper end belongs to the last bin, and what is rounded to it.
    place = place.clamp(max=bins - 1)
    inside = (x >= low) & (x <= high)
    place = pointwise.where(inside, place, bins)
    return lookup.counted(place, bins + 1)[:bins].to(input.dtype)


def _check_range(what: str, low: float, high: float) -> None:
    if not (math.isfinite(low) and math.isfinite(high)):
        raise RuntimeError(f"{what}range of [{low:g}, {high:g}] is not finite")


def _edges(name: str, x: Tensor, bins: int, low_high: Any) -> Tensor:
    """Return bins + 1 equal steps from the smallest to the largest, or over the range given."""
    if bins <= 0:
        raise RuntimeError(f"{name}(): bins must be > 0, but got {bins}")
    if low_high is not None:
        low, high = float(low_high[0]), float(low_high[1])
    elif x.numel():
        low, high = float(x.min().item()), float(x.max().item())
    else:
        low = high = 0.0
    _check_range(f"{name}(): ", low, high)
    if low > high:
        raise RuntimeError(f"{name}(): min {low} should not exceed max {high}")
    if low == high:
        low, high = (0.0, 1.0) if not x.numel() and low_high is None else (low - 0.5, high + 0.5)
    return ranges.linspace(low, high, bins + 1, dtype=x.dtype, device=x.device)


def _bin_of(x: Tensor, edges: Tensor) -> Tensor:
    """Return the bin of each element; the number of bins where it lies outside. The last is closed."""
    count = edges._shape[0] - 1
    place = lookup.searchsorted(edges.contiguous(), x.contiguous(), right=True) - 1
    place = pointwise.where(x == edges[-1], count - 1, place)
    return pointwise.where((x >= edges[0]) & (x <= edges[-1]), place, count)


@composite(differentiable=False)
def histogram(
    input: Tensor,
    bins: Tensor | int,
    *,
    range: object = None,
    weight: Tensor | None = None,
    density: bool = False,
) -> Histogram:
    """(how many elements, or how much weight, lie in each bin; the edges). Bins are a number or edges."""
    _check_float("histogram", input)
    found, edges = _histogram(
        "histogram", input.detach().reshape((-1, 1)), [bins], range, weight, density
    )
    return Histogram(found, edges[0])


@composite(function_in=("torch",), differentiable=False)
def histogramdd(
    input: Tensor,
    bins: Sequence[int] | Sequence[Tensor] | int,
    range: object = None,
    weight: Tensor | None = None,
    density: bool = False,
) -> HistogramDD:
    """(the histogram of points (*, D) over D dims, the edges of the bins in each)."""
    _check_float("histogramdd", input)
    if input.ndim < 2:
        raise RuntimeError("histogramdd(): input tensor should have at least 2 dimensions")
    width = input._shape[-1]
    each = [bins] * width if isinstance(bins, int) else list(bins)
    if len(each) != width:
        raise RuntimeError(
            f"histogramdd(): The size of bins must be equal to the innermost dimension of the input, "
            f"but got {len(each)} and {width}"
        )
    found, edges = _histogram(
        "histogramdd", input.detach().reshape((-1, width)), each, range, weight, density
    )
    return HistogramDD(found, tuple(edges))


def _check_float(name: str, x: Tensor) -> None:
    if x.dtype.kind != "float":
        raise NotImplementedError(
            f"{name}(): the input must be a floating point tensor, not {x.dtype}"
        )


def _histogram(
    name: str, x: Tensor, bins: Sequence[Any], low_high: Any, weight: Tensor | None, density: bool
) -> tuple[Tensor, list[Tensor]]:
    edges = []
    for d, b in enumerate(bins):
        if isinstance(b, Tensor):
            edges.append(b)
        else:
            pair = None if low_high is None else low_high[2 * d : 2 * d + 2]
            edges.append(_edges(name, x[:, d], int(b), pair))
    counts = [e._shape[0] - 1 for e in edges]
    place: Any = 0
    inside: Any = True
    for d, (e, count) in enumerate(zip(edges, counts, strict=True)):
        each = _bin_of(x[:, d], e)
        inside = (each < count) & inside
        place = place * count + each
    total = math.prod(counts)
    place = pointwise.where(inside, place, total)
    amount = (
        fill(place._shape, 1, x.dtype, x.device)
        if weight is None
        else cast_to(weight.detach().reshape((-1,)), x.dtype)
    )
    flat = fill((total + 1,), 0, x.dtype, x.device)
    found = gather_scatter.index_add(flat, 0, place, amount)[:total].reshape(tuple(counts))
    if density:
        found = found / found.sum()
        for d, e in enumerate(edges):
            found = found / diff(e).reshape((-1,) + (1,) * (len(edges) - d - 1))
    return found, edges


@composite(
    inplace=True,
    autocast=Autocast(gpu="fp32"),
    gradient_name="RenormBackward0",
    aten=("renorm",),
    overlap="whole",
    layout=row_major,
)
@computed_wide
def renorm(input: Tensor, p: float, dim: int, maxnorm: float) -> Tensor:
    """A copy whose slices along `dim` with a p-norm above maxnorm are scaled down to it."""
    if p <= 0:
        raise RuntimeError("renorm: non-positive-norm not supported")
    if input.ndim < 2:
        raise RuntimeError(
            f"renorm: input needs at least 2 dimensions, got {input.ndim} dimensions"
        )
    if maxnorm < 0:
        raise RuntimeError(f"renorm: expected maxnorm to be >= 0 but got {maxnorm}")
    d = normalize_dim(dim, input.ndim)
    others = tuple(k for k in range(input.ndim) if k != d)
    size = vector_norm(input, p, others, True)
    return input * pointwise.where(size > maxnorm, maxnorm / (size + 1e-7), 1.0)


@composite(
    ties=True,
    gradient_name="ModeBackward0",
    once=True,
    direct=("mode.values",),
    aten=("mode",),
    overlap="none",
)
def mode(input: Tensor, dim: int = -1, keepdim: bool = False) -> Mode:
    """The most frequent value along a dim, the smallest of equals, and where it is: (values, indices)."""
    d = normalize_dim(dim, input.ndim)
    if not input.ndim:
        return Mode(input.clone(), fill((), 0, int64, input.device))
    size = input._shape[d]
    if not size:
        raise IndexError(f"mode(): Expected reduction dim {d} to have non-zero size.")
    values, order = ordering.sort(movement.movedim(input, d, -1), dim=-1, stable=True)
    # Lengths of runs of equal values: places since the last change.
    places = iota(size, 0, 1, int64, input.device).expand(values._shape)
    if size > 1:
        changed = slicing.narrow(values, -1, 1, size - 1) != slicing.narrow(values, -1, 0, size - 1)
        starts = pointwise.where(changed, slicing.narrow(places, -1, 1, size - 1), 0)
        first = fill((*values._shape[:-1], 1), 0, int64, input.device)
        run = places - joining.cat([first, starts], -1).cummax(-1)[0]
    else:
        run = places
    best = run.argmax(-1, keepdim=True)
    found = movement.movedim(gather_scatter.gather(order, -1, best), -1, d)
    picked = gather_scatter.gather(input, d, found)
    if keepdim:
        return Mode(picked, found)
    return Mode(picked.squeeze(d), found.squeeze(d))
