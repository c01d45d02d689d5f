"""A captured graph that is cut where the host acts between its programs. Floor 5.

What the host is given is computed first, and no more: it acts as soon as it can, and what comes of that is waited for
by the first program that reads it. The rest is the last program.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import NamedTuple

from webtorch.capture.graphs import above, copied, part_of, split_at
from webtorch.ir.dtype import DType, Scalar
from webtorch.ir.graph import Graph, GraphNode, Output
from webtorch.ir.kernel import Access, BufferSlot, Host, Routine
from webtorch.ir.program import (
    BufferDecl,
    Copy,
    Dispatch,
    Program,
    Role,
    Separation,
    Site,
    Step,
)
from webtorch.ir.view import numel
from webtorch.runtime.arrivals import Arrival
from webtorch.runtime.backend import Buffer, Executable
from webtorch.runtime.interrupt import whole
from webtorch.runtime.realize import Runtime
from webtorch.runtime.watch import watch
from webtorch.tensors.host import HostCall


class Piece(NamedTuple):
    """What is computed before a call of the host, or after the last."""

    graph: Graph
    executable: Executable
    # The nodes of the whole graph that it reads and gives.
    inputs: Sequence[int]
    outputs: Sequence[int]


class Cut:
    """The programs of a graph, as one that runs: between them the host acts."""

    # No program but the last may write in memory that it is given.
    reuses = tells = False
    prepare = None

    def __init__(
        self,
        runtime: Runtime,
        pieces: Sequence[Piece | None],
        calls: Sequence[HostCall],
        given: Sequence[Sequence[int]],
        coming: Sequence[Sequence[int]],
        inputs: Sequence[int],
        outputs: Sequence[int],
        nodes: Sequence[GraphNode],
    ) -> None:
        """`pieces`: one before each call, where there is anything to compute, and one after the last. The others are
        numbers of `nodes`: what each call is given, what comes of it, and what all of it reads and gives.
        """
        self._nodes = nodes
        self._runtime, self._pieces, self.calls = runtime, pieces, calls
        self._given, self._coming, self._inputs, self._outputs = given, coming, inputs, outputs
        self.scratch_bytes = max([p.executable.scratch_bytes for p in self.pieces], default=0)
        # By number, what nobody reads after a piece and the call behind it.
        last = {n: number for number, p in enumerate(pieces) if p for n in p.outputs}
        last |= {n: number for number, p in enumerate(pieces) if p for n in p.inputs if n in last}
        for number, values in enumerate(given):
            last |= {n: max(last[n], number) for n in values if n in last}
        self._done: list[list[int]] = [[] for _ in pieces]
        for n, number in last.items():
            if n not in outputs:
                self._done[number].append(n)

    @property
    def pieces(self) -> list[Piece]:
        """The parts that compute something, in order."""
        return [piece for piece in self._pieces if piece is not None]

    @cached_property
    def program(self) -> Program:
        """All programs in order as one, with the host's calls between them. It is to be read; nothing can run it."""
        made = _Joining(self._nodes, self._inputs, self._outputs)
        for number, piece in enumerate(self._pieces):
            if piece is not None:
                made.add(piece)
            if number < len(self.calls) and self.calls[number].name:
                made.call(self.calls[number], self._given[number], self._coming[number])
        return made.program()

    def __eq__(self, other: object) -> bool:
        """Whether another one is made of the same programs."""
        if not isinstance(other, Cut):
            return False
        return self._alike() == other._alike()

    __hash__ = object.__hash__

    def _alike(self) -> object:
        programs = [None if p is None else p.executable for p in self._pieces]
        return programs, self._given, self._coming, self._inputs, self._outputs

    def run(
        self,
        inputs: Sequence[Buffer],
        args: Sequence[bool | int | float],
        into: Mapping[int, Buffer] | None = None,
        ready: object = None,
    ) -> list[Buffer]:
        """Run all of it, and return the outputs' memory. Raises what the host's calls raise: nothing that it was given
        has been written then.
        """
        values: dict[int, Buffer | Arrival] = dict(zip(self._inputs, inputs, strict=True))
        left: dict[HostCall, object] = {}
        for number, piece in enumerate(self._pieces):
            if piece is not None:
                given = [self._value(values, n) for n in piece.inputs]
                if watch.listener is not None:
                    watch.lines = [node.line for node in piece.graph.nodes]
                values.update(zip(piece.outputs, piece.executable.run(given, args), strict=True))
            if number < len(self.calls):
                given = [self._value(values, n) for n in self._given[number]]
                with self._free():
                    coming = self.calls[number].act(given, left)
                values.update(zip(self._coming[number], coming, strict=True))
            for n in self._done[number]:
                del values[n]
        return [self._value(values, n) for n in self._outputs]

    def _value(self, values: dict[int, Buffer | Arrival], n: int) -> Buffer:
        """Return a value of a run, when it has come."""
        found = values[n]
        if isinstance(found, Arrival):
            with self._free():
                found.wait()
            if found.error is not None:
                raise found.error
            buffer: Buffer = found.buffer
            found = values[n] = buffer
        return found

    @contextlib.contextmanager
    def _free(self) -> Iterator[None]:
        """Leave the device to other threads, those that receive for one, and Ctrl-C to the user."""
        self._runtime.lock.release()
        try:
            with whole.lifted():
                yield
        finally:
            self._runtime.lock.acquire()


