"""The pool: reuse, the account, limits, and running out of memory."""

from __future__ import annotations

import gc
import threading

import numpy as np
import pytest

from tests.webgpu.support import scale_program
from webtorch.errors import OutOfMemoryError
from webtorch.ir.dtype import bool_, float32, int64
from webtorch.runtime.backends.webgpu.memory import binding_bytes, moves, size_class


@pytest.mark.covers("Q11")
def test_size_classes_waste_at_most_an_eighth_and_never_shrink():
    for nbytes in [*range(1, 5000), *(int(1.37**k) for k in range(20, 66))]:
        size = size_class(nbytes, 1 << 40)
        assert nbytes <= size <= max(256, nbytes * 9 / 8 + 256)
        assert size_class(size, 1 << 40) == size


def test_a_block_is_never_larger_than_the_device_allows():
    assert size_class((1 << 31) - 100, (1 << 31) - 1) <= (1 << 31) - 1


def test_bindings_are_whole_vectors():
    assert [binding_bytes(bool_, n) for n in (0, 1, 16, 17)] == [16, 16, 16, 32]
    assert binding_bytes(int64, 5) == 32


@pytest.mark.covers("N7", "N10")
def test_the_account_follows_the_references(device):
    before = device.memory_allocated()
    first = device.allocate(float32, 1000)
    second = device.allocate(bool_, 5)
    assert device.memory_allocated() - before == 4000 + 16
    again = first
    del first
    assert device.memory_allocated() - before == 4016
    del again, second
    assert device.memory_allocated() == before


@pytest.mark.covers("N6")
def test_freed_memory_is_used_again(device):
    device.empty_cache()
    first = device.allocate(float32, 12345)
    number = first.block.number
    reserved = device.memory_reserved()
    del first
    second = device.allocate(float32, 12340)
    assert second.block.number == number and device.memory_reserved() == reserved


def test_empty_cache_gives_memory_back(device):
    buffer = device.allocate(float32, 1 << 20)
    held = device.memory_reserved()
    del buffer
    device.empty_cache()
    assert device.memory_reserved() <= held - (4 << 20)


def test_the_peak_counts_temporaries_and_can_be_reset(device):
    executable = device.compile(scale_program(1 << 16))
    x = device.upload(bytes(4 << 16), float32, 1 << 16)
    device.reset_peak_memory()
    before = device.memory_allocated()
    assert device.max_memory_allocated() == before
    executable.run([x], [1.0, 2.0])
    assert device.max_memory_allocated() == before + 2 * (4 << 16)
    device.reset_peak_memory()
    assert device.max_memory_allocated() == before


@pytest.mark.covers("N6", "N8")
def test_programs_share_the_memory_of_their_temporaries(device):
    device.empty_cache()
    first, second = (device.compile(scale_program(1 << 18)) for _ in range(2))
    x = device.upload(bytes(4 << 18), float32, 1 << 18)
    first.run([x], [1.0, 1.0])
    held, used = device.memory_reserved(), device.memory_allocated()
    for executable in (second, first, first, second):
        executable.run([x], [1.0, 1.0])
        assert device.memory_allocated() == used
    # What waits for them serves everybody.
    assert device.memory_reserved() == held
    other = device.allocate(float32, 1 << 18), device.allocate(float32, 1 << 18)
    assert device.memory_reserved() == held
    del other
    assert len(first._plans) <= 2 and len(second._plans) <= 2


def test_300_runs_hold_no_more_memory_than_one(device):
    executable = device.compile(scale_program(4096))
    x = device.upload(bytes(4 * 4096), float32, 4096)
    y = executable.run([x], [1.0, 2.0])
    allocated, reserved = device.memory_allocated(), device.memory_reserved()
    for step in range(300):
        y = executable.run([x], [float(step), 2.0])
        if step % 50 == 0:
            device.download(y[0])
    assert device.memory_allocated() == allocated
    # The old and the new result are alive at once: one more block at most.
    assert device.memory_reserved() <= reserved + (1 << 16)
    assert len(executable._plans) <= 4


def test_buffers_may_die_in_any_thread(device):
    gc.collect()
    before = device.memory_allocated()
    keep = [[device.allocate(float32, 100 + i) for i in range(50)] for _ in range(4)]

    def drop(own: list[object]) -> None:
        while own:
            own.pop()
            device.allocate(float32, 77)

    threads = [threading.Thread(target=drop, args=(own,)) for own in keep]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert device.memory_allocated() == before


@pytest.mark.covers("N9")
def test_a_cycle_that_dies_in_the_collector_gives_its_memory_back(device):
    before = device.memory_allocated()
    cycle: list[object] = [device.allocate(float32, 1000)]
    cycle.append(cycle)
    del cycle
    gc.collect()
    assert device.memory_allocated() == before


