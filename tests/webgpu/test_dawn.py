"""The backend on the second engine, Dawn, in a process of its own: the same tests, on SwiftShader where no GPU is."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.patience import PATIENCE
from tests.webgpu.support import ROOT, missing

_FILES = (
    "test_transfer.py",
    "test_programs.py",
    "test_async.py",
    "test_failure.py",
    "test_staging.py",
)


def _swiftshader() -> str | None:
    """Return the driver manifest of the SwiftShader that comes with Chromium."""
    places = [Path("/usr/lib/chromium"), Path("/usr/lib/chromium-browser")]
    found = shutil.which("chromium")
    if found:
        places.append(Path(found).resolve().parent)
    for place in places:
        manifest = place / "vk_swiftshader_icd.json"
        if manifest.is_file():
            return str(manifest)
    return None


@pytest.mark.long
@pytest.mark.skipif(os.environ.get("WEBTORCH_WEBGPU") == "dawn", reason="this is the Dawn run")
def test_the_backend_s_tests_pass_on_dawn():
    if importlib.util.find_spec("wgpudawn") is None:
        missing("wgpudawn is not installed: pip install 'webtorch[dawn]'")
    manifest = _swiftshader()
    if manifest is None:
        missing("SwiftShader is missing: it comes with Debian's chromium package")
    files = [f"tests/webgpu/{name}" for name in _FILES]
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-o",
            "cache_dir=.cache/pytest-dawn",
            "-W",
            "default",
            *files,
        ],
        cwd=ROOT,
        env={**os.environ, "WEBTORCH_WEBGPU": "dawn", "VK_ICD_FILENAMES": manifest},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    assert " passed" in done.stdout
