"""Gradients of gradients of empty tensors are of the same graph as those of others."""

from __future__ import annotations

from collections.abc import Callable

import pytest

import webtorch

OPERATIONS: dict[str, Callable[[webtorch.Tensor], webtorch.Tensor]] = {
    "amax": lambda x: x.amax(1),
    "prod": lambda x: x.prod(1),
    "norm": lambda x: x.norm(2, 1),
    "logsumexp": lambda x: x.logsumexp(1),
    "expand": lambda x: x.expand(2, *x.shape),
    "rows": lambda x: webtorch.ones(2, 1, 1) * x,
    "unfold": lambda x: x.unfold(1, 2, 1),
    "split": lambda x: x.split(2, 0)[0],
    "cat": lambda x: webtorch.cat([x, x]),
    "sort": lambda x: x.sort(1)[0],
}


@pytest.mark.parametrize("name", OPERATIONS)
def test_second_gradients_of_nothing(name: str) -> None:
    x = webtorch.ones(0, 3, requires_grad=True)
    y = OPERATIONS[name](x)
    (g,) = webtorch.autograd.grad((y * y).sum(), x, create_graph=True)
    (g * g).sum().backward()
    assert x.grad is not None and x.grad.shape == (0, 3)


@pytest.mark.parametrize(("shape", "other"), [((4, 0), (4, 1)), ((0, 5), (5,)), ((4, 0), ())])
def test_a_gradient_of_what_was_expanded_to_nothing_is_copied(
    shape: tuple[int, ...], other: tuple[int, ...]
) -> None:
    c = webtorch.ones(other, requires_grad=True)
    y = (webtorch.zeros(shape) + c) * 1.5 + 0.25
    (g,) = webtorch.autograd.grad((y * y).sum(), c)
    kept = g.clone()
    assert kept.tolist() == webtorch.zeros(other).tolist() == g.tolist()
