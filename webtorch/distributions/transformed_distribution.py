"""Distributions of functions of samples. May import floors 0 to 4."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

from webtorch.distributions import constraints
from webtorch.distributions.distribution import Distribution
from webtorch.distributions.independent import Independent
from webtorch.distributions.transforms import ComposeTransform, Transform
from webtorch.distributions.utils import Value, _sum_rightmost
from webtorch.functions import public as webtorch
from webtorch.tensors.size import Size
from webtorch.tensors.tensor import Tensor

__all__ = ["TransformedDistribution"]


class TransformedDistribution(Distribution):
    """The distribution of transforms of a base's samples; log_prob subtracts the logarithms of their Jacobians."""

    arg_constraints: dict[str, constraints.Constraint] = {}
    _batched: tuple[str, ...] = ()
    _unbatched = ("transforms",)

    def __init__(
        self,
        base_distribution: Distribution,
        transforms: Transform | list[Transform],
        validate_args: bool | None = None,
    ) -> None:
        if isinstance(transforms, Transform):
            self.transforms = [transforms]
        elif isinstance(transforms, list):
            if not all(isinstance(t, Transform) for t in transforms):
                raise ValueError("transforms must be a Transform or a list of Transforms")
            self.transforms = transforms
        else:
            raise ValueError(f"transforms must be a Transform or list, but was {transforms}")
        shape = base_distribution.batch_shape + base_distribution.event_shape
        base_event_dim = len(base_distribution.event_shape)
        whole = ComposeTransform(self.transforms)
        if len(shape) < whole.domain.event_dim:
            raise ValueError(
                "base_distribution needs to have shape with size at least "
                f"{whole.domain.event_dim}, but got {shape}."
            )
        # Transforms with parameters of a batch make the base one too.
        forward_shape = Size(whole.forward_shape(shape))
        wide = Size(whole.inverse_shape(forward_shape))
        if shape != wide:
            base_distribution = base_distribution.expand(wide[: len(wide) - base_event_dim])
        extra = whole.domain.event_dim - base_event_dim
        if extra > 0:
            base_distribution = Independent(base_distribution, extra)
        self.base_dist: Any = base_distribution
        change = whole.codomain.event_dim - whole.domain.event_dim
        event_dim = max(whole.codomain.event_dim, base_event_dim + change)
        cut = len(forward_shape) - event_dim
        super().__init__(forward_shape[:cut], forward_shape[cut:], validate_args=validate_args)

    def expand(self, batch_shape: Sequence[int], _instance: Self | None = None) -> Self:
        """Return the distribution with its parameters, and those of its base, expanded to a batch shape."""
        new = super().expand(batch_shape, _instance)
        shape = new._batch_shape + self._event_shape
        for t in reversed(self.transforms):
            shape = Size(t.inverse_shape(shape))
        base_event_dim = len(self.base_dist.event_shape)
        new.base_dist = self.base_dist.expand(shape[: len(shape) - base_event_dim])
        return new

    @constraints.dependent_property(is_discrete=False)
    def support(self) -> constraints.Constraint:
        """The last transform's codomain, with the event's other dims taken together."""
        if not self.transforms:
            return self.base_dist.support
        support = self.transforms[-1].codomain
        extra = len(self.event_shape) - support.event_dim
        return constraints.independent(support, extra) if extra > 0 else support

    @property
    def has_rsample(self) -> bool:
        """That of the base."""
        return self.base_dist.has_rsample

    def _forward(self, x: Tensor) -> Tensor:
        for transform in self.transforms:
            x = transform(x)
        return x

    def sample(self, sample_shape: Sequence[int] = Size()) -> Tensor:
        """Return transforms of the base's samples, without gradient."""
        with webtorch.no_grad():
            return self._forward(self.base_dist.sample(sample_shape))

    def rsample(self, sample_shape: Sequence[int] = Size()) -> Tensor:
        """Return transforms of the base's samples, with gradients if the base has them."""
        return self._forward(self.base_dist.rsample(sample_shape))

    def _log_prob(self, value: Tensor) -> Tensor:
        event_dim = len(self.event_shape)
        log_prob: Value = 0.0
        y = value
        for transform in reversed(self.transforms):
            x = transform.inv(y)
            event_dim += transform.domain.event_dim - transform.codomain.event_dim
            term = transform.log_abs_det_jacobian(x, y)
            log_prob = log_prob - _sum_rightmost(term, event_dim - transform.domain.event_dim)
            y = x
        rest = event_dim - len(self.base_dist.event_shape)
        return log_prob + _sum_rightmost(self.base_dist.log_prob(y), rest)

    def _monotonize_cdf(self, value: Tensor) -> Tensor:
        """Return 1 - value where the transforms together fall."""
        sign: Tensor | int = 1
        for transform in self.transforms:
            sign = sign * transform.sign
        if isinstance(sign, int) and sign == 1:
            return value
        return sign * (value - 0.5) + 0.5

    def cdf(self, value: Tensor) -> Tensor:
        """Return the base's cumulative probability of the inverse; of 1 minus that, where the transforms fall."""
        for transform in reversed(self.transforms):
            value = transform.inv(value)
        if self._validate_args:
            self.base_dist._validate_sample(value)
        return self._monotonize_cdf(self.base_dist.cdf(value))

    def icdf(self, value: Tensor) -> Tensor:
        """Return transforms of the base's value of a cumulative probability."""
        return self._forward(self.base_dist.icdf(self._monotonize_cdf(value)))
