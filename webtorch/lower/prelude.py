"""WGSL helper functions, and the home of every trap of the shading language. Floor 2; standard
library only.

A helper is text under a name; a shader gets the helpers that it names, with what those need. Facts
behind the odd ones:

* `x != x` may be folded to false, and max/min/clamp may drop NaN: NaN is found by bits and
propagated by hand.
* Infinity and NaN cannot be written as constant expressions (gpuweb/gpuweb#2311; Chromium refuses
the bitcast of a
  constant), so they come from private variables, which no front end may treat as constants.
* Compilers reassociate float arithmetic: (a + b) - a may become b. Error terms are therefore split
off by masking bits.
* float to int conversion and integer division by zero are engine-defined: both are guarded.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from webtorch.lower import wide, wide_integer

HELPERS: dict[str, str] = {
    "wt_inf": """
var<private> wt_inf_bits: u32 = 0x7f800000u;
fn wt_inf() -> f32 { return bitcast<f32>(wt_inf_bits); }
""",
    "wt_nan": """
var<private> wt_nan_bits: u32 = 0x7fc00000u;
fn wt_nan() -> f32 { return bitcast<f32>(wt_nan_bits); }
""",
    "wt_isnan": """
fn wt_isnan(x: f32) -> bool { return (bitcast<u32>(x) & 0x7fffffffu) > 0x7f800000u; }
""",
    "wt_isinf": """
fn wt_isinf(x: f32) -> bool { return (bitcast<u32>(x) & 0x7fffffffu) == 0x7f800000u; }
""",
    "wt_max": """
fn wt_max(a: f32, b: f32) -> f32 { return select(select(max(a, b), b, wt_isnan(b)), a, wt_isnan(a));
}
""",
    "wt_min": """
fn wt_min(a: f32, b: f32) -> f32 { return select(select(min(a, b), b, wt_isnan(b)), a, wt_isnan(a));
}
""",
    # The second operand is known to be a number.
    "wt_max_number": """
fn wt_max_number(x: f32, c: f32) -> f32 { return select(max(x, c), x, wt_isnan(x)); }
""",
    "wt_min_number": """
fn wt_min_number(x: f32, c: f32) -> f32 { return select(min(x, c), x, wt_isnan(x)); }
""",
    # A comparison with NaN must be false and its negation true, also after the compiler has flipped
    # it.
    "wt_ne": """
fn wt_ne(a: f32, b: f32) -> bool { return a != b || wt_isnan(a) || wt_isnan(b); }
""",
    "wt_not_lt": """
fn wt_not_lt(a: f32, b: f32) -> bool { return a >= b || wt_isnan(a) || wt_isnan(b); }
""",
    "wt_not_le": """
fn wt_not_le(a: f32, b: f32) -> bool { return a > b || wt_isnan(a) || wt_isnan(b); }
""",
    "wt_sign": """
fn wt_sign(x: f32) -> f32 { return select(0f, 1f, x > 0f) - select(0f, 1f, x < 0f); }
""",
    "wt_copysign": """
fn wt_copysign(x: f32, y: f32) -> f32 {
  return bitcast<f32>((bitcast<u32>(x) & 0x7fffffffu) | (bitcast<u32>(y) & 0x80000000u));
}
""",
    "wt_f32_to_i32": """
fn wt_f32_to_i32(x: f32) -> i32 {
  if (wt_isnan(x)) { return 0; }
  if (x >= 2147483648f) { return 2147483647; }
  if (x <= -2147483648f) { return bitcast<i32>(0x80000000u); }
  return i32(x);
}
""",
    "wt_f32_to_u32": """
fn wt_f32_to_u32(x: f32) -> u32 {
  if (x >= 4294967296f) { return 0xffffffffu; }
  if (x >= 2147483648f) { return u32(x); }
  return bitcast<u32>(wt_f32_to_i32(x));
}
""",
    "wt_i32_div": """
fn wt_i32_div(a: i32, b: i32) -> i32 {
  if (b == 0) { return 0; }
  if (b == -1) { return 0 - a; }
  return a / b;
}
""",
    "wt_i32_rem": """
fn wt_i32_rem(a: i32, b: i32) -> i32 {
  if (b == 0 || b == -1) { return 0; }
  return a - (a / b) * b;
}
""",
    "wt_i32_floordiv": """
fn wt_i32_floordiv(a: i32, b: i32) -> i32 {
  let r = wt_i32_rem(a, b);
  return wt_i32_div(a, b) - select(0, 1, r != 0 && (r < 0) != (b < 0));
}
""",
    "wt_i32_mod": """
fn wt_i32_mod(a: i32, b: i32) -> i32 {
  let r = wt_i32_rem(a, b);
  return r + select(0, b, r != 0 && (r < 0) != (b < 0));
}
""",
    # By positive constants: nothing to branch on.
    "wt_i32_remby": """
fn wt_i32_remby(a: i32, b: i32) -> i32 { return a - (a / b) * b; }
""",
    "wt_i32_floordivby": """
