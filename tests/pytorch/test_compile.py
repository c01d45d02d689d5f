"""`torch.compile(backend="webgpu")`: captured forward and backward programs. Needs an adapter."""

from __future__ import annotations

import contextlib
import copy
import gc
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from tests.pytorch.models import Block, mlp, rows, train
from webtorch.pytorch import device as bridge
from webtorch.pytorch import dynamo, fallback, programs
from webtorch.tensors.storage import Storage


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


def test_the_default_backend_leaves_this_devices_graphs_to_ours(
    webgpu: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = []
    original = dynamo.compile_backend

    def counted(*args: Any, **options: Any) -> Any:
        made.append(args[0])
        return original(*args, **options)

    monkeypatch.setattr(dynamo, "compile_backend", counted)
    x, y = rows()()
    losses = {}
    for device in ("cpu", webgpu):
        model = mlp().to(device)
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
        on_device = device == webgpu
        forward = torch.compile(model, mode="reduce-overhead") if on_device else model
        step = torch.compile(optimizer.step) if on_device else optimizer.step
        losses[device] = []
        for _ in range(3):
            optimizer.zero_grad()
            loss = F.cross_entropy(forward(x.to(device)), y.to(device))
            loss.backward()
            step()
            losses[device].append(loss.item())
    torch.testing.assert_close(losses[webgpu], losses["cpu"], rtol=0, atol=1e-4)
    # The optimizer counts its steps on the device.
    assert all(state["step"].is_webgpu for state in optimizer.state.values())
    assert len(made) >= 2
    made.clear()
    made_here = torch.compile(lambda n: torch.zeros(n, device=webgpu) + 2)
    assert made_here(3).tolist() == [2, 2, 2]
    assert len(made) == 1


def test_replays_record_nothing(webgpu: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = mlp().to(webgpu)
    compiled = torch.compile(model, backend="webgpu")
    x = torch.randn(8, 16, device=webgpu)
    expected = model(x)
    with torch.no_grad():
        compiled(x)

        def refuse(*args: object, **kwargs: object) -> None:
            raise AssertionError("a replayed graph ran an operator in Python")

        monkeypatch.setattr("webtorch.pytorch.dynamo.Graph.evaluate", refuse)
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


def test_inputs_on_both_devices_are_refused_with_the_next_step(webgpu: str) -> None:
    compiled = torch.compile(lambda x, y: torch.add(x, y), backend="webgpu")
    with pytest.raises(Exception, match="device"):
        compiled(torch.ones(3), torch.ones(3, device=webgpu))


def test_a_model_on_the_cpu_is_uploaded_once(webgpu: str, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.GELU(), nn.Linear(8, 3))
    reference = copy.deepcopy(model)
    compiled = torch.compile(model, backend="webgpu")
    x = torch.randn(5, 6)
    for m in (model, reference):
        m.eval()
    with torch.no_grad():
        out = compiled(x)
        assert out.device.type == "cpu"
        torch.testing.assert_close(out, reference(x), rtol=1e-4, atol=1e-5)
        uploads = []
        original = programs.uploaded
        monkeypatch.setattr(
            "webtorch.pytorch.programs.uploaded",
            lambda t, keeps: uploads.append(original(t, keeps)) or uploads[-1],
        )
        before = {id(c) for _, c in programs._uploads.values()}
        compiled(x)
        parameters = sum(p.numel() for p in (*model.parameters(), *model.buffers()) if p.dim())
        kept = [u for u in uploads if id(u) in before and u.dim()]
        assert sum(u.numel() for u in kept) == parameters
        # What changes is uploaded anew.
        for m in (model, reference):
            m[0].weight.mul_(2)
        torch.testing.assert_close(compiled(x), reference(x), rtol=1e-4, atol=1e-5)


def test_training_a_model_on_the_cpu(webgpu: str) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.GELU(), nn.Linear(8, 3))
    reference = copy.deepcopy(model)
    compiled = torch.compile(model, backend="webgpu")
    steps = [torch.optim.SGD(m.parameters(), lr=0.1) for m in (model, reference)]
    for seed in range(4):
        x = torch.randn(5, 6, generator=torch.Generator().manual_seed(seed))
        losses = []
        for run, step in zip((compiled, reference), steps, strict=True):
            loss = run(x).square().mean()
            step.zero_grad()
            loss.backward()
            step.step()
            losses.append(loss.item())
        assert losses[0] == pytest.approx(losses[1], abs=1e-5)
    for (name, actual), expected in zip(
        model.state_dict().items(), reference.state_dict().values(), strict=True
    ):
        assert actual.device.type == "cpu"
        torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-5, msg=name)


