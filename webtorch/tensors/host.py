"""Numbers that live on the host and may change between runs of a captured program. Floor 4.

A captured program is replayed without Python. A number that was read through here is read again at
every replay.
"""

from __future__ import annotations

import contextlib
import functools
import operator
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from operator import is_
from typing import Any

from webtorch.dispatch.call import looking
from webtorch.ir.dtype import Scalar
from webtorch.ir.graph import Node
from webtorch.runtime.arrivals import Arrival


class RunAsUsual(Exception):
    """Raised while a function is being captured where this call cannot be recorded, but later ones can:
    it runs as if it were not compiled.
    """


class Given:
    """A value of a captured call that a host call reads: a program before it computes it."""

    __slots__ = ("__weakref__", "donor", "node")

    def __init__(self, node: Node) -> None:
        self.node = node
        self.donor: Node | None = None


class HostCall:
    """What a captured function does on the host where a program cannot, and each replay does again in that place: it
    is given values, and values come of it.
    """

    given: Sequence[Given] = ()
    # Nodes of the capture that stand for what comes.
    coming: Sequence[Node] = ()
    # What it is among the steps of a program; "" where it moves nothing.
    name = ""

    def act(self, values: Sequence[Any], run: dict[HostCall, Any]) -> Sequence[Arrival]:
        """Do it with the memory of what it is given, and return what comes. `run`: what those before it have left for
        each other.
        """
        raise NotImplementedError

    def forget(self) -> None:
        """Let go of what only the capture has needed: from now on there are replays."""

    def is_possible(self) -> bool:
        """Whether it can be done again."""
        return True


class _Reads:
    """Whether the library reads values that it could do without."""

    @property
    def possible(self) -> bool:
        """Whether the library may look at values to check them or to take a shorter way: not while a capture runs,
        whose replays would not look.
        """
        return not tracing.active


class HostScalar(float):
    """A float that remembers where it was read. Arithmetic on it gives another one while a capture
    runs; what else is done with it gives a plain value, which is fixed in the capture.
    """

    source: Mapping[Any, Any]
    key: Any
    name: str
    # How many host actions of the capture came before it was read.
    when: int

    def read(self) -> Scalar:
        """Return the number as it is now."""
        return float(self.source[self.key])

    def _computed(
        self, function: Callable[..., float], other: object = None, *, swapped: bool = False
    ) -> object:
        if not (other is None or isinstance(other, (int, float))):
            return NotImplemented
        operands = (self,) if other is None else (other, self) if swapped else (self, other)
        value = function(*map(_plain, operands))
        if not tracing.active or not isinstance(value, float):
            return value
        out = HostScalar(value)
        out.source, out.key, out.name = _Computed(function, operands), "value", "value"
        out.when = max(o.when for o in operands if isinstance(o, HostScalar))
        return out

    def __add__(self, other: object) -> Any:
        return self._computed(operator.add, other)

    def __radd__(self, other: object) -> Any:
        return self._computed(operator.add, other, swapped=True)

    def __sub__(self, other: object) -> Any:
        return self._computed(operator.sub, other)

    def __rsub__(self, other: object) -> Any:
        return self._computed(operator.sub, other, swapped=True)

    def __mul__(self, other: object) -> Any:
        return self._computed(operator.mul, other)

    def __rmul__(self, other: object) -> Any:
        return self._computed(operator.mul, other, swapped=True)

    def __truediv__(self, other: object) -> Any:
        return self._computed(operator.truediv, other)

    def __rtruediv__(self, other: object) -> Any:
        return self._computed(operator.truediv, other, swapped=True)

    def __pow__(self, other: object, modulo: None = None) -> Any:
        return self._computed(operator.pow, other)

    def __rpow__(self, other: object, modulo: None = None) -> Any:
        return self._computed(operator.pow, other, swapped=True)

    def __neg__(self) -> Any:
        return self._computed(operator.neg)

    def __pos__(self) -> Any:
        return self

    def __abs__(self) -> Any:
        return self._computed(operator.abs)

    # What follows decides something on the host: a replay needs the same decision.

    def _decides(self, function: Callable[..., object], other: object = None) -> Any:
        value = _plain(self)
        outcome = function(value) if other is None else function(value, _plain(other))
        if tracing.active:
            tracing.decide(Decision(self, function, other, outcome))
        return outcome

    def __bool__(self) -> bool:
        return bool(self._decides(operator.truth))

    def __eq__(self, other: object) -> Any:
        return self._decides(operator.eq, other)

    def __ne__(self, other: object) -> Any:
        return self._decides(operator.ne, other)

    def __lt__(self, other: object) -> Any:
        return self._decides(operator.lt, other)

    def __le__(self, other: object) -> Any:
        return self._decides(operator.le, other)

    def __gt__(self, other: object) -> Any:
        return self._decides(operator.gt, other)

    def __ge__(self, other: object) -> Any:
        return self._decides(operator.ge, other)

    __hash__ = float.__hash__

    def __reduce__(self) -> Any:
        return float, (_plain(self),)

    def __copy__(self) -> float:
        return self if tracing.active else float(self)

    def __deepcopy__(self, memo: object) -> float:
        return self.__copy__()

    def __float__(self) -> float:
        return float(self._decides(float.__float__))

    def __int__(self) -> int:
        return int(self._decides(float.__int__))

    __trunc__ = __int__

    def __floor__(self) -> int:
        return int(self._decides(float.__floor__))

    def __ceil__(self) -> int:
        return int(self._decides(float.__ceil__))

    def __round__(self, digits: Any = None) -> Any:
        value = _plain(self)
        return self._decides(lambda x: round(x, digits)) if tracing.active else round(value, digits)

    def __divmod__(self, other: object) -> Any:
        return self._decides(divmod, other)

    def __mod__(self, other: object) -> Any:
        return self._computed(operator.mod, other)

    def __floordiv__(self, other: object) -> Any:
        return self._computed(operator.floordiv, other)


