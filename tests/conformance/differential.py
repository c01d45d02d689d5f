"""Random calls, compared with PyTorch: what the samples of its database do not think of.

    python -m tests.conformance.differential --seconds 300
    python -m tests.conformance.differential --seed 1234        (one call again, told in full)

A call is drawn from its seed: an operation, shapes (0-d and empty ones too), dtypes, memory layouts,
values (NaN, infinities, -0, ends of the integers), options, and its form: function, in place on a view of
a larger tensor, with `out=`, differentiated. Both libraries must give the same values, dtype and shape, or
refuse it with the same type of error.
"""

from __future__ import annotations

import argparse
import collections
import random
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch

import webtorch
from tests.conformance import bridge
from tests.conformance.check import TOLERANCE, difference, host_kernels, time_limit

FLOATS = (torch.float32, torch.float32, torch.float32, torch.float64, torch.float16, torch.bfloat16)
INTEGERS = (torch.int64, torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)
COMPLEX = (torch.complex64, torch.complex128)
SPECIAL = (float("nan"), float("inf"), float("-inf"), 0.0, -0.0, 1.0, -1.0, 0.5, 2.0, 1e-30)
SECONDS = 30


class Draw(random.Random):
    """What a call is made of."""

    def dtype(self, kinds: str = "fffiib") -> torch.dtype:
        """Return a type: f float, i integer, b bool, c complex."""
        table = {"f": FLOATS, "i": INTEGERS, "b": (torch.bool,), "c": COMPLEX}
        return self.choice(table[self.choice(kinds)])

    def shape(self, low: int = 0, high: int = 4) -> tuple[int, ...]:
        """Return a shape of low to high dimensions; now and then an empty one."""
        sizes = [1, 2, 3, 4, 5, 7] if self.random() > 0.05 else [0, 1, 2]
        return tuple(self.choice(sizes) for _ in range(self.randint(low, high)))

    def numbers(self, shape: Sequence[int], dtype: torch.dtype, special: bool) -> torch.Tensor:
        """Return values of the type."""
        generator = torch.Generator().manual_seed(self.getrandbits(32))
        if dtype is torch.bool:
            return torch.randint(0, 2, tuple(shape), generator=generator).bool()
        if dtype.is_complex:
            parts = [self.numbers(shape, dtype.to_real(), special) for _ in range(2)]
            return torch.complex(parts[0], parts[1])
        if dtype.is_floating_point:
            x = torch.randn(tuple(shape), generator=generator, dtype=torch.float64) * self.choice(
                [1, 1, 3, 0.1]
            )
            if special and x.numel():
                flat = x.reshape(-1)
                for _ in range(self.randint(1, 3)):
                    flat[self.randrange(flat.numel())] = self.choice(SPECIAL)
            return x.to(dtype)
        low = 0 if dtype is torch.uint8 else -9
        x = torch.randint(low, 10, tuple(shape), generator=generator, dtype=dtype)
        if special and x.numel():
            ends = torch.iinfo(dtype)
            x.reshape(-1)[self.randrange(x.numel())] = self.choice([ends.min, ends.max, 0])
        return x

    def layout(self, x: torch.Tensor) -> torch.Tensor:
        """Return the same values in memory with another order, gaps, or an offset."""
        if not x.ndim or self.random() < 0.5:
            return x
        kind = self.randrange(4)
        if kind == 0:
            order = self.sample(range(x.ndim), x.ndim)
            new = torch.empty([x.shape[d] for d in order], dtype=x.dtype)
            return new.permute([order.index(d) for d in range(x.ndim)]).copy_(x)
        if kind == 1:
            new = torch.zeros((*x.shape[:-1], 2 * x.shape[-1] + 1), dtype=x.dtype)
            return new[..., 1::2].copy_(x) if x.shape[-1] else x
        if kind == 2:
            return torch.cat([x[:1], x, x])[1 if x.shape[0] else 0 :][: x.shape[0]]
        return x.narrow(0, 0, 1).expand_as(x) if x.shape[0] else x

    def tensor(
        self,
        shape: Sequence[int] | None = None,
        dtype: torch.dtype | None = None,
        special: bool | None = None,
    ) -> torch.Tensor:
        """Return a tensor in some layout."""
        shape = self.shape() if shape is None else shape
        special = self.random() < 0.25 if special is None else special
        return self.layout(self.numbers(shape, dtype or self.dtype(), special))

    def partner(self, shape: Sequence[int]) -> tuple[int, ...]:
        """Return a shape that broadcasts with this one; seldom one that does not."""
        new = [1 if self.random() < 0.25 else s for s in shape]
        if self.random() < 0.03 and new:
            new[self.randrange(len(new))] += 1
        new = new[self.randint(0, len(new)) if self.random() < 0.3 else 0 :]
        return (
            (*self.shape(0, 1), *new)
            if len(new) == len(shape) and self.random() < 0.15
            else tuple(new)
        )

    def number(self) -> Any:
        """Return a Python number."""
        return self.choice(
            [0, 1, 2, -1, 3, 7, 0.5, -1.5, 2.0, 1e-3, True, False, float("inf"), float("nan")]
        )

    def dim(self, x: torch.Tensor) -> int:
        """Return a dimension, counted from either end; seldom one that is not there."""
        n = max(1, x.ndim) + (1 if self.random() < 0.02 else 0)
        return self.randrange(-n, n)

    def dims(self, x: torch.Tensor) -> Any:
        """Return several dimensions, one, or all."""
        if self.random() < 0.5:
            return self.dim(x)
        return tuple(self.sample(range(x.ndim), self.randint(0, x.ndim))) if x.ndim else ()


