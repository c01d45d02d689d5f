"""Factors L D L^T of symmetric matrices, and L D L^H of Hermitian ones, with Bunch and Kaufman's pivots: LAPACK's sytrf
and hetrf of the lower triangle, blocks of columns from the left. Floor 2.

Results: L and D in one matrix, pivots counted from 1 (a pair of equal negative ones marks a block of two), info: the
first column that is zero, else 0.

A column is brought up to date when it is looked at, from the columns of L D (`held`) before it: which row and column
are swapped follows from two columns, and where a block of columns ends from the pivots.
"""

from __future__ import annotations

import math

from webtorch.ir.kernel import Host
from webtorch.ir.limits import Limits
from webtorch.lower.templates.matrices.blocks import BLOCK, Part, in_workgroup, product
from webtorch.lower.templates.matrices.shader import Writer, sought
from webtorch.lower.wgsl_shader import WgslPass

# Bunch and Kaufman, 1977: the growth of two steps with one column is that of one with two.
_ALPHA = (1 + math.sqrt(17)) / 8


class _LDL:
    """Writes the passes of one factorisation.

    Scratch memory: 0 the block's columns of L D; 1 for each matrix, where its blocks begin.
    """

    def __init__(self, r: Host, limits: Limits) -> None:
        self.w = w = Writer(r, limits)
        (hermitian,) = r.params
        self.turned = "conj" if hermitian and w.complex else ""
        self.n = w.shapes[0][-1]
        self.pivots_at = w.count * self.n * self.n
        self.info_at = self.pivots_at + w.count * self.n
        # A block of two columns may begin one before its last.
        self.blocks = -(-self.n // (BLOCK - 1))

    def real(self, x: str) -> str:
        """Return the text of a number on the diagonal."""
        return f"of_real(re({x}))" if self.turned else x

    def pivot(self, matrix: str, j: str) -> str:
        """Return the text of a pivot as a number of the matrix's type."""
        return f"{self.w.out}[{self.pivots_at}u + {matrix} * {self.n}u + {j}]"

    def passes(self) -> list[WgslPass]:
        """Return all passes."""
        w, n, out = self.w, self.n, self.w.out
        if 2 * n * n <= w.room:
            return [self.small()]
        w.ask(w.count * n * BLOCK, w.count * (self.blocks + 1), types=("num", "u32"))
        start = f"""
  let i = (id / {n}u) % {n}u;
  let j = id % {n}u;
  let x = select(num_of(0.0), b0[id], j <= i);
  {out}[id] = select(x, {self.real("x")}, i == j);
  if (id < {w.count}u) {{
    scratch1[id * {self.blocks + 1}u] = 0u;
    {out}[{self.info_at}u + id] = num_of(0.0);
  }}"""
        passes = [w.elements(start, w.count * n * n)]
        left = Part(f"{out}[b * {n * n}u + (at.begin + $i) * {n}u + begin + $j]")
        right = Part(f"{self.turned}(scratch0[b * {n * BLOCK}u + (at.begin + $j) * {BLOCK}u + $i])")
        corner = Part(f"{out}[b * {n * n}u + (at.begin + $i) * {n}u + at.begin + $j]")
        before = f"""
let begin = scratch1[b * {self.blocks + 1}u + at.block];
let end = scratch1[b * {self.blocks + 1}u + at.block + 1u];"""
        for block in range(self.blocks):
            passes.append(self.panel(block))
            # What follows begins here at the earliest.
            begin = (block + 1) * (BLOCK - 1)
            if rest := max(n - begin, 0):
                passes.append(
                    product(
                        w, left, right, corner, rest, rest, BLOCK, {"begin": begin, "block": block},
                        only="$j <= $i && at.begin + $j >= end", skip="j0 > i0 + 15u", before=before,
                        until="end - begin",
                    )
                )  # fmt: skip
        last = f"""
  let b = id / {n}u;
  let c = id % {n}u;
  var block = 1u;
  while (scratch1[b * {self.blocks + 1}u + block] <= c) {{
    block = block + 1u;
  }}
  let end = scratch1[b * {self.blocks + 1}u + block];
  {self.unswapped(Part(f"{out}[b * {n * n}u + $i * {n}u + $j]"), "b")}"""
        return [*passes, w.elements(last, w.count * n)]

    def small(self) -> WgslPass:
        """Return the pass that factors whole matrices in workgroup memory."""
        n = self.n

        def columns(size: int, at: Part) -> str:
            """Return the factorisation of the matrix at `at`."""
            held = Part(f"held[$i * {n}u + $j]")
            return f"""
for (var e = lid; e < {n * n}u; e = e + {size}u) {{
  let i = e / {n}u;
  let j = e % {n}u;
  let x = select(num_of(0.0), tile[e], j <= i);
  tile[e] = select(x, {self.real("x")}, i == j);
}}
let begin = 0u;
workgroupBarrier();
{self.columns(size, at, held, "workgroupBarrier();", n)}
if (lid == 0u) {{
  {self.w.out}[{self.info_at}u + group] = num_of(f32(failed));
}}
let end = next;
storageBarrier();
workgroupBarrier();
for (var c = lid; c < {n}u; c = c + {size}u) {{
  {self.unswapped(at, "group")}
}}
workgroupBarrier();"""

        def shared(size: int) -> list[str]:
            """Return the workgroup memory: all of L D, and what a pivot asks for."""
            return [f"held: array<num, {n * n}>", *self.shared(size)]

        return in_workgroup(self.w, n, n, columns, shared)

    def shared(self, size: int) -> list[str]:
        """Return the workgroup memory in which a pivot is sought."""
        return [f"keys: array<u32, {size}>", f"places: array<u32, {size}>"]

    def panel(self, block: int) -> WgslPass:
        """Return the pass that factors a block of columns, of all rows from the diagonal down."""
        n, out = self.n, self.w.out
        size = self.w.width(256)
        at = Part(f"{out}[group * {n * n}u + $i * {n}u + $j]")
        held = Part(f"scratch0[group * {n * BLOCK}u + $i * {BLOCK}u + $j]")
        body = f"""
let begin = scratch1[group * {self.blocks + 1}u + at.block];
{self.columns(size, at, held, "storageBarrier();" + chr(10) + "workgroupBarrier();", BLOCK - 1)}
if (lid == 0u) {{
  scratch1[group * {self.blocks + 1}u + at.block + 1u] = next;
  if (failed != 0u && re({out}[{self.info_at}u + group]) == 0.0) {{
    {out}[{self.info_at}u + group] = num_of(f32(failed));
  }}
}}"""
        return self.w.make(body, self.w.count, size, self.shared(size), {"block": block})

    def column(self, size: int, at: Part, held: Part, of: str, into: str, given: str) -> str:
        """Return the lines that bring column `of` up to date, as column `into` of L D; `given` leaves it in `value`."""
        return f"""
    for (var i = k + lid; i < {self.n}u; i = i + {size}u) {{
      {given}
      for (var d = 0u; d < c; d = d + 1u) {{
        value = value - mul({at("i", "begin + d")}, {self.turned}({held(of, "d")}));
      }}
      if (i == {of}) {{
        value = {self.real("value")};
      }}
      {held("i", into)} = value;
      let own = bits_of(pivot_size(value));
      if (i != {of} && own > key) {{
        key = own;
        place = i;
      }}
    }}"""

    def columns(self, size: int, at: Part, held: Part, wait: str, steps: int) -> str:
        """Return the elimination of up to `steps` columns from `begin` on, one more where a block of two is last.

        `at` gives the text of an element, `held` that of L D in the block's columns. `next` is the column after them.
        """
        n = self.n
        other = (
            f"var value = {at('i', 'most')};\n      "
            f"if (i < most) {{ value = {self.turned}({at('most', 'i')}); }}"
        )
        return f"""
var next = begin;
var failed = 0u;
for (var c = 0u; c < {steps}u; c = c + 1u) {{
  let k = begin + c;
  let live = k == next && k < {n}u;
  var key = 0u;
  var place = k;
  if (live) {{{self.column(size, at, held, "k", "c", f"var value = {at('i', 'k')};")}
  }}
  {sought(size)}
  let most = places[0];
  let largest = bitcast<f32>(keys[0]);
  var diagonal = 0.0;
  {wait}
  if (live) {{
    diagonal = pivot_size({held("k", "c")});
  }}
  let small = live && diagonal < {_ALPHA:.9g} * largest;
  key = 0u;
  if (small) {{{self.column(size, at, held, "most", "c + 1u", other)}
  }}
  {sought(size)}
  let beside = bitcast<f32>(keys[0]);
  {wait}
{self.chosen(size, held)}
  let q = k + two;
  {wait}
  if (live && p != q) {{
{self.swapped(size, at, held)}
  }}
  {wait}
  if (live) {{
    next = q + 1u;
    if (diagonal == 0.0 && largest == 0.0 && failed == 0u) {{
      failed = next;
    }}
    let pivot = {held("k", "c")};
    if (two == 0u) {{
{self.by_one(size, at, held)}
    }} else {{
{self.by_two(size, at, held)}
    }}
  }}
  {wait}
}}"""

    def chosen(self, size: int, held: Part) -> str:
        """Return the choice of the row `p` that comes to the diagonal, and of whether the pivot has `two` columns.

        Where it has one, column c of L D becomes that of row p.
        """
        n = self.n
        return f"""\
  var p = k;
  var two = 0u;
  if (small && diagonal < {_ALPHA:.9g} * largest * (largest / beside)) {{
    p = most;
    if (pivot_size({held("most", "c + 1u")}) < {_ALPHA:.9g} * beside) {{
      two = 1u;
    }} else {{
      for (var i = k + lid; i < {n}u; i = i + {size}u) {{
        {held("i", "c")} = {held("i", "c + 1u")};
      }}
    }}
  }}"""

    def swapped(self, size: int, at: Part, held: Part) -> str:
        """Return the swap of rows and columns p and q."""
        n = self.n
        return f"""\
    // Column q as it was goes where column p was, and rows of what is factored change places.
    for (var i = q + 1u + lid; i < {n}u; i = i + {size}u) {{
      if (i < p) {{
        {at("p", "i")} = {self.turned}({at("i", "q")});
      }} else if (i == p) {{
        {at("p", "p")} = {at("q", "q")};
      }} else {{
        {at("i", "p")} = {at("i", "q")};
      }}
    }}
    for (var d = lid; d <= c + two; d = d + {size}u) {{
      let x = {held("q", "d")};
      {held("q", "d")} = {held("p", "d")};
      {held("p", "d")} = x;
      if (d < c) {{
        let y = {at("q", "begin + d")};
        {at("q", "begin + d")} = {at("p", "begin + d")};
        {at("p", "begin + d")} = y;
      }}
    }}"""

    def by_one(self, size: int, at: Part, held: Part) -> str:
        """Return the columns of L after a pivot of one column."""
        n = self.n
        return f"""\
      for (var i = k + lid; i < {n}u; i = i + {size}u) {{
        let x = {held("i", "c")};
        if (i == k || is_zero(pivot)) {{
          {at("i", "k")} = x;
        }} else {{
          {at("i", "k")} = over(x, pivot);
        }}
      }}
      if (lid == 0u) {{
        {self.pivot("group", "k")} = num_of(f32(p + 1u));
      }}"""

    def by_two(self, size: int, at: Part, held: Part) -> str:
        """Return the columns of L after a pivot of two columns."""
        n = self.n
        return f"""\
      // The block's inverse, by its element off the diagonal, so that nothing overflows.
      let off = {held("q", "c")};
      let first = over({held("q", "c + 1u")}, off);
      let second = over(pivot, {self.turned}(off));
      let scale = over(num_of(1.0), mul(off, {self.real("mul(first, second)")} - num_of(1.0)));
      for (var i = q + 1u + lid; i < {n}u; i = i + {size}u) {{
        let x = {held("i", "c")};
        let y = {held("i", "c + 1u")};
        {at("i", "k")} = mul({self.turned}(scale), mul(first, x) - y);
        {at("i", "q")} = mul(scale, mul(second, y) - x);
      }}
      if (lid == 0u) {{
        {at("k", "k")} = pivot;
        {at("q", "k")} = off;
        {at("q", "q")} = {held("q", "c + 1u")};
        {self.pivot("group", "k")} = num_of(-f32(p + 1u));
        {self.pivot("group", "q")} = num_of(-f32(p + 1u));
      }}"""

    def unswapped(self, at: Part, matrix: str) -> str:
        """Return the lines that take back the swaps of rows in column `c` which came after it, of a block that ends at
        `end`: LAPACK keeps columns as they were when they were made.
        """
        return f"""
  var j = end;
  loop {{
    let last = j - 1u;
    let pivot = re({self.pivot(matrix, "last")});
    j = last - select(0u, 1u, pivot < 0.0);
    if (j <= c) {{
      break;
    }}
    let p = u32(abs(pivot)) - 1u;
    let x = {at("last", "c")};
    {at("last", "c")} = {at("p", "c")};
    {at("p", "c")} = x;
  }}"""


def ldl_factor(r: Host, limits: Limits) -> list[WgslPass]:
    """Return the passes: (packed L and D, pivots, info)."""
    return _LDL(r, limits).passes()


def ldl_rows(r: Host, limits: Limits) -> list[WgslPass]:
    """Return the passes: L of ldl_factor's results, each column with the swaps of rows that came after it."""
    w = Writer(r, limits)
    n = w.shapes[0][-1]
    body = f"""
  let b = id / {n}u;
  let c = id % {n}u;
  let base = b * {n * n}u + c;
  for (var i = 0u; i < {n}u; i = i + 1u) {{
    b2[base + i * {n}u] = select(num_of(0.0), b0[base + i * {n}u], i > c);
  }}
  b2[base + c * {n}u] = num_of(1.0);
  for (var k = 0u; k < {n}u; k = k + 1u) {{
    let first = k;
    let pivot = re(b1[b * {n}u + k]);
    if (pivot < 0.0) {{
      k = k + 1u;
      if (first == c) {{
        // D's element off the diagonal.
        b2[base + k * {n}u] = num_of(0.0);
      }}
    }}
    if (first > c) {{
      let p = u32(abs(pivot)) - 1u;
      let x = b2[base + k * {n}u];
      b2[base + k * {n}u] = b2[base + p * {n}u];
      b2[base + p * {n}u] = x;
    }}
  }}"""
    return [w.elements(body, w.count * n)]
