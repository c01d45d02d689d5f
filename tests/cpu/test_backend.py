"""The CPU device: programs, memory, threads, tier-up, the code cache, templates and debug.step."""

from __future__ import annotations

import gc
import itertools
import os
import subprocess
import sys
import threading
import time
import weakref
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import webtorch
from tests.cpu import harness
from tests.patience import PATIENCE
from webtorch import debug
from webtorch.errors import IndexOutOfRangeError
from webtorch.ir import expr as ex
from webtorch.ir.dtype import DType, bfloat16, float16, float32, float64, int32, int64, uint8
from webtorch.ir.kernel import BufferSlot, Check, Convolution, Kernel, Matmul, Reduce, Scan, Store
from webtorch.ir.program import BufferDecl, Copy, Dispatch, Program, Site
from webtorch.runtime.backends.cpu import (
    executable,
    get_num_threads,
    jit,
    open_backend,
    order,
    set_num_threads,
)
from webtorch.runtime.backends.cpu.executable import KernelRunner
from webtorch.runtime.backends.cpu.memory import MEMORY, Memory
from webtorch.runtime.backends.cpu.threads import run_parallel, split

BACKEND = open_backend(0)


def execute(
    routine: object, *arrays: np.ndarray, args: tuple = (), sites: tuple[Site, ...] = ()
) -> np.ndarray:
    """Run a program of one routine through upload, compile, run and download; returns its last output."""
    program = harness.program(routine, sites)  # type: ignore[arg-type]
    buffers = []
    for number, array in zip(program.inputs, arrays):
        dtype = program.buffers[number].dtype
        data = (
            dtype.to_bytes(np.asarray(array).ravel().tolist())
            if dtype is bfloat16
            else np.ascontiguousarray(array, harness.array_type(dtype)).tobytes()
        )
        buffers.append(BACKEND.upload(data, dtype, np.asarray(array).size))
    out = BACKEND.compile(program).run(buffers, args)[-1]
    data = BACKEND.download(out)
    if out.dtype is bfloat16:
        return np.array(bfloat16.from_bytes(data), np.float32)
    return np.frombuffer(data, harness.array_type(out.dtype))


def chain(count: int, name: str = "chain") -> Kernel:
    i = ex.index(0, count)
    x = ex.load(0, float32, i) * ex.load(1, float32, i) + ex.arg(0, float32)
    slots = (
        harness.slot(float32, count),
        harness.slot(float32, count),
        harness.slot(float32, count, "write"),
    )
    return Kernel(name, (count,), (), slots, (float32,), (), (Store(2, i, x / (1.0 + abs(x))),))


def chain_reference(a: np.ndarray, b: np.ndarray, c: float) -> np.ndarray:
    x = a.astype("float64") * b + c
    return x / (1 + abs(x))


# -- memory ---------------------------


def test_upload_and_download_keep_every_byte() -> None:
    data = bytes(range(24))
    for dtype, elements in ((uint8, 24), (float32, 6), (int64, 3), (bfloat16, 12)):
        assert bytes(BACKEND.download(BACKEND.upload(data, dtype, elements))) == data
    assert bytes(BACKEND.download(BACKEND.upload(b"", float32, 0))) == b""


def test_downloaded_bytes_do_not_change_with_the_buffer() -> None:
    buffer = BACKEND.upload(b"\x01" * 8, uint8, 8)
    seen = BACKEND.download(buffer)
    buffer.array[:] = 2
    assert bytes(seen) == b"\x01" * 8


def test_memory_is_counted_and_used_again() -> None:
    gc.collect()
    before = BACKEND.memory_allocated()
    BACKEND.reset_peak_memory()
    buffer = BACKEND.allocate(float32, 1 << 18)
    assert BACKEND.memory_allocated() - before == 1 << 20
    address = buffer.address
    assert address % 64 == 0
    del buffer
    assert BACKEND.memory_allocated() == before
    assert BACKEND.max_memory_allocated() == before + (1 << 20)
    again = BACKEND.allocate(float32, 1 << 18)
    assert again.address == address
    del again
    BACKEND.empty_cache()
    assert MEMORY.pooled == 0


