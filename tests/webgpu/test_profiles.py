"""Adapters that we do not have: the records, and a card's kernels on a software one (some of `make test-as-gpu`)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests import profiles
from tests.conftest import need_device
from tests.patience import PATIENCE
from webtorch.ir.dtype import float32
from webtorch.ir.kernel import BufferSlot, Matmul
from webtorch.ir.limits import Limits
from webtorch.lower.templates import gemm
from webtorch.lower.templates.matmul import product
from webtorch.lower.templates.tuning import FAMILIES
from webtorch.runtime.backends.webgpu.device import _limits

# Tiles with parts of k, joint products, several kernels in one dispatch, convolutions and attention.
_PROGRAM = """
import json, torch
from tests import profiles
profiles.pretend()
import webtorch
from webtorch.tensors.device import resolve
from webtorch.ir.kernel import Matmul, Products, Several

limits = resolve("webgpu").backend.limits
torch.manual_seed(0)

def pair(*shape):
    x = torch.randn(*shape)
    return x, webtorch.tensor(x.numpy(), device="webgpu")

far, kinds = {}, set()

def check(name, run, *pairs):
    compiled = webtorch.compile(lambda *given: run(webtorch, *given))
    found = compiled(*[p[1] for p in pairs])
    expected = run(torch, *[p[0].double() for p in pairs])
    kinds.update(type(r).__name__ for r in compiled.program().routines)
    far[name] = float((torch.tensor(found.tolist()) - expected).abs().max() / expected.abs().max())

for m, n, k in ((70, 36, 600), (1, 200, 129), (130, 66, 40)):
    check(f"product {m} {n} {k}", lambda t, a, b: (a @ b).relu() + 1, pair(m, k), pair(k, n))
check("one input", lambda t, x, a, b, c: t.cat([x @ a, x @ b, x @ c], 1),
      pair(33, 40), pair(40, 16), pair(40, 16), pair(40, 16))
check("convolution", lambda t, x, w: t.nn.functional.conv2d(x, w, padding=1).relu(),
      pair(2, 8, 12, 12), pair(16, 8, 3, 3))
check("attention", lambda t, q, k, v: t.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True),
      *[pair(1, 2, 40, 16) for _ in range(3)])
check("softmax", lambda t, x: x.softmax(-1).sum(0), pair(70, 129))
print(json.dumps({"family": limits.family, "gpu": limits.is_gpu, "kinds": sorted(kinds), "far": far}))
"""


def test_a_card_is_played_by_a_software_adapter() -> None:
    need_device("webgpu")
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM],
        capture_output=True, text=True, timeout=PATIENCE,
        env={**os.environ, profiles.VARIABLE: "H200", "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["family"] == "H200" and found["gpu"]
    assert {"Matmul", "Products", "Convolution", "Attention"} <= set(found["kinds"])
    assert max(found["far"].values()) < 2e-6, found["far"]


def test_a_profile_that_is_not_there_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(profiles.VARIABLE, "RTX9000")
    with pytest.raises(pytest.UsageError, match="RTX9000"):
        profiles.chosen()


def test_records_are_whole() -> None:
    """Every record has a source and no limit below WebGPU's defaults."""
    found = profiles.profiles()
    assert len(found) >= 12
    least = found["chrome-defaults"].limits
    for profile in found.values():
        if profile.source.startswith("made up"):
            continue
        assert profile.source and profile.adapter
        low, high = profile.subgroup
        assert 4 <= low <= high <= 128
        assert profile.limits.keys() == least.keys()
        assert all(v >= least[n] for n, v in profile.limits.items()), profile.name


# Rows, columns, inner: squares, a layer of a small network, the head of a language model, one row.
PRODUCTS = (
    (4096, 4096, 4096),
    (512, 512, 512),
    (256, 1024, 784),
    (512, 50257, 768),
    (1, 4096, 4096),
)


def limits_of(profile: profiles.Profile) -> Limits:
    """Return what the compiler would know of such an adapter."""
    adapter: Any = SimpleNamespace(
        name=profile.adapter, adapter_type=profile.type, is_hardware=profile.is_gpu
    )
    return profile.told(_limits(profile.limits, adapter, profile.features))


@pytest.mark.parametrize("name", profiles.profiles())
def test_tiles_suit_each_adapter(name: str) -> None:
    """A tile fits into a workgroup, and what is large keeps most multiprocessors at work until the end."""
    limits = limits_of(profiles.profiles()[name])
    for m, n, k in PRODUCTS:
        sizes = (m * k, k * n, m * n)
        slots = tuple(
            BufferSlot(float32, access, s)
            for access, s in zip(("read", "read", "write"), sizes, strict=True)
        )
        r = Matmul("product", (), m, n, k, (k, 1), (n, 1), 0, 0, slots)
        tile, split = gemm.choose(product(r), limits)
        assert split >= 1 and (tile is not None or not limits.is_gpu or m == 1)
        if tile is None:
            continue
        assert tile.threads <= limits.max_workgroup_invocations
        assert tile.shared_bytes <= limits.workgroup_memory_bytes
        groups, many = split * -(-m // tile.rows) * -(-n // tile.columns), FAMILIES[limits.family]
        turns = -(-groups // many.multiprocessors)
        assert groups / (turns * many.multiprocessors) >= 0.5, (tile, split, groups)


def test_a_pages_adapter_offers_no_more(
    chromium: Any, serve: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(profiles.VARIABLE, "chrome-defaults")
    page = chromium.new_page()
    page.add_init_script(profiles.page_script())
    page.goto(serve(tmp_path) + "blank")
    found = page.evaluate(
        """async () => {
          const adapter = await navigator.gpu.requestAdapter();
          const { maxBufferSize } = adapter.limits;
          const device = await adapter.requestDevice({ requiredLimits: { maxBufferSize } });
          const more = { requiredLimits: { maxBufferSize: 2 ** 29 } };
          const told = await adapter.requestDevice(more).catch((e) => e.message);
          return [maxBufferSize, device.limits.maxBufferSize, adapter.features.size, told];
        }"""
    )
    page.close()
    assert found == [2**28, 2**28, 0, "maxBufferSize: 536870912 is over 268435456"]
