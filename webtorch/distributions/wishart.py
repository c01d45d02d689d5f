"""Covariance matrices. May import floors 0 to 4."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence

from webtorch import linalg
from webtorch.distributions import constraints
from webtorch.distributions.chi2 import Chi2
from webtorch.distributions.exp_family import ExponentialFamily
from webtorch.distributions.multivariate_normal import OfMatrix, _factor, _log_diagonal, _one_matrix
from webtorch.distributions.utils import Value
from webtorch.functions import public as webtorch
from webtorch.ir.lines import user_depth
from webtorch.tensors.host import reads
from webtorch.tensors.size import Size
from webtorch.tensors.tensor import Tensor

__all__ = ["Wishart"]


_log_2 = math.log(2)


def _mvdigamma(x: Tensor, p: int) -> Tensor:
    """Return the derivative of the multivariate gamma function's logarithm."""
    steps = webtorch.arange(p, dtype=x.dtype, device=x.device) / 2
    return (x.unsqueeze(-1) - steps).digamma().sum(-1)


class Wishart(OfMatrix, ExponentialFamily):
    """Sums of `df` squares v v^T of normal vectors of a covariance; df need not be whole, but above p - 1.

    Sampled by Bartlett's decomposition (Sawyer, 2007); samples that are singular in their dtype are drawn again.
    """

    support = constraints.positive_definite
    has_rsample = True
    _mean_carrier_measure = 0
    _batched = (
        "df",
        "covariance_matrix",
        "scale_tril",
        "precision_matrix",
        "_dist_chi2",
    )
    _unbatched = ("_unbroadcasted_scale_tril",)

    def __init__(
        self,
        df: Value,
        covariance_matrix: Tensor | None = None,
        precision_matrix: Tensor | None = None,
        scale_tril: Tensor | None = None,
        validate_args: bool | None = None,
    ) -> None:
        name, matrix = _one_matrix(covariance_matrix, precision_matrix, scale_tril, AssertionError)
        if matrix.dim() < 2:
            raise ValueError(
                "scale_tril must be at least two-dimensional, with optional leading batch dimensions"
            )
        if isinstance(df, Tensor):
            batch_shape = Size(webtorch.broadcast_shapes(matrix.shape[:-2], df.shape))
            self.df = df.expand(batch_shape)
        else:
            batch_shape = matrix.shape[:-2]
            self.df = webtorch.tensor(df, dtype=matrix.dtype, device=matrix.device)
        p = matrix.shape[-1]
        if reads.possible:
            least = float(self.df.detach().min()) if self.df.numel() else math.inf
            if least <= p - 1:
                raise ValueError(
                    f"Value of df={df} expected to be greater than ndim - 1 = {p - 1}."
                )
            if least < p:
                warnings.warn(
                    "Low df values detected. Singular samples are highly likely to occur for ndim - 1 < df < ndim.",
                    stacklevel=user_depth(),
                )
        setattr(self, name, matrix.expand((*batch_shape, -1, -1)))
        super().__init__(batch_shape, matrix.shape[-2:], validate_args=validate_args)
        self._unbroadcasted_scale_tril = _factor(name, matrix)
        self._dist_chi2 = Chi2(self._chi2_df(self.df))

    def _chi2_df(self, df: Tensor) -> Tensor:
        """Return df, df - 1, ...: of the squared diagonal of Bartlett's factor."""
        p = self._event_shape[-1]
        steps = webtorch.arange(p, dtype=df.dtype, device=df.device)
        return df.unsqueeze(-1) - steps.expand((*self._batch_shape, -1))

    @property
    def arg_constraints(self) -> dict[str, constraints.Constraint]:
        """Df is above p - 1."""
        return {
            "covariance_matrix": constraints.positive_definite,
            "precision_matrix": constraints.positive_definite,
            "scale_tril": constraints.lower_cholesky,
            "df": constraints.greater_than(self.event_shape[-1] - 1),
        }

    @property
    def mean(self) -> Tensor:
        """`df * covariance_matrix`."""
        return self.df[..., None, None] * self.covariance_matrix

    @property
    def mode(self) -> Tensor:
        """`(df - p - 1) * covariance_matrix`; NaN for df <= p + 1."""
        factor = self.df - self.covariance_matrix.shape[-1] - 1
        factor = webtorch.where(factor <= 0, math.nan, factor)
        return factor[..., None, None] * self.covariance_matrix

    @property
    def variance(self) -> Tensor:
        """Variances of the single numbers: df * (c_ij ** 2 + c_ii * c_jj), c the covariance."""
        matrix = self.covariance_matrix
        diagonal = matrix.diagonal(dim1=-2, dim2=-1)
        outer = diagonal.unsqueeze(-1) * diagonal.unsqueeze(-2)
        return self.df[..., None, None] * (matrix.square() + outer)

    def _bartlett_sampling(self, sample_shape: Sequence[int] = Size()) -> Tensor:
        eps = webtorch.finfo(self._unbroadcasted_scale_tril.dtype).eps
        diagonal = self._dist_chi2.rsample(sample_shape).sqrt().clamp(min=eps)
        below = webtorch.randn(
            self._extended_shape(sample_shape), dtype=diagonal.dtype, device=diagonal.device
        )
        factor = self._unbroadcasted_scale_tril @ (diagonal.diag_embed() + below.tril(-1))
        return factor @ factor.mT

    def rsample(
        self, sample_shape: Sequence[int] = Size(), max_try_correction: int | None = None
    ) -> Tensor:
        """Return positive definite matrices (p, p) with gradients.

        Singular ones are drawn again, at most `max_try_correction` (10) times, which waits for the device; not where a
        function is being captured. Warns if one stays singular.
        """
        sample = self._bartlett_sampling(sample_shape)
        if not reads.possible:
            return sample
        for _ in range(10 if max_try_correction is None else max_try_correction):
            regular = self.support.check(sample.detach())
            if bool(regular.all()):
                return sample
            again = self._bartlett_sampling(sample_shape)
            sample = webtorch.where(regular[..., None, None], sample, again)
        warnings.warn("Singular sample detected.", stacklevel=user_depth())
        return sample

    def _log_prob(self, value: Tensor) -> Tensor:
        nu, p, factor = self.df, self._event_shape[-1], self._unbroadcasted_scale_tril
        constant = nu * (p * _log_2 / 2 + _log_diagonal(factor)) + webtorch.mvlgamma(nu / 2, p)
        size = linalg.slogdet(value).logabsdet
        trace = webtorch.cholesky_solve(value, factor).diagonal(dim1=-2, dim2=-1).sum(-1)
        return -constant + (nu - p - 1) / 2 * size - trace / 2

    def entropy(self) -> Tensor:
        """Return the entropy in nats, by multivariate gamma functions."""
        nu, p = self.df, self._event_shape[-1]
        scale = (p + 1) * (p * _log_2 / 2 + _log_diagonal(self._unbroadcasted_scale_tril))
        slope = (nu - p - 1) / 2 * _mvdigamma(nu / 2, p)
        return scale + webtorch.mvlgamma(nu / 2, p) - slope + nu * p / 2

    @property
    def _natural_params(self) -> tuple[Tensor, ...]:
        p = self._event_shape[-1]
        return (-self.precision_matrix / 2, (self.df - p - 1) / 2)

    def _log_normalizer(self, x: Tensor, y: Tensor) -> Tensor:
        p = self._event_shape[-1]
        half = y + (p + 1) / 2
        size = -linalg.slogdet(-2 * x).logabsdet + _log_2 * p
        return half * size + webtorch.mvlgamma(half, p)
