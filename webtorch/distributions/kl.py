"""Kullback-Leibler divergences: the registry, and the pairs that have a closed form. May import floors 0 to 4.

Most are the mean of log p under p (minus the entropy) less the mean of log q under p, which takes a few moments of p.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from functools import total_ordering
from typing import Any, TypeVar

from webtorch import autograd, linalg
from webtorch.distributions.bernoulli import Bernoulli
from webtorch.distributions.beta import Beta
from webtorch.distributions.binomial import Binomial
from webtorch.distributions.categorical import Categorical
from webtorch.distributions.cauchy import Cauchy
from webtorch.distributions.continuous_bernoulli import ContinuousBernoulli
from webtorch.distributions.dirichlet import Dirichlet
from webtorch.distributions.distribution import Distribution
from webtorch.distributions.exp_family import ExponentialFamily
from webtorch.distributions.exponential import Exponential
from webtorch.distributions.gamma import Gamma
from webtorch.distributions.geometric import Geometric
from webtorch.distributions.gumbel import Gumbel
from webtorch.distributions.half_normal import HalfNormal
from webtorch.distributions.independent import Independent
from webtorch.distributions.laplace import Laplace
from webtorch.distributions.lowrank_multivariate_normal import (
    LowRankMultivariateNormal,
    _batch_lowrank_mahalanobis,
)
from webtorch.distributions.multivariate_normal import (
    MultivariateNormal,
    _batch_mahalanobis,
    _log_diagonal,
)
from webtorch.distributions.normal import Normal
from webtorch.distributions.one_hot_categorical import OneHotCategorical
from webtorch.distributions.pareto import Pareto
from webtorch.distributions.poisson import Poisson
from webtorch.distributions.transformed_distribution import TransformedDistribution
from webtorch.distributions.uniform import Uniform
from webtorch.distributions.utils import _sum_rightmost, euler_constant
from webtorch.functions import public as webtorch
from webtorch.ir.lines import user_depth
from webtorch.nn.functional import softplus
from webtorch.tensors.tensor import Tensor

__all__ = ["kl_divergence", "register_kl"]

F = TypeVar("F", bound=Callable[..., Tensor])

_KL_REGISTRY: dict[tuple[type, type], Callable[..., Tensor]] = {}
_KL_MEMOIZE: dict[tuple[type, type], Any] = {}
where = webtorch.where


def register_kl(type_p: type, type_q: type) -> Callable[[F], F]:
    """Decorate the function of (p, q) that kl_divergence calls for two classes and their subclasses.

    The most specific pair wins; where two are as specific, registering the pair itself decides.
    """
    for name, kind in (("type_p", type_p), ("type_q", type_q)):
        # As PyTorch, any class: packages register bases of their own beside these.
        if not isinstance(kind, type):
            raise TypeError(f"Expected {name} to be a Distribution subclass but got {kind}")

    def decorator(fun: F) -> F:
        """Put the function into the registry, and return it."""
        _KL_REGISTRY[type_p, type_q] = fun
        _KL_MEMOIZE.clear()
        return fun

    return decorator


@total_ordering
class _Match:
    """A pair of classes, ordered by how specific they are, the first one first."""

    __slots__ = ("types",)

    def __init__(self, *types: type) -> None:
        self.types = types

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Match) and self.types == other.types

    __hash__ = object.__hash__

    def __le__(self, other: _Match) -> bool:
        for mine, theirs in zip(self.types, other.types, strict=True):
            if not issubclass(mine, theirs):
                return False
            if mine is not theirs:
                break
        return True


def _dispatch_kl(type_p: type, type_q: type) -> object:
    matches = [
        pair for pair in _KL_REGISTRY if issubclass(type_p, pair[0]) and issubclass(type_q, pair[1])
    ]
    if not matches:
        return NotImplemented
    left = min(_Match(*pair) for pair in matches).types
    right = min(_Match(*reversed(pair)) for pair in matches).types[::-1]
    first, second = _KL_REGISTRY[left[0], left[1]], _KL_REGISTRY[right[0], right[1]]
    if first is not second:
        warnings.warn(
            f"Ambiguous kl_divergence({type_p.__name__}, {type_q.__name__}). Please register_kl("
            f"{left[0].__name__}, {right[1].__name__})",
            RuntimeWarning,
            stacklevel=user_depth(),
        )
    return first


def kl_divergence(p: Distribution, q: Distribution) -> Tensor:
    """Return the mean of log p - log q under p. Raises NotImplementedError for pairs without a formula."""
    key = (type(p), type(q))
    if key not in _KL_MEMOIZE:
        _KL_MEMOIZE[key] = _dispatch_kl(*key)
    fun = _KL_MEMOIZE[key]
    if fun is NotImplemented:
        raise NotImplementedError(
            f"No KL(p || q) is implemented for p type {key[0].__name__} and q type {key[1].__name__}"
        )
    return fun(p, q)


# -- pairs of one kind --------------------------------------------------------------------------------------


@register_kl(Bernoulli, Bernoulli)
def _kl_bernoulli_bernoulli(p: Bernoulli, q: Bernoulli) -> Tensor:
    one = p.probs * (softplus(-q.logits) - softplus(-p.logits))
    one = where(p.probs == 0, 0.0, where(q.probs == 0, math.inf, one))
    zero = (1 - p.probs) * (softplus(q.logits) - softplus(p.logits))
    return one + where(p.probs == 1, 0.0, where(q.probs == 1, math.inf, zero))


@register_kl(Beta, Beta)
def _kl_beta_beta(p: Beta, q: Beta) -> Tensor:
    a, b, c, d = p.concentration1, p.concentration0, q.concentration1, q.concentration0
    constants = c.lgamma() + d.lgamma() - (c + d).lgamma()
    constants = constants - a.lgamma() - b.lgamma() + (a + b).lgamma()
    slopes = (a - c) * a.digamma() + (b - d) * b.digamma()
    return constants + slopes + (c + d - a - b) * (a + b).digamma()


@register_kl(Binomial, Binomial)
def _kl_binomial_binomial(p: Binomial, q: Binomial) -> Tensor:
    if bool((p.total_count < q.total_count).any()):
        raise NotImplementedError(
            "KL between Binomials where q.total_count > p.total_count is not implemented"
        )
    each = p.probs * (p.logits - q.logits) + (-p.probs).log1p() - (-q.probs).log1p()
    return where(p.total_count > q.total_count, math.inf, p.total_count * each)


@register_kl(Categorical, Categorical)
def _kl_categorical_categorical(p: Categorical, q: Categorical) -> Tensor:
    each = p.probs * (p.logits - q.logits)
    each = where(p.probs == 0, 0.0, where(q.probs == 0, math.inf, each))
    return each.sum(-1)


@register_kl(Cauchy, Cauchy)
def _kl_cauchy_cauchy(p: Cauchy, q: Cauchy) -> Tensor:
    # Chyzak and Nielsen, 2019.
    spread = ((p.scale + q.scale).square() + (p.loc - q.loc).square()).log()
    return spread - (4 * p.scale * q.scale).log()


@register_kl(ContinuousBernoulli, ContinuousBernoulli)
def _kl_continuous_bernoulli_continuous_bernoulli(
    p: ContinuousBernoulli, q: ContinuousBernoulli
) -> Tensor:
    constants = p._cont_bern_log_norm() - q._cont_bern_log_norm()
    constants = constants + (-p.probs).log1p() - (-q.probs).log1p()
    return p.mean * (p.logits - q.logits) + constants


@register_kl(Dirichlet, Dirichlet)
def _kl_dirichlet_dirichlet(p: Dirichlet, q: Dirichlet) -> Tensor:
    a, b = p.concentration, q.concentration
    total = a.sum(-1)
    constants = total.lgamma() - b.sum(-1).lgamma() - (a.lgamma() - b.lgamma()).sum(-1)
    mean_log = a.digamma() - total.digamma().unsqueeze(-1)
    return constants + ((a - b) * mean_log).sum(-1)


@register_kl(Exponential, Exponential)
def _kl_exponential_exponential(p: Exponential, q: Exponential) -> Tensor:
    ratio = q.rate / p.rate
    return ratio - ratio.log() - 1


@register_kl(ExponentialFamily, ExponentialFamily)
def _kl_expfamily_expfamily(p: ExponentialFamily, q: ExponentialFamily) -> Tensor:
    """Bregman's divergence of the log normalizer (Nielsen and Nock, 2010)."""
    if type(p) is not type(q):
        raise NotImplementedError(
            "The cross KL-divergence between different exponential families cannot be computed using Bregman "
            "divergences"
        )
    mine = [x.detach().requires_grad_() for x in p._natural_params]
    with webtorch.enable_grad():
        normalizer = p._log_normalizer(*mine)
        slopes = autograd.grad(normalizer.sum(), mine, create_graph=True)
    result = q._log_normalizer(*q._natural_params) - normalizer
    for a, b, slope in zip(mine, q._natural_params, slopes, strict=True):
        assert slope is not None
        result = result - _sum_rightmost((b - a) * slope, len(q.event_shape))
    return result


