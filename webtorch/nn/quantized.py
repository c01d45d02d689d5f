"""Linear layers whose weights have 4 or 8 bits.

May import floors 0 to 4.

    import webtorch as torch
    from webtorch.nn.quantized import quantize_

    model = torch.nn.Sequential(torch.nn.Linear(64, 64))
    quantize_(model, bits=4)
    print(model(torch.ones(1, 64)).shape)
"""

from __future__ import annotations

from collections.abc import Callable

from webtorch.functions import public as webtorch
from webtorch.functions.quantize import (
    dequantize_weight,
    groups_of,
    quantize_weight,
    quantized_linear,
)
from webtorch.ir.dtype import DType
from webtorch.nn.linear import Linear
from webtorch.nn.module import Module
from webtorch.nn.parameter import Parameter
from webtorch.tensors.device import DeviceLike
from webtorch.tensors.tensor import Tensor

__all__ = ["QuantizedLinear", "quantize_"]

_BITS_PER_WORD = 32


class QuantizedLinear(Module):
    """`Linear` with a weight of 4 or 8 bits: y = x @ w.T + bias, computed in the type of x.

    The weight is a buffer, cut along the inputs into groups of `group_size` (-1: whole rows) that
    have a scale each. For inputs of a few rows the packed numbers are unpacked where they are used;
    for more rows the weight is unpacked for the time of the product. Gradients reach the input and
    the bias. Raises ValueError for a group size that does not divide `in_features`.
    """

    weight_packed: Tensor
    weight_scales: Tensor
    weight_zeros: Tensor | None

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        bits: int = 8,
        group_size: int = 64,
        device: DeviceLike = None,
        dtype: DType | None = None,
    ) -> None:
        super().__init__()
        self.in_features, self.out_features = in_features, out_features
        self.bits, self.group_size = bits, group_size
        groups = (out_features, groups_of(in_features, bits, group_size))
        words = in_features * bits // _BITS_PER_WORD
        packed = webtorch.zeros(out_features, words, dtype=webtorch.int32, device=device)
        self.register_buffer("weight_packed", packed)
        self.register_buffer("weight_scales", webtorch.ones(groups, device=device))
        zeros = webtorch.zeros(groups, device=device) if bits == 4 else None
        self.register_buffer("weight_zeros", zeros)
        given = webtorch.zeros(out_features, device=device, dtype=dtype) if bias else None
        self.register_parameter("bias", None if given is None else Parameter(given))

    @classmethod
    def from_linear(cls, linear: Linear, bits: int = 8, group_size: int = 64) -> QuantizedLinear:
        """Return a layer with the weight of `linear`, rounded, and its own bias."""
        weight = linear.weight
        made = cls(
            linear.in_features,
            linear.out_features,
            linear.bias is not None,
            bits,
            group_size,
            weight.device,
            weight.dtype,
        )
        made.weight_packed, made.weight_scales, made.weight_zeros = quantize_weight(
            weight, bits, group_size
        )
        made.bias = linear.bias
        made.train(linear.training)
        return made

    def dequantize(self) -> Tensor:
        """Return the weight (out_features, in_features) as float32."""
        weight: Tensor = dequantize_weight(
            self.weight_packed, self.weight_scales, self.weight_zeros, self.bits
        )
        return weight

    def forward(self, input: Tensor) -> Tensor:
        """Return the product of input (*, in_features) and the weight, plus the bias."""
        out: Tensor = quantized_linear(
            input, self.weight_packed, self.weight_scales, self.weight_zeros, self.bias, self.bits
        )
        return out

    def extra_repr(self) -> str:
        """Return the options, for printing."""
        return (
            f"in_features={self.in_features}, out_features={self.out_features}, "
            f"bias={self.bias is not None}, bits={self.bits}, group_size={self.group_size}"
        )


def quantize_(
    model: Module,
    bits: int = 8,
    group_size: int = 64,
    filter_fn: Callable[[Module, str], bool] | None = None,
) -> Module:
    """Replace every Linear inside `model` by a QuantizedLinear, in place, and return the model.

    `filter_fn(module, name)` chooses; by default all whose weight no other layer shares. A model that
    is a Linear itself is returned as a new layer. Raises ValueError, before anything is replaced,
    where the group size does not fit.
    """
    shared = _shared(model)

    def chosen(module: Module, name: str) -> bool:
        """Return whether a layer is replaced: the filter's choice, else every Linear that shares no weight."""
        if type(module) is not Linear:
            return False
        return id(module.weight) not in shared if filter_fn is None else filter_fn(module, name)

    if chosen(model, ""):
        assert isinstance(model, Linear)
        return QuantizedLinear.from_linear(model, bits, group_size)
    made: dict[int, QuantizedLinear] = {}
    found = [
        (parent, key, child)
        for name, parent in model.named_modules()
        for key, child in parent._modules.items()
        if isinstance(child, Linear) and chosen(child, f"{name}.{key}" if name else key)
    ]
    for _, _, child in found:
        groups_of(child.in_features, bits, group_size)
    for parent, key, child in found:
        # One layer in two places stays one layer.
        if id(child) not in made:
            made[id(child)] = QuantizedLinear.from_linear(child, bits, group_size)
        parent._modules[key] = made[id(child)]
    return model


def _shared(model: Module) -> set[int]:
    """Return which parameters more than one module has, such as a head tied to an embedding."""
    seen: set[int] = set()
    twice: set[int] = set()
    for module in model.modules():
        for parameter in module._parameters.values():
            if parameter is not None:
                (twice if id(parameter) in seen else seen).add(id(parameter))
    return twice
