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
from collections.abc import Callable, Iterable, Iterator, Sequence
from types import CoroutineType, FrameType, GeneratorType
from typing import Any

from webtorch.capture.backward import (
    Backward,
    is_live,
    leaf_of,
    tensors_in,
    trace_backward,
    whole_graph,
)
from webtorch.capture.captured import (
    ANY,
    KEPT,
    Capture,
    Gradient,
    Returned,
    Watched,
    leaves_of,
    returned_in,
)
from webtorch.capture.cut import cut
from webtorch.capture.outside import (
    MISSING,
    Place,
    Survey,
    attributes,
    holds_tensor,
    is_code_of_user,
    new_items,
    only_counts,
    only_grows,
    rebuilt,
    same,
)
from webtorch.dispatch.call import refuse_scripts
from webtorch.errors import CaptureError
from webtorch.ir.graph import Graph, Node
from webtorch.ir.lines import is_internal
from webtorch.nn import Module
from webtorch.optim import Optimizer
from webtorch.runtime.backend import Executable
from webtorch.runtime.frozen import Frozen, freeze, to_graph
from webtorch.runtime.realize import Runtime, open_runtimes
from webtorch.runtime.recording import Owner, Recording, one_at_a_time
from webtorch.tensors.device import resolve
from webtorch.tensors.formats import strided
from webtorch.tensors.host import (
    HostCall,
    HostScalar,
    RandomOffset,
    RandomSeed,
    RunAsUsual,
    TracedOptions,
    bindings,
    make_plain,
    tracing,
)
from webtorch.tensors.modes import mode
from webtorch.tensors.storage import Storage
from webtorch.tensors.tape import AccumulateGrad, mark
from webtorch.tensors.tensor import Tensor

# How many seconds a call waits for another thread's capture before it runs as usual.
_PATIENCE = 5.0

# What makes a graph's program: frozen graph, graph -> executable.
Compiler = Callable[[Runtime, object, Graph], Executable]


class NotReplayable(Exception):
    """The call did what a program cannot repeat; it has run as usual, with this result."""

    def __init__(self, result: object, reason: str) -> None:
        super().__init__(reason)
        self.result = result
        self.reason = reason


