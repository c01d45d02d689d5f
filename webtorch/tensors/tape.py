"""Autograd's graph: gradient functions, the tensors that they save, and how a result gets one. Floor 4.

Every differentiable operation attaches a `GradFn` to its result, with an edge to each input's.
`tensors/engine.py` walks them backward.
"""

from __future__ import annotations

import functools
import gc
import itertools
import re
import sys
import traceback
import warnings
import weakref
from collections import OrderedDict
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from webtorch.dispatch.call import Args, Kwargs, Run, looking
from webtorch.errors import CaptureError
from webtorch.ir.dtype import DType
from webtorch.ir.lines import is_internal, user_depth
from webtorch.ops import primitive
from webtorch.tensors.above import ask
from webtorch.tensors.handle import RemovableHandle, add_hook
from webtorch.tensors.host import tracing
from webtorch.tensors.modes import Keeper, mode, no_grad, transforms
from webtorch.tensors.storage import Storage

if TYPE_CHECKING:
    from webtorch.tensors.tensor import Tensor

# Tensors, with None where there is no cotangent.
Cotangents = Sequence[Any]
# What computes cotangents: given those of the outputs, what was saved, and what else the call was made of.
Rule = Callable[[Cotangents, Sequence[Any], Any], Cotangents]
Edge = tuple["GradFn", int]
_sequence = itertools.count()


class _Once(tuple[Any, ...]):
    """What a function has saved that a backward pass uses up, and that saves no tensor."""

    def __bool__(self) -> bool:
        return True


FREED = (
    "Trying to backward through the graph a second time (or directly access saved tensors after they have already been "
    "freed). Saved intermediate values of the graph are freed when you call .backward() or autograd.grad(). Specify "
    "retain_graph=True if you need to backward through the graph a second time or if you need to access saved tensors "
    "after calling backward."
)
ONCE = _Once()
# The same of a number, of which PyTorch makes a tensor where the user calls.
NUMBER = _Once()


class _Anomaly:
    """Anomaly detection: functions remember their forward call, and backward looks for NaN."""

    enabled = False
    check_nan = True

    def __init__(self) -> None:
        # The function whose rule is running: what it records has it as its cause.
        self.running: GradFn | None = None

    def turn(self, enabled: bool, check_nan: bool) -> None:
        """Turn it on or off."""
        looking.add(enabled - self.enabled)
        self.enabled, self.check_nan = enabled, check_nan

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
        assert fn.rule is not None and fn.saved is not None
        before, self.running = self.running, fn
        try:
            result = fn.rule(grads, fn.saved, fn.static)
            for i, g in enumerate(result if self.check_nan else ()):
                if g is not None and g.dtype.kind == "float" and _has_nan(g):
                    raise RuntimeError(
                        f"Function '{fn.title}' returned nan values in its {i}th output."
                        + self._where(fn)
                    )
        except Exception:
            for story in self._stories(fn):
                try:
                    warnings.warn(story, stacklevel=user_depth())
                except Warning as warning:
                    # The error is what is raised.
                    sys.stderr.write(f"{warning}\n")
            raise
        finally:
            self.running = before
        return result

    @staticmethod
    def _where(fn: GradFn) -> str:
        lines = fn.metadata.get("traceback_")
        return f" It was called forward at:\n{lines[-1].rstrip()}" if lines else ""

    @staticmethod
    def _stories(fn: GradFn) -> list[str]:
        """Return what to say of a function, and of those whose gradients it came from."""
        lines = fn.metadata.get("traceback_")
        if not lines:
            return [
                f"Error detected in {fn.title}. No forward pass information available. Enable "
                "detect anomaly during forward pass for more information."
            ]
        found = [
            f"Error detected in {fn.title}. Traceback of forward call that caused the error:\n"
            + "".join(lines)
        ]
        parent = fn.metadata.get("parent_")
        while parent is not None:
            lines = parent.metadata.get("traceback_", ["  (not recorded)\n"])
            found.append(
                f"\n\nPrevious calculation was induced by {parent.title}. Traceback of forward call "
                f"that induced the previous calculation:\n{''.join(lines)}"
            )
            parent = parent.metadata.get("parent_")
        return found


