"""The functions that plain Python kernels call: IEEE's answers where Python raises. Standard library only."""

from __future__ import annotations

import array
import math
import struct
from collections.abc import Callable
from typing import Any

from webtorch.ir.dtype import ALL, by_name, integer_limits
from webtorch.ir.expr import FUNCTIONS

inf, nan = math.inf, math.nan
_cell = array.array("f", [0.0])


def f32(x: float) -> float:
    """Round to float32."""
    _cell[0] = x
    return _cell[0]


def from_float16(bits: int) -> float:
    """Return the number that 16 bits are."""
    return struct.unpack("<e", bits.to_bytes(2, "little"))[0]


def to_float16(x: float) -> int:
    """Return the nearest float16's bits; beyond the largest, infinity's."""
    return int.from_bytes(by_name("float16").to_bytes([x]), "little")


def from_bfloat16(bits: int) -> float:
    """Return the number that 16 bits of a bfloat16 are."""
    return struct.unpack("<f", struct.pack("<I", bits << 16))[0]


def to_bfloat16(x: float) -> int:
    """Return the nearest bfloat16's bits."""
    return int.from_bytes(by_name("bfloat16").to_bytes([x]), "little")


def near_float16(x: float) -> float:
    """Round to float16."""
    return from_float16(to_float16(x))


def near_bfloat16(x: float) -> float:
    """Round to bfloat16."""
    return from_bfloat16(to_bfloat16(x))


def _wrapper(name: str) -> Callable[[int], int]:
    low, high = integer_limits(by_name(name))
    span = high - low + 1

    def wrap(x: int) -> int:
        """Return x wrapped around into the type's range."""
        return x if low <= x <= high else (x - low) % span + low

    return wrap


def to_int(x: float) -> int:
    """Truncate; what 64 bits do not hold, NaN too, gives the smallest such integer, as processors have it."""
    return int(x) if -(2.0**63) <= x < 2.0**63 else -(1 << 63)


def bitcast(x: Any, source: str, target: str) -> object:
    """Reinterpret the bits."""
    return by_name(target).from_bytes(by_name(source).to_bytes([x]))[0]


def check(status: list[int], site: int, value: int, low: int, high: int) -> None:
    """Note the first value outside low..high-1."""
    if not low <= value < high and not status[0]:
        status[0], status[1] = site + 1, value


def philox(seed_low: int, seed_high: int, low: int, high: int) -> tuple[int, int, int, int]:
    """Return the four lanes of Philox4x32-10 (Salmon et al., 2011) for counter (low, high, 0, 0)."""
    a, b, c, d = low, high, 0, 0
    for _ in range(10):
        left, right = a * 0xD2511F53, c * 0xCD9E8D57
        a, b, c, d = (
            (right >> 32) ^ b ^ seed_low,
            right & 0xFFFFFFFF,
            (left >> 32) ^ d ^ seed_high,
            left & 0xFFFFFFFF,
        )
        seed_low = (seed_low + 0x9E3779B9) & 0xFFFFFFFF
        seed_high = (seed_high + 0xBB67AE85) & 0xFFFFFFFF
    return a, b, c, d


def to_upper_int(x: float) -> int:
    """Truncate for uint64: what int64 does not hold is moved down, and the top bit set."""
    return to_int(x - 2.0**63) ^ -(1 << 63) if x >= 2.0**63 else to_int(x)


def argmax_beats(x: float, best: float) -> bool:
    """Whether `x`, which comes later, is a larger extreme: NaN is the largest."""
    return x > best or (x != x and best == best)


def argmin_beats(x: float, best: float) -> bool:
    """Whether `x`, which comes later, is a smaller extreme: NaN is the smallest."""
    return x < best or (x != x and best == best)


# -- floats


def f_div(x: float, y: float) -> float:
    """Divide."""
    if y:
        return x / y
    return nan if x != x or y != y or x == 0 else math.copysign(inf, x) * math.copysign(1.0, y)


