"""An interpreter of scalar expressions in NumPy, for tests that need no device. Imports NumPy and floor 0.

It is the meaning of every expression op written once more, apart from any renderer, so that formulas can be
compared with PyTorch before a backend exists.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from webtorch.ir import expr as ex
from webtorch.ir.dtype import DType
from webtorch.ir.expr import Expr, ScalarFunction

Array = np.ndarray[Any, Any]


def numpy_type(dtype: DType) -> Any:
    """Return NumPy's type of that name."""
    return np.dtype({"bool": "bool"}.get(dtype.name, dtype.name))


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


def _by_number(function: ScalarFunction) -> Callable[..., Array]:
    def apply(*args: Array) -> Array:
        rows = zip(*(np.ravel(a).tolist() for a in args), strict=True)
        values = [function.of_floats(*row) for row in rows]
        return np.array(values, args[0].dtype).reshape(args[0].shape)

    return apply


# NumPy's function, or else Python's, of each record: neither is of our making.
FUNCTIONS: dict[str, Callable[..., Any]] = {
    f.name: getattr(np, f.numpy) if f.numpy else _by_number(f) for f in ex.FUNCTIONS.values()
}
FUNCTIONS |= {
    "sign": _sign, "rsqrt": lambda x: 1 / np.sqrt(x), "truncdiv": _truncdiv, "pow": _pow, "where": np.where,
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
