"""int64 in WGSL where 32 bits are too few: two words for a number, low word first, as memory has them. Floor 2;
standard library only.

Which values these are `lower/widening` decides. Sums and products wrap around at 64 bits, shifts by 64 and more shift
everything out, and what is divided by 0 is 0, as with 32 bits.
"""

from __future__ import annotations

KIND = "wt_i64"


def literal(value: int) -> str:
    """Return a number's words as WGSL text."""
    return f"wt_i64(0x{value & 0xFFFFFFFF:08x}u, 0x{value >> 32 & 0xFFFFFFFF:08x}u)"


_LEAST, _MOST = literal(-(1 << 63)), literal((1 << 63) - 1)
_NOTHING, _ONE, _MINUS_ONE = literal(0), literal(1), literal(-1)


def _call(name: str, parameters: str, result: str, body: str) -> str:
    return f"fn wt_i64_{name}({parameters}) -> {result} {{ {body} }}"


def _two(name: str, body: str, result: str = KIND) -> str:
    return _call(name, "a: wt_i64, b: wt_i64", result, body)


def _one(name: str, body: str, result: str = KIND) -> str:
    return _call(name, "a: wt_i64", result, body)


HELPERS: dict[str, str] = {
    "wt_i64": "alias wt_i64 = vec2<u32>;",
    # -- arithmetic
    "wt_i64_add": _two("add", "return wt_w_add(a, b);"),
    "wt_i64_sub": _two("sub", "return wt_w_sub(a, b);"),
    "wt_i64_neg": _one("neg", "return wt_w_sub(wt_i64(0u, 0u), a);"),
    "wt_i64_abs": _one("abs", "if (a.y >= 0x80000000u) { return wt_i64_neg(a); } return a;"),
    "wt_i64_mul": _two(
        "mul",
        "return wt_i64(a.x * b.x, wt_mulhi(a.x, b.x) + a.x * b.y + a.y * b.x);",
    ),
    "wt_i64_sign": _one(
        "sign",
        f"if (a.y >= 0x80000000u) {{ return {_MINUS_ONE}; }} "
        f"return select({_NOTHING}, {_ONE}, (a.x | a.y) != 0u);",
    ),
    # -- quotients: of numbers of 32 bits at once, of others bit by bit
    "wt_w_divmod": """
struct wt_w_parts { quotient: vec2<u32>, rest: vec2<u32> }
fn wt_w_divmod(a: vec2<u32>, b: vec2<u32>) -> wt_w_parts {
  if ((a.y | b.y) == 0u) {
    return wt_w_parts(vec2<u32>(a.x / max(b.x, 1u), 0u), vec2<u32>(a.x % max(b.x, 1u), 0u));
  }
  var d = vec2<u32>(0u, 0u);
  var rest = vec2<u32>(0u, 0u);
  var left = a;
  for (var i = 0; i < 64; i = i + 1) {
    rest = wt_w_shl(rest, 1u);
    rest.x = rest.x | (left.y >> 31u);
    left = wt_w_shl(left, 1u);
    d = wt_w_shl(d, 1u);
    if (!wt_w_lt(rest, b)) {
      rest = wt_w_sub(rest, b);
      d.x = d.x | 1u;
    }
  }
  return wt_w_parts(d, rest);
}
""",
    "wt_i64_truncdiv": """
fn wt_i64_truncdiv(a: wt_i64, b: wt_i64) -> wt_i64 {
  if ((b.x | b.y) == 0u) { return b; }
  let q = wt_w_divmod(wt_i64_abs(a), wt_i64_abs(b)).quotient;
  if ((a.y ^ b.y) >= 0x80000000u) { return wt_i64_neg(q); }
  return q;
}
""",
    "wt_i64_truncmod": """
fn wt_i64_truncmod(a: wt_i64, b: wt_i64) -> wt_i64 {
  if ((b.x | b.y) == 0u) { return b; }
  let r = wt_w_divmod(wt_i64_abs(a), wt_i64_abs(b)).rest;
  if (a.y >= 0x80000000u) { return wt_i64_neg(r); }
  return r;
}
""",
    "wt_i64_floordiv": """
fn wt_i64_floordiv(a: wt_i64, b: wt_i64) -> wt_i64 {
  if ((b.x | b.y) == 0u) { return b; }
  let parts = wt_w_divmod(wt_i64_abs(a), wt_i64_abs(b));
  if ((a.y ^ b.y) < 0x80000000u) { return parts.quotient; }
  let q = wt_i64_neg(parts.quotient);
  return wt_w_sub(q, vec2<u32>(select(0u, 1u, (parts.rest.x | parts.rest.y) != 0u), 0u));
}
""",
    "wt_i64_mod": """
fn wt_i64_mod(a: wt_i64, b: wt_i64) -> wt_i64 {
  let r = wt_i64_truncmod(a, b);
  if ((r.x | r.y) == 0u || ((r.y ^ b.y) < 0x80000000u)) { return r; }
  return wt_w_add(r, b);
}
""",
    "wt_i64_gcd": """
fn wt_i64_gcd(x: wt_i64, y: wt_i64) -> wt_i64 {
  var a = wt_i64_abs(x);
  var b = wt_i64_abs(y);
  while ((b.x | b.y) != 0u) {
    let r = wt_w_divmod(a, b).rest;
    a = b;
    b = r;
  }
  return a;
}
""",
    # What is not 1 or -1 is 0 or shifted out after 64 products.
    "wt_i64_pow": f"""
fn wt_i64_pow(a: wt_i64, b: wt_i64) -> wt_i64 {{
  let odd = (b.x & 1u) != 0u;
  if (wt_i64_eq(a, {_ONE})) {{ return a; }}
  if (wt_i64_eq(a, {_MINUS_ONE})) {{ return select({_ONE}, a, odd); }}
  if (b.y >= 0x80000000u) {{ return {_NOTHING}; }}
  var y = {_ONE};
  var square = a;
  var left = b;
  while ((left.x | left.y) != 0u) {{
    if ((left.x & 1u) != 0u) {{ y = wt_i64_mul(y, square); }}
    square = wt_i64_mul(square, square);
    left = wt_w_shr(left, 1u);
  }}
  return y;
}}
""",
    # -- comparisons
    "wt_i64_eq": _two("eq", "return all(a == b);", "bool"),
    "wt_i64_ne": _two("ne", "return any(a != b);", "bool"),
    "wt_i64_lt": _two(
        "lt",
        "return bitcast<i32>(a.y) < bitcast<i32>(b.y) || (a.y == b.y && a.x < b.x);",
        "bool",
    ),
    "wt_i64_le": _two("le", "return !wt_i64_lt(b, a);", "bool"),
    "wt_i64_max": _two("max", "return select(a, b, wt_i64_lt(a, b));"),
    "wt_i64_min": _two("min", "return select(b, a, wt_i64_lt(a, b));"),
    "wt_i64_not": _one("not", "return (a.x | a.y) == 0u;", "bool"),
    # Whether a later value and its place win.
    "wt_argmax_i64": """
fn wt_argmax_i64(a: wt_i64, i: i32, b: wt_i64, j: i32) -> bool {
  return wt_i64_lt(a, b) || (all(a == b) && j < i);
}
""",
    "wt_argmin_i64": """
fn wt_argmin_i64(a: wt_i64, i: i32, b: wt_i64, j: i32) -> bool {
  return wt_i64_lt(b, a) || (all(a == b) && j < i);
}
""",
    # -- bits
    "wt_i64_bitnot": _one("bitnot", "return ~a;"),
    "wt_i64_and": _two("and", "return a & b;"),
    "wt_i64_or": _two("or", "return a | b;"),
    "wt_i64_xor": _two("xor", "return a ^ b;"),
    "wt_i64_shl": _two(
        "shl",
        f"if (b.y != 0u || b.x > 63u) {{ return {_NOTHING}; }} return wt_w_shl(a, b.x);",
    ),
    "wt_i64_shr": """
fn wt_i64_shr(a: wt_i64, b: wt_i64) -> wt_i64 {
  let n = select(b.x, 63u, b.y != 0u || b.x > 63u);
  if (n == 0u) { return a; }
  let high = bitcast<i32>(a.y);
  if (n >= 32u) { return wt_i64(bitcast<u32>(high >> (n - 32u)), bitcast<u32>(high >> 31u)); }
  return wt_i64((a.x >> n) | (a.y << (32u - n)), bitcast<u32>(high >> n));
}
""",
    # -- conversions: to nearest, ties to even; floats beyond the type give its ends
    "wt_i64_from_i32": _call(
        "from_i32", "a: i32", KIND, "return wt_i64(bitcast<u32>(a), bitcast<u32>(a >> 31u));"
    ),
    "wt_i64_from_f32": f"""
fn wt_i64_from_f32(a: f32) -> wt_i64 {{
  let bits = bitcast<u32>(a);
  let e = i32((bits >> 23u) & 0xffu) - 127;
  let below = bits >= 0x80000000u;
  if (e < 0 || wt_isnan(a)) {{ return {_NOTHING}; }}
  if (e > 62) {{ return select({_MOST}, {_LEAST}, below); }}
  var whole = vec2<u32>((bits & 0x7fffffu) | 0x800000u, 0u);
  whole = wt_w_shr(wt_w_shl(whole, u32(max(e - 23, 0))), u32(max(23 - e, 0)));
  if (below) {{ return wt_i64_neg(whole); }}
  return whole;
}}
""",
    "wt_i64_from_f64": f"""
fn wt_i64_from_f64(a: vec2<u32>) -> wt_i64 {{
  let e = i32((a.y >> 20u) & 0x7ffu) - 1023;
  let below = a.y >= 0x80000000u;
  if (e < 0 || wt_f64_isnan(a)) {{ return {_NOTHING}; }}
  if (e > 62) {{ return select({_MOST}, {_LEAST}, below); }}
  var whole = vec2<u32>(a.x, (a.y & 0xfffffu) | 0x100000u);
  whole = wt_w_shr(wt_w_shl(whole, u32(max(e - 52, 0))), u32(max(52 - e, 0)));
  if (below) {{ return wt_i64_neg(whole); }}
  return whole;
}}
""",
    "wt_i64_to_f32": """
fn wt_i64_to_f32(a: wt_i64) -> f32 {
  let size = wt_i64_abs(a);
  if ((size.x | size.y) == 0u) { return 0f; }
  let n = wt_w_clz(size);
  let digits = wt_w_shl(size, n);
  let kept = digits.y >> 8u;
  let rest = digits.y & 0xffu;
  let up = rest > 0x80u || (rest == 0x80u && (digits.x != 0u || (kept & 1u) == 1u));
  let bits = ((190u - n) << 23u) + (kept & 0x7fffffu) + select(0u, 1u, up);
  return bitcast<f32>(bits | (a.y & 0x80000000u));
}
""",
    "wt_f64_from_i64": """
fn wt_f64_from_i64(a: wt_i64) -> wt_f64 {
  let size = wt_i64_abs(a);
  if ((size.x | size.y) == 0u) { return wt_f64(0u, 0u); }
  let n = wt_w_clz(size);
  let digits = wt_w_shr_sticky(wt_w_shl(size, n), 1u);
  return wt_f64_round_off(a.y & 0x80000000u, 1086 - i32(n), digits);
}
""",
}
