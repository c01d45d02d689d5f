"""Writing to tensors, conversions between types, and comparisons of whole tensors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from webtorch.errors import DTypeError, ShapeError
from webtorch.functions import creation, movement
from webtorch.functions.pointwise import isclose
from webtorch.ir import dtype as dt
from webtorch.ir.dtype import DType
from webtorch.ir.view import contiguous_strides, expands_to, is_contiguous, numel
from webtorch.ops.layout import suggests_channels_last
from webtorch.ops.primitive import as_view, cast_to, copy, empty, fill, seen_as, write
from webtorch.ops.record import Example, Op, composite
from webtorch.ops.splits import aligned
from webtorch.tensors.formats import channels_last, channels_last_3d, preserve_format
from webtorch.tensors.formats import memory_format as MemoryFormat
from webtorch.tensors.promotion import Operand
from webtorch.tensors.tensor import Tensor
from webtorch.tensors.writing import check_overlap

METHOD: tuple[str, ...] = ("Tensor",)


# ---- conversions
# --------------------------------------------------------------------------------------------------------


def _conversion(name: str, dtype: DType) -> Op:
    def convert(input: Tensor, memory_format: MemoryFormat | None = None) -> Tensor:
        """Return the tensor as another type."""
        out = cast_to(input, dtype)
        if memory_format is None or memory_format is preserve_format:
            return out
        return out.contiguous(memory_format=memory_format)

    convert.__name__ = name
    convert.__doc__ = f"The tensor as {dtype}."
    return composite(
        name=f"_to_{name}", splits=aligned, function_in=(), differentiable=dtype.has_gradient
    )(convert)


# The methods that convert, and the types that they give.
CONVERTED = {
    "float": dt.float32, "double": dt.float64, "half": dt.float16, "bfloat16": dt.bfloat16,
    "long": dt.int64, "int": dt.int32,
    "short": dt.int16, "char": dt.int8, "byte": dt.uint8, "bool": dt.bool_,
    "chalf": dt.complex32, "cfloat": dt.complex64, "cdouble": dt.complex128,
}  # fmt: skip
CONVERSIONS: dict[str, Op] = {name: _conversion(name, dtype) for name, dtype in CONVERTED.items()}


@composite(splits=aligned, function_in=METHOD, example=Example(((9,), "i5")))
def type_as(input: Tensor, other: Tensor) -> Tensor:
    """The tensor in the dtype of another."""
    return cast_to(input, other.dtype)


# ---- writing
# ------------------------------------------------------------------------------------------------------------


@composite(
    splits=aligned, name="copy_", function_in=METHOD, torch="", example=Example(((3, 5), (5,)))
)
def copy_(self: Tensor, src: Tensor, non_blocking: bool = False) -> Tensor:
    """Overwrite with the elements of `src`, broadcast, converted and moved to this tensor's device
    as needed.
    """
    if isinstance(src, (bool, int, float, complex)):
        return self.fill_(src)
    if not isinstance(src, Tensor):
        raise TypeError(
            f"copy_(): argument 'src' (position 1) must be Tensor, not {type(src).__name__}"
        )
    check_overlap(self, (src,))
    source = src.to(self.device) if src._storage.runtime is not self._storage.runtime else src
    source = cast_to(source, self.dtype)
    if source._shape != self._shape:
        try:
            source = source.expand(self._shape)
        except RuntimeError:
            raise ShapeError(
                f"copy_: The size of tensor a {list(self._shape)} must match the size of tensor b "
                f"{list(src._shape)}: the source must "
                "broadcast to the tensor that is written"
            ) from None
    return overwrite(self, source if source is not src else copy(src), fresh=True)


def overwrite(x: Tensor, values: Tensor, fresh: bool = False) -> Tensor:
    """Write values of x's shape, dtype and device; what is overwritten keeps a gradient, of zeros.

    `fresh`: the values were made for this call only.
    """
    # The base of a view does this for the elements of the view.
    if x.requires_grad and values.requires_grad and not x._is_view():
        values, fresh = _replacing(x, x._shape, values), True
    return write(x, values, fresh=fresh)


@composite(
    name="_replacing",
    function_in=(),
    vjp=lambda g, _out, _old, shape, _values: (fill(shape, 0, g.dtype, g.device), None, g),
)
def _replacing(old: object, shape: tuple[int, ...], values: Tensor) -> Tensor:
    return copy(values)


@composite(
    splits=aligned,
    name="fill_",
    function_in=(*METHOD, "torch"),
    torch="",
    example=Example(((3, 5),), (2.5,)),
)
def fill_(self: Tensor, value: Operand) -> Tensor:
    """Overwrite every element with one value (a number or a 0-d tensor)."""
    if isinstance(value, Tensor):
        if value._shape:
            raise RuntimeError(
                "fill_ only supports 0-dimension value tensor but got tensor with "
                f"{len(value._shape)} dimensions."
            )
        # One value may be an element of what it fills.
        return copy_(self, copy(value))
    number = value
    if self.dtype.kind in ("int", "uint") or isinstance(value, complex):
        number = creation.fits(value, self.dtype)
    if 0 in self._strides:
        # One value may be written to an expanded tensor: to every element of its memory once.
        places = zip(self._shape, self._strides, strict=True)
        shape = tuple(1 if n and not s else n for n, s in places)
        once = as_view(self, shape, self._strides, self._offset)
        write(once, fill(shape, number, self.dtype, self.device), fresh=True)
        return self
    return write(self, fill(self._shape, number, self.dtype, self.device), fresh=True)


@composite(splits=aligned, name="torch_fill", function_in=("torch",), torch="fill")
def fill_value(input: Tensor, value: Any) -> Tensor:
    """A tensor like `input` with every element `value`."""
    return fill_(copy(input), value)


@composite(splits=aligned, name="zero_", function_in=(*METHOD, "torch"), torch="")
def zero_(self: Tensor) -> Tensor:
    """Overwrite every element with 0."""
    return fill_(self, 0)


@composite(name="fill_diagonal_", function_in=METHOD, torch="", example=Example(((4, 4),), (1.5,)))
def fill_diagonal_(self: Tensor, fill_value: Any, wrap: bool = False) -> Tensor:
    """Overwrite the main diagonal; `wrap` goes on after every N columns of a tall matrix."""
    if self.ndim < 2:
        raise RuntimeError("dimensions must larger than 1")
    if self.ndim > 2 and len(set(self._shape)) != 1:
        raise RuntimeError("all dimensions of input must be of equal length")
    step, (rows, columns) = sum(self._strides), self._shape[:2]
    tall = wrap and self.ndim == 2 and rows > columns
    for first in range(0, rows if tall else 1, columns + 1):
        count = min(*self._shape[1:], rows - first)
        offset = self._offset + first * self._strides[0]
        fill_(as_view(self, (count,), (step,), offset), fill_value)
    return self


@composite(
    name="resize_", function_in=METHOD, torch="", example="changes what memory a tensor shows"
)
def resize_(
    self: Tensor, *sizes: Any, size: Any = None, memory_format: MemoryFormat | None = None
) -> Tensor:
    """Give the tensor another shape in place, with more memory if needed, for all that share it; new
    elements are uninitialised.

    In its own shape, and without a memory format, it stays as it is.
    """
    sizes = sizes if size is None else (size,)
    shape = tuple(sizes[0]) if len(sizes) == 1 and not isinstance(sizes[0], int) else tuple(sizes)
    if any(size < 0 for size in shape):
        raise ShapeError(f"resize_: requested resize to {list(shape)}: sizes must not be negative")
    if str(memory_format).endswith("preserve_format"):
        raise RuntimeError(f"resize_: unsupported memory format {memory_format}")
    if self.requires_grad and not self._inference:
        raise RuntimeError("cannot resize variables that require grad")
    if shape == self._shape and memory_format is None:
        return self
    strides = movement.strides_for(shape, contiguous_strides(shape), memory_format)
    if any(stride >= 2**63 for stride in strides):
        raise RuntimeError(f"Stride calculation overflowed (resize_ to sizes={list(shape)})")
    if numel(shape) * self.dtype.itemsize >= 2**63:
        raise RuntimeError(f"Storage size calculation overflowed with sizes={list(shape)}")
    storage = self._storage
    width, kind, had = self.dtype.itemsize, storage.dtype, storage.elements
    # A storage counts in elements of its own: parts of complex numbers, or what a view sees as another type.
    need = -(-(self._offset + numel(shape)) * width // kind.itemsize) if numel(shape) else 0
    if need > had:
        grown = creation.new_memory((need,), kind, self.device)
        if had:
            write(as_view(grown, (had,), (1,), 0), seen_as(self, (had,), (1,), 0, kind))
        storage.grow(grown._storage.node)
    self._shape, self._strides = shape, strides
    self._whole = (
        self._offset == 0
        and self.dtype is kind
        and numel(shape) == storage.elements
        and is_contiguous(shape, strides)
    )
    return self


@composite(
    name="resize_as_",
    function_in=("torch", *METHOD),
    torch="",
    example="changes what memory a tensor shows",
)
def resize_as_(
    input: Tensor, the_template: Any, *, memory_format: MemoryFormat | None = None
) -> Tensor:
    """Give the tensor the shape of another; torch.preserve_format asks for its memory format, too."""
    if memory_format is preserve_format:
        last = suggests_channels_last((the_template._shape, the_template._strides))
        memory_format = {4: channels_last, 5: channels_last_3d}[the_template.ndim] if last else None
    return resize_(input, tuple(the_template._shape), memory_format=memory_format)


@composite(
    name="set_",
    function_in=METHOD,
    torch="",
    example="changes what memory a tensor shows",
    geometry=("set_.source_Tensor", "is_set_to"),
)
def set_(
    self: Tensor,
    source: Any = None,
    storage_offset: int = 0,
    size: Sequence[int] | None = None,
    stride: Sequence[int] | None = None,
) -> Tensor:
    """Make this tensor the same view of the same storage as `source`, or a view of a storage."""
    if source is None:
        source = empty((0,), self.dtype, self.device)
    elif not isinstance(source, Tensor):
        source = source._seen_as(self.dtype)
    if size is not None:
        source = source.as_strided(
            size, contiguous_strides(tuple(size)) if stride is None else stride, storage_offset
        )
    if source.dtype is not self.dtype:
        raise DTypeError(
            f"set_: cannot set a tensor of {self.dtype} to one of {source.dtype}: its type stays. Use "
            f"source.view({self.dtype}) for the same memory, or source.to({self.dtype}) for the same values"
        )
    self.data = source.detach()
    # Gradients of what it showed are no longer its own.
    self._accumulate = None
    return self


# ---- comparisons of whole tensors
# -------------------------------------------------------------------------------------------


@composite(differentiable=False, example="works on the host", aten=("equal",))
def equal(input: Tensor, other: Tensor) -> bool:
    """Whether two tensors have the same shape and the same elements. Waits for the device."""
    if input._shape != other._shape:
        return False
    if input._levels or other._levels:
        raise RuntimeError(
            "Batching rule not implemented for aten::equal. We could not generate a fallback: there is one answer, "
            "and vmap maps over many examples. Use (x == y).all()"
        )
    return not input.numel() or bool((input == other).all().item())


@composite(differentiable=False, example="works on the host")
def allclose(
    input: Tensor, other: Tensor, rtol: float = 1e-05, atol: float = 1e-08, equal_nan: bool = False
) -> bool:
    """Whether all elements are close: |input - other| <= atol + rtol * |other|. Waits for the
    device.
    """
    if input._levels or other._levels:
        raise RuntimeError(
            "vmap over torch.allclose isn't supported yet. Please file an issue at "
            "https://github.com/pytorch/pytorch/issues if you need this feature: use isclose(x, y).all()"
        )
    return bool(isclose(input, other, rtol, atol, equal_nan).all().item())


@composite(differentiable=False, example="works on the host")
def is_nonzero(input: Tensor) -> bool:
    """Whether a tensor with one element is not zero. Waits for the device."""
    if input.numel() != 1:
        raise RuntimeError(
            "Boolean value of Tensor with more than one value is ambiguous"
            if input.numel()
            else "Boolean value of Tensor with no values is ambiguous"
        )
    return bool(input)


@composite(differentiable=False, example="works on the host")
def is_same_size(input: Tensor, other: Tensor) -> bool:
    """Whether two tensors have the same shape."""
    return bool(input._shape == other._shape)


@composite(function_in=METHOD)
def sum_to_size(input: Tensor, *size: Any) -> Tensor:
    """Sum over the dimensions along which a tensor of `size` would be broadcast to this one."""
    shape: Sequence[int] = (
        tuple(size[0]) if len(size) == 1 and not isinstance(size[0], int) else tuple(size)
    )
    lead = input.ndim - len(shape)
    if not expands_to(tuple(shape), input._shape):
        raise ShapeError(
            f"size {{{list(shape)}}} is not expandable to size {{{list(input._shape)}}}."
        )
    dims = [
        d for d, have in enumerate(input._shape) if d < lead or (shape[d - lead] == 1 and have != 1)
    ]
    # PyTorch sums a 0-d tensor too, which widens integers.
    if not dims and shape and not lead:
        return input
    return (input.sum(dims, keepdim=True) if dims or not shape else input).reshape(tuple(shape))
