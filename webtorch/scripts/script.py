"""Scripts: trees of calls, what arguments and results are like, and the programs that calls become."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

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
# What a result is, where it is no new tensor: ("external" or "slot", its number), ("none", 0), or
# ("parts", (class, what its items are)).
Form = Any


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
    # The tensor that it is a view of.
    base: tuple[str, int] | None
    made_by: MadeBy | None


class Step:
    """One call of a script, after `parent`; `following` are the calls that have come next."""

    __slots__ = (
        "args", "callee", "following", "gives", "goes_on", "key", "kind", "kwargs", "leaves", "line", "matches",
        "modes", "names", "parent", "plain", "program", "ready", "results", "until", "watched", "watches", "writes",
    )  # fmt: skip

    def __init__(self, parent: Step | None) -> None:
        self.parent = parent
        self.following: list[Step] = []
        self.callee: Callee | None = None
        self.kind = ""
        # The user's line, as (code, instruction).
        self.line: Any = None
        # What is on, as `Run.modes` says it.
        self.modes: tuple[Any, ...] = (True, False)
        self.args: list[Pattern] = []
        self.names: tuple[str, ...] = ()
        self.kwargs: list[Pattern] = []
        # What a backward pass or an optimizer's step depends on beside its arguments.
        self.watched: list[Pattern] = []
        self.results: Form = ("none", 0)
        # Leaves whose gradients a backward pass gives: the number of the external tensor, and its gradient.
        self.leaves: tuple[tuple[int, Form], ...] = ()
        # External tensors that are written: number, writes that tensor and storage count.
        self.writes: tuple[tuple[int, int, int], ...] = ()
        # Everything by which two steps are told apart.
        self.key: Any = None
        # What the calls up to here have become, and whether some program from here on is known well.
        self.program: Program | None = None
        self.ready = False
        # What follows from the above, made when the call is followed first (`prepared`): the comparisons of its
        # arguments and of what is watched, what promises its results, whether it does nothing else, and how many slots
        # and external tensors there are then.
        self.matches: Callable[[Any, Args, Kwargs], bool] | None = None
        self.watches: Callable[[Any, Any, Kwargs], bool] | None = None
        self.gives: Callable[[Any], Any] | None = None
        self.plain = False
        self.until = (0, 0)
        # Where the calls stand that come after the program has run, if they need a graph of before.
        self.goes_on: Step | None = None

    def go_on(self) -> None:
        """Let calls follow that need a graph of before the program ran."""
        self.goes_on = Step(self)
        self.goes_on.kind = "computed"

    def anew(self, run: Any) -> Step:
        """Return the call as it is in a run."""
        out = Step(self.parent)
        out.args, out.kwargs, out.watched = (
            [p.anew(run) for p in part] for part in (self.args, self.kwargs, self.watched)
        )
        return out

    def patterns(self) -> Iterator[Pattern]:
        """Iterate over all that a call is compared with."""
        return patterns_in([*self.args, *self.kwargs, *self.watched])

    def path(self) -> list[Step]:
        """Return the calls from the first to this one; a step of the kind "computed" stands where a program ran."""
        found: list[Step] = []
        step: Step | None = self
        while step is not None and step.parent is not None:
            found.append(step)
            step = step.parent
        return found[::-1]


def split(path: list[Step]) -> tuple[list[Step], list[Step]]:
    """Return the calls of a path that were computed, and those that came after."""
    count = max((i + 1 for i, step in enumerate(path) if step.kind == "computed"), default=0)
    return path[:count], path[count:]


# Forms of patterns.
STATIC, SLOT, KNOWN, NEW, SEQUENCE, OBJECT, ZERO, VARYING, PRIOR = range(9)


class Pattern:
    """What an argument must be: a value, slot `number`, external tensor `number` (which is seen the first time
    if NEW), or a sequence of such. A slot that was computed is an external tensor from then on: it is slot `value`
    where it is seen the first time (PRIOR).
    """

    __slots__ = ("alias", "facts", "form", "loose", "number", "parts", "value")

    def __init__(self, form: int, value: Any = None, number: int = -1) -> None:
        self.form, self.value, self.number = form, value, number
        self.parts: list[Pattern] = []
        # Of an external tensor: what it is like, and which earlier ones share its storage and its value (-1: none).
        self.facts: Any = None
        self.alias = (-1, -1)
        # Whether its offset, or its number, may be another one: if that is an argument of the program, read anew.
        # None until a program is known.
        self.loose: bool | None = None

    def anew(self, run: Any) -> Pattern:
        """Return the pattern of the argument as it is in a run."""
        if self.form not in (NEW, SEQUENCE):
            return self
        out = Pattern(self.form, self.value, self.number)
        out.parts = [p.anew(run) for p in self.parts]
        if self.form == NEW:
            out.value = int(run.externals[self.number]._offset)
        return out

    def key(self) -> Any:
        """Return what tells patterns apart."""
        if self.form == SEQUENCE:
            return self.form, self.value, tuple([p.key() for p in self.parts])
        if self.form == NEW:
            return self.form, self.number, self.alias, self.facts, bool(self.value)
        if self.form == VARYING:
            return self.form, self.value == 0.0
        if self.form == OBJECT:
            return self.form, id(self.value())
        return self.form, type(self.value), self.value, self.number


@dataclass(slots=True)
class Program:
    """How the calls of a script are computed: an executable, where its inputs are and where its outputs go."""

    runtime: Runtime
    executable: Executable
    # Where each is, and whether its memory is overwritten.
    inputs: list[tuple[Origin, bool]]
    args: list[Scalar | Reading]
    # Places of arguments that are read anew.
    dynamic: list[int]
    # ("slot", number of a storage), ("external", number) or ("saved", 0), the shape of its memory, and how often
    # a new one has been written.
    outputs: list[tuple[str, int, Shape, int]]
    # Generators, how many counters the run has used up before, and how many are used up now.
    draws: list[tuple[Any, int, int]]
    # The storages of slots that are computed.
    made: frozenset[int]
    # Slots with a gradient function: which a backward pass has used up, and which it may run yet.
    used: frozenset[int]
    open: frozenset[int]
    # Where the values are that the open graph has saved, in its order.
    saved: list[Origin]

    def key(self) -> Any:
        """Return what is equal for the program of the same calls, made again."""
        args = tuple([_argument_key(a) for a in self.args])
        graph = self.used, self.open, self.saved
        return self.executable, self.inputs, self.outputs, self.draws, graph, args


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

    def _spoil(self, value: Any) -> Any:
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


def _argument_key(a: Any) -> Any:
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


def forms_in(form: Form) -> Iterator[Facts]:
    """Iterate over the slots in what a call gives."""
    if type(form) is Facts:
        yield form
    elif form[0] == "parts":
        for part in form[1][1]:
            yield from forms_in(part)
