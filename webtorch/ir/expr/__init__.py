"""Scalar expressions: the formulas of the op table and the bodies of kernels, and what is known of each
scalar function. Standard library only.

`node` makes, folds, walks and prints expressions. A function is one record (`record`), declared with its
forms in the file of its family: `arithmetic`, `exponential`, `circular`, `error`. `float32` and `float64`
hold what the expansions of functions are made of, `pair` the algebra of complex numbers.
"""

from __future__ import annotations

from webtorch.ir.expr.arithmetic import *
from webtorch.ir.expr.circular import *
from webtorch.ir.expr.error import *
from webtorch.ir.expr.exponential import *
from webtorch.ir.expr.float32 import expand
from webtorch.ir.expr.node import (
    Expr,
    Operand,
    arg,
    binary,
    bitcast,
    cast,
    const,
    cost,
    cost_cpu,
    index,
    infinity,
    input_,
    load,
    make,
    philox,
    rebuild,
    reduced,
    rewrite,
    rounded,
    show,
    substitute,
    unary,
    walk,
    where,
)
from webtorch.ir.expr.record import FUNCTIONS, Range, ScalarFunction
