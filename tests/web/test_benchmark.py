"""The benchmark page runs headless and reports what it measured."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from benchmarks.web import all as web
from webtorch.web.browsers import find


@pytest.mark.covers("Q8", "Q9")
@pytest.mark.skipif(find("chromium") is None, reason="Chromium is not installed")
@pytest.mark.parametrize("device", [pytest.param("webgpu", marks=pytest.mark.long), "cpu"])
def test_the_page_times_both_works(
    device: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "figures.json"
    given = ["--quick", "--device", device, "--models", "digits", "--libraries", "webtorch"]
    assert web.main([*given, "--out", str(out)]) == 0
    found = json.loads(out.read_text(encoding="utf-8"))
    assert found["problems"] == {}
    assert [(row["name"], row["kind"]) for row in found["rows"]] == [
        ("digits", "infer"),
        ("digits", "train"),
    ]
    for row in found["rows"]:
        (mean,) = row["times"]["webtorch"]
        assert 0 < row["best"]["webtorch"] <= mean < math.inf
    losses = found["firstLosses"]["digits webtorch"]
    assert losses[2] < losses[0]
    for took in found["first"].values():
        assert 0 < took["ready"] < took["first"]
    assert "| digits | train |" in capsys.readouterr().out
