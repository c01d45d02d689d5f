"""What a compiled function shows of itself: program, kernels, memory, a page, named results, JSON."""

from __future__ import annotations

import itertools
import subprocess
import sys
from html import unescape
from pathlib import Path
from typing import Any

import pytest
from torch.profiler import ProfilerActivity, profile

import webtorch
from benchmarks.models import Work, characters, cnn, gpt, images
from benchmarks.training import batches, initial_weights, our_step, to_ours, to_torch, torch_step
from webtorch.errors import DeviceError
from webtorch.ir.program import Copy, Program
from webtorch.tensors.device import resolve

# What is tested here is nearly the same on all devices.
pytestmark = pytest.mark.one_in(3, device="webgpu")

WORKS = {
    "gpt": Work("gpt", lambda t: gpt(t, 2, 64, 4, 32, 96), characters(8, 32, 96)),
    "cnn": Work("cnn", lambda t: cnn(t, (16, 32), (1, 2)), images(8, 3, 16)),
}


def trained(name: str, device: str = "cpu") -> tuple[Any, Any, Any]:
    """A compiled training step that has run once."""
    work = WORKS[name]
    step = our_step(work, initial_weights(work), device, compiled=True)
    ((x, y),) = to_ours(batches(work, 1), device)
    step(x, y)
    return step, x, y


def torch_peak(step: Any, x: Any, y: Any) -> int:
    """Bytes that PyTorch allocates at once during a step, beyond what was there."""
    step(x, y)
    step(x, y)
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as recorded:
        step(x, y)
    events = recorded.profiler.kineto_results.events()
    now = peak = 0
    for event in sorted((e for e in events if e.name() == "[memory]"), key=lambda e: e.start_ns()):
        now += event.nbytes()
        peak = max(peak, now)
    return peak


@pytest.mark.parametrize("name", WORKS)
def test_a_step_takes_little_more_memory_than_in_pytorch(name: str) -> None:
    work = WORKS[name]
    step, _, _ = trained(name)
    plan = step.memory_plan()
    ((x, y),) = to_torch(batches(work, 1), "cpu")
    peak = torch_peak(torch_step(work, initial_weights(work), "cpu"), x, y)
    assert plan.peak <= 1.2 * (plan.inputs + peak)


def test_the_memory_plan_says_what_is_held_where() -> None:
    step, _, _ = trained("gpt")
    plan = step.memory_plan()
    assert len(plan.timeline) == len(step.program().steps)
    assert max(plan.timeline) == plan.timeline[plan.peak_step]
    assert sum(h.nbytes for h in plan.at_peak) == plan.timeline[plan.peak_step] <= plan.peak
    assert [h.nbytes for h in plan.at_peak] == sorted(
        (h.nbytes for h in plan.at_peak), reverse=True
    )
    names = {h.name for h in plan.buffers if h.role == "input"}
    assert {"x", "y", "model.token.weight", "exp_avg of model.token.weight"} <= names
    assert any("models.py:" in h.line for h in plan.buffers)
    assert "peak" in str(plan)


def test_a_run_allocates_what_the_plan_says() -> None:
    step, x, y = trained("gpt")
    for _ in range(2):
        loss = step(x, y)
    backend = resolve("cpu").backend
    del loss
    backend.reset_peak_memory()
    before = backend.memory_allocated()
    loss = step(x, y)
    plan = step.memory_plan()
    taken = backend.max_memory_allocated() - before
    assert taken <= plan.outputs + plan.temporaries + 4096
    assert loss.item() > 0


def test_the_memory_plan_counts_parts_of_sums() -> None:
    """A product of few outputs and many terms is split: its parts wait in scratch memory."""
    x, y = webtorch.ones(16, 8192, device="webgpu"), webtorch.ones(8192, 16, device="webgpu")
    step = webtorch.compile(lambda x, y: (x @ y).sum())
    assert step(x, y).item() == 16 * 16 * 8192
    plan = step.memory_plan()
    assert plan.scratch >= 2 * 4 * 16 * 16
    assert plan.peak == plan.inputs + plan.outputs + plan.temporaries + plan.scratch
    assert "of scratch memory" in str(plan)
    backend = resolve("webgpu").backend
    backend.reset_peak_memory()
    before = backend.memory_allocated()
    step(x, y).item()
    taken = backend.max_memory_allocated() - before
    assert plan.scratch <= taken + 4096


@pytest.mark.covers("M4")
def test_kernels_show_their_shader_and_the_users_lines(device: str) -> None:
    @webtorch.compile
    def f(x: Any) -> Any:
        return (x * 2 + 1).relu()

    f(webtorch.ones(5, device=device))
    (kernel,) = f.kernels()
    assert "@compute" in kernel.wgsl and kernel.steps == 1
    assert [Path(line).name.partition(":")[0] for line in kernel.lines] == [Path(__file__).name]
    assert "test_looking_inside.py" in str(kernel)


@pytest.mark.covers("M5")
def test_without_a_device_a_function_is_planned_and_not_run() -> None:
    weight = webtorch.ones(300, 200, requires_grad=True)

    @webtorch.compile(device="meta")
    def f(x: Any) -> Any:
        loss = (x @ weight).sum()
        loss.backward()
        return {"loss": loss, "double": x * 2}

    x = webtorch.ones(4, 300)
    x.tolist(), weight.tolist()
    before = resolve("cpu").counters.misses
    out = f(x)
    assert resolve("cpu").counters.misses == before
    assert out["double"].shape == (4, 300) and out["double"].dtype is webtorch.float32
    assert out["loss"].device.type == "meta"
    assert weight.grad is None
    assert f.memory_plan().peak > 300 * 200 * 4
    assert any("matmul" in k.name for k in f.kernels())
    with pytest.raises(DeviceError, match="without device='meta'"):
        out["loss"].item()
    with pytest.raises(ValueError, match="a program runs where its tensors are"):
        webtorch.compile(lambda x: x, device="webgpu")


