"""Gradients that travel in 8 bits, of a whole bucket or of rows of it. Floor 5."""

from __future__ import annotations

from webtorch.distributed.bucket import GradBucket
from webtorch.distributed.collectives import all_gather_into_tensor
from webtorch.distributed.group import ProcessGroup
from webtorch.distributed.world import default_group
from webtorch.functions.creation import zeros
from webtorch.functions.joining import cat, stack
from webtorch.futures import Future
from webtorch.ir.dtype import float32, uint8
from webtorch.tensors.tensor import Tensor

__all__ = ["quantization_perchannel_hook", "quantization_pertensor_hook"]

_MOST = 255
# The least distance of two values that are told apart, as PyTorch's observers have it.
_LEAST = 2.0**-23


def _gathered(x: Tensor, group: ProcessGroup) -> Tensor:
    out = zeros(group.size(), *x.shape, dtype=x.dtype, device=x.device)
    all_gather_into_tensor(out, x, group)
    return out


def _mean(rows: Tensor, group: ProcessGroup) -> Tensor:
    """Return the mean of the processes' rows, each of which travels in 8 bits with a scale and a zero of its own."""
    low, high = rows.amin(1).clamp(max=0.0), rows.amax(1).clamp(min=0.0)
    scale = ((high - low) / _MOST).clamp(min=_LEAST)
    zero = (-(low / scale).round()).clamp(0, _MOST)
    of_all = _gathered(stack([scale, zero]).to(float32), group)
    sent = ((rows / scale[:, None]).round() + zero[:, None]).clamp(0, _MOST).to(uint8)
    came = _gathered(sent, group).to(float32)
    return (of_all[:, 0, :, None] * (came - of_all[:, 1, :, None])).sum(0) / group.size()


def _future(x: Tensor) -> Future[Tensor]:
    future: Future[Tensor] = Future()
    future.set_result(x)
    return future


def quantization_pertensor_hook(
    process_group: ProcessGroup | None, bucket: GradBucket
) -> Future[Tensor]:
    """Return the mean of the processes' gradients, each bucket of which has one scale."""
    return _future(_mean(bucket.buffer()[None], process_group or default_group())[0])


def quantization_perchannel_hook(
    process_group: ProcessGroup | None, bucket: GradBucket, bucket_size: int = 512
) -> Future[Tensor]:
    """Return the mean of the processes' gradients, of which `bucket_size` numbers each have one scale."""
    given = bucket.buffer()
    count = given.numel()
    padding = zeros(bucket_size - count % bucket_size, dtype=given.dtype, device=given.device)
    rows = cat([given, padding]).reshape(-1, bucket_size)
    return _future(_mean(rows, process_group or default_group()).reshape(-1)[:count])
