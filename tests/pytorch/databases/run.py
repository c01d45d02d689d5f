"""PyTorch's operator database on torch.device("webgpu"): `python -m tests.pytorch.databases.run --help`.

Every (dtype, operation) is a task of its own, in a few worker processes; its result is a line in
.cache/conformance-torch, so a run that was stopped goes on where it was.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from typing import Any

from tests.conformance.pool import ROOT, Worker, work_off
from tests.conformance.run import has_failed

CACHE = ROOT / ".cache" / "conformance-torch"
# Results are kept by these: a dtype in eager mode, or a mode of the compiler and a dtype.
EAGER = ("float32", "float16", "int32", "int64", "bool")
COMPILED = (
    "compiled-float32",
    "compiled-float16",
    "compiled-int64",
    "compiled-bool",
    "dynamic-float32",
)
DTYPES = EAGER + COMPILED
TASK_SECONDS = 600
Task = tuple[str, str]


def read(dtype: str) -> dict[str, Any]:
    """Return the kept results of one dtype: title -> result. The last line of an operation counts."""
    path = CACHE / f"{dtype}.jsonl"
    if not path.exists():
        return {}
    return {line["op"]: line for line in map(json.loads, path.read_text().splitlines())}


def _keep(task: Task, result: dict[str, Any]) -> None:
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / f"{task[0]}.jsonl").open("a") as file:
        file.write(json.dumps({"op": task[1], **result}) + "\n")


def split(of: str) -> tuple[str, str]:
    """Return mode and dtype of what a file of results is of: ("compiled", "float32") of "compiled-float32"."""
    mode, _, dtype = of.rpartition("-")
    return mode, dtype


def work(limit: int) -> None:
    """Answer tasks from standard input until it ends."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    import torch

    import webtorch.pytorch  # noqa: F401  (where PyTorch's autoloading is off)
    from tests.pytorch.databases import check
    from tests.pytorch.databases.report import operations

    torch.set_num_threads(1)
    found = operations()
    for line in sys.stdin:
        of, name = json.loads(line)
        mode, dtype = split(of)
        result = check.check(found[name], getattr(torch, dtype), limit, mode)
        answers.write(json.dumps(result) + "\n")
        answers.flush()


def run(tasks: Sequence[Task], jobs: int, limit: int, show: bool) -> None:
    """Do the tasks and keep their results."""
    variables = {k: v for k, v in os.environ.items() if k != "TORCH_DEVICE_BACKEND_AUTOLOAD"}
    arguments = ("-m", "tests.pytorch.databases.run", "--worker", "--limit", str(limit))

    def start() -> Worker[Task]:
        return Worker(arguments, variables)

    def finish(task: Task, result: dict[str, Any], place: str) -> None:
        _keep(task, result)
        _tell(task, result, place, show)

    work_off(tasks, jobs, start, TASK_SECONDS, finish)


def _tell(task: Task, result: dict[str, Any], place: str, show: bool) -> None:
    if not (show or has_failed(result)):
        return
    kinds = {k: v for k, v in result.items() if isinstance(v, dict)}
    counts = " ".join(
        f"{k}:{v.get('passed', 0)}/{v.get('failed', 0)}/{v.get('missing', 0)}"
        for k, v in kinds.items()
    )
    lines = [
        f"[{place}] {' '.join(task)} {result.get('seconds', '')}s {counts} {result.get('died', '')}"
    ]
    for k, v in kinds.items():
        if v.get("failed") or v.get("missing"):
            lines += [f"    {k}: {note[:300]}" for note in v.get("notes", ())[: 3 if show else 1]]
    sys.stdout.write("\n".join(lines) + "\n")
    sys.stdout.flush()


def main(argv: Sequence[str] | None = None) -> int:
    """Parse the command line, run, write the report."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.pytorch.databases.run", description=__doc__
    )
    parser.add_argument(
        "ops", nargs="*", help="names of operations (=name for exactly that); all by default"
    )
    parser.add_argument("--dtype", default=",".join(DTYPES))
    parser.add_argument(
        "--limit", type=int, default=0, help="at most this many samples of an operation"
    )
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--fresh", action="store_true", help="forget earlier results")
    parser.add_argument("--failed", action="store_true", help="again what failed before")
    parser.add_argument(
        "--report", action="store_true", help="only write docs/conformance-torch.md"
    )
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args(argv)
    if given.worker:
        work(given.limit)
        return 0
    from tests.pytorch.databases import report

    if not given.report:
        tasks: list[Task] = []
        for dtype in given.dtype.split(","):
            kept = {} if given.fresh else read(dtype)
            for name, op in report.operations(split(dtype)[0]).items():
                if not report.takes(op, split(dtype)[1]):
                    continue
                wanted = any(
                    op.name == o[1:] if o.startswith("=") else o in name for o in given.ops
                )
                if given.ops and not wanted:
                    continue
                if given.failed and not (name in kept and has_failed(kept[name])):
                    continue
                if not given.ops and not given.failed and name in kept:
                    continue
                tasks.append((dtype, name))
        if tasks:
            run(tasks, given.jobs, given.limit, bool(given.ops))
    if not given.ops:
        report.write()
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
