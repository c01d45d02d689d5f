"""A pool of threads that run parts of one kernel; the caller runs a part too. Standard library only.

Generated code releases the interpreter's lock while it runs, so plain threads are parallel.
"""

from __future__ import annotations

import os
import threading
from array import array
from collections.abc import Callable
from itertools import pairwise

Task = Callable[[], object]


def _default_count() -> int:
    text = os.environ.get("WEBTORCH_NUM_THREADS", "")
    if text.isdecimal() and int(text) > 0:
        return int(text)
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:
        return os.cpu_count() or 1


class _Worker:
    """One thread that sleeps on a lock between tasks: cheaper to wake than a queue."""

    def __init__(self, number: int) -> None:
        self.task: Task | None = None
        self.error: BaseException | None = None
        self.wake = threading.Lock()
        self.done = threading.Lock()
        self.wake.acquire()
        self.done.acquire()
        threading.Thread(target=self._loop, name=f"webtorch-cpu-{number}", daemon=True).start()

    def _loop(self) -> None:
        while True:
            self.wake.acquire()
            task = self.task
            if task is None:
                return
            try:
                task()
            except BaseException as error:
                self.error = error
            self.task = task = None
            self.done.release()

    def start(self, task: Task) -> None:
        """Give the thread a task."""
        self.task = task
        self.wake.release()

    def wait(self) -> None:
        """Wait until the task is done; raise its error."""
        self.done.acquire()
        error, self.error = self.error, None
        if error is not None:
            raise error

    def stop(self) -> None:
        """Let the thread end."""
        self.task = None
        self.wake.release()


class _Pool:
    def __init__(self) -> None:
        self.workers: list[_Worker] = []
        self.busy = threading.Lock()
        self.pid = os.getpid()

    def run(self, tasks: list[Task]) -> None:
        """Run tasks together, the first one on this thread; one after the other if the pool is busy."""
        # A second caller, or a task that itself is parallel, does its parts in order: never a deadlock.
        if len(tasks) == 1 or not self.busy.acquire(blocking=False):
            for task in tasks:
                task()
            return
        try:
            if self.pid != os.getpid():  # threads do not survive a fork
                self.workers, self.pid = [], os.getpid()
            while len(self.workers) < len(tasks) - 1:
                self.workers.append(_Worker(len(self.workers) + 1))
            started = self.workers[: len(tasks) - 1]
            for worker, task in zip(started, tasks[1:]):
                worker.start(task)
            try:
                tasks[0]()
            finally:
                for worker in started:
                    worker.wait()
        finally:
            self.busy.release()


_POOL = _Pool()
# How many threads one kernel may use: machine code reads it where it is.
COUNT = array("q", [_default_count()])
# Called when that has changed.
changed: list[Callable[[], None]] = []


def get_num_threads() -> int:
    """Return how many threads one kernel may use, the caller's included."""
    return COUNT[0]


def set_num_threads(count: int) -> None:
    """Set how many threads one kernel may use. Raises RuntimeError unless `count` is positive."""
    if count < 1:
        raise RuntimeError(f"set_num_threads: expected a positive number of threads, got {count}")
    COUNT[0] = int(count)
    for follow in changed:
        follow()


def run_parallel(tasks: list[Task]) -> None:
    """Run the tasks, the first on the calling thread; returns when all are done. Raises what a task raised."""
    if tasks:
        _POOL.run(tasks)


def split(begin: int, end: int, parts: int, multiple: int = 1) -> list[tuple[int, int]]:
    """Cut a range into at most `parts` pieces of like size, at multiples of `multiple`."""
    units = -(-(end - begin) // multiple)
    parts = max(1, min(parts, units))
    cuts = [begin + units * i // parts * multiple for i in range(parts)] + [end]
    return [(a, b) for a, b in pairwise(cuts) if b > a]
