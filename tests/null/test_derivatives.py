"""Derivatives of the op table, derived and given, first and second, against PyTorch's autograd in float64. No device.

A given rule is run on symbols: the entries that it calls build their formulas, so the rule becomes one expression.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

from tests.null.formula import evaluate
from tests.null.test_formulas import NUMBERS, OPS, oracle
from webtorch.dispatch.call import active
from webtorch.ir import expr as ex
from webtorch.ir.dtype import float64
from webtorch.ir.expr import Expr
from webtorch.ops.derive import derivative
from webtorch.ops.record import TABLE, Elementwise, gradient_formula

# Where conventions matter: corners, ties, ends of domains.
CORNERS: dict[str, tuple[tuple[float, ...], ...]] = {
    "abs": ((0.0,),),
    "relu": ((0.0,), (-1.0,)),
    "leaky_relu": ((0.0,),),
    "relu6": ((0.0,), (6.0,)),
    "hardtanh": ((-1.5,), (2.0,)),
    "hardswish": ((-3.0,), (3.0,), (0.0,)),
    "hardsigmoid": ((-3.0,), (3.0,)),
    "elu": ((0.0,), (-40.0,), (800.0,)),
    "selu": ((0.0,), (800.0,)),
    "celu": ((0.0,), (800.0,)),
    "softplus": ((0.0,), (800.0,), (-800.0,)),
    "logsigmoid": ((0.0,), (800.0,), (-800.0,)),
    "sigmoid": ((0.0,), (800.0,), (-800.0,)),
    "silu": ((0.0,), (800.0,), (-800.0,)),
    "mish": ((0.0,), (25.0,), (-40.0,)),
    "_gelu_erf": ((0.0,), (10.0,), (-10.0,)),
    "_gelu_tanh": ((0.0,), (10.0,), (-10.0,)),
    "hardshrink": ((0.75,), (-0.75,), (0.0,)),
    "softshrink": ((0.75,), (-0.75,), (0.0,)),
    "softsign": ((0.0,), (1e9,)),
    "tanhshrink": ((0.0,), (1e-5,)),
    "threshold": ((0.75,),),
    "tanh": ((0.0,), (50.0,)),
    "sqrt": ((0.0,),),
    "maximum": ((1.0, 1.0), (1.0, 2.0)),
    "minimum": ((1.0, 1.0), (1.0, 2.0)),
    "fmax": ((1.0, 1.0), (1.0, 2.0)),
    "fmin": ((1.0, 1.0), (1.0, 2.0)),
    "clamp_min": ((1.0, 1.0), (1.0, 2.0)),
    "clamp_max": ((1.0, 1.0), (1.0, 2.0)),
    "_clamp": ((0.0, 0.0, 1.0), (1.0, 0.0, 1.0), (2.0, 0.0, 1.0), (-1.0, 0.0, 1.0), (0.5, 1.0, 0.0)),
    "_pow": ((0.0, 0.0), (0.0, 2.0), (0.0, 0.5), (-1.5, 2.0), (0.0, 1.0)),
    "hypot": ((0.0, 0.0), (3.0, 4.0)),
    "atan2": ((0.0, 0.0), (0.0, -1.0), (1.0, 0.0)),
    "xlogy": ((0.0, 0.0), (0.0, 2.0), (0.0, math.nan)),
    "sinc": ((0.0,), (1.0,)),
    "copysign": ((0.0, -1.0), (2.0, -1.0), (-2.0, -0.0)),
    "logaddexp": ((1.0, 1.0), (0.0, -math.inf), (800.0, -800.0)),
    "logaddexp2": ((1.0, 1.0), (800.0, -800.0)),
    "remainder": ((-5.0, 3.0), (5.0, -3.0)),
    "fmod": ((-5.0, 3.0), (5.0, -3.0)),
    "_logit": ((0.5,), (0.0,), (1.0,), (1.5,)),
    "_logit_clamped": ((0.05,), (0.95,), (0.5,)),
    "_nan_to_num": ((math.inf,), (math.nan,), (1.0,)),
    "frac": ((-1.25,), (2.5,)),
    "lerp": ((1.0, 2.0, 0.5), (1.0, 2.0, 0.25)),
    "_smooth_error": ((1.0, 1.0), (2.5, 1.0), (5.0, 1.0)),
    "_huber_error": ((1.0, 1.0), (1.75, 1.0), (5.0, 1.0)),
    "_absolute_error": ((1.0, 1.0),),
    "_bce_error": ((0.0, 0.0), (1.0, 1.0), (0.5, 0.25)),
    "_bce_logits_error": ((0.0, 1.0), (500.0, 0.0), (-500.0, 1.0)),
}  # fmt: skip
# PyTorch's second derivative is wrong, or another convention, at these corners; the reason is given.
SECOND_DIFFERS = {
    "sinc": "PyTorch gives 0 at 0 where the second derivative is -pi**2 / 3",
    "_pow": "PyTorch's rules meet 0 * inf at base 0",
    "hypot": "both give NaN or inf around (0, 0)",
    "atan2": "not differentiable at (0, 0)",
    "xlogy": "not differentiable at (0, 0)",
    "sqrt": "infinite at 0",
    "maximum": "ties", "minimum": "ties", "fmax": "ties", "fmin": "ties",
    "_logit": "infinite at the ends",
    "softsign": "PyTorch's quotient cancels far from 0",
    "tanhshrink": "PyTorch's form loses small values",
    "_absolute_error": "a corner",
    "_bce_error": "infinite at the ends",
    "hardsigmoid": "PyTorch has none",
    "copysign": "a corner",
    "softplus": "PyTorch overflows in its second derivative",
    "logaddexp": "infinite differences", "logaddexp2": "PyTorch overflows",
    "celu": "PyTorch's double backward differs at 0", "elu": "at 0", "selu": "at 0",
    "hardswish": "at the corners",
    "mish": "PyTorch overflows",
    "_nan_to_num": "NaN",
}  # fmt: skip
# Looser, with the reason.
RTOL = {"hardsigmoid": 1e-6}  # PyTorch multiplies by 1/6 in float32
DIFFERENTIABLE = [
    op
    for op in OPS
    if op.differentiable
    and op.promotion != "bool"
    and float64 in op.dtypes
    and not op.name.endswith("_backward")
    # The backward of the last two raises, in PyTorch too.
    and op.name not in ("_norm_slope", "_trigamma", "floor_divide", "heaviside")
]


@pytest.fixture(autouse=True)
def _entries_on_symbols(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let calls of entries build expressions."""

    def bind(op: Elementwise) -> Any:
        def function(*args: Any) -> Expr:
            dtype = next(a.dtype for a in args if isinstance(a, Expr))
            exprs = [a if isinstance(a, Expr) else ex.const(a, dtype) for a in args]
            exprs = [ex.cast(a, float64) for a in exprs]
            return op.build(tuple(exprs))

        return function

    # No interpreter may be on, nor a follower of scripts: those see tensors.
    monkeypatch.setattr(active, "count", 0)
    for op in TABLE.values():
        if isinstance(op, Elementwise):
            monkeypatch.setattr(op, "function", bind(op))


