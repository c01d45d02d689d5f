"""Factorisations by LAPACK: compiled, their errors, and WebGPU tensors. Values: tests/conformance."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import webtorch
from tests import long
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


_ON_THE_DEVICE: dict[str, Callable[[Any, Any], Any]] = {
    "cholesky": lambda m, x: m.linalg.cholesky(x @ x.mH + m.eye(4, device=x.device, dtype=x.dtype)),
    "solve": lambda m, x: m.linalg.solve(x, 2 * x[..., :2] + 1),
    "inv": lambda m, x: m.linalg.inv(x),
    "det": lambda m, x: m.linalg.det(x),
    "lu": lambda m, x: m.linalg.lu(x)[2],
    "lu_solve": lambda m, x: m.linalg.lu_solve(*m.linalg.lu_factor(x), 2 * x + 1),
    "qr": lambda m, x: m.linalg.qr(x[..., :3])[0],
    "householder_product": lambda m, x: m.linalg.householder_product(x[..., :2], x[..., 0, :2] / 4),
    "lstsq": lambda m, x: m.linalg.lstsq(x[..., :3], x[..., 3:] + 1).solution,
    "eigh": lambda m, x: m.linalg.eigh(x + x.mH)[1].abs(),
    "eigvalsh": lambda m, x: m.linalg.eigvalsh(x + x.mH),
    "svd": lambda m, x: m.linalg.svd(x[..., :3], full_matrices=False)[2].abs(),
    "svdvals": lambda m, x: m.linalg.svdvals(x[..., :3].mT),
    "pinv": lambda m, x: m.linalg.pinv(x[..., :3]),
    "matrix_exp": lambda m, x: m.linalg.matrix_exp(x / 4),
    "cholesky_solve": lambda m, x: m.cholesky_solve(x, x.tril() + 3 * m.eye(4, device=x.device)),
}


@pytest.mark.parametrize("complex_", [False, True], ids=["real", "complex"])
@pytest.mark.parametrize("name", _ON_THE_DEVICE)
def test_webgpu_computes_factorisations_and_their_gradients(name: str, complex_: bool) -> None:
    need_device("webgpu")
    rng = np.random.default_rng(3)
    # Eigenvalues and singular values apart from each other: derivatives divide by their differences.
    given = 0.4 * rng.standard_normal((2, 4, 4)) + np.diag([0.5, 1.5, 3.0, 5.0])
    if complex_:
        given = given + 0.4j * rng.standard_normal((2, 4, 4))

    def run(module: Any, x: Any) -> list[Any]:
        x = x.requires_grad_()
        y = _ON_THE_DEVICE[name](module, x)
        # Not linear in rows and columns: of unitary matrices such sums are constant.
        weights = np.cos(np.arange(y.numel())).reshape(y.shape) + 1.5
        weights = module.tensor(weights.tolist()).to(y.device)
        again = long.runs()
        (first,) = module.autograd.grad((weights * y.abs() ** 2).sum(), x, create_graph=again)
        results = [y, first]
        # Second derivatives are made of the same kernels.
        if again:
            results += module.autograd.grad((weights.sum() * first.abs() ** 2).sum(), x)
        return [np.array(t.tolist()) for t in results]

    kind = np.complex64 if complex_ else np.float32
    found = run(webtorch, webtorch.tensor(given.astype(kind), device="webgpu"))
    for actual, expected in zip(found, run(torch, torch.tensor(given)), strict=True):
        size = np.abs(expected).max()
        np.testing.assert_allclose(actual / size, expected / size, atol=2e-4)


def test_webgpu_factors_batches_views_and_nothing() -> None:
    need_device("webgpu")
    x = np.random.default_rng(4).standard_normal((3, 2, 6, 6)).astype(np.float32)
    whole = webtorch.tensor(x, device="webgpu")
    part = whole[:, :, 1:, ::2].mT[..., :3]
    wanted = np.swapaxes(x[:, :, 1:, ::2], -1, -2)[..., :3]
    np.testing.assert_allclose(
        webtorch.linalg.inv(part).cpu().numpy(), np.linalg.inv(wanted), rtol=1e-3
    )
    # A stack against one matrix.
    b = np.ones((6, 2), np.float32)
    found = webtorch.linalg.solve(whole, webtorch.tensor(b, device="webgpu"))
    solved = np.linalg.solve(x, np.broadcast_to(b, (3, 2, 6, 2)))
    np.testing.assert_allclose(found.cpu().numpy(), solved, rtol=2e-3, atol=1e-4)
    for shape in ((0, 3, 3), (2, 0, 0)):
        empty = webtorch.zeros(shape, device="webgpu")
        assert webtorch.linalg.inv(empty).shape == shape
        assert webtorch.linalg.eigh(empty)[1].shape == shape
        assert webtorch.linalg.svdvals(empty).shape == shape[:-1]
        assert webtorch.linalg.det(empty).tolist() == [1.0] * shape[0]
    # Every example of a vmap is one more matrix.
    mapped = webtorch.func.vmap(webtorch.linalg.inv, in_dims=1, out_dims=1)(whole)
    np.testing.assert_allclose(mapped.cpu().numpy(), np.linalg.inv(x), rtol=2e-3, atol=1e-4)


def test_webgpu_reads_no_info_that_nobody_asked_for() -> None:
    need_device("webgpu")
    a = webtorch.stack([webtorch.eye(3), -webtorch.eye(3), webtorch.zeros(3, 3)]).to("webgpu")
    for call, wanted in (
        (webtorch.linalg.cholesky_ex, [0, 1, 1]),
        (webtorch.linalg.inv_ex, [0, 0, 1]),
        (webtorch.linalg.lu_factor_ex, [0, 0, 1]),
    ):
        found = call(a)
        # Still to be computed: nothing has waited.
        assert found[0]._storage.node.kind != "buffer"
        assert found.info.tolist() == wanted


def test_webgpu_factors_in_a_compiled_function() -> None:
    need_device("webgpu")

    @webtorch.compile
    def step(a: webtorch.Tensor) -> webtorch.Tensor:
        return webtorch.linalg.solve(a, a[:, :1]) + webtorch.linalg.svdvals(a).sum()

    for seed in range(3):
        x = np.random.default_rng(seed).standard_normal((5, 5)).astype(np.float32)
        wanted = np.linalg.solve(x, x[:, :1]) + np.linalg.svd(x)[1].sum()
        found = step(webtorch.tensor(x, device="webgpu")).cpu().numpy()
        np.testing.assert_allclose(found, wanted, rtol=1e-3)


def test_webgpu_exponentials_of_matrices_are_as_exact_as_pytorchs() -> None:
    """Each square doubles the error, so the fewer the better."""
    need_device("webgpu")
    x = np.random.default_rng(0).uniform(-2, 2, (64, 10, 10)).astype(np.float32)
    wanted = torch.matrix_exp(torch.tensor(x).double())
    found = torch.tensor(webtorch.matrix_exp(webtorch.tensor(x, device="webgpu")).tolist())
    error = (found - wanted).abs().amax((-2, -1)) / wanted.abs().amax((-2, -1))
    assert error.max() < 1e-6


@pytest.mark.long
def test_webgpu_factors_large_matrices() -> None:
    """Of 512 rows, in blocks; residuals as LAPACK's testers measure them."""
    need_device("webgpu")
    n, eps = 512, 2.0**-24
    x = np.random.default_rng(5).standard_normal((n, n)).astype(np.float32)
    s = x @ x.T + np.eye(n, dtype=np.float32)

    def ratio(difference: Any, of: Any) -> float:
        return float(np.abs(difference).sum(0).max() / (np.abs(of).sum(0).max() * n * eps))

    a = webtorch.tensor(x, device="webgpu")
    lower = webtorch.linalg.cholesky(webtorch.tensor(s, device="webgpu")).cpu().numpy()
    assert ratio(lower.astype(float) @ lower.T - s, s) < 30
    p, low, up = (t.cpu().numpy().astype(float) for t in webtorch.linalg.lu(a))
    assert ratio(p @ low @ up - x, x) < 30
    q, r = (t.cpu().numpy().astype(float) for t in webtorch.linalg.qr(a))
    assert ratio(q @ r - x, x) < 30
    assert ratio(q.T @ q - np.eye(n), np.eye(n)) < 30


