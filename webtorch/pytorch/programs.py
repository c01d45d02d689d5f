"""The programs of a compiled graph: which one a call takes, its buffers, and its results. Floor 6.

A call finds out with one look at each input's address what has moved since the last one; where nothing
of the inputs' geometry changed, it runs the same program. Where the graph's sizes are symbols, a few
captures give one form for all sizes (`capture.dynamic`), as `webtorch.mark_dynamic` does.
"""

from __future__ import annotations

import contextlib
import sys
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any, NamedTuple, Protocol

import torch
from torch.utils.weak import WeakTensorKeyDictionary

from webtorch import errors
from webtorch.capture.dynamic import (
    MAX_VARIABLES,
    NotPolynomial,
    Point,
    Template,
    placeholder,
    probes,
)
from webtorch.capture.trace import (
    Capture,
    Returned,
    capture,
    compile_never,
    compile_varying,
    read_arguments,
    settle,
)
from webtorch.ir.view import is_contiguous, numel
from webtorch.pytorch import device as bridge
from webtorch.pytorch import interrupt
from webtorch.pytorch.device import (
    HELD,
    TO_TORCH,
    TO_WEBTORCH,
    changes,
    flat,
    memory_of,
)
from webtorch.runtime.trace import debug_level
from webtorch.tensors.host import host_scalar
from webtorch.tensors.storage import Storage
from webtorch.tensors.tensor import Tensor

_ADDRESS = torch.Tensor.data_ptr
# Programs that one graph keeps, for other shapes, strides or offsets of its inputs.
_MAX_PROGRAMS = 16
# The same where sizes are symbols: further sizes cost no capture.
_MAX_SIZES = 64


@dataclass(frozen=True, slots=True)
class Value:
    """What a trace knows of an input or a result of a graph."""

    # A tensor, as PyTorch traced it; or a number, which may be a symbol; or None.
    fake: Any
    # The number of the input that a result is.
    origin: int | None
    # Whether a float reaches tensors only, as a value.
    is_free: bool = False

    @staticmethod
    def of(node: Any, origin: int | None) -> Value:
        """Return what there is to know of a node, or of a constant result."""
        if not isinstance(node, torch.fx.Node):
            return Value(node, origin)
        makes_tensor = torch.ops.aten.scalar_tensor.default
        value = node.meta.get("val")
        free = isinstance(value, (float, torch.SymFloat)) and node.op == "placeholder"
        return Value(value, origin, free and all(u.target is makes_tensor for u in node.users))

    @property
    def is_tensor(self) -> bool:
        """Whether it is a tensor."""
        return isinstance(self.fake, torch.Tensor)

    @property
    def is_on_cpu(self) -> bool:
        """Whether the trace has it in the CPU's memory."""
        return self.is_tensor and self.fake.device.type == "cpu"

    @property
    def is_lazy(self) -> bool:
        """Whether its memory holds its conjugate, or its negative."""
        return self.is_tensor and (self.fake.is_conj() or self.fake.is_neg())


class Evaluates(Protocol):
    """A graph that can be run on webtorch tensors."""

    inputs: list[Value]
    results: list[Value]
    written: frozenset[int]

    def evaluate(self, inputs: Sequence[Any]) -> list[Any]:
        """Return the graph's results."""


class Geometry(NamedTuple):
    """How a tensor lies in its storage of `elements`."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int
    elements: int
    dtype: torch.dtype


class OfInput(NamedTuple):
    """A result that is a view of the storage of input `number`: what a forward saves for its backward often is."""

    number: int
    geometry: Geometry


class Itself(NamedTuple):
    """A result that is argument `number`."""

    number: int


class Fresh(NamedTuple):
    """A result that the program computes, as output `number`, or that only the capture holds."""

    number: int | None
    storage: Storage | None
    geometry: Geometry


# A tensor that a forward graph saved, as its backward graph takes it.
Kept = tuple[Storage, Geometry]


class Saved:
    """What a forward graph saved for its backward and is no PyTorch tensor: one that is stands for all of it."""

    def __init__(self) -> None:
        self.kept: list[Kept] = []
        # Inputs of which views were saved, and their versions then.
        self.owners: list[tuple[torch.Tensor, int]] = []

    def take(self) -> Iterator[Kept]:
        """Yield all, in order. Raises RuntimeError, as PyTorch does, where some have been overwritten since."""
        for owner, version in self.owners:
            if owner._version != version:
                raise RuntimeError(
                    "one of the variables needed for gradient computation has been modified by an inplace "
                    f"operation: [{owner.type()} {list(owner.shape)}] is at version {owner._version}; "
                    f"expected version {version} instead."
                )
        return iter(self.kept)


@dataclass(slots=True)
class Ready:
    """A program with all that a call needs to know of it. Inputs are numbered among the tensors."""

    captured: Capture
    # Numbers of inputs, in the program's order, and storages of constants.
    order: list[int | Storage]
    # Inputs whose memory it overwrites.
    donated: list[int]
    # Fresh, OfInput, Itself, or what is no tensor.
    results: list[Any]
    # Storages of arguments in the program's targets -> the inputs that they belong to.
    written: dict[Storage, int]
    # Free numbers: where the program reads them.
    live: dict[str, Any]
    # Whether there are numbers to be read anew at each call.
    reads: bool


@dataclass(frozen=True, slots=True)
class Call:
    """What one call gives a graph: its tensors' storages, how they lie there, and all of its arguments."""

    storages: list[Storage]
    geometry: list[Geometry]
    # For each tensor the first that has the same storage; None where all have their own.
    aliases: tuple[int, ...] | None
    args: Sequence[Any]
    # Free numbers, which a program reads anew at each call.
    live: dict[str, Any]


