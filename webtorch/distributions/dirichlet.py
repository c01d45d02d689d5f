"""Points of the simplex. May import floors 0 to 4."""

from __future__ import annotations

from collections.abc import Sequence

from webtorch.distributions import constraints
from webtorch.distributions.exp_family import ExponentialFamily
from webtorch.functions import public as webtorch
from webtorch.functions.sampling import _sample_dirichlet
from webtorch.tensors.tensor import Tensor

__all__ = ["Dirichlet"]


class Dirichlet(ExponentialFamily):
    """Positive numbers of sum 1, of density in proportion to the product of x ** (concentration - 1)."""

    arg_constraints = {"concentration": constraints.independent(constraints.positive, 1)}
    support = constraints.simplex
    has_rsample = True
    _batched = ("concentration",)

    def __init__(self, concentration: Tensor, validate_args: bool | None = None) -> None:
        if concentration.dim() < 1:
            raise ValueError("`concentration` parameter must be at least one-dimensional.")
        self.concentration = concentration
        shape = concentration.shape
        super().__init__(shape[:-1], shape[-1:], validate_args=validate_args)

    def rsample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        """Return samples with gradients: gamma numbers divided by their sum."""
        shape = self._extended_shape(sample_shape)
        return _sample_dirichlet(self.concentration.expand(shape))

    def _log_prob(self, value: Tensor) -> Tensor:
        c = self.concentration
        return (c - 1.0).xlogy(value).sum(-1) + c.sum(-1).lgamma() - c.lgamma().sum(-1)

    @property
    def mean(self) -> Tensor:
        """`concentration / sum(concentration)`."""
        return self.concentration / self.concentration.sum(-1, True)

    @property
    def mode(self) -> Tensor:
        """`(concentration - 1)` where positive, over its sum; a corner if all concentrations are below 1."""
        above = (self.concentration - 1).clamp(min=0.0)
        inside = above / above.sum(-1, True)
        # Where all concentrations are below 1: a corner, the first one since all are as likely.
        corner = webtorch.zeros_like(above)
        corner[..., 0] = 1.0
        return webtorch.where((self.concentration < 1).all(-1, keepdim=True), corner, inside)

    @property
    def variance(self) -> Tensor:
        """Variances of the single numbers: mean * (1 - mean) / (sum(concentration) + 1)."""
        c, total = self.concentration, self.concentration.sum(-1, True)
        return c * (total - c) / (total.square() * (total + 1))

    def entropy(self) -> Tensor:
        """Return the entropy in nats, by digamma functions; of the batch's shape."""
        c, total = self.concentration, self.concentration.sum(-1)
        inner = ((c - 1.0) * c.digamma()).sum(-1)
        rest = (c.shape[-1] - total) * total.digamma()
        return c.lgamma().sum(-1) - total.lgamma() - rest - inner

    @property
    def _natural_params(self) -> tuple[Tensor, ...]:
        return (self.concentration,)

    def _log_normalizer(self, x: Tensor) -> Tensor:
        return x.lgamma().sum(-1) - x.sum(-1).lgamma()
