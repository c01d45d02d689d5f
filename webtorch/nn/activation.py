"""Activations as layers. May import the tensor floor and nn's base files."""

from __future__ import annotations

import warnings

from webtorch.functions import public as webtorch
from webtorch.ir.dtype import DType
from webtorch.ir.lines import user_depth
from webtorch.nn import functional as F
from webtorch.nn import init
from webtorch.nn.module import Module
from webtorch.nn.parameter import Parameter
from webtorch.tensors.device import DeviceLike
from webtorch.tensors.tensor import Tensor

__all__ = [
    "CELU",
    "ELU",
    "GELU",
    "GLU",
    "SELU",
    "Hardshrink",
    "Hardsigmoid",
    "Hardswish",
    "Hardtanh",
    "LeakyReLU",
    "LogSigmoid",
    "LogSoftmax",
    "Mish",
    "PReLU",
    "RReLU",
    "ReLU",
    "ReLU6",
    "SiLU",
    "Sigmoid",
    "Softmax",
    "Softmax2d",
    "Softmin",
    "Softplus",
    "Softshrink",
    "Softsign",
    "Tanh",
    "Tanhshrink",
    "Threshold",
]


class _Inplace(Module):
    """An activation without options other than `inplace`."""

    def __init__(self, inplace: bool = False) -> None:
        """Let `inplace` write the result over the input."""
        super().__init__()
        self.inplace = inplace

    def extra_repr(self) -> str:
        """Return "inplace=True", or nothing."""
        return "inplace=True" if self.inplace else ""


class ReLU(_Inplace):
    """max(x, 0)."""

    def forward(self, input: Tensor) -> Tensor:
        """Return the activation of `input`."""
        return F.relu(input, self.inplace)


class SiLU(_Inplace):
    """x * sigmoid(x)."""

    def forward(self, input: Tensor) -> Tensor:
        """Return the activation of `input`."""
        return F.silu(input, self.inplace)


class Mish(_Inplace):
    """x * tanh(softplus(x))."""

    def forward(self, input: Tensor) -> Tensor:
        """Return the activation of `input`."""
        return F.mish(input, self.inplace)


class SELU(_Inplace):
    """The scaled ELU whose activations keep mean 0 and variance 1."""

    def forward(self, input: Tensor) -> Tensor:
        """Return the activation of `input`."""
        return F.selu(input, self.inplace)


class Hardsigmoid(Module):
    """relu6(x + 3) / 6."""

    def __init__(self, inplace: bool = False) -> None:
        """Let `inplace` write the result over the input."""
        super().__init__()
        self.inplace = inplace

    def forward(self, input: Tensor) -> Tensor:
        """Return the activation of `input`."""
        return F.hardsigmoid(input, self.inplace)


class Hardswish(Module):
    """x * relu6(x + 3) / 6."""

    def __init__(self, inplace: bool = False) -> None:
        """Let `inplace` write the result over the input."""
        super().__init__()
        self.inplace = inplace

    def forward(self, input: Tensor) -> Tensor:
        """Return the activation of `input`."""
        return F.hardswish(input, self.inplace)


class Hardtanh(Module):
    """x limited to [min_val, max_val]."""

    def __init__(
        self,
        min_val: float = -1.0,
        max_val: float = 1.0,
        inplace: bool = False,
        min_value: float | None = None,
        max_value: float | None = None,
    ) -> None:
        """Take the bounds; `min_value` and `max_value` are their old names."""
        super().__init__()
        if min_value is not None:
            warnings.warn(
                "keyword argument `min_value` is deprecated and renamed to `min_val`",
                FutureWarning,
                stacklevel=user_depth(),
            )
            min_val = min_value
        if max_value is not None:
            warnings.warn(
                "keyword argument `max_value` is deprecated and renamed to `max_val`",
                FutureWarning,
                stacklevel=user_depth(),
            )
            max_val = max_value
        if max_val <= min_val:
            raise AssertionError(f"max_val ({max_val}) must be greater than min_val ({min_val})")
        self.min_val = min_val
        self.max_val = max_val
        self.inplace = inplace

    def forward(self, input: Tensor) -> Tensor:
        """Return the activation of `input`."""
        return F.hardtanh(input, self.min_val, self.max_val, self.inplace)

    def extra_repr(self) -> str:
        """Return the bounds."""
        inplace = ", inplace=True" if self.inplace else ""
        return f"min_val={self.min_val}, max_val={self.max_val}{inplace}"


