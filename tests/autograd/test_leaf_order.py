"""When leaves get their gradients, against PyTorch: as soon as all of these have come."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

from tests.autograd.both import error, same, tensor


def _watch(model: Any, log: list[Any]) -> None:
    """Note each call of a hook of a model's parameters and modules."""
    for name, p in model.named_parameters():
        p.register_hook(lambda g, n=name: log.append(f"hook {n}"))
        p.register_post_accumulate_grad_hook(lambda t, n=name: log.append(f"post {n}"))
    for name, module in model.named_modules():
        module.register_full_backward_hook(lambda m, a, b, n=name: log.append(f"module {n}"))


def _linears(t: Any, count: int = 3, bias: bool = True) -> Any:
    return t.nn.Sequential(*[t.nn.Linear(2, 2, bias=bias) for _ in range(count)])


@pytest.mark.parametrize(
    ("layers", "shape"),
    [
        (lambda nn: [nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 2)], (4, 2)),
        (lambda nn: [nn.Linear(2, 3, bias=False), nn.Linear(3, 2)], (3, 4, 2)),
        (lambda nn: [nn.Conv2d(2, 3, 2), nn.BatchNorm2d(3), nn.Conv2d(3, 2, 1)], (2, 2, 4, 4)),
        (lambda nn: [nn.Linear(2, 4), nn.LayerNorm(4), nn.PReLU(4)], (4, 2)),
        (lambda nn: [nn.TransformerEncoderLayer(4, 2, 8, 0.0, batch_first=True)], (2, 3, 4)),
        (lambda nn: [nn.InstanceNorm1d(3, affine=True), nn.Linear(4, 2), nn.RMSNorm(2)], (2, 3, 4)),
        (
            lambda nn: [nn.InstanceNorm1d(3, affine=True, track_running_stats=True).eval()],
            (2, 3, 4),
        ),
        (lambda nn: [nn.Linear(3, 2)], (3,)),
    ],
)
def test_hooks_of_leaves_and_modules_come_in_one_order(
    layers: Callable[[Any], list[Any]], shape: tuple[int, ...]
) -> None:
    def program(t: Any) -> Any:
        model, log = t.nn.Sequential(*layers(t.nn)), []
        _watch(model, log)
        model(t.ones(shape, requires_grad=True)).sum().backward()
        return log

    same(program)


@pytest.mark.parametrize(
    ("layer", "shapes"),
    [
        (lambda nn: nn.RNN(3, 4, num_layers=2), [(2, 2, 3)]),
        (lambda nn: nn.GRU(3, 4, bidirectional=True), [(2, 2, 3)]),
        (lambda nn: nn.LSTM(3, 4, proj_size=2), [(2, 2, 3)]),
        (lambda nn: nn.Bilinear(3, 4, 2), [(2, 3), (2, 4)]),
        (lambda nn: nn.utils.parametrizations.weight_norm(nn.Linear(3, 2), dim=1), [(4, 3)]),
        (lambda nn: nn.utils.parametrizations.weight_norm(nn.Linear(3, 2), dim=None), [(4, 3)]),
        (lambda nn: nn.MultiheadAttention(4, 2, kdim=3, vdim=5), [(2, 2, 4), (3, 2, 3), (3, 2, 5)]),
    ],
)
@pytest.mark.filterwarnings("ignore:LSTM with projections")
def test_hooks_of_weights_come_in_one_order(
    layer: Callable[[Any], Any], shapes: list[tuple[int, ...]]
) -> None:
    def program(t: Any) -> Any:
        log: list[str] = []
        model = layer(t.nn)
        for name, p in model.named_parameters():
            p.register_hook(lambda g, n=name: log.append(n))
        inputs = [t.ones(shape, requires_grad=True) for shape in shapes]
        for place, x in enumerate(inputs):
            x.register_hook(lambda g, n=f"input {place}": log.append(n))
        out = model(*inputs)
        (out[0] if isinstance(out, tuple) else out).sum().backward()
        return log

    same(program)


def test_hooks_of_shared_leaves_and_of_tensors_between_them() -> None:
    def program(t: Any) -> Any:
        log: list[str] = []

        def noted(x: Any, name: str) -> Any:
            x.register_hook(lambda g: log.append(name))
            return x

        a, b, c, d, e = [noted(tensor(t, [[1.0, 2.0]]), n) for n in "abcde"]
        y = noted((a * b + c).tanh(), "y")
        z = noted(t.cat([y, d, e]).exp(), "z")
        (z.sum() + noted(a.sin(), "sin").sum() + t.addcmul(a, b, c).sum()).backward()
        model = _linears(t)
        model[2].weight = model[0].weight
        _watch(model, log)
        model(t.ones(3, 2, requires_grad=True)).sum().backward()
        return log

    same(program)


