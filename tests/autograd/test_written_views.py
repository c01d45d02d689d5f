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


def _functions(t: Any) -> Any:
    class Flat(t.autograd.Function):  # type: ignore[misc, name-defined]
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            return x.view(-1)

        @staticmethod
        def backward(ctx: Any, g: Any) -> Any:
            return g.view(2, 3)

    class Same(t.autograd.Function):  # type: ignore[misc, name-defined]
        @staticmethod
        def forward(ctx: Any, *xs: Any) -> Any:
            return xs if len(xs) > 1 else xs[0]

        @staticmethod
        def backward(ctx: Any, *gs: Any) -> Any:
            return gs

    return Flat, Same


def _hooked(t: Any, x: Any) -> Any:
    layer = t.nn.Identity()
    layer.register_full_backward_hook(lambda *given: None)
    return layer(x)


def _in_mode(mode: str) -> Callable[[Any, Any], Any]:
    def made(t: Any, x: Any) -> Any:
        with getattr(t, mode)():
            return x.view(-1)

    return made


# How a view is made of a tensor.
MADE: dict[str, Callable[[Any, Any], Any]] = {
    "function": lambda t, x: _functions(t)[0].apply(x),
    "part": lambda t, x: _functions(t)[0].apply(x)[1:],
    "input": lambda t, x: _functions(t)[1].apply(x),
    "two": lambda t, x: _functions(t)[1].apply(x * 2, x)[1],
    "hooked": _hooked,
    "no_grad": _in_mode("no_grad"),
    "inference": _in_mode("inference_mode"),
    "unbind": lambda t, x: x.unbind(0)[1],
    "plain": lambda t, x: x.view(-1),
}


def _unrecorded(t: Any, x: Any) -> None:
    with t.no_grad():
        x[0].mul_(2)


WRITES: dict[str, Callable[[Any, Any, Any], Any]] = {
    "nothing": lambda t, x, v: None,
    "base": lambda t, x, v: x.mul_(2),
    "base_detached": lambda t, x, v: x.detach().mul_(2),
    "base_unrecorded": lambda t, x, v: _unrecorded(t, x),
    "base_data": lambda t, x, v: x.data.mul_(2),
    "view": lambda t, x, v: v.mul_(2),
    "view_detached": lambda t, x, v: v.detach().mul_(2),
    "late_leaf": lambda t, x, v: x.detach().mul_(2) is None or x.requires_grad_(),
}
LOOKS: dict[str, Callable[[Any, Any, Any], Any]] = {
    "function": lambda t, x, v: v.grad_fn is None or v.grad_fn.name(),
    "leaf": lambda t, x, v: v.is_leaf,
    "flag": lambda t, x, v: (v.requires_grad, v._base is x, v.detach().tolist()),
    "use": lambda t, x, v: (v * 1).requires_grad,
    "view": lambda t, x, v: v.view(-1).requires_grad,
    "hook": lambda t, x, v: v.grad_fn is None or v.register_hook(lambda g: None) is None,
    "retain": lambda t, x, v: v.retain_grad(),
    "mark": lambda t, x, v: v.requires_grad_().requires_grad,
    "gradient": lambda t, x, v: t.autograd.grad(v.sum(), x)[0].tolist(),
    "end": lambda t, x, v: t.autograd.grad((x * 3).sum(), v, allow_unused=True)[0] is None,
    "write": lambda t, x, v: v.add_(1).tolist(),
    "text": lambda t, x, v: "Invalid" in str(v),
}


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("made", MADE)
def test_a_view_knows_of_writes_to_its_memory(made: str, source: str) -> None:
    for write in WRITES.values():
        for look in LOOKS.values():

            def run(t: Any, write: Any = write, look: Any = look) -> Any:
                x = SOURCES[source](t)
                v = MADE[made](t, x)
                write(t, x, v)
                return look(t, x, v)

            _same(run)


def test_writes_that_change_no_element_are_counted() -> None:
    def run(t: Any) -> list[Any]:
        x, empty = t.ones(2, 3), t.ones(0, 3)
        x.t_()
        x.squeeze_()
        empty.mul_(2)
        y = t.ones(2, 3, requires_grad=True) * 1
        v = y[0]
        y.t_()
        return [x._version, empty._version, y._version, v.grad_fn.name(), v.tolist()]

    _same(run)
