"""cond and while_loop: decisions of data, eagerly, compiled, differentiated and under vmap."""

import math

import numpy as np
import pytest
import torch

import webtorch
from webtorch import func

# What is tested here is nearly the same on all devices.
pytestmark = pytest.mark.one_in(3, device="webgpu")


def close(here, there, rtol=1e-5):
    np.testing.assert_allclose(np.array(here.detach().cpu().tolist()), there.detach().numpy(), rtol)


def branches(t):
    """A branch whose value and slope are infinite or NaN where the other one is taken."""
    return (lambda x, w: (x * w).sqrt().sum(), lambda x, w: (x.abs() + w).sum())


def reference(values, weights):
    x = torch.tensor(values, requires_grad=True)
    w = torch.tensor(weights, requires_grad=True)
    chosen = branches(torch)[0 if x.sum() > 0 else 1]
    out = chosen(x, w)
    out.backward()
    return out, x.grad, w.grad


CASES = ([1.0, 2.0, 3.0], [-1.0, 0.0, -3.0])


@pytest.mark.parametrize("compiled", [False, True])
def test_the_branch_that_data_chooses_with_its_gradient(compiled, device):
    def step(x, w):
        out = webtorch.cond(x.sum() > 0, *branches(webtorch), (x, w))
        out.backward()
        return out, x.grad, w.grad

    run = webtorch.compile(step) if compiled else step
    for values in (*CASES, *CASES):
        x = webtorch.tensor(values, device=device, requires_grad=True)
        w = webtorch.tensor([0.5, 0.25, 2.0], device=device, requires_grad=True)
        for here, there in zip(run(x, w), reference(values, [0.5, 0.25, 2.0]), strict=True):
            close(here, there)


def test_a_compiled_function_takes_either_branch_without_a_second_capture():
    @webtorch.compile
    def f(x):
        return webtorch.cond(
            x.sum() > 0,
            lambda x: {"y": x.sin(), "n": x.argmax()},
            lambda x: {"y": x.cos(), "n": x.argmin()},
            (x,),
        )

    for sign in (1.0, -1.0, 1.0):
        x = torch.tensor([0.5, 1.0, 2.0]) * sign
        found = f(webtorch.tensor(x.tolist()))
        close(found["y"], x.sin() if sign > 0 else x.cos())
        assert found["n"].item() == (x.argmax() if sign > 0 else x.argmin()).item()
    assert len(f.captures) == 1


def test_branches_see_what_is_around_them():
    w = torch.tensor([2.0, 3.0], requires_grad=True)
    v = webtorch.tensor([2.0, 3.0], requires_grad=True)
    for sign in (1.0, -1.0):
        for compiled in (False, True):
            v.grad = w.grad = None

            def step(x):
                out = webtorch.cond(x.sum() > 0, lambda x: x * v * v, lambda x: x - v, (x,))
                out.sum().backward()
                return out

            x = torch.tensor([1.0, 5.0]) * sign
            run = webtorch.compile(step) if compiled else step
            out = run(webtorch.tensor(x.tolist()))
            expected = x * w * w if sign > 0 else x - w
            expected.sum().backward()
            close(out, expected)
            close(v.grad, w.grad)


class Plain:
    """PyTorch, whose `cond` compiles: here it is a Python `if`."""

    autograd = torch.autograd

    @staticmethod
    def cond(pred, first, second, operands):
        return (first if pred else second)(*operands)


@pytest.mark.parametrize("compiled", [False, True])
def test_no_gradient_of_the_other_branch_reaches_what_is_around(compiled, device):
    """The other branch's slope is NaN or infinite there, for a leaf and for what was computed before."""

    def step(t, x, w, b):
        y = b * 2

        def first(x):
            return (x * w).sqrt().sum() * y.sum()

        def second(x):
            return (-x * w * y).log().sum() + y.detach().sum()

        out = t.cond(x.sum() > 0, first, second, (x,))
        (g,) = t.autograd.grad(out, x, create_graph=True)
        (curved,) = t.autograd.grad((g * g).sum(), x, retain_graph=True)
        (out + y.sum()).backward()
        return out, curved, x.grad, w.grad, b.grad

    def run(x, w, b):
        return step(webtorch, x, w, b)

    run = webtorch.compile(run) if compiled else run
    for values in ([1.0, 2.0, 3.0], [-1.0, -0.5, -3.0], [1.0, 4.0, 0.5]):
        given = values, [0.5, 0.25, 2.0], [1.0, 2.0, 3.0]
        here = [webtorch.tensor(v, device=device, requires_grad=True) for v in given]
        there = [torch.tensor(v, requires_grad=True) for v in given]
        for found, expected in zip(run(*here), step(Plain, *there), strict=True):
            close(found, expected, 1e-4)


