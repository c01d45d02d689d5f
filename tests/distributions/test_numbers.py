"""Every distribution's numbers are PyTorch's: densities, moments, quantiles, divergences, checks and errors."""

from __future__ import annotations

import importlib
import inspect
import warnings
from collections.abc import Iterator
from typing import Any

import pytest
import torch

import webtorch
import webtorch.distributions
from tests.distributions.both import CASES, dtype_of, ours, pair, parameters, same, tensor

# PyTorch takes short polynomials for the Bessel functions, and float32 for a constant of the multinomial's entropy and
# for comparisons of the generalized Pareto distribution.
COARSE = {"VonMises": 3e-4, "Multinomial": 1e-6, "Multinomial logits": 1e-6}


def tolerance(name: str) -> float:
    """Return the relative error that a case may have."""
    return COARSE.get(name, 2e-5 if dtype_of(name) == "float32" else 1e-9)


@pytest.fixture
def _validated() -> Iterator[None]:
    """PyTorch's compiler, once used, leaves its distributions unchecked."""
    before = torch.distributions.Distribution._validate_args
    torch.distributions.Distribution.set_default_validate_args(True)
    yield
    torch.distributions.Distribution.set_default_validate_args(before)


MOMENTS = ("mean", "mode", "variance", "stddev")


@pytest.mark.one_in(2)
@pytest.mark.parametrize("name", CASES)
def test_distribution(name: str) -> None:
    torch.manual_seed(0)
    theirs, mine = pair(name)
    rtol = tolerance(name)
    assert repr(mine) == repr(theirs)
    for attribute in ("batch_shape", "event_shape", "has_rsample", "has_enumerate_support"):
        assert getattr(mine, attribute) == getattr(theirs, attribute), attribute
    assert mine.support.is_discrete == theirs.support.is_discrete
    assert mine.support.event_dim == theirs.support.event_dim
    assert type(mine.support).__name__ == type(theirs.support).__name__
    for moment in MOMENTS:
        check_same_or_refused(lambda d, m=moment: getattr(d, m), mine, theirs, rtol)
    for method in ("entropy", "enumerate_support"):
        check_same_or_refused(lambda d, m=method: getattr(d, m)(), mine, theirs, rtol)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PyTorch's Wishart warns of every sample
        value = theirs.sample((6,))
    assert mine.support.check(ours(value)).numpy().tolist() == theirs.support.check(value).tolist()
    same(mine.log_prob(ours(value)), theirs.log_prob(value), rtol)
    check_same_or_refused(lambda d: d.cdf(ours(value) if d is mine else value), mine, theirs, rtol)
    u = torch.rand(theirs.batch_shape + theirs.event_shape, dtype=getattr(torch, dtype_of(name)))
    check_same_or_refused(lambda d: d.icdf(ours(u) if d is mine else u), mine, theirs, rtol)
    drawn = mine.sample((6,))
    assert (tuple(drawn.shape), drawn.dtype) == (tuple(value.shape), ours(value).dtype)
    assert bool(mine.support.check(drawn).all())


def check_same_or_refused(call: Any, mine: Any, theirs: Any, rtol: float) -> None:
    """The same numbers, or the same error."""
    try:
        wanted = call(theirs)
    except (NotImplementedError, ValueError, AttributeError, TypeError) as error:
        with pytest.raises(type(error)):
            call(mine)
    else:
        same(call(mine), wanted, rtol)


@pytest.mark.parametrize("name", CASES)
def test_expand(name: str) -> None:
    theirs, mine = pair(name)
    shape = (3, *theirs.batch_shape)
    theirs, mine = theirs.expand(torch.Size(shape)), mine.expand(shape)
    assert (mine.batch_shape, mine.event_shape) == (theirs.batch_shape, theirs.event_shape)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        value = theirs.sample((2,))
    same(mine.log_prob(ours(value)), theirs.log_prob(value), tolerance(name))
    assert tuple(mine.sample((2,)).shape) == tuple(value.shape)
    assert type(mine) is type(mine.expand(shape))


@pytest.mark.parametrize("name", CASES)
def test_gradients_of_log_prob(name: str) -> None:
    """The gradient of log_prob for every parameter that is a tensor."""
    torch.manual_seed(1)
    kept: dict[Any, list[Any]] = {torch: [], webtorch: []}

    def leaf(library: Any) -> Any:
        def make(values: Any) -> Any:
            kept[library].append(tensor(library, values, dtype_of(name)).requires_grad_())
            return kept[library][-1]

        return make

    theirs = CASES[name](torch.distributions, leaf(torch))
    mine = CASES[name](webtorch.distributions, leaf(webtorch))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        value = theirs.sample((3,))
    theirs.log_prob(value).sum().backward()
    mine.log_prob(ours(value)).sum().backward()
    for own, other in zip(kept[webtorch], kept[torch], strict=True):
        assert (own.grad is None) == (other.grad is None)
        if other.grad is not None:
            same(own.grad, other.grad, 10 * tolerance(name), 1e-8)


