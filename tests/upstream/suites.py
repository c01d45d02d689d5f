"""Run test suites of projects that use PyTorch on webtorch: docs/upstream.md.

    python -m tests.upstream.suites FOLDER [--only einops,keras] [--every 1] [--again]

FOLDER holds checkouts of the projects. Each test runs with real PyTorch on the CPU; those that pass run with
webtorch under the name `torch`, or on PyTorch's "webgpu" device, as SUITES says. Results are kept in
.cache/suites, one file of JSON for each way and suite, so a run that was stopped goes on.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.conformance.pool import ROOT
from tests.upstream import report

CACHE = ROOT / ".cache" / "suites"


@dataclass(frozen=True)
class Suite:
    """Where the tests of a project are, which way they run, and what they want to be told.

    path: folders of packages that its tests import, beside the project's own folder. device: environment that
    puts the tests on the device.
    """

    way: str
    tests: Sequence[str]
    path: Sequence[str] = ()
    arguments: Sequence[str] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    device: Mapping[str, str] = field(default_factory=dict)
    every: int = 1


TRANSFORMERS = (
    "albert", "bart", "beit", "bert", "blip", "bloom", "clip", "convnext", "deberta_v2", "detr", "distilbert", "dinov2",
    "electra", "falcon", "gemma", "gpt2", "gpt_neox", "llama", "mamba", "mistral", "mixtral", "mobilevit", "opt", "phi",
    "qwen2", "resnet", "roberta", "segformer", "swin", "t5", "vit", "wav2vec2", "whisper", "xlm_roberta",
)  # fmt: skip
SUITES = {
    "einops": Suite(
        "torch", ["einops/tests"], environment={"EINOPS_TEST_BACKENDS": "numpy,torch"}
    ),
    "array-api-tests": Suite(
        "torch",
        ["array_api_tests"],
        ["../array-api-compat/src"],
        ["--max-examples=20", "--hypothesis-seed=0", "--disable-warnings"],
        {"ARRAY_API_TESTS_MODULE": "array_api_compat.torch", "ARRAY_API_TESTS_VERSION": "2024.12"},
    ),
    "torchmetrics": Suite("torch", ["tests/unittests"], ["src", "tests"], every=20),
    "keras": Suite("torch", ["keras/src"], environment={"KERAS_BACKEND": "torch"}, every=20),
    "utilities": Suite("torch", ["tests/unittests"], ["src", "tests"]),
    "ignite": Suite("torch", ["tests/ignite"], every=10),
    "kornia": Suite("torch", ["tests"], every=20),
    "transformers": Suite(
        "device",
        [f"tests/models/{family}/test_modeling_{family}.py" for family in TRANSFORMERS],
        ["src"],
        device={
            "TRANSFORMERS_TEST_DEVICE": "webgpu",
        },
        every=10,
    ),
    "pytorch-image-models": Suite(
        "device", ["tests"], device={"TORCH_DEVICE": "webgpu"}, every=10
    ),
    "accelerate": Suite("device", ["tests"], ["src"]),
    "diffusers": Suite(
        "device",
        ["tests/schedulers"],
        ["src"],
        device={"DIFFUSERS_TEST_DEVICE": "webgpu"},
        every=2,
    ),
}  # fmt: skip


def run(suite: Suite, folder: Path, way: str, wanted: str | list[str], path: Path) -> dict[str, Any]:
    """Run tests of a suite one way, and return test -> result; each is kept in the file at `path`.

    wanted: names, or "1:3" for every third.
    """
    found: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    path.parent.mkdir(parents=True, exist_ok=True)
    environment = {
        **os.environ, **suite.environment, **(suite.device if way == "device" else {}), "OMP_NUM_THREADS": "1",
        "OPENBLAS_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1",
        "PYTHONPATH": os.pathsep.join([str(ROOT), str(folder), *(str((folder / p).resolve()) for p in suite.path),
                                       os.environ.get("PYTHONPATH", "")]),
    }  # fmt: skip
    options = ["-q", "--continue-on-collection-errors", "-p", "no:cacheprovider", *suite.arguments]
    with tempfile.TemporaryDirectory() as scratch:
        names, lines = Path(scratch, "names"), Path(scratch, "lines")
        while True:
            if isinstance(wanted, list):
                if not (waiting := [name for name in wanted if name not in found]):
                    return found
                names.write_text("\n".join(waiting))
            lines.write_text("")
            command = [sys.executable, "-m", "tests.upstream.suite_worker", way,
                       str(names) if isinstance(wanted, list) else wanted, str(lines), *options, *suite.tests]  # fmt: skip
            with open(path.with_suffix(".log"), "w") as log:
                subprocess.run(command, cwd=folder, env=environment, stdout=log, stderr=log)
            started = None
            for record in map(json.loads, lines.read_text().splitlines()):
                if "file" in record:
                    print(f"{record['file']} cannot be read: {record['message'][-300:]}")
                started = record.get("started", started)
                if "test" in record:
                    found[record.pop("test")] = record
            died = started is not None and started not in found
            if died:
                found[started] = {"outcome": "died", "message": "crash"}
            elif isinstance(wanted, list):
                missing = {"outcome": "failed", "message": "the test was not made"}
                found |= {name: missing for name in waiting if name not in found}
            path.write_text(json.dumps(found, indent=1))
            if not died:
                return found
            if isinstance(wanted, str):
                raise RuntimeError(f"PyTorch's own run died in {started}")


def main() -> None:
    """Run what was asked for, and report."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folder", type=Path, help="checkouts of the projects")
    parser.add_argument("--only", default=",".join(SUITES), help="suites, separated by commas")
    parser.add_argument("--every", type=int, help="a sample: every so many tests")
    parser.add_argument("--again", action="store_true", help="forget what is kept of webtorch")
    options = parser.parse_args()
    results: dict[str, dict[str, Any]] = {}
    for name in options.only.split(","):
        suite, folder = SUITES[name], (options.folder / name).resolve()
        paths = {way: CACHE / way / f"{name}.json" for way in ("pytorch", suite.way)}
        if not folder.exists():
            print(f"missing: {name}")
            continue
        if options.again:
            paths[suite.way].unlink(missing_ok=True)
        known = json.loads(paths["pytorch"].read_text()) if paths["pytorch"].exists() else None
        known = known or run(suite, folder, "pytorch", f"1:{options.every or suite.every}", paths["pytorch"])
        passing = [test for test, result in known.items() if result["outcome"] == "passed"]
        found = run(suite, folder, suite.way, passing, paths[suite.way])
        results[name] = {"pytorch": known, suite.way: {test: found[test] for test in passing}}
        print(report.line(name, suite.way, results[name][suite.way]), flush=True)
    report.show(results)


if __name__ == "__main__":
    main()
