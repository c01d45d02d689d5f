"""docs/from-pytorch.md: its programs run in order and do what it says; its links lead somewhere."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch

import webtorch

PAGE = Path(__file__).resolve().parents[1] / "docs" / "from-pytorch.md"
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.S)


@pytest.fixture
def names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What the blocks define, run one after the other in an empty folder."""
    monkeypatch.chdir(tmp_path)
    # Captured functions are looked up where they were written.
    script = tmp_path / "blocks.py"
    script.write_text("\n".join(BLOCKS), encoding="utf-8")
    found: dict[str, Any] = {"__name__": "blocks"}
    webtorch.manual_seed(0)
    exec(compile(script.read_text(encoding="utf-8"), str(script), "exec"), found)
    return found


@pytest.mark.covers("T13")
def test_the_cheat_sheets_programs_run(names: dict[str, Any], tmp_path: Path) -> None:
    assert len(BLOCKS) == 4
    x = torch.linspace(-3, 3, 7, requires_grad=True)
    torch.nn.functional.gelu(x).sum().backward()
    assert x.grad is not None
    assert names["x"].grad.tolist() == pytest.approx(x.grad.tolist(), abs=1e-6)
    assert names["losses"][-1] < 0.8 * names["losses"][0]
    assert (tmp_path / "site" / "index.html").exists()
    assert (tmp_path / "weights.pt").exists()


@pytest.mark.covers("P10")
def test_an_operation_and_its_gradient_are_drawn(names: dict[str, Any], tmp_path: Path) -> None:
    text = (tmp_path / "gelu.svg").read_text(encoding="utf-8")
    assert text.lstrip().startswith("<svg")
    assert "gelu" in text and "its gradient" in text
    # Seven points of each curve, in order from left to right; gelu is lowest near -1.
    lines = [
        [tuple(map(float, pair.split(","))) for pair in re.findall(r"-?[\d.]+,-?[\d.]+", points)]
        for points in re.findall(r'points="([^"]+)"', text)
    ]
    if not lines:
        lines = [
            [(float(a), float(b)) for a, b in re.findall(r"[ML]\s*(-?[\d.]+)[ ,](-?[\d.]+)", d)]
            for d in re.findall(r'<path[^>]* d="([^"]+)"', text)
        ]
    curves = [line for line in lines if len(line) == 7]
    assert len(curves) == 2, text[:2000]
    for curve in curves:
        assert [p[0] for p in curve] == sorted(p[0] for p in curve)
    heights = [-p[1] for p in curves[0]]
    values = webtorch.nn.functional.gelu(webtorch.linspace(-3, 3, 7)).tolist()
    order = sorted(range(7), key=values.__getitem__)
    assert sorted(range(7), key=heights.__getitem__) == order


def test_its_links_exist() -> None:
    for target in re.findall(r"\]\(([\w.-]+)\)", PAGE.read_text(encoding="utf-8")):
        assert (PAGE.parent / target).exists(), target