@dataclass(slots=True)
class Inputs:
    """What is known of the tensors of the last call."""

    addresses: list[int]
    epoch: int
    # None for those that only that call had: what a step computed must not live until the next one.
    storages: list[Storage | None]
    # The same list where it is whole.
    whole: list[Storage] | None
    geometry: list[Geometry]
    # For each the first that has the same storage; None where all have their own.
    aliases: tuple[int, ...] | None
    numbers: tuple[Any, ...]
    ready: Ready


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
    # Numbers come in float64, which the device lacks.
    number = x.dtype is torch.float64 and not x.dim()
    made = x.detach().to("webgpu", torch.float32 if number else x.dtype)
    if keeps:
        _uploads[x] = (state, made)
    return made


class Programs:
    """A compiled graph as PyTorch calls it."""

    def __init__(
        self,
        graph: Evaluates,
        static: frozenset[int],
        saved: frozenset[int] = frozenset(),
        *,
        watched: frozenset[int] = frozenset(),
        packs: bool = False,
        is_backward: bool = False,
        downloads: bool = True,
    ) -> None:
        """`static`: inputs that are parameters or buffers. `saved`: results for the backward graph.

        `watched`: those that must not be overwritten before it.
        `packs`: what is saved need be no tensors. `downloads`: results traced on the CPU go there.
        """
        self.graph = graph
        self.static = static
        self.saved = saved
        self.watched = watched
        self.packs = packs and len(saved) > 0
        inputs = graph.inputs
        self.tensors = [i for i, v in enumerate(inputs) if v.is_tensor]
        self.others = [i for i, v in enumerate(inputs) if not v.is_tensor]
        self.free = [i for i in self.others if inputs[i].is_free]
        self.keyed = [i for i in self.others if not inputs[i].is_free]
        # Whether arguments are tensors on the device, to be read as they lie there, and nothing else.
        self.plain = not (
            is_backward or self.others or any(v.is_on_cpu or v.is_lazy for v in inputs)
        )
        self.downloads = [
            downloads and r.is_on_cpu and i not in self.saved and r.origin is None
            for i, r in enumerate(graph.results)
        ]
        self.programs: OrderedDict[Any, Ready] = OrderedDict()
        self.last: Inputs | None = None
        self.sizes = Sizes([inputs[i] for i in self.tensors], self.others, inputs)
        # By the inputs' types: what makes captures for all sizes, or None where there is no such thing.
        self.templates: dict[Any, Template | None] = {}

    def __call__(self, *args: Any) -> list[Any]:
        if interrupt.flag.pressed:
            interrupt.check()
        given: Sequence[Any] = args if self.plain else self._given(args)
        ready, storages = self._inputs(given, args)
        fresh = self._run(ready, storages, args)
        return self._results(ready, storages, given, args, fresh)

    # ---- inputs

    def _given(self, args: Sequence[Any]) -> list[Any]:
        """Return the tensors among the arguments, on the device; what a forward saved taken apart."""
        given: list[Any] = []
        stands: torch.Tensor | None = None
        taken: Iterator[Kept] = iter(())
        for i in self.tensors:
            a = args[i]
            if a.is_cpu:
                a = uploaded(a, i in self.static)
            elif a is stands:
                a = next(taken)
            else:
                saved = getattr(a, "_webgpu_saved", None)
                if saved is not None:
                    stands, taken = a, saved.take()
                    a = next(taken)
                elif a.is_conj() or a.is_neg():
                    a = a.detach().resolve_conj().resolve_neg()
            given.append(a)
        return given

    def _inputs(self, given: Sequence[Any], args: Sequence[Any]) -> tuple[Ready, list[Storage]]:
        """Find the program and the storages for a call, by what has changed since the last one."""
        if self.plain:
            addresses = list(map(_ADDRESS, given))
        else:
            addresses = [0 if type(t) is tuple else t.data_ptr() for t in given]
        numbers = tuple([args[i] for i in self.keyed])
        last = self.last
        ready = None
        if last is not None and last.epoch == changes.count and last.numbers == numbers:
            if addresses == last.addresses and last.whole is not None:
                return last.ready, last.whole
            storages, geometry = [], last.geometry.copy()
            ready = last.ready
            for i, (a, b, storage) in enumerate(zip(addresses, last.addresses, last.storages)):
                if a != b or storage is None:
                    storage, form = _look(given[i])
                    if form is not geometry[i] and form != geometry[i]:
                        geometry[i], ready = form, None
                storages.append(storage)
        else:
            looked = [_look(t) for t in given]
            storages, geometry = [s for s, _ in looked], [g for _, g in looked]
        aliases = None
        if len(set(storages)) < len(storages):
            first: dict[Storage, int] = {}
            aliases = tuple([first.setdefault(s, i) for i, s in enumerate(storages)])
        if ready is None or last is None or aliases != last.aliases:
            ready = self._ready(storages, geometry, aliases, numbers, args)
        # Empty tensors, and what a forward saved, have no address.
        before = [] if last is None else last.addresses
        stays = [
            s if a and a == b else None for s, a, b in zip_longest(storages, addresses, before)
        ]
        whole = None if None in stays else storages
        self.last = Inputs(
            addresses, changes.count, stays, whole, geometry, aliases, numbers, ready
        )
        return ready, storages

    def _ready(
        self,
        storages: list[Storage],
        geometry: list[Geometry],
        aliases: tuple[int, ...] | None,
        numbers: tuple[Any, ...],
        args: Sequence[Any],
    ) -> Ready:
        key = (tuple(geometry), aliases, numbers)
        found = self.programs.get(key)
        if found is not None:
            self.programs.move_to_end(key)
            return found
        live = {f"n{i}": args[i] for i in self.free}
        call = Call(storages, geometry, aliases, args, live)
        captured = self._at_sizes(call) if self.sizes.symbols else None
        if captured is None:
            captured = self._capture(call, None)
        ready = self._prepare(captured, geometry, live)
        self.programs[key] = ready
        if len(self.programs) > (_MAX_SIZES if self.sizes.symbols else _MAX_PROGRAMS):
            self.programs.popitem(last=False)
        return ready

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
        whole: list[Any] = list(call.args)
        for i in self.others:
            if i in self.free:
                whole[i] = host_scalar(call.live, f"n{i}")
            elif point is not None:
                whole[i] = self.sizes.number(i, point, call.args[i])

        def run(*tensors: Tensor) -> list[Any]:
            for i, t, form in zip(self.tensors, tensors, forms):
                whole[i] = _view_of(t._storage, form)
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
        with contextlib.suppress(NotPolynomial):
            return None if template is None else template.at(point)
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

    def _prepare(self, captured: Capture, geometry: list[Geometry], live: dict[str, Any]) -> Ready:
        """Find out once what each call of a program needs."""
        results: list[Any] = []
        for value, found in zip(self.graph.results, captured.result, strict=True):
            if value.origin is not None:
                found = Itself(value.origin)
            elif isinstance(found, Returned):
                assert found.number is not None or found.storage is not None
                kind, elements = found.dtype, 0
                if found.storage is not None:
                    elements = found.storage.elements
                form = Geometry(found.shape, found.strides, found.offset, elements, TO_TORCH[kind])
                found = Fresh(found.number, found.storage, form)
            elif isinstance(found, OfInput):
                elements = geometry[found.number].elements
                found = found._replace(geometry=found.geometry._replace(elements=elements))
            results.append(found)
        donated = [
            s for s, d in zip(captured.sources, captured.donated) if d and isinstance(s, int)
        ]
        written = dict(captured.arguments)
        reads = bool(captured.dynamic or captured.draws or captured.actions)
        return Ready(captured, captured.sources, donated, results, written, live, reads)

    # ---- running

    def _run(
        self, ready: Ready, storages: list[Storage], args: Sequence[Any]
    ) -> dict[int, Storage]:
        """Run a program; return the storages of its results by the number of the output."""
        captured = ready.captured
        runtime = captured.runtime
        if runtime.pending:
            # What is pending may read memory that the program overwrites.
            runtime.realize()
        for n in ready.donated:
            if storages[n].node.shared:
                storages[n].own()
        sources = [storages[s] if isinstance(s, int) else s for s in ready.order]
        buffers: list[Any] = [s.node.buffer for s in sources]
        if not all(buffers):
            buffers = [s.realize().buffer for s in sources]
        for i in self.free:
            ready.live[f"n{i}"] = args[i]
        numbers = read_arguments(captured)[0] if ready.reads else captured.args
        outputs = captured.executable.run(buffers, numbers)
        moved: dict[Any, Storage] = {s: storages[n] for s, n in ready.written.items()}
        return settle(captured, outputs, moved)

    def _results(
        self,
        ready: Ready,
        storages: list[Storage],
        given: Sequence[Any],
        args: Sequence[Any],
        fresh: dict[int, Storage],
    ) -> list[Any]:
        # Results that share storage with each other or an input still do.
        made: dict[Storage, Any] = {}
        # The first result on each new storage. What is saved of it shares its version: PyTorch
        # refuses a backward whose saved tensors have been overwritten.
        first: dict[Storage, tuple[Geometry, torch.Tensor]] = {}
        out: list[Any] = []
        stands: torch.Tensor | None = None
        saved = Saved()
        packs = self.packs and not _has_hooks()
        if packs:
            stands = bridge.allocate((0,), (1,), torch.float32)
            stands._webgpu_saved = saved
        for i, found in enumerate(ready.results):
            kind = type(found)
            if kind is Itself:
                out.append(args[found.number])
                continue
            if kind is Fresh:
                storage = fresh.get(-1 if found.number is None else found.number)
                if storage is None:
                    storage = _target(ready, found, storages)
                form = found.geometry
                before = first.get(storage) if i in self.saved else None
                if before is not None:
                    seen, x = before
                    out.append(x if seen == form else _torch_tensor(storage, form, made, x))
                    continue
                if packs and i in self.saved and storage not in made:
                    saved.kept.append((storage, form))
                    out.append(stands)
                    continue
                x = _torch_tensor(storage, form, made)
                first.setdefault(storage, (form, x))
            elif kind is OfInput:
                owner, storage = given[found.number], storages[found.number]
                form = found.geometry
                if packs and i in self.watched and not owner.is_inference():
                    saved.kept.append((storage, form))
                    saved.owners.append((owner, owner._version))
                    out.append(stands)
                    continue
                if type(owner) is tuple:
                    x = _torch_tensor(storage, form, made)
                else:
                    made[storage] = owner.untyped_storage()
                    x = _torch_tensor(storage, form, made, owner if i in self.saved else None)
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
                    a.detach().copy_(given[self.tensors.index(i)])
        return out


