"""Leaving a script: the calls that matched are made in the usual way, and what was promised becomes what they give."""

from __future__ import annotations

import contextlib
import threading
import weakref
from collections.abc import Iterator
from typing import Any

from webtorch.dispatch.call import interpreted, looking
from webtorch.ir.graph import Node
from webtorch.ir.lines import made_again
from webtorch.ops.primitive import IDENTITY
from webtorch.scripts.changes import changes
from webtorch.scripts.recording import freed, note_mark, outputs_of, saved_storages
from webtorch.scripts.run import Prior, Run
from webtorch.scripts.script import (
    KNOWN,
    MARKED,
    NEW,
    NUMBER,
    OBJECT,
    OPAQUE,
    PRIOR,
    SEQUENCE,
    SLOT,
    ZERO,
    Facts,
    Form,
    Given,
    Pattern,
    Step,
    patterns_in,
    split,
)
from webtorch.tensors import autocast
from webtorch.tensors.base import LATE
from webtorch.tensors.modes import mode
from webtorch.tensors.order import graph_of
from webtorch.tensors.storage import Storage
from webtorch.tensors.tape import AccumulateGrad, EnoughComputed, GradFn, anomaly, mark
from webtorch.tensors.tensor import Tensor

# What a promised tensor takes over from what the usual call gives.
_TAKEN = (
    *sorted(LATE), "_shape", "_strides", "_offset", "_whole", "dtype", "_requires_grad", "_retains", "_inference",
)  # fmt: skip


def make_calls(run: Run, path: list[Step]) -> None:
    """Make the calls of a run in the usual way; what was promised becomes what they give. Those that were computed
    give their graph alone.
    """
    run.taken = [step.anew(run) for step in path]
    run.given = Given()
    run.runtime = run.externals[0]._storage.runtime if run.externals else None
    run.facts = []
    run.undo.clear()
    changes.count += 1
    thread = threading.get_ident()
    # What is on now was not on then.
    modes, detecting = dict(mode.__dict__), anomaly.enabled
    cast = autocast.state.enabled, autocast.state.cache_enabled, autocast.state.casts
    mode.__dict__.clear()
    mode.overwriting, anomaly.enabled = None, False
    run.made = []
    first = mark()
    looks = bool(run.parts)
    looking.add(looks)
    computed, promised = split(path)
    for step in computed:
        run.count_writes(step.writes, -1, slots=False)
    homes = [(t, home) for t, _, (home, _) in run.moves if home in run.homes]
    for step in reversed(promised):
        if step.kind == "move":
            t, before, _ = run.moves.pop()
            t._storage, t._counter = before
        # A step's own writes were not promised.
        elif step.kind != "step":
            run.count_writes(step.writes, -1)
    run.left.clear()
    run.homes.clear()
    flags = _flag_as_then(run, path)
    try:
        if computed:
            with _without_values(run, computed):
                for step, taken in zip(computed, run.taken, strict=False):
                    made_again[thread] = step.line
                    if step.kind == "step":
                        # Nothing of it is left but what it wrote.
                        run.count_writes(step.writes, 1)
                    elif step.kind != "computed":
                        _make(run, step, taken)
            _take_over_graph(run, first)
        for n, (step, taken) in enumerate(zip(promised, run.taken[len(computed) :], strict=True)):
            made_again[thread] = step.line
            try:
                _make(run, step, taken)
            except Exception as error:
                lose(run, promised[n:], error)
                raise
    finally:
        for t, flag in flags:
            t._requires_grad = flag
        for t, home in homes:
            # Somebody may be looking at it.
            home.node = t._storage.node
        looking.add(-looks)
        mode.__dict__.clear()
        mode.__dict__.update(modes)
        autocast.state.enabled, autocast.state.cache_enabled, autocast.state.casts = cast
        for context in run.casts:
            if not context.open:
                context.clear()
        anomaly.enabled = detecting
        made_again.pop(thread, None)
        run.made = []


def _flag_as_then(run: Run, path: list[Step]) -> list[tuple[Tensor, bool]]:
    """Have gradients recorded for those tensors from outside for which they were when calls saw them first; return
    which others they are recorded for now, or not.
    """
    changed = []
    for step in path:
        for p in step.patterns():
            if p.form == NEW and (t := run.externals[p.number])._requires_grad != p.facts[MARKED]:
                changed.append((t, t._requires_grad))
                t._requires_grad = p.facts[MARKED]
    return changed


