"""The backward pass: cotangents go through the gradient functions, newest first, each once. Floor 4.

They are ordinary tensors, so with create_graph what computes them is recorded too. Nothing here calls itself: a graph
may be as deep as memory allows.
"""

from __future__ import annotations

import heapq
import itertools
import sys
import warnings
from collections.abc import Callable, Collection, Generator, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, overload

from webtorch.dispatch.call import active, dispatched, looking
from webtorch.ir.lines import user_depth
from webtorch.ir.view import contiguous_strides, numel, strides_like
from webtorch.ops import primitive
from webtorch.ops.layout import channels_last
from webtorch.ops.purity import warn_once
from webtorch.ops.record import TABLE
from webtorch.tensors.above import ask
from webtorch.tensors.base import TensorBase, wraps
from webtorch.tensors.device import device_of
from webtorch.tensors.formats import strided
from webtorch.tensors.host import tracing
from webtorch.tensors.modes import Task, in_transform, mode, passes
from webtorch.tensors.order import graph_of, in_heaps_order
from webtorch.tensors.tape import (
    FREED,
    AccumulateGrad,
    Cotangents,
    Edge,
    GradFn,
    GradientEdge,
    anomaly,
    gradient_edge,
    lacking,
    meta_of,
    set_history,
)

if TYPE_CHECKING:
    from webtorch.tensors.tensor import Tensor


def _keep_retained(fn: GradFn, grads: Sequence[Tensor | None]) -> None:
    for number, reference in (fn.retained or {}).items():
        tensor, g = reference(), grads[number]
        # An in-place operation since then gave the tensor another function, which keeps its gradient now.
        if tensor is not None and g is not None and tensor._grad_fn is fn:
            if tracing.active:
                tracing.touch_grad(tensor)
            tensor._grad = g.clone() if tensor._grad is None else tensor._grad + g


def run_backward(
    roots: Sequence[Tensor],
    cotangents: Sequence[Tensor],
    *,
    retain_graph: bool,
    create_graph: bool,
    inputs: Sequence[Tensor] | None = None,
    accumulate: bool = True,
) -> list[Tensor | None]:
    """Propagate `cotangents` of `roots`. With `inputs`, return their gradients (or accumulate only
    into them).
    """
    running = begin_backward(
        roots, cotangents, retain_graph, create_graph, inputs, accumulate=accumulate
    )
    running.run()
    return running.found


class Turn(NamedTuple):
    """A function of the user's that a backward pass calls: among the hooks `owner`, under `key`."""

    function: Callable[..., Any]
    args: tuple[Any, ...]
    owner: Any
    key: Any


Turns = Generator[Turn, Any, None]


def take(turns: Turns, given: object) -> Turn | None:
    """Go on with what a function of the user's gave, up to the next one; None at the end."""
    try:
        return turns.send(given)
    except StopIteration:
        return None


def begin_backward(
    roots: Sequence[Tensor],
    cotangents: Sequence[Tensor],
    retain_graph: bool,
    create_graph: bool,
    inputs: Sequence[Tensor] | None = None,
    *,
    accumulate: bool = True,
) -> Backward:
    """Return a backward pass that has not run anything."""
    ends = None if inputs is None else [_end(t) for t in inputs]
    edges = [gradient_edge(t) for t in roots]
    starts = [e[0] for e in edges if e is not None]
    if ends is not None and any(_is_gone(fn, ends) for fn in starts):
        raise RuntimeError(FREED)
    running = Backward(starts, ends, retain_graph, create_graph, accumulate)
    running.sent = [(e, g) for e, g in zip(edges, cotangents, strict=True) if e is not None]
    return running


def _end(tensor: Tensor) -> Edge:
    """Return where the cotangents of an input of a backward pass go. Raises RuntimeError if it has none."""
    edge = gradient_edge(tensor)
    if edge is not None:
        return edge
    if not tensor.requires_grad:
        raise RuntimeError("One of the differentiated Tensors does not require grad")
    # A view that was made while nothing was recorded: nothing comes there.
    return AccumulateGrad(tensor), 0


def _is_gone(fn: GradFn, ends: Sequence[Edge]) -> bool:
    """Whether nothing is left of a function but its name, so that nobody knows whether it leads to an end."""
    name_alone = fn.rule is None and not isinstance(fn, AccumulateGrad)
    return name_alone and all(fn is not end[0] for end in ends)


class InPass:
    """Inside, a backward pass runs in this thread: whether it records gradients, and whether it goes to every leaf."""

    __slots__ = ("before", "hooks", "now")

    def __init__(self, task: Task, grad: bool, whole: bool) -> None:
        self.now = grad, whole, task

    def __enter__(self) -> None:
        self.before = mode.grad, mode.whole_backward, mode.task
        self.hooks = mode.saved_hooks
        mode.depth += 1
        mode.grad, mode.whole_backward, mode.task = self.now

    def __exit__(self, *error: object) -> None:
        mode.grad, mode.whole_backward, mode.task = self.before
        mode.depth -= 1
        if mode.saved_hooks is not self.hooks:
            # A hook or a user's rule has opened a block that it left open.
            looking.add(len(self.hooks) - len(mode.saved_hooks))
            mode.saved_hooks = self.hooks