def unpacked(args: Sequence[Any]) -> list[Any]:
    """Return the arguments of a backward graph with a tensor for each that a forward saved."""
    out: list[Any] = []
    taken: dict[int, Iterator[Kept]] = {}
    made: dict[Storage, Any] = {}
    for a in args:
        saved = getattr(a, "_webgpu_saved", None) if isinstance(a, torch.Tensor) else None
        if saved is not None:
            if id(saved) not in taken:
                taken[id(saved)] = saved.take()
            a = _torch_tensor(*next(taken[id(saved)]), made)
        out.append(a)
    return out


def _target(ready: Ready, found: Fresh, storages: list[Storage]) -> Storage:
    """Return the storage of a result that is not new: what the program wrote, or a constant."""
    if found.number is None:
        assert found.storage is not None
        return found.storage
    target = ready.captured.targets[found.number]
    assert isinstance(target, Storage)
    n = ready.written.get(target)
    return target if n is None else storages[n]


def _has_hooks() -> bool:
    """Whether the user wants to see what is saved."""
    return torch._C._autograd._top_saved_tensors_default_hooks(True) is not None


def _look(x: Any) -> Kept:
    """Return the storage of an input and how the input lies there."""
    if type(x) is tuple:
        storage, form = x
        return storage, form
    dtype = x.dtype
    storage = memory_of(x).typed(HELD[dtype])
    return storage, Geometry(
        tuple(x.shape), x.stride(), x.storage_offset(), storage.elements, dtype
    )


