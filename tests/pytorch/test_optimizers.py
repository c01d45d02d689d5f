"""Every optimizer of `torch.optim`, as its users make it, steps as on PyTorch's CPU. Needs an adapter."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from benchmarks.pytorch import optimizers
from webtorch.pytorch import optimizer as stepping

_OPTIMIZERS = {name: (kind, options) for name, kind, options in optimizers()}
_SIZES = ((3, 4), (4, 2), (3, 4))
_CLOSE = {"rtol": 1e-5, "atol": 1e-6}


def _gradients(params: list[torch.Tensor], turn: int, where: str) -> None:
    g = torch.Generator().manual_seed(turn)
    for p in params:
        p.grad = torch.randn(p.shape, generator=g).to(where)


def _params(where: str, seed: int = 0) -> list[torch.Tensor]:
    g = torch.Generator().manual_seed(seed)
    return [torch.randn(s, generator=g).to(where).requires_grad_() for s in _SIZES]


def _made(name: str, params: Any, where: str, **more: Any) -> torch.optim.Optimizer:
    kind, options = _OPTIMIZERS[name]
    known = {k: v for k, v in options.items() if where != "cpu" or k != "capturable"}
    return kind(params, **{**known, **more})


def _seen(optimizer: torch.optim.Optimizer) -> list[object]:
    """Return parameters and states, in their order."""
    params = [p for group in optimizer.param_groups for p in group["params"]]
    states = [optimizer.state[p] for p in params]
    return [
        [x.detach().cpu() for x in params],
        [
            {k: v.cpu() for k, v in sorted(s.items()) if isinstance(v, torch.Tensor)}
            for s in states
        ],
    ]  # fmt: skip


def _run(name: str, where: str) -> Iterator[object]:
    """Step with gradients that are missing, a rate that changes, states that are loaded and parameters that come."""
    params = _params(where)
    optimizer = _made(name, params, where)
    for turn in range(7):
        _gradients(params, turn, where)
        if turn == 2:
            params[1].grad = None
        if turn == 4:
            optimizer.param_groups[0]["lr"] *= 0.5
        optimizer.step()
    yield _seen(optimizer)
    again = _made(name, params, where)
    again.load_state_dict(optimizer.state_dict())
    more = _params(where, 1)
    again.add_param_group({"params": more[:1], "lr": 0.02})
    for turn in range(3):
        _gradients([*params, *more], turn, where)
        again.step()
    yield _seen(again)


@pytest.mark.one_in(6)
@pytest.mark.parametrize("name", _OPTIMIZERS)
def test_optimizers_step_as_the_cpus(webgpu: str, name: str) -> None:
    for found, expected in zip(_run(name, webgpu), _run(name, "cpu"), strict=True):
        torch.testing.assert_close(found, expected, **_CLOSE)


@pytest.mark.one_in(6)
@pytest.mark.parametrize("name", _OPTIMIZERS)
def test_optimizers_are_learned(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    learned = list[object]()
    learn, step = stepping._Rows._learn, stepping._Stepper.step

    def counted(*args: Any) -> bool:
        """Note a parameter whose step is not known."""
        learned.append("a step that is not known")
        return learn(*args)

    def stepped(self: Any, lists: Any, options: Any, usual: Any) -> None:
        """Note parameters that PyTorch's own function steps."""
        step(self, lists, options, lambda places: (learned.append("PyTorch's own"), usual(places)))

    monkeypatch.setattr(stepping._Rows, "_learn", counted)
    monkeypatch.setattr(stepping._Stepper, "step", stepped)
    params = _params("webgpu")
    optimizer = _made(name, params, "webgpu")
    for turn in range(12):
        _gradients(params, turn, "webgpu")
        optimizer.param_groups[0]["lr"] *= 0.9
        if turn == 8:
            # RAdam takes another way from its sixth step on.
            assert learned
            learned.clear()
        optimizer.step()
        # Of new gradients, not of what was computed in between, which lies elsewhere.
        torch.webgpu.synchronize()
    assert not learned


