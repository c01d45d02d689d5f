"""Capability rows M: recording, whole-step programs, fusion, memory plans and caches."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
import torch

import webtorch
from tests.capabilities.same import close, ours, values
from webtorch.capture.compiled import function_of
from webtorch.ir.kernel import Kernel
from webtorch.ir.limits import Limits
from webtorch.ir.program import Dispatch, Program
from webtorch.lower.compiler import compile_graph
from webtorch.lower.wgsl import render
from webtorch.ops.record import TABLE, Elementwise

# What is tested here is nearly the same on all devices.
pytestmark = pytest.mark.one_in(3, device="webgpu")

nn = webtorch.nn
F = nn.functional
BROWSER = Limits(128 << 20, 8, 256, 65_535, 16_384, has_f16=False, is_gpu=True)


def captured(function: Callable[..., Any], *args: Any) -> Program:
    """Return the program of a function."""
    compiled = webtorch.compile(function)
    for _ in range(2):
        compiled(*args)
    return compiled.program()


def training(device: str) -> tuple[Any, Any, Callable[[Any, Any], Any]]:
    """Return a model, its optimizer and a training step."""
    webtorch.manual_seed(3)
    model = nn.Sequential(nn.Linear(6, 12), nn.GELU(), nn.LayerNorm(12), nn.Linear(12, 3)).to(
        device
    )
    optimizer = webtorch.optim.Adam(model.parameters(), lr=0.01)

    def step(x: Any, y: Any) -> Any:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        return loss

    return model, optimizer, step


def batch(device: str, n: int = 8, seed: int = 0) -> tuple[Any, Any]:
    """Return inputs and labels."""
    x = values(n, 6, seed=seed)
    return ours(x, device), ours(x[:, :3].argmax(1), device)


@pytest.mark.covers("M1")
def test_work_is_recorded_and_runs_when_a_value_is_read(device: str) -> None:
    x = webtorch.ones(4, device=device)
    x.tolist()
    counters = x._storage.runtime.counters
    before = counters.realized
    y = ((x + 1) * 3).exp().log() - 2
    assert counters.realized == before
    assert y.tolist() == pytest.approx([4.0] * 4)
    assert counters.realized == before + 1


@pytest.mark.one_in(2)
@pytest.mark.covers("M2", "K11")
def test_a_whole_training_step_is_one_program(device: str) -> None:
    losses = []
    for compiled in (False, True):
        _, optimizer, step = training(device)
        run = webtorch.compile(step) if compiled else step
        losses.append([])
        for i in range(8):
            optimizer.param_groups[0]["lr"] = 0.01 / (i + 1)
            losses[-1].append(run(*batch(device)).item())
    assert losses[1] == pytest.approx(losses[0], abs=1e-5)
    assert losses[1][-1] < losses[1][0]
    assert len(run.captures) == 1


@pytest.mark.covers("M3", "M18")
def test_training_and_inference_programs_share_parameters(device: str) -> None:
    model, _, step = training(device)
    train, infer = webtorch.compile(step), webtorch.compile(model)
    x, y = batch(device)
    for _ in range(3):
        train(x, y)
        with webtorch.no_grad():
            out = infer(x)
            close(out, torch.tensor(model(x).tolist()).double())
    assert not out.requires_grad
    forward = [s for s in infer.program().steps if isinstance(s, Dispatch)]
    assert len(forward) <= 4 < len(train.program().steps)


@pytest.mark.covers("M4")
def test_programs_and_kernels_are_text() -> None:
    program = captured(lambda x: (x * 2 + 1).relu().sum(1), webtorch.ones(3, 5))
    assert str(program).startswith("program  1 steps, 1 routines")
    assert "output float32[3]" in str(program)
    (kernel,) = program.routines
    assert isinstance(kernel, Kernel)
    assert "r0 = sum" in str(kernel) and "outer=[3] inner=[5]" in str(kernel)


@pytest.mark.covers("M5", "Q5")
def test_graphs_become_wgsl_without_a_device() -> None:
    compiled = webtorch.compile(lambda x, w: F.gelu(x @ w).softmax(-1))
    for _ in range(2):
        compiled(webtorch.ones(64, 32), webtorch.ones(32, 48))
    program = compile_graph(compiled.latest().graph, BROWSER)
    sources = [p.source for r in program.routines for p in render(r, BROWSER, "naga")]
    assert len(sources) >= 2 and all("@compute" in s for s in sources)


@pytest.mark.covers("M6")
def test_an_entry_of_the_table_gives_function_method_and_gradient() -> None:
    public = [
        op for op in TABLE.values() if isinstance(op, Elementwise) and "torch" in op.function_in
    ]
    assert len(public) > 60
    for op in public:
        assert callable(getattr(webtorch, op.name)), op.name
        for alias in op.aliases:
            assert getattr(webtorch, alias) is getattr(webtorch, op.name), alias


@pytest.mark.covers("M7")
def test_shapes_are_part_of_the_kernel_and_numbers_are_not() -> None:
    program = captured(lambda x: (x * 3.5).sum(1), webtorch.ones(7, 13))
    (kernel,) = program.routines
    (part,) = render(kernel, BROWSER, "naga")
    assert "13" in part.source and "3.5" not in part.source
    assert len(program.args) == 1


@pytest.mark.covers("M9")
def test_what_nobody_reads_is_not_computed() -> None:
    def function(x: Any) -> Any:
        x.exp().cumsum(0)
        (x @ x).sum()
        return x + 1

    program = captured(function, webtorch.ones(4, 4))
    assert len(program.steps) == 1 and "exp" not in str(program.routines[0])


FUSED = {
    "M10": lambda x, y, w: ((x * y + 0.5) / (1 + x.abs())).tanh().clamp(min=0),
    "M12": lambda x, y, w: F.rms_norm(x, (16,), w),
    # Two reductions, broadcasts and elementwise work in one launch.
    "M15": lambda x, y, w: (F.layer_norm(x * 2 + y, (16,), w) * 3).softmax(-1) * y,
}


@pytest.mark.parametrize("name", [pytest.param(n, marks=pytest.mark.covers(n)) for n in FUSED])
def test_one_kernel(name: str, device: str) -> None:
    inputs = [values(8, 16), values(8, 16, seed=1), values(16, seed=2)]
    mine = [ours(x, device) for x in inputs]
    program = captured(FUSED[name], *mine)
    assert len(program.steps) == 1, str(program)
    assert not any(b.role == "temporary" for b in program.buffers)
    assert FUSED[name](*mine).shape == (8, 16)


@pytest.mark.covers("M16", "Q6")
def test_temporaries_that_do_not_live_together_share_memory() -> None:
    def deep(x: Any) -> Any:
        for _ in range(8):
            x = (x @ x).softmax(-1)
        return x

    program = captured(deep, webtorch.ones(16, 16))
    # A simulation of the plan: nothing is overwritten while it is still to be read.
    holder: dict[int, int] = {}
    slots = {i: b.alias for i, b in enumerate(program.buffers) if b.role == "temporary"}
    for step in program.steps:
        assert isinstance(step, Dispatch)
        routine = program.routines[step.routine]
        for slot, buffer in zip(routine.buffers, step.buffers, strict=True):
            if buffer in slots:
                if "read" in slot.access:
                    assert holder[slots[buffer]] == buffer
                holder[slots[buffer]] = buffer
    assert len(slots) >= 8 and len(set(slots.values())) <= 3


@pytest.mark.covers("M17")
def test_changes_of_shape_take_no_step() -> None:
    program = captured(
        lambda x: x.reshape(3, 4).t().unsqueeze(0).reshape(2, 6) + 1, webtorch.ones(12)
    )
    assert len(program.steps) == 1
    assert sum(b.role == "temporary" for b in program.buffers) == 0


@pytest.mark.covers("M19")
def test_new_weights_in_a_running_program(device: str) -> None:
    model, _, _ = training(device)
    infer = webtorch.compile(model)
    x, _ = batch(device)
    with webtorch.no_grad():
        for _ in range(3):
            old = infer(x).tolist()
        misses = x._storage.runtime.counters.misses
        model.load_state_dict({k: v * 0.5 for k, v in model.state_dict().items()})
        new = infer(x)
        assert len(function_of(infer).captures) == 1
        assert new.tolist() != old
        assert x._storage.runtime.counters.misses - misses <= 1
        close(new, torch.tensor(model(x).tolist()).double())


@pytest.mark.covers("M20", "N17", "N18")
def test_a_step_is_one_submission_and_reads_nothing_back(
    need: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    need("webgpu")
    _, _, step = training("webgpu")
    run = webtorch.compile(step)
    x, y = batch("webgpu")
    for _ in range(3):
        run(x, y)
    backend = x._storage.runtime.backend
    backend.synchronize()
    submitted, read = [], []
    submit, download = backend.submit, backend.download
    monkeypatch.setattr(backend, "submit", lambda *a: (submitted.append(1), submit(*a))[1])
    monkeypatch.setattr(backend, "download", lambda *a, **o: (read.append(1), download(*a, **o))[1])
    for _ in range(5):
        loss = run(x, y)
    assert len(submitted) == 5 and not read
    assert loss.item() > 0 and len(read) == 1


@pytest.mark.covers("M21", "A26")
def test_each_shape_is_captured_once(device: str) -> None:
    model, _, _ = training(device)
    infer = webtorch.compile(model)
    with webtorch.no_grad():
        for n in (4, 8, 4, 8, 2, 4, 8, 2, 2):
            x, _ = batch(device, n)
            close(infer(x), torch.tensor(model(x).tolist()).double())
    assert len(function_of(infer).captures) == 3


@pytest.mark.covers("M22")
def test_a_kernel_is_compiled_once(need: Any) -> None:
    need("webgpu")

    def work(seed: int) -> Any:
        x = ours(values(33, seed=seed), "webgpu")
        return ((x * 1.25).sin() + seed).tolist()

    work(0)
    before = webtorch.webgpu.kernels_compiled()
    for seed in range(1, 6):
        work(seed)
    assert webtorch.webgpu.kernels_compiled() == before


@pytest.mark.covers("M10", "N2")
def test_limits_of_a_device_bound_what_is_fused() -> None:
    def function(*xs: Any) -> Any:
        return sum(x * (i + 1) for i, x in enumerate(xs))

    xs = [webtorch.full((5,), float(i)) for i in range(12)]
    compiled = webtorch.compile(function)
    for _ in range(2):
        out = compiled(*xs)
    assert out.tolist() == [sum(i * (i + 1) for i in range(12))] * 5
    narrow = compile_graph(compiled.latest().graph, dataclasses.replace(BROWSER, is_gpu=True))
    assert all(len(r.buffers) <= 8 for r in narrow.routines)
