"""DataLoader: batches of a dataset, read here or by workers ahead of time. May import floors 0 to 4.

Workers are threads: a browser page has no processes, tensors need not be copied between them, and
reading files and NumPy release the interpreter. Where Python itself is the work,
`multiprocessing_context` makes them processes (`processes`).
"""

from __future__ import annotations

import copy
import queue
import threading
import traceback
import weakref
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import webtorch
from webtorch.data.collate import default_collate, default_convert
from webtorch.data.dataset import IterableDataset, batch_reader
from webtorch.data.sampler import BatchSampler, RandomSampler, SequentialSampler

__all__ = ["DataLoader", "WorkerInfo", "get_worker_info"]

Batch = TypeVar("Batch", covariant=True)


@dataclass(frozen=True)
class WorkerInfo:
    """What a worker knows of itself: its number, how many there are, its seed and its dataset."""

    id: int
    num_workers: int
    seed: int
    dataset: Any


_current = threading.local()


def get_worker_info() -> WorkerInfo | None:
    """Return the worker that this code runs in, None outside of workers."""
    return getattr(_current, "info", None)


class _Forever:
    """The sampler of an iterable dataset, which has no indices."""

    def __iter__(self) -> Iterator[None]:
        while True:
            yield None


class DataLoader(Generic[Batch]):
    """Iterates over batches of a dataset.

    `num_workers` workers read ahead, `prefetch_factor` batches each. They are threads, or processes
    where `multiprocessing_context` says how to start them: "fork", "spawn", "forkserver" or a context
    of multiprocessing. Pinned memory is accepted and does nothing: uploads are made from any memory.
    """

    _frozen = False

    def __init__(
        self,
        dataset: Any,
        batch_size: int | None = 1,
        shuffle: bool | None = None,
        sampler: Any = None,
        batch_sampler: Iterable[Any] | None = None,
        num_workers: int = 0,
        collate_fn: Callable[[Any], Any] | None = None,
        pin_memory: bool = False,
        drop_last: bool = False,
        timeout: float = 0,
        worker_init_fn: Callable[[int], None] | None = None,
        multiprocessing_context: Any = None,
        generator: Any = None,
        *,
        prefetch_factor: int | None = None,
        persistent_workers: bool = False,
        pin_memory_device: str = "",
        in_order: bool = True,
    ) -> None:
        """Take the dataset and how to read it; contradictions raise ValueError."""
        if num_workers < 0:
            raise ValueError(
                "num_workers option should be non-negative; use num_workers=0 to disable "
                "multiprocessing."
            )
        if timeout < 0:
            raise ValueError("timeout option should be non-negative")
        if num_workers == 0 and prefetch_factor is not None:
            raise ValueError(
                "prefetch_factor option could only be specified in multiprocessing.let "
                "num_workers > 0 to enable multiprocessing, otherwise set prefetch_factor to None."
            )
        if prefetch_factor is not None and prefetch_factor < 0:
            raise ValueError("prefetch_factor option should be non-negative")
        if persistent_workers and num_workers == 0:
            raise ValueError("persistent_workers option needs num_workers > 0")
        if multiprocessing_context is not None and num_workers == 0:
            raise ValueError(
                "multiprocessing_context can only be used with multi-process loading "
                f"(num_workers > 0), but got num_workers={num_workers}"
            )
        self._iterable = isinstance(dataset, IterableDataset)
        if self._iterable:
            for name, value in (
                ("shuffle", shuffle or None),
                ("sampler", sampler),
                ("batch_sampler", batch_sampler),
            ):
                if value is not None:
                    raise ValueError(
                        f"DataLoader with IterableDataset: expected unspecified {name} option, "
                        f"but got {name}={value}"
                    )
        if sampler is not None and shuffle:
            raise ValueError("sampler option is mutually exclusive with shuffle")
        if batch_sampler is not None:
            if batch_size != 1 or shuffle or sampler is not None or drop_last:
                raise ValueError(
                    "batch_sampler option is mutually exclusive with batch_size, shuffle, "
                    "sampler, and drop_last"
                )
            batch_size = None
        elif batch_size is None and drop_last:
            raise ValueError(
                "batch_size=None option disables auto-batching and is mutually exclusive with "
                "drop_last"
            )
        if sampler is None:
            if self._iterable:
                sampler = _Forever()
            elif shuffle:
                sampler = RandomSampler(dataset, generator=generator)
            else:
                sampler = SequentialSampler(dataset)
        if batch_size is not None:
            batch_sampler = BatchSampler(sampler, batch_size, drop_last)
        if collate_fn is None:
            collate_fn = default_convert if batch_sampler is None else default_collate
        self.dataset = dataset
        self.batch_size = batch_size
        self.sampler = sampler
        self.batch_sampler = batch_sampler
        self.num_workers = num_workers
        self.collate_fn = collate_fn
        self.pin_memory = pin_memory
        self.pin_memory_device = pin_memory_device
        self.drop_last = drop_last
        self.timeout = timeout
        self.worker_init_fn = worker_init_fn
        self.multiprocessing_context = multiprocessing_context
        self.generator = generator
        self.prefetch_factor = 2 if num_workers and prefetch_factor is None else prefetch_factor
        self.persistent_workers = persistent_workers
        self.in_order = in_order
        self._workers: Workers | None = None
        self._frozen = True

    def __setattr__(self, name: str, value: Any) -> None:
        """Set an attribute, unless the loader was made from its value."""
        fixed = (
            "batch_size", "batch_sampler", "sampler", "drop_last", "dataset", "persistent_workers",
        )  # fmt: skip
        if self._frozen and name in fixed:
            raise ValueError(
                f"{name} attribute should not be set after {type(self).__name__} is initialized"
            )
        super().__setattr__(name, value)

    @property
    def _index_sampler(self) -> Any:
        """Return what yields the indices of a batch, or of one example without batches."""
        return self.sampler if self.batch_sampler is None else self.batch_sampler

    def __len__(self) -> int:
        """Return the number of batches; TypeError if the dataset does not know its length."""
        if not self._iterable:
            return len(self._index_sampler)
        length = len(self.dataset)
        if self.batch_size is None:
            return length
        whole, rest = divmod(length, self.batch_size)
        return whole + (1 if rest and not self.drop_last else 0)

    def _reader(self) -> _Reader:
        """Return the function of indices that reads one batch."""
        return _Reader(
            self.dataset, self.collate_fn, self.batch_sampler is not None, self._iterable,
            self.drop_last,
        )  # fmt: skip

    def __iter__(self) -> Iterator[Any]:
        """Iterate over the batches of one epoch."""
        return self._get_iterator()

    def _get_iterator(self) -> Iterator[Any]:
        # Of this name in PyTorch, where loaders of others put theirs around it.
        if self.num_workers == 0:
            return self._read_here()
        workers = self._workers
        if workers is None:
            workers = self._make_workers()
            if self.persistent_workers:
                self._workers = workers
        return workers.epoch(iter(self._index_sampler), close=not self.persistent_workers)

    def _make_workers(self) -> Workers:
        """Start the workers: threads, or processes where a way to start them was given."""
        if self.multiprocessing_context is None:
            return Workers(self)
        from webtorch.data.processes import Processes

        return Processes(self)

    def _read_here(self) -> Iterator[Any]:
        """Yield the batches, each read when it is asked for."""
        reader = self._reader()
        reader.start()
        for indices in self._index_sampler:
            try:
                batch = reader(indices)
            except StopIteration:
                return
            yield batch


