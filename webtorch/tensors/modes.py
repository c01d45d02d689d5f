"""What a thread records: gradients or none, inference mode, and the transforms that run. Floor 4."""

from __future__ import annotations

import contextlib
import functools
import itertools
import threading
import warnings
from collections.abc import Callable, Collection, Generator, Iterator
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Protocol, Self, TypeVar, cast, overload

from webtorch.dispatch.call import Count, looking
from webtorch.ir.lines import user_depth

if TYPE_CHECKING:
    from webtorch.tensors.base import TensorBase
    from webtorch.tensors.engine import Backward
    from webtorch.tensors.storage import Storage
    from webtorch.tensors.tape import GradFn, SavedTensor


# What a mode decorates, which comes back with its own type.
_F = TypeVar("_F")
_pages: ContextVar[bool] = ContextVar("for_pages", default=False)


@contextlib.contextmanager
def for_pages() -> Iterator[None]:
    """Record on a CPU what other machines run, among them WebAssembly and adapters in software: attention with
    products, which do that faster, and Fourier transforms of products, as no other has NumPy's."""
    before = _pages.set(True)
    try:
        yield
    finally:
        _pages.reset(before)


def records_for_pages() -> bool:
    """Return whether `for_pages` is on."""
    return _pages.get()


class _Passes:
    """Backward passes: the numbers of those to come, and of the last."""

    numbers = itertools.count(1)
    last = 0


passes = _Passes()


class Task(Protocol):
    """A backward pass, as what runs within it sees it."""

    @property
    def callbacks(self) -> list[Callable[[], object]]:
        """What is called once all functions have run."""

    def reach(self) -> Collection[GradFn]:
        """Return the functions that it runs."""

    def made(self) -> Backward:
        """Return the pass itself."""


class Keeper(Protocol):
    """What knows of the values that are saved while tensors that are saved may be overwritten."""

    def note(self, kept: Storage, shared: Storage) -> None:
        """Remember what keeps the value that a storage has now."""

    def knows(self, kept: Storage) -> bool:
        """Whether what keeps a value may be read."""


class _Mode(threading.local):
    grad = True
    inference = False
    # (pack, unpack) of the innermost saved_tensors_hooks last.
    saved_hooks: tuple[tuple[Callable[[Any], Any], Callable[[Any], Any]], ...] = ()
    # Whether the running backward pass accumulates into every leaf (it was not given inputs).
    whole_backward = True
    # The vmaps that run (batching.Vmap) and the levels of forward-mode differentiation
    # (forward.Level), outermost first.
    vmaps: tuple[Any, ...] = ()
    # The numbers of the vmaps to come: no two have the same, but for those of a checkpoint that is computed again.
    numbers: Iterator[int] = itertools.count(1)
    forward: tuple[Any, ...] = ()
    # The differentiations of webtorch.func that run.
    transforms: tuple[Any, ...] = ()
    # The running backward pass, and within how many it runs.
    task: Task | None = None
    depth = 0
    # Whether a module is being exported, whose code may ask that.
    exporting = False
    # Why saved_tensors_hooks may not be used now, if they may not.
    hooks_disabled: str | None = None
    # Where what is saved keeps its value when the tensor is overwritten: who is told of it.
    mutation_allowed: Keeper | None = None
    # The levels of forward-mode differentiation, while none is followed.
    forward_paused: tuple[Any, ...] | None = None
    # Whether a view whose base was written names its gradient function as before.
    view_replay = False
    # What `set_multithreading_enabled` says.
    multithreading = True
    # Whether cotangents keep every vmap's dimension, also where their tensor has none.
    keeps_levels = False
    # Whether products of 16-bit floats give their float32 sums (`primitives.unrounded`).
    keeps_sums = False

    def __init__(self) -> None:
        # Saved tensors of the in-place operation that is being recorded.
        self.overwriting: list[SavedTensor] | None = None

    @property
    def forward_enabled(self) -> bool:
        """Whether forward mode follows what is computed."""
        return self.forward_paused is None

    @forward_enabled.setter
    def forward_enabled(self, value: bool) -> None:
        """Let forward mode rest, or go on with what was on before."""
        if value and self.forward_paused is not None:
            self.forward, self.forward_paused = self.forward_paused, None
        elif not value and self.forward_paused is None:
            self.forward, self.forward_paused = (), self.forward


