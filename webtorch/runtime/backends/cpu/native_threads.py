"""The thread pool for compiled kernels, itself machine code: handing out work takes microseconds
and no interpreter lock.

Threads are Python's, but each stays inside one native call, where it spins for a moment and then
sleeps on a futex. So this works on Linux (x86-64 and ARM64); `available` is False elsewhere, and
`threads.run_parallel` does the work. Imports the compiler beside it; ctypes and llvmlite when the
pool starts.
"""

from __future__ import annotations

import ctypes
import os
import platform
import sys
import threading
from collections.abc import Callable
from functools import cache

from webtorch.runtime.backends.cpu import jit

_FUTEX = {"x86_64": 202, "aarch64": 98}
_PAUSE = {
    "x86_64": "call void @llvm.x86.sse2.pause()",
    "aarch64": "call void @llvm.aarch64.hint(i32 1)",
}
# Looks at the state before a worker sleeps: a few hundred microseconds, longer than the Python between
# two kernels, since waking a sleeper costs as much as a small kernel.
_SPINS = 10_000
_CELL = 128

# One worker's cell: state (0 idle, 1 posted, 2 running) at 0, whether it sleeps at 4, its job at 8,
# whether it is to sleep without spinning first at 16.
# A job: the next chunk, number of chunks, begin, end, points in a chunk, function, block; 8 bytes each.
_TEXT = """
declare i64 @syscall(i64, ...)
declare i32 @sched_yield()
DECLARE_PAUSE

define void @wt_chunks(ptr %job) {
entry:
  %p1 = getelementptr i64, ptr %job, i64 1
  %count = load i64, ptr %p1
  %p2 = getelementptr i64, ptr %job, i64 2
  %begin = load i64, ptr %p2
  %p3 = getelementptr i64, ptr %job, i64 3
  %end = load i64, ptr %p3
  %p4 = getelementptr i64, ptr %job, i64 4
  %step = load i64, ptr %p4
  %p5 = getelementptr i64, ptr %job, i64 5
  %function = load ptr, ptr %p5
  %p6 = getelementptr i64, ptr %job, i64 6
  %block = load ptr, ptr %p6
  br label %next
next:
  %c = atomicrmw add ptr %job, i64 1 monotonic
  %more = icmp slt i64 %c, %count
  br i1 %more, label %work, label %done
work:
  %offset = mul i64 %c, %step
  %from = add i64 %begin, %offset
  %full = add i64 %from, %step
  %over = icmp sgt i64 %full, %end
  %to = select i1 %over, i64 %end, i64 %full
  call void %function(i64 %from, i64 %to, ptr %block)
  br label %next
done:
  ret void
}

define void @wt_worker(ptr %cell) {
entry:
  %sleeping = getelementptr i32, ptr %cell, i64 1
  %place = getelementptr i64, ptr %cell, i64 1
  %resting = getelementptr i64, ptr %cell, i64 2
  br label %look
look:
  %n = phi i64 [ 0, %entry ], [ %n1, %pause ], [ 0, %finished ], [ SPINS, %awake ]
  %state = load atomic i32, ptr %cell acquire, align 4
  %posted = icmp eq i32 %state, 1
  br i1 %posted, label %claim, label %wait
wait:
  %n1 = add i64 %n, 1
  %rest = load atomic i32, ptr %resting monotonic, align 4
  %asked = icmp ne i32 %rest, 0
  %long = icmp sge i64 %n, SPINS
  %tired = or i1 %asked, %long
  br i1 %tired, label %sleep, label %pause
pause:
  PAUSE
  br label %look
sleep:
  store atomic i32 1, ptr %sleeping seq_cst, align 4
  %r = call i64 (i64, ...) @syscall(i64 FUTEX, ptr %cell, i64 128, i64 0, ptr null, ptr null, i64 0)
  br label %awake
awake:
  store atomic i32 0, ptr %sleeping seq_cst, align 4
  br label %look
claim:
  %pair = cmpxchg ptr %cell, i32 1, i32 2 acquire monotonic
  %mine = extractvalue { i32, i1 } %pair, 1
  br i1 %mine, label %run, label %finished
run:
  %job = load ptr, ptr %place
  %stop = icmp eq ptr %job, null
  br i1 %stop, label %end, label %go
go:
  call void @wt_chunks(ptr %job)
  store atomic i32 0, ptr %cell release, align 4
  br label %finished
finished:
  br label %look
end:
  ret void
}

define void @wt_rest(ptr %cells, i64 %workers) {
entry:
  br label %next
next:
  %w = phi i64 [ 0, %entry ], [ %w1, %ask ]
  %more = icmp slt i64 %w, %workers
  br i1 %more, label %ask, label %done
ask:
  %o = mul i64 %w, CELL
  %o16 = add i64 %o, 16
  %resting = getelementptr i8, ptr %cells, i64 %o16
  store atomic i32 1, ptr %resting monotonic, align 4
  %w1 = add i64 %w, 1
  br label %next
done:
  ret void
}

define void @wt_run(ptr %cells, i64 %workers, ptr %function, i64 %begin, i64 %end, i64 %step, ptr %block) {
entry:
  %job = alloca [8 x i64], align 64
  %span = sub i64 %end, %begin
  %s1 = sub i64 %step, 1
  %s2 = add i64 %span, %s1
  %count = sdiv i64 %s2, %step
  store i64 0, ptr %job
  %p1 = getelementptr i64, ptr %job, i64 1
  store i64 %count, ptr %p1
  %p2 = getelementptr i64, ptr %job, i64 2
  store i64 %begin, ptr %p2
  %p3 = getelementptr i64, ptr %job, i64 3
  store i64 %end, ptr %p3
  %p4 = getelementptr i64, ptr %job, i64 4
  store i64 %step, ptr %p4
  %p5 = getelementptr i64, ptr %job, i64 5
  store ptr %function, ptr %p5
  %p6 = getelementptr i64, ptr %job, i64 6
  store ptr %block, ptr %p6
  br label %post
post:
  %w = phi i64 [ 0, %entry ], [ %w1, %posted ]
  %any = icmp slt i64 %w, %workers
  br i1 %any, label %give, label %own
give:
  %o = mul i64 %w, CELL
  %cell = getelementptr i8, ptr %cells, i64 %o
  %place = getelementptr i64, ptr %cell, i64 1
  store ptr %job, ptr %place
  %rp = getelementptr i64, ptr %cell, i64 2
  store atomic i32 0, ptr %rp monotonic, align 4
  store atomic i32 1, ptr %cell seq_cst, align 4
  %sp = getelementptr i32, ptr %cell, i64 1
  %asleep = load atomic i32, ptr %sp seq_cst, align 4
  %wake = icmp ne i32 %asleep, 0
  br i1 %wake, label %call, label %posted
call:
  %r = call i64 (i64, ...) @syscall(i64 FUTEX, ptr %cell, i64 129, i64 1, ptr null, ptr null, i64 0)
  br label %posted
posted:
  %w1 = add i64 %w, 1
  br label %post
own:
  call void @wt_chunks(ptr %job)
  br label %collect
collect:
  %v = phi i64 [ 0, %own ], [ %v1, %got ]
  %left = icmp slt i64 %v, %workers
  br i1 %left, label %revoke, label %done
revoke:
  %o2 = mul i64 %v, CELL
  %cell2 = getelementptr i8, ptr %cells, i64 %o2
  %pair = cmpxchg ptr %cell2, i32 1, i32 0 acquire acquire
  %idle = extractvalue { i32, i1 } %pair, 1
  br i1 %idle, label %got, label %watch
watch:
  %n = phi i64 [ 0, %revoke ], [ %n1, %again ]
  %state = load atomic i32, ptr %cell2 acquire, align 4
  %busy = icmp ne i32 %state, 0
  br i1 %busy, label %still, label %got
still:
  PAUSE
  %n1 = add i64 %n, 1
  %long = icmp sgt i64 %n, SPINS
  br i1 %long, label %yield, label %again
yield:
  %y = call i32 @sched_yield()
  br label %again
again:
  br label %watch
got:
  %v1 = add i64 %v, 1
  br label %collect
done:
  ret void
}
"""