anomaly = _Anomaly()


class Meta(NamedTuple):
    """What a tensor is like."""

    shape: tuple[int, ...]
    dtype: DType
    device_type: str


class GradFn:
    """One node of the autograd graph: what a call needs to be differentiated, as data.

    `rule(cotangents of the outputs, saved, static)` gives one cotangent per edge. It is one function for all calls of
    a kind: what it reads of the forward pass is in `saved`, and what else belongs to the call, such as shapes
    and numbers, in `static`.
    """

    __slots__ = (
        "__dict__", "__weakref__", "edges", "metas", "rule", "saved", "sequence", "static", "title",
    )  # fmt: skip
    # What few functions have is in their `__dict__`: the others pay nothing.
    # The last function of a composite operation stands for all of its functions: those with larger
    # numbers than this one.
    first: int | None = None
    # Hooks of the tensors it gives, each of which sees its cotangent before those of the function see all.
    tensor_hooks: OrderedDict[int, Callable[..., Any]] | None = None
    pre_hooks: OrderedDict[int, Callable[..., Any]] | None = None
    # Whether the rule also runs where no cotangent has come: a user's may fill in zeros.
    takes_gaps = False
    # A rule that calls a function of the user's, as a generator that yields where it is to be called.
    turns: Callable[[Cotangents, Any], Generator[Any, Any, Cotangents]] | None = None
    # Whether it has saved tensors that a checkpointed part computes again.
    recalls = False
    # Output number -> the tensor that keeps its gradient; served after the hooks of tensors.
    retained: dict[int, weakref.ref[Tensor]] | None = None
    post_hooks: OrderedDict[int, Callable[..., Any]] | None = None
    # Numbers of the results that were cut off in place.
    detached: tuple[int, ...] = ()

    def __init__(
        self,
        name: str,
        edges: tuple[Edge | None, ...],
        rule: Rule | None,
        saved: Sequence[SavedTensor] = (),
        static: object = None,
    ) -> None:
        self.title = name
        self.edges = edges
        self.rule = rule
        # None once it is freed: what needs saved tensors can run only once, unless the graph is retained.
        self.saved: Sequence[Any] | None = saved
        self.static = static
        # Later operations have larger numbers: the order of the backward pass.
        self.sequence = next(_sequence)
        # For each output its shape, dtype, runtime and levels.
        self.metas: Sequence[Any] = ()
        for s in saved:
            if s.output is not None or s.present is not None:
                s.claim(self)
        if anomaly.enabled and rule is not None:
            anomaly.note(self)

    def free(self) -> None:
        """Let go of what is saved for the rule, by the context of a user's function as well."""
        self.saved = None
        context = getattr(self, "ctx", None)
        if context is not None:
            context._saved = context._kept = None

    @property
    def next_functions(self) -> tuple[tuple[GradFn | None, int], ...]:
        """The gradient functions of the inputs, as PyTorch shows them."""
        found: dict[tuple[int, int], tuple[GradFn | None, int]] = {}
        owner: Any = getattr(self.rule, "__self__", None)
        show = getattr(owner, "show_turned", None)
        if show is not None:
            show(self)
        pending = list(reversed(self.edges))
        first = self.first
        if first is not None and all(e is None or e[0].sequence <= first for e in self.edges):
            # It stands for itself alone.
            first = None
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
        numbers = getattr(owner, "numbers_of", None)
        return (*found.values(), *([(None, 0)] * numbers(self.title) if numbers else ()))

    def __call__(self, *grads: Tensor | None) -> Any:
        """Return the cotangents of the inputs, given those of the results."""
        if len(grads) != len(self.metas):
            raise TypeError(f"expected {len(self.metas)} arguments, got {len(grads)} instead")
        if self.rule is None or self.saved is None:
            raise RuntimeError(FREED)
        found = self.rule(grads, self.saved, self.static)
        return found[0] if len(found) == 1 else tuple(found)

    def name(self) -> str:
        """Return the name, such as "MulBackward0"."""
        return f"torch::autograd::{self.title}" if self.title in _OF_THE_CORE else self.title

    def _sequence_nr(self) -> int:
        """Return the number by which functions that wait are ordered: the largest runs first."""
        return self.sequence

    def _set_sequence_nr(self, number: int) -> None:
        """Order this function anew among those that wait."""
        self._changes("orders a function anew")
        self.sequence = number

    @property
    def _input_metadata(self) -> list[Meta | None]:
        """What the cotangents are like that come here."""
        return [None if m is None else Meta(m[0], m[1], m[2].kind) for m in self.metas]

    @property
    def metadata(self) -> dict[Any, Any]:
        """A dict for the user's own notes."""
        notes: dict[object, object] = self.__dict__.setdefault("_notes", {})
        return notes

    def __repr__(self) -> str:
        return f"<{self.title} object at {hex(id(self))}>"

    @property
    def is_watched(self) -> bool:
        """Whether somebody sees what arrives or leaves here."""
        return bool(self.tensor_hooks or self.pre_hooks or self.post_hooks or self.retained)

    def register_hook(self, hook: Callable[[Any, Any], object]) -> RemovableHandle:
        """Call `hook(grad_inputs, grad_outputs)` after this function has run."""
        self._changes("registers a hook on a tensor")
        if self.post_hooks is None:
            self.post_hooks = OrderedDict()
        return add_hook(self.post_hooks, hook)

    def register_prehook(self, hook: Callable[[Any], object]) -> RemovableHandle:
        """Call `hook(grad_outputs)` before this function runs."""
        self._changes("registers a hook on a tensor")
        if self.pre_hooks is None:
            self.pre_hooks = OrderedDict()
        return add_hook(self.pre_hooks, hook)

    def register_tensor_hook(self, hook: Callable[[Any], object]) -> RemovableHandle:
        """Call `hook(grad_outputs)` for one of the tensors that this function gave."""
        self._changes("registers a hook on a tensor")
        if self.tensor_hooks is None:
            self.tensor_hooks = OrderedDict()
        return add_hook(self.tensor_hooks, hook)

    def _changes(self, what: str) -> None:
        """Have the call run as usual if a capture changes what a function from outside does."""
        if tracing.active and self.sequence < tracing.first:
            tracing.refuse(f"it {what} from outside")


