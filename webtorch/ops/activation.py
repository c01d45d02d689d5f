"""Activations: the elementwise functions of nn.functional, and the gated ones. May import floors 0 and 1.

Where PyTorch's slope at a corner is not the mean of both sides, the formula is a `where` that takes the side PyTorch
takes: relu and hardtanh give 0 at their corners, clamp (in elementwise.py) gives 1.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from webtorch.ir import expr as ex
from webtorch.ir.dtype import FLOATS
from webtorch.ir.expr import Expr
from webtorch.ops.circular import tanh
from webtorch.ops.elementwise import EVERYWHERE, NUMERIC, log1pexp, logistic, mul, sigmoid
from webtorch.ops.precision import computed_wide
from webtorch.ops.record import BOOL, Autocast, Elementwise, elementwise

if TYPE_CHECKING:
    from webtorch.tensors.tensor import Tensor

FUNCTIONAL = ("nn.functional",)
# PyTorch's constants (Klambauer et al., "Self-Normalizing Neural Networks", 2017).
SELU_ALPHA = 1.6732632423543772848170429916717
SELU_SCALE = 1.0507009873554804934193349852946


def put_back(input: Tensor, result: Tensor, inplace: bool) -> Tensor:
    """Return `result`, written into `input` if `inplace`."""
    return input.copy_(result) if inplace else result


# -- rectifiers -------------------------------------------------------------------------------------------------------

relu: Elementwise = elementwise(
    "relu",
    lambda x: ex.where(x <= 0, ex.const(0, x.dtype), x),
    # From the result: the input need not live until the backward pass.
    vjp=lambda g, out, _x: (threshold_backward(g, out, 0),),
    dtypes=NUMERIC,
    function_in=EVERYWHERE,
    inplace_functions=("torch.relu_", "nn.functional.relu_"),
    gain=math.sqrt(2.0),
    onnx="Relu",
    doc="input, or 0 where it is negative.",
)
threshold_backward: Elementwise = elementwise(
    "threshold_backward",
    lambda g, x, threshold: ex.where(x <= threshold, ex.const(0, g.dtype), g),
    tensors=("grad_output", "input"),
    numbers=("threshold",),
    dtypes=FLOATS,
    function_in=(),
    doc="grad_output, or 0 where input <= threshold.",
)
threshold = elementwise(
    "threshold",
    lambda x, threshold, value: ex.where(x <= threshold, value, x),
    numbers=("threshold", "value"),
    dtypes=NUMERIC,
    function_in=("torch", "nn.functional"),
    samples=(((0.5, -1.0), {}),),
    inplace_functions=("torch.threshold_", "nn.functional.threshold_"),
    doc="input, or value where input <= threshold.",
)
leaky_relu = elementwise(
    "leaky_relu",
    lambda x, negative_slope: ex.where(x > 0, x, x * negative_slope),
    numbers=("negative_slope",),
    defaults={"negative_slope": 0.01},
    dtypes=FLOATS,
    function_in=FUNCTIONAL,
    samples=(((), {}), ((0.3,), {})),
    inplace_functions=("nn.functional.leaky_relu_",),
    doc="input, times negative_slope where it is not positive.",
)


def _between(x: Expr, low: Expr, high: Expr) -> Expr:
    return ex.where(x <= low, low, ex.where(x >= high, high, x))


hardtanh = elementwise(
    "hardtanh",
    _between,
    tensors=("input",),
    numbers=("min_val", "max_val"),
    defaults={"min_val": -1.0, "max_val": 1.0},
    dtypes=NUMERIC,
    function_in=FUNCTIONAL,
    samples=(((), {}), ((-2.0, 0.5), {})),
    inplace_functions=("nn.functional.hardtanh_",),
    doc="input kept in min_val..max_val; gradient 0 at the bounds.",
)
relu6 = elementwise(
    "relu6",
    lambda x: _between(x, ex.const(0, x.dtype), ex.const(6, x.dtype)),
    dtypes=NUMERIC,
    function_in=FUNCTIONAL,
    domain=(-3.0, 9.0),
    gradient_name="HardtanhBackward0",
    doc="input kept in 0..6.",
)
hardsigmoid = elementwise(
    "hardsigmoid",
    lambda x: ex.where(
        x <= -3,
        ex.const(0.0, x.dtype),
        ex.where(x >= 3, ex.const(1.0, x.dtype), (x + 3) * (1 / 6)),
    ),
    derived_from=lambda x: ex.where((x > -3) & (x < 3), (x + 3) * (1 / 6), ex.const(0.0, x.dtype)),
    dtypes=FLOATS,
    function_in=FUNCTIONAL,
    domain=(-5.0, 5.0),
    doc="(input + 3) / 6 kept in 0..1.",
)
hardswish = elementwise(
    "hardswish",
    lambda x: ex.where(x <= -3, x * 0, ex.where(x >= 3, x, x * ((x + 3) * (1 / 6)))),
    derived_from=lambda x: ex.where(x <= -3, x * 0, ex.where(x < 3, x * ((x + 3) * (1 / 6)), x)),
    dtypes=FLOATS,
    function_in=FUNCTIONAL,
    domain=(-5.0, 5.0),
    onnx="HardSwish",
    doc="input * hardsigmoid(input).",
)


_prelu = elementwise(
    "_prelu",
    lambda x, weight: ex.where(x > 0, x, weight * x),
    tensors=("input", "weight"),
    dtypes=FLOATS,
    function_in=(),
    onnx="PRelu",
    doc="input, times weight where it is not positive.",
)


# -- exponential ------------------------------------------------------------------------------------------------------


elu = elementwise(
    "elu",
    lambda x, alpha: ex.where(x > 0, x, alpha * ex.expm1(x)),
    derived_from=lambda x, alpha: ex.where(x <= 0, alpha * ex.expm1(x), x),
    numbers=("alpha",),
    defaults={"alpha": 1.0},
    dtypes=FLOATS,
    function_in=FUNCTIONAL,
    samples=(((), {}), ((0.5,), {})),
    inplace_functions=("nn.functional.elu_",),
    doc="input, or alpha * (exp(input) - 1) where it is not positive.",
)
selu = elementwise(
    "selu",
    lambda x: ex.where(x > 0, x * SELU_SCALE, ex.expm1(x) * (SELU_ALPHA * SELU_SCALE)),
    derived_from=lambda x: ex.where(
        x <= 0, ex.expm1(x) * (SELU_ALPHA * SELU_SCALE), x * SELU_SCALE
    ),
    dtypes=FLOATS,
    function_in=("torch", "nn.functional"),
    inplace_functions=("torch.selu_", "nn.functional.selu_"),
    gradient_name="EluBackward0",
    gain=3.0 / 4,
    onnx="Selu",
    doc="The scaled elu whose fixed point is mean 0 and variance 1 (Klambauer et al., 2017).",
)
celu = elementwise(
    "celu",
    lambda x, alpha: ex.where(x > 0, x, alpha * ex.expm1(x / alpha)),
    derived_from=lambda x, alpha: ex.where(x <= 0, alpha * ex.expm1(x / alpha), x),
    numbers=("alpha",),
    defaults={"alpha": 1.0},
    dtypes=FLOATS,
    function_in=("torch", "nn.functional"),
    samples=(((), {}), ((0.5,), {})),
    inplace_functions=("torch.celu_", "nn.functional.celu_"),
    doc="input, or alpha * (exp(input / alpha) - 1) where it is not positive.",
)


def _softplus(x: Expr, beta: Expr, threshold: Expr) -> Expr:
    scaled = x * beta
    return ex.where(scaled > threshold, x, log1pexp(scaled) / beta)


softplus = elementwise(
    "softplus",
    _softplus,
    tensors=("input",),
    numbers=("beta", "threshold"),
    defaults={"beta": 1.0, "threshold": 20.0},
    dtypes=FLOATS,
    function_in=FUNCTIONAL,
    domain=(-30.0, 30.0),
    samples=(((), {}), ((2.0, 5.0), {})),
    out="exact",
    doc="log(1 + exp(beta * input)) / beta, never overflowing; input itself above threshold.",
    autocast=Autocast(gpu="fp32"),
)


@computed_wide
def _logsigmoid_rule(g: Tensor, _out: Tensor, x: Tensor) -> tuple[Tensor]:
    return (g * sigmoid(-x),)


logsigmoid = elementwise(
    "logsigmoid",
    lambda x: -log1pexp(-x),
    vjp=_logsigmoid_rule,
    dtypes=FLOATS,
    function_in=FUNCTIONAL,
    inplace=False,
    domain=(-100.0, 100.0),
    out="exact",
    gradient_name="LogSigmoidBackward0",
    doc="log(sigmoid(input)), never overflowing.",
    saves_values=True,
)
silu = elementwise(
    "silu",
    lambda x: x * logistic(x),
    dtypes=FLOATS,
    function_in=FUNCTIONAL,
    domain=(-100.0, 100.0),
    direct=("silu",),
    doc="input * sigmoid(input), also called swish.",
)
swiglu = elementwise(
    "swiglu",
    lambda gate, value: gate * logistic(gate) * value,
    tensors=("gate", "value"),
    dtypes=FLOATS,
    torch="",
    function_in=FUNCTIONAL,
    inplace=False,
    doc="silu(gate) * value: the gate of a SwiGLU layer (Shazeer, 2020).",
)


def _mish(x: Expr) -> Expr:
    # tanh(log(1 + e)) is n / (n + 2) with n = e * (e + 2); above 20 it is 1 to the last digit.
    e = ex.exp(ex.where(x > 20, ex.const(0.0, x.dtype), x))
    n = e * (e + 2)
    return ex.where(x > 20, x, x * (n / (n + 2)))


mish = elementwise(
    "mish",
    _mish,
    tensors=("input",),
    dtypes=FLOATS,
    function_in=FUNCTIONAL,
    domain=(-30.0, 30.0),
    onnx="Mish",
    doc="input * tanh(softplus(input)) (Misra, 2019).",
)

# -- gelu -------------------------------------------------------------------------------------------------------------

SLOPE = math.sqrt(2 / math.pi)
_gelu_erf = elementwise(
    "_gelu_erf",
    lambda x: x * 0.5 * (ex.erf(x * math.sqrt(0.5)) + 1),
    dtypes=FLOATS,
    torch="nn.functional.gelu",
    function_in=(),
    doc="input times the normal distribution function of input.",
)
_gelu_tanh = elementwise(
    "_gelu_tanh",
    lambda x: x * 0.5 * (ex.tanh(x * (x * x * (0.044715 * SLOPE) + SLOPE)) + 1),
    dtypes=FLOATS,
    function_in=(),
    doc="The tanh form of gelu.",
)


# -- shrinking and others ---------------------------------------------------------------------------------------------

softsign = elementwise(
    "softsign",
    # The derivative of the quotient would cancel far from 0.
    lambda x: x / (ex.unary("abs", x) + 1),
    vjp=lambda g, _out, x: (_softsign_backward(g, x),),
    promotion="float",
    refuses=BOOL,
    function_in=FUNCTIONAL,
    inplace=False,
    gradient_name="DivBackward0",
    onnx="Softsign",
    doc="input / (1 + |input|).",
)
_softsign_backward: Elementwise = elementwise(
    "_softsign_backward",
    lambda g, x: g / ((ex.unary("abs", x) + 1) * (ex.unary("abs", x) + 1)),
    tensors=("grad_output", "input"),
    dtypes=FLOATS,
    function_in=(),
    doc="The gradient of softsign.",
)
# x - tanh(x) = x**3 times these in x**2 (A&S 4.5.64): the difference loses its digits near 0.
_TANHSHRINK = (
    1 / 3, -2 / 15, 17 / 315, -62 / 2835, 1382 / 155925, -21844 / 6081075, 929569 / 638512875,
    -6404582 / 10854718875, 443861162 / 1856156927625, -18888466084 / 194896477400625,
    3.927832388331683e-05, -1.5918905069328964e-05, 6.451689215655431e-06, -2.6147711512907546e-06,
)  # fmt: skip


def _tanhshrink(x: Expr) -> Expr:
    near = ex.where(abs(x) < 0.55, x, ex.const(0.0, x.dtype))
    square = near * near
    series = ex.const(_TANHSHRINK[-1], x.dtype)
    for c in reversed(_TANHSHRINK[:-1]):
        series = series * square + c
    return ex.where(abs(x) < 0.55, series * square * near, x - ex.tanh(x))


tanhshrink = elementwise(
    "tanhshrink",
    _tanhshrink,
    # tanh(x) ** 2, not 1 - (1 - tanh(x) ** 2).
    vjp=lambda g, _out, x: (mul(g, tanh(x) * tanh(x)),),
    promotion="float",
    refuses=BOOL,
    function_in=FUNCTIONAL,
    inplace=False,
    gradient_name="SubBackward0",
    doc="input - tanh(input).",
    saves_values=True,
)
hardshrink = elementwise(
    "hardshrink",
    lambda x, lambd: ex.where((x >= -lambd) & (x <= lambd), ex.const(0.0, x.dtype), x),
    numbers=("lambd",),
    defaults={"lambd": 0.5},
    dtypes=FLOATS,
    torch="nn.functional.hardshrink",
    function_in=EVERYWHERE,
    inplace=False,
    samples=(((), {}), ((1.0,), {})),
    out="exact",
    doc="input, or 0 where |input| <= lambd.",
)
_softshrink = elementwise(
    "_softshrink",
    lambda x, lambd: ex.where(
        x > lambd, x - lambd, ex.where(x < -lambd, x + lambd, ex.where(ex.isnan(x), x, 0.0))
    ),
    numbers=("lambd",),
    defaults={"lambd": 0.5},
    dtypes=FLOATS,
    torch="nn.functional.softshrink",
    function_in=(),
    inplace=False,
    samples=(((), {}), ((1.0,), {})),
    doc="input moved towards 0 by lambd.",
)


snake = elementwise(
    "snake",
    # sin(a x)**2 / a.
    lambda x, alpha: x + ex.sin(alpha * x) * ex.sin(alpha * x) / alpha,
    tensors=("input", "alpha"),
    dtypes=FLOATS,
    torch="",
    function_in=FUNCTIONAL,
    inplace=False,
    domain=(0.2, 3.0),
    doc="input + sin(alpha * input) ** 2 / alpha (Liu et al., 2020).",
)
style_affine = elementwise(
    "style_affine",
    lambda x, gamma, beta: x * (gamma + 1) + beta,
    tensors=("input", "gamma", "beta"),
    dtypes=FLOATS,
    torch="",
    function_in=FUNCTIONAL,
    inplace=False,
    doc="(1 + gamma) * input + beta: the affine part of adaptive instance norm.",
)


_gate = elementwise(
    "_gate",
    lambda x, gate: x * logistic(gate),
    tensors=("input", "gate"),
    dtypes=FLOATS,
    function_in=(),
    doc="input * sigmoid(gate).",
)
