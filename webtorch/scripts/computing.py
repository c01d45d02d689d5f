"""The end of a script: its program runs on what is there now, and what is alive gets its value."""

from __future__ import annotations

import contextlib
import marshal
import weakref
from collections import Counter
from collections.abc import Callable, Sequence
from operator import is_
from typing import Any

from webtorch.errors import CHECKS
from webtorch.ir.graph import Node
from webtorch.runtime import realize as realizing
from webtorch.runtime.interrupt import whole
from webtorch.runtime.watch import watch
from webtorch.scripts.late import Waiting, filling, forget_dead, give_value, use_up, wait
from webtorch.scripts.prepared import giver
from webtorch.scripts.recording import facts_along
from webtorch.scripts.resting import Group, group_for, let_rest, value_of
from webtorch.scripts.run import Run
from webtorch.scripts.script import Facts, Known, Number, Origin, Program, Step, nothing, picker
from webtorch.tensors.storage import Storage, writes
from webtorch.tensors.tape import mark
from webtorch.tensors.tensor import Tensor


def compute(run: Run, last: Step, program: Program, finish: Callable[[], None], soon: bool) -> bool:
    """Run the program of the script that ends with `last`, give what is alive its value, and `finish`. Return whether
    that could be done.

    What a graph needs that no backward pass has used up yet stays promised: `_grad_fn` and `_output_nr`. Kernels push
    all that Python uses out of the processor's caches, so where that can be, and `soon`, all else is done before.
    """
    runtime = program.runtime
    facts = last.known or facts_along(last)
    if program.late is None:
        _plan(facts, program, last)
    holders = _holders(run, facts, program)
    if holders is None:
        return False
    with runtime.lock:
        if runtime.recording is not None and runtime.capturing:
            return False
        if runtime.pending or runtime.apart or runtime.arriving:
            runtime.realize()
        run.move_back()
        group = group_for(run, program)
        rest = None if group is None else group.buffers
        found, donated = _inputs(run, program, group)
        if found is None or not program.holds(run.given):
            return False
        # Few programs have any: a list of nothing is a frame as well.
        places: list[tuple[Any, int]] = []
        if program.draws:
            if not _are_as_left(run, program):
                return False
            places = [(g, g._offset) for g, *_ in program.draws]
        saved = _saved_before(run, program) if program.saved else []
        if saved is None:
            return False
        counted = finished = False
        held: list[Any] | None = None
        promised = run.slots, run.externals
        if soon and rest is not None and not holders and _may_end_first(run, last, program):

            def ready(buffers: Sequence[Any]) -> None:
                """Give all that was promised, and end the run."""
                nonlocal finished
                forget_dead()
                program.late.hold(run, buffers)
                runtime.counters.realized += 1
                runtime.counters.hits += 1
                finished = True
                finish()
                run.slots, run.externals = [], []

            held = rest
        try:
            with whole, contextlib.nullcontext() if held is None else filling:
                for i, storage in donated:
                    if storage.shares(found[i]):
                        found[i] = storage.own()
                # In place where they rest: to copy them would count a reference to each.
                inputs = _buffers(program, rest, found) if held is None else held
                for i, node in found.items():
                    inputs[i] = node.buffer
                args = _arguments(run, program)
                # An optimizer's step has written when the program has run; what counts that is at hand now.
                if last.kind == "step":
                    _count(run, last, group, 1)
                    counted = True
                if watch.listener is not None:
                    watch.lines = program.lines
                if held is not None:
                    program.executable.run(inputs, args, ready=ready)
                    writes.note()
                    return True
                buffers = program.executable.run(inputs, args)
                if runtime.backend.has_failed:
                    runtime.backend.synchronize()
                forget_dead()
                fresh, nodes, kept = _settle(run, program, inputs, buffers, holders)
        except BaseException as error:
            if finished:
                if not isinstance(error, CHECKS):
                    raise
                # It stopped before it wrote: what was given is taken back.
                run.slots, run.externals = promised
                program.late.take_back(run)
            for generator, offset in places:
                generator._offset = offset
            if counted:
                _count(run, last, group, -1)
            if not isinstance(error, Exception):
                raise
            # The calls that are made in the usual way fail as they do.
            return False
        finally:
            if held is not None:
                for i in found:
                    held[i] = None
        runtime.counters.realized += 1
        runtime.counters.hits += 1
        for generator, offset in places:
            _, seed, start, _ = run.drawn.get(id(generator), (None, generator._seed, offset, 0))
            run.drawn[id(generator)] = generator, seed, start, generator._offset
        _hand_out(run, program, facts, holders, fresh)
        if kept and group is None and last.kind == "step":
            let_rest(run, last, program, inputs)
        run.program = program
        values = [
            nodes[value] if kind == "output" else node
            for node, (kind, value) in zip(saved, program.saved, strict=True)
        ]
        run.saved = [node for node in values if node is not None]
        run.move_on()
        run.forget_moves()
    finish()
    return True


