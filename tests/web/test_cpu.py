"""The processor's program of a page: WebAssembly, alone and on several threads, against the native CPU."""

from __future__ import annotations

import json
import shutil
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import webtorch as torch
from tests.browser import Page
from tests.patience import PATIENCE
from webtorch import nn
from webtorch.errors import DTypeError
from webtorch.io.safetensors import loads
from webtorch.nn import functional as F
from webtorch.runtime.backends import webassembly
from webtorch.runtime.backends.wasm import link
from webtorch.web.server import server

RUN = """async ([names, options]) => {
  const { fetchFile, load, readSafetensors } = await import("./runtime.js");
  const m = await load("./", { device: "cpu", ...options });
  const file = readSafetensors(await fetchFile(new URL("./", location.href), "examples.safetensors"));
  const types = { float32: Float32Array, int64: BigInt64Array, int32: Int32Array, bool: Uint8Array };
  const found = { device: m.deviceName };
  for (const name of names) {
    const given = {};
    for (const a of m.functions[name].arguments) {
      const { bytes, dtype } = file[`${name}/0.${a.name}`];
      given[a.name] = new types[dtype](bytes.slice().buffer);
    }
    try {
      const { out } = await m[name](given);
      found[name] = [Array.from(out.data, Number), out.shape, out.dtype];
    } catch (error) {
      found[name] = error.message;
    }
  }
  await m.destroy();
  return found;
}"""


def convolved(**options: Any) -> Callable[..., Any]:
    """Return a convolution and its gradients, as one vector."""

    def function(x: Any, w: Any) -> Any:
        x, w = x.detach().requires_grad_(), w.detach().requires_grad_()
        y = F.conv2d(x, w, **options)
        grads = torch.autograd.grad((y * y).sum(), [x, w])
        return torch.cat([t.flatten() for t in (y, *grads)])

    return function


def draw(*shape: int) -> torch.Tensor:
    """Return numbers that differ from call to call."""
    return torch.randn(*shape)


def attention(**options: Any) -> Callable[..., Any]:
    """Return attention and its gradients, as one vector."""

    def function(q: Any, k: Any, v: Any, mask: Any = None) -> Any:
        leaves = [t.detach().requires_grad_() for t in (q, k, v)]
        y = F.scaled_dot_product_attention(*leaves, attn_mask=mask, **options)
        grads = torch.autograd.grad((y * y).sum(), leaves)
        return torch.cat([t.flatten() for t in (y, *grads)])

    return function


