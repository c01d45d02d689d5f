"""Kernels as WGSL text: the expression table, the loop nests, and the choice of launch geometry. Floor 2; imports
floor 0 and the templates.

A language is a table (`_UNARY`, `_BINARY` and the casts below); everything with a trap in it is a helper of
`webtorch.lower.prelude`, and the accurate functions are the shared expansions, rendered once as functions.

Every generic kernel has one shape. A workgroup has `tx` x `ty` invocations: `tx` outer points side by side, and for each of
them `ty` invocations that share its inner points and combine through workgroup memory. ty = 1 is "one thread per outer
point", tx = 1 "one workgroup per outer point". Each invocation takes `lanes` consecutive points at a time, so that it can
load four-element vectors and write whole words of packed types.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Literal, cast

from webtorch.errors import DTypeError
from webtorch.ir import expr as ex
from webtorch.ir.dtype import (
    DType,
    bfloat16,
    bool_,
    float16,
    float32,
    int8,
    int16,
    int32,
    uint8,
    uint32,
)
from webtorch.ir.expr import Expr
from webtorch.ir.kernel import (
    BufferSlot,
    Check,
    Convolution,
    Kernel,
    Matmul,
    Reduce,
    Routine,
    Scan,
    Store,
)
from webtorch.ir.view import contiguous_strides, numel
from webtorch.lower import prelude
from webtorch.lower.expansions import EXPANSIONS
from webtorch.runtime.backend import Limits

Engine = Literal["naga", "dawn"]
Binding = Literal["read", "read_write", "uniform"]

# Elements per 32-bit word of the types that WGSL cannot address on their own.
_PER_WORD: dict[DType, int] = {bool_: 4, int8: 4, uint8: 4, float16: 2, bfloat16: 2}
# Below this many points, parallelism is worth more than four-element loads.
_VECTOR_POINTS = 1 << 15
# Most points that one invocation takes without a loop, and most expression nodes that this may multiply to.
_STATIC_POINTS = 16
_STATIC_NODES = 1500
# Terms that one running float sum may take before a fresh partial sum is started.
_BLOCK = 64


@dataclass(frozen=True, slots=True)
class WgslPass:
    """One compute dispatch.

    Bindings of group 0, in order: the routine's buffers named in `slots`, one scratch buffer for each entry of `scratch`
    (its size in bytes; the passes of a routine share them by number), the uniform struct if `args_bytes` is not 0, and the
    two status words if `has_status`. `bindings` says how each is used. `args` places the routine's arguments in the struct:
    (offset in bytes, type to write, argument number).
    """

    source: str
    grid: tuple[int, int, int]
    workgroup_size: tuple[int, int, int]
    slots: tuple[int, ...]
    scratch: tuple[int, ...] = ()
    args: tuple[tuple[int, DType, int], ...] = ()
    args_bytes: int = 0
    has_status: bool = False
    bindings: tuple[Binding, ...] = ()


def render(routine: Routine, limits: Limits, engine: Engine) -> list[WgslPass]:
    """Return the dispatches that compute `routine`, in order.

    Raises DTypeError for a type that WGSL does not have, OverflowError for a constant that 32 bits cannot hold.
    """
    match routine:
        case Kernel():
            return render_kernel(routine, limits, engine)
        case Matmul():
            from webtorch.lower.templates import matmul

            return matmul.render(routine, limits, engine)
        case Convolution():
            from webtorch.lower.templates import conv

            return conv.render(routine, limits, engine)
        case Scan():
            from webtorch.lower.templates import scan

            return scan.render(routine, limits, engine)


# --- types and constants -------------------------------------------------------------------------------------------


def wgsl_type(dtype: DType) -> str:
    """Return the WGSL type in which values of `dtype` are computed."""
    if dtype.name == "float64":
        raise DTypeError(
            "float64 does not exist on WebGPU: WGSL has no 64-bit floats. Use float32, or device='cpu'"
        )
    match dtype.kind:
        case "bool":
            return "bool"
        case "float":
            return "f32"
        case "int":
            return "i32"
        case "uint":
            return "u32"


def float_literal(value: float) -> str:
    """Return `value`, rounded to float32, as WGSL text."""
    if value != value:
        return "wt_nan()"
    try:
        value = struct.unpack("<f", struct.pack("<f", value))[0]
    except OverflowError:
        value = math.copysign(math.inf, value)
    if math.isinf(value):
        return "wt_inf()" if value > 0 else "(-wt_inf())"
    if value == 0:
        # "-0f" may lose its sign in a front end that folds the negation.
        return "0f" if math.copysign(1.0, value) > 0 else "bitcast<f32>(0x80000000u)"
    # Subnormal numbers, and the largest ones, whose shortest decimal form front ends take for an overflow: by their bits.
    if abs(value) < 2.0**-126 or abs(value) >= 2.0**127:
        return f"bitcast<f32>(0x{struct.unpack('<I', struct.pack('<f', value))[0]:08x}u)"
    text = f"{value:.9g}f"
    return f"({text})" if value < 0 else text


def literal(value: object, dtype: DType) -> str:
    """Return a constant of `dtype` as WGSL text. Raises OverflowError for an integer that needs more than 32 bits."""
    match wgsl_type(dtype):
        case "bool":
            return "true" if value else "false"
        case "f32":
            return float_literal(float(cast(float, value)))
        case "u32":
            return f"{int(cast(int, value)) & 0xFFFFFFFF}u"
        case _:
            number = int(cast(int, value))
            if not -(1 << 31) <= number < 1 << 31:
                raise OverflowError(
                    f"the constant {number} does not fit 32 bits: WebGPU holds {dtype} as 32-bit integers. "
                    f"Use device='cpu' for larger values"
                )
            if number == -(1 << 31):
                return "bitcast<i32>(0x80000000u)"
            return f"({number})" if number < 0 else f"{number}"


_IDENTITY: dict[str, dict[str, str]] = {
    "sum": {"f32": "0f", "i32": "0", "u32": "0u"},
    "prod": {"f32": "1f", "i32": "1", "u32": "1u"},
    "max": {"f32": "(-wt_inf())", "i32": "bitcast<i32>(0x80000000u)", "u32": "0u", "bool": "false"},
    "min": {"f32": "wt_inf()", "i32": "2147483647", "u32": "0xffffffffu", "bool": "true"},
    "any": {"bool": "false"},
    "all": {"bool": "true"},
}


def identity(op: str, kind: str) -> str:
    """Return the neutral value of reduction `op` in WGSL type `kind`."""
    return _IDENTITY[op.removeprefix("arg")][kind]


def combine(op: str, kind: str, a: str, b: str) -> str:
    """Return the text that combines `a` and `b` under reduction `op` (not argmax or argmin)."""
    match op, kind:
        case "sum" | "add", _:
            return f"({a} + {b})"
        case "prod" | "mul", _:
            return f"({a} * {b})"
        case "max" | "min", "f32":
            return f"wt_{op}({a}, {b})"
        case ("any", _) | ("max", "bool"):
            return f"({a} || {b})"
        case ("all", _) | ("min", "bool"):
            return f"({a} && {b})"
        case _:
            return f"{op}({a}, {b})"


# --- the expression table ------------------------------------------------------------------------------------------

_FLOAT_UNARY: dict[str, str] = {
    "neg": "(-{0})",
    "abs": "abs({0})",
    "sign": "wt_sign({0})",
    "sqrt": "sqrt({0})",
    "rsqrt": "inverseSqrt({0})",
    "floor": "floor({0})",
    "ceil": "ceil({0})",
    "trunc": "trunc({0})",
    "round": "round({0})",
    "isnan": "wt_isnan({0})",
    "isinf": "wt_isinf({0})",
}
_FLOAT_BINARY: dict[str, str] = {
    "add": "({0} + {1})",
    "sub": "({0} - {1})",
    "mul": "({0} * {1})",
    "div": "({0} / {1})",
    "floordiv": "wt_floordiv({0}, {1})",
    "truncdiv": "wt_truncdiv({0}, {1})",
    "mod": "wt_mod({0}, {1})",
    "truncmod": "wt_fmod({0}, {1})",
    "copysign": "wt_copysign({0}, {1})",
    "min": "wt_min({0}, {1})",
    "max": "wt_max({0}, {1})",
    "lt": "({0} < {1})",
    "le": "({0} <= {1})",
    "eq": "({0} == {1})",
    "ne": "wt_ne({0}, {1})",
}
_INT_UNARY: dict[str, str] = {
    "neg": "(0 - {0})",
    "abs": "abs({0})",
    "sign": "sign({0})",
    "bitnot": "(~{0})",
    "floor": "{0}",
    "ceil": "{0}",
    "trunc": "{0}",
    "round": "{0}",
}
_INT_BINARY: dict[str, str] = {
    "add": "({0} + {1})",
    "sub": "({0} - {1})",
    "mul": "({0} * {1})",
    "floordiv": "wt_i32_floordiv({0}, {1})",
    "truncdiv": "wt_i32_div({0}, {1})",
    "mod": "wt_i32_mod({0}, {1})",
    "truncmod": "wt_i32_rem({0}, {1})",
    "pow": "wt_i32_pow({0}, {1})",
    "min": "min({0}, {1})",
    "max": "max({0}, {1})",
    "lt": "({0} < {1})",
    "le": "({0} <= {1})",
    "eq": "({0} == {1})",
    "ne": "({0} != {1})",
    "and": "({0} & {1})",
    "or": "({0} | {1})",
    "xor": "({0} ^ {1})",
    "shl": "bitcast<i32>(wt_shl(bitcast<u32>({0}), bitcast<u32>({1})))",
    "shr": "wt_shr_i32({0}, {1})",
}
_UINT_UNARY: dict[str, str] = {
    **_INT_UNARY,
    "neg": "(0u - {0})",
    "abs": "{0}",
    "sign": "min({0}, 1u)",
}
_UINT_BINARY: dict[str, str] = {
    **_INT_BINARY,
    "floordiv": "wt_u32_div({0}, {1})",
    "truncdiv": "wt_u32_div({0}, {1})",
    "mod": "wt_u32_rem({0}, {1})",
    "truncmod": "wt_u32_rem({0}, {1})",
    "pow": "wt_u32_pow({0}, {1})",
    "shl": "wt_shl({0}, {1})",
    "shr": "wt_shr_u32({0}, {1})",
}
_BOOL: dict[str, str] = {
    "and": "({0} && {1})",
    "or": "({0} || {1})",
    "xor": "({0} != {1})",
    "ne": "({0} != {1})",
    "eq": "({0} == {1})",
    "lt": "(!{0} && {1})",
    "le": "(!{0} || {1})",
    "max": "({0} || {1})",
    "min": "({0} && {1})",
    "add": "({0} || {1})",
    "mul": "({0} && {1})",
    "abs": "{0}",
    "not": "(!{0})",
    "bitnot": "(!{0})",
}
_TABLES: dict[str, dict[str, str]] = {
    "f32": {**_FLOAT_UNARY, **_FLOAT_BINARY},
    "i32": {**_INT_UNARY, **_INT_BINARY},
    "u32": {**_UINT_UNARY, **_UINT_BINARY},
    "bool": _BOOL,
}
# Arithmetic whose result may leave an 8- or 16-bit type, and the text that brings it back.
_WRAPPING = frozenset(
    {"add", "sub", "mul", "neg", "abs", "shl", "pow", "bitnot", "floordiv", "truncdiv"}
)


def _wrap(dtype: DType, text: str) -> str:
    if dtype is int8:
        return f"(({text} << 24u) >> 24u)"
    if dtype is int16:
        return f"(({text} << 16u) >> 16u)"
    if dtype is uint8:
        return f"({text} & 0xffu)"
    return text


def convert(text: str, source: DType, target: DType) -> str:
    """Return the text that converts a value of `source` to `target` as PyTorch does."""
    if source is target:
        return text
    a, b = wgsl_type(source), wgsl_type(target)
    if target in (float16, bfloat16):
        # Through the bits: the value itself must be rounded, not only its stored form.
        return decode(encode(convert(text, source, float32), target), target)
    if b == "bool":
        if a == "f32":
            # Bits, since an adapter may take a subnormal for zero.
            return f"((bitcast<u32>({text}) & 0x7fffffffu) != 0u)"
        return f"({text} != {'0u' if a == 'u32' else '0'})"
    if a == "bool":
        one = {
            "f32": "select(0f, 1f, {0})",
            "i32": "select(0, 1, {0})",
            "u32": "select(0u, 1u, {0})",
        }
        return one[b].format(text)
    if b == "f32":
        return text if a == "f32" else f"f32({text})"
    if a == "f32":
        if target in (int8, int16):
            return _wrap(target, f"wt_f32_to_i32({text})")
        if target is uint8:
            return f"(bitcast<u32>(wt_f32_to_i32({text})) & 0xffu)"
        return f"wt_f32_to_{b}({text})"
    return _wrap(target, text if a == b else f"bitcast<{b}>({text})")


def encode(value: str, dtype: DType) -> str:
    """Return the stored bits (u32, in the low end) of a value of a packed type."""
    if dtype is bool_:
        return f"select(0u, 1u, {value})"
    if dtype is float16:
        return f"wt_to_f16({value})"
    if dtype is bfloat16:
        return f"wt_to_bf16({value})"
    return f"({value} & 0xffu)" if dtype is uint8 else f"(bitcast<u32>({value}) & 0xffu)"


def decode(bits: str, dtype: DType) -> str:
    """Return the value of stored bits that are alone in their word."""
    if dtype is bool_:
        return f"({bits} != 0u)"
    if dtype is float16:
        return f"wt_from_f16({bits})"
    if dtype is bfloat16:
        return f"bitcast<f32>({bits} << 16u)"
    return bits if dtype is uint8 else f"((bitcast<i32>({bits}) << 24u) >> 24u)"


def extract(word: str, position: str | int, dtype: DType) -> str:
    """Return element `position` (modulo the elements in a word) of a packed word, as a value."""
    per = _PER_WORD[dtype]
    bits = 32 // per
    mask = (1 << bits) - 1
    if isinstance(position, int):
        shift = (position % per) * bits
        if dtype is bfloat16:
            return (
                f"bitcast<f32>({word} << 16u)"
                if shift == 0
                else f"bitcast<f32>({word} & 0xffff0000u)"
            )
        if dtype is int8:
            return f"((bitcast<i32>({word}) << {24 - shift}u) >> 24u)"
        return decode(
            f"(({word} >> {shift}u) & {mask}u)" if shift else f"({word} & {mask}u)", dtype
        )
    return decode(f"(({word} >> ((u32({position}) & {per - 1}u) * {bits}u)) & {mask}u)", dtype)


# --- facts about index expressions ---------------------------------------------------------------------------------

Affine = tuple[int, dict[int, int]]


def affine(x: Expr, memo: dict[Expr, Affine | None]) -> Affine | None:
    """Return (constant, {dim: coefficient}) if `x` is a linear form of loop variables, else None."""
    if x in memo:
        return memo[x]
    for node in ex.walk(x):
        if node in memo:
            continue
        found: Affine | None = None
        match node.op:
            case "const" if node.dtype.kind in ("int", "uint"):
                found = (int(cast(int, node.value)), {})
            case "index":
                found = (0, {cast("tuple[int, int]", node.value)[0]: 1})
            case "add" | "sub" if node.dtype.kind == "int":
                a, b = memo[node.args[0]], memo[node.args[1]]
                if a is not None and b is not None:
                    s = 1 if node.op == "add" else -1
                    terms = dict(a[1])
                    for d, c in b[1].items():
                        terms[d] = terms.get(d, 0) + s * c
                    found = (a[0] + s * b[0], {d: c for d, c in terms.items() if c})
            case "mul" if node.dtype.kind == "int":
                a, b = memo[node.args[0]], memo[node.args[1]]
                if a is not None and b is not None and (not a[1] or not b[1]):
                    if a[1]:
                        a, b = b, a
                    found = (a[0] * b[0], {d: c * a[0] for d, c in b[1].items() if c * a[0]})
            case _:
                pass
        memo[node] = found
    return memo[x]


Range = tuple[int, int]


def bounds(x: Expr, memo: dict[Expr, Range | None]) -> Range | None:
    """Return the smallest and largest value that integer expression `x` can take, or None where nothing is known."""
    for node in ex.walk(x):
        if node in memo:
            continue
        memo[node] = _bounds(node, memo)
    return memo[x]


def _bounds(node: Expr, memo: dict[Expr, Range | None]) -> Range | None:
    if node.op == "const" and node.dtype.kind in ("int", "uint"):
        return (int(cast(int, node.value)),) * 2
    if node.op == "index":
        return (0, cast("tuple[int, int]", node.value)[1] - 1)
    if node.dtype.kind != "int" or node.op in ("load", "arg", "reduced"):
        return None
    known = [memo[a] for a in node.args]
    if node.op == "where":
        known = known[1:]
    if node.op == "mod" and known[1] is not None and known[1][0] == known[1][1] > 0:
        if known[0] is not None and known[0][0] >= 0 and known[0][1] < known[1][0]:
            return known[0]
        return (0, known[1][0] - 1)
    if node.op in ("min", "max") and (known[0] is None) != (known[1] is None):
        return None
    if any(k is None for k in known):
        return None
    sides = cast("list[Range]", known)
    result: Range | None = None
    match node.op:
        case "add":
            result = (sides[0][0] + sides[1][0], sides[0][1] + sides[1][1])
        case "sub":
            result = (sides[0][0] - sides[1][1], sides[0][1] - sides[1][0])
        case "mul":
            ends = [p * q for p in sides[0] for q in sides[1]]
            result = (min(ends), max(ends))
        case "floordiv" if sides[1][0] == sides[1][1] > 0:
            result = (sides[0][0] // sides[1][0], sides[0][1] // sides[1][0])
        case "min":
            result = (min(sides[0][0], sides[1][0]), min(sides[0][1], sides[1][1]))
        case "max":
            result = (max(sides[0][0], sides[1][0]), max(sides[0][1], sides[1][1]))
        case "where":
            result = (min(s[0] for s in sides), max(s[1] for s in sides))
        case "neg":
            result = (-sides[0][1], -sides[0][0])
        case "cast" if node.args[0].dtype.kind == "int" and node.dtype.itemsize >= 4:
            result = sides[0]
        case _:
            return None
    # A sum that may wrap around tells nothing.
    return result if -(1 << 31) <= result[0] and result[1] < 1 << 31 else None


def _fits_int(x: Expr) -> bool:
    """Whether a float is known to lie within int32, NaN aside: a plain conversion is then enough."""
    known = _float_bounds(x)
    return known is not None and known[0] > -(2.0**31) and known[1] < 2.0**31


def _float_bounds(x: Expr) -> tuple[float, float] | None:
    if x.dtype is not float32:
        return None
    if x.op in ("round", "floor", "ceil", "trunc"):
        inner = _float_bounds(x.args[0])
        return None if inner is None else (inner[0] - 1, inner[1] + 1)
    if x.op in ("min", "max"):
        for a, b in (x.args, x.args[::-1]):
            if b.op == "const":
                limit = cast(float, b.value)
                low, high = _float_bounds(a) or (-math.inf, math.inf)
                clip = min if x.op == "min" else max
                return clip(low, limit), clip(high, limit)
    if x.op == "mul" and x.args[1].op == "const":
        inner = _float_bounds(x.args[0])
        factor = cast(float, x.args[1].value)
        if inner is not None and math.isfinite(inner[0]) and math.isfinite(inner[1]):
            ends = (inner[0] * factor, inner[1] * factor)
            return min(ends), max(ends)
    return None


# --- the writer ----------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Slot:
    """How one buffer appears in the shader."""

    number: int
    slot: BufferSlot
    atomic: bool = False
    # Elements in one array element: 4 for vec4, 2 or 4 for packed words, else 1.
    width: int = 1
    packed: bool = False
    native_f16: bool = False

    @property
    def name(self) -> str:
        return f"b{self.number}"

    @property
    def declared(self) -> str:
        if self.packed:
            base = "u32"
        elif self.native_f16:
            base = "f16"
        else:
            base = wgsl_type(self.slot.dtype)
        if self.atomic:
            # A float is changed atomically through its bits.
            return f"atomic<{'u32' if base == 'f32' else base}>"
        return f"vec4<{base}>" if self.width == 4 and not self.packed else base


@dataclass(slots=True)
class Scope:
    """Where a value is known: the whole invocation, or one point (lane) of it."""

    parent: Scope | None = None
    env: dict[Expr, str] = field(default_factory=dict)
    # Lines go to the scope that owns a list; a lane shares the list of the block it stands in.
    lines: list[str] = field(default_factory=list)
    # The linear number of the lane's point in the fast space, and the same number for lane 0 of its block.
    lane: int = 0
    linear: str = ""
    base: Scope | None = None
    vectors: dict[tuple[int, Expr], str] = field(default_factory=dict)

    def find(self, x: Expr) -> str | None:
        scope: Scope | None = self
        while scope is not None:
            text = scope.env.get(x)
            if text is not None:
                return text
            scope = scope.parent
        return None


class KernelWriter:
    """Writes one generic kernel. Templates use the same class for their loads and epilogues."""

    def __init__(self, kernel: Kernel, limits: Limits) -> None:
        self.kernel = kernel
        self.limits = limits
        self.rank = len(kernel.outer)
        self.names = 0
        self.affine_memo: dict[Expr, Affine | None] = {}
        self.bounds_memo: dict[Expr, Range | None] = {}
        self.mask_memo: dict[Expr, int] = {}
        self.uses: dict[Expr, int] = {}
        self.args: list[int] = []
        self.lanes = 1
        # Whether the lanes run along the outer points (no reduction) or along the inner ones.
        self.fast_inner = bool(kernel.reduces)
        self.fast_count = kernel.inner_count if self.fast_inner else kernel.outer_count
        self.slots: dict[int, Slot] = {}
        self.top = Scope()
        self._count_uses()

    # -- facts --

    def _count_uses(self) -> None:
        for node in ex.walk(*self.kernel.expressions()):
            for a in node.args:
                self.uses[a] = self.uses.get(a, 0) + 1
        for root in self.kernel.expressions():
            self.uses[root] = self.uses.get(root, 0) + 1

    def mask(self, x: Expr) -> int:
        """Return the set of loop variables in `x`, as bits."""
        if x not in self.mask_memo:
            for node in ex.walk(x):
                if node in self.mask_memo:
                    continue
                m = 0
                if node.op == "index":
                    m = 1 << cast("tuple[int, int]", node.value)[0]
                for a in node.args:
                    m |= self.mask_memo[a]
                self.mask_memo[node] = m
        return self.mask_memo[x]

    @property
    def inner_mask(self) -> int:
        return ((1 << len(self.kernel.inner)) - 1) << self.rank

    def varies(self, x: Expr) -> bool:
        """Whether `x` differs between the points of one invocation."""
        if self.fast_inner:
            return bool(self.mask(x) & self.inner_mask)
        if self.lanes == 1:
            return False
        if self.splits_last:
            return bool(self.mask(x) & (1 << (self.rank - 1)))
        return bool(self.mask(x))

    @property
    def fast_dims(self) -> tuple[int, ...]:
        k = self.kernel
        return k.inner if self.fast_inner else k.outer

    @property
    def splits_last(self) -> bool:
        """Whether the lanes of a block differ in the last fast dimension only."""
        dims = self.fast_dims
        return bool(dims) and (len(dims) == 1 or dims[-1] % self.lanes == 0)

    def _strides_of(self, terms: dict[int, int], first: int, dims: tuple[int, ...]) -> int | None:
        """Return s if the terms of `dims` are s times the linear number of the point, None if they are not."""
        strides = contiguous_strides(dims)
        scale: int | None = None
        for i, size in enumerate(dims):
            if size == 1:
                continue
            c = terms.get(first + i, 0)
            if c % strides[i]:
                return None
            s = c // strides[i]
            if scale is None:
                scale = s
            elif s != scale:
                return None
        return scale or 0

    def is_vector(self, position: Expr, width: int, lanes: int) -> bool:
        """Whether `lanes` consecutive points access consecutive elements that start at a multiple of `width`."""
        form = affine(position, self.affine_memo)
        if form is None or lanes % width:
            return False
        constant, terms = form
        if constant % width:
            return False
        dims = self.fast_dims
        if not dims:
            return False
        first = self.rank if self.fast_inner else 0
        rest = {d: c for d, c in terms.items() if not first <= d < first + len(dims)}
        if any(c % width for c in rest.values()):
            return False
        if self._strides_of(terms, first, dims) == 1 and numel(dims) > 1:
            return True
        last = first + len(dims) - 1
        return (
            dims[-1] % lanes == 0
            and terms.get(last, 0) == 1
            and all(c % width == 0 for d, c in terms.items() if d != last)
        )

    def in_range(self, position: Expr, elements: int) -> bool:
        known = bounds(position, self.bounds_memo)
        return known is not None and known[0] >= 0 and known[1] < elements

    # -- choices --

    def loads(self, roots: Iterable[Expr] | None = None) -> list[Expr]:
        """Return every load under `roots` (of the whole kernel if None)."""
        return [n for n in ex.walk(*(roots or self.kernel.expressions())) if n.op == "load"]

    def choose_lanes(self, vector_points: int) -> None:
        """Choose how many consecutive points an invocation takes, and how each buffer is declared."""
        k = self.kernel
        fast: list[Store] = []
        if self.fast_inner:
            fast = [s for s in k.stores if s.level == "inner"]
        else:
            fast = list(k.stores)
        plain = [s for s in fast if s.combine == "set" and s.valid is None]
        packed = [s for s in plain if self.is_packed(k.buffers[s.buffer].dtype)]
        self.lanes = 1
        for lanes in (4, 2):
            if any(self.is_word_store(s, lanes) for s in packed):
                self.lanes = lanes
                break
        wide = [
            n
            for n in self.loads()
            if len(n.args) == 1
            and not self.is_packed(k.buffers[cast(int, n.value)].dtype)
            and self.is_vector(n.args[0], 4, 4)
        ]
        if (
            self.lanes < 4
            and self.fast_count % 4 == 0
            and vector_points >= _VECTOR_POINTS
            and all(s.combine == "set" for s in fast)
            and (wide or any(self.is_vector(s.position, 4, 4) for s in plain))
        ):
            self.lanes = 4
        for i, slot in enumerate(k.buffers):
            self.slots[i] = self._declare(i, slot)

    def is_packed(self, dtype: DType) -> bool:
        return dtype in _PER_WORD and not (dtype is float16 and self.limits.has_f16)

    def is_word_store(self, store: Store, lanes: int) -> bool:
        """Whether each block of `lanes` points writes whole words that no other invocation writes."""
        slot = self.kernel.buffers[store.buffer]
        per = _PER_WORD[slot.dtype]
        if (
            store.combine != "set"
            or store.valid is not None
            or not self.is_vector(store.position, per, lanes)
        ):
            return False
        if self.fast_count % lanes == 0:
            return True
        # A last, partial word: allowed where the rest of it is the buffer's padding.
        form = affine(store.position, self.affine_memo)
        return (
            not self.fast_inner
            and form is not None
            and form[0] == 0
            and self._strides_of(form[1], 0, self.kernel.outer) == 1
            and slot.elements == self.fast_count
        )

    def _declare(self, number: int, slot: BufferSlot) -> Slot:
        k = self.kernel
        stores = [s for s in k.stores if s.buffer == number]
        combines = any(s.combine != "set" for s in stores)
        packed = slot.dtype in _PER_WORD and not (
            slot.dtype is float16 and self.limits.has_f16 and not combines
        )
        declared = Slot(number, slot, packed=packed)
        if packed:
            declared.width = _PER_WORD[slot.dtype]
            fast_level = "inner" if self.fast_inner else None
            declared.atomic = any(
                not self.is_word_store(s, self.lanes)
                or (fast_level is not None and s.level != fast_level)
                for s in stores
            )
            return declared
        declared.native_f16 = slot.dtype is float16
        if combines:
            declared.atomic = True
            return declared
        if (
            self.lanes == 4
            and self.fast_count % 4 == 0
            and slot.elements % 4 == 0
            and stores_fit(self, stores)
        ):
            loads = [n for n in self.loads() if n.value == number]
            fits = [n for n in loads if len(n.args) == 1 and self.is_vector(n.args[0], 4, 4)]
            others = [n for n in loads if n not in fits]
            if (fits or stores) and not any(
                self.varies(n.args[0]) or len(n.args) > 1 for n in others
            ):
                declared.width = 4
        return declared

    # -- values --

    def fresh(self) -> str:
        self.names += 1
        return f"v{self.names}"

    def bind(self, text: str, lines: list[str]) -> str:
        """Give `text` a name in `lines`."""
        name = self.fresh()
        lines.append(f"let {name} = {text};")
        return name

    def value(self, root: Expr, scope: Scope) -> str:
        """Return the text of `root` at the point of `scope`, writing what it needs before."""
        found = scope.find(root)
        if found is not None:
            return found
        pending: list[tuple[Expr, bool]] = [(root, False)]
        while pending:
            node, ready = pending.pop()
            if scope.find(node) is not None:
                continue
            if not ready:
                pending.append((node, True))
                pending.extend((a, False) for a in reversed(self._needs(node)))
                continue
            home = self._home(node, scope)
            text = self._text(node, scope, home)
            trivial = node.op in ("const", "arg")
            keep = (
                trivial
                or text.isidentifier()
                or (
                    self.uses.get(node, 0) <= 1
                    and home is scope
                    and len(text) < 72
                    and node.op != "load"
                )
            )
            home.env[node] = text if keep else self.bind(text, home.lines)
        text_found = scope.find(root)
        assert text_found is not None
        return text_found

    def _home(self, node: Expr, scope: Scope) -> Scope:
        return scope if self.varies(node) else self._root(scope)

    def _root(self, scope: Scope) -> Scope:
        while scope.parent is not None:
            scope = scope.parent
        return scope

    def _needs(self, node: Expr) -> tuple[Expr, ...]:
        # A linear position is written from the loop variables as a whole, not from its parts.
        if node.op == "index" or (node.dtype is int32 and node.args and self._linear(node)):
            return ()
        if node.op == "not":
            inner = node.args[0]
            if inner.op in ("lt", "le") and inner.args[0].dtype.kind == "float":
                return inner.args
        if node.op == "load" and len(node.args) == 1 and self._vector_load(node):
            return ()
        return node.args

    def _linear(self, node: Expr) -> bool:
        return node.op in ("add", "sub", "mul") and affine(node, self.affine_memo) is not None

    def _vector_load(self, node: Expr) -> bool:
        slot = self.slots[cast(int, node.value)]
        if self.lanes == 1 or slot.width == 1 or slot.atomic:
            return False
        if self.fast_count % self.lanes and slot.width != self.lanes:
            return False
        return self.varies(node) and self.is_vector(node.args[0], slot.width, self.lanes)

    def _text(self, node: Expr, scope: Scope, home: Scope) -> str:
        match node.op:
            case "const":
                return literal(node.value, node.dtype)
            case "arg":
                return self._arg(node)
            case "index":
                return self._index(node, scope)
            case "load":
                return self._load(node, scope)
            case "philox":
                lane = "xyzw"[cast(int, node.value)]
                return f"{self._philox(node, scope, home)}.{lane}"
            case "reduced" | "input":
                raise AssertionError(
                    f"{node.op} {node.value} is used before it is known in {self.kernel.name}"
                )
            case _:
                if node.dtype is int32 and node.args and self._linear(node):
                    return self._affine_text(node, scope)
                return self._operation(node, [scope.find(a) or "" for a in self._needs(node)], home)

    def _philox(self, node: Expr, scope: Scope, home: Scope) -> str:
        # The four lanes of one counter share one evaluation.
        key = ex.make("philox", uint32, node.args, -1)
        found = scope.find(key)
        if found is None:
            parts = ", ".join(scope.find(a) or "" for a in node.args)
            found = home.env[key] = self.bind(f"wt_philox({parts})", home.lines)
        return found

    def _arg(self, node: Expr) -> str:
        number = cast(int, node.value)
        if number not in self.args:
            self.args.append(number)
        wgsl_type(node.dtype)
        text = f"args.a{number}"
        return f"({text} != 0u)" if node.dtype is bool_ else text

    def _index(self, node: Expr, scope: Scope) -> str:
        dim, size = cast("tuple[int, int]", node.value)
        if size == 1:
            return "0"
        k = self.kernel
        if dim >= self.rank:
            dims, position, linear = (
                k.inner,
                dim - self.rank,
                scope.linear if self.fast_inner else "0",
            )
            base = scope.base
        else:
            dims, position = k.outer, dim
            linear = self.top.linear if self.fast_inner or self.lanes == 1 else scope.linear
            base = None if self.fast_inner else scope.base
        if (
            base is not None
            and base is not scope
            and position == len(dims) - 1
            and self.splits_last
            and self.fast_count % self.lanes == 0
        ):
            return f"({self.value(node, base)} + {scope.lane})"
        if not self.varies(node) and not self.fast_inner and scope.base is not None:
            # Equal for all lanes of a block: from the block's first point.
            linear = scope.base.linear
        stride = contiguous_strides(dims)[position]
        text = linear if stride == 1 else f"({linear} / {stride})"
        if position == 0 or numel(dims[:position]) == 1:
            return text
        return f"({text} % {size})"

    def _affine_text(self, node: Expr, scope: Scope) -> str:
        form = affine(node, self.affine_memo)
        assert form is not None
        constant, terms = form
        parts: list[str] = []
        for first, dims, inner in (
            (0, self.kernel.outer, False),
            (self.rank, self.kernel.inner, True),
        ):
            mine = {d: c for d, c in terms.items() if first <= d < first + len(dims)}
            if not mine:
                continue
            scale = self._strides_of(mine, first, dims)
            if scale and len(dims) > 1:
                if inner:
                    linear = scope.linear if self.fast_inner else "0"
                else:
                    linear = self.top.linear if self.fast_inner or self.lanes == 1 else scope.linear
                parts.append(linear if scale == 1 else f"{linear} * {scale}")
            else:
                for d, c in sorted(mine.items()):
                    name = self.value(ex.index(d, dims[d - first]), scope)
                    parts.append(name if c == 1 else f"{name} * {literal(c, int32)}")
        if constant or not parts:
            parts.append(literal(constant, int32))
        return parts[0] if len(parts) == 1 and " " not in parts[0] else f"({' + '.join(parts)})"

    def _load(self, node: Expr, scope: Scope) -> str:
        slot = self.slots[cast(int, node.value)]
        if len(node.args) == 1 and self._vector_load(node):
            base = scope.base or scope
            first = scope.lane - scope.lane % slot.width
            key = (slot.number, ex.make("add", int32, (node.args[0], ex.const(first, int32))))
            name = base.vectors.get(key)
            if name is None:
                at = self.value(node.args[0], base)
                shift = slot.width.bit_length() - 1
                step = f" + {first // slot.width}" if first else ""
                name = base.vectors[key] = self.bind(
                    f"{slot.name}[({at} >> {shift}u){step}]", base.lines
                )
            if slot.packed:
                return extract(name, scope.lane % slot.width, slot.slot.dtype)
            text = f"{name}.{'xyzw'[scope.lane % 4]}"
            return f"f32({text})" if slot.native_f16 else text
        lines = self._home(node, scope).lines
        position = scope.find(node.args[0]) or ""
        if len(node.args) == 3:
            valid, other = (scope.find(a) or "" for a in node.args[1:])
            valid = self.named(valid, lines)
            position = self.bind(f"select(0, {position}, {valid})", lines)
            # Where it is valid, a position that is computed is right; one that was read may be anything.
            if any(n.op in ("load", "arg") for n in ex.walk(node.args[0])):
                position = self.named(self._clamp(node.args[0], position, slot), lines)
            value = self.element(slot, position)
            return f"select({other}, {value}, {valid})"
        position = self._clamp(node.args[0], position, slot)
        if slot.packed or slot.width > 1:
            position = self.named(position, lines)
        return self.element(slot, position)

    def named(self, text: str, lines: list[str]) -> str:
        """Return a name for `text`, which is going to be written more than once."""
        return text if text.isidentifier() else self.bind(text, lines)

    def _clamp(self, position: Expr, text: str, slot: Slot) -> str:
        if self.in_range(position, slot.slot.elements):
            return text
        return f"clamp({text}, 0, {max(slot.slot.elements - 1, 0)})"

    def element(self, slot: Slot, position: str) -> str:
        """Return the text of element `position` of a buffer, widened to its compute type."""
        dtype = slot.slot.dtype
        if slot.packed:
            word = f"{slot.name}[{position} >> {slot.width.bit_length() - 1}u]"
            if slot.atomic:
                word = f"atomicLoad(&{word})"
            return extract(word, position, dtype)
        if slot.atomic:
            text = f"atomicLoad(&{slot.name}[{position}])"
            return f"bitcast<f32>({text})" if wgsl_type(dtype) == "f32" else text
        if slot.width == 4:
            text = f"{slot.name}[{position} >> 2u][{position} & 3]"
        else:
            text = f"{slot.name}[{position}]"
        return f"f32({text})" if slot.native_f16 else text

    def _operation(self, node: Expr, args: list[str], home: Scope) -> str:
        op = node.op
        if op == "where":
            return f"select({args[2]}, {args[1]}, {args[0]})"
        if op == "cast":
            if (
                wgsl_type(node.dtype) == "i32"
                and node.dtype.itemsize >= 4
                and _fits_int(node.args[0])
            ):
                return f"i32({args[0]})"
            return convert(args[0], node.args[0].dtype, node.dtype)
        if op == "bitcast":
            if node.args[0].op == "const" and wgsl_type(node.dtype) == "f32":
                bits = int(cast(int, node.args[0].value)) & 0xFFFFFFFF
                return float_literal(struct.unpack("<f", struct.pack("<I", bits))[0])
            return f"bitcast<{wgsl_type(node.dtype)}>({args[0]})"
        source = node.args[0].dtype
        kind = wgsl_type(source)
        if op == "not":
            inner = node.args[0]
            if inner.op in ("lt", "le") and inner.args[0].dtype.kind == "float":
                return f"wt_not_{inner.op}({args[0]}, {args[1]})"
            return f"(!{args[0]})" if kind == "bool" else f"({args[0]} == {literal(0, source)})"
        if all(a.op == "const" for a in node.args):
            # A front end refuses a constant expression that overflows; a variable is never one.
            name = self.fresh()
            home.lines.append(f"var {name} = {args[0]};")
            args = [name, *args[1:]]
        if kind == "f32" and op in EXPANSIONS:
            return f"wt_{op}({', '.join(args)})"
        if kind == "i32" and op in ("floordiv", "mod", "truncdiv", "truncmod"):
            fast = self._fast_division(node, args)
            if fast is not None:
                return fast
        if op in ("isnan", "isinf"):
            return _FLOAT_UNARY[op].format(*args) if kind == "f32" else "false"
        if op in ("max", "min") and kind == "f32":
            # The side that is a number for sure needs no test.
            for i, a in enumerate(node.args):
                if a.op == "const" and a.value == a.value:
                    return f"wt_{op}_number({args[1 - i]}, {args[i]})"
        if op in ("shl", "shr") and node.args[1].op == "const":
            count = cast(int, node.args[1].value)
            if 0 <= count < 32:
                sign = "<<" if op == "shl" else ">>"
                return _wrap(node.dtype, f"({args[0]} {sign} {count}u)")
        text = _TABLES[kind].get(op)
        if text is None:
            raise DTypeError(
                f"{op}: no WGSL form for {source}. Convert the operand to float32 first"
            )
        text = text.format(*args)
        return _wrap(node.dtype, text) if op in _WRAPPING else text

    def _fast_division(self, node: Expr, args: list[str]) -> str | None:
        divisor = node.args[1]
        if divisor.op != "const" or cast(int, divisor.value) <= 0:
            return None
        known = bounds(node.args[0], self.bounds_memo)
        if known is None or known[0] < 0:
            return None
        sign = "/" if node.op in ("floordiv", "truncdiv") else "%"
        return f"({args[0]} {sign} {divisor.value})"

    # -- stores and checks --

    def check(self, check: Check, scope: Scope, guard: str) -> None:
        """Write a check of an index."""
        value = self.value(check.value, scope)
        test = f"{value} < {literal(check.low, int32)} || {value} >= {literal(check.high, int32)}"
        if guard:
            test = f"{guard} && ({test})"
        scope.lines += [
            f"if ({test}) {{",
            "  loop {",
            f"    let seen = atomicCompareExchangeWeak(&status[0], 0u, {1 + check.site}u);",
            f"    if (seen.exchanged) {{ atomicStore(&status[1], bitcast<u32>(i32({value}))); }}",
            "    if (seen.exchanged || seen.old_value != 0u) { break; }",
            "  }",
            "}",
        ]

    def read_before_writing(self, stores: Iterable[Store], scopes: list[Scope]) -> None:
        """Write all values of `stores`: a later one may need what an earlier one overwrites in place."""
        for store in stores:
            value = _rounded_by_store(store.value, self.kernel.buffers[store.buffer].dtype)
            for scope in scopes:
                self.value(value, scope)
                if store.valid is not None:
                    self.value(store.valid, scope)

    def store_word(self, store: Store, lanes: list[Scope], count: str) -> None:
        """Write one block of a store that fills whole words or whole vectors."""
        slot = self.slots[store.buffer]
        base = lanes[0]
        texts = [self.value(store.value, s) for s in lanes]
        at = self.value(store.position, base)
        shift = slot.width.bit_length() - 1
        for first in range(0, len(lanes), slot.width):
            group = texts[first : first + slot.width]
            if slot.packed:
                bits = 32 // slot.width
                pieces = [
                    f"({encode(t, slot.slot.dtype)} << {i * bits}u)"
                    if i
                    else encode(t, slot.slot.dtype)
                    for i, t in enumerate(group)
                ]
                new = " | ".join(pieces)
            else:
                base_type = "f16" if slot.native_f16 else wgsl_type(slot.slot.dtype)
                if slot.native_f16:
                    group = [f"f16({t})" for t in group]
                new = f"vec4<{base_type}>({', '.join(group)})"
            step = f" + {first // slot.width}" if first else ""
            line = f"{slot.name}[({at} >> {shift}u){step}] = {new};"
            if count and first:
                line = f"if ({base.linear} + {first} < {count}) {{ {line} }}"
            base.lines.append(line)

    def store(self, store: Store, scope: Scope, guard: str) -> None:
        """Write a store at one point."""
        slot = self.slots[store.buffer]
        value = self.value(_rounded_by_store(store.value, slot.slot.dtype), scope)
        position = self.named(self.value(store.position, scope), scope.lines)
        value = self.named(value, scope.lines)
        tests = [guard] if guard else []
        if store.valid is not None:
            tests.append(self.value(store.valid, scope))
        if not self.in_range(store.position, slot.slot.elements):
            tests.append(f"{position} >= 0 && {position} < {slot.slot.elements}")
        lines = self.store_lines(slot, position, value, store.combine)
        if tests:
            lines = [f"if ({' && '.join(tests)}) {{", *("  " + x for x in lines), "}"]
        scope.lines += lines

    def store_lines(self, slot: Slot, position: str, value: str, how: str) -> list[str]:
        """Return the lines that write `value`, of the buffer's type, to element `position`."""
        dtype = slot.slot.dtype
        kind = wgsl_type(dtype)
        if not slot.atomic:
            stored = f"f16({value})" if slot.native_f16 else value
            if slot.width == 4:
                return [f"{slot.name}[{position} >> 2u][{position} & 3] = {stored};"]
            return [f"{slot.name}[{position}] = {stored};"]
        if not slot.packed:
            place = f"&{slot.name}[{position}]"
            if how == "set":
                return [
                    f"atomicStore({place}, {f'bitcast<u32>({value})' if kind == 'f32' else value});"
                ]
            if kind != "f32" and how in ("add", "max", "min"):
                return [f"atomic{how.capitalize()}({place}, {value});"]
            old = "bitcast<f32>(old)" if kind == "f32" else "old"
            new = combine(how, kind, old, value)
            return _exchange_loop(place, f"bitcast<u32>({new})" if kind == "f32" else new)
        bits = 32 // slot.width
        mask = (1 << bits) - 1
        place = f"&{slot.name}[{position} >> {slot.width.bit_length() - 1}u]"
        shift = f"((u32({position}) & {slot.width - 1}u) * {bits}u)"
        if how == "set":
            new_bits = encode(value, dtype)
        else:
            old = decode(f"((old >> {shift}) & {mask}u)", dtype)
            if dtype is bool_:
                new_bits = encode(
                    combine({"add": "any", "mul": "all"}.get(how, how), kind, old, value), dtype
                )
            else:
                new_bits = encode(combine(how, kind, old, value), dtype)
        return _exchange_loop(place, f"(old & ~({mask}u << {shift})) | ({new_bits} << {shift})")


