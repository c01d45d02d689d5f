"""`webtorch.autograd.Function`: operations with a gradient written by the user. Floor 4."""

from __future__ import annotations

import functools
import inspect
import warnings
import weakref
from collections.abc import Callable, Generator, Sequence
from itertools import zip_longest
from typing import Any, NamedTuple

from webtorch.dispatch.call import (
    Args,
    Callee,
    Kwargs,
    active,
    call,
    looking,
    refuse_scripts,
    watched,
)
from webtorch.ir.dtype import DType
from webtorch.ir.lines import user_depth
from webtorch.ops import primitive
from webtorch.tensors.base import wraps
from webtorch.tensors.batching import batch, place_of, unbatch
from webtorch.tensors.device import device
from webtorch.tensors.engine import Turn
from webtorch.tensors.formats import strided
from webtorch.tensors.forward import fitted, transposed
from webtorch.tensors.made_by import made_by_function
from webtorch.tensors.modes import mode, stand_in, transforms, unrecorded
from webtorch.tensors.primitives import fill
from webtorch.tensors.recorders import sum_to
from webtorch.tensors.tape import (
    FREED,
    Cotangents,
    GradFn,
    Nothing,
    SavedTensor,
    class_of,
    gradient_edge,
    set_history,
)
from webtorch.tensors.tensor import Tensor
from webtorch.tensors.writing import rebase


class FunctionCtx:
    """What `forward` hands to `backward`."""

    def __init__(self, needs_input_grad: tuple[bool, ...]) -> None:
        self.needs_input_grad = needs_input_grad
        self._to_save: tuple[Tensor | None, ...] = ()
        # How many arguments forward has, and which of them are tensors.
        self._count = 0
        self._places: tuple[int, ...] = ()
        # Where calls are those of a script: what was saved, as it was given; None once backward has freed it. Results
        # that have their history hold the context, which does not hold them.
        self._kept: tuple[Tensor | weakref.ref[Tensor] | None, ...] | None = None
        # What gives the cotangents.
        self._rule: Any = None
        # None once backward has freed them.
        self._saved: list[SavedTensor | None] | None = []
        self._not_differentiable: tuple[Tensor, ...] = ()
        self._dirty: tuple[Tensor, ...] = ()
        self._materialize = True
        # The same of results that have no gradient.
        self._materialize_non_diff_grads = True
        self._owner: weakref.ref[GradFn] | None = None
        self._for_forward: tuple[Tensor | None, ...] = ()
        # Whether jvp runs: saved_tensors are then those of save_for_forward.
        self._moving = False

    def save_for_backward(self, *tensors: Tensor | None) -> None:
        """Keep inputs or outputs for `backward`; read them there as ctx.saved_tensors."""
        self._to_save = tensors

    def save_for_forward(self, *tensors: Tensor | None) -> None:
        """Keep inputs or outputs for `jvp`; read them there as ctx.saved_tensors."""
        self._for_forward = tensors

    @property
    def saved_tensors(self) -> tuple[Tensor | None, ...]:
        """The tensors given to save_for_backward. Raises RuntimeError if one has been overwritten
        since.
        """
        if self._moving:
            return self._for_forward
        if self._saved is None:
            raise RuntimeError(FREED)
        found = tuple([None if s is None else s.unpack() for s in self._saved])
        if self._kept is None or any(s is not None and s.packed for s in self._saved):
            return found
        kept = [k() if isinstance(k, weakref.ref) else k for k in self._kept]
        return tuple([s if k is None else k for k, s in zip_longest(kept, found)])

    @property
    def _raw_saved_tensors(self) -> tuple[SavedTensor, ...]:
        """What keeps each of them, for hooks of its own."""
        if self._saved is None:
            raise RuntimeError(FREED)
        return tuple(
            [Nothing("with value None is forbidden") if s is None else s for s in self._saved]
        )

    @property
    def saved_variables(self) -> tuple[Tensor | None, ...]:
        """Deprecated: `saved_tensors`."""
        warnings.warn(
            "'saved_variables' is deprecated; use 'saved_tensors'",
            DeprecationWarning,
            stacklevel=user_depth(),
        )
        return self.saved_tensors

    def mark_non_differentiable(self, *args: Tensor) -> None:
        """Say that these outputs have no gradient."""
        self._not_differentiable = args

    def mark_dirty(self, *args: Tensor) -> None:
        """Say that these inputs are modified in place."""
        self._dirty = args

    def set_materialize_grads(self, value: bool) -> None:
        """Choose whether missing cotangents come as zeros (the default) or as None."""
        self._materialize = value


