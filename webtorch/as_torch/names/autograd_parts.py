"""torch._C._autograd and torch._C._functions: what programs name of autograd's C++ core."""

from __future__ import annotations

from typing import Any

from webtorch.tensors.modes import mode
from webtorch.tensors.tape import AccumulateGrad as AccumulateGrad
from webtorch.tensors.tape import Cotangents, GradFn, gradient_edge, set_history
from webtorch.tensors.tape import SavedTensor as SavedTensor
from webtorch.tensors.tensor import Tensor


class DelayedError:
    """A function that gives what it is given, and raises RuntimeError once a backward pass comes to it."""

    def __init__(self, msg: str, num_inputs: int) -> None:
        """Take the message, and how many tensors are given."""
        self.msg, self.num_inputs = msg, num_inputs

    def __call__(self, *inputs: Tensor) -> Any:
        """Return the tensors, or the one."""
        edges = tuple(map(gradient_edge, inputs))
        return _with(GradFn("Error", edges, _fail, (), self.msg), inputs)


class UndefinedGrad:
    """A function that gives what it is given, and sends nothing back."""

    def __call__(self, *inputs: Tensor) -> Any:
        """Return the tensors, or the one."""
        fn = GradFn("UndefinedGradBackward", tuple(map(gradient_edge, inputs)), _nothing)
        return _with(fn, inputs)


def _with(fn: GradFn, inputs: tuple[Tensor, ...]) -> Any:
    """Return tensors with another gradient function."""
    found = [x.detach() for x in inputs]
    for i, x in enumerate(found):
        set_history(x, fn, i)
    return tuple(found) if len(found) != 1 else found[0]


def _nothing(gs: Cotangents, _saved: object, _static: object) -> Cotangents:
    return (None,) * len(gs)


def _fail(_gs: Cotangents, _saved: object, msg: Any) -> Cotangents:
    raise RuntimeError(msg)


def _saved_tensors_hooks_is_enabled() -> bool:
    """Whether hooks of saved tensors may be used now."""
    return mode.hooks_disabled is None
