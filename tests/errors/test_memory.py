"""Out of memory, limits of an adapter, and a lost device, as users of tensors meet them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import webtorch
from tests.conftest import need_device
from tests.patience import PATIENCE
from webtorch.errors import OutOfMemoryError

ROOT = Path(__file__).resolve().parents[2]


def _python(source: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a program in a process of its own."""
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    return subprocess.run(
        [sys.executable, "-c", source],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": path, **environment},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )


@pytest.fixture(autouse=True)
def _webgpu() -> None:
    need_device("webgpu")


def test_out_of_memory_names_the_largest_tensors_and_leaves_everything_usable() -> None:
    done = _python(
        """
import webtorch as t
t.set_default_device("webgpu")
big, small = t.ones(1 << 20), t.arange(4.0)
t.synchronize()
try:
    t.zeros(3 << 20).add(1).tolist()
except t.errors.OutOfMemoryError as error:
    print(error)
print(small.tolist(), (small * 2).tolist(), big.sum().item() == 1 << 20)
del big
print(t.ones(3 << 18).sum().item() == 3 << 18)
""",
        WEBTORCH_MEMORY_LIMIT=str(12 << 20),
    )
    lines = done.stdout.splitlines()
    assert done.returncode == 0, done.stderr
    assert "WEBTORCH_MEMORY_LIMIT is 12 MiB" in lines[0]
    assert "Delete tensors or use a smaller batch" in lines[0]
    assert lines[1].split()[:3] == ["4", "MiB", "float32[1048576]"]
    assert lines[-2:] == ["[0.0, 1.0, 2.0, 3.0] [0.0, 2.0, 4.0, 6.0] True", "True"]


def test_after_the_device_is_destroyed_every_use_says_so() -> None:
    done = _python(
        """
import webtorch as t
t.set_default_device("webgpu")
x, c = t.ones(3), t.ones(2, device="cpu")
x.tolist()
x._storage.runtime.backend.destroy()
for use in (x.tolist, lambda: (x + 1).tolist(), lambda: t.zeros(2).tolist(), x.cpu, t.webgpu.synchronize,
            lambda: t.tensor([1.0]), lambda: repr(x)):
    try:
        use()
        print("nothing")
    except t.errors.DeviceLostError as error:
        print("was lost" in str(error))
print((c + 1).tolist())
"""
    )
    assert (done.returncode, done.stdout) == (0, "True\n" * 7 + "[2.0, 2.0]\n"), done


def test_above_the_binding_limit_operations_are_computed_in_parts() -> None:
    limit = webtorch.zeros(1, device="webgpu")._storage.runtime.backend.limits.max_binding_bytes
    if limit > 1 << 30:
        pytest.skip("needs an adapter with a binding limit of 1 GiB or less")
    n = limit // 4 + 4
    # What never reaches memory needs no binding.
    total = webtorch.ones(n, device="webgpu").sum()
    assert total.item() == n
    x = webtorch.ones(n, device="webgpu") * 2 + 1
    assert x[-2:].tolist() == [3.0, 3.0]
    assert x.sum().item() == pytest.approx(3.0 * n, rel=1e-6) and x.max().item() == 3.0


def test_more_elements_than_positions_are_refused() -> None:
    for count in (2**31 - 4, 2**36):
        with pytest.raises(OutOfMemoryError, match=f"{count} elements are more than a kernel on"):
            webtorch.ones(count, device="webgpu").sum().item()
