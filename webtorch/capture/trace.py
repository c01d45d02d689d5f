"""Captures one call of a function as a program. Floor 5.

The function runs once more, lazily, on its real arguments; what it would have computed is frozen
instead. Data that it reads are
its arguments and whatever else was in memory (parameters, optimizer state); what it leaves behind
are its results and every
tensor that it overwrote or that outlives the call.
"""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from types import CellType
from typing import Any

from webtorch.errors import CaptureError
from webtorch.ir.dtype import Scalar
from webtorch.ir.graph import Graph, Node
from webtorch.ir.view import is_contiguous, numel
from webtorch.lower.compiler import compile_graph
from webtorch.ops.random import Generator, default_generator
from webtorch.runtime.backend import Executable
from webtorch.runtime.realize import Owner, Runtime, freeze, to_graph
from webtorch.tensors.device import device_of, resolve
from webtorch.tensors.host import HostScalar, RandomOffset, bindings, tracing
from webtorch.tensors.storage import Storage
from webtorch.tensors.tape import AccumulateGrad, gradient_edge
from webtorch.tensors.tensor import Tensor


@dataclass(slots=True)
class Capture:
    """A captured call: the program, where its inputs come from and where its outputs go."""

    runtime: Runtime
    graph: Graph
    executable: Executable
    # One per program input: the number of an argument tensor, or the storage that holds the data.
    sources: list[int | Storage]
    # Program inputs whose memory the program overwrites.
    donated: list[bool]
    # One per program output: the number of a returned tensor, or the storage that gets the value.
    targets: list[int | Storage]
    args: list[Scalar]
    # Program arguments that are read anew at each replay.
    dynamic: list[int]
    random_count: int
    # The returned structure with `Returned` in place of tensors.
    result: Any
    # The gradients that the call met and left behind.
    grads: list[Gradient] = field(default_factory=list)
    # Modules that were called, and what they were like.
    modules: list[tuple[weakref.ref[Any], Any]] = field(default_factory=list)
    # Argument tensors whose storage the program overwrites or returns.
    arguments: list[tuple[Storage, int]] = field(default_factory=list)
    epoch: int = 0

    def fits(self) -> bool:
        """Whether modules and gradients are as they were when this was captured."""
        if self.epoch != bindings.epoch:
            return False
        for reference, state in self.modules:
            module = reference()
            if module is not None and module._state_of_call() != state:
                return False
        return all(g.fits() for g in self.grads)


class NotReplayable(Exception):
    """The call did what a program cannot repeat; it has run as usual, with this result."""

    def __init__(self, result: Any) -> None:
        super().__init__("this call cannot be replayed")
        self.result = result


@dataclass(slots=True)
class Gradient:
    """The `.grad` of a tensor: what it was before a captured call and what it is after it."""

    tensor: weakref.ref[Tensor]
    # Shape and type of the gradient before the call, or None where there was none.
    form: Any
    # The storage of that gradient, while the program reads or overwrites it.
    before: Storage | None
    # The gradient after the call; KEPT where it is the tensor that it was before.
    after: Any

    def fits(self) -> bool:
        """Whether there is a gradient now if there was one when the call was captured."""
        tensor = self.tensor()
        if tensor is None:
            return True
        grad = tensor._grad
        if grad is None or self.form is None:
            return grad is None and self.form is None
        return grad._whole and (grad._shape, grad.dtype) == self.form


KEPT = object()


@dataclass(frozen=True, slots=True)
class Returned:
    """A returned tensor in a captured structure: output `number`, as a view, or a tensor that the
    call did not compute.
    """

    number: int | None
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int
    storage: Storage | None


