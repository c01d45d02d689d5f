"""Dropout and its relatives: what is dropped, the scale of what is kept, seeds, gradients and errors."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

import webtorch

F = webtorch.nn.functional
ELEMENTS = ("dropout", "alpha_dropout")
CHANNELS = {"dropout1d": (8, 16, 3), "dropout2d": (8, 16, 2, 2), "dropout3d": (8, 16, 1, 2, 2)}
ALPHA = -1.7580993408473766


def _array(x: Any) -> torch.Tensor:
    return torch.tensor(x.tolist(), dtype=torch.float64)


@pytest.mark.covers("C43")
@pytest.mark.parametrize("p", [0.1, 0.5, 0.8])
def test_dropout_scales_what_it_keeps(p: float, device: str) -> None:
    webtorch.manual_seed(1)
    x = webtorch.ones(100, 100, device=device, requires_grad=True)
    y = F.dropout(x, p)
    found = _array(y)
    kept = found != 0
    torch.testing.assert_close(
        found[kept], torch.full_like(found[kept], 1 / (1 - p)), rtol=1e-6, atol=0
    )
    # Five standard deviations of a binomial share.
    assert abs(kept.double().mean() - (1 - p)) < 5 * math.sqrt(p * (1 - p) / found.numel())
    (y * 3).sum().backward()
    torch.testing.assert_close(_array(x.grad), found * 3)


@pytest.mark.parametrize("name", CHANNELS)
def test_whole_channels_are_dropped(name: str, device: str) -> None:
    webtorch.manual_seed(2)
    shape = CHANNELS[name]
    found = _array(getattr(F, name)(webtorch.ones(shape, device=device), 0.5)).flatten(2)
    assert (found == found[..., :1]).all()
    assert set(found.flatten().tolist()) == {0.0, 2.0}
    assert 0.2 < (found[..., 0] == 0).double().mean() < 0.8


def test_alpha_dropout_keeps_mean_and_variance(device: str) -> None:
    webtorch.manual_seed(3)
    x = webtorch.randn(200, 200, device=device)
    for y in (
        F.alpha_dropout(x, 0.3, training=True),
        F.feature_alpha_dropout(x.view(200, 200, 1), 0.3, True),
    ):
        found = _array(y)
        assert abs(found.mean()) < 0.03
        assert abs(found.var() - 1) < 0.05
    # What is dropped takes one value, the saturation of SELU after the affine correction.
    a = 1 / math.sqrt(0.7 * (1 + 0.3 * ALPHA**2))
    dropped = a * ALPHA - a * ALPHA * 0.3
    share = (_array(F.alpha_dropout(x, 0.3, True)) - dropped).abs().lt(1e-5).double().mean()
    assert abs(share - 0.3) < 0.02


NAMES = (*ELEMENTS, *CHANNELS, "feature_alpha_dropout")


def _input(name: str, device: str) -> Any:
    shape = CHANNELS.get(name, (4, 6))
    return webtorch.arange(1.0, 1.0 + math.prod(shape), device=device).reshape(shape)


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("name", NAMES)
def test_the_edges(name: str, device: str) -> None:
    """P = 0 and evaluation change nothing; p = 1 drops everything, with a gradient of zeros."""
    function, x = getattr(F, name), _input(name, device)
    for y in (function(x, 0.0, True), function(x, 0.7, False)):
        assert y.tolist() == x.tolist()
    x = x.clone().requires_grad_()
    y = function(x, 1.0, True)
    theirs = getattr(torch.nn.functional, name)(torch.tensor(x.tolist()), 1.0, True)
    torch.testing.assert_close(_array(y), theirs.double(), equal_nan=True)
    y.sum().backward()
    assert not any(v != 0 for v in _array(x.grad).flatten())


@pytest.mark.parametrize("name", NAMES)
def test_seeds_and_devices_agree(name: str, device: str) -> None:
    def draw(where: str) -> torch.Tensor:
        webtorch.manual_seed(7)
        return _array(getattr(F, name)(_input(name, where), 0.4, True))

    first = draw(device)
    again = _array(getattr(F, name)(_input(name, device), 0.4, True))
    assert not torch.equal(first, again)
    torch.testing.assert_close(first, draw(device), rtol=0, atol=0)
    torch.testing.assert_close(first, draw("cpu"), rtol=1e-6, atol=1e-6)


def test_inplace(device: str) -> None:
    x = webtorch.ones(50, device=device)
    y = F.dropout(x, 0.5, True, True)
    assert y is x and set(x.tolist()) == {0.0, 2.0}


def test_rrelu(device: str) -> None:
    webtorch.manual_seed(4)
    x = webtorch.linspace(-3, 3, 4000, device=device, requires_grad=True)
    y = F.rrelu(x, 0.2, 0.6, training=True)
    y.sum().backward()
    slope = _array(y) / _array(x)
    negative = _array(x) < 0
    assert (slope[~negative] == 1).all()
    assert slope[negative].min() >= 0.2 - 1e-6 and slope[negative].max() <= 0.6 + 1e-6
    assert abs(slope[negative].mean() - 0.4) < 0.02
    torch.testing.assert_close(_array(x.grad), slope, rtol=1e-5, atol=1e-6)
    expected = torch.nn.functional.rrelu(_array(x), 0.2, 0.6, training=False)
    torch.testing.assert_close(_array(F.rrelu(x, 0.2, 0.6)), expected, rtol=1e-5, atol=1e-6)


def test_gumbel_softmax(device: str) -> None:
    webtorch.manual_seed(5)
    logits = webtorch.tensor([0.5, 0.3, 0.2], device=device).log().expand(6000, 3)
    soft = _array(F.gumbel_softmax(logits, tau=0.7))
    torch.testing.assert_close(
        soft.sum(-1), torch.ones(6000, dtype=torch.float64), rtol=1e-5, atol=0
    )
    hard = _array(F.gumbel_softmax(logits, hard=True))
    assert set(hard.flatten().tolist()) <= {0.0, 1.0} and (hard.sum(-1) == 1).all()
    # The Gumbel trick samples the categories with their own probabilities.
    torch.testing.assert_close(
        hard.mean(0), torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64), rtol=0, atol=0.035
    )


def test_the_hard_choice_has_the_soft_gradient() -> None:
    grads = []
    for hard in (False, True):
        webtorch.manual_seed(6)
        logits = webtorch.tensor([[1.0, 2.0, 0.5]], requires_grad=True)
        out = F.gumbel_softmax(logits, hard=hard, dim=-1)
        (out * webtorch.tensor([1.0, 10.0, 100.0])).sum().backward()
        grads.append(logits.grad.tolist())
    assert any(grads[0][0])
    torch.testing.assert_close(torch.tensor(grads[0]), torch.tensor(grads[1]), rtol=1e-4, atol=1e-5)


ERRORS: dict[str, Callable[[Any], Any]] = {
    "dropout above 1": lambda t: t.nn.functional.dropout(t.ones(3), 1.5),
    "dropout below 0": lambda t: t.nn.functional.dropout(t.ones(3), -0.1),
    "alpha_dropout above 1": lambda t: t.nn.functional.alpha_dropout(t.ones(3), 2.0),
    "dropout2d above 1": lambda t: t.nn.functional.dropout2d(t.ones(2, 3, 2, 2), 2.0),
    "rrelu bounds": lambda t: t.nn.functional.rrelu(t.ones(3), 0.5, 0.1),
}


@pytest.mark.parametrize("name", ERRORS)
def test_errors(name: str) -> None:
    with pytest.raises((ValueError, RuntimeError)) as theirs:
        ERRORS[name](torch)
    with pytest.raises(type(theirs.value)):
        ERRORS[name](webtorch)
