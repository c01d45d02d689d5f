"""A captured training step runs in a real browser, and gives the numbers that Python gives."""

from __future__ import annotations

import contextlib
import json
import re
import shutil
from pathlib import Path

import pytest

import webtorch as torch
from tests.browser import Page, launch
from tests.web.steps import batches, rate, training
from webtorch.io.safetensors import load_file, loads
from webtorch.web import export as web_export

WARM, STEPS = 2, 20


def _losses(device: str, start: int, count: int, step, optimizer, data) -> list[float]:
    losses = []
    for i in range(start, start + count):
        optimizer.param_groups[0]["lr"] = rate(i)
        losses.append(step(*data[i % len(data)]).item())
    return losses


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The exported MLP step after two native steps, and the 20 losses that the lazy run gives next."""
    folder = tmp_path_factory.mktemp("site")
    data = batches(4, "cpu")
    model, optimizer, step = training("cpu")
    compiled = torch.compile(step)
    _losses("cpu", 0, WARM, compiled, optimizer, data)
    torch.export(
        compiled,
        folder,
        name="train",
        outputs=["loss"],
        state={"model": model, "optimizer": optimizer},
        examples=data,
        title="Five classes & a rule",
    )
    lazy_model, optimizer, step = training("cpu")
    _losses("cpu", 0, WARM, step, optimizer, data)
    return folder, _losses("cpu", WARM, STEPS, step, optimizer, data), lazy_model, data


TRAIN = """async ({ data, rates }) => {
  const { load } = await import("./runtime.js");
  const m = globalThis.m = await load("./", { device: "webgpu" });
  const losses = [];
  for (let i = 0; i < rates.length; i++) {
    m.set("lr", rates[i]);
    const { loss } = await m.train(data[(i + 2) % data.length]);
    losses.push(loss.data[0]);
  }
  const weights = await m.state();
  return { losses, weights: Array.from(weights), name: m.deviceName, settings: m.settings };
}"""


def _plain(data):
    return [{"x": x.tolist(), "y": y.tolist()} for x, y in data]


@pytest.mark.covers("R1", "R6", "Q10")
def test_the_browser_trains_to_the_same_20_losses_and_weights(site, page, serve):
    folder, expected, model, data = site
    page.page.goto(serve(folder) + "blank")
    rates = [rate(i) for i in range(WARM, WARM + STEPS)]
    found = page.run(TRAIN, {"data": _plain(data), "rates": rates})
    assert found["losses"] == pytest.approx(expected, abs=1e-4, rel=1e-4)
    assert expected[-1] < 0.6 * expected[0], (
        "nothing was learned: the comparison would hold for any program"
    )
    weights = loads(bytes(found["weights"]))
    for name, parameter in model.named_parameters():
        record = weights[f"model.{name}"]
        assert record.shape == tuple(parameter.shape)
        ours = torch.tensor(memoryview(record.data).cast("f").tolist()).reshape(record.shape)
        assert torch.allclose(ours, parameter.detach(), rtol=1e-3, atol=2e-4), name
    assert page.problems == []
    assert found["settings"]["lr"] == pytest.approx(rates[-1])


@pytest.mark.covers("O1", "O2", "O4")
@pytest.mark.parametrize("device", ["webgpu", "cpu"])
def test_calls_that_overlap_run_in_their_order_and_read_only_on_request(device, site, page, serve):
    folder, expected, _, data = site
    page.page.goto(serve(folder) + "blank")
    script = """async ({ data, rates, device }) => {
      const { load } = await import("./runtime.js");
      const m = await load("./", { device });
      const pending = rates.map((rate, i) => {
        m.set("lr", rate);
        return m.train(data[(i + 2) % data.length], { read: i % 2 === 1 });
      });
      return (await Promise.all(pending)).map((o) => (o.loss ? o.loss.data[0] : null));
    }"""
    rates = [rate(i) for i in range(WARM, WARM + STEPS)]
    found = page.run(script, {"data": _plain(data), "rates": rates, "device": device})
    assert found[::2] == [None] * (STEPS // 2)
    assert found[1::2] == pytest.approx(expected[1::2], abs=1e-4, rel=1e-4)


def test_the_page_trains_shows_its_losses_and_breaks_no_security_rule(site, page, serve, tmp_path):
    folder, _, _, _ = site
    page.page.goto(serve(folder) + "?device=webgpu")
    page.page.wait_for_selector("#run:not([disabled])")
    assert page.page.title() == "Five classes & a rule · webtorch"
    assert "swiftshader" in page.page.inner_text("#status").lower()
    page.page.click("#once")
    page.until("document.querySelector('#steps').textContent === '1'")
    page.page.click("#run")
    page.until("Number(document.querySelector('#steps').textContent) >= 60")
    page.page.click("#run")
    losses = [float(t) for t in page.page.locator("#values li").all_text_contents()]
    assert losses[-1] < 0.5 * losses[0]
    assert page.page.inner_text("#last-name") == "loss"
    assert page.page.get_attribute("#chart .curve", "d").count("L") >= 59
    assert page.problems == []


@pytest.mark.covers("L9")
def test_weights_come_back_from_the_page(site, page, serve):
    folder, _, _, data = site
    page.page.goto(serve(folder) + "blank")
    script = """async (data) => {
      const { load } = await import("./runtime.js");
      const m = await load("./", { device: "webgpu" });
      const before = await m.state();
      const first = (await m.train(data[0])).loss.data[0];
      for (let i = 0; i < 3; i++) await m.train(data[1], { read: false });
      const other = (await m.train(data[0])).loss.data[0];
      m.loadState(before);
      const again = (await m.train(data[0])).loss.data[0];
      return { first, other, again, same: Array.from(before) };
    }"""
    found = page.run(script, _plain(data))
    assert found["again"] == found["first"] != found["other"]
    written = load_file(folder / "weights.safetensors")
    returned = loads(bytes(found["same"]))
    assert {k: bytes(v.data) for k, v in returned.items()} == {
        k: bytes(v.data) for k, v in written.items()
    }


def test_the_folder_says_what_it_is(site):
    folder, _, _, _ = site
    program = json.loads((folder / "program.json").read_text())
    assert program["settings"]["lr"] == pytest.approx(rate(1))
    function = program["functions"]["train"]
    assert [(a["name"], a["dtype"], a["shape"]) for a in function["arguments"]] == [
        ("x", "float32", [16, 12]),
        ("y", "int64", [16]),
    ]
    assert [r["name"] for r in function["returns"]] == ["loss"]
    names = [s["name"] for s in program["states"]]
    assert "model.norm.weight" in names and "optimizer.exp_avg.model.norm.weight" in names
    assert len(names) == 6 + 12 + 1, "gradients are not part of the state"
    assert (folder / "runtime.js").stat().st_size < 60_000
    assert str(Path(__file__).parent) not in (folder / "program.json").read_text()


# What is wrong: (the call, part of the answer).
BAD = {
    "a missing input": ("m.train({ x })", "train: input y: no value was given; it is int64[16]"),
    "an unknown input": (
        "m.train({ x, y, z: [1] })",
        "train: there is no input z; the inputs are x, y",
    ),
    "a wrong shape": (
        "m.train({ x: x.slice(1), y })",
        "train: input x: expected shape [16, 12], got [15, 12]",
    ),
    "ragged arrays": (
        "m.train({ x: x.map((r, i) => r.slice(i % 2)), y })",
        "train: input x: the nested arrays do not have one shape",
    ),
    "a short typed array": (
        "m.train({ x: new Float32Array(5), y })",
        "train: input x: expected shape [16, 12], got [5]",
    ),
    "a float for an integer": (
        "m.train({ x, y: new Array(16).fill(0.5) })",
        "train: input y: element 0 is 0.5, which does not fit int64",
    ),
    "a wide integer": (
        "m.train({ x, y: new Array(16).fill(2 ** 31) })",
        "which does not fit int64 (held in 32 bits on WebGPU)",
    ),
    "text for a number": (
        "m.train({ x: x.map((r) => r.map(() => 'a')), y })",
        "train: input x: element 0 is a, not a number",
    ),
    "a label out of range": (
        "m.train({ x, y: new Array(16).fill(77) })",
        "cross_entropy: index 77 is out of bounds for dimension 1 with size 5 (steps.py:",
    ),
    "an unknown setting": ("m.set('rate', 1)", "set: there is no setting rate; the settings are "),
    "a setting that is no number": ("m.set('lr', '1')", "set: lr is a number, got 1"),
    "damaged weights": (
        "m.loadState(new Uint8Array([1, 0, 0, 0, 0, 0, 0, 0, 9]))",
        "loadState: the file is damaged or incomplete: its header is not JSON",
    ),
    "weights of another model": (
        "m.loadState(writeSafetensors({}))",
        "loadState: the tensor model.last.bias is missing",
    ),
    "a lost device": (
        "(async () => { m.destroy(); await m.train({ x, y }); })()",
        "The model was destroyed.",
    ),
}


def test_bad_input_is_answered_in_words_and_changes_nothing(site, page, serve):
    folder, _, _, data = site
    page.page.goto(serve(folder) + "blank")
    for what, (call, message) in BAD.items():
        script = f"""async (data) => {{
          const {{ load, writeSafetensors }} = await import("./runtime.js");
          const m = globalThis.m ??= await load("./", {{ device: "webgpu" }});
          const [{{ x, y }}] = data;
          globalThis.before ??= Array.from(await m.state()).join();
          await {call};
        }}"""
        found = page.error(script, _plain(data))
        assert message in found, f"{what}: {found}"
        if what == "a label out of range":
            # The step itself ran, as in Python: the error is about what it read.
            page.run("async () => { globalThis.before = Array.from(await m.state()).join(); }")
        elif what != "a lost device":
            assert page.run("async () => Array.from(await m.state()).join() === before"), what


@pytest.mark.covers("P2", "P7")
def test_damaged_files_and_missing_devices_are_told(site, page, serve, tmp_path):
    folder, _, _, _ = site
    broken = tmp_path / "broken"
    shutil.copytree(folder, broken)
    address = serve(broken)
    page.page.goto(address + "blank")
    opening = """async () => {
      const { load } = await import("./runtime.js");
      await load("./", { device: "webgpu" });
    }"""
    weights = (broken / "weights.safetensors").read_bytes()
    program = (broken / "program.json").read_text()
    whole = json.loads(program)

    def told() -> str:
        return page.error(opening)

    (broken / "weights.safetensors").write_bytes(weights[:-100])
    assert "weights.safetensors: the file is damaged or incomplete:" in told()
    (broken / "weights.safetensors").unlink()
    assert "weights.safetensors: the server answered 404" in told()
    (broken / "weights.safetensors").write_bytes(weights)
    (broken / "program.json").write_text(program[:1000])
    assert told().startswith("program.json: the file is damaged or incomplete")
    (broken / "program.json").write_text(json.dumps({**whole, "version": 99}))
    assert "it has version 99, this runtime.js reads version 3" in told()
    (broken / "program.json").write_text(json.dumps({"a": 1}))
    assert "not a program that webtorch exported" in told()
    (broken / "program.json").write_text(program)
    # What a software adapter runs lies beside.
    software = json.loads((broken / "software.json").read_text())
    (broken / "software.json").write_text("{")
    assert told().startswith("software.json: the file is damaged or incomplete")
    limits = {"limits": {"maxBufferSize": 1 << 50}}
    (broken / "software.json").write_text(json.dumps({**software, **limits}))
    (broken / "program.json").write_text(json.dumps({**whole, **limits}))
    assert "maxBufferSize: 1125899906842624 is needed, this device offers" in told()
    (broken / "program.json").write_text(program)
    kernel = software["kernels"][0]
    kernel["code"] = kernel["code"].replace("@compute", "oops\n@compute", 1)
    (broken / "software.json").write_text(json.dumps(software))
    text = told()
    assert (
        f"kernel {kernel['name']}: the browser's compiler refused it: line " in text
        and "oops" in text
    )
    page.page.add_init_script("Object.defineProperty(navigator, 'gpu', { value: undefined })")
    page.page.goto(address + "blank")
    opening = opening.replace('device: "webgpu"', 'device: "webgpu", worker: false')
    assert told().startswith("WebGPU is not available: ")


# Opens the model in the page's own thread, where a test can get at its device.
OPEN_HERE = """async (data) => {
  const { load } = await import("./runtime.js");
  const given = GPUAdapter.prototype.requestDevice;
  GPUAdapter.prototype.requestDevice = async function (...a) {
    return (globalThis.device = await given.apply(this, a));
  };
  globalThis.data = data;
  globalThis.m = await load("./", { device: "webgpu", worker: false });
}"""


@pytest.mark.covers("P8")
def test_what_the_device_reports_is_told_and_the_model_goes_on(site, page, serve):
    folder, expected, _, data = site
    page.page.goto(serve(folder) + "blank")
    page.run(OPEN_HERE, _plain(data))
    script = """async () => {
      await m.train(data[2]);
      await m.state();
      await m.train(data[3]);
      await m.train(data[3]);
      device.createBuffer({ size: 16, usage: 0 });
      await device.queue.onSubmittedWorkDone();
      await m.train(data[0]);
    }"""
    told = page.error(script)
    assert "The graphics device reported: " in told
    assert told.endswith("The model was opened again with the state of 2 calls before.")
    # The state is that of after the first step, so the next one is the second.
    again = page.run("async () => (await m.train(data[3])).loss.data[0]")
    assert again == pytest.approx(expected[1], rel=0.05)
    ended = "async () => { await m.destroy(); return (await m.run('train', data[0])).status; }"
    assert page.run(ended) == "failed"


def test_a_crash_of_the_graphics_process_is_told_and_the_model_goes_on(site, chromium, serve):
    folder, _, _, data = site
    # Its own browser: one whose graphics process crashed is not what other tests should get.
    browser = launch(chromium.browser_type)
    page = Page(browser.new_page())
    page.page.goto(serve(folder) + "blank")
    opening = """async (data) => {
      const { load } = await import("./runtime.js");
      globalThis.m = await load("./", { device: "webgpu" });
      globalThis.data = data;
      await m.train(data[0]);
      globalThis.kept = Array.from(await m.state()).join();
    }"""
    page.run(opening, _plain(data))
    with contextlib.suppress(Exception):
        browser.new_browser_cdp_session().send("Browser.crashGpuProcess")
    # The loss is noticed by a call, sooner or later; how the call ends is a value.
    script = """async () => {
      for (let i = 0; i < 200; i++) {
        const result = await m.run("train", data[0]);
        if (result.status === "failed") return result.error.message;
      }
      return "never lost";
    }"""
    text = page.run(script)
    assert text.startswith("The graphics device was lost (") or "graphics device" in text, text
    assert "The model was opened again with the state of " in text
    assert page.run("async () => Array.from(await m.state()).join() === kept")
    assert page.run("async () => (await m.run('train', data[0])).status") == "completed"
    browser.close()


@pytest.mark.covers("R10")
def test_the_types_declare_what_the_runtime_exports():
    folder = Path(web_export.__file__).parent
    script, types = ((folder / name).read_text() for name in ("runtime.js", "runtime.d.ts"))
    pattern = r"^export (?:async )?(?:class|function) (\w+)"
    assert set(re.findall(pattern, script, re.M)) == set(re.findall(pattern, types, re.M))
    for name in ("Model", "Engine"):
        body = script[script.index(f"export class {name} ") :]
        body = body[: body.index("\n}\n")]
        if " extends Opened " in body:
            base = script[script.index("class Opened ") :]
            body += base[: base.index("\n}\n")]
        methods = set(re.findall(r"^  (?:async )?(\w+)\(.*\) \{$", body, re.M))
        internal = set(re.findall(r"@internal.*\*/\n  (?:async )?(\w+)", body))
        declared = types[types.index(f"export class {name} ") :]
        declared = declared[: declared.index("\n}\n")]
        wanted = methods - internal - {"constructor"}
        assert wanted == set(re.findall(r"^  (\w+)\(", declared, re.M)) != set()


def test_a_page_without_a_number_to_draw_takes_inputs_and_shows_the_results(page, serve, tmp_path):
    x = torch.tensor([0.5, 1.5])
    torch.export(lambda x: {"twice": x * 2, "big": x > 1}, tmp_path, (x,), title="Twice")
    page.page.goto(serve(tmp_path))
    page.page.wait_for_selector("#ask:not([disabled])")
    page.page.fill("[aria-label='x 2']", "-4")
    page.until("document.querySelector('#answers').textContent.includes('-8')")
    expected = "twice: float32[2] 1.000, -8.000\nbig: bool[2] false, false"
    assert page.page.inner_text("#answers pre") == expected
    assert not page.page.is_visible("#chart")
    assert page.problems == []
