"""Autograd: gradient functions, saved tensors, modes and the backward pass. Floor 4.

Every differentiable operation attaches a `GradFn` to its result, with an edge to each input's. The
backward pass walks them in
topological order, once each, without recursion; cotangents are ordinary tensors, so with
create_graph they are differentiable too.
"""

from __future__ import annotations

import contextlib
import functools
import heapq
import itertools
import sys
import threading
import traceback
import warnings
import weakref
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple

from webtorch.dispatch.call import Args, Kwargs, Run, dispatched
from webtorch.errors import CaptureError
from webtorch.ir.dtype import legacy_name
from webtorch.ir.lines import is_internal, user_depth
from webtorch.ops import primitive
from webtorch.ops.purity import warn_once
from webtorch.tensors.above import ask
from webtorch.tensors.host import bindings, tracing
from webtorch.tensors.storage import Storage

if TYPE_CHECKING:
    from webtorch.tensors.tensor import Tensor

# Tensors, with None where there is no cotangent.
Cotangents = Sequence[Any]
Edge = tuple["GradFn", int]
_sequence = itertools.count()


class _Mode(threading.local):
    grad = True
    inference = False
    # (pack, unpack) of the innermost saved_tensors_hooks last.
    saved_hooks: tuple[tuple[Callable[[Any], Any], Callable[[Any], Any]], ...] = ()
    # Whether the running backward pass accumulates into every leaf (it was not given inputs).
    whole_backward = True
    # The vmaps that run (batching.Vmap) and the levels of forward-mode differentiation
    # (forward.Level), outermost first.
    vmaps: tuple[Any, ...] = ()
    forward: tuple[Any, ...] = ()
    # The differentiations of webtorch.func that run.
    transforms: tuple[Any, ...] = ()
    # The running backward pass: where it starts, and what it needs to run (None: everything).
    task: tuple[list[Any], set[GradFn] | None] | None = None
    # Why saved_tensors_hooks may not be used now, if they may not.
    hooks_disabled: str | None = None
    # Whether what is saved keeps its value when the tensor is overwritten.
    mutation_allowed = False
    # Whether cotangents keep every vmap's dimension, also where their tensor has none.
    keeps_levels = False
    # Whether products of 16-bit floats give their float32 sums (`primitives.unrounded`).
    keeps_sums = False

    def __init__(self) -> None:
        # Saved tensors of the in-place operation that is being recorded.
        self.overwriting: list[SavedTensor] | None = None


mode = _Mode()


class _Forward:
    """How many levels of forward-mode differentiation are open, in all threads."""

    __slots__ = ("levels",)

    def __init__(self) -> None:
        self.levels = 0


# Asked before every operation: cheaper than a look at `mode`.
forward = _Forward()


class _Anomaly:
    """Anomaly detection: functions remember their forward call, and backward looks for NaN."""

    enabled = False
    check_nan = True

    def __init__(self) -> None:
        # The function whose rule is running: what it records has it as its cause.
        self.running: GradFn | None = None

    def note(self, fn: GradFn) -> None:
        """Keep the user's lines that led to the call that is being recorded."""
        frames = traceback.walk_stack(sys._getframe(2))
        lines = [(f, n) for f, n in frames if not is_internal(f.f_code)]
        fn.metadata["traceback_"] = traceback.StackSummary.extract(reversed(lines)).format()
        if self.running is not None:
            fn.metadata["parent_"] = self.running

    def run(self, fn: GradFn, grads: list[Any]) -> Cotangents:
        """Run a rule. Where it fails, or gives NaN, warn with the lines of the forward call and raise."""
        if tracing.active:
            raise CaptureError(
                "detect_anomaly reads every gradient, and a captured program is replayed without "
                "Python: call the function that is not compiled."
            )
        assert fn.rule is not None
        before, self.running = self.running, fn
        try:
            result = fn.rule(grads)
            for i, g in enumerate(result if self.check_nan else ()):
                if g is not None and g.dtype.kind == "float" and g.isnan().any().item():
                    raise RuntimeError(
                        f"Function '{fn.title}' returned nan values in its {i}th output."
                        + self._where(fn)
                    )
        except Exception:
            warnings.warn(self._story(fn), stacklevel=user_depth())
            raise
        finally:
            self.running = before
        return result

    @staticmethod
    def _where(fn: GradFn) -> str:
        lines = fn.metadata.get("traceback_")
        return f" It was called forward at:\n{lines[-1].rstrip()}" if lines else ""

    @staticmethod
    def _story(fn: GradFn) -> str:
        lines = fn.metadata.get("traceback_")
        if not lines:
            return (
                f"Error detected in {fn.title}. No forward pass information available. Enable "
                "detect anomaly during forward pass for more information."
            )
        text = (
            f"Error detected in {fn.title}. Traceback of forward call that caused the error:\n"
            + "".join(lines)
        )
        parent = fn.metadata.get("parent_")
        while parent is not None:
            lines = parent.metadata.get("traceback_", ["  (not recorded)\n"])
            text += (
                f"\n\nPrevious calculation was induced by {parent.title}. Traceback of forward call "
                f"that induced the previous calculation:\n{''.join(lines)}"
            )
            parent = parent.metadata.get("parent_")
        return text