class _Reader:
    """Reads and collates the examples of a batch."""

    def __init__(
        self,
        dataset: Any,
        collate: Callable[..., Any],
        batched: bool,
        iterable: bool,
        drop_last: bool,
    ) -> None:
        self.dataset = dataset
        self.collate = collate
        self.batched = batched
        self.iterable = iterable
        self.drop_last = drop_last
        self.iterator: Iterator[Any] | None = None
        # Reading rows of tensors one by one, to stack them again, costs one operation a row.
        self.at_once = batch_reader(dataset) if batched and collate is default_collate else None

    def start(self) -> None:
        """Begin an epoch."""
        if self.iterable:
            self.iterator = iter(self.dataset)

    def __call__(self, indices: Any) -> Any:
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

    def _next(self, indices: Any) -> Any:
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


def work(
    reader: _Reader,
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
        out: Any = failure
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

    def __init__(self, loader: DataLoader[Any]) -> None:
        """Start the workers."""
        self.options = (float(loader.timeout), loader.prefetch_factor or 0, loader.in_order)
        self.count = loader.num_workers
        self.number_of_epoch = 0
        device = "cpu" if loader.generator is None else loader.generator.device
        seed = int(
            webtorch.randint(0, 2**31 - 1, (), generator=loader.generator, device=device).item()
        )
        self.start(loader, seed)

    def start(self, loader: DataLoader[Any], seed: int) -> None:
        """Start the threads."""
        self.results: Any = queue.SimpleQueue()
        self.tasks: list[Any] = [queue.SimpleQueue() for _ in range(self.count)]
        for worker in range(self.count):
            reader = loader._reader()
            if loader._iterable:
                # worker_init_fn may give each worker its part by changing its own dataset.
                reader.dataset = copy.copy(reader.dataset)
            info = WorkerInfo(worker, self.count, seed + worker, reader.dataset)
            threading.Thread(
                target=work,
                args=(reader, info, loader.worker_init_fn, self.tasks[worker], self.results),
                name=f"webtorch-data-{worker}",
                daemon=True,
            ).start()
        self._finalizer: Any = weakref.finalize(self, _stop, self.tasks)

    def close(self) -> None:
        """End the threads."""
        self._finalizer()

    def epoch(self, batches: Iterator[Any], close: bool) -> Iterator[Any]:
        """Yield the batches whose indices `batches` gives; at the end `close` ends the threads."""
        try:
            yield from self._epoch(batches)
        finally:
            if close:
                self.close()

    def _epoch(self, batches: Iterator[Any]) -> Iterator[Any]:
        """Hand out indices in turn, keep the results that are early, yield them in order."""
        timeout, ahead, in_order = self.options
        self.number_of_epoch += 1
        epoch = self.number_of_epoch
        active = set(range(self.count))
        early: dict[int, Any] = {}
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
            if isinstance(out, Failure):
                raise out.raised() from out.error
            yield out
            del out

    def _next_result(self, epoch: int, timeout: float) -> tuple[int, int, Any]:
        """Return (number, worker, batch) of the next result; older epochs' ones are dropped."""
        while True:
            try:
                found, number, who, out = self.receive(timeout)
            except queue.Empty:
                raise RuntimeError(f"DataLoader timed out after {timeout:g} seconds") from None
            if found == epoch:
                return number, who, out

    def receive(self, timeout: float) -> tuple[int, int, int, Any]:
        """Return the next result; raise queue.Empty after `timeout` seconds, if that is not 0."""
        return self.results.get(timeout=timeout or None)


def _stop(tasks: list[queue.SimpleQueue[Any]]) -> None:
    """Ask every worker to end."""
    for one in tasks:
        one.put(None)
