"""The example in examples/browser_mlp.py writes a page that learns."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "browser_mlp.py"


def test_the_spirals_are_learned_in_the_tab(page, serve, tmp_path, capsys):
    runpy.run_path(str(EXAMPLE))["main"](str(tmp_path))
    assert "webtorch serve" in capsys.readouterr().out
    page.page.goto(serve(tmp_path) + "blank")
    script = """async () => {
      const { fetchFile, load, readSafetensors } = await import("./runtime.js");
      const m = await load("./");
      const file = readSafetensors(await fetchFile(location.href, "examples.safetensors"));
      const batch = (i) => ({
        x: new Float32Array(file[`train/${i}.x`].bytes.slice().buffer),
        y: new BigInt64Array(file[`train/${i}.y`].bytes.slice().buffer),
      });
      const seen = [];
      for (let i = 0; i < 80; i++) seen.push(await m.train(batch(i % 8), { read: i % 20 === 19 }));
      return seen.filter((o) => o.loss).map((o) => [o.loss.data[0], o.accuracy.data[0]]);
    }"""
    found = page.run(script)
    assert len(found) == 4
    assert found[0][0] > 2 * found[-1][0] and found[-1][1] > 0.85
    assert found[0] != pytest.approx(found[1])
    assert page.problems == []
