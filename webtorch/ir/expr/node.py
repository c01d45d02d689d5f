"""The expressions themselves: making, folding, walking and printing them. Standard library only.

An expression is an immutable, interned value: equal expressions are the same object, so sharing is
found for free.
The same tree is rendered to WGSL and to CPU source, printed, folded and differentiated. What a scalar
function means, and how each language writes it, is in its record; here are the leaves (const, arg,
input, index, reduced), loads, and what changes types (cast, bitcast) or chooses (where).
"""

from __future__ import annotations

import hashlib
import math
import threading
from collections.abc import Callable, Iterator
from typing import Any
from weakref import WeakValueDictionary

from webtorch.ir.dtype import DType, Scalar, bfloat16, bool_, float16, float32, int32, uint32
from webtorch.ir.expr.record import FUNCTIONS, declare

_INTERNED: WeakValueDictionary[tuple[object, ...], Expr] = WeakValueDictionary()
# Two threads that make one expression get one. (A collection can make another on the same thread.)
_MAKING = threading.RLock()


class Expr:
    """One scalar expression. Build it with the functions of this module or with Python's operators."""

    __slots__ = ("__weakref__", "args", "dtype", "op", "value")
    op: str
    dtype: DType
    args: tuple[Expr, ...]
    # What a leaf holds: the constant, the slot, the loop's (dim, size), the lane.
    value: Any

    def __reduce__(self) -> tuple[object, ...]:
        return (make, (self.op, self.dtype, self.args, self.value))

    def __repr__(self) -> str:
        return show(self)

    # Identity is equality (interned), so the default __eq__ and __hash__ are right; comparisons are
    # functions.
    def __add__(self, other: Operand) -> Expr:
        return binary("add", self, other)

    def __radd__(self, other: Operand) -> Expr:
        return binary("add", other, self)

    def __sub__(self, other: Operand) -> Expr:
        return binary("sub", self, other)

    def __rsub__(self, other: Operand) -> Expr:
        return binary("sub", other, self)

    def __mul__(self, other: Operand) -> Expr:
        return binary("mul", self, other)

    def __rmul__(self, other: Operand) -> Expr:
        return binary("mul", other, self)

    def __truediv__(self, other: Operand) -> Expr:
        return binary("div", self, other)

    def __rtruediv__(self, other: Operand) -> Expr:
        return binary("div", other, self)

    def __neg__(self) -> Expr:
        return unary("neg", self)

    def __lt__(self, other: Operand) -> Expr:
        return binary("lt", self, other)

    def __le__(self, other: Operand) -> Expr:
        return binary("le", self, other)

    def __gt__(self, other: Operand) -> Expr:
        return binary("lt", other, self)

    def __ge__(self, other: Operand) -> Expr:
        return binary("le", other, self)

    def __and__(self, other: Operand) -> Expr:
        return binary("and", self, other)

    def __or__(self, other: Operand) -> Expr:
        return binary("or", self, other)

    def __xor__(self, other: Operand) -> Expr:
        return binary("xor", self, other)

    def __invert__(self) -> Expr:
        return unary("not" if self.dtype is bool_ else "bitnot", self)

    def __abs__(self) -> Expr:
        return unary("abs", self)


Operand = Expr | Scalar


def make(op: str, dtype: DType, args: tuple[Expr, ...] = (), value: object = None) -> Expr:
    """Return the one expression with these parts. `value` must be hashable."""
    if op == "const" and isinstance(value, float):
        # -0.0 == 0.0 and nan != nan, so a constant is keyed by its text.
        key: tuple[object, ...] = (op, dtype, value.hex() if value == value else "nan")
    else:
        key = (op, dtype, tuple(map(id, args)), value)
    found = _INTERNED.get(key)
    if found is not None:
        return found
    with _MAKING:
        found = _INTERNED.get(key)
        if found is None:
            found = Expr()
            found.op, found.dtype, found.args, found.value = op, dtype, args, value
            _INTERNED[key] = found
        return found