def _plain(x: object) -> Any:
    return float.__float__(x) if isinstance(x, HostScalar) else x


class Decision:
    """What the host decided by a number during a capture: a replay must decide the same."""

    __slots__ = ("function", "number", "other", "outcome")

    def __init__(
        self, number: HostScalar, function: Callable[..., Any], other: object, outcome: object
    ) -> None:
        self.number, self.function, self.other, self.outcome = number, function, other, outcome

    @property
    def key(self) -> Any:
        """Equal for decisions that are made alike."""
        other = self.other
        if isinstance(other, HostScalar):
            other = (id(other.source), other.key)
        elif not isinstance(other, (int, float, type(None))):
            other = id(other)
        return id(self.number.source), self.number.key, self.function, type(other), other

    def holds(self) -> bool:
        """Whether the number as it is now decides the same."""
        if self.number.when:
            # It is known only after a schedule's step.
            return True
        value, other = self.number.read(), self.other
        if other is None:
            now = self.function(value)
        else:
            now = self.function(value, other.read() if isinstance(other, HostScalar) else other)
        return bool(now == self.outcome or (now != now and self.outcome != self.outcome))


class _Computed(Mapping[str, float]):
    """A number computed from others, read anew when it is."""

    def __init__(self, function: Callable[..., float], operands: tuple[object, ...]) -> None:
        self.function, self.operands = function, operands

    def __getitem__(self, key: str) -> float:
        return self.function(*[o.read() if isinstance(o, HostScalar) else o for o in self.operands])

    def __iter__(self) -> Iterator[str]:
        return iter(("value",))

    def __len__(self) -> int:
        return 1


class Varying:
    """A number on which an optimizer's step depends, and which its program may read anew (`host_scalar`)."""

    __slots__ = ("number",)

    def __init__(self, number: float) -> None:
        self.number = number


class Watched:
    """What an optimizer's step depends on: the same object while nothing of it has changed, if that can be known."""

    __slots__ = ("each", "found_inf", "groups", "params", "stamps", "state")

    def __init__(
        self,
        found_inf: object,
        groups: list[dict[str, Any]],
        stamps: list[object],
        state: tuple[Any, ...],
    ) -> None:
        # What says whether a step is taken back.
        self.found_inf = found_inf
        # The options of each group, and what is another object once one of them may be another one.
        self.groups, self.stamps = groups, stamps
        # All that each group holds, and its parameters; and those of all.
        self.each = [(tuple(group.values()), [*group["params"]]) for group in groups]
        self.params = [*chain.from_iterable([params for _, params in self.each])]
        # All of the state: the same tuple while nothing has changed in it.
        self.state = state

    def holds(self, groups: list[dict[str, Any]], state: tuple[Any, ...]) -> bool:
        """Whether a step that nothing takes back, whose options stay what they are, depends on nothing else."""
        if self.state is not state or self.groups is not groups or len(groups) != len(self.each):
            return False
        # No generator: it would be a frame for each group.
        for group, (options, params) in zip(groups, self.each):
            if len(options) != len(group) or not all(map(is_, group.values(), options)):
                return False
            now = group["params"]
            if len(now) != len(params) or not all(map(is_, now, params)):
                return False
        return True

    def options(self, n: int) -> tuple[object, ...]:
        """Return the options of a group, in order."""
        return tuple(
            [Varying(v) if type(v) is float else v for v in options_in(self.groups[n]).values()]
        )

    def values(self) -> list[Any]:
        """Return all but the state, in order."""
        options = [v for n in range(len(self.groups)) for v in self.options(n)]
        return [self.found_inf, *options, *self.params, *map(_GRADIENT, self.params)]


