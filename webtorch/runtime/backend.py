"""What a device must do. Floor 3; imports floor 0 only."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, NamedTuple, Protocol

from webtorch.ir.dtype import ALL, COMPLEX, DType
from webtorch.ir.graph import Node
from webtorch.ir.kernel import Routine
from webtorch.ir.limits import Limits
from webtorch.ir.program import Program

# What a tensor of float64 on WebGPU has at most unasked: time steps, positions and scores of a vocabulary fit.
FEW = 1 << 16


def webgpu_bounds() -> dict[DType, int]:
    """Return how many elements a tensor on WebGPU may have, of types that WebGPU lacks; -1: there are no tensors of it.

    float64 is computed from its bits (`lower/wide`), slowly: in few elements, whatever their number where
    WEBTORCH_FLOAT64 is "words", not at all where it is "error".
    """
    asked = os.environ.get("WEBTORCH_FLOAT64", "").strip().lower()
    few = -1 if asked == "error" else FEW
    lacking = [d for d in (*ALL, *COMPLEX) if not d.webgpu]
    return {
        d: few if d.has_gradient else -1 for d in lacking if asked != "words" or not d.has_gradient
    }


def counts_references() -> bool:
    """Whether `sys.getrefcount` tells whether somebody else has an object."""
    locked = getattr(sys, "_is_gil_enabled", lambda: True)()
    return locked and sys.implementation.name == "cpython" and hasattr(sys, "getrefcount")


class Buffer(Protocol):
    """Device memory for `elements` values of one type. Freed when the last reference goes."""

    dtype: DType
    elements: int
    nbytes: int


class Reading(Protocol):
    """What is read of a device, to be awaited."""

    def __await__(self) -> Generator[Any, Any, bytes | bytearray | memoryview]: ...

    def result(self) -> bytes | bytearray | memoryview:
        """Wait for it, where no coroutine runs."""
        ...


class Shared(Protocol):
    """Memory of the host's in which a device's buffers lie, and which other processes may read and write."""

    def buffer(self, dtype: DType, elements: int) -> Buffer:
        """Return its beginning as a buffer."""
        ...


# Is given the output buffers of a program before they are computed.
Ready = Callable[[Sequence[Any]], None]


# Is given the inputs and arguments of the next run, and returns what gives back what that did not use.
Prepare = Callable[[Sequence[Any], Sequence[Any]], Callable[[], None]]


class Executable(Protocol):
    """A program made ready for one device."""

    # Memory that kernels work in beside the program's buffers, as far as the backend allots it ahead.
    scratch_bytes: int
    # Whether `run` makes use of `into`.
    reuses: bool
    # Whether `run` tells `ready` of its outputs before it computes them. All that fails later is a check of values.
    tells: bool

    @property
    def program(self) -> Program:
        """What is run."""

    @property
    def prepare(self) -> Prepare | None:
        """What takes memory for the next run while its inputs are waited for; None where that is nothing to do."""

    def run(
        self,
        inputs: Sequence[Buffer],
        args: Sequence[bool | int | float],
        into: Mapping[int, Buffer] | None = None,
        ready: Ready | None = None,
    ) -> list[Buffer]:
        """Enqueue the program and return its output buffers, or none where `ready` is given them. Does not wait.

        An output whose declaration names an alias returns the input's own buffer, written in place.
        `into` gives buffers of outputs, by number, that nobody reads any more: they take the new
        values.
        """
        ...


class Sent(Protocol):
    """What tells how far a device is with what runs together."""

    # How many programs it has been given.
    sent: int


class Singles(NamedTuple):
    """How a backend computes one value that is wanted alone, in one call.

    `plan`, given an executable, the kind of the node, which result of a call it is (or None), which source each of its
    sources is the same as, how many numbers it has, and what the program is run with, returns what is to be known;
    nothing where it cannot be called so, None where it may later. `function`, given the classes of owners and of what
    is known, returns what computes the one value that is pending where all is as its form's `latest` says. That is
    given the references to owners that wait, those to owners of data, and the runtime, and returns what is known of the
    program; or None, and has changed nothing.
    """

    plan: Callable[[Any, str, int | None, Sequence[int], int, Any], bytes | None]
    function: Callable[[type[object], type[object]], Callable[..., Any] | None]


class _Compiling:
    """When programs are compiled: once they have done enough work to pay for it, or `at_once`, so that no last digit
    depends on what came before.
    """

    at_once = False


compiling = _Compiling()

# How a backend computes the nodes of a graph, sources first, without a program: it returns the memory of those that are
# wanted, or None, and has changed nothing.
Interpret = Callable[[Sequence[Node], Sequence[Node]], "list[Any] | None"]


class Backend(Protocol):
    """One device. Found by name through `webtorch.runtime.backends`; nothing above imports one
    directly.
    """

    name: str
    index: int
    limits: Limits
    bounds: Mapping[DType, int]
    # Whether a program ends before it overwrites what it was given, where an index is bad.
    stops: bool
    # Whether `download` takes the first element and the count of a part.
    reads_parts: bool
    # How often a thread has waited for work that the device does by itself.
    waited: int
    # How it computes single values, if that is less work than to run their programs.
    singles: Singles | None
    # How it computes a graph that has not come before, if compiling its program costs more.
    interpret: Interpret | None

    def description(self) -> str:
        """Return the device's name for people, such as "NVIDIA H200 (Vulkan)"."""
        ...

    def allocate(self, dtype: DType, elements: int) -> Buffer:
        """Return uninitialised memory. Raises OutOfMemoryError; DTypeError for a type in
        `unsupported`.
        """
        ...

    def upload(self, data: bytes | bytearray | memoryview, dtype: DType, elements: int) -> Buffer:
        """Return a new buffer that holds `data` (contiguous, little-endian, in the type's PyTorch
        size).

        Raises OverflowError for int64 values that a device with 32-bit integers cannot hold.
        """
        ...

    def on_host(self, memory: memoryview) -> Shared | None:
        """Return the host's memory, of whole pages, as some of this device's, where that is possible."""
        ...

    def fence(self) -> Callable[[], None]:
        """Return what waits, in any thread, until all that was enqueued by now is done."""
        ...

    def download(
        self, buffer: Buffer, *, into: memoryview | None = None
    ) -> bytes | bytearray | memoryview:
        """Wait for all work that writes `buffer`, and return its contents in the type's PyTorch
        size: in `into`, memory of that size, where it is given.

        Raises IndexOutOfRangeError when a kernel since the last read reported a bad index.
        """
        ...

    def download_async(self, buffer: Buffer, *, into: memoryview | None = None) -> Reading:
        """Return an awaitable of what `download` returns; other coroutines run meanwhile."""
        ...

    def compile(self, program: Program, varying: bool = False) -> Executable:
        """Make a program ready: compile its kernels (cached by source).

        `varying` programs differ from others in their sizes: their kernels take them as arguments.
        """
        ...

    def together(self) -> AbstractContextManager[Sent | None]:
        """Let the programs that run within be given to the device in few pieces, where each run costs a submission;
        what ran before a failure is given to it too. None where each is run at once.
        """
        ...

    def foresee(self, program: Program) -> None:
        """Note a varying program that may be compiled some day, or another one of its form."""
        ...

    def source(self, routine: Routine) -> str:
        """Return the source text of a routine on this device."""
        ...

    def kept_key(self) -> str | None:
        """Return all that programs and kernels depend on besides `limits`; None if none are to be
        kept on disk.
        """
        ...

    def kept_form(self, program: Program) -> Sequence[Sequence[object]]:
        """Return what this device made of each of a program's routines, to be kept; or nothing."""
        ...

    def put_kept(self, program: Program, rendered: Sequence[Sequence[object]]) -> None:
        """Use what `kept_form` returned, here or in another process."""
        ...

    def caches(self) -> dict[str, dict[str, int]]:
        """Return the counters of the caches of compiled work, by name."""
        ...

    def synchronize(self) -> None:
        """Wait until all enqueued work is done; raises what the device reported meanwhile."""
        ...

    @property
    def has_failed(self) -> bool:
        """Whether kernels have reported a failed check since the last read, where that is known without waiting."""
        ...

    def memory_allocated(self) -> int:
        """Return the bytes held by live buffers."""
        ...

    def max_memory_allocated(self) -> int:
        """Return the largest `memory_allocated` since the start or the last reset."""
        ...

    def reset_peak_memory(self) -> None:
        """Start the peak count anew."""
        ...

    def empty_cache(self) -> None:
        """Give pooled, unused memory back to the system."""
        ...
