"""Factorisations as WGSL on a real adapter: residuals as LAPACK's testers measure them, in units of n eps |A|."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from tests.lower.harness import open_device
from webtorch.ir.dtype import float32
from webtorch.ir.kernel import ON_WEBGPU, BufferSlot, Host
from webtorch.lower.templates.matrices import FUNCTIONS
from webtorch.lower.wgsl import render

Array = np.ndarray[Any, Any]
EPSILON = 2.0**-24
# LAPACK's testers pass what is below 30.
MOST = 30.0
# In a workgroup's memory, and in blocks, the last of which is not whole.
SIZES = [1, 5, 33, 70]


def matrices(*shape: int, complex_: bool = False) -> Array:
    rng = np.random.default_rng(sum(shape))
    x = rng.standard_normal(shape)
    return x + 1j * rng.standard_normal(shape) if complex_ else x


def run(
    name: str,
    inputs: list[Array],
    params: tuple[Any, ...],
    shapes: list[tuple[int, ...]],
    memory: int = 16384,
) -> list[Array]:
    """Run a function of whole arrays; `shapes` are those of its results, `memory` a workgroup's bytes."""
    device = open_device()
    limits = replace(device.limits, workgroup_memory_bytes=memory)
    complex_ = any(np.iscomplexobj(x) for x in inputs)
    given = [_flat(x, complex_) for x in inputs]
    sizes = [int(np.prod(s)) * (2 if complex_ else 1) for s in shapes]
    slots = [BufferSlot(float32, "read", x.size) for x in given]
    routine = Host(
        name, f"complex {name}" if complex_ else name, params,
        tuple((*x.shape, 2) if complex_ else x.shape for x in inputs),
        (*slots, BufferSlot(float32, "write", sum(sizes))),
    )  # fmt: skip
    flat = device.run(routine, [*given, None], limits=limits)[len(given)]
    found, at = [], 0
    for shape, size in zip(shapes, sizes, strict=True):
        part = flat[at : at + size]
        found.append((part.view(np.complex64) if complex_ else part).reshape(shape))
        at += size
    return found


def _flat(x: Array, complex_: bool) -> Array:
    return (
        x.astype(np.complex64).reshape(-1).view(np.float32)
        if complex_
        else x.astype(np.float32).reshape(-1)
    )


def norm(a: Array) -> float:
    return float(np.abs(a).sum(-2).max())


def adjoint(a: Array) -> Array:
    return np.swapaxes(a.conj(), -1, -2)


def ratio(difference: Array, a: Array) -> float:
    return norm(difference) / (norm(a) * max(a.shape[-2:]) * EPSILON)


@pytest.mark.parametrize("complex_", [False, True], ids=["real", "complex"])
@pytest.mark.parametrize("n", SIZES)
def test_cholesky(n: int, complex_: bool) -> None:
    a = matrices(2, n, n, complex_=complex_)
    a = (a @ adjoint(a) + np.eye(n)).astype(np.complex64 if complex_ else np.float32)
    lower, info = run("cholesky", [a], (), [(2, n, n), (2,)])
    assert not info.any()
    assert not np.triu(lower, 1).any()
    assert ratio(lower.astype(complex) @ adjoint(lower) - a, a) < MOST


@pytest.mark.parametrize("n", [3, 70])
def test_cholesky_says_which_minor_is_not_positive(n: int) -> None:
    a = np.stack([np.eye(n)] * 3)
    a[1, n - 2, n - 2] = -1
    a[2, 1, 1] = np.nan
    _, info = run("cholesky", [a], (), [(3, n, n), (3,)])
    assert info.tolist() == [0, n - 1, 2]


@pytest.mark.parametrize("complex_", [False, True], ids=["real", "complex"])
@pytest.mark.parametrize("shape", [(n, n) for n in SIZES] + [(70, 9), (9, 90), (90, 70)], ids=str)
def test_lu(shape: tuple[int, int], complex_: bool) -> None:
    m, n = shape
    a = matrices(2, m, n, complex_=complex_).astype(np.complex64 if complex_ else np.float32)
    k = min(m, n)
    packed, pivots, info = run("lu_factor", [a], (True,), [(2, m, n), (2, k), (2,)])
    assert not info.any()
    (rows,) = run("permutation", [pivots.real], (m,), [(2, m)])
    lower = np.tril(packed, -1)[..., :k] + np.eye(m, k)
    upper = np.triu(packed)[:, :k]
    for i in range(2):
        assert sorted(rows[i]) == list(range(m))
        assert ratio(lower[i] @ upper[i] - a[i][rows[i].astype(int)], a[i]) < MOST
    # LAPACK compares complex numbers by the sum of their parts' absolute values.
    assert np.abs(lower.real).max() <= (2 if complex_ else 1)


