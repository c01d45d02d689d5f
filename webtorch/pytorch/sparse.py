"""COO tensors on PyTorch's device "webgpu": their parts are dense tensors there, and so what is computed is composed.

PyTorch's own class of sparse tensors serves every device: what only looks at its parts, or sets them, is PyTorch's
kernel for the CPU. All other operators of sparse tensors are refused (`webtorch_autoload.device.registration`).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch

aten = torch.ops.aten
_CPU = torch._C.DispatchKeySet(torch._C.DispatchKey.SparseCPU)
# Operators that look at nothing but the parts.
_STRUCTURE = """_nnz _indices _values indices values sparse_dim dense_dim _dimI _dimV is_coalesced _coalesced_
    _sparse_coo_tensor_with_dims_and_tensors _sparse_coo_tensor_with_dims empty.memory_format
    copy_sparse_to_sparse_ resize_as_sparse_ sparse_resize_ sparse_resize_and_clear_""".split()  # noqa: SIM905
Kernel = Callable[..., Any]


def _operator(name: str) -> Any:
    base, _, overload = name.partition(".")
    return getattr(getattr(aten, base), overload or "default")


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


def add(x: Any, other: Any, *, alpha: Any = 1) -> Any:
    """Return the sum: of two sparse tensors a sparse one, of a dense and a sparse one a dense one."""
    if not x.is_sparse:
        return add_(x.clone(), other, alpha=alpha)
    if not other.is_sparse:
        raise RuntimeError("add(sparse, dense) is not supported. Use add(dense, sparse) instead.")
    indices = torch.cat([x._indices(), other._indices()], 1)
    return _coo(indices, torch.cat([x._values(), other._values() * alpha]), x.shape)


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


def div(x: Any, other: Any) -> Any:
    """Return the values divided by a number."""
    if isinstance(other, torch.Tensor) and other.dim():
        raise RuntimeError(
            f"Sparse division requires a scalar or zero-dim dense tensor divisor (got shape {list(other.shape)} for "
            "divisor)"
        )
    return _like(x, x._values() / other)


def mm(a: Any, b: Any) -> Any:
    """Return the product of a sparse and a dense matrix."""
    if not a.is_sparse:
        return mm(b.t(), a.t()).t()
    if b.is_sparse:
        raise NotImplementedError("webgpu: the product of two sparse matrices: use .cpu()")
    rows, columns = a._indices().unbind(0)
    out = b.new_zeros((a.shape[0], b.shape[1]))
    return out.index_add(0, rows, b[columns] * a._values().unsqueeze(1))


def addmm(x: Any, a: Any, b: Any, *, beta: Any = 1, alpha: Any = 1) -> Any:
    """Return beta * x + alpha * (a @ b)."""
    product = mm(a, b) * alpha
    return product if beta == 0 else x * beta + product


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


def _zero(x: Any) -> Any:
    return _set(x, _coo(x._indices()[:, :0], x._values()[:0], x.shape, True))


def _unary(name: str, merges: bool) -> Kernel:
    operator = getattr(torch, name)

    def kernel(x: Any, *args: Any) -> Any:
        """Compute it of the values."""
        x = x.coalesce() if merges else x
        return _like(x, operator(x._values(), *args))

    return kernel


KERNELS: dict[str, Kernel] = {
    **{n: functools.partial(_operator(n)._handle.redispatch_boxed, _CPU) for n in _STRUCTURE},
    "_coalesce": coalesce, "clone": clone, "add.Tensor": add, "add_.Tensor": add_, "mul.Tensor": mul,
    "mul_.Tensor": lambda x, other: _set(x, mul(x, other)), "div.Tensor": div, "mul.Scalar": mul,
    "mul.out": lambda x, other, *, out: _set(out, mul(x, other)),
    "mul_.Scalar": lambda x, other: _set(x, mul(x, other)),
    "div_.Tensor": lambda x, other: _set(x, div(x, other)), "mm": mm, "addmm": addmm,
    "mv": lambda a, v: mm(a, v.unsqueeze(1)).squeeze(1), "sparse_mask": sparse_mask,
    "_sparse_mask_projection": lambda x, mask, accumulate_matches=False: sparse_mask(x, mask), "_to_dense": to_dense,
    "zero_": _zero, "neg": _unary("neg", False), "sum": lambda x, dtype=None: x._values().sum(dtype=dtype),
    "pow.Tensor_Scalar": _unary("pow", True),
    **{n: _unary(n, True) for n in ("abs", "sqrt", "relu", "tanh", "sin", "sign", "floor", "log1p", "expm1")},
}  # fmt: skip
# Of dense tensors.
MAKERS: dict[str, Kernel] = {"_to_sparse": to_sparse, "_to_sparse.sparse_dim": to_sparse}


def register(library: Any, hide: Callable[[Any], Any]) -> None:
    """Register the kernels."""
    for name, kernel in KERNELS.items():
        library.impl(name, kernel if name in _STRUCTURE else hide(kernel), "SparsePrivateUse1")
    for name, kernel in MAKERS.items():
        library.impl(name, hide(kernel), "PrivateUse1")
