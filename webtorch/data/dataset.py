"""Datasets: what gives examples by number, or one after the other. May import floors 0 to 4."""

from __future__ import annotations

import bisect
import itertools
import math
import warnings
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Generic

from webtorch.data.kinds import Example
from webtorch.data.sampler import permutation
from webtorch.functions import public as webtorch
from webtorch.functions.random import Generator
from webtorch.ir.lines import user_depth
from webtorch.tensors.tensor import Tensor

__all__ = [
    "ChainDataset",
    "ConcatDataset",
    "Dataset",
    "IterableDataset",
    "StackDataset",
    "Subset",
    "TensorDataset",
    "random_split",
]


class Dataset(Generic[Example]):
    """Examples by number: subclasses define `__getitem__` and `__len__`.

    One may also define `__getitems__(indices)`, which returns a list of examples at once.
    """

    def __getitem__(self, index: Any) -> Example:
        """Return one example."""
        raise NotImplementedError("Subclasses of Dataset should implement __getitem__.")

    def __add__(self, other: Dataset[object]) -> ConcatDataset:
        """Return a dataset of the examples of both."""
        return ConcatDataset([self, other])


class IterableDataset(Dataset[Example], Iterable[Example]):
    """Examples one after the other: subclasses define `__iter__`.

    With several workers each one iterates; `get_worker_info()` tells which one it is.
    """

    def __add__(self, other: Dataset[object]) -> ChainDataset:  # type: ignore[override]
        """Return a dataset of the examples of both."""
        return ChainDataset([self, other])


class TensorDataset(Dataset[tuple[Tensor, ...]]):
    """The rows of tensors that have the same first size."""

    def __init__(self, *tensors: Tensor) -> None:
        """Hold the tensors."""
        if any(tensors[0].shape[0] != tensor.shape[0] for tensor in tensors):
            raise AssertionError("Size mismatch between tensors")
        self.tensors = tensors

    def __getitem__(self, index: Any) -> tuple[Tensor, ...]:
        """Return the row of each tensor."""
        return tuple(tensor[index] for tensor in self.tensors)

    def __len__(self) -> int:
        """Return the number of rows."""
        return self.tensors[0].shape[0]

    def _batch(self, indices: Sequence[int]) -> list[Tensor]:
        """Return what `default_collate` makes of the rows: one gather for each tensor."""
        size = len(self)
        for index in indices:
            if not -size <= index < size:
                raise IndexError(f"index {index} is out of bounds for dimension 0 with size {size}")
        places = [index % size for index in indices]
        made: dict[object, Tensor] = {}
        for tensor in self.tensors:
            device = tensor.device
            if device not in made:
                made[device] = webtorch.tensor(places, dtype=webtorch.int64, device=device)
        return [tensor.index_select(0, made[tensor.device]) for tensor in self.tensors]


class StackDataset(Dataset[Any]):
    """Examples put together from several datasets: tuples, or dicts of the names given."""

    def __init__(self, *args: Any, **kwargs: object) -> None:
        """Hold the datasets."""
        if args and kwargs:
            raise ValueError(
                "Supported either ``tuple``- (via ``args``) or``dict``- (via ``kwargs``) like "
                "input/output, but both types are given."
            )
        if not args and not kwargs:
            raise ValueError("At least one dataset should be passed")
        self.datasets: Any = args or kwargs
        members = list(args or kwargs.values())
        self._length = len(members[0])
        if any(self._length != len(member) for member in members):
            raise ValueError("Size mismatch between datasets")

    def __getitem__(self, index: Any) -> Any:
        """Return the examples of all datasets at one place."""
        if isinstance(self.datasets, dict):
            return {key: member[index] for key, member in self.datasets.items()}
        return tuple(member[index] for member in self.datasets)

    def __getitems__(self, indices: list[Any]) -> list[Any]:
        """Return the examples of all datasets at several places; datasets with `__getitems__` are asked once."""
        named = isinstance(self.datasets, dict)
        columns = []
        for member in self.datasets.values() if named else self.datasets:
            if callable(ask := getattr(member, "__getitems__", None)):
                column = ask(indices)
                if len(column) != len(indices):
                    raise ValueError(
                        f"Nested dataset's output size mismatch. Expected {len(indices)}, got {len(column)}"
                    )
            else:
                column = [member[index] for index in indices]
            columns.append(column)
        rows = zip(*columns, strict=True)
        return [dict(zip(self.datasets, row, strict=True)) if named else row for row in rows]

    def __len__(self) -> int:
        """Return the number of examples."""
        return self._length


