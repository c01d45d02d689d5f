"""What reads the batches of a DataLoader: a reader, and the threads that run one each."""

from __future__ import annotations

import copy
import queue
import threading
import traceback
import types
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from webtorch.data.collate import default_collate
from webtorch.data.dataset import Dataset, batch_reader
from webtorch.functions import public as webtorch

if TYPE_CHECKING:
    from webtorch.data.loader import DataLoader


@dataclass(frozen=True)
class WorkerInfo:
    """What a worker knows of itself: its number, how many there are, its seed and its dataset."""

    id: int
    num_workers: int
    seed: int
    dataset: Any


# Of a worker that is a thread.
_current = threading.local()
# Of the process, where it is a worker. Of this name in PyTorch, as the function below.
_worker_info: WorkerInfo | None = None


def get_worker_info() -> WorkerInfo | None:
    """Return the worker that this code runs in, None outside of workers."""
    return getattr(_current, "info", _worker_info)


def _generate_state(base_seed: int, worker_id: int) -> list[int]:
    """Return four words of 32 bits that seed NumPy's generator in a worker."""
    import numpy

    words = [worker_id, base_seed & 0xFFFFFFFF, base_seed >> 32, 0]
    return numpy.random.SeedSequence(words).generate_state(4).tolist()


class Reader:
    """Reads and collates the examples of a batch."""

    def __init__(
        self,
        dataset: Any,
        collate: Callable[..., object],
        batched: bool,
        iterable: bool,
        drop_last: bool,
    ) -> None:
        self.dataset = dataset
        self.collate = collate
        self.batched = batched
        self.iterable = iterable
        self.drop_last = drop_last
        self.iterator: Iterator[object] | None = None
        # Reading rows of tensors one by one, to stack them again, costs one operation a row.
        self.at_once = batch_reader(dataset) if batched and collate is default_collate else None

    def start(self) -> None:
        """Begin an epoch."""
        if self.iterable:
            self.iterator = iter(self.dataset)

    def __call__(self, indices: Any) -> object:
        """Return the batch; raise StopIteration when an iterable dataset has no more."""
        if self.iterator is not None:
            return self._next(indices)
        if not self.batched:
            return self.collate(self.dataset[indices])
        if self.at_once is not None:
            return self.at_once(indices)
        many = getattr(self.dataset, "__getitems__", None)
        examples = many(indices) if callable(many) else [self.dataset[i] for i in indices]
        return self.collate(examples)

    def _next(self, indices: Any) -> object:
        """Return the next batch of an iterable dataset; `indices` says how many examples."""
        assert self.iterator is not None
        if not self.batched:
            return self.collate(next(self.iterator))
        examples = []
        for _ in indices:
            try:
                examples.append(next(self.iterator))
            except StopIteration:
                break
        if not examples or (self.drop_last and len(examples) < len(indices)):
            raise StopIteration
        return self.collate(examples)


@dataclass
class Failure:
    """An exception on its way from a worker."""

    kind: type[BaseException]
    trace: str
    # "thread 0" or "process 0"
    worker: str
    error: BaseException | None = None

    @classmethod
    def of(cls, error: BaseException, worker: str) -> Failure:
        """Take down an exception."""
        return cls(type(error), "".join(traceback.format_exception(error)), worker, error)

    def raised(self) -> BaseException:
        """Return the error to raise: of the same type, with where and how it came about."""
        message = f"Caught {self.kind.__name__} in DataLoader worker {self.worker}.\nOriginal {self.trace}"
        try:
            return self.kind(_Message(message) if self.kind is KeyError else message)
        except Exception:  # an exception type whose constructor wants something else
            return RuntimeError(message)


