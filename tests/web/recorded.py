"""Recorded operations of the table for a page: what is pending on the CPU."""

from __future__ import annotations

from typing import Any

from tests.ops import table
from webtorch.ops.record import Op

Case = tuple[str, Any, Any]


def values(op: Op, dtype: Any, layouts: tuple[str, ...], samples: int) -> list[Case]:
    """Return (what, our pending tensor, expected) for an entry of the op table."""
    out: list[Case] = []
    ours_fn, theirs_fn = table.function(op), table.oracle(op)
    for layout in layouts:
        theirs, ours = table.inputs(op, layout, dtype, "cpu")
        for args, kwargs in op.samples[:samples]:
            try:
                exact = table.flat(theirs_fn(*table.shown(theirs, layout), *args, **kwargs))
            except (RuntimeError, TypeError, IndexError, ValueError):
                continue
            if any(str(r.dtype) == "torch.float64" for r in exact):
                continue
            wide = [t.double() if t.is_floating_point() else t for t in table.shown(theirs, layout)]
            expected = table.flat(theirs_fn(*wide, *args, **kwargs))
            mine = table.flat(ours_fn(*table.shown(ours, layout), *args, **kwargs))
            note = f"{op.name}{args}{kwargs} {dtype.name} {layout}"
            out += [(note, m, e) for m, e in zip(mine, expected, strict=True)]
    return out
