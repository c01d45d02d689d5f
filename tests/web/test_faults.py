"""What a page does when something is wrong: files of two exports, no memory left, a device that is slow or goes."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

import webtorch as torch
from tests.browser import Page, browser_path
from webtorch import nn
from webtorch.nn import functional as F
from webtorch.web.browsers import CHROMIUM

BATCH = {"x": [[1.0, 2.0], [0.5, -1.0], [2.0, 0.0]], "y": [[1.0], [0.0], [-1.0]]}


def write(folder: Path, scale: float = 1.0, **options: Any) -> Path:
    """Export a line that is fitted; another scale is another program with parameters of the same shapes."""
    torch.manual_seed(0)
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def train(x: Any, y: Any) -> dict[str, Any]:
        optimizer.zero_grad()
        loss = F.mse_loss(scale * model(x), y)
        loss.backward()
        optimizer.step()
        return {"loss": loss}

    x, y = torch.tensor(BATCH["x"]), torch.tensor(BATCH["y"])
    return torch.export(train, folder, (x, y), title="A line", **options)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of the line."""
    return write(tmp_path_factory.mktemp("line"))


# --- files ------------------------------------------------------------------------------------------------------------

LOAD = """async (options) => {
  const { load } = await import("./runtime.js");
  const m = await load("./", options);
  const { loss } = await m.train(BATCH);
  const { device, reason, deviceName } = m;
  const bindings = m.program.limits.maxStorageBuffersPerShaderStage ?? 8;
  await m.destroy();
  return { device, reason, deviceName, bindings, loss: loss.data[0] };
}""".replace("BATCH", json.dumps(BATCH))


@pytest.mark.parametrize(
    ("name", "device"),
    [
        ("program.json", "webgpu"),
        ("weights.safetensors", "webgpu"),
        ("software.json", "webgpu"),
        ("cpu.wasm", "cpu"),
        ("cpu.bin", "cpu"),
        ("runtime.js", "webgpu"),
    ],
)
def test_files_of_two_exports_are_refused_in_words(
    name: str, device: str, site: Path, page: Page, serve: Any, tmp_path: Path
) -> None:
    mixed = tmp_path / "mixed"
    shutil.copytree(site, mixed)
    other = write(tmp_path / "other", scale=2.0)
    if name == "runtime.js":
        # That of another release.
        text = (other / name).read_text(encoding="utf-8")
        stamp = json.loads((site / "program.json").read_text(encoding="utf-8"))["runtime"]
        assert stamp in text
        (mixed / name).write_text(text.replace(stamp, "0123456789abcdef"), encoding="utf-8")
    else:
        shutil.copyfile(other / name, mixed / name)
    page.page.goto(serve(mixed) + "blank")
    told = page.error(LOAD, {"device": device})
    whose = "weights.safetensors" if name == "program.json" else name
    if name == "runtime.js":
        assert told.startswith("program.json: it was exported with another runtime.js (")
    else:
        assert told.startswith(f"{whose}: it is of another export (")
    assert "copy all the files of one export" in told


def test_weights_without_a_stamp_and_uploaded_ones_of_another_export_are_taken(
    site: Path, page: Page, serve: Any, tmp_path: Path
) -> None:
    other = write(tmp_path / "other", scale=2.0)
    page.page.goto(serve(site) + "blank")
    script = """async (file) => {
      const { load, readSafetensors, writeSafetensors } = await import("./runtime.js");
      const m = await load("./");
      await m.loadState(new Uint8Array(file));
      const state = await m.state();
      await m.destroy();
      const program = await (await fetch("program.json")).text();
      const again = await load({ program, weights: state.buffer }, { device: "webgpu" });
      const same = Array.from(await again.state()).join() === Array.from(state).join();
      await again.destroy();
      return same;
    }"""
    assert page.run(script, list((other / "weights.safetensors").read_bytes())) is True
    assert page.problems == []


def test_an_export_is_the_same_files_each_time(site: Path, tmp_path: Path) -> None:
    again = write(tmp_path)
    for file in site.iterdir():
        assert file.read_bytes() == (again / file.name).read_bytes(), file.name


# --- devices ----------------------------------------------------------------------------------------------------------


