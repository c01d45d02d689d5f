"""Workers that answer, die, and take too long."""

from __future__ import annotations

import os
from typing import Any

from tests.conformance.pool import Worker, work_off

SCRIPT = """
import json, os, sys, time
for line in sys.stdin:
    (name,) = json.loads(line)
    if name == "dies":
        os._exit(1)
    time.sleep(1000 if name == "sleeps" else 0)
    print(json.dumps({"done": name}), flush=True)
"""


def test_one_that_dies_takes_one_task_with_it() -> None:
    found: dict[str, Any] = {}
    places: list[str] = []

    def finish(task: tuple[str], result: dict[str, Any], place: str) -> None:
        found[task[0]] = result
        places.append(place)

    def start() -> Worker[tuple[str]]:
        return Worker(("-c", SCRIPT), os.environ)

    work_off([("a",), ("dies",), ("b",), ("sleeps",), ("c",)], 2, start, 8.0, finish)
    assert found == {
        **{name: {"done": name} for name in "abc"},
        "dies": {"died": "crash"},
        "sleeps": {"died": "timeout"},
    }
    assert places == [f"{n}/5" for n in range(1, 6)]
