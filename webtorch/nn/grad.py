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


def conv1d_input(
    input_size: Sequence[int], weight: Tensor, grad_output: Tensor,
    stride: Sizes = 1, padding: Sizes = 0, dilation: Sizes = 1, groups: int = 1,
) -> Tensor:  # fmt: skip
    """Return the gradient of `conv1d` for its input of a shape."""
    options = stride, padding, dilation, groups
    return _gradient(F.conv1d, 0, [tuple(input_size), weight], grad_output, options)


def conv1d_weight(
    input: Tensor, weight_size: Sequence[int], grad_output: Tensor,
    stride: Sizes = 1, padding: Sizes = 0, dilation: Sizes = 1, groups: int = 1,
) -> Tensor:  # fmt: skip
    """Return the gradient of `conv1d` for its weight of a shape."""
    options = stride, padding, dilation, groups
    return _gradient(F.conv1d, 1, [input, tuple(weight_size)], grad_output, options)


def conv2d_input(
    input_size: Sequence[int], weight: Tensor, grad_output: Tensor,
    stride: Sizes = 1, padding: Sizes = 0, dilation: Sizes = 1, groups: int = 1,
) -> Tensor:  # fmt: skip
    """Return the gradient of `conv2d` for its input of a shape."""
    options = stride, padding, dilation, groups
    return _gradient(F.conv2d, 0, [tuple(input_size), weight], grad_output, options)


def conv2d_weight(
    input: Tensor, weight_size: Sequence[int], grad_output: Tensor,
    stride: Sizes = 1, padding: Sizes = 0, dilation: Sizes = 1, groups: int = 1,
) -> Tensor:  # fmt: skip
    """Return the gradient of `conv2d` for its weight of a shape."""
    options = stride, padding, dilation, groups
    return _gradient(F.conv2d, 1, [input, tuple(weight_size)], grad_output, options)


def conv3d_input(
    input_size: Sequence[int], weight: Tensor, grad_output: Tensor,
    stride: Sizes = 1, padding: Sizes = 0, dilation: Sizes = 1, groups: int = 1,
) -> Tensor:  # fmt: skip
    """Return the gradient of `conv3d` for its input of a shape."""
    options = stride, padding, dilation, groups
    return _gradient(F.conv3d, 0, [tuple(input_size), weight], grad_output, options)


def conv3d_weight(
    input: Tensor, weight_size: Sequence[int], grad_output: Tensor,
    stride: Sizes = 1, padding: Sizes = 0, dilation: Sizes = 1, groups: int = 1,
) -> Tensor:  # fmt: skip
    """Return the gradient of `conv3d` for its weight of a shape."""
    options = stride, padding, dilation, groups
    return _gradient(F.conv3d, 1, [input, tuple(weight_size)], grad_output, options)
