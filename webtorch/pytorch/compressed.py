"""CSR and CSC tensors on PyTorch's device "webgpu": PyTorch's class, with dense parts on the device. Floor 6.

What only looks at the parts, or computes with the values alone, is PyTorch's kernel for the CPU, which calls operators
of the device. Products and sums go by way of COO tensors (`sparse`).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch

from webtorch.pytorch import sparse
from webtorch.pytorch.sparse import Kernel, aten

_CPU = torch._C.DispatchKeySet(torch._C.DispatchKey.SparseCsrCPU)
KERNELS: dict[str, Kernel] = {}
# Of these PyTorch's kernels read the memory of the parts, or lead to those that do.
_READ = """_to_dense add.Tensor add.out add_.Tensor addmm addmm.out addmv.out mm mm.out mul.Tensor mul.out mul_.Tensor
    mul.Scalar mul_.Scalar sparse_mask sparse_sampled_addmm sparse_sampled_addmm.out
    _sparse_csr_sum.dim_dtype _sparse_csr_prod.dim_dtype
    _pin_memory is_pinned""".split()  # noqa: SIM905


def _kernel(*names: str) -> Callable[[Kernel], Kernel]:
    """Declare the kernel of operators of compressed tensors."""

    def declare(kernel: Kernel) -> Kernel:
        """Take it."""
        KERNELS.update(dict.fromkeys(names, kernel))
        return kernel

    return declare


def _is_compressed(x: object) -> bool:
    return isinstance(x, torch.Tensor) and x.layout in _PARTS


# Layout -> what its indices are called.
_PARTS = {
    torch.sparse_csr: ("crow_indices", "col_indices"), torch.sparse_bsr: ("crow_indices", "col_indices"),
    torch.sparse_csc: ("ccol_indices", "row_indices"), torch.sparse_bsc: ("ccol_indices", "row_indices"),
}  # fmt: skip


def _coo(x: torch.Tensor) -> torch.Tensor:
    """Return a compressed matrix as a COO tensor, others as they are."""
    return x.to_sparse() if _is_compressed(x) else x


def _like(x: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    compressed, plain = (getattr(x, part)() for part in _PARTS[x.layout])
    return aten._sparse_compressed_tensor_unsafe(
        compressed,
        plain,
        values,
        x.shape,
        dtype=values.dtype,
        layout=x.layout,
        device=values.device,
    )


@_kernel("_to_dense")
def to_dense(
    x: torch.Tensor, dtype: torch.dtype | None = None, masked_grad: bool | None = None
) -> torch.Tensor:
    """Return the dense tensor."""
    compressed, plain = (getattr(x, part)() for part in _PARTS[x.layout])
    batch = compressed.dim() - 1
    by_columns = x.layout in (torch.sparse_csc, torch.sparse_bsc)
    places = aten._convert_indices_from_csr_to_coo(compressed, plain, transpose=by_columns)
    values = x.values() if dtype is None else x.values().to(dtype)
    rest, sizes = values.shape[batch + 1 :], x.shape[batch : batch + 2]
    blocks = rest[:2] if x.layout in (torch.sparse_bsr, torch.sparse_bsc) else (1, 1)
    grid = [n // block for n, block in zip(sizes, blocks, strict=True)]
    out = values.new_zeros((*x.shape[:batch], *grid, *rest))
    out = out.index_put_(tuple(places.unbind(0)), values.reshape(-1, *rest))
    return (
        out.transpose(batch + 1, batch + 2).reshape(x.shape)
        if blocks != (1, 1)
        else out.view(x.shape)
    )


def _in_layout(x: torch.Tensor, layout: torch.layout, like: torch.Tensor) -> torch.Tensor:
    """Return a COO matrix in a compressed layout, in blocks as large as those of another one."""
    if layout in (torch.sparse_csr, torch.sparse_csc):
        return x.to_sparse(layout=layout)
    return x.to_dense().to_sparse(layout=layout, blocksize=like.values().shape[-2:])


def _by_coo(function: Kernel) -> Kernel:
    """Return an operator of COO tensors for compressed ones; a sparse result has columns if all of these have."""

    def kernel(*args: Any, **options: Any) -> torch.Tensor:
        """Run the operator."""
        layouts = {a.layout for a in args if _is_compressed(a)}
        like = next(a for a in args if _is_compressed(a))
        layout = layouts.pop() if len(layouts) == 1 else torch.sparse_csr
        found = function(*map(_coo, args), **options)
        return _in_layout(found, layout, like) if found.is_sparse else found

    return kernel


def _into(function: Kernel) -> Kernel:
    def kernel(*args: object, out: torch.Tensor, **options: object) -> torch.Tensor:
        """Give `out` the result."""
        found = function(*args, **options)
        if _is_compressed(out):
            return out.resize_as_sparse_(found).copy_(found)
        return out.resize_(found.shape).copy_(found.to_dense() if _is_compressed(found) else found)

    return kernel


def _inplace(function: Kernel) -> Kernel:
    def kernel(x: torch.Tensor, *args: object, **options: object) -> torch.Tensor:
        """Overwrite the first operand."""
        return _into(function)(x, *args, out=x, **options)

    return kernel


def _indexed(found: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """Return a compressed tensor with indices of the type that those of another one have."""
    kind = getattr(x, _PARTS[x.layout][0])().dtype
    compressed, plain = (getattr(found, part)() for part in _PARTS[found.layout])
    if compressed.dtype is kind:
        return found
    return aten._sparse_compressed_tensor_unsafe(
        compressed.to(kind), plain.to(kind), found.values(), found.shape, dtype=found.dtype, layout=found.layout,
        device=found.device,
    )  # fmt: skip


def _flipped(layout: torch.layout) -> Kernel:
    own = sparse._operator(f"_to_{str(layout).removeprefix('torch.')}")._handle

    def kernel(x: torch.Tensor, dense_dim: int | None = None) -> torch.Tensor:
        """Return a matrix with rows and columns exchanged in its layout; a batch by way of dense matrices."""
        if x.layout is layout or x.layout not in (torch.sparse_csr, torch.sparse_csc):
            return own.redispatch_boxed(_CPU, x, dense_dim)
        if x.dim() - x.dense_dim() > 2:
            found = x.to_dense().to_sparse(layout=layout, dense_dim=x.dense_dim())
        else:
            found = _coo(x).coalesce().to_sparse(layout=layout)
        return _indexed(found, x)

    return kernel


@_kernel("_to_sparse")
def to_sparse(x: object, *, layout: object = None, **options: object) -> torch.Tensor:
    """Return the matrix in another layout."""
    name = f"_to_{str(layout).removeprefix('torch.')}"
    if name in ("_to_sparse_csr", "_to_sparse_csc"):
        return KERNELS[name](x, options.get("dense_dim"))
    if name in ("_to_sparse_bsr", "_to_sparse_bsc"):
        return KERNELS[name](x, options["blocksize"], options.get("dense_dim"))
    whole = aten._to_sparse.default._handle
    return whole.redispatch_boxed(_CPU, x, layout=layout, **options)


def _blocked(layout: torch.layout) -> Kernel:
    own = sparse._operator(f"_to_{str(layout).removeprefix('torch.')}")._handle

    def kernel(x: torch.Tensor, blocksize: Any, dense_dim: int | None = None) -> torch.Tensor:
        """Return a matrix in blocks; from the other layout of blocks by way of the dense one."""
        if x.layout is layout or x.layout not in (torch.sparse_bsr, torch.sparse_bsc):
            return own.redispatch_boxed(_CPU, x, blocksize, dense_dim)
        found = x.to_dense().to_sparse(layout=layout, blocksize=blocksize, dense_dim=x.dense_dim())
        return _indexed(found, x)

    return kernel


_kernel("_to_sparse_bsr")(_blocked(torch.sparse_bsr))
_kernel("_to_sparse_bsc")(_blocked(torch.sparse_bsc))
_kernel("_to_sparse_csr")(_flipped(torch.sparse_csr))
_kernel("_to_sparse_csc")(_flipped(torch.sparse_csc))
_kernel("mm")(_by_coo(sparse.mm))
_kernel("mv")(_by_coo(sparse.mv))
_kernel("add.Tensor")(_by_coo(sparse.add))


@_kernel("addmm")
def addmm(
    x: torch.Tensor, a: torch.Tensor, b: torch.Tensor, *, beta: complex = 1, alpha: complex = 1
) -> torch.Tensor:
    """Return beta * x + alpha * (a @ b)."""
    product = KERNELS["mm"](a, b) if _is_compressed(a) or _is_compressed(b) else a @ b
    if beta == 0:
        return product * alpha
    if _is_compressed(product) != _is_compressed(x):
        product = (
            product.to_dense() if _is_compressed(product) else product.to_sparse(layout=x.layout)
        )
    return torch.add(x * beta, product, alpha=alpha)


@_kernel("addmv")
def addmv(
    x: torch.Tensor, a: torch.Tensor, v: torch.Tensor, *, beta: complex = 1, alpha: complex = 1
) -> torch.Tensor:
    """Return beta * x + alpha * (a @ v)."""
    product = KERNELS["mv"](a, v) * alpha
    return product if beta == 0 else x * beta + product


@_kernel("mul.Tensor", "mul.Scalar")
def mul(x: torch.Tensor, other: Any) -> torch.Tensor:
    """Return the product, element by element."""
    if not _is_compressed(x):
        x, other = other, x
    if not isinstance(other, torch.Tensor) or not other.dim():
        return _like(x, x.values() * other)
    return _by_coo(sparse.mul)(x, other)


@_kernel("sparse_mask")
def sparse_mask(x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Return the elements of a tensor at the places of a compressed one."""
    at = _coo(mask).coalesce()
    found = sparse.sparse_mask(_coo(x), at)
    return _in_layout(found, mask.layout, mask) if _is_compressed(mask) else found


