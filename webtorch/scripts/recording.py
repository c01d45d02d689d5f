"""Recording a script: calls are made in the usual way, and noted. What they became is its program."""

from __future__ import annotations

import weakref
from collections.abc import Container, Iterable, Sequence
from dataclasses import replace
from typing import Any

from webtorch.dispatch.call import Args, Callee, Kwargs
from webtorch.ir.dtype import DType
from webtorch.ir.graph import Node
from webtorch.ir.lines import user_line
from webtorch.ir.view import Shape
from webtorch.runtime.backend import Executable
from webtorch.runtime.frozen import Frozen, Taken
from webtorch.runtime.realize import Runtime, open_runtimes
from webtorch.scripts.changes import history_of, tensors_in
from webtorch.scripts.late import complete, give_all
from webtorch.scripts.run import Run, facts_of, have_hooks, keep_saved, may_vary
from webtorch.scripts.script import (
    KNOWN,
    NEW,
    NUMBER,
    OBJECT,
    OPAQUE,
    PRIOR,
    SEQUENCE,
    SLOT,
    STATIC,
    VARYING,
    ZERO,
    Decided,
    Facts,
    Form,
    Number,
    Offset,
    Origin,
    Pattern,
    Program,
    Reading,
    Step,
    argument_key,
    forms_in,
    patterns_in,
    split,
)
from webtorch.scripts.turning import BEGIN
from webtorch.tensors import override
from webtorch.tensors.device import device
from webtorch.tensors.formats import strided
from webtorch.tensors.host import HostScalar, Varying
from webtorch.tensors.order import graph_of
from webtorch.tensors.size import Size
from webtorch.tensors.storage import Storage
from webtorch.tensors.tape import AccumulateGrad, GradFn, SavedTensor, part_of
from webtorch.tensors.tensor import Tensor

# Values that are compared as they are.
_STATIC = (type(None), bool, int, float, complex, str, DType, device, slice, type(Ellipsis), type)


# What calls are to a script that play other roles by themselves; and which argument is an object that may be any.
_KINDS = {"alias": "operation", "turn": "backward"}
_OPAQUE = {"turn": 0, "hook": 1, "function": 0, "part": 0}


class Refused(Exception):
    """A call cannot stand in a script, for the reason that it says."""


