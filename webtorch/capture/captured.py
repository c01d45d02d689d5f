"""What a captured call is: its program, where inputs come from and outputs go, and what it depends on.
Floor 6.
"""

from __future__ import annotations

import sys
import weakref
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any

from webtorch.capture.backward import Backward
from webtorch.capture.outside import Length, Option, Place, Survey, attributes, is_record
from webtorch.functions.random import Generator, default_generator
from webtorch.ir.dtype import Scalar
from webtorch.ir.graph import Graph
from webtorch.ir.view import is_contiguous, numel
from webtorch.runtime.backend import Executable, counts_references
from webtorch.runtime.realize import Runtime
from webtorch.tensors.device import device_of
from webtorch.tensors.host import Decision, HostCall, HostScalar, bindings
from webtorch.tensors.modes import mode
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
    # One per program output: the shape that its memory is seen in.
    shapes: list[tuple[int, ...]]
    args: list[Scalar]
    # Program arguments that are read anew at each replay.
    dynamic: list[int]
    # Generators that the call draws from, and how many counters it uses up.
    draws: list[tuple[Generator, int]]
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
    effects: list[tuple[Place, object]] = field(default_factory=list)
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
    # What the host does between its programs.
    calls: list[HostCall] = field(default_factory=list)
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
        self.numbers = [x for x in leaves_of(self.result) if isinstance(x, HostScalar)]
        self.looked_at = [g for g in self.grads if g.form is not ANY]
        each = list(enumerate(zip(self.targets, self.shapes)))
        self.overwritten = [(i, t) for i, (t, _) in each if not isinstance(t, int)]
        self.made = [(i, t, shape) for i, (t, shape) in each if isinstance(t, int)]
        effects, after = [v for _, v in self.effects], [g.after for g in self.grads]
        uses = Counter(r.number for r in returned_in([self.result, self.named, effects, after]))
        for gradient in self.grads:
            gradient.find_slot(self, uses)
        found: dict[object, tuple[object, list[int]]] = {}
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
    def changes_tensors(self) -> bool:
        """Whether a replay may change what tensors are like that are there, beside values and gradients."""
        shares = self.one_value_twice is not False or (self.backward and self.overwritten)
        return bool(shares or self.effects or self.actions)

    @property
    def random_count(self) -> int:
        """How many counters of the device's default generator the call uses up."""
        generator = default_generator(device_of(self.runtime))
        return sum(count for g, count in self.draws if g is generator)

    def input_names(self) -> dict[int, str]:
        """Return the names of the program's inputs, by their number, as far as they have any."""
        known = self.watched.names() if self.watched is not None else {}
        named = ((i, self._source_name(source, known)) for i, source in enumerate(self.sources))
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
        if not all(call.is_possible() for call in self.calls):
            return False
        return all(g.fits() for g in self.looked_at)


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
    if not counts_references():
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
        self.moved: dict[Storage, Storage] = {}
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


def is_constant(storage: Storage) -> bool:
    """Whether an input of a program is data that only its graph holds."""
    return storage.elements == 0 and numel(storage.node.shape) > 0


def leaves_of(x: object) -> Iterator[object]:
    """Yield what a returned structure holds, tensors and other values."""
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
        yield from leaves_of(v)


def returned_in(x: object) -> Iterator[Returned]:
    """Return the tensors of a returned structure."""
    return (leaf for leaf in leaves_of(x) if isinstance(leaf, Returned))
