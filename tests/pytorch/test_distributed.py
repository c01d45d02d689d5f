"""Several processes: what collectives give on the device, and models that train on parts of a batch."""

from __future__ import annotations

import gc
import importlib
import json
import os
import subprocess
import sys
import threading
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from tests.patience import PATIENCE
from tests.pytorch.ranks import COLLECTIVES, MODELS, RANKS
from webtorch.errors import DeviceError
from webtorch.ir.dtype import float32
from webtorch.pytorch import copying, device, optimizer
from webtorch.runtime.arrivals import Arrival
from webtorch_autoload.device import module

ROOT = Path(__file__).parents[2]
Found = list[dict[str, Any]]


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Found:
    """What each rank found."""
    folder = tmp_path_factory.mktemp("ranks")
    command = [sys.executable, "-m", "tests.pytorch.ranks", str(folder)]
    environment = {**os.environ, "WEBTORCH_PYTORCH_ENGINE": "cpu", "LOCAL_WORLD_SIZE": str(RANKS)}
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=PATIENCE
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(RANKS)]


@pytest.mark.parametrize("name", COLLECTIVES)
def test_collectives_are_those_of_the_cpu(found: Found, name: str) -> None:
    for each in found:
        here, there = each[name]
        assert there == here


@pytest.mark.parametrize("name", [name for name in COLLECTIVES if name != "profiled"])
def test_collectives_through_shared_memory_are_the_same(found: Found, name: str) -> None:
    for each in found:
        assert each[f"{name}, shared"] == each[name][0]


def test_sums_that_gloo_has_not_on_the_cpu(found: Found) -> None:
    for each in found:
        assert each["int16"] == [3, 5, 7]
        assert each["mean of integers"] == [1, 2, 3]
        assert each["mean"] == [1.5, 2.5, 3.5]


@pytest.mark.parametrize("kind", MODELS)
def test_parts_of_a_batch_train_as_the_whole(found: Found, kind: str) -> None:
    # Gradients that travel as bfloat16 have 8 bits.
    near = {"bfloat16": 2e-2, "PowerSGD": 1e-4}.get(kind, 1e-6)
    assert all(each[kind] <= near for each in found)


@pytest.mark.parametrize(
    "kind", ["unused", "static graph", "norm", "DTensor", "cut sequences", "compiled later"]
)
def test_modules_of_several_processes_are_those_of_the_cpu(found: Found, kind: str) -> None:
    assert all(each[kind] <= 2e-6 for each in found)


def test_sums_hold_no_memory_when_they_are_there(found: Found) -> None:
    # A loop then meets the same memory in each step, and binds its programs once.
    assert all(each["kept"] <= 0 for each in found)


def test_what_is_sent_is_copied_before_what_is_computed_next(found: Found) -> None:
    # By the thread that computes: in a thread of its own it would come after all that is enqueued meanwhile.
    assert all(each["put by"] == ["MainThread"] * 6 for each in found)


def test_a_program_is_known_before_it_is_waited_for(found: Found) -> None:
    for each in found:
        events = each["events"]
        assert all(now == "known" for before, now in pairwise(events) if before == "settle")
        # An optimizer's step with a forward pass, and what is sent of the buffers in the next step; then
        # a backward pass.
        assert len(events) - events.count("settle") == 2


def test_compiled_modules_are_not_cut_where_processes_share_memory(found: Found) -> None:
    assert all(each["cut"] == [False, True] for each in found)


def test_what_waits_reads_what_was_there(webgpu: str) -> None:
    x, coming = torch.arange(4.0).to(webgpu), torch.zeros(4, device=webgpu)
    arrival = Arrival()
    device.runtime().arriving.append(arrival)
    copying.expect(coming, arrival.node(tuple(coming.shape), float32))
    late = x * 2 + coming
    x += 1
    first = torch.ones(3, device=webgpu) * 3
    assert first.tolist() == [3, 3, 3]
    assert device.memory_of(first).held.node.kind == "buffer"
    assert device.memory_of(late).held.node.kind != "buffer"
    sent = copying.upload(torch.ones(4), device.TO_WEBTORCH[torch.float32])
    arrival.come(sent._storage.node.buffer)
    assert [late.tolist(), x.tolist()] == [[1, 3, 5, 7], [1, 2, 3, 4]]


