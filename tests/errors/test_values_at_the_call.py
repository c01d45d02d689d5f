"""Values that are wrong and lie in this process's memory raise at the call, with PyTorch's words."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

import webtorch

CALLS: dict[str, Any] = {
    "gather": lambda t, x, far, _: x.gather(0, far[None, 1:]),
    "scatter": lambda t, x, far, _: x.scatter(0, far[None], x[:, :2]),
    "scatter_value": lambda t, x, far, _: x.scatter(0, far[None], 1.0),
    "scatter_add": lambda t, x, far, _: x.scatter_add(0, far[None], x[:, :2]),
    "scatter_reduce": lambda t, x, far, _: x.scatter_reduce(0, far[None], x[:, :2], "sum"),
    "scatter_": lambda t, x, far, _: x.clone().scatter_(0, far[None], x[:, :2]),
    "index_select": lambda t, x, far, _: x.index_select(1, far),
    "index_add": lambda t, x, far, _: x.index_add(1, far, x[:, :2]),
    "index_copy": lambda t, x, far, _: x.index_copy(1, far, x[:, :2]),
    "index_fill": lambda t, x, far, _: x.index_fill(1, far, 1.0),
    "index_reduce": lambda t, x, far, _: x.index_reduce(1, far, x[:, :2], "prod"),
    "take": lambda t, x, far, _: x.take(far),
    "put": lambda t, x, far, _: x.put(far, x[0, :2]),
    "embedding": lambda t, x, far, _: t.nn.functional.embedding(far, x),
    "embedding_below": lambda t, x, _, below: t.nn.functional.embedding(below, x),
    "gather_below": lambda t, x, _, below: x.gather(0, below[None]),
    "one_hot": lambda t, x, far, _: t.nn.functional.one_hot(far, 3),
    "one_hot_below": lambda t, x, _, below: t.nn.functional.one_hot(below, 3),
    "cross_entropy": lambda t, x, far, _: t.nn.functional.cross_entropy(x, far),
    "nll_loss_below": lambda t, x, _, below: t.nn.functional.nll_loss(x, below),
    "bag_begins": lambda t, x, far, _: t.nn.functional.embedding_bag(far * 0, x, t.tensor([1])),
    "bag_ends": lambda t, x, far, _: t.nn.functional.embedding_bag(far * 0, x, t.tensor([0, 5])),
    "masked_scatter": lambda t, x, *_: x.masked_scatter(t.tensor([True, False, True]), x[0]),
    "deviation": lambda t, x, *_: t.normal(x, t.tensor(-1.0)),
    "deviations": lambda t, x, *_: t.normal(0.0, t.tensor([1.0, -1.0])),
    "order": lambda t, x, far, _: t.searchsorted(x[0, :2], x, sorter=far),
}


def _error(lib: Any, call: Any) -> Exception:
    x = lib.tensor([[0.0, 1.0, 2.0], [3.0, 4.0, 5.0]])
    with pytest.raises(Exception, match=r".") as raised:
        call(lib, x, lib.tensor([0, 9]), lib.tensor([0, -9]))
    return raised.value


@pytest.mark.parametrize("name", CALLS)
def test_a_wrong_value_raises_at_the_call(name: str) -> None:
    expected, found = _error(torch, CALLS[name]), _error(webtorch, CALLS[name])
    assert isinstance(found, type(expected))
    first = str(expected).split("\n")[0]
    assert first in str(found) or str(found) in first


@pytest.mark.parametrize("p", [-1.0, 2.0, math.nan])
def test_what_is_no_probability_is_not_drawn_by(p: float) -> None:
    for lib in (torch, webtorch):
        chances: Any = lib.tensor([0.5, p])
        for call in (lib.bernoulli, lib.zeros(2).bernoulli_):
            with pytest.raises(RuntimeError, match="Expected p_in >= 0 && p_in <= 1 to be true"):
                call(chances)


@pytest.mark.parametrize(
    "call",
    [
        lambda x, i: x.index_select(1, i),
        lambda x, i: x[:, i],
        lambda x, i: x[i],
        lambda x, i: x.gather(1, i[None]),
        lambda x, i: webtorch.nn.functional.embedding(i, x),
    ],
)
def test_a_remembered_call_raises_at_the_call(call: Any) -> None:
    x = webtorch.arange(6.0).reshape(2, 3)
    near, far = webtorch.tensor([0, 1]), webtorch.tensor([0, 9])
    for _ in range(5):
        call(x, near).tolist()
    with pytest.raises(IndexError, match="index"):
        call(x, far)


def test_classes_that_are_ignored_are_no_error() -> None:
    x = webtorch.zeros(2, 3)
    target = webtorch.tensor([-100, 1])
    assert webtorch.nn.functional.cross_entropy(x, target).item() == pytest.approx(1.0986123)
    other = webtorch.tensor([255, 1])
    loss = webtorch.nn.functional.cross_entropy(x, other, ignore_index=255)
    assert loss.item() == pytest.approx(1.0986123)


def test_what_is_not_computed_yet_raises_at_the_next_read() -> None:
    x = webtorch.arange(6.0).reshape(2, 3)
    found = x.index_select(1, webtorch.tensor([0, 4]) + 1)
    with pytest.raises(IndexError, match="out of bounds"):
        found.tolist()


@pytest.mark.parametrize("pending", [False, True])
@pytest.mark.parametrize(
    ("x", "y", "name"), [(1.5, 1, "input"), (math.nan, 1, "input"), (0.5, -1, "target")]
)
def test_what_is_no_probability_has_no_cross_entropy(
    x: float, y: float, name: str, pending: bool, device: str
) -> None:
    rule = f"all elements of {name} should be between 0 and 1"
    with pytest.raises(RuntimeError, match=rule):
        torch.nn.functional.binary_cross_entropy(torch.tensor([x]), torch.tensor([float(y)]))
    a, b = (webtorch.tensor([float(v)], device=device) for v in (x, y))
    if pending:
        a, b = a * 1, b * 1
    with pytest.raises(RuntimeError, match=rule):
        webtorch.nn.functional.binary_cross_entropy(a, b).item()


def test_weights_that_were_written_are_checked_at_the_call() -> None:
    weights = webtorch.ones(3)
    weights[1] = -1.0
    with pytest.raises(RuntimeError, match="element < 0"):
        webtorch.multinomial(weights, 1)


def test_what_is_computed_of_bfloat16_is_a_probability() -> None:
    x = webtorch.tensor([0.25, 0.5], dtype=webtorch.bfloat16)
    assert x.float().tolist() == [0.25, 0.5]
    assert abs(webtorch.nn.functional.binary_cross_entropy(x, x).item() - 0.6278) < 4e-3
