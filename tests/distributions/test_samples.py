"""Samples follow their distributions, are the same on every device, and carry PyTorch's gradients."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import scipy.special
import scipy.stats
import torch

import webtorch
import webtorch.distributions as d
from webtorch.ops import samplers
from webtorch.runtime.backends.cpu import jit
from webtorch.runtime.backends.cpu.executable import KernelRunner

N = 20_000
# name -> (distribution, SciPy's distribution function)
CONTINUOUS: dict[str, tuple[Callable[[], Any], Callable[[Any], Any]]] = {
    "gamma below 1": (lambda: d.Gamma(0.4, 2.0), lambda x: scipy.stats.gamma.cdf(2 * x, 0.4)),
    "gamma": (lambda: d.Gamma(7.5, 0.5), lambda x: scipy.stats.gamma.cdf(x / 2, 7.5)),
    "large gamma": (lambda: d.Gamma(3e4, 1.0), lambda x: scipy.stats.gamma.cdf(x, 3e4)),
    "beta": (lambda: d.Beta(0.7, 2.5), lambda x: scipy.stats.beta.cdf(x, 0.7, 2.5)),
    "student": (lambda: d.StudentT(3.5), lambda x: scipy.stats.t.cdf(x, 3.5)),
    "F": (lambda: d.FisherSnedecor(4.0, 7.0), lambda x: scipy.stats.f.cdf(x, 4, 7)),
    "gumbel": (lambda: d.Gumbel(1.0, 2.0), lambda x: scipy.stats.gumbel_r.cdf(x, 1, 2)),
    "weibull": (lambda: d.Weibull(2.0, 1.5), lambda x: scipy.stats.weibull_min.cdf(x / 2, 1.5)),
    "pareto": (lambda: d.Pareto(1.0, 3.0), lambda x: scipy.stats.pareto.cdf(x, 3)),
    "laplace": (lambda: d.Laplace(0.0, 2.0), lambda x: scipy.stats.laplace.cdf(x / 2)),
    "half-cauchy": (lambda: d.HalfCauchy(1.0), scipy.stats.halfcauchy.cdf),
    "inverse gamma": (lambda: d.InverseGamma(3.0, 1.0), lambda x: scipy.stats.invgamma.cdf(x, 3)),
    "angles": (lambda: d.VonMises(0.0, 2.0), lambda x: scipy.stats.vonmises.cdf(x, 2)),
    "narrow angles": (lambda: d.VonMises(0.0, 5e3), lambda x: scipy.stats.norm.cdf(x, 0, 5e3**-0.5)),
}  # fmt: skip


@pytest.mark.one_in(2)
@pytest.mark.parametrize("name", CONTINUOUS)
def test_continuous_samples_follow_their_distribution(name: str) -> None:
    """Kolmogorov and Smirnov at 0.001, with a fixed seed."""
    make, cdf = CONTINUOUS[name]
    webtorch.manual_seed(3)
    x = np.sort(make().sample((N,)).numpy().astype(np.float64))
    at = np.maximum(np.abs(cdf(x) - np.arange(N) / N), np.abs(cdf(x) - np.arange(1, N + 1) / N))
    assert at.max() < 1.95 / math.sqrt(N)


COUNTS: dict[str, tuple[Callable[[], Any], Callable[[Any], Any]]] = {
    "small poisson": (lambda: d.Poisson(0.3), lambda k: scipy.stats.poisson.pmf(k, 0.3)),
    "poisson below the limit": (lambda: d.Poisson(9.9), lambda k: scipy.stats.poisson.pmf(k, 9.9)),
    "poisson above the limit": (lambda: d.Poisson(10.5), lambda k: scipy.stats.poisson.pmf(k, 10.5)),
    "poisson": (lambda: d.Poisson(700.0), lambda k: scipy.stats.poisson.pmf(k, 700)),
    "few trials": (lambda: d.Binomial(5, webtorch.tensor(0.375)), lambda k: scipy.stats.binom.pmf(k, 5, 0.375)),
    "trials": (lambda: d.Binomial(60, webtorch.tensor(0.375)), lambda k: scipy.stats.binom.pmf(k, 60, 0.375)),
    "sure trials": (lambda: d.Binomial(400, webtorch.tensor(0.875)), lambda k: scipy.stats.binom.pmf(k, 400, 0.875)),
    "rare": (lambda: d.Binomial(2**20, webtorch.tensor(2.0**-17)), lambda k: scipy.stats.binom.pmf(k, 2**20, 2.0**-17)),
    "geometric": (lambda: d.Geometric(0.25), lambda k: scipy.stats.geom.pmf(k + 1, 0.25)),
    "negative binomial": (lambda: d.NegativeBinomial(3.0, webtorch.tensor(0.25)),
        lambda k: scipy.stats.nbinom.pmf(k, 3, 0.75)),
    "categorical": (lambda: d.Categorical(webtorch.tensor([1.0, 2.0, 5.0])),
        lambda k: np.array([0.125, 0.25, 0.625])[k]),
}  # fmt: skip


@pytest.mark.one_in(2)
@pytest.mark.parametrize("name", COUNTS)
def test_counts_follow_their_distribution(name: str) -> None:
    """Pearson's chi-square at 0.001, with a fixed seed."""
    make, pmf = COUNTS[name]
    webtorch.manual_seed(11)
    x = make().sample((N,)).numpy().astype(np.int64)
    low, high = x.min(), x.max()
    expected = N * pmf(np.arange(low, high + 1))
    counted = np.bincount(x - low, minlength=high - low + 1)
    often = expected > 8
    rest = N - expected[often].sum()
    statistic = ((counted - expected) ** 2 / expected)[often].sum()
    statistic += (counted[~often].sum() - rest) ** 2 / max(rest, 1.0)
    assert statistic < scipy.stats.chi2.ppf(0.999, often.sum())


