"""Run PyTorch's own tests of several processes with tensors on "webgpu", beside Gloo's on the CPU: docs/upstream.md.

    python -m tests.upstream.groups [FOLDER] [--only distributed_test,fsdp/] [--tests words] [--every 1] [--again]

The tests of all collectives and of DistributedDataParallel are in PyTorch's wheel; FOLDER is the folder
`test/distributed` of a checkout for the others. Each test runs with Gloo on the CPU; those that pass run on the
device, where tensors are made unless a test says otherwise, and what it says of "cuda" is meant. Results are kept
in .cache/upstream/groups.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import importlib.util
import json
import multiprocessing
import os
import re
import sys
import time
import traceback
import unittest
from collections import Counter
from pathlib import Path
from types import ModuleType
from typing import Any, TypeAlias

from tests.conformance.pool import Worker, work_off
from tests.upstream import processes
from tests.upstream.report import CACHE, causes
from tests.upstream.worker import executed, names, prepare

OF_THE_WHEEL = "distributed_test"
# Files of a folder `test/distributed` that Gloo runs, or threads of one process.
FILES = (
    OF_THE_WHEEL, "test_multi_threaded_pg", "test_functional_api", "test_c10d_object_collectives", "test_device_mesh",
    "algorithms/ddp_comm_hooks/test_ddp_hooks", "algorithms/test_join", "optim/test_zero_redundancy_optimizer",
    "optim/test_apply_optimizer_in_backward",
    *(f"tensor/test_{name}" for name in (
        "api", "attention", "common_rules", "convolution_ops", "dtensor", "embedding_ops", "experimental_ops",
        "init", "math_ops", "matrix_ops", "op_strategy", "optimizers", "placement_types",
        "pointwise_ops", "random_ops", "redistribute", "tensor_ops", "utils", "view_ops",
    )),
    *(f"tensor/experimental/test_{name}" for name in ("local_map", "register_sharding", "tp_transform")),
    *(f"tensor/parallel/test_{name}" for name in (
        "parallelize_api", "tp_examples", "tp_random_state", "tp_style",
    )),
    *(f"_composable/fsdp/test_fully_shard_{name}" for name in (
        "autograd", "clip_grad_norm_", "comm", "dtensor", "extensions", "frozen", "grad_scaler", "ignore_params",
        "init", "logging", "memory", "mixed_precision", "overlap", "state", "state_dict", "training",
    )),
    *(f"fsdp/test_fsdp_{name}" for name in (
        "clip_grad_norm", "core", "flatten_params", "grad_acc", "misc", "state_dict", "use_orig_params",
    )),
    *(f"checkpoint/test_{name}" for name in (
        "checkpoint", "dedup_tensors", "dtensor_checkpoint", "dtensor_resharding", "file_system_checkpoint",
        "file_system_checkpoint_cpu", "format_utils", "hsdp_checkpoint", "nested_dict", "planner", "save_load_api",
        "state_dict", "state_dict_utils", "tp_checkpoint", "traverse", "utils",
    )),
)  # fmt: skip
SECONDS = 60
SETTINGS = {
    "BACKEND": "gloo", "WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "4", "INIT_METHOD": "env://", "MASTER_ADDR": "127.0.0.1",
    "DISTRIBUTED_TESTS_DEFAULT_TIMEOUT": str(SECONDS),
}  # fmt: skip
WAYS = ("pytorch", "device", "torch")
CARDS = 4

# What a file says of cards and of their groups, and what is meant on the device.
MEANT = (
    (r"(?<!use_)(?<!common_)(?<!backends\.)cuda(?!\.amp)", "webgpu"),
    (r"Backend\.NCCL", "Backend.GLOO"),
    (r'(?<![!=]= ")(?<=["\':])nccl(?=["\'])', "gloo"),
)

# How a test ended.
Result: TypeAlias = dict[str, Any]


class _Rank(multiprocessing.get_context("fork").Process):  # type: ignore[name-defined, misc]
    """A process as a launcher starts it."""

    def run(self) -> None:
        os.environ["LOCAL_RANK"] = str(self._args[0])
        super().run()


def _spawn(test: Any) -> None:
    """Start the processes of a test. Those of FSDP start as many as there are cards, and pass without any."""
    if not test.world_size:
        test.skipTest("it wants a GPU")
    test._start_processes(_Rank)


def _module(way: str, name: str, path: Path) -> ModuleType:
    """Return a file as a module of that name; on the device, it says what is meant."""
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    text = path.read_text()
    for said, meant in (
        MEANT if way == "device" else ((r"DEVICE_COUNT = 1\b", f"DEVICE_COUNT = {CARDS}"),)
    ):
        text = re.sub(said, meant, text)
    code = compile(text, path, "exec")
    borrowed = sys.modules.get("tests.upstream.borrowed")
    if borrowed is not None:
        borrowed.reading = True
    while not executed(lambda: exec(code, vars(module))):
        pass
    if borrowed is not None:
        borrowed.reading = False
    vars(module).pop("load_tests", None)
    return module


def _read(way: str, folder: Path, file: str) -> ModuleType:
    """Return a file of tests as a module."""
    if way == "torch":
        processes.install()
    import torch
    import torch.testing._internal as wheel
    import torch.testing._internal.common_cuda as cards
    import torch.testing._internal.common_distributed as common
    import torch.testing._internal.common_utils as utils

    wants: Any = common
    home = Path(wheel.__file__).parent
    if way == "device":
        utils.TEST_CUDA = wants.TEST_CUDA = cards.TEST_CUDA = True
        for counted in (torch.cuda, torch.accelerator, torch.xpu, torch.webgpu):
            counted.device_count = lambda: CARDS
        # By the name of another kind: PyTorch asks CUDA's own functions for more.
        wants.TEST_XPU = True
        torch.xpu.is_available = lambda: False
        wants.DistTestCases.backend_feature["webgpu"] = {"gloo"}
        wants.requires_nccl = lambda: lambda test: test
        wants.requires_nccl_version = lambda *_: lambda test: test
    elif file != OF_THE_WHEEL:
        # As many processes on the CPU as there would be cards.
        wants.skip_if_lt_x_gpu = lambda *_, **__: lambda test: test
        torch.cpu.device_count = torch.accelerator.device_count = lambda: CARDS
    if way == "torch":
        processes.of_processes(common)
    else:
        torch.distributed.Backend.backend_capability["threaded"].append("webgpu")
    if file != OF_THE_WHEEL:
        _module(way, f"{wheel.__name__}.common_fsdp", home / "common_fsdp.py")
    wants.MultiProcessTestCase._spawn_processes = _spawn
    # Processes of tests that share theirs.
    torch.multiprocessing.set_start_method("fork", force=True)
    path = (home / "distributed" if file == OF_THE_WHEEL else folder) / f"{file}.py"
    sys.path[0:1] = [str(path.parent)]
    module = _module(way, path.stem, path)
    if file == OF_THE_WHEEL:
        base, tests = module.TestDistBackend, module.DistributedTest._DistTestBase

        def start(self: Any) -> None:
            base.setUp(self)
            self._spawn_processes()

        module.TestGloo = type("TestGloo", (base, tests), {"setUp": start})  # type: ignore[attr-defined]
        module.TestGloo.__module__ = module.__name__
        del module.TestDistBackend
    return module


def _run(way: str, module: ModuleType, name: str) -> Result:
    """Run one test, and tell the last lines of an error."""
    import torch

    if way == "device":
        torch.set_default_device("webgpu")
        name = name.replace("cuda", "webgpu")
    result, start = unittest.TestResult(), time.monotonic()
    unittest.defaultTestLoader.loadTestsFromName(name, module).run(result)
    record: Result = {"seconds": round(time.monotonic() - start, 2)}
    if bad := [*result.errors, *result.failures]:
        lines = [line for line in bad[0][1].splitlines() if line.strip(" ^")]
        told = [line for line in lines if re.match(r"[\w.]*(Error|Exception)\b", line)][-1:]
        return {**record, "outcome": "failed", "message": "\n".join(told), "at": lines[-16:]}
    reason = {"message": result.skipped[0][1]} if result.skipped else {}
    return {**record, "outcome": "skipped" if result.skipped else "passed", **reason}


def _forked(way: str, module: ModuleType, name: str) -> Result:
    """Run one test in a process of its own, which has read everything."""
    out, inner = os.pipe()
    child = os.fork()
    if not child:
        os.setsid()
        try:
            answer = _run(way, module, name)
        except BaseException:
            answer = {"outcome": "failed", "message": traceback.format_exc()[-1500:]}
        os.write(inner, json.dumps(answer).encode())
        os._exit(0)
    os.close(inner)
    with os.fdopen(out, "rb") as file:
        import select

        text = file.read() if select.select([file], [], [], 1.5 * SECONDS)[0] else b""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child, 9)
    os.waitpid(child, 0)
    return json.loads(text) if text else {"outcome": "died", "message": "it died, or hung"}


def work() -> None:
    """Answer tasks (way, file, test), a line each, until the input ends; the test "" asks for the names of a file's."""
    way, folder, file = sys.argv[2], Path(sys.argv[3]), sys.argv[4]
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    del sys.argv[1:]
    os.environ.update(SETTINGS)
    if way == "torch":
        processes.load()
    prepare(way)
    if way == "device":
        importlib.import_module("webtorch.pytorch.library")
        interrupt = importlib.import_module("webtorch.pytorch.interrupt")

        def begin_anew() -> None:
            # Nothing has used the device before a fork here.
            interrupt.flag.pressed = interrupt.flag.forked = False

        os.register_at_fork(after_in_child=begin_anew)
    try:
        module: ModuleType | None = _read(way, folder, file)
        error = ""
    except (Exception, SystemExit) as found:
        module, error = None, f"{type(found).__name__}: {found}"
    for line in sys.stdin:
        test = json.loads(line)[2]
        if module is None:
            result: Result = {"outcome": "failed", "message": error}
        elif test:
            result = _forked(way, module, test)
        else:
            result = {"tests": names("", module)}
        answers.write(json.dumps(result) + "\n")
        answers.flush()


