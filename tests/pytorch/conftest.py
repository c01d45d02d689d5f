"""Tests of the PyTorch face: real PyTorch on "webgpu", compared with PyTorch on the CPU."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator

import pytest
import torch

import webtorch.pytorch  # noqa: F401  (where PyTorch's autoloading is off)
from tests.conftest import need_device
from tests.pytorch import processes
from webtorch.pytorch import device as bridge


@pytest.fixture(scope="session")
def _adapter() -> None:
    if not os.environ.get("WEBTORCH_PYTORCH_ENGINE"):
        need_device("webgpu")


@pytest.fixture(scope="session", autouse=True)
def _processes_end() -> Iterator[None]:
    yield
    processes.end()


@pytest.fixture
def webgpu(_adapter: None) -> str:
    """The device's name; the test is skipped, visibly, where there is no adapter, and fails in CI."""
    return "webgpu"


@pytest.fixture
def float64_is() -> Iterator[Callable[[str], None]]:
    """Call it with what WEBTORCH_FLOAT64 is to say."""
    with pytest.MonkeyPatch.context() as patch:

        def say(what: str) -> None:
            patch.setenv("WEBTORCH_FLOAT64", what)
            bridge.read_option()

        yield say
    bridge.read_option()


@pytest.fixture(autouse=True)
def _torch_state() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    yield
    torch.set_num_threads(threads)