def cases() -> dict[str, tuple[Callable[..., Any], tuple[Any, ...]]]:
    """Return functions of tensors by name, with their arguments."""
    torch.manual_seed(0)
    numbers = draw(40, 33)
    special = torch.tensor(
        [0.0, -0.0, float("inf"), -float("inf"), float("nan"), 1e-40, 3e38, -2.5]
    )
    ints = torch.randint(-50, 50, (7, 300))
    return {
        "elementwise": (lambda x: torch.tanh(x).exp() * torch.erf(x) + x.sin() / (1 + x.abs()), (numbers,)),
        "special": (lambda x: torch.stack([x.exp(), x.log(), x.sqrt(), x.round(), x.sigmoid(), x.floor()]), (special,)),
        "remainders": (lambda x, y: torch.stack([torch.fmod(x, y), x % y, x // y]), (draw(50), draw(50))),
        "softmax": (lambda x: F.softmax(x, -1), (numbers,)),
        "norm": (lambda x: F.layer_norm(x, (33,)), (numbers,)),
        "columns": (lambda x: x.sum(0), (draw(500, 70),)),
        "long_sum": (lambda x: x.sum().reshape(1), (draw(600_000),)),
        "extremes": (lambda x: torch.stack([x.argmax(1), x.argmin(1)]), (numbers,)),
        "product": (lambda x, y: x @ y.t(), (draw(130, 70), draw(65, 70))),
        "batches": (lambda x, y: x @ y, (draw(5, 9, 31), draw(5, 31, 17))),
        "vector": (lambda x, y: x @ y, (draw(40, 33), draw(33))),
        "integers": (lambda x, y: x @ y, (ints, ints.t().contiguous())),
        "half": (lambda x: (x.half() @ x.half().t()).float(), (numbers,)),
        "brain": (lambda x: (x.bfloat16() * 3).float(), (numbers,)),
        "conv_batch": (convolved(padding=1), (draw(6, 4, 9, 8), draw(5, 4, 3, 3))),
        "conv_one": (convolved(padding=1, stride=2), (draw(1, 4, 9, 8), draw(6, 4, 3, 3))),
        "conv_groups": (convolved(groups=2, dilation=2), (draw(2, 4, 9, 8), draw(6, 2, 3, 3))),
        "conv_deep": (convolved(groups=4), (draw(3, 4, 9, 8), draw(4, 1, 3, 3))),
        "conv_plain": (convolved(), (draw(2, 4, 9, 8), draw(6, 4, 1, 1))),
        "running": (lambda x: torch.stack([x.cumsum(1), x.cumprod(1)]), (draw(6, 41),)),
        "largest": (lambda x: torch.stack([x.cummax(0).values, x.cummin(0).values]), (draw(41, 3),)),
        "counts": (lambda x: x.cumsum(1), (ints,)),
        "sorted": (lambda x: x.sort(1, descending=True).values, (draw(7, 300),)),
        "order": (lambda x: x.argsort(1, stable=True), (ints,)),
        "top": (lambda x: x.topk(5, 1).indices, (draw(7, 300),)),
        "nan_last": (lambda x: x.argsort(stable=True), (special,)),
        "gather": (lambda x, i: x.gather(0, i), (numbers, torch.randint(0, 40, (9, 33)))),
        "scatter": (lambda x, i: x.index_add(0, i, torch.ones(9, 33)), (numbers, torch.randint(0, 40, (9,)))),
        "beyond": (lambda x, i: x[i], (numbers, torch.tensor([3, 41]))),
        "masked": (lambda x: torch.where(x > 0, x, -1.0), (numbers,)),
        "logic": (lambda x: (x > 0) & (x < 1), (numbers,)),
        "dropout": (lambda x: F.dropout(x, 0.4), (torch.ones(1000),)),
        "attention": (attention(is_causal=True), (draw(2, 3, 70, 8), draw(2, 3, 70, 8), draw(2, 3, 70, 8))),
        "attention_masked": (attention(), (draw(1, 2, 9, 8), draw(1, 2, 75, 8), draw(1, 2, 75, 5), draw(9, 75) > 0)),
        "attention_shared": (attention(enable_gqa=True), (*[draw(2, h, 9, 8) for h in (4, 2, 2)], draw(2, 1, 9, 9))),
        "attention_dropped": (attention(dropout_p=0.9999999), (draw(1, 2, 9, 8), draw(1, 2, 9, 8), draw(1, 2, 9, 8))),
        "spectrum": (lambda x: torch.stft(x, 16, 4, window=x[:16], return_complex=True).abs(), (draw(70),)),
        "shifted": (lambda x: torch.fft.irfft(torch.fft.rfft(x) * 1j, 33), (numbers,)),
        "empty": (lambda x: x[:0] * 2, (numbers,)),
        "lone": (lambda x: x.sum() * 2, (numbers,)),
    }  # fmt: skip


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A page of all cases, and what they give here. Attention is that without scores in memory."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("WEBTORCH_ATTENTION", "fused")
        return written(tmp_path_factory)


def written(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("cpu")
    chosen = cases()
    functions = {name: function for name, (function, _) in chosen.items()}
    torch.export(functions, folder, {k: a for k, (_, a) in chosen.items()}, cpu=True, title="Cases")
    expected: dict[str, Any] = {}
    torch.manual_seed(0)
    for name, (function, args) in chosen.items():
        if name not in ("beyond", "dropout"):
            expected[name] = function(*args)
    return folder, expected


def compare(found: dict[str, Any], expected: dict[str, torch.Tensor]) -> None:
    for name, wanted in expected.items():
        assert not isinstance(found[name], str), (name, found[name])
        data, shape, dtype = found[name]
        assert (shape, dtype) == (list(wanted.shape), wanted.dtype.name), name
        ours = torch.tensor(data).reshape(wanted.shape)
        theirs = wanted.to(ours.dtype) if wanted.numel() else wanted
        if wanted.numel():
            torch.testing.assert_close(
                ours,
                theirs,
                rtol=2e-5,
                atol=2e-5,
                equal_nan=True,
                msg=lambda m, n=name: f"{n}: {m}",
            )
    assert "index 41 is out of bounds for dimension 0 with size 40" in found["beyond"]
    kept = found["dropout"][0]
    assert {round(v, 5) for v in kept} == {0.0, round(1 / 0.6, 5)}
    assert 520 < sum(v > 0 for v in kept) < 680


@pytest.mark.covers("E9", "N3")
def test_every_kind_of_routine_on_one_thread(site: Any, page: Page, serve: Any) -> None:
    folder, expected = site
    page.page.goto(serve(folder) + "blank")
    found = page.run(RUN, [[*expected, "beyond", "dropout"], {}])
    assert found["device"] == "the processor (1 thread)"
    compare(found, expected)
    assert page.problems == []


def test_threads_share_the_work_of_an_isolated_page(site: Any, page: Page) -> None:
    folder, expected = site
    with server(folder) as running:
        threading.Thread(target=running.serve_forever, daemon=True).start()
        page.page.goto(f"http://127.0.0.1:{running.server_address[1]}/index.html")
        found = page.run(RUN, [[*expected, "beyond", "dropout"], {"threads": 3}])
        running.shutdown()
    assert found["device"] == "the processor (3 threads)"
    compare(found, expected)


WITHOUT = """async (names) => {
  Object.defineProperty(navigator, "gpu", { value: undefined });
  Object.defineProperty(crypto, "subtle", { value: undefined });
  const { load } = await import("./runtime.js");
  const m = await load("./", { worker: false, threads: 3 });
  const x = new Float32Array(600000).fill(0.5);
  const sums = [];
  for (let i = 0; i < 50; i++) sums.push((await m.long_sum({ x })).out.data[0]);
  const { device, deviceName, reason } = m;
  await m.destroy();
  const after = await m.run("lone");
  return { device, deviceName, reason, sums, after: after.error.message };
}"""


def test_the_page_own_thread_without_webgpu_and_without_https(site: Any, page: Page) -> None:
    with server(site[0]) as running:
        threading.Thread(target=running.serve_forever, daemon=True).start()
        page.page.goto(f"http://127.0.0.1:{running.server_address[1]}/runtime.d.ts")
        found = page.run(WITHOUT)
        running.shutdown()
    assert found["device"] == "cpu" and found["deviceName"] == "the processor (3 threads)"
    assert found["reason"].startswith("WebGPU is not available: ")
    assert found["sums"] == [300_000] * 50
    assert found["after"] == "The model was destroyed."


LATEST = """async (x) => {
  const { load } = await import("./runtime.js");
  const m = await load("./", { device: "cpu" });
  const calls = Array.from({ length: 12 }, () => m.run("softmax", { x }, { latest: true }));
  const ended = (await Promise.all(calls)).map((r) => r.status);
  const stop = new AbortController();
  const queued = Array.from({ length: 6 }, () => m.run("softmax", { x }));
  const stopped = m.run("softmax", { x }, { signal: stop.signal });
  stop.abort();
  await Promise.all(queued);
  await m.destroy();
  return { ended, stopped: (await stopped).status };
}"""


def test_newer_calls_overtake_on_the_processor_too(site: Any, page: Page, serve: Any) -> None:
    page.page.goto(serve(site[0]) + "blank")
    found = page.run(LATEST, torch.zeros(40, 33).tolist())
    assert found["ended"][-1] == "completed" and found["ended"].count("aborted") >= 6
    assert found["stopped"] == "aborted"


TRAIN = """async (batch) => {
  const { load } = await import("./runtime.js");
  const m = await load("./", { device: "cpu" });
  const losses = [];
  for (let i = 0; i < 6; i++) {
    if (i === 3) m.set("lr", 0.02);
    losses.push((await m.train(batch)).loss.data[0]);
  }
  const timed = await m.profile("train", batch);
  await m.loadState(await m.state());
  const wrong = await m.run("train", { x: batch.x });
  const lines = new Set(timed.rows.map((row) => row.line.split(":")[0]));
  const state = Array.from(await m.state());
  return { losses, kernels: timed.rows.length, lines: [...lines], state, wrong: wrong.error.message };
}"""


def test_training_steps_settings_and_state(tmp_path: Any, page: Page, serve: Any) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(64, 3)
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    x, y = draw(5, 1, 6, 6), torch.tensor([0, 1, 2, 0, 1])

    def train(x: Any, y: Any) -> dict[str, Any]:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        return {"loss": loss}

    torch.export(train, tmp_path, (x, y), cpu=True)
    page.page.goto(serve(tmp_path) + "blank")
    found = page.run(TRAIN, {"x": x.tolist(), "y": y.tolist()})
    page.page.goto(serve(tmp_path) + "?device=cpu")
    page.until("document.getElementById('status').dataset.ready")
    page.page.click("#inside summary")
    page.page.click("#profile")
    page.until("document.querySelector('#program tr:last-child td:last-child').textContent")
    listed = page.page.locator("#program tr").count()
    assert page.page.locator("#program td:nth-child(3)", has_text="test_cpu.py:").count() > 10
    losses = []
    for i in range(7):
        if i == 3:
            optimizer.param_groups[0]["lr"] = 0.02
        losses.append(train(x, y)["loss"].item())
    assert found["losses"] == pytest.approx(losses[:6], rel=1e-4)
    assert listed == found["kernels"] > 10 and "test_cpu.py" in found["lines"]
    state = loads(bytes(found["state"]))
    weight = memoryview(state["model.4.weight"].data).cast("f").tolist()
    assert weight == pytest.approx(model[4].weight.flatten().tolist(), rel=1e-3, abs=1e-4)
    assert memoryview(state["model.1.num_batches_tracked"].data).cast("q").tolist() == [7]
    assert "no value was given" in found["wrong"]
    assert page.problems == []


NODE = """
import { readFileSync } from "node:fs";
import { openCpu, readSafetensors } from "./runtime.mjs";
import * as library from "./cpu.mjs";
const bytes = (name) => new Uint8Array(readFileSync(name)).buffer;
const program = JSON.parse(readFileSync("program.json", "utf-8"));
const files = { code: bytes("cpu.wasm"), constants: bytes("cpu.bin") };
const m = await openCpu(program, readSafetensors(bytes("weights.safetensors")), files, { library });
const { out } = await m.functions.double.call({ x: [1, 2, 3] });
console.log(JSON.stringify([Array.from(out.data), m.deviceName]));
"""


def node(folder: Path, script: str) -> Any:
    """Run a script beside the files of an export and return what it prints, from JSON."""
    for name in ("runtime", "cpu"):
        (folder / f"{name}.js").rename(folder / f"{name}.mjs")
    (folder / "run.mjs").write_text(script, encoding="utf-8")
    command = [str(shutil.which("node")), "run.mjs"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.covers("R2")
@pytest.mark.skipif(shutil.which("node") is None, reason="Node.js is not installed")
def test_an_export_runs_in_node(tmp_path: Path) -> None:
    torch.export(lambda x: x * 2, tmp_path, (torch.ones(3),), name="double", cpu=True)
    assert node(tmp_path, NODE) == [[2, 4, 6], "the processor (1 thread)"]


@pytest.mark.skipif(shutil.which("node") is None, reason="Node.js is not installed")
def test_a_kernel_of_the_users_runs_in_node(tmp_path: Path) -> None:
    grown = torch.kernel("fn grown(x: f32, rate: f32) -> f32 { return x * rate + 0.5; }")
    torch.export(lambda x: grown(x, 2.0) * x, tmp_path, (torch.ones(3),), name="double", cpu=True)
    assert node(tmp_path, NODE) == [[2.5, 9, 19.5], "the processor (1 thread)"]


NAMED = """
import { readFileSync } from "node:fs";
import { openCpu, readSafetensors } from "./runtime.mjs";
import * as library from "./cpu.mjs";
const bytes = (name) => new Uint8Array(readFileSync(name)).buffer;
const program = JSON.parse(readFileSync("program.json", "utf-8"));
const weights = () => readSafetensors(bytes("weights.safetensors"));
const files = { code: bytes("cpu.wasm"), constants: bytes("cpu.bin") };
const m = await openCpu(program, weights(), files, { library });
const { step, check, write, less } = m.functions;
const said = (promise) => promise.then(() => "", (e) => e.message);
const numbers = ({ out }) => Array.from(out.data);
console.log(JSON.stringify([
  numbers(await step.call({ x: [1, 2, 3] })), numbers(await step.call({ x: [1, 1, 1] })),
  numbers(await check.call({ i: [3, 4] })), await said(check.call({ i: [0, 5] })),
  numbers(await write.call({ x: [3, -4] })), await said(write.call({ x: [3, 70000] })),
  numbers(await less.call({ x: [1, 2] })),
  await said(openCpu(program, weights(), { ...files, constants: files.constants.slice(8) }, { library })),
]));
"""


@pytest.mark.skipif(shutil.which("node") is None, reason="Node.js is not installed")
def test_functions_of_any_name_and_numbers_beyond_32_bits(tmp_path: Path) -> None:
    kept = torch.zeros(3)

    def step(x: Any) -> Any:
        before = kept.clone()
        kept.add_(x)
        return before

    def check(i: Any) -> Any:
        return torch.arange(5)[i]

    def write(x: Any) -> Any:
        return x * x

    def less(x: Any) -> Any:
        return x + (-3)

    functions = {"step": step, "check": check, "write": write, "less": less}
    two = torch.tensor([1, 2])
    examples = {"step": torch.ones(3), "check": torch.tensor([0, 1]), "write": two, "less": two}
    torch.export(functions, tmp_path, examples, cpu=True)
    first, second, taken, index, squares, large, lower, other = node(tmp_path, NAMED)
    assert (first, second, taken, squares) == ([0, 0, 0], [1, 2, 3], [3, 4], [9, 16])
    assert lower == [-2, -1]
    assert "index 5 is out of bounds for dimension 0 with size 5" in index
    assert "output out: element 1 is 4900000000, beyond the 32 bits" in large
    assert "cpu.bin: it has" in other and "one of another export" in other


GIVEN = """
import { readFileSync } from "node:fs";
import { openCpu, readSafetensors } from "./runtime.mjs";
import * as library from "./cpu.mjs";
const bytes = (name) => new Uint8Array(readFileSync(name)).buffer;
const program = JSON.parse(readFileSync("program.json", "utf-8"));
const files = { code: bytes("cpu.wasm"), constants: bytes("cpu.bin") };
const m = await openCpu(program, readSafetensors(bytes("weights.safetensors")), files, { library });
const { turned, draw, brain } = m.functions;
const numbers = ({ out }) => Array.from(out.data);
console.log(JSON.stringify([
  numbers(await turned.call({ x: [[1, 2, 3], [4, 5, 6]] })),
  numbers(await draw.call({})), numbers(await draw.call({})),
  numbers(await brain.call({ x: [1.00390625, 1.01171875, -1.00390625, NaN] })),
]));
"""


@pytest.mark.skipif(shutil.which("node") is None, reason="Node.js is not installed")
def test_results_lie_in_any_order_are_drawn_anew_and_round_to_even(tmp_path: Path) -> None:
    functions = {
        "turned": lambda x: (x * 2).t(),
        "draw": lambda: torch.rand(3),
        "brain": lambda x: x + 0,
    }
    examples = {
        "turned": torch.ones(2, 3), "draw": (), "brain": torch.ones(4, dtype=torch.bfloat16),
    }  # fmt: skip
    torch.export(functions, tmp_path, examples, cpu=True)
    turned, first, second, brain = node(tmp_path, GIVEN)
    assert turned == [2, 8, 4, 10, 6, 12]
    assert first != second
    assert brain == [1.0, 1.015625, -1.0, None]


@pytest.mark.parametrize(
    ("data", "value"),
    [
        # https://webassembly.github.io/spec/core/binary/values.html#integers, and the examples of LEB128.
        (b"\x00", 0), (b"\x03", 3), (b"\x7e", -2), (b"\xfe\x7f", -2), (b"\xfe\xff\x7f", -2),
        (b"\x3f", 63), (b"\xc0\x00", 64), (b"\x40", -64), (b"\xbf\x7f", -65), (b"\xc0\xbb\x78", -123456),
    ],
)  # fmt: skip
def test_signed_numbers_of_webassembly(data: bytes, value: int) -> None:
    assert link._Reader(data).signed() == value
    assert link._Reader(link._signed(value, 5)).signed() == value


def test_what_only_webgpu_does_is_said(tmp_path: Any) -> None:
    x = torch.randn(3, dtype=torch.float64)
    with pytest.raises(DTypeError, match="float64"):
        torch.export(lambda x: x * 2, tmp_path, (x,), cpu=True)
    torch.export(lambda x: x * 2, tmp_path, (torch.ones(3),), cpu=False)
    assert not (tmp_path / "cpu.wasm").exists()


def test_what_writes_the_processor_s_program_is_missing(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(webassembly(), "available", lambda: False)
    with pytest.warns(
        UserWarning, match=r"needs a browser with WebGPU: llvmlite, .*pip install numba"
    ):
        torch.export(lambda x: x * 2, tmp_path, (torch.ones(3),))
    assert not (tmp_path / "cpu.wasm").exists()
