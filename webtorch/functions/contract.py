"""Contractions: matrix products and everything that is one.

All products end in one primitive, `matmul3`, which reads strided operands in place: a transposed
weight is a view, and an operand broadcast over a batch is never written out.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from webtorch.errors import DTypeError, ShapeError
from webtorch.ir.dtype import Number, bool_, promote_types
from webtorch.ir.view import (
    Shape,
    broadcast_shapes,
    contiguous_strides,
    expands_to,
    normalize_dim,
    numel,
    reshape_strides,
)
from webtorch.ops.precision import computed_wide, is_short, to_type, widened
from webtorch.ops.primitive import as_view, cast_to, conjugate, fill, matmul3, unrounded
from webtorch.ops.record import (
    LOWER,
    Anew,
    Autocast,
    Family,
    OutRule,
    composite,
)
from webtorch.ops.splits import equation, of_matmul
from webtorch.tensors.tensor import Tensor

FAMILY: Family = "contract"


def check_tensor(op: str, name: str, position: int, value: object) -> None:
    """Raise TypeError, as PyTorch does, unless `value` is a tensor."""
    if not hasattr(value, "stride"):
        raise TypeError(
            f"{op}(): argument '{name}' (position {position}) must be Tensor, "
            f"not {type(value).__name__}"
        )


def check_types(op: str, a: Tensor, b: Tensor) -> None:
    """Raise unless `a` and `b` have one type that products exist for."""
    if a.dtype is not b.dtype and a.ndim == b.ndim == 1:
        raise DTypeError(
            f"dot : expected both vectors to have same dtype, but found {a.dtype.legacy} and {b.dtype.legacy}. Convert "
            f"one of the operands of {op}, as in other.to({a.dtype})."
        )
    if a.dtype is not b.dtype:
        raise DTypeError(
            f"expected m1 and m2 to have the same dtype, but got: {a.dtype.c_name} != {b.dtype.c_name}. Convert one of "
            f"the operands of {op}, as in other.to({a.dtype})."
        )
    if a.dtype is bool_:
        raise NotImplementedError(
            f"\"{op}\" not implemented for 'Bool': products of {a.dtype} do not exist. Use "
            f"{op}(a.float(), b.float()) > 0."
        )


def viewable(x: Tensor, shape: tuple[int, ...]) -> bool:
    """Whether `x` can be seen as `shape` without a copy."""
    return reshape_strides(x._shape, x._strides, shape) is not None


def product(a: Tensor, b: Tensor) -> Tensor:
    """Return the product of (*, M, K) and (*, K, N), with the same batches; any size may be 0."""
    # The cotangent of a transposed matrix is made in the layout of the matrix itself, so that it is stored
    # without a copy.
    return _bmm(a, b, *[t._strides[-2] == 1 != t._strides[-1] for t in (a, b)])


def _cotangent_of_left(
    g: Tensor, _out: Tensor, _a: Tensor, b: Tensor, turned: bool, _turned: bool
) -> Tensor:
    b, g = conjugate(b), cast_to(g, b.dtype)
    return product(b, g.mT).mT if turned else product(g, b.mT)


def _cotangent_of_right(
    g: Tensor, _out: Tensor, a: Tensor, _b: Tensor, _turned: bool, turned: bool
) -> Tensor:
    a, g = conjugate(a), cast_to(g, a.dtype)
    return product(g.mT, a).mT if turned else product(a.mT, g)


@composite(
    family="composite",
    name="_bmm",
    function_in=(),
    complex_rule=True,
    vjp=(_cotangent_of_left, _cotangent_of_right),
)
def _bmm(a: Tensor, b: Tensor, turned_a: bool, turned_b: bool) -> Tensor:
    """Return `product(a, b)`. `turned_a`, `turned_b`: how the cotangents will lie."""
    *batch, m, k = a._shape
    n, count = b._shape[-1], numel(tuple(batch))
    shape = (*batch, m, n)
    if not (count and m and n and k):
        return fill(shape, 0, a.dtype, a.device)
    if len(batch) == 1:
        return matmul3(a, b)
    return _as_new(matmul3(a.reshape((count, m, k)), b.reshape((count, k, n))), shape)


def _as_new(out: Tensor, shape: Shape) -> Tensor:
    """Return a result that nobody has seen yet with another shape: no view."""
    if out._whole:
        out._shape, out._strides = shape, contiguous_strides(shape)
        return out
    return as_view(out, shape, contiguous_strides(shape), 0).detach()


def rows_times(a: Tensor, b: Tensor, transposed: bool = False) -> Tensor:
    """Return a @ b, or a @ b.T if `transposed`, for any rows a (*, K) and a matrix b.

    The leading dimensions of a are one long column of rows. All of it is one gradient function.
    """
    rows, columns = b._strides
    # The cotangent of a matrix is made in the layout of the matrix, so that it is stored without a copy.
    return _mm(a, b, transposed, transposed or (rows == 1 and columns != 1))


def _cotangent_of_matrix(
    g: Tensor, _out: Tensor | None, a: Tensor, _b: Tensor | None, transposed: bool, turned: bool
) -> Tensor:
    k, n = a._shape[-1], g._shape[-1]
    m = numel(g._shape[:-1])
    x, g = conjugate(a).reshape((m, k)), g.reshape((m, n))
    found = rows_times(g.t(), x) if turned else rows_times(x.t(), g)
    return found.t() if turned and not transposed else found


@composite(
    family="composite",
    name="_mm",
    function_in=(),
    complex_rule=True,
    vjp=(
        lambda g, _out, _a, b, transposed, _turned: rows_times(g, conjugate(b), not transposed),
        _cotangent_of_matrix,
    ),
)
def _mm(a: Tensor, b: Tensor, transposed: bool, turned: bool) -> Tensor:
    """Return the product of rows and a matrix. `turned`: how the cotangent of the matrix will lie."""
    lead, k = a._shape[:-1], a._shape[-1]
    m, n = numel(lead), b._shape[0 if transposed else 1]
    if not (m and k and n):
        right = (b.transpose(0, 1) if transposed else b).unsqueeze(0)
        return product(a.reshape((1, m, k)), right).reshape((*lead, n))
    strides = reshape_strides(a._shape, a._strides, (m, k))
    if strides is None:
        a, strides = a.contiguous(), (k, 1)
    rows, columns = b._strides
    across = (0, columns, rows) if transposed else (0, rows, columns)
    out = matmul3(
        as_view(a, (1, m, k), (0, *strides), a._offset),
        as_view(b, (1, k, n), across, b._offset),
    )
    return _as_new(out, (*lead, n))


def _mismatch(op: str, a: Tensor, b: Tensor) -> ShapeError:
    """Return the error for operands whose inner sizes differ."""
    x, y = tuple(a.shape), tuple(b.shape)
    count = numel(x[:-1])
    if len(x) == 1 == len(y):
        said = (
            f"inconsistent tensor size, expected tensor {list(x)} and src {list(y)} to have the same number of "
            f"elements, but got {x[0]} and {y[0]} elements respectively"
        )
    elif len(y) == 1:
        said = f"size mismatch, got input ({count}), mat ({count}x{x[-1]}), vec ({y[0]})"
    else:
        said = f"mat1 and mat2 shapes cannot be multiplied ({count}x{x[-1]} and {y[-2]}x{y[-1]})"
    text = (
        f"{said}: {op} of {x} and {y}, dim -1 of the first is {x[-1]}, "
        f"dim {-2 if len(y) > 1 else -1} of the second is {y[-2] if len(y) > 1 else y[0]}."
    )
    if len(y) > 1 and y[-1] == x[-1]:
        text += " Did you mean b.transpose(-2, -1)?"
    elif len(x) > 1 and len(y) > 1 and x[-2] == y[-2]:
        text += " Did you mean a.transpose(-2, -1)?"
    else:
        text += f" Give both {x[-1]} elements there."
    return ShapeError(text)


@composite(
    splits=equation("mk,kn->mn"),
    autocast=LOWER,
    gradient_name="MmBackward0",
    direct=("mm",),
    aten=("mm",),
)
def mm(input: Tensor, mat2: Tensor) -> Tensor:
    """Return the matrix product of (M, K) and (K, N)."""
    check_tensor("mm", "mat2", 2, mat2)
    if input.ndim != 2 or mat2.ndim != 2:
        name = "self" if input.ndim != 2 else "mat2"
        raise ShapeError(
            f"mm: {name} must be a matrix, but the shapes are {tuple(input.shape)} and "
            f"{tuple(mat2.shape)}. Use matmul for other numbers of dimensions."
        )
    check_types("mm", input, mat2)
    if input.shape[1] != mat2.shape[0]:
        raise _mismatch("mm", input, mat2)
    return rows_times(input, mat2)


@composite(
    splits=equation("bmk,bkn->bmn"),
    autocast=LOWER,
    gradient_name="BmmBackward0",
    direct=("bmm",),
    aten=("bmm",),
)
def bmm(input: Tensor, mat2: Tensor) -> Tensor:
    """Return the products of (B, M, K) and (B, K, N), one for each of the B pairs."""
    check_tensor("bmm", "mat2", 2, mat2)
    for i, x in enumerate((input, mat2)):
        if x.ndim != 3:
            raise ShapeError(
                f"batch{i + 1} must be a 3D tensor: bmm got shape {tuple(x.shape)}. Use matmul for other numbers of "
                "dimensions."
            )
    check_types("bmm", input, mat2)
    if input.shape[0] != mat2.shape[0] or input.shape[2] != mat2.shape[1]:
        raise ShapeError(
            "Expected size for first two dimensions of batch2 tensor to be: "
            f"[{input.shape[0]}, {input.shape[2]}] but got: [{mat2.shape[0]}, {mat2.shape[1]}]. "
            f"The shapes of bmm are {tuple(input.shape)} and {tuple(mat2.shape)}; use matmul to broadcast "
            "batches, mat2.transpose(-2, -1) to swap the last two."
        )
    return product(input, mat2)


@composite(
    splits=equation("mk,k->m"),
    inplace=False,
    autocast=Autocast(gpu="lower"),
    gradient_name="MvBackward0",
    direct=("mv",),
    aten=("mv",),
)
def mv(input: Tensor, vec: Tensor) -> Tensor:
    """Return the product of the matrix (M, K) and the vector (K)."""
    check_tensor("mv", "vec", 2, vec)
    if input.ndim != 2 or vec.ndim != 1:
        raise ShapeError(
            f"mv: vector + matrix @ vector expected, got {input.ndim}, {vec.ndim}: the shapes are "
            f"{tuple(input.shape)} and {tuple(vec.shape)}. Use matmul for other shapes."
        )
    check_types("mv", input, vec)
    if input.shape[1] != vec.shape[0]:
        raise ShapeError(
            f"size mismatch, got input ({input.shape[0]}), mat "
            f"({input.shape[0]}x{input.shape[1]}), vec ({vec.shape[0]}): mv needs a vector of "
            f"{input.shape[1]} elements."
        )
    return product(input.unsqueeze(0), vec.reshape(1, vec.shape[0], 1)).reshape(input.shape[0])


@composite(
    splits=equation("k,k->"),
    autocast=Autocast(gpu="promote"),
    gradient_name="DotBackward0",
    aten=("dot",),
)
def dot(input: Tensor, tensor: Tensor) -> Tensor:
    """Return the sum of the products of two vectors."""
    check_tensor("dot", "tensor", 2, tensor)
    if input.ndim != 1 or tensor.ndim != 1:
        raise ShapeError(
            f"dot: 1D tensors expected, but got {input.ndim}D and {tensor.ndim}D tensors. Use "
            "matmul for matrices, (a * b).sum() for any shape."
        )
    if input.dtype is not tensor.dtype:
        raise DTypeError(
            f"dot : expected both vectors to have same dtype, but found {input.dtype} and "
            f"{tensor.dtype}. Convert one of them, as in tensor.to({input.dtype})."
        )
    check_types("dot", input, tensor)
    count = input.shape[0]
    if count != tensor.shape[0]:
        raise ShapeError(
            f"dot: inconsistent tensor size, expected tensor [{count}] and src [{tensor.shape[0]}] "
            f"to have the same number of elements, but got {count} and {tensor.shape[0]} elements "
            "respectively."
        )
    if input.dtype.itemsize < 4 and input.dtype.is_floating_point:
        # The terms of a 16-bit sum are kept in 32 bits by the product.
        return product(input.reshape(1, 1, count), tensor.reshape(1, count, 1)).reshape(())
    return (input * tensor).sum(dtype=input.dtype)


@composite(
    splits=equation("k,k->"),
    autocast=Autocast(gpu="promote"),
    gradient_name="VdotBackward0",
    aten=("vdot",),
)
def vdot(input: Tensor, other: Tensor) -> Tensor:
    """Return the sum of the products of two vectors (the first conjugated, if it is complex)."""
    return dot(conjugate(input), other)


def _out_of_inner(input: Tensor, other: Tensor) -> OutRule:
    return "exact" if input.ndim and other.ndim else "cast"


@composite(own_view=True, out=_out_of_inner)
def inner(input: Tensor, other: Tensor) -> Tensor:
    """Return the sums of products over the last dimensions: (*A, K) and (*B, K) give (*A, *B)."""
    check_tensor("inner", "other", 2, other)
    if not input.ndim or not other.ndim:
        return input * other
    if input.shape[-1] != other.shape[-1]:
        raise ShapeError(
            f"inner() the last dimension must match on both input tensors but got shapes "
            f"{list(input.shape)} and {list(other.shape)}"
        )
    return tensordot(input, other, ([-1], [-1]))


@composite(splits=equation("m,n->mn"), aliases=("ger",), out="cast")
def outer(input: Tensor, vec2: Tensor) -> Tensor:
    """Return the products of every element of one vector with every element of another."""
    check_tensor("outer", "vec2", 2, vec2)
    for name, x in (("self", input), ("vec2", vec2)):
        if x.ndim != 1:
            raise ShapeError(
                f"outer: Expected 1-D argument {name}, but got {x.ndim}-D. Flatten it first, as in "
                "x.flatten()."
            )
    return input.unsqueeze(1) * vec2


def _matmul_name(input: Tensor, other: Tensor, **_: object) -> str:
    match (input.ndim, other.ndim):
        case (1, 1):
            return "DotBackward0"
        case (2, 1):
            return "MvBackward0"
        case (1, 2):
            return "SqueezeBackward4"
        case (2, 2):
            return "MmBackward0"
        case _:
            return "UnsafeViewBackward0"


@composite(
    splits=of_matmul,
    function_in=("torch", "Tensor", "linalg"),
    autocast=LOWER,
    gradient_name=_matmul_name,
    operator="matmul",
    asks=("__matmul__",),
)
def matmul(input: Tensor, other: Tensor) -> Tensor:
    """Return the matrix product; leading dimensions are batches and broadcast.

    A 1-d first operand counts as a row, a 1-d second one as a column; that dimension is then dropped. Raises ShapeError
    when the inner sizes differ.
    """
    check_tensor("matmul", "other", 2, other)
    shape_a, shape_b = input._shape, other._shape
    rank_a, rank_b = len(shape_a), len(shape_b)
    if not rank_a or not rank_b:
        raise ShapeError(
            f"matmul: both arguments to matmul need to be at least 1D, but they are {rank_a}D and "
            f"{rank_b}D. Use a * b to multiply by a number."
        )
    check_types("matmul", input, other)
    if shape_a[-1] != shape_b[-2 if rank_b > 1 else 0]:
        raise _mismatch("matmul", input, other)
    if rank_b == 2 and rank_a > 1 and viewable(input, (numel(shape_a[:-1]), shape_a[-1])):
        return rows_times(input, other)
    if rank_a == 1 and rank_b == 1:
        return dot(input, other)
    a = input if rank_a > 1 else input.unsqueeze(0)
    b = other if rank_b > 1 else other.unsqueeze(1)
    out = batched(a, b)
    if rank_a == 1:
        out = out.squeeze(-2)
    return out.squeeze(-1) if rank_b == 1 else out


def batched(a: Tensor, b: Tensor) -> Tensor:
    """Return the product of (*A, M, K) and (*B, K, N) with A and B broadcast, without writing out what is broadcast."""
    batch_a, batch_b = a._shape[:-2], b._shape[:-2]
    if batch_a == batch_b:
        return product(a, b)
    m, k, n = a.shape[-2], a.shape[-1], b.shape[-1]
    try:
        batch = broadcast_shapes(batch_a, batch_b)
    except ShapeError as error:
        raise ShapeError(
            f"matmul: the batches of {tuple(a.shape)} and {tuple(b.shape)} do not fit: {error}. "
            "Batch sizes must be equal or 1."
        ) from None
    rank = len(batch)
    batch_a = (1,) * (rank - len(batch_a)) + batch_a
    batch_b = (1,) * (rank - len(batch_b)) + batch_b
    count = numel(batch)
    # Batch dims that only one operand has: they can join its rows (or columns).
    only_a = [d for d in range(rank) if batch_b[d] == 1 != batch_a[d]]
    only_b = [d for d in range(rank) if batch_a[d] == 1 != batch_b[d]]
    shared = [d for d in range(rank) if d not in only_a and d not in only_b]
    if not only_b and only_a == list(range(rank - len(only_a), rank)):
        # One taller matrix for each shared batch: no copy, and more work for each element of b.
        outer_count = numel(tuple(batch[d] for d in shared))
        rows = numel(tuple(batch[d] for d in only_a)) * m
        tall, wide = (outer_count, rows, k), (outer_count, k, n)
        if viewable(a, tall) and viewable(b, wide):
            return product(a.reshape(tall), b.reshape(wide)).reshape((*batch, m, n))
    full_a = a.expand((*batch, m, k)) if tuple(a.shape) != (*batch, m, k) else a
    full_b = b.expand((*batch, k, n)) if tuple(b.shape) != (*batch, k, n) else b
    if not only_a and not only_b:
        out = product(full_a.reshape((count, m, k)), full_b.reshape((count, k, n)))
        return out.reshape((*batch, m, n))
    if viewable(full_a, (count, m, k)) and viewable(full_b, (count, k, n)):
        out = product(full_a.reshape((count, m, k)), full_b.reshape((count, k, n)))
        return out.reshape((*batch, m, n))
    # Copy what is needed of the operands themselves, never of their expansions.
    outer_count = numel(tuple(batch[d] for d in shared))
    a = a.reshape((*batch_a, m, k)).permute((*shared, *only_a, *only_b, rank, rank + 1))
    b = b.reshape((*batch_b, k, n)).permute((*shared, *only_a, rank, *only_b, rank + 1))
    sizes_a = tuple(batch[d] for d in only_a)
    sizes_b = tuple(batch[d] for d in only_b)
    out = product(
        a.reshape((outer_count, numel(sizes_a) * m, k)),
        b.reshape((outer_count, k, numel(sizes_b) * n)),
    )
    out = out.reshape((*(batch[d] for d in shared), *sizes_a, m, *sizes_b, n))
    # Where each batch dim, then M and N, now lies.
    order = [0] * (rank + 2)
    for i, d in enumerate((*shared, *only_a, rank, *only_b, rank + 1)):
        order[d] = i
    return out.permute(order).contiguous()


def _cotangent_of_input(
    g: Tensor, _out: Tensor, _input: object, weight: Tensor, _bias: object
) -> Tensor:
    if weight.ndim == 1:
        return g.unsqueeze(-1) * conjugate(weight)
    return rows_times(g, conjugate(weight))


def _cotangent_of_weight(
    g: Tensor, _out: Tensor, input: Tensor, _weight: object, _bias: object
) -> Tensor:
    if g.ndim < input.ndim:
        return g.unsqueeze(-1) * conjugate(input)
    return _cotangent_of_matrix(g, None, input, None, True, True)


def _linear_name(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> str:
    if input.ndim == 2:
        return "MmBackward0" if bias is None else "AddmmBackward0"
    return "UnsafeViewBackward0" if bias is None or input.ndim == 1 else "ViewBackward0"


def _linear_leads(input: Tensor, _weight: Tensor, bias: Tensor | None) -> tuple[int, ...] | None:
    """PyTorch adds the bias last. Rows that it sees as a matrix for that are behind a view."""
    if bias is None:
        return None
    return (2, 0, 1) if input.ndim == 2 or not input.is_contiguous() else (2, 1, 0)


@composite(
    splits=equation("...k,nk,+n->...n"),
    function_in=("nn.functional",),
    aten=("linear",),
    direct=("linear",),
    autocast=LOWER,
    takes_out=True,
    gradient_name=_linear_name,
    complex_rule=True,
    leads=_linear_leads,
    vjp=(_cotangent_of_input, _cotangent_of_weight, lambda g, _out, _input, _weight, _bias: g),
    gain=1.0,
)
def linear(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return input @ weight.T + bias for input (*, in) and weight (out, in) or (in)."""
    check_tensor("linear", "weight", 2, weight)
    inputs, weights = input._shape, weight._shape
    if not inputs or not weights:
        raise ShapeError(
            f"both arguments to linear need to be at least 1D, but they are {len(inputs)}D and {len(weights)}D"
        )
    if len(weights) > 2:
        raise ShapeError(
            f"linear: weight must be (out, in) or (in), got shape {weights}. Flatten it, or use matmul."
        )
    if inputs[-1] != weights[-1]:
        raise ShapeError(
            f"mat1 and mat2 shapes cannot be multiplied ({numel(inputs[:-1])}x{inputs[-1] if inputs else 1} and "
            f"{weights[-1]}x{weights[0]}): linear of input {inputs} and weight {weights}, the input's last dim must be "
            f"{weights[-1]}, the weight's in_features."
        )
    if bias is not None:
        if bias.dtype is not input.dtype and len(inputs) > 2 and not input.is_contiguous():
            # PyTorch adds it to the product of such an input, in the product's type.
            return to_type(linear.function(input, weight) + bias, input.dtype)
        for names, x, y in (("mat1 and mat2", input, weight), ("self and mat2", bias, weight)):
            if x.dtype is not y.dtype:
                raise DTypeError(
                    f"{names} must have the same dtype, but got {x.dtype.legacy} and {y.dtype.legacy}. Convert one of "
                    f"the operands of linear, as in input.to({weight.dtype})."
                )
        outputs = weights[:-1]
        result = (*inputs[:-1], *outputs)
        if not expands_to(bias._shape, result):
            raise ShapeError(
                f"linear: The expanded size of the tensor {list(result)} must match the existing "
                f"size {list(bias.shape)} of the bias: it needs one element for each of the "
                f"weight's {outputs} outputs, or the shape of the result."
            )
    check_types("linear", input, weight)
    if bias is not None and is_short(input.dtype):
        return to_type(unrounded(linear.function, input, weight) + bias, input.dtype)
    if len(weights) == 1:
        out = matmul(input, weight)
    elif viewable(input, (numel(inputs[:-1]), inputs[-1])):
        out = rows_times(input, weight, True)
    else:
        out = matmul(input, weight.t())
    return out if bias is None else out + bias


