"""Every benchmark runs, in tiny sizes, and what it reports is made of measured times."""

from __future__ import annotations

import importlib
import json
import math
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

import webtorch
from benchmarks import harness
from benchmarks.harness import Row, compare, write
from tests.conftest import need_device

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture
def _adapter() -> None:
    need_device("webgpu")


CPU = ("recording", "chain", "rows", "matmul", "convolution", "train", "growth")


def _check(rows: list[Row]) -> None:
    assert rows
    for row in rows:
        assert "FAILED" not in row.note, row
        assert math.isfinite(row.ours) and 0 < row.ours <= row.ours_median, row
        if row.peer is not None:
            assert row.peer_median is not None
            assert 0 < row.peer <= row.peer_median, row


@pytest.mark.one_in(3)
@pytest.mark.parametrize("name", [*CPU, pytest.param("distributed", marks=pytest.mark.long)])
def test_cpu_benchmarks_run(name: str) -> None:
    rows = importlib.import_module(f"benchmarks.cpu.{name}").measure(True)
    _check(rows)
    assert all(row.peer is not None for row in rows)


@pytest.mark.parametrize(
    "name", ["mlp", *(pytest.param(n, marks=pytest.mark.long) for n in ("cnn", "gpt", "gpt-long"))]
)
def test_a_step_is_planned_within_what_pytorch_allocates(name: str) -> None:
    from benchmarks.cpu.memory import WORKS, our_peaks, torch_peak

    theirs, ours = torch_peak(WORKS[name]), our_peaks(WORKS[name])
    assert ours["gpu"] <= 1.2 * theirs
    if name != "gpt-long":
        # On the CPU products are faster than attention that keeps no scores.
        assert ours["cpu"] <= 1.2 * theirs


@pytest.mark.filterwarnings("ignore")  # PyTorch's about deprecated arguments
def test_every_operation_is_timed() -> None:
    from benchmarks.cpu import operations

    rows = operations.measure((256,), "a.s", seconds=0.0)
    _check(rows)
    assert {"a.sum()", "a.softmax(1)", "a.sort(1)"} <= {row.name for row in rows}
    # Both libraries compute the same.
    for name, ours, theirs in operations.works(256):
        if name.startswith(("a.sum", "F.layer", "a.softmax", "erf", "F.conv", "T.linalg.solve")):
            assert webtorch.allclose(ours(), webtorch.from_numpy(theirs().numpy()), 1e-3, 1e-4), (
                name
            )


def test_the_page_of_operations_says_what_was_measured() -> None:
    from benchmarks.cpu import operations

    def row(name: str, size: int, ours: float, peer: float) -> Row:
        return Row(name, ours, ours, peer, peer, figures={"size": size})

    rows = [
        row("a|b", 256, 60e-6, 2e-6),
        row("gcd", 1 << 24, 2.0, 0.1),
        row("F.relu(a)", 1 << 24, 1e-3, 4e-3),
        row("sum", 1 << 16, 12e-6, 2e-6),
        row("strange", 1 << 16, 6e-3, 1e-3),
    ]
    text = operations.page(
        rows, {"date": "today", "processors": 2, "system": "s", "python": "p", "load": 0.1}
    )
    assert "| 16 M | 2 | 2.24 | 1 |" in text
    assert f"| `gcd` | 16 M | 20.00 | {operations.REASONS['gcd', 'lcm']} |" in text
    assert f"| `sum` | 64 K | 6.00 | {operations.CALL} |" in text
    assert "| `strange` | 64 K | 6.00 |  |" in text
    assert "| `F.relu(a)` | " in text
    assert "| 1 ms | 4 ms | 0.25 |" in text
    # Small ones need no reason: they are all overhead.
    assert "`a\\|b` | 256" not in text
    assert "`a\\|b` | 60 us | 2 us | 30.00 |" in text


