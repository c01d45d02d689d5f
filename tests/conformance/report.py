"""Writes docs/conformance.md and its machine-readable twin from the kept results."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch

from tests.conformance import database

ROOT = Path(__file__).resolve().parent.parent.parent
CACHE = ROOT / ".cache" / "conformance"
LIST = Path(__file__).with_name("must_pass.txt")
KINDS = (
    "forward", "gradient", "second gradient", "method", "inplace", "operator", "alias", "out", "error",
    "refused", "all checks",
)  # fmt: skip
Results = dict[tuple[str, str], dict[str, dict[str, Any]]]

# Why what fails does: operation -> the reason.
REASONS = {
    "as_strided_scatter": "PyTorch gives the input a gradient where it was replaced; here it has none there",
    "cov": "the second derivative is a difference of equal numbers: rounding in float32 is left",
    "nn.functional.normalize": "p = 0.5: the second derivative is a difference of large equal numbers in float32",
    "grid_sampler_3d": "one place in 300,000 lies on the edge of a cell, where float32 and float64 differ",
    "index_reduce (prod)": "second derivatives where several zeros meet are given as 0",
    "scatter_reduce (prod)": "second derivatives where several zeros meet are given as 0",
    "special.i1e": "there is no second derivative at 0, where PyTorch gives 0",
    "narrow_copy": "PyTorch's error for dim = rank is an internal assertion; here it is its own IndexError",
    "matrix_exp": "float16: infinite, as the exponential is, where PyTorch's steps in 16 bits give NaN",
    "histc": "bfloat16: a value on the edge of two bins",
    "lu": "out= of integers: PyTorch writes truncated factors to them",
    "diff": "out= of another type with n = 0, which PyTorch refuses for this n only",
    "lerp": "out= of another type, which PyTorch refuses for weights that are tensors only",
    "cumsum": "out= of another type beside dtype=",
    "inner": "out= of another type with a 0-d input, which PyTorch takes for this one only",
    "nansum": "out= of integers",
    "nanmean": "out= of integers",
    "normal": "out= of other types: cast here",
    "normal (number_mean)": "out= of other types: cast here",
    "baddbmm": "16-bit products are rounded once before the addition",
    "addr": "16-bit products are rounded once before the addition",
}

HEAD = """# Conformance: PyTorch's own test database

PyTorch {version} ships the samples that its operators are tested with (`torch.testing`, the OpInfo
database). `make conformance` runs them on `webtorch`'s functions of the same names: results (values,
dtypes, shapes; contiguous and with gaps in memory), gradients and second gradients, methods, in-place
forms, operators, aliases, `out=` (with gaps, resized, of other types), inputs that must be refused with
PyTorch's type of error, and types that PyTorch refuses ("refused").

- A value agrees if it is as close to PyTorch's, or to PyTorch's in float64, as
  `torch.testing.assert_close` asks by default (or as the database asks for this operation), or within
  twice PyTorch's own error. Random results are compared in shape and dtype. Where PyTorch's second
  derivative is not a number, any number will do.
- Where equal elements make positions free (topk, kthvalue, mode, unstable sorts), what they point to is
  compared. Sums of products of 16-bit floats are compared relative to the largest of the result. A second
  derivative that is not PyTorch's passes if it is that of finite differences in float64 and PyTorch's is not.
- 16-bit floats are taken wherever floats are; that PyTorch lacks such a kernel is not counted.
- WebGPU is Mesa's lavapipe, a software adapter. What only the CPU computes (factorisations) goes there
  through `webtorch.webgpu.allow_host_kernels()`; samples that need float64 do not count there.
- Counted are {count} operations: all of the database but sparse layouts, private names, complex numbers of
  16 bits and CUDA source text. Gradients of complex inputs are not compared here.
- What the samples do not think of is drawn at random: `python -m tests.conformance.differential` compares
  calls of random shapes, types, layouts, values and options with PyTorch's, for as long as it is given.
- PyTorch's samples of its modules (`module_db`) and optimizers (`optim_db`, 20 steps with every option) are
  tests of their own: `WEBTORCH_CONFORMANCE=full python -m pytest tests/conformance/test_modules.py
  tests/conformance/test_optimizers.py`.
