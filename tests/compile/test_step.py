"""`webtorch.compile`: a whole training step as one program, equal to the step as it is written."""

from __future__ import annotations

import io
import sys
import time
from collections.abc import Callable
from typing import Any

import pytest

import webtorch
import webtorch.nn.functional as F
from tests.patience import PATIENCE
from webtorch import nn
from webtorch.capture import progress
from webtorch.errors import CaptureError
from webtorch.tensors.device import resolve

# What is tested here is nearly the same on all devices.
pytestmark = pytest.mark.one_in(3, device="webgpu")


class MLP(nn.Module):
    """Linear, gelu, layer norm, linear."""

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.first = nn.Linear(12, 24)
        self.norm = nn.LayerNorm(24)
        self.dropout = nn.Dropout(dropout)
        self.last = nn.Linear(24, 5)

    def forward(self, x: Any) -> Any:
        return self.last(self.dropout(self.norm(F.gelu(self.first(x)))))


def _data(device: str) -> tuple[Any, Any]:
    webtorch.manual_seed(1)
    with webtorch.device("cpu"):
        x, y = webtorch.randn(16, 12), webtorch.randint(0, 5, (16,))
    return x.to(device), y.to(device)


def _training(
    device: str, optimizer: str = "Adam", dropout: float = 0.0, **options: Any
) -> tuple[Callable[[Any, Any], Any], Any, Any]:
    webtorch.manual_seed(0)
    with webtorch.device("cpu"):
        model = MLP(dropout)
    model = model.to(device)
    chosen = getattr(webtorch.optim, optimizer)(model.parameters(), lr=1e-2, **options)

    def step(x: Any, y: Any) -> Any:
        loss = F.cross_entropy(model(x), y)
        chosen.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        chosen.step()
        return loss

    return step, model, chosen


def _losses(
    step: Callable[[Any, Any], Any], optimizer: Any, device: str, count: int = 20
) -> list[float]:
    x, y = _data(device)
    webtorch.manual_seed(7)
    out = []
    for i in range(count):
        # The learning rate changes at every step: it is an argument, not a constant.
        optimizer.param_groups[0]["lr"] = 1e-2 * (1 + i % 3)
        out.append(step(x, y).item())
    return out


@pytest.mark.one_in(2)
@pytest.mark.covers("M2", "M20", "K11", "N18")
@pytest.mark.parametrize(
    ("optimizer", "options"),
    [("Adam", {}), ("AdamW", {"weight_decay": 0.1}), ("SGD", {"momentum": 0.9, "nesterov": True})],
    ids=["adam", "adamw", "sgd"],
)
def test_losses_equal_the_lazy_run_over_20_steps(
    device: str, optimizer: str, options: dict[str, Any]
) -> None:
    step, _, chosen = _training(device, optimizer, **options)
    expected = _losses(step, chosen, device)
    again, _, chosen = _training(device, optimizer, **options)
    compiled = webtorch.compile(again)
    assert _losses(compiled, chosen, device) == pytest.approx(expected, abs=1e-5)
    assert len(compiled.captures) == 1
    assert expected[-1] < expected[0] / 2


def test_random_numbers_advance_as_in_the_lazy_run(device: str) -> None:
    step, _, chosen = _training(device, dropout=0.5)
    expected = _losses(step, chosen, device)
    again, _, chosen = _training(device, dropout=0.5)
    assert _losses(webtorch.compile(again), chosen, device) == pytest.approx(expected, abs=1e-5)


