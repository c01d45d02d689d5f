"""Classes of torch.utils.data.dataloader's iterators, to check for: those here are plain generators."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any


class _BaseDataLoaderIter(Iterator[Any]):
    """What a loader's iterator is a subclass of in PyTorch."""


class _SingleProcessDataLoaderIter(_BaseDataLoaderIter):
    """The iterator without workers in PyTorch."""


class _MultiProcessingDataLoaderIter(_BaseDataLoaderIter):
    """The iterator with workers in PyTorch."""
