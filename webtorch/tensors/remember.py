"""Composites called again with arguments of the same kinds: recorded as one node, without their Python. Floor 4.

What a composite records follows from its arguments' shapes, types, places and numbers. The second call
with the same ones is watched (`ops/purity.py`); from the third on a "call" node stands for what it
recorded (`ir/graph.py`), with the new tensors as its sources. Calls that are differentiated, captured,
mapped by vmap or under autocast take the usual way, and so do those that give views of their arguments.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Iterable
from threading import get_ident
from typing import Any

from webtorch.dispatch.call import Args, Kwargs, Run, active, inside
from webtorch.ir.dtype import DType
from webtorch.ir.graph import IN_MEMORY, Node, Recorded
from webtorch.ir.lines import user_line
from webtorch.ops.purity import look
from webtorch.runtime.realize import Runtime, is_seen
from webtorch.tensors import override
from webtorch.tensors.batching import in_all_examples
from webtorch.tensors.binding import (
    is_foreign,
    refuse_bools,
    with_python_numbers,
    with_python_sizes,
)
from webtorch.tensors.device import device, resolve
from webtorch.tensors.made_by import made_in_mode
from webtorch.tensors.modes import mode, transforms
from webtorch.tensors.promotion import depending
from webtorch.tensors.size import Size
from webtorch.tensors.storage import Storage
from webtorch.tensors.tensor import Tensor
from webtorch.tensors.views import View, noted

# Kinds of calls that an operation remembers; a program that makes kinds without end starts anew.
_MOST_KINDS = 512
# Operations of which so many kinds could not be remembered, and none could, are not asked any more.
_MOST_FAILURES = 4
_MOST_NODES = 256
_LONGEST, _DEEPEST = 64, 8
# Data that a composite makes by itself (indices, weights) may be kept up to this size, in bytes.
_MOST_CONSTANT = 1 << 14
# Numbers that are equal though they mean different things are told apart by their types, zeros by their signs.
_NUMBERS = frozenset((bool, int, float, complex))
_LISTS = frozenset((tuple, list, Size))
_OTHERS = frozenset((str, type(None), DType, type(Ellipsis), device))

Geometry = tuple[tuple[int, ...], tuple[int, ...], int, bool, DType]
# A result: the attributes of its node where it is the only one, the shape, type and size of that, the version of its
# storage, how it lies there, and how the tensor does that it is a view of.
Place = tuple[
    tuple[Recorded, int, tuple[()]],
    tuple[tuple[int, ...], DType, int],
    int,
    Geometry,
    Geometry | None,
]


class Result:
    """What a remembered call gives: the sources of its graph, and the places of its results."""

    __slots__ = ("demanded", "kind", "leaves", "places", "runtime", "straight")

    def __init__(
        self,
        kind: Callable[..., object] | None,
        leaves: list[int | Node],
        places: list[Place],
        runtime: Runtime,
        count: int,
        demanded: tuple[int, ...],
    ) -> None:
        """`count`: of the tensors among the arguments."""
        # Which results must be zeros, or the call raises.
        self.demanded = demanded
        # None: one tensor; else what makes the tuple.
        self.kind = kind
        # The sources: tensors among the arguments by number, or data of the call's own.
        self.leaves = leaves
        # Whether these are the tensors, in their order.
        self.straight = leaves == list(range(count))
        self.places, self.runtime = places, runtime


def remembered(function: Callable[..., object]) -> Callable[..., Any]:
    """Return a function that remembers what calls without gradients record."""
    run = Memory(function).run

    @functools.wraps(function)
    def call(*args: object, **kwargs: object) -> Any:
        """Call the function, or record a node for what it is known to record."""
        return run(args, kwargs)

    return call


class Memory:
    """What a function records, by the kinds of its arguments."""

    __slots__ = ("failures", "function", "known", "makes", "own_view")

    def __init__(
        self, function: Callable[..., object], makes: bool = False, own_view: bool = True
    ) -> None:
        """`makes`: it is given numbers, and a device to make tensors on. `own_view`: what it gives may be a view of
        what it made itself, and is one each time.
        """
        self.function, self.makes, self.own_view = function, makes, own_view
        # By kind of call: 0 where it was seen once, None where it cannot be remembered.
        self.known: dict[tuple[object, ...], Result | int | None] = {}
        # How many could not be; far below 0 once one could.
        self.failures = 0
        _FORGETTING.append(self.known)

    def find(self, args: Args, kwargs: Kwargs) -> Any:
        """Record a node for what a call is known to record; None if that is not known. To be asked while no
        interpreter is on.
        """
        if self.failures >= 0 or look.watching or transforms.count:
            return None
        count = len(args)
        if 1 <= count <= 2 and not kwargs:
            # What `_kind_of` says of a tensor in order, alone or with an integer, written out.
            x = args[0]
            if type(x) is Tensor and x._whole and not x._requires_grad and x._base is None:
                storage = x._storage
                node, runtime, shape = storage.node, storage.runtime, x._shape
                if runtime.recording is None and node.host is None and node.shape == shape:
                    kept = node.kind == "buffer"
                    key: tuple[Any, ...] | None
                    if count == 1:
                        key = runtime, mode.keeps_sums, shape, x.dtype, False, kept
                    elif type(n := args[1]) is int:
                        key = runtime, mode.keeps_sums, shape, x.dtype, False, kept, int, n or "0"
                    else:
                        return self._found(args, kwargs)
                    found = self.known.get(key)
                    return _again(found, [node]) if type(found) is Result else None
        return self._found(args, kwargs)

    def _found(self, args: Args, kwargs: Kwargs) -> Any:
        """Do the same for arguments of all kinds."""
        nodes: list[Node] = []
        try:
            key = self._kind_of(args, kwargs, nodes)
        except _Foreign:
            return None
        found = self.known.get(key) if key is not None else None
        return _again(found, nodes, 5) if type(found) is Result else None

    def run(self, args: Args, kwargs: Kwargs) -> Any:
        """Call the function, or record a node for what it is known to record."""
        if self.failures >= _MOST_FAILURES or look.watching:
            return self._called(args, kwargs)
        nodes: list[Node] = []
        try:
            key = self._kind_of(args, kwargs, nodes)
        except _Foreign:
            if self.makes:
                # The type of a number may be the result's.
                args, kwargs = with_python_sizes(self.function, args, kwargs)
                return self.function(*args, **kwargs)
            return self.run(*with_python_numbers(args, kwargs))
        # Transforms and interpreters meet the calls that this one is made of.
        if key is None or transforms.count or (active.count and inside()):
            return self._called(args, kwargs)
        known = self.known
        found = known.get(key, 1)
        if type(found) is Result:
            out = _again(found, nodes)
            return self.function(*args, **kwargs) if out is None else out
        if found == 0:
            result = None
            try:
                out, result = watched(self.function, args, kwargs, nodes, key[0], self.own_view)
            finally:
                known[key] = result
            if result is not None:
                self.failures = -(1 << 30)
            else:
                self.failures += 1
            return out
        if found == 1:
            refuse_bools(self.function, args, kwargs)
            if len(known) >= _MOST_KINDS:
                known.clear()
            known[key] = 0
        return self.function(*args, **kwargs)

    def _called(self, args: Args, kwargs: Kwargs) -> Any:
        """Call the function; within a vmap each example has its results."""
        out = self.function(*args, **kwargs)
        return in_all_examples(out, (*args, *kwargs.values())) if mode.vmaps else out

    def _kind_of(self, args: Args, kwargs: Kwargs, nodes: list[Node]) -> tuple[Any, ...] | None:
        """Return what a call records depends on, first the device, and add the values of its tensors to `nodes`; None
        where that is not all.
        """
        # What products of 16-bit floats give is not told by their arguments.
        parts: list[object] = [None, mode.keeps_sums]
        if not _kinds(args, parts, nodes):
            return None
        for name, value in kwargs.items():
            parts.append((name,))
            if not _kinds((value,), parts, nodes):
                return None
        count = len(nodes)
        if count == 2:
            parts.append(nodes[0] is nodes[1])
        elif count > 2:
            parts.append(tuple([nodes.index(n) for n in nodes]))
        elif count == 0:
            where = kwargs.get("device")
            if not self.makes or not (where is None or type(where) in (str, device)):
                return None
            runtime = parts[0] = resolve(where)
            if runtime.recording is not None:
                return None
        return tuple(parts)


class Views:
    """The views that a function gives of its first argument, by how that lies and by the other arguments: shapes,
    strides and offsets are worked out once. Where it gives anything else, `memory` may know the call.
    """

    __slots__ = ("failures", "known", "memory", "run_as_usual", "titled")

    def __init__(self, run: Run, memory: Memory | None = None, titled: bool = False) -> None:
        """`titled`: its results get gradient functions of another name than views have."""
        self.run_as_usual, self.memory, self.titled = run, memory, titled
        # By kind of call: 0 where it was seen once, None where it gives no view.
        self.known: dict[tuple[object, ...], View | int | None] = {}
        self.failures = 0

    def find(self, args: Args, kwargs: Kwargs) -> Any:
        """Return what a call is known to give; None if that is not known. To be asked while no interpreter is on."""
        if self.failures < 0 and not kwargs and args:
            x = args[0]
            try:
                key = _lies(x, args)
            except _Foreign:
                return None
            found = self.known.get(key) if key is not None else None
            if type(found) is View and (
                found.vjp is not None or not (mode.grad and x.requires_grad)
            ):
                if found.dense == _ITSELF:
                    return x
                offset = x._offset
                return found.of(x, offset + found.offset if found.offset else offset)
        return self.memory.find(args, kwargs) if self.memory is not None else None

    def run(self, args: Args, kwargs: Kwargs) -> Any:
        """Call the function, and note what view it gives."""
        if self.failures < _MOST_FAILURES and not kwargs and args and not active.count:
            try:
                key = _lies(args[0], args)
            except _Foreign:
                return self.run(*with_python_numbers(args, kwargs))
            if key is not None and type(args[0]._offset) is int:
                found = self.known.get(key, 1)
                if found == 0:
                    return self._watched(key, args)
                if found == 1:
                    if self.memory is not None:
                        refuse_bools(self.memory.function, args, kwargs)
                    self._note(key)
        return self.run_as_usual(args, kwargs)

    def _note(self, key: tuple[object, ...]) -> None:
        """Note a call that was not seen before."""
        known = self.known
        if len(known) >= _MOST_KINDS:
            if sum(found == 0 for found in known.values()) > _MOST_KINDS // 2:
                # Each is another one, as in a loop over positions.
                self.failures = _MOST_FAILURES
            known.clear()
        known[key] = 0

    def _watched(self, key: tuple[object, ...], args: Args) -> object:
        """Call the function, and keep what it gives if that is a view."""
        x, me = args[0], get_ident()
        state = _state(x)
        before, outer = look.looked, noted.get(me)
        views = noted[me] = []
        self.known[key], look.looked = None, False
        try:
            out = self.run_as_usual(args, {})
        finally:
            looked, look.looked = look.looked, before or look.looked
            del noted[me]
            if outer is not None:
                outer += views
                noted[me] = outer
        if looked or type(out) is not Tensor or _state(x) != state:
            return out
        found = None
        if out is x and not views:
            found = View((), (), 0, _ITSELF, _itself, (), "")
        elif views and _is_chain(x, views, out):
            view, single = views[-1][1], len(views) == 1 and not self.titled
            found = View(
                view.shape,
                view.strides,
                out._offset - x._offset,
                view.dense,
                view.vjp if single else None,
                view.args,
                view.name,
            )
        self.known[key] = found
        self.failures = -(1 << 30) if found is not None else self.failures + 1
        return out


def _state(x: Tensor) -> tuple[Any, ...]:
    """Return what a call changes of a tensor that it writes, or makes a view of its own storage."""
    storage = x._storage
    return storage, storage.node, storage.version, x._history, x._shape, x._strides, x._offset


# Stands for the size of a view that is the tensor itself.
_ITSELF = -2


def _itself(g: Tensor) -> Tensor:
    return g


def _lies(x: Any, args: Args) -> tuple[Any, ...] | None:
    """Return how a tensor lies, and the arguments that follow it; None where that does not say what a view is."""
    kind = type(x)
    if (
        (kind is not Tensor and not (kind in override.plain and issubclass(kind, Tensor)))
        or x._levels
        or transforms.count
    ):
        return None
    if len(args) == 1:
        return x._shape, x._strides, x.dtype
    parts: list[Any] = [x._shape, x._strides, x.dtype]
    return tuple(parts) if _constants(args[1:], parts) else None


def _constants(values: Iterable[Any], parts: list[Any]) -> bool:
    """Add to `parts` values that are no tensors, and lists of such; False where there are others."""
    for x in values:
        kind = type(x)
        if kind in _LISTS:
            parts += (kind, len(x))
            if len(x) > _LONGEST or not _constants(x, parts):
                return False
        elif not _constant(x, kind, parts):
            return False
    return True


def _is_chain(x: Tensor, views: list[tuple[Tensor, View, Tensor]], out: Tensor) -> bool:
    """Whether views are one of x, one of that, and so on to `out`, all of x's type."""
    at = x
    for source, view, made in views:
        if source is not at or view.dtype is not None:
            return False
        at = made
    return at is out and out.dtype is x.dtype and not out._levels


