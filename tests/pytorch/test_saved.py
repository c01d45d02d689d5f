"""What compiled calls know of their parameters from the call before, and what a forward saves for its backward."""

from __future__ import annotations

import gc
import importlib
import threading
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch._functorch._aot_autograd import graph_compile
from torch._library.fake_class_registry import FakeScriptObject
from torch._library.opaque_object import is_opaque_type
from torch.utils.checkpoint import checkpoint

from webtorch.pytorch import device as bridge
from webtorch.pytorch import programs
from webtorch.pytorch.saved import Saved, Traced

# Dynamo looks at `.grad` of inputs that are no leaves.
pytestmark = pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")


@pytest.fixture(autouse=True)
def _fresh_dynamo() -> None:
    torch._dynamo.reset()


class Tied(nn.Module):
    """A model whose first and last layers have one weight."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(5, 4)
        self.norm = nn.BatchNorm1d(4)
        self.mix = nn.Linear(4, 4)
        self.head = nn.Linear(4, 5, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """(n,) -> (n, 5)."""
        return self.head(torch.tanh(self.mix(self.norm(self.embed(tokens)))))


def _swap_data(model: Tied) -> None:
    model.mix.weight.data = model.mix.weight.data * 0.5 + 1


def _write_data(model: Tied) -> None:
    model.mix.weight.data.add_(1)


def _write(model: Tied) -> None:
    with torch.no_grad():
        model.embed.weight.mul_(0.5)


def _load(model: Tied) -> None:
    model.load_state_dict({k: v * 0.5 for k, v in model.state_dict().items()})


def _assign(model: Tied) -> None:
    model.mix.load_state_dict({k: v * 2 for k, v in model.mix.state_dict().items()}, assign=True)


def _view(model: Tied) -> None:
    # Strides stay, offset and storage are others.
    whole = torch.cat([model.mix.weight.data, model.mix.weight.data + 1])
    model.mix.weight.data = whole[4:]


def _round_trip(model: Tied) -> None:
    where = model.mix.weight.device
    model.to("cpu")
    model.mix.bias.data.add_(1)
    model.to(where)


def _step(model: Tied) -> None:
    opt = torch.optim.Adam(model.parameters(), lr=0.1)
    model(torch.arange(5, device=model.mix.weight.device)).square().sum().backward()
    opt.step()
    opt.zero_grad()


CHANGES = [_swap_data, _write_data, _write, _load, _assign, _view, _round_trip, _step]


@pytest.mark.parametrize("grad", [False, True], ids=["inference", "training"])
def test_parameters_may_change_in_any_way_between_calls(webtorch_pair: Any, grad: bool) -> None:
    host, model, compiled = webtorch_pair
    tokens = torch.tensor([0, 3, 1, 4, 4])
    for change in (None, *CHANGES, *reversed(CHANGES)):
        if change is not None:
            change(host)
            change(model)
        for _ in range(3):
            with torch.set_grad_enabled(grad):
                expected, actual = host(tokens), compiled(tokens.to("webgpu"))
            torch.testing.assert_close(actual.cpu(), expected, rtol=1e-3, atol=1e-4)
        if grad:
            expected.square().sum().backward()
            actual.square().sum().backward()
            for a, b in zip(model.parameters(), host.parameters(), strict=True):
                torch.testing.assert_close(a.grad.cpu(), b.grad, rtol=1e-3, atol=1e-3)
            host.zero_grad()
            model.zero_grad()


@pytest.fixture
def webtorch_pair(webgpu: str) -> tuple[Tied, Tied, Callable[..., torch.Tensor]]:
    """A model on the CPU, the same on the device, and that one compiled."""
    torch.manual_seed(0)
    host, model = Tied(), Tied()
    model.load_state_dict(host.state_dict())
    model.to(webgpu)
    return host, model, torch.compile(model, backend="webgpu")


def test_threads_call_one_compiled_model(webgpu: str) -> None:
    layer = nn.Linear(4, 4).to(webgpu)
    compiled = torch.compile(layer, backend="webgpu")
    inputs = [torch.randn(3, 4) for _ in range(4)]
    wanted = [
        torch.func.grad(lambda w, x=x: (x @ w.t()).tanh().sum())(layer.weight.detach().cpu())
        for x in inputs
    ]
    compiled(inputs[0].to(webgpu)).sum().backward()
    problems: list[BaseException] = []

    def work(x: torch.Tensor, expected: torch.Tensor) -> None:
        try:
            for _ in range(20):
                y = compiled(x.to(webgpu)) - layer.bias
                (grad,) = torch.autograd.grad(y.tanh().sum(), layer.weight)
                torch.testing.assert_close(grad.cpu(), expected, rtol=1e-4, atol=1e-5)
        except BaseException as error:
            problems.append(error)

    threads = [threading.Thread(target=work, args=a) for a in zip(inputs, wanted, strict=True)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not problems


def _saves(out: torch.Tensor) -> Saved:
    """Return what the compiled forward of a result saved."""
    (found,) = out.grad_fn.opaque_objects  # type: ignore[union-attr]
    assert type(found) is Saved
    return found


def test_one_object_carries_what_is_saved(webgpu: str) -> None:
    model = nn.Sequential(*[nn.Linear(4, 4) for _ in range(6)]).to(webgpu)
    compiled = torch.compile(model, backend="webgpu")
    x = torch.ones(2, 4, device=webgpu)
    compiled(x)
    out = compiled(x)
    saved = _saves(out)
    assert not out.grad_fn.saved_tensors  # type: ignore[union-attr]
    assert len(saved.values) >= 11
    values = [weakref.ref(saved)]
    out.sum().backward(retain_graph=True)
    assert saved.values
    out.sum().backward()
    # The result is alive; what its backward took is not.
    assert not saved.values
    with pytest.raises(RuntimeError, match="backward through the graph a second time"):
        out.sum().backward()
    del out, saved
    assert values[0]() is None


def test_what_is_saved_is_asked_for_no_storage(
    webgpu: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before 2.13 PyTorch takes all that is saved for tensors where it looks for memory that may be used again."""

    def ask(*saved: object) -> list[int]:
        raise AttributeError("'Saved' object has no attribute 'untyped_storage'")

    monkeypatch.setattr(graph_compile, "collect_bw_donated_buffer_idxs", ask)
    # It also counts them by this class.
    assert issubclass(Traced, FakeScriptObject) and is_opaque_type(Traced)
    w = torch.ones(3, device=webgpu, requires_grad=True)
    torch.compile(lambda x: (x.exp() * x).sum())(w).backward()
    assert torch.allclose(w.grad.cpu(), torch.full((3,), 2.0).exp().sqrt() * 2)


