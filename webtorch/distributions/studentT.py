"""Student's t distribution. May import floors 0 to 4."""

from __future__ import annotations

import math
from typing import Any

from webtorch.distributions import constraints
from webtorch.distributions.chi2 import Chi2
from webtorch.distributions.distribution import Distribution
from webtorch.distributions.utils import _standard_normal, broadcast_all
from webtorch.functions import public as webtorch
from webtorch.tensors.tensor import Size, Tensor

__all__ = ["StudentT"]


class StudentT(Distribution):
    """loc + scale * (a normal number) / sqrt(chi2(df) / df)."""

    arg_constraints = {
        "df": constraints.positive,
        "loc": constraints.real,
        "scale": constraints.positive,
    }
    support = constraints.real
    has_rsample = True

    def __init__(
        self, df: Any, loc: Any = 0.0, scale: Any = 1.0, validate_args: bool | None = None
    ) -> None:
        self.df, self.loc, self.scale = broadcast_all(df, loc, scale)
        self._chi2 = Chi2(self.df)
        super().__init__(self.df.shape, validate_args=validate_args)

    def expand(self, batch_shape: Any, _instance: Any = None) -> Any:
        return self._expand(StudentT, batch_shape, _instance, "df", "loc", "scale", "_chi2")

    @property
    def mean(self) -> Tensor:
        return webtorch.where(self.df <= 1, math.nan, self.loc)

    @property
    def mode(self) -> Tensor:
        return self.loc

    @property
    def variance(self) -> Tensor:
        wide = webtorch.where(self.df > 2, self.df, 3.0)
        finite = self.scale.square() * wide / (wide - 2)
        infinite = webtorch.where(self.df > 1, math.inf, math.nan)
        return webtorch.where(self.df > 2, finite, infinite.to(finite.dtype))

    def rsample(self, sample_shape: Any = Size()) -> Tensor:
        shape = self._extended_shape(sample_shape)
        normal = _standard_normal(shape, dtype=self.df.dtype, device=self.df.device)
        spread = self._chi2.rsample(sample_shape) / self.df
        return self.loc + self.scale * (normal * spread.rsqrt())

    def log_prob(self, value: Tensor) -> Tensor:
        if self._validate_args:
            self._validate_sample(value)
        y = (value - self.loc) / self.scale
        constant = self.scale.log() + 0.5 * self.df.log() + 0.5 * math.log(math.pi)
        constant = constant + (0.5 * self.df).lgamma() - (0.5 * (self.df + 1.0)).lgamma()
        return -0.5 * (self.df + 1.0) * (y.square() / self.df).log1p() - constant

    def entropy(self) -> Tensor:
        half, more = 0.5 * self.df, 0.5 * (self.df + 1)
        log_beta = half.lgamma() + math.lgamma(0.5) - more.lgamma()
        slope = more * (more.digamma() - half.digamma())
        return self.scale.log() + slope + 0.5 * self.df.log() + log_beta