class Note:
    """What a call is to be compared with, as it was before it was made."""

    def __init__(self, run: Run, callee: Callee, args: Args, kwargs: Kwargs) -> None:
        """Raises Refused where the arguments cannot be compared later."""
        self.run = run
        self.step = step = Step(run.at)
        step.callee, step.kind = callee, _KINDS.get(callee.role, callee.role)
        if callee.role == "alias" and len(args) == 2:
            step.kind = "move"
        step.modes, step.line = run.modes(), user_line()
        opaque = _OPAQUE.get(callee.role)
        step.args = [
            _opaque(a, run) if i == opaque else pattern_of(a, run) for i, a in enumerate(args)
        ]
        # Beside floating numbers whole ones are what they would be as such.
        whole = callee.scalars and all(
            t.dtype.kind == "float" for t in tensors_in((*args, *kwargs.values()))
        )
        self.numbers = (float, int) if whole else (float,)
        step.names = tuple(kwargs)
        step.kwargs = [pattern_of(a, run) for a in kwargs.values()]
        self.leaves: list[Tensor] = []
        if step.kind == "backward":
            self.turning = turning = args[0]
            if callee is BEGIN:
                roots = outputs_of(args[1:], kwargs)
                if len(args) > 4 or kwargs.keys() - {"gradient", "grad_tensors", "retain_graph"}:
                    raise Refused("backward() is given arguments")
                if any(not isinstance(t, Tensor) or run.slot_of(t) is None for t in roots):
                    raise Refused("it is given a tensor from before that has a graph")
                functions = graph_of([t._grad_fn for t in roots])
                _check_whole(functions, run)
                turning.leaves = _leaves(functions, run, hooks=True)
            elif turning.run is None or turning.run() is not run:
                raise Refused("something was computed within the backward pass")
            self.leaves = turning.leaves
            step.watched = [pattern_of(leaf._grad, run) for leaf in self.leaves]
            self.gradients = [leaf._grad for leaf in self.leaves]
            # The last one may have been about to take its gradient.
            self.count = max(0, len(turning.touched) - 1)
        elif step.kind == "hook":
            self.tensor = args[0]
        elif step.kind == "function":
            self.given = args
        elif step.kind == "gradients":
            roots = outputs_of(args, kwargs)
            if any(not isinstance(t, Tensor) or run.slot_of(t) is None for t in roots):
                raise Refused("it is given a tensor from before that has a graph")
            self.functions = graph_of([root._grad_fn for root in roots])
            _check_whole(self.functions, run)
            _leaves(self.functions, run, hooks=False)
        elif step.kind == "step":
            found = None if callee.watch is None else callee.watch(*args, **kwargs)
            if found is None:
                raise Refused("the optimizer's step does more than changing parameters")
            step.watched = [pattern_of(v, run) for v in (*found.values(), *found.state)]
        # Only an argument can be written, or what it is a view of, or what a step looks at beside them.
        self.read = sorted({j for p in step.patterns() if (j := _external(p, run)) is not None})
        for j in self.read:
            storage = run.externals[j]._storage
            if run.versions.get(storage, storage.version) != storage.version:
                raise Refused("a tensor from outside was written by what is no call")
        self.before = [_state(run.externals[j]) for j in self.read]
        self.counters = [run.externals[j]._counter for j in self.read]

    def places(self) -> list[tuple[Any, int]]:
        """Return what tells the numbers among the arguments apart that are compared: line and callee, and place."""
        step = self.step
        patterns = [*step.args, *step.kwargs]
        return [
            ((step.line, step.callee, i), i)
            for i, p in enumerate(patterns)
            if p.form == STATIC and type(p.value) in self.numbers and may_vary(p.value)
        ]

    def differing(self, places: list[tuple[object, int]]) -> list[object]:
        """Return which of these numbers are all that tells the call apart from one that came here before."""
        step, found = self.step, []
        patterns, numbers = [*step.args, *step.kwargs], {i: key for key, i in places}
        for s in self.run.at.following:
            others = [*s.args, *s.kwargs]
            if s.callee is step.callee and s.names == step.names and len(others) == len(patterns):
                places_here = [
                    i
                    for i, (p, q) in enumerate(zip(patterns, others, strict=True))
                    if p.key() != q.key()
                ]
                if all(i in numbers and type(others[i].value) in self.numbers for i in places_here):
                    found += [numbers[i] for i in places_here]
        return found

    def vary(self, place: int, args: Args, kwargs: Kwargs) -> tuple[Args, Kwargs]:
        """Let an argument be any number; return the arguments with one that remembers that it is."""
        run, step = self.run, self.step
        patterns, i = (step.args, place) if place < len(args) else (step.kwargs, place - len(args))
        p = patterns[i] = Pattern(NUMBER, patterns[i].value, max(run.given, default=-1) + 1)
        number = run.given.number(p.number, float(p.value))
        if patterns is step.kwargs:
            return args, {**kwargs, step.names[i]: number}
        return (*args[:i], number, *args[i + 1 :]), kwargs

    def decide(self, decided: list[Decided], args: Iterable[object]) -> None:
        """Note what the call has decided by its numbers, where that may be a size: what it gives has none of its
        tensors' shapes. Another number must decide the same where it is given.
        """
        numbers = [p for p in (*self.step.args, *self.step.kwargs) if p.form == NUMBER]
        shapes = {t._shape for t in tensors_in(args)}
        if numbers and any(f.shape not in shapes for f in forms_in(self.step.results)):
            numbers[-1].decides = tuple(decided)

    def has_written(self) -> bool:
        """Whether the call has given a tensor from outside another value."""
        externals = self.run.externals
        return any(
            externals[j]._storage.node is not node
            for j, (_, node, *_) in zip(self.read, self.before, strict=True)
        )

    def made(self, out: Any) -> Step:
        """Return the step of the call, which gave `out`. Raises Refused where that cannot be promised."""
        run, step = self.run, self.step
        writes = []
        counted: set[Storage] = set()
        for j, before in zip(self.read, self.before, strict=True):
            t = run.externals[j]
            storage, node, counts, version, fn = before
            moved = step.kind == "move" and j == step.args[0].number
            if (t._storage is not storage and not moved) or history_of(t) is not fn:
                raise Refused("it gives a tensor from outside another history or memory")
            run.versions[storage] = storage.version
            if storage.node is not node or storage.version != version:
                # Tensors of one storage count its writes once.
                more = 0 if storage in counted else storage.version - version
                counted.add(storage)
                writes.append((j, t._counter.version - counts, more))
        step.writes = tuple(writes)
        if step.kind == "mark":
            note_mark(run, out, step)
        elif step.kind == "move":
            step.place = self._note_move()
        if step.kind == "hook":
            step.place = note_hook(run, self.tensor)
        elif step.kind == "function":
            step.changed = note_function(run, self.given)
        else:
            step.results = form_of(out, run)
        if any(f.requires_grad for f in forms_in(step.results)):
            for p in patterns_in([*step.args, *step.kwargs]):
                if p.form not in (NEW, KNOWN):
                    continue
                t = run.externals[p.number]
                complete(t)
                fn = history_of(t)
                if fn is None or run.slot_of(t) is not None:
                    continue
                if not (isinstance(fn, GradFn) and _is_used_up(fn)):
                    raise Refused("it is given a tensor from before that has a graph")
        if step.kind == "backward":
            self._note_part()
        if step.kind == "gradients" or step.kind == "backward":
            run.used_up.update(freed(self.functions))
            run.differentiated = True
        if step.kind == "backward" and self.turning.turn is None:
            self.turning.forget()
        step.key = (
            step.modes, step.names, [p.key() for p in (*step.args, *step.kwargs, *step.watched)],
            step.results, step.writes, step.leaves, step.place, step.changed,
        )  # fmt: skip
        return step

    def _note_move(self) -> int:
        """Note that a tensor from outside lies elsewhere now; return what `Facts.storage` calls that place."""
        run, (p, value) = self.run, self.step.args
        if value.form == SLOT:
            place = run.facts[value.number].storage
        else:
            place = run.place_of_storage(run.externals[value.number])
        storage, counter = next(
            (storage, counter)
            for j, (storage, *_), counter in zip(self.read, self.before, self.counters, strict=True)
            if j == p.number
        )
        run.note_move(p.number, (storage, counter), place)
        return place

    def stopped(self) -> Step:
        """Return the step of a call with which the second computation of a checkpointed part stops."""
        self.step.kind = "stop"
        step = self.made(None)
        if step.writes:
            raise Refused("a checkpoint stops where it writes")
        return step

    def _note_part(self) -> None:
        """Note what a part of a backward pass has done."""
        run, step, turning = self.run, self.step, self.turning
        turning.run, self.functions = weakref.ref(run), turning.functions
        # The first part looks at all leaves, the others at those at which something arrives.
        first = step.callee is BEGIN
        arrived = {id(t) for t in (self.leaves if first else turning.touched[self.count :])}
        leaves, watched = [], []
        for leaf, p, before in zip(self.leaves, step.watched, self.gradients, strict=True):
            if id(leaf) not in arrived:
                continue
            grad = leaf._grad
            # It may come later, or be added to.
            form: Form = ("none", 0)
            if grad is not before:
                form = ("none", 0) if grad is None else form_of(grad, run)
                if grad is None or grad._grad_fn is not None or type(form) is not Facts:
                    raise Refused("a gradient is no plain tensor, or was there before")
            elif grad is None and turning.turn is None:
                raise Refused("a leaf gets no gradient")
            number = run.leaf_number(leaf)
            assert number is not None
            leaves.append((number, form))
            watched.append(p)
        counts = run.hook_counts(
            [leaf for leaf in self.leaves if id(leaf) in arrived], step.callee is BEGIN
        )
        step.leaves, step.watched = tuple(leaves), [*watched, pattern_of(counts, run)]
        if turning.turn is not None:
            step.place = run.place_of(turning.turn.owner, turning.turn.key)
            if step.place is None:
                raise Refused("a hook looks at a gradient that cannot be found again")


