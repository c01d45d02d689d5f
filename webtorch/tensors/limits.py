"""`finfo` and `iinfo`: what the element types can hold. Floor 4; standard library only."""

from __future__ import annotations

from typing import Any

from webtorch.ir.dtype import DType, integer_limits
from webtorch.tensors.promotion import get_default_dtype

# Bits of the fraction, smallest exponent of a normal number, largest exponent, decimal digits.
_FLOATS = {
    "float64": (52, -1022, 1023, 15),
    "float32": (23, -126, 127, 6),
    "float16": (10, -14, 15, 3),
    "bfloat16": (7, -126, 127, 2),
}


class finfo:
    """The limits of a floating-point type, as torch.finfo gives them.

    Raises TypeError for another type.
    """

    def __init__(self, type: object = None) -> None:
        found: Any = get_default_dtype() if type is None else type
        if isinstance(found, DType):
            found = found.to_real()
        if not isinstance(found, DType) or found.kind != "float":
            raise TypeError(
                f"torch.finfo() requires a floating point input type, not {found}. Use torch.iinfo "
                "for integer types"
            )
        fraction, low, high, digits = _FLOATS[found.name]
        self.dtype = found.name
        self.bits = found.bits
        self.eps = 2.0**-fraction
        self.max = (2.0 - 2.0**-fraction) * 2.0**high
        self.min = -self.max
        self.tiny = self.smallest_normal = 2.0**low
        self.resolution = float(f"1e-{digits:02d}")

    def __eq__(self, other: object) -> bool:
        return isinstance(other, finfo) and self.dtype == other.dtype

    def __hash__(self) -> int:
        return hash(self.dtype)

    def __repr__(self) -> str:
        return (
            f"finfo(resolution={self.resolution:g}, min={self.min:g}, max={self.max:g}, "
            f"eps={self.eps:g}, smallest_normal={self.smallest_normal:g}, tiny={self.tiny:g}, "
            f"dtype={self.dtype})"
        )


class iinfo:
    """The limits of an integer type, as torch.iinfo gives them. Raises TypeError for another type."""

    def __init__(self, type: object) -> None:
        if not isinstance(type, DType) or not type.is_integral:
            raise TypeError(
                f"torch.iinfo() requires an integer input type, not {type}. Use torch.finfo for "
                "floating-point types"
            )
        self.dtype = type.name
        self.bits = type.bits
        self.min, self.max = integer_limits(type)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, iinfo) and self.dtype == other.dtype

    def __hash__(self) -> int:
        return hash(self.dtype)

    def __repr__(self) -> str:
        return f"iinfo(min={self.min:g}, max={self.max:g}, dtype={self.dtype})"
