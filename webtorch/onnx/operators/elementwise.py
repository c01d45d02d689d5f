"""Nodes that compute element by element. Floor 6."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable

from webtorch.functions import public as webtorch
from webtorch.ir.expr import FUNCTIONS
from webtorch.nn import functional as F
from webtorch.onnx.operators.table import Attrs, Context, Numbers, Result, element_type, number, op
from webtorch.tensors.tensor import Tensor

# Nodes that are one scalar function of one number, and others of one tensor.
_UNARY: dict[str, Callable[[Tensor], Tensor]] = {
    f.onnx: getattr(webtorch, f.name)
    for f in FUNCTIONS.values()
    # (IsInf has attributes.)
    if f.arity == 1 and isinstance(f.onnx, str) and hasattr(webtorch, f.name) and f.name != "isinf"
}
_UNARY |= {
    "HardSwish": F.hardswish, "Identity": lambda x: x, "Mish": F.mish, "Not": webtorch.logical_not,
    "Reciprocal": webtorch.reciprocal, "Relu": webtorch.relu, "Sigmoid": webtorch.sigmoid,
    "Softplus": lambda x: F.softplus(x, 1, math.inf), "Softsign": F.softsign,
    "BitwiseNot": webtorch.bitwise_not,
}  # fmt: skip
for _name, _function in _UNARY.items():
    op(_name)(lambda c, a, n, x, _f=_function: _f(x))


def _shaped(y: Tensor, x: Tensor, a: Attrs) -> Tensor:
    """Broadcasting of opset 6 and before: y from an axis on."""
    if a.get("broadcast") and "axis" in a:
        return y.reshape(tuple(y.shape) + (1,) * (x.ndim - y.ndim - a["axis"]))
    return y


def _divide(x: Tensor, y: Tensor) -> Tensor:
    if x.dtype.is_floating_point:
        return x / y
    return webtorch.div(x, y, rounding_mode="trunc")


_BINARY: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "Add": lambda x, y: x + y, "Sub": lambda x, y: x - y, "Mul": lambda x, y: x * y, "Div": _divide,
    "And": webtorch.logical_and, "Or": webtorch.logical_or, "Xor": webtorch.logical_xor,
    "Equal": webtorch.eq, "Greater": webtorch.gt, "GreaterOrEqual": webtorch.ge,
    "Less": webtorch.lt, "LessOrEqual": webtorch.le, "BitwiseAnd": webtorch.bitwise_and,
    "BitwiseOr": webtorch.bitwise_or, "BitwiseXor": webtorch.bitwise_xor,
}  # fmt: skip
for _name, _two in _BINARY.items():
    op(_name)(lambda c, a, n, x, y, _f=_two: _f(x, _shaped(y, x, a)))


@op("Pow")
def _pow(c: Context, a: Attrs, n: int, x: Tensor, y: Tensor) -> Tensor:
    if x.dtype.is_floating_point or not y.dtype.is_floating_point:
        return webtorch.pow(x, y.to(x.dtype))
    return webtorch.pow(x.to(y.dtype), y).to(x.dtype)


@op("Mod")
def _mod(c: Context, a: Attrs, n: int, x: Tensor, y: Tensor) -> Tensor:
    return webtorch.fmod(x, y) if a.get("fmod") else webtorch.remainder(x, y)


@op("BitShift")
def _shift(c: Context, a: Attrs, n: int, x: Tensor, y: Tensor) -> Tensor:
    return x << y if a["direction"] == "LEFT" else x >> y


def _fold(function: Callable[[Tensor, Tensor], Tensor]) -> Callable[..., Tensor]:
    return lambda c, a, n, *x: functools.reduce(function, x)


op("Max")(_fold(webtorch.maximum))
op("Min")(_fold(webtorch.minimum))
op("Sum")(_fold(lambda x, y: x + y))
op("Mean")(lambda c, a, n, *x: functools.reduce(lambda p, q: p + q, x) / len(x))


@op("Where")
def _where(c: Context, a: Attrs, n: int, condition: Tensor, x: Tensor, y: Tensor) -> Tensor:
    return webtorch.where(condition, x, y)


@op("Clip", host=(1, 2))
def _clip(
    c: Context, a: Attrs, n: int, x: Tensor, low: Numbers | None = None, high: Numbers | None = None
) -> Tensor:
    low = a.get("min") if low is None else number(low)
    high = a.get("max") if high is None else number(high)
    if low is None and high is None:
        return x
    # ONNX takes the upper bound where the two cross, as PyTorch does.
    return webtorch.clamp(x, low, high)


_PARAMETRIC: dict[str, Callable[[Tensor, Attrs], Tensor]] = {
    "LeakyRelu": lambda x, a: F.leaky_relu(x, a.get("alpha", 0.01)),
    "Elu": lambda x, a: F.elu(x, a.get("alpha", 1.0)),
    "Celu": lambda x, a: F.celu(x, a.get("alpha", 1.0)),
    "Selu": lambda x, a: (
        a.get("gamma", 1.05070102214813232421875)
        * webtorch.where(
            x > 0, x, a.get("alpha", 1.67326319217681884765625) * webtorch.expm1(x.clamp(max=0))
        )
    ),
    "ThresholdedRelu": lambda x, a: webtorch.where(x > a.get("alpha", 1.0), x, 0.0),
    "HardSigmoid": lambda x, a: (x * a.get("alpha", 0.2) + a.get("beta", 0.5)).clamp(0, 1),
    "Gelu": lambda x, a: F.gelu(x, approximate=a.get("approximate", "none")),
    "Swish": lambda x, a: x * webtorch.sigmoid(x * a.get("alpha", 1.0)),
    "Shrink": lambda x, a: webtorch.where(
        x < -a.get("lambd", 0.5),
        x + a.get("bias", 0.0),
        webtorch.where(x > a.get("lambd", 0.5), x - a.get("bias", 0.0), 0.0),
    ).to(x.dtype),
}
for _name, _with in _PARAMETRIC.items():
    op(_name)(lambda c, a, n, x, _f=_with: _f(x, a))


@op("PRelu")
def _prelu(c: Context, a: Attrs, n: int, x: Tensor, slope: Tensor) -> Tensor:
    return webtorch.where(x < 0, x * slope, x)


@op("IsInf")
def _isinf(c: Context, a: Attrs, n: int, x: Tensor) -> Tensor:
    up, down = a.get("detect_positive", 1), a.get("detect_negative", 1)
    if up and down:
        return webtorch.isinf(x)
    if up:
        return webtorch.isposinf(x)
    return webtorch.isneginf(x) if down else webtorch.zeros_like(x, dtype=webtorch.bool)


@op("Cast")
def _cast(c: Context, a: Attrs, n: int, x: Tensor) -> Tensor:
    return x.to(element_type(a["to"]))


@op("CastLike")
def _cast_like(c: Context, a: Attrs, n: int, x: Tensor, like: Tensor) -> Tensor:
    return x.to(like.dtype)


@op("Dropout", host=(1, 2))
def _dropout(
    c: Context,
    a: Attrs,
    n: int,
    x: Tensor,
    ratio: Numbers | None = None,
    training: Numbers | None = None,
) -> Result:
    p = a.get("ratio", 0.5) if ratio is None else float(number(ratio))
    if training is not None and number(training) and p > 0:
        kept = webtorch.rand_like(x) >= p
        out = webtorch.where(kept, x / (1 - p), 0.0)
    else:
        out, kept = x, webtorch.ones_like(x, dtype=webtorch.bool)
    return (out, kept) if n > 1 else out
