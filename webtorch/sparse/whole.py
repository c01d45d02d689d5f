"""What is asked of a sparse tensor as a whole: its parts, its layout, copies, printing, and moving to other types and
devices.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NoReturn, cast

from webtorch.functions import public as dense
from webtorch.functions.assign import CONVERTED
from webtorch.functions.movement import sizes_of
from webtorch.functions.show import fetcher
from webtorch.ir.dtype import DType, Number
from webtorch.ops.record import TABLE
from webtorch.sparse import layouts
from webtorch.sparse.construction import empty_compressed, empty_coo, sparse_coo_tensor
from webtorch.sparse.dispatch import rule
from webtorch.sparse.tensor import BLOCKS, BY_COLUMN, TITLES, TURNED, SparseTensor, no_kernel
from webtorch.tensors.above import give
from webtorch.tensors.device import DeviceLike, as_device
from webtorch.tensors.formats import layout as Layout
from webtorch.tensors.formats import sparse_bsr, sparse_coo, sparse_csr, strided
from webtorch.tensors.printing import format_sparse
from webtorch.tensors.promotion import get_default_dtype
from webtorch.tensors.tensor import Tensor, parse_to

# ---- layouts

rule("coalesce")(layouts.coalesce)
rule("to_dense")(layouts.to_dense)
rule("to_sparse", "to_sparse_coo")(layouts.to_sparse)
rule("sparse_mask")(layouts.sparse_mask)


def _compressing(name: str, layout: Layout) -> None:
    @rule(name)
    def compress(x: Tensor, *args: Any, **options: Any) -> Tensor:
        """Return matrices in a compressed layout: those of blocks take the sizes of one."""
        if layout in BLOCKS and args:
            options["blocksize"], *args = args  # type: ignore[assignment]
        return layouts.to_compressed(x, layout, *args, **options)


for _layout in TURNED:
    _compressing(f"to_sparse_{str(_layout)[-3:]}", _layout)

give(to_sparse=layouts.to_sparse, sparse_mask=layouts.sparse_mask)

# ---- parts


@rule("is_coalesced")
def is_coalesced(x: Tensor) -> bool:
    """Whether places are sorted and come once."""
    return layouts.as_layout(x, sparse_coo, "is_coalesced", "coordinate tensor").coalesced


@rule("indices")
def indices(x: Tensor) -> Tensor:
    """Return the places of a coalesced tensor."""
    x = layouts.as_layout(x, sparse_coo, "indices", "coordinate tensor")
    _check_coalesced(x, "indices")
    return x.places[0]


def _check_coalesced(x: SparseTensor, what: str) -> None:
    if not x.coalesced:
        raise RuntimeError(
            f"Cannot get {what} on an uncoalesced tensor, please call .coalesce() first"
        )


@rule("values")
def values(x: SparseTensor) -> Tensor:
    """Return the values."""
    if x.layout is sparse_coo:
        _check_coalesced(x, "values")
    return x.values_of()


def _compressed_part(name: str, kept_by: tuple[Layout, ...], what: str, number: int) -> None:
    @rule(name)
    def part(x: Tensor) -> Tensor:
        """Return one of the tensors of places."""
        layout = x.layout if x.layout in kept_by else kept_by[0]
        return layouts.as_layout(x, layout, name, f"{what} compressed tensor").places[number]


for _layouts, _names, _what in (
    ((sparse_csr, sparse_bsr), ("crow_indices", "col_indices"), "row"),
    (BY_COLUMN, ("ccol_indices", "row_indices"), "column"),
):
    for _number, _name in enumerate(_names):
        _compressed_part(_name, _layouts, _what, _number)


@rule("sparse_dim")
def sparse_dim(x: SparseTensor) -> int:
    """How many dims the places have."""
    return x.sparse_rank - x.batch_rank


@rule("dense_dim")
def dense_dim(x: SparseTensor) -> int:
    """How many dims one value has."""
    return x.dim() - x.sparse_rank


# ---- what only tensors with memory have


@rule("stride")
def stride(x: SparseTensor, dim: int | None = None) -> int | tuple[int, ...]:
    """Return zeros: the elements lie nowhere."""
    if x.layout is not sparse_coo:
        raise RuntimeError("Sparse CSR tensors do not have strides")
    return x._strides if dim is None else x._strides[dim]


@rule("is_contiguous")
def is_contiguous(x: SparseTensor, memory_format: object = None) -> bool:
    """Return False."""
    if x.layout is not sparse_coo:
        raise RuntimeError("Sparse CSR tensors do not have is_contiguous")
    return False


@rule("nbytes")
def nbytes(x: SparseTensor) -> int:
    """Raise: the parts have sizes."""
    raise RuntimeError(
        "nbytes is not defined for sparse tensors.  If you want the size of the constituent tensors, add the nbytes of "
        "the indices and values.  If you want the size of the  equivalent dense tensor, multiply numel() by "
        "element_size()"
    )


@rule("data_ptr", "tolist", "storage_offset")
def no_memory(x: SparseTensor) -> NoReturn:
    """Raise: the elements lie nowhere."""
    raise RuntimeError("Cannot access data pointer of Tensor that doesn't have storage")


@rule("storage", "untyped_storage", "_typed_storage")
def no_storage(x: SparseTensor) -> NoReturn:
    """Raise: the elements lie nowhere."""
    raise NotImplementedError("Cannot access storage of SparseTensorImpl")


@rule("numpy", "__array__")
def numpy(x: SparseTensor, *_: object, **__: object) -> NoReturn:
    """Raise: NumPy has dense arrays."""
    raise TypeError(
        f"can't convert {TITLES[x.layout]} layout tensor to numpy. Use Tensor.to_dense() first."
    )


@rule("item")
def item(x: SparseTensor) -> Number:
    """Return the only element."""
    if x.numel() != 1:
        raise RuntimeError(f"a Tensor with {x.numel()} elements cannot be converted to Scalar")
    return layouts.to_dense(x.detach()).item()


@rule("is_nonzero")
def is_nonzero(x: SparseTensor) -> bool:
    """Whether the only element is not zero."""
    return bool(x)


@rule("reshape", "flatten")
def reshape(x: SparseTensor, *_: object, **__: object) -> NoReturn:
    """Raise: places would be others."""
    raise RuntimeError("reshape is not implemented for sparse tensors")


@rule("__setitem__")
def setitem(x: Tensor, index: object, value: object) -> None:
    """Refuse: a place that is written may not be there."""
    raise TypeError("Cannot assign to a sparse tensor")


# ---- copies and moves


@rule("detach")
def detach(x: SparseTensor) -> SparseTensor:
    """Return a tensor of the same parts without a graph."""
    return x.like(x.kept)


@rule("data")
def data(x: Tensor, *value: Tensor) -> Tensor | None:
    """Return a tensor of the same parts without a graph; or take the parts of another one."""
    other = value[0] if value else None
    if isinstance(x, SparseTensor) and other is None:
        return detach(x)
    if isinstance(x, SparseTensor) and isinstance(other, SparseTensor):
        x._take(other.layout, other.places, other.kept, other._shape, other.coalesced)
        return None
    raise RuntimeError(
        "Attempted to call `variable.set_data(tensor)`, but `variable` and `tensor` have incompatible tensor type."
    )


@rule("clone")
def clone(x: SparseTensor, *, memory_format: object = None) -> SparseTensor:
    """Return a copy with memory of its own."""
    pattern = x.pattern()
    pattern.places = tuple([dense.clone(p) for p in pattern.places])
    return pattern.filled(dense.clone(x.values_of()), "Clone")


@rule("contiguous")
def contiguous(x: SparseTensor, memory_format: object = None) -> SparseTensor:
    """Return the tensor itself."""
    return x


@rule("to")
def to(x: SparseTensor, *args: object, **kwargs: object) -> SparseTensor:
    """Return the tensor with values of another type, or on another device."""
    kwargs.pop("memory_format", None)
    where, dtype, copy = parse_to(args, kwargs)
    if where is not None and as_device(where).type == "meta" and not x.is_meta:
        # Nobody knows how many values a tensor has that keeps none.
        return cast(SparseTensor, zeros_like(x, dtype=dtype, device=where))
    pattern, values = x.pattern(), x.values_of()
    moved = values if where is None else values.to(where)
    moved = moved if dtype is None else moved.to(dtype)
    if moved is values:
        return clone(x) if copy else x
    if where is not None:
        pattern.places = tuple([p.to(where) for p in pattern.places])
    return pattern.filled(moved, "ToCopy")


@rule("cpu")
def cpu(x: SparseTensor) -> SparseTensor:
    """Return the tensor on the CPU."""
    return to(x, "cpu")


@rule("webgpu")
def webgpu(x: SparseTensor, device: int | str | None = None) -> SparseTensor:
    """Return the tensor on a WebGPU device."""
    return to(x, f"webgpu:{device}" if isinstance(device, int) else device or "webgpu")


def _conversion(name: str, dtype: DType) -> None:
    @rule(name, f"_to_{name}")
    def convert(x: SparseTensor, *_: object, **__: object) -> SparseTensor:
        """Return the tensor with values of another type."""
        return to(x, dtype)


for _name, _dtype in CONVERTED.items():
    _conversion(_name, _dtype)


@rule("type")
def type_of(x: SparseTensor, dtype: object = None, non_blocking: bool = False) -> str | Tensor:
    """Return the legacy type name, or the tensor with values of another type."""
    if dtype is not None:
        return to(x, dtype)
    if x.layout is not sparse_coo:
        raise RuntimeError("Unimplemented backend SparseCsrCPU")
    return f"torch.sparse.{x.dtype.legacy}Tensor"


@rule("type_as")
def type_as(x: Tensor, other: Tensor) -> Tensor:
    """Return the tensor with values of another's type."""
    return x.to(other.dtype)