anomaly = _Anomaly()


class GradFn:
    """One node of the autograd graph. `rule(cotangents of the outputs)` gives one cotangent per
    edge; `saved` is what it reads of the forward pass.
    """

    __slots__ = (
        "__dict__", "__weakref__", "edges", "metas", "rule", "saves", "sequence", "title",
    )  # fmt: skip
    # What few functions have is in their `__dict__`: the others pay nothing.
    # The last function of a composite operation stands for all of its functions: those with larger
    # numbers than this one.
    first: int | None = None
    pre_hooks: dict[int, Callable[..., Any]] | None = None
    # Output number -> the tensor that keeps its gradient; served after all hooks.
    retained: dict[int, weakref.ref[Tensor]] | None = None
    post_hooks: dict[int, Callable[..., Any]] | None = None

    def __init__(
        self,
        name: str,
        edges: tuple[Edge | None, ...],
        rule: Callable[[Cotangents], Cotangents] | None,
        saved: Sequence[SavedTensor] = (),
    ) -> None:
        self.title = name
        self.edges = edges
        self.rule = rule
        # Later operations have larger numbers: the order of the backward pass.
        self.sequence = next(_sequence)
        # For each output its shape, dtype, runtime and levels.
        self.metas: Sequence[Any] = ()
        # One that needs saved tensors can run only once, unless the graph is retained.
        self.saves = bool(saved)
        for s in saved:
            if s.output is not None or s.present is not None:
                s.claim(self)
        if anomaly.enabled and rule is not None:
            anomaly.note(self)

    @property
    def next_functions(self) -> tuple[tuple[GradFn | None, int], ...]:
        """The gradient functions of the inputs, as PyTorch shows them."""
        found: dict[tuple[int, int], tuple[GradFn | None, int]] = {}
        pending = list(reversed(self.edges))
        first = self.first
        while pending:
            edge = pending.pop()
            if edge is None:
                if first is None:
                    found[len(found), -1] = (None, 0)
            elif first is not None and edge[0].sequence > first:
                pending.extend(reversed(edge[0].edges))
            else:
                place = len(found) if first is None else edge[1]
                found[id(edge[0]), place] = (shown(edge[0]), edge[1])
        return tuple(found.values())

    def name(self) -> str:
        """Return the name, such as "MulBackward0"."""
        return self.title

    @property
    def metadata(self) -> dict[Any, Any]:
        """A dict for the user's own notes."""
        notes: dict[Any, Any] = self.__dict__.setdefault("_notes", {})
        return notes

    def __repr__(self) -> str:
        return f"<{self.title} object at {hex(id(self))}>"

    def register_hook(self, hook: Callable[[Any, Any], Any]) -> RemovableHandle:
        """Call `hook(grad_inputs, grad_outputs)` after this function has run."""
        self._changes("registers a hook on a tensor")
        if self.post_hooks is None:
            self.post_hooks = {}
        return RemovableHandle(self.post_hooks, hook)

    def register_prehook(self, hook: Callable[[Any], Any]) -> RemovableHandle:
        """Call `hook(grad_outputs)` before this function runs."""
        self._changes("registers a hook on a tensor")
        if self.pre_hooks is None:
            self.pre_hooks = {}
        return RemovableHandle(self.pre_hooks, hook)

    def _changes(self, what: str) -> None:
        """Have the call run as usual if a capture changes what a function from outside does."""
        if tracing.active and self.sequence < tracing.first:
            tracing.refuse(f"it {what} from outside")


_SHOWN: dict[str, type[GradFn]] = {}


def shown(fn: GradFn) -> GradFn:
    """Give a gradient function that a user sees a class of its name, as PyTorch's have."""
    if type(fn) is GradFn:
        found = _SHOWN.get(fn.title)
        if found is None:
            found = _SHOWN[fn.title] = type(fn.title, (GradFn,), {"__slots__": ()})
        fn.__class__ = found
    return fn


