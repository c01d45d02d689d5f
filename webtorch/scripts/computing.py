"""The end of a script: its program runs on what is there now, and what is alive gets its value."""

from __future__ import annotations

from typing import Any

from webtorch.ir.graph import Node
from webtorch.runtime import realize as realizing
from webtorch.runtime.interrupt import whole
from webtorch.scripts.prepared import giver
from webtorch.scripts.recording import facts_along
from webtorch.scripts.run import Run
from webtorch.scripts.script import Facts, Number, Program, Step
from webtorch.tensors.storage import Storage, writes
from webtorch.tensors.tape import GradFn
from webtorch.tensors.tensor import Tensor


def compute(run: Run, last: Step, program: Program) -> bool:
    """Run the program of the script that ends with `last`, and give what is alive its value. Return whether that
    could be done.
    """
    runtime = program.runtime
    facts = facts_along(last)
    holders: dict[int, list[tuple[Tensor, Facts]]] = {}
    for reference, f in zip(run.slots, facts):
        t = reference()
        if t is not None:
            holders.setdefault(f.storage, []).append((t, f))
    if any(place >= 0 and place not in program.made for place in holders):
        return False
    with runtime.lock:
        if runtime.capturing:
            return False
        runtime.realize()
        found = _inputs(run, program)
        if found is None or not program.holds(run.given):
            return False
        places = [(g, g._offset) for g, _ in program.draws]
        counted = False
        try:
            with whole:
                inputs = [
                    _buffer(storage, node) if donated and node.shared else node.buffer
                    for storage, node, donated in found
                ]
                args = _arguments(run, program)
                # An optimizer's step has written when the program has run; what counts that is at hand now.
                if last.kind == "step":
                    _count_writes(run, last, 1)
                    counted = True
                buffers = program.executable.run(inputs, args)
                fresh = _settle(run, program, inputs, buffers, holders)
        except BaseException as error:
            for generator, offset in places:
                generator._offset = offset
            if counted:
                _count_writes(run, last, -1)
            if not isinstance(error, Exception):
                raise
            # The calls that are made in the usual way fail as they do.
            return False
        runtime.counters.realized += 1
        runtime.counters.hits += 1
        for place, tensors in holders.items():
            storage = fresh[place] if place >= 0 else run.externals[-1 - place]._storage
            for t, f in tensors:
                _give_value(t, f, storage)
        for tensors in holders.values():
            for t, f in tensors:
                if f.base is not None:
                    t._base = _base(run, f.base, facts, fresh)
    return True


def _inputs(run: Run, program: Program) -> list[tuple[Storage | None, Node, bool]] | None:
    """Find the values that a program reads; None where one is not there any more."""
    found: list[tuple[Storage | None, Node, bool]] = []
    externals = run.externals
    for (kind, value), donated in program.inputs:
        if kind == "constant":
            found.append((None, value, donated))
            continue
        if kind == "external":
            storage = externals[value]._storage
        else:
            storage = run.cast(value) if kind == "cast" else value()
        if storage is None:
            return None
        node = storage.node
        if node.kind != "buffer" or (node.host is not None and realizing.is_seen(node)):
            return None
        found.append((storage, node, donated))
    return found


def _buffer(storage: Storage | None, node: Node) -> Any:
    """Return memory that may be overwritten, of a value that others may hold."""
    if storage is not None and storage.shares(node):
        node = storage.own()
    return node.buffer


def _arguments(run: Run, program: Program) -> list[Any]:
    args = program.args
    if program.dynamic:
        args = list(args)
        for a, places in program.dynamic:
            if hasattr(a, "external"):
                value: Any = int(run.externals[a.external]._offset) + a.more
            elif isinstance(a, Number):
                value = a.among(run.given)
            else:
                value = a.read()
            for i in places:
                args[i] = value
    for generator, count in program.draws:
        generator._offset = (generator._offset + count) % 2**64
    return args


def _count_writes(run: Run, last: Step, sign: int) -> None:
    """Count the writes of an optimizer's step, or take that back."""
    externals = run.externals
    for j, counted, version in last.writes:
        t = externals[j]
        storage, counter = t._storage, t._counter
        if counter is not storage:
            counter.version += sign * counted
        storage.version += sign * version


def _settle(
    run: Run, program: Program, inputs: list[Any], buffers: list[Any], holders: dict[int, Any]
) -> dict[int, Storage]:
    """Put what a program gave where it belongs; return the storages of slots, by number."""
    fresh: dict[int, Storage] = {}
    externals = run.externals
    outputs = program.outputs
    # Storages that get one value hold it together, until one of them is written.
    first: dict[int, Storage] = {}
    apart = len({*map(id, buffers)}) == len(buffers)
    # What has been computed in its own memory is where it belongs.
    own = program.kept
    kept = apart and [buffers[k] for k, _ in own] == [inputs[i] for _, i in own]
    for k in program.others if kept else range(len(outputs)):
        buffer, (kind, value, shape, version) = buffers[k], outputs[k]
        known = None if apart else first.get(id(buffer))
        if kind == "slot":
            if value not in holders:
                continue
            node = Node.in_memory(shape, buffer.dtype, buffer) if known is None else known.share()
            storage = fresh[value] = Storage(node, program.runtime)
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
    return fresh


def _base(run: Run, base: tuple[str, int], facts: list[Facts], fresh: dict[int, Storage]) -> Tensor:
    """Return the tensor that a result is a view of."""
    kind, number = base
    if kind == "external":
        return run.externals[number]
    found = run.slots[number]()
    if found is None:
        f = facts[number]
        found = giver(f)(run)
        storage = fresh[f.storage] if f.storage >= 0 else run.externals[-1 - f.storage]._storage
        _give_value(found, f, storage)
    return found


def _give_value(t: Tensor, f: Facts, storage: Storage) -> None:
    t._storage = t._counter = storage
    t._base, t._base_history, t._history, t._accumulate, t._output_nr = None, 0, 0, None, 0
    # The graph is used up: a backward pass from here raises as after a usual step.
    t._grad_fn = GradFn(f.title, (), None) if f.title else None