class _BackwardClass:
    """The class of the gradient functions of a user's function."""

    def __get__(self, _: object, owner: type[Function]) -> type[GradFn]:
        return class_of(f"{owner.__name__}Backward", True)


class Function:
    """Base of custom operations: define static methods forward(ctx, *args) and backward(ctx,
    *grads), then call apply.

    As in PyTorch, forward may also be written without ctx, beside setup_context(ctx, inputs,
    output).
    """

    _backward_cls = _BackwardClass()

    def __init__(self, *args: object, **kwargs: object) -> None:
        warnings.warn(
            f"{type(self)} should not be instantiated. Methods on autograd functions are all static, so you should "
            "invoke them on the class itself. Instantiating an autograd function will raise an error in a future "
            "version of PyTorch.",
            DeprecationWarning,
            stacklevel=user_depth(),
        )

    def __call__(self, *args: object, **kwargs: object) -> Any:
        """Raise RuntimeError."""
        raise RuntimeError(
            "Legacy autograd function with non-static forward method is deprecated. Please use new-style autograd "
            "function with static forward method. (Example: "
            "https://pytorch.org/docs/stable/autograd.html#torch.autograd.Function)"
        )

    @staticmethod
    def forward(*args: Any, **kwargs: Any) -> Any:
        """Compute the result."""
        raise NotImplementedError(
            "You must implement the forward function for custom autograd.Function."
        )

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Any) -> Any:
        """Return one gradient per argument of forward."""
        raise NotImplementedError(
            "You must implement either the backward or vjp method for your custom "
            "autograd.Function to use it with backward mode AD."
        )

    # The other name that `backward` may be given by.
    vjp = backward

    # Whether vmap may use the operations of forward and backward, in place of a rule of its own.
    generate_vmap_rule = False

    @staticmethod
    def jvp(ctx: object, *grad_inputs: object) -> Any:
        """Return the tangents of the outputs, given those of the arguments."""
        raise NotImplementedError(
            "You must implement the jvp function for custom autograd.Function to use it with "
            "forward mode AD."
        )

    @staticmethod
    def vmap(info: object, in_dims: tuple[int | None, ...], *args: object) -> Any:
        """Return (outputs, their batch dimensions) for arguments with the batch dimensions `in_dims`."""
        raise NotImplementedError(
            "To use autograd.Function with vmap, you must either override the vmap staticmethod or "
            "set generate_vmap_rule=True."
        )

    @classmethod
    def apply(cls, *args: object, **kwargs: object) -> Any:
        """Run the operation and record it."""
        separate = "setup_context" in {n for c in cls.__mro__[:-1] for n in vars(c)}
        if separate:
            args, kwargs = _with_defaults(cls.forward, args, kwargs), {}
        tensors = [a for a in args if isinstance(a, Tensor)]
        for x in tensors:
            if wraps(x) and hasattr(x, "_apply"):
                # What lies in parts has the graph of its part.
                return x._apply(cls, args, kwargs)
        if (
            mode.transforms or not all(v.plain for v in mode.vmaps)
        ) and not cls.__module__.startswith("webtorch."):
            level = _check_transforms(cls, args)
            if level is not None:
                refuse_scripts("a function of the user's is mapped")
                return _mapped(cls, level, args)
        recorded = mode.grad and any(t.requires_grad for t in tensors)
        ctx = FunctionCtx(tuple(isinstance(a, Tensor) and a.requires_grad for a in args))
        ctx._count = len(args)
        ctx._rule = cls.backward if cls.vjp is Function.vjp else cls.vjp
        ctx._places = tuple([i for i, a in enumerate(args) if isinstance(a, Tensor)])
        # A script may have promised what it is given.
        seen = active.follower is not None and not watched() and not looking.count
        if not seen:
            refuse_scripts("a function of the user's is called")
        edges = _edges(tensors) if recorded and not seen else []
        # Tangents belong to storages: where there are any, forward sees tensors without.
        apart = bool(transforms.count and mode.forward)
        # Results that are inputs are known by the ids of these, so they stay.
        result, inputs = _forward(cls, ctx, args, kwargs, separate, apart)
        back = {id(i): a for i, a in zip(inputs, args, strict=True) if isinstance(a, Tensor)}
        outputs = result if isinstance(result, tuple) else (result,)
        if ctx._dirty:
            _check_marked(ctx, outputs, back, recorded)
            for x in ctx._dirty:
                # That it is marked counts as a write.
                x._counter.version += 1
        if separate:
            _check_returned(ctx, outputs, back)
        if seen:
            if not ctx._dirty and all(isinstance(o, Tensor) and id(o) not in back for o in outputs):
                saved, fixed = ctx._to_save, ctx._not_differentiable
                ctx._to_save = ctx._not_differentiable = ()
                call(HISTORY, (ctx, cls, outputs, tuple(tensors), saved, fixed, recorded), {})
                return result
            refuse_scripts("a function of the user's is called that gives no new tensors")
            edges = _edges(tensors) if recorded else []
        if not apart:
            outputs = _stand_in(ctx, outputs, back)
        outputs = _as_results(outputs, back, ctx._dirty, ctx._not_differentiable, recorded)
        if recorded:
            _record_all(cls, ctx, outputs, tensors, edges, back)
        if apart:
            _move(cls, ctx, args, outputs, back)
        # An input that was changed in place is returned as the tensor that it is.
        outputs = tuple(back.get(id(o), o) for o in outputs)
        return outputs if isinstance(result, tuple) else outputs[0]


