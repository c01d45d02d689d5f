"""Triangular systems, and what row swaps amount to. Floor 2."""

from __future__ import annotations

from webtorch.ir.kernel import Host
from webtorch.ir.limits import Limits
from webtorch.lower.templates.matrices.blocks import BLOCK, At, product, substitution
from webtorch.lower.templates.matrices.shader import Writer
from webtorch.lower.wgsl_shader import WgslPass

# Systems of up to so many rows are solved in one go, one invocation for each column of the right side.
_SMALL = 64


def solve_triangular(r: Host, limits: Limits) -> list[WgslPass]:
    """Return the passes: x with a @ x = b."""
    w = Writer(r, limits)
    upper, unit = r.params
    n, columns = w.shapes[1][1:]

    def row(i: str) -> str:
        """Counted from the end, an upper triangle is a lower one."""
        return f"({n - 1}u - ({i}))" if upper else f"({i})"

    def a(i: str, k: str) -> str:
        """Return the text of an element of the triangle, counted from the block's corner."""
        return f"b0[b * {n * n}u + {row(f'at.begin + {i}')} * {n}u + {row(f'at.begin + {k}')}]"

    def x(i: str, c: str) -> str:
        """Return the text of an element of the solution."""
        return f"b2[b * {n * columns}u + {row(f'at.begin + {i}')} * {columns}u + {c}]"

    if n <= _SMALL:
        given: At = lambda i, c: x(i, c).replace("b2[", "b1[")
        return [substitution(w, a, x, given, n, columns, bool(unit), {"begin": 0})]
    passes = [w.elements("b2[id] = b1[id];", w.count * n * columns)]
    for begin in range(0, n, BLOCK):
        width = min(BLOCK, n - begin)
        numbers = {"begin": begin}
        passes.append(substitution(w, a, x, x, width, columns, bool(unit), numbers))
        rest = n - begin - width
        if rest:
            left: At = lambda i, k: a(f"at.depth + {i}", k)
            below: At = lambda i, j: x(f"at.depth + {i}", j)
            passes.append(product(w, left, x, below, rest, columns, width, numbers))
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
