"""Bytes as PyTorch sees them <-> bytes as the device holds them. Imports floor 0 and NumPy (on demand).

Only int64 differs: where 32 bits hold all values they lie in these, and are widened on the way out.
"""

from __future__ import annotations

import array
import os
from concurrent.futures import ThreadPoolExecutor

from webtorch.ir.dtype import DType, float64, int64, integer_limits, wide_int64

Bytes = bytes | bytearray | memoryview
# From this size on, a copy is shared among threads.
LARGE = 4 << 20
_COPIERS: ThreadPoolExecutor | None = None
_LOW, _HIGH = -(1 << 31), (1 << 31) - 1


def to_device(
    data: Bytes, dtype: DType, elements: int
) -> tuple[Bytes, DType, tuple[int, int] | None]:
    """Return `data` as the device holds it, how it is stored, and of int64 the least and largest value.

    Raises ValueError on a wrong size.
    """
    view = memoryview(data)
    if view.nbytes != elements * dtype.itemsize:
        raise ValueError(
            f"upload: {elements} elements of {dtype} are {elements * dtype.itemsize} bytes, the data has {view.nbytes}"
        )
    if elements == 0:
        return b"", dtype, None
    if dtype is int64:
        return _narrowed(view)
    return _flat(view), dtype, None


def _flat(view: memoryview) -> memoryview:
    return view if view.ndim == 1 and view.itemsize == 1 else view.cast("B")


def _narrowed(view: memoryview) -> tuple[Bytes, DType, tuple[int, int]]:
    """Return int64 in 32 bits, as it is where these are too few."""
    try:
        import numpy as np
    except ImportError:
        wide = array.array("q", view.tobytes())
        held = min(wide), max(wide)
    else:
        numbers = np.frombuffer(view, dtype="<i8")
        held = int(numbers.min()), int(numbers.max())
    if not _LOW <= held[0] <= held[1] <= _HIGH:
        return _flat(view), wide_int64, held
    try:
        return numbers.astype("<i4").data.cast("B"), int64, held
    except NameError:
        return memoryview(array.array("i", wide)).cast("B"), int64, held


def from_device(data: Bytes, dtype: DType, elements: int, into: memoryview | None = None) -> Bytes:
    """Return what `to_device` was given, copied out of `data`, which may be mapped memory that goes away, and longer.

    The copy lies in `into`, memory of the right size, where that is given.
    """
    if elements == 0:
        return b""
    if dtype is int64:
        try:
            import numpy as np
        except ImportError:
            wide: Bytes = memoryview(array.array("q", array.array("i", bytes(data)))).cast("B")
        else:
            wide = np.frombuffer(data, dtype="<i4").astype("<i8").data.cast("B")
        if into is None:
            return wide
        data = wide
    if into is None:
        if len(data) < LARGE:
            return bytearray(data)
        into = new_memory(len(data))
    copy_large(into, memoryview(data)[: len(into)])
    return into


def new_memory(size: int) -> memoryview:
    """Return memory that nothing has touched yet, where NumPy is there."""
    try:
        import numpy as np
    except ImportError:
        return memoryview(bytearray(size))
    return np.empty(size, "u1").data


def copy_large(target: memoryview, data: Bytes) -> None:
    """Copy with several threads: one alone spends its time on page faults (1 GB/s seen, 15 GB/s with eight)."""
    global _COPIERS
    size = len(data)
    if size < LARGE:
        target[:size] = data
        return
    try:
        import numpy as np
    except ImportError:
        target[:size] = data
        return
    to, source = np.frombuffer(target, dtype="u1"), np.frombuffer(data, dtype="u1")
    pieces = min(8, os.cpu_count() or 1, size // (LARGE // 2))
    if _COPIERS is None:
        _COPIERS = ThreadPoolExecutor(8, thread_name_prefix="webtorch-copy")
    bounds = [size * i // pieces for i in range(pieces + 1)]

    def copy(piece: int) -> None:
        """Copy one thread's part."""
        part = slice(bounds[piece], bounds[piece + 1])
        np.copyto(to[part], source[part])

    list(_COPIERS.map(copy, range(pieces)))


def argument_value(value: bool | int | float, dtype: DType, number: int) -> bool | int | float:
    """Return a value that struct can pack, rounding a float to infinity as float32 does.

    Raises OverflowError for an integer that does not fit, TypeError for a float where an integer
    belongs.
    """
    if dtype is float64:
        return float(value)
    if dtype.kind == "float":
        value = float(value)
        if value == value and abs(value) > 3.4028235677973366e38:
            return float("inf") if value > 0 else float("-inf")
        return value
    if isinstance(value, float):
        raise TypeError(f"argument {number}: {value!r} is a float, the program wants {dtype}")
    low, high = (_LOW, _HIGH) if dtype.kind == "int" else (0, (1 << 32) - 1)
    if dtype.itemsize < 4 or dtype is wide_int64:
        low, high = integer_limits(dtype)
    if not low <= value <= high:
        raise OverflowError(
            f"argument {number}: {value} does not fit {dtype} on WebGPU ({low} to {high})"
        )
    return int(value)