def empty(
    name: str, size: Sequence[int], dtype: DType, device: DeviceLike, layout: Layout
) -> SparseTensor:
    """Return a sparse tensor without values, as `zeros` and `empty` are asked for it."""
    if name not in ("zeros", "empty") or layout in BLOCKS or layout not in TITLES:
        raise RuntimeError(
            f"{name}_sparse_compressed expected sparse compressed (non-block) tensor layout but got "
            f"{TITLES.get(layout, layout)}"
        )
    if layout is sparse_coo:
        return empty_coo(size, dtype, device)
    if len(size) < 2:
        raise RuntimeError(
            f"torch.{name}: Only batched sparse compressed (non-block) tensors are supported, but got size {list(size)}"
        )
    return empty_compressed(size, dtype, device, layout, len(size) - 2)


give(empty_sparse=empty)


@rule("zeros_like")
def zeros_like(
    x: SparseTensor,
    *,
    dtype: DType | None = None,
    device: DeviceLike = None,
    layout: Layout | None = None,
    **options: object,
) -> Tensor:
    """Return a tensor of this shape without values."""
    if options.get("memory_format") is not None:
        raise RuntimeError("memory format option is only supported by strided tensors")
    kind, dtype, device = layout or x.layout, dtype or x.dtype, device or x.device
    made: Tensor
    if kind is sparse_coo:
        made = empty_coo(x._shape, dtype, device, x.sparse_rank)
    elif kind is strided:
        made = dense.zeros(x._shape, dtype=dtype, device=device)
    else:
        inside = x.blocksize if kind in BLOCKS else (1, 1)
        made = empty_compressed(x._shape, dtype, device, kind, x.batch_rank, inside)
    return made.requires_grad_(True) if options.get("requires_grad") else made