def test_a_software_adapter_gives_way_to_the_processor_unless_it_is_asked_for(
    site: Path, page: Page, serve: Any, tmp_path: Path
) -> None:
    page.page.goto(serve(site) + "blank")
    chosen = page.run(LOAD, {})
    assert chosen["device"] == "cpu"
    assert chosen["reason"].startswith("WebGPU has no graphics card here (google swiftshader)")
    asked = page.run(LOAD, {"device": "webgpu"})
    assert (asked["device"], asked["reason"]) == ("webgpu", "")
    assert asked["loss"] == pytest.approx(chosen["loss"], rel=1e-5)
    # Without a program for the processor there is no choice.
    alone = write(tmp_path / "alone", cpu=False)
    page.page.goto(serve(alone) + "blank")
    chosen = page.run(LOAD, {})
    assert chosen["device"] == "webgpu"
    assert chosen["reason"].endswith("no program for the processor: it was exported without one.")
    told = page.error(LOAD, {"device": "cpu"})
    assert told == "This export has no program for the processor: it was exported without one."
    assert page.problems == []


def test_a_graphics_card_is_taken(site: Path, page: Page, serve: Any) -> None:
    card = """
      const given = GPUAdapterInfo.prototype;
      const card = { isFallbackAdapter: false, vendor: "nvidia", architecture: "lovelace", description: "" };
      for (const [name, value] of Object.entries(card)) Object.defineProperty(given, name, { get: () => value });
    """
    page.page.add_init_script(card)
    page.page.goto(serve(site) + "blank")
    found = page.run(LOAD, {"worker": False})
    assert (found["device"], found["deviceName"]) == ("webgpu", "nvidia lovelace")
    assert found["reason"] == ""


def test_a_page_that_forbids_webassembly_takes_the_software_adapter(
    site: Path, page: Page, serve: Any, tmp_path: Path
) -> None:
    folder = tmp_path / "strict"
    shutil.copytree(site, folder)
    text = (folder / "index.html").read_text(encoding="utf-8")
    assert " 'wasm-unsafe-eval'" in text
    (folder / "index.html").write_text(text.replace(" 'wasm-unsafe-eval'", ""), encoding="utf-8")
    (folder / "page.js").write_text("", encoding="utf-8")
    page.page.goto(serve(folder))
    found = page.run(LOAD, {"worker": False})
    assert found["device"] == "webgpu"
    assert found["reason"].startswith("The program for the processor could not be started: ")


def test_a_software_adapter_with_few_bindings_runs_what_graphics_cards_run(
    site: Path, page: Page, serve: Any, tmp_path: Path
) -> None:
    folder = tmp_path / "few"
    shutil.copytree(site, folder)
    software = json.loads((folder / "software.json").read_text(encoding="utf-8"))
    software["limits"] = {"maxStorageBuffersPerShaderStage": 1000}
    (folder / "software.json").write_text(json.dumps(software), encoding="utf-8")
    page.page.goto(serve(folder) + "blank")
    found = page.run(LOAD, {"device": "webgpu"})
    assert (found["device"], found["bindings"]) == ("webgpu", 8)


# --- in the middle of a call ------------------------------------------------------------------------------------------

# The state after two calls is kept; a third one meets the fault that `break` makes.
FAULT = """async ([batch, fault]) => {
  const { load } = await import("./runtime.js");
  const given = GPUAdapter.prototype.requestDevice;
  let device;
  GPUAdapter.prototype.requestDevice = async function (...a) {
    return (device = await given.apply(this, a));
  };
  const m = await load("./", { device: "webgpu", worker: false });
  await m.train(batch);
  await m.train(batch);
  const kept = Array.from(await m.state()).join();
  const broken = device;
  const faults = {
    memory() {
      // The next buffer that a call wants is one that the device cannot give.
      const create = broken.createBuffer.bind(broken);
      broken.createBuffer = (descriptor) => {
        const error = new GPUOutOfMemoryError("a buffer of " + descriptor.size + " bytes");
        broken.dispatchEvent(new GPUUncapturedErrorEvent("uncapturederror", { error }));
        return create(descriptor);
      };
      return () => m.state();
    },
    loss() {
      const call = m.run("train", batch);
      broken.destroy();
      return () => call;
    },
  };
  const first = await faults[fault]()().then((r) => r, (error) => ({ status: error.status ?? "failed", error }));
  const second = await m.run("train", batch);
  const told = [first, second].filter((r) => r.status === "failed").map((r) => r.error.message);
  // What counts from here on is the state that was kept.
  const resumed = Array.from(await m.state()).join() === kept || second.status === "completed";
  const last = await m.run("train", batch);
  return { told, resumed, last: last.status, another: device !== broken };
}"""


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("memory", "The graphics device is out of memory: a buffer of "),
        ("loss", "The graphics device was closed by the page."),
    ],
)
def test_a_call_without_memory_or_device_is_told_and_the_next_one_runs(
    fault: str, words: str, site: Path, page: Page, serve: Any
) -> None:
    page.page.goto(serve(site) + "blank")
    found = page.run(FAULT, [BATCH, fault])
    assert any(words in told for told in found["told"]), found
    assert any("The model was opened again with the state of " in told for told in found["told"])
    assert found["another"] and found["resumed"] and found["last"] == "completed"


