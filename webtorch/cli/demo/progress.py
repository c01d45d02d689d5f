"""The live line of a training run: a moving bar on a terminal, a line per epoch elsewhere.

Imports rich only.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn


class Meter:
    """Shows how far a run is and its latest figures."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._progress: Progress | None = None
        self._task = TaskID(0)
        self._unit = "epoch"
        self._epochs = self._steps = 0
        self._started = 0.0

    @contextmanager
    def run(self, unit: str, epochs: int, steps: int) -> Iterator[None]:
        """Show the bar while the block runs; `steps` are those of one epoch."""
        self._unit, self._epochs, self._steps = unit, epochs, steps
        self._started = time.perf_counter()
        if not self._console.is_terminal or self._console.is_dumb_terminal:
            yield
            return
        self._progress = Progress(
            TextColumn("[bold]{task.description}"),
            BarColumn(bar_width=None),
            TextColumn("{task.fields[figures]}"),
            TimeElapsedColumn(),
            console=self._console,
            refresh_per_second=8,
        )
        self._task = self._progress.add_task("starting", total=epochs * steps, figures="")
        try:
            with self._progress:
                yield
        finally:
            self._progress = None

    def step(self, epoch: int, step: int, *figures: str) -> None:
        """Show the figures after `step` steps of an epoch (which counts from 0)."""
        if self._progress is not None:
            self._progress.update(
                self._task,
                completed=epoch * self._steps + step,
                description=f"{self._unit} {epoch + 1}/{self._epochs}",
                figures="  ".join(figures),
            )

    def epoch(self, epoch: int, *figures: str) -> None:
        """Show an epoch's figures: in the bar, or as a line of their own."""
        self.step(epoch, self._steps, *figures)
        if self._progress is None:
            seconds = time.perf_counter() - self._started
            width = len(str(self._epochs))
            self._console.print(
                f"{self._unit} {epoch + 1:{width}}/{self._epochs}  {'  '.join(figures)}  {seconds:.1f} s",
                highlight=False,
                soft_wrap=True,
            )