# The place among what waits of a leaf whose gradient is whole: functions stand at the negative of their number.
_FIRST = -sys.maxsize


class Backward:
    """One backward pass: what waits for its functions, and the gradients that were asked for."""

    __slots__ = (
        "__weakref__", "accumulate", "callbacks", "create_graph", "found", "heap", "last", "left", "needed",
        "number", "order", "paused", "retain_graph", "running", "sender", "sent", "starts", "targets",
        "touched", "waiting",
    )  # fmt: skip

    def __init__(
        self,
        starts: list[GradFn],
        ends: Sequence[Edge] | None,
        retain_graph: bool,
        create_graph: bool,
        accumulate: bool,
    ) -> None:
        """`ends`: where the gradients that are asked for are; None: at every leaf."""
        self.starts = starts
        self.number = passes.last = next(passes.numbers)
        # The function that runs.
        self.running: GradFn | None = None
        # The last one that has sent what it gave.
        self.sender: GradFn | None = None
        # What is called once all functions have run.
        self.callbacks: list[Callable[[], object]] = []
        self.retain_graph = retain_graph
        self.create_graph = create_graph
        self.accumulate = accumulate
        # function -> (which of its outputs, which of the inputs): one tensor may be asked for twice.
        self.targets: dict[GradFn, list[tuple[int, int]]] = {}
        for i, (fn, number) in enumerate(ends or ()):
            self.targets.setdefault(fn, []).append((number, i))
        self.found: list[Tensor | None] = [None] * len(ends or ())
        # None: every function.
        self.needed = None if ends is None else _reachable(starts, set(self.targets))
        self.waiting: dict[GradFn, list[Tensor | None]] = {}
        self.heap: list[tuple[int, int, GradFn]] = []
        self.order = itertools.count()
        # What the pass begins with.
        self.sent: list[tuple[Edge, Tensor]] = []
        # The leaves that come last, each with its number, as nobody sees when they take their gradients.
        self.last: list[tuple[int, AccumulateGrad]] = []
        # Where somebody does: how many edges lead to each leaf from what has not run. It comes once none is left.
        self.left: dict[GradFn, int] | None = None
        # The leaves that something has arrived at.
        self.touched: list[Tensor] = []
        # The function that has come to one of the user's.
        self.paused: Turns | None = None

    def at_work(self) -> InPass:
        """Inside, the thread records what the pass does, or not, and knows which pass runs."""
        return InPass(self, self.create_graph, self.needed is None)

    def made(self) -> Backward:
        """Return the pass."""
        return self

    def reach(self) -> Collection[GradFn]:
        """Return the functions that the pass runs."""
        return graph_of(self.starts) if self.needed is None else self.needed

    def send(self, edge: Edge, g: Tensor) -> None:
        """Add a cotangent to those that wait for a function."""
        fn, number = edge
        if self.needed is not None and fn not in self.needed:
            return
        parts = self.waiting.get(fn)
        if parts is None:
            if fn.sequence >= 0:
                parts = self.waiting[fn] = [None] * len(fn.metas)
                heapq.heappush(self.heap, (-fn.sequence, next(self.order), fn))
            else:
                parts = self._wait_at(fn)
        if number >= len(parts):
            parts += [None] * (number + 1 - len(parts))
        previous = parts[number]
        if previous is not None:
            # What is sparse is added to what is dense.
            g = previous + g if previous.layout is strided else g + previous
        parts[number] = g

    def send_none(self, fn: GradFn) -> None:
        """Have a function run, also if no cotangent comes to it: what follows may be a user's, which is given zeros."""
        if fn in self.waiting or (self.needed is not None and fn not in self.needed):
            return
        if not isinstance(fn, AccumulateGrad):
            self.waiting[fn] = [None] * len(fn.metas)
            heapq.heappush(self.heap, (-fn.sequence, next(self.order), fn))
        elif fn.sequence < 0 and _is_seen(fn):
            self._wait_at(fn)

    def _wait_at(self, end: GradFn) -> list[Tensor | None]:
        """Have a leaf wait for all of its gradient; return the place of what has come."""
        assert isinstance(end, AccumulateGrad)
        if self.left is None:
            if _is_seen(end):
                heapq.heappush(self.heap, (_FIRST, next(self.order), end))
            else:
                self.last.append((next(self.order), end))
        parts: list[Tensor | None] = [None]
        self.waiting[end] = parts
        return parts

    def _count(self, running: GradFn) -> None:
        """Have each leaf take its gradient as soon as all of it has come, from the running function on."""
        reached, needed = graph_of([running, *[fn for _, _, fn in self.heap]]), self.needed
        left = _edges_to_leaves(fn for fn in reached if needed is None or fn in needed)
        self.left = left
        whole = [(_FIRST, number, end) for number, end in self.last if end not in left]
        self.heap[:] = [*[item for item in self.heap if item[2] not in left], *whole]
        self.last.clear()
        if self.sender is not None:
            # Those that the last function has completed.
            ends = {e[0] for e in self.sender.edges if e is not None}
            done = [item for item in self.heap if item[0] == _FIRST and item[2] in ends]
            done.sort()
            places = dict(
                zip(in_heaps_order(self.sender, [fn for *_, fn in done], self._others()), done)
            )
            self.heap[:] = [
                (key, places[fn][1] if fn in places else number, fn)
                for key, number, fn in self.heap
            ]
        heapq.heapify(self.heap)

    def _others(self) -> list[tuple[int, GradFn]]:
        return [(-key, fn) for key, _, fn in self.heap if key != _FIRST]

    def _count_before(self, item: tuple[int, int, GradFn], grads: list[Tensor | None]) -> None:
        """Count what is left for leaves before that runs whose turn it was."""
        self.waiting[item[2]] = grads
        heapq.heappush(self.heap, item)
        self._count(item[2])

    def _count_down(self, fn: GradFn) -> None:
        """Have leaves come next for which nothing is left since a function has run."""
        left, done = self.left or {}, list[GradFn]()
        for edge in fn.edges if left else ():
            if edge is not None and edge[0] in left:
                left[edge[0]] -= 1
                if not left[edge[0]] and edge[0] in self.waiting:
                    done.append(edge[0])
        for end in in_heaps_order(fn, done, self._others()) if len(done) > 1 else done:
            heapq.heappush(self.heap, (_FIRST, next(self.order), end))

    def run(self) -> None:
        """Run the pass, and what it calls of the user's."""
        with self.at_work():
            turn = self.advance()
            while turn is not None:
                turn = self.advance(turn.function(*turn.args))

    def advance(self, given: object = None) -> Turn | None:
        """Run the functions for which something waits, newest first, each once, up to where one of the user's is to be
        called, and return that; None at the end. `given`: what the last one gave.
        """
        try:
            return self._go_on(given)
        except Exception:
            if self.left is None and self.running is not None and not tracing.active:
                self._count(self.running)
                while self.heap and self.heap[0][0] == _FIRST:
                    end = heapq.heappop(self.heap)[2]
                    assert isinstance(end, AccumulateGrad)
                    self._arrive(end, self.waiting.pop(end)[0])
            raise

    def _go_on(self, given: object) -> Turn | None:
        """Do what `advance` does."""
        for edge, g in self.sent:
            self.send(edge, g)
        self.sent.clear()
        heap, waiting = self.heap, self.waiting
        while True:
            if self.paused is not None:
                turn = take(self.paused, given)
                if turn is not None:
                    return turn
                self.paused = given = None
            if not heap:
                if self._wait_no_more():
                    continue
                return Turn(self.callbacks.pop(0), (), (), 0) if self.callbacks else None
            item = heapq.heappop(heap)
            fn = self.running = item[2]
            grads = waiting.pop(fn)
            if isinstance(fn, AccumulateGrad):
                if self.left is None and fn.sequence < 0:
                    self._count_before(item, grads)
                elif _is_seen(fn):
                    self.paused = self._arrive_watched(fn, grads)
                else:
                    self._arrive(fn, grads[0])
            elif fn.turns is not None or fn.recalls or fn.is_watched:
                if self.left is None:
                    self._count_before(item, grads)
                else:
                    self.paused = self._run_watched(fn, grads)
            elif self.needed is None or not self._ends(fn, grads):
                result = self._call(fn, grads)
                if fn.post_hooks:
                    # They came while the function ran, and see nothing of what it was given.
                    result = _after(fn, result, [])
                self._pass_on(fn, result)

    def _run_watched(self, fn: GradFn, grads: list[Tensor | None]) -> Turns:
        """Run a function at which some of the user's are called, each by whoever runs the pass; what it gives is sent
        back.
        """
        ends = self._ends(fn, grads)
        if fn.tensor_hooks or fn.retained:
            grads = yield from _seen_by_tensors(fn, grads)
        if ends:
            self._find(fn, grads)
            if self.accumulate and fn.pre_hooks:
                _before(fn, grads)
            return
        if fn.pre_hooks:
            grads = _before(fn, grads)
        if fn.recalls and not anomaly.enabled and any(g is not None for g in grads):
            part = lacking(fn)
            if part is not None:
                yield Turn(part.compute, (), part, 0)
        if fn.turns is not None and fn.saved is not None and not anomaly.enabled:
            result = yield from fn.turns(grads, fn.static)
            self._free(fn)
        else:
            result = self._call(fn, grads)
        self._pass_on(fn, _after(fn, result, grads))

    def _ends(self, fn: GradFn, grads: list[Tensor | None]) -> bool:
        """Whether nothing that is asked for lies behind a function; what is asked for of itself is found."""
        needed = self.needed
        if needed is None:
            return False
        # What goes on is asked for as it comes to the hooks, as PyTorch has it; what ends, as they leave it.
        self._find(fn, grads)
        return not any(e is not None and e[0] in needed for e in fn.edges)

    def _find(self, fn: GradFn, grads: list[Tensor | None]) -> None:
        """Note the cotangents that are asked for."""
        for number, i in self.targets.get(fn, ()):
            self.found[i] = grads[number]

    def _call(self, fn: GradFn, grads: list[Tensor | None]) -> Cotangents:
        """Return what a function gives, and let go of what it has saved."""
        saved = fn.saved
        if fn.rule is None or saved is None:
            raise RuntimeError(FREED)
        if grads[0] is None and not fn.takes_gaps and all(g is None for g in grads):
            # None came, or a hook took it away.
            result: Cotangents = (None,) * len(fn.edges)
        elif anomaly.enabled:
            result = anomaly.run(fn, grads)
        elif active.others and any(g is not None and wraps(g) for g in grads):
            result = ask("run_rule")(fn, grads)
        else:
            result = fn.rule(grads, saved, fn.static)
        if saved:
            self._free(fn)
        return result

    def _free(self, fn: GradFn) -> None:
        """Let go of what a function has saved."""
        if fn.saved and not self.retain_graph:
            fn.saved = None
            # A user's function: what its context saved goes too.
            context = getattr(fn, "ctx", None)
            if context is not None:
                context._saved = context._kept = None

    def _pass_on(self, fn: GradFn, result: Cotangents) -> None:
        """Send what a function gave to those that it leads to."""
        for edge, g in zip(fn.edges, result, strict=True):
            if edge is not None:
                if g is None:
                    self.send_none(edge[0])
                else:
                    self.send(edge, _fit(g, edge))
        self.sender = fn
        if self.left is not None:
            self._count_down(fn)

    def _keeps(self, end: AccumulateGrad, g: Tensor | None) -> bool:
        """Note what arrives at a leaf where it is asked for, and whether it belongs to the leaf's gradient."""
        for _, i in self.targets.get(end, ()):
            self.found[i] = g
        if end.edges and end.edges[0] is not None:
            if g is not None:
                self.send(end.edges[0], g)
            self._count_down(end)
            return False
        return self.accumulate

    def _wait_no_more(self) -> bool:
        """Have the leaves take their gradients that are left at the end; return whether there were some."""
        if not self.waiting:
            return False
        if self.left is None:
            for _, end in self.last:
                self._arrive(end, self.waiting.pop(end)[0])
            self.last.clear()
        else:
            self.heap += [(_FIRST, next(self.order), fn) for fn in self.waiting]
        return True

    def _arrive(self, end: AccumulateGrad, g: Tensor | None) -> None:
        """Take a cotangent at a leaf."""
        if g is not None:
            leaf = end.variable
            self.touched.append(leaf)
            # Its flag may have been taken away since.
            if self._keeps(end, g) and leaf._requires_grad:
                _accumulate(leaf, g, self.create_graph)

    def _arrive_watched(self, end: AccumulateGrad, grads: list[Tensor | None]) -> Turns:
        """Take a cotangent at a leaf with hooks."""
        if end.tensor_hooks or end.retained:
            grads = yield from _seen_by_tensors(end, grads)
        g, variable = grads[0], end.variable
        if g is not None:
            self.touched.append(variable)
        hooks: dict[int, Callable[..., Any]] = variable._hooks or {}
        for key, hook in list(hooks.items()):
            new = yield Turn(hook, (g,), hooks, key)
            if new is not None:
                g = _replacing(new, g, hook)
        if not self._keeps(end, g):
            return
        (found,) = _before(end, [g])
        if variable._requires_grad:
            fresh = variable.grad is None and not self.create_graph
            if found is not None:
                _accumulate(variable, found, self.create_graph)
            hooks = variable._post_accumulate or {}
            for key, hook in list(hooks.items()):
                given = yield Turn(hook, (variable,), hooks, key)
                if given is not None:
                    _check_is_tensor(given)
                    raise RuntimeError("Tensor post accumulate grad hooks should return None.")
            # The first one is the leaf's gradient itself, which hooks may have written.
            if fresh and variable.grad is not None:
                found = variable.grad
        _after(end, (), [found])


