"""Packed tensors: weights of 2 to 8 bits as files hold them, products with them, and layers that keep them. Floor 5."""

from webtorch.ops.blocks import FORMATS
from webtorch.quantization import searched as _searched  # noqa: F401 - its formats are in the table
from webtorch.quantization.modules import PackedEmbedding, PackedLinear
from webtorch.quantization.packing import quantize
from webtorch.quantization.tensor import PackedTensor

__all__ = ["FORMATS", "PackedEmbedding", "PackedLinear", "PackedTensor", "quantize"]
