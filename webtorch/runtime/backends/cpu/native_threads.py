"""The thread pool for compiled kernels, itself machine code: handing out work takes well under a
microsecond and no interpreter lock.

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

from webtorch.runtime.backends.cpu import jit, threads

_FUTEX = {"x86_64": 202, "aarch64": 98}
_PAUSE = {
    "x86_64": "call void @llvm.x86.sse2.pause()",
    "aarch64": "call void @llvm.aarch64.hint(i32 1)",
}
# Looks at the state before a worker sleeps: a few hundred microseconds, longer than the Python between
# two kernels, since waking a sleeper costs as much as a small kernel.
_SPINS = 10_000
_CELL = 128
_MOST_THREADS = 257

# The pool begins with a cell of its own: where `wt_shared` is, whether it is in use, how many workers there are, and
# where it says how many threads a kernel may use; 8 bytes each.
# One worker's cell: state (0 idle, 1 posted, 2 running) at 0, whether it sleeps at 4, its job at 8,
# whether it is to sleep without spinning first at 16.
# A job: the next chunk, number of chunks, begin, end, points in a chunk, function, block; 8 bytes each.
_TEXT = """
declare i64 @syscall(i64, ...)
declare i32 @sched_yield()
declare i64 @llvm.smin.i64(i64, i64)
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

define void @wt_rest(ptr %pool) {
entry:
  %cells = getelementptr i8, ptr %pool, i64 CELL
  %pw = getelementptr i64, ptr %pool, i64 2
  %workers = load i64, ptr %pw
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

; Run a kernel on the threads that there are, `step` points at a time; whether nobody else does.
define i32 @wt_run(ptr %pool, ptr %function, i64 %begin, i64 %end, i64 %step, ptr %block) {
entry:
  %job = alloca [8 x i64], align 64
  %cells = getelementptr i8, ptr %pool, i64 CELL
  %used = getelementptr i64, ptr %pool, i64 1
  %pair0 = cmpxchg ptr %used, i64 0, i64 1 acquire monotonic
  %mine = extractvalue { i64, i1 } %pair0, 1
  br i1 %mine, label %share, label %other
other:
  ret i32 0
share:
  %pw = getelementptr i64, ptr %pool, i64 2
  %there = load i64, ptr %pw
  %pc = getelementptr i64, ptr %pool, i64 3
  %most = load ptr, ptr %pc
  %threads = load i64, ptr %most
  %others = sub i64 %threads, 1
  %w2 = call i64 @llvm.smin.i64(i64 %others, i64 %there)
  %span = sub i64 %end, %begin
  %s1 = sub i64 %step, 1
  %s2 = add i64 %span, %s1
  %count = sdiv i64 %s2, %step
  %chunks = sub i64 %count, 1
  %workers = call i64 @llvm.smin.i64(i64 %w2, i64 %chunks)
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
  %w = phi i64 [ 0, %share ], [ %w1, %posted ]
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
  store atomic i64 0, ptr %used release, align 8
  ret i32 1
}

; The same for machine code: where another thread uses the pool, all of it on this one.
define void @wt_shared(ptr %pool, ptr %function, i64 %begin, i64 %end, i64 %step, ptr %block) {
entry:
  %ran = call i32 @wt_run(ptr %pool, ptr %function, i64 %begin, i64 %end, i64 %step, ptr %block)
  %done = icmp ne i32 %ran, 0
  br i1 %done, label %end1, label %alone
alone:
  call void %function(i64 %begin, i64 %end, ptr %block)
  br label %end1
end1:
  ret void
}
"""


@cache
def available() -> bool:
    """Whether the native pool works on this system."""
    return sys.platform == "linux" and platform.machine() in _FUTEX and jit.available()


# Zeros: no address, no worker. A cell more than there are, as the pool begins at the first whole one.
_memory = ctypes.create_string_buffer(_CELL * (_MOST_THREADS + 2))
# The pool for machine code: its first word is the address of a function of the pool, a kernel, its first and last
# points, how many a thread takes at a time, and its block. It is there once `start` has been called.
POOL = -(-ctypes.addressof(_memory) // _CELL) * _CELL
_words = (ctypes.c_int64 * 4).from_address(POOL)
_LOCK = threading.Lock()


@cache
def _functions() -> tuple[Callable[..., None], Callable[..., int], Callable[..., None], int]:
    """Return a worker's life, what runs a kernel, what lets workers sleep, and where `wt_shared` is."""
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
    worker, run, rest, shared = jit.assemble(text, ("wt_worker", "wt_run", "wt_rest", "wt_shared"))
    i64, pointer = ctypes.c_int64, ctypes.c_void_p
    kernel = ctypes.CFUNCTYPE(ctypes.c_int32, pointer, pointer, i64, i64, i64, ctypes.c_char_p)
    alone = ctypes.CFUNCTYPE(None, pointer)
    return alone(worker), kernel(run), alone(rest), shared


def start() -> None:
    """Have as many workers as kernels may use threads."""
    worker, _, _, shared = _functions()
    with _LOCK:
        if not _words[0]:
            _words[0], _words[3] = shared, threads.COUNT.buffer_info()[0]
            threads.changed.append(start)
            os.register_at_fork(after_in_child=_forget_workers)
        while _words[2] < min(threads.get_num_threads(), _MOST_THREADS) - 1:
            number = _words[2] + 1
            thread = threading.Thread(
                target=worker,
                args=(POOL + number * _CELL,),
                name=f"webtorch-native-{number}",
                daemon=True,
            )
            thread.start()
            _words[2] = number


def _forget_workers() -> None:
    """Begin anew in a process that was forked: threads do not come along, and what they did is not done."""
    global _LOCK
    _LOCK = threading.Lock()
    ctypes.memset(POOL + 8, 0, 16)
    ctypes.memset(POOL + _CELL, 0, _CELL * _MOST_THREADS)


def run(function: int, begin: int, end: int, step: int, block: bytes) -> bool:
    """Run a kernel's points begin..end-1 on all threads, `step` points at a time; False where the pool is in use."""
    if _words[2] < threads.get_num_threads() - 1:
        start()
    return bool(_functions()[1](POOL, function, begin, end, step, block))


def rest() -> None:
    """Let the threads sleep at once: other threads, such as those of a BLAS, want the processors now."""
    if _words[2]:
        _functions()[2](POOL)
