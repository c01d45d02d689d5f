"""Capability rows N: devices, threads, memory and limits."""

from __future__ import annotations

import gc
from typing import Any

import pytest

import webtorch
from tests.capabilities.same import close, ours, values
from webtorch.errors import OutOfMemoryError, WebtorchError

# What is tested here is nearly the same on all devices.
pytestmark = pytest.mark.one_in(3, device="webgpu")


@pytest.mark.covers("N1", "N2")
def test_a_network_runs_on_every_device(device: str) -> None:
    x, w = values(4, 6), values(6, 3, seed=1)
    a, b = ours(x, device), ours(w, device)
    assert a._storage.runtime.backend.name == device
    close((a @ b).softmax(1).log().mean(0), (x @ w).softmax(1).log().mean(0))


@pytest.mark.covers("N4")
def test_results_do_not_depend_on_the_number_of_threads() -> None:
    before = webtorch.get_num_threads()
    x = ours(values(40_000), "cpu")
    found = []
    try:
        for number in (1, 2, 3):
            webtorch.set_num_threads(number)
            found.append((x.sin() * x).view(200, 200).sum(1).tolist())
    finally:
        webtorch.set_num_threads(before)
    assert found[0] == found[1] == found[2]


@pytest.mark.covers("N5")
def test_the_device_is_chosen_once_or_for_each_tensor(need: Any) -> None:
    need("webgpu")
    webtorch.set_default_device("webgpu")
    layer = webtorch.nn.Linear(2, 2)
    assert layer.weight.device.type == "webgpu" == layer(webtorch.ones(1, 2)).device.type
    webtorch.set_default_device("cpu")
    assert webtorch.ones(1).device.type == "cpu"


@pytest.mark.covers("N6", "N10")
def test_memory_is_counted_and_used_again(need: Any) -> None:
    need("webgpu")
    gpu = webtorch.webgpu
    x = webtorch.ones(50_000, device="webgpu")
    (x + 1).tolist()
    gc.collect()
    held = gpu.memory_allocated()
    gpu.reset_peak_memory_stats()
    for i in range(20):
        (x * float(i)).sum().item()
    gc.collect()
    assert gpu.memory_allocated() == held
    assert gpu.max_memory_allocated() <= held + 3 * 200_000
    gpu.empty_cache()


@pytest.mark.covers("N7", "N8", "N9")
def test_memory_goes_back_with_the_last_reference(need: Any) -> None:
    need("webgpu")
    gc.collect()
    gpu = webtorch.webgpu
    before = gpu.memory_allocated()
    big = webtorch.zeros(1000, 100, device="webgpu")
    view = big.t()
    gpu.synchronize()
    assert gpu.memory_allocated() - before >= 400_000
    del big
    assert gpu.memory_allocated() - before >= 400_000
    del view
    assert gpu.memory_allocated() - before < 1000

    def scope() -> float:
        x = webtorch.ones(1000, 100, device="webgpu")
        return (x * 2).exp().mean().item()

    scope()
    assert gpu.memory_allocated() - before < 1000
    cycle: list[Any] = [webtorch.ones(1000, 100, device="webgpu")]
    cycle.append(cycle)
    gpu.synchronize()
    del cycle
    gc.collect()
    assert gpu.memory_allocated() - before < 1000


@pytest.mark.covers("N11", "N12")
def test_the_adapters_limits_are_asked_for_and_named(need: Any) -> None:
    need("webgpu")
    x = webtorch.ones(3, device="webgpu")
    limits = x._storage.runtime.backend.limits
    # WebGPU gives 128 MiB to those who do not ask.
    assert limits.max_binding_bytes >= 128 << 20
    assert limits.max_buffer_bytes >= 256 << 20
    with pytest.raises((OutOfMemoryError, WebtorchError), match=r"[0-9] elements are more than"):
        webtorch.ones(2**31, device="webgpu").sum().item()
    assert (x + 1).tolist() == [2, 2, 2]


@pytest.mark.one_in(2)
@pytest.mark.covers("N13", "N16")
def test_more_workgroups_than_one_dimension_has(device: str) -> None:
    n = 65_536 * 256 + 77 if device == "webgpu" else 70_001
    x = webtorch.arange(n, dtype=webtorch.int32, device=device)
    y = x * 2 + 1
    at = [0, 1, 65_535, n // 2, n - 2, n - 1]
    assert y[webtorch.tensor(at, device=device)].tolist() == [2 * i + 1 for i in at]
    assert (y == 2 * x + 1).all().item()


@pytest.mark.covers("N16")
def test_positions_come_from_the_workgroups_number_and_constants() -> None:
    from webtorch.ir.limits import Limits
    from webtorch.lower.wgsl import render

    # Some mobile drivers give a wrong num_workgroups: no shader may ask for it.
    limits = Limits(1 << 30, 8, 256, 100, 16_384, has_f16=False, is_gpu=True)
    compiled = webtorch.compile(lambda x: x * 2 + x.sum(1, keepdim=True))
    for _ in range(2):
        compiled(webtorch.ones(1500, 40))
    for routine in compiled.program().routines:
        for part in render(routine, limits, "naga"):
            assert "num_workgroups" not in part.source
            assert max(part.grid) <= 100


@pytest.mark.covers("N15")
def test_adapters_are_listed_best_first(need: Any) -> None:
    need("webgpu")
    gpu = webtorch.webgpu
    assert gpu.is_available() and gpu.device_count() >= 1
    assert gpu.get_device_name() and webtorch.device("webgpu").type == "webgpu"
    from webtorch.cli.doctor import find_adapters

    found, _ = find_adapters()
    hardware = [a.is_hardware for a in found]
    assert hardware == sorted(hardware, reverse=True)


@pytest.mark.covers("N2")
def test_the_cpu_needs_no_other_library_for_its_kernels() -> None:
    x = values(300, 7)
    source = webtorch.ones(1)._storage.runtime.backend
    compiled = webtorch.compile(lambda x: (x.sin() * 2).sum(1))
    for _ in range(2):
        close(compiled(ours(x, "cpu")), (x.sin() * 2).sum(1))
    text = source.source(compiled.program().routines[0])
    assert "def " in text and "torch" not in text.replace("webtorch", "")
