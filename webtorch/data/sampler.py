"""Samplers: the order in which examples are read. May import floors 0 to 4.

Random orders are drawn on the CPU, so that a seed gives the same one whatever the device is.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence, Sized
from typing import Generic

from webtorch.data.kinds import Index
from webtorch.distributed import world
from webtorch.functions import public as webtorch
from webtorch.functions.random import Generator
from webtorch.tensors.device import DeviceLike

__all__ = [
    "BatchSampler",
    "DistributedSampler",
    "RandomSampler",
    "Sampler",
    "SequentialSampler",
    "SubsetRandomSampler",
    "WeightedRandomSampler",
]


def _device(generator: Generator | None) -> DeviceLike:
    """Return the generator's device, the CPU without one."""
    return "cpu" if generator is None else generator.device


def permutation(n: int, generator: Generator | None = None) -> list[int]:
    """Return 0 .. n - 1 in random order."""
    return webtorch.randperm(n, generator=generator, device=_device(generator)).tolist()


class Sampler(Generic[Index]):
    """Base of the samplers: subclasses define `__iter__`, and `__len__` if they can."""

    def __iter__(self) -> Iterator[Index]:
        """Iterate over indices."""
        raise NotImplementedError


class SequentialSampler(Sampler[int]):
    """All indices in order."""

    def __init__(self, data_source: Sized) -> None:
        """Take the dataset, for its length."""
        self.data_source = data_source

    def __iter__(self) -> Iterator[int]:
        """Iterate over 0 .. n - 1."""
        return iter(range(len(self.data_source)))

    def __len__(self) -> int:
        """Return the number of indices."""
        return len(self.data_source)


class RandomSampler(Sampler[int]):
    """All indices in random order; or `num_samples` of them, drawn with or without replacement."""

    def __init__(
        self,
        data_source: Sized,
        replacement: bool = False,
        num_samples: int | None = None,
        generator: Generator | None = None,
    ) -> None:
        """Take the dataset, for its length."""
        self.data_source = data_source
        self.replacement = replacement
        self._num_samples = num_samples
        self.generator = generator
        if not isinstance(replacement, bool):
            raise TypeError(
                f"replacement should be a boolean value, but got replacement={replacement}"
            )
        wanted: object = self.num_samples
        if not isinstance(wanted, int) or wanted <= 0:
            raise ValueError(
                "num_samples should be a positive integer value, but got "
                f"num_samples={self.num_samples}"
            )

    @property
    def num_samples(self) -> int:
        """Return the number of indices; the dataset may have changed its length."""
        return len(self.data_source) if self._num_samples is None else self._num_samples

    def __iter__(self) -> Iterator[int]:
        """Iterate over random indices; one order after the other if more than all are wanted."""
        n, wanted = len(self.data_source), self.num_samples
        if self.replacement:
            yield from webtorch.randint(
                0, n, (wanted,), generator=self.generator, device=_device(self.generator)
            ).tolist()
            return
        while wanted > 0:
            order = permutation(n, self.generator)
            yield from order[:wanted]
            wanted -= n

    def __len__(self) -> int:
        """Return the number of indices."""
        return int(self.num_samples)


class SubsetRandomSampler(Sampler[int]):
    """The given indices in random order."""

    def __init__(self, indices: Sequence[int], generator: Generator | None = None) -> None:
        """Take the indices."""
        self.indices = indices
        self.generator = generator

    def __iter__(self) -> Iterator[int]:
        """Iterate over the indices in random order."""
        for place in permutation(len(self.indices), self.generator):
            yield self.indices[place]

    def __len__(self) -> int:
        """Return the number of indices."""
        return len(self.indices)