def capture(
    function: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    tensors: list[Tensor],
    *,
    careful: bool = False,
    runtime: Runtime | None = None,
) -> Capture:
    """Capture `function(*args, **kwargs)`, whose tensor arguments are `tensors` (contiguous,
    computed).

    `runtime` is where the call computes; by default that is the arguments' device.
    With `careful`, raises NotReplayable where the call did what a program cannot repeat: it bound
    a name of the outside to a new tensor and read the old one, or returned something whose
    backward is still to come.
    """
    runtime = runtime or _one_runtime(function, tensors)
    runtime.realize()
    _part(runtime)
    existing = {s.node for s in Storage.live()} if careful else None
    argument_storages = {id(t._storage): i for i, t in enumerate(tensors)}
    generator = _generator(runtime)
    start = generator._offset
    runtime.capturing, tracing.active, tracing.random_start = True, True, start
    runtime.overwritten.clear()
    tracing.grads, tracing.modules = {}, {}
    owners: list[Owner] = []
    complete = False
    try:
        result = function(*args, **kwargs)
        random_count = generator._offset - start
        # Gradient functions of this call may still hold tensors in reference cycles; what is
        # garbage is no output.
        gc.collect()
        owners = runtime.live_owners()
        frozen = freeze(owners)
        overwritten = dict(runtime.overwritten)
        before = {id(g._storage): g for _, g in tracing.grads.values() if g is not None}
        homes = _homes(frozen.inputs, tensors, overwritten)
        for g in before.values():
            node = overwritten.get(g._storage, g._storage.node)
            homes[node] = g._storage
        if existing is not None and (
            any(n in existing and n not in homes for n in frozen.inputs)
            or any(t is a for t, _ in tracing.grads.values() for a in tensors)
            or _may_run_backward(result)
            or _kept_outside(result)
        ):
            complete = True
            raise NotReplayable(result)
        runtime.pending.clear()
        graph = to_graph(frozen)
        grads = [
            Gradient(
                weakref.ref(t),
                None if g is None else (g._shape, g.dtype),
                None if g is None else g._storage,
                KEPT if t._grad is g else t._grad,
            )
            for t, g in tracing.grads.values()
        ]
        modules = [(weakref.ref(m), state) for m, state in tracing.modules.items()]
    finally:
        if not complete:
            # Nothing was computed: overwritten storages and gradients have their values back,
            # and the generator its place.
            for storage, node in runtime.overwritten.items():
                storage.node, storage.donor = node, None
            for t, g in tracing.grads.values():
                t._grad = g
            generator._offset = start
        runtime.overwritten.clear()
        tracing.grads, tracing.modules = {}, {}
        runtime.capturing, tracing.active, tracing.random_start = False, False, None
    storages = [o for o in owners if isinstance(o, Storage)]
    sources: list[int | Storage] = []
    for node in frozen.inputs:
        home = homes.get(node)
        if home is None:
            # Data that only the graph holds, such as a constant made in the function.
            home = Storage.__new__(Storage)
            home.node, home.runtime, home.dtype, home.elements, home.version, home.donor = (
                node,
                runtime,
                node.dtype,
                0,
                0,
                None,
            )
        sources.append(argument_storages.get(id(home), home))
    donors = {d for d in frozen.donors if d is not None}
    numbers = {id(s): i for i, s in enumerate(storages)}
    result, returned = _describe(result, numbers)
    for gradient in grads:
        gradient.after, more = _describe(gradient.after, numbers)
        returned |= more
    targets: list[int | Storage] = []
    for i, (storage, donor) in enumerate(zip(storages, frozen.donors, strict=True)):
        new = i in returned and donor is None and storage not in overwritten
        targets.append(i if new else storage)
    used = {id(x) for x in (*sources, *targets)}
    for gradient in grads:
        if id(gradient.before) not in used:
            gradient.before = None
    used = {id(x) for x in targets} | {id(x) for x in _storages(result)}
    arguments = [(t._storage, i) for i, t in enumerate(tensors) if id(t._storage) in used]
    executable = runtime.backend.compile(compile_graph(graph, runtime.backend.limits))
    dynamic = [i for i, a in enumerate(frozen.args) if isinstance(a, (HostScalar, RandomOffset))]
    return Capture(
        runtime, graph, executable, sources, [n in donors for n in frozen.inputs], targets,
        frozen.args, dynamic, random_count, result, grads, modules,
        arguments, bindings.epoch
    )  # fmt: skip


def _part(runtime: Runtime) -> None:
    """Give storages that share a value one each: a program tells its inputs apart by their memory."""
    holders: dict[Node, Storage] = {}
    for storage in Storage.live():
        shared = storage.runtime is runtime and storage.node.shared
        if shared and holders.setdefault(storage.node, storage) is not storage:
            storage.own()


def _kept_outside(result: Any) -> bool:
    """Whether a returned tensor is also kept under a name outside: another call makes another
    tensor, and the name is to follow it.
    """
    containers: list[Any] = []
    tensors: list[Tensor] = []

    def visit(x: Any) -> None:
        if isinstance(x, Tensor):
            if (
                x._storage.node.kind != "buffer"
                and x._storage not in x._storage.runtime.overwritten
            ):
                tensors.append(x)
        elif isinstance(x, (dict, list, tuple)):
            containers.append(x)
            for v in x.values() if isinstance(x, dict) else x:
                visit(v)

    visit(result)
    inside = {id(x) for x in (*containers, tensors)}
    return any(
        isinstance(r, (dict, list, tuple, set, CellType)) and id(r) not in inside
        for r in gc.get_referrers(*tensors)
    )


def _may_run_backward(result: Any) -> bool:
    """Whether a returned tensor has a gradient graph of which nothing has been freed."""
    if isinstance(result, Tensor):
        edge = gradient_edge(result) if result.requires_grad else None
        if edge is None or isinstance(edge[0], AccumulateGrad):
            return False
        stack, seen = [edge[0]], set()
        while stack:
            fn = stack.pop()
            if fn in seen:
                continue
            seen.add(fn)
            if fn.rule is None and not isinstance(fn, AccumulateGrad):
                return False
            stack.extend(e[0] for e in fn.edges if e is not None)
        return True
    if isinstance(result, dict):
        return any(_may_run_backward(v) for v in result.values())
    if isinstance(result, (list, tuple)):
        return any(_may_run_backward(v) for v in result)
    return False