def test_no_optimizer_is_left_out() -> None:
    kinds = {k for k, _ in _OPTIMIZERS.values()}
    others = {torch.optim.Optimizer, torch.optim.SparseAdam, torch.optim.LBFGS}
    assert kinds | others == {k for k in vars(torch.optim).values() if isinstance(k, type)}
    for kind in kinds:
        functions = vars(sys.modules[kind.step.__module__])
        for name in functions:
            if name.startswith(("_single_tensor_", "_multi_tensor_")):
                assert hasattr(functions[name], "__original_fn"), name


def test_rates_on_the_device_are_not_read(webgpu: str) -> None:
    found = []
    for where in (webgpu, "cpu"):
        params = _params(where)
        rate = torch.tensor(0.1, device=where)
        # Corrections for the count of steps would be rounded on the device.
        optimizer = torch.optim.RMSprop(params, lr=rate, capturable=where == webgpu, foreach=False)
        for turn in range(5):
            _gradients(params, turn, where)
            rate.mul_(0.9)
            optimizer.step()
        found.append([p.detach().cpu() for p in params])
    torch.testing.assert_close(*found, **_CLOSE)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.complex64])
def test_parameters_of_several_types_step_as_the_cpus(webgpu: str, dtype: torch.dtype) -> None:
    found = []
    for where in (webgpu, "cpu"):
        params = [
            x.detach().to(d).requires_grad_()
            for d, x in zip((torch.float32, dtype), _params(where))
        ]
        optimizer = torch.optim.NAdam(params, foreach=False)
        for turn in range(5):
            for p in params:
                p.grad = (p.detach().cpu() * (turn - 2)).to(where)
            optimizer.step()
        found.append([p.detach().cpu() for p in params])
    torch.testing.assert_close(*found, rtol=2e-3 if dtype.itemsize == 2 else 1e-5, atol=1e-3)


def test_gradients_that_are_views_step_as_the_cpus(webgpu: str) -> None:
    found = []
    for where in (webgpu, "cpu"):
        params, bucket = _params(where), torch.arange(40.0, device=where)
        optimizer = torch.optim.RMSprop(params, momentum=0.5)
        for _ in range(5):
            for n, p in enumerate(params):
                p.grad = bucket[9 * n : 9 * n + p.numel()].view(p.shape)
            bucket.mul_(0.9)
            optimizer.step()
        found.append([p.detach().cpu() for p in params])
    torch.testing.assert_close(*found, **_CLOSE)


def test_a_graph_from_before_a_step_knows_that_parameters_were_written(webgpu: str) -> None:
    for place in ("cpu", webgpu):
        w = torch.ones(3, requires_grad=True, device=place)
        optimizer = torch.optim.SGD([w], lr=0.1)
        for _ in range(4):
            loss = (w * w).sum()
            loss.backward(retain_graph=True)
            optimizer.step()
            with pytest.raises(RuntimeError, match="modified by an inplace operation"):
                loss.backward()
        assert w._version == 4


@pytest.mark.parametrize("place", ["told", "written"])
def test_a_failure_in_the_middle_steps_nothing_twice(
    webgpu: str, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    owner, name = (stepping._Rows, "_learn") if place == "told" else (stepping, "store")
    usual, calls = getattr(owner, name), list[object]()

    def failing(*args: Any) -> object:
        """Fail for the second parameter; of each three tensors or more are written."""
        calls.append(args)
        if len(calls) == (2 if place == "told" else 5):
            raise MemoryError("there is no room")
        return usual(*args)

    found = []
    for where in (webgpu, "cpu"):
        params = _params(where)
        # Steps of no other test: what failed is PyTorch's from then on.
        optimizer = torch.optim.Adam(params, foreach=False, maximize=True, amsgrad=place == "told")
        _gradients(params, 0, where)
        optimizer.step()
        _gradients(params, 1, where)
        if where == webgpu:
            monkeypatch.setattr(stepping.Kinds, "find", lambda *_, **__: None)
            monkeypatch.setattr(owner, name, failing)
            if place == "written":
                # How far it was written cannot be told: the error is the user's.
                with pytest.raises(MemoryError):
                    optimizer.step()
                assert len(calls) == 5
                return
        optimizer.step()
        found.append(_seen(optimizer))
    assert len(calls) == 2
    torch.testing.assert_close(*found, **_CLOSE)
