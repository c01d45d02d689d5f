"""Generic kernels as WGSL on a real adapter, against NumPy in float64."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.lower.harness import Device, from_bf16, open_device, to_bf16
from tests.lower.reference import evaluate
from webtorch.ir import expr as ex
from webtorch.ir.dtype import (
    DType,
    bfloat16,
    bool_,
    float16,
    float32,
    int8,
    int16,
    int32,
    int64,
    integer_limits,
    uint8,
    uint32,
)
from webtorch.ir.expr import FUNCTIONS, Expr
from webtorch.ir.kernel import BufferSlot, Check, Kernel, Reduce, Store
from webtorch.ir.limits import Limits
from webtorch.lower.wgsl import render

# Launch rules differ for CPU adapters and GPUs, and for small and large workgroups: all are run
# here.
PROFILES = ("adapter", "gpu", "gpu256", "no-f16")


@pytest.fixture(params=PROFILES)
def target(request: pytest.FixtureRequest) -> tuple[Device, Limits]:
    device = open_device(f16=request.param != "no-f16")
    limits = device.limits
    if request.param.startswith("gpu"):
        limits = replace(limits, is_gpu=True)
    if request.param == "gpu256":
        limits = replace(
            limits, max_workgroup_invocations=min(256, limits.max_workgroup_invocations)
        )
    return device, limits


def contents(dtype: DType, count: int, seed: int = 0) -> Any:
    """Return random device contents of a type, as NumPy holds them."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal(count) * 3
    if dtype is bool_:
        return x > 2
    if dtype.kind == "uint":
        return np.abs(x * 10).astype(np.uint8 if dtype is uint8 else np.uint32)
    if dtype.is_integral:
        return (x * 10).astype({int8: np.int8, int16: np.int16}.get(dtype, np.int32))
    if dtype is bfloat16:
        return to_bf16(x)
    return x.astype(np.float16 if dtype is float16 else np.float32)


def wide(x: Any, dtype: DType) -> Any:
    """Return contents as float64, int64 or bool."""
    if dtype is bfloat16:
        return from_bf16(x).astype(np.float64)
    if dtype is bool_:
        return x
    return x.astype(np.float64 if dtype.kind == "float" else np.int64)


def run(
    kernel: Kernel, target: tuple[Device, Limits], args: tuple[float, ...] = (), seed: int = 0
) -> tuple[Any, list[Any]]:
    """Run a kernel on the device and in NumPy; returns (result, expected buffers)."""
    device, limits = target
    inputs: list[Any] = []
    start: list[Any] = []
    for i, slot in enumerate(kernel.buffers):
        if slot.access == "write":
            inputs.append(None)
            kind = {"float": np.float64, "bool": np.bool_}.get(slot.dtype.kind, np.int64)
            start.append(np.zeros(slot.elements, kind))
        else:
            inputs.append(contents(slot.dtype, slot.elements, seed + i))
            start.append(wide(inputs[-1], slot.dtype))
    return device.run(kernel, inputs, args, limits), evaluate(kernel, start, args)


def assert_close(actual: Any, expected: Any, dtype: DType, scale: float = 1.0) -> None:
    """Compare within the type's rounding; NaN and infinity must agree exactly."""
    if dtype.kind != "float":
        np.testing.assert_array_equal(actual, expected)
        return
    step = {"float32": 2.0**-22, "float16": 2.0**-10, "bfloat16": 2.0**-7}[dtype.name]
    with np.errstate(over="ignore"):
        np.testing.assert_allclose(
            actual.astype(np.float64),
            expected,
            rtol=step * scale,
            atol=step * scale * 2,
            equal_nan=True,
        )


def load(slot: int, dtype: DType, position: Expr) -> Expr:
    x = ex.load(slot, dtype, position)
    return ex.cast(x, float32) if dtype in (float16, bfloat16) else x


def unary_kernel(dtype: DType, out: DType, count: int, value: Any) -> Kernel:
    i = ex.index(0, count)
    buffers = (BufferSlot(dtype, "read", count), BufferSlot(out, "write", count))
    return Kernel(
        "unary",
        (count,),
        (),
        buffers,
        (),
        (),
        (Store(1, i, ex.cast(value(load(0, dtype, i)), out)),),
    )


TYPES = (float32, float16, bfloat16, int64, int32, int16, int8, uint8, uint32, bool_)


@pytest.mark.parametrize("out", TYPES, ids=lambda d: d.name)
@pytest.mark.parametrize("dtype", TYPES, ids=lambda d: d.name)
def test_every_type_converts_to_every_other(
    dtype: DType, out: DType, target: tuple[Device, Limits]
) -> None:
    for count in (1, 3, 6, 7, 130):
        kernel = unary_kernel(dtype, out, count, lambda x: x)
        if dtype.kind == "float" and out.kind == "uint":
            kernel = unary_kernel(dtype, out, count, abs)
        result, expected = run(kernel, target)
        assert_close(result[1], expected[1], out)


