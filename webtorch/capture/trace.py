"""Captures one call of a function as a program. Floor 5.

The function runs once, lazily, on its real arguments; what it would have computed is frozen
instead, and the host gets its state back. Data that the call reads are its arguments and whatever
else was in memory (parameters, optimizer state); what it leaves behind are its results and every
tensor that it overwrote or that outlives the call. What it reads by name from outside is watched
(`outside`), and what its caller may differentiate is a second program (`backward`).
"""

from __future__ import annotations

import contextlib
import gc
import linecache
import sys
import traceback
import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from types import CoroutineType, FrameType, GeneratorType, MappingProxyType
from typing import Any

from webtorch.capture.backward import (
    Backward,
    is_live,
    leaf_of,
    tensors_in,
    trace_backward,
    whole_graph,
)
from webtorch.capture.outside import (
    MISSING,
    Length,
    Option,
    Place,
    Survey,
    attributes,
    holds_tensor,
    is_code_of_user,
    is_record,
    new_items,
    only_counts,
    only_grows,
    rebuilt,
    same,
)
from webtorch.errors import CaptureError
from webtorch.functions.random import default_generator
from webtorch.ir.dtype import Scalar
from webtorch.ir.graph import Graph, Node
from webtorch.ir.lines import is_internal
from webtorch.ir.view import is_contiguous, numel
from webtorch.nn import Module
from webtorch.optim import Optimizer
from webtorch.runtime.backend import Executable
from webtorch.runtime.realize import Frozen, Runtime, freeze, open_runtimes, to_graph
from webtorch.runtime.recording import Owner, Recording, one_at_a_time
from webtorch.tensors.device import device_of, resolve
from webtorch.tensors.host import (
    Decision,
    HostScalar,
    RandomOffset,
    RandomSeed,
    RunAsUsual,
    TracedOptions,
    bindings,
    reads,
    tracing,
)
from webtorch.tensors.primitives import as_view
from webtorch.tensors.storage import Storage
from webtorch.tensors.tape import AccumulateGrad, GradFn, mark, mode, set_history
from webtorch.tensors.tensor import Tensor

# How many seconds a call waits for another thread's capture before it runs as usual.
_PATIENCE = 5.0

# What makes a graph's program: frozen graph, graph -> executable.
Compiler = Callable[[Runtime, Any, Graph], Executable]


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
    # One per program output: the shape that its memory is seen in.
    shapes: list[tuple[int, ...]]
    args: list[Scalar]
    # Program arguments that are read anew at each replay.
    dynamic: list[int]
    # Generators that the call draws from, and how many counters it uses up.
    draws: list[tuple[Any, int]]
    # The returned structure with `Returned` in place of tensors.
    result: Any
    # The gradients that the call met and left behind.
    grads: list[Gradient] = field(default_factory=list)
    # Argument tensors whose storage the program overwrites or returns.
    arguments: list[tuple[Storage, int]] = field(default_factory=list)
    watched: Watched | None = None
    # What the call did on the host.
    actions: list[Callable[[], object]] = field(default_factory=list)
    # Places outside that the call gave another value, and that value.
    effects: list[tuple[Place, Any]] = field(default_factory=list)
    # What numbers of the host decided.
    decisions: list[Decision] = field(default_factory=list)
    # Named intermediate results.
    named: dict[str, Any] = field(default_factory=dict)
    # The names of the argument tensors.
    names: list[str] = field(default_factory=list)
    # What makes captures for other sizes of marked dimensions.
    template: Any = None
    backward: Backward | None = None
    epoch: int = 0
    # Whether several targets get one value, known from the first run on.
    one_value_twice: bool | None = None
    # Numbers that are read anew, each with the arguments that it is; by how many actions come before.
    reads: list[list[tuple[Any, list[int]]]] = field(init=False)
    # Numbers of the host that the call returns.
    numbers: list[HostScalar] = field(init=False)
    # Gradients that have to be what they were; the others were not looked at.
    looked_at: list[Gradient] = field(init=False)
    # What becomes of the program's outputs, by their number: storages that it overwrites, and new
    # ones with the shape of their memory.
    overwritten: list[tuple[int, Storage]] = field(init=False)
    made: list[tuple[int, int, tuple[int, ...]]] = field(init=False)

    def __post_init__(self) -> None:
        """Find what every replay does alike."""
        self.numbers = [x for x in _leaves(self.result) if isinstance(x, HostScalar)]
        self.looked_at = [g for g in self.grads if g.form is not ANY]
        each = list(enumerate(zip(self.targets, self.shapes)))
        self.overwritten = [(i, t) for i, (t, _) in each if not isinstance(t, int)]
        self.made = [(i, t, shape) for i, (t, shape) in each if isinstance(t, int)]
        effects, after = [v for _, v in self.effects], [g.after for g in self.grads]
        uses = Counter(r.number for r in _returned([self.result, self.named, effects, after]))
        for gradient in self.grads:
            gradient.find_slot(self, uses)
        found: dict[Any, tuple[Any, list[int]]] = {}
        for i in self.dynamic:
            a: Any = self.args[i]
            if isinstance(a, HostScalar):
                key: Any = (id(a.source), a.key, a.when)
            else:
                key = (type(a), id(a.generator), a.word, getattr(a, "relative", 0))
            found.setdefault(key, (a, []))[1].append(i)
        self.reads = [[] for _ in range(len(self.actions) + 1)]
        for a, places in found.values():
            self.reads[getattr(a, "when", 0)].append((a, places))

    @property
    def random_count(self) -> int:
        """How many counters of the device's default generator the call uses up."""
        generator = default_generator(device_of(self.runtime))
        return sum(count for g, count in self.draws if g is generator)

    def input_names(self) -> dict[int, str]:
        """Return the names of the program's inputs, by their number, as far as they have any."""
        known = self.watched.names() if self.watched is not None else {}
        named = ((i, self._source_name(s, known)) for i, s in enumerate(self.sources))
        return {i: name for i, name in named if name}

    def backward_names(self) -> dict[int, str]:
        """Return the names of the inputs of the backward pass, by their number."""
        assert self.backward is not None
        known = self.watched.names() if self.watched is not None else {}
        found: dict[int, str] = {}
        for i, (kind, source) in enumerate(self.backward.sources):
            if kind == "cotangent":
                found[i] = f"gradient of result {source}"
            else:
                saved = f"saved value {source}"
                found[i] = saved if kind == "saved" else self._source_name(source, known)
        return found

    def _source_name(self, source: int | Storage, known: Mapping[int, str]) -> str:
        """Return the name of an input; "" where it has none."""
        if isinstance(source, int):
            return self.names[source] if source < len(self.names) else f"argument {source}"
        return "constant" if is_constant(source) else known.get(id(source), "")

    def fits(self) -> bool:
        """Whether what the call depends on outside its arguments is as it was."""
        if self.watched is not None and not self.watched.holds():
            return False
        if not all(d.holds() for d in self.decisions):
            return False
        return all(g.fits() for g in self.looked_at)


