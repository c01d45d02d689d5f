"""Plant faults into a copy of the sources, one at a time, and see whether the suite finds each.

Run it with `make faults`. Reads tools/faults.toml: what is wrong with the text after, and which tests
should say so. A fault that survives is a hole in the suite. Imports the standard library only; the
tests run in subprocesses of pytest, with the copy first on their path.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, fields
from enum import Enum
from pathlib import Path
from queue import SimpleQueue

ROOT = Path(__file__).resolve().parent.parent
LIST = ROOT / "tools" / "faults.toml"
# The share of all faults that must be found, in percent.
ENOUGH = 95.0
# What pytest says of tests that failed; anything but this and 0 is no verdict on the fault.
FAILED = 1
LEFT_OUT = shutil.ignore_patterns(".git", ".venv", ".cache", "__pycache__", "build", "dist")


@dataclass(frozen=True, slots=True)
class Fault:
    """One entry of the list: a text that occurs once in a file, and the wrong text in its place."""

    room: str
    name: str
    what: str
    file: str
    before: str
    after: str
    tests: tuple[str, ...]

    def stale(self, root: Path = ROOT) -> str | None:
        """Return why this entry no longer fits the tree at `root`, or None."""
        path = root / self.file
        if not path.is_file():
            return f"{self.file}: no such file"
        count = path.read_text(encoding="utf-8").count(self.before)
        if count != 1:
            return f"{self.file}: the text before occurs {count} times"
        if self.before == self.after:
            return f"{self.file}: the text after is the text before"
        if not self.tests:
            return "names no tests"
        missing = [test for test in self.tests if not _exists(root, test)]
        return f"no such test: {', '.join(missing)}" if missing else None


def _exists(root: Path, test: str) -> bool:
    """Whether there is a file of tests, and in it the function that a node id names."""
    file, _, name = test.partition("::")
    path = root / file
    if not path.is_file():
        return False
    return not name or f"def {name.partition('[')[0]}(" in path.read_text(encoding="utf-8")


class Verdict(Enum):
    """What became of a fault."""

    FOUND = "found"
    SURVIVED = "SURVIVED"
    # These say nothing of the suite: the entry is to be mended.
    STALE = "stale"
    BREAKS = "no import"
    UNCLEAN = "tests fail without it"


@dataclass(frozen=True, slots=True)
class Outcome:
    """The verdict on a fault, the seconds that it took, and the end of what pytest printed."""

    fault: Fault
    verdict: Verdict
    seconds: float
    said: str


def read_faults(path: Path = LIST) -> list[Fault]:
    """Return the entries of the list; raise ValueError for one that lacks a field or repeats a name."""
    wanted = {field.name for field in fields(Fault)}
    found: list[Fault] = []
    for entry in tomllib.loads(path.read_text(encoding="utf-8"))["fault"]:
        name = entry.get("name", "without a name")
        if set(entry) != wanted:
            raise ValueError(f"{path.name}, {name}: fields differ by {sorted(wanted ^ set(entry))}")
        if any(name == other.name for other in found):
            raise ValueError(f"{path.name}: two faults are named {name}")
        found.append(Fault(**{**entry, "tests": tuple(entry["tests"])}))
    return found


class Tree:
    """A copy of the sources in a temporary folder, for one fault after the other."""

    def __init__(self, folder: Path, timeout: float) -> None:
        """Copy the sources to `folder`; a run of pytest there may take `timeout` seconds."""
        shutil.copytree(ROOT, folder, ignore=LEFT_OUT, symlinks=True)
        self.folder = folder
        self.timeout = timeout
        path = os.pathsep.join(filter(None, [str(folder), os.environ.get("PYTHONPATH", "")]))
        # Programs that a faulty compiler made are kept apart from all others.
        self.environment = {
            **os.environ,
            "PYTHONPATH": path,
            "WEBTORCH_CACHE_DIR": f"{folder}-cache",
        }
        where = self._python("-c", "import webtorch; print(webtorch.__file__)")[1].strip()
        if not Path(where).is_relative_to(folder):
            raise RuntimeError(f"webtorch would be imported from {where}, not from {folder}")

    def _python(self, *arguments: str) -> tuple[int, str]:
        """Run Python in the copy; return its exit status and what it printed.

        Raises subprocess.TimeoutExpired. Browsers and other children end with it.
        """
        with subprocess.Popen(
            [sys.executable, *arguments],
            cwd=self.folder,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
        ) as process:
            try:
                printed, _ = process.communicate(timeout=self.timeout)
            except BaseException:
                os.killpg(process.pid, signal.SIGKILL)
                raise
        return process.returncode, printed

    def pytest(self, tests: Iterable[str]) -> tuple[int, str]:
        """Run tests up to the first that fails; return pytest's exit status and its last lines."""
        options = ("-x", "-q", "--tb=line", "-p", "no:xdist")
        try:
            status, printed = self._python("-m", "pytest", *options, *tests)
        except subprocess.TimeoutExpired:
            return FAILED, f"not done after {self.timeout:g} s"
        return status, "\n".join(printed.splitlines()[-12:])

    @contextmanager
    def planted(self, fault: Fault) -> Iterator[None]:
        """Have the fault in the sources for a while."""
        path = self.folder / fault.file
        sound = path.read_text(encoding="utf-8")
        try:
            self._write(path, sound.replace(fault.before, fault.after))
            yield
        finally:
            self._write(path, sound)

    @staticmethod
    def _write(path: Path, text: str) -> None:
        """Write a source, and forget its bytecode: a file of the same second and size passes for it."""
        path.write_text(text, encoding="utf-8")
        if path.suffix == ".py":
            Path(importlib.util.cache_from_source(path)).unlink(missing_ok=True)


