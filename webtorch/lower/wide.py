"""float64 in WGSL, computed from its bits: two 32-bit words for a number, low word first, as memory has them.
Floor 2; standard library only.

WGSL has no float64, and what splits a number into float32 parts is at the mercy of drivers, which reassociate. Integers
are exact everywhere: sums, products, quotients and square roots are rounded as IEEE 754 asks, subnormal numbers and NaN
included, and memory is the processor's. A sum or a product takes some 60 to 100 instructions. Functions are series over
these, right to one or two units in the last place; loops keep their texts short.
"""

from __future__ import annotations

import math
import struct

KIND = "wt_f64"


def literal(value: float) -> str:
    """Return a number's words as WGSL text."""
    low, high = struct.unpack("<II", struct.pack("<d", value))
    return f"wt_f64(0x{low:08x}u, 0x{high:08x}u)"


def _table(values: list[float]) -> str:
    return f"array<wt_f64, {len(values)}>({', '.join(map(literal, values))})"


_ONE, _HALF, _NAN, _INF = (literal(v) for v in (1.0, 0.5, math.nan, math.inf))
# Words of ln 2 and of a quarter turn: the first ones have trailing zeros, so that their products by a count are exact.
_LN2 = (6.93147180369123816490e-01, 1.90821492927058770002e-10)
_QUARTER = (1.57079632673412561417e00, 6.07710050630396597660e-11, 2.02226624879595063154e-21)
_EXP = [1 / math.factorial(n) for n in range(14, -1, -1)]
_EXPM1 = [1 / math.factorial(n + 1) for n in range(15, -1, -1)]
_ATAN = [(-1) ** n / (2 * n + 1) for n in range(13, -1, -1)]
_LOG = [1 / (2 * n + 1) for n in range(12, -1, -1)]
_SIN = [(-1) ** n / math.factorial(2 * n + 1) for n in range(8, -1, -1)]
_COS = [(-1) ** n / math.factorial(2 * n) for n in range(9, -1, -1)]


def _series(name: str, terms: list[float]) -> str:
    return f"""
fn wt_f64_{name}(x: wt_f64) -> wt_f64 {{
  var terms = {_table(terms)};
  var y = terms[0];
  for (var i = 1; i < {len(terms)}; i = i + 1) {{ y = wt_f64_add(wt_f64_mul(y, x), terms[i]); }}
  return y;
}}
"""


