"""`webtorch.overrides`: classes and modes that replace operations (`__torch_function__`). Floor 5.

What asks them is in `webtorch.tensors.override`. PyTorch's functions of these names do the same.
"""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import AbstractContextManager, contextmanager
from types import FunctionType
from typing import Any

from webtorch.dispatch.call import active, refuse_scripts
from webtorch.tensors import override
from webtorch.tensors.above import ask
from webtorch.tensors.override import state
from webtorch.tensors.tensor import Tensor

__all__ = [
    "BaseTorchFunctionMode",
    "TorchFunctionMode",
    "enable_reentrant_dispatch",
    "get_default_nowrap_functions",
    "get_ignored_functions",
    "get_overridable_functions",
    "get_testing_overrides",
    "handle_torch_function",
    "has_torch_function",
    "is_tensor_like",
    "is_tensor_method_or_property",
    "redispatch_function",
    "resolve_name",
    "wrap_torch_function",
]

Function = Callable[..., Any]

# Users look functions up by the module that they find them in. Whoever reads this has loaded it.
_PACKAGE = sys.modules["webtorch"]


def has_torch_function(relevant_args: Sequence[object]) -> bool:
    """Whether a mode is on, or an argument's class has a `__torch_function__` that is to be asked."""
    if not isinstance(relevant_args, Sequence):
        raise TypeError(f"expected a sequence, got {type(relevant_args).__name__}")
    if override.skipped():
        return False
    if state.modes and state.modes_asked:
        return True
    return state.classes and any(override.asks(type(x)) for x in relevant_args)


def has_torch_function_unary(arg: object) -> bool:
    """`has_torch_function` of one argument."""
    return has_torch_function((arg,))


def has_torch_function_variadic(*args: object) -> bool:
    """`has_torch_function` of several arguments."""
    return has_torch_function(args)


def handle_torch_function(
    public_api: Callable[..., object],
    relevant_args: Iterable[object],
    *args: object,
    **kwargs: object,
) -> Any:
    """Ask the innermost mode, then the classes of `relevant_args`, what to make of a call.

    Raises TypeError if nobody accepts.
    """
    return override.ask(public_api, relevant_args if state.classes else (), args, kwargs)


def wrap_torch_function(
    dispatcher: Callable[..., Iterable[object]],
) -> Callable[[Function], Function]:
    """Decorate a function that classes and modes may replace; `dispatcher` has its parameters and
    gives those that are asked.
    """

    def decorate(func: Callable[..., object]) -> Callable[..., object]:
        """Return the function that asks the dispatcher's arguments first."""

        @functools.wraps(func)
        def wrapped(*args: object, **kwargs: object) -> object:
            """Ask `__torch_function__` of the relevant arguments, else call the function."""
            relevant = tuple(dispatcher(*args, **kwargs))
            if has_torch_function(relevant):
                return handle_torch_function(wrapped, relevant, *args, **kwargs)
            return func(*args, **kwargs)

        return wrapped

    return decorate


def redispatch_function(
    func: Callable[..., object],
    types: Iterable[type[object]],
    args: Sequence[object],
    kwargs: object,
) -> Any:
    """Call a function within a `__torch_function__` without asking for this call; what it calls asks."""
    return override.unasked(func, types, args, kwargs)


def is_tensor_like(inp: object) -> bool:
    """Whether something is a tensor or offers `__torch_function__`."""
    return type(inp) is Tensor or hasattr(inp, "__torch_function__")


def is_tensor_method_or_property(func: Callable[..., object]) -> bool:
    """Whether what `__torch_function__` was given is a method, or the getter of a property, of Tensor."""
    return func.__name__ == "__get__" or func in get_overridable_functions()[Tensor]


def enable_reentrant_dispatch() -> AbstractContextManager[None]:
    """Return a block within a `__torch_dispatch__` where gradients are recorded as where the call was made."""
    found: AbstractContextManager[None] = ask("as_called")()
    return found