# Functions that no operation has: PyTorch says where they come from.
_OF_THE_CORE = ("CopySlices", "CopyBackwards")
_SHOWN: dict[tuple[str, bool], type[GradFn]] = {}


def _has_nan(g: Tensor) -> bool:
    """Whether NaN is in a cotangent, of every example of a vmap."""
    return bool(primitive.shown(g.isnan()).any().item())


def shown(fn: GradFn) -> GradFn:
    """Give a gradient function that a user sees a class of its name, as PyTorch's have."""
    if type(fn) is GradFn:
        fn.__class__ = class_of(fn.title, "ctx" in fn.__dict__)
    return fn


def class_of(title: str, custom: bool) -> type[GradFn]:
    """Return the class of gradient functions of a name; `custom`: of a user's function."""
    found = _SHOWN.get((title, custom))
    if found is None:
        look = _of_context if custom else _of_call
        names: dict[str, Any] = {"__slots__": (), "__getattr__": look}
        if not custom:
            names["__dir__"] = _names_of_call
        found = _SHOWN[title, custom] = type(title, (GradFn,), names)
    return found


def _of_context(fn: GradFn, name: str) -> object:
    """Return what a custom function's context has: in PyTorch the two are one object."""
    if name.startswith("__"):
        raise AttributeError(name)
    return getattr(fn.__dict__["ctx"], name)


class Called(NamedTuple):
    """What a gradient function has of its call, by the names of the parameters."""

    # Of what is saved, in order.
    saved: Sequence[str]
    # Numbers, and shapes of operands that are not saved.
    static: Mapping[str, Any]


