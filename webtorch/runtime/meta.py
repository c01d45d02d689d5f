"""The device "meta": tensors with shape and type, but no values. Floor 3.

What is recorded there counts as computed at once, into memory that is nothing. Programs can be compiled for
it, and are those of a common GPU; none runs.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, NoReturn

from webtorch.errors import NoValuesError
from webtorch.ir.dtype import DType
from webtorch.ir.limits import Limits
from webtorch.ir.view import numel
from webtorch.runtime.realize import Owner, Runtime

# A hardware adapter of today, for programs that are not planned for a device with WGSL.
COMMON_GPU = Limits(
    max_binding_bytes=1 << 31,
    max_buffers_per_kernel=14,
    max_workgroup_invocations=256,
    max_workgroups_per_dim=65535,
    workgroup_memory_bytes=32768,
    has_f16=True,
    is_gpu=True,
    has_epilogues=True,
    has_joint_products=True,
)

NOT_RUN = (
    "device 'meta' holds no data: what was compiled for it can be looked at (program(), kernels(), "
    "graph(), memory_plan()), and not run. Compile the function without device='meta' to run it"
)


@dataclass(frozen=True, slots=True)
class _Nothing:
    dtype: DType
    elements: int

    @property
    def nbytes(self) -> int:
        """No bytes."""
        return 0


class _MetaBackend:
    name = "meta"
    stops = reads_parts = has_failed = False
    waited = 0
    singles = interpret = None
    index = 0
    limits = COMMON_GPU
    bounds: Mapping[DType, int] = MappingProxyType({})

    def description(self) -> str:
        """Return the device's name."""
        return "no device"

    def together(self) -> AbstractContextManager[None]:
        """Run each program at once."""
        return nullcontext()

    def allocate(self, dtype: DType, elements: int) -> _Nothing:
        """Return memory that is nothing."""
        return _Nothing(dtype, elements)

    def upload(self, data: object, dtype: DType, elements: int) -> _Nothing:
        """Return memory that is nothing."""
        return _Nothing(dtype, elements)

    def download(self, buffer: object, *, into: object = None) -> NoReturn:
        """Raise NoValuesError."""
        raise NoValuesError(
            "Cannot copy out of meta tensor; no data! Make it on a device that holds values: "
            "empty_like(tensor, device='cpu'), or module.to_empty(device='cpu') and load_state_dict"
        )

    download_async = download

    def on_host(self, memory: object) -> None:
        """There is none."""

    def compile(self, program: object, varying: bool = False) -> NoReturn:
        """Raise NoValuesError."""
        raise NoValuesError(NOT_RUN)


class _Formulas(threading.local):
    """Whether this thread records a formula: its operations are kept, and nothing asks for their values."""

    on = False

    @contextlib.contextmanager
    def recorded(self) -> Iterator[None]:
        """Keep what is recorded within the block."""
        before, self.on = self.on, True
        try:
            yield
        finally:
            self.on = before


formulas = _Formulas()


class MetaRuntime(Runtime):
    """Records nothing: a value without numbers needs no past."""

    def realize(self, wanted: Owner | None = None) -> None:
        """Compute nothing. Raises NoValuesError while a formula is recorded: its operands have no values."""
        if formulas.on:
            raise NoValuesError("a formula is recorded once for all elements: it reads no value")
        if not self.capturing:
            # What is left of a capture that was given up.
            left, self.pending[:] = self.pending[:], []
            for owner in [o for reference in left if (o := reference()) is not None]:
                self.add(owner)
        super().realize(wanted)

    def add(self, owner: Owner) -> None:
        """Take the value of `owner` for computed. In a capture, and of a formula, the recorded operations are kept."""
        if self.capturing:
            super().add(owner)
        elif not formulas.on:
            owner.node.become_buffer(_Nothing(owner.node.dtype, numel(owner.node.shape)))
            self.settle(owner)


_runtime: list[MetaRuntime] = []


def meta_runtime() -> MetaRuntime:
    """Return the runtime of tensors that have a shape and a type, but no values."""
    if not _runtime:
        backend: Any = _MetaBackend()
        _runtime.append(MetaRuntime(backend))
    return _runtime[0]