@pytest.mark.parametrize(
    "where", ["tensor", "leaf", "post", "written", "module", "prehook", "function"]
)
@pytest.mark.parametrize("layer", [0, 2])
def test_a_pass_that_raises_has_added_to_the_leaves_before(where: str, layer: int) -> None:
    def program(t: Any) -> Any:
        class Failing(t.autograd.Function):  # type: ignore[misc, name-defined]
            @staticmethod
            def forward(ctx: Any, x: Any) -> Any:
                return x * 1

            @staticmethod
            def backward(ctx: Any, g: Any) -> Any:
                raise RuntimeError("no")

        def fail(*given: Any) -> None:
            raise RuntimeError("no")

        model = _linears(t, 4)
        h = t.ones(3, 2, requires_grad=True)
        for i, linear in enumerate(model):
            if i == layer:
                {
                    "leaf": linear.weight.register_hook,
                    "post": linear.bias.register_post_accumulate_grad_hook,
                    "module": linear.register_full_backward_hook,
                }.get(where, lambda hook: None)(fail)
            h = linear(h).tanh()
            if i == layer:
                if where == "tensor":
                    h.register_hook(fail)
                if where == "prehook":
                    h.grad_fn.register_prehook(fail)
                if where == "function":
                    h = Failing.apply(h)
                if where == "written":
                    with t.no_grad():
                        h.add_(1)
        (family, _, _) = (error((h.sum() + model[1].weight.sum()).backward) or "").partition(":")
        return family, [p.grad is not None for p in model.parameters()]

    same(program)


def test_a_hook_sees_which_gradients_are_there() -> None:
    def program(t: Any) -> Any:
        model, h, log = _linears(t), t.ones(3, 2), []
        for linear in model:
            h = linear(h).tanh()
            h.register_hook(lambda g: log.append([p.grad is not None for p in model.parameters()]))
        h.sum().backward()
        return log

    same(program)


def test_passes_to_some_leaves_second_passes_and_passes_of_gradients() -> None:
    def program(t: Any) -> Any:
        model, log = _linears(t), []
        _watch(model, log)
        y = model(t.ones(3, 2, requires_grad=True)).square().sum()
        y.backward(retain_graph=True, inputs=[model[1].weight, model[0].bias])
        log.append("gradients")
        t.autograd.grad(y, [model[2].weight, model[0].weight], retain_graph=True)
        log.append("recorded")
        found = t.autograd.grad(y, list(model.parameters()), create_graph=True)
        log.append("all")
        (y + sum(g.square().sum() for g in found)).backward()
        return log

    same(program)


@pytest.mark.parametrize("reentrant", [True, False])
def test_checkpoints(reentrant: bool) -> None:
    def program(t: Any) -> Any:
        model, log = _linears(t), []
        for name, p in model.named_parameters():
            p.register_hook(lambda g, n=name: log.append(n))
        x = t.ones(3, 2, requires_grad=True)
        x.register_hook(lambda g: log.append("x"))
        h = x
        for linear in model[:2]:
            h = t.utils.checkpoint.checkpoint(linear, h, use_reentrant=reentrant)
        model[2](h).sum().backward()
        return log

    same(program)


def test_hooks_of_several_tensors() -> None:
    def program(t: Any) -> Any:
        model, log = _linears(t), []
        several = t.autograd.graph.register_multi_grad_hook
        several(list(model[2].parameters()), lambda gs: log.append("all of 2"))
        several(list(model[1].parameters()), lambda g: log.append("one of 1"), mode="any")
        model[0].register_full_backward_hook(lambda *given: log.append("module 0"))
        model[1].register_full_backward_pre_hook(lambda *given: log.append("before 1"))
        model[2].weight.register_hook(lambda g: log.append("weight 2"))
        model(t.ones(3, 2, requires_grad=True)).sum().backward()
        return log

    same(program)


