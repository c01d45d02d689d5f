"""WGSL as a table: types, constants, operators and conversions. Floor 2; imports floor 0.

Everything with a trap in it is a helper of `webtorch.lower.prelude`; here are only the names of the
helpers.
"""

from __future__ import annotations

import math
import struct
from typing import cast

from webtorch.errors import DTypeError
from webtorch.ir.dtype import (
    DType,
    bfloat16,
    bool_,
    float16,
    float32,
    float64,
    int8,
    int16,
    int32,
    uint8,
    uint16,
    uint32,
    uint64,
    wide_int64,
)
from webtorch.ir.expr import FUNCTIONS, ScalarFunction
from webtorch.ir.reducer import REDUCERS
from webtorch.lower import wide, wide_integer

# Elements per 32-bit word of the types that WGSL cannot address on their own.
PER_WORD: dict[DType, int] = {
    bool_: 4,
    int8: 4,
    uint8: 4,
    int16: 2,
    uint16: 2,
    float16: 2,
    bfloat16: 2,
}
# Types of which WGSL knows nothing: pairs of words with functions of their own.
TWO_WORDS: dict[DType, str] = {float64: wide.KIND, wide_int64: wide_integer.KIND}
# What is left of a value that may have left its type.
_NARROW_UNSIGNED: dict[DType, str] = {uint8: "0xffu", uint16: "0xffffu"}


def wgsl_type(dtype: DType) -> str:
    """Return the WGSL type in which values of `dtype` are computed."""
    if dtype is uint64:
        raise DTypeError(
            "uint64 does not exist on WebGPU: WGSL has no 64-bit types. Use int32, or device='cpu'"
        )
    if dtype in TWO_WORDS:
        return TWO_WORDS[dtype]
    match dtype.kind:
        case "bool":
            return "bool"
        case "float":
            return "f32"
        case "int":
            return "i32"
        case "uint":
            return "u32"
        case "complex":
            raise DTypeError(f"{dtype} is no type of kernels, which see pairs of real numbers")


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
    # Subnormal numbers, and the largest ones, whose shortest decimal form front ends take for an
    # overflow: by their bits.
    if abs(value) < 2.0**-126 or abs(value) >= 2.0**127:
        return f"bitcast<f32>(0x{struct.unpack('<I', struct.pack('<f', value))[0]:08x}u)"
    text = f"{value:.9g}f"
    return f"({text})" if value < 0 else text


def literal(value: object, dtype: DType) -> str:
    """Return a constant of `dtype` as WGSL text. Raises OverflowError for an integer that needs
    more than 32 bits."""
    match wgsl_type(dtype):
        case "bool":
            return "true" if value else "false"
        case "f32":
            return float_literal(float(cast(float, value)))
        case wide.KIND:
            return wide.literal(float(cast(float, value)))
        case wide_integer.KIND:
            return wide_integer.literal(int(cast(int, value)))
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


_OF_KIND = {
    "f32": float32, "i32": int32, "u32": uint32, "bool": bool_, **{kind: d for d, kind in TWO_WORDS.items()}
}  # fmt: skip


def identity(op: str, kind: str) -> str:
    """Return the neutral value of reduction `op` in WGSL type `kind`."""
    dtype = _OF_KIND[kind]
    return literal(REDUCERS[op].identity(dtype), dtype)


def combine(op: str, kind: str, a: str, b: str) -> str:
    """Return the text that combines `a` and `b` under a reduction or the scalar function `op`."""
    reducer = REDUCERS.get(op)
    function = FUNCTIONS[op] if reducer is None else reducer.function(_OF_KIND[kind])
    return form(function, kind).format(a, b)


def form(function: ScalarFunction, kind: str) -> str:
    """Return the text of a function for a WGSL type, "" where it has none."""
    if kind not in TWO_WORDS.values():
        return function.wgsl.get(kind, "")
    name = f"{kind}_{function.name}"
    places = ", ".join(f"{{{i}}}" for i in range(function.arity))
    return f"{name}({places})" if name in wide.HELPERS or name in wide_integer.HELPERS else ""


