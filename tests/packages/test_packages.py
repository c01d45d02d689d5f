"""Small packages of other people compute under `webtorch run` what they compute with PyTorch."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

import pytest

from tests.packages.run import PROGRAMS, TOLERANCE, WHAT, call, differences, results


@pytest.mark.parametrize("program", ["einops_some", "lion"])
def test_package_computes_what_it_computes_with_pytorch(
    program: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:  # fmt: skip
    weights = str(tmp_path / "weights")
    monkeypatch.setattr(sys, "argv", [program, weights])
    monkeypatch.syspath_prepend(str(PROGRAMS))
    monkeypatch.delitem(sys.modules, "common", raising=False)
    runpy.run_path(str(PROGRAMS / f"{program}.py"))
    sys.modules.pop("common")
    wanted = results(capsys.readouterr().out)
    done = call(program, weights, "-m", "webtorch", "run")
    assert done.returncode == 0, done.stderr
    assert differences(results(done.stdout), wanted, TOLERANCE) == []


def test_every_program_is_described() -> None:
    assert sorted(WHAT) == sorted(p.stem for p in PROGRAMS.glob("*.py") if p.stem != "common")
