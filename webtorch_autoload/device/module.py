"""`torch.webgpu`: what PyTorch and its users expect of a device's module.

Imports PyTorch, and the engine inside functions only; nothing but `synchronize` and the like opens the device.
"""

from __future__ import annotations

import dataclasses
import importlib
import os
import sys
import time
from typing import Any

import torch
from torch.utils._python_dispatch import _disable_current_modes

from webtorch_autoload.device import hide

OutOfMemoryError = torch.OutOfMemoryError
AcceleratorError = torch.AcceleratorError

_Device = torch.device | str | int | None
_ENGINE = "webtorch.pytorch.device"
# A seed given before the first tensor: seeding must not open the device.
_pending_seed: list[int] = []


def _runtime() -> Any:
    return importlib.import_module(_ENGINE).runtime()


def is_initialized() -> bool:
    """Return whether the device has been opened."""
    engine = sys.modules.get(_ENGINE)
    return engine is not None and engine.is_open()


def __getattr__(name: str) -> Any:
    # What PyTorch asks before it keeps the states of random numbers, as for checkpoints.
    if name == "_initialized":
        return is_initialized()
    kind = torch.storage._storage_type_to_dtype_map().get(name)
    if kind is not None:
        # PyTorch tells by the module's name of which device they are.
        of = {"dtype": kind, "_dtype": kind, "__module__": "torch.webgpu"}
        base: Any = torch.storage._LegacyStorage
        return globals().setdefault(name, type(base)(name, (base,), of))
    why = next((words for words, names in _ABSENT.items() if name in names), "")
    raise AttributeError(f"module 'torch.webgpu' has no attribute {name!r}{why}")


# What devices of other kinds have: what to say of it -> names.
_ABSENT = {
    ": what lies where in the memory is not recorded; see memory_stats() and memory_summary()": (
        "memory_snapshot", "memory_stats_as_nested_dict", "memory",
    ),
    ": the environment variable WEBTORCH_MEMORY_LIMIT sets a limit in bytes": (
        "get_per_process_memory_fraction", "set_per_process_memory_fraction", "recommended_max_memory",
    ),
    ": programs are recorded by torch.compile(backend='webgpu')": (
        "CUDAGraph", "XPUGraph", "graph", "graph_pool_handle", "make_graphed_callables",
    ),
    ": WebGPU does not tell": (
        "utilization", "memory_usage", "temperature", "power_draw", "clock_rate", "device_memory_used",
    ),
    ": shaders of one's own are WGSL, see compile_shader()": ("jiterator", "load_metallib"),
}  # fmt: skip


def _is_in_bad_fork() -> bool:
    engine = sys.modules.get(_ENGINE)
    return engine is not None and engine.is_forked()


def is_available() -> bool:
    """Return whether there is a WebGPU adapter and the binding for it. Opens no device."""
    if is_initialized():
        return True
    try:
        return bool(importlib.import_module("webtorch.runtime.backends.webgpu").is_available())
    except (ImportError, RuntimeError):
        return False


def is_built() -> bool:
    """Return True: there is nothing to build."""
    return True


def device_count() -> int:
    """Return 1 where there is an adapter, else 0: PyTorch sees the best adapter of the machine.

    Where a launcher (torchrun) has started several processes, each has a device of its own: as many as processes.
    """
    return max(1, int(os.environ.get("LOCAL_WORLD_SIZE") or 1)) if is_available() else 0


def local_rank() -> int:
    """Return the number of this process among those that a launcher has started on this machine; else 0.

    It names the adapter: "webgpu:1" is the device of process 1, and of no other.
    """
    return int(os.environ.get("LOCAL_RANK") or 0)


def current_device() -> int:
    """Return the index of the current device, which is 0."""
    return 0


def set_device(device: _Device) -> None:
    """Select a device. Raises RuntimeError for any but device 0, and that with the number of this process."""
    _check("set_device", device)


def _check(name: str, device: _Device) -> None:
    """Raise RuntimeError for a device other than number 0; None is that one."""
    index = device if device is None or isinstance(device, int) else torch.device(device).index
    if index not in (None, 0, -1, local_rank()):
        raise RuntimeError(f"torch.webgpu.{name}({device!r}): {one_device()}")


