"""Adapters and bindings: order, errors that say what to install, nothing opened at import."""

from __future__ import annotations

import os
import subprocess
import sys
import types

import cffi
import pytest

from tests.patience import PATIENCE
from tests.webgpu.support import ROOT
from webtorch.errors import DeviceError
from webtorch.runtime.backends import get_backend, webgpu
from webtorch.runtime.backends.webgpu import adapter as module
from webtorch.runtime.backends.webgpu.device import WebGPUBackend


@pytest.mark.covers("N15")
def test_adapters_are_listed_hardware_first_and_opengl_last_of_its_kind(shared_device):
    found = webgpu.adapters()
    assert [a.index for a in found] == list(range(len(found)))
    keys = [(not a.is_hardware, a.backend_type in ("OpenGL", "OpenGLES")) for a in found]
    assert keys == sorted(keys)
    for adapter in found:
        assert adapter.name and adapter.backend_type
        assert adapter.limits["max-storage-buffer-binding-size"] >= 1 << 27


def test_types_of_the_header_are_what_they_are_without_the_rest_of_it(shared_device):
    ffi = shared_device.native.ffi
    known = len(ffi._parser._declarations)
    assert ffi.typeof("struct WGPUOrigin3D *").item is ffi.typeof("WGPUOrigin3D")
    assert ffi.typeof("WGPUOrigin3D[2]").item is ffi.typeof("WGPUOrigin3D const")
    assert ffi.typeof("WGPUBool(*)(WGPUDevice, uint32_t)").args[0] is ffi.typeof("WGPUDevice")
    assert [name for name, _ in ffi.typeof("WGPUOrigin3D").fields] == ["x", "y", "z"]
    assert len(ffi._parser._declarations) == known
    with pytest.raises(cffi.CDefError, match="WGPUNothing"):
        ffi.typeof("WGPUNothing *")
    # What the header does not know is declared by being named, once.
    assert ffi.typeof("struct WGPUNothing *").item is ffi.typeof("struct WGPUNothing")


class _Handle:
    def __init__(self, device, api, kind):
        self.info = {
            "device": device, "description": "", "vendor": "", "backend_type": api, "adapter_type": kind,
        }  # fmt: skip
        self.features, self.limits = set(), {}


def test_order_of_many_adapters(monkeypatch):
    handles = [
        _Handle("soft", "Vulkan", "CPU"),
        _Handle("big", "OpenGL", "DiscreteGPU"),
        _Handle("small", "Vulkan", "IntegratedGPU"),
        _Handle("big", "Vulkan", "DiscreteGPU"),
    ]

    class Gpu:
        gpu = type("G", (), {"enumerate_adapters_sync": staticmethod(lambda: handles)})

    monkeypatch.setattr(module, "binding", lambda: Gpu)
    monkeypatch.setattr(module, "_prepare_engine", lambda _: None)
    order = [(a.name, a.backend_type) for a in module._look_up()]
    assert order == [("big", "Vulkan"), ("small", "Vulkan"), ("big", "OpenGL"), ("soft", "Vulkan")]


def test_a_missing_device_number_names_those_that_exist(shared_device):
    with pytest.raises(DeviceError, match=r"webgpu:99: there is no such device; webgpu:0 is "):
        get_backend("webgpu", 99)


def test_an_unknown_kind_of_device_is_refused():
    with pytest.raises(DeviceError, match=r"'cuda'.*'cpu', 'webgpu'"):
        get_backend("cuda")


def test_backends_are_opened_once(shared_device):
    assert get_backend("webgpu", 0) is get_backend("webgpu", 0)
    assert isinstance(get_backend("webgpu", 0), WebGPUBackend)


def test_an_unknown_binding_is_refused(monkeypatch):
    monkeypatch.setenv("WEBTORCH_WEBGPU", "metal")
    with pytest.raises(DeviceError, match=r"WEBTORCH_WEBGPU='metal'.*'wgpu' and 'dawn'"):
        module.binding()


def test_a_missing_binding_says_what_to_install(monkeypatch):
    monkeypatch.delenv("WEBTORCH_WEBGPU", raising=False)
    monkeypatch.setitem(sys.modules, "wgpu", None)
    with pytest.raises(DeviceError, match='pip install "wgpu'):
        module.binding()


