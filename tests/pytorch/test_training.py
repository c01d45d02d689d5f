"""Real PyTorch trains on "webgpu": the losses are the CPU's. Needs an adapter."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.autograd import forward_ad
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from tests.pytorch.models import CNN, GPT, images, mlp, rows, texts, train
from webtorch.pytorch import device as bridge

TOLERANCE = 1e-4


def assert_same(actual: list[float], expected: list[float]) -> None:
    torch.testing.assert_close(torch.tensor(actual), torch.tensor(expected), rtol=0, atol=TOLERANCE)


@pytest.mark.one_in(3)
@pytest.mark.covers("S6")
@pytest.mark.parametrize(
    ("optimizer", "options"),
    [
        ("Adam", {}),
        ("AdamW", {"weight_decay": 0.1, "amsgrad": True}),
        ("SGD", {"momentum": 0.9, "nesterov": True}),
        ("RMSprop", {"momentum": 0.5}),
        ("Adagrad", {}),
        ("Adam", {"foreach": False}),
    ],
)
def test_mlp_losses_equal_the_cpus_over_20_steps(
    webgpu: str, optimizer: str, options: dict[str, object]
) -> None:
    expected = train(mlp(), rows(), "cpu", optimizer=optimizer, **options)
    assert_same(train(mlp(), rows(), webgpu, optimizer=optimizer, **options), expected)


@pytest.mark.one_in(3)
@pytest.mark.covers("S6")
@pytest.mark.parametrize(
    ("optimizer", "options"),
    [
        ("Adam", {"amsgrad": True, "weight_decay": 0.1, "maximize": True}),
        ("AdamW", {"weight_decay": 0.1}),
        ("SGD", {"momentum": 0.9, "dampening": 0.1, "weight_decay": 0.1}),
        ("SGD", {"momentum": 0.9, "nesterov": True}),
        ("SGD", {}),
        ("Adagrad", {"lr_decay": 0.1, "weight_decay": 0.1}),
    ],
)
def test_fused_optimizers_step_as_the_cpus(
    webgpu: str, optimizer: str, options: dict[str, object]
) -> None:
    options["fused"] = True
    expected = train(mlp(), rows(), "cpu", steps=6, optimizer=optimizer, **options)
    assert_same(train(mlp(), rows(), webgpu, steps=6, optimizer=optimizer, **options), expected)


@pytest.mark.parametrize("name", ["Adam", "SGD", "Adagrad"])
def test_fused_optimizers_under_a_gradient_scaler(webgpu: str, name: str) -> None:
    """A step with an infinity changes nothing, neither parameters nor states, nor a tensor's learning rate."""

    def run(where: str) -> list[torch.Tensor]:
        w = torch.tensor([1.0, 2.0], device=where, requires_grad=True)
        momentum = {"momentum": 0.9} if name == "SGD" else {}
        optimizer = getattr(torch.optim, name)(
            [w], lr=torch.tensor(0.1, device=where), fused=True, **momentum
        )
        scaler = torch.amp.GradScaler(where, init_scale=4.0)
        for factor in (1.0, float("inf"), 2.0):
            optimizer.zero_grad()
            scaler.scale((w * w * factor).sum()).backward()
            scaler.step(optimizer)
            scaler.update()
        state = [v for v in optimizer.state[w].values() if isinstance(v, torch.Tensor)]
        return [t.detach().cpu() for t in (w, w.grad, *state)]

    torch.testing.assert_close(run(webgpu), run("cpu"))


def test_fused_step_of_half_precision_parameters(webgpu: str) -> None:
    def run(where: str) -> torch.Tensor:
        w = torch.tensor([1.0, 2.0], device=where, dtype=torch.float16, requires_grad=True)
        optimizer = torch.optim.AdamW([w], lr=0.1, fused=True)
        for _ in range(3):
            optimizer.zero_grad()
            (w * w).sum().backward()
            optimizer.step()
        return w.detach().cpu()

    torch.testing.assert_close(run(webgpu), run("cpu"), rtol=2e-3, atol=2e-3)


