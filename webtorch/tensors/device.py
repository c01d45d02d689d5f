"""`webtorch.device`, the default device and the choice of it. May import floors 0 to 3."""

from __future__ import annotations

import importlib
import os
import threading
import warnings
from typing import Any

from webtorch.errors import DeviceError, NoCudaError
from webtorch.ir.lines import user_depth
from webtorch.runtime.meta import meta_runtime
from webtorch.runtime.realize import Runtime, runtime_for

_KINDS = ("cpu", "webgpu")
# PyTorch's, to name and compare with; a tensor on one of them is an error.
_OTHERS = frozenset(("cuda", "hpu", "ipu", "maia", "mps", "mtia", "xla", "xpu"))


class device:
    """A device: `device("cpu")`, `device("webgpu")`, `device("webgpu:1")`, `device("webgpu", 1)`.

    As a context manager it is the default device inside.
    """

    __slots__ = ("_previous", "index", "type")
    type: str
    index: int | None

    def __init__(self, type: Any, index: int | None = None) -> None:
        if isinstance(type, device):
            type, index = type.type, type.index
        if isinstance(type, int) and not isinstance(type, bool):
            if type < 0:
                raise RuntimeError("Device index must not be negative")
            type, index = "webgpu", type
        if not isinstance(type, str):
            raise TypeError(f"device(): argument 'type' must be str, not {type.__class__.__name__}")
        if ":" in type:
            if index is not None:
                raise RuntimeError(
                    "type (string) must not include an index because index was passed "
                    f"explicitly: {type}"
                )
            type, _, number = type.partition(":")
            if not number.isdigit():
                raise RuntimeError(f"Invalid device string: '{type}:{number}'")
            index = int(number)
        if type not in (*_KINDS, "meta", *_OTHERS):
            raise RuntimeError(
                f"Expected one of {', '.join(_KINDS)} device type at start of device string: {type}"
            )
        self.type = type
        self.index = index
        self._previous: list[device | None] = []

    def __repr__(self) -> str:
        return f"device(type='{self.type}'" + (
            f", index={self.index})" if self.index is not None else ")"
        )

    def __str__(self) -> str:
        return self.type if self.index is None else f"{self.type}:{self.index}"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, device) and (self.type, self.index) == (other.type, other.index)

    def __hash__(self) -> int:
        return hash((self.type, self.index))

    def __reduce__(self) -> tuple[Any, tuple[str, int | None]]:
        return (device, (self.type, self.index))

    def __enter__(self) -> device:
        self._previous.append(_state.default)
        _state.default = self
        return self

    def __exit__(self, *_: object) -> None:
        _state.default = self._previous.pop()


class _State(threading.local):
    default: device | None = None


_state = _State()
_chosen: device | None = None
_stand_in: Runtime | None = None
_BY_RUNTIME: dict[tuple[str, int], device] = {}
DeviceLike = device | str | int | None


def device_of(runtime: Runtime) -> device:
    """Return the device object of a runtime, as `Tensor.device` shows it."""
    key = (runtime.name, runtime.index)
    found = _BY_RUNTIME.get(key)
    if found is None:
        found = _BY_RUNTIME[key] = (
            device(runtime.name, runtime.index)
            if runtime.name == "webgpu"
            else device(runtime.name)
        )
    return found


def stand_in_for_cpu(card: device | None) -> None:
    """Let a card compute what a program places on "cpu", from now on; None is the processor again.

    A program written for PyTorch that names no device, or "cpu" where it finds no CUDA, means one place by both.
    Raises DeviceError where there is no such card.
    """
    global _stand_in
    _stand_in = None if card is None else runtime_for(card.type, card.index or 0, "cpu")


def resolve(where: DeviceLike) -> Runtime:
    """Return the runtime of a device argument; None means the default device. Raises DeviceError."""
    if where is None:
        where = get_default_device()
    elif not isinstance(where, device):
        where = device(where)
    if where.type == "meta":
        return meta_runtime()
    if where.type == "cpu" and _stand_in is not None:
        return _stand_in
    if where.type in _OTHERS:
        is_cuda = where.type == "cuda"
        raise (NoCudaError if is_cuda else DeviceError)(
            f"{'Torch not compiled with CUDA enabled: ' if is_cuda else ''}device '{where}': webtorch has "
            f"{' and '.join(map(repr, _KINDS))}; a program asks torch.cuda.is_available() before it uses 'cuda'. Use "
            "'webgpu' instead"
        )
    return runtime_for(where.type, where.index or 0)


def as_device(where: object) -> device:
    """Return a device, made from a string if it is one."""
    return where if isinstance(where, device) else device(where)


def set_default_device(device: DeviceLike) -> None:
    """Set the device of new tensors. None: choose again (WEBTORCH_DEVICE, else WebGPU hardware,
    else CPU).
    """
    global _chosen
    _state.default = None
    _chosen = None if device is None else as_device(device)


def get_default_device() -> device:
    """Return the device of new tensors: the one set, else WEBTORCH_DEVICE, else WebGPU where there
    is hardware, else CPU.
    """
    if _state.default is not None:
        return _state.default
    global _chosen
    if _chosen is None:
        wanted = os.environ.get("WEBTORCH_DEVICE")
        if wanted:
            _chosen = device(wanted)
        else:
            _chosen = device("webgpu", 0) if _has_hardware() else device("cpu")
    return _chosen


def _has_hardware() -> bool:
    webgpu = importlib.import_module("webtorch.runtime.backends.webgpu")
    try:
        return any(adapter.is_hardware for adapter in webgpu.adapters())
    except DeviceError as error:
        if not isinstance(error.__cause__, (ImportError, OSError, RuntimeError)):
            raise
        # A package that is missing or broken is no reason to refuse work on the CPU, nor to say nothing.
        warnings.warn(
            f"{error}. New tensors are on the CPU; WEBTORCH_DEVICE=cpu chooses that without this warning",
            RuntimeWarning,
            stacklevel=user_depth(),
        )
        return False
