"""Activations as functions. May import the tensor floor and the op table.

`inplace=True` writes the result over the input, with PyTorch's rules for that.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import webtorch
from webtorch import Tensor
from webtorch.nn.functional.table import composite, table

__all__ = [
    "celu",
    "celu_",
    "elu",
    "elu_",
    "gelu",
    "glu",
    "gumbel_softmax",
    "hardshrink",
    "hardsigmoid",
    "hardswish",
    "hardtanh",
    "hardtanh_",
    "leaky_relu",
    "leaky_relu_",
    "log_softmax",
    "logsigmoid",
    "mish",
    "prelu",
    "relu",
    "relu6",
    "relu_",
    "rrelu",
    "rrelu_",
    "selu",
    "selu_",
    "sigmoid",
    "silu",
    "softmax",
    "softmin",
    "softplus",
    "softshrink",
    "softsign",
    "tanh",
    "tanhshrink",
    "threshold",
    "threshold_",
]


def _applied(
    compute: Callable[..., Tensor], input: Tensor, *options: float, inplace: bool
) -> Tensor:
    """Return `compute(input, *options)`, written over the input if `inplace`."""
    if not inplace:
        return compute(input, *options)
    # From a copy: the derivative needs the values that are about to be overwritten.
    return input.copy_(compute(input.clone(), *options))


def relu(input: Tensor, inplace: bool = False) -> Tensor:
    """Return max(x, 0)."""
    return webtorch.relu_(input) if inplace else webtorch.relu(input)


def sigmoid(input: Tensor) -> Tensor:
    """Return 1 / (1 + exp(-x))."""
    return webtorch.sigmoid(input)


def tanh(input: Tensor) -> Tensor:
    """Return the hyperbolic tangent."""
    return webtorch.tanh(input)


gelu = table("gelu")


@composite
def softplus(input: Tensor, beta: float = 1, threshold: float = 20) -> Tensor:
    """Return log(1 + exp(beta x)) / beta, which is x itself above `threshold`."""
    scaled = input * beta
    # min() keeps exp finite where the other branch is taken: inf * 0 would make its gradient NaN.
    return webtorch.where(
        scaled > threshold, input, webtorch.log1p(webtorch.exp(scaled.clamp(max=threshold))) / beta
    )


_silu = table("silu", lambda input: input * webtorch.sigmoid(input))
_leaky_relu = table(
    "leaky_relu",
    lambda input, negative_slope: webtorch.where(input > 0, input, input * negative_slope),
)
_elu = table("elu", lambda input, alpha: _exponential_below_zero(input, alpha, 1.0))
_hardtanh = table("hardtanh", lambda input, low, high: _bounded(input, low, high))


def _exponential_below_zero(input: Tensor, below: float, divisor: float) -> Tensor:
    """Return x above zero and `below * expm1(x / divisor)` at and under it."""
    # The clamp keeps expm1 finite where the other branch is taken (see softplus).
    return webtorch.where(input > 0, input, webtorch.expm1(input.clamp(max=0) / divisor) * below)


def _bounded(input: Tensor, low: float, high: float) -> Tensor:
    """Return x within the bounds; the gradient is 0 at the bounds too, which clamp's is not."""
    return webtorch.where(input <= low, low, webtorch.where(input >= high, high, input))


def silu(input: Tensor, inplace: bool = False) -> Tensor:
    """Return x * sigmoid(x)."""
    return _applied(_silu, input, inplace=inplace)


def leaky_relu(input: Tensor, negative_slope: float = 0.01, inplace: bool = False) -> Tensor:
    """Return x above zero and `negative_slope * x` under it."""
    return _applied(_leaky_relu, input, negative_slope, inplace=inplace)


def elu(input: Tensor, alpha: float = 1.0, inplace: bool = False) -> Tensor:
    """Return x above zero and `alpha * (exp(x) - 1)` under it."""
    return _applied(_elu, input, alpha, inplace=inplace)


def celu(input: Tensor, alpha: float = 1.0, inplace: bool = False) -> Tensor:
    """Return x above zero and `alpha * (exp(x / alpha) - 1)` under it."""
    return _applied(_exponential_below_zero, input, alpha, alpha, inplace=inplace)


# Klambauer et al., 2017: Self-normalizing neural networks.
_SELU_ALPHA = 1.6732632423543772848170429916717
_SELU_SCALE = 1.0507009873554804934193349852946


