"""PowerSGD (Vogels et al., 2019): gradients travel as products of two small matrices. Floor 5.

A gradient M of n rows and m columns is about P @ Q.T: P = M @ Q, averaged over processes and made orthogonal, and
Q = M.T @ P, averaged. What is lost is added to the next step's gradient.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from webtorch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from webtorch.distributed.bucket import GradBucket
from webtorch.distributed.collectives import all_reduce
from webtorch.distributed.group import ProcessGroup
from webtorch.distributed.reduction import ReduceOp
from webtorch.distributed.world import default_group
from webtorch.functions.creation import zeros
from webtorch.functions.joining import cat
from webtorch.functions.orthogonal import linalg_qr
from webtorch.functions.random import Generator, randn
from webtorch.futures import Future
from webtorch.tensors.tensor import Tensor

__all__ = ["PowerSGDState", "batched_powerSGD_hook", "powerSGD_hook"]


class PowerSGDState:
    """What PowerSGD keeps from step to step, and how small its matrices are.

    `matrix_approximation_rank` columns; a matrix is compressed where that makes it smaller than by
    `min_compression_rate`; gradients travel whole before `start_powerSGD_iter`. Raises ValueError for errors or
    matrices that are kept from a first step on.
    """

    def __init__(
        self,
        process_group: ProcessGroup | None,
        matrix_approximation_rank: int = 1,
        start_powerSGD_iter: int = 1_000,
        min_compression_rate: float = 2,
        use_error_feedback: bool = True,
        warm_start: bool = True,
        orthogonalization_epsilon: float = 0,
        random_seed: int = 0,
        compression_stats_logging_frequency: int = 10_000,
        batch_tensors_with_same_shape: bool = False,
    ) -> None:
        if (use_error_feedback or warm_start) and start_powerSGD_iter <= 1:
            raise ValueError(
                "Expect `start_powerSGD_iter` > 1 if `use_error_feedback` or `warm_start` is enabled, because PowerSGD "
                "can only be applied after the first two iterations in DDP."
            )
        self.process_group = process_group
        self.matrix_approximation_rank = matrix_approximation_rank
        self.start_powerSGD_iter = start_powerSGD_iter
        self.min_compression_rate = min_compression_rate
        self.use_error_feedback, self.warm_start = use_error_feedback, warm_start
        self.orthogonalization_epsilon = orthogonalization_epsilon
        self.compression_stats_logging_frequency = compression_stats_logging_frequency
        self.batch_tensors_with_same_shape = batch_tensors_with_same_shape
        # The same numbers on all processes.
        self.rng = Generator().manual_seed(random_seed)
        self.error_dict: dict[int, Tensor] = {}
        self.p_memory_dict: dict[int, list[Tensor]] = {}
        self.q_memory_dict: dict[int, list[Tensor]] = {}
        self.iter = 0
        self.total_numel_before_compression = self.total_numel_after_compression = 0

    def maybe_increase_iter(self, bucket: GradBucket) -> None:
        """Count a step, at its last bucket."""
        self.iter += bucket.is_last()

    def compression_stats(self) -> tuple[float, int, int]:
        """Return how many times fewer numbers travelled, how many would have, and how many did."""
        before, after = self.total_numel_before_compression, self.total_numel_after_compression
        return (before / after if after > 0 else 0, before, after)


def _orthogonal(matrix: Tensor, epsilon: float) -> Tensor:
    """Return a matrix of orthogonal columns that span those of another."""
    if not epsilon:
        return linalg_qr(matrix)[0]
    columns: list[Tensor] = []
    for column in matrix.unbind(1):
        for before in columns:
            column = column - (column * before).sum() * before
        columns.append(column / (column.norm() + epsilon))
    return cat([c.unsqueeze(1) for c in columns], 1)


def _parts(flat: Tensor, shapes: Sequence[Sequence[int]]) -> Iterator[Tensor]:
    """Give a tensor's elements in several shapes."""
    for part, shape in zip(flat.split([math.prod(s) for s in shapes]), shapes, strict=True):
        yield part.reshape(tuple(shape))


def _mean(tensors: Sequence[Tensor], group: ProcessGroup) -> Future[list[Tensor]]:
    """Return a future of the means of tensors of all processes, which travel together."""
    shapes = [x.shape for x in tensors]
    work = all_reduce(cat([x.reshape(-1) for x in tensors]), ReduceOp.AVG, group, async_op=True)
    assert work is not None
    return work.get_future().then(lambda f: list(_parts(f.value()[0], shapes)))


