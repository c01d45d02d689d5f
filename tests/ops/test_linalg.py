"""Factorisations by LAPACK: compiled, their errors, and WebGPU tensors. Values: tests/conformance."""

from __future__ import annotations

from typing import Any

import numpy as np
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
    """Eigenvalues of any matrix are the one thing that only LAPACK computes."""
    need_device("webgpu")
    a = webtorch.eye(3, device="webgpu") * 2
    with pytest.raises(DeviceError, match="allow_host_kernels"):
        webtorch.linalg.eig(a)
    before = webtorch.webgpu.allow_host_kernels()
    try:
        found = webtorch.linalg.eigvals(a)
        assert found.device.type == "webgpu"
        assert found.tolist() == [2, 2, 2]
    finally:
        webtorch.webgpu.allow_host_kernels(before)


@pytest.mark.parametrize("hermitian", [False, True])
@pytest.mark.parametrize("size", [1, 2, 5, 8])
def test_ldl_of_complex_matrices_is_pytorch_s(size: int, hermitian: bool) -> None:
    generator = np.random.default_rng(size)
    a = generator.normal(size=(6, size, size)) + 1j * generator.normal(size=(6, size, size))
    a = a + np.swapaxes(a.conj() if hermitian else a, -1, -2)
    # Small diagonals make blocks of two.
    a[::2, range(size), range(size)] *= 0.05
    b = generator.normal(size=(6, size, 2)) + 0j
    wanted = torch.linalg.ldl_factor_ex(torch.from_numpy(a), hermitian=hermitian)
    found = webtorch.linalg.ldl_factor_ex(webtorch.from_numpy(a), hermitian=hermitian)
    assert found.pivots.tolist() == wanted.pivots.tolist()
    np.testing.assert_allclose(found.LD.numpy(), wanted.LD.numpy(), rtol=1e-9, atol=1e-11)
    x = webtorch.linalg.ldl_solve(
        found.LD, found.pivots, webtorch.from_numpy(b), hermitian=hermitian
    )
    np.testing.assert_allclose(a @ x.numpy(), b, atol=1e-8)


@pytest.mark.parametrize("generalised", [False, True])
@pytest.mark.parametrize("largest", [False, True])
def test_lobpcg_finds_extreme_eigenpairs(largest: bool, generalised: bool) -> None:
    generator = np.random.default_rng(4)
    a = generator.normal(size=(2, 24, 24))
    a = a @ np.swapaxes(a, -1, -2)
    b = generator.normal(size=(2, 24, 24))
    b = b @ np.swapaxes(b, -1, -2) + 24 * np.eye(24)
    steps: list[int] = []
    values, vectors = webtorch.lobpcg(
        webtorch.from_numpy(a), k=3, B=webtorch.from_numpy(b) if generalised else None, niter=200,
        largest=largest, tracker=lambda state: steps.append(state.ivars["istep"]),
    )  # fmt: skip
    assert steps[:2] == [1, 2] and len(steps) < 2 * 150
    weight = b if generalised else np.broadcast_to(np.eye(24), b.shape)
    exact = np.sort(np.linalg.eigvals(np.linalg.solve(weight, a)).real, axis=-1)
    exact = exact[:, ::-1][:, :3] if largest else exact[:, :3]
    np.testing.assert_allclose(values.numpy(), exact, rtol=1e-5, atol=1e-8)
    x = vectors.numpy()
    residual = a @ x - weight @ x * values.numpy()[:, None, :]
    assert np.abs(residual).max() < 1e-4


def test_gradients_of_lobpcg_are_pytorch_s() -> None:
    generator = np.random.default_rng(5)
    a = generator.normal(size=(9, 9))
    a = a @ a.T
    weight = generator.normal(size=(9, 2))

    def gradient(module: Any) -> Any:
        x = module.from_numpy(a).requires_grad_()
        values, vectors = module.lobpcg(x, k=2, tol=1e-12)
        (values.sum() + (vectors**2 * module.from_numpy(weight)).sum()).backward()
        return x.grad.numpy()

    np.testing.assert_allclose(gradient(webtorch), gradient(torch), rtol=1e-6, atol=1e-8)


def test_lobpcg_says_what_it_is_not_for() -> None:
    with pytest.raises(ValueError, match="smaller than 3 x"):
        webtorch.lobpcg(webtorch.eye(5), k=2)
    with pytest.raises(ValueError, match="method is one of"):
        webtorch.lobpcg(webtorch.eye(5), method="davidson")
