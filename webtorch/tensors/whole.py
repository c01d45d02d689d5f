"""Questions about tensors, and when pending work is computed. Floor 4."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from webtorch.dispatch.call import Callee, active, dispatched, enter, settle_scripts
from webtorch.errors import ShapeError
from webtorch.runtime.realize import open_runtimes
from webtorch.tensors.host import tracing
from webtorch.tensors.size import Size
from webtorch.tensors.storage import Storage
from webtorch.tensors.tensor import Tensor


def is_tensor(obj: object) -> bool:
    """Return whether `obj` is a tensor."""
    return isinstance(obj, Tensor)


@dispatched()
def numel(input: Tensor) -> int:
    """Return the number of elements."""
    return input.numel()


@dispatched()
def is_floating_point(input: Tensor) -> bool:
    """Return whether the dtype is a floating-point type."""
    return input.dtype.is_floating_point


@dispatched()
def is_complex(input: Tensor) -> bool:
    """Return whether the dtype is a complex type."""
    return input.dtype.is_complex


@dispatched()
def is_signed(input: Tensor) -> bool:
    """Return whether the dtype can hold negative values."""
    return input.dtype.is_signed


@dispatched()
def is_distributed(input: Tensor) -> bool:
    """Return False: a tensor lies in one process."""
    return False


@dispatched()
def is_inference(input: Tensor) -> bool:
    """Return whether the tensor was made in inference mode."""
    return input.is_inference()


@dispatched()
def get_device(input: Tensor) -> int:
    """Return the device index; -1 on the CPU."""
    return input.get_device()


@dispatched()
def detach(input: Tensor) -> Tensor:
    """Return a tensor on the same storage that needs no gradient."""
    return input.detach()


def kept_value(input: Tensor) -> Tensor:
    """Return the value of now, for as long as nothing is computed: the tensor may be overwritten
    meanwhile, and still in its own memory.
    """
    storage = input._storage
    if not input._whole or storage.node.host is not None:
        return input.detach().clone()
    # Not a clone: one would keep the memory from being written in place.
    value = Storage(storage.node, storage.runtime, aside=True)
    return Tensor._from_storage(value, input._shape, input._strides, 0, True)


def broadcast_shapes(*shapes: int | Sequence[int]) -> Size:
    """Return the shape that tensors of these shapes broadcast to. Raises RuntimeError if there is
    none.
    """
    out: list[int] = []
    for shape in shapes:
        sizes = [shape] if isinstance(shape, int) else list(shape)
        if any(s < 0 for s in sizes):
            raise RuntimeError(
                f"Trying to create tensor with negative dimension ({min(sizes)}): ({min(sizes)})"
            )
        out[:0] = [1] * (len(sizes) - len(out))
        for d in range(-len(sizes), 0):
            if sizes[d] != 1 and out[d] not in (1, sizes[d]):
                raise ShapeError(
                    f"broadcast_shapes: shape mismatch: {tuple(sizes)} does not broadcast with "
                    f"{tuple(out)}: sizes at dim {d} must be equal or 1"
                )
            out[d] = out[d] if sizes[d] == 1 else sizes[d]
    return Size(out)


def as_one(callee: Callee, *args: object) -> Any:
    """Return what the many calls give that a callee makes: one call for scripts, where nobody sees each."""
    if tracing.active or active.others:
        return callee.run(args, {})
    return enter(callee, args, {})


def realize(*tensors: Tensor) -> None:
    """Compute what is pending, on the devices of `tensors` or on all: a hint, no value depends on
    it. Does not wait.
    """
    if active.count:
        settle_scripts("what is pending is computed")
    if len(tensors) == 1:
        runtime = tensors[0]._storage.runtime
        if runtime.recording is None:
            runtime.realize()
        else:
            runtime.flush()
        return
    for runtime in {t._storage.runtime for t in tensors} if tensors else open_runtimes():
        runtime.flush()


def synchronize() -> None:
    """Compute everything pending on every device and wait for it."""
    settle_scripts("what is pending is computed")
    for runtime in open_runtimes():
        runtime.flush()
        runtime.backend.synchronize()


_precision = "highest"


def set_float32_matmul_precision(precision: str) -> None:
    """Accept PyTorch's setting; products of float32 are always computed in float32 here.

    Raises ValueError unless it is "highest", "high" or "medium".
    """
    global _precision
    if precision not in ("highest", "high", "medium"):
        raise ValueError(
            f"set_float32_matmul_precision: {precision!r} is not 'highest', 'high' or 'medium'"
        )
    _precision = precision


def get_float32_matmul_precision() -> str:
    """Return what set_float32_matmul_precision was given; "highest" at first."""
    return _precision
