"""Products of groups of rows, each with a matrix of its own: the experts of a mixture. Floor 6.

Where the groups end is known to the device alone. PyTorch's composition reads it, and runs products whose shapes are
other ones at each step; here the shapes follow from the operands', so that programs are compiled once and nothing
waits.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from webtorch.aten.table import Function, aten, op
from webtorch.errors import ShapeError
from webtorch.ir.dtype import DType, float32, int64
from webtorch.ops.primitive import cast_to, fill, iota
from webtorch.tensors.tensor import Tensor
from webtorch_autoload.device import hide, libraries

# Rows of one group that share a copy of their matrix, and bytes of such copies that are in memory at once.
_TILE, _BYTES = 64, 1 << 28


class _Tiles:
    """Rows 0 ... count of consecutive groups, laid into tiles of rows of one group."""

    def __init__(self, ends: Tensor, count: int) -> None:
        groups = ends._shape[0]
        each = max(1, count // max(groups, 1))
        self.rows = min(_TILE, 1 << (each - 1).bit_length())
        self.count = min(count, count // self.rows + groups)
        device = ends.device
        self.ends = cast_to(ends, int64)
        self.starts = op.cat([fill((1,), 0, int64, device), self.ends[:-1]])
        used = op.floor_divide(self.ends - self.starts + (self.rows - 1), self.rows)
        self.last = op.cumsum(used, 0)
        self.first = self.last - used
        tile = iota(self.count, 0, 1, int64, device)
        group = op.sum(cast_to(op.le(self.last.unsqueeze(1), tile), int64), 0)
        self.group = op.clamp(group, 0, groups - 1)
        start = self._of(self.starts, self.group) + (tile - self._of(self.first, self.group)) * self.rows  # fmt: skip
        place = start.unsqueeze(1) + iota(self.rows, 0, 1, int64, device)
        inside = op.lt(place, self._of(self.ends, self.group).unsqueeze(1))
        self.inside = op.logical_and(inside, op.lt(group, groups).unsqueeze(1))
        self.place = op.clamp(place, 0, count - 1)

    @staticmethod
    def _of(values: Tensor, group: Tensor) -> Tensor:
        return op.index_select(values, 0, group)

    def take(self, x: Tensor, first: int, count: int) -> Tensor:
        """Return the rows (rows, width) of some tiles, (tiles, rows in a tile, width); 0 where a tile has none."""
        place = self.place[first : first + count]
        found = op.index_select(x, 0, place.reshape(-1)).reshape(*place._shape, x._shape[1])
        return op.where(self.inside[first : first + count].unsqueeze(2), found, 0.0)

    def give_back(self, tiles: Tensor, count: int) -> Tensor:
        """Return the rows of all tiles (tiles, rows in a tile, width) in their order, 0 beyond the last group."""
        row = iota(count, 0, 1, int64, tiles.device)
        group = op.sum(cast_to(op.le(self.ends.unsqueeze(1), row), int64), 0)
        within = op.lt(group, self.ends._shape[0])
        group = op.clamp(group, 0, self.ends._shape[0] - 1)
        place = self._of(self.first, group) * self.rows + row - self._of(self.starts, group)
        flat = tiles.reshape(-1, tiles._shape[2])
        place = op.clamp(place, 0, flat._shape[0] - 1)
        return op.where(within.unsqueeze(1), op.index_select(flat, 0, place), 0.0)


def _steps(tiles: int, each: int) -> range:
    """Return where to begin: as many tiles at once as have room for `each` bytes a tile."""
    return range(0, tiles, max(1, min(tiles, _BYTES // max(each, 1))))


def _rows_by_groups(rows: Tensor, matrices: Tensor, ends: Tensor) -> Tensor:
    """(rows, k) and (groups, k, n): each row with the matrix of its group, (rows, n)."""
    count, (_, k, n) = rows._shape[0], matrices._shape
    if not (count and k and n and matrices._shape[0]):
        return fill((count, n), 0, rows.dtype, rows.device)
    tiles = _Tiles(ends, count)
    steps = _steps(tiles.count, k * n * rows.dtype.itemsize)
    found = [
        op.bmm(
            tiles.take(rows, at, steps.step),
            op.index_select(matrices, 0, tiles.group[at : at + steps.step]),
        )
        for at in steps
    ]
    return tiles.give_back(found[0] if len(found) == 1 else op.cat(found), count)


def _groups_of_products(left: Tensor, right: Tensor, ends: Tensor) -> Tensor:
    """(rows, m) and (rows, n): the sum over the rows of each group of their outer products, (groups, m, n)."""
    count, m, n, groups = left._shape[0], left._shape[1], right._shape[1], ends._shape[0]
    total = fill((groups, m * n), 0, float32, left.device)
    if count and m and n and groups:
        tiles = _Tiles(ends, count)
        steps = _steps(tiles.count, m * n * 4)
        group = iota(groups, 0, 1, int64, left.device).unsqueeze(1)
        for at in steps:
            some = op.bmm(
                op.transpose(tiles.take(left, at, steps.step), 1, 2),
                tiles.take(right, at, steps.step),
            )
            of = cast_to(op.eq(tiles.group[at : at + steps.step], group), float32)
            total = total + op.mm(of, cast_to(some.reshape(-1, m * n), float32))
    return cast_to(total.reshape(groups, m, n), left.dtype)


@aten("_grouped_mm", direct=("_grouped_mm",))
def _grouped_mm(
    left: Tensor,
    right: Tensor,
    offs: Tensor | None = None,
    bias: Tensor | None = None,
    out_dtype: DType | None = None,
) -> Tensor:
    ranks = (left.ndim, right.ndim)
    if not set(ranks) <= {2, 3}:
        raise ShapeError(f"grouped_mm: operands must be 2D or 3D, got {ranks[0]}D and {ranks[1]}D")
    if left._shape[-1] != right._shape[-2]:
        raise ShapeError(
            f"grouped_mm: contraction dimension of mat_a and mat_b must match: {left._shape} by {right._shape}"
        )
    if bias is not None:
        raise NotImplementedError("grouped_mm: bias is not supported yet; add it to the result")
    if (offs is None) != (ranks == (3, 3)):
        raise ValueError("grouped_mm: offs is given if, and only if, an operand is 2D")
    if ranks == (3, 3):
        out = op.bmm(left, right)
        return out if out_dtype is None else cast_to(out, out_dtype)
    assert offs is not None
    if ranks == (2, 3):
        out = _rows_by_groups(left, right, offs)
    elif ranks == (3, 2):
        turned = _rows_by_groups(op.transpose(right, 0, 1), op.transpose(left, 1, 2), offs)
        out = op.transpose(turned, 0, 1)
    else:
        out = _groups_of_products(op.transpose(left, 0, 1), right, offs)
    return out if out_dtype is None else cast_to(out, out_dtype)


# ---- transformers' operators --------------------------------------------------------------------


def _fallback_backward(
    rows: Tensor, matrices: Tensor, ends: Tensor, g: Tensor
) -> tuple[Tensor, Tensor]:
    return (
        _rows_by_groups(g, op.transpose(matrices, 1, 2), ends),
        _groups_of_products(rows, g, ends),
    )


def register(functional: Callable[[str, Function], Function]) -> None:
    """Register the operators that transformers has in place of `grouped_mm` where it compiles: its own ones read
    where the groups end. `functional` makes a kernel of a name and a meaning.
    """
    library = torch.library.Library("transformers", "IMPL")
    libraries.append(library)
    for name, meaning in (
        ("grouped_mm_fallback", _rows_by_groups),
        ("grouped_mm_fallback_backward", _fallback_backward),
    ):
        library.impl(name, hide(functional(name, meaning)), "PrivateUse1")
