"""Runs an export from its files, natively and in a browser, and compares. Floor 6; may import io and the runtime."""

from __future__ import annotations

import json
import math
import shutil
import struct
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from webtorch.errors import WebtorchError
from webtorch.io.safetensors import RawTensor, load_file
from webtorch.ir.program import Program
from webtorch.ir.view import numel
from webtorch.runtime.backends import get_backend
from webtorch.web.program_json import Json
from webtorch.web.server import server

_CODES = {
    "float32": "f", "float16": "e", "int64": "q", "int32": "i", "uint32": "I", "int8": "b", "uint8": "B",
    "bool": "?",
}  # fmt: skip


class CheckError(WebtorchError):
    """The folder is no export that can be checked."""


@dataclass(frozen=True, slots=True)
class Compared:
    """An output of a function on two devices: the largest difference, and the largest value."""

    function: str
    output: str
    first: str
    second: str
    difference: float
    largest: float

    @property
    def agrees(self) -> bool:
        """Whether the difference is what rounding of 32-bit floats explains."""
        return self.difference <= 1e-3 * max(1.0, self.largest)


class Site:
    """An exported folder. Raises CheckError where a file is missing or damaged."""

    def __init__(self, folder: Path) -> None:
        try:
            self.program: Json = json.loads((folder / "program.json").read_text(encoding="utf-8"))
            self.native: Json = json.loads((folder / "native.json").read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise CheckError(f"check: {folder} is no folder of webtorch.export: {error}") from error
        self.weights = load_file(folder / "weights.safetensors")
        examples = folder / "examples.safetensors"
        self.examples = load_file(examples) if examples.exists() else {}

    def functions(self) -> list[str]:
        """Return the functions that have inputs to be run on."""
        return [
            name
            for name, f in self.program["functions"].items()
            if f.get("examples") or not f["arguments"]
        ]

    def run(self, name: str, device: str) -> dict[str, list[float]]:
        """Return the outputs of one call of a function, from the exported state, on "cpu" or "webgpu"."""
        function, native = self.program["functions"][name], self.native[name]
        backend = get_backend(device, 0)
        program = Program.from_json(native["program"])
        inputs = []
        for number, buffer in enumerate(program.inputs):
            place, declared = function["memory"][number], program.buffers[buffer]
            if "state" in place:
                tensor = self.weights[self.program["states"][place["state"]]["name"]]
            else:
                argument = function["arguments"][place["argument"]]
                tensor = self.examples[f"{name}/0.{argument['name']}"]
            data = _as(tensor, declared.dtype.name)
            inputs.append(backend.upload(data, declared.dtype, declared.elements))
        args = [self._argument(a, function) for a in function["args"]]
        outputs = backend.compile(program).run(inputs, args)
        found: dict[str, list[float]] = {}
        for r in function["returns"]:
            if r["entry"] in native["outputs"]:
                data = bytes(backend.download(outputs[native["outputs"].index(r["entry"])]))
                found[r["name"]] = _values(data, r)
        return found

    def _argument(self, entry: Json, function: Json) -> float:
        if "random" in entry:
            relative, word = int(entry["random"][0]), entry["random"][1]
            return ((int(self.program["random"]) + relative) >> (32 * word)) & 0xFFFFFFFF
        if "terms" not in entry:
            value = entry["value"]
            return float(value) if entry["type"] == "f32" else int(value)
        known = {**self.program["settings"], **{n["name"]: n["value"] for n in function["numbers"]}}
        return math.fsum(
            float(c) * math.prod(float(known[n]) for n in names) for c, names in entry["terms"]
        )


# Each function starts from the exported state.
_SCRIPT = """async (names) => {
  const { fetchFile, load, readSafetensors } = await import("./runtime.js");
  const found = {};
  for (const name of names) {
    const m = await load("./");
    const given = {};
    const { arguments: inputs } = m.functions[name];
    const arrays = {
      float32: Float32Array, int64: BigInt64Array, int32: Int32Array, uint32: Uint32Array, int8: Int8Array,
    };
    if (inputs.length) {
      const file = readSafetensors(await fetchFile(new URL("./", location.href), "examples.safetensors"));
      for (const a of inputs) {
        const { bytes, dtype } = file[`${name}/0.${a.name}`];
        if (dtype.endsWith("float16")) throw new Error(`inputs of type ${dtype} cannot be checked yet`);
        given[a.name] = new (arrays[dtype] ?? Uint8Array)(bytes.slice().buffer);
      }
    }
    const outputs = Object.entries(await m[name](given)).filter(([, o]) => o?.data);
    found[name] = Object.fromEntries(outputs.map(([key, o]) => [key, Array.from(o.data)]));
    await m.destroy();
  }
  return found;
}"""


def in_browser(folder: Path, site: Site) -> dict[str, dict[str, list[float]]]:
    """Return the outputs of every function as headless Chromium computes them.

    Raises CheckError where Playwright or Chromium is not installed, or the page fails.
    """
    try:
        from playwright.sync_api import Error, sync_playwright
    except ImportError as error:
        raise CheckError("Playwright is not installed: pip install playwright") from error
    names = ("chromium", "chromium-browser", "google-chrome")
    program = next(filter(None, map(shutil.which, names)), None)
    flags = ["--no-sandbox", "--enable-unsafe-webgpu", "--use-webgpu-adapter=swiftshader"]
    with server(folder) as running, sync_playwright() as playwright:
        threading.Thread(target=running.serve_forever, daemon=True).start()
        try:
            browser = playwright.chromium.launch(executable_path=program, args=flags)
            page = browser.new_page()
            page.goto(f"http://127.0.0.1:{running.server_address[1]}/runtime.js")
            found: dict[str, dict[str, list[float]]] = page.evaluate(_SCRIPT, site.functions())
            browser.close()
        except Error as error:
            raise CheckError(f"the browser failed: {error}") from error
        finally:
            running.shutdown()
    return found


def compare(
    names: tuple[str, str],
    first: dict[str, dict[str, list[float]]],
    second: dict[str, dict[str, list[float]]],
) -> list[Compared]:
    """Return how far the outputs of two places are from each other."""
    out: list[Compared] = []
    for function, ours in first.items():
        for key, a in ours.items():
            b = second[function][key]
            differences = [
                0.0 if x == y or (x != x and y != y) else abs(x - y)
                for x, y in zip(a, b, strict=True)
            ]
            # Where one of the two is no number, nothing agrees.
            worst = math.inf if any(d != d for d in differences) else max(differences, default=0.0)
            largest = max((abs(x) for x in a if math.isfinite(x)), default=0.0)
            out.append(Compared(function, key, *names, worst, largest))
    return out


def _as(tensor: RawTensor, dtype: str) -> bytes:
    data = bytes(tensor.data() if callable(tensor.data) else tensor.data)
    if tensor.dtype == dtype:
        return data
    # Parameters that were stored in 16 bits.
    count = numel(tensor.shape)
    return struct.pack(f"<{count}f", *struct.unpack(f"<{count}e", data))


def _values(data: bytes, described: Any) -> list[float]:
    code = _CODES.get(described["dtype"])
    if code is None:
        raise CheckError(f"check: outputs of type {described['dtype']} cannot be compared yet")
    stored = struct.unpack(f"<{len(data) // struct.calcsize(code)}{code}", data)
    places = [described["offset"]]
    for size, stride in zip(described["shape"], described["strides"], strict=True):
        places = [p + i * stride for p in places for i in range(size)]
    return [float(stored[p]) for p in places]