def _is_seen(end: AccumulateGrad) -> bool:
    """Whether somebody sees what arrives at a leaf."""
    leaf = end.variable
    return bool(leaf._hooks or leaf._post_accumulate or end.is_watched)


class TensorHook:
    """A hook of a tensor, among those of the function that gave it: it sees the cotangent of one output."""

    __slots__ = ("hook", "number")

    def __init__(self, hook: Callable[..., object], number: int) -> None:
        self.hook, self.number = hook, number

    def __call__(self, grads: Sequence[Tensor | None]) -> tuple[Tensor | None, ...] | None:
        """Call the hook, and return the cotangents with what it gave."""
        return self.replaced(grads, self.hook(grads[self.number]))

    def replaced(
        self, grads: Sequence[Tensor | None], new: Any
    ) -> tuple[Tensor | None, ...] | None:
        """Return the cotangents with what the hook gave."""
        number = self.number
        g = grads[number]
        if new is None:
            return None
        _replacing(new, g, self.hook)
        return (*grads[:number], new, *grads[number + 1 :])


def _seen_by_tensors(
    fn: GradFn, grads: list[Tensor | None]
) -> Generator[Turn, Any, list[Tensor | None]]:
    """Return the cotangents of a function as the hooks of its tensors leave them, and keep those that are to
    be kept.
    """
    hooks: dict[int, Callable[..., Any]] = fn.tensor_hooks or {}
    for key, hook in list(hooks.items()):
        if type(hook) is TensorHook:
            turn = Turn(hook.hook, (grads[hook.number],), hooks, key)
            grads = list(hook.replaced(grads, (yield turn)) or grads)
        else:
            grads = list(hook(tuple(grads)) or grads)
    if fn.retained:
        _keep_retained(fn, grads)
    return grads


