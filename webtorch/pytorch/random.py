"""PyTorch's random operators, from webtorch's counter-based generators. Floor 6.

Numbers come from the device's generator (`torch.manual_seed`), or, where the call names a
`torch.Generator` (a CPU generator, whichever device it was made for), from a stream that starts
at a number drawn from it.
"""

from __future__ import annotations

import inspect
import math

import torch

from webtorch.aten.table import Function, aten, is_open, op
from webtorch.functions.random import Generator
from webtorch.ir.dtype import bool_, float32
from webtorch.ops.layout import of_operands
from webtorch.ops.primitive import cast_to, empty, fill, philox
from webtorch.ops.record import TABLE
from webtorch.pytorch.device import generator as default
from webtorch.tensors.device import DeviceLike, as_device
from webtorch.tensors.tensor import Tensor


def source(generator: torch.Generator | None, device: DeviceLike) -> Generator:
    """Return webtorch's generator for PyTorch's argument `generator`."""
    if generator is None:
        usual = default()
        if usual.device.type == as_device(device).type:
            return usual
        # Numbers of types that WebGPU lacks: the CPU engine's, from a seed of the device's generator.
        return Generator(device).manual_seed(sum(usual.advance(1)))
    seed = torch.randint(2**63 - 1, (), generator=generator, device=generator.device)
    return Generator(device).manual_seed(int(seed))


def _uniform(x: Tensor, generator: torch.Generator | None) -> Tensor:
    return op.rand(x._shape, dtype=float32, device=x.device, generator=source(generator, x.device))


def _overwritten(name: str) -> Function:
    """Return a random operator that overwrites its operand: the table's own, with its checks, on new memory."""

    def run(x: Tensor, *numbers: float, generator: torch.Generator | None = None) -> Tensor:
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
def _normal_(
    x: Tensor, mean: float = 0, std: float = 1, *, generator: torch.Generator | None = None
) -> Tensor:
    if not x.dtype.is_complex:
        return _overwritten("normal_")(x, mean, std, generator=generator)
    # The parts have half of the variance each.
    new = empty(x._shape, x.dtype, x.device)
    op.normal_(op.view_as_real(new), 0.0, std / math.sqrt(2), generator=source(generator, x.device))
    return new + mean


@aten("normal")
def _normal(
    mean: Tensor | float, std: Tensor | float = 1, *, generator: torch.Generator | None = None
) -> Tensor:
    # One of them is a tensor.
    both = [v for v in (mean, std) if isinstance(v, Tensor)]
    like = both[0]
    if like.dtype.is_complex:
        shape = like._shape if len(both) == 1 else (both[0] + both[1])._shape
        unit = _normal_(empty(shape, like.dtype, like.device), generator=generator)
        return unit * std + mean
    return op.normal(mean, std, generator=source(generator, like.device))


@aten("random_.to")
def _random_to(x: Tensor, high: int, *, generator: torch.Generator | None = None) -> Tensor:
    return _random_(x, 0, high, generator=generator)


@aten("random_", "random_.from")
def _random_(
    x: Tensor, low: int = 0, high: int | None = None, *, generator: torch.Generator | None = None
) -> Tensor:
    if x.dtype.is_complex:
        raise NotImplementedError(f'"random_" not implemented for {x.dtype}')
    new = empty(x._shape, x.dtype, x.device)
    bounds = {"from": low} if high is None else {"from": low, "to": high}
    return op.random_(new, generator=source(generator, x.device), **bounds)


@aten("bernoulli_.float")
def _bernoulli_of(x: Tensor, p: float = 0.5, *, generator: torch.Generator | None = None) -> Tensor:
    return _bernoulli(x, p, generator=generator)


@aten("bernoulli", "bernoulli_", "bernoulli_.Tensor", out="truncate")
def _bernoulli(
    x: Tensor, p: Tensor | float | None = None, *, generator: torch.Generator | None = None
) -> Tensor:
    chances = x if p is None else p
    if isinstance(chances, Tensor) and not chances.dtype.is_floating_point:
        raise NotImplementedError(
            f'"bernoulli" not implemented for {chances.dtype}: use input.float()'
        )
    new = empty(x._shape, x.dtype, x.device)
    return op.bernoulli_(new, chances, generator=source(generator, x.device))


@aten("multinomial")
def _multinomial(
    x: Tensor, count: int, replacement: bool = False, *, generator: torch.Generator | None = None
) -> Tensor:
    return op.multinomial(x, count, replacement, generator=source(generator, x.device))


def _sampled(name: str) -> Function:
    """Return a random operator of tensors of parameters."""

    def run(*parameters: Tensor | torch.Generator | None) -> Tensor:
        """Return random numbers. The generator may be the last argument."""
        tensors = [p for p in parameters if isinstance(p, Tensor)]
        given = parameters[-1] if isinstance(parameters[-1], torch.Generator) else None
        return TABLE[name].function(*tensors, source(given, tensors[0].device))

    return run


@aten("native_dropout", layout=of_operands)
def _native_dropout(x: Tensor, p: float, train: bool | None) -> tuple[Tensor, Tensor]:
    if train is False or p == 0:
        return op.clone(x), fill(x._shape, True, bool_, x.device)
    if p == 1:
        return fill(x._shape, 0, x.dtype, x.device), fill(x._shape, False, bool_, x.device)
    return dropped(x, p, train, _uniform(x, None))


def dropped(x: Tensor, p: float, train: bool | None, drawn: Tensor) -> tuple[Tensor, Tensor]:
    """Return what `native_dropout` gives, by numbers in [0, 1) that were drawn."""
    keep = op.ge(drawn, p)
    return op.where(keep, x * (1.0 / (1.0 - p)), 0.0), keep


def uniform_like(x: torch.Tensor) -> Tensor:
    """Return numbers in [0, 1), one for each element of a tensor of PyTorch's."""
    return random_numbers(tuple(x.shape), "uniform")


def random_numbers(shape: tuple[int, ...], kind: str) -> Tensor:
    """Return numbers in [0, 1), or normal ones, of the device's generator."""
    generator = default()
    seed, offset = generator.advance(math.prod(shape))
    return philox(shape, seed, offset, float32, generator.device, kind)


@aten("rrelu_with_noise")
def _rrelu(
    x: Tensor,
    noise: Tensor,
    low: float = 0.125,
    high: float = 0.3333333333333333,
    training: bool = False,
    generator: torch.Generator | None = None,
) -> Tensor:
    if not training:
        return op.leaky_relu(x, (low + high) / 2)
    slope = op.where(op.le(x, 0), _uniform(x, generator) * (high - low) + low, 1.0)
    op.copy_(noise, cast_to(slope, noise.dtype))
    return x * slope


# The others that take a generator.
for _entry in list(TABLE.values()):
    for _name in _entry.aten:
        if is_open(_name) and "generator" in inspect.signature(_entry.function).parameters:
            aten(_name)(_sampled(_entry.name))
