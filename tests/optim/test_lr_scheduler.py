"""Learning rate schedules against PyTorch: rates, momenta, state dicts, resuming, messages."""

from __future__ import annotations

import inspect
import math
from copy import deepcopy
from typing import Any

import pytest
import torch

import webtorch
from webtorch import nn, optim
from webtorch.optim import lr_scheduler

STEPS = 60


class Halving:
    """A callable object, whose state belongs to the state dict."""

    def __init__(self, every: int) -> None:
        self.every = every

    def __call__(self, epoch: int) -> float:
        return 0.5 ** (epoch // self.every)


def recipe(name: str, *args: Any, **kwargs: Any) -> Any:
    """Return a function that makes the schedule in one of the libraries."""
    return lambda lib, optimizer: getattr(lib, name)(optimizer, *args, **kwargs)


def sequential(lib: Any, optimizer: Any) -> Any:
    parts = [
        lib.LinearLR(optimizer, 0.1, 1.0, 5),
        lib.CosineAnnealingLR(optimizer, 20),
        lib.ExponentialLR(optimizer, 0.9),
    ]
    return lib.SequentialLR(optimizer, parts, [5, 30])


def nested(lib: Any, optimizer: Any) -> Any:
    inner = lib.SequentialLR(
        optimizer, [lib.ConstantLR(optimizer, 0.5, 3), lib.StepLR(optimizer, 4, 0.7)], [6]
    )
    return lib.SequentialLR(optimizer, [inner, lib.PolynomialLR(optimizer, 30, 2.0)], [25])


def chained(lib: Any, optimizer: Any) -> Any:
    return lib.ChainedScheduler(
        [lib.ConstantLR(optimizer, 0.1, 4), lib.ExponentialLR(optimizer, 0.95)], optimizer
    )


SCHEDULES: dict[str, Any] = {
    "LambdaLR": recipe("LambdaLR", lambda epoch: 1 / (1 + epoch)),
    "LambdaLR list": recipe("LambdaLR", [lambda e: 0.95**e, Halving(7)]),
    "MultiplicativeLR": recipe("MultiplicativeLR", lambda epoch: 0.97),
    "StepLR": recipe("StepLR", 7),
    "StepLR gamma": recipe("StepLR", 3, gamma=0.8),
    "MultiStepLR": recipe("MultiStepLR", [5, 5, 20, 40], gamma=0.5),
    "ConstantLR": recipe("ConstantLR", 0.25, 11),
    "LinearLR": recipe("LinearLR", 0.1, 0.6, 23),
    "ExponentialLR": recipe("ExponentialLR", 0.93),
    "PolynomialLR": recipe("PolynomialLR", 40, 1.7),
    "CosineAnnealingLR": recipe("CosineAnnealingLR", 15, eta_min=0.01),
    "CosineAnnealingLR long": recipe("CosineAnnealingLR", 100),
    "CosineAnnealingWarmRestarts": recipe("CosineAnnealingWarmRestarts", 5, 2, 0.001),
    "CosineAnnealingWarmRestarts 1": recipe("CosineAnnealingWarmRestarts", 9),
    "SequentialLR": sequential,
    "SequentialLR nested": nested,
    "ChainedScheduler": chained,
    "OneCycleLR": recipe("OneCycleLR", 0.5, total_steps=STEPS + 1),
    "OneCycleLR linear": recipe("OneCycleLR", [0.5, 0.1], epochs=31, steps_per_epoch=2,
                                anneal_strategy="linear", three_phase=True, pct_start=0.4),
    "OneCycleLR still": recipe("OneCycleLR", 0.5, total_steps=STEPS, cycle_momentum=False),
    "CyclicLR": recipe("CyclicLR", 0.01, 0.4, 7),
    "CyclicLR 2": recipe("CyclicLR", 0.01, [0.4, 0.5], 5, 9, mode="triangular2"),
    "CyclicLR exp": recipe("CyclicLR", 0.01, 0.4, 5, mode="exp_range", gamma=0.97,
                           cycle_momentum=False),
    "CyclicLR custom": recipe("CyclicLR", 0.01, 0.4, 5, scale_fn=Halving(2)),
}  # fmt: skip
OPTIMIZERS = {"SGD": {"lr": 0.2, "momentum": 0.7}, "Adam": {"lr": 0.2}}


def optimizers(name: str = "SGD") -> tuple[Any, Any]:
    """Return the same optimizer of two groups in both libraries."""
    ours = [nn.Parameter(webtorch.zeros(2, device="cpu")) for _ in range(2)]
    theirs = [torch.nn.Parameter(torch.zeros(2)) for _ in range(2)]

    def groups(params: list[Any]) -> list[dict[str, Any]]:
        return [{"params": params[0]}, {"params": params[1], "lr": 0.05}]

    options: dict[str, Any] = OPTIMIZERS[name]
    return getattr(optim, name)(groups(ours), **options), getattr(torch.optim, name)(
        groups(theirs), **options
    )


def plain(value: Any) -> Any:
    """Return a state dict in comparable form."""
    if isinstance(value, dict):
        return {key: plain(one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(one) for one in value]
    return value


def assert_close(actual: Any, expected: Any) -> None:
    """Raise unless both hold the same numbers to the last digits."""
    if isinstance(expected, dict):
        assert set(actual) == set(expected)
        for key in expected:
            assert_close(actual[key], expected[key])
    elif isinstance(expected, (list, tuple)):
        assert len(actual) == len(expected)
        for one, other in zip(actual, expected, strict=True):
            assert_close(one, other)
    elif isinstance(expected, float):
        assert math.isclose(actual, expected, rel_tol=1e-12, abs_tol=1e-15)
    else:
        assert actual == expected


def options_of(optimizer: Any) -> list[dict[str, Any]]:
    return [{k: v for k, v in g.items() if k != "params"} for g in optimizer.param_groups]


# A sequence starts its first member anew, which a member that is a sequence reports.
@pytest.mark.covers("K10")
@pytest.mark.filterwarnings("ignore:Detected call of")
@pytest.mark.parametrize("optimizer_name", OPTIMIZERS)
@pytest.mark.parametrize("name", SCHEDULES)
def test_schedule_follows_pytorch(name: str, optimizer_name: str) -> None:
    ours, theirs = optimizers(optimizer_name)
    schedule = SCHEDULES[name](lr_scheduler, ours)
    reference = SCHEDULES[name](torch.optim.lr_scheduler, theirs)
    for _ in range(STEPS):
        assert_close(options_of(ours), options_of(theirs))
        assert_close(schedule.get_last_lr(), reference.get_last_lr())
        assert_close(plain(schedule.state_dict()), plain(reference.state_dict()))
        ours.step()
        theirs.step()
        schedule.step()
        reference.step()


@pytest.mark.filterwarnings("ignore:Detected call of")
@pytest.mark.parametrize("name", SCHEDULES)
def test_schedule_resumes_from_its_state_dict(name: str) -> None:
    first, _ = optimizers()
    schedule = SCHEDULES[name](lr_scheduler, first)
    rates = []
    saved: Any = None
    for step in range(40):
        first.step()
        schedule.step()
        rates.append(schedule.get_last_lr())
        if step == 19:
            saved = (deepcopy(schedule.state_dict()), options_of(first))
    second, _ = optimizers()
    resumed = SCHEDULES[name](lr_scheduler, second)
    resumed.load_state_dict(saved[0])
    for group, options in zip(second.param_groups, saved[1], strict=True):
        group.update(options)
    second.step()
    for step in range(20, 40):
        resumed.step()
        assert_close(resumed.get_last_lr(), rates[step])


@pytest.mark.parametrize("mode", ["min", "max"])
@pytest.mark.parametrize("threshold_mode", ["rel", "abs"])
def test_plateau_follows_pytorch(mode: str, threshold_mode: str) -> None:
    ours, theirs = optimizers()
    options: dict[str, Any] = {
        "mode": mode, "factor": 0.5, "patience": 2, "threshold": 0.05, "cooldown": 1,
        "threshold_mode": threshold_mode, "min_lr": [0.01, 0.001],
    }  # fmt: skip
    schedule = lr_scheduler.ReduceLROnPlateau(ours, **options)
    reference = torch.optim.lr_scheduler.ReduceLROnPlateau(theirs, **options)
    torch.manual_seed(0)
    for metric in torch.rand(STEPS).tolist():
        schedule.step(metric)
        reference.step(metric)
        assert_close(options_of(ours), options_of(theirs))
        assert_close(schedule.state_dict(), reference.state_dict())
    again = lr_scheduler.ReduceLROnPlateau(ours)
    again.load_state_dict(schedule.state_dict())
    assert again.state_dict() == schedule.state_dict()


@pytest.mark.filterwarnings("ignore:The epoch parameter")
@pytest.mark.parametrize("name", ["StepLR", "MultiStepLR", "ConstantLR", "LinearLR",
                                  "ExponentialLR", "PolynomialLR", "CosineAnnealingLR",
                                  "CosineAnnealingWarmRestarts"])  # fmt: skip
def test_closed_form_agrees_with_pytorch(name: str) -> None:
    ours, theirs = optimizers()
    schedule = SCHEDULES[name](lr_scheduler, ours)
    reference = SCHEDULES[name](torch.optim.lr_scheduler, theirs)
    ours.step()
    theirs.step()
    for epoch in (3, 11, 2, 47):
        schedule.step(epoch)
        reference.step(epoch)
        assert_close(schedule.get_last_lr(), reference.get_last_lr())


@pytest.mark.parametrize("name", ["StepLR", "OneCycleLR", "LambdaLR", "CosineAnnealingLR"])
def test_tensor_learning_rate_is_changed_in_place(name: str) -> None:
    ours, theirs = optimizers()
    for group, other in zip(ours.param_groups, theirs.param_groups, strict=True):
        group["lr"] = webtorch.tensor(group["lr"], device="cpu")
        other["lr"] = torch.tensor(other["lr"])
    rate = ours.param_groups[0]["lr"]
    schedule = SCHEDULES[name](lr_scheduler, ours)
    reference = SCHEDULES[name](torch.optim.lr_scheduler, theirs)
    for _ in range(10):
        ours.step()
        theirs.step()
        schedule.step()
        reference.step()
    assert ours.param_groups[0]["lr"] is rate
    for group, other in zip(ours.param_groups, theirs.param_groups, strict=True):
        assert math.isclose(group["lr"].item(), other["lr"].item(), rel_tol=1e-5)


@pytest.mark.parametrize("name", [n for n in lr_scheduler.__all__ if n != "LRScheduler"])
def test_constructor_takes_pytorch_arguments_with_pytorch_defaults(name: str) -> None:
    ours = inspect.signature(getattr(lr_scheduler, name).__init__).parameters
    theirs = inspect.signature(getattr(torch.optim.lr_scheduler, name).__init__).parameters
    assert list(ours) == list(theirs)
    for key, parameter in theirs.items():
        assert ours[key].default == parameter.default, key


def test_every_schedule_of_pytorch_is_here() -> None:
    assert set(lr_scheduler.__all__) == set(torch.optim.lr_scheduler.__all__)


ERRORS: dict[str, Any] = {
    "no optimizer": lambda lib, o: lib.StepLR(3, 2),
    "lambdas": lambda lib, o: lib.LambdaLR(o, [lambda e: 1.0]),
    "not callable": lambda lib, o: lib.MultiplicativeLR(o, 0.5),
    "factor": lambda lib, o: lib.ConstantLR(o, 2.0),
    "start": lambda lib, o: lib.LinearLR(o, 0.0),
    "end": lambda lib, o: lib.LinearLR(o, 0.5, 1.5),
    "resume": lambda lib, o: lib.StepLR(o, 2, last_epoch=3),
    "T_0": lambda lib, o: lib.CosineAnnealingWarmRestarts(o, 0),
    "T_mult": lambda lib, o: lib.CosineAnnealingWarmRestarts(o, 1, 0),
    "restart epoch": lambda lib, o: lib.CosineAnnealingWarmRestarts(o, 1).step(-2),
    "no schedulers": lambda lib, o: lib.SequentialLR(o, [], []),
    "milestones": lambda lib, o: lib.SequentialLR(o, [lib.StepLR(o, 2)], [3]),
    "plateau member": lambda lib, o: lib.ChainedScheduler([lib.ReduceLROnPlateau(o)], o),
    "plateau factor": lambda lib, o: lib.ReduceLROnPlateau(o, factor=1.0),
    "plateau mode": lambda lib, o: lib.ReduceLROnPlateau(o, mode="best"),
    "plateau threshold": lambda lib, o: lib.ReduceLROnPlateau(o, threshold_mode="x"),
    "plateau min": lambda lib, o: lib.ReduceLROnPlateau(o, min_lr=[1.0]),
    "cycle none": lambda lib, o: lib.OneCycleLR(o, 0.1),
    "cycle total": lambda lib, o: lib.OneCycleLR(o, 0.1, total_steps=-1),
    "cycle epochs": lambda lib, o: lib.OneCycleLR(o, 0.1, epochs=0, steps_per_epoch=3),
    "cycle start": lambda lib, o: lib.OneCycleLR(o, 0.1, total_steps=9, pct_start=2.0),
    "cycle strategy": lambda lib, o: lib.OneCycleLR(o, 0.1, total_steps=9, anneal_strategy="x"),
    "cycle lrs": lambda lib, o: lib.OneCycleLR(o, [0.1], total_steps=9),
    "cyclic mode": lambda lib, o: lib.CyclicLR(o, 0.1, 0.2, mode="x"),
}


@pytest.mark.parametrize("name", ERRORS)
def test_errors_are_those_of_pytorch(name: str) -> None:
    ours, theirs = optimizers()
    with pytest.raises(Exception) as expected:
        ERRORS[name](torch.optim.lr_scheduler, theirs)
    with pytest.raises(type(expected.value)) as actual:
        ERRORS[name](lr_scheduler, ours)
    assert str(actual.value) == str(expected.value)


def test_stepping_past_the_cycle_raises() -> None:
    ours, _ = optimizers()
    schedule = lr_scheduler.OneCycleLR(ours, 0.1, total_steps=3)
    ours.step()
    for _ in range(3):
        schedule.step()
    with pytest.raises(ValueError, match="Tried to step 4 times"):
        schedule.step()


def test_stepping_the_schedule_first_warns() -> None:
    ours, _ = optimizers()
    schedule = lr_scheduler.StepLR(ours, 2)
    with pytest.warns(UserWarning, match="before `optimizer.step"):
        schedule.step()


def test_asking_for_the_rate_the_old_way_warns() -> None:
    ours, _ = optimizers()
    schedule = lr_scheduler.StepLR(ours, 2)
    with pytest.warns(UserWarning, match="get_last_lr"):
        schedule.get_lr()


def test_what_states_of_old_bring_and_what_gives_the_height() -> None:
    def rates(lib: Any) -> list[float]:
        optimizer = lib.optim.SGD([lib.nn.Parameter(lib.zeros(1))], 0.1)
        schedule = lib.optim.lr_scheduler.OneCycleLR(optimizer, 1.0, total_steps=5)
        del schedule._anneal_func_type
        state = schedule.state_dict()
        state["anneal_func"] = lib.optim.lr_scheduler.OneCycleLR._annealing_cos
        schedule.load_state_dict(state)
        found = []
        for _ in range(4):
            optimizer.step()
            schedule.step()
            found.append(schedule.get_last_lr()[0])
        return found

    assert rates(webtorch) == pytest.approx(rates(torch))
    ours, _ = optimizers()
    cyclic = lr_scheduler.CyclicLR(ours, 0.1, 1.0, mode="triangular2", cycle_momentum=False)
    assert inspect.isfunction(cyclic._scale_fn_ref) and cyclic._scale_fn_ref(2) == 0.5
