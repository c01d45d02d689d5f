"""Products of groups of rows, each with a matrix of its own: the experts of a mixture.

Where the groups end is known to the device alone. PyTorch's composition reads it, and runs products whose shapes are
other ones at each step; here the shapes follow from the operands', so that programs are compiled once and nothing
waits.
"""

from __future__ import annotations

from webtorch.errors import DTypeError, ShapeError
from webtorch.functions.contract import bmm, mm
from webtorch.functions.cumulative import cumsum
from webtorch.functions.gather_scatter import index_select
from webtorch.functions.joining import cat
from webtorch.functions.movement import transpose
from webtorch.functions.pointwise import clamp, where
from webtorch.functions.reduce import reduce_dims
from webtorch.ir.dtype import DType, float32, int32, int64
from webtorch.ops.comparison import eq, le, logical_and, lt
from webtorch.ops.elementwise import floor_divide
from webtorch.ops.primitive import cast_to, fill, iota
from webtorch.ops.record import Family, composite
from webtorch.tensors.tensor import Tensor

FAMILY: Family = "contract"

# Rows of one group that share a copy of their matrix, and bytes of such copies that are in memory at once.
_TILE, _BYTES = 64, 1 << 28


def _count(true: Tensor) -> Tensor:
    """Return how many of each column are true."""
    return reduce_dims(cast_to(true, int64), "sum", (0,)).reshape(true._shape[1:])


