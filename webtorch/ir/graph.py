"""Graphs: nodes as they are recorded, and the frozen form that passes transform. Standard library
only.

Every node's value is a contiguous array of its shape. The kinds are a small closed set; everything
else composes:

    kind      meaning                                       attrs; runtime arguments
    buffer    data on the device
    empty     uninitialised memory
    map       one scalar formula over equal shapes          (formula, operand pattern, compute dtype)
    view      strided window on the source's flat data      (strides, offset), or (strides,); offset, or
                                                            (strides, offset, step, count); how many
                                                            steps, below count, it begins later
    pad       the source inside a border of one value       (low per dim,); value
    reduce    over some dims, which become 1                (op, dims)
    update    source 0 with a window set to source 1        (window shape, strides); offset, or
                                                            (window shape, strides, offset)
    take      rows picked by index arrays                   (index count, the user's dims, name,
                                                            wrap)
    scatter   source 0 with rows combined at index arrays   (index count, the user's dims, combine,
                                                            name, wrap)
    matmul    batched matrix product
    conv      2-d convolution or a gradient of it           (kind, input, weight, output shape,
                                                            stride, padding, dilation, groups)
    scan      running sum, product, max, min                (op, dim)
    attention softmax(query key^T scale + mask) value, or   (part, number of the result, causal,
              a part of its gradients (ir/kernel.py); the   whether there is a mask, whether there
              source of another result is the first one     is dropout); scale, and for dropout its
              too, last                                     probability and words of Philox
    sort      for rows of a matrix, the places of the       (descending, first rank)
              elements in order
    host      a function of whole arrays (LAPACK's, or a    (function, parameters)
              factorisation of WebGPU's); its results
              packed one after the other

Before it is frozen a graph may also have nodes of the kind "call", whose attributes are a `Recorded`,
the number of a result and weak references to the nodes of all: one node for all that a composite records
for it. `Node.expand` makes it these. A node "arriving" is a value that another process sends: it is data once it is
there, before a graph that stands on it is frozen.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from webtorch.ir.dtype import DType, Scalar
from webtorch.ir.view import Shape, numel


@dataclass(frozen=True, slots=True)
class NodeKind:
    """What is known of the nodes of one kind."""

    name: str
    # Whether it is memory that is there, and nothing is computed.
    is_given: bool = False
    # Whether it changes the memory of its first source, where nothing else reads that.
    writes: bool = False
    # To save memory: whether it may be dropped and computed a second time, and whether it never is, even for
    # others.
    may_drop: bool = False
    once: bool = False


KINDS = {
    kind.name: kind
    for kind in (
        NodeKind("buffer", is_given=True, once=True),
        NodeKind("empty", is_given=True, once=True),
        NodeKind("map", may_drop=True),
        NodeKind("view"),
        NodeKind("pad"),
        NodeKind("reduce", may_drop=True),
        NodeKind("update", writes=True, once=True),
        NodeKind("take", may_drop=True),
        NodeKind("scatter", writes=True, once=True),
        NodeKind("matmul", may_drop=True),
        NodeKind("conv", may_drop=True),
        NodeKind("scan", once=True),
        NodeKind("attention"),
        NodeKind("sort", once=True),
        NodeKind("host", once=True),
    )
}


class Form:
    """What nodes that are recorded alike share, so that what is found out about one serves all."""

    __slots__ = ("latest", "programs")

    # Whether an error may name the user's line.
    picks = False

    def __init__(self) -> None:
        # What a runtime knows of the programs that compute one by itself.
        self.programs: dict[object, Any] = {}
        # That of the last one, where the backend computes values as one call.
        self.latest: object = None


class Node:
    """A recorded operation. Once computed, it becomes a "buffer" node in place, and lets go of its
    sources.
    """

    __slots__ = (
        "__weakref__",
        "attrs",
        "buffer",
        "dtype",
        "form",
        "host",
        "kind",
        "line",
        "scalars",
        "shape",
        "shared",
        "srcs",
    )

    def __init__(
        self,
        kind: str,
        srcs: tuple[Node, ...],
        attrs: tuple[Any, ...],
        scalars: tuple[Scalar, ...],
        shape: Shape,
        dtype: DType,
        line: Any = None,
        form: Form | None = None,
    ) -> None:
        self.kind = kind
        self.srcs = srcs
        self.attrs = attrs
        self.scalars = scalars
        self.shape = shape
        self.dtype = dtype
        self.line = line
        # What it has in common with nodes that differ in their sources and scalars alone.
        self.form = form
        self.buffer: Any = None
        # The storages that took this value, as weak references, once it is more than one (a clone
        # costs nothing until one of them is written); True if something else reads it. Its memory
        # is not taken over by what overwrites one of them while there are others.
        self.shared: bool | list[Any] = False
        # On a buffer whose memory NumPy arrays may see too: tells whether one still does.
        self.host: Callable[[], object] | None = None

    @classmethod
    def in_memory(cls, shape: Shape, dtype: DType, buffer: object = None) -> Node:
        """Return a value that lies in memory: in `buffer`, or in one that it is given later."""
        node = cls("buffer", (), (), (), shape, dtype)
        node.buffer = buffer
        return node

    def expand(self) -> None:
        """Turn a result of a call into the node that it stands for, and the call's other results into
        theirs: what they share is recorded once.
        """
        graph, number, results = self.attrs
        made = {graph.results[number]: self}
        for other, reference in zip(graph.results, results, strict=False):
            node = reference()
            if node is not None and node.kind == "call":
                made[other] = node
        graph.record(self.srcs, self.line, made)

    def become_buffer(self, buffer: object) -> None:
        """Turn into realized data."""
        # Another thread that finds a buffer finds its memory.
        self.buffer = buffer
        self.kind = "buffer"
        self.srcs = ()
        self.attrs = ()
        self.scalars = ()


# Kinds of nodes whose values are in memory when something reads them.
IN_MEMORY = ("buffer", "arriving", "update", "scatter")
# The largest offset that an argument holds.
_LONGEST = 2**31 - 1


def placed(offset: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return where a window begins in memory, in elements, as attributes and arguments of its node.

    It is a runtime argument, so that x[1], x[2], ... are one program, as far as an int32 holds it.
    """
    return ((), (offset,)) if offset <= _LONGEST else ((offset,), ())


