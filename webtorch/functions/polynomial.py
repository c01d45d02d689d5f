"""Orthogonal polynomials of torch.special, by their three-term recurrences.

The degree may be a tensor; its largest element is then read, as the number of steps.
Abramowitz and Stegun, "Handbook of Mathematical Functions" (1964), table 22.7.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from webtorch.functions import creation
from webtorch.functions.pointwise import where
from webtorch.ir.dtype import DType, int64
from webtorch.ops.elementwise import _fma
from webtorch.ops.primitive import cast_to
from webtorch.ops.record import composite
from webtorch.ops.special import SPECIAL
from webtorch.tensors.batching import levels_of, physical
from webtorch.tensors.promotion import Operand, get_default_dtype, result_type
from webtorch.tensors.tensor import Tensor


class Step(NamedTuple):
    """p of degree k + 1 is (factor * p of degree k - times * p of degree k - 1) / over, k from 1 on."""

    factor: Callable[[Tensor, int], Tensor]
    times: Callable[[int], int] = lambda k: 1
    over: Callable[[int], int] = lambda k: 1

    def __call__(self, x: Tensor, p: Tensor, before: Tensor, k: int) -> Tensor:
        """Return p of degree k + 1 at x; the sum is rounded once, as in PyTorch."""
        return _fma(self.factor(x, k), p, before * -self.times(k)) / self.over(k)


def _evaluate(x: Operand, n: Any, first: Callable[[Tensor], Tensor], step: Step) -> Tensor:
    """Return the polynomial of degree n at x: 0 below degree 0, 1 at 0, `first(x)` at 1."""
    dtype: DType = result_type(x, n)
    if dtype.kind != "float":
        dtype = get_default_dtype()
    device = (x if isinstance(x, Tensor) else n).device
    x = (
        cast_to(x, dtype)
        if isinstance(x, Tensor)
        else creation.full((), x, dtype=dtype, device=device)
    )
    x = x.detach()
    if isinstance(n, Tensor):
        degree = cast_to(n.detach(), int64)
        # Of all examples that vmap maps over.
        every = physical(degree, levels_of((degree,)))
        highest = int(every.max().item()) if every.numel() else 0
    else:
        degree = creation.full((), int(n), dtype=int64, device=device)
        highest = int(n)
    value = where(degree < 0, 0.0, creation.ones_like(x))
    before, current = creation.ones_like(x), first(x)
    for k in range(1, highest + 1):
        value = where(degree >= k, current, value)
        before, current = current, step(x, current, before, k)
    return cast_to(value, dtype)


def _polynomial(name: str, doc: str, first: Callable[[Tensor], Tensor], step: Step) -> None:
    def function(input: Tensor, n: object) -> Tensor:
        """Return the values of the polynomial of a degree."""
        return _evaluate(input, n, first, step)

    function.__doc__ = doc
    full = f"{name}_polynomial_{doc.split('(')[0][-1].lower()}" if "(" in doc else name
    composite(
        name=full,
        family="index",
        function_in=SPECIAL,
        torch=f"special.{full}",
        differentiable=False,
        out="cast",
        overlap="whole",
        aten=(f"special_{full}",),
    )(function)


_WHAT = "The Chebyshev polynomial of the {} kind{}: {}(x) of degree n."
for _letter, _kind, _first, _first_shifted in (
    ("T", "first", lambda x: x, lambda x: 2 * x - 1),
    ("U", "second", lambda x: 2 * x, lambda x: 2 * (2 * x - 1)),
    ("V", "third", lambda x: 2 * x - 1, lambda x: 2 * (2 * x - 1) - 1),
    ("W", "fourth", lambda x: 2 * x + 1, lambda x: 2 * (2 * x - 1) + 1),
):
    _polynomial("chebyshev", _WHAT.format(_kind, "", _letter), _first, Step(lambda x, k: 2 * x))
    _polynomial(
        "shifted_chebyshev", _WHAT.format(_kind, ", shifted to 0..1", _letter), _first_shifted,
        Step(lambda x, k: 2 * (2 * x - 1)),
    )  # fmt: skip
_polynomial(
    "hermite",
    "The physicists' Hermite polynomial H(x) of degree n.",
    lambda x: 2 * x,
    Step(lambda x, k: 2 * x, lambda k: 2 * k),
)
_polynomial(
    "laguerre",
    "The Laguerre polynomial L(x) of degree n.",
    lambda x: 1 - x,
    Step(lambda x, k: 2 * k + (1 - x), lambda k: k, lambda k: k + 1),
)
_polynomial(
    "legendre",
    "The Legendre polynomial P(x) of degree n.",
    lambda x: x,
    Step(lambda x, k: (2 * k + 1) * x, lambda k: k, lambda k: k + 1),
)
_polynomial(
    "hermite_polynomial_he",
    "The probabilists' Hermite polynomial of degree n.",
    lambda x: x,
    Step(lambda x, k: x, lambda k: k),
)
