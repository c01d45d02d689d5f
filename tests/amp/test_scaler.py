"""GradScaler against PyTorch's, on the same numbers: lazily and compiled."""

from __future__ import annotations

import copy
import itertools
import pickle
from typing import Any

import pytest
import torch

import webtorch
from tests.conftest import need_device

# The oracle's losses and gradients are float32 on the CPU; overflow is put in by hand.
BAD = (2, 3, 6)
STEPS = 8
OPTIMIZERS = {
    "sgd": lambda lib, p: lib.optim.SGD(p, lr=0.1),
    "momentum": lambda lib, p: lib.optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=0.01),
    "adam": lambda lib, p: lib.optim.Adam(p, lr=0.01),
    "adamw": lambda lib, p: lib.optim.AdamW(p, lr=0.01, amsgrad=True),
    "rmsprop": lambda lib, p: lib.optim.RMSprop(p, lr=0.01, momentum=0.5),
    "adagrad": lambda lib, p: lib.optim.Adagrad(p, lr=0.1, initial_accumulator_value=0.1),
    "nadam": lambda lib, p: lib.optim.NAdam(p, lr=0.01),
    "radam": lambda lib, p: lib.optim.RAdam(p, lr=0.01),
    "adamax": lambda lib, p: lib.optim.Adamax(p, lr=0.01),
    "adadelta": lambda lib, p: lib.optim.Adadelta(p, lr=0.5),
    "asgd": lambda lib, p: lib.optim.ASGD(p, lr=0.01, t0=2.0),
    "rprop": lambda lib, p: lib.optim.Rprop(p, lr=0.01),
    "adafactor": lambda lib, p: lib.optim.Adafactor(p, lr=0.01),
    "muon": lambda lib, p: lib.optim.Muon(p, lr=0.01),
}
# On the software adapter each costs seconds: one of each kind of state.
SLOW = ("momentum", "adam", "nadam")


def _weights() -> list[list[float]]:
    return torch.rand(3, 4, generator=torch.Generator().manual_seed(1)).tolist()


def _data() -> list[list[list[float]]]:
    x = torch.randn(STEPS, 5, 4, generator=torch.Generator().manual_seed(2))
    for step in BAD:
        x[step, 0, 0] = float("inf")
    return x.tolist()


def _run(lib: Any, name: str, device: str, first_bad: bool, compiled: bool) -> Any:
    """Train for STEPS steps, some of which overflow; return weights after each step and scales."""
    w = lib.tensor(_weights(), device=device, requires_grad=True)
    optimizer = OPTIMIZERS[name](lib, [w])
    scaler = lib.amp.GradScaler(
        "cpu" if lib is torch else device, init_scale=1024.0, growth_interval=2
    )

    def step(x: Any) -> Any:
        optimizer.zero_grad()
        loss = ((x @ w.t()) ** 2).mean()
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        lib.nn.utils.clip_grad_norm_([w], 1.0)
        scaler.step(optimizer)
        scaler.update()
        return loss.detach()

    run = lib.compile(step) if compiled else step
    history, scales = [], []
    data = _data()
    if first_bad:
        data[0][0][0] = float("inf")
    for x in data:
        run(lib.tensor(x, device=device))
        history.append(w.tolist())
        scales.append(scaler.get_scale())
    return torch.tensor(history), scales, scaler.state_dict()


@pytest.mark.covers("A14")
@pytest.mark.parametrize("compiled", [False, True], ids=["lazy", "compiled, first step overflows"])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_same_weights_and_scales(name: str, compiled: bool) -> None:
    _compare(name, "cpu", compiled, compiled)


@pytest.mark.covers("A14")
@pytest.mark.parametrize("name", SLOW)
def test_same_weights_and_scales_on_webgpu(name: str) -> None:
    need_device("webgpu")
    _compare(name, "webgpu", True, True)


