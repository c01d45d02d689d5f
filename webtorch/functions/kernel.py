"""`webtorch.kernel`: entries of the table that a user makes, of a formula in Python or WGSL.

A formula in Python is a function of tensors. It is called once for each type, with tensors without values; what it
records there, elementwise operations and nothing else, is the entry's formula. From there on the entry is one as
those in `ops/`: its kernels, its gradient, and all that asks an entry follow.
"""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from typing import overload

from webtorch.dispatch.call import refuse_scripts, settle_scripts
from webtorch.errors import DTypeError, NoValuesError
from webtorch.functions.kernel_text import Text, read
from webtorch.ir import expr as ex
from webtorch.ir.dtype import (
    ALL,
    FLOATS,
    INTEGERS,
    DType,
    Scalar,
    bool_,
    float32,
    float64,
    int32,
    uint32,
)
from webtorch.ir.expr import Expr
from webtorch.ir.graph import Node
from webtorch.ops import primitive
from webtorch.ops.record import TABLE, Elementwise, Promotion, Rule
from webtorch.runtime.meta import formulas
from webtorch.tensors.calls import bind_elementwise
from webtorch.tensors.modes import no_grad
from webtorch.tensors.tensor import Tensor

# What a formula of floats may be given: integers become floats.
_OF_KIND = {"f32": FLOATS, "f16": FLOATS, "i32": INTEGERS, "u32": (uint32,)}
Kernel = Callable[..., Tensor]
# Of operands while a formula is recorded: what is no elementwise operation shows.
_SHAPE = (2, 3)


@overload
def kernel(
    formula: Callable[..., object] | str,
    *,
    gradient: Rule | None = None,
    numbers: Mapping[str, Scalar] | None = None,
) -> Kernel: ...


@overload
def kernel(
    formula: None = None,
    *,
    gradient: Rule | None = None,
    numbers: Mapping[str, Scalar] | None = None,
) -> Callable[[Callable[..., object]], Kernel]: ...


def kernel(
    formula: Callable[..., object] | str | None = None,
    *,
    gradient: Rule | None = None,
    numbers: Mapping[str, Scalar] | None = None,
) -> Kernel | Callable[[Callable[..., object]], Kernel]:
    """Make an elementwise operation of a formula: a function in Python, as a decorator too, or a text in WGSL.

    It broadcasts, promotes types, fuses with its neighbours and has a gradient, as an operation of webtorch's own.
    Parameters are tensors, or numbers; those with a default, or named in `numbers`, are numbers only, of which another
    value compiles nothing. The gradient follows from the formula, unless `gradient(g, out, *operands, *numbers)` gives
    it: a tensor, or a tuple of one for each operand. An operand that it has no need of is named with an underscore.

        @webtorch.kernel
        def gated(x, gate, beta=1.0):
            return x * gate * webtorch.sigmoid(beta * gate)

        cube = webtorch.kernel("fn cube(x: f32) -> f32 { return x * x * x; }")

    Raises TypeError for what is no formula of single elements, SyntaxError for a text that cannot be read.
    """
    if formula is None:
        return functools.partial(kernel, gradient=gradient, numbers=numbers)
    if isinstance(formula, str):
        text = read(formula)
        return _Maker(text.name, text.parameters, numbers or {}, _of_text(text), gradient).made(
            formula, _OF_KIND[text.kind], text.kind in ("f32", "f16")
        )
    if not callable(formula):
        raise TypeError(
            f"kernel(): a formula is a function or a text in WGSL, not {type(formula).__name__}"
        )
    name = getattr(formula, "__name__", type(formula).__name__)
    parameters, defaults = _parameters(name, formula)
    maker = _Maker(name, parameters, {**defaults, **(numbers or {})}, formula, gradient)
    function = maker.made(inspect.getdoc(formula) or "", ALL, False)
    return functools.update_wrapper(function, formula, updated=())


def _of_text(text: Text) -> Callable[..., object]:
    return lambda *values: text.formula(dict(zip(text.parameters, values, strict=True)))


