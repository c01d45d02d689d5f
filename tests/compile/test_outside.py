"""What a compiled function reads and changes outside its arguments: seen at every replay, or refused."""

from __future__ import annotations

import math
import warnings
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import webtorch
from tests.compile.test_programs import Data, identity, linear, numbers

# What is tested here is nearly the same on all devices.
pytestmark = pytest.mark.one_in(3, device="webgpu")


def adversarial(t: Any, data: Data, compiled: Any) -> list[Any]:
    """Two networks, two optimizers, two compiled steps."""
    generator = t.nn.Sequential(linear(t, data, 4, 8), t.nn.ReLU(), linear(t, data, 8, 6))
    judge = t.nn.Sequential(linear(t, data, 6, 8), t.nn.LeakyReLU(0.2), linear(t, data, 8, 1))
    one = t.optim.Adam(generator.parameters(), lr=1e-2, betas=(0.5, 0.9))
    two = t.optim.Adam(judge.parameters(), lr=1e-2, betas=(0.5, 0.9))
    loss_of = t.nn.BCEWithLogitsLoss()

    @compiled
    def judge_step(real: Any, noise: Any) -> Any:
        two.zero_grad()
        right, wrong = judge(real), judge(generator(noise).detach())
        loss = loss_of(right, t.ones_like(right)) + loss_of(wrong, t.zeros_like(wrong))
        loss.backward()
        two.step()
        return loss

    @compiled
    def generator_step(noise: Any) -> Any:
        one.zero_grad()
        out = judge(generator(noise))
        loss = loss_of(out, t.ones_like(out))
        loss.backward()
        one.step()
        return loss

    out = []
    for _ in range(5):
        out.append(judge_step(data(5, 6), data(5, 4)).item())
        out.append(generator_step(data(5, 4)).item())
    return out


def averaged(t: Any, data: Data, compiled: Any) -> list[Any]:
    """Weights averaged into a dict that is bound anew at every step; a schedule inside the step."""
    net = t.nn.Sequential(t.nn.BatchNorm1d(4), linear(t, data)).to(data.device)
    optimizer = t.optim.AdamW(net.parameters(), lr=0.1)
    schedule = t.optim.lr_scheduler.SequentialLR(
        optimizer,
        [
            t.optim.lr_scheduler.LinearLR(optimizer, 0.1, total_iters=3),
            t.optim.lr_scheduler.CosineAnnealingLR(optimizer, 6),
        ],
        milestones=[3],
    )
    average = {k: p.detach().clone() for k, p in net.named_parameters()}

    @compiled
    def step(x: Any, limit: float) -> Any:
        optimizer.zero_grad()
        loss = net(x).pow(2).mean()
        loss.backward()
        norm = t.nn.utils.clip_grad_norm_(net.parameters(), limit * 0.5)
        optimizer.step()
        schedule.step()
        with t.no_grad():
            for k, p in net.named_parameters():
                average[k] = average[k] * 0.9 + p * 0.1
        return loss, norm, schedule.get_last_lr()[0]

    out = []
    for i in range(8):
        loss, norm, rate = step(data(6, 4), 1.0 + i / 10)
        out += [loss.item(), norm.item(), rate]
    return [*out, *(v.tolist() for v in average.values()), optimizer.param_groups[0]["lr"]]


def names_that_change(t: Any, data: Data, compiled: Any) -> list[Any]:
    """Tensors, numbers, flags and containers of the outside change between the calls."""
    weight, scale, flags, more = data(3), 2.0, [True], {"shift": data(3)}

    @compiled
    def f(x: Any) -> Any:
        return x * weight * scale if flags[0] else x - more["shift"]

    out = [f(data(3)) for _ in range(2)]
    weight = data(3)
    out.append(f(data(3)))
    scale = 3.0
    out.append(f(data(3)))
    weight.add_(1)
    out.append(f(data(3)))
    flags[0] = False
    out.append(f(data(3)))
    more["shift"] = data(3)
    out.append(f(data(3)))
    flags[0] = True
    return [*out, f(data(3))]


class Trainer:
    """Everything is an attribute."""

    scale = 1.0

    def __init__(self, t: Any, data: Data) -> None:
        self.net = linear(t, data)
        self.optimizer = t.optim.SGD(self.net.parameters(), lr=0.1, momentum=0.9)
        self.last: Any = None
        self.calls = 0

    def step(self, x: Any) -> Any:
        self.calls += 1
        loss = (self.net(x) * self.scale).pow(2).mean()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.last = loss.detach()
        return loss