@register_kl(Gamma, Gamma)
def _kl_gamma_gamma(p: Gamma, q: Gamma) -> Tensor:
    a, b = p.concentration, q.concentration
    constants = b * (p.rate / q.rate).log() + b.lgamma() - a.lgamma()
    return constants + (a - b) * a.digamma() + (q.rate - p.rate) * (a / p.rate)


@register_kl(Geometric, Geometric)
def _kl_geometric_geometric(p: Geometric, q: Geometric) -> Tensor:
    return -p.entropy() - (-q.probs).log1p() / p.probs - q.logits


@register_kl(Gumbel, Gumbel)
def _kl_gumbel_gumbel(p: Gumbel, q: Gumbel) -> Tensor:
    ratio, shift = p.scale / q.scale, (q.loc - p.loc) / q.scale
    mean = ratio * euler_constant - shift - (1 + euler_constant)
    return mean - ratio.log() + (shift + (1 + ratio).lgamma()).exp()


@register_kl(HalfNormal, HalfNormal)
def _kl_halfnormal_halfnormal(p: HalfNormal, q: HalfNormal) -> Tensor:
    return _kl_normal_normal(p.base_dist, q.base_dist)


@register_kl(Independent, Independent)
def _kl_independent_independent(p: Independent[Any], q: Independent[Any]) -> Tensor:
    if p.reinterpreted_batch_ndims != q.reinterpreted_batch_ndims:
        raise NotImplementedError(
            "KL between Independents with different reinterpreted_batch_ndims is not implemented"
        )
    return _sum_rightmost(kl_divergence(p.base_dist, q.base_dist), p.reinterpreted_batch_ndims)


