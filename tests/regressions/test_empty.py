"""Uninitialised memory may be read: its values are any, but nothing breaks."""

from __future__ import annotations

from typing import Any

import torch

import webtorch


def test_conversions_and_sums_of_uninitialised_memory(device: str) -> None:
    x = webtorch.empty(3, 4, device=device)
    assert (x * 0).isnan().logical_or(x * 0 == 0).all().item()
    assert webtorch.empty(4, device=device).int().tolist() is not None
    y = webtorch.empty(4, device=device)
    z = y.clone()
    y[1:] = 2.0
    assert y[1:].tolist() == [2, 2, 2]
    assert len(z.tolist()) == 4


def test_what_is_computed_by_numpy_takes_empty_views_with_gaps() -> None:
    x = webtorch.ones(5, 4)[:, 4:][::2]
    for call in (webtorch.argwhere, webtorch.nonzero, webtorch.unique, lambda t: t[t > 0]):
        assert call(x).numel() == 0


def test_a_border_around_nothing(device: str) -> None:
    def seen(lib: Any, where: str) -> list[Any]:
        x = lib.arange(8.0, device=where).view(2, 2, 2).requires_grad_()
        pad = lib.nn.functional.pad
        found = [
            pad(x[..., 2:, 2:], (0, 2, 0, 2)) + x,
            pad((x * 2)[..., 2:, :1], (0, 1, 0, 2), value=3.0),
            pad(lib.zeros(2, 0, 2, device=where), (1, 0, 1, 0)),
        ]
        (found[0] + found[1]).sum().backward()
        return [y.tolist() for y in (*found, x.grad)]

    assert seen(webtorch, device) == seen(torch, "cpu")