# -- divergences ----------------------------------------------------------------------------------------------------


def test_the_same_pairs_have_a_divergence() -> None:
    from torch.distributions import kl as theirs

    from webtorch.distributions import kl as mine

    def names(registry: Any) -> set[tuple[str, str]]:
        return {(p.__name__, q.__name__) for p, q in registry}

    assert names(mine._KL_REGISTRY) == names(theirs._KL_REGISTRY)


def _second(name: str) -> str:
    return f"{name} logits" if f"{name} logits" in CASES and name != "Binomial" else name


@pytest.mark.one_in(3)
@pytest.mark.parametrize("first", [n for n in CASES if " " not in n])
def test_divergences(first: str) -> None:
    """Against every distribution that broadcasts against it."""
    p, mine = pair(first)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for second in [n for n in CASES if " " not in n]:
            q, others = pair(_second(second))
            try:
                wanted = torch.distributions.kl_divergence(p, q)
            except (NotImplementedError, ValueError) as error:
                with pytest.raises(type(error)):
                    webtorch.distributions.kl_divergence(mine, others)
                continue
            except RuntimeError:  # shapes that do not broadcast
                continue
            got = webtorch.distributions.kl_divergence(mine, others)
            same(got, wanted, 1e-7, 1e-9)


@pytest.mark.usefixtures("_validated")
def test_divergences_of_one_kind_with_other_numbers() -> None:
    """That of a distribution with itself is 0, whatever the formula."""
    found = []
    for name in [n for n in CASES if " " not in n]:
        p, mine = pair(name)
        try:
            q, others = pair(name, turned=True)
            wanted = torch.distributions.kl_divergence(p, q)
        except (NotImplementedError, ValueError):  # no formula, or a matrix that is none any more
            continue
        same(webtorch.distributions.kl_divergence(mine, others), wanted, 1e-7, 1e-9)
        if (wanted > 1e-3).any():
            found.append(name)
    assert len(found) >= 12 and "Beta" in found, found


def test_register_kl_dispatches_to_the_most_specific_pair() -> None:
    from webtorch.distributions import Distribution, Normal, kl_divergence, register_kl

    class Special(Normal):
        pass

    register_kl(Special, Distribution)(lambda p, q: "first")
    with pytest.warns(RuntimeWarning, match="Ambiguous kl_divergence"):
        assert kl_divergence(Special(0.0, 1.0), Normal(0.0, 1.0)) == "first"
    register_kl(Special, Normal)(lambda p, q: "pair")
    assert kl_divergence(Special(0.0, 1.0), Normal(0.0, 1.0)) == "pair"
    for key in ((Special, Distribution), (Special, Normal)):
        del webtorch.distributions.kl._KL_REGISTRY[key]
    webtorch.distributions.kl._KL_MEMOIZE.clear()


# -- wrong parameters and values ------------------------------------------------------------------------------------

WRONG: dict[str, Any] = {
    "scale": lambda d, t: d.Normal(t([0.0, 1.0]), t([1.0, -1.0])),
    "nan": lambda d, t: d.Normal(t(float("nan")), t(1.0)),
    "simplex": lambda d, t: d.Dirichlet(t([[1.0, -2.0]])),
    "bounds": lambda d, t: d.Uniform(t(1.0), t([0.0, 2.0])),
    "both": lambda d, t: d.Bernoulli(t(0.5), t(0.5)),
    "neither": lambda d, t: d.Categorical(),
    "0-d": lambda d, t: d.Categorical(t(0.5)),
    "probability": lambda d, t: d.Bernoulli(t([0.5, 1.5])),
    "failure": lambda d, t: d.Geometric(t([0.0, 0.5])),
    "count": lambda d, t: d.Multinomial(t([2.0]), t([0.5, 0.5])),
    "matrix": lambda d, t: d.MultivariateNormal(t([0.0, 0.0]), t([[1.0, 2.0], [2.0, 1.0]])),
    "tril": lambda d, t: d.MultivariateNormal(t([0.0, 0.0]), scale_tril=t([[1.0, 2.0], [0.0, 1.0]])),
    "two": lambda d, t: d.MultivariateNormal(t([0.0]), t([[1.0]]), t([[1.0]])),
    "df": lambda d, t: d.Wishart(t(0.5), t([[1.0, 0.0], [0.0, 1.0]])),
    "dims": lambda d, t: d.Independent(d.Normal(t(0.0), t(1.0)), 1),
    "small": lambda d, t: d.LKJCholesky(1, t(1.0)),
    "mixture": lambda d, t: d.MixtureSameFamily(d.Normal(t(0.0), t(1.0)), d.Normal(t([0.0]), t(1.0))),
    "components": lambda d, t: d.MixtureSameFamily(
        d.Categorical(t([0.5, 0.5])), d.Normal(t([0.0, 1.0, 2.0]), t(1.0))
    ),
    "transform": lambda d, t: d.TransformedDistribution(d.Normal(t(0.0), t(1.0)), [3]),
    "text": lambda d, t: d.Normal("0", 1.0),
    "value": lambda d, t: d.Exponential(t([1.0, 2.0])).log_prob(t([-1.0, 1.0])),
    "category": lambda d, t: d.Categorical(t([0.5, 0.5])).log_prob(t([2.0])),
    "shape": lambda d, t: d.Normal(t([0.0, 1.0]), t(1.0)).log_prob(t([1.0, 2.0, 3.0])),
    "event": lambda d, t: d.Dirichlet(t([1.0, 1.0])).log_prob(t([0.2, 0.3, 0.5])),
    "number": lambda d, t: d.Normal(t(0.0), t(1.0)).log_prob(1.0),
    "one-hot": lambda d, t: d.OneHotCategorical(t([0.5, 0.5])).log_prob(t([1.0, 1.0])),
    "counts": lambda d, t: d.Binomial(t([1.0, 2.0]), t(0.5)).enumerate_support(),
    "mode": lambda d, t: d.Multinomial(2, t([0.5, 0.5])).mode,
    "cartesian": lambda d, t: d.Independent(d.Bernoulli(t([0.5])), 1).enumerate_support(),
    "cache": lambda d, t: d.ExpTransform(cache_size=2),
    "reshape": lambda d, t: d.ReshapeTransform((4,), (3,)),
    "no divergence": lambda d, t: d.kl_divergence(d.Normal(t(0.0), t(1.0)), d.Bernoulli(t(0.5))),
    "no transform": lambda d, t: d.biject_to(d.constraints.boolean),
    "rsample": lambda d, t: d.Bernoulli(t(0.5)).rsample(),
}  # fmt: skip


