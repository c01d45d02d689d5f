"""How views were made that gradients cannot follow through a write, and what PyTorch says of them. Floor 4."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, NamedTuple

from webtorch.tensors.modes import mode

if TYPE_CHECKING:
    from webtorch.tensors.tensor import Tensor


class MadeBy(NamedTuple):
    """How a view was made that gradients cannot follow through a write."""

    # What PyTorch advises.
    advice: str
    # The mode in which it was made, and what is wrong with a write.
    mode: str = ""
    wrong: str = ""
    # Which of several results it is.
    number: int = 0


_AMBIGUOUS = (
    "Given that this use case is ambiguous and error-prone, it is forbidden. You can clarify your code by moving "
    "both the view and the inplace either both inside the {0} block (if you don't want the inplace to be tracked) "
    "or both outside (if you want the inplace to be tracked)."
)


NO_GRAD = MadeBy(_AMBIGUOUS.format("no_grad"), "no_grad", "inplace with grad mode enabled")


_INFERENCE = MadeBy(_AMBIGUOUS.format("inference_mode"), "inference", "inplace in normal mode")


_SEVERAL = (
    "This view is the output of a function that returns multiple views. Such functions do not allow the output "
    "views to be modified inplace. You should replace the inplace operation by an out-of-place one."
)


_CUSTOM = (
    "This view was created inside a custom Function (or because an input was returned as-is) and the autograd logic "
    "to handle view+inplace would override the custom backward associated with the custom Function, leading to "
    "incorrect gradients. This behavior is forbidden. You can fix this by cloning the output of the custom Function."
)


def made_in_mode() -> MadeBy:
    """Return how a view is made while gradients are not recorded."""
    return _INFERENCE if mode.inference else NO_GRAD


@functools.cache
def made_by_function(number: int, several: bool) -> MadeBy:
    """Return how a view is made that is a result of a custom Function, or one of several that have gradients."""
    return MadeBy(_SEVERAL if several else _CUSTOM, number=number)


def several_views(views: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """Return views of one tensor as the results of one function, which may not be written with gradients."""
    if mode.grad:
        for number, view in enumerate(views):
            view._made_by = made_by_function(number, several=True)
    return views