def composed(
    run: Run,
    title: str | Callable[..., str] | None,
    renamed: Mapping[str, str] | None = None,
    own_view: bool = False,
) -> Run:
    """Return a call whose results show one gradient function, named `title`, and are no views of
    what it made itself, unless `own_view` says so.

    A callable `title` is given the arguments of the call; without one, functions keep their names. What
    is computed backward stays as it is. `renamed`: other names of parameters, and the function's own.
    """

    unchanged = title is None and own_view

    def named(args: Args, kwargs: Kwargs) -> Any:
        """Call the operation, and name the gradient function of its results."""
        if kwargs and renamed:
            kwargs = {renamed.get(name, name): value for name, value in kwargs.items()}
        if unchanged or not mode.grad:
            return run(args, kwargs)
        first = next(_sequence)
        out = run(args, kwargs)
        results = out if isinstance(out, tuple) else (out,)
        for t in results:
            fn = getattr(t, "_grad_fn", None)
            # An older function is an input's: the operation returned its input.
            if fn is not None and fn.sequence > first:
                base = t._base
                fresh = base is not None and not base._history and not own_view
                if fresh and not any(r is base for r in results):
                    made = base._grad_fn
                    if made is not None and made.sequence > first:
                        # A view of what nobody else has is no view: its hooks stay when it is written.
                        t._base = None
                if title is None:
                    continue
                text = title if isinstance(title, str) else title(*args, **kwargs)
                fn.title, fn.first = text, first
                if type(fn) is not GradFn:
                    fn.__class__ = GradFn
        return out

    return named


class AccumulateGrad(GradFn):
    """The end of the graph at a leaf: adds to its `.grad`."""

    __slots__ = ("variable",)

    def __init__(self, variable: Tensor) -> None:
        super().__init__("torch::autograd::AccumulateGrad", (), None)
        self.variable = variable
        # Leaves come last.
        self.sequence = -1


class Source(GradFn):
    """Where a differentiation of webtorch.func starts: what its argument is made of is another's concern."""

    __slots__ = ("open",)

    def __init__(self, edge: Edge | None) -> None:
        super().__init__("SourceBackward", (edge,), lambda gs: (gs[0],))
        # Whether the differentiation runs.
        self.open = True


class RemovableHandle:
    """Removes a hook again."""

    __slots__ = ("hooks", "id")
    _ids = itertools.count()

    def __init__(self, hooks: dict[int, Callable[..., Any]], hook: Callable[..., Any]) -> None:
        self.id = next(self._ids)
        self.hooks = hooks
        hooks[self.id] = hook
        bindings.modules += 1

    def remove(self) -> None:
        """Take the hook away; doing so twice is fine."""
        self.hooks.pop(self.id, None)
        bindings.modules += 1

    def __enter__(self) -> RemovableHandle:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.remove()


