"""Elementwise operations as nodes: those that ONNX has, and formulas written out. Floor 6."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from webtorch.ir import expr as ex
from webtorch.ir.dtype import DType, Scalar, bool_, int32, int64
from webtorch.ir.expr import Expr
from webtorch.ir.graph import Node
from webtorch.ir.view import contiguous_strides, numel
from webtorch.onnx.graph import ExportError
from webtorch.onnx.recording import Call, Value
from webtorch.onnx.writer import Name, Writer, Written, rule
from webtorch.ops.record import TABLE, Elementwise
from webtorch.tensors.promotion import result_type
from webtorch.tensors.storage import Storage
from webtorch.tensors.tensor import Tensor

# Entries that ONNX has, and those that are one scalar function with a node.
_NODES = {
    **{op.name: op.onnx for op in TABLE.values() if isinstance(op, Elementwise) and op.onnx},
    **{f.name: f.onnx for f in ex.FUNCTIONS.values() if isinstance(f.onnx, str) and f.onnx},
}
_SINCE = {"HardSwish": 14, "Mish": 18}
# Nodes that take no integers, or no booleans.
_FLOAT_ONLY = frozenset((
    "Floor", "Ceil", "Round", "Reciprocal", "Sqrt", "Exp", "Log", "Sigmoid", "Tanh", "Erf", "Softsign",
    "Selu", "HardSwish", "Mish", "IsNaN", "IsInf",
))  # fmt: skip


@rule("apply")
def _apply(
    w: Writer,
    call: Call,
    op: Elementwise,
    operands: Sequence[Value | Scalar],
    numbers: Sequence[Scalar] = (),
    **_: object,
) -> Written:
    out = call.results[0]
    types = [_typed(w, o) for o in operands]
    compute = result_type(*types[op.chooses :])
    if op.promotion == "float" and compute.kind != "float":
        compute = out.dtype
    names: list[Name] = []
    for i, o in enumerate(operands):
        if isinstance(o, Value):
            kept = op.chooses and i == 0 and o.dtype is bool_
            names.append(w.cast(w.name(o), o.dtype, o.dtype if kept else compute))
        else:
            names.append(w.number(o, compute))
    dtype: DType | None
    result, dtype = _named(w, op, names, numbers, compute)
    if result is None:
        result, dtype = _formula(w, op, names, [w.number(n, compute) for n in numbers], compute)
        if dtype is None:
            # A formula that does not look at its inputs.
            return w.expand(result, (), out.shape)
    result = w.cast(result, dtype, out.dtype)
    shapes = [o.shape for o in operands if isinstance(o, Value)]
    if not shapes and out.shape:
        return w.expand(result, (), out.shape)
    return result


def _typed(w: Writer, o: Value | Scalar) -> Tensor | Scalar:
    """Return a tensor of the type and shape of a value, for the rules of promotion."""
    if not isinstance(o, Value):
        return o
    node = Node.in_memory(o.shape, o.dtype)
    storage = Storage(node, w.recording.runtime)
    return Tensor._from_storage(storage, o.shape, contiguous_strides(o.shape), 0, True)


def _named(
    w: Writer, op: Elementwise, x: list[Name], numbers: Sequence[Scalar], dtype: DType
) -> tuple[Name | None, DType]:
    """Write an entry that ONNX has as a node. Returns (None, ...) for others."""
    kind = dtype.kind
    match op.name:
        case "_gelu_erf" | "_gelu_tanh" if w.opset >= 20:
            return w.node(
                "Gelu", x[0], approximate="none" if op.name == "_gelu_erf" else "tanh"
            ), dtype
        case "silu":
            return w.node("Mul", x[0], w.node("Sigmoid", x[0])), dtype
        case "leaky_relu":
            return w.node("LeakyRelu", x[0], alpha=float(numbers[0])), dtype
        case "elu":
            return w.node("Elu", x[0], alpha=float(numbers[0])), dtype
        case "celu" if dtype.name == "float32":
            return w.node("Celu", x[0], alpha=float(numbers[0])), dtype
        case "softplus" if numbers[0] == 1:
            return w.node("Softplus", x[0]), dtype
        case "hardsigmoid":
            return w.node("HardSigmoid", x[0], alpha=1 / 6, beta=0.5), dtype
        case "hardtanh":
            low, high = (w.number(n, dtype) for n in numbers)
            return w.node("Clip", x[0], low, high), dtype
        case "relu6":
            return w.node("Clip", x[0], w.number(0, dtype), w.number(6, dtype)), dtype
        case "rsqrt" if kind == "float":
            return w.node("Reciprocal", w.node("Sqrt", x[0])), dtype
        case "_square":
            return w.node("Mul", x[0], x[0]), dtype
        case "positive":
            return x[0], dtype
        case "_where":
            return w.node("Where", *x), dtype
        case "_clamp" if kind == "float":
            return w.node("Min", w.node("Max", x[0], x[1]), x[2]), dtype
        case "ne":
            return w.node("Not", w.node("Equal", *x)), bool_
        case "logical_and" | "logical_or" | "logical_xor" if dtype is bool_:
            return w.node(op.name[8:].capitalize(), *x), bool_
        case "logical_not" if dtype is bool_:
            return w.node("Not", x[0]), bool_
        case "fmax" | "fmin":
            return None, dtype
    node = _NODES.get(op.name)
    if node is None or w.opset < _SINCE.get(node, 0):
        return None, dtype
    if kind != "float" and node in _FLOAT_ONLY:
        return (x[0], dtype) if node in ("Floor", "Ceil", "Round") else (None, dtype)
    if dtype is bool_ and node not in ("Equal",):
        # ONNX's arithmetic and comparisons have no booleans.
        wide = [w.cast(one, bool_, int32) for one in x]
        result = w.node(node, *wide)
        return result, bool_ if op.promotion == "bool" else int32
    return w.node(node, *x), bool_ if op.promotion == "bool" else dtype


def _formula(
    w: Writer, op: Elementwise, x: list[Name], numbers: list[Name], dtype: DType
) -> tuple[Name, DType | None]:
    """Write an entry from its formula."""
    names = [*x, *numbers]
    kinds = [bool_ if op.chooses and i == 0 else dtype for i in range(len(names))]
    root = op.build(tuple(ex.input_(i, t) for i, t in enumerate(kinds)))
    found = written(w, root, names, op.name)
    if not any(e.op == "input" for e in ex.walk(root)):
        return found, None
    return found, root.dtype


def written(w: Writer, root: Expr, inputs: Sequence[Name], title: str) -> Name:
    """Write a scalar expression over tensors."""
    made: dict[Expr, Name] = {}
    for e in ex.walk(root):
        args = [made[a] for a in e.args]
        if e.op == "input":
            made[e] = inputs[e.value]
        elif e.op == "const":
            key = (e.value if e.value == e.value else "nan", e.dtype.name, str(e.value))
            if ("expr", key) not in w.interned:
                w.interned["expr", key] = w.number(e.value, e.dtype)
            made[e] = w.interned["expr", key]
        else:
            made[e] = _written(w, e, args, title)
    return made[root]


def _written(w: Writer, e: Expr, args: list[Name], title: str) -> Name:
    """Write one scalar function: as a node, or by the formula of nodes in its record."""
    special = _EXPRESSIONS.get(e.op)
    if special is not None:
        return special(w, e, *args)
    function = ex.FUNCTIONS.get(e.op)
    if e.op == "mod" and e.dtype.kind != "float":
        return w.node("Mod", *args)
    if function is None or not function.onnx:
        raise ExportError(
            f"export: {title.strip('_')} computes with {e.op}, which ONNX does not have. Move it out "
            "of the exported function, or write it with other operations."
        )
    if isinstance(function.onnx, str):
        return w.node(function.onnx, *args)
    formula = function.onnx(*(ex.input_(i, a.dtype) for i, a in enumerate(e.args)))
    return written(w, formula, args, title)


def _logical(word: str) -> Callable[..., Name]:
    def write(w: Writer, e: Expr, x: Name, y: Name) -> Name:
        """Write the node: logical for bools, bitwise for integers (opset 18 and later)."""
        if e.args[0].dtype is bool_:
            return w.node(word, x, y)
        return _of_bits(w, word, x, y)

    return write


def _of_bits(w: Writer, word: str, *x: Name) -> Name:
    if w.opset < 18:
        raise ExportError(f"export: bitwise_{word.lower()} needs opset 18; this is {w.opset}")
    return w.node(f"Bitwise{word}", *x)


# What is more than a node or a formula of nodes: attributes, and nodes of later opsets.
_EXPRESSIONS: dict[str, Callable[..., Name]] = {
    "cast": lambda w, e, x: w.node("Cast", x, to=e.dtype.name),
    "truncmod": lambda w, e, x, y: w.node("Mod", x, y, fmod=1),
    "and": _logical("And"), "or": _logical("Or"), "xor": _logical("Xor"),
    "bitnot": lambda w, e, x: _of_bits(w, "Not", x),
}  # fmt: skip


@rule("clamp")
def _clamp(
    w: Writer,
    call: Call,
    input: Value,
    min: Value | Scalar | None = None,
    max: Value | Scalar | None = None,
) -> Name | None:
    if isinstance(min, Value) or isinstance(max, Value):
        return None
    dtype = call.results[0].dtype
    if dtype is not input.dtype or dtype is bool_:
        return None
    bounds = [None if b is None else w.number(b, dtype) for b in (min, max)]
    return w.node("Clip", w.name(input), *bounds)


@rule("arange")
def _arange(w: Writer, call: Call, **args: Any) -> Name | None:
    given = args.get("args") or args.get("bounds") or ()
    out = call.results[0]
    if len(given) not in (1, 2) or out.dtype.kind == "float":
        return None
    if not all(isinstance(v, int) for v in given):
        return None
    start, stop = (0, *given)[-2:]
    steps = w.node(
        "Range", w.ints([start], scalar=True), w.ints([stop], scalar=True), w.ints([1], scalar=True)
    )
    return w.cast(steps, int64, out.dtype)


@rule("gelu")
def _gelu(w: Writer, call: Call, input: Value, approximate: str = "none") -> Name | None:
    if w.opset >= 20:
        return w.node("Gelu", w.name(input), approximate=approximate)
    return None


@rule("prelu")
def _prelu(w: Writer, call: Call, input: Value, weight: Value) -> Name:
    slope = w.name(weight)
    if numel(weight.shape) > 1 and len(input.shape) > 2:
        slope = w.reshape(slope, weight.shape, (-1,) + (1,) * (len(input.shape) - 2))
    return w.node("PRelu", w.name(input), slope)


@rule("pow")
def _pow(w: Writer, call: Call, input: Value | Scalar, exponent: Value | Scalar) -> Name | None:
    if not isinstance(input, Value) or not isinstance(exponent, (int, float)):
        return None
    if call.results[0].dtype is not input.dtype or input.dtype.kind != "float":
        return None
    x = w.name(input)
    return (
        w.node("Mul", x, x) if exponent == 2 else w.node("Pow", x, w.number(exponent, input.dtype))
    )
