"""A lost device, and the four mistakes on which the native library aborts the process: typed errors instead."""

from __future__ import annotations

import pytest

from webtorch.ir.dtype import uint8
from webtorch.runtime.backends.webgpu.device import WebGPUBackend, open_backend

_AFTER = """
import asyncio
def attempt(name, function):
    try:
        function()
    except DeviceLostError as error:
        assert "webgpu:0" in str(error) and "was lost" in str(error) and "checkpoint" in str(error), error
    except BaseException as error:
        print(name, "gave", type(error).__name__, error)
    else:
        print(name, "gave nothing")
async def read():
    await b.download_async(x)
for name, function in {
    "run": lambda: exe.run([x], [1.0, 2.0]),
    "download": lambda: b.download(x),
    "upload": lambda: b.upload(bytes(1 << 16), float32, 1 << 14),
    "allocate": lambda: b.allocate(float32, 1 << 20),
    "compile": lambda: b.compile(scale_program(8)),
    "synchronize": b.synchronize,
    "async": lambda: asyncio.run(read()),
    "again": lambda: exe.run([x], [1.0, 2.0]),
}.items():
    attempt(name, function)
del x, exe
b.memory_allocated()
print("end")
"""


@pytest.mark.one_in(2)
@pytest.mark.covers("N14")
@pytest.mark.parametrize(
    "loss",
    [
        "b.destroy()",
        # Behind the backend's back, as a driver does it: idle, with work queued, with a write queued.
        "b.native.wrapper.destroy()",
        "exe.run([x], [1.0, 1.0]); b.native.wrapper.destroy()",
        "b.upload(bytes(16), float32, 4); b.native.wrapper.destroy()",
    ],
)
def test_after_a_loss_every_use_says_so_and_the_process_lives(in_process, loss):
    done = in_process(loss + "\n" + _AFTER)
    assert (done.returncode, done.stdout) == (0, "end\n"), (done.stdout, done.stderr)
    assert done.stderr == ""


@pytest.mark.one_in(2)
@pytest.mark.parametrize(
    "first", ["exe.run([x], [1.0, 2.0])", "b.synchronize()", "b.download(x)", "b.empty_cache()"]
)
def test_the_first_use_after_a_silent_loss_does_not_abort(in_process, first):
    done = in_process(
        f"""
b.native.wrapper.destroy()
try:
    {first}
except DeviceLostError:
    pass
try:
    exe.run([x], [3.0, 4.0])
except DeviceLostError:
    print("said so")
"""
    )
    assert (done.returncode, done.stdout) == (0, "said so\n"), (done.stdout, done.stderr)


def test_a_large_upload_to_a_lost_device_does_not_abort(in_process):
    # Its pieces are flushed with an empty submission, which aborts on a lost device like any other.
    done = in_process(
        """
y = b.allocate(float32, 25_000_000)
del y
b.native.wrapper.destroy()
try:
    b.upload(bytes(100_000_000), float32, 25_000_000)
except DeviceLostError:
    print("said so")
"""
    )
    assert (done.returncode, done.stdout) == (0, "said so\n"), (done.stdout, done.stderr)


def test_buffers_that_die_before_their_work_runs_do_not_abort(in_process):
    # A destroyed buffer in a submitted command buffer aborts; ours are never destroyed, only dropped.
    done = in_process(
        """
for step in range(20):
    z = b.upload(bytes(16), float32, 4)
    (y,) = exe.run([z], [1.0, float(step)])
    del z, y
    if step % 5 == 0:
        b.empty_cache()
b.synchronize()
print("fine")
"""
    )
    assert (done.returncode, done.stdout) == (0, "fine\n"), (done.stdout, done.stderr)


def test_reads_under_way_in_other_threads_never_leave_a_mapped_buffer_in_use(in_process):
    # Submitting while a used buffer is mapped aborts: staging buffers are used again only when unmapped.
    done = in_process(
        """
import threading
def read():
    for _ in range(100):
        b.download(x)
threads = [threading.Thread(target=read) for _ in range(4)]
[t.start() for t in threads]
for _ in range(200):
    exe.run([x], [1.0, 2.0])
[t.join() for t in threads]
print("fine")
"""
    )
    assert (done.returncode, done.stdout) == (0, "fine\n"), (done.stdout, done.stderr)


def test_nothing_is_submitted_when_encoding_failed(in_process):
    # An invalid command buffer, such as one of a bind group that was refused, must not reach the queue.
    done = in_process(
        """
from dataclasses import replace
step = exe._steps[0]
too_large = tuple((piece, 1 << 40, first) for piece, _, first in step.layout.memory)
step.layout = replace(step.layout, memory=too_large)
for _ in range(3):
    try:
        exe.run([x], [1.0, 2.0])
    except KernelError as error:
        print("refused" in str(error))
print(b.memory_allocated() == 16, bytes(b.download(x)) == bytes(16))
"""
    )
    assert (done.returncode, done.stdout) == (0, "True\n" * 3 + "True True\n"), done


def test_leaving_with_work_under_way_is_quiet(in_process):
    done = in_process(
        """
for _ in range(50):
    y = exe.run([x], [1.0, 2.0])
pending = b.download_async(x)
"""
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", ""), done


def test_a_card_gives_a_device_each_time(device: WebGPUBackend) -> None:
    """Dawn's adapters give one, as the specification says, so a second one is found anew."""
    for _ in range(2):
        other = open_backend(device.index)
        assert other.adapter == device.adapter
        assert bytes(other.download(other.upload(b"\1\2\3\4", uint8, 4))) == b"\1\2\3\4"
