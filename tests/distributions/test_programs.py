"""Programs with distributions: PyTorch's steps with the same noise, eagerly and captured."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import webtorch
import webtorch.distributions
from webtorch.distributions import normal as our_normal


class Noise:
    """The same normal numbers for both libraries, in order."""

    def __init__(self, library: Any) -> None:
        self.library, self.random = library, np.random.default_rng(0)

    def __call__(self, shape: Any, dtype: Any, device: Any) -> Any:
        values = self.random.standard_normal(tuple(shape))
        return self.library.tensor(values.tolist(), dtype=dtype, device=device)


def _data(library: Any, *shape: int, seed: int = 1) -> Any:
    return library.tensor(np.random.default_rng(seed).standard_normal(shape).tolist())


def autoencoder(t: Any, device: str) -> tuple[list[Any], Callable[[], Any]]:
    """A variational autoencoder: a normal posterior, Bernoulli pixels, an analytic divergence."""
    d = t.distributions
    weights = [_data(t, *shape, seed=i) * 0.3 for i, shape in enumerate(((6, 4), (2, 6)))]
    weights = [w.to(device).requires_grad_() for w in weights]
    pixels = (_data(t, 8, 6, seed=5) > 0).float().to(device)

    def loss() -> Any:
        loc, log_scale = (pixels @ weights[0]).chunk(2, dim=-1)
        posterior = d.Independent(d.Normal(loc, log_scale.exp()), 1)
        prior = d.Independent(d.Normal(t.zeros_like(loc), t.ones_like(loc)), 1)
        z = posterior.rsample()
        likelihood = d.Independent(d.Bernoulli(logits=z @ weights[1]), 1)
        return (d.kl_divergence(posterior, prior) - likelihood.log_prob(pixels)).mean()

    return weights, loss


def flow(t: Any, device: str) -> tuple[list[Any], Callable[[], Any]]:
    """A normalizing flow fitted to data by the density of a transformed normal."""
    d = t.distributions
    weights = [_data(t, 3, seed=i) * 0.2 for i in range(4)]
    weights = [w.to(device).requires_grad_() for w in weights]
    data = _data(t, 20, 3, seed=7).exp().to(device)

    def loss() -> Any:
        base = d.Independent(d.Normal(t.zeros(3, device=device), t.ones(3, device=device)), 1)
        steps = [
            d.AffineTransform(weights[0], weights[1].exp(), event_dim=1),
            d.TanhTransform(cache_size=1),
            d.TanhTransform().inv,
            d.AffineTransform(weights[2], weights[3].exp(), event_dim=1),
            d.ExpTransform(),
        ]
        return -d.TransformedDistribution(base, steps).log_prob(data).mean()

    return weights, loss


def regression(t: Any, device: str) -> tuple[list[Any], Callable[[], Any]]:
    """A Gaussian process: the marginal likelihood of its hyperparameters."""
    d = t.distributions
    weights = [t.tensor(v).to(device).requires_grad_() for v in (0.1, -0.3, -1.0)]
    x = t.linspace(0, 1, 7).to(device)
    y = (x * 6).sin()

    def loss() -> Any:
        length, scale, noise = [w.exp() for w in weights]
        kernel = scale * (-((x[:, None] - x) / length).square() / 2).exp()
        covariance = kernel + noise * t.eye(7, device=device)
        prior = d.Gamma(t.tensor(2.0, device=device), t.tensor(1.5, device=device))
        gaussian = d.MultivariateNormal(t.zeros(7, device=device), covariance)
        return -gaussian.log_prob(y) - prior.log_prob(length)

    return weights, loss


def policy(t: Any, device: str) -> tuple[list[Any], Callable[[], Any]]:
    """REINFORCE: the log probabilities of given actions, weighted, with an entropy bonus."""
    d = t.distributions
    weights = [(_data(t, 4, 3) * 0.5).to(device).requires_grad_()]
    states, actions = _data(t, 9, 4, seed=3).to(device), t.arange(9).to(device) % 3
    returns = _data(t, 9, seed=4).to(device)

    def loss() -> Any:
        choice = d.Categorical(logits=states @ weights[0])
        return -(choice.log_prob(actions) * returns).mean() - 0.01 * choice.entropy().mean()

    return weights, loss


PROGRAMS = [autoencoder, flow, regression, policy]


def _train(t: Any, program: Any, device: str, wrap: Any = lambda f: f) -> tuple[list[float], Any]:
    weights, loss = program(t, device)
    optimizer = t.optim.Adam(weights, lr=0.05)

    def step() -> Any:
        optimizer.zero_grad()
        value = loss()
        value.backward()
        optimizer.step()
        return value

    run = wrap(step)
    return [float(run().detach()) for _ in range(4)], [w.detach().cpu().numpy() for w in weights]


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p.__name__)
def test_training_goes_as_pytorchs(program: Any, device: str, monkeypatch: Any) -> None:
    monkeypatch.setattr("torch.distributions.normal._standard_normal", Noise(torch))
    monkeypatch.setattr(our_normal, "_standard_normal", Noise(webtorch))
    if program is regression and device == "webgpu":
        device = "cpu"  # factorisations take the matrix to the CPU only where that is allowed
    wanted, theirs = _train(torch, program, "cpu")
    got, ours = _train(webtorch, program, device)
    np.testing.assert_allclose(got, wanted, rtol=2e-4)
    assert got[-1] < got[0]
    for a, b in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-3, atol=2e-3)


@pytest.mark.parametrize("program", [autoencoder, flow, policy], ids=lambda p: p.__name__)
def test_a_captured_step_trains_as_the_eager_one(program: Any) -> None:
    webtorch.manual_seed(3)
    eager, wanted = _train(webtorch, program, "cpu")
    webtorch.manual_seed(3)
    captured, got = _train(webtorch, program, "cpu", webtorch.compile)
    np.testing.assert_allclose(captured, eager, rtol=1e-5)
    for a, b in zip(got, wanted, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)


def test_samplers_draw_anew_in_captured_programs() -> None:
    rates = webtorch.tensor([0.5, 4.0, 90.0])

    def draw() -> Any:
        gamma = webtorch.distributions.Gamma(rates, 2.0).rsample()
        return gamma, webtorch.distributions.Poisson(rates).sample()

    webtorch.manual_seed(8)
    wanted = [[part.tolist() for part in draw()] for _ in range(3)]
    webtorch.manual_seed(8)
    captured = webtorch.compile(draw)
    got = [[part.tolist() for part in captured()] for _ in range(3)]
    assert got[0] != got[1]
    for mine, theirs in zip(got, wanted, strict=True):
        for a, b in zip(mine, theirs, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-5)


def test_values_are_checked_under_vmap() -> None:
    def program(lib: Any) -> tuple[list[float], bool]:
        normal = lib.distributions.Independent(
            lib.distributions.Normal(lib.zeros(2), lib.ones(2)), 1
        )
        values = lib.tensor([[0.0, 1.0], [2.0, 3.0]])
        found = lib.func.vmap(lib.func.grad(lambda x: normal.log_prob(x)))(values)
        try:
            rate = lib.distributions.Exponential(1.0, validate_args=True)
            lib.func.vmap(rate.log_prob)(-values)
        except ValueError:
            return found.flatten().tolist(), True
        return found.flatten().tolist(), False

    assert program(webtorch) == program(torch)