@pytest.mark.covers("N12")
def test_more_than_one_buffer_is_a_row_of_them(device, monkeypatch):
    monkeypatch.setattr(device.pool, "_max_buffer", 5000)
    monkeypatch.setattr(device.pool, "_step", 4096)
    device.empty_cache()
    before = device.memory_allocated(), device.memory_reserved()
    own = device.allocate(float32, 5000)
    block = own.block
    assert len(block.row) == 5 and block.pointer == block.row[0]
    assert (device.memory_allocated(), device.memory_reserved()) == (
        before[0] + 20000, before[1] + block.capacity,
    )  # fmt: skip
    assert block.at(4096 * 3 + 256, 256) == (block.row[3], 256)
    with pytest.raises(OutOfMemoryError, match="bytes 4000 to 4100 of a tensor lie in several"):
        block.at(4000, 100)
    parts = list(block.parts(20000, 1 << 20))
    assert [(first, count) for _, _, first, count in parts] == [
        (0, 4096), (4096, 4096), (8192, 4096), (12288, 4096), (16384, 3616),
    ]  # fmt: skip
    one = device.allocate(float32, 1200).block
    assert not one.row and one.at(100, 4000) == (one.pointer, 100)
    assert list(moves(one, block, 4800)) == [
        (one.pointer, 0, block.row[0], 0, 4096), (one.pointer, 4096, block.row[1], 0, 704),
    ]  # fmt: skip
    del own, block, one
    device.empty_cache()
    assert device.memory_reserved() == before[1]


def test_a_row_is_made_as_a_whole_or_not_at_all(device, monkeypatch):
    monkeypatch.setattr(device.pool, "_max_buffer", 4096)
    monkeypatch.setattr(device.pool, "_step", 4096)
    device.empty_cache()
    before = device.memory_reserved()
    made, released = [], []
    create, release = device.native.create_buffer, device.native.release_buffer

    def no_more(size, usage, mapped=False):
        if len(made) == 2:
            return None, ("OutOfMemory", "not enough memory")
        made.append(create(size, usage, mapped)[0])
        return made[-1], None

    monkeypatch.setattr(device.native, "create_buffer", no_more)
    monkeypatch.setattr(device.native, "release_buffer", lambda p: (released.append(p), release(p)))
    with pytest.raises(OutOfMemoryError, match="the device has no memory left"):
        device.allocate(float32, 5000)
    assert released == made and device.memory_reserved() == before


def test_the_limit_names_the_largest_buffers_and_leaves_everything_usable(device):
    device.empty_cache()
    big = device.allocate(float32, 1 << 20)
    big.label = "embedding.weight"
    small = device.upload(np.arange(4, dtype="f4").tobytes(), float32, 4)
    device.pool.limit = device.memory_reserved() + (1 << 20)
    with pytest.raises(OutOfMemoryError) as caught:
        device.allocate(float32, 1 << 20)
    text = str(caught.value)
    assert "float32[1048576], 4 MiB: WEBTORCH_MEMORY_LIMIT is" in text
    rows = text.splitlines()[1:]
    assert rows[0].split() == ["4", "MiB", "float32[1048576]", "embedding.weight"]
    assert bytes(device.download(small)) == np.arange(4, dtype="f4").tobytes()
    # What another user gives back is enough: the pool is emptied before giving up.
    del big
    assert device.allocate(float32, 1 << 20).nbytes == 4 << 20


def test_garbage_gives_its_memory_back_before_it_is_out(device):
    device.empty_cache()
    circle = [device.allocate(float32, 1 << 20)]
    circle.append(circle)
    device.pool.limit = device.memory_reserved() + (1 << 20)
    gc.disable()
    try:
        del circle
        assert device.allocate(float32, 1 << 20).nbytes == 4 << 20
    finally:
        gc.enable()


def test_a_program_that_runs_out_of_memory_leaves_nothing_behind(device):
    n = 1 << 20
    executable = device.compile(scale_program(n))
    x = device.upload(bytes(4 * n), float32, n)
    device.empty_cache()
    before = device.memory_allocated()
    # Room for the result, none for the temporary.
    device.pool.limit = device.memory_reserved() + (5 << 20)
    with pytest.raises(OutOfMemoryError):
        executable.run([x], [1.0, 2.0])
    assert device.memory_allocated() == before
    device.pool.limit = None
    (y,) = executable.run([x], [1.0, 2.0])
    assert np.frombuffer(device.download(y), "f4")[0] == 3.0


def test_the_limit_comes_from_the_environment(in_process):
    done = in_process(
        """
try:
    b.allocate(float32, 1 << 20)
except OutOfMemoryError as error:
    print(error)
""",
        WEBTORCH_MEMORY_LIMIT="2e6",
    )
    assert "WEBTORCH_MEMORY_LIMIT is 1.907 MiB" in done.stdout, done


def test_memory_that_the_system_refuses_is_a_typed_error_and_the_device_goes_on(device, in_process):
    if device.adapter.is_hardware or device.adapter.backend_type == "OpenGL":
        pytest.skip("limits this process's memory, which is not where this adapter has its own")
    done = in_process(
        """
import resource
keep = []
used = int(open("/proc/self/statm").read().split()[0]) * 4096
soft, hard = resource.getrlimit(resource.RLIMIT_AS)
resource.setrlimit(resource.RLIMIT_AS, (used + (1 << 30), hard))
try:
    for number in range(100):
        keep.append(b.allocate(float32, 25_000_000))
        keep[-1].label = f"block {number}"
except OutOfMemoryError as error:
    print(error)
keep.clear()
resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
(y,) = exe.run([x], [1.0, 2.0])
print("then", bytes(b.download(y)).hex())
"""
    )
    assert done.returncode == 0, done.stderr
    assert "the device has no memory left" in done.stdout and "block 0" in done.stdout, done.stdout
    assert "then " + "00004040" * 4 in done.stdout
