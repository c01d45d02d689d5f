"""Runs PyTorch's tests one by one: tasks come as lines on standard input, results go out as lines.

    python -m tests.upstream.worker WAY FOLDER

A task is (way, file, test); the test "" asks for the names of the file's tests.
"""

from __future__ import annotations

import importlib.util
import json
import os
import random
import re
import signal
import sys
import time
import traceback
import unittest
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

LONGEST = 600
# Seconds of the processor after which a test has failed.
LIMIT = 40
# PyTorch registers the device when it is told to; the engine is the CPU's.
SETTINGS = {
    "TORCH_DEVICE_BACKEND_AUTOLOAD": "0", "WEBTORCH_PYTORCH_ENGINE": "cpu", "WEBTORCH_DEVICE": "cpu",
    "PYTORCH_PRINT_REPRO_ON_FAILURE": "0",
}  # fmt: skip
_read: dict[str, ModuleType] = {}


def prepare(way: str) -> None:
    """Make the process one of the three ways: "pytorch", "device", "torch"."""
    os.environ.update(SETTINGS)
    if way == "torch":
        from tests.upstream import borrowed

        borrowed.install()
    import torch

    torch.set_num_threads(1)
    if way == "device":
        _on_the_device()


def _on_the_device() -> None:
    """Let tests that are made for each device be made for "webgpu", under the names that they have on the CPU."""
    import webtorch.pytorch  # noqa: F401  # the machinery asks for the device's name when it is read

    import torch.testing._internal.common_device_type as made  # isort: skip

    class OnDevice(made.DeviceTypeTestBase):
        device_type = "cpu"

        @classmethod
        def setUpClass(cls) -> None:
            cls.device_type = "webgpu"

        @classmethod
        def get_primary_device(cls) -> str:
            return "webgpu:0"

        @classmethod
        def get_all_devices(cls) -> list[str]:
            return ["webgpu:0"]

    def bases(except_for: Any = None, only_for: Any = None, *others: Any, **more: Any) -> list[Any]:
        OnDevice.device_type = "cpu"
        return (
            []
            if only_for and {"cpu"} == {*([only_for] if isinstance(only_for, str) else only_for)}
            else [OnDevice]
        )

    made.get_desired_device_type_test_bases = bases


def _by_default_on_the_device() -> None:
    """Let tests that name no device make their tensors on "webgpu"; NumPy takes those by way of the CPU, and the state
    of random numbers is that of the device that draws them. PyTorch wants lengths of sequences on the CPU, and
    makes them by default on the device itself.
    """
    import torch

    torch.set_default_device("webgpu")
    there = torch.webgpu  # type: ignore[attr-defined]
    torch.get_rng_state, torch.set_rng_state = there.get_rng_state, there.set_rng_state
    packed = torch._VF._pack_padded_sequence
    lengths_there = lambda x, lengths, first: packed(x, lengths.cpu(), first)  # noqa: E731
    setattr(torch._VF, "_pack_padded_sequence", lengths_there)  # noqa: B010
    for name in ("numpy", "__array__"):
        there = getattr(torch.Tensor, name)
        setattr(
            torch.Tensor,
            name,
            lambda tensor, *args, _there=there, **kwargs: _there(tensor.cpu(), *args, **kwargs),
        )


def read(way: str, folder: Path, file: str) -> ModuleType:
    """Return a test file as a module."""
    if file not in _read:
        path = folder / file
        if way == "device" and not _made_for_devices(path):
            _by_default_on_the_device()
        sys.path[0:1] = [str(path.parent)]
        spec = importlib.util.spec_from_file_location(path.stem, path)
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[path.stem] = module
        if way == "torch":
            from tests.upstream import borrowed

            borrowed.reading = True
        loader = spec.loader
        while not executed(lambda: loader.exec_module(module)):
            pass
        # What PyTorch's would refuse: tests of a file that is not the program itself.
        vars(module).pop("load_tests", None)
        if way == "torch":
            borrowed.reading = False
        _read[file] = module
    return _read[file]


def _made_for_devices(path: Path) -> bool:
    return "instantiate_device_type_tests" in path.read_text()


def executed(run: Callable[[], object]) -> bool:
    """Read a file; where it wants a name of PyTorch's machinery that this PyTorch lacks, give one and say False."""
    try:
        run()
    except ImportError as error:
        home = sys.modules.get(error.name or "")
        wanted = re.match(r"cannot import name '(\w+)'", error.msg)
        if home is None or wanted is None or not home.__name__.startswith("torch.testing."):
            raise
        setattr(home, wanted[1], _StandIn())
        return False
    return True