def test_a_replay_records_no_operation_and_compiles_nothing(
    device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    step, _, _ = _training(device)
    compiled = webtorch.compile(step)
    x, y = _data(device)
    for _ in range(3):
        compiled(x, y)

    def refuse(*args: Any, **kwargs: Any) -> None:
        raise AssertionError("an operation was recorded")

    monkeypatch.setattr(webtorch.tensors.calls, "apply", refuse)
    before = resolve(device).counters.misses
    for _ in range(5):
        loss = compiled(x, y)
    assert loss.item() > 0
    assert resolve(device).counters.misses == before


def test_parameters_are_updated_in_their_own_memory(device: str) -> None:
    step, model, _ = _training(device)
    compiled = webtorch.compile(step)
    x, y = _data(device)
    for _ in range(3):
        compiled(x, y)
    storages = [p._storage for p in model.parameters()]
    buffers = [s.realize().buffer for s in storages]
    compiled(x, y)
    assert [p._storage.realize().buffer for p in model.parameters()] == buffers
    assert all(p._storage is s for p, s in zip(model.parameters(), storages, strict=True))


def test_a_clone_taken_between_replays_keeps_its_values(device: str) -> None:
    step, model, _ = _training(device)
    compiled = webtorch.compile(step)
    x, y = _data(device)
    for _ in range(3):
        compiled(x, y)
    kept = model.last.weight.detach().clone()
    values = kept.tolist()
    compiled(x, y)
    assert kept.tolist() == values
    assert model.last.weight.tolist() != values


def test_batch_norm_statistics_follow(device: str) -> None:
    def build() -> tuple[Any, Any]:
        webtorch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 1)).to(
            device
        )
        optimizer = webtorch.optim.SGD(model.parameters(), lr=0.05)

        def step(x: Any) -> Any:
            optimizer.zero_grad()
            loss = model(x).square().mean()
            loss.backward()
            optimizer.step()
            return loss

        return model, step

    x = webtorch.linspace(-1, 1, 32, device=device).reshape(8, 4)
    lazy, step = build()
    expected = [step(x).item() for _ in range(6)]
    compiled_model, step = build()
    compiled = webtorch.compile(step)
    assert [compiled(x).item() for _ in range(6)] == pytest.approx(expected, abs=1e-5)
    assert compiled_model[1].running_mean.tolist() == pytest.approx(
        lazy[1].running_mean.tolist(), abs=1e-6
    )
    assert int(compiled_model[1].num_batches_tracked) == 6


def test_numbers_are_arguments_and_shapes_are_signatures(device: str) -> None:
    @webtorch.compile
    def scale(x: Any, factor: float) -> dict[str, Any]:
        return {"scaled": x * factor, "sum": (x * factor).sum()}

    for size in (3, 5):
        x = webtorch.arange(size, dtype=webtorch.float32, device=device)
        for factor in (1.0, 2.0, -0.5, 4.0):
            result = scale(x, factor)
            assert result["scaled"].tolist() == [i * factor for i in range(size)]
            assert result["sum"].item() == sum(range(size)) * factor
    assert len(scale.captures) == 2


def test_a_module_is_compiled_for_inference(device: str) -> None:
    webtorch.manual_seed(0)
    model = MLP().to(device).eval()
    compiled = webtorch.compile(model)
    x, _ = _data(device)
    with webtorch.no_grad():
        expected = model(x).tolist()
        for _ in range(3):
            for got, want in zip(compiled(x).tolist(), expected, strict=True):
                assert got == pytest.approx(want, abs=1e-6)


def test_reading_a_value_in_a_full_graph_is_an_error_that_says_what_to_do(device: str) -> None:
    @webtorch.compile(fullgraph=True)
    def step(x: Any) -> Any:
        return x * 2 if x.sum().item() > 0 else x

    x = webtorch.ones(3, device=device)
    with pytest.raises(CaptureError, match=r"webtorch\.where") as raised:
        step(x)
    assert "test_step.py" in str(raised.value) and "x.sum().item() > 0" in str(raised.value)
    with pytest.raises(CaptureError, match=r"webtorch\.where"):
        webtorch.compile(lambda x: x * x.tolist()[0], fullgraph=True)(x)
    # Nothing is lost: the tensors are as they were.
    assert (x + 1).tolist() == [2, 2, 2]


def test_the_program_prints(device: str) -> None:
    compiled = webtorch.compile(lambda x: (x * 2 + 1).relu())
    with pytest.raises(RuntimeError, match="call the function once"):
        compiled.program()
    x = webtorch.ones(4, device=device)
    compiled(x)
    program = compiled.program()
    assert len(program.steps) == 1
    assert "input float32[4]" in str(program)


