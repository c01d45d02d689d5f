"""Workers of a DataLoader that are processes. May import floors 0 to 4.

A worker gets indices through a queue of its own and answers through one that all share. Tensors
cross as bytes, are made on the CPU of the worker, and become tensors of the CPU here. A worker uses
one thread: forked, it has none of the parent's, and there are several of it.
"""

from __future__ import annotations

import gc
import multiprocessing
import pickle
import queue
import random
import signal
import sys
import time
import weakref
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from webtorch.data import workers
from webtorch.data.workers import Failure, WorkerInfo, Workers, _generate_state, work
from webtorch.functions import public as webtorch
from webtorch.tensors.creation import from_bytes
from webtorch.tensors.tensor import Tensor

if TYPE_CHECKING:
    from webtorch.data.loader import DataLoader

# How often it is looked whether the workers still live.
_LOOK_SECONDS = 1.0
# How long workers that were asked to end are waited for.
_PATIENCE_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class _Sent:
    """A tensor on its way."""

    data: bytes
    shape: tuple[int, ...]
    dtype: str


def pack(x: object) -> Any:
    """Return a batch with what can cross in place of its tensors."""
    if isinstance(x, Tensor):
        if x.device.type != "cpu":
            raise RuntimeError(
                f"DataLoader: a worker process made a tensor on {x.device}; examples must be on the CPU "
                "there. Move the batch in the training loop, or use threads (multiprocessing_context=None)."
            )
        data = bytes(memoryview(x.detach()._to_bytes())[: x.numel() * x.dtype.itemsize])
        return _Sent(data, tuple(x.shape), x.dtype.name)
    return _each(pack, x)


def unpack(x: object) -> Any:
    """Return a batch as it was before `pack`."""
    if isinstance(x, _Sent):
        return from_bytes(x.data, x.shape, getattr(webtorch, x.dtype), "cpu")
    return _each(unpack, x)


def _each(function: Any, x: Any) -> object:
    if type(x) in (list, tuple, set):
        return type(x)(function(y) for y in x)
    if isinstance(x, tuple) and hasattr(x, "_fields"):
        return type(x)(*(function(y) for y in x))
    if type(x) is dict:
        return {k: function(v) for k, v in x.items()}
    return x


class _Answers:
    """The results' queue as a worker sees it: what cannot be sent is answered with the reason."""

    def __init__(self, results: Any, name: str) -> None:
        self.results, self.name = results, name

    def put(self, item: tuple[int, int, int, Any]) -> None:
        """Send an item; one that cannot be pickled goes as the failure that it is."""
        epoch, number, worker, out = item
        try:
            if isinstance(out, Failure):
                # The exception itself may hold anything; its text and type go.
                out = Failure(out.kind, out.trace, out.worker)
                try:
                    pickle.dumps(out)
                except Exception:
                    out = Failure(RuntimeError, out.trace, out.worker)
                content = pickle.dumps(out)
            else:
                content = pickle.dumps(pack(out), protocol=5)
        except BaseException as error:
            content = pickle.dumps(Failure(RuntimeError, Failure.of(error, "").trace, self.name))
        self.results.put((epoch, number, worker, content))


def _run(reader: Any, info: WorkerInfo, init: Any, tasks: object, results: Any) -> None:
    # What the parent has left is not for this process to free: threads of drivers that some of it needs are not here.
    gc.freeze()
    # Ctrl-C goes to the whole group; the parent ends its workers.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    webtorch.set_num_threads(1)
    webtorch.set_default_device("cpu")
    random.seed(info.seed)
    webtorch.manual_seed(info.seed)
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed(_generate_state(info.seed - info.id, info.id))
    workers._worker_info = info
    work(
        reader,
        info,
        init,
        _Tasks(tasks),
        _Answers(results, f"process {info.id}"),
        "process",
    )
    # Nobody waits for what is still on its way.
    results.cancel_join_thread()


class _Tasks:
    """A worker's queue, which ends when the parent is gone."""

    def __init__(self, tasks: Any) -> None:
        self.tasks = tasks
        # Not the process above: from a fork server, that is the server.
        self.parent = multiprocessing.parent_process()

    def get(self) -> Any:
        """Return the next task, None once the parent process is gone."""
        while True:
            try:
                return self.tasks.get(timeout=_LOOK_SECONDS)
            except queue.Empty:
                if self.parent is not None and not self.parent.is_alive():
                    return None


class Processes(Workers):
    """The processes of a loader."""

    def start(self, loader: DataLoader[object], seed: int) -> None:
        """Start the processes. Raises what pickling raises where they are not forked."""
        # The type of all contexts lacks their processes.
        context: Any = loader.multiprocessing_context
        if isinstance(context, str):
            known = multiprocessing.get_all_start_methods()
            if context not in known:
                raise ValueError(
                    "multiprocessing_context option should specify a valid start method in "
                    f"{known!r}, but got multiprocessing_context={context!r}"
                )
            context = multiprocessing.get_context(context)
        self.results = context.Queue()
        self.tasks = []
        self.processes: list[Any] = []
        # What is pending would be computed in every one of them.
        webtorch.realize()
        for worker in range(self.count):
            tasks = context.Queue()
            tasks.cancel_join_thread()
            reader = loader._reader()
            info = WorkerInfo(worker, self.count, seed + worker, reader.dataset)
            process = context.Process(
                target=_run,
                args=(reader, info, loader.worker_init_fn, tasks, self.results),
                name=f"webtorch-data-{worker}",
                daemon=True,
            )
            process.start()
            self.tasks.append(tasks)
            self.processes.append(process)
        self.running = self.processes
        self._finalizer = weakref.finalize(self, _end, self.tasks, self.processes, self.results)

    def receive(self, timeout: float) -> tuple[int, int, int, Any]:
        """Return the next result; raise RuntimeError where a worker died before it gave one."""
        end = time.monotonic() + timeout if timeout else None
        while True:
            wait = _LOOK_SECONDS if end is None else min(_LOOK_SECONDS, end - time.monotonic())
            try:
                epoch, number, who, content = self.results.get(timeout=max(wait, 0.0))
            except queue.Empty:
                dead = [p for p in self.processes if not p.is_alive()]
                if dead:
                    pids = ", ".join(str(p.pid) for p in dead)
                    codes = ", ".join(str(p.exitcode) for p in dead)
                    self.close()
                    raise RuntimeError(
                        f"DataLoader worker (pid(s) {pids}) exited unexpectedly (exit code {codes}); a "
                        "negative one is the signal that ended it, -9 often for lack of memory"
                    ) from None
                if end is not None and time.monotonic() >= end:
                    raise
                continue
            return epoch, number, who, unpack(pickle.loads(content))


def _end(tasks: list[Any], processes: list[Any], results: object) -> None:
    """Ask the processes to end, and end those that do not."""
    for one in tasks:
        try:
            one.put(None)
        except (ValueError, OSError):
            continue
    until = time.monotonic() + _PATIENCE_SECONDS
    for process in processes:
        process.join(max(0.0, until - time.monotonic()))
        if process.is_alive():
            process.terminate()
            process.join(_PATIENCE_SECONDS)
    for one in (*tasks, results):
        one.close()