_FORGETTING: list[dict[tuple[object, ...], Any]] = []


def forget() -> None:
    """Drop what is remembered: a setting changed that composites read."""
    for known in _FORGETTING:
        known.clear()


depending.append(forget)


def _kinds(values: Iterable[Any], parts: list[Any], nodes: list[Node], depth: int = 0) -> bool:
    """Add to `parts` what a call records depends on; False where that is not all."""
    for x in values:
        kind = type(x)
        if kind is Tensor or (kind in override.plain and issubclass(kind, Tensor)):
            storage = x._storage
            node, runtime = storage.node, storage.runtime
            if runtime is not parts[0]:
                if nodes:
                    return False
                parts[0] = runtime
            if runtime.recording is not None or (node.host is not None and is_seen(node)):
                return False
            needs = x._requires_grad or (x._base is not None and x.requires_grad)
            if needs and mode.grad:
                return False
            shape = x._shape
            if x._whole and node.shape == shape:
                parts += (shape, x.dtype, needs, node.kind == "buffer")
            elif x._levels or type(x._offset) is not int:
                # A script that is recorded notes where offsets go.
                return False
            else:
                place = node.kind if node.kind in IN_MEMORY else ""
                parts += (
                    shape,
                    x._strides,
                    x._offset,
                    x.dtype,
                    node.shape,
                    node.dtype,
                    needs,
                    place,
                )
            nodes.append(node)
        elif kind in _LISTS:
            parts += (kind, len(x))
            # Long lists are data; one may be within itself.
            if len(x) > _LONGEST or depth > _DEEPEST or not _kinds(x, parts, nodes, depth + 1):
                return False
        elif not _constant(x, kind, parts):
            return False
    return True


