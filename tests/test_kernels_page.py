"""docs/kernels.md: its programs run in order and do what it says."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch

import webtorch
from tests.conftest import need_device

PAGE = Path(__file__).resolve().parents[1] / "docs" / "kernels.md"


def run(section: str, folder: Path) -> dict[str, Any]:
    """Run the blocks of a section, one after the other; return what they define."""
    text = next(
        part for part in PAGE.read_text(encoding="utf-8").split("\n## ") if part.startswith(section)
    )
    blocks = re.findall(r"```python\n(.*?)```", text, re.S)
    script = folder / "blocks.py"
    script.write_text("\n".join(blocks), encoding="utf-8")
    found: dict[str, Any] = {"__name__": "blocks"}
    exec(compile(script.read_text(encoding="utf-8"), str(script), "exec"), found)
    return found


def _steps(c: complex, most: int) -> int:
    z, n = 0j, 0
    while n < most and abs(z) <= 2:
        z, n = z * z + c, n + 1
    return n


def test_the_mandelbrot_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    need_device("webgpu")
    monkeypatch.chdir(tmp_path)
    counts = run("A whole shader", tmp_path)["counts"]
    assert counts.dtype is webtorch.int32
    expected = [
        [_steps(complex(-2.25 + x / 16, -1.5 + y / 16), 50) for x in range(64)] for y in range(48)
    ]
    assert counts.tolist() == expected


def test_formulas(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names = run("A formula", tmp_path)
    x, gate = (torch.tensor(names[n].tolist(), dtype=torch.float64) for n in ("x", "gate"))
    expected = gate * torch.sigmoid(1.5 * gate)
    assert names["x"].grad.tolist() == [pytest.approx(expected.tolist(), rel=1e-5)] * 3
    found = names["gated"](names["x"], names["gate"]).tolist()
    plain = (x * torch.nn.functional.silu(gate)).tolist()
    assert found == [pytest.approx(row, rel=1e-5) for row in plain]
    assert names["quantised"](names["steps"]).tolist() == [0.25, 2.0]
    assert names["steps"].grad.tolist() == [1.0, 0.0]
    silu = torch.nn.functional.silu(torch.tensor([-1.0, 2.0])).tolist()
    assert names["swish"](webtorch.tensor([-1.0, 2.0])).tolist() == pytest.approx(silu, rel=1e-5)
    word = webtorch.tensor([3], dtype=webtorch.uint32)
    assert names["mixed"](word).tolist() == [(3 ^ 7) * 2654435761 % 2**32]
