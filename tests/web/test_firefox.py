"""Exports in Firefox: with WebGPU switched on, and as it is installed, without."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import webtorch as torch
from webtorch import nn
from webtorch.nn import functional as F
from webtorch.web.browsers import find, report

pytestmark = pytest.mark.skipif(find("firefox") is None, reason="Firefox is not installed")
PAGE = '<!doctype html><meta charset="utf-8"><title>t</title><script type="module" src="t.js"></script>'
SCRIPT = """
import { load } from "./runtime.js";
const post = (value) => fetch("report", { method: "POST", body: JSON.stringify(value) });
try {
  const { batch, device } = await (await fetch("given.json")).json();
  const m = await load("./", { device, persist: true, key: "one" });
  const losses = [];
  for (let i = 0; i < 5; i++) losses.push((await m.train(batch)).loss.data[0]);
  await m.save();
  const again = await load("./", { device, resume: true, key: "one" });
  const { rows } = await again.profile("train", batch);
  await post({ losses, calls: again.resumed.calls, kernels: rows.length, device: m.device, reason: m.reason });
} catch (error) {
  await post({ error: error.message });
}
"""


@pytest.mark.covers("R7")
@pytest.mark.parametrize(
    ("webgpu", "asked", "taken"),
    [(True, "webgpu", "webgpu"), (True, "auto", "cpu"), (False, "auto", "cpu")],
)
def test_an_export_trains_keeps_its_state_and_goes_on(
    webgpu: bool, asked: str, taken: str, tmp_path: Path
) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(1, 3, 3), nn.ReLU(), nn.Flatten(), nn.Linear(48, 4))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    x, y = torch.randn(5, 1, 6, 6), torch.tensor([0, 1, 2, 3, 0])

    def train(x: Any, y: Any) -> dict[str, Any]:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        return {"loss": loss}

    torch.export(train, tmp_path, (x, y), cpu=True)
    given = {"batch": {"x": x.tolist(), "y": y.tolist()}, "device": asked}
    pages = {"t.html": PAGE, "t.js": SCRIPT, "given.json": json.dumps(given)}
    found = report(tmp_path, "t.html", "firefox", pages=pages, webgpu=webgpu)
    assert "error" not in found, found["error"]
    assert found["device"] == taken
    assert found["losses"] == pytest.approx(
        [train(x, y)["loss"].item() for _ in range(5)], rel=1e-3
    )
    assert found["calls"] == 5 and found["kernels"] > 5
    if asked == "auto":
        missing = "WebGPU has no graphics card here" if webgpu else "WebGPU is "
        assert found["reason"].startswith(missing)
