"""PyTorch's random operators, from webtorch's counter-based generators. Floor 6.

Numbers come from the device's generator (`torch.manual_seed`), or, where the call names a
`torch.Generator` (a CPU generator, whichever device it was made for), from a stream that starts
at a number drawn from it.
"""

from __future__ import annotations

import math
from typing import Any

from webtorch.functions.random import Generator
from webtorch.ir.dtype import bool_, float32
from webtorch.ops.layout import of_operands
from webtorch.ops.primitive import cast_to, empty, fill
from webtorch.ops.record import TABLE
from webtorch.pytorch.aten.table import aten, op
from webtorch.pytorch.device import generator as default


def source(generator: Any, device: Any) -> Any:
    """Return webtorch's generator for PyTorch's argument `generator`."""
    if generator is None:
        return default()
    import torch

    seed = torch.randint(2**63 - 1, (), generator=generator, device=generator.device)
    return Generator(device).manual_seed(int(seed))


def _uniform(x: Any, generator: Any) -> Any:
    return op.rand(x._shape, dtype=float32, device=x.device, generator=source(generator, x.device))


def _overwritten(name: str) -> Any:
    """Return a random operator that overwrites its operand: the table's own, with its checks, on new memory."""

    def run(x: Any, *numbers: Any, generator: Any = None) -> Any:
        """Return new random numbers of the operand's shape and dtype."""
        new = empty(x._shape, x.dtype, x.device)
        return TABLE[name].function(new, *numbers, generator=source(generator, x.device))

    return run


aten("uniform_")(_overwritten("uniform_"))
aten("exponential_")(_overwritten("exponential_"))
aten("geometric_")(_overwritten("geometric_"))
aten("cauchy_")(_overwritten("cauchy_"))
aten("log_normal_")(_overwritten("log_normal_"))


@aten("normal_")
def _normal_(x: Any, mean: float = 0, std: float = 1, *, generator: Any = None) -> Any:
    if not x.dtype.is_complex:
        return _overwritten("normal_")(x, mean, std, generator=generator)
    # The parts have half of the variance each.
    new = empty(x._shape, x.dtype, x.device)
    op.normal_(op.view_as_real(new), 0.0, std / math.sqrt(2), generator=source(generator, x.device))
    return new + mean


@aten("normal")
def _normal(mean: Any, std: Any = 1, *, generator: Any = None) -> Any:
    like = std if isinstance(mean, (int, float)) else mean
    if like.dtype.is_complex:
        shape = mean._shape if isinstance(std, (int, float)) else (mean + std)._shape
        unit = _normal_(empty(shape, like.dtype, like.device), generator=generator)
        return unit * std + mean
    return op.normal(mean, std, generator=source(generator, like.device))


@aten("random_.to")
def _random_to(x: Any, high: int, *, generator: Any = None) -> Any:
    return _random_(x, 0, high, generator=generator)


@aten("random_", "random_.from")
def _random_(x: Any, low: int = 0, high: int | None = None, *, generator: Any = None) -> Any:
    new = empty(x._shape, x.dtype, x.device)
    bounds = {"from": low} if high is None else {"from": low, "to": high}
    return op.random_(new, generator=source(generator, x.device), **bounds)


@aten("bernoulli_.float")
def _bernoulli_of(x: Any, p: float = 0.5, *, generator: Any = None) -> Any:
    return _bernoulli(x, p, generator=generator)


@aten("bernoulli", "bernoulli_", "bernoulli_.Tensor")
def _bernoulli(x: Any, p: Any = None, *, generator: Any = None) -> Any:
    chances = x if p is None else p
    if not isinstance(chances, (int, float)) and not chances.dtype.is_floating_point:
        raise NotImplementedError(
            f'"bernoulli" not implemented for {chances.dtype}: use input.float()'
        )
    new = empty(x._shape, x.dtype, x.device)
    return op.bernoulli_(new, chances, generator=source(generator, x.device))


@aten("multinomial")
def _multinomial(x: Any, count: int, replacement: bool = False, *, generator: Any = None) -> Any:
    return op.multinomial(x, count, replacement, generator=source(generator, x.device))


@aten("native_dropout", layout=of_operands)
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