def f_floordiv(x: float, y: float) -> float:
    """Divide, rounding down."""
    if not y:
        return f_div(x, y)
    rest = f_mod(x, y)
    quotient = (x - rest) / y
    return f_round(quotient) if math.isfinite(quotient) else quotient


def f_truncdiv(x: float, y: float) -> float:
    """Divide, rounding to zero."""
    return f_trunc(f_div(x, y))


def f_truncmod(x: float, y: float) -> float:
    """Return the rest with the sign of `x`."""
    try:
        return math.fmod(x, y)
    except ValueError:
        return nan


def f_mod(x: float, y: float) -> float:
    """Return the rest with the sign of `y`."""
    rest = f_truncmod(x, y)
    if rest and (rest < 0) != (y < 0):
        return rest + y
    return rest if rest or rest != rest else math.copysign(0.0, y)


def f_max(x: float, y: float) -> float:
    """Return the larger; NaN if either is."""
    return x if x > y or x != x else y


def f_min(x: float, y: float) -> float:
    """Return the smaller; NaN if either is."""
    return x if x < y or x != x else y


def f_sign(x: float) -> float:
    """Return -1, 0 or 1; 0 for NaN."""
    return float((x > 0) - (x < 0))


def _whole(function: Callable[[float], int]) -> Callable[[float], float]:
    def call(x: float) -> float:
        """Return a whole number with the sign of x; infinities and NaN as they are."""
        return math.copysign(float(function(x)), x) if math.isfinite(x) else x

    return call


f_floor, f_ceil, f_trunc = _whole(math.floor), _whole(math.ceil), _whole(math.trunc)
f_round = _whole(round)


# -- integers


def i_div(x: int, y: int) -> float:
    """Divide."""
    return f_div(float(x), float(y))


def i_floordiv(x: int, y: int) -> int:
    """Divide, rounding down; by zero gives 0."""
    return x // y if y else 0


def i_truncdiv(x: int, y: int) -> int:
    """Divide, rounding to zero; by zero gives 0."""
    if not y:
        return 0
    quotient = abs(x) // abs(y)
    return quotient if (x < 0) == (y < 0) else -quotient


def i_mod(x: int, y: int) -> int:
    """Return the rest with the sign of `y`; by zero gives 0."""
    return x % y if y else 0


def i_truncmod(x: int, y: int) -> int:
    """Return the rest with the sign of `x`; by zero gives 0."""
    return x - y * i_truncdiv(x, y) if y else 0


def i_pow(x: int, y: int) -> int:
    """Raise to a power; a negative power is 0 unless the base is 1 or -1."""
    if y >= 0:
        return pow(x, y, 1 << 64) if x >= 0 else (-1) ** (y & 1) * pow(-x, y, 1 << 64)
    return 1 if x == 1 else (-1) ** (y & 1) if x == -1 else 0


def i_sign(x: int) -> int:
    """Return -1, 0 or 1."""
    return (x > 0) - (x < 0)


def i_bitnot(x: int) -> int:
    """Return ~x."""
    return ~x


def i_shl(x: int, y: int) -> int:
    """Shift left."""
    return x << y if 0 <= y < 64 else 0


def i_shr(x: int, y: int) -> int:
    """Shift right."""
    return x >> y if 0 <= y < 64 else (-1 if x < 0 else 0)


NAMESPACE: dict[str, Any] = {
    f"f_{f.name}": f.of_floats for f in FUNCTIONS.values() if f.python is not None
}
NAMESPACE |= {name: value for name, value in globals().items() if not name.startswith("_")}
NAMESPACE |= {f"w_{d.name}": _wrapper(d.name) for d in ALL if d.kind in ("int", "uint")}
NAMESPACE |= {"i_abs": abs, "i_gcd": math.gcd, "i_max": max, "i_min": min}