class _Joining:
    """Programs that become one: what they share goes by the nodes of the whole graph."""

    def __init__(
        self, nodes: Sequence[GraphNode], inputs: Sequence[int], outputs: Sequence[int]
    ) -> None:
        self._nodes, self._inputs, self._outputs = nodes, inputs, outputs
        self.places: dict[int, int] = {}
        self.buffers: list[BufferDecl] = []
        self.routines: list[Routine] = []
        self.steps: list[Step] = []
        self.sites: list[Site] = []
        self.separations: list[Separation] = []
        self.args: tuple[DType, ...] = ()
        self.constants: list[tuple[DType, Scalar]] = []
        self._slots = 0

    def place(self, n: int, alias: int | None = None) -> int:
        """Return the buffer of a node."""
        if n not in self.places:
            role: Role = "temporary"
            if n in self._inputs:
                role = "input"
            elif n in self._outputs:
                role = "output"
            node = self._nodes[n]
            self.places[n] = len(self.buffers)
            self.buffers.append(BufferDecl(role, node.dtype, numel(node.shape), alias))
        return self.places[n]

    def add(self, piece: Piece) -> None:
        """Add a program."""
        program = piece.executable.program
        where = {b: self.place(n) for n, b in zip(piece.inputs, program.inputs, strict=True)}
        for n, b in zip(piece.outputs, program.outputs, strict=True):
            if b in where:
                # It is written where an input was.
                self.places.setdefault(n, where[b])
            alias = program.buffers[b].alias
            where[b] = self.place(n, None if alias is None else where[alias])
        slots = self._slots
        for b, declared in enumerate(program.buffers):
            if b not in where:
                where[b] = len(self.buffers)
                alias = None if declared.alias is None else slots + declared.alias
                self._slots = max(self._slots, (alias or 0) + 1)
                self.buffers.append(replace(declared, alias=alias))
        given = len(program.args) - len(program.constants)
        self.args = program.args[:given]
        own = given + len(self.constants)
        self.constants += zip(program.args[given:], program.constants, strict=True)
        first, routines = len(self.steps), len(self.routines)
        for step in program.steps:
            if isinstance(step, Copy):
                self.steps.append(Copy(where[step.source], where[step.target]))
                continue
            args = tuple([a if a < given else own + a - given for a in step.args])
            buffers = tuple([where[b] for b in step.buffers])
            routine = routines + step.routine
            self.steps.append(replace(step, routine=routine, buffers=buffers, args=args))
        self.routines += program.routines
        self.sites += program.sites
        self.separations += [
            replace(s, step=first + s.step, other=first + s.other) for s in program.separations
        ]

    def call(self, call: HostCall, given: Sequence[int], coming: Sequence[int]) -> None:
        """Add a call of the host."""
        ends: list[tuple[Sequence[int], Access]] = [(given, "read"), (coming, "write")]
        # What nobody reads has no number.
        found = [(self.place(n), access) for nodes, access in ends for n in nodes if n >= 0]
        slots = [
            BufferSlot(self.buffers[b].dtype, access, self.buffers[b].elements)
            for b, access in found
        ]
        self.steps.append(Dispatch(len(self.routines), tuple([b for b, _ in found]), ()))
        self.routines.append(Host(call.name, call.name, (), (), tuple(slots)))

    def program(self) -> Program:
        """Return what has been added as one program."""
        return Program(
            tuple(self.routines), tuple(self.buffers), tuple(self.steps),
            (*self.args, *[dtype for dtype, _ in self.constants]),
            tuple([self.place(n) for n in self._inputs]),
            tuple([self.place(n) for n in self._outputs]),
            tuple(self.sites), tuple([value for _, value in self.constants]),
            tuple(self.separations),
        )  # fmt: skip