class SavedTensor:
    """A tensor that a gradient rule needs, kept without keeping the tensor's own graph node alive
    in a cycle.
    """

    __slots__ = (
        "__dict__", "counter", "edge", "geometry", "leaf", "output", "storage", "version",
    )  # fmt: skip
    # What few have is in their `__dict__`.
    # What a pack hook gave, and the hook that gives the tensor back for it.
    packed: tuple[Any, Callable[[Any], Any]] | None = None
    # The value itself, while forward mode goes through the rule: hooks are for the backward pass.
    present: Tensor | None = None
    # Of a result: the function that made it, which holds this.
    owner: weakref.ref[GradFn] | None = None

    def __init__(self, tensor: Tensor, output: int | None = None, apart: bool = False) -> None:
        """`output`: its number, where it is a result of the function itself. `apart`: whether it keeps the
        value of now, whatever is written to the tensor later.
        """
        if tensor._inference and not mode.inference:
            raise RuntimeError(
                "Inference tensors cannot be saved for backward. Please do not use Tensors created in inference mode "
                "in computation tracked by autograd. To work around this, you can make a clone to get a normal "
                "tensor and use it in autograd, or use `torch.no_grad()` instead of `torch.inference_mode()`."
            )
        self.storage: Any = tensor._storage
        self.counter: Any = tensor._counter
        self.version = self.counter.version
        self.geometry = (
            tensor._shape, tensor._strides, tensor._offset, tensor._whole, tensor.dtype,
            tensor._levels,
        )  # fmt: skip
        self.output = output
        self.leaf: Tensor | None = None
        self.edge: Edge | None = None
        if output is None and (
            tensor._requires_grad or (tensor._base is not None and tensor.requires_grad)
        ):
            if tensor._grad_fn is None and tensor._base is None:
                self.leaf = tensor
            else:
                self.edge = gradient_edge(tensor)
        if mode.saved_hooks:
            self._pack(tensor)
        elif apart or mode.mutation_allowed:
            self._part(tensor)
        if mode.overwriting is not None:
            mode.overwriting.append(self)

    def _part(self, tensor: Tensor) -> None:
        """Keep a storage of its own, which nothing that is written to the tensor later reaches."""
        shared = tensor._storage
        self.storage = self.counter = Storage(shared.share(), shared.runtime)
        self.version = self.counter.version
        if forward.levels:
            for level in mode.forward:
                level.follow(shared, self.storage)
        self._forget_leaf()

    def _pack(self, tensor: Tensor) -> None:
        """Keep what the innermost hook gives for the tensor in its place."""
        pack, unpack = mode.saved_hooks[-1]
        with no_grad():
            value = tensor.detach()
            if mode.overwriting is not None:
                # What is written in place now has its old value for whoever unpacks it.
                shared = tensor._storage
                value._storage = value._counter = Storage(shared.share(), shared.runtime)
            self.packed = pack(value), unpack
        if forward.levels and mode.forward:
            self.present = value
        self.storage = self.counter = None
        self._forget_leaf()

    def _forget_leaf(self) -> None:
        """Have another tensor than the leaf itself come back, with its gradient."""
        if self.leaf is not None:
            self.edge = gradient_edge(self.leaf)
            self.leaf = None

    def claim(self, fn: GradFn) -> None:
        """Belong to `fn`, which was made after forward mode went through its rule."""
        if self.output is not None:
            self.owner = weakref.ref(fn)
        self.present = None

    def move(self, storage: Storage, geometry: tuple[Any, ...]) -> None:
        """Find the same value in another storage."""
        self.storage, self.geometry = storage, geometry
        self.counter, self.version = storage, storage.version

    def unpack(self) -> Tensor:
        """Return the tensor. Raises RuntimeError if it has been overwritten since."""
        if self.present is not None:
            return self._with_history(self.present.detach())
        if self.packed is not None:
            value, unpack = self.packed
            tensor = unpack(value)
            if not hasattr(tensor, "_storage"):
                raise TypeError(
                    "Output of saved tensor unpack_hook expected to be a Tensor but got result of type "
                    f"{type(tensor).__name__}"
                )
            return self._with_history(tensor.detach())
        storage = self.storage
        if self.counter.version != self.version:
            raise RuntimeError(
                "one of the variables needed for gradient computation has been modified by an "
                "inplace operation: "
                f"[{_type_text(self.geometry[4], storage)} {list(self.geometry[0])}] is at version "
                f"{self.counter.version}; expected version "
                f"{self.version} instead. Hint: use an out-of-place operation, or clone() the "
                "tensor before it is overwritten."
            )
        if self.leaf is not None:
            return self.leaf
        return self._with_history(ask("tensor_on")(storage, *self.geometry))

    def _with_history(self, tensor: Tensor) -> Tensor:
        if self.edge is not None:
            tensor._grad_fn, tensor._output_nr = self.edge
            tensor._requires_grad = True
        elif self.output is not None:
            fn = None if self.owner is None else self.owner()
            if fn is not None:
                tensor._grad_fn, tensor._output_nr = fn, self.output
                tensor._requires_grad = True
        return tensor


def _type_text(dtype: Any, storage: Storage) -> str:
    place = "" if storage.runtime.kind == "cpu" else f"{storage.runtime.kind}."
    return f"torch.{place}{legacy_name(dtype)}Tensor"


class GradientEdge(NamedTuple):
    """A place in the graph: an output of a gradient function. It may stand for a tensor in `grad`."""

    node: GradFn
    output_nr: int
    # Keeps the function of a tensor that is a leaf.
    ownership_token: Any = None


def gradient_edge(tensor: Tensor | GradientEdge) -> Edge | None:
    """Return where cotangents of `tensor` go, or None when it needs none."""
    if isinstance(tensor, GradientEdge):
        return tensor[0], tensor[1]
    if tensor._base is not None:
        tensor._refresh_view()
    if tensor._grad_fn is not None:
        return tensor._grad_fn, tensor._output_nr
    if not tensor._requires_grad:
        return None
    accumulate = tensor._accumulate() if tensor._accumulate is not None else None
    if accumulate is None:
        accumulate = AccumulateGrad(tensor)
        tensor._accumulate = weakref.ref(accumulate)
    return accumulate, 0


