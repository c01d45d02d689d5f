"""Writes docs/conformance.md and its machine-readable twin from the kept results."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from tests.conformance import database

ROOT = Path(__file__).resolve().parent.parent.parent
CACHE = ROOT / ".cache" / "conformance"
PAGE = ROOT / "docs" / "conformance.md"
LIST = Path(__file__).with_name("must_pass.txt")
KINDS = (
    "forward", "gradient", "second gradient", "method", "inplace", "operator", "alias", "out", "error",
    "refused", "all checks",
)  # fmt: skip
Results = dict[tuple[str, str], dict[str, dict[str, Any]]]

# Why what fails does: operation -> the reason.
REASONS = {
    "nn.functional.normalize": "p = 0.5: the second derivative is a difference of large equal numbers in float32",
    "index_reduce (prod)": "second derivatives where several zeros meet are given as 0",
    "narrow_copy": "PyTorch's error for dim = rank is an internal assertion; here it is its own IndexError",
}


def _known(name: str) -> str:
    """Return why what fails of an operation does, where that is known: of all its variants, or of one."""
    whole = name.partition(" (")[0].removeprefix("special.")
    return REASONS.get(name, REASONS.get(whole, ""))


HEAD = """# Conformance: PyTorch's own test database

PyTorch {version} ships the samples that its operators are tested with (`torch.testing`, the OpInfo
database). `make conformance` runs them on `webtorch`'s functions of the same names: results (values,
dtypes, shapes; contiguous and with gaps in memory), gradients and second gradients, methods, in-place
forms, operators, aliases, `out=` (with gaps, resized, of other types), inputs that must be refused with
PyTorch's type of error, and types that PyTorch refuses ("refused").

- A value agrees if it is as close to PyTorch's, or to PyTorch's in float64, as
  `torch.testing.assert_close` asks by default (or as the database asks for this operation), or within
  twice PyTorch's own error; a gradient if it is as close to PyTorch's in float64 rounding in the type
  allows, or within twice the error of PyTorch's own. Random results are compared in shape and dtype. Where
  PyTorch's second derivative is not a number, any number will do.
- Where equal elements make positions free (topk, kthvalue, mode, unstable sorts), what they point to is
  compared. Sums of products of 16-bit floats are compared relative to the largest of the result. A
  derivative that is not PyTorch's passes if it is that of finite differences in float64 and PyTorch's is not
  (`as_strided_scatter`).
- 16-bit floats are taken wherever floats are; that PyTorch lacks such a kernel is not counted.
- WebGPU is Mesa's lavapipe, a software adapter. What only the CPU computes (`eig`) goes there
  through `webtorch.webgpu.allow_host_kernels()`; samples that need float64 do not count there.
- Counted are {count} operations: all of the database but sparse layouts, private names, complex numbers of
  16 bits and CUDA source text. Gradients of complex tensors are compared in both parts.
- What the samples do not think of is drawn at random: `python -m tests.conformance.differential` compares
  calls of random shapes, types, layouts, values and options with PyTorch's, for as long as it is given.
- PyTorch's samples of its modules (`module_db`) and optimizers (`optim_db`, 20 steps with every option) are
  tests of their own: `WEBTORCH_CONFORMANCE=full python -m pytest tests/conformance/test_modules.py
  tests/conformance/test_optimizers.py`.
- Samples are spread evenly over those of the database (`--limit`; 0 for all). On WebGPU, one sample of each
  operation is compared in result and gradient alone when the limit is 1. Each row says at which commit it was
  measured. Where a run has reached a part of a type's operations only, its rows stand below those of the page
  before, and its findings in place of theirs.
