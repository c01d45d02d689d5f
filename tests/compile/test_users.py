"""Step functions as users write them: compiled, uncompiled and in PyTorch they do the same, call after call."""

from __future__ import annotations

import collections
import dataclasses
import itertools
import random
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch

import webtorch

# What is tested here is nearly the same on all devices.
pytestmark = pytest.mark.one_in(3, device="webgpu")


class World:
    """PyTorch or webtorch, with the same random numbers; `compile` is webtorch's or does nothing."""

    def __init__(self, t: Any, compile: Callable[[Any], Any]) -> None:
        self.t, self.nn, self.f, self.compile = t, t.nn, t.nn.functional, compile
        self.random = np.random.RandomState(0)

    def numbers(self, *shape: int) -> Any:
        return self.t.tensor(self.random.randn(*shape).astype(np.float32))

    def filled(self, module: Any) -> Any:
        with self.t.no_grad():
            for p in module.parameters():
                p.copy_(self.numbers(*p.shape) * 0.3)
        return module

    def mlp(self, *sizes: int) -> Any:
        layers: list[Any] = []
        for a, b in itertools.pairwise(sizes):
            layers += [self.nn.Linear(a, b), self.nn.Tanh()]
        return self.filled(self.nn.Sequential(*layers[:-1]))

    def step(self, model: Any, optimizer: Any) -> Any:
        @self.compile
        def step(x: Any, y: Any) -> Any:
            optimizer.zero_grad()
            loss = self.f.mse_loss(model(x), y)
            loss.backward()
            optimizer.step()
            return loss

        return step


Program = Callable[[World], Iterator[Any]]


def functional(w: World) -> Iterator[Any]:
    @w.compile
    def step(params: Any, x: Any, y: Any, rate: float) -> Any:
        loss = ((x @ params["w"] + params["b"] - y) ** 2).mean()
        gradients = w.t.autograd.grad(loss, list(params.values()))
        pairs = zip(params.items(), gradients, strict=True)
        return {k: (p - rate * g).detach().requires_grad_() for (k, p), g in pairs}, loss

    params = {"w": w.numbers(5, 3).requires_grad_(), "b": w.numbers(3).requires_grad_()}
    for i in range(4):
        params, loss = step(params, w.numbers(4, 5), w.numbers(4, 3), 0.1 / (i + 1))
        yield loss
    yield params["w"]


def buffer_that_is_bound_anew(w: World) -> Iterator[Any]:
    class Mean(w.nn.Module):  # type: ignore[name-defined,misc]
        def __init__(self) -> None:
            super().__init__()
            self.linear = w.nn.Linear(3, 3)
            self.register_buffer("mean", w.t.zeros(3))

        def forward(self, x: Any) -> Any:
            y = self.linear(x)
            self.mean = 0.5 * self.mean + y.detach().mean(0)
            return y - self.mean

    model = w.filled(Mean())
    called = w.compile(model)
    for _ in range(4):
        yield called(w.numbers(4, 3))
    yield model.mean


def hooks_that_come_later(w: World) -> Iterator[Any]:
    model = w.mlp(3, 2)
    step = w.step(model, w.t.optim.SGD(model.parameters(), 0.1))
    handles: list[Any] = []
    for i in range(6):
        if i == 2:
            handles.append(model[0].register_forward_hook(lambda module, given, out: out * 2))
            handles.append(model[0].weight.register_hook(lambda g: g * 0.5))
        if i == 4:
            for handle in handles:
                handle.remove()
        yield step(w.numbers(4, 3), w.numbers(4, 2))
    yield model[0].weight


def methods(w: World) -> Iterator[Any]:
    class Scaled:
        def __init__(self, factor: Any) -> None:
            self.factor, self.times = factor, 1.0

        @w.compile
        def __call__(self, x: Any) -> Any:
            return x * self.factor * self.times

    a, b = Scaled(w.numbers(3)), Scaled(w.numbers(3))
    for i in range(4):
        if i == 2:
            a.times = 3.0
        yield a.__call__(w.numbers(3))
        yield b.__call__(w.numbers(3))


def records(w: World) -> Iterator[Any]:
    @dataclasses.dataclass
    class Batch:
        x: Any
        y: Any
        times: int = 2

    @w.compile
    def combine(batch: Any, more: Any) -> Any:
        total = batch.x * batch.times + more["v"]
        named = collections.OrderedDict(total=total, y=batch.y + 1)
        return Batch(total * 2, None, batch.times), named

    for times in (2, 3, 2):
        batch = Batch(w.numbers(3), w.numbers(3), times)
        more = collections.defaultdict(int, v=w.numbers(3))
        out, named = combine(batch, more)
        assert type(out) is Batch and out.y is None and out.times == times
        assert type(named) is collections.OrderedDict
        yield from (out.x, named["total"], named["y"])


