"""`make reference`: pages of the public interface with signatures and docstrings, none of the engine's rooms."""

from __future__ import annotations

import html
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tools.reference import MODULES

ROOT = Path(__file__).resolve().parents[1]


def text_of(page: Path) -> str:
    """Return what a page says, without its markup."""
    return html.unescape(re.sub(r"<[^>]+>", "", page.read_text(encoding="utf-8")))


def write(out: Path, *modules: str) -> None:
    """Write the pages of modules, all that are public if none is named, and check that they are there."""
    command = [sys.executable, "-W", "error", "-m", "tools.reference", "--out", str(out), *modules]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    pages = {p.relative_to(out).with_suffix("").as_posix() for p in out.rglob("*.html")}
    assert pages == {m.replace(".", "/") for m in modules or MODULES} | {"index"}


@pytest.mark.covers("T10")
def test_a_page_has_signatures_and_docstrings(tmp_path: Path) -> None:
    from webtorch.nn import functional

    write(tmp_path, "webtorch.nn.functional", "webtorch.errors")
    page = tmp_path / "webtorch" / "nn" / "functional.html"
    names = set(re.findall(r'id="([A-Za-z_0-9]+)"', page.read_text(encoding="utf-8")))
    functions = {n for n in vars(functional) if not n.startswith("_")} & {
        "linear",
        "gelu",
        "conv2d",
    }
    assert len(functions) == 3 and functions <= names
    text = text_of(page)
    assert functional.scaled_dot_product_attention.__doc__ is not None
    assert functional.scaled_dot_product_attention.__doc__.split(".")[0].split("`")[0] in text
    assert "cross_entropy" in (tmp_path / "search.js").read_text(encoding="utf-8")


@pytest.mark.long
@pytest.mark.covers("T10")
def test_the_reference_has_signatures_and_docstrings(tmp_path: Path) -> None:
    """The package itself too: it is where users look for a name."""
    import webtorch

    write(tmp_path)
    top = tmp_path / "webtorch.html"
    names = set(re.findall(r'id="([A-Za-z_0-9]+)"', top.read_text(encoding="utf-8")))
    functions = {n for n in webtorch.__all__ if type(getattr(webtorch, n)).__name__ == "function"}
    assert len(functions) > 400 and functions <= names
    for page, name in (
        ("nn", "Conv2d"),
        ("nn", "TransformerEncoder"),
        ("nn/functional", "scaled_dot_product_attention"),
        ("io", "load_gguf"),
        ("optim", "AdamW"),
    ):
        assert f'id="{name}"' in (tmp_path / f"webtorch/{page}.html").read_text(encoding="utf-8")
    optimizers = text_of(tmp_path / "webtorch" / "optim.html")
    assert webtorch.optim.AdamW.__doc__ is not None
    assert re.split(r"[`.]", webtorch.optim.AdamW.__doc__)[0] in optimizers
    assert (tmp_path / "search.js").stat().st_size > 100_000