def test_a_changing_learning_rate_compiles_nothing(webgpu: str) -> None:
    model = mlp()
    train(model, rows(), webgpu, steps=4)
    before = bridge.runtime().counters.misses
    train(model, rows(), webgpu, steps=10)
    # A new optimizer's first steps differ (its state is made there); the other eight are one program.
    assert bridge.runtime().counters.misses - before <= 2


@pytest.mark.one_in(2)
@pytest.mark.covers("S6")
@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
def test_cnn_losses_and_statistics_equal_the_cpus(webgpu: str, compiled: bool) -> None:
    reference, model = CNN(), CNN()
    expected = train(reference, images(), "cpu", steps=5)
    assert_same(train(model, images(), webgpu, steps=5, compiled=compiled), expected)
    for name, value in reference.state_dict().items():
        torch.testing.assert_close(model.state_dict()[name].cpu(), value, rtol=1e-3, atol=1e-4)
    x = images(7)()[0]
    with torch.no_grad():
        torch.testing.assert_close(
            model.eval()(x.to(webgpu)).cpu(), reference.eval()(x), rtol=1e-3, atol=1e-3
        )


@pytest.mark.one_in(2)
@pytest.mark.covers("S6", "Q10")
@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
def test_gpt_with_tied_weights_and_clipping_trains_as_on_the_cpu(
    webgpu: str, compiled: bool
) -> None:
    expected = train(GPT(), texts(), "cpu", steps=4, clip=1.0)
    assert_same(train(GPT(), texts(), webgpu, steps=4, clip=1.0, compiled=compiled), expected)


def test_module_to_keeps_parameters_tied_and_optimizers_valid(webgpu: str) -> None:
    model = GPT()
    weight = model.head.weight
    opt = torch.optim.SGD(model.parameters(), lr=1.0)
    model.to(webgpu)
    assert model.head.weight is model.tokens.weight is weight
    assert weight.is_webgpu
    before = weight.detach().cpu()
    model(texts()()[0].to(webgpu)).sum().backward()
    opt.step()
    assert not torch.equal(weight.detach().cpu(), before)


