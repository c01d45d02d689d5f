"""`torch.compile(backend="webgpu")`: captured forward and backward programs. Needs an adapter."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from tests.pytorch.models import mlp, rows, train
from webtorch.pytorch import device as bridge


@pytest.fixture(autouse=True)
def _fresh_dynamo() -> None:
    torch._dynamo.reset()


def test_backend_is_registered_without_an_import() -> None:
    assert "webgpu" in torch._dynamo.list_backends()


@pytest.mark.covers("S2")
def test_mlp_losses_equal_the_cpus_over_20_steps(webgpu: str) -> None:
    expected = train(mlp(), rows(), "cpu")
    actual = train(mlp(), rows(), webgpu, compiled=True)
    torch.testing.assert_close(torch.tensor(actual), torch.tensor(expected), rtol=0, atol=1e-4)


def test_replays_record_nothing(webgpu: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = mlp().to(webgpu)
    compiled = torch.compile(model, backend="webgpu")
    x = torch.randn(8, 16, device=webgpu)
    expected = model(x)
    with torch.no_grad():
        compiled(x)

        def refuse(*args: object, **kwargs: object) -> None:
            raise AssertionError("a replayed graph ran an operator in Python")

        monkeypatch.setattr("webtorch.pytorch.dynamo.CompiledGraph.evaluate", refuse)
        torch.testing.assert_close(compiled(x).cpu(), expected.detach().cpu())


def test_parameters_are_read_anew_at_each_call(webgpu: str) -> None:
    model = nn.Linear(3, 2).to(webgpu)
    compiled = torch.compile(model, backend="webgpu")
    x = torch.ones(1, 3, device=webgpu)
    first = compiled(x).cpu()
    with torch.no_grad():
        model.weight.mul_(2)
        model.bias.zero_()
    torch.testing.assert_close(compiled(x).cpu(), model(x).cpu())
    assert not torch.equal(compiled(x).cpu(), first)


def test_other_shapes_strides_and_offsets(webgpu: str) -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return (x.relu() @ x.t()).softmax(-1)

    compiled = torch.compile(f, backend="webgpu")
    base = torch.randn(12, 6, device=webgpu)
    for x in (base, base[2:7], base[:, 1:4], base.t(), base[1:, ::2], base[3:8]):
        torch.testing.assert_close(compiled(x).cpu(), f(x.cpu()), rtol=1e-5, atol=1e-5)


def test_dynamic_shapes(webgpu: str) -> None:
    compiled = torch.compile(lambda x: x.sum(0) * x.shape[0], backend="webgpu", dynamic=True)
    for n in (3, 4, 7):
        x = torch.randn(n, 2)
        torch.testing.assert_close(compiled(x.to(webgpu)).cpu(), x.sum(0) * n)


def test_mutation_views_and_several_results(webgpu: str) -> None:
    def f(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        x.add_(1)
        z = x * y
        z[0] = 5
        return z, z.t(), x.view(-1), y

    compiled = torch.compile(f, backend="webgpu")
    for _ in range(3):
        x, y = torch.randn(2, 3), torch.randn(2, 3)
        a, b = x.to(webgpu), y.to(webgpu)
        actual, expected = compiled(a, b), f(x, y)
        for got, want in zip((*actual, a), (*expected, x), strict=True):
            torch.testing.assert_close(got.cpu(), want)
        assert actual[2].untyped_storage() is a.untyped_storage()
        assert actual[3] is b


def test_batch_statistics_are_updated(webgpu: str) -> None:
    reference, model = nn.BatchNorm1d(4), nn.BatchNorm1d(4).to(webgpu)
    compiled = torch.compile(model, backend="webgpu")
    for seed in range(3):
        torch.manual_seed(seed)
        x = torch.randn(8, 4)
        torch.testing.assert_close(compiled(x.to(webgpu)).cpu(), reference(x), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(model.running_mean.cpu(), reference.running_mean)
    torch.testing.assert_close(model.running_var.cpu(), reference.running_var)
    assert model.num_batches_tracked.item() == 3


def test_dropout_draws_anew_at_each_call_and_backward_uses_the_same_mask(webgpu: str) -> None:
    compiled = torch.compile(lambda x: F.dropout(x, 0.5), backend="webgpu")
    x = torch.ones(256, device=webgpu, requires_grad=True)
    masks = []
    for _ in range(3):
        out = compiled(x)
        (g,) = torch.autograd.grad(out.sum(), x)
        assert torch.equal(out.detach().cpu(), g.cpu())
        masks.append(g.cpu())
    assert not torch.equal(masks[1], masks[2])


def test_graph_breaks_and_reads(webgpu: str) -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        if y.sum().item() > 0:
            return y + 1
        return y - 1

    compiled = torch.compile(f, backend="webgpu")
    for sign in (1.0, -1.0):
        x = torch.full((3,), sign)
        torch.testing.assert_close(compiled(x.to(webgpu)).cpu(), f(x))


def test_constants_and_factories(webgpu: str) -> None:
    table = torch.tensor([1.0, 2.0, 3.0])

    def f(x: torch.Tensor) -> torch.Tensor:
        places = torch.arange(x.shape[0], device=x.device)
        return x + places + torch.ones(3, 3, device=x.device).tril() @ table.to(x.device)

    x = torch.randn(3)
    torch.testing.assert_close(torch.compile(f, backend="webgpu")(x.to(webgpu)).cpu(), f(x))


def test_what_the_function_itself_moves_may_be_on_the_cpu(webgpu: str) -> None:
    weight = torch.randn(3, 2, device=webgpu)
    compiled = torch.compile(lambda x: x.to(webgpu) @ weight, backend="webgpu")
    for seed in range(3):
        x = torch.full((2, 3), float(seed))
        torch.testing.assert_close(compiled(x).cpu(), x @ weight.cpu())


def test_compiled_optimizer_step(webgpu: str) -> None:
    torch.manual_seed(0)
    weights = [torch.randn(3, 2), torch.randn(2)]
    grads = [torch.randn(3, 2), torch.randn(2)]

    def run(where: str, compiled: bool) -> list[torch.Tensor]:
        params = [w.clone().to(where).requires_grad_() for w in weights]
        opt = torch.optim.SGD(params, lr=0.1, momentum=0.9)
        step = torch.compile(opt.step, backend="webgpu") if compiled else opt.step
        for _ in range(3):
            for p, g in zip(params, grads, strict=True):
                p.grad = g.to(where)
            step()
        return [p.detach().cpu() for p in params]

    torch.testing.assert_close(run(webgpu, True), run("cpu", False))


def test_inputs_on_the_cpu_are_refused_with_the_next_step(webgpu: str) -> None:
    compiled = torch.compile(lambda x: x + 1, backend="webgpu")
    with pytest.raises(Exception, match=r"x\.to\('webgpu'\)"):
        compiled(torch.ones(3))


def test_unsupported_operators_are_named(webgpu: str) -> None:
    compiled = torch.compile(torch.linalg.cholesky_ex, backend="webgpu")
    with pytest.raises(Exception, match="cholesky"):
        compiled(torch.eye(2, device=webgpu))
    assert bridge.is_open()