def ask(way: str, folder: Path, file: str, tests: list[str]) -> Result:
    """Run tests of a file; results that are kept are not made again."""
    path = CACHE / "groups" / way / f"{file}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    found: Result = json.loads(path.read_text()) if path.exists() else {}

    def finish(task: tuple[str, str, str], result: Result, place: str) -> None:
        if "died" in result:
            result = {"outcome": "died", "message": result["died"]}
        found[task[2]] = result
        path.write_text(json.dumps(found, indent=1))

    def start() -> Worker[tuple[str, str, str]]:
        return Worker(
            ("-m", "tests.upstream.groups", "--worker", way, str(folder), file), os.environ
        )

    work_off(
        [(way, file, test) for test in tests if test not in found], 1, start, 3 * SECONDS, finish
    )
    return {test: found[test] for test in tests}


def main() -> None:
    """Run what was asked for, and tell what passes."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folder", type=Path, nargs="?", default=Path("."))
    parser.add_argument("--only", default="", help="beginnings of file names, separated by commas")
    parser.add_argument("--tests", default="", help="parts of names of tests, separated by commas")
    parser.add_argument("--every", type=int, default=1, help="a sample: every so many tests")
    parser.add_argument("--ways", default="device", help="device, torch, or both with a comma")
    parser.add_argument("--again", action="store_true", help="run what does not pass again")
    options = parser.parse_args()
    folder, wanted = options.folder.resolve(), options.tests.split(",")
    results: dict[str, Result] = {}
    for file in [f for f in FILES if f.startswith(tuple(options.only.split(",")))]:
        if file != OF_THE_WHEEL and not (folder / f"{file}.py").exists():
            continue
        listed = ask("pytorch", folder, file, [""])[""]
        if "tests" not in listed:
            print(f"{file}: PyTorch itself cannot read it: {listed['message']}")
            continue
        tests = [t for t in listed["tests"] if any(word in t for word in wanted)]
        known = ask("pytorch", folder, file, tests[:: options.every])
        passing = [test for test, result in known.items() if result["outcome"] == "passed"]
        # Those that Gloo's CPU leaves out have nothing to be compared with.
        cards = [
            test
            for test, result in known.items()
            if file == OF_THE_WHEEL
            and result["outcome"] == "skipped"
            and re.search("(?i)cuda|gpu|nccl", result["message"])
        ]
        for way in options.ways.split(","):
            kept = CACHE / "groups" / way / f"{file}.json"
            if options.again and kept.exists():
                old = json.loads(kept.read_text()).items()
                again = {t: r for t, r in old if r["outcome"] == "passed" or t not in tests}
                kept.write_text(json.dumps(again))
            # Under the name `torch` a process is one rank, and does not play several.
            chosen = [t for t in passing if way != "torch" or "LocalTensor" not in t]
            for what, those in (("of the CPU's", chosen), ("of cards'", cards)):
                found = ask(way, folder, file, those)
                results[f"{file} {what}"] = {"device": found}
                count = Counter(result["outcome"] for result in found.values())
                if those:
                    print(
                        f"{way}: {file} {what}: {count['passed']} of {len(those)} {dict(count)}",
                        flush=True,
                    )
    for cause, where in causes(results, "device"):
        print(f"{len(where):4} {cause}\n       {' '.join(where[:4])}")


if __name__ == "__main__":
    if "--worker" in sys.argv:
        work()
    else:
        main()
