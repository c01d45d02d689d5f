"""Rules about values that only the device knows."""

from __future__ import annotations

from webtorch.dispatch.call import dispatched
from webtorch.ir.dtype import bool_, int32
from webtorch.ops import comparison
from webtorch.ops.primitive import cast_to, fill, take
from webtorch.tensors.tensor import Tensor


def demand(result: Tensor, holds: object, message: str) -> Tensor:
    """Return `result`, which is right only where the bools `holds` (broadcast to it) are all true.

    Nothing is read: the kernel that computes the result reports False, and the next read raises
    DeviceCheckError (a RuntimeError) with `message` and the user's line, as bad indices do. Not
    differentiable in `holds`.
    """
    broken = cast_to(comparison.logical_not(holds), int32)
    # A look-up of the only place that there is, or of one that is not.
    kind = result.dtype.to_real() if result.dtype.is_complex else result.dtype
    one = take(fill((1,), 1, kind, result.device), [broken], message, dims=(-1,))
    return comparison.logical_and(result, one) if result.dtype is bool_ else result * one


def dynamic(operator: str) -> str:
    """Return what is said of an operator whose result has another size for each example of a vmap."""
    return (
        "vmap: We do not support batching operators that can output dynamic shape. Attempted to vmap over "
        f"aten::{operator}. Please file an issue at https://github.com/pytorch/pytorch/issues if you need this "
        "feature: each example may have another number of elements"
    )


@dispatched(role="other")
def _assert(condition: object, message: str) -> None:
    """Assert, so that a symbolic trace sees it."""
    assert condition, message
