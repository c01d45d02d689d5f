"""Normal vectors. May import floors 0 to 4."""

from __future__ import annotations

import math
from collections.abc import Sequence

from webtorch import linalg
from webtorch.distributions import constraints
from webtorch.distributions.distribution import Distribution
from webtorch.distributions.utils import _standard_normal, lazy_property, part
from webtorch.functions import public as webtorch
from webtorch.tensors.size import Size
from webtorch.tensors.tensor import Tensor

__all__ = ["MultivariateNormal"]


def _batch_mv(bmat: Tensor, bvec: Tensor) -> Tensor:
    """Return products of matrices and vectors, broadcast."""
    return (bmat @ bvec.unsqueeze(-1)).squeeze(-1)


def _batch_mahalanobis(bL: Tensor, bx: Tensor) -> Tensor:
    """Return |L^-1 x| ** 2. Dims of bx before the batch of bL become columns of one system."""
    outer = bx.dim() - 1 - (bL.dim() - 2)
    if outer <= 0:
        solved = linalg.solve_triangular(bL, bx.unsqueeze(-1), upper=False)
        return solved.squeeze(-1).square().sum(-1)
    columns = bx.reshape((-1, *bx.shape[outer:])).movedim(0, -1)
    solved = linalg.solve_triangular(bL, columns, upper=False)
    return solved.square().sum(-2).movedim(-1, 0).reshape(bx.shape[:-1])


def _log_diagonal(matrix: Tensor) -> Tensor:
    return matrix.diagonal(dim1=-2, dim2=-1).log().sum(-1)


def _precision_to_scale_tril(P: Tensor) -> Tensor:
    """Return the Cholesky factor of P^-1 without computing P^-1: that of P turned around, inverted."""
    factor = linalg.cholesky(P.flip((-2, -1))).flip((-2, -1)).mT
    identity = webtorch.eye(P.shape[-1], dtype=P.dtype, device=P.device)
    return linalg.solve_triangular(factor, identity, upper=False)


class OfMatrix(Distribution):
    """What follows from a Cholesky factor of a covariance, which may have fewer batch dims than the distribution."""

    _unbroadcasted_scale_tril: Tensor

    def _matrix(self, one: Tensor) -> Tensor:
        return one.expand(self._batch_shape + 2 * self._event_shape[-1:])

    @lazy_property
    def scale_tril(self) -> Tensor:
        """The Cholesky factor of the covariance."""
        return self._matrix(self._unbroadcasted_scale_tril)

    @lazy_property
    def covariance_matrix(self) -> Tensor:
        """The covariance."""
        factor = self._unbroadcasted_scale_tril
        return self._matrix(factor @ factor.mT)

    @lazy_property
    def precision_matrix(self) -> Tensor:
        """The inverse of the covariance."""
        return self._matrix(webtorch.cholesky_inverse(self._unbroadcasted_scale_tril))


class MultivariateNormal(OfMatrix):
    """Normal vectors of mean `loc`, and of one of covariance_matrix, precision_matrix (its inverse), scale_tril.

    scale_tril, the Cholesky factor of the covariance, is the cheapest: the others are factored first.
    """

    arg_constraints = {
        "loc": constraints.real_vector,
        "covariance_matrix": constraints.positive_definite,
        "precision_matrix": constraints.positive_definite,
        "scale_tril": constraints.lower_cholesky,
    }
    support = constraints.real_vector
    has_rsample = True
    _batched = ("loc", "covariance_matrix", "scale_tril", "precision_matrix")
    _unbatched = ("_unbroadcasted_scale_tril",)
    mean = mode = part("loc", "The mean.")

    def __init__(
        self,
        loc: Tensor,
        covariance_matrix: Tensor | None = None,
        precision_matrix: Tensor | None = None,
        scale_tril: Tensor | None = None,
        validate_args: bool | None = None,
    ) -> None:
        if loc.dim() < 1:
            raise ValueError("loc must be at least one-dimensional.")
        name, matrix = _one_matrix(covariance_matrix, precision_matrix, scale_tril, ValueError)
        if matrix.dim() < 2:
            raise ValueError(
                f"{name} must be at least two-dimensional, with optional leading batch dimensions"
            )
        batch_shape = webtorch.broadcast_shapes(matrix.shape[:-2], loc.shape[:-1])
        setattr(self, name, matrix.expand((*batch_shape, -1, -1)))
        self.loc = loc.expand((*batch_shape, -1))
        super().__init__(Size(batch_shape), self.loc.shape[-1:], validate_args=validate_args)
        self._unbroadcasted_scale_tril = _factor(name, matrix)

    @property
    def variance(self) -> Tensor:
        """The diagonal of the covariance."""
        squares = self._unbroadcasted_scale_tril.square().sum(-1)
        return squares.expand(self._batch_shape + self._event_shape)

    def rsample(self, sample_shape: Sequence[int] = Size()) -> Tensor:
        """Return samples with gradients: loc + scale_tril @ (standard normal vectors)."""
        shape = self._extended_shape(sample_shape)
        eps = _standard_normal(shape, dtype=self.loc.dtype, device=self.loc.device)
        return self.loc + _batch_mv(self._unbroadcasted_scale_tril, eps)

    def _log_prob(self, value: Tensor) -> Tensor:
        distance = _batch_mahalanobis(self._unbroadcasted_scale_tril, value - self.loc)
        constant = self._event_shape[0] * math.log(2 * math.pi)
        return -0.5 * (constant + distance) - _log_diagonal(self._unbroadcasted_scale_tril)

    def entropy(self) -> Tensor:
        """Return the entropy in nats, of the batch's shape."""
        constant = 0.5 * self._event_shape[0] * (1.0 + math.log(2 * math.pi))
        whole = constant + _log_diagonal(self._unbroadcasted_scale_tril)
        return whole.expand(self._batch_shape)


def _one_matrix(
    covariance: Tensor | None,
    precision: Tensor | None,
    scale_tril: Tensor | None,
    error: type[Exception],
) -> tuple[str, Tensor]:
    """Return the one that is given, with its name. Raises `error` for none or several."""
    matrices = {
        "covariance_matrix": covariance,
        "precision_matrix": precision,
        "scale_tril": scale_tril,
    }
    given = [(name, matrix) for name, matrix in matrices.items() if matrix is not None]
    if len(given) != 1:
        raise error(
            "Exactly one of covariance_matrix or precision_matrix or scale_tril may be specified."
        )
    return given[0]


def _factor(name: str, matrix: Tensor) -> Tensor:
    """Return the Cholesky factor of the covariance."""
    if name == "scale_tril":
        return matrix
    if name == "covariance_matrix":
        return linalg.cholesky(matrix)
    return _precision_to_scale_tril(matrix)
