"""Elementwise operations that keep zeros, and arithmetic of sparse tensors with numbers, dense and sparse tensors."""

from __future__ import annotations

from typing import Any

from webtorch.functions import public as dense
from webtorch.ir.dtype import Number
from webtorch.ops.elementwise import check_subtraction
from webtorch.sparse.dispatch import rule
from webtorch.sparse.layouts import broadcast, coalesce, coo, matching, matching_as, to_dense
from webtorch.sparse.tensor import SparseTensor, added, at, keys, no_kernel
from webtorch.tensors.formats import sparse_coo
from webtorch.tensors.promotion import result_type
from webtorch.tensors.tensor import Tensor


def merged(x: SparseTensor) -> SparseTensor:
    """Return x with one value at each place."""
    return x if x.coalesced else coalesce(x)


@rule("neg")
def neg(input: SparseTensor) -> SparseTensor:
    """Return the negated values. Of what is linear those at one place need not be added before."""
    return input.like(-input.values_of(), "Neg")


@rule("conj", "conj_physical")
def conj(input: SparseTensor) -> SparseTensor:
    """Return the conjugated values."""
    return input.like(input.values_of().conj(), "Conj")


@rule("_pairs")
def pairs(x: SparseTensor) -> SparseTensor:
    """Return complex values as pairs of real numbers, a dense dim more."""
    values = dense.view_as_real(x.values_of())
    return SparseTensor.of(x.layout, x.places, values, (*x._shape, 2), x.coalesced)


@rule("_paired")
def paired(x: SparseTensor) -> SparseTensor:
    """Return pairs of real numbers as complex values."""
    values = dense.view_as_complex(x.values_of())
    return SparseTensor.of(x.layout, x.places, values, x._shape[:-1], x.coalesced)


@rule("positive", "resolve_conj", "resolve_neg")
def positive(input: SparseTensor) -> SparseTensor:
    """Return the tensor itself."""
    return input


@rule("pow")
def pow_(input: Any, exponent: Any) -> SparseTensor:
    """Raise the values to a power."""
    if not isinstance(input, SparseTensor) or isinstance(exponent, SparseTensor):
        raise no_kernel("pow", input if isinstance(input, SparseTensor) else exponent)
    power = exponent.item() if isinstance(exponent, Tensor) else exponent
    if power == 0:
        raise RuntimeError(
            "pow: cannot raise to zeroth power on sparse tensor; it would make the result tensor dense"
        )
    x = merged(input)
    return x.like(x.values_of() ** exponent, "Pow")


def _is_number(x: object) -> bool:
    """Whether x is a number, or a dense tensor without dims."""
    return not isinstance(x, Tensor) or (not isinstance(x, SparseTensor) and not x.dim())


@rule("mul")
def mul(input: Any, other: Any) -> Tensor:
    """Return the product: where both have values."""
    if isinstance(input, SparseTensor) and isinstance(other, SparseTensor):
        # What has no dims is a number; of two of these both say the type.
        if not input.dim() and not other.dim():
            if input.coalesced and input.nnz and not (other.coalesced and other.nnz):
                input, other = other, input
            number = to_dense(other)
            dtype = result_type(to_dense(input), number)
            return input.like(input.values_of().to(dtype) * number, "Mul")
        input = input if input.dim() else to_dense(input)
        other = other if other.dim() else to_dense(other)
    if not isinstance(input, SparseTensor):
        input, other = other, input
    if _is_number(other):
        return input.like(input.values_of() * other, "Mul")
    if isinstance(other, SparseTensor):
        return _common(input, other)
    shape = dense.broadcast_shapes(input._shape, other._shape)
    if shape != input._shape:
        input = matching_as(broadcast(matching(input, sparse_coo), shape), input)
    there = at(other.expand(shape), input.pattern().coordinates())
    return input.like(input.values_of() * input.pattern().in_blocks(there), "Mul")


def _common(a: SparseTensor, b: SparseTensor) -> Tensor:
    """Return the product of two sparse tensors."""
    whole = a._shape
    if a._shape != b._shape:
        rank = a.sparse_rank
        alike = rank == b.sparse_rank and a._shape[:rank] == b._shape[:rank]
        if not alike or a.layout is not sparse_coo or b.layout is not sparse_coo:
            raise RuntimeError(
                "mul operands have incompatible sizes: "
                f"{list(a._shape)} and {list(b._shape)}; sparse dims do not broadcast"
            )
        whole = (*whole[:rank], *dense.broadcast_shapes(whole[rank:], b._shape[rank:]))
    if whole == a._shape == b._shape and a.places is b.places and (a.coalesced or b.coalesced):
        return a.like(a.values_of() * b.values_of(), "Mul")
    x, y = coalesce(matching(a, sparse_coo)), coalesce(matching(b, sparse_coo))
    if x.sparse_rank != y.sparse_rank:
        raise RuntimeError("mul: operands have different numbers of sparse dims")
    shape = x._shape[: x.sparse_rank]
    if not x.nnz or not y.nnz:
        dtype = result_type(a.kept, b.kept)
        none = (x.values_of()[:0] * y.values_of()[:0]).to(dtype)
        return matching_as(coo(x.places[0][:, :0], none, whole, True), a)
    mine, others = keys(x.places[0], shape), keys(y.places[0], shape)
    found = dense.clamp(dense.searchsorted(others, mine), max=y.nnz - 1)
    (hit,) = (others[found] == mine).nonzero(as_tuple=True)
    values = x.values_of()[hit] * y.values_of()[found[hit]]
    out = coo(x.places[0][:, hit], values, whole, True, "Mul")
    return matching_as(out, a)


