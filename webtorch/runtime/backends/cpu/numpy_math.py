"""The names that generated NumPy source uses: NumPy's own functions, and what NumPy lacks. Imports
NumPy and floors 0-2.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from webtorch.ir.dtype import float32
from webtorch.ir.expr import FUNCTIONS, Expr, ScalarFunction, input_, walk
from webtorch.ir.reducer import REDUCERS
from webtorch.runtime.backends import philox as random_bits
from webtorch.runtime.backends.cpu.memory import Array

_MACHINE = random_bits.Arrays()


def view(flat: Array, offset: int, shape: tuple[int, ...], strides: tuple[int, ...]) -> Array:
    """Return a strided view of a flat array; `offset` and `strides` are in elements."""
    size = flat.itemsize
    return np.ndarray(shape, flat.dtype, flat, offset * size, tuple([s * size for s in strides]))


def guarded(flat: Array, position: Array, valid: Array, other: Array) -> Array:
    """Return flat[position] where `valid`, else `other`; an invalid position is never read."""
    if not flat.size:
        return np.broadcast_to(
            other, np.broadcast_shapes(np.shape(position), np.shape(valid))
        ).copy()
    return np.where(valid, flat[np.where(valid, position, 0)], other)


def put(target: Array, value: Array) -> None:
    """Assign to a view."""
    target[...] = value


def ufunc(function: ScalarFunction) -> np.ufunc:
    """Return NumPy's form of a scalar function."""
    found: np.ufunc = getattr(np, function.numpy)
    return found


def scatter(
    flat: Array,
    position: Array,
    value: Array,
    valid: Array | None,
    shape: tuple[int, ...],
    combine: str,
) -> None:
    """Store or combine `value` at positions that may repeat; the loop nest has `shape`."""
    position = np.broadcast_to(position, shape)
    value = np.broadcast_to(value, shape)
    if valid is not None:
        chosen = np.broadcast_to(valid, shape)
        position, value = position[chosen], value[chosen]
    if combine == "set":
        flat[position] = value
    elif flat.dtype in (np.uint16, np.float16):
        # 16-bit floats (bfloat16 as its bits) are combined in float32.
        bits = flat.dtype == np.uint16
        places, number = np.unique(position, return_inverse=True)
        total = from_bfloat16(flat[places]) if bits else flat[places].astype(np.float32)
        terms = from_bfloat16(value) if bits else value.astype(np.float32)
        ufunc(FUNCTIONS[combine]).at(total, number.reshape(position.shape), terms)
        flat[places] = to_bfloat16(total) if bits else total.astype(np.float16)
    else:
        ufunc(FUNCTIONS[combine]).at(flat, position, value)


def check(status: Array, site: int, value: Array, low: int, high: int) -> None:
    """Note the first value outside low..high-1 in the status words, unless one is noted already."""
    bad = (value < low) | (value >= high)
    if not status[0] and np.any(bad):
        status[1] = np.asarray(value)[bad].flat[0] if np.ndim(value) else value
        status[0] = site + 1


# -- reductions over the inner dims ---------------------------


def _reduction(ufunc: np.ufunc) -> object:
    def reduce(value: Array, shape: tuple[int, ...], first: int, dtype: type) -> Array:
        """Reduce the dims from `first` on, which stay as dims of size 1."""
        full = np.broadcast_to(value, shape)
        return ufunc.reduce(
            full, axis=tuple(range(first, len(shape))), dtype=full.dtype, keepdims=True
        )

    return reduce


def _position_reduction(find: Any) -> object:
    def reduce(value: Array, shape: tuple[int, ...], first: int, dtype: type) -> Array:
        """Return positions over the dims from `first` on, flattened."""
        rows = np.broadcast_to(value, shape).reshape(*shape[:first], -1)
        return (
            find(rows, axis=-1).astype(dtype).reshape(*shape[:first], *[1] * (len(shape) - first))
        )

    return reduce


# -- types ---------------------------


def convert(x: Array, target: type) -> Array:
    """Convert between types; floats go to the small integer types through int32, as C compilers do."""
    x = np.asarray(x)
    if x.dtype.kind == "f" and np.dtype(target).kind in "iu" and np.dtype(target).itemsize < 8:
        wide = np.int32 if np.dtype(target).itemsize < 4 or target is np.int32 else np.int64
        return x.astype(wide).astype(target)
    return x.astype(target)


def from_bfloat16(bits: Array) -> Array:
    """Widen the 16 bits of bfloat16 values to float32."""
    return np.left_shift(bits, np.uint32(16), dtype=np.uint32).view(np.float32)


def to_bfloat16(x: Array) -> Array:
    """Round to bfloat16 bits, to nearest, ties to even; NaN stays NaN."""
    x = np.asarray(x).astype(np.float32)
    bits = x.view(np.uint32)
    rounded = (bits + (np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1)))) >> np.uint32(
        16
    )
    return np.where(np.isnan(x), np.uint32(0x7FC0), rounded).astype(np.uint16)


