"""Users' functions with gradients of their own (`autograd.Function`), of DTensors. Floor 5.

Both directions see DTensors. In the graph there is one function, of the parts.
"""

from __future__ import annotations

from typing import Any

from webtorch.dispatch.call import Args, Kwargs
from webtorch.distributed.tensor._dtensor_spec import DTensorSpec
from webtorch.distributed.tensor.dtensor import DTensor, apply_functions, whole_gradient, wrapped
from webtorch.tensors.function import Function, FunctionCtx
from webtorch.tensors.tensor import Tensor


class _Context(FunctionCtx):
    """What a user's function keeps: DTensors as they are, outside of the graph."""

    @property
    def saved_tensors(self) -> tuple[Tensor | None, ...]:
        """What `save_for_backward` was given."""
        return self._to_save


class _OfParts(Function):
    @staticmethod
    def forward(ctx: Any, kept: _Kept, *parts: Any) -> Any:
        """Call the user's function with DTensors of the parts."""
        ctx.kept = kept
        args = kept.wrapped(parts)
        own = kept.context
        if "setup_context" in {n for c in kept.function.__mro__[:-1] for n in vars(c)}:
            out = kept.function.forward(*args, **kept.kwargs)
            kept.function.setup_context(own, args, out)
        else:
            out = kept.function.forward(own, *args, **kept.kwargs)
        ctx.set_materialize_grads(False)
        results = out if isinstance(out, tuple) else (out,)
        kept.is_tuple = isinstance(out, tuple)
        kept.results = [x._spec if isinstance(x, DTensor) else None for x in results]
        plain = tuple(
            [
                x._local_tensor.view_as(x._local_tensor) if isinstance(x, DTensor) else x
                for x in results
            ]
        )
        fixed = [
            y
            for x, y in zip(results, plain, strict=True)
            if any(x is n for n in own._not_differentiable)
        ]
        ctx.mark_non_differentiable(*fixed)
        return plain

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        """Call the user's rule with DTensors of the gradients."""
        kept: _Kept = ctx.kept
        given = [
            whole_gradient(g, spec) if spec is not None and g is not None else g
            for spec, g in zip(kept.results, grads, strict=True)
        ]  # fmt: skip
        found = kept.context._rule(kept.context, *given)
        found = found if isinstance(found, tuple) else (found,)
        return None, *[
            x._gradient_part(g) if isinstance(x, DTensor) and isinstance(g, DTensor) else g
            for x, g in zip(kept.args, found, strict=False)
        ]


class _Kept:
    """A call of a user's function."""

    def __init__(self, function: Any, args: Args, kwargs: Kwargs) -> None:
        self.function, self.args, self.kwargs = function, args, kwargs
        self.context = _Context(tuple([isinstance(a, Tensor) and a.requires_grad for a in args]))
        self.context._rule = function.backward if function.vjp is Function.vjp else function.vjp
        self.results: list[DTensorSpec | None] = []
        self.is_tuple = False

    def wrapped(self, parts: Args) -> Args:
        """Return the arguments with DTensors of these parts."""
        return tuple([
            DTensor(part, x._spec) if isinstance(x, DTensor) else part
            for x, part in zip(self.args, parts, strict=True)
        ])  # fmt: skip


def _apply(function: Any, args: Args, kwargs: Kwargs) -> Any:
    """Return what a user's function gives for DTensors."""
    kept = _Kept(function, args, kwargs)
    parts = [x._local_tensor if isinstance(x, DTensor) else x for x in args]
    out = _OfParts.apply(kept, *parts)
    results = tuple([
        x if spec is None else wrapped(x, spec.mesh, spec.placements, spec.shape, spec.stride)
        for x, spec in zip(out, kept.results, strict=True)
    ])  # fmt: skip
    return results if kept.is_tuple else results[0]


apply_functions(_apply)