@register_kl(Laplace, Laplace)
def _kl_laplace_laplace(p: Laplace, q: Laplace) -> Tensor:
    ratio, away = p.scale / q.scale, (p.loc - q.loc).abs()
    return ratio * (-away / p.scale).exp() + away / q.scale - ratio.log() - 1


_Vector = MultivariateNormal | LowRankMultivariateNormal


def _check_events(p: Distribution, q: Distribution, kind: str) -> None:
    if p.event_shape != q.event_shape:
        raise ValueError(
            f"KL-divergence between two {kind} Normals with different event shapes cannot be computed"
        )


def _factor(p: _Vector) -> list[Tensor]:
    """Return matrices the sum of whose squares A A^T is the covariance."""
    if isinstance(p, MultivariateNormal):
        return [p._unbroadcasted_scale_tril]
    return [p._unbroadcasted_cov_factor, p._unbroadcasted_cov_diag.sqrt().diag_embed()]


def _log_det(p: _Vector) -> Tensor:
    """Return the logarithm of the covariance's determinant."""
    if isinstance(p, MultivariateNormal):
        return 2 * _log_diagonal(p._unbroadcasted_scale_tril)
    return p._log_det()


def _squares(matrix: Tensor) -> Tensor:
    return matrix.square().sum((-2, -1))


def _distance_and_trace(p: _Vector, q: _Vector) -> Tensor:
    """Return d^T C^-1 d + trace(C^-1 C') for q's covariance C, p's C', and d the difference of their means."""
    away = q.loc - p.loc
    if isinstance(q, MultivariateNormal):
        tril = q._unbroadcasted_scale_tril
        total = _batch_mahalanobis(tril, away)
        for part in _factor(p):
            total = total + _squares(linalg.solve_triangular(tril, part, upper=False))
        return total
    # Woodbury: C^-1 = D^-1 - B^T B.
    factor, diagonal, tril = (
        q._unbroadcasted_cov_factor,
        q._unbroadcasted_cov_diag,
        q._capacitance_tril,
    )
    total = _batch_lowrank_mahalanobis(factor, diagonal, away, tril)
    b = linalg.solve_triangular(tril, factor.mT / diagonal.unsqueeze(-2), upper=False)
    for part in _factor(p):
        total = total + _squares(part * diagonal.rsqrt().unsqueeze(-1)) - _squares(b @ part)
    return total