fn wt_i32_floordivby(a: i32, b: i32) -> i32 {
  let q = a / b;
  return q - select(0, 1, a < q * b);
}
""",
    "wt_i32_modby": """
fn wt_i32_modby(a: i32, b: i32) -> i32 {
  let r = a - (a / b) * b;
  return r + select(0, b, r < 0);
}
""",
    "wt_u32_div": """
fn wt_u32_div(a: u32, b: u32) -> u32 {
  if (b == 0u) { return 0u; }
  return a / b;
}
""",
    "wt_u32_rem": """
fn wt_u32_rem(a: u32, b: u32) -> u32 {
  if (b == 0u) { return 0u; }
  return a % b;
}
""",
    "wt_u32_gcd": """
fn wt_u32_gcd(x: u32, y: u32) -> u32 {
  var a = x;
  var b = y;
  while (b != 0u) {
    let r = a % b;
    a = b;
    b = r;
  }
  return a;
}
""",
    # Powers by squaring, as PyTorch: a negative exponent gives 0 except for the bases 1 and -1.
    "wt_u32_pow": """
fn wt_u32_pow(a: u32, b: u32) -> u32 {
  var base = a;
  var e = b;
  var r = 1u;
  while (e != 0u) {
    if ((e & 1u) != 0u) { r = r * base; }
    base = base * base;
    e = e >> 1u;
  }
  return r;
}
""",
    "wt_i32_pow": """
fn wt_i32_pow(a: i32, b: i32) -> i32 {
  if (b < 0) {
    if (a == 1) { return 1; }
    if (a == -1) { return select(1, -1, (b & 1) != 0); }
    return 0;
  }
  return bitcast<i32>(wt_u32_pow(bitcast<u32>(a), u32(b)));
}
""",
    # Exact remainder with the dividend's sign: long division on the significands, eight quotient
    # bits at a time. `a - b * trunc(a / b)`, what `%` does, is wrong once the quotient needs
    # rounding.
    "wt_fmod": """
fn wt_fmod(x: f32, y: f32) -> f32 {
  let ux = bitcast<u32>(x) & 0x7fffffffu;
  let uy = bitcast<u32>(y) & 0x7fffffffu;
  if (ux >= 0x7f800000u || uy > 0x7f800000u || uy == 0u) { return wt_nan(); }
  if (ux < uy) { return x; }
  var ex = i32(ux >> 23u);
  var mx = ux & 0x7fffffu;
  if (ex == 0) { ex = 1; } else { mx = mx | 0x800000u; }
  var ey = i32(uy >> 23u);
  var my = uy & 0x7fffffu;
  if (ey == 0) { ey = 1; } else { my = my | 0x800000u; }
  var d = ex - ey;
  mx = mx % my;
  while (d > 0) {
    let step = min(d, 8);
    mx = (mx << u32(step)) % my;
    d = d - step;
  }
  var bits = 0u;
  if (mx != 0u) {
    var e = ey;
    let shift = min(i32(countLeadingZeros(mx)) - 8, e - 1);
    mx = mx << u32(shift);
    e = e - shift;
    if (mx >= 0x800000u) { bits = (u32(e) << 23u) | (mx & 0x7fffffu); } else { bits = mx; }
  }
  return bitcast<f32>(bits | (bitcast<u32>(x) & 0x80000000u));
}
""",
    "wt_mod": """
fn wt_mod(x: f32, y: f32) -> f32 {
  let r = wt_fmod(x, y);
  return select(r, r + y, r != 0f && (r < 0f) != (y < 0f));
}
""",
    "wt_floordiv": """
fn wt_floordiv(x: f32, y: f32) -> f32 {
  if (y == 0f || wt_isnan(x) || wt_isnan(y)) { return x / y; }
  let r = wt_fmod(x, y);
  var q = (x - r) / y;
  if (r != 0f && (y < 0f) != (r < 0f)) { q = q - 1f; }
  if (q == 0f) { return wt_copysign(0f, x / y); }
  let f = floor(q);
  return select(f, f + 1f, q - f > 0.5f);
}
""",
    # A quotient that is a whole number must not be missed because the division was a little off.
    "wt_truncdiv": """
fn wt_truncdiv(x: f32, y: f32) -> f32 {
  let q = x / y;
  return select(trunc(q), round(q), wt_fmod(x, y) == 0f);
}
""",
    "wt_shl": """
fn wt_shl(a: u32, b: u32) -> u32 { return select(a << (b & 31u), 0u, b > 31u); }
""",
    "wt_shr_u32": """
fn wt_shr_u32(a: u32, b: u32) -> u32 { return select(a >> (b & 31u), 0u, b > 31u); }
""",
    "wt_shr_i32": """
fn wt_shr_i32(a: i32, b: i32) -> i32 { return a >> min(bitcast<u32>(b), 31u); }
""",
    # Storage formats. Round to nearest even; NaN stays NaN. Written with bits, since pack2x16float
    # may round otherwise and adapters may flush subnormal halves.
    "wt_to_bf16": """