def window(node: Node, shape: Shape, strides: Shape, offset: int, dtype: DType) -> Node:
    """Return a node of other sizes and strides, from `offset` on, all in elements."""
    attrs, scalars = placed(offset) if offset and node.kind in IN_MEMORY else ((offset,), ())
    return Node("view", (node,), (strides, *attrs), scalars, shape, dtype)


# Kind, sources (0 and up: the call's; -1 and down: steps, from the first), attributes, numbers, shape,
# type, and whether it knows the user's line.
Step = tuple[str, tuple[int, ...], tuple[Any, ...], tuple[Scalar, ...], Shape, DType, bool]


class Recorded(Form):
    """What a composite records over its tensors, in topological order; `results` numbers the steps that
    are its results. It is the form of the "call" nodes that stand for it.
    """

    __slots__ = ("picks", "results", "steps", "writes")

    def __init__(self, steps: tuple[Step, ...], results: tuple[int, ...]) -> None:
        super().__init__()
        self.steps = steps
        self.results = results
        self.writes = any(s[0] == "update" for s in steps)
        self.picks = any(s[0] in ("take", "scatter") and s[6] for s in steps)

    def record(self, given: Sequence[Node], line: object, results: Mapping[int, Node]) -> None:
        """Record the steps over the sources `given`, by the user's line; some are to be the nodes
        `results`.
        """
        made: list[Node] = []
        for place, (kind, srcs, attrs, scalars, shape, dtype, lined) in enumerate(self.steps):
            sources = tuple([given[s] if s >= 0 else made[-1 - s] for s in srcs])
            node = results.get(place)
            if node is None:
                node = Node(kind, sources, attrs, scalars, shape, dtype, line if lined else None)
            else:
                node.kind, node.srcs, node.attrs, node.scalars = kind, sources, attrs, scalars
                node.line, node.form = line if lined else None, None
            made.append(node)


