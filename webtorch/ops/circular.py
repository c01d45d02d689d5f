"""Elementwise circular and hyperbolic functions, their inverses, and units of angles."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from webtorch.ir import expr as ex
from webtorch.ir.dtype import (
    FLOATS,
)
from webtorch.ir.expr import Expr
from webtorch.ops.elementwise import EVERYWHERE, abs, abs_less, rsqrt
from webtorch.ops.record import (
    Autocast,
    Elementwise,
    elementwise,
)

if TYPE_CHECKING:
    from webtorch.tensors.tensor import Tensor

# -- trigonometry ----------------------------------------------------------------------------------

sin = elementwise(
    "sin",
    lambda x: ex.sin(x),
    promotion="float",
    inplace_functions=("torch.sin_",),
    foreach=True,
    direct=("sin",),
    doc="The sine.",
)
cos = elementwise(
    "cos",
    lambda x: ex.cos(x),
    promotion="float",
    inplace_functions=("torch.cos_",),
    foreach=True,
    direct=("cos",),
    doc="The cosine.",
)
tan = elementwise(
    "tan",
    lambda x: ex.tan(x),
    promotion="float",
    domain=(-1.4, 1.4),
    inplace_functions=("torch.tan_",),
    foreach=True,
    doc="The tangent.",
    autocast=Autocast(gpu="fp32"),
    saves_values=True,
)
asin = elementwise(
    "asin",
    lambda x: ex.asin(x),
    aliases=("arcsin",),
    promotion="float",
    domain=(-0.95, 0.95),
    inplace_functions=("torch.asin_", "torch.arcsin_"),
    foreach=True,
    doc="The inverse sine.",
    autocast=Autocast(gpu="fp32"),
)
acos = elementwise(
    "acos",
    lambda x: ex.acos(x),
    aliases=("arccos",),
    promotion="float",
    domain=(-0.95, 0.95),
    inplace_functions=("torch.acos_", "torch.arccos_"),
    foreach=True,
    doc="The inverse cosine.",
    autocast=Autocast(gpu="fp32"),
)
atan = elementwise(
    "atan",
    lambda x: ex.atan(x),
    aliases=("arctan",),
    promotion="float",
    inplace_functions=("torch.atan_", "torch.arctan_"),
    foreach=True,
    doc="The inverse tangent.",
)
atan2 = elementwise(
    "atan2",
    lambda x, y: ex.atan2(x, y),
    aliases=("arctan2",),
    promotion="float",
    numbers_for="none",
    doc="The angle of the point (other, input), in -pi..pi.",
    autocast=Autocast(gpu="promote"),
)
sinh = elementwise(
    "sinh",
    lambda x: ex.sinh(x),
    promotion="float",
    inplace_functions=("torch.sinh_",),
    foreach=True,
    doc="The hyperbolic sine.",
    autocast=Autocast(gpu="fp32"),
)
cosh = elementwise(
    "cosh",
    lambda x: ex.cosh(x),
    promotion="float",
    inplace_functions=("torch.cosh_",),
    foreach=True,
    doc="The hyperbolic cosine.",
    autocast=Autocast(gpu="fp32"),
)
tanh = elementwise(
    "tanh",
    lambda x: ex.tanh(x),
    vjp=lambda g, out, _x: (tanh_backward(g, out),),
    promotion="float",
    function_in=EVERYWHERE,
    inplace_functions=("torch.tanh_",),
    foreach=True,
    direct=("tanh",),
    gain=5.0 / 3,
    doc="The hyperbolic tangent.",
)
tanh_backward: Elementwise = elementwise(
    "tanh_backward",
    lambda g, out: g * (1 - out * out),
    tensors=("grad_output", "output"),
    dtypes=FLOATS,
    function_in=(),
    doc="The gradient of tanh from its result.",
)
asinh = elementwise(
    "asinh",
    lambda x: ex.asinh(x),
    aliases=("arcsinh",),
    promotion="float",
    inplace_functions=("torch.asinh_", "torch.arcsinh_"),
    doc="The inverse hyperbolic sine.",
)


def _acosh_slope(x: Tensor) -> Tensor:
    """Return the derivative of acosh; below -1, where acosh is NaN, 1 / sqrt(x * x - 1) as in PyTorch."""
    # Of complex numbers two roots: right also left of the imaginary axis.
    if x.dtype.is_complex:
        return rsqrt(x - 1) * rsqrt(x + 1)
    size = abs(x)
    return rsqrt((size - 1) * (size + 1))


acosh = elementwise(
    "acosh",
    lambda x: ex.acosh(x),
    vjp=lambda g, _out, x: (g * _acosh_slope(x),),
    aliases=("arccosh",),
    promotion="float",
    domain=(1.1, 9.0),
    inplace_functions=("torch.acosh_", "torch.arccosh_"),
    doc="The inverse hyperbolic cosine.",
)
atanh = elementwise(
    "atanh",
    lambda x: ex.atanh(x),
    aliases=("arctanh",),
    promotion="float",
    domain=(-0.95, 0.95),
    inplace_functions=("torch.atanh_", "torch.arctanh_"),
    doc="The inverse hyperbolic tangent.",
)
hypot = elementwise(
    "hypot",
    lambda x, y: ex.hypot(x, y),
    dtypes=FLOATS,
    numbers_for="none",
    doc="sqrt(input ** 2 + other ** 2) without overflow.",
    saves_values=True,
)
deg2rad = elementwise(
    "deg2rad",
    lambda x: x * (math.pi / 180),
    promotion="float",
    inplace_functions=("torch.deg2rad_",),
    doc="Degrees to radians.",
)
rad2deg = elementwise(
    "rad2deg",
    lambda x: x * (180 / math.pi),
    promotion="float",
    inplace_functions=("torch.rad2deg_",),
    doc="Radians to degrees.",
)


def _sinc(x: Expr) -> Expr:
    """Near 0 a series in (pi x)**2, so that derivatives lose nothing; to 1e-17 for |pi x| < 1."""
    angle = x * math.pi
    t = angle * angle
    series = ex.const(1 / math.factorial(17), x.dtype)
    for n in (15, 13, 11, 9, 7, 5, 3, 1):
        series = 1 / math.factorial(n) - t * series
    return ex.where(abs_less(angle, 1.0), series, ex.sin(angle) / angle)


sinc = elementwise(
    "sinc",
    _sinc,
    tensors=("input",),
    promotion="float",
    inplace_functions=("torch.sinc_",),
    also=("special.sinc",),
    doc="sin(pi input) / (pi input), 1 at 0.",
)
