"""Threads: a read sees the values as they were recorded, whichever thread reads, and no write is lost; a
capture in one thread leaves others alone.
"""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

import webtorch
from tests import crowd
from tests.patience import PATIENCE
from webtorch.runtime.arrivals import Arrival
from webtorch.runtime.realize import Runtime
from webtorch.tensors.device import resolve

# What is tested here is nearly the same on all devices.
pytestmark = pytest.mark.one_in(3, device="webgpu")


def test_a_pool_reads_what_was_recorded(device: str) -> None:
    crowd.reads_in_a_pool(webtorch, device, 200)


def test_eight_threads_compute_what_one_does(device: str) -> None:
    crowd.a_crowd(webtorch, device, 12 if device == "cpu" else 4, webtorch.compile)


@pytest.mark.long
def test_eight_threads_compute_for_long_what_one_does(device: str) -> None:
    crowd.a_crowd(webtorch, device, 60 if device == "cpu" else 12, webtorch.compile)


def test_a_captured_function_may_wait_for_a_thread_that_computes(device: str) -> None:
    w = webtorch.arange(4.0, device=device)
    n = webtorch.zeros(4, device=device)
    got: list[Any] = []
    with ThreadPoolExecutor(1) as pool:

        def work() -> None:
            got.append(((w * 2).tolist(), n.tolist()))

        @webtorch.compile
        def step(x: Any) -> Any:
            n.add_(1)
            pool.submit(work).result(PATIENCE)
            return x * w + n

        x = webtorch.ones(4, device=device)
        assert step(x).tolist() == [1.0, 2.0, 3.0, 4.0]
    # The thread sees nothing of a call that has computed nothing yet.
    assert got[0] == ([0.0, 2.0, 4.0, 6.0], [0.0] * 4)
    assert n.tolist() == [1.0] * 4


def test_a_thread_that_writes_during_a_capture_is_not_lost(device: str) -> None:
    mine, other = (webtorch.zeros(4, device=device) for _ in range(2))
    with ThreadPoolExecutor(1) as pool:

        def work() -> None:
            other.add_(5)
            other[1] = 7

        @webtorch.compile
        def step(x: Any) -> Any:
            mine.add_(x)
            pool.submit(work).result(PATIENCE)
            return mine * 2

        one = webtorch.ones(4, device=device)
        assert step(one).tolist() == [2.0] * 4
    assert other.tolist() == [5.0, 7.0, 5.0, 5.0]
    assert mine.tolist() == [1.0] * 4


@pytest.mark.parametrize("ends", ["compiled", "reads", "raises"])
def test_operations_of_another_thread_are_not_part_of_a_capture(device: str, ends: str) -> None:
    """Whichever way a capture ends, what another thread recorded meanwhile has its own value."""
    w = webtorch.zeros(4, device=device)
    there: list[Any] = []
    inside, outside = threading.Event(), threading.Event()

    def work() -> None:
        assert inside.wait(PATIENCE)
        # What the capture has overwritten has the value of before here.
        there.extend([w + 3, w.clone(), w[1:3] * 4 + 1])
        outside.set()

    @webtorch.compile
    def step(x: Any) -> Any:
        w.add_(x)
        inside.set()
        assert outside.wait(PATIENCE)
        if ends == "reads":
            return w * float(w.sum())
        if ends == "raises":
            raise KeyError("ends")
        return w * 4

    thread = threading.Thread(target=work)
    thread.start()
    x = webtorch.ones(4, device=device)
    if ends == "raises":
        with pytest.raises(KeyError, match="ends"):
            step(x)
        assert w.tolist() == [0.0] * 4
    else:
        assert step(x).tolist() == [4.0] * 4
        assert w.tolist() == [1.0] * 4
    thread.join(PATIENCE)
    assert [y.tolist() for y in there] == [[3.0] * 4, [0.0] * 4, [1.0] * 2]


def test_a_function_compiled_by_many_threads_runs_once_for_each_call(device: str) -> None:
    n = webtorch.zeros(4, device=device)
    lock = threading.Lock()

    @webtorch.compile
    def step(x: Any) -> Any:
        n.add_(x)
        return n * 2

    def scene(turns: int) -> None:
        one = webtorch.ones(4, device=device)
        for _ in range(turns):
            with lock:
                step(one)

    crowd.together([scene] * 4, 10)
    assert n.tolist() == [40.0] * 4


def test_two_devices_are_copied_to_each_other() -> None:
    """No thread holds one device while it waits for the other."""
    try:
        webtorch.zeros(1, device="webgpu")
    except webtorch.DeviceError:
        pytest.skip("no device 'webgpu'")

    def scene(here: str, there: str) -> crowd.Scene:
        def copy(turns: int) -> None:
            x = webtorch.zeros(8, device=here)
            for i in range(turns):
                x.copy_((x + 1).to(there))
                assert x.to(there).tolist() == [i + 1.0] * 8

        return copy

    crowd.together([scene("cpu", "webgpu"), scene("webgpu", "cpu")], 40)


def test_copies_stay_apart_from_what_is_written_meanwhile(device: str) -> None:
    """A copy made while another thread writes has one of the values, and keeps it."""
    w = webtorch.zeros(64, device=device)
    stop = threading.Event()

    def write(turns: int) -> None:
        for _ in range(turns):
            w.add_(1)
            w.sum().item()
        stop.set()

    def copy(_: int) -> None:
        while not stop.is_set():
            kept = w.clone()
            first = kept.tolist()
            assert all(v == round(v) for v in first)
            for _ in range(3):
                assert kept.tolist() == first

    crowd.together([write, copy, copy], 60)
    assert w.tolist() == [60.0] * 64


def test_what_another_thread_begins_to_receive_meanwhile_is_left_to_come(
    device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    runtime = resolve(device)
    arrival, later, take = Arrival(), list[webtorch.Tensor](), Runtime._take

    def begun(self: Runtime) -> Any:
        if not later:
            self.arriving.append(arrival)
            later.append(webtorch.Tensor._from_node(arrival.node((3,), webtorch.float32), self))
            later.append(later[0] * 2)
        return take(self)

    come = webtorch.full((3,), 5.0, device=device)
    come.tolist()
    sums = [webtorch.ones(3, device=device) + n for n in range(3)]
    monkeypatch.setattr(Runtime, "_take", begun)
    assert sums[0].tolist() == [1.0] * 3 and len(later) == 2
    arrival.come(come._storage.node.buffer)
    assert later[1].tolist() == [10.0] * 3 and not runtime.arriving
    assert sums[2].tolist() == [3.0] * 3