def _external(p: Pattern, run: Run) -> int | None:
    """Return the external tensor in whose storage an argument lies."""
    if p.form == SLOT:
        place = run.facts[p.number].storage
        if place >= 0 and place in run.homes.values():
            # One whose `data` was set, if it still lies there.
            lying = (t for t, *_ in run.moves if run.homes.get(t._storage) == place)
            return next((run.numbers[id(t)] for t in lying), None)
        return -1 - place if place < 0 else None
    return p.number if p.form in (NEW, KNOWN, PRIOR) else None


def _state(t: Tensor) -> tuple[Storage, Node, int, int, object]:
    """Return what shows that a call has written a tensor, or given it another history."""
    return t._storage, t._storage.node, t._counter.version, t._storage.version, history_of(t)


def begin(run: Run) -> None:
    """Note what is there before a run that is recorded, or before it goes on."""
    run.begun = {}
    give_all()
    for runtime in open_runtimes():
        for s in Storage.live(runtime):
            node = s.node
            if node.kind == "buffer" and run.home_of(node) is None:
                run.begun[id(node)] = weakref.ref(node), weakref.ref(s)


def _opaque(value: object, run: Run) -> Pattern:
    """Return the pattern of an object that nobody looks at."""
    for number, known in enumerate(run.opaque):
        if known is value:
            return Pattern(OPAQUE, False, number)
    run.opaque.append(value)
    return Pattern(OPAQUE, True, len(run.opaque) - 1)


