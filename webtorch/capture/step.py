"""`webtorch.compile`: one program for each signature of a function, replayed with no Python per
operation. Floor 5.
"""

from __future__ import annotations

import functools
import os
import time
import warnings
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MethodType
from typing import Any

from webtorch.capture.arguments import Arguments, Joint, argument_names, taken_as
from webtorch.capture.captured import Capture, Returned, is_constant
from webtorch.capture.cut import Cut
from webtorch.capture.dynamic import (
    MAX_VARIABLES,
    NotPolynomial,
    Point,
    Template,
    placeholder,
    probes,
)
from webtorch.capture.explanation import Explanation
from webtorch.capture.kernels import KernelText, kernel_texts
from webtorch.capture.memory import MemoryPlan, bytes_of, memory_plan, size_text
from webtorch.capture.meta import MetaExecutable, compile_for_nothing, without_values
from webtorch.capture.outside import attributes, is_record, rebuilt
from webtorch.capture.progress import told
from webtorch.capture.reasons import inputs_of, number_names, why_again, why_new
from webtorch.capture.replay import replay
from webtorch.capture.trace import (
    Compiler,
    NotReplayable,
    capture,
    compile_never,
    compile_varying,
)
from webtorch.capture.viewer import page
from webtorch.errors import CacheChurnWarning, CaptureError
from webtorch.functions import joining
from webtorch.ir.graph import Graph
from webtorch.ir.lines import user_depth
from webtorch.ir.program import Program
from webtorch.lower.compiler import compile_within
from webtorch.runtime.backend import Executable
from webtorch.runtime.compilations import Compilation, Input, note
from webtorch.runtime.interrupt import whole
from webtorch.runtime.meta import COMMON_GPU
from webtorch.runtime.realize import Runtime
from webtorch.runtime.trace import debug_level
from webtorch.runtime.watch import watch
from webtorch.show.theme import framed
from webtorch.tensors import autocast, override
from webtorch.tensors.device import get_default_device
from webtorch.tensors.host import HostScalar, RunAsUsual, tracing
from webtorch.tensors.modes import mode, no_grad
from webtorch.tensors.promotion import get_default_dtype
from webtorch.tensors.tape import looks_at_each
from webtorch.tensors.tensor import Tensor

# Signatures that one function keeps; the oldest is dropped beyond this.
_MAX_SIGNATURES = 16
# At this number of signatures of one function the argument that changes is named.
_MANY_SIGNATURES = 8
# Captures of one signature, for modules that train or not, options and gradients that are there or
# not.
_MAX_STATES = 8
# Captures of one function of which it remembers why.
_MAX_REMEMBERED = 64
# Why a call is captured whose inputs are those of another.
_WRITTEN = (
    "an argument that the function writes is a part of another tensor, and lies in it elsewhere"
)
_DECIDED = "its program was dropped when a number was found to decide what is computed"
# Calls of one signature in a row that a program could not repeat before none is tried any more.
_MAX_REFUSALS = 3
# Constants of up to this many bytes are compared to find out whether a number went into them.
_MAX_COMPARED = 1 << 20


@dataclass(slots=True)
class _Call:
    """A call that has to be captured: `tensors` are its tensor arguments as a program takes them, `given` as the
    caller has them. `in_place`: parts of tensors were taken as they are, and not copied. `reason` says how
    its `inputs` differ from those of earlier captures.
    """

    key: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    tensors: list[Tensor]
    given: list[Tensor]
    numbers: dict[str, float]
    sizes: tuple[int, ...]
    in_place: bool
    inputs: list[Input]
    reason: str

    def again(self, function: Callable[..., object]) -> Callable[[], object]:
        """Return what calls a function with the arguments."""
        return functools.partial(function, *self.args, **self.kwargs)


