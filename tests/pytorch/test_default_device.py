"""torch.set_default_device("webgpu"): programs give what they give on the CPU, and none ends the process."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest
import torch

from tests.patience import PATIENCE
from tests.pytorch import default_device

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(scope="module")
def found(_adapter: None, request: pytest.FixtureRequest) -> dict[str, Any]:
    """What the programs return that are chosen in this run."""
    items = [i for i in request.session.items if isinstance(i, pytest.Function)]
    names = [i.callspec.params["name"] for i in items if i.obj is test_programs]
    done = subprocess.run(
        [sys.executable, "-m", "tests.pytorch.default_device", *names],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    assert done.returncode == 0, f"exit status {done.returncode} after {done.stderr[-2000:]}"
    results: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return results


def _near(got: Any, expected: Any) -> bool:
    if isinstance(expected, (list, tuple)):
        return len(got) == len(expected) and all(map(_near, got, expected))
    if isinstance(expected, float):
        return bool(abs(got - expected) <= 2e-4 * (1 + abs(expected)))
    return bool(got == expected)


@pytest.mark.one_in(3)
@pytest.mark.parametrize("name", default_device.PROGRAMS)
def test_programs(name: str, found: dict[str, Any]) -> None:
    got = found[name]
    assert not (isinstance(got, dict) and "error" in got), got["error"]
    torch._dynamo.reset()
    assert _near(got, default_device.PROGRAMS[name]())
