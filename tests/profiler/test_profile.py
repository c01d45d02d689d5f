"""Profiles: which kernels, when, from which line, what they cost, and how it is shown."""

from __future__ import annotations

import gzip
import itertools
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import webtorch
from webtorch.ir.dtype import float32
from webtorch.ir.kernel import Matmul, Products
from webtorch.profiler import record_function, report, roofline, schedule
from webtorch.profiler.roofline import Cost, Peaks, cost
from webtorch.runtime.watch import watch


def _work(device: str) -> Callable[[], Any]:
    a = webtorch.randn(33, 20, device=device)
    b = webtorch.randn(20, 17, device=device)
    webtorch.realize(a, b)

    def run() -> Any:
        c = a @ b  # the product
        return c.softmax(-1).sum()  # the rest

    return run


@pytest.fixture(autouse=True)
def _quick_peaks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Measure the device with little work."""
    for name in ("_PROCESSOR", "_SOFTWARE"):
        monkeypatch.setattr(roofline, name, (4096, 64))
    monkeypatch.setattr(roofline, "_MEASURED", {})


@pytest.mark.covers("P5")
@pytest.mark.parametrize("compiled", [False, True], ids=["lazy", "compiled"])
def test_every_dispatch_is_timed_and_knows_its_line(device: str, compiled: bool) -> None:
    work = _work(device)
    run = webtorch.compile(work) if compiled else work
    run()
    run().item()
    with webtorch.profile() as prof:
        for _ in range(3):
            run().item()
    assert watch.listener is None
    products = [e for e in prof.events if e.kind == "matmul"]
    assert len(products) == 3
    where = "webgpu:0" if device == "webgpu" else "cpu"
    assert {e.device for e in prof.events} == {where}
    for e in prof.events:
        assert 0 <= e.start <= e.end <= prof.seconds * 1.5 + 1e-3
    # One queue: no kernel begins before the one before has ended.
    ordered = sorted(prof.events, key=lambda e: e.start)
    assert ordered == prof.events
    assert all(a.end <= b.start + 1e-9 for a, b in itertools.pairwise(ordered))
    source = Path(__file__).read_text(encoding="utf-8").splitlines()
    lines = {e.kind: e.line for e in prof.events}
    for kind, comment in (("matmul", "the product"), ("reduce", "the rest")):
        path, _, number = lines[kind].rpartition(":")
        assert path == __file__ and comment in source[int(number) - 1]
    # Every run of a program has its kernels, as many as the program has steps.
    assert len(prof.events) % 3 == 0


def test_a_program_gives_the_same_values_while_it_is_watched(device: str) -> None:
    work = _work(device)
    plain = work().item()
    with webtorch.profile():
        watched = work().item()
    assert watched == plain


def test_what_was_pending_before_is_not_counted(device: str) -> None:
    pending = _work(device)()
    with webtorch.profile() as prof:
        pass
    assert prof.events == []
    assert pending.item() == pytest.approx(33.0, rel=1e-5)


def test_what_is_pending_at_the_end_is_counted() -> None:
    with webtorch.profile() as prof:
        result = _work("cpu")()
    assert any(e.kind == "matmul" for e in prof.events)
    assert result.item() == pytest.approx(33.0, rel=1e-5)


def test_what_is_measured_of_the_device_is_in_no_profile() -> None:
    layer = webtorch.nn.Linear(8, 4)
    optimizer = webtorch.optim.SGD(layer.parameters(), lr=0.1)
    x = webtorch.rand(16, 8)

    def step() -> float:
        loss = layer(x).square().sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return float(loss.item())

    for _ in range(2):
        step()
    with webtorch.profile() as prof:
        for _ in range(4):
            step()
    assert "of peak" in str(prof)
    with webtorch.profile() as prof:
        x.sin().tolist()
    assert [e.kind for e in prof.events] == ["map"]


def test_a_device_without_timestamps_is_timed_by_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    from tests.conftest import need_device

    need_device("webgpu")
    work = _work("webgpu")
    backend = work()._storage.runtime.backend
    monkeypatch.setattr(backend, "features", frozenset())
    with webtorch.profile() as prof:
        value = work().item()
    assert value == pytest.approx(33.0, rel=1e-5)
    assert all(e.end > e.start >= 0 for e in prof.events)
    assert any(e.kind == "matmul" for e in prof.events)


def test_costs_are_those_of_the_mathematics() -> None:
    with webtorch.profile() as prof:
        a = webtorch.ones(8, 16)
        b = webtorch.ones(16, 4)
        webtorch.realize(a, b)
        (a @ b).tolist()
        (a * 2 + a.t().reshape(8, 16)).tolist()
        a.sum().item()
        webtorch.cumsum(a, 0).tolist()
    costs = [(e.kind, e.nbytes, e.flops) for e in prof.events]
    assert ("matmul", 4 * (8 * 16 + 16 * 4 + 8 * 4), 2 * 8 * 16 * 4) in costs
    # Two reads and a write of 128 numbers, a product and a sum for each.
    assert ("map", 4 * 3 * 128, 2 * 128) in costs
    assert ("reduce", 4 * (128 + 1), 128) in costs
    assert ("scan", 4 * 2 * 128, 128) in costs


def test_a_gather_counts_what_it_picks_and_not_the_table() -> None:
    table = webtorch.ones(1000, 4)
    index = webtorch.tensor([1, 5, 7])
    webtorch.realize(table, index)
    with webtorch.profile() as prof:
        table[index].tolist()
    assert [e.nbytes for e in prof.events] == [3 * 8 + 4 * 12 * 2]


def test_a_batch_with_one_shared_matrix_reads_it_once() -> None:
    slots = tuple(webtorch.ir.kernel.BufferSlot(float32, "read", 10**6) for _ in range(3))
    shared = Matmul("m", (5,), 2, 3, 4, (8, 4, 1), (0, 3, 1), 0, 0, slots)
    assert cost(shared) == Cost(4 * (5 * 8 + 12 + 5 * 6), 2 * 5 * 2 * 3 * 4)


def test_products_of_one_left_operand_read_it_once() -> None:
    slot = webtorch.ir.kernel.BufferSlot(float32, "read", 10**6)
    one, other = (
        Matmul("m", (1,), 2, n, 4, (8, 4, 1), (0, n, 1), 0, 0, (slot,) * 3) for n in (3, 5)
    )
    joint = Products("p", (one, other), ((0, 1, 2), (0, 3, 4)), ((), ()), (slot,) * 5)
    assert cost(joint) == Cost(4 * (8 + 12 + 6 + 20 + 10), 2 * 2 * 4 * (3 + 5))


def test_every_part_of_an_attention_has_a_cost(
    device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A training step: two products forward, five backward."""
    monkeypatch.setenv("WEBTORCH_ATTENTION", "fused")
    q, k, v = (webtorch.randn(1, 2, 32, 8, device=device, requires_grad=True) for _ in range(3))
    webtorch.realize(q, k, v)
    with webtorch.profile() as prof:
        webtorch.nn.functional.scaled_dot_product_attention(q, k, v).sum().backward()
        webtorch.realize(q.grad, k.grad, v.grad)
    one = 2 * 2 * 32 * 32 * 8
    found = sum(e.flops for e in prof.events if e.kind == "attention")
    assert found == pytest.approx((2 + 5) * one, rel=0.01)