class Call:
    """A name of PyTorch and its arguments."""

    def __init__(self, name: str, *args: Any, **kwargs: Any) -> None:
        self.name, self.args, self.kwargs = name, args, kwargs

    def __str__(self) -> str:
        parts = [_text(a) for a in self.args] + [f"{k}={_text(v)}" for k, v in self.kwargs.items()]
        return f"{self.name}({', '.join(parts)})"


def _text(item: Any) -> str:
    if isinstance(item, torch.Tensor):
        gaps = "" if item.is_contiguous() else f" strides {tuple(item.stride())}"
        values = f" {item.tolist()}" if item.numel() <= 6 else ""
        return f"<{str(item.dtype)[6:]} {tuple(item.shape)}{gaps}{values}>"
    if isinstance(item, (list, tuple)):
        return f"[{', '.join(map(_text, item))}]"
    return repr(item)


# -- families of operations -----------------------------------------------------------------------------

_UNARY = """
    abs acos acosh asin asinh atan atanh ceil cos cosh deg2rad digamma erf erfc erfinv exp exp2 expm1 floor frac
    i0 isfinite isinf isnan isneginf isposinf lgamma log log10 log1p log2 logical_not logit nan_to_num neg
    positive rad2deg reciprocal round rsqrt sgn sigmoid sign signbit sin sinc sinh sqrt square tan tanh trunc
    bitwise_not special.entr special.erfcx special.i0e special.i1 special.i1e special.log_ndtr special.ndtr
    special.ndtri special.bessel_j0 special.bessel_j1 angle real isreal
    nn.functional.relu nn.functional.relu6 nn.functional.elu nn.functional.selu nn.functional.celu
    nn.functional.gelu nn.functional.silu nn.functional.mish nn.functional.softplus nn.functional.softsign
    nn.functional.hardtanh nn.functional.hardswish nn.functional.hardsigmoid nn.functional.logsigmoid
    nn.functional.tanhshrink nn.functional.leaky_relu nn.functional.softshrink nn.functional.hardshrink"""
UNARY = _UNARY.split()
_BINARY = """
    add sub mul div true_divide floor_divide remainder fmod pow float_power atan2 maximum minimum fmax fmin hypot
    copysign nextafter logaddexp logaddexp2 xlogy special.xlog1py eq ne lt le gt ge logical_and logical_or
    logical_xor bitwise_and bitwise_or bitwise_xor bitwise_left_shift bitwise_right_shift gcd lcm heaviside
    ldexp rsub isclose arctan2 subtract multiply divide special.zeta dist"""
BINARY = _BINARY.split()
_REDUCE = """
    sum mean prod amax amin all any std var logsumexp nansum nanmean argmax argmin median nanmedian mode
    count_nonzero cumsum cumprod cummax cummin logcumsumexp sort argsort max min softmax log_softmax
    std_mean var_mean aminmax norm linalg.vector_norm diff unbind msort renorm"""
REDUCE = _REDUCE.split()
_IN_PLACE = """
    add_ sub_ mul_ div_ floor_divide_ remainder_ fmod_ pow_ clamp_ fill_ copy_ neg_ abs_ exp_ sqrt_ sigmoid_
    tanh_ zero_ eq_ lt_ logical_and_ bitwise_or_ masked_fill_ addcmul_ addcdiv_ lerp_ round_ floor_ trunc_
    relu_ cumsum_ atan2_ copysign_ hypot_ sign_ reciprocal_ rsqrt_ square_ nan_to_num_ where"""
IN_PLACE = _IN_PLACE.split()


def unary(r: Draw) -> Call:
    """Return a call of an elementwise function of one tensor."""
    name = r.choice(UNARY)
    x = r.tensor(dtype=r.dtype("ffffiib" + ("c" if r.random() < 0.2 else "")))
    if name == "round" and r.random() < 0.3:
        return Call(name, x, decimals=r.randint(-2, 3))
    if name == "nan_to_num" and r.random() < 0.5:
        return Call(name, x, nan=r.number(), posinf=r.choice([None, 3.0]))
    if name == "logit" and r.random() < 0.5:
        return Call(name, x, eps=r.choice([None, 0.1, 1e-6]))
    return Call(name, x)


def binary(r: Draw) -> Call:
    """Return a call of an elementwise function of two tensors, or a tensor and a number."""
    name, x = r.choice(BINARY), r.tensor()
    if r.random() < 0.3:
        y: Any = r.number()
        args = (x, y) if r.random() < 0.8 else (y, x)
    else:
        same = r.random() < 0.6
        y = r.tensor(r.partner(x.shape), x.dtype if same else None)
        args = (x, y)
    kwargs: dict[str, Any] = {}
    if name in ("add", "sub", "rsub", "subtract") and r.random() < 0.3:
        kwargs["alpha"] = r.choice([2, 0.5, -1, 0, True])
    if name in ("div", "divide") and r.random() < 0.6:
        kwargs["rounding_mode"] = r.choice([None, "trunc", "floor"])
    if name == "isclose":
        kwargs["equal_nan"] = r.random() < 0.5
    return Call(name, *args, **kwargs)


def ternary(r: Draw) -> Call:
    """Return a call of an elementwise function of three operands."""
    name, x = (
        r.choice(["where", "addcmul", "addcdiv", "clamp", "lerp", "clamp_min", "clamp_max"]),
        r.tensor(),
    )
    y, z = r.tensor(r.partner(x.shape), x.dtype), r.tensor(r.partner(x.shape), x.dtype)
    if r.random() < 0.2:
        z = r.tensor(r.partner(x.shape))
    match name:
        case "where":
            mask = r.tensor(r.partner(x.shape), torch.bool)
            return Call(name, mask, r.choice([x, r.number()]), r.choice([y, z, r.number()]))
        case "clamp":
            ends = [r.choice([None, r.number()]) for _ in range(2)] if r.random() < 0.6 else [y, z]
            return Call(name, x, *ends)
        case "clamp_min" | "clamp_max":
            return Call(name, x, r.choice([y, r.number()]))
        case "lerp":
            return Call(name, x, y, r.choice([z, r.number()]))
    return (
        Call(name, x, y, z, value=r.choice([1, 2, 0.5, -1]))
        if r.random() < 0.5
        else Call(name, x, y, z)
    )