@pytest.mark.parametrize(("n", "complex_"), [(5, True), (40, False)])
def test_webgpu_solves_with_factors_of_indefinite_matrices(n: int, complex_: bool) -> None:
    need_device("webgpu")
    rng = np.random.default_rng(n)
    a, b = (rng.standard_normal((2, n, k)) + 0j for k in (n, 3))
    if complex_:
        a, b = (x + 1j * rng.standard_normal(x.shape) for x in (a, b))
    a = a + np.swapaxes(a.conj(), -1, -2)
    a[0, range(n), range(n)] *= 0.05
    a, b = (x.astype(np.complex64) if complex_ else x.real.astype(np.float32) for x in (a, b))
    factors = webtorch.linalg.ldl_factor(webtorch.tensor(a, device="webgpu"), hermitian=True)
    # One matrix's factors serve a stack of right sides.
    for at in ((slice(None),), (0,)):
        x = webtorch.linalg.ldl_solve(
            factors.LD[at], factors.pivots[at], webtorch.tensor(b, device="webgpu"), hermitian=True
        )
        difference = np.abs(a[at].astype(complex) @ x.cpu().numpy() - b)
        size = np.abs(a[at]).sum(-1).max() * np.abs(x.cpu().numpy()).max()
        assert difference.max() < 2e-7 * n * size
    if complex_:
        with pytest.raises(webtorch.linalg.LinAlgError, match="ldl_factor"):
            webtorch.linalg.ldl_factor(webtorch.zeros(2, 2, device="webgpu"))


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