def test_the_roof() -> None:
    peaks = Peaks(bandwidth=100.0, flops=1000.0)
    assert peaks.share(Cost(50, 10), 1.0) == (0.5, "memory")
    assert peaks.share(Cost(10, 800), 1.0) == (0.8, "compute")


def test_the_table(device: str) -> None:
    work = _work(device)
    with webtorch.profile() as prof:
        work().item()
    text = str(prof)
    assert re.search(r"kernel +line +calls +total +% +mean +GB/s +GFLOP/s +of peak", text)
    assert re.search(r"matmul_1x33x20x17|matmul_1x33x17x20", text)
    assert "test_profile.py:" in text
    averages = prof.key_averages()
    assert averages.total_average().seconds == pytest.approx(sum(e.seconds for e in prof.events))
    for order in ("cuda_time_total", "self_cpu_time_total", "count", "share", "key", None):
        assert averages.table(sort_by=order, row_limit=1).count("\n") >= 2
    assert averages.table(row_limit=1).endswith(f"and {len(averages) - 1} more")
    with pytest.raises(ValueError, match="cannot sort by 'colour'"):
        averages.table(sort_by="colour")


def test_the_trace_is_chrome_s(device: str, tmp_path: Path) -> None:
    work = _work(device)
    with webtorch.profile() as prof, record_function("my part"):
        work().item()
    prof.export_chrome_trace(tmp_path / "trace.json")
    trace = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    kernels = [e for e in trace if e["ph"] == "X" and e["pid"] == 1]
    assert len(kernels) == len(prof.events)
    names = {e["args"]["name"] for e in trace if e["name"] == "process_name"}
    assert names == {"host", "webgpu:0" if device == "webgpu" else "cpu"}
    (mine,) = [e for e in trace if e["name"] == "my part"]
    assert mine["dur"] > 0 and mine["cat"] == "range"
    for e in kernels:
        assert e["ts"] >= mine["ts"] - 1 and e["dur"] >= 0


def test_traces_for_tensorboard_lie_in_a_folder(tmp_path: Path) -> None:
    handler = webtorch.profiler.tensorboard_trace_handler(
        str(tmp_path / "log"), "me", use_gzip=True
    )
    with webtorch.profile(
        schedule=webtorch.profiler.schedule(wait=0, warmup=1, active=1), on_trace_ready=handler
    ) as prof:
        for _ in range(4):
            webtorch.ones(3, device="cpu").exp().tolist()
            prof.step()
    files = sorted((tmp_path / "log").iterdir())
    assert len(files) == 2
    for file in files:
        assert file.name.startswith("me.") and file.name.endswith(".pt.trace.json.gz")
        assert json.loads(gzip.decompress(file.read_bytes()))["traceEvents"]


