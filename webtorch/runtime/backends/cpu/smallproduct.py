"""Small matrix products in machine code that takes their sizes as arguments. Imports this backend's modules.

NumPy's way to its BLAS costs more than a product of some thousand terms. The loops here serve all sizes, so that they
are compiled once for each type: along rows of the right side where these lie in order, else along the sum.
"""

from __future__ import annotations

import functools
import math
import struct

from webtorch.ir.dtype import DType, float32, float64
from webtorch.ir.kernel import Matmul
from webtorch.runtime.backends.cpu import jit
from webtorch.runtime.backends.cpu.contraction import simplified

# With more terms a product that goes through the cache in tiles is faster.
_MOST_TERMS = 1 << 16
# Longer sums would be less exact than BLAS's.
_LONGEST_SUM = 2048

_SIZES = (
    "m: int, n: int, k: int, lb: int, lm: int, lk: int, lo: int, rb: int, rk: int, rn: int, ro: int"
)
_BEGIN = f"""def small_product(begin, end, b0: TYPE, b1: TYPE, b2: TYPE, {_SIZES}, status):
    acc0 = local(TYPE, 512)
    for i in range(begin, end):
        batch = div(i, m)
        row = rem(i, m)
        left = batch * lb + row * lm + lo
        right = batch * rb + ro
"""
_ALONG_ROWS = (
    _BEGIN
    + """        start = 0
        while start < n:
            width = min(n - start, 512)
            for c in range(width):
                acc0[c] = TYPE(0)
            for d in range(k):
                t1 = b0[left + d * lk]
                at = right + d * rk + start
                for c in range(width):
                    t2 = b1[at + c]
                    t3 = t1 * t2
                    acc0[c] = acc0[c] + t3
            to = i * n + start
            for c in range(width):
                r0 = acc0[c]
                b2[to + c] = r0
            start = start + width
"""
)
_ALONG_THE_SUM = (
    _BEGIN.replace("    acc0 = local(TYPE, 512)\n", "")
    + """        for j in range(n):
            at = right + j * rn
            acc0 = TYPE(0)
            for d in range(k):
                t1 = b0[left + d]
                t2 = b1[at + d]
                t3 = t1 * t2
                acc0 += t3
            r0 = acc0
            b2[i * n + j] = r0
"""
)


# The machine code of a product, how many rows its batch has, and the sizes.
Plan = tuple[jit.Native, int, tuple[int, ...]]
pack = struct.Struct("QQQ" + "q" * 11 + "Q").pack


@functools.cache
def _loops(text: str, dtype: DType) -> jit.Native:
    return jit.function(text.replace("TYPE", dtype.name))


def plan(routine: Matmul) -> Plan | None:
    """Return how a product is done here; None where NumPy or tiles do it."""
    dtype = routine.buffers[0].dtype
    if (
        math.prod((*routine.batch, routine.m, routine.n, routine.k)) > _MOST_TERMS
        or routine.k > _LONGEST_SUM
        or dtype not in (float32, float64)
        or any(b.dtype is not dtype for b in routine.buffers[:3])
        or not jit.available()
    ):
        return None
    batch, m, left, right = simplified(routine)
    if len(batch) > 1:
        return None
    if left[-1] == 1 == right[-2]:
        text = _ALONG_THE_SUM
    elif right[-1] == 1 or routine.n == 1:
        text = _ALONG_ROWS
    else:
        return None
    count = math.prod(batch)
    lb, rb = (left[0], right[0]) if batch else (0, 0)
    sizes = (
        m, routine.n, routine.k, lb, left[-2], left[-1], routine.left_offset,
        rb, right[-2], right[-1], routine.right_offset,
    )  # fmt: skip
    return _loops(text, dtype), count * m, sizes