def test_what_is_recorded_while_a_value_is_waited_for_comes_after(webgpu: str) -> None:
    for turn in range(5):
        x, coming = torch.ones(64, device=webgpu) * turn, torch.zeros(64, device=webgpu)
        sent = torch.ones(64, device=webgpu) * 3
        sent.cpu()
        data = device.memory_of(sent).held.node.buffer
        arrival = Arrival(data)
        device.runtime().arriving.append(arrival)
        copying.expect(coming, arrival.node(tuple(coming.shape), float32))
        x.mul_(2)
        made = (x + coming).relu()

        def write(
            x: torch.Tensor = x,
            arrival: Arrival = arrival,
            data: object = data,
            more: int = turn != 3,
        ) -> None:
            """Overwrite what is to be read, and let the value come."""
            if more:
                x.add_(more)
            arrival.come(data)

        threading.Timer(0.02, write).start()
        assert made.tolist() == [2.0 * turn + 3] * 64
        assert x.tolist() == [2.0 * turn + (turn != 3)] * 64
        assert coming.tolist() == [3.0] * 64


def test_what_was_taken_while_a_value_does_not_come_is_given_back(webgpu: str) -> None:
    runtime = device.runtime()
    if runtime.kind != "webgpu":
        pytest.skip("the CPU's programs take no memory ahead")
    x, error = torch.ones(4096, device=webgpu), DeviceError("nobody sent it")

    def computed(error: Exception | None) -> torch.Tensor:
        """Compute with a value whose memory is known before it comes."""
        coming, sent = torch.zeros(4096, device=webgpu), torch.ones(4096, device=webgpu) * 2
        sent.cpu()
        data = device.memory_of(sent).held.node.buffer
        arrival = Arrival(data)
        runtime.arriving.append(arrival)
        copying.expect(coming, arrival.node(tuple(coming.shape), float32))
        made = (x * 2 + coming).relu() * x
        threading.Timer(0.05, arrival.come, (data, error)).start()
        return made.cpu()

    for _ in range(3):
        assert computed(None).sum() == 4 * 4096
    gc.collect()
    before = torch.webgpu.memory_allocated()
    with pytest.raises(DeviceError, match="nobody sent it"):
        computed(error)
    # Frames of the error hold tensors.
    error.__traceback__ = None
    gc.collect()
    assert torch.webgpu.memory_allocated() == before


def test_a_process_of_several_has_a_device_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(RuntimeError, match=r"there is one WebGPU device, number 0$"):
        torch.webgpu.set_device(1)
    monkeypatch.setenv("LOCAL_RANK", "1")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    torch.webgpu.set_device(1)
    assert module.device_count() in (0, 2)
    with pytest.raises(RuntimeError, match="which is also number 1, as this is process 1 of its"):
        torch.webgpu.set_device(2)


def test_a_group_that_sends_nothing_leaves_tensors_as_they_are() -> None:
    fake = importlib.import_module("torch.testing._internal.distributed.fake_pg")
    dist.init_process_group("fake", rank=0, world_size=4, store=fake.FakeStore())
    try:
        x = torch.arange(3.0, device="webgpu")
        dist.all_reduce(x)
        assert x.tolist() == [0.0, 1.0, 2.0]
        layer = torch.nn.Linear(8, 8, device="webgpu")
        importlib.import_module("torch.distributed.fsdp").fully_shard(layer)
        layer(torch.ones(2, 8, device="webgpu")).sum().backward()
        assert layer.bias.grad.to_local().shape == (2,)
    finally:
        dist.destroy_process_group()


