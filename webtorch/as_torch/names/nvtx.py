"""torch.cuda.nvtx: marks for CUDA's tools. There is no CUDA, and so each raises, as in such a PyTorch."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import NoReturn


def _fail(*args: object, **kwargs: object) -> NoReturn:
    raise RuntimeError("NVTX functions not installed. Are you sure you have a CUDA build?")


range_push = range_pop = range_start = range_end = mark = _fail


@contextlib.contextmanager
def range(msg: str, *args: object, **kwargs: object) -> Iterator[None]:
    """A block that is marked: entering one raises."""
    _fail(msg, *args, **kwargs)
    yield