def _forward(
    cls: type[Function],
    ctx: FunctionCtx,
    args: Args,
    kwargs: Kwargs,
    separate: bool,
    apart: bool,
) -> tuple[Any, list[Any]]:
    """Run a function's forward. Return what it gives, and what it was given. `separate`: its context is set up
    afterwards. `apart`: it sees tensors without tangents.
    """
    with unrecorded():
        inputs = [a.detach() if apart and isinstance(a, Tensor) else a for a in args]
        paused, mode.forward_paused = mode.forward_paused, ()
        try:
            given = inputs if separate else (ctx, *inputs)
            result = cls.forward(*given, **kwargs)
            if separate:
                cls.setup_context(ctx, tuple(inputs), result)  # type: ignore[attr-defined]
        finally:
            mode.forward_paused = paused
    return result, inputs


def _record_all(
    cls: type[Function],
    ctx: FunctionCtx,
    outputs: Sequence[Any],
    tensors: list[Tensor],
    edges: list[Any],
    back: dict[int, Tensor],
) -> None:
    """Record a function with all that it gave: new tensors, and inputs that it changed in place."""
    for dirty in ctx._dirty:
        _check_dirty(back.get(id(dirty), dirty))
    _record(cls, ctx, outputs, tensors, edges, back, ctx._to_save, ctx._not_differentiable)
    # The outputs hold the function and the function the context, which must not hold the outputs.
    ctx._to_save = ctx._not_differentiable = ()
    for o in outputs:
        if isinstance(o, Tensor) and id(o) in back and o._requires_grad:
            rebase(back[id(o)], o)


