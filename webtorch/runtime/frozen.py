"""A pending graph taken apart: the key of its program, what the program is run with, and the graph that is compiled.
Floor 3.

The key is the structure without its numbers: another learning rate, constant or offset binds other arguments to the
same program. Only that a window is written where it was read is structure: it decides whether memory may be written
in place.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from webtorch.ir.dtype import DType, Scalar, float32, float64, int32, uint32
from webtorch.ir.graph import Graph, GraphNode, Node, Output
from webtorch.ir.lines import line_text
from webtorch.ir.view import numel
from webtorch.runtime.parts import Held
from webtorch.runtime.recording import Owner


class Taken:
    """The value that an owner had when it was taken to be computed; another thread may write the owner
    meanwhile.
    """

    __slots__ = ("donor", "node", "owner")

    def __init__(self, owner: Owner, node: Node, donor: Node | None) -> None:
        self.owner, self.node, self.donor = owner, node, donor


# What freezing looks at.
Value = Owner | Taken | Held


@dataclass(slots=True)
class Frozen:
    """A pending graph taken apart: what the cache is asked with, and what a program is run with."""

    key: tuple[Any, ...]
    order: list[Node]
    inputs: list[Node]
    args: list[Scalar]
    owners: Sequence[Value]
    donors: list[Node | None]
    # Offsets of windows that are written where they were read: the argument of the read, or None
    # where that is in the structure already.
    equal: dict[int, int | None]


def argument_dtypes(node: Node) -> list[DType]:
    """Return the types in which a node's scalars are passed."""
    match node.kind:
        case "map":
            kinds = {"s": node.attrs[2], "u": uint32}
            return [kinds[letter] for letter in node.attrs[1] if letter in kinds]
        case "pad":
            return [node.dtype.compute]
        case "attention":
            wide = float64 if node.dtype is float64 else float32
            return ([wide, float32] + [uint32] * 4)[: len(node.scalars)]
        case _:
            return [int32] * len(node.scalars)


def freeze(owners: Sequence[Value]) -> Frozen:
    """Collect the graph that the owners' values stand on, in topological order."""
    number: dict[Node, int] = {}
    order: list[Node] = []
    inputs: list[Node] = []
    args: list[Scalar] = []
    # What follows tells what an entry is: a type begins data, a kind another node, a tuple ends all.
    parts: list[object] = []
    equal: dict[int, int | None] = {}
    # Views by source, with the arguments that are their offsets.
    windows: dict[Node, list[tuple[Node, int | None]]] = {}
    for owner in owners:
        stack = [owner.node]
        while stack:
            node = stack[-1]
            if node in number:
                stack.pop()
                continue
            kind = node.kind
            if kind == "call":
                node.expand()
                kind = node.kind
            if kind == "buffer" or kind == "arriving":
                stack.pop()
                number[node] = len(order)
                order.append(node)
                inputs.append(node)
                parts += (node.dtype, node.shape)
                continue
            srcs = []
            for s in node.srcs:
                n = number.get(s)
                if n is None:
                    if s.kind != "buffer":
                        stack.append(s)
                        continue
                    n = number[s] = len(order)
                    order.append(s)
                    inputs.append(s)
                    parts += (s.dtype, s.shape)
                srcs.append(n)
            if stack[-1] is not node:
                continue
            stack.pop()
            number[node] = len(order)
            order.append(node)
            scalars = node.scalars
            if kind == "map":
                pass
            elif kind == "view":
                source, window = node.srcs[0], (node, len(args) if scalars else None)
                if source in windows:
                    windows[source].append(window)
                else:
                    windows[source] = [window]
            elif kind == "update":
                read = _read_windows(node, windows.get(node.srcs[0], ()), number)
                if read:
                    parts += [view for view, _ in read]
                    if scalars:
                        equal |= _one_argument([argument for _, argument in read], len(args))
            elif (kind == "take" or kind == "scatter") and node.line is not None:
                # A bad index is reported with the user's line.
                code, instruction = node.line
                parts += (code.co_filename, code.co_firstlineno, instruction)
            if scalars:
                args.extend(scalars)
            parts += (kind, node.attrs, node.shape, node.dtype, tuple(srcs))
    donors = [owner.donor for owner in owners]
    for donor in donors:
        if donor is not None and donor not in number:
            # The old value is not read any more: it is an input only to give its memory.
            number[donor] = len(order)
            order.append(donor)
            inputs.append(donor)
            parts += (donor.dtype, donor.shape)
    pairs = zip(owners, donors, strict=True)
    parts.append(tuple([(number[o.node], None if d is None else number[d]) for o, d in pairs]))
    return Frozen(tuple(parts), order, inputs, args, owners, donors, equal)