def _before(fn: GradFn, grads: list[Tensor | None]) -> list[Tensor | None]:
    """Return the cotangents of a function as its own hooks leave them."""
    for hook in list((fn.pre_hooks or {}).values()):
        grads = _replaced(hook(tuple(grads)), grads, hook)
    return grads


def _after(fn: GradFn, result: Cotangents, grads: list[Tensor | None]) -> Cotangents:
    """Return what a function gave as the hooks that come after it leave it."""
    for hook in list((fn.post_hooks or {}).values()):
        result = _replaced(hook(tuple(result), tuple(grads)), list(result), hook)
    return result


def _replacing(new: Tensor, g: Tensor | None, hook: Callable[..., object]) -> Tensor:
    """Return what a hook gave in place of g. Raises RuntimeError if it does not fit."""
    if g is None:
        raise RuntimeError("can't replace a None gradient with a non-None value")
    _check_is_tensor(new)
    if new.dtype is not g.dtype or new.device.type != g.device.type:
        raise RuntimeError(
            f"hook '{_title(hook)}' has changed the type of value (was {g.type()} got {new.type()})"
        )
    if new._shape != g._shape:
        raise RuntimeError(f"hook '{_title(hook)}' has changed the size of value")
    return new


def _check_is_tensor(given: object) -> None:
    if not hasattr(given, "_shape"):
        raise TypeError(f"expected Variable, but hook returned '{type(given).__name__}'")