def test_an_optimizer_steps_while_the_pass_goes_on() -> None:
    def program(t: Any) -> Any:
        model, log = _linears(t, 3).double(), []
        with t.no_grad():
            for i, p in enumerate(model.parameters()):
                p.copy_(t.arange(p.numel()).reshape(p.shape) / 4 - 0.1 * i)
        made = {p: t.optim.SGD([p], lr=0.1) for p in model.parameters()}

        def step(p: Any) -> None:
            made[p].step()
            made[p].zero_grad()
            log.append(p.detach().clone())

        for p in model.parameters():
            p.register_post_accumulate_grad_hook(step)
        for _ in range(3):
            model(t.ones(3, 2, dtype=t.float64)).tanh().sum().backward()
        return log, list(model.parameters())

    same(program)


def test_hooks_of_a_leaf_to_which_no_gradient_comes() -> None:
    def program(t: Any) -> Any:
        class First(t.autograd.Function):  # type: ignore[misc, name-defined]
            @staticmethod
            def forward(ctx: Any, a: Any, b: Any) -> Any:
                return a * 1

            @staticmethod
            def backward(ctx: Any, g: Any) -> Any:
                return g, None

        log: list[Any] = []
        a, b, c = [tensor(t, [1.0, 2.0]) for _ in range(3)]
        b.register_hook(lambda g: log.append(("hook", g)))
        b.register_post_accumulate_grad_hook(lambda x: log.append(("post", x.grad)))
        First.apply(a, b).sum().backward()
        c.register_hook(lambda g: t.ones(2))
        log.append(error(First.apply(a, c).sum().backward))
        return log, a.grad, b.grad

    same(program)


def test_casts_of_autocast_come_in_the_order_of_pytorchs() -> None:
    def program(t: Any) -> Any:
        model, log = _linears(t), []
        _watch(model, log)
        with t.autocast("cpu", t.bfloat16):
            out = model(t.ones(3, 2, requires_grad=True))
        out.sum().backward()
        return log

    same(program)


def test_a_hook_of_a_module_comes_after_those_of_leaves_of_younger_ones_in_each_step() -> None:
    def program(t: Any) -> Any:
        model, log = _linears(t), []
        _watch(model, log)
        optimizer = t.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(8):
            optimizer.zero_grad()
            model(t.ones(3, 2, requires_grad=True)).square().sum().backward()
            optimizer.step()
        return log

    same(program)


@pytest.mark.parametrize("count", [3, 4, 7, 13])
@pytest.mark.parametrize("between", [False, True])
def test_leaves_that_one_function_completes_come_as_in_pytorchs_heap(
    count: int, between: bool
) -> None:
    def program(t: Any) -> Any:
        log: list[int] = []
        leaves = [t.ones(2, requires_grad=True) for _ in range(count)]
        for i, x in enumerate(leaves):
            x.register_post_accumulate_grad_hook(lambda _, i=i: log.append(i))
        if not between:
            t.stack(leaves).sum().backward()
            return log
        # Other functions wait meanwhile, or come from the same one.
        waiting = leaves[0].exp() + leaves[1].sin()
        stacked = t.stack([x * 2 if i % 3 == 1 else x for i, x in enumerate(leaves[1:])])
        (stacked.sum(0) + waiting).sum().backward()
        return log

    same(program)


@pytest.mark.parametrize("name", ["RNNCell", "LSTMCell", "GRUCell"])
def test_weights_of_cells_come_in_one_order(name: str) -> None:
    def program(t: Any) -> Any:
        cell, log = getattr(t.nn, name)(2, 3), []
        _watch(cell, log)
        out = cell(t.ones(4, 2, requires_grad=True))
        (out[0] if isinstance(out, tuple) else out).sum().backward()
        return log

    same(program)


def test_leaves_of_random_graphs_come_in_one_order() -> None:
    def program(t: Any, seed: int) -> Any:
        rng, log = random.Random(seed), list[int]()
        leaves = [t.ones(2, requires_grad=True) for _ in range(rng.choice([4, 6, 8]))]
        for i, x in enumerate(leaves):
            x.register_post_accumulate_grad_hook(lambda _, i=i: log.append(i))
        values = [*leaves]
        for _ in range(5):
            # Some lead to a leaf twice, and some wait while others run.
            found = [rng.choice(rng.choice([leaves, values])) for _ in range(6)]
            kind = rng.randrange(3)
            if kind == 0:
                values.append(t.stack(found).sum(0))
            elif kind == 1:
                values.append(t.addcmul(*found[:3]))
            else:
                values.append(found[0].exp() * found[1])
        t.stack(values[-3:]).sum().backward()
        return log

    for seed in range(24):
        same(lambda t, seed=seed: program(t, seed))
