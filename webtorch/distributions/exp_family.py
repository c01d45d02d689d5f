"""The base class of exponential families. May import floors 0 to 4."""

from __future__ import annotations

from typing import Any

from webtorch import autograd
from webtorch.distributions.distribution import Distribution
from webtorch.functions import public as webtorch
from webtorch.tensors.tensor import Tensor

__all__ = ["ExponentialFamily"]


class ExponentialFamily(Distribution):
    """A distribution of density exp(<t(x), theta> - F(theta) + k(x)).

    A subclass names theta (`_natural_params`), F (`_log_normalizer`) and the mean of k (`_mean_carrier_measure`); the
    entropy follows from them as a Bregman divergence (Nielsen and Nock, 2010), and so does kl_divergence.
    """

    @property
    def _natural_params(self) -> tuple[Tensor, ...]:
        raise NotImplementedError

    def _log_normalizer(self, *natural_params: Any) -> Tensor:
        raise NotImplementedError

    @property
    def _mean_carrier_measure(self) -> Tensor | float:
        raise NotImplementedError

    def entropy(self) -> Tensor:
        """Return the entropy: F(theta) - <theta, grad F(theta)> - the mean of k."""
        offset = -self._mean_carrier_measure
        natural = [p.detach().requires_grad_() for p in self._natural_params]
        with webtorch.enable_grad():
            normalizer = self._log_normalizer(*natural)
            slopes = autograd.grad(normalizer.sum(), natural, create_graph=True)
        result = offset + normalizer
        for p, slope in zip(natural, slopes, strict=True):
            assert slope is not None
            result = result - (p * slope).reshape((*self._batch_shape, -1)).sum(-1)
        return result
