"""Graphs of operators that come again are found as they stand: what differs between them is told apart."""

from __future__ import annotations

import sys

import pytest
import torch
from torch import nn

from webtorch.pytorch import device
from webtorch.runtime import realize
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
