"""Run PyTorch's test database: `python -m tests.conformance.run --help`.

Every (device, dtype, operation) is a task of its own, in a few worker processes; its result is a
line in .cache/conformance, so a run that was stopped goes on where it was. A worker that dies takes
one operation with it.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

from tests.conformance.pool import ROOT, Worker, work_off

CACHE = ROOT / ".cache" / "conformance"
TASK_SECONDS = 900
Task = tuple[str, str, str]


def read(device: str, dtype: str) -> dict[str, Any]:
    """Return the kept results of one device and dtype: title -> result. The last line of an
    operation counts.
    """
    path = CACHE / f"{device}-{dtype}.jsonl"
    if not path.exists():
        return {}
    lines = (json.loads(line) for line in path.read_text().splitlines())
    return {line["op"]: line for line in lines}


@functools.cache
def commit() -> str:
    """Return the short name of the commit that is measured, with a + where webtorch differs from it."""

    def git(*words: str) -> str:
        found = subprocess.run(
            ["git", *words], cwd=ROOT, capture_output=True, text=True, check=False
        )
        return found.stdout.strip()

    changed = git("status", "--porcelain", "--untracked-files=no", "webtorch")
    return git("rev-parse", "--short", "HEAD") + ("+" if changed else "")


def _keep(task: Task, result: dict[str, Any]) -> None:
    device, dtype, name = task
    result["commit"] = commit()
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / f"{device}-{dtype}.jsonl").open("a") as file:
        file.write(json.dumps({"op": name, **result}) + "\n")


def run(tasks: Sequence[Task], jobs: int, limit: int, show: bool) -> None:
    """Do the tasks and keep their results."""
    variables = {**os.environ, "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}

    def start() -> Worker[Task]:
        return Worker(("-m", "tests.conformance.worker", str(limit)), variables)

    def finish(task: Task, result: dict[str, Any], place: str) -> None:
        _keep(task, result)
        _tell(task, result, place, show)

    work_off(tasks, jobs, start, TASK_SECONDS, finish)


def _tell(task: Task, result: dict[str, Any], place: str, show: bool) -> None:
    device, dtype, name = task
    kinds = {k: v for k, v in result.items() if isinstance(v, dict)}
    bad = {k: v for k, v in kinds.items() if v.get("failed") or v.get("missing")}
    died = result.get("died", "")
    if not show and not bad and not died:
        return
    counts = " ".join(
        f"{k}:{v.get('passed', 0)}/{v.get('failed', 0)}/{v.get('missing', 0)}"
        for k, v in kinds.items()
        if v
    )
    seconds = result.get("seconds", "")
    lines = [f"[{place}] {device} {dtype} {name} {seconds}s {counts} {died}"]
    if show:
        lines += [f"    {k}: {note}" for k, v in bad.items() for note in v.get("notes", ())[:3]]
    sys.stdout.write("\n".join(lines) + "\n")
    sys.stdout.flush()


def has_failed(result: dict[str, Any]) -> bool:
    """Whether anything of a kept result is not right."""
    return "died" in result or any(
        v.get("failed") or v.get("missing") for v in result.values() if isinstance(v, dict)
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Parse the command line, run, write the report."""
    parser = argparse.ArgumentParser(prog="python -m tests.conformance.run", description=__doc__)
    parser.add_argument(
        "ops",
        nargs="*",
        help="names of operations (prefix with = for exactly that); all by default",
    )
    parser.add_argument("--device", default="cpu,webgpu")
    parser.add_argument("--dtype", default="")
    parser.add_argument(
        "--limit", type=int, default=0, help="at most this many samples of an operation"
    )
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--fresh", action="store_true", help="forget earlier results")
    parser.add_argument("--failed", action="store_true", help="again what failed before")
    parser.add_argument("--report", action="store_true", help="only write docs/conformance.md")
    parser.add_argument(
        "--accept", action="store_true", help="write must_pass.txt from the kept results"
    )
    given = parser.parse_args(argv)
    from tests.conformance import database, report

    dtypes = given.dtype.split(",") if given.dtype else list(database.DTYPES)
    if not given.report:
        tasks: list[Task] = []
        for dtype in dtypes:
            for device in given.device.split(","):
                if device == "webgpu" and dtype not in database.ON_WEBGPU:
                    continue
                kept = {} if given.fresh else read(device, dtype)
                for name, op in database.operations().items():
                    if not database.takes(op, dtype):
                        continue
                    if given.ops:
                        if not any(
                            op.name == o[1:] if o.startswith("=") else o in name for o in given.ops
                        ):
                            continue
                    elif name in kept and not (given.failed and has_failed(kept[name])):
                        continue
                    if given.failed and name in kept and not has_failed(kept[name]):
                        continue
                    tasks.append((device, dtype, name))
        if tasks:
            run(tasks, given.jobs, given.limit, bool(given.ops))
    if given.accept:
        report.accept()
    if given.ops:
        return 0
    broken = report.write()
    if broken:
        sys.stdout.write(
            "of must_pass.txt, these did not pass in full, for no known reason: "
            + ", ".join(broken)
            + "\n"
        )
    return 1 if broken else 0


if __name__ == "__main__":
    raise SystemExit(main())
