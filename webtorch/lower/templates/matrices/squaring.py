"""Squares of matrices, over and over, each as often as its own number says: the end of an exponential. Floor 2."""

from __future__ import annotations

from webtorch.ir.kernel import Host
from webtorch.ir.limits import Limits
from webtorch.lower.templates.matrices.blocks import Part, product
from webtorch.lower.templates.matrices.shader import Writer
from webtorch.lower.wgsl_shader import WgslPass

# How often at most: an even number.
MOST_SQUARES = 64


def _small(w: Writer, n: int) -> WgslPass:
    """Return the pass that squares in workgroup memory."""
    size = w.width(64 if n <= 16 else 256)
    body = f"""
for (var e = lid; e < {n * n}u; e = e + {size}u) {{
  now[e] = b0[group * {n * n}u + e];
}}
if (lid == 0u) {{
  times = u32(re(b1[group]));
}}
let last = workgroupUniformLoad(&times);
for (var t = 0u; t < last; t = t + 1u) {{
  for (var e = lid; e < {n * n}u; e = e + {size}u) {{
    let i = e / {n}u;
    let j = e % {n}u;
    var sum = num_of(0.0);
    for (var k = 0u; k < {n}u; k = k + 1u) {{
      sum = sum + mul(now[i * {n}u + k], now[k * {n}u + j]);
    }}
    next[e] = sum;
  }}
  workgroupBarrier();
  for (var e = lid; e < {n * n}u; e = e + {size}u) {{
    now[e] = next[e];
  }}
  workgroupBarrier();
}}
for (var e = lid; e < {n * n}u; e = e + {size}u) {{
  b2[group * {n * n}u + e] = now[e];
}}"""
    shared = [f"now: array<num, {n * n}>", f"next: array<num, {n * n}>", "times: u32"]
    return w.make(body, w.count, size, shared)


def squared(r: Host, limits: Limits) -> list[WgslPass]:
    """Return the passes: the matrices of the first input, squared as often as the second says."""
    w = Writer(r, limits)
    n = w.shapes[0][-1]
    if 2 * n * n <= w.room:
        return [_small(w, n)]
    w.ask(w.count * n * n)
    place = f"[b * {n * n}u + $i * {n}u + $j]"
    passes = [w.elements("b2[id] = b0[id];", w.count * n * n)]
    # Those that are squared less often begin later, so that all end in the same memory.
    begin = f"({MOST_SQUARES}u - u32(re(b1[b])))"
    for turn in range(MOST_SQUARES):
        source, target = ("b2", "scratch0") if turn % 2 == 0 else ("scratch0", "b2")
        x = Part(f"select({source}{place}, b0{place}, fresh)")
        passes.append(
            product(
                w, x, x, Part(target + place), n, n, n, {"turn": turn},
                sign="", skip=f"at.turn < {begin}", before=f"let fresh = at.turn == {begin};",
            )
        )  # fmt: skip
    return passes
