"""Rows and classes that lie in several processes: each looks up its own, and the sum is what is asked for. Floor 5.

An embedding whose rows are split, and losses whose classes are (`loss_parallel`), send results and not what they are
looked up in.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from webtorch.distributed.tensor._dtensor_spec import Placements, local_layout
from webtorch.distributed.tensor.calls import Calls, gradient_of, part_by, specially, state
from webtorch.distributed.tensor.choosing import R
from webtorch.distributed.tensor.dtensor import DTensor, wrapped
from webtorch.distributed.tensor.placement_types import Partial, Placement, Shard
from webtorch.distributed.tensor.redistribute import move
from webtorch.functions import public as webtorch
from webtorch.functions.composite import dropout
from webtorch.functions.lookup import embedding
from webtorch.tensors.tensor import Tensor


def _own(index: Tensor, start: int, size: int) -> tuple[Tensor, Tensor]:
    """Return which places are among `size` from `start` on, and where they are there; any place for the others."""
    there = index - start
    inside = (there >= 0) & (there < size)
    return inside, there.clamp(0, max(size - 1, 0))


@specially("embedding")
def _embedding(call: Calls) -> Any:
    """Look up rows of which each process has a chunk."""
    arguments = call.arguments()
    if arguments is None or any(
        arguments.get(n) for n in ("max_norm", "sparse", "scale_grad_by_freq")
    ):
        return NotImplemented
    index, weight, mesh = arguments["input"], arguments["weight"], call.mesh
    lies, rows = call.placements(index), call.placements(weight)
    if Shard(0) not in rows:
        return NotImplemented
    given: list[Placement] = []
    held: list[Placement] = []
    out: list[Placement] = []
    for p, q in zip(lies, rows, strict=True):
        given.append(p if isinstance(p, Shard) and not isinstance(q, Shard) else R)
        held.append(q if isinstance(q, Shard) else R)
        out.append(
            Partial()
            if q == Shard(0)
            else Shard(index.dim())
            if isinstance(q, Shard)
            else given[-1]
        )
    split = [i for i, p in enumerate(out) if not p.is_replicate()]
    part = part_by(weight, mesh, tuple(held), gradient_of(tuple(held), split))
    at = mesh.get_coordinate()
    assert at is not None
    (size, _), (start, _) = local_layout(weight.shape, mesh, held, at)
    own = part_by(index, mesh, tuple(given))
    padding = arguments.get("padding_idx")
    if padding is not None:
        padding = padding % weight.shape[0] - start
        padding = padding if 0 <= padding < size else None
    inside, there = _own(own, start, size)
    if size:
        found = embedding(there, part, padding) * inside.unsqueeze(-1)
    else:
        found = part.sum() + webtorch.zeros(
            *own.shape, part.shape[1], dtype=part.dtype, device=part.device
        )
    return wrapped(found, mesh, tuple(out), (*index.shape, weight.shape[1]))


@specially("dropout")
def _dropout(call: Calls) -> Any:
    """Drop what one process with the same seed drops: the mask of the whole is drawn, and each takes its part."""
    arguments = call.arguments()
    if arguments is None or arguments.get("inplace") or not arguments.get("training", True):
        return NotImplemented
    x = arguments["input"]
    lies = call.placements(x)
    if any(isinstance(p, Partial) for p in lies):
        return NotImplemented
    local = part_by(x, call.mesh, lies)
    # The draws are in the order of memory.
    ones = webtorch.empty_strided(
        tuple(x.shape), x._spec.stride, dtype=x.dtype, device=local.device
    ).fill_(1)
    kept = move(dropout(ones, arguments["p"]), call.mesh, x.shape, (R,) * call.mesh.ndim, lies)
    return wrapped(webtorch.where(kept == 0, 0, local * kept), call.mesh, lies, x.shape)


# ---- losses of classes


class _Classes:
    """Logits or their logarithms, split by examples and by classes, and the classes that are right."""

    def __init__(self, call: Calls, arguments: dict[str, Any]) -> None:
        self.x, target, self.mesh = arguments["input"], arguments["target"], call.mesh
        self.dim = 1 if self.x.dim() > 1 else 0
        lies = [p if isinstance(p, Shard) else R for p in call.placements(self.x)]
        self.lies: Placements = tuple(lies)
        # How examples lie: the dim of classes is gone.
        self.examples: Placements = tuple([
            Shard(p.dim - (p.dim > self.dim)) if isinstance(p, Shard) and p.dim != self.dim else R for p in lies
        ])  # fmt: skip
        self.by_class = [i for i, p in enumerate(lies) if p == Shard(self.dim)]
        self.local = part_by(self.x, self.mesh, self.lies)
        self.target = part_by(target, self.mesh, self.examples)
        self.shape = tuple(target.shape)
        at = self.mesh.get_coordinate()
        assert at is not None
        sizes, starts = local_layout(self.x.shape, self.mesh, self.lies, at)
        self.start, self.size = starts[self.dim], sizes[self.dim]
        self.ignored = arguments.get("ignore_index", -100)
        self.counts = self.target != self.ignored

    def reduced(self, local: Tensor, kind: str = "sum") -> Tensor:
        """Return what the processes that have the classes have, put together."""
        src = tuple(
            [Partial(kind) if i in self.by_class else p for i, p in enumerate(self.examples)]
        )
        return move(local, self.mesh, self.shape, src, self.examples)

    def right(self) -> Tensor:
        """Return the values of the classes that are right."""
        inside, there = _own(webtorch.where(self.counts, self.target, 0), self.start, self.size)
        if not self.size:
            return self.reduced(self.local.sum(self.dim))
        found = self.local.gather(self.dim, there.long().unsqueeze(self.dim)).squeeze(self.dim)
        return self.reduced(webtorch.where(inside, found, 0))

    def log_sum(self) -> Tensor:
        """Return the logarithms of the sums of exponentials over classes."""
        x = self.local
        if self.size:
            largest = x.detach().amax(self.dim)
        else:
            largest = webtorch.full(
                self.target.shape, float("-inf"), dtype=x.dtype, device=x.device
            )
        largest = self.reduced(largest, "max")
        return self.reduced((x - largest.unsqueeze(self.dim)).exp().sum(self.dim)).log() + largest

    def total(self, losses: Tensor, weight: Any, reduction: str) -> DTensor:
        """Return losses of examples as `reduction` says."""
        counts = self.counts.to(losses.dtype)
        if weight is not None:
            whole = part_by(weight, self.mesh, (R,) * self.mesh.ndim)
            counts = counts * whole[webtorch.where(self.counts, self.target, 0)]
        losses = webtorch.where(self.counts, losses, 0)
        losses = losses if weight is None else losses * counts
        if reduction == "none":
            return wrapped(losses, self.mesh, self.examples, self.shape)
        lies = tuple([Partial() if isinstance(p, Shard) else R for p in self.examples])
        total = losses.sum()
        if reduction == "mean":
            total = total / move(counts.sum(), self.mesh, (), lies, (R,) * self.mesh.ndim)
        return wrapped(total, self.mesh, lies, ())


def _loss(call: Calls, of_logits: bool) -> Any:
    """Return a loss of classes without gathering them, or NotImplemented."""
    arguments = call.arguments()
    if arguments is None or arguments.get("label_smoothing") or arguments["input"].dim() == 0:
        return NotImplemented
    x, target = arguments["input"], arguments["target"]
    reduction = arguments.get("reduction", "mean")
    old = arguments.get("size_average") is not None or arguments.get("reduce") is not None
    if target.dtype.has_gradient or target.dim() != max(x.dim() - 1, 0) or old:
        return NotImplemented
    if reduction not in ("none", "sum", "mean"):
        return NotImplemented
    classes = _Classes(call, arguments)
    losses = -classes.right()
    if of_logits:
        losses = losses + classes.log_sum()
    return classes.total(losses, arguments.get("weight"), reduction)


@specially("cross_entropy")
def _cross_entropy(call: Calls) -> Any:
    """The loss of logits."""
    return _loss(call, True)


@specially("nll_loss")
def _nll_loss(call: Calls) -> Any:
    """The loss of logarithms of probabilities."""
    return _loss(call, False)


@contextlib.contextmanager
def loss_parallel() -> Iterator[None]:
    """A block in which `cross_entropy` of logits whose classes are split takes plain tensors as targets, replicas.

    Classes are never gathered, with it or without.
    """
    before, state.losses = state.losses, True
    try:
        yield
    finally:
        state.losses = before
