"""`torch.utils._python_dispatch`: modes that are handed calls of operators (`webtorch.aten.dispatch`). Floor 6."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any, Self

# The calls of which functions these operators are.
from webtorch.aten import parts as parts
from webtorch.aten.dispatch import OpOverload, dispatches, state
from webtorch.dispatch.call import active, refuse_scripts
from webtorch.tensors.tensor import Tensor

__all__ = ["TorchDispatchMode"]


class TorchDispatchMode:
    """A block in which `__torch_dispatch__(self, func, types, args, kwargs)` is called for every operator. Inside of
    it, the modes around are on.
    """

    # Whether it sees operators as users call them, also those that PyTorch writes with others.
    whole = False

    def __init__(self, _dispatch_key: object = None) -> None:
        """Take nothing."""

    def __torch_dispatch__(
        self, func: OpOverload, types: object, args: object = (), kwargs: object = None
    ) -> Any:
        """Return what the operator gives. A mode defines this."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        # It sees nothing of what was called before.
        refuse_scripts("a mode of __torch_dispatch__ begins")
        active.add(1)
        state.modes = (*state.modes, self)
        return self

    def __exit__(self, *_: object) -> None:
        state.modes = state.modes[:-1]
        active.add(-1)

    @classmethod
    def push(cls, *args: object, **kwargs: object) -> Self:
        """Make a mode: `with Mode()` does the same."""
        return cls(*args, **kwargs)

    @classmethod
    def is_infra_mode(cls) -> bool:
        """Whether it is part of PyTorch's own compiler: none is."""
        return False


def _get_current_dispatch_mode() -> object:
    """Return the innermost mode, or None."""
    return state.modes[-1] if state.modes else None


def _get_current_dispatch_mode_stack() -> list[object]:
    """Return the modes that are on, outermost first."""
    return list(state.modes)


@contextlib.contextmanager
def _without(count: int | None) -> Iterator[object]:
    before = state.modes
    state.modes = before[:-count] if count else ()
    try:
        yield before[-1] if count else list(before)
    finally:
        state.modes = before


def _pop_mode_temporarily() -> object:
    """A block without the innermost mode."""
    return _without(1)


def _disable_current_modes() -> object:
    """A block without modes."""
    return _without(None)


@contextlib.contextmanager
def no_dispatch() -> Iterator[None]:
    """A block in which no class and no mode is asked for kernels."""
    before = state.classes
    state.classes = False
    try:
        with _without(None):
            yield
    finally:
        state.classes = before


def is_traceable_wrapper_subclass(t: object) -> bool:
    """Whether a tensor says which tensors it is made of."""
    return (
        isinstance(t, Tensor)
        and dispatches(type(t))
        and hasattr(t, "__tensor_flatten__")
        and hasattr(t, "__tensor_unflatten__")
    )


def return_and_correct_aliasing(
    func: OpOverload, args: Sequence[object], kwargs: object, out: object
) -> Any:
    """Return what a `__torch_dispatch__` ends with: what the operator writes to is returned itself."""
    arguments = func._schema.arguments
    written = [x for a, x in zip(arguments, args, strict=False) if a.is_write]
    return (
        written[0]
        if len(written) == 1 and func._schema.returns[:1] and not isinstance(out, tuple)
        else out
    )
