"""Runs rendered passes on a real device, without the backend: buffers in, buffers out. Test code;
imports wgpu lazily."""

from __future__ import annotations

import os
import tempfile
from functools import lru_cache
from typing import Any

import numpy as np
import pytest

from tests import long
from webtorch.ir.dtype import DType, bfloat16, bool_, by_name
from webtorch.ir.kernel import Routine
from webtorch.ir.limits import Limits
from webtorch.lower.wgsl import WgslPass, render

os.environ.setdefault("XDG_RUNTIME_DIR", tempfile.gettempdir())

NUMPY = {
    "float32": np.float32, "float16": np.float16, "bfloat16": np.uint16, "int64": np.int64, "int32": np.int32,
    "int16": np.int16, "int8": np.int8, "uint8": np.uint8, "uint32": np.uint32, "bool": np.bool_, "float64": np.float64,
}  # fmt: skip


def to_bf16(x: np.ndarray) -> np.ndarray:
    """Return the bfloat16 bits of `x`, rounded to nearest even."""
    bits = np.asarray(x, np.float32).view(np.uint32).astype(np.uint64)
    rounded = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
    return np.where(np.isnan(x), np.uint16(0x7FC0), rounded).astype(np.uint16)


def from_bf16(x: np.ndarray) -> np.ndarray:
    """Return bfloat16 bits as float32 values."""
    return (x.astype(np.uint32) << 16).view(np.float32)


def to_device(x: np.ndarray, dtype: DType) -> bytes:
    """Return the bytes that a device buffer holds for `x`, padded to whole words."""
    if dtype.name == "int64":
        x = x.astype(np.int32)
    elif dtype is bfloat16 and x.dtype != np.uint16:
        x = to_bf16(x)
    elif dtype is bool_:
        x = x.astype(np.uint8)
    data = np.ascontiguousarray(x).tobytes()
    return data + b"\0" * (-len(data) % 4 or (4 if not data else 0))


def from_device(data: bytes, dtype: DType, elements: int) -> np.ndarray:
    """Return a device buffer's elements as NumPy numbers."""
    if dtype.name == "int64":
        return np.frombuffer(data, np.int32)[:elements].astype(np.int64)
    if dtype is bool_:
        return np.frombuffer(data, np.uint8)[:elements].astype(bool)
    if dtype is bfloat16:
        return from_bf16(np.frombuffer(data, np.uint16)[:elements])
    return np.frombuffer(data, NUMPY[dtype.name])[:elements].copy()


def adapters(number: int) -> tuple[bool, ...]:
    """Which kinds of adapter, graphics cards or not, a test's case is rendered for: both, or in `make test`
    one, in turn by the case's number. A card's kernels take seconds to compile on a processor.
    """
    return (False, True) if long.runs() else (number % 2 == 1,)


