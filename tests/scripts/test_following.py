"""What a script promises, when it is computed, and what ends it."""

from __future__ import annotations

import contextlib
import copy
import gc
import itertools
import random
import threading
import weakref
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import webtorch as torch
from tests.scripts.following import scripts
from webtorch import nn
from webtorch.nn import recurrence
from webtorch.scripts import following, patience, stop_to_look
from webtorch.scripts.changes import changes
from webtorch.scripts.following import Follower
from webtorch.tensors import remember

# What is tested here is nearly the same on all devices.
pytestmark = pytest.mark.one_in(3, device="webgpu")


@pytest.fixture
def follower() -> Iterator[Any]:
    with scripts(True) as found:
        yield found


class Training:
    """A model that is trained step by step, on batches that are equal for equal seeds."""

    def __init__(self, device: str = "cpu", *layers: nn.Module) -> None:
        torch.manual_seed(0)
        self.device = device
        self.model = nn.Sequential(nn.Linear(4, 8), *layers, nn.Linear(8, 3)).to(device)
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=0.05)
        self.data = torch.randn(100, 4).to(device)
        self.count = 0

    def forward(self, rows: int = 4) -> Any:
        x = self.data[self.count : self.count + rows]
        self.count += rows
        return self.model(x)

    def step(self, rows: int = 4) -> Any:
        loss = self.forward(rows).square().mean()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss

    def promised(self, follower: Any) -> tuple[Any, Any]:
        """Return a promised result, and what it is to be."""
        self.until_followed(follower)
        x = self.data[self.count : self.count + 4]
        # Reading ends the run.
        expected = torch.tensor(copy.deepcopy(self.model)(x).tolist())
        out = self.forward()
        assert follower().run.promised
        return out, expected

    def until_followed(self, follower: Any) -> Follower:
        """Train until steps follow a script."""
        for _ in range(8):
            self.step()
            if follower().counts["followed"] > 1:
                return follower()
        raise AssertionError(f"no step followed a script: {follower().reasons}")


def values(training: Training) -> list[Any]:
    return [p.tolist() for p in training.model.parameters()]


def test_a_step_follows_from_its_fourth_time_on(device: str, follower: Any) -> None:
    training = Training(device)
    for _ in range(9):
        training.step()
    # Once to see that it comes again, and twice to know it.
    assert follower().counts["followed"] >= 5
    assert follower().counts["left"] == 0
    with scripts(False):
        plain = Training(device)
        for _ in range(9):
            plain.step()
    for p, q in zip(training.model.parameters(), plain.model.parameters(), strict=True):
        torch.testing.assert_close(p, q)


def test_nothing_is_recorded_while_a_script_is_followed(follower: Any) -> None:
    training = Training()
    training.until_followed(follower)
    out = training.forward()
    runtime = training.data._storage.runtime
    assert not [r for r in runtime.pending if r() is not None]
    assert out.shape == (4, 3)
    assert out.requires_grad
    assert not out.is_leaf
    assert out.device == training.data.device
    assert follower().run.promised


def test_a_promised_tensor_that_is_read_has_its_value(follower: Any) -> None:
    out, expected = Training().promised(follower)
    torch.testing.assert_close(out.detach(), expected)
    assert out.grad_fn is not None
    assert out.grad_fn.name() == "AddmmBackward0"


def test_a_hook_on_a_promised_tensor_sees_its_gradient(follower: Any) -> None:
    training = Training()
    training.until_followed(follower)
    seen = []
    out = training.forward()
    out.register_hook(lambda g: seen.append(g.tolist()))
    out.sum().backward()
    assert seen == [[[1.0] * 3] * 4]


def test_an_error_in_the_middle_loses_nothing(follower: Any) -> None:
    training = Training()
    training.until_followed(follower)
    out = training.forward()
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        out @ torch.ones(2, 2)
    loss = out.square().mean()
    training.optimizer.zero_grad()
    loss.backward()
    before = values(training)
    training.optimizer.step()
    assert values(training) != before


def test_another_thread_may_read_what_is_promised(follower: Any) -> None:
    out, expected = Training().promised(follower)
    read = []
    thread = threading.Thread(target=lambda: read.append(out.tolist()))
    thread.start()
    thread.join()
    torch.testing.assert_close(torch.tensor(read[0]), expected)


CHANGES: dict[str, Any] = {
    "frozen": lambda p: p.requires_grad_(False),
    "hooked": lambda p: p.register_hook(lambda g: g * 0),
    "another memory": lambda p: setattr(p, "data", torch.full((8,), 2.0)),
    "another shape": lambda p: setattr(p, "data", torch.ones(2, 8)),
}


@pytest.mark.parametrize("elsewhere", [False, True], ids=["here", "elsewhere"])
@pytest.mark.parametrize("change", CHANGES)
def test_a_parameter_that_was_changed_is_compared_anew(
    change: str, elsewhere: bool, follower: Any
) -> None:
    p, q = (torch.full((8,), v).requires_grad_() for v in (0.5, 3.0))
    x = torch.arange(8.0)

    def step() -> list[Any]:
        p.grad = q.grad = None
        # Exact in float32.
        loss = (x * p * q).square().sum()
        loss.backward()
        return [loss.tolist(), *(None if t.grad is None else t.grad.tolist() for t in (p, q))]

    before = [step() for _ in range(6)]
    assert follower().counts["followed"] >= 2
    if elsewhere:
        thread = threading.Thread(target=CHANGES[change], args=(p,))
        thread.start()
        thread.join()
    else:
        CHANGES[change](p)
    after = [step() for _ in range(6)]
    assert before[1:] == before[:-1]
    assert after[1:] == after[:-1]
    with scripts(False):
        assert step() == after[0] != before[0]


def test_a_write_from_elsewhere_comes_after_what_was_called_before(follower: Any) -> None:
    training = Training()
    training.until_followed(follower)
    x = training.data[training.count : training.count + 4].clone()
    expected = training.model(x).tolist()
    out = training.forward()
    training.data.zero_()
    torch.testing.assert_close(out.detach(), torch.tensor(expected))


def test_random_numbers_come_in_the_order_of_the_calls(follower: Any) -> None:
    def run(training: Training) -> list[Any]:
        torch.manual_seed(5)
        out = []
        for i in range(9):
            loss = training.step()
            if i == 6:
                training.forward()
                out.append(torch.rand(2).tolist())
            out.append(loss.item())
        return out

    found = run(Training("cpu", nn.Dropout(0.5)))
    assert follower().counts["followed"] > 2
    with scripts(False):
        plain = run(Training("cpu", nn.Dropout(0.5)))
    for a, b in zip(found, plain, strict=True):
        torch.testing.assert_close(torch.tensor(a), torch.tensor(b))


def test_a_schedule_leaves_no_script(follower: Any) -> None:
    training = Training()
    schedule = torch.optim.lr_scheduler.ExponentialLR(training.optimizer, 0.9)
    for _ in range(12):
        training.step()
        schedule.step()
    # Once, to learn that the rate comes to an argument of the program.
    assert follower().counts["left"] <= 1
    assert follower().counts["followed"] >= 6


def test_each_size_has_its_script(follower: Any) -> None:
    training = Training()
    for i in range(16):
        training.step(4 if i % 2 else 3)
    counts = follower().counts
    assert counts["scripts"] == 2
    assert counts["followed"] >= 10


def test_setting_a_default_type_ends_scripts(follower: Any) -> None:
    training = Training()
    training.until_followed(follower)
    found = follower()
    torch.set_default_dtype(torch.float64)
    try:
        assert not found.root.following
    finally:
        torch.set_default_dtype(torch.float32)


def test_memory_does_not_grow(follower: Any) -> None:
    training = Training()
    training.until_followed(follower)
    step = iter(range(10**6))

    def again() -> None:
        training.count = next(step) % 50
        training.step()

    # Kernels become machine code on the way.
    for _ in range(300):
        again()
    gc.collect()
    before = len(gc.get_objects())
    for _ in range(300):
        again()
    gc.collect()
    assert len(gc.get_objects()) - before < 200
    assert follower().counts["left"] == 0


def test_a_model_that_is_dropped_is_freed(follower: Any) -> None:
    training = Training()
    training.until_followed(follower)
    weight = weakref.ref(training.model[0].weight)
    del training
    gc.collect()
    assert weight() is None


def test_what_was_recorded_in_part_is_not_done_again(follower: Any) -> None:
    x, total = torch.arange(40.0), torch.zeros(2)
    expected = 0.0
    for i in [0, 0, 0, 0, 0, 4, 0, 4, 4, 0]:
        # A view from the beginning and one from further on are called alike, and are two programs.
        total.add_(x[i : i + 2])
        total.mul_(1.5)
        expected = (expected + i) * 1.5
        assert total.tolist()[0] == pytest.approx(expected)


