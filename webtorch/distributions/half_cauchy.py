"""Sizes of Cauchy numbers. May import floors 0 to 4."""

from __future__ import annotations

import math

from webtorch.distributions.cauchy import Cauchy
from webtorch.distributions.half import Half
from webtorch.distributions.utils import Value, part
from webtorch.functions import public as webtorch
from webtorch.tensors.tensor import Tensor

__all__ = ["HalfCauchy"]


class HalfCauchy(Half):
    """|x| of a Cauchy number x around 0."""

    _batched = ()
    scale = part("base_dist.scale", "The scale: half of the numbers are below it.")
    variance = part("base_dist.variance", "Infinity.")

    def __init__(self, scale: Value, validate_args: bool | None = None) -> None:
        super().__init__(Cauchy(0, scale, validate_args=False), validate_args)

    @property
    def mean(self) -> Tensor:
        """Infinity."""
        return self._full(self.scale, math.inf)

    def _log_prob(self, value: Tensor) -> Tensor:
        value = webtorch.as_tensor(value, dtype=self.scale.dtype, device=self.scale.device)
        inside = self.base_dist.log_prob(value) + math.log(2)
        return webtorch.where(value >= 0, inside, -math.inf)
