"""A tensor whose numbers are packed, as a file holds them. Floor 5."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from webtorch.errors import DTypeError, ShapeError
from webtorch.functions import public as webtorch
from webtorch.functions.packed import packed_product, packed_rows, unpacked
from webtorch.ir.dtype import DType, int32, uint8
from webtorch.ops.blocks import FORMATS, WORD, Format
from webtorch.tensors.creation import from_bytes
from webtorch.tensors.device import DeviceLike, device
from webtorch.tensors.modes import records_for_pages
from webtorch.tensors.size import Size
from webtorch.tensors.tensor import Tensor


def _format(name: str) -> Format:
    if name not in FORMATS:
        raise ValueError(f"unknown format {name!r}: there are {', '.join(sorted(FORMATS))}")
    return FORMATS[name]


# Functions that a packed second operand computes by its method of the same name.
_FUNCTIONS = ("linear", "matmul", "embedding")


class _Packed:
    """What functions ask that are given a packed second operand, which is no `Tensor`."""

    __slots__ = ()

    @classmethod
    def __torch_function__(
        cls,
        func: Callable[..., Any],
        types: object,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Compute the function by the operand."""
        del types
        name, given = func.__name__.strip("_"), dict(kwargs or {})
        first, *rest = args or (given.pop("input", None),)
        packed = rest.pop(0) if rest else given.pop("weight", given.pop("other", None))
        if name not in _FUNCTIONS or not isinstance(packed, cls):
            raise TypeError(
                f"{name}: a packed tensor is taken as the second operand of {', '.join(_FUNCTIONS)} only; "
                "packed.dequantize() gives a tensor of its values"
            )
        return getattr(packed, name)(first, *rest, **given)


