"""One operation on data, the commonest graph, takes a shorter way than larger ones: it must find the
same program, with the same inputs and arguments."""

from __future__ import annotations

import gc
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

import webtorch
from tests.conftest import need_device
from tests.scripts.following import scripts
from webtorch.runtime.frozen import freeze, glance, signature, to_graph

Call = Callable[[Any, Any], Any]
CALLS: list[Call] = [
    lambda x, y: x + y,
    lambda x, y: x * x,
    lambda x, y: x.t() - y,
    lambda x, y: x[1:3] + y[:2],
    lambda x, y: y[:2] * x[1:3],
    lambda x, y: x[2] - x[1],
    lambda x, y: webtorch.addcmul(x[1], y[2], y[0], value=2.5),
    lambda x, y: x * 3.0,
    lambda x, y: x.clone().add_(y),
    lambda x, y: x.sum(1, keepdim=True),
    lambda x, y: x.t().sum(1, keepdim=True),
    lambda x, y: x[0].expand(4, 4) + x[0],
]


@pytest.mark.parametrize("call", CALLS)
def test_the_inputs_and_arguments_are_those_of_the_general_way(call: Call, device: str) -> None:
    x, y = (webtorch.rand(4, 4, device=device) for _ in range(2))
    webtorch.realize(x, y)
    result = call(x, y)
    owner = result._storage
    found = signature(owner)
    assert found is not None
    frozen = freeze([owner])
    _, inputs, args = found
    assert inputs == frozen.inputs
    assert list(args) == frozen.args


def test_what_differs_in_structure_has_another_key() -> None:
    x, y = webtorch.rand(4, 4), webtorch.rand(4, 4)
    z, bits = webtorch.rand(2, 8), webtorch.ones(4, 4, dtype=webtorch.int32)
    webtorch.realize(x, y, z, bits)
    results = [
        x + y, x + x, x + 2.0, x - y, x + x.t(), x.t() + x, x.t() + y, x.t() + y.t(), z + z,
        x[1] + x[2], x[1:3] + x[1:3], x[1:3] + y[1:3], bits + bits, x[:, 1] + y[1], x[1] + y[:, 1],
        x.double(), x.int(),
    ]  # fmt: skip
    keys: dict[Any, set[str]] = {}
    for result in results:
        found = signature(result._storage)
        assert found is not None
        keys.setdefault(found[0], set()).add(str(to_graph(freeze([result._storage]))))
    assert len(keys) >= 10
    assert all(len(graphs) == 1 for graphs in keys.values())
    assert len({next(iter(g)) for g in keys.values()}) == len(keys)


def test_another_number_or_offset_is_the_same_program(device: str) -> None:
    x = webtorch.arange(12.0, device=device).reshape(3, 4)
    webtorch.realize(x)
    runtime = x._storage.runtime
    first = (x[1] * 2.0).tolist()
    misses = runtime.counters.misses
    assert (x[2] * 3.0).tolist() == [24.0, 27.0, 30.0, 33.0]
    assert runtime.counters.misses == misses
    assert first == [8.0, 10.0, 12.0, 14.0]


@pytest.mark.one_in(2)
def test_a_program_that_is_dropped_is_made_again(device: str) -> None:
    x = webtorch.arange(5.0, device=device)
    assert (x * 7.0).tolist() == [0.0, 7.0, 14.0, 21.0, 28.0]
    runtime = x._storage.runtime
    runtime.programs.clear()
    gc.collect()
    assert (x * 8.0).tolist() == [0.0, 8.0, 16.0, 24.0, 32.0]
    assert (x * 9.0).tolist() == [0.0, 9.0, 18.0, 27.0, 36.0]