def test_16_bit_floats_round_to_nearest_even_and_keep_special_values() -> None:
    device = open_device(f16=False)
    rng = np.random.default_rng(0)
    x = np.concatenate(
        [
            [
                0.0,
                -0.0,
                np.inf,
                -np.inf,
                np.nan,
                65504,
                65519.9,
                65520,
                1e6,
                6e-8,
                2.98e-8,
                2.99e-8,
                6.1e-5,
                5.9e-5,
                1,
                -1,
            ],
            rng.standard_normal(2000) * 2.0 ** rng.integers(-26, 17, 2000),
            1 + np.arange(64) * 2.0**-12,
        ]
    ).astype(np.float32)
    with np.errstate(over="ignore"):
        half = x.astype(np.float16)
    for dtype, expected in ((float16, half), (bfloat16, from_bf16(to_bf16(x)))):
        out = device.run(unary_kernel(float32, dtype, len(x), lambda v: v), [x, None])[1]
        np.testing.assert_array_equal(out, expected)
        back = device.run(
            unary_kernel(dtype, float32, len(x), lambda v: v),
            [half if dtype is float16 else to_bf16(x), None],
        )[1]
        np.testing.assert_array_equal(back, expected.astype(np.float32))
        # Rounded in the middle of an expression, not only when stored.
        middle = unary_kernel(
            float32, float32, len(x), lambda v, d=dtype: ex.cast(ex.cast(v, d), float32)
        )
        np.testing.assert_array_equal(device.run(middle, [x, None])[1], expected.astype(np.float32))


@pytest.mark.parametrize("count", [1, 2, 3, 5, 1000, 32768, 40001, 40004])
def test_elementwise_of_any_length_with_arguments(
    count: int, target: tuple[Device, Limits]
) -> None:
    i = ex.index(0, count)
    a, b = load(0, float32, i), load(1, bfloat16, i)
    buffers = (
        BufferSlot(float32, "read_write", count),
        BufferSlot(bfloat16, "read", count),
        BufferSlot(bool_, "write", count),
        BufferSlot(bfloat16, "write", count),
        BufferSlot(int8, "write", count),
    )
    stores = (
        Store(0, i, a * ex.arg(0, float32) + b),
        Store(2, i, ex.lt(a, b)),
        Store(3, i, ex.cast(ex.maximum(a, b), bfloat16)),
        Store(4, i, ex.cast(ex.arg(1, int32), int8)),
    )
    kernel = Kernel("mixed", (count,), (), buffers, (float32, int32), (), stores)
    result, expected = run(kernel, target, (0.37, -5))
    for k, slot in enumerate(buffers):
        assert_close(result[k], expected[k], slot.dtype)


@pytest.mark.covers("N13", "N16")
def test_more_workgroups_than_one_dimension_allows(target: tuple[Device, Limits]) -> None:
    device, limits = target
    limits = replace(limits, max_workgroups_per_dim=7)
    count = 64 * 7 * 7 * 3 + 5
    kernel = unary_kernel(float32, float32, count, lambda x: x + 1.0)
    grid = render(kernel, limits, "naga")[0].grid
    assert grid[1] > 1
    assert max(grid[:2]) <= 7
    result, expected = run(kernel, (device, limits))
    assert_close(result[1], expected[1], float32)


def test_transposed_broadcast_and_sliced_positions(target: tuple[Device, Limits]) -> None:
    for shape in ((3, 4, 5), (2, 3, 8), (128, 96, 4), (36, 30, 64), (33, 31, 37)):
        n0, n1, n2 = shape
        total = n0 * n1 * n2
        i, j, k = (ex.index(d, s) for d, s in enumerate(shape))
        x = load(0, float32, (k * n1 + j) * n0 + i)
        y = load(1, float32, j)
        z = load(2, float16, (i * n1 + j) * n2 + k)
        buffers = (
            BufferSlot(float32, "read", total), BufferSlot(float32, "read", n1), BufferSlot(float16, "read", total),
            BufferSlot(float32, "write", total + 3), BufferSlot(uint8, "write", total),
        )  # fmt: skip
        position = (i * n1 + j) * n2 + k
        kernel = Kernel(
            "views", shape, (), buffers, (), (),
            (Store(3, position + 3, x + y * z), Store(4, position, ex.cast(i + j + k, uint8))),
        )  # fmt: skip
        result, expected = run(kernel, target)
        assert_close(result[3][3:], expected[3][3:], float32)
        assert_close(result[4], expected[4], uint8)


@pytest.mark.parametrize(
    "dtype", [bool_, int16, int8, uint8, float16, bfloat16], ids=lambda d: d.name
)
def test_unaligned_stores_of_packed_types_leave_their_neighbours_alone(
    dtype: DType, target: tuple[Device, Limits]
) -> None:
    i, j = ex.index(0, 7), ex.index(1, 5)
    buffers = (BufferSlot(dtype, "read", 35), BufferSlot(dtype, "read_write", 90))
    value = ex.load(0, dtype, i * 5 + j)
    kernel = Kernel("region", (7, 5), (), buffers, (), (), (Store(1, i * 11 + j + 3, value),))
    result, expected = run(kernel, target)
    assert_close(result[1], expected[1], dtype)