def arguments_that_are_changed(w: World) -> Iterator[Any]:
    @w.compile
    def fill(found: Any, log: Any) -> Any:
        found["y"] = found["x"] * 2
        log.append(found["y"] + 1)
        return found["y"].sum()

    for _ in range(4):
        found, log = {"x": w.numbers(3)}, [w.numbers(3)]
        yield fill(found, log)
        yield from (found["y"], log[1])


def objects_with_state(w: World) -> Iterator[Any]:
    class State:
        def __init__(self) -> None:
            self.hidden, self.times = w.numbers(3), 2.0

    state = State()

    @w.compile
    def advance(state: Any, x: Any) -> Any:
        state.hidden = state.hidden * 0.5 + x
        return state.hidden * state.times

    for i in range(5):
        if i == 3:
            state.times, state.hidden = 3.0, w.numbers(3)
        yield advance(state, w.numbers(3))
        yield state.hidden


def results_that_cannot_be_made_anew(w: World) -> Iterator[Any]:
    class Held:
        def __init__(self, value: Any) -> None:
            self.value = value

    held = w.compile(lambda x: Held(x * 2))

    @w.compile
    def several(x: Any) -> Iterator[Any]:
        for k in range(2):
            yield x * k

    for _ in range(4):
        yield held(w.numbers(3)).value
        yield from several(w.numbers(3))


def records_with_slots(w: World) -> Iterator[Any]:
    @dataclasses.dataclass(frozen=True, slots=True)
    class Pair:
        x: Any
        times: int

    class Plain:
        __slots__ = ("value",)

        def __init__(self, value: Any) -> None:
            self.value = value

    class Computed(Plain):
        @property
        def value(self) -> int:  # type: ignore[override]
            return next(counted) * 0 + 2

    counted, computed = itertools.count(300), Computed.__new__(Computed)
    twice = w.compile(lambda p: Pair(p.x * p.times, p.times + 1))
    plain = w.compile(lambda x: Plain(x * computed.value))
    found = [(twice(Pair(w.numbers(3), n)), plain(w.numbers(3))) for n in (2, 3, 2, 2, 2)]
    for pair, other in found:
        assert type(pair) is Pair and type(other) is Plain
        yield from (pair.x, other.value)
    yield w.t.tensor([float(pair.times) for pair, _ in found])


def values_that_come_one_by_one(w: World) -> Iterator[Any]:
    count, factors = itertools.count(1), {2.0}
    generator, drawn = random.Random(0), np.random.default_rng(0)

    @w.compile
    def step(x: Any, following: Any) -> Any:
        return x * next(count) + next(following)

    @w.compile
    def scaled(x: Any) -> Any:
        return x * sum(factors)

    @w.compile
    def noisy(x: Any) -> Any:
        return x * generator.random()

    @w.compile
    def noisy_too(x: Any) -> Any:
        return x * float(drawn.random())

    @w.compile
    def noisy_by_name(x: Any) -> Any:
        return x * (random.random() + float(np.random.rand()))

    random.seed(0)
    np.random.seed(0)
    following = iter(range(10))
    for i in range(4):
        factors.add(float(i))
        yield step(w.numbers(3), following)
        yield scaled(w.numbers(3))
        yield noisy(w.numbers(3))
        yield noisy_too(w.numbers(3))
        yield noisy_by_name(w.numbers(3))


