"""How operands must lie for a call, and how its results lie then. Floor 5.

What a call means is an equation of labels (`webtorch.ops.splits`). Along each dimension of the mesh a label may be
split (what lacks it is replicated), an operand in which the call is linear may stay a sum that is still to be taken, or
all may be replicated. What sends least is chosen; of equals what has the smallest parts.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from webtorch.distributed.device_mesh import DeviceMesh
from webtorch.distributed.tensor._dtensor_spec import Placements
from webtorch.distributed.tensor.placement_types import (
    Partial,
    Placement,
    Replicate,
    Shard,
    _NormPartial,
    _StridedShard,
)
from webtorch.ops.splits import Labels, Split

R = Replicate()


@dataclass(frozen=True, slots=True)
class Operand:
    """A tensor of a call: its sizes and how it lies."""

    shape: tuple[int, ...]
    placements: Placements

    @property
    def numel(self) -> int:
        """How many elements it has."""
        return math.prod(self.shape)


@dataclass(frozen=True, slots=True)
class Choice:
    """How operands must lie, and how results lie."""

    operands: tuple[Placements, ...]
    results: tuple[Placements, ...]


def _cost(src: Placement, dst: Placement, size: int, count: int) -> float:
    """Return how many elements a process sends, about; and a trifle for what is computed in all processes."""
    if src == dst:
        return 0.0
    part = size * (count - 1) / count
    if isinstance(src, Replicate):
        return 0.0
    if isinstance(src, Shard):
        return part / count if isinstance(dst, Shard) else part
    return part if isinstance(dst, Shard) else 2 * part


def _partial(kind: str) -> Partial:
    """Return what is still to be reduced: "norm 2.0" are norms of parts."""
    name, _, order = kind.partition(" ")
    return _NormPartial(norm_type=float(order)) if name == "norm" else Partial(name)


def _of_label(label: object, labels: Labels) -> Placement:
    return Shard(labels.index(label)) if label in labels else R


def _fits(kind: str, size: int, mesh: DeviceMesh, count: int) -> bool:
    """Whether what parts of a dim are reduced to can be put together."""
    if kind == "avg":
        return size % mesh.size() == 0
    # An extreme of nothing is an error.
    return kind not in ("max", "min") or _fills(size, count)


def _fills(size: int, count: int) -> bool:
    """Whether each of so many parts of a dim has some of it."""
    return -(-size // count) * (count - 1) < size


def _candidates(
    split: Split, now: Sequence[Placement], sizes: dict[object, int], mesh: DeviceMesh, i: int
) -> Iterator[tuple[list[Placement], list[Placement]]]:
    """Give the ways in which a call can be computed along one dimension of the mesh."""
    for group in split.linear:
        kinds = {now[k] for k in group if isinstance(now[k], Partial)}
        if len(kinds) != 1 or any(
            isinstance(now[k], Partial) for k in range(len(now)) if k not in group
        ):
            continue
        (kind,) = kinds
        assert isinstance(kind, Partial)
        if not split.moves and (
            isinstance(kind, _NormPartial) or kind.reduce_op not in ("sum", "avg")
        ):
            continue
        yield [kind if k in group else R for k in range(len(now))], [kind] * len(split.results)
    wanted = [
        labels[p.dim] for p, labels in zip(now, split.operands, strict=True) if isinstance(p, Shard)
    ]
    for label in dict.fromkeys(wanted):
        if label is None or label in split.whole:
            continue
        if split.filled and not _fills(sizes[label], mesh.size(i)):
            continue
        to = [_of_label(label, labels) for labels in split.operands]
        out: list[Placement] = []
        for labels in split.results:
            if label in labels:
                out.append(_of_label(label, labels))
            elif split.partial and _fits(split.partial, sizes[label], mesh, mesh.size(i)):
                out.append(_partial(split.partial))
        if len(out) < len(split.results):
            continue
        if any(isinstance(p, Partial) for p in out):
            to = [_partial(split.partial) if k in split.added else p for k, p in enumerate(to)]
        yield to, out
    yield [R] * len(now), [R] * len(split.results)


def _as_strided(split: Split, operands: Sequence[Operand], first: Operand) -> Choice | None:
    """Return how a call is computed in which a part is strided: element by element of what lies so."""
    every = (R,) * len(first.placements)
    labels = split.operands[operands.index(first)]
    alike = all(k == labels and x.shape == first.shape for x, k in zip(operands, split.operands, strict=True)
                if x.numel != 1)  # fmt: skip
    if not alike or split.whole or any(k != labels for k in split.results):
        return None
    lies = tuple([every if x.numel == 1 else first.placements for x in operands])
    return Choice(lies, (first.placements,) * len(split.results))


def choose(
    split: Split, operands: Sequence[Operand], mesh: DeviceMesh, written: bool = False
) -> Choice | None:
    """Return how a call is computed. `written`: the first operand is, and its result lies as it does; None where that
    cannot be.
    """
    strided = [x for x in operands if any(isinstance(p, _StridedShard) for p in x.placements)]
    if strided:
        return _as_strided(split, operands, strided[0])
    sizes: dict[object, int] = {}
    whole = set(split.whole)
    for x, labels in zip(operands, split.operands, strict=True):
        for size, label in zip(x.shape, labels, strict=True):
            if label is not None and sizes.setdefault(label, size) != size:
                # What is not of one size has no parts that belong together.
                whole.add(label)
    if whole != split.whole:
        split = Split(split.operands, split.results, frozenset(whole), split.partial, split.added,
                      split.linear, split.moves)  # fmt: skip
    found: list[list[Placement]] = [[] for _ in operands]
    results: list[list[Placement]] = [[] for _ in split.results]
    for i in range(mesh.ndim):
        now = [x.placements[i] for x in operands]
        best: tuple[float, list[Placement], list[Placement]] | None = None
        for to, out in _candidates(split, now, sizes, mesh, i):
            if written and (to[0] != now[0] or out[0] != now[0]):
                continue
            cost = sum(
                _cost(p, q, x.numel, mesh.size(i))
                for p, q, x in zip(now, to, operands, strict=True)
            )
            if best is None or cost < best[0]:
                best = (cost, to, out)
        if best is None:
            return None
        for mine, p in zip(found, best[1], strict=True):
            mine.append(p)
        for mine, p in zip(results, best[2], strict=True):
            mine.append(p)
    return Choice(tuple(map(tuple, found)), tuple(map(tuple, results)))


def lands(
    shape: Sequence[int],
    base: Sequence[int],
    dim: int,
    sizes: Sequence[int],
    strides: Sequence[int],
    offset: int,
    parts: int,
) -> int | None:
    """Return which dim of a view, of these sizes and strides, has the chunks of a dim of what it is a view of, which
    has the strides `base`; None where none does. `parts`: how many chunks there are.
    """
    size, stride = shape[dim], base[dim]
    span = size * stride
    for j, (m, t) in enumerate(zip(sizes, strides, strict=True)):
        if m * t != span or (m == 1 and size != 1):
            continue
        if t != stride and (size % parts or m % parts):
            # Chunks of uneven sizes begin where no element of the view does.
            continue
        others = [
            (n, s) for k, (n, s) in enumerate(zip(sizes, strides, strict=True)) if k != j and n > 1
        ]
        inner = [(n, s) for n, s in others if s < t]
        outer = [s for _, s in others if s >= t]
        if (
            sum((n - 1) * s for n, s in inner) < t
            and not any(s % span for s in outer)
            and offset % span < t
        ):
            return j
    return None
