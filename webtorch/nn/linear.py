"""Linear layers: Identity, Linear, Bilinear. May import the tensor floor and nn's base files."""

from __future__ import annotations

import math

from webtorch.functions import public as webtorch
from webtorch.ir.dtype import DType
from webtorch.nn import functional as F
from webtorch.nn import init
from webtorch.nn.module import Module
from webtorch.nn.parameter import Parameter
from webtorch.tensors.device import DeviceLike
from webtorch.tensors.tensor import Tensor

__all__ = ["Bilinear", "Identity", "Linear"]


class Identity(Module):
    """Return the input; arguments of the constructor are ignored."""

    def __init__(self, *args: object, **kwargs: object) -> None:
        """Ignore every argument."""
        super().__init__()

    def forward(self, input: Tensor) -> Tensor:
        """Return `input`."""
        return input


class Linear(Module):
    """`y = x @ weight.T + bias`: (*, in_features) to (*, out_features).

    Both parameters start uniform in +-1/sqrt(in_features).
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        device: DeviceLike = None,
        dtype: DType | None = None,
    ) -> None:
        """Make weight (out_features, in_features) and, if `bias`, bias (out_features,)."""
        super().__init__()
        self.in_features = in_features
        self.out_features = out_features
        self.weight = Parameter(
            webtorch.empty((out_features, in_features), device=device, dtype=dtype)
        )
        if bias:
            self.bias = Parameter(webtorch.empty(out_features, device=device, dtype=dtype))
        else:
            self.register_parameter("bias", None)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw new initial values."""
        # a=sqrt(5) makes kaiming_uniform_ the bound 1/sqrt(fan_in), PyTorch's historic default.
        init.kaiming_uniform_(self.weight, a=math.sqrt(5))
        if self.bias is not None:
            bound = 1 / math.sqrt(self.in_features) if self.in_features > 0 else 0
            init.uniform_(self.bias, -bound, bound)

    def forward(self, input: Tensor) -> Tensor:
        """Return the affine image of the last dimension."""
        return F.linear(input, self.weight, self.bias)

    def extra_repr(self) -> str:
        """Return the sizes."""
        return (
            f"in_features={self.in_features}, out_features={self.out_features}, "
            f"bias={self.bias is not None}"
        )


class Bilinear(Module):
    """`y[k] = x1 @ weight[k] @ x2 + bias[k]`: (*, in1), (*, in2) to (*, out)."""

    def __init__(
        self,
        in1_features: int,
        in2_features: int,
        out_features: int,
        bias: bool = True,
        device: DeviceLike = None,
        dtype: DType | None = None,
    ) -> None:
        """Make weight (out, in1, in2) and, if `bias`, bias (out,)."""
        super().__init__()
        if in1_features <= 0:
            raise ValueError(f"in1_features must be > 0, but got {in1_features}")
        self.in1_features = in1_features
        self.in2_features = in2_features
        self.out_features = out_features
        self.weight = Parameter(
            webtorch.empty((out_features, in1_features, in2_features), device=device, dtype=dtype)
        )
        if bias:
            self.bias = Parameter(webtorch.empty(out_features, device=device, dtype=dtype))
        else:
            self.register_parameter("bias", None)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw new initial values."""
        bound = 1 / math.sqrt(self.in1_features)
        init.uniform_(self.weight, -bound, bound)
        if self.bias is not None:
            init.uniform_(self.bias, -bound, bound)

    def forward(self, input1: Tensor, input2: Tensor) -> Tensor:
        """Return the bilinear form of the two inputs."""
        return F.bilinear(input1, input2, self.weight, self.bias)

    def extra_repr(self) -> str:
        """Return the sizes."""
        return (
            f"in1_features={self.in1_features}, in2_features={self.in2_features}, "
            f"out_features={self.out_features}, bias={self.bias is not None}"
        )