# What PyTorch calls them.
_PYTORCH = {"input": "self", "out": "result"}


def _of_call(fn: GradFn, name: str) -> object:
    """Return what PyTorch shows of a call: `_saved_self` is the value of an operand that is saved, `_raw_saved_self`
    what keeps it, `_saved_dim` a number. Raises RuntimeError for a tensor that is no longer kept.
    """
    lead, _, asked = name.rpartition("_saved_")
    known = _known_of(fn)
    if lead in ("", "_raw") and known is not None:
        saved, static = known(fn.static)
        names = [_PYTORCH.get(n, n) for n in saved]
        if asked in names:
            if fn.saved is not None:
                kept = fn.saved[names.index(asked)]
                return kept if lead else kept.shown()
            if lead:
                return Nothing("after it has been freed. " + FREED)
            raise RuntimeError(FREED)
        for n, value in static.items():
            if not lead and _PYTORCH.get(n, n) == asked:
                return value
    if name == "_saved_self_sym_sizes" and fn.edges and fn.edges[0] is not None:
        # A view's operand; the next function knows how large it is.
        return tuple(meta_of(fn.edges[0])[0])
    raise AttributeError(f"'{fn.title}' object has no attribute '{name}'")


def _known_of(fn: GradFn) -> Callable[[object], Called] | None:
    """Return what tells of a function's `static` what is known of its call."""
    if fn.rule is _of_one:
        return _of_parameters
    found: Callable[[Any], Called] | None = getattr(
        getattr(fn.rule, "__self__", None), "called", None
    )
    return found


def _names_of_call(fn: GradFn) -> list[str]:
    """Return the attributes of a function, with what is known of its call: whoever draws graphs lists them."""
    names, known = list(object.__dir__(fn)), _known_of(fn)
    if known is not None:
        saved, static = known(fn.static)
        names += [f"_saved_{_PYTORCH.get(n, n)}" for n in (*saved, *static)]
        names += [f"_raw_saved_{_PYTORCH.get(n, n)}" for n in saved]
    return names


def composed(
    run: Run,
    title: str | Callable[..., str] | None,
    renamed: Mapping[str, str] | None = None,
    own_view: bool = False,
    once: bool | Callable[..., bool] = False,
) -> Run:
    """Return a call whose results show one gradient function, named `title`, and are no views of
    what it made itself, unless `own_view` says so.

    A callable `title` is given the arguments of the call; without one, functions keep their names. What
    is computed backward stays as it is. `renamed`: other names of parameters, and the function's own. `once`: a
    backward pass uses the function up, or a function of the arguments that tells whether it does.
    """

    unchanged = title is None and own_view and not once

    def named(args: Args, kwargs: Kwargs) -> Any:
        """Call the operation, and name the gradient function of its results."""
        if kwargs and renamed:
            kwargs = {renamed.get(name, name): value for name, value in kwargs.items()}
        if unchanged:
            return run(args, kwargs)
        first = next(_sequence) if mode.grad else 0
        out = run(args, kwargs)
        results = out if isinstance(out, tuple) else (out,)
        for t in results:
            base = None if own_view else getattr(t, "_base", None)
            if (
                base is not None
                and not base._history
                and not _lies_in(t, args, kwargs)
                and not any(r is base for r in results)
            ):
                # A view of what nobody else has is no view: its hooks stay when it is written.
                t._base = t._made_by = None
            fn = getattr(t, "_grad_fn", None) if first else None
            # An older function is an input's: the operation returned its input.
            if fn is not None and fn.sequence > first:
                used_up = once if isinstance(once, bool) else once(*args, **kwargs)
                if used_up and not fn.saved:
                    fn.saved = ONCE
                elif not used_up and fn.saved is NUMBER:
                    # Where PyTorch itself calls with a number, it makes no tensor of that.
                    fn.saved = ()
                if title is None:
                    continue
                text = title if isinstance(title, str) else title(*args, **kwargs)
                fn.title, fn.first = text, first
                if type(fn) is not GradFn:
                    fn.__class__ = GradFn
        return out

    return named


