"""What is used of the bindings to WebGPU, as types. wgpu-py, wgpudawn and the browser's
binding have it all. The standard library only.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Protocol, TypeAlias, TypedDict

# A cffi pointer, or the browser's number of an object. What it points to is known to the library only.
Pointer: TypeAlias = object


class Made(Protocol):
    """An object of the device."""

    @property
    def _internal(self) -> Pointer:
        """What the raw calls take."""


class Promise(Protocol):
    """An object that is not there yet."""

    @property
    def sync_wait(self) -> Callable[[], Made]:
        """Wait for it."""


class Compute(TypedDict):
    """The shader of a pipeline."""

    module: Made
    entry_point: str


class Buffer(TypedDict):
    """How a kernel uses a buffer."""

    type: str


class Entry(TypedDict):
    """One binding of a group."""

    binding: int
    visibility: int
    buffer: Buffer


class Device(Protocol):
    """What makes shaders and pipelines."""

    @property
    def features(self) -> Collection[str]:
        """What it can do beyond WebGPU's least."""

    @property
    def limits(self) -> Mapping[str, int]:
        """Its limits, by their names with hyphens."""

    def create_shader_module(self, *, code: str) -> Made:
        """Compile a shader."""

    def create_bind_group_layout(self, *, entries: Sequence[Entry]) -> Made:
        """Describe the buffers of a kernel, in order."""

    def create_pipeline_layout(self, *, bind_group_layouts: Sequence[Made]) -> Made:
        """Describe a kernel's groups of buffers."""

    def create_compute_pipeline(self, *, layout: Made, compute: Compute) -> Made:
        """Make a kernel."""

    def destroy(self) -> None:
        """Close the device."""


class LibraryDevice(Device, Protocol):
    """A device of a binding to the C library."""

    @property
    def _internal(self) -> Pointer:
        """What the raw calls take."""

    @property
    def queue(self) -> Made:
        """Where work is submitted."""


class Adapter(Protocol):
    """A way to a device: hardware and driver."""

    @property
    def info(self) -> Mapping[str, str]:
        """Names of hardware and driver."""

    @property
    def features(self) -> Collection[str]:
        """What its devices can do beyond WebGPU's least."""

    @property
    def limits(self) -> Mapping[str, int]:
        """The limits of its devices, by their names with hyphens."""

    def request_device_sync(
        self, *, required_features: Sequence[str], required_limits: Mapping[str, int]
    ) -> Device:
        """Open a device. Raises RuntimeError where the driver gives none."""
