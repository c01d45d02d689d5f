"""Programs are cached by structure: changing numbers compile nothing, and one program is one submission."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch

import webtorch
from tests.conftest import need_device
from tests.patience import PATIENCE
from webtorch.ir import expr as ex
from webtorch.ir.kernel import Scan

# What is tested here is nearly the same on all devices.
pytestmark = pytest.mark.one_in(3, device="webgpu")


def _runtime(device: str) -> Any:
    return webtorch.zeros(1, device=device)._storage.runtime


def _compiled(device: str) -> tuple[int, int]:
    """Return how many programs and kernels have been compiled on a device."""
    runtime = _runtime(device)
    return runtime.counters.misses, getattr(runtime.backend, "kernels_compiled", 0)


@pytest.mark.parametrize("name", ["SGD", "Adam", "AdamW", "RMSprop"])
def test_a_hundred_steps_with_a_schedule_compile_nothing_new(name: str, device: str) -> None:
    """The learning rate, Adam's step count and the program's own constants are runtime arguments."""
    webtorch.manual_seed(0)
    with webtorch.device(device):
        model = webtorch.nn.Linear(4, 3)
        x, y = webtorch.randn(5, 4), webtorch.randn(5, 3)
    options = {"momentum": 0.9} if name == "SGD" else {}
    optimizer = getattr(webtorch.optim, name)(model.parameters(), lr=0.01, **options)
    schedule = webtorch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 100)
    losses, before = [], None
    for step in range(100):
        loss = ((model(x) * (1 + 0.01 * step) - y) ** 2).mean() + 0.37 * step
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        if step % 10 == 0:
            losses.append(loss.item() - 0.37 * step)
        if step == 11:
            before = _compiled(device)
    assert _compiled(device) == before
    assert losses[-1] < losses[0]


def test_reading_many_rows_is_one_program(device: str) -> None:
    x = webtorch.arange(400.0, device=device).reshape(100, 4).clone()
    webtorch.synchronize()
    assert (x[1] * 2).tolist() == [8.0, 10.0, 12.0, 14.0]
    before = _compiled(device)
    rows = [(x[i] * 2).tolist() for i in range(2, 60)]
    assert _compiled(device) == before
    assert rows == [[8.0 * i, 8.0 * i + 2, 8.0 * i + 4, 8.0 * i + 6] for i in range(2, 60)]


def test_writing_many_rows_is_one_program(device: str) -> None:
    """As a key-value cache is filled."""
    cache = webtorch.zeros(32, 4, device=device)
    row = webtorch.ones(4, device=device)
    webtorch.synchronize()
    for i in (0, 1):
        cache[i] = row * i
        webtorch.synchronize()
    before = _compiled(device)
    for i in range(2, 30):
        cache[i] = row * i
        webtorch.synchronize()
    assert _compiled(device) == before
    assert [r[0] for r in cache.tolist()] == [*map(float, range(30)), 0.0, 0.0]


def test_numbers_are_arguments_wherever_they_stand(device: str) -> None:
    x = webtorch.tensor([0.5, 1.0, 2.0], device=device)

    def run(a: float, b: int, lib: Any = webtorch, x: Any = x) -> Any:
        y = (x * a + b).clamp(-a, a * 10) ** 2
        return lib.where(y > a, y, a) / (b + 0.5)

    run(0.3, 3).tolist()
    before = _compiled(device)
    for a, b in ((0.7, 5), (1.9, 2), (12.5, 11)):
        expected = run(a, b, torch, torch.tensor([0.5, 1.0, 2.0]))
        assert run(a, b).tolist() == pytest.approx(expected.tolist(), rel=1e-5)
    assert _compiled(device) == before


def test_a_program_is_one_submission() -> None:
    need_device("webgpu")
    model = webtorch.nn.Sequential(
        webtorch.nn.Linear(8, 16), webtorch.nn.Tanh(), webtorch.nn.Linear(16, 2)
    ).to("webgpu")
    x = webtorch.ones(4, 8, device="webgpu")
    optimizer = webtorch.optim.Adam(model.parameters())
    backend = _runtime("webgpu").backend

    def step() -> None:
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()

    for _ in range(3):
        step()
    webtorch.synchronize()
    before, realized = backend.submits, _runtime("webgpu").counters.realized
    for _ in range(5):
        step()
    programs = _runtime("webgpu").counters.realized - realized
    assert programs == 5
    assert backend.submits - before == programs


def test_what_is_not_asked_for_is_never_computed(device: str) -> None:
    runtime = _runtime(device)
    webtorch.synchronize()
    before = runtime.counters.realized
    x = webtorch.ones(3, device=device)
    for _ in range(10):
        x = x + 1
        unused = x * 100
    del unused
    assert runtime.counters.realized == before
    assert x.tolist() == [11.0] * 3
    assert runtime.counters.realized == before + 1


@pytest.mark.one_in(2)
def test_pending_work_is_bounded(device: str) -> None:
    runtime = _runtime(device)
    webtorch.synchronize()
    before = runtime.counters.realized
    x = webtorch.zeros(1, device=device)
    for _ in range(9000):
        x = x + 1
    assert runtime.counters.realized > before
    assert x.item() == 9000.0


def test_a_failing_program_leaves_other_tensors_usable(
    device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    runtime = _runtime(device)
    webtorch.synchronize()
    original = type(runtime.backend).compile

    def refuse(self: Any, program: Any) -> Any:
        if any(decl.elements == 777 for decl in program.buffers):
            raise webtorch.errors.KernelError("no such kernel here")
        return original(self, program)

    monkeypatch.setattr(type(runtime.backend), "compile", refuse)
    good = webtorch.ones(3, device=device) * 5
    bad = webtorch.ones(777, device=device) * 2
    later = webtorch.ones(2, device=device) + 1
    with pytest.raises(webtorch.errors.KernelError):
        bad.tolist()
    assert good.tolist() == [5.0] * 3
    assert later.tolist() == [2.0, 2.0]
    with pytest.raises(webtorch.errors.KernelError):
        bad.tolist()
    monkeypatch.undo()
    assert bad.sum().item() == 1554.0


@pytest.mark.parametrize("error", [webtorch.errors.KernelError, webtorch.errors.OutOfMemoryError])
def test_after_a_failure_what_is_overwritten_is_still_read(
    error: type[Exception], device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = webtorch.ones(777, device=device)
    webtorch.synchronize()
    y = x * 2
    x.add_(1)
    # Pending after x now, and it reads what x was.
    y = y + 1

    def refuse(self: Any, program: Any) -> Any:
        monkeypatch.undo()
        raise error("no such kernel here")

    monkeypatch.setattr(type(_runtime(device).backend), "compile", refuse)
    with pytest.raises(error):
        x.sum().item()
    assert x.tolist() == [2.0] * 777
    assert y.tolist() == [3.0] * 777


def test_threads_may_use_tensors_at_once(device: str) -> None:
    shared = webtorch.arange(64.0, device=device)
    failures: list[BaseException] = []
    results: dict[int, list[float]] = {}

    def work(number: int) -> None:
        try:
            w = webtorch.full((64,), float(number), device=device, requires_grad=True)
            for _ in range(6):
                loss = (shared * w).sum() / 64
                loss.backward()
                results.setdefault(number, []).append(loss.item())
            total = w.grad.sum().item()
            assert total == pytest.approx(6 * 31.5, rel=1e-5)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    assert not failures, failures
    assert results == {n: [pytest.approx(31.5 * n, rel=1e-5)] * 6 for n in range(4)}


def test_a_dear_expression_is_not_computed_once_for_each_stage_of_a_row(device: str) -> None:
    """A software adapter took many seconds to compile it several times over."""
    x = webtorch.linspace(0.5, 3.0, 40, device=device).reshape(5, 8).clone()
    runtime = _runtime(device)
    webtorch.synchronize()
    for name in ("polygamma", "zeta"):
        call = getattr(webtorch.special, name)
        expected = torch.tensor(x.tolist())
        if name == "polygamma":
            y, expected = call(2, x), torch.special.polygamma(2, expected)
        else:
            y, expected = call(x + 1, x), torch.special.zeta(expected + 1, expected)
        soft = webtorch.nn.functional.softmax(y, -1)
        found = soft.tolist()
        torch.testing.assert_close(torch.tensor(found), expected.softmax(-1), rtol=1e-4, atol=1e-6)
        program = next(reversed(runtime.programs.values())).program
        sizes = [
            sum(1 for root in routine.expressions() for _ in ex.walk(root))
            for routine in program.routines
        ]
        rows = [n for n, r in zip(sizes, program.routines, strict=True) if r.reduces]
        assert rows
        assert max(rows) < 60 < max(sizes), (rows, sizes)
    # One reduction computes everything once: nothing is stored for it.
    webtorch.special.polygamma(2, x).sum(-1).tolist()
    program = next(reversed(runtime.programs.values())).program
    assert len(program.steps) == 1


def test_what_is_read_as_it_is_and_moved_is_computed_once(device: str) -> None:
    """A running sum by doubling: each step would compute the one before at two places, and that its own."""
    x = webtorch.linspace(-2.0, 2.0, 6 * 64, device=device).reshape(6, 64).clone()
    runtime = _runtime(device)
    webtorch.synchronize()
    found = webtorch.logcumsumexp(x, 1).tolist()
    expected = torch.logcumsumexp(torch.tensor(x.tolist()), 1)
    torch.testing.assert_close(torch.tensor(found), expected, rtol=1e-5, atol=1e-5)
    highest, *steps = next(reversed(runtime.programs.values())).program.routines
    assert isinstance(highest, Scan)
    # Two exp of what is added up, one of each of the six steps, log1p after the last: nothing of them twice.
    dear = [
        sum(e.op in ("exp", "log1p") for root in r.expressions() for e in ex.walk(root))
        for r in steps
    ]
    assert dear == [2, 1, 1, 1, 1, 1, 2]
    # What is cheap is computed at both places rather than stored.
    y = x * 2
    both = y + webtorch.nn.functional.pad(y[:, :-1], (1, 0))
    del y
    both.tolist()
    assert len(next(reversed(runtime.programs.values())).program.routines) == 1