def judge(tree: Tree, fault: Fault) -> tuple[Verdict, str]:
    """Plant a fault whose tests pass without it; return the verdict and what pytest said."""
    with tree.planted(fault):
        status, said = tree.pytest(fault.tests)
    if status == 0:
        return Verdict.SURVIVED, said
    # A file that cannot be collected is named without a test. A process that a signal ended has
    # found the fault, too.
    collected = not any(
        line.startswith("ERROR ") and "::" not in line.partition(" - ")[0]
        for line in said.splitlines()
    )
    found = status < 0 or (status == FAILED and collected)
    return Verdict.FOUND if found else Verdict.BREAKS, said


class Run:
    """Judges faults on some copies of the tree at once; each selection of tests is first run without."""

    def __init__(self, trees: Sequence[Tree]) -> None:
        """Use these copies."""
        self._count = len(trees)
        self._free: SimpleQueue[Tree] = SimpleQueue()
        for tree in trees:
            self._free.put(tree)
        self._clean: dict[tuple[str, ...], tuple[int, str]] = {}

    def room(self, faults: Sequence[Fault]) -> Iterator[Outcome]:
        """Yield the outcome of each fault of a room."""
        fresh = [f for f in faults if f.stale() is None]
        self._prepare(fresh)
        with ThreadPoolExecutor(self._count) as pool:
            yield from pool.map(self._one, faults)

    def _prepare(self, faults: Sequence[Fault]) -> None:
        """Run all tests of a room once, together; only if one fails is each selection run alone."""
        every = tuple(dict.fromkeys(test for fault in faults for test in fault.tests))
        if every:
            status, said = self._run(every)
            if status == 0:
                self._clean.update({fault.tests: (status, said) for fault in faults})

    def _run(self, tests: tuple[str, ...]) -> tuple[int, str]:
        tree = self._free.get()
        try:
            return tree.pytest(tests)
        finally:
            self._free.put(tree)

    def _one(self, fault: Fault) -> Outcome:
        begin = time.monotonic()
        stale = fault.stale()
        if stale is not None:
            return Outcome(fault, Verdict.STALE, 0.0, stale)
        if fault.tests not in self._clean:
            self._clean[fault.tests] = self._run(fault.tests)
        status, said = self._clean[fault.tests]
        verdict = Verdict.UNCLEAN
        if status == 0:
            tree = self._free.get()
            try:
                verdict, said = judge(tree, fault)
            finally:
                self._free.put(tree)
        return Outcome(fault, verdict, time.monotonic() - begin, said)