def _kl_of_vectors(kind: str) -> Callable[[_Vector, _Vector], Tensor]:
    def divergence(p: _Vector, q: _Vector) -> Tensor:
        """Return the divergence of two normal vectors, of the batch's shape."""
        _check_events(p, q, kind)
        size = p.event_shape[0]
        return 0.5 * (_log_det(q) - _log_det(p) + _distance_and_trace(p, q) - size)

    return divergence


register_kl(MultivariateNormal, MultivariateNormal)(_kl_of_vectors("Multivariate"))
register_kl(LowRankMultivariateNormal, LowRankMultivariateNormal)(
    _kl_of_vectors("Low Rank Multivariate")
)
register_kl(MultivariateNormal, LowRankMultivariateNormal)(
    _kl_of_vectors("(Low Rank) Multivariate")
)
register_kl(LowRankMultivariateNormal, MultivariateNormal)(
    _kl_of_vectors("(Low Rank) Multivariate")
)


@register_kl(Normal, Normal)
def _kl_normal_normal(p: Normal, q: Normal) -> Tensor:
    ratio = (p.scale / q.scale).square()
    return 0.5 * (ratio + ((p.loc - q.loc) / q.scale).square() - 1 - ratio.log())


@register_kl(OneHotCategorical, OneHotCategorical)
def _kl_onehotcategorical_onehotcategorical(p: OneHotCategorical, q: OneHotCategorical) -> Tensor:
    return _kl_categorical_categorical(p._categorical, q._categorical)


@register_kl(Pareto, Pareto)
def _kl_pareto_pareto(p: Pareto, q: Pareto) -> Tensor:
    ratio = q.alpha / p.alpha
    result = q.alpha * (p.scale / q.scale).log() - ratio.log() + ratio - 1
    return where(p.scale < q.scale, math.inf, result)


@register_kl(Poisson, Poisson)
def _kl_poisson_poisson(p: Poisson, q: Poisson) -> Tensor:
    return p.rate * (p.rate.log() - q.rate.log()) - (p.rate - q.rate)


@register_kl(TransformedDistribution, TransformedDistribution)
def _kl_transformed_transformed(p: TransformedDistribution, q: TransformedDistribution) -> Tensor:
    if p.transforms != q.transforms or p.event_shape != q.event_shape:
        raise NotImplementedError(
            "KL between TransformedDistributions with different transforms or event shapes is not implemented"
        )
    return kl_divergence(p.base_dist, q.base_dist)


@register_kl(Uniform, Uniform)
def _kl_uniform_uniform(p: Uniform, q: Uniform) -> Tensor:
    result = ((q.high - q.low) / (p.high - p.low)).log()
    return where((q.low > p.low) | (q.high < p.high), math.inf, result)


# -- pairs of two kinds: minus the entropy of p, less the mean of log q ------------------------------------------

# p reaches where q does not.
_INFINITE: dict[type, tuple[type, ...]] = {
    Beta: (Pareto,),
    ContinuousBernoulli: (Pareto,),
    Exponential: (Beta, ContinuousBernoulli, Pareto, Uniform),
    Gamma: (Beta, ContinuousBernoulli, Pareto, Uniform),
    Gumbel: (Beta, ContinuousBernoulli, Exponential, Gamma, Pareto, Uniform),
    Laplace: (Beta, ContinuousBernoulli, Exponential, Gamma, Pareto, Uniform),
    Normal: (Beta, ContinuousBernoulli, Exponential, Gamma, Pareto, Uniform),
    Pareto: (Beta, ContinuousBernoulli, Uniform),
    Poisson: (Bernoulli, Binomial),
}


def _infinite(p: Distribution, q: Distribution) -> Tensor:
    parameters = [value for value in vars(p).values() if isinstance(value, Tensor)]
    like = parameters[0] if parameters else p.mean
    return webtorch.full(p.batch_shape, math.inf, dtype=like.dtype, device=like.device)


for _p, _all in _INFINITE.items():
    for _q in _all:
        register_kl(_p, _q)(_infinite)


