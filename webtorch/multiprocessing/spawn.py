"""Processes that run one function, and how they end."""

from __future__ import annotations

import contextlib
import multiprocessing
import multiprocessing.connection
import os
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable, Iterable
from multiprocessing.process import BaseProcess
from typing import Any

from webtorch.ir.lines import user_depth

__all__ = [
    "ProcessContext", "ProcessException", "ProcessExitedException", "ProcessRaisedException", "spawn",
    "start_processes",
]  # fmt: skip


class ProcessException(Exception):
    """A process failed: the one numbered `error_index`, whose id was `error_pid`."""

    def __init__(self, msg: str, error_index: int, error_pid: int) -> None:
        super().__init__(msg)
        self.msg, self.error_index, self.error_pid = msg, error_index, error_pid

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.msg, self.error_index, self.error_pid)


class ProcessRaisedException(ProcessException):
    """A process failed as its function raised an exception, whose traceback is in the message."""


class ProcessExitedException(ProcessException):
    """A process ended by a signal or with an exit code that is not 0."""

    def __init__(
        self,
        msg: str,
        error_index: int,
        error_pid: int,
        exit_code: int,
        signal_name: str | None = None,
    ) -> None:
        super().__init__(msg, error_index, error_pid)
        self.exit_code, self.signal_name = exit_code, signal_name

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (
            self.msg,
            self.error_index,
            self.error_pid,
            self.exit_code,
            self.signal_name,
        )


def _run(fn: Callable[..., object], i: int, args: Iterable[object], error_file: str) -> None:
    """Run the function in a process; write the traceback of its exception to a file."""
    try:
        fn(i, *args)
    except KeyboardInterrupt:
        # The process that started this one ends it.
        pass
    except Exception:
        with open(error_file, "w", encoding="utf-8") as file:
            file.write(traceback.format_exc())
        sys.exit(1)


class ProcessContext:
    """Processes that were started together."""

    def __init__(self, processes: list[BaseProcess], error_files: list[str]) -> None:
        self.processes, self.error_files = processes, error_files
        self.sentinels = {process.sentinel: i for i, process in enumerate(processes)}

    def pids(self) -> list[int]:
        """Return the ids of the processes."""
        return [process.pid or 0 for process in self.processes]

    def join(self, timeout: float | None = None, grace_period: float | None = None) -> bool:
        """Wait for one process or more to end, for `timeout` seconds at most; return whether all have ended.

        If one failed the others have `grace_period` seconds to end; then they are ended, and a ProcessException says
        how the first one failed.
        """
        for sentinel in multiprocessing.connection.wait(list(self.sentinels), timeout):
            assert isinstance(sentinel, int)
            i = self.sentinels.pop(sentinel)
            self.processes[i].join()
            if self.processes[i].exitcode:
                self._end(grace_period)
                error = self._failed(i)
                self._forget()
                raise error
        if not self.sentinels:
            self._forget()
        return not self.sentinels

    def _forget(self) -> None:
        """Remove the files of errors."""
        for file in self.error_files:
            with contextlib.suppress(OSError):
                os.unlink(file)

    def _end(self, grace_period: float | None) -> None:
        """End the processes that are still running."""
        self._wait(grace_period or 0.0)
        for process in self.processes:
            process.terminate()
        self._wait(30.0 if grace_period is None else grace_period)
        for process in self.processes:
            process.kill()
            process.join()

    def _wait(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        for process in self.processes:
            process.join(max(0.0, end - time.monotonic()))

    def _failed(self, i: int) -> ProcessException:
        """Return how a process failed."""
        pid, code = self.processes[i].pid or 0, self.processes[i].exitcode or 0
        with contextlib.suppress(OSError), open(self.error_files[i], encoding="utf-8") as file:
            if text := file.read():
                start = f"\n\n-- Process {i} terminated with the following error:\n"
                return ProcessRaisedException(start + text, i, pid)
        if code >= 0:
            text = f"process {i} terminated with exit code {code}"
            return ProcessExitedException(text, i, pid, code)
        name = f"<Unknown signal {-code}>"
        with contextlib.suppress(ValueError):
            name = signal.Signals(-code).name
        text = f"process {i} terminated with signal {name}"
        return ProcessExitedException(text, i, pid, code, name)


def start_processes(
    fn: Callable[..., object],
    args: tuple[object, ...] = (),
    nprocs: int = 1,
    join: bool = True,
    daemon: bool = False,
    start_method: str = "spawn",
) -> ProcessContext | None:
    """Run fn(i, *args) in `nprocs` processes; with `join` wait for them, else return their context.

    Raises ProcessRaisedException or ProcessExitedException where one of them fails, after it has ended the others.
    """
    made: Any = multiprocessing.get_context(start_method)
    processes, files = [], []
    for i in range(nprocs):
        handle, name = tempfile.mkstemp(prefix="webtorch-error-")
        os.close(handle)
        process = made.Process(target=_run, args=(fn, i, args, name), daemon=daemon)
        process.start()
        processes.append(process)
        files.append(name)
    context = ProcessContext(processes, files)
    if not join:
        return context
    while not context.join():
        pass
    return None


def spawn(
    fn: Callable[..., object],
    args: tuple[object, ...] = (),
    nprocs: int = 1,
    join: bool = True,
    daemon: bool = False,
    start_method: str = "spawn",
) -> ProcessContext | None:
    """Run fn(i, *args) in `nprocs` processes that start afresh, as `start_processes` does."""
    if start_method != "spawn":
        warnings.warn(
            f"This method only supports start_method=spawn (got: {start_method}).\n"
            "To use a different start_method use:\n\t\t torch.multiprocessing.start_processes(...)",
            FutureWarning,
            stacklevel=user_depth(),
        )
    return start_processes(fn, args, nprocs, join, daemon)