def cotangents(op: Elementwise) -> list[Expr | None]:
    """Return the cotangent of each tensor as an expression of (tensors, numbers, g)."""
    count = len(op.tensors) + len(op.numbers)
    inputs = tuple(ex.input_(i, float64) for i in range(count))
    g = ex.input_(count, float64)
    if op.vjp is not None:
        given = op.vjp(g, op.build(inputs), *inputs)
        assert len(given) == len(op.tensors)
        return list(given)
    derived = [gradient_formula(op, slot) for slot in range(len(op.tensors))]
    return [None if d is None else d.build((g, *inputs)) for d in derived]


def sample_points(op: Elementwise) -> np.ndarray[Any, Any]:
    random = np.random.default_rng(2)
    low, high = op.domain
    inside = random.uniform(max(low, -30.0), min(high, 30.0), (40, len(op.tensors)))
    if op.name == "_where":
        inside[:, 0] = np.arange(40) % 2
    return inside


def reference(
    op: Elementwise, tensors: list[np.ndarray[Any, Any]], g: np.ndarray[Any, Any]
) -> tuple[Any, Any]:
    """Return PyTorch's cotangents, and the gradient of sum(cotangent * weight) for second derivatives."""
    leaves = [torch.tensor(t, requires_grad=True) for t in tensors]
    numbers = [torch.full_like(leaves[0], NUMBERS[n]).detach() for n in op.numbers]
    out = oracle(op)(*leaves, *numbers)
    first = torch.autograd.grad(
        out, leaves, torch.from_numpy(g), create_graph=True, allow_unused=True
    )
    second = []
    for c in first:
        if c is None or not c.requires_grad:
            second.append([None] * len(leaves))
        else:
            try:
                second.append(
                    list(
                        torch.autograd.grad(
                            c, leaves, torch.ones_like(c), retain_graph=True, allow_unused=True
                        )
                    )
                )
            except RuntimeError:  # PyTorch has no second derivative
                assert op.name in SECOND_DIFFERS
                second.append([])
    return first, second


