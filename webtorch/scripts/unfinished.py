"""Runs that gave something whose graph can still be used: a later call of it has them go on."""

from __future__ import annotations

from collections.abc import Iterable

from webtorch.ir.graph import Node
from webtorch.scripts.changes import tensors_in
from webtorch.scripts.run import Run
from webtorch.scripts.script import Program


class Unfinished:
    """A run that gave something whose graph can still be used, and how it ended."""

    def __init__(self, run: Run, program: Program, saved: list[Node]) -> None:
        self.step, self.program, self.saved = run.at, program, saved
        # What it gave, by id.
        found = [run.slots[k] for k in program.open - program.partly]
        self.known = {id(t): reference for reference in found if (t := reference()) is not None}
        # None once another call came that needs nothing of it.
        self.run: Run | None = run

    def drop(self) -> None:
        """Let go of the run."""
        if self.run is not None:
            self.run.end()
            self.run, self.saved = None, []

    def is_open(self) -> bool:
        """Whether something that it gave is alive."""
        return any(reference() is not None for reference in self.known.values())

    def was_given_one_of(self, args: Iterable[object]) -> bool:
        """Whether a tensor among arguments came from outside."""
        return self.run is not None and self.run.was_given_one_of(args)

    def gave_one_of(self, args: Iterable[object]) -> bool:
        """Whether it gave a tensor among arguments."""
        return any(t is known() for t in tensors_in(args) if (known := self.known.get(id(t))))
