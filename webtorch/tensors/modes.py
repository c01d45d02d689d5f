"""What a thread records: gradients or none, inference mode, and the transforms that run. Floor 4."""

from __future__ import annotations

import contextlib
import functools
import itertools
import threading
from collections.abc import Callable, Container, Generator, Iterator
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol

from webtorch.dispatch.call import Count, looking

if TYPE_CHECKING:
    from webtorch.tensors.tape import GradFn, SavedTensor


class Task(Protocol):
    """A backward pass, as what runs within it sees it."""

    @property
    def callbacks(self) -> list[Callable[[], object]]:
        """What is called once all functions have run."""

    def reach(self) -> Container[GradFn]:
        """Return the functions that it runs."""


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
    # The running backward pass.
    task: Task | None = None
    # Whether a module is being exported, whose code may ask that.
    exporting = False
    # Why saved_tensors_hooks may not be used now, if they may not.
    hooks_disabled: str | None = None
    # Whether what is saved keeps its value when the tensor is overwritten.
    mutation_allowed = False
    # Whether cotangents keep every vmap's dimension, also where their tensor has none.
    keeps_levels = False
    # Whether products of 16-bit floats give their float32 sums (`primitives.unrounded`).
    keeps_sums = False

    def __init__(self) -> None:
        # Saved tensors of the in-place operation that is being recorded.
        self.overwriting: list[SavedTensor] | None = None


mode = _Mode()


# How many transforms are open, in all threads: vmaps, levels of forward mode, differentiations of webtorch.func.
# Asked before every operation: cheaper than a look at `mode`, which says what they are in this one.
transforms = Count(looking)


class _ModeContext(contextlib.ContextDecorator):
    """A context manager and decorator that sets the gradient mode; generators are driven in the
    mode too.
    """

    _grad: bool

    def __init__(self) -> None:
        self._previous: list[tuple[bool, bool]] = []

    def _enter(self) -> None:
        mode.grad = self._grad

    def __enter__(self) -> Any:
        self._previous.append((mode.grad, mode.inference))
        self._enter()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        mode.grad, mode.inference = self._previous.pop()

    def _recreate_cm(self) -> Any:
        return self.clone()

    def clone(self) -> Any:
        """Return a fresh context of the same kind."""
        return self.__class__()

    def __call__(self, func: Any) -> Any:
        import inspect

        if inspect.isgeneratorfunction(func):

            @functools.wraps(func)
            def generator(*args: object, **kwargs: object) -> Generator[Any, Any, Any]:
                """Run the generator, each step of it in the mode."""
                running = func(*args, **kwargs)
                # What the caller did at the last `yield`, to be passed on to the generator in the mode.
                resume: Callable[[], object] = functools.partial(next, running)
                try:
                    while True:
                        try:
                            with self.clone():
                                item = resume()
                        except StopIteration as stop:
                            return stop.value
                        try:
                            resume = functools.partial(running.send, (yield item))
                        except GeneratorExit:
                            raise
                        except BaseException as error:
                            resume = functools.partial(running.throw, error)
                finally:
                    with self.clone():
                        running.close()

            return generator
        return super().__call__(func)


class no_grad(_ModeContext):
    """Operations inside are not recorded for backward."""

    _grad = False

    def __new__(cls, orig_func: object = None) -> Any:
        self = super().__new__(cls)
        if orig_func is None:
            return self
        self.__init__()  # type: ignore[misc]
        return self(orig_func)

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

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        mode.grad, mode.forward = self.before


class set_grad_enabled(_ModeContext):
    """Set the gradient mode, at once and for a `with` block."""

    def __init__(self, mode: bool) -> None:
        super().__init__()
        self._grad = bool(mode)
        self._first = globals()["mode"].grad
        globals()["mode"].grad = self._grad

    def __enter__(self) -> Any:
        self._previous.append((self._first, mode.inference))
        mode.grad = self._grad
        return self

    def __call__(self, func: object) -> Any:
        mode.grad = self._first
        return super().__call__(func)

    def clone(self) -> Any:
        """Return a fresh context with the same setting."""
        return self.__class__(self._grad)


class inference_mode(_ModeContext):
    """Like no_grad; tensors made inside can never require gradients."""

    def __init__(self, mode: bool = True) -> None:
        super().__init__()
        self._on = bool(mode)
        self._grad = not self._on

    def __new__(cls, mode: object = True) -> Any:
        if isinstance(mode, bool):
            return super().__new__(cls)
        return cls()(mode)

    def _enter(self) -> None:
        mode.grad, mode.inference = self._grad, self._on

    def clone(self) -> Any:
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