def end_of(leaf: Tensor) -> AccumulateGrad:
    """Return where the cotangents of a leaf end, which comes after all older functions backward."""
    edge = gradient_edge(leaf)
    assert edge is not None and isinstance(edge[0], AccumulateGrad)
    edge[0].sequence = next(_sequence)
    return edge[0]


def continue_graph(end: AccumulateGrad, tensor: Tensor) -> None:
    """Make the cotangents that reach `end`, of `end_of`, those of `tensor`."""
    end.edges = (gradient_edge(tensor),)


def needs_grad(tensors: Iterable[Tensor]) -> bool:
    """Whether an operation on `tensors` must be recorded, for backward or for its tangent."""
    if mode.grad and one_requires_grad(tensors):
        return True
    return bool(forward.levels) and any(t in level for level in mode.forward for t in tensors)


def one_requires_grad(tensors: Iterable[Tensor]) -> bool:
    """Whether gradients are recorded for one of the tensors."""
    for t in tensors:  # noqa: SIM110  (a generator costs as much again)
        # What has no base says it itself.
        if t._requires_grad or (t._base is not None and t.requires_grad):
            return True
    return False


def attach(
    out: Tensor,
    name: str,
    inputs: Sequence[Tensor],
    rule: Callable[[Tensor], Cotangents],
    saved: Sequence[SavedTensor] = (),
) -> Tensor:
    """Give a fresh tensor one gradient function: `rule(cotangent of out)` returns one cotangent per
    input, or None. `saved` is what it reads.

    Does nothing when no input needs a gradient. Cotangents are brought to the inputs' dtypes.
    """
    if forward.levels and mode.forward:
        ask("transposed")(out, inputs, rule)
    if mode.grad and one_requires_grad(inputs):
        edges = tuple([gradient_edge(t) if t.dtype.has_gradient else None for t in inputs])
        none = (None,) * len(edges)

        def unless_gone(gs: Cotangents) -> Cotangents:
            """Return the cotangents, but where a hook took that of the result away."""
            return none if gs[0] is None else rule(gs[0])

        set_history(out, GradFn(f"{name}Backward0", edges, unless_gone, saved))
    return out


def retain(tensor: Tensor) -> None:
    """Have the gradient function of `tensor` keep the gradient in `.grad`."""
    fn = tensor._grad_fn
    if fn is not None:
        fn._changes("keeps the gradient of a tensor")
        if fn.retained is None:
            fn.retained = {}
        fn.retained[tensor._output_nr] = weakref.ref(tensor)


def _keep_retained(fn: GradFn, grads: Sequence[Tensor | None]) -> None:
    for number, reference in (fn.retained or {}).items():
        tensor, g = reference(), grads[number]
        # An in-place operation since then gave the tensor another function, which keeps its gradient now.
        if tensor is not None and g is not None and tensor._grad_fn is fn:
            if tracing.active:
                tracing.touch_grad(tensor)
            tensor._grad = g.clone() if tensor._grad is None else tensor._grad + g


def mark() -> int:
    """Return a number between the sequence numbers of the functions that there are and of those to come."""
    return next(_sequence)


def meta_of(edge: Edge) -> Any:
    """Return what `set_history` notes of a result, of that to which an edge leads."""
    fn, number = edge
    if not isinstance(fn, AccumulateGrad):
        return fn.metas[number]
    leaf = fn.variable
    return leaf._shape, leaf.dtype, leaf._storage.runtime, leaf._levels


def set_history(out: Tensor, fn: GradFn, number: int = 0) -> None:
    """Make `out` output `number` of `fn`."""
    out._grad_fn = fn
    out._output_nr = number
    out._requires_grad = True
    meta = (out._shape, out.dtype, out._storage.runtime, out._levels)
    metas = fn.metas
    if number or len(metas) > 1:
        metas = [*metas, *[None] * (number + 1 - len(metas))]
        metas[number] = meta
        fn.metas = metas
    else:
        fn.metas = (meta,)
    if out._retains:
        retain(out)


# ---- modes
# ------------------------------------------------------------------------------------------------------------


