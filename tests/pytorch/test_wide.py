"""float64 and complex128 on "webgpu", which WebGPU lacks: computed by the CPU engine, as PyTorch does on the CPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from webtorch.errors import DTypeError
from webtorch.pytorch import device as bridge
from webtorch.runtime.backend import FEW

WIDE = torch.float64
Program = Callable[[Any, Any, str], Any]

# x is float64, y float32.
PROGRAMS: dict[str, Program] = {
    "made": lambda x, y, d: torch.linspace(0, 1, 3, dtype=WIDE, device=d) + torch.eye(3, dtype=WIDE, device=d),
    "converted": lambda x, y, d: y.double() / 3,
    "narrowed": lambda x, y, d: (x / 3).float() + y,
    "of two types": lambda x, y, d: x * y - y * 2.5,
    "without dims": lambda x, y, d: y * torch.tensor(1.5, dtype=WIDE, device=d),
    "beside integers": lambda x, y, d: torch.arange(4, device=d) * x[0, 0],
    "compared": lambda x, y, d: torch.where(x > 0, y, x),
    "chosen": lambda x, y, d: x[y > 0],
    "summed wider": lambda x, y, d: y.sum(0, dtype=WIDE) + F.softmax(y, 0, dtype=WIDE)[0],
    "extremes": lambda x, y, d: x.max(1).indices + x.argsort(1)[:, 0] + x.cummax(1).indices[:, 0],
    "products": lambda x, y, d: F.linear(x, x) @ x,
    "layers": lambda x, y, d: F.conv1d(F.layer_norm(x, (4,))[None], x[None, :, :2].clone()),
    "factors": lambda x, y, d: torch.linalg.solve(x @ x.t(), x) + torch.linalg.svdvals(x).sum(),
    "in place": lambda x, y, d: x.clone().add_(y).mul_(2).clamp_(min=0),
    "into float32": lambda x, y, d: y.clone().add_(x).copy_(x * 2),
    "a row": lambda x, y, d: x.clone().index_fill_(0, torch.tensor([1], device=d), 3.0).t().contiguous(),
    "out": lambda x, y, d: torch.add(y, y, out=torch.empty(3, 4, dtype=WIDE, device=d)),
    "bits": lambda x, y, d: x.view(torch.int32)[0, 1::2].clone(),
    "complex": lambda x, y, d: (torch.complex(x, x) * 2j).conj().abs() + torch.fft.fft(x).real,
    "joined": lambda x, y, d: torch.cat([x, y, x.round()]),
    "scattered": lambda x, y, d: x.scatter_add(0, torch.zeros(1, 4, dtype=torch.int64, device=d), x),
    "lists": lambda x, y, d: torch._foreach_mul(torch._foreach_add([x, x], 1.5), 2)[1],
    "drawn": lambda x, y, d: torch.rand(3, dtype=WIDE, device=d).lt(1) & x[:, 0].normal_().isfinite(),
    "dropped": lambda x, y, d: (F.dropout(x, 0.5).div(x) - 1).abs() == 1,
    "loss": lambda x, y, d: F.cross_entropy(x, torch.tensor([0, 1, 2], device=d)),
    "sparse": lambda x, y, d: x.relu().to_sparse() @ x.t() + x.relu().to_sparse_csr() @ x.t(),
}  # fmt: skip


def given(device: str) -> tuple[torch.Tensor, torch.Tensor]:
    x = torch.randn(3, 4, dtype=WIDE, generator=torch.Generator().manual_seed(0))
    return x.to(device), x.float().to(device)


@pytest.fixture(autouse=True)
def _the_cpu_is_asked(float64_is: Callable[[str], None]) -> None:
    float64_is("cpu")


def test_few_elements_stay_on_the_device_unasked(
    webgpu: str, float64_is: Callable[[str], None]
) -> None:
    float64_is("")
    x, y = torch.ones(2, device=webgpu), torch.tensor(0.1, dtype=WIDE, device=webgpu)
    found = x.double().mul_(y).add_(1)
    assert found.dtype is WIDE and found.tolist() == [1.1, 1.1]
    assert bridge.memory_of(found).storage.runtime is bridge.runtime()
    many = torch.ones(FEW + 1, device=webgpu)
    if bridge.runtime().backend.name == "webgpu":
        with pytest.raises(NotImplementedError, match=r"float64 is not available.*FLOAT64=words"):
            many.double()
    else:
        assert many.double().dtype is WIDE


@pytest.mark.filterwarnings("ignore:Sparse")
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_of_float64_gives_what_the_cpu_gives(name: str, webgpu: str) -> None:
    # Twice: kinds of calls are remembered.
    for _ in range(2):
        ours, theirs = (PROGRAMS[name](*given(d), d) for d in (webgpu, "cpu"))
        assert ours.device.type == "webgpu" and ours.dtype is theirs.dtype
        torch.testing.assert_close(ours.cpu(), theirs)


def test_gradients_of_float64_are_as_exact_as_gradcheck_wants(webgpu: str) -> None:
    x, _ = given(webgpu)
    x.requires_grad_()
    assert torch.autograd.gradcheck(lambda x: (x.sin() * x).sum(0), [x], check_forward_ad=True)
    assert torch.autograd.gradgradcheck(lambda x: F.linear(x, x).tanh(), [x])


@pytest.mark.parametrize("name", ["SGD", "Adam"])
def test_a_model_of_float64_trains(name: str, webgpu: str) -> None:
    found = []
    for device in ("cpu", webgpu):
        x, _ = given(device)
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.Tanh(), torch.nn.LayerNorm(3))
        model = model.double().to(device)
        optimizer = getattr(torch.optim, name)(model.parameters(), lr=0.1)
        for _ in range(3):
            optimizer.zero_grad()
            model(x).pow(3).sum().backward()
            optimizer.step()
        found.append(torch.cat([p.detach().cpu().flatten() for p in model.parameters()]))
    torch.testing.assert_close(*found)


def test_integers_follow_the_default_type(webgpu: str, float64_is: Callable[[str], None]) -> None:
    x = torch.arange(1, 4, device=webgpu)
    runs = (lambda y: y / y, lambda y: y * 1.5, lambda y: y + y)
    try:
        for kind in (torch.float32, WIDE, torch.float32):
            torch.set_default_dtype(kind)
            for run in runs:
                for _ in range(3):
                    ours, theirs = run(x), run(x.cpu())
                    assert ours.dtype is theirs.dtype
                    torch.testing.assert_close(ours.cpu(), theirs)
        float64_is("error")
        if bridge.host() is not bridge.runtime():
            torch.set_default_dtype(WIDE)
            for run in runs[:2]:
                with pytest.raises(DTypeError, match="float64 is not available"):
                    run(x)
    finally:
        torch.set_default_dtype(torch.float32)
