"""Functions with loops of their own (remainders, divisors): every lane as the C library's and Python's."""

import math
import struct

import numpy as np
import pytest

pytest.importorskip("llvmlite")

from webtorch.runtime.backends.cpu import jit

_TEXT = """
def kernel(begin, end, b0: {kind}, b1: {kind}, b2: {kind}, status):
    for i in range(begin, end):
        t1 = b1[i]
        t2 = b2[i]
        b0[i] = {name}(t1, t2)
"""


def _applied(name: str, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    native = jit.function(_TEXT.format(name=name, kind=x.dtype.name))
    out = np.empty_like(x)
    native.call(0, x.size, struct.pack("4Q", *[a.ctypes.data for a in (out, x, y)], 0))
    return out


def _pairs() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(3)
    special = [0, -0.0, np.inf, -np.inf, np.nan, 1, -1, 3e38, 1e-45, 1.1754944e-38, 0.1, 2.0**28]
    grid = np.array(np.meshgrid(special, special), np.float32).reshape(2, -1)
    # Whole quotients, and quotients next to whole numbers, of every size.
    divisor = rng.standard_normal(4000).astype(np.float32)
    whole = (divisor * np.exp2(rng.integers(0, 100, 4000))).astype(np.float32)
    near = np.nextafter(whole, np.float32(0))
    bits = rng.integers(0, 2**32, (2, 20_003), dtype=np.uint32).view(np.float32)
    x = np.concatenate([grid[0], whole, near, bits[0]])
    return x, np.concatenate([grid[1], divisor, divisor, bits[1]])


def test_remainders_of_floats_are_exact() -> None:
    x, y = _pairs()
    with np.errstate(all="ignore"):
        expected = np.fmod(x.astype(np.float64), y.astype(np.float64)).astype(np.float32)
    found = _applied("truncmod", x, y)
    same = (found.view(np.int32) == expected.view(np.int32)) | (
        np.isnan(found) & np.isnan(expected)
    )
    assert same.all(), (x[~same][:3], y[~same][:3], found[~same][:3], expected[~same][:3])


@pytest.mark.parametrize("dtype", ["int8", "int16", "int32", "int64", "uint8"])
def test_divisors_are_the_greatest(dtype: str) -> None:
    limits = np.iinfo(dtype)
    rng = np.random.default_rng(4)
    x, y = (
        rng.integers(limits.min // 2, limits.max, 5003, dtype=dtype, endpoint=True)
        for _ in range(2)
    )
    x[::5], y[::7] = 0, 0
    x[::3] &= ~np.asarray(7, dtype)
    y[::3] &= ~np.asarray(3, dtype)
    expected = [math.gcd(int(a), int(b)) for a, b in zip(x, y)]
    assert _applied("gcd", x, y).tolist() == expected


def test_loops_over_elements_call_the_form_for_vectors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEBTORCH_CPU_DUMP", "1")
    text = jit.llvm_text(_TEXT.format(name="truncmod", kind="float32"), "kernel", True)
    engine = jit._engine()
    engine.object_code(text)
    calls = [line for line in engine.optimised.splitlines() if "call <" in line]
    assert any("@wt_remainder_f32_" in line for line in calls)


@pytest.mark.parametrize("turns", [16, 4])
def test_short_sums_are_vectors_where_they_fill_one(
    turns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = f"""
def kernel(begin, end, b0: float32, b1: float32, status):
    for i in range(begin, end):
        total = float32(0)
        for k in range({turns}):
            total += b0[i * {turns} + k]
        b1[i] = total
"""
    monkeypatch.setenv("WEBTORCH_CPU_DUMP", "1")
    engine = jit._engine()
    engine.object_code(jit.llvm_text(text, "kernel", True))
    assert "load <" in engine.optimised or turns < 16
    # One body: what is left of a loop over rows is not written out.
    assert engine.optimised.count("store float") == 1
    x, out = np.random.default_rng(0).random((37, turns), np.float32), np.zeros(37, np.float32)
    jit.function(text.strip()).call(0, 37, struct.pack("3Q", x.ctypes.data, out.ctypes.data, 0))
    np.testing.assert_allclose(out, x.sum(1), rtol=1e-6)


_ANGLES = """
def kernel(begin, end, b0: float32, b1: float32, status):
    for i in range(begin, end):
        b0[i] = {name}(b1[i])
"""


def _of_angles(name: str, x: np.ndarray) -> np.ndarray:
    out = np.empty_like(x)
    native = jit.function(_ANGLES.format(name=name).strip())
    native.call(0, x.size, struct.pack("3Q", out.ctypes.data, x.ctypes.data, 0))
    return out


@pytest.mark.parametrize(
    ("name", "exact", "most"),
    [
        ("sin", np.sin, 0.51),
        ("cos", np.cos, 0.51),
        ("tan", np.tan, 0.51),
        ("asin", np.arcsin, 0.66),
        ("acos", np.arccos, 0.66),
        ("atan", np.arctan, 0.51),
    ],
)
def test_angles_are_near_the_exact_ones(name: str, exact: np.ufunc, most: float) -> None:
    rng = np.random.default_rng(5)
    special = np.array([0, -0.0, np.inf, -np.inf, np.nan, 1, -1, 2, 1e-45, -1e-45, 3e38], "f4")
    x = [
        special,
        rng.uniform(-1, 1, 20_000),
        rng.uniform(-1, 1, 20_000) * 2.0 ** rng.integers(-40, 120),
    ]
    if name in ("sin", "cos", "tan"):
        # Next to where they are zero; a far one between near ones.
        multiples = (np.arange(1, 20_000) * (np.pi / 2)).astype(np.float32)
        mixed = np.where(np.arange(20_000) % 37, 1.0, 1e9) * rng.uniform(-1, 1, 20_000)
        x += [multiples, np.nextafter(multiples, np.float32(0)), mixed]
    values = np.concatenate(x).astype(np.float32)
    found = _of_angles(name, values)
    with np.errstate(all="ignore"):
        expected = exact(values.astype(np.float64))
    assert (np.isnan(found) == np.isnan(expected)).all()
    known = ~np.isnan(expected)
    found, expected = found[known], expected[known]
    assert (np.signbit(found) == np.signbit(expected)).all()
    unit = np.maximum(np.spacing(np.abs(expected.astype(np.float32))).astype(np.float64), 2.0**-149)
    assert (np.abs(found - expected) / unit).max() < most


def test_angles_are_vectors_of_which_a_far_one_asks_for_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("WEBTORCH_CPU_DUMP", "1")
    engine = jit._engine()
    engine.object_code(jit.llvm_text(_ANGLES.format(name="sin"), "kernel", True))
    assert "@wt_sin_f32_" in "".join(x for x in engine.optimised.splitlines() if "call <" in x)
    engine.object_code(jit.llvm_text(_ANGLES.format(name="acos"), "kernel", True))
    assert "double" not in engine.optimised and "fdiv" not in engine.optimised
