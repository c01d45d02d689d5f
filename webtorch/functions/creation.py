"""Creation: tensors from data, from a value, from a range.

Values made on the device (`fill`, `iota`) take their numbers as runtime arguments; data is copied once, by `tensors`.
NumPy is never imported here: arrays are recognised by their protocol.
"""

from __future__ import annotations

import math
import os
import sys
from array import array
from collections.abc import Sequence
from mmap import ACCESS_COPY, ACCESS_WRITE, mmap
from typing import Any

from webtorch.functions import movement
from webtorch.functions.factory import (
    New,
    chosen_dtype,
    finish,
    like,
    like_another,
    of_own_kind,
    of_sizes,
    own_options,
    size_of,
)
from webtorch.functions.movement import METHOD
from webtorch.ir.dtype import (
    DType,
    Number,
    Scalar,
    bool_,
    by_name,
    float32,
    float64,
    int64,
    integer_limits,
    promote_types,
)
from webtorch.ir.view import Shape, contiguous_strides, extent, format_order, numel
from webtorch.ops.primitive import as_view, cast_to, each, fill
from webtorch.ops.primitive import empty as _memory
from webtorch.ops.purity import looks, warn, warn_once
from webtorch.ops.record import Family, composite
from webtorch.tensors.creation import from_array, from_bytes
from webtorch.tensors.device import DeviceLike, resolve
from webtorch.tensors.formats import layout as Layout
from webtorch.tensors.formats import memory_format as MemoryFormat
from webtorch.tensors.promotion import get_default_dtype
from webtorch.tensors.switches import fills_memory
from webtorch.tensors.tensor import Tensor, _transfer

FAMILY: Family = "creation"

TORCH: tuple[str, ...] = ("torch",)


# -- numbers ---------------------------------------------------------------------------------------


def number_of(value: object) -> Any:
    """Return a Python number for a number, a NumPy number or a tensor of one element."""
    if isinstance(value, (bool, int, float, complex)):
        return value
    item = getattr(value, "item", None)
    if item is None:
        raise TypeError(f"expected a number, not {type(value).__name__}")
    return item()


def dtype_of_number(value: Number) -> DType:
    """Return the type of a tensor of one Python number: bool, int64, or the default float or complex type."""
    if isinstance(value, bool):
        return bool_
    if isinstance(value, complex):
        return get_default_dtype().to_complex()
    return int64 if isinstance(value, int) else get_default_dtype()


def fits(value: Any, dtype: DType) -> Any:
    """Return `value` as `dtype` holds it. Raises RuntimeError where PyTorch does."""
    if dtype.kind == "bool":
        return bool(value)
    if dtype.is_complex:
        return complex(value)
    if isinstance(value, complex):
        if value.imag:
            raise RuntimeError(
                f"value cannot be converted to type {dtype.c_number} without overflow"
            )
        value = value.real
    if dtype.kind == "float":
        value = value if isinstance(value, float) else float(value)
        if dtype is float32 and math.isfinite(value) and abs(value) > 3.4028235677973366e38:
            raise RuntimeError("value cannot be converted to type float without overflow")
        return value
    low, high = integer_limits(dtype)
    if not math.isfinite(value) or not low <= int(value) <= high:
        if dtype.kind == "uint" and isinstance(value, int) and -high <= value < 0:
            return value + high + 1
        raise RuntimeError(f"value cannot be converted to type {dtype.c_number} without overflow")
    return int(value)


# -- from data -------------------------------------------------------------------------------------


def _is_array(value: object) -> bool:
    return hasattr(value, "__array_interface__") or hasattr(value, "__array__")


def _is_buffer(value: Any) -> bool:
    """Whether an object lends its memory: bytes, an array of Python's, a view of memory."""
    try:
        memoryview(value)
    except TypeError:
        return False
    return True


class Capsule:
    """A DLPack capsule, as an array that can be read once."""

    def __init__(self, capsule: object) -> None:
        self.capsule = capsule

    def __dlpack__(self, **options: object) -> Any:
        return self.capsule

    def __dlpack_device__(self) -> tuple[int, int]:
        # DLPack's number of ordinary memory.
        return 1, 0