def one_device() -> str:
    """Return which devices there are, for errors."""
    rank = local_rank()
    own = f", which is also number {rank}, as this is process {rank} of its machine" if rank else ""
    return f"there is one WebGPU device, number 0{own}"


class device:
    """Context manager that selects a device."""

    def __init__(self, device: _Device) -> None:
        set_device(device)

    def __enter__(self) -> None:
        return None

    def __exit__(self, *error: object) -> None:
        return None


class device_of(device):
    """Context manager that selects a tensor's device; it does nothing for tensors on others."""

    def __init__(self, obj: object) -> None:
        return None


def _exchange_device(index: int) -> int:
    return 0


_maybe_exchange_device = _exchange_device


@hide
def init() -> None:
    """Open the device now rather than at the first tensor."""
    _runtime()


@hide
def synchronize(device: _Device = None) -> None:
    """Compute what is pending and wait for the device."""
    _check("synchronize", device)
    if is_initialized():
        runtime = _runtime()
        runtime.receive()
        runtime.realize()
        runtime.backend.synchronize()


@hide
def memory_allocated(device: _Device = None) -> int:
    """Return the bytes held by live buffers. What is not computed yet holds none."""
    _check("memory_allocated", device)
    return int(_runtime().backend.memory_allocated()) if is_initialized() else 0


current_allocated_memory = memory_allocated


@hide
def max_memory_allocated(device: _Device = None) -> int:
    """Return the largest `memory_allocated` since the start or the last reset."""
    _check("max_memory_allocated", device)
    return int(_runtime().backend.max_memory_allocated()) if is_initialized() else 0


@hide
def memory_reserved(device: _Device = None) -> int:
    """Return the bytes held from the system: live buffers and the pool's unused ones."""
    _check("memory_reserved", device)
    if not is_initialized():
        return 0
    backend = _runtime().backend
    return int(getattr(backend, "memory_reserved", backend.memory_allocated)())


driver_allocated_memory = memory_reserved


def max_memory_reserved(device: _Device = None) -> int:
    """Return the largest `memory_allocated`, or what is reserved now if that is more."""
    _check("max_memory_reserved", device)
    return max(max_memory_allocated(), memory_reserved())


def memory_stats(device: _Device = None) -> dict[str, int]:
    """Return the memory counts under PyTorch's names."""
    _check("memory_stats", device)
    return {
        "allocated_bytes.all.current": memory_allocated(),
        "allocated_bytes.all.peak": max_memory_allocated(),
        "active_bytes.all.current": memory_allocated(),
        "active_bytes.all.peak": max_memory_allocated(),
        "reserved_bytes.all.current": memory_reserved(),
        "reserved_bytes.all.peak": max_memory_reserved(),
    }


def mem_get_info(device: _Device = None) -> tuple[int, int]:
    """Raise NotImplementedError: WebGPU does not tell how much memory a device has, or how much is free."""
    raise NotImplementedError(
        "torch.webgpu.mem_get_info: WebGPU does not tell the size of a device's memory; "
        "memory_allocated() and memory_reserved() count this process's"
    )


def memory_summary(device: _Device = None, abbreviated: bool = False) -> str:
    """Return the memory counts as text."""
    return "\n".join(
        f"{name:<28}{count / 2**20:12.1f} MiB" for name, count in memory_stats().items()
    )


def reset_accumulated_memory_stats(device: _Device = None) -> None:
    """Do nothing: there are no accumulated counts."""


def get_device_capability(device: _Device = None) -> dict[str, Any]:
    """Return the types that tensors may have."""
    engine = importlib.import_module(_ENGINE)
    return {
        "supported_dtypes": {
            d for d, kind in engine.TO_WEBTORCH.items() if kind not in engine.UNSUPPORTED
        }
    }


@hide
def reset_peak_memory_stats(device: _Device = None) -> None:
    """Start the peak count anew."""
    _check("reset_peak_memory_stats", device)
    if is_initialized():
        _runtime().backend.reset_peak_memory()


reset_max_memory_allocated = reset_peak_memory_stats


@hide
def empty_cache() -> None:
    """Give pooled, unused memory back to the system."""
    if is_initialized():
        _runtime().backend.empty_cache()


