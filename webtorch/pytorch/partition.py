"""Compiled graphs with operators that no program can hold: programs, and calls between them. Floor 6.

A custom operator has a kernel for the eager device but no meaning in the compiler; so have factorisations,
which LAPACK computes, and control flow. Such a graph becomes programs with calls of these operators
between them, in the order of the graph. Each call is counted: `torch.webgpu.eager_call_counts()`.

Where the whole graph was traced on the CPU, operators between programs run on the device as well.
"""

from __future__ import annotations

import operator
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch._decomp import decomposition_table
from torch._ops import HigherOrderOperator, OpOverload
from torch.fx import Graph as FxGraph
from torch.fx import GraphModule, Node
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols
from torch.utils._pytree import TreeSpec, tree_flatten, tree_leaves, tree_unflatten

from webtorch.pytorch import device as bridge
from webtorch.pytorch import fallback, graphs
from webtorch.pytorch.programs import Programs, uploaded
from webtorch.pytorch.saved import nodes_of
from webtorch.pytorch.values import Arguments
from webtorch.runtime.trace import debug_level

# What makes programs of a graph of which nothing is called: the graph, numbers of inputs that are parameters,
# how many results must lie as PyTorch traced them, numbers of results that a backward takes, whether results
# may go to the CPU.
Compiler = Callable[[GraphModule, frozenset[int], int, frozenset[int], bool], Programs]


# Operators that look at values on the host: bounds of bins, lengths of segments, degrees of polynomials.
_READING = {
    "histogram",
    "_histogramdd_bin_edges",
    "_histogramdd_from_bin_cts",
    "_histogramdd_from_bin_tensors",
    "segment_reduce",
    "_segment_reduce_backward",
}


def is_called(node: Node) -> bool:
    """Whether a node is called between programs: a custom operator, control flow, or an element of their results.

    So is one whose values decide how large its result is, or what number the trace goes on with.
    """
    if node.op != "call_function":
        return False
    if node.target is operator.getitem:
        return isinstance(node.args[0], Node) and is_called(node.args[0])
    if isinstance(node.target, HigherOrderOperator) or node.meta.get("unbacked_bindings"):
        return True
    if not isinstance(node.target, OpOverload):
        return False
    name = node.target._schema.name.removeprefix("aten::")
    if name in _READING or "_polynomial_" in name or graphs.find_meaning(node.target) is None:
        return True
    return _puts_as_many_as_a_mask_has(node)


def _puts_as_many_as_a_mask_has(node: Node) -> bool:
    """Whether a node is the gradient of `x[mask]`, or alike: it writes as many values as a mask says."""
    if not isinstance(node.target, OpOverload) or "index_put" not in node.target.__name__:
        return False
    _, indices, put = node.args[:3]
    values: Any = put.meta.get("val") if isinstance(put, Node) else put
    if free_unbacked_symbols(values):
        return True
    # One value for all places is chosen by the mask where they lie.
    found = [n.meta["val"].dtype for n in nodes_of(indices) if isinstance(n, Node)]
    return values.numel() != 1 and (torch.bool in found or torch.uint8 in found)


def _operator(node: Node) -> object:
    """Return the operator that a node calls: not what wraps it because it writes, or must keep its turn."""
    if not isinstance(node.target, HigherOrderOperator):
        return node.target
    return next((a for a in node.args if isinstance(a, OpOverload)), node.target)


def _has_kernel(op: object) -> bool:
    """Whether the eager device runs an operator by itself."""
    if not isinstance(op, OpOverload) or op in decomposition_table:
        return True
    has = torch._C._dispatch_has_kernel_for_dispatch_key
    keys = ("PrivateUse1", "CompositeExplicitAutograd", "CompositeImplicitAutograd")
    if any(has(op.name(), key) for key in keys):
        return True
    # PyTorch allocates the result, and runs the form of the operator that is given it.
    forms = [getattr(op.overloadpacket, o) for o in op.overloadpacket.overloads()]
    return has(op.name(), "CompositeExplicitAutogradNonFunctional") and any(
        has(form.name(), "PrivateUse1") for form in forms
    )


def _is_number(node: Node) -> bool:
    """Whether a node computes with sizes only: each program that needs it, and each call, does so for itself."""
    kinds = (int, float, torch.SymInt, torch.SymFloat, torch.SymBool)
    return (
        node.op == "call_function"
        and isinstance(node.meta.get("val"), kinds)
        and not is_called(node)
    )


@dataclass(frozen=True, slots=True)
class _Slot:
    """The value of a graph's node."""

    number: int