class NotReplayable(Exception):
    """The call did what a program cannot repeat; it has run as usual, with this result."""

    def __init__(self, result: Any, reason: str) -> None:
        super().__init__(reason)
        self.result = result
        self.reason = reason


@dataclass(slots=True)
class Gradient:
    """The `.grad` of a tensor: what it was before a captured call and what it is after it."""

    # The tensor, or the number of an argument.
    tensor: weakref.ref[Tensor] | int
    # Shape and type of the gradient before the call, None where there was none, ANY where the call
    # did not look.
    form: Any
    # The storage of that gradient, while the program reads or overwrites it.
    before: Storage | None
    # The gradient after the call; KEPT where it is the tensor that it was before.
    after: Any
    # Where the gradient is an output of its own, of which nothing else is made: the number of the
    # output, and what a tensor is like that has just been made of it.
    number: int | None = None
    fresh: tuple[Any, ...] = ()

    def find_slot(self, captured: Capture, uses: Mapping[int | None, int]) -> None:
        """Find out whether the tensor that an earlier replay made can take the new gradient. `uses`
        counts the tensors that are made of each output.
        """
        x, self.number = self.after, None
        if self.form is not ANY or not isinstance(x, Returned) or captured.backward is not None:
            return
        if x.origin is not None or x.number is None or x.history or x.leaf or x.dtype.is_complex:
            return
        elements = numel(captured.shapes[x.number])
        if x.offset or elements != numel(x.shape) or not is_contiguous(x.shape, x.strides):
            return
        if captured.targets[x.number] != x.number or uses[x.number] != 1:
            return
        self.number = x.number
        self.fresh = (
            x.shape, x.strides, 0, True, x.dtype, False, None, None, None, None, False, 0, 0,
        )  # fmt: skip

    def free(self, owner: Tensor) -> Storage | None:
        """Return the storage of the gradient that `owner` has now if nobody else has it, or its
        memory, and it is as a replay leaves it.
        """
        grad = owner._grad
        if type(grad) is not Tensor or grad._grad is not None or grad._base is not None:
            return None
        if _STATE(grad) != self.fresh or grad._inference is not mode.inference or grad.__dict__:
            return None
        storage = grad._storage
        node = storage.node
        if grad._counter is not storage or node.kind != "buffer" or node.shared or node.host:
            return None
        del grad, storage, node
        return owner._grad._storage if _references(owner) == _ALONE else None  # type: ignore[union-attr]

    def owner(self, arguments: list[Tensor]) -> Tensor | None:
        """Return the tensor whose gradient this is."""
        return arguments[self.tensor] if isinstance(self.tensor, int) else self.tensor()

    def fits(self, arguments: list[Tensor] | None = None) -> bool:
        """Whether there is a gradient now if there was one when the call was captured."""
        if self.form is ANY or (isinstance(self.tensor, int) and arguments is None):
            return True
        tensor = self.owner(arguments or [])
        if tensor is None:
            return True
        grad = tensor._grad
        if grad is None or self.form is None:
            return grad is None and self.form is None
        return grad._whole and (grad._shape, grad.dtype) == self.form


KEPT = object()
ANY = object()
_STATE = attrgetter(
    "_shape", "_strides", "_offset", "_whole", "dtype", "_requires_grad", "_grad_fn", "_hooks",
    "_post_accumulate", "_accumulate", "_retains", "_history", "_output_nr",
)  # fmt: skip


def _references(owner: Any) -> tuple[int, ...]:
    """Count the references to the gradient of a tensor, its storage, its value and its memory."""
    count = sys.getrefcount
    grad = owner._grad
    storage = grad._storage
    node = storage.node
    buffer = node.buffer
    return count(grad), count(storage), count(node), count(buffer)


class _Alone:
    """Stands for a gradient that nobody else has, to see what `_references` counts of it here."""

    __slots__ = ("_counter", "_grad", "_storage", "buffer", "node")
    _counter: _Alone
    _grad: _Alone
    _storage: _Alone
    buffer: _Alone
    node: _Alone


def _alone() -> tuple[int, ...] | None:
    """Return `_references` of a gradient that nobody else has; None where references are not counted."""
    counted = getattr(sys, "_is_gil_enabled", lambda: True)() and hasattr(sys, "getrefcount")
    if not counted or sys.implementation.name != "cpython":
        return None
    owner, grad, storage, node = _Alone(), _Alone(), _Alone(), _Alone()
    owner._grad, grad._storage, grad._counter, storage.node = grad, storage, storage, node
    node.buffer = _Alone()
    del grad, storage, node
    return _references(owner)


_ALONE = _alone()


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
    # The number of the argument that it is, or the tensor or the place of a tensor of outside.
    origin: Any = None
    # Equal for one tensor that is returned twice.
    identity: int = 0
    dtype: Any = None
    # The name of the gradient function whose graph the call used up; "" where there is none.
    history: str = ""
    # Whether it is a new leaf that takes gradients.
    leaf: bool = False
    # The tensor that it is a view of, where a write to one must reach the other's gradients.
    base: Returned | None = None
    # Whether it takes gradients.
    differentiable: bool = False