def test_a_program_too_large_for_the_device_is_told(page: Page, serve: Any, tmp_path: Path) -> None:
    folder = write(tmp_path, cpu=False)
    for name in ("program.json", "software.json"):
        program = json.loads((folder / name).read_text(encoding="utf-8"))
        place = next(p for p in program["functions"]["train"]["memory"] if "own" in p)
        place["own"] = program["row"] = 1 << 31
        (folder / name).write_text(json.dumps(program), encoding="utf-8")
    page.page.goto(serve(folder) + "blank")
    told = page.error(LOAD, {"device": "webgpu"})
    assert "There is not enough graphics memory" in told or "The graphics device reported" in told


def test_the_state_kept_while_training_is_there_after_the_tab_is_closed_in_mid_step(
    site: Path, chromium: Any, serve: Any
) -> None:
    address = serve(site) + "blank"
    context = chromium.new_context()
    for device in ("webgpu", "cpu"):
        first = Page(context.new_page())
        first.page.goto(address)
        # `persist` keeps the state by itself, here after each call; nobody calls save.
        script = """async ([batch, device]) => {
          const { load } = await import("./runtime.js");
          const m = await load("./", { device, persist: true, keep: 0, key: device });
          for (let i = 0; i < 3; i++) await m.train(batch);
          const seen = Array.from(await m.state()).join();
          globalThis.after = [seen];
          (async () => { for (;;) { await m.train(batch); } })();
          await new Promise((resolve) => setTimeout(resolve, 300));
        }"""
        first.run(script, [BATCH, device])
        first.page.close()
        again = Page(context.new_page())
        again.page.goto(address)
        script = """async ([batch, device]) => {
          const { load, readSafetensors } = await import("./runtime.js");
          const m = await load("./", { device, persist: true, resume: true, key: device });
          const file = readSafetensors((await m.state()).slice().buffer);
          const fresh = await load("./", { device });
          for (let i = 0; i < m.resumed.calls; i++) await fresh.train(batch, { read: false });
          const wanted = readSafetensors((await fresh.state()).slice().buffer);
          const numbers = (f) => Array.from(new Float32Array(f["model.weight"].bytes.slice().buffer));
          return { calls: m.resumed.calls, kept: numbers(file), wanted: numbers(wanted) };
        }"""
        found = again.run(script, [BATCH, device])
        # A whole number of steps, never a part of one.
        assert found["calls"] >= 1
        assert found["kept"] == found["wanted"]
        again.page.close()
    context.close()


def test_a_browser_without_webgpu_gets_the_processor(chromium: Any, serve: Any, site: Path) -> None:
    # Chromium as it is installed offers no software adapter.
    flags = [f for f in CHROMIUM if "webgpu" not in f]
    browser = chromium.browser_type.launch(executable_path=browser_path(), args=flags)
    page = Page(browser.new_page())
    page.page.goto(serve(site))
    page.until("document.getElementById('status').dataset.ready")
    status = page.page.inner_text("#status")
    assert status.startswith("Ready on the processor (1 thread). WebGPU is ")
    page.page.click("#once")
    page.until("document.querySelector('#steps').textContent === '1'")
    assert page.problems == []
    browser.close()
