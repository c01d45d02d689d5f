"""COO tensors on PyTorch's device "webgpu": their parts are dense tensors there, and so what is computed is composed.

PyTorch's own class of sparse tensors serves every device: what only looks at its parts, or is composed of operators on
them, is PyTorch's kernel for the CPU. Other operators are refused (`webtorch_autoload.device.registration`).
"""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from webtorch.ops.record import TABLE, Elementwise

aten = torch.ops.aten
_CPU = torch._C.DispatchKeySet(torch._C.DispatchKey.SparseCPU)
_DENSE = torch._C.DispatchKeySet(torch._C.DispatchKey.CPU)
# Operators that PyTorch composes of operators on the parts, or that look at nothing but the parts.
_STRUCTURE = """_nnz _indices _values indices values sparse_dim dense_dim _dimI _dimV is_coalesced _coalesced_
    _sparse_coo_tensor_with_dims_and_tensors _sparse_coo_tensor_with_dims empty.memory_format
    copy_sparse_to_sparse_ resize_as_sparse_ sparse_resize_ sparse_resize_and_clear_ copy_ zeros.out empty_like
    any cat unsqueeze permute narrow_copy sum.dim_IntList view_as_real view_as_complex conj_physical.out
    native_norm native_norm.ScalarOpt_dim_dtype norm.ScalarOpt_dim norm.ScalarOpt_dim_dtype
    sub.Tensor sub_.Tensor sub.out nan_to_num nan_to_num.out nan_to_num_
    round round.out round_ relu_ sgn sgn.out sgn_ isneginf.out isposinf.out signbit.out threshold_backward
    threshold_backward.grad_input pow.Tensor_Scalar_out
    _to_sparse _to_sparse.sparse_dim _to_sparse_csr _to_sparse_csc _to_sparse_bsr _to_sparse_bsc""".split()  # noqa: SIM905
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


def _coo(
    indices: torch.Tensor, values: torch.Tensor, size: Sequence[int], coalesced: bool = False
) -> torch.Tensor:
    rank = indices.shape[0]
    return aten._sparse_coo_tensor_with_dims_and_tensors(
        rank, len(size) - rank, list(size), indices, values, dtype=values.dtype, layout=torch.sparse_coo,
        device=values.device, pin_memory=False, is_coalesced=coalesced,
    )  # fmt: skip


def _keys(indices: torch.Tensor, size: Sequence[int]) -> torch.Tensor:
    """Return a number for each place: its position in a dense tensor of the sparse dims."""
    out = indices.new_zeros(indices.shape[1])
    for d in range(indices.shape[0]):
        out = out * size[d] + indices[d]
    return out


@_kernel("_coalesce")
def coalesce(x: torch.Tensor) -> torch.Tensor:
    """Return the tensor with sorted places, each once."""
    indices, values, rank = x._indices(), x._values(), x.sparse_dim()
    places, number = torch.unique(_keys(indices, x.shape), return_inverse=True)
    sums = values.new_zeros((places.shape[0], *values.shape[1:])).index_add(0, number, values)
    rows = []
    for size in reversed(x.shape[1:rank]):
        rows.append(places % size)
        places = torch.div(places, size, rounding_mode="floor")
    rows = [places, *reversed(rows)] if rank else []
    indices = torch.stack(rows) if rows else x._indices()[:, : places.shape[0]]
    return _coo(indices, sums, x.shape, True)


@_kernel("clone")
def clone(x: torch.Tensor, *, memory_format: object = None) -> torch.Tensor:
    """Return a copy."""
    return _coo(x._indices().clone(), x._values().clone(), x.shape, x.is_coalesced())


def _set(x: torch.Tensor, new: torch.Tensor) -> torch.Tensor:
    """Give a sparse tensor the parts of another one."""
    aten.copy_sparse_to_sparse_(x, new)
    return x