@cache
def available() -> bool:
    """Whether the native pool works on this system."""
    return sys.platform == "linux" and platform.machine() in _FUTEX and jit.available()


class _Pool:
    def __init__(self) -> None:
        machine = platform.machine()
        pause = _PAUSE[machine]
        text = _TEXT.replace(
            "DECLARE_PAUSE", pause.replace("call", "declare").replace("(i32 1)", "(i32)")
        )
        text = (
            text.replace("PAUSE", pause)
            .replace("FUTEX", str(_FUTEX[machine]))
            .replace("SPINS", str(_SPINS))
            .replace("CELL", str(_CELL))
        )
        addresses = jit.assemble(text, ("wt_worker", "wt_run", "wt_rest"))
        self.worker = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(addresses[0])
        i64, pointer = ctypes.c_int64, ctypes.c_void_p
        self.call: Callable[..., None] = ctypes.CFUNCTYPE(
            None, pointer, i64, pointer, i64, i64, i64, ctypes.c_char_p
        )(addresses[1])
        self.ask: Callable[..., None] = ctypes.CFUNCTYPE(None, pointer, i64)(addresses[2])
        self.busy = threading.Lock()
        self.start()

    def start(self) -> None:
        """Take memory for the workers' cells; workers of a process before a fork are gone."""
        self.pid = os.getpid()
        self.workers = 0
        self.memory = ctypes.create_string_buffer(_CELL * 257)
        self.cells = -(-ctypes.addressof(self.memory) // _CELL) * _CELL

    def run(self, function: int, begin: int, end: int, step: int, block: bytes, count: int) -> bool:
        """Run a compiled function on `count` threads; return False if the pool is busy."""
        if not self.busy.acquire(blocking=False):
            return False
        try:
            if self.pid != os.getpid():  # threads do not survive a fork
                self.start()
            while self.workers < count - 1:
                address = self.cells + self.workers * _CELL
                thread = threading.Thread(
                    target=self.worker,
                    args=(address,),
                    name=f"webtorch-native-{self.workers + 1}",
                    daemon=True,
                )
                thread.start()
                self.workers += 1
            self.call(self.cells, count - 1, function, begin, end, step, block)
        finally:
            self.busy.release()
        return True

    def rest(self) -> None:
        """Let the workers sleep."""
        if self.workers and self.pid == os.getpid():
            self.ask(self.cells, self.workers)


_POOL: _Pool | None = None
_LOCK = threading.Lock()


def run(function: int, begin: int, end: int, step: int, block: bytes, count: int) -> bool:
    """Run a kernel's points begin..end-1 on `count` threads, `step` points at a time; False where
    the pool is in use.
    """
    global _POOL
    if _POOL is None:
        with _LOCK:
            if _POOL is None:
                _POOL = _Pool()
    return _POOL.run(function, begin, end, step, block, min(count, 257))


def rest() -> None:
    """Let the threads sleep at once: other threads, such as those of a BLAS, want the processors now."""
    if _POOL is not None:
        _POOL.rest()