def _is_sequence(value: object) -> bool:
    return (
        hasattr(value, "__len__")
        and hasattr(value, "__getitem__")
        # Tensors in a list are numbers.
        and not isinstance(value, (str, bytes, dict, set, Tensor))
        and not (_is_array(value) and not getattr(value, "shape", None))
    )


def _array_dtype(value: Any) -> DType:
    name = value.dtype.name
    try:
        return by_name(name)
    except KeyError:
        raise TypeError(
            f"can't convert np.ndarray of type {value.dtype}. The only supported types are: float64, "
            "float32, float16, complex64, complex128, int64, int32, int16, int8, uint64, uint32, uint16, "
            "uint8, and bool."
        ) from None


def _from_array(value: Any, dtype: DType | None, device: DeviceLike) -> Tensor:
    """Return a tensor with the elements of a NumPy array (or of what gives one)."""
    value = _native_array(value)
    source = _array_dtype(value)
    target = source if dtype is None else dtype
    if target is not source and target.name != "bfloat16":
        value = value.astype(target.name)
    elif target is not source:
        value = value.astype("float32")
    shape = tuple(value.shape)
    contents = (
        value.data if value.flags.c_contiguous and value.size and value.ndim else value.tobytes()
    )
    held = float32 if target.name == "bfloat16" else target
    out = from_bytes(contents, shape, held, device)
    return out if held is target else cast_to(out, target)


def _native_array(value: Any) -> Tensor:
    """Return a NumPy array in the machine's byte order and without negative strides, or what gives one as it.

    Raises ValueError for other arrays, as PyTorch does.
    """
    if not hasattr(value, "__array_interface__") or not hasattr(value, "tobytes"):
        value = value.__array__()
    if any(st < 0 for st in value.strides):
        raise ValueError(
            "At least one stride in the given numpy array is negative, and tensors with negative strides are "
            "not currently supported. (You can probably work around this by making a copy of your array with "
            "array.copy().)"
        )
    if not value.dtype.isnative:
        raise ValueError(
            "given numpy array has byte order different from the native byte order. Conversion between byte "
            "orders is currently not supported."
        )
    return value


def _on_array(value: Any, dtype: DType | None = None) -> Tensor:
    """Return a CPU tensor that shares the memory of a NumPy array, whose elements are `dtype`."""
    value = _native_array(value)
    dtype = _array_dtype(value) if dtype is None else dtype
    if any(st % value.itemsize for st in value.strides):
        raise ValueError(
            "given numpy array strides not a multiple of the element byte size. Copy the numpy array to "
            "reallocate the memory."
        )
    if not value.flags.writeable:
        warn_once(
            "The given NumPy array is not writable, and PyTorch does not support non-writable tensors: a write "
            "to this tensor gives it memory of its own, and the array stays as it is. You may want to copy the "
            "array or make it writable before converting it to a tensor. This type of warning will be "
            "suppressed for the rest of this program."
        )
    made = from_array(value, dtype)
    home = resolve("cpu")
    return made if home.kind == "cpu" else _transfer(made, home)


# PyTorch's.
_MOST_DIMS = 128


def _shape_of(data: Any) -> Shape:
    shape: list[int] = []
    while _is_sequence(data):
        shape.append(len(data))
        if not len(data):
            break
        try:
            data = data[0]
        except Exception:
            raise ValueError(
                f"could not determine the shape of object type '{type(data).__name__}'"
            ) from None
        # A list that is its own first element has no end.
        if isinstance(data, (str, bytes)) or len(shape) > _MOST_DIMS:
            raise ValueError(f"too many dimensions '{type(data).__name__}'")
    return tuple(shape)


def _leaves(data: Any, shape: Shape, dim: int, out: list[Tensor]) -> None:
    if dim == len(shape):
        out.append(data)
        return
    if not _is_sequence(data):
        raise TypeError(
            f"not a sequence: expected a sequence of length {shape[dim]} at dim {dim} (got {data!r})"
        )
    if len(data) != shape[dim]:
        raise ValueError(f"expected sequence of length {shape[dim]} at dim {dim} (got {len(data)})")
    if dim == len(shape) - 1 and isinstance(data, (list, tuple)):
        out.extend(data)
    else:
        for part in data:
            _leaves(part, shape, dim + 1, out)


