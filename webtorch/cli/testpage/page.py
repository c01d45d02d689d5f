"""The test page: every entry of the op table on WebGPU in a tab, against PyTorch's results.

Needs PyTorch to be written, and a browser to be run.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from webtorch.cli.testpage import recording
from webtorch.io.safetensors import RawTensor, save_file
from webtorch.ops.record import Op
from webtorch.web.browsers import report
from webtorch.web.program_json import Json
from webtorch.web.site import copy_runtime, page_style

HERE = Path(__file__).parent
FILES = ("testpage.css", "testpage.js")
DTYPES = ("float32", "int64", "bool", "float16", "complex64")


@dataclass(frozen=True, slots=True)
class Written:
    """What a test page holds: tests, entries that have some, and those that have none."""

    tests: int
    entries: int
    left: int


def write(
    folder: Path,
    entries: Sequence[Op] | None = None,
    *,
    device: str = "webgpu",
    dtypes: Sequence[str] = DTYPES,
    most: int = 4,
    progress: Callable[[int, int], None] | None = None,
) -> Written:
    """Record entries (all by default) and write the page that tests them.

    An entry has at most `most` calls with float32 inputs, each with its gradients, and one with each other type.
    Raises RecordingError without PyTorch.
    """
    entries = recording.entries() if entries is None else entries
    kernels: list[Json] = []
    numbers: dict[str, int] = {}
    tests: list[Json] = []
    left: list[Json] = []
    tensors: dict[str, RawTensor] = {}
    for done, op in enumerate(entries):
        for found in recording.record(op, device, dtypes, most):
            if isinstance(found, recording.Left):
                left.append({"entry": found.entry, "why": found.why})
            else:
                tests.append(_test(len(tests), found, kernels, numbers, tensors))
        if progress is not None:
            progress(done + 1, len(entries))
    # A call that cannot be recorded says nothing about an entry that has others.
    tested = {test["entry"] for test in tests}
    left = [x for x in left if x["entry"] not in tested]
    page = {"pytorch": recording.version(), "kernels": kernels, "tests": tests, "left": left}
    folder.mkdir(parents=True, exist_ok=True)
    text = json.dumps(page, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    (folder / "tests.json").write_text(text + "\n", encoding="utf-8")
    save_file(tensors, folder / "tests.safetensors")
    for file in FILES:
        shutil.copyfile(HERE / file, folder / file)
    shutil.copyfile(HERE / "testpage.html", folder / "index.html")
    copy_runtime(folder)
    (folder / "page.css").write_text(page_style(), encoding="utf-8")
    return Written(len(tests), len(tested), len(left))


def _test(
    number: int,
    case: recording.Case,
    kernels: list[Json],
    numbers: dict[str, int],
    tensors: dict[str, RawTensor],
) -> Json:
    """Return a test as the page has it; its tensors and kernels go to those of all."""
    test: Json = {"entry": case.entry, "kind": case.kind, "call": case.call}
    if case.exported is None:
        return {**test, "error": case.error}
    program = dict(case.exported.program)
    own: list[int] = []
    for kernel in program["kernels"]:
        key = json.dumps(kernel)
        if key not in numbers:
            numbers[key] = len(kernels)
            kernels.append(kernel)
        own.append(numbers[key])
    program["kernels"] = own
    for name, tensor in case.exported.weights.items():
        tensors[f"{number}/{name}"] = tensor
    expected: list[Json] = []
    for i, result in enumerate(case.expected):
        if result.data is not None:
            stored = "float32" if result.rtol else "bool" if result.dtype == "bool" else "int32"
            tensors[f"{number}={i}"] = RawTensor(stored, result.shape, result.data)
        expected.append(
            {
                "shape": list(result.shape),
                "dtype": result.dtype,
                "rtol": result.rtol,
                "atol": result.atol,
                "free": result.data is None,
            }
        )
    return {**test, "program": program, "expected": expected}


def run(
    folder: Path, browser: str = "chromium", progress: Callable[[Any], None] | None = None
) -> Json:
    """Run a test page in a headless browser and return its report, as its "Export" button writes it.

    Raises BrowserError where the browser is missing or its page fails.
    """
    found: Json = report(folder, "index.html?report", browser, progress=progress)
    return found