def table(outcomes: Sequence[Outcome]) -> list[str]:
    """Return the lines of a table: a room a line, how many faults it has and how many were found."""
    rooms = list(dict.fromkeys(outcome.fault.room for outcome in outcomes))
    width = max(map(len, [*rooms, "together"]))
    lines = [f"{'room':<{width}}  faults  found"]
    for room in [*rooms, "together"]:
        of_room = [o for o in outcomes if room in (o.fault.room, "together")]
        found = sum(o.verdict is Verdict.FOUND for o in of_room)
        lines.append(f"{room:<{width}}  {len(of_room):6}  {found:5}")
    return lines


def chosen(faults: Sequence[Fault], rooms: Sequence[str], names: Sequence[str]) -> list[Fault]:
    """Return the faults of these rooms and of these names, all if none is said."""
    known = {fault.room for fault in faults}
    unknown = sorted({*rooms} - known) + sorted({*names} - {fault.name for fault in faults})
    if unknown:
        raise SystemExit(f"no such room or fault: {', '.join(unknown)}; see --list")
    return [f for f in faults if (not rooms or f.room in rooms) and (not names or f.name in names)]


def main(arguments: Sequence[str] | None = None) -> int:
    """Plant the chosen faults, say what became of each, and return 1 if the suite is too weak."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument(
        "--room", action="append", default=[], help="only this room; may be repeated"
    )
    parser.add_argument("--only", action="append", default=[], help="only the fault of this name")
    parser.add_argument("--list", action="store_true", help="print the faults and plant none")
    parser.add_argument("--jobs", type=int, default=1, help="copies of the tree at work at once")
    parser.add_argument(
        "--timeout", type=float, default=600.0, help="seconds for one run of pytest"
    )
    options = parser.parse_args(arguments)
    faults = chosen(read_faults(), options.room, options.only)
    if options.list:
        for fault in faults:
            print(f"{fault.room:<14}{fault.name:<34}{fault.what}")
        return 0
    with tempfile.TemporaryDirectory(prefix="faults-") as folder:
        trees = [Tree(Path(folder) / str(n), options.timeout) for n in range(max(options.jobs, 1))]
        outcomes = list(_told(Run(trees), faults))
    print("", *table(outcomes), sep="\n")
    count = Counter(outcome.verdict for outcome in outcomes)
    judged = count[Verdict.FOUND] + count[Verdict.SURVIVED]
    percent = 100.0 * count[Verdict.FOUND] / judged if judged else 0.0
    print(f"\n{percent:.1f} % of {judged} faults found; {ENOUGH:g} % are needed")
    return int(percent < ENOUGH or judged < len(outcomes))


def _told(run: Run, faults: Sequence[Fault]) -> Iterator[Outcome]:
    """Yield the outcomes, room by room, and print each."""
    for room in dict.fromkeys(fault.room for fault in faults):
        for outcome in run.room([fault for fault in faults if fault.room == room]):
            fault = outcome.fault
            line = f"{room:<14}{fault.name:<34}{outcome.verdict.value:<10}{outcome.seconds:6.1f} s"
            print(line, flush=True)
            if outcome.verdict is Verdict.SURVIVED:
                print(f"    {fault.what} ({fault.file}): {' '.join(fault.tests)}", flush=True)
            elif outcome.verdict is not Verdict.FOUND:
                print("    " + outcome.said.replace("\n", "\n    "), flush=True)
            yield outcome


if __name__ == "__main__":
    sys.exit(main())
