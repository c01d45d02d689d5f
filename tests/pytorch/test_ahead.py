"""A thread that waits for what it has recorded does not leave the device idle meanwhile."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from webtorch.pytorch import device
from webtorch.runtime import ahead, realize


class _Waiting:
    """Counts programs, and says of a device here that it computes by itself."""

    def __init__(self, runtime: realize.Runtime) -> None:
        self.runtime = runtime
        self.backend = runtime.backend

    def wait(self) -> None:
        self.backend.waited += 1

    def count(self) -> int:
        return self.runtime.counters.realized


@pytest.fixture
def waiting(webgpu: str, monkeypatch: pytest.MonkeyPatch) -> _Waiting:
    device.flush()
    runtime = device.runtime()
    runtime.programs.clear()
    monkeypatch.setattr(runtime, "ahead", ahead.Ahead(runtime.backend, runtime.counters))
    monkeypatch.setattr(runtime.backend, "waited", 0)
    monkeypatch.setattr(ahead, "_AHEAD", 8)
    monkeypatch.setattr(ahead, "_MUCH", 16)
    monkeypatch.setattr(ahead, "_FAR", 512)
    # As here, what is computed ahead is more than what is launched as it stands.
    monkeypatch.setattr(realize, "_FEW", 4)
    return _Waiting(runtime)


def _net() -> nn.Module:
    torch.manual_seed(0)
    layers = [layer for _ in range(6) for layer in (nn.Linear(4, 4), nn.Tanh(), nn.LayerNorm(4))]
    return nn.Sequential(*layers)


def test_a_loop_that_reads_its_loss(waiting: _Waiting, webgpu: str) -> None:
    here, there = _net(), _net().to(webgpu)
    pairs = [(m, torch.optim.SGD(m.parameters(), lr=0.1, momentum=0.9)) for m in (here, there)]
    programs = []
    for _ in range(14):
        before, losses = waiting.count(), []
        x = torch.randn(3, 4)
        for model, optimizer in pairs:
            loss = model(x.to(next(model.parameters()).device)).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        waiting.wait()
        programs.append(waiting.count() - before)
        assert losses[1] == pytest.approx(losses[0], rel=1e-4)
    assert programs[2] <= 3
    assert programs[-1] >= 6
    for mine, theirs in zip(there.state_dict().values(), here.state_dict().values(), strict=True):
        torch.testing.assert_close(mine.cpu(), theirs, rtol=1e-3, atol=1e-5)


def test_nothing_is_new_after_a_few_calls(waiting: _Waiting, webgpu: str) -> None:
    # Operators that are learned meanwhile record more than they do once they are known.
    net = nn.Sequential(_net(), *[layer for _ in range(4) for layer in (nn.GELU(), nn.Softmax(1))])
    here = torch.ones(3, 4)
    theirs, x = net(here), here.to(webgpu)
    net.to(webgpu)
    new, programs = [], []
    with torch.no_grad():
        for _ in range(10):
            misses, count = waiting.runtime.counters.misses, waiting.count()
            torch.testing.assert_close(net(x).cpu(), theirs, rtol=1e-4, atol=1e-5)
            waiting.wait()
            new.append(waiting.runtime.counters.misses - misses)
            programs.append(waiting.count() - count)
    assert programs[0] == 1
    assert programs[-1] >= 3
    assert not any(new[4:])


def test_a_loop_that_waits_for_nothing(waiting: _Waiting, webgpu: str) -> None:
    net = _net().to(webgpu)
    x = torch.randn(3, 4, device=webgpu)
    with torch.no_grad():
        for _ in range(9):
            net(x).cpu()
            waiting.wait()
        assert waiting.runtime.ahead.most == 8
        for _ in range(80):
            kept = net(x)
        device.flush()
        net(x)
        assert waiting.runtime.ahead.most > 8
        torch.testing.assert_close(kept.cpu(), net.cpu()(x.cpu()), rtol=1e-4, atol=1e-5)


def test_sizes_that_change_are_computed_as_a_whole(waiting: _Waiting, webgpu: str) -> None:
    net = _net().to(webgpu)
    most = []
    with torch.no_grad():
        for i in range(30):
            x = torch.randn(3 if i < 6 else i, 4, device=webgpu)
            torch.testing.assert_close(net(x).square().sum().cpu().isfinite(), torch.tensor(True))
            waiting.wait()
            most.append(waiting.runtime.ahead.most)
    assert 8 in most
    assert most[-1] > 8


def test_one_size_that_changes_among_others(waiting: _Waiting, webgpu: str) -> None:
    """A static cache and a mask that grows: layers of one size are computed ahead, a new size is one small program."""
    net = _net().to(webgpu)
    most, new = [], []
    with torch.no_grad():
        for _ in range(4):
            for i in range(4, 16):
                misses = waiting.runtime.counters.misses
                mask = torch.ones(i, device=webgpu).square().sum()
                torch.testing.assert_close(
                    (net(torch.ones(3, 4, device=webgpu)) * 0 + mask).cpu(),
                    torch.full((3, 4), float(i)),
                )
                waiting.wait()
                most.append(waiting.runtime.ahead.most)
                new.append(waiting.runtime.counters.misses - misses)
    assert most[-1] == 8
    assert not any(new[-8:])