def _saved_before(run: Run, program: Program) -> list[Node | None] | None:
    """Return the values that the open graph of a program has saved, None for those that it is yet to compute; None
    where one is not there.
    """
    saved = [None if o[0] == "output" else _at(run, o)[1] for o in program.saved]
    missing = any(n is None and o[0] != "output" for n, o in zip(saved, program.saved, strict=True))
    return None if missing else saved


def _may_end_first(run: Run, last: Step, program: Program) -> bool:
    """Whether all that a run promised can be given before its kernels run: nobody needs a value, or the run."""
    return (
        last.kind == "step"
        and program.apart
        and program.all_late
        and run.program is None
        and not run.is_kept
    )


def _holders(
    run: Run, facts: list[Facts], program: Program
) -> dict[int, list[tuple[int, Tensor]]] | None:
    """Return the results that are alive and wait for a value, by their storages, but for those that are `late`; None if
    a program lacks one of these, or a graph that one of them needs.
    """
    open_before = frozenset() if run.program is None else run.program.open
    holders: dict[int, list[tuple[int, Tensor]]] = {}
    slots = run.slots
    for k in program.slots:
        t = slots[k]()
        if t is None:
            # It goes while it is at hand.
            slots[k] = nothing  # type: ignore[call-overload]
            continue
        if k >= run.first:
            holders.setdefault(facts[k].storage, []).append((k, t))
        elif k not in open_before:
            continue
        f = facts[k]
        if f.title and k not in program.open and k not in program.used:
            return None
        if f.made_by is not None and f.base is not None and k not in program.behind:
            # Looking at it may raise.
            return None
    lacking = holders and any(place >= 0 and place not in program.made for place in holders)
    return None if lacking else holders


def _plan(facts: list[Facts], program: Program, last: Step) -> None:
    """Find the outputs of a program that are all of a result whose graph nobody can use."""
    moved = {s.place for s in last.path() if s.kind == "move"}
    shared = Counter([f.storage for f in facts])
    late = [
        (place, slot, Known(shape, version, program.runtime, f.title, picker(program.used.get(slot, ()))))
        for place, (kind, slot, shape, version) in enumerate(program.outputs)
        if kind == "slot" and slot not in moved and not program.open and shared[slot] == 1
        for f in [facts[slot]]
        if f.base is None and not f.apart and (slot in program.used or not f.title)
    ]  # fmt: skip
    places, slots = {place for place, *_ in late}, {slot for _, slot, _ in late}
    program.others = [k for k in program.others if k not in places]
    program.slots = [k for k in range(len(facts)) if k not in slots]
    program.late = Waiting(late)
    program.all_late = (
        program.executable.tells
        and not moved
        and not program.open
        and not program.saved
        and all(program.outputs[k][0] == "slot" for k in program.others)
    )


