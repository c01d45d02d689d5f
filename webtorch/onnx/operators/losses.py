"""Losses and random numbers. Floor 6."""

from __future__ import annotations

from webtorch.functions import public as webtorch
from webtorch.nn import functional as F
from webtorch.onnx.operators.table import Attrs, Context, Result, element_type, op
from webtorch.tensors.tensor import Tensor


@op("NegativeLogLikelihoodLoss")
def _nll(
    c: Context, a: Attrs, n: int, x: Tensor, target: Tensor, weight: Tensor | None = None
) -> Tensor:
    ignore = a.get("ignore_index", -100)
    return F.nll_loss(
        x, target.to(webtorch.int64), weight, None, ignore, None, a.get("reduction", "mean")
    )


@op("SoftmaxCrossEntropyLoss")
def _cross_entropy(
    c: Context, a: Attrs, n: int, x: Tensor, target: Tensor, weight: Tensor | None = None
) -> Result:
    logs = F.log_softmax(x, 1)
    ignore = a.get("ignore_index", -100)
    loss = F.nll_loss(
        logs, target.to(webtorch.int64), weight, None, ignore, None, a.get("reduction", "mean")
    )
    return (loss, logs) if n > 1 else loss


@op("RandomNormal")
def _random_normal(c: Context, a: Attrs, n: int) -> Tensor:
    made = webtorch.randn(a["shape"], dtype=element_type(a.get("dtype", 1)))
    return made * a.get("scale", 1.0) + a.get("mean", 0.0)


@op("RandomUniform")
def _random_uniform(c: Context, a: Attrs, n: int) -> Tensor:
    made = webtorch.rand(a["shape"], dtype=element_type(a.get("dtype", 1)))
    low, high = a.get("low", 0.0), a.get("high", 1.0)
    return made * (high - low) + low


@op("RandomNormalLike")
def _random_normal_like(c: Context, a: Attrs, n: int, x: Tensor) -> Tensor:
    dtype = element_type(a["dtype"]) if "dtype" in a else x.dtype
    return webtorch.randn_like(x, dtype=dtype) * a.get("scale", 1.0) + a.get("mean", 0.0)


@op("RandomUniformLike")
def _random_uniform_like(c: Context, a: Attrs, n: int, x: Tensor) -> Tensor:
    dtype = element_type(a["dtype"]) if "dtype" in a else x.dtype
    low, high = a.get("low", 0.0), a.get("high", 1.0)
    return webtorch.rand_like(x, dtype=dtype) * (high - low) + low


@op("Bernoulli")
def _bernoulli(c: Context, a: Attrs, n: int, x: Tensor) -> Tensor:
    return webtorch.bernoulli(x).to(element_type(a["dtype"]) if "dtype" in a else x.dtype)