class _Message(str):
    """A text that a KeyError shows as it is, not as a quoted key."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


class _End:
    """Says that an iterable dataset has no more; there is one, also in other processes."""

    def __reduce__(self) -> str:
        return "END"


END = _End()


class _Thread(threading.Thread):
    """A worker that is a thread, with what programs ask of those that are processes."""

    def __init__(
        self, number: int, tasks: queue.SimpleQueue[object], args: tuple[object, ...]
    ) -> None:
        super().__init__(target=work, args=args, name=f"webtorch-data-{number}", daemon=True)
        self._tasks = tasks

    @property
    def exitcode(self) -> int | None:
        """0 when the thread has ended."""
        return None if self.is_alive() else 0

    def terminate(self) -> None:
        """Ask the thread to end; the batch that it reads is read to its end."""
        self._tasks.put(None)


def own_copy(dataset: Any, function: Any) -> tuple[Any, Any]:
    """Return a dataset for one thread, which may change its attributes as a process does, and a function that is
    called there: a method of the dataset is one of the copy.
    """
    if not isinstance(dataset, Dataset):
        return dataset, function
    copied = copy.copy(dataset)
    if getattr(function, "__self__", None) is dataset:
        function = types.MethodType(function.__func__, copied)
    return copied, function


def work(
    reader: Reader,
    info: WorkerInfo,
    init: Callable[[int], None] | None,
    tasks: Any,
    results: Any,
    kind: str = "thread",
) -> None:
    """Run a worker: read batches until a task is None.

    A task is (epoch, number, indices), a result (epoch, number, worker, batch). It holds no
    reference to the loader, so that an abandoned loader can be freed and end its workers.
    """
    _current.info = info
    name = f"{kind} {info.id}"
    failure: Failure | None = None
    try:
        if init is not None:
            init(info.id)
    except BaseException as error:
        failure = Failure.of(error, name)
    current = None
    while (task := tasks.get()) is not None:
        epoch, number, indices = task
        out: object = failure
        if out is None:
            try:
                if epoch != current:
                    reader.start()
                    current = epoch
                out = reader(indices)
            except StopIteration as error:
                out = END if reader.iterable else Failure.of(error, name)
            except BaseException as error:
                out = Failure.of(error, name)
        results.put((epoch, number, info.id, out))
        del task, indices, out


class Workers:
    """The workers of a loader, and the epochs that they read."""

    def __init__(self, loader: DataLoader[object]) -> None:
        """Start the workers."""
        self.options = (float(loader.timeout), loader.prefetch_factor or 0, loader.in_order)
        self.count = loader.num_workers
        self.number_of_epoch = 0
        # The threads or processes.
        self.running: list[object] = []
        device = "cpu" if loader.generator is None else loader.generator.device
        seed = int(
            webtorch.randint(0, 2**31 - 1, (), generator=loader.generator, device=device).item()
        )
        self.start(loader, seed)

    def start(self, loader: DataLoader[object], seed: int) -> None:
        """Start the threads."""
        self.results: Any = queue.SimpleQueue()
        self.tasks: list[queue.SimpleQueue[object]] = [
            queue.SimpleQueue() for _ in range(self.count)
        ]
        for worker in range(self.count):
            dataset, init = own_copy(loader.dataset, loader.worker_init_fn)
            reader = loader._reader(dataset)
            info = WorkerInfo(worker, self.count, seed + worker, dataset)
            tasks = self.tasks[worker]
            thread = _Thread(worker, tasks, (reader, info, init, tasks, self.results))
            thread.start()
            self.running.append(thread)
        self._finalizer: weakref.finalize[..., object] = weakref.finalize(self, _stop, self.tasks)

    def close(self) -> None:
        """End the threads."""
        self._finalizer()

    def epoch(self, batches: Iterator[object], close: bool) -> Iterator[object]:
        """Yield the batches whose indices `batches` gives; at the end `close` ends the threads."""
        try:
            yield from self._epoch(batches)
        finally:
            if close:
                self.close()

    def _epoch(self, batches: Iterator[object]) -> Iterator[object]:
        """Hand out indices in turn, keep the results that are early, yield them in order."""
        timeout, ahead, in_order = self.options
        self.number_of_epoch += 1
        epoch = self.number_of_epoch
        active = set(range(self.count))
        early: dict[int, object] = {}
        given = taken = worker = 0
        exhausted = False

        def give() -> None:
            """Hand one task to the next worker that still has examples."""
            nonlocal given, worker, exhausted
            if exhausted or not active:
                return
            try:
                indices = next(batches)
            except StopIteration:
                exhausted = True
                return
            while worker not in active:
                worker = (worker + 1) % self.count
            self.tasks[worker].put((epoch, given, indices))
            given += 1
            worker = (worker + 1) % self.count

        for _ in range(max(1, ahead) * self.count):
            give()
        while taken < given:
            if in_order and taken in early:
                out = early.pop(taken)
            else:
                number, who, out = self._next_result(epoch, timeout)
                if out is END:
                    active.discard(who)
                if in_order and number != taken:
                    early[number] = out
                    continue
            taken += 1
            give()
            if out is END:
                continue
            # A failure is given, too: who iterates raises it, and goes on.
            yield out
            del out

    def _next_result(self, epoch: int, timeout: float) -> tuple[int, int, object]:
        """Return (number, worker, batch) of the next result; older epochs' ones are dropped."""
        while True:
            try:
                found, number, who, out = self.receive(timeout)
            except queue.Empty:
                raise RuntimeError(f"DataLoader timed out after {timeout:g} seconds") from None
            if found == epoch:
                return number, who, out

    def receive(self, timeout: float) -> tuple[int, int, int, object]:
        """Return the next result; raise queue.Empty after `timeout` seconds, if that is not 0."""
        return self.results.get(timeout=timeout or None)


def _stop(tasks: list[queue.SimpleQueue[object]]) -> None:
    """Ask every worker to end."""
    for one in tasks:
        one.put(None)
