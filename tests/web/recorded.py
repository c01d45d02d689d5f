"""Recorded operations as programs for a page: what is pending on the CPU, exported instead of computed."""

from __future__ import annotations

from typing import Any

import webtorch
from tests.ops import table
from webtorch.capture.trace import Capture, Returned
from webtorch.ops.record import Op
from webtorch.runtime.realize import freeze, to_graph
from webtorch.tensors.storage import Storage
from webtorch.web.export import Exported, export_json


def export_pending(results: list[Any]) -> Exported:
    """Return the program that computes `results`, pending on the CPU; its outputs are "0", "1", ..."""
    runtime = results[0]._storage.runtime
    owners = list({id(t._storage): t._storage for t in results}.values())
    pending = [s for s in owners if s.node.kind != "buffer"]
    for owner in pending:
        owner.donor = None
    frozen = freeze(pending)
    number = {id(s): i for i, s in enumerate(pending)}
    result = {
        str(i): Returned(number.get(id(t._storage)), t._shape, t._strides, t._offset, t._storage)
        for i, t in enumerate(results)
    }
    sources: list[int | Storage] = [Storage(node, runtime) for node in frozen.inputs]
    captured = Capture(
        runtime, to_graph(frozen), None, sources, [False] * len(sources), list(range(len(pending))),
        [s.node.shape for s in pending], frozen.args, [], [], result,
    )  # type: ignore[arg-type]  # fmt: skip
    return export_json(captured, name="compute")


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


def gradients(op: Op) -> list[Case]:
    """Return the first gradients of an entry's first sample, pending, with PyTorch's in float64."""
    import torch

    args, kwargs = op.samples[0]
    theirs, ours = table.inputs(op, "contiguous", webtorch.float32, "cpu", requires_grad=True)
    try:
        result = table.flat(table.oracle(op)(*theirs, *args, **kwargs))[0]
    except (RuntimeError, TypeError, ValueError):
        return []
    if not result.requires_grad or op.name == "float_power":
        return []
    try:
        expected = torch.autograd.grad(result.sum(), theirs, allow_unused=True)
    except RuntimeError:
        return []  # PyTorch has no derivative
    mine_result = table.flat(table.function(op)(*ours, *args, **kwargs))[0]
    mine = webtorch.autograd.grad(mine_result.sum(), ours, allow_unused=True)
    note = f"gradient of {op.name}{args}{kwargs}"
    pairs = [(m, e) for m, e in zip(mine, expected, strict=True) if e is not None]
    # No gradient is as good as zeros.
    assert all(m is not None or not e.any() for m, e in pairs), note
    return [(note, m, e) for m, e in pairs if m is not None]
