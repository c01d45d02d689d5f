"""Runs a captured call again: on other arguments, with what it depends on as it is now. Floor 6."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from webtorch.capture.captured import ANY, KEPT, Capture, Gradient, Returned
from webtorch.capture.outside import rebuilt
from webtorch.dispatch.call import settle_scripts
from webtorch.ir.dtype import Scalar
from webtorch.ir.graph import Node
from webtorch.ir.view import is_contiguous, numel
from webtorch.runtime.watch import watch
from webtorch.tensors.host import HostScalar, bindings
from webtorch.tensors.storage import Storage
from webtorch.tensors.tape import GradFn, set_history
from webtorch.tensors.tensor import Tensor
from webtorch.tensors.views import as_view


def replay(
    captured: Capture, tensors: list[Tensor], given: list[Tensor] | None = None
) -> tuple[object, dict[str, Tensor]]:
    """Run a captured call on other arguments of the same signature. Does not wait for the device.

    `given` are the caller's own tensors, where `tensors` are copies or parts of them. Return what
    the call returns, and its named intermediate results.
    """
    settle_scripts("a compiled function is called", captured.changes_tensors)
    runtime = captured.runtime
    given = tensors if given is None else given
    # What is pending may read memory that the program overwrites.
    runtime.realize()
    moved: dict[Storage, Storage] = {}
    if captured.watched is not None:
        moved.update(captured.watched.moved)
    # A gradient is where its tensor has it now.
    moved |= {s: tensors[i]._storage for s, i in captured.arguments}
    gradients = [(g, owner) for g in captured.grads if (owner := g.owner(given)) is not None]
    for gradient, owner in gradients:
        if gradient.before is not None and owner._grad is not None:
            moved[gradient.before] = owner._grad._storage
    inputs = []
    for source, donated in zip(captured.sources, captured.donated):
        if isinstance(source, int):
            storage = tensors[source]._storage
        else:
            storage = moved.get(source, source) if moved else source
        node = storage.node
        if node.kind != "buffer" or (donated and node.shared and storage.shares(node)):
            node = storage.own() if donated else storage.realize()
        inputs.append(node.buffer)
    # A gradient that nobody else has takes the new values; memory of the others is free meanwhile.
    kept: dict[int, Storage] = {}
    replaced: list[tuple[Gradient, Tensor]] = []
    may_keep = captured.executable.reuses and captured.one_value_twice is False
    for gradient, owner in gradients:
        if gradient.after is KEPT:
            continue
        if may_keep and gradient.number is not None and owner._grad is not None:
            home = gradient.free(owner)
            if home is not None:
                kept[gradient.number] = home
                continue
        if gradient.form is ANY:
            owner._grad = None
        replaced.append((gradient, owner))
    args, read = read_arguments(captured)
    backward = captured.backward
    held = [] if backward is None else backward.hold(tensors, moved)
    if watch.listener is not None:
        watch.lines = [n.line for n in captured.graph.nodes]
    if kept:
        into = {number: home.node.buffer for number, home in kept.items()}
        buffers = captured.executable.run(inputs, args, into)
    else:
        buffers = captured.executable.run(inputs, args)
    fresh = settle(captured, buffers, moved, buffers[len(captured.targets) :], kept)
    rebuild = Rebuild(fresh, captured.targets, moved, given, read)
    if backward is not None:
        results = [rebuild(r) for r in backward.results]
        held += rebuild.versions(backward.read_outputs)
        backward.attach(results, given, held, buffers[len(captured.targets) :], args)
    for gradient, owner in replaced:
        owner._grad = rebuild(gradient.after)
    for place, value in captured.effects:
        place.set(rebuild(value))
        # What a module holds is looked at again only when modules have changed.
        bindings.modules += place.slow
    result = rebuild(captured.result)
    named = rebuild(captured.named)
    return result, named


def settle(
    captured: Capture,
    buffers: list[Any],
    moved: dict[Storage, Storage],
    kept_by_backward: Sequence[object] = (),
    kept: Mapping[int, Storage] = MappingProxyType({}),
) -> dict[int, Storage]:
    """Put what a program returned where it belongs: into memory that it overwrote (where `moved` has
    it now), into storages of an earlier replay that are `kept`, and into new storages, which are
    returned by the number of the output. Memory that the backward pass reads too is not overwritten.
    """
    fresh: dict[int, Storage] = {}
    for i, target, shape in captured.made:
        if target in kept:
            kept[target].version += 1
            continue
        buffer = buffers[i]
        node = Node.in_memory(shape, buffer.dtype, buffer)
        fresh[target] = Storage(node, captured.runtime)
        node.shared = any(b is buffer for b in kept_by_backward)
    for i, storage in captured.overwritten:
        if moved:
            storage = moved.get(storage, storage)
        # What was written in place is where it was.
        buffer = buffers[i]
        if storage.node.buffer is not buffer:
            storage.settle(storage.node, Node.in_memory(captured.shapes[i], buffer.dtype, buffer))
        if kept_by_backward and any(b is buffer for b in kept_by_backward):
            storage.node.shared = True
        storage.version += 1
    if captured.one_value_twice is None:
        values = [id(b) for b, _ in zip(buffers, captured.targets, strict=False)]
        captured.one_value_twice = len(set(values)) < len(values)
    if captured.one_value_twice:
        _share_values(captured, buffers, fresh, moved)
    return fresh


def _share_values(
    captured: Capture,
    buffers: list[object],
    fresh: dict[int, Storage],
    moved: dict[Storage, Storage],
) -> None:
    """Let storages that got one value hold it together, until one of them is written."""
    holders: dict[int, Storage] = {}
    for target, buffer in zip(captured.targets, buffers, strict=False):
        storage = fresh[target] if isinstance(target, int) else moved.get(target, target)
        first = holders.setdefault(id(buffer), storage)
        if first is not storage:
            node = first.share()
            storage.settle(storage.node, node)
            if node.kind != "buffer":
                captured.runtime.add(storage)


def read_arguments(captured: Capture) -> tuple[list[Scalar], dict[int, float]]:
    """Return the program's arguments of now, and the numbers that the call returns."""
    args = captured.args
    read: dict[int, float] = {}
    if captured.dynamic:
        args = list(args)
    for when, numbers in enumerate(captured.reads):
        for a, places in numbers:
            number = a.read()
            for i in places:
                args[i] = number
        for a in captured.numbers:
            if a.when == when:
                read[id(a)] = a.read()
        if when < len(captured.actions):
            captured.actions[when]()
    for generator, count in captured.draws:
        generator._offset = (generator._offset + count) % 2**64
    return args, read


