"""Starts the ranks of a test as processes, and reads what they found."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any

from tests.patience import PATIENCE


def run(count: int, words: Callable[[int], tuple[object, ...]], **environment: str) -> None:
    """Run `python -W ignore -m tests.distributed.WORDS` for each rank, with RANK and WORLD_SIZE, until all have ended.
    Where one fails the others, which would wait for it, are ended, and what it wrote to standard error is raised.
    """

    def start(rank: int) -> subprocess.Popen[str]:
        module, *rest = map(str, words(rank))
        return subprocess.Popen(
            [sys.executable, "-W", "ignore", "-m", f"tests.distributed.{module}", *rest],
            stderr=subprocess.PIPE, text=True,
            env={**os.environ, "RANK": str(rank), "WORLD_SIZE": str(count), **environment},
        )  # fmt: skip

    started = [start(rank) for rank in range(count)]
    with ThreadPoolExecutor(count) as threads:
        waits = {threads.submit(p.communicate, timeout=PATIENCE): p for p in started}
        try:
            for wait in as_completed(waits):
                assert not waits[wait].returncode, wait.result()[1][-3000:]
                wait.result()
        finally:
            for process in started:
                process.kill()


def found(
    module: str, count: int, words: Callable[[int], tuple[object, ...]], **environment: str
) -> list[dict[str, Any]]:
    """Return what each rank of `module` has written as JSON to the folder that it is given before its words."""
    with tempfile.TemporaryDirectory() as folder:
        run(count, lambda rank: (module, folder, *words(rank)), **environment)
        return [json.loads(Path(folder, f"{rank}.json").read_text()) for rank in range(count)]