@functools.lru_cache(1024)
def _signature(function: Callable[..., object]) -> inspect.Signature:
    return inspect.signature(function)


def _with_defaults(forward: Callable[..., object], args: Args, kwargs: Kwargs) -> Args:
    """Return all arguments of a call by position."""
    signature = _signature(forward)
    if not kwargs and len(args) == len(signature.parameters):
        return args
    bound = signature.bind(*args, **kwargs)
    bound.apply_defaults()
    if bound.kwargs:
        if mode.vmaps and _tensors_in(bound.kwargs):
            raise NotImplementedError(
                "Run vmap on autograd.Function with kwarg-only Tensor args. Please do not pass kwarg-only Tensors to "
                f"autograd.Function. Got: {bound.kwargs}"
            )
        raise TypeError(
            f"forward() got an unexpected keyword argument '{next(iter(bound.kwargs))}'"
        )
    return bound.args


def _check_returned(ctx: FunctionCtx, outputs: Sequence[object], back: dict[int, Tensor]) -> None:
    """Raise RuntimeError where what is saved is an input that is a result as it is: which of the two is meant?"""
    kept = {id(t) for t in (*ctx._to_save, *ctx._for_forward)} - {id(d) for d in ctx._dirty}
    if any(id(o) in kept and id(o) in back for o in outputs):
        raise RuntimeError(
            "An input that has been returned as-is as output is being saved for backward. This is not supported if "
            "you override setup_context. You should return and save a view of the input instead, e.g. with "
            "x.view_as(x) or setup ctx inside the forward function itself."
        )


def _edges(tensors: Sequence[Tensor]) -> list[Any]:
    return [gradient_edge(t) if t.requires_grad else None for t in tensors]


def _give_history(args: Args, kwargs: Kwargs) -> None:
    """Give new tensors that `forward` gave their part in the graph."""
    ctx, cls, outputs, tensors, saved, fixed, recorded = args
    _as_results(outputs, {}, (), fixed, recorded)
    if recorded:
        _record(cls, ctx, outputs, tensors, _edges(tensors), {}, saved, fixed)


# The call by which results of a user's function get their history: context, class, results, the tensors among the
# arguments, what was saved, what has no gradient, and whether there is one.
HISTORY = Callee("a function's results", _give_history, role="function")


def _stand_in(
    ctx: FunctionCtx, outputs: tuple[object, ...], back: dict[int, Tensor]
) -> tuple[Any, ...]:
    """Put another tensor in the place of each input that was changed in place, and note it in `back`:
    the input gets its new history from it.
    """
    other = {id(d): d.detach() for d in ctx._dirty if id(d) in back}
    back.update({id(new): back[old] for old, new in other.items()})
    ctx._dirty = tuple([other.get(id(d), d) for d in ctx._dirty])
    ctx._to_save = tuple([other.get(id(t), t) for t in ctx._to_save])
    return tuple([other.get(id(o), o) for o in outputs])


def _as_results(
    outputs: tuple[object, ...],
    back: dict[int, Tensor],
    dirty: Sequence[Tensor],
    fixed: Sequence[Tensor],
    recorded: bool,
) -> tuple[Any, ...]:
    """Return what `forward` gave as results: an input that it returns as it is is a view of that. Gradients cannot
    follow a write through views.
    """
    changed, constant = set(map(id, dirty)), set(map(id, fixed))
    recorded_ones = [
        recorded and isinstance(o, Tensor) and o.dtype.has_gradient and id(o) not in constant
        for o in outputs
    ]
    several = sum(recorded_ones) > 1
    found = list(outputs)
    for number, o in enumerate(outputs):
        if not isinstance(o, Tensor) or id(o) in changed:
            continue
        if id(o) in back:
            with unrecorded():
                o = o.view_as(o) if recorded_ones[number] or not o.requires_grad else o.detach()
            found[number] = o
        if o._base is not None:
            o._made_by = made_by_function(number, several)
            # What forward itself has written is in it.
            o._base_version = o._counter.version
    return tuple(found)


