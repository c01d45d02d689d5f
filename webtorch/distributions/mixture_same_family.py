"""Mixtures of distributions of one kind. May import floors 0 to 4."""

from __future__ import annotations

from collections.abc import Sequence

from webtorch.distributions import constraints
from webtorch.distributions.categorical import Categorical
from webtorch.distributions.constraints import MixtureSameFamilyConstraint
from webtorch.distributions.distribution import Distribution
from webtorch.functions import public as webtorch
from webtorch.tensors.size import Size
from webtorch.tensors.tensor import Tensor

__all__ = ["MixtureSameFamily"]


class MixtureSameFamily(Distribution):
    """One of the components along the last dim of `component_distribution`'s batch, chosen by a Categorical."""

    arg_constraints: dict[str, constraints.Constraint] = {}
    has_rsample = False
    _batched = ("_mixture_distribution", "_component_distribution")
    _unbatched = ("_num_component", "_event_ndims")

    def __init__(
        self,
        mixture_distribution: Categorical,
        component_distribution: Distribution,
        validate_args: bool | None = None,
    ) -> None:
        self._mixture_distribution = mixture_distribution
        self._component_distribution = component_distribution
        if not isinstance(mixture_distribution, Categorical):
            raise ValueError(
                " The Mixture distribution needs to be an  instance of torch.distributions.Categorical"
            )
        if not isinstance(component_distribution, Distribution):
            raise ValueError(
                "The Component distribution needs to be an instance of torch.distributions.Distribution"
            )
        chosen = mixture_distribution.batch_shape
        batch_shape = component_distribution.batch_shape[:-1]
        for a, b in zip(reversed(chosen), reversed(batch_shape), strict=False):
            if a != 1 and b != 1 and a != b:
                raise ValueError(
                    f"`mixture_distribution.batch_shape` ({chosen}) is not compatible with "
                    f"`component_distribution.batch_shape`({batch_shape})"
                )
        weights = mixture_distribution.logits.shape[-1]
        count = component_distribution.batch_shape[-1]
        if weights != count:
            raise ValueError(
                f"`mixture_distribution component` ({weights}) does not equal "
                f"`component_distribution.batch_shape[-1]` ({count})"
            )
        self._num_component = weights
        event_shape = component_distribution.event_shape
        self._event_ndims = len(event_shape)
        super().__init__(batch_shape, event_shape, validate_args=validate_args)

    @constraints.dependent_property
    def support(self) -> constraints.Constraint:
        """That of the components."""
        return MixtureSameFamilyConstraint(self._component_distribution.support)

    @property
    def mixture_distribution(self) -> Categorical:
        """The distribution of the component's number."""
        return self._mixture_distribution

    @property
    def component_distribution(self) -> Distribution:
        """The components, along the last dim of its batch."""
        return self._component_distribution

    def _weighted(self, values: Tensor) -> Tensor:
        """Return the weighted sum over components, whose dim stands before the event's."""
        probs = self._mixture_distribution.probs
        probs = probs.reshape(probs.shape + (1,) * self._event_ndims)
        return (probs * values).sum(-1 - self._event_ndims)

    @property
    def mean(self) -> Tensor:
        """The weighted mean of the components' means."""
        return self._weighted(self._component_distribution.mean)

    @property
    def variance(self) -> Tensor:
        """The weighted mean of the components' variances, plus the variance of their means."""
        away = self._component_distribution.mean - self._pad(self.mean)
        within = self._weighted(self._component_distribution.variance)
        return within + self._weighted(away.square())

    def cdf(self, x: Tensor) -> Tensor:
        """Return the weighted mean of the components' probabilities of being at most a value."""
        parts = self._component_distribution.cdf(self._pad(x))
        return (parts * self._mixture_distribution.probs).sum(-1)

    def log_prob(self, x: Tensor) -> Tensor:
        """Return the logarithm of the weighted mean of the components' densities; the value is checked."""
        if self._validate_args:
            self._validate_sample(x)
        parts = self._component_distribution.log_prob(self._pad(x))
        return (parts + self._mixture_distribution.logits.log_softmax(-1)).logsumexp(-1)

    def sample(self, sample_shape: Sequence[int] = Size()) -> Tensor:
        """Return samples without gradient: one of all components, of which the chosen one is taken."""
        with webtorch.no_grad():
            dim = len(sample_shape) + len(self.batch_shape)
            chosen = self._mixture_distribution.sample(sample_shape)
            parts = self._component_distribution.sample(sample_shape)
            index = chosen.reshape(chosen.shape + (1,) * (self._event_ndims + 1))
            index = index.expand((*parts.shape[:dim], 1, *self.event_shape))
            return parts.gather(dim, index).squeeze(dim)

    def _pad(self, x: Tensor) -> Tensor:
        return x.unsqueeze(-1 - self._event_ndims)

    def __repr__(self) -> str:
        return (
            f"MixtureSameFamily(\n  {self.mixture_distribution},\n  {self.component_distribution})"
        )