def test_what_is_saved_makes_no_cycle(webgpu: str) -> None:
    # `x` is written, is a result, and has been saved.
    def f(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = x.exp()
        return y, y * x

    compiled = torch.compile(f, backend="webgpu")
    gc.collect()
    gc.disable()
    try:
        for _ in range(3):
            x = torch.ones(3, device=webgpu, requires_grad=True)
            y, z = compiled(x * 1)
            saved = weakref.ref(_saves(y))
            del x, y, z
            assert saved() is None
    finally:
        gc.enable()


@pytest.mark.parametrize("inside", [False, True])
def test_compiled_blocks_are_checkpointed(webgpu: str, inside: bool) -> None:
    block = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 4))
    x = torch.randn(3, 4)
    expected = torch.autograd.grad(block(block(x)).square().sum(), list(block.parameters()))
    block.to(webgpu)
    run: Callable[..., torch.Tensor]
    if inside:
        run = torch.compile(lambda t: checkpoint(block, t, use_reentrant=False), backend="webgpu")
    else:
        compiled = torch.compile(block, backend="webgpu")
        run = lambda t: checkpoint(compiled, t, use_reentrant=False)  # noqa: E731
    for _ in range(2):
        out = run(run(x.to(webgpu)))
        actual = torch.autograd.grad(out.square().sum(), list(block.parameters()))
        for a, b in zip(actual, expected, strict=True):
            torch.testing.assert_close(a.cpu(), b, rtol=1e-4, atol=1e-4)


def test_saved_values_go_to_the_cpu_where_the_user_says_so(webgpu: str) -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 1))
    x = torch.randn(3, 4)
    expected = torch.autograd.grad(model(x).exp().sum(), list(model.parameters()))
    model.to(webgpu)
    compiled = torch.compile(model, backend="webgpu")
    for _ in range(2):
        with torch.autograd.graph.save_on_cpu():
            out = compiled(x.to(webgpu))
        actual = torch.autograd.grad(out.exp().sum(), list(model.parameters()))
        for a, b in zip(actual, expected, strict=True):
            torch.testing.assert_close(a.cpu(), b, rtol=1e-4, atol=1e-5)


def test_gradients_that_are_saved_values_have_memory_of_their_own(webgpu: str) -> None:
    class Returns(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
            ctx.save_for_backward(w, x.exp())
            return x * 2

        @staticmethod
        def backward(ctx: Any, *grads: torch.Tensor) -> Any:
            return ctx.saved_tensors

    compiled = torch.compile(lambda x, w: Returns.apply(x, w), backend="webgpu")
    w = torch.full((3,), 2.0, device=webgpu, requires_grad=True)
    for _ in range(3):
        x = torch.ones(3, device=webgpu, requires_grad=True)
        out = compiled(x, w)
        for _ in range(2):
            a, b = torch.autograd.grad(out.sum(), (x, w), retain_graph=True)
            torch.testing.assert_close(a.cpu(), torch.full((3,), 2.0))
            torch.testing.assert_close(b.cpu(), torch.ones(3).exp())
            a.zero_()
            b.zero_()
    assert w.cpu().tolist() == [2.0, 2.0, 2.0]


def test_sizes_that_vary_are_recorded_a_few_times_in_training(
    webgpu: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    count = 0
    original = programs.Programs._capture

    def counted(*args: Any) -> Any:
        nonlocal count
        count += 1
        return original(*args)

    monkeypatch.setattr(programs.Programs, "_capture", counted)
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))
    compiled = torch.compile(nn.Sequential(*model), backend="webgpu")
    host = [p.detach().clone().requires_grad_() for p in model.parameters()]
    model.to(webgpu)
    counts = []
    for n in (3, 5, 7, 9, 11, 13):
        x = torch.randn(n, 4)
        y = x.to(webgpu)
        torch._dynamo.mark_dynamic(y, 0)
        compiled(y).square().mean().backward()
        out = F.linear(torch.tanh(F.linear(x, host[0], host[1])), host[2], host[3])
        grads = torch.autograd.grad(out.square().mean(), host)
        for p, g in zip(model.parameters(), grads, strict=True):
            torch.testing.assert_close(p.grad.cpu(), g, rtol=1e-4, atol=1e-5)
        model.zero_grad()
        counts.append(count)
    # Two graphs at 3, 4, 5, 8 and 11 for the first size, and, to compare, at 7, 9 and 13 and at twice these.
    assert counts == [10, 10, 14, 18, 18, 22]
    assert bridge.is_open()


