"""Language models of known shapes with random packed weights, as no files of trained ones are at hand."""

from __future__ import annotations

import numpy as np

import webtorch
from webtorch.llm.config import Config, Rope
from webtorch.llm.mixes import chooser
from webtorch.llm.model import Model
from webtorch.llm.weights import fill, gguf_name
from webtorch.quantization import FORMATS, PackedTensor

# Layers, width, inner width, heads, heads of keys, vocabulary: of Llama 3 8B and Qwen 2.5 0.5B.
SHAPES = {
    "8b": (32, 4096, 14336, 32, 8, 128256),
    "0.5b": (24, 896, 4864, 14, 2, 151936),
    "tiny": (2, 256, 512, 4, 2, 1024),
}


class RandomWeights:
    """Weights of no file: matrices of small random numbers, packed as Q4_K_M packs them, and norms of ones."""

    def __init__(self, config: Config, dtype: webtorch.dtype) -> None:
        self.config, self.dtype, self.nbytes = config, dtype, 0
        self.choose = chooser("Q4_K_M", config)

    def weight(self, name: str, empty: webtorch.Tensor) -> webtorch.Tensor | PackedTensor:
        """Return the weight of a name, of the shape of a tensor on the device "meta"."""
        if empty.ndim != 2:
            fill = webtorch.zeros if "bias" in name else webtorch.ones
            return fill(empty.shape, dtype=self.dtype)
        rows, columns = empty.shape
        form = FORMATS[self.choose(gguf_name(self.config, name), empty.shape) or "Q8_0"]
        # Bytes below 16 are halves, scales among them, below 0.001.
        count = rows * columns // form.elements * form.nbytes
        data = np.random.default_rng(len(name)).integers(0, 16, count, dtype=np.uint8)
        packed = PackedTensor.from_bytes(
            data.tobytes(), form.name, (rows, columns), dtype=self.dtype
        )
        if "embed" not in name or self.config.tie_word_embeddings:
            self.nbytes += packed.nbytes
        return packed


def build(shape: str, dtype: webtorch.dtype, layers: int = 0) -> tuple[Model, int]:
    """Return a model, and the bytes of weights that a token reads; with `layers`, of as many of them."""
    every, width, inner, heads, keys, vocabulary = SHAPES[shape]
    layers = layers or every
    config = Config(
        "llama", vocabulary, width, inner, layers, heads, keys, width // heads, 8192,
        rope=Rope(dim=width // heads, theta=500000.0), tie_word_embeddings=shape == "0.5b",
    )  # fmt: skip
    with webtorch.device("meta"):
        model = Model(config)
    weights = RandomWeights(config, dtype)
    fill(model, weights)
    return model.eval(), weights.nbytes