@composite(
    function_in=("torch", "nn.functional"), autocast=Autocast("whole", "promote"), own_view=True
)
@computed_wide
def bilinear(input1: Tensor, input2: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return input1 @ weight[k] @ input2 (+ bias[k]) for each k: (*, A), (*, B), (K, A, B) give (*, K)."""
    if tuple(input1.shape[:-1]) != tuple(input2.shape[:-1]):
        raise ShapeError(
            "bilinear(): input batch dimensions do not match: got "
            f"{tuple(input1.shape)} and {tuple(input2.shape)}"
        )
    for name, x, d in (("input1", input1, 1), ("input2", input2, 2)):
        if x.shape[-1] != weight.shape[d]:
            raise ShapeError(
                f"bilinear(): {name} size does not match weight size: got {x.shape[-1]} but "
                f"expected {weight.shape[d]} (dim {d} of the weight {tuple(weight.shape)})"
            )
    if bias is not None and tuple(bias.shape) != (weight.shape[0],):
        raise ShapeError(
            f"bilinear(): bias size does not match weight size: got {tuple(bias.shape)} but "
            f"expected "
            f"({weight.shape[0]},)"
        )
    check_types("bilinear", input1, weight)
    check_types("bilinear", input2, weight)
    features, size1, size2 = weight.shape
    # (*, A) @ (A, K B) -> (*, K, B), then a dot product with (*, 1, B) over B. Recorded so that leaves get their
    # gradients in PyTorch's order: the weight, input2, input1.
    rows, columns = input1.view(input1.shape), input2.unsqueeze(-2)
    half = matmul(rows, weight.permute(1, 0, 2).reshape(size1, features * size2))
    half = half.reshape((*input1.shape[:-1], features, size2))
    out = (half * columns).sum(-1, dtype=weight.dtype)
    return out if bias is None else out + bias


# ---- products added to something -----------------------------------------------------------------


def _combine(
    op: str,
    input: Tensor,
    multiply: Callable[..., Any],
    x: Tensor,
    y: Tensor,
    beta: Any,
    alpha: Any,
) -> Tensor:
    """Return beta * input + alpha * multiply(x, y); with beta 0, what is in `input` (even NaN) does not
    count.
    """
    dtype, result = input.dtype, unrounded(multiply, x, y)
    if dtype is not x.dtype:
        raise DTypeError(
            f"{op}: self and mat2 must have the same dtype, but got {dtype} and "
            f"{x.dtype}. Convert one of them, as in input.to({x.dtype})."
        )
    try:
        fits = broadcast_shapes(tuple(input.shape), tuple(result.shape)) == tuple(result.shape)
    except ShapeError:
        fits = False
    if not fits:
        raise ShapeError(
            f"{op}: The expanded size of the tensor {tuple(result.shape)} must match the existing "
            f"size of the input {tuple(input.shape)}: the input must broadcast to the product."
        )
    if input.dtype.kind not in ("float", "complex"):
        # Factors of integers are integers.
        alpha, beta = int(alpha), int(beta)
    if alpha != 1:
        result = result * alpha
    if beta == 0:
        return to_type(result, dtype)
    input = widened(input)
    return to_type((input if beta == 1 else input * beta) + result, dtype)


def _factors_first(left: str, right: str) -> tuple[str, ...]:
    """Return the old overloads of a product that is added to something: a method's factors stand behind its tensor."""
    return tuple(
        f"{start}, {factor}Tensor {left}, Tensor {right}"
        for start in ("Number beta, Tensor input", "Tensor input, Number beta")
        for factor in ("Number alpha, ", "")
    )


@composite(
    splits=equation("+,mk,kn->mn"),
    overloads=_factors_first("mat1", "mat2"),
    inplace=True,
    autocast=LOWER,
    gradient_name="AddmmBackward0",
    vjp=Anew(unread=("input",), factors=("mat1", "mat2")),
    direct=("addmm",),
    aten=("addmm",),
    overlap="whole",
)
def addmm(
    input: Tensor, mat1: Tensor, mat2: Tensor, *, beta: Number = 1, alpha: Number = 1
) -> Tensor:
    """Return beta * input + alpha * (mat1 @ mat2) for matrices."""
    return _combine("addmm", input, mm, mat1, mat2, beta, alpha)


@composite(
    splits=equation("+,mk,k->m"),
    overloads=_factors_first("mat", "vec"),
    inplace=True,
    autocast=Autocast(gpu="lower"),
    inplace_functions=("torch.addmv_",),
    gradient_name="AddmvBackward0",
    vjp=Anew(unread=("input",), factors=("mat", "vec")),
    aten=("addmv",),
    overlap="whole",
)
def addmv(
    input: Tensor, mat: Tensor, vec: Tensor, *, beta: Number = 1, alpha: Number = 1
) -> Tensor:
    """Return beta * input + alpha * (mat @ vec)."""
    return _combine("addmv", input, mv, mat, vec, beta, alpha)


@composite(
    splits=equation("+,bmk,bkn->bmn"),
    overloads=_factors_first("batch1", "batch2"),
    inplace=True,
    autocast=LOWER,
    gradient_name="BaddbmmBackward0",
    vjp=Anew(unread=("input",), factors=("batch1", "batch2")),
    aten=("baddbmm",),
    overlap="whole",
)
def baddbmm(
    input: Tensor, batch1: Tensor, batch2: Tensor, *, beta: Number = 1, alpha: Number = 1
) -> Tensor:
    """Return beta * input + alpha * (batch1 @ batch2) for batches of matrices."""
    kinds = [x.dtype for x in (input, batch1, batch2)]
    if not kinds[0] is kinds[1] is kinds[2]:
        shown = "input {}, batch1: {}, batch2: {}".format(*(kind.c_name for kind in kinds))
        raise DTypeError(f"Input dtypes must be the same, got: {shown}")
    return _combine("baddbmm", input, bmm, batch1, batch2, beta, alpha)


@composite(
    overloads=_factors_first("batch1", "batch2"),
    inplace=True,
    autocast=LOWER,
    gradient_name="AddbmmBackward0",
    vjp=Anew(unread=("input",), factors=("batch1", "batch2")),
    aten=("addbmm",),
    overlap="whole",
)
def addbmm(
    input: Tensor, batch1: Tensor, batch2: Tensor, *, beta: Number = 1, alpha: Number = 1
) -> Tensor:
    """Return beta * input + alpha * (the sum over the batch of batch1 @ batch2)."""
    for i, x in enumerate((batch1, batch2)):
        if x.ndim != 3:
            raise ShapeError(f"addbmm: batch{i + 1} must be a 3D tensor, got {tuple(x.shape)}")
    if batch1.shape[0] != batch2.shape[0] or batch1.shape[2] != batch2.shape[1]:
        raise ShapeError(
            "addbmm: Incompatible matrix sizes for bmm "
            f"({batch1.shape[1]}x{batch1.shape[2]} and {batch2.shape[1]}x{batch2.shape[2]}), "
            f"batches of {batch1.shape[0]} and {batch2.shape[0]}: inner sizes and batches must be "
            f"equal."
        )

    def multiply(x: Tensor, y: Tensor) -> Tensor:
        """Return the sum of the products."""
        return tensordot(x, y, ([0, 2], [0, 1]))

    return _combine("addbmm", input, multiply, batch1, batch2, beta, alpha)


@composite(
    overloads=_factors_first("vec1", "vec2"),
    inplace=True,
    autocast=Autocast(gpu="lower"),
    out="cast",
    gradient_name="AddrBackward0",
    direct=("addr", "addr.out"),
    vjp=Anew(unread=("input",), factors=("vec1", "vec2")),
    aten=("addr",),
    overlap="whole",
)
def addr(
    input: Tensor, vec1: Tensor, vec2: Tensor, *, beta: Number = 1, alpha: Number = 1
) -> Tensor:
    """Return beta * input + alpha * (vec1 outer vec2)."""
    dtype = promote_types(input.dtype, promote_types(vec1.dtype, vec2.dtype))
    for name, factor in (("beta", beta), ("alpha", alpha)):
        if isinstance(factor, bool) and dtype is not bool_:
            raise RuntimeError(f"Boolean {name} only supported for Boolean results.")
        if isinstance(factor, float) and dtype.kind not in ("float", "complex"):
            raise DTypeError(
                f"addr: For integral input tensors, argument {name} must not be a floating point "
                f"number, got {factor}"
            )
    if dtype.kind == "bool":
        beta, alpha = bool(beta), bool(alpha)

    def multiply(x: Tensor, y: Tensor) -> Tensor:
        """Return the outer product."""
        return outer(widened(x), widened(y))

    return _combine("addr", input.to(dtype), multiply, vec1.to(dtype), vec2.to(dtype), beta, alpha)


# ---- many dimensions -----------------------------------------------------------------------------


@composite(function_in=("torch",), autocast=Autocast(gpu="promote"), own_view=True)
def tensordot(a: Tensor, b: Tensor, dims: Any = 2) -> Tensor:
    """Return the sums of products over `dims`: the last n of a with the first n of b, or two lists of dims."""
    if isinstance(dims, int):
        if dims < 0:
            raise ShapeError(f"tensordot expects dims >= 0, but got dims={dims}")
        if dims > min(a.ndim, b.ndim):
            raise ShapeError(
                "tensordot expects dims < ndim_a or ndim_b, but got "
                f"dims={dims} for shapes {tuple(a.shape)} and {tuple(b.shape)}"
            )
        dims_a = list(range(a.ndim - dims, a.ndim))
        dims_b = list(range(dims))
    else:
        first, second = dims.tolist() if hasattr(dims, "tolist") else dims
        dims_a = [first] if isinstance(first, int) else list(first)
        dims_b = [second] if isinstance(second, int) else list(second)
    if len(dims_a) != len(dims_b):
        raise ShapeError(
            f"tensordot: both dimension lists should have same length, got {dims_a} and {dims_b}"
        )
    check_types("tensordot", a, b)
    dims_a = [normalize_dim(d, a.ndim) for d in dims_a]
    dims_b = [normalize_dim(d, b.ndim) for d in dims_b]
    if len(set(dims_a)) != len(dims_a) or len(set(dims_b)) != len(dims_b):
        raise ShapeError(f"tensordot: a dim appears twice in the list of dims {dims_a} or {dims_b}")
    for da, db in zip(dims_a, dims_b, strict=True):
        size_a, size_b = a.shape[da], b.shape[db]
        if size_a == size_b:
            continue
        # A dimension of size 1 broadcasts: the other's elements are summed.
        if size_b == 1:
            a = a.sum(da, keepdim=True, dtype=a.dtype)
        elif size_a == 1:
            b = b.sum(db, keepdim=True, dtype=b.dtype)
        else:
            raise ShapeError(
                f"tensordot: contracted dimensions need to match, but first has size {size_a} in dim {da} and "
                f"second has size {size_b} in dim {db}: the shapes are {tuple(a.shape)} and "
                f"{tuple(b.shape)}"
            )
    free_a = [d for d in range(a.ndim) if d not in dims_a]
    free_b = [d for d in range(b.ndim) if d not in dims_b]
    k = numel(tuple(a.shape[d] for d in dims_a))
    sizes_a = tuple(a.shape[d] for d in free_a)
    sizes_b = tuple(b.shape[d] for d in free_b)
    left = a.permute((*free_a, *dims_a)).reshape((numel(sizes_a), k))
    right = b.permute((*dims_b, *free_b)).reshape((k, numel(sizes_b)))
    return mm(left, right).reshape((*sizes_a, *sizes_b))
