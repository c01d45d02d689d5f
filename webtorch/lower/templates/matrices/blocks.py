"""Steps of blocked methods: systems of a small triangle, and products that update a part of a matrix. Floor 2."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from webtorch.lower.templates.matrices.shader import Writer
from webtorch.lower.wgsl_shader import WgslPass


@dataclass(frozen=True, slots=True)
class Part:
    """Where a part of a matrix lies: the text of its element in row $i and column $j."""

    text: str

    def __call__(self, i: str, j: str) -> str:
        """Return the text of an element."""
        return self.text.replace("$i", f"({i})").replace("$j", f"({j})")

    def from_(self, i: str, j: str) -> Part:
        """Return the part that begins at an element."""
        return Part(self(f"{i} + $i", f"{j} + $j"))

    @property
    def adjoint(self) -> Part:
        """The conjugate transpose."""
        return Part(f"conj({self.transpose.text})")

    @property
    def transpose(self) -> Part:
        """The transpose."""
        return Part(self("$k", "$i").replace("$k", "$j"))


# Columns of a block. A triangle of that many is solved by one invocation for each column of the right side.
BLOCK = 32
# A workgroup's tile of a product: invocations along rows and columns, each of which has four by four elements.
_ROWS, _COLUMNS, _OWN = 4, 16, 4


def in_workgroup(
    w: Writer,
    m: int,
    n: int,
    columns: Callable[[int, Part], str],
    shared: Callable[[int], Sequence[str]],
) -> WgslPass:
    """Return the pass that does whole matrices of m rows and n columns in workgroup memory, one in each workgroup.

    `columns` gives the steps and `shared` their workgroup memory, of the workgroup's size.
    """
    size = w.width(64 if m * n <= 16 * 16 else 128 if m * n <= 32 * 32 else 256)
    body = f"""
let base = group * {m * n}u;
for (var e = lid; e < {m * n}u; e = e + {size}u) {{
  tile[e] = b0[base + e];
}}
workgroupBarrier();
{columns(size, Part(f"tile[$i * {n}u + $j]"))}
for (var e = lid; e < {m * n}u; e = e + {size}u) {{
  {w.out}[base + e] = tile[e];
}}"""
    return w.make(body, w.count, size, [f"tile: array<num, {m * n}>", *shared(size)])


def substitution(
    w: Writer,
    a: Part,
    x: Part,
    given: Part,
    width: int,
    columns: int,
    unit: bool,
    numbers: Mapping[str, int],
) -> WgslPass:
    """Return the pass that solves A X = B for a lower triangle of `width` rows, column by column.

    `b` is the number of the matrix, `columns` how many X has; `given` is where B lies, and may be X's place.
    """
    divide = "" if unit else f"    value = over(value, {a('i', 'i')});\n"
    body = f"""
  let b = id / at.columns;
  let c = id % at.columns;
  for (var i = 0u; i < at.width; i = i + 1u) {{
    var value = {given("i", "c")};
    for (var k = 0u; k < i; k = k + 1u) {{
      value = less(value, mul({a("i", "k")}, {x("k", "c")}));
    }}
{divide}    {x("i", "c")} = value;
  }}"""
    numbers = {**numbers, "width": width, "columns": columns}
    return w.elements(body, w.count * columns, numbers)


def product(
    w: Writer,
    left: Part,
    right: Part,
    out: Part,
    rows: int,
    columns: int,
    depth: int,
    numbers: Mapping[str, int],
    *,
    sign: str = "-",
    batch: int | None = None,
    only: str = "true",
    skip: str = "",
    before: str = "",
    until: str = "at.depth",
) -> WgslPass:
    """Return the pass that subtracts a product from `out` (adds it, or sets it: `sign` "-", "+" or "").

    `b` is the number of the matrix. An element (i, j) is stored where `only` holds; a tile of which (i0, j0) is
    the first element is left out where `skip` holds; `before` comes first. `until` is how deep the product goes.

    Each invocation holds four rows and four columns in registers. Nothing goes through workgroup memory:
    processors run barriers slowly, and graphics cards have the operands in their caches.
    """
    tall, wide = _ROWS * _OWN, _COLUMNS * _OWN
    across = -(-columns // wide)
    down = -(-rows // tall)
    count = w.count if batch is None else batch
    text = [
        "let b = group / at.tiles;",
        "let tile = group % at.tiles;",
        f"let i0 = (tile / at.across) * {tall}u;",
        f"let j0 = (tile % at.across) * {wide}u;",
    ]
    if skip:
        text.append(f"if ({skip}) {{ return; }}")
    text.append(before)
    own = range(_OWN)
    for r in own:
        text.append(f"let i{r + 1} = i0 + lid / {_COLUMNS}u + {r * _ROWS}u;")
        text.append(f"let r{r} = min(i{r + 1}, at.rows - 1u);")
    for c in own:
        text.append(f"let j{c + 1} = j0 + lid % {_COLUMNS}u + {c * _COLUMNS}u;")
        text.append(f"let c{c} = min(j{c + 1}, at.columns - 1u);")
    text += [f"var s{r}{c} = num_of(0.0);" for r in own for c in own]
    text.append(f"for (var k = 0u; k < {until}; k = k + 1u) {{")
    text += [f"  let x{r} = {left(f'r{r}', 'k')};" for r in own]
    text += [f"  let y{c} = {right('k', f'c{c}')};" for c in own]
    text += [f"  s{r}{c} = plus(s{r}{c}, mul(x{r}, y{c}));" for r in own for c in own]
    text.append("}")
    for r in own:
        for c in own:
            i, j = f"i{r + 1}", f"j{c + 1}"
            place = out(i, j)
            how = {"-": "less", "+": "plus"}.get(sign)
            value = f"{how}({place}, s{r}{c})" if how else f"s{r}{c}"
            test = only.replace("$i", i).replace("$j", j)
            text.append(
                f"if ({i} < at.rows && {j} < at.columns && {test}) {{ {place} = {value}; }}"
            )
    numbers = {
        **numbers, "rows": rows, "columns": columns, "depth": depth,
        "across": across, "tiles": across * down,
    }  # fmt: skip
    return w.make("\n".join(text), count * across * down, _ROWS * _COLUMNS, (), numbers)