def _lies_in(t: Tensor, args: Args, kwargs: Kwargs) -> bool:
    """Whether a tensor shares memory with one that a call was given."""
    storage, pending = t._storage, [*args, *kwargs.values()]
    while pending:
        x = pending.pop()
        if isinstance(x, (tuple, list)):
            pending += x
        elif getattr(x, "_storage", None) is storage:
            return True
    return False


class AccumulateGrad(GradFn):
    """The end of the graph at a leaf: adds to its `.grad`."""

    __slots__ = ("variable",)

    def __init__(self, variable: Tensor) -> None:
        super().__init__("torch::autograd::AccumulateGrad", (), None)
        self.variable = variable
        # Leaves have no place in the order of functions: `engine.Backward.last`.
        self.sequence = -1

    def _sequence_nr(self) -> int:
        """Return the largest number there is: a leaf comes as soon as all of its gradient has."""
        return 2**64 - 1


class Source(GradFn):
    """Where a differentiation of webtorch.func starts: what its argument is made of is another's concern."""

    __slots__ = ("open",)

    def __init__(self, edge: Edge | None) -> None:
        super().__init__("SourceBackward", (edge,), pass_on)
        # Whether the differentiation runs.
        self.open = True


def geometry_of(tensor: Tensor) -> tuple[Any, ...]:
    """Return how a tensor lies on its storage, as a saved one keeps it."""
    return (
        tensor._shape, tensor._strides, tensor._offset, tensor._whole, tensor.dtype, tensor._levels,
    )  # fmt: skip


