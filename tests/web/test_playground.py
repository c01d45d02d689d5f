"""The playground in a real browser: Python in a page trains, reads, fails in words, stops."""

from __future__ import annotations

import ast
import base64
import hashlib
import json
import re
import shutil
import subprocess
import threading
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.browser import IN_CI, Page
from tests.patience import PATIENCE
from webtorch.cli import main
from webtorch.web.playground import (
    EXAMPLES,
    HERE,
    PyodideMissingError,
    build_playground,
    build_wheel,
    find_pyodide,
)
from webtorch.web.server import server

STATE = "globalThis.playground?.state"


class Playground(Page):
    """The open page."""

    def do(self, code: str) -> str:
        """Run a program and return what it put out."""
        self.begin(code)
        self.until(f"{STATE} !== 'running'")
        return self.output()

    def begin(self, code: str) -> None:
        """Type a program and press Run."""
        typed = """(code) => {
          const area = document.getElementById("code");
          area.value = code;
          area.dispatchEvent(new Event("input"));
          document.getElementById("run").click();
        }"""
        self.page.evaluate(typed, code)

    def output(self) -> str:
        """Return the text of the output pane."""
        return str(self.page.inner_text("#output"))


@pytest.fixture(scope="module")
def pyodide() -> Path:
    """The npm package; skips visibly where neither it nor npm is. Where CI has npm, it must be had."""
    try:
        return find_pyodide()
    except PyodideMissingError as error:
        if IN_CI and shutil.which("npm"):
            pytest.fail(f"CI needs Pyodide: {error}")
        pytest.skip(str(error))