def const(value: Scalar, dtype: DType) -> Expr:
    """Return a constant, converted to the kind of `dtype` and rounded to 16 bits if it has those."""
    if dtype.kind == "float":
        value = float(value)
        if dtype.itemsize == 2:
            (value,) = dtype.from_bytes(dtype.to_bytes([value]))
    elif dtype.kind == "bool":
        value = bool(value)
    else:
        value = int(value)
    return make("const", dtype, (), value)


def arg(slot: int, dtype: DType) -> Expr:
    """Return runtime argument `slot`: a Python number that is bound when the program runs."""
    return make("arg", dtype, (), slot)


def input_(slot: int, dtype: DType) -> Expr:
    """Return formula input `slot`, as the op table's formulas see it; kernels never contain it."""
    return make("input", dtype, (), slot)


def index(dim: int, size: int) -> Expr:
    """Return loop variable `dim` of a kernel, an int32 in 0..size-1."""
    return make("index", int32, (), (dim, size))


def reduced(stage: int, dtype: DType) -> Expr:
    """Return the result of reduction `stage` of the kernel."""
    return make("reduced", dtype, (), stage)


def load(buffer: int, dtype: DType, position: Expr) -> Expr:
    """Return element `position` (flat, in elements) of kernel buffer `buffer`."""
    return make("load", dtype, (position,), buffer)


def philox(
    seed_low: Expr, seed_high: Expr, counter_low: Expr, counter_high: Expr, lane: int
) -> Expr:
    """Return lane 0..3 of Philox4x32-10 (Salmon et al., 2011) as uint32."""
    return make("philox", uint32, (seed_low, seed_high, counter_low, counter_high), lane)


def _coerce(a: Operand, b: Operand) -> tuple[Expr, Expr]:
    if not isinstance(a, Expr):
        assert isinstance(b, Expr)
        return const(a, b.dtype), b
    if not isinstance(b, Expr):
        return a, const(b, a.dtype)
    assert a.dtype is b.dtype, (
        f"operands of one type are needed: {a} is {a.dtype}, {b} is {b.dtype}"
    )
    return a, b


def _is_const(x: Expr, value: Scalar) -> bool:
    return (
        x.op == "const"
        and x.value == value
        and (value != 0 or math.copysign(1.0, float(x.value)) == 1.0)
    )


def unary(op: str, x: Expr, value: object = None) -> Expr:
    """Return `op(x)`, folded where it is safe."""
    if op == "neg" and x.op == "const" and x.dtype.kind == "float":
        return const(-x.value, x.dtype)
    if op == "not" and x.op == "const":
        return const(not x.value, bool_)
    if op in ("neg", "not") and x.op == op:
        return x.args[0]
    function = FUNCTIONS[op]
    if function.of_integers is not None and x.dtype.kind != "float":
        return function.of_integers(x)
    return make(op, bool_ if function.gives_bool else x.dtype, (x,), value)


def binary(op: str, a: Operand, b: Operand) -> Expr:
    """Return `op(a, b)`; Python numbers take the other side's type. Folds only what holds for NaN,
    -0 and infinity.
    """
    x, y = _coerce(a, b)
    function = FUNCTIONS[op]
    dtype = bool_ if function.gives_bool else x.dtype
    if x.op == "const" and y.op == "const" and function.fold is not None:
        folded = function.fold(x.value, y.value)
        if folded is not None and (
            x.dtype.kind != "float"
            or function.gives_bool
            or x.dtype.itemsize == 8
            or _exact(folded)
        ):
            return const(folded, dtype)
    if op == "mul":
        if _is_const(x, 1):
            return y
        if _is_const(y, 1):
            return x
        if x.dtype.kind != "float" and (_is_const(x, 0) or _is_const(y, 0)):
            return const(0, x.dtype)
    elif op == "add" and x.dtype.kind != "float":
        if _is_const(x, 0):
            return y
        if _is_const(y, 0):
            return x
    elif (op == "sub" and _is_const(y, 0)) or (op == "div" and _is_const(y, 1)):
        return x
    elif op in ("floordiv", "truncdiv") and _is_const(y, 1):
        # Of floats the quotient is rounded all the same.
        return unary("floor" if op == "floordiv" else "trunc", x)
    elif op == "and" and x.dtype is bool_:
        if x is y or _is_const(y, True):
            return x
        if _is_const(x, True):
            return y
    return make(op, dtype, (x, y))