fn wt_to_bf16(x: f32) -> u32 {
  let b = bitcast<u32>(x);
  return select((b + 0x7fffu + ((b >> 16u) & 1u)) >> 16u, 0x7fc0u, wt_isnan(x));
}
""",
    "wt_to_f16": """
fn wt_to_f16(x: f32) -> u32 {
  let b = bitcast<u32>(x);
  let a = b & 0x7fffffffu;
  let sign = (b >> 16u) & 0x8000u;
  if (a > 0x7f800000u) { return sign | 0x7e00u; }
  if (a >= 0x47800000u) { return sign | 0x7c00u; }
  if (a < 0x38800000u) { return sign | u32(round(bitcast<f32>(a) * 16777216f)); }
  return sign | ((a - 0x38000000u + 0xfffu + ((a >> 13u) & 1u)) >> 13u);
}
""",
    "wt_from_f16": """
fn wt_from_f16(h: u32) -> f32 {
  let sign = (h & 0x8000u) << 16u;
  let a = h & 0x7fffu;
  if (a < 0x400u) { return bitcast<f32>(bitcast<u32>(f32(a) * 5.9604644775390625e-8f) | sign); }
  return bitcast<f32>(sign | ((a << 13u) + select(0x38000000u, 0x70000000u, a >= 0x7c00u)));
}
""",
    # The order of argmax and argmin: NaN is the extreme, the first position wins.
    "wt_argmax_f32": """
fn wt_argmax_f32(a: f32, ap: i32, b: f32, bp: i32) -> bool {
  let an = wt_isnan(a);
  let bn = wt_isnan(b);
  if (an || bn) { return bn && (!an || bp < ap); }
  return b > a || (b == a && bp < ap);
}
""",
    "wt_argmin_f32": """
fn wt_argmin_f32(a: f32, ap: i32, b: f32, bp: i32) -> bool {
  let an = wt_isnan(a);
  let bn = wt_isnan(b);
  if (an || bn) { return bn && (!an || bp < ap); }
  return b < a || (b == a && bp < ap);
}
""",
    # Philox4x32-10 (Salmon, Moraes, Dror, Shaw: Parallel random numbers: as easy as 1, 2, 3, SC
    # 2011). WGSL has no 32x32 -> 64 bit product, so the high word is put together from 16-bit
    # halves.
    "wt_mulhi": """
fn wt_mulhi(a: u32, b: u32) -> u32 {
  let al = a & 0xffffu;
  let ah = a >> 16u;
  let bl = b & 0xffffu;
  let bh = b >> 16u;
  let low = al * bl;
  let mid = ah * bl + (low >> 16u);
  let mid2 = al * bh + (mid & 0xffffu);
  return ah * bh + (mid >> 16u) + (mid2 >> 16u);
}
""",
    # The bound of the loop is 10, in a form that compilers cannot see through: unrolled with a uniform
    # counter, Mesa 22.3's range analysis takes exponential time.
    "wt_philox": """
fn wt_philox(seed_low: u32, seed_high: u32, counter_low: u32, counter_high: u32) -> vec4<u32> {
  var c = vec4<u32>(counter_low, counter_high, 0u, 0u);
  var k0 = seed_low;
  var k1 = seed_high;
  for (var i = 0u; i < min(10u, seed_low | 10u); i = i + 1u) {
    let h0 = wt_mulhi(0xD2511F53u, c.x);
    let l0 = 0xD2511F53u * c.x;
    let h1 = wt_mulhi(0xCD9E8D57u, c.z);
    let l1 = 0xCD9E8D57u * c.z;
    c = vec4<u32>(h1 ^ c.y ^ k0, l1, h0 ^ c.w ^ k1, l0);
    k0 = k0 + 0x9E3779B9u;
    k1 = k1 + 0xBB67AE85u;
  }
  return c;
}
""",
}

_NAME = re.compile(r"\bwt_[a-z0-9_]+\b")


def needed(texts: Iterable[str], extra: dict[str, str] | None = None) -> str:
    """Return the helpers that `texts` name, and those that these need, each before its users.

    `extra` adds helpers to the table, such as the accurate functions that the renderer writes.
    """
    table = HELPERS | wide.HELPERS | wide_integer.HELPERS | (extra or {})
    out: list[str] = []
    seen: set[str] = set()

    def visit(name: str) -> None:
        """Add a helper after those that it uses."""
        if name in seen or name not in table:
            return
        seen.add(name)
        for other in sorted(set(_NAME.findall(table[name]))):
            if other != name:
                visit(other)
        out.append(table[name].strip())

    for text in texts:
        for name in sorted(set(_NAME.findall(text))):
            visit(name)
    return "\n".join(out)


# The scalar functions that have a loop, by their names in expressions: a remainder that is cut is `fmod`.
LOOPING = frozenset(
    [n.rpartition("_")[2] for n in HELPERS if "while (" in needed([n])] + ["truncmod"]
)