def test_matrices_have_their_moments() -> None:
    webtorch.manual_seed(5)
    covariance = webtorch.tensor([[1.5, 0.4], [0.4, 0.8]])
    for distribution in (
        d.Wishart(webtorch.tensor(6.0), covariance),
        d.MultivariateNormal(webtorch.tensor([1.0, -2.0]), covariance),
        d.Dirichlet(webtorch.tensor([0.5, 2.0, 4.0])),
        d.Multinomial(9, webtorch.tensor([0.2, 0.5, 0.3])),
        d.LowRankMultivariateNormal(
            webtorch.zeros(2), webtorch.tensor([[1.0], [0.5]]), webtorch.tensor([0.3, 0.9])
        ),
    ):
        x = distribution.sample((N,)).double().numpy()
        mean, variance = distribution.mean.numpy(), distribution.variance.numpy()
        assert (np.abs(x.mean(0) - mean) < 5 * np.sqrt(variance / N) + 1e-6).all()
        assert (np.abs(x.var(0) - variance) < 0.08 * variance).all()
    lkj = d.LKJCholesky(3, 1.5).sample((N,)).double().numpy()
    correlations = lkj @ lkj.transpose(0, 2, 1)
    # PyTorch's sampler takes other beta numbers from the third row on. The marginal of a correlation a
    # beta number of concentration + (dim - 2) / 2 twice, on (-1, 1).
    x = np.sort((correlations[:, 2, 1] + 1) / 2)
    away = np.abs(scipy.stats.beta.cdf(x, 2.0, 2.0) - (np.arange(N) + 0.5) / N)
    assert away.max() < 1.95 / math.sqrt(N)


@pytest.mark.one_in(2)
def test_a_seed_gives_the_same_samples_on_every_device(device: str) -> None:
    rates = webtorch.tensor([0.2, 1.0, 6.0, 30.0, 400.0] * 4)
    probs = webtorch.tensor([0.1, 0.4, 0.6, 0.97, 0.0] * 4)

    def draw(where: str) -> list[Any]:
        webtorch.manual_seed(7)
        a, p = rates.to(where), probs.to(where)
        return [
            webtorch._standard_gamma(a).tolist(),
            webtorch.poisson(a).tolist(),
            webtorch.binomial(a.floor(), p).tolist(),
            d.VonMises(0.0, a).sample().tolist(),
        ]

    here, there = draw(device), draw("cpu")
    for mine, theirs in zip(here, there, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=2e-4, atol=2e-5)


def test_other_dtypes() -> None:
    webtorch.manual_seed(0)
    rates = {
        kind: webtorch.full((2000,), 4.0, dtype=kind)
        for kind in (webtorch.float16, webtorch.bfloat16, webtorch.float64)
    }
    for kind, rate in rates.items():
        x = webtorch._standard_gamma(rate)
        assert x.dtype is kind
        assert abs(float(x.double().mean()) - 4.0) < 0.25
    x = webtorch.poisson(rates[webtorch.bfloat16])
    assert x.dtype is webtorch.bfloat16
    assert abs(float(x.double().mean()) - 4.0) < 0.25


