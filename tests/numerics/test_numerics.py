"""Errors of elementwise operations stay within their bounds; `make numerics` writes the whole report."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.numerics.bounds import EXCEPTIONS, LIMIT, SPECIAL
from tests.numerics.measure import entries, measure
from tests.numerics.run import report

ENTRIES = entries()


@pytest.mark.filterwarnings("ignore")
def test_errors_stay_within_their_bounds(device: str) -> None:
    wrong = []
    cpu = not device.startswith("webgpu")
    with np.errstate(all="ignore"):
        # On WebGPU a part of them: each is a kernel to compile.
        for op in ENTRIES if cpu else ENTRIES[::6]:
            found = measure(op, device, 300)
            bound = EXCEPTIONS[op.name].ulp if op.name in EXCEPTIONS else LIMIT
            if not found.ulp <= bound:
                wrong.append(f"{op.name}: {found.ulp:.4g} ulp at {found.at}, {bound} are allowed")
            if cpu and found.special and op.name not in SPECIAL:
                wrong.append(
                    f"{op.name}: another kind of number than PyTorch's at {found.special[:3]}"
                )
    assert wrong == []


def test_exceptions_are_of_operations_that_are_measured() -> None:
    names = {op.name for op in ENTRIES}
    assert set(EXCEPTIONS) <= names and set(SPECIAL) <= names
    assert len(names) > 80


def test_the_report_has_a_row_for_each_operation() -> None:
    row: dict[str, Any] = {"ulp": 0.5, "at": [1.0], "torch_ulp": 0.25, "special": []}
    text = report({"CPU": {"exp": row, "sinc": {**row, "ulp": 1e6}}, "lavapipe": {"exp": row}})
    assert "| exp | 0.50 | 0.50 | 0.25 | 1 | 0/0 |  |" in text
    assert "| sinc | 1.0e+06 | - |" in text and EXCEPTIONS["sinc"].reason in text