def test_what_is_slow_in_the_page_of_operations_has_a_reason() -> None:
    page = ROOT / "benchmarks" / "operations.md"
    if not page.exists():
        pytest.skip("not measured here: python -m benchmarks.cpu.operations --write")
    text = page.read_text(encoding="utf-8")
    means = re.findall(r"^\| (256|64 K|16 M) \| (\d+) \| [\d.]+ \| (\d+) \|$", text, flags=re.M)
    assert [m[0] for m in means] == ["256", "64 K", "16 M"]
    assert all(int(m[1]) > 250 for m in means)
    told = re.findall(r"^\| `(.+)` \| (64 K|16 M) \| ([\d.]+) \| (.*) \|$", text, flags=re.M)
    assert len(told) == sum(int(m[2]) for m in means[1:])
    assert [name for name, _, _, why in told if not why.strip()] == []


@pytest.mark.long
@pytest.mark.usefixtures("_adapter")
def test_gpu_kernels_run_and_agree_with_pytorch() -> None:
    from benchmarks.gpu import kernels

    _check(kernels.measure(True))


@pytest.mark.usefixtures("_adapter")
@pytest.mark.parametrize(
    "name", ["mlp", *(pytest.param(n, marks=pytest.mark.long) for n in ("cnn", "gpt"))]
)
def test_gpu_training_agrees_with_pytorch(name: str) -> None:
    from benchmarks.gpu import train

    rows, report = train.one(name, True)
    _check(rows)
    assert [row.name.rpartition(", ")[2] for row in rows] == ["lazy", "compiled"]
    assert all(row.figures["loss_difference"] <= train.AGREEMENT[name] for row in rows)
    assert "dispatches" in report


@pytest.mark.long
@pytest.mark.usefixtures("_adapter")
def test_replays_are_timed_by_their_parts() -> None:
    from benchmarks.gpu import replay

    rows = {row.name.partition("replays ")[2]: row for row in replay.measure(True, 20)}
    assert len(rows) == 6
    for when in ("in a row", "after waiting"):
        every = rows[f"{when}, in all"]
        for part in ("native library", "Python"):
            assert 0 < rows[f"{when}, {part}"].ours <= every.ours


@pytest.mark.long
@pytest.mark.usefixtures("_adapter")
@pytest.mark.parametrize("part", ["decode", "prefill", "vit"])
def test_pytorch_on_the_gpu_agrees_with_pytorch(part: str) -> None:
    from benchmarks.gpu import pytorch

    for row in pytorch.rows(True, (part,)):
        _check([row])
        assert "TOO MUCH" not in row.note
        assert part != "decode" or "8 of 8" in row.note


@pytest.mark.long
@pytest.mark.usefixtures("_adapter")
def test_tiles_are_checked_before_they_are_timed() -> None:
    from benchmarks.gpu import tiles

    rows = tiles.measure((64, 32, 64, "nt"), tiles.CANDIDATES[-2:])
    _check(rows)


def test_turns_are_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """Work that takes four times as long is reported so, by a clock that only the work moves."""
    now = [0.0]

    def work(seconds: float) -> None:
        now[0] += seconds

    clock = SimpleNamespace(perf_counter=lambda: now[0], sleep=work)
    monkeypatch.setattr(harness, "time", clock)
    row = compare("work", lambda: work(0.008), lambda: work(0.002), turns=3, seconds=0.004)
    assert row.ratio == pytest.approx(4) and row.median_ratio == pytest.approx(4)
    assert row.ours == pytest.approx(0.008)


def test_figures_are_written(tmp_path: Path) -> None:
    path = tmp_path / "figures.json"
    write(str(path), [Row("a", 1.0, 2.0, 0.5, 0.75)], about={"device": "none"})
    found = json.loads(path.read_text())
    assert found["rows"][0]["peer"] == 0.5
    assert found["about"] == {"device": "none"}
    assert found["machine"]["processors"] >= 1


def test_a_script_runs_from_the_command_line(tmp_path: Path) -> None:
    out = tmp_path / "figures.json"
    subprocess.run(
        [sys.executable, "-m", "benchmarks.cpu.matmul", "--quick", "--out", str(out)],
        cwd=ROOT,
        check=True,
        capture_output=True,
    )
    assert json.loads(out.read_text())["rows"][0]["name"] == "matmul 32"
