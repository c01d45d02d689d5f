"""Floor 6: a static page in which Python itself runs, with this very webtorch, on the tab's own graphics device.

`build_playground` writes it: Pyodide (Python compiled to WebAssembly, from the npm package `pyodide`), a wheel
made from the installed package, the page (`index.html`, `play.js`, `editor.js`), the worker that holds
Python (`worker.js`, `session.py`), examples and their data. Nothing is fetched from elsewhere.
"""

from __future__ import annotations

import ast
import base64
import functools
import hashlib
import html
import io
import json
import os
import shutil
import subprocess
import tokenize
import urllib.request
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from webtorch.errors import WebtorchError
from webtorch.runtime.disk import root
from webtorch.show.theme import style
from webtorch.version import PACKAGE
from webtorch.web.site import unserved

HERE = Path(__file__).parent
_PAGE = ("play.js", "editor.js", "worker.js")
# What a page needs of the npm package: the rest are declarations, maps and consoles.
_PYODIDE = (
    "pyodide.mjs", "pyodide.asm.mjs", "pyodide.asm.wasm", "python_stdlib.zip", "pyodide-lock.json", "package.json",
)  # fmt: skip
# The version that the page is written for and tested with.
PYODIDE_VERSION = "314.0.7"
# Where Pyodide's own packages lie, each with a digest in `pyodide-lock.json`.
_WHEELS = f"https://cdn.jsdelivr.net/pyodide/v{PYODIDE_VERSION}/full"
EXAMPLES = {
    "digits": "Handwritten digits (CNN)",
    "gpt": "A small GPT",
    "siren": "SIREN: a network becomes a picture",
    "basics": "First steps",
}
# Neither PyTorch nor TensorBoard nor LLVM nor a command line is in a page, nor are the files of language models
# (`webtorch.llm.export` writes a page for one), nor several processes, nor what serves and builds pages: what needs
# them is left out.
_LEFT_OUT = {
    "__pycache__",
    "pytorch",
    "cli",
    "llm",
    "fsdp",
    "checkpoint",
    "tensor",
    "tensorboard.py",
    "wasm",
    "chat",
    "browsers.py",
    "server.py",
    "lite.py",
}


_FUNCTIONS = ast.FunctionDef, ast.AsyncFunctionDef


class PyodideMissingError(WebtorchError):
    """The npm package `pyodide` was not found, and could not be fetched."""


def build_playground(
    path: str | Path,
    *,
    pyodide: str | Path | None = None,
    packages: Sequence[str] = (),
    compiled: bool = True,
    title: str = "webtorch playground",
) -> Path:
    """Write the playground to the folder `path` and return it. `webtorch serve DIR` shows it.

    `pyodide` is the folder of the npm package of that name; without it, the variable WEBTORCH_PYODIDE
    names it; else a `node_modules/pyodide` of this or a parent folder is taken, or npm fetches the
    package into the cache. `packages` names packages of Pyodide that programs of the page can import ("numpy",
    "matplotlib"); their wheels are taken from that folder, where it is a full release, else fetched. `compiled` adds
    Python's bytecode, where Node.js is there to make it: the page then starts in half the time. Raises
    PyodideMissingError, saying what to do, when none of this works.
    """
    source = find_pyodide(pyodide)
    path = Path(path)
    (path / "pyodide").mkdir(parents=True, exist_ok=True)
    (path / "examples").mkdir(exist_ok=True)
    (path / "data").mkdir(exist_ok=True)
    for name in _PYODIDE:
        shutil.copyfile(source / name, path / "pyodide" / name)
    _add_packages(path / "pyodide", source, packages)
    for name in _PAGE:
        shutil.copyfile(HERE / name, path / name)
    sheet = style((HERE / "play.css").read_text(encoding="utf-8"))
    (path / "play.css").write_text(sheet, encoding="utf-8")
    engine = HERE.parents[1] / "runtime" / "backends" / "webgpu" / "browser.js"
    shutil.copyfile(engine, path / "browser.js")
    for old in (*path.glob("webtorch-*.whl"), *path.glob("webtorch-*.zip")):
        old.unlink()
    wheel = build_wheel(path)
    bytecode = _bytecode(source, wheel) if compiled else None
    for name in EXAMPLES:
        shutil.copyfile(HERE / "examples" / f"{name}.py.txt", path / "examples" / f"{name}.py")
    data = sorted(file.name for file in (HERE / "data").iterdir() if file.is_file())
    for name in data:
        shutil.copyfile(HERE / "data" / name, path / "data" / name)
    site = {
        "wheel": wheel.name,
        "bytecode": bytecode and bytecode.name,
        "data": data,
        "packages": list(packages),
        "examples": [{"name": n, "title": t} for n, t in EXAMPLES.items()],
    }
    (path / "playground.json").write_text(json.dumps(site, indent=1) + "\n", encoding="utf-8")
    page = (HERE / "index.html").read_text(encoding="utf-8")
    page = unserved(page.replace("{{title}}", html.escape(title)), "script-src 'self'")
    (path / "index.html").write_text(page, encoding="utf-8")
    return path