def test_one_infinite_gradient_of_several_skips_the_step() -> None:
    def run(lib: Any) -> Any:
        a, b = (lib.ones(2, requires_grad=True) for _ in range(2))
        optimizer = lib.optim.SGD([a, b], lr=0.1)
        scaler = lib.amp.GradScaler("cpu", init_scale=4.0)
        scaler.scale(a.sum() + (b * lib.tensor([1.0, float("inf")])).sum()).backward()
        scaler.step(optimizer)
        scaler.update()
        return a.tolist(), b.tolist(), scaler.get_scale()

    assert run(webtorch) == run(torch) == ([1.0, 1.0], [1.0, 1.0], 2.0)


def test_dampening_is_decided_on_the_host() -> None:
    OPTIMIZERS["dampened"] = lambda lib, p: lib.optim.SGD(p, lr=0.1, momentum=0.9, dampening=0.5)
    try:
        _compare("dampened", "cpu", True, False)
    finally:
        del OPTIMIZERS["dampened"]


def _compare(name: str, device: str, first_bad: bool, compiled: bool) -> None:
    theirs, their_scales, their_state = _run(torch, name, "cpu", first_bad, False)
    ours, scales, state = _run(webtorch, name, device, first_bad, compiled)
    # Muon orthogonalises in bfloat16.
    rtol, atol = (2e-2, 2e-3) if name == "muon" else (2e-5, 2e-6)
    torch.testing.assert_close(ours, theirs, rtol=rtol, atol=atol)
    assert scales == their_scales
    assert any(b > a for a, b in itertools.pairwise(scales)), "the scale never grew"
    assert state == their_state


def test_a_skipped_step_reads_nothing(device: str) -> None:
    w = webtorch.ones(3, device=device, requires_grad=True)
    optimizer = webtorch.optim.Adam([w])
    scaler = webtorch.amp.GradScaler(device)
    runtime = w._storage.runtime
    reads = []
    download = runtime.backend.download
    runtime.backend.download = lambda b: reads.append(b) or download(b)  # type: ignore[method-assign]
    try:
        for _ in range(3):
            optimizer.zero_grad()
            scaler.scale((w * 2).sum()).backward()
            scaler.step(optimizer)
            scaler.update()
        webtorch.synchronize()
    finally:
        del runtime.backend.download
    assert not reads


def test_an_optimizer_of_the_user_is_not_called_for_a_bad_step() -> None:
    class Plain(webtorch.optim.Optimizer):
        calls = 0

        def step(self, closure: Any = None) -> Any:
            self.calls += 1

    w = webtorch.ones(3, requires_grad=True)
    optimizer, scaler = Plain([w], {}), webtorch.amp.GradScaler("cpu", init_scale=4.0)
    for value in (1.0, float("nan"), 1.0):
        optimizer.zero_grad()
        scaler.scale((w * value).sum()).backward()
        scaler.step(optimizer)
        scaler.update()
    assert optimizer.calls == 2
    assert scaler.get_scale() == 2.0


def test_the_protocol_of_fused_optimizers() -> None:
    class Fused(webtorch.optim.Optimizer):
        _step_supports_amp_scaling = True
        seen: tuple[Any, ...] = ()

        def step(self, closure: Any = None) -> Any:
            self.seen = (self.grad_scale.item(), self.found_inf.item(), w.grad.tolist())

    w = webtorch.ones(2, requires_grad=True)
    optimizer, scaler = Fused([w], {}), webtorch.amp.GradScaler("cpu", init_scale=4.0)
    scaler.scale(w.sum()).backward()
    scaler.step(optimizer)
    # The gradients are still scaled: the optimizer unscales them.
    assert optimizer.seen == (4.0, 0.0, [4.0, 4.0])
    assert not hasattr(optimizer, "found_inf")


def test_several_losses_and_optimizers() -> None:
    a, b = (webtorch.ones(2, requires_grad=True) for _ in range(2))
    first, second = webtorch.optim.SGD([a], lr=1.0), webtorch.optim.SGD([b], lr=1.0)
    scaler = webtorch.amp.GradScaler("cpu", init_scale=8.0)
    losses = scaler.scale([a.sum(), (b * float("inf")).sum()])
    assert isinstance(losses, list)
    for loss in losses:
        loss.backward()
    scaler.step(first)
    scaler.step(second)
    scaler.update()
    # Only the optimizer whose gradients overflowed stays; the scale shrinks for both.
    assert a.tolist() == [0.0, 0.0] and b.tolist() == [1.0, 1.0]
    assert scaler.get_scale() == 4.0


