"""Dawn's buffers in the host's own memory: what is read through them, and what two devices share."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.patience import PATIENCE

# Chromium's software adapter: Dawn takes no older lavapipe.
_DRIVER = Path("/usr/lib/chromium/vk_swiftshader_icd.json")

_PROGRAM = """
import mmap
import numpy as np
import webtorch as torch
from webtorch.ir.dtype import float32
from webtorch.runtime.realize import runtime_for

x = torch.arange(100_003, dtype=torch.float32, device="webgpu:0")
assert ((x * 2).cpu().numpy() == np.arange(100_003) * 2).all()
assert ((x * 3)[5:].cpu().numpy() == np.arange(5, 100_003) * 3).all()
backend = runtime_for("webgpu", 0).backend
assert backend.native._readable, "nothing was read through the host's memory"
pages = mmap.mmap(-1, 1 << 17)
block = backend.on_host(memoryview(pages))
np.frombuffer(pages, "f4")[:] = 7
buffer = block.buffer(float32, 1000)
del block
assert (np.frombuffer(backend.download(buffer), "f4") == 7).all()
held = backend.memory_allocated()
del buffer
assert backend.memory_allocated() == held
backend.empty_cache()
assert not backend.native._readable
print("done")
"""


@pytest.mark.skipif(not _DRIVER.exists(), reason="Chromium's Vulkan driver is not installed")
def test_large_reads_go_through_the_memory_of_the_host() -> None:
    pytest.importorskip("wgpudawn")
    environment = {
        **os.environ, "WEBTORCH_WEBGPU": "dawn", "VK_DRIVER_FILES": str(_DRIVER), "VK_ICD_FILENAMES": str(_DRIVER),
    }  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM],
        env=environment,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    assert done.stdout == "done\n", done.stderr[-2000:]