_DETECT = (
    "enable anomaly detection to find the operation that failed to compute its gradient, with "
    "torch.autograd.set_detect_anomaly(True, check_nan=False)."
)
_SHOWN_ABOVE = (
    "the backtrace further above shows the operation that failed to compute its gradient. The variable in question "
    "was changed in there or anywhere later. Good luck!"
)


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
    # The `allow_mutation_on_saved_tensors` that it was saved in, and is good for.
    kept_by: Keeper | None = None
    # The tensor itself, where a user's function has saved one that it did not make.
    given: Tensor | None = None
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
            if tensor._grad_fn is None and (tensor._base is None or tensor.is_leaf):
                self.leaf = tensor
            else:
                self.edge = gradient_edge(tensor)
        if mode.saved_hooks:
            self._pack(tensor, *mode.saved_hooks[-1], apart=apart)
        elif apart or mode.mutation_allowed is not None:
            self._part(tensor)
        if mode.overwriting is not None:
            mode.overwriting.append(self)

    def _part(self, tensor: Tensor) -> None:
        """Keep a storage of its own, which nothing that is written to the tensor later reaches."""
        shared = tensor._storage
        self.storage = self.counter = Storage(shared.share(), shared.runtime)
        self.version = self.counter.version
        if mode.mutation_allowed is not None:
            self.kept_by = mode.mutation_allowed
            # What is written in place is saved as a copy, which nobody writes.
            self.kept_by.note(self.storage, shared if mode.overwriting is None else self.storage)
        if transforms.count:
            for level in mode.forward:
                level.follow(shared, self.storage)
        self._forget_leaf()

    def register_hooks(self, *hooks: Callable[[Any], object]) -> None:
        """Keep what the first of two hooks gives for the tensor in its place; the second gives the tensor back."""
        if len(hooks) != 2 or not all(callable(h) for h in hooks):
            raise TypeError(
                "register_hooks(): incompatible function arguments. The following argument types are supported: "
                "(pack_hook: Callable, unpack_hook: Callable)"
            )
        if self.packed is not None:
            raise RuntimeError(
                "Calling register_hooks on a saved tensor whose hooks have already been set. Hint: only one pair of "
                "hooks is allowed at a time."
            )
        self._pack(self.unpack(), *hooks)

    def keep(self, tensor: Tensor) -> None:
        """Keep the tensor itself, which is more than a view of a storage."""
        self._pack(tensor, _unchanged, _unchanged)

    def _pack(
        self,
        tensor: Tensor,
        pack: Callable[[Any], object],
        unpack: Callable[[Any], object],
        apart: bool = False,
    ) -> None:
        """Keep what a hook gives for the tensor in its place; `apart`: for its value of now."""
        with no_grad():
            value = tensor if self._is_plain(tensor) else tensor.detach()
            if apart or mode.overwriting is not None:
                value = tensor.detach()
                # What is written in place has its old value for whoever unpacks it.
                shared = tensor._storage
                value._storage = value._counter = Storage(shared.share(), shared.runtime)
            version = value._counter.version
            self.packed = pack(value), unpack
            if value._counter.version != version:
                raise RuntimeError(
                    "A saved tensor pack hook is modifying its input in place. Tensors provided as input to pack hook "
                    "can not be modified by in-place operations as this can lead to unexpected side-effects. Please "
                    "open an issue if you need to perform in-place operations on the input to a pack hook."
                )
        if (transforms.count and mode.forward) or part_of(unpack) is not None:
            self.present = value
        self.storage = self.counter = None
        self._forget_leaf()

    def _is_plain(self, tensor: Tensor) -> bool:
        """Whether a tensor has no place in a graph, neither as saved nor now."""
        saved = self.edge is None and self.leaf is None and self.output is None
        return saved and not (tensor.requires_grad or (transforms.count and mode.forward))

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
        if self.packed is not None and part_of(self.packed[1]) is not None:
            fn.recalls = True

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
            return tensor if self._is_plain(tensor) else self._with_history(tensor.detach())
        self.check()
        if self.kept_by is not None and not self.kept_by.knows(self.storage):
            raise AssertionError(
                "Trying to backward outside of the 'allow_mutation_on_saved_tensors' contextin which the graph was "
                "originally recorded."
            )
        if self.leaf is not None:
            return self.leaf
        if self.given is not None and self.is_of(self.given):
            return self.given
        return self._with_history(ask("tensor_on")(self.storage, *self.geometry))

    def shown(self) -> Tensor:
        """Return the tensor as a user sees it: the one that was saved, while somebody holds it."""
        tensor = self.unpack()
        if self.storage is None or tensor is self.leaf:
            return tensor
        # Nobody notes the tensors of a storage: who asks pays.
        others = [x for x in gc.get_referrers(self.storage) if hasattr(type(x), "_grad_fn")]
        return next((x for x in others if x is not tensor and self.is_of(x)), tensor)

    def is_of(self, tensor: Tensor) -> bool:
        """Whether a tensor is as the saved one was, with its place in the graph."""
        place = None if tensor._grad_fn is None else (tensor._grad_fn, tensor._output_nr)
        return (
            place == self.edge
            and self.output is None
            and tensor._storage is self.storage
            and geometry_of(tensor) == self.geometry
        )

    def check(self) -> None:
        """Raise RuntimeError if the tensor has been overwritten since."""
        if self.counter.version != self.version:
            fn, number = self._maker()
            # PyTorch says "Exp" of an ExpBackward0 here, and "Mean1" of a MeanBackward1.
            made = "" if fn is None else re.sub("Backward0?", "", fn.name())
            raise RuntimeError(
                "one of the variables needed for gradient computation has been modified by an "
                "inplace operation: "
                f"[{_type_text(self.geometry[4], self.storage)} {list(self.geometry[0])}]"
                + (f", which is output {number} of {made}," if made else "")
                + f" is at version {self.counter.version}; expected version {self.version} instead. Hint: "
                + (_SHOWN_ABOVE if anomaly.enabled else _DETECT)
                + " Use an out-of-place operation, or clone() the tensor before it is overwritten."
            )

    def _maker(self) -> tuple[GradFn | None, int]:
        """Return the function that made the tensor as it is now, and the number of its result."""
        if self.output is not None:
            return None if self.owner is None else self.owner(), self.output
        # PyTorch counts results of the function itself alone.
        for x in gc.get_referrers(self.storage):
            # Whoever wrote to the tensor has made it anew.
            if hasattr(type(x), "_grad_fn") and geometry_of(x) == self.geometry and x.grad_fn:
                return x.grad_fn, 0
        return self.edge and self.edge[0], 0

    def _with_history(self, tensor: Tensor) -> Tensor:
        if self.edge is not None:
            if self.edge[0].detached and self.edge[1] in self.edge[0].detached:
                raise RuntimeError(
                    "Trying to use a saved tensor that has been detached in-place, i.e. with .detach_(). This is not "
                    "supported, please use out-of-place `.detach()` instead"
                )
            set_edge(tensor, self.edge)
        elif self.output is not None:
            fn = None if self.owner is None else self.owner()
            if fn is not None:
                set_edge(tensor, (fn, self.output))
        return tensor