# -- functions that NumPy lacks ---------------------------


def sign(x: Array) -> Array:
    """Return -1, 0 or 1; 0 for NaN."""
    return np.subtract(np.greater(x, 0), np.less(x, 0), dtype=np.int8).astype(np.asarray(x).dtype)


def rsqrt(x: Array) -> Array:
    """Return 1 / sqrt(x)."""
    return np.divide(np.asarray(x).dtype.type(1), np.sqrt(x))


def fma(x: Array, y: Array, z: Array) -> Array:
    """Return x * y + z; a float32 is rounded once, but for sums that a float64 must round as well."""
    kind = np.asarray(x).dtype
    return np.add(np.multiply(x, y, dtype=np.float64), z).astype(kind, copy=False)


def _formula(function: ScalarFunction) -> object:
    """Return a function of arrays: float32 by the form for processors, other types one number after the other."""
    assert function.expansion_cpu is not None
    root = function.expansion_cpu(*(input_(i, float32) for i in range(function.arity)))

    def apply(*args: Array) -> Array:
        """Compute arrays of one form."""
        if np.asarray(args[0]).dtype == np.float32:
            made: dict[Expr, Array] = {}
            for node in walk(root):
                made[node] = _node(node, [made[a] for a in node.args], args)
            return made[root]
        arrays = np.broadcast_arrays(*args)
        numbers = map(function.of_floats, *(a.ravel().tolist() for a in arrays))
        first = arrays[0]
        return np.fromiter(numbers, np.float64, first.size).reshape(first.shape).astype(first.dtype)

    return apply


def _node(node: Expr, values: list[Array], inputs: tuple[Array, ...]) -> Array:
    """Compute a node of a formula."""
    dtype = np.dtype(node.dtype.numpy or node.dtype.name)
    match node.op:
        case "input":
            return inputs[int(node.value)]
        case "const":
            return dtype.type(node.value)
        case "cast":
            return convert(values[0], dtype.type)
        case "bitcast":
            return values[0].view(dtype)
    found: Array = NAMESPACE[FUNCTIONS[node.op].numpy or node.op](*values)
    return found


def pow(x: Array, y: Array) -> Array:
    """Raise to a power; an integer to a negative power is 0 unless its base is 1 or -1."""
    if np.asarray(x).dtype.kind == "f":
        return np.power(x, y)
    kind = np.asarray(x).dtype.type
    if kind is np.bool_:
        return np.logical_or(x, np.logical_not(y))
    if np.dtype(kind).kind == "u":
        return np.power(x, y)
    result = np.power(x, np.maximum(y, kind(0)))
    odd = (y & kind(1)) == 1
    small = np.where(x == 1, kind(1), np.where(x == -1, np.where(odd, kind(-1), kind(1)), kind(0)))
    return np.where(y < 0, small, result)


def truncdiv(x: Array, y: Array) -> Array:
    """Divide, rounding to zero."""
    if np.asarray(x).dtype.kind == "f":
        return np.trunc(np.divide(x, y))
    quotient = np.floor_divide(x, y)
    inexact = (quotient * y != x) & ((x < 0) != (y < 0)) & (y != 0)
    return np.where(inexact, quotient + 1, quotient).astype(np.asarray(x).dtype)


def philox(
    seed_low: Array, seed_high: Array, counter_low: Array, counter_high: Array
) -> list[Array]:
    """Return the four lanes of Philox4x32-10 for counters (counter_low, counter_high, 0, 0)."""
    return random_bits.philox(_MACHINE, seed_low, seed_high, counter_low, counter_high)


_NAMES = """
where arange float32 float64 float16 int8 int16 int32 int64 uint8 uint16 uint32 uint64 bool_
"""

NAMESPACE: dict[str, Any] = {name: getattr(np, name) for name in _NAMES.split()} | {
    f.__name__: f
    for f in (
        view,
        guarded,
        put,
        scatter,
        check,
        convert,
        from_bfloat16,
        to_bfloat16,
        sign,
        rsqrt,
        fma,
        pow,
        truncdiv,
        philox,
    )
}
for _reducer in REDUCERS.values():
    NAMESPACE[f"reduce_{_reducer.name}"] = (
        _position_reduction(getattr(np, _reducer.name))
        if _reducer.is_position
        else _reduction(ufunc(FUNCTIONS[_reducer.combine]))
    )
for _function in FUNCTIONS.values():
    if _function.numpy:
        NAMESPACE[_function.numpy] = getattr(np, _function.numpy)
    elif _function.name not in NAMESPACE:
        NAMESPACE[_function.name] = _formula(_function)