def _like(x: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    return _coo(x._indices(), values, x.shape, x.is_coalesced())


def _at(dense: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """Return the elements of a dense tensor at the places of a sparse one."""
    if not x.sparse_dim():
        return dense.expand(x.shape).expand(x._nnz(), *x.shape)
    return dense.expand(x.shape)[tuple(x._indices().unbind(0))]


@_kernel("add.Tensor")
def add(x: torch.Tensor, other: Any, *, alpha: complex = 1) -> torch.Tensor:
    """Return the sum: of two sparse tensors a sparse one, of a dense and a sparse one a dense one."""
    if not x.is_sparse:
        return add_(x.clone(), other, alpha=alpha)
    if not (isinstance(other, torch.Tensor) and other.is_sparse):
        raise RuntimeError("add(sparse, dense) is not supported. Use add(dense, sparse) instead.")
    indices = torch.cat([x._indices(), other._indices()], 1)
    return _coo(indices, torch.cat([x._values(), other._values() * alpha]), x.shape)


@_kernel("add_.Tensor")
def add_(x: torch.Tensor, other: torch.Tensor, *, alpha: complex = 1) -> torch.Tensor:
    """Add in place."""
    if x.is_sparse:
        return _set(x, add(x, other, alpha=alpha))
    if x.shape != other.shape:
        raise RuntimeError(
            f"add: expected sizes to match, but {list(x.shape)} != {list(other.shape)}"
        )
    rank = other.sparse_dim()
    rows = x.reshape(math.prod(x.shape[:rank]), *x.shape[rank:])
    values = other._values().to(x.dtype)
    sums = rows.index_add(0, _keys(other._indices(), other.shape), values, alpha=alpha)
    return x.copy_(sums.view(x.shape))


@_kernel("mul.Tensor", "mul.Scalar")
def mul(x: torch.Tensor, other: Any) -> torch.Tensor:
    """Return the product with a number or a dense tensor."""
    if not isinstance(other, torch.Tensor):
        return _like(x, x._values() * other)
    if not x.is_sparse:
        x, other = other, x
    if other.is_sparse and not (x.dim() and other.dim()):
        x, other = (x, to_dense(other)) if x.dim() else (other, to_dense(x))
    if other.is_sparse:
        return _common(x, other)
    return _like(x, x._values() * (_at(other, x) if other.dim() else other))


@_kernel("_sparse_broadcast_to")
def broadcast_to(x: torch.Tensor, shape: Sequence[int]) -> torch.Tensor:
    """Return the tensor in another shape, with more places."""
    return to_sparse(to_dense(x).expand(shape), len(shape) - x.dense_dim())


def _common(x: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """Return the product of two sparse tensors: at the places that both have."""
    shape = torch.broadcast_shapes(x.shape, other.shape)
    x, other = (t if t.shape == shape else broadcast_to(t, shape) for t in (x, other))
    if x.sparse_dim() != other.sparse_dim():
        rank = max(x.sparse_dim(), other.sparse_dim())
        x, other = (
            t if t.sparse_dim() == rank else to_sparse(to_dense(t), rank) for t in (x, other)
        )
    both = x.is_coalesced() and other.is_coalesced()
    x, other = x.coalesce(), other.coalesce()
    found, hit = _found(x, other)
    places = hit.nonzero().squeeze(1)
    values = x._values()[found[places]] * other._values()[places]
    return _coo(other._indices()[:, places], values, shape, both)


def _found(x: torch.Tensor, other: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return where a coalesced tensor has the places of another one, and whether it has them."""
    if not x._nnz():
        nowhere = other._indices().new_zeros(other._nnz())
        return nowhere, nowhere.to(torch.bool)
    there, wanted = _keys(x._indices(), x.shape), _keys(other._indices(), other.shape)
    found = torch.searchsorted(there, wanted).clamp(max=x._nnz() - 1)
    return found, there[found] == wanted


@_kernel("mul_.Tensor", "mul_.Scalar")
def mul_(x: torch.Tensor, other: torch.Tensor | complex) -> torch.Tensor:
    """Multiply in place."""
    if not x.is_sparse:
        return x.copy_(to_dense(mul(x, other)))
    return _set(x, mul(x, other))


@_kernel("div.Tensor", "div.Tensor_mode")
def div(
    x: torch.Tensor, other: torch.Tensor | float, *, rounding_mode: str | None = None
) -> torch.Tensor:
    """Return the values divided by a number."""
    if isinstance(other, torch.Tensor) and other.dim():
        raise RuntimeError(
            f"Sparse division requires a scalar or zero-dim dense tensor divisor (got shape {list(other.shape)} for "
            "divisor)"
        )
    if rounding_mode is not None:
        # Rounded, a sum is another than that of its parts.
        x = x.coalesce()
    return _like(x, torch.div(x._values(), other, rounding_mode=rounding_mode))


@_kernel("floor_divide")
def floor_divide(x: torch.Tensor, other: torch.Tensor | float) -> torch.Tensor:
    """Return the values divided by a number, and rounded down."""
    return div(x, other, rounding_mode="floor")


@_kernel("div_.Tensor", "div_.Tensor_mode")
def div_(x: torch.Tensor, other: object, **options: object) -> torch.Tensor:
    """Divide in place."""
    return _set(x, div(x, other, **options))


@_kernel("mm")
def mm(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Return the product of a sparse and a dense matrix."""
    if a.dim() != 2 or b.dim() != 2 or (a.is_sparse and a.sparse_dim() != 2):
        raise RuntimeError(
            f"mm: expected matrices of numbers, got {a.dim()}D and {b.dim()}D tensors"
        )
    if a.shape[1] != b.shape[0]:
        raise RuntimeError(
            "mat1 and mat2 shapes cannot be multiplied "
            f"({a.shape[0]}x{a.shape[1]} and {b.shape[0]}x{b.shape[1]})"
        )
    if not a.is_sparse:
        return mm(b.t(), a.t()).t()
    if b.is_sparse:
        return sparse_product(a, b)
    rows, columns = a._indices().unbind(0)
    out = b.new_zeros((a.shape[0], b.shape[1]))
    return out.index_add(0, rows, b[columns] * a._values().unsqueeze(1))


def _expanded(starts: torch.Tensor, counts: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return, for ranges of places, the number of the range of each place in them, and the place."""
    number = torch.repeat_interleave(torch.arange(counts.shape[0], device=counts.device), counts)
    before = counts.cumsum(0) - counts
    within = torch.arange(number.shape[0], device=counts.device) - before[number]
    return number, starts[number] + within


@_kernel("_sparse_sparse_matmul")
def sparse_product(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Return the product of two sparse matrices."""
    if a.sparse_dim() != 2 or b.sparse_dim() != 2 or a.dense_dim() or b.dense_dim():
        raise RuntimeError("sparse_matmul: expected two matrices of numbers")
    a, b = a.coalesce(), b.coalesce()
    rows, inner = a._indices().unbind(0)
    heads, columns = b._indices().unbind(0)
    starts = torch.searchsorted(heads, inner)
    counts = torch.searchsorted(heads, inner, right=True) - starts
    mine, theirs = _expanded(starts, counts)
    indices = torch.stack([rows[mine], columns[theirs]])
    values = a._values()[mine] * b._values()[theirs]
    return coalesce(_coo(indices, values, (a.shape[0], b.shape[1])))


@_kernel("index_select")
def index_select(x: torch.Tensor, dim: int, index: torch.Tensor) -> torch.Tensor:
    """Return the slices of a dim."""
    dim, rank = dim % x.dim(), x.sparse_dim()
    shape = (*x.shape[:dim], index.numel(), *x.shape[dim + 1 :])
    if dim >= rank:
        values = x._values().index_select(dim - rank + 1, index)
        return _coo(x._indices(), values, shape, x.is_coalesced())
    if index.numel() and not -x.shape[dim] <= int(index.min()) <= int(index.max()) < x.shape[dim]:
        raise IndexError(
            f"index_select(): index out of range of dim {dim} with size {x.shape[dim]}"
        )
    x = x.coalesce()
    wanted = torch.where(index < 0, index + x.shape[dim], index)
    have, order = x._indices()[dim].sort(stable=True)
    starts = torch.searchsorted(have, wanted)
    counts = torch.searchsorted(have, wanted, right=True) - starts
    number, place = _expanded(starts, counts)
    indices = x._indices()[:, order[place]]
    indices = torch.cat([indices[:dim], number.unsqueeze(0), indices[dim + 1 :]])
    return _coo(indices, x._values()[order[place]], shape, dim == 0)


@_kernel("bmm")
def bmm(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Return the products of a batch of sparse matrices and dense ones."""
    if not a.is_sparse:
        return bmm(b.transpose(1, 2), a.transpose(1, 2)).transpose(1, 2)
    batch, rows, columns = a._indices().unbind(0)
    out = b.new_zeros((a.shape[0] * a.shape[1], b.shape[2]))
    products = b[batch, columns] * a._values().unsqueeze(1)
    out = out.index_add(0, batch * a.shape[1] + rows, products)
    return out.view(a.shape[0], a.shape[1], b.shape[2])


@_kernel("hspmm")
def hspmm(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Return the product of a sparse and a dense matrix, as a tensor of the rows that are not zero."""
    rows, number = torch.unique(a._indices()[0], return_inverse=True)
    places = torch.stack([number, a._indices()[1]])
    product = mm(_coo(places, a._values(), (rows.shape[0], a.shape[1])), b)
    return _coo(rows.unsqueeze(0), product, (a.shape[0], b.shape[1]))


@_kernel("mv")
def mv(a: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Return the product of a sparse matrix and a vector."""
    return mm(a, v.unsqueeze(1)).squeeze(1)


@_kernel("addmm")
def addmm(
    x: torch.Tensor, a: torch.Tensor, b: torch.Tensor, *, beta: complex = 1, alpha: complex = 1
) -> torch.Tensor:
    """Return beta * x + alpha * (a @ b)."""
    product = mm(a, b) * alpha
    return product if beta == 0 else x * beta + product


def sspaddmm(
    x: torch.Tensor, a: torch.Tensor, b: torch.Tensor, *, beta: complex = 1, alpha: complex = 1
) -> torch.Tensor:
    """Return beta * x + alpha * (a @ b), of which only b is dense, as a sparse tensor."""
    product = to_sparse(mm(a, b)) * alpha
    return add(x * beta, product) if beta else product


@_kernel("sparse_mask")
def sparse_mask(x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Return the elements of a tensor at the places of a sparse one."""
    if not x.is_sparse:
        return _like(mask, _at(x, mask))
    x = x.coalesce()
    values = x._values()
    if not x._nnz():
        return _like(mask, values.new_zeros(mask._values().shape))
    found, hit = _found(x, mask)
    hit = hit.reshape(-1, *[1] * (values.dim() - 1))
    return _like(mask, torch.where(hit, values[found], 0))


@_kernel("_sparse_mask_projection")
def mask_projection(
    x: torch.Tensor, mask: torch.Tensor, accumulate_matches: bool = False
) -> torch.Tensor:
    """Return a gradient's elements at the places of a sparse tensor."""
    return sparse_mask(x, mask.coalesce())


def _pools(x: torch.Tensor, dim: int) -> tuple[torch.Tensor, int]:
    """Return the number of the row along `dim` that each place lies in, and how many rows there are."""
    others = [d for d in range(x.sparse_dim()) if d != dim]
    keys = _keys(x._indices()[others], [x.shape[d] for d in others])
    if not others:
        keys = x._indices().new_zeros(x._nnz())
    found, number = torch.unique(keys, return_inverse=True)
    return number, found.shape[0]


def _softmax(logarithm: bool) -> Kernel:
    dense = aten._log_softmax if logarithm else aten._softmax

    def kernel(x: torch.Tensor, dim: int, half_to_float: bool = False) -> torch.Tensor:
        """Compute it of the elements that are there: the others are taken for -inf."""
        dim, x = dim % x.dim(), x.coalesce()
        values = x._values()
        if dim >= x.sparse_dim():
            return _like(x, dense(values, dim - x.sparse_dim() + 1, half_to_float))
        if not x._nnz():
            return x.clone()
        number, count = _pools(x, dim)
        rows = values.new_zeros((count, *values.shape[1:]))
        largest = rows.index_reduce(0, number, values, "amax", include_self=False)
        shifted = values - largest[number]
        powers = shifted.exp()
        sums = rows.index_add(0, number, powers)[number]
        return _like(x, shifted - sums.log() if logarithm else powers / sums)

    return kernel


def _softmax_backward(logarithm: bool) -> Kernel:
    dense = aten._log_softmax_backward_data if logarithm else aten._softmax_backward_data

    def kernel(g: torch.Tensor, out: torch.Tensor, dim: int, x: torch.Tensor) -> torch.Tensor:
        """Return the cotangent, at the places of the result."""
        dim, out = dim % x.dim(), out.coalesce()
        values, given = out._values(), sparse_mask(g, out)._values()
        if dim >= out.sparse_dim():
            return _like(out, dense(given, values, dim - out.sparse_dim() + 1, values.dtype))
        if not out._nnz():
            return out.clone()
        number, count = _pools(out, dim)
        rows = values.new_zeros((count, *values.shape[1:]))
        sums = rows.index_add(0, number, given if logarithm else given * values)[number]
        return _like(out, given - values.exp() * sums if logarithm else (given - sums) * values)

    return kernel


for _logarithm, _name in ((False, "_sparse_softmax"), (True, "_sparse_log_softmax")):
    _kernel(_name)(_softmax(_logarithm))
    _kernel(f"{_name}_backward_data")(_softmax_backward(_logarithm))


@_kernel("_sparse_sum_backward")
def sum_backward(g: torch.Tensor, x: torch.Tensor, dim: Sequence[int]) -> torch.Tensor:
    """Return the cotangent of a sum over dims, at the places of the operand."""
    x, gone = x.coalesce(), {d % x.dim() for d in dim}
    dense = to_dense(g) if g.is_sparse else g
    for d in sorted(gone):
        dense = dense.unsqueeze(d)
    return _like(x, _at(dense, x).to(x.dtype).clone())


@_kernel("sum")
def sum_(x: torch.Tensor, dtype: torch.dtype | None = None) -> torch.Tensor:
    """Return the sum of all values."""
    return x._values().sum(dtype=dtype)


@_kernel("_to_dense")
def to_dense(
    x: torch.Tensor, dtype: torch.dtype | None = None, masked_grad: bool | None = None
) -> torch.Tensor:
    """Return the dense tensor."""
    values = x._values() if dtype is None else x._values().to(dtype)
    out = values.new_zeros(x.shape)
    return add_(out, x)


def to_sparse(x: torch.Tensor, sparse_dim: int | None = None, **options: object) -> torch.Tensor:
    """Return a dense tensor's elements that are not zero."""
    if options.get("layout") not in (None, torch.sparse_coo):
        return aten._to_sparse.default._handle.redispatch_boxed(_DENSE, x, **options)
    if not x.dim():
        there = (x != 0).reshape(1)
        return _coo(there.nonzero().t()[:0].contiguous(), x.reshape(1)[there], (), True)
    rank = x.dim() if sparse_dim is None else sparse_dim
    if not rank:
        there = (x != 0).any().reshape(1)
        return _coo(there.nonzero().t()[:0].contiguous(), x.unsqueeze(0)[there], x.shape, True)
    there = x != 0
    if rank < x.dim():
        there = there.flatten(rank).any(rank)
    indices = there.nonzero().t().contiguous()
    return _coo(indices, x[tuple(indices.unbind(0))], x.shape, True)


@_kernel("zero_")
def _zero(x: torch.Tensor) -> torch.Tensor:
    return _set(x, _coo(x._indices()[:, :0], x._values()[:0], x.shape, True))


def _unary(name: str, merges: bool) -> Kernel:
    operator = getattr(torch, name)

    def kernel(x: torch.Tensor, *args: object) -> torch.Tensor:
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


_has = torch._C._dispatch_has_kernel_for_dispatch_key
_known = set(torch._C._dispatch_get_all_op_names())
for _name in _keep_zero():
    _kernel(_name)(_unary(_name, _name != "neg"))
    # The other forms are PyTorch's, of the operators on the values.
    _forms = {f"{_name}_", f"{_name}.out"} - set(_STRUCTURE)
    _STRUCTURE += [f for f in _forms if f"aten::{f}" in _known and _has(f"aten::{f}", "SparseCPU")]
_kernel("pow.Tensor_Scalar")(_unary("pow", True))


def _into(function: Kernel) -> Kernel:
    """Return the form of an operator with `out`."""

    def kernel(*args: object, out: torch.Tensor, **options: object) -> torch.Tensor:
        """Give `out` the result."""
        found = function(*args, **options)
        return _set(out, found) if out.is_sparse else out.resize_(found.shape).copy_(found)

    return kernel


for _name, _function in (
    ("add", add),
    ("mul", mul),
    ("mm", mm),
    ("bmm", bmm),
    ("addmm", addmm),
    ("hspmm", hspmm),
    ("sspaddmm", sspaddmm),
    ("div", div),
    ("floor_divide", floor_divide),
):
    _kernel(f"{_name}.out")(_into(_function))


_kernel("div.out_mode")(_into(div))
_kernel("floor_divide_.Tensor")(lambda x, other: _set(x, floor_divide(x, other)))


@_kernel("addmm_")
def addmm_(x: torch.Tensor, a: torch.Tensor, b: torch.Tensor, **numbers: object) -> torch.Tensor:
    """Write beta * x + alpha * (a @ b) to x."""
    return x.copy_(addmm(x, a, b, **numbers))


for _name in _STRUCTURE:
    if _name not in KERNELS:
        _kernel(_name)(functools.partial(_operator(_name)._handle.redispatch_boxed, _CPU))


def spdiags(
    diagonals: torch.Tensor, offsets: torch.Tensor, shape: Sequence[int], layout: Any = None
) -> torch.Tensor:
    """Return the sparse matrix that has these diagonals."""
    diagonals = diagonals.reshape(-1, diagonals.shape[-1]) if diagonals.dim() < 2 else diagonals
    offsets = offsets.reshape(-1, 1).to(diagonals.device)
    if diagonals.shape[0] != offsets.shape[0]:
        raise RuntimeError(
            f"Number of diagonals ({diagonals.shape[0]}) does not match the number of offsets ({offsets.shape[0]})"
        )
    if offsets.unique().numel() != offsets.numel():
        raise RuntimeError("Offset tensor contains duplicate values")
    columns = torch.arange(diagonals.shape[1], device=diagonals.device).expand(diagonals.shape)
    rows = columns - offsets
    there = (rows >= 0) & (rows < shape[0]) & (columns < shape[1])
    out = _coo(torch.stack([rows[there], columns[there]]), diagonals[there], shape)
    return out if layout in (None, torch.sparse_coo) else out.to_sparse(layout=layout)


# Of dense tensors.
MAKERS: dict[str, Kernel] = {
    "_to_sparse": to_sparse, "_to_sparse.sparse_dim": to_sparse, "_spdiags": spdiags,
}  # fmt: skip


for _layout in ("csr", "csc", "bsr", "bsc"):
    MAKERS[f"_to_sparse_{_layout}"] = functools.partial(
        _operator(f"_to_sparse_{_layout}")._handle.redispatch_boxed, _DENSE
    )


def register(library: torch.library.Library, hide: Callable[[Kernel], Kernel]) -> None:
    """Register the kernels."""
    for kernels, key in ((KERNELS, "SparsePrivateUse1"), (MAKERS, "PrivateUse1")):
        declare(library, hide, kernels, key)


def declare(
    library: torch.library.Library,
    hide: Callable[[Kernel], Kernel],
    kernels: dict[str, Kernel],
    key: str,
) -> None:
    """Register kernels for a key; those that are PyTorch's own have no frame of Python."""
    for name, kernel in kernels.items():
        library.impl(name, kernel if isinstance(kernel, functools.partial) else hide(kernel), key)
