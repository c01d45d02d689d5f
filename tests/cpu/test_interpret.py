"""Graphs that have not come before are computed node by node: to the bit what their programs give."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import webtorch
from webtorch.nn import functional as F
from webtorch.runtime import realize

RNG = np.random.default_rng(7)


@pytest.fixture(autouse=True)
def _nothing_lent(monkeypatch: pytest.MonkeyPatch) -> None:
    """Arrays of other tests that see memory of tensors' keep graphs from being computed node by node."""
    monkeypatch.setattr(webtorch.zeros(1)._storage.runtime, "lent", {})


def _given(*shape: int) -> Any:
    return webtorch.tensor(RNG.standard_normal(shape).astype(np.float32))


def _windows(x: Any) -> Any:
    y = x.clone()
    y[1:3, ::2] *= 2.5
    y[:, -1] = x[:, 0].exp()
    return F.pad(y.flip(0), (1, -1, 2, 0), value=0.5).cumsum(1)


def _rows(x: Any) -> Any:
    picked = x[webtorch.tensor([3, -1, 0])]
    added = webtorch.zeros(4, 5).index_add(0, webtorch.tensor([1, 1, 3]), picked)
    return added.scatter(1, webtorch.tensor([[4], [0]]), 9.0), picked.argmax(1), x.sort(0).values


def _layers(x: Any) -> Any:
    y = F.layer_norm(x @ x.t() + x.sum(1), (4,)).softmax(-1)
    return F.conv2d(y[None, None], webtorch.ones(2, 1, 3, 3), padding=1).amax((2, 3)), y.var(0)


def _types(x: Any) -> Any:
    short = (x.half() * 1.1).to(webtorch.bfloat16)
    whole = (x * 9).int()
    return short + 1, short.sum(0), (whole // 3) % 4, whole.bool().any(1), x.double().mean(), x > 0


def _gradient(x: Any) -> Any:
    w = webtorch.linspace(-1, 1, 15).reshape(5, 3).requires_grad_()
    loss = F.cross_entropy(F.gelu(x @ w), webtorch.tensor([0, 2, 1, 1]))
    loss.backward()
    return loss, w.grad


@pytest.mark.parametrize("work", [_windows, _rows, _layers, _types, _gradient])
def test_bits_are_those_of_the_program(
    work: Callable[[Any], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    x = _given(4, 5)
    x.sum().item()
    runtime = x._storage.runtime
    monkeypatch.setattr(realize, "_FEWEST_NODES", 0)
    monkeypatch.setattr(runtime, "sights", {})

    def found() -> list[Any]:
        made = work(x)
        every = made if isinstance(made, tuple) else (made,)
        webtorch.synchronize()
        return [t.detach().to(webtorch.float64).numpy().copy() for t in every]

    monkeypatch.setattr(realize, "_SIGHTS", 0)
    expected = found()
    monkeypatch.setattr(realize, "_SIGHTS", 1 << 30)
    monkeypatch.setattr(runtime, "programs", type(runtime.programs)())
    before = runtime.counters.misses
    monkeypatch.setattr(runtime, "single", {})
    for a, b in zip(found(), expected, strict=True):
        np.testing.assert_array_equal(a, b)
    assert runtime.sights
    assert runtime.counters.misses - before <= len(expected), "what is read one by one"


def test_a_loop_over_elements_compiles_nothing() -> None:
    places = [int(n) for n in RNG.integers(0, 10, 100)]
    w = _given(100)
    found, runtime = webtorch.zeros(10), w._storage.runtime
    w.sum().item()
    before = runtime.counters.misses
    for n, place in enumerate(places):
        found[place] += w[n]
    webtorch.synchronize()
    assert runtime.counters.misses == before
    expected = np.zeros(10, np.float32)
    np.add.at(expected, places, w.numpy())
    np.testing.assert_array_equal(found.numpy(), expected)


def test_ever_new_sizes_compile_nothing() -> None:
    x = _given(40, 3)
    runtime = x._storage.runtime
    compiled = []
    for n in range(20, 30):
        before = runtime.counters.misses
        (x[:n].softmax(1) * 1.5).std(0).sum().item()
        compiled.append(runtime.counters.misses - before)
    assert sum(compiled[4:]) == 0


def test_what_comes_often_is_compiled() -> None:
    x = _given(3, 7)
    runtime = x._storage.runtime
    compiled = []
    for _ in range(4):
        y = x
        for _ in range(70):
            y = y.softmax(0) * 1.5
        before = runtime.counters.misses
        y.sum().item()
        compiled.append(runtime.counters.misses - before)
    assert compiled == [0, 0, 1, 0]


def test_a_bad_index_leaves_what_is_overwritten() -> None:
    x, place = _given(5, 5), webtorch.tensor([9]) + 0
    y = x
    for _ in range(100):
        y = y.tanh() + x[place]
    x.add_(y)
    with pytest.raises(IndexError, match="9 is out of bounds"):
        x.sum().item()
