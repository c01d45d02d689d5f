"""The programs of a compiled graph: which one a call takes, its buffers, and its results. Floor 6.

A call finds out with one look at each input's address what has moved since the last one; where nothing
of the inputs' geometry changed, it runs the same program. What it does for each parameter and for each value that
is saved for a backward graph is a step of a loop in C. Where the graph's sizes are symbols, a few
captures give one form for all sizes (`capture.dynamic`), as `webtorch.mark_dynamic` does.
"""

from __future__ import annotations

import contextlib
import itertools
import sys
import time
import weakref
from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from operator import eq, itemgetter
from typing import Any, TypeAlias

import torch
from torch.utils.weak import WeakTensorKeyDictionary

from webtorch import errors
from webtorch.capture.captured import Capture, Returned
from webtorch.capture.dynamic import (
    MAX_VARIABLES,
    NotPolynomial,
    Point,
    Template,
    placeholder,
    probes,
)
from webtorch.capture.replay import read_arguments, settle
from webtorch.capture.trace import capture, compile_never, compile_varying
from webtorch.ir.view import numel
from webtorch.pytorch import device as bridge
from webtorch.pytorch import interrupt
from webtorch.pytorch.device import TO_TORCH, Memory, changes, flat, memory_of, tensor_on
from webtorch.pytorch.geometry import (
    NOWHERE,
    Geometry,
    look,
    own_storage,
    storage_of,
    torch_tensor,
    view_of,
)
from webtorch.pytorch.origin import Origin
from webtorch.pytorch.saved import Saved, hooks
from webtorch.pytorch.symbols import Sizes
from webtorch.pytorch.values import NUMBERS, Again, Arguments, Evaluates, Fresh, Itself, OfInput
from webtorch.runtime.compilations import Input, nearest, told
from webtorch.runtime.trace import debug_level
from webtorch.runtime.watch import watch
from webtorch.tensors.host import host_scalar
from webtorch.tensors.storage import Kept, Storage, writes
from webtorch.tensors.tensor import Tensor
from webtorch_autoload.device import hide

_ADDRESS = torch.Tensor.data_ptr


# What lies in memory: storages, and of what is saved for a backward graph perhaps the memory alone.
Storages: TypeAlias = list[Any]
# What a program is found by: how its tensors lie, which of them share a storage, and its numbers.
Key: TypeAlias = tuple[tuple[Geometry, ...], tuple[int, ...] | None, tuple[object, ...]]
# Dtype, shape, strides and offset of a new tensor.
Placed: TypeAlias = tuple[torch.dtype, tuple[int, ...], tuple[int, ...], int]
# Of each result Fresh, OfInput, Itself or Again; or the result, where it is no tensor.
Found: TypeAlias = list[Any]
# Programs that one graph keeps, for other shapes, strides or offsets of its inputs.
_MAX_PROGRAMS = 16
# The same where sizes are symbols: further sizes cost no capture.
_MAX_SIZES = 64


@dataclass(slots=True)
class Ready:
    """A program with all that a call needs to know of it. Inputs are numbered among the tensors."""

    captured: Capture
    # Of the inputs' storages and these constants, those of the program's inputs in its order.
    constants: list[Storage]
    pick: Callable[[Storages], Sequence[object]]
    # Inputs whose memory it overwrites.
    donated: list[int]
    # Where each is found.
    results: Found
    # Where all that the caller sees is new: for each the output and how it lies there, for `tensor_on`.
    simple: list[tuple[int, Placed]] | None
    # For each input the program's input that is its storage.
    places: dict[int, int]
    # Storages of arguments in the program's targets -> the inputs that they belong to.
    written: dict[Storage, int]
    # Free numbers: where the program reads them.
    live: dict[str, object]
    # Whether there are numbers to be read anew at each call.
    reads: bool
    keeps: Keeps | None