def _leaf(value: object) -> tuple[Any, DType]:
    """Return an element that is not a plain Python number as one, with its type."""
    # A NumPy float64 is a Python float too, but has a type of its own.
    typed = hasattr(value, "dtype")
    if isinstance(value, bool):
        return value, bool_
    if isinstance(value, int):
        return value, int64
    if isinstance(value, float) and not typed:
        return value, get_default_dtype()
    if isinstance(value, complex) and not typed:
        return value, get_default_dtype().to_complex()
    if _is_sequence(value) and not (hasattr(value, "item") and getattr(value, "size", 0) == 1):
        if isinstance(value, (list, tuple)) and any(part is value for part in value):
            raise TypeError(
                "new(): self-referential lists are incompatible: one is its own element"
            )
        raise TypeError(
            f"'{type(value).__name__}' object cannot be interpreted as a number: the elements at this depth "
            "are numbers"
        )
    if isinstance(value, Tensor):
        if value.numel() != 1:
            raise ValueError(
                "only one element tensors can be converted to Python scalars: stack them, or cat them"
            )
        return value.item(), value.dtype
    if hasattr(value, "dtype") and hasattr(value, "item"):
        return value.item(), _array_dtype(value)
    if hasattr(value, "__index__"):
        return value.__index__(), int64
    if hasattr(value, "__float__"):
        return float(value), get_default_dtype()
    if isinstance(value, str):
        raise TypeError("new(): invalid data type 'str'")
    raise RuntimeError(f"Could not infer dtype of {type(value).__name__}")


_PLAIN = {bool, int, float, complex}


def _infer(values: list[Any]) -> tuple[list[Scalar], DType]:
    kinds = set(map(type, values))
    if kinds <= _PLAIN:
        if complex in kinds:
            return values, get_default_dtype().to_complex()
        if float in kinds or not kinds:
            return values, get_default_dtype()
        return values, int64 if int in kinds else bool_
    leaves = [_leaf(v) for v in values]
    dtype = leaves[0][1]
    for _, other in leaves:
        dtype = promote_types(dtype, other)
    return [v for v, _ in leaves], dtype


def _packed(values: list[Scalar], dtype: DType, inferred: bool) -> bytes:
    if dtype.is_complex:
        numbers = [complex(v) for v in values]
        return _packed([p for z in numbers for p in (z.real, z.imag)], dtype.to_real(), inferred)
    if any(isinstance(v, complex) for v in values):
        values = [bool(v) if dtype is bool_ else fits(v, dtype) for v in values]
    if dtype.kind == "bool":
        return bytes([bool(v) for v in values])
    if dtype.kind == "float":
        if dtype in (float32, float64) and sys.byteorder == "little":
            return array(dtype.code, values).tobytes()
        return dtype.to_bytes(values)
    low, high = integer_limits(dtype)
    if any(isinstance(v, float) for v in values):
        if not all(math.isfinite(v) for v in values):
            raise RuntimeError(f"value cannot be converted to type {dtype.name} without overflow")
        values = [int(v) for v in values]
    if values and not (low <= min(values) and max(values) <= high):
        if dtype is int64:
            raise ValueError("Overflow when unpacking long long")
        if dtype.kind != "uint" or min(values) < -high or max(values) > high:
            raise RuntimeError(f"value cannot be converted to type {dtype.name} without overflow")
        values = [v % (high + 1) for v in values]
    if sys.byteorder == "little":
        return array(dtype.code, values).tobytes()
    return dtype.to_bytes(values)


def made_of(data: Any, dtype: DType | None, device: DeviceLike) -> Tensor:
    """Return a tensor with a copy of `data`: a number, nested sequences, an array."""
    if isinstance(data, (str, bytes)):
        raise TypeError(f"new(): invalid data type '{type(data).__name__}'")
    if _is_array(data):
        return _from_array(data, dtype, device)
    if (seen := getattr(data, "_seen_as", None)) is not None:
        # A storage, whose memory is shared.
        seen_as = dtype or getattr(data, "dtype", int64)
        return _moved(seen(seen_as).detach(), None, device)
    shape = _shape_of(data)
    if len(shape) > 1 and _is_array(data[0]) and not isinstance(data[0], Tensor):
        warn_once(
            "Creating a tensor from a list of numpy.ndarrays is extremely slow. Please consider converting "
            "the list to a single numpy.ndarray with numpy.array() before converting to a tensor."
        )
    values: list[Tensor] = []
    if len(shape) and shape[-1] == 0:
        _leaves(data, shape[:-1], 0, values)
        for part in values:
            if not _is_sequence(part) or len(part):
                raise ValueError(
                    f"expected sequence of length 0 at dim {len(shape) - 1} (got {part!r})"
                )
        values = []
    else:
        _leaves(data, shape, 0, values)
    numbers, inferred = _infer(values)
    target = inferred if dtype is None else dtype
    return from_bytes(_packed(numbers, target, dtype is None), shape, target, device)