# What tells the program of a graph; its data, those that are yet to come among them; its numbers; and where among these
# those of each node begin.
Glance = tuple[tuple[object, ...], list[Node], list[Scalar], dict[Node, int]]


def glance(owners: Sequence[Value], most: float = math.inf) -> Glance | None:
    """Look at a pending graph as it stands, with its calls not taken apart: a fraction of the nodes that `freeze` goes
    through. None if there are more than `most`.
    """
    # Nodes are numbered as they are met, before their sources are looked at, and data from -1 on downwards.
    number: dict[Node, int] = {}
    inputs: list[Node] = []
    args: list[Scalar] = []
    places: dict[Node, int] = {}
    # What is said of a node is followed by the numbers of its sources.
    parts: list[object] = []
    writes = False
    for owner in owners:
        node = owner.node
        if node in number:
            continue
        if node.kind == "buffer":
            number[node] = ~len(inputs)
            inputs.append(node)
            parts += (node.dtype, node.shape)
            continue
        number[node] = len(number)
        stack = [node]
        while stack:
            node = stack.pop()
            form, scalars, srcs = node.form, node.scalars, node.srcs
            if form is not None:
                # It stands for all but the sources, the numbers, and which result of a call this is.
                parts.append(form)
                picks = form.picks
                if node.kind == "call":
                    parts.append(node.attrs[1])
                    writes = writes or node.attrs[0].writes
            else:
                kind = node.kind
                parts += (kind, node.attrs, node.shape, node.dtype)
                for s in srcs:
                    parts += (s.dtype, s.shape)
                picks = kind == "take" or kind == "scatter"
                writes = writes or kind == "update"
            for s in srcs:
                n = number.get(s)
                if n is None:
                    # What is yet to come is data by the time when the program runs.
                    if s.kind == "buffer" or s.kind == "arriving":
                        n = number[s] = ~len(inputs)
                        inputs.append(s)
                    else:
                        n = number[s] = len(number)
                        stack.append(s)
                parts.append(n)
            if picks and node.line is not None:
                code, instruction = node.line
                parts += (code.co_filename, code.co_firstlineno, instruction)
            if scalars:
                places[node] = len(args)
                args += scalars
            if len(number) > most:
                return None
    # One value without a donor is the first.
    for owner in owners if len(owners) > 1 or owners[0].donor is not None else ():
        donor = owner.donor
        if donor is not None and donor not in number:
            number[donor] = ~len(inputs)
            inputs.append(donor)
            parts += (donor.dtype, donor.shape)
        parts += (number[owner.node], None if donor is None else number[donor])
    if writes:
        # Which offsets are equal is structure: see `freeze`.
        parts += [n.scalars for n in places if n.kind == "view" or n.kind == "update"]
    return tuple(parts), inputs, args, places


def _one_argument(offsets: Sequence[int | None], update: int) -> dict[int, int | None]:
    """Return the arguments that stand for the first of the offsets of windows that are read and then written;
    `update` is that of the write.
    """
    first = offsets[0]
    same: dict[int, int | None] = {}
    if first is not None:
        same = {argument: first for argument in offsets if argument is not None}
    return {**same, update: first}


def _read_windows(
    update: Node, views: Sequence[tuple[Node, int | None]], number: dict[Node, int]
) -> list[tuple[int, int | None]]:
    """Return the numbers of those views that lie where an update writes, and the arguments that are
    their offsets.
    """
    offset = update.scalars[0] if update.scalars else update.attrs[2]
    size = numel(update.attrs[0])
    return [
        (number[v], argument)
        for v, argument in views
        if (v.scalars[0] if v.scalars else v.attrs[1]) == offset and numel(v.shape) == size
    ]


