"""`webtorch.autograd.function`: operations with a gradient written by the user. May import floor 4."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NoReturn

from webtorch.tensors.function import Function, FunctionCtx
from webtorch.tensors.modes import mode, no_grad
from webtorch.tensors.tape import Cotangents, GradFn, gradient_edge, set_history
from webtorch.tensors.tensor import Tensor

__all__ = [
    "BackwardCFunction", "Function", "FunctionCtx", "InplaceFunction", "once_differentiable",
]  # fmt: skip


class InplaceFunction(Function):
    """A function that may work in place: an old name of what any may."""

    def __init__(self, inplace: bool = False) -> None:
        super().__init__()
        self.inplace = inplace


# What a user's `backward` is given.
BackwardCFunction = FunctionCtx


def once_differentiable(fn: Callable[..., object]) -> Callable[..., Any]:
    """Say that a `backward` cannot be differentiated itself: doing so raises RuntimeError.

    Used below @staticmethod. The gradients are computed without being recorded.
    """

    @functools.wraps(fn)
    def backward(ctx: object, *grads: object) -> Any:
        """Compute the gradients unrecorded."""
        with no_grad():
            found = fn(ctx, *grads)
        given = [g for g in grads if isinstance(g, Tensor) and g.requires_grad]
        if not mode.grad or not given:
            return found

        edges = tuple(gradient_edge(g) for g in given)
        results = []
        for g in found if isinstance(found, tuple) else (found,):
            if isinstance(g, Tensor):
                g = g.detach()
                set_history(g, GradFn("Error", edges, _refuse))
            results.append(g)
        return tuple(results) if isinstance(found, tuple) else results[0]

    return backward


def _refuse(_gs: object, _saved: object, _static: object) -> NoReturn:
    """Raise RuntimeError."""
    raise RuntimeError(
        "trying to differentiate twice a function that was marked with @once_differentiable"
    )


class UndefinedGrad:
    """A function that gives what it is given, and sends nothing back."""

    def __call__(self, *inputs: Tensor) -> Any:
        """Return the tensors, or the one."""
        fn = GradFn("UndefinedGradBackward", tuple(map(gradient_edge, inputs)), _nothing)
        return results_of(fn, inputs)


def _nothing(gs: Cotangents, _saved: object, _static: object) -> Cotangents:
    return (None,) * len(gs)


def results_of(fn: GradFn, inputs: tuple[Tensor, ...]) -> Any:
    """Return tensors with another gradient function."""
    found = [x.detach() for x in inputs]
    for i, x in enumerate(found):
        set_history(x, fn, i)
    return tuple(found) if len(found) != 1 else found[0]