def _hand_out(
    run: Run,
    program: Program,
    facts: list[Facts],
    holders: dict[int, list[tuple[int, Tensor]]],
    fresh: dict[int, Storage],
) -> None:
    """Give results their storages, and what their graphs have become."""
    before = run.program
    for k in () if before is None else before.open - program.open:
        t = run.slots[k]()
        if t is not None:
            _use_up(run, k, t, facts[k], program)
    if program.open:
        run.handed.update(fresh.values())
    views = []
    # The others wait for their storages.
    for place in [p for p in holders if p in fresh or p < 0]:
        storage = fresh[place] if place >= 0 else run.externals[-1 - place]._storage
        for k, t in holders[place]:
            give_value(t, storage, facts[k].apart)
            if k not in program.open:
                _use_up(run, k, t, facts[k], program)
            if facts[k].base is not None:
                views.append((k, t))
    for k, t in views:
        base = facts[k].base
        assert base is not None
        t._base = _base(run, base, facts, t._storage, program)
    for k, count in program.behind.items():
        t = run.slots[k]()
        if t is not None:
            t._base_version = t._counter.version - count


def _are_as_left(run: Run, program: Program) -> bool:
    """Whether generators stand where the run has left them: its random numbers are made again from there."""
    return all(
        found is None or (g._seed, g._offset) == (found[1], found[3])
        for g, *_ in program.draws
        for found in (run.drawn.get(id(g)),)
    )


def _inputs(
    run: Run, program: Program, group: Group | None
) -> tuple[dict[int, Node] | None, list[tuple[int, Storage]]]:
    """Find the values that a program reads, but for those that rest, by place; None where one is not there any more. Of
    those that it overwrites and that others may hold return the storages.
    """
    found: dict[int, Node] = {}
    shared: list[tuple[int, Storage]] = []
    externals, inputs = run.externals, program.inputs
    for place in range(len(inputs)) if group is None else group.others:
        origin, donated = inputs[place]
        storage: Storage | None
        node: Node | None
        if origin[0] == "external":
            storage = externals[origin[1]]._storage
            # As `value_of` does, without a frame.
            resting = storage.resting
            node = storage.node if resting is None else resting[0]
        else:
            storage, node = _at(run, origin)
        if (
            node is None
            or node.kind != "buffer"
            or (node.host is not None and realizing.is_seen(node))
        ):
            return None, []
        if donated and node.shared and storage is not None:
            shared.append((place, storage))
        found[place] = node
    return found, shared


def _buffers(program: Program, rest: list[Any] | None, found: dict[int, Node]) -> list[Any]:
    """Return the memory that a program is given: what was found, and what rests."""
    buffers = [None] * len(program.inputs) if rest is None else rest.copy()
    for place, node in found.items():
        buffers[place] = node.buffer
    return buffers


def _count(run: Run, step: Step, group: Group | None, sign: int) -> None:
    """Count the writes of an optimizer's step, or take them back."""
    run.move_on()
    if group is None:
        run.count_writes(step.writes, sign)
    else:
        group.tally.count += sign
        if group.writes:
            run.count_writes(group.writes, sign)
    run.move_back()


def _at(run: Run, origin: Origin) -> tuple[Storage | None, Node | None]:
    """Return the storage in which a value is, if it is in one, and the value."""
    kind, value = origin
    if kind == "constant":
        return None, value
    if kind == "saved":
        return None, run.saved[value]
    storage: Storage | None
    if kind == "external":
        storage = run.externals[value]._storage
    else:
        storage = run.cast(value) if kind == "cast" else value()
    return storage, None if storage is None else value_of(storage)


def _arguments(run: Run, program: Program) -> list[Any]:
    """Return the arguments of a program. They are those of the last time where nothing is another number."""
    stamps = [source().stamp() for source in program.sources]
    if stamps and stamps == program.stamps:
        return program.filled[1]
    for generator, before, _ in program.draws:
        # Counters are relative to the beginning of the run.
        generator._offset = (generator._offset - before) % 2**64
    values: list[Any] = [read() for read in program.reads]
    for a, _ in program.dynamic[len(values) :]:
        if isinstance(a, Number):
            values.append(a.among(run.given))
        else:
            values.append(int(run.externals[a.external]._offset) + a.more)
    # Zeros differ by their sign.
    key = marshal.dumps(values, 2)
    if program.filled[0] != key:
        # In place: to copy them would count a reference to each.
        args: list[Any] = program.filled[1] or program.args.copy()
        program.filled = b"", args
        for value, (_, places) in zip(values, program.dynamic, strict=True):
            for i in places:
                args[i] = value
        program.filled = key, args
    program.stamps = stamps
    for generator, before, count in program.draws:
        generator._offset = (generator._offset + before + count) % 2**64
    return program.filled[1]


