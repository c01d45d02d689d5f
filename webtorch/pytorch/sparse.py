"""COO tensors on PyTorch's device "webgpu": their parts are dense tensors there, and so what is computed is composed.

PyTorch's own class of sparse tensors serves every device: what only looks at its parts, or sets them, is PyTorch's
kernel for the CPU. All other operators of sparse tensors are refused (`webtorch_autoload.device.registration`).
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from webtorch.ops.record import TABLE, Elementwise

aten = torch.ops.aten
_CPU = torch._C.DispatchKeySet(torch._C.DispatchKey.SparseCPU)
# Operators that look at nothing but the parts.
_STRUCTURE = """_nnz _indices _values indices values sparse_dim dense_dim _dimI _dimV is_coalesced _coalesced_
    _sparse_coo_tensor_with_dims_and_tensors _sparse_coo_tensor_with_dims empty.memory_format
    copy_sparse_to_sparse_ resize_as_sparse_ sparse_resize_ sparse_resize_and_clear_""".split()  # noqa: SIM905
Kernel = Callable[..., Any]


KERNELS: dict[str, Kernel] = {}


def _kernel(*names: str) -> Callable[[Kernel], Kernel]:
    """Declare the kernel of operators of sparse tensors."""

    def declare(kernel: Kernel) -> Kernel:
        """Take it."""
        KERNELS.update(dict.fromkeys(names, kernel))
        return kernel

    return declare


def _operator(name: str) -> Any:
    base, _, overload = name.partition(".")
    return getattr(getattr(aten, base), overload or "default")


for _name in _STRUCTURE:
    _kernel(_name)(functools.partial(_operator(_name)._handle.redispatch_boxed, _CPU))


def _coo(indices: Any, values: Any, size: Sequence[int], coalesced: bool = False) -> Any:
    rank = indices.shape[0]
    return aten._sparse_coo_tensor_with_dims_and_tensors(
        rank, len(size) - rank, list(size), indices, values, dtype=values.dtype, layout=torch.sparse_coo,
        device=values.device, pin_memory=False, is_coalesced=coalesced,
    )  # fmt: skip


def _keys(indices: Any, size: Sequence[int]) -> Any:
    """Return a number for each place: its position in a dense tensor of the sparse dims."""
    out = indices.new_zeros(indices.shape[1])
    for d in range(indices.shape[0]):
        out = out * size[d] + indices[d]
    return out


@_kernel("_coalesce")
def coalesce(x: Any) -> Any:
    """Return the tensor with sorted places, each once."""
    indices, values, rank = x._indices(), x._values(), x.sparse_dim()
    places, number = torch.unique(_keys(indices, x.shape), return_inverse=True)
    sums = values.new_zeros((places.shape[0], *values.shape[1:])).index_add(0, number, values)
    rows = []
    for size in reversed(x.shape[1:rank]):
        rows.append(places % size)
        places = torch.div(places, size, rounding_mode="floor")
    return _coo(torch.stack([places, *reversed(rows)]), sums, x.shape, True)


@_kernel("clone")
def clone(x: Any, *, memory_format: object = None) -> Any:
    """Return a copy."""
    return _coo(x._indices().clone(), x._values().clone(), x.shape, x.is_coalesced())


def _set(x: Any, new: Any) -> Any:
    """Give a sparse tensor the parts of another one."""
    aten.copy_sparse_to_sparse_(x, new)
    return x


def _like(x: Any, values: Any) -> Any:
    return _coo(x._indices(), values, x.shape, x.is_coalesced())


def _at(dense: Any, x: Any) -> Any:
    """Return the elements of a dense tensor at the places of a sparse one."""
    return dense.expand(x.shape)[tuple(x._indices().unbind(0))]


@_kernel("add.Tensor")
def add(x: Any, other: Any, *, alpha: Any = 1) -> Any:
    """Return the sum: of two sparse tensors a sparse one, of a dense and a sparse one a dense one."""
    if not x.is_sparse:
        return add_(x.clone(), other, alpha=alpha)
    if not other.is_sparse:
        raise RuntimeError("add(sparse, dense) is not supported. Use add(dense, sparse) instead.")
    indices = torch.cat([x._indices(), other._indices()], 1)
    return _coo(indices, torch.cat([x._values(), other._values() * alpha]), x.shape)


@_kernel("add_.Tensor")
def add_(x: Any, other: Any, *, alpha: Any = 1) -> Any:
    """Add in place."""
    if x.is_sparse:
        return _set(x, add(x, other, alpha=alpha))
    if x.shape != other.shape:
        raise RuntimeError(
            f"add: expected sizes to match, but {list(x.shape)} != {list(other.shape)}"
        )
    rank = other.sparse_dim()
    rows = x.reshape(-1, *x.shape[rank:])
    values = other._values().to(x.dtype)
    sums = rows.index_add(0, _keys(other._indices(), other.shape), values, alpha=alpha)
    return x.copy_(sums.view(x.shape))


@_kernel("mul.Tensor", "mul.Scalar")
def mul(x: Any, other: Any) -> Any:
    """Return the product with a number or a dense tensor."""
    if not isinstance(other, torch.Tensor):
        return _like(x, x._values() * other)
    if not x.is_sparse:
        x, other = other, x
    if other.is_sparse:
        raise NotImplementedError(
            "webgpu: the product of two sparse tensors, element by element: use .cpu()"
        )
    return _like(x, x._values() * (_at(other, x) if other.dim() else other))


@_kernel("mul_.Tensor", "mul_.Scalar")
def mul_(x: Any, other: Any) -> Any:
    """Multiply in place."""
    return _set(x, mul(x, other))


@_kernel("mul.out")
def mul_out(x: Any, other: Any, *, out: Any) -> Any:
    """Give `out` the product."""
    return _set(out, mul(x, other))


@_kernel("div.Tensor")
def div(x: Any, other: Any) -> Any:
    """Return the values divided by a number."""
    if isinstance(other, torch.Tensor) and other.dim():
        raise RuntimeError(
            f"Sparse division requires a scalar or zero-dim dense tensor divisor (got shape {list(other.shape)} for "
            "divisor)"
        )
    return _like(x, x._values() / other)


@_kernel("div_.Tensor")
def div_(x: Any, other: Any) -> Any:
    """Divide in place."""
    return _set(x, div(x, other))


@_kernel("mm")
def mm(a: Any, b: Any) -> Any:
    """Return the product of a sparse and a dense matrix."""
    if not a.is_sparse:
        return mm(b.t(), a.t()).t()
    if b.is_sparse:
        raise NotImplementedError("webgpu: the product of two sparse matrices: use .cpu()")
    rows, columns = a._indices().unbind(0)
    out = b.new_zeros((a.shape[0], b.shape[1]))
    return out.index_add(0, rows, b[columns] * a._values().unsqueeze(1))


@_kernel("mv")
def mv(a: Any, v: Any) -> Any:
    """Return the product of a sparse matrix and a vector."""
    return mm(a, v.unsqueeze(1)).squeeze(1)


@_kernel("addmm")
def addmm(x: Any, a: Any, b: Any, *, beta: Any = 1, alpha: Any = 1) -> Any:
    """Return beta * x + alpha * (a @ b)."""
    product = mm(a, b) * alpha
    return product if beta == 0 else x * beta + product


@_kernel("sparse_mask")
def sparse_mask(x: Any, mask: Any) -> Any:
    """Return the elements of a tensor at the places of a sparse one."""
    if not x.is_sparse:
        return _like(mask, _at(x, mask))
    x = x.coalesce()
    values = x._values()
    if not x._nnz():
        return _like(mask, values.new_zeros(mask._values().shape))
    there, wanted = _keys(x._indices(), x.shape), _keys(mask._indices(), mask.shape)
    found = torch.searchsorted(there, wanted).clamp(max=x._nnz() - 1)
    hit = (there[found] == wanted).reshape(-1, *[1] * (values.dim() - 1))
    return _like(mask, torch.where(hit, values[found], 0.0))


@_kernel("_sparse_mask_projection")
def mask_projection(x: Any, mask: Any, accumulate_matches: bool = False) -> Any:
    """Return a gradient's elements at the places of a sparse tensor."""
    return sparse_mask(x, mask)