def test_python_decisions_and_none_of_operands():
    x = webtorch.tensor([1.0, 2.0])
    assert webtorch.cond(True, lambda x: x + 1, lambda x: x - 1, (x,)).tolist() == [2, 3]
    assert webtorch.cond(0, lambda: x + 1, lambda: x - 1).tolist() == [0, 1]
    assert webtorch.cond(webtorch.tensor([True]), lambda x: x, lambda x: -x, [x]).tolist() == [1, 2]
    same = webtorch.cond(True, lambda x: x, lambda x: -x, (x,))
    same.zero_()
    assert x.tolist() == [1, 2]
    nested = webtorch.cond(
        True, lambda d: d["a"] + d["b"][0], lambda d: d["a"], ({"a": x, "b": [x]},)
    )
    assert nested.tolist() == [2, 4]


def test_what_cond_refuses():
    x = webtorch.tensor([1.0, 2.0])
    there = torch.tensor([1.0, 2.0])

    def message(t, x, make):
        with pytest.raises(RuntimeError) as error:
            make(t, x)
        return str(error.value)

    for make in (
        lambda t, x: t.cond(t.tensor([True, False]), lambda a: a + 1, lambda a: a - 1, (x,)),
        lambda t, x: t.cond(x.sum() > 0, 3, lambda a: a - 1, (x,)),
        lambda t, x: t.cond(x.sum() > 0, lambda a, n: a * n, lambda a, n: a - 1, (x, 2)),
    ):
        here, expected = message(webtorch, x, make), message(torch, there, make)
        assert here.split("\n")[0][:40] == expected.split("\n")[0][:40]
    with pytest.raises(RuntimeError, match="overwrote one of its inputs"):
        webtorch.cond(True, lambda a: a.add_(1), lambda a: a, (x,))

    def unequal(second):
        return webtorch.compile(lambda x: webtorch.cond(x.sum() > 0, lambda a: a + 1, second, (x,)))

    with pytest.raises(RuntimeError, match="expected same dtype"):
        unequal(lambda a: a.int())(x)
    with pytest.raises(RuntimeError, match="expected same shape"):
        unequal(lambda a: a[:1] + 1)(x)
    with pytest.raises(RuntimeError, match="Unmatched output spec"):
        unequal(lambda a: (a,))(x)
    total = webtorch.zeros(2)
    with pytest.raises(RuntimeError, match="overwrites a tensor in place"):
        unequal(lambda a: total.add_(a) + 1)(x)
    assert total.tolist() == [0, 0]


def test_vmap_lets_each_example_decide():
    rows = [[1.0, 2.0], [-3.0, 1.0], [0.5, -0.25]]

    def f(t, x):
        return t.cond(x.sum() > 0, lambda a: a.sin(), lambda a: a.cos(), (x,))

    expected = torch.stack([x.sin() if x.sum() > 0 else x.cos() for x in torch.tensor(rows)])
    x = webtorch.tensor(rows)
    close(func.vmap(lambda x: f(webtorch, x))(x), expected)
    compiled = webtorch.compile(func.vmap(lambda x: f(webtorch, x)))
    close(compiled(x), expected)
    close(func.vmap(func.grad(lambda x: f(webtorch, x).sum()))(x),
          torch.stack([x.cos() if x.sum() > 0 else -x.sin() for x in torch.tensor(rows)]))  # fmt: skip
    decided = func.vmap(lambda x: webtorch.cond(True, lambda a: a.sin(), lambda a: a.cos(), (x,)))(
        x
    )
    close(decided, torch.tensor(rows).sin())


def test_derivatives_of_functions_with_cond():
    def f(x):
        return webtorch.cond(x.sum() > 0, lambda a: (a**3).sum(), lambda a: a.exp().sum(), (x,))

    for values in ([1.0, 2.0], [-1.0, -2.0]):
        x, there = webtorch.tensor(values), torch.tensor(values)
        first = 3 * there**2 if values[0] > 0 else there.exp()
        second = 6 * there if values[0] > 0 else there.exp()
        for compiled in (False, True):
            wrap = webtorch.compile if compiled else (lambda g: g)
            close(wrap(func.grad(f))(x), first)
            close(wrap(lambda x: func.jvp(f, (x,), (x * 0 + 1,))[1])(x), first.sum())
            close(wrap(func.hessian(f))(x), torch.diag(second))


