"""How far the elementwise operations may be from the exact result, in units of float32's last place."""

from __future__ import annotations

from typing import NamedTuple

# Without a reason to be worse.
LIMIT = 5.0


class Bound(NamedTuple):
    """A wider limit, and why."""

    ulp: float
    reason: str


_ZEROS = "near its zeros the inputs' own rounding is larger than the result; as PyTorch"
EXCEPTIONS = {
    "logaddexp": Bound(2e5, _ZEROS),
    "logaddexp2": Bound(2e5, _ZEROS),
    "sinc": Bound(1e17, "at the integers, where pi * input is rounded; as PyTorch"),
    "digamma": Bound(2e5, _ZEROS),
    "lgamma": Bound(30, "near its zeros at 1 and 2"),
    "bessel_j0": Bound(2e6, _ZEROS),
    "bessel_j1": Bound(2e6, _ZEROS),
    "bessel_y0": Bound(2e6, _ZEROS),
    "bessel_y1": Bound(2e6, _ZEROS),
    "airy_ai": Bound(2e6, _ZEROS),
    "spherical_bessel_j0": Bound(2e6, _ZEROS),
    "silu": Bound(5e7, "where the result is next to the smallest normal number; as PyTorch"),
    "tanhshrink": Bound(16, "the rounding of tanh counts more than once, from 0.55 to 1"),
    "ndtr": Bound(16, "the rounding of input / sqrt(2) counts input**2 times in the exponent"),
    "log_ndtr": Bound(16, "the rounding of input / sqrt(2) counts input**2 times in the exponent"),
    "erfcx": Bound(16, "the rounding of input**2 counts as often as it is large, in the exponent"),
    "i0e": Bound(8, "the rounding of the input counts in the exponent; PyTorch is at 5"),
    "i1e": Bound(8, "the rounding of the input counts in the exponent; PyTorch is at 6"),
    "modified_bessel_k0": Bound(16, "a logarithm and a series cancel near 1.4; PyTorch is at 9"),
    "scaled_modified_bessel_k0": Bound(
        16, "a logarithm and a series cancel near 1.4; PyTorch is at 9"
    ),
    "modified_bessel_k1": Bound(10, "a logarithm and a series cancel near 1.7; PyTorch is at 6"),
    "scaled_modified_bessel_k1": Bound(
        10, "a logarithm and a series cancel near 1.7; PyTorch is at 6"
    ),
}
# Where the CPU's result is another kind of number than PyTorch's at special points, on purpose.
SPECIAL = {
    "remainder": "PyTorch's vector code takes a subnormal divisor for 0",
    "fmod": "PyTorch's vector code takes a subnormal divisor for 0",
    "logaddexp2": "at (-1, -1): exactly 0 here, -1e-8 there",
    "tanhshrink": "at 1e-10: x**3 / 3 here, 0 there",
    "scaled_modified_bessel_k0": "at the smallest number: 103.4 here, an infinity there",
    "modified_bessel_k1": "at the smallest number: an infinity here, NaN there",
    "scaled_modified_bessel_k1": "at the smallest number: an infinity here, NaN there",
    "hardswish": "at the largest number: itself here, an infinity there",
}