class CompiledFunction:
    """A function that is captured once per signature and then replayed.

    The first call of a signature is captured: the function runs once, recording, and its program is
    planned. From then on a call binds its arguments to the program and runs it. Parameters and
    state stay on the device and are updated in place; learning rates and other options of an
    optimizer, random numbers, number arguments, the data of tensors that the function refers to may
    change freely. Other values that it refers to (a flag, a number, a module's mode) are watched:
    when one changes, the function is captured for the new value too.

    A function that a program cannot repeat runs as usual every time, and a warning says why.
    Attributes are those of the function or Module.
    """

    def __init__(
        self,
        function: Callable[..., object],
        *,
        device: str | None = None,
        captures: bool | Iterable[str] = (),
        memory_budget: int | str | None = None,
        fullgraph: bool = False,
    ) -> None:
        self.function = function
        # Whether a function that reads a value is refused.
        self.fullgraph = fullgraph
        # Without a device nothing runs.
        self.runs = device is None
        self.wanted = captures if isinstance(captures, bool) else frozenset(captures)
        # The named intermediate results of the latest call.
        self.named: dict[str, Tensor] = {}
        self.captures: OrderedDict[object, list[tuple[Capture, dict[str, float]]]] = OrderedDict()
        # Signatures that cannot be replayed.
        self.usual: set[object] = set()
        self.refusals: dict[object, int] = {}
        self.compiler: Compiler | None = None if self.runs else compile_for_nothing
        if memory_budget is not None:
            self.compiler = self._budgeted(bytes_of(memory_budget))
        # Number arguments of a signature that only enter as arguments of the program, and those
        # whose value decided what was computed.
        self.free: dict[object, set[str]] = {}
        self.fixed: dict[object, set[str]] = {}
        # Signatures in which a tensor that is a part of another is written: taken as it is.
        self.written: set[object] = set()
        # Tensors, by their number in the arguments, with dimensions of any size.
        self.marks: dict[int, frozenset[int]] = {}
        # Signatures with sizes that are captured by themselves.
        self.apart: set[object] = set()
        # Whether marks were given up.
        self.static = False
        self.signatures: dict[object, list[Input]] = {}
        self.warned: set[str] = set()
        # What has been captured, and why.
        self.compilations: deque[Compilation] = deque(maxlen=_MAX_REMEMBERED)
        self.count = 0
        # Signatures, by hash, whose programs were dropped to make room.
        self.dropped: set[int] = set()
        functools.update_wrapper(self, getattr(function, "forward", function), updated=())

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if tracing.active or watch.before is not None or looks_at_each() or override.state.modes:
            # Part of a larger capture; or something looks at each operation of the function, which a
            # program no longer has.
            return self.function(*args, **kwargs)
        tensors: list[Tensor] = []
        numbers: dict[str, float] = {}
        holders: dict[int, int] = {}
        sizes: dict[int, int] = {}
        signature = self._flatten((args, kwargs), tensors, numbers, sizes)
        if sizes and (signature, tuple(sizes)) in self.apart:
            tensors, numbers, sizes = [], {}, {}
            signature = self._flatten((args, kwargs), tensors, numbers, None)
        key: object = (
            signature,
            mode.grad,
            mode.inference,
            autocast.signature(),
            get_default_dtype(),
            get_default_device(),
            # Which arguments are one tensor.
            tuple([holders.setdefault(id(t._storage), i) for i, t in enumerate(tensors)]),
        )
        if key in self.fixed:
            key = (key, tuple([(n, numbers[n]) for n in sorted(self.fixed[key])]))
        if key in self.usual or any(type(t) not in override.plain for t in tensors):
            # Classes with a `__torch_function__` look at each operation, too.
            return self.function(*args, **kwargs)
        given = tensors
        in_place = key in self.written
        if in_place:
            key = (
                key,
                tuple(
                    [
                        (t._strides, t._offset, t._storage.elements, t._storage.dtype)
                        for t in tensors
                    ]
                ),
            )
        if mode.grad or not all(t._whole for t in tensors):
            tensors = [
                taken_as(t, in_place, laid_out=i not in self.marks) for i, t in enumerate(tensors)
            ]
        states = self.captures.get(key, [])
        for captured, live in states:
            if not self._proven(key, live, numbers):
                continue
            before = dict(live)
            live.update(numbers)
            if captured.fits() and all(g.fits(given) for g in captured.looked_at):
                if sizes:
                    point = tuple(sizes)
                    probe = functools.partial(self._probe, point, args, kwargs, tensors, live)
                    if not captured.template.holds(point, probe):
                        # Something is decided by the size: it has a program of its own.
                        self.apart.add((signature, point))
                        return self(*args, **kwargs)
                    captured = self._at(captured.template, point)
                return self._replay(captured, tensors, given)
            live.update(before)
        if len(states) >= _MAX_STATES:
            watched = states[0][0].watched
            reason = f"{watched.changed} changes all the time" if watched else ""
            self._give_up(key, f"it depends on what changes outside: {reason}")
            return self.function(*args, **kwargs)
        inputs = inputs_of(argument_names(self.function, args), args, kwargs, given)
        reason = self._reason(key, inputs, numbers, given, in_place)
        call = _Call(
            key, args, kwargs, tensors, given, numbers, tuple(sizes), in_place, inputs, reason
        )
        with told(f"compiling {_title(self.function)}"):
            run = self._capture(call)
        return run()

    def _capture(self, call: _Call) -> Callable[[], object]:
        """Capture the function for a signature; return what runs its program, or what else is to be
        done for this call.
        """
        started = time.perf_counter()
        live = dict(call.numbers)
        if call.sizes and call.in_place:
            self._unmark(NotPolynomial("it writes a part of a tensor"))
            return call.again(self)
        captured = self._recorded(call, live)
        if not isinstance(captured, Capture):
            return captured
        self.refusals.pop(call.key, None)
        captured.names = [i.name for i in call.inputs if "shape" in i.facts]
        parts = [i for i, t in enumerate(call.given) if not t._whole]
        if not call.in_place and any(i in parts for _, i in captured.arguments):
            # The copy of a part would be written or returned, and not the part.
            self.written.add(call.key)
            return call.again(self)
        if not self._settle(call.key, captured, call.numbers, call.sizes):
            return call.again(self)
        self.free.setdefault(call.key, set()).update(_free(captured, live))
        chosen = captured
        if call.sizes:
            try:
                captured.template = self._vary(
                    captured, call.sizes, call.args, call.kwargs, call.tensors, live
                )
                chosen = captured.template.at(call.sizes)
            except NotPolynomial as refused:
                self._unmark(refused)
                return call.again(self)
        # An export compiles its captures itself.
        made: Any = chosen.executable
        steps = 0 if made is None else len(made.program.steps)
        self._note(call.reason, steps=steps, seconds=time.perf_counter() - started)
        self._keep(call, captured, live)
        return functools.partial(self._replay, chosen, call.tensors, call.given)

    def _recorded(self, call: _Call, live: dict[str, float]) -> Capture | Callable[[], object]:
        """Record a call with the numbers `live`; where no program can repeat it, return what gives its
        result.
        """
        sizes = call.sizes
        taken = self._at_sizes(call.tensors, sizes, sizes) if sizes else call.tensors
        arguments = Arguments(taken, live)
        positional, named = arguments((call.args, call.kwargs))
        joint = Joint(taken, call.given)
        # Arguments of other sizes have no values.
        may_read = self.runs and not sizes and not self.fullgraph
        try:
            captured = capture(
                self.function, positional, named, taken, objects=arguments.objects,
                careful=True, compiler=compile_never if sizes else self.compiler,
                wanted=self.wanted, reading=joint.close if may_read else None,
            )  # fmt: skip
        except NotReplayable as usual:
            if sizes:
                # That call was one without values.
                self._unmark(NotPolynomial(usual.reason))
                return call.again(self)
            joint.close()
            self._refuse(call.key, usual.reason)
            result = arguments.given_back(usual.result, taken, call.given)
            return lambda: result
        except RunAsUsual:
            return call.again(self.function)
        except CaptureError as error:
            if not sizes or self.fullgraph or not self.runs:
                raise
            self._unmark(NotPolynomial(str(error)))
            return call.again(self)
        finally:
            joint.write_back()
        changed = arguments.changed()
        if changed:
            self._give_up(call.key, f"it changes a {changed} that it is given")
            return call.again(self.function)
        return captured

    def _refuse(self, key: object, reason: str) -> None:
        """Note that a call of a signature could not be repeated; after some in a row none is tried."""
        count = self.refusals[key] = self.refusals.get(key, 0) + 1
        if count >= _MAX_REFUSALS:
            self._give_up(key, reason)
        else:
            self._note(reason, ran_as_usual=True)

    def _keep(self, call: _Call, captured: Capture, live: dict[str, float]) -> None:
        """Keep a capture, and drop the oldest signature beyond those that are kept."""
        self.captures.setdefault(call.key, []).insert(0, (captured, live))
        self.captures.move_to_end(call.key)
        self._note_signature(call.key, call.inputs)
        if len(self.captures) > _MAX_SIGNATURES:
            gone, _ = self.captures.popitem(last=False)
            self.signatures.pop(gone, None)
            self.dropped.add(hash(gone))

    def _replay(self, captured: Capture, tensors: list[Tensor], given: list[Tensor]) -> object:
        if not self.runs:
            return _without_values(captured.result)
        # All of a step, or nothing of it.
        with captured.runtime.lock, whole:
            result, self.named = replay(captured, tensors, given)
        return result

    def _budgeted(self, budget: int) -> Compiler:
        """Return a compiler whose programs compute again what does not fit into `budget` bytes."""

        def peak(program: Program) -> int:
            """Return the most bytes that a run takes."""
            return memory_plan(program).peak

        def compiler(runtime: Runtime, key: object, graph: Graph) -> Executable:
            """Return the graph's program within the budget; warn if there is none."""
            key = (key, "budget", budget, self.runs)
            found = runtime.programs.get(key)
            if found is None:
                limits = runtime.backend.limits if self.runs else COMMON_GPU
                program, least = compile_within(graph, limits, budget, peak)
                if least > budget:
                    warnings.warn(
                        f"compile: {_title(self.function)} needs {size_text(least)}, more than its "
                        f"memory_budget of {size_text(budget)}: nothing more can be computed again",
                        stacklevel=user_depth(),
                    )
                found = runtime.backend.compile(program) if self.runs else MetaExecutable(program)
                runtime.programs[key] = found
            return found

        return compiler

    # ---- sizes

    def _at(self, template: Template, point: Point) -> Capture:
        """Return the capture for sizes of the marked dimensions; a new one is planned, not recorded."""
        known, started = point in template.made, time.perf_counter()
        captured = template.at(point)
        if not known:
            sizes = " x ".join(map(str, point))
            reason = f"the marked dimensions have a new size, {sizes}: planned from the form for all sizes"
            steps = len(captured.executable.program.steps)
            self._note(reason, steps, time.perf_counter() - started)
        return captured

    def _vary(
        self,
        captured: Capture,
        sizes: tuple[int, ...],
        args: tuple[object, ...],
        kwargs: dict[str, object],
        tensors: list[Tensor],
        live: dict[str, float],
    ) -> Template:
        """Capture at other sizes of the marked dimensions too, and find what they have in common."""
        if len(sizes) > MAX_VARIABLES:
            raise NotPolynomial(f"{len(sizes)} sizes vary on their own")
        points = probes(sizes)
        found = [captured]
        compiler = self.compiler or compile_varying
        for point in points[1:]:
            try:
                found.append(self._probe(sizes, args, kwargs, tensors, live, point))
            except NotReplayable as refused:
                raise NotPolynomial(refused.reason) from None
            except (RuntimeError, ValueError, IndexError) as error:
                raise NotPolynomial(f"at size {', '.join(map(str, point))}: {error}") from error
        return Template(points, found, compiler)

    def _probe(
        self,
        sizes: Point,
        args: tuple[object, ...],
        kwargs: dict[str, object],
        tensors: list[Tensor],
        live: dict[str, float],
        point: Point,
    ) -> Capture:
        """Capture the call at other sizes of its marked dimensions, without values."""
        others = self._at_sizes(tensors, sizes, point)
        positional, named = Arguments(others, live)((args, kwargs))
        return capture(
            self.function, positional, named, others, careful=True, compiler=compile_never,
            wanted=self.wanted,
        )  # fmt: skip

    def _at_sizes(
        self, tensors: list[Tensor], sizes: tuple[int, ...], point: tuple[int, ...]
    ) -> list[Tensor]:
        """Return arguments to record with, whose marked dimensions have the sizes `point` for `sizes`."""
        size = dict(zip(sizes, point, strict=True))
        made: dict[int, Tensor] = {}
        return [
            made.setdefault(
                id(t),
                placeholder(
                    t,
                    tuple(
                        [
                            size[s] if d in self.marks[i] and s > 1 else s
                            for d, s in enumerate(t._shape)
                        ]
                    ),
                ),
            )
            if i in self.marks
            else t
            for i, t in enumerate(tensors)
        ]

    def _unmark(self, reason: NotPolynomial) -> None:
        self.marks.clear()
        self.static = True
        warnings.warn(
            f"compile: {_title(self.function)} is captured anew for each size of its marked "
            f"dimensions: programs of several sizes differ in more than their sizes ({reason})",
            stacklevel=user_depth(),
        )

    # ---- numbers

    def _proven(self, key: object, live: dict[str, float], numbers: dict[str, float]) -> bool:
        """Whether the numbers that differ from those of the capture are known to be free."""
        free = self.free.get(key, ())
        return all(n in free or _equal(live[n], value) for n, value in numbers.items())

    def _settle(
        self, key: object, captured: Capture, numbers: dict[str, float], sizes: tuple[int, ...]
    ) -> bool:
        """Compare a capture with one for other numbers: is a program all that they need?

        False where a number decided what was computed: then it belongs to the signature.
        """
        for place, (other, before) in enumerate(self.captures.get(key, ())):
            changed = {n for n in numbers if not _equal(before[n], numbers[n])}
            if not changed or not other.fits():
                continue
            if _alike(captured, other.template.at(sizes) if sizes else other):
                self.free.setdefault(key, set()).update(changed)
                del self.captures[key][place]
                return True
            self.fixed.setdefault(key, set()).update(changed)
            del self.captures[key]
            return False
        return True

    # ---- signatures

    def _flatten(
        self,
        x: object,
        tensors: list[Tensor],
        numbers: dict[str, float],
        sizes: dict[int, int] | None,
    ) -> object:
        """Return the signature of arguments, collecting tensors and floats, which may change
        without another capture, and the sizes of marked dimensions, which may too (None: no marks).
        """
        if isinstance(x, Tensor):
            number = len(tensors)
            tensors.append(x)
            marked = getattr(x, "_marked", None)
            if marked is not None and not self.static:
                self.marks[number] = self.marks.get(number, frozenset()) | marked
            dims = self.marks.get(number)
            if dims is not None and sizes is not None:
                shape: object = tuple(
                    ("size", sizes.setdefault(s, len(sizes))) if d in dims and s > 1 else s
                    for d, s in enumerate(x._shape)
                )
                layout: object = x._whole
            else:
                shape, layout = x._shape, x._whole or x._strides
            return ("tensor", shape, x.dtype, x._storage.runtime, _graph_of(x), layout, type(x))
        if type(x) is float:
            numbers[f"n{len(numbers)}"] = x
            return "float"
        if isinstance(x, (list, tuple)):
            return (type(x), *[self._flatten(v, tensors, numbers, sizes) for v in x])
        if isinstance(x, dict) or is_record(x):
            items = x.items() if isinstance(x, dict) else attributes(x).items()
            return (type(x), *[(k, self._flatten(v, tensors, numbers, sizes)) for k, v in items])
        hashed: object = type(x).__hash__
        if hashed is object.__hash__:
            # An object with contents, which are watched.
            return _Itself(x)
        try:
            hash(x)
        except TypeError:
            if hasattr(x, "__dict__"):
                return _Itself(x)
            raise TypeError(
                f"compile: an argument of {_title(self.function)} is of type {type(x).__name__}, "
                "whose contents cannot be watched: pass a tensor, as in webtorch.from_numpy(x)"
            ) from None
        return (type(x), x)

    def _reason(
        self,
        key: object,
        inputs: list[Input],
        numbers: dict[str, float],
        given: list[Tensor],
        in_place: bool,
    ) -> str:
        """Say why a call has to be captured."""
        states = self.captures.get(key)
        if states:
            captured, live = states[0]
            names = number_names(inputs)
            before = dict(live)
            # Decisions are looked at with the numbers of now.
            live.update(numbers)
            reason = why_again(captured, before, numbers, self.free.get(key, ()), names, given)
            live.update(before)
            return reason
        otherwise = _WRITTEN if in_place else _DECIDED
        if hash(key) in self.dropped:
            return f"its program was dropped: a function keeps {_MAX_SIGNATURES}"
        earlier = self.signatures.values()
        return why_new(earlier, inputs, may_vary=not self.static, otherwise=otherwise)

    def _note(
        self, reason: str, steps: int = 0, seconds: float = 0.0, *, ran_as_usual: bool = False
    ) -> None:
        """Log a capture, or a call that ran as usual."""
        self.count += not ran_as_usual
        entry = Compilation(
            "webtorch.compile",
            _title(self.function),
            self.count,
            reason,
            steps,
            seconds,
            ran_as_usual,
        )
        self.compilations.append(entry)
        note(entry, debug_level() > 0)

    def _note_signature(self, key: object, inputs: list[Input]) -> None:
        """Remember what a signature looks like; name the argument that changes all the time."""
        if key in self.signatures:
            return
        previous = next(reversed(self.signatures.values()), None)
        self.signatures[key] = inputs
        if len(self.signatures) < _MANY_SIGNATURES or previous is None:
            return
        for one, other in zip(inputs, previous):
            name, now, before = one.name, one.form, other.form
            if name == other.name and now != before and name not in self.warned:
                self.warned.add(name)
                advice = (
                    "pad it to a few sizes, or give one program to all of its sizes with "
                    f"webtorch.mark_dynamic({name}, dim)"
                    if "[" in now
                    else "pass it as a float or as a tensor, which may change freely"
                )
                warnings.warn(
                    f"compile: {_title(self.function)} has been captured for "
                    f"{len(self.signatures)} signatures because its argument {name!r} changes: "
                    f"{before}, then {now}. The oldest of more than {_MAX_SIGNATURES} programs is "
                    f"dropped; {advice}",
                    CacheChurnWarning,
                    stacklevel=user_depth(),
                )

    def _give_up(self, key: object, reason: str) -> None:
        self.usual.add(key)
        self._note(f"{reason}, and so will calls like it", ran_as_usual=True)
        warnings.warn(
            f"compile: {_title(self.function)} is not replayed as a program but runs as usual: "
            f"{reason}. Its calls take as long as without compile; fullgraph=True raises instead",
            stacklevel=user_depth(),
        )

    def __get__(self, instance: object, owner: type | None = None) -> Any:
        """Return the function as a method of an object."""
        return self if instance is None else MethodType(self, instance)

    def __getattr__(self, name: str) -> Any:
        if name == "function":
            raise AttributeError(name)
        return getattr(self.function, name)

    def __reduce__(self) -> str:
        """Return the name that it has, as for any function: a copy is itself."""
        return str(self.__dict__.get("__qualname__", type(self).__qualname__))

    # ---- looking inside

    def __repr__(self) -> str:
        title, count = _title(self.function), sum(map(len, self.captures.values()))
        if not count:
            return f"<compiled {title}: no program yet>"
        programs = "1 program" if count == 1 else f"{count} programs"
        kernels = len(self.program().routines)
        latest = "1 kernel" if kernels == 1 else f"{kernels} kernels"
        return f"<compiled {title}: {programs}, the latest of {latest} on {self._device()}>"

    def _repr_html_(self) -> str | None:
        """Return the page of the latest program, for a notebook."""
        return framed(self.graph()) if self.captures else None

    def latest(self) -> Capture:
        """Return the capture of the latest signature. Raises RuntimeError before the first call."""
        if not self.captures:
            why = "call the function once with arguments like those that it will get"
            if self.usual:
                why = f"its calls run as usual, as {self.compilations[-1].reason}"
            raise RuntimeError(f"compile: nothing has been captured yet: {why}")
        found = next(reversed(self.captures.values()))[0][0]
        return found if found.template is None else found.template.latest()

    def latest_arguments(self) -> tuple[Any, Any]:
        """Return the signatures of the latest capture's positional and keyword arguments."""
        self.latest()
        key: Any = next(reversed(self.captures))
        while len(key) == 2:
            # With numbers that it depends on, or the layout of what it writes.
            key = key[0]
        (_, positional, keywords), *_ = key
        return positional, keywords

    def program(self) -> Program:
        """Return the program of the latest signature; printed, it lists its steps.

        Several (`programs`) are shown as one, with the collectives between them as steps. Raises RuntimeError before
        the first call.
        """
        return self.latest().executable.program

    def programs(self) -> list[Program]:
        """Return the programs of the latest signature, in order: one, or more where it is cut at collectives.

        Raises RuntimeError before the first call.
        """
        found = self.latest().executable
        if isinstance(found, Cut):
            return [piece.executable.program for piece in found.pieces]
        return [found.program]

    def kernels(self) -> list[KernelText]:
        """Return the kernels of the latest program: loops, WGSL, and the user's lines."""
        captured = self.latest()
        limits = captured.runtime.backend.limits
        program = captured.executable.program
        return kernel_texts(program, limits if captured.runtime.kind == "webgpu" else None)

    def memory_plan(self) -> MemoryPlan:
        """Return what memory a run of the latest program takes, known before it runs."""
        captured = self.latest()
        executable = captured.executable
        return memory_plan(executable.program, captured.input_names(), executable.scratch_bytes)

    def explain(self) -> Explanation:
        """Return what the latest program is made of and why: printed, it is text for people.

        It says which kernels there are and what keeps them apart, why the function was captured each
        time, what holds the memory, and the same of the backward pass where the results are
        differentiated outside. Raises RuntimeError before the first capture.
        """
        captured = self.latest()
        backward = None
        if captured.backward is not None and captured.backward.graph is not None:
            second = captured.backward.ready()
            names = captured.backward_names()
            plan = memory_plan(second.program, names, second.scratch_bytes)
            title = f"the backward pass of {_title(self.function)}"
            backward = Explanation(title, self._device(), second.program, plan)
        return Explanation(
            _title(self.function), self._device(), self.program(), self.memory_plan(),
            tuple(self.compilations), backward,
        )  # fmt: skip

    def _device(self) -> str:
        return self.latest().runtime.kind if self.runs else "no device"

    def graph(self, path: str | os.PathLike[str] | None = None) -> str:
        """Return the latest program as a page of HTML that needs nothing else; write it to `path`.

        It shows the steps and what they read and write, the kernels with their WGSL and the user's
        lines, and the memory over time.
        """
        captured = self.latest()
        device = captured.runtime.kind if self.runs else "none"
        text = page(
            _title(self.function), device, self.program(), self.kernels(), self.memory_plan()
        )
        if path is not None:
            Path(path).write_text(text, encoding="utf-8")
        return text

    def captured(self) -> dict[str, Tensor]:
        """Return the named intermediate results of the latest call, as tensors on the CPU.

        They are those that `webtorch.debug.capture(name, tensor)` named in the function, and the
        results of submodules under their names, if `webtorch.compile(..., captures=...)` asks for
        them. All of them are read at once.
        """
        return read_together(self.named)


