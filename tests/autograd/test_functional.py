"""torch.autograd.functional, once_differentiable, gradcheck and gradgradcheck, beside PyTorch."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import pytest
import torch

import webtorch
from tests.autograd.both import same

F: dict[str, Callable[[Any], Callable[..., Any]]] = {
    "one to one": lambda t: lambda x: (x.exp() * x.sum()).sin(),
    "one to number": lambda t: lambda x: (x**3).sum() + x[0] * x[1],
    "one to two": lambda t: lambda x: (x.prod(), x.t() * 2 if x.dim() > 1 else x.flip(0)),
    "two to one": lambda t: lambda x, y: x @ y.t(),
    "two to number": lambda t: lambda x, y: (x * y).sin().sum() * x.sum(),
    "two to two": lambda t: lambda x, y: (x + y.exp(), (x * y).sum()),
    "unused": lambda t: lambda x, y: x * 2,
    "constant": lambda t: lambda x: t.ones(2, dtype=t.float64),
}


def points(t: Any, name: str) -> Any:
    x = t.tensor([[0.5, -1.0, 2.0], [1.0, 0.25, -0.5]], dtype=t.float64)
    y = t.tensor([[1.0, 2.0, -0.5], [0.1, 0.2, 0.3]], dtype=t.float64)
    if name.startswith("two") or name == "unused":
        return x, y
    return x[0] if name in ("one to number", "constant") else x


def ones(t: Any, x: Any) -> Any:
    return tuple(ones(t, v) for v in x) if isinstance(x, tuple) else t.full_like(x, 0.5)


@pytest.mark.parametrize("name", F)
def test_jacobian_and_products(name: str) -> None:
    def program(t: Any) -> Any:
        f, at, a = F[name](t), points(t, name), t.autograd.functional
        out = f(*at) if isinstance(at, tuple) else f(at)
        return (
            a.jacobian(f, at),
            a.jacobian(f, at, vectorize=True),
            a.vjp(f, at, ones(t, out)),
            a.jvp(f, at, ones(t, at)),
        )

    same(program)


@pytest.mark.parametrize("name", ["one to number", "two to number"])
def test_hessian_and_products(name: str) -> None:
    def program(t: Any) -> Any:
        f, at, a = F[name](t), points(t, name), t.autograd.functional
        return a.hessian(f, at), a.vhp(f, at, ones(t, at)), a.hvp(f, at, ones(t, at)), a.vjp(f, at)

    same(program)


def test_derivatives_of_derivatives() -> None:
    def program(t: Any) -> Any:
        x = points(t, "one to number").requires_grad_()
        a = t.autograd.functional
        j = a.jacobian(lambda v: v**3, x, create_graph=True)
        (g,) = t.autograd.grad(j.sum(), x)
        h = a.hessian(lambda v: (v**4).sum(), x, create_graph=True)
        (k,) = t.autograd.grad(h.sum(), x)
        _, p = a.jvp(lambda v: v**3, x, t.ones_like(x).detach(), create_graph=True)
        (m,) = t.autograd.grad(p.sum(), x)
        plain = a.jacobian(lambda v: v**2, x)
        return g, k, m, plain.requires_grad, j.requires_grad, x.grad

    same(program)


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (lambda t, a, x: a.jacobian(lambda v: v, [x]), TypeError),
        (lambda t, a, x: a.jacobian(lambda v: 1.0, x), TypeError),
        (lambda t, a, x: a.vjp(lambda v: v, x), RuntimeError),
        (lambda t, a, x: a.vjp(lambda v: v, x, t.ones(5)), RuntimeError),
        (lambda t, a, x: a.jvp(lambda v: v, x), RuntimeError),
        (lambda t, a, x: a.hessian(lambda v: v, x), RuntimeError),
        (lambda t, a, x: a.hvp(lambda v: (v.sum(), v.sum()), x, x), RuntimeError),
        (lambda t, a, x: a.jacobian(lambda v: x * 1, x, strict=True), RuntimeError),
        (lambda t, a, x: a.vjp(lambda v, w: v * 2, (x, x), x, strict=True), RuntimeError),
        (lambda t, a, x: a.jacobian(lambda v: v, x, strategy="forward-mode"), NotImplementedError),
        (lambda t, a, x: a.jacobian(lambda v: v, x, strategy="sideways"), AssertionError),
    ],
)
def test_errors_are_pytorchs(call: Any, error: type[Exception]) -> None:
    messages = []
    for t in (torch, webtorch):
        with pytest.raises(error) as caught:
            call(t, t.autograd.functional, t.ones(3))
        messages.append(str(caught.value).split()[:6])
    assert messages[0] == messages[1]


def _unused(t: Any) -> Any:
    return lambda v: v.long().double().requires_grad_().clone()


@pytest.mark.parametrize(
    "call",
    [
        lambda t, a, x: a.vjp(lambda v: v.detach(), x, x, strict=True),
        lambda t, a, x: a.vjp(_unused(t), x, x, strict=True),
        lambda t, a, x: a.vjp(lambda v: v.clone(), x, x.detach(), create_graph=True, strict=True),
        lambda t, a, x: a.jvp(_unused(t), x, x, strict=True),
        lambda t, a, x: a.jvp(lambda v: v.clone(), x, x.detach(), create_graph=True, strict=True),
        lambda t, a, x: a.jacobian(_unused(t), x, strict=True),
        lambda t, a, x: a.jacobian(lambda v: v.clone(), x, create_graph=True, strict=True),
        lambda t, a, x: a.hessian(lambda v: _unused(t)(v).sum(), x, strict=True),
        lambda t, a, x: a.hessian(lambda v: (3 * v).sum(), x, strict=True),
        lambda t, a, x: a.vhp(lambda v: (3 * v).sum(), x, x, strict=True),
        lambda t, a, x: a.hvp(lambda v: (3 * v).sum(), x, x, strict=True),
    ],
)
def test_what_strict_calls_refuse(call: Any) -> None:
    messages = []
    for t in (torch, webtorch):
        with pytest.raises(RuntimeError) as caught:
            call(t, t.autograd.functional, t.ones(3, dtype=t.float64, requires_grad=True))
        messages.append(str(caught.value))
    assert messages[0] == messages[1]


def cube(t: Any, *, once: bool = False, wrong: bool = False) -> Any:
    mark = t.autograd.function.once_differentiable if once else lambda f: f

    class Cube(t.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            ctx.save_for_backward(x)
            return x**3

        @staticmethod
        @mark
        def backward(ctx: Any, g: Any) -> Any:
            (x,) = ctx.saved_tensors
            return g * (2 if wrong else 3) * x**2

    return Cube.apply


def test_once_differentiable() -> None:
    def program(t: Any) -> Any:
        f = cube(t, once=True)
        x = t.tensor([1.0, 2.0], requires_grad=True)
        f(x).sum().backward()
        (g,) = t.autograd.grad(f(x).sum(), x, create_graph=True)
        (h,) = t.autograd.grad(f(x * 1).sum(), x)
        w = t.ones(2, requires_grad=True)
        (k,) = t.autograd.grad((f(x) * w).sum(), x, create_graph=True)
        return x.grad, g.detach(), h, k.detach(), k.requires_grad

    same(program)
    for t in (torch, webtorch):
        x = t.tensor([1.0, 2.0], requires_grad=True)
        w = t.ones(2, requires_grad=True)
        (g,) = t.autograd.grad((cube(t, once=True)(x) * w).sum(), x, create_graph=True)
        with pytest.raises(RuntimeError, match="once_differentiable"):
            g.sum().backward()


def point(t: Any, *shape: int) -> Any:
    x = t.arange(1.0, 1.0 + torch.Size(shape).numel(), dtype=t.float64).reshape(shape) / 4
    return x.requires_grad_()


@pytest.mark.parametrize(
    ("f", "shapes"),
    [
        (lambda t: lambda x: x.sin() * x, [(2, 3)]),
        (lambda t: lambda x, y: (x @ y, (x * 2).sum()), [(2, 3), (3, 2)]),
        (lambda t: cube(t), [(3,)]),
        (lambda t: lambda x, w, b: t.nn.functional.linear(x, w, b).tanh(), [(2, 3), (2, 3), (2,)]),
        (lambda t: lambda x: x[[0, 1, 0]].cumsum(0), [(2, 2)]),
        (lambda t: lambda x: t.nn.functional.softmax(x, -1), [(2, 3)]),
    ],
)
def test_right_gradients_pass(f: Any, shapes: Any) -> None:
    for t in (torch, webtorch):
        with t.device("cpu"):
            inputs = tuple(point(t, *s) for s in shapes)
            assert t.autograd.gradcheck(f(t), inputs)
            assert t.autograd.gradgradcheck(f(t), inputs)
            assert all(x.grad is None for x in inputs)


def test_wrong_gradients_fail() -> None:
    for t in (torch, webtorch):
        error = importlib.import_module(f"{t.__name__}.autograd.gradcheck").GradcheckError
        with t.device("cpu"):
            x, f = point(t, 3), cube(t, wrong=True)
            with pytest.raises(
                error, match="Jacobian mismatch for output 0 with respect to input 0"
            ):
                t.autograd.gradcheck(f, (x,))
            assert not t.autograd.gradcheck(f, (x,), raise_exception=False)
            # Differences of a gradient agree with its derivative, right or wrong.
            assert t.autograd.gradgradcheck(f, (x,))
            with pytest.raises(ValueError, match="at least one input tensor to require gradient"):
                t.autograd.gradcheck(f, (x.detach(),))
            with pytest.warns(UserWarning, match="double precision"):
                t.autograd.gradcheck(
                    cube(t), (t.ones(2, requires_grad=True),), raise_exception=False
                )


def test_tangents_and_batches_are_checked_too() -> None:
    for t in (torch, webtorch):
        x = t.randn(2, 3, dtype=t.float64, requires_grad=True)
        y = t.randn(3, 2, dtype=t.float64, requires_grad=True)

        def product(a: Any, b: Any, t: Any = t) -> Any:
            return t.sin(a @ b)

        everything = {
            "check_forward_ad": True,
            "check_batched_grad": True,
            "check_batched_forward_grad": True,
        }
        assert t.autograd.gradcheck(product, (x, y), **everything)
        assert t.autograd.gradcheck(product, (x, y), check_forward_ad=True, check_backward_ad=False)
        assert t.autograd.gradgradcheck(product, (x, y), check_fwd_over_rev=True)
        z = t.randn(3, dtype=t.complex128, requires_grad=True)
        assert t.autograd.gradcheck(lambda a: a * a.conj() * a, (z,), check_forward_ad=True)


def test_a_wrong_tangent_fails() -> None:
    for t in (torch, webtorch):
        error = importlib.import_module(f"{t.__name__}.autograd.gradcheck").GradcheckError

        class Sine(t.autograd.Function):  # type: ignore[misc,name-defined]
            @staticmethod
            def forward(ctx: Any, x: Any) -> Any:
                ctx.save_for_backward(x)
                return x.sin()

            @staticmethod
            def backward(ctx: Any, g: Any) -> Any:
                return g * ctx.saved_tensors[0].cos()

            @staticmethod
            def jvp(ctx: Any, tangent: Any) -> Any:
                return tangent * 2

        x = t.randn(3, dtype=t.float64, requires_grad=True)
        assert t.autograd.gradcheck(Sine.apply, (x,))
        with pytest.raises(error, match="forward mode"):
            t.autograd.gradcheck(Sine.apply, (x,), check_forward_ad=True)
        with pytest.raises(AssertionError, match="requires check_forward_ad"):
            t.autograd.gradcheck(Sine.apply, (x,), check_batched_forward_grad=True)


class _Wrong(webtorch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        return x * 2

    @staticmethod
    def backward(ctx: Any, g: Any) -> Any:
        return g * 2.01


def test_the_fast_mode_of_gradcheck_evaluates_few_times_and_finds_what_is_wrong() -> None:
    calls: list[int] = []

    def function(x: Any, w: Any) -> Any:
        calls.append(1)
        return (x @ w).tanh(), (x @ w).sum(0)

    x = torch.randn(4, 5, dtype=torch.float64, requires_grad=True)
    w = torch.randn(5, 3, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(function, (x, w), fast_mode=True, check_forward_ad=True)
    most = len(calls)
    calls.clear()
    x = webtorch.randn(4, 5, dtype=webtorch.float64, requires_grad=True)
    w = webtorch.randn(5, 3, dtype=webtorch.float64, requires_grad=True)
    state = webtorch.get_rng_state()
    assert webtorch.autograd.gradcheck(function, (x, w), fast_mode=True, check_forward_ad=True)
    assert len(calls) <= most
    # What it draws belongs to no stream of the user's.
    assert webtorch.equal(state, webtorch.get_rng_state())
    assert webtorch.autograd.gradgradcheck(function, (x, w), fast_mode=True)
    z = webtorch.randn(3, dtype=webtorch.complex128, requires_grad=True)
    assert webtorch.autograd.gradcheck(lambda z: z * z.conj() + z.exp(), (z,), fast_mode=True)
    for fast in (False, True):
        with pytest.raises(RuntimeError, match="Jacobian mismatch for output 0"):
            webtorch.autograd.gradcheck(_Wrong.apply, (x,), fast_mode=fast)
