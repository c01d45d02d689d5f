"""Every Expr op, reduction and store, in the three executions of the CPU backend."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch

from tests.cpu import harness
from webtorch.ir import expr as ex
from webtorch.ir.checks import first_checks
from webtorch.ir.dtype import (
    DType,
    bfloat16,
    bool_,
    float16,
    float32,
    float64,
    int8,
    int16,
    int32,
    int64,
    uint8,
    uint16,
    uint32,
    uint64,
)
from webtorch.ir.kernel import Check, Kernel, Reduce, Store
from webtorch.lower.pysource import python_source
from webtorch.runtime.backends.cpu import numpy_math
from webtorch.runtime.backends.cpu.executable import KernelRunner
from webtorch.runtime.backends.cpu.memory import CpuBuffer

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")
EXECUTIONS = harness.EXECUTIONS

FLOAT_UNARY = {
    "neg": torch.neg,
    "abs": torch.abs,
    "sign": torch.sign,
    "exp": torch.exp,
    "exp2": torch.exp2,
    "expm1": torch.expm1,
    "log": torch.log,
    "log2": torch.log2,
    "log10": torch.log10,
    "log1p": torch.log1p,
    "sqrt": torch.sqrt,
    "rsqrt": torch.rsqrt,
    "sin": torch.sin,
    "cos": torch.cos,
    "tan": torch.tan,
    "asin": torch.asin,
    "acos": torch.acos,
    "atan": torch.atan,
    "sinh": torch.sinh,
    "cosh": torch.cosh,
    "tanh": torch.tanh,
    "asinh": torch.asinh,
    "acosh": torch.acosh,
    "atanh": torch.atanh,
    "erf": torch.erf,
    "erfc": torch.erfc,
    "floor": torch.floor,
    "ceil": torch.ceil,
    "trunc": torch.trunc,
    "round": torch.round,
    "isnan": torch.isnan,
    "isinf": torch.isinf,
}
INT_UNARY = {"neg": torch.neg, "abs": torch.abs, "sign": torch.sign, "bitnot": torch.bitwise_not}
FLOAT_BINARY = {
    "add": torch.add,
    "sub": torch.sub,
    "mul": torch.mul,
    "div": torch.div,
    "floordiv": torch.floor_divide,
    "truncdiv": lambda a, b: torch.div(a, b, rounding_mode="trunc"),
    "mod": torch.remainder,
    "truncmod": torch.fmod,
    "pow": torch.pow,
    "atan2": torch.atan2,
    "hypot": torch.hypot,
    "copysign": torch.copysign,
    "min": torch.minimum,
    "max": torch.maximum,
    "lt": torch.lt,
    "le": torch.le,
    "eq": torch.eq,
    "ne": torch.ne,
}
INT_BINARY = {
    "add": torch.add,
    "sub": torch.sub,
    "mul": torch.mul,
    "floordiv": torch.floor_divide,
    "truncdiv": lambda a, b: torch.div(a, b, rounding_mode="trunc"),
    "mod": torch.remainder,
    "truncmod": torch.fmod,
    "pow": torch.pow,
    "min": torch.minimum,
    "max": torch.maximum,
    "lt": torch.lt,
    "le": torch.le,
    "eq": torch.eq,
    "ne": torch.ne,
    "and": torch.bitwise_and,
    "or": torch.bitwise_or,
    "xor": torch.bitwise_xor,
}
SPECIAL = [
    0.0,
    -0.0,
    1.0,
    -1.0,
    0.5,
    -0.5,
    1.5,
    2.5,
    -2.5,
    3.0,
    1e-3,
    -7.25,
    20.0,
    math.inf,
    -math.inf,
    math.nan,
    1e-40,
    3e38,
    88.0,
    -104.0,
]
INTEGERS: tuple[DType, ...] = (int8, int16, int32, int64, uint8, uint16, uint32)


def elementwise(
    op: str,
    dtype: DType,
    count: int,
    operands: int,
    result: DType | None = None,
    value: object = None,
) -> Kernel:
    i = ex.index(0, count)
    loads = tuple(ex.load(k, dtype, i) for k in range(operands))
    result = result or (bool_ if ex.FUNCTIONS[op].gives_bool else dtype)
    body = ex.make(op, result, loads, value)
    slots = [harness.slot(dtype, count)] * operands + [harness.slot(result, count, "write")]
    return Kernel(f"test_{op}", (count,), (), tuple(slots), (), (), (Store(operands, i, body),))


def close(actual: np.ndarray, expected: np.ndarray, dtype: DType) -> None:
    if actual.dtype.kind != "f":
        np.testing.assert_array_equal(actual, expected.astype(actual.dtype))
        return
    # 4 units in the last place of float32, float64's libm for the other.
    rtol, tiny = (5e-7, 1e-44) if dtype is float32 else (1e-14, 0.0)
    with np.errstate(all="ignore"):
        expected = expected.astype(actual.dtype)
    np.testing.assert_allclose(actual, expected, rtol=rtol, atol=tiny)


def test_no_function_of_float32_goes_number_by_number(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(self: ex.ScalarFunction, *args: float) -> float:
        raise AssertionError(self.name)

    monkeypatch.setattr(ex.ScalarFunction, "of_floats", refused)
    x = np.array([-0.5, 0.0, 2.0], np.float32)
    for function in ex.FUNCTIONS.values():
        if function.expansion_cpu is not None:
            numpy_math.NAMESPACE[function.numpy or function.name](*[x] * function.arity)


@pytest.mark.parametrize("execution", EXECUTIONS)
@pytest.mark.parametrize("dtype", [float32, float64], ids=str)
@pytest.mark.parametrize("op", FLOAT_UNARY)
def test_unary_float_op_matches_float64(op: str, dtype: DType, execution: str) -> None:
    random = np.random.default_rng(0).standard_normal(80) * 3
    x = np.concatenate([SPECIAL, random]).astype(dtype.name)
    (actual,) = harness.run(elementwise(op, dtype, x.size, 1), [x, None], execution=execution)
    close(actual, FLOAT_UNARY[op](torch.tensor(x.astype("float64"))).numpy(), dtype)


@pytest.mark.parametrize("execution", EXECUTIONS)
@pytest.mark.parametrize("dtype", [float32, float64], ids=str)
@pytest.mark.parametrize("op", FLOAT_BINARY)
def test_binary_float_op_matches_float64(op: str, dtype: DType, execution: str) -> None:
    pairs = np.array(list(itertools.product(SPECIAL, SPECIAL)))
    a, b = pairs.T.astype(dtype.name)
    if op in ("floordiv", "mod", "truncmod", "truncdiv"):
        # Remainders of huge quotients are exact, quotients are not: keep to what float32 can hold.
        keep = (np.abs(a) < 1e6) & ~((np.abs(b) < 1e-30) & (b != 0))
        a, b = a[keep], b[keep]
    (actual,) = harness.run(elementwise(op, dtype, a.size, 2), [a, b, None], execution=execution)
    with np.errstate(all="ignore"):
        # A rounded quotient is defined by the type's own division.
        wide = dtype.name if op in ("floordiv", "truncdiv") else "float64"
        expected = FLOAT_BINARY[op](
            torch.tensor(a.astype(wide)), torch.tensor(b.astype(wide))
        ).numpy()
    if op in ("mod", "min", "max"):
        actual, expected = actual + 0.0, expected + 0.0
    close(actual, expected, dtype)


def integers(dtype: DType, count: int = 60) -> np.ndarray:
    info = np.iinfo(dtype.name)
    values = np.random.default_rng(1).integers(
        max(info.min, -1000), min(info.max, 1000), count, endpoint=True
    )
    ends = [info.min, info.max, 0, 1, 2, 3, 5] + ([-1, -2, -3] if info.min else [])
    return np.concatenate([ends, values]).astype(dtype.name)


@pytest.mark.parametrize("execution", EXECUTIONS)
@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
@pytest.mark.parametrize("op", INT_UNARY)
def test_unary_integer_op_wraps(op: str, dtype: DType, execution: str) -> None:
    x = integers(dtype)
    (actual,) = harness.run(elementwise(op, dtype, x.size, 1), [x, None], execution=execution)
    if dtype.alone:
        expected = {"neg": -x, "abs": x, "sign": np.sign(x), "bitnot": ~x}[op]
    else:
        expected = INT_UNARY[op](torch.tensor(x)).numpy()
    np.testing.assert_array_equal(actual, expected)


@pytest.mark.parametrize("execution", EXECUTIONS)
@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
@pytest.mark.parametrize("op", INT_BINARY)
def test_binary_integer_op_wraps(op: str, dtype: DType, execution: str) -> None:
    x = integers(dtype, 20)
    y = integers(dtype, 20)[::-1]
    a, b = (g.ravel() for g in np.meshgrid(x, y))
    if "div" in op or "mod" in op:
        low = np.iinfo(dtype.name).min
        keep = (b != 0) & ~((a == low) & (b == np.array(-1).astype(b.dtype)) & (low < 0))
        a, b = a[keep], b[keep]
    if op == "pow":
        keep = np.abs(b.astype("int64")) < 40
        a, b = a[keep], b[keep]
    (actual,) = harness.run(elementwise(op, dtype, a.size, 2), [a, b, None], execution=execution)
    if dtype.alone:
        wide = INT_BINARY[op](
            torch.tensor(a.astype("int64")), torch.tensor(b.astype("int64"))
        ).numpy()
        expected = wide.astype(actual.dtype)
    else:
        expected = INT_BINARY[op](torch.tensor(a.copy()), torch.tensor(b.copy())).numpy()
    np.testing.assert_array_equal(actual, expected)


@pytest.mark.parametrize("execution", EXECUTIONS)
@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
@pytest.mark.parametrize("op", ["floordiv", "truncdiv", "mod", "truncmod"])
def test_integer_division_by_zero_does_not_crash(op: str, dtype: DType, execution: str) -> None:
    low = np.iinfo(dtype.name).min
    a = np.array([low, 7, 0, low], dtype.name)
    b = np.array([0, 0, 0, -1 if low else 1], dtype.name)
    (actual,) = harness.run(elementwise(op, dtype, 4, 2), [a, b, None], execution=execution)
    assert actual.shape == (4,)


@pytest.mark.parametrize("execution", EXECUTIONS)
@pytest.mark.parametrize("dtype", [int32, int64, uint32, uint64, int8], ids=str)
@pytest.mark.parametrize("op", ["shl", "shr"])
def test_shift(op: str, dtype: DType, execution: str) -> None:
    a = np.repeat(integers(dtype, 5), 4)
    b = np.tile([0, 1, 3, dtype.bits - 1], a.size // 4).astype(dtype.name)
    (actual,) = harness.run(elementwise(op, dtype, a.size, 2), [a, b, None], execution=execution)
    wide = [int(x) << int(n) if op == "shl" else int(x) >> int(n) for x, n in zip(a, b)]
    expected = np.array([w & ((1 << 64) - 1) for w in wide], np.uint64).astype(a.dtype)
    np.testing.assert_array_equal(actual, expected)


@pytest.mark.parametrize("execution", EXECUTIONS)
@pytest.mark.parametrize("op", ["and", "or", "xor", "eq", "ne", "max", "min", "mul", "add"])
def test_bool_op(op: str, execution: str) -> None:
    a, b = np.array([0, 0, 1, 1], bool), np.array([0, 1, 0, 1], bool)
    (actual,) = harness.run(elementwise(op, bool_, 4, 2), [a, b, None], execution=execution)
    expected = {
        "and": a & b,
        "or": a | b,
        "xor": a ^ b,
        "eq": a == b,
        "ne": a != b,
        "max": a | b,
        "min": a & b,
        "mul": a & b,
        "add": a | b,
    }[op]
    np.testing.assert_array_equal(actual, expected)


@pytest.mark.parametrize("execution", EXECUTIONS)
@pytest.mark.parametrize(
    "target", [float32, float64, float16, bfloat16, *INTEGERS, uint64, bool_], ids=str
)
@pytest.mark.parametrize(
    "source", [float32, float64, float16, bfloat16, *INTEGERS, uint64, bool_], ids=str
)
def test_cast_matches_pytorch(source: DType, target: DType, execution: str) -> None:
    if source is target:
        return  # ex.cast leaves nothing to do
    if source.kind == "float":
        values = [0.0, -0.0, 1.0, -1.0, 0.5, -1.5, 2.75, 100.0, 3.0, 60000.0, 1e-5, 1 / 3]
        if target.kind == "float":
            values += [
                math.inf,
                -math.inf,
                math.nan,
                65519.0,
                65520.0,
                1e-8,
                6e-8,
                5.97e-8,
                1.00048828125,
                1e38,
            ]
        else:
            values = [v for v in values if v >= 0 or target.is_signed]
            values = [v for v in values if abs(v) <= 127]
    elif source is bool_:
        values = [0.0, 1.0]
    else:
        values = [float(v) for v in (0, 1, 2, 100, 127)] + (
            [-1.0, -100.0] if source.is_signed else []
        )
    tensor = torch.tensor(values, dtype=torch.float64).to(getattr(torch, source.name))
    data = tensor.view(torch.uint16).numpy() if source is bfloat16 else tensor.numpy()
    kernel = elementwise("cast", source, data.size, 1, target)
    (actual,) = harness.run(kernel, [data, None], execution=execution)
    expected = tensor.to(getattr(torch, target.name))
    if target is bfloat16:
        wide = torch.tensor(actual.astype(np.int32)).to(torch.int16).view(torch.bfloat16)
        assert torch.equal(torch.nan_to_num(wide), torch.nan_to_num(expected))
        assert torch.equal(wide.isnan(), expected.isnan())
    else:
        np.testing.assert_array_equal(actual, expected.numpy())


@pytest.mark.parametrize("execution", EXECUTIONS)
def test_every_float16_survives_a_round_trip(execution: str) -> None:
    bits = np.arange(0, 65536, 1 if execution != "plain" else 251, dtype=np.uint16)
    i = ex.index(0, bits.size)
    body = ex.cast(ex.cast(ex.load(0, float16, i), float32), float16)
    kernel = Kernel(
        "half",
        (bits.size,),
        (),
        (harness.slot(float16, bits.size), harness.slot(float16, bits.size, "write")),
        (),
        (),
        (Store(1, i, body),),
    )
    if execution == "numpy":
        body = ex.cast(ex.cast(ex.load(0, float16, i), float32), float16)
    (actual,) = harness.run(kernel, [bits.view(np.float16), None], execution=execution)
    np.testing.assert_array_equal(actual, bits.view(np.float16))


@pytest.mark.parametrize("execution", ["native"])
def test_float16_rounding_matches_numpy(execution: str) -> None:
    bits = np.random.default_rng(0).integers(0, 2**32, 200_000, dtype=np.uint64).astype(np.uint32)
    near = (
        np.arange(0, 65536, dtype=np.uint16)
        .view(np.float16)
        .astype(np.float32)
        .view(np.uint32)[:, None]
        + np.array([0, 0xFFF, 0x1000, 0x1001], np.uint32)
    ).ravel()
    x = np.concatenate([bits, near]).view(np.float32)
    (actual,) = harness.run(
        elementwise("cast", float32, x.size, 1, float16), [x, None], execution=execution
    )
    with np.errstate(all="ignore"):
        np.testing.assert_array_equal(actual, x.astype(np.float16))


@pytest.mark.parametrize("execution", EXECUTIONS)
def test_bitcast(execution: str) -> None:
    x = np.array([1.0, -0.0, math.inf, 1e-40], np.float32)
    (actual,) = harness.run(
        elementwise("bitcast", float32, 4, 1, uint32), [x, None], execution=execution
    )
    np.testing.assert_array_equal(actual, x.view(np.uint32))


@pytest.mark.parametrize("execution", EXECUTIONS)
def test_where_takes_nothing_from_the_other_side(execution: str) -> None:
    i = ex.index(0, 6)
    x = ex.load(0, float32, i)
    body = ex.where(ex.lt(ex.const(0.0, float32), x), ex.log(x), ex.const(-1.0, float32))
    kernel = Kernel(
        "where",
        (6,),
        (),
        (harness.slot(float32, 6), harness.slot(float32, 6, "write")),
        (),
        (),
        (Store(1, i, body),),
    )
    (actual,) = harness.run(
        kernel, [np.array([1, -1, 0, math.e, math.nan, math.inf]), None], execution=execution
    )
    np.testing.assert_allclose(actual, [0, -1, -1, 1, -1, math.inf], rtol=1e-6)


# Random123's known answers for philox4x32-10: counter, key, result.
PHILOX = [
    ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    ((0xFFFFFFFF,) * 4, (0xFFFFFFFF,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xA4093822, 0x299F31D0),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
]


def test_philox_gives_random123_known_answers() -> None:
    from webtorch.runtime.backends.philox import Arrays, philox4x32

    machine = Arrays()
    for counter, key, expected in PHILOX:
        with np.errstate(all="ignore"):
            lanes = philox4x32(machine, tuple(map(np.uint32, key)), tuple(map(np.uint32, counter)))
        assert tuple(int(x) for x in lanes) == expected


@pytest.mark.parametrize("execution", EXECUTIONS)
def test_philox_lanes_in_a_kernel(execution: str) -> None:
    from webtorch.runtime.backends.philox import Arrays, philox4x32

    count = 40
    i = ex.index(0, count)
    seeds = [ex.arg(k, uint32) for k in range(2)]
    counter = ex.cast(i, uint32)
    stores = tuple(
        Store(lane, i, ex.philox(*seeds, counter, ex.const(7, uint32), lane)) for lane in range(4)
    )
    kernel = Kernel(
        "philox",
        (count,),
        (),
        (harness.slot(uint32, count, "write"),) * 4,
        (uint32, uint32),
        (),
        stores,
    )
    actual = harness.run(kernel, [None] * 4, args=(123, 0xFEDCBA98), execution=execution)
    with np.errstate(all="ignore"):
        expected = philox4x32(
            Arrays(), (np.uint32(123), np.uint32(0xFEDCBA98)),
            (np.arange(count, dtype=np.uint32), np.uint32(7), np.uint32(0), np.uint32(0)),
        )  # fmt: skip
    for got, want in zip(actual, expected):
        np.testing.assert_array_equal(got, want)


REDUCTIONS = ["sum", "prod", "max", "min", "argmax", "argmin", "any", "all"]


def reduction(
    op: str,
    dtype: DType,
    outer: tuple[int, ...],
    inner: tuple[int, ...],
    strides: tuple[int, ...],
    elements: int,
) -> Kernel:
    dims = outer + inner
    position = sum(
        (ex.index(d, s) * ex.const(strides[d], int32) for d, s in enumerate(dims)),
        start=ex.const(0, int32),
    )
    value = ex.load(0, dtype, position)
    result = int64 if op.startswith("arg") else dtype
    to = ex.const(0, int32)
    step = 1
    for d in reversed(range(len(outer))):
        to = to + ex.index(d, outer[d]) * ex.const(step, int32)
        step *= outer[d]
    return Kernel(
        f"{op}_rows", outer, inner, (harness.slot(dtype, elements), harness.slot(result, step, "write")), (),
        (Reduce(op, value, result),), (Store(1, to, ex.reduced(0, result)),),  # type: ignore[arg-type]
    )  # fmt: skip


SHAPES = {
    "rows": ((7,), (33,), (33, 1)),
    "columns": ((33,), (7,), (1, 33)),
    "all": ((), (231,), (1,)),
    "two inner dims": ((3,), (7, 11), (77, 11, 1)),
    "middle": ((3, 11), (7,), (77, 1, 11)),
    "short rows": ((77,), (3,), (3, 1)),
    "outer of one": ((1, 21), (11,), (0, 11, 1)),
    "windows": ((3, 4, 4), (2, 2), (64, 16, 2, 8, 1)),
    "windows of few": ((5, 9, 2), (2, 2), (40, 4, 2, 1, 2)),
}


@pytest.mark.one_in(2)
@pytest.mark.parametrize("execution", EXECUTIONS)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(
    ("op", "dtype"),
    [
        (op, d)
        for op in REDUCTIONS[:-2]
        for d in (float32, float64, int32, int64, uint8, int8, uint32)
    ]
    + [("any", bool_), ("all", bool_)],
    ids=str,
)
def test_reduction(op: str, dtype: DType, shape: str, execution: str) -> None:
    outer, inner, strides = SHAPES[shape]
    rng = np.random.default_rng(3)
    data = (
        rng.integers(0, 2, 231).astype(bool)
        if dtype is bool_
        else (rng.standard_normal(231) * 3).astype(dtype.name)
    )
    if dtype.kind == "float" and op == "prod":
        data = (1 + data / 50).astype(dtype.name)
    if dtype.kind == "float" and op in ("max", "min", "argmax", "argmin"):
        data[[5, 17, 60]] = math.nan
        data[[100, 101]] = -math.inf
        data[[120, 121]] = math.inf
    kernel = reduction(op, dtype, outer, inner, strides, 231)
    (actual,) = harness.run(kernel, [data, None], execution=execution)
    view = np.lib.stride_tricks.as_strided(
        data, outer + inner, [s * data.itemsize for s in strides]
    )
    rows = torch.tensor(view.reshape(*outer, -1).copy())
    wide = (
        rows.double()
        if dtype.kind == "float"
        else rows.to(torch.int64)
        if dtype is uint32
        else rows
    )
    function = {"max": torch.amax, "min": torch.amin}.get(op) or getattr(torch, op)
    expected = function(wide, -1).numpy().ravel()
    if dtype.kind == "float":
        np.testing.assert_allclose(
            actual, expected, rtol=1e-5 if dtype is float32 else 1e-13, atol=1e-5
        )
    else:
        np.testing.assert_array_equal(actual, expected.astype(actual.dtype))


@pytest.mark.parametrize("execution", EXECUTIONS)
@pytest.mark.parametrize("op", ["argmax", "argmin"])
@pytest.mark.parametrize("dtype", [float32, float64, int64], ids=str)
def test_first_extreme_wins(dtype: DType, op: str, execution: str) -> None:
    rows = [[1, 3, 3, 1], [-2, -2, -2, -2], [0, -0.0, 0, -0.0]]
    if dtype.kind == "float":
        rows += [[1, math.nan, 9, math.nan], [-math.inf] * 4, [math.inf] * 4]
    data = np.array(rows, dtype.name)
    kernel = reduction(op, dtype, (len(rows),), (4,), (4, 1), data.size)
    (actual,) = harness.run(kernel, [data, None], execution=execution)
    np.testing.assert_array_equal(actual, getattr(torch, op)(torch.tensor(data), -1).numpy())


@pytest.mark.parametrize("execution", ["numpy", "native"])
@pytest.mark.parametrize(
    "shape",
    [((1,), (300_000,), (300_000, 1)), ((8,), (40_000,), (1, 8)), ((64,), (40_000,), (1, 64))],
    ids=str,
)
def test_long_float_sums_stay_accurate(shape: tuple, execution: str) -> None:
    outer, inner, strides = shape
    count = outer[0] * inner[0]
    data = np.random.default_rng(0).random(count, np.float32)
    (actual,) = harness.run(
        reduction("sum", float32, outer, inner, strides, count), [data, None], execution=execution
    )
    view = np.lib.stride_tricks.as_strided(data, outer + inner, [4 * s for s in strides])
    rtol = 2e-6 if execution == "native" else 2e-4
    np.testing.assert_allclose(actual, view.sum(-1, dtype=np.float64), rtol=rtol)


# Columns whose rows are added in fours, in twos, with rows left, in blocks, and within another loop.
MANY_ROWS = [(64,), (66,), (67,), (1030,), (1027,), (3, 67), (3, 403)]


@pytest.mark.parametrize("varying", [False, True], ids=["", "varying"])
@pytest.mark.parametrize("op", ["sum", "max", "any"])
def test_many_rows_are_added_several_at_a_time(op: str, varying: bool) -> None:
    dtype = bool_ if op == "any" else float32
    for inner in MANY_ROWS:
        total = math.prod(inner)
        strides = (1, 9) if len(inner) == 1 else (1, 9 * inner[1], 9)
        kernel = reduction(op, dtype, (9,), inner, strides, 9 * total)
        assert "in unrolled(" in python_source(kernel)
        # Whole numbers, whose sums are exact in any order.
        data = np.random.default_rng(5).integers(-9, 9, (total, 9)).astype(dtype.name)
        data[:, 4] = 0
        (actual,) = harness.run(kernel, [data, None], execution="native", varying=varying)
        expected = {"sum": np.sum, "max": np.max, "any": np.any}[op](data, axis=0)
        np.testing.assert_array_equal(actual, expected)


def test_numbers_of_rows_that_vary_share_a_kernel() -> None:
    kernels = [reduction("sum", float32, (9,), (n,), (1, 9), 9 * n) for n in (64, 67, 130)]
    assert len({KernelRunner(k, varying=True).family for k in kernels}) == 1


def softmax(rows: int, columns: int, along_rows: bool = True) -> Kernel:
    i, j = ex.index(0, rows), ex.index(1, columns)
    position = i * columns + j if along_rows else j * rows + i
    x = ex.load(0, float32, position)
    e = ex.exp(x - ex.reduced(0, float32))
    count = rows * columns
    return Kernel(
        "softmax",
        (rows,),
        (columns,),
        (harness.slot(float32, count), harness.slot(float32, count, "write")),
        (),
        (Reduce("max", x, float32), Reduce("sum", e, float32)),
        (Store(1, position, e / ex.reduced(1, float32), "inner"),),
    )


@pytest.mark.parametrize("execution", EXECUTIONS)
@pytest.mark.parametrize("along_rows", [True, False])
def test_softmax_in_one_kernel(along_rows: bool, execution: str) -> None:
    data = np.random.default_rng(0).standard_normal((9, 130)).astype(np.float32)
    stored = data if along_rows else data.T.copy()
    (actual,) = harness.run(softmax(9, 130, along_rows), [stored, None], execution=execution)
    expected = torch.softmax(torch.tensor(data).double(), -1).numpy()
    actual = actual.reshape(9, 130) if along_rows else actual.reshape(130, 9).T
    np.testing.assert_allclose(actual, expected, rtol=2e-6, atol=1e-9)


@pytest.mark.parametrize("execution", EXECUTIONS)
def test_normalisation_in_place_with_outer_results(execution: str) -> None:
    """Two dependent reductions, a buffer that is read and written, and stores at both levels."""
    rows, columns = 6, 50
    i, j = ex.index(0, rows), ex.index(1, columns)
    x = ex.load(0, float32, i * columns + j)
    mean = ex.reduced(0, float32) / float(columns)
    centred = x - mean
    scale = ex.rsqrt(ex.reduced(1, float32) / float(columns) + 1e-5)
    kernel = Kernel(
        "norm",
        (rows,),
        (columns,),
        (
            harness.slot(float32, rows * columns, "read_write"),
            harness.slot(float32, rows, "write"),
            harness.slot(float32, rows, "write"),
        ),
        (),
        (Reduce("sum", x, float32), Reduce("sum", centred * centred, float32)),
        (
            Store(0, i * columns + j, centred * scale, "inner"),
            Store(1, i, mean),
            Store(2, i, ex.load(0, float32, i * columns) + scale),
        ),
    )
    data = np.random.default_rng(0).standard_normal((rows, columns)).astype(np.float32)
    normed, means, extra = harness.run(kernel, [data, None, None], execution=execution)
    wide = torch.tensor(data).double()
    np.testing.assert_allclose(
        normed.reshape(rows, columns),
        torch.nn.functional.layer_norm(wide, (columns,)).numpy(),
        rtol=1e-4,
        atol=1e-5,
    )
    np.testing.assert_allclose(means, data.mean(-1), rtol=1e-4, atol=1e-6)
    expected = data[:, 0] + 1 / np.sqrt(data.astype("float64").var(-1) + 1e-5)
    np.testing.assert_allclose(extra, expected, rtol=1e-5)


@pytest.mark.parametrize("execution", EXECUTIONS)
def test_guarded_load_pads_with_its_other_value(execution: str) -> None:
    i = ex.index(0, 9)
    at = i - ex.const(2, int32)
    valid = ex.le(ex.const(0, int32), at) & ex.lt(at, ex.const(5, int32))
    value = ex.make("load", float32, (at, valid, ex.const(-3.0, float32)), 0)
    kernel = Kernel(
        "pad",
        (9,),
        (),
        (harness.slot(float32, 5), harness.slot(float32, 9, "write")),
        (),
        (),
        (Store(1, i, value),),
    )
    (actual,) = harness.run(kernel, [np.arange(5), None], execution=execution)
    np.testing.assert_array_equal(actual, [-3, -3, 0, 1, 2, 3, 4, -3, -3])


@pytest.mark.parametrize("execution", ["numpy", "native"])
def test_positions_beyond_32_bits(execution: str) -> None:
    """A column of a large matrix; memory that nobody touches costs nothing."""
    row, size = 1 << 31, (1 << 31) + 6
    first = ex.make("arg", int32, (), 0)
    at = ex.index(0, 2) * ex.const(row, int32) + first
    value = ex.cast(ex.make("load", uint8, (at,), 0), float32)
    slots = harness.slot(uint8, size), harness.slot(float32, 2, "write")
    kernel = Kernel("column", (2,), (), slots, (int32,), (), (Store(1, ex.index(0, 2), value),))
    source, out = CpuBuffer(uint8, size), CpuBuffer(float32, 2)
    source.array[[5, row + 5]] = 3, 4
    runner, status = KernelRunner(kernel), np.zeros(2, np.int32)
    if execution == "native":
        runner.compile()
        runner.run([source, out], [5], status)
    else:
        runner.run_numpy([source, out], [5], status)
    assert out.array.tolist() == [3.0, 4.0]


@pytest.mark.parametrize("execution", EXECUTIONS)
@pytest.mark.parametrize("dtype", [float32, int32, float16, bfloat16], ids=str)
@pytest.mark.parametrize("combine", ["add", "mul", "max", "min"])
def test_scatter_combines_repeated_positions(combine: str, dtype: DType, execution: str) -> None:
    i = ex.index(0, 6)
    to = ex.cast(ex.load(1, int64, i), int32)
    kernel = Kernel(
        "scatter",
        (6,),
        (),
        (harness.slot(dtype, 4, "read_write"), harness.slot(int64, 6), harness.slot(dtype, 6)),
        (),
        (),
        (Store(0, to, ex.load(2, dtype, i), combine=combine),),  # type: ignore[arg-type]
    )
    index = np.array([0, 2, 2, 0, 3, 2])
    values = np.array([1, 2, 3, 4, 5, 0.5 if dtype.kind == "float" else 6], np.float32)
    start = np.array([1, 1, 2, 2], np.float32)
    (actual,) = harness.run(kernel, [start, index, values], execution=execution)
    if dtype is bfloat16:
        actual = (actual.astype(np.uint32) << 16).view(np.float32)
    expected = start.copy()
    ufunc = {"add": np.add, "mul": np.multiply, "max": np.maximum, "min": np.minimum}[combine]
    ufunc.at(expected, index, values)
    np.testing.assert_array_equal(actual, expected)


@pytest.mark.parametrize("execution", EXECUTIONS)
def test_store_happens_only_where_valid(execution: str) -> None:
    i = ex.index(0, 8)
    kernel = Kernel(
        "masked", (8,), (), (harness.slot(int32, 8, "read_write"),), (), (),
        (Store(0, i, ex.const(9, int32), valid=ex.lt(i, ex.const(3, int32))),),
    )  # fmt: skip
    (actual,) = harness.run(kernel, [np.arange(8)], execution=execution)
    np.testing.assert_array_equal(actual, [9, 9, 9, 3, 4, 5, 6, 7])


@pytest.mark.parametrize("execution", EXECUTIONS)
@pytest.mark.parametrize("divide", [True, False])
def test_positions_that_divide(divide: bool, execution: str) -> None:
    """A reshaped transpose: positions need division and remainder."""
    i = ex.index(0, 24)
    six = ex.const(6, int32)
    at = ex.mod(i, six) * 4 + ex.floordiv(i, six) if divide else ex.index(0, 24)
    kernel = Kernel(
        "divide",
        (24,),
        (),
        (harness.slot(float32, 24), harness.slot(float32, 24, "write")),
        (),
        (),
        (Store(1, i, ex.load(0, float32, at)),),
    )
    data = np.arange(24, dtype=np.float32)
    (actual,) = harness.run(kernel, [data, None], execution=execution)
    np.testing.assert_array_equal(actual, data.reshape(6, 4).T.ravel() if divide else data)


@pytest.mark.parametrize("execution", ["numpy", "native"])
def test_failed_check_is_noted(execution: str) -> None:
    i = ex.index(0, 5)
    index = ex.load(0, int64, i)
    kernel = Kernel(
        "check",
        (5,),
        (),
        (harness.slot(int64, 5), harness.slot(int64, 5, "write")),
        (),
        (),
        (Store(1, i, index),),
        (Check(index, 10, 3, low=-10),),
    )
    runner = KernelRunner(kernel)
    if execution == "native":
        runner.compile()
    buffers = [harness.buffer(int64, [1, -10, 9, -11, 10]), harness.buffer(int64, np.zeros(5))]
    status = np.zeros(2, np.int64)
    runner.run(buffers, (), status)
    assert status.tolist() == [4, -11]


def test_an_index_of_parts_that_are_shared_is_seen_once() -> None:
    """Written out, this one has 2 ** 60 parts."""

    def kernel(slot: int) -> Kernel:
        index = ex.load(slot, int64, ex.index(0, 5))
        for _ in range(60):
            index = index + index
        slots = (harness.slot(int64, 5),) * 2
        return Kernel("check", (5,), (), slots, (), (), (), (Check(index, 10, 3),))

    assert first_checks([(kernel(0), (7, 8)), (kernel(1), (8, 7)), (kernel(1), (7, 8))]) == {0, 2}


@pytest.mark.parametrize("bad", [None, 0, 77, 699])
def test_indices_are_tested_before_the_loop_that_uses_them(bad: int | None) -> None:
    i = ex.index(0, 700)
    index = ex.load(0, int64, i)
    inside = ex.maximum(ex.minimum(index, 49), 0)
    kernel = Kernel(
        "gather",
        (700,),
        (),
        (harness.slot(int64, 700), harness.slot(float32, 50), harness.slot(float32, 700, "write")),
        (),
        (),
        (Store(2, i, ex.load(1, float32, inside)),),
        (Check(index, 50, 6, low=0),),
    )
    text = python_source(kernel)
    # A report in a loop would keep it from being vectors.
    assert "report" not in text[text.rindex("for ") :] and "report" in text
    places = np.random.default_rng(0).integers(0, 50, 700)
    if bad is not None:
        places[bad:] = 50
        places[-1] = -3
    table = np.arange(50, dtype=np.float32)
    for execution in ("numpy", "native"):
        runner = KernelRunner(kernel)
        if execution == "native":
            runner.compile()
        buffers = [
            harness.buffer(int64, places),
            harness.buffer(float32, table),
            harness.buffer(float32, np.zeros(700)),
        ]
        status = np.zeros(2, np.int64)
        runner.run(buffers, (), status)
        np.testing.assert_array_equal(buffers[2].array, table[places.clip(0, 49)])
        first = -3 if bad == 699 else 50
        assert status.tolist() == ([0, 0] if bad is None else [7, first])


def test_kernel_text_is_readable() -> None:
    assert harness.text(softmax(4, 6)) == (
        "def softmax(begin, end, b0: float32, b1: float32, status):\n"
        "    row0 = local(float32, 6)\n"
        "    for i in range(begin, end):\n"
        "        i0 = i\n"
        "        acc0 = int32(-2147483648)\n"
        "        for i1 in range(6):\n"
        "            t1 = b0[i0 * 6 + i1]\n"
        "            acc0 = maximum(acc0, order_max(t1))\n"
        "        r0 = unorder(acc0, float32)\n"
        "        acc1 = float32(0)\n"
        "        for i1 in range(6):\n"
        "            t2 = b0[i0 * 6 + i1]\n"
        "            t3 = t2 - r0\n"
        "            t4 = exp(t3)\n"
        "            row0[i1] = t4\n"
        "            acc1 += t4\n"
        "        r1 = acc1\n"
        "        for i1 in range(6):\n"
        "            t5 = row0[i1]\n"
        "            t6 = t5 / r1\n"
        "            b1[i0 * 6 + i1] = t6\n"
    )


def test_transpose_is_walked_in_tiles() -> None:
    """The rewritten loop nest does the same, and each buffer's lines are used while they are near."""
    from webtorch.lower.loopnest import tile

    a, b, c = 3, 64, 128
    i, j, k = ex.index(0, a), ex.index(1, b), ex.index(2, c)
    load = ex.load(0, float32, (i * c + k) * b + j)
    size = a * b * c
    kernel = Kernel(
        "transpose",
        (a, b, c),
        (),
        (harness.slot(float32, size), harness.slot(float32, size, "write")),
        (),
        (),
        (Store(1, (i * b + j) * c + k, load),),
    )
    assert tile(kernel).outer == (3, 2, 2, 32, 64)
    data = np.arange(size, dtype=np.float32)
    for execution in ("numpy", "native"):
        for nest in (kernel, tile(kernel)):
            (actual,) = harness.run(nest, [data, None], execution=execution)
            np.testing.assert_array_equal(
                actual.reshape(a, b, c), data.reshape(a, c, b).transpose(0, 2, 1)
            )