def reduction(r: Draw) -> Call:
    """Return a call of a reduction, a scan or a sort."""
    name = r.choice(REDUCE)
    x = r.tensor(dtype=r.dtype("ffffiib"))
    kwargs: dict[str, Any] = {}
    if name in ("std", "var", "std_mean", "var_mean"):
        if r.random() < 0.7:
            kwargs["dim"] = r.dims(x)
        if r.random() < 0.5:
            kwargs["correction"] = r.choice([0, 1, 2, 0.5])
        kwargs["keepdim"] = r.random() < 0.5
        return Call(name, x, **kwargs)
    if name in (
        "sum",
        "mean",
        "nansum",
        "nanmean",
        "amax",
        "amin",
        "all",
        "any",
        "logsumexp",
        "count_nonzero",
    ):
        if r.random() < 0.75 or name == "logsumexp":
            kwargs["dim"] = r.dims(x)
            if name != "count_nonzero" and r.random() < 0.5:
                kwargs["keepdim"] = True
        if name in ("sum", "mean", "nansum", "nanmean") and r.random() < 0.25:
            kwargs["dtype"] = r.choice([torch.float32, torch.float64, torch.int64, torch.float16])
        return Call(name, x, **kwargs)
    if name in ("norm", "linalg.vector_norm"):
        kwargs["dim"] = r.dims(x)
        return Call(name, x, r.choice([2, 1, 0, float("inf"), -float("inf"), 3, 0.5]), **kwargs)
    if name == "renorm":
        return Call(name, x, r.choice([1, 2]), r.dim(x), r.choice([0.5, 1.0, 3.0]))
    if name in (
        "unbind",
        "cumsum",
        "cumprod",
        "cummax",
        "cummin",
        "logcumsumexp",
        "softmax",
        "log_softmax",
    ):
        if name in ("cumsum", "cumprod", "softmax", "log_softmax") and r.random() < 0.25:
            kwargs["dtype"] = r.choice([torch.float32, torch.float64, torch.int64, torch.float16])
        return Call(name, x, r.dim(x), **kwargs)
    if name == "msort":
        return Call(name, x)
    if name == "diff":
        return Call(name, x, n=r.choice([0, 1, 2]), dim=r.dim(x))
    if name in ("sort", "argsort"):
        return Call(name, x, dim=r.dim(x), stable=True, descending=r.random() < 0.5)
    if r.random() < 0.7:
        kwargs["dim"] = r.dim(x)
        if r.random() < 0.5:
            kwargs["keepdim"] = True
    return Call(name, x, **kwargs)


def movement(r: Draw) -> Call:
    """Return a call that moves elements."""
    x = r.tensor()
    d = r.dim(x)
    size = x.shape[d] if -x.ndim <= d < x.ndim else 1
    y = r.tensor([s if i != d % max(1, x.ndim) else r.randint(0, 3) for i, s in enumerate(x.shape)])
    return r.choice([
        lambda: Call("roll", x, r.randint(-5, 5), r.choice([d, None])),
        lambda: Call("flip", x, r.dims(x)),
        lambda: Call("rot90", x, r.randint(-3, 5), r.choice([[0, 1], [1, 0], [-1, 0]])),
        lambda: Call("cat", [x, y, x], d),
        lambda: Call("cat", [x, y], dim=d),
        lambda: Call("stack", [x, r.tensor(x.shape), x], d),
        lambda: Call("hstack", [x, y]),
        lambda: Call("vstack", [x, y]),
        lambda: Call("dstack", [x, x]),
        lambda: Call("chunk", x, r.randint(1, 4), d),
        lambda: Call("split", x, r.randint(1, 4), d),
        lambda: Call("tensor_split", x, r.choice([r.randint(1, 4), [1, 3], [-1]]), d),
        lambda: Call("repeat_interleave", x, r.randint(0, 3), r.choice([d, None])),
        lambda: Call("Tensor.repeat", x, *[r.randint(0, 2) for _ in range(x.ndim + r.randint(0, 1))]),
        lambda: Call("tile", x, [r.randint(1, 2) for _ in range(r.randint(0, 3))]),
        lambda: Call("Tensor.unfold", x, d, r.randint(0, max(1, size)), r.randint(1, 3)),
        lambda: Call("movedim", x, d, r.dim(x)),
        lambda: Call("transpose", x, d, r.dim(x)),
        lambda: Call("permute", x, r.sample(range(x.ndim), x.ndim)),
        lambda: Call("flatten", x, *sorted([r.dim(x) % max(1, x.ndim), r.dim(x) % max(1, x.ndim)])),
        lambda: Call("squeeze", x, *r.choice([(), (d,), (r.dims(x),)])),
        lambda: Call("unsqueeze", x, r.dim(x)),
        lambda: Call("reshape", x, (*x.shape[:-1], -1) if x.ndim else (1, -1)),
        lambda: Call("tril", x, r.randint(-3, 3)),
        lambda: Call("triu", x, r.randint(-3, 3)),
        lambda: Call("diagonal", x, r.randint(-2, 2), *r.choice([(0, 1), (1, 0), (-1, 0), (0, -1)])),
        lambda: Call("diag_embed", x, r.randint(-2, 2)),
        lambda: Call("diag", x, r.randint(-2, 2)),
        lambda: Call("narrow", x, d, r.randint(-2, 2), r.randint(0, 2)),
        lambda: Call("select", x, d, r.randint(-3, 3)),
        lambda: Call("Tensor.to", x, r.dtype("ffib")) if x.dtype in INTEGERS or x.dtype is torch.bool else
        Call("Tensor.to", x.clamp(0, 9).nan_to_num(1), r.dtype("ffib")),
        lambda: Call("bincount", r.numbers((r.randint(0, 9),), torch.uint8, False), minlength=r.randint(0, 5)),
        lambda: Call("kron", x, r.tensor(r.shape(0, 2))),
        lambda: Call("trace", x),
        lambda: Call("unflatten", x, d, (1, -1)),
        lambda: Call("swapaxes", x, d, r.dim(x)),
        lambda: Call("block_diag", x, y),
        lambda: Call("cov", x),
        lambda: Call("nonzero", x),
        lambda: Call("unique", x.nan_to_num(1) if x.is_floating_point() else x, return_inverse=True,
                     return_counts=True),
        lambda: Call("unique_consecutive", x, return_counts=True),
        lambda: Call("isin", x, y),
        lambda: Call("searchsorted", x.nan_to_num(0).sort(-1)[0] if x.ndim == 1 else torch.arange(5.0), y.nan_to_num(0),
                     right=r.random() < 0.5),
        lambda: Call("bucketize", x, torch.tensor([-1.0, 0.0, 2.0]), right=r.random() < 0.5),
        lambda: Call("nn.functional.one_hot", r.numbers(r.shape(0, 2), torch.uint8, False).long(), 10),
        lambda: Call("meshgrid", r.tensor(r.shape(0, 1)), r.tensor(r.shape(0, 1)), indexing=r.choice(["ij", "xy"])),
        lambda: Call("trapezoid", x, dim=d),
        lambda: Call("heaviside", x, r.tensor(r.partner(x.shape), x.dtype)),
        lambda: Call("topk", x, r.randint(0, 3), d),
        lambda: Call("kthvalue", x, r.randint(1, 3), d),
        lambda: Call("quantile", x, r.choice([0.5, 0.0, 1.0, 0.3]), dim=r.choice([None, d]), keepdim=r.random() < 0.5),
        lambda: Call("histc", x, 5, -2, 2),
        lambda: Call("as_strided", x.contiguous(), (2, 2), (1, 1)),
        lambda: Call("complex", x, r.tensor(r.partner(x.shape), x.dtype)),
        lambda: Call("polar", x, r.tensor(r.partner(x.shape), x.dtype)),
    ])()  # fmt: skip


