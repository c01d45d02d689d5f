"""Storages that rest between an optimizer's steps: nothing of them is touched while nobody looks."""

from __future__ import annotations

import copy
import gc
import threading
import weakref
from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import webtorch as torch
from tests.scripts.following import scripts
from webtorch import nn
from webtorch.runtime.backend import compiling
from webtorch.scripts import prepared, run, stop_to_look
from webtorch.scripts.lent import _contents


@pytest.fixture
def follower() -> Iterator[Any]:
    with scripts(True) as found:
        yield found


class Training:
    """A model that is trained on one batch, read after each step by its loss alone."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=0.05)
        self.x = torch.randn(4, 4)
        self.found: list[Any] = []

    def steps(self, count: int) -> None:
        for _ in range(count):
            loss = self.model(self.x).square().mean()
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            self.found.append(loss.item())

    @property
    def weight(self) -> Any:
        return self.model[0].weight

    @property
    def state(self) -> Any:
        return self.optimizer.state[self.weight]

    def rests(self) -> bool:
        return all(
            t._storage.resting is not None
            for p in self.model.parameters()
            for t in (p, self.optimizer.state[p]["exp_avg"])
        )


def _in_thread(training: Training) -> None:
    def read() -> None:
        training.found.append(training.weight.tolist())

    thread = threading.Thread(target=read)
    thread.start()
    thread.join()


def _set_elsewhere(weight: Any) -> None:
    thread = threading.Thread(target=lambda: setattr(weight, "grad", torch.ones(8, 4)))
    thread.start()
    thread.join()


def _delete_beside_others(weight: Any) -> None:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        del weight.grad


def _replace_state(training: Training) -> None:
    training.state["exp_avg"] = training.state["exp_avg"] * 0.5


def _load(training: Training) -> None:
    training.optimizer.load_state_dict(copy.deepcopy(training.optimizer.state_dict()))


def _share(training: Training) -> None:
    kept = training.weight.detach().clone()
    training.steps(3)
    training.found.append(kept.tolist())


def _other_optimizer(training: Training) -> None:
    other = torch.optim.SGD(training.model.parameters(), lr=0.1)
    for _ in range(8):
        loss = training.model(training.x).exp().mean()
        other.zero_grad()
        loss.backward()
        other.step()
        training.found.append(loss.item())


def _evaluate(training: Training) -> None:
    with torch.no_grad():
        for _ in range(6):
            training.found.append(training.model(training.x + 1).sum().item())


def _numpy(training: Training) -> None:
    array = training.weight.detach().numpy()
    training.steps(2)
    array[0, 0] = 3.0
    training.found.append(array.tolist())


def _stale(training: Training) -> None:
    loss = (training.weight * training.weight).sum()
    training.steps(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def _other_data(training: Training) -> None:
    training.weight.data = torch.ones(8, 4)


def _another_dict(training: Training) -> None:
    """Whatever is put among the states is seen, also by what the follower cannot know of."""
    state = training.optimizer.state
    plain = state[training.weight] = dict(training.state)
    assert training.state is plain
    training.steps(10)
    plain["exp_avg"] = plain["exp_avg"] + 1
    training.steps(10)
    training.optimizer.state = defaultdict(dict, state)
    training.steps(10)


def _moved_state(training: Training) -> None:
    """A state that two optimizers have is seen to change in both."""
    other = Training()
    other.steps(10)
    training.optimizer.state[training.weight] = other.state
    training.steps(10)
    other.state.update(exp_avg=other.state["exp_avg"] * 2)
    training.steps(1)
    training.optimizer.state.pop(training.weight)


TOUCHES: dict[str, Callable[[Training], object]] = {
    "read": lambda t: t.found.append(t.weight.tolist()),
    "state is read": lambda t: t.found.append(t.state["exp_avg_sq"].tolist()),
    "versions": lambda t: t.found.append((t.weight._version, t.state["exp_avg"]._version)),
    "write": lambda t: t.weight.data.mul_(0.5),
    "state is written": lambda t: t.state["exp_avg"].zero_(),
    "another state": _replace_state,
    "state begins anew": lambda t: t.optimizer.state.pop(t.weight),
    "no state": lambda t: t.optimizer.state.clear(),
    "another dict": _another_dict,
    "moved state": _moved_state,
    "order of states": lambda t: t.optimizer.state.update(
        {t.weight: t.optimizer.state.pop(t.weight)}
    ),
    "load": _load,
    "share": _share,
    "another thread": _in_thread,
    "another optimizer": _other_optimizer,
    "evaluate": _evaluate,
    "numpy": _numpy,
    "stale graph": _stale,
    "other data": _other_data,
    "copy": lambda t: t.found.append(copy.deepcopy(t.model)(t.x).tolist()),
    "freeze": lambda t: t.weight.requires_grad_(False),
    "rate": lambda t: t.optimizer.param_groups[0].update(lr=0.01),
    "scripts end": lambda t: stop_to_look(),
}


def _run(touch: Callable[[Training], object], must_rest: bool) -> Any:
    training = Training()
    for _ in range(2):
        training.steps(10)
        assert training.rests() or not must_rest
        touch(training)
        must_rest = must_rest and touch is not TOUCHES["scripts end"]
        # An array sees each write.
        must_rest = must_rest and touch is not TOUCHES["numpy"]
        # What is frozen has no step, and what left its memory counts its writes elsewhere.
        must_rest = must_rest and touch not in (TOUCHES["freeze"], _other_data)
    training.steps(3)
    parameters = [p.tolist() for p in training.model.parameters()]
    versions = [p._version for p in training.model.parameters()]
    moments = [training.optimizer.state[p]["exp_avg"].tolist() for p in training.model.parameters()]
    return training.found, parameters, versions, moments


@pytest.mark.parametrize("touch", TOUCHES.values(), ids=TOUCHES)
def test_whoever_looks_finds_what_is_there_without_scripts(touch: Any) -> None:
    with scripts(True) as follower:
        found = _run(touch, must_rest=True)
        if touch is not TOUCHES["scripts end"]:
            assert follower().counts["followed"] > 10
    with scripts(False):
        expected = _run(touch, must_rest=False)
    assert found[2] == expected[2]
    for a, b in zip(found[:2] + found[3:], expected[:2] + expected[3:], strict=True):
        torch.testing.assert_close(_flat(a), _flat(b), rtol=1e-5, atol=1e-6)


def _flat(values: Any) -> list[float]:
    if isinstance(values, (list, tuple)):
        return [x for value in values for x in _flat(value)]
    return [float(values)]


def test_what_rests_goes_with_the_optimizer(follower: Any) -> None:
    training = Training()
    training.steps(10)
    assert training.rests()
    node = weakref.ref(training.state["exp_avg"]._storage.resting[0])
    buffer = weakref.ref(node().buffer) if node() is not None else None
    weight = training.weight
    del training
    gc.collect()
    assert node() is None
    assert buffer is not None and buffer() is None
    assert weight._storage.resting is not None
    assert len(weight.tolist()) == 8


def test_where_somebody_looks_at_each_step_storages_rest_seldom(follower: Any) -> None:
    training = Training()
    rested = 0
    for _ in range(60):
        training.steps(1)
        rested += training.rests()
        training.weight.sum().item()
    assert 0 < rested < 12


def test_a_storage_has_what_its_class_gives_it_wherever_it_is_made(follower: Any) -> None:
    x = torch.randn(4)
    for t in (x, x + 1, x.exp(), x * x, torch.zeros(4), x.sum(), x.clone(), x @ x, x.softmax(0)):
        assert t._storage.resting is None
        assert t._storage.donor is None
        assert t._storage.version == 0


def test_options_are_read_again_once_they_may_be_others(follower: Any) -> None:
    def trained() -> list[float]:
        training = Training()
        group = training.optimizer.param_groups[0]
        training.steps(5)
        mutable = [0.5, 0.9]
        for name, value in (("lr", 0.01), ("betas", (0.6, 0.8)), ("eps", 1e-3), ("betas", mutable)):
            group[name] = value
            training.steps(3)
        for value in (0.3, 0.7):
            mutable[0] = value
            training.steps(3)
        return training.found

    found = trained()
    assert follower().counts["followed"] >= 8
    with scripts(False):
        expected = trained()
    assert found == pytest.approx(expected, rel=1e-5)


BETWEEN: dict[str, Callable[[Training], object]] = {
    "no gradient": lambda t: setattr(t.weight, "grad", None),
    "no gradients": lambda t: t.optimizer.zero_grad(),
    "another gradient": lambda t: setattr(t.weight, "grad", torch.ones(8, 4)),
    "a gradient is deleted": lambda t: _delete_beside_others(t.weight),
    "another thread sets a gradient": lambda t: _set_elsewhere(t.weight),
    "a gradient is read": lambda t: t.found.append(t.weight.grad.tolist()),
    "gradients are clipped": lambda t: nn.utils.clip_grad_norm_(t.model.parameters(), 0.1),
    "rate": lambda t: t.optimizer.param_groups[0].update(lr=0.01 + len(t.found) / 100),
    "no rate": lambda t: t.optimizer.param_groups[0].update(lr=0.0),
    "decay": lambda t: t.optimizer.param_groups[0].update(weight_decay=0.5),
    "new option": lambda t: t.optimizer.param_groups[0].update(name="first"),
    "fewer parameters": lambda t: t.optimizer.param_groups[0].update(
        params=t.optimizer.param_groups[0]["params"][:2]
    ),
    "the list is shorter": lambda t: t.optimizer.param_groups[0]["params"].pop(),
    "order of parameters": lambda t: t.optimizer.param_groups[0]["params"].reverse(),
    "more groups": lambda t: t.optimizer.add_param_group(
        {"params": [t.optimizer.param_groups[0]["params"].pop()], "lr": 0.2}
    ),
    "hook": lambda t: t.optimizer.register_step_post_hook(lambda *_: t.found.append(1.0)),
    "hook before": lambda t: t.optimizer.register_step_pre_hook(lambda *_: t.found.append(2.0)),
    "load": _load,
    "frozen": lambda t: t.weight.requires_grad_(False),
    "written": lambda t: t.weight.data.mul_(0.5),
}


def _stepped(between: Callable[[Training], object]) -> Any:
    training = Training()
    for step in range(30):
        loss = training.model(training.x).square().mean()
        training.optimizer.zero_grad()
        loss.backward()
        if step in (9, 19, 20):
            if between is BETWEEN["the list is shorter"] and step > 10:
                continue
            between(training)
        training.optimizer.step()
        training.found.append(loss.item())
    return training.found, [p.tolist() for p in training.model.parameters()]


@pytest.mark.parametrize("between", BETWEEN.values(), ids=BETWEEN)
def test_a_step_sees_what_changed_since_the_backward_pass(
    between: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Steps add up what NumPy, which computes at first, and machine code round differently.
    monkeypatch.setattr(compiling, "at_once", True)
    with scripts(True) as follower:
        found = _stepped(between)
        assert follower().counts["followed"] > 5
    with scripts(False):
        expected = _stepped(between)
    torch.testing.assert_close(_flat(found), _flat(expected), rtol=1e-5, atol=1e-6)


def test_another_thread_waits_for_what_is_given_before_it_is_computed(
    follower: Any, monkeypatch: Any
) -> None:
    executable = pytest.importorskip("webtorch.runtime.backends.cpu.executable").CpuExecutable
    training = Training()
    seen: list[float] = []
    told: list[bool] = []
    loss = training.model(training.x).square().mean()
    run = executable.run

    def slow(self: Any, inputs: Any, args: Any, into: Any = None, ready: Any = None) -> Any:
        def tell(buffers: Any) -> None:
            ready(buffers)
            thread.start()
            thread.join(0.05)
            told.append(thread.is_alive())

        return run(self, inputs, args, into, ready and tell)

    training.steps(10)
    expected = training.found[-1]
    thread = threading.Thread(target=lambda: seen.append(loss.item()))
    loss = training.model(training.x).square().mean()
    training.optimizer.zero_grad()
    loss.backward()
    monkeypatch.setattr(executable, "run", slow)
    training.optimizer.step()
    monkeypatch.undo()
    thread.join()
    assert told == [True]
    assert seen == [loss.item()]
    assert 0 < seen[0] < expected


def test_a_failed_check_raises_where_the_step_is_computed(follower: Any) -> None:
    torch.manual_seed(0)
    table = nn.Embedding(5, 4)
    optimizer = torch.optim.SGD(table.parameters(), lr=0.1)

    def step(*places: int) -> float:
        loss = table(torch.tensor(places)).square().sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.item()

    for _ in range(10):
        step(0, 1, 2)
    assert follower().counts["followed"] > 5
    with pytest.raises(IndexError, match="index 7 is out of bounds"):
        step(0, 1, 7)
    before = [step(0, 1, 2) for _ in range(6)]
    assert before == sorted(before, reverse=True)


@pytest.mark.parametrize("kind", ["norm", "value", "scaler"])
def test_what_is_done_to_all_gradients_is_one_call_and_parameters_rest(
    follower: Any, kind: str
) -> None:
    real = pytest.importorskip("torch")
    rested: list[bool] = []

    def trained(lib: Any) -> tuple[list[float], Any]:
        weights = [lib.nn.Parameter(lib.arange(1.0, 7.0) / n) for n in range(1, 9)]
        optimizer = lib.optim.Adam(weights, lr=0.05)
        scaler = lib.amp.GradScaler("cpu", init_scale=2.0**126, enabled=kind == "scaler")
        found = []
        for n in range(24):
            # Infinite gradients at times: such a step is none.
            loss = sum((w * (n % 3 + 1)).square().sum() for w in weights)
            optimizer.zero_grad()
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            if kind == "norm":
                found.append(lib.nn.utils.clip_grad_norm_(weights, 0.5 + n % 2).item())
            elif kind == "value":
                lib.nn.utils.clip_grad_value_(weights, 0.25)
            scaler.step(optimizer)
            scaler.update()
            # A batch that lies where it is wanted.
            found.append(loss.to("cpu").item())
        rested.append(lib is torch and all(w._storage.resting is not None for w in weights))
        return found + [x for w in weights for x in w.tolist()], (weights, optimizer, scaler)

    found, _kept = trained(torch)
    assert rested[0] or kind == "norm"
    assert follower().counts["followed"] > 12
    torch.testing.assert_close(found, trained(real)[0], rtol=1e-4, atol=1e-5)
    calls, names = list(follower().root.following), set()
    while calls:
        step = calls.pop()
        names.add(step.callee.name if step.callee is not None else "")
        calls += [*step.following, *filter(None, [step.goes_on])]
    assert "backward" in names and not names & {"mul_", "clamp_", "isfinite"}


def test_what_is_compared_to_be_sure_goes_on_resting(follower: Any, monkeypatch: Any) -> None:
    for room in (prepared, run):
        monkeypatch.setattr(room, "CHECKED", True)
    training = Training()
    training.steps(10)
    assert training.rests()


def test_complex_numbers_that_numpy_sees_are_followed() -> None:
    with scripts(True):
        for _ in range(6):
            x = torch.ones(5, 7, dtype=torch.complex64)
            seen = x.numpy()
            x[1][3] += 1
            assert seen[1, 3] == 2
            assert x.eq(1).sum().item() == 34
            assert _contents(x[1][3]) is None


def test_what_somebody_has_is_not_written_again(follower: Any) -> None:
    """A program writes the memory of its last results again where nobody has it, as a tensor or as an array."""

    def train(kept: list[Any]) -> Training:
        training = Training()
        for step in range(40):
            training.steps(1)
            grads = [p.grad for p in training.model.parameters()]
            if step % 3 == 0:
                kept.append((grads, [g.tolist() for g in grads]))
            elif step % 3 == 1:
                arrays = [g.detach().numpy() for g in grads]
                kept.append((arrays, [a.tolist() for a in arrays]))
            del grads
        return training

    kept: list[Any] = []
    train(kept)
    assert follower().counts["followed"] > 20
    for found, values in kept:
        assert [g.tolist() for g in found] == values

    training = Training()
    training.steps(20)
    # As a rule it is the same memory from step to step.
    places = set()
    for _ in range(6):
        training.steps(1)
        places.add(training.weight.grad._storage.node.buffer.address)
    assert len(places) < 3
