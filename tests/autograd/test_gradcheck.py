"""Gradient checks: what they find, and in which words; PyTorch's are the reference."""

from __future__ import annotations

import warnings
from importlib import import_module
from typing import Any

import pytest
import torch

import webtorch
from tests.autograd.both import error, same


def _point(t: Any, *shape: int) -> Any:
    return t.ones(shape, dtype=t.float64).requires_grad_()


def _with_hook(change: Any) -> Any:
    def function(x: Any) -> Any:
        y = x.clone()
        y.register_hook(change)
        return y

    return function


def _undefined(x: Any) -> Any:
    if x is None:
        raise RuntimeError("there is no gradient")


def _incorrect(t: Any) -> Any:
    class Other(t.autograd.Function):  # type: ignore[misc,name-defined]
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            return x.clone()

        @staticmethod
        def backward(ctx: Any, g: Any) -> Any:
            return g.to_sparse()

    return Other.apply


def _by_value(x: Any) -> Any:
    return x.repeat(2) if bool((x >= 1).all()) else x


CHECKS = {
    "a real output": lambda t: ((_with_hook(lambda g: g + 0.01), (_point(t, 2),)), {}),
    "the imaginary part": lambda t: (
        (
            _with_hook(lambda g: g + 0.01),
            (t.ones(2, dtype=t.complex128).requires_grad_(),),
        ),
        {},
    ),
    "no gradient": lambda t: ((_with_hook(_undefined), (_point(t, 1),)), {}),
    "zeros": lambda t: ((_with_hook(lambda g: g + 0.01), (_point(t, 1),)), {"atol": 0.1}),
    "layout": lambda t: ((_incorrect(t), (_point(t, 1),)), {}),
    "shape": lambda t: ((_by_value, (_point(t, 1),)), {}),
    "nothing": lambda t: (
        (lambda x: x, (_point(t, 1),)),
        {"check_backward_ad": False},
    ),
    "a stride of 0": lambda t: ((lambda x: x, (_point(t, 1).expand(2, 2),)), {}),
    "no inputs": lambda t: ((lambda x: x, (t.ones(1),)), {}),
    "a sparse output": lambda t: ((lambda x: x.to_sparse(), (_point(t, 2),)), {}),
}


@pytest.mark.parametrize("fast", [False, True])
@pytest.mark.parametrize("name", CHECKS)
def test_what_is_wrong_is_said_in_the_words_of_pytorch(name: str, fast: bool) -> None:
    def program(t: Any) -> Any:
        args, options = CHECKS[name](t)
        found = error(lambda: t.autograd.gradcheck(*args, fast_mode=fast, **options))
        assert found is not None
        return found[:60]

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        same(program)


@pytest.mark.filterwarnings("ignore:Sparse")
@pytest.mark.parametrize("layout", ["sparse_coo", "sparse_csr", "sparse_csc"])
def test_what_sparse_inputs_keep_is_checked(layout: str) -> None:
    for t in (torch, webtorch):
        x = t.tensor([[1.0, 0.0, 2.0], [0.0, 3.0, 0.0]], dtype=t.float64)
        x = x.to_sparse(layout=getattr(t, layout)).requires_grad_()
        w = _point(t, 2, 3)

        def function(x: Any, w: Any) -> Any:
            return x.to_dense() * w

        for fast in (False, True):
            assert t.autograd.gradcheck(function, (x, w), masked=True, fast_mode=fast)


def test_the_old_functions_give_jacobians() -> None:
    def program(t: Any) -> Any:
        checks = import_module(f"{t.__name__}.autograd.gradcheck")
        a, b = _point(t, 2), _point(t, 2)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)
            numerical = checks.get_numerical_jacobian(
                lambda xs: (2 * xs[0] + xs[1], xs[0]), (a, b), eps=1e-6
            )
            exact, reentrant, *_ = checks.get_analytical_jacobian((a, b), 2 * a + b)
        return (
            [x.round(decimals=4).tolist() for x in numerical],
            [x.tolist() for x in exact],
            reentrant,
        )

    same(program)


def test_functions_are_given_inputs_without_gradients_by_forward_mode() -> None:
    def program(t: Any) -> Any:
        counts = []

        class Both(t.autograd.Function):  # type: ignore[misc,name-defined]
            @staticmethod
            def forward(ctx: Any, x: Any, y: Any) -> Any:
                if t.autograd.forward_ad._current_level >= 0:
                    assert not x.requires_grad and not y.requires_grad
                return x.clone(), y.clone()

            @staticmethod
            def jvp(ctx: Any, x: Any, y: Any) -> Any:
                counts[-1] += 1
                return x, y

        for undefined, batched in ((False, False), (True, False), (True, True)):
            counts.append(0)
            t.autograd.gradcheck(
                Both.apply,
                (_point(t, 1), _point(t, 1)),
                check_forward_ad=True,
                check_backward_ad=False,
                check_undefined_grad=undefined,
                check_batched_forward_grad=batched,
            )
        return counts

    same(program)