def cut(
    graph: Graph,
    calls: Sequence[HostCall],
    coming: Mapping[int, tuple[int, int]],
    first: int,
    compiled: Callable[[object, Graph], Executable],
    runtime: Runtime,
) -> Cut:
    """Cut a graph at calls of the host. `coming`: of an input that comes of one, by its number among the inputs, the
    call's number and which of its results it is. `first`: where what the calls are given begins among the outputs.
    """
    count = sum([len(call.given) for call in calls])
    own = [*graph.outputs[:first], *graph.outputs[first + count :]]
    given = [o.node for o in graph.outputs[first : first + count]]
    donors = {o.donor for o in own if o.donor is not None}
    nodes = list(graph.nodes)
    for i, n in enumerate(given):
        if n in donors:
            # It is read for as long as the call takes, and then written.
            given[i] = copied(nodes, n)
    graph = graph.with_nodes(nodes, graph.outputs)
    inputs = [n for n, node in enumerate(nodes) if node.kind == "buffer"]
    arriving: list[list[int]] = [[-1] * len(call.coming) for call in calls]
    for k, (call, which) in coming.items():
        arriving[call][which] = inputs[k]
    inputs = [n for k, n in enumerate(inputs) if k not in coming]
    each = iter(given)
    wanted = [[next(each) for _ in call.given] for call in calls]
    form = tuple(sorted(coming.items())), tuple(map(len, wanted)), first
    pieces: list[Piece | None] = []
    for number, (part, reads, gives) in enumerate(_parts(graph, wanted, own)):
        executable = compiled((number, *form), part) if gives else None
        pieces.append(None if executable is None else Piece(part, executable, reads, gives))
    return Cut(runtime, pieces, calls, wanted, arriving, inputs, [o.node for o in own], nodes)


def _parts(
    graph: Graph, wanted: Sequence[Sequence[int]], own: Sequence[Output]
) -> list[tuple[Graph, list[int], list[int]]]:
    """Return what is computed for each call of the host and for the end, with the nodes that it reads and gives."""
    nodes = graph.nodes
    there = {n for n, node in enumerate(nodes) if node.kind == "buffer"}
    roots = [*wanted, [o.node for o in own]]
    # By node, the piece that computes it first; by piece, what it is made of and reads of those before.
    made: dict[int, int] = {}
    members: list[set[int]] = []
    reads: list[list[int]] = []
    gives: list[list[int]] = []
    for number, ends in enumerate(roots):
        all_of = above(nodes, ends)
        kept, again = split_at(nodes, there, all_of, ends, ())
        mine = (all_of - there) | again
        mine |= {s for n in mine for s in nodes[n].srcs if nodes[s].kind == "buffer"}
        for n in kept:
            if n not in gives[made[n]]:
                gives[made[n]].append(n)
        ends_here = [n for n in ends if n not in kept and nodes[n].kind != "buffer"]
        made |= {n: number for n in mine if n not in there}
        there |= mine
        members.append(mine)
        reads.append(kept)
        gives.append(list(dict.fromkeys(ends_here)))
    last = len(roots) - 1
    donors = {o.node: o.donor for o in own if o.node in gives[last]}
    found = []
    for number, (mine, kept) in enumerate(zip(members, reads, strict=True)):
        end = number == last
        if end:
            mine |= {d for d in donors.values() if d is not None}
        outputs = tuple([Output(n, donors.get(n) if end else None) for n in gives[number]])
        part = part_of(graph, mine | set(kept), outputs, set(kept))
        given = [n for n in sorted(mine | set(kept)) if n in kept or nodes[n].kind == "buffer"]
        found.append((part, given, gives[number]))
    return found
