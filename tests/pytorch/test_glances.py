"""Graphs of operators that come again are found as they stand: what differs between them is told apart."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from webtorch.pytorch import device
from webtorch.runtime import realize
from webtorch.runtime.churn import Churn
from webtorch.tensors.override import override


@pytest.fixture
def frozen(webgpu: str, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many graphs were taken apart, one entry for each."""
    found: list[int] = []
    original = realize.freeze

    def freeze(owners: list[realize.Value]) -> realize.Frozen:
        made = original(owners)
        found.append(len(made.order))
        return made

    monkeypatch.setattr(realize, "freeze", freeze)
    # Where the cache is half full, as after many other tests, all graphs are taken apart.
    device.runtime().programs.clear()
    return found


def test_steps_with_other_numbers_are_found(webgpu: str, frozen: list[int]) -> None:
    _train(webgpu, frozen)


def test_steps_are_found_where_classes_of_webtorch_are_asked(
    webgpu: str, frozen: list[int]
) -> None:
    # As from the first tensor of such a class on, to the end of the process.
    with override.asking():
        _train(webgpu, frozen)


def _train(webgpu: str, frozen: list[int]) -> None:
    torch.manual_seed(0)
    here = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 3))
    there = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 3))
    there.load_state_dict(here.state_dict())
    there.to(webgpu)
    pairs = [(m, torch.optim.SGD(m.parameters(), lr=0.1, momentum=0.9)) for m in (here, there)]
    for step in range(8):
        if step == 5:
            device.flush()
            frozen.clear()
        x, y = torch.randn(5, 4), torch.tensor([0, 1, 2, 0, 1])
        losses = []
        for model, optimizer in pairs:
            where = next(model.parameters()).device
            optimizer.param_groups[0]["lr"] = 0.1 / (step + 1)
            loss = nn.functional.cross_entropy(model(x.to(where)) * (1.0 + step), y.to(where))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.detach().cpu())
        torch.testing.assert_close(losses[1], losses[0], rtol=1e-4, atol=1e-5)
    for name, value in there.state_dict().items():
        torch.testing.assert_close(value.cpu(), here.state_dict()[name], rtol=1e-4, atol=1e-5)
    assert not frozen


def test_windows_that_are_read_and_written_at_moving_places(webgpu: str) -> None:
    kept = torch.zeros(8, 3), torch.zeros(8, 3, device=webgpu)
    for i, j in ((0, 0), (1, 1), (2, 2), (3, 1), (4, 4), (5, 0), (6, 6), (7, 7), (3, 3), (2, 5)):
        found = []
        for x in kept:
            x[i] = x[j] * 2 + i
            x[i : i + 1].add_(x[j : j + 1])
            found.append(x.sum(1) + x[i].relu().sum())
        torch.testing.assert_close(found[1].cpu(), found[0])
    torch.testing.assert_close(kept[1].cpu(), kept[0])


def test_what_is_kept_decides_what_is_computed(webgpu: str) -> None:
    x = torch.randn(4, 4)
    twin = x.to(webgpu)
    kept = []
    for keeps in (False, False, True, False, True, True):
        values, indices = (twin @ twin).relu().max(1)
        out = values.sum() + indices.sum()
        if keeps:
            kept.append(values)
        del values
        wanted, at = (x @ x).relu().max(1)
        torch.testing.assert_close(out.cpu(), wanted.sum() + at.sum())
        for each in kept:
            torch.testing.assert_close(each.cpu(), wanted)


def test_a_bad_index_is_reported_where_it_is_used(webgpu: str) -> None:
    weight = torch.randn(4, 3, device=webgpu)
    good, bad = (torch.tensor(i, device=webgpu) for i in ([1, 2], [1, 7]))
    first = [nn.functional.embedding(i, weight).relu().sum() for i in (good, good, good)]
    assert all(x.isfinite() for x in first)
    for _ in range(3):
        good_one = nn.functional.embedding(good, weight).relu().sum()
        good_one.item()
    line = sys._getframe().f_lineno + 1
    bad_one = nn.functional.embedding(bad, weight).relu().sum()
    with pytest.raises(IndexError, match=rf"test_glances\.py:{line}\)"):
        bad_one.item()


