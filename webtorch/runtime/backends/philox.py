"""Philox random bits, written once for every machine that draws them. Imports NumPy inside one class.

A function takes a machine and values: arithmetic is the values' own operators, the machine converts
and makes constants. `Arrays` works on NumPy's arrays and scalars; the compiler's machine in `machine.py`
writes LLVM instructions. (Expressions have no 64-bit integers without a sign to expand it in.)
"""

from __future__ import annotations

from typing import Any, Protocol

Value = Any


class Machine(Protocol):
    """What the function needs besides +, *, ^ and >>."""

    def cast(self, x: Value, kind: str) -> Value:
        """Convert to "uint32" or "uint64"."""
        ...

    def constant(self, number: float, kind: str) -> Value:
        """Return a typed constant."""
        ...


class Arrays:
    """The operations on NumPy's arrays and scalars."""

    def __init__(self) -> None:
        import numpy

        self.np = numpy

    def cast(self, x: Value, kind: str) -> Value:
        """Convert to a named type."""
        return self.np.asarray(x).astype(kind)

    def constant(self, number: float, kind: str) -> Value:
        """Return a typed scalar."""
        return self.np.dtype(kind).type(number)


def philox(
    m: Machine, seed_low: Value, seed_high: Value, counter_low: Value, counter_high: Value
) -> list[Value]:
    """Return the four uint32 lanes of Philox4x32-10 (Salmon et al., 2011) for counter (counter_low,
    counter_high, 0, 0).
    """
    zero = m.constant(0, "uint32")
    return philox4x32(m, (seed_low, seed_high), (counter_low, counter_high, zero, zero))


def philox4x32(
    m: Machine, key: tuple[Value, Value], counter: tuple[Value, Value, Value, Value]
) -> list[Value]:
    """Return the four uint32 lanes of Philox4x32-10 for any key and counter."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    first, second = m.constant(0xD2511F53, "uint64"), m.constant(0xCD9E8D57, "uint64")
    shift = m.constant(32, "uint64")
    for _ in range(10):
        p0, p1 = m.cast(c0, "uint64") * first, m.cast(c2, "uint64") * second
        high0, low0 = m.cast(p0 >> shift, "uint32"), m.cast(p0, "uint32")
        high1, low1 = m.cast(p1 >> shift, "uint32"), m.cast(p1, "uint32")
        c0, c1, c2, c3 = high1 ^ c1 ^ k0, low1, high0 ^ c3 ^ k1, low0
        k0, k1 = k0 + m.constant(0x9E3779B9, "uint32"), k1 + m.constant(0xBB67AE85, "uint32")
    return [c0, c1, c2, c3]
