"""Capability rows H: automatic differentiation, against PyTorch in float64."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import webtorch
from tests.capabilities.same import close, ours, same, values

# What is tested here is nearly the same on all devices.
pytestmark = pytest.mark.one_in(3, device="webgpu")


@pytest.mark.covers("H1")
def test_reverse_mode_through_views_products_and_reductions(device: str) -> None:
    same(
        lambda t, x, w: ((x.t()[1:] @ w).view(2, -1).softmax(1)[:, ::2] ** 2).sum(0),
        values(4, 5),
        values(4, 6, seed=1),
        device=device,
    )


@pytest.mark.covers("H2")
def test_diamonds_take_linear_time_and_chains_no_recursion() -> None:
    x = webtorch.ones(1, requires_grad=True)
    y = x
    reached: list[None] = []
    for _ in range(200):
        y = y * 0.5 + y * 0.5  # 2**200 paths
        y.register_hook(lambda g: reached.append(None))
    y.backward()
    assert x.grad is not None and x.grad.item() == 1.0
    assert len(reached) == 200
    z = webtorch.zeros(1, requires_grad=True)
    y = z
    for _ in range(10_000):
        y = y + 1
    y.backward()
    assert z.grad is not None and z.grad.item() == 1.0


@pytest.mark.covers("H3")
def test_requires_grad_and_detach(device: str) -> None:
    same(lambda t, x: x.detach() * x + (x * 2).detach(), values(3), device=device)
    x = webtorch.ones(2, device=device)
    assert not (x * 2).requires_grad and x.requires_grad_().requires_grad
    assert (x * 2).requires_grad and not x.detach().requires_grad and not (x * 2).is_leaf


@pytest.mark.covers("H4")
def test_no_grad(device: str) -> None:
    x = webtorch.ones(2, device=device, requires_grad=True)
    with webtorch.no_grad():
        assert not (x * 2).requires_grad
        with webtorch.enable_grad():
            assert (x * 2).requires_grad

    @webtorch.no_grad()
    def double(x: Any) -> Any:
        return x * 2

    assert not double(x).requires_grad and (x * 2).requires_grad
    with webtorch.inference_mode():
        assert (x * 2).is_inference()


@pytest.mark.covers("H5", "H8")
def test_a_gradient_for_a_tensor_and_accumulation(device: str) -> None:
    x = webtorch.ones(3, device=device, requires_grad=True)
    for _ in range(2):
        (x * 2).backward(webtorch.tensor([1.0, 10.0, 100.0], device=device))
    assert x.grad is not None and x.grad.tolist() == [4, 40, 400]
    with pytest.raises(RuntimeError, match="scalar"):
        (x * 2).backward()


class _Cube(webtorch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Any, scale: Any) -> Any:
        ctx.save_for_backward(x, scale)
        return x**3 * scale

    @staticmethod
    def backward(ctx: Any, g: Any) -> Any:
        x, scale = ctx.saved_tensors
        assert ctx.needs_input_grad == (True, False)
        return g * 3 * x**2 * scale, None


@pytest.mark.covers("H6", "H7")
def test_a_custom_function_with_saved_tensors(device: str) -> None:
    x = values(4)
    mine, scale = ours(x, device).requires_grad_(), webtorch.full((4,), 2.0, device=device)
    (grad,) = webtorch.autograd.grad(_Cube.apply(mine, scale).sum(), mine, create_graph=True)
    close(grad, 6 * x**2)
    (second,) = webtorch.autograd.grad(grad.sum(), mine)
    close(second, 12 * x)


@pytest.mark.covers("H10")
def test_gradients_of_products(device: str) -> None:
    same(
        lambda t, a, b, v: ((a @ b) ** 2, a @ v, t.einsum("bij,jk->bki", a, b[0])),
        values(3, 4, 5),
        values(3, 5, 2, seed=1),
        values(5, seed=2),
        device=device,
        atol=1e-4,
    )


@pytest.mark.covers("H11")
def test_gradients_of_softmax_norms_and_attention(device: str) -> None:
    def block(t: Any, q: Any, k: Any, w: Any) -> Any:
        F = t.nn.functional
        h = F.scaled_dot_product_attention(q, k, k * 2, is_causal=True)
        h = F.layer_norm(h, (4,), w) + F.rms_norm(h, (4,), w)
        return F.group_norm(h, 3), h.softmax(-1), h.norm(dim=-1)

    same(
        block,
        values(2, 3, 5, 4),
        values(2, 3, 5, 4, seed=1),
        values(4, seed=2),
        device=device,
        rtol=1e-4,
        atol=1e-4,
    )


@pytest.mark.covers("H12")
def test_gradients_choose_sides_and_share_ties(device: str) -> None:
    x = torch.tensor([-2.0, -1.0, 0.0, 1.0, 1.0, 3.0], dtype=torch.float64)
    same(
        lambda t, x, y: (
            t.where(x > y, x * 2, y),
            x.clamp(-1, 1),
            t.maximum(x, y),
            t.minimum(x, y),
            x.amax(),
            x.max(),
            x.abs(),
        ),
        x,
        x.flip(0),
        device=device,
    )


@pytest.mark.covers("H13")
def test_frozen_weights_cost_only_forward() -> None:
    first, last = webtorch.nn.Linear(8, 8), webtorch.nn.Linear(8, 4)
    first.requires_grad_(False)

    def step(x: Any) -> Any:
        last.zero_grad()
        loss = last(first(x).relu()).square().sum()
        loss.backward()
        return loss

    compiled = webtorch.compile(step)
    for _ in range(2):
        compiled(webtorch.ones(3, 8))
    assert first.weight.grad is None and last.weight.grad is not None
    products = [r for r in compiled.program().routines if r.name.startswith("matmul")]
    # Two forward, one for the gradient of the last weight: none towards the frozen layer.
    assert len(products) == 3


@pytest.mark.covers("H14")
def test_zero_grad(device: str) -> None:
    layer = webtorch.nn.Linear(2, 2).to(device)
    layer(webtorch.ones(1, 2, device=device)).sum().backward()
    assert layer.weight.grad is not None
    layer.zero_grad(set_to_none=False)
    assert layer.weight.grad.abs().sum().item() == 0
    layer.zero_grad()
    assert layer.weight.grad is None


@pytest.mark.covers("Q2")
def test_gradients_agree_with_finite_differences() -> None:
    x = values(2, 3, seed=5, low=0.3)

    def formula(v: Any) -> Any:
        return (v.exp().cumsum(1) * v.softmax(0)).logsumexp(1).prod()

    mine = webtorch.tensor(x.tolist(), dtype=webtorch.float64, requires_grad=True)
    formula(mine).backward()
    assert mine.grad is not None
    for i in range(6):
        ends = []
        for sign in (1, -1):
            moved = x.flatten().clone()
            moved[i] += sign * 1e-5
            ends.append(
                formula(webtorch.tensor(moved.view(2, 3).tolist(), dtype=webtorch.float64)).item()
            )
        assert mine.grad.flatten()[i].item() == pytest.approx((ends[0] - ends[1]) / 2e-5, rel=1e-6)
