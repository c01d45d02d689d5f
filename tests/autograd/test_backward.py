"""backward() and autograd.grad() against PyTorch: options, accumulation, errors, graphs of all shapes."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

import webtorch
from tests.autograd.both import error, same, tensor

pytestmark = pytest.mark.covers("H1")


def test_a_gradient_must_be_given_unless_there_is_one_element() -> None:
    def program(t: Any) -> Any:
        x = tensor(t, [1.0, 2.0, 3.0])
        y = x * x
        first = error(y.backward)
        y.backward(tensor(t, [1.0, 0.5, -1.0], False), retain_graph=True)
        one = (x * 3)[1:2]
        one.backward()
        return (
            first,
            x.grad,
            error(lambda: y.backward(tensor(t, [1.0, 2.0], False))),
            error(lambda: t.autograd.backward([x.sum(), x.detach()])),
            error(lambda: x.detach().sum().backward()),
        )

    same(program)


def test_gradients_accumulate_and_can_be_reset() -> None:
    def program(t: Any) -> Any:
        x = tensor(t, [1.0, 2.0])
        out = []
        for factor in (1.0, 10.0):
            (x * x * factor).sum().backward()
            out.append(x.grad.clone())
        kept = x.grad
        (x * 2).sum().backward()
        out.append((kept is x.grad, kept))
        x.grad = None
        (x**3).sum().backward()
        x.grad.zero_()
        (x**3).sum().backward()
        return [*out, x.grad, x.grad.grad_fn is None]

    same(program)


def test_roots_together_and_apart_give_the_same() -> None:
    def program(t: Any) -> Any:
        x, w = tensor(t, [1.0, -2.0]), tensor(t, [0.5, 3.0])
        a = (x * w).sin()
        b = a.sum() * 2
        t.autograd.backward([a, b], [tensor(t, [1.0, 2.0], False), None])
        return x.grad, w.grad

    same(program)


def test_a_second_backward_needs_retain_graph() -> None:
    def program(t: Any) -> Any:
        x = tensor(t, [1.0, 2.0])
        y = (x * x).exp().sum()
        y.backward(retain_graph=True)
        y.backward()
        return x.grad, error(y.backward), error(lambda: t.autograd.grad(y, x))

    found = same(program)
    assert "second time" in found[1]


def _calls(t: Any, x: Any) -> dict[str, Any]:
    two, row = t.tensor(2.0, dtype=t.float64), t.ones(3, dtype=t.float64)
    return {
        "x * 2.0": x * 2.0, "2 * x": 2 * x, "x / 2": x / 2, "2 / x": 2 / x, "x * 0-d": x * two, "x * row": x * row,
        "x + row": x + row, "x * True": x * True, "x + 2": x + 2, "2 - x": 2 - x, "-x": -x, "x ** 1": x**1,
        "x ** 2": x**2, "2 ** x": 2**x, "x.mul_": x.clone().mul_(2), "x.add_": x.clone().add_(2),
        "x.sub": x.sub(x, alpha=2), "lerp": t.lerp(x, x, 0.5), "sum": x.sum(), "mean": x.mean(),
        "mean of dim": x.mean(0), "view": x.view(-1), "t": x.t(), "x[0]": x[0], "x[:, [0]]": x[:, [0]],
        "cat": t.cat([x, x]),
        "clone": x.clone(),
        "float": x.float(), "floor": x.floor(), "div floor": x.div(2, rounding_mode="floor"), "tril": x.tril(),
        "triu": x.triu(1), "sgn": x.sgn(), "angle": x.angle(), "trapezoid": t.trapezoid(x), "var": x.var(),
        "complex": t.complex(x, x).real, "fmod": x.fmod(2), "where": t.where(x > 0, x, x), "std": x.std(),
        "avg_pool1d": t.nn.functional.avg_pool1d(x, 2), "pad": t.nn.functional.pad(x, (1, 1)),
        "reflect": t.nn.functional.pad(x, (1, 1), "reflect"), "amax of a number": x[0, 0].amax(),
        "max": x[0, 0].max(0)[0],
    }  # fmt: skip


def test_what_a_second_backward_pass_finds_used_up() -> None:
    """PyTorch makes a tensor of a number that the user multiplies by, and saves it."""

    def program(t: Any) -> Any:
        x = tensor(t, [[0.3, 0.2, 0.7], [0.25, 0.6, 0.35]])
        found = {}
        for name, y in _calls(t, x).items():
            g = t.ones_like(y)
            y.backward(g)
            found[name] = error(lambda y=y, g=g: y.backward(g))  # type: ignore[misc]
        return found, x.grad

    same(program)


def test_functions_that_save_nothing_can_run_twice() -> None:
    def program(t: Any) -> Any:
        x = tensor(t, [1.0, 2.0])
        shared = x + 1
        left, right = shared.sum(), (shared * 2).sum()
        left.backward()
        right.backward()
        left.backward()
        return x.grad

    same(program)


def test_create_graph_to_the_third_derivative() -> None:
    def program(t: Any) -> Any:
        x = tensor(t, [0.3, -1.2, 2.0])
        y = (x.sin() * x.exp() + x**4 / (1 + x * x)).sum()
        out = []
        for _ in range(3):
            (g,) = t.autograd.grad(y, x, create_graph=True)
            out.append(g)
            y = (g * g).sum() + g.sum()
        return out

    same(program)


@pytest.mark.filterwarnings("ignore:Using backward:UserWarning")
def test_backward_with_create_graph_makes_differentiable_gradients() -> None:
    def program(t: Any) -> Any:
        x = tensor(t, [0.5, 2.0])
        (x**3).sum().backward(create_graph=True)
        g = x.grad
        (extra,) = t.autograd.grad(g.sum(), x)
        return g, extra

    same(program)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"allow_unused": True},
        {"allow_unused": False},
        {"materialize_grads": True},
        {"allow_unused": True, "materialize_grads": True},
        {"allow_unused": False, "materialize_grads": True},
    ],
    ids=str,
)
def test_unused_inputs(options: dict[str, Any]) -> None:
    def program(t: Any) -> Any:
        x, z = tensor(t, [1.0, 2.0]), tensor(t, [[3.0]])
        y = (x * 2).sum()
        found: list[Any] = []
        message = error(lambda: found.extend(t.autograd.grad(y, [x, z], **options)))
        return message, found, x.grad

    same(program)


def test_grad_of_inner_and_repeated_inputs_and_its_errors() -> None:
    def program(t: Any) -> Any:
        x = tensor(t, [1.0, 2.0])
        h = x * x
        y = (h * 3).sin()
        weights = tensor(t, [1.0, -2.0], False)
        return (
            t.autograd.grad(y, (h, x), weights, retain_graph=True),
            t.autograd.grad(y, [x, x, h, h], weights, retain_graph=True),
            t.autograd.grad([y, h.sum()], x, [weights, None], retain_graph=True),
            t.autograd.grad(h, h, weights, retain_graph=True),
            error(lambda: t.autograd.grad(y, x)),
            error(lambda: t.autograd.grad(y, x.detach(), weights)),
            error(lambda: t.autograd.grad(y, [], weights)),
            x.grad,
        )

    same(program)


def test_backward_into_chosen_inputs_only() -> None:
    def program(t: Any) -> Any:
        x, w, calls = tensor(t, [1.0, 2.0]), tensor(t, [3.0, 4.0]), []
        h = x * w
        x.register_hook(lambda g: calls.append("hook"))
        x.register_post_accumulate_grad_hook(lambda p: calls.append("accumulated"))
        (h * h).sum().backward(inputs=[x])
        again = x * w
        message = error(lambda: (again * 2).sum().backward(inputs=[]))
        again.retain_grad()
        (again * 2).sum().backward(inputs=[again, w])
        return x.grad, w.grad, again.grad, calls, message

    same(program)


def test_shared_nodes_broadcasts_and_unused_branches() -> None:
    def program(t: Any) -> Any:
        x, b = tensor(t, [[1.0, 2.0], [3.0, 4.0]]), tensor(t, [0.5, -1.0])
        h = x + b
        unused = (h * 100).exp()
        y = (h * h + h * x).sum() + h.mean() * 2 + x[0].sum() * b.sum()
        y.backward()
        return x.grad, b.grad, unused.requires_grad

    same(program)


def test_a_gradient_has_the_dtype_of_its_tensor() -> None:
    def program(t: Any) -> Any:
        x = t.tensor([1.0, 2.0], dtype=t.float32, requires_grad=True)
        h = t.tensor([1.0, 2.0], dtype=t.float16, requires_grad=True)
        w = tensor(t, [3.0, 4.0])
        ((x * w).sum() + (h.float() * x).sum()).backward()
        return x.grad, w.grad, h.grad

    same(program, rtol=1e-6)


def test_leaves_and_flags() -> None:
    def program(t: Any) -> Any:
        x = tensor(t, [1.0])
        y, z = x * 2, tensor(t, [1.0], False)
        made = [a.is_leaf for a in (x, y, z, y.detach(), z * 2)]
        z.requires_grad_()
        return (
            made,
            [a.requires_grad for a in (x, y, z, y.detach())],
            error(lambda: y.requires_grad_(False)),
            error(lambda: setattr(y, "requires_grad", False)),
            # What follows says which type it is, and what to do.
            error(lambda: t.tensor([1]).requires_grad_()).partition(", and")[0],
            error(lambda: t.tensor([1], requires_grad=True)),
            type(y.grad_fn).__name__ != "NoneType",
            x.grad_fn is None,
            x.output_nr,
        )

    same(program)


def test_assigning_grad_is_checked() -> None:
    def program(t: Any) -> Any:
        x = tensor(t, [1.0, 2.0])
        x.grad = tensor(t, [5.0, 6.0], False)
        (x * 1).sum().backward()
        wrong = error(lambda: setattr(x, "grad", tensor(t, [1.0], False)))
        return x.grad, wrong.split(":")[0], error(lambda: setattr(x, "grad", 1.0)).split(":")[0]

    same(program)


def test_gradients_of_leaves_are_tensors_of_their_own() -> None:
    x, y = (webtorch.ones(2, requires_grad=True) for _ in range(2))
    given = webtorch.tensor([2.0, 3.0])
    (x + y).backward(given)
    x.grad.zero_()
    assert y.grad.tolist() == given.tolist() == [2.0, 3.0]


def test_detach_shares_memory_and_cuts_the_graph() -> None:
    def program(t: Any) -> Any:
        x = tensor(t, [1.0, 2.0])
        h = x * 3
        cut = h.detach()
        cut[0] = 100.0
        kept = x * 5
        kept.detach_()
        return h, cut, kept, error(lambda: h[:1].detach_())

    same(program)


def test_leaf_copies_and_moves_are_differentiable() -> None:
    def program(t: Any) -> Any:
        x = tensor(t, [1.0, 2.0])
        y = x.clone() * 2 + x.to(t.float32).to(t.float64) + x.contiguous() + x.cpu()
        y.sum().backward()
        return x.grad

    same(program)


def test_gradients_flow_between_devices(device: str) -> None:
    x = webtorch.tensor([1.0, 2.0], requires_grad=True)
    (x.to(device) * webtorch.tensor([3.0, 4.0], device=device)).sum().backward()
    assert x.grad.device.type == "cpu"
    assert x.grad.tolist() == [3.0, 4.0]


def test_a_diamond_of_a_thousand_nodes_takes_linear_time() -> None:
    """Every function runs once; walking every path instead would take 2 ** 1000 steps."""
    x = webtorch.tensor(0.0, requires_grad=True)
    y, runs, functions = x, [], 0
    for _ in range(1000):
        left, right = y * 0.5, y * 0.5
        y = left + right
        for part in (left, right, y):
            part.grad_fn.register_prehook(lambda g: runs.append(1))
            functions += 1
    y.backward()
    assert (len(runs), functions) == (3000, 3000)
    assert x.grad.item() == 1.0


def test_a_chain_of_ten_thousand_hits_no_recursion_limit() -> None:
    x = webtorch.tensor(1.0, requires_grad=True)
    y = x
    for _ in range(10_000):
        y = y + 1
    y.backward()
    assert (y.item(), x.grad.item()) == (10_001.0, 1.0)
    del y


def test_a_chain_of_three_thousand_computed_at_once() -> None:
    """Below the number at which pending work is computed: one graph of that depth."""
    y = webtorch.tensor(1.0)
    before = y._storage.runtime.counters.realized
    for _ in range(3000):
        y = y + 1
    assert y.item() == 3001.0
    assert y._storage.runtime.counters.realized == before + 1


def test_grad_takes_only_inputs_where_pytorch_has_it() -> None:
    for t in (torch, webtorch):
        x = t.ones(2, requires_grad=True)
        (g,) = t.autograd.grad(
            outputs=(x**2).sum(), inputs=x, create_graph=True, retain_graph=True, only_inputs=True
        )
        assert g.tolist() == [2.0, 2.0]
        (g,) = t.autograd.grad((x**2).sum(), x, None, None, False, True, True)
        assert g.tolist() == [2.0, 2.0]
        with pytest.warns(FutureWarning, match="only_inputs argument is deprecated"):
            t.autograd.grad((x**2).sum(), x, only_inputs=False)


@pytest.mark.parametrize("name", ["max", "min", "median", "nanmedian"])
@pytest.mark.parametrize(
    "values",
    [
        [1.0, 2.0, 2.0, 1.0, 0.0, 0.0],
        [3.0, 3.0, 3.0],
        [1.0, math.nan, 1.0, 2.0, 2.0, math.nan],
        [[2.0, 2.0], [2.0, 1.0]],
        [math.inf, math.inf, -math.inf],
        5.0,
    ],
)
def test_ties_share_the_gradient_of_one_element(name: str, values: Any) -> None:
    def program(t: Any) -> Any:
        x = t.tensor(values, requires_grad=True)
        y = getattr(x, name)()
        y.backward(t.tensor(2.0))
        return y.detach(), x.grad

    same(program)


def test_a_leaf_that_takes_gradients_no_more_keeps_what_it_had() -> None:
    def program(t: Any) -> Any:
        x, w, seen = tensor(t, [1.0, 2.0]), tensor(t, [3.0, 4.0]), []
        (x * w).sum().backward()
        x.register_hook(lambda g: seen.append(g.tolist()))
        loss = (x * w * 2).sum()
        x.requires_grad_(False)
        loss.backward()
        return x.grad, w.grad, seen, error(lambda: t.autograd.grad((w * 2).sum(), x))

    same(program)


def test_reshape_of_what_it_copies_gives_no_view() -> None:
    def program(t: Any) -> Any:
        x = tensor(t, [[1.0, 2.0], [3.0, 4.0]])
        return [
            (y._base is None, y._is_view())
            for x in (x, x.detach())
            for y in (x.t().reshape(-1), x.reshape(-1), x.t().flatten())
        ]

    same(program)