_selu = table("selu", lambda input: _exponential_below_zero(input, _SELU_ALPHA, 1.0) * _SELU_SCALE)


def selu(input: Tensor, inplace: bool = False) -> Tensor:
    """Return the scaled ELU whose activations keep mean 0 and variance 1."""
    return _applied(_selu, input, inplace=inplace)


def hardtanh(
    input: Tensor, min_val: float = -1.0, max_val: float = 1.0, inplace: bool = False
) -> Tensor:
    """Return x limited to [min_val, max_val]."""
    if min_val > max_val:
        raise ValueError("min_val cannot be greater than max_val")
    return _applied(_hardtanh, input, min_val, max_val, inplace=inplace)


def relu6(input: Tensor, inplace: bool = False) -> Tensor:
    """Return x limited to [0, 6]."""
    return hardtanh(input, 0.0, 6.0, inplace)


def _thresholded(input: Tensor, threshold: float, value: float) -> Tensor:
    """Return x above `threshold` and `value` elsewhere."""
    return webtorch.where(input <= threshold, value, input)


def threshold(input: Tensor, threshold: float, value: float, inplace: bool = False) -> Tensor:
    """Return x above `threshold` and `value` elsewhere."""
    return _applied(_thresholded, input, threshold, value, inplace=inplace)


def hardsigmoid(input: Tensor, inplace: bool = False) -> Tensor:
    """Return relu6(x + 3) / 6."""
    return _applied(lambda x: relu6(x + 3) / 6, input, inplace=inplace)


def hardswish(input: Tensor, inplace: bool = False) -> Tensor:
    """Return x * relu6(x + 3) / 6."""
    return _applied(lambda x: x * relu6(x + 3) / 6, input, inplace=inplace)


def mish(input: Tensor, inplace: bool = False) -> Tensor:
    """Return x * tanh(softplus(x))."""
    return _applied(lambda x: x * webtorch.tanh(softplus(x)), input, inplace=inplace)


def rrelu(
    input: Tensor,
    lower: float = 1.0 / 8,
    upper: float = 1.0 / 3,
    training: bool = False,
    inplace: bool = False,
) -> Tensor:
    """Return leaky_relu with a slope drawn from [lower, upper], or their mean when not training."""
    if not training:
        return leaky_relu(input, (lower + upper) / 2, inplace)
    slope = webtorch.rand_like(input) * (upper - lower) + lower
    return _applied(lambda x: webtorch.where(x > 0, x, x * slope), input, inplace=inplace)


@composite
def prelu(input: Tensor, weight: Tensor) -> Tensor:
    """Return leaky_relu with a learned slope: one, or one for each channel (dimension 1)."""
    if weight.numel() != 1:
        channels = input.shape[1] if input.dim() > 1 else 1
        if weight.numel() != channels:
            raise RuntimeError(
                "Mismatch of parameter numbers and input channel size. Found parameter numbers = "
                f"{weight.numel()} and channel size = {channels}."
            )
        weight = weight.reshape((1, channels, *(1,) * (input.dim() - 2)))
    else:
        weight = weight.reshape((1,) * input.dim())
    return webtorch.where(input > 0, input, input * weight)


@composite
def glu(input: Tensor, dim: int = -1) -> Tensor:
    """Return a * sigmoid(b), where a and b are the halves of the input along `dim`."""
    if input.dim() == 0:
        raise RuntimeError("glu does not support scalars because halving size must be even")
    if input.shape[dim] % 2 != 0:
        raise RuntimeError(
            f"Halving dimension must be even, but dimension {dim % input.dim()} is size "
            f"{input.shape[dim]}"
        )
    a, b = input.chunk(2, dim)
    return a * webtorch.sigmoid(b)


@composite
def logsigmoid(input: Tensor) -> Tensor:
    """Return log(sigmoid(x)), arranged so that exp never overflows."""
    # minimum, not clamp: at 0 it halves the gradient, which is what the derivative is there.
    below = webtorch.minimum(input, webtorch.zeros_like(input))
    return below - webtorch.log1p(webtorch.exp(-input.abs()))


@composite
def hardshrink(input: Tensor, lambd: float = 0.5) -> Tensor:
    """Return x outside [-lambd, lambd] and 0 within."""
    return webtorch.where((input >= -lambd) & (input <= lambd), 0.0, input)