@pytest.fixture(scope="module")
def folder(pyodide: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The written site. Bytecode is left out: to make it takes longer than to do without."""
    return build_playground(tmp_path_factory.mktemp("play"), pyodide=pyodide, compiled=False)


@pytest.fixture(scope="module")
def play(folder: Path, chromium: Any) -> Iterator[Playground]:
    """The page, open and ready: one for all tests, as starting Python takes seconds."""
    running = server(folder)
    threading.Thread(target=running.serve_forever, daemon=True).start()
    opened = Playground(chromium.new_page())
    opened.page.goto(f"http://127.0.0.1:{running.server_port}/")
    opened.until(f"['ready', 'failed'].includes({STATE})")
    assert opened.page.evaluate(f"() => {STATE}") == "ready", opened.output()
    yield opened
    opened.page.close()
    running.shutdown()
    running.server_close()


def test_the_wheel_is_pure_and_small(tmp_path: Path) -> None:
    first = build_wheel(tmp_path)
    assert first.name.endswith("-py3-none-any.whl")
    assert first.stat().st_size < 2_250_000
    with zipfile.ZipFile(first) as wheel:
        names = wheel.namelist()
        assert not [n for n in names if n.endswith((".so", ".pyc", ".pyi"))]
        for line in (
            wheel.read(next(n for n in names if n.endswith("RECORD"))).decode().splitlines()
        ):
            name, digest, _ = line.split(",")
            if digest:
                found = hashlib.sha256(wheel.read(name)).hexdigest()
                wanted = base64.urlsafe_b64decode(digest.removeprefix("sha256=") + "=").hex()
                assert found == wanted, name
        # What help() shows is there, what only authors read is not, and lines have the numbers that they have here.
        text = wheel.read("webtorch/web/playground/__init__.py").decode()
        here = (HERE / "__init__.py").read_text(encoding="utf-8")
        assert len(text.splitlines()) == len(here.splitlines())
        functions = {
            f.name: ast.get_docstring(f) for f in ast.parse(text).body if hasattr(f, "name")
        }
        assert functions["build_wheel"] == build_wheel.__doc__.strip().replace("\n    ", "\n")
        assert functions["_digest"] is None
        assert functions["_private_docstrings"] is None
    before = first.read_bytes()
    assert build_wheel(tmp_path).read_bytes() == before, "the same files give the same wheel"


def test_a_folder_that_is_not_pyodide_is_refused_in_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(
        PyodideMissingError, match=r"is not the npm package pyodide: it lacks pyodide\.mjs"
    ):
        build_playground(tmp_path / "site", pyodide=tmp_path)
    monkeypatch.setenv("WEBTORCH_PYODIDE", str(tmp_path))
    assert main(["playground", str(tmp_path / "site")]) == 1
    assert "is not the npm package pyodide" in capsys.readouterr().err
    assert not (tmp_path / "site").exists()
    monkeypatch.delenv("WEBTORCH_PYODIDE")
    monkeypatch.setenv("WEBTORCH_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", "")
    with pytest.raises(PyodideMissingError, match=r"neither is npm\. Install Node"):
        find_pyodide()


@pytest.mark.covers("T1")
def test_reads_values_and_gradients_as_pytorch_has_them(play: Playground) -> None:
    code = """
import torch
import torch.nn.functional as F
w = torch.arange(12.).reshape(3, 4).div(7).requires_grad_()
x = torch.linspace(-1, 1, 8).reshape(2, 4)
loss = F.cross_entropy(F.gelu(x @ w.t()), torch.tensor([2, 0]))
loss.backward()
print(loss.item(), w.grad.flatten().tolist(), x.argmax().item(), x.device.type)
print([await loss.item_async(), await x.sum().tolist_async()])
torch.tensor([1, -(2**31)])
"""
    lines = play.do(code).splitlines()
    w = torch.arange(12.0).reshape(3, 4).div(7).requires_grad_()
    x = torch.linspace(-1, 1, 8).reshape(2, 4)
    loss = torch.nn.functional.cross_entropy(
        torch.nn.functional.gelu(x @ w.t()), torch.tensor([2, 0])
    )
    loss.backward()
    assert w.grad is not None
    numbers = [float(n) for n in re.findall(r"-?\d+\.\d+(?:e-?\d+)?", lines[0])]
    assert numbers == pytest.approx([loss.item(), *w.grad.flatten().tolist()], abs=2e-6), lines
    assert lines[0].endswith("7 webgpu")
    awaited = [float(n) for n in lines[1].strip("[]").split(",")]
    assert awaited == pytest.approx([loss.item(), 0.0], abs=2e-6)
    assert "-2147483648" in lines[2], "the last expression is shown"
    assert play.do("print(w.shape)").strip() == "torch.Size([3, 4])", "names stay"
    assert not play.problems


# Programs shortened to some seconds: what is replaced, and what the output must hold.
SHORT = {
    "digits": ([("EPOCHS, BATCH = 4, 64", "EPOCHS, BATCH = 1, 32"), ("len(train_x)", "352")], "epoch 1: loss"),
    "gpt": (
        [("STEPS = 48, 64, 4, 2, 16, 200", "STEPS = 16, 16, 2, 1, 4, 8"), ("% 25 == 24", "% 4 == 3"), ("160)", "3)")],
        "step    8: loss",
    ),
    "siren": ([("64, 64, 20.0, 200", "16, 16, 9.0, 40")], "step  40: mean square error"),
    "basics": ([], "weight 3.0"),
}  # fmt: skip


@pytest.mark.one_in(2)
@pytest.mark.covers("T1", "T9")
@pytest.mark.parametrize("name", EXAMPLES)
def test_examples_train(name: str, play: Playground) -> None:
    code = (HERE / "examples" / f"{name}.py.txt").read_text(encoding="utf-8")
    changes, wanted = SHORT[name]
    for before, after in changes:
        assert code.count(before) == 1, before
        code = code.replace(before, after)
    if name != "basics":
        code += "\nvalues = torch.stack(losses).tolist()\nprint('FROM', values[0], 'TO', min(values[-4:]))\n"
    output = play.do(code)
    assert wanted in output, output
    assert not play.page.query_selector("#output .error"), output
    assert play.page.query_selector("#output svg.chart") is not None
    if name != "basics":
        found = re.search(r"FROM (\S+) TO (\S+)", output)
        assert found is not None
        assert float(found[2]) < 0.97 * float(found[1]), output
    if name != "gpt":
        size = "() => [...document.querySelectorAll('#output img')].map((i) => i.naturalWidth)"
        play.until("document.querySelector('#output img')?.complete")
        assert min(play.run(size)) > 40
    assert not play.problems


@pytest.mark.covers("T1")
def test_a_compiled_step_is_one_submission(play: Playground) -> None:
    output = play.do("""
import torch
from webtorch.runtime.backends import get_backend
model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1))
optimizer = torch.optim.Adam(model.parameters())
@torch.compile
def step(x, y):
    optimizer.zero_grad()
    loss = (model(x) - y).square().mean()
    loss.backward()
    optimizer.step()
    return loss
x, y = torch.randn(16, 4), torch.randn(16, 1)
first = step(x, y).item()
device = get_backend("webgpu")
before = device.submits
for _ in range(10):
    last = step(x, y)
