"""Runs an export from its files, natively and in a browser, and compares. Floor 6; may import io and the runtime."""

from __future__ import annotations

import json
import math
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from webtorch.errors import WebtorchError
from webtorch.io.safetensors import RawTensor, load_file
from webtorch.ir.program import Program
from webtorch.runtime.backends import get_backend
from webtorch.web.browsers import report
from webtorch.web.program_json import Json

_CODES = {
    "float32": "f", "float16": "e", "int64": "q", "int32": "i", "uint32": "I", "int16": "h", "int8": "b", "uint8": "B",
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
        except OSError as error:
            missing = (
                "there is no such folder"
                if not folder.exists()
                else f"it has no {Path(error.filename).name}"
            )
            raise CheckError(
                f"check: {folder} is no folder of webtorch.export: {missing}"
            ) from error
        except ValueError as error:
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

    def inputs(self, name: str) -> Json:
        """Return the first example of a function as JSON: {input: {data, shape}}."""
        out: Json = {}
        for argument in self.program["functions"][name]["arguments"]:
            tensor = self.examples[f"{name}/0.{argument['name']}"]
            values = _numbers(_bytes(tensor), tensor.dtype)
            plain = [v if isinstance(v, int) or math.isfinite(v) else str(v) for v in values]
            out[argument["name"]] = {"data": plain, "shape": list(tensor.shape)}
        return out

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


_PAGE = """<!doctype html><meta charset="utf-8"><title>check</title><script type="module" src="check.js"></script>"""
# Each function starts from the exported state. JSON has no infinities: they travel as text.
_SCRIPT = """
import { load } from "./runtime.js";
const post = (value) => fetch("report", { method: "POST", body: JSON.stringify(value) });
const plain = (v) => (Number.isFinite(v) ? v : String(v));
try {
  const given = await (await fetch("check.json")).json();
  const found = {};
  for (const [name, inputs] of Object.entries(given)) {
    const m = await load("./", { device: "webgpu" });
    const typed = Object.entries(inputs).map(([k, v]) => [k, { data: v.data.map(Number), shape: v.shape }]);
    const outputs = Object.entries(await m[name](Object.fromEntries(typed))).filter(([, o]) => o?.data);
    found[name] = Object.fromEntries(outputs.map(([key, o]) => [key, Array.from(o.data, plain)]));
    await m.destroy();
  }
  await post({ found });
} catch (error) {
  await post({ error: error.message });
}
"""


def in_browser(
    folder: Path, site: Site, browser: str = "chromium"
) -> dict[str, dict[str, list[float]]]:
    """Return the outputs of every function as a headless browser computes them.

    Raises BrowserError where it is not installed, CheckError where the page fails.
    """
    inputs = {name: site.inputs(name) for name in site.functions()}
    pages = {"check.html": _PAGE, "check.js": _SCRIPT, "check.json": json.dumps(inputs)}
    answer = report(folder, "check.html", browser, pages=pages)
    if "error" in answer:
        raise CheckError(f"the page failed: {answer['error']}")
    return {
        name: {key: [float(v) for v in values] for key, values in outputs.items()}
        for name, outputs in answer["found"].items()
    }


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


def _bytes(tensor: RawTensor) -> bytes:
    return bytes(tensor.data() if callable(tensor.data) else tensor.data)


def _as(tensor: RawTensor, dtype: str) -> bytes:
    data = _bytes(tensor)
    if tensor.dtype == dtype:
        return data
    # Parameters that were stored in 16 bits.
    values = _numbers(data, tensor.dtype)
    return struct.pack(f"<{len(values)}f", *values)


def _numbers(data: bytes, dtype: str) -> list[float] | list[int]:
    """Return the elements of stored data."""
    if dtype == "bfloat16":
        # The upper half of a float32.
        halves = struct.unpack(f"<{len(data) // 2}H", data)
        wide = struct.pack(f"<{len(halves)}I", *(h << 16 for h in halves))
        return list(struct.unpack(f"<{len(halves)}f", wide))
    code = _CODES.get(dtype)
    if code is None:
        raise CheckError(f"check: tensors of type {dtype} cannot be compared yet")
    return list(struct.unpack(f"<{len(data) // struct.calcsize(code)}{code}", data))


def _values(data: bytes, described: Any) -> list[float]:
    stored = _numbers(data, described["dtype"])
    places = [described["offset"]]
    for size, stride in zip(described["shape"], described["strides"], strict=True):
        places = [p + i * stride for p in places for i in range(size)]
    return [float(stored[p]) for p in places]
