"""`associative_scan` gives what PyTorch's does: values, gradients, errors."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch._higher_order_ops.associative_scan import associative_scan as pytorch_scan

import webtorch
from webtorch._higher_order_ops import associative_scan

# What is tested here is nearly the same on all devices.
pytestmark = pytest.mark.one_in(3, device="webgpu")

# The recurrence h = a h + b of state space models, and a product of matrices, which does not commute.
CASES: dict[str, Any] = {
    "sum": (lambda a, b: a + b, [(7, 3)], 0),
    "linear": (lambda s, t: (s[0] * t[0], t[0] * s[1] + t[1]), [(2, 9, 3), (2, 9, 3)], -2),
    "matrices": (lambda a, b: b @ a, [(2, 2, 5)], 2),
    "one": (lambda a, b: a * b, [(1, 4)], 0),
}


def structure(tensors: list[Any]) -> Any:
    return tensors[0] if len(tensors) == 1 else tuple(tensors)


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("case", CASES)
def test_values_and_gradients(case: str, reverse: bool, device: str) -> None:
    combine, shapes, dim = CASES[case]
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal(shape, dtype=np.float32) for shape in shapes]
    ours = [webtorch.tensor(a, device=device, requires_grad=True) for a in arrays]
    theirs = [torch.tensor(a, requires_grad=True) for a in arrays]
    found = associative_scan(combine, structure(ours), dim, reverse, "generic")
    wanted = pytorch_scan(combine, structure(theirs), dim, reverse, "generic")
    if len(shapes) == 1:
        found, wanted = [found], [wanted]
    for a, b in zip(found, wanted, strict=True):
        torch.testing.assert_close(torch.tensor(a.tolist()), b.detach(), rtol=1e-4, atol=1e-5)
    sum((x * x).sum() for x in found).backward()
    sum((x * x).sum() for x in wanted).backward()
    for x, y in zip(ours, theirs, strict=True):
        torch.testing.assert_close(torch.tensor(x.grad.tolist()), y.grad, rtol=1e-3, atol=1e-4)


def test_errors() -> None:
    for library, scan in ((webtorch, associative_scan), (torch, pytorch_scan)):
        x = library.ones(3, 0, device="cpu")
        with pytest.raises(ValueError, match="scan dimension > 0"):
            scan(torch.add, x, 1, combine_mode="generic")
        with pytest.raises(ValueError, match="combine_mode='pointwise', all input tensors"):
            scan(torch.add, x, 0)
        with pytest.raises(ValueError, match="Combine_mode must either"):
            scan(torch.add, x, 0, False, "other")
        with pytest.raises(ValueError, match="xs leaves must be a Tensor"):
            scan(torch.add, (x, 1), 0, combine_mode="generic")
        with pytest.raises(IndexError):
            scan(torch.add, x, 2, combine_mode="generic")
        with pytest.raises(ValueError, match="Combine_fn must be a callable"):
            scan(1, x, 0, combine_mode="generic")