class Watched:
    """What a captured call depends on outside: checked before each replay."""

    def __init__(self, survey: Survey, dropped: set[int]) -> None:
        places = [p for p in survey.quick if id(p) not in dropped]
        self.tensors = [
            TensorPlace(p) for p in (*places, *survey.slow) if isinstance(p.before, Tensor)
        ]
        quick = [p for p in places if not isinstance(p.before, Tensor)] + survey.states
        self.slow = [
            p for p in survey.slow if id(p) not in dropped and not isinstance(p.before, Tensor)
        ]
        lengths: list[Length] = [n for n in survey.lengths if id(n) not in dropped]
        for optimizer in survey.optimizers:
            lengths.append(Length(optimizer.state, "optimizer.state"))
            shown = {id(t.now): t.place.name for t in reversed(self.tensors)}
            for param, state in optimizer.state.items():
                for key, value in state.items():
                    if isinstance(value, Tensor):
                        name = f"{key} of {shown.get(id(param), 'a parameter')}"
                        self.tensors.append(TensorPlace(Place(state, key, "item", name)))
        self.calculates = survey.calculates
        self.checks: list[Place | Option | Length] = [*quick, *survey.options, *lengths]
        self.quick_tensors = [
            t for t in self.tensors if id(t.place) in {id(p) for p in survey.quick}
        ]
        self.modules: list[tuple[weakref.ref[Any], Any]] = []
        self.epochs = (-1, -1)
        # Storages of the capture -> where their tensors have their data now.
        self.moved: dict[Any, Storage] = {}
        self.held = True
        # Why it did not hold: the name of what has changed, and a sentence.
        self.changed = self.difference = ""

    def holds(self) -> bool:
        """Whether all is as it was; finds out where the tensors are now."""
        for check in self.checks:
            if not check.holds():
                return self._fails(check.name, check.change())
        epochs = (bindings.epoch, bindings.modules)
        if epochs == self.epochs and all(t.place.get() is t.now for t in self.quick_tensors):
            return self.held
        self.held = self._find()
        self.epochs = epochs
        return self.held

    def _fails(self, name: str, difference: str) -> bool:
        self.changed, self.difference = name, difference
        return False

    def _find(self) -> bool:
        for place in self.slow:
            if not place.holds():
                return self._fails(place.name, place.change())
        for reference, state in self.modules:
            module = reference()
            if module is not None:
                now = module._state_of_call()[: len(state)]
                if now != state:
                    kind = type(module).__name__
                    return self._fails(kind, f"a {kind} {_module_change(state, now)}")
        self.moved = {}
        back: dict[Storage, Storage] = {}
        for t in self.tensors:
            name = t.place.name
            if not t.find():
                return self._fails(name, t.change())
            now = t.now._storage
            if self.moved.setdefault(t.storage, now) is not now:
                # Two names of one tensor have become names of two.
                return self._fails(
                    name, f"`{name}` shared its memory with another name, and does not"
                )
            if back.setdefault(now, t.storage) is not t.storage:
                return self._fails(
                    name, f"`{name}` shares its memory with another name, and did not"
                )
        self.moved = {a: b for a, b in self.moved.items() if a is not b}
        return True

    def names(self) -> dict[int, str]:
        """Return the names of the storages that the capture met, by id."""
        found = {id(t.storage): t.place.name for t in reversed(self.tensors)}
        return found

    def storages(self) -> set[int]:
        """Return the ids of the storages of all watched tensors, as they are now."""
        return {id(t.now._storage) for t in self.tensors}


def _module_change(before: tuple[Any, ...], now: tuple[Any, ...]) -> str:
    """Say how the state of a module differs, which begins with its mode."""
    if before[0] != now[0]:
        modes = {True: "training", False: "evaluation"}
        return f"was in {modes[before[0]]} mode and is in {modes[now[0]]} mode"
    return "has other parameters, or other hooks"


# The names of what `TensorPlace._form` compares.
_FORM = (
    "class", "shape", "strides", "storage_offset", "dtype", "number of elements in memory", "device", "requires_grad",
    "being a leaf", "hooks",
)  # fmt: skip


class TensorPlace:
    """A place that holds a tensor: another one of the same form may come in its stead."""

    __slots__ = ("form", "now", "place", "storage")

    def __init__(self, place: Place) -> None:
        self.place = place
        self.now: Tensor = place.before
        self.storage: Storage = self.now._storage
        self.form = self._form(self.now)

    @staticmethod
    def _form(t: Tensor) -> Any:
        return (
            type(t),
            t._shape,
            t._strides,
            t._offset,
            t.dtype,
            t._storage.elements,
            t._storage.runtime,
            t._requires_grad,
            t._grad_fn is None,
            (tuple(t._hooks or ()), tuple(t._post_accumulate or ())),
        )

    def change(self) -> str:
        """Say what keeps a replay from taking what is there now."""
        value, name = self.place.get(), self.place.name
        if not isinstance(value, Tensor):
            return self.place.change()
        for what, before, now in zip(_FORM, self.form, self._form(value), strict=True):
            if before != now:
                if isinstance(before, Runtime):
                    before, now = before.kind, now.kind
                return f"`{name}` changed {what} from {before} to {now}"
        return f"`{name}` is another tensor, and gradients belong to the tensor"

    def find(self) -> bool:
        """Look what is there now; whether a replay can take it."""
        value = self.place.get()
        if not isinstance(value, Tensor) or self._form(value) != self.form:
            return False
        if value is not self.place.before and (value._requires_grad or self.form[-3]):
            # Gradients belong to the tensor, not to its place.
            return False
        self.now = value
        return True


def capture(
    function: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    tensors: list[Tensor],
    *,
    careful: bool = False,
    runtime: Runtime | None = None,
    compiler: Compiler | None = None,
    wanted: bool | frozenset[str] = False,
    objects: Sequence[Any] = (),
    reading: Callable[[], object] | None = None,
) -> Capture:
    """Capture `function(*args, **kwargs)`, whose tensor arguments are `tensors` (computed).

    `runtime` is where the call computes; by default that is the arguments' device. `compiler` turns
    its graph into a program; `wanted` are names of intermediate results to keep. With `careful`,
    what the function reads outside its arguments, and in `objects`, is watched, and NotReplayable is
    raised where the call did what a program cannot repeat: it stands, if its arguments have values, and
    is undone if not. Where the function reads a value of what it computes, CaptureError is raised; with
    `reading`, where reads are allowed, that is called, the call goes on as usual from there, and
    NotReplayable is raised at its end.
    """
    rest = careful, runtime, compiler, wanted, reading
    if not one_at_a_time.acquire(timeout=_PATIENCE if careful else -1):
        # Another thread captures, and may be waiting for this one.
        raise RunAsUsual
    try:
        return _Capturing(function, args, kwargs, tensors, objects, *rest).run()
    except _Unwatched as met:
        # What does not go by a name that the survey follows is looked at the second time.
        more = [*objects, *met.objects]
        return _Capturing(function, args, kwargs, tensors, more, *rest).run()
    finally:
        one_at_a_time.release()