@pytest.mark.parametrize("shape", [(5, 3), (3, 5), (4, 4)], ids=str)
def test_least_squares_by_qr_are_pytorch_s(shape: tuple[int, int], device: str) -> None:
    generator = torch.Generator().manual_seed(1)
    # The last is of zeros, which LAPACK takes.
    a = torch.randn(3, *shape, generator=generator, dtype=torch.float64) * torch.tensor(
        [1.0, 1, 0]
    ).reshape(3, 1, 1)
    b = torch.randn(3, shape[0], 2, generator=generator, dtype=torch.float64)

    def run(module: Any, a: Any, b: Any) -> list[Any]:
        found = module.linalg.lstsq(a, b, driver="gels")
        assert found.rank.numel() == found.singular_values.numel() == 0
        x = found.solution
        one, two = a[:2].detach().requires_grad_(), b[:2].detach().requires_grad_()
        y = module.linalg.lstsq(one, two, driver="gels").solution
        slopes = module.autograd.grad((y.sin() * y).sum(), (one, two), create_graph=True)
        (second,) = module.autograd.grad(slopes[0].square().sum(), one)
        return [np.array(t.tolist()) for t in (x, found.residuals[:2], *slopes, second)]

    wanted = run(torch, a, b)
    ours = [webtorch.tensor(t.numpy()).to(device, webtorch.float32) for t in (a, b)]
    for found, expected in zip(run(webtorch, *ours), wanted, strict=True):
        size = np.abs(expected).max(initial=1e-9)
        np.testing.assert_allclose(found / size, expected / size, atol=1e-3)
    with pytest.raises(webtorch.linalg.LinAlgError, match="does not have full rank"):
        webtorch.linalg.lstsq(
            webtorch.tensor([[1.0, 0.0]] * 3).to(device), ours[1][0, :3], driver="gels"
        )


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


def test_the_condition_number_of_a_singular_matrix_is_infinite() -> None:
    for lib in (webtorch, torch):
        a = lib.diag(lib.tensor([1.0, 1.0, 0.0]))
        assert [lib.linalg.cond(a, p).item() for p in (1, "fro", "nuc", 2)] == [float("inf")] * 4


def test_pivots_are_looked_at_each_time() -> None:
    factors = webtorch.eye(2).expand(3, 2, 2)
    for first in (0, 3, 0, 3):
        pivots = webtorch.tensor([[first, 2]] * 3, dtype=webtorch.int32)
        with pytest.raises(RuntimeError, match="between 1 and LU"):
            webtorch.lu_unpack(factors, pivots)


def test_cholesky_inverse_says_which_number_of_the_diagonal_is_zero() -> None:
    for lib in (webtorch, torch):
        with pytest.raises(
            lib.linalg.LinAlgError, match="cholesky_inverse: The diagonal element 2 is zero"
        ):
            lib.cholesky_inverse(lib.tensor([[1.0, 0.0], [1.0, 0.0]]))


