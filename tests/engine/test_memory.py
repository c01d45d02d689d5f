"""Memory over time: nothing leaks without the collector, parameters stay in place, clones share until written."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from typing import Any

import pytest

import webtorch
from webtorch.tensors.storage import Storage

# What is tested here is nearly the same on all devices.
pytestmark = pytest.mark.one_in(2, device="webgpu")


@pytest.fixture
def no_gc() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def _backend(device: str) -> Any:
    return webtorch.zeros(1, device=device)._storage.runtime.backend


@pytest.mark.one_in(2)
@pytest.mark.usefixtures("no_gc")
def test_300_training_steps_hold_no_more_memory_than_10(device: str) -> None:
    webtorch.manual_seed(0)
    model = webtorch.nn.Sequential(
        webtorch.nn.Linear(6, 8), webtorch.nn.ReLU(), webtorch.nn.Linear(8, 3)
    ).to(device)
    optimizer = webtorch.optim.AdamW(model.parameters())
    x, target = (
        webtorch.randn(4, 6, device=device),
        webtorch.tensor([0, 1, 2, 0], device=device),
    )
    backend, seen = _backend(device), []
    for step in range(300):
        loss = webtorch.nn.functional.cross_entropy(model(x), target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step in (10, 150, 299):
            loss.item()
            seen.append((backend.memory_allocated(), len(Storage.live())))
    assert seen[0] == seen[1] == seen[2], seen


@pytest.mark.usefixtures("no_gc")
def test_a_loop_that_is_over_leaves_nothing(device: str) -> None:
    """Neither what followed a script nor the script holds what the loop had."""

    def train() -> None:
        model = webtorch.nn.Linear(6, 3).to(device)
        optimizer = webtorch.optim.SGD(model.parameters(), 0.1)
        model.weight.register_hook(lambda g: g * 0.5)
        x = webtorch.randn(4, 6, device=device)
        for _ in range(30):
            optimizer.zero_grad()
            loss = model(x).square().mean()
            loss.backward()
            optimizer.step()
            loss.item()

    train()
    live = len(Storage.live())
    for _ in range(3):
        train()
    assert len(Storage.live()) <= live


@pytest.mark.usefixtures("no_gc")
def test_graphs_of_all_kinds_die_with_their_last_reference(device: str) -> None:
    """No reference cycles: counting references is enough, so memory is free the moment a loss is dropped."""

    class Double(webtorch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            y = x * 2
            ctx.save_for_backward(x, y)
            return y

        @staticmethod
        def backward(ctx: Any, g: Any) -> Any:
            return g * 2

    x = webtorch.randn(3, 3, device=device, requires_grad=True)
    webtorch.synchronize()
    F = webtorch.nn.functional

    def run() -> None:
        for y in (
            x.exp().sigmoid().tanh().sqrt(),
            F.softmax(x @ x, -1),
            F.layer_norm(x, (3,)),
            F.log_softmax(x, 0),
            F.gelu(x).cumsum(0),
            F.scaled_dot_product_attention(x[None, None], x[None, None], x[None, None]),
            x.max(1)[0],
            x.sort(0)[0],
            x.std(0),
            Double.apply(x),
            webtorch.utils.checkpoint.checkpoint(lambda h: h.exp().sin(), x, use_reentrant=False),
        ):
            assert y.requires_grad
        z = x * 1
        z[0].mul_(2)
        z.exp_()
        h = x * 3
        h.retain_grad()
        h.register_hook(lambda g: g * 2)
        (h.sum() + z.sum()).backward()
        x.grad = None

    run()
    live = len(Storage.live())
    for _ in range(3):
        run()
    assert len(Storage.live()) == live


def test_a_parameter_keeps_its_buffer_over_steps(device: str) -> None:
    webtorch.manual_seed(0)
    model = webtorch.nn.Linear(4, 4).to(device)
    optimizer = webtorch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    x = webtorch.ones(2, 4, device=device)

    def step() -> None:
        optimizer.zero_grad()
        model(x).square().sum().backward()
        optimizer.step()

    for _ in range(2):
        step()
    webtorch.synchronize()
    tensors = [model.weight, optimizer.state[model.weight]["momentum_buffer"]]
    before = [t._storage.node.buffer for t in tensors]
    values = tensors[0].tolist()
    for _ in range(3):
        step()
    webtorch.synchronize()
    assert tensors[0].tolist() != values
    for tensor, buffer in zip(tensors, before, strict=True):
        assert tensor._storage.node.buffer is buffer


_OPTIMIZERS = {
    **{
        name: {}
        for name, made in vars(webtorch.optim).items()
        if isinstance(made, type)
        and issubclass(made, webtorch.optim.Optimizer)
        # LBFGS keeps a history of gradients that grows by design; SparseAdam takes sparse gradients only.
        and name not in ("Optimizer", "LBFGS", "SparseAdam")
    },
    "SGD": {"momentum": 0.9, "weight_decay": 0.01},
    "RMSprop": {"momentum": 0.9, "centered": True},
}


@pytest.mark.one_in(3)
@pytest.mark.parametrize("name", _OPTIMIZERS)
def test_every_optimizer_keeps_parameters_and_state_in_place(name: str, device: str) -> None:
    """Also those of biases, whose gradients are sums that end in the update."""
    webtorch.manual_seed(0)
    nn = webtorch.nn
    model = nn.Sequential(nn.Linear(6, 8), nn.LayerNorm(8), nn.Tanh(), nn.Linear(8, 1)).to(device)
    # Muon is for matrices only.
    parameters = [p for p in model.parameters() if p.ndim == 2 or name != "Muon"]
    optimizer = getattr(webtorch.optim, name)(parameters, lr=0.01, **_OPTIMIZERS[name])
    x = webtorch.randn(16, 6, device=device)

    def step() -> None:
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()

    def held() -> dict[Any, Any]:
        webtorch.synchronize()
        return {
            (i, key): tensor._storage.node.buffer
            for i, p in enumerate(parameters)
            for key, tensor in {"": p, **optimizer.state[p]}.items()
            if isinstance(tensor, webtorch.Tensor) and tensor.device.type == device
        }

    # Programs, which keep memory for temporaries, are made of what comes a third time.
    for _ in range(5):
        step()
    before, allocated = held(), _backend(device).memory_allocated()
    for _ in range(3):
        step()
    after = held()
    assert [key for key in before if before[key] is not after[key]] == []
    assert _backend(device).memory_allocated() == allocated


def test_an_in_place_write_to_part_of_a_buffer_copies_nothing(device: str) -> None:
    cache = webtorch.zeros(1000, 8, device=device)
    webtorch.synchronize()
    buffer = cache._storage.node.buffer
    for i in (3, 7, 500):
        cache[i] = webtorch.full((8,), float(i), device=device)
        webtorch.synchronize()
        assert cache._storage.node.buffer is buffer
    cache.mul_(2)
    webtorch.synchronize()
    assert cache._storage.node.buffer is buffer
    assert cache.sum().item() == (3 + 7 + 500) * 8 * 2


def test_clones_share_until_one_is_written(device: str) -> None:
    a = webtorch.arange(4.0, device=device)
    webtorch.synchronize()
    b = a.clone()
    webtorch.synchronize()
    assert b._storage is not a._storage
    assert b._storage.node.buffer is a._storage.node.buffer
    b += 10
    webtorch.synchronize()
    assert b._storage.node.buffer is not a._storage.node.buffer
    assert (a.tolist(), b.tolist()) == ([0.0, 1.0, 2.0, 3.0], [10.0, 11.0, 12.0, 13.0])
    c = a.clone()
    a.mul_(2)
    webtorch.synchronize()
    assert (a.tolist(), c.tolist()) == ([0.0, 2.0, 4.0, 6.0], [0.0, 1.0, 2.0, 3.0])


def test_a_buffer_that_takes_temporary_values_keeps_its_memory(device: str) -> None:
    """copy_ shares what it copies; once the temporary tensor is gone, nobody else holds it."""
    state = webtorch.zeros(50, device=device)
    webtorch.synchronize()
    state.copy_(webtorch.arange(50.0, device=device) + 1)
    webtorch.synchronize()
    buffer = state._storage.node.buffer
    for i in range(3):
        state.copy_(state * 2 + i)
        webtorch.synchronize()
        assert state._storage.node.buffer is buffer
    clones = [state.clone() for _ in range(20)]
    first = clones[0].tolist()
    state.copy_(state * 0)
    clones[3].add_(1)
    del clones[4:]
    assert clones[0].tolist() == clones[1].tolist() == first
    assert clones[3].tolist() == [x + 1 for x in first]
    assert state.tolist() == [0.0] * 50
    kept = state.clone()
    buffer = state._storage.node.buffer
    state.add_(1)
    webtorch.synchronize()
    assert state._storage.node.buffer is not buffer
    assert kept.tolist() == [0.0] * 50
    other = webtorch.ones(50, device=device)
    state.copy_(other)
    other.mul_(3)
    assert (state.sum().item(), other.sum().item()) == (50.0, 150.0)
    state.copy_(other)
    state.mul_(3)
    assert (state.sum().item(), other.sum().item()) == (450.0, 150.0)


def test_what_backward_needs_survives_in_place_writes(device: str) -> None:
    """The old value is kept as long as the graph needs it, then its memory goes back."""
    x = webtorch.tensor([1.0, 2.0], device=device, requires_grad=True)
    w = webtorch.tensor([3.0, 4.0], device=device, requires_grad=True)
    h = x * 1
    webtorch.synchronize()
    h.mul_(w)
    webtorch.synchronize()
    h.mul_(w)
    webtorch.synchronize()
    h.sum().backward()
    assert (x.grad.tolist(), w.grad.tolist()) == ([9.0, 16.0], [6.0, 16.0])


def test_detached_tensors_and_views_share_memory(device: str) -> None:
    x = webtorch.zeros(2, 3, device=device)
    for view, write in (
        (x.detach(), lambda v: v.add_(1)),
        (x.view(3, 2), lambda v: v[0].add_(1)),
        (x.t(), lambda v: v[2, 1].fill_(9)),
        (x[1], lambda v: v.mul_(2)),
        (x.data, lambda v: v[0, 0].sub_(5)),
        (x.unsqueeze(0).expand(1, 2, 3), lambda v: v[0, 0, 1].fill_(7)),
        (x.diagonal(), lambda v: v.neg_()),
    ):
        assert view._storage is x._storage
        write(view)
    assert x.tolist() == [[3.0, 7.0, 1.0], [2.0, -2.0, 18.0]]
    assert x.detach().data_ptr() == x.data_ptr()


def test_deleting_tensors_gives_memory_back(device: str) -> None:
    backend = _backend(device)
    gc.collect()
    webtorch.synchronize()
    before = backend.memory_allocated()
    x = webtorch.ones(1 << 16, device=device)
    webtorch.synchronize()
    assert backend.memory_allocated() - before >= 4 << 16
    view = x[5:]
    del x
    assert backend.memory_allocated() - before >= 4 << 16
    del view
    assert backend.memory_allocated() == before


def test_the_accelerator_s_memory_and_device_by_pytorch_s_general_names() -> None:
    accelerator, before = webtorch.accelerator, webtorch.get_default_device()
    accelerator.reset_peak_memory_stats()
    with accelerator.device_index(0):
        x = webtorch.ones(1 << 16)
        assert str(x.device) == "webgpu:0" and accelerator.current_device_idx() == 0
    webtorch.synchronize()
    assert webtorch.get_default_device() == before
    assert accelerator.memory_allocated() >= 4 << 16
    assert accelerator.max_memory_allocated(x.device) >= accelerator.memory_allocated()


def test_the_chosen_accelerator_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    waited: list[object] = []
    monkeypatch.setattr(webtorch.webgpu, "synchronize", waited.append)
    with webtorch.device("webgpu:1"):
        webtorch.accelerator.synchronize()
    webtorch.accelerator.synchronize("webgpu:0")
    assert waited == [1, "webgpu:0"]


def test_the_peak_is_counted_and_reset(device: str) -> None:
    backend = _backend(device)
    webtorch.synchronize()
    backend.reset_peak_memory()
    x = webtorch.ones(1 << 16, device=device)
    webtorch.synchronize()
    del x
    assert backend.max_memory_allocated() >= 4 << 16
    backend.reset_peak_memory()
    assert backend.max_memory_allocated() == backend.memory_allocated()
