"""DataLoader: batches of a dataset, read here or by workers ahead of time. May import floors 0 to 4.

Workers are threads: a browser page has no processes, tensors need not be copied between them, and
reading files and NumPy release the interpreter. Where Python itself is the work,
`multiprocessing_context` makes them processes (`processes`).
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, Generic

from webtorch.data.collate import default_collate, default_convert
from webtorch.data.dataset import IterableDataset
from webtorch.data.kinds import Batch
from webtorch.data.sampler import BatchSampler, RandomSampler, Sampler, SequentialSampler
from webtorch.data.workers import Failure, Reader, WorkerInfo, Workers, get_worker_info
from webtorch.functions.random import Generator
from webtorch.ir.lines import user_depth

if TYPE_CHECKING:
    from multiprocessing.context import BaseContext

__all__ = ["DataLoader", "WorkerInfo", "get_worker_info"]


class _DatasetKind:
    """How a dataset is read: by indices, or as it comes."""

    Map = 0
    Iterable = 1


class _InfiniteConstantSampler(Sampler[None]):
    """The sampler of an iterable dataset, which has no indices."""

    def __iter__(self) -> Iterator[None]:
        while True:
            yield None


def _check_workers(
    num_workers: int,
    timeout: float,
    prefetch_factor: int | None,
    persistent_workers: bool,
    multiprocessing_context: str | BaseContext | None,
) -> None:
    """Raise ValueError where the options of workers contradict each other."""
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
    if isinstance(multiprocessing_context, str):
        # A page has no processes.
        import multiprocessing

        methods = multiprocessing.get_all_start_methods()
        if multiprocessing_context not in methods:
            raise ValueError(
                f"multiprocessing_context option should specify a valid start method in {methods!r}, but got "
                f"multiprocessing_context={multiprocessing_context!r}"
            )
    elif multiprocessing_context is not None and not hasattr(multiprocessing_context, "Process"):
        raise TypeError(
            "multiprocessing_context option should be a valid context object or a string specifying the start "
            f"method, but got multiprocessing_context={multiprocessing_context}"
        )


def _warn_of_many(num_workers: int) -> None:
    """Warn where more workers are wanted than this process has processors."""
    if hasattr(os, "sched_getaffinity"):
        most = len(os.sched_getaffinity(0))
    else:
        most = os.cpu_count() or num_workers
    if num_workers > most:
        warnings.warn(
            f"This DataLoader will create {num_workers} workers in total. Our suggested max number of worker in "
            f"current system is {most}, which is smaller than what this DataLoader is going to create. Please be aware "
            "that excessive worker creation might get DataLoader running slow or even freeze, lower the worker number "
            "to avoid potential slowness/freeze if necessary.",
            stacklevel=user_depth(),
        )


def _check_iterable(shuffle: bool | None, sampler: object, batch_sampler: object) -> None:
    """Raise ValueError where an iterable dataset is given indices."""
    given = {"shuffle": shuffle or None, "sampler": sampler, "batch_sampler": batch_sampler}
    for name, value in given.items():
        if value is not None:
            raise ValueError(
                f"DataLoader with IterableDataset: expected unspecified {name} option, "
                f"but got {name}={value}"
            )


class _BaseDataLoaderIter(Iterator[Any]):
    """What iterates over the batches of an epoch. Of this name in PyTorch, as those below."""


class _SingleProcessDataLoaderIter(_BaseDataLoaderIter):
    """Reads each batch when it is asked for. One that cannot be read raises, and the next call reads the next."""

    def __init__(self, loader: DataLoader[object]) -> None:
        self._reader = loader._reader()
        self._reader.start()
        self._indices = iter(loader._index_sampler)

    def __next__(self) -> Any:
        return self._reader(next(self._indices))


class _MultiProcessingDataLoaderIter(_BaseDataLoaderIter):
    """Gives the batches that workers have read."""

    def __init__(self, batches: Iterator[object], workers: Workers) -> None:
        self._batches, self._threads = batches, workers

    def __next__(self) -> Any:
        batch = next(self._batches)
        if isinstance(batch, Failure):
            # The error's traceback must not keep the workers.
            del self
            raise batch.raised() from batch.error
        return batch

    def close(self) -> None:
        """End the epoch before its end."""
        close: Callable[[], None] = self._batches.close  # type: ignore[attr-defined]
        close()

    @property
    def _workers(self) -> Any:
        return self._threads.running

    def __len__(self) -> int:
        return self._threads.count


class DataLoader(Generic[Batch]):
    """Iterates over batches of a dataset.

    `num_workers` workers read ahead, `prefetch_factor` batches each. They are threads, or processes
    where `multiprocessing_context` says how to start them: "fork", "spawn", "forkserver" or a context
    of multiprocessing. Pinned memory is accepted and does nothing: uploads are made from any memory.
    """

    _frozen = False
    # The number of batches that an iterable dataset was said to have, once somebody has asked.
    _expected: int | None = None

    def __init__(
        self,
        dataset: Any,
        batch_size: int | None = 1,
        shuffle: bool | None = None,
        sampler: Any = None,
        batch_sampler: Iterable[object] | None = None,
        num_workers: int = 0,
        collate_fn: Callable[[Any], object] | None = None,
        pin_memory: bool = False,
        drop_last: bool = False,
        timeout: float = 0,
        worker_init_fn: Callable[[int], None] | None = None,
        multiprocessing_context: str | BaseContext | None = None,
        generator: Generator | None = None,
        *,
        prefetch_factor: int | None = None,
        persistent_workers: bool = False,
        pin_memory_device: str = "",
        in_order: bool = True,
    ) -> None:
        """Take the dataset and how to read it; contradictions raise ValueError."""
        _check_workers(
            num_workers, timeout, prefetch_factor, persistent_workers, multiprocessing_context
        )
        self._iterable = isinstance(dataset, IterableDataset)
        if self._iterable:
            _check_iterable(shuffle, sampler, batch_sampler)
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
                sampler = _InfiniteConstantSampler()
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
        self._multiprocessing_context = multiprocessing_context
        self.generator = generator
        self.prefetch_factor = 2 if num_workers and prefetch_factor is None else prefetch_factor
        self.persistent_workers = persistent_workers
        self.in_order = in_order
        self._workers: Workers | None = None
        if num_workers:
            _warn_of_many(num_workers)
        self._frozen = True

    def __setattr__(self, name: str, value: object) -> None:
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
    def multiprocessing_context(self) -> str | BaseContext | None:
        """How workers that are processes are started; None of those that are threads."""
        return self._multiprocessing_context

    @property
    def _dataset_kind(self) -> int:
        """How the dataset is read; of this name in PyTorch."""
        return _DatasetKind.Iterable if self._iterable else _DatasetKind.Map

    @property
    def _auto_collation(self) -> bool:
        """Whether examples are put together into batches here; of this name in PyTorch."""
        return self.batch_sampler is not None

    @property
    def _index_sampler(self) -> Any:
        """Return what yields the indices of a batch, or of one example without batches."""
        return self.sampler if self.batch_sampler is None else self.batch_sampler

    def __len__(self) -> int:
        """Return the number of batches; TypeError if the dataset does not know its length."""
        if not self._iterable:
            return len(self._index_sampler)
        length: int = len(self.dataset)
        if self.batch_size is not None:
            whole, rest = divmod(length, self.batch_size)
            length = whole + (1 if rest and not self.drop_last else 0)
        self._expected = length
        return length

    def _reader(self, dataset: object = None) -> Reader:
        """Return the function of indices that reads one batch, of a copy of the dataset if one is given."""
        return Reader(
            self.dataset if dataset is None else dataset, self.collate_fn, self._auto_collation, self._iterable,
            self.drop_last,
        )  # fmt: skip

    def __iter__(self) -> Iterator[Any]:
        """Iterate over the batches of one epoch."""
        found = self._get_iterator()
        return found if self._expected is None else self._counted(found, self._expected)

    def _counted(self, batches: Iterator[object], expected: int) -> Iterator[object]:
        """Give the batches, and warn of each one beyond the length that was told."""
        for count, batch in enumerate(batches, 1):
            if count > expected:
                text = (
                    f"Length of IterableDataset {self.dataset} was reported to be {expected}(when accessing "
                    f"len(dataloader)), but {count} samples have been fetched. "
                )
                if self.num_workers:
                    text += (
                        "For multiprocessing data-loading, this could be caused by not properly configuring the "
                        "IterableDataset replica at each worker. Please see "
                        "https://pytorch.org/docs/stable/data.html#torch.utils.data.IterableDataset for examples."
                    )
                warnings.warn(text, stacklevel=user_depth())
            yield batch

    def _get_iterator(self) -> Iterator[object]:
        # Of this name in PyTorch, where loaders of others put theirs around it.
        if self.num_workers == 0:
            return _SingleProcessDataLoaderIter(self)
        workers = self._workers
        if workers is None:
            workers = self._make_workers()
            if self.persistent_workers:
                self._workers = workers
        batches = workers.epoch(iter(self._index_sampler), close=not self.persistent_workers)
        return _MultiProcessingDataLoaderIter(batches, workers)

    def _make_workers(self) -> Workers:
        """Start the workers: threads, or processes where a way to start them was given."""
        if self.multiprocessing_context is None:
            return Workers(self)
        from webtorch.data.processes import Processes

        return Processes(self)