def test_the_page_holds_everything_and_no_text_ends_its_script(tmp_path: Path) -> None:
    with webtorch.profile() as prof, record_function("</script><b>hostile & co"):
        _work("cpu")().item()
    path = prof.save(tmp_path / "profile.html")
    page = path.read_text(encoding="utf-8")
    assert page.count("</script>") == 2
    assert not re.search(r'(src|href)="?(https?:)?//', page) and "@import" not in page
    found = re.search(r'<script id="data" type="application/json">(.*?)</script>', page, re.S)
    assert found is not None
    data = json.loads(found[1])
    assert len(data["events"]) == len(prof.events)
    assert "</script><b>hostile & co" in [s[0] for s in data["spans"]]
    assert all(data["sources"][str(k["source"])] for k in data["kernels"])


def test_ranges_compilations_and_steps_are_on_the_host_s_track() -> None:
    @record_function("decorated")
    def part() -> Any:
        return (webtorch.ones(3, 5, 7) * 4.25).sum((0, 2)).tolist()

    with webtorch.profile() as prof:
        part()
        prof.step()
        part()
        prof.step()
    names = [s.name for s in prof.spans if s.kind in ("range", "step")]
    assert names == ["decorated", "ProfilerStep#0", "decorated", "ProfilerStep#1"]
    with record_function("outside"):
        pass


def test_schedules_are_those_of_pytorch() -> None:
    for options in (
        {"wait": 1, "warmup": 1, "active": 2, "repeat": 2, "skip_first": 1},
        {"wait": 0, "warmup": 2, "active": 1},
        {"wait": 3, "warmup": 1, "active": 3, "repeat": 1, "skip_first_wait": 1},
    ):
        theirs, ours = torch.profiler.schedule(**options), schedule(**options)
        assert [ours(i).name for i in range(14)] == [theirs(i).name for i in range(14)]
    for lib in (torch, webtorch):
        with pytest.raises(AssertionError, match=r"active=0 \(need > 0\)"):
            lib.profiler.schedule(wait=0, warmup=0, active=0)
        with pytest.warns(UserWarning, match="won't be using warmup"):
            lib.profiler.schedule(wait=0, warmup=0, active=1)


def test_a_schedule_chooses_the_steps_that_are_recorded() -> None:
    work, seen = _work("cpu"), []
    with webtorch.profiler.profile(
        activities=[webtorch.profiler.ProfilerActivity.CPU],
        schedule=schedule(wait=1, warmup=1, active=2, repeat=1),
        on_trace_ready=lambda p: seen.append(sum(e.kind == "matmul" for e in p.events)),
    ) as prof:
        for _ in range(7):
            work().item()
            prof.step()
    assert seen == [2]


def test_profiles_do_not_nest_and_always_end() -> None:
    with (
        webtorch.profile(),
        pytest.raises(RuntimeError, match="another profile"),
        webtorch.profile(),
    ):
        pass
    assert watch.listener is None
    with pytest.raises(ZeroDivisionError), webtorch.profile():
        _ = 1 / 0
    assert watch.listener is None
    with pytest.raises(RuntimeError, match="without start"):
        webtorch.profile().stop()


def _first(x: Any) -> Any:
    return x.sin() * 3  # the first


def _second(x: Any) -> Any:
    return x.sin() * 3  # the second


def _marked(mark: str) -> str:
    lines = Path(__file__).read_text("utf-8").splitlines()
    (number,) = [i for i, line in enumerate(lines, 1) if line.endswith(f"  # {mark}")]
    return f"{Path(__file__).name}:{number}"


@pytest.mark.parametrize("way", ["at once", "compiled", "on disk", "in steps"])
def test_lines_are_those_of_calls_not_of_programs(
    way: str, device: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Functions with one expression share a program, and are two rows."""
    first, second = _first, _second
    if way == "compiled":
        first, second = webtorch.compile(first), webtorch.compile(second)
    if way == "on disk":
        # Small programs are not kept, as a rule.
        monkeypatch.setenv("WEBTORCH_CACHE_DIR", str(tmp_path))
        monkeypatch.setattr("webtorch.runtime.kept.SMALLEST", 0)
        monkeypatch.setattr("webtorch.runtime.kept.WORTH", 0.0)
    x = webtorch.rand(8, 4, device=device)
    if way == "in steps":
        for _ in range(6):
            (first(x) + 1).sum().item()
            second(x).tolist()
    with webtorch.profile() as seen:
        for _ in range(3):
            first(x).tolist()
            second(x).tolist()
    rows = {report.short_line(row.line): row.count for row in seen.key_averages()}
    assert rows == {_marked("the first"): 3, _marked("the second"): 3}
