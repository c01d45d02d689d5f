"""Capability rows Q and T: what makes the rest trustworthy, and whole models that learn."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import webtorch
from tests.capabilities.same import close, ours, values
from tests.patience import PATIENCE
from webtorch.ir.limits import Limits
from webtorch.lower.wgsl import render

# What is tested here is nearly the same on all devices.
pytestmark = pytest.mark.one_in(3, device="webgpu")

ROOT = Path(__file__).resolve().parents[2]


class Nets:
    """The same convolutional and attention networks in either library."""

    @staticmethod
    def conv(n: Any) -> Any:
        return n.Sequential(
            n.Conv2d(1, 4, 3, padding=1), n.BatchNorm2d(4), n.ReLU(), n.MaxPool2d(2),
            n.Flatten(), n.Linear(64, 3),
        )  # fmt: skip

    @staticmethod
    def attention(n: Any) -> Any:
        layer = n.TransformerEncoderLayer(
            8, 2, 16, dropout=0.0, batch_first=True, activation="gelu"
        )
        return n.Sequential(layer, n.LayerNorm(8), n.Flatten(), n.Linear(64, 3))


SHAPES = {"conv": (6, 1, 8, 8), "attention": (6, 8, 8)}


def pair(name: str, device: str) -> tuple[Any, Any, torch.Tensor, torch.Tensor]:
    """Return both networks with equal weights, and a batch."""
    torch.manual_seed(1)
    theirs = getattr(Nets, name)(torch.nn).double()
    mine = getattr(Nets, name)(webtorch.nn)
    mine.load_state_dict({k: ours(v, "cpu") for k, v in theirs.state_dict().items()})
    x = values(*SHAPES[name], seed=2)
    return mine.to(device), theirs, x, torch.arange(6) % 3


@pytest.mark.covers("Q4")
def test_both_devices_agree(need: Any) -> None:
    need("webgpu")
    for name in SHAPES:
        results = []
        for device in ("cpu", "webgpu"):
            model, _, x, _ = pair(name, device)
            out = model(ours(x, device))
            out.square().sum().backward()
            results.append([out, *(p.grad for p in model.parameters())])
        for a, b in zip(*results, strict=True):
            close(b, torch.tensor(a.tolist()).double(), 1e-3, 1e-3)


@pytest.mark.covers("Q7")
@pytest.mark.parametrize("name", SHAPES)
def test_every_layer_gives_what_pytorchs_gives(name: str, device: str) -> None:
    mine, theirs, x, _ = pair(name, device)
    seen: dict[str, list[Any]] = {}
    for model in (mine, theirs):
        for path, module in model.named_modules():
            module.register_forward_hook(
                lambda m, args, out, path=path: seen.setdefault(path, []).append(out)
            )
    mine(ours(x, device))
    theirs(x)
    compared = [
        path for path, outs in seen.items() if len(outs) == 2 and not isinstance(outs[0], tuple)
    ]
    assert len(compared) >= 5
    for path in compared:
        close(*seen[path], 1e-4, 1e-4)


@pytest.mark.one_in(2)
@pytest.mark.covers("Q10")
@pytest.mark.parametrize("name", SHAPES)
def test_a_model_learns_as_in_pytorch(name: str, device: str) -> None:
    mine, theirs, x, y = pair(name, device)
    losses: list[list[float]] = []
    for t, model, data, labels in [
        (webtorch, mine, ours(x, device), ours(y, device)),
        (torch, theirs, x, y),
    ]:
        optimizer = t.optim.AdamW(model.parameters(), lr=5e-3)
        losses.append([])
        for _ in range(6):
            optimizer.zero_grad()
            loss = t.nn.functional.cross_entropy(model(data), labels)
            loss.backward()
            optimizer.step()
            losses[-1].append(loss.item())
    assert losses[0] == pytest.approx(losses[1], abs=2e-3)
    assert losses[0][-1] < losses[0][0]


@pytest.mark.covers("Q5")
def test_without_an_adapter_everything_runs_on_the_cpu() -> None:
    program = """
import webtorch as torch
assert not torch.webgpu.is_available()
layer = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
x = torch.randn(32, 4)
for i in range(60):
    optimizer.zero_grad()
    loss = (layer(x) - x[:, :1]).square().mean()
    loss.backward()
    optimizer.step()
assert loss.item() < 0.1, loss.item()
try:
    torch.ones(1, device="webgpu")
except torch.errors.DeviceError as error:
    print(error)
"""
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "VK_ICD_FILENAMES": os.devnull,
        "VK_DRIVER_FILES": os.devnull,
        "LIBGL_DRIVERS_PATH": os.devnull,
        "__EGL_VENDOR_LIBRARY_FILENAMES": os.devnull,
    }
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=environment,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    assert done.returncode == 0, done.stderr
    assert "install" in done.stdout


@pytest.mark.covers("Q12")
@pytest.mark.parametrize(
    ("shape", "most"), [((8, 100), 65_535), ((3000, 700), 65_535), ((3000, 700), 50)]
)
def test_shaders_cover_every_output_within_the_limits(shape: tuple[int, int], most: int) -> None:
    limits = Limits(1 << 30, 8, 256, most, 16_384, has_f16=False, is_gpu=True)
    compiled = webtorch.compile(lambda x: (x * 2, x.sum(0), x.sum(1)))
    for _ in range(2):
        compiled(webtorch.ones(shape))
    for routine in compiled.program().routines:
        for part in render(routine, limits, "naga"):
            width = part.workgroup_size[0] * part.workgroup_size[1] * part.workgroup_size[2]
            assert 1 <= width <= limits.max_workgroup_invocations
            assert max(part.grid) <= most and min(part.grid) >= 1
            assert f"@workgroup_size({part.workgroup_size[0]}" in part.source
            assert len(part.bindings) + len(part.scratch) <= 8 + 2


@pytest.mark.covers("T1", "R3", "R9")
def test_linear_regression_in_pytorchs_words(device: str) -> None:
    import webtorch as torch  # the one changed line

    torch.manual_seed(0)
    x = torch.linspace(-1, 1, 64, device=device).unsqueeze(1)
    y = 3 * x - 2
    model = torch.nn.Linear(1, 1).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3)
    for _ in range(60):
        loss = torch.nn.functional.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert model.weight.item() == pytest.approx(3, abs=0.02)
    assert model.bias.item() == pytest.approx(-2, abs=0.02)