_GRADIENT = operator.attrgetter("_grad")


def options_in(group: Mapping[str, object]) -> dict[str, Any]:
    """Return what of a group is no parameter, nor the names of these."""
    return {k: v for k, v in group.items() if k != "params" and k != "param_names"}


def host_scalar(source: Mapping[Any, Any], key: object, name: str | None = None) -> HostScalar:
    """Return `source[key]` as a number that replays read anew; `name` is what an exported program
    calls it.
    """
    out = HostScalar(source[key])
    out.source, out.key, out.name = source, key, name or str(key)
    out.when = len(tracing.actions) if tracing.active else 0
    return out


class RandomOffset(int):
    """A word of a random number generator's counter during a capture: `relative` to where the
    generator stands at each replay.
    """

    generator: Any
    relative: int
    word: int

    def read(self) -> int:
        """Return this word of the counter for a replay that starts where the generator is now."""
        return ((self.generator._offset + self.relative) >> (32 * self.word)) & 0xFFFFFFFF


class RandomSeed(int):
    """A word of a random number generator's seed during a capture."""

    generator: Any
    word: int

    def read(self) -> int:
        """Return this word of the seed that the generator has now."""
        return int(self.generator._seed >> (32 * self.word)) & 0xFFFFFFFF


class Draw(int):
    """A seed or a counter that was drawn from `generator` during a capture."""

    generator: Any
    # For a counter: relative to where the generator stood when the capture began.
    relative: int


def random_words(seed: int, offset: int) -> tuple[Scalar, Scalar, Scalar, Scalar]:
    """Return the words of a seed and of a counter; for those of a capture, as numbers that each
    replay reads anew.
    """
    low, high = 0xFFFFFFFF, 32
    words = (seed & low, (seed >> high) & low, offset & low, (offset >> high) & low)
    if not (isinstance(seed, Draw) and isinstance(offset, Draw)):
        return words
    out: list[Scalar] = []
    for word in (0, 1):
        part = RandomSeed(words[word])
        part.generator, part.word = seed.generator, word
        out.append(part)
    for word in (0, 1):
        counter = RandomOffset(words[2 + word])
        counter.generator, counter.relative, counter.word = offset.generator, offset.relative, word
        out.append(counter)
    return out[0], out[1], out[2], out[3]


class TracedOptions:
    """The numbers of optimizers' groups while a function is captured.

    Shown, they remember where they were read. What the function sets is set again at each replay:
    a group holds plain numbers while the package's own code works with it.
    """

    def __init__(self, groups: Iterable[dict[str, object]]) -> None:
        self.groups = list(groups)
        self.before = [dict(group) for group in self.groups]
        self.plain: list[dict[str, object]] = []
        self.shown: list[dict[str, Any]] = []

    def show(self) -> None:
        """Put numbers that remember where they were read into the groups."""
        self.plain = [dict(group) for group in self.groups]
        self.shown = []
        for group in self.groups:
            seen = {k: t for k, v in group.items() if (t := _traced(group, k, v)) is not v}
            group.update(seen)
            self.shown.append(seen)

    def hide(self) -> None:
        """Put plain numbers into the groups; replays repeat what was set meanwhile."""
        changes = []
        for group, plain, shown in zip(self.groups, self.plain, self.shown, strict=True):
            if group.keys() != plain.keys():
                tracing.refuse("it adds an option to an optimizer's group, or takes one away")
            for key, value in group.items():
                old = plain.get(key)
                if key in shown and value is shown[key]:
                    group[key] = old
                elif value is not old and _is_option(value):
                    if _is_late(value):
                        tracing.refuse(f"it sets {key!r} of an optimizer by what that was earlier")
                    if type(old) is int and not isinstance(value, HostScalar):
                        tracing.refuse(f"it changes {key!r} of an optimizer, which is an int")
                    changes.append((group, key, value))
        for group, key, value in changes:
            group[key] = _plain_option(value)
        if changes:
            tracing.actions.append(functools.partial(_set_options, changes))
        self.plain, self.shown = [], []

    def restore(self) -> None:
        """Give the groups what they held before the capture."""
        for group, before in zip(self.groups, self.before, strict=True):
            for key in group.keys() - before.keys():
                del group[key]
            group.update(before)


