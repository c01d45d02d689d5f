"""A fixed draw of the random calls, and the calls that such draws found wrong."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import webtorch
from tests.conformance import differential

# `python -m tests.conformance.differential` makes as many as it has time for.
SEEDS = range(1000, 1050)

x, line, mask = (
    torch.arange(6.0).reshape(2, 3),
    torch.tensor([2, 0, 1, 1]),
    torch.tensor([True, False]),
)
whole = torch.tensor([5, -3, 7])
near = torch.tensor([-0.99 + 0.01j, 0.5 - 2j, -1 + 1e-3j])
CALLS: tuple[tuple[str, tuple[Any, ...], dict[str, Any]], ...] = (
    ("scatter", (torch.zeros(4), 0, line, 7), {}),
    ("scatter", (torch.zeros(4), 0, line, torch.tensor(7.0)), {}),
    ("scatter", (torch.zeros(4, 2), 0, torch.tensor([[0, 1]]), torch.tensor(2.0)), {}),
    ("scatter_reduce", (torch.ones(4), 0, line, torch.arange(4.0), "mean"), {"include_self": False}),
    ("scatter_reduce", (torch.ones(4), 0, line, torch.arange(4.0), "amax"), {"include_self": False}),
    ("index_reduce", (torch.ones(4), 0, line, torch.arange(4.0), "prod"), {"include_self": False}),
    ("index_fill", (torch.zeros(4), 0, line, 7), {}),
    ("movedim", (torch.tensor(3), 0, -1), {}),
    ("unflatten", (torch.tensor(3.0), -1, (1, -1)), {}),
    ("clamp_min", (mask, mask.flip(0)), {}),
    ("clamp_max", (mask, mask.flip(0)), {}),
    ("square", (mask,), {}),
    ("addr", (mask, mask, mask), {"beta": 3, "alpha": 2}),
    ("meshgrid", (x[0], whole), {"indexing": "ij"}),
    ("sub", (whole, False), {}),
    ("Tensor.__sub__", (whole, True), {}),
    ("Tensor.__rsub__", (mask, 1.5), {}),
    ("Tensor.__sub__", (mask, x[0, :2]), {}),
    ("Tensor.__floordiv__", (whole, 0), {}),
    ("Tensor.__mod__", (whole, 0), {}),
    ("fmod", (whole, 0), {}),
    ("div", (whole, 0), {"rounding_mode": "floor"}),
    ("div", (whole, 0), {}),
    ("masked_fill", (whole, whole > 0, float("nan")), {}),
    ("full", ((2,), -1.5), {"dtype": torch.uint8}),
    ("full", ((2,), -1), {"dtype": torch.uint8}),
    ("lerp", (whole, whole, 0.5), {}),
    ("isin", (whole, mask), {}),
    ("Tensor.copy_", (x.clone(), 3), {}),
    ("atanh", (near,), {}),
    ("dist", (x, 1.0), {}),
    ("topk", (torch.tensor(3.0), 0), {}),
    ("special.zeta", (torch.ones(3), torch.tensor([float("nan"), 2.0, -1.0])), {}),
    ("floor_divide", (whole[:0], 0), {}),
    ("Tensor.remainder_", (whole[:0].clone(), 0), {}),
    ("nn.functional.local_response_norm", (torch.arange(24).reshape(2, 4, 3), 2), {}),
)  # fmt: skip


@pytest.mark.covers("Q1")
def test_random_calls_give_pytorchs_results() -> None:
    failures = []
    for seed in SEEDS:
        text, found = differential.check(seed)
        if found:
            failures.append(f"{seed}: {text}\n    {found}")
    assert not failures, "\n".join(failures)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "number", range(len(CALLS)), ids=[f"{i}-{c[0]}" for i, c in enumerate(CALLS)]
)
def test_calls_that_once_differed(number: int) -> None:
    name, args, kwargs = CALLS[number]
    call = differential.Call(name, *args, **kwargs)
    found = differential.disagreement(call, "plain", None, "cpu")
    assert found is None, f"{call}: {found}"


@pytest.mark.parametrize("ignored", [-100, 1])
def test_ignored_rows_count_nothing_whatever_they_hold(ignored: int) -> None:
    found = []
    for lib in (webtorch, torch):
        lowest = float("-inf")
        x = lib.tensor([[lowest, lowest], [-0.5, -0.6]], requires_grad=True)
        target = lib.tensor([ignored, 0])
        for scaled in (False, True):
            for reduction in ("none", "sum", "mean"):
                loss = lib.nn.functional.nll_loss(
                    x * 1 if scaled else x, target, ignore_index=ignored, reduction=reduction
                )
                loss.sum().backward()
                found.append((lib, loss.tolist(), x.grad.tolist()))
    ours, theirs = ([f[1:] for f in found if f[0] is lib] for lib in (webtorch, torch))
    assert ours == theirs


def test_the_angle_of_nan_has_no_gradient() -> None:
    for lib in (webtorch, torch):
        x = lib.tensor([float("nan"), -1.0, 0.0], requires_grad=True)
        lib.angle(x).sum().backward()
        assert x.grad.tolist() == [0.0, 0.0, 0.0]


def test_full_takes_the_type_of_out() -> None:
    call = differential.Call("full", (2,), True)
    assert differential.disagreement(call, "out", torch.float32, "cpu") is None
    call = differential.Call("any", x)
    assert differential.disagreement(call, "out", torch.float32, "cpu") is None
