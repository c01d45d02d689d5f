"""Python's share of a training step that follows a script: a GPT of 4 layers, width 64, batch 4 x 32.

What is reached for: forward 0.9 ms, backward 0.1, optimizer 0.1; a call with its gradient's record 5 us; the lazy
step at most 1.3 times the compiled one. PyTorch's step stands beside them. Times of Python are those of the thread,
so that other work on the machine is not counted.
"""

from __future__ import annotations

import contextlib
import operator
import os
import time
from collections.abc import Iterator
from typing import Any
from unittest import mock

os.environ.setdefault("WEBTORCH_SCRIPTS", "1")

import torch

import webtorch
from benchmarks.harness import Row, Run, compare, main, time_text
from benchmarks.models import Work, characters, gpt
from benchmarks.training import (
    Step,
    batches,
    initial_weights,
    our_step,
    to_ours,
    to_torch,
    torch_step,
)
from webtorch.scripts import following

SMALL = Work(
    "GPT 4 layers, d 64, T 32, batch 4", lambda t: gpt(t, 4, 64, 4, 32, 65), characters(4, 32, 65)
)


# Parts of a step, and the seconds of Python that each may take.
PARTS = {"forward": 0.9e-3, "zero_grad": 0.1e-3, "backward": 0.1e-3, "optimizer": 0.1e-3}


class Phases:
    """A lazy step whose parts are timed: the time of this thread, without that of the device's program."""

    def __init__(self, job: Work, weights: Any, batch: Any) -> None:
        self.x, self.y = batch
        self.model = job.build(webtorch)
        self.model.load_state_dict({k: webtorch.tensor(v) for k, v in weights.items()})
        self.optimizer = webtorch.optim.Adam(self.model.parameters(), lr=job.lr)
        self.on_device = 0.0

    def run(self) -> dict[str, float]:
        """Do one step; return the seconds of its parts."""
        clock = time.thread_time
        self.on_device = 0.0
        times = [clock()]
        loss = webtorch.nn.functional.cross_entropy(self.model(self.x), self.y)
        times.append(clock())
        self.optimizer.zero_grad()
        times.append(clock())
        loss.backward()
        times.append(clock())
        self.optimizer.step()
        times.append(clock() - self.on_device)
        loss.item()
        return dict(zip(PARTS, map(operator.sub, times[1:], times)))

    def best(self, turns: int) -> dict[str, float]:
        """Return the fastest of each part."""
        for _ in range(8):
            self.run()
        found: dict[str, float] = {}
        with self._device_timed():
            for _ in range(turns):
                for name, seconds in self.run().items():
                    found[name] = min(seconds, found.get(name, seconds))
        return found

    @contextlib.contextmanager
    def _device_timed(self) -> Iterator[None]:
        """Add up what programs take."""
        classes = {type(s.program.executable) for s, _ in _steps() if s.program is not None}
        with contextlib.ExitStack() as stack:
            for cls in classes:
                stack.enter_context(mock.patch.object(cls, "run", self._timed(cls.run)))
            yield

    def _timed(self, run: Any) -> Any:
        def timed(*args: Any, ready: Any = None, **kwargs: Any) -> Any:
            inside = 0.0

            def told(buffers: Any) -> None:
                """What is done before kernels run is Python's."""
                nonlocal inside
                begun = time.thread_time()
                ready(buffers)
                inside += time.thread_time() - begun

            more = {} if ready is None else {"ready": told}
            started = time.thread_time()
            try:
                return run(*args, **kwargs, **more)
            finally:
                self.on_device += time.thread_time() - started - inside

        return timed


def _steps() -> Iterator[tuple[Any, int]]:
    """Iterate over the calls of all scripts, and how many come before each."""
    pending = [(s, 1) for s in following.follower().root.following]
    while pending:
        step, depth = pending.pop()
        yield step, depth
        pending += [(s, depth + 1) for s in step.following]


def calls_of_step() -> int:
    """Return how many calls the longest script has that is followed."""
    return max(depth for _, depth in _steps())


def measure(quick: bool = False) -> list[Row]:
    """Return the times of the parts, and of the step beside the compiled one and PyTorch's."""
    torch.set_num_threads(2)
    webtorch.set_num_threads(2)
    weights = initial_weights(SMALL)
    data = batches(SMALL, 1)
    ours, theirs = to_ours(data, "cpu")[0], to_torch(data, "cpu")[0]
    lazy, compiled = (our_step(SMALL, weights, "cpu", c) for c in (False, True))
    peer = torch_step(SMALL, weights, "cpu")
    turns, seconds = (2, 0.02) if quick else (15, 0.1)
    rows = []
    for name, other, batch, reach in (
        ("lazy over compiled", compiled, ours, 1.3),
        ("lazy over PyTorch's", peer, theirs, 1.0),
    ):
        rows.append(
            compare(
                name, _reading(lazy, ours), _reading(other, batch),
                reach=reach, turns=turns, seconds=seconds,
            )
        )  # fmt: skip
    parts = Phases(SMALL, weights, ours).best(20 if quick else 200)
    for name, reach in PARTS.items():
        rows.append(
            Row(f"Python of {name}", parts[name], parts[name], note=_verdict(parts[name], reach))
        )
    calls = calls_of_step() - 2
    each = parts["forward"] / calls
    rows.append(Row(f"one of {calls} calls", each, each, note=_verdict(each, 5e-6)))
    return rows


def _verdict(seconds: float, reach: float) -> str:
    return f"at most {time_text(reach)}: {'reached' if seconds <= reach else 'MISSED'}"


def _reading(step: Step, batch: tuple[Any, Any]) -> Run:
    return lambda: step(*batch).item()


if __name__ == "__main__":
    main(__doc__ or "", measure)