def _once_waited(coming: Future[Any], then: Callable[[Any], Tensor]) -> Future[Tensor]:
    """Return a future of what `then` makes of a value, by collectives of its own: called when somebody waits, in an
    order that all processes share, and not when the value comes.
    """
    future: Future[Tensor] = Future()

    def comes(wait: bool) -> bool:
        """Return whether the value is there; with `wait`, after making it."""
        if wait:
            future.set_result(then(coming.wait()))
        return future._done

    future._comes = comes
    return future


def _compressed(state: PowerSGDState, matrix: Tensor) -> int:
    """Return the columns of P and Q of a gradient, as a matrix; 0 where it travels as it is."""
    n, m = matrix.shape
    rank = min(n, m, state.matrix_approximation_rank)
    return rank if (n + m) * rank * state.min_compression_rate < n * m else 0


def _factors(
    state: PowerSGDState, bucket: GradBucket, matrices: Sequence[Tensor], ranks: Sequence[int]
) -> list[Tensor]:
    """Return an orthogonal Q for each matrix: that of the step before, or random numbers."""
    kept = state.q_memory_dict.get(bucket.index()) if state.warm_start else None
    if kept is None:
        kept = [
            randn(matrix.shape[1], rank, generator=state.rng).to(matrix)
            for matrix, rank in zip(matrices, ranks, strict=True)
        ]
    return [_orthogonal(q, state.orthogonalization_epsilon) for q in kept]


def _reduced(
    state: PowerSGDState,
    bucket: GradBucket,
    flat: Tensor,
    matrices: list[Tensor],
    rest: list[Tensor],
) -> Future[Tensor]:
    """Return a future of the gradients, of which `matrices` are compressed; both are views of `flat`."""
    group = state.process_group or default_group()
    index, sent = bucket.index(), flat.clone() if state.use_error_feedback else None
    ranks = [min(*m.shape, state.matrix_approximation_rank) for m in matrices]
    factors = _factors(state, bucket, matrices, ranks)
    state.total_numel_before_compression += flat.numel()
    state.total_numel_after_compression += sum(x.numel() for x in rest) + sum(
        rank * sum(m.shape) for m, rank in zip(matrices, ranks, strict=True)
    )

    def second(means: list[Tensor]) -> Tensor:
        """Return the gradients, made anew of the means of P and the Q that belong to them."""
        for x, mean in zip(rest, means, strict=False):
            x.copy_(mean)
        left = [_orthogonal(p, state.orthogonalization_epsilon) for p in means[len(rest) :]]
        right = [m.t() @ p for m, p in zip(matrices, left, strict=True)]
        if right:
            right = _mean(right, group).wait()
        for m, p, q in zip(matrices, left, right, strict=True):
            m.copy_(p @ q.t())
        state.p_memory_dict[index], state.q_memory_dict[index] = left, right
        if sent is not None:
            state.error_dict[index] = sent - flat
        return flat

    first = [m @ q for m, q in zip(matrices, factors, strict=True)]
    return _once_waited(_mean([*rest, *first], group), second)


def _begin(state: PowerSGDState, bucket: GradBucket) -> Tensor | None:
    """Return the gradients with what was lost before; None while they travel whole."""
    early = state.iter < state.start_powerSGD_iter
    state.maybe_increase_iter(bucket)
    if early:
        return None
    flat, error = bucket.buffer(), state.error_dict.get(bucket.index())
    return (
        flat if error is None or not state.use_error_feedback else flat.add_(error[: flat.numel()])
    )


def powerSGD_hook(state: PowerSGDState, bucket: GradBucket) -> Future[Tensor]:
    """Return about the mean of the processes' gradients: each matrix by itself, others as they are."""
    flat = _begin(state, bucket)
    if flat is None:
        return allreduce_hook(state.process_group, bucket)
    matrices, rest = [], []
    for gradient in bucket.gradients():
        matrix = gradient.view(gradient.shape[0], -1) if gradient.dim() > 1 else None
        if matrix is not None and _compressed(state, matrix):
            matrices.append(matrix)
        else:
            rest.append(gradient)
    return _reduced(state, bucket, flat, matrices, rest)


def batched_powerSGD_hook(state: PowerSGDState, bucket: GradBucket) -> Future[Tensor]:
    """Return about the mean of the gradients: all of a bucket as one square matrix. Faster, and less near."""
    flat = _begin(state, bucket)
    if flat is None:
        return allreduce_hook(state.process_group, bucket)
    side = math.ceil(math.sqrt(flat.numel()))
    square = cat([flat, zeros(side * side - flat.numel(), dtype=flat.dtype, device=flat.device)])
    coming = _reduced(state, bucket, square, [square.view(side, side)], [])
    return coming.then(lambda found: flat.copy_(found.value()[: flat.numel()]))
