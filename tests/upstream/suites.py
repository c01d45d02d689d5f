"""Run test suites of projects that use PyTorch on webtorch: docs/upstream.md.

    python -m tests.upstream.suites FOLDER [--only einops,keras] [--every 1] [--seed 0] [--again]

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
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.conformance.pool import ROOT
from tests.upstream import report

# By its path: the suite's folder may have a package `tests` too.
WORKER = str(Path(__file__).with_name("suite_worker.py"))
CACHE = report.CACHE.with_name("suites")


@dataclass(frozen=True)
class Suite:
    """Where the tests of a project are, which way they run, and what they want to be told.

    ways: "torch" (under that name), "device", or both. path: folders of packages that its tests import, beside the
    project's own folder. device: environment that puts the tests on the device.
    """

    ways: str
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
        ["--max-examples=15", "--hypothesis-seed=0", "--disable-warnings"],
        {"ARRAY_API_TESTS_MODULE": "array_api_compat.torch", "ARRAY_API_TESTS_VERSION": "2024.12"},
    ),
    "torchmetrics": Suite("torch", ["tests/unittests"], ["src", "tests"], every=20),
    "keras": Suite(
        "torch device",
        ["keras/src"],
        environment={"KERAS_BACKEND": "torch"},
        device={"KERAS_TORCH_DEVICE": "webgpu"},
        every=20,
    ),
    "utilities": Suite("torch", ["tests/unittests"], ["src", "tests"]),
    "ignite": Suite(
        "torch", [f"tests/ignite/{part}" for part in ("base", "engine", "handlers", "metrics")], every=10
    ),
    "kornia": Suite(
        "torch",
        [
            f"tests/{part}"
            for part in (
                "color", "enhance", "filters", "losses", "morphology", "geometry", "augmentation",
            )
        ],
        every=20,
    ),
    "e3nn": Suite("torch", ["tests"]),
    "linear_operator": Suite("torch", ["test"], every=10),
    "gpytorch": Suite("torch", ["test"], every=5),
    "pyro": Suite(
        "torch",
        [f"tests/{part}" for part in ("distributions", "nn", "ops", "optim", "poutine")],
        # Warnings are errors there, also those of this worker's own imports.
        arguments=["-W", "ignore"],
        every=20,
    ),
    "captum": Suite("torch", ["tests"], every=10),
    "torchdiffeq": Suite(
        "torch", [f"tests/{part}_tests.py" for part in ("api", "event", "gradient", "norm", "odeint")], ["tests"]
    ),
    "torchsde": Suite("torch", ["tests"], every=40),
    "skorch": Suite("torch", ["skorch/tests"], every=10),
    "tensordict": Suite("torch", ["test/tensordict", "test/nn", "test/tensorclass"], ["test"], every=100),
    "rl": Suite(
        "torch",
        [
            *(f"test/{part}" for part in ("data", "modules", "objectives", "transforms")),
            *(f"test/test_{part}.py" for part in ("distributions", "postprocs", "specs", "exploration")),
        ],
        ["test"],
        every=100,
    ),
    "pytorch_geometric": Suite(
        "torch", [f"test/{part}" for part in ("nn", "utils", "transforms", "data", "metrics")], every=20
    ),
    "botorch": Suite("torch", ["test"], every=40),
    "segmentation_models.pytorch": Suite("torch", ["tests"], every=10),
    "spikingjelly": Suite("torch", ["test"], every=10),
    "MONAI": Suite(
        "torch", [f"tests/{part}" for part in ("networks", "losses", "metrics", "transforms", "inferers")], every=100
    ),
    "x-transformers": Suite("torch", ["tests"], every=2),
    "open_clip": Suite("torch", ["tests"], ["src"], every=4),
    "pytorch-lightning": Suite(
        "torch",
        [f"tests/tests_pytorch/{part}" for part in ("core", "loops", "trainer", "callbacks", "utilities")],
        ["tests", "src"],
        every=40,
    ),
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
        # No weights can be had.
        "device", ["tests"], arguments=["-k", "not pretrained"], device={"TORCH_DEVICE": "webgpu"}, every=10
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


def run(
    name: str,
    folder: Path,
    way: str,
    every: int = 1,
    only: list[str] | None = None,
    seed: int | None = None,
) -> dict[str, Any]:
    """Run tests of a suite one way, those of which nothing is kept, and return test -> result.

    only: names; None takes every so many of all tests, or as many drawn by chance with a seed.
    """
    suite, path = SUITES[name], CACHE / way / f"{name}.json"
    lines, log, task = (path.with_suffix(end) for end in (".lines", ".log", ".task"))
    path.parent.mkdir(parents=True, exist_ok=True)
    environment = {
        **os.environ, **suite.environment, **(suite.device if way == "device" else {}), "OMP_NUM_THREADS": "1",
        "OPENBLAS_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1",
        "PYTHONPATH": os.pathsep.join([str(ROOT), *(str((folder / p).resolve()) for p in (".", *suite.path)),
                                       os.environ.get("PYTHONPATH", "")]),
    }  # fmt: skip
    tests = suite.tests if only is None else dict.fromkeys(test.partition("::")[0] for test in only)
    command = [sys.executable, WORKER, way, str(task), str(lines), "-q",
               "--continue-on-collection-errors", "-p", "no:cacheprovider", *suite.arguments, *tests]  # fmt: skip
    found = take(path, lines)
    # The task is there until it is done: a run was stopped, or a test has ended its process.
    finished = bool(found) and not task.exists() and set(only or ()) <= found.keys()
    while not finished:
        task.write_text(
            json.dumps({"every": every, "seed": seed, "only": only, "known": list(found)})
        )
        with open(log, "w") as output:
            subprocess.run(command, cwd=folder, env=environment, stdout=output, stderr=output)
        before, found = found, take(path, lines)
        finished = not task.exists()
        if not finished and found == before:
            raise RuntimeError(f"{name}: pytest does not start: {log}")
    return found


def take(path: Path, lines: Path) -> dict[str, Any]:
    """Return the results at `path`, after adding those that a worker has written."""
    found: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    started = None
    for record in map(json.loads, lines.read_text().splitlines() if lines.exists() else ()):
        started = record.get("started", started)
        if "file" in record:
            print(f"{record['file']} cannot be read: {record['message'].splitlines()[-1]}")
        if "test" in record:
            found[record.pop("test")] = record
    if started is not None and started not in found:
        found[started] = {"outcome": "died", "message": "crash"}
    path.write_text(json.dumps(found, indent=1))
    lines.unlink(missing_ok=True)
    return found


def main() -> None:
    """Run what was asked for, and report."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folder", type=Path, help="checkouts of the projects")
    parser.add_argument("--only", default=",".join(SUITES), help="suites, separated by commas")
    parser.add_argument("--every", type=int, help="a sample: every so many tests")
    parser.add_argument("--seed", type=int, help="draw the sample by chance, with this seed")
    parser.add_argument("--again", action="store_true", help="forget what is kept of webtorch")
    options = parser.parse_args()
    results: dict[str, dict[str, Any]] = {}
    for name in options.only.split(","):
        ways, folder = SUITES[name].ways.split(), (options.folder / name).resolve()
        if not folder.exists():
            print(f"missing: {name}")
            continue
        if options.again:
            for way in ways:
                (CACHE / way / f"{name}.json").unlink(missing_ok=True)
        known = run(name, folder, "pytorch", options.every or SUITES[name].every, seed=options.seed)
        passing = [test for test, result in known.items() if result["outcome"] == "passed"]
        missing = {"outcome": "failed", "message": "the test was not made"}
        results[name] = {}
        for way in ways:
            found = run(name, folder, way, only=passing)
            results[name][way] = {test: found.get(test, missing) for test in passing}
            print(report.line(name, way, results[name][way]), flush=True)
    report.show(results)
    report.write(report.read(CACHE), report.SUITES)


if __name__ == "__main__":
    main()
