"""Processes that do one task after another: one that dies takes one task with it."""

from __future__ import annotations

import json
import select
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, Generic, TypeVar

ROOT = Path(__file__).resolve().parent.parent.parent
# What names a task: texts, sent to a worker as a line of JSON.
Task = TypeVar("Task", bound=tuple[str, ...])


class Worker(Generic[Task]):
    """A Python process that reads tasks from standard input and answers each with a line of JSON."""

    def __init__(self, arguments: Sequence[str], environment: Mapping[str, str]) -> None:
        one_thread = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
        self.process = subprocess.Popen(
            [sys.executable, *arguments],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
            text=True, bufsize=1, cwd=ROOT, env={**environment, **one_thread},
        )  # fmt: skip
        self.task: Task | None = None
        self.since = 0.0

    @property
    def answers(self) -> IO[str]:
        """Where the results come from."""
        assert self.process.stdout is not None
        return self.process.stdout

    def give(self, task: Task) -> None:
        """Send one task."""
        assert self.process.stdin is not None
        self.task, self.since = task, time.monotonic()
        self.process.stdin.write(json.dumps(task) + "\n")
        self.process.stdin.flush()

    def stop(self) -> None:
        """End the process."""
        self.process.kill()
        self.process.communicate()


def work_off(
    tasks: Sequence[Task],
    jobs: int,
    start: Callable[[], Worker[Task]],
    seconds: float,
    finish: Callable[[Task, dict[str, Any], str], None],
) -> None:
    """Do the tasks in `jobs` workers that `start` makes, and `finish` each: (task, its result, "3/17").

    The result of a task that ends its worker is {"died": "crash"}, or {"died": "timeout"} after `seconds`.
    """
    waiting, done = deque(tasks), 0
    workers = [start() for _ in range(min(jobs, len(tasks)))]
    for worker in workers:
        worker.give(waiting.popleft())
    while workers:
        ready, _, _ = select.select([w.answers for w in workers], [], [], min(5.0, seconds))
        for worker in list(workers):
            assert worker.task is not None
            late = time.monotonic() - worker.since > seconds
            if worker.answers not in ready and not late:
                continue
            # What has come is taken, though this loop looks at it late.
            line = worker.answers.readline() if worker.answers in ready else ""
            result = json.loads(line) if line else {"died": "timeout" if late else "crash"}
            done += 1
            finish(worker.task, result, f"{done}/{len(tasks)}")
            if not line:
                worker.stop()
                workers[workers.index(worker)] = worker = start()
            if waiting:
                worker.give(waiting.popleft())
            else:
                worker.stop()
                workers.remove(worker)