def pattern_of(value: Any, run: Run) -> Pattern:
    """Return what an argument is to be compared with."""
    if isinstance(value, Tensor):
        number = run.external_of(value)
        if number is not None:
            return Pattern(KNOWN, None, number)
        number = run.slot_of(value)
        if number is not None:
            _check_unchanged(value, run.facts[number])
            if number >= run.first:
                return Pattern(SLOT, None, number)
            p = Pattern(PRIOR, number, len(run.externals))
            run.add_external(value)
            return p
        if type(value) not in override.plain and override.asks(type(value)):
            raise Refused(f"it is given a {type(value).__name__}, which is asked what it gives")
        if value.layout is not strided:
            raise Refused("it is given a sparse tensor")
        facts = facts_of(value)
        if facts is None:
            pending = value._storage.node.kind != "buffer"
            raise Refused(
                "it is given a tensor from before that is not computed"
                if pending
                else "it is given a tensor from before that has hooks or hidden dimensions, or that NumPy sees"
            )
        storage = value._storage
        run.runtime = run.runtime or storage.runtime
        if storage.runtime is not run.runtime:
            raise Refused("it is given tensors of two devices")
        p = Pattern(NEW, int(value._offset), len(run.externals))
        p.facts = facts
        holder = run.holder_of(storage.node)
        p.alias = run.storages.get(storage, p.number), holder if holder >= 0 else p.number
        run.add_external(value)
        run.note_offset(value, p)
        return p
    if type(value) is Varying:
        return Pattern(VARYING, value.number)
    if type(value) is float and value == 0.0:
        return Pattern(ZERO, repr(value))
    if isinstance(value, _STATIC):
        return Pattern(STATIC, value)
    if type(value) in (tuple, list, Size):
        p = Pattern(SEQUENCE, type(value))
        p.parts = [pattern_of(v, run) for v in value]
        return p
    if hasattr(value, "param_groups") or hasattr(value, "initial_seed"):
        return Pattern(OBJECT, weakref.ref(value))
    raise Refused(f"it is given a {type(value).__name__}")


def form_of(out: object, run: Run) -> Form:
    """Note what a call gave: new tensors get the next numbers of slots."""
    if out is None:
        return ("none", 0)
    if isinstance(out, Tensor):
        number = run.external_of(out)
        if number is not None:
            return ("external", number)
        number = run.slot_of(out)
        if number is not None:
            _check_unchanged(out, run.facts[number])
            return ("slot", number)
        base = out._base
        if base is None or run.external_of(base) is not None or run.slot_of(base) is not None:
            return _new_slot(out, run)
        # The call has made what it gives a view of, and nobody else has that.
        return ("view", (_new_slot(base, run), _new_slot(out, run)))
    if isinstance(out, (tuple, list)):
        return ("parts", (type(out), tuple([form_of(o, run) for o in out])))
    raise Refused(f"it gives a {type(out).__name__}")