class _ModeContext(contextlib.ContextDecorator):
    """A context manager and decorator that sets the gradient mode; generators are driven in the
    mode too.
    """

    _grad: bool

    def __init__(self) -> None:
        self._previous: list[tuple[bool, bool]] = []

    def _enter(self) -> None:
        mode.grad = self._grad

    def __enter__(self) -> Any:
        self._previous.append((mode.grad, mode.inference))
        self._enter()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        mode.grad, mode.inference = self._previous.pop()

    def _recreate_cm(self) -> Any:
        return self.clone()

    def clone(self) -> Any:
        """Return a fresh context of the same kind."""
        return self.__class__()

    def __call__(self, func: Any) -> Any:
        import inspect

        if inspect.isgeneratorfunction(func):

            @functools.wraps(func)
            def generator(*args: Any, **kwargs: Any) -> Generator[Any, Any, Any]:
                """Run the generator, each step of it in the mode."""
                running = func(*args, **kwargs)
                # What the caller did at the last `yield`, to be passed on to the generator in the mode.
                resume: Callable[[], Any] = functools.partial(next, running)
                try:
                    while True:
                        try:
                            with self.clone():
                                item = resume()
                        except StopIteration as stop:
                            return stop.value
                        try:
                            resume = functools.partial(running.send, (yield item))
                        except GeneratorExit:
                            raise
                        except BaseException as error:
                            resume = functools.partial(running.throw, error)
                finally:
                    with self.clone():
                        running.close()

            return generator
        return super().__call__(func)


class no_grad(_ModeContext):
    """Operations inside are not recorded for backward."""

    _grad = False

    def __new__(cls, orig_func: Any = None) -> Any:
        self = super().__new__(cls)
        if orig_func is None:
            return self
        self.__init__()  # type: ignore[misc]
        return self(orig_func)

    def __init__(self, orig_func: Any = None) -> None:
        super().__init__()


class enable_grad(no_grad):
    """Operations inside are recorded, even within no_grad."""

    _grad = True


class unrecorded:
    """Nothing inside is recorded, neither for backward nor for tangents."""

    __slots__ = ("before",)

    def __enter__(self) -> None:
        self.before = mode.grad, mode.forward
        mode.grad, mode.forward = False, ()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        mode.grad, mode.forward = self.before


class set_grad_enabled(_ModeContext):
    """Set the gradient mode, at once and for a `with` block."""

    def __init__(self, mode: bool) -> None:
        super().__init__()
        self._grad = bool(mode)
        self._first = globals()["mode"].grad
        globals()["mode"].grad = self._grad

    def __enter__(self) -> Any:
        self._previous.append((self._first, mode.inference))
        mode.grad = self._grad
        return self

    def __call__(self, func: Any) -> Any:
        mode.grad = self._first
        return super().__call__(func)

    def clone(self) -> Any:
        """Return a fresh context with the same setting."""
        return self.__class__(self._grad)


class inference_mode(_ModeContext):
    """Like no_grad; tensors made inside can never require gradients."""

    def __init__(self, mode: bool = True) -> None:
        super().__init__()
        self._on = bool(mode)
        self._grad = not self._on

    def __new__(cls, mode: Any = True) -> Any:
        if isinstance(mode, bool):
            return super().__new__(cls)
        return cls()(mode)

    def _enter(self) -> None:
        mode.grad, mode.inference = self._grad, self._on

    def clone(self) -> Any:
        """Return a fresh context with the same setting."""
        return self.__class__(self._on)


def is_grad_enabled() -> bool:
    """Return whether operations are recorded for backward now."""
    return mode.grad


def is_inference_mode_enabled() -> bool:
    """Return whether inference mode is on."""
    return mode.inference


FREED = (
    "Trying to backward through the graph a second time (or directly access saved tensors after they have already been "
    "freed). Saved intermediate values of the graph are freed when you call .backward() or autograd.grad(). Specify "
    "retain_graph=True if you need to backward through the graph a second time or if you need to access saved tensors "
    "after calling backward."
)


# ---- the backward pass
# ------------------------------------------------------------------------------------------------


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
    ends = None if inputs is None else [_end(t) for t in inputs]
    edges = [gradient_edge(t) for t in roots]
    starts = [e[0] for e in edges if e is not None]
    running = _Backward(starts, ends, retain_graph, create_graph, accumulate)
    before = mode.grad, mode.whole_backward, mode.task
    mode.grad, mode.whole_backward = create_graph, inputs is None
    mode.task = (starts, running.needed)
    try:
        for edge, g in zip(edges, cotangents, strict=True):
            if edge is not None:
                running.send(edge, g)
        running.run()
    finally:
        mode.grad, mode.whole_backward, mode.task = before
    return running.found


def _end(tensor: Tensor) -> Edge:
    """Return where the cotangents of an input of a backward pass go. Raises RuntimeError if it has none."""
    edge = gradient_edge(tensor)
    if edge is None:
        raise RuntimeError("One of the differentiated Tensors does not require grad")
    return edge