class WeightedRandomSampler(Sampler[int]):
    """`num_samples` indices, drawn in proportion to `weights`."""

    def __init__(
        self,
        weights: Sequence[float],
        num_samples: int | None,
        replacement: bool = True,
        generator: Generator | None = None,
    ) -> None:
        """Take one weight for each index; they need not sum to 1."""
        if not isinstance(num_samples, int) or isinstance(num_samples, bool) or num_samples <= 0:
            raise ValueError(
                f"num_samples should be a positive integer value, but got num_samples={num_samples}"
            )
        if not isinstance(replacement, bool):
            raise ValueError(
                f"replacement should be a boolean value, but got replacement={replacement}"
            )
        # float64, which is what PyTorch draws in; hence on the CPU.
        self.weights = webtorch.as_tensor(weights, device="cpu").to(webtorch.float64)
        if self.weights.dim() != 1:
            raise ValueError(
                "weights should be a 1d sequence but given weights have shape "
                f"{tuple(self.weights.shape)}"
            )
        self.num_samples = num_samples
        self.replacement = replacement
        self.generator = generator

    def __iter__(self) -> Iterator[int]:
        """Iterate over indices that are drawn when the first is asked for."""
        drawn = webtorch.multinomial(
            self.weights, self.num_samples, self.replacement, generator=self.generator
        )
        yield from drawn.tolist()

    def __len__(self) -> int:
        """Return the number of indices."""
        return int(self.num_samples)


class BatchSampler(Sampler[list[int]]):
    """The indices of another sampler in lists of `batch_size`; the last may be shorter."""

    def __init__(self, sampler: Iterable[int], batch_size: object, drop_last: object) -> None:
        """Take the sampler; `drop_last` leaves out a shorter last list."""
        if not isinstance(batch_size, int) or isinstance(batch_size, bool) or batch_size <= 0:
            raise ValueError(
                f"batch_size should be a positive integer value, but got batch_size={batch_size}"
            )
        if not isinstance(drop_last, bool):
            raise ValueError(f"drop_last should be a boolean value, but got drop_last={drop_last}")
        self.sampler = sampler
        self.batch_size = batch_size
        self.drop_last = drop_last

    def __iter__(self) -> Iterator[list[int]]:
        """Iterate over the lists."""
        indices = iter(self.sampler)
        while batch := list(itertools.islice(indices, self.batch_size)):
            if self.drop_last and len(batch) < self.batch_size:
                return
            yield batch

    def __len__(self) -> int:
        """Return the number of lists."""
        count = len(self.sampler)  # type: ignore[arg-type]
        return count // self.batch_size if self.drop_last else -(-count // self.batch_size)


class DistributedSampler(Sampler[int]):
    """The indices of one of several processes, each of which reads another part.

    Without drop_last the first indices are read twice, until all parts are as long. num_replicas and rank are
    those of the process group unless given.
    """

    def __init__(
        self,
        dataset: Sized,
        num_replicas: int | None = None,
        rank: int | None = None,
        shuffle: bool = True,
        seed: int = 0,
        drop_last: bool = False,
    ) -> None:
        """Hold the dataset and the place of this process."""
        if num_replicas is None or rank is None:
            if not world.is_available():
                raise RuntimeError("Requires distributed package to be available")
            num_replicas = world.get_world_size() if num_replicas is None else num_replicas
            rank = world.get_rank() if rank is None else rank
        if rank >= num_replicas or rank < 0:
            raise ValueError(
                f"Invalid rank {rank}, rank should be in the interval [0, {num_replicas - 1}]"
            )
        self.dataset = dataset
        self.num_replicas = num_replicas
        self.rank = rank
        self.epoch = 0
        self.drop_last = drop_last
        count = len(dataset)
        self.num_samples = count // num_replicas if drop_last else -(-count // num_replicas)
        self.total_size = self.num_samples * num_replicas
        self.shuffle = shuffle
        self.seed = seed

    def __iter__(self) -> Iterator[int]:
        """Iterate over this process's indices of the epoch."""
        count = len(self.dataset)
        order = list(range(count))
        if self.shuffle:
            generator = webtorch.Generator().manual_seed(self.seed + self.epoch)
            order = permutation(count, generator)
        repeated = itertools.islice(itertools.cycle(order), self.total_size)
        return iter(list(repeated)[self.rank :: self.num_replicas])

    def __len__(self) -> int:
        """Return the number of this process's indices."""
        return self.num_samples

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch, which with the seed gives the order: call it before each one, or all have the same."""
        self.epoch = epoch
