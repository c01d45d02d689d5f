"""What the tests of the WebGPU backend share: the device, small programs, and processes of their own."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest

from tests.patience import PATIENCE
from tests.webgpu.support import ROOT, Pass, missing
from webtorch.ir.kernel import Kernel
from webtorch.ir.limits import Limits
from webtorch.runtime.backends import webgpu
from webtorch.runtime.backends.webgpu import WebGPUBackend


@pytest.fixture(scope="session")
def shared_device() -> WebGPUBackend:
    if not webgpu.is_available():
        missing("no WebGPU adapter: install mesa-vulkan-drivers")
    return webgpu.open_backend(0)


@pytest.fixture
def device(shared_device: WebGPUBackend) -> Iterator[WebGPUBackend]:
    """The device; a test that leaves memory behind fails."""
    gc.collect()  # what other tests left must not go while this one counts
    before = shared_device.memory_allocated()
    yield shared_device
    shared_device.pool.limit = None
    assert shared_device.memory_allocated() <= before + 4096, "a test left buffers behind"


@pytest.fixture
def with_source(shared_device: WebGPUBackend) -> Iterator[Callable[..., WebGPUBackend]]:
    """Give the device hand-written passes by kernel name, for this test."""
    renderer, rendered = shared_device._renderer, shared_device._rendered.copy()

    def install(**passes: Pass | list[Pass]) -> WebGPUBackend:
        def render(routine: Kernel, _limits: Limits, _engine: str) -> list[Pass]:
            found = passes[routine.name]
            return found if isinstance(found, list) else [found]

        shared_device._rendered.clear()
        shared_device._renderer = render
        return shared_device

    yield install
    shared_device._renderer = renderer
    shared_device._rendered.clear()
    shared_device._rendered.update(rendered)


@pytest.fixture(scope="session")
def in_process(shared_device: WebGPUBackend) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Run Python source in a process of its own, with a device `b` and a buffer `x` of 4 floats at hand."""
    prelude = """
from tests.webgpu.support import scale_program
from webtorch.errors import *
from webtorch.ir.dtype import float32
from webtorch.runtime.backends import get_backend
b = get_backend("webgpu", 0)
x = b.upload(bytes(16), float32, 4)
exe = b.compile(scale_program(4))
"""

    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))

    def run(body: str, **environment: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-c", prelude + body],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": path, **environment},
            capture_output=True,
            text=True,
            timeout=PATIENCE,
        )

    return run
