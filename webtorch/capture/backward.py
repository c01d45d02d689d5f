"""What a captured call returns may be differentiated by its caller: the backward half of the
program. Floor 5.

The backward pass is recorded together with the call and cut off: the first program also gives the
values that the second reads. Cheap values are computed again rather than kept.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

from webtorch.capture.outside import parts_of
from webtorch.errors import CaptureError
from webtorch.ir.dtype import Scalar
from webtorch.ir.graph import Graph, GraphNode, Node, Output
from webtorch.ir.view import contiguous_strides
from webtorch.lower.fuse import formula_cost
from webtorch.ops import primitive
from webtorch.runtime.backend import Executable
from webtorch.runtime.realize import Runtime
from webtorch.tensors.device import device_of
from webtorch.tensors.storage import Storage
from webtorch.tensors.tape import (
    AccumulateGrad,
    GradFn,
    gradient_edge,
    mode,
    run_backward,
    set_history,
)
from webtorch.tensors.tensor import Tensor

# A value of this cost (in additions) or less is computed again from what is kept anyway.
_CHEAP = 4


def live_results(x: Any) -> list[Tensor]:
    """Return the tensors in a structure whose gradient graph has not been used up, each once."""
    found: dict[int, Tensor] = {}

    def visit(x: Any) -> None:
        if isinstance(x, Tensor):
            if x.requires_grad and _is_live(x):
                found[id(x)] = x
        else:
            for v in parts_of(x) or ():
                visit(v)

    visit(x)
    return list(found.values())


def _functions(roots: Sequence[Tensor]) -> list[GradFn]:
    """Return the gradient functions above some tensors, in an order that does not vary."""
    seen: dict[GradFn, None] = {}
    stack = [e[0] for e in map(gradient_edge, roots) if e is not None]
    while stack:
        fn = stack.pop()
        if fn not in seen:
            seen[fn] = None
            stack.extend(e[0] for e in fn.edges if e is not None)
    return list(seen)


def _is_live(x: Tensor) -> bool:
    if x._grad_fn is None and x._base is None:
        return False
    return all(fn.rule is not None or isinstance(fn, AccumulateGrad) for fn in _functions([x]))


class Backward:
    """The second program of a captured call, and where its inputs come from."""

    def __init__(
        self,
        results: list[Tensor],
        leaves: list[Tensor | int],
        cotangents: list[Node],
        gradients: list[Tensor | None],
    ) -> None:
        self.results = [id(r) for r in results]
        self.leaves = leaves
        self.cotangents = cotangents
        self.forms = [(r._shape, r.dtype) for r in results]
        self.gradients: list[Tensor | None] = gradients
        self.shapes = [None if g is None else (g._shape, g.dtype) for g in gradients]
        # One per gradient: the number of the program's output.
        self.outputs: list[int | None] = []
        self.graph: Graph | None = None
        self.executable: Executable | None = None
        self.compiler: Callable[[Runtime, Any, Graph], Executable] = Runtime.program
        self.runtime: Runtime | None = None
        self.key: Any = None
        # One per input of the second program: ("cotangent", i), ("saved", i) or ("data", source).
        self.sources: list[tuple[str, Any]] = []

    def owners(self) -> list[Storage]:
        """Return the storages of the gradients, which hold nothing else."""
        found: dict[int, Storage] = {}
        for i, g in enumerate(self.gradients):
            if g is None:
                continue
            if not _alone(g) or g._storage.node.kind == "buffer":
                # A view, or a cotangent passed on as it is: a value of its own.
                g = self.gradients[i] = g + 0 if _alone(g) else primitive.copy(g)
            found[id(g._storage)] = g._storage
        return list(found.values())

    def split(
        self, graph: Graph, key: Any, count: int, sources: list[Any], runtime: Runtime
    ) -> tuple[Graph, list[int]]:
        """Cut the graph of both halves, whose first `count` outputs are the call's own, in two.

        Return the first half, which has the kept values as further outputs, and the numbers of the
        inputs that it still has.
        """
        self.runtime, self.key = runtime, (key, "backward", count)
        numbers = {id(g._storage): None for g in self.gradients if g is not None}
        numbers = {key: count + i for i, key in enumerate(numbers)}  # type: ignore[misc]
        self.outputs = [
            None if g is None else numbers[id(g._storage)] - count  # type: ignore[operator]
            for g in self.gradients
        ]
        self.gradients = []
        nodes = graph.nodes
        first = _above(nodes, [o.node for o in graph.outputs[:count]])
        first |= {o.donor for o in graph.outputs[:count] if o.donor is not None}
        second = _above(nodes, [o.node for o in graph.outputs[count:]])
        kept, again = _kept(nodes, first, second, [o.node for o in graph.outputs[count:]])
        inputs = [i for i, n in enumerate(nodes) if n.kind == "buffer"]
        place = {n: k for k, n in enumerate(inputs)}
        forward_outputs = (*graph.outputs[:count], *(Output(n) for n in kept))
        forward = _part_of(graph, first | set(kept), forward_outputs, set())
        mine = (second - first) | again
        for n in tuple(mine):
            mine |= {s for s in nodes[n].srcs if nodes[s].kind == "buffer"}
        outputs = tuple(Output(o.node) for o in graph.outputs[count:])
        self.graph = _part_of(graph, mine | set(kept), outputs, set(kept))
        cotangent = {id(c): i for i, c in enumerate(self.cotangents)}
        for n in sorted(mine | set(kept)):
            if n in kept:
                self.sources.append(("saved", kept.index(n)))
            elif nodes[n].kind == "buffer":
                source = sources[place[n]]
                held = getattr(source, "node", None)
                if id(held) in cotangent:
                    self.sources.append(("cotangent", cotangent[id(held)]))
                else:
                    self.sources.append(("data", source))
        self.cotangents = []
        return forward, [place[n] for n in inputs if n in first]

    def hold(self, tensors: list[Tensor], moved: dict[Any, Storage]) -> list[Any]:
        """Return the data that the second program reads besides what is kept, with versions."""
        held: list[Any] = []
        for kind, source in self.sources:
            if kind != "data":
                held.append(None)
                continue
            storage = (
                tensors[source]._storage if isinstance(source, int) else moved.get(source, source)
            )
            held.append((storage, storage.version))
        return held

    def attach(
        self,
        made: dict[int, Tensor],
        given: list[Tensor],
        held: list[Any],
        saved: list[Any],
        args: list[Scalar],
    ) -> None:
        """Give the results of a replay one gradient function, which runs the second program."""
        leaves = [given[x] if isinstance(x, int) else x for x in self.leaves]

        def rule(cotangents: Sequence[Tensor | None]) -> list[Tensor | None]:
            if mode.grad:
                raise CaptureError(
                    "backward(create_graph=True) through a compiled function: only its first "
                    "derivative was captured. Take the gradients inside the compiled function, or "
                    "call the function as it is, uncompiled"
                )
            return self._run(cotangents, held, saved, args)

        fn = GradFn("CompiledFunctionBackward", tuple(gradient_edge(t) for t in leaves), rule)
        fn.saves = True
        for number, identity in enumerate(self.results):
            if identity in made:
                set_history(made[identity], fn, number)
            else:
                while len(fn.metas) <= number:
                    fn.metas.append(None)

    def _run(
        self,
        cotangents: Sequence[Tensor | None],
        held: list[Any],
        saved: list[Any],
        args: list[Scalar],
    ) -> list[Tensor | None]:
        runtime = self.runtime
        assert runtime is not None and self.graph is not None
        if self.executable is None:
            self.executable = self.compiler(runtime, self.key, self.graph)
        given: list[Tensor] = []
        for g, (shape, dtype) in zip(cotangents, self.forms, strict=False):
            if g is None:
                g = primitive.fill(shape, 0, dtype, device_of(runtime))
            given.append(g if _alone(g) else primitive.copy(g))
        for _, (shape, dtype) in zip(range(len(self.forms) - len(given)), self.forms, strict=False):
            given.append(primitive.fill(shape, 0, dtype, device_of(runtime)))
        for g in given:
            g._storage.realize()
        runtime.realize()
        inputs = []
        for (kind, number), data in zip(self.sources, held, strict=True):
            if kind == "cotangent":
                inputs.append(given[number]._storage.realize().buffer)
            elif kind == "saved":
                inputs.append(saved[number])
            else:
                storage, version = data
                if storage.version != version:
                    raise RuntimeError(
                        "one of the variables needed for gradient computation has been modified "
                        f"by an inplace operation: [torch.{storage.dtype.name} "
                        f"[{storage.elements}]] is at version {storage.version}; expected version "
                        f"{version} instead. It was read by a compiled function: call backward() "
                        "before it is overwritten."
                    )
                inputs.append(storage.realize().buffer)
        buffers = self.executable.run(inputs, args)
        storages = []
        for buffer in buffers:
            node = Node("buffer", (), (), (), (buffer.elements,), buffer.dtype)
            node.buffer = buffer
            storages.append(Storage(node, runtime))
        out: list[Tensor | None] = []
        for output, form in zip(self.outputs, self.shapes, strict=True):
            if output is None or form is None:
                out.append(None)
                continue
            shape, dtype = form
            strides, whole = contiguous_strides(shape), not dtype.is_complex
            out.append(Tensor._from_storage(storages[output], shape, strides, 0, whole, dtype))
        return out


def _alone(g: Tensor) -> bool:
    """Whether a tensor is the whole of its storage, in order."""
    return (g._pairs() if g.dtype.is_complex else g)._whole


def trace_backward(results: list[Tensor], tensors: list[Tensor]) -> Backward:
    """Record the backward pass of `results`, for all leaves that existed before the call."""
    variables = [fn.variable for fn in _functions(results) if isinstance(fn, AccumulateGrad)]
    variables = [v for v in variables if _existed(v)]
    arguments = {id(t): i for i, t in enumerate(tensors)}
    cotangents: list[Node] = []
    given: list[Tensor] = []
    runtime = results[0]._storage.runtime
    for r in results:
        pairs = (2,) if r.dtype.is_complex else ()
        node = Node("buffer", (), (), (), r._shape + pairs, r.dtype.to_real())
        cotangents.append(node)
        made = Tensor._from_node(node, runtime)
        given.append(primitive.complex_of(made) if pairs else made)
    hooks = [(v, v._hooks) for v in variables]
    for v in variables:
        # The leaf's own hooks run when its gradient is there.
        v._hooks = None
    try:
        gradients = run_backward(
            results,
            given,
            retain_graph=False,
            create_graph=False,
            inputs=variables,
            accumulate=False,
        )
    finally:
        for v, h in hooks:
            v._hooks = h
    leaves: list[Tensor | int] = [arguments.get(id(v), v) for v in variables]
    return Backward(results, leaves, cotangents, gradients)


def _existed(t: Tensor) -> bool:
    storage = t._storage
    return storage.node.kind == "buffer" or storage in storage.runtime.overwritten


def _above(nodes: Sequence[GraphNode], roots: list[int]) -> set[int]:
    found: set[int] = set()
    stack = list(roots)
    while stack:
        n = stack.pop()
        if n not in found:
            found.add(n)
            stack.extend(nodes[n].srcs)
    return found


def _kept(
    nodes: Sequence[GraphNode], first: set[int], second: set[int], roots: list[int]
) -> tuple[list[int], set[int]]:
    """Return the nodes of the first half to keep for the second, and those to compute again."""
    border = {s for n in second - first for s in nodes[n].srcs if s in first}
    border |= {n for n in roots if n in first}
    again: set[int] = set()
    wanted: set[int] = set()
    stack = sorted(border)
    while stack:
        n = stack.pop()
        node = nodes[n]
        if node.kind == "buffer" or n in wanted or n in again:
            continue
        if node.kind == "view" or (node.kind == "map" and not node.srcs):
            again.add(n)
            stack.extend(node.srcs)
        else:
            wanted.add(n)
    for n in sorted(wanted, reverse=True):
        node = nodes[n]
        if node.kind != "map" or formula_cost(node) > _CHEAP:
            continue
        path: set[int] = set()
        rest = list(node.srcs)
        while rest:
            s = rest.pop()
            if nodes[s].kind == "buffer" or (s in wanted and s != n) or s in again:
                continue
            if nodes[s].kind == "view":
                path.add(s)
                rest.extend(nodes[s].srcs)
            else:
                break
        else:
            wanted.discard(n)
            again |= {n} | path
    return sorted(wanted), again


def _part_of(
    graph: Graph, members: set[int], outputs: tuple[Output, ...], inputs: set[int]
) -> Graph:
    """Return the part of a graph that `members` are; those of `inputs` become buffers."""
    nodes: list[GraphNode] = []
    number: dict[int, int] = {}
    for n in sorted(members):
        node = graph.nodes[n]
        number[n] = len(nodes)
        if n in inputs:
            nodes.append(GraphNode("buffer", (), (), (), node.shape, node.dtype, node.line))
        else:
            nodes.append(dataclasses.replace(node, srcs=tuple(number[s] for s in node.srcs)))
    renumbered = tuple(
        Output(number[o.node], None if o.donor is None else number[o.donor]) for o in outputs
    )
    return graph.with_nodes(nodes, renumbered)
