"""Factorisations by LAPACK: compiled, their errors, and WebGPU tensors. Values: tests/conformance."""

from __future__ import annotations

import pytest
import torch

import webtorch
from tests.conftest import need_device
from webtorch.errors import DeviceError


def _matrix(n: int) -> torch.Tensor:
    x = torch.rand(n, n, generator=torch.Generator().manual_seed(n), dtype=torch.float64)
    return x @ x.mT + torch.eye(n, dtype=torch.float64)


@pytest.mark.covers("E13")
def test_a_compiled_function_solves_and_differentiates() -> None:
    theirs = _matrix(5)

    @webtorch.compile
    def step(a: webtorch.Tensor) -> webtorch.Tensor:
        a = a.detach().requires_grad_()
        return webtorch.autograd.grad(webtorch.linalg.solve(a, a[:, 0] * 2).sum() + a.logdet(), a)[
            0
        ]

    for shift in (0.0, 1.0, 2.0):
        x = (theirs + shift).requires_grad_()
        (torch.linalg.solve(x, x[:, 0] * 2).sum() + x.logdet()).backward()
        found = step(webtorch.tensor((theirs + shift).numpy()))
        assert x.grad is not None
        torch.testing.assert_close(torch.tensor(found.tolist(), dtype=torch.float64), x.grad)


@pytest.mark.parametrize("name", ["inv", "solve", "cholesky"])
def test_a_singular_matrix_raises_pytorchs_error(name: str) -> None:
    arguments = {"solve": (webtorch.zeros(3, 3), webtorch.ones(3))}.get(
        name, (webtorch.zeros(3, 3),)
    )
    with pytest.raises(webtorch.linalg.LinAlgError, match=f"linalg.{name}"):
        getattr(webtorch.linalg, name)(*arguments)
    assert issubclass(webtorch.linalg.LinAlgError, RuntimeError)


def test_large_lu_and_triangular_solve() -> None:
    """Beyond one block of the blocked algorithms."""
    a = torch.rand(150, 150, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    p, lower, upper = webtorch.linalg.lu(webtorch.tensor(a.numpy()))
    for ours, theirs in zip((p, lower, upper), torch.linalg.lu(a), strict=True):
        torch.testing.assert_close(torch.from_numpy(ours.numpy()), theirs)
    x = webtorch.linalg.solve_triangular(upper, lower, upper=True)
    torch.testing.assert_close(
        torch.from_numpy((upper @ x).numpy()), torch.from_numpy(lower.numpy()), rtol=1e-6, atol=1e-6
    )


def test_webgpu_asks_before_it_moves_tensors() -> None:
    need_device("webgpu")
    a = webtorch.eye(3, device="webgpu") * 2
    with pytest.raises(DeviceError, match="allow_host_kernels"):
        webtorch.linalg.inv(a)
    before = webtorch.webgpu.allow_host_kernels()
    try:
        found = webtorch.linalg.inv(a)
        assert found.device.type == "webgpu"
        assert found.tolist() == [[0.5, 0, 0], [0, 0.5, 0], [0, 0, 0.5]]
    finally:
        webtorch.webgpu.allow_host_kernels(before)
