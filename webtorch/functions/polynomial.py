"""Orthogonal polynomials of torch.special, by their three-term recurrences.

The degree may be a tensor; its largest element is then read, as the number of steps.
Abramowitz and Stegun, "Handbook of Mathematical Functions" (1964), table 22.7.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from webtorch.functions import creation
from webtorch.functions.pointwise import where
from webtorch.ir.dtype import DType, int64
from webtorch.ops.primitive import cast_to
from webtorch.ops.record import composite
from webtorch.ops.special import SPECIAL
from webtorch.tensors.promotion import Operand, get_default_dtype, result_type
from webtorch.tensors.tensor import Tensor

# (x, p of degree k, p of degree k - 1, k) -> p of degree k + 1.
Step = Callable[[Any, Any, Any, int], Any]


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
        highest = int(degree.max().item()) if degree.numel() else 0
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
        aten=(f"special_{full}",),
    )(function)


def _double(x: Tensor, p: Any, before: Any, k: int) -> Tensor:
    return 2 * x * p - before


def _shifted(x: Tensor, p: Any, before: Any, k: int) -> Tensor:
    return (4 * x - 2) * p - before


_WHAT = "The Chebyshev polynomial of the {} kind{}: {}(x) of degree n."
for _letter, _kind, _first, _first_shifted in (
    ("T", "first", lambda x: x, lambda x: 2 * x - 1),
    ("U", "second", lambda x: 2 * x, lambda x: 4 * x - 2),
    ("V", "third", lambda x: 2 * x - 1, lambda x: 4 * x - 3),
    ("W", "fourth", lambda x: 2 * x + 1, lambda x: 4 * x - 1),
):
    _polynomial("chebyshev", _WHAT.format(_kind, "", _letter), _first, _double)
    _polynomial(
        "shifted_chebyshev", _WHAT.format(_kind, ", shifted to 0..1", _letter), _first_shifted, _shifted
    )  # fmt: skip
_polynomial(
    "hermite",
    "The physicists' Hermite polynomial H(x) of degree n.",
    lambda x: 2 * x,
    lambda x, p, before, k: 2 * x * p - 2 * k * before,
)
_polynomial(
    "laguerre",
    "The Laguerre polynomial L(x) of degree n.",
    lambda x: 1 - x,
    lambda x, p, before, k: ((2 * k + 1 - x) * p - k * before) / (k + 1),
)
_polynomial(
    "legendre",
    "The Legendre polynomial P(x) of degree n.",
    lambda x: x,
    lambda x, p, before, k: ((2 * k + 1) * x * p - k * before) / (k + 1),
)
_polynomial(
    "hermite_polynomial_he",
    "The probabilists' Hermite polynomial of degree n.",
    lambda x: x,
    lambda x, p, before, k: x * p - k * before,
)