def test_geqrf_lies_by_columns() -> None:
    for lib in (webtorch, torch):
        assert lib.geqrf(lib.ones(2, 3, 2)).a.stride() == (6, 1, 3)


def test_the_largest_of_no_elements_has_a_gradient() -> None:
    for lib in (webtorch, torch):
        x = lib.zeros(0, 3, requires_grad=True)
        lengths = lib.zeros(2, dtype=lib.int64)
        found = lib.segment_reduce(x, "max", lengths=lengths, initial=2.0)
        assert found.tolist() == [[2.0] * 3] * 2
        found.sum().backward()
        assert x.grad.shape == (0, 3)


SEGMENTS = [
    ([1.0, 2, 3, math.nan, 5], {"lengths": [2, 0, 3]}),
    ([0.0, 0, 2, 2, 0], {"lengths": [2, 0, 3]}),
    ([1.0, -math.inf, math.inf, math.inf, -2], {"lengths": [2, 0, 3]}),
    ([1.0, 2, 3, 4, 5], {"offsets": [1, 2, 2, 4], "unsafe": True}),
    ([[1.0, 2, 3], [4, 5, 5]], {"lengths": [[1, 2], [0, 3]], "axis": -1}),
    ([[1.0, 2, 3], [4, 5, 5]], {"offsets": [[0, 1, 3], [0, 0, 3]], "axis": 1}),
    ([[1, 1], [math.nan, 1], [3, math.nan], [4, 1]], {"lengths": [1, 2, 1]}),
    ([], {"lengths": [0, 0]}),
]


@pytest.mark.parametrize("reduce", ["sum", "mean", "max", "min", "amax", "amin", "prod"])
def test_segments_are_reduced_as_pytorchs(reduce: str) -> None:
    def program(lib: Any, data: Any, options: dict[str, Any], initial: float | None) -> Any:
        x = lib.tensor(data, requires_grad=True)
        given = {n: lib.tensor(v) if isinstance(v, list) else v for n, v in options.items()}
        found = lib.segment_reduce(x, reduce, initial=initial, **given)
        found.backward(lib.arange(1.0, found.numel() + 1).reshape(found.shape))
        return found.tolist(), x.grad.tolist(), found.grad_fn.name()

    for data, options in SEGMENTS:
        for initial in (None, 2.0, -5.0, math.nan):
            ours, theirs = (program(lib, data, options, initial) for lib in (webtorch, torch))
            for actual, expected in zip(ours[:2], theirs[:2], strict=True):
                np.testing.assert_allclose(actual, expected, rtol=1e-6)
            assert ours[2] == theirs[2]


@pytest.mark.parametrize("reduce", ["max", "prod"])
def test_slopes_of_segments_have_slopes(reduce: str) -> None:
    x = webtorch.tensor([2.0, 3.0, 0.0, 5.0], dtype=webtorch.float64, requires_grad=True)
    lengths = webtorch.tensor([2, 2])

    def program(x: Any) -> Any:
        return webtorch.segment_reduce(x, reduce, lengths=lengths)

    assert webtorch.autograd.gradcheck(program, (x,))
    assert webtorch.autograd.gradgradcheck(program, (x,))


def test_what_segments_may_not_be() -> None:
    for lib in (webtorch, torch):
        x, one = lib.ones(2), lib.tensor([2])
        for message, reduce, options in (
            ("reduce argument must be either sum, prod, mean, amax or amin, got median", "median", {"lengths": one}),
            ("indices based reduction is not supported yet", "sum", {"indices": one, "lengths": one}),
            ("Either lengths or offsets must be defined", "sum", {}),
            ("lengths contains negative value!", "sum", {"lengths": lib.tensor([3, -1])}),
            ("not implemented for 'Float'", "sum", {"lengths": lib.tensor([2.0])}),
            ("the last dimension of lengths but got 0", "sum", {"lengths": lib.tensor(2)}),
        ):  # fmt: skip
            with pytest.raises((RuntimeError, ValueError, NotImplementedError), match=message):
                lib.segment_reduce(x, reduce, **options)
