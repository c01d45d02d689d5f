"""Ratios of chi-square numbers. May import floors 0 to 4."""

from __future__ import annotations

import math
from typing import Any

from webtorch.distributions import constraints
from webtorch.distributions.distribution import Distribution
from webtorch.distributions.gamma import Gamma
from webtorch.distributions.utils import broadcast_all
from webtorch.functions import public as webtorch
from webtorch.tensors.tensor import Size, Tensor

__all__ = ["FisherSnedecor"]


class FisherSnedecor(Distribution):
    """The F distribution: (chi2(df1) / df1) / (chi2(df2) / df2)."""

    arg_constraints = {"df1": constraints.positive, "df2": constraints.positive}
    support = constraints.positive
    has_rsample = True

    def __init__(self, df1: Any, df2: Any, validate_args: bool | None = None) -> None:
        self.df1, self.df2 = broadcast_all(df1, df2)
        self._gamma1 = Gamma(self.df1 * 0.5, self.df1)
        self._gamma2 = Gamma(self.df2 * 0.5, self.df2)
        super().__init__(self.df1.shape, validate_args=validate_args)

    def expand(self, batch_shape: Any, _instance: Any = None) -> Any:
        return self._expand(
            FisherSnedecor, batch_shape, _instance, "df1", "df2", "_gamma1", "_gamma2"
        )

    @property
    def mean(self) -> Tensor:
        return webtorch.where(self.df2 <= 2, math.nan, self.df2 / (self.df2 - 2))

    @property
    def mode(self) -> Tensor:
        mode = (self.df1 - 2) / self.df1 * self.df2 / (self.df2 + 2)
        return webtorch.where(self.df1 <= 2, math.nan, mode)

    @property
    def variance(self) -> Tensor:
        d1, d2 = self.df1, self.df2
        variance = 2 * d2.square() * (d1 + d2 - 2) / (d1 * (d2 - 2).square() * (d2 - 4))
        return webtorch.where(d2 <= 4, math.nan, variance)

    def rsample(self, sample_shape: Any = Size()) -> Tensor:
        above, below = self._gamma1.rsample(sample_shape), self._gamma2.rsample(sample_shape)
        tiny = webtorch.finfo(below.dtype).tiny
        return (above / below.clamp(min=tiny)).clamp(min=tiny)

    def log_prob(self, value: Tensor) -> Tensor:
        if self._validate_args:
            self._validate_sample(value)
        a, b = self.df1 * 0.5, self.df2 * 0.5
        ratio = self.df1 / self.df2
        constant = (a + b).lgamma() - a.lgamma() - b.lgamma()
        rising = a * ratio.log() + (a - 1) * value.log()
        return constant + rising - (a + b) * (ratio * value).log1p()