def _positions(r: Draw, shape: Sequence[int], size: int) -> torch.Tensor:
    x = torch.tensor(
        [r.randrange(max(1, size)) for _ in range(torch.Size(shape).numel())], dtype=torch.int64
    )
    return r.layout(x.reshape(tuple(shape)))


def indexing(r: Draw) -> Call:
    """Return a call that reads or writes at places."""
    x = r.tensor(r.shape(1, 4))
    d = r.randrange(-x.ndim, x.ndim)
    size = x.shape[d]
    near = [
        max(0, s - r.randint(0, 1)) if i != d % x.ndim else r.randint(0, 4)
        for i, s in enumerate(x.shape)
    ]
    where = _positions(r, near if size else [0] * x.ndim, size)
    line = _positions(r, (r.randint(0, 4) if size else 0,), size)
    src = r.tensor(where.shape, x.dtype)
    rows = list(x.shape)
    rows[d] = len(line)
    other = r.tensor(rows, x.dtype)
    return r.choice([
        lambda: Call("gather", x, d, where),
        lambda: Call("scatter", x, d, _distinct(r, x, d), r.number()),
        lambda: Call("scatter_add", x, d, where, src),
        lambda: Call("scatter_reduce", x, d, where, src, r.choice(["sum", "prod", "mean", "amax", "amin"]),
                     include_self=r.random() < 0.5),
        lambda: Call("index_select", x, d, line),
        lambda: Call("index_add", x, d, line, other, alpha=r.choice([1, 2, -1])),
        lambda: Call("index_copy", x, d, line[:1], other.narrow(d, 0, min(1, len(line)))),
        lambda: Call("index_fill", x, d, line, r.number()),
        lambda: Call("index_reduce", x, d, line, other, r.choice(["prod", "mean", "amax", "amin"]),
                     include_self=r.random() < 0.5),
        lambda: Call("take", x, _positions(r, r.shape(0, 2) if x.numel() else (0,), x.numel())),
        lambda: Call("take_along_dim", x, where, d),
        lambda: Call("masked_fill", x, r.tensor(r.partner(x.shape), torch.bool), r.number()),
        lambda: Call("masked_select", x, r.tensor(r.partner(x.shape), torch.bool)),
        lambda: Call("masked_scatter", x, r.tensor(x.shape, torch.bool), r.tensor((2 * x.numel(),), x.dtype)),
        lambda: Call("Tensor.__getitem__", x, _index(r, x.shape)),
        lambda: Call("Tensor.__getitem__", x, _index(r, x.shape)),
        lambda: Call("Tensor.__setitem__", x.clone(), _index(r, x.shape), r.number()),
        lambda: Call("Tensor.__setitem__", x.clone(), _index(r, x.shape), r.tensor((), x.dtype)),
        lambda: Call("index_put", x, (line,), r.tensor((), x.dtype), accumulate=d % x.ndim == 0 and r.random() < 0.5)
        if d % x.ndim == 0 else Call("argwhere", x),
        lambda: Call("select_scatter", x, x.select(d, 0).clone(), d, 0) if size else Call("argwhere", x),
        lambda: Call("slice_scatter", x, x.narrow(d, 0, min(1, size)).clone(), d, 0, min(1, size)),
        lambda: Call("diagonal_scatter", x, torch.diagonal(x).clone()) if x.ndim > 1 else Call("argwhere", x),
        lambda: Call("nn.functional.embedding", _positions(r, r.shape(0, 2), x.shape[0]), x.float())
        if x.ndim == 2 and x.shape[0] else Call("argwhere", x),
    ])()  # fmt: skip