def _new_slot(t: Tensor, run: Run) -> Facts:
    f = _facts(t, run)
    run.add_slot(t)
    run.facts.append(f)
    return f


def note_hook(run: Run, t: Tensor) -> int:
    """Note the hooks of a slot; return which output of its function it is."""
    number, fn = run.slot_of(t), t._grad_fn
    if number is None or fn is None or not fn.tensor_hooks:
        raise Refused("a hook is registered on a tensor from outside")
    for k, hooks in run.hooks.items():
        if (k == number) != (hooks is fn.tensor_hooks):
            raise Refused(
                "hooks are registered on two results of one call, or on one before and after it is written"
            )
    run.hooks[number] = fn.tensor_hooks
    return t._output_nr


def note_function(run: Run, args: Args) -> tuple[tuple[int, Facts], ...]:
    """Note the history that results of a user's function have got; return what is known of them from now on."""
    keep_saved(args, promised=False)
    changed = []
    for t in args[2]:
        number = run.slot_of(t)
        if number is None or number < run.first:
            raise Refused("a function of the user's gives no new tensor")
        fn = t._grad_fn
        f = replace(
            run.facts[number],
            requires_grad=t._requires_grad,
            title="" if fn is None else fn.title,
            made_by=t._made_by,
        )
        run.facts[number] = f
        changed.append((number, f))
    return tuple(changed)


def note_mark(run: Run, t: Tensor, step: Step) -> None:
    """Take notice that gradients are recorded for a result from now on, or not, unless it is a tensor from outside."""
    number = run.slot_of(t)
    if number is None:
        # While calls that were computed are made again it is not what somebody has.
        number = next((k for k in reversed(range(len(run.made))) if run.made[k] is t), None)
    if number is None:
        return
    run.facts[number] = replace(run.facts[number], requires_grad=step.mark())


def _check_unchanged(t: Tensor, f: Facts) -> None:
    now = t._shape, t._strides, t._requires_grad, t.dtype, t._retains, bool(t._hooks)
    if now != (f.shape, f.strides, f.requires_grad, f.dtype, False, False):
        raise Refused("what a tensor is like has been changed")


def _facts(t: Tensor, run: Run) -> Facts:
    if type(t) is not Tensor or t._hooks or t._levels or t.__dict__.keys() - {"_made_by"}:
        raise Refused("it gives a tensor that is not a plain one")
    storage = t._storage
    run.runtime = run.runtime or storage.runtime
    if storage.runtime is not run.runtime:
        raise Refused("it computes on two devices")
    place = run.homes.get(storage, len(run.slots))
    for k, reference in enumerate(run.slots):
        other = reference()
        if other is not None and other._storage is storage:
            place = run.facts[k].storage
            break
    if storage in run.storages:
        place = -1 - run.storages[storage]
    elif 0 <= place < run.first:
        raise Refused("it gives a view of what was computed before")
    base = None
    if t._base is not None:
        known, slot = run.external_of(t._base), run.slot_of(t._base)
        if known is None and slot is None:
            raise Refused("it gives a view of what no call has given")
        base = ("external", known) if known is not None else ("slot", slot or 0)
    fn, offset = t._grad_fn, t._offset
    place_in_memory = (offset.external, offset.more) if isinstance(offset, Offset) else offset
    return Facts(
        t._shape, t._strides, place_in_memory, t._whole, t.dtype, t._requires_grad, t._inference,
        "" if fn is None else fn.title, place, base, t._made_by, t._counter is not storage,
    )  # fmt: skip


def _leaves(functions: Iterable[GradFn], run: Run, hooks: bool) -> list[Tensor]:
    """Return the leaves that a backward pass through functions reaches. Raises Refused where somebody looks at what
    it does, but for `hooks` of tensors.
    """
    leaves: list[Tensor] = []
    for fn in functions:
        if is_watched(fn, run, hooks):
            raise Refused("a hook looks at a gradient")
        if isinstance(fn, AccumulateGrad):
            leaf = fn.variable
            if (not hooks and (leaf._hooks or leaf._post_accumulate)) or have_hooks((leaf,)):
                raise Refused("a hook looks at the gradient of a leaf")
            if run.leaf_number(leaf) is None:
                raise Refused("a leaf was no argument of what was recorded")
            leaves.append(leaf)
        elif fn.recalls and not hooks:
            raise Refused("a checkpointed part is computed again")
        elif fn.rule is None or not is_known(fn, run, hooks):
            raise Refused("a function of the graph is the user's own, or has been used up")
    if not leaves:
        raise Refused("no leaf takes a gradient")
    leaves.sort(key=lambda t: run.leaf_number(t) or 0)
    return leaves


