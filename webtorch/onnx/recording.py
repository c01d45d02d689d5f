"""What a call of a function records, with the operations as the user wrote them. Floor 6.

The graph that a call records is made of few primitives; a file should read `LayerNormalization`,
not its sums and products. So an interpreter notes the calls of table entries while the function runs
(`webtorch.dispatch.call`): their arguments, and the value that each one gave. A value is a node of the
recorded graph seen with a shape and strides; since graphs are pure, what is written in place later
is another node, and a call can be looked up by its result. Nothing is computed.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Container, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from webtorch.dispatch.call import Args, Callee, Kwargs, Run, active, install, refuse_scripts
from webtorch.errors import CaptureError
from webtorch.ir.dtype import DType
from webtorch.ir.graph import Node
from webtorch.ir.view import contiguous_strides, numel
from webtorch.nn import Module
from webtorch.nn.module import CALL_OF_MODULE
from webtorch.ops.record import Elementwise
from webtorch.runtime.realize import Runtime, open_runtimes
from webtorch.runtime.recording import one_at_a_time
from webtorch.tensors.calls import NUMPY_NAMES
from webtorch.tensors.host import tracing
from webtorch.tensors.modes import mode
from webtorch.tensors.storage import Storage
from webtorch.tensors.tensor import Tensor


class Value(NamedTuple):
    """A node of the recorded graph, seen with a shape and strides."""

    node: Node
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int

    @property
    def dtype(self) -> DType:
        """The element type."""
        return self.node.dtype

    @property
    def whole(self) -> Value:
        """All of the node's value, in its own shape."""
        return value_of_node(self.node)

    @property
    def is_flat(self) -> bool:
        """Whether it is all of the node's value, perhaps in another shape."""
        return (
            self.offset == 0
            and numel(self.shape) == numel(self.node.shape)
            and self.strides == contiguous_strides(self.shape)
        )


@dataclass(eq=False)
class Call:
    """One call of an operation: its name, arguments with values in place of tensors, results."""

    number: int
    name: str
    args: dict[str, Any]
    # The path of the module that made the call, "layers.0.attention".
    scope: str
    # Its place among the calls that its caller made, after that of the caller: the same at any size,
    # as long as what the user wrote makes the same calls.
    place: tuple[int, ...] = ()
    results: tuple[Value, ...] = ()
    op: Elementwise | None = None
    made: int = 0


@dataclass
class Recording:
    """What one call of a function recorded."""

    inputs: list[Value]
    outputs: object
    # The calls that gave a value, inner ones before those that they are part of.
    calls: dict[Value, list[tuple[Call, int]]]
    runtime: Runtime
    # Every call, so that nodes live as long as the recording.
    all_calls: list[Call] = field(default_factory=list)
    _on_inputs: dict[int, bool] = field(default_factory=dict)
    _on_weights: dict[int, bool] = field(default_factory=dict)

    def depends(self, value: Value) -> bool:
        """Whether a value depends on the inputs, or is random."""
        if not self._on_inputs:
            self._on_inputs.update((id(v.node), True) for v in self.inputs)
        return self._reaches(value, self._on_inputs)

    def is_weight(self, value: Value, weights: Container[int]) -> bool:
        """Whether a value depends on one of the tensors of these nodes."""
        return self._reaches(value, self._on_weights, weights)

    @staticmethod
    def _reaches(value: Value, known: dict[int, bool], roots: Container[int] = ()) -> bool:
        stack = [value.node]
        while stack:
            node = stack[-1]
            if id(node) in known:
                stack.pop()
                continue
            waiting = [s for s in node.srcs if id(s) not in known]
            if waiting:
                stack.extend(waiting)
                continue
            known[id(node)] = (
                id(node) in roots or _is_random(node) or any(known[id(s)] for s in node.srcs)
            )
            stack.pop()
        return known[id(value.node)]


def _is_random(node: Node) -> bool:
    return node.kind == "map" and node.attrs[0].family == "random"


def value_of_node(node: Node) -> Value:
    """Return the value of a node; a node that is a view stands for the value it looks at."""
    if node.kind == "view":
        offset = node.attrs[1] if len(node.attrs) > 1 else node.scalars[0]
        return Value(node.srcs[0], node.shape, tuple(node.attrs[0]), int(offset))
    return Value(node, node.shape, contiguous_strides(node.shape), 0)


def value_of(x: Tensor) -> Value:
    """Return what a tensor shows now."""
    node = x._storage.node
    shape, strides = tuple(x._shape), tuple(x._strides)
    if node.kind == "view":
        # A storage whose value is a window of another: look through it where the tensor is all of it.
        inner = value_of_node(node)
        if x._offset == 0 and shape == node.shape and strides == contiguous_strides(shape):
            return inner
    # The stride of a dimension of one element says nothing.
    strides = tuple(
        c if s == 1 else st for s, st, c in zip(shape, strides, contiguous_strides(shape))
    )
    return Value(node, shape, strides, x._offset)


def _values(x: Any) -> Any:
    """Replace the tensors in arguments by their values."""
    if isinstance(x, Tensor):
        return value_of(x)
    if type(x) in (tuple, list):
        return type(x)(_values(y) for y in x)
    if isinstance(x, tuple):
        return tuple(_values(y) for y in x)
    if isinstance(x, dict):
        return {k: _values(v) for k, v in x.items()}
    return x