def test_guarded_loads_and_conditional_stores(target: tuple[Device, Limits]) -> None:
    i = ex.index(0, 50)
    at = i - 7
    valid = ex.ge(at, 0) & ex.lt(at, 31)
    x = ex.make("load", float32, (at, valid, ex.const(-1.5, float32)), 0)
    y = ex.make("load", int8, (at, valid, ex.const(9, int8)), 1)
    buffers = (
        BufferSlot(float32, "read", 31), BufferSlot(int8, "read", 31), BufferSlot(float32, "read_write", 50),
        BufferSlot(int8, "read_write", 50),
    )  # fmt: skip
    stores = (
        Store(2, i, x, valid=ex.eq(ex.mod(i, 3), 0)),
        Store(3, i, y, valid=ex.ne(ex.mod(i, 3), 0)),
    )
    result, expected = run(Kernel("pad", (50,), (), buffers, (), (), stores), target)
    assert_close(result[2], expected[2], float32)
    assert_close(result[3], expected[3], int8)


def test_a_value_that_a_store_overwrites_in_place_is_read_before(
    target: tuple[Device, Limits],
) -> None:
    for count in (10, 40000):
        i = ex.index(0, count)
        p, m = load(0, float32, i), load(1, float32, i)
        new = m * 0.5 + p
        buffers = (
            BufferSlot(float32, "read_write", count),
            BufferSlot(float32, "read_write", count),
        )
        kernel = Kernel(
            "step", (count,), (), buffers, (), (), (Store(1, i, new), Store(0, i, p - m * 2.0))
        )
        result, expected = run(kernel, target)
        assert_close(result[0], expected[0], float32)
        assert_close(result[1], expected[1], float32)


# --- reductions ---

SHAPES = (
    (1, 1),
    (1, 7),
    (3, 100),
    (70, 33),
    (1000, 3),
    (37, 2052),
    (2, 9001),
    (300, 64),
    (1, 60000),
)


def reduce_kernel(op: Any, dtype: DType, rows: int, length: int, transposed: bool) -> Kernel:
    o, k = ex.index(0, rows), ex.index(1, length)
    value = load(0, dtype, k * rows + o if transposed else o * length + k)
    out = int64 if op.startswith("arg") else bool_ if op in ("any", "all") else dtype
    kind = int64 if op.startswith("arg") else bool_ if op in ("any", "all") else value.dtype
    if op in ("any", "all"):
        value = ex.cast(value, bool_)
    buffers = (BufferSlot(dtype, "read", rows * length), BufferSlot(out, "write", rows))
    store = Store(1, o, ex.cast(ex.reduced(0, kind), out))
    return Kernel(f"{op}", (rows,), (length,), buffers, (), (Reduce(op, value, kind),), (store,))


@pytest.mark.parametrize("transposed", [False, True], ids=["rows", "columns"])
@pytest.mark.parametrize(
    ("op", "dtype"),
    [
        ("sum", float32),
        ("sum", bfloat16),
        ("sum", int32),
        ("max", float32),
        ("max", float16),
        ("min", int8),
        ("max", uint32),
        ("min", bool_),
        ("any", bool_),
        ("all", uint8),
        ("argmax", float32),
        ("argmin", float16),
        ("argmax", int32),
        ("argmin", bool_),
    ],
    ids=str,
)
def test_reductions_of_every_shape(
    op: str, dtype: DType, transposed: bool, target: tuple[Device, Limits]
) -> None:
    for rows, length in SHAPES:
        kernel = reduce_kernel(op, dtype, rows, length, transposed)
        result, expected = run(kernel, target)
        if op == "sum" and dtype.kind == "float":
            # The size of what was added bounds the error of a sum.
            slack = 12 * np.sqrt(length) * (2.0**-22 if dtype is float32 else 2.0**-7)
            np.testing.assert_allclose(
                result[1], expected[1], rtol=2.0**-22 if dtype is float32 else 2.0**-7, atol=slack
            )
        else:
            assert_close(result[1], expected[1], kernel.buffers[1].dtype)


def test_products(target: tuple[Device, Limits]) -> None:
    device, limits = target
    x = (1 + 0.01 * np.random.default_rng(0).standard_normal((5, 700))).astype(np.float32)
    kernel = reduce_kernel("prod", float32, 5, 700, False)
    result = device.run(kernel, [x, None], limits=limits)[1]
    np.testing.assert_allclose(result, np.prod(x.astype(np.float64), axis=1), rtol=700 * 2.0**-24)