def _unchanged(tensor: Tensor) -> Tensor:
    return tensor


class EnoughComputed(Exception):
    """A checkpointed part has computed again all that the backward pass needs of it."""


class Part:
    """A checkpointed part, whose methods are hooks of saved tensors that scripts know."""

    def pack(self, tensor: Tensor) -> Any:
        """Return what stands for a tensor."""
        return tensor

    def unpack(self, packed: Any) -> Tensor:
        """Return the tensor that something stands for."""
        found: Tensor = packed
        return found

    def lacks(self, packed: Any) -> bool:
        """Whether the part must be computed again before a tensor is unpacked."""
        return False

    def compute(self) -> None:
        """Compute the part again."""


def part_of(hook: Callable[..., object]) -> Part | None:
    """Return the checkpointed part whose hook of saved tensors this is; None of others."""
    owner = getattr(hook, "__self__", None)
    return owner if isinstance(owner, Part) else None


def lacking(fn: GradFn) -> Part | None:
    """Return the part that must be computed again before a function runs."""
    for s in fn.saved or ():
        if s.packed is not None:
            part = part_of(s.packed[1])
            if part is not None and part.lacks(s.packed[0]):
                return part
    return None


class Nothing(SavedTensor):
    """Stands for a tensor that is not kept."""

    __slots__ = ()

    def __init__(self, why: str) -> None:
        self.why = why

    def register_hooks(self, *hooks: Callable[[Any], object]) -> None:
        """Raise RuntimeError."""
        raise RuntimeError(f"Calling register_hooks on a saved tensor {self.why}")


def _type_text(dtype: DType, storage: Storage) -> str:
    place = "" if storage.runtime.kind == "cpu" else f"{storage.runtime.kind}."
    return f"torch.{place}{dtype.legacy}Tensor"


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
    return bool(transforms.count) and any(t in level for level in mode.forward for t in tensors)


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
    rule: Callable[..., Cotangents],
    saved: Sequence[SavedTensor] = (),
    args: tuple[object, ...] = (),
) -> Tensor:
    """Give a fresh tensor one gradient function: `rule(cotangent of out, *saved, *args)`, with what was saved as
    tensors again, returns one cotangent per input, or None.

    Does nothing when no input needs a gradient. Cotangents are brought to the inputs' dtypes.
    """
    if transforms.count and mode.forward:
        ask("transposed")(
            (out,), inputs, functools.partial(_of_one, saved=saved, static=(rule, args))
        )
    if mode.grad and one_requires_grad(inputs):
        edges = tuple([gradient_edge(t) if t.dtype.has_gradient else None for t in inputs])
        set_history(out, GradFn(f"{name}Backward0", edges, _of_one, saved, (rule, args)))
    return out


def _of_parameters(static: Any) -> Called:
    """Return what is known of a call by the names that the rule which `attach` was given has for it."""
    rule, args = static
    code = getattr(rule, "__code__", None)
    names = code.co_varnames[1 : code.co_argcount] if code else ()
    count = max(len(names) - len(args), 0)
    return Called(names[:count], dict(zip(names[count:], args, strict=False)))


