"""`webtorch.autograd.Function`: operations with a gradient written by the user. Floor 4."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any

from webtorch.tensors.primitives import rebase
from webtorch.tensors.tape import (
    FREED,
    GradFn,
    SavedTensor,
    gradient_edge,
    mode,
    no_grad,
    set_history,
)
from webtorch.tensors.tensor import Tensor


class FunctionCtx:
    """What `forward` hands to `backward`."""

    def __init__(self, needs_input_grad: tuple[bool, ...]) -> None:
        self.needs_input_grad = needs_input_grad
        self._to_save: tuple[Tensor | None, ...] = ()
        # None once backward has freed them.
        self._saved: list[SavedTensor | None] | None = []
        self._not_differentiable: tuple[Tensor, ...] = ()
        self._dirty: tuple[Tensor, ...] = ()
        self._materialize = True
        self._owner: weakref.ref[GradFn] | None = None

    def save_for_backward(self, *tensors: Tensor | None) -> None:
        """Keep inputs or outputs for `backward`; read them there as ctx.saved_tensors."""
        self._to_save = tensors

    def save_for_forward(self, *tensors: Tensor | None) -> None:
        """Accepted for compatibility: forward-mode differentiation is not available."""

    @property
    def saved_tensors(self) -> tuple[Tensor | None, ...]:
        """The tensors given to save_for_backward. Raises RuntimeError if one has been overwritten
        since.
        """
        if self._saved is None:
            raise RuntimeError(FREED)
        owner = self._owner() if self._owner is not None else None
        return tuple(None if s is None else s.unpack(owner) for s in self._saved)

    def mark_non_differentiable(self, *args: Tensor) -> None:
        """Say that these outputs have no gradient."""
        self._not_differentiable = args

    def mark_dirty(self, *args: Tensor) -> None:
        """Say that these inputs are modified in place."""
        self._dirty = args

    def set_materialize_grads(self, value: bool) -> None:
        """Choose whether missing cotangents come as zeros (the default) or as None."""
        self._materialize = value


class Function:
    """Base of custom operations: define static methods forward(ctx, *args) and backward(ctx,
    *grads), then call apply.

    As in PyTorch, forward may also be written without ctx, beside setup_context(ctx, inputs,
    output).
    """

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

    @classmethod
    def apply(cls, *args: Any, **kwargs: Any) -> Any:
        """Run the operation and record it."""
        tensors = [a for a in args if isinstance(a, Tensor)]
        recorded = mode.grad and any(t.requires_grad for t in tensors)
        ctx = FunctionCtx(tuple(isinstance(a, Tensor) and a.requires_grad for a in args))
        separate = "setup_context" in {n for c in cls.__mro__[:-1] for n in vars(c)}
        edges = [gradient_edge(t) if t.requires_grad else None for t in tensors] if recorded else []
        with no_grad():
            inputs = [a.detach() if isinstance(a, Tensor) else a for a in args]
            back = {id(i): a for i, a in zip(inputs, args, strict=True) if isinstance(a, Tensor)}
            result = (
                cls.forward(*inputs, **kwargs) if separate else cls.forward(ctx, *inputs, **kwargs)
            )
            if separate:
                cls.setup_context(ctx, tuple(inputs), result)  # type: ignore[attr-defined]
        outputs = result if isinstance(result, tuple) else (result,)
        # What forward returns of its own inputs is a new tensor to the graph.
        outputs = tuple(
            o.view_as(o)
            if isinstance(o, Tensor) and id(o) in back and not any(o is d for d in ctx._dirty)
            else o
            for o in outputs
        )
        if recorded:
            for dirty in ctx._dirty:
                _check_dirty(back.get(id(dirty), dirty))
            _record(cls, ctx, outputs, tensors, edges, args, back)
            for o in outputs:
                if isinstance(o, Tensor) and id(o) in back and o._requires_grad:
                    rebase(back[id(o)], o)
        # An input that was changed in place is returned as the tensor that it is.
        outputs = tuple(back.get(id(o), o) for o in outputs)
        return outputs if isinstance(result, tuple) else outputs[0]


def _check_dirty(x: Tensor) -> None:
    if x.requires_grad and x.is_leaf:
        raise RuntimeError(
            "a leaf Variable that requires grad is being used in an in-place operation."
        )


def _record(
    cls: type[Function],
    ctx: FunctionCtx,
    outputs: Sequence[Any],
    tensors: list[Tensor],
    edges: list[Any],
    args: Sequence[Any],
    back: dict[int, Tensor],
) -> None:
    out_ids = {id(o) for o in outputs}
    ctx._saved = [
        None
        if t is None
        else SavedTensor(t, is_output=True)
        if id(t) in out_ids
        else SavedTensor(back.get(id(t), t))
        for t in ctx._to_save
    ]
    count = len(args)
    positions = [i for i, a in enumerate(args) if isinstance(a, Tensor)]
    shapes = [(o._shape, o.dtype, o.device) if isinstance(o, Tensor) else None for o in outputs]

    def rule(gs: Any) -> list[Tensor | None]:
        cotangents = list(gs) + [None] * (len(shapes) - len(gs))
        if ctx._materialize:
            from webtorch.tensors.primitives import fill

            cotangents = [
                fill(s[0], 0, s[1], s[2]) if g is None and s is not None else g
                for g, s in zip(cotangents, shapes, strict=True)
            ]
        found = cls.backward(ctx, *cotangents)
        found = found if isinstance(found, tuple) else (found,)
        if len(found) < count or any(f is not None for f in found[count:]):
            raise RuntimeError(
                f"function {cls.__name__}Backward returned an incorrect number of gradients "
                f"(expected {count}, got {len(found)})"
            )
        grads = [found[p] for p in positions]
        for i, (g, t) in enumerate(zip(grads, tensor_shapes, strict=True)):
            if g is not None and g._shape != t:
                raise RuntimeError(
                    f"Function {cls.__name__}Backward returned an invalid gradient at index {i} - "
                    f"got {list(g._shape)} but expected shape "
                    f"compatible with {list(t)}"
                )
        return grads

    tensor_shapes = [t._shape for t in tensors]
    fn = GradFn(f"{cls.__name__}Backward", tuple(edges), rule)
    fn.ctx = ctx  # type: ignore[attr-defined]
    ctx._owner = weakref.ref(fn)
    for number, o in enumerate(outputs):
        if (
            isinstance(o, Tensor)
            and o.dtype.has_gradient
            and not any(o is n for n in ctx._not_differentiable)
        ):
            set_history(o, fn, number)
    while len(fn.metas) < len(outputs):
        fn.metas.append(None)
    # The outputs hold the function and the function the context, which must not hold the outputs.
    ctx._to_save = ctx._not_differentiable = ()