HELPERS: dict[str, str] = {
    "wt_f64": "alias wt_f64 = vec2<u32>;",
    # -- 64-bit integers
    "wt_w_add": """
fn wt_w_add(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
  let low = a.x + b.x;
  return vec2<u32>(low, a.y + b.y + select(0u, 1u, low < a.x));
}
""",
    "wt_w_sub": """
fn wt_w_sub(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
  return vec2<u32>(a.x - b.x, a.y - b.y - select(0u, 1u, a.x < b.x));
}
""",
    "wt_w_lt": """
fn wt_w_lt(a: vec2<u32>, b: vec2<u32>) -> bool { return a.y < b.y || (a.y == b.y && a.x < b.x); }
""",
    "wt_w_shl": """
fn wt_w_shl(a: vec2<u32>, n: u32) -> vec2<u32> {
  if (n == 0u) { return a; }
  if (n >= 32u) { return vec2<u32>(0u, a.x << (n - 32u)); }
  return vec2<u32>(a.x << n, (a.y << n) | (a.x >> (32u - n)));
}
""",
    "wt_w_shr": """
fn wt_w_shr(a: vec2<u32>, n: u32) -> vec2<u32> {
  if (n == 0u) { return a; }
  if (n >= 64u) { return vec2<u32>(0u, 0u); }
  if (n >= 32u) { return vec2<u32>(a.y >> (n - 32u), 0u); }
  return vec2<u32>((a.x >> n) | (a.y << (32u - n)), a.y >> n);
}
""",
    # What is shifted out is noted in the last bit.
    "wt_w_shr_sticky": """
fn wt_w_shr_sticky(a: vec2<u32>, n: u32) -> vec2<u32> {
  let kept = wt_w_shr(a, n);
  let back = wt_w_shl(kept, min(n, 63u));
  let lost = select(any(back != a), any(a != vec2<u32>(0u, 0u)), n >= 64u);
  return vec2<u32>(kept.x | select(0u, 1u, lost), kept.y);
}
""",
    "wt_w_clz": """
fn wt_w_clz(a: vec2<u32>) -> u32 {
  return select(countLeadingZeros(a.y), 32u + countLeadingZeros(a.x), a.y == 0u);
}
""",
    "wt_w_mul": """
fn wt_w_mul(a: u32, b: u32) -> vec2<u32> { return vec2<u32>(a * b, wt_mulhi(a, b)); }
""",
    # -- parts of a number
    "wt_f64_isnan": """
fn wt_f64_isnan(a: wt_f64) -> bool {
  let high = a.y & 0x7fffffffu;
  return high > 0x7ff00000u || (high == 0x7ff00000u && a.x != 0u);
}
""",
    "wt_f64_isinf": """
fn wt_f64_isinf(a: wt_f64) -> bool { return (a.y & 0x7fffffffu) == 0x7ff00000u && a.x == 0u; }
""",
    "wt_f64_iszero": """
fn wt_f64_iszero(a: wt_f64) -> bool { return ((a.y & 0x7fffffffu) | a.x) == 0u; }
""",
    "wt_f64_neg": "fn wt_f64_neg(a: wt_f64) -> wt_f64 { return wt_f64(a.x, a.y ^ 0x80000000u); }",
    "wt_f64_abs": "fn wt_f64_abs(a: wt_f64) -> wt_f64 { return wt_f64(a.x, a.y & 0x7fffffffu); }",
    "wt_f64_copysign": """
fn wt_f64_copysign(a: wt_f64, b: wt_f64) -> wt_f64 {
  return wt_f64(a.x, (a.y & 0x7fffffffu) | (b.y & 0x80000000u));
}
""",
    # The mantissa's words and the exponent that go with it, of a subnormal number too: its leading bit is bit 52.
    "wt_f64_split": """
struct wt_f64_parts { digits: vec2<u32>, exponent: i32 }
fn wt_f64_split(a: wt_f64) -> wt_f64_parts {
  let exponent = i32((a.y >> 20u) & 0x7ffu);
  let fraction = vec2<u32>(a.x, a.y & 0xfffffu);
  if (exponent != 0) {
    return wt_f64_parts(vec2<u32>(fraction.x, fraction.y | 0x100000u), exponent);
  }
  let shift = wt_w_clz(fraction) - 11u;
  return wt_f64_parts(wt_w_shl(fraction, min(shift, 63u)), 1 - i32(shift));
}
""",
    # digits: the leading bit is bit 62, ten bits are rounded off; below exponent 1 numbers are subnormal.
    "wt_f64_round_off": """
fn wt_f64_round_off(sign: u32, exponent: i32, digits: vec2<u32>) -> wt_f64 {
  var e = exponent;
  var d = digits;
  if (e < 1) {
    d = wt_w_shr_sticky(d, u32(min(1 - e, 64)));
    e = 1;
  }
  let rest = d.x & 0x3ffu;
  d = wt_w_shr(d, 10u);
  if (rest > 0x200u || (rest == 0x200u && (d.x & 1u) == 1u)) { d = wt_w_add(d, vec2<u32>(1u, 0u)); }
  if (e > 0x7fe) { return wt_f64(0u, sign | 0x7ff00000u); }
  return wt_w_add(vec2<u32>(0u, sign | (u32(e - 1) << 20u)), d);
}
""",
    # -- arithmetic
    "wt_f64_add": f"""
fn wt_f64_add(x: wt_f64, y: wt_f64) -> wt_f64 {{
  let swapped = wt_w_lt(wt_f64_abs(x), wt_f64_abs(y));
  let a = select(x, y, swapped);
  let b = select(y, x, swapped);
  if (wt_f64_isnan(x) || wt_f64_isnan(y)) {{ return {_NAN}; }}
  let sign = a.y & 0x80000000u;
  let apart = ((a.y ^ b.y) & 0x80000000u) != 0u;
  if (wt_f64_isinf(a)) {{ return select(a, {_NAN}, apart && wt_f64_isinf(b)); }}
  var e = i32((a.y >> 20u) & 0x7ffu);
  var f = i32((b.y >> 20u) & 0x7ffu);
  var p = wt_w_shl(vec2<u32>(a.x, (a.y & 0xfffffu) | select(0u, 0x100000u, e > 0)), 10u);
  var q = wt_w_shl(vec2<u32>(b.x, (b.y & 0xfffffu) | select(0u, 0x100000u, f > 0)), 10u);
  e = max(e, 1);
  f = max(f, 1);
  q = wt_w_shr_sticky(q, u32(min(e - f, 64)));
  if (apart) {{
    p = wt_w_sub(p, q);
    if (all(p == vec2<u32>(0u, 0u))) {{ return wt_f64(0u, 0u); }}
    let shift = min(i32(wt_w_clz(p)) - 1, e - 1);
    p = wt_w_shl(p, u32(shift));
    e = e - shift;
  }} else {{
    p = wt_w_add(p, q);
    if (p.y >= 0x80000000u) {{
      p = wt_w_shr_sticky(p, 1u);
      e = e + 1;
    }}
  }}
  return wt_f64_round_off(sign, e, p);
}}
""",
    "wt_f64_sub": """
fn wt_f64_sub(a: wt_f64, b: wt_f64) -> wt_f64 { return wt_f64_add(a, wt_f64_neg(b)); }
""",
    "wt_f64_mul": f"""
fn wt_f64_mul(a: wt_f64, b: wt_f64) -> wt_f64 {{
  if (wt_f64_isnan(a) || wt_f64_isnan(b)) {{ return {_NAN}; }}
  let sign = (a.y ^ b.y) & 0x80000000u;
  let nothing = wt_f64_iszero(a) || wt_f64_iszero(b);
  if (wt_f64_isinf(a) || wt_f64_isinf(b)) {{
    return select(wt_f64(0u, sign | 0x7ff00000u), {_NAN}, nothing);
  }}
  if (nothing) {{ return wt_f64(0u, sign); }}
  let s = wt_f64_split(a);
  let t = wt_f64_split(b);
  let p = wt_w_shl(s.digits, 10u);
  let q = wt_w_shl(t.digits, 11u);
  let low = wt_w_mul(p.x, q.x);
  let one = wt_w_mul(p.x, q.y);
  let two = wt_w_mul(p.y, q.x);
  let middle = wt_w_add(wt_w_add(vec2<u32>(low.y, 0u), vec2<u32>(one.x, 0u)), vec2<u32>(two.x, 0u));
  var d = wt_w_add(wt_w_mul(p.y, q.y), vec2<u32>(middle.y, 0u));
  d = wt_w_add(wt_w_add(d, vec2<u32>(one.y, 0u)), vec2<u32>(two.y, 0u));
  d = vec2<u32>(d.x | select(0u, 1u, (low.x | middle.x) != 0u), d.y);
  var e = s.exponent + t.exponent - 1022;
  if (d.y < 0x40000000u) {{
    d = wt_w_shl(d, 1u);
    e = e - 1;
  }}
  return wt_f64_round_off(sign, e, d);
}}
""",
    "wt_f64_div": f"""
fn wt_f64_div(a: wt_f64, b: wt_f64) -> wt_f64 {{
  let sign = (a.y ^ b.y) & 0x80000000u;
  let infinite = wt_f64_isinf(a);
  let none = wt_f64_iszero(b);
  if (wt_f64_isnan(a) || wt_f64_isnan(b) || (infinite && wt_f64_isinf(b)) || (none && wt_f64_iszero(a))) {{
    return {_NAN};
  }}
  if (infinite || none) {{ return wt_f64(0u, sign | 0x7ff00000u); }}
  if (wt_f64_iszero(a) || wt_f64_isinf(b)) {{ return wt_f64(0u, sign); }}
  let s = wt_f64_split(a);
  let t = wt_f64_split(b);
  var e = s.exponent - t.exponent + 1023;
  var rest = s.digits;
  if (wt_w_lt(rest, t.digits)) {{
    rest = wt_w_shl(rest, 1u);
    e = e - 1;
  }}
  var d = vec2<u32>(0u, 0u);
  for (var i = 0; i < 63; i = i + 1) {{
    d = wt_w_shl(d, 1u);
    if (!wt_w_lt(rest, t.digits)) {{
      rest = wt_w_sub(rest, t.digits);
      d.x = d.x | 1u;
    }}
    rest = wt_w_shl(rest, 1u);
  }}
  d.x = d.x | select(0u, 1u, any(rest != vec2<u32>(0u, 0u)));
  return wt_f64_round_off(sign, e, d);
}}
""",
    "wt_f64_sqrt": f"""
fn wt_f64_sqrt(a: wt_f64) -> wt_f64 {{
  if (wt_f64_iszero(a)) {{ return a; }}
  if (wt_f64_isnan(a) || a.y >= 0x80000000u) {{ return {_NAN}; }}
  if (wt_f64_isinf(a)) {{ return a; }}
  let s = wt_f64_split(a);
  let odd = ((s.exponent - 1023) & 1) != 0;
  var left = wt_w_shl(s.digits, select(10u, 11u, odd));
  var d = vec2<u32>(0u, 0u);
  var rest = vec2<u32>(0u, 0u);
  for (var i = 0; i < 56; i = i + 1) {{
    rest = wt_w_shl(rest, 2u);
    rest.x = rest.x | (left.y >> 30u);
    left = wt_w_shl(left, 2u);
    let trial = wt_w_add(wt_w_shl(d, 2u), vec2<u32>(1u, 0u));
    d = wt_w_shl(d, 1u);
    if (!wt_w_lt(rest, trial)) {{
      rest = wt_w_sub(rest, trial);
      d.x = d.x | 1u;
    }}
  }}
  d = wt_w_shl(d, 7u);
  d.x = d.x | select(0u, 1u, any(rest != vec2<u32>(0u, 0u)));
  return wt_f64_round_off(0u, (s.exponent - 1023 - select(0, 1, odd)) / 2 + 1023, d);
}}
""",
    "wt_f64_rsqrt": f"""
fn wt_f64_rsqrt(a: wt_f64) -> wt_f64 {{ return wt_f64_div({_ONE}, wt_f64_sqrt(a)); }}
""",
    # -- comparisons
    "wt_f64_eq": """
fn wt_f64_eq(a: wt_f64, b: wt_f64) -> bool {
  return !wt_f64_isnan(a) && (all(a == b) || (wt_f64_iszero(a) && wt_f64_iszero(b)));
}
""",
    "wt_f64_ne": "fn wt_f64_ne(a: wt_f64, b: wt_f64) -> bool { return !wt_f64_eq(a, b); }",
    "wt_f64_lt": """
fn wt_f64_lt(a: wt_f64, b: wt_f64) -> bool {
  if (wt_f64_isnan(a) || wt_f64_isnan(b) || (wt_f64_iszero(a) && wt_f64_iszero(b))) { return false; }
  let below = a.y >= 0x80000000u;
  if (below != (b.y >= 0x80000000u)) { return below; }
  return select(wt_w_lt(a, b), wt_w_lt(b, a), below);
}
""",
    "wt_f64_le": """
fn wt_f64_le(a: wt_f64, b: wt_f64) -> bool { return wt_f64_lt(a, b) || wt_f64_eq(a, b); }
""",
    "wt_f64_max": """
fn wt_f64_max(a: wt_f64, b: wt_f64) -> wt_f64 {
  return select(b, a, wt_f64_isnan(a) || wt_f64_lt(b, a));
}
""",
    "wt_f64_min": """
fn wt_f64_min(a: wt_f64, b: wt_f64) -> wt_f64 {
  return select(b, a, wt_f64_isnan(a) || wt_f64_lt(a, b));
}
""",
    # Whether a later value and its place win.
    "wt_argmax_f64": """
fn wt_argmax_f64(a: wt_f64, i: i32, b: wt_f64, j: i32) -> bool {
  if (wt_f64_isnan(a) || wt_f64_isnan(b)) {
    return wt_f64_isnan(b) && (!wt_f64_isnan(a) || j < i);
  }
  return wt_f64_lt(a, b) || (wt_f64_eq(a, b) && j < i);
}
""",
    "wt_argmin_f64": """
fn wt_argmin_f64(a: wt_f64, i: i32, b: wt_f64, j: i32) -> bool {
  if (wt_f64_isnan(a) || wt_f64_isnan(b)) {
    return wt_f64_isnan(b) && (!wt_f64_isnan(a) || j < i);
  }
  return wt_f64_lt(b, a) || (wt_f64_eq(a, b) && j < i);
}
""",
    "wt_f64_logical_not": """
fn wt_f64_logical_not(a: wt_f64) -> bool { return wt_f64_iszero(a); }
""",
    "wt_f64_sign": f"""
fn wt_f64_sign(a: wt_f64) -> wt_f64 {{
  return select(wt_f64_copysign({_ONE}, a), wt_f64(0u, 0u), wt_f64_iszero(a) || wt_f64_isnan(a));
}}
""",
    # -- whole numbers
    "wt_f64_trunc": """
fn wt_f64_trunc(a: wt_f64) -> wt_f64 {
  let e = i32((a.y >> 20u) & 0x7ffu) - 1023;
  if (e < 0) { return wt_f64(0u, a.y & 0x80000000u); }
  if (e >= 52) { return a; }
  let n = u32(52 - e);
  return wt_w_shl(wt_w_shr(a, n), n);
}
""",
    "wt_f64_floor": f"""
fn wt_f64_floor(a: wt_f64) -> wt_f64 {{
  let t = wt_f64_trunc(a);
  if (a.y < 0x80000000u || all(t == a)) {{ return t; }}
  return wt_f64_sub(t, {_ONE});
}}
""",
    "wt_f64_ceil": """
fn wt_f64_ceil(a: wt_f64) -> wt_f64 { return wt_f64_neg(wt_f64_floor(wt_f64_neg(a))); }
""",
    # To even: 2 ** 52 has no room for a fraction.
    "wt_f64_round": f"""
fn wt_f64_round(a: wt_f64) -> wt_f64 {{
  if (((a.y >> 20u) & 0x7ffu) >= 1075u) {{ return a; }}
  let large = {literal(2.0**52)};
  return wt_f64_copysign(wt_f64_sub(wt_f64_add(wt_f64_abs(a), large), large), a);
}}
""",
    # -- conversions
    "wt_f64_from_u32": """
fn wt_f64_from_u32(a: u32) -> wt_f64 {
  if (a == 0u) { return wt_f64(0u, 0u); }
  let n = countLeadingZeros(a);
  let digits = wt_w_shl(vec2<u32>(a, 0u), 21u + n);
  return wt_w_add(vec2<u32>(0u, (1053u - n) << 20u), digits);
}
""",
    "wt_f64_from_i32": """
fn wt_f64_from_i32(a: i32) -> wt_f64 {
  let made = wt_f64_from_u32(bitcast<u32>(select(a, 0 - a, a < 0)));
  return wt_f64(made.x, made.y | select(0u, 0x80000000u, a < 0));
}
""",
    "wt_f64_from_f32": f"""
fn wt_f64_from_f32(a: f32) -> wt_f64 {{
  let bits = bitcast<u32>(a);
  let sign = bits & 0x80000000u;
  let e = (bits >> 23u) & 0xffu;
  let digits = bits & 0x7fffffu;
  if (e == 0u) {{
    let made = wt_f64_mul(wt_f64_from_u32(digits), {literal(2.0**-149)});
    return wt_f64(made.x, made.y | sign);
  }}
  let moved = select(e + 896u, 0x7ffu, e == 0xffu);
  return wt_f64(digits << 29u, sign | (moved << 20u) | (digits >> 3u));
}}
""",
    "wt_f64_to_f32": """
fn wt_f64_to_f32(a: wt_f64) -> f32 {
  let sign = a.y & 0x80000000u;
  if (wt_f64_isnan(a)) { return wt_nan(); }
  var e = i32((a.y >> 20u) & 0x7ffu) - 896;
  var d = vec2<u32>(a.x, (a.y & 0xfffffu) | 0x100000u);
  if (e > 254) { return bitcast<f32>(sign | bitcast<u32>(wt_inf())); }
  if (e < 1) {
    d = wt_w_shr_sticky(d, u32(min(1 - e, 64)));
    e = 1;
  }
  let rest = d.x & 0x1fffffffu;
  var kept = wt_w_shr(d, 29u).x;
  if (rest > 0x10000000u || (rest == 0x10000000u && (kept & 1u) == 1u)) { kept = kept + 1u; }
  return bitcast<f32>(sign | ((u32(e - 1) << 23u) + kept));
}
""",
    "wt_f64_to_u32": """
fn wt_f64_to_u32(a: wt_f64) -> u32 {
  let e = i32((a.y >> 20u) & 0x7ffu) - 1023;
  if (e < 0 || e > 62 || wt_f64_isnan(a)) { return 0u; }
  let digits = vec2<u32>(a.x, (a.y & 0xfffffu) | 0x100000u);
  var whole = wt_w_shr(digits, u32(max(52 - e, 0)));
  whole = wt_w_shl(whole, u32(max(e - 52, 0)));
  return select(whole.x, 0u - whole.x, a.y >= 0x80000000u);
}
""",
    "wt_f64_to_i32": f"""
fn wt_f64_to_i32(a: wt_f64) -> i32 {{
  if (wt_f64_isnan(a)) {{ return 0; }}
  if (wt_f64_le({literal(2.0**31)}, a)) {{ return 2147483647; }}
  if (wt_f64_le(a, {literal(-(2.0**31))})) {{ return bitcast<i32>(0x80000000u); }}
  return bitcast<i32>(wt_f64_to_u32(a));
}}
""",
    # -- functions
    "wt_f64_exp_series": _series("exp_series", _EXP),
    "wt_f64_log_series": _series("log_series", _LOG),
    "wt_f64_sin_series": _series("sin_series", _SIN),
    "wt_f64_cos_series": _series("cos_series", _COS),
    "wt_f64_power_of_two": """
fn wt_f64_power_of_two(n: i32) -> wt_f64 { return wt_f64(0u, u32(n + 1023) << 20u); }
""",
    "wt_f64_exp": f"""
fn wt_f64_exp(x: wt_f64) -> wt_f64 {{
  if (wt_f64_isnan(x)) {{ return x; }}
  if (wt_f64_lt({literal(710.0)}, x)) {{ return {_INF}; }}
  if (wt_f64_lt(x, {literal(-746.0)})) {{ return wt_f64(0u, 0u); }}
  let count = wt_f64_round(wt_f64_mul(x, {literal(1 / math.log(2))}));
  var r = wt_f64_sub(x, wt_f64_mul(count, {literal(_LN2[0])}));
  r = wt_f64_sub(r, wt_f64_mul(count, {literal(_LN2[1])}));
  let n = wt_f64_to_i32(count);
  let half = n / 2;
  let y = wt_f64_mul(wt_f64_exp_series(r), wt_f64_power_of_two(half));
  return wt_f64_mul(y, wt_f64_power_of_two(n - half));
}}
""",
    "wt_f64_log": f"""
fn wt_f64_log(x: wt_f64) -> wt_f64 {{
  if (wt_f64_iszero(x)) {{ return wt_f64_neg({_INF}); }}
  if (wt_f64_isnan(x) || x.y >= 0x80000000u) {{ return {_NAN}; }}
  if (wt_f64_isinf(x)) {{ return x; }}
  let s = wt_f64_split(x);
  // From sqrt(1/2) to sqrt(2): the words of sqrt(2) begin so.
  let upper = s.digits.y >= 0x16a09fu;
  let e = s.exponent - 1023 + select(0, 1, upper);
  let m = wt_f64(s.digits.x, (s.digits.y & 0xfffffu) | select(0x3ff00000u, 0x3fe00000u, upper));
  let f = wt_f64_sub(m, {_ONE});
  let q = wt_f64_div(f, wt_f64_add(m, {_ONE}));
  let n = wt_f64_from_i32(e);
  // f - f * f / 2 + ... in the form f - q * (f - 2 * (series - 1)), whose first term is exact.
  let z = wt_f64_mul(q, q);
  let more = wt_f64_sub(wt_f64_log_series(z), {_ONE});
  let small = wt_f64_mul(q, wt_f64_sub(wt_f64_add(more, more), f));
  let low = wt_f64_add(small, wt_f64_mul(n, {literal(_LN2[1])}));
  return wt_f64_add(wt_f64_mul(n, {literal(_LN2[0])}), wt_f64_add(f, low));
}}
""",
    # Exact while the count of quarter turns has 20 bits or so.
    "wt_f64_turned": f"""
fn wt_f64_turned(x: wt_f64, ahead: i32) -> wt_f64 {{
  if (wt_f64_isnan(x) || wt_f64_isinf(x)) {{ return {_NAN}; }}
  let count = wt_f64_round(wt_f64_mul(x, {literal(2 / math.pi)}));
  var r = wt_f64_sub(x, wt_f64_mul(count, {literal(_QUARTER[0])}));
  r = wt_f64_sub(r, wt_f64_mul(count, {literal(_QUARTER[1])}));
  r = wt_f64_sub(r, wt_f64_mul(count, {literal(_QUARTER[2])}));
  let turn = (wt_f64_to_i32(count) + ahead) & 3;
  let z = wt_f64_mul(r, r);
  var y = r;
  if ((turn & 1) == 0) {{
    y = wt_f64_mul(r, wt_f64_sin_series(z));
  }} else {{
    y = wt_f64_cos_series(z);
  }}
  return wt_f64(y.x, y.y ^ select(0u, 0x80000000u, turn >= 2));
}}
""",
    "wt_f64_sin": "fn wt_f64_sin(x: wt_f64) -> wt_f64 { return wt_f64_turned(x, 0); }",
    "wt_f64_cos": "fn wt_f64_cos(x: wt_f64) -> wt_f64 { return wt_f64_turned(x, 1); }",
    "wt_f64_tan": """
fn wt_f64_tan(x: wt_f64) -> wt_f64 { return wt_f64_div(wt_f64_sin(x), wt_f64_cos(x)); }
""",
    "wt_f64_log2": f"""
fn wt_f64_log2(x: wt_f64) -> wt_f64 {{
  if (wt_f64_iszero(x) || wt_f64_isnan(x) || wt_f64_isinf(x) || x.y >= 0x80000000u) {{ return wt_f64_log(x); }}
  let s = wt_f64_split(x);
  let upper = s.digits.y >= 0x16a09fu;
  let m = wt_f64(s.digits.x, (s.digits.y & 0xfffffu) | select(0x3ff00000u, 0x3fe00000u, upper));
  let n = wt_f64_from_i32(s.exponent - 1023 + select(0, 1, upper));
  return wt_f64_add(n, wt_f64_mul(wt_f64_log(m), {literal(1 / math.log(2))}));
}}
""",
    "wt_f64_log10": f"""
fn wt_f64_log10(x: wt_f64) -> wt_f64 {{
  return wt_f64_mul(wt_f64_log(x), {literal(1 / math.log(10))});
}}
""",
    # What 1 + x loses is added again.
    "wt_f64_log1p": f"""
fn wt_f64_log1p(x: wt_f64) -> wt_f64 {{
  let u = wt_f64_add({_ONE}, x);
  if (wt_f64_iszero(u) || wt_f64_isinf(u)) {{ return wt_f64_log(u); }}
  let lost = wt_f64_sub(wt_f64_sub(u, {_ONE}), x);
  return wt_f64_sub(wt_f64_log(u), wt_f64_div(lost, u));
}}
""",
    "wt_f64_expm1_series": _series("expm1_series", _EXPM1),
    "wt_f64_expm1": f"""
fn wt_f64_expm1(x: wt_f64) -> wt_f64 {{
  if (wt_f64_lt(wt_f64_abs(x), {_HALF})) {{ return wt_f64_mul(x, wt_f64_expm1_series(x)); }}
  return wt_f64_sub(wt_f64_exp(x), {_ONE});
}}
""",
    "wt_f64_tanh": f"""
fn wt_f64_tanh(x: wt_f64) -> wt_f64 {{
  let size = wt_f64_abs(x);
  if (wt_f64_lt({literal(22.0)}, size)) {{ return wt_f64_copysign({_ONE}, x); }}
  let t = wt_f64_expm1(wt_f64_add(size, size));
  return wt_f64_copysign(wt_f64_div(t, wt_f64_add(t, {literal(2.0)})), x);
}}
""",
    "wt_f64_hypot": f"""
fn wt_f64_hypot(a: wt_f64, b: wt_f64) -> wt_f64 {{
  if (wt_f64_isinf(a) || wt_f64_isinf(b)) {{ return {_INF}; }}
  let large = wt_f64_max(wt_f64_abs(a), wt_f64_abs(b));
  if (wt_f64_iszero(large)) {{ return large; }}
  let ratio = wt_f64_div(wt_f64_min(wt_f64_abs(a), wt_f64_abs(b)), large);
  return wt_f64_mul(large, wt_f64_sqrt(wt_f64_add({_ONE}, wt_f64_mul(ratio, ratio))));
}}
""",
    # Of whole exponents by squaring, else by the logarithm, which costs as many digits as the result's exponent has.
    "wt_f64_pow": f"""
fn wt_f64_pow(a: wt_f64, b: wt_f64) -> wt_f64 {{
  let size = wt_f64_abs(a);
  if (wt_f64_iszero(b) || wt_f64_eq(a, {_ONE})) {{ return {_ONE}; }}
  if (wt_f64_isnan(a) || wt_f64_isnan(b)) {{ return {_NAN}; }}
  let whole = wt_f64_eq(wt_f64_trunc(b), b);
  let half = wt_f64_mul(b, {_HALF});
  let odd = whole && !wt_f64_eq(wt_f64_trunc(half), half);
  let negative = a.y >= 0x80000000u;
  if (negative && !whole && !wt_f64_iszero(a) && !wt_f64_isinf(a)) {{ return {_NAN}; }}
  var y = {_ONE};
  if (whole && wt_f64_lt(wt_f64_abs(b), {literal(1024.0)})) {{
    var left = wt_f64_to_u32(wt_f64_abs(b));
    var square = size;
    while (left != 0u) {{
      if ((left & 1u) == 1u) {{ y = wt_f64_mul(y, square); }}
      square = wt_f64_mul(square, square);
      left = left >> 1u;
    }}
    if (b.y >= 0x80000000u) {{ y = wt_f64_div({_ONE}, y); }}
  }}
  // What lies beyond the largest number on the way may have a reciprocal, a small one.
  if (!whole || !wt_f64_lt(wt_f64_abs(b), {literal(1024.0)}) || wt_f64_iszero(y)) {{
    if (!wt_f64_eq(size, {_ONE})) {{ y = wt_f64_exp(wt_f64_mul(b, wt_f64_log(size))); }}
  }}
  return wt_f64(y.x, y.y ^ select(0u, 0x80000000u, negative && odd));
}}
""",
    # Digit by digit, so that it is exact.
    "wt_f64_truncmod": f"""
fn wt_f64_truncmod(a: wt_f64, b: wt_f64) -> wt_f64 {{
  if (wt_f64_isnan(a) || wt_f64_isnan(b) || wt_f64_isinf(a) || wt_f64_iszero(b)) {{ return {_NAN}; }}
  if (wt_f64_lt(wt_f64_abs(a), wt_f64_abs(b)) || wt_f64_isinf(b)) {{ return a; }}
  let s = wt_f64_split(a);
  let t = wt_f64_split(b);
  var rest = s.digits;
  for (var i = s.exponent - t.exponent; i >= 0; i = i - 1) {{
    if (!wt_w_lt(rest, t.digits)) {{ rest = wt_w_sub(rest, t.digits); }}
    if (i > 0) {{ rest = wt_w_shl(rest, 1u); }}
  }}
  if (all(rest == vec2<u32>(0u, 0u))) {{ return wt_f64(0u, a.y & 0x80000000u); }}
  let shift = wt_w_clz(rest) - 11u;
  let digits = wt_w_shl(rest, shift + 10u);
  return wt_f64_round_off(a.y & 0x80000000u, t.exponent - i32(shift), digits);
}}
""",
    "wt_f64_mod": """
fn wt_f64_mod(a: wt_f64, b: wt_f64) -> wt_f64 {
  let r = wt_f64_truncmod(a, b);
  if (wt_f64_isnan(r) || wt_f64_iszero(r) || ((r.y ^ b.y) & 0x80000000u) == 0u) { return r; }
  return wt_f64_add(r, b);
}
""",
    # Halved twice, the argument is below 0.2.
    "wt_f64_atan_series": _series("atan_series", _ATAN),
    "wt_f64_atan": f"""
fn wt_f64_atan(x: wt_f64) -> wt_f64 {{
  if (wt_f64_isnan(x)) {{ return x; }}
  var t = wt_f64_abs(x);
  if (wt_f64_lt(t, {literal(2.0**-27)})) {{ return x; }}
  let beyond = wt_f64_lt({_ONE}, t);
  if (beyond) {{ t = wt_f64_div({_ONE}, t); }}
  for (var i = 0; i < 2; i = i + 1) {{
    let root = wt_f64_sqrt(wt_f64_add({_ONE}, wt_f64_mul(t, t)));
    t = wt_f64_div(t, wt_f64_add({_ONE}, root));
  }}
  var y = wt_f64_mul({literal(4.0)}, wt_f64_mul(t, wt_f64_atan_series(wt_f64_mul(t, t))));
  if (beyond) {{ y = wt_f64_sub({literal(math.pi / 2)}, y); }}
  return wt_f64_copysign(y, x);
}}
""",
    # exp(-x * x) times a series of positive terms: nothing cancels.
    "wt_f64_erf": f"""
fn wt_f64_erf(x: wt_f64) -> wt_f64 {{
  if (wt_f64_isnan(x)) {{ return x; }}
  if (wt_f64_lt({literal(6.0)}, wt_f64_abs(x))) {{ return wt_f64_copysign({_ONE}, x); }}
  let square = wt_f64_mul(x, x);
  let twice = wt_f64_add(square, square);
  var term = {_ONE};
  var y = {_ONE};
  for (var n = 3u; n < 400u; n = n + 2u) {{
    term = wt_f64_div(wt_f64_mul(term, twice), wt_f64_from_u32(n));
    let more = wt_f64_add(y, term);
    if (all(more == y)) {{ break; }}
    y = more;
  }}
  let factor = wt_f64_mul(wt_f64_exp(wt_f64_neg(square)), {literal(2 / math.sqrt(math.pi))});
  return wt_f64_mul(x, wt_f64_mul(factor, y));
}}
""",
    # Beyond a half a continued fraction, from its end; what x * x rounds off has an exponential of its own.
    "wt_f64_erfc": f"""
fn wt_f64_erfc(x: wt_f64) -> wt_f64 {{
  if (wt_f64_isnan(x)) {{ return x; }}
  if (wt_f64_lt(x, {_HALF})) {{ return wt_f64_sub({_ONE}, wt_f64_erf(x)); }}
  if (wt_f64_lt({literal(28.0)}, x)) {{ return wt_f64(0u, 0u); }}
  let high = wt_f64(0u, x.y);
  let rest = wt_f64_mul(wt_f64_sub(x, high), wt_f64_add(x, high));
  var y = x;
  for (var n = 20u + wt_f64_to_u32(wt_f64_div({literal(200.0)}, wt_f64_mul(x, x))); n > 0u; n = n - 1u) {{
    y = wt_f64_add(x, wt_f64_div(wt_f64_mul(wt_f64_from_u32(n), {_HALF}), y));
  }}
  let size = wt_f64_exp(wt_f64_neg(wt_f64_mul(high, high)));
  let density = wt_f64_mul(size, wt_f64_exp(wt_f64_neg(rest)));
  return wt_f64_mul(density, wt_f64_div({literal(1 / math.sqrt(math.pi))}, y));
}}
""",
    "wt_f64_atan2": f"""
fn wt_f64_atan2(y: wt_f64, x: wt_f64) -> wt_f64 {{
  if (wt_f64_isnan(x) || wt_f64_isnan(y)) {{ return {_NAN}; }}
  var t = {_ONE};
  if (!(wt_f64_isinf(x) && wt_f64_isinf(y))) {{ t = wt_f64_div(wt_f64_abs(y), wt_f64_abs(x)); }}
  if (wt_f64_iszero(y)) {{ t = wt_f64(0u, 0u); }}
  t = wt_f64_atan(t);
  if (x.y >= 0x80000000u) {{ t = wt_f64_sub({literal(math.pi)}, t); }}
  return wt_f64_copysign(t, y);
}}
""",
    # Where 1 no longer counts beside x * x, the logarithm of 2 x.
    "wt_f64_asinh": f"""
fn wt_f64_asinh(x: wt_f64) -> wt_f64 {{
  let size = wt_f64_abs(x);
  let square = wt_f64_mul(size, size);
  let root = wt_f64_sqrt(wt_f64_add({_ONE}, square));
  let large = wt_f64_lt({literal(2.0**28)}, size);
  let more = wt_f64_add(size, wt_f64_div(square, wt_f64_add({_ONE}, root)));
  var y = wt_f64_log1p(select(more, wt_f64_sub(size, {_ONE}), large));
  if (large) {{ y = wt_f64_add(y, {literal(math.log(2))}); }}
  return wt_f64_copysign(y, x);
}}
""",
    "wt_f64_acosh": f"""
fn wt_f64_acosh(x: wt_f64) -> wt_f64 {{
  let t = wt_f64_sub(x, {_ONE});
  if (t.y >= 0x80000000u) {{ return {_NAN}; }}
  let root = wt_f64_sqrt(wt_f64_mul(t, wt_f64_add(t, {literal(2.0)})));
  let large = wt_f64_lt({literal(2.0**28)}, x);
  let y = wt_f64_log1p(select(wt_f64_add(t, root), t, large));
  if (large) {{ return wt_f64_add(y, {literal(math.log(2))}); }}
  return y;
}}
""",
    "wt_f64_atanh": f"""
fn wt_f64_atanh(x: wt_f64) -> wt_f64 {{
  let size = wt_f64_abs(x);
  let twice = wt_f64_add(size, size);
  let y = wt_f64_log1p(wt_f64_div(twice, wt_f64_sub({_ONE}, size)));
  return wt_f64_copysign(wt_f64_mul(y, {_HALF}), x);
}}
""",
    "wt_f64_asin": f"""
fn wt_f64_asin(x: wt_f64) -> wt_f64 {{
  let rest = wt_f64_mul(wt_f64_sub({_ONE}, x), wt_f64_add({_ONE}, x));
  return wt_f64_atan(wt_f64_div(x, wt_f64_sqrt(rest)));
}}
""",
    "wt_f64_acos": f"""
fn wt_f64_acos(x: wt_f64) -> wt_f64 {{
  let ratio = wt_f64_div(wt_f64_sub({_ONE}, x), wt_f64_add({_ONE}, x));
  let y = wt_f64_atan(wt_f64_sqrt(ratio));
  return wt_f64_add(y, y);
}}
""",
    # Of large arguments in two halves, so that nothing overflows before the result does.
    "wt_f64_half_exp": f"""
fn wt_f64_half_exp(x: wt_f64) -> wt_f64 {{
  let root = wt_f64_exp(wt_f64_mul(x, {_HALF}));
  return wt_f64_mul(root, wt_f64_mul(root, {_HALF}));
}}
""",
    "wt_f64_sinh": f"""
fn wt_f64_sinh(x: wt_f64) -> wt_f64 {{
  let size = wt_f64_abs(x);
  if (wt_f64_lt({literal(40.0)}, size)) {{ return wt_f64_copysign(wt_f64_half_exp(size), x); }}
  let t = wt_f64_expm1(size);
  let y = wt_f64_add(t, wt_f64_div(t, wt_f64_add(t, {_ONE})));
  return wt_f64_copysign(wt_f64_mul(y, {_HALF}), x);
}}
""",
    "wt_f64_cosh": f"""
fn wt_f64_cosh(x: wt_f64) -> wt_f64 {{
  let size = wt_f64_abs(x);
  if (wt_f64_lt({literal(40.0)}, size)) {{ return wt_f64_half_exp(size); }}
  let t = wt_f64_exp(size);
  return wt_f64_mul(wt_f64_add(t, wt_f64_div({_ONE}, t)), {_HALF});
}}
""",
    "wt_f64_exp2": f"""
fn wt_f64_exp2(x: wt_f64) -> wt_f64 {{
  if (!wt_f64_lt(wt_f64_abs(x), {literal(1100.0)})) {{ return wt_f64_exp(x); }}
  let count = wt_f64_round(x);
  let y = wt_f64_exp(wt_f64_mul(wt_f64_sub(x, count), {literal(math.log(2))}));
  let n = wt_f64_to_i32(count);
  let half = n / 2;
  return wt_f64_mul(wt_f64_mul(y, wt_f64_power_of_two(half)), wt_f64_power_of_two(n - half));
}}
""",
}
