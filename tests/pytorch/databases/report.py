"""Which operations of PyTorch's database count, and docs/conformance-torch.md from the kept results."""

from __future__ import annotations

import warnings
from typing import Any

import torch

with warnings.catch_warnings():
    # The database warns of optional packages when it is imported.
    warnings.simplefilter("ignore")
    from torch.testing._internal.common_methods_invocations import op_db
    from torch.testing._internal.opinfo.core import OpInfo

from tests.pytorch.databases import check, compiled, run

KINDS = ("forward", "gradient")
GOALS = {("float32", "forward"): 97.0, ("float32", "gradient"): 95.0}

# Why what fails does: operation -> the reason.
REASONS = {
    "narrow": "compiled with a start that is a tensor on the device, PyTorch's tracer raises "
    "`PendingUnbackedSymbolNotFound` before a backend is asked",
}
# What a message says to be not available -> the reason.
LACKING = {
    "torch.float64": "asks for float64, which WebGPU lacks",
    "torch.complex128": "asks for complex numbers of float64, which WebGPU lacks",
    "torch.complex32": "complex numbers of 16 bits, which WebGPU lacks",
}

HEAD = """# Conformance of the PyTorch device: PyTorch's own test databases

PyTorch {version} ships the samples that its operators are tested with (`torch.testing`, the OpInfo database).
`make conformance-torch` runs them with real PyTorch on `torch.device("webgpu")` and compares with PyTorch on the CPU:
forward results (device, dtype, shape, values) and, in float32, gradients.

- A value agrees if it is as close to PyTorch's, or to PyTorch's in float64, as `torch.testing.assert_close` asks by
  default (or as the database asks for this operation), or within twice PyTorch's own error. Random results are
  compared in shape and dtype.
- Inputs lie in memory as the database has them: strides, offsets, shared storages, conjugate views.
- Left out are sparse, quantised and jagged tensors and CUDA source text.
- "Missing" has no kernel: `NotImplementedError`. Calls that ran on the CPU by fallback: {fallbacks}. Factorisations
  of matrices run on the device, but `eig` on PyTorch's LAPACK; `torch.webgpu.host_kernel_counts()` counts
  them.
- Run on: {adapters}. A processor's name means webtorch's CPU backend behind the same device
  (`WEBTORCH_PYTORCH_ENGINE=cpu`), on which this run takes minutes rather than hours.
- "Samples each": how many samples of an operation ran at most, evenly spread over the database's (`--limit`).
- Rows "compiled-..." are calls through `torch.compile(backend="webgpu", fullgraph=True)`, compiled afresh for each
  sample, as PyTorch judges its own compiler; which results share memory with which inputs, and what was written, is
  compared too, and operators that take functions (`cond`, `while_loop`, `map`, ...) are judged. Samples that PyTorch's
  tracer does not take on the CPU do not count. "dynamic-..." has `dynamic=True`.
- Modules (`module_db`) and optimizers (`optim_db`) are tests: `python -m pytest tests/pytorch/databases`.
"""


def operations(mode: str = "compiled") -> dict[str, OpInfo]:
    """Return the operations that count: title -> entry. Those that take functions are for the compiler."""
    found: dict[str, OpInfo] = dict(compiled.higher_order()) if mode else {}
    for op in op_db:
        if not op.name.startswith(check.OUTSIDE):
            found[f"{op.name} ({op.variant_test_name})" if op.variant_test_name else op.name] = op
    return found


def takes(op: OpInfo, dtype: str) -> bool:
    """Whether PyTorch's CPU has this operation for this type."""
    return check.takes(op, getattr(torch, dtype))


def counts(result: dict[str, Any], kind: str) -> tuple[int, int, int]:
    """Return how many samples passed, failed, and lacked a kernel."""
    if "died" in result:
        return (0, 1, 0) if kind == "forward" else (0, 0, 0)
    part = result.get(kind) or {}
    return part.get("passed", 0), part.get("failed", 0), part.get("missing", 0)