class _Tiles:
    """Rows 0 ... count of consecutive groups, laid into tiles of rows of one group."""

    def __init__(self, ends: Tensor, count: int) -> None:
        groups = ends._shape[0]
        each = max(1, count // max(groups, 1))
        self.rows = min(_TILE, 1 << (each - 1).bit_length())
        self.count = min(count, count // self.rows + groups)
        device = ends.device
        self.ends = cast_to(ends, int64)
        self.starts = cat([fill((1,), 0, int64, device), self.ends[:-1]])
        used = floor_divide(self.ends - self.starts + (self.rows - 1), self.rows)
        self.last = cumsum(used, 0)
        self.first = self.last - used
        tile = iota(self.count, 0, 1, int64, device)
        group = _count(le(self.last.unsqueeze(1), tile))
        self.group = clamp(group, 0, groups - 1)
        start = self._of(self.starts, self.group) + (tile - self._of(self.first, self.group)) * self.rows  # fmt: skip
        place = start.unsqueeze(1) + iota(self.rows, 0, 1, int64, device)
        inside = lt(place, self._of(self.ends, self.group).unsqueeze(1))
        self.inside = logical_and(inside, lt(group, groups).unsqueeze(1))
        self.place = clamp(place, 0, count - 1)

    @staticmethod
    def _of(values: Tensor, group: Tensor) -> Tensor:
        return index_select(values, 0, group)

    def take(self, x: Tensor, first: int, count: int) -> Tensor:
        """Return the rows (rows, width) of some tiles, (tiles, rows in a tile, width); 0 where a tile has none."""
        place = self.place[first : first + count]
        found = index_select(x, 0, place.reshape(-1)).reshape(*place._shape, x._shape[1])
        return where(self.inside[first : first + count].unsqueeze(2), found, 0.0)

    def give_back(self, tiles: Tensor, count: int) -> Tensor:
        """Return the rows of all tiles (tiles, rows in a tile, width) in their order, 0 beyond the last group."""
        row = iota(count, 0, 1, int64, tiles.device)
        group = _count(le(self.ends.unsqueeze(1), row))
        within = lt(group, self.ends._shape[0])
        group = clamp(group, 0, self.ends._shape[0] - 1)
        place = self._of(self.first, group) * self.rows + row - self._of(self.starts, group)
        flat = tiles.reshape(-1, tiles._shape[2])
        place = clamp(place, 0, flat._shape[0] - 1)
        return where(within.unsqueeze(1), index_select(flat, 0, place), 0.0)


def _steps(tiles: int, each: int) -> range:
    """Return where to begin: as many tiles at once as have room for `each` bytes a tile."""
    return range(0, tiles, max(1, min(tiles, _BYTES // max(each, 1))))


def _rows_slope(g: Tensor, _out: Tensor, _rows: Tensor, matrices: Tensor, ends: Tensor) -> Tensor:
    return rows_by_groups(g, transpose(matrices, 1, 2), ends)


def _matrices_slope(
    g: Tensor, _out: Tensor, rows: Tensor, _matrices: Tensor, ends: Tensor
) -> Tensor:
    return groups_of_products(rows, g, ends)


def _left_slope(g: Tensor, _out: Tensor, _left: Tensor, right: Tensor, ends: Tensor) -> Tensor:
    return rows_by_groups(right, transpose(g, 1, 2), ends)


def _right_slope(g: Tensor, _out: Tensor, left: Tensor, _right: Tensor, ends: Tensor) -> Tensor:
    return rows_by_groups(left, g, ends)


@composite(name="_rows_by_groups", function_in=(), vjp=(_rows_slope, _matrices_slope, None))
def rows_by_groups(rows: Tensor, matrices: Tensor, ends: Tensor) -> Tensor:
    """(rows, k) and (groups, k, n): each row with the matrix of its group, (rows, n)."""
    count, (_, k, n) = rows._shape[0], matrices._shape
    if not (count and k and n and matrices._shape[0]):
        return fill((count, n), 0, rows.dtype, rows.device)
    tiles = _Tiles(ends, count)
    steps = _steps(tiles.count, k * n * rows.dtype.itemsize)
    found = [
        bmm(
            tiles.take(rows, at, steps.step),
            index_select(matrices, 0, tiles.group[at : at + steps.step]),
        )
        for at in steps
    ]
    return tiles.give_back(found[0] if len(found) == 1 else cat(found), count)


@composite(name="_groups_of_products", function_in=(), vjp=(_left_slope, _right_slope, None))
def groups_of_products(left: Tensor, right: Tensor, ends: Tensor) -> Tensor:
    """(rows, m) and (rows, n): the sum over the rows of each group of their outer products, (groups, m, n)."""
    count, m, n, groups = left._shape[0], left._shape[1], right._shape[1], ends._shape[0]
    wide = float32 if left.dtype.itemsize < 4 else left.dtype
    total = fill((groups, m * n), 0, wide, left.device)
    if count and m and n and groups:
        tiles = _Tiles(ends, count)
        steps = _steps(tiles.count, m * n * 4)
        group = iota(groups, 0, 1, int64, left.device).unsqueeze(1)
        for at in steps:
            some = bmm(
                transpose(tiles.take(left, at, steps.step), 1, 2),
                tiles.take(right, at, steps.step),
            )
            of = cast_to(eq(tiles.group[at : at + steps.step], group), wide)
            total = total + mm(of, cast_to(some.reshape(-1, m * n), wide))
    return cast_to(total.reshape(groups, m, n), left.dtype)


@composite(function_in=("nn.functional",))
def grouped_mm(
    mat_a: Tensor,
    mat_b: Tensor,
    *,
    offs: Tensor | None = None,
    bias: Tensor | None = None,
    out_dtype: DType | None = None,
) -> Tensor:
    """Return the products of groups of rows, each with a matrix of its own, as of the experts of a mixture.

    `offs` (int32) says where each group ends. (rows, k) and (groups, k, n) give (rows, n); (groups, m, k) and
    (k, columns) give (m, columns); (m, rows) and (rows, n) the product within each group, (groups, m, n). Of two
    batches of matrices these are the products, and `offs` is None.
    """
    ranks = (mat_a.ndim, mat_b.ndim)
    if not set(ranks) <= {2, 3}:
        raise ShapeError(f"grouped_mm: operands must be 2D or 3D, got {ranks[0]}D and {ranks[1]}D")
    if mat_a._shape[-1] != mat_b._shape[-2]:
        raise ShapeError(
            f"grouped_mm: contraction dimension of mat_a and mat_b must match: {mat_a._shape} by {mat_b._shape}"
        )
    if bias is not None:
        raise NotImplementedError("grouped_mm: bias is not supported yet; add it to the result")
    if (offs is None) != (ranks == (3, 3)):
        raise ValueError("grouped_mm: offs is given if, and only if, an operand is 2D")
    if offs is None:
        out = bmm(mat_a, mat_b)
    elif offs.dtype is not int32:
        raise DTypeError(
            f"Offsets have to be int32: offs of grouped_mm are {offs.dtype}; use offs.int()."
        )
    elif ranks == (2, 3):
        out = rows_by_groups(mat_a, mat_b, offs)
    elif ranks == (3, 2):
        turned = rows_by_groups(transpose(mat_b, 0, 1), transpose(mat_a, 1, 2), offs)
        out = transpose(turned, 0, 1)
    else:
        out = groups_of_products(transpose(mat_a, 0, 1), mat_b, offs)
    return out if out_dtype is None else cast_to(out, out_dtype)
