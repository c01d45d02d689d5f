"""Complex numbers as pairs of scalar expressions: the algebra and the complex forms of elementwise
entries. May import floor 0 and the records.

Kernels know no complex type. A complex form is a formula over `Pair`s; what is recorded is a map over real
numbers whose last dimension (of size 2) says which part of the result is wanted. Where an entry's own formula
holds for complex numbers it is evaluated over pairs, derivatives included; `FORMS` names those entries and
holds the formulas that had to be arranged so that nothing overflows or cancels.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from webtorch.ir import expr as ex
from webtorch.ir.dtype import DType
from webtorch.ir.expr import FUNCTIONS, Expr
from webtorch.ir.expr.exponential import exp_pair, log1p_pair, log_pair, pow_pair
from webtorch.ir.expr.pair import (
    Pair,
    angle,
    as_pair,
    conj,
    equal,
    is_zero,
    modulus,
    select,
    times_i,
)
from webtorch.ops.record import Elementwise

if TYPE_CHECKING:
    pass


class NotComplex(Exception):
    """A formula has no meaning for complex numbers."""


Complex = Pair | Expr
Form = Callable[..., Complex]


def _truth(z: Complex) -> Expr:
    return ex.logical_not(is_zero(z)) if isinstance(z, Pair) else ex.ne(z, 0.0)


def _both(z: Pair, question: Callable[[Expr], Expr], every: bool = False) -> Expr:
    a, b = question(z.re), question(z.im)
    return (a & b) if every else (a | b)


def _finite(x: Expr) -> Expr:
    return ex.logical_not(ex.isnan(x) | ex.isinf(x))


# ---- formulas of the table over pairs
# --------------------------------------------------------------------------------------------


def over_pairs(op: Elementwise, values: tuple[Complex, ...]) -> Complex:
    """Return the entry's own formula applied to pairs. Raises NotComplex where it compares or rounds."""
    first = values[0]
    part = first.re.dtype if isinstance(first, Pair) else first.dtype
    root = op.build(tuple(ex.input_(i, part) for i in range(len(values))))
    found: dict[Expr, Any] = {}
    for node in ex.walk(root):
        args = [found[a] for a in node.args]
        found[node] = _evaluate(node, args, values)
    return found[root]


def _evaluate(node: Expr, args: list[Any], values: tuple[Complex, ...]) -> object:
    if node.op == "input":
        return values[node.value]
    if not any(isinstance(a, Pair) for a in args):
        return ex.rebuild(node, tuple(args)) if node.args else node
    if node.op == "where" and not isinstance(args[0], Pair):
        return select(*args)
    function = FUNCTIONS.get(node.op)
    if function is None or function.pairs is None:
        raise NotComplex(node.op)
    like = next(a for a in args if isinstance(a, Pair))
    return function.pairs(*[as_pair(a, like) for a in args])


# ---- the complex forms of entries
# --------------------------------------------------------------------------------------------

# Entries whose own formula holds, beside those that are one scalar function.
DERIVED = frozenset((
    "_add", "_add_scaled", "_sub", "_sub_scaled", "_div", "_cube", "_square", "reciprocal", "addcmul",
    "addcdiv", "lerp", "logaddexp2", "sigmoid", "silu", "sinc", "tanhshrink",
    "ldexp", "tanh_backward", "sigmoid_backward",
))  # fmt: skip


def _log_add(x: Pair, y: Pair) -> Pair:
    """Return log(exp(x) + exp(y)). What has a real part of -infinity adds nothing, whatever its angle."""
    first = x.re < y.re
    less, more = select(first, x, y), select(first, y, x)
    distance = less - more
    ratio = select(ex.eq(distance.re, -math.inf), 0.0, exp_pair(distance))
    alike = ex.isinf(x.re) & ex.eq(x.re, y.re)
    infinite = select(x.re > 0, log_pair(exp_pair(x) + exp_pair(y)), less)
    return select(alike, infinite, more + log1p_pair(ratio))


