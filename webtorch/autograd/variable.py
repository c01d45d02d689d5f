"""The old name of a tensor. May import floor 4."""

from __future__ import annotations

from typing import Any

from webtorch.tensors.engine import backward, queue_callback
from webtorch.tensors.tensor import Tensor

__all__ = ["Variable", "VariableMeta"]


class VariableMeta(type):
    """Lets every tensor be a Variable."""

    def __instancecheck__(cls, other: object) -> bool:
        return isinstance(other, Tensor)


class _ExecutionEngine:
    """What runs backward passes."""

    queue_callback = staticmethod(queue_callback)
    run_backward = staticmethod(backward)


class Variable(metaclass=VariableMeta):
    """What tensors with gradients were called: `Variable(x)` is a tensor that shares the data of x, without a graph."""

    _execution_engine = _ExecutionEngine()

    def __new__(
        cls, data: object = None, requires_grad: bool = False, volatile: object = None
    ) -> Any:
        """Return the tensor. `volatile` has no effect, as in PyTorch."""
        found = Tensor() if data is None else data
        if not isinstance(found, Tensor):
            raise TypeError(f"Variable data has to be a tensor, but got {type(data).__name__}")
        return found.detach().requires_grad_(requires_grad)