@functools.cache
def get_overridable_functions() -> dict[Any, list[Function]]:
    """Return the functions that ask classes, by module or class."""
    found: dict[Any, list[Any]] = {}
    for p in override.public_functions():
        if not p.only_modes:
            owner: object = _PACKAGE
            for part in p.name.split(".")[1 : 2 if "Tensor." in p.name else -1]:
                owner = getattr(owner, part)
            found.setdefault(owner, []).append(p.func)
    return found


@functools.cache
def get_testing_overrides() -> dict[Function, Function]:
    """Return for each function that asks classes one with its parameters that gives -1."""
    found: dict[Function, Function] = {}
    for func in {f for functions in get_overridable_functions().values() for f in functions}:
        stub: Any = lambda *args, **kwargs: -1  # noqa: E731
        stub.__signature__ = inspect.signature(func)
        found[func] = stub
    return found


@functools.cache
def get_ignored_functions() -> set[Function]:
    """Return the functions of `webtorch` and methods of Tensor that ask no class."""
    asked = {f for functions in get_overridable_functions().values() for f in functions}
    public: list[Any] = [
        f
        for owner in (_PACKAGE, Tensor)
        for name, f in vars(owner).items()
        if isinstance(f, FunctionType) and (not name.startswith("_") or name.startswith("__"))
    ]
    return set(public) - asked


def get_default_nowrap_functions() -> set[Function]:
    """Return the functions whose results `Tensor.__torch_function__` leaves as they are."""
    return override.nowrap()


def resolve_name(f: Callable[..., object]) -> str | None:
    """Return the public name of a function that asks ("torch.Tensor.add") or of an operator, None of others."""
    # Operators stand above this module.
    is_operator = hasattr(f, "_opname") or hasattr(f, "_qualified_op_name")
    return str(f) if is_operator else override.names().get(f)


class TorchFunctionMode:
    """A block in which `__torch_function__(self, func, types, args, kwargs)` is called for every
    function of PyTorch's API, also for those that make tensors. Inside of it, the modes around are on.
    """

    def __init__(self) -> None:
        """Take nothing."""

    def __torch_function__(
        self, func: Callable[..., object], types: object, args: object = (), kwargs: object = None
    ) -> object:
        """Return what the call gives. A mode defines this."""
        raise NotImplementedError

    def __enter__(self) -> Any:
        if isinstance(inspect.getattr_static(self, "__torch_function__"), classmethod):
            raise RuntimeError(
                "Defining your mode's `__torch_function__` as a classmethod is not supported, please make it a plain "
                "method"
            )
        override.askable()
        # It sees nothing of what was called before.
        refuse_scripts("a mode of __torch_function__ begins")
        active.add(1)
        state.modes = (*state.modes, self)
        return self

    def __exit__(self, *_: object) -> None:
        state.modes = state.modes[:-1]
        active.add(-1)

    @classmethod
    def push(cls, *args: object, **kwargs: object) -> Any:
        """Make a mode: `with Mode()` does the same."""
        return cls(*args, **kwargs)


class BaseTorchFunctionMode(TorchFunctionMode):
    """A mode that changes nothing."""

    def __torch_function__(
        self, func: Function, types: object, args: Any = (), kwargs: Any = None
    ) -> object:
        """Call the function."""
        return func(*args, **(kwargs or {}))


def _get_current_function_mode() -> object:
    """Return the innermost mode, or None."""
    return state.modes[-1] if state.modes else None


def _get_current_function_mode_stack() -> list[object]:
    """Return the modes that are on, outermost first."""
    return list(state.modes)


@contextmanager
def _pop_mode_temporarily() -> Generator[object, None, None]:
    """A block without the innermost mode."""
    before = state.modes
    state.modes = before[:-1]
    try:
        yield before[-1]
    finally:
        state.modes = before


class DisableTorchFunctionSubclass(override.Switch):
    """A block in which no class is asked, as inside of `Tensor.__torch_function__`. Modes are."""

    __slots__ = ()

    def __init__(self) -> None:
        """Take nothing."""
        super().__init__(classes=False)


class DisableTorchFunction(override.Switch):
    """A block in which no class and no mode is asked."""

    __slots__ = ()

    def __init__(self) -> None:
        """Take nothing."""
        super().__init__(classes=False, modes=False)