@pytest.mark.parametrize("inner", [(1 << 18,), (300_007,), (4, 80_001)], ids=str)
@pytest.mark.parametrize("op", ["sum", "max", "min", "prod"])
def test_long_reduction_is_split(op: str, inner: tuple[int, ...]) -> None:
    from webtorch.runtime.backends.cpu.executable import SplitRunner, runner

    size = math.prod(inner)
    strides = tuple(math.prod(inner[d + 1 :]) for d in range(len(inner)))
    kernel = reduction(op, float32, (), inner, strides, size)
    data = 1 + np.random.default_rng(0).standard_normal(size).astype(np.float32) * (
        1e-3 if op == "prod" else 1
    )
    made = runner(kernel)
    assert isinstance(made, SplitRunner)
    buffers = [harness.buffer(float32, data), harness.buffer(float32, [0])]
    made.run(buffers, (), np.zeros(2, np.int32))
    expected = {"sum": np.sum, "max": np.max, "min": np.min, "prod": np.prod}[op](
        data.astype("float64")
    )
    np.testing.assert_allclose(buffers[1].array, expected, rtol=2e-4 if op == "prod" else 2e-5)


def test_long_softmax_is_split() -> None:
    """Dependent stages, guarded tails and inner stores."""
    from webtorch.runtime.backends.cpu.executable import SplitRunner, runner

    kernel = softmax(3, 100_003)
    data = np.random.default_rng(0).standard_normal((3, 100_003)).astype(np.float32)
    made = runner(kernel)
    assert isinstance(made, SplitRunner)
    buffers = [harness.buffer(float32, data), harness.buffer(float32, np.zeros(data.size))]
    made.run(buffers, (), np.zeros(2, np.int32))
    expected = torch.softmax(torch.tensor(data).double(), -1).numpy()
    np.testing.assert_allclose(buffers[1].array.reshape(3, -1), expected, rtol=1e-5)