@composite
def softshrink(input: Tensor, lambd: float = 0.5) -> Tensor:
    """Return x moved by `lambd` towards 0, and 0 within [-lambd, lambd]."""
    if lambd < 0:
        raise RuntimeError(f"lambda must be greater or equal to 0, but found to be {lambd}.")
    # x * 0 rather than 0: NaN stays NaN.
    return webtorch.where(
        input > lambd, input - lambd, webtorch.where(input < -lambd, input + lambd, input * 0)
    )


def tanhshrink(input: Tensor) -> Tensor:
    """Return x - tanh(x)."""
    return input - webtorch.tanh(input)


def softsign(input: Tensor) -> Tensor:
    """Return x / (1 + |x|)."""
    return input / (input.abs() + 1)


def _softmax_dim(name: str, rank: int) -> int:
    """Return the dimension that PyTorch's softmax takes when none is named, with its warning."""
    import warnings

    warnings.warn(
        f"Implicit dimension choice for {name} has been deprecated. "
        "Change the call to include dim=X as an argument.",
        UserWarning,
        stacklevel=4,
    )
    return 0 if rank in (0, 1, 3) else 1


def softmax(
    input: Tensor, dim: int | None = None, _stacklevel: int = 3, dtype: Any = None
) -> Tensor:
    """Return exp(x) / sum(exp(x)) along `dim`."""
    dim = _softmax_dim("softmax", input.dim()) if dim is None else dim
    return webtorch.softmax(input, dim) if dtype is None else webtorch.softmax(input.to(dtype), dim)


def softmin(
    input: Tensor, dim: int | None = None, _stacklevel: int = 3, dtype: Any = None
) -> Tensor:
    """Return softmax(-x) along `dim`."""
    dim = _softmax_dim("softmin", input.dim()) if dim is None else dim
    return softmax(-input, dim, dtype=dtype)


def log_softmax(
    input: Tensor, dim: int | None = None, _stacklevel: int = 3, dtype: Any = None
) -> Tensor:
    """Return log(softmax(x)) along `dim`."""
    dim = _softmax_dim("log_softmax", input.dim()) if dim is None else dim
    input = input if dtype is None else input.to(dtype)
    return webtorch.log_softmax(input, dim)


def gumbel_softmax(
    logits: Tensor, tau: float = 1, hard: bool = False, eps: float = 1e-10, dim: int = -1
) -> Tensor:
    """Return a sample of the relaxed categorical distribution; `hard` makes it one-hot.

    The hard sample has the soft one's gradient. Jang et al., 2017; Maddison et al., 2017.
    """
    noise = -(-webtorch.rand_like(logits).log()).log()
    soft = softmax((logits + noise) / tau, dim)
    if not hard:
        return soft
    index = soft.argmax(dim, keepdim=True)
    one_hot = webtorch.zeros_like(logits).scatter(dim, index, 1.0)
    return one_hot - soft.detach() + soft


def relu_(input: Tensor) -> Tensor:
    """Write relu over the input."""
    return relu(input, True)


def leaky_relu_(input: Tensor, negative_slope: float = 0.01) -> Tensor:
    """Write leaky_relu over the input."""
    return leaky_relu(input, negative_slope, True)


def elu_(input: Tensor, alpha: float = 1.0) -> Tensor:
    """Write elu over the input."""
    return elu(input, alpha, True)


def celu_(input: Tensor, alpha: float = 1.0) -> Tensor:
    """Write celu over the input."""
    return celu(input, alpha, True)


def selu_(input: Tensor) -> Tensor:
    """Write selu over the input."""
    return selu(input, True)


def hardtanh_(input: Tensor, min_val: float = -1.0, max_val: float = 1.0) -> Tensor:
    """Write hardtanh over the input."""
    return hardtanh(input, min_val, max_val, True)


def threshold_(input: Tensor, threshold: float, value: float) -> Tensor:
    """Write threshold over the input."""
    return _applied(_thresholded, input, threshold, value, inplace=True)


def rrelu_(
    input: Tensor, lower: float = 1.0 / 8, upper: float = 1.0 / 3, training: bool = False
) -> Tensor:
    """Write rrelu over the input."""
    return rrelu(input, lower, upper, training, True)
