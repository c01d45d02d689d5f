"""What a call of a script is compared with, and what it gives, as functions that are made once for each call.

A step's patterns are data. To follow it they are printed as the Python that a person would write for this one call: a
comparison for each argument, and an assignment for each fact of the result, with no look at what kind of pattern it is.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Sequence
from itertools import repeat
from operator import call, is_, is_not
from types import CodeType, FunctionType
from typing import Any

from webtorch.dispatch.call import Args, Kwargs
from webtorch.ir.view import Shape
from webtorch.scripts.changes import changes
from webtorch.scripts.run import CHECKED, Run, regular, split_modes
from webtorch.scripts.script import (
    KNOWN,
    NEW,
    NUMBER,
    OBJECT,
    OPAQUE,
    OTHER,
    PRIOR,
    SEQUENCE,
    SLOT,
    STATIC,
    VARYING,
    ZERO,
    Facts,
    Form,
    Pattern,
    Step,
    forms_in,
    nothing,
    patterns_in,
    picker,
)
from webtorch.tensors.host import Watched
from webtorch.tensors.tensor import Tensor

# Whether a call is that of a step: run, arguments by position and by name.
Matcher = Callable[[Run, Args, Kwargs], bool]
# What a step gives.
Giver = Callable[[Any], Any]

_NAMES: dict[str, object] = {
    "Tensor": Tensor, "OTHER": OTHER, "changes": changes, "new": object.__new__, "nothing": nothing, "ref": weakref.ref,
}  # fmt: skip
# Which comparison tells whether a value is what a pattern says; P is the pattern, V its value, N its number.
_TESTS = {
    # A slot that nobody has any more is None.
    SLOT: "{x} is None or slots[{N}]() is not {x}",
    KNOWN: "externals[{N}] is not {x}",
    PRIOR: "not run.is_prior({P}, {x})",
    STATIC: "{x} is not {V} and (type({x}) is not type({V}) or not {x} == {V})",
    VARYING: "not run.varies({P}, {x})",
    NUMBER: "not run.takes({P}, {x})",
    OPAQUE: "not run.keeps({P}, {x})",
    ZERO: "type({x}) is not float or repr({x}) != {V}",
    OBJECT: "{x} is None or {V}() is not {x}",
}
# Forms of patterns of tensors.
_OF_TENSORS = frozenset({SLOT, KNOWN, NEW, PRIOR})
_SINGLE = (type(None), bool, type(Ellipsis), type)


class _Text:
    """Python that is printed, with the values that it names."""

    def __init__(self, otherwise: str = "False") -> None:
        self.lines: list[str] = []
        # What is returned where a value differs.
        self.otherwise = otherwise
        self.values: dict[str, object] = {}

    def name(self, value: object) -> str:
        """Return the name of a value."""
        if type(value) in (int, bool, type(None)):
            return repr(value)
        name = f"v{len(self.values)}"
        self.values[name] = value
        return name

    def compare(self, p: Pattern, x: str) -> None:
        """Print the comparison of a value with a pattern."""
        if p.form == SEQUENCE:
            kind = self.name(p.value)
            self.lines.append(
                f"if type({x}) is not {kind} or len({x}) != {len(p.parts)}: return {self.otherwise}"
            )
            for i, part in enumerate(p.parts):
                self.lines.append(f"{x}_{i} = {x}[{i}]")
                self.compare(part, f"{x}_{i}")
            return
        if p.form == NEW:
            known = self.name(p)
            self.lines += [
                f"if {known}.regular == stamp and {known}.last() is {x} and {x} is not None and not ("
                f"{known}.also and run.is_elsewhere({known}, {x})):",
                f"  externals.append({x})",
                *([f"  assert run.is_as_before({known}, {x})"] if CHECKED else ()),
                f"elif not run.is_like({known}, {x}): return {self.otherwise}",
                "elif run.careful: stamp = -2",
            ]
            return
        test = _TESTS[p.form]
        if p.form == STATIC and isinstance(p.value, _SINGLE):
            test = "{x} is not {V}"
        elif p.form == STATIC and type(p.value) is int:
            test = "type({x}) is not int or {x} != {V}"
        names = {"x": x, "N": p.number}
        if "{P}" in test:
            names["P"] = self.name(p)
        if "{V}" in test:
            names["V"] = self.name(p.value)
        self.lines.append(f"if {test.format(**names)}: return {self.otherwise}")

    def promise(self, form: Form, name: str) -> str:
        """Print how a result is made, and return what it is called."""
        if type(form) is Facts:
            return self._promised(form, name)
        kind, value = form
        if kind == "external":
            return f"run.externals[{value}]"
        if kind == "slot":
            return f"run.slots[{value}]()"
        if kind == "none":
            return "None"
        if kind == "view":
            # What it is a view of is made when somebody looks.
            self.lines.append("run.slots.append(nothing)")
            return self._promised(value[1], name)
        cls, parts = value
        made = "".join([f"{self.promise(part, f'{name}_{i}')}, " for i, part in enumerate(parts)])
        return (
            f"{self.name(cls)}({made})"
            if hasattr(cls, "_fields")
            else f"{self.name(cls)}(({made}))"
        )

    def _promised(self, f: Facts, t: str) -> str:
        """Print how a tensor is made of which all is known but its value and its place in a graph."""
        self.lines += [
            f"{t} = new(Tensor)",
            f"{t}._shape = {self.name(_one(f.shape))}",
            f"{t}._strides = {self.name(_one(f.strides))}",
            f"{t}._whole = {f.whole}",
            f"{t}.dtype = {self.name(f.dtype)}",
            f"{t}._requires_grad = {f.requires_grad}",
            f"{t}._inference = {f.inference}",
            f"{t}._grad = {t}._hooks = {t}._post_accumulate = None",
            f"{t}._retains = False",
        ]
        if isinstance(f.offset, tuple):
            number, more = f.offset
            self.lines.append(
                f"{t}._offset = int(run.externals[{number}]._offset) + {self.name(more)}"
            )
        else:
            self.lines.append(f"{t}._offset = {self.name(f.offset)}")
        if f.made_by is not None:
            self.lines.append(f"{t}._made_by = {self.name(f.made_by)}")
        self.lines.append(f"run.slots.append(ref({t}))")
        return t

    def function(self, parameters: str) -> Any:
        """Return the function of these lines. The values are its defaults, which lie together in memory."""
        head = ", ".join([parameters, *self.values])
        body = "\n".join([f"  {line}" for line in self.lines])
        code = _compiled(f"def made({head}):\n{body}")
        return FunctionType(code, _NAMES, "made", tuple(self.values.values()))


@functools.lru_cache(4096)
def _compiled(text: str) -> CodeType:
    """Return the code of a function: calls that are alike differ in their values alone."""
    # No line of it is the user's.
    module = compile(text, __file__ + ":made", "exec")
    return next(part for part in module.co_consts if isinstance(part, CodeType))


@functools.lru_cache(4096)
def _one(shape: Shape) -> Shape:
    """Return the one tuple of these numbers: what many calls use stays near the processor."""
    return shape


def prepare(step: Step) -> Matcher:
    """Make what follows a step; return the comparison of its arguments."""
    slots, externals, objects, parts, contexts = step.parent.until  # type: ignore[union-attr]
    cast, computed = split_modes(step.modes)
    patterns = list(step.patterns())
    forms = [step.results, *(form for _, form in step.leaves)]
    step.until = (
        slots + sum(1 for form in forms for _ in forms_in(form)),
        externals + sum(p.form in (NEW, PRIOR) for p in patterns),
        objects + sum(p.form == OPAQUE and p.value for p in patterns),
        max(parts, 1 + max(computed, default=-1)),
        max(contexts, 1 + cast[-1] if cast else 0),
    )
    step.plain = step.kind == "operation" and not step.writes
    step.matches = made = matcher(step.args, step.names, step.kwargs)
    step.watches = Watch(step.watched) if step.kind == "step" else matcher(step.watched)
    step.gives = _gradients_giver(step) if step.kind == "backward" else giver(step.results)
    if step.plain:
        step.answers = _answers(step)
    return made


def matcher(
    patterns: Sequence[Pattern], names: Sequence[str] = (), named: Sequence[Pattern] = ()
) -> Matcher:
    """Return the comparison of arguments by position and by name. External tensors that it sees first get their
    numbers, also where the rest differs.
    """
    text = _Text()
    _compare_all(text, patterns, names, named)
    text.lines.append("return True")
    made: Matcher = text.function("run, args, kwargs")
    return made


def _answers(step: Step) -> Callable[[Run, Args, Kwargs], object]:
    """Return the comparison of arguments that returns what the call gives, or OTHER."""
    text = _Text("OTHER")
    _compare_all(text, step.args, step.names, step.kwargs)
    # Comparing may have looked at what was promised, and something was computed.
    text.lines.append(f"if run.at is not {text.name(step.parent)}: return OTHER")
    text.lines.append(f"return {text.promise(step.results, 't')}")
    made: Callable[..., object] = text.function("run, args, kwargs")
    return made


def _compare_all(
    text: _Text, patterns: Sequence[Pattern], names: Sequence[str], named: Sequence[Pattern]
) -> None:
    """Print the comparison of arguments."""
    forms = {p.form for p in patterns_in([*patterns, *named])}
    text.lines.append(
        f"if len(args) != {len(patterns)} or len(kwargs) != {len(names)}: return {text.otherwise}"
    )
    if SLOT in forms:
        text.lines.append("slots = run.slots")
    if KNOWN in forms or NEW in forms:
        text.lines.append("externals = run.externals")
    if NEW in forms:
        text.lines.append("stamp = -2 if run.careful else changes.count")
    if patterns:
        text.lines.append("".join([f"a{i}, " for i in range(len(patterns))]) + "= args")
    for i, p in enumerate(patterns):
        text.compare(p, f"a{i}")
    for i, (name, p) in enumerate(zip(names, named, strict=True)):
        text.lines += [
            f"if {name!r} not in kwargs: return {text.otherwise}", f"k{i} = kwargs[{name!r}]",
        ]  # fmt: skip
        text.compare(p, f"k{i}")


class Watch:
    """The comparison of what an optimizer's step depends on, most of which are tensors: it is enough that these are the
    ones of the last time, if that was so for each. Of a state that rests nothing is looked at.
    """

    def __init__(self, patterns: Sequence[Pattern]) -> None:
        self.each = matcher(patterns)
        self.patterns = patterns
        self.all = _Same(patterns)
        # The changes there had been the last time, and how many of those that came again had been found elsewhere.
        self.stamp = self.elsewhere = -1
        # The storages that rest, and the comparisons of all that is not theirs, in one go if that can be.
        self.resting: Callable[[], Any] = nothing
        self.others = self.all
        self.quick: _Quick | None = None

    def rest(self, resting: Callable[[], Any], watched: Watched, count: int) -> None:
        """Compare the first `count` values alone, while the others rest."""
        self.resting, self.others = resting, _Same(self.patterns[:count])
        self.others.keep()
        group = resting()
        self.quick = _Quick.of(self.patterns[:count], watched, group.numbers[: group.early])

    def __call__(self, run: Run, watched: Watched, _: object) -> bool:
        """Whether the values are what the patterns say."""
        state = watched.state
        if (
            self.stamp == changes.count
            and self.elsewhere == regular.again_elsewhere
            and not run.careful
        ):
            count = len(run.externals)
            resting = self.resting()
            if resting is not None and resting.state is state:
                if self.quick is not None and self.quick(run, watched, resting):
                    assert not CHECKED or self.others(run, watched.values())
                    # A result of the run is not held from here.
                    resting.watched, watched.found_inf = watched, None
                    run.resting = resting, state, resting.new, True
                    return True
                if self.others(run, watched.values()):
                    run.resting = resting, state, resting.new, False
                    return True
            elif self.all(run, [*watched.values(), *state]):
                return True
            run.forget_externals(count)
        if not self.each(run, (*watched.values(), *state), {}):
            return False
        if self.all.keep():
            self.stamp, self.elsewhere = changes.count, regular.again_elsewhere
        return True


class _Quick:
    """Whether parameters, their options and gradients are those of the last time, of an optimizer whose state rests.
    Gradients that a backward pass has just given are there: whoever sets one makes a call of the script.
    """

    def __init__(
        self,
        options: list[Sequence[Pattern]],
        params: Sequence[Pattern],
        gradients: Sequence[Pattern],
        found_inf: Pattern | None,
    ) -> None:
        self.found_inf = found_inf
        self.options = [matcher(patterns) for patterns in options]
        self.params = picker([p.number for p in params])
        self.first = min([p.number for p in gradients if p.form == SLOT], default=0)
        self.lacking = [i for i, p in enumerate(gradients) if p.form != SLOT]

    @classmethod
    def of(
        cls, patterns: Sequence[Pattern], watched: Watched, numbers: Sequence[int]
    ) -> _Quick | None:
        """Return the comparison of patterns, if a run gave each gradient or there was none, and parameters are all
        that was given before; `numbers`: what rests of it.
        """
        options, at = [], 1
        for n in range(len(watched.groups)):
            end = at + len(watched.options(n))
            options.append(patterns[at:end])
            at = end
        count = len(watched.params)
        params, gradients = patterns[at : at + count], patterns[at + count :]
        plain = all(p.form not in _OF_TENSORS for p in patterns_in(patterns[1:at]))
        absent = [p for p in [patterns[0], *gradients] if p.form != SLOT]
        if (
            not plain
            or any(p.form != STATIC or p.value is not None for p in absent)
            or any(p.form != KNOWN for p in params)
            or not {*numbers} <= {p.number for p in params}
        ):
            return None
        return cls(options, params, gradients, patterns[0] if patterns[0].form == SLOT else None)

    def __call__(self, run: Any, watched: Watched, resting: Any) -> bool:
        """Whether they are, and the parameters are those that rest."""
        params = watched.params
        if (
            not run.differentiated
            or self.first < run.first
            or watched.found_inf is not (self.found_inf and run.slots[self.found_inf.number]())
            or not all(map(is_, params, self.params(run.externals)))
            or not (watched is resting.watched or self.compare(run, watched, resting.watched))
        ):
            return False
        return not self.lacking or all(params[i]._grad is None for i in self.lacking)

    def compare(self, run: Any, watched: Watched, before: Watched) -> bool:
        """Whether parameters are those of before, and options as they were."""
        if len(watched.stamps) != len(before.stamps) or len(watched.params) != len(before.params):
            return False
        return all(map(is_, watched.params, before.params)) and all(
            stamp is last or self.options[n](run, watched.options(n), {})
            for n, (stamp, last) in enumerate(zip(watched.stamps, before.stamps))
        )


class _Same:
    """Whether values are those of the last time."""

    def __init__(self, patterns: Sequence[Pattern]) -> None:
        self.count = len(patterns)
        places: dict[int, list[int]] = {form: [] for form in (NEW, KNOWN, SLOT, -1)}
        for i, p in enumerate(patterns):
            places[p.form if p.form in places else -1].append(i)
        new, known, slots, others = places.values()
        self.new, self.known, self.slots, self.others = map(picker, places.values())
        self.patterns = [patterns[i] for i in new]
        self.externals = picker([patterns[i].number for i in known])
        self.promised = picker([patterns[i].number for i in slots])
        self.rest = matcher([patterns[i] for i in others])
        # Tensors get their numbers in order.
        self.in_order = all(p.form != NEW for i in others for p in patterns_in([patterns[i]]))
        # The tensors of the last time, and which of them had been found elsewhere as well.
        self.last: list[Callable[[], Any]] = []
        self.twice: list[tuple[Pattern, int]] = []

    def keep(self) -> bool:
        """Keep the tensors that there are now, if each comes again and again; return whether that is so."""
        if not (self.in_order and all(p.regular == changes.count for p in self.patterns)):
            return False
        self.last = [p.last for p in self.patterns]
        self.twice = [(p, i) for i, p in enumerate(self.patterns) if p.also]
        return True

    def __call__(self, run: Run, values: Sequence[object]) -> bool:
        """Whether they are; external tensors that are seen first get their numbers."""
        if len(values) != self.count:
            return False
        externals, new = run.externals, self.new(values)
        if not _are(self.last, new):
            return False
        externals += new
        if any(run.is_elsewhere(p, new[i]) for p, i in self.twice):
            return False
        if CHECKED:
            assert all(map(run.is_as_before, self.patterns, new))
        return (
            all(map(is_, self.externals(externals), self.known(values)))
            and _are(self.promised(run.slots), self.slots(values))
            and self.rest(run, tuple(self.others(values)), {})
        )


def _are(references: Sequence[Callable[[], object]], values: Sequence[object]) -> bool:
    """Whether values are the tensors of references, and each is there: one that nobody has any more is None."""
    return all(map(is_, map(call, references), values)) and all(map(is_not, values, repeat(None)))


def _gradients_giver(step: Step) -> Giver:
    """Return the function that promises what a part of a backward pass gives: gradients, which leaves get, beside what
    a hook gets.
    """
    text = _Text()
    result = text.promise(step.results, "t")
    for i, (j, form) in enumerate(step.leaves):
        grad = text.promise(form, f"g{i}")
        if type(form) is Facts:
            text.lines.append(f"leaf = run.leaf({j})" if j < 0 else f"leaf = run.externals[{j}]")
            text.lines.append(f"if leaf is not None: leaf._grad = {grad}")
    text.lines.append(f"return {result}")
    made: Giver = text.function("run")
    return made


def giver(form: Form) -> Giver:
    """Return the function that promises what a call gives."""
    text = _Text()
    text.lines.append(f"return {text.promise(form, 't')}")
    made: Giver = text.function("run")
    return made
