"""Capability rows S: real PyTorch on "webgpu", compared with PyTorch on the CPU."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn

import webtorch


@pytest.fixture
def webgpu(need: Any) -> str:
    need("webgpu")
    return "webgpu"


def _net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.GELU(), nn.LayerNorm(8), nn.Linear(8, 3))


@pytest.mark.covers("S1", "S4", "S5")
def test_the_device_and_the_way_there_and_back(webgpu: str) -> None:
    x = torch.arange(6.0).view(2, 3).t()
    there = x.to(torch.device(webgpu))
    assert there.device.type == "webgpu" and there.is_webgpu and x.webgpu().is_webgpu
    assert torch.equal(there.cpu(), x) and torch.equal((there * 2 + 1).cpu(), x * 2 + 1)
    made = torch.zeros(2, dtype=torch.int64, device=webgpu)
    made[1] = 5
    assert made.tolist() == [0, 5]


@pytest.mark.long
@pytest.mark.covers("S6")
def test_training_gives_the_cpus_losses(webgpu: str) -> None:
    start = _net()
    losses = []
    for device in ("cpu", webgpu):
        model = copy.deepcopy(start).to(device)
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
        torch.manual_seed(1)
        x, y = torch.randn(8, 6).to(device), (torch.arange(8) % 3).to(device)
        losses.append([])
        for _ in range(5):
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            losses[-1].append(loss.item())
    assert losses[1] == pytest.approx(losses[0], abs=1e-4)
    assert losses[0][-1] < losses[0][0]


@pytest.mark.covers("S8")
def test_custom_operators_with_gradients_run_on_the_device(webgpu: str) -> None:
    ran: list[str] = []

    @torch.library.custom_op("webtorch_test::squash", mutates_args=())
    def squash(x: torch.Tensor, scale: float) -> torch.Tensor:
        return torch.tanh(x) * scale

    @squash.register_kernel("webgpu")
    def _(x: torch.Tensor, scale: float) -> torch.Tensor:
        ran.append(x.device.type)
        return torch.tanh(x) * scale

    @squash.register_fake
    def _(x: torch.Tensor, scale: float) -> torch.Tensor:
        return torch.empty_like(x)

    def setup(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(inputs[0])
        ctx.scale = inputs[1]

    def backward(ctx: Any, g: torch.Tensor) -> Any:
        return g * ctx.scale * (1 - torch.tanh(ctx.saved_tensors[0]) ** 2), None

    squash.register_autograd(backward, setup_context=setup)

    @torch.library.custom_op("webtorch_test::bump", mutates_args={"x"})
    def bump(x: torch.Tensor) -> None:
        x.add_(1)

    found = []
    for device in ("cpu", webgpu):
        x = torch.linspace(-1, 1, 5).to(device).requires_grad_()
        y = squash(x, 2.0)
        y.sum().backward()
        assert x.grad is not None
        bump(x.grad)
        found.append([y.detach().cpu(), x.grad.cpu()])
    torch.testing.assert_close(found[1], found[0])
    assert ran == ["webgpu"]
    torch.library.opcheck(squash, (torch.ones(3, device=webgpu), 2.0))


@pytest.mark.covers("S9")
def test_names_are_pytorchs() -> None:
    ours = {n for n in dir(webtorch.Tensor) if not n.startswith("_")}
    theirs = set(dir(torch.Tensor))
    extra = {"is_webgpu", "webgpu", "item_async", "numpy_async", "tolist_async"}
    aliases = {
        n for n in ours - theirs - extra if hasattr(torch, n) or hasattr(torch, n.rstrip("_"))
    }
    foreign = ours - theirs - extra - aliases
    assert len(foreign) <= 6, sorted(foreign)
    layers = {n for n in dir(webtorch.nn) if n[0].isupper()}
    assert layers <= set(dir(torch.nn)), sorted(layers - set(dir(torch.nn)))
    assert {n for n in dir(webtorch.optim) if n[0].isupper()} <= set(dir(torch.optim))
