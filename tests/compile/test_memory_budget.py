"""`webtorch.compile(..., memory_budget=)`: less memory, the same numbers."""

from __future__ import annotations

from typing import Any

import pytest

import webtorch
from webtorch import nn

# What is tested here is nearly the same on all devices.
pytestmark = pytest.mark.one_in(3, device="webgpu")


def trained(device: str, budget: Any, dropout: float = 0.0) -> tuple[list[float], Any]:
    webtorch.manual_seed(0)
    layers: list[Any] = []
    with webtorch.device("cpu"):
        for _ in range(5):
            layers += [nn.Linear(24, 96), nn.GELU(), nn.Dropout(dropout), nn.Linear(96, 24)]
            layers += [nn.LayerNorm(24)]
        net = nn.Sequential(*layers).to(device)
        x = webtorch.randn(512, 24).to(device)
    optimizer = webtorch.optim.SGD(net.parameters(), lr=1e-2)

    @webtorch.compile(memory_budget=budget)
    def step(x: Any) -> Any:
        loss = net(x).square().mean() + x.mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss

    webtorch.manual_seed(3)
    return [step(x).item() for _ in range(4)], step


@pytest.mark.one_in(2)
@pytest.mark.parametrize("dropout", [0.0, 0.25])
def test_what_does_not_fit_is_computed_again(device: str, dropout: float) -> None:
    want, plain = trained(device, None, dropout)
    peak = plain.memory_plan().peak
    budget = int(0.75 * peak)
    got, small = trained(device, budget, dropout)
    assert small.memory_plan().peak <= budget
    assert got == pytest.approx(want, rel=1e-5)


def test_a_budget_that_cannot_be_kept_is_told(device: str) -> None:
    with pytest.warns(UserWarning, match=r"more than its memory_budget of 10\.0 KiB"):
        losses, step = trained(device, "10 KiB")
    assert losses[-1] > 0
    with pytest.raises(ValueError, match="neither a number of bytes"):
        trained(device, "much")
    with pytest.raises(ValueError, match="must be positive"):
        trained(device, 0)
    assert "peak" in str(step.memory_plan())


def test_a_checkpointed_part_takes_less_memory(device: str) -> None:
    net = nn.Sequential(
        *(nn.Sequential(nn.Linear(32, 128), nn.GELU(), nn.Linear(128, 32)) for _ in range(5))
    )
    net = net.to(device)
    x = webtorch.ones(64, 32, device=device)
    steps = []
    for again in (False, True):

        @webtorch.compile
        def step(x: Any, again: Any = again) -> Any:
            for part in net:
                x = (
                    webtorch.utils.checkpoint.checkpoint(part, x, use_reentrant=False)
                    if again
                    else part(x)
                )
            loss = x.square().mean()
            return webtorch.autograd.grad(loss, list(net.parameters()))

        steps.append((step(x), step.memory_plan()))
    (want, plain), (got, small) = steps
    assert small.temporaries < 0.75 * plain.temporaries
    for a, b in zip(got, want, strict=True):
        assert webtorch.allclose(a, b, rtol=1e-4, atol=1e-6)


def test_passes_show_what_they_did(device: str) -> None:
    @webtorch.compile
    def f(x: Any) -> Any:
        return x.exp().clone().sum(0, keepdim=True).sum(0, keepdim=True) + x.exp()

    f(webtorch.ones(2, 3, device=device))
    results = webtorch.debug.passes(f)
    assert {"compose_views", "drop_copies", "merge_equal_nodes"} <= {r.name for r in results}
    assert len(results[-1].after.nodes) < len(results[0].before.nodes)
    changed = [str(r) for r in results if r.before != r.after]
    assert changed and all(
        "before\n%0 = buffer" in text and "\nafter\n" in text for text in changed
    )
    assert any("nothing changed" in str(r) for r in results)