def _settle(
    run: Run,
    program: Program,
    inputs: list[Any],
    buffers: list[Any],
    holders: dict[int, list[tuple[int, Tensor]]],
) -> tuple[dict[int, Storage], dict[int, Node], bool]:
    """Put what a program gave where it belongs; return the storages of slots, by number, the values that the graph has
    saved, by place, and whether what was to be computed in its own memory was. Storages of results without a graph are
    made when somebody looks.
    """
    fresh: dict[int, Storage] = {}
    externals = run.externals
    outputs = program.outputs
    # Storages that get one value hold it together, until one of them is written.
    first: dict[int, Storage] = {}
    # What has been computed in its own memory is where it belongs.
    given, own = program.kept
    kept = all(map(is_, given(buffers), own(inputs)))
    apart = (kept and program.apart) or len({*map(id, buffers)}) == len(buffers)
    kept = program.apart = kept and apart
    if not kept:
        run.add_resting()
    late = program.late
    if late is not None and apart:
        late.hold(run, buffers)
    elif late is not None:
        for slot, reference in zip(late.numbers, late.slots(run.slots), strict=True):
            t = reference()
            if t is not None:
                holders[slot] = [(slot, t)]
    runtime = program.runtime
    homes = {place: home for home, place in run.homes.items()}
    for k in program.others if kept else range(len(outputs)):
        buffer, (kind, value, shape, version) = buffers[k], outputs[k]
        if kind == "saved":
            continue
        known = None if apart else first.get(id(buffer))
        if kind == "slot":
            home = homes.get(value)
            if home is None and value not in holders:
                continue
            node = Node.in_memory(shape, buffer.dtype, buffer) if known is None else known.share()
            storage = fresh[value] = Storage(node, runtime) if home is None else home
            if home is not None:
                home.__init__(node, runtime)  # type: ignore[misc]
            storage.version = version
        else:
            storage = externals[value]._storage
            node = storage.node
            if known is not None:
                storage.settle(node, known.share())
            elif node.buffer is not buffer:
                storage.settle(node, Node.in_memory(shape, buffer.dtype, buffer))
        first.setdefault(id(buffer), storage)
    writes.note()
    nodes: dict[int, Node] = {}
    others: dict[int, Node] = {}
    for place in [place for kind, place in program.saved if kind == "output"]:
        buffer = buffers[place]
        if id(buffer) in first:
            nodes[place] = first[id(buffer)].node
        else:
            if id(buffer) not in others:
                shape = program.outputs[place][2]
                others[id(buffer)] = Node.in_memory(shape, buffer.dtype, buffer)
            nodes[place] = others[id(buffer)]
    return fresh, nodes, kept


def _base(
    run: Run, base: tuple[str, int], facts: list[Facts], storage: Storage, program: Program
) -> Tensor:
    """Return the tensor that a result is a view of, in its storage."""
    kind, number = base
    if kind == "external":
        return run.externals[number]
    there = run.slots[number]()
    if there is not None:
        return there
    f = facts[number]
    found: Tensor = giver(f)(run)
    give_value(found, storage, f.apart)
    if run.slots[-1]() is found:
        run.slots.pop()
    run.slots[number] = weakref.ref(found)
    run.ids[id(found)] = number
    if number not in program.open:
        _use_up(run, number, found, f, program)
    return found


def _use_up(run: Run, k: int, t: Tensor, f: Facts, program: Program) -> None:
    """Let a slot have no graph any more, which shows when somebody looks."""
    if f.title:
        leaves = [run.externals[j] for j in program.used.get(k, ())]
        wait(run.slots[k], t, (use_up, f.title, leaves, mark(), run.hooks.get(k)))
    else:
        t._grad_fn, t._output_nr = None, 0