_COPIED = (
    "To copy construct from a tensor, it is recommended to use sourceTensor.detach().clone() or "
    "sourceTensor.detach().clone().requires_grad_(True), rather than {}."
)


@composite(function_in=TORCH, factory=True, example="makes a tensor of host data")
def tensor(
    data: object,
    *,
    dtype: DType | None = None,
    device: DeviceLike = None,
    requires_grad: bool = False,
    pin_memory: bool = False,
) -> Tensor:
    """A tensor with a copy of `data`: a number, nested lists or tuples, a NumPy array, a tensor.

    Without dtype: bool, int64, the default float type, or an array's own type.
    """
    # Other data each time: nothing comes of comparing it.
    looks()
    wanted = None if dtype is None else chosen_dtype(dtype)
    if isinstance(data, Tensor):
        warn(_COPIED.format("torch.tensor(sourceTensor)"))
        result = _moved(movement.clone(data.detach()), wanted, device)
    else:
        result = made_of(data, wanted, device)
    return finish(result, requires_grad)


def _moved(x: Tensor, dtype: DType | None, device: DeviceLike) -> Tensor:
    if device is not None:
        x = x.to(device)
    return x if dtype is None else cast_to(x, dtype)


@composite(function_in=TORCH, factory=True, example="makes a tensor of host data")
def as_tensor(data: object, dtype: DType | None = None, device: DeviceLike = None) -> Tensor:
    """The tensor itself where dtype and device already fit, or a tensor on the memory of a NumPy array; else a copy."""
    looks()
    wanted = None if dtype is None else chosen_dtype(dtype)
    if not isinstance(data, Tensor) and (not _is_array(data) or not _shares(data, wanted, device)):
        return made_of(data, wanted, device)
    return _moved(data if isinstance(data, Tensor) else _on_array(data), wanted, device)


def _shares(data: object, dtype: DType | None, device: DeviceLike) -> bool:
    """Whether a tensor of an array can be on its memory: the type stays, and the device is the CPU."""
    return (
        hasattr(data, "__array_interface__")
        and hasattr(data, "__setitem__")
        and hasattr(data, "flags")
        and resolve(device).kind == "cpu"
        and (dtype is None or dtype is _array_dtype(data))
        and isinstance(getattr(data, "shape", None), tuple)
    )


@composite(function_in=TORCH, factory=True, example="makes a tensor of host data")
def asarray(
    obj: object,
    *,
    dtype: DType | None = None,
    device: DeviceLike = None,
    copy: bool | None = None,
    requires_grad: bool = False,
) -> Tensor:
    """A tensor of `obj`, on its memory where that can be (tensors, NumPy arrays) unless copy=True."""
    wanted = None if dtype is None else chosen_dtype(dtype)
    if type(obj).__name__ == "PyCapsule":
        import numpy

        obj = numpy.from_dlpack(Capsule(obj))
    elif not isinstance(obj, (Tensor, str)) and not _is_array(obj) and _is_buffer(obj):
        obj = frombuffer(obj, dtype=chosen_dtype(wanted))
    if not isinstance(obj, Tensor):
        if _is_array(obj) and not copy and _shares(obj, wanted, device):
            return finish(_on_array(obj), requires_grad)
        if copy is False:
            if not _is_array(obj):
                raise ValueError("can't alias arbitrary sequence into a tensor.")
            if not hasattr(obj, "__setitem__"):
                raise RuntimeError(
                    "can't alias NumPy scalars. Either remove copy=False or transform it in a ndarray."
                )
            raise _no_alias(from_numpy(obj), wanted, device)
        return finish(made_of(obj, wanted, device), requires_grad)
    result = _moved(obj if requires_grad else obj.detach() if copy else obj, wanted, device)
    if copy and result._storage is obj._storage:
        result = movement.clone(result)
    if copy is False and result._storage is not obj._storage:
        raise _no_alias(obj, wanted, device)
    return finish(result, requires_grad)