def wrap(dtype: DType, text: str) -> str:
    """Bring a value that may have left an 8- or 16-bit type back into it."""
    if dtype is int8:
        return f"(({text} << 24u) >> 24u)"
    if dtype is int16:
        return f"(({text} << 16u) >> 16u)"
    if dtype in _NARROW_UNSIGNED:
        return f"({text} & {_NARROW_UNSIGNED[dtype]})"
    return text


def convert(text: str, source: DType, target: DType) -> str:
    """Return the text that converts a value of `source` to `target` as PyTorch does."""
    if source is target:
        return text
    a, b = wgsl_type(source), wgsl_type(target)
    if wide_integer.KIND in (a, b):
        return _convert_wide(text, source, target)
    if b == wide.KIND:
        x = text if a in ("f32", "i32") else convert(text, source, uint32)
        return f"wt_f64_from_{a if a in ('f32', 'i32') else 'u32'}({x})"
    if a == wide.KIND:
        if b == "bool":
            return f"!wt_f64_iszero({text})"
        return convert(f"wt_f64_to_{b}({text})", _OF_KIND[b], target)
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
            return wrap(target, f"wt_f32_to_i32({text})")
        if target in _NARROW_UNSIGNED:
            return wrap(target, f"bitcast<u32>(wt_f32_to_i32({text}))")
        return f"wt_f32_to_{b}({text})"
    return wrap(target, text if a == b else f"bitcast<{b}>({text})")


def _convert_wide(text: str, source: DType, target: DType) -> str:
    """Return the text that makes a number of two words of a value of `source`, or a value of `target` of one."""
    if target is wide_int64:
        match wgsl_type(source):
            case "bool":
                return f"wt_i64(select(0u, 1u, {text}), 0u)"
            case "u32":
                return f"wt_i64({text}, 0u)"
            case kind:
                return f"wt_i64_from_{kind.removeprefix('wt_')}({text})"
    match wgsl_type(target):
        case "bool":
            return f"!wt_i64_not({text})"
        case "f32":
            return convert(f"wt_i64_to_f32({text})", float32, target)
        case wide.KIND:
            return f"wt_f64_from_i64({text})"
        case _:
            return convert(f"({text}).x", uint32, target)


def encode(value: str, dtype: DType) -> str:
    """Return the stored bits (u32, in the low end) of a value of a packed type."""
    if dtype is bool_:
        return f"select(0u, 1u, {value})"
    if dtype is float16:
        return f"wt_to_f16({value})"
    if dtype is bfloat16:
        return f"wt_to_bf16({value})"
    if dtype in _NARROW_UNSIGNED:
        return wrap(dtype, value)
    return f"(bitcast<u32>({value}) & {'0xffff' if dtype is int16 else '0xff'}u)"


def decode(bits: str, dtype: DType) -> str:
    """Return the value of stored bits that are alone in their word."""
    if dtype is bool_:
        return f"({bits} != 0u)"
    if dtype is float16:
        return f"wt_from_f16({bits})"
    if dtype is bfloat16:
        return f"bitcast<f32>({bits} << 16u)"
    return bits if dtype in _NARROW_UNSIGNED else wrap(dtype, f"bitcast<i32>({bits})")


def extract(word: str, position: str | int, dtype: DType) -> str:
    """Return element `position` (modulo the elements in a word) of a packed word, as a value."""
    per = PER_WORD[dtype]
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
        if dtype in (int8, int16):
            return f"((bitcast<i32>({word}) << {32 - bits - shift}u) >> {32 - bits}u)"
        return decode(
            f"(({word} >> {shift}u) & {mask}u)" if shift else f"({word} & {mask}u)", dtype
        )
    return decode(f"(({word} >> ((u32({position}) & {per - 1}u) * {bits}u)) & {mask}u)", dtype)