def test_while_loop(device):
    def collatz(t, n):
        return t._higher_order_ops.while_loop(
            lambda n, steps: n != 1,
            lambda n, steps: (t.where(n % 2 == 0, n // 2, 3 * n + 1), steps + 1),
            (n, t.zeros_like(n)),
        )

    for start in (6, 27, 1):
        n, steps = collatz(webtorch, webtorch.tensor(start, device=device))
        count, k = 0, start
        while k != 1:
            k, count = k // 2 if k % 2 == 0 else 3 * k + 1, count + 1
        assert (n.item(), steps.item()) == (1, count)

    def newton(x, a):
        def body(x, change):
            new = 0.5 * (x + a / x)
            return new, (new - x).abs()

        return webtorch.while_loop(
            lambda x, c: c > 1e-6, body, (x, webtorch.tensor(1.0, device=device))
        )

    root = newton(webtorch.tensor(1.0, device=device), 2.0)[0]
    assert root.item() == pytest.approx(math.sqrt(2.0), rel=1e-6)


def test_gradients_go_through_the_rounds():
    x = webtorch.ones(3, requires_grad=True)
    i, y = webtorch.while_loop(
        lambda i, a: i < 3, lambda i, a: (i + 1, a * a * 2), (webtorch.tensor(0), x)
    )
    y.sum().backward()
    there = torch.ones(3, requires_grad=True)
    z = there
    for _ in range(3):
        z = z * z * 2
    z.sum().backward()
    assert i.item() == 3
    close(x.grad, there.grad)
    assert (
        webtorch.while_loop(lambda i: i < 0, lambda i: (i + 1,), (webtorch.tensor(0),))[0].item()
        == 0
    )
    assert webtorch.while_loop(
        lambda d: d["i"] < 5, lambda d: ({"i": d["i"] + 1},), ({"i": 0},)
    ) == ({"i": 5},)
    assert webtorch.while_loop(lambda i: i < 5, lambda i: i + 1, (webtorch.tensor(0),)).item() == 5


def test_a_counted_loop_is_part_of_a_program():
    @webtorch.compile
    def power(a, x):
        return webtorch.while_loop(lambda i, x: i < 4, lambda i, x: (i + 1, a @ x), (0, x))[1]

    a, x = torch.tensor([[0.5, 1.0], [0.25, -1.0]]), torch.tensor([[1.0], [2.0]])
    for scale in (1.0, 2.0):
        close(power(webtorch.tensor((a * scale).tolist()), webtorch.tensor(x.tolist())),
              torch.linalg.matrix_power(a * scale, 4) @ x)  # fmt: skip
    assert len(power.captures) == 1


def test_what_while_loop_refuses():
    zero = webtorch.tensor(0)
    with pytest.raises(RuntimeError, match=r"differ in 'dtype: torch.float32 vs torch.int64'"):
        webtorch.while_loop(lambda i: i < 5, lambda i: (i + 1.5,), (zero,))
    with pytest.raises(RuntimeError, match="differ in 'shape"):
        webtorch.while_loop(lambda i: i < 5, lambda i: (webtorch.stack([i, i]),), (zero,))
    with pytest.raises(RuntimeError, match="same structure"):
        webtorch.while_loop(lambda i: i < 5, lambda i: (i + 1, i), (zero,))
    with pytest.raises(RuntimeError, match="scalar tensor or a bool"):
        webtorch.while_loop(lambda i: i.reshape(1) < 3, lambda i: (i + 1,), (zero,))
    with pytest.raises(RuntimeError, match="boolean scalar tensor"):
        webtorch.while_loop(lambda i: None, lambda i: (i + 1,), (zero,))
    with pytest.raises(RuntimeError, match="overwrote one of its inputs"):
        webtorch.while_loop(lambda i: i < 5, lambda i: (i.add_(1),), (webtorch.tensor(0),))

    def doubles(x):
        return webtorch.while_loop(lambda x: x.sum() < 9, lambda x: (x * 2,), (x,))

    assert webtorch.compile(doubles)(webtorch.ones(2))[0].tolist() == [8, 8]
    step = webtorch.compile(doubles, fullgraph=True)
    with pytest.raises(webtorch.errors.CaptureError, match="data decide how often it runs"):
        step(webtorch.ones(2))


def test_the_names_are_where_pytorch_has_them():
    from webtorch._higher_order_ops import cond, while_loop
    from webtorch._higher_order_ops.cond import cond as there

    assert cond is webtorch.cond is there
    assert while_loop is webtorch.while_loop
