"""Operations with a gradient of the user's own, against PyTorch."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch

import webtorch
from tests.autograd.both import error, same, tensor

pytestmark = pytest.mark.covers("H6")


def test_forward_and_backward_with_saved_tensors() -> None:
    def program(t: Any) -> Any:
        class Cube(t.autograd.Function):
            @staticmethod
            def forward(ctx: Any, x: Any, factor: float) -> Any:
                ctx.save_for_backward(x)
                ctx.factor = factor
                return x**3 * factor

            @staticmethod
            def backward(ctx: Any, g: Any) -> Any:
                (x,) = ctx.saved_tensors
                return g * 3 * x**2 * ctx.factor, None

        x = tensor(t, [1.0, -2.0])
        y = Cube.apply(x * 2, 0.5)
        y.sum().backward()
        return y, x.grad, Cube.apply(x.detach(), 1.0).requires_grad, "Cube" in repr(y.grad_fn)

    same(program)


def test_separate_setup_context_and_keyword_free_call() -> None:
    def program(t: Any) -> Any:
        class Product(t.autograd.Function):
            @staticmethod
            def forward(x: Any, y: Any) -> Any:
                return x * y

            @staticmethod
            def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
                ctx.save_for_backward(*inputs)

            @staticmethod
            def backward(ctx: Any, g: Any) -> Any:
                x, y = ctx.saved_tensors
                return g * y, g * x

        x, y = tensor(t, [1.0, 2.0]), tensor(t, [3.0, 4.0])
        (Product.apply(x, y) * x).sum().backward()
        return x.grad, y.grad

    same(program)


def test_needs_input_grad_and_none_gradients() -> None:
    def program(t: Any) -> Any:
        seen = []

        class Sum(t.autograd.Function):
            @staticmethod
            def forward(ctx: Any, a: Any, b: Any, c: Any) -> Any:
                seen.append(ctx.needs_input_grad)
                return a + b

            @staticmethod
            def backward(ctx: Any, g: Any) -> Any:
                seen.append(ctx.needs_input_grad)
                return g, None, None

        a, b = tensor(t, [1.0]), tensor(t, [2.0], False)
        Sum.apply(a, b, "text").sum().backward()
        Sum.apply(b, a, 3).sum().backward()
        return seen, a.grad

    same(program)


def test_several_outputs_and_missing_cotangents() -> None:
    def program(t: Any, materialize: bool) -> Any:
        class Split(t.autograd.Function):
            @staticmethod
            def forward(ctx: Any, x: Any) -> Any:
                ctx.set_materialize_grads(materialize)
                return x * 2, x * 3, x.long()

            @staticmethod
            def backward(ctx: Any, a: Any, b: Any, c: Any) -> Any:
                seen.append([None if g is None else g.tolist() for g in (a, b, c)])
                return a * 2 if b is None else a * 2 + b * 3

        seen: list[Any] = []
        x = tensor(t, [1.0, 2.0])
        p, q, r = Split.apply(x)
        p.sum().backward()
        flags = p.requires_grad, q.requires_grad, r.requires_grad, p.grad_fn is q.grad_fn
        p, q, r = Split.apply(x)
        (p * q).sum().backward()
        return seen, flags, x.grad, (p.output_nr, q.output_nr)

    same(lambda t: program(t, True))
    same(lambda t: program(t, False))


def test_a_function_that_no_cotangent_comes_to_runs_all_the_same() -> None:
    def program(t: Any, materialize: bool, between: bool, inputs: bool) -> Any:
        class Seen(t.autograd.Function):
            @staticmethod
            def forward(ctx: Any, x: Any) -> Any:
                ctx.set_materialize_grads(materialize)
                return x * 2

            @staticmethod
            def backward(ctx: Any, g: Any) -> Any:
                seen.append(None if g is None else g.tolist())
                return None if g is None else g * 2

        class Ends(t.autograd.Function):
            @staticmethod
            def forward(ctx: Any, x: Any, y: Any) -> Any:
                return x + y

            @staticmethod
            def backward(ctx: Any, g: Any) -> Any:
                return None, g

        seen: list[Any] = []
        x, y = tensor(t, [1.0, 2.0]), tensor(t, [3.0, 4.0])
        h = Seen.apply(x)
        if between:
            h = (h.exp() * 3).sum().expand(2)
        out = Ends.apply(h, y).sum()
        if inputs:
            return seen, t.autograd.grad(out, (x, y), allow_unused=True)
        out.backward()
        return seen, x.grad, y.grad

    for choice in itertools.product((True, False), repeat=3):
        same(lambda t: program(t, *choice))  # noqa: B023


def test_mark_non_differentiable() -> None:
    def program(t: Any) -> Any:
        class Sorted(t.autograd.Function):
            @staticmethod
            def forward(ctx: Any, x: Any) -> Any:
                values, order = x.sort()
                rank = order.double()
                ctx.mark_non_differentiable(rank)
                ctx.save_for_backward(order)
                return values, rank

            @staticmethod
            def backward(ctx: Any, g: Any, _: Any) -> Any:
                (order,) = ctx.saved_tensors
                out = t.zeros_like(g)
                out[order] = g
                return out

        x = tensor(t, [3.0, 1.0, 2.0])
        values, rank = Sorted.apply(x)
        (values * tensor(t, [1.0, 10.0, 100.0], False)).sum().backward()
        return values, rank, x.grad

    same(program)


def test_double_backward_through_a_custom_function() -> None:
    def program(t: Any) -> Any:
        class Exp(t.autograd.Function):
            @staticmethod
            def forward(ctx: Any, x: Any) -> Any:
                y = x.exp()
                ctx.save_for_backward(y)
                return y

            @staticmethod
            def backward(ctx: Any, g: Any) -> Any:
                (y,) = ctx.saved_tensors
                return g * y

        x = tensor(t, [0.5, 1.0])
        y = Exp.apply(x * x)
        (g,) = t.autograd.grad(y.sum(), x, create_graph=True)
        (h,) = t.autograd.grad((g * g).sum(), x, create_graph=True)
        return g, h, t.autograd.grad(h.sum(), x)

    same(program)


def test_an_input_that_is_returned_is_a_new_tensor_of_the_graph() -> None:
    def program(t: Any) -> Any:
        class Scale(t.autograd.Function):
            @staticmethod
            def forward(ctx: Any, x: Any) -> Any:
                return x

            @staticmethod
            def backward(ctx: Any, g: Any) -> Any:
                return g * 10

        x = tensor(t, [1.0, 2.0])
        y = Scale.apply(x)
        (y * y).sum().backward()
        return y is x, x.grad, y.requires_grad

    same(program)


def test_mark_dirty_for_an_input_changed_in_place() -> None:
    def program(t: Any) -> Any:
        class Double(t.autograd.Function):
            @staticmethod
            def forward(ctx: Any, x: Any) -> Any:
                x.mul_(2)
                ctx.mark_dirty(x)
                return x

            @staticmethod
            def backward(ctx: Any, g: Any) -> Any:
                return g * 2

        x = tensor(t, [1.0, 2.0])
        h = x * 3
        y = Double.apply(h)
        (y * y).sum().backward()
        return y, h, y is h, x.grad

    same(program)


def test_wrong_backwards_are_named() -> None:
    def program(t: Any) -> Any:
        def make(gradient: Any) -> Any:
            class Odd(t.autograd.Function):
                @staticmethod
                def forward(ctx: Any, x: Any, y: Any) -> Any:
                    return x * y

                @staticmethod
                def backward(ctx: Any, g: Any) -> Any:
                    return gradient(g)

            x, y = tensor(t, [1.0, 2.0]), tensor(t, [1.0, 2.0])
            return error(lambda: Odd.apply(x, y).sum().backward())

        class NoBackward(t.autograd.Function):
            @staticmethod
            def forward(ctx: Any, x: Any) -> Any:
                return x * 2

        missing = error(lambda: NoBackward.apply(tensor(t, [1.0])).sum().backward())
        return (
            make(lambda g: (g, g, g)),
            make(lambda g: g),
            make(lambda g: (g, g, None, None)),
            make(lambda g: (t.cat([g, g]), g)),
            missing,
        )

    same(program)


def test_saved_tensors_are_guarded_and_freed() -> None:
    def program(t: Any) -> Any:
        class Square(t.autograd.Function):
            @staticmethod
            def forward(ctx: Any, x: Any) -> Any:
                ctx.save_for_backward(x, None)
                return x * x

            @staticmethod
            def backward(ctx: Any, g: Any) -> Any:
                x, nothing = ctx.saved_tensors
                assert nothing is None
                return g * 2 * x

        x = tensor(t, [1.0, 2.0])
        h = x * 1
        y = Square.apply(h).sum()
        h.add_(1)
        spoiled = error(y.backward).split(":")[:2]
        z = Square.apply(x)
        y = z.sum()
        context = z.grad_fn if t.__name__ == "torch" else z.grad_fn.ctx
        y.backward()
        return spoiled, error(y.backward), error(lambda: context.saved_tensors), x.grad

    same(program)


def test_the_gradient_mode_inside() -> None:
    def program(t: Any) -> Any:
        seen = []

        class Look(t.autograd.Function):
            @staticmethod
            def forward(ctx: Any, x: Any) -> Any:
                seen.append(t.is_grad_enabled())
                return x * 2

            @staticmethod
            def backward(ctx: Any, g: Any) -> Any:
                seen.append(t.is_grad_enabled())
                return g * 2

        x = tensor(t, [1.0])
        t.autograd.grad(Look.apply(x).sum(), x)
        t.autograd.grad(Look.apply(x).sum(), x, create_graph=True)
        with t.no_grad():
            flag = Look.apply(x).requires_grad
        return seen, flag

    same(program)


def test_forward_sees_its_arguments_themselves() -> None:
    """Recomputing functions keep the parameters that they are given, and differentiate for them."""

    def program(lib: Any) -> list[list[float]]:
        class Recomputed(lib.autograd.Function):  # type: ignore[misc]
            @staticmethod
            def forward(ctx: Any, run: Any, count: int, *args: Any) -> Any:
                ctx.run, ctx.inputs, ctx.parameters = run, args[:count], args[count:]
                assert all(p.requires_grad for p in ctx.parameters)
                with lib.no_grad():
                    return run(*ctx.inputs)

            @staticmethod
            def backward(ctx: Any, g: Any) -> Any:
                inputs = [x.detach().requires_grad_() for x in ctx.inputs]
                with lib.enable_grad():
                    out = ctx.run(*inputs)
                return (None, None, *lib.autograd.grad(out, (*inputs, *ctx.parameters), g))

        class Doubled(lib.autograd.Function):  # type: ignore[misc]
            @staticmethod
            def forward(ctx: Any, x: Any) -> Any:
                ctx.mark_dirty(x)
                return x.mul_(2)

            @staticmethod
            def backward(ctx: Any, g: Any) -> Any:
                return g * 2

        class Flat(lib.autograd.Function):  # type: ignore[misc]
            @staticmethod
            def forward(ctx: Any, x: Any) -> Any:
                ctx.shape = x.shape
                return x.view(-1)

            @staticmethod
            def backward(ctx: Any, g: Any) -> Any:
                return g.view(ctx.shape)

        w = lib.tensor([1.0, 2.0], requires_grad=True)
        x = lib.tensor([[3.0, 4.0], [5.0, 6.0]], requires_grad=True)
        (Recomputed.apply(lambda a: (a * w).sin(), 1, x, w) ** 2).sum().backward()
        y = x * 1
        z = Doubled.apply(y)
        assert z is y
        (Flat.apply(z) ** 2).sum().backward()
        return [w.grad.tolist(), x.grad.flatten().tolist()]

    for ours, theirs in zip(program(webtorch), program(torch), strict=True):
        assert ours == pytest.approx(theirs)


def test_a_gradient_of_a_broadcast_shape_is_summed() -> None:
    def program(lib: Any) -> list[Any]:
        class Scaled(lib.autograd.Function):  # type: ignore[misc]
            @staticmethod
            def forward(ctx: Any, x: Any, s: Any) -> Any:
                ctx.save_for_backward(x, s)
                return x * s

            @staticmethod
            def backward(ctx: Any, g: Any) -> Any:
                x, s = ctx.saved_tensors
                return g * s, g * x

        x = lib.arange(6.0).reshape(2, 3).requires_grad_()
        found = []
        for shape in ((1, 1), (3,), (2, 1), ()):
            s = lib.full(shape, 2.0, requires_grad=True)
            Scaled.apply(x, s).sum().backward()
            found.append(s.grad.tolist())
        return found

    assert program(webtorch) == program(torch)


def test_what_forward_is_given_by_default_comes_to_setup_context() -> None:
    def program(t: Any) -> Any:
        class Power(t.autograd.Function):  # type: ignore[misc,name-defined]
            @staticmethod
            def forward(x: Any, y: int = 3) -> Any:
                return x**y

            @staticmethod
            def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
                x, ctx.y = inputs
                ctx.save_for_backward(x)

            @staticmethod
            def backward(ctx: Any, g: Any) -> Any:
                (x,) = ctx.saved_tensors
                return g * ctx.y * x ** (ctx.y - 1), None

        x = tensor(t, [2.0])
        return Power.apply(x), t.autograd.grad(Power.apply(x).sum(), x)[0]

    same(program)


def test_sparse_tensors_are_saved() -> None:
    class Given(webtorch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any, g: Any) -> Any:
            ctx.save_for_backward(g)
            return x.clone()

        @staticmethod
        def backward(ctx: Any, g: Any) -> Any:
            return ctx.saved_tensors[0], None

    part = webtorch.tensor([[0.0, 2.0], [0.0, 3.0]]).to_sparse()
    x = webtorch.zeros(2, 2, requires_grad=True)
    (Given.apply(x, part) + Given.apply(x, webtorch.ones(2, 2))).sum().backward()
    assert x.grad.tolist() == [[1.0, 3.0], [1.0, 4.0]]


def test_what_is_wrong_with_marks_and_tangents_is_said() -> None:
    def program(t: Any) -> Any:
        ad, found = t.autograd.forward_ad, []

        def function(forward: Any, jvp: Any) -> Any:
            return type(
                "One",
                (t.autograd.Function,),
                {"forward": staticmethod(forward), "jvp": staticmethod(jvp)},
            ).apply

        def twice(ctx: Any, x: Any) -> Any:
            ctx.mark_dirty(x)
            return x.mul_(2)

        def fixed(ctx: Any, x: Any) -> Any:
            out = x.clone()
            ctx.mark_non_differentiable(out)
            return x.clone(), out

        def lost(ctx: Any, x: Any) -> Any:
            ctx.mark_dirty(x)
            return x.mul_(2).clone()

        def pair(ctx: Any, x: Any) -> Any:
            ctx.mark_dirty(x)
            return x.mul_(2), x.clone()

        for forward, jvp in (
            (twice, lambda ctx, v: v * 2),
            (twice, lambda ctx, v: v.mul_(2)),
            (fixed, lambda ctx, v: (v, v.clone())),
            (lambda ctx, x: x, lambda ctx, v: v * 1),
            (lambda ctx, x: x, lambda ctx, v: v.view_as(v)),
            (lambda ctx, x: x[:1], lambda ctx, v: v[:1].clone()),
        ):
            with ad.dual_level():
                v = t.ones(2, dtype=t.float64)
                x = ad.make_dual(tensor(t, [1.0, 2.0], grad=False), v)
                said = error(lambda: function(forward, jvp)(x))  # noqa: B023
                found.append(said and said[:60])
                # Of a view of what was packed.
                said = error(lambda: function(forward, jvp)(x.view_as(x)))  # noqa: B023
                found.append(said and said.partition("the jvp is")[2])
        x = tensor(t, [1.0, 2.0])
        found.append(error(lambda: function(lost, None)(x.clone())))
        found.append(error(lambda: function(pair, None)(x.clone().view_as(x)))[:70])
        return found

    same(program)


def test_results_without_recording_are_views_as_the_operation_gives() -> None:
    def program(t: Any) -> Any:
        class Part(t.autograd.Function):  # type: ignore[misc,name-defined]
            @staticmethod
            def forward(ctx: Any, x: Any) -> Any:
                return x[:]

            @staticmethod
            def backward(ctx: Any, g: Any) -> Any:
                return g

        x = tensor(t, [1.0, 2.0])
        with t.no_grad():
            y = Part.apply(x)
        return y.requires_grad, error(lambda: y.zero_())[:70]

    same(program)


def test_backward_passes_may_run_deep_within_each_other() -> None:
    def program(t: Any) -> Any:
        class Deep(t.autograd.Function):  # type: ignore[misc, name-defined]
            @staticmethod
            def forward(ctx: Any, x: Any) -> Any:
                with t.enable_grad():
                    ctx.x = x.detach().requires_grad_() - 1
                return ctx.x.detach()

            @staticmethod
            def backward(ctx: Any, g: Any) -> Any:
                if ctx.x > 0:
                    with t.enable_grad():
                        Deep.apply(ctx.x).sum().backward()
                return g * 2

        x = tensor(t, [150.0])
        Deep.apply(x).sum().backward()
        return x.grad

    same(program)


def test_views_that_forward_writes_lead_through_the_function() -> None:
    def program(t: Any) -> Any:
        class Twice(t.autograd.Function):  # type: ignore[misc, name-defined]
            @staticmethod
            def forward(ctx: Any, x: Any) -> Any:
                ctx.mark_dirty(x)
                return x.mul_(2)

            @staticmethod
            def backward(ctx: Any, g: Any) -> Any:
                return g * 2

        class Part(t.autograd.Function):  # type: ignore[misc, name-defined]
            @staticmethod
            def forward(ctx: Any, x: Any) -> Any:
                view = x.clone()[:1]
                view += 2
                return view

            @staticmethod
            def backward(ctx: Any, g: Any) -> Any:
                return t.cat([g * 3, g * 0])

        x = tensor(t, [1.0, 2.0])
        whole = x.clone()
        out = Twice.apply(whole[:1])
        part = Part.apply(x)
        (first,) = t.autograd.grad((out * whole).sum(), x)
        (second,) = t.autograd.grad(part.sum(), x)
        return out, whole, part, first, second, type(part.grad_fn).__name__

    same(program)
