"""Which WebGPU binding is used and which adapters it offers, best first. Imports a binding only when asked."""

from __future__ import annotations

import importlib
import os
import re
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any, Literal, cast

from webtorch.errors import DeviceError
from webtorch.runtime.backends.webgpu.binding import Adapter

BindingName = Literal["wgpu", "dawn", "browser"]
Engine = Literal["naga", "dawn"]

# The value of WEBTORCH_WEBGPU -> the module, and what to install for it.
_MODULES: dict[BindingName, tuple[str, str]] = {
    "wgpu": ("wgpu", 'pip install "wgpu>=0.32,<0.33"'),
    "dawn": ("wgpudawn", 'pip install "wgpudawn>=0.32,<0.33"'),
    # Python in a page (Pyodide).
    "browser": ("webtorch.runtime.backends.webgpu.browser", "it is part of webtorch"),
}
_API_ORDER = {"Vulkan": 0, "Metal": 0, "D3D12": 0, "D3D11": 1, "OpenGL": 2, "OpenGLES": 2}
_TYPE_ORDER = {"DiscreteGPU": 0, "IntegratedGPU": 1, "Unknown": 2, "CPU": 3}

_LOCK = threading.Lock()
_FOUND: list[AdapterInfo] | None = None
# Those that have given a device.
_TAKEN: list[Adapter] = []


@dataclass(frozen=True, slots=True)
class AdapterInfo:
    """One adapter: a GPU, or software that stands in for one, through one graphics interface.

    `backend_type` is "Vulkan", "Metal", "D3D12", "OpenGL", ...; `adapter_type` "DiscreteGPU",
    "IntegratedGPU", "CPU" or "Unknown". Feature and limit names are the WebGPU specification's,
    with hyphens.
    """

    index: int
    name: str
    backend_type: str
    adapter_type: str
    vendor: str
    driver: str
    features: tuple[str, ...]
    limits: Mapping[str, int]
    handle: Adapter = field(repr=False, compare=False)

    @property
    def is_hardware(self) -> bool:
        """Whether a GPU does the work, not the CPU."""
        return self.adapter_type != "CPU"

    def __str__(self) -> str:
        return f"{self.name} ({self.backend_type})"


def binding_name() -> BindingName:
    """Return "wgpu" or "dawn", as WEBTORCH_WEBGPU says (default "wgpu"); in a page always "browser".
    Raises DeviceError for another value.
    """
    if sys.platform == "emscripten":
        return "browser"
    wanted = os.environ.get("WEBTORCH_WEBGPU", "").strip().lower() or "wgpu"
    if wanted == "wgpu":
        return "wgpu"
    if wanted == "dawn":
        return "dawn"
    raise DeviceError(f"WEBTORCH_WEBGPU={wanted!r}: the WebGPU bindings are 'wgpu' and 'dawn'")


def engine() -> Engine:
    """Return the shader compiler of the binding in use, which decides the WGSL dialect."""
    return "dawn" if binding_name() == "dawn" else "naga"


def binding() -> ModuleType:
    """Import and return the binding. Raises DeviceError, saying what to install, when it is missing or broken."""
    name = binding_name()
    module, install = _MODULES[name]
    try:
        return importlib.import_module(module)
    except (ImportError, OSError, RuntimeError) as error:
        raise DeviceError(
            f"WebGPU: cannot import {module!r} ({error}). Install it: {install}"
        ) from error


@contextmanager
def quiet_loader() -> Iterator[None]:
    """Give XDG_RUNTIME_DIR a value while drivers load: wgpu-native prints an error for each one when it has none."""
    old = os.environ.get("XDG_RUNTIME_DIR")
    if old and os.path.isdir(old):
        yield
        return
    os.environ["XDG_RUNTIME_DIR"] = tempfile.gettempdir()
    try:
        yield
    finally:
        if old is None:
            del os.environ["XDG_RUNTIME_DIR"]
        else:
            os.environ["XDG_RUNTIME_DIR"] = old


def adapters() -> list[AdapterInfo]:
    """Return the adapters of this machine, best first: hardware before software, Vulkan/Metal/D3D12 before OpenGL.

    Looked up once. Empty when there is no driver; raises DeviceError when the binding is missing.
    """
    global _FOUND
    with _LOCK:
        if _FOUND is None:
            _FOUND = _look_up()
        return list(_FOUND)


def unused(adapter: AdapterInfo) -> AdapterInfo:
    """Return an adapter as one that has given no device yet: each gives one, as WebGPU's `requestDevice` says. Raises
    DeviceError where it is there no more.
    """
    global _FOUND
    with _LOCK:
        if any(handle is adapter.handle for handle in _TAKEN):
            _FOUND = _look_up()
            if adapter.index >= len(_FOUND):
                raise DeviceError(
                    f"webgpu:{adapter.index}: {adapter.name} is not there any more: {len(_FOUND)} adapters are left. "
                    "See `webtorch doctor`, or use device 'cpu'"
                )
            adapter = _FOUND[adapter.index]
        _TAKEN.append(adapter.handle)
        return adapter


def _prepare_engine(module: ModuleType) -> None:
    """Switch on what Dawn hides: matrix units, and float16 on NVIDIA. Only before its first use."""
    if module.__name__ != "wgpudawn":
        return
    extras = importlib.import_module("wgpudawn.backends.dawn.extras")
    wanted = ("allow_unsafe_apis", "vulkan_enable_f16_on_nvidia")
    try:
        known = extras.all_toggles()
        extras.set_instance_extras(enable_toggles=[t for t in wanted if t in known])
    except RuntimeError:
        # Somebody else in this process has used Dawn before us: its instance stays as it is.
        return