def find_pyodide(folder: str | Path | None = None) -> Path:
    """Return the folder of the npm package `pyodide`, fetching it by npm as a last resort.

    Raises PyodideMissingError when there is none, or when a folder that was named is not it.
    """
    named = folder or os.environ.get("WEBTORCH_PYODIDE")
    if named:
        found = Path(named)
        for place in (found, found / "node_modules" / "pyodide", found / "pyodide"):
            if _is_pyodide(place):
                return place
        raise PyodideMissingError(
            f"playground: {found} is not the npm package pyodide: it lacks {_absent(found)}. Name the folder "
            "that `npm install pyodide` made (node_modules/pyodide)"
        )
    here = Path.cwd()
    for parent in (here, *here.parents):
        place = parent / "node_modules" / "pyodide"
        if _is_pyodide(place):
            return place
    return _fetched()


def _absent(folder: Path) -> str:
    return ", ".join(name for name in _PYODIDE if not (folder / name).is_file())


def _is_pyodide(folder: Path) -> bool:
    return not _absent(folder)


def _fetched() -> Path:
    """Return the package from the cache, where npm puts it if it is not there."""
    folder = root() / f"pyodide-{PYODIDE_VERSION}"
    place = folder / "node_modules" / "pyodide"
    if _is_pyodide(place):
        return place
    npm = shutil.which("npm")
    advice = (
        "Install Node.js, whose npm fetches it, or run `npm install pyodide` anywhere and name the folder: "
        'build_playground(path, pyodide="node_modules/pyodide"), `webtorch playground DIR --pyodide FOLDER`, '
        "or the variable WEBTORCH_PYODIDE"
    )
    if npm is None:
        raise PyodideMissingError(
            f"playground: Python in the page is the npm package pyodide {PYODIDE_VERSION}, which is not here, and "
            f"neither is npm. {advice}"
        )
    folder.mkdir(parents=True, exist_ok=True)
    command = [npm, "install", "--no-audit", "--no-fund", "--no-save", "--ignore-scripts"]
    command += ["--prefix", str(folder), f"pyodide@{PYODIDE_VERSION}"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if not _is_pyodide(place):
        said = (done.stderr.strip() or done.stdout.strip()).splitlines()
        reason = next((line for line in said if "error" in line.lower()), said[-1] if said else "")
        raise PyodideMissingError(
            f"playground: npm could not fetch pyodide {PYODIDE_VERSION} into {folder}: {reason}. {advice}"
        )
    return place


def _add_packages(target: Path, source: Path, names: Sequence[str]) -> None:
    """Write the wheels of packages, and of what they need, beside Pyodide. Raises PyodideMissingError."""
    known = json.loads((source / "pyodide-lock.json").read_text(encoding="utf-8"))["packages"]
    wanted = list(names)
    for name in wanted:
        if name not in known:
            raise PyodideMissingError(f"playground: Pyodide has no package {name!r}")
        wanted += [n for n in known[name]["depends"] if n not in wanted]
        file, digest = known[name]["file_name"], known[name]["sha256"]
        places = (source / file, root() / f"pyodide-{PYODIDE_VERSION}" / file)
        found = next((p for p in places if p.is_file()), None)
        if found is None:
            found = places[-1]
            found.parent.mkdir(parents=True, exist_ok=True)
            try:
                with urllib.request.urlopen(f"{_WHEELS}/{file}") as answer:
                    data = answer.read()
            except OSError as error:
                raise PyodideMissingError(
                    f"playground: {file} could not be fetched ({error}). Name the folder of a full release of Pyodide "
                    f"{PYODIDE_VERSION}, which holds it: --pyodide FOLDER"
                ) from error
            if hashlib.sha256(data).hexdigest() != digest:
                raise PyodideMissingError(f"playground: {_WHEELS}/{file} is not what Pyodide says")
            found.write_bytes(data)
        shutil.copyfile(found, target / file)


def _bytecode(pyodide: Path, wheel: Path) -> Path | None:
    """Compile a wheel's files with Pyodide's Python, beside it; None where Node.js cannot do that."""
    node = shutil.which("node")
    if node is None:
        return None
    path = wheel.with_name(wheel.name.replace("-py3-none-any.whl", "-bytecode.zip"))
    script = [node, str(HERE / "bytecode.mjs"), str(pyodide.resolve()), str(wheel), str(path)]
    done = subprocess.run(script, capture_output=True, text=True, check=False)
    return path if done.returncode == 0 and path.is_file() else None


@functools.cache
def _without_notes(source: bytes) -> bytes:
    """Return Python without what only its authors read, a tenth of what a visitor would wait for: the lines that are
    comments, and the docstrings of what is private or within a function. Lines keep their numbers.
    """
    lines = source.splitlines(keepends=True)
    for token in tokenize.tokenize(io.BytesIO(source).readline):
        row, column = token.start
        if token.type == tokenize.COMMENT and not token.line[:column].strip():
            lines[row - 1] = b"\n"
    for note in _private_docstrings(ast.parse(source), False):
        lines[note.lineno - 1 : note.end_lineno] = [b"\n"] * (
            (note.end_lineno or note.lineno) - note.lineno + 1
        )
    return b"".join(lines)


def _private_docstrings(node: ast.AST, private: bool) -> Iterator[ast.stmt]:
    """Yield the docstrings that `help` of a public name does not show; `private`: all are."""
    inside = private or isinstance(node, _FUNCTIONS)
    for child in ast.iter_child_nodes(node):
        if isinstance(child, (*_FUNCTIONS, ast.ClassDef)):
            hidden = inside or (child.name.startswith("_") and not child.name.endswith("__"))
            if hidden and ast.get_docstring(child) is not None and len(child.body) > 1:
                yield child.body[0]
            yield from _private_docstrings(child, hidden)
        else:
            yield from _private_docstrings(child, inside)


def build_wheel(folder: str | Path) -> Path:
    """Write the installed webtorch as a pure-Python wheel (py3-none-any) for pages to `folder`; return its path.

    The same files give the same bytes.
    """
    package = HERE.parents[1]
    version = PACKAGE
    info = f"webtorch-{version}.dist-info"
    files = {
        f"webtorch/{file.relative_to(package).as_posix()}": (
            _without_notes(file.read_bytes()) if file.suffix == ".py" else file.read_bytes()
        )
        for file in sorted(package.rglob("*"))
        if file.is_file()
        and not _LEFT_OUT & set(file.relative_to(package).parts)
        and file.suffix not in (".pyi", ".pyc")
        # The page itself.
        and (file.suffix == ".py" or HERE not in file.parents)
    }
    files[f"{info}/METADATA"] = (
        f"Metadata-Version: 2.1\nName: webtorch\nVersion: {version}\n".encode()
    )
    files[f"{info}/WHEEL"] = (
        b"Wheel-Version: 1.0\nGenerator: webtorch\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    )
    record = "".join(f"{name},sha256={_digest(data)},{len(data)}\n" for name, data in files.items())
    files[f"{info}/RECORD"] = (record + f"{info}/RECORD,,\n").encode()
    path = Path(folder) / f"webtorch-{version}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as wheel:
        for name, data in files.items():
            entry = zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0))
            wheel.writestr(entry, data, zipfile.ZIP_DEFLATED, 9)
    return path


def _digest(data: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode("ascii")
