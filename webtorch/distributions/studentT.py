"""Student's t distribution. May import floors 0 to 4."""

from __future__ import annotations

import math
from collections.abc import Sequence

from webtorch.distributions import constraints
from webtorch.distributions.chi2 import Chi2
from webtorch.distributions.distribution import Distribution
from webtorch.distributions.utils import Value, _standard_normal, broadcast_all, part
from webtorch.functions import public as webtorch
from webtorch.tensors.size import Size
from webtorch.tensors.tensor import Tensor

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
    _batched = ("df", "loc", "scale", "_chi2")
    mode = part("loc", "The location.")

    def __init__(
        self, df: Value, loc: Value = 0.0, scale: Value = 1.0, validate_args: bool | None = None
    ) -> None:
        self.df, self.loc, self.scale = broadcast_all(df, loc, scale)
        self._chi2 = Chi2(self.df)
        super().__init__(self.df.shape, validate_args=validate_args)

    @property
    def mean(self) -> Tensor:
        """`loc`; NaN for df <= 1."""
        return webtorch.where(self.df <= 1, math.nan, self.loc)

    @property
    def variance(self) -> Tensor:
        """`scale ** 2 * df / (df - 2)`; infinite for 1 < df <= 2, NaN for df <= 1."""
        wide = webtorch.where(self.df > 2, self.df, 3.0)
        finite = self.scale.square() * wide / (wide - 2)
        infinite = webtorch.where(self.df > 1, math.inf, math.nan)
        return webtorch.where(self.df > 2, finite, infinite.to(finite.dtype))

    def rsample(self, sample_shape: Sequence[int] = Size()) -> Tensor:
        """Return samples with gradients: normal numbers over roots of chi-square numbers."""
        shape = self._extended_shape(sample_shape)
        normal = _standard_normal(shape, dtype=self.df.dtype, device=self.df.device)
        spread = self._chi2.rsample(sample_shape) / self.df
        return self.loc + self.scale * (normal * spread.rsqrt())

    def _log_prob(self, value: Tensor) -> Tensor:
        y = (value - self.loc) / self.scale
        constant = self.scale.log() + 0.5 * self.df.log() + 0.5 * math.log(math.pi)
        constant = constant + (0.5 * self.df).lgamma() - (0.5 * (self.df + 1.0)).lgamma()
        return -0.5 * (self.df + 1.0) * (y.square() / self.df).log1p() - constant

    def entropy(self) -> Tensor:
        """Return the entropy in nats, by digamma functions."""
        half, more = 0.5 * self.df, 0.5 * (self.df + 1)
        log_beta = half.lgamma() + math.lgamma(0.5) - more.lgamma()
        slope = more * (more.digamma() - half.digamma())
        return self.scale.log() + slope + 0.5 * self.df.log() + log_beta
