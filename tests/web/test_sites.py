"""Pages of several functions: shared parameters, calls that overtake, state that outlives the tab, one file."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
import urllib.request

import pytest

import webtorch as torch
from tests.browser import Page
from webtorch import nn
from webtorch.cli import main
from webtorch.errors import CaptureError
from webtorch.io.safetensors import load_file, loads
from webtorch.web.server import server


@pytest.fixture(scope="module")
def line():
    """A line that is fitted: model, step, evaluation, a batch."""
    torch.manual_seed(0)
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    x = torch.randn(8, 2)
    y = x @ torch.tensor([[1.0], [-2.0]]) + 0.5

    def train(x, y):
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        return {"loss": loss}

    def judge(x, y):
        with torch.no_grad():
            return {"loss": nn.functional.mse_loss(model(x), y)}

    return model, train, judge, (x, y)


@pytest.fixture(scope="module")
def site(line, tmp_path_factory):
    """The page of the line, and the one-file page with parameters of 16 bits."""
    model, train, judge, (x, y) = line
    folder = tmp_path_factory.mktemp("line")
    before = [p.tolist() for p in model.parameters()]
    functions = {"train": train, "judge": judge, "infer": model}
    calls = {"train": (x, y), "judge": {"x": x, "y": y}, "infer": x}
    torch.export(functions, folder / "site", calls, title="A line")
    names = {"infer": ["points"]}, {"infer": ["heights"]}
    torch.export(
        functions, folder / "one.html", calls, inputs=names[0], outputs=names[1],
        single_file=True, half=True,
    )  # fmt: skip
    assert [p.tolist() for p in model.parameters()] == before, "exporting trains nothing"
    assert model.training
    return folder


def _given(batch):
    return {"x": batch[0].tolist(), "y": batch[1].tolist()}


@pytest.mark.covers("T1")
def test_functions_share_their_parameters_and_weights_go_back_to_python(line, site, page, serve):
    _, train, judge, batch = line
    page.page.goto(serve(site / "site") + "blank")
    script = """async (batch) => {
      const { load } = await import("./runtime.js");
      const m = await load("./", { device: "webgpu" });
      const first = (await m.judge(batch)).loss.data[0];
      for (let i = 0; i < 29; i++) m.train(batch, { read: false });
      const last = (await m.train(batch)).loss.data[0];
      const after = (await m.judge(batch)).loss.data[0];
      const { out } = await m.infer({ input: batch.x });
      const timed = await m.profile("infer", { input: batch.x });
      const rows = timed.rows.map((r) => [typeof r.kernel, r.ms >= 0]);
      return { first, last, after, out: Array.from(out.data), rows,
        state: Array.from(await m.state()) };
    }"""
    found = page.run(script, _given(batch))
    assert found["first"] == pytest.approx(judge(*batch)["loss"].item(), rel=1e-5)
    losses = [train(*batch)["loss"].item() for _ in range(30)]
    assert found["last"] == pytest.approx(losses[-1], rel=1e-3)
    assert found["after"] == pytest.approx(judge(*batch)["loss"].item(), rel=1e-3)
    assert found["rows"] and all(row == ["string", True] for row in found["rows"])
    weights = loads(bytes(found["state"]))
    values = memoryview(weights["model.weight"].data).cast("f").tolist()
    bias = memoryview(weights["model.bias"].data).cast("f")[0]
    expected = batch[0] @ torch.tensor(values) + bias
    assert found["out"] == pytest.approx(expected.tolist(), abs=1e-5)
    assert page.problems == []


@pytest.mark.covers("O3", "O5", "O6")
def test_calls_say_how_they_ended_and_newer_ones_overtake(line, site, page, serve):
    page.page.goto(serve(site / "site") + "blank")
    script = """async (batch) => {
      const { load } = await import("./runtime.js");
      const m = await load("./", { device: "webgpu" });
      const calls = Array.from({ length: 12 }, () => m.run("infer", { input: batch.x }, { latest: true }));
      const ended = (await Promise.all(calls)).map((r) => r.status);
      const stop = new AbortController();
      const queued = Array.from({ length: 6 }, () => m.run("judge", batch));
      const stopped = m.run("judge", batch, { signal: stop.signal });
      stop.abort();
      const bad = await m.run("infer", { input: [[1]] });
      const none = await m.run("fly", {});
      await Promise.all(queued);
      const thrown = await m.infer({ input: [[1]] }).catch((e) => [e.name, e.status]);
      return { ended, stopped: (await stopped).status, bad: [bad.status, bad.error.message], none: none.error.message,
        thrown };
    }"""
    found = page.run(script, _given(line[3]))
    assert found["ended"][-1] == "completed" and "aborted" in found["ended"]
    assert set(found["ended"]) == {"completed", "aborted"}
    assert found["stopped"] == "aborted"
    assert found["bad"] == ["failed", "infer: input input: expected shape [8, 2], got [1, 1]"]
    assert found["none"] == "run: there is no function fly; there are train, judge, infer"
    assert found["thrown"] == ["WebtorchError", "failed"]


def test_the_state_outlives_a_tab_that_is_closed_in_mid_step(line, site, chromium, serve):
    address = serve(site / "site") + "blank"
    context = chromium.new_context()
    first = Page(context.new_page())
    first.page.goto(address)
    script = """async (batch) => {
      const { load } = await import("./runtime.js");
      const m = await load("./", { device: "webgpu" });
      for (let i = 0; i < 5; i++) await m.train(batch, { read: false });
      m.set("lr", 0.03);
      await m.save({ note: { seen: 40 } });
      const kept = Array.from(await m.state());
      // Steps without end: the tab is closed in one of them.
      (async () => { for (;;) await m.train(batch, { read: false }); })();
      return kept;
    }"""
    kept = first.run(script, _given(line[3]))
    first.page.close()
    again = Page(context.new_page())
    again.page.goto(address)
    script = """async () => {
      const { load } = await import("./runtime.js");
      const m = await load("./", { device: "webgpu", resume: true });
      const { calls, note } = m.resumed;
      return { calls, note, lr: m.get("lr"), state: Array.from(await m.state()) };
    }"""
    found = again.run(script)
    assert found["state"] == kept
    assert (found["calls"], found["note"], found["lr"]) == (5, {"seen": 40}, 0.03)
    context.close()


@pytest.mark.covers("R4")
def test_one_file_runs_without_a_server(site, page):
    page.page.goto((site / "one.html").as_uri())
    page.until("document.querySelector('#status').dataset.ready")
    page.page.click("#once")
    page.until("document.querySelector('#steps').textContent === '1'")
    page.page.click("#ask")
    page.until("document.querySelector('#answers').textContent.includes('heights: float32[8, 1]')")
    assert page.problems == []
    block = re.search(r'id="program.json">([^<]*)<', (site / "one.html").read_text("utf-8"))
    assert block and 2 * len(block[1]) < (site / "site" / "program.json").stat().st_size, "packed"


def test_parameters_of_16_bits_are_half_as_large(line, site, tmp_path):
    model, _, _, (x, _) = line
    torch.export(model, tmp_path, x, half=True)
    weights = load_file(tmp_path / "weights.safetensors")
    assert {w.dtype for w in weights.values()} == {"float16"}


def test_what_is_missing_for_an_export_is_said(line, tmp_path):
    model, train, _, (x, y) = line
    with pytest.raises(TypeError, match="train needs example_inputs, the arguments of a call"):
        torch.export(train, tmp_path)
    with pytest.raises(
        ValueError, match=r"example_inputs must be a dict with keys among \['infer'\]"
    ):
        torch.export({"infer": model}, tmp_path, (x,))
    with pytest.raises(ValueError, match="takes 2 tensors, 1 names were given"):
        torch.export(train, tmp_path, (x, y), inputs=["x"])
    with pytest.raises(CaptureError):
        torch.export(lambda x: float(x.sum()) * x, tmp_path, (x,))


def test_the_server_sends_a_page_with_its_types_to_this_machine_only(site, tmp_path):
    with pytest.raises(FileNotFoundError, match=r"has no index\.html; webtorch\.export writes one"):
        server(tmp_path)
    with server(site / "site") as running:
        host, port = running.server_address[:2]
        threading.Thread(target=running.serve_forever, daemon=True).start()
        with urllib.request.urlopen(f"http://{host}:{port}/runtime.js") as answer:
            assert answer.headers["Content-Type"] == "text/javascript"
            assert answer.headers["Cache-Control"] == "no-store"
        running.shutdown()
    assert host == "127.0.0.1"


@pytest.mark.covers("P1")
def test_check_compares_the_cpu_webgpu_and_a_browser(site, tmp_path, capsys):
    # In a process of its own: Playwright is already running in this one.
    command = [sys.executable, "-m", "webtorch", "check", str(site / "site")]
    done = subprocess.run(
        command, capture_output=True, text=True, env={**os.environ, "COLUMNS": "120"}
    )
    assert done.returncode == 0, done.stdout + done.stderr
    rows = [line for line in done.stdout.splitlines() if " yes " in line]
    assert len(rows) == 6 and "NO" not in done.stdout
    for folder, why in ((tmp_path, "it has no program.json"), (tmp_path / "x", "no such folder")):
        assert main(["check", str(folder)]) == 1
        assert why in capsys.readouterr().err