GRAPHS: list[Callable[[Any, Any, float], Any]] = [
    lambda x, y, n: (x * n).exp() + y * (n + 1),
    lambda x, y, n: (x - y).half().sum(1),
    lambda x, y, n: (x * n).sum(0),
    lambda x, y, n: (x * n - 1).softmax(1) * (n + 2),
    lambda x, y, n: (x + y) * (x + y).abs(),
    lambda x, y, n: x.sin() @ y.t() - x,
    lambda x, y, n: y.cos() @ x.cos() + y,
    lambda x, y, n: (x[1] * n + y).exp().amax(1),
    lambda x, y, n: (x[2] + y[1] * n).exp(),
    lambda x, y, n: (x.t() + 1) * (x.t() + n),
    lambda x, y, n: webtorch.where(x > n, y.exp(), x * n),
    lambda x, y, n: x.to(webtorch.float16).float(),
    lambda x, y, n: x.std(1).mul(n).log_softmax(0),
    lambda x, y, n: (webtorch.logsumexp(x * n, 1) * 0.5 + y.var(1)) * n + 1,
    lambda x, y, n: webtorch.nn.functional.elu(x - n, 0.7).std(0).lerp(y.mul(n).mean(0), n),
    lambda x, y, n: (x * n)[webtorch.tensor([2, 0])].exp(),
    lambda x, y, n: x.gather(1, (y * 3).long()) * n,
]


def test_small_graphs_that_come_again_are_computed_with_their_own_data(device: str) -> None:
    """One value that is read finds its program by the forms of what it stands on."""
    size = webtorch.Size((4, 4))
    runtime = webtorch.zeros(1, device=device)._storage.runtime
    # Where many other tests have filled it, programs are dropped.
    runtime.programs.clear()
    # A script that is learned meanwhile would have programs of its own.
    with scripts(False):
        for round_ in range(4):
            x, y = (webtorch.rand(size, device=device) for _ in range(2))
            given = [(x, y), (y, x), (x, x)]
            webtorch.realize(x, y)
            for call in GRAPHS:
                for place, (a, b) in enumerate(given):
                    found = call(a, b, 0.25 * (round_ + place)).tolist()
                    # As one of several results the same value takes the way of larger graphs.
                    again = call(a, b, 0.25 * (round_ + place))
                    other = a.tanh()
                    webtorch.realize()
                    assert other._storage.node.kind == "buffer"
                    torch.testing.assert_close(torch.tensor(found), torch.tensor(again.tolist()))
            if round_ == 2:
                misses = runtime.counters.misses
    assert runtime.counters.misses == misses


def test_what_differs_in_a_small_graph_is_told_apart() -> None:
    x, y = webtorch.rand(4, 4), webtorch.rand(4, 4)
    z = webtorch.rand(2, 8)
    webtorch.realize(x, y, z)
    for turn in range(3):
        results = [
            (x + y).exp(), (x + x).exp(), (x + y).log(), (x + x[1]).exp(), (x + x[:, 1:2]).exp(), (x + y[1]).exp(),
            (x - y).exp() * x, (x - y).exp() * y, (y - x).exp() * x, (z + z).exp(), (x.t() + y).exp(),
            (x + y.t()).exp(), (x + y).sum(0), (x + y).sum(1), (x + y).double().exp(), x.double().exp(),
            x.exp().double(), (x + y).max(1).values, (x + y).max(1).indices, (x + y).exp() * (x + y).exp(),
        ]  # fmt: skip
        keys: dict[Any, set[str]] = {}
        for result in results:
            found = glance([result._storage], 7)
            if found is None:
                # Calls are remembered from the third time on.
                assert turn < 2
                continue
            key, inputs, _, _ = found
            frozen = freeze([result._storage])
            assert set(inputs) == set(frozen.inputs)
            order = tuple(inputs.index(n) for n in frozen.inputs)
            keys.setdefault(key, set()).add(f"{to_graph(frozen)} {order}")
    assert all(len(graphs) == 1 for graphs in keys.values())