def _exact(value: Scalar) -> bool:
    """Whether a float64 result is also the float32 result of the same operation on float32
    constants.
    """
    return float(value).is_integer() and abs(value) < 2**24


def where(condition: Expr, a: Operand, b: Operand) -> Expr:
    """Return `a` where `condition` holds, else `b`; only the chosen side's value counts, NaN in the
    other is lost.
    """
    x, y = _coerce(a, b)
    if condition.op == "const":
        return x if condition.value else y
    if x is y:
        return x
    return make("where", x.dtype, (condition, x, y))


# Every 16-bit float is a float32.
_THERE_AND_BACK = {(float16, float32, float16), (bfloat16, float32, bfloat16)}


def cast(x: Expr, dtype: DType) -> Expr:
    """Convert to `dtype` as PyTorch does: floats truncate to integers, anything non-zero becomes
    True.
    """
    if x.dtype is dtype:
        return x
    if x.op == "const" and not (dtype.kind in ("int", "uint") and x.dtype.kind == "float"):
        return const(x.value, dtype)
    if x.op == "cast" and (dtype, x.dtype, x.args[0].dtype) in _THERE_AND_BACK:
        return x.args[0]
    return make("cast", dtype, (x,))


def _is_of(x: Expr, dtype: DType, depth: int = 4) -> bool:
    """Whether a float32 expression is seen, at this depth, to have values of the 16-bit type only."""
    if x.op == "cast":
        return x.args[0].dtype in (dtype, bool_)
    if x.op == "const":
        return const(x.value, dtype).value == x.value
    function = FUNCTIONS.get(x.op)
    operands = x.args[x.op == "where" :]
    return (
        depth > 0
        and function is not None
        and function.exact
        and all(_is_of(a, dtype, depth - 1) for a in operands)
    )


def rounded(x: Expr, dtype: DType) -> Expr:
    """Return a result of type `dtype` in its compute type, rounded to what `dtype` holds: its value
    is the same whether it went through memory or not.
    """
    x = cast(x, dtype.compute)
    if dtype.compute is dtype or _is_of(x, dtype):
        return x
    return cast(cast(x, dtype), dtype.compute)


def bitcast(x: Expr, dtype: DType) -> Expr:
    """Reinterpret the bits of `x` as `dtype` of the same size."""
    return x if x.dtype is dtype else make("bitcast", dtype, (x,))


def unary_function(name: str, **facts: Any) -> Callable[[Expr], Expr]:
    """Declare a scalar function of one argument; return what applies it. `facts`: ScalarFunction's."""
    declare(name, 1, **facts)

    def function(x: Expr) -> Expr:
        """Apply the function."""
        return unary(name, x)

    function.__name__ = name
    function.__doc__ = f"Return {name}(x)."
    return function


def binary_function(name: str, **facts: Any) -> Callable[[Operand, Operand], Expr]:
    """Declare a scalar function of two arguments; return what applies it. `facts`: ScalarFunction's."""
    declare(name, 2, **facts)

    def function(x: Operand, y: Operand) -> Expr:
        """Apply the function."""
        return binary(name, x, y)

    function.__name__ = name
    function.__doc__ = f"Return {name}(x, y)."
    return function


def infinity(dtype: DType = float32) -> Expr:
    """Return +infinity."""
    return const(math.inf, dtype)


