"""torch._functorch.autograd_function: parts of how PyTorch maps functions of users, which programs borrow."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from webtorch.tensors.tensor import Tensor


class CtxWithSavedTensors:
    """A context of a function, with other saved tensors; all else is the context's."""

    def __init__(self, ctx: Any, new_saved_tensors: object) -> None:
        """Take the context, and what is saved. Raises RuntimeError where the context has the names used here."""
        if not isinstance(ctx, CtxWithSavedTensors):
            for name in ("_pt_inner_ctx", "_pt_new_saved_tensors"):
                if name in vars(ctx):
                    raise RuntimeError(
                        f"CtxWithSavedTensors: name collision: the context has {name}"
                    )
        vars(self).update(_pt_inner_ctx=ctx, _pt_new_saved_tensors=new_saved_tensors)

    @property
    def saved_tensors(self) -> Any:
        """What was given."""
        return vars(self)["_pt_new_saved_tensors"]

    def __getattr__(self, name: str) -> Any:
        return getattr(vars(self)["_pt_inner_ctx"], name)

    def __setattr__(self, name: str, value: object) -> None:
        setattr(vars(self)["_pt_inner_ctx"], name, value)


def reductify_leaf(
    grad_input: Tensor | None,
    grad_input_bdim: int | None,
    input_bdim: int | None,
    batch_size: int,
    target_shape_without_bdim_to_reduce_to: Sequence[int] | None = None,
) -> Tensor | None:
    """Return the gradient of an input with its batch dimension where the input has it; summed where it has none."""
    if grad_input is None:
        return None
    if grad_input_bdim is None:
        if input_bdim is None:
            return grad_input
        grad_input = grad_input.unsqueeze(0).expand(batch_size, *grad_input.shape)
        grad_input_bdim = 0
    if input_bdim is None:
        return grad_input.sum(grad_input_bdim)
    moved = grad_input.movedim(grad_input_bdim, 0)
    sizes = target_shape_without_bdim_to_reduce_to
    if sizes is not None:
        ones = (1,) * (moved.ndim - 1 - len(sizes))
        moved = moved.sum_to_size(batch_size, *ones, *sizes).reshape(batch_size, *sizes)
    return moved.movedim(0, input_bdim)