def is_watched(fn: GradFn, run: Run, hooks: bool = True) -> bool:
    """Whether somebody sees what arrives at a function or leaves it, but for `hooks` that a run knows."""
    known = hooks and any(fn.tensor_hooks is found for found in run.hooks.values())
    return fn.is_watched and not (known and not (fn.pre_hooks or fn.post_hooks or fn.retained))


def is_known(fn: GradFn, run: Run, own: bool = True) -> bool:
    """Whether a function is none of the user's, or one that a call of a run has made, with `own`."""
    context = getattr(fn, "ctx", None)
    return context is None or (own and any(known is context for known in run.opaque))


def freed(functions: Iterable[GradFn]) -> list[GradFn]:
    """Return the functions that have been used up: they do not hold what they saved any more."""
    return [fn for fn in functions if fn.saved is None]


def _left_of(starts: Iterable[GradFn], gone: Container[GradFn]) -> dict[GradFn, bool | None]:
    """Return what backward passes have left of the graphs of functions: True, all of it; False, nothing, since each way
    comes to a function that is gone before one that saves something; None, a part.
    """
    left: dict[GradFn, bool | None] = {}
    # What is made later leads to what was there before.
    for fn in sorted(graph_of(starts), key=lambda f: f.sequence):
        ways = {left.get(e[0], True) for e in fn.edges if e is not None}
        if fn in gone or (ways == {False} and not fn.saved):
            left[fn] = False
        else:
            left[fn] = None if ways & {False, None} else True
    return left


def outputs_of(args: Args, kwargs: Kwargs) -> Sequence[Any]:
    """Return what gradients are taken of, from the arguments of autograd.grad()."""
    outputs = args[0] if args else kwargs.get("outputs", ())
    return outputs if isinstance(outputs, (tuple, list)) else (outputs,)


def program_of(
    run: Run, runtime: Runtime, frozen: Frozen, executable: Executable
) -> tuple[Program, list[Node]]:
    """Return the program that the calls of a run have become since something was computed, and the values that the
    open graph has saved. Raises Refused where it cannot run again alone.
    """
    if run.runtime is not runtime:
        raise Refused("it computes on two devices")
    if any(storage.version != version for storage, version in run.versions.items()):
        raise Refused("a tensor from outside was written by what is no call")
    places, used, still, partly = _places(run)
    still |= partly
    if still and any(s.kind == "move" for s in run.at.path()):
        raise Refused("the data of a tensor is set while there is a graph")
    starts = [t._grad_fn for k in sorted(still) if (t := run.slots[k]()) is not None]
    _check_graph(starts, run)
    saved = saved_storages(starts, run)
    outputs = _outputs(run, frozen, places, set(saved))
    made = frozenset([place for kind, place, *_ in outputs if kind == "slot"])
    if any(place >= 0 and place not in made for place in places.values()):
        raise Refused("a result was computed before")
    before = {node: i for i, node in enumerate(run.saved)}
    inputs = _inputs(run, frozen, before)
    computed = {taken.node: i for i, taken in enumerate(frozen.owners)}
    origins = [
        ("output", computed[s.node]) if s.node in computed else _origin(s.node, run, before)
        for s in saved
    ]
    seen = {a.external for a in frozen.args if isinstance(a, Offset)}
    fixed = {
        a.external
        for part in frozen.key
        if type(part) is tuple
        for a in part
        if isinstance(a, Offset)
    }
    for _, p in run.noted:
        # What was read before need not be read again.
        loose = p.number in seen if p.loose is None else p.loose
        p.loose = loose and p.number not in run.spoilt and p.number not in fixed
    args = [_argument(a, run) for a in frozen.args]
    dynamic: dict[Any, tuple[object, list[int]]] = {}
    for i, a in enumerate(args):
        if hasattr(a, "read") or isinstance(a, Offset):
            dynamic.setdefault(argument_key(a), (a, []))[1].append(i)
    draws = []
    for g, start, _ in run.generators.values():
        count, counted = (g._offset - start) % 2**64, run.counted.get(id(g), 0)
        draws.append((g, counted, count - counted))
        run.counted[id(g)] = count
    behind = {
        k: t._counter.version - t._base_version
        for k, reference in enumerate(run.slots)
        if (t := reference()) is not None and t._base is not None
    }
    graph = used, frozenset(still), frozenset(partly), origins
    program = Program(
        runtime, executable, inputs, args, [*dynamic.values()], outputs, draws, made, *graph, run.given.copy(), set(),
        behind,
    )  # fmt: skip
    program.lines = [n.line for n in frozen.order]
    run.computed.update(computed)
    return program, [s.node for s in saved]


