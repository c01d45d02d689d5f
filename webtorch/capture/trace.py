"""Captures one call of a function as a program. Floor 5.

The function runs once more, lazily, on its real arguments; what it would have computed is frozen
instead. Data that it reads are
its arguments and whatever else was in memory (parameters, optimizer state); what it leaves behind
are its results and every
tensor that it overwrote or that outlives the call.
"""

from __future__ import annotations

import gc
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from webtorch.errors import CaptureError
from webtorch.ir.dtype import Scalar
from webtorch.ir.graph import Graph, Node
from webtorch.ir.view import is_contiguous, numel
from webtorch.lower.compiler import compile_graph
from webtorch.ops.primitive import IDENTITY
from webtorch.ops.random import Generator, default_generator
from webtorch.runtime.backend import Executable
from webtorch.runtime.realize import Owner, Runtime, freeze, to_graph
from webtorch.tensors.device import device_of, resolve
from webtorch.tensors.host import HostScalar, RandomOffset, tracing
from webtorch.tensors.storage import Storage
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
) -> Capture:
    """Capture `function(*args, **kwargs)`, whose tensor arguments are `tensors` (contiguous,
    computed).
    """
    runtime = _one_runtime(function, tensors)
    runtime.realize()
    argument_storages = {id(t._storage): i for i, t in enumerate(tensors)}
    generator = _generator(runtime)
    start = generator._offset
    runtime.capturing, tracing.active, tracing.random_start = True, True, start
    owners: list[Owner] = []
    try:
        result = function(*args, **kwargs)
        random_count = generator._offset - start
        # Gradient functions of this call may still hold tensors in reference cycles; what is
        # garbage is no output.
        gc.collect()
        owners = runtime.live_owners()
        runtime.pending.clear()
        frozen = freeze(owners)
        graph = to_graph(frozen)
    finally:
        # Nothing was computed: overwritten storages have their values back, and the generator its
        # place.
        _undo(runtime.live_owners() or owners)
        generator._offset = start
        runtime.capturing, tracing.active, tracing.random_start = False, False, None
    storages = [o for o in owners if isinstance(o, Storage)]
    homes = _homes(frozen.inputs, tensors)
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
    targets: list[int | Storage] = []
    for i, (storage, donor) in enumerate(zip(storages, frozen.donors, strict=True)):
        targets.append(i if i in returned and donor is None and storage.version == 0 else storage)
    executable = runtime.backend.compile(compile_graph(graph, runtime.backend.limits))
    dynamic = [i for i, a in enumerate(frozen.args) if isinstance(a, (HostScalar, RandomOffset))]
    return Capture(
        runtime, graph, executable, sources, [n in donors for n in frozen.inputs], targets,
        frozen.args, dynamic, random_count, result
    )  # fmt: skip


def _one_runtime(function: Callable[..., Any], tensors: list[Tensor]) -> Runtime:
    runtimes = {t._storage.runtime for t in tensors}
    if len(runtimes) > 1:
        raise CaptureError(
            f"compile: the arguments of {function} are on several devices; move them to one with "
            ".to(device)"
        )
    return runtimes.pop() if runtimes else resolve(None)


def _undo(owners: list[Owner]) -> None:
    """Give overwritten storages their old values back."""
    for owner in owners:
        if owner.donor is not None:
            owner.node, owner.donor = owner.donor, None


def _generator(runtime: Runtime) -> Generator:
    return default_generator(device_of(runtime))


def _homes(inputs: list[Node], tensors: list[Tensor]) -> dict[Node, Storage]:
    """Find the storage that holds each input node."""
    wanted = set(inputs)
    homes = {t._storage.node: t._storage for t in tensors if t._storage.node in wanted}
    for storage in Storage.live():
        node = storage.node if storage.node.kind == "buffer" else storage.donor
        if node is not None and node in wanted:
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
    inputs = []
    for source, donated in zip(captured.sources, captured.donated, strict=True):
        storage = tensors[source]._storage if isinstance(source, int) else source
        node = storage.realize()
        if donated and node.shared:
            node = _own_copy(storage)
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
            target.node, target.donor = node, None
            target.version += 1
    return _rebuild(captured.result, fresh, captured.targets)


def _own_copy(storage: Storage) -> Node:
    """Copy a value that another storage shares, so that its memory may be overwritten."""
    node = storage.node
    storage.node = Node(
        "map", (node,), (IDENTITY, "t", node.dtype.compute), (), node.shape, node.dtype
    )
    storage.donor = None
    storage.runtime.add(storage)
    return storage.realize()


def _rebuild(x: Any, fresh: dict[int, Storage], targets: list[int | Storage]) -> Any:
    if isinstance(x, Returned):
        storage = x.storage
        if x.number is not None:
            storage = fresh.get(x.number) or targets[x.number]  # type: ignore[assignment]
        assert isinstance(storage, Storage)
        whole = (
            x.offset == 0
            and storage.elements == numel(x.shape)
            and is_contiguous(x.shape, x.strides)
        )
        return Tensor._from_storage(storage, x.shape, x.strides, x.offset, whole)
    if isinstance(x, dict):
        return {k: _rebuild(v, fresh, targets) for k, v in x.items()}
    if isinstance(x, tuple) and hasattr(x, "_fields"):
        return type(x)(*(_rebuild(v, fresh, targets) for v in x))
    if isinstance(x, (list, tuple)):
        return type(x)(_rebuild(v, fresh, targets) for v in x)
    return x
