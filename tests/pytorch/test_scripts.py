"""Scripts leave PyTorch's operators alone, and go on beside them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import webtorch
from tests.pytorch.models import GPT, mlp, rows, texts, train
from tests.scripts.following import scripts


@pytest.mark.parametrize("kind", ["mlp", "gpt"])
def test_training_is_what_it_is_without_scripts(webgpu: str, kind: str) -> None:
    def run(where: str) -> list[float]:
        model, batches = (mlp(), rows()) if kind == "mlp" else (GPT(), texts())
        return train(model, batches, where, steps=6, optimizer="AdamW", clip=1.0)

    with scripts(True) as follower:
        losses = run(webgpu)
        assert follower().counts["followed"] == 0
    torch.testing.assert_close(torch.tensor(losses), torch.tensor(run("cpu")), rtol=0, atol=1e-4)


class _Ours:
    """A model of webtorch's that is trained step by step."""

    def __init__(self) -> None:
        webtorch.manual_seed(0)
        self.model = webtorch.nn.Linear(4, 3)
        self.optimizer = webtorch.optim.Adam(self.model.parameters(), lr=0.05)
        self.x = webtorch.randn(8, 4)

    def step(self) -> None:
        self.optimizer.zero_grad()
        self.model(self.x).square().mean().backward()
        self.optimizer.step()


def test_webtorchs_steps_follow_between_pytorchs(webgpu: str) -> None:
    """They are what they are without scripts, also where an operator of PyTorch's comes in the middle of one."""

    def run(on: bool) -> tuple[list[Any], torch.Tensor, int]:
        torch.manual_seed(0)
        ours = _Ours()
        theirs = nn.Linear(4, 3).to(webgpu)
        optimizer = torch.optim.SGD(theirs.parameters(), lr=0.1, momentum=0.9)
        x = torch.ones(2, 4, device=webgpu)
        with scripts(on) as follower:
            for turn in range(12):
                ours.step()
                if turn % 4 == 3:
                    ours.optimizer.zero_grad()
                    loss = ours.model(ours.x).square().mean()
                    optimizer.zero_grad()
                    theirs(x).square().sum().backward()
                    optimizer.step()
                    loss.backward()
            followed = follower().counts["followed"]
        found = [p.tolist() for p in ours.model.parameters()]
        return found, theirs.weight.detach().cpu(), followed

    found, weight, followed = run(True)
    expected, plain, _ = run(False)
    assert found == expected
    assert torch.equal(weight, plain)
    assert followed > 0
