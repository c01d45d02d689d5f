"""What test suites of projects that use PyTorch have found (docs/upstream.md)."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import webtorch


@pytest.mark.parametrize("side", ["left", "right"])
def test_long_products_with_an_expanded_matrix(side: str) -> None:
    """A matrix whose columns are one memory is multiplied as exactly as its copy is (einops)."""
    x = np.random.default_rng(0).random(68_880, dtype=np.float32)
    ours, exact = webtorch.tensor(x), torch.tensor(x).double()
    expanded = ours[:, None].expand(-1, 4)
    out = expanded.T @ ours[:, None] if side == "left" else ours[None] @ expanded
    expected = torch.full(out.shape, (exact @ exact).item())
    torch.testing.assert_close(torch.tensor(out.tolist()), expected, rtol=2e-6, atol=0)