def _view_of(storage: Storage, form: Geometry) -> Tensor:
    kind = TO_WEBTORCH[form.dtype]
    whole = (
        form.offset == 0
        and not kind.is_complex
        and numel(form.shape) == storage.elements
        and is_contiguous(form.shape, form.strides)
    )
    return Tensor._from_storage(storage, form.shape, form.strides, form.offset, whole, kind)


def _mark(x: Any, numbers: dict[Storage, int]) -> Any:
    if isinstance(x, Tensor) and x._storage in numbers:
        form = Geometry(x._shape, x._strides, x._offset, 0, TO_TORCH[x.dtype])
        return OfInput(numbers[x._storage], form)
    return x


def _torch_tensor(
    storage: Storage, form: Geometry, made: dict[Storage, Any], like: torch.Tensor | None = None
) -> torch.Tensor:
    """Return a PyTorch tensor on a webtorch storage; one that shares the version of `like`."""
    holder = made.get(storage)
    if holder is None:
        holder, memory = bridge.new_storage(
            storage.elements * storage.dtype.itemsize, storage.dtype
        )
        memory.storage = storage
        made[storage] = holder
    out: torch.Tensor
    if like is not None and like.dtype is form.dtype:
        out = like.detach()
    else:
        out = bridge._create((0,), form.dtype)
    bridge._set(bridge.CPU, out, holder, form.offset, form.shape, form.strides)
    return out