class _StandIn:
    """A name of another version's machinery: false, without elements, and as a decorator nothing."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return args[0] if len(args) == 1 and callable(args[0]) else self

    def __bool__(self) -> bool:
        return False

    def __iter__(self) -> Iterator[Any]:
        return iter(())


def sample(tests: Sequence[Any], every: int, seed: int | None) -> Sequence[Any]:
    """Return every so many of the tests, or as many drawn by chance, in their order."""
    if seed is None:
        return tests[::every]
    places = random.Random(seed).sample(range(len(tests)), -(-len(tests) // every))
    return [tests[place] for place in sorted(places)]


def tests(suite: unittest.TestSuite) -> Iterator[unittest.TestCase]:
    """Return the tests of a suite."""
    for one in suite:
        if isinstance(one, unittest.TestSuite):
            yield from tests(one)
        else:
            yield one


def names(way: str, module: ModuleType) -> list[str]:
    """Return the tests of a module as "Class.test"; for the device those that are made for each device, if any are."""
    found = tests(unittest.defaultTestLoader.loadTestsFromModule(module))
    by_default = not _made_for_devices(Path(str(module.__file__)))
    return [
        f"{type(t).__name__}.{t._testMethodName}"
        for t in found
        if way != "device" or hasattr(type(t), "get_primary_device") or by_default
    ]


def run(module: ModuleType, name: str) -> dict[str, Any]:
    """Run one test: its outcome, and of a failure the error and where it was raised."""
    result = unittest.TestResult()
    if absent := _stands_on_what_is_absent(vars(module).get(name.partition(".")[0])):
        return {"outcome": "failed", "message": f"NotImplementedError: {absent}"}
    start = time.monotonic()
    signal.signal(signal.SIGPROF, _too_long)
    signal.setitimer(signal.ITIMER_PROF, LIMIT)
    with warnings.catch_warnings():
        try:
            suite = unittest.defaultTestLoader.loadTestsFromName(name, module)
        except AttributeError:
            return {"outcome": "missing", "message": "the test was not made"}
        raised: list[BaseException] = []
        result._exc_info_to_string = _keep(result, raised)
        suite.run(result)
    signal.setitimer(signal.ITIMER_PROF, 0)
    record: dict[str, Any] = {"seconds": round(time.monotonic() - start, 2)}
    if result.expectedFailures or result.unexpectedSuccesses:
        return {**record, "outcome": "skipped", "message": "PyTorch's tests say that it fails"}
    if result.errors or result.failures:
        error = raised[0] if raised else AssertionError("failed")
        frames = traceback.extract_tb(error.__traceback__)
        at = [
            f"{Path(f.filename).name}:{f.lineno} {f.name}"
            for f in frames
            if "unittest" not in f.filename
        ]
        message = f"{type(error).__name__}: {error}"
        line = [f.line for f in frames if f.filename == module.__file__][-1:]
        return {
            **record,
            "outcome": "failed",
            "message": message[:LONGEST],
            "at": at[-3:],
            "line": line,
        }
    return {**record, "outcome": "skipped" if result.skipped else "passed",
            **({"message": result.skipped[0][1]} if result.skipped else {})}  # fmt: skip


def _stands_on_what_is_absent(tests: Any) -> str:
    """Return why a base of a class of tests is absent, "" if none is."""
    if not isinstance(tests, type) or type(tests).__name__ != "_Absent":
        return ""
    return next((base.__doc__ for base in tests.__mro__ if base.__doc__), "")


class TooLong(BaseException):
    """Nobody on the way catches it."""


def _too_long(*_: object) -> None:
    raise TooLong(f"not done after {LIMIT} seconds of the processor")


def _keep(result: unittest.TestResult, raised: list[BaseException]) -> Any:
    def text(info: Any, test: Any) -> str:
        raised.append(info[1])
        return str(info[1])

    return text


def main() -> None:
    """Answer until the input ends."""
    way, folder = sys.argv[1], Path(sys.argv[2])
    # What libraries print must not get between the answers.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    del sys.argv[1:]
    prepare(way)
    for line in sys.stdin:
        _, file, test = json.loads(line)
        try:
            module = read(way, folder, file)
            result = run(module, test) if test else {"tests": names(way, module)}
            if way == "torch":
                sys.modules["tests.upstream.borrowed"].forget_hooks()
        except BaseException as error:
            traceback.print_exc()
            result = {"outcome": "failed", "message": f"{type(error).__name__}: {error}"[:LONGEST]}
        answers.write(json.dumps(result) + "\n")
        answers.flush()


if __name__ == "__main__":
    main()