def lose(run: Run, steps: list[Step], error: Exception) -> None:
    """After a call that failed, as PyTorch's would have before all that follow: leaves have the gradients of before,
    and what was promised raises the error when somebody looks.
    """
    leaves: set[int] = set()
    for step in steps:
        if step.kind != "backward":
            continue
        for (j, _), p in zip(step.leaves, step.watched):
            known = p.form != SLOT or p.number < len(run.made)
            if j >= 0 and j not in leaves:
                _external(run, j)._grad = _value(p, run) if known else None
            leaves.add(j)
    for k in range(len(run.made), len(run.slots)):
        t = run.slots[k]()
        if t is not None:
            t._late = _raise, error


def _raise(_: Tensor, error: Exception) -> None:
    raise error.with_traceback(None)


@contextlib.contextmanager
def _without_values(run: Run, steps: list[Step]) -> Iterator[None]:
    """Inside, generators and gradients are what they were at the beginning, and what is recorded is never computed:
    calls that were computed are made again for their graph, on memory that they may have overwritten. For other threads
    tensors from outside have the values that they have.
    """
    runtime = run.runtime
    assert runtime is not None
    with runtime.lock:
        # What fails raises when it is read.
        with contextlib.suppress(Exception):
            runtime.realize()
        recording = runtime.record()
        outside = {
            t._storage for t in run.externals if type(t) is not Prior and run.slot_of(t) is None
        }
        leaves = {j for step in steps for j, _ in step.leaves if j >= 0}
        leaves |= {
            p.number
            for step in steps
            if step.kind == "gradient"
            for p in patterns_in(step.args)
            if p.form in (NEW, KNOWN, PRIOR)
        }
        gradients = [(t, t._grad) for j in leaves if type(t := run.externals[j]) is not Prior]
        generators = [(g, g._seed, g._offset) for g, *_ in run.drawn.values()]
        with runtime.writing:
            copies: dict[Node, Node] = {}
            for storage in outside:
                node = storage.node
                if node not in copies:
                    attrs = (IDENTITY, "t", node.dtype.compute)
                    copies[node] = Node("map", (node,), attrs, (), node.shape, node.dtype)
                # So that it is not written in its own memory, and given back.
                recording.overwrite(storage, node, copies[node])
                recording.own.add(copies[node])
                storage.node, storage.donor = copies[node], None
        for g, seed, start, _ in run.drawn.values():
            g._seed, g._offset = seed, start
        try:
            yield
        finally:
            runtime.stop_recording(keep=False)
            for leaf, gradient in gradients:
                leaf._grad = gradient
            for number, (g, _, start, _) in run.drawn.items():
                run.counted[number] = (g._offset - start) % 2**64
            for g, seed, offset in generators:
                g._seed, g._offset = seed, offset


def _take_over_graph(run: Run, first: int) -> None:
    """Let the graph of calls that were computed be that of the tensors which have their values, and keep what was
    saved for it. Its functions, recorded since the mark `first`, take their turn with those of the time when they were
    computed.
    """
    program = run.program
    assert program is not None
    there: dict[Storage, Storage] = {}
    for k, made in enumerate(run.made):
        t = run.slots[k]()
        if t is not None and not run.is_outside(made._storage):
            there[made._storage] = t._storage
    starts = [run.made[k]._grad_fn for k in sorted(program.open)]
    for storage, node in zip(saved_storages(starts, run), run.saved, strict=True):
        if storage not in there:
            # Another storage may have it, too.
            storage.node, storage.donor, node.shared = node, None, True
    alive = {id(made): t for k, made in enumerate(run.made) if (t := run.slots[k]()) is not None}
    for fn in graph_of(starts):
        if run.turn is not None and fn.sequence > first:
            fn.sequence += run.turn - first
        if isinstance(fn, AccumulateGrad) and id(fn.variable) in alive:
            fn.variable = alive[id(fn.variable)]
            fn.variable._accumulate = weakref.ref(fn)
        for s in fn.saved or ():
            s.leaf = alive.get(id(s.leaf), s.leaf)
            home = there.get(s.storage)
            if home is not None:
                s.counter = home if s.counter is s.storage else s.counter
                s.storage = home
    for storage in there:
        if storage.node.kind != "buffer":
            # A view or a graph that nobody has may hold it still.
            storage.node = Node.in_memory(storage.node.shape, storage.dtype)
    for k, made in enumerate(run.made):
        t = run.slots[k]()
        if t is None:
            # A leaf that only the graph has was given a gradient that has no value, unless somebody has that.
            made._grad = alive.get(id(made._grad))
            made._storage = made._counter = storage = there.get(made._storage, made._storage)
            if storage.node.kind != "buffer":
                # Nobody has it, and it is not to be computed.
                storage.node = Node.in_memory(storage.node.shape, storage.dtype)
            run.slots[k] = weakref.ref(made)
            run.ids[id(made)] = k
            continue
        if k in program.open:
            t._grad_fn, t._output_nr = made._grad_fn, made._output_nr
        t._offset = made._offset
        t._base_version = t._counter.version - (made._counter.version - made._base_version)
        run.made[k] = t
    for context in run.casts:
        for key, (*_, cast) in list(context.items()):
            if cast._storage.node.kind != "buffer":
                del context[key]