def _one_runtime(function: Callable[..., Any], tensors: list[Tensor]) -> Runtime:
    runtimes = {t._storage.runtime for t in tensors}
    if len(runtimes) > 1:
        raise CaptureError(
            f"compile: the arguments of {function} are on several devices; move them to one with "
            ".to(device)"
        )
    return runtimes.pop() if runtimes else resolve(None)


def _generator(runtime: Runtime) -> Generator:
    return default_generator(device_of(runtime))


def _homes(
    inputs: list[Node], tensors: list[Tensor], overwritten: dict[Any, Node]
) -> dict[Node, Storage]:
    """Find the storage that held each input node when the call began."""
    wanted = set(inputs)
    homes: dict[Node, Storage] = {}
    for storage in (*(t._storage for t in tensors), *Storage.live()):
        node = overwritten.get(storage, storage.node)
        if node in wanted:
            homes.setdefault(node, storage)
    return homes


def _describe(result: Any, numbers: dict[int, int]) -> tuple[Any, set[int]]:
    """Replace tensors in a returned structure by `Returned`; also return the outputs that are
    returned.
    """
    returned: set[int] = set()

    def visit(x: Any) -> Any:
        if isinstance(x, Tensor):
            number = numbers.get(id(x._storage))
            if number is not None:
                returned.add(number)
            return Returned(number, x._shape, x._strides, x._offset, x._storage)
        if isinstance(x, dict):
            return {k: visit(v) for k, v in x.items()}
        if isinstance(x, tuple) and hasattr(x, "_fields"):
            return type(x)(*(visit(v) for v in x))
        if isinstance(x, (list, tuple)):
            return type(x)(visit(v) for v in x)
        return x

    return visit(result), returned


def replay(captured: Capture, tensors: list[Tensor]) -> Any:
    """Run a captured call on other arguments of the same signature. Does not wait for the device."""
    runtime = captured.runtime
    # What is pending may read memory that the program overwrites.
    runtime.realize()
    # A gradient is where its tensor has it now.
    moved: dict[Any, Storage] = {s: tensors[i]._storage for s, i in captured.arguments}
    for gradient in captured.grads:
        owner = gradient.tensor()
        if gradient.before is not None and owner is not None and owner._grad is not None:
            moved[gradient.before] = owner._grad._storage
    inputs = []
    for source, donated in zip(captured.sources, captured.donated, strict=True):
        storage = tensors[source]._storage if isinstance(source, int) else moved.get(source, source)
        node = storage.own() if donated else storage.realize()
        inputs.append(node.buffer)
    args = captured.args
    if captured.dynamic:
        args = list(args)
        generator = _generator(runtime)
        for i in captured.dynamic:
            a = args[i]
            args[i] = a.read() if isinstance(a, HostScalar) else a.read(generator._offset)  # type: ignore[union-attr]
        generator._offset += captured.random_count
    buffers = captured.executable.run(inputs, args)
    fresh: dict[int, Storage] = {}
    for target, buffer in zip(captured.targets, buffers, strict=True):
        node = Node("buffer", (), (), (), (buffer.elements,), buffer.dtype)
        node.buffer = buffer
        if isinstance(target, int):
            fresh[target] = Storage(node, runtime)
        else:
            target = moved.get(target, target)
            target.settle(target.node, node)
            target.version += 1
    for gradient in captured.grads:
        owner = gradient.tensor()
        if owner is not None and gradient.after is not KEPT:
            owner._grad = _rebuild(gradient.after, fresh, captured.targets, moved)
    return _rebuild(captured.result, fresh, captured.targets, moved)


def _storages(x: Any) -> list[Storage | None]:
    if isinstance(x, Returned):
        return [x.storage]
    if isinstance(x, dict):
        return [s for v in x.values() for s in _storages(v)]
    if isinstance(x, (list, tuple)):
        return [s for v in x for s in _storages(v)]
    return []


def _rebuild(
    x: Any,
    fresh: dict[int, Storage],
    targets: list[int | Storage],
    moved: dict[Any, Storage],
) -> Any:
    if isinstance(x, Returned):
        storage = x.storage
        if x.number is not None:
            storage = fresh.get(x.number) or targets[x.number]  # type: ignore[assignment]
        assert isinstance(storage, Storage)
        storage = moved.get(storage, storage)
        whole = (
            x.offset == 0
            and storage.elements == numel(x.shape)
            and is_contiguous(x.shape, x.strides)
        )
        return Tensor._from_storage(storage, x.shape, x.strides, x.offset, whole)
    if isinstance(x, dict):
        return {k: _rebuild(v, fresh, targets, moved) for k, v in x.items()}
    if isinstance(x, tuple) and hasattr(x, "_fields"):
        return type(x)(*(_rebuild(v, fresh, targets, moved) for v in x))
    if isinstance(x, (list, tuple)):
        return type(x)(_rebuild(v, fresh, targets, moved) for v in x)
    return x
