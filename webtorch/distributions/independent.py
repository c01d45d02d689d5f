"""Batches taken as one event. May import floors 0 to 4."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Generic, TypeVar

from webtorch.distributions import constraints
from webtorch.distributions.distribution import Distribution
from webtorch.distributions.utils import _sum_rightmost, part
from webtorch.tensors.size import Size
from webtorch.tensors.tensor import Tensor

__all__ = ["Independent"]


D = TypeVar("D", bound=Distribution)


class Independent(Distribution, Generic[D]):
    """Another distribution whose last dims of the batch are one event: log_prob is summed over them."""

    arg_constraints: dict[str, constraints.Constraint] = {}
    _batched = ("base_dist",)
    _unbatched = ("reinterpreted_batch_ndims",)
    mean = part("base_dist.mean", "The mean of the base.")
    mode = part("base_dist.mode", "The mode of the base.")
    variance = part("base_dist.variance", "The variance of the base.")

    def __init__(
        self,
        base_distribution: D,
        reinterpreted_batch_ndims: int,
        validate_args: bool | None = None,
    ) -> None:
        rank = len(base_distribution.batch_shape)
        if reinterpreted_batch_ndims > rank:
            raise ValueError(
                "Expected reinterpreted_batch_ndims <= len(base_distribution.batch_shape), "
                f"actual {reinterpreted_batch_ndims} vs {rank}"
            )
        shape = base_distribution.batch_shape + base_distribution.event_shape
        cut = rank - reinterpreted_batch_ndims
        self.base_dist = base_distribution
        self.reinterpreted_batch_ndims = reinterpreted_batch_ndims
        super().__init__(shape[:cut], shape[cut:], validate_args=validate_args)

    @property
    def has_rsample(self) -> bool:
        """That of the base."""
        return self.base_dist.has_rsample

    @property
    def has_enumerate_support(self) -> bool:
        """That of the base, if nothing is taken together."""
        return self.reinterpreted_batch_ndims <= 0 and self.base_dist.has_enumerate_support

    @constraints.dependent_property
    def support(self) -> constraints.Constraint:
        """The base's, with the dims taken together as one event."""
        result = self.base_dist.support
        if self.reinterpreted_batch_ndims:
            result = constraints.independent(result, self.reinterpreted_batch_ndims)
        return result

    def sample(self, sample_shape: Sequence[int] = Size()) -> Tensor:
        """Return samples of the base, without gradient."""
        return self.base_dist.sample(sample_shape)

    def rsample(self, sample_shape: Sequence[int] = Size()) -> Tensor:
        """Return samples of the base, with gradients if it has them."""
        return self.base_dist.rsample(sample_shape)

    def log_prob(self, value: Tensor) -> Tensor:
        """Return the base's log_prob, summed over the dims taken together."""
        return _sum_rightmost(self.base_dist.log_prob(value), self.reinterpreted_batch_ndims)

    def entropy(self) -> Tensor:
        """Return the base's entropy in nats, summed over the dims taken together."""
        return _sum_rightmost(self.base_dist.entropy(), self.reinterpreted_batch_ndims)

    def enumerate_support(self, expand: bool = True) -> Tensor:
        """Return the base's values. Raises NotImplementedError if dims are taken together."""
        if self.reinterpreted_batch_ndims > 0:
            raise NotImplementedError("Enumeration over cartesian product is not implemented")
        return self.base_dist.enumerate_support(expand=expand)

    def __repr__(self) -> str:
        return f"{self.__class__.__name__}({self.base_dist}, {self.reinterpreted_batch_ndims})"
