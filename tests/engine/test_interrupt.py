"""Ctrl-C in a training loop: the state is that of whole steps, whenever it comes."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from typing import Any

import pytest

import webtorch
from webtorch.runtime.backends.cpu import jit
from webtorch.runtime.backends.cpu.executable import CpuExecutable
from webtorch.runtime.interrupt import firm, whole
from webtorch.tensors.device import resolve


@pytest.fixture(autouse=True)
def _handler_of_python() -> Iterator[None]:
    """Python's own handler, whatever earlier tests of this process (the PyTorch device's) have set."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def _pressed(monkeypatch: pytest.MonkeyPatch, late: bool) -> list[Any]:
    """Press Ctrl-C before or after every run of a program; return the list of those that ran."""
    real, ran = CpuExecutable.run, []

    def run(self: Any, *given: Any) -> Any:
        ran.append(self)
        if not late:
            signal.raise_signal(signal.SIGINT)
        result = real(self, *given)
        if late:
            signal.raise_signal(signal.SIGINT)
        return result

    monkeypatch.setattr(CpuExecutable, "run", run)
    return ran


@pytest.mark.parametrize("late", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("compiled", [False, True], ids=["recorded", "compiled"])
def test_an_interrupted_step_is_taken_once(
    compiled: bool, late: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = (webtorch.zeros(n).requires_grad_() for n in (3, 2000))
    optimizer = webtorch.optim.SGD([first, second], 1.0)

    def step() -> Any:
        optimizer.zero_grad()
        (first.sum() + second.sum()).backward()
        optimizer.step()

    if compiled:
        step = webtorch.compile(step)
    step()
    runs = 0
    for taken in (2, 3, 4):
        with monkeypatch.context() as patch:
            ran = _pressed(patch, late)
            with pytest.raises(KeyboardInterrupt):
                step()
        runs += len(ran)
        assert {v for t in (first, second) for v in t.tolist()} == {float(-taken)}
    assert runs == 3


def test_what_was_pending_is_computed_after_an_interrupt(monkeypatch: pytest.MonkeyPatch) -> None:
    runtime = resolve("cpu")
    state = webtorch.zeros(3)
    state.add_(1).tolist()
    state.add_(1)
    other = webtorch.ones(3) * 2

    def stopped(*given: Any, **named: Any) -> Any:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(type(runtime), "program", stopped)
        with pytest.raises(KeyboardInterrupt):
            state.tolist()
    assert len(runtime.pending) >= 2
    assert (state.tolist(), other.tolist()) == ([2.0] * 3, [2.0] * 3)
    assert not runtime.pending


@pytest.mark.parametrize("late", [False, True], ids=["before", "after"])
def test_one_write_in_place_is_done_once(late: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    state = webtorch.zeros(3)
    state.add_(1).tolist()
    state.add_(1)
    with monkeypatch.context() as patch:
        _pressed(patch, late)
        with pytest.raises(KeyboardInterrupt):
            state.tolist()
    assert state.tolist() == [2.0] * 3


def test_an_error_does_not_swallow_the_key() -> None:
    reached = []

    def fails() -> None:
        with whole:
            signal.raise_signal(signal.SIGINT)
            raise ValueError("of the block")

    def pressed_twice() -> None:
        with whole:
            signal.raise_signal(signal.SIGINT)
            reached.append(1)
            signal.raise_signal(signal.SIGINT)
            reached.append(2)

    with pytest.raises(KeyboardInterrupt) as caught:
        fails()
    assert isinstance(caught.value.__context__, ValueError)
    with pytest.raises(KeyboardInterrupt):
        pressed_twice()
    assert reached == [1]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_nothing_stops_what_cannot_be_left_half_way() -> None:
    reached = []

    def pressed_thrice() -> None:
        with firm:
            for n in range(3):
                signal.raise_signal(signal.SIGINT)
                reached.append(n)

    with pytest.raises(KeyboardInterrupt):
        pressed_thrice()
    # Within a block that a second press stops, and with a handler of the program's own.
    with pytest.raises(KeyboardInterrupt), whole:
        pressed_thrice()
    noted: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, frame: noted.append(number))
    try:
        pressed_thrice()
    finally:
        signal.signal(signal.SIGINT, before)
    assert reached == [0, 1, 2] * 3
    assert noted == [signal.SIGINT]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_compiling_is_not_left_half_way(monkeypatch: pytest.MonkeyPatch) -> None:
    made = []
    real = jit._compile

    def compiled(*given: Any) -> Any:
        signal.raise_signal(signal.SIGINT)
        made.append(real(*given))
        return made[0]

    monkeypatch.setattr(jit, "_compile", compiled)
    source = """
def kernel(begin, end, b0: float32, b1: float32, status):
    for i in range(begin, end):
        t1 = b1[i]
        b0[i] = t1 + t1
"""
    with pytest.raises(KeyboardInterrupt):
        jit.function(source)
    assert [jit.function(source)] == made


@pytest.mark.parametrize("early", [True, False])
def test_a_block_that_waits_for_others_is_stopped_at_once(early: bool) -> None:
    after = []

    def block() -> None:
        """Be pressed before the wait, or in it."""
        with whole:
            if early:
                signal.raise_signal(signal.SIGINT)
            after.append("held")
            with whole.lifted():
                signal.raise_signal(signal.SIGINT)
                after.append("never")

    with pytest.raises(KeyboardInterrupt):
        block()
    assert after == ["held"]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