# ---- sizes that are symbols ---------------------------------------------------------------------


class Sizes:
    """The symbols of a graph's sizes, and how they give the geometry of its inputs."""

    def __init__(self, tensors: list[Value], others: list[int], inputs: list[Value]) -> None:
        self.forms = [_form(v.fake) for v in tensors]
        self.numbers = {i: _expression(inputs[i].fake) for i in others}
        # Where a symbol's value is found: tensor and dim, or the number of an argument and -1.
        places: dict[Any, tuple[int, int]] = {}
        every: set[Any] = set()
        for n, (shape, *_) in enumerate(self.forms):
            for d, e in enumerate(shape):
                if getattr(e, "is_symbol", False):
                    places.setdefault(e, (n, d))
            every.update(*(e.free_symbols for e in self._parts(n) if not isinstance(e, int)))
        for i, e in self.numbers.items():
            if getattr(e, "is_symbol", False) and e.is_integer:
                places.setdefault(e, (i, -1))
            every.update(getattr(e, "free_symbols", ()))
        self.places = {s: places[s] for s in sorted(every, key=str) if s in places}
        # None where some cannot be found from the arguments.
        self.symbols = list(self.places) if len(self.places) == len(every) else []
        self.fixed = [all(isinstance(e, int) for e in self._parts(n)) for n in range(len(tensors))]

    def _parts(self, n: int) -> Sequence[Any]:
        shape, strides, offset, elements = self.forms[n]
        return (*shape, *strides, offset, elements)

    def point(self, geometry: list[Geometry], args: Sequence[Any]) -> Point | None:
        """Return the sizes of a call; None where its inputs do not lie as the trace has them."""
        point = tuple(
            [int(args[n]) if d < 0 else geometry[n].shape[d] for n, d in self.places.values()]
        )
        if not all(n > 1 for n in point):
            return None
        lies = all(self.geometry(n, point, form) == form for n, form in enumerate(geometry))
        return point if lies else None

    def geometry(self, n: int, point: Point, now: Geometry) -> Geometry:
        """Return how tensor `n` lies at other sizes than now; `now` itself where it has no symbol."""
        if self.fixed[n]:
            return now
        values = dict(zip(self.symbols, point, strict=True))
        shape, strides, offset, elements = self.forms[n]
        return Geometry(
            tuple([_value(e, values) for e in shape]),
            tuple([_value(e, values) for e in strides]),
            _value(offset, values),
            _value(elements, values) << now.dtype.is_complex,
            now.dtype,
        )

    def number(self, i: int, point: Point, now: Any) -> Any:
        """Return number argument `i` at other sizes than now."""
        e = self.numbers[i]
        if not hasattr(e, "free_symbols"):
            return now
        return _value(e, dict(zip(self.symbols, point, strict=True)))


def _form(fake: Any) -> tuple[tuple[Any, ...], tuple[Any, ...], Any, Any]:
    """Return shape, strides, offset and the elements of the storage of a traced tensor, with symbols."""
    elements = _expression(fake.untyped_storage().nbytes() // fake.dtype.itemsize)
    return (
        tuple(map(_expression, fake.shape)),
        tuple(map(_expression, fake.stride())),
        _expression(fake.storage_offset()),
        elements,
    )


def _expression(size: Any) -> Any:
    """Return an int, or a symbolic size as SymPy has it."""
    node = getattr(size, "node", None)
    if node is None:
        return size
    e = node.expr
    return int(e) if e.is_Integer else e


def _value(e: Any, values: dict[Any, int]) -> int:
    return e if isinstance(e, int) else int(e.xreplace(values))