def test_attention_of_a_model_on_the_cpu(webgpu: str) -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return F.scaled_dot_product_attention(x, x * 2, x + 1, is_causal=True)

    x, y = (torch.randn(2, 3, 5, 4).requires_grad_() for _ in range(2))
    y.data.copy_(x)
    torch.compile(f, backend="webgpu")(x).square().sum().backward()
    f(y).square().sum().backward()
    torch.testing.assert_close(x.grad, y.grad, rtol=1e-4, atol=1e-4)


def _operators(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """Collect the operators of every graph that is compiled."""
    graphs: list[list[str]] = []
    original = dynamo.Graph.__init__

    def collect(self: dynamo.Graph, gm: torch.fx.GraphModule, *args: Any, **options: Any) -> None:
        graphs.append([str(n.target) for n in gm.graph.nodes if n.op == "call_function"])
        original(self, gm, *args, **options)

    monkeypatch.setattr(dynamo.Graph, "__init__", collect)
    return graphs


def test_attention_is_one_node_forward_and_backward(
    webgpu: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    graphs = _operators(monkeypatch)
    block = Block(16, 2).to(webgpu)
    torch.compile(block, backend="webgpu")(torch.randn(2, 5, 16, device=webgpu)).sum().backward()
    forward, backward = graphs
    assert forward.count("webgpu.attention.default") == 1
    assert backward.count("webgpu.attention_backward.default") == 1
    assert not any("softmax" in o for o in (*forward, *backward))


@pytest.mark.parametrize("kernel", ["fused", "products"])
@pytest.mark.parametrize("compiled", [False, True])
def test_attention_and_its_gradients(
    webgpu: str, monkeypatch: pytest.MonkeyPatch, kernel: str, compiled: bool
) -> None:
    monkeypatch.setenv("WEBTORCH_ATTENTION", kernel)
    shapes: Any
    for shapes, mask, causal in (
        (((2, 4, 6, 8), (2, 2, 5, 8)), None, True),
        (((2, 4, 6, 8), (2, 4, 5, 8)), torch.rand(6, 5) > 0.3, False),
        (((3, 6, 8), (3, 5, 8)), torch.randn(6, 5), False),
    ):
        torch._dynamo.reset()
        q, k = shapes
        given = [torch.randn(s) for s in (q, k, k)]
        options = {"is_causal": causal, "enable_gqa": q[1] != k[1], "scale": 0.3}
        expected = _attention_and_gradients(given, mask, options, "cpu", False)
        actual = _attention_and_gradients(given, mask, options, webgpu, compiled)
        torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-4)


def _attention_and_gradients(
    given: list[torch.Tensor],
    mask: torch.Tensor | None,
    options: dict[str, Any],
    where: str,
    compiled: bool,
) -> list[torch.Tensor]:
    def f(*operands: torch.Tensor) -> torch.Tensor:
        return F.scaled_dot_product_attention(*operands, m, **options)

    operands = [g.clone().to(where).requires_grad_() for g in given]
    m = None if mask is None else mask.to(where)
    out = (torch.compile(f, backend="webgpu") if compiled else f)(*operands)
    (out * torch.arange(8, device=where)).sum().backward()
    return [t.detach().cpu() for t in (out, *(o.grad for o in operands))]


def test_attention_can_be_differentiated_twice_and_transformed(webgpu: str) -> None:
    x = torch.randn(2, 4, 3)

    def f(t: torch.Tensor) -> torch.Tensor:
        return F.scaled_dot_product_attention(t, t, t).square().sum()

    def second(t: torch.Tensor) -> torch.Tensor:
        t = t.clone().requires_grad_()
        (g,) = torch.autograd.grad(f(t), t, create_graph=True)
        return torch.autograd.grad(g.square().sum(), t)[0]

    torch.testing.assert_close(second(x.to(webgpu)).cpu(), second(x), rtol=1e-4, atol=1e-4)
    for transform in (torch.func.grad(f), torch.func.vmap(f)):
        torch.testing.assert_close(
            transform(x.to(webgpu)).cpu(), transform(x), rtol=1e-4, atol=1e-4
        )
    tangent = torch.ones(2, 4, 3)
    _, actual = torch.func.jvp(f, (x.to(webgpu),), (tangent.to(webgpu),))
    torch.testing.assert_close(actual.cpu(), torch.func.jvp(f, (x,), (tangent,))[1])


def test_second_derivatives_of_attention_whose_operands_depend_on_each_other(webgpu: str) -> None:
    x = torch.randn(2, 4, 3)

    def first(t: torch.Tensor, one: bool) -> torch.Tensor:
        t = t.clone().requires_grad_()
        key = t if one else t * 2
        out = F.scaled_dot_product_attention(t, key, key if one else key * 0.5)
        return torch.autograd.grad(out.square().sum(), t, create_graph=True)[0].detach()

    for one in (True, False):
        # Of rank 4 all three operands are one tensor, with no view between.
        actual = first(x[None].to(webgpu), one).cpu()[0]
        torch.testing.assert_close(actual, first(x, one), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("kernel", ["fused", "products"])
def test_results_of_attention_can_be_written_in_place(
    webgpu: str, monkeypatch: pytest.MonkeyPatch, kernel: str
) -> None:
    monkeypatch.setenv("WEBTORCH_ATTENTION", kernel)
    x = torch.randn(2, 4, 3)
    grads = []
    for device in ("cpu", webgpu):
        t = x.clone().to(device).requires_grad_()
        out = F.scaled_dot_product_attention(t, t * 2, t)
        out += t
        out.square().sum().backward()
        grads.append(t.grad.cpu())
    torch.testing.assert_close(grads[1], grads[0], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("what", ["input", "result"])
@pytest.mark.parametrize("transposed", [False, True])
def test_overwriting_what_is_saved_is_an_error(webgpu: str, what: str, transposed: bool) -> None:
    def f(x: torch.Tensor, w: torch.Tensor) -> Any:
        e = x.exp() if what == "result" else x
        return e, (e.t() if transposed else e) @ w

    for device, backend in (("cpu", "aot_eager"), (webgpu, "webgpu")):
        torch._dynamo.reset()
        x = torch.randn(3, 3, device=device, requires_grad=True)
        w = torch.ones(3, 2, device=device, requires_grad=True)
        e, y = torch.compile(f, backend=backend)(x, w)
        with torch.no_grad():
            (x if what == "input" else e).mul_(0)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            y.sum().backward()


def test_conjugates_and_negatives_that_are_not_computed_yet(webgpu: str) -> None:
    z = torch.randn(3, 2, dtype=torch.complex64)

    def write(t: torch.Tensor) -> torch.Tensor:
        t.mul_(2)
        return t + 1

    for run in (lambda t: t * 2 + 1, write):
        for take in (lambda t: t.conj(), lambda t: t.conj().imag):
            torch._dynamo.reset()
            given = z.clone().to(webgpu)
            expected = z.clone()
            actual = torch.compile(run, backend="webgpu")(take(given))
            torch.testing.assert_close(actual.cpu(), run(take(expected)))
            torch.testing.assert_close(given.cpu(), expected)


@pytest.mark.parametrize("needs_grad", [False, True])
@pytest.mark.parametrize(
    "f",
    [
        lambda x: x.transpose(1, 3).softmax(-1),
        lambda x: x.transpose(1, 3).clone(),
        lambda x: x.contiguous(memory_format=torch.channels_last),
        lambda x: torch.zeros_like(x.transpose(1, 3)),
        lambda x: torch.as_strided(x.transpose(1, 3).softmax(-1), (3, 2), (2, 5), 1),
    ],
)
def test_results_lie_in_memory_as_pytorchs(
    webgpu: str, f: Callable[[torch.Tensor], torch.Tensor], needs_grad: bool
) -> None:
    def several(x: torch.Tensor) -> Any:
        y = f(x) + 0 if needs_grad else f(x)
        return y, y.transpose(0, 1), y[1]

    x = torch.randn(2, 3, 4, 6)
    expected = torch.compile(several, backend="aot_eager")(x.clone().requires_grad_(needs_grad))
    torch._dynamo.reset()
    given = x.to(webgpu).requires_grad_(needs_grad)
    actual = torch.compile(several, backend="webgpu")(given)
    for a, e in zip(actual, expected, strict=True):
        assert a.stride() == e.stride()
        torch.testing.assert_close(a.cpu(), e, rtol=1e-5, atol=1e-6)


def test_overlapping_inputs_that_are_written(webgpu: str) -> None:
    def f(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        a.mul_(2)
        return a + b

    given, x = torch.arange(6.0).to(webgpu), torch.arange(6.0)
    actual = torch.compile(f, backend="webgpu")(given[:4], given[2:])
    assert actual.tolist() == f(x[:4], x[2:]).tolist()
    assert given.tolist() == x.tolist()


def _large_storages() -> int:
    """Return how many matrices live on the device."""
    gc.collect()
    return sum(type(x) is Storage and x.elements >= 64 * 64 for x in gc.get_objects())


def test_what_a_step_computes_does_not_outlive_it(webgpu: str) -> None:
    weights = [torch.randn(64, 64, device=webgpu, requires_grad=True) for _ in range(4)]

    def f(x: torch.Tensor) -> torch.Tensor:
        for w in weights:
            x = torch.tanh(x @ w)
        return x.sum()

    compiled = torch.compile(f, backend="webgpu")
    torch.webgpu.synchronize()
    before, held = torch.webgpu.memory_allocated(), _large_storages()
    for _ in range(2):
        compiled(torch.randn(64, 64, device=webgpu)).backward()
        for w in weights:
            w.grad = None
        torch.webgpu.synchronize()
        assert _large_storages() == held
        # On webtorch's CPU backend programs keep the memory of their temporaries, as far as these are small.
        if bridge.runtime().backend.name == "webgpu":
            assert torch.webgpu.memory_allocated() < before + 64 * 64 * 4


def test_parameters_on_the_cpu_may_be_replaced(webgpu: str) -> None:
    model = nn.Linear(3, 2)
    x = torch.randn(4, 3)
    compiled = torch.compile(model, backend="webgpu")
    with torch.no_grad():
        compiled(x)
        model.weight.data = torch.randn(2, 3)
        torch.testing.assert_close(compiled(x), model(x), rtol=1e-4, atol=1e-5)
    torch._dynamo.reset()
    with torch.inference_mode():
        model = nn.Linear(3, 2)
        compiled = torch.compile(model, backend="webgpu")
        for _ in range(2):
            torch.testing.assert_close(compiled(x), model(x), rtol=1e-4, atol=1e-5)
            model.weight.mul_(2)


def test_marked_dimensions_have_one_program_form(
    webgpu: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = Block(16, 2)
    reference = copy.deepcopy(model)
    compiled = torch.compile(model.to(webgpu), backend="webgpu")
    counts: list[int] = []
    original = programs.Programs._capture
    monkeypatch.setattr(
        "webtorch.pytorch.programs.Programs._capture",
        lambda self, *args: counts.append(1) or original(self, *args),
    )
    captures = []
    for n in (4, 7, 5, 11, 12):
        x = torch.randn(2, n, 16)
        y = x.to(webgpu)
        torch._dynamo.mark_dynamic(y, 1)
        out = compiled(y)
        out.square().mean().backward()
        expected = reference(x)
        expected.square().mean().backward()
        torch.testing.assert_close(out.cpu(), expected, rtol=1e-4, atol=1e-5)
        captures.append(len(counts))
    # The forward and the backward graph were recorded at 4, 5, 6, 9 and 12 for the first size, and, to
    # compare, at 7 and 11 and at twice these.
    assert captures == [10, 14, 14, 18, 18]
    for p, q in zip(model.parameters(), reference.parameters(), strict=True):
        torch.testing.assert_close(p.grad.cpu(), q.grad, rtol=1e-3, atol=1e-4)


def test_unbacked_sizes(webgpu: str) -> None:
    compiled = torch.compile(lambda x: x.softmax(0) * x.shape[0], backend="webgpu", fullgraph=True)
    for n in (1, 3, 5, 8):
        x = torch.randn(n, 4)
        y = x.to(webgpu)
        torch._dynamo.decorators.mark_unbacked(y, 0)
        torch.testing.assert_close(compiled(y).cpu(), x.softmax(0) * n)


def test_numbers_that_change(webgpu: str, monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = torch.compile(lambda x, a, n: x * a + n, backend="webgpu")
    x = torch.randn(3)
    for a, n in ((0.5, 2), (0.25, 3), (1.5, 4), (2.5, 9)):
        torch.testing.assert_close(compiled(x.to(webgpu), a, n).cpu(), x * a + n)


def test_what_is_saved_can_be_seen_and_kept(webgpu: str) -> None:
    weight = torch.randn(4, 4)

    def f(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return (x @ w).tanh().exp().sum()

    packed: list[torch.Size] = []

    def pack(t: torch.Tensor) -> torch.Tensor:
        packed.append(t.shape)
        return t.cpu()

    compiled = torch.compile(f, backend="webgpu")
    x = torch.randn(2, 4)
    expected = torch.func.grad(f, 1)(x, weight)
    for hooks in (False, True, False):
        w = weight.to(webgpu).requires_grad_()
        with (
            torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t.to(webgpu))
            if hooks
            else (contextlib.nullcontext())
        ):
            out = compiled(x.to(webgpu), w)
        with torch._functorch.config.patch(donated_buffer=False):
            out.backward(retain_graph=True)
            out.backward()
        torch.testing.assert_close(w.grad.cpu(), 2 * expected, rtol=1e-4, atol=1e-5)
    assert torch.Size([2, 4]) in packed


@pytest.mark.parametrize("name", ["SGD", "Adam", "AdamW", "RMSprop", "Adagrad"])
def test_compiled_optimizer_steps(webgpu: str, name: str) -> None:
    weights = [torch.randn(3, 2), torch.randn(2)]

    def run(where: str) -> list[torch.Tensor]:
        params = [w.clone().to(where).requires_grad_() for w in weights]
        opt = getattr(torch.optim, name)(params, lr=0.1)
        step = torch.compile(opt.step, backend="webgpu") if where == webgpu else opt.step
        for i in range(4):
            for p in params:
                p.grad = torch.full_like(p, 0.5 + i)
            step()
        # Steps are counted on the device, so that no step waits for it.
        counts = [s["step"] for s in opt.state.values() if "step" in s]
        assert name == "Adagrad" or all(c.device.type == where for c in counts)
        return [p.detach().cpu() for p in params]

    torch.testing.assert_close(run(webgpu), run("cpu"), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["SGD", "Adam", "AdamW", "Adagrad"])
@pytest.mark.parametrize("whole", [False, True], ids=["step", "training step"])
def test_compiled_steps_of_fused_optimizers(webgpu: str, name: str, whole: bool) -> None:
    x = torch.randn(8, 3)

    def run(where: str) -> list[torch.Tensor]:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)).to(where)
        opt = getattr(torch.optim, name)(model.parameters(), lr=0.1, fused=True)
        inputs = x.to(where)

        def loss() -> torch.Tensor:
            return model(inputs).square().mean()

        def train() -> None:
            opt.zero_grad()
            loss().backward()
            opt.step()

        compiled = where == webgpu
        step = torch.compile(opt.step, backend="webgpu") if compiled else opt.step
        train = torch.compile(train, backend="webgpu") if compiled else train
        for _ in range(4):
            if whole:
                train()
                continue
            opt.zero_grad()
            # Pending when the step begins, and computed at its end.
            loss().backward()
            step()
        return [p.detach().cpu() for p in model.parameters()]

    torch.testing.assert_close(run(webgpu), run("cpu"), rtol=1e-4, atol=1e-5)


def test_nothing_of_ours_is_traced(webgpu: str) -> None:
    def step(x: torch.Tensor) -> torch.Tensor:
        y = x + 1
        torch.webgpu.synchronize()
        assert torch.webgpu.memory_allocated() > 0
        print(y)  # noqa: T201
        return y * torch.webgpu.device_count()

    pending = torch.ones(3, device=webgpu).relu() * 3
    assert torch.compile(step, backend="webgpu")(pending).tolist() == [4.0, 4.0, 4.0]
    codes = [code() for code in torch._dynamo.convert_frame.input_codes.seen]
    traced = {(c.co_filename, c.co_name) for c in codes if c is not None}
    assert (__file__, "step") in traced
    assert not [t for t in traced if "webtorch" in t[0]]


def test_results_that_the_function_moves_to_the_cpu(webgpu: str) -> None:
    compiled = torch.compile(lambda x: ((x * 2).cpu(), x + 1), backend="webgpu")
    x = torch.randn(3)
    for _ in range(2):
        there, here = compiled(x.to(webgpu))
        assert there.device.type == "cpu" and here.device.type == "webgpu"
        torch.testing.assert_close(there, x * 2)
        torch.testing.assert_close(here.cpu(), x + 1)


def test_exported_programs_run(webgpu: str) -> None:
    model = Block(16, 2).eval()
    x = torch.randn(2, 5, 16)
    length = torch.export.Dim("length", min=2, max=32)
    program = torch.export.export(copy.deepcopy(model), (x,), dynamic_shapes=({1: length},))
    moved = program.module().to(webgpu)
    compiled = torch.compile(moved, backend="webgpu")
    with torch.no_grad():
        for n in (5, 9):
            x = torch.randn(2, n, 16)
            torch.testing.assert_close(moved(x.to(webgpu)).cpu(), model(x), rtol=1e-4, atol=1e-5)
            torch.testing.assert_close(compiled(x.to(webgpu)).cpu(), model(x), rtol=1e-4, atol=1e-5)


def test_a_cache_that_a_graph_writes_stays_where_it_is(webgpu: str) -> None:
    def f(cache: torch.Tensor, at: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        cache.index_copy_(0, at, x)
        return cache.sum()

    compiled = torch.compile(f, backend="webgpu")
    cache, expected = torch.zeros(6, 2, device=webgpu), torch.zeros(6, 2)
    place = cache.data_ptr()
    for i in range(4):
        x = torch.full((1, 2), float(i + 1))
        at = torch.tensor([i])
        total = compiled(cache, at.to(webgpu), x.to(webgpu))
        assert total.item() == f(expected, at, x).item()
    assert cache.data_ptr() == place
    torch.testing.assert_close(cache.cpu(), expected)


# ---- operators that no program can hold ---------------------------------------------------------


def _twice_sine(x: torch.Tensor) -> torch.Tensor:
    return x.sin() * 2


@pytest.fixture(scope="module")
def custom() -> Any:
    """Custom operators: of PyTorch's composition, of a kernel for the device, one that writes, one for the CPU only."""

    # Named like an operator of PyTorch's that the compiler has.
    @torch.library.custom_op("webtorch_tests::silu", mutates_args=())
    def silu(x: torch.Tensor, scale: float) -> torch.Tensor:
        return _twice_sine(x) * scale

    @silu.register_fake
    def _(x: torch.Tensor, scale: float) -> torch.Tensor:
        return torch.empty_like(x)

    @torch.library.custom_op("webtorch_tests::silu_backward", mutates_args=())
    def silu_backward(g: torch.Tensor, x: torch.Tensor, scale: float) -> torch.Tensor:
        return g * x.cos() * (2 * scale)

    @silu_backward.register_fake
    def _(g: torch.Tensor, x: torch.Tensor, scale: float) -> torch.Tensor:
        return torch.empty_like(x)

    def setup(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(inputs[0])
        ctx.scale = inputs[1]

    def backward(ctx: Any, g: torch.Tensor) -> Any:
        return torch.ops.webtorch_tests.silu_backward(g, ctx.saved_tensors[0], ctx.scale), None

    silu.register_autograd(backward, setup_context=setup)

    @torch.library.custom_op("webtorch_tests::plain_backward", mutates_args=())
    def plain_backward(x: torch.Tensor) -> torch.Tensor:
        return x.exp()

    @plain_backward.register_fake
    def _(x: torch.Tensor) -> torch.Tensor:
        return torch.empty_like(x)

    # Its backward is operators that programs have.
    plain_backward.register_autograd(
        lambda ctx, g: g * ctx.saved_tensors[0],
        setup_context=lambda ctx, inputs, output: ctx.save_for_backward(output),
    )

    @torch.library.custom_op("webtorch_tests::push", mutates_args=("cache",))
    def push(cache: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        cache[:-1] = cache[1:].clone()
        cache[-1] = x
        return cache.sum(0)

    @push.register_fake
    def _(cache: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        return torch.empty_like(x)

    @torch.library.custom_op("webtorch_tests::halves", mutates_args=(), device_types="cpu")
    def halves(x: torch.Tensor, sizes: list[int]) -> list[torch.Tensor]:
        return [part.clone() for part in x.split(sizes)]

    @halves.register_fake
    def _(x: torch.Tensor, sizes: list[int]) -> list[torch.Tensor]:
        return [x.new_empty(n, *x.shape[1:]) for n in sizes]

    halves.register_kernel("webgpu")(lambda x, sizes: [p.clone() for p in x.split(sizes)])

    @torch.library.custom_op("webtorch_tests::host_only", mutates_args=(), device_types="cpu")
    def host_only(x: torch.Tensor) -> torch.Tensor:
        return torch.from_numpy(x.numpy() + 1)

    @host_only.register_fake
    def _(x: torch.Tensor) -> torch.Tensor:
        return torch.empty_like(x)

    return torch.ops.webtorch_tests


def _called(name: str) -> int:
    counts = torch.webgpu.eager_call_counts()
    return sum(n for op, n in counts.items() if name in op)


class _Custom(nn.Module):
    """A network with custom operators inside, the gradients of one of them by another one."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(6, 8), nn.Linear(8, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        ops = torch.ops.webtorch_tests
        h = self.first(x).tanh()
        h = ops.silu(h, 0.5) + h
        left, right = h.chunk(2, -1)
        return self.last(torch.cat([ops.plain_backward(left), right], -1).relu())


@pytest.mark.parametrize("where", ["webgpu", "cpu"])
def test_custom_operators_train(webgpu: str, custom: Any, where: str) -> None:
    reference = _Custom()
    model = copy.deepcopy(reference).to(where)
    compiled = torch.compile(model, backend="webgpu")
    before = {n: _called(f"{n}.") for n in ("silu", "silu_backward", "plain_backward")}
    for seed in range(3):
        torch.manual_seed(seed)
        x = torch.randn(4, 6)
        y = x.to(where).requires_grad_()
        x.requires_grad_()
        expected, actual = reference(x), compiled(y)
        assert actual.device.type == where
        torch.testing.assert_close(actual.cpu(), expected, rtol=1e-4, atol=1e-5)
        expected.square().sum().backward()
        actual.square().sum().backward()
        torch.testing.assert_close(y.grad.cpu(), x.grad, rtol=1e-4, atol=1e-5)
        for p, q in zip(model.parameters(), reference.parameters(), strict=True):
            torch.testing.assert_close(p.grad.cpu(), q.grad, rtol=1e-4, atol=1e-5)
            p.grad = q.grad = None
    assert {n: _called(f"{n}.") - before[n] for n in before} == dict.fromkeys(before, 3)
    with torch.no_grad():
        x = torch.randn(4, 6)
        torch.testing.assert_close(compiled(x.to(where)).cpu(), reference(x), rtol=1e-4, atol=1e-5)
    assert not torch.webgpu.fallback_counts()


def test_custom_operators_without_a_graph_break_at_any_size(webgpu: str, custom: Any) -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        y = (x * x.shape[0]).t().contiguous()
        y = torch.ops.webtorch_tests.silu(y, 1.0 / y.shape[1])
        left, right = torch.ops.webtorch_tests.halves(y, [1, 2])
        return (left + right).sum(0) * y.numel(), right

    compiled = torch.compile(f, backend="webgpu", fullgraph=True, dynamic=True)
    for n in (4, 5, 9, 6):
        x = torch.randn(n, 3)
        for got, want in zip(compiled(x.to(webgpu)), f(x), strict=True):
            torch.testing.assert_close(got.cpu(), want, rtol=1e-4, atol=1e-5)


def test_custom_operators_that_write(webgpu: str, custom: Any) -> None:
    def f(cache: torch.Tensor, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x = x * 2
        total = torch.ops.webtorch_tests.push(cache, x)
        own = torch.zeros(3, 2, device=x.device)
        torch.ops.webtorch_tests.push(own, total)
        return total + cache[0], own.cos()

    compiled = torch.compile(f, backend="webgpu")
    for where in (webgpu, "cpu"):
        cache, expected = torch.randn(3, 2).to(where), None
        expected = cache.cpu().clone()
        place, view = cache.data_ptr(), cache[1:]
        for _ in range(3):
            x = torch.randn(2)
            for got, want in zip(compiled(cache, x.to(where)), f(expected, x), strict=True):
                torch.testing.assert_close(got.cpu(), want)
            torch.testing.assert_close(cache.cpu(), expected)
            torch.testing.assert_close(view.cpu(), expected[1:])
        assert cache.data_ptr() == place


def test_factorisations_and_control_flow_between_programs(webgpu: str) -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        a = torch.linalg.eigvals(x @ x.t() + torch.eye(3, device=x.device)).real.diag()
        b = torch.linalg.cholesky(a @ a.t() + torch.eye(3, device=x.device))
        return torch.cond(b.sum() > 4, lambda a: a.exp(), lambda a: a - 1, (b * 2,)) + 1

    compiled = torch.compile(f, backend="webgpu", fullgraph=True)
    # The device has no kernel of the first, and computes the second within a program.
    names = ("linalg_eig", "cond", "cholesky")
    before = [_called(n) for n in names]
    for scale in (0.1, 2.0):
        x = torch.randn(3, 3) * scale
        torch.testing.assert_close(compiled(x.to(webgpu)).cpu(), f(x), rtol=1e-4, atol=1e-5)
    assert [_called(n) - k for n, k in zip(names, before, strict=True)] == [2, 2, 0]


class _Experts(nn.Module):
    """A mixture of experts: how many rows each gets is known when the values are."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(4, 3)
        self.experts = nn.ModuleList(nn.Linear(4, 4) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        share, chosen = self.gate(x).softmax(-1).max(-1)
        out = torch.zeros_like(x)
        for number, expert in enumerate(self.experts):
            at = torch.nonzero(chosen == number).squeeze(1)
            out = out.index_add(0, at, expert(x[at]).relu() * share[at, None])
        return out + x


def test_sizes_that_values_decide(webgpu: str) -> None:
    reference = _Experts()
    model = copy.deepcopy(reference).to(webgpu)
    before = _called("nonzero")
    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        compiled = torch.compile(model, backend="webgpu", fullgraph=True)
        for seed in range(3):
            torch.manual_seed(seed)
            x = torch.randn(7, 4)
            expected, actual = reference(x), compiled(x.to(webgpu))
            torch.testing.assert_close(actual.cpu(), expected, rtol=1e-4, atol=1e-5)
            expected.square().sum().backward()
            actual.square().sum().backward()
            for p, q in zip(model.parameters(), reference.parameters(), strict=True):
                torch.testing.assert_close(p.grad.cpu(), q.grad, rtol=1e-4, atol=1e-5)
    assert _called("nonzero") == before + 9


def test_as_many_values_as_a_mask_has(webgpu: str) -> None:
    def f(x: torch.Tensor, row: torch.Tensor) -> torch.Tensor:
        y = x * 1
        y[x[:, 0] > 0] = row
        y[y[:, 0] < 0, 1] = torch.arange(2.0, device=x.device)
        return y + 1

    x = torch.tensor([[1.0, 2.0], [-1.0, 3.0], [-2.0, 4.0]])
    row = torch.tensor([5.0, 6.0])
    compiled = torch.compile(f, backend="webgpu", fullgraph=True)
    torch.testing.assert_close(compiled(x.to(webgpu), row.to(webgpu)).cpu(), f(x, row))


def test_operators_with_no_kernel_for_the_device(
    webgpu: str, custom: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return torch.ops.webtorch_tests.host_only(x * 2) - 1

    for x in (torch.ones(2, device=webgpu), torch.ones(2)):
        with pytest.raises(Exception, match=r"NotImplementedError.*webtorch_tests.host_only"):
            torch.compile(f, backend="webgpu")(x)
    # What the function itself moves to the CPU is computed there.
    moved = torch.compile(lambda x: f(x.cpu()).to(x.device) * 3, backend="webgpu")
    torch.testing.assert_close(moved(torch.ones(2, device=webgpu)).cpu(), torch.full((2,), 6.0))
    assert not torch.webgpu.fallback_counts()
    torch._dynamo.reset()
    monkeypatch.setenv("WEBTORCH_FALLBACK", "warn")
    fallback.counts.clear()
    for x in (torch.ones(2, device=webgpu), torch.ones(2)):
        fallback._warned.clear()
        with pytest.warns(UserWarning, match="host_only"):
            actual = torch.compile(f, backend="webgpu")(x)
        torch.testing.assert_close(actual.cpu(), torch.full((2,), 2.0))
    assert sum(torch.webgpu.fallback_counts().values()) == 2
    fallback.counts.clear()


@pytest.mark.parametrize("transposed", [False, True])
def test_overwriting_what_is_saved_beside_a_custom_operator_is_an_error(
    webgpu: str, custom: Any, transposed: bool
) -> None:
    def f(x: torch.Tensor, w: torch.Tensor) -> Any:
        e = torch.ops.webtorch_tests.silu(x, 1.0).exp()
        return e, (e.t() if transposed else e) @ w

    x = torch.randn(3, 3, device=webgpu, requires_grad=True)
    w = torch.ones(3, 2, device=webgpu, requires_grad=True)
    e, y = torch.compile(f, backend="webgpu")(x, w)
    with torch.no_grad():
        e.mul_(0)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


def test_unsupported_operators_are_named(webgpu: str) -> None:
    compiled = torch.compile(torch.ops.aten._weight_int4pack_mm_for_cpu, backend="webgpu")
    with pytest.raises(Exception, match=r"NotImplementedError.*_weight_int4pack_mm_for_cpu"):
        compiled(
            torch.ones(2, 32, device=webgpu, dtype=torch.bfloat16),
            torch.ones(3, 16, device=webgpu, dtype=torch.uint8),
            32,
            torch.ones(1, 3, 2, device=webgpu, dtype=torch.bfloat16),
        )
    assert bridge.is_open()


def test_what_a_symbolic_size_decides_is_decided_at_each_size(webgpu: str) -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return x.clone().diagonal(1, -2, -1) + x[:2].sum()

    compiled = torch.compile(f, backend="webgpu")
    for n in (2, 3, 5, 2, 7, 4, 3, 12):
        x = torch.rand(n, 4)
        torch.testing.assert_close(compiled(x.to(webgpu)).cpu(), f(x))