def _argument(a: object, run: Run) -> Any:
    if isinstance(a, Number):
        # Of another run it is what it was then.
        return a if a.source is run.given else float.__float__(a)
    return Reading(a) if isinstance(a, HostScalar) else a


def _places(
    run: Run,
) -> tuple[dict[Storage, int], dict[int, tuple[int, ...]], set[int], set[int]]:
    """Return the storages of the results since something was computed that are alive, by what `Facts.storage` calls
    them, and the slots whose graph a backward pass has used up, with the leaves that it reaches, or not, or in part.
    """
    places: dict[Storage, int] = {}
    used: dict[int, tuple[int, ...]] = {}
    still: set[int] = set()
    alive = [t._grad_fn for reference in run.slots if (t := reference()) is not None]
    starts = [fn for fn in alive if fn is not None]
    left = _left_of(starts, {*run.used_up, *_gone(graph_of(starts))})
    partly: set[int] = set()
    counters: set[object] = set()
    for k, reference in enumerate(run.slots):
        t = reference()
        if t is None:
            continue
        fn = t._grad_fn
        if fn is not None:
            if left[fn] is False:
                used[k] = _leaves_of(fn, run)
            else:
                (still if left[fn] else partly).add(k)
        if t._counter is not t._storage and (t._counter.version or t._counter in counters):
            raise Refused(
                "a tensor is kept that has counted its own writes, or that another one counts"
            )
        counters.add(t._counter)
        if t._history or (t._base is not None and t._base._history):
            raise Refused("a result was written in place with gradients")
        if k >= run.first:
            places[t._storage] = run.facts[k].storage
    places.update(run.homes)
    return places, used, still, partly


def _is_used_up(fn: GradFn) -> bool:
    """Whether backward passes have left nothing of the graph of a function, as of that of a result after a step."""
    return _left_of([fn], _gone(graph_of([fn])))[fn] is False


def _gone(functions: Iterable[GradFn]) -> set[GradFn]:
    """Return the functions that a backward pass has used up, and what stands for such where a script was followed."""
    return {
        f
        for f in functions
        if not isinstance(f, AccumulateGrad) and (f.saved is None or f.rule is None)
    }


def _check_whole(functions: Iterable[GradFn], run: Run) -> None:
    """Raise Refused where a graph leads to one that was there before."""
    if not run.earlier().isdisjoint(functions):
        raise Refused("a graph leads to one that was there before")


def _leaves_of(fn: GradFn, run: Run) -> tuple[int, ...]:
    """Return the leaves from outside that a graph reaches."""
    reached = [f.variable for f in graph_of([fn]) if isinstance(f, AccumulateGrad)]
    return tuple([number for t in reached if (number := run.external_of(t)) is not None])


def saved_storages(starts: Iterable[GradFn | None], run: Run) -> list[Storage]:
    """Return the storages from calls of a run that a graph has saved, in an order that depends on the graph alone."""
    functions = graph_of(starts, run.earlier())
    saved = [s.storage for fn in functions for s in fn.saved or () if s.packed is None]
    return list(dict.fromkeys([storage for storage in saved if not run.is_outside(storage)]))


