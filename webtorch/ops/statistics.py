"""Differences, distances, covariance, histograms and the most frequent value. May import floors 0 and 1.

All are written with other operations, so their gradients follow.
"""

from __future__ import annotations

import itertools
from typing import Any

from webtorch.errors import ShapeError
from webtorch.ir.dtype import int64
from webtorch.ir.view import normalize_dim
from webtorch.ops import creation, elementwise, indexing, movement, ordering
from webtorch.ops.primitive import cast_to, fill, iota
from webtorch.ops.record import Autocast, composite, return_type

Mode = return_type("mode")


@composite(family="index")
def diff(input: Any, n: int = 1, dim: int = -1, prepend: Any = None, append: Any = None) -> Any:
    """The n-th difference of neighbours along a dim. Raises RuntimeError for a 0-d tensor."""
    if not input.ndim:
        raise ShapeError("diff expects input to be at least one-dimensional")
    if n < 0:
        raise RuntimeError(f"order must be non-negative but got {n}")
    parts = [p for p in (prepend, input, append) if p is not None]
    x = movement.cat(parts, dim) if len(parts) > 1 else input
    d = normalize_dim(dim, x.ndim)
    for _ in range(min(n, x._shape[d])):
        size = x._shape[d] - 1
        after, before = movement.narrow(x, d, 1, size), movement.narrow(x, d, 0, size)
        x = after ^ before if x.dtype.kind == "bool" else after - before
    return x.clone() if x is input else x


@composite(family="index", autocast=Autocast(gpu="fp32"))
def dist(input: Any, other: Any, p: float = 2) -> Any:
    """The p-norm of input - other."""
    return (input - other).norm(p)


@composite(family="index", function_in=("torch",), aliases=("trapz",))
def trapezoid(y: Any, x: Any = None, *, dx: float = 1, dim: int = -1) -> Any:
    """The integral of samples y at x (or at steps of dx) by the trapezoidal rule."""
    d = normalize_dim(dim, y.ndim)
    size = y._shape[d] - 1
    if size <= 0:
        return y.sum(d) * 0
    heights = movement.narrow(y, d, 1, size) + movement.narrow(y, d, 0, size)
    if x is None:
        return heights.sum(d) * (dx / 2)
    if x.ndim == 1:
        x = x.reshape((1,) * d + (-1,) + (1,) * (y.ndim - d - 1))
    return (heights * diff(x, 1, d)).sum(d) / 2


@composite(family="index")
def cov(input: Any, *, correction: int = 1, fweights: Any = None, aweights: Any = None) -> Any:
    """The covariance matrix of variables (rows) over observations (columns)."""
    if input.ndim > 2:
        raise RuntimeError(
            "cov(): expected input to have two or fewer dimensions but got an input with "
            f"{input.ndim} dimensions"
        )
    x = input if input.ndim == 2 else input.reshape((1, -1))
    if not x.dtype.is_floating_point:
        x = x.float()
    weights = None if fweights is None else cast_to(fweights, x.dtype)
    if aweights is not None:
        weights = aweights if weights is None else weights * aweights
    if weights is None:
        count: Any = x._shape[1]
        centred = x - x.mean(1, keepdim=True)
        product = centred @ centred.mT
        norm: Any = max(count - correction, 0)
    else:
        total = weights.sum()
        centred = x - (x * weights).sum(1, keepdim=True) / total
        product = (centred * weights) @ centred.mT
        if aweights is None:
            norm = total - correction
        else:
            norm = total - correction * (weights * aweights).sum() / total
        norm = norm.clamp(min=0)
    out = product / norm
    return out.reshape(()) if input.ndim < 2 else out


@composite(family="index")
def corrcoef(input: Any) -> Any:
    """The correlation coefficients of variables (rows) over observations (columns)."""
    c = cov(input)
    if not c.ndim:
        return c / c
    spread = c.diagonal().sqrt()
    return (c / spread.unsqueeze(0) / spread.unsqueeze(1)).clamp(-1, 1)


@composite(family="index", function_in=("torch",))
def combinations(input: Any, r: int = 2, with_replacement: bool = False) -> Any:
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
    return indexing.index_select(input, 0, where).reshape((len(rows), r))


@composite(family="index", function_in=("torch",))
def unravel_index(indices: Any, shape: Any) -> tuple[Any, ...]:
    """The coordinates of flat indices into a tensor of `shape`, one tensor for each dim."""
    sizes = (shape,) if isinstance(shape, int) else tuple(shape)
    rest, out = indices, []
    for size in reversed(sizes):
        out.append(rest % size)
        rest = elementwise.floor_divide(rest, size)
    return tuple(reversed(out))


@composite(family="index")
def histc(input: Any, bins: int = 100, min: float = 0, max: float = 0) -> Any:
    """How many elements lie in each of equal bins between min and max (both 0: the data's range)."""
    if bins <= 0:
        raise RuntimeError("bins must be > 0")
    if not input.dtype.is_floating_point:
        raise RuntimeError(f"\"histogram_cpu\" not implemented for '{input.type()[6:-6]}'")
    if max < min:
        raise RuntimeError("max must be larger than min")
    x = movement.reshape(input, (-1,))
    low, high = float(min), float(max)
    if low == high and x.numel():
        low, high = float(x.min().item()), float(x.max().item())
    if low == high:
        low, high = low - 1, high + 1
    place = cast_to(((x - low) * (bins / (high - low))).floor(), int64)
    # The upper end belongs to the last bin.
    place = elementwise.where(x == high, bins - 1, place)
    inside = (x >= low) & (x <= high)
    place = elementwise.where(inside, place, bins)
    return indexing.bincount(place, None, bins + 1)[:bins].to(input.dtype)


@composite(family="index")
def mode(input: Any, dim: int = -1, keepdim: bool = False) -> Any:
    """The most frequent value along a dim, the smallest of equals, and where it is: (values, indices)."""
    if not input.ndim:
        return Mode(input.clone(), fill((), 0, int64, input.device))
    d = normalize_dim(dim, input.ndim)
    size = input._shape[d]
    if not size:
        raise IndexError(f"mode(): Expected reduction dim {d} to have non-zero size.")
    values, order = ordering.sort(movement.movedim(input, d, -1), dim=-1, stable=True)
    # Lengths of runs of equal values: places since the last change.
    places = iota(size, 0, 1, int64, input.device).expand(values._shape)
    if size > 1:
        changed = movement.narrow(values, -1, 1, size - 1) != movement.narrow(
            values, -1, 0, size - 1
        )
        starts = elementwise.where(changed, movement.narrow(places, -1, 1, size - 1), 0)
        first = fill((*values._shape[:-1], 1), 0, int64, input.device)
        run = places - movement.cat([first, starts], -1).cummax(-1)[0]
    else:
        run = places
    best = run.argmax(-1, keepdim=True)
    found = movement.movedim(indexing.gather(order, -1, best), -1, d)
    picked = indexing.gather(input, d, found)
    if keepdim:
        return Mode(picked, found)
    return Mode(picked.squeeze(d), found.squeeze(d))
