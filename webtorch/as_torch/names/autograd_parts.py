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
        fn = GradFn("Error", tuple(map(gradient_edge, inputs)), _fail, (), self.msg)
        found = [x.detach() for x in inputs]
        for i, x in enumerate(found):
            set_history(x, fn, i)
        return tuple(found) if self.num_inputs != 1 else found[0]


def _fail(_gs: Cotangents, _saved: object, msg: Any) -> Cotangents:
    raise RuntimeError(msg)


def _saved_tensors_hooks_is_enabled() -> bool:
    """Whether hooks of saved tensors may be used now."""
    return mode.hooks_disabled is None
