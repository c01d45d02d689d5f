"""Classes of torch.utils.data.dataloader's iterators."""

from __future__ import annotations

from webtorch.data.loader import _BaseDataLoaderIter as _BaseDataLoaderIter
from webtorch.data.loader import _MultiProcessingDataLoaderIter as _MultiProcessingDataLoaderIter
from webtorch.data.loader import _SingleProcessDataLoaderIter as _SingleProcessDataLoaderIter