def _expands(shape: tuple[int, ...], to: tuple[int, ...]) -> bool:
    """Whether a tensor of one shape broadcasts to another: a gradient of that shape is summed."""
    tail = to[len(to) - len(shape) :]
    return len(shape) <= len(to) and all(s in (1, t) for s, t in zip(shape, tail, strict=True))


class VmapInfo(NamedTuple):
    """What a rule for vmap is told."""

    batch_size: int
    randomness: str


def _nested(change: Callable[[Any], Any], value: Any) -> Any:
    """Return a nest of lists, tuples and dicts with each of its leaves changed."""
    if isinstance(value, dict):
        return {k: _nested(change, v) for k, v in value.items()}
    if type(value) in (list, tuple):
        return type(value)([_nested(change, v) for v in value])
    return change(value)


def _tensors_in(value: object) -> list[Tensor]:
    found: list[Tensor] = []
    _nested(lambda x: found.append(x) if isinstance(x, Tensor) else None, value)
    return found


def _check_transforms(cls: type[Function], args: tuple[object, ...]) -> object:
    """Return the vmap whose rule the user wrote, if it is to be called. Raises where one is missing."""
    if "setup_context" not in {n for c in cls.__mro__[:-1] for n in vars(c) if c is not Function}:
        raise RuntimeError(
            "In order to use an autograd.Function with functorch transforms (vmap, grad, jvp, "
            "jacrev, ...), it must override the setup_context staticmethod. For more details, "
            "please see https://pytorch.org/docs/main/notes/extending.func.html"
        )
    batched = {n for t in _tensors_in(args) for n, _, _ in t._levels}
    level = next((v for v in reversed(mode.vmaps) if v.number in batched), None)
    if level is None:
        return None
    own = cls.vmap is not Function.vmap
    if own and cls.generate_vmap_rule:
        raise RuntimeError(
            f"You tried to vmap over {cls.__name__}, but it has both generate_vmap_rule=True and an "
            "overridden vmap staticmethod. Please set generate_vmap_rule=False or delete the "
            "overridden vmap staticmethod to avoid ambiguity. For more details, please see "
            "https://pytorch.org/docs/main/notes/extending.func.html"
        )
    if not own and not cls.generate_vmap_rule:
        raise RuntimeError(
            f"You tried to vmap over {cls.__name__}, but it does not have vmap support. Please "
            "override and implement the vmap staticmethod or set generate_vmap_rule=True. For more "
            "details, please see https://pytorch.org/docs/main/notes/extending.func.html"
        )
    return level if own else None


def _mapped(cls: type[Function], level: Any, args: Sequence[object]) -> Any:
    """Call the user's rule for one vmap, outside of it."""

    def dim_of(x: Any) -> int | None:
        """Return where a tensor has the dimension that is hidden."""
        hidden = isinstance(x, Tensor) and any(n == level.number for n, _, _ in x._levels)
        return place_of(x, level.number) if hidden else None

    def whole(x: Any) -> Any:
        """Return a tensor with that dimension."""
        dim = dim_of(x)
        return x if dim is None else unbatch(x, dim, level.number, level.size)

    dims, given = _nested(dim_of, tuple(args)), _nested(whole, tuple(args))
    before, mode.vmaps = mode.vmaps, tuple([v for v in mode.vmaps if v is not level])
    try:
        result = cls.vmap(VmapInfo(level.size, level.randomness), dims, *given)
    finally:
        mode.vmaps = before
    if not (isinstance(result, tuple) and len(result) == 2):
        count = f"{len(result)} returns" if isinstance(result, tuple) else f"a {type(result)}"
        raise RuntimeError(
            "Expected the vmap staticmethod to have two returns, an output and out_dims with pytree structure "
            f"compatible with the output. Got {count} instead"
        )
    outputs, out_dims = result

    def hidden(x: Any, dim: Any) -> Any:
        """Return what the rule gave with its dimension hidden; one dim stands for a nest."""
        if dim is None or isinstance(dim, int):
            return _nested(
                lambda o: (
                    o
                    if dim is None or not isinstance(o, Tensor)
                    else batch(o, dim % o.ndim, level.number)
                ),
                x,
            )
        if type(dim) is not type(x) or len(dim) != len(x):
            raise RuntimeError(
                "The autograd.Function's vmap staticmethod returned an incompatible (output, out_dims) tuple. Expected "
                f"out_dims={out_dims} to be compatible with the structure of `output`, {type(x).__name__}. For more "
                "details, please see https://pytorch.org/docs/main/notes/extending.func.html"
            )
        if isinstance(x, dict):
            return {k: hidden(v, dim[k]) for k, v in x.items()}
        return type(x)([hidden(v, d) for v, d in zip(x, dim, strict=True)])

    return hidden(outputs, out_dims)


