"""Whether tensors may be other than they were: while nothing has changed one, what was compared once is not again.

Whatever changes what a tensor is like (its shape, memory, history, hooks, flags) is a call, and those that follow a
script change nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from webtorch.dispatch.call import Args, Callee, Kwargs, interpreted
from webtorch.tensors.base import TensorBase
from webtorch.tensors.tensor import Tensor


class _Changes:
    """How many calls may have changed what tensors are like that were there before, in all threads."""

    count = 0


changes = _Changes()


def made_as_usual(callee: Callee, args: Args, kwargs: Kwargs) -> Any:
    """Make a call, and count whether it may have changed tensors that were there."""
    role = callee.role
    if role == "reader" or role == "gradient":
        return interpreted(callee, args, kwargs)
    known = role == "operation"
    given = list(tensors_in((*args, *kwargs.values()))) if known else []
    before = [_state(t) for t in given]
    try:
        return interpreted(callee, args, kwargs)
    finally:
        if not known or [_state(t) for t in given] != before:
            changes.count += 1


def tensors_in(values: Iterable[object]) -> Iterator[Tensor]:
    """Iterate over the tensors among values, and in sequences and dicts of such."""
    for v in values:
        if isinstance(v, Tensor):
            yield v
        elif isinstance(v, (tuple, list)):
            yield from tensors_in(v)
        elif isinstance(v, dict):
            yield from tensors_in(v.values())


# Past `__getattr__`, which would make it.
_history_of: Callable[[Tensor], object] = vars(TensorBase)["_grad_fn"].__get__
# Instead of a gradient function that is made when somebody looks.
PROMISED = object()


def history_of(t: Tensor) -> object:
    """Return a tensor's gradient function, or what stands for one that is promised."""
    try:
        return _history_of(t)
    except AttributeError:
        return PROMISED


def _state(t: Tensor) -> tuple[object, ...]:
    storage = t._storage
    return (
        id(storage), storage.elements, storage.version, t._shape, t._strides, t._offset, id(history_of(t)),
        t._requires_grad,
    )  # fmt: skip


def is_computed(out: object) -> bool:
    """Whether what a call gave has its value, and no part in a graph."""
    if isinstance(out, (tuple, list)):
        return all(map(is_computed, out))
    if not isinstance(out, Tensor):
        return True
    # A view of a leaf that has no part in its graph may get one, as a user's function gives it.
    apart = out._base is None or not out._base._requires_grad
    return out._storage.node.kind == "buffer" and not out._requires_grad and apart


def lie_alike(*tensors: Tensor) -> bool:
    """Whether two tensors have one form, in their memory as well."""
    first, second = [(t._shape, t._strides, t._offset, t._whole, t.dtype) for t in tensors]
    return first == second


def plain_offsets(out: object) -> None:
    """Let views say their offsets as they usually do."""
    if isinstance(out, (tuple, list)):
        for o in out:
            plain_offsets(o)
    elif isinstance(out, Tensor):
        out._offset = int(out._offset)
