"""Connectionist temporal classification. May import floors 0 to 4.

Each time step is one cached program, whatever the length of the sequences.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from webtorch import autograd
from webtorch.dispatch.call import dispatched
from webtorch.functions import public as webtorch
from webtorch.functions.padding import pad
from webtorch.tensors.host import reads
from webtorch.tensors.tensor import Tensor
from webtorch.tensors.whole import realize

__all__ = ["ctc_loss"]

_NEVER = -math.inf


def _counts(lengths: Tensor | Sequence[int], batch: int, name: str) -> list[int]:
    """Return lengths as ints, one for each sample."""
    if isinstance(lengths, Tensor) and lengths.is_floating_point():
        raise RuntimeError(f"{name} must be integral")
    listed = lengths.reshape(-1).tolist() if isinstance(lengths, Tensor) else list(lengths)
    if len(listed) != batch:
        raise RuntimeError(f"{name} must be of size batch_size")
    return [int(n) for n in listed]


def _shifted(x: Tensor, by: int) -> Tensor:
    """Return (N, L) with its columns moved right by `by` (left, if negative), -inf coming in."""
    pads = (by, 0) if by > 0 else (0, -by)
    moved = pad(x, pads, value=_NEVER)
    return moved[:, : x.shape[1]] if by > 0 else moved[:, -by:]


def _log_of_sum(*terms: Tensor) -> Tensor:
    """Return log(sum(exp(term))); -inf where all terms are."""
    most = terms[0]
    for term in terms[1:]:
        most = webtorch.maximum(most, term)
    base = webtorch.where(most == _NEVER, 0.0, most)
    total = webtorch.exp(terms[0] - base)
    for term in terms[1:]:
        total = total + webtorch.exp(term - base)
    return base + webtorch.log(total)


def _compute(*tensors: Tensor) -> None:
    """Compute now, unless a capture takes down all steps."""
    if reads.possible:
        realize(*tensors)


class _Alignment(autograd.Function):
    """Minus log probability of the labels under all alignments, by the forward algorithm.

    The gradient is that of log_softmax and the loss together, minus the softmax's own part: as in
    PyTorch it is right for log probabilities that sum up to 1. Graves et al., 2006, equation 16.
    """

    @staticmethod
    def forward(
        ctx: Any,
        log_probs: Tensor,
        labels: Tensor,
        blank: int,
        input_lengths: Tensor,
        target_lengths: Tensor,
    ) -> Tensor:
        """Return (N,) for (T, N, C), labels (N, S) and lengths (N,) on the device."""
        steps, batch = log_probs.shape[:2]
        width = 2 * int(labels.shape[1]) + 1
        places = webtorch.arange(width, device=log_probs.device)
        # blank, label, blank, label, ..., blank
        between = webtorch.full_like(labels, blank)
        path = webtorch.stack([between, labels], 2).reshape(batch, width - 1)
        path = (
            webtorch.cat([path, webtorch.full_like(path[:, :1], blank)], 1)
            if width > 1
            else (webtorch.full((batch, 1), blank, dtype=labels.dtype, device=labels.device))
        )
        emitted = log_probs.gather(2, path.unsqueeze(0).expand(steps, batch, width))
        # A blank between two labels may be left out, unless they are the same.
        before = pad(path, (2, 0), value=-1)[:, :width]
        skips = (path != blank) & (path != before) & (places >= 2)
        ends = (2 * target_lengths).unsqueeze(1)
        inside = places <= ends
        first = webtorch.where((places <= 1) & inside, emitted[0], _NEVER)
        alphas = log_probs.new_empty((steps, batch, width))
        alphas[0].copy_(first)
        state = first
        _compute(emitted, skips, inside, alphas, state, ends)
        for t in range(1, steps):
            two = webtorch.where(skips, _shifted(state, 2), _NEVER)
            state = emitted[t] + _log_of_sum(state, _shifted(state, 1), two)
            state = webtorch.where(inside, state, _NEVER)
            alphas[t].copy_(state)
            _compute(alphas, state)
        last = alphas.gather(
            0, (input_lengths - 1).clamp(min=0).reshape(1, batch, 1).expand(1, batch, width)
        ).squeeze(0)
        # The last label, or the blank behind it; without labels there is only the blank.
        at_end = last.gather(1, ends)
        at_label = last.gather(1, (ends - 1).clamp(min=0))
        at_label = webtorch.where(ends > 0, at_label, _NEVER)
        loss = -_log_of_sum(at_end, at_label).squeeze(1)
        empty = webtorch.where(target_lengths == 0, 0.0, math.inf)
        loss = webtorch.where(input_lengths == 0, empty.to(loss.dtype), loss)
        ctx.save_for_backward(log_probs, path, emitted, skips, inside, ends, alphas, loss)
        ctx.lengths = input_lengths
        return loss

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradient of the log probabilities."""
        log_probs, path, emitted, skips, inside, ends, alphas, loss = ctx.saved_tensors
        steps, batch = log_probs.shape[:2]
        width = int(path.shape[1])
        places = webtorch.arange(width, device=log_probs.device)
        final = ((places == ends) | (places == ends - 1)) & inside
        lengths = ctx.lengths.unsqueeze(1)
        # Whether the path may go two places on from here.
        ahead = pad(skips.to(webtorch.int32), (0, 2))[:, 2:] != 0
        state = webtorch.full_like(emitted[0], _NEVER)
        betas = log_probs.new_empty((steps, batch, width))
        # A tensor of numbers, not a number: each step is the same program.
        numbers = webtorch.arange(steps, device=log_probs.device)
        _compute(final, ahead, state, betas, lengths, numbers)
        for t in reversed(range(steps)):
            two = webtorch.where(ahead, _shifted(state, -2), _NEVER)
            on = emitted[t] + _log_of_sum(state, _shifted(state, -1), two)
            begin = webtorch.where(final, emitted[t], _NEVER)
            state = webtorch.where(numbers[t] == lengths - 1, begin, on)
            betas[t].copy_(state)
            _compute(betas, state)
        joint = alphas + betas
        # Both sides count the emission of the place; -inf - -inf is not a number.
        rest = webtorch.where(joint == _NEVER, _NEVER, joint - emitted + loss.unsqueeze(1))
        occupied = webtorch.exp(rest)
        index = path.unsqueeze(0).expand(steps, batch, width)
        classes = webtorch.zeros_like(log_probs).scatter_add(2, index, occupied)
        of_probs = (webtorch.exp(log_probs) - classes) * grads[0].reshape(1, batch, 1)
        counted = numbers.reshape(steps, 1, 1) < ctx.lengths.reshape(1, batch, 1)
        return webtorch.where(counted, of_probs, 0.0), None, None, None, None


