"""Scan -> loop text, in the language of `lower/pysource.py`. Imports floor 0 only.

The function is `scan(begin, end, b0, b1, length, inner)`, the same for all sizes, and does the rows
begin..end-1 of (outer, inner), each of `length` elements that are `inner` apart. A row's elements
are combined in their order.
"""

from __future__ import annotations

from webtorch.ir.dtype import bool_
from webtorch.ir.kernel import Scan
from webtorch.ir.reducer import REDUCERS
from webtorch.lower.pyvalues import called

# Rows that are walked together: each waits for its last sum, the processor for none of them.
_TOGETHER = 8
# From this many neighbours on, rows are walked as vectors; this many have their sums in the first-level cache.
COLUMNS = 8
_BLOCK = 512

_COLUMNS = """
def scan(begin, end, b0: {kind}, b1: {out}, length: int, inner: int):
    totals = local({wide}, {block})
    i = begin
    while i < end:
        column = rem(i, inner)
        first = div(i, inner) * length * inner + column
        n = min(min(inner - column, end - i), {block})
        for c in range(n):
            totals[c] = {start}
        for k in range(length):
            at = first + k * inner
            for c in range(n):
                x = {load}
                total = totals[c]
                total = {combined}
                totals[c] = total
                b1[at + c] = {store}
        i = i + n
"""


def scan_source(r: Scan) -> str:
    """Return the loops of a scan, a unit of which is a row."""
    source, out = (b.dtype for b in r.buffers[:2])
    wide = out.compute
    reducer = REDUCERS[r.op]
    combined = called(reducer.function(wide), "total", "x")
    start = f"{wide.name}({reducer.identity(wide)})"
    if wide is bool_:
        start = f"bool({int(reducer.identity(wide))})"

    def loaded(position: str) -> str:
        """Return the text that reads an element in the type that is added in."""
        load = f"b0[{position}]"
        return load if source is wide else f"{wide.name}({load})"

    store = "total" if out is wide else f"{out.name}(total)"
    if r.inner >= COLUMNS:
        return _COLUMNS.format(
            kind=source.name, out=out.name, wide=wide.name, block=_BLOCK, start=start,
            load=loaded("at + c"), combined=combined, store=store,
        ).strip()  # fmt: skip
    lines = [
        f"def scan(begin, end, b0: {source.name}, b1: {out.name}, length: int, inner: int):",
        "    i = begin",
    ]
    for count in (_TOGETHER, 1):
        lines.append(f"    while i + {count - 1} < end:")
        for n in range(count):
            lines += [
                f"        first{n} = div(i + {n}, inner) * length * inner + rem(i + {n}, inner)",
                f"        total{n} = {start}",
            ]
        lines.append("        for k in range(length):")
        for n in range(count):
            at = f"first{n} + k * inner"
            lines += [
                f"            x = {loaded(at)}",
                f"            total = total{n}",
                f"            total = {combined}",
                f"            total{n} = total",
                f"            b1[{at}] = {store}",
            ]
        lines.append(f"        i = i + {count}")
    return "\n".join(lines)
