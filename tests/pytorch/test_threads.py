"""Threads on the device "webgpu" of PyTorch: what tests/engine/test_threads.py asks, with PyTorch's own
tensors, autograd and compiled graphs.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests import crowd


def test_a_pool_reads_what_was_recorded(webgpu: str) -> None:
    crowd.reads_in_a_pool(torch, webgpu, 200)


@pytest.mark.parametrize("turns", [3, pytest.param(12, marks=pytest.mark.long)])
def test_eight_threads_compute_what_one_does(webgpu: str, turns: int) -> None:
    crowd.a_crowd(torch, webgpu, turns, lambda function: function)


def test_compiled_graphs_run_in_threads(webgpu: str) -> None:
    weight = torch.full((4, 4), 0.5, device=webgpu, requires_grad=True)

    def loss(x: torch.Tensor) -> torch.Tensor:
        return (x @ weight).square().sum()

    compiled: Any = torch.compile(loss, backend="webgpu")

    def scene(seed: int) -> crowd.Scene:
        def train(turns: int) -> None:
            for i in range(turns):
                x = torch.full((4, 4), float(seed + i), device=webgpu)
                out = compiled(x)
                (grad,) = torch.autograd.grad(out, weight)
                # 16 sums of four products with a half, and their gradients.
                assert float(out.detach()) == 16.0 * (2 * (seed + i)) ** 2
                assert grad.tolist() == [[16.0 * (seed + i) ** 2] * 4] * 4

        return train

    scene(1)(1)
    crowd.together([scene(1), scene(5), scene(9)], 12)