def _like(name: str) -> None:
    make = getattr(dense, name)

    @rule(name)
    def like(x: SparseTensor, *args: Any, **options: Any) -> Tensor:
        """Return a tensor with values at the same places."""
        if x.layout is sparse_coo:
            if name != "empty_like":
                raise no_kernel("fill_.Scalar" if name in ("ones_like", "full_like") else name, x)
            return zeros_like(x, **options)
        if options.pop("layout", None) not in (None, x.layout):
            raise RuntimeError(
                "empty_like with different sparse layout is not supported (self is "
                f"{TITLES[x.layout]} but you requested another)"
            )
        train = options.pop("requires_grad", False)
        pattern, device = x.pattern(), options.get("device")
        if device is not None:
            pattern.places = tuple([p.to(device) for p in pattern.places])
        return pattern.filled(make(x.kept, *args, **options)).requires_grad_(train)


for _op in TABLE.values():
    if _op.name.endswith("_like") and _op.name != "zeros_like":
        _like(_op.name)


@rule("zero_")
def zero_(x: SparseTensor) -> SparseTensor:
    """Let go of all values."""
    return x.become(zeros_like(x))  # type: ignore[arg-type]


@rule("copy_")
def copy_(x: Tensor, src: Tensor, non_blocking: bool = False) -> Tensor:
    """Take the parts of another one."""
    if x.layout is not src.layout and (x.layout in TURNED or src.layout in TURNED):
        if x.layout is strided:
            raise RuntimeError(
                "copy_sparse_compressed_ expected sparse compressed tensor layout but got Strided"
            )
        raise RuntimeError(
            "torch.copy_: copy of sparse compressed tensors having different layouts is not supported. self layout is "
            f"{TITLES[x.layout]} and src layout is {TITLES.get(src.layout, 'Strided')}"
        )
    if not (isinstance(x, SparseTensor) and isinstance(src, SparseTensor)):
        raise RuntimeError(
            "copy_() between dense and sparse Tensors is not implemented! Found self type = "
            f"{x.type()} and src type = {src.type()}"
        )
    if x.layout in BLOCKS and x.blocksize != src.blocksize:
        raise RuntimeError(
            "torch.copy_: copy of sparse compressed tensors having different block sizes is not supported. self and "
            f"src block sizes are {list(x.blocksize)} and {list(src.blocksize)}, respectively."
        )
    if x.layout in TURNED and x.nnz != src.nnz:
        raise RuntimeError(
            "torch.copy_: only sparse compressed tensors with the same number of specified elements are supported."
        )
    pairs = enumerate(zip(x._shape, src._shape, strict=False)) if x.layout in TURNED else ()
    for d, (own, other) in pairs:
        if own != other:
            raise RuntimeError(
                f"torch.copy_: expected shapes of self and src to match along dimension {d} for {TITLES[x.layout]} "
                f"layout but the corresponding dimensions of self and src are {own} and {other}, respectively."
            )
    if x._shape != src._shape:
        raise RuntimeError("copy_: only same size tensors are supported for sparse tensors")
    return x.become(clone(to(layouts.matching(src, x.layout), x.device, x.dtype)))


