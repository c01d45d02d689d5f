"""What each ONNX operation is in webtorch: one function each. Floor 6; needs NumPy.

A function gets the context, the node's attributes, the number of outputs that are used, and the
inputs: tensors, None where one is left out, and NumPy arrays for the inputs that are read as numbers
(`host`: axes, sizes, pads).
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy

from webtorch import linalg
from webtorch.errors import DTypeError
from webtorch.functions import public as webtorch
from webtorch.ir.dtype import DType
from webtorch.ir.expr import FUNCTIONS
from webtorch.nn import functional as F
from webtorch.tensors.tensor import Tensor

Host = Any
Attrs = dict[str, Any]


@dataclass(frozen=True)
class Operator:
    """How a node runs; `host` are the inputs that are read as numbers."""

    run: Callable[..., Any]
    host: frozenset[int] = frozenset()


OPERATORS: dict[str, Operator] = {}
_NUMPY_TYPES = {
    "float32", "float64", "float16", "int64", "int32", "int16", "int8", "uint8", "bool", "uint32",
}  # fmt: skip


def is_host(x: Any) -> bool:
    """Whether a value is on the host."""
    return isinstance(x, (numpy.ndarray, numpy.generic))


class Context:
    """What functions need besides their inputs: the opset, and constants as tensors."""

    def __init__(self, opset: int) -> None:
        self.opset = opset
        self._kept: dict[tuple[int, Any], tuple[Any, Tensor]] = {}

    def tensor(self, x: Any, device: Any = None) -> Any:
        """Return a host value as a tensor; that of a constant is made once."""
        if not is_host(x):
            return x
        key = (id(x), device)
        found = self._kept.get(key)
        if found is not None and found[0] is x:
            return found[1]
        array = numpy.asarray(x)
        if array.dtype.name == "bfloat16":
            made = webtorch.tensor(array.astype(numpy.float32)).to(webtorch.bfloat16)
        elif array.dtype.name not in _NUMPY_TYPES:
            raise DTypeError(f"load: webtorch has no {array.dtype}, which the file computes with")
        else:
            made = webtorch.from_numpy(numpy.ascontiguousarray(array).reshape(array.shape).copy())
        if device is not None:
            made = made.to(device)
        if len(self._kept) > 4096:
            self._kept.clear()
        self._kept[key] = (x, made)
        return made


def op(*names: str, host: Sequence[int] = ()) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Declare how the named nodes run."""

    def declare(function: Callable[..., Any]) -> Callable[..., Any]:
        """Put the function into OPERATORS under each name."""
        for name in names:
            assert name not in OPERATORS, name
            OPERATORS[name] = Operator(function, frozenset(host))
        return function

    return declare


def ints(x: Any) -> list[int] | None:
    """Return a value as Python integers; a tensor on a device is waited for."""
    if x is None:
        return None
    return [int(v) for v in (x.reshape(-1).tolist())]


def number(x: Any) -> Any:
    """Return a value of one element as a Python number."""
    return x.reshape(-1).tolist()[0]


_TYPES = {
    1: "float32", 2: "uint8", 3: "int8", 5: "int16", 6: "int32", 7: "int64", 9: "bool", 10: "float16",
    11: "float64", 12: "uint32", 16: "bfloat16",
}  # fmt: skip


def dtype_of(number: int) -> DType | None:
    """Return the element type of ONNX's number, None if webtorch has no such type."""
    name = _TYPES.get(number)
    return None if name is None else getattr(webtorch, name)


def _dtype(code: int) -> Any:
    found = dtype_of(code)
    if found is None:
        raise DTypeError(f"load: webtorch has no element type of ONNX's number {code}")
    return found


# ---- elementwise ----------------------------------------------------------------------------------

