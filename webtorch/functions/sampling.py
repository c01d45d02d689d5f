"""Random numbers of distributions whose parameters are tensors, and the gradients of their samples.

Each sampler is one formula of its parameters and of random words: it fuses, replays in compiled programs, draws the
same numbers on every device. Rejection samplers make a fixed number of attempts, the first accepted one counts:
where none is, which happens less than once in 100,000 numbers, the last proposal, whose distribution is near.
"""

from __future__ import annotations

from collections.abc import Sequence

from webtorch.errors import DTypeError
from webtorch.functions import creation, movement
from webtorch.functions.check import demand
from webtorch.functions.composite import softmax
from webtorch.functions.creation import TORCH
from webtorch.functions.random import Generator, check_mapped, default_generator
from webtorch.ir.dtype import FLOATS, float64
from webtorch.ir.view import broadcast_shapes, numel
from webtorch.ops import comparison
from webtorch.ops.primitive import cast_to, draw, shown
from webtorch.ops.record import Elementwise, Example, Family, composite
from webtorch.ops.samplers import (
    BINOMIAL,
    GAMMA,
    LOG_GAMMA,
    POISSON,
    SLOTS,
    VON_MISES,
    dirichlet_grad,
    standard_gamma_grad,
)
from webtorch.tensors.host import reads
from webtorch.tensors.limits import finfo
from webtorch.tensors.modes import records_for_pages
from webtorch.tensors.tensor import Tensor

FAMILY: Family = "random"


def _sample(
    formula: Elementwise, parameters: Sequence[Tensor], generator: Generator | None
) -> Tensor:
    """Draw one number for each element of the parameters, which are broadcast against each other."""
    check_mapped(*parameters)
    shape = broadcast_shapes(*[p._shape for p in parameters])
    sources = [movement.expand(p.detach(), shape) for p in parameters]
    source = default_generator(sources[0].device) if generator is None else generator
    seed, offset = source.advance(numel(shape) * SLOTS)
    return draw(formula, sources, seed, offset)


def _check_floats(name: str, **tensors: object) -> None:
    types = set()
    for title, tensor in tensors.items():
        if not isinstance(tensor, Tensor):
            raise TypeError(
                f"{name}(): argument '{title}' must be Tensor, not {type(tensor).__name__}"
            )
        if tensor.dtype not in FLOATS:
            raise DTypeError(
                f'"{name}" only supports floating-point dtypes for {title}, got: {tensor.dtype}. Use {title}.float().'
            )
        types.add(tensor.dtype)
    if len(types) > 1:
        raise DTypeError(
            f"{name}: found dtypes {' and '.join(sorted(str(t) for t in types))}, expected one"
        )


# -- gamma -------------------------------------------------------------------------------------------


@composite(
    name="_standard_gamma",
    function_in=TORCH,
    torch="",
    dtypes=FLOATS,
    vjp=lambda g, out, input, _generator: (g * standard_gamma_grad(input, out),),
    aten=("_standard_gamma",),
)
def _standard_gamma(input: Tensor, generator: Generator | None = None) -> Tensor:
    """Gamma numbers of the concentrations `input` and of rate 1.

    The gradient is that of the sample at fixed randomness (Figurnov, Mohamed and Mnih, 2018).
    """
    _check_floats("_standard_gamma", input=input)
    return _sample(GAMMA, (input,), generator)


# -- Dirichlet -----------------------------------------------------------------------------------------


@composite(
    name="_sample_dirichlet",
    function_in=TORCH,
    torch="",
    dtypes=FLOATS,
    vjp=lambda g, out, input, _generator: (_dirichlet_backward(out, input, g),),
    aten=("_sample_dirichlet",),
)
def _sample_dirichlet(input: Tensor, generator: Generator | None = None) -> Tensor:
    """Points of the simplex of the last dim, of the Dirichlet distribution of the concentrations `input`."""
    _check_floats("_sample_dirichlet", input=input)
    # Numbers of small concentrations are too small for any dtype: their logarithms are not.
    sizes = _sample(LOG_GAMMA, (input,), generator)
    bounds = finfo(input.dtype)
    return comparison.clamp_max(
        comparison.clamp_min(softmax(sizes, -1), bounds.tiny), 1 - bounds.eps / 2
    )


def _dirichlet_backward(x: Tensor, concentration: Tensor, g: Tensor) -> Tensor:
    # The CPU computes in float64, as PyTorch's does: a small concentration is lost in a sum with a large one.
    kind = float64 if x._in_host_memory and not records_for_pages() else x.dtype
    counts = cast_to(concentration, kind)
    total = movement.expand(counts.sum(-1, keepdim=True), counts._shape)
    slope = cast_to(dirichlet_grad(cast_to(x, kind), counts, total), x.dtype)
    return slope * (g - (x * g).sum(-1, keepdim=True))


# -- counts ----------------------------------------------------------------------------------------------


@composite(
    function_in=TORCH,
    dtypes=FLOATS,
    vjp=lambda g, _out, _input, _generator: (creation.zeros_like(g),),
    example=Example((("+", 3, 4),)),
    drawn=True,
    aten=("poisson",),
)
def poisson(input: Tensor, generator: Generator | None = None) -> Tensor:
    """Numbers of the Poisson distribution of the rates `input`, in their dtype. Its gradient is zero.

    Raises RuntimeError for a negative rate, which takes a number from the device.
    """
    _check_floats("poisson", input=input)
    return _not_negative(input, _sample(POISSON, (input,), generator))


@composite(
    function_in=TORCH,
    dtypes=FLOATS,
    vjp=lambda _g, _out, _count, prob, _generator: (None, creation.zeros_like(prob)),
    drawn=True,
    aten=("binomial",),
)
def binomial(count: Tensor, prob: Tensor, generator: Generator | None = None) -> Tensor:
    """Numbers of successes in `count` trials of probability `prob` each, broadcast. Its gradient is zero."""
    _check_floats("binomial", count=count, prob=prob)
    return _sample(BINOMIAL, (count, prob), generator)


def _not_negative(rates: Tensor, drawn: Tensor) -> Tensor:
    """Return `drawn`. A rate below 0 raises RuntimeError: now, or from the device where a program is captured."""
    if not numel(rates._shape) or rates.is_meta:
        return drawn
    message = "invalid Poisson rate, expected rate to be non-negative"
    wrong = comparison.lt(rates.detach(), 0)
    if not reads.possible:
        return demand(drawn, comparison.logical_not(wrong), message)
    # Of every example of a vmap.
    if bool(shown(wrong).any().item()):
        raise RuntimeError(message)
    return drawn


# -- directions ------------------------------------------------------------------------------------------


@composite(function_in=(), dtypes=FLOATS)
def _sample_von_mises(concentration: Tensor, generator: Generator | None = None) -> Tensor:
    """Angles in (-pi, pi) of the von Mises distribution around 0."""
    _check_floats("_sample_von_mises", concentration=concentration)
    return _sample(VON_MISES, (concentration,), generator)
