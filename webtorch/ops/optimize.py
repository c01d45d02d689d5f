"""Updates of optimizers, one formula each: fewer recorded operations a step. May import floors 0 and 1.

They are private: `webtorch.optim` calls them. Numbers are runtime arguments, so a schedule compiles nothing.
"""

from __future__ import annotations

from webtorch.ir import expr as ex
from webtorch.ir.dtype import FLOATS
from webtorch.ops.record import elementwise

square_average = elementwise(
    "_square_average",
    lambda v, g, decay, rest: v * decay + g * g * rest,
    tensors=("input", "grad"),
    numbers=("decay", "rest"),
    torch="",
    function_in=(),
    inplace=False,
    dtypes=FLOATS,
    doc="input * decay + grad ** 2 * rest: the running average of the squared gradient.",
)
adam_step = elementwise(
    "_adam_step",
    lambda p, m, v, scale, eps: p + m * scale / (ex.sqrt(v) + eps),
    tensors=("input", "average", "square", "scale", "eps"),
    torch="",
    function_in=(),
    inplace=False,
    dtypes=FLOATS,
    doc="input + scale * average / (sqrt(square) + eps): Adam's step (Kingma and Ba, 2015).",
)
