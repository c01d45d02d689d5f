"""torch.cuda: classes for annotations and checks with isinstance. Making one raises."""

from __future__ import annotations

from typing import Any

from webtorch import cuda


class _Absent:
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        cuda.init()


class CUDAGraph(_Absent):
    """A captured graph of CUDA."""


class Stream(_Absent):
    """A queue of CUDA."""


class Event(_Absent):
    """A mark in a queue of CUDA."""


class StreamContext(_Absent):
    """A block in which a queue of CUDA is used."""


class graph(_Absent):
    """A block that is captured as a graph of CUDA."""