@rule("new")
def new(x: SparseTensor, *args: Any, device: DeviceLike = None) -> Tensor:
    """Return a COO tensor of places and values, or one without values of the sizes given."""
    if x.layout is not sparse_coo:
        raise RuntimeError(f"Cannot map DispatchKey {layouts.backend_of(x)} to a unique layout.")
    if args and isinstance(args[0], Tensor):
        if len(args) < 2:
            raise TypeError("new() received an invalid combination of arguments - got (Tensor)")
        return sparse_coo_tensor(*args, device=device)
    if args and isinstance(args[0], list):
        raise TypeError(
            "SparseTensor.new(sequence) only accepts sizes.  Please use torch.sparse_coo_tensor() or construct a "
            "strided tensor and convert it to sparse via to_sparse."
        )
    return empty_coo(sizes_of("new", args or (0,)), x.dtype, device or x.device)


def _new(name: str) -> None:
    @rule(f"new_{name}")
    def new_of(x: SparseTensor, *size: object, **options: object) -> Tensor:
        """Return a tensor of other sizes without values."""
        kept = {"dtype": x.dtype, "device": x.device, "layout": x.layout}
        given = {n: v for n, v in options.items() if v is not None and n != "size"}
        sizes = size or (options["size"],)
        made: Tensor = getattr(dense, name)(*sizes, **{**kept, **given})
        return made


for _name in ("empty", "zeros"):
    _new(_name)


@rule("resize_")
def resize_rows(x: SparseTensor, *size: object, memory_format: object = None) -> SparseTensor:
    """Give compressed rows other sizes: as many values stay as there is room for, in their order."""
    if x.layout is not sparse_csr or x.dim() > x.sparse_rank:
        raise no_kernel("resize_", x)
    shape = sizes_of("resize_", size)
    if len(shape) < 2:
        raise RuntimeError(
            f"torch.resize_: Only batched sparse CSR matrices are supported, but got size {list(shape)}"
        )
    *head, rows, columns = shape
    if columns < x._shape[-1]:
        raise RuntimeError(
            "torch.resize_: Resizing columns of sparse CSR tensors to a smaller value is not supported. The original "
            f"number of columns is {x._shape[-1]} while the requested new number of columns is {columns}."
        )
    outer, inner, values = (p.reshape(-1, p._shape[-1]) for p in (*x.places, x.values_of()))
    count = min(inner._shape[1], rows * columns)
    more = rows + 1 - outer._shape[1]
    if more >= 0:
        outer = dense.cat([outer, outer[:, -1:].expand(-1, more)], 1)
    else:
        outer = dense.cat([outer[:, :rows], dense.full_like(outer[:, :1], count)], 1)
    parts = (outer, inner[:, :count], values[:, :count])
    *places, values = (p[: math.prod(head)].reshape(*head, -1) for p in parts)
    return x.become(SparseTensor.of(sparse_csr, places, values, shape, True))


