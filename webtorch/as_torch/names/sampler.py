"""torch.utils.data.distributed: the part of a data set that one of several processes reads."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sized

import webtorch
from webtorch.data.sampler import Sampler


class DistributedSampler(Sampler[int]):
    """Indices of every `num_replicas`-th item from `rank` on, after a shuffle by seed and epoch."""

    def __init__(
        self,
        dataset: Sized,
        num_replicas: int | None = None,
        rank: int | None = None,
        shuffle: bool = True,
        seed: int = 0,
        drop_last: bool = False,
    ) -> None:
        """Raise RuntimeError without `num_replicas` and `rank`: there is no process group to ask."""
        if num_replicas is None or rank is None:
            raise RuntimeError(
                "DistributedSampler: Requires distributed package to be available; webtorch drives one device from "
                "one process: give num_replicas and rank, or use RandomSampler"
            )
        if not 0 <= rank < num_replicas:
            raise ValueError(
                f"Invalid rank {rank}, rank should be in the interval [0, {num_replicas - 1}]"
            )
        self.dataset, self.num_replicas, self.rank = dataset, num_replicas, rank
        self.shuffle, self.seed, self.drop_last, self.epoch = shuffle, seed, drop_last, 0
        count = len(dataset)
        self.num_samples = (
            count // num_replicas if drop_last and count % num_replicas else math.ceil(count / num_replicas)
        )  # fmt: skip
        self.total_size = self.num_samples * num_replicas

    def __iter__(self) -> Iterator[int]:
        count = len(self.dataset)
        if self.shuffle:
            generator = webtorch.Generator().manual_seed(self.seed + self.epoch)
            indices = webtorch.randperm(count, generator=generator).tolist()
        else:
            indices = list(range(count))
        while len(indices) < self.total_size:
            indices += indices[: self.total_size - len(indices)]
        return iter(indices[self.rank : self.total_size : self.num_replicas])

    def __len__(self) -> int:
        return self.num_samples

    def set_epoch(self, epoch: int) -> None:
        """Choose the shuffle of an epoch."""
        self.epoch = epoch