class Device:
    """One WebGPU device, driven through the wgpu API."""

    def __init__(self, module: Any, engine: str, adapter: Any, f16: bool = True) -> None:
        self.wgpu, self.engine = module, engine
        has_f16 = f16 and "shader-f16" in adapter.features
        wanted = {
            name: adapter.limits[name]
            for name in ("max-storage-buffers-per-shader-stage", "max-compute-invocations-per-workgroup",
                         "max-compute-workgroup-size-x", "max-storage-buffer-binding-size", "max-buffer-size",
                         "max-compute-workgroup-storage-size")
            if name in adapter.limits
        }  # fmt: skip
        features = ["subgroups", *(["shader-f16"] if has_f16 else [])]
        self.device = adapter.request_device_sync(
            required_features=[f for f in features if f in adapter.features], required_limits=wanted
        )
        limits = self.device.limits
        self.limits = Limits(
            max_binding_bytes=limits["max-storage-buffer-binding-size"],
            max_buffers_per_kernel=limits["max-storage-buffers-per-shader-stage"],
            max_workgroup_invocations=limits["max-compute-invocations-per-workgroup"],
            max_workgroups_per_dim=65535,
            workgroup_memory_bytes=limits["max-compute-workgroup-storage-size"],
            has_f16=has_f16,
            is_gpu=adapter.info["adapter_type"] != "CPU",
        )
        self.pipelines: dict[WgslPass, Any] = {}

    def pipeline(self, p: WgslPass) -> Any:
        """Return the compute pipeline of a pass."""
        found = self.pipelines.get(p)
        if found is None:
            kinds = {"read": "read-only-storage", "read_write": "storage", "uniform": "uniform"}
            entries = [
                {"binding": i, "visibility": 4, "buffer": {"type": kinds[b]}}
                for i, b in enumerate(p.bindings)
            ]
            layout = self.device.create_bind_group_layout(entries=entries)
            module = self.device.create_shader_module(code=p.source)
            pipeline = self.device.create_compute_pipeline(
                layout=self.device.create_pipeline_layout(bind_group_layouts=[layout]),
                compute={"module": module, "entry_point": "main"},
            )
            found = self.pipelines[p] = (pipeline, layout)
        return found

    def buffer(self, data: bytes) -> Any:
        """Return a storage buffer that holds `data`."""
        usage = self.wgpu.BufferUsage
        b = self.device.create_buffer(
            size=len(data), usage=usage.STORAGE | usage.COPY_SRC | usage.COPY_DST | usage.UNIFORM
        )
        self.device.queue.write_buffer(b, 0, data)
        return b

    def run(
        self,
        routine: Routine,
        inputs: list[np.ndarray | None],
        args: tuple[float, ...] = (),
        limits: Limits | None = None,
        passes: list[WgslPass] | None = None,
        repeat: int = 1,
    ) -> Result:
        """Run a routine; `inputs` gives each buffer's first contents (None for garbage)."""
        if passes is None:
            passes = render(routine, limits or self.limits, self.engine)  # type: ignore[arg-type]
        buffers = []
        for slot, x in zip(routine.buffers, inputs, strict=True):
            if x is None:
                # Garbage: nothing may depend on what a fresh output holds.
                size = {"int64": 4}.get(slot.dtype.name, slot.dtype.itemsize) * slot.elements
                buffers.append(self.buffer(b"\xa5" * max(-(-size // 4) * 4, 4)))
            else:
                buffers.append(self.buffer(to_device(x, slot.dtype)))
        scratch = [self.buffer(b"\x5a" * s) for s in passes[0].scratch]
        status = self.buffer(b"\0" * 8)
        encoder = self.device.create_command_encoder()
        groups = []
        for p in passes:
            assert p.scratch == passes[0].scratch
            pipeline, layout = self.pipeline(p)
            bound = [buffers[s] for s in p.slots] + scratch
            if p.args_bytes:
                data = bytearray(p.args_bytes)
                for offset, dtype, number in p.args:
                    value = np.array([args[number]]).astype(NUMPY[dtype.name])
                    data[offset : offset + 4] = value.tobytes()
                bound.append(self.buffer(bytes(data)))
            if p.numbers:
                bound.append(self.buffer(np.array(p.numbers, np.int32).tobytes()))
            if p.has_status:
                bound.append(status)
            assert len(bound) == len(p.bindings)
            group = self.device.create_bind_group(
                layout=layout,
                entries=[
                    {"binding": i, "resource": {"buffer": b, "offset": 0, "size": b.size}}
                    for i, b in enumerate(bound)
                ],
            )
            groups.append((pipeline, group, p.grid))
        compute = encoder.begin_compute_pass()
        for _ in range(repeat):
            for pipeline, group, grid in groups:
                compute.set_pipeline(pipeline)
                compute.set_bind_group(0, group)
                compute.dispatch_workgroups(*grid)
        compute.end()
        self.device.queue.submit([encoder.finish()])
        return Result(self, routine, buffers, status)


class Result:
    """The buffers after a run, read on request."""

    def __init__(self, device: Device, routine: Routine, buffers: list[Any], status: Any) -> None:
        self.device, self.routine, self.buffers, self.status_buffer = (
            device,
            routine,
            buffers,
            status,
        )

    def __getitem__(self, number: int) -> np.ndarray:
        slot = self.routine.buffers[number]
        data = bytes(self.device.device.queue.read_buffer(self.buffers[number]))
        return from_device(data, slot.dtype, slot.elements)

    @property
    def status(self) -> tuple[int, int]:
        """The status words: (1 + site, value)."""
        words = np.frombuffer(
            bytes(self.device.device.queue.read_buffer(self.status_buffer)), np.int32
        )
        return int(words[0]), int(words[1])


@lru_cache(maxsize=2)
def open_device(f16: bool = True) -> Device:
    """Return a device on the first Vulkan adapter; skips, visibly, where there is none."""
    wgpu = pytest.importorskip("wgpu", reason="needs the wgpu package")
    pytest.importorskip("wgpu.backends.wgpu_native")

    adapters = [a for a in wgpu.gpu.enumerate_adapters_sync() if a.info["backend_type"] == "Vulkan"]
    if not adapters:
        pytest.skip("no Vulkan adapter (apt-get install mesa-vulkan-drivers)")
    adapters.sort(key=lambda a: a.info["adapter_type"] == "CPU")
    return Device(wgpu, "naga", adapters[0], f16)


def dtype(name: str) -> DType:
    """Return a type by name."""
    return by_name(name)
