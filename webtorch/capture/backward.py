"""What a captured call returns may be differentiated by its caller: the backward half of the
program. Floor 5.

The backward pass is recorded together with the call and cut off: the first program also gives the
values that the second reads. Cheap values are computed again rather than kept.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Any

from webtorch.capture.graphs import above, copied, part_of, split_at
from webtorch.capture.outside import parts_of
from webtorch.errors import CaptureError
from webtorch.ir.dtype import Scalar
from webtorch.ir.graph import Graph, Node, Output
from webtorch.ir.view import contiguous_strides
from webtorch.ops import primitive
from webtorch.runtime.backend import Executable
from webtorch.runtime.realize import Runtime
from webtorch.tensors.creation import without_data
from webtorch.tensors.device import device_of
from webtorch.tensors.engine import run_backward
from webtorch.tensors.modes import mode, no_grad
from webtorch.tensors.storage import Storage
from webtorch.tensors.tape import AccumulateGrad, GradFn, SavedTensor, gradient_edge, set_history
from webtorch.tensors.tensor import Tensor
from webtorch.tensors.writing import rebase


def stand_in(t: Tensor, value: Tensor) -> Tensor:
    """Return `value`, which has no history, as what a captured call is given for its argument `t`: its
    gradients end there, and go on outside. It is a leaf if `t` is one.
    """
    if not t.requires_grad:
        return value
    value.requires_grad_()
    if t.is_leaf:
        return value
    # Not a leaf: what is computed may be written in place, but for a part of a leaf.
    out = value.detach()
    base = t._base
    if base is not None and base.requires_grad and base.is_leaf:
        out._base, out._base_version = value, out._counter.version
    title = t._grad_fn.title if t._grad_fn is not None else ""
    set_history(out, GradFn(title, (gradient_edge(value),), _pass_on))
    return out


def _pass_on(
    gs: Sequence[Tensor | None], _saved: object, _static: object
) -> Sequence[Tensor | None]:
    return gs


def leaf_of(t: Tensor) -> Tensor:
    """Return where the gradients of an argument of a captured call end."""
    fn = t._grad_fn
    if fn is None or fn.rule is not _pass_on:
        return t
    (edge,) = fn.edges
    assert edge is not None and isinstance(edge[0], AccumulateGrad)
    return edge[0].variable


def tensors_in(x: object) -> list[Tensor]:
    """Return the tensors in a structure, each once."""
    found: dict[int, Tensor] = {}
    # A function that calls itself would be a cycle, and hold the tensors until it is collected.
    stack = [x]
    while stack:
        part = stack.pop()
        if isinstance(part, Tensor):
            found.setdefault(id(part), part)
        else:
            stack.extend(reversed(parts_of(part) or ()))
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


def is_live(x: Tensor) -> bool:
    """Whether a tensor was computed with gradients, and its graph has not been used up."""
    if not x.requires_grad or (x._grad_fn is None and x._base is None):
        return False
    return all(
        isinstance(fn, AccumulateGrad) or (fn.rule is not None and fn.saved is not None)
        for fn in _functions([x])
    )


def whole_graph(results: Sequence[Tensor], mark: int) -> str | None:
    """Say why the backward pass of some results is not all of a program, if so: it goes on through
    operations older than `mark`, or ends on the way.
    """
    for fn in _functions(results):
        if fn.retained:
            return "it keeps the gradient of what it computes (retain_grad)"
        if fn.sequence < mark and not isinstance(fn, AccumulateGrad) and fn.rule is not _pass_on:
            return "it reads what was computed with gradients before, under a name"
    return None


class Backward:
    """The second program of a captured call, and where its inputs come from."""

    def __init__(
        self,
        results: list[Tensor],
        leaves: list[Tensor | int],
        cotangents: list[Node],
        gradients: list[Tensor | None],
        functions: list[GradFn],
    ) -> None:
        # What is differentiated: shape, type, and how a replay finds it (`captured.Returned`).
        self.forms = [(r._shape, r.dtype) for r in results]
        self.results: list[Any] = []
        # Those that are arguments which the call writes.
        self.written: frozenset[int] = frozenset()
        self.functions = functions
        # What an uncompiled backward pass would read, and which of the call's outputs these are.
        self.read: weakref.WeakSet[Storage] = weakref.WeakSet()
        self.read_outputs: list[int] = []
        self.leaves = leaves
        self.cotangents = cotangents
        self.gradients: list[Tensor | None] = gradients
        self.shapes = [None if g is None else (g._shape, g.dtype) for g in gradients]
        # One per gradient: the number of the program's output.
        self.outputs: list[int | None] = []
        self.graph: Graph | None = None
        self.executable: Executable | None = None
        self.compiler: Callable[[Runtime, object, Graph], Executable] = Runtime.program
        self.runtime: Runtime | None = None
        self.key: Any = None
        # One per output: the numbers of the cotangents that it is computed from.
        self.reads: list[set[int]] = []
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
        self,
        graph: Graph,
        key: object,
        count: int,
        sources: list[Any],
        overwritten: set[int],
        runtime: Runtime,
    ) -> tuple[Graph, list[int]]:
        """Cut the graph of both halves, whose first `count` outputs are the call's own, in two.
        `overwritten` are the numbers of the inputs whose memory the call writes.

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
        inputs = [i for i, n in enumerate(nodes) if n.kind == "buffer"]
        place = {n: k for k, n in enumerate(inputs)}
        first = above(nodes, [o.node for o in graph.outputs[:count]])
        first |= {o.donor for o in graph.outputs[:count] if o.donor is not None}
        stale = {n for n in inputs if place[n] in overwritten}
        second = above(nodes, [o.node for o in graph.outputs[count:]])
        kept, again = split_at(nodes, first, second, [o.node for o in graph.outputs[count:]], stale)
        first |= set(kept)
        forward_outputs = (*graph.outputs[:count], *(Output(n) for n in kept))
        forward = _with_copies(part_of(graph, first, forward_outputs, set()), count)
        mine = (second - first) | again
        for n in tuple(mine):
            mine |= {s for s in nodes[n].srcs if nodes[s].kind == "buffer"}
        outputs = tuple(Output(o.node) for o in graph.outputs[count:])
        self.graph = part_of(graph, mine | set(kept), outputs, set(kept))
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
        # By the number of an output, the cotangents that it is computed from.
        for output in self.graph.outputs:
            read_by = above(self.graph.nodes, [output.node])
            buffers = [n for n, node in enumerate(self.graph.nodes) if node.kind == "buffer"]
            read = [s for n, s in zip(buffers, self.sources, strict=True) if n in read_by]
            self.reads.append({number for kind, number in read if kind == "cotangent"})
        return forward, [place[n] for n in inputs if n in first]

    def release(self) -> None:
        """Let go of the graph that was recorded: a replay has its own."""
        for fn in self.functions:
            saved = [s.storage for s in fn.saved or () if isinstance(s, SavedTensor)]
            if saved:
                self.read.update(s for s in saved if s is not None)
                fn.free()
        self.functions = []

    def hold(self, tensors: list[Tensor], moved: dict[Storage, Storage]) -> list[object]:
        """Return the data that the second program reads besides what is kept, with versions."""
        held: list[object] = []
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
        results: list[Tensor],
        given: list[Tensor],
        held: list[Any],
        saved: list[Any],
        args: list[Scalar],
    ) -> None:
        """Give the results of a replay one gradient function, which runs the second program."""
        leaves = [given[x] if isinstance(x, int) else x for x in self.leaves]
        fn = GradFn(
            "CompiledFunctionBackward",
            tuple(gradient_edge(t) for t in leaves),
            self._differentiate,
            (),
            args,
        )
        # Buffers: they go when the function has run.
        fn.saved = held, saved
        for number, result in enumerate(results):
            if number in self.written:
                # As an operation in place does it: what else sees this memory takes part.
                with no_grad():
                    values = result.detach()
                set_history(values, fn, number)
                rebase(result, values)
            else:
                set_history(result, fn, number)

    def _differentiate(
        self, cotangents: Sequence[Tensor | None], kept: Sequence[Any], args: list[Scalar]
    ) -> list[Tensor | None]:
        """Run the second program. Raises CaptureError to be differentiated again."""
        if mode.grad:
            raise CaptureError(
                "backward(create_graph=True) through a compiled function: only its first "
                "derivative was captured. Take the gradients inside the compiled function, or "
                "call the function as it is, uncompiled"
            )
        held, saved = kept
        return self._run(cotangents, held, saved, args)

    def ready(self) -> Executable:
        """Return the second program, compiled when it is first asked for."""
        assert self.runtime is not None and self.graph is not None
        if self.executable is None:
            self.executable = self.compiler(self.runtime, self.key, self.graph)
        return self.executable

    def _run(
        self,
        cotangents: Sequence[Tensor | None],
        held: list[object],
        saved: list[object],
        args: list[Scalar],
    ) -> list[Tensor | None]:
        runtime = self.runtime
        assert runtime is not None
        executable = self.ready()
        given: list[Tensor] = []
        there: set[int] = set()
        for i, (shape, dtype) in enumerate(self.forms):
            g = cotangents[i] if i < len(cotangents) else None
            if g is None:
                g = primitive.fill(shape, 0, dtype, device_of(runtime))
            else:
                there.add(i)
            given.append(g if _alone(g) else primitive.copy(g))
        with runtime.lock:
            buffers = executable.run(self._inputs(given, held, saved), args)
        storages = []
        for buffer in buffers:
            node = Node.in_memory((buffer.elements,), buffer.dtype, buffer)
            storages.append(Storage(node, runtime))
        out: list[Tensor | None] = []
        for output, form in zip(self.outputs, self.shapes, strict=True):
            read = self.reads[output] if output is not None else there
            if output is None or form is None or (read and not there & read):
                # Nothing was asked of what it belongs to: None, and not zeros.
                out.append(None)
                continue
            shape, dtype = form
            strides, whole = contiguous_strides(shape), not dtype.is_complex
            out.append(Tensor._from_storage(storages[output], shape, strides, 0, whole, dtype))
        return out

    def _inputs(self, given: list[Tensor], held: list[Any], saved: list[Any]) -> list[Any]:
        """Return what the second program reads."""
        assert self.runtime is not None
        for data in held:
            if data is not None and data[0].version != data[1]:
                storage, version = data
                raise RuntimeError(
                    "one of the variables needed for gradient computation has been modified by an inplace operation: "
                    f"[torch.{storage.dtype.name} [{storage.elements}]] is at version {storage.version}; expected "
                    f"version {version} instead. A compiled function read or returned it: call backward() before it is "
                    "overwritten."
                )
        for g in given:
            g._storage.realize()
        self.runtime.realize()
        inputs = []
        # What follows is only compared: results that an uncompiled backward pass would read.
        sources = zip(self.sources, held[: len(self.sources)], strict=True)
        for (kind, number), data in sources:
            if kind == "cotangent":
                inputs.append(given[number]._storage.realize().buffer)
            elif kind == "saved":
                inputs.append(saved[number])
            else:
                inputs.append(data[0].realize().buffer)
        return inputs


