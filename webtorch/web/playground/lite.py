"""JupyterLite with this very webtorch in its kernel, as a static folder. Floor 6.

What it is made of are packages: `jupyterlite-core` and `jupyterlite-pyodide-kernel` (the extra `webtorch[lite]`),
the npm package `pyodide`, and wheels of pure Python that the kernel imports (IPython and what that needs), which
pip puts into the cache once. All lie in the folder; the lock file that Pyodide reads names
these wheels and webtorch's alone, so that a cell's `import torch` means webtorch and nothing is fetched
from elsewhere.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import Any

from webtorch.errors import WebtorchError
from webtorch.runtime.disk import root
from webtorch.web.playground import HERE, build_wheel, find_pyodide

# What the kernel imports, by the names of Pyodide's lock file, which knows what they need in turn.
_IMPORTED = ("micropip", "ipython", "jedi")
# Wheels that the kernel's package brings, and one that neither has.
_BROUGHT = {"piplite": ["micropip"], "ipykernel": [], "pyodide-kernel": ["ipython", "comm"]}
_COMM = "comm==0.2.3"
_KERNEL = "@jupyterlite/pyodide-kernel-extension:kernel"
_EXTENSION = "share/jupyter/labextensions/@jupyterlite/pyodide-kernel-extension/static/pypi"
# A package that hands its name over, so that `import torch` in a cell means webtorch.
_TORCH = '''"""webtorch under PyTorch's name."""

import importlib
import sys

from webtorch.as_torch import install_as_torch