def _distinct(r: Draw, x: torch.Tensor, d: int) -> torch.Tensor:
    order = torch.tensor(r.sample(range(x.shape[d]), x.shape[d]), dtype=torch.int64)
    view = [1] * x.ndim
    view[d] = -1
    return order.reshape(view).expand(x.shape)


def _index(r: Draw, shape: Sequence[int]) -> Any:
    """Return an index expression: numbers, slices, None, an ellipsis, masks, tensors of places."""
    parts: list[Any] = []
    left = list(shape)
    dots = r.random() < 0.2
    mixed = r.random() < 0.4
    common = r.shape(0, 2)
    while left and r.random() < 0.8:
        size = left.pop(0)
        kind = r.randrange(8 if mixed else 4)
        if kind == 0 and size:
            parts.append(r.randrange(-size, size))
        elif kind == 1:
            parts.append(
                slice(
                    r.choice([None, 0, 1, -2]), r.choice([None, 2, -1, 9]), r.choice([None, 1, 2])
                )
            )
        elif kind == 2:
            parts.append(None)
            left.insert(0, size)
            if r.random() < 0.5:
                parts.append(slice(None))
                left.pop(0)
        elif kind == 3:
            parts.append(slice(None))
        elif kind < 6 and size:
            parts.append(
                _positions(r, r.choice([common, common[-1:], ()]), size) - r.choice([0, 0, size])
            )
        elif kind == 6 and size:
            parts.append([r.randrange(-size, size) for _ in range(r.randint(1, 3))])
        else:
            parts.append(r.numbers((size,), torch.bool, False))
    if dots:
        parts.append(Ellipsis)
    return parts[0] if len(parts) == 1 and r.random() < 0.5 else tuple(parts)