def _parse_types_quickly(module: ModuleType) -> None:
    """Have cffi parse the name of a type with the header's names that are in it, not with all thousand.

    It reads every name again for every type, which took most of the time in which a device opened. What
    cffi keeps them in is its own affair: where another version has no such table, all is as it was.
    """
    package = "dawn" if module.__name__ == "wgpudawn" else "wgpu_native"
    try:
        ffi = importlib.import_module(f"{module.__name__}.backends.{package}._ffi").ffi
    except ImportError:
        return  # Whoever looks for adapters is told.
    parser: Any = getattr(ffi, "_parser", None)
    parse = getattr(parser, "parse_type", None)
    if parse is None or not isinstance(getattr(parser, "_declarations", None), dict):
        return

    def parse_type(text: str) -> Any:
        """Return the type that a text names. cffi calls this under its lock."""
        every = parser._declarations
        words = set(re.findall(r"\w+", text))
        # A declaration is called "typedef WGPUBool" or "struct WGPULimits".
        parser._declarations = {k: v for k, v in every.items() if k.rpartition(" ")[2] in words}
        try:
            return parse(text)
        finally:
            # A type that the header does not have is declared by being named.
            parser._declarations = {**every, **parser._declarations}

    parser.parse_type = parse_type


def _each_card(gpu: Any, module: ModuleType) -> list[Adapter]:
    """Return the adapters. Dawn's binding lists one of several cards of one kind, so its own list is asked for that."""
    listed: list[Adapter] = list(gpu.enumerate_adapters_sync())
    every = getattr(gpu, "_enumerate_all_adapters", None)
    if module.__name__ != "wgpudawn" or every is None:
        return listed
    extras = importlib.import_module("wgpudawn.backends.dawn.extras")
    # The binding leaves out interfaces that compute nothing.
    interfaces = {adapter.info["backend_type"] for adapter in listed}
    found: dict[object, Adapter] = {}
    for adapter in every():
        info = adapter.info
        if info["backend_type"] in interfaces:
            which = extras.get_adapter_properties(adapter)
            card = which.get("vulkan_uuids", which.get("d3d")) or info["device"]
            found.setdefault((info["backend_type"], info["device_id"], str(card)), adapter)
    return list(found.values())


def _handles() -> list[Adapter]:
    module = binding()
    if binding_name() == "browser":
        found: list[Adapter] = module.enumerate_adapters()
        return found
    _prepare_engine(module)
    with quiet_loader():
        try:
            # Loading the library gives the binding another `gpu`.
            gpu = module.gpu
            _parse_types_quickly(module)
            return _each_card(gpu, module)
        except RuntimeError:
            # wgpu-native raises when neither a Vulkan loader nor EGL exists.
            return []


def _look_up() -> list[AdapterInfo]:
    handles = _handles()

    def rank(handle: Adapter) -> tuple[bool, int, int]:
        """Return an adapter's place in the order of choice: hardware first, then the API, then the kind."""
        info = handle.info
        kind = info["adapter_type"]
        return kind == "CPU", _API_ORDER.get(info["backend_type"], 3), _TYPE_ORDER.get(kind, 2)

    found = []
    for index, handle in enumerate(sorted(handles, key=rank)):
        info = handle.info
        found.append(
            AdapterInfo(
                index=index,
                name=info["device"] or info["description"] or info["vendor"] or "unnamed adapter",
                backend_type=info["backend_type"],
                adapter_type=info["adapter_type"],
                vendor=info["vendor"],
                driver=info["description"],
                features=tuple(sorted(handle.features)),
                limits=dict(handle.limits),
                handle=handle,
            )
        )
    return found


def has_matrix_units(adapter: AdapterInfo, features: frozenset[str]) -> bool:
    """Return whether a device with `features` multiplies 16 x 16 x 16 fragments of float16 with
    float32 sums, in subgroups that are always 32 wide. Only Dawn can say so."""
    if "chromium-experimental-subgroup-matrix" not in features:
        return False
    extras = importlib.import_module(f"{binding().__name__}.backends.dawn.extras")
    found = extras.get_adapter_properties(adapter.handle).get("subgroup_matrix_configs") or ()
    wanted = {
        "component_type": "f16", "result_component_type": "f32", "m": 16, "n": 16, "k": 16,
        "min_subgroup_size": 32, "max_subgroup_size": 32,
    }  # fmt: skip
    return any(all(one.get(key) == value for key, value in wanted.items()) for one in found)


def subgroup_size(adapter: AdapterInfo, features: frozenset[str]) -> int:
    """Return how many invocations a subgroup of a device with `features` has; 0 where that varies. Only Dawn can say
    so."""
    if "subgroups" not in features or binding_name() != "dawn":
        return 0
    found = importlib.import_module(f"{binding().__name__}.backends.dawn._ffi")
    info, handle = found.ffi.new("WGPUAdapterInfo *"), cast("Any", adapter.handle)
    found.lib.wgpuAdapterGetInfo(handle._internal, info)
    least, most = int(info.subgroupMinSize), int(info.subgroupMaxSize)
    found.lib.wgpuAdapterInfoFreeMembers(info[0])
    return least if least == most else 0


def is_available() -> bool:
    """Return whether any adapter, hardware or software, can be used. Never raises for a missing binding."""
    try:
        return bool(adapters())
    except DeviceError:
        return False


def default_is_hardware() -> bool:
    """Return whether the best adapter is a GPU; only then is WebGPU the default device."""
    return is_available() and adapters()[0].is_hardware


def device_count() -> int:
    """Return how many devices "webgpu:0", "webgpu:1", ... there are: one for each adapter."""
    return len(adapters()) if is_available() else 0
