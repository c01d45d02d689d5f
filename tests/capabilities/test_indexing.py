"""Capability rows G: views, indexing and structure, with gradients, against PyTorch in float64."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import webtorch
from tests.capabilities.same import rows, same, values

# What is tested here is nearly the same on all devices.
pytestmark = pytest.mark.one_in(3, device="webgpu")


def _assigned(t: Any, x: Any) -> Any:
    y = x * 1
    y[1, :, ::2] = 7.0
    y[:, -1] = y[:, 0] * 2
    y[y > 1.5] = -1
    return y


def _index(t: Any, x: Any, *rows_: Any) -> Any:
    return t.tensor(list(rows_), device=x.device)


CASES: dict[str, Callable[..., Any]] = {
    "G1": lambda t, x: (x.reshape(-1), x.reshape(2, -1, 5), x.transpose(0, 1).reshape(-1, 10)),
    "G2": lambda t, x: (x.view(12, 5) * 2, x.view(-1)),
    "G3": lambda t, x: (x.flatten(), x.flatten(1), x.permute(2, 0, 1).flatten(0, 1)),
    "G4": lambda t, x: (x.unsqueeze(1).unsqueeze(-1), x[:1].squeeze(0), x[:, :1, :1].squeeze()),
    "G5": lambda t, x: (x[:, :1].expand(-1, 6, -1), x.expand(2, 3, 4, 5)),
    "G6": lambda t, x: (x[0].t(), x.transpose(0, 2), x.swapaxes(1, -1), x.mT),
    "G7": lambda t, x: x.permute(2, 0, 1),
    "G8": lambda t, x: (x[1:, :2], x.narrow(1, 1, 2), x[..., 3:]),
    "G9": lambda t, x: (x[::2, 1::2, ::3], x[-2:, :-1], x.flip(1)),
    "G10": lambda t, x: (x[1], x[-1, 2], x.select(1, 3), x[:, 2, None]),
    "G11": lambda t, x: (
        x[_index(t, x, 2, 0, 2)],
        x[:, _index(t, x, 1, -1)],
        x[_index(t, x, 0, 1), _index(t, x, 3, 2)],
        x[x > 0],
        x[_index(t, x, [0], [2]), :, _index(t, x, 1, 4)],
    ),
    "G12": lambda t, x: (
        x.gather(2, _index(t, x, [[0, 4], [1, 1], [3, 2], [0, 0]]).expand(3, 4, 2)),
        t.take_along_dim(x, x.argsort(1), 1),
    ),
    "G13": lambda t, x: (
        t.zeros_like(x).scatter(1, _index(t, x, [[0, 3, 1, 1, 2]]).expand(3, 1, 5), x[:, :1]),
        t.zeros_like(x).scatter_add(1, _index(t, x, 0, 1, 1, 0)[None, :, None].expand(3, 4, 5), x),
    ),
    "G14": _assigned,
    "G15": lambda t, x: (t.cat([x, x[:, :1], x * 2], 1), t.concat([x] * 20)),
    "G16": lambda t, x: (t.stack([x, x + 1]), t.stack([x] * 12, dim=-1)),
    "G17": lambda t, x: (*x.split(2, 1), *x.split([1, 3, 1], -1), *x.chunk(3, 2)),
    "G18": lambda t, x: (x.repeat(2, 1, 3), x.repeat_interleave(2, dim=1)),
    "G19": lambda t, x: t.nn.functional.embedding(_index(t, x, [0, 3, 3], [1, 2, 0]), x[0]),
    "G20": lambda t, x: (
        x.index_select(1, _index(t, x, 3, 3, 0)),
        x.masked_select(x > 0.5),
        (x > 0.5).nonzero(),
    ),
    # Split into heads and merged again, without a copy in the first.
    "G21": lambda t, x: (
        x[..., :4].unflatten(-1, (2, 2)).transpose(1, 2),
        x[..., :4].unflatten(-1, (2, 2)).transpose(1, 2).transpose(1, 2).flatten(2),
    ),
}


@pytest.mark.parametrize("function", rows(CASES))
def test_case(function: Callable[..., Any], device: str) -> None:
    same(function, values(3, 4, 5, seed=3), device=device)


@pytest.mark.covers("G2", "G6", "G7", "G8", "G17", "M17")
def test_views_copy_nothing(device: str) -> None:
    x = webtorch.zeros(4, 6, device=device)
    views = [x.view(24), x.t(), x.permute(1, 0), x[1:, ::2], x.split(2)[1], x.unsqueeze(0)]
    x.fill_(3.0)
    assert all(v.min().item() == 3 for v in views)
    assert all(v._storage is x._storage for v in views)


@pytest.mark.covers("G22")
def test_resize(device: str) -> None:
    x = webtorch.arange(6.0, device=device)
    assert x.resize_(2, 2).tolist() == [[0, 1], [2, 3]]
    grown = x.resize_(3, 3)
    assert grown is x and x.shape == (3, 3) and x.flatten()[:4].tolist() == [0, 1, 2, 3]
    assert torch.tensor(x.tolist()).shape == (3, 3)