class _Unwatched(Exception):
    """The call stepped optimizers that the survey did not reach."""

    def __init__(self, objects: list[Optimizer]) -> None:
        super().__init__()
        self.objects = objects


class _Capturing:
    """One call on its way to a program: it is recorded, what it left is looked through, the host gets its
    state back, and what was recorded becomes a `Capture`.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        tensors: list[Tensor],
        objects: Sequence[Any],
        careful: bool,
        runtime: Runtime | None,
        compiler: Compiler | None,
        wanted: bool | frozenset[str],
        reading: Callable[[], object] | None,
    ) -> None:
        self.function, self.args, self.kwargs, self.tensors = function, args, kwargs, tensors
        self.careful, self.wanted, self.reading = careful, wanted, reading
        self.compiler = compiler or compile_cached
        self.survey = Survey(function, objects) if careful else None
        self.runtime = runtime or _one_runtime(function, tensors, self.survey)
        self.others = [r for r in open_runtimes() if r is not self.runtime]
        # What the call changed outside, to be repeated, and what to watch no more.
        self.effects: list[tuple[Place, Any]] = []
        self.dropped: set[int] = set()
        # Whether what the call did stands, and whether a program can repeat it.
        self.complete = self.replayable = False
        # Why the call goes on as usual, once it does.
        self.usual: str | None = None
        self.backward: Backward | None = None
        self.aliases = _Aliases()
        # What is differentiated outside, and which of that are arguments that the call writes.
        self.live: list[Tensor] = []
        self.written: list[Tensor] = []
        self.named: dict[str, Any] = {}
        self.grads: list[Gradient] = []

    def run(self) -> Capture:
        """Capture the call; raises what `capture` does."""
        recording = self._begin()
        try:
            result = self._call()
            frozen, graph, owners = self._look_through(result, recording)
            self._note_host(frozen)
        finally:
            recording.stop = None
            self._end()
        return self._captured(result, frozen, graph, owners)

    # ---- before the call

    def _begin(self) -> Recording:
        """Compute what is pending, and start recording."""
        runtime, others, survey, tensors = self.runtime, self.others, self.survey, self.tensors
        for r in (runtime, *others):
            r.realize()
        _part(runtime)
        self.existing = {s.node for s in Storage.live(runtime)} if self.careful else set()
        self.older: weakref.WeakSet[Storage] = weakref.WeakSet(Storage.live(runtime))
        tracing.begin()
        tracing.wanted = self.wanted
        if survey is not None:
            if self.wanted:
                tracing.module_names = survey.module_names()
            groups = [group for o in survey.optimizers for group in o.param_groups]
            tracing.options = TracedOptions(groups)
            tracing.undo.append(tracing.options.restore)
        try:
            recording = runtime.record()
            for r in others:
                r.record(elsewhere=True)
        except BaseException:
            for r in (runtime, *others):
                r.stop_recording(keep=False)
            tracing.end()
            raise
        # Arguments of other sizes have no values, and what such a call did is undone.
        self.computes = all(t._storage.node.buffer is not None for t in tensors)
        self.gradient_mode = mode.grad, mode.inference
        # Operations from here on are the call's.
        self.beginning = tracing.first = mark()
        # Where gradients of the arguments end: what is written in place gets another history.
        self.ends = [leaf_of(t) for t in tensors]
        recording.stop = self._go_on if self.reading is not None else None
        return recording

    # ---- the call

    def _call(self) -> Any:
        """Run the function, recording."""
        # Gradient functions of this call may still hold tensors in reference cycles; what is
        # garbage is no output.
        with _garbage_collected():
            if tracing.options is not None:
                tracing.options.show()
            result = _called(self.function, self.args, self.kwargs)
            if self.usual is not None:
                raise NotReplayable(result, self.usual)
            if tracing.options is not None:
                tracing.options.hide()
        if self.survey is not None:
            reached = set(map(id, self.survey.optimizers))
            unwatched = [o for o in tracing.optimizers.values() if id(o) not in reached]
            if unwatched:
                raise _Unwatched(unwatched)
        return result

    def _go_on(self) -> None:
        """Stop recording, where that is allowed: what the call did so far stands, and is computed
        like any other work.
        """
        if not reads.allowed:
            return
        place = _place_of(traceback.walk_stack(sys._getframe(1)))
        self.usual = "it reads a value of what it computes" + (f", at {place}" if place else "")
        if tracing.options is not None and tracing.options.plain:
            tracing.options.hide()
        for r in (self.runtime, *self.others):
            r.stop_recording(keep=True)
        picked = tracing.picked
        tracing.end()
        # Copies stand for views until the call ends.
        tracing.picked = picked
        assert self.reading is not None
        self.reading()

    # ---- what the call left

    def _look_through(self, result: Any, recording: Recording) -> tuple[Frozen, Graph, list[Owner]]:
        """Freeze what the call would have computed; raise NotReplayable where no program repeats it."""
        self.named = dict(tracing.named)
        reason = tracing.refused
        if any(r.recording is not None and r.recording.count for r in self.others):
            reason = reason or (
                "it computes on two devices: move the arguments to one before the call"
            )
        # What the call itself leaves; the backward pass that is recorded next has results of its own.
        owners = recording.live()
        if self.survey is not None:
            reason = self._refusal(self.survey, result, reason)
        self.extra = self.backward.owners() if self.backward is not None else []
        owners += self.extra
        with self.runtime.lock:
            # Another thread that computes changes nodes.
            frozen = freeze(owners)
            graph = to_graph(frozen)
        if not recording.foreign.isdisjoint(frozen.order):
            # What another thread computes for it would be a constant of the program.
            if self.careful:
                raise RunAsUsual
            raise CaptureError(
                "another thread wrote a tensor that the function reads while it was captured: let the "
                "thread wait until the capture is done"
            )
        self.overwritten = {**recording.before, **recording.overwritten}
        before = {id(g._storage): g for _, g, _ in tracing.grads.values() if g is not None}
        self.homes = _homes(frozen.inputs, self.tensors, self.overwritten, self.runtime)
        for g in before.values():
            self.homes[self.overwritten.get(g._storage, g._storage.node)] = g._storage
        lost = (n in self.existing and n not in self.homes for n in frozen.inputs)
        if reason is None and any(lost):
            reason = "it binds a name of the outside to what it computed from the old value"
        if self.careful and reason is not None:
            self.complete = self.computes
            raise NotReplayable(result, reason)
        self.replayable = True
        return frozen, graph, owners

    def _refusal(self, survey: Survey, result: Any, reason: str | None) -> str | None:
        """Say why a program cannot repeat the call, if so; record its backward pass if it can."""
        tensors = self.tensors
        reason = _effects(survey, self.runtime, self.effects, self.dropped) or reason
        there = [*_watched_tensors(survey), *tensors]
        reason = reason or _unknown(result, set(map(id, there)))
        reason = reason or _passes_out(survey, tensors, self.ends)
        self.aliases = _Aliases((result, [v for _, v in self.effects], self.named), there)
        reason = reason or self.aliases.refused
        self.written = [t for t in tensors if id(t) in tracing.histories and is_live(t)]
        self.live = [t for t in self.aliases.roots if is_live(t)] + self.written
        reason = reason or whole_graph(self.live, self.beginning)
        if self.live and reason is None:
            self.backward, reason = _with_backward(
                self.live, self.ends, survey, self.runtime, self.effects
            )
        return reason

    def _note_host(self, frozen: Frozen) -> None:
        """Note what the call did on the host, while that is known."""
        self.grads = [
            Gradient(
                next((i for i, a in enumerate(self.tensors) if a is t), weakref.ref(t)),
                ANY if not reads else None if g is None else (g._shape, g.dtype),
                None if g is None else g._storage,
                KEPT if t._grad is g else t._grad,
            )
            for t, g, reads in tracing.grads.values()
        ]
        survey = self.survey
        surveyed = set(map(id, survey.modules)) if survey is not None else set()
        self.modules = [
            (weakref.ref(m), state[:-1] if id(m) in surveyed else state)
            for m, state in tracing.modules.items()
        ]
        self.actions, self.decisions = list(tracing.actions), list(tracing.decisions.values())
        self.draws = [
            (g, (g._offset - start) % 2**64) for g, _, start in tracing.generators.values()
        ]

    def _end(self) -> None:
        """Stop recording, and give the host its state back unless what the call did stands."""
        stands = self.complete or self.usual is not None
        for r in (self.runtime, *self.others):
            # Unless the work stands, nothing was computed: overwritten storages have their values back, ...
            r.stop_recording(keep=stands or r is not self.runtime)
        if not stands:
            # ... and so have gradients; generators and schedules their places, variables what they held.
            tracing.restore()
            for place, _ in self.effects:
                place.set(place.before)
            if self.survey is not None and not (self.computes or self.replayable):
                self.survey.undo()
        tracing.end()
        mode.grad, mode.inference = self.gradient_mode

    # ---- the program

    def _captured(self, result: Any, frozen: Frozen, graph: Graph, owners: list[Owner]) -> Capture:
        """Return the program of the call, where its inputs come from and where its outputs go."""
        runtime, tensors, grads = self.runtime, self.tensors, self.grads
        storages = [o for o in owners if isinstance(o, Storage)]
        count = len(storages) - len(self.extra)
        argument_storages = {id(t._storage): i for i, t in enumerate(tensors)}
        sources = [
            argument_storages.get(id(home), home)
            for home in (self.homes.get(n) or _constant(n, runtime) for n in frozen.inputs)
        ]
        watched = None
        if self.survey is not None:
            watched = Watched(self.survey, self.dropped)
            watched.modules = self.modules
        describe = self._describer(storages[:count], watched)
        result = describe(result)
        for gradient in grads:
            gradient.after = describe(gradient.after)
        effects = [(place, describe(value)) for place, value in self.effects]
        shown = {name: describe(value) for name, value in self.named.items()}
        targets = self._targets(storages, frozen.donors, count, describe.returned)
        # A storage keeps the shape that its memory had before, so that later graphs look the same.
        overwritten = self.overwritten
        shapes = [overwritten[s].shape if s in overwritten else s.node.shape for s in storages]
        used = {id(x) for x in (*sources, *targets)}
        for gradient in grads:
            if id(gradient.before) not in used:
                gradient.before = None
        left = (result, shown, [value for _, value in effects], [g.after for g in grads])
        used = {id(x) for x in targets} | {id(r.storage) for r in _returned(left)}
        arguments = [(t._storage, i) for i, t in enumerate(tensors) if id(t._storage) in used]
        dynamic = [
            i
            for i, a in enumerate(frozen.args)
            if isinstance(a, (HostScalar, RandomOffset, RandomSeed))
        ]
        executable, graph, sources, donated = self._compiled(frozen, graph, sources, count)
        captured = Capture(
            runtime, graph, executable, sources, donated, targets[:count] if self.backward else targets,
            shapes, frozen.args, dynamic, self.draws, result, grads, arguments, watched, self.actions,
            effects, self.decisions, shown, [], None, self.backward, bindings.epoch,
        )  # fmt: skip
        if watched is not None:
            watched.holds()
        return captured

    def _describer(self, storages: list[Storage], watched: Watched | None) -> _Describe:
        """Return what describes the tensors that the call leaves; the backward pass is described."""
        numbers = {id(s): i for i, s in enumerate(storages)}
        known: dict[int, Any] = {}
        if watched is not None:
            known = {id(t.now): t.place for t in reversed(watched.tensors)}
        known |= {id(t): i for i, t in enumerate(self.tensors)}
        describe = _Describe(numbers, known, self.aliases)
        if self.backward is not None:
            self.backward.results = [describe(t) for t in self.live]
            first = len(self.live) - len(self.written)
            self.backward.written = frozenset(range(first, len(self.live)))
        return describe

    def _targets(
        self,
        storages: list[Storage],
        donors: Sequence[Node | None],
        count: int,
        returned: set[int],
    ) -> list[int | Storage]:
        """Return where the program's outputs go: into new tensors, by number, or into storages."""
        targets: list[int | Storage] = []
        for i, (storage, donor) in enumerate(zip(storages, donors, strict=True)):
            # A copy of what there was, written in place, is a new value at each call.
            stays = storage in self.overwritten and storage in self.older
            new = i in returned and donor is None and not stays
            targets.append(i if new or i >= count else storage)
        return targets

    def _compiled(
        self, frozen: Frozen, graph: Graph, sources: list[int | Storage], count: int
    ) -> tuple[Executable, Graph, list[int | Storage], list[bool]]:
        """Compile the program; cut off the backward pass, if there is one. Return the program, its graph,
        and of its inputs the sources and whether their memory is overwritten.
        """
        donors = {d for d in frozen.donors if d is not None}
        donated = [n in donors for n in frozen.inputs]
        backward, runtime, tensors = self.backward, self.runtime, self.tensors
        if backward is None:
            return self.compiler(runtime, frozen.key, graph), graph, sources, donated
        written_to = {
            k
            for k, x in enumerate(sources)
            if (tensors[x]._storage if isinstance(x, int) else x) in self.overwritten
        }
        graph, kept = backward.split(graph, frozen.key, count, sources, written_to, runtime)
        executable = self.compiler(runtime, (frozen.key, "forward", count), graph)
        return executable, graph, [sources[k] for k in kept], [donated[k] for k in kept]


