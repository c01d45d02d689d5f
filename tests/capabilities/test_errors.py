"""Capability rows P: finding out what went wrong."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import webtorch
from tests.capabilities.same import close, ours, values
from webtorch.errors import ShapeError
from webtorch.ir.kernel import Kernel

# What is tested here is nearly the same on all devices.
pytestmark = pytest.mark.one_in(3, device="webgpu")


@pytest.mark.covers("P1")
def test_the_kernel_of_the_gpu_runs_as_plain_python(device: str) -> None:
    x = values(3, 5)
    compiled = webtorch.compile(lambda x: (x.exp() * x).sum(1))
    for _ in range(2):
        out = compiled(ours(x, device))
    (kernel,) = compiled.program().routines
    assert isinstance(kernel, Kernel)
    reads = [x.float().flatten().tolist() if b.access == "read" else None for b in kernel.buffers]
    (values_,) = webtorch.debug.step(kernel, 1, reads).values()
    assert values_[1] == pytest.approx(out[1].item(), rel=1e-5)
    assert values_[1] == pytest.approx((x[1].exp() * x[1]).sum().item(), rel=1e-5)
    assert list(values_) == [1]
    assert "def " in webtorch.debug.source(kernel)


@pytest.mark.covers("P3")
def test_a_late_error_names_the_users_line(device: str) -> None:
    table = webtorch.ones(4, 2, device=device)
    # Indices that are not there yet.
    bad = table[(table[:2, 0] * webtorch.tensor([1.0, 9.0], device=device)).long()]
    with pytest.raises(IndexError, match=r"index 9 .*size 4") as caught:
        bad.sum().item()
    assert "test_errors.py:" in str(caught.value)


@pytest.mark.covers("P4")
@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda a, b: a @ b, "matmul"),
        (lambda a, b: a + b.t()[:2], "add"),
        (lambda a, b: webtorch.bmm(a[None], b[None]), "bmm"),
        (lambda a, b: a.expand(4, 4), "expand"),
    ],
    ids=["matmul", "add", "bmm", "expand"],
)
def test_errors_of_shape_name_the_operation(call: Any, words: str, device: str) -> None:
    with pytest.raises(ShapeError, match=words):
        call(webtorch.ones(2, 3, device=device), webtorch.ones(2, 3, device=device))


@pytest.mark.covers("P6")
def test_intermediate_values_are_captured_by_hooks(device: str) -> None:
    nn = webtorch.nn
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)).to(device)
    seen: dict[str, Any] = {}
    for name, module in model.named_children():
        module.register_forward_hook(
            lambda m, args, out, name=name: (out.retain_grad(), seen.__setitem__(name, out))[0]
        )
    model(ours(values(5, 3), device)).square().sum().backward()
    assert {n: tuple(t.shape) for n, t in seen.items()} == {"0": (5, 4), "1": (5, 4), "2": (5, 2)}
    close(seen["1"], torch.tensor(seen["0"].tolist()).double().relu())
    close(seen["2"].grad, 2 * torch.tensor(seen["2"].tolist()).double())


@pytest.mark.covers("P7")
def test_a_probe_says_what_there_is(need: Any) -> None:
    assert isinstance(webtorch.webgpu.is_available(), bool)
    need("webgpu")
    assert webtorch.webgpu.get_device_name()
    with pytest.raises(RuntimeError, match=r"webgpu:97|97"):
        webtorch.ones(1, device="webgpu:97").tolist()
