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
        try:
            with whole:
                inputs = [_buffer(storage, node, donated) for storage, node, donated in found]
                args = _arguments(run, program)
                buffers = program.executable.run(inputs, args)
                fresh = _settle(run, last, program, buffers, holders)
        except BaseException as error:
            for generator, offset in places:
                generator._offset = offset
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
    for (kind, value), donated in program.inputs:
        if kind == "constant":
            found.append((None, value, donated))
            continue
        if kind == "external":
            storage = run.externals[value]._storage
        else:
            storage = run.cast(value) if kind == "cast" else value()
        if storage is None:
            return None
        node = storage.node
        if node.kind != "buffer" or (node.host is not None and realizing.is_seen(node)):
            return None
        found.append((storage, node, donated))
    return found


def _buffer(storage: Storage | None, node: Node, donated: bool) -> Any:
    if storage is not None and donated and node.shared and storage.shares(node):
        node = storage.own()
    return node.buffer


def _arguments(run: Run, program: Program) -> list[Any]:
    args = program.args
    if program.dynamic:
        args = list(args)
        for i in program.dynamic:
            a: Any = args[i]
            if hasattr(a, "external"):
                args[i] = int(run.externals[a.external]._offset) + a.more
            elif isinstance(a, Number):
                args[i] = a.among(run.given)
            else:
                args[i] = a.read()
    for generator, count in program.draws:
        generator._offset = (generator._offset + count) % 2**64
    return args


def _settle(
    run: Run, last: Step, program: Program, buffers: list[Any], holders: dict[int, Any]
) -> dict[int, Storage]:
    """Put what a program gave where it belongs; return the storages of slots, by number."""
    fresh: dict[int, Storage] = {}
    # Storages that get one value hold it together, until one of them is written.
    first: dict[int, Storage] = {}
    for buffer, (kind, value, shape, version) in zip(buffers, program.outputs, strict=False):
        known = first.get(id(buffer))
        if kind == "slot":
            if value in holders:
                if known is None:
                    node = Node.in_memory(shape, buffer.dtype, buffer)
                else:
                    node = known.share()
                storage = fresh[value] = Storage(node, program.runtime)
                storage.version = version
                first.setdefault(id(buffer), storage)
            continue
        storage = run.externals[value]._storage
        if known is not None:
            storage.settle(storage.node, known.share())
        elif storage.node.buffer is not buffer:
            storage.settle(storage.node, Node.in_memory(shape, buffer.dtype, buffer))
        first.setdefault(id(buffer), storage)
    if last.kind == "step":
        for j, counted, version in last.writes:
            t = run.externals[j]
            if t._counter is not t._storage:
                t._counter.version += counted
            t._storage.version += version
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
