"""What is asked of a sparse tensor as a whole: its parts, its layout, copies, printing, and moving to other types and
devices.
"""

from __future__ import annotations

from typing import Any

from webtorch.functions import public as dense
from webtorch.functions.assign import CONVERTED
from webtorch.functions.show import fetcher
from webtorch.ir.dtype import DType
from webtorch.sparse import layouts
from webtorch.sparse.construction import empty_coo
from webtorch.sparse.dispatch import rule
from webtorch.sparse.tensor import TITLES, SparseTensor
from webtorch.tensors.above import give
from webtorch.tensors.formats import sparse_coo, sparse_csc, sparse_csr
from webtorch.tensors.printing import format_sparse
from webtorch.tensors.promotion import get_default_dtype
from webtorch.tensors.tensor import Tensor, parse_to

# ---- layouts

rule("coalesce")(layouts.coalesce)
rule("to_dense")(layouts.to_dense)
rule("to_sparse", "to_sparse_coo")(layouts.to_sparse)
rule("sparse_mask")(layouts.sparse_mask)


@rule("to_sparse_csr")
def to_csr(x: Tensor, dense_dim: int | None = None) -> Tensor:
    """Return a matrix in CSR."""
    return layouts.to_compressed(x, sparse_csr, dense_dim)


@rule("to_sparse_csc")
def to_csc(x: Tensor, dense_dim: int | None = None) -> Tensor:
    """Return a matrix in CSC."""
    return layouts.to_compressed(x, sparse_csc, dense_dim)


give(
    to_sparse=layouts.to_sparse,
    to_sparse_csr=to_csr,
    to_sparse_csc=to_csc,
    sparse_mask=layouts.sparse_mask,
)

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


def _compressed_part(name: str, layout: Any, what: str, number: int) -> None:
    @rule(name)
    def part(x: Tensor) -> Tensor:
        """Return one of the tensors of places."""
        return layouts.as_layout(x, layout, name, f"{what} compressed tensor").places[number]


_compressed_part("crow_indices", sparse_csr, "row", 0)
_compressed_part("col_indices", sparse_csr, "row", 1)
_compressed_part("ccol_indices", sparse_csc, "column", 0)
_compressed_part("row_indices", sparse_csc, "column", 1)


@rule("sparse_dim")
def sparse_dim(x: SparseTensor) -> int:
    """How many dims the places have."""
    return x.sparse_rank


@rule("dense_dim")
def dense_dim(x: SparseTensor) -> int:
    """How many dims one value has."""
    return len(x.kept._shape) - 1


# ---- what only tensors with memory have


@rule("stride")
def stride(x: SparseTensor, dim: int | None = None) -> Any:
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
def no_memory(x: SparseTensor) -> Any:
    """Raise: the elements lie nowhere."""
    raise RuntimeError("Cannot access data pointer of Tensor that doesn't have storage")


@rule("storage", "untyped_storage", "_typed_storage")
def no_storage(x: SparseTensor) -> Any:
    """Raise: the elements lie nowhere."""
    raise NotImplementedError("Cannot access storage of SparseTensorImpl")


@rule("numpy", "__array__")
def numpy(x: SparseTensor, *_: object, **__: object) -> Any:
    """Raise: NumPy has dense arrays."""
    raise TypeError(
        f"can't convert {TITLES[x.layout]} layout tensor to numpy. Use Tensor.to_dense() first."
    )


@rule("item")
def item(x: SparseTensor) -> Any:
    """Return the only element."""
    if x.numel() != 1:
        raise RuntimeError(f"a Tensor with {x.numel()} elements cannot be converted to Scalar")
    return layouts.to_dense(x.detach()).item()


@rule("is_nonzero")
def is_nonzero(x: SparseTensor) -> bool:
    """Whether the only element is not zero."""
    return bool(x)


@rule("reshape", "flatten")
def reshape(x: SparseTensor, *_: object, **__: object) -> Any:
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
def data(x: Tensor, *value: Tensor) -> Any:
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
def type_of(x: SparseTensor, dtype: object = None, non_blocking: bool = False) -> Any:
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


def empty(name: str, size: Any, dtype: DType, device: Any, layout: Any) -> SparseTensor:
    """Return a sparse tensor without values, as `zeros` and `empty` are asked for it."""
    if name not in ("zeros", "empty") or layout not in _PLACES:
        raise NotImplementedError(f"{name}: layout {layout} is not available: use torch.strided")
    out = empty_coo(size, dtype, device)
    return out if layout is sparse_coo else layouts.to_compressed(out, layout)


give(empty_sparse=empty)


@rule("zeros_like", "empty_like")
def zeros_like(
    x: SparseTensor, *, dtype: DType | None = None, device: Any = None, **options: object
) -> Tensor:
    """Return a tensor of this shape without values."""
    if options.get("memory_format") is not None:
        raise RuntimeError("memory format option is only supported by strided tensors")
    rank = x.sparse_rank
    out = empty_coo(x._shape, dtype or x.dtype, device or x.device, rank)
    made: Tensor = out if x.layout is sparse_coo else layouts.to_compressed(out, x.layout)
    return made.requires_grad_(True) if options.get("requires_grad") else made


@rule("zero_")
def zero_(x: SparseTensor) -> SparseTensor:
    """Let go of all values."""
    return x.become(zeros_like(x))  # type: ignore[arg-type]


@rule("copy_")
def copy_(x: Tensor, src: Tensor, non_blocking: bool = False) -> Tensor:
    """Take the parts of another one."""
    if not (isinstance(x, SparseTensor) and isinstance(src, SparseTensor)):
        raise RuntimeError(
            "copy_() between dense and sparse Tensors is not implemented! Found self type = "
            f"{x.type()} and src type = {src.type()}"
        )
    if x._shape != src._shape:
        raise RuntimeError("copy_: only same size tensors are supported for sparse tensors")
    return x.become(clone(to(layouts.matching(src, x.layout), x.device, x.dtype)))


@rule("sparse_resize_")
def resize(x: SparseTensor, size: Any, sparse_dim: int, dense_dim: int) -> SparseTensor:
    """Let go of all values, and take other sizes."""
    if x.nnz:
        layouts.as_layout(x, sparse_coo, "sparse_resize_", "coordinate tensor")
        same = (sparse_dim, dense_dim) == (x.sparse_rank, len(x.kept._shape) - 1)
        if same and all(a >= b for a, b in zip(size, x._shape, strict=True)):
            out = SparseTensor.of(x.layout, x.places, x.values_of(), tuple(size), x.coalesced)
            return x.become(out)
        raise RuntimeError(
            "sparse_resize_: a tensor with values may only grow; use sparse_resize_and_clear_"
        )
    return clear(x, size, sparse_dim)


@rule("sparse_resize_and_clear_")
def clear(x: SparseTensor, size: Any, sparse_dim: int, dense_dim: int = 0) -> SparseTensor:
    """Let go of all values, and take other sizes."""
    return x.become(empty_coo(size, x.dtype, x.device, sparse_dim))


# ---- printing


@rule("__repr__")
def show(x: SparseTensor, *, tensor_contents: object = None) -> str:
    """Return PyTorch's text of a sparse tensor."""
    parts = [
        (n, fetcher(p), p._shape, p.dtype.name)
        for n, p in zip((*_PLACES[x.layout], "values"), (*x.places, x.kept), strict=True)
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


_PLACES = {
    sparse_coo: ("indices",),
    sparse_csr: ("crow_indices", "col_indices"),
    sparse_csc: ("ccol_indices", "row_indices"),
}