def _title(hook: Callable[..., object]) -> str:
    return getattr(hook, "__name__", repr(hook))


def _replaced(
    new: object, grads: list[Tensor | None], hook: Callable[..., object]
) -> list[Tensor | None]:
    """Return what a hook gave in place of all cotangents. Raises TypeError or RuntimeError if it does not fit."""
    if new is None:
        return grads
    if not isinstance(new, tuple):
        raise TypeError(f"expected tuple, but hook returned '{type(new).__name__}'")
    given = list(new)
    if len(given) != len(grads):
        raise RuntimeError(
            f"hook '{_title(hook)}' has returned an incorrect number of values (got {len(given)}, "
            f"but expected {len(grads)})"
        )
    for value, g in zip(given, grads, strict=True):
        if value is not None:
            _replacing(value, g, hook)
    return given


def _edges_to_leaves(functions: Iterable[GradFn]) -> dict[GradFn, int]:
    """Return how many edges lead from functions to each leaf."""
    found: dict[GradFn, int] = {}
    for fn in functions:
        for edge in fn.edges:
            if edge is not None and edge[0].sequence < 0:
                found[edge[0]] = found.get(edge[0], 0) + 1
    return found


def order() -> list[GradFn]:
    """Return the functions of the running backward pass in the order in which they run."""
    assert mode.task is not None
    reached = mode.task.reach()
    functions = sorted((fn for fn in reached if fn.sequence >= 0), key=lambda fn: -fn.sequence)
    left, found = _edges_to_leaves(functions), [fn for fn in reached if fn.sequence < 0]
    found = [fn for fn in found if fn not in left]
    for fn in functions:
        found.append(fn)
        for edge in fn.edges:
            if edge is not None and edge[0] in left:
                left[edge[0]] -= 1
                if not left[edge[0]] and edge[0] in reached:
                    found.append(edge[0])
    return found


