"""QR factors: LAPACK's geqrf. Columns are reduced by Householder reflections, and a block of them meets the columns to
the right as I - V T V^H (Schreiber and Van Loan, 1989). Floor 2.

Results: R above the vectors in one matrix, and their factors tau.
"""

from __future__ import annotations

from webtorch.ir.kernel import Host
from webtorch.ir.limits import Limits
from webtorch.lower.templates.matrices.blocks import BLOCK, Part, in_workgroup, product
from webtorch.lower.templates.matrices.shader import Writer, combined
from webtorch.lower.wgsl_shader import WgslPass


class _QR:
    """Writes the passes of one factorisation."""

    def __init__(self, r: Host, limits: Limits) -> None:
        self.w = Writer(r, limits)
        self.m, self.n = self.w.shapes[0][1:]
        self.k = min(self.m, self.n)
        self.out = self.w.out
        self.tau_at = self.w.count * self.m * self.n

    def small(self) -> WgslPass:
        """Return the pass that factors whole matrices in workgroup memory."""
        m, n = self.m, self.n

        def columns(size: int, at: Part) -> str:
            """Return the text that factors some columns."""
            wait = "workgroupBarrier();"
            return self.columns(size, at, wait, f"{n}u", f"{self.k}u", "0u", f"{m}u", n, "")

        return in_workgroup(self.w, m, n, columns, self.shared)

    def shared(self, size: int) -> list[str]:
        """Return the workgroup memory in which columns are summed."""
        return [f"sums: array<f32, {size}>", f"dots: array<num, {size}>"]

    def panel(self, begin: int) -> WgslPass:
        """Return the pass that reduces a block of columns, and leaves V in scratch0 and T in scratch1."""
        m, n = self.m, self.n
        size = self.w.width(256)
        at = Part(f"{self.out}[base + $i * {n}u + $j]")
        wait = "storageBarrier();\nworkgroupBarrier();"
        # T (i, j) = -tau_j sum over k of T (i, k) v_k^H v_j, of which the products are in `dots`.
        triangle = f"""
  if (lid < j) {{
    around[lid] = conj(dots[lid]);
  }}
  workgroupBarrier();
  if (lid < j) {{
    var sum = num_of(0.0);
    for (var s = lid; s < j; s = s + 1u) {{
      sum = sum + mul(triangle[lid * {BLOCK}u + s], around[s]);
    }}
    triangle[lid * {BLOCK}u + j] = -mul(tau, sum);
  }} else if (lid < {BLOCK}u) {{
    triangle[lid * {BLOCK}u + j] = select(num_of(0.0), tau, lid == j);
  }}
  workgroupBarrier();"""
        body = f"""
let base = group * {m * n}u + at.begin * {n + 1}u;
{self.columns(size, at, wait, "at.width", "at.width", "at.begin", "at.rows", BLOCK, triangle)}
for (var e = lid; e < at.rows * {BLOCK}u; e = e + {size}u) {{
  let i = e / {BLOCK}u;
  let j = e % {BLOCK}u;
  var v = num_of(select(0.0, 1.0, i == j));
  if (i > j && j < at.width) {{
    v = {at("i", "j")};
  }}
  scratch0[group * {m * BLOCK}u + e] = v;
}}
for (var e = lid; e < {BLOCK * BLOCK}u; e = e + {size}u) {{
  let inside = e / {BLOCK}u < at.width && e % {BLOCK}u < at.width;
  scratch1[group * {BLOCK * BLOCK}u + e] = select(num_of(0.0), triangle[e], inside);
}}"""
        shared = [
            *self.shared(size), f"triangle: array<num, {BLOCK * BLOCK}>", f"around: array<num, {BLOCK}>",
        ]  # fmt: skip
        width = min(BLOCK, self.k - begin)
        numbers = {"begin": begin, "width": width, "rows": m - begin}
        return self.w.make(body, self.w.count, size, shared, numbers)

    def columns(
        self,
        size: int,
        at: Part,
        wait: str,
        width: str,
        steps: str,
        begin: str,
        rows: str,
        most: int,
        after: str,
    ) -> str:
        """Return the reduction of `steps` columns of a block that is `width` wide and `rows` tall.

        `after` follows each column; it finds v_c^H v of the columns c before it in `dots`.
        """
        lanes = min(1 << max(most - 1, 0).bit_length(), 32, size)
        tall = size // lanes
        largest = combined("most", "own", "max(x, y)", size)
        squares = combined("rest", "own", "x + y", size)
        complex_ = self.w.complex
        # beta is real, with the sign that adds to the first element's real part.
        tau = (
            "num((beta - alpha.x) / beta, -alpha.y / beta)" if complex_ else "(beta - alpha) / beta"
        )
        alone = "alpha.y == 0.0" if complex_ else "true"
        return f"""
for (var j = 0u; j < {steps}; j = j + 1u) {{
  let alpha = {at("j", "j")};
  var own = 0.0;
  for (var i = j + 1u + lid; i < {rows}; i = i + {size}u) {{
    own = max(own, largest({at("i", "j")}));
  }}
  {largest}
  // Scaled by a power of two, no square overflows.
  let e = exponent(max(most, largest(alpha)));
  let small = power_of(254u - e);
  own = 0.0;
  for (var i = j + 1u + lid; i < {rows}; i = i + {size}u) {{
    own = own + square({at("i", "j")} * small);
  }}
  {squares}
  var tau = num_of(0.0);
  if (rest != 0.0 || !({alone})) {{
    let length = sqrt(rest + square(alpha * small)) * power_of(e);
    let beta = select(-length, length, re(alpha) < 0.0);
    tau = {tau};
    let inverse = over(num_of(1.0), (alpha - num_of(beta)) * small) * small;
    for (var i = j + 1u + lid; i < {rows}; i = i + {size}u) {{
      {at("i", "j")} = mul({at("i", "j")}, inverse);
    }}
    if (lid == 0u) {{
      {at("j", "j")} = num_of(beta);
    }}
  }}
  if (lid == 0u) {{
    {self.out}[{self.tau_at}u + group * {self.k}u + {begin} + j] = tau;
  }}
  {wait}
  let lane = lid % {lanes}u;
  let tier = lid / {lanes}u;
  for (var first = 0u; first < {width}; first = first + {lanes}u) {{
    let c = first + lane;
    var dot = num_of(0.0);
    if (c < {width} && c != j{"" if after else " && c > j"}) {{
      if (tier == 0u) {{
        dot = {at("j", "c")};
      }}
      for (var i = j + 1u + tier; i < {rows}; i = i + {tall}u) {{
        dot = dot + mul(conj({at("i", "j")}), {at("i", "c")});
      }}
    }}
    dots[lid] = dot;
    workgroupBarrier();
    for (var half = {tall // 2}u; half > 0u; half = half >> 1u) {{
      if (tier < half) {{
        dots[lid] = dots[lid] + dots[lid + half * {lanes}u];
      }}
      workgroupBarrier();
    }}
    if (c < {width} && c > j) {{
      let scale = mul(conj(tau), dots[lane]);
      if (tier == 0u) {{
        {at("j", "c")} = {at("j", "c")} - scale;
      }}
      for (var i = j + 1u + tier; i < {rows}; i = i + {tall}u) {{
        {at("i", "c")} = {at("i", "c")} - mul({at("i", "j")}, scale);
      }}
    }}
    {wait}
  }}{after}
}}"""

    def passes(self) -> list[WgslPass]:
        """Return all passes."""
        m, n, w, out = self.m, self.n, self.w, self.out
        if m * n <= w.room:
            return [self.small()]
        w.ask(
            w.count * m * BLOCK, w.count * BLOCK * BLOCK, w.count * BLOCK * n, w.count * BLOCK * n
        )
        v = Part(f"scratch0[b * {m * BLOCK}u + $i * {BLOCK}u + $j]")
        t = Part(f"scratch1[b * {BLOCK * BLOCK}u + $i * {BLOCK}u + $j]")
        x = Part(f"scratch2[b * {BLOCK * n}u + $i * {n}u + $j]")
        y = Part(f"scratch3[b * {BLOCK * n}u + $i * {n}u + $j]")
        right = Part(f"{out}[b * {m * n}u + (at.begin + $i) * {n}u + at.first + $j]")
        passes = [w.elements(f"{out}[id] = b0[id];", w.count * m * n)]
        for begin in range(0, self.k, BLOCK):
            width = min(BLOCK, self.k - begin)
            passes.append(self.panel(begin))
            rows, columns = m - begin, n - begin - width
            if columns:
                numbers = {"begin": begin, "first": begin + width}
                # C - V T^H (V^H C).
                passes += [
                    product(w, v.adjoint, right, x, width, columns, rows, numbers, sign=""),
                    product(w, t.adjoint, x, y, width, columns, width, numbers, sign=""),
                    product(w, v, y, right, rows, columns, width, numbers),
                ]
        return passes


def geqrf(r: Host, limits: Limits) -> list[WgslPass]:
    """Return the passes: (packed R and vectors, tau)."""
    return _QR(r, limits).passes()
