"""`webtorch lite`: JupyterLite opens in Chromium, and `import torch` in a cell is webtorch; all is in the folder."""

from __future__ import annotations

import urllib.parse
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.browser import Page
from webtorch.cli import main
from webtorch.web.playground import lite

CELL = """import torch
here = %pwd
w = torch.ones(3, requires_grad=True)
(w * torch.arange(3.0)).sum().backward()
print(torch.cos.__module__.split(".")[0], w.grad.tolist())
torch.zeros(8, 8)
"""


def test_a_cell_of_the_site_runs_webtorch(
    page: Page, serve: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("jupyterlite_core", "jupyterlite_pyodide_kernel"):
        pytest.importorskip(name)
    assert main(["lite", str(tmp_path)]) == 0
    assert "webtorch serve" in capsys.readouterr().out
    asked: list[str] = []
    page.page.on("request", lambda request: asked.append(request.url))
    address = serve(tmp_path)
    code = urllib.parse.quote(CELL)
    page.page.goto(f"{address}repl/index.html?kernel=python&execute=1&code={code}")
    page.until(
        "document.querySelector('.jp-OutputArea-output')?.innerText.includes('[0.0, 1.0, 2.0]')"
    )
    page.until("document.body.innerText.includes('tensor([[0., 0.')")
    output = page.page.locator(".jp-OutputArea-output").first.inner_text()
    assert output.strip() == "webtorch [0.0, 1.0, 2.0]"
    assert not [url for url in asked if not url.startswith((address, "blob:", "data:"))]


def test_a_kernel_whose_wheels_are_elsewhere_is_said(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    kernel = SimpleNamespace(
        files=[Path(f"../share/{lite._EXTENSION}/all.json")], locate_file=tmp_path.joinpath
    )
    monkeypatch.setattr(lite.importlib.metadata, "distribution", lambda name: kernel)
    with pytest.raises(lite.LiteMissingError, match="jupyterlite-pyodide-kernel lacks"):
        lite.build_lite(tmp_path / "site")


def test_what_is_not_installed_is_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def absent(name: str) -> Any:
        raise lite.importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(lite.importlib.metadata, "distribution", absent)
    with pytest.raises(
        lite.LiteMissingError,
        match=r"jupyterlite-core is not installed: pip install jupyterlite-core jupyter-server",
    ):
        lite.build_lite(tmp_path / "site")
