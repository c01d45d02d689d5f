"""torch.cuda: classes for annotations and checks with isinstance. Making one raises."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any, NoReturn

from webtorch import cuda
from webtorch.functions import legacy, storages


class _Absent:
    def __init__(self, *args: object, **kwargs: object) -> None:
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


class _Named(type):
    """A class of CUDA's tensors or storages, of which nothing is an instance."""

    def __call__(cls, *args: object, **kwargs: object) -> Any:
        raise TypeError(f"type {cls.__name__} not available. Torch not compiled with CUDA enabled.")

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__") or cls.__name__.endswith("Tensor"):
            raise AttributeError(f"type object '{cls.__name__}' has no attribute '{name}'")
        return _refuse


def _refuse(*args: object, **kwargs: object) -> NoReturn:
    raise RuntimeError("Not available for CUDA storage")


def __getattr__(name: str) -> Any:
    # The old classes, by the names that they have in torch.
    if name in legacy.CONSTRUCTORS or name in storages._dtype_to_storage_type_map().values():
        return _Named(f"torch.cuda.{name}", (), {})
    raise AttributeError(name)


@contextlib.contextmanager
def device_of(obj: object) -> Iterator[None]:
    """A block on the device of a tensor: none is on CUDA, and so nothing is changed."""
    yield


def set_rng_state(new_state: object, device: object = "cuda") -> None:
    """Do nothing: PyTorch, too, keeps the state for when CUDA is started."""


def get_rng_state(device: object = "cuda") -> NoReturn:
    """Raise AssertionError: there is no CUDA."""
    cuda._no_cuda("get_rng_state")


def current_blas_handle() -> NoReturn:
    """Raise AssertionError: there is no CUDA."""
    cuda._no_cuda("current_blas_handle")


def caching_allocator_alloc(size: int, device: object = None, stream: object = None) -> NoReturn:
    """Raise AssertionError: there is no CUDA."""
    cuda._no_cuda("caching_allocator_alloc")


def caching_allocator_delete(mem_ptr: int) -> NoReturn:
    """Raise AssertionError: there is no CUDA."""
    cuda._no_cuda("caching_allocator_delete")
