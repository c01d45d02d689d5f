"""Averaged models, SWALR and update_bn against PyTorch."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import pytest
import torch

import webtorch
from tests.nn.oracle import assert_same, load_same, to_web
from webtorch import nn, optim

# What is tested here is nearly the same on all devices.
pytestmark = pytest.mark.one_in(3, device="webgpu")


def models(device: str) -> tuple[Any, torch.nn.Module]:
    """Return the same small model with batch norm in both libraries."""
    torch.manual_seed(0)
    made = [
        lib.Sequential(lib.Linear(4, 3), lib.BatchNorm1d(3), lib.Linear(3, 2))
        for lib in (nn, torch.nn)
    ]
    load_same(made[0], made[1], device)
    return made[0], made[1]


def train(model: Any, optimizer: Any, x: Any) -> None:
    """Take one step."""
    optimizer.zero_grad()
    (model(x) ** 2).sum().backward()
    optimizer.step()


AVERAGES: list[Any] = [
    lambda lib: {},
    lambda lib: {"use_buffers": True},
    lambda lib: {"avg_fn": lib.get_ema_avg_fn(0.7)},
    lambda lib: {"avg_fn": lib.get_swa_avg_fn()},
    lambda lib: {"multi_avg_fn": lib.get_ema_multi_avg_fn(0.7), "use_buffers": True},
    lambda lib: {"multi_avg_fn": lib.get_swa_multi_avg_fn()},
]


@pytest.mark.parametrize("options", AVERAGES)
def test_averaged_model_averages_as_pytorch(options: Any, device: str) -> None:
    model, reference = models(device)
    ours = optim.swa_utils.AveragedModel(model, **options(optim.swa_utils))
    theirs = torch.optim.swa_utils.AveragedModel(reference, **options(torch.optim.swa_utils))
    assert repr(ours) == repr(theirs)
    optimizer = optim.SGD(model.parameters(), lr=0.01)
    other = torch.optim.SGD(reference.parameters(), lr=0.01)
    x = torch.randn(5, 4)
    for _ in range(3):
        train(model, optimizer, to_web(x, device))
        train(reference, other, x)
        ours.update_parameters(model)
        theirs.update_parameters(reference)
    assert_same(dict(ours.state_dict()), dict(theirs.state_dict()), rtol=1e-4, atol=1e-5)
    assert_same(ours.eval()(to_web(x, device)), theirs.eval()(x), rtol=1e-4, atol=1e-5)
    with pytest.raises(AssertionError, match="Only one of avg_fn"):
        optim.swa_utils.AveragedModel(model, avg_fn=abs, multi_avg_fn=abs)  # type: ignore[arg-type]


def test_update_bn_takes_the_statistics_of_all_batches(device: str) -> None:
    model, reference = models(device)
    batches = [torch.randn(6, 4) for _ in range(3)]
    optim.swa_utils.update_bn([(to_web(b, device), 0) for b in batches], model)
    torch.optim.swa_utils.update_bn([(b, 0) for b in batches], reference)
    assert_same(dict(model.state_dict()), dict(reference.state_dict()), rtol=1e-4, atol=1e-5)
    assert model[1].momentum == 0.1


@pytest.mark.parametrize("epochs", [0, 1, 4])
@pytest.mark.parametrize("strategy", ["cos", "linear"])
def test_swalr_sets_pytorch_rates(strategy: Any, epochs: int) -> None:
    ours, theirs = nn.Parameter(webtorch.ones(2)), torch.nn.Parameter(torch.ones(2))
    optimizer, other = optim.SGD([ours], lr=0.3), torch.optim.SGD([theirs], lr=0.3)
    schedule = optim.swa_utils.SWALR(optimizer, 0.05, epochs, strategy)
    reference = torch.optim.swa_utils.SWALR(other, 0.05, epochs, strategy)
    for _ in range(6):
        optimizer.step()
        other.step()
        schedule.step()
        reference.step()
        assert schedule.get_last_lr() == pytest.approx(reference.get_last_lr())
    assert set(schedule.state_dict()) == set(reference.state_dict())
    again = deepcopy(schedule)
    again.load_state_dict(reference.state_dict())
    assert again.anneal_func(0.3) == pytest.approx(reference.anneal_func(0.3))


def test_decay_outside_of_one_is_an_error() -> None:
    for make in (optim.swa_utils.get_ema_avg_fn, optim.swa_utils.get_ema_multi_avg_fn):
        with pytest.raises(ValueError, match="Invalid decay value"):
            make(1.5)