def _no_alias(x: Tensor, dtype: DType | None, device: DeviceLike) -> ValueError:
    """Return the error for a tensor that another one cannot share the memory of."""
    if dtype not in (None, x.dtype):
        wanted = dtype.legacy
        return ValueError(
            f"can't alias tensor with dtype '{x.dtype.legacy}' into dtype '{wanted}'."
        )
    return ValueError(f"can't alias tensor from device '{x.device}' to '{device}'.")


@composite(function_in=TORCH, example="makes a tensor of host data")
def from_numpy(ndarray: object) -> Tensor:
    """A CPU tensor on the memory of a NumPy array: a write to one is seen in the other.

    What is done with such a tensor is computed when it is called, for as long as an array sees the memory.
    Raises ValueError for negative strides and foreign byte orders, TypeError for types that tensors do not have.
    """
    if not hasattr(ndarray, "__array_interface__") or not hasattr(ndarray, "__setitem__"):
        kind = type(ndarray)
        module = "" if kind.__module__ == "builtins" else f"{kind.__module__}."
        raise TypeError(f"expected np.ndarray (got {module}{kind.__name__})")
    return _on_array(ndarray)


@composite(function_in=TORCH, factory=True, example="makes a tensor of host data")
def frombuffer(
    buffer: Any, *, dtype: DType, count: int = -1, offset: int = 0, requires_grad: bool = False
) -> Tensor:
    """A 1-d CPU tensor on the memory of `count` elements of a buffer, from byte `offset`.

    As with from_numpy, a write to one is seen in the other.
    """
    import numpy

    wanted = chosen_dtype(dtype)
    if not _is_buffer(buffer):
        raise ValueError("object does not implement Python buffer protocol.")
    data = memoryview(buffer).cast("B")
    if not len(data) or not count:
        raise ValueError(f"both buffer length ({len(data)}) and count ({count}) must not be 0")
    if not 0 <= offset < len(data):
        raise ValueError(
            f"offset ({offset} bytes) must be non-negative and no greater than buffer length "
            f"({len(data)} bytes) minus 1"
        )
    if count < 0:
        if (len(data) - offset) % wanted.itemsize:
            raise ValueError(
                f"buffer length ({len(data) - offset} bytes) after offset ({offset} bytes) must be a multiple "
                f"of element size ({wanted.itemsize})"
            )
        count = (len(data) - offset) // wanted.itemsize
    end = offset + count * wanted.itemsize
    if end > len(data):
        raise ValueError(
            f"requested buffer length ({count} * {wanted.itemsize} bytes) after offset ({offset} bytes) must "
            f"not be greater than actual buffer length ({len(data)} bytes)"
        )
    if data.readonly:
        warn_once(
            "The given buffer is not writable, and PyTorch does not support non-writable tensors: a write to "
            "this tensor gives it memory of its own, and the buffer stays as it is. You may want to copy the "
            "buffer to protect its data or make it writable before converting it to a tensor. This type of "
            "warning will be suppressed for the rest of this program."
        )
    held = numpy.dtype(wanted.numpy or wanted.name)
    return finish(_on_array(numpy.frombuffer(data[offset:end], held), wanted), requires_grad)


def _mapped(filename: str, shared: bool, size: int) -> mmap:
    """Return the first bytes of a file as memory: the file's own if shared, which may make it longer."""
    path, mode = os.fspath(filename), "a+b" if shared else "rb"
    try:
        with open(path, mode) as file:
            there = os.fstat(file.fileno()).st_size
            if there < size and not shared:
                raise RuntimeError(
                    f"file <{path}> size <{there}> is smaller than the required mapping size <{size}>"
                )
            if there < size:
                file.truncate(size)
            access = ACCESS_WRITE if shared else ACCESS_COPY
            return mmap(file.fileno(), size, access=access)
    except OSError as error:
        how = "read-write" if shared else "read-only"
        raise RuntimeError(
            f"unable to open file <{path}> in {how} mode: {error.strerror} ({error.errno})"
        ) from None