def walk(*roots: Expr) -> Iterator[Expr]:
    """Yield every distinct sub-expression of `roots`, arguments before their users."""
    seen: set[Expr] = set()
    stack: list[tuple[Expr, bool]] = [(r, False) for r in reversed(roots)]
    while stack:
        node, done = stack.pop()
        if done:
            yield node
        elif node not in seen:
            seen.add(node)
            if node.args:
                stack.append((node, True))
                stack += [(a, False) for a in reversed(node.args) if a not in seen]
            else:
                yield node


def rewrite(
    root: Expr,
    rule: Callable[[Expr, tuple[Expr, ...]], Expr | None],
    memo: dict[Expr, Expr] | None = None,
) -> Expr:
    """Rebuild `root` bottom-up; `rule(node, new_args)` returns the replacement or None to keep the
    node's op.
    """
    memo = {} if memo is None else memo
    for node in walk(root):
        if node in memo:
            continue
        args = tuple(memo[a] for a in node.args)
        new = rule(node, args)
        memo[node] = rebuild(node, args) if new is None else new
    return memo[root]


def rebuild(node: Expr, args: tuple[Expr, ...]) -> Expr:
    """Return `node` with other arguments, folded again."""
    if args == node.args:
        return node
    if node.op == "where":
        return where(*args)
    if len(args) == 2 and node.op in FUNCTIONS:
        return binary(node.op, *args)
    if len(args) == 1 and node.op in FUNCTIONS and node.op not in ("cast", "bitcast", "load"):
        return unary(node.op, args[0], node.value)
    return make(node.op, node.dtype, args, node.value)


def substitute(root: Expr, inputs: tuple[Expr, ...]) -> Expr:
    """Replace formula inputs by expressions."""
    return rewrite(root, lambda node, _: inputs[node.value] if node.op == "input" else None)


def cost(*roots: Expr) -> int:
    """Return how much work one evaluation of `roots` is where functions have units of their own (a
    GPU), in additions.
    """
    return sum(_cost(node) for node in walk(*roots))


def _cost(node: Expr) -> int:
    function = FUNCTIONS.get(node.op)
    return function.cost if function is not None else 1 if node.args else 0


def cost_cpu(*roots: Expr) -> int:
    """Return how much work one evaluation of `roots` is in a loop of a processor, in additions."""
    return sum(_cost_cpu(node) for node in walk(*roots))


def _cost_cpu(node: Expr) -> int:
    function = FUNCTIONS.get(node.op)
    if function is None:
        return 1 if node.args else 0
    if function.cost_cpu_integers is not None and node.dtype.is_integral:
        return function.cost_cpu_integers
    return function.cost_cpu


# Parts of a text that are longer stand in it as their hash: written out, what many others share would
# make it grow without bound.
_LONGEST = 2000


def show(x: Expr) -> str:
    """Return a stable, readable text of the expression; different expressions have different texts."""
    texts: dict[Expr, str] = {}
    for node in walk(x):
        parts = [texts[a] for a in node.args]
        match node.op:
            case "const":
                text = repr(node.value)
            case "arg":
                text = f"arg{node.value}"
            case "input":
                text = f"x{node.value}"
            case "index":
                text = f"i{node.value[0]}"
            case "reduced":
                text = f"r{node.value}"
            case "load":
                text = f"b{node.value}[{', '.join(parts)}]"
            case "cast":
                text = f"{node.dtype.name}({parts[0]})"
            case "philox":
                text = f"philox{node.value}({', '.join(parts)})"
            case op if op in FUNCTIONS and (sign := FUNCTIONS[op].sign):
                text = f"({parts[0]} {sign} {parts[1]})"
            case op:
                text = f"{op}({', '.join(parts)})"
        if len(text) > _LONGEST and node is not x:
            text = f"{node.op}:{hashlib.sha256(text.encode()).hexdigest()[:16]}"
        texts[node] = text
    return texts[x]
