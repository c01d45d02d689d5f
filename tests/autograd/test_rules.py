"""Gradient rules of operations that are one function: what they save, and derivatives of every order."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import webtorch
from tests.autograd.both import error, same, tensor

pytestmark = pytest.mark.covers("H1")
A = [[0.3, -1.2, 0.8], [1.1, 0.4, -0.6], [0.2, -0.9, 1.5], [0.7, 0.1, -1.4]]
W = [[0.5, -0.4, 1.3], [-0.2, 0.9, 0.1]]
CALLS: dict[str, Callable[[Any, Any, Any, Any], Any]] = {
    "linear": lambda t, x, w, b: t.nn.functional.linear(x, w, b),
    "linear of one output": lambda t, x, w, b: t.nn.functional.linear(x, w[0]) * b[0],
    "linear without bias": lambda t, x, w, b: t.nn.functional.linear(x.reshape(2, 2, 3), w) * b,
    "product": lambda t, x, w, b: (x @ w.t() + b) @ w,
    "layer norm": lambda t, x, w, b: t.nn.functional.layer_norm(x, (3,), w[0], w[1]) * b[0],
    "layer norm of two": lambda t, x, w, b: t.nn.functional.layer_norm(x, (4, 3)) * b[1],
    "cross entropy": lambda t, x, w, b: t.nn.functional.cross_entropy(
        x @ w.t() + b, t.tensor([0, 1, -100, 1], device=x.device), label_smoothing=0.1
    ),
    "sum": lambda t, x, w, b: (x * x).sum(0) * (w * w).sum() + (b * b).sum(),
    "convolution": lambda t, x, w, b: t.nn.functional.conv1d(
        x.reshape(2, 2, 3), w.reshape(2, 1, 3), b, padding=1, groups=2
    ),
    "transposed convolution": lambda t, x, w, b: t.nn.functional.conv_transpose2d(
        x.reshape(1, 2, 2, 3), w.reshape(2, 1, 1, 3), b[:1], stride=2
    ),
    "max pooling": lambda t, x, w, b: t.nn.functional.max_pool2d(x.reshape(1, 1, 4, 3), 2, 1) * b,
    "mean pooling": lambda t, x, w, b: t.nn.functional.avg_pool1d(x, 2) * b,
    "adaptive pooling": lambda t, x, w, b: (
        t.nn.functional.adaptive_max_pool1d(x, 2) * t.nn.functional.adaptive_avg_pool1d(x, 2) * b
    ),
    "interpolate": lambda t, x, w, b: t.nn.functional.interpolate(
        x.reshape(1, 1, 4, 3), scale_factor=2, mode="bilinear"
    ),
    "group norm": lambda t, x, w, b: t.nn.functional.group_norm(x.reshape(2, 2, 3), 1, b, b),
    "batch norm": lambda t, x, w, b: t.nn.functional.batch_norm(
        x, None, None, w[0], w[1], training=True
    ),
    "batch norm, frozen": lambda t, x, w, b: t.nn.functional.batch_norm(
        x, w[0].detach(), w[1].detach() ** 2, w[0], w[1]
    ),
    "addmm": lambda t, x, w, b: t.addmm(b, x, w.t(), beta=0.5, alpha=2),
    "huber loss": lambda t, x, w, b: t.nn.functional.huber_loss(x[:2], w, reduction="sum"),
    "triplet loss": lambda t, x, w, b: t.nn.functional.triplet_margin_loss(x[:2], w, x[2:]),
    "mean": lambda t, x, w, b: (x * x).mean((0, 1)) * w.mean(1, keepdim=True).exp() + b.mean(),
}


def _loss(t: Any, name: str, *given: Any) -> Any:
    return (CALLS[name](t, *given) * 0.7).sin().sum()


@pytest.mark.parametrize("name", CALLS)
def test_first_and_second_derivatives(name: str) -> None:
    def program(t: Any) -> Any:
        given = [tensor(t, v) for v in (A, W, [0.3, -0.7])]
        first = t.autograd.grad(_loss(t, name, *given), given, create_graph=True, allow_unused=True)
        total = sum((g * g).sum() for g in first if g is not None)
        second = t.autograd.grad(total, given, allow_unused=True)
        return [g.detach() for g in first if g is not None], second

    same(program)


@pytest.mark.parametrize("name", CALLS)
def test_calls_that_repeat_give_what_the_first_gave(name: str) -> None:
    """From the third call on the rule is remembered; other operands need gradients, and it is another rule."""
    for needs in ((True, True, True), (True, False, False), (False, True, False)):
        found = []
        for _ in range(4):
            values = [tensor(webtorch, v) for v in (A, W, [0.3, -0.7])]
            given = [v.detach().requires_grad_(n) for v, n in zip(values, needs, strict=True)]
            out = _loss(webtorch, name, *[g * 1.0 for g in given])
            if not out.requires_grad:
                continue
            out.backward()
            found.append([None if g.grad is None else g.grad.tolist() for g in given])
        for one in found[1:]:
            for a, b in zip(one, found[0], strict=True):
                assert a is b is None or webtorch.allclose(webtorch.tensor(a), webtorch.tensor(b))


def test_what_no_rule_reads_may_be_written() -> None:
    """A frozen weight keeps no activation, and the bias of a product or a norm is never read."""

    def failed(run: Callable[[], Any]) -> bool:
        return "modified by an inplace operation" in (error(run) or "")

    def program(t: Any) -> Any:
        f = t.nn.functional
        x, w, b = tensor(t, A), tensor(t, W, False), tensor(t, [0.3, -0.7])
        found = []
        for call in (
            lambda h: f.linear(h, w, b),
            lambda h: h @ w.t(),
            lambda h: f.layer_norm(h, (3,), w[0].clone(), tensor(t, W, False)[1]),
            lambda h: h.sum(0),
            lambda h: f.linear(h, w, b).mean(),
            lambda h: f.conv1d(h.reshape(1, 4, 3), w.reshape(2, 1, 3).expand(2, 4, 3), b),
            lambda h: f.group_norm(h.reshape(6, 2), 1, tensor(t, [1.0, 2.0], False), b),
            lambda h: f.interpolate(h[None], 5),
            lambda h: f.l1_loss(h, x.detach()),
            lambda h: t.addmm(b, h, w.t()),
        ):
            h = x * 2
            out = call(h)
            with t.no_grad():
                b.add_(1.0)
                found.append(error(lambda h=h: h.mul_(3.0)))
            found.append(failed(lambda out=out: out.sum().backward()))
        return found, b.grad

    same(program)