class PackedTensor(_Packed):
    """A tensor of 2 to 8 bits an element: blocks of neighbouring elements of a row, with scales of their own.

    It is made of the bytes of a GGUF file, as they lie there, by `webtorch.io.load_gguf(path, packed=True)`, or of
    floats by `webtorch.quantization.quantize`. It is no `Tensor`: it can be multiplied by (`F.linear(x, packed)`,
    `x @ packed.T`), looked up in (`F.embedding(ids, packed)`), indexed along its first dimension, moved and unpacked.
    A product of up to four rows unpacks as it reads; for more, the matrix is unpacked for the time of the product.
    Gradients reach the other operand. Modules keep one with `PackedLinear` and `PackedEmbedding`.

    format: a name of `webtorch.quantization.FORMATS`. shape: the sizes; the last one is a multiple of the format's
    block. dtype: the float type that it stands for. The blocks are those of llama.cpp
    (https://github.com/ggml-org/ggml, ggml-quants.c).
    """

    __slots__ = ("__weakref__", "blocks", "dtype", "form", "shape")

    # The bytes, flat: as bytes on the CPU, else in words of four.
    blocks: Tensor
    form: Format
    shape: Size
    dtype: DType

    def __init__(
        self, data: Tensor, format: str, shape: Sequence[int], dtype: DType | None = None
    ) -> None:
        """`data`: uint8, all bytes of the blocks in order.

        Raises ValueError for an unknown format and for rows that blocks do not fill, ShapeError for another number of
        bytes, DTypeError for other types.
        """
        self.form = _format(format)
        self.shape = Size(shape)
        self.dtype = dtype or webtorch.get_default_dtype()
        if self.dtype.kind != "float":
            raise DTypeError(f"a packed tensor stands for floats, not {self.dtype}")
        if not self.shape:
            raise ShapeError("a packed tensor has at least one dimension")
        if data.dtype is not uint8:
            raise DTypeError(f"the bytes of a packed tensor are uint8, not {data.dtype}")
        if data.numel() != self.nbytes:
            raise ShapeError(
                f"{format} of shape {tuple(self.shape)} has {self.nbytes} bytes, not {data.numel()}"
            )
        self.blocks = laid(data.reshape(-1), self.form)

    @classmethod
    def from_bytes(
        cls,
        buffer: bytes | bytearray | memoryview,
        format: str,
        shape: Sequence[int],
        dtype: DType | None = None,
        device: DeviceLike = None,
    ) -> PackedTensor:
        """Return one with a copy of the bytes of a buffer, such as a mapped file. Raises as the class does."""
        data, form = memoryview(buffer).cast("B"), _format(format)
        where = webtorch.device(device) if device is not None else webtorch.get_default_device()
        made = cls._of(webtorch.empty(0), form, shape, dtype or webtorch.get_default_dtype())
        if data.nbytes != made.nbytes:
            raise ShapeError(
                f"{format} of shape {tuple(made.shape)} has {made.nbytes} bytes, not {data.nbytes}"
            )
        if where.type == "cpu":
            made.blocks = from_bytes(data, (data.nbytes,), uint8, where)
        else:
            rest = -data.nbytes % (form.together * form.nbytes)
            given = data if not rest else memoryview(bytes(data) + bytes(rest))
            made.blocks = from_bytes(given, (given.nbytes // WORD,), int32, where)
        return made

    @classmethod
    def over(cls, blocks: Tensor, format: str, shape: Sequence[int], dtype: DType) -> PackedTensor:
        """Return one over the blocks of another, which may have been moved to another device since.

        What is recorded for pages reads words, on the CPU too.
        """
        form = _format(format)
        on_cpu, in_bytes = blocks._in_host_memory, blocks.dtype is uint8
        if on_cpu and not in_bytes and not records_for_pages():
            nbytes = math.prod(shape[:-1]) * form.row_bytes(shape[-1])
            blocks = blocks.view(uint8)[:nbytes].clone()
        elif in_bytes and not on_cpu:
            blocks = in_words(blocks, form)
        return cls._of(blocks, form, shape, dtype)

    @classmethod
    def _of(cls, blocks: Tensor, form: Format, shape: Sequence[int], dtype: DType) -> PackedTensor:
        """Return one of blocks that lie as they should."""
        self = object.__new__(cls)
        self.blocks, self.form, self.shape, self.dtype = blocks, form, Size(shape), dtype
        return self

    @property
    def format(self) -> str:
        """The name of the format."""
        return self.form.name

    @property
    def device(self) -> device:
        """Where the bytes are."""
        return self.blocks.device

    @property
    def ndim(self) -> int:
        """How many dimensions it has."""
        return len(self.shape)

    @property
    def rows(self) -> int:
        """How many rows it has, over all dimensions but the last."""
        return math.prod(self.shape[:-1])

    @property
    def nbytes(self) -> int:
        """How many bytes the blocks have."""
        return self.rows * self.form.row_bytes(self.shape[-1])

    def dim(self) -> int:
        """Return how many dimensions it has."""
        return len(self.shape)

    def size(self, dim: int | None = None) -> Any:
        """Return the sizes, or the one of a dimension."""
        return self.shape if dim is None else self.shape[dim]

    def numel(self) -> int:
        """Return how many elements it stands for."""
        return math.prod(self.shape)

    def __len__(self) -> int:
        return self.shape[0]

    def bytes(self) -> Tensor:
        """Return the bytes of the blocks: uint8, of the shape with the bytes of a row as its last size."""
        found = self.blocks
        if found.dtype is not uint8:
            found = found.view(uint8)[: self.nbytes]
        return found.reshape((*self.shape[:-1], self.form.row_bytes(self.shape[-1])))

    def dequantize(self, dtype: DType | None = None) -> Tensor:
        """Return the tensor that it stands for, of its `dtype` or another one: each block as llama.cpp unpacks it,
        computed in float32.
        """
        found = unpacked(self.blocks, self.format, self.numel())
        return found.to(dtype or self.dtype).reshape(self.shape)

    def to(
        self, *args: object, device: DeviceLike = None, dtype: DType | None = None
    ) -> PackedTensor:
        """Return it on another device, or standing for another float type: `to("webgpu")`, `to(torch.float16)`,
        `to("webgpu", torch.float16)`.
        """
        for given in args:
            if isinstance(given, DType):
                dtype = given
            else:
                device = given  # type: ignore[assignment]
        if dtype is not None and dtype.kind != "float":
            raise DTypeError(f"a packed tensor stands for floats, not {dtype}")
        blocks = self.blocks if device is None else self.blocks.to(device)
        return PackedTensor.over(blocks, self.format, self.shape, dtype or self.dtype)

    def cpu(self) -> PackedTensor:
        """Return it on the CPU."""
        return self.to("cpu")

    def __getitem__(self, index: int | slice) -> PackedTensor:
        """Return one entry of the first dimension, or some in order, which share the bytes where these begin words."""
        if len(self.shape) < 2 or not isinstance(index, (int, slice)):
            raise ShapeError(
                "a packed tensor is indexed along the first of several dimensions, by an int or a slice: use "
                "F.embedding for rows at indices, dequantize() for other elements"
            )
        start, stop, step = (
            index if isinstance(index, slice) else slice(index, index + 1 or None)
        ).indices(len(self))
        if step != 1 or (isinstance(index, int) and start >= stop):
            raise IndexError(
                f"index {index} is out of range, or has a step, for a size of {len(self)}"
            )
        stop = max(start, stop)
        shape = (stop - start, *self.shape[1:]) if isinstance(index, slice) else self.shape[1:]
        length = self.nbytes // len(self)
        begin, end = start * length, stop * length
        whole = self.blocks
        if whole.dtype is uint8:
            part = whole[begin:end]
        elif begin % WORD == 0 == end % (self.form.together * self.form.nbytes):
            part = whole[begin // WORD : end // WORD]
        else:
            part = laid(whole.view(uint8)[begin:end], self.form)
        return PackedTensor._of(part, self.form, shape, self.dtype)

    @property
    def T(self) -> Transposed:
        """The transposed matrix, to multiply by: x @ packed.T."""
        return Transposed(self)

    def t(self) -> Transposed:
        """Return the transposed matrix, to multiply by."""
        return Transposed(self)

    def linear(self, input: Tensor, bias: Tensor | None = None) -> Tensor:
        """Return input @ self.T + bias in the type of the input (*, columns), as F.linear does: (*, rows).

        Raises ShapeError where the sizes do not fit, DTypeError for an input that is not of floats.
        """
        if len(self.shape) != 2:
            raise ShapeError(
                f"linear: a packed weight is a matrix (out, in), not of shape {tuple(self.shape)}"
            )
        rows, columns = self.shape
        if not input.ndim or input.shape[-1] != columns:
            raise ShapeError(
                f"linear: cannot multiply input {tuple(input.shape)} by weight {(rows, columns)}: the input's last dim "
                f"must be {columns}, the weight's in_features"
            )
        if input.dtype.kind != "float":
            raise DTypeError(
                f"linear: the input must be a float tensor, not {input.dtype}: use x.float()"
            )
        out = packed_product(input, self.blocks, self.format, rows)
        return out if bias is None else out + bias

    def embedding(
        self,
        input: Tensor,
        padding_idx: int | None = None,
        max_norm: float | None = None,
        norm_type: float = 2.0,
        scale_grad_by_freq: bool = False,
        sparse: bool = False,
    ) -> Tensor:
        """Return the rows at the positions `input` (*), of the packed tensor's dtype: (*, columns).

        Raises ShapeError for what is no matrix, ValueError for max_norm, which would write to the weight.
        """
        if len(self.shape) != 2:
            raise ShapeError(f"embedding: 'weight' must be 2-D, got {list(self.shape)}")
        if max_norm is not None:
            raise ValueError(
                "embedding: max_norm scales rows in place; a packed weight is not written"
            )
        out = packed_rows(input, self.blocks, self.format, *self.shape)
        return out.to(self.dtype)

    def matmul(self, input: Tensor) -> Tensor:
        """Return input @ self, which unpacks the matrix."""
        return input @ self.dequantize(input.dtype)

    def __rmatmul__(self, other: Tensor) -> Tensor:
        return self.matmul(other)

    def __repr__(self) -> str:
        return (
            f"PackedTensor({self.format}, shape={list(self.shape)}, dtype={self.dtype}, "
            f"device='{self.device}', {self.nbytes} bytes)"
        )

    def __reduce__(self) -> tuple[object, ...]:
        return PackedTensor, (self.bytes().cpu(), self.format, tuple(self.shape), self.dtype)

    def __deepcopy__(self, memo: dict[int, object]) -> PackedTensor:
        made = PackedTensor._of(self.blocks.clone(), self.form, self.shape, self.dtype)
        memo[id(self)] = made
        return made


class Transposed(_Packed):
    """A packed matrix (rows, columns) as one of (columns, rows): the right operand of a product."""

    __slots__ = ("T",)

    def __init__(self, of: PackedTensor) -> None:
        if len(of.shape) != 2:
            raise ShapeError(f"only a packed matrix is transposed, not one of {tuple(of.shape)}")
        self.T = of

    @property
    def shape(self) -> Size:
        """The sizes."""
        return Size(tuple(self.T.shape)[::-1])

    def t(self) -> PackedTensor:
        """Return the matrix as it lies."""
        return self.T

    def dequantize(self, dtype: DType | None = None) -> Tensor:
        """Return the tensor that it stands for."""
        return self.T.dequantize(dtype).t()

    def matmul(self, input: Tensor) -> Tensor:
        """Return input @ self."""
        return self.T.linear(input)

    def __rmatmul__(self, other: Tensor) -> Tensor:
        return self.T.linear(other)

    def __repr__(self) -> str:
        return f"{self.T!r}.T"


def laid(data: Tensor, form: Format) -> Tensor:
    """Return flat bytes as kernels of their device read them: on the CPU as they are, else as words."""
    return data if data._in_host_memory else in_words(data, form)


def in_words(data: Tensor, form: Format) -> Tensor:
    """Return bytes as words, with zeros behind the last block until groups of blocks are whole."""
    rest = -data.numel() % (form.together * form.nbytes)
    if rest:
        data = webtorch.cat([data, webtorch.zeros(rest, dtype=uint8, device=data.device)])
    elif data.storage_offset() % WORD:
        data = data.clone()  # A part whose first byte is in the middle of a word.
    # A view computes each word of its bytes wherever it is read: this one is computed once.
    return data.view(int32).clone()