def test_free_blocks_keep_to_their_share_and_what_nobody_asks_for_goes_first() -> None:
    memory = Memory(limit=10 << 20)
    old = [memory.take(4 << 20) for _ in range(2)]
    for block in old:
        memory.give(block)
    assert memory.pooled == 8 << 20
    # A program that goes through other sizes: the old ones stay at first, for who knows, then go.
    for _ in range(100):
        blocks = [memory.take(n << 20) for n in (1, 3, 5)]
        assert not any(a is b for a in blocks for b in old)
        for block in blocks:
            memory.give(block)
        assert memory.pooled <= memory.limit
    assert set(memory.free) >= {1 << 20, 3 << 20, 5 << 20} and 4 << 20 not in memory.free
    assert memory.pooled == 9 << 20 and memory.live == 0
    # One that needs more than there is room for keeps what fits, from one round to the next, in time.
    kept = []
    for _ in range(80):
        blocks = [memory.take(n << 20) for n in (2, 4, 6, 8)]
        kept.append(blocks)
        for block in blocks:
            memory.give(block)
        assert memory.pooled <= memory.limit
    again = [any(a is b for a in old for b in new) for old, new in itertools.pairwise(kept)]
    assert sum(again[20:]) >= 55
    # More than all of the room is not kept.
    memory.give(memory.take(16 << 20))
    assert memory.pooled <= memory.limit and (16 << 20) not in memory.free
    memory.release()
    assert memory.pooled == 0 and memory.live == 0


def test_the_share_of_free_blocks_is_a_part_of_the_machines_memory() -> None:
    assert 0 < MEMORY.limit <= 4 << 30
    if hasattr(os, "sysconf"):
        assert MEMORY.limit <= os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 8


def test_memory_that_an_array_still_shows_is_not_used_again() -> None:
    buffer = BACKEND.allocate(float32, 1 << 16)
    array = buffer.array
    address = buffer.address
    del buffer
    assert BACKEND.allocate(float32, 1 << 16).address != address
    assert array.size == 1 << 16


# -- programs ---------------------------


def test_program_with_temporaries_copies_and_an_alias() -> None:
    count = 10
    i = ex.index(0, count)
    first = Kernel(
        "add",
        (count,),
        (),
        (harness.slot(float32, count), harness.slot(float32, count, "write")),
        (),
        (),
        (Store(1, i, ex.load(0, float32, i) + 1.0),),
    )
    second = Kernel(
        "twice",
        (count,),
        (),
        (harness.slot(float32, count, "read_write"),),
        (),
        (),
        (Store(0, i, ex.load(0, float32, i) * 2.0),),
    )
    program = Program(
        (first, second),
        (
            BufferDecl("input", float32, count),
            BufferDecl("temporary", float32, count, alias=0),
            BufferDecl("temporary", float32, count, alias=0),
            BufferDecl("input", float32, count),
            BufferDecl("output", float32, count),
            BufferDecl("output", float32, count, alias=3),
        ),
        (
            Dispatch(0, (0, 1), ()),
            Dispatch(0, (1, 4), ()),
            Dispatch(0, (4, 2), ()),
            Copy(2, 3),
            Dispatch(1, (3,), ()),
        ),
        (),
        (0, 3),
        (4, 5),
    )
    executable = BACKEND.compile(program)
    for value in (0.0, 5.0):
        x = harness.buffer(float32, np.full(count, value))
        state = harness.buffer(float32, np.zeros(count))
        fresh, same = executable.run([x, state], ())
        assert same is state
        np.testing.assert_array_equal(fresh.array, value + 2)
        np.testing.assert_array_equal(state.array, 2 * (value + 3))


