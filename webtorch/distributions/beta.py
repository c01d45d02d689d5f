"""Numbers between 0 and 1. May import floors 0 to 4."""

from __future__ import annotations

from collections.abc import Sequence
from numbers import Number

from webtorch.distributions import constraints
from webtorch.distributions.dirichlet import Dirichlet
from webtorch.distributions.exp_family import ExponentialFamily
from webtorch.distributions.utils import Value, broadcast_all
from webtorch.functions import public as webtorch
from webtorch.tensors.tensor import Tensor

__all__ = ["Beta"]


class Beta(ExponentialFamily):
    """Density in proportion to x ** (concentration1 - 1) * (1 - x) ** (concentration0 - 1)."""

    arg_constraints = {
        "concentration1": constraints.positive,
        "concentration0": constraints.positive,
    }
    support = constraints.unit_interval
    has_rsample = True
    _batched = ("_dirichlet",)

    def __init__(
        self, concentration1: Value, concentration0: Value, validate_args: bool | None = None
    ) -> None:
        if isinstance(concentration1, Number) and isinstance(concentration0, Number):
            both = webtorch.tensor([float(concentration1), float(concentration0)])
        else:
            both = webtorch.stack(broadcast_all(concentration1, concentration0), -1)
        self._dirichlet = Dirichlet(both, validate_args=validate_args)
        super().__init__(self._dirichlet._batch_shape, validate_args=validate_args)

    @property
    def concentration1(self) -> Tensor:
        """The exponent of x, plus 1."""
        return self._dirichlet.concentration[..., 0]

    @property
    def concentration0(self) -> Tensor:
        """The exponent of 1 - x, plus 1."""
        return self._dirichlet.concentration[..., 1]

    @property
    def mean(self) -> Tensor:
        """`concentration1 / (concentration1 + concentration0)`."""
        return self.concentration1 / (self.concentration1 + self.concentration0)

    @property
    def mode(self) -> Tensor:
        """`(concentration1 - 1) / (both - 2)` where both are above 1; else an end of the interval."""
        return self._dirichlet.mode[..., 0]

    @property
    def variance(self) -> Tensor:
        """`concentration1 * concentration0 / (both ** 2 * (both + 1))`."""
        total = self.concentration1 + self.concentration0
        return self.concentration1 * self.concentration0 / (total.square() * (total + 1))

    def rsample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        """Return samples with gradients: the first numbers of Dirichlet pairs."""
        return self._dirichlet.rsample(sample_shape).select(-1, 0)

    def _log_prob(self, value: Tensor) -> Tensor:
        return self._dirichlet.log_prob(webtorch.stack([value, 1.0 - value], -1))

    def entropy(self) -> Tensor:
        """Return the entropy in nats, by digamma functions."""
        return self._dirichlet.entropy()

    @property
    def _natural_params(self) -> tuple[Tensor, ...]:
        return (self.concentration1, self.concentration0)

    def _log_normalizer(self, x: Tensor, y: Tensor) -> Tensor:
        return x.lgamma() + y.lgamma() - (x + y).lgamma()
