"""Data parallelism: a batch over several devices gives the numbers and gradients of its parts on one."""

from __future__ import annotations

import copy
from collections import namedtuple
from typing import Any

import pytest
import torch

import webtorch
from tests.conftest import need_device
from webtorch import nn
from webtorch.nn.parallel import data_parallel, gather, parallel_apply, replicate, scatter

# What is tested here is nearly the same on all devices.
pytestmark = pytest.mark.one_in(3, device="webgpu")

Pair = namedtuple("Pair", "one two")


@pytest.fixture(params=["cpu cpu", "webgpu webgpu", "cpu webgpu"])
def devices(request: pytest.FixtureRequest) -> list[webtorch.device]:
    """Two devices: where there is a second adapter, another one."""
    names = request.param.split()
    if "webgpu" in names:
        need_device("webgpu")
    if names[0] == "webgpu" and webtorch.webgpu.device_count() > 1:
        names[1] = "webgpu:1"
    return [webtorch.device(n if n == "cpu" or ":" in n else f"{n}:0") for n in names]


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Tanh())
        self.heads = nn.ModuleList([nn.Linear(6, 3), nn.Linear(6, 3)])
        self.heads[1].weight = self.heads[0].weight  # tied
        self.recurrent = nn.GRU(3, 3, batch_first=True)

    def forward(self, x: Any, scale: float = 1.0, shift: Any = None) -> Any:
        h = self.body(x)
        out = self.recurrent((self.heads[0](h) + self.heads[1](h)).unsqueeze(1))[0].squeeze(1)
        return {"out": out * scale if shift is None else out * scale + shift, "mean": h.mean()}