def test_without_the_binding_new_tensors_are_on_the_cpu_and_a_warning_says_why():
    code = """
import sys, warnings
sys.modules["wgpu"] = None
import webtorch
with warnings.catch_warnings(record=True) as heard:
    warnings.simplefilter("always")
    assert (webtorch.ones(2) + 1).tolist() == [2, 2] and webtorch.ones(1).device.type == "cpu"
(told,) = heard
assert told.category is RuntimeWarning, told
assert 'pip install "wgpu' in str(told.message) and "on the CPU" in str(told.message)
try:
    webtorch.ones(2, device="webgpu")
except webtorch.errors.DeviceError as error:
    assert 'pip install "wgpu' in str(error)
else:
    raise AssertionError("there is no device")
"""
    env = {k: v for k, v in os.environ.items() if k not in ("WEBTORCH_DEVICE", "WEBTORCH_WEBGPU")}
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=env, check=True, timeout=PATIENCE)


def test_importing_the_backend_imports_no_binding_and_opens_nothing():
    code = """
import sys
import types
import webtorch.runtime.backends.webgpu
bad = {"wgpu", "wgpudawn", "numpy", "torch"} & set(sys.modules)
assert not bad, bad
"""
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True, timeout=PATIENCE)


def test_opening_a_device_prints_nothing(in_process):
    done = in_process("", XDG_RUNTIME_DIR="")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.covers("P7", "Q5")
def test_without_a_driver_there_is_no_device_and_the_error_says_what_to_install():
    # Neither a Vulkan driver nor EGL: what a machine without graphics looks like to the binding.
    code = """
from unittest import mock
from webtorch.errors import DeviceError
from webtorch.runtime.backends import available, get_backend, webgpu
import wgpu
def nothing(): raise RuntimeError("no vulkan, no gl")
with mock.patch.object(wgpu.gpu, "enumerate_adapters_sync", nothing, create=True):
    assert webgpu.adapters() == [] and not webgpu.is_available() and webgpu.device_count() == 0
    assert available() == ("cpu",) and not webgpu.default_is_hardware()
    try:
        get_backend("webgpu", 0)
    except DeviceError as error:
        assert "mesa-vulkan-drivers" in str(error)
    else:
        raise SystemExit("no error")
"""
    env = {"WEBTORCH_WEBGPU": "wgpu", "PATH": "/usr/bin:/bin"}
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=env, check=True, timeout=PATIENCE)


def test_each_of_several_cards_of_one_kind_is_an_adapter(monkeypatch: pytest.MonkeyPatch) -> None:
    """Dawn's binding lists the first of them only."""
    extras = types.ModuleType("extras")
    monkeypatch.setitem(sys.modules, "wgpudawn.backends.dawn.extras", extras)

    def card(uuid: bytes, interface: str = "Vulkan") -> types.SimpleNamespace:
        info = {"backend_type": interface, "device_id": 7, "device": "H100"}
        return types.SimpleNamespace(info=info, which={"vulkan_uuids": {"device_uuid": uuid}})

    extras.get_adapter_properties = lambda adapter: adapter.which  # type: ignore[attr-defined]
    every = [card(b"a"), card(b"b"), card(b"a"), card(b"a", "Null")]
    gpu = types.SimpleNamespace(
        enumerate_adapters_sync=lambda: every[:1], _enumerate_all_adapters=lambda: every
    )
    assert module._each_card(gpu, types.ModuleType("wgpudawn")) == every[:2]
    assert module._each_card(gpu, types.ModuleType("wgpu")) == every[:1]


def test_a_card_that_has_gone_meanwhile_is_named(
    shared_device: WebGPUBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = webgpu.adapters()[0]
    monkeypatch.setattr(module, "_TAKEN", [first.handle])
    monkeypatch.setattr(module, "_look_up", list)
    monkeypatch.setattr(module, "_FOUND", [first])
    with pytest.raises(
        DeviceError, match=r"webgpu:0: .* is not there any more: 0 adapters are left"
    ):
        module.unused(first)
