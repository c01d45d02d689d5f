"""Normal vectors whose covariance is a product of narrow matrices and a diagonal. May import floors 0 to 4."""

from __future__ import annotations

import math
from collections.abc import Sequence

from webtorch import linalg
from webtorch.distributions import constraints
from webtorch.distributions.distribution import Distribution
from webtorch.distributions.multivariate_normal import _batch_mahalanobis, _batch_mv, _log_diagonal
from webtorch.distributions.utils import _standard_normal, lazy_property, part
from webtorch.functions import public as webtorch
from webtorch.tensors.size import Size
from webtorch.tensors.tensor import Tensor

__all__ = ["LowRankMultivariateNormal"]


def _plus_one(matrix: Tensor) -> Tensor:
    return matrix + webtorch.eye(matrix.shape[-1], dtype=matrix.dtype, device=matrix.device)


def _batch_capacitance_tril(W: Tensor, D: Tensor) -> Tensor:
    """Return the Cholesky factor of I + W^T D^-1 W, the small matrix of Woodbury's identity."""
    return linalg.cholesky(_plus_one((W.mT / D.unsqueeze(-2)) @ W))


def _batch_lowrank_logdet(W: Tensor, D: Tensor, capacitance_tril: Tensor) -> Tensor:
    """Return log |W W^T + D| by the determinant lemma."""
    return 2 * _log_diagonal(capacitance_tril) + D.log().sum(-1)


def _batch_lowrank_mahalanobis(W: Tensor, D: Tensor, x: Tensor, capacitance_tril: Tensor) -> Tensor:
    """Return x^T (W W^T + D)^-1 x by Woodbury's identity."""
    inner = _batch_mv(W.mT / D.unsqueeze(-2), x)
    return (x.square() / D).sum(-1) - _batch_mahalanobis(capacitance_tril, inner)


class LowRankMultivariateNormal(Distribution):
    """Normal vectors of covariance cov_factor @ cov_factor.T + diag(cov_diag). No large matrix is inverted."""

    arg_constraints = {
        "loc": constraints.real_vector,
        "cov_factor": constraints.independent(constraints.real, 2),
        "cov_diag": constraints.independent(constraints.positive, 1),
    }
    support = constraints.real_vector
    has_rsample = True
    _batched = ("loc", "cov_diag", "cov_factor")
    _unbatched = ("_unbroadcasted_cov_factor", "_unbroadcasted_cov_diag", "_capacitance_tril")
    mean = mode = part("loc", "The mean.")

    def __init__(
        self, loc: Tensor, cov_factor: Tensor, cov_diag: Tensor, validate_args: bool | None = None
    ) -> None:
        if loc.dim() < 1:
            raise ValueError("loc must be at least one-dimensional.")
        event_shape = loc.shape[-1:]
        if cov_factor.dim() < 2:
            raise ValueError(
                "cov_factor must be at least two-dimensional, with optional leading batch dimensions"
            )
        if cov_factor.shape[-2:-1] != event_shape:
            raise ValueError(
                f"cov_factor must be a batch of matrices with shape {event_shape[0]} x m"
            )
        if cov_diag.shape[-1:] != event_shape:
            raise ValueError(f"cov_diag must be a batch of vectors with shape {event_shape}")
        try:
            mean, self.cov_factor, diagonal = webtorch.broadcast_tensors(
                loc.unsqueeze(-1), cov_factor, cov_diag.unsqueeze(-1)
            )
        except RuntimeError as e:
            raise ValueError(
                f"Incompatible batch shapes: loc {loc.shape}, cov_factor {cov_factor.shape}, cov_diag {cov_diag.shape}"
            ) from e
        self.loc, self.cov_diag = mean[..., 0], diagonal[..., 0]
        self._unbroadcasted_cov_factor = cov_factor
        self._unbroadcasted_cov_diag = cov_diag
        self._capacitance_tril = _batch_capacitance_tril(cov_factor, cov_diag)
        super().__init__(self.loc.shape[:-1], event_shape, validate_args=validate_args)

    @lazy_property
    def variance(self) -> Tensor:
        """The diagonal of the covariance."""
        whole = self._unbroadcasted_cov_factor.square().sum(-1) + self._unbroadcasted_cov_diag
        return whole.expand(self._batch_shape + self._event_shape)

    def _matrix(self, one: Tensor) -> Tensor:
        return one.expand(self._batch_shape + self._event_shape + self._event_shape)

    @lazy_property
    def scale_tril(self) -> Tensor:
        """The Cholesky factor of the covariance."""
        root = self._unbroadcasted_cov_diag.sqrt().unsqueeze(-1)
        scaled = self._unbroadcasted_cov_factor / root
        return self._matrix(root * linalg.cholesky(_plus_one(scaled @ scaled.mT)))

    @lazy_property
    def covariance_matrix(self) -> Tensor:
        """The covariance."""
        factor = self._unbroadcasted_cov_factor
        return self._matrix(factor @ factor.mT + self._unbroadcasted_cov_diag.diag_embed())

    @lazy_property
    def precision_matrix(self) -> Tensor:
        """The inverse of the covariance, by Woodbury's identity."""
        diagonal = self._unbroadcasted_cov_diag
        scaled = self._unbroadcasted_cov_factor.mT / diagonal.unsqueeze(-2)
        a = linalg.solve_triangular(self._capacitance_tril, scaled, upper=False)
        return self._matrix(diagonal.reciprocal().diag_embed() - a.mT @ a)

    def rsample(self, sample_shape: Sequence[int] = Size()) -> Tensor:
        """Return samples with gradients: loc + cov_factor @ e + sqrt(cov_diag) * f, e and f standard normal."""
        shape = self._extended_shape(sample_shape)
        dtype, device = self.loc.dtype, self.loc.device
        narrow = _standard_normal(shape[:-1] + self.cov_factor.shape[-1:], dtype, device)
        wide = _standard_normal(shape, dtype, device)
        shift = _batch_mv(self._unbroadcasted_cov_factor, narrow)
        return self.loc + shift + self._unbroadcasted_cov_diag.sqrt() * wide

    def _log_det(self) -> Tensor:
        return _batch_lowrank_logdet(
            self._unbroadcasted_cov_factor, self._unbroadcasted_cov_diag, self._capacitance_tril
        )

    def _log_prob(self, value: Tensor) -> Tensor:
        distance = _batch_lowrank_mahalanobis(
            self._unbroadcasted_cov_factor,
            self._unbroadcasted_cov_diag,
            value - self.loc,
            self._capacitance_tril,
        )
        constant = self._event_shape[0] * math.log(2 * math.pi)
        return -0.5 * (constant + self._log_det() + distance)

    def entropy(self) -> Tensor:
        """Return the entropy in nats, of the batch's shape."""
        constant = self._event_shape[0] * (1.0 + math.log(2 * math.pi))
        return (0.5 * (constant + self._log_det())).expand(self._batch_shape)
