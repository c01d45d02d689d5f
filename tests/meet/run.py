"""The long run, `python -m tests.meet.run --minutes 60`: seeds by modes, and the smallest program of each fault.

Programs run in worker processes under a time limit, so that a crash or a hang is a fault with its seed.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import itertools
import json
import os
import select
import subprocess
import sys
import time
from collections import Counter
from dataclasses import dataclass, field, replace
from typing import Any

LIMIT = 60.0
# A worker is replaced after so many cases: memory, and what one case may leave to the next.
LIFETIME = 300


def say(text: str) -> None:
    """Print a line now."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


class Worker:
    """A process that runs cases, one at a time."""

    def __init__(self, environment: dict[str, str]) -> None:
        self.environment = environment
        self.process: subprocess.Popen[bytes] | None = None
        self.count = 0

    def start(self) -> subprocess.Popen[bytes]:
        """The process, a new one if need be."""
        if self.process is None or self.count >= LIFETIME:
            self.stop()
            self.process = subprocess.Popen(
                [sys.executable, "-m", "tests.meet.run", "--worker"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env={**os.environ, **self.environment},
            )
            self.count = 0
            self.answer(120)
        return self.process

    def answer(self, limit: float) -> dict[str, Any] | None:
        """A line from the process; None after the time limit or its end."""
        assert self.process is not None and self.process.stdout is not None
        end = time.monotonic() + limit
        data = b""
        while not data.endswith(b"\n"):
            ready, _, _ = select.select(
                [self.process.stdout], [], [], max(0, end - time.monotonic())
            )
            part = os.read(self.process.stdout.fileno(), 1 << 20) if ready else b""
            if not part:
                return None
            data += part
        found: dict[str, Any] = json.loads(data.splitlines()[-1])
        return found

    def ask(self, request: dict[str, Any]) -> dict[str, str]:
        """The outcome of a case: status, kind, text."""
        process = self.start()
        self.count += 1
        assert process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            process.stdin.write(json.dumps(request).encode() + b"\n")
            process.stdin.flush()
        found = self.answer(LIMIT)
        if found is not None:
            return found
        code = process.poll()
        self.stop()
        if code is None:
            return {"status": "failed", "kind": "hang", "text": f"no answer in {LIMIT:.0f} s"}
        return {
            "status": "failed",
            "kind": f"crash {code}",
            "text": f"the process ended with {code}",
        }

    def stop(self) -> None:
        """End the process."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None


def work() -> None:
    """Answer requests on stdin until it ends."""
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    import torch

    from tests.meet import models
    from tests.meet.library import Skip, faces
    from tests.meet.modes import MODES, Outcome, outcome
    from tests.meet.programs import generate

    torch.set_num_threads(1)
    out.write('"ready"\n')
    out.flush()
    for line in sys.stdin:
        request = json.loads(line)
        try:
            if "model" in request:
                case: Any = models.MODELS[request["model"]]
            else:
                case = generate(request["seed"])
                if request.get("keep") is not None:
                    case = case.only(request["keep"])
                    case = replace(case, kept=case.kept & set(request["kept"]))
            if request["mode"] == "generate":
                found = Outcome("passed")
            else:
                found = outcome(
                    case,
                    MODES[request["mode"]],
                    faces(request["face"], request["device"]),
                    request["seed"],
                )
        except Skip as error:
            found = Outcome("skipped", "skipped", str(error))
        out.write(
            json.dumps({"status": found.status, "kind": found.kind, "text": found.text}) + "\n"
        )
        out.flush()


@dataclass
class Faults:
    """Faults so far, each once."""

    known: Counter[tuple[str, ...]] = field(default_factory=Counter)

    def new(self, *key: str) -> bool:
        """Whether this fault has not been seen."""
        self.known[key] += 1
        return self.known[key] == 1


def shrunk(worker: Worker, request: dict[str, Any], kind: str) -> Any:
    """The smallest program that fails in the same way."""
    from tests.meet.programs import Program, generate, shrink

    program = generate(request["seed"])
    numbers = {id(s): i for i, s in enumerate(program.steps)}

    def fails(smaller: Program) -> bool:
        keep = [numbers[id(s)] for s in smaller.steps]
        found = worker.ask({**request, "keep": keep, "kept": sorted(smaller.kept)})
        return found["status"] == "failed" and found["kind"] == kind

    if not fails(program):
        return None
    return shrink(program, fails)


def main() -> int:
    """Run; 1 if a fault was found."""
    parser = argparse.ArgumentParser(prog="tests.meet.run", description=__doc__)
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--face", choices=["tensor", "pytorch"], default="tensor")
    parser.add_argument("--device", choices=["cpu", "webgpu"], default="cpu")
    parser.add_argument("--seed", type=int, default=0, help="the first seed")
    parser.add_argument("--seeds", type=int, default=None, help="how many seeds")
    parser.add_argument("--mode", action="append", help="this mode only; may be repeated")
    only = parser.add_mutually_exclusive_group()
    only.add_argument("--models", action="store_true", help="the fixed models only")
    only.add_argument("--programs", action="store_true", help="the random programs only")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.worker:
        work()
        return 0

    from tests.meet.models import MODELS
    from tests.meet.modes import MODES

    modes = given.mode or [n for n, m in MODES.items() if given.face in m.faces]
    environment = {}
    if given.face == "pytorch" and given.device == "cpu":
        # PyTorch's device is then the CPU's engine.
        environment["WEBTORCH_PYTORCH_ENGINE"] = "cpu"
    worker, faults = Worker(environment), Faults()

    @functools.cache
    def can_be_written(seed: int) -> bool:
        """Whether PyTorch survives a program as it is written."""
        asked = {"seed": seed, "mode": "generate", "face": given.face, "device": given.device}
        return worker.ask(asked)["status"] != "failed"

    broken: set[str] = set()
    counts: dict[str, Counter[str]] = {n: Counter() for n in modes}
    end = time.monotonic() + 60 * given.minutes
    seeds = (
        itertools.count(given.seed)
        if given.seeds is None
        else range(given.seed, given.seed + given.seeds)
    )
    cases: Any = itertools.chain(
        ()
        if given.programs
        else ({"model": m, "seed": 0, "mode": n} for m in MODELS for n in modes),
        () if given.models else ({"seed": s, "mode": n} for s in seeds for n in modes),
    )
    for case in cases:
        if time.monotonic() > end:
            break
        request = {**case, "face": given.face, "device": given.device}
        found = worker.ask(request)
        if found["status"] == "failed" and "model" not in case and not can_be_written(case["seed"]):
            counts[case["mode"]]["skipped"] += 1
            continue
        counts[case["mode"]][found["status"]] += 1
        if found["status"] != "failed":
            continue
        # A program that is wrong plainly is wrong everywhere: once is enough.
        who = str(case.get("model", case["seed"]))
        if case["mode"] != "plain" and who in broken:
            continue
        if case["mode"] == "plain":
            broken.add(who)
        name = case.get("model", f"seed {case['seed']}")
        if "model" in case:
            if faults.new(case["mode"], found["kind"], name):
                say(f"\nFAULT {case['mode']}, {name}: {found['kind']}\n{found['text']}")
            continue
        if "wrong" not in found["kind"] and not faults.new(case["mode"], found["kind"]):
            continue
        program = shrunk(worker, request, found["kind"])
        if program is None:
            if faults.new(case["mode"], found["kind"], "not again"):
                say(
                    f"\nFAULT {case['mode']}, {name}: {found['kind']}, not found a second time\n{found['text']}"
                )
            continue
        if "wrong" in found["kind"] and not faults.new(
            case["mode"],
            found["kind"],
            *sorted({s.text.split("(")[0].split(" ")[-1] for s in program.steps}),
        ):
            continue
        keep = [i for i, s in enumerate(_steps(case["seed"])) if s in program.steps]
        last = worker.ask({**request, "keep": keep, "kept": sorted(program.kept)})
        say(f"\nFAULT {case['mode']}, {name}: {found['kind']}\n{last['text']}\n{program.pasted()}")
    worker.stop()
    total: Counter[str] = Counter()
    for mode, count in counts.items():
        total += count
        say(f"{mode}: {_line(count)}")
    say(f"in all: {_line(total)}; {len(faults.known)} faults that differ")
    return int(bool(faults.known))


def _steps(seed: int) -> Any:
    from tests.meet.programs import generate

    return generate(seed).steps


def _line(count: Counter[str]) -> str:
    return (
        f"{count['passed']} passed, {count['failed']} failed, {count['refused']} refused, "
        f"{count['skipped']} say nothing"
    )


if __name__ == "__main__":
    sys.exit(main())