class _Backward:
    """One backward pass: what waits for its functions, and the gradients that were asked for."""

    __slots__ = (
        "accumulate", "create_graph", "found", "heap", "needed", "order", "retain_graph", "targets",
        "waiting",
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

    def send(self, edge: Edge, g: Tensor) -> None:
        """Add a cotangent to those that wait for a function."""
        fn, number = edge
        if self.needed is not None and fn not in self.needed:
            return
        parts = self.waiting.get(fn)
        if parts is None:
            parts = self.waiting[fn] = [None] * len(fn.metas)
            heapq.heappush(self.heap, (-fn.sequence, next(self.order), fn))
        if number >= len(parts):
            parts += [None] * (number + 1 - len(parts))
        previous = parts[number]
        parts[number] = g if previous is None else previous + g

    def run(self) -> None:
        """Run the functions for which something waits, newest first, each once."""
        heap, waiting, needed = self.heap, self.waiting, self.needed
        while heap:
            fn = heapq.heappop(heap)[2]
            grads = waiting.pop(fn)
            if fn.pre_hooks or fn.retained:
                grads = _before(fn, grads)
            if isinstance(fn, AccumulateGrad):
                self._arrive(fn, grads[0])
                continue
            if needed is not None:
                for number, i in self.targets.get(fn, ()):
                    self.found[i] = grads[number]
                if not any(e is not None and e[0] in needed for e in fn.edges):
                    continue
            for edge, g in zip(fn.edges, self._call(fn, grads), strict=True):
                if edge is not None and g is not None:
                    self.send(edge, _fit(g, edge))

    def _call(self, fn: GradFn, grads: list[Tensor | None]) -> Cotangents:
        """Return what a function gives, as its hooks leave it."""
        if fn.rule is None:
            raise RuntimeError(FREED)
        result = anomaly.run(fn, grads) if anomaly.enabled else fn.rule(grads)
        if fn.saves and not self.retain_graph:
            fn.rule = None
            # A user's function: what its context saved goes too.
            context = getattr(fn, "ctx", None)
            if context is not None:
                context._saved = None
        if fn.post_hooks:
            for hook in list(fn.post_hooks.values()):
                new = hook(tuple(result), tuple(grads))
                if new is not None:
                    result = new
        return result

    def _arrive(self, end: AccumulateGrad, g: Tensor | None) -> None:
        """Take a cotangent at a leaf."""
        if g is None:
            return
        g = _leaf_hooks(end.variable, g)
        for _, i in self.targets.get(end, ()):
            self.found[i] = g
        if end.edges and end.edges[0] is not None:
            self.send(end.edges[0], g)
        elif self.accumulate:
            _accumulate(end.variable, g, self.create_graph)


def _before(fn: GradFn, grads: list[Tensor | None]) -> list[Tensor | None]:
    """Return the cotangents of a function as its hooks leave them, and keep those that are to be kept."""
    for hook in list((fn.pre_hooks or {}).values()):
        new = hook(tuple(grads))
        if new is not None:
            grads = list(new) if isinstance(new, tuple) else [new]
    if fn.retained:
        _keep_retained(fn, grads)
    return grads


def will_run(fns: Iterable[GradFn]) -> list[bool]:
    """Whether the running backward pass reaches each of the functions."""
    assert mode.task is not None
    pending, needed = list(mode.task[0]), mode.task[1]
    if needed is not None:
        return [fn in needed for fn in fns]
    seen: set[GradFn] = set()
    while pending:
        fn = pending.pop()
        if fn not in seen:
            seen.add(fn)
            pending.extend(e[0] for e in fn.edges if e is not None)
    return [fn in seen for fn in fns]


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
    order: list[GradFn] = []
    seen: set[GradFn] = set()
    stack = list(roots)
    while stack:
        fn = stack.pop()
        if fn in seen:
            continue
        seen.add(fn)
        order.append(fn)
        stack.extend(e[0] for e in fn.edges if e is not None)
    needed = set(wanted)
    # Edges lead to smaller sequence numbers, so sources first is one pass.
    for fn in sorted(order, key=lambda f: f.sequence):
        if any(e is not None and e[0] in needed for e in fn.edges):
            needed.add(fn)
    return needed


def _leaf_hooks(variable: Tensor, g: Tensor) -> Tensor:
    for hook in list((variable._hooks or {}).values()):
        new = hook(g)
        if new is not None:
            g = checked(new, g, hook)
    return g


def checked(new: Tensor, g: Tensor, hook: Callable[..., Any]) -> Tensor:
    """Return what a hook gave in place of g. Raises RuntimeError if it has another shape."""
    if new._shape != g._shape:
        name = getattr(hook, "__name__", repr(hook))
        raise RuntimeError(f"hook '{name}' has changed the size of value")
    return new


def _accumulate(variable: Tensor, g: Tensor, create_graph: bool) -> None:
    if tracing.active:
        tracing.touch_grad(variable)
    old = variable._grad
    if old is None:
        if create_graph:
            variable._grad = g
        else:
            # A clone shares the value until one of the two is written.
            variable._grad = g.detach().clone()
    elif create_graph:
        variable._grad = old + g
    else:
        old += g
    for hook in list((variable._post_accumulate or {}).values()):
        hook(variable)


def looks_at_each() -> bool:
    """Whether more than recording and differentiation looks at each operation: a transform of
    webtorch.func, forward mode, hooks of saved tensors, or anomaly detection.
    """
    return bool(
        mode.vmaps
        or mode.transforms
        or mode.forward
        or mode.saved_hooks
        or mode.mutation_allowed
        or anomaly.enabled
    )


def in_transform() -> bool:
    """Whether a transform of webtorch.func runs."""
    return bool(mode.transforms or mode.vmaps)


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
    if in_transform():
        raise RuntimeError(
            "backward() called inside a functorch transform. This is not supported, please use "
            "functorch.grad or functorch.vjp instead or call backward() outside of functorch "
            "transforms."
        )
    roots = _listed(tensors)
    cotangents = _cotangents(
        roots, _listed(grad_tensors) if grad_tensors is not None else [None] * len(roots)
    )
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
    found = run_backward(
        roots, cotangents, retain_graph=keep, create_graph=create_graph, inputs=targets
    )
    for t, g in zip(targets or (), found, strict=False):
        if g is not None and not t.is_leaf and not t._retains:
            _accumulate(t, g, create_graph)


@dispatched()
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
        given = _listed(grad_outputs)
        size = next(g._shape[0] for g in given if g is not None)
        batch, unbatch = ask("batch"), ask("unbatch")
        with ask("Vmap")(size, "error") as level:
            parts = [None if g is None else batch(g, 0, level.number) for g in given]
            grads = grad(
                outputs, inputs, parts, retain_graph, create_graph, True, allow_unused, False,
                materialize_grads,
            )  # fmt: skip
            return tuple([None if g is None else unbatch(g, 0, level.number, size) for g in grads])
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
            primitive.fill(t._shape, 0, t.dtype, t.device) if g is None else g
            for t, g in zip(targets, found, strict=True)
        ]
    elif not allow_unused and any(g is None for g in found):
        unused = next(i for i, g in enumerate(found) if g is None)
        raise RuntimeError(
            f"The differentiated Tensor at index {unused} appears to not have been used in the graph. "
            "Set allow_unused=True if this is the desired behavior."
        )
    return tuple(found)


