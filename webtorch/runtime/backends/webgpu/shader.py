"""Shaders that a user wrote: compiled as they are, and dispatched with one buffer or number for each binding. Imports
the errors and this package.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from webtorch.errors import DTypeError, KernelError, ShaderError
from webtorch.ir.dtype import wide_int64
from webtorch.runtime.backends.webgpu.executable import Owned, encode_rows
from webtorch.runtime.backends.webgpu.memory import DeviceBuffer
from webtorch.runtime.backends.webgpu.native import COPY_DST, UNIFORM
from webtorch.runtime.backends.webgpu.pipeline import Pipeline

if TYPE_CHECKING:
    from webtorch.lower.wgsl_shader import Binding
    from webtorch.runtime.backends.webgpu.device import WebGPUBackend

# Where a number may begin in a uniform buffer (WebGPU, 3.6.2: at most 256 on every adapter).
_ALIGNED = 256


class UserShader:
    """The compiled text of a shader on one device."""

    def __init__(self, device: WebGPUBackend, source: str) -> None:
        """Compile. Raises ShaderError with the compiler's message and the lines around its place."""
        self._device = device
        self._source = source
        self._pipelines: dict[tuple[str, tuple[Binding, ...]], Pipeline] = {}
        self._uniform: Owned | None = None
        self._room = 0
        with device.lock:
            device.settle()
            try:
                self._module = device.pipelines.module(source, "shader")
            except KernelError as error:
                raise ShaderError(str(error)) from error

    def run(
        self,
        entry: str,
        bindings: tuple[Binding, ...],
        values: Sequence[DeviceBuffer | bytes],
        grid: tuple[int, int, int],
    ) -> None:
        """Enqueue one dispatch with these buffers and numbers, which are bytes. Does not wait.

        Raises ShaderError where the shader has no such entry point with these bindings.
        """
        device = self._device
        native = device.native
        with device.lock:
            device.settle()
            pipeline = self._pipeline(entry, bindings)
            packed = b"".join(
                [
                    v.ljust(-(-len(v) // _ALIGNED) * _ALIGNED, b"\0")
                    for v in values
                    if type(v) is bytes
                ]
            )
            uniform = self._uniform_of(packed)
            bound, at = [], 0
            for value, binding in zip(values, bindings, strict=True):
                if isinstance(value, bytes):
                    bound.append((uniform, at, -(-len(value) // 16) * 16))
                    at += -(-len(value) // _ALIGNED) * _ALIGNED
                else:
                    if value.stored is wide_int64:
                        raise DTypeError(
                            f"{entry}: a shader reads int64 as 32 bits, and this tensor may hold more "
                            f"({value.held}): give x.int()"
                        )
                    if binding == "read_write":
                        # What it writes is not known.
                        value.held = None
                    # `arrayLength` is the tensor's, but for what does not fill a word.
                    nbytes = max(4, -(-value.nbytes // 4) * 4)
                    bound.append((*value.block.at(0, nbytes), nbytes))
            native.capture()
            try:
                group = native.create_bind_group(pipeline.layout, bound)
            finally:
                problem = native.captured()
            if problem is not None:
                raise ShaderError(str(device.error(problem, entry)))
            try:
                encode_rows(device, [(pipeline.pointer, group, *grid)], entry)
            finally:
                native.release_bind_group(group)

    def _pipeline(self, entry: str, bindings: tuple[Binding, ...]) -> Pipeline:
        found = self._pipelines.get((entry, bindings))
        if found is None:
            make = partial(self._device.pipelines.of_module, self._module, self._source)
            try:
                found = self._pipelines[entry, bindings] = make(entry, bindings)
            except KernelError as error:
                raise ShaderError(str(error)) from error
        return found

    def _uniform_of(self, packed: bytes) -> object:
        """Return the buffer that holds the numbers of a call."""
        if not packed:
            return None
        device = self._device
        if self._uniform is None or self._room < len(packed):
            pointer = device.check(
                device.native.create_buffer(len(packed), UNIFORM | COPY_DST), "shader"
            )
            self._uniform = Owned(pointer, device.native.release_buffer, device.trash)
            self._room = len(packed)
        device.write(self._uniform.pointer, packed)
        return self._uniform.pointer
