"""Updates of optimizers, one formula each: fewer recorded operations a step. May import floors 0 and 1.

They are private: `webtorch.optim` calls them. Numbers are runtime arguments, so a schedule compiles nothing.
"""

from __future__ import annotations

from webtorch.ir import expr as ex
from webtorch.ir.dtype import FLOATS
from webtorch.ops.record import elementwise

square_average = elementwise(
    "_square_average",
    # In the order of PyTorch's operations, so that the digits are the same.
    lambda v, g, decay, rest: v * decay + rest * g * g,
    tensors=("input", "grad"),
    numbers=("decay", "rest"),
    function_in=(),
    dtypes=FLOATS,
    doc="input * decay + rest * grad ** 2: the running average of the squared gradient.",
)
adam_step = elementwise(
    "_adam_step",
    lambda p, m, v, scale, eps: p + m * scale / (ex.sqrt(v) + eps),
    tensors=("input", "average", "square", "scale", "eps"),
    function_in=(),
    dtypes=FLOATS,
    doc="input + scale * average / (sqrt(square) + eps): Adam's step (Kingma and Ba, 2015).",
)
# Of 1 - beta ** step with all its digits, from the logarithms of the two betas.
adam_scale = elementwise(
    "_adam_scale",
    lambda step, rate, log1, log2: ex.sqrt(-ex.expm1(step * log2)) * rate / ex.expm1(step * log1),
    tensors=("step",),
    numbers=("rate", "log1", "log2"),
    function_in=(),
    dtypes=FLOATS,
    doc="What Adam's step adds of the average, its corrections and the learning rate in it.",
)
adam_eps = elementwise(
    "_adam_eps",
    lambda step, log2, eps: ex.sqrt(-ex.expm1(step * log2)) * eps,
    tensors=("step",),
    numbers=("log2", "eps"),
    function_in=(),
    dtypes=FLOATS,
    doc="The least divisor of Adam's step, corrected as its scale is.",
)