@pytest.mark.parametrize("length", [5, 300, 5000, 70000])
def test_nan_is_the_extreme_and_the_first_of_equal_positions_wins(
    length: int, target: tuple[Device, Limits]
) -> None:
    device, limits = target
    for what in ("nan", "ties", "infinite"):
        x = np.random.default_rng(1).integers(-3, 4, (2, length)).astype(np.float32)
        if what == "nan":
            x[0, length // 2] = x[0, length - 1] = np.nan
            x[1, 0] = np.nan
        elif what == "infinite":
            x[:] = -np.inf
            x[1, 1:] = np.inf
        for op in ("max", "min", "argmax", "argmin"):
            result = device.run(
                reduce_kernel(op, float32, 2, length, False), [x, None], limits=limits
            )[1]
            np.testing.assert_array_equal(result, getattr(np, op)(x, axis=1), f"{op} {what}")


def test_long_sums_keep_their_digits(target: tuple[Device, Limits]) -> None:
    device, limits = target
    x = np.random.default_rng(0).random(1 << 20).astype(np.float32)
    for rows, transposed in ((1, False), (2, False), (2, True)):
        kernel = reduce_kernel("sum", float32, rows, x.size // rows, transposed)
        result = device.run(kernel, [x, None], limits=limits)[1]
        table = (
            x.astype(np.float64).reshape(-1, rows).T
            if transposed
            else x.astype(np.float64).reshape(rows, -1)
        )
        np.testing.assert_allclose(result, table.sum(axis=1), rtol=4e-7)


def softmax_kernel(rows: int, length: int, dtype: DType) -> Kernel:
    o, k = ex.index(0, rows), ex.index(1, length)
    x = load(0, dtype, o * length + k)
    e = ex.exp(x - ex.reduced(0, float32))
    buffers = (BufferSlot(dtype, "read", rows * length), BufferSlot(dtype, "write", rows * length))
    return Kernel(
        "softmax", (rows,), (length,), buffers, (),
        (Reduce("max", x, float32), Reduce("sum", e, float32)),
        (Store(1, o * length + k, ex.cast(e / ex.reduced(1, float32), dtype), "inner"),),
    )  # fmt: skip


@pytest.mark.parametrize("dtype", [float32, float16, bfloat16], ids=lambda d: d.name)
@pytest.mark.parametrize(
    ("rows", "length"),
    [(1, 1), (3, 10), (70, 33), (100, 64), (5, 1000), (9, 4096), (2, 9001), (64, 1024)],
)
def test_softmax_in_one_row_kernel(
    rows: int, length: int, dtype: DType, target: tuple[Device, Limits]
) -> None:
    kernel = softmax_kernel(rows, length, dtype)
    assert len(render(kernel, target[1], "naga")) == 1
    result, expected = run(kernel, target)
    assert_close(result[1], expected[1], dtype, 4)


@pytest.mark.parametrize(("rows", "length"), [(3, 10), (70, 33), (40, 768), (2, 9000)])
def test_layer_norm_with_statistics_and_in_place(
    rows: int, length: int, target: tuple[Device, Limits]
) -> None:
    o, k = ex.index(0, rows), ex.index(1, length)
    at = o * length + k
    x = load(0, float32, at)
    mean = ex.reduced(0, float32) * (1 / length)
    centred = x - mean
    scale = ex.rsqrt(ex.reduced(1, float32) * (1 / length) + ex.arg(0, float32))
    buffers = (
        BufferSlot(float32, "read_write", rows * length),
        BufferSlot(float32, "read", length),
        BufferSlot(float32, "write", rows),
        BufferSlot(bfloat16, "write", rows),
        BufferSlot(bool_, "write", rows * length),
    )
    kernel = Kernel(
        "layer_norm", (rows,), (length,), buffers, (float32,),
        (Reduce("sum", x, float32), Reduce("sum", centred * centred, float32)),
        (
            Store(0, at, centred * scale * load(1, float32, k), "inner"),
            Store(2, o, mean),
            Store(3, o, ex.cast(scale, bfloat16)),
            Store(4, at, ex.gt(x, mean), "inner"),
        ),
    )  # fmt: skip
    result, expected = run(kernel, target, (1e-5,))
    for i in (0, 2, 3, 4):
        assert_close(result[i], expected[i], buffers[i].dtype, 16)


def test_reductions_over_several_dimensions(target: tuple[Device, Limits]) -> None:
    a, b, c, d = 3, 40, 5, 12
    i, k = ex.index(0, b), ex.index(1, d)
    j, l = ex.index(2, a), ex.index(3, c)
    x = load(0, float32, ((j * b + i) * c + l) * d + k)
    buffers = (BufferSlot(float32, "read", a * b * c * d), BufferSlot(float32, "write", b * d))
    reduces = (Reduce("sum", x, float32), Reduce("max", x * x, float32))
    store = Store(1, i * d + k, ex.reduced(0, float32) / ex.reduced(1, float32))
    result, expected = run(
        Kernel("several", (b, d), (a, c), buffers, (), reduces, (store,)), target
    )
    assert_close(result[1], expected[1], float32, 16)


# --- scatter and checks ---


@pytest.mark.parametrize(
    "dtype", [float32, float16, bfloat16, int32, int8, uint8, uint32], ids=lambda d: d.name
)
@pytest.mark.parametrize("how", ["add", "mul", "max", "min"])
def test_scatter_with_repeated_positions(
    how: Any, dtype: DType, target: tuple[Device, Limits]
) -> None:
    device, limits = target
    count, size = 500, 13
    rng = np.random.default_rng(0)
    where = rng.integers(0, size, count).astype(np.int32)
    small = rng.integers(1, 3, count) if how != "mul" else np.where(rng.random(count) < 0.01, 2, 1)
    values = small.astype(np.float64)
    i = ex.index(0, count)
    position = ex.load(0, int32, i)
    buffers = (
        BufferSlot(int32, "read", count),
        BufferSlot(dtype, "read", count),
        BufferSlot(dtype, "read_write", size),
    )
    kernel = Kernel(
        "scatter",
        (count,),
        (),
        buffers,
        (),
        (),
        (Store(2, position, ex.load(1, dtype, i), combine=how),),
    )
    cast = {
        "float32": np.float32,
        "float16": np.float16,
        "int32": np.int32,
        "int8": np.int8,
        "uint8": np.uint8,
        "uint32": np.uint32,
    }
    stored = to_bf16(values) if dtype is bfloat16 else values.astype(cast[dtype.name])
    begin = to_bf16(np.ones(size)) if dtype is bfloat16 else np.ones(size, cast[dtype.name])
    result = device.run(kernel, [where, stored, begin], limits=limits)[2]
    expected = evaluate(kernel, [where.astype(np.int64), values, np.ones(size)])[2]
    np.testing.assert_array_equal(result.astype(np.float64), expected)


def test_a_bad_index_is_reported_once_and_harmless(target: tuple[Device, Limits]) -> None:
    device, limits = target
    count = 200
    index = np.zeros(count, np.int64)
    index[77] = 12345
    i = ex.index(0, count)
    at = ex.load(0, int64, i)
    buffers = (
        BufferSlot(int64, "read", count),
        BufferSlot(float32, "read", 10),
        BufferSlot(float32, "write", count),
    )
    value = ex.load(1, float32, ex.cast(at, int32))
    kernel = Kernel(
        "gather", (count,), (), buffers, (), (), (Store(2, i, value),), (Check(at, 10, 6, low=-10),)
    )
    data = np.arange(10, dtype=np.float32)
    result = device.run(kernel, [index, data, None], limits=limits)
    assert result.status == (7, 12345)
    index[77] = -3
    result = device.run(kernel, [index, data, None], limits=limits)
    assert result.status == (0, 0)


# --- scalar semantics ---

SPECIAL = np.array(
    [
        0.0,
        -0.0,
        1.0,
        -1.0,
        2.5,
        -2.5,
        3.5,
        0.5,
        np.inf,
        -np.inf,
        np.nan,
        7.0,
        -7.0,
        1e30,
        1e-30,
        16777215.0,
        -3.0,
        3.0,
    ],
    np.float32,
)


def pairs_of(x: Any) -> tuple[Any, Any]:
    a, b = (np.ascontiguousarray(v.ravel()) for v in np.meshgrid(x, x))
    return a, b


def binary_kernel(op: str, dtype: DType, count: int) -> Kernel:
    i = ex.index(0, count)
    value = ex.binary(op, ex.load(0, dtype, i), ex.load(1, dtype, i))
    buffers = (
        BufferSlot(dtype, "read", count),
        BufferSlot(dtype, "read", count),
        BufferSlot(value.dtype, "write", count),
    )
    return Kernel(op, (count,), (), buffers, (), (), (Store(2, i, value),))


@pytest.mark.parametrize(
    "op", ["add", "sub", "mul", "div", "min", "max", "lt", "le", "eq", "ne", "copysign"]
)
def test_float_operations_follow_ieee_also_for_nan(op: str) -> None:
    a, b = pairs_of(SPECIAL)
    result = open_device().run(binary_kernel(op, float32, len(a)), [a, b, None])[2]
    if result.dtype == np.bool_:
        expected = {"lt": np.less, "le": np.less_equal, "eq": np.equal, "ne": np.not_equal}[op](
            a, b
        )
        np.testing.assert_array_equal(result, expected)
        return
    names = {
        "min": "minimum",
        "max": "maximum",
        "sub": "subtract",
        "mul": "multiply",
        "div": "divide",
    }
    with np.errstate(all="ignore"):
        expected = getattr(np, names.get(op, op))(a, b)
    np.testing.assert_allclose(result, expected, rtol=4e-7)


@pytest.mark.parametrize("op", ["floordiv", "truncdiv", "mod", "truncmod"])
def test_float_division_with_remainder_is_exact(op: str) -> None:
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(0)
    a, b = pairs_of(SPECIAL)
    x = (rng.standard_normal(3000) * 2.0 ** rng.integers(-20, 30, 3000)).astype(np.float32)
    y = (rng.standard_normal(3000) * 2.0 ** rng.integers(-10, 10, 3000)).astype(np.float32)
    a, b = np.concatenate([a, x]), np.concatenate([b, y])
    # PyTorch's own vector code gives up on the most extreme finite quotient.
    keep = ~((a == np.float32(1e30)) & (b == np.float32(1e-30)))
    a, b = a[keep], b[keep]
    result = open_device().run(binary_kernel(op, float32, len(a)), [a, b, None])[2]
    ta, tb = torch.from_numpy(a), torch.from_numpy(b)
    expected = {
        "floordiv": lambda: torch.div(ta, tb, rounding_mode="floor"),
        "truncdiv": lambda: torch.div(ta, tb, rounding_mode="trunc"),
        "mod": lambda: torch.remainder(ta, tb),
        "truncmod": lambda: torch.fmod(ta, tb),
    }[op]().numpy()
    # A GPU's division may be a little off: large quotients in the last digit, and the odd one next
    # to a whole number.
    exact = op.endswith("mod") or open_device().limits.is_gpu is False
    if exact:
        np.testing.assert_array_equal(result, expected)
    else:
        np.testing.assert_array_equal(np.isnan(result), np.isnan(expected))
        with np.errstate(invalid="ignore"):
            wrong = ~np.isclose(result, expected, rtol=3e-7, atol=0, equal_nan=True)
        assert wrong.mean() < 5e-3


@pytest.mark.parametrize("dtype", [int32, uint32, int8, uint8], ids=lambda d: d.name)
@pytest.mark.parametrize(
    "op",
    [
        "add",
        "sub",
        "mul",
        "floordiv",
        "truncdiv",
        "mod",
        "truncmod",
        "min",
        "max",
        "and",
        "or",
        "xor",
        "shl",
        "shr",
        "lt",
        "eq",
    ],
)
def test_integer_operations_wrap_and_never_trap(op: str, dtype: DType) -> None:
    low, high = {
        "int32": (-(2**31), 2**31 - 1),
        "uint32": (0, 2**32 - 1),
        "int8": (-128, 127),
        "uint8": (0, 255),
    }[dtype.name]
    values = [
        v
        for v in (low, low + 1, -7, -2, -1, 0, 1, 2, 3, 7, 31, 100, high - 1, high)
        if low <= v <= high
    ]
    kind = {"int32": np.int32, "uint32": np.uint32, "int8": np.int8, "uint8": np.uint8}[dtype.name]
    a, b = pairs_of(np.array(values, kind))
    if op in ("floordiv", "truncdiv", "mod", "truncmod"):
        # Division by zero must only not trap.
        open_device().run(binary_kernel(op, dtype, len(a)), [a, b, None])[2]
        a, b = a[b != 0], b[b != 0]
    kernel = binary_kernel(op, dtype, len(a))
    result = open_device().run(kernel, [a, b, None])[2]
    start = np.zeros(len(a), np.bool_ if kernel.buffers[2].dtype is bool_ else np.int64)
    expected = evaluate(kernel, [a.astype(np.int64), b.astype(np.int64), start])[2]
    np.testing.assert_array_equal(result, expected)


@pytest.mark.parametrize("dtype", [int8, int16, uint8], ids=lambda d: d.name)
def test_a_result_beyond_a_short_type_is_back_in_it_before_it_is_used(dtype: DType) -> None:
    low, high = integer_limits(dtype)
    values = np.array([low, low + 1, 0, 1, 7, high - 1, high], dtype.name)
    a, b = pairs_of(values)
    count = len(a)
    i = ex.index(0, count)
    x, y = ex.load(0, dtype, i), ex.load(1, dtype, i)
    stores = tuple(
        Store(n, i, ex.cast(value, int32)) for n, value in enumerate((x + y, x - y, x * y), 2)
    )
    buffers = (
        *[BufferSlot(dtype, "read", count)] * 2, *[BufferSlot(int32, "write", count)] * 3,
    )  # fmt: skip
    kernel = Kernel("short", (count,), (), buffers, (), (), stores)
    _, _, *found = open_device().run(kernel, [a, b, None, None, None])
    for result, expected in zip(found, (a + b, a - b, a * b)):
        np.testing.assert_array_equal(result, expected.astype(np.int32))


def test_negated_comparisons_with_nan_are_true() -> None:
    a, b = pairs_of(SPECIAL)
    count = len(a)
    i = ex.index(0, count)
    x, y = ex.load(0, float32, i), ex.load(1, float32, i)
    buffers = (*[BufferSlot(float32, "read", count)] * 2, *[BufferSlot(bool_, "write", count)] * 3)
    stores = (
        Store(2, i, ~ex.lt(x, y)), Store(3, i, ~ex.le(x, y)), Store(4, i, ~(ex.lt(x, y) | ex.isnan(x)) & ~ex.isinf(y)),
    )  # fmt: skip
    result = open_device().run(
        Kernel("not", (count,), (), buffers, (), (), stores), [a, b, None, None, None]
    )
    np.testing.assert_array_equal(result[2], ~(a < b))
    np.testing.assert_array_equal(result[3], ~(a <= b))
    np.testing.assert_array_equal(result[4], ~((a < b) | np.isnan(a)) & ~np.isinf(b))


def test_a_choice_of_the_larger_keeps_nan() -> None:
    """Drivers make max(x, 0) of select(x, 0, x <= 0), which loses NaN on a GPU: what NaN would win is tested for."""
    a, b = pairs_of(SPECIAL)
    count = len(a)
    i = ex.index(0, count)
    x, y, zero = ex.load(0, float32, i), ex.load(1, float32, i), ex.const(0.0, float32)
    chosen = (
        ex.where(x <= zero, zero, x), ex.where(ex.gt(x, zero), zero, x), ex.where(x < y, y, x),
        ex.where(x <= zero, x, zero), ex.where(x <= zero, y, x),
    )  # fmt: skip
    buffers = (
        *[BufferSlot(float32, "read", count)] * 2,
        *[BufferSlot(float32, "write", count)] * len(chosen),
    )
    stores = tuple(Store(n, i, e) for n, e in enumerate(chosen, 2))
    kernel = Kernel("choose", (count,), (), buffers, (), (), stores)
    device = open_device()
    result = device.run(kernel, [a, b, *[None] * len(chosen)])
    zeros = np.zeros_like(a)
    expected = (
        np.where(a <= 0, zeros, a), np.where(a > 0, zeros, a), np.where(a < b, b, a),
        np.where(a <= 0, a, zeros), np.where(a <= 0, b, a),
    )  # fmt: skip
    for n, wanted in enumerate(expected, 2):
        np.testing.assert_array_equal(result[n], wanted)
    (only,) = render(kernel, device.limits, device.engine)
    # A software adapter does not show it: three of these tests are needed, and no more.
    assert only.source.count(", wt_isnan(") == 3


def test_awkward_constants() -> None:
    values = [
        0.0,
        -0.0,
        np.inf,
        -np.inf,
        np.nan,
        1e-40,
        -1e-45,
        3.4028234e38,
        1e39,
        0.1,
        -1.5,
        1e-7,
        16777216.0,
    ]
    count = len(values)
    i = ex.index(0, 1)
    buffers = (
        BufferSlot(float32, "write", count),
        BufferSlot(int32, "write", 3),
        BufferSlot(float32, "write", 3),
    )
    stores = [Store(0, i + k, ex.const(v, float32)) for k, v in enumerate(values)]
    integers = [-(2**31), 2**31 - 1, -1]
    stores += [Store(1, i + k, ex.const(v, int32)) for k, v in enumerate(integers)]
    # Constant arithmetic that overflows must reach the device, not the front end.
    big = ex.const(3e38, float32)
    stores += [
        Store(2, i, big * big),
        Store(2, i + 1, ex.log(ex.const(0.0, float32))),
        Store(2, i + 2, big / ex.const(0.0, float32)),
    ]
    kernel = Kernel("constants", (1,), (), buffers, (), (), tuple(stores))
    result = open_device().run(kernel, [None, None, None])
    with np.errstate(over="ignore"):
        expected = np.array(values, np.float64).astype(np.float32)
    actual = result[0]
    tiny = np.abs(expected) < 2.0**-126
    np.testing.assert_array_equal(actual[~tiny], expected[~tiny])
    # An adapter may flush subnormal numbers to zero.
    assert np.all((actual[tiny] == expected[tiny]) | (actual[tiny] == 0))
    np.testing.assert_array_equal(result[1], integers)
    np.testing.assert_array_equal(result[2], [np.inf, -np.inf, np.inf])


def test_a_constant_that_needs_64_bits_is_refused() -> None:
    kernel = unary_kernel(int64, int64, 4, lambda x: x + (1 << 40))
    with pytest.raises(OverflowError, match="does not fit 32 bits"):
        render(kernel, open_device().limits, "naga")


def test_uint64_is_refused_with_what_to_do() -> None:
    from webtorch.errors import DTypeError
    from webtorch.ir.dtype import uint64

    with pytest.raises(DTypeError, match="Use int32"):
        render(unary_kernel(uint64, uint64, 4, lambda x: x + 1), open_device().limits, "naga")


@pytest.mark.parametrize("name", [f.name for f in FUNCTIONS.values() if f.expansion is not None])
def test_functions_are_as_accurate_on_the_device(name: str) -> None:
    from tests.null.test_wgsl_expansions import EXACT, cases, ulps

    inputs = cases(name, 4000)
    count = len(inputs[0])
    i = ex.index(0, count)
    value = ex.make(name, float32, tuple(ex.load(j, float32, i) for j in range(len(inputs))))
    buffers = (
        *[BufferSlot(float32, "read", count) for _ in inputs],
        BufferSlot(float32, "write", count),
    )
    kernel = Kernel(name, (count,), (), buffers, (), (), (Store(len(inputs), i, value),))
    actual = open_device().run(kernel, [*inputs, None])[len(inputs)]
    with np.errstate(all="ignore"):
        exact = EXACT[name](*[x.astype(np.float64) for x in inputs])
    error = ulps(actual, exact)
    worst = int(np.argmax(error))
    assert error[worst] <= 4.5, (
        f"{name}({[x[worst] for x in inputs]}): {actual[worst]!r}, exact {exact[worst]!r}"
    )


def test_philox_matches_the_published_test_vectors() -> None:
    # Random123's kat_vectors, philox4x32-10, for counters whose upper two words are zero; the first
    # is its all-zero vector.
    keys = np.array(
        [[0, 0, 0, 0], [0xA4093822, 0x299F31D0, 0x243F6A88, 0x85A308D3], [1, 2, 3, 4]], np.uint32
    )
    count = len(keys)
    i = ex.index(0, count)
    parts = [ex.load(j, uint32, i) for j in range(4)]
    stores = tuple(Store(4, i * 4 + lane, ex.philox(*parts, lane)) for lane in range(4))
    buffers = (*[BufferSlot(uint32, "read", count)] * 4, BufferSlot(uint32, "write", count * 4))
    kernel = Kernel("philox", (count,), (), buffers, (), (), stores)
    result = open_device().run(kernel, [*keys.T.copy(), None])[4].reshape(count, 4)
    np.testing.assert_array_equal(result[0], [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8])
    np.testing.assert_array_equal(result, [philox(*[int(v) for v in row]) for row in keys])


def philox(k0: int, k1: int, c0: int, c1: int) -> list[int]:
    """Return Philox4x32-10 from its definition, with Python's integers."""
    c, mask = [c0, c1, 0, 0], 0xFFFFFFFF
    for _ in range(10):
        p, q = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
        c = [(q >> 32) ^ c[1] ^ k0, q & mask, (p >> 32) ^ c[3] ^ k1, p & mask]
        k0, k1 = (k0 + 0x9E3779B9) & mask, (k1 + 0xBB67AE85) & mask
    return c


# --- random kernels ---


def random_kernel(seed: int) -> Kernel:
    """Return a random elementwise or row kernel over random views."""
    rng = np.random.default_rng(seed)
    rank = int(rng.integers(1, 4))
    outer = tuple(int(rng.choice([1, 2, 3, 4, 5, 8, 12])) for _ in range(rank))
    inner = tuple(int(rng.choice([1, 3, 4, 16, 33])) for _ in range(int(rng.integers(0, 3))))
    shape = (*outer, *inner)
    index = [ex.index(d, s) for d, s in enumerate(shape)]
    floats = (float32, float16, bfloat16)
    buffers: list[BufferSlot] = []

    def source() -> Expr:
        dtype = floats[int(rng.integers(3))]
        order = rng.permutation(len(shape))
        skip = rng.random(len(shape)) < 0.2
        position, size = ex.const(0, int32), 1
        for d in order:
            if not skip[d]:
                position = position + index[d] * size
                size *= shape[d]
        offset = int(rng.integers(0, 3))
        buffers.append(BufferSlot(dtype, "read", size + offset))
        return load(len(buffers) - 1, dtype, position + offset)

    def formula(leaves: list[Expr]) -> Expr:
        x = leaves[0]
        for y in leaves[1:]:
            x = [
                lambda a, b: a + b,
                lambda a, b: a * b,
                lambda a, b: ex.maximum(a, b),
                lambda a, b: ex.where(ex.lt(a, b), a, b * 0.5),
                lambda a, b: a - ex.tanh(b),
            ][int(rng.integers(5))](x, y)
        return x

    value = formula([source() for _ in range(int(rng.integers(1, 4)))])
    reduces: list[Reduce] = []
    if inner:
        for _ in range(int(rng.integers(1, 4))):
            op = ("sum", "max", "min")[int(rng.integers(3))]
            base = formula([value, source()])
            if reduces and rng.random() < 0.5:
                base = base - ex.reduced(len(reduces) - 1, float32) * 0.01
            reduces.append(Reduce(op, base, float32))  # type: ignore[arg-type]
    stores = []
    for _ in range(int(rng.integers(1, 3))):
        level = "inner" if inner and rng.random() < 0.6 else "outer"
        dims = shape if level == "inner" else outer
        position = ex.const(0, int32)
        for d, size in enumerate(dims):
            position = position * size + index[d]
        x = value if level == "inner" or not inner else ex.reduced(len(reduces) - 1, float32)
        if reduces and level == "inner":
            x = x + ex.reduced(int(rng.integers(len(reduces))), float32)
        out = (*floats, bool_, int8)[int(rng.integers(5))]
        if out is int8:
            x = ex.round_(ex.maximum(ex.minimum(x, 100.0), -100.0))
        if out is bool_:
            x = ex.cast(ex.gt(x, 0.0), float32)
        count = int(np.prod(dims))
        buffers.append(BufferSlot(out, "write", count))
        stores.append(Store(len(buffers) - 1, position, ex.cast(x, out), level))  # type: ignore[arg-type]
    return Kernel(f"random{seed}", outer, inner, tuple(buffers), (), tuple(reduces), tuple(stores))


@pytest.mark.one_in(3)
@pytest.mark.parametrize("seed", range(60))
def test_random_kernels(seed: int) -> None:
    kernel = random_kernel(seed)
    device = open_device(f16=seed % 3 != 0)
    limits = replace(device.limits, is_gpu=seed % 2 == 1)
    result, expected = run(kernel, (device, limits), seed=seed)
    for s in kernel.stores:
        dtype = kernel.buffers[s.buffer].dtype
        actual = result[s.buffer]
        if dtype.kind == "float":
            step = {"float32": 2.0**-18, "float16": 2.0**-9, "bfloat16": 2.0**-7}[dtype.name]
            with np.errstate(over="ignore"):
                size = np.abs(expected[s.buffer]).max()
            np.testing.assert_allclose(
                actual, expected[s.buffer], rtol=step, atol=step * max(size, 1)
            )
        else:
            # A value next to a decision may fall on either side.
            assert np.mean(actual != expected[s.buffer]) <= max(0.02, 1.01 / actual.size)
