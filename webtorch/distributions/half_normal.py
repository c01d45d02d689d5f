"""Sizes of normal numbers. May import floors 0 to 4."""

from __future__ import annotations

import math

from webtorch.distributions.half import Half
from webtorch.distributions.normal import Normal
from webtorch.distributions.utils import Value, part
from webtorch.functions import public as webtorch
from webtorch.tensors.tensor import Tensor

__all__ = ["HalfNormal"]


class HalfNormal(Half):
    """|x| of a normal number x around 0, of standard deviation `scale`."""

    _batched = ()
    scale = part("base_dist.scale", "The standard deviation of the normal number.")

    def __init__(self, scale: Value, validate_args: bool | None = None) -> None:
        super().__init__(Normal(0, scale, validate_args=False), validate_args)

    @property
    def mean(self) -> Tensor:
        """`scale * sqrt(2 / pi)`."""
        return self.scale * math.sqrt(2 / math.pi)

    @property
    def variance(self) -> Tensor:
        """`scale ** 2 * (1 - 2 / pi)`."""
        return self.scale.square() * (1 - 2 / math.pi)

    def _log_prob(self, value: Tensor) -> Tensor:
        inside = self.base_dist.log_prob(value) + math.log(2)
        return webtorch.where(value >= 0, inside, -math.inf)