def _listed(x: Any) -> list[Any]:
    return list(x) if isinstance(x, (tuple, list)) and type(x) is not GradientEdge else [x]


def _cotangents(roots: list[Tensor], given: list[Tensor | None]) -> list[Tensor]:
    if len(given) != len(roots):
        raise RuntimeError(
            f"Mismatch in number of outputs: got {len(roots)} outputs and {len(given)} gradients"
        )
    out: list[Tensor] = []
    for i, (root, g) in enumerate(zip(roots, given, strict=True)):
        if not root.requires_grad:
            raise RuntimeError(
                f"element {i} of tensors does not require grad and does not have a grad_fn"
            )
        if g is None:
            if root.numel() != 1:
                raise RuntimeError("grad can be implicitly created only for scalar outputs")
            if root.dtype.is_complex:
                raise RuntimeError(
                    "grad can be implicitly created only for real scalar outputs but got "
                    f"{root.dtype}"
                )
            g = primitive.fill(root._shape, 1, root.dtype, root.device)
        elif g._shape != root._shape:
            raise RuntimeError(
                f"Mismatch in shape: grad_output[{i}] has a shape of torch.Size({list(g._shape)}) "
                f"and output[{i}] has a shape of torch.Size({list(root._shape)})."
            )
        elif g.dtype.is_complex is not root.dtype.is_complex:
            raise RuntimeError(
                "For complex Tensors, both grad_output and output are required to have the same dtype. "
                f"Mismatch in dtype: grad_output[{i}] has a dtype of {g.dtype} and output[{i}] has a "
                f"dtype of {root.dtype}."
            )
        out.append(g)
    return out