class Reference(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = torch.nn.Sequential(
            torch.nn.Linear(4, 6), torch.nn.BatchNorm1d(6), torch.nn.Tanh()
        )
        self.heads = torch.nn.ModuleList([torch.nn.Linear(6, 3), torch.nn.Linear(6, 3)])
        self.heads[1].weight = self.heads[0].weight
        self.recurrent = torch.nn.GRU(3, 3, batch_first=True)

    forward = Net.forward


def _pair(device: Any) -> tuple[Net, Reference]:
    torch.manual_seed(0)
    reference, net = Reference(), Net()
    state = {k: webtorch.from_numpy(v.numpy()) for k, v in reference.state_dict().items()}
    net.load_state_dict(state)
    return net.to(device), reference


@pytest.mark.covers("N19")
@pytest.mark.filterwarnings("ignore:Was asked to gather")
def test_trains_as_the_parts_on_one_device(devices: list[webtorch.device]) -> None:
    net, reference = _pair(devices[0])
    parallel = nn.DataParallel(net, devices)
    ours = webtorch.optim.SGD(parallel.parameters(), lr=0.1, momentum=0.9)
    theirs = torch.optim.SGD(reference.parameters(), lr=0.1, momentum=0.9)
    for step in range(3):
        x = torch.randn(7, 4)
        ours.zero_grad()
        found = parallel(webtorch.from_numpy(x.numpy()), scale=2.0)
        assert found["out"].device == devices[0] and found["out"].shape == (7, 3)
        assert found["mean"].shape == (2,)
        loss = found["out"].square().sum() + found["mean"].sum()
        loss.backward()
        ours.step()
        # What runs on the second device starts from the first one's statistics; only the first one's stay.
        second = copy.deepcopy(reference)
        theirs.zero_grad()
        first, other = x.chunk(2)
        a, b = reference(first, scale=2.0), second(other, scale=2.0)
        wanted = sum(p["out"].square().sum() + p["mean"] for p in (a, b))
        wanted.backward()
        for mine, twin in zip(reference.parameters(), second.parameters(), strict=True):
            mine.grad += twin.grad
        theirs.step()
        torch.testing.assert_close(
            loss.item(), wanted.item(), rtol=1e-4, atol=1e-5, msg=f"step {step}"
        )
    for name, value in reference.state_dict().items():
        mine = torch.from_numpy(net.state_dict()[name].numpy(force=True))
        torch.testing.assert_close(
            mine, value, rtol=1e-4, atol=1e-5, msg=lambda m, n=name: f"{n}: {m}"
        )


def test_second_derivatives_pass_between_devices(devices: list[webtorch.device]) -> None:
    layer = nn.Linear(3, 1).to(devices[0])
    x = webtorch.arange(12.0, device=devices[0]).view(4, 3) / 6
    out = data_parallel(layer, x, devices).exp().sum()
    (grad,) = webtorch.autograd.grad(out, layer.weight, create_graph=True)
    (second,) = webtorch.autograd.grad(grad.square().sum(), layer.weight)
    alone = layer(x).exp().sum()
    (wanted,) = webtorch.autograd.grad(alone, layer.weight, create_graph=True)
    webtorch.testing.assert_close(grad, wanted)
    (wanted,) = webtorch.autograd.grad(wanted.square().sum(), layer.weight)
    webtorch.testing.assert_close(second, wanted, rtol=1e-4, atol=1e-5)


def test_scatter_and_gather_keep_structures(devices: list[webtorch.device]) -> None:
    x = webtorch.arange(10).view(5, 2)
    value = Pair([x, {"x": x, "name": "n"}], (x, None))
    first, second = scatter(value, devices)
    assert isinstance(first, Pair) and first.one[1]["name"] == "n" and first.two[1] is None
    assert [t.shape[0] for t in (first.one[0], second.one[1]["x"])] == [3, 2]
    assert (first.two[0].device, second.two[0].device) == tuple(devices)
    back = gather(
        [Pair(first.one[0], (first.two[0], None)), Pair(second.one[0], (second.two[0], None))], -1
    )
    assert isinstance(back, Pair) and back.two[1] is None and back.one.device.type == "cpu"
    assert back.one.tolist() == back.two[0].tolist() == x.tolist()
    assert scatter(x.t(), devices, dim=1)[1].shape == (2, 2)
    assert len(scatter(x[:1], [*devices, *devices])) == 1
    with pytest.raises(ValueError, match="same number of keys"):
        gather([{"a": x}, {}], "cpu")
    with pytest.warns(UserWarning, match="instead unsqueeze"):
        assert gather([x.sum(), x.sum()], devices[1]).shape == (2,)


def test_replicas(devices: list[webtorch.device]) -> None:
    net, _ = _pair(devices[0])
    first, second = replicate(net, devices)
    assert type(second) is Net and next(second.parameters()).device == devices[1]
    assert first.body[0].weight is net.body[0].weight
    assert second.heads[0].weight is second.heads[1].weight
    assert not replicate(net, devices, detach=True)[1].body[0].weight.requires_grad
    with pytest.raises(AssertionError, match="number of modules 2 is not equal"):
        parallel_apply([first, second], [webtorch.ones(1, 4)])
    with pytest.raises(RuntimeError) as caught:
        parallel_apply([first], [webtorch.ones(2, 5, device=devices[0])], None, devices)
    assert caught.value.__notes__ == [f"Caught in replica 0 on device {devices[0]}."]


def test_where_the_module_is_not() -> None:
    need_device("webgpu")
    parallel = nn.DataParallel(nn.Linear(2, 2, device="cpu"), ["webgpu", "cpu"])
    with pytest.raises(RuntimeError, match=r"on device webgpu:0 \(device_ids\[0\]\) but found one"):
        parallel(webtorch.ones(4, 2))


def test_fewer_rows_than_devices_and_no_inputs(devices: list[webtorch.device]) -> None:
    layer = nn.Linear(2, 2).to(devices[0])
    parallel = nn.DataParallel(layer, devices)
    x = webtorch.ones(1, 2, device=devices[0])
    assert parallel(x).tolist() == layer(x).tolist()
    with webtorch.no_grad():
        assert not parallel(x).requires_grad

    class Constant(nn.Module):
        def forward(self) -> Any:
            return webtorch.ones(3)

    assert nn.DataParallel(Constant(), devices)().tolist() == [1.0, 1.0, 1.0]


def test_a_derived_class_replaces_the_parts() -> None:
    seen = []

    class Own(nn.DataParallel):
        def scatter(self, inputs: Any, kwargs: Any, device_ids: Any) -> Any:
            seen.append(("scatter", len(inputs), sorted(kwargs), len(device_ids)))
            return super().scatter(inputs, kwargs, device_ids)

        def replicate(self, module: Any, device_ids: Any) -> Any:
            seen.append(("replicate", len(device_ids)))
            return super().replicate(module, device_ids)

        def parallel_apply(self, replicas: Any, inputs: Any, kwargs: Any) -> Any:
            seen.append(("apply", len(replicas), len(inputs)))
            return super().parallel_apply(replicas, inputs, kwargs)

        def gather(self, outputs: Any, output_device: Any) -> Any:
            seen.append(("gather", len(outputs), str(output_device)))
            return super().gather(outputs, output_device)

    layer, x = nn.Linear(2, 2), webtorch.ones(3, 2)
    assert Own(layer, ["cpu", "cpu"])(x).tolist() == layer(x).tolist()
    assert seen == [("scatter", 1, [], 2), ("replicate", 2), ("apply", 2, 2), ("gather", 2, "cpu")]


def test_cards_are_hardware_and_none_twice() -> None:
    from webtorch.runtime.backends.webgpu import adapters

    need_device("webgpu")
    found = adapters()
    cards = webtorch.webgpu.graphics_cards()
    assert all(found[i].is_hardware for i in cards)
    assert len({found[i].backend_type for i in cards}) <= 1
    # Without a card the module is called where it is.
    if not cards:
        layer = nn.Linear(2, 2, device="cpu")
        assert nn.DataParallel(layer).device_ids == []
        assert nn.DataParallel(layer)(webtorch.ones(1, 2, device="cpu")).device.type == "cpu"


@pytest.mark.parametrize("way", ["function", "method"])
@pytest.mark.filterwarnings("ignore:Was asked to gather")
def test_replicas_of_a_compiled_module_run_where_they_are(
    devices: list[webtorch.device], way: str
) -> None:
    net = _pair(devices[0])[0].eval()
    x = webtorch.randn(6, 4, device=devices[0])
    found = []
    for compiled in (False, True):
        model: Any = net
        if compiled and way == "function":
            model = webtorch.compile(net)
        elif compiled:
            net.compile()
        net.zero_grad()
        out = nn.DataParallel(model, devices)(x)["out"]
        out.sum().backward()
        found.append((out.tolist(), net.body[0].weight.grad.tolist()))
    for ours, theirs in zip(*found, strict=True):
        torch.testing.assert_close(torch.tensor(ours), torch.tensor(theirs))
