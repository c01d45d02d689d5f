"""A backward pass that calls functions of the user's, as a row of calls.

Its first call runs it up to where a hook is to be called, and gives what the hook gets. The hook is called like any
other code, so that what it calls itself are calls of the script; what it gives is an argument of the call that goes on
to the next hook, or to the end. So a script that is left makes a pass that is told what the hooks gave, and goes on
from there: no hook runs twice.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Collection, Iterator
from typing import TYPE_CHECKING, Any

from webtorch.dispatch.call import Args, Callee, Kwargs
from webtorch.tensors.engine import Backward, Turn, pass_of
from webtorch.tensors.order import graph_of
from webtorch.tensors.tape import GradFn, Part

if TYPE_CHECKING:
    from webtorch.scripts.run import Run
    from webtorch.scripts.script import Step
    from webtorch.tensors.tensor import Tensor


class Turning:
    """One backward pass, which is promised, or runs."""

    def __init__(self, callee: Callee, settle: Callable[[str], None]) -> None:
        """`callee`: what runs it as a whole; `settle` makes what is promised in the usual way."""
        self.callee, self.settle = callee, settle
        # The run in whose script it stands, which holds the pass.
        self.run: weakref.ref[Run] | None = None
        # The function of the user's that is to be called, None at the end.
        self.function: Callable[..., object] | None = None
        # Where it runs: the pass, what it has come to; its functions, the leaves that something has
        # arrived at, and all leaves.
        self.running: Backward | None = None
        self.turn: Turn | None = None
        self.functions: dict[GradFn, None] = {}
        self.touched: list[Tensor] = []
        self.leaves: list[Tensor] = []
        # Where it is promised: the hooks that there were when it began.
        self.hooks: list[tuple[dict[int, Any], dict[int, Any]]] = []
        # Whether the graph stays, and the context of the user's function that is called.
        self.keeps = False
        self.context: Any = None

    def begin(self, args: Args, kwargs: Kwargs) -> Any:
        """Run up to the first function of the user's, and return what that is given."""
        # The method and the function have another name for it.
        given = {"grad_tensors" if n == "gradient" else n: value for n, value in kwargs.items()}
        self.running = pass_of(*args, **given)
        self.functions = graph_of(self.running.starts)
        self.touched = self.running.touched
        return self.go_on(None)

    def go_on(self, given: object) -> Any:
        """Go on with what a function gave, and return what the next one is given."""
        assert self.running is not None
        with self.running.at_work():
            turn = self.turn = self.running.advance(given)
        if turn is None:
            # What it holds is kept by nobody else.
            self.function = self.running = None
            return None
        self.function = turn.function
        return turn.args

    def follow(self, run: Run, step: Step) -> None:
        """Take notice that a call was answered by a script."""
        if self.run is None:
            self.run = weakref.ref(run)
            if run.hooked:
                self.hooks = [(hooks, dict(hooks)) for hooks in run.hooks_of(step)]
            self.keeps = _keeps_graph(step)
        if self.context is not None and self.context._kept and not self.keeps:
            # What was saved cannot be had once more.
            self.context._saved = self.context._kept = None
        place = step.place
        self.function = None if place is None else run.hook_at(place)
        of_function = place is not None and place[1] == "function"
        self.context = run.opaque[place[0]] if of_function else None
        if isinstance(self.context, Part):
            self.context = None

    def made(self) -> Backward:
        """Return the pass, which runs from now on."""
        if self.running is None:
            self.settle("a graph is looked at")
        assert self.running is not None
        return self.running

    @property
    def callbacks(self) -> list[Callable[[], object]]:
        """What is called once all functions have run."""
        return self.made().callbacks

    def reach(self) -> Collection[GradFn]:
        """Return the functions that the pass runs."""
        return self.made().reach()

    @contextlib.contextmanager
    def as_then(self) -> Iterator[None]:
        """Inside, hooks are those that there were when the pass began."""
        now = [(hooks, dict(hooks)) for hooks, _ in self.hooks]
        _put(self.hooks)
        try:
            yield
        finally:
            _put(now)

    def forget(self) -> None:
        """Keep nothing of a pass that is over."""
        self.functions, self.leaves, self.touched = {}, [], []

    def close(self) -> None:
        """Run nothing more."""
        if self.running is not None and self.running.paused is not None:
            self.running.paused.close()
        self.function = self.running = None


def _keeps_graph(step: Step) -> bool:
    """Whether a backward pass is given `retain_graph`."""
    given = dict(zip(step.names, step.kwargs, strict=True)).get("retain_graph")
    if given is None and len(step.args) > 3:
        given = step.args[3]
    return given is not None and bool(given.value)


def _put(found: list[tuple[dict[int, object], dict[int, object]]]) -> None:
    for hooks, items in found:
        hooks.clear()
        hooks.update(items)


# The calls: the first is given the pass and what it is a pass of, the others the pass and what a function gave.
BEGIN = Callee("backward", lambda args, kwargs: args[0].begin(args[1:], kwargs), role="turn")
GO_ON = Callee("a hook", lambda args, kwargs: args[0].go_on(args[1]), role="turn")
