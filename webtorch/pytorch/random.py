"""PyTorch's random operators, from webtorch's counter-based generators. Floor 6.

Numbers come from the device's generator (`torch.manual_seed`), or, where the call names a
`torch.Generator` (a CPU generator, whichever device it was made for), from a stream that starts
at a number drawn from it.
"""

from __future__ import annotations

from typing import Any

from webtorch.ir.dtype import bool_, float32, int64, integer_limits
from webtorch.ops.primitive import cast_to, fill
from webtorch.ops.random import Generator
from webtorch.pytorch.functions import aten, op


def source(generator: Any, device: Any) -> Any:
    """Return webtorch's generator for PyTorch's argument `generator`."""
    if generator is None:
        from webtorch.pytorch.device import generator as default

        return default()
    import torch

    seed = torch.randint(2**63 - 1, (), generator=generator, device=generator.device)
    return Generator(device).manual_seed(int(seed))


def _uniform(x: Any, generator: Any) -> Any:
    return op.rand(x._shape, dtype=float32, device=x.device, generator=source(generator, x.device))


@aten("uniform_")
def _uniform_(x: Any, low: float = 0, high: float = 1, *, generator: Any = None) -> Any:
    return cast_to(_uniform(x, generator) * (high - low) + low, x.dtype)


@aten("normal_")
def _normal_(x: Any, mean: float = 0, std: float = 1, *, generator: Any = None) -> Any:
    noise = op.randn(
        x._shape, dtype=float32, device=x.device, generator=source(generator, x.device)
    )
    return cast_to(noise * std + mean, x.dtype)


@aten("normal")
def _normal(mean: Any, std: Any, *, generator: Any = None) -> Any:
    like = std if isinstance(mean, (int, float)) else mean
    shape = (
        like._shape
        if isinstance(mean, (int, float)) or isinstance(std, (int, float))
        else (mean + std)._shape
    )
    return (
        op.randn(
            shape, dtype=like.dtype, device=like.device, generator=source(generator, like.device)
        )
        * std
        + mean
    )


@aten("random_.to")
def _random_to(x: Any, high: int, *, generator: Any = None) -> Any:
    return _random_(x, 0, high, generator=generator)


@aten("random_", "random_.from")
def _random_(x: Any, low: int = 0, high: int | None = None, *, generator: Any = None) -> Any:
    if high is None:
        # Over all numbers that the type holds exactly; int64 has 32 bits on the device.
        exact = {"float32": 2**24, "float16": 2**11, "bfloat16": 2**8, "bool": 2}.get(x.dtype.name)
        high = exact or min(integer_limits(x.dtype)[1], 2**31 - 1)
    draw = op.randint(
        low, high, x._shape, dtype=int64, device=x.device, generator=source(generator, x.device)
    )
    return cast_to(draw, x.dtype)


@aten("bernoulli", "bernoulli_", "bernoulli_.float", "bernoulli_.Tensor")
def _bernoulli(x: Any, p: Any = None, *, generator: Any = None) -> Any:
    draw = _uniform(x, generator)
    return cast_to(op.lt(draw, x if p is None else p), x.dtype)


@aten("exponential_")
def _exponential_(x: Any, rate: float = 1, *, generator: Any = None) -> Any:
    return cast_to(-op.log(1.0 - _uniform(x, generator)) / rate, x.dtype)


@aten("geometric_")
def _geometric_(x: Any, p: float, *, generator: Any = None) -> Any:
    draw = op.ceil(op.log(1.0 - _uniform(x, generator)) / op.log1p(fill((), -p, float32, x.device)))
    return cast_to(op.clamp(draw, 1), x.dtype)


@aten("cauchy_")
def _cauchy_(x: Any, median: float = 0, sigma: float = 1, *, generator: Any = None) -> Any:
    return cast_to(
        op.tan((_uniform(x, generator) - 0.5) * 3.141592653589793) * sigma + median, x.dtype
    )


@aten("log_normal_")
def _log_normal_(x: Any, mean: float = 1, std: float = 2, *, generator: Any = None) -> Any:
    return op.exp(_normal_(x, mean, std, generator=generator))


@aten("multinomial")
def _multinomial(x: Any, count: int, replacement: bool = False, *, generator: Any = None) -> Any:
    return op.multinomial(x, count, replacement, generator=source(generator, x.device))


@aten("native_dropout")
def _native_dropout(x: Any, p: float, train: bool | None) -> Any:
    if train is False or p == 0:
        return op.clone(x), fill(x._shape, True, bool_, x.device)
    if p == 1:
        return fill(x._shape, 0, x.dtype, x.device), fill(x._shape, False, bool_, x.device)
    keep = op.ge(_uniform(x, None), p)
    return op.where(keep, x * (1.0 / (1.0 - p)), 0.0), keep


@aten("rrelu_with_noise")
def _rrelu(
    x: Any,
    noise: Any,
    low: float = 0.125,
    high: float = 0.3333333333333333,
    training: bool = False,
    generator: Any = None,
) -> Any:
    if not training:
        return op.leaky_relu(x, (low + high) / 2)
    slope = op.where(op.le(x, 0), _uniform(x, generator) * (high - low) + low, 1.0)
    op.copy_(noise, cast_to(slope, noise.dtype))
    return x * slope
