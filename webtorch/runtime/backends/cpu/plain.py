"""What the loop text of `lower/pysource.py` means in plain Python, on NumPy scalars. Imports NumPy
and this backend's modules.

Used by `webtorch.debug.step`: slow, exact about types, and every line can carry a breakpoint.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from webtorch.runtime.backends.cpu import elementary, numpy_math

Array = npt.NDArray[Any]

_MACHINE = elementary.NumpyMachine()


def _typed(kind: str) -> Callable[[Any], Any]:
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
        return np.asarray(function(*args))[()]

    call.__name__ = getattr(function, "__name__", "call")
    return call


def local(kind: Callable[[Any], Any], count: int) -> Array:
    """Return scratch memory of one kernel."""
    return np.zeros(count, kind.__name__)


def bitcast(x: Any, kind: Callable[[Any], Any]) -> Any:
    """Reinterpret the bits."""
    return np.asarray(x).view(kind.__name__)[()]


def where(condition: Any, a: Any, b: Any) -> Any:
    """Return one of two values."""
    return a if condition else b


def div(a: int, b: int) -> int:
    """Divide positions."""
    return a // b


def rem(a: int, b: int) -> int:
    """Return the rest of a division of positions."""
    return a % b


def report(status: Array, site: int, value: Any) -> None:
    """Note a failed check, if it is the first."""
    if not status[0]:
        status[0], status[1] = site + 1, value


def logical_not(x: Any) -> Any:
    """Return not x."""
    return np.logical_not(x)


def _order(x: Any, nan: int) -> Any:
    if np.isnan(x):
        top = np.iinfo(np.int32 if x.dtype.itemsize == 4 else np.int64)
        return x.dtype.type(0).view(top.dtype) + (top.max if nan > 0 else top.min)
    bits = x.view(np.int32 if x.dtype.itemsize == 4 else np.int64)
    return bits if bits >= 0 else bits ^ np.iinfo(bits.dtype).max


def order_max(x: Any) -> Any:
    """Return an integer that orders like the float `x`, NaN last."""
    return _order(x, 1)


def order_min(x: Any) -> Any:
    """Return an integer that orders like the float `x`, NaN first."""
    return _order(x, -1)


def unorder(x: Any, kind: Callable[[Any], Any]) -> Any:
    """Return the float that `order_max` or `order_min` mapped."""
    bits = x if x >= 0 else x ^ np.iinfo(x.dtype).max
    return np.asarray(bits).view(kind.__name__)[()]


def _order_pair(x: Any, position: int, largest: bool) -> Any:
    if x.dtype.kind == "f":
        key = int(_order(x + x.dtype.type(0), 1 if largest else -1))
    else:
        key = int(x) - (1 << 31 if x.dtype == np.uint32 else 0)
    if not largest:
        key = ~key
    return np.int64((key << 32) | (0xFFFFFFFF - position))


def order_argmax(x: Any, position: int) -> Any:
    """Return value and position as one integer whose maximum is the first largest value."""
    return _order_pair(x, position, True)


def order_argmin(x: Any, position: int) -> Any:
    """Return value and position as one integer whose maximum is the first smallest value."""
    return _order_pair(x, position, False)


def order_position(acc: Any) -> int:
    """Return the position that such an integer holds."""
    return 0xFFFFFFFF - (int(acc) & 0xFFFFFFFF)


def _math(name: str) -> Callable[..., Any]:
    """Return an elementary function: NumPy's where it has one."""
    names = {
        "asin": "arcsin",
        "acos": "arccos",
        "atan": "arctan",
        "asinh": "arcsinh",
        "acosh": "arccosh",
        "atanh": "arctanh",
        "atan2": "arctan2",
    }
    if name == "pow":
        # Arrays of one: for scalars NumPy takes a square root for x^0.5, which differs at -infinity.
        return lambda x, y: numpy_math.pow(np.array([x]), np.array([y]))[0]
    if name in ("erf", "erfc"):
        return _scalar(getattr(numpy_math, name))
    function: Callable[..., Any] = getattr(np, names.get(name, name))
    return function


NAMESPACE: dict[str, Any] = {
    "inf": math.inf,
    "nan": math.nan,
    "local": local,
    "bitcast": bitcast,
    "where": where,
    "div": div,
    "rem": rem,
    "report": report,
    "logical_not": logical_not,
    "order_max": order_max,
    "order_min": order_min,
    "unorder": unorder,
    "order_argmax": order_argmax,
    "order_argmin": order_argmin,
    "order_position": order_position,
    "floor": _scalar(np.floor),
    "ceil": _scalar(np.ceil),
    "trunc": _scalar(np.trunc),
    "round": _scalar(np.rint),
    "isnan": np.isnan,
    "isinf": np.isinf,
    "sqrt": np.sqrt,
    "copysign": np.copysign,
    "maximum": np.maximum,
    "minimum": np.minimum,
    "invert": np.invert,
    "sign": _scalar(numpy_math.sign),
    "rsqrt": _scalar(numpy_math.rsqrt),
    "floordiv": np.floor_divide,
    "mod": np.remainder,
    "truncmod": np.fmod,
    "gcd": np.gcd,
    "truncdiv": _scalar(numpy_math.truncdiv),
    "shl": np.left_shift,
    "shr": np.right_shift,
    "from_bfloat16": _scalar(numpy_math.from_bfloat16),
    "to_bfloat16": _scalar(numpy_math.to_bfloat16),
    "philox": numpy_math.philox,
}
NAMESPACE |= {name: _math(name) for name in elementary.FUNCTIONS}
NAMESPACE |= {
    kind: _typed(kind)
    for kind in (
        "float16",
        "float32",
        "float64",
        "int8",
        "int16",
        "int32",
        "int64",
        "uint8",
        "uint32",
    )
}
NAMESPACE["bool"] = _typed("bool")
NAMESPACE["bfloat16"] = _typed("uint16")
