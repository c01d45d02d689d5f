"""Run PyTorch's own test files on webtorch: `make upstream FILES=folder`, docs/upstream.md.

    python -m tests.upstream.run FOLDER [--only test_indexing,nn/] [--way device] [--jobs 1]
        [--every 1] [--seed 0] [--again]

Each test runs with real PyTorch on the CPU; those that pass run on PyTorch's "webgpu" device, where they are
made for each device, and with webtorch under the name `torch`. Results are kept in .cache/upstream, one file
of JSON for each way and test file, so a run that was stopped goes on; a worker that dies takes one test with it.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from pathlib import Path
from typing import Any

from tests.conformance.pool import Worker, work_off
from tests.upstream import report
from tests.upstream.report import CACHE
from tests.upstream.worker import LIMIT, sample

# A folder of PyTorch's `test`; what is not in it is said to be missing.
FILES = (
    "test_torch", "test_indexing", "test_view_ops", "test_autograd", "nn/test_module_hooks", "test_type_promotion",
    "test_shape_ops", "test_reductions", "test_tensor_creation_ops", "test_binary_ufuncs", "test_unary_ufuncs",
    "test_linalg", "test_nn", "nn/test_convolution", "nn/test_dropout", "nn/test_embedding", "nn/test_init",
    "nn/test_lazy_modules", "nn/test_load_state_dict", "nn/test_multihead_attention", "nn/test_packed_sequence",
    "nn/test_parametrization", "nn/test_pooling", "nn/test_pruning", "optim/test_optim", "optim/test_lrscheduler",
    "optim/test_swa_utils", "test_optim", "distributions/test_distributions",
    "distributions/test_constraints", "distributions/test_transforms", "test_serialization", "test_stateless",
    "test_dataloader", "functorch/test_vmap", "functorch/test_eager_transforms", "test_sparse", "test_sparse_csr",
    "test_modules", "test_foreach", "test_masked", "test_maskedtensor", "test_weak", "test_subclass",
    "test_segment_reductions", "test_sort_and_select", "test_scatter_gather_ops", "test_numpy_interop",
    "test_complex", "test_comparison_utils", "test_type_info", "test_overrides", "test_fx", "test_pytree",
    "test_namedtuple_return_api", "test_native_functions", "test_native_mha", "test_spectral_ops",
    "test_flop_counter", "test_python_dispatch", "test_functional_optim", "test_dlpack", "test_utils",
    "test_per_overload_api",
)  # fmt: skip
Task = tuple[str, str, str]


def ask(
    way: str, folder: Path, file: str, tests: list[str], jobs: int, path: Path | None = None
) -> dict[str, Any]:
    """Run tests of a file one way: test -> result. They go to the file at `path`, if one is given, now and then."""
    found: dict[str, Any] = json.loads(path.read_text()) if path and path.exists() else {}

    written = time.monotonic()

    def start() -> Worker[Task]:
        return Worker(("-m", "tests.upstream.worker", way, str(folder)), os.environ)

    def finish(task: Task, result: dict[str, Any], place: str) -> None:
        if "died" in result:
            result = {"outcome": "died", "message": result["died"]}
        nonlocal written
        found[task[2]] = result
        if path and time.monotonic() > written + 5:
            path.write_text(json.dumps(found, indent=1))
            written = time.monotonic()

    # A worker reads the file with its first test, and ends a test by itself after LIMIT.
    work_off([(way, file, test) for test in tests], jobs, start, 15 * LIMIT, finish)
    if path:
        path.write_text(json.dumps(found, indent=1))
    return found


def kept(
    way: str, folder: Path, file: str, wanted: list[str], options: argparse.Namespace
) -> dict[str, Any]:
    """Return what is known of the wanted tests, after running those of which nothing is."""
    path = CACHE / way / f"{file}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    if options.again and way != "pytorch":
        path.unlink(missing_ok=True)
    found = json.loads(path.read_text()) if path.exists() else {}
    if waiting := [test for test in wanted if test not in found]:
        found = ask(way, folder, file, waiting, options.jobs, path)
    return {test: found[test] for test in wanted}


def main() -> None:
    """Run what was asked for, and report."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument(
        "folder", type=Path, help="PyTorch's folder `test`, or a copy of some of it"
    )
    parser.add_argument("--only", default="", help="beginnings of file names, separated by commas")
    parser.add_argument("--way", choices=report.WAYS, help="one way only")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--every", type=int, default=1, help="a sample: every so many tests")
    parser.add_argument("--seed", type=int, help="draw the sample by chance, with this seed")
    parser.add_argument("--again", action="store_true", help="forget what is kept of these files")
    options = parser.parse_args()
    folder = options.folder.resolve()
    chosen = [f for f in FILES if f.startswith(tuple(options.only.split(",")))]
    results: dict[str, dict[str, Any]] = {}
    for name in chosen:
        file = f"{name}.py"
        if not (folder / file).exists():
            print(f"missing: {file}")
            continue
        listed = ask("pytorch", folder, file, [""], 1)[""]
        if "tests" not in listed:
            print(f"{file}: PyTorch itself cannot read it: {listed['message']}")
            continue
        known = kept(
            "pytorch", folder, file, sample(listed["tests"], options.every, options.seed), options
        )
        passing = [test for test, result in known.items() if result["outcome"] == "passed"]
        results[name] = {"pytorch": known}
        for way in [options.way] if options.way else report.WAYS:
            made = passing
            if way == "device":
                of_devices = set(ask(way, folder, file, [""], 1)[""]["tests"])
                made = [test for test in passing if test in of_devices]
            results[name][way] = kept(way, folder, file, made, options)
            print(report.line(name, way, results[name][way]), flush=True)
    report.show(results)
    report.write(report.read())


if __name__ == "__main__":
    main()
