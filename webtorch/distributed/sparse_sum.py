"""Sums of sparse tensors of all processes: their places and values travel, as Gloo has it. Floor 5.

The class of sparse tensors stands on a floor above; what is asked of one here is what `Sparse` says.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Sequence
from typing import Protocol, Self, cast

from webtorch.distributed.group import Work
from webtorch.functions.creation import tensor, zeros
from webtorch.functions.joining import cat
from webtorch.ir.dtype import int64
from webtorch.tensors.tensor import Tensor

# Sizes that are told of a tensor: all tell as many numbers, whatever theirs are.
_MOST_DIMS = 16

# Begins to fill the first tensor with the second one of all processes.
Gather = Callable[[Tensor, Tensor], Work]
# Rows of all processes that are to come.
Gathered = tuple[Tensor, Work]


class Sparse(Protocol):
    """What a sparse tensor answers."""

    layout: object
    _shape: Sequence[int]

    def coalesce(self) -> Self:
        """Return it with each place once."""

    def _nnz(self) -> int: ...

    def indices(self) -> Tensor:
        """Return the places, (dims, nnz)."""

    def values(self) -> Tensor:
        """Return the values, (nnz, ...)."""

    @classmethod
    def of(
        cls, layout: object, places: Sequence[Tensor], values: Tensor, shape: Sequence[int]
    ) -> Self:
        """Return one of these places and values."""

    def become(self, other: Self) -> Self:
        """Take what another one is, in place."""


class _Sum(Work):
    """A sum that is under way: what each process has, padded to the most that one has."""

    def __init__(
        self, x: Tensor, counts: Sequence[int], places: Gathered, values: Gathered
    ) -> None:
        super().__init__(values[1]._call, [x])
        self._counts, self._parts = counts, (places, values)
        self._has_become = False

    def wait(self, timeout: datetime.timedelta | None = None) -> bool:
        """Let the tensor be the sum. Raises RuntimeError where a process is lost."""
        for _, work in self._parts:
            work.wait(timeout)
        if not self._has_become:
            self._has_become = True
            (places, _), (values, _) = self._parts
            x = cast(Sparse, self._result[0])
            joined = _joined(places, self._counts).t(), _joined(values, self._counts)
            x.become(x.of(x.layout, joined[:1], joined[1], x._shape).coalesce())
        return True


def begin(x: Tensor, size: int, gather: Gather) -> Work:
    """Begin to sum a COO tensor of `size` processes, once all have told how many values theirs has. Raises RuntimeError
    where sizes differ, as Gloo does.
    """
    mine = cast(Sparse, x).coalesce()
    places, values = mine.indices(), mine.values().detach()
    told = [mine._nnz(), places.shape[0], *mine._shape]
    told += [-1] * (_MOST_DIMS - len(told))
    all_told = zeros(size * _MOST_DIMS, dtype=int64)
    gather(all_told, tensor(told, dtype=int64)).wait()
    rows = all_told.reshape(size, _MOST_DIMS).tolist()
    if any(row[1:] != rows[0][1:] for row in rows):
        raise RuntimeError(
            f"all_reduce: Sparse dimensions do not match: ranks give {[_sizes(row) for row in rows]}"
        )
    counts = [row[0] for row in rows]
    most = max(counts)
    return _Sum(
        x, counts, _gathered(places.t(), size, most, gather), _gathered(values, size, most, gather)
    )


def _sizes(told: Sequence[int]) -> tuple[int, ...]:
    return tuple(n for n in told[2:] if n >= 0)


def _gathered(rows: Tensor, size: int, most: int, gather: Gather) -> Gathered:
    rest = tuple(rows.shape[1:])
    padding = zeros(most - rows.shape[0], *rest, dtype=rows.dtype, device=rows.device)
    found = zeros(size * most, *rest, dtype=rows.dtype, device=rows.device)
    return found, gather(found, cat([rows, padding]))


def _joined(rows: Tensor, counts: Sequence[int]) -> Tensor:
    """Return what is of a process, without padding."""
    most = max(counts)
    return cat([rows[most * i : most * i + n] for i, n in enumerate(counts)])
