"""Capability rows K: optimizers against PyTorch's over several steps, and options that change while training."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

import webtorch
from tests.capabilities.same import close, ours, rows, values

# What is tested here is nearly the same on all devices.
pytestmark = pytest.mark.one_in(3, device="webgpu")


def descend(
    t: Any, make: Callable[[Any, list[Any]], Any], device: str, change: Any = None, steps: int = 6
) -> list[Any]:
    """Return two parameters after some steps on one loss."""
    start = [values(4, 3, seed=1), values(3, seed=2)]
    params = [
        t.nn.Parameter(ours(x, device)) if t is webtorch else torch.nn.Parameter(x.clone())
        for x in start
    ]
    data = values(5, 4, seed=3)
    x = ours(data, device) if t is webtorch else data
    optimizer = make(t, params)
    for i in range(steps):
        if change is not None:
            change(i, optimizer)
        optimizer.zero_grad()
        ((x @ params[0]).tanh() * params[1] - 0.5).square().sum().backward()
        optimizer.step()
    return params


def agree(make: Callable[[Any, list[Any]], Any], device: str, change: Any = None) -> None:
    """Assert that both libraries end at the same parameters."""
    close(descend(webtorch, make, device, change), descend(torch, make, device, change), 1e-4, 1e-5)


OPTIMIZERS: dict[str, Callable[[Any, list[Any]], Any]] = {
    "K1": lambda t, p: t.optim.SGD(p, lr=0.05),
    "K2": lambda t, p: t.optim.SGD(p, lr=0.05, momentum=0.9, nesterov=True),
    "K3": lambda t, p: t.optim.SGD(p, lr=0.01, momentum=0.9, dampening=0.3, maximize=True),
    "K4": lambda t, p: t.optim.SGD(p, lr=0.05, weight_decay=0.1),
    "K5": lambda t, p: t.optim.Adam(p, lr=0.05),
    # Decay of the matrix alone.
    "K6 K13": lambda t, p: t.optim.AdamW(
        [{"params": [p[0]], "weight_decay": 0.3}, {"params": [p[1]], "weight_decay": 0.0}], lr=0.05
    ),
    "K7": lambda t, p: t.optim.AdamW(p, lr=0.05, betas=(0.5, 0.7), eps=1e-5, amsgrad=True),
}


@pytest.mark.parametrize("make", rows(OPTIMIZERS))
def test_optimizer(make: Callable[[Any, list[Any]], Any], device: str) -> None:
    agree(make, device)


@pytest.mark.covers("K8", "K9")
def test_clipping_together_and_one_by_one(device: str) -> None:
    for alone in (False, True):

        def make(t: Any, p: list[Any], alone: bool = alone) -> Any:
            optimizer = t.optim.SGD(p, lr=0.1)
            clip = t.nn.utils.clip_grad_norm_

            def hook(*_: Any) -> None:
                for group in [[x] for x in p] if alone else [p]:
                    clip(group, 0.1)

            optimizer.register_step_pre_hook(hook)
            return optimizer

        agree(make, device)


@pytest.mark.covers("K10")
@pytest.mark.parametrize(
    "make",
    [
        lambda s, o: s.StepLR(o, 2, 0.5),
        lambda s, o: s.CosineAnnealingLR(o, 5),
        lambda s, o: s.LinearLR(o, 0.1, 1.0, 3),
        lambda s, o: s.MultiStepLR(o, [1, 3], 0.3),
        lambda s, o: s.OneCycleLR(o, 0.2, total_steps=8),
        lambda s, o: s.SequentialLR(o, [s.LinearLR(o, 0.2, 1, 2), s.LambdaLR(o, lambda i: 0.9**i)], [2]),
    ],
    ids=["step", "cosine", "linear", "steps", "one cycle", "warmup"],
)  # fmt: skip
@pytest.mark.filterwarnings("ignore:.*lr_scheduler.step")
@pytest.mark.filterwarnings("ignore:The epoch parameter")
def test_schedule(make: Callable[[Any, Any], Any]) -> None:
    rates = []
    for t in (webtorch, torch):
        optimizer = t.optim.SGD([t.nn.Parameter(t.ones(1))], lr=0.1)
        schedule = make(t.optim.lr_scheduler, optimizer)
        rates.append([])
        for _ in range(6):
            rates[-1].append(optimizer.param_groups[0]["lr"])
            optimizer.step()
            schedule.step()
    assert rates[0] == pytest.approx(rates[1], rel=1e-12)


def _kernels(device: str) -> int:
    return webtorch.ones(1, device=device)._storage.runtime.counters.misses


@pytest.mark.covers("K11", "K12")
def test_other_options_at_each_step_compile_nothing(device: str) -> None:
    counts: list[int] = []

    def change(i: int, optimizer: Any) -> None:
        group = optimizer.param_groups[0]
        group["lr"], group["betas"] = 0.02 / (i + 1), (0.9 - 0.01 * i, 0.99)
        group["weight_decay"], group["eps"] = 0.01 * (i + 1), 1e-8 * (i + 1)
        if isinstance(optimizer, webtorch.optim.Optimizer):
            counts.append(_kernels(device))

    agree(lambda t, p: t.optim.AdamW(p), device, change)
    assert counts[-1] == counts[3]


@pytest.mark.covers("K14")
def test_closure(device: str) -> None:
    p = webtorch.nn.Parameter(webtorch.ones(2, device=device))
    optimizer = webtorch.optim.SGD([p], lr=0.5)

    def closure() -> Any:
        optimizer.zero_grad()
        loss = (p**2).sum()
        loss.backward()
        return loss

    assert optimizer.step(closure).item() == 2.0
    assert p.tolist() == [0, 0]


@pytest.mark.covers("K15")
def test_a_step_is_one_kernel_for_each_parameter() -> None:
    p = [webtorch.nn.Parameter(webtorch.ones(5, 4)), webtorch.nn.Parameter(webtorch.ones(7))]
    g = [webtorch.ones(5, 4), webtorch.ones(7)]
    optimizer = webtorch.optim.Adam(p, lr=0.1)

    def step(*grads: Any) -> None:
        for x, grad in zip(p, grads, strict=True):
            x.grad = grad
        optimizer.step()

    compiled = webtorch.compile(step)
    for _ in range(3):
        compiled(*g)
    # The two parameters and the step count that they share.
    assert len(compiled.program().steps) <= 3
    (first, _) = descend(webtorch, lambda t, q: t.optim.Adam(q, lr=0.1), "cpu")
    assert math.isfinite(first.sum().item())


@pytest.mark.covers("K16")
def test_starting_again(device: str) -> None:
    webtorch.manual_seed(0)
    layer = webtorch.nn.Linear(3, 2).to(device)
    start = {k: v.clone() for k, v in layer.state_dict().items()}
    optimizer = webtorch.optim.Adam(layer.parameters(), lr=0.1)
    fresh = optimizer.state_dict()
    results = []
    for _ in range(2):
        layer.load_state_dict(start)
        optimizer.load_state_dict(fresh)
        for _ in range(3):
            optimizer.zero_grad()
            layer(webtorch.ones(1, 3, device=device)).square().sum().backward()
            optimizer.step()
        results.append(layer.weight.tolist())
    assert results[0] == results[1]
    layer.reset_parameters()
    assert layer.weight.tolist() != results[0]