def will_run(fns: Iterable[GradFn]) -> list[bool]:
    """Whether the running backward pass reaches each of the functions."""
    assert mode.task is not None
    reached = mode.task.reach()
    return [fn in reached for fn in fns]


def queue_callback(callback: Callable[[], object]) -> None:
    """Have the running backward pass call `callback` at its end."""
    if mode.task is None:
        raise RuntimeError("Final callbacks can only be installed during backward pass.")
    mode.task.callbacks.append(callback)


def _fit(g: Tensor, edge: Edge) -> Tensor:
    """Bring a cotangent to the dtype of the tensor it belongs to, and to the examples that this has."""
    fn, number = edge
    if isinstance(fn, AccumulateGrad):
        dtype, levels = fn.variable.dtype, fn.variable._levels
    else:
        _, dtype, _, levels = fn.metas[number]
    if g._levels and not mode.keeps_levels:
        g = ask("summed_over")(g, [n for n, _, _ in levels])
    if g.dtype is dtype:
        return g
    # The cotangent of a real tensor is the real part.
    return (primitive.real_part(g) if g.dtype.is_complex and not dtype.is_complex else g).to(dtype)


def _reachable(roots: list[GradFn], wanted: set[GradFn]) -> set[GradFn]:
    """Return the functions on a way from the roots to a wanted one (all of them need to run)."""
    needed = set(wanted)
    # Edges lead to smaller sequence numbers, so sources first is one pass.
    for fn in sorted(graph_of(roots), key=lambda f: f.sequence):
        if any(e is not None and e[0] in needed for e in fn.edges):
            needed.add(fn)
    return needed


def _accumulate(variable: Tensor, g: Tensor, create_graph: bool) -> None:
    if tracing.active:
        tracing.touch_grad(variable)
    old = variable._grad
    if old is None:
        if create_graph:
            variable._grad = _copied(g)
        else:
            # A clone shares the value until one of the two is written.
            variable._grad = g.detach().clone()
            if not (variable._whole and g._whole):
                _lie_as(variable, variable._grad)
    elif create_graph:
        variable._grad = old + g if old.layout is strided else g + old
    elif old.layout is not g.layout:
        # What is sparse on one side is dense together.
        variable._grad = g + old if g.layout is strided else old + g
    else:
        old += g


def _copied(g: Tensor) -> Tensor:
    """Return a gradient that is kept with its history: a copy, which shares its value until it is written."""
    copy = g.clone()
    if copy._grad_fn is not None:
        copy._grad_fn = GradFn("CopyBackwards", (None, gradient_edge(g)), _past_none)
        set_history(copy, copy._grad_fn)
    return copy


def _past_none(gs: Cotangents, _saved: object, _static: object) -> Cotangents:
    """The rule of a copy: nothing goes to what was overwritten."""
    return (None, gs[0])


def _lie_as(variable: Tensor, grad: Tensor) -> None:
    """Let a new gradient lie in memory as its leaf does where that has no gaps, else row-major."""
    if grad.layout is not strided:
        return
    shape, strides = variable._shape, variable._strides
    if strides_like(shape, strides) != strides:
        strides = contiguous_strides(shape)
    if grad._strides != strides and not grad._levels and not grad.dtype.is_complex:
        ask("lay")(grad, strides)


@dispatched(role="backward")
def backward(
    tensors: Tensor | Sequence[Tensor],
    grad_tensors: Tensor | Sequence[Tensor | None] | None = None,
    retain_graph: bool | None = None,
    create_graph: bool = False,
    inputs: Tensor | Sequence[Tensor] | None = None,
) -> None:
    """Accumulate gradients of `tensors` into the `.grad` of the graph's leaves (or of `inputs`
    only).
    """
    backward_of(tensors, grad_tensors, retain_graph, create_graph, inputs)


def backward_of(
    tensors: Tensor | Sequence[Tensor],
    grad_tensors: Tensor | Sequence[Tensor | None] | None,
    retain_graph: bool | None,
    create_graph: bool,
    inputs: Tensor | Sequence[Tensor] | None,
) -> None:
    """Do what `backward` does."""
    targets = None if inputs is None else _listed(inputs)
    running = pass_of(tensors, grad_tensors, retain_graph, create_graph, targets)
    running.run()
    for t, g in zip(targets or (), running.found, strict=False):
        # An edge of the graph says how far to go; it keeps nothing.
        if g is not None and type(t) is not GradientEdge and not t.is_leaf and not t._retains:
            _accumulate(t, g, create_graph)