def _mean_log_exponential(q: Exponential, mean: Tensor) -> Tensor:
    return q.rate.log() - q.rate * mean


def _mean_log_gamma(q: Gamma, mean: Tensor, mean_log: Tensor) -> Tensor:
    a = q.concentration
    return a * q.rate.log() - a.lgamma() + (a - 1) * mean_log - q.rate * mean


def _mean_log_normal(q: Normal, mean: Tensor, variance: Tensor) -> Tensor:
    away = (variance + (mean - q.loc).square()) / q.scale.square()
    return -0.5 * (math.log(2 * math.pi) + away) - q.scale.log()


def _mean_log_gumbel(q: Gumbel, mean: Tensor, mean_exp: Tensor) -> Tensor:
    """`mean_exp` is the mean of exp((loc - x) / scale)."""
    return (q.loc - mean) / q.scale - mean_exp - q.scale.log()


@register_kl(Bernoulli, Poisson)
def _kl_bernoulli_poisson(p: Bernoulli, q: Poisson) -> Tensor:
    return -p.entropy() - (p.probs * q.rate.log() - q.rate)


def _kl_to_continuous_bernoulli(p: Distribution, q: ContinuousBernoulli) -> Tensor:
    constant = (-q.probs).log1p() + q._cont_bern_log_norm()
    return -p.entropy() - p.mean * q.logits - constant


@register_kl(Beta, ContinuousBernoulli)
def _kl_beta_continuous_bernoulli(p: Beta, q: ContinuousBernoulli) -> Tensor:
    return _kl_to_continuous_bernoulli(p, q)


@register_kl(Uniform, ContinuousBernoulli)
def _kl_uniform_continuous_bernoulli(p: Uniform, q: ContinuousBernoulli) -> Tensor:
    outside = (p.high >= 1.0) | (p.low <= 0.0)
    return where(outside, math.inf, _kl_to_continuous_bernoulli(p, q))


@register_kl(Beta, Exponential)
@register_kl(ContinuousBernoulli, Exponential)
@register_kl(Gamma, Exponential)
def _kl_to_exponential(p: Beta | ContinuousBernoulli | Gamma, q: Exponential) -> Tensor:
    return -p.entropy() - _mean_log_exponential(q, p.mean)


@register_kl(Beta, Gamma)
def _kl_beta_gamma(p: Beta, q: Gamma) -> Tensor:
    mean_log = p.concentration1.digamma() - (p.concentration1 + p.concentration0).digamma()
    return -p.entropy() - _mean_log_gamma(q, p.mean, mean_log)


@register_kl(Beta, Normal)
@register_kl(ContinuousBernoulli, Normal)
@register_kl(Exponential, Normal)
@register_kl(Gamma, Normal)
@register_kl(Gumbel, Normal)
@register_kl(Laplace, Normal)
@register_kl(Uniform, Normal)
def _kl_to_normal(
    p: Beta | ContinuousBernoulli | Exponential | Gamma | Gumbel | Laplace | Uniform, q: Normal
) -> Tensor:
    return -p.entropy() - _mean_log_normal(q, p.mean, p.variance)


@register_kl(Beta, Uniform)
def _kl_beta_uniform(p: Beta, q: Uniform) -> Tensor:
    result = -p.entropy() + (q.high - q.low).log()
    return where((q.low > 0.0) | (q.high < 1.0), math.inf, result)


@register_kl(ContinuousBernoulli, Uniform)
def _kl_continuous_bernoulli_uniform(p: ContinuousBernoulli, q: Uniform) -> Tensor:
    result = -p.entropy() + (q.high - q.low).log()
    return where((q.low >= 0.0) | (q.high <= 1.0), math.inf, result)


@register_kl(Exponential, Gamma)
def _kl_exponential_gamma(p: Exponential, q: Gamma) -> Tensor:
    return -p.entropy() - _mean_log_gamma(q, p.mean, -p.rate.log() - euler_constant)


@register_kl(Exponential, Gumbel)
def _kl_exponential_gumbel(p: Exponential, q: Gumbel) -> Tensor:
    product = p.rate * q.scale
    mean_exp = (q.loc / q.scale).exp() * product / (product + 1)
    return -p.entropy() - _mean_log_gumbel(q, p.mean, mean_exp)