def test_large_temporaries_come_from_the_pool() -> None:
    count = 1 << 20
    i = ex.index(0, count)
    add = Kernel(
        "add",
        (count,),
        (),
        (harness.slot(float32, count), harness.slot(float32, count, "write")),
        (),
        (),
        (Store(1, i, ex.load(0, float32, i) + 1.0),),
    )
    decls = (
        BufferDecl("input", float32, count),
        BufferDecl("temporary", float32, count, alias=7),
        BufferDecl("output", float32, count),
    )
    program = Program(
        (add,), decls, (Dispatch(0, (0, 1), ()), Dispatch(0, (1, 2), ())), (), (0,), (2,)
    )
    executable = BACKEND.compile(program)
    x = harness.buffer(float32, np.zeros(count))
    gc.collect()  # what other tests left must not go in between
    before = BACKEND.memory_allocated()
    (out,) = executable.run([x], ())
    assert BACKEND.memory_allocated() - before == out.nbytes
    np.testing.assert_array_equal(out.array[:: count // 7], 2)


def gather(count: int) -> Kernel:
    i = ex.index(0, count)
    index = ex.load(1, int64, i)
    at = ex.cast(ex.minimum(ex.maximum(index, 0), 4), int32)
    slots = (
        harness.slot(float32, 5),
        harness.slot(int64, count),
        harness.slot(float32, count, "write"),
    )
    return Kernel(
        "gather",
        (count,),
        (),
        slots,
        (),
        (),
        (Store(2, i, ex.load(0, float32, at)),),
        (Check(index, 5, 0),),
    )


def test_bad_index_is_raised_once_at_the_next_read() -> None:
    site = Site("index_select", 0, 5, "script.py:3")
    with pytest.raises(
        IndexOutOfRangeError,
        match=r"index_select: index 7 is out of bounds for dimension 0 with size 5 \(script.py:3\)",
    ):
        execute(gather(4), np.arange(5), np.array([0, 7, 9, 1]), sites=(site,))
    BACKEND.synchronize()
    np.testing.assert_array_equal(
        execute(gather(4), np.arange(5), np.array([4, 3, 0, 1]), sites=(site,)), [4, 3, 0, 1]
    )


def test_unsigned_and_negative_arguments() -> None:
    i = ex.index(0, 3)
    kernel = Kernel(
        "args",
        (3,),
        (),
        (harness.slot(int64, 3, "write"),),
        (int64, int32),
        (),
        (Store(0, i, ex.arg(0, int64) + ex.cast(ex.arg(1, int32), int64)),),
    )
    for execution in ("numpy", "native"):
        (actual,) = harness.run(kernel, [None], args=(-5, -(2**31)), execution=execution)
        np.testing.assert_array_equal(actual, -5 - 2**31)


# -- threads and tiers ---------------------------


def test_split_covers_the_range_once() -> None:
    for end, parts, multiple in ((10, 3, 1), (1000, 4, 64), (63, 8, 64), (1, 5, 1)):
        pieces = split(0, end, parts, multiple)
        assert len(pieces) <= parts
        assert [a for a, _ in pieces] == [0, *[b for _, b in pieces[:-1]]]
        assert pieces[-1][1] == end


@pytest.mark.covers("N4")
def test_parallel_tasks_run_on_other_threads_and_raise() -> None:
    seen = []
    barrier = threading.Barrier(3)
    run_parallel([lambda: (barrier.wait(PATIENCE), seen.append(threading.get_ident()))] * 3)
    assert len(set(seen)) == 3

    def fail() -> None:
        raise ValueError("from a thread")

    with pytest.raises(ValueError, match="from a thread"):
        run_parallel([lambda: None, fail])
    # A task that is itself parallel does its parts in order.
    run_parallel([lambda: run_parallel([lambda: seen.append(0)] * 2)] * 2)
    assert seen.count(0) == 4


@pytest.mark.covers("N4")
@pytest.mark.parametrize("threads", [1, 2, 5])
def test_results_do_not_depend_on_the_number_of_threads(threads: int) -> None:
    before = get_num_threads()
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal((2, 300_001)).astype(np.float32)
    rows, columns = 1000, 300
    i, j = ex.index(0, rows), ex.index(1, columns)
    total = Kernel(
        "rows", (rows,), (columns,), (harness.slot(float32, a.size), harness.slot(float32, rows, "write")), (),
        (Reduce("sum", ex.load(0, float32, i * columns + j), float32),), (Store(1, i, ex.reduced(0, float32)),),
    )  # fmt: skip
    try:
        set_num_threads(threads)
        assert get_num_threads() == threads
        (out,) = harness.run(
            chain(a.size), [a, b, None], args=(0.5,), execution="native", threads=threads
        )
        (sums,) = harness.run(total, [a, None], execution="native", threads=threads)
    finally:
        set_num_threads(before)
    np.testing.assert_allclose(out, chain_reference(a, b, 0.5), rtol=1e-5, atol=1e-6)
    (one,) = harness.run(total, [a, None], execution="native")
    np.testing.assert_array_equal(sums, one)


def test_number_of_threads_must_be_positive() -> None:
    with pytest.raises(RuntimeError, match="positive"):
        set_num_threads(0)


def test_many_threads_may_use_one_executable() -> None:
    executable = BACKEND.compile(harness.program(chain(100_000)))
    failures: list[object] = []

    def work(seed: int) -> None:
        a, b = np.random.default_rng(seed).standard_normal((2, 100_000)).astype(np.float32)
        for _ in range(5):
            (out,) = executable.run(
                [harness.buffer(float32, a), harness.buffer(float32, b)], (float(seed),)
            )
            if not np.allclose(out.array, chain_reference(a, b, seed), rtol=1e-4, atol=1e-5):
                failures.append(seed)

    workers = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert not failures


def test_small_kernels_compile_after_a_counted_amount_of_work() -> None:
    def runs_until_native(count: int) -> int:
        runner = KernelRunner(chain(count))
        buffers = [harness.buffer(float32, np.ones(count)) for _ in range(3)]
        for n in range(100_000):
            if runner.native is not None:
                return n
            runner.run(buffers, (0.5,), np.zeros(2, np.int32))
        raise AssertionError("never compiled")

    assert runs_until_native(1 << 22) == 1
    assert runs_until_native(1 << 16) < runs_until_native(1 << 12) < runs_until_native(100)
    # A handful of calls is never worth compiling, and the count is of work, not of time.
    assert runs_until_native(100) == runs_until_native(100) > 50


def test_both_tiers_agree() -> None:
    a, b = np.random.default_rng(0).standard_normal((2, 5000)).astype(np.float32)
    outs = [
        harness.run(chain(5000), [a, b, None], args=(0.25,), execution=e)[0]
        for e in ("numpy", "native")
    ]
    np.testing.assert_allclose(outs[0], outs[1], rtol=1e-6)


SECOND_PROCESS = """
import sys
from webtorch.runtime.backends.cpu import jit
made = []
real = jit.llvm_text
jit.llvm_text = lambda *a: made.append(1) or real(*a)
jit.function(sys.stdin.read())
print(len(made), "numba" in sys.modules)
"""


def test_second_process_loads_machine_code_from_disk(tmp_path: Path) -> None:
    env = {
        **os.environ,
        "WEBTORCH_CACHE_DIR": str(tmp_path),
        "PYTHONPATH": os.pathsep.join(p for p in [os.getcwd(), *sys.path] if p),
    }
    said = []
    for _ in range(3):
        result = subprocess.run(
            [sys.executable, "-c", SECOND_PROCESS],
            input=harness.text(chain(1000, "cached")),
            env=env,
            capture_output=True,
            text=True,
            check=False,
        )
        assert result.returncode == 0, result.stderr
        said.append(result.stdout.split())
        if len(said) == 2:
            # A damaged file is compiled again.
            for file in (tmp_path / "cpu").glob("*.o"):
                file.write_bytes(file.read_bytes()[:-100])
    assert said == [["1", "False"], ["0", "False"], ["1", "False"]]


def test_unwritable_cache_folder_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEBTORCH_CACHE_DIR", "/dev/null/nowhere")
    jit.forget()
    try:
        jit.function(harness.text(chain(77, "uncached")))
    finally:
        monkeypatch.undo()
        jit.forget()


def loops(number: int) -> str:
    """Return the text of a kernel that no other number has."""
    return f"{harness.text(chain(31, 'loops')).rstrip()}\n    spare{number} = 1\n"


def test_machine_code_that_nothing_holds_is_unloaded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jit, "_LATEST", deque(maxlen=1))
    held = jit.function(loops(31))
    dropped = weakref.ref(jit.function(loops(32)))
    library = dropped().library  # type: ignore[union-attr]
    assert jit.function(loops(32)) is dropped()
    jit.function(loops(33))
    gc.collect()
    assert dropped() is None and not library.closed
    assert jit.function(loops(31)) is held
    before = jit.counts()["misses"]
    jit.function(loops(32))
    assert jit.counts()["misses"] == before + 1


def test_sorts_hold_their_machine_code() -> None:
    """They keep functions by their texts, whatever else is compiled and dropped."""
    library = weakref.ref(order._function(order._COUNT, kind="uint32").library)
    jit.forget()
    gc.collect()
    found = library()
    assert found is not None and not found.closed
    x = np.random.default_rng(0).standard_normal(20_000).astype(np.float32)
    ours = webtorch.tensor(x.tolist(), device="cpu").sort()[0].tolist()
    np.testing.assert_array_equal(np.float32(ours), np.sort(x))


def test_without_llvm_every_call_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> None:
        raise OSError("no LLVM here")

    monkeypatch.setattr(jit, "_ENGINE", None)
    monkeypatch.setattr(jit, "_Engine", broken)
    for _ in range(2):
        with pytest.raises(OSError, match="no LLVM here"):
            jit.function(loops(35))
    assert not jit._WAITING


def test_threads_that_want_one_function_compile_it_once() -> None:
    source = loops(34)
    before = jit.counts()["misses"]
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(jit.function, [source] * 8))
    assert len(set(map(id, found))) == 1
    assert jit.counts()["misses"] == before + 1


