"""`torch.futures`: values that come later. Floor 5.

What is added to a future (`then`) runs in the thread that waits for it, or that asks whether it is done.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from threading import Event
from typing import Any, Generic, TypeVar

T = TypeVar("T")
S = TypeVar("S")

__all__ = ["Future", "collect_all", "wait_all"]


class Future(Generic[T]):
    """A value, or an error, that is set once."""

    def __init__(self, *, devices: object = None) -> None:
        """`devices` has no meaning here: work is in order on each device."""
        self._value: Any = None
        self._error: BaseException | None = None
        self._done = False
        self._event = Event()
        self._callbacks: list[Callable[[Future[T]], object]] = []
        # What this waits for: returns whether it is there, and sets the value.
        self._comes: Callable[[bool], bool] | None = None

    def _look(self, wait: bool) -> bool:
        comes = self._comes
        if not self._done and comes is not None:
            comes(wait)
        return self._done

    def done(self) -> bool:
        """Whether there is a value or an error."""
        return self._look(False)

    def wait(self) -> T:
        """Wait for the value and return it, or raise the error."""
        if not self._look(True):
            # Another thread sets it.
            self._event.wait()
        return self.value()

    def value(self) -> T:
        """Return the value, or raise the error."""
        if not self._look(False):
            raise RuntimeError("Future.value: it is not there yet; wait() first")
        if self._error is not None:
            raise self._error
        return self._value

    def set_result(self, result: T) -> None:
        """Set the value."""
        if self._done:
            raise RuntimeError("Future can only be marked completed once")
        self._value, self._done, self._comes = result, True, None
        self._call_back()

    def set_exception(self, result: BaseException) -> None:
        """Set the error, which whoever waits gets."""
        assert isinstance(result, Exception), (
            f"{result} is of type {type(result)}, not an Exception."
        )
        self._error, self._done, self._comes = result, True, None
        self._call_back()

    def _call_back(self) -> None:
        self._event.set()
        callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            callback(self)

    def add_done_callback(self, callback: Callable[[Future[T]], None]) -> None:
        """Call `callback(self)` when the value is there."""
        if self.done():
            callback(self)
        else:
            self._callbacks.append(callback)

    def then(self, callback: Callable[[Future[T]], S]) -> Future[S]:
        """Return a future of what `callback(self)` returns."""
        made: Future[S] = Future()

        def finish(before: Future[T]) -> None:
            """Give what the callback makes of the result, or raises."""
            try:
                made.set_result(callback(before))
            except Exception as error:
                made.set_exception(error)

        def comes(wait: bool) -> bool:
            """Whether the first future is done, which runs the callback."""
            return self._look(wait)

        made._comes = comes
        self.add_done_callback(finish)
        return made


def collect_all(futures: Sequence[Future[Any]]) -> Future[list[Future[Any]]]:
    """Return a future of the futures, once all are done."""
    given = list(futures)
    made: Future[list[Future[Any]]] = Future()

    def comes(wait: bool) -> bool:
        """Return whether all have come; they are waited for on demand."""
        if not made._done and [f for f in given if not f._look(wait)] == []:
            made.set_result(given)
        return made._done

    made._comes = comes
    return made


def wait_all(futures: Sequence[Future[Any]]) -> list[Any]:
    """Wait for all, and return their values; the first error is raised."""
    return [value.wait() for value in collect_all(futures).wait()]
