"""Positions in an image and the sums around them, of `grid_sample`. May import floors 0 and 1."""

from __future__ import annotations

from webtorch.ir import expr as ex
from webtorch.ir.dtype import FLOATS
from webtorch.ir.expr import Expr
from webtorch.ops.record import Elementwise, elementwise

unnormalised: Elementwise = elementwise(
    "_unnormalised",
    lambda x, size, edge: ((x + 1) * size - edge) * 0.5,
    tensors=("x",),
    numbers=("size", "edge"),
    dtypes=FLOATS,
    function_in=(),
    doc="The position in elements of a place between -1 and 1.",
)


# The slope is 0 at both ends already, and NaN is the first place, as in PyTorch.
clipped: Elementwise = elementwise(
    "_clipped",
    lambda place, last: ex.where(ex.ge(place, last), last, ex.where(ex.gt(place, 0), place, 0)),
    tensors=("place",),
    numbers=("last",),
    dtypes=FLOATS,
    function_in=(),
    doc="A place, or the nearest one in 0..last.",
)


def _between(x: Expr, last: Expr) -> Expr:
    return ex.ge(x, 0) & ex.le(x, last)


neighbour: Elementwise = elementwise(
    "_neighbour",
    lambda place, up, last: ex.where(_between(ex.floor(place) + up, last), ex.floor(place) + up, 0),
    tensors=("place",),
    numbers=("up", "last"),
    dtypes=FLOATS,
    differentiable=False,
    function_in=(),
    doc="The whole position before a place, or after it (up 1); 0 where it is not in 0..last.",
)


def _four_corners(rank: int, first: int) -> Elementwise:
    """Return the entry of the sum over corners first..first+3 of 2^rank around a place.

    Four at a time: a kernel of WebGPU may have no more than eight buffers, its gradient's included.
    """

    def formula(*given: Expr) -> Expr:
        """Return the weighted sum of the corners that lie inside."""
        values, places, last = given[:4], given[4 : 4 + rank], given[4 + rank :]
        total: Expr | None = None
        for number, value in enumerate(values, first):
            weight: Expr | None = None
            inside: Expr | None = None
            for d, (place, end) in enumerate(zip(places, last, strict=True)):
                low, up = ex.floor(place), number >> d & 1
                part = place - low if up else 1 - (place - low)
                within = _between(low + up, end)
                weight = part if weight is None else weight * part
                inside = within if inside is None else inside & within
            assert weight is not None and inside is not None
            # The weight of a place that is no number is none: as PyTorch, NaN.
            term = ex.where(inside, value, 0) * weight
            total = term if total is None else total + term
        assert total is not None
        return total

    return elementwise(
        f"_corners_{rank}d_{first}",
        formula,
        tensors=(*[f"value{n}" for n in range(4)], *[f"place{d}" for d in range(rank)]),
        numbers=tuple([f"last{d}" for d in range(rank)]),
        dtypes=FLOATS,
        function_in=(),
        doc="The values at four corners around a place times their weights; 0 for those outside.",
    )


CORNERS = {rank: [_four_corners(rank, n) for n in range(0, 2**rank, 4)] for rank in (2, 3)}
