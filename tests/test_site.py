"""The site: its programs run, its links lead somewhere, every public name has words. `make docs` builds it."""

from __future__ import annotations

import importlib
import inspect
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import webtorch
from tests.conftest import need_device

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
PAGES = sorted(DOCS.rglob("*.md"))
BLOCK = re.compile(r"(?:<!-- ([^>]*?)\s*-->\n)?```python\n(.*?)^```", re.S | re.M)
# They have tests of their own, which look at what the programs define.
ELSEWHERE = {"kernels.md", "from-pytorch.md"}
# Made by the site's hooks of what lies elsewhere (tools/site.py).
MADE = {"benchmarks.md", "operations.md", "contributing.md", "changelog.md"}
PROGRAMS = [
    name
    for page in PAGES
    if (name := page.relative_to(DOCS).as_posix()) not in ELSEWHERE
    and BLOCK.search(page.read_text(encoding="utf-8"))
]


@pytest.mark.covers("T13")
@pytest.mark.parametrize("name", PROGRAMS)
def test_the_programs_of_a_page_run(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """In their order, each with the names of those before it, in an empty folder."""
    text = (DOCS / name).read_text(encoding="utf-8")
    assert len(BLOCK.findall(text)) == text.count("```python"), "a comment is closed before a block"
    parts = []
    for said, code in BLOCK.findall(text):
        if said.startswith("not run: "):
            assert (ROOT / said.removeprefix("not run: ")).is_file()
            continue
        parts += [said.partition("run first:\n")[2], code]
    if name == "playground.md":  # where `torch` is webtorch
        parts = [part.replace("import torch\n", "import webtorch as torch\n") for part in parts]
    if '"webgpu"' in "".join(parts):
        need_device("webgpu")
    monkeypatch.chdir(tmp_path)
    webtorch.manual_seed(0)
    # Captured functions are looked up where they were written.
    script = tmp_path / "blocks.py"
    script.write_text("\n".join(parts), encoding="utf-8")
    exec(compile(script.read_text(encoding="utf-8"), str(script), "exec"), {"__name__": "blocks"})
    if "print(" in script.read_text(encoding="utf-8"):
        assert capsys.readouterr().out.strip()


def test_links_lead_to_files() -> None:
    missing = []
    for page in PAGES:
        text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.S | re.M)
        for target in re.findall(r"\]\((?!https?:|#)([^)#\s]+)(?:#[^)\s]*)?\)", text):
            if not (page.parent / target).exists():
                missing.append(f"{page.relative_to(ROOT)}: {target}")
    assert not missing, "\n".join(missing)


def test_what_is_told_to_install_can_be_installed() -> None:
    """The package is on no index: its extras come from a checkout, and programs name the packages themselves."""
    files = [
        *PAGES,
        ROOT / "README.md",
        *(ROOT / "examples").rglob("*.py"),
        *(ROOT / "webtorch").rglob("*.py"),
    ]
    said = re.compile(r"""pip install ["']?webtorch\[""")
    wrong = [str(f.relative_to(ROOT)) for f in files if said.search(f.read_text("utf-8"))]
    assert not wrong, wrong


def test_every_page_is_in_the_navigation() -> None:
    text = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    listed = re.findall(r": ([\w/-]+\.md)$", text.partition("\nnav:")[2], re.M)
    assert len(listed) == len(set(listed))
    assert set(listed) - MADE == {page.relative_to(DOCS).as_posix() for page in PAGES}


def modules() -> list[str]:
    """Return the modules of the reference; what writes it imports packages that tests do not need."""
    text = (ROOT / "tools" / "reference.py").read_text(encoding="utf-8")
    return re.search(r'_LISTED = """(.*?)"""', text, re.S)[1].split()  # type: ignore[index]


@pytest.mark.covers("T10")
def test_what_the_reference_shows_has_words_and_signatures() -> None:
    silent = []
    for path in modules():
        module = importlib.import_module(path)
        for name in getattr(module, "__all__", ()):
            value = getattr(module, name)
            if not inspect.isfunction(value):
                continue
            if not (value.__doc__ and inspect.signature(value)):
                silent.append(f"{path}.{name}")
    assert not silent, "\n".join(silent)


@pytest.mark.long
@pytest.mark.covers("T10")
def test_the_site_is_built_without_a_warning(tmp_path: Path) -> None:
    pytest.importorskip("mkdocstrings", reason="no mkdocstrings: make docs installs it")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path)]
    done = subprocess.run(
        command,
        cwd=ROOT,
        capture_output=True,
        text=True,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
    )
    assert done.returncode == 0, done.stderr[-3000:]
    for page, name in (
        ("webtorch", "webtorch.add"),
        ("webtorch.Tensor", "webtorch.Tensor.add_"),
        ("webtorch.nn", "webtorch.nn.TransformerEncoder"),
        ("webtorch.nn.functional", "webtorch.nn.functional.gelu"),
        ("webtorch.optim", "webtorch.optim.AdamW"),
    ):
        text = (tmp_path / "reference" / f"{page}.html").read_text(encoding="utf-8")
        assert f'id="{name}"' in text
        assert name != "webtorch.nn.TransformerEncoder" or "encoder_layer" in text, "own arguments"
    # Values as a program has them, and nothing that is for those who build the house.
    odd = re.compile(
        r"_tuplegetter|Alias for field|&lt;[\w.]+: |&lt;factory|&lt;module|\\&lt;|Floor \d"
    )
    for path in (tmp_path / "reference").glob("*.html"):
        found = odd.search(path.read_text(encoding="utf-8"))
        assert not found, (path.name, found)
    # Nothing is fetched from elsewhere: no fonts, no scripts.
    pages = list(tmp_path.rglob("*.html"))
    assert len(pages) > 90
    for path in pages:
        loaded = re.findall(
            r'<(?:script|link|img)[^>]*(?:src|href)="(https?:[^"]*)"', path.read_text("utf-8")
        )
        assert not loaded, (path, loaded)