def _constant(x: Any, kind: type[object], parts: list[object]) -> bool:
    """Add to `parts` a value that is no tensor; False where it is of no kind that is compared."""
    if kind in _NUMBERS:
        parts += (kind, x if x and kind is not complex else str(x))
    elif kind is slice:
        ends = x.start, x.stop, x.step
        parts += ("slice", *ends)
        return all(type(n) is int or n is None for n in ends)
    elif kind in _OTHERS:
        parts.append(x)
    elif is_foreign(x):
        raise _Foreign
    else:
        return False
    return True


class _Foreign(Exception):
    """A number of NumPy's stands among the arguments. Kept for calls that are equal, it would overflow there."""


def _again(found: Result, nodes: list[Node], inside: int = 4) -> object:
    """Record a remembered call, from within `Memory.find` or `Memory.run`. None if it is to raise. `inside`: how many
    frames are known to be the package's.
    """
    leaves: tuple[Any, ...] = tuple(
        nodes if found.straight else [nodes[x] if type(x) is int else x for x in found.leaves]
    )
    line = user_line(inside)
    if found.kind is None:
        place = found.places[0]
        return _tensor(leaves, line, found.runtime, place, place[0])
    results: list[weakref.ref[Node]] = []
    made = []
    for place in found.places:
        graph, number, _ = place[0]
        out = _tensor(leaves, line, found.runtime, place, (graph, number, results))
        results.append(weakref.ref(out._storage.node))
        made.append(out)
    if found.demanded and not _holds([made[n] for n in found.demanded]):
        return None
    return found.kind(made)