@pytest.mark.parametrize("execution", EXECUTIONS)
@pytest.mark.parametrize("inner", [(3, 4, 2, 2), (2, 2), (5, 3), (40, 2, 2), (2, 9), (1, 7, 3)])
def test_short_inner_loops_walk_every_point_in_order(
    inner: tuple[int, ...], execution: str
) -> None:
    """One load in order, one that repeats along the first dim, one backwards along the last."""
    rows, total = 3, math.prod(inner)
    position = ex.const(0, int32)
    repeated = ex.const(0, int32)
    for d, size in enumerate(inner):
        position = position * size + ex.index(1 + d, size)
        repeated = repeated * size + (ex.index(1 + d, size) if d else ex.const(0, int32))
    backwards = ex.const(total - 1, int32) - position
    row = ex.index(0, rows)
    loads = [
        ex.load(n, float32, row * total + at)
        for n, at in enumerate((position, repeated, backwards))
    ]
    value = loads[0] * loads[1] + loads[2]
    reduces = (
        Reduce("sum", value, float32),
        Reduce("max", value - ex.reduced(0, float32), float32),
        Reduce("argmax", value, int64),
    )
    slots = [harness.slot(float32, rows * total)] * 3
    slots += [harness.slot(float32, rows * total, "write"), harness.slot(float32, rows, "write")]
    slots += [harness.slot(int64, rows, "write")]
    stores = (
        Store(3, row * total + position, value + ex.reduced(1, float32), level="inner"),
        Store(4, row, ex.reduced(1, float32)),
        Store(5, row, ex.reduced(2, int64)),
    )
    kernel = Kernel("short", (rows,), inner, tuple(slots), (), reduces, stores)
    x = np.random.default_rng(0).standard_normal((3, rows, total)).astype(np.float32)
    kept = x[1].reshape(rows, *inner)[:, :1].repeat(inner[0], 1).reshape(rows, total)
    expected = x[0].astype(np.float64) * kept + x[2][:, ::-1]
    largest = (expected - expected.sum(1, keepdims=True)).max(1)
    written, best, where = harness.run(kernel, [*x, None, None, None], execution=execution)
    np.testing.assert_allclose(best, largest, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(
        written.reshape(rows, total), expected + largest[:, None], rtol=1e-5, atol=1e-5
    )
    np.testing.assert_array_equal(where, expected.argmax(1))


@pytest.mark.parametrize("execution", EXECUTIONS)
def test_short_rows_of_an_elementwise_kernel(execution: str) -> None:
    outer = (5, 4, 3)
    i, j, k = (ex.index(d, size) for d, size in enumerate(outer))
    flat = (i * 4 + j) * 3 + k
    value = ex.load(0, float32, flat) - ex.load(1, float32, k * 20 + i * 4 + j)
    slots = [harness.slot(float32, 60)] * 2 + [harness.slot(float32, 60, "write")]
    kernel = Kernel("rows", outer, (), tuple(slots), (), (), (Store(2, flat, value),))
    x = np.arange(120, dtype=np.float32).reshape(2, 60) ** 1.5
    (actual,) = harness.run(kernel, [*x, None], execution=execution)
    turned = x[1].reshape(3, 5, 4).transpose(1, 2, 0)
    np.testing.assert_array_equal(actual, (x[0] - turned.ravel()))


def max_pool(images: int, size: int) -> Kernel:
    half = size // 2
    n, y, x = ex.index(0, images), ex.index(1, half), ex.index(2, half)
    dy, dx = ex.index(3, 2), ex.index(4, 2)
    value = ex.load(0, float32, n * size**2 + y * 2 * size + x * 2 + dy * size + dx)
    return Kernel(
        "max_pool",
        (images, half, half),
        (2, 2),
        (
            harness.slot(float32, images * size**2),
            harness.slot(float32, images * half**2, "write"),
        ),
        (),
        (Reduce("max", value, float32),),
        (Store(1, n * half**2 + y * half + x, ex.reduced(0, float32), "outer"),),
    )


@pytest.mark.parametrize("execution", EXECUTIONS)
def test_small_windows_are_unrolled(execution: str) -> None:
    """Vectors run along windows only where the loops within one are gone."""
    data = np.random.default_rng(0).standard_normal((5, 8, 8)).astype(np.float32)
    (actual,) = harness.run(max_pool(5, 8), [data, None], execution=execution)
    expected = data.reshape(5, 4, 2, 4, 2).max((2, 4))
    np.testing.assert_array_equal(actual.reshape(5, 4, 4), expected)
    text = harness.text(max_pool(5, 8))
    assert "for i3 in unrolled(2):" in text and "for i4 in unrolled(2):" in text
