"""The runner of PyTorch's test files, on a file of its own."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.upstream import report, run

FILE = """
import os, sys
import torch
from torch._C import ScriptDict, _a_name_that_nobody_has
from torch.testing._internal.common_device_type import dtypes, instantiate_device_type_tests, onlyCPU
from torch.testing._internal.common_utils import TestCase, run_tests


class TestPlain(TestCase):
    def test_passes(self):
        self.assertEqual(torch.ones(2) + 1, torch.tensor([2.0, 2.0]))

    def test_fails(self):
        self.assertEqual(torch.ones(2), torch.zeros(2))

    def test_ends(self):
        os._exit(3)

    def test_uses_what_is_absent(self):
        ScriptDict()

    def test_knows_which(self):
        self.assertEqual(torch.__file__, "of PyTorch")


class TestEach(TestCase):
    @dtypes(torch.float32, torch.int64)
    def test_sum(self, device, dtype):
        x = torch.ones(3, device=device, dtype=dtype)
        self.assertEqual(x.sum().item(), 3)
        self.assertEqual(x.device.type, "webgpu")

    @onlyCPU
    def test_on_the_cpu(self, device):
        pass


instantiate_device_type_tests(TestEach, globals(), only_for=("cpu", "cuda"))
"""
PLAIN = ["passes", "fails", "ends", "knows_which"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    text = FILE.replace(", _a_name_that_nobody_has", "")
    (tmp_path / "test_real.py").write_text(text)
    (tmp_path / "test_ours.py").write_text(FILE)
    return tmp_path


def test_under_the_name(folder: Path) -> None:
    """Names that are absent fail the tests that use them, and a test that ends its process only itself."""
    names = [f"TestPlain.test_{n}" for n in (*PLAIN, "uses_what_is_absent")]
    found = run.ask("torch", folder, "test_ours.py", ["", *names], 1)
    assert len(found[""]["tests"]) == 8
    passes, fails, ends, which, absent = (found[n] for n in names)
    assert passes["outcome"] == "passed"
    assert "Tensor-likes are not close" in fails["message"]
    assert ends == {"outcome": "died", "message": "crash"}
    assert which["outcome"] == "failed"
    assert report.kind(absent) == "absent"
    assert [report.kind(r) for r in (passes, fails, ends)] == ["passed", "failed", "failed"]


def test_on_the_device(folder: Path) -> None:
    """Tests that are made for each device have the names that they have on the CPU."""
    names = [
        f"TestEachCPU.test_{n}" for n in ("sum_cpu_float32", "sum_cpu_int64", "on_the_cpu_cpu")
    ]
    found = run.ask("device", folder, "test_real.py", ["", *names], 1)
    assert sorted(found[""]["tests"]) == sorted(names)
    assert [report.kind(found[n]) for n in names] == ["passed", "passed", "skipped"]


def test_causes() -> None:
    """Failures that differ in numbers are of one kind; what is documented as absent is none."""
    failed = {"outcome": "failed", "message": "ShapeError: (2, 3) is not 4.5e-1"}
    other = {"outcome": "failed", "message": "ShapeError: (7, 8, 9) is not 1"}
    types = {
        "outcome": "failed",
        "message": "DTypeError: torch.float64 is not available: WebGPU has float32",
    }
    found = {"test_a": {"torch": {"A.x": failed, "A.y": other, "A.z": types}}}
    assert report.causes(found, "torch") == [
        ("ShapeError: (N) is not N", ["test_a:A.x", "test_a:A.y"])
    ]
    assert "0.0 %" in report.line("test_a", "torch", found["test_a"]["torch"])
    assert "failed 2, absent 1" in report.line("test_a", "torch", found["test_a"]["torch"])
