"""`webtorch.compile` of whole programs: every replay gives what PyTorch's eager run gives.

Each program runs with both libraries on the same data; webtorch's steps are compiled.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import webtorch

# What is tested here is nearly the same on all devices.
pytestmark = pytest.mark.one_in(3, device="webgpu")


def identity(function: Any) -> Any:
    return function


class Data:
    """The same random numbers for both libraries."""

    def __init__(self, library: Any, device: str) -> None:
        self.library, self.device = library, device
        self.numbers = np.random.default_rng(0)

    def __call__(self, *shape: int) -> Any:
        values = self.numbers.standard_normal(shape).astype(np.float32)
        return self.library.from_numpy(values).to(self.device)


def linear(t: Any, data: Data, inputs: int = 4, outputs: int = 3) -> Any:
    layer = t.nn.Linear(inputs, outputs).to(data.device)
    with t.no_grad():
        layer.weight.copy_(data(outputs, inputs))
        layer.bias.copy_(data(outputs))
    return layer


def momentum(t: Any, data: Data, compiled: Any) -> list[Any]:
    """The momentum buffer begins as a clone of the first gradient."""
    net = linear(t, data)
    optimizer = t.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)

    def step(x: Any) -> Any:
        loss = net(x).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss

    step = compiled(step)
    return [step(data(5, 4)).item() for _ in range(6)]


def accumulation(t: Any, data: Data, compiled: Any) -> list[Any]:
    """Gradients come and go between compiled functions."""
    net = linear(t, data)
    optimizer = t.optim.AdamW(net.parameters(), lr=0.1)

    def accumulate(x: Any) -> Any:
        loss = net(x).pow(2).mean() / 2
        loss.backward()
        return loss

    def update() -> None:
        t.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()

    accumulate, update = compiled(accumulate), compiled(update)
    out = []
    for i in range(6):
        out += [accumulate(data(5, 4)).item() for _ in range(1 + i % 3)]
        out.append(net.weight.grad.tolist())
        update()
        out.append(net.weight.grad is None)
    return out


def evaluation(t: Any, data: Data, compiled: Any) -> list[Any]:
    """A closed-over module changes its mode, a parameter is frozen."""
    net = t.nn.Sequential(linear(t, data), t.nn.BatchNorm1d(3)).to(data.device)
    x = data(6, 4)

    @compiled
    def forward(x: Any) -> Any:
        with t.no_grad():
            return net(x)

    out = []
    for training in (True, True, True, False, False, True, False):
        out.append(forward(x).tolist())
        net.train(training)
    return [*out, net[1].running_mean.tolist(), net[1].num_batches_tracked.item()]


def differentiated_outside(t: Any, data: Data, compiled: Any) -> list[Any]:
    """Only the model is compiled, as most programs do."""
    net = linear(t, data)
    model = compiled(net)
    optimizer = t.optim.SGD(model.parameters(), lr=0.1)
    out = []
    for _ in range(4):
        loss = model(data(5, 4)).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        out.append(loss.item())
    return out


def rebound(t: Any, data: Data, compiled: Any) -> list[Any]:
    """The function binds a name of the outside to what it computed from the old value."""
    state = {"mean": t.zeros(3, device=data.device)}

    @compiled
    def update(x: Any) -> Any:
        state["mean"] = state["mean"] * 0.5 + x
        return state["mean"]

    return [update(data(3)) for _ in range(5)]


def state_loaded(t: Any, data: Data, compiled: Any) -> list[Any]:
    """An optimizer gets an older state, a parameter other data."""
    w = t.nn.Parameter(data(3))
    optimizer = t.optim.Adam([w], lr=0.1)

    @compiled
    def step(x: Any) -> Any:
        loss = ((w - x) ** 2).sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss

    out = [step(data(3)).item() for _ in range(3)]
    saved, value = optimizer.state_dict(), w.detach().clone()
    saved["state"] = {0: {k: v.clone() for k, v in saved["state"][0].items()}}
    out += [step(data(3)).item() for _ in range(2)]
    optimizer.load_state_dict(saved)
    with t.no_grad():
        w.copy_(value)
    out += [step(data(3)).item() for _ in range(2)]
    w.data = data(3)
    return [*out, *(step(data(3)).item() for _ in range(2)), w]


def read_late(t: Any, data: Data, compiled: Any) -> list[Any]:
    """What was computed from a parameter is read after a replay has overwritten it."""
    w = t.nn.Parameter(data(3))
    optimizer = t.optim.SGD([w], lr=0.1)

    @compiled
    def step(x: Any) -> Any:
        loss = ((w - x) ** 2).sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss

    out = []
    for _ in range(5):
        out.append((w * 2).detach())
        step(data(3))
    return out


def arguments_written(t: Any, data: Data, compiled: Any) -> list[Any]:
    """Each call writes into its own argument and may return it."""

    @compiled
    def add(x: Any) -> Any:
        return x.add_(1)

    @compiled
    def passed(x: Any) -> Any:
        return x, x * 2

    tensors = [data(3) for _ in range(5)]
    results = [add(x) for x in tensors]
    return [*tensors, *results, *(passed(x)[0] for x in tensors)]


PROGRAMS = [
    momentum, accumulation, evaluation, differentiated_outside, rebound, state_loaded, read_late,
    arguments_written,
]  # fmt: skip


def numbers(x: Any) -> Any:
    return x.detach().cpu().tolist() if hasattr(x, "detach") else x


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p.__name__)
def test_compiled_programs_follow_pytorch(program: Callable[..., Any], device: str) -> None:
    expected = program(torch, Data(torch, "cpu"), identity)
    actual = program(webtorch, Data(webtorch, device), webtorch.compile)
    assert len(actual) == len(expected)
    for ours, theirs in zip(actual, expected, strict=True):
        np.testing.assert_allclose(numbers(ours), numbers(theirs), rtol=2e-4, atol=2e-5)


def test_a_capture_made_without_gradients_is_not_used_where_they_are_wanted(device: str) -> None:
    w = webtorch.nn.Parameter(webtorch.ones(3, device=device))
    x = webtorch.arange(3.0, device=device)

    @webtorch.compile
    def loss_of(x: Any) -> Any:
        return (w * x).sum()

    for _ in range(2):
        with webtorch.no_grad():
            assert not loss_of(x).requires_grad
        w.grad = None
        loss = loss_of(x)
        assert loss.requires_grad
        loss.backward()
        assert w.grad is not None and w.grad.tolist() == [0.0, 1.0, 2.0]


def test_what_is_differentiated_outside_is_a_second_program(device: str) -> None:
    layer = webtorch.nn.Linear(2, 2).to(device)
    traced = []

    @webtorch.compile
    def step(x: Any) -> Any:
        traced.append(1)
        return layer(x)

    x = webtorch.ones(1, 2, device=device)
    for _ in range(3):
        step(x).sum().backward()
    assert layer.bias.grad.tolist() == [3.0, 3.0]
    assert traced == [1]
    out = step(x)
    with pytest.raises(RuntimeError, match="first derivative"):
        webtorch.autograd.grad(out.sum(), layer.weight, create_graph=True)
    out = step(x).sum()
    out.backward()
    with pytest.raises(RuntimeError, match="second time"):
        out.backward()


def test_alternating_states_are_captured_once_each(device: str) -> None:
    w = webtorch.nn.Parameter(webtorch.ones(2, device=device))
    x = webtorch.ones(2, device=device)

    @webtorch.compile
    def accumulate(x: Any) -> Any:
        loss = (w * x).sum()
        loss.backward()
        return loss

    for i in range(12):
        accumulate(x)
        if i % 3 == 2:
            w.grad = None
    ((_, states),) = accumulate.captures.items()
    assert len(states) == 2


def sizes_that_vary(t: Any, data: Data, compiled: Any) -> tuple[list[Any], int, Any]:
    """A training step on batches of every size."""
    net = t.nn.Sequential(linear(t, data), t.nn.BatchNorm1d(3), linear(t, data, 3, 4))
    net = net.to(data.device)
    optimizer = t.optim.AdamW(net.parameters(), lr=0.01)
    traced = 0

    def step(x: Any, y: Any) -> Any:
        nonlocal traced
        traced += 1
        loss = t.nn.functional.cross_entropy(net(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss, x.shape[0]

    step = compiled(step)
    out = []
    for size in (4, 6, 9, 3, 6, 21):
        x, y = data(size, 4), t.arange(size, device=data.device) % 4
        if t is webtorch:
            webtorch.mark_dynamic(x, 0)
            webtorch.mark_dynamic(y, 0)
        loss, count = step(x, y)
        out += [loss.item(), count]
    return [*out, net[1].running_var.tolist()], traced, step


@pytest.mark.one_in(2)
@pytest.mark.covers("A26")
def test_one_capture_serves_every_size_of_a_marked_dimension(device: str) -> None:
    expected, _, _ = sizes_that_vary(torch, Data(torch, "cpu"), identity)
    actual, traced, step = sizes_that_vary(webtorch, Data(webtorch, device), webtorch.compile)
    for ours, theirs in zip(actual, expected, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=2e-4, atol=2e-5)
    assert len(step.captures) == 1
    # Five in the first call; to compare, one for 3, and two for 21 (itself and twice as many).
    assert traced == 8


@pytest.mark.one_in(2)
@pytest.mark.covers("A26")
def test_kernels_of_a_marked_dimension_are_compiled_for_all_sizes(device: str) -> None:
    from webtorch.runtime.realize import runtime_for

    weight = webtorch.randn(6, 5, device=device)

    @webtorch.compile
    def scores(x: Any) -> Any:
        y = (x @ weight).relu()
        return (y @ y.t()).softmax(-1).sum(0), y.transpose(0, 1) * 2

    def check(size: int) -> None:
        x = webtorch.arange(size * 6, device=device).reshape(size, 6) * (1 / (6 * size))
        webtorch.mark_dynamic(x, 0)
        expected = [webtorch.tensor(r.tolist()) for r in scores.function(x)]
        for ours, theirs in zip(scores(x), expected, strict=True):
            webtorch.testing.assert_close(ours.cpu(), theirs, rtol=1e-4, atol=1e-5)

    def compiled() -> int:
        # What the uncompiled call for comparison compiled has no argument for a size.
        cache = runtime_for(device, 0).backend.pipelines._pipelines
        return sum("struct Sizes" in source for source, *_ in cache)

    # From some 50 on a software adapter takes other kernels, with tiles, for products too.
    sizes = (17, 18, 20, 25, 31, 32, 33, 34, 36, 42)
    for size in sizes[:4]:
        check(size)
    before = compiled() if device == "webgpu" else 0
    for size in sizes[4:]:
        check(size)
    if device == "webgpu":
        assert compiled() == before > 0


def test_machine_code_for_all_sizes() -> None:
    from webtorch.runtime.backends.cpu import jit
    from webtorch.runtime.realize import runtime_for

    if not jit.available():
        pytest.skip("machine code needs llvmlite")

    @webtorch.compile
    def rows(x: Any) -> Any:
        return (x - x.mean(0)).exp().sum(1), x[:, ::2] * 3

    kernels = runtime_for("cpu", 0).backend
    before = kernels.caches()["kernels"]["misses"]
    for size in (900, 1111, 1300, 1001, 1200):
        x = webtorch.linspace(0, 1, size * 256, device="cpu").reshape(size, 256)
        webtorch.mark_dynamic(x, 0)
        for _ in range(2):
            ours = rows(x)
        same = torch.linspace(0, 1, size * 256).reshape(size, 256)
        np.testing.assert_allclose(ours[0].numpy(), (same - same.mean(0)).exp().sum(1), rtol=1e-4)
        np.testing.assert_allclose(ours[1].numpy(), same[:, ::2] * 3, rtol=1e-5)
    compiled = kernels.caches()["kernels"]["misses"] - before
    # Each kernel, once it had worked enough, for all sizes.
    assert 0 < compiled <= len(rows.program().routines)


@pytest.mark.one_in(2)
def test_a_cache_may_grow_and_is_differentiated_outside(device: str) -> None:
    w = webtorch.nn.Parameter(webtorch.ones(3, 3, device=device))
    traced = []

    @webtorch.compile
    def attend(x: Any, cache: Any) -> Any:
        traced.append(1)
        return ((x @ w) @ cache.t()).softmax(-1) @ cache

    numbers = Data(webtorch, device)
    cache, x = numbers(2, 3), numbers(1, 3)
    calls = []
    for _ in range(5):
        webtorch.mark_dynamic(cache, 0)
        out = attend(x, cache)
        (grad,) = webtorch.autograd.grad(out.sum(), w)
        plain = ((x @ w) @ cache.t()).softmax(-1) @ cache
        (want,) = webtorch.autograd.grad(plain.sum(), w)
        np.testing.assert_allclose(out.tolist(), plain.tolist(), rtol=1e-5)
        np.testing.assert_allclose(grad.tolist(), want.tolist(), rtol=1e-4, atol=1e-6)
        calls.append(len(traced))
        cache = webtorch.cat([cache, out.detach()])
    # Sizes 2, 3, 4, 7 and 10 in the first call; to compare, 5, and 6 with twice as many.
    assert calls == [5, 5, 5, 6, 8]
    assert len(attend.captures) == 1


@pytest.mark.one_in(2)
def test_what_depends_on_a_size_in_python_is_captured_for_each(device: str) -> None:
    @webtorch.compile
    def branch(x: Any) -> Any:
        return x * 2 if x.shape[0] > 6 else x + 1

    x = webtorch.ones(5, device=device)
    webtorch.mark_dynamic(x, 0)
    with pytest.warns(UserWarning, match=r"captured anew for each size.*map: (_add|mul)"):
        assert branch(x).tolist() == [2.0] * 5
    for size in (9, 4):
        x = webtorch.ones(size, device=device)
        webtorch.mark_dynamic(x, 0)
        assert branch(x).tolist() == [2.0] * size
    with pytest.raises(IndexError, match="Dimension out of range"):
        webtorch.mark_dynamic(x, 1)


def test_a_number_that_is_no_polynomial_of_a_size_is_captured_for_each() -> None:
    """Sizes near the first one have all the same number; one that lies further off has another."""

    @webtorch.compile
    def cut(x: Any) -> Any:
        return x[: max(2, x.shape[0] - 8)] * 2

    for size in (5, 13, 7):
        x = webtorch.ones(size, device="cpu")
        webtorch.mark_dynamic(x, 0)
        if size == 5:
            with pytest.warns(UserWarning, match="captured anew for each size"):
                assert cut(x).tolist() == [2.0] * 2
        else:
            assert cut(x).tolist() == [2.0] * max(2, size - 8)


@pytest.mark.long
def test_an_argument_that_churns_is_named(device: str) -> None:
    @webtorch.compile
    def add(x: Any, n: int) -> Any:
        return x + n

    x = webtorch.ones(2, device=device)
    for n in range(7):
        assert add(x, n).tolist() == [1.0 + n] * 2
    with pytest.warns(webtorch.errors.CacheChurnWarning, match="'n' changes: 6, then 7"):
        add(x, 7)
    with pytest.warns(webtorch.errors.CacheChurnWarning, match=r"'x' changes.*mark_dynamic\(x"):
        add(webtorch.ones(3, device=device), 0)
    for size in range(20):
        add(webtorch.ones(size + 4, device=device), 0)
    assert len(add.captures) == 16


def test_checks_of_indices_in_kernels_of_any_size() -> None:
    """The number of a check differs from kernel to kernel of one family."""
    w = webtorch.randn(16, 16)

    def f(x, i):
        a = x[i] @ w
        b = a[i] @ w
        return b[i] @ w

    compiled = webtorch.compile(f)
    for n in (40, 50, 61, 73):
        x, i = webtorch.randn(n, 16), webtorch.arange(n)
        for t in (x, i):
            webtorch.mark_dynamic(t, 0)
        for _ in range(2):
            assert webtorch.allclose(compiled(x, i), f(x, i), atol=1e-3, rtol=1e-3)
    i[3] = 500
    with pytest.raises(IndexError, match="index 500 is out of bounds for dimension 0 with size 73"):
        compiled(x, i).sum().item()