def _through_a_bucket(device: str, what: str, turn: int) -> list[Any]:
    """Write products into the parts of one tensor and copy them out, with something that may come between."""
    shapes = [(2, 3), (4,), (1, 2)]
    flat = torch.arange(12.0).to(device)
    views = [flat[0:6].view(2, 3), flat[6:10], flat[10:12].view(1, 2)]
    values = [
        (torch.arange(8.0) + turn + i).to(device)[: v.numel()] * 1 for i, v in enumerate(views)
    ]
    given = [x.reshape(s) for x, s in zip(values, shapes, strict=True)]
    found: list[Any] = []
    for number in (1, 0, 2):
        if what == "copied" and number != 1:
            views[number].copy_(given[number])
        else:
            torch.mul(given[number], 1.0 if what == "one" else 0.5, out=views[number])
        if what == "read":
            found.append(flat.tolist())
        elif what == "overwritten":
            given[number].mul_(3)
        elif what == "partial" and number == 0:
            break
        elif what == "written":
            flat[4:7] = 9.0
        elif what == "gone":
            given[number] = values[number] = views[number]
    if what == "two factors":
        torch.mul(given[0], 0.25, out=views[0])
    outs = [torch.zeros(s).to(device) for s in shapes]
    for out, view in zip(outs, views, strict=True):
        out.copy_(view)
        if what == "moved":
            flat.add_(1)
    outs[0].add_(1)
    again = torch.zeros(4).to(device).copy_(views[1])
    return [*found, flat.tolist(), again.tolist(), *[x.tolist() for x in (*outs, *given)]]


@pytest.mark.parametrize(
    "what",
    [
        "nothing",
        "one",
        "read",
        "overwritten",
        "partial",
        "written",
        "gone",
        "two factors",
        "moved",
        "copied",
    ],
)
def test_parts_of_a_bucket_are_written_and_read(what: str) -> None:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        for turn in range(5):
            actual = _through_a_bucket("webgpu", what, turn)
            assert actual == _through_a_bucket("cpu", what, turn)
    finally:
        dist.destroy_process_group()


def _stepped(device: str, turns: int) -> list[Any]:
    """Scale, clip and step with gradients that are the parts of one tensor, whose values are read in between."""
    shapes = [(2, 3), (4,), (1, 2)]
    weights = [torch.nn.Parameter(torch.ones(s).to(device)) for s in shapes]
    optimizers = [
        torch.optim.SGD(weights, 0.1, momentum=0.9),
        torch.optim.Adam(weights, 0.1, fused=True),
    ]
    scaler = torch.amp.GradScaler(device, init_scale=4.0)
    scaler.scale(torch.ones((), device=device))
    flat, found = torch.zeros(12).to(device), list[Any]()
    for turn in range(turns):
        views = [flat[0:6].view(2, 3), flat[6:10], flat[10:12].view(1, 2)]
        for number, (weight, view) in enumerate(zip(weights, views, strict=True)):
            given = torch.arange(1.0 + turn, 1.0 + turn + weight.numel()).to(device)
            torch.mul(given.reshape(weight.shape) * (number + 1), 0.5, out=view)
            weight.grad = view
        stepped = optimizers[turn % 2]
        scaler.unscale_(stepped)
        found.append(float(torch.nn.utils.clip_grad_norm_(weights, 1.0)))
        scaler.step(stepped)
        scaler.update()
        found.append([flat.tolist(), *[w.detach().flatten().tolist() for w in weights]])
    return found


def test_gradients_in_a_bucket_are_stepped_by_known_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    learned: list[int] = []
    learn = optimizer._Rows._learn

    def counted(self: optimizer._Rows, *args: Any) -> Any:
        """Count it, and learn."""
        learned.append(1)
        return learn(self, *args)

    monkeypatch.setattr(optimizer._Rows, "_learn", counted)
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        actual = _stepped("webgpu", 8)
        counts = len(learned)
        for ours, theirs in zip(actual, _stepped("cpu", 8), strict=True):
            for a, b in zip(*[x if isinstance(x, list) else [x] for x in (ours, theirs)]):
                assert a == pytest.approx(b, rel=1e-5, abs=1e-7)
        learned.clear()
        _stepped("webgpu", 8)
        # A first step makes the momentum of each parameter.
        assert counts and len(learned) <= 3
    finally:
        dist.destroy_process_group()


def test_who_gave_accelerate_a_plugin_is_told_that_it_makes_replicas(
    monkeypatch: pytest.MonkeyPatch, recwarn: pytest.WarningsRecorder
) -> None:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        for asked in ("false", "true"):
            monkeypatch.setenv("ACCELERATE_USE_FSDP", asked)
            torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 2).to("webgpu"))
            told = [w for w in recwarn.list if "takes no FSDP plugin" in str(w.message)]
            assert len(told) == (asked == "true")
    finally:
        dist.destroy_process_group()


def test_profiles_name_what_goes_through_shared_memory(found: Found) -> None:
    for each in found:
        assert "shared memory:allreduce" in each["profiled names"]
