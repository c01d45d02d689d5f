"""Dropout layers. May import the tensor floor and nn's base files."""

from __future__ import annotations

from webtorch.nn import functional as F
from webtorch.nn.module import Module
from webtorch.tensors.tensor import Tensor

__all__ = [
    "AlphaDropout",
    "Dropout",
    "Dropout1d",
    "Dropout2d",
    "Dropout3d",
    "FeatureAlphaDropout",
]


class _DropoutNd(Module):
    """Drop with probability `p` in training mode; do nothing in eval mode."""

    def __init__(self, p: float = 0.5, inplace: bool = False) -> None:
        """Take the probability of an element, or a channel, to become 0."""
        super().__init__()
        if p < 0 or p > 1:
            raise ValueError(f"dropout probability has to be between 0 and 1, but got {p}")
        self.p = p
        self.inplace = inplace

    def extra_repr(self) -> str:
        """Return the options."""
        return f"p={self.p}, inplace={self.inplace}"


class Dropout(_DropoutNd):
    """Set elements to 0 and scale the rest. Hinton et al., 2012."""

    def forward(self, input: Tensor) -> Tensor:
        """Return the input with elements dropped."""
        return F.dropout(input, self.p, self.training, self.inplace)


class Dropout1d(_DropoutNd):
    """Set whole channels of (N, C, L) to 0 and scale the rest."""

    def forward(self, input: Tensor) -> Tensor:
        """Return the input with channels dropped."""
        return F.dropout1d(input, self.p, self.training, self.inplace)


class Dropout2d(_DropoutNd):
    """Set whole channels of (N, C, H, W) to 0 and scale the rest."""

    def forward(self, input: Tensor) -> Tensor:
        """Return the input with channels dropped."""
        return F.dropout2d(input, self.p, self.training, self.inplace)


class Dropout3d(_DropoutNd):
    """Set whole channels of (N, C, D, H, W) to 0 and scale the rest."""

    def forward(self, input: Tensor) -> Tensor:
        """Return the input with channels dropped."""
        return F.dropout3d(input, self.p, self.training, self.inplace)


class AlphaDropout(_DropoutNd):
    """Dropout that keeps the mean and variance of SELU's outputs. Klambauer et al., 2017."""

    def forward(self, input: Tensor) -> Tensor:
        """Return the input with elements dropped."""
        return F.alpha_dropout(input, self.p, self.training)


class FeatureAlphaDropout(_DropoutNd):
    """AlphaDropout of whole channels."""

    def forward(self, input: Tensor) -> Tensor:
        """Return the input with channels dropped."""
        return F.feature_alpha_dropout(input, self.p, self.training)
