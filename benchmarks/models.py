"""The networks that are trained, written once: `torch` is webtorch or PyTorch.

The CNN, the GPT and the MLP are those of the GPU figures; the digits network is the demo's.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True)
class Work:
    """A network to train: how it is built, and batches for it."""

    name: str
    build: Callable[[Any], Any]
    batch: Callable[[np.random.Generator], tuple[Array, Array]]
    lr: float = 1e-3


def mlp(torch: Any, *sizes: int) -> Any:
    """Return linear layers with relu between them."""
    nn = torch.nn
    layers: list[Any] = []
    for n_in, n_out in itertools.pairwise(sizes):
        layers += [nn.Linear(n_in, n_out), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def cnn(torch: Any, channels: tuple[int, ...], strides: tuple[int, ...], classes: int = 10) -> Any:
    """Return 3x3 convolutions with batch norm and relu, then an average and a linear layer."""
    nn = torch.nn
    layers: list[Any] = []
    for c_in, c_out, stride in zip((3, *channels), channels, strides):
        layers += [
            nn.Conv2d(c_in, c_out, 3, stride=stride, padding=1, bias=False),
            nn.BatchNorm2d(c_out),
            nn.ReLU(),
        ]
    return nn.Sequential(
        *layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels[-1], classes)
    )


def digits(torch: Any) -> Any:
    """Return the network of `webtorch demo digits`, without its dropout, whose numbers differ."""
    nn = torch.nn
    return nn.Sequential(
        nn.Conv2d(1, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(),
        nn.Conv2d(32, 64, 3, padding=1), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(64, 128, 3, padding=1), nn.BatchNorm2d(128), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(128 * 2 * 2, 128), nn.ReLU(), nn.Linear(128, 10),
    )  # fmt: skip


def gpt(torch: Any, layers: int, channels: int, heads: int, context: int, vocabulary: int) -> Any:
    """Return nanoGPT's network: pre-norm blocks, learned positions, tied embeddings, no dropout.

    Shapes: B batch, T context, C channels, H heads, V vocabulary.
    """
    nn, functional = torch.nn, torch.nn.functional

    class Attention(nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.qkv = nn.Linear(channels, 3 * channels)
            self.out = nn.Linear(channels, channels)

        def forward(self, x: Any) -> Any:
            B, T, C = x.shape
            q, k, v = (
                part.view(B, T, heads, C // heads).transpose(1, 2)
                for part in self.qkv(x).split(C, dim=2)
            )
            y = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
            return self.out(y.transpose(1, 2).contiguous().view(B, T, C))

    class Block(nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.norm_1 = nn.LayerNorm(channels)
            self.attention = Attention()
            self.norm_2 = nn.LayerNorm(channels)
            self.mlp = nn.Sequential(
                nn.Linear(channels, 4 * channels), nn.GELU(), nn.Linear(4 * channels, channels)
            )

        def forward(self, x: Any) -> Any:
            x = x + self.attention(self.norm_1(x))
            return x + self.mlp(self.norm_2(x))

    class GPT(nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.token = nn.Embedding(vocabulary, channels)
            self.position = nn.Embedding(context, channels)
            self.blocks = nn.ModuleList(Block() for _ in range(layers))
            self.norm = nn.LayerNorm(channels)
            self.head = nn.Linear(channels, vocabulary, bias=False)
            self.head.weight = self.token.weight
            for name, parameter in self.named_parameters():
                if parameter.dim() >= 2:
                    residual = name.endswith(("attention.out.weight", "mlp.2.weight"))
                    std = 0.02 / math.sqrt(2 * layers) if residual else 0.02
                    nn.init.normal_(parameter, mean=0.0, std=std)

        def forward(self, ids: Any) -> Any:
            positions = torch.arange(ids.shape[1], device=ids.device)
            x = self.token(ids) + self.position(positions)
            for block in self.blocks:
                x = block(x)
            return self.head(self.norm(x)).flatten(0, 1)

    return GPT()


def images(
    batch: int, channels: int, side: int, classes: int = 10
) -> Callable[[np.random.Generator], tuple[Array, Array]]:
    """Return a source of random pictures with random labels."""

    def make(rng: np.random.Generator) -> tuple[Array, Array]:
        x = rng.standard_normal((batch, channels, side, side), dtype=np.float32)
        return x, rng.integers(0, classes, batch)

    return make


def rows(
    batch: int, size: int, classes: int = 10
) -> Callable[[np.random.Generator], tuple[Array, Array]]:
    """Return a source of random vectors with random labels."""

    def make(rng: np.random.Generator) -> tuple[Array, Array]:
        return rng.standard_normal((batch, size), dtype=np.float32), rng.integers(0, classes, batch)

    return make


def characters(
    batch: int, context: int, vocabulary: int
) -> Callable[[np.random.Generator], tuple[Array, Array]]:
    """Return a source of random windows of text."""

    def make(rng: np.random.Generator) -> tuple[Array, Array]:
        text = rng.integers(0, vocabulary, (batch, context + 1))
        return np.ascontiguousarray(text[:, :-1]), text[:, 1:].reshape(-1)

    return make


def work(name: str, quick: bool) -> Work:
    """Return one of "digits", "mlp", "cnn", "gpt", "gpt-tiny", in sizes of seconds where `quick`."""
    match name, quick:
        case "gpt-tiny", False:
            return Work(
                "GPT 2 layers, d 64, 4 heads, T 64, batch 8",
                lambda t: gpt(t, 2, 64, 4, 64, 65),
                characters(8, 64, 65),
            )
        case "digits", _:
            return Work("digits CNN, batch 64", digits, images(8 if quick else 64, 1, 8))
        case "mlp", False:
            return Work(
                "MLP 784-1024-1024-10, batch 512",
                lambda t: mlp(t, 784, 1024, 1024, 10),
                rows(512, 784),
            )
        case "mlp", True:
            return Work("MLP 20-30-10, batch 8", lambda t: mlp(t, 20, 30, 10), rows(8, 20))
        case "cnn", False:
            return Work(
                "CNN 7 conv+bn+relu 64..512, 32x32x3, batch 256",
                lambda t: cnn(t, (64, 128, 128, 256, 256, 512, 512), (1, 2, 1, 2, 1, 2, 1)),
                images(256, 3, 32),
            )
        case "cnn", True:
            return Work(
                "CNN 3 conv+bn+relu 8..16, 8x8x3, batch 4",
                lambda t: cnn(t, (8, 16, 16), (1, 2, 1)),
                images(4, 3, 8),
            )
        case "gpt", False:
            return Work(
                "GPT 6 layers, d 384, 6 heads, T 256, batch 32",
                lambda t: gpt(t, 6, 384, 6, 256, 96),
                characters(32, 256, 96),
            )
        case "gpt" | "gpt-tiny", True:
            return Work(
                "GPT 2 layers, d 32, 2 heads, T 16, batch 2",
                lambda t: gpt(t, 2, 32, 2, 16, 96),
                characters(2, 16, 96),
            )
    raise ValueError(f"work: there is no {name!r}; choose from digits, mlp, cnn, gpt, gpt-tiny")
