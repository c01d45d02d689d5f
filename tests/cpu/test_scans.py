"""Scans in machine code: as NumPy's running sums, products and extremes, which serve until they pay for compiling."""

import numpy as np
import pytest

pytest.importorskip("llvmlite")

from tests.cpu.harness import buffer, slot
from webtorch.ir.dtype import DType, bfloat16, bool_, float16, float32, float64, int8, int64
from webtorch.ir.kernel import Scan
from webtorch.lower.scansource import scan_source
from webtorch.runtime.backends.cpu import contraction, jit
from webtorch.runtime.backends.cpu.executable import ScanRunner
from webtorch.runtime.backends.cpu.threads import get_num_threads, set_num_threads

_STATUS = np.zeros(2, np.int64)


def _runner(
    op: str, source: DType, target: DType, outer: int, length: int, inner: int
) -> ScanRunner:
    count = outer * length * inner
    slots = (slot(source, count), slot(target, count, "write"))
    return ScanRunner(Scan("scan", op, outer, length, inner, slots))  # type: ignore[arg-type]


@pytest.mark.parametrize("shape", [(1, 33, 1), (21, 40, 1), (5, 9, 3), (3, 17, 8), (2, 11, 530)])
@pytest.mark.parametrize(
    ("source", "target"),
    [(float32, float32), (float64, float64), (int8, int64), (bool_, int64), (int64, int64),
     (float16, float16), (bfloat16, bfloat16), (bool_, bool_)],
)  # fmt: skip
@pytest.mark.parametrize("op", ["sum", "prod", "max", "min"])
@pytest.mark.parametrize("threads", [1, 3])
def test_machine_code_gives_numpys_bits(
    op: str, source: DType, target: DType, shape: tuple[int, int, int], threads: int
) -> None:
    rng = np.random.default_rng(1)
    values = rng.standard_normal(shape).astype(np.float32)
    if source.kind == "float":
        values.reshape(-1)[::37] = np.nan
        values.reshape(-1)[::41] = -np.inf
    else:
        values = values > 0 if source is bool_ else (values * 3)
    runner = _runner(op, source, target, *shape)
    x = buffer(source, values)
    expected, found = (buffer(target, np.zeros(shape)) for _ in range(2))
    with np.errstate(all="ignore"):
        contraction.scan(runner.routine)(x.array, expected.array)
    runner.native = jit.function(scan_source(runner.routine))
    runner.parallel = threads > 1
    before = get_num_threads()
    try:
        set_num_threads(threads)
        runner.run((x, found), (), _STATUS)
    finally:
        set_num_threads(before)
    np.testing.assert_array_equal(found.array, expected.array)


def test_a_scan_that_worked_enough_is_compiled() -> None:
    runner = _runner("sum", float32, float32, 256, 256, 1)
    x, out = (buffer(float32, np.ones(256 * 256)) for _ in range(2))
    for _ in range(40):
        runner.run((x, out), (), _STATUS)
    assert runner.native is not None
    assert out.array.reshape(256, 256)[7].tolist() == list(range(1, 257))