@hide
def get_device_name(device: _Device = None) -> str:
    """Return the adapter's name."""
    _check("get_device_name", device)
    return str(_runtime().backend.description())


@hide
def get_device_properties(device: _Device = None) -> Any:
    """Return the adapter's name and the limits that kernels are made for: sizes in bytes, workgroups."""
    _check("get_device_properties", device)
    backend = _runtime().backend
    return DeviceProperties(str(backend.description()), backend.limits)


class DeviceProperties:
    """What is known of a device: its `name`, and the limits that kernels are made for."""

    def __init__(self, name: str, limits: Any) -> None:
        vars(self).update({"name": name, **dataclasses.asdict(limits)})

    def __getattr__(self, name: str) -> Any:
        if name == "total_memory":
            raise AttributeError(
                "total_memory: WebGPU does not tell the size of a device's memory; "
                "torch.webgpu.memory_allocated() counts this process's"
            )
        raise AttributeError(f"'DeviceProperties' object has no attribute {name!r}")

    def __repr__(self) -> str:
        return f"DeviceProperties({', '.join(f'{k}={v!r}' for k, v in vars(self).items())})"


def get_amp_supported_dtype() -> list[Any]:
    """Return the types that autocast may use."""
    return [torch.float16, torch.bfloat16]


def is_bf16_supported() -> bool:
    """Return True: bfloat16 is stored in 16 bits and computed in float32."""
    return True


def is_tf32_supported() -> bool:
    """Return False: WebGPU has no such type."""
    return False


def is_current_stream_capturing() -> bool:
    """Return False: streams are not recorded."""
    return False


def fallback_counts() -> dict[str, int]:
    """Return how often each operator ran on the CPU because WEBTORCH_FALLBACK allowed it."""
    fallback = sys.modules.get("webtorch.pytorch.fallback")
    return dict(fallback.counts) if fallback is not None else {}


def host_kernel_counts() -> dict[str, int]:
    """Return how often each operator that only the CPU computes (factorisations of matrices) ran."""
    fallback = sys.modules.get("webtorch.pytorch.fallback")
    return dict(fallback.host_counts) if fallback is not None else {}


def eager_call_counts() -> dict[str, int]:
    """Return how often compiled graphs called each operator that no program holds, such as custom ones."""
    fallback = sys.modules.get("webtorch.pytorch.fallback")
    return dict(fallback.eager_counts) if fallback is not None else {}


@hide
def compile_shader(source: str) -> Any:
    """Compile a shader written in WGSL; its entry points are the attributes of what is returned.

    Bindings of group 0 are the arguments of a call, in order: a tensor is a `var<storage>`, numbers are a
    `var<uniform>`. Called with `threads=` (as many as the first tensor has elements unless given), `group_size=` and
    `arg_casts=`, as those of `torch.mps.compile_shader`.
    """
    return importlib.import_module("webtorch.pytorch.shader").compile_shader(source)


# ---- random numbers -----------------------------------------------------------------------------


@hide
def manual_seed(seed: int) -> None:
    """Seed the device's random numbers. Opens no device."""
    _pending_seed[:] = [int(seed)]
    if is_initialized():
        importlib.import_module(_ENGINE).generator()


manual_seed_all = manual_seed


def seed() -> int:
    """Seed with a number that nothing determines; return it."""
    import secrets

    number = secrets.randbits(63)
    manual_seed(number)
    return number


seed_all = seed


@hide
def initial_seed() -> int:
    """Return the seed in use."""
    return int(importlib.import_module(_ENGINE).generator().initial_seed())


@hide
def get_rng_state(device: _Device = None) -> Any:
    """Return the state of the device's random numbers, as 16 bytes in a CPU tensor."""
    _check("get_rng_state", device)
    state = importlib.import_module(_ENGINE).generator().get_state()
    # Modes that are on are not handed what holds numbers, as none of the CPU's state is.
    with _disable_current_modes():
        return torch.tensor(state.tolist(), dtype=torch.uint8, device="cpu")