class ConcatDataset(Dataset[Any]):
    """The examples of several datasets, one dataset after the other."""

    def __init__(self, datasets: Iterable[Any]) -> None:
        """Hold the datasets."""
        self.datasets = list(datasets)
        if not self.datasets:
            raise AssertionError("datasets should not be an empty iterable")
        if any(isinstance(member, IterableDataset) for member in self.datasets):
            raise AssertionError("ConcatDataset does not support IterableDataset")
        self.cumulative_sizes = list(itertools.accumulate(len(one) for one in self.datasets))

    def __len__(self) -> int:
        """Return the number of examples."""
        return self.cumulative_sizes[-1]

    def __getitem__(self, idx: int) -> Any:
        """Return one example."""
        if idx < 0:
            if -idx > len(self):
                raise ValueError("absolute value of index should not exceed dataset length")
            idx += len(self)
        member = bisect.bisect_right(self.cumulative_sizes, idx)
        before = self.cumulative_sizes[member - 1] if member else 0
        return self.datasets[member][idx - before]


class ChainDataset(IterableDataset[Any]):
    """The examples of several iterable datasets, one dataset after the other."""

    def __init__(self, datasets: Iterable[object]) -> None:
        """Hold the datasets."""
        self.datasets = datasets

    def _members(self) -> Iterator[Any]:
        """Yield the datasets; raise AssertionError at one that cannot be iterated."""
        for member in self.datasets:
            if not isinstance(member, IterableDataset):
                raise AssertionError("ChainDataset only supports IterableDataset")
            yield member

    def __iter__(self) -> Iterator[Any]:
        """Iterate over all examples."""
        for member in self._members():
            yield from member

    def __len__(self) -> int:
        """Return the number of examples, if all datasets know theirs."""
        return sum(len(member) for member in self._members())


class Subset(Dataset[Any]):
    """The examples of a dataset at the given indices."""

    def __init__(self, dataset: Any, indices: Sequence[int]) -> None:
        """Hold the dataset and the indices."""
        self.dataset = dataset
        self.indices = indices

    def __getitem__(self, idx: Any) -> Any:
        """Return one example, or what the dataset gives for a list."""
        if isinstance(idx, list):
            return self.dataset[[self.indices[i] for i in idx]]
        return self.dataset[self.indices[idx]]

    def __getitems__(self, indices: list[int]) -> list[object]:
        """Return the examples at several places."""
        places = [self.indices[i] for i in indices]
        many = getattr(self.dataset, "__getitems__", None)
        return many(places) if callable(many) else [self.dataset[i] for i in places]

    def __len__(self) -> int:
        """Return the number of indices."""
        return len(self.indices)


def batch_reader(dataset: object) -> Any:
    """Return a function of indices that reads and collates a batch at once, or None.

    Only for the classes above as they are: a subclass may have changed what an example is.
    """
    if type(dataset) is TensorDataset:
        return dataset._batch
    if type(dataset) is Subset:
        inner = batch_reader(dataset.dataset)
        if inner is not None:
            return lambda indices: inner([dataset.indices[i] for i in indices])
    return None


def random_split(
    dataset: Any, lengths: Sequence[int | float], generator: Generator | None = None
) -> list[Subset]:
    """Return random subsets of the given lengths, or of the given fractions, which sum to 1.

    What is left over by the fractions is dealt out one by one, first to the first.
    """
    sizes = list(lengths)
    if math.isclose(sum(sizes), 1) and sum(sizes) <= 1:
        for position, fraction in enumerate(sizes):
            if not 0 <= fraction <= 1:
                raise ValueError(f"Fraction at index {position} is not between 0 and 1")
        sizes = [math.floor(len(dataset) * fraction) for fraction in lengths]
        for extra in range(len(dataset) - int(sum(sizes))):
            sizes[extra % len(sizes)] += 1
        for position, size in enumerate(sizes):
            if size == 0:
                warnings.warn(
                    f"Length of split at index {position} is 0. This might result in an empty "
                    "dataset.",
                    stacklevel=user_depth(),
                )
    if sum(sizes) != len(dataset):
        raise ValueError("Sum of input lengths does not equal the length of the input dataset!")
    order = permutation(int(sum(sizes)), generator)
    ends = itertools.accumulate(int(size) for size in sizes)
    return [
        Subset(dataset, order[end - int(size) : end]) for end, size in zip(ends, sizes, strict=True)
    ]
