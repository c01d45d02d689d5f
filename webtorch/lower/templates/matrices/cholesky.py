"""Cholesky factors: LAPACK's potrf, blocks of columns from the left. Floor 2."""

from __future__ import annotations

from webtorch.ir.kernel import Host
from webtorch.ir.limits import Limits
from webtorch.lower.templates.matrices.blocks import BLOCK, Part, product, substitution
from webtorch.lower.templates.matrices.shader import Writer
from webtorch.lower.wgsl_shader import WgslPass


def _diagonal(w: Writer, n: int, width: int, whole: bool, begin: int) -> WgslPass:
    """Return the pass that factors a block on the diagonal in workgroup memory, `whole` or one of many."""
    size = w.width(64 if width <= 16 else 128 if width <= 32 else 256)
    at = "0u" if whole else "at.begin"
    many = f"{width}u" if whole else "at.width"
    source = "b0" if whole else w.out
    rest = (
        f"{w.out}[base + i * {n}u + j] = select(num_of(0.0), tile[e], j <= i);"
        if whole
        else f"if (j <= i) {{ {w.out}[base + i * {n}u + j] = tile[e]; }}"
    )
    body = f"""
let w = {many};
let base = group * {n * n}u + {at} * {n + 1}u;
let told = {w.count * n * n}u + group;
for (var e = lid; e < w * w; e = e + {size}u) {{
  tile[e] = {source}[base + (e / w) * {n}u + e % w];
}}
if (lid == 0u) {{
  failed = 0u;
}}
workgroupBarrier();
for (var j = 0u; j < w; j = j + 1u) {{
  let pivot = re(tile[j * w + j]);
  let root = root_of(pivot);
  if (lid == 0u && failed == 0u && !is_positive(pivot)) {{
    failed = {at} + j + 1u;
  }}
  for (var i = j + 1u + lid; i < w; i = i + {size}u) {{
    tile[i * w + j] = over_real(tile[i * w + j], root);
  }}
  workgroupBarrier();
  if (lid == 0u) {{
    tile[j * w + j] = of_real(root);
  }}
  let left = w - j - 1u;
  for (var e = lid; e < left * left; e = e + {size}u) {{
    let i = j + 1u + e / left;
    let k = j + 1u + e % left;
    if (k <= i) {{
      tile[i * w + k] = less(tile[i * w + k], mul(tile[i * w + j], conj(tile[k * w + j])));
    }}
  }}
  workgroupBarrier();
}}
for (var e = lid; e < w * w; e = e + {size}u) {{
  let i = e / w;
  let j = e % w;
  {rest}
}}
if (lid == 0u && ({at} == 0u || (failed != 0u && is_zero({w.out}[told])))) {{
  {w.out}[told] = num_of(f32(failed));
}}"""
    shared = [f"tile: array<num, {width * width}>", "failed: u32"]
    numbers = None if whole else {"begin": begin, "width": min(width, n - begin)}
    return w.make(body, w.count, size, shared, numbers)


def cholesky(r: Host, limits: Limits) -> list[WgslPass]:
    """Return the passes: (L, info) of the lower triangle."""
    w = Writer(r, limits)
    n = w.shapes[0][-1]
    if n * n <= w.room:
        return [_diagonal(w, n, n, True, 0)]
    out = w.out
    passes = [
        w.elements(
            f"{out}[id] = select(num_of(0.0), b0[id], id % {n}u <= (id / {n}u) % {n}u);",
            w.count * n * n,
        )
    ]

    block = Part(f"{out}[b * {n * n}u + (at.begin + $i) * {n}u + at.begin + $j]")
    for begin in range(0, n, BLOCK):
        width = min(BLOCK, n - begin)
        passes.append(_diagonal(w, n, BLOCK, False, begin))
        rest = n - begin - width
        if not rest:
            break
        numbers = {"begin": begin}
        # Rows below solve x L^H = a, each by itself.
        rows = block.from_("at.width", "0u").transpose
        factor = Part(f"conj({block.text})")
        passes.append(substitution(w, factor, rows, rows, width, rest, False, numbers))
        below, corner = block.from_("at.depth", "0u"), block.from_("at.depth", "at.depth")
        passes.append(
            product(
                w, below, below.adjoint, corner, rest, rest, width, numbers,
                only="$j <= $i", skip="j0 > i0 + 15u",
            )
        )  # fmt: skip
    return passes
