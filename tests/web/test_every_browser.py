"""An export in Playwright's Chromium, Firefox and WebKit. WEBTORCH_BROWSERS names those that must be there."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

import webtorch as torch
from tests.browser import FLAGS, browser_path
from webtorch import nn
from webtorch.web.server import server

REQUIRED = os.environ.get("WEBTORCH_BROWSERS", "").split()
# In a process of its own: Playwright's loop is another's here.
DRIVER = """
import json, os, sys
from playwright.sync_api import Error, sync_playwright

name, url, script, path, flags = json.loads(sys.argv[1])
with sync_playwright() as playwright:
    kind = getattr(playwright, name)
    path = None if os.path.exists(kind.executable_path) else path
    if path is None and not os.path.exists(kind.executable_path):
        sys.exit("no browser")
    browser = kind.launch(executable_path=path, args=flags)
    page = browser.new_page()
    page.goto(url)
    print(json.dumps(page.evaluate(script)))
    browser.close()
"""
SCRIPT = """async () => {
  const { load } = await import("./runtime.js");
  const { x, y } = await (await fetch("given.json")).json();
  const m = await load("./");
  const losses = [];
  for (let i = 0; i < 5; i++) losses.push((await m.train({ x, y })).loss.data[0]);
  const found = { losses, device: m.device };
  await m.destroy();
  return found;
}"""


@pytest.mark.long
@pytest.mark.covers("R7")
@pytest.mark.parametrize("name", ["chromium", "firefox", "webkit"])
def test_an_export_trains_as_it_does_natively(name: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x, y = torch.randn(5, 3), torch.tensor([0, 1, 1, 0, 1])

    def train(x: Any, y: Any) -> dict[str, Any]:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        return {"loss": loss}

    torch.export(train, tmp_path, (x, y), cpu=True)
    (tmp_path / "given.json").write_text(json.dumps({"x": x.tolist(), "y": y.tolist()}))
    with server(tmp_path) as running:
        threading.Thread(target=running.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{running.server_port}/index.html"
        path, flags = (browser_path(), FLAGS) if name == "chromium" else (None, [])
        given = json.dumps([name, url, SCRIPT, path, flags])
        done = subprocess.run([sys.executable, "-c", DRIVER, given], capture_output=True, text=True)
        running.shutdown()
    if done.stderr.strip().endswith("no browser") and name not in REQUIRED:
        pytest.skip(f"no {name}: playwright install {name}")
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout)
    wanted = [train(x, y)["loss"].item() for _ in range(5)]
    assert found["losses"] == pytest.approx(wanted, rel=1e-4), found["device"]