@hide
def set_rng_state(new_state: object, device: _Device = None) -> None:
    """Go back to a state that `get_rng_state` returned."""
    _check("set_rng_state", device)
    if not isinstance(new_state, torch.Tensor) or new_state.dtype is not torch.uint8:
        kind = new_state.dtype if isinstance(new_state, torch.Tensor) else type(new_state).__name__
        raise TypeError(
            f"torch.webgpu.set_rng_state: RNG state must be a torch.ByteTensor, as get_rng_state() returns, got {kind}"
        )
    with _disable_current_modes():
        contents = new_state.tolist()
    importlib.import_module(_ENGINE).set_random_state(contents)


def get_rng_state_all() -> list[Any]:
    """Return the states of all devices."""
    return [get_rng_state()] if device_count() else []


def set_rng_state_all(new_states: Any) -> None:
    """Go back to states that `get_rng_state_all` returned."""
    for state in new_states:
        set_rng_state(state)


# ---- streams: there is one queue ----------------------------------------------------------------


class Stream(torch.Stream):
    """The device's only queue, whatever its name: work runs in the order in which it was recorded."""

    def __new__(cls, device: _Device = None, priority: int = 0, **options: object) -> Stream:
        _check("Stream", device)
        return super().__new__(cls, "webgpu:0", priority=priority)

    def synchronize(self) -> None:
        """Wait until the device has done all its work."""
        synchronize()

    def query(self) -> bool:
        """Return True: whatever reads a result waits for it."""
        return True

    def wait_stream(self, stream: object) -> None:
        """Do nothing: both are the same queue."""

    def wait_event(self, event: object) -> None:
        """Do nothing: the event lies before what follows in the same queue."""

    def record_event(self, event: Any = None) -> Event:
        """Record an event, a new one if none is given."""
        event = event or Event()
        event.record(self)
        return event

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *error: object) -> None:
        return None

    def __eq__(self, other: object) -> bool:
        return isinstance(other, torch.Stream) and other.device.type == "webgpu"

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:
        return hash(Stream)

    def __repr__(self) -> str:
        return "torch.webgpu.Stream device=webgpu:0"


class Event(torch.Event):
    """A moment between operations. With timing, recording one waits for the device: it takes the host's time then."""

    def __new__(
        cls, enable_timing: bool = False, blocking: bool = False, interprocess: bool = False
    ) -> Event:
        return super().__new__(
            cls,
            "webgpu",
            enable_timing=enable_timing,
            blocking=blocking,
            interprocess=interprocess,
        )

    def __init__(
        self, enable_timing: bool = False, blocking: bool = False, interprocess: bool = False
    ) -> None:
        self._timing = enable_timing
        self._time: float | None = None

    def __repr__(self) -> str:
        return f"torch.webgpu.Event recorded={self._time is not None}, enable_timing={self._timing}"

    def record(self, stream: object = None) -> None:
        """Note this moment."""
        if self._timing:
            synchronize()
        self._time = time.perf_counter()

    def wait(self, stream: object = None) -> None:
        """Do nothing: there is one queue."""

    def query(self) -> bool:
        """Return True: whatever reads a result waits for it."""
        return True

    def synchronize(self) -> None:
        """Wait for the device, if the event was recorded."""
        if self._time is not None:
            synchronize()

    def elapsed_time(self, end_event: Any) -> float:
        """Return the milliseconds from this event to another. Raises ValueError for events without times."""
        if not (self._timing and end_event._timing):
            raise ValueError("Both events must be created with argument 'enable_timing=True'.")
        if self._time is None or end_event._time is None:
            raise ValueError("Both events must be recorded before calculating elapsed time.")
        return 1e3 * (end_event._time - self._time)


def current_stream(device: _Device = None) -> Stream:
    """Return the device's only stream."""
    _check("current_stream", device)
    return Stream()


default_stream = current_stream


def set_stream(stream: object) -> None:
    """Do nothing: there is one stream."""


class StreamContext:
    """Context manager that selects a stream, of which there is one."""

    def __init__(self, stream: object) -> None:
        self.stream = stream

    def __enter__(self) -> None:
        return None

    def __exit__(self, *error: object) -> None:
        return None


def stream(stream: object) -> StreamContext:
    """Return a context manager that selects a stream, of which there is one."""
    return StreamContext(stream)
