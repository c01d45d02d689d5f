"""Asynchronous reads: they do not stop the event loop, and they see what was there when they were asked for."""

from __future__ import annotations

import asyncio
import threading
import time

import numpy as np
import pytest

from tests.webgpu.support import Pass, named
from webtorch.errors import IndexOutOfRangeError
from webtorch.ir import expr as ex
from webtorch.ir.dtype import float32, int64, uint32
from webtorch.ir.kernel import BufferSlot, Kernel, Store
from webtorch.ir.program import BufferDecl, Dispatch, Program

# A chain that no compiler can shorten: each step needs the one before.
_SLOW = """
struct Args { rounds: i32 }
@group(0) @binding(0) var<storage, read_write> b0: array<u32>;
@group(0) @binding(1) var<uniform> args: Args;
@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) g: vec3<u32>) {
  var x = g.x;
  for (var i = 0; i < args.rounds; i++) { x = (x ^ (x >> 7u)) * 1664525u + 1013904223u; }
  b0[g.x] = x;
}
"""
_N = 64 * 256


@pytest.fixture
def slow(with_source):
    from webtorch.ir.dtype import int32

    bindings = ("read_write", "uniform")
    part = Pass(_SLOW, (256, 1, 1), args=((0, int32, 0),), args_bytes=4, bindings=bindings)
    device = with_source(slow=part)
    kernel = named("slow", BufferSlot(uint32, "write", _N), args=(int32,))
    decl = BufferDecl("output", uint32, _N)
    program = Program((kernel,), (decl,), (Dispatch(0, (0,), (0,)),), (int32,), (), (0,))
    executable = device.compile(program)
    device.download(executable.run([], [1])[0])
    return executable


def _half_a_second(device, slow) -> int:
    """Return how many rounds keep this device busy for about half a second."""
    rounds = 10_000
    start = time.perf_counter()
    device.download(slow.run([], [rounds])[0])
    return min(int(rounds * 0.5 / (time.perf_counter() - start)), 50_000_000)


def _long_enough(device, slow, count, least):
    """Return what `count` gives, its ticks first: other programs may keep this one from them for a while, but where
    the wait does, no time is enough.
    """
    rounds = _half_a_second(device, slow)
    for factor in (1, 2, 4):
        found = count(factor * rounds)
        if found[0] >= least:
            break
    return found


def _increment(device, n):
    i = ex.index(0, n)
    buffers = (BufferSlot(float32, "read_write", n),)
    kernel = Kernel("add1", (n,), (), buffers, (), (), (Store(0, i, ex.load(0, float32, i) + 1.0),))
    decls = BufferDecl("input", float32, n), BufferDecl("output", float32, n, 0)
    return device.compile(Program((kernel,), decls, (Dispatch(0, (1,), ()),), (), (0,), (1,)))


@pytest.mark.covers("O2")
def test_awaiting_gives_the_bytes(device):
    data = np.arange(1000, dtype="<i8")
    buffer = device.upload(data.tobytes(), int64, 1000)

    async def read() -> bytes:
        return bytes(await device.download_async(buffer))

    assert asyncio.run(read()) == data.tobytes()


@pytest.mark.covers("O3")
def test_other_coroutines_run_while_the_device_works(device, slow):
    if device.adapter.backend_type == "OpenGL":
        pytest.skip("Mesa's OpenGL does the work inside the submission itself")

    async def main(rounds: int) -> tuple[int, float, float, float]:
        (y,) = slow.run([], [rounds])
        start = time.perf_counter()
        pending = device.download_async(y)
        asked = time.perf_counter() - start
        ticks, widest, last = 0, 0.0, time.perf_counter()
        task = asyncio.ensure_future(_wrap(pending))
        while not task.done():
            await asyncio.sleep(0.002)
            now = time.perf_counter()
            widest, last, ticks = max(widest, now - last), now, ticks + 1
        await task
        return ticks, asked, widest, time.perf_counter() - start

    ticks, asked, widest, waited = _long_enough(
        device, slow, lambda rounds: asyncio.run(main(rounds)), 20
    )
    assert ticks >= 20, f"{ticks} ticks in {waited:.3f} s, the widest gap was {widest:.3f} s"
    assert asked < waited / 4


async def _wrap(awaitable: object) -> object:
    return await awaitable  # type: ignore[misc]


def test_the_gil_is_free_while_a_blocking_read_waits(device, slow):
    def waiting(rounds: int) -> tuple[int, float]:
        ticks = 0
        stop = threading.Event()

        def count() -> None:
            nonlocal ticks
            while not stop.is_set():
                time.sleep(0.002)
                ticks += 1

        (y,) = slow.run([], [rounds])
        thread = threading.Thread(target=count)
        start = time.perf_counter()
        thread.start()
        device.download(y)
        waited = time.perf_counter() - start
        stop.set()
        thread.join()
        return ticks, waited

    # A thread that is kept out ticks once, at the end.
    ticks, waited = _long_enough(device, slow, waiting, 10)
    assert ticks >= 10, f"{ticks} in {waited} s"


def test_a_read_sees_the_values_of_its_moment_whatever_runs_after_it(device):
    increment = _increment(device, 1000)
    x = device.upload(bytes(4000), float32, 1000)

    async def main() -> list[float]:
        pending = []
        for _ in range(30):
            increment.run([x], [])
            pending.append(device.download_async(x))
        return [float(np.frombuffer(await p, "f4")[7]) for p in pending]

    assert asyncio.run(main()) == [float(step + 1) for step in range(30)]


@pytest.mark.covers("O4")
def test_many_reads_at_once(device):
    buffers = [device.upload(np.full(100, i, "f4").tobytes(), float32, 100) for i in range(40)]

    async def main() -> list[object]:
        return await asyncio.gather(*[_wrap(device.download_async(b)) for b in buffers])

    found = asyncio.run(main())
    assert [np.frombuffer(f, "f4")[99] for f in found] == list(range(40))


def test_a_read_that_nobody_awaits_warns_about_nothing(device):
    buffer = device.upload(bytes(4), float32, 1)
    device.download_async(buffer)
    device.synchronize()


def test_a_bad_index_reaches_the_one_who_awaits(device):
    from tests.webgpu.test_programs import _gather

    executable = device.compile(_gather(2, 3, "u.py:7"))
    table = device.upload(bytes(12), float32, 3)
    index = device.upload(np.array([0, 3]).tobytes(), int64, 2)

    async def main() -> None:
        (y,) = executable.run([index, table], [])
        await device.download_async(y)

    with pytest.raises(IndexOutOfRangeError, match=r"index 3 .*size 3 \(u.py:7\)"):
        asyncio.run(main())


def test_what_is_submitted_does_not_wait_for_a_thread_that_waits(device, slow):
    if device.native.engine != "dawn":
        pytest.skip("lavapipe begins no submission before the last one has ended")
    rounds, times = _half_a_second(device, slow) // 3, []
    for _ in range(3):
        slow.run([], [rounds])
        waiting = threading.Thread(target=device.fence())
        waiting.start()
        # It has begun to wait; Dawn would do so for 0.1 s at once.
        time.sleep(0.03)
        started = time.perf_counter()
        slow.run([], [1])
        took = time.perf_counter() - started
        waiting.join()
        times.append(took / (time.perf_counter() - started))
    assert min(times) < 0.25, times