def _traced(group: dict[str, object], key: str, value: object) -> object:
    if type(value) is float:
        return host_scalar(group, key)
    if type(value) is tuple and value and all(type(v) is float for v in value):
        part = _Part(group, key)
        return tuple([host_scalar(part, i, key) for i in range(len(value))])
    return value


def _is_option(value: object) -> bool:
    if isinstance(value, tuple):
        return all(map(_is_option, value))
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _plain_option(value: object) -> object:
    return tuple(map(_plain, value)) if isinstance(value, tuple) else _plain(value)


def make_plain(group: dict[str, object]) -> None:
    """Give a group plain numbers for those that remember where they were read."""
    group.update({k: _plain_option(v) for k, v in group.items() if k != "params"})


def _is_late(value: object) -> bool:
    """Whether a number stands on one of a group that may have been set since it was read."""
    if isinstance(value, tuple):
        return any(map(_is_late, value))
    if not isinstance(value, HostScalar):
        return False
    if isinstance(value.source, _Computed):
        return any(map(_is_late, value.source.operands))
    # Arguments of the function stay what they are.
    is_argument = type(value.source) is dict and "params" not in value.source
    return value.when < len(tracing.actions) and not is_argument


def _set_options(changes: Sequence[tuple[dict[str, object], str, object]]) -> None:
    def now(value: object) -> Any:
        """Return an option as a number."""
        if isinstance(value, tuple):
            return tuple(map(now, value))
        return value.read() if isinstance(value, HostScalar) else value

    for (group, key, _), value in zip(changes, [now(v) for _, _, v in changes], strict=True):
        group[key] = value


class _Part(Mapping[int, float]):
    """The numbers of a tuple in a dict."""

    def __init__(self, group: Mapping[str, Any], key: str) -> None:
        self.group, self.key = group, key

    def __getitem__(self, place: int) -> float:
        return float(self.group[self.key][place])

    def __iter__(self) -> Iterator[int]:
        return iter(range(len(self)))

    def __len__(self) -> int:
        return len(self.group[self.key])


# What a write in place changes of a tensor, where gradients are recorded.
_HISTORY = ("_requires_grad", "_grad_fn", "_output_nr", "_history", "_accumulate")