@contextlib.contextmanager
def _garbage_collected() -> Iterator[None]:
    """Collect what the block leaves in reference cycles.

    What there was before the block is set aside, so that this takes no longer in a large process.
    """
    apart = not gc.get_freeze_count()
    if apart:
        gc.freeze()
    try:
        yield
        gc.collect()
    finally:
        if apart:
            gc.unfreeze()


def _called(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Call a function; an attempt to read a value in it names the line."""
    try:
        return function(*args, **kwargs)
    except CaptureError as error:
        place = _place_of(reversed(list(traceback.walk_tb(error.__traceback__))))
        if place is None:
            raise
        raise CaptureError(f"{error}\n  at {place}") from error


def _place_of(frames: Iterable[tuple[FrameType, int]]) -> str | None:
    """Return the user's line among frames, the innermost first: a library's only where there is none."""
    places: dict[bool, str] = {}
    for frame, number in frames:
        code = frame.f_code
        if not is_internal(code):
            text = linecache.getline(code.co_filename, number).strip()
            line = f"{code.co_filename}:{number}" + (f": {text}" if text else "")
            places.setdefault(is_code_of_user(code), line)
    return places.get(True) or places.get(False)


def compile_cached(runtime: Runtime, key: Any, graph: Graph) -> Executable:
    """Return the program of a graph from the runtime's cache, which lazy runs use too."""
    return runtime.program(key, graph)


def compile_varying(runtime: Runtime, key: Any, graph: Graph) -> Executable:
    """Return the program of a graph whose sizes vary from one program to the next."""
    return runtime.program(("varying", graph), graph, varying=True)


def compile_never(runtime: Runtime, key: Any, graph: Graph) -> Any:
    """Stand in for a compiler where only the graph is wanted."""
    return None


def _effects(
    survey: Survey, runtime: Runtime, effects: list[tuple[Place, Any]], dropped: set[int]
) -> str | None:
    """Find what the call changed outside: `effects` to repeat, `dropped` what to watch no more.

    Return why that cannot be repeated, if so.
    """
    reason = None

    def computed(t: Tensor) -> bool:
        """Return whether a tensor's value is one of the call's."""
        node = t._storage.node
        return node.kind != "buffer" or t._storage in runtime.overwritten

    def fresh(t: Tensor) -> bool:
        """Return whether a tensor was made in the call."""
        return t._storage.node.kind != "buffer" and t._storage not in runtime.overwritten

    for place in (*survey.quick, *survey.slow):
        if only_counts(place, survey.codes):
            dropped.add(id(place))
            continue
        value = place.get()
        if value is place.before or same(value, place.before):
            continue
        if _is_plain_structure(value) and _is_plain_structure(place.before):
            effects.append((place, value))
            if _in_order(value) and holds_tensor(place.before, lambda t: True):
                # Tensors inside a structure have no places of their own.
                reason = f"it binds {place.name} to another {type(value).__name__} of tensors"
        else:
            reason = f"it binds {place.name} to another {type(value).__name__}"
    for place in survey.states:
        if not place.holds():
            reason = f"it changes {place.name}, which is no tensor"
    for length in survey.lengths:
        if not length.holds():
            if any(holds_tensor(item, computed) for item in new_items(length)):
                reason = f"it adds what it computed to {length.name}"
            elif not only_grows(length, survey.codes):
                reason = reason or f"it changes how many items {length.name} has"
            dropped.add(id(length))
    for optimizer in survey.optimizers:
        if _began(optimizer, fresh):
            reason = "the optimizer's state began with what was computed"
    if survey.iterators:
        reason = f"it may ask {survey.iterators[0]}, an iterator, for the next value"
    source = survey.drawn()
    return f"it draws random numbers from {source}" if source else reason


def _began(optimizer: Optimizer, fresh: Callable[[Tensor], bool]) -> bool:
    return any(holds_tensor(state, fresh) for state in optimizer.state.values())


def _unknown(result: Any, known: set[int]) -> str | None:
    """Say what in a result cannot be made anew, if there is something. `known` are the tensors of
    before, by id.
    """
    for x in _leaves(result):
        if isinstance(x, (GeneratorType, CoroutineType)):
            return f"it returns a {type(x).__name__}"
        if not isinstance(x, (Tensor, type, Module, HostScalar)):
            inside = holds_tensor(attributes(x), lambda t: t._storage.node.kind != "buffer")
            if inside:
                return f"it returns a {type(x).__name__}, which holds what it computed"
        if isinstance(x, Tensor) and type(x) is not Tensor and id(x) not in known:
            return f"it returns a new {type(x).__name__}"
    return None


def _with_backward(
    live: list[Tensor],
    ends: list[Tensor],
    survey: Survey,
    runtime: Runtime,
    effects: list[tuple[Place, Any]],
) -> tuple[Backward | None, str | None]:
    """Record the backward pass of a call's results; or return why a program cannot repeat it, with
    everything as it was before.
    """
    for length in survey.lengths:
        length.count = len(length.container)
    recording = runtime.recording
    assert recording is not None
    values = {s: s.node for s in recording.overwritten}
    pending = list(recording.pending)
    backward, reason = None, None
    try:
        backward = trace_backward(live, {id(t): i for i, t in enumerate(ends)})
    except Exception as error:
        # The caller's own backward pass says so again, where it is called.
        reason = f"its backward pass fails ({error})"
    # What hooks did outside.
    after: list[tuple[Place, Any]] = []
    hooked = _effects(survey, runtime, after, set())
    if [(p, id(v)) for p, v in after] != [(p, id(v)) for p, v in effects]:
        hooked = hooked or "it binds a name of the outside"
    if {s: s.node for s in recording.overwritten} != values:
        hooked = hooked or "it writes a tensor of the outside"
    if hooked is not None:
        reason = reason or f"in a hook, {hooked}"
    if reason is None:
        return backward, None
    # The hooks run again when the caller differentiates.
    for length in survey.lengths:
        length.undo()
    for owner, node in list(recording.overwritten.items()):
        if owner in values:
            owner.node = values[owner]
        else:
            owner.node, owner.donor = recording.public.pop(owner, node), None
            del recording.overwritten[owner]
    recording.pending[:] = pending
    return None, reason


def _is_plain_structure(x: Any) -> bool:
    if x is MISSING or isinstance(x, (bool, int, float, str, bytes, type(None), Tensor)):
        return True
    return _in_order(x) and all(map(_is_plain_structure, x))


def _in_order(x: Any) -> bool:
    return type(x) in (tuple, list)


def _part(runtime: Runtime) -> None:
    """Give storages that share a value one each: a program tells its inputs apart by their memory."""
    holders: dict[Node, Storage] = {}
    for storage in Storage.live(runtime):
        node = storage.node
        # What was recorded for a capture alone has no memory, and never will.
        if (
            node.buffer is not None
            and node.shared
            and holders.setdefault(node, storage) is not storage
        ):
            storage.own()


def _one_runtime(
    function: Callable[..., Any], tensors: list[Tensor], survey: Survey | None
) -> Runtime:
    runtimes = {t._storage.runtime for t in tensors}
    outside: set[Runtime] = set()
    if survey is not None:
        outside.update(t._storage.runtime for t in _watched_tensors(survey))
    if len(runtimes) > 1 and survey is not None:
        # Lengths and other numbers stay on the CPU; what computes there too is found out.
        runtimes = {r for r in runtimes if r.kind != "cpu"}
    if len(runtimes) > 1:
        raise CaptureError(
            f"compile: the arguments of {function} are on several devices; move them to one with "
            ".to(device)"
        )
    if runtimes:
        return runtimes.pop()
    return outside.pop() if len(outside) == 1 else resolve(None)


def _constant(node: Node, runtime: Runtime) -> Storage:
    """Return a storage for data that only the graph holds, such as a constant made in the function."""
    home = Storage.__new__(Storage)
    home.node, home.runtime, home.dtype = node, runtime, node.dtype
    home.elements, home.version, home.donor = 0, 0, None
    runtime.settle(home)
    return home


def is_constant(storage: Storage) -> bool:
    """Whether an input of a program is data that only its graph holds."""
    return storage.elements == 0 and numel(storage.node.shape) > 0


def _homes(
    inputs: list[Node], tensors: list[Tensor], overwritten: dict[Any, Node], runtime: Runtime
) -> dict[Node, Storage]:
    """Find the storage that held each input node when the call began."""
    wanted = set(inputs)
    homes: dict[Node, Storage] = {}
    for storage in (*(t._storage for t in tensors), *Storage.live(runtime)):
        node = overwritten.get(storage, storage.node)
        if node in wanted:
            homes.setdefault(node, storage)
    return homes


def _watched_tensors(survey: Survey) -> list[Tensor]:
    return [p.before for p in (*survey.quick, *survey.slow) if isinstance(p.before, Tensor)]


class _Aliases:
    """Which of the tensors that a call leaves are views, which a replay makes of the tensors that they
    are views of: arguments, tensors of outside, or others that the call leaves.
    """

    def __init__(self, left: Any = None, existing: Sequence[Tensor] = ()) -> None:
        known = set(map(id, existing))
        home = {id(t._storage): t for t in existing}
        left = [t for t in tensors_in(left) if id(t) not in known]
        for t in left:
            if t._base is not None:
                # Its base may have been written with gradients since it was made.
                t._refresh_view()
        views = Counter(id(t._base) for t in left)
        # Why a replay cannot make the views, if so.
        self.refused: str | None = None
        # By the id of a view, what it is a view of.
        self.bases: dict[int, Tensor] = {}
        # What is left, or has views that are, and is no view of that itself.
        self.roots: list[Tensor] = []
        for t in left:
            base = t._base
            if base is not None and base.dtype is t.dtype:
                there = home.get(id(t._storage))
                if there is None and (views[id(base)] > 1 or any(x is base for x in left)):
                    there = base
                if there is not None and there.dtype is t.dtype:
                    self.bases[id(t)] = there
                    self.refused = self.refused or _own_gradient(t, there)
        for t in left:
            root = self.bases.get(id(t), t)
            if id(root) not in known and not any(root is r for r in self.roots):
                self.roots.append(root)


def _own_gradient(view: Tensor, base: Tensor) -> str | None:
    """Say why the gradient of a view is not simply that of its elements in `base`, if so: hooks see it
    alone, and as_strided of a smaller view drops those beyond it.
    """
    fn, end = view._grad_fn, base._grad_fn
    while fn is not None and fn is not end and len(fn.edges) == 1:
        if fn.pre_hooks or fn.post_hooks or fn.retained:
            return "a hook is on a view, which it returns with the tensor that it is a view of"
        edge = fn.edges[0]
        after = None if edge is None else edge[0]
        whole = after is end or isinstance(after, AccumulateGrad)
        if fn.title.startswith("AsStrided") and not whole:
            return "it returns as_strided of a part of a tensor"
        fn = after
    return None


def _passes_out(survey: Survey, tensors: Sequence[Tensor], ends: Sequence[Tensor]) -> str | None:
    """Say how gradients of a call leave it in a way that a replay cannot repeat, if they do. `ends` are
    where those of the arguments end.
    """
    if any(end is not t and id(end) in tracing.grads for t, end in zip(tensors, ends)):
        return "it takes gradients of what its argument was computed from"
    if any(id(t._base) in tracing.histories for t in tensors):
        return "it writes what has gradients into a view that it is given"
    changed = [("an argument", t) for t in tensors if not is_live(t)]
    outside = [p for p in (*survey.quick, *survey.slow) if isinstance(p.before, Tensor)]
    changed += [(p.name, x) for p in outside for x in (p.before, p.before._base) if x is not None]
    for name, t in changed:
        if tracing.has_other_history(t):
            if t._grad_fn is None:
                return f"it changes whether {name} takes gradients"
            return f"it writes what has gradients into {name}"
    return None


class _Describe:
    """Replaces tensors in a structure by `Returned`; `returned` are the outputs that are met."""

    def __init__(self, numbers: dict[int, int], known: dict[int, Any], aliases: _Aliases) -> None:
        self.numbers = numbers
        self.known = known
        self.bases = aliases.bases
        self.returned: set[int] = set()

    def __call__(self, x: Any) -> Any:
        if not isinstance(x, Tensor):
            return rebuilt(x, self)
        origin = self.known.get(id(x))
        number = self.numbers.get(id(x._storage))
        if number is not None and origin is None:
            self.returned.add(number)
        requires_grad = x.requires_grad
        fn = x._grad_fn
        base = self.bases.get(id(x))
        return Returned(
            number,
            x._shape,
            x._strides,
            x._offset,
            x._storage if number is None or origin is not None else None,
            origin,
            id(x),
            x.dtype,
            fn.title if fn is not None and requires_grad else "",
            fn is None and origin is None and requires_grad,
            None if base is None else self(base),
            requires_grad,
        )


def _leaves(x: Any) -> Iterator[Any]:
    if isinstance(x, Returned):
        yield x
        return
    if isinstance(x, dict):
        x = x.values()
    elif is_record(x) and not isinstance(x, Returned):
        x = attributes(x).values()
    elif not isinstance(x, (list, tuple)):
        yield x
        return
    for v in x:
        yield from _leaves(v)


def _returned(x: Any) -> Iterator[Returned]:
    return (leaf for leaf in _leaves(x) if isinstance(leaf, Returned))


def replay(
    captured: Capture, tensors: list[Tensor], given: list[Tensor] | None = None
) -> tuple[Any, dict[str, Tensor]]:
    """Run a captured call on other arguments of the same signature. Does not wait for the device.

    `given` are the caller's own tensors, where `tensors` are copies or parts of them. Return what
    the call returns, and its named intermediate results.
    """
    runtime = captured.runtime
    given = tensors if given is None else given
    # What is pending may read memory that the program overwrites.
    runtime.realize()
    moved: dict[Any, Storage] = {}
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
    if kept:
        into = {number: home.node.buffer for number, home in kept.items()}
        buffers = captured.executable.run(inputs, args, into)
    else:
        buffers = captured.executable.run(inputs, args)
    fresh = settle(captured, buffers, moved, buffers[len(captured.targets) :], kept)
    rebuild = Rebuild(fresh, captured.targets, moved, given, read)
    if backward is not None:
        results = [rebuild(r) for r in backward.results]
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
    moved: dict[Any, Storage],
    kept_by_backward: Sequence[Any] = (),
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
        node = computed(shape, buffers[i])
        fresh[target] = Storage(node, captured.runtime)
        node.shared = any(b is buffers[i] for b in kept_by_backward)
    for i, storage in captured.overwritten:
        if moved:
            storage = moved.get(storage, storage)
        # What was written in place is where it was.
        if storage.node.buffer is not buffers[i]:
            storage.settle(storage.node, computed(captured.shapes[i], buffers[i]))
        if kept_by_backward and any(b is buffers[i] for b in kept_by_backward):
            storage.node.shared = True
        storage.version += 1
    if captured.one_value_twice is None:
        values = [id(b) for b, _ in zip(buffers, captured.targets, strict=False)]
        captured.one_value_twice = len(set(values)) < len(values)
    if captured.one_value_twice:
        _share_values(captured, buffers, fresh, moved)
    return fresh


def _share_values(
    captured: Capture, buffers: list[Any], fresh: dict[int, Storage], moved: dict[Any, Storage]
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


def computed(shape: tuple[int, ...], buffer: Any) -> Node:
    """Return the value of memory that a program has written."""
    node = Node("buffer", (), (), (), shape, buffer.dtype)
    node.buffer = buffer
    return node


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
        moved: dict[Any, Storage],
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

    def _tensor(self, x: Returned) -> Tensor:
        if isinstance(x.origin, int):
            return self.given[x.origin]
        if x.origin is not None:
            value = x.origin.get()
            if isinstance(value, Tensor):
                return value
        if x.base is not None:
            before, mode.grad = mode.grad, mode.grad and x.differentiable
            try:
                name = x.history.removesuffix("Backward0") or "AsStrided"
                return as_view(self(x.base), x.shape, x.strides, x.offset, name=name)
            finally:
                mode.grad = before
        storage = x.storage
        if x.number is not None:
            storage = self.fresh.get(x.number) or self.targets[x.number]  # type: ignore[assignment]
        assert isinstance(storage, Storage)
        storage = self.moved.get(storage, storage)
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
