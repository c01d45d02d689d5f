"""Loops whose sizes change are computed in parts: most are compiled once, and the values are the same."""

from __future__ import annotations

import random
from collections import OrderedDict
from typing import Any

import numpy as np
import pytest

import webtorch
from webtorch.errors import KernelError, OutOfMemoryError
from webtorch.runtime import parts, realize
from webtorch.runtime.churn import Churn
from webtorch.runtime.frozen import freeze
from webtorch.runtime.parts import Held, cut

# What is tested here is nearly the same on all devices.
pytestmark = pytest.mark.one_in(2, device="webgpu")


@pytest.fixture
def runtime(device: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    found = webtorch.zeros(1, device=device)._storage.runtime
    found.flush()
    monkeypatch.setattr(found, "churn", Churn(f"Programs on {device}", "Pad."))
    monkeypatch.setattr(found, "programs", OrderedDict())
    monkeypatch.setattr(found, "divided", {})
    monkeypatch.setattr(found, "parted", {})
    # While NumPy sees values, as other tests' arrays do, nothing is cut.
    monkeypatch.setattr(found, "lent", [])
    return found


class _Decoder:
    """Layers of attention over a cache that grows, and of products that do not."""

    def __init__(self, device: str, layers: int = 4, width: int = 8) -> None:
        rng = np.random.default_rng(0)

        def weight() -> Any:
            values = rng.standard_normal((width, width)).astype(np.float32) / width**0.5
            return webtorch.tensor(values, device=device)

        self.layers = [[weight() for _ in range(5)] for _ in range(layers)]
        self.keys = [webtorch.zeros(0, width, device=device) for _ in range(layers)]
        self.values = [webtorch.zeros(0, width, device=device) for _ in range(layers)]

    def step(self, x: Any) -> Any:
        for n, (q, k, v, o, inner) in enumerate(self.layers):
            y = x / (x.square().mean(-1, keepdim=True) + 1e-6).sqrt()
            self.keys[n] = webtorch.cat([self.keys[n], y @ k])
            self.values[n] = webtorch.cat([self.values[n], y @ v])
            scores = (y @ q @ self.keys[n].t()).softmax(-1)
            x = x + scores @ self.values[n] @ o
            x = x + webtorch.nn.functional.gelu(x @ inner)
        return x


def _decode(device: str, steps: int) -> list[float]:
    decoder = _Decoder(device)
    x = webtorch.linspace(-1, 1, 8, device=device)[None]
    found = []
    for _ in range(steps):
        x = decoder.step(x).tanh()
        found.append(x.sum().item())
    return found


def test_a_growing_cache_compiles_only_what_grows(
    runtime: Any, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = runtime.counters.misses
    in_parts = _decode(device, 14)
    before = runtime.counters.misses
    again = _decode(device, 14)
    assert runtime.counters.misses == before
    # Whole programs: the first steps. Then parts that do not grow are compiled once, and the layers
    # share those that do: a layer of each, the first and the last.
    assert before - first <= 3 + 3 + 3 * 12
    (divided,) = [d for d in runtime.divided.values() if d.cut]
    assert len(divided.cut.parts) == 9
    assert sum(p.varying for p in divided.cut.parts) == 4
    # A kernel that has worked enough becomes machine code on the CPU, which rounds otherwise.
    np.testing.assert_allclose(again, in_parts, rtol=2e-5)
    monkeypatch.setattr(realize, "FEWEST", 10**9)
    runtime.programs.clear()
    np.testing.assert_allclose(in_parts, _decode(device, 14), rtol=2e-5)


def test_what_comes_often_is_compiled_as_a_whole(
    runtime: Any, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(realize, "_IN_PARTS_MOST", 2)
    found = [_decode(device, 6) for _ in range(4)]
    for other in found[1:]:
        np.testing.assert_allclose(found[0], other, rtol=2e-5)
    (divided,) = [d for d in runtime.divided.values() if d.cut]
    assert set(divided.times.values()) == {2}
    before = runtime.counters.misses, runtime.counters.realized, runtime.counters.hits
    _decode(device, 6)
    assert runtime.counters.misses == before[0]
    # One program a step now.
    assert runtime.counters.hits - before[2] == runtime.counters.realized - before[1]


@pytest.mark.one_in(2)
def test_a_training_step_of_growing_sequences_writes_in_place_and_right(
    runtime: Any, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Most of such a step changes: it would be computed as a whole.
    monkeypatch.setattr(parts, "_MOST_CHANGED", 1.0)

    def train() -> list[float]:
        webtorch.manual_seed(0)
        model = webtorch.nn.Sequential(
            *[webtorch.nn.Linear(6, 6) for _ in range(6)], webtorch.nn.LayerNorm(6)
        ).to(device)
        optimizer = webtorch.optim.AdamW(model.parameters(), lr=1e-2)
        found = []
        for n in range(3, 11):
            x = webtorch.linspace(-1, 1, 6 * n, device=device).view(n, 6)
            loss = (model(x) - x.flip(0)).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            found.append(loss.item())
        return found

    in_parts = train()
    assert any(d.times for d in runtime.divided.values())
    monkeypatch.setattr(realize, "FEWEST", 10**9)
    runtime.programs.clear()
    np.testing.assert_allclose(in_parts, train(), rtol=1e-4)


@pytest.mark.one_in(2)
@pytest.mark.parametrize("part", [1, 2, 3])
@pytest.mark.parametrize("error", [KernelError, OutOfMemoryError, KeyboardInterrupt])
def test_what_fails_between_parts_loses_nothing(
    error: type[BaseException],
    part: int,
    runtime: Any,
    device: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(parts, "_MOST_CHANGED", 1.0)
    compute = runtime._run_frozen
    due: list[int] = []
    failed: list[int] = []

    def fail(frozen: Any, executable: Any) -> None:
        if due:
            due[0] -= 1
            if not due[0]:
                due.clear()
                raise error("once")
        compute(frozen, executable)

    monkeypatch.setattr(runtime, "_run_frozen", fail)

    def train(failing: bool) -> list[Any]:
        # As parts that have not run before.
        runtime.parted.clear()
        webtorch.manual_seed(0)
        model = webtorch.nn.Sequential(*[webtorch.nn.Linear(6, 6) for _ in range(6)]).to(device)
        optimizer = webtorch.optim.AdamW(model.parameters(), lr=1e-2)
        found = []
        for n in range(3, 12):
            x = webtorch.linspace(-1, 1, 6 * n, device=device).view(n, 6)
            optimizer.zero_grad()
            loss = (model(x) - x.flip(0)).square().mean()
            loss.backward()
            if failing and n == 8:
                due.append(part)
            try:
                optimizer.step()
            except error:
                failed.append(n)
            # The last first: the values are computed one by one now.
            found += [loss.item(), *[p.tolist() for p in reversed(list(model.parameters()))][:3]]
        assert any(d.cut for d in runtime.divided.values())
        return found

    expected = train(False)
    found = train(True)
    assert failed == [8]
    for here, there in zip(found, expected, strict=True):
        np.testing.assert_allclose(here, there, rtol=1e-4, atol=1e-6)


def _random_program(rng: random.Random, device: str) -> list[Any]:
    """Record a graph of products, maps, views, reductions and writes in place; return what is alive."""
    alive = [webtorch.linspace(-1, 1, 12, device=device).view(3, 4).sin() + i / 4 for i in range(3)]
    for x in alive:
        x._storage.runtime.flush()
    for _ in range(40):
        x, y = rng.choice(alive), rng.choice(alive)
        match rng.randrange(8):
            case 0:
                alive.append(x + y)
            case 1:
                alive.append((x @ y.t() @ x).tanh())
            case 2:
                alive.append(x.softmax(1))
            case 3:
                alive.append(x.flip(0) * 0.5)
            case 4:
                x.mul_(0.7).add_(y.detach().clone() * 0.1)
            case 5:
                x[rng.randrange(3)] = y[rng.randrange(3)] * 0.5
            case 6:
                alive.append(webtorch.cat([x[1:], y[:1]]).sigmoid())
            case 7:
                alive.append(x.sum(0, keepdim=True) + y)
        if len(alive) > 6:
            alive.pop(rng.randrange(len(alive)))
    return alive


@pytest.mark.parametrize("seed", range(12))
def test_any_cut_gives_the_same_values(seed: int, runtime: Any, device: str) -> None:
    expected = [x.tolist() for x in _random_program(random.Random(seed), device)]
    rng = random.Random(seed)
    alive = _random_program(rng, device)
    owners = {id(o): o for r in runtime.pending if (o := r()) is not None}
    frozen = freeze([o for o in owners.values() if o.node.kind != "buffer"])
    changing = {i for i in range(len(frozen.order)) if rng.random() < 0.15}
    found = cut(frozen.order, frozen.owners, changing)
    if found is not None:
        owners = frozen.owners
        assert sorted(n for p in found.parts for n in p.owners) == list(range(len(owners)))
        for n in found.keeping:
            owners[n].donor = None
        for part in found.parts:
            mine = [owners[n] for n in part.owners] + [Held(frozen.order[n]) for n in part.nodes]
            part_of = freeze(mine)
            runtime._run_frozen(part_of, runtime.program(part_of.key, part_of))
    for x, y in zip(alive, expected, strict=True):
        np.testing.assert_allclose(x.tolist(), y, rtol=1e-5, atol=1e-6)
