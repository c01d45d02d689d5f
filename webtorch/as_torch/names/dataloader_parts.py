"""Classes of torch.utils.data.dataloader's iterators, and names beside them."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from webtorch.data.loader import _BaseDataLoaderIter as _BaseDataLoaderIter
from webtorch.data.loader import _MultiProcessingDataLoaderIter as _MultiProcessingDataLoaderIter
from webtorch.data.loader import _SingleProcessDataLoaderIter as _SingleProcessDataLoaderIter

# What parameters of DataLoader are annotated with.
_collate_fn_t = Callable[[list[Any]], Any]
_worker_init_fn_t = Callable[[int], None]
# Types of NumPy's arrays that are left as they are: strings and objects.
np_str_obj_array_pattern = re.compile(r"[SaUO]")


def pin_memory(data: Any, device: object = None) -> Any:
    """Return what was given, with what pins itself in its place: host memory needs no pinning here."""
    return data.pin_memory() if hasattr(data, "pin_memory") else data
