"""An interpreter of scalar expressions in NumPy, for tests that need no device. Imports NumPy, math and floor 0.

It is the meaning of every expression op written once more, apart from any renderer, so that formulas can be
compared with PyTorch before a backend exists.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from webtorch.ir import expr as ex
from webtorch.ir.dtype import DType
from webtorch.ir.expr import Expr

Array = np.ndarray[Any, Any]


def numpy_type(dtype: DType) -> Any:
    """Return NumPy's type of that name."""
    return np.dtype({"bool": "bool"}.get(dtype.name, dtype.name))


def _each(function: Callable[[float], float]) -> Callable[[Array], Array]:
    return lambda x: np.array([function(v) for v in np.ravel(x).tolist()], x.dtype).reshape(x.shape)


def _pow(x: Array, y: Array) -> Array:
    if x.dtype.kind == "f":
        return np.power(x, y)
    whole = [
        int(a) ** int(b) if b >= 0 else int(float(a) ** float(b)) if a else 0
        for a, b in zip(x.ravel(), y.ravel(), strict=True)
    ]
    return np.array(whole).reshape(x.shape).astype(x.dtype)


def _truncdiv(x: Array, y: Array) -> Array:
    return np.trunc(x / y).astype(x.dtype)


def _sign(x: Array) -> Array:
    return np.where(np.isnan(x), 0, np.sign(x)) if x.dtype.kind == "f" else np.sign(x)


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "neg": np.negative, "abs": np.abs, "sign": _sign, "exp": np.exp, "exp2": np.exp2, "expm1": np.expm1,
    "log": np.log, "log2": np.log2, "log10": np.log10, "log1p": np.log1p, "sqrt": np.sqrt,
    "rsqrt": lambda x: 1 / np.sqrt(x), "sin": np.sin, "cos": np.cos, "tan": np.tan, "asin": np.arcsin,
    "acos": np.arccos, "atan": np.arctan, "sinh": np.sinh, "cosh": np.cosh, "tanh": np.tanh,
    "asinh": np.arcsinh, "acosh": np.arccosh, "atanh": np.arctanh, "erf": _each(math.erf),
    "erfc": _each(math.erfc), "floor": np.floor, "ceil": np.ceil, "trunc": np.trunc, "round": np.rint,
    "not": np.logical_not, "bitnot": np.invert, "isnan": np.isnan, "isinf": np.isinf, "add": np.add,
    "sub": np.subtract, "mul": np.multiply, "div": np.divide, "floordiv": np.floor_divide,
    "truncdiv": _truncdiv, "mod": np.remainder, "truncmod": np.fmod, "pow": _pow, "atan2": np.arctan2,
    "hypot": np.hypot, "copysign": np.copysign, "min": np.minimum, "max": np.maximum, "lt": np.less,
    "le": np.less_equal, "eq": np.equal, "ne": np.not_equal, "and": np.bitwise_and, "or": np.bitwise_or,
    "xor": np.bitwise_xor, "shl": np.left_shift, "shr": np.right_shift, "where": np.where,
    "gcd": np.gcd, "fma": lambda x, y, z: x * y + z,
}  # fmt: skip


def evaluate(root: Expr, inputs: Sequence[Array]) -> Array:
    """Return the value of an expression whose "input" leaves are `inputs`: equal shapes, types as there."""
    values: dict[Expr, Any] = {}
    with np.errstate(all="ignore"):
        for node in ex.walk(root):
            args = [values[a] for a in node.args]
            match node.op:
                case "const":
                    value = np.full(np.shape(inputs[0]), node.value, numpy_type(node.dtype))
                case "input":
                    value = inputs[node.value]  # type: ignore[call-overload]
                case "cast":
                    value = args[0].astype(numpy_type(node.dtype))
                case _:
                    value = FUNCTIONS[node.op](*args)
            assert value.dtype == numpy_type(node.dtype), (node.op, value.dtype, node.dtype)
            values[node] = value
    return np.asarray(values[root])