@dispatched()
def ctc_loss(
    log_probs: Tensor,
    targets: Tensor,
    input_lengths: Tensor | Sequence[int],
    target_lengths: Tensor | Sequence[int],
    blank: int = 0,
    reduction: str = "mean",
    zero_infinity: bool = False,
) -> Tensor:
    """Return minus log of the probability of label sequences, under all alignments.

    `log_probs` is (T, N, C), or (T, C); `targets` is (N, S), or all labels one after the other, or
    (S); lengths are (N,) ints, those of the inputs up to T. The mean is over the batch, of losses
    divided by the lengths of their targets. Impossible alignments count inf, or 0 if
    `zero_infinity`.
    """
    if reduction not in ("none", "mean", "sum"):
        raise ValueError(f"{reduction} is not a valid value for reduction")
    if not log_probs.is_floating_point():
        raise NotImplementedError(f'"ctc_loss" not implemented for {log_probs.dtype}')
    if targets.is_floating_point():
        targets = targets.long()
    batched = log_probs.dim() == 3
    x = log_probs if batched else log_probs.unsqueeze(1)
    steps, batch, classes = x.shape
    if not 0 <= blank < classes:
        raise RuntimeError("blank must be in label range")
    inputs = _counts(input_lengths, batch, "input_lengths")
    sizes = _counts(target_lengths, batch, "target_lengths")
    for sample, length in enumerate(inputs):
        if not 0 <= length <= steps:
            raise RuntimeError(
                f"Expected input_lengths to have value at most {steps}, but got value {length} "
                f"(while checking arguments for ctc_loss_cpu) at batch {sample}"
            )
    longest = max(sizes, default=0)
    labels = targets.to(x.device)
    if labels.dim() == 2 and batched:
        if labels.shape[0] != batch or labels.shape[1] < longest:
            raise RuntimeError(
                f"Expected tensor to have size at least {longest} at dimension 1, but got size "
                f"{labels.shape[1]} for argument #2 'targets' (while checking arguments for "
                "ctc_loss_cpu)"
            )
        labels = labels[:, :longest]
    else:
        if labels.numel() < sum(sizes):
            raise RuntimeError(
                f"Expected targets to have {sum(sizes)} labels, the sum of target_lengths, but got "
                f"{labels.numel()}"
            )
        starts = [sum(sizes[:i]) for i in range(batch)]
        index = [
            [s + (j if j < n else 0) for j in range(longest)]
            for s, n in zip(starts, sizes, strict=True)
        ]
        where = webtorch.tensor(index, dtype=webtorch.int64, device=x.device).reshape(-1)
        flat = labels.reshape(-1)
        # Where the last samples have no labels, their start is behind the end.
        where = where.clamp(max=max(int(flat.shape[0]) - 1, 0))
        labels = (flat.index_select(0, where) if longest else flat[:0]).reshape(batch, longest)
    made: dict[str, Any] = {"dtype": webtorch.int64, "device": x.device}
    long = webtorch.tensor(sizes, **made)
    columns = webtorch.arange(longest, device=x.device)
    labels = webtorch.where(columns < long.unsqueeze(1), labels.to(webtorch.int64), blank)
    loss = _Alignment.apply(x, labels, blank, webtorch.tensor(inputs, **made), long)
    if zero_infinity:
        loss = webtorch.where(loss == math.inf, 0.0, loss)
    if reduction == "mean":
        return (loss / long.clamp(min=1).to(loss.dtype)).mean()
    if reduction == "sum":
        return loss.sum()
    return loss if batched else loss.squeeze(0)