"""


@dataclass
class Column:
    """What the page says of one device and dtype."""

    # The rows of the totals: those of `TOTALS` after device and dtype.
    totals: list[list[str]] = field(default_factory=list)
    # Operation -> what failed: where, how many, reason.
    failures: dict[str, list[list[str]]] = field(default_factory=dict)
    # Operation -> cell of the last table.
    cells: dict[str, str] = field(default_factory=dict)


Key = tuple[str, str]
TOTALS = (
    "operations run",
    "samples of each",
    "check",
    "pass",
    "fail",
    "missing",
    "share",
    "measured at",
)


def read() -> Results:
    """Return the kept results of the operations that count: (device, dtype) -> title -> result."""
    from tests.conformance import run

    operations = database.operations()
    found: Results = {}
    for device in database.DEVICES:
        for dtype in database.DTYPES:
            taken = {k for k, op in operations.items() if database.takes(op, dtype)}
            kept = {k: v for k, v in run.read(device, dtype).items() if k in taken}
            if kept:
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


def _heading(key: Key) -> str:
    """Return the name of a column: cpu f32."""
    short = {"float": "f", "bfloat": "bf", "int": "i", "uint": "u"}
    name = key[1].rstrip("0123456789")
    return f"{key[0]} {short.get(name, name)}{key[1][len(name) :]}"


def _taken(dtype: str) -> int:
    return sum(database.takes(op, dtype) for op in database.operations().values())


def _commits(kept: dict[str, dict[str, Any]]) -> str:
    return ", ".join(sorted({r.get("commit", "earlier") for r in kept.values()}))


def _samples(kept: dict[str, dict[str, Any]]) -> str:
    most = max((r.get("limit", 0) for r in kept.values()), default=0)
    return f"at most {most}" if all(r.get("limit") for r in kept.values()) else "all"


def _measured(key: Key, kept: dict[str, dict[str, Any]]) -> Column:
    """Return the column of kept results."""
    column = Column()
    run = f"{len(kept)} of {_taken(key[1])}"
    for kind in KINDS:
        p, f, m = (sum(c) for c in zip(*(counts(r, kind) for r in kept.values()), strict=True))
        if p + f + m:
            numbers = [str(p), str(f), str(m), share(p, f, m)]
            column.totals.append([run, _samples(kept), kind, *numbers, _commits(kept)])
    for name, result in kept.items():
        column.cells[name] = _cell(result)
        rows = _failed(name, key, result)
        if rows:
            column.failures[name] = rows
    return column


def _merged(key: Key, before: Column, kept: dict[str, dict[str, Any]]) -> Column:
    """Return the column of the page before, with what was run since beside it: rows of its own in the
    totals, and the cells and failures of the same operations replaced.
    """
    if not kept:
        return before
    new = _measured(key, kept)
    most = max((int(row[0].split()[0]) for row in before.totals), default=0)
    totals = [row for row in before.totals if int(row[0].split()[0]) == most]
    failures = {k: v for k, v in before.failures.items() if k not in kept} | new.failures
    return Column([*totals, *new.totals], failures, {**before.cells, **new.cells})


def _page_before() -> dict[Key, Column]:
    """Return the columns that the page has now: what has not been run since keeps its place."""
    found: dict[Key, Column] = {}
    if not PAGE.exists():
        return found
    text = PAGE.read_text(encoding="utf-8")

    def rows(title: str) -> list[list[str]]:
        part = text.partition(f"## {title}\n")[2].partition("\n## ")[0]
        table = [line for line in part.splitlines() if line.startswith("| ")]
        return [[c.strip() for c in line.strip("|").split("|")] for line in table]

    for device, dtype, *rest in rows("Totals")[1:]:
        if len(rest) < len(TOTALS):
            said = re.search(rf"{device} {dtype} (all|at most \d+)", text)
            rest = [rest[0], said[1] if said else "", *rest[1:], "earlier"]
        found.setdefault((device, dtype), Column()).totals.append(rest)
    names = {_heading(key): key for key in found}
    for name, where, failed, *reason in rows("What fails, and why")[1:]:
        device, dtype, _ = where.split(" ", 2)
        if (device, dtype) in found:
            column = found[device, dtype]
            column.failures.setdefault(name, []).append([where, failed, "/".join(reason)])
    table = rows("Operations")
    for name, *cells in table[1:]:
        for heading, cell in zip(table[0][1:], cells, strict=True):
            if cell and heading in names:
                found[names[heading]].cells[name] = cell
    return found


def columns() -> dict[Key, Column]:
    """Return what the page is to say: what was run, and else what it says now."""
    results, before = read(), _page_before()
    found: dict[Key, Column] = {}
    for device in database.DEVICES:
        for dtype in database.DTYPES:
            key, kept = (device, dtype), results.get((device, dtype), {})
            whole = len(kept) >= 0.97 * _taken(dtype)
            if kept and (whole or key not in before):
                found[key] = _measured(key, kept)
            elif key in before:
                found[key] = _merged(key, before[key], kept)
    return found


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


def _failed(name: str, key: Key, result: dict[str, Any]) -> list[list[str]]:
    """Return what failed of an operation, with the reason or the first note."""
    rows = []
    for kind in KINDS:
        passed, failed, missing = counts(result, kind)
        if not failed + missing:
            continue
        notes = (result.get(kind) or {}).get("notes") or [result.get("died", "")]
        first = notes[0].partition(" <- ")[0].replace("|", "/").replace("\n", " ")[:160]
        why = _known(name) or f"`{first}`"
        if kind == "refused":
            why = f"taken here, or refused otherwise: `{first}`"
        total = passed + failed + missing
        rows.append([f"{' '.join(key)} {kind}", f"{failed + missing} of {total}", why])
    return rows


def _line(*cells: str) -> str:
    return "| " + " | ".join(cells) + " |"


def _text(found: dict[Key, Column]) -> str:
    """Return the page."""
    version, names = torch.__version__.split("+")[0], database.operations()
    lines = ["## Totals", "", _line("device", "dtype", *TOTALS)]
    lines += ["|---|---|---|---|---|--:|--:|--:|--:|---|"]
    lines += [_line(*key, *row) for key, column in found.items() for row in column.totals]
    lines += [
        "", "## What fails, and why", "",
        "Without a reason: the first message.", "", "| operation | where | failed | reason |", "|---|---|--:|---|",
    ]  # fmt: skip
    for name in names:
        lines += [_line(name, *row) for c in found.values() for row in c.failures.get(name, ())]
    lines += [
        "", "## Operations", "",
        "Samples that passed; in bold, passed/failed.", "",
        _line("operation", *(_heading(key) for key in found)),
        "|---|" + "--:|" * len(found),
    ]  # fmt: skip
    for name in names:
        cells = [column.cells.get(name, "") for column in found.values()]
        if any(cells):
            lines.append(_line(name, *cells))
    return HEAD.format(version=version, count=len(names)) + "\n" + "\n".join(lines) + "\n"


def in_full(found: dict[Key, Column]) -> list[str]:
    """Return the operations that passed every check of every column."""
    passed = []
    for name in database.operations():
        ran = any(re.search(r"\d", column.cells.get(name, "")) for column in found.values())
        rows = [row for column in found.values() for row in column.failures.get(name, ())]
        if ran and all(row[0].endswith(" refused") for row in rows):
            passed.append(name)
    return passed


def must_pass() -> list[str]:
    """Return the committed list of operations that pass in full."""
    return LIST.read_text(encoding="utf-8").splitlines() if LIST.exists() else []


def accept() -> None:
    """Make the operations that pass in full the committed list."""
    LIST.write_text("\n".join(in_full(columns())) + "\n", encoding="utf-8")


def write() -> list[str]:
    """Write the report. Return the operations of the committed list that did not pass, for no known reason."""
    found = columns()
    PAGE.write_text(_text(found), encoding="utf-8")
    twin = {" ".join(key): kept for key, kept in read().items()}
    CACHE.mkdir(parents=True, exist_ok=True)
    (CACHE / "conformance.json").write_text(json.dumps(twin, indent=1), encoding="utf-8")
    passed = set(in_full(found))
    ran = {name for column in found.values() for name in column.cells}
    return [n for n in must_pass() if n in ran and n not in passed and not _known(n)]