def test_a_backward_that_writes_a_buffer(webgpu: str) -> None:
    class Counts(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor, count: torch.Tensor) -> torch.Tensor:
            ctx.save_for_backward(x)
            ctx.count = count
            return x.exp()

        @staticmethod
        def backward(ctx: Any, *grads: torch.Tensor) -> Any:
            ctx.count.add_(1)
            return grads[0] * ctx.saved_tensors[0].exp(), None

    compiled = torch.compile(lambda x, n: Counts.apply(x, n) * 1, backend="webgpu")
    count = torch.zeros(2, device=webgpu)
    for _ in range(3):
        x = torch.ones(2, device=webgpu, requires_grad=True)
        compiled(x, count).sum().backward()
        assert x.grad is not None
        torch.testing.assert_close(x.grad.cpu(), torch.ones(2).exp())
    assert count.tolist() == [3.0, 3.0]


def test_regions_that_are_compiled_once(webgpu: str) -> None:
    region = torch.compiler.nested_compile_region(lambda x: x.exp().sin())
    compiled = torch.compile(lambda x: region(region(x)), backend="webgpu")
    x = torch.linspace(0, 1, 3, requires_grad=True)
    (expected,) = torch.autograd.grad(x.exp().sin().exp().sin().sum(), x)
    y = x.detach().to(webgpu).requires_grad_()
    for _ in range(2):
        (actual,) = torch.autograd.grad(compiled(y).sum(), y)
        torch.testing.assert_close(actual.cpu(), expected, rtol=1e-4, atol=1e-5)


def test_compiled_autograd(webgpu: str) -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.Tanh())
    x = torch.randn(2, 3)
    (expected,) = torch.autograd.grad(model(x).sum(), model[0].weight)
    model.to(webgpu)

    def step(x: torch.Tensor) -> None:
        model(x).sum().backward()

    with torch._dynamo.config.patch(compiled_autograd=True):
        torch.compile(step, backend="webgpu")(x.to(webgpu))
    torch.testing.assert_close(model[0].weight.grad.cpu(), expected, rtol=1e-4, atol=1e-5)


def test_parameters_of_inference_mode_are_refused_in_words(webgpu: str) -> None:
    with torch.inference_mode():
        layer = nn.Linear(3, 3, device=webgpu)
    x = torch.ones(2, 3, device=webgpu, requires_grad=True)
    with pytest.raises(RuntimeError, match="Inference tensors cannot be saved for backward"):
        torch.compile(layer, backend="webgpu")(x)


class _Deep(nn.Module):
    """A model of two of DistributedDataParallel's buckets, of which none is smaller than 1 MiB."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(4, 512), nn.Tanh(), nn.Linear(512, 512), nn.Tanh())
        self.head = nn.Linear(512, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(n, 4) -> (n, 3)."""
        return self.head(self.layers(x))


@pytest.mark.filterwarnings("ignore:Time stats are currently only collected")
def test_parts_of_a_compiled_model_save_by_themselves(
    webgpu: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # PyTorch cuts the graph at the buckets, and takes what a graph says of its results for those of a first call.
    importlib.import_module("torch._functorch.aot_autograd")
    wrappers = importlib.import_module("torch._functorch._aot_autograd.runtime_wrappers")
    real, seen = wrappers.is_opaque_type, dict[type, bool]()

    def is_opaque(kind: type) -> bool:
        return seen.setdefault(kind, real(kind))

    monkeypatch.setattr(wrappers, "is_opaque_type", is_opaque)
    x = torch.linspace(-1, 1, 8).reshape(2, 4).to(webgpu)
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        torch.manual_seed(0)
        model = _Deep().to(webgpu)
        wrapped = nn.parallel.DistributedDataParallel(model, bucket_cap_mb=1)
        found = []
        for call in (wrapped, torch.compile(wrapped, backend="webgpu")):
            for _ in range(2):
                model.zero_grad()
                call(x).square().sum().backward()
            found.append([p.grad.cpu() for p in model.parameters() if p.grad is not None])
    finally:
        dist.destroy_process_group()
    assert len(found[0]) == 6
    torch.testing.assert_close(found[1], found[0])
    # PyTorch 2.11 takes no others.
    assert Saved in seen and all(seen.values())