def test_disabled_passes_everything_through() -> None:
    w = webtorch.ones(2, requires_grad=True)
    optimizer, scaler = webtorch.optim.SGD([w], lr=1.0), webtorch.amp.GradScaler(enabled=False)
    loss = w.sum()
    assert scaler.scale(loss) is loss
    loss.backward()
    scaler.unscale_(optimizer)
    scaler.step(optimizer)
    scaler.update()
    assert w.tolist() == [0.0, 0.0]
    assert scaler.state_dict() == {} and scaler.get_scale() == 1.0 and not scaler.is_enabled()


def test_errors_are_those_of_pytorch() -> None:
    for lib in (torch, webtorch):
        w = lib.ones(2, requires_grad=True)
        optimizer, scaler = lib.optim.SGD([w], lr=1.0), lib.amp.GradScaler("cpu")
        with pytest.raises(AssertionError, match="_scale is None"):
            scaler.step(optimizer)
        scaler.scale(w.sum()).backward()
        scaler.unscale_(optimizer)
        with pytest.raises(RuntimeError, match="already been called"):
            scaler.unscale_(optimizer)
        scaler.step(optimizer)
        with pytest.raises(RuntimeError, match="already been called"):
            scaler.step(optimizer)
        with pytest.raises(RuntimeError, match="after step"):
            scaler.unscale_(optimizer)
        with pytest.raises(RuntimeError, match="Closure"):
            scaler.step(optimizer, closure=lambda: None)
        scaler.update()
        with pytest.raises(AssertionError, match="No inf checks"):
            scaler.update()
        half = lib.ones(2, dtype=lib.float16, requires_grad=True)
        scaler.scale(half.sum().to(lib.float32)).backward()
        with pytest.raises(ValueError, match="FP16"):
            scaler.unscale_(lib.optim.SGD([half], lr=1.0))
        with pytest.raises(AssertionError, match="growth factor"):
            lib.amp.GradScaler("cpu", growth_factor=1.0)
        with pytest.raises(RuntimeError, match="empty"):
            scaler.load_state_dict({})


def test_checkpoints_and_copies() -> None:
    scaler = webtorch.amp.GradScaler("cpu", init_scale=16.0, growth_interval=2)
    w = webtorch.ones(2, requires_grad=True)
    optimizer = webtorch.optim.SGD([w], lr=0.1)
    scaler.scale(w.sum()).backward()
    scaler.step(optimizer)
    scaler.update()
    other = webtorch.amp.GradScaler("cpu")
    other.load_state_dict(scaler.state_dict())
    assert other.state_dict() == scaler.state_dict()
    assert scaler.state_dict()["_growth_tracker"] == 1
    for again in (pickle.loads(pickle.dumps(scaler)), copy.deepcopy(scaler)):
        assert again.state_dict() == scaler.state_dict()
    scaler.update(32.0)
    assert scaler.get_scale() == 32.0
    scaler.update(webtorch.tensor(8.0))
    assert scaler.get_scale() == 8.0


def test_factors_may_change_between_replays() -> None:
    w = webtorch.ones(2, requires_grad=True)
    optimizer = webtorch.optim.SGD([w], lr=0.1)
    scaler = webtorch.amp.GradScaler("cpu", init_scale=16.0, growth_interval=1)

    @webtorch.compile
    def step(x: Any) -> None:
        optimizer.zero_grad()
        scaler.scale((w * x).sum()).backward()
        scaler.step(optimizer)
        scaler.update()

    x = webtorch.ones(2)
    for _ in range(3):
        step(x)
    assert scaler.get_scale() == 16.0 * 2**3
    scaler.set_growth_factor(4.0)
    step(x)
    assert scaler.get_scale() == 16.0 * 2**3 * 4
    scaler.set_growth_interval(100)
    step(x)
    assert scaler.get_scale() == 16.0 * 2**3 * 4


def test_where_there_is_no_cuda() -> None:
    with pytest.warns(UserWarning, match="CUDA is not available"):
        assert not webtorch.amp.GradScaler("cuda").is_enabled()