- {sampling}
"""


def read() -> Results:
    """Return the kept results of the operations that count: (device, dtype) -> title -> result."""
    from tests.conformance import run

    operations = database.operations()
    found: Results = {}
    for device in database.DEVICES:
        for dtype in database.DTYPES:
            taken = {k for k, op in operations.items() if database.takes(op, dtype)}
            kept = {k: v for k, v in run.read(device, dtype).items() if k in taken}
            # A run that has hardly begun says nothing yet.
            if 2 * len(kept) > len(taken):
                found[device, dtype] = kept
    return found


def counts(result: dict[str, Any], kind: str) -> tuple[int, int, int]:
    """Return how many samples passed, failed, and had no function to run."""
    if "died" in result:
        return (0, 1, 0) if kind == "forward" else (0, 0, 0)
    part = result.get(kind) or {}
    return part.get("passed", 0), part.get("failed", 0), part.get("missing", 0)


def share(passed: int, failed: int, missing: int) -> str:
    """Return the share that passed, in percent; rounded down, so that 100 means all."""
    total = passed + failed + missing
    return f"{passed * 1000 // total / 10:.1f} %" if total else ""


def _totals(results: Results) -> list[str]:
    lines = [
        "## Totals",
        "",
        "| device | dtype | operations run | check | pass | fail | missing | share |",
    ]
    lines.append("|---|---|---|---|--:|--:|--:|--:|")
    operations = database.operations()
    for (device, dtype), kept in results.items():
        taken = sum(database.takes(op, dtype) for op in operations.values())
        for kind in KINDS:
            total = [sum(c) for c in zip(*(counts(r, kind) for r in kept.values()), strict=True)]
            if sum(total):
                p, f, m = total
                lines.append(
                    f"| {device} | {dtype} | {len(kept)} of {taken} | {kind} | {p} | {f} | {m} | {share(p, f, m)} |"
                )
    return lines


def _cell(result: dict[str, Any] | None) -> str:
    if result is None:
        return ""
    passed, failed, missing = (
        sum(c) for c in zip(*(counts(result, k) for k in KINDS), strict=True)
    )
    if missing and not passed:
        return "missing"
    if not (passed or failed or missing):
        return "–"
    return f"**{passed}/{failed + missing}**" if failed or missing else str(passed)


def _reasons(results: Results) -> list[str]:
    """Return what failed, each with the reason or the first note."""
    lines = [
        "## What fails, and why", "",
        "Without a reason: the first message.", "", "| operation | where | failed | reason |", "|---|---|--:|---|",
    ]  # fmt: skip
    for name in database.operations():
        for (device, dtype), kept in results.items():
            result = kept.get(name, {})
            for kind in KINDS:
                passed, failed, missing = counts(result, kind)
                if not failed + missing:
                    continue
                notes = (result.get(kind) or {}).get("notes") or [result.get("died", "")]
                first = notes[0].partition(" <- ")[0].replace("|", "/").replace("\n", " ")[:160]
                why = REASONS.get(name, f"`{first}`")
                if kind == "refused":
                    why = f"taken here, or refused otherwise: `{first}`"
                total = passed + failed + missing
                lines.append(
                    f"| {name} | {device} {dtype} {kind} | {failed + missing} of {total} | {why} |"
                )
    return lines


def _table(results: Results) -> list[str]:
    short = {"float": "f", "bfloat": "bf", "int": "i", "uint": "u"}

    def heading(device: str, dtype: str) -> str:
        name = dtype.rstrip("0123456789")
        return f"{device} {short.get(name, name)}{dtype[len(name) :]}"

    lines = [
        "## Operations", "",
        "Samples that passed; in bold, passed/failed.", "",
        "| operation | " + " | ".join(heading(*key) for key in results) + " |",
        "|---|" + "--:|" * len(results),
    ]  # fmt: skip
    for name in database.operations():
        cells = [_cell(kept.get(name)) for kept in results.values()]
        if any(cells):
            lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return lines


def in_full(results: Results) -> list[str]:
    """Return the operations that passed every check of every run."""
    found = []
    for name in database.operations():
        runs = [kept[name] for kept in results.values() if name in kept]
        sums = [counts(r, k) for r in runs for k in KINDS if k != "refused"]
        if runs and sum(s[0] for s in sums) and not any(s[1] or s[2] for s in sums):
            found.append(name)
    return found


def must_pass() -> list[str]:
    """Return the committed list of operations that pass in full."""
    return LIST.read_text(encoding="utf-8").splitlines() if LIST.exists() else []


def accept() -> None:
    """Make the operations that pass in full the committed list."""
    LIST.write_text("\n".join(in_full(read())) + "\n", encoding="utf-8")


def write() -> list[str]:
    """Write the report. Return the operations of the committed list that did not pass."""
    results = read()
    most = ", ".join(
        f"{device} {dtype} {'all' if limit == 0 else f'at most {limit}'}"
        for (device, dtype), kept in results.items()
        for limit in [max((r.get("limit", 0) for r in kept.values()), default=0)]
    )
    every = [result for kept in results.values() for result in kept.values()]
    commits = sorted({result.get("commit", "unknown") for result in every})
    measured = f"Measured at commit {', '.join(commits)}."
    spread = "Samples of each operation, evenly spread"
    sampling = f"{measured} {spread}: {most} (`--limit`; 0 for all)."
    text = HEAD.format(
        version=torch.__version__.split("+")[0], count=len(database.operations()), sampling=sampling
    )
    lines = [*_totals(results), "", *_reasons(results), "", *_table(results), ""]
    path = ROOT / "docs" / "conformance.md"
    path.write_text(text + "\n" + "\n".join(lines), encoding="utf-8")
    twin = {f"{device} {dtype}": kept for (device, dtype), kept in results.items()}
    CACHE.mkdir(parents=True, exist_ok=True)
    (CACHE / "conformance.json").write_text(json.dumps(twin, indent=1), encoding="utf-8")
    passed = set(in_full(results))
    ran = {name for kept in results.values() for name in kept}
    return [name for name in must_pass() if name in ran and name not in passed]