def _holds(demanded: list[Tensor]) -> bool:
    """Whether all elements are zeros. Waits for them."""
    for t in demanded:
        storage = t._storage
        node = storage.realize()
        if any(bytes(storage.runtime.backend.download(node.buffer))):
            return False
    return True


def _tensor(
    leaves: tuple[Any, ...], line: object, runtime: Runtime, place: Place, attrs: tuple[Any, ...]
) -> Tensor:
    """Return a result."""
    _, (shape, kind, elements), version, (size, strides, offset, whole, dtype), base = place
    storage = Storage(
        Node("call", leaves, attrs, (), shape, kind, line, attrs[0]), runtime, elements
    )
    storage.version = version
    out = object.__new__(Tensor)
    out._adopt(storage, size, strides, offset, whole)
    out.dtype = dtype
    if base is not None:
        out._base = home = object.__new__(Tensor)
        home._adopt(storage, *base[:4])
        home.dtype = base[4]
        out._base_version = version
        if not mode.grad:
            out._made_by = made_in_mode()
    return out


def _geometry(t: Tensor) -> Geometry:
    return t._shape, t._strides, t._offset, t._whole, t.dtype


def watched(
    function: Callable[..., Any],
    args: Any,
    kwargs: dict[str, Any],
    nodes: list[Node],
    runtime: Runtime,
    own_view: bool = True,
) -> tuple[Any, Result | None]:
    """Call a composite, and return its result with what there is to remember."""
    tensors = [x for x in override.flat((*args, *kwargs.values())) if isinstance(x, Tensor)]
    storages = [t._storage for t in tensors]
    versions = [(s.version, t._history) for s, t in zip(storages, tensors, strict=True)]
    realized = runtime.counters.realized
    look.watching, look.looked = True, False
    try:
        out = function(*args, **kwargs)
    finally:
        look.watching = False
        demands, look.demands = look.demands, []
    # While another thread computes, what was recorded turns into data.
    with runtime.lock:
        touched = (
            look.looked
            or runtime.counters.realized != realized
            or [(s.version, t._history) for s, t in zip(storages, tensors, strict=True)] != versions
            or any(s.node is not n for s, n in zip(storages, nodes, strict=True))
        )
        demanded = [t for t, _ in demands]
        found = None if touched else _result(out, nodes, storages, runtime, demanded, own_view)
    for _, demand in demands:
        demand()
    return out, found