@dataclass(slots=True)
class Keeps:
    """How a call finds what it saves for the backward graph."""

    # What is saved, of one list: the program's outputs, the inputs' storages, and these: storages, and
    # numbers of outputs that are results too.
    pick: Callable[[Storages], Sequence[Any]]
    others: list[Storage | int]
    # Outputs that are nothing else: of these the memory is saved.
    memories: frozenset[int]
    # How each lies in its storage.
    geometry: list[Geometry]
    # What must not be overwritten before it is used: parameters, other arguments, results.
    owners: Callable[[Arguments], Sequence[torch.Tensor]]
    moving: list[int]
    shown: list[int]


@dataclass(frozen=True, slots=True)
class Call:
    """What one call gives a graph: its tensors' storages, how they lie there, and all of its arguments."""

    storages: list[Storage]
    geometry: list[Geometry]
    # For each tensor the first that has the same storage; None where all have their own.
    aliases: tuple[int, ...] | None
    args: Arguments
    # Free numbers, which a program reads anew at each call.
    live: dict[str, object]


@dataclass(slots=True)
class Inputs:
    """What is known of the tensors of the last call. Those that stay where they are are not looked at again."""

    ready: Ready
    # 0 for what is loose: looked at in each call.
    addresses: list[int]
    geometry: list[Geometry]
    # For each the first that has the same storage; None where all have their own.
    aliases: tuple[int, ...] | None
    numbers: tuple[object, ...]
    epoch: int
    # The program whose `Saved` brought some.
    source: Ready | None
    # None for what is loose: what a step computed must not live until the next one.
    storages: Storages
    loose: list[int]
    # Where the loose ones were, to find out which stay; None for those that are known not to.
    seen: list[int | None]
    stable: frozenset[Storage]
    # Tell when memory that is held here has been freed.
    memories: list[weakref.ref[Memory]]
    # What the program reads of it.
    kept: Kept


# Copies of parameters and buffers that are on the CPU: version and address of what was copied, and the copy.
_uploads = WeakTensorKeyDictionary()


def uploaded(x: torch.Tensor, keeps: bool) -> torch.Tensor:
    """Return a CPU tensor on the device: a parameter as it was uploaded, if it has not changed."""
    # Tensors of inference mode have no versions: nobody knows whether they changed.
    keeps = keeps and not x.is_inference()
    state = (x._version, x.data_ptr()) if keeps else None
    found = _uploads.get(x) if keeps else None
    if found is not None and found[0] == state:
        return found[1]
    made = x.detach().to("webgpu", x.dtype if x.dim() else NUMBERS.get(x.dtype, x.dtype))
    if keeps:
        _uploads[x] = (state, made)
    return made


def _name(title: str | int, names: Sequence[str]) -> str:
    """Return the name of an input, which may be one of those of the forward graph."""
    if isinstance(title, str):
        return title
    return names[title] if title < len(names) else f"argument {title}"


