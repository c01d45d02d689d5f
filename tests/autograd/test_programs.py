"""Larger programs as PyTorch's users write them, in PyTorch and on every device: derivatives of derivatives, functions
of their own, hooks, recomputation, writes to views.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import webtorch

# What is tested here is nearly the same on all devices.
pytestmark = pytest.mark.one_in(3, device="webgpu")

Make = Callable[..., Any]


def maker(t: Any, device: str) -> Make:
    """Return a maker of tensors of some shape, with numbers between -1 and 1."""

    def make(*shape: int, scale: float = 1.0) -> Any:
        count = torch.Size(shape).numel()
        values = (t.arange(count, dtype=t.float32, device="cpu") * 37 % 29) / 15 - 0.95
        return (values * scale).reshape(shape).to(device)

    return make


def learning_to_learn(t: Any, make: Make) -> Any:
    weights = [w.requires_grad_() for w in (make(1, 8), make(8), make(8, 1))]

    def f(x: Any, w: Any) -> Any:
        return t.tanh(x @ w[0] + w[1]) @ w[2]

    total = 0
    for task in range(3):
        x, y = make(6, 1) + task * 0.1, t.sin(make(6, 1) * 3 + task)
        fast = weights
        for _ in range(2):
            loss = t.nn.functional.mse_loss(f(x, fast), y)
            slopes = t.autograd.grad(loss, fast, create_graph=True)
            fast = [w - 0.1 * g for w, g in zip(fast, slopes, strict=True)]
        total = total + t.nn.functional.mse_loss(f(x * 1.1, fast), y)
    total.backward()
    return [total, *(w.grad for w in weights)]


def a_differential_equation(t: Any, make: Make) -> Any:
    x = make(9, 1).requires_grad_()
    u = t.tanh(x @ make(1, 8)) @ make(8, 1)
    (ux,) = t.autograd.grad(u, x, t.ones_like(u), create_graph=True)
    (uxx,) = t.autograd.grad(ux.sum(), x, create_graph=True)
    (uxxx,) = t.autograd.grad(uxx, x, t.ones_like(uxx))
    return [ux, uxx, uxxx]


def a_fixed_point(t: Any, make: Make) -> Any:
    class Fixed(t.autograd.Function):
        @staticmethod
        def forward(ctx: Any, a: Any, b: Any) -> Any:
            z = t.zeros_like(b)
            for _ in range(40):
                z = t.tanh(a @ z + b)
            ctx.save_for_backward(a, z)
            return z

        @staticmethod
        @t.autograd.function.once_differentiable
        def backward(ctx: Any, g: Any) -> Any:
            a, z = ctx.saved_tensors
            slope = 1 - z * z
            v = g
            for _ in range(40):
                v = a.t() @ (slope * v) + g
            return t.outer(slope * v, z), slope * v

    a, b = make(4, 4, scale=0.2).requires_grad_(), make(4).requires_grad_()
    z = Fixed.apply(a, b)
    (z**2).sum().backward()
    return [z, a.grad, b.grad]


def attention_by_hand(t: Any, make: Make) -> Any:
    q, k, v = (make(2, 2, 5, 4).requires_grad_() for _ in range(3))
    angle = t.arange(5, device=q.device)[:, None] * t.tensor([1.0, 0.1], device=q.device)
    cos, sin = angle.cos(), angle.sin()

    def turned(x: Any) -> Any:
        even, odd = x[..., ::2], x[..., 1::2]
        return t.stack([even * cos - odd * sin, even * sin + odd * cos], -1).flatten(-2)

    scores = t.einsum("bhqd,bhkd->bhqk", turned(q), turned(k)) / 2
    later = t.ones(5, 5, dtype=t.bool, device=q.device).triu(1)
    weights = scores.masked_fill(later, float("-inf")).softmax(-1)
    out = t.einsum("bhqk,bhkd->bqhd", weights, v).reshape(2, 5, 8)
    (out * make(2, 5, 8)).sum().backward()
    return [out, q.grad, k.grad, v.grad]


def hooks_and_recomputation(t: Any, make: Make) -> Any:
    nn = t.nn

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.inner, self.last = nn.Linear(6, 8), nn.Linear(8, 8), nn.Linear(8, 3)

        def forward(self, x: Any) -> Any:
            h = t.tanh(self.first(x))
            part = t.utils.checkpoint.checkpoint(
                lambda h: nn.functional.gelu(self.inner(h)), h, use_reentrant=False
            )
            return self.last(h + part)

    net = Net().to(make(1).device)
    with t.no_grad():
        for p in net.parameters():
            p.copy_(make(*p.shape, scale=0.3))
    seen: list[Any] = []
    net.first.register_forward_hook(lambda m, i, o: seen.append(tuple(o.shape)))
    net.inner.register_full_backward_hook(lambda m, i, o: seen.append(tuple(i[0].shape)))
    net.last.register_forward_pre_hook(lambda m, i: (i[0] * 1.5,))
    net.first.weight.register_hook(lambda g: g * 2)
    x = make(4, 6).requires_grad_()
    y = net(x)
    y.retain_grad()
    ((y**2).mean() + y.logsumexp(-1).sum()).backward()
    grads = [p.grad.clone() for p in net.parameters()]
    net.zero_grad()
    x2 = x.detach().clone().requires_grad_()
    (g,) = t.autograd.grad(net(x2).sum(), x2, create_graph=True)
    ((g.norm(2, dim=1) - 1) ** 2).mean().backward()
    return [y.grad, x.grad, *grads, *(p.grad for p in net.parameters() if p.grad is not None), seen]


def writes_to_views(t: Any, make: Make) -> Any:
    w = make(3, 3).requires_grad_()
    y = w * 1
    y[0] = 0
    y[1, 1] = y[0, 2] * 3 + w[2, 2]
    y[:, 2].mul_(2)
    y.diagonal().add_(1)
    y[:2].clamp_(max=0.9)
    (y * make(3, 3)).sum().backward()
    x = make(4, 5).clone()
    x[[0, 2]] = x[[2, 0]]
    x.t()[4].add_(10)
    x.view(-1)[::3].zero_()
    x[x > 10] = 0.5
    x[t.tensor([0, 1], device=x.device), t.tensor([1, 2], device=x.device)] += 100
    return [y, w.grad, x, x[:, [True, False, True, False, True]], x[1:, t.tensor([[0], [3]])]]


def routing(t: Any, make: Make) -> Any:
    gate = make(6, 4).requires_grad_()
    weight, index = gate.softmax(-1).topk(2, -1)
    mix = t.zeros(6, 4, device=gate.device).scatter(1, index, weight / weight.sum(-1, True))
    (mix @ make(4, 3)).pow(2).sum().backward()
    x = make(3).requires_grad_()
    y = x
    for _ in range(200):
        y = y * 0.99 + x.sin() * 0.01
    y.sum().backward()
    return [mix, gate.grad, x.grad]


PROGRAMS = [
    learning_to_learn, a_differential_equation, a_fixed_point, attention_by_hand, hooks_and_recomputation,
    writes_to_views, routing,
]  # fmt: skip


@pytest.mark.one_in(2)
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p.__name__)
def test_a_program_computes_what_it_computes_in_pytorch(
    program: Callable[[Any, Make], Any], device: str
) -> None:
    expected = program(torch, maker(torch, "cpu"))
    found = program(webtorch, maker(webtorch, device))
    assert len(found) == len(expected)
    for mine, theirs in zip(found, expected, strict=True):
        if not isinstance(theirs, torch.Tensor):
            assert mine == theirs
            continue
        assert str(mine.device).startswith(device)
        torch.testing.assert_close(
            torch.tensor(mine.tolist(), dtype=theirs.dtype), theirs.detach(), rtol=1e-4, atol=1e-5
        )