def _result(
    out: object,
    nodes: list[Node],
    storages: list[Storage],
    runtime: Runtime,
    demanded: list[Tensor],
    own_view: bool,
) -> Result | None:
    if isinstance(out, tuple):
        tensors = [t for t in out if t is not None]
        kind: Callable[..., object] | None = getattr(type(out), "_make", tuple)
        if not tensors or (type(out) is not tuple and not hasattr(out, "_fields")):
            return None
        if len(tensors) < len(out):
            kind = functools.partial(_with_gaps, tuple([t is not None for t in out]))
    else:
        tensors, kind = [out], None
    places_demanded: tuple[int, ...] = ()
    if demanded:
        shown = len(tensors)
        tensors += [t for t in demanded if not any(t is other for other in tensors)]
        places_demanded = tuple([i for i, t in enumerate(tensors) if any(t is d for d in demanded)])
        kind = functools.partial(_without_demanded, kind, shown)
    seen = list(storages)
    # Sources by their nodes: places in the lists of tensors first, then data of the call's own.
    number: dict[Node, int] = {}
    leaves: list[int | Node] = []
    for place, node in enumerate(nodes):
        if node not in number:
            number[node] = len(leaves)
            leaves.append(place)
    for t in tensors:
        if (
            type(t) is not Tensor
            or t._requires_grad
            or t._grad_fn is not None
            or t._levels
            or t._counter is not t._storage
            or t._storage.donor is not None
            or t._storage.node.kind == "buffer"
            or t._storage.node in number
            or t._storage.node.shared
            or any(t._storage is s for s in seen)
            or t._storage.runtime is not runtime
        ):
            return None
        seen.append(t._storage)
    roots = [t._storage.node for t in tensors]
    order = _order(roots, number, leaves)
    if order is None:
        return None
    place_of = {n: i for i, n in enumerate(order)}
    steps = [
        (
            n.kind,
            tuple([-1 - place_of[s] if s in place_of else number[s] for s in n.srcs]),
            n.attrs,
            n.scalars,
            n.shape,
            n.dtype,
            n.line is not None,
        )
        for n in order
    ]
    graph = Recorded(tuple(steps), tuple([place_of[n] for n in roots]))
    places = [
        (
            (graph, i, ()),
            (n.shape, n.dtype, t._storage.elements),
            t._storage.version,
            _geometry(t),
            None if t._base is None or not own_view else _geometry(t._base),
        )
        for i, (n, t) in enumerate(zip(roots, tensors, strict=True))
    ]
    return Result(kind, leaves, places, runtime, len(nodes), places_demanded)


def _without_demanded(kind: Callable[..., object] | None, count: int, values: list[Any]) -> object:
    """Return the results of a call, of which the others were looked at."""
    return values[0] if kind is None else kind(values[:count])


def _with_gaps(there: tuple[bool, ...], values: list[object]) -> tuple[Any, ...]:
    """Return values with None where there is none."""
    rest = iter(values)
    return tuple([next(rest) if t else None for t in there])


def _order(
    roots: list[Node], known: dict[Node, int], leaves: list[int | Node]
) -> list[Node] | None:
    """Return the nodes over the sources in `known`, to which data of the call's own is added."""
    order: dict[Node, None] = {}
    stack = roots[::-1]
    while stack:
        node = stack[-1]
        if node in order or node in known:
            stack.pop()
        elif node.kind == "buffer":
            # Data that is no argument: made by the call, from its arguments' kinds alone.
            if node.buffer.nbytes > _MOST_CONSTANT:
                return None
            known[node] = len(leaves)
            leaves.append(node)
            stack.pop()
        elif node.kind == "call" or len(order) >= _MOST_NODES:
            return None
        elif waiting := [s for s in node.srcs if s not in order and s not in known]:
            stack += waiting
        else:
            stack.pop()
            order[node] = None
    return list(order)