# The others. A form over pairs gives a Pair, or an Expr where the result is real.
FORMS: dict[str, Form] = {
    "_pow": pow_pair,
    "logaddexp": _log_add,
    "_log_add": _log_add,
    "abs": modulus,
    "angle": angle,
    "eq": equal,
    "ne": lambda x, y: ex.logical_not(equal(x, y)),
    "isnan": lambda z: _both(z, ex.isnan),
    "isinf": lambda z: _both(z, ex.isinf),
    "isfinite": lambda z: _both(z, _finite, every=True),
    "isreal": lambda z: ex.eq(z.im, 0.0),
    "logical_not": lambda z: is_zero(z),
    "logical_and": lambda x, y: _truth(x) & _truth(y),
    "logical_or": lambda x, y: _truth(x) | _truth(y),
    "logical_xor": lambda x, y: _truth(x) ^ _truth(y),
    # Constructions and parts: not entries of the table.
    "_complex": lambda x, y: Pair(x, y),
    "_polar": lambda r, t: Pair(r * ex.cos(t), r * ex.sin(t)),
    "_conj": conj,
    "_times_i": times_i,
    "_widen": lambda z: z,
}


def _form(name: str) -> Elementwise:
    """Return what stands for a form that is no entry of the table."""
    return Elementwise(name=name, family="elementwise", signature="", doc="", function_in=())


COMPLEX, POLAR, CONJ, TIMES_I, WIDEN = (
    _form(name) for name in ("_complex", "_polar", "_conj", "_times_i", "_widen")
)


def has_form(op: Elementwise) -> bool:
    """Whether the entry is defined for complex numbers; derivatives of those that are, are."""
    if op.name in FORMS or op.name in DERIVED:
        return True
    function = FUNCTIONS.get(op.name)
    return function is not None and function.pairs is not None and bool(function.slopes)


def evaluate(op: Elementwise, values: tuple[Complex, ...]) -> Complex:
    """Return the entry's complex form applied to `values`."""
    form = FORMS.get(op.name)
    return over_pairs(op, values) if form is None else form(*values)


_RECORDED: dict[tuple[Elementwise, str, bool], Elementwise] = {}


def recorded(op: Elementwise, kinds: str, real: bool) -> Elementwise:
    """Return the real entry that computes a form: (part wanted, inputs...) -> that part.

    kinds: "c" for each complex operand, whose two parts are inputs, "r" for each real one. `real`: the
    result is real, and there is no input that says which part is wanted.
    """
    key = (op, kinds, real)
    found = _RECORDED.get(key)
    if found is not None:
        return found

    def expr(*inputs: Expr) -> Expr:
        """Return one part of the form's result."""
        parts = iter(inputs if real else inputs[1:])
        takes_parts = op.name in ("_complex", "_polar")
        values: list[Complex] = []
        for kind in kinds:
            x = next(parts)
            y = next(parts) if kind == "c" else ex.const(0.0, x.dtype)
            values.append(x if takes_parts else Pair(x, y))
        out = evaluate(op, tuple(values))
        if isinstance(out, Expr):
            return out
        return ex.where(ex.eq(inputs[0], 0), out.re, out.im)

    found = Elementwise(
        name=f"{op.name.strip('_')}_{kinds}", family="elementwise", signature="", doc=op.doc,
        expr=expr, tensors=(), function_in=(),
    )  # fmt: skip
    _RECORDED[key] = found
    return found


FILL = Elementwise(
    name="_fill_pair", family="elementwise", signature="", doc="One complex number.",
    expr=lambda part, re, im: ex.where(ex.eq(part, 0), re, im), tensors=(), function_in=(),
)  # fmt: skip


_REAL: dict[tuple[Elementwise, str], bool] = {}


def gives_real(op: Elementwise, kinds: str, part: DType) -> bool:
    """Return whether the form of an entry gives real numbers. Raises NotComplex where it has none."""
    key = (op, kinds)
    if key not in _REAL:
        count = itertools.count()
        values = [
            Pair(ex.input_(next(count), part), ex.input_(next(count), part))
            if kind == "c"
            else as_pair(
                ex.input_(next(count), part), Pair(ex.const(0.0, part), ex.const(0.0, part))
            )
            for kind in kinds
        ]
        _REAL[key] = isinstance(evaluate(op, tuple(values)), Expr)
    return _REAL[key]