@pytest.mark.parametrize("n", [4, 70])
def test_lu_says_where_a_pivot_is_missing(n: int) -> None:
    a = matrices(2, n, n)
    a[1, :, n - 2] = a[1, :, 0]
    a[1, :, n - 2] = 0
    _, _, info = run("lu_factor", [a], (True,), [(2, n, n), (2, n), (2,)])
    assert info.tolist() == [0, n - 1]


@pytest.mark.parametrize("unit", [False, True])
@pytest.mark.parametrize("upper", [False, True])
@pytest.mark.parametrize("complex_", [False, True], ids=["real", "complex"])
@pytest.mark.parametrize("n", SIZES)
def test_triangular_systems(n: int, complex_: bool, upper: bool, unit: bool) -> None:
    a = matrices(2, n, n, complex_=complex_) * (0.5 / n) + np.eye(n)
    b = matrices(2, n, 5, complex_=complex_)
    (x,) = run("solve_triangular", [a, b], (upper, unit), [(2, n, 5)])
    whole = np.triu(a, 1) if upper else np.tril(a, -1)
    whole = whole + (np.eye(n) if unit else np.eye(n) * a)
    assert norm(whole @ x - b) / (norm(whole) * norm(x) * n * EPSILON) < MOST


@pytest.mark.parametrize("complex_", [False, True], ids=["real", "complex"])
@pytest.mark.parametrize("shape", [(n, n) for n in SIZES] + [(70, 9), (9, 90), (90, 70)], ids=str)
def test_qr(shape: tuple[int, int], complex_: bool) -> None:
    m, n = shape
    k = min(m, n)
    a = matrices(2, m, n, complex_=complex_)
    a[0, :, 0] *= 1e-25
    a[1] *= 1e25
    packed, tau = run("geqrf", [a], (), [(2, m, n), (2, k)])
    v = (np.tril(packed, -1)[..., :k] + np.eye(m, k)).astype(complex)
    for i in range(2):
        q = np.eye(m, dtype=complex)
        for j in range(k):
            q = q - tau[i, j] * np.outer(q @ v[i, :, j], v[i, :, j].conj())
        assert ratio(q @ np.triu(packed[i]) - a[i], a[i]) < MOST
        assert norm(adjoint(q) @ q - np.eye(m)) / (m * EPSILON) < MOST
        # As LAPACK's: R's diagonal is real, and has the sign that adds.
        assert not np.diagonal(packed[i]).imag[: k - 1].any()
        assert np.sign(packed[i, 0, 0].real) == -np.sign(a[i, 0, 0].real) or m == 1


def test_a_column_of_zeros_is_reflected_by_nothing() -> None:
    packed, tau = run("geqrf", [np.zeros((1, 4, 2))], (), [(1, 4, 2), (1, 2)])
    assert not packed.any()
    assert not tau.any()


@pytest.mark.parametrize("vectors", [False, True])
@pytest.mark.parametrize("complex_", [False, True], ids=["real", "complex"])
@pytest.mark.parametrize(
    ("shape", "memory"),
    [((1, 1), 16384), ((6, 5), 16384), ((24, 24), 16384), ((9, 7), 4352), ((20, 19), 4352)],
    ids=["1", "6x5", "24", "9x7 in blocks", "20x19 in blocks"],
)
def test_orthogonal_columns(
    shape: tuple[int, int], memory: int, complex_: bool, vectors: bool
) -> None:
    m, n = shape
    a = matrices(2, m, n, complex_=complex_) * 1e20
    if n > 2:
        # A column twice, and one of zeros.
        a[1, :, 2] = a[1, :, 1]
        a[1, :, 0] = 0
    # Workgroup memory of blocks is what they declare: limits only choose the method here.
    shapes = [(2, m, n), (2, n), (2,), *([(2, n, n)] if vectors else [])]
    found = run("orthogonal_columns", [a], (vectors,), shapes, memory)
    w, norms, info = (x.astype(complex) for x in found[:3])
    assert not info.any()
    exact = np.linalg.svd(a, compute_uv=False)
    for i in range(2):
        assert np.abs(norms[i].real - exact[i]).max() < MOST * n * EPSILON * exact[i, 0]
        assert (np.diff(norms[i].real) <= 0).all()
        if vectors:
            v = found[3][i].astype(complex)
            assert norm(adjoint(v) @ v - np.eye(n)) / (n * EPSILON) < MOST
            assert ratio(a[i] @ v - w[i], a[i]) < MOST


def test_many_columns_turn_in_one_workgroup() -> None:
    """Loops of an invocation have 65,535 turns on Mesa's software adapters."""
    a = matrices(1, 70, 70)
    _, norms, info = run("orthogonal_columns", [a], (False,), [(1, 70, 70), (1, 70), (1,)], 32768)
    assert not info.any()
    np.testing.assert_allclose(norms, np.linalg.svd(a, compute_uv=False), atol=1e-4)