def signature(owner: Value) -> tuple[tuple[object, ...], list[Node], Sequence[Scalar]] | None:
    """Return a key for the graph of one operation on data or on views of data, which is what one call
    by itself leaves; None for other graphs. The inputs and arguments are in the order of `freeze`.
    """
    node = owner.node
    kind = node.kind
    parts: list[object] = [kind, node.attrs, node.shape, node.dtype]
    inputs: list[Node] = []
    views: list[Node] = []
    for s in node.srcs:
        if s.kind == "buffer":
            if s in inputs:
                parts.append(inputs.index(s))
            else:
                inputs.append(s)
                parts += (s.dtype, s.shape)
        elif (
            s.kind == "view" and s.srcs[0].kind == "buffer" and kind != "update" and s not in views
        ):
            views.append(s)
            parts += (s.attrs, s.shape, s.dtype)
        else:
            return None
    args: Sequence[Scalar] = node.scalars
    if views:
        args = []
        for s in reversed(views):
            args += s.scalars
            base = s.srcs[0]
            if base in inputs:
                parts.append(inputs.index(base))
            else:
                inputs.append(base)
                parts += (base.dtype, base.shape)
        args += node.scalars
    if (kind == "take" or kind == "scatter") and node.line is not None:
        code, instruction = node.line
        parts += (code.co_filename, code.co_firstlineno, instruction)
    donor = owner.donor
    if donor is not None:
        if donor in inputs:
            parts.append(inputs.index(donor))
        else:
            inputs.append(donor)
            parts += (donor.dtype, donor.shape)
    return tuple(parts), inputs, args


def family(nodes: Sequence[Node] | Sequence[GraphNode]) -> tuple[object, ...]:
    """Return the structure without shapes and strides, and the user's lines: what stays equal from
    one step of a loop to the next when only shapes change.
    """
    parts: list[object] = []
    for node in nodes:
        attrs = node.attrs if node.kind == "map" else [a for a in node.attrs if type(a) is str]
        line = (id(node.line[0]), node.line[1]) if isinstance(node.line, tuple) else None
        parts.append((node.kind, node.dtype, line, *attrs))
    return tuple(parts)


def difference(before: object, now: object) -> str:
    """Say what differs between two graphs of one family: the first operation, or data, that changes."""
    assert isinstance(before, tuple) and isinstance(now, tuple)
    changed = [(b, n) for b, n in zip(before, now, strict=False) if b[:3] != n[:3]]
    if not changed:
        return "only the order in which tensors are used differs"
    data = next((n for _, n in changed if n[0] == "buffer"), None)
    dull = ("buffer", "view", "cast")
    b, n = next(((b, n) for b, n in changed if n[0] not in dull and n[3] not in dull), changed[0])
    name, line = n[3], line_text(n[4])
    where = f" ({line})" if line else ""
    what = f"shape {b[1]} and then {n[1]}" if b[1] != n[1] else f"{b[2]} and then {n[2]}"
    text = f"{name}{where} has {what}" if n[0] != "buffer" else f"a tensor has {what}"
    if data is not None and n[0] != "buffer":
        old = next(b for b, n in changed if n is data)
        text += f"; a tensor that is read has shape {old[1]} and then {data[1]}"
    return text


def reason_for(before: object, now: object) -> str:
    """Say why a graph is compiled, of which `before` is the last of its family."""
    if before is None:
        return "the first graph of its form"
    if before == now:
        return "it had been compiled before, and was dropped to make room"
    return f"from the last graph of its form to this one, {difference(before, now)}"


def outline_of(nodes: Sequence[Node] | Sequence[GraphNode]) -> tuple[object, ...]:
    """Return kind, shape, attributes, name and line of every node, for `difference`."""
    return tuple(
        (
            n.kind,
            n.shape,
            tuple(a for a in n.attrs if isinstance(a, (int, tuple))),
            n.attrs[0].name.strip("_") if n.kind == "map" else n.kind,
            n.line,
        )
        for n in nodes
    )


def to_graph(frozen: Frozen) -> Graph:
    """Return the frozen graph in the form that passes transform."""
    number = {n: i for i, n in enumerate(frozen.order)}
    dtypes: list[DType] = []
    nodes: list[GraphNode] = []
    for node in frozen.order:
        first = len(dtypes)
        # What is to come is data by the time when the program runs.
        kind = "buffer" if node.kind == "arriving" else node.kind
        if kind != "buffer":
            dtypes.extend(argument_dtypes(node))
        numbers = [frozen.equal.get(a, a) for a in range(first, len(dtypes))]
        args = tuple([a for a in numbers if a is not None])
        # An offset that is structure stands with the strides.
        fixed = node.scalars if len(args) < len(numbers) else ()
        nodes.append(
            GraphNode(
                kind,
                tuple(number[s] for s in node.srcs),
                (*node.attrs, *fixed),
                args,
                node.shape,
                node.dtype,
                node.line,
            )
        )
    outputs = tuple(
        Output(number[o.node], None if d is None else number[d])
        for o, d in zip(frozen.owners, frozen.donors, strict=True)
    )
    return Graph(tuple(nodes), outputs, tuple(dtypes))