def _make(run: Run, step: Step, taken: Step) -> None:
    assert step.callee is not None
    args = tuple([_value(p, run) for p in taken.args])
    kwargs = {n: _value(p, run) for n, p in zip(step.names, taken.kwargs)}
    run.restore(step.modes)
    for p in taken.patterns():
        if p.form == NEW:
            run.note_offset(run.externals[p.number], p)
    functions: dict[GradFn, None] = {}
    if step.kind == "hook":
        args[0]._grad_fn.tensor_hooks = run.hooks[_slot(step.args[0], run)]
        return
    if step.kind == "part":
        interpreted(step.callee, args, kwargs)
        return
    if step.kind == "stop":
        with contextlib.suppress(EnoughComputed):
            interpreted(step.callee, args, kwargs)
        return
    if step.kind == "function":
        interpreted(step.callee, args, kwargs)
        for number, f in step.changed:
            run.facts[number] = f
        return
    if step.kind == "move":
        memory = args[0]._storage, args[0]._counter
        interpreted(step.callee, args, kwargs)
        run.note_move(step.args[0].number, memory, step.place)
        return
    if step.kind == "backward":
        for (j, _), p in zip(step.leaves, step.watched):
            _leaf(run, j)._grad = _value(p, run)
        with args[0].as_then():
            out = interpreted(step.callee, args, kwargs)
        functions = args[0].functions
    else:
        if step.kind == "gradients":
            functions = graph_of([root._grad_fn for root in outputs_of(args, kwargs)])
        out = interpreted(step.callee, args, kwargs)
    run.used_up.update(freed(functions))
    if step.kind == "backward" and args[0].turn is None:
        args[0].forget()
    _take_over(step.results, out, run)
    if step.kind == "mark":
        note_mark(run, out, step)
    for j, form in step.leaves:
        leaf = _leaf(run, j)
        if type(form) is Facts:
            _take_over(form, leaf._grad, run)
            leaf._grad = run.made[-1]


def _leaf(run: Run, number: int) -> Tensor:
    """Return the tensor of a `leaf_number`, while calls are made in the usual way."""
    return _external(run, number) if number >= 0 else run.made[-1 - number]


def _slot(p: Pattern, run: Run) -> int:
    """Return the number of the slot that an argument is."""
    if p.form == SLOT:
        return p.number
    t = run.externals[p.number]
    number = t.slot if type(t) is Prior else run.slot_of(t)
    assert number is not None
    return number


def _external(run: Run, number: int) -> Tensor:
    """Return a tensor from outside, while calls are made in the usual way; of a slot, what was made for it."""
    t = run.externals[number]
    k = t.slot if type(t) is Prior else run.slot_of(t)
    return run.made[k] if k is not None and k < len(run.made) else t


def _value(p: Pattern, run: Run) -> Any:
    """Return the argument that a pattern stands for, while calls are made in the usual way."""
    if p.form == SLOT:
        return run.made[p.number]
    if p.form in (KNOWN, NEW, PRIOR):
        return _external(run, p.number)
    if p.form == SEQUENCE:
        parts = [_value(q, run) for q in p.parts]
        return p.value(*parts) if hasattr(p.value, "_fields") else p.value(parts)
    if p.form == OBJECT:
        return p.value()
    if p.form == OPAQUE:
        return run.opaque[p.number]
    if p.form == NUMBER:
        return run.given.number(p.number, p.value)
    return float(p.value) if p.form == ZERO else p.value


def _take_over(form: Form, out: Any, run: Run) -> None:
    """Let promised tensors be what a call gave; those that nobody has any more are what it gave."""
    if type(form) is Facts:
        number = len(run.made)
        if number < run.first:
            # It has its value, and gets its graph at the end.
            run.made.append(out)
            run.facts.append(form)
            return
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
    elif form[0] == "view":
        for part, o in zip(form[1], (out._base, out), strict=True):
            _take_over(part, o, run)
    elif form[0] == "parts":
        for part, o in zip(form[1][1], out):
            _take_over(part, o, run)
