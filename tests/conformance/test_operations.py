"""A quick, fixed sample of PyTorch's operator database; `make conformance` runs all of it.

Every operation of must_pass.txt passes in full there, and one sample of each here. After a full run,
`python -m tests.conformance.run --report --accept` writes the list anew.
"""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch

import webtorch
from tests.conftest import need_device

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from tests.conformance import bridge, check, database, report

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


def test_nothing_finite_agrees_with_an_infinite_value() -> None:
    infinite = torch.tensor([torch.inf])
    for dtype in (torch.float16, torch.float32, torch.complex64):
        exact, wide = infinite.to(dtype), infinite.to(torch.promote_types(dtype, torch.float64))
        assert check.difference(exact, exact, wide, 1e-3, 1e-5) is None
        for wrong in (5.0, 6e4, -torch.inf, torch.nan):
            assert check.difference(torch.full_like(exact, wrong), exact, wide, 1e-3, 1e-5)
    # Float16 has no 1e8: infinite is right there, also where PyTorch's own steps give NaN.
    exact, wide = torch.tensor([torch.nan]).half(), torch.tensor([1e8]).double()
    assert check.difference(infinite.half(), exact, wide, 1e-3, 1e-5) is None
    for wrong in (6e4, -torch.inf):
        assert check.difference(torch.full_like(exact, wrong), exact, wide, 1e-3, 1e-5)


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


# Whose gradient functions are used up otherwise than PyTorch's, which are made of other parts: linear_cross_entropy in
# Python, lu_unpack of triangles, cumulative_trapezoid and gradient of products by numbers in C++, transforms with
# scales of their own, padding of writes; or where nothing is to be computed and nothing is saved.
USED_UP_OTHERWISE = frozenset({
    "nn.functional.linear_cross_entropy (chunked)", "lu_unpack", "cumulative_trapezoid", "gradient",
    "fft.fft2", "fft.fftn", "fft.ifft2", "fft.ifftn", "fft.fft", "nn.functional.pad (circular)",
    "nn.functional.pad (reflect)", "nn.functional.alpha_dropout",
    "nn.functional.feature_alpha_dropout (with_train)", "index_put",
    "softmax", "softmax (with_dtype)", "nn.functional.softmin", "nn.functional.softmin (with_dtype)", "log_softmax",
    "log_softmax (with_dtype)", "nn.functional.group_norm", "native_group_norm", "nn.functional.pdist",
})  # fmt: skip


def _second_pass(lib: Any, fn: Any, sample: Any, post: Any) -> str:
    """Return what a second backward pass from the first result does: "" where there is no gradient."""
    leaves = [
        t
        for t in check._leaves([sample.input, list(sample.args), sample.kwargs])
        if check._differentiable(t) and t.requires_grad
    ]
    for out in check._leaves(post(check._call(fn, sample))):
        if check._differentiable(out) and out.requires_grad and not out.is_leaf:
            weight = lib.ones_like(out)
            lib.autograd.grad(out, leaves, weight, allow_unused=True)
            try:
                lib.autograd.grad(out, leaves, weight, allow_unused=True)
            except RuntimeError as error:
                return "raises" if "a second time" in str(error) else str(error)
            return "runs"
    return ""


@pytest.mark.one_in(8)
@pytest.mark.parametrize("part", range(8))
def test_a_second_backward_pass_raises_where_pytorchs_does(part: int) -> None:
    differing, count = [], 0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name, op in list(OPERATIONS.items())[part::8]:
            if torch.float64 not in op.dtypes or not op.supports_autograd:
                continue
            for sample in check.samples(op, torch.float64, True, 2):
                post = sample.output_process_fn_grad
                try:
                    theirs = _second_pass(torch, op.op, check._copied(sample), post)
                    carried = check._carried(sample, "cpu")
                except (RuntimeError, bridge.Unsupported):
                    continue
                ours = _second_pass(webtorch, bridge.function(op.op), carried, post)
                # What has no derivative in one of both is another matter.
                if ours and theirs:
                    count += 1
                    if ours != theirs and name not in USED_UP_OTHERWISE:
                        differing.append(
                            f"{name}: {ours}, in PyTorch {theirs}: {check._shown(sample, '')[:90]}"
                        )
    assert count > 100
    assert not differing, "\n".join(differing)


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