def trainer(t: Any, data: Data, compiled: Any) -> list[Any]:
    """A bound method; attributes of its object and options of its optimizer change."""
    made = Trainer(t, data)
    step, out = compiled(made.step), []
    for i in range(6):
        if i == 3:
            made.scale = 2.0
        if i == 4:
            made.optimizer.param_groups[0]["weight_decay"] = 0.1
        out += [step(data(5, 4)).item(), made.last.item()]
    return out


def arguments_that_are_one(t: Any, data: Data, compiled: Any) -> list[Any]:
    """Arguments share memory, or are parts of a larger tensor that is written."""

    @compiled
    def f(x: Any, y: Any) -> Any:
        x.add_(1)
        return x * y

    a, b, large = data(3), data(3), data(4, 3)
    out = [f(a, b), f(a, a), f(b, a), *(f(large[i], b) for i in range(3))]
    out.append(f(large[:, 0], large[:, 1]))
    return [*out, a, b, large]


def numbers_in_python(t: Any, data: Data, compiled: Any) -> list[Any]:
    """Number arguments in arithmetic, in comparisons, and in functions that leave no trace."""

    @compiled
    def plain(x: Any, a: float) -> Any:
        return x * (a * 2 + 1) / (3 - a)

    @compiled
    def f(x: Any, a: float, b: float) -> Any:
        y = x * (a * 2 + 1)
        return (y + 1 if b > 0.5 else y) * math.exp(a)

    x = data(3)
    out = [plain(x, a) for a in (1.0, 2.0, -1.0)]
    cases = [(1.0, 0.0), (1.0, 0.2), (2.0, 0.2), (2.0, 0.9), (3.0, 0.9), (1.0, 0.0)]
    return [*out, *(f(x, a, b) for a, b in cases)]


def every_fourth(t: Any, data: Data, compiled: Any) -> list[Any]:
    """A counter in Python decides what is computed."""
    net = linear(t, data)
    optimizer = t.optim.SGD(net.parameters(), lr=0.1)
    count = 0

    @compiled
    def step(x: Any) -> Any:
        nonlocal count
        count += 1
        loss = net(x).pow(2).mean()
        loss.backward()
        if count % 4 == 0:
            optimizer.step()
            optimizer.zero_grad()
        return loss

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return [step(data(5, 4)).item() for _ in range(12)]


def drawn(t: Any, data: Data, compiled: Any) -> list[Any]:
    """Arguments that need gradients; results, some of them views, differentiated outside."""
    layer = linear(t, data)

    @compiled
    def f(x: Any) -> Any:
        y = layer(x).tanh()
        return y, y[:, 1:], x

    out = []
    for i in range(4):
        x = data(5, 4).requires_grad_()
        y, part, same = f(x * 2 if i % 2 else x)
        loss = (y * y).sum() + part.sum() + same.sum()
        loss.backward()
        out += [loss.detach(), x.grad, layer.weight.grad]
        if i == 2:
            layer.bias.requires_grad_(False)
    return out


PROGRAMS = [
    adversarial, averaged, names_that_change, trainer, arguments_that_are_one, numbers_in_python,
    every_fourth, drawn,
]  # fmt: skip


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p.__name__)
def test_compiled_programs_follow_pytorch(program: Callable[..., Any], device: str) -> None:
    expected = program(torch, Data(torch, "cpu"), identity)
    actual = program(webtorch, Data(webtorch, device), webtorch.compile)
    assert len(actual) == len(expected)
    for ours, theirs in zip(actual, expected, strict=True):
        np.testing.assert_allclose(numbers(ours), numbers(theirs), rtol=3e-4, atol=3e-5)


def test_seeds_are_read_anew(device: str) -> None:
    mine = webtorch.Generator(device)

    def f(x: Any) -> Any:
        return webtorch.nn.functional.dropout(x) + webtorch.rand(5, generator=mine, device=device)

    x = webtorch.ones(5, device=device)
    compiled, found = webtorch.compile(f), []
    for function in (f, compiled):
        out = []
        for seed in (1, 2, 1):
            webtorch.manual_seed(seed)
            mine.manual_seed(seed + 5)
            out += [function(x).tolist() for _ in range(2)]
        found.append(out)
    assert found[0] == found[1]
    assert len(compiled.captures) == 1


