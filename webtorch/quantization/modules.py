"""Layers whose weights are packed. Floor 5."""

from __future__ import annotations

from typing import Any

from webtorch.ir.dtype import uint8
from webtorch.nn.module import Module
from webtorch.nn.parameter import Parameter
from webtorch.quantization.tensor import PackedTensor, laid
from webtorch.tensors.tensor import Tensor


class _Packed(Module):
    """A layer with one packed matrix, whose bytes are a buffer: `weight` is the packed tensor."""

    blocks: Tensor

    def __init__(self, weight: PackedTensor) -> None:
        super().__init__()
        self.format, self.shape, self.dtype = weight.format, tuple(weight.shape), weight.dtype
        self.register_buffer("blocks", weight.blocks)

    @property
    def weight(self) -> PackedTensor:
        """The packed matrix."""
        return PackedTensor.over(self.blocks, self.format, self.shape, self.dtype)

    def _apply(self, fn: Any, recurse: bool = True) -> Any:
        super()._apply(fn, recurse)
        # Other devices read the bytes in other units.
        self.blocks = self.weight.blocks
        return self

    def _save_to_state_dict(
        self, destination: dict[str, Any], prefix: str, keep_vars: bool
    ) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        destination[f"{prefix}blocks"] = self.weight.bytes()

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *rest: Any) -> None:
        key = f"{prefix}blocks"
        given = state_dict.get(key)
        if isinstance(given, Tensor) and given.dtype is uint8:
            weight = self.weight
            if given.numel() == weight.nbytes:
                state_dict[key] = laid(given.to(weight.device).reshape(-1), weight.form)
        try:
            super()._load_from_state_dict(state_dict, prefix, *rest)
        finally:
            if given is not None:
                state_dict[key] = given

    def extra_repr(self) -> str:
        """Return the format and the sizes, for printing."""
        return f"{self.shape}, format={self.format}"


class PackedLinear(_Packed):
    """`Linear` with a packed weight (out_features, in_features): y = x @ weight.T + bias, in the type of x.

    Gradients reach the input and the bias. Its state has the bytes of the blocks, "blocks": uint8 (out_features, bytes
    of a row), and the bias.
    """

    def __init__(self, weight: PackedTensor, bias: Tensor | None = None) -> None:
        """Raises ValueError for a weight that is no matrix."""
        if weight.ndim != 2:
            raise ValueError(f"PackedLinear: the weight is a matrix, not of shape {weight.shape}")
        super().__init__(weight)
        self.out_features, self.in_features = self.shape
        given = None if bias is None or isinstance(bias, Parameter) else Parameter(bias)
        self.register_parameter("bias", bias if isinstance(bias, Parameter) else given)

    def forward(self, input: Tensor) -> Tensor:
        """Return the product of input (*, in_features) and the weight, plus the bias."""
        return self.weight.linear(input, self.bias)


class PackedEmbedding(_Packed):
    """`Embedding` with a packed table (num_embeddings, embedding_dim): the rows asked for are unpacked."""

    def __init__(self, weight: PackedTensor) -> None:
        """Raises ValueError for a table that is no matrix."""
        if weight.ndim != 2:
            raise ValueError(f"PackedEmbedding: the table is a matrix, not of shape {weight.shape}")
        super().__init__(weight)
        self.num_embeddings, self.embedding_dim = self.shape

    def forward(self, input: Tensor) -> Tensor:
        """Return the rows at the positions `input` (*): (*, embedding_dim)."""
        return self.weight.embedding(input)
