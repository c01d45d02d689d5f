"""The records of reductions: what combines, what changes nothing, and the same on every processor. No device."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.cpu.harness import EXECUTIONS, run
from tests.null import formula
from webtorch.ir import expr as ex
from webtorch.ir.dtype import DType, bool_, float32, int8, int32, int64, uint8
from webtorch.ir.kernel import BufferSlot, Kernel, Reduce, Store
from webtorch.ir.reducer import REDUCERS, Reducer
from webtorch.lower.plainsource import plain_source
from webtorch.runtime.backends.plain.arithmetic import NAMESPACE

TYPES = (float32, int32, uint8, int8, bool_)
NUMPY: dict[str, Any] = {
    "sum": np.sum, "prod": np.prod, "max": np.max, "min": np.min, "any": np.any, "all": np.all,
    "argmax": np.argmax, "argmin": np.argmin,
}  # fmt: skip
# any and all are of bools; for positions bools are widened before.
CASES = [
    (r, t)
    for r in REDUCERS.values()
    for t in TYPES
    if (t is bool_ or r.name not in ("any", "all")) and not (t is bool_ and r.is_position)
]
each = pytest.mark.parametrize(("reducer", "dtype"), CASES, ids=lambda x: x.name)


def values(dtype: DType, shape: tuple[int, ...]) -> Any:
    rng = np.random.default_rng(0)
    if dtype is bool_:
        return rng.random(shape) < 0.5
    # Products of floats are exact in any order.
    low, high = (-2, 2) if dtype is float32 else (1 if dtype is uint8 else -3, 3)
    return rng.integers(low, high + 1, shape).astype(formula.numpy_type(dtype))


def expected(reducer: Reducer, x: Any, dim: int) -> Any:
    if reducer.is_position:
        return NUMPY[reducer.name](x, axis=dim)
    if x.dtype == bool and reducer.name in ("sum", "prod"):
        return (np.any if reducer.name == "sum" else np.all)(x, axis=dim)
    kind = {} if reducer.name in ("max", "min", "any", "all") else {"dtype": x.dtype}
    return NUMPY[reducer.name](x, axis=dim, **kind)


@each
def test_identity_changes_nothing(reducer: Reducer, dtype: DType) -> None:
    x = values(dtype, (50,))
    if dtype is float32 and reducer.name in ("max", "min", "argmax", "argmin"):
        x = np.append(x, [np.inf, -np.inf]).astype(np.float32)
    neutral = np.full(x.shape, reducer.identity(dtype), x.dtype)
    combine = formula.FUNCTIONS[reducer.function(dtype).name]
    np.testing.assert_array_equal(combine(x, neutral), x)
    np.testing.assert_array_equal(combine(neutral, x), x)


def kernel_of(reducer: Reducer, dtype: DType, outer: int, inner: int, columns: bool) -> Kernel:
    i, j = ex.index(0, outer), ex.index(1, inner)
    x = ex.load(0, dtype, j * outer + i if columns else i * inner + j)
    result = int64 if reducer.is_position else dtype
    reduce = Reduce(reducer.name, x, result)  # type: ignore[arg-type]
    slots = (BufferSlot(dtype, "read", outer * inner), BufferSlot(result, "write", outer))
    return Kernel(
        "reduction", (outer,), (inner,), slots, (), (reduce,), (Store(1, i, ex.reduced(0, result)),)
    )


@each
@pytest.mark.parametrize("columns", [False, True])
@pytest.mark.parametrize("execution", [*EXECUTIONS, "python"])
def test_processors_reduce_alike(
    reducer: Reducer, dtype: DType, columns: bool, execution: str
) -> None:
    outer, inner = 12, 20
    kernel = kernel_of(reducer, dtype, outer, inner, columns)
    x = values(dtype, (inner, outer) if columns else (outer, inner))
    # A column and a row whose extreme comes late.
    x[..., 0], x[0] = x.max(), x.min()
    if execution == "python":
        namespace: dict[str, Any] = dict(NAMESPACE)
        exec(plain_source(kernel), namespace)
        actual: Any = [0] * outer
        namespace["kernel"](x.ravel().tolist(), actual, [0, 0])
    else:
        (actual,) = run(kernel, [x, None], execution=execution)
    np.testing.assert_array_equal(actual, expected(reducer, x, 0 if columns else 1))