class _Decoder:
    """Layers of attention over a cache that grows, beside what is written in place and read before and after."""

    def __init__(self, where: str) -> None:
        torch.manual_seed(0)
        self.weights = [[(torch.randn(4, 4) / 3).to(where) for _ in range(4)] for _ in range(3)]

    def run(self, lengths: int, read: Callable[[torch.Tensor], torch.Tensor]) -> list[torch.Tensor]:
        """Return what each length gives, and what was written."""
        where = self.weights[0][0].device
        caches = [[torch.zeros(1, 4, device=where)] * 2 for _ in self.weights]
        sums = [torch.zeros(4, device=where) for _ in self.weights]
        x, found = torch.linspace(-1, 1, 4).to(where)[None], []
        for _ in range(lengths):
            for n, (q, k, v, o) in enumerate(self.weights):
                y = x + (sums[n] * 0.5).tanh() @ o
                sums[n] += x[0] @ q
                keys, values = caches[n] = [
                    torch.cat((c, y @ w)) for c, w in zip(caches[n], (k, v))
                ]
                shares = (y @ q @ keys.t() + sums[n].sum()).softmax(-1)
                x = (y + shares @ values @ o).tanh()
            found.append(read(x * 1.0))
        return [*found, *[each.cpu() for each in sums]]


@pytest.fixture
def decoder(webgpu: str, monkeypatch: pytest.MonkeyPatch) -> _Decoder:
    device.flush()
    runtime = device.runtime()
    runtime.programs.clear()
    monkeypatch.setattr(runtime, "divided", {})
    monkeypatch.setattr(runtime, "parted", {})
    monkeypatch.setattr(runtime, "churn", Churn("programs", "Pad."))
    monkeypatch.setattr(realize, "_IN_PARTS_MOST", 8)
    return _Decoder(webgpu)


def test_a_cache_that_grows_is_found_in_parts(decoder: _Decoder, frozen: list[int]) -> None:
    expected = _Decoder("cpu").run(7, torch.clone)
    runtime = device.runtime()
    for _ in range(6):
        frozen.clear()
        missed = runtime.counters.misses, runtime.counters.hits
        submitted = getattr(runtime.backend, "submits", 0)
        torch.testing.assert_close(decoder.run(7, torch.Tensor.cpu), expected)
    assert not frozen
    # One for each length, and one for each value that is read.
    assert getattr(runtime.backend, "submits", 0) - submitted <= 20
    assert runtime.counters.misses == missed[0]
    # Several programs for each length, until the same ones have come so often that they are compiled as a whole.
    assert runtime.counters.hits - missed[1] > 20
    for _ in range(6):
        missed = runtime.counters.misses, runtime.counters.hits
        torch.testing.assert_close(decoder.run(7, torch.Tensor.cpu), expected)
    assert not frozen or runtime.counters.misses == missed[0]
    assert runtime.counters.hits - missed[1] < 20


@pytest.mark.parametrize("part", [1, 2, 4])
def test_what_fails_between_known_parts_loses_nothing(
    part: int, decoder: _Decoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = _Decoder("cpu").run(7, torch.clone)
    for _ in range(5):
        decoder.run(7, torch.Tensor.cpu)
    runtime = device.runtime()
    compute, count = runtime._run_known_parts, runtime._count
    due, failed = list[int](), list[str]()

    def fail(*args: Any) -> None:
        if due:
            due[0] -= 1
            if not due[0]:
                due.clear()
                raise ValueError("once")
        count(*args)

    def known(*args: Any) -> None:
        if not failed and len(args[1].parts) > 4:
            due.append(part)
        compute(*args)

    def read(x: torch.Tensor) -> torch.Tensor:
        try:
            return x.cpu()
        except ValueError as error:
            failed.append(str(error))
            return x.cpu()

    monkeypatch.setattr(runtime, "_count", fail)
    monkeypatch.setattr(runtime, "_run_known_parts", known)
    torch.testing.assert_close(decoder.run(7, read), expected)
    assert failed == ["once"]
