"""Softmax and its family, dropout, distances: ops made of other ops.

They are written so that the compiler sees what it can fuse: a row is reduced, and mapped with the result.
Gradient rules follow the convention of reduce.py.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from webtorch.errors import DTypeError, ShapeError
from webtorch.functions.reduce import eq, positions, sum, vector_norm
from webtorch.ir.dtype import FLOATS, DType, float32
from webtorch.ir.view import broadcast_shapes, wrap_dim
from webtorch.ops.activation import FUNCTIONAL, put_back
from webtorch.ops.comparison import _where, clamp_min, ge
from webtorch.ops.elementwise import EVERYWHERE, exp, log
from webtorch.ops.layout import of_first, row_major
from webtorch.ops.precision import to_type, widened
from webtorch.ops.primitive import cast_to, reduce_dims
from webtorch.ops.purity import warn
from webtorch.ops.record import TABLE, Autocast, Example, composite
from webtorch.ops.splits import along
from webtorch.tensors.promotion import result_type
from webtorch.tensors.tensor import Tensor

# -- softmax ----------------------------------------------------------------------------------------------------------


@composite(
    name="_softmax",
    function_in=(),
    vjp=lambda g, out, _x, dim: ((g - reduce_dims(g * out, "sum", (dim,))) * out,),
)
def _softmax(x: Tensor, dim: int) -> Tensor:
    e = exp(x - reduce_dims(x, "max", (dim,)))
    return e / reduce_dims(e, "sum", (dim,))


@composite(
    name="_log_softmax",
    function_in=(),
    vjp=lambda g, out, _x, dim: (g - exp(out) * reduce_dims(g, "sum", (dim,)),),
)
def _log_softmax(x: Tensor, dim: int) -> Tensor:
    shifted = x - reduce_dims(x, "max", (dim,))
    return shifted - log(reduce_dims(exp(shifted), "sum", (dim,)))


def _along(
    name: str, rule: Callable[..., Tensor], input: Tensor, dim: int | None, dtype: DType | None
) -> Tensor:
    """Apply a softmax rule to `input` as `dtype`, along a checked dim."""
    if dim is None:
        raise TypeError(f'{name}() missing 1 required positional arguments: "dim"')
    dim = wrap_dim(name, dim, input.ndim)
    x = input if dtype is None else to_type(input, dtype)
    if x.dtype.kind != "float":
        raise DTypeError(
            f"{name}: not implemented for {x.dtype}. Pass dtype=torch.float32, or convert with .float()."
        )
    if 0 in x.shape:
        return x.clone()
    if not x.ndim:
        return rule(x.reshape((1,)), 0).reshape(())
    return to_type(rule(widened(x), dim), x.dtype)


_DIMS: tuple[Any, ...] = (((-1,), {}), ((0,), {}))


@composite(
    splits=along("dim"),
    function_in=EVERYWHERE,
    dtypes=FLOATS,
    samples=_DIMS,
    autocast=Autocast(gpu="fp32_result"),
    also=("special.softmax",),
    layout=row_major,
)
def softmax(input: Tensor, dim: int | None = None, dtype: DType | None = None) -> Tensor:
    """Return exp(input) / sum(exp(input)) along `dim`; nothing overflows."""
    return _along("softmax", _softmax, input, dim, dtype)


@composite(
    splits=along("dim"),
    function_in=EVERYWHERE,
    dtypes=FLOATS,
    samples=_DIMS,
    autocast=Autocast(gpu="fp32_result"),
    also=("special.log_softmax",),
    layout=row_major,
)
def log_softmax(input: Tensor, dim: int | None = None, dtype: DType | None = None) -> Tensor:
    """Return log(softmax(input)) along `dim`; nothing overflows."""
    return _along("log_softmax", _log_softmax, input, dim, dtype)


@composite(splits=along("dim"), function_in=FUNCTIONAL, dtypes=FLOATS, samples=_DIMS)
def softmin(input: Tensor, dim: int | None = None, dtype: DType | None = None) -> Tensor:
    """Return softmax(-input) along `dim`."""
    return softmax(-input, dim, dtype)


@composite(function_in=FUNCTIONAL, dtypes=FLOATS, example=Example(((3, 5),)), drawn=True)
def gumbel_softmax(
    logits: Tensor, tau: float = 1, hard: bool = False, eps: float = 1e-10, dim: int = -1
) -> Tensor:
    """Return a Gumbel-softmax sample (Jang et al., 2017); with hard=True it is one-hot, with the same gradient."""
    if eps != 1e-10:
        warn("`eps` parameter is deprecated and has no effect.")
    noise = TABLE["rand_like"](logits, dtype=float32)
    gumbels = -log(-log(noise))
    soft = softmax((logits + to_type(gumbels, logits.dtype)) / tau, dim)
    if not hard:
        return soft
    index = soft.detach().argmax(dim, keepdim=True)
    choice = cast_to(
        eq(positions(soft, wrap_dim("gumbel_softmax", dim, soft.ndim)), index), soft.dtype
    )
    return choice - soft.detach() + soft


# -- dropout ----------------------------------------------------------------------------------------------------------


def _check_probability(p: float) -> None:
    if not 0.0 <= p <= 1.0:
        raise ValueError(f"dropout probability has to be between 0 and 1, but got {p}")


def _kept(input: Tensor, p: float, features: bool) -> Tensor:
    """Return a bool mask that is True with probability 1 - p: for each element, or each (sample, channel)."""
    if features:
        shape = (*input.shape[:2], *(1,) * (input.ndim - 2))
        return ge(TABLE["rand"](shape, dtype=float32, device=input.device), p)
    return ge(TABLE["rand_like"](input, dtype=float32), p)


def _dropped_rule(g: Tensor, _out: object, _input: object, kept: Tensor, scale: float) -> Tensor:
    return _dropped(g, kept, scale)


@composite(name="_dropped", function_in=(), gradient_name="MulBackward0", vjp=(_dropped_rule,))
def _dropped(input: Tensor, kept: Tensor, scale: float) -> Tensor:
    return _where(kept, input * scale, 0.0)


def _dropout(
    input: Tensor, p: float, training: bool, inplace: bool, features: bool = False
) -> Tensor:
    _check_probability(p)
    if not training or p == 0 or 0 in input.shape:
        return input
    # The mask is a function of seed and offset: the backward pass may make it again instead of keeping it.
    scale = 1.0 / (1.0 - p) if p < 1 else 0.0
    return put_back(input, _dropped(input, _kept(input, p, features), scale), inplace)


@composite(function_in=FUNCTIONAL, dtypes=FLOATS, drawn=True)
def dropout(input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
    """Return input with elements zeroed with probability p, the rest divided by 1 - p; input itself if not training."""
    return _dropout(input, p, training, inplace)


def _feature_dropout(
    name: str, input: Tensor, p: float, training: bool, inplace: bool, ranks: tuple[int, int]
) -> Tensor:
    _check_probability(p)
    if input.ndim not in ranks:
        if name == "dropout1d":
            raise RuntimeError(
                f"dropout1d: Expected 2D or 3D input, but received a {input.ndim}D input. Note that dropout1d "
                "exists to provide channel-wise dropout on inputs with 1 spatial dimension, a channel "
                "dimension, and an optional batch dimension (i.e. 2D or 3D inputs): use dropout for others."
            )
        low, high = ranks
        warn(
            f"{name}: Received a {input.ndim}-D input to {name}, which is deprecated and will result in an "
            "error in a future release. To retain the behavior and silence this warning, please use dropout "
            f"instead. Note that {name} exists to provide channel-wise dropout on inputs with {low - 1} "
            f"spatial dimensions, a channel dimension, and an optional batch dimension (i.e. {low}D or {high}D "
            "inputs)."
        )
        if input.ndim < 2:
            raise ShapeError("Feature dropout requires at least 2 dimensions in the input")
        return _dropout(input, p, training, inplace, True)
    if name == "dropout2d" and input.ndim == 3:
        warn(
            "dropout2d: Received a 3D input to dropout2d and assuming that channel-wise 1D dropout behavior "
            "is desired - input is interpreted as shape (N, C, L), where C is the channel dim. This behavior "
            "will change in a future release to interpret the input as one without a batch dimension, i.e. "
            "shape (C, H, W). To maintain the 1D channel-wise dropout behavior, please switch to using "
            "dropout1d instead."
        )
        return _dropout(input, p, training, inplace, True)
    if input.ndim == ranks[0]:
        result = _dropout(input.unsqueeze(0), p, training, False, True).squeeze(0)
        return put_back(input, result, inplace)
    return _dropout(input, p, training, inplace, True)


@composite(
    function_in=FUNCTIONAL,
    dtypes=FLOATS,
    example=Example(((2, 3, 5),)),
    drawn=True,
    layout=of_first,
)
def dropout1d(
    input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False
) -> Tensor:
    """Return input (N, C, L) or (C, L) with whole channels zeroed with probability p."""
    return _feature_dropout("dropout1d", input, p, training, inplace, (2, 3))


@composite(function_in=FUNCTIONAL, dtypes=FLOATS, drawn=True, layout=of_first)
def dropout2d(
    input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False
) -> Tensor:
    """Return input (N, C, H, W) or (C, H, W) with whole channels zeroed with probability p."""
    return _feature_dropout("dropout2d", input, p, training, inplace, (3, 4))


@composite(function_in=FUNCTIONAL, dtypes=FLOATS, drawn=True, layout=of_first)
def dropout3d(
    input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False
) -> Tensor:
    """Return input (N, C, D, H, W) or (C, D, H, W) with whole channels zeroed with probability p."""
    return _feature_dropout("dropout3d", input, p, training, inplace, (4, 5))


def _alpha_dropout(
    input: Tensor, p: float, training: bool, inplace: bool, features: bool
) -> Tensor:
    _check_probability(p)
    if not training or p == 0 or 0 in input.shape:
        return input
    if p == 1:
        return put_back(input, input * 0.0, inplace)
    # Dropped units take selu's limit at -infinity; scale and shift restore mean 0 and variance 1.
    limit = -1.7580993408473766
    scale = 1.0 / math.sqrt((limit * limit * p + 1) * (1 - p))
    result = _where(_kept(input, p, features), input, limit) * scale - scale * limit * p
    return put_back(input, result, inplace)


@composite(function_in=FUNCTIONAL, dtypes=FLOATS, drawn=True)
def alpha_dropout(
    input: Tensor, p: float = 0.5, training: bool = False, inplace: bool = False
) -> Tensor:
    """Return input with dropout that keeps mean and variance under selu (Klambauer et al., 2017)."""
    return _alpha_dropout(input, p, training, inplace, False)


@composite(function_in=FUNCTIONAL, dtypes=FLOATS, drawn=True, layout=of_first)
def feature_alpha_dropout(
    input: Tensor, p: float = 0.5, training: bool = False, inplace: bool = False
) -> Tensor:
    """Return input with alpha dropout of whole channels."""
    return _alpha_dropout(input, p, training, inplace, True)


# -- distances --------------------------------------------------------------------------------------------------------


@composite(function_in=FUNCTIONAL, dtypes=FLOATS, out="cast", overlap="whole")
def normalize(input: Tensor, p: float = 2.0, dim: int = 1, eps: float = 1e-12) -> Tensor:
    """Return input / max(norm, eps), with the p-norm along `dim`."""
    return input / clamp_min(vector_norm(input, p, dim, True), eps)


@composite(function_in=("torch", "nn.functional"), dtypes=FLOATS, autocast=Autocast(gpu="fp32"))
def cosine_similarity(x1: Tensor, x2: Tensor, dim: int = 1, eps: float = 1e-8) -> Tensor:
    """Return the cosine of the angle between x1 and x2 along `dim`; norms are at least eps."""
    shape, common = broadcast_shapes(x1._shape, x2._shape), result_type(x1, x2)
    if not common.has_gradient:
        raise DTypeError(
            f"cosine_similarity: expected common dtype to be floating point, yet common dtype is {common.legacy}. "
            "Convert one with .float()."
        )
    x1, x2 = x1.to(common).expand(shape), x2.to(common).expand(shape)
    first, second = (x / clamp_min(vector_norm(x, 2, dim, True), eps) for x in (x1, x2))
    return sum(first * second, dim)


@composite(function_in=("torch", "nn.functional"), dtypes=FLOATS)
def pairwise_distance(
    x1: Tensor, x2: Tensor, p: float = 2.0, eps: float = 1e-6, keepdim: bool = False
) -> Tensor:
    """Return the p-norm of x1 - x2 + eps along the last dim."""
    return vector_norm(x1 - x2 + eps, p, -1, keepdim)