def _move(
    cls: type[Function],
    ctx: FunctionCtx,
    args: Sequence[object],
    outputs: Sequence[object],
    back: dict[int, Tensor],
) -> None:
    """Give the outputs their tangents."""
    results = [o for o in outputs if isinstance(o, Tensor) and o.dtype.kind == "float"]
    if cls.jvp is Function.jvp and cls.__module__.startswith("webtorch."):
        tensors = [a for a in args if isinstance(a, Tensor)]
        places = [i for i, a in enumerate(args) if isinstance(a, Tensor)]

        def rule(gs: tuple[Tensor, ...]) -> list[object]:
            """Return the cotangents that the class's `backward` gives."""
            found = cls.backward(ctx, *gs)
            found = found if isinstance(found, tuple) else (found,)
            return [found[i] for i in places]

        transposed(results, tensors, rule)
        return
    ctx._for_forward = tuple([None if t is None else back.get(id(t), t) for t in ctx._for_forward])
    levels = mode.forward
    for i, level in enumerate(levels):
        if not any(isinstance(a, Tensor) and a in level for a in args):
            continue
        tangents = [level.of(a) if isinstance(a, Tensor) else None for a in args]
        mode.forward, ctx._moving = levels[:i], True
        try:
            if ctx._materialize:
                tangents = [
                    primitive.fill(a._shape, 0, a.dtype, a.device)
                    if t is None and isinstance(a, Tensor) and a.dtype.kind == "float"
                    else t
                    for t, a in zip(tangents, args, strict=True)
                ]
            if ctx._dirty:
                # Its tangent may be changed in place as well, and be that of another tensor too.
                tangents = [None if t is None else level.own(t) for t in tangents]
            versions = [None if t is None else t._version for t in tangents]
            found = cls.jvp(ctx, *tangents)
            found = found if isinstance(found, tuple) else (found,)
            for i, (o, t) in enumerate(zip(outputs, found, strict=True)):
                if t is None or not isinstance(o, Tensor):
                    continue
                duals = [d() for d in level.duals]
                _check_tangent(ctx, i, o, t, args, tangents, versions, back, duals)
                level.set(o, fitted(t, o))
        finally:
            mode.forward, ctx._moving = levels, False


_NO_VIEW = "A custom Function's forward is returning a view (or an input as-is) but the jvp is not returning a view"