def test_a_function_is_traced_once_for_a_signature(device: str) -> None:
    traced, count = [], 0
    net = webtorch.nn.Linear(3, 2).to(device)
    optimizer = webtorch.optim.Adam(net.parameters(), lr=0.1)

    @webtorch.compile
    def step(x: Any, scale: float) -> Any:
        nonlocal count
        count += 1
        traced.append("step")
        loss = (net(x) * scale).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss

    for i in range(6):
        optimizer.param_groups[0]["lr"] = 0.1 / (i + 1)
        optimizer.param_groups[0]["betas"] = (0.9 - i / 100, 0.999)
        step(webtorch.ones(4, 3, device=device), 1.0 + i)
    assert traced == ["step"] and count == 1
    step(webtorch.ones(5, 3, device=device), 1.0)
    assert count == 2


def test_what_is_kept_in_a_list_is_not_lost(device: str) -> None:
    history: list[Any] = []

    @webtorch.compile
    def f(x: Any) -> Any:
        y = x * 2
        history.append(y)
        return y

    x = webtorch.ones(2, device=device)
    f(x), f(x)
    with pytest.warns(UserWarning, match="adds what it computed to history"):
        f(x)
    f(x), f(x)
    assert [h.tolist() for h in history] == [[2.0, 2.0]] * 5


def test_what_cannot_be_watched_is_refused(device: str) -> None:
    f = webtorch.compile(lambda x, y: x * float(y[0]))
    with pytest.raises(TypeError, match="ndarray, whose contents cannot be watched"):
        f(webtorch.ones(2, device=device), np.ones(1))


def test_values_read_on_another_device_are_not_frozen(device: str) -> None:
    if device == "cpu":
        pytest.skip("needs a second device")
    factor = webtorch.ones(2)

    @webtorch.compile
    def f(x: Any) -> Any:
        return x * factor.to(device)

    x = webtorch.ones(2, device=device)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for value in range(6):
            factor.fill_(float(value))
            assert f(x).tolist() == [float(value)] * 2


@pytest.mark.covers("M18", "M19")
def test_several_programs_share_one_set_of_parameters(device: str) -> None:
    net = webtorch.nn.Linear(3, 2).to(device)
    calls = []

    def infer(x: Any) -> Any:
        calls.append(1)
        return net(x)

    train_x = webtorch.ones(4, 3, device=device)
    optimizer = webtorch.optim.SGD(net.parameters(), lr=0.1)

    @webtorch.compile
    def train(x: Any) -> Any:
        loss = net(x).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss

    one, two = webtorch.compile(infer), webtorch.compile(infer)
    x, y = webtorch.ones(2, 3, device=device), webtorch.ones(5, 3, device=device)
    changes = [
        lambda: train(train_x),
        lambda: net.load_state_dict({k: v * 2 for k, v in net.state_dict().items()}),
        lambda: setattr(net.weight, "data", net.weight.detach() + 1),
        lambda: net.weight.data.copy_(net.weight.detach() * 0.5),
    ]
    with webtorch.no_grad():
        one(x), two(y)
        for change in changes:
            with webtorch.enable_grad():
                change()
            for compiled, data in ((one, x), (two, y)):
                want = (data @ net.weight.t() + net.bias).tolist()
                np.testing.assert_allclose(compiled(data).tolist(), want, rtol=1e-5)
    assert len(calls) == 2


def test_a_compiled_function_may_call_another(device: str) -> None:
    inner = webtorch.compile(lambda x: x * 3)
    outer = webtorch.compile(lambda x: inner(x) + 1)
    x = webtorch.ones(2, device=device)
    assert [outer(x).tolist() for _ in range(2)] == [[4.0, 4.0]] * 2
    assert inner(x).tolist() == [3.0, 3.0]
    assert len(outer.captures) == len(inner.captures) == 1


def test_an_optimizer_that_no_name_reaches_is_captured_once(device: str) -> None:
    learned: list[Any] = []
    for compiled in (True, False):
        weight = webtorch.nn.Parameter(webtorch.ones(3, device=device))
        optimizer = webtorch.optim.SGD([weight], lr=0.1)
        held = weakref.ref(optimizer)

        def learn(x: Any, lr: float, held: Any = held, weight: Any = weight) -> Any:
            loss = (weight * x).sum()
            loss.backward()
            held().param_groups[0]["lr"] = lr
            held().step()
            held().zero_grad()
            return loss

        step = webtorch.compile(learn) if compiled else learn
        for i in range(5):
            step(webtorch.ones(3, device=device) * i, 0.01 * (i + 1))
        learned.append([*weight.tolist(), optimizer.param_groups[0]["lr"]])
        if compiled:
            # The second time shows that the number decides nothing.
            assert "compiled 2 times" in str(step.explain())
    assert learned[0] == pytest.approx(learned[1])
