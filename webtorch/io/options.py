"""What `torch.serialization` lets a program choose for all files: checksums, the order of bytes, mapping."""

from __future__ import annotations

import mmap as _mmap
import threading
from collections.abc import Callable
from enum import Enum

MAP_PRIVATE: int = getattr(_mmap, "MAP_PRIVATE", 2)
MAP_SHARED: int = getattr(_mmap, "MAP_SHARED", 1)


class LoadEndianness(Enum):
    """The order of bytes of files that do not say it."""

    NATIVE = 1
    LITTLE = 2
    BIG = 3


class _Chosen:
    endianness: LoadEndianness | None = None
    checksums = True
    flags = MAP_PRIVATE


class _OfThread(threading.local):
    skip_data = False
    materialize_fake_tensors = False


chosen, of_thread = _Chosen(), _OfThread()
# Of programs, in order: (priority, storage -> its place or None, (storage, place) -> the storage there or None).
packages: list[tuple[int, Callable[..., str | None], Callable[..., object]]] = []


def register_package(
    priority: int, tagger: Callable[..., str | None], deserializer: Callable[..., object]
) -> None:
    """Say how `save` names the place of a storage, and how `load` brings one to a place that a file names.

    The functions of the lowest priority are asked first, and before webtorch's own; one that gives None leaves it to
    the next.
    """
    packages.append((priority, tagger, deserializer))
    packages.sort(key=lambda one: one[0])


def get_default_load_endianness() -> LoadEndianness | None:
    """Return the order of bytes of files that do not say it; None for this machine's."""
    return chosen.endianness


def set_default_load_endianness(endianness: LoadEndianness | None) -> None:
    """Set the order of bytes of files that do not say it."""
    if not isinstance(endianness, LoadEndianness) and endianness is not None:
        raise TypeError("Invalid argument type in function set_default_load_endianness")
    chosen.endianness = endianness


def get_crc32_options() -> bool:
    """Return whether `save` writes checksums."""
    return chosen.checksums


def set_crc32_options(compute_crc32: bool) -> None:
    """Let `save` write checksums, or zeros in their place. `load` warns where numbers differ from theirs."""
    chosen.checksums = compute_crc32


def get_default_mmap_options() -> int:
    """Return how `load(mmap=True)` maps a file: mmap.MAP_PRIVATE or mmap.MAP_SHARED."""
    return chosen.flags


class set_default_mmap_options:
    """Set how `load(mmap=True)` maps a file, also within a block: with mmap.MAP_SHARED writes reach the file."""

    def __init__(self, flags: int) -> None:
        if flags not in (MAP_PRIVATE, MAP_SHARED):
            raise ValueError(
                "Invalid argument in function set_default_mmap_options, expected mmap.MAP_PRIVATE or "
                f"mmap.MAP_SHARED, but got {flags}"
            )
        self.prev = chosen.flags
        chosen.flags = flags

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        chosen.flags = self.prev


class skip_data:
    """Within this block `save` leaves room for the bytes of storages and does not write them."""

    def __init__(self, materialize_fake_tensors: bool = False) -> None:
        self.materialize_fake_tensors = materialize_fake_tensors
        self.before = (False, False)

    def __enter__(self) -> None:
        self.before = of_thread.skip_data, of_thread.materialize_fake_tensors
        of_thread.skip_data = True
        of_thread.materialize_fake_tensors = self.materialize_fake_tensors

    def __exit__(self, *_: object) -> None:
        of_thread.skip_data, of_thread.materialize_fake_tensors = self.before
