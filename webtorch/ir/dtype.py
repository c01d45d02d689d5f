"""Element types: names, sizes, kinds, limits, and PyTorch's promotion rules. Standard library only."""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from typing import Literal, TypeVar

Kind = Literal["bool", "uint", "int", "float", "complex"]
Scalar = bool | int | float
Number = Scalar | complex
T = TypeVar("T")

_RANK: dict[Kind, int] = {"bool": 0, "uint": 1, "int": 1, "float": 2, "complex": 3}


@dataclass(frozen=True, slots=True, eq=False)
class DType:
    """One element type. `itemsize` is in bytes, as PyTorch counts it (a bool is one byte)."""

    name: str
    kind: Kind
    itemsize: int
    # struct/array code, or "" where Python's standard library cannot hold the type (bfloat16).
    code: str
    # PyTorch's name in errors and typed constructors: "Float".
    legacy: str
    # C++ names in PyTorch's messages: of the type ("unsigned short"), and where a number does not fit one.
    c_name: str
    c_number: str = field(default="")
    webgpu: bool = field(default=True)
    # Tensors of a complex type hold pairs of real numbers: no graph node and no kernel has this type.
    is_complex: bool = field(default=False)
    # The NumPy type that holds it: bfloat16 lies in memory as its bits.
    numpy: str = field(default="")
    # Whether the type meets floats alone: PyTorch has no common type of it and another one.
    alone: bool = field(default=False)

    @property
    def is_floating_point(self) -> bool:
        """Whether the type is a floating-point type."""
        return self.kind == "float"

    @property
    def is_signed(self) -> bool:
        """Whether the type can hold negative values."""
        return self.kind in ("int", "float", "complex")

    @property
    def has_gradient(self) -> bool:
        """Whether tensors of the type can require gradients."""
        return self.kind == "float" or self.is_complex

    def to_real(self) -> DType:
        """Return the type of the real and imaginary part; a real type itself."""
        return _PARTS.get(self, self)

    def to_complex(self) -> DType:
        """Return the complex type with parts of this type; complex64 for bfloat16. Raises RuntimeError for integers."""
        if self.is_complex:
            return self
        if self.kind != "float":
            raise RuntimeError(f"Unknown Complex ScalarType for {self.legacy}")
        return _OF_PARTS.get(self, complex64)

    @property
    def is_integral(self) -> bool:
        """Whether the type is an integer type (bool not counted)."""
        return self.kind in ("int", "uint")

    @property
    def bits(self) -> int:
        """Size in bits."""
        return self.itemsize * 8

    @property
    def compute(self) -> DType:
        """The type in which arithmetic on this type is done: 16-bit floats compute in float32."""
        return float32 if self.itemsize == 2 and self.kind == "float" else self

    def __repr__(self) -> str:
        return f"torch.{self.name}"

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return (by_name, (self.name,))

    def to_bytes(self, values: list[Scalar]) -> bytes:
        """Pack `values` little-endian. Raises OverflowError when an integer does not fit."""
        if self.is_complex:
            numbers = [complex(v) for v in values]
            return _PARTS[self].to_bytes([p for z in numbers for p in (z.real, z.imag)])
        if self is bfloat16:
            return b"".join(_bf16_bytes(float(v)) for v in values)
        if self is float32 or self is float16:
            return b"".join(_float_bytes(self.code, float(v)) for v in values)
        try:
            return struct.pack(f"<{len(values)}{self.code}", *values)
        except struct.error as error:
            raise OverflowError(f"a value does not fit {self}: {error}") from None

    def from_bytes(self, data: bytes | memoryview) -> list[Scalar]:
        """Unpack little-endian `data` into Python numbers."""
        if self.is_complex:
            parts = _PARTS[self].from_bytes(data)
            return list(map(complex, parts[::2], parts[1::2]))  # type: ignore[arg-type]
        if self is bfloat16:
            halves = struct.unpack(f"<{len(data) // 2}H", data)
            return list(
                struct.unpack(
                    f"<{len(halves)}f", b"".join(struct.pack("<I", h << 16) for h in halves)
                )
            )
        return list(struct.unpack(f"<{len(data) // self.itemsize}{self.code}", data))


# A value to `dataclasses.asdict`, as PyTorch's types are: a user's record that holds one keeps it.
del DType.__dataclass_fields__


def _float_bytes(code: str, value: float) -> bytes:
    try:
        return struct.pack("<" + code, value)
    except OverflowError:
        # IEEE rounding: values past the largest finite number become infinite.
        return struct.pack("<" + code, float("inf") if value > 0 else float("-inf"))


def _bf16_bytes(value: float) -> bytes:
    bits = struct.unpack("<I", _float_bytes("f", value))[0]
    if value != value:
        return b"\xc0\x7f"
    # Round to nearest, ties to even, on the 16 bits that are dropped.
    return struct.pack("<H", ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16) & 0xFFFF)