@_kernel("sparse_sampled_addmm")
def sampled_addmm(
    x: torch.Tensor, a: torch.Tensor, b: torch.Tensor, *, beta: complex = 1, alpha: complex = 1
) -> torch.Tensor:
    """Return beta * x + alpha * (a @ b) at the places of x."""
    rows, columns = _coo(x)._indices().unbind(0)
    values = (a[rows] * b.t()[columns]).sum(1) * alpha
    return _like(x, values if beta == 0 else x.values() * beta + values)


def _elements(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return rows and columns of the elements of a matrix of rows, and their numbers."""
    rows, columns = _coo(x)._indices().unbind(0)
    return rows, columns, torch.arange(len(rows), device=rows.device)[:, None]


@_kernel("_sparse_mm_reduce_impl")
def mm_reduced(
    x: torch.Tensor, other: torch.Tensor, reduce: str
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return a product whose sums are another reduction, and of extremes which element each one is."""
    rows, columns, number = _elements(x)
    parts = x.values()[:, None] * other[columns]
    at = rows[:, None].expand_as(parts)
    out = parts.new_zeros((x.shape[0], other.shape[1]))
    out = out.scatter_reduce(0, at, parts, reduce, include_self=False)
    if reduce not in ("amax", "amin"):
        return out, number.new_empty(0)
    found = torch.where(parts == out[rows], number, len(rows))
    return out, number.new_full(out.shape, len(rows)).scatter_reduce(0, at, found, "amin")


@_kernel("_sparse_mm_reduce_impl_backward")
def mm_reduced_backward(
    x: torch.Tensor, g: torch.Tensor, other: torch.Tensor, reduce: str, chosen: torch.Tensor, mask: Sequence[bool],
) -> tuple[torch.Tensor | None, torch.Tensor | None]:  # fmt: skip
    """Return the cotangents of both factors."""
    rows, columns, number = _elements(x)
    if reduce == "mean":
        g = g / x.crow_indices().diff().clamp(min=1)[:, None]
    g = g[rows]
    if chosen.numel():
        g = torch.where(chosen[rows] == number, g, 0)
    return (
        _like(x, (g * other[columns]).sum(1)) if mask[0] else None,
        torch.zeros_like(other).index_add(0, columns, x.values()[:, None] * g) if mask[1] else None,
    )


@_kernel("triangular_solve.X")
def triangular_solve(
    b: torch.Tensor, a: torch.Tensor, upper: bool = True, transpose: bool = False, unitriangular: bool = False,
    *, X: torch.Tensor, M: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    """Solve a @ x = b by way of the dense matrix."""
    found, _ = torch.triangular_solve(b, a.to_dense(), upper, transpose, unitriangular)
    return X.resize_(found.shape).copy_(found), M


@_kernel("linear_backward")
def linear_backward(
    x: torch.Tensor, g: torch.Tensor, weight: torch.Tensor, mask: Sequence[bool]
) -> tuple[torch.Tensor | None, ...]:
    """Return the cotangents of a linear layer's input, weight and bias."""
    rows, columns = g.reshape(-1, g.shape[-1]), x.reshape(-1, x.shape[-1])
    return (
        KERNELS["mm"](rows, weight).reshape(x.shape) if mask[0] else None,
        rows.t() @ columns if mask[1] else None,
        rows.sum(0) if mask[2] else None,
    )


for _name, _function in (
    ("add", KERNELS["add.Tensor"]), ("mul", mul), ("mm", KERNELS["mm"]), ("addmm", addmm), ("addmv", addmv),
    ("sparse_sampled_addmm", sampled_addmm),
):  # fmt: skip
    _kernel(f"{_name}.out")(_into(_function))
for _name, _function in (
    ("add_.Tensor", KERNELS["add.Tensor"]), ("mul_.Tensor", mul), ("mul_.Scalar", mul), ("addmm_", addmm),
):  # fmt: skip
    _kernel(_name)(_inplace(_function))


def _along(name: str) -> Kernel:
    def kernel(
        x: torch.Tensor, dim: Any, keepdim: bool = False, *, dtype: torch.dtype | None = None
    ) -> torch.Tensor:
        """Reduce a matrix in one or both dims; what is not there is not counted."""
        if not keepdim:
            raise RuntimeError(
                "reduction operations on CSR tensors with keepdim=False is unsupported"
            )
        dims = {d % 2 for d in ([dim] if isinstance(dim, int) else dim)}
        at, values = _coo(x)._indices(), x.values() if dtype is None else x.values().to(dtype)
        shape = [1 if d in dims else n for d, n in enumerate(x.shape)]
        key = sum(
            (at[d] * (1 if d else shape[1]) for d in range(2) if d not in dims),
            at.new_zeros(x._nnz()),
        )
        there, number = torch.unique(key, return_inverse=True)
        out = torch.full(there.shape, name == "prod", dtype=values.dtype, device=values.device)
        out = (
            out.index_add(0, number, values)
            if name == "sum"
            else out.index_reduce(0, number, values, "prod")
        )
        places = torch.stack([there // shape[1], there % shape[1]])
        return sparse._coo(places, out, shape, True).to_sparse(layout=x.layout)

    return kernel


for _name in ("sum", "prod"):
    _kernel(f"_sparse_csr_{_name}.dim_dtype")(_along(_name))
_kernel("is_pinned")(lambda x, device=None: False)


def _validate(
    is_rows: bool, compressed: torch.Tensor, plain: torch.Tensor, cdim: int, dim: int, nnz: int
) -> None:
    """Check indices, which are read for it."""
    aten._validate_compressed_sparse_indices(is_rows, compressed.cpu(), plain.cpu(), cdim, dim, nnz)


def _register_rest() -> None:
    """Take PyTorch's kernels for all else that the CPU has."""
    for full in torch._C._dispatch_get_all_op_names():
        name = full.removeprefix("aten::")
        if name == full or name in KERNELS or name in _READ:
            continue
        if torch._C._dispatch_has_kernel_for_dispatch_key(full, "SparseCsrCPU"):
            handle = sparse._operator(name)._handle
            _kernel(name)(functools.partial(handle.redispatch_boxed, _CPU))


_register_rest()


def register(library: torch.library.Library, hide: Callable[[Kernel], Kernel]) -> None:
    """Register the kernels."""
    sparse.declare(library, hide, KERNELS, "SparseCsrPrivateUse1")
    library.impl("_validate_compressed_sparse_indices", hide(_validate), "PrivateUse1")
