"""Whole programs around `webtorch.compile`: what a function and its optimizers change, and Modules."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import io
import pickle
import statistics
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch

import webtorch
from tests.compile.test_users import World

# What is tested here is nearly the same on all devices.
pytestmark = pytest.mark.one_in(3, device="webgpu")


@dataclasses.dataclass
class Output:
    loss: Any
    logits: Any
    more: tuple[Any, ...] = ()


def views_of_arguments(w: World) -> Iterator[Any]:
    """Each call gives views of its own argument."""
    views = w.compile(lambda x: (x[1:], x.t(), x.view(-1), x))
    for _ in range(4):
        x = w.numbers(3, 4)
        part, turned, flat, same = views(x)
        assert same is x
        part.add_(1)
        flat[0] = 7
        yield from (x, turned)


def records_differentiated_outside(w: World) -> Iterator[Any]:
    net = w.mlp(4, 5, 3)

    class Model(w.nn.Module):  # type: ignore[name-defined,misc]
        def __init__(self) -> None:
            super().__init__()
            self.net = net

        def forward(self, x: Any, y: Any) -> Any:
            logits = self.net(x)
            return Output(w.f.mse_loss(logits, y), logits, (logits * 2,))

    model, optimizer = w.compile(Model()), w.t.optim.Adam(net.parameters(), 0.01)
    for _ in range(5):
        out = model(w.numbers(5, 4), w.numbers(5, 3))
        optimizer.zero_grad()
        (out.loss + out.more[0].mean()).backward()
        optimizer.step()
        yield out.loss
    yield from net.parameters()


def gradients_that_are_arguments(w: World) -> Iterator[Any]:
    p = w.numbers(3).requires_grad_()
    optimizer = w.t.optim.SGD([p], 0.1)

    @w.compile
    def step(g: Any) -> Any:
        p.grad = g[1]
        optimizer.step()
        return p.sum()

    for _ in range(4):
        yield step(w.numbers(2, 3))
        yield from (p.grad, p)


def optimizers_inside_backward(w: World) -> Iterator[Any]:
    """An optimizer for each parameter, which only a hook refers to."""
    model = w.mlp(4, 5, 3)
    optimizers = {p: w.t.optim.SGD([p], 0.1, momentum=0.5) for p in model.parameters()}

    def update(p: Any) -> None:
        optimizers[p].step()
        optimizers[p].zero_grad()

    for p in model.parameters():
        p.register_post_accumulate_grad_hook(update)

    @w.compile
    def step(x: Any) -> Any:
        loss = model(x).pow(2).mean()
        loss.backward()
        return loss

    for i in range(6):
        if i == 4:
            for optimizer in optimizers.values():
                optimizer.param_groups[0]["lr"] = 0.01
        yield step(w.numbers(5, 4))
    yield from model.parameters()


def options_set_in_the_step(w: World) -> Iterator[Any]:
    """Options are set by an argument, by what they were, and by a schedule."""
    model = w.mlp(4, 3)
    optimizer = w.t.optim.AdamW(model.parameters(), 0.1, betas=(0.9, 0.99))
    plain = w.t.optim.SGD(model.parameters(), 0.1)
    schedule = w.t.optim.lr_scheduler.ExponentialLR(plain, 0.9)

    @w.compile
    def step(x: Any, rate: float) -> Any:
        group = optimizer.param_groups[0]
        group["lr"], first = rate, group["betas"][0]
        group["betas"] = (first * 0.9, 0.99)
        loss = model(x if group["lr"] < 0.06 else x * 2).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        plain.param_groups[0]["lr"] *= 0.8
        plain.step()
        schedule.step()
        return loss

    for i in range(7):
        if i == 4:
            optimizer.param_groups[0]["weight_decay"] = 0.5
        yield step(w.numbers(5, 4), 0.1 * 0.8**i)
        rates = [o.param_groups[0]["lr"] for o in (optimizer, plain)]
        yield w.t.tensor([*rates, optimizer.param_groups[0]["betas"][0]])


def optimizers_of_users(w: World) -> Iterator[Any]:
    """They read options and count their steps in Python."""

    class Plain(w.t.optim.Optimizer):  # type: ignore[name-defined,misc]
        def __init__(self, params: Any, lr: float) -> None:
            super().__init__(params, {"lr": lr})

        @w.t.no_grad()
        def step(self, closure: Any = None) -> None:
            for group in self.param_groups:
                for p in group["params"]:
                    p.add_(p.grad, alpha=-group["lr"])

    class Momentum(w.t.optim.Optimizer):  # type: ignore[name-defined,misc]
        def __init__(self, params: Any, lr: float) -> None:
            super().__init__(params, {"lr": lr, "beta": 0.9, "decay": 0.0})

        @w.t.no_grad()
        def step(self, closure: Any = None) -> None:
            for group in self.param_groups:
                for p in group["params"]:
                    state, beta = self.state[p], group["beta"]
                    if not state:
                        state["step"], state["mean"] = 0, w.t.zeros_like(p)
                    state["step"] += 1
                    g = p.grad + group["decay"] * p if group["decay"] else p.grad
                    state["mean"].mul_(beta).add_(g, alpha=1 - beta)
                    p.add_(state["mean"], alpha=-group["lr"] / (1 - beta ** state["step"]))

    for kind in (Plain, Momentum):
        model = w.mlp(4, 3)
        optimizer = kind(model.parameters(), 0.1)
        schedule = w.t.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)
        step = w.step(model, optimizer)
        for i in range(7):
            if i == 4 and kind is Momentum:
                optimizer.param_groups[0]["decay"] = 0.1
            yield step(w.numbers(5, 4), w.numbers(5, 3))
            schedule.step()
        yield from model.parameters()


def averages_taken_in_the_step(w: World) -> Iterator[Any]:
    model = w.mlp(4, 3)
    optimizer = w.t.optim.SGD(model.parameters(), 0.1)
    swa = w.t.optim.swa_utils
    for options in (
        {},
        {"multi_avg_fn": swa.get_ema_multi_avg_fn(0.9)},
        {"avg_fn": lambda average, p, count: 0.3 * average + 0.7 * p, "use_buffers": True},
    ):
        average = swa.AveragedModel(model, **options)

        @w.compile
        def step(x: Any, average: Any = average) -> Any:
            loss = model(x).pow(2).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            average.update_parameters(model)
            return loss

        for _ in range(4):
            yield step(w.numbers(5, 4))
            yield from average.state_dict().values()


def defaults_that_change(w: World) -> Iterator[Any]:
    shift = w.numbers(3)

    def f(x: Any, y: Any = shift, *, times: float = 2.0) -> Any:
        return x * times + y

    called = w.compile(f)
    for i in range(5):
        if i == 2:
            f.__kwdefaults__["times"] = 5.0
        if i == 3:
            f.__defaults__ = (w.numbers(3),)
        shift.add_(1)
        yield called(w.numbers(3))


def state_taken_twice(w: World) -> Iterator[Any]:
    """A state dict shares its tensors, counts too, with the optimizer that takes it."""
    model = w.mlp(4, 3)
    optimizer = w.t.optim.Adam(model.parameters(), 0.01)
    step = w.step(model, optimizer)
    saved: Any = None
    for i in range(8):
        yield step(w.numbers(5, 4), w.numbers(5, 3))
        if i == 1:
            saved = copy.deepcopy(optimizer.state_dict())
        if i in (3, 5):
            optimizer.load_state_dict(saved)
    yield from (s["step"] for s in optimizer.state_dict()["state"].values())
    yield from (s["step"] for s in saved["state"].values())


def parameters_that_come_later(w: World) -> Iterator[Any]:
    """Frozen layers are trained later, in a group of their own; then others are frozen."""
    model = w.mlp(4, 5, 3)
    model[0].requires_grad_(False)
    optimizer = w.t.optim.SGD(model[2].parameters(), 0.1)
    step = w.step(model, optimizer)
    for i in range(10):
        if i == 2:
            model[0].requires_grad_(True)
        if i == 5:
            optimizer.add_param_group({"params": list(model[0].parameters()), "lr": 0.05})
        if i == 7:
            optimizer.param_groups[0]["params"] = [model[2].weight]
        yield step(w.numbers(5, 4), w.numbers(5, 3))
    yield from model.parameters()


PROGRAMS: list[Callable[[World], Iterator[Any]]] = [
    views_of_arguments, records_differentiated_outside, gradients_that_are_arguments,
    optimizers_inside_backward, options_set_in_the_step, optimizers_of_users,
    averages_taken_in_the_step, defaults_that_change, state_taken_twice,
    parameters_that_come_later,
]  # fmt: skip


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: str(p.__name__))
def test_a_compiled_program_is_the_uncompiled_one(
    program: Callable[[World], Iterator[Any]],
) -> None:
    with warnings.catch_warnings(), webtorch.device("cpu"):
        warnings.filterwarnings("ignore", message=".*runs as usual")
        warnings.filterwarnings("ignore", message=".*lr_scheduler.step")
        expected = [np.array(v.tolist()) for v in program(World(torch, lambda f: f))]
        plain = [np.array(v.tolist()) for v in program(World(webtorch, lambda f: f))]
        compiled = [np.array(v.tolist()) for v in program(World(webtorch, webtorch.compile))]
    assert len(expected) == len(plain) == len(compiled)
    for number, (want, usual, ours) in enumerate(zip(expected, plain, compiled, strict=True)):
        np.testing.assert_allclose(usual, want, rtol=1e-3, atol=1e-5, err_msg=f"value {number}")
        np.testing.assert_allclose(ours, want, rtol=1e-3, atol=1e-5, err_msg=f"value {number}")


@pytest.mark.one_in(2)
def test_numbers_that_change_capture_nothing_anew(device: str) -> None:
    """Rates given as arguments, parameters given to functional_call, sizes, records as results."""
    net = webtorch.nn.Linear(3, 2).to(device)
    optimizer = webtorch.optim.AdamW(net.parameters(), 0.1)
    grad, call = webtorch.func.grad, webtorch.func.functional_call
    traced: list[str] = []

    @webtorch.compile
    def train(x: Any, rate: float) -> Any:
        traced.append("train")
        for group in optimizer.param_groups:
            group["lr"] = rate
        loss = net(x).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return Output(loss, rate)

    @webtorch.compile
    def descend(params: Any, x: Any) -> Any:
        traced.append("descend")
        gradients = grad(lambda p: call(net, p, (x,)).square().mean())(params)
        return {k: p - 0.1 * gradients[k] for k, p in params.items()}

    params = {k: p.detach().clone() for k, p in net.named_parameters()}
    for i in range(5):
        x = webtorch.ones(3 + i, 3, device=device)
        webtorch.mark_dynamic(x, 0)
        out = train(x, 0.1 / (i + 1))
        assert out.logits == optimizer.param_groups[0]["lr"] == 0.1 / (i + 1)
        params = descend(params, webtorch.ones(4, 3, device=device))
        if i == 1:
            before = len(traced)
    # Sizes 3, 4, 5, 8 and 11 in the first call; to compare, 6 and 7.
    assert traced.count("train") == traced[:before].count("train") + 2
    assert len(train.captures) == 1
    assert traced.count("descend") == 1


def test_options_leave_a_capture_as_plain_numbers() -> None:
    p = webtorch.ones(2).requires_grad_()
    optimizer = webtorch.optim.SGD([p], 0.1)

    @webtorch.compile
    def step() -> Any:
        p.grad = webtorch.ones(2)
        optimizer.step()
        optimizer.param_groups[0]["lr"] *= 0.5
        return optimizer.param_groups[0]["lr"]

    for expected in (0.05, 0.025, 0.0125):
        assert step() == expected
        assert type(optimizer.param_groups[0]["lr"]) is float

    def fails() -> None:
        optimizer.param_groups[0]["lr"] = 7.0
        raise ValueError("stop")

    with pytest.raises(ValueError, match="stop"):
        webtorch.compile(fails)()
    assert optimizer.param_groups[0]["lr"] == 0.0125


def test_an_error_names_the_users_line_and_not_a_librarys() -> None:
    @contextlib.contextmanager
    def decided(x: Any) -> Iterator[Any]:
        yield bool(x.sum() > 0)

    @webtorch.compile(fullgraph=True)
    def step(x: Any) -> Any:
        with decided(x) as positive:
            return x if positive else -x

    with pytest.raises(webtorch.errors.CaptureError, match=r"yield bool\(x.sum\(\) > 0\)"):
        step(webtorch.ones(2))

    @webtorch.compile(fullgraph=True)
    def sorts(x: Any) -> Any:
        return statistics.median([x[0], x[1]])  # the line

    with pytest.raises(webtorch.errors.CaptureError, match="# the line"):
        sorts(webtorch.ones(2))


def test_a_compiled_module_is_a_module(device: str) -> None:
    def made(t: Any) -> Any:
        return t.nn.Sequential(t.nn.Linear(3, 4), t.nn.Dropout(0.5), t.nn.Linear(4, 2))

    theirs = torch.compile(made(torch), backend="eager")
    net = made(webtorch).to(device)
    model = webtorch.compile(net)
    assert list(model.state_dict()) == list(theirs.state_dict())
    assert repr(model) == repr(theirs)
    assert isinstance(model, webtorch.nn.Module) and model._orig_mod is net
    assert len(model) == 3 and model[0] is net[0]
    model.eval()
    assert not net.training and not net[1].training and not model.training
    x = webtorch.ones(2, 3, device=device)
    expected = net(x).tolist()
    model.note = "set there"
    assert net.note == model.note == "set there"
    outer = webtorch.nn.Sequential(model, webtorch.nn.Flatten())
    assert outer(x).tolist() == expected
    assert next(n for n, _ in outer.named_parameters()) == "0._orig_mod.0.weight"
    handle = model.register_forward_hook(lambda module, given, out: out * 2)
    assert model(x).tolist() == [[2 * v for v in row] for row in expected]
    handle.remove()
    copies = [copy.deepcopy(model), pickle.loads(pickle.dumps(copy.deepcopy(model).cpu()))]
    with webtorch.no_grad():
        net[2].bias.add_(1)
    for other in copies:
        other.to(device)
        assert type(other) is type(model)
        np.testing.assert_allclose(other(x).tolist(), expected, rtol=1e-5)
        other.load_state_dict(model.state_dict())
        np.testing.assert_allclose(other(x).tolist(), model(x).tolist(), rtol=1e-5)
    assert model.program() is not None


def test_a_compiled_module_has_the_attributes_of_its_module(device: str) -> None:
    class Net(webtorch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.kernels = [3, 5]
            self.layer = webtorch.nn.Linear(2, 2)

        def forward(self, x: Any) -> Any:
            return self.layer(x)

    net = Net().to(device)
    model = webtorch.compile(net, captures=iter(["out"]))
    x = webtorch.ones(1, 2, device=device)
    expected = net(x).tolist()
    # A module without a length is true, and what shows programs does not hide its attributes.
    assert model and model.kernels == [3, 5] and "layer" in dir(model)
    with pytest.raises(TypeError, match="'Net' object is not iterable"):
        iter(model)
    with pytest.raises(TypeError, match="has no len"):
        len(model)
    with pytest.raises(AttributeError, match="'Net' object has no attribute 'absent'"):
        model.absent
    # A wrapped forward calls the program, and the module keeps its own.
    inner = model.forward
    model.forward = lambda x: inner(x) * 2
    assert model(x).tolist() == [[2 * v for v in row] for row in expected]
    del model.forward
    assert model(x).tolist() == expected and "forward" not in vars(net)
    assert model.program() is not None
    again = copy.deepcopy(model)
    assert again._compiled_function.wanted == frozenset(["out"])
    other = Net().to(device)
    model._orig_mod = other
    assert model(x).tolist() == other(x).tolist()
    empty = webtorch.compile(webtorch.nn.Sequential())
    assert not empty and list(empty) == []
    named = webtorch.compile(webtorch.nn.ModuleDict({"a": webtorch.nn.ReLU()}))
    assert list(named) == ["a"] and "a" in named and "b" not in named


@pytest.mark.parametrize("kind", [list, dict, set, "default"])
def test_containers_that_grow_and_decide_are_never_stale(kind: Any) -> None:
    def program(compile: Any, ones: Any) -> list[float]:
        held: Any = [] if kind == "default" else kind()

        def lists(x: Any) -> Any:
            held.append(1)
            return x * len(held)

        def dicts(x: Any) -> Any:
            held[len(held)] = 1
            return x * len(held)

        def sets(x: Any) -> Any:
            held.add(len(held))
            return x * len(held)

        def default(x: Any, seen: Any = [1.0]) -> Any:  # noqa: B006
            seen.append(seen[-1] + 1)
            return x * seen[-1]

        made = {list: lists, dict: dicts, set: sets, "default": default}[kind]
        run = compile(made)
        return [run(ones(1)).item() for _ in range(4)]

    with pytest.warns(UserWarning, match="how many items"):
        found = program(webtorch.compile, webtorch.ones)
    assert found == program(lambda f: f, torch.ones)


def test_a_log_that_nothing_reads_is_written_by_the_capture() -> None:
    calls: list[str] = []

    @webtorch.compile
    def step(x: Any) -> Any:
        calls.append("traced")
        return x * 2

    assert [step(webtorch.ones(1)).item() for _ in range(3)] == [2.0] * 3
    assert calls == ["traced"]


def test_what_a_class_holds_is_watched(device: str) -> None:
    class Scaled(webtorch.nn.Module):
        scale = 2.0

        def forward(self, x: Any) -> Any:
            return x * self.scale

    model = webtorch.compile(Scaled())
    x = webtorch.ones(1, device=device)
    assert model(x).item() == 2
    Scaled.scale = 3.0
    assert model(x).item() == 3
    Scaled.forward = lambda self, x: x + 10  # type: ignore[method-assign]
    assert model(x).item() == 11

    def named(x: Any, *, k: float = 2.0) -> Any:
        return x * k

    run = webtorch.compile(named)
    assert run(x).item() == 2
    named.__kwdefaults__["k"] = 3.0
    assert run(x).item() == 3
    named.__kwdefaults__ = {"k": 4.0}
    assert run(x).item() == 4


@webtorch.compile
def named(x: Any) -> Any:
    """A function that pickle finds by its name."""
    return x * 2


def test_a_compiled_function_is_copied_as_a_function_is() -> None:
    named(webtorch.ones(2))
    stored = io.BytesIO()
    pickle.dump(named, stored)
    assert pickle.loads(stored.getvalue()) is named
    assert copy.deepcopy({"f": named})["f"] is named
