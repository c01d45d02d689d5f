"""Largest values. May import floors 0 to 4."""

from __future__ import annotations

import math

from webtorch.distributions import constraints
from webtorch.distributions.transformed_distribution import TransformedDistribution
from webtorch.distributions.transforms import AffineTransform, ExpTransform
from webtorch.distributions.uniform import Uniform
from webtorch.distributions.utils import Value, broadcast_all, euler_constant, part
from webtorch.functions import public as webtorch
from webtorch.tensors.tensor import Tensor

__all__ = ["Gumbel"]


class Gumbel(TransformedDistribution):
    """loc - scale * log(-log(u)), u uniform: the limit of largest values."""

    arg_constraints = {"loc": constraints.real, "scale": constraints.positive}
    support = constraints.real
    _batched = ("loc", "scale")
    mode = part("loc", "The location.")

    def __init__(self, loc: Value, scale: Value, validate_args: bool | None = None) -> None:
        self.loc, self.scale = broadcast_all(loc, scale)
        limits = webtorch.finfo(self.loc.dtype)
        base = Uniform(
            webtorch.full_like(self.loc, limits.tiny),
            webtorch.full_like(self.loc, 1 - limits.eps),
            validate_args=validate_args,
        )
        flip = AffineTransform(loc=0, scale=-webtorch.ones_like(self.scale))
        final = AffineTransform(loc=loc, scale=-self.scale)
        log = ExpTransform().inv
        super().__init__(base, [log, flip, ExpTransform().inv, final], validate_args=validate_args)

    def _log_prob(self, value: Tensor) -> Tensor:
        y = (self.loc - value) / self.scale
        return y - y.exp() - self.scale.log()

    @property
    def mean(self) -> Tensor:
        """`loc + scale * (Euler's constant)`."""
        return self.loc + self.scale * euler_constant

    @property
    def stddev(self) -> Tensor:
        """`pi / sqrt(6) * scale`."""
        return math.pi / math.sqrt(6) * self.scale

    @property
    def variance(self) -> Tensor:
        """`(pi * scale) ** 2 / 6`."""
        return self.stddev.square()

    def entropy(self) -> Tensor:
        """Return the entropy in nats: log(scale) + 1 + (Euler's constant)."""
        return self.scale.log() + (1 + euler_constant)