def test_other_pending_work_is_no_part_of_a_run(follower: Any) -> None:
    training = Training()
    training.until_followed(follower)
    apart = torch.ones(3)
    for i in range(4):
        out = training.forward()
        # Needs nothing of the step, and is pending when the step's program runs.
        apart = apart + i
        loss = out.square().mean()
        training.optimizer.zero_grad()
        loss.backward()
        training.optimizer.step()
    assert apart.tolist() == [7.0] * 3
    assert out.grad_fn is not None


def test_a_view_of_a_view_has_an_offset_of_its_own(follower: Any) -> None:
    w, flat = torch.zeros(2, 3), torch.arange(400.0)
    expected = torch.zeros(2, 3)
    for i in range(1, 12):
        part = flat[i : i + 20][6:12].view(2, 3)
        w.add_(flat[i + 1 : i + 7].view(2, 3)).add_(part)
        expected = torch.tensor(
            [[float(i + 1 + 3 * r + c + i + 6 + 3 * r + c) for c in range(3)] for r in range(2)]
        )
        assert w.tolist() == expected.tolist()
        w = torch.zeros(2, 3)
    assert follower().counts["followed"] > 4


def test_classes_and_rows_may_begin_anywhere_in_their_memory(follower: Any) -> None:
    table, w = torch.randn(10, 4), torch.randn(5, 4, requires_grad=True)
    ids, classes = torch.arange(60) % 10, torch.arange(60) % 5
    steps, offsets = [], [*range(3, 60, 3)]
    for i in offsets:
        rows = torch.nn.functional.embedding(ids[i : i + 3], table).tanh().relu().exp()
        loss = torch.nn.functional.cross_entropy(rows @ w.t(), classes[i : i + 3])
        (g,) = torch.autograd.grad(loss, w)
        steps.append(g.sum(0).tolist())
    counts = follower().counts
    assert counts["followed"] > len(offsets) // 2
    stop_to_look()
    for i, found in zip(offsets, steps, strict=True):
        rows = table[ids[i : i + 3]].tanh().relu().exp()
        loss = torch.nn.functional.cross_entropy(rows @ w.t(), classes[i : i + 3])
        (g,) = torch.autograd.grad(loss, w)
        assert g.sum(0).tolist() == pytest.approx(found, abs=1e-5)


def test_a_loop_that_samples_is_followed(follower: Any) -> None:
    table = torch.randn(6, 6).softmax(-1)

    def text(length: int) -> list[list[int]]:
        ids = torch.zeros(1, 1, dtype=torch.int64)
        for _ in range(length):
            ids = torch.cat([ids, torch.multinomial(table[ids[:, -1]] * 0.5, 1)], 1)
        found: list[list[int]] = ids.tolist()
        return found

    torch.manual_seed(0)
    texts = [text(4) for _ in range(9)]
    assert follower().counts["followed"] > 4
    stop_to_look()
    torch.manual_seed(0)
    assert [text(4) for _ in range(9)] == texts


def test_weights_that_a_followed_call_is_given_are_checked(follower: Any) -> None:
    for i in range(9):
        weights = torch.tensor([[0.5, 0.25, 1.0 if i < 8 else -1.0]])
        rows = weights.expand(4, 3) * 2 + 0
        if i == 8:
            with pytest.raises(RuntimeError, match="element < 0"):
                torch.multinomial(rows, 2, True).tolist()
        else:
            assert {*torch.multinomial(rows, 2, True).flatten().tolist()} <= {0, 1, 2}
    assert follower().counts["followed"] > 4


def test_values_that_two_tensors_share_are_told_apart_later(follower: Any) -> None:
    a, total = torch.ones(3), 0.0
    for i in range(9):
        b = a.clone()
        if i > 5:
            b.mul_(2)
        out = (a + b * 10).sum().item()
        assert out == 33.0 if i < 6 else 63.0
        total += out
    assert follower().counts["followed"] > 1


@pytest.mark.parametrize("shares", ["the tensor", "its memory", "its value"])
def test_tensors_that_came_again_and_again_are_told_from_new_ones(
    shares: str, follower: Any
) -> None:
    a, b, total = torch.ones(3), torch.full((3,), 2.0), torch.zeros(3)
    for i in range(24):
        x = torch.full((3,), float(i))
        torch.realize(x)
        first = a
        if i >= 12 and i % 3 == 0:
            # What stood for itself is what comes later, or lies there.
            x = {"the tensor": b, "its memory": b.view(3), "its value": b.clone()}[shares]
        elif i >= 12 and i % 3 == 1:
            first = b
        with torch.no_grad():
            total.zero_()
            total.add_(x * 2)
            total.add_(first * 3)
            total.add_(b)
            b.add_(1)
            total.add_(x + first)
        was = b.tolist()[0] - 1
        given = {b: was}.get(x, was) if i >= 12 and i % 3 == 0 else float(i)
        one = was if first is b else 1.0
        now = given + (x is b or (shares == "its memory" and i >= 12 and i % 3 == 0))
        last = one + (first is b)
        assert total.tolist() == [given * 2 + one * 3 + was + now + last] * 3, i
    assert follower().counts["followed"] > 4


def test_one_tensor_in_two_places_is_told_from_two_that_came_again(follower: Any) -> None:
    a, b = torch.full((3,), 5.0), torch.full((3,), 2.0)
    for i in range(60):
        # Each comes first in one script, and second in the other.
        if i % 2:
            assert (b * 3 - a * 2).sum().item() == -12.0
            continue
        first = b if 24 <= i < 36 or i in (50, 56) else a
        out = (first * 2 + b) * b
        assert out.sum().item() == (36.0 if first is b else 72.0), i
    assert follower().counts["followed"] > 30