class Listener:
    """The interpreter that notes calls of operations, and the modules that they are made in."""

    def __init__(self) -> None:
        self.listening = threading.local()

    @property
    def on(self) -> bool:
        """Whether a function is being recorded in this thread."""
        return getattr(self.listening, "notes", None) is not None

    inside = watches = on

    @contextlib.contextmanager
    def listen(self, names: Mapping[int, str]) -> Iterator[_Notes]:
        """Note the calls that are made inside; `names`: paths of modules by id."""
        # It sees nothing of what was called before.
        refuse_scripts("a function is recorded for ONNX")
        before = getattr(self.listening, "notes", None)
        notes = self.listening.notes = _Notes(names)
        active.add(1)
        try:
            yield notes
        finally:
            active.add(-1)
            self.listening.notes = before

    def call(self, callee: Callee, run: Run, args: Args, kwargs: Kwargs) -> Any:
        """Call, and note what is called and what it gives."""
        notes: _Notes = self.listening.notes
        if callee is CALL_OF_MODULE:
            with notes.inside(args[0]):
                return run(args, kwargs)
        given = _given(callee, args, kwargs)
        if given is None:
            return run(args, kwargs)
        with notes.noting(callee, given) as call:
            result = run(args, kwargs)
        notes.note_results(call, result)
        return result


listener = Listener()
install("listen", listener)


def _given(callee: Callee, args: Args, kwargs: Kwargs) -> dict[str, object] | None:
    """Return the arguments of a call by their names; None where the calls that it makes are noted."""
    if isinstance(callee.op, Elementwise):
        count = len(callee.op.tensors)
        return {"op": callee.op, "operands": args[:count], "numbers": args[count:]}
    if callee.parameters is None or "out" in kwargs.keys() - callee.parameters.parameters.keys():
        return None
    names = callee.parameters.parameters
    kwargs = {k if k in names else NUMPY_NAMES.get(k, k): v for k, v in kwargs.items()}
    try:
        bound = callee.parameters.bind(*args, **kwargs)
    except TypeError:
        # The operation itself says what is wrong.
        return None
    bound.apply_defaults()
    return bound.arguments


class _Notes:
    """The calls that were made while a function ran, and the values that they gave."""

    def __init__(self, names: Mapping[int, str]) -> None:
        self.names = names
        # The calls that run, and the paths of the modules that they are made in.
        self.stack: list[Call] = [Call(-1, "", {}, "")]
        self.scopes: list[str] = [""]
        self.calls: list[Call] = []
        self.found: dict[Value, list[tuple[Call, int]]] = {}
        self.number = 0

    @contextlib.contextmanager
    def inside(self, module: Module) -> Iterator[None]:
        """Note calls as made by a module."""
        self.scopes.append(self.names.get(id(module), self.scopes[-1]))
        try:
            yield
        finally:
            self.scopes.pop()

    @contextlib.contextmanager
    def noting(self, callee: Callee, given: dict[str, object]) -> Iterator[Call]:
        """Note a call, and those that it makes as its parts."""
        name, op = callee.name, callee.op if isinstance(callee.op, Elementwise) else None
        args = {k: _values(v) for k, v in given.items()}
        caller = self.stack[-1]
        call = Call(self.number, "apply" if op else name, args, self.scopes[-1], op=op)
        call.place = (*caller.place, caller.made)
        caller.made += 1
        self.number += 1
        self.stack.append(call)
        try:
            yield call
        finally:
            self.stack.pop()

    def note_results(self, call: Call, result: object) -> None:
        """Note what a call gave."""
        results = result if isinstance(result, (tuple, list)) else (result,)
        if not results or not all(isinstance(r, Tensor) for r in results):
            return
        call.results = tuple(value_of(r) for r in results)
        taken = set(_inside(call.args))
        self.calls.append(call)
        for i, value in enumerate(call.results):
            # What a call hands through is no result of it; nor is what an earlier call, that
            # this one is no part of, gave already.
            known = self.found.setdefault(value, [])
            if value not in taken and (not known or call.number < known[-1][0].number):
                known.append((call, i))


def _inside(x: object) -> Iterator[Value]:
    if isinstance(x, Value):
        yield x
    elif isinstance(x, dict):
        for y in x.values():
            yield from _inside(y)
    elif isinstance(x, (tuple, list)):
        for y in x:
            yield from _inside(y)


def recorded() -> bool:
    """Return whether a function is being recorded now."""
    return listener.on


def record(
    function: Callable[..., object],
    args: tuple[object, ...],
    kwargs: Mapping[str, object],
    inputs: list[Tensor],
    names: Mapping[int, str],
) -> Recording:
    """Call `function(*args, **kwargs)` without computing anything, and return what it recorded.

    inputs: the tensors in the arguments; `names`: paths of modules by id. Whatever the call changes
    (running statistics, random state, schedules) gets its old value back.

    Raises CaptureError where the function reads a value of what it computes.
    """
    runtimes = {t._storage.runtime for t in inputs} or set(open_runtimes())
    gradient_mode = mode.grad, mode.inference
    with contextlib.ExitStack() as stack:
        stack.enter_context(one_at_a_time)
        tracing.begin()
        for runtime in open_runtimes():
            runtime.realize()
        for runtime in runtimes:
            runtime.record()
            stack.callback(runtime.stop_recording, keep=False)
        stack.callback(_undo, gradient_mode)
        mode.grad = False
        with listener.listen(names) as notes:
            result = function(*args, **kwargs)
        outputs = _values(result)
        given = [value_of(t) for t in inputs]
    del result
    return Recording(given, outputs, notes.found, runtimes.pop(), notes.calls)


def _undo(gradient_mode: tuple[bool, bool]) -> None:
    tracing.restore()
    tracing.end()
    mode.grad, mode.inference = gradient_mode


def contents(value: Value, runtime: Runtime) -> Tensor:
    """Compute a value that depends on no input."""
    if value.node.kind == "buffer" and value.node.buffer is None:
        raise CaptureError("the value of an input is not known while a function is recorded")
    storage = Storage(value.node, runtime)
    whole = value.is_flat
    return Tensor._from_storage(storage, value.shape, value.strides, value.offset, whole)
