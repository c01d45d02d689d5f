"""What the backends on the processor share: limits, the report of bad indices, the counts of memory. Floors 0 and 3's
protocol.

A processor has done its work when `run` returns, so nothing waits and reads are copies.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from types import MappingProxyType
from typing import Any, Protocol

from webtorch.dispatch.call import settle_scripts
from webtorch.errors import DeviceCheckError, IndexOutOfRangeError
from webtorch.ir.dtype import DType
from webtorch.ir.limits import Limits
from webtorch.ir.program import Program
from webtorch.runtime.backend import Interpret, Singles

LIMITS = Limits(
    max_binding_bytes=(1 << 31) - 1,
    max_buffers_per_kernel=32,
    max_workgroup_invocations=1,
    max_workgroups_per_dim=(1 << 31) - 1,
    workgroup_memory_bytes=0,
    has_f16=False,
    is_gpu=False,
)


class Count(Protocol):
    """Bytes that live buffers hold, now and at most."""

    peak: int

    @property
    def live(self) -> int:
        """Bytes that live buffers hold now."""


def _nothing() -> None:
    pass


class _Reading:
    """What is read once it is awaited; who lets go of it need not."""

    def __init__(self, read: Callable[[], memoryview]) -> None:
        self._read = read

    def __await__(self) -> Generator[None, None, memoryview]:
        yield from ()
        return self._read()

    def result(self) -> memoryview:
        """Read it."""
        return self._read()


class ProcessorBackend:
    """The part of a backend of device "cpu" that does not depend on what runs its kernels."""

    name = "cpu"
    bounds: Mapping[DType, int] = MappingProxyType({})
    limits = LIMITS
    stops = reads_parts = True
    waited = 0
    singles: Singles | None = None
    interpret: Interpret | None = None

    def __init__(self, index: int, memory: Count) -> None:
        self.index = index
        self.memory = memory
        self.failure: IndexOutOfRangeError | DeviceCheckError | None = None

    def together(self) -> AbstractContextManager[None]:
        """Run each program at once."""
        return nullcontext()

    def download(
        self,
        buffer: Any,
        first: int = 0,
        count: int | None = None,
        *,
        into: memoryview | None = None,
    ) -> memoryview:
        """Return a copy of the contents, or of `count` elements from `first` on, in `into` if it is given.

        Raises IndexOutOfRangeError when a kernel since the last read met a bad index.
        """
        raise NotImplementedError

    def download_async(self, buffer: object, *, into: memoryview | None = None) -> _Reading:
        """Return what `download` returns, when that is awaited or asked for."""
        return _Reading(partial(self.download, buffer, into=into))

    def at_hand(
        self,
        buffer: Any,
        shape: Sequence[int] | None = None,
        strides: Sequence[int] = (),
        first: int = 0,
    ) -> Any:
        """Return a view of the contents as an array of NumPy's, where there is one."""
        return None

    def fence(self) -> Callable[[], None]:
        """Return what waits for nothing: all is done."""
        return _nothing

    def kept_form(self, program: Program) -> Sequence[Sequence[object]]:
        """Return nothing: what is kept of kernels has files of its own, if any."""
        return ()

    def put_kept(self, program: Program, rendered: Sequence[Sequence[object]]) -> None:
        """Do nothing."""

    def synchronize(self) -> None:
        """Raise what kernels reported since the last read."""
        failure, self.failure = self.failure, None
        if failure is not None:
            raise failure

    @property
    def has_failed(self) -> bool:
        """Whether a kernel has met a bad index since the last read."""
        return self.failure is not None

    def memory_allocated(self) -> int:
        """Return the bytes held by live buffers."""
        settle_scripts("memory is asked for")
        return self.memory.live

    def max_memory_allocated(self) -> int:
        """Return the largest `memory_allocated` since the start or the last reset."""
        return self.memory.peak

    def reset_peak_memory(self) -> None:
        """Start the peak count anew."""
        self.memory.peak = self.memory.live

    def failed(self, program: Program, number: int, value: int, now: bool = False) -> None:
        """Note that check `number` of a program met a bad index; the first one is raised, `now` or at the next read."""
        if self.failure is None:
            site = program.sites[number]
            kind = IndexOutOfRangeError if site.is_index else DeviceCheckError
            self.failure = kind(site.message(value))
        if now:
            self.synchronize()
