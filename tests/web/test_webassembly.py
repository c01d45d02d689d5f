"""Kernels as WebAssembly in Pyodide, under Node.js: the same results as plain Python's, to the bit."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.browser import IN_CI
from tests.patience import PATIENCE
from webtorch.web.playground import PyodideMissingError, find_pyodide

HERE = Path(__file__).parent


def test_webassembly_computes_what_plain_python_does() -> None:
    node = shutil.which("node")
    try:
        pyodide = find_pyodide()
    except PyodideMissingError as error:
        if IN_CI and shutil.which("npm"):
            pytest.fail(f"CI needs Pyodide: {error}")
        pytest.skip(str(error))
    if node is None:
        pytest.skip("Node.js is not here")
    command = [node, HERE / "pyodide.mjs", pyodide, HERE.parents[1], HERE / "twice.py"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert not found["different"], "\n".join(found["different"][:3])
    assert found["compared"] > 700
    assert found["far"] < 1e-6
    assert "index 5 is out of bounds" in found["error"]
    assert found["description"] == "WebAssembly (one thread)"
    assert found["counts"]["plain"] == 0
    assert found["counts"]["webassembly"] > 300