def test_gradients_that_somebody_has_are_not_overwritten(device: str) -> None:
    step, model, _ = _training(device)
    expected_step, expected, _ = _training(device)
    compiled = webtorch.compile(step)
    x, y = _data(device)
    for _ in range(3):
        compiled(x, y)
        expected_step(x, y)

    def held(grads: list[Any]) -> list[Any]:
        """One gradient by each way to have it."""
        first, second, third, fourth, fifth, sixth = grads
        return [
            first,
            second.view(-1),
            third.detach(),
            fourth * 2,
            fifth.untyped_storage(),
            sixth[None].T,
        ]

    def numbers(things: list[Any]) -> list[Any]:
        return [
            (t if isinstance(t, webtorch.Tensor) else webtorch.tensor(t)).tolist()
            for t in things[:4]
        ]

    kept = held([p.grad for p in model.parameters()])
    wanted = numbers(held([p.grad for p in expected.parameters()]))
    for _ in range(2):
        compiled(x, y)
        expected_step(x, y)
    for mine, theirs in zip(numbers(kept), wanted, strict=True):
        assert webtorch.allclose(webtorch.tensor(mine), webtorch.tensor(theirs), 1e-4, 1e-6)
    for p, q in zip(model.parameters(), expected.parameters(), strict=True):
        assert webtorch.allclose(p.grad, q.grad, 1e-4, 1e-6)
        assert webtorch.allclose(p, q, 1e-4, 1e-6)


def test_gradients_are_as_new_after_each_step(device: str) -> None:
    """Whatever was done to the last ones."""
    step, model, _ = _training(device)
    compiled = webtorch.compile(step)
    x, y = _data(device)
    for _ in range(3):
        compiled(x, y)
    first, second, third, fourth, fifth, sixth = model.parameters()
    first.grad.mul_(7)
    second.grad.requires_grad_()
    fourth.grad = third.grad
    fifth.grad.note = "mine"
    sixth.grad.resize_(1)
    compiled(x, y)
    wanted, other, _ = _training(device)
    for _ in range(4):
        wanted(x, y)
    for p, q in zip(model.parameters(), other.parameters(), strict=True):
        assert p.grad.shape == p.shape
        assert not p.grad.requires_grad
        assert not hasattr(p.grad, "note")
        assert webtorch.allclose(p.grad, q.grad, 1e-4, 1e-6)
    assert fourth.grad is not third.grad


def test_gradients_that_nobody_has_take_the_next_values() -> None:
    """Their tensors are not made anew at each replay, where references are counted."""
    device = "webgpu"
    step, model, _ = _training(device)
    compiled = webtorch.compile(step)
    x, y = _data(device)
    for _ in range(3):
        compiled(x, y)
    places = [id(p.grad._storage) for p in model.parameters()]
    memory = webtorch.webgpu.memory_allocated()
    versions = [p.grad._version for p in model.parameters()]
    for _ in range(3):
        compiled(x, y)
    assert [p.grad._version for p in model.parameters()] == [v + 3 for v in versions]
    assert [id(p.grad._storage) for p in model.parameters()] == places
    assert webtorch.webgpu.memory_allocated() == memory
    for p in model.parameters():
        p.grad = None
    assert webtorch.webgpu.memory_allocated() < memory


def test_a_person_at_a_terminal_is_told_what_takes_long(monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[str] = []

    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

        def write(self, text: str) -> int:
            written.append(text)
            return len(text)

    end = time.monotonic() + PATIENCE

    def slow(x: Any) -> Any:
        while sys.stderr.isatty() and not written and time.monotonic() < end:
            time.sleep(0.01)
        return x * 2

    monkeypatch.setattr(progress, "DELAY", 0.05)
    x = webtorch.ones(2, device="cpu")
    webtorch.compile(slow)(x)
    monkeypatch.setattr(sys, "stderr", Terminal())
    compiled = webtorch.compile(slow)
    assert compiled(x).tolist() == [2.0, 2.0]
    assert "compiling slow" in "".join(written)
    written.clear()
    # What is quicker than that is not told.
    monkeypatch.setattr(progress, "DELAY", PATIENCE)
    compiled(x)
    assert not written