def capture(
    function: Callable[..., object],
    args: tuple[object, ...],
    kwargs: dict[str, object],
    tensors: list[Tensor],
    *,
    careful: bool = False,
    runtime: Runtime | None = None,
    compiler: Compiler | None = None,
    wanted: bool | frozenset[str] = False,
    objects: Sequence[object] = (),
    reading: Callable[[], object] | None = None,
) -> Capture:
    """Capture `function(*args, **kwargs)`, whose tensor arguments are `tensors` (computed).

    `runtime` is where the call computes; by default that is the arguments' device. `compiler` turns
    its graph into a program; `wanted` are names of intermediate results to keep. With `careful`,
    what the function reads outside its arguments, and in `objects`, is watched, and NotReplayable is
    raised where the call did what a program cannot repeat: it stands, if its arguments have values, and
    is undone if not. Where the function reads a value of what it computes, CaptureError is raised; with
    `reading`, that is called, the call goes on as usual from there, and NotReplayable is raised at its
    end.
    """
    refuse_scripts("a function is captured")
    rest = careful, runtime, compiler, wanted, reading
    if not one_at_a_time.acquire(timeout=_PATIENCE if careful else -1):
        # Another thread captures, and may be waiting for this one.
        raise RunAsUsual
    try:
        return _Capturing(function, args, kwargs, tensors, objects, *rest).run()
    except _Unwatched as met:
        # What does not go by a name that the survey follows is looked at the second time.
        more = [*objects, *met.objects]
        for group in (g for o in met.objects for g in o.param_groups):
            # What the first one set there.
            make_plain(group)
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
        function: Callable[..., object],
        args: tuple[object, ...],
        kwargs: dict[str, Any],
        tensors: list[Tensor],
        objects: Sequence[object],
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
        self.effects: list[tuple[Place, object]] = []
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
            self._note_host()
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

    def _call(self) -> object:
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
        """Stop recording: what the call did so far stands, and is computed like any other work."""
        place = _place_of(traceback.walk_stack(sys._getframe(1)))
        self.usual = "it reads a value of what it computes" + (f", at {place}" if place else "")
        if tracing.options is not None and tracing.options.plain:
            tracing.options.hide()
        for r in (self.runtime, *self.others):
            r.stop_recording(keep=True)
        picked, calls = tracing.picked, tracing.calls
        tracing.end()
        self._act(calls)
        # Copies stand for views until the call ends.
        tracing.picked = picked
        assert self.reading is not None
        self.reading()

    def _act(self, calls: Sequence[HostCall]) -> None:
        """Let the host do what it was to do between programs, as what the call did stands."""
        if not calls:
            return
        runtime, left = self.runtime, dict[HostCall, object]()
        # The rest waits for what comes of these: it is computed when somebody asks for it.
        pending, runtime.pending = runtime.pending, []
        try:
            for call in calls:
                values = [Storage(g.node, runtime).realize().buffer for g in call.given]
                runtime.arriving += call.act(values, left)
        finally:
            runtime.pending[:0] = pending

    # ---- what the call left

    def _look_through(
        self, result: object, recording: Recording
    ) -> tuple[Frozen, Graph, list[Owner]]:
        """Freeze what the call would have computed; raise NotReplayable where no program repeats it."""
        self.named = dict(tracing.named)
        reason, self.calls = tracing.refused, list(tracing.calls)
        if self.calls and not self.computes:
            reason = reason or "it sends tensors to other processes"
        if any(r.recording is not None and r.recording.count for r in self.others):
            reason = reason or (
                "it computes on two devices: move the arguments to one before the call"
            )
        # What the call itself leaves; the backward pass that is recorded next has results of its own.
        owners = recording.live()
        if self.survey is not None:
            reason = self._refusal(self.survey, result, reason)
        self.extra = self.backward.owners() if self.backward is not None else []
        owners += [given for call in self.calls for given in call.given]
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
        if self.calls and not self.careful:
            raise CaptureError(
                "it sends tensors to other processes, which no program does that is exported: call the collectives "
                "outside"
            )
        self.replayable = True
        if self.backward is not None:
            # What the graph alone has held is no result of the call.
            left = [weakref.ref(o) for o in owners]
            del owners, frozen
            self.backward.release()
            owners = [o for reference in left if (o := reference()) is not None]
            with self.runtime.lock:
                frozen = freeze(owners)
                graph = to_graph(frozen)
        return frozen, graph, owners

    def _refusal(self, survey: Survey, result: object, reason: str | None) -> str | None:
        """Say why a program cannot repeat the call, if so; record its backward pass if it can."""
        tensors = self.tensors
        reason = _effects(survey, self.runtime, self.effects, self.dropped) or reason
        there = [*_watched_tensors(survey), *tensors]
        reason = reason or _unknown(result, set(map(id, there)))
        left = [t._grad for t, g, _ in tracing.grads.values() if t._grad is not g]
        if any(
            isinstance(x, Tensor) and x.layout is not strided
            for x in leaves_of([left, [v for _, v in self.effects]])
        ):
            reason = reason or "it leaves a sparse tensor behind"
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

    def _note_host(self) -> None:
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
        calls = tracing.calls
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
        if stands:
            self._act(calls)
        mode.grad, mode.inference = self.gradient_mode

    # ---- the program

    def _captured(
        self, result: object, frozen: Frozen, graph: Graph, owners: list[Owner]
    ) -> Capture:
        """Return the program of the call, where its inputs come from and where its outputs go."""
        runtime, tensors, grads = self.runtime, self.tensors, self.grads
        storages = [o for o in owners if isinstance(o, Storage)]
        count = len(storages) - len(self.extra)
        argument_storages = {id(t._storage): i for i, t in enumerate(tensors)}
        sources = [
            argument_storages.get(id(home), home)
            for home in (self.homes.get(n) or _constant(n, runtime) for n in frozen.inputs)
        ]
        each = [(c, i, n) for c, call in enumerate(self.calls) for i, n in enumerate(call.coming)]
        came = {n: (c, i) for c, i, n in each}
        self.coming = {k: came[n] for k, n in enumerate(frozen.inputs) if n in came}
        self.given = sum([len(call.given) for call in self.calls])
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
        donors = [*frozen.donors[:count], *frozen.donors[count + self.given :]]
        targets = self._targets(storages, donors, count, describe.returned)
        if self.backward is not None:
            read = self.backward.read
            self.backward.read_outputs = [i for i, s in enumerate(storages[:count]) if s in read]
        # A storage keeps the shape that its memory had before, so that later graphs look the same.
        overwritten = self.overwritten
        shapes = [overwritten[s].shape if s in overwritten else s.node.shape for s in storages]
        used = {id(x) for x in (*sources, *targets)}
        for gradient in grads:
            if id(gradient.before) not in used:
                gradient.before = None
        left = (result, shown, [value for _, value in effects], [g.after for g in grads])
        used = {id(x) for x in targets} | {id(r.storage) for r in returned_in(left)}
        arguments = [(t._storage, i) for i, t in enumerate(tensors) if id(t._storage) in used]
        dynamic = [
            i
            for i, a in enumerate(frozen.args)
            if isinstance(a, (HostScalar, RandomOffset, RandomSeed))
        ]
        executable, graph, sources, donated = self._compiled(frozen, graph, sources, count)
        for call in self.calls:
            call.forget()
        captured = Capture(
            runtime, graph, executable, sources, donated, targets[:count] if self.backward else targets,
            shapes, frozen.args, dynamic, self.draws, result, grads, arguments, watched, self.actions,
            effects, self.decisions, shown, [], None, self.backward, bindings.epoch, self.calls,
        )  # fmt: skip
        if watched is not None:
            watched.holds()
        return captured

    def _describer(self, storages: list[Storage], watched: Watched | None) -> _Describe:
        """Return what describes the tensors that the call leaves; the backward pass is described."""
        numbers = {id(s): i for i, s in enumerate(storages)}
        known: dict[int, object] = {}
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
        key, kept = frozen.key, [*range(len(sources))]
        if backward is not None:
            written_to = {
                k
                for k, x in enumerate(sources)
                if (tensors[x]._storage if isinstance(x, int) else x) in self.overwritten
            }
            # What comes from the host is kept, too.
            written_to |= {*self.coming}
            given = count + self.given
            graph, kept = backward.split(graph, frozen.key, given, sources, written_to, runtime)
            key = frozen.key, "forward", count
        if not self.calls:
            executable: Executable = self.compiler(runtime, key, graph)
        else:
            coming = {k: self.coming[x] for k, x in enumerate(kept) if x in self.coming}
            executable = cut(
                graph, self.calls, coming, count,
                lambda part, cut_off: self.compiler(runtime, (key, part), cut_off), runtime,
            )  # fmt: skip
            kept = [k for k in kept if k not in self.coming]
        return executable, graph, [sources[k] for k in kept], [donated[k] for k in kept]


