"""A quick, fixed sample of PyTorch's operator database; `make conformance` runs all of it.

Every operation of must_pass.txt passes in full there, and one sample of each here. After a full run,
`python -m tests.conformance.run --report --accept` writes the list anew.
"""

from __future__ import annotations

import warnings

import pytest
import torch

from tests.conftest import need_device

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from tests.conformance import check, database, report

OPERATIONS = database.operations()
NAMES = [name for name in report.must_pass() if database.takes(OPERATIONS[name], "float32")]
# Compiling for a software adapter is slow: there, every twentieth one. Gradients of every second.
CASES = [("cpu", name) for name in NAMES] + [("webgpu", name) for name in NAMES[::20]]
DERIVED = frozenset(NAMES[::2])


def test_the_list_names_operations_of_the_database() -> None:
    names = report.must_pass()
    assert len(names) > 400
    assert sorted(set(names)) == sorted(names)
    assert set(names) <= set(OPERATIONS)


@pytest.mark.one_in(6)
@pytest.mark.covers("Q1")
@pytest.mark.parametrize(("device", "name"), CASES, ids=[f"{d}-{n}" for d, n in CASES])
def test_results_and_gradients(device: str, name: str) -> None:
    need_device(device)
    op = OPERATIONS[name]
    results = {kind: check.Result() for kind in ("forward", "gradient", "second gradient")}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with check.host_kernels():
            check.forward(op, device, torch.float32, 1, results["forward"], gaps=False)
            if name in DERIVED:
                check.gradients(
                    op, device, torch.float32, 1, results["gradient"], results["second gradient"]
                )
    for kind, result in results.items():
        assert not result.failed and not result.missing, f"{name}: {kind}: {result.notes}"


@pytest.mark.one_in(8)
@pytest.mark.parametrize("part", range(8))
def test_what_pytorch_refuses_is_refused_with_its_type_of_error(part: int) -> None:
    failures = []
    with warnings.catch_warnings(), check.host_kernels():
        warnings.simplefilter("ignore")
        for name, op in list(OPERATIONS.items())[part::8]:
            result = check.Result()
            check.error_inputs(op, "cpu", 0, result)
            # PyTorch's narrow_copy fails an assertion of its own where all others raise IndexError.
            if name != "narrow_copy":
                failures += [f"{name}: {note}" for note in result.notes]
    assert not failures, "\n".join(failures)