def _of_one(gs: Cotangents, saved: Sequence[SavedTensor], static: Any) -> Cotangents:
    """The rule of what has one result, as `attach` is given it."""
    rule, args = static
    return cast("Cotangents", rule(gs[0], *[s.unpack() for s in saved], *args))


def attach_view(
    out: Tensor, x: Tensor, name: str, rule: Callable[..., Tensor], args: tuple[object, ...]
) -> None:
    """Give a view of x its gradient function: `rule(cotangent of out, *args)` returns that of x."""
    set_history(out, GradFn(f"{name}Backward0", (gradient_edge(x),), _of_view, (), (rule, args)))


def _of_view(gs: Cotangents, _saved: Sequence[SavedTensor], static: Any) -> Cotangents:
    """The rule of a view, as `attach_view` is given it."""
    rule, args = static
    return (rule(gs[0], *args),)


def zeros_of(g: Tensor, *shapes: tuple[int, ...]) -> tuple[Tensor, ...]:
    """The rule, as `attach` is given it, of what has no part in a result: zeros of the shapes of the inputs."""
    return tuple([primitive.fill(shape, 0, g.dtype, g.device) for shape in shapes])


def pass_on(gs: Cotangents, _saved: Sequence[SavedTensor], _static: object) -> Cotangents:
    """The rule of what gives its inputs as they are."""
    return gs


def start_at(x: Tensor) -> Tensor:
    """Return x with a gradient function of its own. A backward pass within another one that ends there meets no hook
    on x, which is for the pass around it, and two places that x stands in are two.
    """
    start = x.detach()
    edge = gradient_edge(x)
    if edge is not None:
        set_history(start, GradFn("AliasBackward0", (edge,), pass_on))
    return start


def retain(tensor: Tensor) -> None:
    """Have the gradient function of `tensor` keep the gradient in `.grad`."""
    fn = tensor._grad_fn
    if fn is not None:
        fn._changes("keeps the gradient of a tensor")
        if fn.retained is None:
            fn.retained = {}
        fn.retained[tensor._output_nr] = weakref.ref(tensor)


def mark(room: int = 1) -> int:
    """Return a number between the sequence numbers of the functions that there are and of those to come. No function
    will have one of the `room - 1` numbers after it.
    """
    global _sequence
    number = next(_sequence)
    if room > 1:
        _sequence = itertools.count(number + room)
    return number


def meta_of(edge: Edge) -> Any:
    """Return what `set_history` notes of a result, of that to which an edge leads."""
    fn, number = edge
    if not isinstance(fn, AccumulateGrad):
        return fn.metas[number]
    leaf = fn.variable
    return leaf._shape, leaf.dtype, leaf._storage.runtime, leaf._levels


def set_edge(tensor: Tensor, edge: Edge) -> None:
    """Make a tensor stand at a place in the graph, as another one does."""
    tensor._grad_fn, tensor._output_nr = edge
    tensor._requires_grad = True


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


def share_history(outs: Sequence[Tensor], fn: GradFn) -> None:
    """Make fresh tensors the outputs of one function."""
    for number, out in enumerate(outs):
        out._grad_fn, out._output_nr, out._requires_grad = fn, number, True
    fn.metas = [(o._shape, o.dtype, o._storage.runtime, o._levels) for o in outs]


def looks_at_each(parts: bool = True, hooks: bool = True) -> bool:
    """Whether more than recording and differentiation looks at each operation: a transform of
    webtorch.func, forward mode, `hooks` of saved tensors (those of checkpoints with `parts`), or anomaly detection.
    """
    packed = mode.saved_hooks if hooks else ()
    return bool(
        (transforms.count and (mode.vmaps or mode.transforms or mode.forward))
        or (packed and (parts or any(not part_of(h) for _, h in packed)))
        or mode.mutation_allowed is not None
        or anomaly.enabled
    )
