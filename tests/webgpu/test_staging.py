"""Large tensors go to the device and come back through memory that the host maps, which is used again."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import webtorch
from webtorch.runtime.backends import get_backend
from webtorch.runtime.backends.webgpu import staging
from webtorch.runtime.backends.webgpu.transfer import LARGE

COUNT = LARGE // 4 + 3


def _written() -> int:
    return sum(map(len, get_backend("webgpu", 0).staging._returning.values()))


@pytest.mark.parametrize("dtype", ["float32", "uint8", "int64", "bool", "float16"])
def test_values_go_there_and_back(dtype: str) -> None:
    """Also where the size is no multiple of a word."""
    count = LARGE // np.dtype(dtype).itemsize * (2 if dtype == "int64" else 1) + 3
    values = (np.arange(count) % 251).astype(dtype)
    there = webtorch.tensor(values, device="webgpu")
    assert np.array_equal(there.cpu().numpy(), values)
    assert _written()


def test_memory_is_written_again_only_when_the_device_has_read_it() -> None:
    """Many uploads in a row, none of which is waited for."""
    values = [np.full(COUNT, float(i), np.float32) for i in range(12)]
    there = [webtorch.tensor(v, device="webgpu") for v in values]
    assert [float(t[0]) + float(t[-1]) for t in there] == [2.0 * i for i in range(12)]
    assert _written() < 12


def test_no_more_is_kept_than_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond it a buffer of that size is waited for, and buffers of other sizes are let go."""
    get_backend("webgpu", 0).empty_cache()
    monkeypatch.setattr(staging, "_KEPT", 3 * LARGE)
    for count in (COUNT, COUNT, COUNT, 2 * COUNT, COUNT):
        values = np.random.default_rng(count).random(count, np.float32)
        assert np.array_equal(webtorch.tensor(values, device="webgpu").cpu().numpy(), values)
    kept = get_backend("webgpu", 0).staging
    assert kept._writable_bytes <= 4 * LARGE
    kept.release()
    assert kept._writable_bytes == 0 and not _written()


def test_without_memory_for_it_the_queue_writes(monkeypatch: pytest.MonkeyPatch) -> None:
    """As small tensors are written."""
    monkeypatch.setattr(staging.Staging, "take_writable", lambda *_: None)
    values = np.arange(COUNT, dtype=np.float32)
    assert np.array_equal(webtorch.tensor(values, device="webgpu").cpu().numpy(), values)


def test_pytorch_reads_into_the_memory_of_the_result() -> None:
    """One copy, of whole tensors and of parts."""
    import webtorch.pytorch  # noqa: F401

    x = torch.arange(COUNT, dtype=torch.float32)
    there = x.to("webgpu")
    assert torch.equal(there.cpu(), x)
    assert torch.equal(there[5:].cpu(), x[5:])
    assert torch.equal(there.to(torch.bfloat16).cpu(), x.to(torch.bfloat16))
