"""Angles. May import floors 0 to 4."""

from __future__ import annotations

import math
from collections.abc import Sequence

from webtorch import special
from webtorch.distributions import constraints
from webtorch.distributions.distribution import Distribution
from webtorch.distributions.utils import Value, broadcast_all, lazy_property, part
from webtorch.functions import public as webtorch
from webtorch.functions.sampling import _sample_von_mises
from webtorch.tensors.size import Size
from webtorch.tensors.tensor import Tensor

__all__ = ["VonMises"]


class VonMises(Distribution):
    """Angles (in radians) around `loc`, of density in proportion to exp(concentration * cos(angle - loc))."""

    arg_constraints = {"loc": constraints.real, "concentration": constraints.positive}
    support = constraints.real
    has_rsample = False
    _batched = ("loc", "concentration")
    mean = mode = part("loc", "The location.")

    def __init__(self, loc: Value, concentration: Value, validate_args: bool | None = None) -> None:
        self.loc, self.concentration = broadcast_all(loc, concentration)
        super().__init__(self.loc.shape, Size(), validate_args)

    def _log_prob(self, value: Tensor) -> Tensor:
        k = self.concentration
        # log I0(k), whose exponential part cancels against the cosine's.
        bessel = special.i0e(k).log() + k
        return k * (value - self.loc).cos() - math.log(2 * math.pi) - bessel

    def sample(self, sample_shape: Sequence[int] = Size()) -> Tensor:
        """Return angles in [-pi, pi), without gradient, by rejection (Best and Fisher, 1979)."""
        with webtorch.no_grad():
            k = self.concentration.expand(self._extended_shape(sample_shape))
            angle = _sample_von_mises(k)
            return (angle + math.pi + self.loc) % (2 * math.pi) - math.pi

    @lazy_property
    def variance(self) -> Tensor:
        """The circular variance: 1 - I1(k) / I0(k)."""
        k = self.concentration
        return 1 - special.i1e(k) / special.i0e(k)