@pytest.mark.covers("P6")
def test_named_results_are_read_back_together(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    net = webtorch.nn.Sequential(webtorch.nn.Linear(3, 4), webtorch.nn.ReLU()).to(device)

    def f(x: Any) -> Any:
        hidden = webtorch.debug.capture("double", x * 2)
        return net(hidden).sum()

    x = webtorch.ones(2, 3, device=device)
    plain = webtorch.compile(f)
    with webtorch.no_grad():
        plain(x)
        assert plain.captured() == {}
        some = webtorch.compile(f, captures=["double"])
        some(x)
        assert list(some.captured()) == ["double"]
        everything = webtorch.compile(f, captures=True)
        backend = resolve(device).backend
        reads: list[int] = []
        download = backend.download
        monkeypatch.setattr(
            backend,
            "download",
            lambda *args, **options: (reads.append(1), download(*args, **options))[1],
        )
        for factor in (1, 2):
            everything(x * factor)
            reads.clear()
            found = everything.captured()
            assert len(reads) <= 1
            assert set(found) == {"double", "0", "1"}
            assert found["double"].tolist() == [[2.0 * factor] * 3] * 2
            want = net(x * factor * 2)
            assert webtorch.allclose(found["1"], want.cpu())


@pytest.mark.covers("P11")
def test_the_page_stands_alone(tmp_path: Path) -> None:
    step, _, _ = trained("cnn")
    text = step.graph(tmp_path / "step.html")
    assert (tmp_path / "step.html").read_text(encoding="utf-8") == text
    assert "http" not in text.replace("http://www.w3.org/2000/svg", "")
    assert text.count("</script>") == 2 and "{{" not in text


def test_a_program_is_text_and_back_in_another_process(tmp_path: Path) -> None:
    step, _, _ = trained("gpt")
    program = step.program()
    text = program.to_json()
    assert Program.from_json(text) == program
    (tmp_path / "program.json").write_text(text)
    script = (
        "import sys; from pathlib import Path; from webtorch.ir.program import Program; "
        "text = Path(sys.argv[1]).read_text(); program = Program.from_json(text); "
        "assert program.to_json() == text; print(program)"
    )
    shown = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path / "program.json")],
        capture_output=True,
        text=True,
        check=True,
    )
    assert shown.stdout.strip() == str(program)
    with pytest.raises(ValueError, match="not a program"):
        Program.from_json("{}")


def test_a_program_from_text_computes_the_same(device: str) -> None:
    f = webtorch.compile(lambda x, y: ((x @ y).softmax(-1) * float("inf")).sum(0))
    x, y = (webtorch.arange(12.0, device=device).reshape(s) for s in ((3, 4), (4, 3)))
    want = f(x, y).tolist()
    captured = f.latest()
    backend = resolve(device).backend
    again = backend.compile(Program.from_json(f.program().to_json()))
    inputs = [(x, y)[source]._storage.realize().buffer for source in captured.sources]
    (out,) = again.run(inputs, captured.args)
    assert list(webtorch.float32.from_bytes(bytes(backend.download(out)))) == want


def test_steps_that_share_memory_do_not_live_together() -> None:
    step, _, _ = trained("gpt")
    program = step.program()
    life: dict[int, list[int]] = {}
    for i, s in enumerate(program.steps):
        for b in (s.source, s.target) if isinstance(s, Copy) else s.buffers:
            life.setdefault(b, []).append(i)
    slots: dict[int, list[tuple[int, int]]] = {}
    for b, declared in enumerate(program.buffers):
        if declared.role == "temporary" and b in life:
            slots.setdefault(declared.alias, []).append((min(life[b]), max(life[b])))
    for spans in slots.values():
        spans.sort()
        assert all(a[1] < b[0] for a, b in itertools.pairwise(spans))


def test_compiled_functions_and_profiles_have_a_form_for_notebooks() -> None:
    def area(x: Any) -> Any:
        return (x * 2).sum()

    compiled = webtorch.compile(area)
    assert repr(compiled) == "<compiled area: no program yet>"
    assert compiled._repr_html_() is None
    x = webtorch.ones(3)
    compiled(x)
    compiled(x[:2])
    assert repr(compiled) == "<compiled area: 2 programs, the latest of 1 kernel on cpu>"
    with webtorch.profile() as seen:
        compiled(x).item()
    assert repr(seen).startswith("<profile: 1 dispatch on cpu: ")
    for shown in (
        compiled.explain(),
        compiled.program(),
        compiled.memory_plan(),
        seen.key_averages(),
    ):
        assert repr(shown) == str(shown)
    module: Any = webtorch.compile(webtorch.nn.Linear(3, 2))
    assert module._repr_html_() is None
    module(x)
    for html in (compiled._repr_html_(), seen._repr_html_(), module._repr_html_()):
        assert html.startswith("<iframe srcdoc=")
        page = unescape(html.split('"')[1])
        assert page.startswith("<!doctype html>") and "test_looking_inside.py" in page