def _alone(g: Tensor) -> bool:
    """Whether a tensor is the whole of its storage, in order."""
    return (g._pairs() if g.dtype.is_complex else g)._whole


def trace_backward(results: list[Tensor], arguments: dict[int, int]) -> Backward:
    """Record the backward pass of `results`, for all leaves that existed before the call. `arguments`
    are the numbers of the arguments among these, by id.
    """
    functions = _functions(results)
    variables = [fn.variable for fn in functions if isinstance(fn, AccumulateGrad)]
    variables = [v for v in variables if _existed(v)]
    cotangents: list[Node] = []
    given: list[Tensor] = []
    runtime = results[0]._storage.runtime
    for r in results:
        made = without_data(r._shape, r.dtype, runtime)
        cotangents.append(made._storage.node)
        given.append(made)
    hooks = [(v, v._hooks) for v in variables]
    # A hook that reads a value must not end the capture here, where nothing has a value yet.
    recording = runtime.recording
    assert recording is not None
    reading, recording.stop = recording.stop, None
    for v in variables:
        # The leaf's own hooks run when its gradient is there.
        v._hooks = None
    try:
        # The graph stays: the call may yet turn out to be one that no program can repeat.
        gradients = run_backward(
            results,
            given,
            retain_graph=True,
            create_graph=False,
            inputs=variables,
            accumulate=False,
        )
    finally:
        recording.stop = reading
        for v, h in hooks:
            v._hooks = h
    leaves: list[Tensor | int] = [arguments.get(id(v), v) for v in variables]
    return Backward(results, leaves, cotangents, gradients, functions)


def _existed(t: Tensor) -> bool:
    storage = t._storage
    return storage.node.kind == "buffer" or storage in storage.runtime.overwritten


def _with_copies(graph: Graph, count: int) -> Graph:
    """Give outputs from `count` on that are inputs memory of their own: the inputs are overwritten."""
    nodes, outputs = list(graph.nodes), list(graph.outputs)
    for i, output in enumerate(outputs[count:], count):
        if nodes[output.node].kind == "buffer":
            outputs[i] = Output(copied(nodes, output.node))
    return graph.with_nodes(nodes, tuple(outputs))