def products(r: Draw) -> Call:
    """Return a call of a sum of products, a convolution, a pool or a norm."""
    dtype = r.choice([torch.float32, torch.float32, torch.float64, r.dtype("fffiibc")])
    b, n, k, m = (r.choice([1, 2, 3, 5]) for _ in range(4))
    if r.random() < 0.05:
        k = 0

    def t(*shape: int) -> torch.Tensor:
        return r.tensor(shape, dtype, special=r.random() < 0.05)

    def image(c: int, rank: int) -> torch.Tensor:
        return t(*([b] if r.random() < 0.8 else []), c, *[r.randint(3, 7) for _ in range(rank)])

    rank = r.choice([1, 1, 2, 2, 3])
    groups = r.choice([1, 1, 2])
    kernel = [r.randint(1, 3) for _ in range(rank)]
    options: dict[str, Any] = {
        "stride": r.randint(1, 2), "padding": r.randint(0, 2), "dilation": r.randint(1, 2), "groups": groups,
    }  # fmt: skip
    c_in, c_out = 2 * groups, 2 * groups
    f = "nn.functional."
    return r.choice([
        lambda: Call("matmul", t(*r.choice([(k,), (n, k), (b, n, k), (1, n, k), (2, b, n, k)])),
                     t(*r.choice([(k,), (k, m), (b, k, m), (b, k, 1)]))),
        lambda: Call("mm", t(n, k), t(k, m)),
        lambda: Call("bmm", t(b, n, k), t(b, k, m)),
        lambda: Call("addmm", t(*r.choice([(n, m), (m,), (1, m), ()])), t(n, k), t(k, m), beta=r.choice([1, 0, 2]),
                     alpha=r.choice([1, 2])),
        lambda: Call("baddbmm", t(*r.choice([(b, n, m), (m,), (1, n, 1)])), t(b, n, k), t(b, k, m),
                     beta=r.choice([1, 0, 2])),
        lambda: Call("addmv", t(n), t(n, k), t(k), alpha=r.choice([1, 2])),
        lambda: Call("addr", t(*r.choice([(n, m), (m,), ()])), t(n), t(m), beta=r.choice([1, 0, 2])),
        lambda: Call("outer", t(n), t(m)),
        lambda: Call("dot", t(k), t(k)),
        lambda: Call("inner", t(n, k), t(m, k)),
        lambda: Call("tensordot", t(n, k, b), t(b, k, m), dims=([1, 2], [1, 0])),
        lambda: Call("einsum", r.choice(["ij,jk->ik", "ij,jk->ki", "ij,jk", "ij,jk->"]), t(n, k), t(k, m)),
        lambda: Call("einsum", r.choice(["bij,bjk->bik", "bij,bjk->ik", "...ij,...jk->...ik"]), t(b, n, k), t(b, k, m)),
        lambda: Call("einsum", r.choice(["ii->i", "ii", "ij->j"]), t(n, n)),
        lambda: Call(f + "linear", t(*r.choice([(k,), (n, k), (b, n, k)])), t(m, k), r.choice([None, t(m)])),
        lambda: Call(f + f"conv{rank}d", image(c_in, rank), t(c_out, c_in // groups, *kernel),
                     r.choice([None, t(c_out)]), **options),
        lambda: Call(f + f"conv_transpose{rank}d", image(c_in, rank), t(c_in, c_out // groups, *kernel),
                     r.choice([None, t(c_out)]), **options),
        lambda: Call(f + f"max_pool{rank}d", image(c_in, rank), r.randint(1, 3), r.choice([None, 1, 2]),
                     r.randint(0, 1),
                     r.randint(1, 2), ceil_mode=r.random() < 0.5),
        lambda: Call(f + f"avg_pool{rank}d", image(c_in, rank), r.randint(1, 3), r.choice([None, 1, 2]),
                     r.randint(0, 1),
                     ceil_mode=r.random() < 0.5, count_include_pad=r.random() < 0.5),
        lambda: Call(f + f"adaptive_avg_pool{rank}d", image(c_in, rank), r.randint(1, 4)),
        lambda: Call(f + f"adaptive_max_pool{rank}d", image(c_in, rank), r.randint(1, 4)),
        lambda: Call(f + "pad", image(c_in, rank), [r.randint(-1, 2) for _ in range(2 * rank)],
                     mode=r.choice(["constant", "reflect", "replicate", "circular"])),
        lambda: Call(f + "interpolate", image(c_in, 2), scale_factor=r.choice([2, 0.5, 1.7]),
                     mode=r.choice(["nearest", "bilinear", "bicubic", "area", "nearest-exact"])),
        lambda: Call(f + "unfold", image(c_in, 2), r.randint(1, 3), dilation=r.randint(1, 2), padding=r.randint(0, 1)),
        lambda: Call(f + "layer_norm", t(b, n, m), (m,), r.choice([None, t(m)]), r.choice([None, t(m)])),
        lambda: Call(f + "group_norm", t(b, 4, n), r.choice([1, 2, 4]), r.choice([None, t(4)])),
        lambda: Call(f + "batch_norm", t(b, n, m), None, None, r.choice([None, t(n)]), training=True),
        lambda: Call(f + "rms_norm", t(b, n, m), (m,), r.choice([None, t(m)])),
        lambda: Call(f + "normalize", t(b, n, m), p=r.choice([1, 2, 3.0]), dim=r.randint(-3, 2)),
        lambda: Call(f + "cosine_similarity", t(b, n), t(b, n), dim=r.randint(-2, 1)),
        lambda: Call(f + "pairwise_distance", t(b, n), t(b, n), p=r.choice([1, 2, 3.0])),
        lambda: Call("cdist", t(n, k), t(m, k), p=r.choice([1.0, 2.0, 0.0, float("inf")])),
        lambda: Call(f + "mse_loss", t(b, n), t(b, n), reduction=r.choice(["none", "sum", "mean"])),
        lambda: Call(f + "smooth_l1_loss", t(b, n), t(b, n), beta=r.choice([0.0, 1.0, 0.5])),
        lambda: Call(f + "huber_loss", t(b, n), t(b, n), delta=r.choice([1.0, 0.5])),
        lambda: Call(f + "kl_div", t(b, n), t(b, n), reduction=r.choice(["none", "batchmean", "sum"])),
        lambda: Call(f + "cross_entropy", t(b, n), _positions(r, (b,), n), label_smoothing=r.choice([0.0, 0.1]),
                     ignore_index=r.choice([-100, 0])),
        lambda: Call(f + "nll_loss", t(b, n), _positions(r, (b,), n), weight=r.choice([None, t(n)])),
        lambda: Call(f + "binary_cross_entropy_with_logits", t(b, n), t(b, n)),
        lambda: Call(f + "glu", t(b, 2 * n), r.randint(-2, 1)),
        lambda: Call(f + "prelu", t(b, n), t(r.choice([1, n]))),
        lambda: Call(f + "scaled_dot_product_attention", t(b, n, 4), t(b, m, 4), t(b, m, 4),
                     is_causal=r.random() < 0.3),
        lambda: Call(f + "pixel_shuffle", t(b, 4, n, m), 2),
        lambda: Call("cross", t(b, 3), t(*r.choice([(b, 3), (1, 3)]))),
        lambda: Call("linalg.matrix_norm", t(n, m), r.choice(["fro", 1, float("inf"), -1])),
        lambda: Call("linalg.inv", t(n, n)),
        lambda: Call("linalg.det", t(n, n)),
        lambda: Call("linalg.solve", t(n, n), t(n, m)),
        lambda: Call("linalg.matrix_power", t(n, n), r.randint(0, 3)),
        lambda: Call("fft." + r.choice(["fft", "ifft", "rfft"]), t(b, n), norm=r.choice([None, "ortho", "forward"])),
        lambda: Call("corrcoef", t(b, n)),
        lambda: Call("chain_matmul", t(n, k), t(k, m), t(m, b)),
    ])()  # fmt: skip


def creation(r: Draw) -> Call:
    """Return a call that makes a tensor from numbers, or one like another."""
    x = r.tensor()
    start, end = r.choice([0, 1, -2, 0.5, True]), r.choice([5, 3, 1.5, -3, 0])
    dtype = r.choice([None, r.dtype()])
    return r.choice([
        lambda: Call("arange", start, end, r.choice([1, 2, 0.5, -1, 0.3]), dtype=dtype),
        lambda: Call("linspace", start, end, r.randint(0, 5), dtype=dtype),
        lambda: Call("full", r.shape(), r.number(), dtype=dtype),
        lambda: Call("full_like", x, r.number(), dtype=dtype),
        lambda: Call("zeros_like", x, dtype=dtype),
        lambda: Call("eye", r.randint(0, 4), r.randint(0, 4), dtype=dtype),
        lambda: Call("tril_indices", r.randint(0, 4), r.randint(0, 4), r.randint(-2, 2)),
        lambda: Call("vander", r.tensor(r.shape(1, 1)), r.choice([None, 3])),
        lambda: Call("tensor", r.choice([1, 2.5, True, [1, 2.0], [[True, 2]], [], [[]], [1 + 2j]]), dtype=dtype),
        lambda: Call("result_type", x, r.choice([r.tensor(), r.number()])),
        lambda: Call("scalar_tensor", r.number(), dtype=dtype),
        lambda: Call("Tensor.new_full", x, r.shape(), r.number()),
        lambda: Call("logspace", start, end, r.randint(0, 5), dtype=dtype),
        lambda: Call("hann_window", r.randint(0, 6)),
        lambda: Call("Tensor.type_as", x.nan_to_num(1).clamp(0, 5) if x.is_floating_point() else x, r.tensor()),
        lambda: Call("equal", x, r.choice([x.clone(), r.tensor(x.shape, x.dtype)])),
        lambda: Call("allclose", x, r.choice([x.clone(), r.tensor(x.shape, x.dtype)]), equal_nan=r.random() < 0.5),
        lambda: Call("Tensor.tolist", x),
    ])()  # fmt: skip


def in_place(r: Draw) -> Call:
    """Return a call that overwrites a tensor, which may be a view of a larger one."""
    name = r.choice(IN_PLACE)
    x = r.tensor()
    y: Any = r.tensor(
        x.shape if r.random() < 0.7 else r.partner(x.shape), x.dtype if r.random() < 0.6 else None
    )
    if r.random() < 0.3:
        y = r.number()
    match name:
        case "clamp_":
            return Call(
                "Tensor.clamp_", x, r.choice([None, r.number()]), r.choice([None, r.number()])
            )
        case "masked_fill_":
            return Call(
                "Tensor.masked_fill_", x, r.tensor(r.partner(x.shape), torch.bool), r.number()
            )
        case "addcmul_" | "addcdiv_" | "lerp_":
            return Call(f"Tensor.{name}", x, r.tensor(x.shape, x.dtype), r.tensor(x.shape, x.dtype))
        case "cumsum_":
            return Call("Tensor.cumsum_", x, r.dim(x))
        case "where":
            return Call("Tensor.where", x, r.tensor(x.shape, torch.bool), y)
    arity = name in BINARY_IN_PLACE
    return Call(f"Tensor.{name}", x, y) if arity else Call(f"Tensor.{name}", x)


_BINARY_IN_PLACE = """add_ sub_ mul_ div_ floor_divide_ remainder_ fmod_ pow_ fill_ copy_ eq_ lt_ logical_and_
        bitwise_or_ atan2_ copysign_ hypot_"""
BINARY_IN_PLACE = _BINARY_IN_PLACE.split()

FAMILIES: tuple[tuple[int, Callable[[Draw], Call]], ...] = (
    (3, unary), (5, binary), (2, ternary), (5, reduction), (5, movement), (5, indexing), (5, products), (2, creation),
    (4, in_place),
)  # fmt: skip
# What PyTorch leaves open: values beyond the type on the way to an integer, and what only one of its
# kernels does. By name; compared in shape and dtype alone.
_OPEN = frozenset(["mode", "median", "nanmedian", "kthvalue", "topk"])


# -- both sides --------------------------------------------------------------------------------------------


def _find(like: Any, name: str) -> Any:
    found = like
    for part in name.split("."):
        found = getattr(found, part)
    return found


def _leaves(item: Any) -> list[Any]:
    if isinstance(item, (torch.Tensor, webtorch.Tensor)):
        return [item]
    if isinstance(item, (list, tuple)):
        return [leaf for one in item for leaf in _leaves(one)]
    return [item]


def _plain(item: Any) -> Any:
    """Return a result as PyTorch's tensors and plain values."""
    if isinstance(item, webtorch.Tensor):
        return bridge.back(item)
    return getattr(torch, item.name) if isinstance(item, type(webtorch.float32)) else item


class Outcome:
    """What a library did with a call: results, or the error."""

    def __init__(self, fn: Callable[[], list[Any]]) -> None:
        self.results: list[Any] = []
        self.error: Exception | None = None
        try:
            with time_limit(SECONDS):
                self.results = fn()
        except Exception as error:
            self.error = error


def _form(r: Draw, call: Call) -> str:
    """Return how the call is made."""
    if call.name.startswith("Tensor.") and call.name.endswith("_"):
        return "in place"
    x = r.random()
    if x < 0.25 and any(isinstance(a, torch.Tensor) and a.is_floating_point() for a in call.args):
        return "derived"
    return "out" if x > 0.93 else "plain"


def _do(
    like: Any, call: Call, form: str, carry: Callable[[Any], Any], out: torch.dtype | None
) -> list[Any]:
    """Make the call and return everything that can be compared."""
    args, kwargs = carry(list(call.args)), carry(dict(call.kwargs))
    fn = _find(like, call.name)
    if form == "derived":
        leaves = [
            a for a in _leaves(args) if isinstance(a, like.Tensor) and a.dtype.is_floating_point
        ]
        for leaf in leaves:
            leaf.requires_grad_()
        results = _leaves(fn(*args, **kwargs))
        total = sum(
            (t.double() * (i + 1.0)).sum() for i, t in enumerate(results) if t.requires_grad
        )
        if isinstance(total, int):
            return results
        return [
            *[t.detach() for t in results],
            *like.autograd.grad(total, leaves, allow_unused=True),
        ]
    if form == "out":
        place = carry(torch.zeros(0, dtype=out))
        return [*_leaves(fn(*args, **kwargs, out=place)), place]
    result = fn(*args, **kwargs)
    return _leaves(result) + ([args[0]] if call.name.endswith(("_",)) else [])


def _copies(memory: bool) -> Callable[[Any], Any]:
    """Return what copies arguments with their layouts, for PyTorch."""

    def copy(item: Any) -> Any:
        if isinstance(item, torch.Tensor):
            flat = torch.empty(0, dtype=item.dtype).set_(item.detach().untyped_storage().clone())
            return flat.as_strided(item.shape, item.stride(), item.storage_offset())
        if isinstance(item, (list, tuple)):
            return type(item)(copy(one) for one in item)
        return {k: copy(v) for k, v in item.items()} if isinstance(item, dict) else item

    return copy


def _widened(item: Any) -> Any:
    if isinstance(item, torch.Tensor):
        wide = (
            torch.float64
            if item.is_floating_point()
            else torch.complex128
            if item.is_complex()
            else None
        )
        return item if wide is None else item.to(wide)
    if isinstance(item, (list, tuple)):
        return type(item)(_widened(one) for one in item)
    return item


def disagreement(call: Call, form: str, out: torch.dtype | None, device: str) -> str | None:
    """Return how the two libraries differ in a call; None if they do not."""
    theirs = Outcome(lambda: _do(torch, call, form, _copies(True), out))
    ours = Outcome(
        lambda: [
            _plain(x) for x in _do(webtorch, call, form, lambda v: bridge.value(v, device, {}), out)
        ]
    )
    if theirs.error is not None:
        text = str(theirs.error)
        if form == "out" and isinstance(theirs.error, TypeError):
            # PyTorch has no such overload; here `out=` is taken wherever a tensor is the result.
            return None
        if ours.error is None:
            halves = ("Half" in text or "BFloat16" in text) and "not implemented" in text
            return (
                None if halves else f"taken; PyTorch: {type(theirs.error).__name__}: {text[:160]}"
            )
        if isinstance(ours.error, type(theirs.error)) or isinstance(theirs.error, type(ours.error)):
            return None
        if isinstance(ours.error, RuntimeError) and isinstance(
            theirs.error, torch.linalg.LinAlgError
        ):
            return None
        mine, wanted = (f"{type(o.error).__name__}: {str(o.error)[:160]}" for o in (ours, theirs))
        return f"{mine}; PyTorch: {wanted}"
    if ours.error is not None:
        return f"{type(ours.error).__name__}: {str(ours.error)[:300]}; PyTorch takes it"
    if len(ours.results) != len(theirs.results):
        return f"{len(ours.results)} results for {len(theirs.results)}"
    wide = Call(call.name, *_widened(list(call.args)), **_widened(call.kwargs))
    true = Outcome(
        lambda: _do(torch, wide, form if form != "out" else "plain", _copies(True), None)
    ).results
    for i, (mine, want) in enumerate(zip(ours.results, theirs.results, strict=True)):
        if not isinstance(want, torch.Tensor):
            if isinstance(mine, torch.Tensor) or not (mine == want or str(mine) == str(want)):
                if want is None and isinstance(mine, torch.Tensor) and not bool((mine != 0).any()):
                    continue
                return f"result {i}: {mine} for {want}"
            continue
        if not isinstance(mine, torch.Tensor):
            if mine is None and not bool((want != 0).any()):
                continue
            return f"result {i}: {mine} for a tensor"
        if mine.dtype != want.dtype:
            return f"result {i}: {mine.dtype} for {want.dtype}"
        if mine.shape != want.shape:
            return f"result {i}: shape {tuple(mine.shape)} for {tuple(want.shape)}"
        if call.name in _OPEN and want.dtype == torch.int64:
            continue
        rtol, atol = TOLERANCE.get(want.dtype, (0.0, 0.0))
        if want.dtype in (torch.float16, torch.bfloat16):
            rtol, atol = rtol * 3, max(rtol * 2, atol)
        if want.is_floating_point() and want.numel() and form == "derived":
            finite = want.detach()[want.detach().isfinite()].abs()
            atol = max(atol, 10 * rtol * float(finite.max()) if finite.numel() else 0.0)
        exact = true[i].detach() if i < len(true) and isinstance(true[i], torch.Tensor) else None
        if exact is not None and (exact.dtype.is_floating_point != want.dtype.is_floating_point):
            exact = None
        found = difference(mine, want.detach(), exact, 4 * rtol, 4 * atol)
        if found:
            return f"result {i}: {found}"
    return None


def drawn(seed: int) -> tuple[Call, str, torch.dtype | None]:
    """Return the call of a seed, its form, and the type of `out=`."""
    r = Draw(seed)
    weights, families = zip(*FAMILIES, strict=True)
    call = r.choices(families, weights)[0](r)
    form = _form(r, call)
    return (
        call,
        form,
        r.choice([torch.float32, torch.float32, torch.float64, torch.int64])
        if form == "out"
        else None,
    )


def check(seed: int, device: str = "cpu") -> tuple[str, str | None]:
    """Return the text of a seed's call, and how the two libraries differ in it."""
    with warnings.catch_warnings(), host_kernels():
        warnings.simplefilter("ignore")
        call, form, out = drawn(seed)
        text = f"{call}" + (f" [{form}{f' {out}' if out else ''}]" if form != "plain" else "")
        return text, disagreement(call, form, out, device)


def main(argv: Sequence[str] | None = None) -> int:
    """Try seeds for a while, and tell the first few disagreements of each operation."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--start", type=int, default=0, help="the first seed")
    parser.add_argument("--seed", type=int, help="only this one")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--each", type=int, default=3, help="disagreements told of each operation")
    given = parser.parse_args(argv)
    torch.set_num_threads(1)
    told: collections.Counter[str] = collections.Counter()
    seed, end, failed = given.start, time.monotonic() + given.seconds, 0
    while time.monotonic() < end:
        seed = given.seed if given.seed is not None else seed
        text, found = check(seed, given.device)
        if found or given.seed is not None:
            name = text.partition("(")[0]
            failed += bool(found)
            told[name] += 1
            if told[name] <= given.each or given.seed is not None:
                sys.stdout.write(f"{seed}: {text}\n    {found}\n")
                sys.stdout.flush()
        seed += 1
        if given.seed is not None:
            break
    sys.stdout.write(f"{seed - given.start} calls, {failed} disagree: {dict(told.most_common())}\n")
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
