"""The runners of PyTorch's test files and of others' suites, on files of their own."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.upstream import report, run, suites, worker

FILE = """
import os, sys, unittest
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

    def test_conj_is_a_view(self):
        self.assertTrue(torch.ones(2, dtype=torch.complex64).conj().is_conj())

    @unittest.expectedFailure
    def test_pytorch_fails_too(self):
        pass

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
MORE = ("conj_is_a_view", "pytorch_fails_too")


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
    assert len(found[""]["tests"]) == 10
    passes, fails, ends, which, absent = (found[n] for n in names)
    assert passes["outcome"] == "passed"
    assert "Tensor-likes are not close" in fails["message"]
    assert ends == {"outcome": "died", "message": "crash"}
    assert which["outcome"] == "failed"
    assert report.kind(absent) == "absent"
    more = run.ask("torch", folder, "test_ours.py", [f"TestPlain.test_{n}" for n in MORE], 1)
    assert [report.kind(more[f"TestPlain.test_{n}"]) for n in MORE] == ["absent", "skipped"]
    assert [report.kind(r) for r in (passes, fails, ends)] == ["passed", "failed", "failed"]


def test_on_the_device(folder: Path) -> None:
    """Tests that are made for each device have the names that they have on the CPU."""
    names = [
        f"TestEachCPU.test_{n}" for n in ("sum_cpu_float32", "sum_cpu_int64", "on_the_cpu_cpu")
    ]
    found = run.ask("device", folder, "test_real.py", ["", *names], 1)
    assert sorted(found[""]["tests"]) == sorted(names)
    assert [report.kind(found[n]) for n in names] == ["passed", "passed", "skipped"]


BY_DEFAULT = """
import numpy
import torch
from torch.testing._internal.common_utils import TestCase


class TestPlain(TestCase):
    def test_sum(self):
        x = torch.ones(3)
        self.assertEqual(x.device.type, "webgpu")
        self.assertEqual(numpy.add(x, x.numpy()).sum(), 6)
"""


def test_by_default_on_the_device(tmp_path: Path) -> None:
    """Tests of a file that makes none for each device make their tensors there."""
    (tmp_path / "test_plain.py").write_text(BY_DEFAULT)
    found = run.ask("device", tmp_path, "test_plain.py", ["", "TestPlain.test_sum"], 1)
    assert found[""]["tests"] == ["TestPlain.test_sum"]
    assert found["TestPlain.test_sum"]["outcome"] == "passed"


def test_sample() -> None:
    """Every so many tests, or as many drawn by chance: the same with the same seed."""
    tests = list(range(100))
    assert worker.sample(tests, 30, None) == [0, 30, 60, 90]
    drawn = worker.sample(tests, 30, 1)
    assert drawn == worker.sample(tests, 30, 1) != worker.sample(tests, 30, 2)
    assert len({*drawn}) == 4 and [*drawn] == sorted(drawn)


SUITE = """
import os
import pytest
import torch


@pytest.mark.parametrize("n", [0, 1])
def test_sum(n):
    assert torch.ones(3).sum() == 3


def test_which():
    assert "webtorch" not in torch.__file__


def test_ends():
    os._exit(3)


def test_missing():
    pytest.importorskip("a_package_that_nobody_has")
"""


@pytest.mark.parametrize("way", ["pytorch", "torch"])
def test_suite_of_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str) -> None:
    """All tests or a few run with pytest, also behind one that ends its process, and what is known runs no more."""
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "__init__.py").write_text("")
    (tmp_path / "tests" / "test_it.py").write_text(SUITE)
    monkeypatch.setattr(suites, "CACHE", tmp_path / "cache")
    monkeypatch.setitem(suites.SUITES, "it", suites.Suite("torch", ["tests"]))
    names = [f"tests/test_it.py::test_{n}" for n in ("sum[0]", "which", "ends", "missing")]
    found = suites.run("it", tmp_path, way, only=names)
    which = "passed" if way == "pytorch" else "failed"
    assert [found[n]["outcome"] for n in names] == ["passed", which, "died", "skipped"]
    started = (tmp_path / "cache" / way / "it.log").stat().st_mtime_ns
    assert suites.run("it", tmp_path, way, only=names) == found
    assert (tmp_path / "cache" / way / "it.log").stat().st_mtime_ns == started
    (tmp_path / "cache" / way / "it.json").unlink()
    assert [n[23:] for n in suites.run("it", tmp_path, way, every=2)] == [
        "sum[0]",
        "which",
        "missing",
    ]


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


def test_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows of which nothing is kept stay, or fewer tests than they have; the last row is the sum of those written."""
    page = tmp_path / "upstream.md"
    old = (
        "| `test_b` | 9 of 10 | 90.0 % | 2 | 0 of 1 | 0.0 % | - |\n"
        "| `test_c` | - | - | - | 1 of 2 | 50.0 % | - |\n"
        "| all | 1 of 1 | 100.0 % | - | - | - | 7 |\n"
    )
    page.write_text(f"before\n\n{report.TABLE}{old}\n## After\n")
    monkeypatch.setattr(report, "PAGE", page)
    results = {"x": {"outcome": "passed"}, "y": {"outcome": "failed", "message": "ValueError: 1"}}
    sample = {"torch": {"x": results["x"]}}
    report.write({"test_a": {"torch": results}, "test_b": sample, "test_c": sample})
    rows = [
        "| `test_a` | - | - | - | 1 of 2 | 50.0 % | - |",
        "| `test_b` | 9 of 10 | 90.0 % | 2 | 1 of 1 | 100.0 % | - |",
        "| `test_c` | - | - | - | 1 of 2 | 50.0 % | - |",
        "| all | 9 of 10 | 90.0 % | 2 | 3 of 5 | 60.0 % | - |",
    ]
    assert page.read_text() == "\n".join(
        [f"before\n\n{report.TABLE}{rows[0]}", *rows[1:], "\n## After\n"]
    )