class _Tracing(threading.local):
    active: bool = False

    def __init__(self) -> None:
        self._clear()

    def begin(self) -> None:
        """Start to note what a capture meets."""
        self._clear()
        self._turn(True)

    def _turn(self, on: bool) -> None:
        looking.add(on - self.active)
        self.active = on

    def _clear(self) -> None:
        # Gradient functions with smaller numbers were there before.
        self.first = 0
        # Tensors whose `.grad` the capture looked at or changed -> (tensor, the `.grad` before,
        # whether that was looked at).
        self.grads: dict[int, tuple[Any, Any, bool]] = {}
        # Tensors that the capture gave another history by writing them in place -> (tensor, the
        # history before).
        self.histories: dict[int, tuple[Any, tuple[Any, ...]]] = {}
        # Copies that stand for views, since nobody may read the 0-d tensors that picked them.
        self.picked: list[Any] = []
        # Modules that the capture called -> what they were like.
        self.modules: dict[Any, Any] = {}
        # Optimizers that it stepped, by id.
        self.optimizers: dict[int, Any] = {}
        # The options of those that the function refers to.
        self.options: TracedOptions | None = None
        # What the capture did on the host, to be done again at each replay.
        self.actions: list[Callable[[], object]] = []
        # Whether one of them is running.
        self.acting = False
        # What it did there with values of programs, which are cut in these places.
        self.calls: list[HostCall] = []
        # What gives the host its state back after a capture, which only records.
        self.undo: list[Callable[[], object]] = []
        # Generators that numbers were drawn from -> (generator, seed, offset) at the beginning.
        self.generators: dict[int, tuple[Any, int, int]] = {}
        # What was decided by numbers of the host, by the key of the decision.
        self.decisions: dict[Any, Decision] = {}
        # Named intermediate results.
        self.named: dict[str, Any] = {}
        # Which of them are wanted: all, or these.
        self.wanted: bool | frozenset[str] = False
        # Modules whose results have names, by id.
        self.module_names: dict[int, str] = {}
        # Why the call cannot be replayed, once that is known.
        self.refused: str | None = None

    @contextlib.contextmanager
    def plain_options(self) -> Iterator[None]:
        """Hide from the block that options remember where they are read."""
        options = self.options
        if options is None or not options.plain:
            yield
            return
        options.hide()
        try:
            yield
        finally:
            # Unless the capture has ended meanwhile.
            if self.options is options:
                options.show()

    def restore(self) -> None:
        """Give the host its state back: gradients, generators' places, and what has an undo."""
        for tensor, grad, _ in self.grads.values():
            tensor._grad = grad
        for tensor, before in self.histories.values():
            for name, value in zip(_HISTORY, before, strict=True):
                setattr(tensor, name, value)
        for generator, seed, offset in self.generators.values():
            generator._seed, generator._offset = seed, offset
        for restore in reversed(self.undo):
            restore()

    def end(self) -> None:
        """Stop, and forget what was noted."""
        self._turn(False)
        self._clear()

    def touch_grad(self, tensor: Any, reads: bool = True) -> None:
        """Note that the running capture is about to read or change the `.grad` of `tensor`, unless it
        made the tensor itself.
        """
        if not _made_here(tensor):
            self.grads.setdefault(id(tensor), (tensor, tensor._grad, reads))

    def touch_history(self, tensor: object) -> None:
        """Note that the running capture is about to give `tensor` another history, unless it made the
        tensor itself.
        """
        if _made_here(tensor):
            return
        before = tuple([getattr(tensor, name) for name in _HISTORY])
        self.histories.setdefault(id(tensor), (tensor, before))

    def has_other_history(self, tensor: Any) -> bool:
        """Whether `tensor`, of before the running capture, takes gradients otherwise than before it."""
        found = self.histories.get(id(tensor))
        if found is None:
            return False
        requires_grad, fn, *_ = found[1]
        return tensor._requires_grad != requires_grad or tensor._grad_fn is not fn

    def draw(self, generator: object, seed: int, offset: int) -> tuple[Draw, Draw]:
        """Return what was just drawn from a generator as numbers that remember it."""
        start = self.generators.setdefault(id(generator), (generator, seed, offset))
        drawn, counter = Draw(seed), Draw(offset)
        drawn.generator = counter.generator = generator
        counter.relative = (offset - start[2]) % 2**64
        return drawn, counter

    def keep(self, name: str, result: Any) -> None:
        """Note a named intermediate result (a tensor, or something with tensors), if it is wanted."""
        wanted = self.wanted if isinstance(self.wanted, bool) else name in self.wanted
        if not wanted:
            return
        if hasattr(result, "_storage"):
            self.named[name] = result.detach()
        elif isinstance(result, (list, tuple)):
            for i, part in enumerate(result):
                if hasattr(part, "_storage"):
                    self.named[f"{name}.{i}"] = part.detach()

    def decide(self, decision: Decision) -> None:
        """Note a decision by a number of the host."""
        self.decisions.setdefault(decision.key, decision)

    def refuse(self, reason: str) -> None:
        """Note why what the running capture just did cannot be replayed."""
        if self.refused is None:
            self.refused = reason


def _made_here(tensor: Any) -> bool:
    """Whether the running capture made the tensor."""
    storage = tensor._storage
    return storage.node.kind != "buffer" and storage not in storage.runtime.overwritten


class _Bindings:
    # Counts the times that a tensor or an optimizer was given other storages: captures made before
    # refer to the old ones.
    epoch = 0
    # Counts the times that a module was changed: an attribute, a flag, a hook.
    modules = 0

    def change(self) -> None:
        """Note that what holds data outside was bound anew."""
        if not tracing.active:
            self.epoch += 1


def make_before(tensor: Any) -> None:
    """While a capture runs: compute a tensor that is one constant now, as if it had been made
    before the captured call. Anything else stays as it is.
    """
    storage = tensor._storage
    runtime, node = storage.runtime, storage.node
    if not runtime.capturing or node.kind != "map" or node.srcs or node.attrs[1] != "s":
        return
    if type(node.scalars[0]) is HostScalar:
        return
    recording = runtime.recording
    if recording.pending and recording.pending[-1]() is storage:
        # It was not this call that made it.
        recording.pending.pop()
        recording.own.discard(node)
    recording.paused, tracing.active = True, False
    try:
        runtime.add(storage)
        runtime.realize()
    finally:
        recording.paused, tracing.active = False, True


tracing = _Tracing()
reads = _Reads()


def sizes_in(counts: Any) -> list[int]:
    """Read lengths or positions from a Tensor, which decide about shapes. They end a capture."""
    return [int(n) for n in counts.tolist()]


bindings = _Bindings()
