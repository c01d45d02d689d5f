"""Views that may not be written where gradients are recorded: those of PyTorch, with its words."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch

import webtorch


def _leaf(t: Any) -> Any:
    return t.ones(2, 3, requires_grad=True)


def _computed(t: Any) -> Any:
    return _leaf(t) * 1


def _plain(t: Any) -> Any:
    return t.ones(2, 3)


SOURCES = {"leaf": _leaf, "computed": _computed, "plain": _plain}
# Functions that return several views, and some that PyTorch lets be written.
SEVERAL: dict[str, Callable[[Any, Any], Any]] = {
    "unbind": lambda t, x: x.unbind(0),
    "iteration": lambda t, x: tuple(x),
    "split": lambda t, x: x.split(1),
    "split_sizes": lambda t, x: x.split([1, 1]),
    "split_with_sizes": lambda t, x: t.split_with_sizes(x, [1, 1]),
    "chunk": lambda t, x: t.chunk(x, 2),
    "tensor_split": lambda t, x: x.tensor_split(2),
    "hsplit": lambda t, x: x.hsplit([1]),
    "unsafe_split": lambda t, x: x.unsafe_split(1),
    "unsafe_chunk": lambda t, x: x.unsafe_chunk(2),
    "part_of_a_part": lambda t, x: [part[0] for part in x.split(1)],
    "one": lambda t, x: [x[0], x.view(-1)],
}


def _same(run: Callable[[Any], Any]) -> None:
    """Compare what two libraries give or say."""
    try:
        expected = run(torch)
    except RuntimeError as error:
        with pytest.raises(RuntimeError, match=re.escape(str(error))):
            run(webtorch)
        return
    assert run(webtorch) == expected


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("name", SEVERAL)
@pytest.mark.parametrize("mode", ["grad", "no_grad", "made_in_no_grad", "by_gradients", "base"])
def test_one_of_several_views_is_written_as_in_pytorch(name: str, source: str, mode: str) -> None:
    def run(t: Any) -> Any:
        """Write into one of the views, or into what they are views of."""
        x = SOURCES[source](t)
        with t.set_grad_enabled(mode != "made_in_no_grad"):
            views = SEVERAL[name](t, x)
        if mode == "base":
            x.mul_(2)
            return views[1].grad_fn is None
        with t.set_grad_enabled(mode != "no_grad"):
            views[1].mul_(_leaf(t).sum() if mode == "by_gradients" else 2)
        return x.tolist(), x.requires_grad, [v.requires_grad for v in views]

    _same(run)


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("mode", ["no_grad", "inference_mode"])
def test_a_view_made_without_gradients_says_what_its_base_says(source: str, mode: str) -> None:
    def run(t: Any) -> Any:
        """Return what a view tells of itself, and what is computed with it."""
        x = SOURCES[source](t)
        with getattr(t, mode)():
            view = x[0]
            part = view[:1]
            inside = (view * 2).requires_grad
        later = view[:1]
        return (
            [(v.requires_grad, v.is_leaf, v.grad_fn is None) for v in (view, part)],
            (later.requires_grad, later.grad_fn is None),
            inside,
            (view * 2).requires_grad,
            all(v._base is x for v in (view, part, later)),
        )

    _same(run)


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("mode", ["no_grad", "inference_mode"])
@pytest.mark.parametrize("part", [False, True])
def test_a_view_made_without_gradients_is_not_written_with_them(
    source: str, mode: str, part: bool
) -> None:
    def run(t: Any) -> Any:
        """Write into a view, or into a view of it that was made later."""
        x = SOURCES[source](t)
        with getattr(t, mode)():
            view = x[0]
        (view[:1] if part else view).mul_(_leaf(t).sum())
        return x.tolist()

    _same(run)


def test_no_gradient_reaches_a_view_made_without_gradients() -> None:
    def run(t: Any) -> Any:
        """Differentiate what is computed with such a view."""
        x = _leaf(t)
        with t.no_grad():
            view = x[0]
        (view * x[1]).sum().backward()
        return view.grad, x.grad.tolist()

    _same(run)


def test_a_view_that_a_function_returns_is_not_written() -> None:
    def run(t: Any) -> Any:
        """Write into what a custom Function made a view of its argument."""

        class Flat(t.autograd.Function):  # type: ignore[misc,name-defined]
            @staticmethod
            def forward(ctx: Any, x: Any) -> Any:
                return x.view(-1)

            @staticmethod
            def backward(ctx: Any, g: Any) -> Any:
                return g.view(2, 3)

        Flat.apply(_computed(t)).mul_(2)

    _same(run)
