"""Hooks on tensors, leaves and gradient functions, against PyTorch."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import webtorch
from tests.autograd.both import error, same, tensor


def test_tensor_hooks_see_and_replace_gradients() -> None:
    def program(t: Any) -> Any:
        x, seen = tensor(t, [1.0, 2.0]), []
        h = x * 3
        h.register_hook(lambda g: seen.append(("first", g.tolist())))
        h.register_hook(lambda g: g * 2)
        h.register_hook(lambda g: seen.append(("third", g.tolist())))
        x.register_hook(lambda g: g + 1)
        x.register_hook(lambda g: seen.append(("leaf", g.tolist())))
        (h * h).sum().backward()
        return seen, x.grad

    same(program)


@pytest.mark.parametrize(
    "loss",
    [
        lambda t, h: t.nn.functional.cross_entropy(h, t.tensor([1, 0])),
        lambda t, h: t.nn.functional.kl_div(h, t.ones_like(h), reduction="sum"),
        lambda t, h: t.nn.functional.huber_loss(h, h.detach() * 2),
        lambda t, h: t.nn.functional.mse_loss(h, h * h),
        lambda t, h: t.nn.functional.kl_div(h, h, reduction="sum"),
        lambda t, h: t.nn.functional.cosine_embedding_loss(h, h, t.tensor([1, -1])),
        lambda t, h: (h * h).sum(),
    ],
)
def test_a_hook_on_what_a_penalty_is_of_is_called_once_a_pass(loss: Any) -> None:
    def program(t: Any) -> Any:
        x, calls = tensor(t, [[0.5, 1.0, -0.3], [0.2, 0.4, 0.6]]), []
        h = x * x
        h.register_hook(lambda g: (calls.append(1), g * 0.5)[1])
        value = loss(t, h)
        (g,) = t.autograd.grad(value, x, create_graph=True)
        first = len(calls)
        (value + g.square().sum()).backward()
        return g, first, len(calls), x.grad

    same(program)


def test_a_hook_on_a_weight_of_a_recurrent_layer_is_called_once_a_pass() -> None:
    def program(t: Any) -> Any:
        layer, calls = t.nn.GRU(2, 2, dtype=t.float64), []
        with t.no_grad():
            for p in layer.parameters():
                p.copy_(t.arange(p.numel(), dtype=t.float64).reshape(p.shape) / 7 - 0.5)
        start = tensor(t, [[[0.3, -0.2]]])
        layer.weight_hh_l0.register_hook(lambda g: (calls.append(1), g * 0.5)[1])
        start.register_hook(lambda g: g * 0.5)
        out, _ = layer(tensor(t, [[[0.5, 1.0]], [[0.2, 0.4]]]), start)
        g, h = t.autograd.grad(out.square().sum(), [layer.weight_hh_l0, start], create_graph=True)
        first = len(calls)
        (g.square().sum() + h.sum()).backward()
        return g, h, first, len(calls), start.grad, layer.weight_hh_l0.grad, layer.weight_ih_l0.grad

    same(program)


@pytest.mark.parametrize("wanted", ["out", "x", "out x", "x out y"])
def test_a_gradient_that_is_asked_for_and_goes_on_is_that_before_hooks(wanted: str) -> None:
    def program(t: Any) -> Any:
        x, calls = tensor(t, [0.5, 1.0]), []
        y = x.tanh()
        out = y + y.mean()
        out.register_hook(lambda g: (calls.append(1), g * 0.5)[1])
        y.register_hook(lambda g: g * 3)
        x.register_hook(lambda g: g + 1)
        names = {"x": x, "y": y, "out": out}
        inputs = [names[n] for n in wanted.split()]
        found = t.autograd.grad((out**2).sum(), inputs, retain_graph=True)
        return found, len(calls)

    same(program)


def test_a_removed_hook_runs_no_more() -> None:
    def program(t: Any) -> Any:
        x, calls = tensor(t, [1.0]), []
        handle = x.register_hook(lambda g: calls.append(1))
        (x * 2).sum().backward()
        handle.remove()
        handle.remove()
        (x * 2).sum().backward()
        with x.register_hook(lambda g: calls.append(2)):
            (x * 2).sum().backward()
        (x * 2).sum().backward()
        return calls

    same(program)


def test_hooks_are_refused_where_there_is_no_gradient() -> None:
    def program(t: Any) -> Any:
        z = tensor(t, [1.0], False)
        y = tensor(t, [1.0]) * 2
        return (
            error(lambda: z.register_hook(print)),
            error(lambda: z.retain_grad()),
            error(lambda: y.register_post_accumulate_grad_hook(print)),
        )

    same(program)


def test_retain_grad_keeps_the_gradient_after_all_hooks() -> None:
    def program(t: Any) -> Any:
        x = tensor(t, [1.0, 2.0])
        h = x * 3
        before = h.retains_grad
        h.retain_grad()
        h.retain_grad()
        h.register_hook(lambda g: g * 10)
        written = x * 1
        written.retain_grad()
        written.mul_(3)
        written.sum().backward()
        (h * h).sum().backward()
        x.retain_grad()
        return before, h.retains_grad, h.grad, x.grad, x.retains_grad, written.grad

    same(program)


def test_retained_gradients_accumulate() -> None:
    def program(t: Any) -> Any:
        x = tensor(t, [1.0, 2.0])
        h = x * 3
        h.retain_grad()
        y = (h * h).sum()
        y.backward(retain_graph=True)
        y.backward()
        return h.grad, x.grad

    same(program)


def test_post_accumulate_hooks_run_after_grad_is_there() -> None:
    def program(t: Any) -> Any:
        x, w, seen = tensor(t, [1.0, 2.0]), tensor(t, [5.0, 5.0]), []

        def step(p: Any) -> None:
            seen.append(p.grad.tolist())
            with t.no_grad():
                p.sub_(0.1 * p.grad)
            p.grad = None

        handle = x.register_post_accumulate_grad_hook(step)
        for _ in range(2):
            (x * w).sum().backward()
        handle.remove()
        (x * w).sum().backward()
        return seen, x, x.grad, w.grad

    same(program, rtol=1e-9)


def test_hooks_of_gradient_functions() -> None:
    def program(t: Any) -> Any:
        x, seen = tensor(t, [1.0, 2.0]), []
        h = x.exp()
        y = h * 3
        y.grad_fn.register_prehook(lambda gs: (gs[0] * 2,))
        y.grad_fn.register_prehook(lambda gs: seen.append(gs[0].tolist()))
        handle = h.grad_fn.register_hook(
            lambda inputs, outputs: seen.append((inputs[0].tolist(), outputs[0].tolist()))
        )
        h.grad_fn.register_hook(lambda inputs, outputs: (inputs[0] * 10,))
        y.sum().backward(retain_graph=True)
        handle.remove()
        y.sum().backward()
        return seen, x.grad

    same(program)


def test_the_graph_can_be_walked() -> None:
    def program(t: Any) -> Any:
        x, w = tensor(t, [1.0, 2.0]), tensor(t, [1.0, 2.0], False)
        y = (x.exp() * w).sin()
        names = []
        fn = y.grad_fn
        while fn is not None:
            names.append(type(fn).__name__)
            last, fn = fn, next((f for f, _ in fn.next_functions if f is not None), None)
        return names, last.variable is x, len(y.grad_fn.next_functions)

    same(program)


def test_a_hook_may_run_backward_itself() -> None:
    def program(t: Any) -> Any:
        x, w = tensor(t, [1.0, 2.0]), tensor(t, [3.0, 4.0])

        def inner(g: Any) -> None:
            with t.enable_grad():
                (w * w).sum().backward()

        h = x * 2
        h.register_hook(inner)
        (h * h).sum().backward()
        return x.grad, w.grad

    same(program)


def test_hooks_see_the_gradient_once_all_parts_are_in() -> None:
    def program(t: Any) -> Any:
        x, seen = tensor(t, 2.0), []
        h = x * 1
        h.register_hook(lambda g: seen.append(g.item()))
        (h * 3 + h * h + h.sin() * 0).backward()
        return seen

    same(program)


def _programs() -> dict[str, Any]:
    def several(m: Any) -> Any:
        a, b, c = (m.ones(1, requires_grad=True) for _ in range(3))
        seen: list[Any] = []
        graph = m.autograd.graph
        graph.register_multi_grad_hook(
            (a, b, c), lambda gs: seen.append([None if g is None else g.tolist() for g in gs])
        )
        graph.register_multi_grad_hook((a, b), lambda g: seen.append(g.tolist()), mode="any")
        for _ in range(2):
            (a * b * 2).sum().backward()
        return seen

    def edge(m: Any) -> Any:
        x = m.ones(2, requires_grad=True)
        y = x * 2
        edge = m.autograd.graph.get_gradient_edge(x)
        return [g.tolist() for g in m.autograd.grad(y.sum(), edge)]

    def disabled(m: Any) -> Any:
        graph = m.autograd.graph
        with (
            graph.disable_saved_tensors_hooks("none here"),
            pytest.raises(RuntimeError, match="none here"),
            graph.saved_tensors_hooks(lambda t: t, lambda t: t),
        ):
            pass
        return True

    def resized(m: Any) -> Any:
        texts = []
        for kind in ("leaf", "inner"):
            x = m.ones(2, requires_grad=True)
            (x if kind == "leaf" else (x := x * 2)).register_hook(lambda g: m.ones(3))
            with pytest.raises(RuntimeError) as caught:
                x.sum().backward()
            texts.append(str(caught.value))
        return texts

    def batched(m: Any) -> Any:
        x = m.arange(3.0).requires_grad_()
        y = x**2 * x.sum()
        rows = m.autograd.grad(y, x, m.eye(3), is_grads_batched=True)
        return [g.tolist() for g in rows]

    return {f.__name__: f for f in (several, edge, disabled, resized, batched)}


@pytest.mark.parametrize("name", _programs())
def test_names_of_the_graph(name: str) -> None:
    program = _programs()[name]
    assert program(webtorch) == program(torch)


def test_warnings_of_backward_hooks_and_gradcheck_name_the_line_of_the_program() -> None:
    layer = webtorch.nn.Linear(2, 2)
    layer.register_full_backward_hook(lambda module, inputs, outputs: None)
    with pytest.warns(UserWarning, match="Full backward hook is firing") as seen:
        layer(webtorch.ones(1, 2)).sum().backward()
    assert [w.filename for w in seen] == [__file__]
    x = webtorch.ones(1, requires_grad=True)
    with pytest.warns(UserWarning, match="not a double precision") as seen:
        webtorch.autograd.gradcheck(lambda x: x * 2, (x,), eps=1e-2, atol=1e-2)
    assert [w.filename for w in seen] == [__file__]
    meta = webtorch.nn.Linear(2, 2, device="meta")
    with pytest.warns(UserWarning, match="no-op") as seen:
        meta.load_state_dict(layer.state_dict())
    assert {w.filename for w in seen} == {__file__}


def test_hooks_see_none_where_nothing_comes_and_prehooks_run_at_what_is_asked_for() -> None:
    def program(t: Any) -> Any:
        seen: list[Any] = []

        class Both(t.autograd.Function):  # type: ignore[misc,name-defined]
            @staticmethod
            def forward(ctx: Any, x: Any) -> Any:
                ctx.set_materialize_grads(False)
                return x * 2, x * 3

            @staticmethod
            def backward(ctx: Any, g: Any, h: Any) -> Any:
                return g * 2

        x = tensor(t, [1.0])
        a, b = Both.apply(x)
        b.register_hook(lambda g: seen.append(g))
        a.sum().backward()
        y = x.clone()
        y.grad_fn.register_prehook(lambda gs: seen.append("before"))
        y.register_hook(lambda g: seen.append("tensor"))
        y.sum().backward(inputs=(y,), retain_graph=True)
        t.autograd.grad(y.sum(), x)
        return seen, x.grad

    same(program)


def test_a_saved_tensor_that_was_detached_in_place_is_refused() -> None:
    def program(t: Any) -> Any:
        a = tensor(t, [1.0]).clone()
        b = a.sin()
        a.detach_()
        c = tensor(t, [1.0]).clone()
        d = c.exp()
        c.detach_()
        d.sum().backward()
        return error(lambda: b.sum().backward())

    same(program)


def test_a_hook_that_comes_while_its_function_runs_sees_what_that_gives() -> None:
    def program(t: Any) -> Any:
        a, made, seen = tensor(t, [1.0, 2.0]), [], []

        def hook(given: Any, arrived: Any) -> Any:
            seen.append(len(arrived))
            return tuple(g / 2 for g in given)

        def unpack(x: Any) -> Any:
            made[0].grad_fn.register_hook(hook)
            return x

        with t.autograd.graph.saved_tensors_hooks(lambda x: x, unpack):
            made.append(a.sin())
            made[0].sum().backward()
        return seen, a.grad

    same(program)


@pytest.mark.parametrize("kind", ["all", "any"])
def test_a_hook_of_several_tensors_counts_each_pass_by_itself(kind: str) -> None:
    def program(t: Any) -> Any:
        x, y, seen = tensor(t, [1.0]), tensor(t, [2.0]), []
        z, passes = (x * y).sum(), [1]

        def inner(g: Any) -> None:
            # A pass within a pass, when one of the two has come.
            if passes:
                passes.pop()
                z.backward(retain_graph=True)

        t.autograd.graph.register_multi_grad_hook((x, y), lambda g: seen.append(g), mode=kind)
        for leaf in (x, y):
            leaf.register_hook(inner)
        z.backward(retain_graph=True)
        return len(seen), x.grad, y.grad

    same(program)
