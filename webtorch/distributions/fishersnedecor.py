"""Ratios of chi-square numbers. May import floors 0 to 4."""

from __future__ import annotations

import math
from collections.abc import Sequence

from webtorch.distributions import constraints
from webtorch.distributions.distribution import Distribution
from webtorch.distributions.gamma import Gamma
from webtorch.distributions.utils import Value, broadcast_all
from webtorch.functions import public as webtorch
from webtorch.tensors.size import Size
from webtorch.tensors.tensor import Tensor

__all__ = ["FisherSnedecor"]


class FisherSnedecor(Distribution):
    """The F distribution: (chi2(df1) / df1) / (chi2(df2) / df2)."""

    arg_constraints = {"df1": constraints.positive, "df2": constraints.positive}
    support = constraints.positive
    has_rsample = True
    _batched = ("df1", "df2", "_gamma1", "_gamma2")

    def __init__(self, df1: Value, df2: Value, validate_args: bool | None = None) -> None:
        self.df1, self.df2 = broadcast_all(df1, df2)
        self._gamma1 = Gamma(self.df1 * 0.5, self.df1)
        self._gamma2 = Gamma(self.df2 * 0.5, self.df2)
        super().__init__(self.df1.shape, validate_args=validate_args)

    @property
    def mean(self) -> Tensor:
        """`df2 / (df2 - 2)`; NaN for df2 <= 2."""
        return webtorch.where(self.df2 <= 2, math.nan, self.df2 / (self.df2 - 2))

    @property
    def mode(self) -> Tensor:
        """`(df1 - 2) / df1 * df2 / (df2 + 2)`; NaN for df1 <= 2."""
        mode = (self.df1 - 2) / self.df1 * self.df2 / (self.df2 + 2)
        return webtorch.where(self.df1 <= 2, math.nan, mode)

    @property
    def variance(self) -> Tensor:
        """The variance; NaN for df2 <= 4."""
        d1, d2 = self.df1, self.df2
        variance = 2 * d2.square() * (d1 + d2 - 2) / (d1 * (d2 - 2).square() * (d2 - 4))
        return webtorch.where(d2 <= 4, math.nan, variance)

    def rsample(self, sample_shape: Sequence[int] = Size()) -> Tensor:
        """Return samples with gradients: ratios of gamma numbers, kept above 0."""
        above, below = self._gamma1.rsample(sample_shape), self._gamma2.rsample(sample_shape)
        tiny = webtorch.finfo(below.dtype).tiny
        return (above / below.clamp(min=tiny)).clamp(min=tiny)

    def _log_prob(self, value: Tensor) -> Tensor:
        a, b = self.df1 * 0.5, self.df2 * 0.5
        ratio = self.df1 / self.df2
        constant = (a + b).lgamma() - a.lgamma() - b.lgamma()
        rising = a * ratio.log() + (a - 1) * value.log()
        return constant + rising - (a + b) * (ratio * value).log1p()