class ReLU6(Hardtanh):
    """x limited to [0, 6]."""

    def __init__(self, inplace: bool = False) -> None:
        """Let `inplace` write the result over the input."""
        super().__init__(0.0, 6.0, inplace)

    def extra_repr(self) -> str:
        """Return "inplace=True", or nothing."""
        return "inplace=True" if self.inplace else ""


class Threshold(Module):
    """x above `threshold` and `value` elsewhere."""

    def __init__(self, threshold: float, value: float, inplace: bool = False) -> None:
        """Take the threshold and the value under it."""
        super().__init__()
        self.threshold = threshold
        self.value = value
        self.inplace = inplace

    def forward(self, input: Tensor) -> Tensor:
        """Return the activation of `input`."""
        return F.threshold(input, self.threshold, self.value, self.inplace)

    def extra_repr(self) -> str:
        """Return the options."""
        inplace = ", inplace=True" if self.inplace else ""
        return f"threshold={self.threshold}, value={self.value}{inplace}"


class _Alpha(Module):
    """An activation with a scale `alpha`."""

    def __init__(self, alpha: float = 1.0, inplace: bool = False) -> None:
        """Take the scale under zero."""
        super().__init__()
        self.alpha = alpha
        self.inplace = inplace

    def extra_repr(self) -> str:
        """Return the options."""
        inplace = ", inplace=True" if self.inplace else ""
        return f"alpha={self.alpha}{inplace}"


class ELU(_Alpha):
    """x above zero and alpha * (exp(x) - 1) under it."""

    def forward(self, input: Tensor) -> Tensor:
        """Return the activation of `input`."""
        return F.elu(input, self.alpha, self.inplace)


class CELU(_Alpha):
    """x above zero and alpha * (exp(x / alpha) - 1) under it."""

    def forward(self, input: Tensor) -> Tensor:
        """Return the activation of `input`."""
        return F.celu(input, self.alpha, self.inplace)


class LeakyReLU(Module):
    """x above zero and negative_slope * x under it."""

    def __init__(self, negative_slope: float = 0.01, inplace: bool = False) -> None:
        """Take the slope under zero."""
        super().__init__()
        self.negative_slope = negative_slope
        self.inplace = inplace

    def forward(self, input: Tensor) -> Tensor:
        """Return the activation of `input`."""
        return F.leaky_relu(input, self.negative_slope, self.inplace)

    def extra_repr(self) -> str:
        """Return the options."""
        inplace = ", inplace=True" if self.inplace else ""
        return f"negative_slope={self.negative_slope}{inplace}"


class RReLU(Module):
    """LeakyReLU whose slope is drawn anew from [lower, upper] in training mode."""

    def __init__(
        self, lower: float = 1.0 / 8, upper: float = 1.0 / 3, inplace: bool = False
    ) -> None:
        """Take the bounds of the slope."""
        super().__init__()
        self.lower = lower
        self.upper = upper
        self.inplace = inplace

    def forward(self, input: Tensor) -> Tensor:
        """Return the activation of `input`."""
        return F.rrelu(input, self.lower, self.upper, self.training, self.inplace)

    def extra_repr(self) -> str:
        """Return the options."""
        inplace = ", inplace=True" if self.inplace else ""
        return f"lower={self.lower}, upper={self.upper}{inplace}"