def _read_in_threads(gradient: Any) -> list[Any]:
    found: list[Any] = []
    threads = [threading.Thread(target=lambda: found.append(gradient * 2)) for _ in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    # One storage for all, or they could be written apart.
    gradient.mul_(2)
    assert [t.tolist() for t in found] == [gradient.tolist()] * 4
    return (gradient / 2).tolist()


_LOOKS: dict[str, Any] = {
    "read": lambda g: g.tolist(),
    "write": lambda g: (g.mul_(2) / 2).tolist(),
    "capture": lambda g: torch.compile(lambda: g * 1)().tolist(),
    "threads": _read_in_threads,
    "part": lambda g: [g[i].tolist() for i in range(len(g))],
    "copy": lambda g: copy.deepcopy(g).tolist(),
    "graph": lambda g: g.tolist() if g.grad_fn is None and g._base is None and g.is_leaf else [],
}


@pytest.mark.parametrize("look", _LOOKS.values(), ids=_LOOKS)
def test_gradients_that_nobody_looked_at_are_there_later(look: Any, follower: Any) -> None:
    found: list[Any] = []
    for reads in (True, False):
        training = Training()
        for _ in range(12):
            training.step()
        kept: list[Any] = []
        for _ in range(4):
            training.step()
            gradient = training.model[0].weight.grad
            kept.append(gradient.tolist() if reads else gradient)
        found.append(torch.tensor(kept if reads else [look(g) for g in kept]))
    # Kernels become machine code on the way.
    assert torch.allclose(found[0], found[1], rtol=1e-4, atol=1e-6)
    assert follower().counts["followed"] > 8


def test_a_write_that_computes_nothing_is_done(follower: Any) -> None:
    w = torch.ones(3)
    for i in range(9):
        before = w.clone()
        w.add_(float(1))
        moved = w.sum().item()
        w.copy_(before)
        assert (w * 2 + w).sum().item() == 9.0, i
        assert moved == 6.0


def test_arrays_that_see_other_memory_change_nothing(follower: Any) -> None:
    kept = [torch.ones(2).add(i).numpy() for i in range(70)]
    training = Training()
    training.until_followed(follower)
    weight = training.model[0].weight.detach().numpy()
    before = weight.copy()
    training.step()
    training.step()
    assert (weight != before).any()
    assert (weight == training.model[0].weight.detach().numpy()).all()
    assert kept[3].tolist() == [4.0, 4.0]


def test_whoever_asks_for_memory_sees_what_is_alive(device: str, follower: Any) -> None:
    training = Training(device)
    training.until_followed(follower)
    backend = training.data._storage.runtime.backend
    before = backend.memory_allocated()
    large = torch.ones(64, 512, device=device)
    (large * 2).sum().item()
    large.add_(1)
    del large
    assert backend.memory_allocated() - before < 8192


# What is computed with a number that is another one at each step.
NUMBERS: dict[str, Any] = {
    "product": lambda y, t: y * t,
    "power": lambda y, t: (y.abs() + 0.1) ** t,
    "dropout": lambda y, t: nn.functional.dropout(y, t / 4),
    "full": lambda y, t: y + torch.full((3,), t),
    "tensor": lambda y, t: y + torch.tensor(t),
    "slope": lambda y, t: nn.functional.leaky_relu(y, t),
    "bounds": lambda y, t: y.clamp(-t, 2 * t),
    "blend": lambda y, t: torch.lerp(y, y * y, t),
    "factor": lambda y, t: torch.add(y, y, alpha=t),
    "two": lambda y, t: (y * t).abs() * (1 - t),
}


@pytest.mark.parametrize("name", NUMBERS)
def test_a_number_may_change_at_each_step(name: str, follower: Any) -> None:
    def run(training: Training) -> list[Any]:
        torch.manual_seed(3)
        for i in range(12):
            y = NUMBERS[name](training.forward(), 0.3 + i * 0.0625)
            training.optimizer.zero_grad()
            y.square().mean().backward()
            training.optimizer.step()
        return values(training)

    found = run(Training())
    # Known after three: one with a number, and two with others (and three for two lines).
    assert follower().counts["followed"] >= 7
    with scripts(False):
        plain = run(Training())
    for a, b in zip(found, plain, strict=True):
        torch.testing.assert_close(torch.tensor(a), torch.tensor(b))


def test_a_number_that_decides_leaves(follower: Any) -> None:
    x, seen = torch.arange(1.0, 5.0), []
    numbers = [0.3, 0.5, 0.7, 0.9, 1.1, 2.0, 1.3, 0.0, 0.4, float("inf"), -1.0, 3.0, 0.5, 2.5]
    for t in numbers:
        seen.append(((x * 2) ** t + x * t).tolist())
    assert follower().counts["followed"] >= 2
    with scripts(False):
        assert seen == [((x * 2) ** t + x * t).tolist() for t in numbers]


def test_a_number_that_makes_a_shape_is_compared(follower: Any) -> None:
    x = torch.arange(16.0).reshape(1, 1, 4, 4)
    for i in range(10):
        factor = 1.5 + 0.25 * i
        found = nn.functional.interpolate(x * 2, scale_factor=factor) + 1
        assert found.shape[-1] == int(4 * factor)
        assert found.sum().item() > 0


def test_an_error_of_a_number_is_raised_where_it_is_called(follower: Any) -> None:
    x = torch.ones(3)
    for p in (0.1, 0.2, 0.3, 0.4, 0.5):
        (nn.functional.dropout(x * 2, p) + 1).tolist()
    assert follower().counts["followed"]
    with pytest.raises(ValueError, match="dropout probability has to be between 0 and 1"):
        (nn.functional.dropout(x * 2, 1.5) + 1).tolist()


def test_a_step_under_autocast_is_followed(device: str, follower: Any) -> None:
    training = Training(device)

    def step(on: bool) -> None:
        kind = torch.device(device).type
        with torch.autocast(kind, torch.float16 if kind == "webgpu" else None, enabled=on):
            out = training.forward()
        assert (out.dtype is torch.float32) != on
        training.optimizer.zero_grad()
        out.float().square().mean().backward()
        training.optimizer.step()

    for _ in range(6):
        step(True)
    assert follower().counts["followed"] >= 3
    # The same calls with autocast off are others.
    step(False)
    step(True)
    assert follower().counts["followed"] >= 4


def test_what_autocast_cast_stands_for_what_is_written_until_the_context_ends(
    follower: Any,
) -> None:
    def run(t: Any) -> list[Any]:
        model, x, found = t.nn.Linear(4, 4, bias=False), t.ones(2, 4), []
        with t.no_grad():
            model.weight.copy_(t.arange(16).view(4, 4) / 8)
        for _ in range(3):
            with t.autocast("cpu"):
                for i in range(12):
                    # From the second on, the weight's cast is there already; with gradients, also where it was made
                    # without, but not in inference mode.
                    with t.set_grad_enabled(i % 2 == 1):
                        out = model(x)
                    with t.inference_mode():
                        found.append(model(x).float().tolist())
                    found.append([out.float().tolist(), out.requires_grad])
                    if i % 8 == 7:
                        with t.no_grad():
                            model.weight.mul_(2)
        return found

    assert run(torch) == run(pytest.importorskip("torch"))
    assert follower().counts["followed"] >= 12


def test_a_step_with_a_scaler_is_followed(device: str, follower: Any) -> None:
    def run(training: Training) -> list[Any]:
        scaler = torch.amp.GradScaler(device, init_scale=1024.0, growth_interval=3)
        seen = []
        for i in range(12):
            loss = training.forward().square().mean()
            if i == 7:
                loss = loss * float("inf")
            training.optimizer.zero_grad()
            scaler.scale(loss).backward()
            scaler.unscale_(training.optimizer)
            nn.utils.clip_grad_norm_(training.model.parameters(), 0.5)
            scaler.step(training.optimizer)
            scaler.update()
            if i > 6:
                seen.append(scaler.get_scale())
        return [seen, *values(training)]

    found = run(Training(device))
    # Four are read, and one overflows.
    assert follower().counts["followed"] >= 6
    with scripts(False):
        plain = run(Training(device))
    assert found[0] == plain[0] == [2048.0, 2048.0, 2048.0, 4096.0, 4096.0]
    for a, b in zip(found[1:], plain[1:], strict=True):
        torch.testing.assert_close(torch.tensor(a), torch.tensor(b))


def test_a_context_that_is_over_keeps_nothing(follower: Any) -> None:
    model, x = nn.Linear(4, 4), torch.ones(2, 4)
    kept, seen = [], []
    for _ in range(8):
        with torch.autocast("cpu"):
            first = model(x)
            first.sum().item()
            second = model(x * 2)
        # Both have used one cast of the weight, which the first keeps alive.
        kept.append(first)
        second.sum().backward()
        with torch.no_grad():
            model.weight += 1
        seen.append(second.detach()[0, 0].item())
    steps = [b - a for a, b in itertools.pairwise(seen)]
    assert steps == pytest.approx([8.0] * 7, abs=0.3)


def test_a_write_between_two_calls_that_were_followed_is_noticed(follower: Any) -> None:
    x, w = torch.ones(3), torch.ones(3, requires_grad=True)
    for _ in range(7):
        y = w * x
        z = (y * y).sum()
        x.add_(1.0)
        seen = z.detach()
        del y, z
        (x + seen).tolist()
    assert follower().counts["followed"] > 2
    y = w * x
    z = (y * y).sum()
    x.add_(1.0)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        (z * 3).backward()


def test_a_view_knows_after_a_read_that_its_memory_was_written(follower: Any) -> None:
    layer = torch.nn.Linear(3, 2)
    # What it gives are views that a function of ours has made.
    layer.register_full_backward_hook(lambda *_: None)
    for step in range(8):
        out = layer(torch.ones(4, 3, requires_grad=True))
        loss = out.sum()
        out.detach()[0] = 2.0
        loss.item()
        if step > 6:
            with pytest.raises(RuntimeError, match="modified inplace"):
                out.register_hook(lambda g: g)
        loss.backward()
        layer.zero_grad()
    assert follower().counts["followed"] > 2


def test_what_a_script_knows_changes_places(follower: Any) -> None:
    training = Training()
    for step in range(12):
        if step == 8:
            weight = training.model[0].weight
            before = weight.detach().clone()
            torch.utils.swap_tensors(weight, nn.Parameter(before * 2))
            assert torch.equal(weight, before * 2)
            training.optimizer = torch.optim.Adam(training.model.parameters(), lr=0.05)
        training.optimizer.zero_grad()
        loss = training.forward().square().mean()
        loss.backward()
        training.optimizer.step()
    assert follower().counts["followed"] > 4
    reference = weakref.ref(weight)
    with pytest.raises(RuntimeError, match="has weakref"):
        torch.utils.swap_tensors(weight, nn.Parameter(before))
    assert reference() is weight


def test_a_context_that_was_compared_in_vain_has_no_number(follower: Any) -> None:
    w, x = torch.ones(3, 3, requires_grad=True), torch.ones(3, 3)
    optimizer = torch.optim.SGD([w], lr=0.1)
    for step in range(12):
        if step > 8:
            with torch.autocast("cpu"):
                # Nothing of it is computed.
                x.t()
        optimizer.zero_grad()
        with torch.autocast("cpu"):
            loss = (w.t() @ x).square().mean()
        loss.backward()
        optimizer.step()
    assert follower().counts["scripts"] == 1
    assert follower().counts["followed"] > 6


def test_a_copy_of_a_parameter_is_made_again_with_its_flag_of_then(follower: Any) -> None:
    p = torch.nn.Parameter(torch.ones(2, 3))
    found = []
    for _ in range(8):
        copied = p.t().reshape(-1)
        result = copied * 2
        p.requires_grad_(not p.requires_grad)
        assert copied._base is None
        found.append(result.requires_grad)
        (copied + 1).sum().item()
    assert found == [True, False] * 4
    assert follower().counts["left"]


def test_a_class_that_is_asked_is_asked_each_time(follower: Any) -> None:
    asked = []

    class Asked(torch.Tensor):
        @classmethod
        def __torch_function__(
            cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            asked.append(func.__name__)
            with torch._C.DisableTorchFunctionSubclass():
                return func(*args, **(kwargs or {}))

    x = torch.ones(3).as_subclass(Asked)
    for i in range(9):
        asked.clear()
        out = (torch.mul(x, 2) + torch.ones(3)).exp().sum()
        assert "mul" in asked
        assert out.item() == pytest.approx(60.2566), i


def test_memory_of_a_value_that_was_replaced_is_free(follower: Any) -> None:
    training = Training()
    training.until_followed(follower)
    old = weakref.ref(training.model[0].weight._storage.node)
    new = torch.tensor([[1.0] * 4] * 8)
    with torch.no_grad():
        # Two tensors share the value from here on, and nothing is computed.
        training.model[0].weight.copy_(new)
    gc.collect()
    assert old() is None


class Reading(Training):
    """A model whose loss is read before each backward pass."""

    def step(self, rows: int = 4, micro: int = 1) -> Any:
        self.optimizer.zero_grad()
        for _ in range(micro):
            self.out = self.forward(rows)
            loss = self.out.square().mean()
            self.losses = [*self.losses, loss.item()]
            loss.backward()
        self.optimizer.step()
        return loss

    losses: tuple[Any, ...] | list[Any] = ()

    def read(self, follower: Any) -> Any:
        """Return a loss that was followed and read, and was not passed backward."""
        self.until_followed(follower)
        self.optimizer.zero_grad()
        self.out = self.forward()
        loss = self.out.square().mean()
        loss.item()
        assert follower().run.promised
        return loss


@pytest.mark.parametrize("micro", [1, 3])
def test_a_step_goes_on_after_its_loss_is_read(device: str, follower: Any, micro: int) -> None:
    training = Reading(device, nn.Dropout(0.2))
    for _ in range(8):
        training.step(4, micro)
    # Two computations or more belong to one step.
    assert follower().counts["followed"] >= 4 * (micro + 1)
    assert follower().counts["left"] == 0
    with scripts(False):
        plain = Reading(device, nn.Dropout(0.2))
        for _ in range(8):
            plain.step(4, micro)
    assert training.losses == pytest.approx(plain.losses, rel=1e-4)
    for p, q in zip(training.model.parameters(), plain.model.parameters(), strict=True):
        torch.testing.assert_close(p, q)


def test_a_critic_and_a_generator_share_a_graph(follower: Any) -> None:
    def train() -> list[Any]:
        torch.manual_seed(0)
        generator, critic = nn.Linear(3, 4), nn.Sequential(nn.Linear(4, 5), nn.Tanh())
        first = torch.optim.Adam(generator.parameters(), lr=0.1)
        second = torch.optim.Adam(critic.parameters(), lr=0.1)
        label = torch.zeros(5)
        seen = []
        for _ in range(12):
            critic.zero_grad()
            fake = generator(torch.randn(2, 3))
            label.fill_(0)
            against = (critic(fake.detach()) - label).square().mean()
            against.backward()
            seen.append(against.item())
            second.step()
            generator.zero_grad()
            label.fill_(1)
            (critic(fake) - label).square().mean().backward()
            first.step()
        return seen

    found = train()
    assert follower().counts["followed"] >= 12
    with scripts(False):
        assert found == pytest.approx(train(), rel=1e-4)


def test_a_graph_that_is_looked_at_after_a_read_is_there(follower: Any) -> None:
    training = Reading()
    loss = training.read(follower)
    assert loss.grad_fn.name() == "MeanBackward0"
    seen = []
    training.out.register_hook(lambda g: seen.append(g.tolist()))
    expected = (training.out.detach() * (2 / training.out.numel())).tolist()
    loss.backward()
    assert seen == [pytest.approx(row) for row in expected] or seen == [expected]
    x = training.data[training.count - 4 : training.count]
    weight = training.model[1].weight.grad.clone()
    with scripts(False):
        plain = copy.deepcopy(training.model)
        plain.zero_grad()
        plain(x).square().mean().backward()
        torch.testing.assert_close(weight, plain[1].weight.grad)


def test_a_write_between_a_read_and_its_backward_pass_is_noticed(follower: Any) -> None:
    training = Reading()
    loss = training.read(follower)
    with torch.no_grad():
        training.model[1].weight.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_a_loss_that_is_read_may_be_passed_backward_later_or_twice(follower: Any) -> None:
    training = Reading()
    loss = training.read(follower)
    other = training.forward().square().mean()
    other.backward()
    loss.backward(retain_graph=True)
    loss.backward()
    with pytest.raises(RuntimeError, match="second time"):
        loss.backward()
    first, second = training.count - 8, training.count - 4
    found = training.model[0].weight.grad.clone()
    with scripts(False):
        plain = copy.deepcopy(training.model)
        plain.zero_grad()
        plain(training.data[second : second + 4]).square().mean().backward()
        (2 * plain(training.data[first : first + 4]).square().mean()).backward()
        torch.testing.assert_close(found, plain[0].weight.grad)


def test_a_result_of_a_followed_run_has_a_graph_that_is_used_up(follower: Any) -> None:
    def run() -> list[str]:
        p, q = (nn.Parameter(torch.linspace(0, k, 6).reshape(2, 3)) for k in (1, 2))
        v, outcomes = torch.ones(2, 3), []
        x = v * 2
        for _ in range(9):
            # The gradients that are asked for are reached through the graph of `x`.
            try:
                torch.autograd.grad(((p * x).tanh() + q).sum(), [p, q])
                outcomes.append("")
            except RuntimeError as error:
                outcomes.append(str(error)[:45])
            with torch.no_grad():
                v.mul_(0.9)
            v.sum().item()
            x = (p * v + 0.1).tanh()
            (g,) = torch.autograd.grad((q * x).square().sum(), [p])
            g.sum().item()
        return outcomes

    found = run()
    assert found[1:] == ["Trying to backward through the graph a second"] * 8
    with scripts(False):
        assert run() == found


def test_losses_that_are_only_read_do_not_pile_up(follower: Any) -> None:
    training = Reading("cpu", nn.GELU())
    training.until_followed(follower)
    backend = training.data._storage.runtime.backend

    def read() -> None:
        training.count = 0
        training.forward(64).square().mean().item()

    for _ in range(5):
        read()
    before = backend.memory_allocated()
    for _ in range(50):
        read()
    assert backend.memory_allocated() - before < 8192


def test_scripts_of_models_that_are_dropped_go(follower: Any) -> None:
    for _ in range(6):
        training = Training()
        for _ in range(6):
            training.step()
    last = [follower().root]
    found = 0
    while last:
        step = last.pop()
        last += step.following
        found += step.kind == "step"
    assert found <= 2


def test_steps_are_not_followed_where_they_are_switched_off() -> None:
    with scripts(False) as follower:
        training = Training()
        for _ in range(6):
            training.step()
        assert not follower().counts


def reasons(follower: Any) -> list[str]:
    return [why for why, _ in follower().reasons]


def test_a_report_says_where_and_why_a_script_was_left(follower: Any) -> None:
    training = Training()
    training.until_followed(follower)
    for i in range(8):
        loss = training.forward().square().mean()
        if i == 3:
            loss = loss * 3
        training.optimizer.zero_grad()
        loss.backward()
        training.optimizer.step()
    counts = follower().counts
    assert counts["left"] == 1
    text = torch.debug.scripts()
    head, line = text.splitlines()[:2]
    assert head.startswith(
        f"{counts['followed']} of {counts['steps']} steps followed one of 1 script"
    )
    # Two layers, a square and a mean.
    assert "1 left theirs (4 calls made again in" in head
    assert "once, 4 calls made again in" in line
    assert "mul is called where backward was called before (" in line
    assert "test_following.py" in line
    assert "loss = loss * 3" in line


def test_a_report_names_the_argument_that_differs(follower: Any) -> None:
    weight = torch.ones(3, 4)
    x, wide, y = torch.ones(4), torch.ones(2, 4), torch.ones(4, dtype=torch.float64)

    def step(number: int, other: Any) -> None:
        a = weight * 2 + 1
        (a * number).add(other, alpha=number).sum().item()

    for _ in range(5):
        step(2, x)
    assert follower().counts["followed"]
    for changed in ((3, x), (2, y), (2, wide[0]), (2, wide[:1])):
        step(*changed)
    assert reasons(follower) == [
        "argument 2 of mul was 2 and is 3",
        "argument 2 of add has dtype float64 instead of float32",
        "argument 2 of add has storage size 8 instead of 4",
        "argument 2 of add has shape (1, 4) instead of (4,)",
    ]


def test_a_report_names_what_an_optimizer_depends_on(follower: Any) -> None:
    training = Training()
    training.until_followed(follower)
    training.optimizer.param_groups[0]["maximize"] = True
    training.step()
    assert "a parameter, gradient, state or option was False and is True" in reasons(follower)


def test_reasons_are_shown_as_they_happen(
    follower: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    training = Training()
    training.until_followed(follower)
    monkeypatch.setenv("WEBTORCH_DEBUG", "1")
    training.forward().sum().item()
    assert "no script: " in capsys.readouterr().err


def test_a_profile_counts_steps(follower: Any) -> None:
    training = Training()
    training.until_followed(follower)
    with torch.profile() as found:
        for _ in range(3):
            training.step()
    assert found.steps == (3, 3)
    assert "; 3 of 3 steps followed a script" in str(found)


def test_a_batch_that_another_thread_has_recorded_is_followed(follower: Any) -> None:
    training, data = Training(), torch.arange(400.0).reshape(100, 4)
    losses = []

    def load(i: int, out: list[Any]) -> None:
        out.append((data[4 * i : 4 * i + 4] / 100).sin())

    def run(training: Training) -> None:
        for i in range(10):
            batch: list[Any] = []
            thread = threading.Thread(target=load, args=(i, batch))
            thread.start()
            thread.join()
            loss = training.model(batch[0]).square().mean()
            training.optimizer.zero_grad()
            loss.backward()
            training.optimizer.step()
            losses.append(loss)

    run(training)
    assert follower().counts["followed"] >= 5
    with scripts(False):
        plain = Training()
        run(plain)
    for a, b in zip(losses[:10], losses[10:], strict=True):
        torch.testing.assert_close(a, b)


def test_a_thread_that_computes_between_keeps_no_other_from_scripts() -> None:
    x = torch.ones(4, 4)

    def elsewhere() -> None:
        ((torch.ones(3) * 2 + 1) * 3).tolist()

    with scripts(True, repeats=3) as follower:
        for _ in range(12):
            # A thread is new each time, and never computes often enough to be looked at.
            thread = threading.Thread(target=elsewhere)
            thread.start()
            thread.join()
            ((x * 2 + 1) @ x).sum().item()
        assert follower().thread == threading.get_ident()
        assert follower().counts["followed"] >= 3


@pytest.mark.parametrize("how", ["penalty", "before", "hooked"])
def test_gradients_that_are_returned_are_followed(how: str, follower: Any) -> None:
    def run(training: Training) -> list[Any]:
        first, last = training.model[0].weight, training.model[1].bias
        seen, hook = [], None
        for i in range(12):
            out = training.forward()
            loss = out.square().mean()
            if how == "penalty":
                (g,) = torch.autograd.grad(loss, first, create_graph=True)
                loss = loss + g.square().sum()
            else:
                (g,) = torch.autograd.grad(loss, [last], retain_graph=True)
                loss = loss * (1 + g.abs().max().detach())
            if how == "hooked" and i == 7:
                hook = last.register_hook(lambda g: g * 2)
            if hook is not None and i == 9:
                hook.remove()
            training.optimizer.zero_grad()
            loss.backward()
            training.optimizer.step()
            seen.append(g.detach() * 1)
        with pytest.raises(RuntimeError, match="second time"):
            torch.autograd.grad(loss, first)
        return [g.tolist() for g in seen] + values(training)

    found = run(Training())
    # With a hook a step goes on as usual.
    assert follower().counts["followed"] >= (3 if how == "hooked" else 5)
    with scripts(False):
        plain = run(Training())
    for a, b in zip(found, plain, strict=True):
        torch.testing.assert_close(torch.tensor(a), torch.tensor(b))


def test_a_result_that_nobody_has_is_not_none(follower: Any) -> None:
    x, w = torch.ones(2, 3), torch.ones(4, 3)
    for i in range(8):
        bias = w.sum(1) * 2
        given = bias
        if i > 5:
            bias = given = None
        assert nn.functional.linear(x, w, given).sum().item() == (72.0 if i < 6 else 24.0)
    assert follower().counts["followed"] >= 2


def test_outputs_may_be_given_by_name(follower: Any) -> None:
    """Gradients of what is named, in a step that is recorded and followed."""
    x = torch.arange(3.0).requires_grad_()
    for _ in range(6):
        loss = (x * x * x).sin().sum()
        (g,) = torch.autograd.grad(outputs=[loss], inputs=x, retain_graph=True)
        x.grad = None
        loss.backward()
        torch.testing.assert_close(g, 3 * x.detach() ** 2 * (x.detach() ** 3).cos())
    assert follower().counts["followed"] > 0


def test_whoever_looks_at_each_operation_finds_it_pending(follower: Any) -> None:
    x = torch.tensor([-1.0])
    for _ in range(4):
        with (
            pytest.raises(torch.errors.NonFiniteError, match="sqrt gave 1 nan"),
            torch.debug.check_numerics(),
        ):
            x.sqrt().mul(2).item()


def test_a_captured_function_computes_nothing_that_it_is_given(follower: Any) -> None:
    """Also where the loop around it is followed."""
    fast, slow = torch.ones(4), torch.zeros(4)

    @torch.compile
    def update(x: Any) -> Any:
        fast.add_(x)
        slow.lerp_(fast, 0.5)
        return slow.sum()

    for _ in range(4):
        for _ in range(3):
            (fast * 1).lerp(slow * 2, 0.5).tolist()
            slow.lerp_(fast, 0.0)
        update(torch.ones(4))
    assert fast.tolist() == [5.0] * 4


@pytest.mark.parametrize("more", [False, True])
def test_gradients_of_parameters_are_followed(follower: Any, more: bool) -> None:
    """Without retain_graph: some of the graph is used up, and that of a weight is a view whose base nobody has."""

    def program() -> list[Any]:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3))
        parameters, seen = list(model.parameters()), []
        for step in range(12):
            loss = model(torch.full((2, 4), 0.5) + step / 8).square().mean()
            if more:
                loss = loss + parameters[0].square().mean()
            gradients = torch.autograd.grad(loss, parameters)
            with torch.no_grad():
                for p, g in zip(parameters, gradients, strict=True):
                    p -= 0.05 * g
            seen.append(loss.item())
            if step == 10:
                with pytest.raises(RuntimeError, match="a second time"):
                    loss.backward()
                # Somebody looks at a base in the middle of a step.
                seen.append(torch.autograd.grad(model(torch.ones(1, 4)).sum(), parameters)[0]._base)
        return [*seen, *[p.tolist() for p in parameters]]

    found = program()
    assert follower().counts["followed"] >= 4, follower().reasons
    with scripts(False):
        expected = program()
    for one, other in zip(found, expected, strict=True):
        assert (one.tolist() == other.tolist()) if hasattr(one, "tolist") else one == other


def test_a_view_of_a_copy_is_followed(follower: Any) -> None:
    def program() -> list[Any]:
        seen, x = [], torch.arange(6.0).reshape(2, 3)
        for _ in range(8):
            x = x + 1
            rows = x.t().reshape(-1)
            more = rows.view(3, 2) * 2
            rows += 1
            seen += [more.tolist(), rows.tolist()]
        return seen

    found = program()
    assert follower().counts["followed"] >= 3, follower().reasons
    with scripts(False):
        assert found == program()


def test_numbers_that_decide_have_programs_of_their_own(follower: Any) -> None:
    def program() -> list[Any]:
        x = torch.arange(1.0, 5.0)
        # A square is a product, and no power.
        return [((x * 2) ** t + x).tolist() for t in [2.0, 0.7, 2.0, 1.3, 2.0, 0.3] * 4]

    found = program()
    assert follower().counts["followed"] >= 10, follower().reasons
    with scripts(False):
        assert found == program()


def test_what_is_computed_of_a_loss_whose_graph_was_used_up_has_no_backward_pass(
    follower: Any,
) -> None:
    w = nn.Parameter(torch.ones(3))
    optimizer = torch.optim.SGD([w], lr=0.03)
    for i in range(12):
        loss = (w * w).tanh().sum()
        loss.backward()
        other = (w * 3).exp().sum()
        other.item()
        other.backward()
        optimizer.step()
        optimizer.zero_grad()
        if i == 10:
            with pytest.raises(RuntimeError, match="backward through the graph a second time"):
                (w * loss.sum()).sum().backward()
    assert follower().counts["followed"] >= 5


@pytest.mark.parametrize("left", [False, True])
def test_a_view_of_what_nobody_has_is_followed(follower: Any, left: bool) -> None:
    def run() -> list[Any]:
        torch.manual_seed(0)
        w, seen = nn.Parameter(torch.randn(4, 4)), list[Any]()
        optimizer = torch.optim.SGD([w], lr=0.1)
        for i in range(12):
            hidden = torch.broadcast_tensors(
                (w * 2).view(2, 2, 4).transpose(0, 1).reshape(4, 4), w
            )[0]
            with torch.no_grad():
                kept = hidden.detach().roll(1)
                kept.mul_(2)
            if left and i == 10:
                seen.append(hidden.sum().item())
            loss = (hidden @ w).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            seen += [loss.item(), kept.tolist(), w.tolist()]
        return seen

    followed = run()
    assert follower().counts["followed"] >= 5
    with scripts(False):
        assert run() == followed


def test_a_view_of_what_nobody_has_says_what_it_is_a_view_of(follower: Any) -> None:
    x = torch.arange(6.0).reshape(2, 3)
    for i in range(8):
        hidden = ((x + 1) * 2 - x) * x + x * 3
        view = (hidden + hidden.sum()).expand(4, 2, 3)[1:]
        if i == 7:
            assert view._base.shape == (2, 3)
            assert view._base[1, 2].item() == 50 + 130
        assert view.sum().item() == 3 * 7 * 130
    assert follower().counts["followed"] >= 3


def test_what_was_promised_stays_when_nobody_looks_any_more() -> None:
    classes = (torch.Tensor, torch.zeros(1)._storage.__class__)
    with scripts(True) as follower:
        training = Training()
        training.until_followed(follower)
        for _ in range(3):
            training.step()
        gradients, steps = [p.grad for p in training.model.parameters()], training.count // 4
        out, expected = training.promised(follower)
        assert all("__getattr__" in vars(cls) for cls in classes)
    # Attributes are as fast as before: no class has what is called where one is not there.
    assert not any("__getattr__" in vars(cls) for cls in classes)
    assert out.tolist() == expected.tolist()
    with scripts(False):
        again = Training()
        for _ in range(steps):
            again.step()
        assert [g.tolist() for g in gradients] == [
            p.grad.tolist() for p in again.model.parameters()
        ]


def test_a_step_has_a_bounded_number_of_branches(follower: Any) -> None:
    x, seen = torch.arange(4.0), []
    for i in range(60):
        # An int that changes is compared.
        seen.append(((x + 1) * (i + 2)).sum().item())
    followed = follower().root.following[0].following
    assert len(followed) <= following.MOST_BRANCHES
    # Those that came twice stay.
    for i in [3, 3, 3, 100, 3, 101, 3, 102, 3]:
        seen.append(((x + 1) * (i + 2)).sum().item())
    assert follower().counts["followed"] >= 4
    assert seen == [10.0 * (i + 2) for i in [*range(60), 3, 3, 3, 100, 3, 101, 3, 102, 3]]


def test_a_name_that_is_missing_is_told_while_calls_are_looked_at(follower: Any) -> None:
    x = torch.ones(4, 4)
    for _ in range(8):
        (((x * 2 + 1) @ x + x) * 3 - x).sum().item()
    assert follower().counts["followed"]
    with pytest.raises(AttributeError, match="'to_mkldnn': PyTorch has it, webtorch does not"):
        x.to_mkldnn()  # type: ignore[attr-defined]
    with pytest.raises(AttributeError, match="'Tensor' object has no attribute 'foo'"):
        x.foo  # type: ignore[attr-defined]


def test_names_that_tensors_lack_are_explained_while_scripts_look() -> None:
    with pytest.raises(AttributeError, match="PyTorch has it, webtorch does not"):
        following.look_at(torch.ones(2), "to_mkldnn")


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
def test_a_recurrent_layer_is_followed_once_its_length_has_come_often(
    follower: Any, kind: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recurrence, "_OFTEN", 3)
    torch.manual_seed(0)
    x = torch.randn(3, 5, 4)

    def losses(steps: int) -> list[float]:
        torch.manual_seed(1)
        recurrence._came.clear()
        layer = kind(4, 6, 2, batch_first=True, bidirectional=True)
        optimizer = torch.optim.SGD(layer.parameters(), lr=0.5)
        found = []
        for _ in range(steps):
            optimizer.zero_grad()
            loss = layer(x)[0][:, -1].square().mean()
            loss.backward()
            optimizer.step()
            found.append(loss.detach())
        return [t.item() for t in found]

    followed = losses(12)
    assert follower().counts["followed"] >= 5
    with scripts(False):
        assert losses(12) == pytest.approx(followed, abs=1e-6)


def test_what_a_recurrent_layer_computes_as_it_comes_is_no_script(follower: Any) -> None:
    torch.manual_seed(0)
    layer = nn.LSTM(4, 6)
    recurrence._came.clear()
    for length in range(3, 20):
        layer(torch.randn(length, 2, 4))[0].sum().backward()
    assert follower().counts["steps"] <= 3 * 17


def _with_hooks(training: Training, seen: list[Any]) -> None:
    for p in training.model.parameters():
        p.register_hook(lambda g: g.clamp(-0.01, 0.01))
        p.register_post_accumulate_grad_hook(lambda p: seen.append(p.grad.abs().max()))


def test_a_backward_pass_with_hooks_is_followed(follower: Any) -> None:
    def run() -> list[float]:
        training, seen = Training(), []
        _with_hooks(training, seen)
        losses = []
        for step in range(10):
            out = training.forward()
            out.register_hook(lambda g, step=step: g * (1 + step / 10))
            training.optimizer.zero_grad()
            loss = out.square().mean()
            loss.backward()
            training.optimizer.step()
            losses.append(loss.detach())
        return [t.item() for t in (*losses, *seen)]

    followed = run()
    assert follower().counts["followed"] >= 5
    assert follower().counts["left"] == 0
    with scripts(False):
        assert run() == pytest.approx(followed, abs=1e-6)


def test_a_hook_runs_once_where_a_value_is_looked_at_within_it(follower: Any) -> None:
    training, calls = Training(), []
    for name, p in training.model.named_parameters():
        p.register_hook(lambda g, name=name: calls.append((name, g)))
    for _ in range(6):
        training.step()
    assert follower().counts["followed"]
    before = len(calls)
    last = next(iter(training.model.parameters()))
    looked: list[float] = []
    handle = last.register_hook(lambda g: looked.append(g.sum().item()))
    training.step()
    handle.remove()
    assert len(calls) == before + 4
    assert len(looked) == 1
    # One that only looks at some time.
    at = len(calls) + 2

    def look(g: Any) -> None:
        if len(calls) == at:
            looked.append(g.sum().item())

    last.register_hook(look)
    for _ in range(4):
        training.step()
    assert len(calls) == before + 20


def test_a_hook_that_fails_leaves_what_was_there(follower: Any) -> None:
    training = Training()

    def run(fails: bool) -> list[float]:
        out = training.forward()
        if fails:
            out.register_hook(lambda g: 1 / 0)
        else:
            out.register_hook(lambda g: g * 2)
        training.optimizer.zero_grad()
        loss = out.square().mean()
        loss.backward()
        training.optimizer.step()
        return [loss.item()]

    for _ in range(5):
        run(False)
    with pytest.raises(ZeroDivisionError):
        run(True)
    assert all(p.grad is None for p in training.model.parameters())
    run(False)
    assert all(p.grad is not None for p in training.model.parameters())


def test_a_second_pass_through_a_freed_graph_calls_the_hooks_before_it(follower: Any) -> None:
    training, seen = Training(), []
    for _ in range(8):
        training.optimizer.zero_grad()
        out = training.forward().tanh()
        out.register_hook(lambda g: seen.append(len(g)))
        out.square().mean().backward()
        training.optimizer.step()
    assert follower().counts["followed"] >= 3
    seen.clear()
    with pytest.raises(RuntimeError, match="second time"):
        (out * 3).sum().backward()
    assert seen == [len(out)]


def test_hooks_keep_no_memory(follower: Any) -> None:
    training, seen = Training(), []
    _with_hooks(training, seen)
    for _ in range(8):
        training.step()
        seen.clear()
    gc.collect()
    count = len(gc.get_objects())
    for _ in range(10):
        training.step()
        seen.clear()
    gc.collect()
    assert len(gc.get_objects()) <= count + 50


def test_nobody_looks_where_that_costs_more_than_it_gains(
    follower: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(patience, "_PATIENCE", 4)
    draws, x = random.Random(0), torch.ones(4)
    calls = (torch.exp, torch.sin, torch.tanh, torch.abs, torch.sigmoid)
    for _ in range(80):
        # What comes again is followed, but most is called in another order each time.
        x.mul(2).add(1).tolist()
        out = x
        for call in draws.choices(calls, k=12):
            out = call(out)
        out.tolist()
    assert follower().patience.held
    assert not follower().on


def test_steps_follow_beside_a_compiled_function(follower: Any) -> None:
    """Its calls are in no script, and those around it are."""
    torch.manual_seed(0)
    model = nn.Linear(4, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scale = torch.ones(3, requires_grad=True)

    @torch.compile
    def decay(x: Any) -> Any:
        with torch.no_grad():
            model.weight.mul_(0.5)
        return (x * scale).sum()

    found, expected = [], []
    weight, bias = model.weight.detach().clone(), model.bias.detach().clone()
    x = torch.ones(2, 4)
    for _ in range(12):
        loss = model(x).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        loss = loss.item()
        given = torch.ones(3)
        penalty = decay(given)
        penalty.backward()
        found.append((loss, model.weight.sum().item(), scale.grad.tolist()))
    assert follower().counts["followed"] > 5
    with scripts(False):
        for i in range(12):
            out = x @ weight.t() + bias
            loss, g = out.square().mean().item(), out * (2 / out.numel())
            weight, bias = (weight - 0.1 * (g.t() @ x)) * 0.5, bias - 0.1 * g.sum(0)
            expected.append((loss, weight.sum().item(), [i + 1.0] * 3))
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(_numbers(a), _numbers(b), rtol=1e-5, atol=1e-5)


def test_a_compiled_step_leaves_what_was_compared_as_it_is(follower: Any) -> None:
    """It writes parameters and state where they lie: lazy steps need not compare all of them anew."""

    def trained() -> tuple[list[float], int]:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))
        optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
        x, found = torch.ones(2, 4), []

        def step() -> Any:
            loss = model(x).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            return loss

        compiled = torch.compile(step)
        for i in range(20):
            if i == 14:
                before = changes.count
            found += [step().item(), compiled().item(), *model[0].bias.tolist()]
        return [*found, *model[2].weight.flatten().tolist()], changes.count - before

    found, more = trained()
    assert follower().counts["followed"] > 10
    assert more <= 6
    with scripts(False):
        expected, _ = trained()
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


def _numbers(found: tuple[float, float, list[float]]) -> list[float]:
    return [found[0], found[1], *found[2]]


@pytest.mark.parametrize("name", ["cholesky", "eigh", "solve"])
def test_few_calls_around_one_that_waits_are_not_followed_for_long(
    follower: Any, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Each is computed within a call: a run by itself takes longer than its calls."""
    monkeypatch.setattr(patience, "_PATIENCE", 2)
    w, x = torch.eye(4) + 0.5, torch.ones(4)
    function = getattr(torch.linalg, name)
    for _ in range(60):
        found = function(w @ w.mT + 2 * w, *[x] * (name == "solve"))
        (found[0] if isinstance(found, tuple) else found).tolist()
    assert not follower().on


def test_an_episode_of_steps_that_are_read_is_learned_at_once(follower: Any) -> None:
    torch.manual_seed(0)
    policy = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    optimizer = torch.optim.SGD(policy.parameters(), lr=0.01)

    def episode() -> list[float]:
        state, found = torch.ones(4), []
        for _ in range(5):
            choice = torch.distributions.Categorical(logits=policy(state))
            action = choice.sample()
            found.append(choice.log_prob(action))
            state = torch.tensor([float(action.item()), 0.1, 0.3, -0.2])
        optimizer.zero_grad()
        torch.stack(found).sum().backward()
        optimizer.step()
        values: list[float] = policy[0].bias.tolist()
        return values

    before = [p.detach().clone() for p in policy.parameters()]
    found = [episode() for _ in range(8)]
    followed = follower().counts["followed"]
    # Each of the five steps is read more than once.
    episode()
    assert follower().counts["followed"] > followed + 8
    stop_to_look()
    torch.manual_seed(0)
    with torch.no_grad():
        # Random numbers go on from there.
        nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
        for p, was in zip(policy.parameters(), before, strict=True):
            p.copy_(was)
    for values, expected in zip([episode() for _ in range(8)], found, strict=True):
        assert values == pytest.approx(expected, abs=1e-6)


class _Cubed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        ctx.save_for_backward(x)
        return x * x * x

    @staticmethod
    def backward(ctx: Any, g: Any) -> Any:
        (x,) = ctx.saved_tensors
        return g * 3 * x * x


def test_a_function_of_the_users_is_followed(follower: Any) -> None:
    def run(read: bool) -> list[float]:
        training, losses = Training(), []
        for _ in range(10):
            training.optimizer.zero_grad()
            loss = _Cubed.apply(training.forward().tanh()).square().mean()
            if read:
                losses.append(loss.item())
            loss.backward()
            training.optimizer.step()
            losses.append(loss.detach())
        return [float(t) for t in losses]

    for read in (False, True):
        before = follower().counts["followed"]
        followed = run(read)
        assert follower().counts["followed"] - before >= 6
        plain = _plainly(lambda read=read: run(read))
        assert plain == pytest.approx(followed, abs=1e-6)


def _plainly(run: Any) -> Any:
    """Run without scripts, beside a test that has them."""
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(run()))
    thread.start()
    thread.join()
    return found[0]


def test_what_a_function_saved_is_used_up_once(follower: Any) -> None:
    training, contexts = Training(), []

    class Kept(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            ctx.save_for_backward(x)
            contexts.append(ctx)
            return x * 2

        @staticmethod
        def backward(ctx: Any, g: Any) -> Any:
            return g * 2 + 0 * ctx.saved_tensors[0]

    for step in range(7):
        training.optimizer.zero_grad()
        loss = Kept.apply(training.forward()).square().mean()
        loss.backward(retain_graph=step == 6)
        training.optimizer.step()
    assert follower().counts["followed"] >= 3
    with pytest.raises(RuntimeError, match="second time"):
        _ = contexts[-2].saved_tensors
    assert len(contexts[-1].saved_tensors) == 1


def test_a_function_of_the_users_keeps_no_memory(follower: Any) -> None:
    training = Training()

    def steps(count: int) -> int:
        for _ in range(count):
            training.count = 0
            _Cubed.apply(training.forward()).square().mean().item()
            loss = _Cubed.apply(training.forward()).square().mean()
            training.optimizer.zero_grad()
            loss.backward()
            training.optimizer.step()
        gc.collect()
        return len(gc.get_objects())

    before = steps(12)
    assert steps(12) <= before + 60


def test_a_gradient_that_is_dropped_after_it_was_set_stays_dropped(follower: Any) -> None:
    def run() -> list[float]:
        training = Training()
        found = []
        for step in range(10):
            parameters = list(training.model.parameters())
            training.optimizer.zero_grad()
            training.forward().square().mean().backward()
            found += [p.grad.sum().item() for p in parameters]
            for p in parameters:
                p.grad = p.grad * 0.5
            if step >= 7:
                parameters[-1].grad = None
            training.optimizer.step()
        return [*found, *training.model[-1].bias.tolist()]

    followed = run()
    assert follower().counts["followed"] >= 4
    assert _plainly(run) == pytest.approx(followed, abs=1e-6)


def test_what_is_a_view_when_it_is_learned_is_one_when_calls_are_made_again() -> None:
    torch.manual_seed(0)
    layer, x = nn.Linear(3, 2), torch.randn(4, 3)
    # Composites and rules that have forgotten what they record learn it while the script is learned.
    remember.forget()
    found = []
    with scripts(True) as follower:
        for step in range(6):
            y = torch.einsum("ij,kj->ki", x, x)
            assert step < 5 or y._base is not None
            loss = layer(x).square().sum() + y.mean()
            g, h = torch.autograd.grad(loss, [layer.weight, layer.bias])
            assert step < 5 or g.grad_fn is None
            found.append((g.sum() * h.sum()).sin().item())
        assert follower().counts["left"] == 1
    assert found == found[:1] * 6


def test_whole_numbers_change_where_they_are_scalars_of_elements() -> None:
    torch.manual_seed(0)
    x, weight = torch.randn(4, 4), torch.randn(4, 4, requires_grad=True)
    counts = torch.arange(4)

    def run() -> list[Any]:
        found = []
        for step in range(1, 17):
            y = (x @ weight).tanh() * step / (step + 1) - 2 * step
            y = (step - y).add(y, alpha=step).clone().mul_(step) + (counts * 2).float()
            y.sum().backward()
            found += [weight.grad.tolist(), y.sum().item()]
            weight.grad = None
        return found

    with scripts(False):
        plain = run()
    with scripts(True) as follower:
        assert run() == plain
        assert follower().counts["followed"] >= 4


def test_whole_numbers_beside_whole_ones_are_compared() -> None:
    x, found = torch.arange(5), []
    with scripts(True):
        for step in range(1, 9):
            y = (x * step + x) // step
            found.append((y.dtype, y.view(5).roll(step).float().sum().item(), y.tolist()))
    assert found == [
        (torch.int64, float(sum(row)), row)
        for step in range(1, 9)
        for row in [[(i * step + i) // step for i in range(5)]]
    ]


def _checkpointed(read: bool, extra: bool = False) -> tuple[list[float], list[int], int]:
    """Train with a part that is computed again; return the losses, how far its calls came, and how many followed."""
    torch.manual_seed(0)
    part = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 4), nn.Tanh())
    first, last = nn.Linear(4, 4), nn.Linear(4, 2)
    optimizer = torch.optim.SGD([p for m in (first, part, last) for p in m.parameters()], lr=0.1)
    x, losses, calls = torch.randn(5, 4), [], [0, 0]

    def run(h: Any) -> Any:
        calls[0] += 1
        out = part(h) * 2 + h
        # The second computation has all that it needs before this.
        calls[1] += 1
        return out + 1

    for step in range(10):
        optimizer.zero_grad()
        h = first(x)
        out = torch.utils.checkpoint.checkpoint(run, h, use_reentrant=False)
        loss = last(out).square().mean()
        if read:
            losses.append(loss.item())
        if extra and step == 8:
            # A graph that is looked at has all calls made again.
            assert out.grad_fn is not None and h.grad_fn is not None
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, calls, following.follower().counts["followed"]


@pytest.mark.parametrize("extra", [False, True])
@pytest.mark.parametrize("read", [False, True])
def test_a_checkpointed_part_is_computed_again_as_far_as_without_scripts(
    read: bool, extra: bool
) -> None:
    with scripts(False):
        plain = _checkpointed(read, extra)
    with scripts(True):
        found = _checkpointed(read, extra)
    assert found[0] == pytest.approx(plain[0], rel=1e-4)
    assert found[1] == plain[1] == [20, 10]
    assert found[2] >= (4 if extra else 6)


@pytest.mark.parametrize("around", [False, True])
def test_checkpoints_are_followed_under_autocast_unless_it_began_before_another_backward_pass(
    around: bool, follower: Any
) -> None:
    def run(t: Any) -> list[float]:
        model, x, losses = t.nn.Sequential(t.nn.Linear(4, 4), t.nn.Tanh()), t.ones(2, 4), []
        with t.no_grad():
            for p in model.parameters():
                p.copy_(t.arange(float(p.numel())).reshape(p.shape).sin())
        optimizer = t.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(4):
            with contextlib.ExitStack() as contexts:
                for _ in range(6):
                    if around:
                        contexts.enter_context(t.autocast("cpu"))
                    with contextlib.nullcontext() if around else t.autocast("cpu"):
                        h = t.utils.checkpoint.checkpoint(model, x, use_reentrant=False)
                        loss = model(h).float().square().mean()
                    optimizer.zero_grad()
                    loss.backward()
                    optimizer.step()
                    losses.append(loss.item())
        return losses

    assert run(torch) == pytest.approx(run(pytest.importorskip("torch")), rel=1e-5)
    assert (follower().counts["followed"] >= 16) != around


def test_a_script_that_is_left_after_a_checkpoint_has_its_gradients() -> None:
    def run() -> list[float]:
        layer, found = nn.Linear(6, 3), []
        with torch.no_grad():
            for p in layer.parameters():
                p.copy_(torch.arange(float(p.numel())).reshape(p.shape).sin() * 0.3)
        x = torch.arange(30.0).reshape(5, 6).sin()
        optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
        for step in range(14):

            def part(near: Any, x: Any) -> Any:
                return layer(near).tanh() + x[:, :3] ** 2 + 1

            near = x * 1.5
            out = torch.utils.checkpoint.checkpoint(part, near, x, use_reentrant=False)
            loss = (out**2).mean()
            optimizer.zero_grad()
            loss.backward()
            if step >= 12:
                # What was promised to the second computation is gone by now.
                found.append(layer.weight.grad.abs().sum().item())
            optimizer.step()
            found.append(loss.item())
        return found

    with scripts(False):
        plain = run()
    with scripts(True):
        assert run() == pytest.approx(plain, rel=1e-5)
        assert following.follower().counts["followed"] > 4


def test_full_backward_hooks_of_modules_are_called_in_followed_steps() -> None:
    def run(read: bool) -> tuple[list[float], list[bool]]:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 2))
        seen: list[bool] = []
        model[1].register_full_backward_hook(lambda m, got, given: (got[0] * 0.5,))
        model[2].register_full_backward_hook(lambda m, got, given: seen.append(got[0] is None))
        model[2].register_full_backward_pre_hook(lambda m, given: (given[0] * 1.5,))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        x, losses = torch.randn(5, 4), []
        for step in range(10):
            optimizer.zero_grad()
            out = model(x)
            loss = out.square().mean()
            if read:
                losses.append(loss.item())
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
            if step == 9:
                with pytest.raises(RuntimeError, match="custom Function"):
                    out.mul_(2)
        return losses, seen

    for read in (False, True):
        with scripts(False):
            plain = run(read)
        with scripts(True) as follower:
            found = run(read)
            assert follower().counts["followed"] >= 6
        assert found[0] == pytest.approx(plain[0], rel=1e-4)
        assert found[1] == plain[1] == [False] * 10


def test_a_part_that_two_passes_computed_again_is_so_no_third_time_where_a_script_is_left() -> None:
    def run(left: bool) -> tuple[int, list[float]]:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        x = torch.randn(5, 3)
        for step in range(8):
            optimizer.zero_grad()
            out = torch.utils.checkpoint.checkpoint(model, x, use_reentrant=False)
            loss = out.square().sum()
            loss.backward(retain_graph=True)
            loss.backward()
            if left and step == 5:
                with pytest.raises(RuntimeError, match="a second time"):
                    torch.autograd.grad(out.sum(), [model[2].bias])
            optimizer.step()
        found = [v for p in model.parameters() for v in p.detach().flatten().tolist()]
        return int(model[1].num_batches_tracked), found

    with scripts(False):
        count, plain = run(True)
    assert count == 3 * 8
    for left in (False, True):
        with scripts(True) as follower:
            assert run(left) == (count, pytest.approx(plain, rel=1e-4, abs=1e-6))
            assert follower().counts["followed"] > 1


@pytest.mark.parametrize("reentrant", [False, True])
def test_a_checkpointed_part_draws_the_same_numbers_again(reentrant: bool) -> None:
    def run(looked: int) -> list[float]:
        torch.manual_seed(0)
        part = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.3), nn.Tanh(), nn.Linear(8, 4))
        first, last = nn.Linear(4, 4), nn.Linear(4, 2)
        parameters = [p for m in (first, part, last) for p in m.parameters()]
        optimizer = torch.optim.SGD(parameters, lr=0.1)
        x, losses = torch.randn(5, 4), []
        for step in range(9):
            optimizer.zero_grad()
            h = nn.functional.dropout(first(x), 0.2)
            out = torch.utils.checkpoint.checkpoint(part, h, use_reentrant=reentrant)
            loss = nn.functional.dropout(last(out), 0.1).square().mean()
            loss.backward()
            if step == looked:
                # All is made again, in the order in which it was called.
                assert h.grad_fn is not None
            optimizer.step()
            losses.append(loss.item())
        return losses

    with scripts(False):
        plain = run(-1)
    for looked in (-1, 7):
        with scripts(True) as follower:
            assert run(looked) == pytest.approx(plain, rel=1e-4)
            assert follower().counts["followed"] >= 5


@pytest.mark.parametrize("form", ["gradient", "function", "lists"])
def test_backward_passes_are_followed_in_each_form(form: str) -> None:
    torch.manual_seed(0)
    weight, x = torch.randn(4, 4, requires_grad=True), torch.randn(4, 4)
    ones, found = torch.ones(4, 4), []
    with scripts(True) as follower:
        for _ in range(6):
            y = (x @ weight).tanh()
            if form == "gradient":
                y.backward(gradient=ones)
            elif form == "function":
                torch.autograd.backward(y, grad_tensors=ones)
            else:
                torch.autograd.backward([y * 0.5, y.sum() * 0.5], [ones, None])
            found.append(weight.grad.sum().item())
            weight.grad = None
        assert follower().counts["followed"] >= 3
    y = (x @ weight).tanh()
    assert found == pytest.approx([((1 - y * y).T @ x).sum().item()] * 6, rel=1e-4)


def test_a_step_with_a_closure_is_followed(follower: Any) -> None:
    def trained() -> list[float]:
        training, losses = Training(), []

        def closure() -> Any:
            training.optimizer.zero_grad()
            loss = training.forward().square().mean()
            loss.backward()
            return loss

        for _ in range(8):
            losses.append(training.optimizer.step(closure))
        return [loss.item() for loss in losses]

    followed = trained()
    assert follower().counts["followed"] > 1
    with scripts(False):
        assert trained() == pytest.approx(followed, rel=1e-6)


def test_a_number_that_decides_a_size_is_compared_where_it_is_given() -> None:
    compiled = torch.compile(lambda x: x + 1)
    with scripts(True):
        for function in (lambda x, n: x * 2, lambda x, n: x * n):
            for n in (5, 9, 10, 12, 2, 5, 7, 9, 12):
                x = torch.arange(float(n))
                torch.mark_dynamic(x, 0)
                # It is asked before anything is computed.
                assert x.shape[0] == n
                assert function(x, x.shape[0]).tolist() == function(np.arange(n), n).tolist()
                assert compiled(x).tolist() == [v + 1.0 for v in range(n)]
