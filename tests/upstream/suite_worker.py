"""Runs tests of another project with pytest, and writes down what each gives, as lines of JSON.

    python tests/upstream/suite_worker.py WAY TASK RESULTS ARGUMENTS...

TASK is a file of JSON: which tests are wanted (all, or every so many), and which are known; it is deleted when they
have run. This runs in the folder of the suite.
"""

from __future__ import annotations

import json
import os
import random
import re
import signal
import sys
import time
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import pytest
from hypothesis import Phase, settings

from tests.conformance.pool import ROOT
from tests.upstream.worker import LIMIT, LONGEST, SETTINGS, TooLong, _too_long, sample


def _name(item: pytest.Item) -> str:
    """Return a test's name, without the addresses of what it is given: each process has others."""
    return re.sub(r"0x[0-9a-f]{8,}", "0x", item.nodeid)


class Recorder:
    """Writes the name of a test before it runs, so that one that ends the process is known, and its result."""

    def __init__(self, task: dict[str, Any], results: IO[str]) -> None:
        self.task, self.only, self.known = task, task["only"], {*task["known"]}
        self.results = results
        self.record: dict[str, Any] = {}

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Leave what is wanted and not known."""
        only = None if self.only is None else {*self.only}
        if only is None:
            taken = sample(items, self.task["every"], self.task["seed"])
        else:
            taken = [item for item in items if _name(item) in only]
        items[:] = [item for item in taken if _name(item) not in self.known]

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """Write down what cannot be read."""
        if report.failed:
            self.write({"file": report.nodeid, "message": report.longreprtext[-LONGEST:]})

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        """Run a test, for LIMIT seconds of the processor at most."""
        self.write({"started": _name(item)})
        self.record, start = {"test": _name(item), "outcome": "passed"}, time.monotonic()
        signal.signal(signal.SIGPROF, _too_long)
        signal.setitimer(signal.ITIMER_PROF, LIMIT)
        try:
            return (yield)
        except TooLong as error:
            self.failed(error)
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)
            self.write({**self.record, "seconds": round(time.monotonic() - start, 2)})

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, call: pytest.CallInfo[None]) -> Iterator[None]:
        """Note how setting up, the test and tearing down ended."""
        report: pytest.TestReport = yield
        if report.skipped:
            self.record |= {"outcome": "skipped", "message": str(report.longrepr)[:LONGEST]}
        elif report.failed:
            self.failed(call.excinfo.value if call.excinfo else AssertionError(report.longrepr))
        return report

    def failed(self, error: BaseException) -> None:
        """Note an error, and where it was raised."""
        frames = traceback.extract_tb(error.__traceback__)
        at = [
            f"{Path(f.filename).name}:{f.lineno} {f.name}"
            for f in frames
            if not any(part in f.filename for part in ("/_pytest/", "/pluggy/", "unittest"))
        ]
        message = f"{type(error).__name__}: {error}"[:LONGEST]
        self.record |= {"outcome": "failed", "message": message, "at": at[-4:]}

    def write(self, record: dict[str, Any]) -> None:
        """Write a line."""
        self.results.write(json.dumps(record) + "\n")
        self.results.flush()


def main() -> None:
    """Run what is wanted."""
    way, task, results, *arguments = sys.argv[1:]
    os.environ.update(SETTINGS)
    if way == "torch":
        from webtorch.as_torch import install_as_torch

        install_as_torch()
    import torch

    torch.set_num_threads(1)
    if way == "device":
        import webtorch.pytorch  # noqa: F401
    # The suite's folder `tests` is another one than ours.
    sys.path[:] = [
        os.getcwd(),
        *(
            p
            for p in sys.path
            if Path(p or ".").resolve() not in (ROOT, Path.cwd(), Path(__file__).parent)
        ),
    ]
    for name in [name for name in sys.modules if name.partition(".")[0] == "tests"]:
        del sys.modules[name]
    # Looking for the smallest example of a failure would take most of the time; profiles of suites inherit this.
    settings.register_profile("found", phases=(Phase.explicit, Phase.generate), deadline=None)
    settings.load_profile("found")
    # Some suites draw the names of their tests.
    random.seed(0)
    with open(results, "a") as file:
        code = pytest.main(arguments, plugins=[Recorder(json.loads(Path(task).read_text()), file)])
    if code in (
        pytest.ExitCode.OK,
        pytest.ExitCode.TESTS_FAILED,
        pytest.ExitCode.NO_TESTS_COLLECTED,
    ):
        Path(task).unlink()
    sys.stdout.flush()
    os._exit(int(code))


if __name__ == "__main__":
    main()
