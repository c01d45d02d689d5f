"""Scripts: trees of calls, what arguments and results are like, and the programs that calls become."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from operator import itemgetter
from typing import Any, NamedTuple

from webtorch.dispatch.call import Args, Callee, Kwargs
from webtorch.ir.dtype import DType, Scalar
from webtorch.ir.view import Shape
from webtorch.runtime.backend import Executable
from webtorch.runtime.realize import Runtime
from webtorch.tensors.host import HostScalar
from webtorch.tensors.made_by import MadeBy

# Where a value is: ("external", number), ("saved", place among what the graph had saved before), ("hidden", storage),
# ("constant", node), ("cast", what `Run.cast` finds), or ("output", place among the program's).
Origin = tuple[str, Any]
# What a result is, where it is not only a new tensor: ("external" or "slot", its number), ("none", 0),
# ("view", (what is known of the tensor that it is a view of and that nobody else has, and of it)), or
# ("parts", (class, what its items are)).
Form = Any
# External tensors that are written: number, writes that tensor and storage count.
Writes = tuple[tuple[int, int, int], ...]

# How many programs of the same calls are kept, by what numbers among their arguments decide.
_MOST_ASIDE = 4


def nothing() -> None:
    """A reference to nothing."""


@dataclass(frozen=True, slots=True)
class Facts:
    """What is known of a tensor that a call of a script gives: a slot."""

    shape: Shape
    strides: Shape
    # An offset, or the number of the external tensor whose offset it is, and what is added.
    offset: int | tuple[int, int]
    whole: bool
    dtype: DType
    requires_grad: bool
    inference: bool
    # The name of its gradient function, "" where it has none.
    title: str
    # Which storage it lies in: the number of the first slot there, or -1 - the number of an external tensor.
    storage: int
    # The tensor that it is a view of: ("external" or "slot", its number).
    base: tuple[str, int] | None
    made_by: MadeBy | None
    # Whether it counts its writes itself, as `x.data` does.
    apart: bool


class Step:
    """One call of a script, after `parent`; `following` are the calls that have come next."""

    __slots__ = (
        "answers", "args", "aside", "callee", "changed", "following", "gives", "goes_on", "key", "kind", "known",
        "kwargs", "leaves", "line", "matches", "modes", "names", "parent", "place", "plain", "program", "ready",
        "results", "stays", "until", "watched", "watches", "writes",
    )  # fmt: skip

    def __init__(self, parent: Step | None) -> None:
        self.parent = parent
        self.following: list[Step] = []
        self.callee: Callee | None = None
        self.kind = ""
        # The user's line, as (code, instruction).
        self.line: Any = None
        # What is on, as `Run.modes` says it.
        self.modes: tuple[object, ...] = (True, False)
        self.args: list[Pattern] = []
        self.names: tuple[str, ...] = ()
        self.kwargs: list[Pattern] = []
        # What a backward pass or an optimizer's step depends on beside its arguments.
        self.watched: list[Pattern] = []
        self.results: Form = ("none", 0)
        # Leaves whose gradients a backward pass gives: the number of the external tensor, or -1 - that of the slot, and
        # its gradient.
        self.leaves: tuple[tuple[int, Form], ...] = ()
        # Of a part of a backward pass: where the hook is found that is called next (`Run.hook_at`). Of a call that
        # registers one: of which output of its function the tensor is.
        self.place: Any = None
        # What is known of slots from here on that were there.
        self.changed: tuple[tuple[int, Facts], ...] = ()
        self.writes: Writes = ()
        # Everything by which two steps are told apart.
        self.key: object = None
        # What the calls up to here have become, and whether some program from here on is known well.
        self.program: Program | None = None
        self.ready = False
        # Those where numbers decide otherwise.
        self.aside: list[Program] = []
        # What follows from the above, made when the call is followed first (`prepared`): the comparisons of its
        # arguments and of what is watched, what promises its results, whether it does nothing else, and how many slots,
        # external tensors, objects, checkpointed parts and autocast contexts there are then.
        self.matches: Callable[[Any, Args, Kwargs], bool] | None = None
        self.watches: Callable[[Any, Any, Any], bool] | None = None
        self.gives: Callable[[Any], Any] | None = None
        # Both at once, of a call that is `plain`: what it gives, or OTHER.
        self.answers: Callable[[Any, Args, Kwargs], Any] | None = None
        self.plain = False
        self.until = (0, 0, 0, 0, 0)
        # What is known of all slots up to here, once that was asked.
        self.known: list[Facts] | None = None
        # Where the calls stand that come after the program has run, if they need a graph of before.
        self.goes_on: Step | None = None
        # Of a step of the kind "computed": whether what comes next is a part of the run even where a script begins so.
        self.stays = False

    def program_for(self, given: Mapping[int, float]) -> Program | None:
        """Return the program that was recorded with numbers that decide as these do."""
        program = self.program
        if program is not None and program.given.decided and not program.decides(given):
            self.aside.append(program)
            self.program = next((p for p in self.aside if p.decides(given)), None)
            self.aside = [p for p in self.aside if p is not self.program][-_MOST_ASIDE:]
        return self.program

    def go_on(self) -> None:
        """Let calls follow that need a graph of before the program ran."""
        self.goes_on = Step(self)
        self.goes_on.kind = "computed"

    def anew(self, run: object) -> Step:
        """Return the call as it is in a run."""
        out = Step(self.parent)
        out.args, out.kwargs, out.watched = (
            [p.anew(run) for p in part] for part in (self.args, self.kwargs, self.watched)
        )
        return out

    def patterns(self) -> Iterator[Pattern]:
        """Iterate over all that a call is compared with."""
        return patterns_in([*self.args, *self.kwargs, *self.watched])

    def mark(self) -> bool:
        """Return whether gradients are recorded from a call on that says so."""
        given = [*self.args[1:], *self.kwargs]
        return bool(given[0].value) if given else True

    def can_come(self) -> bool:
        """Whether what the call was compared with is still there."""
        return all(p.form != OBJECT or p.value() is not None for p in self.patterns())

    def path(self) -> list[Step]:
        """Return the calls from the first to this one; a step of the kind "computed" stands where a program ran."""
        found: list[Step] = []
        step: Step | None = self
        while step is not None and step.parent is not None:
            found.append(step)
            step = step.parent
        return found[::-1]

    def forget_programs(self) -> None:
        """Drop the programs of all scripts that share a call with this one."""
        pending = [self.path()[0]]
        while pending:
            found = pending.pop()
            found.program, found.ready = None, False
            found.aside.clear()
            pending += found.following
            if found.goes_on is not None:
                pending.append(found.goes_on)


def split(path: list[Step]) -> tuple[list[Step], list[Step]]:
    """Return the calls of a path that were computed, and those that came after."""
    count = max((i + 1 for i, step in enumerate(path) if step.kind == "computed"), default=0)
    return path[:count], path[count:]


# Forms of patterns.
STATIC, SLOT, KNOWN, NEW, SEQUENCE, OBJECT, ZERO, VARYING, NUMBER, PRIOR, OPAQUE = range(11)


# Instead of a result: a call is not that of a step.
OTHER = object()


class Pattern:
    """What an argument must be: a value, slot `number`, external tensor `number` (which is seen the first time
    if NEW), any number (the run's `number`), any object (OPAQUE: the run's `number`, new if `value` says so), or a
    sequence of such. A slot that was computed is an external tensor from
    then on: it is slot `value` where it is seen the first time (PRIOR).
    """

    __slots__ = (
        "alias", "also", "decides", "facts", "form", "last", "loose", "number", "parts", "regular", "stamp", "value",
    )  # fmt: skip

    def __init__(self, form: int, value: Any = None, number: int = -1) -> None:
        self.form, self.value, self.number = form, value, number
        self.parts: list[Pattern] = []
        # Of an external tensor: what it is like, and which ones share its storage and its value first, itself if
        # no earlier one does.
        self.facts: Any = None
        self.alias = (-1, -1)
        # The tensor that was as the facts say last, and how many changes there had been then.
        self.last: Callable[[], Any] = nothing
        self.stamp = -1
        # How many there had been when it came again, with memory for itself.
        self.regular = -1
        # The numbers that it has in other places, which may be on the way here.
        self.also: tuple[int, ...] = ()
        # Of a number: what the call has decided by it and those before it, such as a size.
        self.decides: tuple[Decided, ...] = ()
        # Whether its offset, or its number, may be another one: if that is an argument of the program, read anew.
        # None until a program is known.
        self.loose: bool | None = None

    def anew(self, run: Any) -> Pattern:
        """Return the pattern of the argument as it is in a run."""
        if self.form not in (NEW, SEQUENCE, NUMBER):
            return self
        out = Pattern(self.form, self.value, self.number)
        out.parts = [p.anew(run) for p in self.parts]
        if self.form == NEW:
            out.value = int(run.externals[self.number]._offset)
        elif self.form == NUMBER:
            out.value = run.given[self.number]
        return out

    def key(self) -> object:
        """Return what tells patterns apart."""
        if self.form == SEQUENCE:
            return self.form, self.value, tuple([p.key() for p in self.parts])
        if self.form == NEW:
            return self.form, self.number, self.alias, self.facts, bool(self.value)
        if self.form == VARYING:
            return self.form, self.value == 0.0
        if self.form == NUMBER:
            return self.form, self.number, type(self.value)
        if self.form == OBJECT:
            return self.form, id(self.value())
        return self.form, type(self.value), self.value, self.number


# Where `Pattern.facts` of a tensor say whether gradients are recorded for it.
MARKED = 7

# What picks items of a sequence.
Picker = Callable[[Sequence[Any]], Sequence[Any]]


def picker(places: Sequence[int]) -> Picker:
    """Return what picks the items in these places."""
    if len(places) > 1:
        return itemgetter(*places)
    return lambda items: [items[place] for place in places]


class Known(NamedTuple):
    """What is known of an output that waits: the shape of its memory, how often it was written, and the name of the
    function that a backward pass has used up, with the leaves that it reaches; "" where it has none.
    """

    shape: Shape
    version: int
    runtime: Runtime
    title: str
    leaves: Picker


@dataclass(slots=True)
class Program:
    """How the calls of a script are computed: an executable, where its inputs are and where its outputs go."""

    runtime: Runtime
    executable: Executable
    # Where each is, and whether its memory is overwritten.
    inputs: list[tuple[Origin, bool]]
    args: list[Scalar | Reading]
    # Arguments that are read anew, each with its places.
    dynamic: list[tuple[Any, list[int]]]
    # ("slot", number of a storage), ("external", number) or ("saved", 0), the shape of its memory, and how often
    # a new one has been written.
    outputs: list[tuple[str, int, Shape, int]]
    # Generators, how many counters the run has used up before, and how many are used up now.
    draws: list[tuple[Any, int, int]]
    # The storages of slots that are computed.
    made: frozenset[int]
    # Slots with a gradient function: which a backward pass has used up, each with the leaves that its graph reaches;
    # which it may run yet, and of these the ones of which it has used up a part.
    used: dict[int, tuple[int, ...]]
    open: frozenset[int]
    partly: frozenset[int]
    # Where the values are that the open graph has saved, in its order.
    saved: list[Origin]
    # The numbers that calls were given when it was recorded, by place; what was decided by them; and which of them
    # were others at another time, and made no other difference.
    given: Given
    varied: set[int]
    # Of views: how many writes their storages had counted that they did not know of.
    behind: dict[int, int]
    # Whether the calls have become it twice.
    confirmed: bool = False
    # What picks the outputs that are the memory of an input, as a rule, and these inputs. And all others.
    kept: tuple[Picker, Picker] = field(init=False)
    others: list[int] = field(init=False)
    # Whether no two outputs share memory where those are.
    apart: bool = field(init=False, default=False)
    # Outputs that wait for somebody to look, as a rule, once that was asked (`late.Waiting`). And all other slots, and
    # other outputs.
    late: Any = field(init=False, default=None)
    # Whether there are no others, but for storages that rest: all may be given before it is computed.
    all_late: bool = field(init=False, default=False)
    slots: list[int] = field(init=False, default_factory=list)
    # Of each node of the graph that was recorded.
    lines: list[object] = field(init=False, default_factory=list)
    # How often in a row it could not run. What it reads may be gone: it is recorded anew then.
    failures: int = field(init=False, default=0)
    # Where all of them are read, if these say when they may have changed; and what they said the last time.
    sources: list[Callable[[], Any]] = field(init=False, default_factory=list)
    stamps: list[object] = field(init=False, default_factory=list)
    # What reads those arguments that come first; and what was read for the arguments of the last time, and these.
    reads: list[Callable[[], float]] = field(init=False)
    filled: tuple[bytes, list[Any]] = field(init=False, default=(b"", []))
    # The storages that it writes and that rest (`resting.Group`); how many times it runs before they may, and did last.
    resting: Callable[[], Any] = field(init=False, default=nothing)
    busy: int = field(init=False, default=0)
    most_busy: int = field(init=False, default=1)

    def __post_init__(self) -> None:
        read = {value: i for i, ((kind, value), _) in enumerate(self.inputs) if kind == "external"}
        kept = {
            k: read[value]
            for k, (kind, value, *_) in enumerate(self.outputs)
            if kind == "external" and value in read
        }
        self.kept = picker(list(kept)), picker(list(kept.values()))
        self.others = [k for k in range(len(self.outputs)) if k not in kept]
        self.dynamic.sort(key=lambda found: isinstance(found[0], (Number, Offset)))
        self.reads = [a.read for a, _ in self.dynamic if not isinstance(a, (Number, Offset))]
        sources = {id(a.source()): a.source for a, _ in self.dynamic if isinstance(a, Reading)}
        stamped = all(hasattr(source(), "stamp") for source in sources.values())
        if stamped and not self.draws and all(isinstance(a, Reading) for a, _ in self.dynamic):
            self.sources = list(sources.values())

    def key(self) -> object:
        """Return what is equal for the program of the same calls, made again."""
        args = tuple([argument_key(a) for a in self.args])
        graph = self.used, self.open, self.partly, self.saved
        decided = self.given.decided.keys()
        return self.executable, self.inputs, self.outputs, self.draws, args, decided, graph

    def holds(self, given: Mapping[int, float]) -> bool:
        """Whether the program is that of calls that are given these numbers."""
        before = self.given
        for place, value in before.items():
            if given.get(place) != value and place not in self.varied:
                return False
        return not before.decided or self.decides(given)

    def decides(self, given: Mapping[int, float]) -> bool:
        """Whether other numbers decide what these did."""
        return decide_alike(self.given.decided.values(), given)


class Given(dict[int, float]):
    """The numbers that calls of a run are given and that have been others before, by place."""

    @cached_property
    def decided(self) -> dict[object, Decided]:
        """What was decided by them."""
        return {}

    def copy(self) -> Given:
        """Return what was given and decided up to now."""
        out = Given()
        out.update(self)
        out.decided.update(self.decided)
        return out

    def number(self, place: int, value: float) -> Number:
        """Take the number in a place, and return it as one that remembers it."""
        self[place] = value
        out = Number(value)
        out.source, out.key, out.name, out.when = self, place, "number", 0
        return out


class Number(HostScalar):
    """A number that a call is given while a script is recorded. Arithmetic on it gives one that can be computed
    anew; what it decides is noted; what else is made of it shows when the call is given another one.
    """

    computed: tuple[Callable[..., float], tuple[object, ...]] | None = None
    # What it is equal to may decide what is called: another number in its place must decide the same.
    compared = True

    def among(self, given: Mapping[int, float]) -> float:
        """Return what it is where calls are given other numbers."""
        if self.computed is None:
            return given[self.key]
        function, operands = self.computed
        value = function(*[_among(o, given) for o in operands])
        if type(value) is not float:
            raise ArithmeticError
        return value

    def place(self) -> object:
        """Return what is equal for numbers that are computed alike."""
        if self.computed is None:
            return self.key
        function, operands = self.computed
        return function, tuple([o.place() if isinstance(o, Number) else repr(o) for o in operands])

    def _computed(
        self, function: Callable[..., float], other: object = None, *, swapped: bool = False
    ) -> object:
        if not (other is None or isinstance(other, (int, float))):
            return NotImplemented
        operands = (self,) if other is None else (other, self) if swapped else (self, other)
        value = function(*[_now(o) for o in operands])
        if type(value) is not float or not all(
            isinstance(o, (Number, int)) or type(o) is float for o in operands
        ):
            # No other number may be in this one's place.
            self._decides(float.__float__)
            return value
        out = Number(value)
        out.source, out.key, out.name, out.when = self.source, "", "number", 0
        out.computed = function, operands
        return out

    def _decides(self, function: Callable[..., object], other: object = None) -> Any:
        outcome = function(_now(self)) if other is None else function(_now(self), _now(other))
        found = Decided(self, function, other, outcome)
        self.source.decided[found.key()] = found  # type: ignore[attr-defined]
        return outcome

    def __round__(self, digits: object = None) -> Any:
        return self._decides(round, digits)


@dataclass(frozen=True, slots=True)
class Decided:
    """What was decided by a number: another one must decide the same."""

    number: Number
    function: Callable[..., object]
    other: object
    outcome: object

    def key(self) -> object:
        """Return what is equal for decisions that are made alike."""
        other = self.other.place() if isinstance(self.other, Number) else repr(self.other)
        return self.number.place(), self.function, other, repr(self.outcome)

    def holds(self, given: Mapping[int, float]) -> bool:
        """Whether other numbers decide the same."""
        value = self.number.among(given)
        if self.other is None:
            return repr(self.function(value)) == repr(self.outcome)
        return repr(self.function(value, _among(self.other, given))) == repr(self.outcome)


def decide_alike(decided: Iterable[Decided], given: Mapping[int, float]) -> bool:
    """Whether numbers decide what others have decided."""
    try:
        return all(d.holds(given) for d in decided)
    except (ArithmeticError, LookupError, ValueError):
        # The calls in the usual way raise it.
        return False


def _now(x: object) -> object:
    return float.__float__(x) if isinstance(x, HostScalar) else x


def _among(x: object, given: Mapping[int, float]) -> object:
    return x.among(given) if isinstance(x, Number) else _now(x)


class Offset(int):
    """The offset of an external tensor while a script is recorded: `external` is its number, and `more` what was
    added. Arithmetic that gives another number than a sum says so (`spoilt`).
    """

    external: int
    more: int
    spoilt: set[int]

    @classmethod
    def of(cls, value: int, external: int, spoilt: set[int], more: int = 0) -> Offset:
        """Return the offset `value` of an external tensor."""
        out = cls(value)
        out.external, out.spoilt, out.more = external, spoilt, more
        return out

    def __add__(self, other: int) -> int:
        if isinstance(other, Offset):
            self.spoilt.update((self.external, other.external))
            return int(self) + int(other)
        return Offset.of(int(self) + other, self.external, self.spoilt, self.more + other)

    __radd__ = __add__

    def _spoil(self, value: object) -> object:
        self.spoilt.add(self.external)
        return value

    def __sub__(self, other: int) -> int:
        return self.__add__(-other)

    def __rsub__(self, other: int) -> Any:
        return self._spoil(other - int(self))

    def __mul__(self, other: int) -> Any:
        return self._spoil(int(self) * other)

    __rmul__ = __mul__

    def __floordiv__(self, other: int) -> Any:
        return self._spoil(int(self) // other)

    def __mod__(self, other: int) -> Any:
        return self._spoil(int(self) % other)

    def __divmod__(self, other: int) -> Any:
        return self._spoil(divmod(int(self), other))

    def __neg__(self) -> Any:
        return self._spoil(-int(self))


class Reading:
    """A number of a program that is read anew: an option of an optimizer, which the script does not keep alive."""

    __slots__ = ("key", "source")

    def __init__(self, number: HostScalar) -> None:
        source = number.source
        self.key = number.key
        try:
            self.source: Callable[[], Any] = weakref.ref(source)
        except TypeError:
            # A dict.
            self.source = lambda: source

    def read(self) -> float:
        """Return the number as it is now."""
        return float(self.source()[self.key])


def argument_key(a: Any) -> object:
    """Return what tells arguments of a program apart."""
    if isinstance(a, Number):
        return Number, a.place()
    if isinstance(a, Offset):
        return Offset, a.external, a.more
    if isinstance(a, Reading):
        return id(a.source()), a.key
    if hasattr(a, "generator"):
        return type(a), id(a.generator), a.word, getattr(a, "relative", 0)
    # NaN is equal to itself here.
    return type(a), repr(a)


def patterns_in(patterns: Iterable[Pattern]) -> Iterator[Pattern]:
    """Iterate over patterns and their parts."""
    for p in patterns:
        yield p
        yield from patterns_in(p.parts)


def leaves_of(args: Args) -> list[Any]:
    """Return the tensors whose gradients a call sets, of its arguments."""
    return args[0] if isinstance(args[0], list) else [args[0]]


def forms_in(form: Form) -> Iterator[Facts]:
    """Iterate over the slots in what a call gives."""
    if type(form) is Facts:
        yield form
    elif form[0] == "view":
        yield from form[1]
    elif form[0] == "parts":
        for part in form[1][1]:
            yield from forms_in(part)