def _share(passed: int, failed: int, missing: int) -> str:
    total = passed + failed + missing
    return f"{passed * 1000 // total / 10:.1f} %" if total else ""


def _reason(name: str, note: str) -> str:
    """Return why samples of an operation fail, from the message of the first."""
    for lacking, why in LACKING.items():
        if f"{lacking} is not available" in note:
            return why
    message = note.partition(" <- ")[0].replace("|", "/").replace("\n", " ")[:160]
    return REASONS.get(name, f"`{message}`")


def _failures(
    name: str, results: dict[str, dict[str, Any]]
) -> dict[str, list[tuple[str, str, int, int]]]:
    """Return where samples of an operation fail: reason -> (dtype, check, how many, of how many)."""
    found: dict[str, list[tuple[str, str, int, int]]] = {}
    for dtype, kept in results.items():
        for kind in KINDS:
            result = kept.get(name, {})
            passed, failed, missing = counts(result, kind)
            if failed + missing:
                notes = (result.get(kind) or {}).get("notes") or [result.get("died", "")]
                place = (dtype, kind, failed + missing, passed + failed + missing)
                found.setdefault(_reason(name, notes[0]), []).append(place)
    return found


def _sampled(kept: dict[str, Any]) -> str:
    """Return how many samples an operation had at most: "4", "all", or "2 to 6" if some had more than others."""
    limits = sorted({r["limit"] for r in kept.values() if r.get("limit")})
    if not limits:
        return "all"
    return str(limits[0]) if len(limits) == 1 else f"{limits[0]} to {limits[-1]}"


def write() -> None:
    """Write docs/conformance-torch.md."""
    results = {dtype: run.read(dtype) for dtype in run.DTYPES}
    results = {k: v for k, v in results.items() if v}
    everything = [r for kept in results.values() for r in kept.values()]
    adapters = sorted({r["adapter"] for r in everything if "adapter" in r})
    text = HEAD.format(
        version=torch.__version__.split("+")[0],
        fallbacks=sum(r.get("fallbacks", 0) for r in everything),
        adapters="; ".join(adapters),
    )
    lines = [
        "## Totals",
        "",
        "| dtype | check | operations | samples each | pass | fail | missing | samples that pass |",
    ]
    lines.append("|---|---|--:|--:|--:|--:|--:|--:|")
    for dtype, kept in results.items():
        for kind in KINDS:
            each = [counts(r, kind) for r in kept.values()]
            passed, failed, missing = (sum(c) for c in zip(*each, strict=True))
            if passed:
                ran = sum(map(any, each))
                share = _share(passed, failed, missing)
                lines.append(
                    f"| {dtype} | {kind} | {ran} | {_sampled(kept)} | {passed} | {failed} | {missing} | {share} |"
                )
    lines += ["", "## What fails, and why", ""]
    lines += ["| operation | where | failed | reason |", "|---|---|--:|---|"]
    for name in operations():
        for why, found in _failures(name, results).items():
            places = ", ".join(f"{d} {k}" for d, k, *_ in found)
            bad, total = (sum(f[i] for f in found) for i in (2, 3))
            lines.append(f"| {name} | {places} | {bad} of {total} | {why} |")
    lines += ["", "## Operations", "", "Samples that passed; in bold, passed/failed.", ""]
    columns = [
        (d, k) for d in results for k in KINDS if k == "forward" or run.split(d)[1] == "float32"
    ]
    lines.append("| operation | " + " | ".join(f"{d} {k}" for d, k in columns) + " |")
    lines.append("|---|" + "--:|" * len(columns))
    for name in operations():
        cells = []
        for dtype, kind in columns:
            passed, failed, missing = counts(results[dtype].get(name, {}), kind)
            bad = failed + missing
            cells.append(f"**{passed}/{bad}**" if bad else str(passed) if passed else "")
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    path = run.ROOT / "docs" / "conformance-torch.md"
    path.write_text(text + "\n" + "\n".join(lines) + "\n", encoding="utf-8")