def scaler_with_dampening(w: World) -> Iterator[Any]:
    model = w.mlp(5, 3)
    optimizer = w.t.optim.SGD(model.parameters(), 0.1, momentum=0.9, dampening=0.3)
    scaler = w.t.amp.GradScaler("cpu", init_scale=8.0, growth_interval=2)

    @w.compile
    def step(x: Any, y: Any) -> Any:
        optimizer.zero_grad()
        loss = w.f.mse_loss(model(x), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        return loss

    for i in range(6):
        x = w.numbers(4, 5)
        if i in (0, 3):
            x[0, 0] = float("inf")
        yield step(x, w.numbers(4, 3))
    yield from model.parameters()
    yield w.t.tensor(scaler.get_scale())


def adversaries(w: World) -> Iterator[Any]:
    maker, judge = w.mlp(4, 5), w.mlp(5, 1)
    makes, judges = (w.t.optim.Adam(m.parameters(), 0.01) for m in (maker, judge))
    loss = w.nn.BCEWithLogitsLoss()

    @w.compile
    def step(x: Any, z: Any) -> Any:
        judges.zero_grad()
        made = maker(z)
        one = loss(judge(x), w.t.ones(4, 1)) + loss(judge(made.detach()), w.t.zeros(4, 1))
        one.backward()
        judges.step()
        makes.zero_grad()
        two = loss(judge(made), w.t.ones(4, 1))
        two.backward()
        makes.step()
        return {"judge": one, "maker": two}

    for _ in range(3):
        yield from step(w.numbers(4, 5), w.numbers(4, 4)).values()
    yield from maker.parameters()


PROGRAMS: list[Program] = [
    functional, buffer_that_is_bound_anew, hooks_that_come_later, methods, records,
    arguments_that_are_changed, objects_with_state, results_that_cannot_be_made_anew,
    scaler_with_dampening, adversaries, records_with_slots, values_that_come_one_by_one,
]  # fmt: skip


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: str(p.__name__))
def test_a_compiled_step_is_the_uncompiled_one(program: Program) -> None:
    with warnings.catch_warnings(), webtorch.device("cpu"):
        warnings.filterwarnings("ignore", message=".*runs as usual")
        expected = [np.array(v.tolist()) for v in program(World(torch, lambda f: f))]
        plain = [np.array(v.tolist()) for v in program(World(webtorch, lambda f: f))]
        compiled = [np.array(v.tolist()) for v in program(World(webtorch, webtorch.compile))]
    assert len(expected) == len(plain) == len(compiled)
    for number, (want, usual, ours) in enumerate(zip(expected, plain, compiled, strict=True)):
        np.testing.assert_allclose(usual, want, rtol=1e-3, atol=1e-5, err_msg=f"value {number}")
        np.testing.assert_allclose(ours, want, rtol=1e-3, atol=1e-5, err_msg=f"value {number}")


@pytest.mark.parametrize("shape", [(), (3,)])
def test_results_of_earlier_calls_stay(device: str, shape: tuple[int, ...]) -> None:
    @webtorch.compile
    def positive(x: Any) -> Any:
        copy = x.clone()
        copy[copy < 0] = 0
        return copy

    given = (3.0, -3.0, 7.0)
    results = [positive(webtorch.full(shape, x, device=device)) for x in given]
    assert [float(r.sum()) for r in results] == [
        max(x, 0.0) * max(len(shape) * 3, 1) for x in given
    ]


def test_what_is_only_copied_is_copied_at_each_call(device: str) -> None:
    kept, first, second = (webtorch.full((3,), v, device=device) for v in (0.0, 1.0, 2.0))

    @webtorch.compile
    def copies(x: Any) -> Any:
        return x.clone(), kept.clone(), x.detach().clone().view(3, 1)

    @webtorch.compile
    def keeps(x: Any) -> Any:
        before = kept.clone()
        kept.copy_(x)
        return before

    @webtorch.compile
    def swaps() -> Any:
        a, b = first.clone(), second.clone()
        first.copy_(b)
        second.copy_(a)
        return a, b

    for number in (1.0, 2.0, 3.0, 4.0):
        x = webtorch.full((3,), number, device=device)
        assert [t.sum().item() for t in copies(x)] == [3 * number, 3 * (number - 1), 3 * number]
        assert keeps(x).tolist() == [number - 1] * 3
        assert kept.tolist() == [number] * 3
        x.fill_(-1)
        assert kept.tolist() == [number] * 3
        assert [t.tolist()[0] for t in swaps()] == ([1, 2] if number % 2 else [2, 1])
    assert (first.tolist()[0], second.tolist()[0]) == (1, 2)


def test_states_that_get_one_value_part_again(device: str) -> None:
    def states() -> tuple[Any, Any]:
        first, second, third = (webtorch.full((3,), v, device=device) for v in (1.0, 3.0, 0.0))

        def rotate() -> Any:
            one, two = first.clone(), second * 3
            first.copy_(two)
            second.copy_(one + 1)
            third.copy_(second)
            return third

        return rotate, webtorch.compile(rotate)

    (plain, _), (_, compiled) = states(), states()
    assert [compiled().tolist() for _ in range(6)] == [plain().tolist() for _ in range(6)]


@pytest.mark.parametrize("mask", ["causal", "any"])
def test_an_encoder_with_a_mask_is_one_program(device: str, mask: str) -> None:
    """Uncompiled it looks whether the mask is the causal one, which a program cannot."""
    layer = webtorch.nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
    model = webtorch.nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).to(device)
    hidden = webtorch.zeros(4, 4, device=device)
    if mask == "causal":
        hidden = webtorch.nn.Transformer.generate_square_subsequent_mask(4, device=device)
    else:
        hidden[1, 2] = float("-inf")
    run = webtorch.compile(lambda x, m: model(x, mask=m), fullgraph=True)
    for _ in range(3):
        x = webtorch.randn(2, 4, 8, device=device)
        np.testing.assert_allclose(
            run(x, hidden).detach().cpu().numpy(),
            model(x, mask=hidden).detach().cpu().numpy(),
            rtol=1e-4,
            atol=1e-5,
        )
