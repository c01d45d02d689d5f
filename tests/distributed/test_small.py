"""Small sums are settled by their callers, who may be interrupted; gradients travel in buckets that hide their way."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.distributed import started


@pytest.mark.parametrize("shared", ["1", "0"])
@pytest.mark.parametrize(("library", "device"), [("webtorch", "cpu"), ("torch", "webgpu")])
def test_small_sums_and_buckets(tmp_path: Path, library: str, device: str, shared: str) -> None:
    words = ("small", tmp_path / "store", library, device)
    started.run(2, lambda _: words, WEBTORCH_SHARED_MEMORY=shared, WEBTORCH_PYTORCH_ENGINE="cpu")