def pass_of(
    tensors: Tensor | Sequence[Tensor],
    grad_tensors: Tensor | Sequence[Tensor | None] | None = None,
    retain_graph: bool | None = None,
    create_graph: bool = False,
    inputs: Tensor | Sequence[Tensor] | None = None,
) -> Backward:
    """Return the backward pass of what `backward` is given. Raises RuntimeError where that cannot be differentiated."""
    if in_transform():
        raise RuntimeError(
            "backward() called inside a functorch transform. This is not supported, please use "
            "functorch.grad or functorch.vjp instead or call backward() outside of functorch "
            "transforms."
        )
    roots = _listed(tensors)
    given = _listed(grad_tensors) if grad_tensors is not None else [None] * len(roots)
    for i, root in enumerate(roots):
        if type(root) is not GradientEdge and wraps(root) and hasattr(root, "_as_root"):
            # What lies in parts has the graph of its part.
            roots[i], given[i] = root._as_root(given[i])
    cotangents = _cotangents(roots, given)
    targets = None if inputs is None else _listed(inputs)
    if targets is not None and not targets:
        raise RuntimeError("`inputs` argument to `backward()` cannot be empty.")
    if create_graph:
        warn_once(
            "Using backward() with create_graph=True will create a reference cycle between the parameter and "
            "its gradient which can cause a memory leak. We recommend using autograd.grad when creating the "
            "graph to avoid this. If you have to use this function, make sure to reset the .grad fields of your "
            "parameters to None after use to break the cycle and avoid the leak."
        )
    keep = create_graph if retain_graph is None else retain_graph
    return begin_backward(roots, cotangents, keep, create_graph, targets)


def _batched(
    outputs: Tensor | Sequence[Tensor],
    inputs: Tensor | Sequence[Tensor],
    given: Sequence[Tensor | None],
    retain_graph: bool | None,
    create_graph: bool,
    allow_unused: bool | None,
    materialize_grads: bool,
) -> tuple[Tensor | None, ...]:
    """Return the gradients for each row of the given ones."""
    for i, (root, g) in enumerate(zip(_listed(outputs), given, strict=False)):
        shape = root._shape if hasattr(root, "_shape") else meta_of(root[:2])[0]
        if g is not None and g._shape[1:] != shape:
            found, wanted = list(g._shape), list(shape)
            raise RuntimeError(
                "If `is_grads_batched=True`, we interpret the first dimension of each grad_output as the batch "
                "dimension. The sizes of the remaining dimensions are expected to match the shape of "
                f"corresponding output, but a mismatch was detected: grad_output[{i}] has a shape of "
                f"torch.Size({found}) and output[{i}] has a shape of torch.Size({wanted}). If you only want some "
                "tensors in `grad_output` to be considered batched, consider using vmap."
            )
    size = next(g._shape[0] for g in given if g is not None)
    if any(isinstance(x, TensorBase) and wraps(x) for x in (*_listed(outputs), *given)):
        # Dimensions that vmap hides are those of data.
        rows = [
            grad(
                outputs,
                inputs,
                [None if g is None else g[i] for g in given],
                retain_graph if i == size - 1 else True,
                create_graph,
                allow_unused=allow_unused,
                materialize_grads=materialize_grads,
            )
            for i in range(size)
        ]
        columns = zip(*rows, strict=True)
        return tuple([None if c[0] is None else TABLE["stack"](list(c)) for c in columns])
    batch, unbatch = ask("batch"), ask("unbatch")
    with ask("Vmap")(size, "error", plain=True) as level:
        parts = [None if g is None else batch(g, 0, level.number) for g in given]
        grads = grad(
            outputs, inputs, parts, retain_graph, create_graph,
            allow_unused=allow_unused, materialize_grads=materialize_grads,
        )  # fmt: skip
        return tuple([None if g is None else unbatch(g, 0, level.number, size) for g in grads])


@overload
def grad(
    outputs: Tensor | Sequence[Tensor],
    inputs: Tensor | Sequence[Tensor],
    grad_outputs: Tensor | Sequence[Tensor | None] | None = None,
    retain_graph: bool | None = None,
    create_graph: bool = False,
    only_inputs: bool = True,
    allow_unused: Literal[False] | None = None,
    is_grads_batched: bool = False,
    materialize_grads: bool = False,
) -> tuple[Tensor, ...]:
    """Return the gradients of inputs that are all used."""


@overload
def grad(
    outputs: Tensor | Sequence[Tensor],
    inputs: Tensor | Sequence[Tensor],
    grad_outputs: Tensor | Sequence[Tensor | None] | None = None,
    retain_graph: bool | None = None,
    create_graph: bool = False,
    only_inputs: bool = True,
    *,
    allow_unused: bool | None,
    is_grads_batched: bool = False,
    materialize_grads: bool = False,
) -> tuple[Tensor | None, ...]:
    """Return the gradients of inputs, None for those that are not used."""


