"""A cache that makes the same kind of entry in a loop and never uses it again says so, once; others keep quiet."""

from __future__ import annotations

import re
import warnings
from collections import OrderedDict
from typing import Any

import pytest

import webtorch
from tests.conftest import need_device
from webtorch.errors import CacheChurnWarning
from webtorch.runtime import realize
from webtorch.runtime.churn import Churn

# What is tested here is nearly the same on all devices.
pytestmark = pytest.mark.one_in(2, device="webgpu")


@pytest.fixture
def runtime(device: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    found = webtorch.zeros(1, device=device)._storage.runtime
    monkeypatch.setattr(found, "churn", Churn(f"Programs on {device}", "Pad."))
    monkeypatch.setattr(found, "programs", OrderedDict())
    # The processor compiles none that come at ever new sizes.
    monkeypatch.setattr(realize, "_SIGHTS", 0)
    # Arrays of other tests that see values.
    monkeypatch.setattr(found, "lent", [])
    return found


@pytest.mark.one_in(5, device="webgpu")
def test_a_loop_of_new_shapes_is_named_once(runtime: Any, device: str) -> None:
    layer = webtorch.nn.Linear(3, 2).to(device)

    def loop() -> None:
        for n in range(1, 90):
            x = webtorch.zeros(n, 3, device=device)
            layer(x).sum().item()

    with pytest.warns(CacheChurnWarning) as caught:
        loop()
    assert len(caught) == 1
    text = str(caught[0].message)
    assert f"Programs on {device}: 64 were made in a row" in text
    assert re.search(r"has shape \(1, 6\d, 2\) and then \(1, 6\d, 2\)", text), text
    assert "test_churn.py:" in text
    assert caught[0].filename == __file__
    counts = webtorch.debug.caches()[device]["programs"]
    assert counts["misses"] >= 89
    assert counts["entries"] >= 89


def test_batches_with_a_partial_last_one_and_schedules_do_not_warn(
    runtime: Any, device: str
) -> None:
    webtorch.manual_seed(0)
    model = webtorch.nn.Sequential(webtorch.nn.Linear(3, 4), webtorch.nn.Linear(4, 2)).to(device)
    optimizer = webtorch.optim.SGD(model.parameters(), lr=0.1)
    schedule = webtorch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
    data = webtorch.utils.data.TensorDataset(webtorch.randn(22, 3), webtorch.zeros(22, dtype=int))
    loader = webtorch.utils.data.DataLoader(data, batch_size=5, shuffle=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error", CacheChurnWarning)
        for _ in range(20):
            for x, y in loader:
                loss = webtorch.nn.functional.cross_entropy(model(x.to(device)), y.to(device))
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                loss.item()
            schedule.step()


def test_a_loop_that_needs_more_programs_than_are_kept_is_named(
    runtime: Any, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("webtorch.runtime.realize._MAX_PROGRAMS", 3)
    x = webtorch.zeros(8, device=device)
    functions = [webtorch.exp, webtorch.sin, webtorch.cos, webtorch.tanh, webtorch.sqrt]

    def loop() -> None:
        for _ in range(40):
            for function in functions:
                function(x).tolist()

    with pytest.warns(CacheChurnWarning, match="had to be made that had been dropped"):
        loop()
    assert runtime.churn.evictions > 100
    assert runtime.churn.made_again > 100


def test_where_there_is_little_room_what_runs_stays_and_is_launched_as_ever(
    runtime: Any, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("webtorch.runtime.realize._MAX_PROGRAMS", 4)
    launched = []
    launch = type(runtime)._launch
    monkeypatch.setattr(
        type(runtime), "_launch", lambda r: launched.append(launch(r)) or launched[-1]
    )
    x = webtorch.ones(11, device=device)
    x.exp().tolist()
    for number in range(12):
        # Another program each, and one that comes again.
        (x.sin() ** number).tolist()
        x.exp().tolist()
        assert launched[-1] or number < 2
        assert len(runtime.programs) <= 4
    assert runtime.churn.made_again == 0


def test_kernels_that_are_dropped_and_compiled_again_are_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    need_device("webgpu")
    from webtorch.runtime.backends.webgpu.pipeline import PipelineCache

    found = webtorch.zeros(1, device="webgpu")._storage.runtime
    monkeypatch.setattr(found, "churn", Churn("Programs", ""))
    monkeypatch.setattr(found, "programs", OrderedDict())
    monkeypatch.setattr("webtorch.runtime.realize._MAX_PROGRAMS", 1)
    pipelines = PipelineCache(found.backend.native, capacity=2)
    pipelines.churn.again = 5
    monkeypatch.setattr(found.backend, "pipelines", pipelines)
    x = webtorch.zeros(7, device="webgpu")

    def loop() -> None:
        for _ in range(8):
            for number in (1, 2, 3):
                (x.sin() ** number).cos().tolist()

    with pytest.warns(CacheChurnWarning, match="Compiled kernels on webgpu: 5 had to be made"):
        loop()
    assert pipelines.churn.evictions


def test_bind_groups_that_are_made_again_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    need_device("webgpu")
    found = webtorch.zeros(1, device="webgpu")._storage.runtime
    monkeypatch.setattr(
        found.backend, "bindings", Churn("Bind groups", "", in_a_row=None, again=20)
    )
    # As few as of a large program.
    monkeypatch.setattr("webtorch.runtime.backends.webgpu.executable._PLANNED", 0)
    data = [webtorch.full((33,), float(i), device="webgpu") for i in range(40)]
    webtorch.synchronize()

    def loop() -> None:
        for _ in range(2):
            for x in data:
                (x * 2).sum().item()

    with pytest.warns(CacheChurnWarning, match=r"inputs of the program .*: float32\[33\]"):
        loop()
    counts = webtorch.debug.caches()["webgpu"]["bind groups"]
    assert counts["made_again"] >= 20
    assert counts["evictions"] > 0


def test_what_memory_is_taken_does_not_depend_on_the_order_in_which_it_came_back() -> None:
    need_device("webgpu")
    backend: Any = webtorch.zeros(1, device="webgpu")._storage.runtime.backend
    pool, size = backend.pool, 4 * 54321
    blocks = [pool.take(size) for _ in range(4)]
    for order in ((0, 1, 2, 3), (2, 0, 3, 1), (3, 2, 1, 0)):
        for n in order:
            pool.give_back(blocks[n])
        assert [pool.take(size) for _ in range(4)] == blocks
    for block in blocks:
        pool.give_back(block)