def test_kernels_of_a_long_run_are_compiled_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those whose first run will find it worth it, on two threads; they take over when they would have."""
    monkeypatch.setattr(executable, "get_num_threads", lambda: 2)
    long = [KernelRunner(chain(3_000_000 + n, "long")) for n in range(3)]
    short, often = (KernelRunner(chain(n, "short")) for n in (100, 1000))
    steps = [*long, short, *[often] * 1000]
    executable.compile_ahead(steps)
    for thread in threading.enumerate():
        if thread.name.startswith("webtorch-compile"):
            thread.join(PATIENCE)
    assert [r.ahead is not None for r in (*long, short, often)] == [True] * 3 + [False, True]
    assert all(r.native is None and r.spent == 0 for r in steps)
    ahead = long[0].ahead
    a, b = np.random.default_rng(0).standard_normal((2, 3_000_000)).astype(np.float32)
    buffers = [BACKEND.upload(x.tobytes(), float32, x.size) for x in (a, b, np.empty_like(a))]
    long[0].run(buffers, (0.5,), np.zeros(2, np.int64))  # type: ignore[arg-type]
    assert long[0].native is ahead and long[0].ahead is None


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_a_process_is_not_copied_while_threads_compile(monkeypatch: pytest.MonkeyPatch) -> None:
    started, done = threading.Event(), threading.Event()

    def slow(source: str) -> None:
        started.set()
        time.sleep(0.3)
        done.set()

    monkeypatch.setattr(executable, "get_num_threads", lambda: 2)
    monkeypatch.setattr(executable.jit, "function", slow)
    executable.compile_ahead([KernelRunner(chain(3_000_000 + n, "long")) for n in range(9)])
    assert started.wait(PATIENCE)
    child = os.fork()
    if child == 0:
        os._exit(0)
    assert done.is_set() and not executable._COMPILING
    assert os.waitpid(child, 0)[1] == 0
    # Another thread may be about to start one.
    monkeypatch.setattr(executable, "_COMPILING", {threading.Thread()})
    executable._stop_compiling()
    assert not executable._FORKING.is_set()


def test_without_the_compiler_numpy_does_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jit, "available", lambda: False)
    a, b = np.random.default_rng(0).standard_normal((2, 400_000)).astype(np.float32)
    np.testing.assert_allclose(
        execute(chain(a.size, "plain_numpy"), a, b, args=(0.5,)),
        chain_reference(a, b, 0.5),
        rtol=1e-5,
        atol=1e-6,
    )


# -- templates ---------------------------


def matmul(
    batch: tuple,
    m: int,
    n: int,
    k: int,
    left: tuple,
    right: tuple,
    dtype: DType,
    sizes: tuple,
    offsets: tuple = (0, 0),
) -> Matmul:
    out = int(np.prod(batch)) * m * n
    slots = (
        BufferSlot(dtype, "read", sizes[0]),
        BufferSlot(dtype, "read", sizes[1]),
        BufferSlot(dtype, "write", out),
    )
    return Matmul("mm", batch, m, n, k, left, right, *offsets, slots)


MATMULS = {
    "plain": ((), (5, 7), (7, 3)),
    "transposed": ((), (5, 7), (3, 7)),
    "batch": ((2, 3), (2, 3, 5, 7), (2, 3, 7, 4)),
    "shared right": ((4,), (4, 5, 7), (7, 3)),
    "shared left": ((4,), (5, 7), (4, 7, 3)),
    "row": ((), (1, 70), (70, 33)),
}


@pytest.mark.parametrize("dtype", [float32, float64, float16, bfloat16, int32, int64], ids=str)
@pytest.mark.parametrize("case", MATMULS)
def test_matmul(case: str, dtype: DType) -> None:
    batch, left_shape, right_shape = MATMULS[case]
    rng = np.random.default_rng(0)
    a, b = (rng.integers(-8, 8, s).astype(np.float32) for s in (left_shape, right_shape))
    m, k = left_shape[-2:]
    transposed = case == "transposed"
    n = right_shape[-2] if transposed else right_shape[-1]

    def strides(shape: tuple, flip: bool) -> tuple:
        own = [int(np.prod(shape[d + 1 :])) for d in range(len(shape))]
        lead = own[:-2] if len(shape) > 2 else [0] * len(batch)
        return (*lead, *(own[-2:][::-1] if flip else own[-2:]))

    routine = matmul(
        batch,
        m,
        n,
        k,
        strides(left_shape, False),
        strides(right_shape, transposed),
        dtype,
        (a.size, b.size),
    )
    right = np.swapaxes(b, -1, -2) if transposed else b
    # Small integers: exact but for the last bits that bfloat16 has not.
    rtol = {bfloat16: 4e-3, float16: 5e-4}.get(dtype, 0)
    np.testing.assert_allclose(
        execute(routine, a, b), (a.astype("float64") @ right).ravel(), rtol=rtol
    )
    if dtype is float32:
        assert_generic_form_agrees(routine, a, b)


def assert_generic_form_agrees(routine: object, *arrays: np.ndarray) -> None:
    """debug.step runs a template through its generic kernel: every invocation gives what the template gives."""
    kernel = debug.generic(routine)  # type: ignore[arg-type]
    expected = execute(routine, *arrays)
    for invocation in range(0, kernel.outer_count, max(kernel.outer_count // 5, 1)):
        written = debug.step(routine, invocation, list(arrays))  # type: ignore[arg-type]
        for values in written.values():
            for position, value in values.items():
                assert value == pytest.approx(float(expected[position]), rel=1e-4, abs=1e-4)


CONVOLUTIONS = [
    ((2, 4, 9, 10), (8, 4, 3, 3), (1, 1), (1, 1), (1, 1), 1),
    ((2, 4, 9, 10), (8, 2, 3, 3), (2, 1), (1, 2), (1, 2), 2),
    ((3, 4, 6, 5), (6, 4, 1, 1), (1, 1), (0, 0), (1, 1), 1),
    ((3, 4, 6, 5), (6, 4, 1, 1), (2, 2), (0, 0), (1, 1), 1),
    ((2, 6, 8, 8), (6, 1, 3, 3), (1, 1), (1, 1), (1, 1), 6),
    ((2, 6, 8, 8), (12, 1, 3, 3), (2, 2), (0, 1), (1, 1), 6),
    ((5, 3, 40, 40), (4, 3, 5, 5), (1, 1), (2, 2), (1, 1), 1),
    ((1, 2, 11, 4), (3, 2, 2, 2), (3, 3), (0, 0), (2, 1), 1),
]


@pytest.mark.parametrize("dtype", [float32, float64, float16, bfloat16], ids=str)
@pytest.mark.parametrize("shape", CONVOLUTIONS, ids=str)
@pytest.mark.parametrize("kind", ["forward", "input", "weight"])
def test_convolution(kind: str, shape: tuple, dtype: DType) -> None:
    image, filters, stride, padding, dilation, groups = shape
    rng = np.random.default_rng(0)
    x = torch.tensor(rng.integers(-3, 4, image) / 2, dtype=torch.float64, requires_grad=True)
    w = torch.tensor(rng.integers(-3, 4, filters) / 2, dtype=torch.float64, requires_grad=True)
    y = torch.nn.functional.conv2d(x, w, None, stride, padding, dilation, groups)
    g = torch.tensor(rng.integers(-3, 4, y.shape) / 2, dtype=torch.float64)
    y.backward(g)
    inputs, expected = {
        "forward": ((x, w), y),
        "input": ((g, w), x.grad),
        "weight": ((x, g), w.grad),
    }[kind]
    assert expected is not None
    slots = (
        BufferSlot(dtype, "read", inputs[0].numel()),
        BufferSlot(dtype, "read", inputs[1].numel()),
        BufferSlot(dtype, "write", expected.numel()),
    )
    routine = Convolution(
        "conv", kind, image, filters, tuple(y.shape), stride, padding, dilation, groups, slots
    )  # type: ignore[arg-type]
    arrays = [t.detach().numpy() for t in inputs]
    rtol = {float16: 1e-3, bfloat16: 8e-3}.get(dtype, 1e-6)
    np.testing.assert_allclose(
        execute(routine, *arrays), expected.detach().numpy().ravel(), rtol=rtol, atol=1e-6
    )
    if dtype is float32:
        assert_generic_form_agrees(routine, *[a.astype(np.float32) for a in arrays])


@pytest.mark.parametrize("source", [float32, float64, int32, int64, float16, bfloat16], ids=str)
@pytest.mark.parametrize("op", ["sum", "prod", "max", "min"])
def test_scan(op: str, source: DType) -> None:
    shape = (2, 6, 3)
    target = int64 if source is int32 and op in ("sum", "prod") else source
    x = np.random.default_rng(0).integers(-3, 4, shape).astype(np.float32)
    if source.kind == "float" and op in ("max", "min"):
        x[0, 2, 1] = np.nan
    routine = Scan(
        "scan", op, *shape, (BufferSlot(source, "read", 36), BufferSlot(target, "write", 36))
    )  # type: ignore[arg-type]
    wide = torch.tensor(x).to(torch.float64)
    expected = {
        "sum": lambda: wide.cumsum(1),
        "prod": lambda: wide.cumprod(1),
        "max": lambda: wide.cummax(1).values,
        "min": lambda: wide.cummin(1).values,
    }[op]()
    np.testing.assert_array_equal(execute(routine, x).astype("float64"), expected.numpy().ravel())


# -- random kernels: the three executions agree ---------------------------

_LEAVES = ["x", "y", "const", "index", "arg"]
_UNARY = ["neg", "abs", "floor", "exp", "tanh", "sqrt", "sign", "erf", "log1p"]
_BINARY = ["add", "sub", "mul", "div", "min", "max"]


@st.composite
def expressions(draw: st.DrawFn, dims: list[tuple[int, int]], depth: int = 4) -> ex.Expr:
    """A float32 formula of two loads, a constant, an argument and the loop variables."""
    choice = draw(
        st.sampled_from(
            _LEAVES if depth == 0 else [*_LEAVES[:2], *_UNARY, *_BINARY, *_BINARY, "where"]
        )
    )
    if choice in ("x", "y"):
        position = ex.const(draw(st.integers(0, 3)), int32)
        for dim, size in dims:
            position = position + ex.index(dim, size) * ex.const(
                draw(st.sampled_from([0, 1, 3, 7])), int32
            )
        return ex.load("xy".index(choice), float32, position)
    if choice == "const":
        return ex.const(draw(st.sampled_from([0.5, -1.0, 3.0, 1e-3])), float32)
    if choice == "index":
        return ex.cast(ex.index(*draw(st.sampled_from(dims))), float32)
    if choice == "arg":
        return ex.arg(0, float32)
    deeper = expressions(dims, depth - 1)
    if choice in _UNARY:
        return ex.unary(choice, draw(deeper))
    if choice == "where":
        return ex.where(ex.lt(draw(deeper), draw(deeper)), draw(deeper), draw(deeper))
    return ex.binary(choice, draw(deeper), draw(deeper))


@st.composite
def kernels(draw: st.DrawFn) -> Kernel:
    outer = tuple(draw(st.lists(st.integers(1, 9), max_size=2)))
    inner = tuple(draw(st.lists(st.integers(1, 9), max_size=2)))
    dims = [(d, s) for d, s in enumerate(outer + inner)] or [(0, 1)]
    if not outer + inner:
        outer = (1,)
    outside = dims[: len(outer)] or [(99, 1)]
    size = 4 + sum(7 * (s - 1) for s in outer + inner) + 1
    slots = [harness.slot(float32, size), harness.slot(float32, size)]
    reduces, stores = [], []
    if inner:
        value = draw(expressions(dims))
        reduces.append(Reduce(draw(st.sampled_from(["sum", "max", "min"])), value, float32))
        if draw(st.booleans()):
            reduces.append(
                Reduce("sum", draw(expressions(dims, 2)) - ex.reduced(0, float32), float32)
            )

    def store(level: str, own: list[tuple[int, int]], value: ex.Expr) -> None:
        position, count = ex.const(0, int32), 1
        for dim, length in own:
            if dim != 99:
                position, count = position * length + ex.index(dim, length), count * length
        slots.append(harness.slot(float32, count, "write"))
        stores.append(Store(len(slots) - 1, position, value, level))  # type: ignore[arg-type]

    result = ex.reduced(len(reduces) - 1, float32) if reduces else ex.const(1.0, float32)
    if outside != [(99, 1)]:
        store("outer", outside, draw(expressions(outside, 2)) + result)
    else:
        store("outer", outside, result * 2.0)
    if inner and draw(st.booleans()):
        store("inner", dims, draw(expressions(dims, 3)) * result)
    return Kernel("random", outer, inner, tuple(slots), (float32,), tuple(reduces), tuple(stores))


@settings(max_examples=60, deadline=None, derandomize=True)
@given(kernel=kernels(), seed=st.integers(0, 9))
def test_random_kernels_agree_in_all_executions(kernel: Kernel, seed: int) -> None:
    rng = np.random.default_rng(seed)
    arrays = [
        rng.standard_normal(s.elements).astype(np.float32) if s.access == "read" else None
        for s in kernel.buffers
    ]
    results = [harness.run(kernel, arrays, args=(0.75,), execution=e) for e in harness.EXECUTIONS]
    for one in results[1:]:
        for expected, actual in zip(results[0], one):
            finite = np.isfinite(expected) & np.isfinite(actual)
            scale = np.abs(expected[finite]).max() if finite.any() else 1.0
            # Sums cancel, and floor and comparisons jump: a few elements may differ by more than rounding.
            wrong = (
                np.abs(expected[finite] - actual[finite])
                > 1e-3 * np.maximum(np.abs(expected[finite]), 1e-3 * scale) + 1e-5
            )
            jumps = any(n.op in ("floor", "sign", "where") for n in ex.walk(*kernel.expressions()))
            assert not wrong.any() or jumps
            if not jumps:
                np.testing.assert_array_equal(np.isnan(expected), np.isnan(actual))


# -- debug.step ---------------------------


@pytest.mark.covers("P1")
def test_step_returns_what_one_invocation_wrote() -> None:
    kernel = chain(8)
    a, b = np.arange(8, dtype=np.float32), np.full(8, 2, np.float32)
    out = np.zeros(8, np.float32)
    assert debug.step(kernel, 3, [a, b, out], [0.5]) == {2: {3: pytest.approx(6.5 / 7.5)}}
    assert np.count_nonzero(out) == 1


def test_step_shows_source_lines_to_debuggers() -> None:
    lines: list[str] = []
    import linecache

    def trace(frame: object, event: str, arg: object) -> object:
        code = frame.f_code  # type: ignore[attr-defined]
        if event == "line" and code.co_filename.startswith("<webtorch kernel"):
            lines.append(linecache.getline(code.co_filename, frame.f_lineno).strip())  # type: ignore[attr-defined]
        return trace

    before = sys.gettrace()
    sys.settrace(trace)  # type: ignore[arg-type]
    try:
        debug.step(chain(4), 2, [np.ones(4), np.ones(4)], [0.0])
    finally:
        sys.settrace(before)
    assert "t1 = b0[i0]" in lines
    assert "b2[i0] = t7" in lines


def test_programs_keep_so_much_for_temporaries_and_no_more() -> None:
    memory, programs = Memory(), [deque[int]() for _ in range(3)]
    assert memory.keep(programs[0], 40 << 20)
    assert not memory.keep(programs[1], 40 << 20)
    assert memory.keep(programs[1], 20 << 20)
    del programs[0]
    assert memory.keep(programs[1], 40 << 20)


def test_step_names_what_is_wrong() -> None:
    with pytest.raises(IndexError, match="invocations 0 to 7, not 8"):
        debug.step(chain(8), 8)
    with pytest.raises(ValueError, match="8 elements, 3 were given"):
        debug.step(chain(8), 0, [np.zeros(3)])
    with pytest.raises(IndexError, match="index 9 failed check"):
        debug.step(gather(2), 1, [np.zeros(5), np.array([0, 9])])