@dataclass(frozen=True, slots=True)
class _Call:
    """A call of an operator, or arithmetic on sizes. `leaves`: the arguments, flat; `name`: what is counted."""

    out: int
    function: Callable[..., object]
    leaves: list[object]
    spec: TreeSpec
    name: str | None
    # Whether tensors on the CPU are to be uploaded, and which of the graph's inputs are kept there.
    moves: bool
    static: frozenset[int]

    def run(self, values: list[object]) -> None:
        """Call the operator on values of the slots; keep its result in its own."""
        leaves = [self._value(x, values) if type(x) is _Slot else x for x in self.leaves]
        args, kwargs = tree_unflatten(leaves, self.spec)
        if self.name is not None:
            fallback.eager_counts[self.name] += 1
        values[self.out] = self.function(*args, **kwargs)

    def _value(self, slot: _Slot, values: list[object]) -> object:
        value = values[slot.number]
        if self.moves and isinstance(value, torch.Tensor) and value.is_cpu:
            return uploaded(value, slot.number in self.static)
        return value


@dataclass(frozen=True, slots=True)
class _Piece:
    """A program between calls: where its inputs are found, and where its results go."""

    programs: Programs
    inputs: list[int]
    outs: list[int]

    def run(self, values: list[object]) -> None:
        """Run the program on values of its slots; keep its results in theirs."""
        made = self.programs([values[i] for i in self.inputs])
        for out, value in zip(self.outs, made, strict=True):
            values[out] = value