print(device.submits - before, last.item() < first)
""")
    assert output.split() == ["10", "True"], output


@pytest.mark.covers("T1")
def test_errors_are_python_tracebacks_of_what_was_typed(play: Playground) -> None:
    code = "import torch\ndef f(x):\n    return x @ torch.ones(4)\nf(torch.ones(3))\n"
    output = play.do(code)
    typed = output[: output.index("Calls inside webtorch")]
    assert "site-packages" not in typed
    assert "ShapeError" in typed
    play.page.click("#output summary")
    output = play.output()
    assert "site-packages/webtorch/functions/contract.py" in output
    assert "_pyodide" not in output
    assert 'File "playground.py", line 4, in <module>' in output
    assert "return x @ torch.ones(4)" in output
    assert "ShapeError: inconsistent tensor size, expected tensor [3] and src [4]" in output
    assert play.page.inner_text("#lines .wrong") == "3"
    assert "SyntaxError: '(' was never closed" in play.do("x = (1\n")
    assert "needs LAPACK" in play.do("torch.linalg.svd(torch.eye(2, device='cpu'))[1].tolist()")
    # An index that the device finds wrong is known at the next read.
    assert "IndexOutOfRangeError" in play.do("torch.ones(3)[torch.tensor([5])].tolist()")
    assert "[1099511627779]" in play.do("(torch.tensor([2**40]) + 3).tolist()")


@pytest.mark.covers("T1")
def test_what_a_page_does_not_have_is_said_with_what_does_it(play: Playground) -> None:
    output = play.do("import os\nimport numpy as np\n")
    assert "ModuleNotFoundError: No module named 'numpy': this page does not have it." in output
    assert "--packages numpy" in output and play.page.inner_text("#lines .wrong") == "2"
    assert "show.plot" in play.do("import matplotlib.pyplot as plt")
    assert "Here print(f'{step} of {steps}', end='\\r')" in play.do("from tqdm import tqdm")
    assert "standard library and webtorch" in play.do("import pandas")
    assert "EOFError: input: nobody can type" in play.do("input('name? ')")
    bar = "print(f'at {i}', end='\\r' if sys.stdout.isatty() else '\\n')"
    bar = f"import sys\nfor i in range(3): {bar}\nprint()\nprint('end')"
    assert play.do(bar).split() == ["at", "2", "end"]
    assert "gone" in play.do("try:\n    import numpy\nexcept ImportError:\n    print('gone')")
    assert not play.problems


def test_a_finger_finds_the_button_that_it_goes_for(play: Playground) -> None:
    """On a phone the pointer's colours move nothing."""
    page = play.page
    page.set_viewport_size({"width": 390, "height": 844})
    places = (
        "() => [...document.querySelectorAll('button')].map((b) => b.getBoundingClientRect().x)"
    )
    before = play.run(places)
    for name in ("run", "reset", "share"):
        page.hover(f"#{name}")
        assert play.run(places) == before, name
    assert play.run("() => document.documentElement.scrollWidth") <= 390
    page.set_viewport_size({"width": 1280, "height": 720})