@pytest.mark.one_in(3)
@pytest.mark.parametrize("kind", ["LSTM", "GRU", "RNN"])
def test_recurrent_layers(webgpu: str, kind: str) -> None:
    torch.manual_seed(0)
    reference = getattr(nn, kind)(5, 7, num_layers=2, batch_first=True)
    model = getattr(nn, kind)(5, 7, num_layers=2, batch_first=True)
    model.load_state_dict(reference.state_dict())
    model.to(webgpu)
    x = torch.randn(3, 4, 5)
    reference(x)[0].square().sum().backward()
    out = model(x.to(webgpu))[0]
    out.square().sum().backward()
    torch.testing.assert_close(out.cpu(), reference(x)[0])
    for p, q in zip(reference.parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(q.grad.cpu(), p.grad, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", ["LSTMCell", "GRUCell"])
def test_recurrent_cells(webgpu: str, kind: str) -> None:
    cell = getattr(nn, kind)(5, 7)
    x = torch.randn(3, 5)
    expected = cell(x)
    actual = cell.to(webgpu)(x.to(webgpu))
    torch.testing.assert_close(
        [t.cpu() for t in actual], list(expected)
    ) if kind == "LSTMCell" else (torch.testing.assert_close(actual.cpu(), expected))


def test_autocast_multiplies_in_half_and_scales_gradients(webgpu: str) -> None:
    model = mlp().to(webgpu)
    opt = torch.optim.SGD(model.parameters(), lr=1e-2)
    scaler = torch.amp.GradScaler("webgpu", init_scale=8.0)
    x, y = (t.to(webgpu) for t in rows()())
    with torch.autocast("webgpu", dtype=torch.bfloat16):
        out = model(x)
        loss = F.cross_entropy(out, y)
    assert out.dtype is torch.bfloat16
    assert loss.dtype is torch.float32
    before = [p.detach().cpu() for p in model.parameters()]
    scaler.scale(loss).backward()
    scaler.step(opt)
    scaler.update()
    assert all(torch.isfinite(p).all() for p in model.parameters())
    assert any(
        not torch.equal(p.detach().cpu(), b)
        for p, b in zip(model.parameters(), before, strict=True)
    )


def test_second_derivatives_and_hooks(webgpu: str) -> None:
    def run(where: str) -> tuple[torch.Tensor, list[float]]:
        x = torch.tensor([0.5, -1.0, 2.0], device=where, requires_grad=True)
        seen: list[float] = []
        y = x.sin() * x
        y.register_hook(lambda g: seen.append(g.sum().item()))
        (g,) = torch.autograd.grad(y.sum(), x, create_graph=True)
        (h,) = torch.autograd.grad(g.sum(), x)
        return h.cpu(), seen

    actual, expected = run(webgpu), run("cpu")
    torch.testing.assert_close(actual[0], expected[0])
    assert actual[1] == pytest.approx(expected[1])


def test_checkpoint_and_function_transforms(webgpu: str) -> None:
    model = mlp().to(webgpu)
    x = torch.randn(4, 16, device=webgpu)
    plain = torch.autograd.grad(model(x).sum(), list(model.parameters()))
    again = torch.utils.checkpoint.checkpoint(model, x, use_reentrant=False).sum()
    for a, b in zip(torch.autograd.grad(again, list(model.parameters())), plain, strict=True):
        torch.testing.assert_close(a.cpu(), b.cpu())
    each = torch.func.vmap(lambda row: (row * row).sum())(x)
    torch.testing.assert_close(each.cpu(), (x.cpu() ** 2).sum(1))
    slope = torch.func.grad(lambda v: (v**3).sum())(x)
    torch.testing.assert_close(slope.cpu(), 3 * x.cpu() ** 2, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("use_reentrant", [False, True])
def test_checkpoints_draw_the_same_dropout_again(webgpu: str, use_reentrant: bool) -> None:
    x = torch.ones(64, device=webgpu, requires_grad=True)
    seen: list[torch.Tensor] = []

    def run(z: torch.Tensor) -> torch.Tensor:
        y = F.dropout(z, 0.5)
        seen.append(y.detach())
        return y.square()

    torch.utils.checkpoint.checkpoint(run, x, use_reentrant=use_reentrant).sum().backward()
    assert len(seen) == 2 and torch.equal(seen[0], seen[1])
    assert x.grad is not None
    torch.testing.assert_close(x.grad, 4 * seen[0])


def test_memory_is_constant_over_steps(webgpu: str) -> None:
    model = mlp()
    train(model, rows(), webgpu, steps=5)
    opt = torch.optim.Adam(model.parameters())

    def step() -> int:
        x, y = (t.to(webgpu) for t in rows()())
        loss = F.cross_entropy(model(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        del loss
        torch.webgpu.synchronize()
        return int(torch.webgpu.memory_allocated())

    for _ in range(3):
        step()
    assert len({step() for _ in range(10)}) == 1


def test_momentum_begins_at_zero_where_the_first_fused_step_fails(webgpu: str) -> None:
    # What is in new memory: not zeros.
    used = torch.full((4,), 7.0, device=webgpu) + 1
    assert used.sum().item() == 32
    del used
    p = torch.ones(4, device=webgpu, requires_grad=True)
    optimizer = torch.optim.SGD([p], lr=0.5, momentum=0.9, fused=True)
    for gradient, failed in ((float("inf"), 1.0), (1.0, 0.0), (1.0, 0.0)):
        p.grad = torch.full((4,), gradient, device=webgpu)
        optimizer.grad_scale = torch.ones((), device=webgpu)
        optimizer.found_inf = torch.tensor(failed, device=webgpu)
        optimizer.step()
    # 1 - 0.5 * 1 - 0.5 * 1.9
    torch.testing.assert_close(p.detach().cpu(), torch.full((4,), -0.45))


def test_a_scaler_that_is_not_enabled_does_nothing() -> None:
    """On any device: PyTorch's class is one for all."""
    w = torch.nn.Parameter(torch.ones(2))
    optimizer = torch.optim.SGD([w], lr=1.0)
    scaler = torch.amp.GradScaler("cpu", enabled=False)
    scaler.scale(w.sum()).backward()
    scaler.unscale_(optimizer)
    scaler.step(optimizer)
    scaler.update()
    assert w.tolist() == [0.0, 0.0]


@pytest.mark.parametrize("wants", [(True, True, True), (True, False, False), (False, True, False)])
def test_operators_called_again_give_the_gradients_that_are_wanted(
    webgpu: str, wants: tuple[bool, bool, bool]
) -> None:
    # From the third call on these are recorded without their Python; each call has values of its own.
    operators = [
        (lambda x, w, b: F.layer_norm(x, (4,), w[0], b), (3, 4), (2, 4), (4,)),
        (lambda x, w, b: F.conv2d(x, w, b, padding=1), (1, 2, 4, 4), (3, 2, 3, 3), (3,)),
        (lambda x, w, b: F.linear(x, w, b).log_softmax(-1), (3, 4), (5, 4), (5,)),
        (lambda x, w, b: F.group_norm(x, 2, w[0], b), (2, 4, 3), (2, 4), (4,)),
        (lambda x, w, b: F.gelu(x * b).softmax(-1) * w[0].mean(), (3, 4), (2, 4), (4,)),
    ]
    for run, *shapes in operators:
        for _ in range(5):
            host = [torch.randn(s).requires_grad_(n) for s, n in zip(shapes, wants, strict=True)]
            here = [t.detach().to(webgpu).requires_grad_(t.requires_grad) for t in host]
            expected, actual = run(*host), run(*here)
            torch.testing.assert_close(actual.cpu(), expected, rtol=1e-4, atol=1e-5)
            weight = torch.randn(expected.shape)
            (expected * weight).sum().backward()
            (actual * weight.to(webgpu)).sum().backward()
            for a, b in zip(here, host, strict=True):
                assert (a.grad is None) == (b.grad is None)
                if a.grad is not None:
                    torch.testing.assert_close(a.grad.cpu(), b.grad, rtol=1e-3, atol=1e-4)


def test_a_linear_layer_is_one_operator_each_way(webgpu: str) -> None:
    """Its weight is not transposed by an operator of its own, but while forward mode is on."""
    seen: list[str] = []

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(
            self, operator: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            seen.append(operator.__name__)
            return operator(*args, **(kwargs or {}))

    layer, x = nn.Linear(3, 2).to(webgpu), torch.ones(2, 4, 3, device=webgpu, requires_grad=True)
    g = torch.ones(2, 4, 2, device=webgpu)

    def run() -> list[str]:
        seen.clear()
        with Watch():
            layer(x).backward(g)
        return [n for n in seen if "linear" in n or "mm" in n]

    once = ["linear.default", "linear_backward.default"]
    assert run() == once
    with forward_ad.dual_level():
        assert "addmm.default" in run()
    assert run() == once


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("shape", [(3,), (4, 3), (2, 4, 3), (0, 3)])
def test_gradients_of_linear_layers(webgpu: str, bias: bool, shape: tuple[int, ...]) -> None:
    """Of every order, and forward."""

    def run(where: str) -> list[torch.Tensor]:
        torch.manual_seed(0)
        x, w, b = torch.randn(shape), torch.randn(2, 3), torch.randn(2)
        given = [t.to(where).requires_grad_() for t in ((x, w, b) if bias else (x, w))]
        out = F.linear(*given)
        first = torch.autograd.grad(out.square().sum(), given, create_graph=True)
        second = torch.autograd.grad(sum(g.square().sum() for g in first), given)
        with forward_ad.dual_level():
            dual = forward_ad.make_dual(given[0], torch.ones_like(given[0]))
            tangent = forward_ad.unpack_dual(F.linear(dual, *given[1:])).tangent
        return [t.detach().cpu() for t in (out, *first, *second, tangent, F.linear(*given))]

    torch.testing.assert_close(run(webgpu), run("cpu"), rtol=1e-4, atol=1e-4)
