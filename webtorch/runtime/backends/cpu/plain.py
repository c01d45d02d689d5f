"""What the loop text of `lower/pysource.py` means in plain Python, on NumPy scalars. Imports NumPy
and this backend's modules.

Used by `webtorch.debug.step`: slow, exact about types, and every line can carry a breakpoint.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from webtorch.ir.dtype import ALL
from webtorch.ir.expr import FUNCTIONS
from webtorch.runtime.backends.cpu import numpy_math
from webtorch.runtime.backends.cpu.memory import Array


def _typed(kind: str) -> Callable[[object], object]:
    target = np.dtype(kind).type

    def convert(x: Any) -> Any:
        """Return a number of the type; integers wrap around."""
        if isinstance(x, (bool, int)):
            # A position or an integer constant: it wraps around like a typed integer.
            if np.dtype(kind).kind in "iu":
                return np.array(x & 0xFFFFFFFFFFFFFFFF, np.uint64).astype(kind)[()]
            return target(x)
        if isinstance(x, float) and not isinstance(x, np.floating):
            return target(x)
        return numpy_math.convert(x, target)[()]

    convert.__name__ = kind
    return convert


def _scalar(function: Callable[..., Any]) -> Callable[..., Any]:
    def call(*args: Any) -> Any:
        """Return the function's result as a NumPy scalar."""
        # Arrays of one: of scalars NumPy computes some functions in another way (x^0.5 at -infinity).
        return np.asarray(function(*map(np.atleast_1d, args)))[0]

    call.__name__ = getattr(function, "__name__", "call")
    return call


def local(kind: Callable[[Any], object], count: int) -> Array:
    """Return scratch memory of one kernel."""
    return np.zeros(count, kind.__name__)


def bitcast(x: object, kind: Callable[[Any], object]) -> object:
    """Reinterpret the bits."""
    return np.asarray(x).view(kind.__name__)[()]


def where(condition: object, a: object, b: object) -> Any:
    """Return one of two values."""
    return a if condition else b


def div(a: int, b: int) -> int:
    """Divide positions."""
    return a // b


def rem(a: int, b: int) -> int:
    """Return the rest of a division of positions."""
    return a % b


def report(status: Array, site: int, value: object) -> None:
    """Note a failed check, if it is the first."""
    if not status[0]:
        status[0], status[1] = site + 1, value


def _order(x: Any, nan: int) -> Any:
    if np.isnan(x):
        top = np.iinfo(np.int32 if x.dtype.itemsize == 4 else np.int64)
        return x.dtype.type(0).view(top.dtype) + (top.max if nan > 0 else top.min)
    bits = x.view(np.int32 if x.dtype.itemsize == 4 else np.int64)
    return bits if bits >= 0 else bits ^ np.iinfo(bits.dtype).max


def order_max(x: object) -> object:
    """Return an integer that orders like the float `x`, NaN last."""
    return _order(x, 1)


def order_min(x: object) -> object:
    """Return an integer that orders like the float `x`, NaN first."""
    return _order(x, -1)


def unorder(x: Any, kind: Callable[[Any], object]) -> object:
    """Return the float that `order_max` or `order_min` mapped."""
    bits = x if x >= 0 else x ^ np.iinfo(x.dtype).max
    return np.asarray(bits).view(kind.__name__)[()]


def _order_pair(x: Any, position: int, largest: bool) -> object:
    if x.dtype.kind == "f":
        key = int(_order(x + x.dtype.type(0), 1 if largest else -1))
    else:
        key = int(x) - (1 << 31 if x.dtype == np.uint32 else 0)
    if not largest:
        key = ~key
    return np.int64((key << 32) | (0xFFFFFFFF - position))


def order_argmax(x: object, position: int) -> object:
    """Return value and position as one integer whose maximum is the first largest value."""
    return _order_pair(x, position, True)


def order_argmin(x: object, position: int) -> object:
    """Return value and position as one integer whose maximum is the first smallest value."""
    return _order_pair(x, position, False)


def order_position(acc: Any) -> int:
    """Return the position that such an integer holds."""
    return 0xFFFFFFFF - (int(acc) & 0xFFFFFFFF)


NAMESPACE: dict[str, Any] = {
    f.loops: _scalar(numpy_math.NAMESPACE[f.numpy or f.name]) for f in FUNCTIONS.values()
}
NAMESPACE |= {
    "inf": math.inf,
    "nan": math.nan,
    "local": local,
    "bitcast": bitcast,
    "where": where,
    "div": div,
    "rem": rem,
    "unrolled": range,
    "report": report,
    "order_max": order_max,
    "order_min": order_min,
    "unorder": unorder,
    "order_argmax": order_argmax,
    "order_argmin": order_argmin,
    "order_position": order_position,
    "from_bfloat16": _scalar(numpy_math.from_bfloat16),
    "to_bfloat16": _scalar(numpy_math.to_bfloat16),
    "philox": numpy_math.philox,
}
NAMESPACE |= {dtype.name: _typed(dtype.numpy or dtype.name) for dtype in ALL}