@dispatched(role="gradients")
def grad(
    outputs: Tensor | Sequence[Tensor],
    inputs: Tensor | Sequence[Tensor],
    grad_outputs: Tensor | Sequence[Tensor | None] | None = None,
    retain_graph: bool | None = None,
    create_graph: bool = False,
    only_inputs: bool = True,
    allow_unused: bool | None = None,
    is_grads_batched: bool = False,
    materialize_grads: bool = False,
) -> tuple[Tensor | None, ...]:
    """Return the gradients of `outputs` for `inputs`, without touching any `.grad`."""
    if not only_inputs:
        warnings.warn(
            "only_inputs argument is deprecated and is ignored now (defaults to True). To "
            "accumulate gradient for other parts of the graph, please use torch.autograd.backward.",
            FutureWarning,
            stacklevel=user_depth(),
        )
    if is_grads_batched:
        return _batched(
            outputs,
            inputs,
            _listed(grad_outputs),
            retain_graph,
            create_graph,
            allow_unused,
            materialize_grads,
        )
    if materialize_grads and allow_unused is False:
        raise ValueError(
            "Expected allow_unused to be True or not passed when materialize_grads=True, but got: allow_unused=False."
        )
    roots, targets = _listed(outputs), _listed(inputs)
    if not targets:
        raise RuntimeError("`inputs` argument to `grad()` cannot be empty.")
    cotangents = _cotangents(
        roots, _listed(grad_outputs) if grad_outputs is not None else [None] * len(roots)
    )
    keep = create_graph if retain_graph is None else retain_graph
    found = run_backward(
        roots,
        cotangents,
        retain_graph=keep,
        create_graph=create_graph,
        inputs=targets,
        accumulate=False,
    )
    if materialize_grads:
        found = [
            _zeros(t, create_graph) if g is None else g for t, g in zip(targets, found, strict=True)
        ]
    elif not allow_unused and any(g is None for g in found):
        unused = next(i for i, g in enumerate(found) if g is None)
        raise RuntimeError(
            f"The differentiated Tensor at index {unused} appears to not have been used in the graph. "
            "Set allow_unused=True if this is the desired behavior."
        )
    return tuple([g if g is None or g._whole else _laid(t, g) for t, g in zip(targets, found)])


def _laid(x: Tensor | GradientEdge, g: Tensor) -> Tensor:
    """Return a gradient that lies in memory as its tensor does, or has its channels innermost."""
    inner = len(g._shape) in (4, 5) and g._strides == channels_last(g._shape)
    if inner or isinstance(x, GradientEdge):
        return g
    copy = g.clone()
    _lie_as(x, copy)
    return copy


def _zeros(x: Tensor | GradientEdge, create_graph: bool) -> Tensor:
    """Return the gradient of what is not used, a leaf of further graphs."""
    if isinstance(x, GradientEdge):
        raise RuntimeError(
            "materialize_grads cannot be used when the given input is a GradientEdge"
        )
    zeros = primitive.fill(x._shape, 0, x.dtype, x.device)
    zeros._requires_grad = create_graph
    return zeros


def _listed(x: object) -> list[Any]:
    one = type(x) is GradientEdge or x is None or hasattr(type(x), "_grad_fn")
    return [x] if one else list(x)  # type: ignore[call-overload]


def _cotangents(roots: list[Tensor | GradientEdge], given: list[Tensor | None]) -> list[Tensor]:
    if len(given) != len(roots):
        raise RuntimeError(
            f"Mismatch in number of outputs: got {len(roots)} outputs and {len(given)} gradients"
        )
    out: list[Tensor] = []
    for i, (root, g) in enumerate(zip(roots, given, strict=True)):
        if isinstance(root, GradientEdge):
            shape, dtype, runtime, _ = meta_of(root[:2])
            place = device_of(runtime)
        elif not root.requires_grad:
            raise RuntimeError(
                f"element {i} of tensors does not require grad and does not have a grad_fn"
            )
        else:
            shape, dtype, place = root._shape, root.dtype, root.device
        if g is None:
            if numel(shape) != 1:
                raise RuntimeError("grad can be implicitly created only for scalar outputs")
            if dtype.is_complex:
                raise RuntimeError(
                    f"grad can be implicitly created only for real scalar outputs but got {dtype}"
                )
            # Who sees operators sees this one; a tensor that wraps others gets one of its kind.
            seen = active.others and not isinstance(root, GradientEdge)
            g = TABLE["ones_like"](root) if seen else primitive.fill(shape, 1, dtype, place)
        elif g._shape != shape:
            raise RuntimeError(
                f"Mismatch in shape: grad_output[{i}] has a shape of torch.Size({list(g._shape)}) "
                f"and output[{i}] has a shape of torch.Size({list(shape)})."
            )
        elif g.dtype.is_complex is not dtype.is_complex:
            raise RuntimeError(
                "For complex Tensors, both grad_output and output are required to have the same dtype. "
                f"Mismatch in dtype: grad_output[{i}] has a dtype of {g.dtype} and output[{i}] has a "
                f"dtype of {dtype}."
            )
        out.append(g)
    return out
