"""torch.nn.grad: the gradients of convolutions by themselves. May import the tensor floor and nn.functional."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from webtorch.functions import public as webtorch
from webtorch.nn import functional as F
from webtorch.tensors.engine import grad
from webtorch.tensors.modes import mode
from webtorch.tensors.tensor import Tensor

Sizes = int | Sequence[int]

__all__ = [
    "conv1d_input", "conv1d_weight", "conv2d_input", "conv2d_weight", "conv3d_input", "conv3d_weight",
]  # fmt: skip


def _gradient(
    call: Callable[..., Tensor], place: int, args: list[Any], grad_output: Tensor, options: Any
) -> Tensor:
    """Return the gradient of a convolution for its argument at a place, of which the shape alone matters."""
    other: Tensor = args[1 - place]
    graph = mode.grad and (grad_output.requires_grad or other.requires_grad)
    with webtorch.enable_grad():
        args[place] = webtorch.zeros(args[place], dtype=other.dtype, device=other.device)
        args[place].requires_grad_()
        out = call(*args, None, *options)
        (found,) = grad(out, args[place], grad_output, create_graph=graph)
    assert found is not None
    return found


def _of_rank(rank: int) -> tuple[Callable[..., Tensor], Callable[..., Tensor]]:
    """Return the gradients of the convolution of `rank` dimensions for its input and for its weight."""
    convolve: Callable[..., Tensor] = getattr(F, f"conv{rank}d")

    def for_input(
        input_size: Sequence[int], weight: Tensor, grad_output: Tensor,
        stride: Sizes = 1, padding: Sizes = 0, dilation: Sizes = 1, groups: int = 1,
    ) -> Tensor:  # fmt: skip
        """Return the input's gradient."""
        options = stride, padding, dilation, groups
        return _gradient(convolve, 0, [tuple(input_size), weight], grad_output, options)

    def for_weight(
        input: Tensor, weight_size: Sequence[int], grad_output: Tensor,
        stride: Sizes = 1, padding: Sizes = 0, dilation: Sizes = 1, groups: int = 1,
    ) -> Tensor:  # fmt: skip
        """Return the weight's gradient."""
        options = stride, padding, dilation, groups
        return _gradient(convolve, 1, [input, tuple(weight_size)], grad_output, options)

    for name, function in (("input", for_input), ("weight", for_weight)):
        function.__name__ = function.__qualname__ = f"conv{rank}d_{name}"
        function.__doc__ = f"Return the gradient of `conv{rank}d` for its {name} of a shape."
    return for_input, for_weight


conv1d_input, conv1d_weight = _of_rank(1)
conv2d_input, conv2d_weight = _of_rank(2)
conv3d_input, conv3d_weight = _of_rank(3)