float64 = DType("float64", "float", 8, "d", "Double", "double", "double", webgpu=False)
float32 = DType("float32", "float", 4, "f", "Float", "float", "float")
float16 = DType("float16", "float", 2, "e", "Half", "c10::Half", "at::Half")
bfloat16 = DType(
    "bfloat16", "float", 2, "", "BFloat16", "c10::BFloat16", "at::BFloat16", numpy="uint16"
)
int64 = DType("int64", "int", 8, "q", "Long", "long int", "int64_t")
# What int64 is in the programs and the memory of a WebGPU device where 32 bits are too few: no tensor's type.
wide_int64 = DType("wide_int64", "int", 8, "q", "Long", "long int", "int64_t")
int32 = DType("int32", "int", 4, "i", "Int", "int", "int")
int16 = DType("int16", "int", 2, "h", "Short", "short int", "int16_t")
int8 = DType("int8", "int", 1, "b", "Char", "signed char", "int8_t")
uint8 = DType("uint8", "uint", 1, "B", "Byte", "unsigned char", "uint8_t")
uint16 = DType("uint16", "uint", 2, "H", "UInt16", "short unsigned int", "uint16_t", alone=True)
uint32 = DType("uint32", "uint", 4, "I", "UInt32", "unsigned int", "uint32_t", alone=True)
uint64 = DType(
    "uint64", "uint", 8, "Q", "UInt64", "long unsigned int", "uint64_t", webgpu=False, alone=True
)
bool_ = DType("bool", "bool", 1, "?", "Bool", "bool", "bool")
# Held in 16-bit parts and computed in float32, as float16 is.
complex32 = DType(
    "complex32", "complex", 4, "", "ComplexHalf", "c10::complex<c10::Half>", is_complex=True, numpy="uint32"
)  # fmt: skip
complex64 = DType(
    "complex64", "complex", 8, "", "ComplexFloat", "c10::complex<float>", is_complex=True
)
complex128 = DType(
    "complex128", "complex", 16, "", "ComplexDouble", "c10::complex<double>", webgpu=False, is_complex=True
)  # fmt: skip
_OF_PYTHON: dict[object, DType] = {float: float64, int: int64, bool: bool_, complex: complex128}
_PARTS: dict[DType, DType] = {complex32: float16, complex64: float32, complex128: float64}
_OF_PARTS = {part: whole for whole, part in _PARTS.items()}


def of_python(value: T) -> T | DType:
    """Return the type of elements that one of Python's types stands for; all else as it is."""
    return _OF_PYTHON.get(value, value) if isinstance(value, type) else value


ALL: tuple[DType, ...] = (
    float32, float64, float16, bfloat16, int64, int32, int16, int8, uint8, uint16, uint32, uint64, bool_,
)  # fmt: skip
# The types above are those of graph nodes and kernels.
COMPLEX: tuple[DType, ...] = (complex32, complex64, complex128)
FLOATS: tuple[DType, ...] = (float32, float64, float16, bfloat16)
INTEGERS: tuple[DType, ...] = (int64, int32, int16, int8, uint8, uint16, uint32, uint64)

_BY_NAME: dict[str, DType] = {d.name: d for d in (*ALL, *COMPLEX, wide_int64)}
ALIASES: dict[str, DType] = {
    "float": float32, "double": float64, "half": float16, "long": int64, "int": int32, "short": int16,
    "chalf": complex32, "cfloat": complex64, "cdouble": complex128,
}  # fmt: skip


def by_name(name: str) -> DType:
    """Return the type called `name` ("float32", "torch.float32", "half", ...). Raises KeyError."""
    name = name.removeprefix("torch.")
    return _BY_NAME.get(name) or ALIASES[name]


def integer_limits(dtype: DType) -> tuple[int, int]:
    """Return the smallest and largest value of an integer type."""
    if dtype.kind == "bool":
        return 0, 1
    if dtype.kind == "uint":
        return 0, (1 << dtype.bits) - 1
    return -(1 << (dtype.bits - 1)), (1 << (dtype.bits - 1)) - 1


_CACHE: dict[tuple[DType, DType], DType] = {}


def promote_types(type1: DType, type2: DType) -> DType:
    """Return PyTorch's common type of two types (torch.promote_types)."""
    a, b = type1, type2
    if a is b:
        return a
    found = _CACHE.get((a, b))
    if found is None:
        found = _CACHE[a, b] = _promote(a, b)
    return found


def _promote(a: DType, b: DType) -> DType:
    if (a.alone and b.kind != "float") or (b.alone and a.kind != "float"):
        raise RuntimeError(
            "Promotion for uint16, uint32, uint64 types is not supported, attempted to promote "
            f"{a.legacy} and {b.legacy}: cast one of them, as in x.to({int64})"
        )
    if a.is_complex or b.is_complex:
        # Integers take the other one's width.
        parts = [d.to_real() for d in (a, b) if d.has_gradient]
        return promote_types(parts[0], parts[-1]).to_complex()
    if _RANK[a.kind] != _RANK[b.kind]:
        return a if _RANK[a.kind] > _RANK[b.kind] else b
    if a.kind == "float":
        if {a, b} == {float16, bfloat16}:
            return float32
        return a if a.itemsize > b.itemsize else b
    if a.kind == b.kind:
        return a if a.itemsize > b.itemsize else b
    signed = b if a.kind == "uint" else a
    # uint8 with a signed type: the smallest signed type that holds both.
    return signed if signed.itemsize > 1 else int16


def kind_of_scalar(value: Scalar | complex) -> Kind:
    """Return the kind of a Python number: "bool", "int", "float" or "complex"."""
    if isinstance(value, bool):
        return "bool"
    if isinstance(value, complex):
        return "complex"
    return "int" if isinstance(value, int) else "float"


# PyTorch's name of each element type that has a typed constructor, as in torch.FloatTensor.
TYPE_NAMES: dict[DType, str] = {
    d: d.legacy
    for d in (float32, float64, float16, bfloat16, int64, int32, int16, int8, uint8, bool_)
}