class Programs:
    """A compiled graph as PyTorch calls it: with a list of its arguments."""

    def __init__(
        self,
        graph: Evaluates,
        static: frozenset[int],
        saved: frozenset[int] = frozenset(),
        *,
        is_backward: bool = False,
        downloads: bool = True,
        origin: Origin | None = None,
        second: bool = False,
    ) -> None:
        """`static`: inputs that are parameters or buffers. `saved`: results that are tensors for the backward graph.

        `downloads`: results traced on the CPU go there. `origin` is where the graph comes from; `second`: as the
        backward graph.
        """
        self.graph = graph
        self.origin, self.second = origin, second
        names = [] if origin is None else origin.names
        self.names = [_name(title, names) for title in graph.titles]
        if origin is not None:
            if not second and len(names) == len(self.names):
                self.names = names
            (origin.backward if second else origin.forward).append(weakref.ref(self))
        self.static = static
        self.saved = saved
        inputs = graph.inputs
        self.tensors = [i for i, v in enumerate(inputs) if v.is_tensor]
        self.others = [i for i, v in enumerate(inputs) if not v.is_tensor]
        self.free = [i for i in self.others if inputs[i].is_free]
        self.keyed = [i for i in self.others if not inputs[i].is_free]
        # Inputs that are PyTorch tensors; what a `Saved` brings comes before these.
        self.given = [i for i in self.tensors if i not in graph.taken]
        # Whether arguments are tensors on the device, to be read as they lie there, and nothing else.
        self.plain = not (
            is_backward or self.others or any(v.is_on_cpu or v.is_lazy for v in inputs)
        )
        self.downloads = [
            downloads and r.is_on_cpu and i not in self.saved and r.origin is None
            for i, r in enumerate(graph.results)
        ]
        self.programs: OrderedDict[Key, Ready] = OrderedDict()
        self.last: Inputs | None = None
        # Where the tensors of that call were, and which have been somewhere else in another one.
        self.before: list[int] = []
        self.moving: set[int] = set()
        self.since: object = None
        this = weakref.ref(self)

        def freed(memory: object) -> None:
            """Forget the last inputs when the memory of one is freed."""
            programs = this()
            if programs is not None:
                programs.last = None

        # Called wherever memory is freed, in functions that Dynamo traces too.
        self.freed = hide(freed)
        self.sizes = Sizes([inputs[i] for i in self.tensors], self.others, inputs)
        # By the inputs' types: what makes captures for all sizes, or None where there is no such thing.
        self.templates: dict[Hashable, Template | None] = {}

    def __call__(self, args: list[Any]) -> list[Any]:
        if interrupt.flag.pressed:
            interrupt.check()
        source = None
        if self.graph.taken:
            place = self.graph.taken.start
            brought: Saved = args[place]
            source = brought.source
            args[place : place + 1] = brought.take()
        given = args if self.plain else self._given(args, source)
        ready, storages, known = self._inputs(given, args, source)
        outputs, fresh = self._run(ready, storages, known, args)
        results: list[Any]
        if ready.simple is not None:
            results = [tensor_on(fresh[n], *form) for n, form in ready.simple]
        else:
            results = self._results(ready, storages, given, args, fresh)
        if ready.keeps is not None:
            saved = self._saved(ready, ready.keeps, storages, args, outputs, fresh, results)
            results.insert(self.graph.packed.start, saved)
        args.clear()
        return results

    # ---- inputs

    def _given(self, args: Arguments, source: Ready | None) -> list[torch.Tensor]:
        """Return the tensors among the arguments, on the device; without what a forward program saved."""
        given: list[torch.Tensor] = []
        for i in self.tensors if source is None else self.given:
            a = args[i]
            if a.is_cpu:
                a = uploaded(a, i in self.static)
            elif a.is_conj() or a.is_neg():
                a = a.detach().resolve_conj().resolve_neg()
            given.append(a)
        return given

    def _inputs(
        self, given: Arguments, args: Arguments, source: Ready | None
    ) -> tuple[Ready, Storages, Inputs | None]:
        """Find the program and the storages for a call, by what has changed since the last one.

        What is saved comes first among the storages, and may be memory alone. Last, what was known already of a
        call like this.
        """
        addresses = list(map(_ADDRESS, given))
        numbers = tuple([args[i] for i in self.keyed]) if self.keyed else ()
        last = self.last
        if (
            last is None
            or last.epoch != changes.count
            or last.source is not source
            or last.numbers != numbers
        ):
            last = None
        elif source is None:
            loose = last.loose
            if not loose:
                if addresses == last.addresses:
                    return last.ready, last.storages, last
            elif last.aliases is None:
                now = [addresses[i] for i in loose]
                for i in loose:
                    addresses[i] = 0
                if addresses == last.addresses and not any(map(eq, now, last.seen)):
                    storages = self._loose(last, given)
                    if storages is not None:
                        if any(last.seen):
                            self.moving.update(loose)
                            last.seen = [None] * len(loose)
                        return last.ready, storages, last
                for i, address in zip(loose, now, strict=True):
                    addresses[i] = address
        ready, storages = self._looked(given, args, addresses, numbers, source, last)
        return ready, storages, None

    def _loose(self, last: Inputs, given: Arguments) -> Storages | None:
        """Return the storages of a call whose loose tensors alone have moved; None if they lie in another way."""
        storages = last.storages.copy()
        for i in last.loose:
            storages[i], form = look(given[i])
            if form != last.geometry[i] or storages[i] in last.stable:
                return None
        if len(last.loose) > 1 and len({storages[i] for i in last.loose}) < len(last.loose):
            return None
        return storages

    def _looked(
        self,
        given: Arguments,
        args: Arguments,
        addresses: list[int],
        numbers: tuple[object, ...],
        source: Ready | None,
        last: Inputs | None,
    ) -> tuple[Ready, Storages]:
        """Find the same by looking at the tensors: with `last` only at those that have moved since that call."""
        kept: Storages = []
        if source is not None:
            kept = list(args[self.graph.taken.start : self.graph.taken.stop])
        start = len(kept)
        ready = None
        if last is not None:
            ready, storages, geometry = last.ready, last.storages.copy(), last.geometry
            moved = [a != b or not a for a, b in zip(addresses, last.addresses, strict=True)]
            unknown = list(itertools.compress(range(len(given)), moved))
        else:
            storages = [None] * len(given)
            geometry = [NOWHERE] * len(given)
            if source is not None and source.keeps is not None:
                geometry = source.keeps.geometry + geometry
            unknown = list(range(len(given)))
        for i in unknown:
            storages[i], form = look(given[i])
            if form != geometry[start + i]:
                if ready is not None:
                    geometry, ready = geometry.copy(), None
                geometry[start + i] = form
        every = kept + storages if kept else storages
        aliases = None
        if len(set(every)) < len(every):
            first: dict[object, int] = {}
            aliases = tuple([first.setdefault(s, i) for i, s in enumerate(every)])
        if ready is None or last is None or aliases != last.aliases:
            ready = self._ready(every, geometry, aliases, numbers, args)
        self._remember(given, addresses, storages, ready, geometry, aliases, numbers, source)
        return ready, every

    def _remember(
        self,
        given: Arguments,
        addresses: list[int],
        storages: Storages,
        ready: Ready,
        geometry: list[Geometry],
        aliases: tuple[int, ...] | None,
        numbers: tuple[object, ...],
        source: Ready | None,
    ) -> None:
        """Note what a call was given. What is no parameter is held once it has been in one place twice."""
        before = self.before if len(self.before) == len(addresses) else [0] * len(addresses)
        self.before = addresses
        loose: list[int] = []
        if source is not None:
            loose = list(range(len(addresses)))
        else:
            for i, (address, was) in enumerate(zip(addresses, before, strict=True)):
                if address and self.tensors[i] in self.static:
                    continue
                if was and address != was:
                    self.moving.add(i)
                # Empty tensors have no address.
                if not address or address != was or i in self.moving:
                    loose.append(i)
        seen: list[int | None] = [
            None if i in self.moving or not addresses[i] else addresses[i] for i in loose
        ]
        held, there = storages, addresses
        if loose:
            held, there = storages.copy(), addresses.copy()
            for i in loose:
                held[i], there[i] = None, 0
        last = self.last
        if last is not None and last.storages == held:
            stable, memories = last.stable, last.memories
        else:
            stable = frozenset([s for s in held if s is not None])
            memories = [
                weakref.ref(memory_of(x), self.freed)
                for x, s in zip(given, held, strict=True)
                if s is not None
            ]
        self.last = Inputs(
            ready, there, geometry, aliases, numbers, changes.count, source,
            held, loose, seen, stable, memories, Kept(),
        )  # fmt: skip

    def _ready(
        self,
        storages: Storages,
        geometry: list[Geometry],
        aliases: tuple[int, ...] | None,
        numbers: tuple[object, ...],
        args: Arguments,
    ) -> Ready:
        key = (tuple(geometry), aliases, numbers)
        found = self.programs.get(key)
        if found is not None:
            self.programs.move_to_end(key)
            return found
        started = time.perf_counter()
        storages = [storage_of(s, g) for s, g in zip(storages, geometry, strict=True)]
        live = {f"n{i}": args[i] for i in self.free}
        call = Call(storages, geometry, aliases, args, live)
        captured = self._at_sizes(call) if self.sizes.symbols else None
        if captured is None:
            captured = self._capture(call, None)
        ready = self._prepare(captured, geometry, live)
        if self.origin is not None:
            steps = len(captured.executable.program.steps)
            reason = self._reason(self.origin, key)
            self.origin.note(reason, steps, time.perf_counter() - started, self.second)
        self.programs[key] = ready
        if len(self.programs) > (_MAX_SIZES if self.sizes.symbols else _MAX_PROGRAMS):
            self.programs.popitem(last=False)
        return ready

    def latest(self) -> Capture | None:
        """Return the capture of the program that ran last; None before the first call."""
        if self.last is not None:
            return self.last.ready.captured
        return next(reversed(self.programs.values())).captured if self.programs else None

    def _reason(self, origin: Origin, key: Key) -> str:
        """Say why the graph needs a program more."""
        _, differences = nearest(map(self._known, self.programs), self._known(key))
        if differences:
            return told(differences)
        if self.second:
            return "the first backward pass"
        return origin.reason

    def _known(self, key: Key) -> list[Input]:
        """Return what a program's inputs are known by."""
        geometry, aliases, numbers = key
        found = [
            Input(self.names[i], form.facts())
            for i, form in zip(self.tensors, geometry, strict=True)
        ]
        found += [Input(self.names[i], {"value": n}) for i, n in zip(self.keyed, numbers)]
        return [*found, Input("", {"which arguments share memory": aliases})]

    # ---- captures

    def _capture(self, call: Call, point: Point | None) -> Capture:
        """Record the graph on these inputs; with `point` on ones of these sizes, without values."""
        forms = call.geometry
        if point is not None:
            forms = [self.sizes.geometry(n, point, g) for n, g in enumerate(call.geometry)]
        flats = [
            flat(s) if form is was else placeholder(flat(s), (form.elements,))
            for s, was, form in zip(call.storages, call.geometry, forms)
        ]
        if call.aliases is not None:
            flats = [flats[first] for first in call.aliases]
        whole: list[object] = list(call.args)
        for i in self.others:
            if i in self.free:
                whole[i] = host_scalar(call.live, f"n{i}")
            elif point is not None:
                whole[i] = self.sizes.number(i, point, call.args[i])

        def run(*tensors: Tensor) -> list[object]:
            """Run the graph on inputs of these memories."""
            for i, t, form in zip(self.tensors, tensors, forms):
                whole[i] = view_of(t._storage, form)
            numbers = {t._storage: n for n, t in enumerate(tensors)}
            return [_mark(x, numbers) for x in self.graph.evaluate(whole)]

        runtime = bridge.runtime()
        if point is None:
            return capture(run, tuple(flats), {}, flats, runtime=runtime)
        return capture(run, tuple(flats), {}, flats, runtime=runtime, compiler=compile_never)

    def _at_sizes(self, call: Call) -> Capture | None:
        """Return the capture for a call's sizes, from the form for all of them; None if there is none."""
        point = self.sizes.point(call.geometry, call.args)
        if point is None:
            return None
        kinds = (tuple([g.dtype for g in call.geometry]), call.aliases)
        if kinds not in self.templates:
            self.templates[kinds] = self._template(call, point)
        template = self.templates[kinds]
        if template is None or not template.holds(point, lambda p: self._capture(call, p)):
            return None
        with contextlib.suppress(NotPolynomial):
            return template.at(point)
        return None

    def _template(self, call: Call, point: Point) -> Template | None:
        """Record the graph at a few sizes, without values; None where that gives no form for all sizes."""
        if len(point) > MAX_VARIABLES:
            return None
        points = probes(point)
        try:
            captures = [self._capture(call, p) for p in points]
            return Template(points, captures, compile_varying)
        except (errors.OutOfMemoryError, errors.DeviceLostError, errors.KernelError):
            raise
        except (NotPolynomial, RuntimeError, ValueError, IndexError) as error:
            # Sizes decide more than sizes, or the graph refuses others: each choice is captured by itself.
            if debug_level():
                sys.stderr.write(f"webtorch: a graph is recorded for each size anew: {error}\n")
            return None

    def _prepare(
        self, captured: Capture, geometry: list[Geometry], live: dict[str, object]
    ) -> Ready:
        """Find out once what each call of a program needs."""
        results: Found = []
        packed = self.graph.packed
        for i, (value, found) in enumerate(zip(self.graph.results, captured.result, strict=True)):
            if value.again is not None and i not in packed:
                found = Again(value.again)
            elif value.origin is not None and value.origin in self.graph.taken:
                # What was saved is no tensor that could be returned.
                n = self.tensors.index(value.origin)
                found = OfInput(n, geometry[n])
            elif value.origin is not None:
                found = Itself(value.origin)
            elif isinstance(found, Returned):
                assert found.number is not None or found.storage is not None
                if found.number is not None:
                    elements = numel(captured.shapes[found.number])
                else:
                    elements = found.storage.elements  # type: ignore[union-attr]
                dtype = TO_TORCH[found.dtype]
                form = Geometry(found.shape, found.strides, found.offset, elements, dtype)
                found = Fresh(found.number, found.storage, form)
            elif isinstance(found, OfInput):
                elements = geometry[found.number].elements
                found = found._replace(geometry=found.geometry._replace(elements=elements))
            results.append(found)
        sources = captured.sources
        donated = [s for s, d in zip(sources, captured.donated) if d and isinstance(s, int)]
        constants = [s for s in sources if isinstance(s, Storage)]
        at = itertools.count(len(geometry))
        pick = _picks([s if isinstance(s, int) else next(at) for s in sources])
        written = dict(captured.arguments)
        places = {s: n for n, s in enumerate(sources) if isinstance(s, int)}
        reads = bool(captured.dynamic or captured.draws or captured.actions)
        simple = self._simple(captured, results)
        keeps = self._keeps(captured, geometry, results, written) if self.graph.packed else None
        return Ready(
            captured, constants, pick, donated, results, simple, places, written, live, reads, keeps
        )

    def _simple(self, captured: Capture, results: Found) -> list[tuple[int, Placed]] | None:
        """Return how to make the results of a call where all are new and have storages of their own."""
        if self.graph.written and not self.plain:
            return None
        simple: list[tuple[int, Placed]] = []
        for i, found in enumerate(results):
            if i in self.graph.packed:
                continue
            if type(found) is not Fresh or found.number is None or self.downloads[i]:
                return None
            if not isinstance(captured.targets[found.number], int):
                return None
            form = found.geometry
            simple.append((found.number, (form.dtype, form.shape, form.strides, form.offset)))
        return simple if len({n for n, _ in simple}) == len(simple) else None

    def _keeps(
        self,
        captured: Capture,
        geometry: list[Geometry],
        results: Found,
        written: dict[Storage, int],
    ) -> Keeps:
        """Find out once where each call of a program finds what it saves."""
        packed = self.graph.packed
        shown = {r.number: i for i, r in enumerate(results) if type(r) is Fresh and i not in packed}
        start = len(captured.targets)
        others: list[Storage | int] = []
        places: list[int] = []
        forms: list[Geometry] = []
        watched: set[int] = set()
        watched_results: set[int] = set()
        for i in packed:
            found, n = results[i], None
            if type(found) is Itself:
                n = self.tensors.index(found.number)
                found = OfInput(n, geometry[n])
            forms.append(found.geometry)
            if type(found) is OfInput:
                n = found.number
            else:
                target = found.storage if found.number is None else captured.targets[found.number]
                if isinstance(target, Storage):
                    n = written.get(target)
                elif target not in shown:
                    places.append(target)
                    continue
                elif self.graph.results[i].is_watched:
                    watched_results.add(shown[target])
                if n is None:
                    places.append(start + len(geometry) + len(others))
                    others.append(target)
                    continue
            places.append(start + n)
            if self.graph.results[i].is_watched:
                watched.add(self.tensors[n])
        return Keeps(
            _picks(places),
            others,
            frozenset(n for n in places if n < start),
            forms,
            _picks(sorted(watched & self.static)),
            sorted(watched - self.static),
            sorted(watched_results),
        )

    # ---- running

    def _run(
        self, ready: Ready, storages: Storages, known: Inputs | None, args: Arguments
    ) -> tuple[Storages, dict[int, Storage]]:
        """Run a program; return its outputs, and the storages of new results by the number of the output."""
        with ready.captured.runtime.lock:
            return self._run_alone(ready, storages, known, args)

    def _run_alone(
        self, ready: Ready, storages: Storages, known: Inputs | None, args: Arguments
    ) -> tuple[Storages, dict[int, Storage]]:
        captured = ready.captured
        runtime = captured.runtime
        if runtime.pending:
            # What is pending may read memory that the program overwrites.
            runtime.realize()
        if ready.donated:
            for n in ready.donated:
                if storages[n].node.shared:
                    storages[n].own()
        buffers = self._buffers(ready, storages, known)
        for i in self.free:
            ready.live[f"n{i}"] = args[i]
        numbers = read_arguments(captured)[0] if ready.reads else captured.args
        if watch.listener is not None:
            watch.lines = [n.line for n in captured.graph.nodes]
        outputs = captured.executable.run(buffers, numbers)
        moved: dict[Storage, Storage] = {s: storages[n] for s, n in ready.written.items()}
        return outputs, settle(captured, outputs, moved)

    def _buffers(self, ready: Ready, storages: Storages, known: Inputs | None) -> Storages:
        """Return what the program reads: as it was found before, if nothing at all has been written since."""
        since = writes.latest
        if known is not None:
            kept = known.kept
            found = kept.buffers
            if found is not None and kept.since is since:
                if not known.loose:
                    return found
                found = found.copy()
                for i in known.loose:
                    place = ready.places.get(i)
                    if place is not None:
                        found[place] = storages[i].realize().buffer
                return found
        sources = ready.pick(storages + ready.constants)
        buffers: Storages = [s.node.buffer if type(s) is Storage else s for s in sources]
        if not all(buffers):
            return [s.realize().buffer if type(s) is Storage else s for s in sources]
        if known is not None and self.since is since:
            stays = buffers.copy()
            for i in known.loose:
                place = ready.places.get(i)
                if place is not None:
                    stays[place] = None
            known.kept.keep(stays, since)
        self.since = since
        return buffers

    def _results(
        self,
        ready: Ready,
        storages: Storages,
        given: Arguments,
        args: Arguments,
        fresh: dict[int, Storage],
    ) -> list[Any]:
        """Return the results of a call, without what one `Saved` takes."""
        # Results that share storage with each other or an input still do.
        made: dict[Storage, torch.UntypedStorage] = {}
        # The first result on each new storage. What is saved of it shares its version: PyTorch
        # refuses a backward whose saved tensors have been overwritten.
        first: dict[Storage, tuple[Geometry, torch.Tensor]] = {}
        out: list[object] = []
        packed = self.graph.packed
        results = ready.results
        if packed:
            results = results[: packed.start] + results[packed.stop :]
        for i, found in enumerate(results):
            kind = type(found)
            if kind is Itself:
                out.append(args[found.number])
                continue
            if kind is Again:
                out.append(out[found.number])
                continue
            if kind is Fresh:
                storage = fresh.get(-1 if found.number is None else found.number)
                if storage is None:
                    storage = _target(ready, found, storages)
                form = found.geometry
                before = first.get(storage) if i in self.saved else None
                if before is not None:
                    seen, x = before
                    out.append(x if seen == form else torch_tensor(storage, form, made, x))
                    continue
                x = torch_tensor(storage, form, made)
                first.setdefault(storage, (form, x))
            elif kind is OfInput:
                storage, form = storages[found.number], found.geometry
                # What a `Saved` brought comes first, and belongs to no tensor here.
                at = found.number - (len(storages) - len(given))
                if at < 0:
                    x = torch_tensor(own_storage(storage, form), form, made)
                else:
                    owner = given[at]
                    made[storage] = owner.untyped_storage()
                    x = torch_tensor(storage, form, made, owner if i in self.saved else None)
            else:
                out.append(found)
                continue
            if self.downloads[i]:
                x = x.to("cpu", self.graph.results[i].fake.dtype)
            out.append(x)
        for i in self.graph.written:
            a = args[i]
            if a.is_cpu or a.is_conj() or a.is_neg():
                with torch.no_grad():
                    a.detach().copy_(given[self.given.index(i)])
        return out

    def _saved(
        self,
        ready: Ready,
        keeps: Keeps,
        storages: Storages,
        args: Arguments,
        outputs: Storages,
        fresh: dict[int, Storage],
        results: list[Any],
    ) -> Saved:
        """Return what a call saves for the backward graph."""
        if ready.captured.one_value_twice:
            # Storages know that they share one memory.
            outputs = [fresh.get(i, memory) for i, memory in enumerate(outputs)]
        elif keeps.memories:
            # No later call needs to make storages of them.
            made = ready.captured.made
            ready.captured.made = [m for m in made if m[1] not in keeps.memories]
            keeps.memories = frozenset()
        others = [fresh[o] if isinstance(o, int) else o for o in keeps.others]
        values = keeps.pick(outputs + storages + others)
        wanted = hooks()
        if wanted is not None:
            tensors = [
                torch_tensor(storage_of(v, form), form, {})
                if (n := self.graph.results[i].origin) is None
                else args[n].detach()
                for i, v, form in zip(self.graph.packed, values, keeps.geometry, strict=True)
            ]
            return Saved(None, list(map(wanted[0], tensors)), unpack=wanted[1])
        # Of tensors that may have a history, which leads here, only the version is wanted.
        moving = [args[i].detach() for i in keeps.moving]
        shown = [results[i].detach() for i in keeps.shown]
        return Saved(ready, values, [*keeps.owners(args), *moving, *shown])


def _target(ready: Ready, found: Fresh, storages: list[Storage]) -> Storage:
    """Return the storage of a result that is not new: what the program wrote, or a constant."""
    if found.number is None:
        assert found.storage is not None
        return found.storage
    target = ready.captured.targets[found.number]
    assert isinstance(target, Storage)
    n = ready.written.get(target)
    return target if n is None else storages[n]


def _picks(places: list[int]) -> Callable[[Any], Sequence[Any]]:
    """Return a function that takes elements of a sequence."""
    if len(places) > 1:
        return itemgetter(*places)
    return lambda values: [values[i] for i in places]


def _mark(x: object, numbers: dict[Storage, int]) -> object:
    if isinstance(x, Tensor) and x._storage in numbers:
        form = Geometry(x._shape, x._strides, x._offset, 0, TO_TORCH[x.dtype])
        return OfInput(numbers[x._storage], form)
    return x
