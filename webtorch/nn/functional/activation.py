"""Activations that can write over their input. May import floors 0 to 4.

The functions are the op table's; PyTorch's `inplace` argument and `name_` forms are added here.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable

from webtorch.dispatch.call import Callee, active, call, dispatched
from webtorch.functions import public as webtorch
from webtorch.ir.dtype import DType
from webtorch.ir.lines import user_depth
from webtorch.nn.functional.table import table
from webtorch.ops.record import TABLE
from webtorch.tensors.tensor import Tensor

__all__ = [
    "celu",
    "celu_",
    "elu",
    "elu_",
    "hardsigmoid",
    "hardswish",
    "hardtanh",
    "hardtanh_",
    "leaky_relu",
    "leaky_relu_",
    "log_softmax",
    "mish",
    "relu",
    "relu6",
    "relu_",
    "selu",
    "selu_",
    "silu",
    "softmax",
    "softmin",
    "threshold",
    "threshold_",
]

_elu, _celu, _hardtanh = table("elu"), table("celu"), table("hardtanh")
_leaky_relu, _threshold = table("leaky_relu"), table("threshold")
_softmax, _log_softmax, _softmin = table("softmax"), table("log_softmax"), table("softmin")


def _in_place_too(name: str, doc: str, copies: bool = True) -> Callable[..., Tensor]:
    """Return an activation without options that takes `inplace`; from a copy where the derivative needs
    the values that are overwritten.
    """
    compute = TABLE[name].function

    def plain(input: Tensor, inplace: bool = False) -> Tensor:
        """Compute the activation, in place if that is wanted."""
        if inplace and not copies:
            written: Tensor = getattr(input, f"{name}_")()
            return written
        return _applied(compute, input, inplace=inplace)

    callee = Callee(name, lambda args, kwargs: plain(*args, **kwargs))

    def function(input: Tensor, inplace: bool = False) -> Tensor:
        """Enter the call, or compute it where nobody looks."""
        if active.count:
            found: Tensor = call(callee, (input,), {"inplace": True} if inplace else {})
            return found
        return plain(input, True) if inplace else compute(input)

    function.__name__ = function.__qualname__ = name
    function.__doc__ = doc
    callee.publish(function)
    return function


def _applied(
    compute: Callable[..., Tensor], input: Tensor, *options: float, inplace: bool
) -> Tensor:
    """Return `compute(input, *options)`, written over the input if `inplace`."""
    if not inplace:
        return compute(input, *options)
    # From a copy: the derivative needs the values that are about to be overwritten.
    return input.copy_(compute(input.clone(), *options))


# The derivative comes from the result, so nothing has to be copied.
relu = _in_place_too("relu", "Return max(x, 0).", copies=False)
relu6 = _in_place_too("relu6", "Return x limited to [0, 6].")
silu = _in_place_too("silu", "Return x * sigmoid(x).")
mish = _in_place_too("mish", "Return x * tanh(softplus(x)).")
selu = _in_place_too("selu", "Return the scaled ELU whose activations keep mean 0 and variance 1.")


@dispatched()
def elu(input: Tensor, alpha: float = 1.0, inplace: bool = False) -> Tensor:
    """Return x above zero and `alpha * (exp(x) - 1)` under it."""
    return _applied(_elu, input, alpha, inplace=inplace)


@dispatched()
def celu(input: Tensor, alpha: float = 1.0, inplace: bool = False) -> Tensor:
    """Return x above zero and `alpha * (exp(x / alpha) - 1)` under it."""
    return _applied(_celu, input, alpha, inplace=inplace)


@dispatched()
def leaky_relu(input: Tensor, negative_slope: float = 0.01, inplace: bool = False) -> Tensor:
    """Return x above zero and `negative_slope * x` under it."""
    return _applied(_leaky_relu, input, negative_slope, inplace=inplace)


@dispatched()
def hardtanh(
    input: Tensor, min_val: float = -1.0, max_val: float = 1.0, inplace: bool = False
) -> Tensor:
    """Return x limited to [min_val, max_val]."""
    if min_val > max_val:
        raise ValueError("min_val cannot be greater than max_val")
    if input.dtype is webtorch.uint8 and min_val < 0:
        raise RuntimeError(
            f"hardtanh: cannot do hardtanh on an unsigned type with negative limits: got {min_val}"
        )
    return _applied(_hardtanh, input, min_val, max_val, inplace=inplace)


hardsigmoid = _in_place_too("hardsigmoid", "Return relu6(x + 3) / 6.")
hardswish = _in_place_too("hardswish", "Return x * relu6(x + 3) / 6.")


@dispatched()
def threshold(input: Tensor, threshold: float, value: float, inplace: bool = False) -> Tensor:
    """Return x above `threshold` and `value` elsewhere."""
    return _applied(_threshold, input, threshold, value, inplace=inplace)


@dispatched()
def relu_(input: Tensor) -> Tensor:
    """Write relu over the input."""
    return relu(input, True)


@dispatched()
def selu_(input: Tensor) -> Tensor:
    """Write selu over the input."""
    return selu(input, True)


@dispatched()
def elu_(input: Tensor, alpha: float = 1.0) -> Tensor:
    """Write elu over the input."""
    return elu(input, alpha, True)


@dispatched()
def celu_(input: Tensor, alpha: float = 1.0) -> Tensor:
    """Write celu over the input."""
    return celu(input, alpha, True)


@dispatched()
def leaky_relu_(input: Tensor, negative_slope: float = 0.01) -> Tensor:
    """Write leaky_relu over the input."""
    return leaky_relu(input, negative_slope, True)


@dispatched()
def hardtanh_(input: Tensor, min_val: float = -1.0, max_val: float = 1.0) -> Tensor:
    """Write hardtanh over the input."""
    return hardtanh(input, min_val, max_val, True)


@dispatched()
def threshold_(input: Tensor, threshold: float, value: float) -> Tensor:
    """Write threshold over the input."""
    return _applied(_threshold, input, threshold, value, inplace=True)


def _along(
    compute: Callable[..., Tensor], input: Tensor, dim: int | None, dtype: DType | None
) -> Tensor:
    """Return a softmax; without a dimension PyTorch's choice is made, with its warning."""
    if dim is None:
        warnings.warn(
            f"Implicit dimension choice for {compute.__name__} has been deprecated. Change the call "
            "to include dim=X as an argument.",
            stacklevel=user_depth(),
        )
        dim = 0 if input.ndim in (0, 1, 3) else 1
    return compute(input, dim, dtype)


@dispatched()
def softmax(
    input: Tensor, dim: int | None = None, _stacklevel: int = 3, dtype: DType | None = None
) -> Tensor:
    """Return exp(input) / sum(exp(input)) along `dim`; nothing overflows."""
    return _along(_softmax, input, dim, dtype)


@dispatched()
def log_softmax(
    input: Tensor, dim: int | None = None, _stacklevel: int = 3, dtype: DType | None = None
) -> Tensor:
    """Return log(softmax(input)) along `dim`; nothing overflows."""
    return _along(_log_softmax, input, dim, dtype)


@dispatched()
def softmin(
    input: Tensor, dim: int | None = None, _stacklevel: int = 3, dtype: DType | None = None
) -> Tensor:
    """Return softmax(-input) along `dim`."""
    return _along(_softmin, input, dim, dtype)