class Rebuild:
    """Makes the tensors of a captured structure, each once."""

    def __init__(
        self,
        fresh: dict[int, Storage],
        targets: list[int | Storage],
        moved: dict[Storage, Storage],
        given: list[Tensor],
        read: dict[int, float],
    ) -> None:
        self.fresh, self.targets, self.moved = fresh, targets, moved
        self.given, self.read = given, read
        self.made: dict[int, Tensor] = {}

    def __call__(self, x: Any) -> Any:
        if isinstance(x, Returned):
            found = self.made.get(x.identity)
            if found is None:
                found = self.made[x.identity] = self._tensor(x)
            return found
        if isinstance(x, HostScalar):
            return self.read.get(id(x), float(x))
        return rebuilt(x, self)

    def versions(self, outputs: Iterable[int]) -> list[tuple[Storage, int]]:
        """Return the storages of outputs, and how often each has been written."""
        return [(storage, storage.version) for storage in map(self._output, outputs)]

    def _output(self, number: int) -> Storage:
        return self._moved(self.fresh.get(number) or self.targets[number])

    def _moved(self, storage: object) -> Storage:
        assert isinstance(storage, Storage)
        return self.moved.get(storage, storage)

    def _tensor(self, x: Returned) -> Tensor:
        if isinstance(x.origin, int):
            return self.given[x.origin]
        if x.origin is not None:
            value = x.origin.get()
            if isinstance(value, Tensor):
                return value
        if x.base is not None:
            base = self(x.base)
            if base.requires_grad and not x.differentiable:
                # It was made of what is detached.
                base = base.detach()
            name = x.history.removesuffix("Backward0") or "AsStrided"
            return as_view(base, x.shape, x.strides, x.offset, name=name)
        storage = self._moved(x.storage) if x.number is None else self._output(x.number)
        whole = (
            x.offset == 0
            and storage.elements == numel(x.shape)
            and is_contiguous(x.shape, x.strides)
        )
        whole = whole and x.dtype is storage.dtype
        out = Tensor._from_storage(storage, x.shape, x.strides, x.offset, whole, x.dtype)
        if x.history:
            # Its graph is used up: a backward from here raises as it does after an uncompiled call.
            set_history(out, GradFn(x.history, (), None))
        elif x.leaf:
            out._requires_grad = True
        return out