def value(root: Expr | None, arrays: list[np.ndarray[Any, Any]]) -> np.ndarray[Any, Any]:
    return np.zeros_like(arrays[0]) if root is None else evaluate(root, arrays)


def numpy_of(x: torch.Tensor | None, like: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return np.zeros_like(like) if x is None else x.detach().numpy(force=True)


def cases() -> Iterator[Any]:
    for op in DIFFERENTIABLE:
        yield pytest.param(op, sample_points(op), True, id=f"{op.name}-random")
        if op.name in CORNERS:
            yield pytest.param(
                op,
                np.array(CORNERS[op.name]),
                op.name not in SECOND_DIFFERS,
                id=f"{op.name}-corners",
            )


@pytest.mark.parametrize(("op", "where", "twice"), list(cases()))
def test_derivatives_are_pytorchs(
    op: Elementwise, where: np.ndarray[Any, Any], twice: bool
) -> None:
    tensors = [np.ascontiguousarray(where[:, i]) for i in range(len(op.tensors))]
    g = np.random.default_rng(3).uniform(0.5, 1.5, len(where))
    arrays = [*tensors, *(np.full(len(where), NUMBERS[n]) for n in op.numbers), g]
    rtol = RTOL.get(op.name, 1e-9)
    first, second = reference(op, tensors, g)
    for slot, cotangent in enumerate(cotangents(op)):
        np.testing.assert_allclose(
            value(cotangent, arrays),
            numpy_of(first[slot], g),
            rtol=rtol,
            atol=1e-12,
            err_msg=f"slot {slot}",
        )
        if not twice or cotangent is None or not second[slot]:
            continue
        for other in range(len(op.tensors)):
            actual = value(derivative(cotangent, ex.input_(other, float64)), arrays)
            expected = numpy_of(second[slot][other], g)
            np.testing.assert_allclose(
                actual, expected, rtol=rtol * 10, atol=1e-11, err_msg=f"slots {slot}, {other}"
            )


def test_second_derivative_of_sinc_at_0_is_exact() -> None:
    op = TABLE["sinc"]
    assert isinstance(op, Elementwise)
    x = ex.input_(0, float64)
    once = derivative(op.build((x,)), x)
    assert once is not None
    twice = derivative(once, x)
    assert twice is not None
    np.testing.assert_allclose(evaluate(twice, [np.zeros(1)]), [-(math.pi**2) / 3], rtol=1e-14)
