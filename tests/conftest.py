"""Fixtures that every test may use: devices, seeds, and the rule for devices that are missing."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Iterator
from types import SimpleNamespace

import pytest

import webtorch
from tests import profiles
from webtorch.aten.dispatch import dispatching
from webtorch.dispatch.call import active, count_out, looking
from webtorch.errors import DeviceError
from webtorch.runtime import kept
from webtorch.runtime.backends.cpu.memory import MEMORY
from webtorch.sparse.tensor import alive
from webtorch.tensors.device import resolve
from webtorch.tensors.override import override

pytest_plugins = ["tests.long", "tests.covers", "tests.browser"]
profiles.pretend()
# Processes that tests start would compile the sources again, each of them.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
IN_CI = os.environ.get("CI", "").lower() in ("1", "true")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Keep tests and imported modules out of every later search for garbage: tests search often."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def _missing(kind: str) -> str | None:
    """Return why a device cannot be used here, or None."""
    try:
        resolve(kind)
    except DeviceError as error:
        return str(error)
    return None


def need_device(kind: str) -> None:
    """Skip, visibly, when a device is missing; fail in CI, where every device must be there."""
    reason = _missing(kind)
    if reason is not None:
        if IN_CI:
            pytest.fail(f"CI needs the device {kind!r}: {reason}")
        pytest.skip(f"no device {kind!r}: {reason}")


@pytest.fixture(params=["cpu", "webgpu"])
def device(request: pytest.FixtureRequest) -> str:
    """Each device in turn."""
    need_device(request.param)
    return str(request.param)


@pytest.fixture(scope="session", autouse=True)
def _programs_are_compiled() -> Iterator[None]:
    """What a test compiles is not taken from disk; tests/engine/test_disk_cache.py tests that."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kept, "SMALLEST", 1 << 62)
        yield


@pytest.fixture(scope="session", autouse=True)
def _warnings_are_said_each_time() -> Iterator[None]:
    """Else what a test sees of them would depend on the tests that ran before it in its process."""
    webtorch.set_warn_always(True)
    yield
    webtorch.set_warn_always(False)


@pytest.fixture(scope="session", autouse=True)
def _nothing_is_written_down_that_no_test_reads() -> Iterator[None]:
    """PyTorch formats the stack at each `manual_seed`, for three kinds of device that are not there. Hypothesis
    reads every imported source for constants, so what it draws would depend on the files that run.
    """
    with pytest.MonkeyPatch.context() as patch:
        for name in ("torch.cuda", "torch.xpu", "torch.mtia"):
            if name in sys.modules:
                patch.setattr(sys.modules[name], "traceback", SimpleNamespace(format_stack=list))
        drawing = sys.modules.get("hypothesis.internal.conjecture.providers")
        if hasattr(drawing, "_get_local_constants"):
            patch.setattr(drawing, "_get_local_constants", drawing.Constants)
        yield


@pytest.fixture(scope="module", autouse=True)
def _files_leave_no_work_to_others(request: pytest.FixtureRequest) -> Iterator[None]:
    """What a file's tests leave free in the CPU's pool is not kept beside the next file's memory, what they leave in
    caches is not searched for garbage again, and no call looks for tensors of their classes.
    """
    yield
    MEMORY.release()
    gc.collect()
    gc.freeze()
    count_out()
    left = {type(i).__name__: i.tensors.count for i in (override, dispatching) if i.tensors.count}
    # Errors keep what they met.
    assert not left or request.session.testsfailed, (
        f"tensors whose classes are asked were left: {left}"
    )


def on() -> list[str]:
    """Return which interpreters this thread has on, for other reasons than that there are tensors of some class."""
    count_out()
    counted = [i.tensors.count for i in (override, dispatching)] + [alive.count]
    if active.count <= sum(counted) + (active.follower is not None) and not looking.count:
        return []
    return [f"{active.count} interpreters, {looking.count} others"]


@pytest.fixture(autouse=True)
def _default_state() -> Iterator[None]:
    """Every test starts from the CPU as default device and leaves the defaults as they were, and nobody who looks at
    calls, which would follow no script in other tests.
    """
    webtorch.set_default_device("cpu")
    yield
    assert not on(), f"left looking at calls: {on()}"
    webtorch.set_default_device("cpu")
    webtorch.set_default_dtype(webtorch.float32)
