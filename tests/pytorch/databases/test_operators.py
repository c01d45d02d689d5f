"""A quick, fixed part of PyTorch's operator database on "webgpu", by PyTorch's own machinery for test classes.

`make conformance-torch` runs all of it. The samples are made on the device itself.
"""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from torch.testing._internal.common_device_type import instantiate_device_type_tests, ops
    from torch.testing._internal.common_utils import TestCase

    from tests.conftest import need_device
    from tests.pytorch.databases import check, report
    from tests.pytorch.databases.compiled import WAYS

# Every operation passes here on the CPU engine; compiling for a software adapter is slow, so some stand for all.
_NAMES = [
    "addmm",
    "argmax",
    "cat",
    "clamp",
    "cumsum",
    "gather",
    "index_put",
    "index_select",
    "logsumexp",
    "masked_fill",
    "masked_select",
    "nn.functional.avg_pool2d",
    "nn.functional.batch_norm",
    "nn.functional.conv2d",
    "nn.functional.cross_entropy",
    "nn.functional.gelu",
    "nn.functional.group_norm",
    "nn.functional.layer_norm",
    "nn.functional.max_pool2d",
    "nn.functional.mse_loss",
    "pow",
    "repeat_interleave",
    "scatter_add",
    "select_scatter",
    "softmax",
    "sort",
    "split",
    "topk",
    "tril",
    "var_mean",
    "view_as_complex",
    "where",
]
OPERATIONS = [
    op for op in report.operations().values() if op.name in _NAMES and not op.variant_test_name
]
# Through the compiler, what no model of the tests contains.
_COMPILED_NAMES = [
    "aminmax",
    "as_strided_scatter",
    "histogram",
    "index_reduce",
    "linalg.solve",
    "nn.functional.bilinear",
    "nn.functional.ctc_loss",
    "nn.functional.grid_sample",
    "nonzero_static",
    "put",
    "scatter",
    "tensor_split",
]
COMPILED = [
    op
    for op in report.operations().values()
    if op.name in _COMPILED_NAMES and op.variant_test_name in ("", "mean")
]


class TestOperators(TestCase):
    """Results of the first sample with a result, and gradients of every second operation."""

    def setUp(self) -> None:
        super().setUp()
        need_device("webgpu")

    @ops(OPERATIONS, allowed_dtypes=(torch.float32,))
    def test_results_and_gradients(self, device: str, dtype: torch.dtype, op: Any) -> None:
        results = {"forward": check.Result(), "gradient": check.Result()}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            check.forward(op, dtype, 1, results["forward"])
            if _NAMES.index(op.name) % 2:
                check.gradients(op, dtype, 1, results["gradient"])
        for kind, result in results.items():
            assert not result.failed and not result.missing, f"{op.name}: {kind}: {result.notes}"
        assert results["forward"].passed
        assert not torch.webgpu.fallback_counts()

    @ops(COMPILED, allowed_dtypes=(torch.float32,))
    def test_compiled(self, device: str, dtype: torch.dtype, op: Any) -> None:
        result = check.Result()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            kind = check.gradients if op.supports_autograd else check.forward
            kind(op, dtype, 1, result, WAYS["compiled"])
        assert not result.failed and not result.missing, f"{op.name}: {result.notes}"
        assert result.passed
        assert not torch.webgpu.fallback_counts()


instantiate_device_type_tests(TestOperators, globals(), only_for=("privateuse1",))


def test_the_class_was_made_for_the_device() -> None:
    made = globals().get("TestOperatorsPRIVATEUSE1")
    assert made is not None
    names = [n for n in dir(made) if n.startswith("test_results")]
    assert len(names) == len(OPERATIONS) >= 30


@pytest.mark.parametrize("name", sorted(report.REASONS))
def test_reasons_are_of_operations(name: str) -> None:
    assert name in report.operations()