@composite(function_in=TORCH, factory=True, example="makes a tensor of host data")
def from_file(
    filename: str, shared: bool | None = None, size: int = 0, *,
    dtype: DType | None = None, layout: Layout | None = None, device: DeviceLike = None,
    pin_memory: bool = False,
) -> Tensor:  # fmt: skip
    """A 1-d CPU tensor of the first `size` elements of a file, whose memory it is: a shared one writes to it."""
    wanted = chosen_dtype(dtype)
    home = resolve(device)
    if home.kind != "cpu" and (shared or home.name != "cpu"):
        raise RuntimeError(
            f"from_file: only tensors in the host's memory lie in files, not on {home.backend.name}"
        )
    if not size:
        return empty(0, dtype=wanted)
    return frombuffer(_mapped(filename, bool(shared), size * wanted.itemsize), dtype=wanted)


@composite(function_in=TORCH, factory=True)
def scalar_tensor(
    s: Number,
    *,
    dtype: DType | None = None,
    layout: Layout | None = None,
    device: DeviceLike = None,
    requires_grad: bool = False,
    pin_memory: bool = False,
) -> Tensor:
    """A 0-d tensor of one number."""
    wanted = chosen_dtype(dtype)
    return finish(fill((), fits(number_of(s), wanted), wanted, device), requires_grad)


# -- of one value ----------------------------------------------------------------------------------


def _filled(new: New, value: Number) -> Tensor:
    shape, dtype, device = new
    return fill(shape, fits(value, dtype), dtype, device)


@composite(function_in=TORCH, factory=True)
@of_sizes
def zeros(new: New) -> Tensor:
    """Zeros."""
    return _filled(new, 0)


@composite(function_in=TORCH, factory=True)
@of_sizes
def ones(new: New) -> Tensor:
    """Ones."""
    return _filled(new, 1)


def new_memory(shape: Shape, dtype: DType, device: DeviceLike) -> Tensor:
    """Return memory as it is; filled, where a switch wants the same in every run."""
    if not fills_memory():
        return _memory(shape, dtype, device)
    value: Number = math.nan
    if not (dtype.is_floating_point or dtype.is_complex):
        value = integer_limits(dtype)[1]
    return fill(shape, value, dtype, device)


@composite(function_in=TORCH, factory=True, drawn=True)
@of_sizes
def empty(new: New, *, memory_format: MemoryFormat | None = None) -> Tensor:
    """Uninitialised memory."""
    shape, dtype, device = new
    result = new_memory(shape, dtype, device)
    if format_order(memory_format, len(shape)) is None:
        return result
    return like(lambda shape: new_memory(shape, dtype, device), result, memory_format)


def _full(op: str, shape: Shape, value: object, dtype: DType | None, device: DeviceLike) -> Tensor:
    if isinstance(value, str) or not (
        isinstance(value, (bool, int, float, complex)) or hasattr(value, "item")
    ):
        raise TypeError(
            f"{op}(): argument 'fill_value' (position 2) must be Number, not {type(value).__name__}"
        )
    if dtype is None:
        dtype = value.dtype if isinstance(value, Tensor) else None
    number = number_of(value)
    dtype = dtype_of_number(number) if dtype is None else dtype
    return fill(shape, fits(number, dtype), dtype, device)


@composite(function_in=TORCH, factory=True)
def full(
    size: Sequence[int],
    fill_value: Number,
    *,
    out: Tensor | None = None,
    dtype: DType | None = None,
    layout: Layout | None = None,
    device: DeviceLike = None,
    pin_memory: bool = False,
    requires_grad: bool = False,
) -> Tensor:
    """A tensor of one value; without dtype, of the value's own type."""
    if dtype is None and out is not None:
        dtype = out.dtype
    wanted = None if dtype is None else chosen_dtype(dtype)
    shape = size_of("full", (size,))
    return finish(_full("full", shape, fill_value, wanted, device), requires_grad, out, "full")