@rule("div", "_div", "true_divide")
def div(input: object, other: object, *, rounding_mode: str | None = None) -> SparseTensor:
    """Return the values divided by a number."""
    return _divided(input, other, rounding_mode)


@rule("floor_divide")
def floor_divide(input: object, other: object) -> SparseTensor:
    """Return the values divided by a number, rounded down."""
    return _divided(input, other, "floor")


def _divided(input: Any, other: Any, rounding_mode: str | None) -> SparseTensor:
    if not isinstance(input, SparseTensor) or not _is_number(other):
        got = f"shape {list(other._shape)} for divisor" if other.dim() else "a sparse divisor"
        raise RuntimeError(
            f"Sparse division requires a scalar or zero-dim dense tensor divisor (got {got})"
        )
    x = input if rounding_mode is None else merged(input)
    return x.like(dense.div(x.values_of(), other, rounding_mode=rounding_mode), "Div")


@rule("add", "_add")
def add(input: object, other: Any, *, alpha: Any = 1) -> Tensor:
    """Return the sum: of two sparse tensors a sparse one, of a dense and a sparse one a dense one."""
    if isinstance(input, SparseTensor) and isinstance(other, SparseTensor):
        return _sum(input, other, alpha)
    if isinstance(input, SparseTensor):
        if input.layout is sparse_coo or _is_number(other):
            raise RuntimeError(
                "add(sparse, dense) is not supported. Use add(dense, sparse) instead."
            )
        # PyTorch adds the sparse tensor to the dense one: `alpha` is a factor of that.
        return add(other, input, alpha=alpha)
    if not isinstance(input, Tensor):
        raise RuntimeError("add(sparse, dense) is not supported. Use add(dense, sparse) instead.")
    if input._shape != other._shape:
        raise RuntimeError(
            "add: expected 'self' and 'other' to have same size, but self has size "
            f"{list(input._shape)} while other has size {list(other._shape)} (FYI: "
            "dense-sparse addition does not currently support broadcasting)"
        )
    pattern, rank = other.pattern(), other.sparse_rank
    dtype = result_type(input, other.kept)
    if input.dtype is not dtype or not dtype.has_gradient:
        return dense.add(input, to_dense(other), alpha=alpha)
    head = other._shape[:rank]
    rows = 1
    for size in head:
        rows *= size
    flat = input.reshape(rows, *other._shape[rank:])
    values = other.elements().to(dtype)
    if alpha != 1:
        values = values * alpha
    out = added(flat, keys(pattern.coordinates(), head), values).reshape(input._shape)
    return dense.clone(out) if out._storage is input._storage else out


def _sum(a: SparseTensor, b: SparseTensor, alpha: Number) -> Tensor:
    if a._shape != b._shape:
        raise RuntimeError(
            "add: expected sizes of 'self' and 'other' to match, but "
            f"{list(a._shape)} != {list(b._shape)}"
        )
    left, right = a.values_of(), b.values_of()
    dtype = result_type(left, right)
    right = right.to(dtype)
    if alpha != 1:
        right = right * alpha
    alike = a.layout is b.layout and left._shape == right._shape
    if alike and all(p is q for p, q in zip(a.places, b.places, strict=True)):
        return a.like(left + right, "Add")
    x, y = matching(a, sparse_coo), matching(b, sparse_coo)
    if x.sparse_rank != y.sparse_rank:
        raise RuntimeError(
            "add: expected 'self' and 'other' to have same number of sparse dimensions, but "
            f"{x.sparse_rank} != {y.sparse_rank}"
        )
    # The values of COO tensors are those of `x` and `y`, which have a graph where a conversion reordered them.
    first = left if x is a else x.values_of()
    second = right if y is b else y.values_of().to(dtype) * alpha
    places = dense.cat([x.places[0], y.places[0]], 1)
    out = coo(places, dense.cat([first.to(dtype), second.to(dtype)]), a._shape, False, "Add")
    if (x.coalesced and y.coalesced) or a.layout is not sparse_coo:
        out = coalesce(out)
    return matching_as(out, a)


@rule("sub", "_sub")
def sub(input: object, other: Any, *, alpha: Any = 1) -> Tensor:
    """Return the difference, where `add` gives the sum."""
    check_subtraction(
        "sub", *(x.kept if isinstance(x, SparseTensor) else x for x in (input, other))
    )
    return add(input, other, alpha=-alpha)
