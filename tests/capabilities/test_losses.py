"""Capability rows J: losses with gradients, against PyTorch in float64."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from tests.capabilities.same import rows, same, values

# What is tested here is nearly the same on all devices.
pytestmark = pytest.mark.one_in(3, device="webgpu")


def _labels(t: Any, x: Any) -> Any:
    return t.tensor([2, 0, 4, 1, 2, 3], device=x.device)


LOSSES: dict[str, Callable[..., Any]] = {
    "J1 J2": lambda t, x, y: t.nn.functional.cross_entropy(x, _labels(t, x)),
    "J3": lambda t, x, y: t.nn.functional.cross_entropy(x, y.detach().softmax(1)),
    "J4": lambda t, x, y: t.nn.functional.nll_loss(x.log_softmax(1), _labels(t, x)),
    "J5": lambda t, x, y: t.nn.functional.mse_loss(x, y),
    "J6": lambda t, x, y: tuple(
        loss(x, target, reduction=r)
        for r in ("mean", "sum", "none")
        for loss, target in [
            (t.nn.functional.cross_entropy, _labels(t, x)),
            (t.nn.functional.mse_loss, y),
        ]
    ),
    "J7": lambda t, x, y: (
        t.nn.functional.l1_loss(x, y),
        t.nn.functional.huber_loss(x, y, delta=0.5),
        t.nn.functional.smooth_l1_loss(x, y),
        t.nn.functional.binary_cross_entropy(x.sigmoid(), y.detach().sigmoid()),
        t.nn.functional.binary_cross_entropy_with_logits(x, y.detach().sigmoid()),
        t.nn.functional.kl_div(x.log_softmax(1), y.detach().softmax(1), reduction="batchmean"),
    ),
    "J8": lambda t, x, y: (
        t.nn.functional.cross_entropy(x, _labels(t, x), label_smoothing=0.1),
        t.nn.functional.cross_entropy(x, _labels(t, x), ignore_index=2),
        t.nn.functional.cross_entropy(x, _labels(t, x), weight=y[0].detach().exp()),
    ),
}


@pytest.mark.parametrize("function", rows(LOSSES))
def test_loss(function: Callable[..., Any], device: str) -> None:
    same(function, values(6, 5, seed=1), values(6, 5, seed=2), device=device)


@pytest.mark.covers("J1")
def test_large_logits_lose_nothing(device: str) -> None:
    x = torch.tensor([[1e4, 0.0, -1e4], [50.0, -50.0, 0.0]], dtype=torch.float64)
    same(
        lambda t, x: t.nn.functional.cross_entropy(
            x, t.tensor([2, 0], device=x.device), reduction="none"
        ),
        x,
        device=device,
        rtol=1e-6,
        atol=1e-9,
    )