@composite(function_in=TORCH, factory=True, drawn=True)
def empty_strided(
    size: Sequence[int],
    stride: Sequence[int],
    *,
    dtype: DType | None = None,
    layout: Layout | None = None,
    device: DeviceLike = None,
    requires_grad: bool = False,
    pin_memory: bool = False,
) -> Tensor:
    """Uninitialised memory seen with the strides given (in elements)."""
    shape, strides = size_of("empty_strided", (), tuple(size)), tuple(stride)
    if len(shape) != len(strides):
        raise RuntimeError(
            f"dimensionality of sizes ({len(shape)}) must match dimensionality of strides ({len(strides)})"
        )
    if any(s < 0 for s in strides):
        raise RuntimeError(f"empty_strided: strides must not be negative, got {list(strides)}")
    elements = extent(shape, strides, 0)[1] + 1
    if elements >= 1 << 60:
        raise RuntimeError(
            f"Storage size calculation overflowed with sizes={list(shape)} and strides={list(strides)}"
        )
    flat = new_memory((elements,), chosen_dtype(dtype), device)
    result = flat if strides == (1,) and shape == (elements,) else as_view(flat, shape, strides, 0)
    if strides == contiguous_strides(shape) and numel(shape) == elements:
        result = new_memory(shape, chosen_dtype(dtype), device)
    return finish(result, requires_grad)


@composite(function_in=TORCH)
@like_another
def zeros_like(new: New) -> Tensor:
    """Zeros in the shape, dtype and device of `input`."""
    return _filled(new, 0)


@composite(function_in=TORCH)
@like_another
def ones_like(new: New) -> Tensor:
    """Ones in the shape, dtype and device of `input`."""
    return _filled(new, 1)


@composite(function_in=TORCH)
@like_another
def full_like(new: New, fill_value: Number) -> Tensor:
    """One value in the shape, dtype and device of `input`."""
    return _filled(new, number_of(fill_value))


@composite(function_in=TORCH, drawn=True)
@like_another
def empty_like(new: New) -> Tensor:
    """Uninitialised memory in the shape, dtype and device of `input`."""
    return new_memory(*new)


@composite(function_in=METHOD)
@of_own_kind
def new_zeros(new: New) -> Tensor:
    """Zeros of input's dtype and device unless given."""
    return _filled(new, 0)


@composite(function_in=METHOD)
@of_own_kind
def new_ones(new: New) -> Tensor:
    """Ones of input's dtype and device unless given."""
    return _filled(new, 1)


@composite(function_in=METHOD, drawn=True)
@of_own_kind
def new_empty(new: New) -> Tensor:
    """Uninitialised memory of input's dtype and device unless given."""
    return new_memory(*new)


@composite(function_in=METHOD, example="makes a tensor of host data")
def new_tensor(
    input: Tensor,
    data: object,
    *,
    dtype: DType | None = None,
    device: DeviceLike = None,
    requires_grad: bool = False,
) -> Tensor:
    """A tensor with a copy of `data`, of input's dtype and device unless given."""
    wanted, where = own_options(input, dtype, device)
    if isinstance(data, Tensor):
        warn(_COPIED.format("tensor.new_tensor(sourceTensor)"))
        return finish(movement.clone(_moved(data.detach(), wanted, where)), requires_grad)
    return finish(made_of(data, wanted, where), requires_grad)


@composite(function_in=METHOD)
def new_full(
    input: Tensor,
    size: Sequence[int],
    fill_value: Number,
    *,
    dtype: DType | None = None,
    layout: Layout | None = None,
    device: DeviceLike = None,
    pin_memory: bool = False,
    requires_grad: bool = False,
) -> Tensor:
    """One value, of input's dtype and device unless given."""
    wanted, where = own_options(input, dtype, device)
    shape = size_of("new_full", (size,))
    return finish(each(_full("new_full", shape, fill_value, wanted, where), input), requires_grad)


@composite(function_in=METHOD, drawn=True)
def new_empty_strided(
    input: Tensor,
    size: Sequence[int],
    stride: Sequence[int],
    dtype: DType | None = None,
    layout: Layout | None = None,
    device: DeviceLike = None,
    pin_memory: bool = False,
    requires_grad: bool = False,
) -> Tensor:
    """Uninitialised memory seen with the strides given, of input's dtype and device unless given."""
    wanted, where = own_options(input, dtype, device)
    return empty_strided(size, stride, dtype=wanted, device=where, requires_grad=requires_grad)