def _check_tangent(
    ctx: FunctionCtx,
    number: int,
    out: Tensor,
    tangent: Tensor,
    args: Sequence[object],
    tangents: Sequence[Tensor | None],
    versions: Sequence[int | None],
    back: dict[int, Tensor],
    duals: Sequence[Tensor | None],
) -> None:
    """Raise RuntimeError if what `jvp` gave for an output does not lie as the output does."""
    if any(out is n for n in ctx._not_differentiable) or not out.dtype.has_gradient:
        raise RuntimeError(
            f"Function's jvp returned a gradient at position {number}, but the corresponding forward output is not a "
            "differentiable Tensor. You should return None at that position instead."
        )
    changed = back.get(id(out))
    for a, t, version in zip(args, tangents, versions, strict=True):
        if not isinstance(a, Tensor) or t is None:
            continue
        if a is changed:
            if t._version == version:
                raise RuntimeError(
                    "An inplace custom Function is not modifying the forward mode gradients inplace. If the forward is "
                    "modifying an input inplace, then the jvp function must modify the corresponding gradient inplace."
                )
            if t is not tangent:
                raise RuntimeError(
                    "An inplace custom Function is not returning the forward mode gradients as-is. If the forward is "
                    "modifying an input inplace, then the jvp function must modify the gradient inplace and return it "
                    "as-is."
                )
        elif changed is None and out._base is not None and _is_view_of(out, a):
            if tangent._base is None:
                raise RuntimeError(f"{_NO_VIEW}.")
            if tangent._base is not (t if t._base is None else t._base):
                given = a._base is None or any(a is d for d in duals)
                which = "of the given grad input" if given else "of the same base"
                raise RuntimeError(f"{_NO_VIEW} {which}.")


def _is_view_of(out: Tensor, x: Tensor) -> bool:
    """Whether a result of `forward` shows the memory of an argument, of which it was given another tensor."""
    own = {x._storage}
    for level in mode.forward:
        for first, second, _ in level.twins:
            pair = {first(), second()}
            if x._storage in pair:
                own |= pair
    return out._storage in own


def _check_marked(
    ctx: FunctionCtx, outputs: tuple[object, ...], back: dict[int, Tensor], recorded: bool
) -> None:
    """Warn, or raise RuntimeError, where what `forward` has marked as changed is no input, or no output."""
    for x in ctx._dirty:
        if id(x) not in back:
            warnings.warn(
                "Only input Tensors should be given to ctx.mark_dirty(). If a Tensor is not an input, there is no need "
                "to pass it to mark_dirty().",
                stacklevel=user_depth(),
            )
        if not any(o is x for o in outputs):
            raise RuntimeError(
                "Some elements marked as dirty during the forward method were not returned as output. The inputs that "
                "are modified inplace must all be outputs of the Function."
            )
        given = back.get(id(x))
        if recorded and given is not None and given._base is not None and len(outputs) > 1:
            raise RuntimeError(
                "If your Function modifies inplace an input that is a view of another Tensor, your Function cannot "
                "return more than one Tensor."
            )


def _check_dirty(x: Tensor) -> None:
    if x.requires_grad and x.is_leaf:
        raise RuntimeError(
            "a leaf Variable that requires grad has been used in an in-place operation."
        )


def _record(
    cls: type[Function],
    ctx: FunctionCtx,
    outputs: Sequence[Any],
    tensors: Sequence[Tensor],
    edges: list[Any],
    back: dict[int, Tensor],
    to_save: Sequence[Tensor | None],
    fixed: Sequence[Tensor],
) -> None:
    out_ids = {id(o): number for number, o in enumerate(outputs)}
    ctx._saved = [
        None
        if t is None
        else _kept(t, out_ids[id(t)])
        if id(t) in out_ids
        else _kept(back.get(id(t), t), None)
        for t in to_save
    ]
    left_out = () if ctx._materialize_non_diff_grads else fixed

    def fills(o: object) -> bool:
        """Whether zeros come for a result that was not used."""
        return isinstance(o, Tensor) and not any(o is n for n in left_out)

    static = _Static(
        cls,
        ctx,
        ctx._count,
        tuple([(i, t._shape) for i, t in zip(ctx._places, tensors, strict=True)]),
        tuple([(o._shape, o.dtype, o.device) if fills(o) else None for o in outputs]),
    )
    saved = [s for s in ctx._saved if s is not None]
    # PyTorch's transforms make a class of each.
    made = mode.transforms and not cls.__module__.startswith("webtorch.")
    fn = GradFn(
        f"{cls.__name__}{'Generated' if made else ''}Backward", tuple(edges), _back, saved, static
    )
    fn.takes_gaps = True
    fn.turns = _back_turns
    fn.ctx = ctx  # type: ignore[attr-defined]
    ctx._owner = weakref.ref(fn)
    for number, o in enumerate(outputs):
        if isinstance(o, Tensor) and o.dtype.has_gradient and not any(o is n for n in fixed):
            set_history(o, fn, number)
    fn.metas = [*fn.metas, *[None] * (len(outputs) - len(fn.metas))]


