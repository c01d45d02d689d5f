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
    def backward(ctx: object, *grads: object) -> object:
        """Compute the gradients unrecorded."""
        with no_grad():
            found = fn(ctx, *grads)
        if not mode.grad or not any(isinstance(g, Tensor) and g.requires_grad for g in grads):
            return found
        results: list[Any] = list(found) if isinstance(found, tuple) else [found]
        # A leaf stands before each of them, as in PyTorch.
        ends = [g.detach().requires_grad_() if isinstance(g, Tensor) else None for g in results]
        end = GradFn(
            "Error", tuple([None if e is None else gradient_edge(e) for e in ends]), _refuse
        )
        for i, g in enumerate(results):
            if isinstance(g, Tensor):
                results[i] = g.detach()
                set_history(results[i], end, i)
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