@_kernel("sum")
def sum_(x: Any, dtype: Any = None) -> Any:
    """Return the sum of all values."""
    return x._values().sum(dtype=dtype)


@_kernel("_to_dense")
def to_dense(x: Any, dtype: Any = None, masked_grad: bool | None = None) -> Any:
    """Return the dense tensor."""
    values = x._values() if dtype is None else x._values().to(dtype)
    out = values.new_zeros(x.shape)
    return add_(out, x)


def to_sparse(x: Any, sparse_dim: int | None = None, **options: Any) -> Any:
    """Return a dense tensor's elements that are not zero."""
    layout = options.get("layout")
    if layout not in (None, torch.sparse_coo) or not x.dim():
        raise NotImplementedError(f"webgpu: to_sparse of layout {layout}: use .cpu()")
    rank = x.dim() if sparse_dim is None else sparse_dim
    there = x != 0
    if rank < x.dim():
        there = there.flatten(rank).any(rank)
    indices = there.nonzero().t().contiguous()
    return _coo(indices, x[tuple(indices.unbind(0))], x.shape, True)


@_kernel("zero_")
def _zero(x: Any) -> Any:
    return _set(x, _coo(x._indices()[:, :0], x._values()[:0], x.shape, True))


def _unary(name: str, merges: bool) -> Kernel:
    operator = getattr(torch, name)

    def kernel(x: Any, *args: Any) -> Any:
        """Compute it of the values."""
        x = x.coalesce() if merges else x
        return _like(x, operator(x._values(), *args))

    return kernel


def _keep_zero() -> Iterator[str]:
    """Yield the names of operators of one operand, element by element, that give 0 of 0."""
    for op in TABLE.values():
        one = isinstance(op, Elementwise) and len(op.tensors) == 1
        operator = getattr(torch, op.name, None) if one and hasattr(aten, op.name) else None
        if operator is None:
            continue
        with contextlib.suppress(RuntimeError, TypeError):
            if not operator(torch.zeros(())):
                yield op.name


for _name in _keep_zero():
    _kernel(_name)(_unary(_name, _name != "neg"))
_kernel("pow.Tensor_Scalar")(_unary("pow", True))


# Of dense tensors.
MAKERS: dict[str, Kernel] = {"_to_sparse": to_sparse, "_to_sparse.sparse_dim": to_sparse}


def register(library: Any, hide: Callable[[Any], Any]) -> None:
    """Register the kernels."""
    for name, kernel in KERNELS.items():
        library.impl(name, kernel if name in _STRUCTURE else hide(kernel), "SparsePrivateUse1")
    for name, kernel in MAKERS.items():
        library.impl(name, hide(kernel), "PrivateUse1")
