"""Factorisations as WGSL on a real adapter: residuals as LAPACK's testers measure them, in units of n eps |A|."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.lower.harness import open_device
from webtorch.ir.dtype import float32
from webtorch.ir.kernel import BufferSlot, Host
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
    name: str, inputs: list[Array], params: tuple[Any, ...], shapes: list[tuple[int, ...]]
) -> list[Array]:
    """Run a function of whole arrays; `shapes` are those of its results."""
    device = open_device()
    complex_ = any(np.iscomplexobj(x) for x in inputs)
    given = [_flat(x, complex_) for x in inputs]
    sizes = [int(np.prod(s)) * (2 if complex_ else 1) for s in shapes]
    slots = [BufferSlot(float32, "read", x.size) for x in given]
    routine = Host(
        name, f"complex {name}" if complex_ else name, params,
        tuple((*x.shape, 2) if complex_ else x.shape for x in inputs),
        (*slots, BufferSlot(float32, "write", sum(sizes))),
    )  # fmt: skip
    flat = device.run(routine, [*given, None])[len(given)]
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