mode = _Mode()
# What a thread goes on with that stands for another one.
carried: list[threading.local] = [mode]


def stand_in(function: Callable[..., object], *args: object) -> Any:
    """Call a function in another thread, which records what this one does: Python counts nested calls by thread."""
    kept = [dict(vars(one)) for one in carried]
    found: list[Any] = []
    failed: list[BaseException] = []

    def run() -> None:
        """Call the function with this thread's modes."""
        for one, values in zip(carried, kept, strict=True):
            vars(one).update(values)
        try:
            found.append(function(*args))
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=run, name="a deep backward pass")
    thread.start()
    thread.join()
    if failed:
        raise failed[0]
    return found[0]


# How many transforms are open, in all threads: vmaps, levels of forward mode, differentiations of webtorch.func.
# Asked before every operation: cheaper than a look at `mode`, which says what they are in this one.
transforms = Count(looking)


def hides_gradient(x: TensorBase) -> bool:
    """Whether a user sees no gradient at a tensor that has one: as in PyTorch, it belongs to the innermost transform
    that maps over it or has made it, and the engine differentiates outside of that.
    """
    level = x._levels[-1][0] if x._levels else -1
    inner = mode.transforms[-1] if mode.transforms else None
    if inner is None or inner.number < level or x._storage not in (inner.made or ()):
        return level >= 0
    return not inner.tracks(x)


def note_made(storage: Storage) -> None:
    """Note memory that is made while a transform runs, which may write it."""
    running = mode.transforms
    if running and running[-1].made is not None:
        running[-1].made.add(storage)


class _DecoratorContextManager(contextlib.ContextDecorator):
    """A context manager that decorates functions and generators, too: each step of these is within it."""

    def __enter__(self) -> Any:
        raise NotImplementedError

    def __exit__(self, *_: object) -> None:
        raise NotImplementedError

    def _recreate_cm(self) -> Self:
        return self.clone()

    def clone(self) -> Self:
        """Return a fresh context of the same kind."""
        return self.__class__()

    def __call__(self, func: _F) -> _F:
        import inspect

        if inspect.isgeneratorfunction(func):

            @functools.wraps(func)
            def generator(*args: object, **kwargs: object) -> Generator[object, object, object]:
                """Run the generator, each step of it within."""
                running = func(*args, **kwargs)
                # What the caller did at the last `yield`, to be passed on to the generator.
                resume: Callable[[], object] = functools.partial(next, running)
                while True:
                    try:
                        with self.clone():
                            item = resume()
                    except StopIteration as stop:
                        return stop.value
                    try:
                        resume = functools.partial(running.send, (yield item))
                    except GeneratorExit:
                        with self.clone():
                            running.close()
                        raise
                    except BaseException as error:
                        resume = functools.partial(running.throw, error)

            return cast(_F, generator)
        if isinstance(func, type):
            warnings.warn(
                "Decorating classes is deprecated and will be disabled in future versions. You should only decorate "
                "functions or methods. To preserve the current behavior of class decoration, you can directly decorate "
                "the `__init__` method and nothing else.",
                FutureWarning,
                stacklevel=user_depth(),
            )
            made: Any = func
            made.__init__ = self(made.__init__)
            return made
        return cast(_F, super().__call__(cast(Any, func)))


class _ModeContext(_DecoratorContextManager):
    """A context manager and decorator that sets the gradient mode."""

    _grad: bool

    def __init__(self) -> None:
        self._previous: list[tuple[bool, bool]] = []

    def _enter(self) -> None:
        mode.grad = self._grad

    def __enter__(self) -> Self:
        self._previous.append((mode.grad, mode.inference))
        self._enter()
        return self

    def __exit__(self, *_: object) -> None:
        mode.grad, mode.inference = self._previous.pop()


class _NoParamDecoratorContextManager(_DecoratorContextManager):
    """One that takes no arguments, so that `@no_grad` stands for `@no_grad()`."""

    @overload
    def __new__(cls, orig_func: None = None) -> Self: ...
    @overload
    def __new__(cls, orig_func: _F) -> _F: ...  # type: ignore[misc]
    def __new__(cls, orig_func: Any = None) -> Any:
        self = super().__new__(cls)
        if orig_func is None:
            return self
        self.__init__()  # type: ignore[misc]
        return self(orig_func)


