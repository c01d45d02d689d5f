"""Compiled programs on disk, so that a new process need not compile what another has. Floor 3; may
import floors 0 to 2.

The key is the graph's structure with its formulas, the device's limits, and the state of the
compiler's own files; what is kept is the planned program and the text of its kernels, as JSON.
Lines of the user's code are no part of it: in what is kept they are the numbers of the graph's nodes.
"""

from __future__ import annotations

import hashlib
import importlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from webtorch.ir import serial
from webtorch.ir.dtype import DType, int32, uint32
from webtorch.ir.expr import input_
from webtorch.ir.graph import Graph, GraphNode
from webtorch.ir.lines import StepLine, line_text
from webtorch.ir.program import Copy, Program
from webtorch.lower.wgsl_shader import WgslPass
from webtorch.ops.record import Elementwise
from webtorch.runtime.backend import Backend
from webtorch.runtime.disk import PROGRAMS, enabled

# Smaller graphs compile about as fast as a file is read.
SMALLEST = 40
# Seconds that compiling must have taken for its result to be kept.
WORTH = 0.02

serial.register(WgslPass)


@serial.register
@dataclass(frozen=True, slots=True)
class Kept:
    """A program, and for each of its routines the kernels as the device takes them (none on a CPU)."""

    program: Program
    rendered: tuple[tuple[WgslPass, ...], ...]


class _NoKey(Exception):
    """The graph holds something that has no text."""


def key_of(graph: Graph, backend: Backend) -> str | None:
    """Return the key of a graph's program on a device, or None where it is not to be kept."""
    if len(graph.nodes) < SMALLEST or not enabled():
        return None
    device = backend.kept_key()
    stamp = _stamp()
    if device is None or stamp is None:
        return None
    try:
        lines = [stamp, device, repr(backend.limits)]
        for n in graph.nodes:
            if n.kind == "map":
                op, pattern, compute = n.attrs
                attrs = f"{op.name} {pattern} {compute.name} {_formula(op, pattern, compute)}"
            else:
                attrs = _text(n.attrs)
            lines.append(f"{n.kind} {n.srcs} {attrs} {n.args} {n.shape} {n.dtype.name}")
        lines.append(repr([(o.node, o.donor) for o in graph.outputs]))
        lines.append(repr([d.name for d in graph.arg_dtypes]))
        lines.append(repr(_marks(graph)))
    except _NoKey:
        return None
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:40]


def _text(x: object) -> str:
    if isinstance(x, tuple):
        return f"({' '.join([_text(v) for v in x])})"
    if isinstance(x, DType):
        return x.name
    if x is None or isinstance(x, (bool, int, float, str)):
        return repr(x)
    raise _NoKey


_FORMULAS: dict[tuple[object, ...], str] = {}


def _formula(op: object, pattern: str, compute: DType) -> str:
    """Return the hash of what an operation computes."""
    key = (op, pattern, compute)
    found = _FORMULAS.get(key)
    if found is None:
        if not isinstance(op, Elementwise):
            raise _NoKey
        kinds = {"u": uint32, "p": int32, "c": int32}
        inputs = tuple(input_(i, kinds.get(letter, compute)) for i, letter in enumerate(pattern))
        text = serial.dump(op.build(inputs))
        if len(_FORMULAS) > 4096:
            _FORMULAS.clear()
        found = _FORMULAS[key] = hashlib.sha256(text.encode()).hexdigest()
    return found


@cache
def _stamp() -> str | None:
    """Return a text that changes with the files that make programs and kernels."""
    package = Path(__file__).parents[1]
    try:
        found = []
        for part in ("ir", "lower", "ops", "functions", "runtime"):
            for path in sorted((package / part).rglob("*.py")):
                stat = path.stat()
                found.append(f"{path.relative_to(package)} {stat.st_size} {stat.st_mtime_ns}")
    except OSError:
        return None
    if not found:
        # The package is in an archive.
        try:
            return importlib.import_module("importlib.metadata").version("webtorch")
        except Exception:
            return None
    return hashlib.sha256("\n".join(found).encode()).hexdigest()


def numbered(graph: Graph) -> Graph:
    """Return the graph with the numbers of its nodes in place of the user's lines."""
    marks = _marks(graph)
    nodes = [
        GraphNode(
            n.kind, n.srcs, n.attrs, n.args, n.shape, n.dtype, f"@{marks.get(i, i)}" if n.line else None
        )
        for i, n in enumerate(graph.nodes)
    ]  # fmt: skip
    return graph.with_nodes(nodes)


def _marks(graph: Graph) -> dict[int, int]:
    """Return, for each node whose indices are checked, the first such node of its line: kernels of
    one line, as those of a loop, share their checks.
    """
    first: dict[str, int] = {}
    return {
        i: first.setdefault(line_text(n.line), i)
        for i, n in enumerate(graph.nodes)
        if n.kind in ("take", "scatter") and n.line
    }


def with_lines(program: Program, graph: Graph) -> Program:
    """Return a program of a numbered graph with the user's lines."""
    texts: dict[str, StepLine] = {}

    def line(mark: str) -> str:
        """Return the user's line of a mark."""
        found = texts.get(mark)
        if found is None:
            number = mark.removeprefix("@")
            found = texts[mark] = StepLine(
                line_text(graph.nodes[int(number)].line) if number else ""
            )
            found.node = int(number or -1)
        return found

    return replace(
        program,
        steps=tuple(
            [s if isinstance(s, Copy) else replace(s, line=line(s.line)) for s in program.steps]
        ),
        sites=tuple([replace(s, line=line(s.line)) for s in program.sites]),
    )


def load(key: str) -> Kept | None:
    """Return what is kept under a key, if it can be read."""
    data = PROGRAMS.read(key)
    if data is None:
        return None
    try:
        kept = serial.load(data)
        if isinstance(kept, Kept) and len(kept.rendered) in (0, len(kept.program.routines)):
            return kept
    except (ValueError, TypeError, KeyError, IndexError, AttributeError, RecursionError):
        pass
    PROGRAMS.discard(key, "cannot be read")
    return None


def store(key: str, program: Program, rendered: Sequence[Sequence[Any]] | None) -> None:
    """Keep the program of a numbered graph with the text of its kernels."""
    passes = tuple([tuple(parts) for parts in rendered or ()])
    if all(isinstance(part, WgslPass) for parts in passes for part in parts):
        PROGRAMS.write(key, serial.dump(Kept(program, passes)).encode())
