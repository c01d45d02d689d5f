"""no_grad, enable_grad, set_grad_enabled and inference_mode: as contexts, decorators and on generators."""

from __future__ import annotations

import threading
from typing import Any

import pytest

import webtorch
from tests.autograd.both import error, same, tensor


@pytest.mark.parametrize(
    "make",
    [
        lambda t: t.no_grad(),
        lambda t: t.enable_grad(),
        lambda t: t.set_grad_enabled(False),
        lambda t: t.set_grad_enabled(True),
        lambda t: t.inference_mode(),
        lambda t: t.inference_mode(False),
    ],
    ids=["no_grad", "enable_grad", "set_false", "set_true", "inference", "inference_false"],
)
def test_a_mode_holds_inside_and_ends(make: Any) -> None:
    def program(t: Any) -> Any:
        x, seen = tensor(t, [1.0]), []

        def note() -> None:
            seen.append((t.is_grad_enabled(), t.is_inference_mode_enabled(), (x * 2).requires_grad))

        for outer in (t.enable_grad, t.no_grad):
            with outer():
                note()
                with make(t):
                    note()
                    with t.no_grad():
                        note()
                    note()
                note()
                try:
                    with make(t):
                        raise KeyError
                except KeyError:
                    note()
            note()
        t.set_grad_enabled(True)
        return seen

    same(program)


def test_decorators_with_and_without_brackets_and_repeated_calls() -> None:
    def program(t: Any) -> Any:
        x = tensor(t, [1.0])

        @t.no_grad()
        def a(n: int) -> Any:
            """Doc of a."""
            return [(x * 2).requires_grad, *(a(n - 1) if n else [])]

        @t.no_grad
        def b() -> bool:
            return (x * 2).requires_grad

        @t.inference_mode()
        def c() -> Any:
            return (x * 2).is_inference()

        @t.inference_mode
        def d() -> Any:
            return (x * 2).is_inference()

        @t.set_grad_enabled(False)
        def e() -> bool:
            return (x * 2).requires_grad

        @t.enable_grad()
        def f() -> bool:
            return (x * 2).requires_grad

        with t.no_grad():
            inside = f()
        return a(2), b(), c(), d(), e(), f(), inside, a.__name__, a.__doc__, t.is_grad_enabled()

    same(program)


def test_generators_run_in_the_mode_and_their_callers_do_not() -> None:
    def program(t: Any) -> Any:
        x, seen = tensor(t, [1.0]), []

        @t.no_grad()
        def numbers() -> Any:
            got = yield (x * 2).requires_grad
            seen.append(("sent", got, t.is_grad_enabled()))
            try:
                yield (x * 3).requires_grad
            except KeyError:
                seen.append(("thrown", t.is_grad_enabled()))
                yield "after"
            finally:
                seen.append(("closed", t.is_grad_enabled()))
            return "end"

        running = numbers()
        seen.append((next(running), t.is_grad_enabled()))
        seen.append((running.send("hello"), t.is_grad_enabled()))
        seen.append((running.throw(KeyError()), t.is_grad_enabled()))
        try:
            next(running)
        except StopIteration as stop:
            seen.append(stop.value)
        early = numbers()
        next(early)
        early.send(None)
        early.close()
        return seen, t.is_grad_enabled()

    same(program)


def test_set_grad_enabled_as_a_function() -> None:
    def program(t: Any) -> Any:
        seen = []
        t.set_grad_enabled(False)
        seen.append(t.is_grad_enabled())
        t.set_grad_enabled(True)
        seen.append(t.is_grad_enabled())
        with t.set_grad_enabled(mode=False):
            seen.append(t.is_grad_enabled())
        seen.append(t.is_grad_enabled())
        return seen

    same(program)


def test_inference_tensors() -> None:
    def program(t: Any) -> Any:
        x = tensor(t, [1.0])
        with t.inference_mode():
            y = x * 2
            y.add_(1)
        normal = tensor(t, [3.0], False)
        return (
            y.is_inference(),
            x.is_inference(),
            y.requires_grad,
            error(lambda: y.requires_grad_()),
            (normal * y).is_inference(),
            error(lambda: (x * y).sum().backward()),
            error(lambda: y.clone().requires_grad_()),
        )

    same(program)


def test_modes_belong_to_their_thread() -> None:
    seen = []
    with webtorch.no_grad():
        thread = threading.Thread(target=lambda: seen.append(webtorch.is_grad_enabled()))
        thread.start()
        thread.join()
        seen.append(webtorch.is_grad_enabled())
    assert seen == [True, False]


def test_requires_grad_of_what_is_made_in_no_grad() -> None:
    def program(t: Any) -> Any:
        with t.no_grad():
            made = tensor(t, [1.0])
            w = t.zeros(2, dtype=t.float64, requires_grad=True)
        return made.requires_grad, w.requires_grad, w.is_leaf

    same(program)


def test_an_in_place_write_to_a_view_made_in_no_grad() -> None:
    def program(t: Any) -> Any:
        base = tensor(t, [1.0, 2.0]) * 1
        with t.no_grad():
            view = base[:1]
            view.mul_(3)
        return base

    same(program)