def test_numbers_that_are_not_finite_are_told() -> None:
    a = matrices(3, 4, 4)
    a[1, 2, 3] = np.inf
    a[2, 0, 1] = np.nan
    for memory in (16384, 4352):
        *_, info = run("orthogonal_columns", [a], (False,), [(3, 4, 4), (3, 4), (3,)], memory)
        assert info.tolist() == [0, 1, 1]


@pytest.mark.parametrize("memory", [16384, 4608], ids=["one workgroup", "products"])
def test_squares_as_often_as_each_matrix_needs(memory: int) -> None:
    a = matrices(4, 11, 11)
    a /= np.linalg.norm(a, 2, axis=(1, 2), keepdims=True)
    times = np.array([0.0, 1, 2, 5])
    (found,) = run("squared", [a, times.reshape(4, 1, 1)], (), [(4, 11, 11)], memory)
    for i in range(4):
        wanted = np.linalg.matrix_power(a[i], 2 ** int(times[i]))
        np.testing.assert_allclose(found[i], wanted, atol=1e-5 * np.abs(wanted).max() + 1e-7)


@pytest.mark.parametrize("kind", ["real", "symmetric", "hermitian"])
@pytest.mark.parametrize("n", SIZES)
def test_ldl_is_lapack_s(n: int, kind: str) -> None:
    a = matrices(3, n, n, complex_=kind != "real")
    a = a + (adjoint(a) if kind == "hermitian" else np.swapaxes(a, -1, -2))
    # Small diagonals make blocks of two, which end where blocks of columns do not; the last has no last row.
    a[:2, range(n), range(n)] *= 0.05
    a[2, -1] = a[2, :, -1] = 0
    a = a.astype(np.float32 if kind == "real" else np.complex64)
    found = run("ldl_factor", [a], (kind == "hermitian",), [(3, n, n), (3, n), (3,)])
    packed, pivots, info = (torch.from_numpy(np.ascontiguousarray(x)) for x in found)
    wanted = torch.linalg.ldl_factor_ex(torch.from_numpy(a), hermitian=kind == "hermitian")
    assert pivots.real.tolist() == wanted.pivots.tolist()
    assert info.real.tolist() == wanted.info.tolist() == [0, 0, n]
    torch.testing.assert_close(packed, wanted.LD, rtol=1e-3, atol=1e-3)


def test_one_shader_serves_all_steps_of_a_blocked_method() -> None:
    slots = (BufferSlot(float32, "read", 512 * 512), BufferSlot(float32, "write", 512 * 512 + 1))
    routine = Host("cholesky", "cholesky", (), ((1, 512, 512),), slots)
    passes = render(routine, open_device().limits, "naga")
    assert len(passes) == 1 + 16 * 3 - 2
    assert len({p.source for p in passes}) == 4


def test_a_batch_of_small_matrices_is_one_dispatch() -> None:
    slots = (BufferSlot(float32, "read", 10_000 * 64), BufferSlot(float32, "write", 10_000 * 65))
    routine = Host("cholesky", "cholesky", (), ((10_000, 8, 8),), slots)
    (one,) = render(routine, open_device().limits, "naga")
    assert one.grid == (10_000, 1, 1)


@pytest.mark.parametrize("complex_", [False, True], ids=["real", "complex"])
@pytest.mark.parametrize("gpu", [False, True])
def test_workgroups_keep_within_their_memory(gpu: bool, complex_: bool) -> None:
    limits = replace(open_device().limits, is_gpu=gpu, workgroup_memory_bytes=16384)
    limits = replace(limits, max_workgroup_invocations=256)
    functions: dict[str, tuple[Any, ...]] = {
        "cholesky": (), "lu_factor": (True,), "geqrf": (), "orthogonal_columns": (True,), "squared": (),
        "ldl_factor": (True,),
    }  # fmt: skip
    for name, params in functions.items():
        for n in (30, *range(36, 66, 3), 300):
            shape = (2, n, n, 2) if complex_ else (2, n, n)
            slots = tuple(BufferSlot(float32, "read", 1) for _ in range(3))
            function = f"complex {name}" if complex_ else name
            given = (shape,) if name != "squared" else (shape, (2, 1, 1))
            for p in render(
                Host(name, function, params, given, slots[-1 - len(given) :]), limits, "dawn"
            )[:8]:
                declared = re.findall(
                    r"var<workgroup> \w+: (?:array<(\w+), (\d+)>|\w+|atomic<u32>);", p.source
                )
                words = {"num": 8 if complex_ else 4, "f32": 4, "u32": 4, "": 4}
                nbytes = sum(words[kind] * int(many or 1) for kind, many in declared)
                assert nbytes <= 16384, f"{name} of {n}: {nbytes} bytes"
                assert p.workgroup_size[0] <= 256


def test_what_is_recorded_for_webgpu_has_kernels() -> None:
    assert set(FUNCTIONS) == ON_WEBGPU
