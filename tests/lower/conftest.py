"""What tests of several templates share."""

from __future__ import annotations

import pytest

from webtorch.lower.templates import gemm


@pytest.fixture
def tiles_for_small_products(monkeypatch: pytest.MonkeyPatch) -> None:
    """A software adapter takes tiles for products of any size: what tests of tiles multiply is small."""
    monkeypatch.setattr(gemm, "_MANY", 0)