def _kept(tensor: Tensor, output: int | None) -> SavedTensor:
    """Return what keeps a tensor; a sparse one, which has no memory of its own, as it is."""
    saved = SavedTensor(tensor, output)
    if tensor.layout is not strided and saved.packed is None:
        saved.keep(tensor)
    if output is None:
        saved.given = tensor
    return saved


# After so many backward passes within each other the next one is another thread's.
_DEEP = 12


class _Static(NamedTuple):
    """What a call of a user's function is made of, for its gradient."""

    cls: type[Function]
    ctx: FunctionCtx
    # How many arguments it has; the places and shapes of tensors among them.
    arguments: int
    tensors: tuple[tuple[int, tuple[int, ...]], ...]
    # Of each result that is a tensor, and for which zeros come where it was not used: shape, type and device.
    results: tuple[tuple[tuple[int, ...], DType, device] | None, ...]


def _back(gs: Cotangents, _saved: Sequence[SavedTensor], static: _Static) -> list[Tensor | None]:
    """Return the cotangents that the class's `backward` gives."""
    turns = _back_turns(gs, static)
    turn = next(turns)
    given = turn.function(*turn.args)
    try:
        turns.send(given)
    except StopIteration as end:
        return end.value
    raise AssertionError


def _back_turns(gs: Cotangents, static: _Static) -> Generator[Turn, Any, list[Tensor | None]]:
    """Return the cotangents that the class's `backward` gives; None for missing ones becomes zeros if it asks."""
    cls, ctx, count, tensors, results = static
    cotangents = [*gs, *[None] * (len(results) - len(gs))]
    if ctx._materialize:
        cotangents = [
            fill(r[0], 0, r[1], r[2]) if g is None and r is not None else g
            for g, r in zip(cotangents, results, strict=True)
        ]
    if cls.backward is not Function.backward and cls.vjp is not Function.vjp:
        raise RuntimeError(
            "Implementing both 'backward' and 'vjp' for a custom Function is not allowed. You should only "
            "implement one of them."
        )
    rule = functools.partial(ctx._rule, ctx)
    if mode.depth and not mode.depth % _DEEP:
        rule = functools.partial(stand_in, rule)
    found = yield Turn(rule, tuple(cotangents), ctx, 0)
    found = found if isinstance(found, tuple) else (found,)
    if len(found) < count or any(f is not None for f in found[count:]):
        raise RuntimeError(
            f"function {cls.__name__}Backward returned an incorrect number of gradients "
            f"(expected {count}, got {len(found)})"
        )
    grads = [found[place] for place, _ in tensors]
    for i, (g, (_, shape)) in enumerate(zip(grads, tensors, strict=True)):
        if not (g is None or isinstance(g, Tensor)):
            raise RuntimeError(f"expected Variable or None (got {type(g).__name__})")
        if g is not None and g._shape != shape:
            if _expands(shape, g._shape):
                grads[i] = sum_to(g, shape)
                continue
            raise RuntimeError(
                f"Function {cls.__name__}Backward returned an invalid gradient at index {i} - "
                f"got {list(g._shape)} but expected shape "
                f"compatible with {list(shape)}"
            )
    return grads