class Partition:
    """A graph as programs and calls, as PyTorch calls it."""

    def __init__(
        self, gm: GraphModule, static: frozenset[int], saved: slice | None, compiler: Compiler
    ) -> None:
        """`static`: inputs that are parameters or buffers. `saved`: results for the backward graph.

        Raises NotImplementedError for an operator that has no kernel anywhere.
        """
        self.gm = gm
        self.compiler = compiler
        self.nodes = list(gm.graph.nodes)
        self.slots = {n: i for i, n in enumerate(self.nodes)}
        holders = [n for n in self.nodes if n.op == "placeholder"]
        self.holders = [self.slots[n] for n in holders]
        self.static = frozenset(self.slots[n] for i, n in enumerate(holders) if i in static)
        self.sizes = [n for n in holders if isinstance(n.meta.get("val"), torch.SymInt)]
        every = [
            v
            for n in self.nodes
            for v in tree_leaves(n.meta.get("val"))
            if isinstance(v, torch.Tensor)
        ]
        self.moves = bool(every) and all(v.device.type == "cpu" for v in every)
        self._check()

        results = tree_leaves(self.nodes[-1].args[0])
        kept = range(*saved.indices(len(results))) if saved is not None else range(0)
        self.saved = {results[i] for i in kept if isinstance(results[i], Node)}
        self.visible = {r for i, r in enumerate(results) if isinstance(r, Node) and i not in kept}
        self.results = [_Slot(self.slots[r]) if isinstance(r, Node) else r for r in results]
        origins = set(holders)
        # Results that go back to the CPU.
        self.downloads = {
            i: r.meta["val"].dtype
            for i, r in enumerate(results)
            if self.moves
            and i not in kept
            and isinstance(r, Node)
            and r not in origins
            and isinstance(r.meta.get("val"), torch.Tensor)
        }
        self.constants = {
            self.slots[n]: operator.attrgetter(n.target)(gm)
            for n in self.nodes
            if n.op == "get_attr"
        }
        self.steps: list[_Call | _Piece] = []
        self._done: set[Node] = set()
        self._split()
        self.dead = self._lifetimes()
        if debug_level():
            self._show()

    def _check(self) -> None:
        """Raise NotImplementedError for an operator without a kernel, unless it may run on the CPU."""
        for node in self.nodes:
            if not is_called(node) or node.target is operator.getitem:
                continue
            op = _operator(node)
            tensors = [
                v
                for n in node.all_input_nodes
                for v in tree_leaves(n.meta.get("val"))
                if isinstance(v, torch.Tensor)
            ]
            # Where the function itself moved the operands to the CPU, the operator runs there.
            is_here = self.moves or not tensors or any(v.device.type == "webgpu" for v in tensors)
            if is_here and not _has_kernel(op) and fallback.mode() == "error":
                raise fallback.unsupported(op)

    # ---- splitting

    def _split(self) -> None:
        """Cut the nodes, in their order, before and after each that is called."""
        groups: list[list[Node]] = [[]]
        home: dict[Node, list[Node]] = {}
        order: list[Node | list[Node]] = [groups[0]]
        for node in self.nodes:
            if node.op != "call_function" or _is_number(node):
                continue
            if is_called(node):
                order.append(node)
                groups.append([])
                order.append(groups[-1])
                continue
            # An element of a tuple stays with what computes it.
            source = node.args[0] if node.target is operator.getitem else None
            group = home[source] if isinstance(source, Node) and source in home else groups[-1]
            home[node] = group
            group.append(node)
        for part in order:
            if isinstance(part, Node):
                self._call(part)
            elif any(isinstance(n.meta.get("val"), (torch.Tensor, tuple, list)) for n in part):
                self._piece(part)
            else:
                # Checks of sizes.
                for node in part:
                    self._call(node)
        for node in self.nodes[-1].all_input_nodes:
            self._need(node)

    def _need(self, node: Node) -> None:
        """Have a number computed before it is used."""
        if _is_number(node) and node not in self._done:
            self._call(node)

    def _call(self, node: Node) -> None:
        for source in node.all_input_nodes:
            self._need(source)
        self._done.add(node)
        leaves, spec = tree_flatten((node.args, node.kwargs))
        leaves = [self._leaf(leaf) for leaf in leaves]
        is_counted = is_called(node) and node.target is not operator.getitem
        name = str(_operator(node)) if is_counted else None
        function: Any = node.target
        self.steps.append(
            _Call(self.slots[node], function, leaves, spec, name, self.moves, self.static)
        )

    def _leaf(self, value: object) -> object:
        if isinstance(value, Node):
            return _Slot(self.slots[value])
        if self.moves and isinstance(value, torch.device) and value.type == "cpu":
            return bridge.DEVICE
        return value

    def _piece(self, group: list[Node]) -> None:
        """Make a program of nodes that follow each other."""
        inside = set(group)
        needed: dict[Node, None] = {}

        def need(node: Node) -> None:
            """Note what a node is computed from, inputs first."""
            if node not in needed:
                if node in inside or _is_number(node):
                    for source in node.all_input_nodes:
                        need(source)
                needed[node] = None

        for node in group:
            need(node)
        taken = [n for n in needed if not (n in inside or _is_number(n) or n.op == "get_attr")]
        # What symbols stand for is read from the sizes themselves, where the program would not see them else.
        taken += [n for n in self.sizes if n not in needed]
        graph = FxGraph()
        copies: dict[Node, Node] = {}
        for node in taken:
            copies[node] = graph.placeholder(node.name)
            copies[node].meta = dict(node.meta)
        for node in needed:
            if node not in copies:
                copies[node] = graph.node_copy(node, copies.__getitem__)

        outside = {n: [u for u in n.users if u not in inside and u.op != "output"] for n in group}
        found = [n for n in group if outside[n] or n in self.visible or n in self.saved]
        # What only a backward takes comes last: it may lie in memory as it likes.
        found.sort(key=lambda n: not (outside[n] or n in self.visible))
        visible = sum(bool(outside[n]) or n in self.visible for n in found)
        graph.output(tuple(copies[n] for n in found))
        saved = frozenset(i for i, n in enumerate(found) if n in self.saved)
        static = frozenset(i for i, n in enumerate(taken) if self.slots[n] in self.static)
        programs = self.compiler(
            GraphModule(self.gm, graph), static, visible, saved, not self.moves
        )
        self.steps.append(
            _Piece(programs, [self.slots[n] for n in taken], [self.slots[n] for n in found])
        )

    def _lifetimes(self) -> list[list[int]]:
        """Return for each step the values that nothing reads after it."""
        dead: list[list[int]] = [[] for _ in self.steps]
        seen = {r.number for r in self.results if type(r) is _Slot}
        for at in reversed(range(len(self.steps))):
            step = self.steps[at]
            if isinstance(step, _Piece):
                used = [*step.inputs, *step.outs]
            else:
                used = [x.number for x in step.leaves if type(x) is _Slot] + [step.out]
            dead[at] = [n for n in used if n not in seen]
            seen.update(used)
        return dead

    def _show(self) -> None:
        """Write to standard error what became of the graph."""
        names = [s.name for s in self.steps if isinstance(s, _Call) and s.name is not None]
        programs = sum(isinstance(s, _Piece) for s in self.steps)
        text = f"{programs} programs, with calls of {', '.join(names)} between them"
        sys.stderr.write(f"webtorch: torch.compile: one graph became {text}\n")

    # ---- running

    def __call__(self, *args: Any) -> Arguments:
        values: list[object] = [None] * len(self.nodes)
        for slot, value in zip(self.holders, args, strict=True):
            values[slot] = value
        for slot, value in self.constants.items():
            values[slot] = value
        for step, dead in zip(self.steps, self.dead, strict=True):
            step.run(values)
            for slot in dead:
                values[slot] = None
        out: list[Any] = [values[r.number] if type(r) is _Slot else r for r in self.results]
        for i, dtype in self.downloads.items():
            out[i] = out[i].to("cpu", dtype)
        return out
