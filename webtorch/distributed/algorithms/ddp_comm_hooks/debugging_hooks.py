"""A hook that sends nothing. Floor 5."""

from __future__ import annotations

from webtorch.distributed.bucket import GradBucket
from webtorch.futures import Future
from webtorch.tensors.tensor import Tensor

__all__ = ["noop_hook"]


def noop_hook(_: object, bucket: GradBucket) -> Future[Tensor]:
    """Return this process's gradients as they are: what is left of a step is what it takes without collectives."""
    future: Future[Tensor] = Future()
    future.set_result(bucket.buffer())
    return future