class _Itself:
    """An object as a part of a signature: equal to itself."""

    __slots__ = ("object",)

    def __init__(self, thing: object) -> None:
        self.object = thing

    def __hash__(self) -> int:
        return id(self.object)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Itself) and self.object is other.object


def read_together(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return tensors on the CPU, read in one transfer for each device and type."""
    groups: dict[object, list[str]] = {}
    for name, t in tensors.items():
        groups.setdefault((t._storage.runtime, t.dtype), []).append(name)
    out: dict[str, Tensor] = {}
    with no_grad():
        for names in groups.values():
            parts = [tensors[n].detach().reshape(-1) for n in names]
            whole = (joining.cat(parts) if len(parts) > 1 else parts[0]).cpu()
            at = 0
            for name, part in zip(names, parts, strict=True):
                count = part.numel()
                out[name] = whole[at : at + count].reshape(tensors[name]._shape)
                at += count
    return {name: out[name] for name in tensors}


def _without_values(x: object) -> object:
    """Return a structure like the one that a call returns, with tensors that have no values."""
    if isinstance(x, Returned):
        return without_values(x.shape, x.dtype)
    return rebuilt(x, _without_values)


def _equal(a: float, b: float) -> bool:
    return a == b or (a != a and b != b)


def _alike(a: Capture, b: Capture) -> bool:
    """Whether two captures differ in nothing but what is read anew at each replay."""
    fixed = [[x for i, x in enumerate(c.args) if i not in set(c.dynamic)] for c in (a, b)]
    # A capture for many sizes has no program of its own.
    mine: object = a.executable
    return (
        (a.graph == b.graph if mine is None else mine == b.executable)
        and a.dynamic == b.dynamic
        and fixed[0] == fixed[1]
        and all(_one_source(b, x, y) for x, y in zip(a.sources, b.sources, strict=True))
        and _shape_of(a.result) == _shape_of(b.result)
    )


def _free(captured: Capture, live: dict[str, float]) -> set[str]:
    """Return the numbers of a call that are known to enter the program only as its arguments."""
    if captured.watched is None or captured.watched.calculates:
        return set()
    met: set[str] = set()
    stack: list[object] = [captured.args[i] for i in captured.dynamic]
    while stack:
        x = stack.pop()
        if not isinstance(x, HostScalar):
            continue
        if x.source is live:
            met.add(x.key)
        stack.extend(getattr(x.source, "operands", ()))
    return met


def _one_source(other: Capture, x: Any, y: Any) -> bool:
    """Whether an input of a capture is that of another one."""
    if isinstance(x, int) or isinstance(y, int):
        return bool(x == y)
    if other.watched is not None:
        y = other.watched.moved.get(y, y)
    if x is y:
        return True
    if not (is_constant(x) and is_constant(y)) or x.node.buffer.nbytes > _MAX_COMPARED:
        return False
    backend = x.runtime.backend
    return bytes(backend.download(x.node.buffer)) == bytes(backend.download(y.node.buffer))


def _shape_of(x: object) -> object:
    """Return a returned structure without the identities of its tensors."""
    if isinstance(x, Returned):
        return (x.number, x.shape, x.strides, x.offset, x.history)
    if isinstance(x, (list, tuple)):
        return [_shape_of(v) for v in x]
    if isinstance(x, dict) or is_record(x):
        items = x if isinstance(x, dict) else attributes(x)
        return type(x), {k: _shape_of(v) for k, v in items.items()}
    return "number" if isinstance(x, HostScalar) else x


def _graph_of(t: Tensor) -> str:
    """Return what a tensor is to autograd."""
    if not t.requires_grad:
        return "constant"
    if t.is_leaf:
        return "leaf"
    base = t._base
    return (
        "part of a leaf" if base is not None and base.requires_grad and base.is_leaf else "computed"
    )


def _title(function: object) -> str:
    name = getattr(function, "__qualname__", None) or type(function).__name__
    return str(name).rsplit("<locals>.", 1)[-1]