@register_kl(Gamma, Gumbel)
def _kl_gamma_gumbel(p: Gamma, q: Gumbel) -> Tensor:
    shrink = (1 + (p.rate * q.scale).reciprocal()).pow(-p.concentration)
    return -p.entropy() - _mean_log_gumbel(q, p.mean, (q.loc / q.scale).exp() * shrink)


@register_kl(Normal, Gumbel)
def _kl_normal_gumbel(p: Normal, q: Gumbel) -> Tensor:
    mean_exp = ((q.loc - p.loc) / q.scale + 0.5 * (p.scale / q.scale).square()).exp()
    return -p.entropy() - _mean_log_gumbel(q, p.mean, mean_exp)


@register_kl(Uniform, Gumbel)
def _kl_uniform_gumbel(p: Uniform, q: Gumbel) -> Tensor:
    ends = ((q.loc - p.low) / q.scale).exp() - ((q.loc - p.high) / q.scale).exp()
    mean_exp = ends * q.scale / (p.high - p.low)
    return -p.entropy() - _mean_log_gumbel(q, p.mean, mean_exp)


@register_kl(Normal, Laplace)
def _kl_normal_laplace(p: Normal, q: Laplace) -> Tensor:
    away = p.loc - q.loc
    z = away / p.scale
    mean_size = math.sqrt(2 / math.pi) * p.scale * (-0.5 * z.square()).exp()
    mean_size = mean_size + away * (math.sqrt(0.5) * z).erf()
    return -p.entropy() + (2 * q.scale).log() + mean_size / q.scale


@register_kl(Pareto, Exponential)
def _kl_pareto_exponential(p: Pareto, q: Exponential) -> Tensor:
    mean = p.alpha * p.scale / (p.alpha - 1)
    result = -p.entropy() - _mean_log_exponential(q, mean)
    return where(p.alpha <= 1, math.inf, result)


@register_kl(Pareto, Gamma)
def _kl_pareto_gamma(p: Pareto, q: Gamma) -> Tensor:
    mean = p.alpha * p.scale / (p.alpha - 1)
    mean_log = p.scale.log() + p.alpha.reciprocal()
    return where(p.alpha <= 1, math.inf, -p.entropy() - _mean_log_gamma(q, mean, mean_log))


@register_kl(Pareto, Normal)
def _kl_pareto_normal(p: Pareto, q: Normal) -> Tensor:
    part = p.scale / (p.alpha - 1)
    variance = p.alpha * part.square() / (p.alpha - 2)
    result = -p.entropy() - _mean_log_normal(q, p.alpha * part, variance)
    return where(p.alpha <= 2, math.inf, result)


def _mean_log_of_uniform(p: Uniform) -> Tensor:
    """Return the mean of log x over an interval."""
    return (p.high.xlogy(p.high) - p.low.xlogy(p.low)) / (p.high - p.low) - 1


@register_kl(Uniform, Beta)
def _kl_uniform_beta(p: Uniform, q: Beta) -> Tensor:
    a, b = q.concentration1, q.concentration0
    rest = Uniform(1 - p.high, 1 - p.low, validate_args=False)
    powers = (a - 1) * _mean_log_of_uniform(p) + (b - 1) * _mean_log_of_uniform(rest)
    constant = a.lgamma() + b.lgamma() - (a + b).lgamma()
    result = -p.entropy() - powers + constant
    return where((p.high > 1.0) | (p.low < 0.0), math.inf, result)


@register_kl(Uniform, Exponential)
def _kl_uniform_exponential(p: Uniform, q: Exponential) -> Tensor:
    result = -p.entropy() - _mean_log_exponential(q, p.mean)
    return where(p.low < 0.0, math.inf, result)


@register_kl(Uniform, Gamma)
def _kl_uniform_gamma(p: Uniform, q: Gamma) -> Tensor:
    result = -p.entropy() - _mean_log_gamma(q, p.mean, _mean_log_of_uniform(p))
    return where(p.low < 0.0, math.inf, result)


@register_kl(Uniform, Pareto)
def _kl_uniform_pareto(p: Uniform, q: Pareto) -> Tensor:
    mean_log = q.alpha.log() + q.alpha * q.scale.log() - (q.alpha + 1) * _mean_log_of_uniform(p)
    return where(p.low < q.scale, math.inf, -p.entropy() - mean_log)
