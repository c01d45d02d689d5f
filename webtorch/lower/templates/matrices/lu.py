"""LU factors with partial pivoting: LAPACK's getrf, blocks of columns from the left. Floor 2.

Results: the factors in one matrix, pivots counted from 1, info: the first column without a pivot, else 0.
"""

from __future__ import annotations

from webtorch.ir.kernel import Host
from webtorch.ir.limits import Limits
from webtorch.lower.templates.matrices.blocks import BLOCK, Part, in_workgroup, product
from webtorch.lower.templates.matrices.shader import Writer, sought
from webtorch.lower.wgsl_shader import WgslPass


class _LU:
    """Writes the passes of one factorisation."""

    def __init__(self, r: Host, limits: Limits) -> None:
        self.w = Writer(r, limits)
        (self.pivots,) = r.params
        self.m, self.n = self.w.shapes[0][1:]
        self.k = min(self.m, self.n)
        self.out = self.w.out
        self.pivots_at = self.w.count * self.m * self.n
        self.info_at = self.pivots_at + self.w.count * self.k

    def small(self) -> WgslPass:
        """Return the pass that factors whole matrices in workgroup memory."""
        m, n = self.m, self.n

        def columns(size: int, at: Part) -> str:
            """Return the text that factors the columns."""
            wait = "workgroupBarrier();"
            return self.columns(size, at, wait, f"{n}u", f"{self.k}u", "0u", f"{m}u", n)

        return in_workgroup(self.w, m, n, columns, self.shared)

    def shared(self, size: int) -> list[str]:
        """Return the workgroup memory in which a pivot is sought."""
        return [f"keys: array<u32, {size}>", f"places: array<u32, {size}>"]

    def panel(self, begin: int) -> WgslPass:
        """Return the pass that factors a block of columns, of all rows from the diagonal down."""
        m, n = self.m, self.n
        width = min(BLOCK, self.k - begin)
        rows = m - begin
        size = self.w.width(256)
        at = Part(f"{self.out}[base + $i * {n}u + $j]")
        wait = "storageBarrier();\nworkgroupBarrier();"
        body = f"""
let base = group * {m * n}u + at.begin * {n + 1}u;
{self.columns(size, at, wait, "at.width", "at.width", "at.begin", "at.rows", BLOCK)}"""
        numbers = {"begin": begin, "width": width, "rows": rows}
        return self.w.make(body, self.w.count, size, self.shared(size), numbers)

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
    ) -> str:
        """Return the elimination of `steps` columns of a block that is `width` wide and `rows` tall.

        `at` gives the text of an element; `begin` is the block's first column in the matrix.
        """
        # Invocations side by side have columns side by side.
        lanes = min(1 << max(most - 1, 0).bit_length(), 32, size)
        search = f"""
  var key = 0u;
  var place = j;
  for (var i = j + lid; i < {rows}; i = i + {size}u) {{
    let own = bits_of(pivot_size({at("i", "j")}));
    if (own > key) {{
      key = own;
      place = i;
    }}
  }}
  {sought(size)}
  let p = places[0];
  for (var c = lid; c < {width}; c = c + {size}u) {{
    let x = {at("j", "c")};
    let y = {at("p", "c")};
    {at("j", "c")} = y;
    {at("p", "c")} = x;
  }}
  {wait}"""
        return f"""
var failed = 0u;
for (var j = 0u; j < {steps}; j = j + 1u) {{{search if self.pivots else "  let p = j;"}
  let pivot = {at("j", "j")};
  if (lid == 0u) {{
    {self.out}[{self.pivots_at}u + group * {self.k}u + {begin} + j] = num_of(f32({begin} + p + 1u));
  }}
  if (is_zero(pivot)) {{
    if (failed == 0u) {{
      failed = {begin} + j + 1u;
    }}
  }} else {{
    for (var i = j + 1u + lid; i < {rows}; i = i + {size}u) {{
      {at("i", "j")} = over({at("i", "j")}, pivot);
    }}
  }}
  {wait}
  for (var i = j + 1u + lid / {lanes}u; i < {rows}; i = i + {size // lanes}u) {{
    let factor = {at("i", "j")};
    for (var c = j + 1u + lid % {lanes}u; c < {width}; c = c + {lanes}u) {{
      {at("i", "c")} = {at("i", "c")} - mul(factor, {at("j", "c")});
    }}
  }}
  {wait}
}}
if (lid == 0u && ({begin} == 0u || (failed != 0u && re({self.out}[{self.info_at}u + group]) == 0.0))) {{
  {self.out}[{self.info_at}u + group] = num_of(f32(failed));
}}"""

    def beside(self, begin: int, width: int) -> WgslPass:
        """Return the pass that brings a block's swaps to the other columns, and solves its rows to the right."""
        m, n = self.m, self.n

        def x(i: str) -> str:
            """Return the text of row `i` of a column."""
            return f"{self.out}[base + ({i}) * {n}u + c]"

        body = f"""
  let b = id / {n}u;
  let c = id % {n}u;
  if (c < at.begin || c >= at.begin + at.width) {{
    let base = b * {m * n}u;
    for (var i = at.begin; i < at.begin + at.width; i = i + 1u) {{
      let p = u32(re({self.out}[{self.pivots_at}u + b * {self.k}u + i])) - 1u;
      let y = {x("i")};
      {x("i")} = {x("p")};
      {x("p")} = y;
    }}
    if (c >= at.begin) {{
      for (var i = at.begin + 1u; i < at.begin + at.width; i = i + 1u) {{
        var value = {x("i")};
        for (var k = at.begin; k < i; k = k + 1u) {{
          value = value - mul({self.out}[base + i * {n}u + k], {x("k")});
        }}
        {x("i")} = value;
      }}
    }}
  }}"""
        return self.w.elements(body, self.w.count * n, {"begin": begin, "width": width})

    def passes(self) -> list[WgslPass]:
        """Return all passes."""
        m, n, w, out = self.m, self.n, self.w, self.out
        if m * n <= w.room:
            return [self.small()]
        passes = [w.elements(f"{out}[id] = b0[id];", w.count * m * n)]

        block = Part(f"{out}[b * {m * n}u + (at.begin + $i) * {n}u + at.begin + $j]")
        below, right = block.from_("at.depth", "0u"), block.from_("0u", "at.depth")
        corner = block.from_("at.depth", "at.depth")
        for begin in range(0, self.k, BLOCK):
            width = min(BLOCK, self.k - begin)
            passes += [self.panel(begin), self.beside(begin, width)]
            rows, columns = m - begin - width, n - begin - width
            if rows and columns:
                numbers = {"begin": begin}
                passes.append(product(w, below, right, corner, rows, columns, width, numbers))
        return passes


def lu_factor(r: Host, limits: Limits) -> list[WgslPass]:
    """Return the passes: (packed factors, pivots counted from 1, info)."""
    return _LU(r, limits).passes()
