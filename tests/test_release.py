"""A release: one number, the npm package of the pages' runtime, workflows that run what is in the Makefile."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tools import release
from webtorch.version import PACKAGE

ROOT = Path(__file__).resolve().parents[1]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))


def test_the_number_stands_in_one_place(capsys: pytest.CaptureFixture[str]) -> None:
    assert release.version() == PACKAGE
    assert f'"{PACKAGE}"' not in (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    assert release.main(["--tag", "v999.0"]) == 1
    assert "all three must agree" in capsys.readouterr().err
    assert release.changes("Unreleased").startswith("### ")


def test_the_npm_package_has_what_its_description_names(tmp_path: Path) -> None:
    release.write_npm(tmp_path)
    package = json.loads((tmp_path / "package.json").read_text(encoding="utf-8"))
    assert package["version"] == PACKAGE
    named = [package["main"], package["types"], package["exports"]["./cpu"]]
    named += [*package["exports"]["."].values(), *package["files"]]
    assert all((tmp_path / name).is_file() for name in named)
    node = shutil.which("node")
    if node is None:
        pytest.skip("no node")
    # As a program of another folder sees it.
    place = tmp_path / "node_modules" / "webtorch"
    release.write_npm(place)
    script = 'import("webtorch").then(m => console.log(typeof m.load, typeof m.openCpu))'
    done = subprocess.run([node, "-e", script], cwd=tmp_path, capture_output=True, text=True)
    assert done.stdout.split() == ["function", "function"], done.stderr


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_a_workflow_runs_what_there_is(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for target in re.findall(r"\bmake ([a-z-]+)", text):
        assert re.search(rf"^([a-z -]+ )?{target}( [a-z -]+)?:", makefile, re.M), target
    for place in re.findall(r"\b(?:tests|tools)/[\w/.]*\w", text):
        assert (ROOT / place).exists(), place
    for module in re.findall(r"python -m (tools\.\w+)", text):
        assert (ROOT / f"{module.replace('.', '/')}.py").is_file(), module