# Nodes that are one scalar function of one number, and others of one tensor.
_UNARY: dict[str, Callable[[Any], Any]] = {
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


def _shaped(y: Any, x: Any, a: Attrs) -> Any:
    """Broadcasting of opset 6 and before: y from an axis on."""
    if a.get("broadcast") and "axis" in a:
        return y.reshape(tuple(y.shape) + (1,) * (x.ndim - y.ndim - a["axis"]))
    return y


def _divide(x: Any, y: Any) -> Any:
    if x.dtype.is_floating_point:
        return x / y
    return webtorch.div(x, y, rounding_mode="trunc")


_BINARY: dict[str, Callable[[Any, Any], Any]] = {
    "Add": lambda x, y: x + y, "Sub": lambda x, y: x - y, "Mul": lambda x, y: x * y, "Div": _divide,
    "And": webtorch.logical_and, "Or": webtorch.logical_or, "Xor": webtorch.logical_xor,
    "Equal": webtorch.eq, "Greater": webtorch.gt, "GreaterOrEqual": webtorch.ge,
    "Less": webtorch.lt, "LessOrEqual": webtorch.le, "BitwiseAnd": webtorch.bitwise_and,
    "BitwiseOr": webtorch.bitwise_or, "BitwiseXor": webtorch.bitwise_xor,
}  # fmt: skip
for _name, _two in _BINARY.items():
    op(_name)(lambda c, a, n, x, y, _f=_two: _f(x, _shaped(y, x, a)))


@op("Pow")
def _pow(c: Context, a: Attrs, n: int, x: Any, y: Any) -> Any:
    if x.dtype.is_floating_point or not y.dtype.is_floating_point:
        return webtorch.pow(x, y.to(x.dtype))
    return webtorch.pow(x.to(y.dtype), y).to(x.dtype)


@op("Mod")
def _mod(c: Context, a: Attrs, n: int, x: Any, y: Any) -> Any:
    return webtorch.fmod(x, y) if a.get("fmod") else webtorch.remainder(x, y)


@op("BitShift")
def _shift(c: Context, a: Attrs, n: int, x: Any, y: Any) -> Any:
    return x << y if a["direction"] == "LEFT" else x >> y


def _fold(function: Callable[[Any, Any], Any]) -> Callable[..., Any]:
    return lambda c, a, n, *x: functools.reduce(function, x)


op("Max")(_fold(webtorch.maximum))
op("Min")(_fold(webtorch.minimum))
op("Sum")(_fold(lambda x, y: x + y))
op("Mean")(lambda c, a, n, *x: functools.reduce(lambda p, q: p + q, x) / len(x))


@op("Where")
def _where(c: Context, a: Attrs, n: int, condition: Any, x: Any, y: Any) -> Any:
    return webtorch.where(condition, x, y)


@op("Clip", host=(1, 2))
def _clip(c: Context, a: Attrs, n: int, x: Any, low: Any = None, high: Any = None) -> Any:
    low = a.get("min") if low is None else number(low)
    high = a.get("max") if high is None else number(high)
    if low is None and high is None:
        return x
    # ONNX takes the upper bound where the two cross, as PyTorch does.
    return webtorch.clamp(x, low, high)


_PARAMETRIC: dict[str, Callable[..., Any]] = {
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
def _prelu(c: Context, a: Attrs, n: int, x: Any, slope: Any) -> Any:
    return webtorch.where(x < 0, x * slope, x)


@op("IsInf")
def _isinf(c: Context, a: Attrs, n: int, x: Any) -> Any:
    up, down = a.get("detect_positive", 1), a.get("detect_negative", 1)
    if up and down:
        return webtorch.isinf(x)
    if up:
        return webtorch.isposinf(x)
    return webtorch.isneginf(x) if down else webtorch.zeros_like(x, dtype=webtorch.bool)


@op("Cast")
def _cast(c: Context, a: Attrs, n: int, x: Any) -> Any:
    return x.to(_dtype(a["to"]))


@op("CastLike")
def _cast_like(c: Context, a: Attrs, n: int, x: Any, like: Any) -> Any:
    return x.to(like.dtype)


@op("Dropout", host=(1, 2))
def _dropout(c: Context, a: Attrs, n: int, x: Any, ratio: Any = None, training: Any = None) -> Any:
    p = a.get("ratio", 0.5) if ratio is None else float(number(ratio))
    if training is not None and number(training) and p > 0:
        kept = webtorch.rand_like(x) >= p
        out = webtorch.where(kept, x / (1 - p), 0.0)
    else:
        out, kept = x, webtorch.ones_like(x, dtype=webtorch.bool)
    return (out, kept) if n > 1 else out


# ---- products -------------------------------------------------------------------------------------


@op("MatMul")
def _matmul(c: Context, a: Attrs, n: int, x: Any, y: Any) -> Any:
    if x.ndim == 1 and y.ndim == 1:
        return (x * y).sum().to(x.dtype)
    return webtorch.matmul(x, y)


@op("Gemm")
def _gemm(c: Context, a: Attrs, n: int, x: Any, y: Any, z: Any = None) -> Any:
    alpha, beta = a.get("alpha", 1.0), a.get("beta", 1.0)
    x = x.t() if a.get("transA") else x
    if (
        z is not None
        and alpha == beta == 1
        and a.get("transB")
        and z.ndim == 1
        and z.shape[0] == y.shape[0]
    ):
        return F.linear(x, y, z)
    out = x @ (y.t() if a.get("transB") else y)
    if alpha != 1:
        out = out * alpha
    return out if z is None else out + (z if beta == 1 else z * beta)


@op("Einsum")
def _einsum(c: Context, a: Attrs, n: int, *x: Any) -> Any:
    return webtorch.einsum(a["equation"], *x)


@op("Det")
def _det(c: Context, a: Attrs, n: int, x: Any) -> Any:
    return linalg.det(x)


def _padding(a: Attrs, sizes: Sequence[int], kernel: Sequence[int]) -> tuple[list[int], list[int]]:
    """Return the padding before and after each dim that a node's attributes ask for."""
    rank = len(kernel)
    strides = a.get("strides") or [1] * rank
    dilations = a.get("dilations") or [1] * rank
    auto = a.get("auto_pad", "NOTSET")
    if auto in ("SAME_UPPER", "SAME_LOWER"):
        low, high = [], []
        for size, k, s, d in zip(sizes, kernel, strides, dilations, strict=True):
            whole = max(0, (-(-size // s) - 1) * s + (k - 1) * d + 1 - size)
            small, large = whole // 2, whole - whole // 2
            low.append(small if auto == "SAME_UPPER" else large)
            high.append(large if auto == "SAME_UPPER" else small)
        return low, high
    pads = a.get("pads") or [0] * 2 * rank
    if auto == "VALID":
        pads = [0] * 2 * rank
    return list(pads[:rank]), list(pads[rank:])


def _pad_sides(x: Any, low: Sequence[int], high: Sequence[int], value: float = 0) -> Any:
    flat: list[int] = []
    for before, after in zip(reversed(low), reversed(high), strict=True):
        flat += [before, after]
    return F.pad(x, flat, value=value)


@op("Conv")
def _conv(c: Context, a: Attrs, n: int, x: Any, weight: Any, bias: Any = None) -> Any:
    rank = weight.ndim - 2
    low, high = _padding(a, x.shape[2:], weight.shape[2:])
    if low != high:
        x, low = _pad_sides(x, low, high), [0] * rank
    convolve = (F.conv1d, F.conv2d, F.conv3d)[rank - 1]
    return convolve(
        x, weight, bias, a.get("strides") or 1, low, a.get("dilations") or 1, a.get("group", 1)
    )


@op("ConvTranspose")
def _conv_transpose(c: Context, a: Attrs, n: int, x: Any, weight: Any, bias: Any = None) -> Any:
    rank = weight.ndim - 2
    kernel = list(weight.shape[2:])
    strides = a.get("strides") or [1] * rank
    dilations = a.get("dilations") or [1] * rank
    extra = a.get("output_padding") or [0] * rank
    whole = [
        (s - 1) * st + (k - 1) * d + 1 + e
        for s, st, k, d, e in zip(x.shape[2:], strides, kernel, dilations, extra, strict=True)
    ]
    pads = a.get("pads") or [0] * 2 * rank
    low, high = list(pads[:rank]), list(pads[rank:])
    auto = a.get("auto_pad", "NOTSET")
    target = a.get("output_shape")
    if target is None and auto in ("SAME_UPPER", "SAME_LOWER"):
        target = [s * st for s, st in zip(x.shape[2:], strides, strict=True)]
    if target is not None:
        target = list(target)[-rank:]
        total = [w - t for w, t in zip(whole, target, strict=True)]
        half = [t // 2 for t in total]
        rest = [t - h for t, h in zip(total, half, strict=True)]
        low, high = (half, rest) if auto == "SAME_UPPER" else (rest, half)
    elif auto == "VALID":
        low = high = [0] * rank
    convolve = (F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d)[rank - 1]
    if (
        low == high
        and all(p >= 0 for p in low)
        and all(e < max(s, d) for e, s, d in zip(extra, strides, dilations, strict=True))
    ):
        return convolve(x, weight, bias, strides, low, extra, a.get("group", 1), dilations)
    full = convolve(x, weight, bias, strides, 0, 0, a.get("group", 1), dilations)
    if any(extra):
        shape = (1, -1) + (1,) * rank
        grown = _pad_sides(full, [0] * rank, extra)
        if bias is not None:
            mask = _pad_sides(webtorch.ones_like(full[:1, :1]), [0] * rank, extra)
            grown = grown + bias.reshape(shape) * (1 - mask)
        full = grown
    return _pad_sides(full, [-p for p in low], [-p for p in high])


# ---- pooling --------------------------------------------------------------------------------------


def _windows(a: Attrs, x: Any) -> tuple[Any, list[int], list[int], list[int], list[int], list[int]]:
    kernel = list(a["kernel_shape"])
    rank = len(kernel)
    strides = list(a.get("strides") or [1] * rank)
    dilations = list(a.get("dilations") or [1] * rank)
    low, high = _padding(a, x.shape[2:], kernel)
    return x, kernel, strides, dilations, low, high


def _fill_last(
    x: Any, a: Attrs, kernel: Any, strides: Any, dilations: Any, low: Any, high: Any
) -> list[int]:
    """Return the padding behind with which the last windows of ceil_mode are whole."""
    if not a.get("ceil_mode"):
        return list(high)
    found = []
    for size, k, s, d, p, q in zip(x.shape[2:], kernel, strides, dilations, low, high, strict=True):
        reach = (k - 1) * d + 1
        count = -(-(size + p + q - reach) // s) + 1
        if (count - 1) * s >= size + p:
            count -= 1  # a window that starts in the padding does not count
        found.append(max(q, (count - 1) * s + reach - size - p))
    return found


@op("MaxPool")
def _max_pool(c: Context, a: Attrs, n: int, x: Any) -> Any:
    x, kernel, strides, dilations, low, high = _windows(a, x)
    rank = len(kernel)
    high = _fill_last(x, a, kernel, strides, dilations, low, high)
    lowest = -math.inf if x.dtype.is_floating_point else webtorch.iinfo(x.dtype).min
    padded = _pad_sides(x, low, high, lowest) if any(low) or any(high) else x
    pool = (F.max_pool1d, F.max_pool2d, F.max_pool3d)[rank - 1]
    out = pool(padded, kernel, strides, 0, dilations, False, n > 1)
    if n == 1:
        return out
    values, index = out
    # Positions in the padded plane become positions in all of the input.
    sizes, wide = list(x.shape[2:]), list(padded.shape[2:])
    coordinates = []
    rest = index
    for d in reversed(range(rank)):
        coordinates.append(rest % wide[d] - low[d])
        rest = webtorch.div(rest, wide[d], rounding_mode="floor")
    coordinates.reverse()
    order = range(rank) if not a.get("storage_order") else reversed(range(rank))
    flat = None
    for d in order:
        flat = coordinates[d] if flat is None else flat * sizes[d] + coordinates[d]
    planes = webtorch.arange(x.shape[0] * x.shape[1], device=x.device).reshape(
        (*x.shape[:2], *(1,) * rank)
    )
    return values, flat + planes * math.prod(sizes)


@op("AveragePool")
def _avg_pool(c: Context, a: Attrs, n: int, x: Any) -> Any:
    x, kernel, strides, dilations, low, high = _windows(a, x)
    last = _fill_last(x, a, kernel, strides, dilations, low, high)
    total = _window_sums(_pad_sides(x, low, last), kernel, strides, dilations)
    ones = webtorch.ones((1, 1, *x.shape[2:]), dtype=x.dtype, device=x.device)
    if a.get("count_include_pad"):
        ones = _pad_sides(ones, low, high, 1)
        behind = [q - p for p, q in zip(high, last, strict=True)]
        ones = _pad_sides(ones, [0] * len(low), behind)
    else:
        ones = _pad_sides(ones, low, last)
    return total / _window_sums(ones, kernel, strides, dilations)


def _window_sums(x: Any, kernel: Any, strides: Any, dilations: Any) -> Any:
    rank = len(kernel)
    if all(d == 1 for d in dilations):
        pool = (F.avg_pool1d, F.avg_pool2d, F.avg_pool3d)[rank - 1]
        return pool(x, kernel, strides) * math.prod(kernel)
    channels = x.shape[1]
    weight = webtorch.ones((channels, 1, *kernel), dtype=x.dtype, device=x.device)
    convolve = (F.conv1d, F.conv2d, F.conv3d)[rank - 1]
    return convolve(x, weight, None, strides, 0, dilations, channels)


@op("LpPool")
def _lp_pool(c: Context, a: Attrs, n: int, x: Any) -> Any:
    x, kernel, strides, dilations, low, high = _windows(a, x)
    p = a.get("p", 2)
    high = _fill_last(x, a, kernel, strides, dilations, low, high)
    return _window_sums(_pad_sides(x.abs() ** p, low, high), kernel, strides, dilations) ** (1 / p)


@op("GlobalAveragePool")
def _global_avg(c: Context, a: Attrs, n: int, x: Any) -> Any:
    return x.mean(tuple(range(2, x.ndim)), keepdim=True)


@op("GlobalMaxPool")
def _global_max(c: Context, a: Attrs, n: int, x: Any) -> Any:
    return x.amax(tuple(range(2, x.ndim)), keepdim=True)


@op("GlobalLpPool")
def _global_lp(c: Context, a: Attrs, n: int, x: Any) -> Any:
    p = a.get("p", 2)
    return (x.abs() ** p).sum(tuple(range(2, x.ndim)), keepdim=True) ** (1 / p)


@op("MaxUnpool", host=(2,))
def _max_unpool(c: Context, a: Attrs, n: int, x: Any, index: Any, size: Any = None) -> Any:
    kernel = a["kernel_shape"]
    strides = a.get("strides") or [1] * len(kernel)
    pads = a.get("pads") or [0] * 2 * len(kernel)
    rank = len(kernel)
    inner = [
        (s - 1) * st + k - pads[d] - pads[d + rank]
        for d, (s, st, k) in enumerate(zip(x.shape[2:], strides, kernel, strict=True))
    ]
    target = [*x.shape[:2], *inner]
    flat = webtorch.zeros((math.prod(target),), dtype=x.dtype, device=x.device)
    out = flat.scatter(0, index.reshape(-1), x.reshape(-1)).reshape(target)
    if size is None:
        return out
    wanted = ints(size) or []
    return _pad_sides(out, [0] * x.ndim, [w - s for w, s in zip(wanted, target, strict=True)])


# ---- norms ----------------------------------------------------------------------------------------


@op("BatchNormalization")
def _batch_norm(
    c: Context, a: Attrs, n: int, x: Any, scale: Any, bias: Any, mean: Any, var: Any
) -> Any:
    eps = a.get("epsilon", 1e-5)
    shape = (1, -1) + (1,) * (x.ndim - 2)
    if not a.get("training_mode"):
        unit = (x - mean.reshape(shape)) * webtorch.rsqrt(var.reshape(shape) + eps)
        return (unit * scale.reshape(shape) + bias.reshape(shape)).to(x.dtype)
    dims = (0, *range(2, x.ndim))
    now_mean, now_var = x.mean(dims), x.var(dims, correction=0)
    unit = (x - now_mean.reshape(shape)) * webtorch.rsqrt(now_var.reshape(shape) + eps)
    momentum = a.get("momentum", 0.9)
    out = unit * scale.reshape(shape) + bias.reshape(shape)
    rest = tuple(
        old * momentum + now * (1 - momentum) for old, now in ((mean, now_mean), (var, now_var))
    )
    return (out, *rest)[:n]


@op("InstanceNormalization")
def _instance_norm(c: Context, a: Attrs, n: int, x: Any, scale: Any, bias: Any) -> Any:
    return F.instance_norm(x, weight=scale, bias=bias, eps=a.get("epsilon", 1e-5))


@op("LayerNormalization")
def _layer_norm(c: Context, a: Attrs, n: int, x: Any, scale: Any, bias: Any = None) -> Any:
    axis = a.get("axis", -1) % x.ndim
    eps = a.get("epsilon", 1e-5)
    dims = tuple(range(axis, x.ndim))
    if n == 1 and tuple(scale.shape) == tuple(x.shape[axis:]):
        return F.layer_norm(x, tuple(x.shape[axis:]), scale, bias, eps)
    mean = x.mean(dims, keepdim=True)
    inverse = webtorch.rsqrt(((x - mean) ** 2).mean(dims, keepdim=True) + eps)
    out = (x - mean) * inverse * scale
    return ((out if bias is None else out + bias), mean, inverse)[:n]


@op("RMSNormalization")
def _rms_norm(c: Context, a: Attrs, n: int, x: Any, scale: Any) -> Any:
    axis = a.get("axis", -1) % x.ndim
    square = (x * x).mean(tuple(range(axis, x.ndim)), keepdim=True)
    return x * webtorch.rsqrt(square + a.get("epsilon", 1e-5)) * scale


@op("GroupNormalization")
def _group_norm(c: Context, a: Attrs, n: int, x: Any, scale: Any, bias: Any) -> Any:
    groups, eps = a["num_groups"], a.get("epsilon", 1e-5)
    if scale.shape[0] == x.shape[1]:
        return F.group_norm(x, groups, scale, bias, eps)
    # Before opset 21 the weights were per group.
    each = x.shape[1] // groups
    return F.group_norm(x, groups, scale.repeat_interleave(each), bias.repeat_interleave(each), eps)


@op("LRN")
def _lrn(c: Context, a: Attrs, n: int, x: Any) -> Any:
    size = a["size"]
    low = (size - 1) // 2
    square = _pad_sides(x * x, [low] + [0] * (x.ndim - 2), [size - 1 - low] + [0] * (x.ndim - 2))
    total = sum(square.narrow(1, i, x.shape[1]) for i in range(size))
    return x / (a.get("bias", 1.0) + a.get("alpha", 1e-4) / size * total) ** a.get("beta", 0.75)


@op("LpNormalization")
def _lp_norm(c: Context, a: Attrs, n: int, x: Any) -> Any:
    norm = linalg.vector_norm(x, a.get("p", 2), a.get("axis", -1), True)
    return webtorch.where(norm == 0, 0.0, x / norm)


@op("MeanVarianceNormalization")
def _mvn(c: Context, a: Attrs, n: int, x: Any) -> Any:
    axes = tuple(a.get("axes") or (0, 2, 3))
    mean = x.mean(axes, keepdim=True)
    return (x - mean) / (((x - mean) ** 2).mean(axes, keepdim=True).sqrt() + 1e-9)


def _flat_softmax(function: Callable[..., Any]) -> Callable[..., Any]:
    def run(c: Context, a: Attrs, n: int, x: Any) -> Any:
        """Run over `axis`; before opset 13 over all dims from `axis` on."""
        if c.opset >= 13:
            return function(x, a.get("axis", -1))
        axis = a.get("axis", 1) % x.ndim
        flat = x.reshape((math.prod(x.shape[:axis]), -1))
        return function(flat, 1).reshape(x.shape)

    return run


op("Softmax")(_flat_softmax(webtorch.softmax))
op("LogSoftmax")(_flat_softmax(F.log_softmax))


@op("Hardmax")
def _hardmax(c: Context, a: Attrs, n: int, x: Any) -> Any:
    axis = a.get("axis", -1 if c.opset >= 13 else 1) % x.ndim
    best = x.argmax(axis, keepdim=True)
    where = webtorch.arange(x.shape[axis], device=x.device).reshape(
        (-1,) + (1,) * (x.ndim - axis - 1)
    )
    return (where == best).to(x.dtype)


# ---- reductions -----------------------------------------------------------------------------------

_REDUCTIONS: dict[str, Callable[..., Any]] = {
    "ReduceSum": lambda x, d, k: x.sum(d, keepdim=k, dtype=x.dtype),
    "ReduceMean": lambda x, d, k: (
        x.mean(d, keepdim=k)
        if x.dtype.is_floating_point
        else webtorch.div(
            x.sum(d, keepdim=k), math.prod(x.shape[i] for i in d), rounding_mode="trunc"
        ).to(x.dtype)
    ),
    "ReduceMax": lambda x, d, k: x.amax(d, keepdim=k),
    "ReduceMin": lambda x, d, k: x.amin(d, keepdim=k),
    "ReduceProd": lambda x, d, k: _prod(x, d, k),
    "ReduceL1": lambda x, d, k: x.abs().sum(d, keepdim=k, dtype=x.dtype),
    "ReduceL2": lambda x, d, k: (
        webtorch.sqrt((x * x).sum(d, keepdim=k).float()).to(x.dtype)
        if not x.dtype.is_floating_point
        else linalg.vector_norm(x, 2, d, k)
    ),
    "ReduceLogSum": lambda x, d, k: webtorch.log(x.sum(d, keepdim=k)),
    "ReduceLogSumExp": lambda x, d, k: webtorch.logsumexp(x, d, k),
    "ReduceSumSquare": lambda x, d, k: (x * x).sum(d, keepdim=k, dtype=x.dtype),
}


def _prod(x: Any, dims: Sequence[int], keepdim: bool) -> Any:
    for d in sorted(dims, reverse=True):
        x = x.prod(d, keepdim=keepdim, dtype=x.dtype)
    return x


def _empty_reduction(name: str, x: Any, shape: Sequence[int]) -> Any:
    """Return what a reduction of nothing gives."""
    least, most = -math.inf, math.inf
    if not x.dtype.is_floating_point and x.dtype is not webtorch.bool:
        least, most = webtorch.iinfo(x.dtype).min, webtorch.iinfo(x.dtype).max
    value = {"ReduceMax": least, "ReduceMin": most, "ReduceProd": 1, "ReduceLogSum": -math.inf,
             "ReduceLogSumExp": -math.inf, "ReduceMean": math.nan}.get(name, 0)  # fmt: skip
    if x.dtype is webtorch.bool:
        value = name == "ReduceMin"
    return webtorch.full(tuple(shape), value, dtype=x.dtype, device=x.device)


def _reduction(name: str, function: Callable[..., Any]) -> None:
    @op(name, host=(1,))
    def run(c: Context, a: Attrs, n: int, x: Any, axes: Any = None) -> Any:
        """Run the reduction over the axes of the attribute, or of the second input."""
        given = a.get("axes") if axes is None else ints(axes)
        keep = bool(a.get("keepdims", 1))
        if not given:
            if a.get("noop_with_empty_axes"):
                return {
                    "ReduceSumSquare": lambda: x * x, "ReduceL1": x.abs, "ReduceL2": x.abs,
                    "ReduceLogSum": lambda: webtorch.log(x),
                }.get(name, lambda: x)()  # fmt: skip
            given = range(x.ndim)
        dims = tuple(sorted({d % x.ndim for d in given})) if x.ndim else ()
        if 0 in [x.shape[d] for d in dims]:
            shape = [1 if d in dims else s for d, s in enumerate(x.shape) if keep or d not in dims]
            return _empty_reduction(name, x, shape)
        if not x.ndim:
            flat = function(x.reshape(1), (0,), False)
            return flat
        if x.dtype is webtorch.bool:
            return function(x.to(webtorch.int32), dims, keep).to(webtorch.bool)
        return function(x, dims, keep)


for _name, _reduce in _REDUCTIONS.items():
    _reduction(_name, _reduce)


def _arg(find: Callable[..., Any]) -> Callable[..., Any]:
    def run(c: Context, a: Attrs, n: int, x: Any) -> Any:
        """Run the search along `axis`, for the last place if the node asks for that."""
        axis, keep = a.get("axis", 0) % x.ndim, bool(a.get("keepdims", 1))
        if not a.get("select_last_index"):
            return find(x, axis, keep)
        return x.shape[axis] - 1 - find(x.flip(axis), axis, keep)

    return run


op("ArgMax")(_arg(lambda x, d, k: x.argmax(d, keepdim=k)))
op("ArgMin")(_arg(lambda x, d, k: x.argmin(d, keepdim=k)))


@op("CumSum", host=(1,))
def _cumsum(c: Context, a: Attrs, n: int, x: Any, axis: Any) -> Any:
    dim = int(number(axis)) % x.ndim
    if a.get("reverse"):
        x = x.flip(dim)
    out = x.cumsum(dim, dtype=x.dtype)
    if a.get("exclusive"):
        out = out - x
    return out.flip(dim) if a.get("reverse") else out


@op("CumProd", host=(1,))
def _cumprod(c: Context, a: Attrs, n: int, x: Any, axis: Any) -> Any:
    dim = int(number(axis)) % x.ndim
    if a.get("reverse"):
        x = x.flip(dim)
    out = x.cumprod(dim, dtype=x.dtype)
    if a.get("exclusive"):
        out = webtorch.cat(
            [webtorch.ones_like(out.narrow(dim, 0, 1)), out.narrow(dim, 0, x.shape[dim] - 1)], dim
        )
    return out.flip(dim) if a.get("reverse") else out


@op("TopK", host=(1,))
def _topk(c: Context, a: Attrs, n: int, x: Any, k: Any = None) -> Any:
    count = a["k"] if k is None else int(number(k))
    dim = a.get("axis", -1) % x.ndim
    # Equal elements in the order of their positions, which a stable sort keeps.
    values, index = x.sort(dim, descending=bool(a.get("largest", 1)), stable=True)
    return values.narrow(dim, 0, count), index.narrow(dim, 0, count)


# ---- shapes ---------------------------------------------------------------------------------------


@op("Shape")
def _shape(c: Context, a: Attrs, n: int, x: Any) -> Any:
    sizes = list(x.shape)[a.get("start", 0) : a.get("end", None)]
    return numpy.array(sizes, dtype=numpy.int64)


@op("Size")
def _size(c: Context, a: Attrs, n: int, x: Any) -> Any:
    return numpy.array(math.prod(x.shape), dtype=numpy.int64)


@op("Reshape", host=(1,))
def _reshape(c: Context, a: Attrs, n: int, x: Any, shape: Any = None) -> Any:
    target = list(a["shape"]) if shape is None else ints(shape) or []
    if not a.get("allowzero"):
        target = [x.shape[d] if s == 0 else s for d, s in enumerate(target)]
    return x.reshape(tuple(target))


@op("Flatten")
def _flatten(c: Context, a: Attrs, n: int, x: Any) -> Any:
    axis = a.get("axis", 1)
    axis = axis + x.ndim if axis < 0 else axis
    return x.reshape((math.prod(x.shape[:axis]), math.prod(x.shape[axis:])))


@op("Squeeze", host=(1,))
def _squeeze(c: Context, a: Attrs, n: int, x: Any, axes: Any = None) -> Any:
    given = a.get("axes") if axes is None else ints(axes)
    return x.squeeze() if given is None else x.squeeze(tuple(given))


@op("Unsqueeze", host=(1,))
def _unsqueeze(c: Context, a: Attrs, n: int, x: Any, axes: Any = None) -> Any:
    given = list(a["axes"]) if axes is None else ints(axes) or []
    rank = x.ndim + len(given)
    for d in sorted(d % rank for d in given):
        x = x.unsqueeze(d)
    return x


@op("Transpose")
def _transpose(c: Context, a: Attrs, n: int, x: Any) -> Any:
    return x.permute(tuple(a.get("perm") or reversed(range(x.ndim))))


@op("Expand", host=(1,))
def _expand(c: Context, a: Attrs, n: int, x: Any, shape: Any) -> Any:
    target = tuple(ints(shape) or ())
    return x.expand(tuple(numpy.broadcast_shapes(tuple(x.shape), target)))


@op("Tile", host=(1,))
def _tile(c: Context, a: Attrs, n: int, x: Any, repeats: Any) -> Any:
    return x.repeat(tuple(ints(repeats) or ()))


@op("Concat")
def _concat(c: Context, a: Attrs, n: int, *x: Any) -> Any:
    device = next(t.device for t in x if isinstance(t, Tensor))
    return webtorch.cat([c.tensor(t, device) for t in x], a.get("axis", 1))


@op("Split", host=(1,))
def _split(c: Context, a: Attrs, n: int, x: Any, split: Any = None) -> Any:
    axis = a.get("axis", 0)
    sizes = a.get("split") if split is None else ints(split)
    if sizes is None:
        parts = a.get("num_outputs", n)
        each = -(-x.shape[axis] // parts)
        sizes = [each] * (parts - 1) + [x.shape[axis] - each * (parts - 1)]
    return tuple(webtorch.split(x, list(sizes), axis))


@op("Slice", host=(1, 2, 3, 4))
def _slice(
    c: Context,
    a: Attrs,
    n: int,
    x: Any,
    starts: Any = None,
    ends: Any = None,
    axes: Any = None,
    steps: Any = None,
) -> Any:
    first = a.get("starts") if starts is None else ints(starts)
    last = a.get("ends") if ends is None else ints(ends)
    assert first is not None and last is not None
    dims = (a.get("axes") if axes is None else ints(axes)) or list(range(len(first)))
    by = [1] * len(first) if steps is None else ints(steps) or []
    for d, start, stop, step in zip(dims, first, last, by, strict=True):
        d %= x.ndim
        size = x.shape[d]
        if step > 0:
            begin = min(max(start + size if start < 0 else start, 0), size)
            end = min(max(stop + size if stop < 0 else stop, 0), size)
            x = x[(slice(None),) * d + (slice(begin, max(begin, end), step),)]
            continue
        begin = min(max(start + size if start < 0 else start, -1), size - 1)
        end = min(max(stop + size if stop < 0 else stop, -1), size - 1)
        where = list(range(begin, end, step))
        x = x.index_select(d, webtorch.tensor(where, dtype=webtorch.int64, device=x.device))
    return x


@op("Pad", host=(1, 2, 3))
def _pad(
    c: Context, a: Attrs, n: int, x: Any, pads: Any = None, value: Any = None, axes: Any = None
) -> Any:
    given = list(a["pads"]) if pads is None else ints(pads) or []
    fill = a.get("value", 0) if value is None else number(value)
    count = len(given) // 2
    dims = list(range(count)) if axes is None else [d % x.ndim for d in ints(axes) or []]
    low, high = [0] * x.ndim, [0] * x.ndim
    for i, d in enumerate(dims):
        low[d], high[d] = given[i], given[i + count]
    mode = a.get("mode", "constant")
    if mode == "constant":
        return _pad_sides(x, low, high, fill)
    # One dim after the other, by positions: any number of dims, and borders larger than the input.
    for d in range(x.ndim):
        size = x.shape[d]
        if not (low[d] or high[d]):
            continue
        where = [_reflected(i, size, mode) for i in range(-low[d], size + high[d])]
        x = x.index_select(d, webtorch.tensor(where, dtype=webtorch.int64, device=x.device))
    return x


def _reflected(i: int, size: int, mode: str) -> int:
    if mode == "edge":
        return min(max(i, 0), size - 1)
    if mode == "wrap":
        return i % size
    period = max(2 * (size - 1), 1)
    i %= period
    return i if i < size else period - i


@op("DepthToSpace")
def _depth_to_space(c: Context, a: Attrs, n: int, x: Any) -> Any:
    b = a["blocksize"]
    batch, channels, height, width = x.shape
    if a.get("mode", "DCR") == "DCR":
        parts = x.reshape(batch, b, b, channels // b**2, height, width).permute(0, 3, 4, 1, 5, 2)
    else:
        parts = x.reshape(batch, channels // b**2, b, b, height, width).permute(0, 1, 4, 2, 5, 3)
    return parts.reshape(batch, channels // b**2, height * b, width * b)


@op("SpaceToDepth")
def _space_to_depth(c: Context, a: Attrs, n: int, x: Any) -> Any:
    b = a["blocksize"]
    batch, channels, height, width = x.shape
    parts = x.reshape(batch, channels, height // b, b, width // b, b)
    order = (0, 1, 3, 5, 2, 4) if a.get("mode") == "CRD" else (0, 3, 5, 1, 2, 4)
    parts = parts.permute(*order)
    return parts.reshape(batch, channels * b * b, height // b, width // b)


@op("ConstantOfShape", host=(0,))
def _constant_of_shape(c: Context, a: Attrs, n: int, shape: Any) -> Any:
    value = a.get("value", numpy.zeros(1, numpy.float32))
    return c.tensor(numpy.full(ints(shape) or (), value.reshape(-1)[0], value.dtype))


@op("Range", host=(0, 1, 2))
def _range(c: Context, a: Attrs, n: int, start: Any, limit: Any, delta: Any) -> Any:
    steps = numpy.arange(number(start), number(limit), number(delta))
    if is_host(start):
        return c.tensor(steps.astype(start.dtype))
    return c.tensor(steps, start.device).to(start.dtype)


@op("EyeLike")
def _eye(c: Context, a: Attrs, n: int, x: Any) -> Any:
    dtype = _dtype(a["dtype"]) if "dtype" in a else x.dtype
    rows, columns = x.shape
    i = webtorch.arange(rows, device=x.device).reshape(-1, 1)
    j = webtorch.arange(columns, device=x.device)
    return (j - i == a.get("k", 0)).to(dtype)


@op("Trilu", host=(1,))
def _trilu(c: Context, a: Attrs, n: int, x: Any, k: Any = None) -> Any:
    diagonal = 0 if k is None else int(number(k))
    wide = x.to(webtorch.int32) if x.dtype is webtorch.bool else x
    out = wide.triu(diagonal) if a.get("upper", 1) else wide.tril(diagonal)
    return out.to(x.dtype)


@op("CenterCropPad", host=(1,))
def _center_crop_pad(c: Context, a: Attrs, n: int, x: Any, shape: Any) -> Any:
    axes = a.get("axes") or list(range(x.ndim))
    for d, size in zip(axes, ints(shape) or [], strict=True):
        d %= x.ndim
        extra = size - x.shape[d]
        if extra < 0:
            x = x.narrow(d, -extra // 2, size)
        elif extra:
            low, high = [0] * x.ndim, [0] * x.ndim
            low[d], high[d] = extra // 2, extra - extra // 2
            x = _pad_sides(x, low, high)
    return x


@op("ReverseSequence", host=(1,))
def _reverse_sequence(c: Context, a: Attrs, n: int, x: Any, lengths: Any) -> Any:
    time, batch = a.get("time_axis", 0), a.get("batch_axis", 1)
    steps = x.shape[time]
    rows = [
        [length - 1 - t if t < length else t for t in range(steps)]
        for length in ints(lengths) or []
    ]
    index = webtorch.tensor(rows, device=x.device)
    index = index if batch < time else index.t()
    shape = [1] * x.ndim
    shape[time], shape[batch] = steps, x.shape[batch]
    return x.gather(time, index.reshape(shape).expand(x.shape))


@op("Compress", host=(1,))
def _compress(c: Context, a: Attrs, n: int, x: Any, condition: Any) -> Any:
    where = [i for i, yes in enumerate(condition.reshape(-1).tolist()) if yes]
    index = webtorch.tensor(where, dtype=webtorch.int64, device=x.device)
    return (
        x.reshape(-1).index_select(0, index)
        if "axis" not in a
        else x.index_select(a["axis"], index)
    )


@op("NonZero")
def _nonzero(c: Context, a: Attrs, n: int, x: Any) -> Any:
    return webtorch.nonzero(x).t()


# ---- indexing -------------------------------------------------------------------------------------


def _wrapped(index: Any, size: int) -> Any:
    """Return positions counted from the front."""
    if is_host(index):
        return numpy.where(index < 0, index + size, index)
    index = index.to(webtorch.int64)
    return webtorch.where(index < 0, index + size, index)


@op("Gather", host=(1,))
def _gather(c: Context, a: Attrs, n: int, x: Any, index: Any) -> Any:
    axis = a.get("axis", 0) % x.ndim
    place = _wrapped(index, x.shape[axis])
    if is_host(place) and place.ndim == 0:
        return x.select(axis, int(place))
    place = c.tensor(place, x.device)
    if axis == 0:
        return F.embedding(place, x) if x.ndim == 2 and x.dtype.is_floating_point else x[place]
    flat = x.index_select(axis, place.reshape(-1))
    return flat.reshape((*x.shape[:axis], *place.shape, *x.shape[axis + 1 :]))


@op("GatherElements")
def _gather_elements(c: Context, a: Attrs, n: int, x: Any, index: Any) -> Any:
    axis = a.get("axis", 0) % x.ndim
    return x.gather(axis, _wrapped(index, x.shape[axis]))


@op("GatherND")
def _gather_nd(c: Context, a: Attrs, n: int, x: Any, index: Any) -> Any:
    batch = a.get("batch_dims", 0)
    depth = index.shape[-1]
    places: list[Any] = []
    for d in range(batch):
        shape = [1] * (index.ndim - 1)
        shape[d] = x.shape[d]
        places.append(webtorch.arange(x.shape[d], device=x.device).reshape(shape))
    places += [_wrapped(index.select(-1, k), x.shape[batch + k]) for k in range(depth)]
    return x[tuple(places)]


@op("ScatterElements", "Scatter")
def _scatter_elements(c: Context, a: Attrs, n: int, x: Any, index: Any, updates: Any) -> Any:
    axis = a.get("axis", 0) % x.ndim
    place = _wrapped(index, x.shape[axis])
    reduce = {"add": "sum", "mul": "prod", "max": "amax", "min": "amin"}.get(
        a.get("reduction", "none")
    )
    if reduce is None:
        return x.scatter(axis, place, updates)
    return x.scatter_reduce(axis, place, updates, reduce)


@op("ScatterND")
def _scatter_nd(c: Context, a: Attrs, n: int, x: Any, index: Any, updates: Any) -> Any:
    depth = index.shape[-1]
    flat = None
    for k in range(depth):
        place = _wrapped(index.select(-1, k), x.shape[k])
        flat = place if flat is None else flat * x.shape[k] + place
    rows = x.reshape((math.prod(x.shape[:depth]), -1))
    values = updates.reshape((-1, rows.shape[1]))
    assert flat is not None
    flat = flat.reshape(-1)
    reduce = {"add": "sum", "mul": "prod", "max": "amax", "min": "amin"}.get(
        a.get("reduction", "none")
    )
    if reduce is None:
        out = rows.index_copy(0, flat, values)
    else:
        out = rows.scatter_reduce(0, flat.reshape(-1, 1).expand(values.shape), values, reduce)
    return out.reshape(x.shape)


@op("OneHot", host=(1,))
def _one_hot(c: Context, a: Attrs, n: int, index: Any, depth: Any, values: Any) -> Any:
    count = int(number(depth))
    axis = a.get("axis", -1)
    rank = index.ndim + 1
    axis %= rank
    shape = [1] * rank
    shape[axis] = count
    place = index.to(webtorch.int64)
    place = webtorch.where(place < 0, place + count, place).unsqueeze(axis)
    hit = webtorch.arange(count, device=index.device).reshape(shape) == place
    return webtorch.where(hit, values[1], values[0])


# ---- images ---------------------------------------------------------------------------------------


@op("Resize", "Upsample", host=(1, 2, 3))
def _resize(
    c: Context, a: Attrs, n: int, x: Any, roi: Any = None, scales: Any = None, sizes: Any = None
) -> Any:
    if scales is None and sizes is None:
        # Upsample, and Resize of opset 10
        scales = roi if roi is not None else numpy.array(a["scales"])
    axes = [d % x.ndim for d in a.get("axes") or range(x.ndim)]
    mode = a.get("mode", "nearest")
    where = a.get("coordinate_transformation_mode", "half_pixel" if c.opset >= 11 else "asymmetric")
    wanted = ints(sizes) if sizes is not None and sizes.size else None
    factors = [float(s) for s in scales.reshape(-1)] if scales is not None and scales.size else None
    if where == "tf_crop_and_resize":
        raise NotImplementedError(
            "load: Resize with tf_crop_and_resize is not available; crop first"
        )
    if wanted is not None and a.get("keep_aspect_ratio_policy", "stretch") != "stretch":
        choose = max if a["keep_aspect_ratio_policy"] == "not_smaller" else min
        ratio = choose(w / x.shape[d] for w, d in zip(wanted, axes, strict=True))
        wanted = [int(ratio * x.shape[d] + 0.5) for d in axes]
        factors = [ratio] * len(axes)
    for i, d in enumerate(axes):
        size = x.shape[d]
        target = (
            wanted[i]
            if wanted is not None
            else math.floor(size * factors[i] + 1e-9)
            if factors
            else size
        )
        scale = factors[i] if factors is not None else target / size
        if target == size and scale == 1:
            continue
        x = _resampled(c, x, d, target, scale, mode, where, a)
    return x


_ROUNDINGS: dict[str, Callable[[Any], Any]] = {
    "floor": numpy.floor, "ceil": numpy.ceil, "round_prefer_ceil": lambda v: numpy.floor(v + 0.5),
    "round_prefer_floor": lambda v: numpy.ceil(v - 0.5),
}  # fmt: skip


def _resampled(
    c: Context, x: Any, d: int, target: int, scale: float, mode: str, where: str, a: Attrs
) -> Any:
    """Return x with another size of one dim: a product with the weights of the old elements."""
    size = x.shape[d]
    i = numpy.arange(target, dtype=numpy.float64)
    match where:
        case "asymmetric":
            at = i / scale
        case "align_corners":
            length = scale * size
            at = i * (size - 1) / (length - 1) if length > 1 else i * 0
        case "pytorch_half_pixel":
            at = (i + 0.5) / scale - 0.5 if target > 1 else i * 0
        case "half_pixel_symmetric":
            adjust = target / (scale * size)
            at = size / 2 * (1 - adjust) + (i + 0.5) / scale - 0.5
        case "tf_half_pixel_for_nn":
            at = (i + 0.5) / scale
        case _:
            at = (i + 0.5) / scale - 0.5
    if mode == "nearest":
        default = "round_prefer_floor" if c.opset >= 11 else "floor"
        place = _ROUNDINGS[a.get("nearest_mode", default)](at)
        place = numpy.clip(place, 0, size - 1).astype(numpy.int64)
        return x.index_select(d, webtorch.from_numpy(place).to(x.device))
    weights = numpy.zeros((target, size))
    cubic = a.get("cubic_coeff_a", -0.75)
    stretch = max(1.0, 1.0 / scale) if a.get("antialias") else 1.0
    reach = (2 if mode == "cubic" else 1) * stretch
    outside = bool(a.get("exclude_outside"))
    for row, center in enumerate(at):
        taps = numpy.arange(math.floor(center - reach) + 1, math.ceil(center + reach) + 1)
        w = _kernel((taps - center) / stretch, mode, cubic)
        inside = (taps >= 0) & (taps < size)
        if outside:
            taps, w = taps[inside], w[inside]
            w = w / w.sum()
        if stretch > 1:
            w = w / w.sum()
        numpy.add.at(weights[row], numpy.clip(taps, 0, size - 1), w)
    matrix = webtorch.from_numpy(weights.astype(numpy.float32)).to(x.device).to(x.dtype)
    return webtorch.tensordot(x, matrix, ([d], [1])).movedim(-1, d)


def _kernel(t: Any, mode: str, a: float) -> Any:
    t = numpy.abs(t)
    if mode == "linear":
        return numpy.maximum(0, 1 - t)
    near = ((a + 2) * t - (a + 3)) * t * t + 1
    far = ((a * t - 5 * a) * t + 8 * a) * t - 4 * a
    return numpy.where(t <= 1, near, numpy.where(t < 2, far, 0))


@op("GridSample")
def _grid_sample(c: Context, a: Attrs, n: int, x: Any, grid: Any) -> Any:
    mode: str = a.get("mode", "linear")
    mode = {"linear": "bilinear", "cubic": "bicubic"}.get(mode, mode)
    return F.grid_sample(
        x, grid, mode, a.get("padding_mode", "zeros"), bool(a.get("align_corners", 0))
    )


@op("AffineGrid", host=(1,))
def _affine_grid(c: Context, a: Attrs, n: int, theta: Any, size: Any) -> Any:
    return F.affine_grid(theta, ints(size) or [], bool(a.get("align_corners", 0)))


@op("Col2Im", host=(1, 2))
def _col2im(c: Context, a: Attrs, n: int, x: Any, image: Any, block: Any) -> Any:
    size, kernel = ints(image) or [], ints(block) or []
    rank = len(size)
    pads = a.get("pads") or [0] * 2 * rank
    low, high = pads[:rank], pads[rank:]
    if rank != 2:
        raise NotImplementedError("load: Col2Im of other than images is not available")
    wide = [s + p + q for s, p, q in zip(size, low, high, strict=True)]
    out = F.fold(x, wide, kernel, a.get("dilations") or 1, 0, a.get("strides") or 1)
    return _pad_sides(out, [-p for p in low], [-p for p in high])


# ---- attention ------------------------------------------------------------------------------------


@op("Attention", host=(6,))
def _attention(
    c: Context,
    a: Attrs,
    n: int,
    q: Any,
    k: Any,
    v: Any,
    mask: Any = None,
    past_key: Any = None,
    past_value: Any = None,
    lengths: Any = None,
) -> Any:
    flat = q.ndim == 3
    if flat:
        # (N, L, heads * E) to (N, heads, L, E)
        heads, shared = a["q_num_heads"], a["kv_num_heads"]
        q = q.reshape(*q.shape[:2], heads, -1).transpose(1, 2)
        k, v = (x.reshape(*x.shape[:2], shared, -1).transpose(1, 2) for x in (k, v))
    if past_key is not None:
        k, v = webtorch.cat([past_key, k], 2), webtorch.cat([past_value, v], 2)
    present = (k, v)
    if q.shape[1] != k.shape[1]:
        k, v = (x.repeat_interleave(q.shape[1] // k.shape[1], 1) for x in (k, v))
    length, source = q.shape[2], k.shape[2]
    factor = a.get("scale", 1 / math.sqrt(q.shape[3])) ** 0.5
    products = (q * factor) @ (k * factor).transpose(-1, -2)
    cap = a.get("softcap", 0.0)
    capped = cap * webtorch.tanh(products / cap) if cap else products
    keys = webtorch.arange(source, device=q.device)
    # The place of a query among the keys: what was before it counts.
    offset: Any = 0 if past_key is None else past_key.shape[2]
    seen = None
    if lengths is not None:
        ends = webtorch.tensor(ints(lengths), device=q.device).reshape(-1, 1, 1, 1)
        seen = keys < ends
        offset = ends - length
    place = webtorch.arange(length, device=q.device).reshape(-1, 1) + offset
    left, right = a.get("left_window_size", -1), a.get("right_window_size", -1)
    limits = [keys <= place] if a.get("is_causal") else []
    limits += [keys >= place - left] if left >= 0 else []
    limits += [keys <= place + right] if right >= 0 else []
    for limit in limits:
        seen = limit if seen is None else seen & limit
    scores = capped
    if mask is not None:
        short = source - mask.shape[-1]
        if mask.dtype is webtorch.bool:
            mask = F.pad(mask, (0, short), value=False) if short else mask
            seen = mask if seen is None else seen & mask
        else:
            scores = scores + (F.pad(mask, (0, short), value=-math.inf) if short else mask)
    if seen is not None:
        scores = webtorch.where(seen, scores, -math.inf)
    wide = scores.float() if a.get("softmax_precision") == 1 else scores
    weights = webtorch.softmax(wide, -1).to(v.dtype)
    # A query that may see no key gets zeros.
    weights = webtorch.where(weights.isnan(), 0.0, weights)
    out = weights @ v
    if flat:
        out = out.transpose(1, 2).reshape(out.shape[0], length, -1)
    if n < 4:
        return (out, *present)[:n]
    shown = (products, capped, scores, weights)[a.get("qk_matmul_output_mode", 0)]
    return out, *present, shown


@op("RotaryEmbedding")
def _rotary(c: Context, a: Attrs, n: int, x: Any, cos: Any, sin: Any, positions: Any = None) -> Any:
    flat = x.ndim == 3
    if flat:
        x = x.reshape(*x.shape[:2], a["num_heads"], -1)
    else:
        x = x.transpose(1, 2)
    size = a.get("rotary_embedding_dim") or x.shape[-1]
    if positions is not None:
        cos, sin = cos[positions], sin[positions]
    cos, sin = (t.unsqueeze(2)[..., : size // 2] for t in (cos, sin))
    turned, rest = x[..., :size], x[..., size:]
    if a.get("interleaved"):
        first, second = turned[..., ::2], turned[..., 1::2]
    else:
        first, second = turned.chunk(2, -1)
    real, imaginary = cos * first - sin * second, sin * first + cos * second
    if a.get("interleaved"):
        out = webtorch.stack([real, imaginary], -1).reshape(turned.shape)
    else:
        out = webtorch.cat([real, imaginary], -1)
    out = webtorch.cat([out, rest], -1)
    return out.reshape(*out.shape[:2], -1) if flat else out.transpose(1, 2)


# ---- losses, random numbers, quantisation ---------------------------------------------------------


@op("NegativeLogLikelihoodLoss")
def _nll(c: Context, a: Attrs, n: int, x: Any, target: Any, weight: Any = None) -> Any:
    ignore = a.get("ignore_index", -100)
    return F.nll_loss(
        x, target.to(webtorch.int64), weight, None, ignore, None, a.get("reduction", "mean")
    )


@op("SoftmaxCrossEntropyLoss")
def _cross_entropy(c: Context, a: Attrs, n: int, x: Any, target: Any, weight: Any = None) -> Any:
    logs = F.log_softmax(x, 1)
    ignore = a.get("ignore_index", -100)
    loss = F.nll_loss(
        logs, target.to(webtorch.int64), weight, None, ignore, None, a.get("reduction", "mean")
    )
    return (loss, logs) if n > 1 else loss


@op("RandomNormal")
def _random_normal(c: Context, a: Attrs, n: int) -> Any:
    made = webtorch.randn(a["shape"], dtype=_dtype(a.get("dtype", 1)))
    return made * a.get("scale", 1.0) + a.get("mean", 0.0)


@op("RandomUniform")
def _random_uniform(c: Context, a: Attrs, n: int) -> Any:
    made = webtorch.rand(a["shape"], dtype=_dtype(a.get("dtype", 1)))
    low, high = a.get("low", 0.0), a.get("high", 1.0)
    return made * (high - low) + low


@op("RandomNormalLike")
def _random_normal_like(c: Context, a: Attrs, n: int, x: Any) -> Any:
    dtype = _dtype(a["dtype"]) if "dtype" in a else x.dtype
    return webtorch.randn_like(x, dtype=dtype) * a.get("scale", 1.0) + a.get("mean", 0.0)


@op("RandomUniformLike")
def _random_uniform_like(c: Context, a: Attrs, n: int, x: Any) -> Any:
    dtype = _dtype(a["dtype"]) if "dtype" in a else x.dtype
    low, high = a.get("low", 0.0), a.get("high", 1.0)
    return webtorch.rand_like(x, dtype=dtype) * (high - low) + low


@op("Bernoulli")
def _bernoulli(c: Context, a: Attrs, n: int, x: Any) -> Any:
    return webtorch.bernoulli(x).to(_dtype(a["dtype"]) if "dtype" in a else x.dtype)


def _integers(x: Any, zero: Any, axis: int) -> Any:
    """Return quantised numbers less their zero point, in float32, which holds their products exactly
    up to 2**24 and sums of them well beyond what a layer adds up.
    """
    wide = x.to(webtorch.int32)
    return (wide if zero is None else wide - _per_axis(zero, x, axis).to(webtorch.int32)).to(
        webtorch.float32
    )


def _requantised(x: Any, scale: Any, zero: Any, axis: int) -> Any:
    info = webtorch.iinfo(zero.dtype)
    out = webtorch.round(x / _per_axis(scale, x, axis)) + _per_axis(zero, x, axis).to(x.dtype)
    return out.clamp(info.min, info.max).to(zero.dtype)


@op("MatMulInteger")
def _matmul_integer(
    c: Context, a: Attrs, n: int, x: Any, y: Any, x_zero: Any = None, y_zero: Any = None
) -> Any:
    left = _integers(x, x_zero, -2)
    return (left @ _integers(y, y_zero, -1)).to(webtorch.int32)


@op("QLinearMatMul")
def _qlinear_matmul(
    c: Context,
    a: Attrs,
    n: int,
    x: Any,
    x_scale: Any,
    x_zero: Any,
    y: Any,
    y_scale: Any,
    y_zero: Any,
    scale: Any,
    zero: Any,
) -> Any:
    product = _integers(x, x_zero, -2) @ _integers(y, y_zero, -1)
    return _requantised(product * (x_scale * y_scale).to(product.dtype), scale, zero, -1)


@op("ConvInteger")
def _conv_integer(
    c: Context, a: Attrs, n: int, x: Any, w: Any, x_zero: Any = None, w_zero: Any = None
) -> Any:
    left = _integers(x, x_zero, 1)
    return _conv(c, a, 1, left, _integers(w, w_zero, 0)).to(webtorch.int32)


@op("QLinearConv")
def _qlinear_conv(
    c: Context,
    a: Attrs,
    n: int,
    x: Any,
    x_scale: Any,
    x_zero: Any,
    w: Any,
    w_scale: Any,
    w_zero: Any,
    scale: Any,
    zero: Any,
    bias: Any = None,
) -> Any:
    out = _conv(c, a, 1, _integers(x, x_zero, 1), _integers(w, w_zero, 0))
    if bias is not None:
        out = out + bias.to(out.dtype).reshape((1, -1) + (1,) * (out.ndim - 2))
    weights = _per_axis(w_scale, out, 1)
    return _requantised(out * (x_scale * weights), scale, zero, 1)


def _per_axis(v: Any, x: Any, axis: int) -> Any:
    if v is None or v.ndim != 1 or v.shape[0] == 1:
        return v
    return v.reshape((-1,) + (1,) * (x.ndim - axis % x.ndim - 1))


@op("DequantizeLinear")
def _dequantize(c: Context, a: Attrs, n: int, x: Any, scale: Any, zero: Any = None) -> Any:
    axis = a.get("axis", 1)
    if a.get("block_size"):
        raise NotImplementedError("load: DequantizeLinear by blocks is not available")
    wide = x.to(webtorch.int32)
    if zero is not None:
        wide = wide - _per_axis(zero, x, axis).to(webtorch.int32)
    return wide.to(scale.dtype) * _per_axis(scale, x, axis)


@op("QuantizeLinear")
def _quantize(c: Context, a: Attrs, n: int, x: Any, scale: Any, zero: Any = None) -> Any:
    axis = a.get("axis", 1)
    if a.get("block_size"):
        raise NotImplementedError("load: QuantizeLinear by blocks is not available")
    dtype = zero.dtype if zero is not None else webtorch.uint8
    info = webtorch.iinfo(dtype)
    scaled = webtorch.round(x / _per_axis(scale, x, axis))
    if zero is not None:
        scaled = scaled + _per_axis(zero, x, axis).to(scaled.dtype)
    return scaled.clamp(info.min, info.max).to(dtype)


@op("DynamicQuantizeLinear")
def _dynamic_quantize(c: Context, a: Attrs, n: int, x: Any) -> Any:
    low, high = x.min().clamp(max=0), x.max().clamp(min=0)
    scale = (high - low) / 255
    zero = webtorch.round(-low / scale).clamp(0, 255).to(webtorch.uint8)
    out = (webtorch.round(x / scale) + zero.to(x.dtype)).clamp(0, 255).to(webtorch.uint8)
    return out, scale, zero


# ---- recurrent ------------------------------------------------------------------------------------


def _clipped(x: Any, clip: Any) -> Any:
    return x if clip is None else x.clamp(-clip, clip)


_ACTIVATIONS: dict[str, Callable[..., Any]] = {
    "Relu": lambda x, a, b: webtorch.relu(x), "Tanh": lambda x, a, b: webtorch.tanh(x),
    "Sigmoid": lambda x, a, b: webtorch.sigmoid(x),
    "Affine": lambda x, a, b: x * (1.0 if a is None else a) + (0.0 if b is None else b),
    "LeakyRelu": lambda x, a, b: F.leaky_relu(x, 0.01 if a is None else a),
    "ThresholdedRelu": lambda x, a, b: webtorch.where(x > (1.0 if a is None else a), x, 0.0),
    "ScaledTanh": lambda x, a, b: a * webtorch.tanh(b * x),
    "HardSigmoid": lambda x, a, b: (x * (0.2 if a is None else a) + (0.5 if b is None else b)).clamp(0, 1),
    "Elu": lambda x, a, b: F.elu(x, 1.0 if a is None else a),
    "Softsign": lambda x, a, b: F.softsign(x), "Softplus": lambda x, a, b: F.softplus(x),
}  # fmt: skip


def _activations(
    a: Attrs, defaults: Sequence[str], directions: int
) -> list[list[Callable[[Any], Any]]]:
    names = a.get("activations") or list(defaults) * directions
    alphas, betas = list(a.get("activation_alpha") or ()), list(a.get("activation_beta") or ())

    def made(i: int, name: str) -> Callable[[Any], Any]:
        """Return an activation with its alpha and beta."""
        alpha = alphas[i] if i < len(alphas) else None
        beta = betas[i] if i < len(betas) else None
        return lambda x: _ACTIVATIONS[name](x, alpha, beta)

    each = len(defaults)
    functions = [made(i, name) for i, name in enumerate(names)]
    return [functions[d * each : (d + 1) * each] for d in range(directions)]


def _recurrent(
    name: str, gates: int, defaults: Sequence[str], step: Callable[..., tuple[Any, ...]]
) -> None:
    @op(name)
    def run(
        c: Context,
        a: Attrs,
        n: int,
        x: Any,
        w: Any,
        r: Any,
        b: Any = None,
        lengths: Any = None,
        h0: Any = None,
        c0: Any = None,
        peepholes: Any = None,
    ) -> Any:
        """Run all directions; return the outputs (steps, directions, batch, hidden) and the last states."""
        directions = w.shape[0]
        hidden = r.shape[2]
        batch_first = a.get("layout", 0)
        if batch_first:
            x = x.transpose(0, 1)
            h0, c0 = (None if s is None else s.transpose(0, 1) for s in (h0, c0))
        steps, batch = x.shape[:2]
        functions = _activations(a, defaults, directions)
        mask = None
        if lengths is not None:
            where = webtorch.arange(steps, device=x.device).reshape(-1, 1)
            mask = (where < lengths.to(webtorch.int64)).unsqueeze(-1)
        outs, lasts, cells = [], [], []
        for d in range(directions):
            backward = a.get("direction", "forward") == "reverse" or d == 1
            bias_w, bias_r = (
                (None, None) if b is None else (b[d, : gates * hidden], b[d, gates * hidden :])
            )
            products = F.linear(x, w[d], bias_w)
            zeros = webtorch.zeros((batch, hidden), dtype=x.dtype, device=x.device)
            h = zeros if h0 is None else h0[d]
            cell = zeros if c0 is None else c0[d]
            p = None if peepholes is None else peepholes[d]
            rows: list[Any] = [None] * steps
            for t in reversed(range(steps)) if backward else range(steps):
                new_h, new_c = step(a, functions[d], products[t], h, cell, r[d], bias_r, p)
                if mask is not None:
                    rows[t] = webtorch.where(mask[t], new_h, 0.0)
                    h = webtorch.where(mask[t], new_h, h)
                    cell = webtorch.where(mask[t], new_c, cell) if new_c is not None else cell
                else:
                    h, cell = new_h, (cell if new_c is None else new_c)
                    rows[t] = h
            outs.append(webtorch.stack(rows))
            lasts.append(h)
            cells.append(cell)
        y = webtorch.stack(outs, 1)
        results = [y, webtorch.stack(lasts), webtorch.stack(cells)]
        if batch_first:
            results = [y.permute(2, 0, 1, 3), *(s.transpose(0, 1) for s in results[1:])]
        return tuple(results[:n])


def _rnn_step(a: Attrs, f: Any, x: Any, h: Any, cell: Any, r: Any, bias: Any, p: Any) -> Any:
    return f[0](_clipped(x + F.linear(h, r, bias), a.get("clip"))), None


def _gru_step(a: Attrs, f: Any, x: Any, h: Any, cell: Any, r: Any, bias: Any, p: Any) -> Any:
    size = h.shape[1]
    xz, xr, xn = x.chunk(3, -1)
    clip = a.get("clip")
    if a.get("linear_before_reset"):
        hz, hr, hn = F.linear(h, r, bias).chunk(3, -1)
        z, reset = f[0](_clipped(xz + hz, clip)), f[0](_clipped(xr + hr, clip))
        new = f[1](_clipped(xn + reset * hn, clip))
    else:
        first = None if bias is None else bias[: 2 * size]
        hz, hr = F.linear(h, r[: 2 * size], first).chunk(2, -1)
        z, reset = f[0](_clipped(xz + hz, clip)), f[0](_clipped(xr + hr, clip))
        last = None if bias is None else bias[2 * size :]
        new = f[1](_clipped(xn + F.linear(reset * h, r[2 * size :], last), clip))
    return (1 - z) * new + z * h, None


def _lstm_step(a: Attrs, f: Any, x: Any, h: Any, cell: Any, r: Any, bias: Any, p: Any) -> Any:
    clip = a.get("clip")
    i, o, forget, g = (x + F.linear(h, r, bias)).chunk(4, -1)
    pi = po = pf = 0.0
    if p is not None:
        pi, po, pf = p.chunk(3, -1)
    i = f[0](_clipped(i + pi * cell, clip))
    forget = 1 - i if a.get("input_forget") else f[0](_clipped(forget + pf * cell, clip))
    new = forget * cell + i * f[1](_clipped(g, clip))
    o = f[0](_clipped(o + po * new, clip))
    return o * f[2](new), new


_recurrent("RNN", 1, ("Tanh",), _rnn_step)
_recurrent("GRU", 3, ("Sigmoid", "Tanh"), _gru_step)
_recurrent("LSTM", 4, ("Sigmoid", "Tanh", "Tanh"), _lstm_step)
