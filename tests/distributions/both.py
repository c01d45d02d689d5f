"""The same distributions in PyTorch and in webtorch: a grid of parameters for each, in float64."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

import webtorch

Make = Callable[[Any, Any], Any]


def tensor(library: Any, values: Any, dtype: str = "float64") -> Any:
    return library.tensor(values, dtype=getattr(library, dtype))


def ours(value: torch.Tensor) -> webtorch.Tensor:
    return webtorch.from_numpy(value.detach().numpy().copy())


_A = [0.3, 1.0, 2.5, 7.0]
_B = [1.7, 0.6, 3.0, 1.0]
_LOC = [-1.5, 0.0, 0.4, 3.0]
_P = [0.1, 0.5, 0.73, 0.9]
_ROWS = [[0.2, 0.5, 0.3], [0.6, 0.1, 0.3]]
_LOGITS = [[0.1, -2.0, 1.0], [0.0, 0.0, 3.0]]
_TRIL = [[[1.3, 0.0], [0.4, 0.7]], [[0.6, 0.0], [-1.1, 2.0]]]
_COV = [[1.7, 0.4], [0.4, 0.9]]


# name -> (library's distributions, tensors of the library) -> distribution
CASES: dict[str, Make] = {
    "Bernoulli": lambda d, t: d.Bernoulli(t(_P)),
    "Bernoulli logits": lambda d, t: d.Bernoulli(logits=t(_LOC)),
    "Beta": lambda d, t: d.Beta(t(_A), t(_B)),
    "Binomial": lambda d, t: d.Binomial(8, t(_P)),
    "Binomial logits": lambda d, t: d.Binomial(t([3.0, 10.0, 1.0, 0.0]), logits=t(_LOC)),
    "Categorical": lambda d, t: d.Categorical(t(_ROWS)),
    "Categorical logits": lambda d, t: d.Categorical(logits=t(_LOGITS)),
    "Cauchy": lambda d, t: d.Cauchy(t(_LOC), t(_B)),
    "Chi2": lambda d, t: d.Chi2(t(_A)),
    "ContinuousBernoulli": lambda d, t: d.ContinuousBernoulli(t([0.05, 0.4995, 0.6, 0.93])),
    "ContinuousBernoulli logits": lambda d, t: d.ContinuousBernoulli(logits=t(_LOC)),
    "Dirichlet": lambda d, t: d.Dirichlet(t([[0.5, 2.0, 3.0], [0.2, 0.9, 0.4]])),
    "Exponential": lambda d, t: d.Exponential(t(_A)),
    "FisherSnedecor": lambda d, t: d.FisherSnedecor(t([1.0, 3.0, 5.0]), t([2.0, 4.5, 9.0])),
    "Gamma": lambda d, t: d.Gamma(t(_A), t(_B)),
    "GeneralizedPareto": lambda d, t: d.GeneralizedPareto(t(_LOC), t(_B), t([-0.7, 0.0, 0.2, 1.4])),
    "Geometric": lambda d, t: d.Geometric(t(_P)),
    "Geometric logits": lambda d, t: d.Geometric(logits=t(_LOC)),
    "Gumbel": lambda d, t: d.Gumbel(t(_LOC), t(_B)),
    "HalfCauchy": lambda d, t: d.HalfCauchy(t(_B)),
    "HalfNormal": lambda d, t: d.HalfNormal(t(_B)),
    "Independent": lambda d, t: d.Independent(d.Normal(t(_LOC), t(_B)), 1),
    "InverseGamma": lambda d, t: d.InverseGamma(t(_A), t(_B)),
    "Kumaraswamy": lambda d, t: d.Kumaraswamy(t(_A), t(_B)),
    "Laplace": lambda d, t: d.Laplace(t(_LOC), t(_B)),
    "LKJCholesky": lambda d, t: d.LKJCholesky(3, t([0.5, 1.0, 2.5])),
    "LogNormal": lambda d, t: d.LogNormal(t(_LOC), t(_B)),
    "LogisticNormal": lambda d, t: d.LogisticNormal(t([_LOC, _LOC]), t([_B, _A])),
    "LowRankMultivariateNormal": lambda d, t: d.LowRankMultivariateNormal(
        t([[0.5, -1.0], [2.0, 0.0]]), t([[1.0], [0.5]]), t([0.7, 2.0])
    ),
    "MixtureSameFamily": lambda d, t: d.MixtureSameFamily(
        d.Categorical(t([0.3, 0.7])), d.Normal(t([-1.0, 2.0]), t([0.5, 1.5]))
    ),
    "MixtureSameFamily vectors": lambda d, t: d.MixtureSameFamily(
        d.Categorical(t(_ROWS)),
        d.Independent(d.Normal(t(np.arange(12.0).reshape(2, 3, 2).tolist()), t(1.5)), 1),
    ),
    "Multinomial": lambda d, t: d.Multinomial(7, t(_ROWS)),
    "Multinomial logits": lambda d, t: d.Multinomial(7, logits=t(_LOGITS)),
    "MultivariateNormal": lambda d, t: d.MultivariateNormal(t([0.5, -1.0]), t(_COV)),
    "MultivariateNormal precision": lambda d, t: d.MultivariateNormal(
        t([[0.5, -1.0]] * 3), precision_matrix=t(_COV)
    ),
    "MultivariateNormal tril": lambda d, t: d.MultivariateNormal(
        t([0.5, -1.0]), scale_tril=t(_TRIL)
    ),
    "NegativeBinomial": lambda d, t: d.NegativeBinomial(t([0.5, 1.0, 3.0, 8.0]), t(_P)),
    "NegativeBinomial logits": lambda d, t: d.NegativeBinomial(4, logits=t(_LOC)),
    "Normal": lambda d, t: d.Normal(t(_LOC), t(_B)),
    "OneHotCategorical": lambda d, t: d.OneHotCategorical(t(_ROWS)),
    "OneHotCategoricalStraightThrough": lambda d, t: d.OneHotCategoricalStraightThrough(
        logits=t(_LOGITS)
    ),
    "Pareto": lambda d, t: d.Pareto(t(_B), t(_A)),
    "Poisson": lambda d, t: d.Poisson(t([0.0, 0.4, 3.0, 40.0])),
    "RelaxedBernoulli": lambda d, t: d.RelaxedBernoulli(t(0.7), t(_P)),
    "RelaxedBernoulli logits": lambda d, t: d.RelaxedBernoulli(t([2.0]), logits=t(_LOC)),
    "RelaxedOneHotCategorical": lambda d, t: d.RelaxedOneHotCategorical(t(0.7), t(_ROWS)),
    "StudentT": lambda d, t: d.StudentT(t([0.8, 1.5, 2.5, 9.0]), t(_LOC), t(_B)),
    "TransformedDistribution": lambda d, t: d.TransformedDistribution(
        d.Normal(t(_LOC), t(_B)),
        [d.AffineTransform(t(0.5), t(-2.0)), d.SigmoidTransform(), d.PowerTransform(t(2.0))],
    ),
    "TransformedDistribution vectors": lambda d, t: d.TransformedDistribution(
        d.Independent(d.Normal(t(_LOC), t(_B)), 1),
        [d.ReshapeTransform((4,), (2, 2)), d.TanhTransform()],
    ),
    "Uniform": lambda d, t: d.Uniform(t(_LOC), t([-1.0, 2.0, 0.5, 9.0])),
    "VonMises": lambda d, t: d.VonMises(t(_LOC), t([0.1, 1.0, 5.0, 80.0])),
    "Weibull": lambda d, t: d.Weibull(t(_A), t(_B)),
    "Wishart": lambda d, t: d.Wishart(t([2.5, 4.0]), scale_tril=t(_TRIL)),
    "Wishart covariance": lambda d, t: d.Wishart(5, covariance_matrix=t(_COV)),
    "Wishart precision": lambda d, t: d.Wishart(t(3.0), precision_matrix=t(_COV)),
}


# PyTorch's compares with a float32 zero, which no other dtype may be compared with.
DTYPES = {"GeneralizedPareto": "float32"}


def dtype_of(name: str) -> str:
    """Return the dtype of a case's parameters."""
    return DTYPES.get(name, "float64")


def pair(name: str, turned: bool = False) -> tuple[Any, Any]:
    """Return PyTorch's distribution of a case, and ours; `turned`: of its numbers in the opposite order."""
    import webtorch.distributions

    make = CASES[name]
    dtype = dtype_of(name)

    def given(v: Any) -> Any:
        return v[::-1] if turned and isinstance(v, list) else v

    return (
        make(torch.distributions, lambda v: tensor(torch, given(v), dtype)),
        make(webtorch.distributions, lambda v: tensor(webtorch, given(v), dtype)),
    )


def same(got: Any, wanted: Any, rtol: float = 1e-9, atol: float = 1e-10) -> None:
    """Compare a result of ours with PyTorch's: shape, dtype and numbers."""
    assert tuple(got.shape) == tuple(wanted.shape)
    assert str(got.dtype) == str(wanted.dtype)
    np.testing.assert_allclose(got.detach().numpy(), wanted.detach().numpy(), rtol=rtol, atol=atol)


def parameters(function: Any) -> list[tuple[str, Any, Any]]:
    """Return names, kinds and defaults."""
    return [
        (name, p.kind, tuple(p.default) if isinstance(p.default, tuple) else p.default)
        for name, p in inspect.signature(function).parameters.items()
    ]
