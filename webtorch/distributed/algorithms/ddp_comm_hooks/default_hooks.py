"""The mean of a bucket of gradients, as it is or in 16 bits on the way. Floor 5."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from webtorch.distributed.bucket import GradBucket
from webtorch.distributed.collectives import all_reduce
from webtorch.distributed.group import ProcessGroup
from webtorch.distributed.reduction import ReduceOp
from webtorch.distributed.world import default_group
from webtorch.futures import Future
from webtorch.ir import dtype as dtypes
from webtorch.ir.dtype import DType
from webtorch.tensors.tensor import Tensor

__all__ = [
    "allreduce_hook",
    "bf16_compress_hook",
    "bf16_compress_wrapper",
    "fp16_compress_hook",
    "fp16_compress_wrapper",
]

Hook = Callable[[Any, GradBucket], Future[Tensor]]


def _mean(group: ProcessGroup | None, x: Tensor) -> Future[Any]:
    work = all_reduce(x, ReduceOp.AVG, group or default_group(), async_op=True)
    assert work is not None
    return work.get_future()


def allreduce_hook(process_group: ProcessGroup | None, bucket: GradBucket) -> Future[Tensor]:
    """Return the mean of the processes' gradients."""
    return _mean(process_group, bucket.buffer()).then(lambda f: f.value()[0])


def _compressed(group: ProcessGroup | None, bucket: GradBucket, dtype: DType) -> Future[Tensor]:
    buffer = bucket.buffer()
    coming = _mean(group, buffer.to(dtype))
    return coming.then(lambda f: buffer.copy_(f.value()[0]))


def fp16_compress_hook(process_group: ProcessGroup | None, bucket: GradBucket) -> Future[Tensor]:
    """Return the mean of the processes' gradients, rounded to float16; it is added in float32."""
    return _compressed(process_group, bucket, dtypes.float16)


def bf16_compress_hook(process_group: ProcessGroup | None, bucket: GradBucket) -> Future[Tensor]:
    """Return the mean of the processes' gradients, rounded to bfloat16; it is added in float32."""
    return _compressed(process_group, bucket, dtypes.bfloat16)


def _wrapped(hook: Hook, dtype: DType) -> Hook:
    def compress(state: object, bucket: GradBucket) -> Future[Tensor]:
        """Return a future of the gradients, which travel in the narrow type."""
        whole = bucket.buffer()
        bucket.set_buffer(whole.to(dtype))

        def decompress(future: Future[Any]) -> Tensor:
            """Return the gradients in their own type, in the tensor that held them before."""
            value = future.value()
            return whole.copy_(value[0] if isinstance(value, (list, tuple)) else value)

        return hook(state, bucket).then(decompress)

    return compress


def fp16_compress_wrapper(hook: Hook) -> Hook:
    """Return a hook that gives `hook` the gradients in float16."""
    return _wrapped(hook, dtypes.float16)


def bf16_compress_wrapper(hook: Hook) -> Hook:
    """Return a hook that gives `hook` the gradients in bfloat16."""
    return _wrapped(hook, dtypes.bfloat16)