@pytest.mark.long
def test_packages_of_pyodide_come_along_where_they_are_wanted(
    pyodide: Path, chromium: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    full, far = tmp_path / "full", tmp_path / "far"
    shutil.copytree(pyodide, full)
    far.mkdir()
    monkeypatch.setenv("WEBTORCH_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr("webtorch.web.playground._WHEELS", far.as_uri())
    lock = json.loads((full / "pyodide-lock.json").read_text("utf-8"))
    for name, needs, place in (("tqdm", ["six"], full), ("six", [], far)):
        file = f"{name}-1.0-py3-none-any.whl"
        with zipfile.ZipFile(place / file, "w") as wheel:
            wheel.writestr(
                f"{name}.py", f"{''.join(f'import {n}' for n in needs)}\nsaid = {name!r}\n"
            )
            wheel.writestr(f"{name}-1.0.dist-info/METADATA", f"Name: {name}\nVersion: 1.0\n")
            wheel.writestr(f"{name}-1.0.dist-info/RECORD", "")
        digest = hashlib.sha256((place / file).read_bytes()).hexdigest()
        lock["packages"][name] |= {"file_name": file, "sha256": digest, "depends": needs}
    (full / "pyodide-lock.json").write_text(json.dumps(lock), "utf-8")
    site = build_playground(tmp_path / "s", pyodide=full, packages=["tqdm"], compiled=False)
    with pytest.raises(PyodideMissingError, match="no package 'nothing'"):
        build_playground(site, pyodide=full, packages=["nothing"], compiled=False)
    (far / "six-1.0-py3-none-any.whl").write_bytes(b"other")
    shutil.rmtree(tmp_path / "cache")
    with pytest.raises(PyodideMissingError, match="is not what Pyodide says"):
        build_playground(tmp_path / "t", pyodide=full, packages=["tqdm"], compiled=False)
    running = server(site)
    threading.Thread(target=running.serve_forever, daemon=True).start()
    opened = Playground(chromium.new_page())
    opened.page.goto(f"http://127.0.0.1:{running.server_port}/")
    opened.until(f"['ready', 'failed'].includes({STATE})")
    assert opened.do("import tqdm, six\nprint(tqdm.said, six.said)").strip() == "tqdm six"
    assert not opened.problems
    opened.page.close()
    running.shutdown()
    running.server_close()


@pytest.mark.covers("T1")
def test_an_endless_loop_stops_and_names_stay(play: Playground) -> None:
    # On a busy machine Python may take longer than the page waits before it ends it by force.
    play.page.evaluate(f"() => {{ document.body.dataset.patience = {PATIENCE * 1000} }}")
    play.begin(
        "kept = 41\nprint('going')\nimport torch\nwhile True:\n    (torch.ones(2) + 1).sum().item()\n"
    )
    play.until("document.getElementById('output').textContent.includes('going')")
    assert play.page.evaluate("() => crossOriginIsolated")
    play.page.click("#stop")
    play.until(f"{STATE} === 'ready'")
    assert "Stopped." in play.output()
    for waits in ("while True: pass", "import asyncio\nwhile True: await asyncio.sleep(0.01)"):
        # Two lines: what follows the first at once is shown too, though no timer runs.
        play.begin("print('a line')\nprint('going')\n" + waits)
        play.until("document.getElementById('output').textContent.includes('going')")
        play.page.click("#stop")
        play.until(f"{STATE} === 'ready'")
        assert "Stopped." in play.output(), waits
    play.page.evaluate("() => delete document.body.dataset.patience")
    assert play.do("print(kept + 1)").strip() == "42"
    play.page.click("#reset")
    assert "NameError" in play.do("print(kept)")


@pytest.mark.covers("T1")
def test_a_lost_device_is_said_in_words(play: Playground) -> None:
    """The last test of the page: its device is gone afterwards."""
    output = play.do("""
import torch
from webtorch.runtime.backends import get_backend
x = torch.ones(3)
x.sum().item()
get_backend("webgpu").native.wrapper.destroy()
import asyncio
await asyncio.sleep(0.2)
(x + 1).tolist()
""")
    assert "DeviceLostError: webgpu:0" in output
    assert "was lost" in output


def test_the_command_writes_the_folder(
    pyodide: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(subprocess, "run", lambda *a, **k: pytest.fail("nothing is fetched"))
    monkeypatch.setattr("webtorch.web.playground._bytecode", lambda *a: None)
    assert main(["playground", str(tmp_path / "s"), "--pyodide", str(pyodide)]) == 0
    assert "webtorch serve" in capsys.readouterr().out
    page = (tmp_path / "s" / "index.html").read_text(encoding="utf-8")
    assert "http:" not in page
    assert "https:" not in page


@pytest.mark.long
def test_the_programs_of_a_documentation_page_run_in_it(
    folder: Path, chromium: Any, tmp_path: Path
) -> None:
    """docs/assets/site.js: a block goes on from those before it; a block that cannot run has no button."""
    (tmp_path / "playground").symlink_to(folder)
    (tmp_path / "assets").mkdir()
    shutil.copyfile(
        HERE.parents[2] / "docs" / "assets" / "site.js", tmp_path / "assets" / "site.js"
    )
    blocks = [
        "x = 2",
        "<!-- page: no -->",
        "import numpy",
        "<!-- run first:\ny = 3\n-->",
        "print(x * y)",
    ]
    blocks += ["import sys\nprint(sys.argv)", "import time\nwhile True: time.sleep(0.01)"]
    text = "".join(
        b if b[0] == "<" else f'<div class="language-python"><code>{b}</code></div>\n'
        for b in blocks
    )
    place = "<div id=\"runs-here\" data-argv=\"'mlp.py', '--quick'\"></div>"
    script = f'{place}<script type="module" src="assets/site.js"></script>'
    (tmp_path / "index.html").write_text(f"<!doctype html>{text}{script}", encoding="utf-8")
    running = server(tmp_path)
    threading.Thread(target=running.serve_forever, daemon=True).start()
    opened = Playground(chromium.new_page())
    opened.page.goto(f"http://127.0.0.1:{running.server_port}/")
    opened.until("document.querySelectorAll('button.run').length === 4")
    opened.page.locator("button.run").nth(1).click()
    opened.until("!document.querySelector('button.run').disabled")
    assert opened.page.locator(".run-output").nth(1).inner_text().strip() == "6"
    assert "#code=" in opened.page.locator(".run-open").nth(1).get_attribute("href")
    # A program that does not end is stopped; one that computes and never waits too.
    button, status = opened.page.locator("button.run").nth(3), opened.page.locator(".run-status")
    button.click()
    opened.until("document.querySelectorAll('.run-status')[3].textContent === 'Running …'")
    assert button.inner_text() == "Stop" and opened.page.locator("button.run").nth(0).is_disabled()
    button.click()
    opened.until("document.querySelectorAll('.run-status')[3].textContent === 'stopped'")
    assert button.inner_text() == "Run" and status.nth(1).inner_text() != "stopped"
    assert opened.page.locator(".run-output").nth(2).inner_text().strip() == "['mlp.py', '--quick']"
    opened.page.close()
    running.shutdown()
    running.server_close()