def _parameters(
    name: str, formula: Callable[..., object]
) -> tuple[tuple[str, ...], dict[str, Scalar]]:
    """Return the names of a function's parameters, and the defaults of those that are numbers."""
    found = inspect.signature(formula).parameters.values()
    for p in found:
        if p.kind not in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD):
            raise TypeError(f"kernel {name}: '{p}' is no parameter by position, as operands are")
        if p.default is not p.empty and not isinstance(p.default, (bool, int, float)):
            raise TypeError(
                f"kernel {name}: the default of '{p.name}' is {type(p.default).__name__}, and is to be a number"
            )
    defaults = {p.name: p.default for p in found if p.default is not p.empty}
    return tuple([p.name for p in found]), defaults


def _title(name: str) -> str:
    """Return the name of an entry: a part of the names of kernels, and none that the table has, whose entries some
    rules know by name.
    """
    plain = re.sub(r"\W+", "", "kernel" if name == "<lambda>" else name).strip("_") or "kernel"
    taken = {n.strip("_") for n in (*TABLE, *ex.FUNCTIONS)}
    return f"{plain}_kernel" if plain in taken else plain


class _Maker:
    """Makes an entry of a formula."""

    def __init__(
        self,
        name: str,
        parameters: tuple[str, ...],
        numbers: Mapping[str, Scalar],
        formula: Callable[..., object],
        gradient: Rule | None,
    ) -> None:
        self.name = _title(name)
        unknown = [n for n in numbers if n not in parameters]
        if unknown:
            raise TypeError(f"kernel {self.name}: it has no parameter '{unknown[0]}'")
        self.parameters, self.numbers = parameters, dict(numbers)
        self.tensors = tuple([p for p in parameters if p not in numbers])
        if not self.tensors:
            raise TypeError(f"kernel {self.name}: a formula has an operand at least")
        self.formula = formula
        self.vjp = None if gradient is None else self._rule(gradient)
        # By the type of the calculation.
        self.roots: dict[DType, Expr] = {}

    def made(self, doc: str, types: Sequence[DType], floats: bool) -> Kernel:
        """Return the function of an entry for tensors of these types; integers become floats if it is `floats`."""
        refuse_scripts("a kernel is made")
        settle_scripts("a kernel is made")
        promotion, dtypes = self._types(types, floats)
        shown = [f"{p}={self.numbers[p]!r}" if p in self.numbers else p for p in self._order()]
        op = Elementwise(
            name=self.name,
            family="elementwise",
            signature=f"({', '.join(shown)})",
            doc=doc,
            expr=self._root,
            tensors=self.tensors,
            numbers=tuple(self.numbers),
            defaults=self.numbers,
            promotion=promotion,
            dtypes=dtypes,
            vjp=self.vjp,
            function_in=(),
        )
        op.function = bind_elementwise(op)
        return op.function

    def _order(self) -> tuple[str, ...]:
        return (*self.tensors, *self.numbers)

    def _root(self, *inputs: Expr) -> Expr:
        """Return the formula of these, of one type."""
        return ex.substitute(self.roots[inputs[0].dtype], inputs)

    def _types(self, types: Sequence[DType], floats: bool) -> tuple[Promotion, tuple[DType, ...]]:
        """Record the formula in each type; return how types are promoted, and which it takes."""
        results: dict[DType, DType] = {}
        failure: Exception | None = None
        for dtype in (float32, float64, *INTEGERS, bool_):
            if dtype not in types:
                continue
            try:
                self.roots[dtype], results[dtype] = self._recorded(dtype)
            except (DTypeError, OverflowError) as error:
                # An operation that this type does not have.
                failure = failure or error
        if not results:
            assert failure is not None
            raise failure
        kinds = {r for t, r in results.items() if t.kind == "float"} or set(results.values())
        if bool_ in kinds and (float32 in results or set(results.values()) == {bool_}):
            taken = [t for t, r in results.items() if r is bool_]
            return "bool", self._with_narrow(taken)
        taken = [t for t, r in results.items() if r is t]
        if float32 in results and float32 not in taken:
            raise TypeError(
                f"kernel {self.name}: of float32 its result is {results[float32].name}: a formula's result has the "
                "type of its operands, or is bool"
            )
        whole = any(isinstance(v, float) for v in self.numbers.values())
        of_integers = results.get(int32)
        if floats or whole or (of_integers is not None and of_integers.kind == "float"):
            return "float", self._with_narrow([t for t in taken if t.kind == "float"])
        return "same", self._with_narrow(taken)

    def _with_narrow(self, types: Sequence[DType]) -> tuple[DType, ...]:
        """Return types with those that compute in one of them, in the table's order."""
        return tuple([d for d in ALL if d.compute in types])

    def _recorded(self, dtype: DType) -> tuple[Expr, DType]:
        """Return what the formula records of operands of a type, and the type of its result."""
        with no_grad(), formulas.recorded():
            given = {p: primitive.empty(_SHAPE, dtype, "meta") for p in self._order()}
            inputs = {
                given[p]._storage.node: ex.input_(i, dtype) for i, p in enumerate(self._order())
            }
            try:
                result = self.formula(*[given[p] for p in self.parameters])
            except RuntimeError as error:
                if not isinstance(error, NoValuesError) and "is ambiguous" not in str(error):
                    raise
                raise TypeError(
                    f"kernel {self.name}: a formula is one for all elements, and a value decides here: use "
                    "webtorch.where(condition, x, y) in place of `if`, `and`, `or`, `min` and `max`"
                ) from error
            if isinstance(result, (bool, int, float)):
                first = given[self.tensors[0]]
                result = primitive.fill(_SHAPE, result, first.dtype, first.device)
            if not isinstance(result, Tensor) or result._shape != _SHAPE or result.dtype.is_complex:
                shown = (
                    f"a tensor of shape {tuple(result._shape)} and type {result.dtype}"
                    if isinstance(result, Tensor)
                    else type(result).__name__
                )
                raise TypeError(
                    f"kernel {self.name}: a formula gives one real number for each element, and this gives {shown}"
                )
            return self._expression(result._storage.node, inputs), result.dtype

    def _expression(self, node: Node, known: dict[Node, Expr]) -> Expr:
        """Return what a recorded value is made of."""
        found = known.get(node)
        if found is not None:
            return found
        if node.kind == "call":
            node.expand()
        if node.kind == "map" and set(node.attrs[1]) <= {"t", "s"}:
            op, pattern, compute = node.attrs
            srcs, scalars = iter(node.srcs), iter(node.scalars)
            inputs = [
                ex.cast(self._expression(next(srcs), known), compute)
                if letter == "t"
                else ex.const(next(scalars), compute)
                for letter in pattern
            ]
            found = ex.rounded(op.build(tuple(inputs)), node.dtype)
        else:
            what = "a random number or a position" if node.kind == "map" else f"'{node.kind}'"
            raise TypeError(
                f"kernel {self.name}: a formula is made of its operands, numbers and elementwise functions, and here "
                f"is {what}"
            )
        known[node] = found
        return found

    def _rule(self, gradient: Rule) -> Rule:
        """Return a user's rule as the table has it: with a cotangent for each operand."""
        count = len(self.tensors)
        if not hasattr(inspect.unwrap(gradient), "__code__"):
            raise TypeError(f"kernel {self.name}: gradient= is a function of Python")

        @functools.wraps(gradient)
        def rule(g: Tensor, out: Tensor, *values: object) -> tuple[object, ...]:
            """Return the cotangents."""
            found = gradient(g, out, *values)
            found = found if isinstance(found, tuple) else (found,)
            if len(found) != count:
                raise ValueError(
                    f"kernel {self.name}: it has {count} operands, and its gradient gave {len(found)} cotangents"
                )
            return found

        return rule
