"""Programs written for CUDA get the answers of a PyTorch that has none."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import webtorch

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="the oracle has CUDA here")


def _device(lib: Any) -> str:
    return "cuda" if lib.cuda.is_available() else "cpu"


def test_the_usual_questions() -> None:
    assert _device(webtorch) == _device(torch) == "cpu"
    for name in ("device_count", "is_initialized", "is_bf16_supported", "memory_allocated"):
        assert getattr(webtorch.cuda, name)() == getattr(torch.cuda, name)()
    for lib in (torch, webtorch):
        lib.cuda.manual_seed(1)
        lib.cuda.manual_seed_all(1)
        lib.cuda.empty_cache()
        for name in ("synchronize", "current_device", "get_device_name"):
            with pytest.raises(AssertionError, match="not compiled with CUDA enabled"):
                getattr(lib.cuda, name)()


@pytest.mark.filterwarnings("ignore:.*CUDA is not available")
def test_the_old_names_of_amp_warn_and_pass_everything_through() -> None:
    for lib in (torch, webtorch):
        w = lib.ones(2, 2, requires_grad=True)
        optimizer = lib.optim.SGD([w], lr=1.0)
        with pytest.warns(
            FutureWarning, match=r"torch.cuda.amp.GradScaler\(args...\)` is deprecated"
        ):
            scaler = lib.cuda.amp.GradScaler()
        with (
            pytest.warns(FutureWarning, match=r"torch.cuda.amp.autocast\(args...\)` is deprecated"),
            lib.cuda.amp.autocast(),
        ):
            loss = (w @ w).sum()
        assert str(loss.dtype) == "torch.float32"
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        assert w.tolist() == [[-3.0, -3.0], [-3.0, -3.0]]