class PReLU(Module):
    """LeakyReLU with a learned slope: one, or one for each channel. He et al., 2015."""

    def __init__(
        self,
        num_parameters: int = 1,
        init: float = 0.25,
        device: DeviceLike = None,
        dtype: DType | None = None,
    ) -> None:
        """Make a weight of (num_parameters,), which starts as `init`."""
        super().__init__()
        self.num_parameters = num_parameters
        self.init = init
        self.weight = Parameter(webtorch.empty(num_parameters, device=device, dtype=dtype))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Set the slopes to their initial value."""
        init.constant_(self.weight, self.init)

    def forward(self, input: Tensor) -> Tensor:
        """Return the activation of `input`."""
        return F.prelu(input, self.weight)

    def extra_repr(self) -> str:
        """Return the number of slopes."""
        return f"num_parameters={self.num_parameters}"


class Sigmoid(Module):
    """1 / (1 + exp(-x))."""

    def forward(self, input: Tensor) -> Tensor:
        """Return the activation of `input`."""
        return webtorch.sigmoid(input)


class Tanh(Module):
    """The hyperbolic tangent."""

    def forward(self, input: Tensor) -> Tensor:
        """Return the activation of `input`."""
        return webtorch.tanh(input)


class LogSigmoid(Module):
    """log(sigmoid(x))."""

    def forward(self, input: Tensor) -> Tensor:
        """Return the activation of `input`."""
        return F.logsigmoid(input)


class Softsign(Module):
    """x / (1 + |x|)."""

    def forward(self, input: Tensor) -> Tensor:
        """Return the activation of `input`."""
        return F.softsign(input)


class Tanhshrink(Module):
    """x - tanh(x)."""

    def forward(self, input: Tensor) -> Tensor:
        """Return the activation of `input`."""
        return F.tanhshrink(input)


class GELU(Module):
    """x times the normal distribution function of x; approximate="tanh" is the usual shortcut."""

    def __init__(self, approximate: str = "none") -> None:
        """Take "none" or "tanh"."""
        super().__init__()
        self.approximate = approximate

    def forward(self, input: Tensor) -> Tensor:
        """Return the activation of `input`."""
        return F.gelu(input, approximate=self.approximate)

    def extra_repr(self) -> str:
        """Return the form."""
        return f"approximate={self.approximate!r}"


class Softplus(Module):
    """log(1 + exp(beta x)) / beta, which is x itself above `threshold`."""

    def __init__(self, beta: float = 1.0, threshold: float = 20.0) -> None:
        """Take the sharpness, and from where the function counts as linear."""
        super().__init__()
        self.beta = beta
        self.threshold = threshold

    def forward(self, input: Tensor) -> Tensor:
        """Return the activation of `input`."""
        return F.softplus(input, self.beta, self.threshold)

    def extra_repr(self) -> str:
        """Return the options."""
        return f"beta={self.beta}, threshold={self.threshold}"


class _Shrink(Module):
    """An activation that is 0 within [-lambd, lambd]."""

    def __init__(self, lambd: float = 0.5) -> None:
        """Take the bound."""
        super().__init__()
        self.lambd = lambd

    def extra_repr(self) -> str:
        """Return the bound."""
        return str(self.lambd)


class Hardshrink(_Shrink):
    """x outside [-lambd, lambd] and 0 within."""

    def forward(self, input: Tensor) -> Tensor:
        """Return the activation of `input`."""
        return F.hardshrink(input, self.lambd)


class Softshrink(_Shrink):
    """x moved by `lambd` towards 0, and 0 within [-lambd, lambd]."""

    def forward(self, input: Tensor) -> Tensor:
        """Return the activation of `input`."""
        return F.softshrink(input, self.lambd)


class GLU(Module):
    """a * sigmoid(b), where a and b are the halves of the input along `dim`."""

    def __init__(self, dim: int = -1) -> None:
        """Take the dimension that is halved."""
        super().__init__()
        self.dim = dim

    def forward(self, input: Tensor) -> Tensor:
        """Return the activation of `input`."""
        return F.glu(input, self.dim)

    def extra_repr(self) -> str:
        """Return the dimension."""
        return f"dim={self.dim}"


class _OverDim(Module):
    """A function along one dimension."""

    def __init__(self, dim: int | None = None) -> None:
        """Take the dimension; None is PyTorch's old implicit choice, with a warning."""
        super().__init__()
        self.dim = dim

    def extra_repr(self) -> str:
        """Return the dimension."""
        return f"dim={self.dim}"


class Softmax(_OverDim):
    """exp(x) / sum(exp(x)) along `dim`."""

    def forward(self, input: Tensor) -> Tensor:
        """Return the softmax of `input`."""
        return F.softmax(input, self.dim)


class Softmin(_OverDim):
    """softmax(-x) along `dim`."""

    def forward(self, input: Tensor) -> Tensor:
        """Return the softmin of `input`."""
        return F.softmin(input, self.dim)


class LogSoftmax(_OverDim):
    """log(softmax(x)) along `dim`."""

    def forward(self, input: Tensor) -> Tensor:
        """Return the logarithm of the softmax of `input`."""
        return F.log_softmax(input, self.dim)


class Softmax2d(Module):
    """Softmax over the channels of (N, C, H, W) or (C, H, W)."""

    def forward(self, input: Tensor) -> Tensor:
        """Return the softmax of `input`."""
        if input.dim() not in (3, 4):
            raise ValueError(
                f"Softmax2d: expected input to be 3D or 4D, got {input.dim()}D instead"
            )
        return F.softmax(input, -3)