@pytest.mark.usefixtures("_validated")
@pytest.mark.parametrize("name", WRONG)
def test_errors_are_pytorchs(name: str) -> None:
    with pytest.raises(Exception) as wanted:
        WRONG[name](torch.distributions, lambda v: tensor(torch, v))
    with pytest.raises(type(wanted.value)) as got:
        WRONG[name](webtorch.distributions, lambda v: tensor(webtorch, v))
    # A class is named with its module; runs of blanks in some texts are PyTorch's line continuations.
    text, mine = (" ".join(str(error.value).split()) for error in (wanted, got))
    assert mine.replace("webtorch.", "torch.") == text


def test_nothing_is_checked_without_validate_args() -> None:
    distribution = webtorch.distributions.Normal(0.0, webtorch.tensor([-1.0]), validate_args=False)
    assert distribution.log_prob(webtorch.tensor([1.0])).isnan().item()
    with pytest.raises(ValueError, match="to satisfy the constraint GreaterThan"):
        webtorch.distributions.Normal(0.0, webtorch.tensor([-1.0]))
    webtorch.distributions.Distribution.set_default_validate_args(False)
    try:
        webtorch.distributions.Normal(0.0, webtorch.tensor([-1.0]))
    finally:
        webtorch.distributions.Distribution.set_default_validate_args(True)


# -- names and signatures -------------------------------------------------------------------------------------------

MODULES = [
    "constraints", "transforms", "kl", "constraint_registry", "utils", "distribution", "exp_family",
    *sorted({n.lower() for n in ("bernoulli", "beta", "binomial", "categorical", "cauchy", "chi2")}),
    "continuous_bernoulli", "dirichlet", "exponential", "fishersnedecor", "gamma", "generalized_pareto",
    "geometric", "gumbel", "half_cauchy", "half_normal", "independent", "inverse_gamma", "kumaraswamy",
    "laplace", "lkj_cholesky", "log_normal", "logistic_normal", "lowrank_multivariate_normal",
    "mixture_same_family", "multinomial", "multivariate_normal", "negative_binomial", "normal",
    "one_hot_categorical", "pareto", "poisson", "relaxed_bernoulli", "relaxed_categorical", "studentT",
    "transformed_distribution", "uniform", "von_mises", "weibull", "wishart",
]  # fmt: skip


@pytest.mark.parametrize("module", MODULES)
def test_names_and_signatures_are_pytorchs(module: str) -> None:
    theirs = importlib.import_module(f"torch.distributions.{module}")
    mine = importlib.import_module(f"webtorch.distributions.{module}")
    assert set(mine.__all__) == set(theirs.__all__)
    for name in theirs.__all__:
        own, other = getattr(mine, name), getattr(theirs, name)
        if inspect.isfunction(other):
            assert parameters(own) == parameters(other), name
        if not inspect.isclass(other):
            continue
        if name not in ("lazy_property", "dependent_property"):
            assert parameters(own.__init__) == parameters(other.__init__), name
        for member in dir(other):
            if member.startswith("_") and member not in ("_validate_sample", "_extended_shape"):
                continue
            assert hasattr(own, member), f"{name}.{member}"
            if inspect.isfunction(getattr(other, member)):
                assert parameters(getattr(own, member)) == parameters(getattr(other, member)), (
                    f"{name}.{member}"
                )


def test_the_package_has_pytorchs_names() -> None:
    assert set(webtorch.distributions.__all__) == set(torch.distributions.__all__)