del sys.modules[__name__]
install_as_torch()
importlib.import_module(__name__)
'''
_Entry = dict[str, Any]


class LiteMissingError(WebtorchError):
    """A package that the site is made of is not installed, or could not be fetched."""


def build_lite(path: str | Path, *, pyodide: str | Path | None = None) -> Path:
    """Write JupyterLite with webtorch to the folder `path` and return it. `webtorch serve DIR` shows it.

    `pyodide` is the folder of the npm package, as for `build_playground`. Raises LiteMissingError, with the command to
    install it, where a package is missing.
    """
    path = Path(path).resolve()
    extension = _extension()
    source = find_pyodide(pyodide)
    with tempfile.TemporaryDirectory() as name:
        work = Path(name)
        place = work / "static" / "pyodide"
        place.mkdir(parents=True)
        for file in source.iterdir():
            if file.suffix in (".mjs", ".wasm", ".zip") or file.name == "package.json":
                shutil.copyfile(file, place / file.name)
        lock = json.loads((source / "pyodide-lock.json").read_text(encoding="utf-8"))
        lock["packages"] = _packages(place, lock["packages"], extension)
        (place / "pyodide-lock.json").write_text(json.dumps(lock), encoding="utf-8")
        # Where JupyterLite finds Pyodide here, it copies it and points its kernel to it.
        # The kernel loads all at once: of a cell with a magic (`%time`) Pyodide does not see what it imports.
        settings = {_KERNEL: {"loadPyodideOptions": {"packages": sorted(lock["packages"])}}}
        config = {"jupyter-config-data": {"appName": "webtorch", "litePluginSettings": settings}}
        (work / "jupyter-lite.json").write_text(
            json.dumps({"jupyter-lite-schema-version": 0, **config}), encoding="utf-8"
        )
        contents = work / "contents"
        contents.mkdir()
        notebook = (HERE / "examples" / "basics.py.txt").read_text(encoding="utf-8")
        (contents / "first steps.ipynb").write_text(_notebook(notebook), encoding="utf-8")
        command = [sys.executable, "-m", "jupyterlite_core", "build", "--contents", str(contents)]
        command += ["--lite-dir", str(work), "--output-dir", str(path), "--no-sourcemaps"]
        done = subprocess.run(command, capture_output=True, text=True, cwd=work, check=False)
        if done.returncode or not (path / "lab" / "index.html").is_file():
            raise LiteMissingError(
                f"lite: jupyter lite build failed: {done.stderr.strip()[-2000:]}"
            )
    return path


def _extension() -> Path:
    """Return where the kernel's package keeps its wheels."""
    names = ("jupyterlite-core", "jupyter-server", "jupyterlite-pyodide-kernel")
    advice = f"pip install {' '.join(names)}"
    for name in names:
        try:
            kernel = importlib.metadata.distribution(name)  # the last of them
        except importlib.metadata.PackageNotFoundError:
            raise LiteMissingError(f"lite: the package {name} is not installed: {advice}") from None
    for file in kernel.files or ():
        place = Path(str(kernel.locate_file(file))).resolve().parent
        # pip's --target puts data elsewhere than the package says.
        if file.as_posix().endswith(f"{_EXTENSION}/all.json") and place.is_dir():
            return place
    raise LiteMissingError(f"lite: jupyterlite-pyodide-kernel lacks {_EXTENSION}: {advice}")


def _packages(place: Path, known: dict[str, _Entry], extension: Path) -> dict[str, _Entry]:
    """Copy the wheels that the kernel needs beside Pyodide and return their entries of its lock file."""
    names: list[str] = []
    wanted = list(_IMPORTED)
    while wanted:
        name = wanted.pop().replace("_", "-")
        if name not in names:
            names.append(name)
            wanted += known[name]["depends"]
    out = {name: {**known[name]} for name in names}
    wheels = _wheels([*(f"{name}=={known[name]['version']}" for name in sorted(names)), _COMM])
    out["comm"] = _entry("comm", ["comm"], [])
    for name, needs in _BROUGHT.items():
        wheels[name] = next(extension.glob(f"{name.replace('-', '_')}-*.whl"))
        out[name] = _entry(name, [name.replace("-", "_")], needs)
    wheels["webtorch"] = build_wheel(place)
    out["webtorch"] = _entry("webtorch", ["webtorch"], [])
    wheels["torch"] = _alias(place)
    out["torch"] = _entry("torch", ["torch"], ["webtorch"])
    for name, wheel in wheels.items():
        data = wheel.read_bytes()
        (place / wheel.name).write_bytes(data)
        version, digest = wheel.name.split("-")[1], hashlib.sha256(data).hexdigest()
        out[name] |= {"file_name": wheel.name, "sha256": digest, "version": version}
    return out


def _entry(name: str, imports: list[str], needs: list[str]) -> _Entry:
    kind = {"install_dir": "site", "package_type": "package", "unvendored_tests": False}
    return {"name": name, "imports": imports, "depends": needs, **kind}


def _wheels(requirements: list[str]) -> dict[str, Path]:
    """Return wheels of pure Python by name, from the cache, into which pip puts those that are not there."""
    folder = root() / "lite-wheels"
    folder.mkdir(parents=True, exist_ok=True)
    out = {}
    for requirement in requirements:
        name, version = requirement.split("==")
        pattern = f"{name.replace('-', '_')}-{version}-*none-any.whl"
        if not list(folder.glob(pattern)):
            command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest"]
            command += [str(folder), "--python-version", "3.14", "--only-binary=:all:", requirement]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode or not list(folder.glob(pattern)):
                raise LiteMissingError(
                    f"lite: pip could not fetch {requirement} into {folder}: {done.stderr.strip()[-500:]}"
                )
        out[name] = next(iter(folder.glob(pattern)))
    return out


def _alias(folder: Path) -> Path:
    """Write the wheel that gives webtorch PyTorch's name."""
    path = folder / "torch-0-py3-none-any.whl"
    info = "torch-0.dist-info"
    files = {
        "torch/__init__.py": _TORCH,
        f"{info}/METADATA": "Metadata-Version: 2.1\nName: torch\nVersion: 0\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    files[f"{info}/RECORD"] = "".join(f"{name},,\n" for name in (*files, f"{info}/RECORD"))
    with zipfile.ZipFile(path, "w") as wheel:
        for name, text in files.items():
            wheel.writestr(zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0)), text)
    return path


def _notebook(program: str) -> str:
    """Return a notebook with a program as its cells: each comment after an empty line begins one."""
    parts = re.split(r"\n\n(?=# )", program.partition("\n")[2].strip())
    empty: _Entry = {"cell_type": "code", "execution_count": None, "metadata": {}, "outputs": []}
    cells = [{**empty, "id": f"cell-{i}", "source": part} for i, part in enumerate(parts)]
    kernel = {"display_name": "Python (Pyodide)", "language": "python", "name": "python"}
    about = {"kernelspec": kernel, "language_info": {"name": "python"}}
    return json.dumps({"cells": cells, "metadata": about, "nbformat": 4, "nbformat_minor": 5})
