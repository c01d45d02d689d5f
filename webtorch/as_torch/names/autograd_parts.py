"""Private names of torch.autograd, torch._C._autograd and torch._C._functions."""

from __future__ import annotations

import contextlib
from collections.abc import Generator, Iterable
from typing import Any

from webtorch.as_torch.names.profiler_parts import _profiler_enabled as _profiler_enabled
from webtorch.as_torch.names.profiler_parts import kineto_available as kineto_available
from webtorch.autograd import functional
from webtorch.autograd.function import Function, UndefinedGrad, results_of
from webtorch.autograd.grad_mode import (
    _force_original_view_tracking as _force_original_view_tracking,
)
from webtorch.autograd.grad_mode import is_multithreading_enabled as is_multithreading_enabled
from webtorch.autograd.grad_mode import is_view_replay_enabled as is_view_replay_enabled
from webtorch.autograd.graph import Node
from webtorch.tensors import tape
from webtorch.tensors.modes import mode
from webtorch.tensors.tape import AccumulateGrad as AccumulateGrad
from webtorch.tensors.tape import Cotangents, GradFn, GradientEdge, gradient_edge
from webtorch.tensors.tensor import Tensor

_as_tuple, _grad_postprocess = functional._tuple, functional._finish


class _Kept(type):
    def __instancecheck__(cls, other: object) -> bool:
        return isinstance(other, tape.SavedTensor)


class SavedTensor(metaclass=_Kept):
    """What keeps a tensor for a backward pass, to check for."""

    def __init__(self) -> None:
        """Raise RuntimeError."""
        raise RuntimeError("Trying to create a SavedTensor object from Python is forbidden.")


class DelayedError:
    """A function that gives what it is given, and raises RuntimeError once a backward pass comes to it."""

    def __init__(self, msg: str, num_inputs: int) -> None:
        """Take the message, and how many tensors are given."""
        self.msg, self.num_inputs = msg, num_inputs

    def __call__(self, *inputs: Tensor) -> Any:
        """Return the tensors, or the one."""
        edges = tuple(map(gradient_edge, inputs))
        return results_of(GradFn("Error", edges, _fail, (), self.msg), inputs)


Node.register(DelayedError)
Node.register(UndefinedGrad)


class Resize(Function):
    """The old form of `view`."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, sizes: tuple[int, ...]) -> Tensor:
        """Return a tensor of other sizes."""
        ctx.sizes = tensor.shape
        return tensor.contiguous().view(*sizes)

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Tensor, None]:
        """Return its gradient."""
        return grad_output.contiguous().view(ctx.sizes), None


def _fail(_gs: Cotangents, _saved: object, msg: object) -> Cotangents:
    raise RuntimeError(msg)


def _saved_tensors_hooks_is_enabled() -> bool:
    """Whether hooks of saved tensors may be used now."""
    return mode.hooks_disabled is None


def _get_current_graph_task_keep_graph() -> bool:
    """Whether the running backward pass keeps the graph; True while none runs."""
    return mode.task is None or mode.task.made().retain_graph


def _unsafe_set_version_counter(
    tensors: Tensor | Iterable[Tensor], versions: int | Iterable[int]
) -> None:
    """Have autograd believe that tensors were written so many times."""
    for tensor, version in zip(
        (tensors,) if isinstance(tensors, Tensor) else tensors,
        (versions,) if isinstance(versions, int) else versions,
        strict=True,
    ):
        if version < 0:
            raise RuntimeError(f"Cannot set a version_counter to a value below 0: {version}")
        tensor._counter.version = version


@contextlib.contextmanager
def _unsafe_preserve_version_counter(
    tensors: Tensor | tuple[Tensor, ...],
) -> Generator[None, None, None]:
    """Inside, what is written to tensors is not counted."""
    listed = (tensors,) if isinstance(tensors, Tensor) else tensors
    before = [t._version for t in listed]
    try:
        yield
    finally:
        _unsafe_set_version_counter(listed, before)


def _calculate_shape(
    output: Tensor | GradientEdge, grad: Tensor, is_grads_batched: bool
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the shapes of a result and of its cotangent, which must be the same."""
    shape = tape.meta_of(output[:2])[0] if isinstance(output, GradientEdge) else output.shape
    return shape, grad.shape[1:] if is_grads_batched else grad.shape


def _tuple_postprocess(res: Any, to_unpack: bool | tuple[bool, bool]) -> Any:
    """Return what a function gave without tuples that were put around it, of one level or two."""
    outer, inner = to_unpack if isinstance(to_unpack, tuple) else (to_unpack, True)
    res = res if inner else tuple(each[0] for each in res)
    return res if outer else res[0]
