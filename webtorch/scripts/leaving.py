"""Leaving a script: the calls that matched are made in the usual way, and what was promised becomes what they give."""

from __future__ import annotations

import threading
import weakref
from typing import Any

from webtorch.dispatch.call import interpreted
from webtorch.ir.lines import made_again
from webtorch.scripts.changes import changes
from webtorch.scripts.run import Run
from webtorch.scripts.script import (
    KNOWN,
    NEW,
    NUMBER,
    OBJECT,
    SEQUENCE,
    SLOT,
    ZERO,
    Facts,
    Form,
    Given,
    Pattern,
    Step,
)
from webtorch.tensors import autocast
from webtorch.tensors.base import LATE
from webtorch.tensors.engine import graph_of
from webtorch.tensors.modes import mode
from webtorch.tensors.tape import anomaly

# What a promised tensor takes over from what the usual call gives.
_TAKEN = (
    *sorted(LATE), "_shape", "_strides", "_offset", "_whole", "dtype", "_requires_grad", "_retains", "_inference",
)  # fmt: skip


def make_calls(run: Run, path: list[Step]) -> None:
    """Make the calls of a run in the usual way; what was promised becomes what they give."""
    run.taken = [step.anew(run) for step in path]
    run.given = Given()
    run.runtime = run.externals[0]._storage.runtime if run.externals else None
    run.facts = []
    run.undo.clear()
    changes.count += 1
    for leaf, before, promised in run.gradients:
        if leaf._grad is promised:
            leaf._grad = before
    run.gradients = []
    thread = threading.get_ident()
    # What is on now was not on then.
    modes, looking = dict(mode.__dict__), anomaly.enabled
    cast = autocast.state.enabled, autocast.state.cache_enabled, autocast.state.casts
    mode.__dict__.clear()
    mode.overwriting, anomaly.enabled = None, False
    run.made = []
    for step in path:
        # A step's own writes were not promised.
        for j, counted, version in step.writes if step.kind != "step" else ():
            t = run.externals[j]
            if t._counter is not t._storage:
                t._counter.version -= counted
            t._storage.version -= version
    try:
        for step, taken in zip(path, run.taken, strict=True):
            made_again[thread] = step.line
            _make(run, step, taken)
    finally:
        mode.__dict__.clear()
        mode.__dict__.update(modes)
        autocast.state.enabled, autocast.state.cache_enabled, autocast.state.casts = cast
        for context in run.casts:
            if not context.open:
                context.clear()
        anomaly.enabled = looking
        made_again.pop(thread, None)
        run.made = []


def _make(run: Run, step: Step, taken: Step) -> None:
    assert step.callee is not None
    args = tuple([_value(p, run) for p in taken.args])
    kwargs = {n: _value(p, run) for n, p in zip(step.names, taken.kwargs)}
    run.restore(step.modes)
    for p in taken.patterns():
        if p.form == NEW:
            run.note_offset(run.externals[p.number], p)
    if step.kind == "backward":
        run.used_up.update(graph_of([args[0]._grad_fn]))
    out = interpreted(step.callee, args, kwargs)
    _take_over(step.results, out, run)
    for j, form in step.leaves:
        leaf = run.externals[j]
        if type(form) is Facts:
            _take_over(form, leaf._grad, run)
            leaf._grad = run.made[-1]


def _value(p: Pattern, run: Run) -> Any:
    """Return the argument that a pattern stands for, while calls are made in the usual way."""
    if p.form == SLOT:
        return run.made[p.number]
    if p.form in (KNOWN, NEW):
        return run.externals[p.number]
    if p.form == SEQUENCE:
        parts = [_value(q, run) for q in p.parts]
        return p.value(*parts) if hasattr(p.value, "_fields") else p.value(parts)
    if p.form == OBJECT:
        return p.value()
    if p.form == NUMBER:
        return run.given.number(p.number, p.value)
    return float(p.value) if p.form == ZERO else p.value


def _take_over(form: Form, out: Any, run: Run) -> None:
    """Let promised tensors be what a call gave; those that nobody has any more are what it gave."""
    if type(form) is Facts:
        number = len(run.made)
        t = run.slots[number]()
        if t is None:
            run.slots[number] = weakref.ref(out)
            run.ids[id(out)] = number
            t = out
        else:
            for name in _TAKEN:
                setattr(t, name, getattr(out, name))
        run.made.append(t)
        run.facts.append(form)
    elif form[0] == "parts":
        for part, o in zip(form[1][1], out):
            _take_over(part, o, run)