@pytest.mark.parametrize(
    "name",
    ["gamma", *(pytest.param(n, marks=pytest.mark.long) for n in ("poisson", "binomial", "beta"))],
)
def test_machine_code_draws_what_numpy_draws(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # Formulas as long as these become machine code late: few tests draw often enough.
    x = webtorch.tensor([0.3, 1.0, 2.5, 40.0, 3000.0])
    draw = {
        "gamma": lambda: webtorch._standard_gamma(x),
        "poisson": lambda: webtorch.poisson(x),
        "binomial": lambda: webtorch.binomial(x.ceil(), x / (1 + x)),
        "beta": lambda: d.Beta(x, x + 1).rsample(),
    }[name]

    def drawn(native: bool) -> list[float]:
        monkeypatch.setattr(KernelRunner, "_pays", lambda self: native)
        webtorch.manual_seed(3)
        values: list[float] = draw().tolist()
        return values

    by_numpy = drawn(False)
    before = jit.counts()
    np.testing.assert_allclose(drawn(True), by_numpy, rtol=1e-5)
    after = jit.counts()
    assert after["hits"] + after["misses"] > before["hits"] + before["misses"]


def test_edges_and_errors_of_samplers() -> None:
    nan, inf = math.nan, math.inf
    assert webtorch.poisson(webtorch.tensor([0.0, inf])).tolist() == [0.0, inf]
    assert webtorch.poisson(webtorch.tensor(nan)).isnan().item()
    assert webtorch.poisson(webtorch.zeros(0, 3)).shape == (0, 3)
    count = webtorch.tensor([0.0, 5.0, 5.0, 7.0])
    assert webtorch.binomial(count, webtorch.tensor([0.5, 0.0, 1.0, nan])).tolist()[:3] == [0, 0, 5]
    assert webtorch.binomial(count, webtorch.tensor(nan)).isnan().all().item()
    assert webtorch._standard_gamma(webtorch.tensor([0.0])).tolist() == [0.0]
    with pytest.raises(RuntimeError, match="expected rate to be non-negative"):
        webtorch.poisson(webtorch.tensor([-1.0]))
    with pytest.raises(NotImplementedError, match="only supports floating-point dtypes for count"):
        webtorch.binomial(webtorch.tensor([3]), webtorch.tensor([0.5]))
    with pytest.raises(TypeError, match="'prob' must be Tensor, not float"):
        webtorch.binomial(webtorch.tensor([3.0]), 0.5)
    first, second = (webtorch.Generator().manual_seed(4) for _ in range(2))
    rates = webtorch.tensor([3.0, 20.0])
    assert webtorch.poisson(rates, generator=first).equal(webtorch.poisson(rates, second))
    x = webtorch.tensor([3.0], requires_grad=True)
    webtorch.poisson(x).sum().backward()
    assert x.grad is not None and x.grad.tolist() == [0.0]


# -- gradients -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_gradient_of_a_gamma_number_is_that_of_its_quantile(dtype: str) -> None:
    """Against differences of SciPy's quantiles; PyTorch's own are within 5e-4 of them."""
    alpha, u = np.meshgrid([0.1, 0.5, 1, 2, 9, 40, 99, 101, 1e4], [1e-3, 0.1, 0.5, 0.9, 0.9999])
    x = scipy.special.gammaincinv(alpha, u)
    step = 1e-5 * alpha
    wanted = scipy.special.gammaincinv(alpha + step, u) - scipy.special.gammaincinv(alpha - step, u)
    kind = getattr(webtorch, dtype)
    got = samplers.standard_gamma_grad(
        webtorch.tensor(alpha.tolist(), dtype=kind), webtorch.tensor(x.tolist(), dtype=kind)
    )
    rtol = 1e-5 if dtype == "float32" else 1e-6
    np.testing.assert_allclose(got.numpy(), wanted / (2 * step), rtol=rtol, atol=1e-12)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_gradient_of_a_beta_number_is_that_of_its_quantile(dtype: str) -> None:
    sizes = [0.2, 0.7, 4.0, 60.0, 350.0, 3000.0]
    a, b, u = np.meshgrid(sizes, sizes, [0.02, 0.3, 0.5, 0.9])
    x = scipy.special.betaincinv(a, b, u)
    step = 1e-5 * a
    wanted = scipy.special.betaincinv(a + step, b, u) - scipy.special.betaincinv(a - step, b, u)
    inside = (x > 1e-5) & (x < 1 - 1e-4)
    x, a, b, wanted = x[inside], a[inside], b[inside], (wanted / (2 * step))[inside]
    kind = getattr(webtorch, dtype)
    got = samplers.dirichlet_grad(*[webtorch.tensor(v.tolist(), dtype=kind) for v in (x, a, a + b)])
    np.testing.assert_allclose(got.numpy(), wanted / (1 - x), rtol=5e-3)


def test_gradient_of_a_beta_number_of_a_small_and_a_large_count() -> None:
    """In float32, too: near 1, where a sum of the counts has lost most of the small one."""
    webtorch.manual_seed(0)
    a = webtorch.full((40,), 100.0, requires_grad=True)
    x = d.Beta(a, webtorch.full((40,), 0.01)).rsample()
    x.sum().backward()
    at = torch.from_numpy(x.detach().numpy()).double()
    counts = torch.full_like(at, 100.0)
    wanted = torch._dirichlet_grad(at, counts, counts + 0.01) * (1 - at)
    assert a.grad is not None
    np.testing.assert_allclose(a.grad.numpy(), wanted.numpy(), rtol=2e-3, atol=1e-12)


REPARAMETERISED: dict[str, Callable[[Any, Any, Any], Any]] = {
    "gamma": lambda d, a, b: d.Gamma(a, b),
    "beta": lambda d, a, b: d.Beta(a, b),
    "dirichlet": lambda d, a, b: d.Dirichlet(a * b),
    "student": lambda d, a, b: d.StudentT(b + 2, a, b),
    "weibull": lambda d, a, b: d.Weibull(a, b),
    "gumbel": lambda d, a, b: d.Gumbel(a, b),
}


@pytest.mark.one_in(3)
@pytest.mark.parametrize("name", ["gamma", "dirichlet", "beta"])
def test_gradients_of_samples_are_pytorchs_for_the_same_sample(name: str) -> None:
    """The backward of PyTorch's samplers, given our samples."""
    a = webtorch.tensor([0.6, 1.5, 4.0], dtype=webtorch.float64, requires_grad=True)
    b = webtorch.tensor([2.0, 0.7, 1.1], dtype=webtorch.float64)
    x = REPARAMETERISED[name](d, a, b).rsample((4,))
    weights = torch.linspace(0.5, 2.0, x.numel(), dtype=torch.float64).reshape(tuple(x.shape))
    (x * webtorch.from_numpy(weights.numpy())).sum().backward()
    ta, tb = torch.from_numpy(a.detach().numpy()), torch.from_numpy(b.numpy())
    tx = torch.from_numpy(x.detach().numpy())
    if name == "gamma":
        slope = torch._standard_gamma_grad(ta.expand(4, 3).contiguous(), tx * tb) / tb
        wanted = (slope * weights).sum(0)
    elif name == "beta":
        slope = torch._dirichlet_grad(
            tx, ta.expand(4, 3).contiguous(), (ta + tb).expand(4, 3).contiguous()
        )
        wanted = (slope * (1 - tx) * weights).sum(0)
    else:
        c = (ta * tb).expand(4, 3).contiguous()
        slope = torch._dirichlet_grad(tx, c, c.sum(-1, True).expand(4, 3).contiguous())
        wanted = (slope * (weights - (tx * weights).sum(-1, True))).sum(0) * tb
    assert a.grad is not None
    np.testing.assert_allclose(a.grad.numpy(), wanted.numpy(), rtol=3e-3)


@pytest.mark.one_in(2)
@pytest.mark.parametrize("name", REPARAMETERISED)
def test_gradients_of_samples_are_those_of_the_mean(name: str) -> None:
    """The mean of the gradients is the gradient of the mean (6 standard errors, fixed seed)."""
    webtorch.manual_seed(2)
    start = webtorch.tensor([1.3, 2.5])
    a = start.expand(N, 2).clone().requires_grad_()
    b = webtorch.tensor([2.0, 3.0])
    x = REPARAMETERISED[name](d, a, b).rsample()
    x[..., 0].sum().backward()
    assert a.grad is not None
    each = a.grad.numpy()[:, 0]
    leaf = start.clone().requires_grad_()
    REPARAMETERISED[name](d, leaf, b).mean[0].backward()
    assert leaf.grad is not None
    assert abs(each.mean() - leaf.grad.numpy()[0]) < 6 * each.std() / math.sqrt(N) + 1e-5