@contextlib.contextmanager
def _garbage_collected() -> Iterator[None]:
    """Collect what the block leaves in reference cycles.

    Objects that the block makes stay in the youngest generations, as nothing is collected meanwhile: so
    that this takes no longer in a large process.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
        # Another thread may have ended its own block, and one collection may so have run in this one.
        gc.collect(1)
    finally:
        if enabled:
            gc.enable()


def _called(
    function: Callable[..., object], args: tuple[object, ...], kwargs: dict[str, object]
) -> object:
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


def compile_cached(runtime: Runtime, key: object, graph: Graph) -> Executable:
    """Return the program of a graph from the runtime's cache, which lazy runs use too."""
    return runtime.program(key, graph)


def compile_varying(runtime: Runtime, key: object, graph: Graph) -> Executable:
    """Return the program of a graph whose sizes vary from one program to the next."""
    return runtime.program(("varying", graph), graph, varying=True)


def compile_never(runtime: Runtime, key: object, graph: Graph) -> Any:
    """Stand in for a compiler where only the graph is wanted."""
    return None


def _effects(
    survey: Survey, runtime: Runtime, effects: list[tuple[Place, object]], dropped: set[int]
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


def _unknown(result: object, known: set[int]) -> str | None:
    """Say what in a result cannot be made anew, if there is something. `known` are the tensors of
    before, by id.
    """
    for x in leaves_of(result):
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
    effects: list[tuple[Place, object]],
) -> tuple[Backward | None, str | None]:
    """Record the backward pass of a call's results; or return why a program cannot repeat it, with
    everything as it was before.
    """
    for length in survey.lengths:
        length.count = len(length.container)
    recording = runtime.recording
    assert recording is not None
    values = {s: s.node for s in recording.overwritten}
    pending, calls = list(recording.pending), len(tracing.calls)
    backward, reason = None, None
    try:
        backward = trace_backward(live, {id(t): i for i, t in enumerate(ends)})
    except Exception as error:
        # The caller's own backward pass says so again, where it is called.
        reason = f"its backward pass fails ({error})"
    if len(tracing.calls) > calls:
        del tracing.calls[calls:]
        reason = "its backward pass sends tensors to other processes"
    # What hooks did outside.
    after: list[tuple[Place, object]] = []
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


def _in_order(x: object) -> bool:
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
    function: Callable[..., object], tensors: list[Tensor], survey: Survey | None
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
    home.elements, home.version, home.donor, home.resting = 0, 0, None, None
    runtime.settle(home)
    return home


def _homes(
    inputs: list[Node], tensors: list[Tensor], overwritten: dict[Owner, Node], runtime: Runtime
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

    def __init__(self, left: object = None, existing: Sequence[Tensor] = ()) -> None:
        known = set(map(id, existing))
        home = {id(t._storage): t for t in existing}
        left = [t for t in tensors_in(left) if id(t) not in known]
        for t in left:
            if t._base is not None and t._made_by is None:
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
        if fn.is_watched:
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