@dataclass(frozen=True, slots=True)
class GraphNode:
    """One node of a frozen graph: sources are node numbers, `args` numbers of runtime arguments."""

    kind: str
    srcs: tuple[int, ...]
    attrs: tuple[Any, ...]
    args: tuple[int, ...]
    shape: Shape
    dtype: DType
    line: Any = None

    @property
    def elements(self) -> int:
        """Number of elements."""
        return numel(self.shape)

    @property
    def is_given(self) -> bool:
        """Whether it is memory that is there, and nothing is computed."""
        return KINDS[self.kind].is_given

    @property
    def writes(self) -> bool:
        """Whether it changes the memory of its first source, where nothing else reads that."""
        return KINDS[self.kind].writes

    def with_srcs(self, srcs: tuple[int, ...]) -> GraphNode:
        """Return the same node with other sources."""
        if srcs == self.srcs:
            return self
        return GraphNode(self.kind, srcs, self.attrs, self.args, self.shape, self.dtype, self.line)


@dataclass(frozen=True, slots=True)
class Output:
    """Node `node` must be in memory at the end; it may take over input buffer `donor` (a node
    number), if any.
    """

    node: int
    donor: int | None = None


@dataclass(frozen=True, slots=True)
class Graph:
    """Nodes in topological order. `arg_dtypes[i]` is the type in which runtime argument `i` is
    passed; the last ones have the values `constants`.
    """

    nodes: tuple[GraphNode, ...]
    outputs: tuple[Output, ...]
    arg_dtypes: tuple[DType, ...]
    constants: tuple[Scalar, ...] = ()

    def __str__(self) -> str:
        lines = []
        for i, n in enumerate(self.nodes):
            srcs = " ".join(f"%{s}" for s in n.srcs)
            attrs = " ".join(_show(a) for a in n.attrs)
            args = " ".join(f"a{a}" for a in n.args)
            lines.append(
                "  ".join(
                    filter(
                        None, (f"%{i} = {n.kind} {n.dtype.name}{list(n.shape)}", srcs, attrs, args)
                    )
                )
            )
        for output in self.outputs:
            donor = f" in %{output.donor}" if output.donor is not None else ""
            lines.append(f"return %{output.node}{donor}")
        return "\n".join(lines)

    def verify(self) -> None:
        """Check the graph's rules; a failure is a defect of a pass."""
        nodes, count = self.nodes, len(self.arg_dtypes)
        for i, n in enumerate(nodes):
            srcs, args = n.srcs, n.args
            assert n.kind in KINDS, f"%{i}: unknown kind {n.kind}"
            assert not srcs or max(srcs) < i, f"%{i}: sources must come first"
            assert not args or (min(args) >= 0 and max(args) < count), f"%{i}: unknown argument"
            if n.kind == "map":
                shape = n.shape
                for s in srcs:
                    assert nodes[s].shape == shape, f"%{i}: map over unequal shapes"
        for output in self.outputs:
            assert 0 <= output.node < len(self.nodes)

    def with_nodes(
        self, nodes: list[GraphNode], outputs: tuple[Output, ...] | None = None
    ) -> Graph:
        """Return the same graph with other nodes."""
        return replace(
            self, nodes=tuple(nodes), outputs=self.outputs if outputs is None else outputs
        )

    def renumbered(
        self,
        nodes: list[GraphNode],
        number: Mapping[int, int],
        outputs: Iterable[Output] | None = None,
    ) -> Graph:
        """Return the same graph with other nodes. `number`: the new number of each old node; `outputs`, if not all, are
        in old numbers.
        """
        renumbered = tuple(
            Output(number[o.node], None if o.donor is None else number[o.donor])
            for o in (self.outputs if outputs is None else outputs)
        )
        return self.with_nodes(nodes, renumbered)


def _show(attr: object) -> str:
    return getattr(attr, "name", None) or str(attr)