def _check_graph(starts: Iterable[GradFn | None], run: Run) -> None:
    """Raise Refused where a graph is not made of plain calls, up to what was there before."""
    for fn in graph_of(starts, run.earlier()):
        if is_watched(fn, run) or not is_known(fn, run):
            raise Refused("a result has a graph with hooks, or with a function of the user's own")
        if isinstance(fn, AccumulateGrad):
            if run.leaf_number(fn.variable) is None:
                raise Refused("a result has a graph with a leaf that was no argument")
            continue
        if _has_tensor(fn.static):
            raise Refused("a result has a graph that saves more than tensors")
        for s in fn.saved or ():
            if type(s) is not SavedTensor or s.present is not None or not _is_plain(s, run):
                raise Refused("a result has a graph that saves more than tensors")


def _is_plain(s: SavedTensor, run: Run) -> bool:
    """Whether a tensor is saved as it is, or computed again by a checkpointed part that the run knows."""
    return s.packed is None or any(known is part_of(s.packed[1]) for known in run.opaque)


def _has_tensor(static: object) -> bool:
    parts = static.values() if isinstance(static, dict) else static
    if isinstance(parts, (tuple, list, type({}.values()))):
        return any(map(_has_tensor, parts))
    return isinstance(static, Tensor)


def _origin(node: Node, run: Run, before: dict[Node, int]) -> Origin:
    """Return where a value is found that was there before, or was saved then."""
    number, home = run.holder_of(node), run.home_of(node)
    if number >= 0:
        return ("external", number)
    if node in before:
        return ("saved", before[node])
    if node in run.cast_before:
        return ("cast", _cast(run, *run.cast_before[node]))
    if home is not None and home() is not None:
        return ("hidden", home)
    if node in run.computed or node.kind != "buffer":
        raise Refused("it needs what was computed before, and no result has")
    return ("constant", node)


def _inputs(run: Run, frozen: Frozen, before: dict[Node, int]) -> list[tuple[Origin, bool]]:
    """Return where the inputs of a program are, and which of them it overwrites."""
    donated = {id(d) for d in frozen.donors if d is not None}
    return [(_origin(node, run, before), id(node) in donated) for node in frozen.inputs]


def _cast(run: Run, context: int, owner: Any, dtype: DType) -> Any:
    """Return where a value is found that autocast had made before the run."""
    x = owner()
    number = None if x is None else run.external_of(x)
    if number is None or not run.casts[context].open:
        raise Refused("it uses what autocast had cast in a context that is over")
    return context, number, dtype


def _outputs(
    run: Run, frozen: Frozen, places: dict[Storage, int], saved: Container[Storage]
) -> list[tuple[str, int, Shape, int]]:
    """Return where the outputs of a program go. Raises Refused where one is no result, no write of a call, and not
    saved by the graph.
    """
    calls = split(run.at.path())[1]
    written = _written(calls, run)
    outputs: list[tuple[str, int, Shape, int]] = []
    for taken in frozen.owners:
        storage = taken.owner if isinstance(taken, Taken) else taken
        if not isinstance(storage, Storage):
            raise Refused("it is computed in parts")
        place = places.get(storage)
        if place is not None and place >= 0:
            outputs.append(("slot", place, taken.node.shape, storage.version))
        elif run.storages.get(storage) in written:
            outputs.append(("external", run.storages[storage], taken.node.shape, 0))
        elif storage in saved:
            outputs.append(("saved", 0, taken.node.shape, 0))
        else:
            raise Refused("it leaves a value that no result has")
    if written - {number for kind, number, *_ in outputs if kind == "external"}:
        raise Refused("a write takes the value of another tensor as it is")
    return outputs


def _written(calls: list[Step], run: Run) -> set[int]:
    """Return the numbers of storages from outside that calls have written."""
    places: dict[int, int] = {}
    found = []
    for s in calls:
        if s.kind == "move":
            places[s.args[0].number] = s.place
        for j, *_ in s.writes:
            if j not in places:
                places[j] = -1 - run.storages[run.left.get(j) or run.externals[j]._storage]
            found.append(places[j])
    return {-1 - place for place in found if place < 0}


def facts_along(step: Step) -> list[Facts]:
    """Return what is known of the slots of a path."""
    if step.known is not None:
        return step.known
    found: list[Facts] = []
    for s in step.path():
        found += forms_in(s.results)
        for _, form in s.leaves:
            found += forms_in(form)
        for number, f in s.changed:
            found[number] = f
    step.known = found
    return found