def test_a_value_on_the_way_that_is_kept_is_computed_too() -> None:
    for _ in range(4):
        x = webtorch.arange(4.0)
        kept = x + 1.0
        result = kept.exp() * 2.0
        assert result.tolist() == pytest.approx([2.0 * math.exp(n + 1.0) for n in range(4)])
        assert kept._storage.node.kind == "buffer"
        assert kept.tolist() == [1.0, 2.0, 3.0, 4.0]


def test_writes_in_place_stay_in_their_memory() -> None:
    x = webtorch.zeros(64)
    view = x[:4]
    webtorch.realize(x)
    buffer = x._storage.node.buffer
    for n in range(5):
        x.add_(1.0)
        webtorch.realize(x)
        assert x._storage.node.buffer is buffer
        assert view.tolist() == [n + 1.0] * 4
    y = x.clone()
    x.mul_(2.0)
    assert y[0].item() == 5.0
    assert x[0].item() == 10.0


def test_machine_code_takes_over_from_numpy_with_the_same_results() -> None:
    """After enough calls a program calls machine code directly: with its arguments, and its checks."""
    x = webtorch.arange(-64, 64, dtype=webtorch.int32)
    expected = [(v * 3 - 5) % 7 for v in range(-64, 64)]
    for _ in range(1500):
        found = (x * 3 - 5) % 7
        webtorch.realize(found)
    assert found.tolist() == expected
    table = webtorch.arange(10.0)
    good, bad = webtorch.tensor([3, 4]), webtorch.tensor([3, 12])
    for _ in range(3000):
        picked = table[good]
        webtorch.realize(picked)
    assert picked.tolist() == [3.0, 4.0]
    with pytest.raises(IndexError, match="12"):
        table[bad].tolist()
    assert table[good].tolist() == [3.0, 4.0]


def test_storages_that_are_gone_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    x = webtorch.rand(4)
    webtorch.realize(x)
    runtime = x._storage.runtime
    monkeypatch.setattr(runtime, "most_settled", 32)
    kept = []
    for n in range(200):
        kept.append(x + n)
        webtorch.realize(kept[-1])
    assert len(runtime.settled) >= 200
    del kept
    gc.collect()
    monkeypatch.setattr(runtime, "most_settled", 32)
    webtorch.realize(x + 1)
    assert len(runtime.settled) < 200


def test_results_of_one_call_that_are_read_together_are_computed_with_their_own_data(
    device: str,
) -> None:
    for _ in range(5):
        x = webtorch.rand(5, 7, device=device)
        webtorch.realize(x)
        runtime = x._storage.runtime
        misses = runtime.counters.misses
        values, places = x.max(1)
        low, high = x.aminmax()
        webtorch.realize(low, high)
        assert values._storage.node.kind == places._storage.node.kind == "buffer"
        values, places = x.max(1)
        webtorch.realize(values, places)
        assert values._storage.node.kind == places._storage.node.kind == "buffer"
        rows = x.tolist()
        assert [max(row) for row in rows] == values.tolist()
        assert [row.index(max(row)) for row in rows] == places.tolist()
        assert (low.item(), high.item()) == (min(map(min, rows)), max(map(max, rows)))
        # One of them is dropped, and one is read alone.
        _, places = x.min(1)
        assert places.tolist() == [row.index(min(row)) for row in rows]
    assert runtime.counters.misses == misses


def test_values_of_one_form_may_be_on_several_devices() -> None:
    need_device("webgpu")
    for n in range(4):
        # A graphics card first: what is known of its program says nothing to the processor.
        for device in ("webgpu", "cpu"):
            x = webtorch.tensor([1.0, 2.0, 3.0 + n], device=device)
            assert (x * 2).tolist() == [2.0, 4.0, 6.0 + 2 * n]
            assert x.half().tolist() == [1.0, 2.0, 3.0 + n]
            values, places = x.max(0)
            assert (values.item(), places.item()) == (3.0 + n, 2)