@rule("sparse_resize_")
def resize(x: SparseTensor, size: Sequence[int], sparse_dim: int, dense_dim: int) -> SparseTensor:
    """Take other sizes: a tensor with values may grow, and keeps them in their order in memory."""
    if len(size) != sparse_dim + dense_dim:
        raise RuntimeError(
            f"'len(size) == sparse_dim + dense_dim' is not satisfied: len(size) = {len(size)}, sparse_dim = "
            f"{sparse_dim}, dense_dim = {dense_dim}"
        )
    if not x.nnz:
        return clear(x, size, sparse_dim)
    layouts.as_layout(x, sparse_coo, "sparse_resize_", "coordinate tensor")
    rank = x.sparse_rank
    for kind, own, count in (("sparse", rank, sparse_dim), ("dense", x.dim() - rank, dense_dim)):
        if own != count:
            raise _no_resizing(f"changing the number of {kind} dimensions (from {own} to {count})")
    for kind, part in (("sparse", slice(rank)), ("dense", slice(rank, None))):
        old, new = list(x._shape[part]), list(size[part])
        if any(n < o for o, n in zip(old, new, strict=True)):
            raise _no_resizing(f"shrinking the size of {kind} dimensions (from {old} to {new})")
    values, shape = x.values_of(), (x.nnz, *size[rank:])
    if values._shape != shape:
        flat = values.reshape(-1)
        more = math.prod(shape) - flat.numel()
        values = dense.cat([flat, flat.new_zeros(more)]).reshape(shape)
    return x.become(SparseTensor.of(x.layout, x.places, values, tuple(size), x.coalesced))


def _no_resizing(what: str) -> RuntimeError:
    return RuntimeError(
        f"{what} on a non-empty sparse tensor is not supported. Call `webtorch.sparse_coo_tensor(size)` for an empty "
        "one of this size, or `x.sparse_resize_and_clear_` where the values may go."
    )


@rule("resize_as_", "resize_as_sparse_")
def resize_as(x: SparseTensor, other: Tensor, *, memory_format: object = None) -> SparseTensor:
    """Take the sizes of another sparse tensor."""
    if not isinstance(other, SparseTensor) or x.layout is not sparse_coo:
        raise no_kernel("resize_as_", x)
    other = layouts.as_layout(other, sparse_coo, "resize_as_sparse_", "coordinate tensor")
    return resize(x, other._shape, other.sparse_rank, other.dim() - other.sparse_rank)


@rule("sparse_resize_and_clear_")
def clear(
    x: SparseTensor, size: Sequence[int], sparse_dim: int, dense_dim: int = 0
) -> SparseTensor:
    """Let go of all values, and take other sizes."""
    return x.become(empty_coo(size, x.dtype, x.device, sparse_dim))


# ---- printing


@rule("__repr__")
def show(x: SparseTensor, *, tensor_contents: object = None) -> str:
    """Return PyTorch's text of a sparse tensor."""
    rows, columns = ("crow_indices", "col_indices"), ("ccol_indices", "row_indices")
    names: tuple[str, ...] = columns if x.layout in BY_COLUMN else rows
    if x.layout is sparse_coo:
        names = ("indices",)
    parts = [
        (n, fetcher(p), p._shape, p.dtype.name)
        for n, p in zip((*names, "values"), (*x.places, x.kept), strict=True)
    ]
    default = get_default_dtype().name
    usual = (default, "complex128" if default == "float64" else "complex64", "int64", "bool")
    fn = x.grad_fn
    suffixes = [f"device='{x.device}'"] * (not x.is_cpu)
    suffixes += [f"size={x._shape}"] + [f"nnz={x.nnz}"] * (not x.is_meta)
    suffixes += [f"dtype=torch.{x.dtype.name}"] * (x.dtype.name not in usual)
    suffixes.append(f"layout={x.layout}")
    if fn is not None:
        suffixes.append(f"grad_fn=<{fn.title.removeprefix('torch::autograd::')}>")
    elif x.requires_grad:
        suffixes.append("requires_grad=True")
    return format_sparse(parts, suffixes, new_line=x.layout is sparse_coo)