def stores_fit(writer: KernelWriter, stores: list[Store]) -> bool:
    """Whether every store to a buffer can be written as whole vectors."""
    return all(
        s.combine == "set"
        and s.valid is None
        and (s.level == "inner") == writer.fast_inner
        and writer.is_vector(s.position, 4, 4)
        for s in stores
    )


def _rounded_by_store(value: Expr, dtype: DType) -> Expr:
    """Return `value` without the rounding to 16 bits that the store does anyway."""
    if (
        value.op == "cast"
        and value.dtype is dtype
        and dtype in (float16, bfloat16)
        and value.args[0].dtype is float32
    ):
        return value.args[0]
    return value


def _exchange_loop(place: str, new: str) -> list[str]:
    return [
        "loop {",
        f"  let old = atomicLoad({place});",
        f"  let swap = atomicCompareExchangeWeak({place}, old, {new});",
        "  if (swap.exchanged) { break; }",
        "}",
    ]


# --- launch geometry -----------------------------------------------------------------------------------------------


def fold_grid(groups: int, limits: Limits) -> tuple[int, int, int]:
    """Return a grid of at least `groups` workgroups within the device's limit for each dimension."""
    most = limits.max_workgroups_per_dim
    if groups <= most:
        return (max(groups, 1), 1, 1)
    rows = -(-groups // most)
    if rows <= most:
        return (-(-groups // rows), rows, 1)
    layers = -(-groups // (most * most))
    return (most, -(-groups // (most * layers)), layers)


def group_number(grid: tuple[int, int, int]) -> str:
    """Return the text of the workgroup's number, as u32, in a folded grid."""
    if grid[1] == 1:
        return "wid.x"
    if grid[2] == 1:
        return f"(wid.y * {grid[0]}u + wid.x)"
    return f"((wid.z * {grid[1]}u + wid.y) * {grid[0]}u + wid.x)"


@dataclass(frozen=True, slots=True)
class Geometry:
    """tx outer points and ty invocations for each of them in a workgroup; `columns` puts neighbouring outer points in
    neighbouring invocations. `split` workgroups share one outer point in a first pass."""

    tx: int
    ty: int
    columns: bool
    split: int = 1


def _power(n: int) -> int:
    """Return the largest power of two that is at most `n` (1 for less)."""
    return 1 << (max(n, 1).bit_length() - 1)


def choose_geometry(writer: KernelWriter) -> Geometry:
    """Choose how a reduction is spread over invocations."""
    k, limits = writer.kernel, writer.limits
    m, n = k.outer_count, k.inner_count
    most = _power(min(limits.max_workgroup_invocations, 1024 if limits.is_gpu else 64))
    columns = _reads_columns(writer)
    if n <= 16 or (not limits.is_gpu and (m >= 32 or n <= 128)):
        return Geometry(64 if m >= 64 else _power(m), 1, True)
    if columns:
        tx = min(32, _power(m))
        ty = 1 if m >= 1 << 18 else min(_power(n // 4), max(most // 4, 1) // tx or 1, 16)
        groups = -(-m // tx)
        return Geometry(tx, max(ty, 1), True, _split(writer, groups, n, 2048, 32 * max(ty, 1)))
    per = max(writer.lanes, 1)
    ty = min(_power(max(n // per, 1) * 2 - 1), 256, most)
    # Long rows that one workgroup can still keep in registers.
    while ty < most and n > ty * 8 * per and n <= most * 8 * per:
        ty *= 2
    # Short rows, and many: several vectors for each invocation, so that fewer have to be combined.
    while limits.is_gpu and m >= 1 << 14 and ty > 4 and ty * 4 * per > n:
        ty //= 2
    tx = max(1, min((256 if limits.is_gpu else 64) // ty, most // ty, _power(m)))
    return Geometry(tx, ty, False, _split(writer, -(-m // tx), n, 528, 4096))


def _split(writer: KernelWriter, groups: int, n: int, target: int, least: int) -> int:
    """Return how many workgroups share an outer point: more than 1 where there are few points with long rows.

    A GPU should get about `target` workgroups, and each of them at least `least` inner points.
    """
    k = writer.kernel
    if not writer.limits.is_gpu:
        target, least = 4, 16384
    if any(s.level == "inner" for s in k.stores) or groups * 2 > target:
        return 1
    if any(c.level == "inner" for c in k.checks) or any(
        node.op == "reduced" for r in k.reduces for node in ex.walk(r.value)
    ):
        return 1
    return max(1, min(target // groups, n // least))


def _reads_columns(writer: KernelWriter) -> bool:
    """Whether neighbouring outer points read neighbouring elements while the inner points are apart."""
    k = writer.kernel
    if not k.outer:
        return False
    last_outer = max((d for d, s in enumerate(k.outer) if s > 1), default=-1)
    last_inner = max((d for d, s in enumerate(k.inner) if s > 1), default=-1)
    if last_outer < 0 or last_inner < 0:
        return False
    score = 0
    for node in writer.loads():
        form = affine(node.args[0], writer.affine_memo)
        if form is None or not writer.mask(node) & writer.inner_mask:
            continue
        # The larger buffer decides.
        weight = k.buffers[cast(int, node.value)].elements
        if form[1].get(writer.rank + last_inner, 0) == 1:
            score -= weight
        elif form[1].get(last_outer, 0) == 1:
            score += weight
    return score > 0


# --- assembling a shader -------------------------------------------------------------------------------------------


def declarations(
    writer: KernelWriter, body: list[str], scratch: tuple[int, ...], has_status: bool
) -> tuple[list[str], tuple[int, ...], list[Binding], tuple[tuple[int, DType, int], ...], int]:
    """Return the binding lines for what `body` uses: (lines, slots, bindings, args, args_bytes)."""
    text = "\n".join(body)
    lines: list[str] = []
    slots: list[int] = []
    bindings: list[Binding] = []
    for number, slot in sorted(writer.slots.items()):
        if f"{slot.name}[" not in text:
            continue
        access: Binding = "read" if slot.slot.access == "read" and not slot.atomic else "read_write"
        lines.append(
            f"@group(0) @binding({len(bindings)}) var<storage, {access}> {slot.name}: array<{slot.declared}>;"
        )
        slots.append(number)
        bindings.append(access)
    for i in range(len(scratch)):
        lines.append(
            f"@group(0) @binding({len(bindings)}) var<storage, read_write> scratch{i}: array<u32>;"
        )
        bindings.append("read_write")
    args: list[tuple[int, DType, int]] = []
    used = [a for a in sorted(writer.args) if f"args.a{a}" in text]
    if used:
        members = []
        for i, number in enumerate(used):
            dtype = writer.kernel.args[number]
            kind = "u32" if dtype is bool_ else wgsl_type(dtype)
            members.append(f"a{number}: {kind}")
            stored = {"f32": float32, "i32": int32, "u32": uint32}[kind]
            args.append((4 * i, stored, number))
        lines.insert(0, f"struct Args {{ {', '.join(members)} }}")
        lines.append(f"@group(0) @binding({len(bindings)}) var<uniform> args: Args;")
        bindings.append("uniform")
    if has_status:
        lines.append(
            f"@group(0) @binding({len(bindings)}) var<storage, read_write> status: array<atomic<u32>, 2>;"
        )
        bindings.append("read_write")
    return lines, tuple(slots), bindings, tuple(args), -(-4 * len(used) // 16) * 16


def function_source(name: str) -> str:
    """Return an accurate function of the expansion table as a WGSL function `wt_NAME`."""
    found = _FUNCTIONS.get(name)
    if found is None:
        build, count = EXPANSIONS[name]
        inputs = tuple(ex.input_(i, float32) for i in range(count))
        root = cast("Callable[..., Expr]", build)(*inputs)
        limits = Limits(0, 8, 64, 65535, 16384, False, False)
        kernel = Kernel(name, (1,), (), (), (), (), (Store(0, ex.const(0, int32), root),))
        writer = KernelWriter(kernel, limits)
        scope = writer.top
        parameters = "xyz"[:count]
        for node, letter in zip(inputs, parameters, strict=True):
            scope.env[node] = letter
        signature = ", ".join(f"{p}: f32" for p in parameters)
        _write_returns(writer, root, scope)
        lines = "\n".join("  " + x for x in scope.lines)
        found = f"fn wt_{name}({signature}) -> f32 {{\n{lines}\n}}"
        _FUNCTIONS[name] = found
    return found


_FUNCTIONS: dict[str, str] = {}


def _write_returns(writer: KernelWriter, root: Expr, scope: Scope) -> None:
    """Write `return root`; a choice at the root becomes a branch, so that only the chosen side is computed."""
    while root.op == "where":
        condition, chosen, root = root.args
        test = writer.value(condition, scope)
        branch = Scope(env=dict(scope.env))
        _write_returns(writer, chosen, branch)
        scope.lines += [f"if ({test}) {{", *("  " + x for x in branch.lines), "}"]
    scope.lines.append(f"return {writer.value(root, scope)};")


def assemble(declared: list[str], shared: list[str], body: list[str], size: int, f16: bool) -> str:
    """Return the whole shader text."""
    functions = {f"wt_{n}": function_source(n) for n in EXPANSIONS}
    helpers = prelude.needed(["\n".join([*declared, *shared, *body])], functions)
    head = ["enable f16;"] if f16 else []
    return "\n".join(
        [
            *head,
            *declared,
            *shared,
            helpers,
            f"@compute @workgroup_size({size})",
            "fn main(@builtin(workgroup_id) wid: vec3<u32>, @builtin(local_invocation_index) lid: u32) {",
            *("  " + line for line in body),
            "}",
            "",
        ]
    )


def render_kernel(kernel: Kernel, limits: Limits, engine: Engine) -> list[WgslPass]:
    """Return the dispatches of a generic kernel."""
    del engine  # the generic kernels use nothing that engines spell differently
    if not kernel.reduces:
        return [_elementwise(kernel, limits)]
    return _reduction(kernel, limits)


def _flat(kernel: Kernel) -> Kernel:
    """Return a kernel without reductions with its inner points made outer ones."""
    if not kernel.inner:
        return kernel
    stores = []
    for s in kernel.stores:
        if s.level == "outer":
            first = [
                ex.eq(ex.index(len(kernel.outer) + i, n), 0)
                for i, n in enumerate(kernel.inner)
                if n > 1
            ]
            valid = s.valid
            for test in first:
                valid = test if valid is None else valid & test
            s = Store(s.buffer, s.position, s.value, "outer", s.combine, valid)
        stores.append(Store(s.buffer, s.position, s.value, "outer", s.combine, s.valid))
    checks = tuple(Check(c.value, c.high, c.site, "outer", c.low) for c in kernel.checks)
    return Kernel(
        kernel.name,
        (*kernel.outer, *kernel.inner),
        (),
        kernel.buffers,
        kernel.args,
        (),
        tuple(stores),
        checks,
    )


_SQUARE = 32


def _transposed_dim(writer: KernelWriter) -> int | None:
    """Return the outer dimension along which a kernel reads neighbours while it writes along the last one, else None.

    Such a kernel should walk squares: the lines of memory that it reads then stay in the cache until they are used up.
    """
    k, lanes = writer.kernel, writer.lanes
    rank = len(k.outer)
    if not writer.limits.is_gpu or rank < 2 or writer.limits.max_workgroup_invocations < 256:
        return None
    last = k.outer[-1]
    if k.outer_count < _VECTOR_POINTS or last < _SQUARE or last % lanes:
        return None
    best: tuple[int, int] | None = None
    for node in writer.loads():
        form = affine(node.args[0], writer.affine_memo)
        if form is None or form[1].get(rank - 1, 0) in (0, 1):
            continue
        for d in range(rank - 1):
            size = k.buffers[cast(int, node.value)].elements
            if form[1].get(d, 0) == 1 and k.outer[d] >= 4 and (best is None or size > best[0]):
                best = (size, d)
    return None if best is None else best[1]


def _write_square(writer: KernelWriter, across: int, body: list[str]) -> tuple[int, int, int]:
    """Number the points square by square: `across` and the last dimension side by side; returns the grid."""
    outer, lanes = writer.kernel.outer, writer.lanes
    wide = _SQUARE // lanes
    tall = 256 // wide
    last, other = outer[-1], outer[across]
    step = numel(outer[across + 1 :])
    tiles_x, tiles_y = -(-last // _SQUARE), -(-other // tall)
    middle = numel(outer[across + 1 : -1])
    grid = fold_grid(tiles_x * tiles_y * middle * numel(outer[:across]), writer.limits)
    body += [
        f"let group = i32({group_number(grid)});",
        f"let along = (group % {tiles_x}) * {_SQUARE} + i32(lid % {wide}u) * {lanes};",
        f"let side = ((group / {tiles_x}) % {tiles_y}) * {tall} + i32(lid / {wide}u);",
        f"let rest = group / {tiles_x * tiles_y};",
        f"if (along >= {last} || side >= {other}) {{ return; }}",
        f"let i = (rest / {middle}) * {step * other} + side * {step} + (rest % {middle}) * {last} + along;",
    ]
    return grid


def _elementwise(kernel: Kernel, limits: Limits) -> WgslPass:
    kernel = _flat(kernel)
    writer = KernelWriter(kernel, limits)
    count = kernel.outer_count
    writer.choose_lanes(count)
    lanes = writer.lanes
    top = writer.top
    body = top.lines
    across = _transposed_dim(writer)
    if across is not None:
        size, grid = 256, _write_square(writer, across, body)
    else:
        invocations = -(-count // lanes)
        size = min(256 if invocations >= 1 << 14 else 64, limits.max_workgroup_invocations)
        grid = fold_grid(-(-invocations // size), limits)
        number = f"i32({group_number(grid)} * {size}u + lid)"
        body.append(f"let i = {number}{f' * {lanes}' if lanes > 1 else ''};")
    body.append(f"if (i >= {count}) {{ return; }}")
    top.linear = "i"
    scopes: list[Scope] = []
    if lanes == 1:
        scopes = [top]
    else:
        for lane in range(lanes):
            scope = Scope(parent=top, lines=body, lane=lane)
            scope.base = scopes[0] if scopes else scope
            if lane == 0:
                scope.linear = "i"
            elif count % lanes == 0:
                scope.linear = f"(i + {lane})"
            else:
                scope.linear = writer.bind(f"min(i + {lane}, {count - 1})", body)
            scopes.append(scope)
    partial = count % lanes != 0
    for lane, scope in enumerate(scopes):
        guard = f"i + {lane} < {count}" if partial and lane else ""
        for check in kernel.checks:
            writer.check(check, scope, guard)
    writer.read_before_writing(kernel.stores, scopes)
    for store in kernel.stores:
        slot = writer.slots[store.buffer]
        if slot.width > 1 and not slot.atomic:
            whole = Store(
                store.buffer, store.position, _rounded_by_store(store.value, slot.slot.dtype)
            )
            writer.store_word(whole, scopes, str(count) if partial else "")
        else:
            for lane, scope in enumerate(scopes):
                writer.store(store, scope, f"i + {lane} < {count}" if partial and lane else "")
    return finish(writer, body, [], size, grid, (), bool(kernel.checks))


def finish(
    writer: KernelWriter,
    body: list[str],
    shared: list[str],
    size: int,
    grid: tuple[int, int, int],
    scratch: tuple[int, ...],
    has_status: bool,
) -> WgslPass:
    """Put declarations, helpers and body together."""
    lines, slots, bindings, args, args_bytes = declarations(writer, body, scratch, has_status)
    f16 = any(writer.slots[n].native_f16 for n in slots)
    source = assemble(lines, shared, body, size, f16)
    return WgslPass(
        source, grid, (size, 1, 1), slots, scratch, args, args_bytes, has_status, tuple(bindings)
    )


# --- reductions ----------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Accumulator:
    """The running state of one stage in one invocation: a value, and a position for argmax and argmin."""

    stage: int
    reduce: Reduce
    kind: str
    value: str = ""
    position: str = ""

    @property
    def is_arg(self) -> bool:
        return self.reduce.op.startswith("arg")

    def better(self, value: str, position: str) -> str:
        """Return the test whether another (value, position) wins."""
        mine, at = self.value, self.position
        op = self.reduce.op
        if self.kind == "f32":
            return f"wt_{op}_f32({mine}, {at}, {value}, {position})"
        sign = ">" if op == "argmax" else "<"
        return f"({value} {sign} {mine} || ({value} == {mine} && {position} < {at}))"


def _stage_kind(reduce: Reduce) -> str:
    kind = wgsl_type(reduce.value.dtype)
    if reduce.op in ("any", "all"):
        return "bool"
    # Booleans are compared as numbers: false < true.
    return "u32" if kind == "bool" and reduce.op.startswith("arg") else kind


def _stage_value(writer: KernelWriter, reduce: Reduce, scope: Scope) -> str:
    text = writer.value(reduce.value, scope)
    if reduce.op in ("any", "all"):
        return convert(text, reduce.value.dtype, bool_)
    if _stage_kind(reduce) != wgsl_type(reduce.value.dtype):
        return f"select(0u, 1u, {text})"
    return text


def _batches(kernel: Kernel) -> list[list[int]]:
    """Group consecutive stages that do not need one another's results: they share one pass over the inner points."""
    out: list[list[int]] = []
    for i, reduce in enumerate(kernel.reduces):
        needs = {cast(int, n.value) for n in ex.walk(reduce.value) if n.op == "reduced"}
        if out and not needs & set(out[-1]):
            out[-1].append(i)
        else:
            out.append([i])
    return out


class _ReductionWriter:
    """Writes the passes of a kernel with reductions."""

    def __init__(self, writer: KernelWriter, geometry: Geometry) -> None:
        self.w = writer
        self.k = writer.kernel
        self.g = geometry
        self.body = writer.top.lines
        self.shared: dict[str, str] = {}
        self.lanes: list[list[Scope]] = []
        self.size = geometry.tx * geometry.ty
        n = self.k.inner_count
        self.begin, self.end = "", str(n)
        self.per_block = geometry.ty * writer.lanes
        self.blocks = -(-n // self.per_block)
        nodes = sum(1 for _ in ex.walk(*self.k.expressions()))
        points = self.blocks * writer.lanes
        self.static = (
            geometry.split == 1
            and points <= _STATIC_POINTS
            and (points == 1 or points * nodes <= _STATIC_NODES)
            and not (not writer.limits.is_gpu and geometry.ty == 1 and points > 4)
        )

    def prologue(self, groups_per_point: int) -> tuple[int, int, int]:
        """Write the numbers that every pass starts with; returns the grid."""
        g, m = self.g, self.k.outer_count
        groups = -(-m // g.tx) * groups_per_point
        grid = fold_grid(groups, self.w.limits)
        add = self.body.append
        add(f"let group = i32({group_number(grid)});")
        point_group = "group"
        if groups_per_point > 1:
            add(f"let part = group % {groups_per_point};")
            point_group = f"(group / {groups_per_point})"
        if g.ty == 1:
            tx, ty = "i32(lid)", "0"
        elif g.tx == 1:
            tx, ty = "0", "i32(lid)"
        elif g.columns:
            tx, ty = f"i32(lid % {g.tx}u)", f"i32(lid / {g.tx}u)"
        else:
            tx, ty = f"i32(lid / {g.ty}u)", f"i32(lid % {g.ty}u)"
        add(f"let tx = {tx};")
        add(f"let ty = {ty};")
        add(f"let point = {point_group} * {g.tx} + tx;")
        exact = m % g.tx == 0 and grid[0] * grid[1] * grid[2] == groups
        if exact:
            add("let o = point;")
            self.active = ""
        else:
            # Barriers need every invocation, so a surplus one computes the last point again and writes nothing.
            add(f"let active_point = point < {m};")
            add(f"let o = min(point, {m - 1});")
            self.active = "active_point"
        self.w.top.linear = "o"
        return grid

    def make_static_lanes(self) -> None:
        """Name the inner points that this invocation keeps for all stages."""
        n, w = self.k.inner_count, self.w
        for block in range(self.blocks):
            whole = (block + 1) * self.per_block <= n
            start = f"ty * {w.lanes}" if w.lanes > 1 else "ty"
            if self.g.ty == 1:
                start = "0"
            text = f"{start} + {block * self.per_block}" if block else start
            name = f"k{block}"
            if whole:
                self.body.append(f"let {name} = {text};")
            else:
                self.body.append(f"let in{block} = {text} < {n};")
                self.body.append(f"let {name} = min({text}, {n - w.lanes});")
            self.lanes.append(self.lane_scopes(name, self.body))

    def lane_scopes(self, base: str, lines: list[str]) -> list[Scope]:
        scopes: list[Scope] = []
        for lane in range(self.w.lanes):
            scope = Scope(parent=self.w.top, lines=lines, lane=lane)
            scope.linear = base if lane == 0 else f"({base} + {lane})"
            scope.base = scopes[0] if scopes else scope
            scopes.append(scope)
        return scopes

    def is_whole(self, block: int) -> bool:
        return (block + 1) * self.per_block <= self.k.inner_count

    # -- one stage batch --

    def accumulators(self, stages: list[int]) -> list[_Accumulator]:
        out = []
        for stage in stages:
            reduce = self.k.reduces[stage]
            acc = _Accumulator(stage, reduce, _stage_kind(reduce), f"acc{stage}", f"at{stage}")
            self.body.append(f"var {acc.value}: {acc.kind} = {identity(reduce.op, acc.kind)};")
            if acc.is_arg:
                self.body.append(f"var {acc.position}: i32 = 2147483647;")
            out.append(acc)
        return out

    def merge(self, acc: _Accumulator, value: str, position: str, lines: list[str]) -> None:
        """Combine one more value into an accumulator."""
        if acc.is_arg:
            value = self.w.bind(value, lines)
            lines.append(
                f"if ({acc.better(value, position)}) {{ {acc.value} = {value}; {acc.position} = {position}; }}"
            )
        else:
            lines.append(f"{acc.value} = {combine(acc.reduce.op, acc.kind, acc.value, value)};")

    def block_values(
        self, acc: _Accumulator, scopes: list[Scope], inside: str, lines: list[str]
    ) -> None:
        """Combine the lanes of one block, as a tree, into an accumulator."""
        if acc.is_arg:
            target: list[str] = []
            for scope in scopes:
                value = _stage_value(self.w, acc.reduce, scope)
                self.merge(acc, value, scope.linear, target if inside else lines)
            if inside:
                # The names in `target` are used nowhere else.
                lines += [f"if ({inside}) {{", *("  " + t for t in target), "}"]
            return
        texts = [_stage_value(self.w, acc.reduce, s) for s in scopes]
        text = _tree(acc.reduce.op, acc.kind, texts)
        if inside:
            text = f"select({identity(acc.reduce.op, acc.kind)}, {text}, {inside})"
        self.merge(acc, text, "", lines)

    def run_batch(self, stages: list[int]) -> list[_Accumulator]:
        if self.static:
            return self._static_batch(stages)
        accs = self.accumulators(stages)
        self.inner_loop(lambda scopes, lines: self._loop_body(accs, scopes, lines), accs)
        return accs

    def _static_batch(self, stages: list[int]) -> list[_Accumulator]:
        # All terms first, then one balanced tree: no running sum at all.
        out = []
        for stage in stages:
            reduce = self.k.reduces[stage]
            acc = _Accumulator(stage, reduce, _stage_kind(reduce), f"acc{stage}", f"at{stage}")
            if acc.is_arg:
                self.body.append(f"var {acc.value}: {acc.kind} = {identity(reduce.op, acc.kind)};")
                self.body.append(f"var {acc.position}: i32 = 2147483647;")
                for block, scopes in enumerate(self.lanes):
                    self.block_values(
                        acc, scopes, "" if self.is_whole(block) else f"in{block}", self.body
                    )
            else:
                texts = []
                for block, scopes in enumerate(self.lanes):
                    parts = [_stage_value(self.w, reduce, s) for s in scopes]
                    text = _tree(reduce.op, acc.kind, parts)
                    if not self.is_whole(block):
                        text = f"select({identity(reduce.op, acc.kind)}, {text}, in{block})"
                    texts.append(text)
                self.body.append(
                    f"var {acc.value}: {acc.kind} = {_tree(reduce.op, acc.kind, texts)};"
                )
            out.append(acc)
        return out

    def _loop_body(self, accs: list[_Accumulator], scopes: list[Scope], lines: list[str]) -> None:
        for acc in accs:
            self.block_values(acc, scopes, "", lines)

    def inner_loop(
        self, write: Callable[[list[Scope], list[str]], None], accs: list[_Accumulator]
    ) -> None:
        """Write a loop over this invocation's inner points."""
        w = self.w
        start = f"ty * {w.lanes}" if self.g.ty > 1 else "0"
        if self.begin:
            start = f"{self.begin} + {start}"
        lines: list[str] = []
        scopes = self.lane_scopes("k", lines)
        sums = [a for a in accs if a.reduce.op == "sum" and a.kind == "f32"]
        blocked = bool(sums) and self.blocks // self.g.split > 2 * _BLOCK
        renamed = {a.stage: a.value for a in sums}
        if blocked:
            for a in sums:
                a.value = f"part{a.stage}"
        write(scopes, lines)
        for a in sums:
            a.value = renamed[a.stage]
        step = self.per_block
        if not blocked:
            self.body.append(f"for (var k: i32 = {start}; k < {self.end}; k = k + {step}) {{")
            self.body += ["  " + x for x in lines]
            self.body.append("}")
            return
        # A long running sum loses digits: each block of terms gets its own partial sum.
        self.body.append(
            f"for (var kb: i32 = {start}; kb < {self.end}; kb = kb + {step * _BLOCK}) {{"
        )
        self.body += [f"  var part{a.stage}: f32 = 0f;" for a in sums]
        self.body.append(f"  let stop = min(kb + {step * _BLOCK}, {self.end});")
        self.body.append(f"  for (var k: i32 = kb; k < stop; k = k + {step}) {{")
        self.body += ["    " + x for x in lines]
        self.body.append("  }")
        self.body += [f"  {a.value} = {a.value} + part{a.stage};" for a in sums]
        self.body.append("}")

    def gather(self, accs: list[_Accumulator]) -> None:
        """Combine the accumulators of the invocations that share a point; all of them get the result."""
        g = self.g
        if g.ty == 1:
            return
        add = self.body.append
        for acc in accs:
            kind = "u32" if acc.kind == "bool" else acc.kind
            self.shared[f"s{acc.stage}"] = (
                f"var<workgroup> s{acc.stage}: array<{kind}, {self.size}>;"
            )
            add(f"s{acc.stage}[lid] = {_as_word(acc)};")
            if acc.is_arg:
                self.shared[f"p{acc.stage}"] = (
                    f"var<workgroup> p{acc.stage}: array<i32, {self.size}>;"
                )
                add(f"p{acc.stage}[lid] = {acc.position};")
        add("workgroupBarrier();")
        half = g.ty // 2
        step = g.tx if g.columns else 1
        while half >= 1:
            add(f"if (ty < {half}) {{")
            for acc in accs:
                other = f"lid + {half * step}u"
                if acc.is_arg:
                    theirs = self.w.fresh()
                    add(f"  let {theirs} = s{acc.stage}[{other}];")
                    at = self.w.fresh()
                    add(f"  let {at} = p{acc.stage}[{other}];")
                    add(
                        f"  if ({acc.better(theirs, at)}) {{ {acc.value} = {theirs}; {acc.position} = {at}; "
                        f"s{acc.stage}[lid] = {theirs}; p{acc.stage}[lid] = {at}; }}"
                    )
                else:
                    theirs = f"s{acc.stage}[{other}]" + (" != 0u" if acc.kind == "bool" else "")
                    if acc.kind == "bool":
                        theirs = f"({theirs})"
                    add(f"  {acc.value} = {combine(acc.reduce.op, acc.kind, acc.value, theirs)};")
                    add(f"  s{acc.stage}[lid] = {_as_word(acc)};")
            add("}")
            add("workgroupBarrier();")
            half //= 2
        first = "u32(tx)" if g.columns else (f"u32(tx) * {g.ty}u" if g.tx > 1 else "0u")
        for acc in accs:
            name = f"all{acc.stage}"
            text = f"s{acc.stage}[{first}]" if not acc.is_arg else f"p{acc.stage}[{first}]"
            add(f"let {name} = {text}{' != 0u' if acc.kind == 'bool' else ''};")
            if acc.is_arg:
                acc.position = name
            else:
                acc.value = name
        # Nobody may overwrite the shared words before everybody has read them.
        add("workgroupBarrier();")

    def publish(self, accs: list[_Accumulator]) -> None:
        """Make the results known to the expressions of later stages and stores."""
        for acc in accs:
            reduce = acc.reduce
            node = ex.reduced(acc.stage, reduce.dtype)
            if acc.is_arg:
                text = convert(acc.position, int32, reduce.dtype)
            elif reduce.op in ("any", "all"):
                text = convert(acc.value, bool_, reduce.dtype)
            else:
                text = convert(acc.value, reduce.value.dtype, reduce.dtype)
                if reduce.op in ("sum", "prod"):
                    text = _wrap(reduce.dtype, text)
            self.w.top.env[node] = self.w.bind(text, self.body)

    def epilogue(self) -> None:
        """Write the stores and checks that follow the last stage."""
        writer, k = self.w, self.k
        inner = [s for s in k.stores if s.level == "inner"]
        checks = [c for c in k.checks if c.level == "inner"]
        writer.read_before_writing([s for s in k.stores if s.level == "outer"], [writer.top])
        if inner or checks:
            if self.static:
                for block, scopes in enumerate(self.lanes):
                    tests = [
                        t for t in (self.active, "" if self.is_whole(block) else f"in{block}") if t
                    ]
                    self.inner_stores(inner, checks, scopes, " && ".join(tests))
            else:
                self.inner_loop(
                    lambda scopes, _: self.inner_stores(inner, checks, scopes, self.active), []
                )
        guard = " && ".join(t for t in (self.active, "ty == 0" if self.g.ty > 1 else "") if t)
        for check in k.checks:
            if check.level == "outer":
                writer.check(check, writer.top, guard)
        for store in k.stores:
            if store.level == "outer":
                writer.store(store, writer.top, guard)

    def inner_stores(
        self, stores: list[Store], checks: list[Check], scopes: list[Scope], guard: str
    ) -> None:
        writer = self.w
        for check in checks:
            for scope in scopes:
                writer.check(check, scope, guard)
        writer.read_before_writing(stores, scopes)
        for store in stores:
            slot = writer.slots[store.buffer]
            if slot.width > 1 and not slot.atomic:
                value = _rounded_by_store(store.value, slot.slot.dtype)
                lines = scopes[0].lines
                writer.value(store.position, scopes[0])
                before = len(lines)
                writer.store_word(Store(store.buffer, store.position, value), scopes, "")
                if guard:
                    block = lines[before:]
                    del lines[before:]
                    lines += [f"if ({guard}) {{", *("  " + x for x in block), "}"]
            else:
                for scope in scopes:
                    writer.store(store, scope, guard)


def _as_word(acc: _Accumulator) -> str:
    return f"select(0u, 1u, {acc.value})" if acc.kind == "bool" else acc.value


def _tree(op: str, kind: str, texts: list[str]) -> str:
    while len(texts) > 1:
        pairs = [
            combine(op, kind, texts[i], texts[i + 1]) if i + 1 < len(texts) else texts[i]
            for i in range(0, len(texts), 2)
        ]
        texts = pairs
    return texts[0]


def _reduction(kernel: Kernel, limits: Limits) -> list[WgslPass]:
    writer = KernelWriter(kernel, limits)
    writer.choose_lanes(kernel.outer_count * kernel.inner_count)
    if _reads_columns(writer) and not any(s.level == "inner" for s in kernel.stores):
        writer.lanes = 1
        for i, slot in enumerate(kernel.buffers):
            writer.slots[i] = writer._declare(i, slot)
    geometry = choose_geometry(writer)
    if geometry.split > 1:
        return _split_reduction(kernel, limits, writer, geometry)
    r = _ReductionWriter(writer, geometry)
    grid = r.prologue(1)
    if r.static:
        r.make_static_lanes()
    for stages in _batches(kernel):
        accs = r.run_batch(stages)
        r.gather(accs)
        r.publish(accs)
    r.epilogue()
    shared = list(r.shared.values())
    return [finish(writer, r.body, shared, r.size, grid, (), bool(kernel.checks))]


def _split_reduction(
    kernel: Kernel, limits: Limits, writer: KernelWriter, geometry: Geometry
) -> list[WgslPass]:
    """Few points with long rows: the workgroups of a first pass leave partial results, a second pass combines them."""
    m, n, parts = kernel.outer_count, kernel.inner_count, geometry.split
    stages = list(range(len(kernel.reduces)))
    # Words of scratch: one per stage, point and part, and one more for a position.
    offsets: list[tuple[int, int]] = []
    words = 0
    for reduce in kernel.reduces:
        at = words + m * parts
        offsets.append((words, at))
        words = at + (m * parts if reduce.op.startswith("arg") else 0)
    scratch = (4 * words,)
    r = _ReductionWriter(writer, geometry)
    grid = r.prologue(parts)
    chunk = -(-(-(-n // parts)) // r.per_block) * r.per_block
    r.body.append(f"let first = part * {chunk};")
    r.body.append(f"let last = min(first + {chunk}, {n});")
    r.begin, r.end = "first", "last"
    accs = r.accumulators(stages)
    r.inner_loop(lambda scopes, lines: r._loop_body(accs, scopes, lines), accs)
    r.gather(accs)
    lines = []
    for acc in accs:
        base, at = offsets[acc.stage]
        if acc.is_arg:
            source = (
                f"s{acc.stage}[{'u32(tx)' if geometry.columns else f'u32(tx) * {geometry.ty}u'}]"
            )
            value = source if geometry.ty > 1 else acc.value
            name = writer.bind(value, r.body)
            lines.append(f"scratch0[{base} + o * {parts} + part] = {to_bits(name, acc.kind)};")
            lines.append(f"scratch0[{at} + o * {parts} + part] = bitcast<u32>({acc.position});")
        else:
            lines.append(f"scratch0[{base} + o * {parts} + part] = {to_bits(acc.value, acc.kind)};")
    guard = " && ".join(t for t in (r.active, "ty == 0" if geometry.ty > 1 else "") if t)
    r.body += [f"if ({guard}) {{", *("  " + x for x in lines), "}"] if guard else lines
    first_pass = finish(writer, r.body, list(r.shared.values()), r.size, grid, scratch, False)

    final = KernelWriter(kernel, limits)
    final.choose_lanes(0)
    most = min(limits.max_workgroup_invocations, 256 if limits.is_gpu else 64)
    ty = min(most, _power(parts)) if parts > 4 else 1
    tx = max(1, min(64 // ty, _power(m)))
    f = _ReductionWriter(final, Geometry(tx, ty, False))
    grid = f.prologue(1)
    accs = f.accumulators(stages)
    f.body.append(f"for (var k: i32 = ty; k < {parts}; k = k + {ty}) {{")
    inside: list[str] = []
    for acc in accs:
        base, at = offsets[acc.stage]
        value = from_bits(f"scratch0[{base} + o * {parts} + k]", acc.kind)
        position = ""
        if acc.is_arg:
            position = final.bind(f"bitcast<i32>(scratch0[{at} + o * {parts} + k])", inside)
        f.merge(acc, value, position, inside)
    f.body += ["  " + x for x in inside]
    f.body.append("}")
    f.gather(accs)
    f.publish(accs)
    f.epilogue()
    second_pass = finish(
        final, f.body, list(f.shared.values()), f.size, grid, scratch, bool(kernel.checks)
    )
    return [first_pass, second_pass]


def to_bits(text: str, kind: str) -> str:
    return {"bool": f"select(0u, 1u, {text})", "u32": text}.get(kind, f"bitcast<u32>({text})")


def from_bits(text: str, kind: str) -> str:
    return {"bool": f"({text} != 0u)", "u32": text}.get(kind, f"bitcast<{kind}>({text})")
