"""Triangular systems, and what row swaps amount to. Floor 2."""

from __future__ import annotations

from webtorch.ir.kernel import Host
from webtorch.ir.limits import Limits
from webtorch.lower.templates.matrices.blocks import BLOCK, Part, product, substitution
from webtorch.lower.templates.matrices.shader import Writer
from webtorch.lower.wgsl_shader import WgslPass

# Systems of up to so many rows are solved in one go, one invocation for each column of the right side.
_SMALL = 64


def solve_triangular(r: Host, limits: Limits) -> list[WgslPass]:
    """Return the passes: x with a @ x = b."""
    w = Writer(r, limits)
    upper, unit = r.params
    n, columns = w.shapes[1][1:]

    # Counted from the end, an upper triangle is a lower one.
    row, column = (
        f"({n - 1}u - at.begin - {i})" if upper else f"(at.begin + {i})" for i in ("$i", "$j")
    )
    a = Part(f"b0[b * {n * n}u + {row} * {n}u + {column}]")
    x = Part(f"b2[b * {n * columns}u + {row} * {columns}u + $j]")
    if n <= _SMALL:
        given = Part(x.text.replace("b2[", "b1["))
        return [substitution(w, a, x, given, n, columns, bool(unit), {"begin": 0})]
    passes = [w.elements("b2[id] = b1[id];", w.count * n * columns)]
    below, rest_of_x = a.from_("at.depth", "0u"), x.from_("at.depth", "0u")
    for begin in range(0, n, BLOCK):
        width = min(BLOCK, n - begin)
        numbers = {"begin": begin}
        passes.append(substitution(w, a, x, x, width, columns, bool(unit), numbers))
        rest = n - begin - width
        if rest:
            passes.append(product(w, below, x, rest_of_x, rest, columns, width, numbers))
    return passes


def permutation(r: Host, limits: Limits) -> list[WgslPass]:
    """Return the passes: for each row of L U, which row of the matrix it is."""
    w = Writer(r, limits)
    (rows,) = r.params
    k = w.shapes[0][1]
    body = f"""
  for (var i = 0u; i < {rows}u; i = i + 1u) {{
    b1[id * {rows}u + i] = num_of(f32(i));
  }}
  for (var i = 0u; i < {k}u; i = i + 1u) {{
    let j = u32(re(b0[id * {k}u + i])) - 1u;
    let x = b1[id * {rows}u + i];
    b1[id * {rows}u + i] = b1[id * {rows}u + j];
    b1[id * {rows}u + j] = x;
  }}"""
    return [w.elements(body, w.count)]
