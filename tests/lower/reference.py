"""An independent meaning of kernels: NumPy in float64 and int64, over the whole iteration space at
once. Test code."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from webtorch.ir import expr as ex
from webtorch.ir.dtype import DType, integer_limits
from webtorch.ir.expr import Expr
from webtorch.ir.kernel import Kernel

FLOAT: dict[str, Callable[..., Any]] = {
    "neg": np.negative,
    "abs": np.abs,
    "exp": np.exp,
    "exp2": np.exp2,
    "expm1": np.expm1,
    "log": np.log,
    "log2": np.log2,
    "log10": np.log10,
    "log1p": np.log1p,
    "sqrt": np.sqrt,
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "sin": np.sin,
    "cos": np.cos,
    "tan": np.tan,
    "asin": np.arcsin,
    "acos": np.arccos,
    "atan": np.arctan,
    "sinh": np.sinh,
    "cosh": np.cosh,
    "tanh": np.tanh,
    "asinh": np.arcsinh,
    "acosh": np.arccosh,
    "atanh": np.arctanh,
    "erf": np.vectorize(math.erf, otypes=[float]),
    "erfc": np.vectorize(math.erfc, otypes=[float]),
    "floor": np.floor,
    "ceil": np.ceil,
    "trunc": np.trunc,
    "round": np.round,
    "isnan": np.isnan,
    "isinf": np.isinf,
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "div": np.divide,
    "floordiv": np.floor_divide,
    "truncdiv": lambda a, b: np.trunc(a / b),
    "mod": np.mod,
    "truncmod": np.fmod,
    "pow": np.power,
    "atan2": np.arctan2,
    "hypot": np.hypot,
    "copysign": np.copysign,
    "min": np.minimum,
    "max": np.maximum,
    "lt": np.less,
    "le": np.less_equal,
    "eq": np.equal,
    "ne": np.not_equal,
    "sign": lambda x: np.where(np.isnan(x), 0.0, np.sign(x)),
}


def _int_div(a: Any, b: Any, how: str) -> Any:
    safe = np.where(b == 0, 1, b)
    if how == "floordiv":
        return a // safe
    if how == "mod":
        return a % safe
    q = np.sign(a) * np.sign(safe) * (np.abs(a) // np.abs(safe))
    return q if how == "truncdiv" else a - q * safe


INT: dict[str, Callable[..., Any]] = {
    "neg": np.negative,
    "abs": np.abs,
    "sign": np.sign,
    "bitnot": np.invert,
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "min": np.minimum,
    "max": np.maximum,
    "lt": np.less,
    "le": np.less_equal,
    "eq": np.equal,
    "ne": np.not_equal,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
    "shl": lambda a, b: np.where((b < 0) | (b > 31), 0, a << np.clip(b, 0, 31)),
    "shr": lambda a, b: a >> np.where((b < 0) | (b > 31), 63, np.clip(b, 0, 31)),
    **{
        n: (lambda a, b, n=n: _int_div(a, b, n))
        for n in ("floordiv", "mod", "truncdiv", "truncmod")
    },
}
BOOL: dict[str, Callable[..., Any]] = {
    "and": np.logical_and,
    "or": np.logical_or,
    "xor": np.logical_xor,
    "not": np.logical_not,
    "eq": np.equal,
    "ne": np.not_equal,
    "lt": lambda a, b: ~a & b,
    "le": lambda a, b: ~a | b,
    "max": np.logical_or,
    "min": np.logical_and,
    "bitnot": np.logical_not,
}


def wrap(x: Any, dtype: DType) -> Any:
    """Bring integers back into the range of `dtype` (32 bits for int64, as on the device)."""
    low, high = integer_limits(dtype if dtype.bits <= 32 else ex.int32)
    return (x - low) % (high - low + 1) + low


def convert(x: Any, source: DType, target: DType) -> Any:
    """Convert as PyTorch does."""
    if target.kind == "float":
        x = np.asarray(x).astype(np.float64)
        if target.name == "float16":
            return x.astype(np.float32).astype(np.float16).astype(np.float64)
        if target.name == "bfloat16":
            from tests.lower.harness import from_bf16, to_bf16

            return from_bf16(to_bf16(x)).astype(np.float64)
        return x
    if target.kind == "bool":
        return np.asarray(x) != 0
    if source.kind == "float":
        x = np.where(
            np.isnan(x),
            0,
            np.clip(
                np.trunc(x), -(2.0**31), 2.0**32 - 1 if target.name == "uint32" else 2.0**31 - 1
            ),
        )
    return wrap(np.asarray(x).astype(np.int64), target)


def evaluate(kernel: Kernel, buffers: list[Any], args: tuple[float, ...] = ()) -> list[Any]:
    """Run a kernel; `buffers` are float64, int64 or bool arrays, and are returned changed
    (copies)."""
    buffers = [np.array(b) for b in buffers]
    shape = (*kernel.outer, *kernel.inner)
    rank, inner_axes = len(shape), tuple(range(len(kernel.outer), len(shape)))
    memo: dict[Expr, Any] = {}

    def value(root: Expr) -> Any:
        for node in ex.walk(root):
            if node not in memo:
                memo[node] = compute(node, [memo[a] for a in node.args])
        return memo[root]

    def compute(node: Expr, a: list[Any]) -> Any:
        match node.op:
            case "const":
                return (
                    np.float64(np.float32(node.value))
                    if node.dtype.kind == "float"
                    else np.asarray(node.value)
                )
            case "arg":
                return (
                    np.float64(np.float32(args[node.value]))
                    if node.dtype.kind == "float"
                    else np.asarray(args[node.value])
                )
            case "index":
                dim, size = node.value
                return np.arange(size).reshape([size if d == dim else 1 for d in range(rank)])
            case "load":
                data = buffers[node.value]
                if len(a) == 1:
                    return data[np.clip(a[0], 0, len(data) - 1)]
                return np.where(a[1], data[np.where(a[1], a[0], 0)], a[2])
            case "where":
                return np.where(a[0], a[1], a[2])
            case "cast":
                return convert(a[0], node.args[0].dtype, node.dtype)
        table = {"float": FLOAT, "int": INT, "uint": INT, "bool": BOOL}[node.args[0].dtype.kind]
        out = table[node.op](*a)
        return wrap(out, node.dtype) if node.dtype.is_integral else out

    with np.errstate(all="ignore"):
        for i, r in enumerate(kernel.reduces):
            full = np.broadcast_to(value(r.value), shape)
            rows = full.reshape(*kernel.outer, -1)
            match r.op:
                case "sum" | "prod":
                    out = getattr(np, r.op)(rows, axis=-1)
                    out = wrap(out, r.dtype) if r.dtype.is_integral else out
                case "max" | "min":
                    out = getattr(np, r.op)(rows, axis=-1)
                case "any" | "all":
                    out = getattr(np, r.op)(rows != 0, axis=-1)
                case op:
                    out = getattr(np, op)(rows, axis=-1)
            memo[ex.reduced(i, r.dtype)] = np.asarray(out).reshape(
                *kernel.outer, *[1] * len(inner_axes)
            )
        pending = []
        for s in kernel.stores:
            where = (
                shape
                if s.level == "inner" or not kernel.inner
                else (*kernel.outer, *[1] * len(inner_axes))
            )
            if s.level == "outer" and not kernel.reduces and kernel.inner:
                where = (*kernel.outer, *[1] * len(inner_axes))
            position = np.broadcast_to(value(s.position), where).ravel()
            result = np.broadcast_to(value(s.value), where).ravel()
            valid = np.broadcast_to(value(s.valid) if s.valid is not None else True, where).ravel()
            pending.append((s, position[valid], result[valid]))
        for s, position, result in pending:
            target = buffers[s.buffer]
            match s.combine:
                case "set":
                    target[position] = result
                case "add":
                    np.add.at(target, position, result)
                case "mul":
                    np.multiply.at(target, position, result)
                case "max":
                    np.maximum.at(target, position, result)
                case "min":
                    np.minimum.at(target, position, result)
    return buffers