class no_grad(_ModeContext, _NoParamDecoratorContextManager):
    """Operations inside are not recorded for backward."""

    _grad = False

    def __init__(self, orig_func: object = None) -> None:
        super().__init__()


class enable_grad(no_grad):
    """Operations inside are recorded, even within no_grad."""

    _grad = True


class unrecorded:
    """Nothing inside is recorded, neither for backward nor for tangents."""

    __slots__ = ("before",)

    def __enter__(self) -> None:
        self.before = mode.grad, mode.forward
        mode.grad, mode.forward = False, ()

    def __exit__(self, *_: object) -> None:
        mode.grad, mode.forward = self.before


class enable_hooks:
    """Inside, what is saved goes through the hooks of saved tensors that are on, or with `enabled` False not."""

    __slots__ = ("before", "enabled")

    def __init__(self, enabled: bool) -> None:
        self.enabled = enabled

    def __enter__(self) -> None:
        self.before = mode.saved_hooks
        if not self.enabled:
            mode.saved_hooks = ()

    def __exit__(self, *_: object) -> None:
        mode.saved_hooks = self.before


class set_grad_enabled(_ModeContext):
    """Set the gradient mode, at once and for a `with` block."""

    def __init__(self, mode: bool) -> None:
        super().__init__()
        self._grad = bool(mode)
        self._first = globals()["mode"].grad
        globals()["mode"].grad = self._grad

    def __enter__(self) -> Self:
        self._previous.append((self._first, mode.inference))
        mode.grad = self._grad
        return self

    def __call__(self, func: _F) -> _F:
        mode.grad = self._first
        return super().__call__(func)

    def clone(self) -> Self:
        """Return a fresh context with the same setting."""
        return self.__class__(self._grad)


class _Switch(contextlib.ContextDecorator):
    """Sets a flag of the mode, at once and for a `with` block."""

    _flag: str

    def __init__(self, mode: bool) -> None:
        self.before = getattr(globals()["mode"], self._flag)
        self.mode = mode
        setattr(globals()["mode"], self._flag, mode)

    def __enter__(self) -> None:
        setattr(mode, self._flag, self.mode)

    def __exit__(self, *_: object) -> None:
        setattr(mode, self._flag, self.before)

    def clone(self) -> Self:
        """Return a fresh context with the same setting."""
        return type(self)(self.mode)


class force_original_view_tracking(_Switch):
    """Whether a view whose base was written keeps the name of its gradient function (PyTorch: is computed as it was
    made); else it is one by strides.
    """

    _flag = "view_replay"


class set_multithreading_enabled(_Switch):
    """Whether PyTorch's backward pass may use several threads: here it runs in the thread that calls it."""

    _flag = "multithreading"


class set_forward_enabled(_Switch):
    """Whether forward mode follows what is computed."""

    _flag = "forward_enabled"


def is_view_replay_enabled() -> bool:
    """Return whether views keep the names of their gradient functions when their bases are written."""
    return mode.view_replay


def is_multithreading_enabled() -> bool:
    """Return what `set_multithreading_enabled` was told."""
    return mode.multithreading


class inference_mode(_ModeContext):
    """Like no_grad; tensors made inside can never require gradients."""

    def __init__(self, mode: bool = True) -> None:
        super().__init__()
        self._on = bool(mode)
        self._grad = not self._on

    @overload
    def __new__(cls, mode: bool = True) -> Self: ...
    @overload
    def __new__(cls, mode: _F) -> _F: ...  # type: ignore[misc]
    def __new__(cls, mode: Any = True) -> Any:
        if isinstance(mode, bool):
            return super().__new__(cls)
        return cls()(mode)

    def _enter(self) -> None:
        mode.grad, mode.inference = self._grad, self._on

    def clone(self) -> Self:
        """Return a fresh context with the same setting."""
        return self.__class__(self._on)


def is_grad_enabled() -> bool:
    """Return whether operations are recorded for backward now."""
    return mode.grad


def is_inference_mode_enabled() -> bool:
    """Return whether inference mode is on."""
    return mode.inference


def in_transform() -> bool:
    """Whether a transform of webtorch.func runs."""
    return bool(mode.transforms or mode.vmaps)
