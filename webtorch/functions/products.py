"""What is written with products of matrices: Kronecker products, chains, cross products, powers, distances."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from webtorch.errors import DTypeError, ShapeError
from webtorch.functions.contract import check_types, matmul, mm
from webtorch.functions.joining import join
from webtorch.functions.linalg import inv
from webtorch.functions.ranges import eye
from webtorch.functions.slicing import narrow
from webtorch.ir.view import (
    broadcast_shapes,
    normalize_dim,
)
from webtorch.ops.comparison import _where
from webtorch.ops.precision import computed_wide
from webtorch.ops.primitive import conjugate
from webtorch.ops.purity import warn_once
from webtorch.ops.record import (
    BOOL,
    FP32,
    LOWER,
    NOT_FLOATS,
    Autocast,
    Example,
    Family,
    composite,
)
from webtorch.ops.splits import along
from webtorch.tensors.tensor import Tensor

FAMILY: Family = "contract"


@composite(out="cast", gradient_name="UnsafeViewBackward0")
def kron(input: Tensor, other: Tensor) -> Tensor:
    """Return the Kronecker product: every element of input times the whole of other, as blocks."""
    rank = max(input.ndim, other.ndim)
    sizes_a = (1,) * (rank - input.ndim) + tuple(input.shape)
    sizes_b = (1,) * (rank - other.ndim) + tuple(other.shape)
    # Interleaved: (a0, 1, a1, 1, ..) * (1, b0, 1, b1, ..).
    a = input.reshape(tuple(s for size in sizes_a for s in (size, 1)))
    b = other.reshape(tuple(s for size in sizes_b for s in (1, size)))
    return (a * b).reshape(tuple(x * y for x, y in zip(sizes_a, sizes_b, strict=True)))


@composite(function_in=("linalg",), autocast=Autocast(gpu="lower"))
def multi_dot(tensors: Sequence[Tensor]) -> Tensor:
    """Return the product of two or more matrices, in the order that costs least; the ends may be vectors."""
    given = list(tensors)
    if len(given) < 2:
        raise ShapeError(f"multi_dot(): expected at least 2 tensors but got {len(given)}")
    row, column = given[0].ndim == 1, given[-1].ndim == 1
    if row:
        given[0] = given[0].unsqueeze(0)
    if column:
        given[-1] = given[-1].unsqueeze(1)
    for i, x in enumerate(given):
        if x.ndim != 2:
            ends = {
                0: "the first tensor must be 1D or 2D",
                len(given) - 1: "the last tensor must be 1D or 2D",
            }
            what = ends.get(i, f"tensor {i} must be 2D")
            raise ShapeError(f"multi_dot(): {what} but got {x.ndim}D")
        if x.dtype is not given[0].dtype:
            raise DTypeError(
                f"multi_dot(): all tensors must have be the same dtype but tensor 0 is "
                f"{given[0].dtype} and tensor {i} is {x.dtype}"
            )
        if i and given[i - 1].shape[1] != x.shape[0]:
            raise ShapeError(
                f"multi_dot(): tensors {i - 1} and {i} with shapes {list(given[i - 1].shape)} and "
                f"{list(x.shape)} cannot be multiplied"
            )
    result = _chain(given)
    result = result.squeeze(0) if row else result
    result = result.squeeze(-1) if column else result
    return result


def _chain(given: list[Tensor]) -> Tensor:
    """Return the product of the matrices, split where it costs least (Cormen et al., 15.2)."""
    count = len(given)
    sizes = [given[0].shape[0], *(x.shape[1] for x in given)]
    cost = [[0] * count for _ in range(count)]
    split = [[0] * count for _ in range(count)]
    for length in range(1, count):
        for i in range(count - length):
            j = i + length
            cost[i][j], split[i][j] = min(
                (cost[i][s] + cost[s + 1][j] + sizes[i] * sizes[s + 1] * sizes[j + 1], s)
                for s in range(i, j)
            )

    def multiply(i: int, j: int) -> Tensor:
        """Return the product of matrices i to j."""
        if i == j:
            return given[i]
        return mm(multiply(i, split[i][j]), multiply(split[i][j] + 1, j))

    return multiply(0, count - 1)


@composite(
    function_in=("torch",),
    autocast=Autocast(gpu="lower"),
    example=Example(((4, 5), (5, 6), (6, 3))),
)
def chain_matmul(*matrices: Any) -> Tensor:
    """Return the product of matrices, in the order that costs least."""
    warn_once(
        "torch.chain_matmul is deprecated and will be removed in a future PyTorch release. Use "
        "torch.linalg.multi_dot instead, which accepts a list of two or more tensors rather than multiple "
        "parameters."
    )
    given = (
        list(matrices[0])
        if len(matrices) == 1 and isinstance(matrices[0], (list, tuple))
        else list(matrices)
    )
    if not given:
        raise RuntimeError("chain_matmul(): Expected one or more matrices")
    for x in given:
        if x.ndim != 2:
            raise ShapeError(f"Tensor dimension is {x.ndim}, expected 2 instead.")
    return given[0] if len(given) == 1 else multi_dot(given)


@composite(
    splits=along("dim"),
    function_in=("linalg",),
    gradient_name="LinalgCrossBackward0",
    overlap="none",
)
def linalg_cross(input: Tensor, other: Tensor, *, dim: int = -1) -> Tensor:
    """Return the vector products along `dim`, which must have size 3."""
    if input.ndim != other.ndim:
        raise ShapeError(
            "linalg.cross: inputs must have the same number of dimensions, got "
            f"{tuple(input.shape)} and {tuple(other.shape)}."
        )
    at = normalize_dim(dim, input.ndim)
    if input.shape[at] != 3 or other.shape[at] != 3:
        raise ShapeError(
            f"linalg.cross: inputs dimension {dim} must have length 3. Got {input.shape[at]} and "
            f"{other.shape[at]}"
        )
    # c[i] = a[i + 1] b[i + 2] - a[i + 2] b[i + 1], counted modulo 3: windows of each twice in a row.
    a, b = join([input, input], at), join([other, other], at)
    first = narrow(a, at, 1, 3) * narrow(b, at, 2, 3)
    return first - narrow(a, at, 2, 3) * narrow(b, at, 1, 3)


@composite(autocast=Autocast(gpu="promote"), gradient_name="LinalgCrossBackward0", overlap="none")
def cross(input: Tensor, other: Tensor, dim: int | None = None) -> Tensor:
    """Return the vector products along `dim`; None stands for the first dimension of size 3."""
    if dim is None:
        warn_once(
            "Using torch.cross without specifying the dim arg is deprecated. Please either pass the dim "
            "explicitly or simply use torch.linalg.cross. The default value of dim will change to agree with "
            "that of linalg.cross in a future release."
        )
        shape = broadcast_shapes(tuple(input.shape), tuple(other.shape))
        dim = next((d for d, size in enumerate(shape) if size == 3), None)
        if dim is None:
            raise ShapeError(f"cross: no dimension of size 3 in input: the shape is {shape}")
        dim -= len(shape)
    return linalg_cross(input, other, dim=dim)


@composite(function_in=("linalg",), autocast=LOWER, refuses=NOT_FLOATS)
def vecdot(x: Tensor, y: Tensor, *, dim: int = -1) -> Tensor:
    """Return the sums of the products along `dim`; the other dimensions broadcast."""
    check_types("linalg.vecdot", x, y)
    if x.shape[dim] != y.shape[dim]:
        raise ShapeError(
            f"linalg.vecdot: Expected x and y to have the same size along dim {dim}, but got "
            f"{tuple(x.shape)} and {tuple(y.shape)}"
        )
    return (conjugate(x) * y).sum(dim, dtype=x.dtype)


@composite(
    autocast=Autocast("fp32", "whole"),
    refuses=BOOL,
    gradient_name="TraceBackward0",
    aten=("trace",),
)
def trace(input: Tensor) -> Tensor:
    """Return the sum of the diagonal of a matrix."""
    if input.ndim != 2:
        raise ShapeError(f"trace: expected a matrix, but got tensor with dim {input.ndim}")
    return input.diagonal().sum()


def _is_square_of_squares(n: int) -> bool:
    return n >= 4 and n.bit_count() == 1


@composite(
    function_in=("torch", "Tensor", "linalg"),
    # These are copies, in PyTorch also squares of squares; other powers are products.
    out=lambda _input, n: "cast" if n in (0, 1) or _is_square_of_squares(abs(n)) else "exact",
)
def matrix_power(input: Tensor, n: int) -> Tensor:
    """Return the n-th power of square matrices (*, N, N), of their inverses for n < 0."""
    shape = tuple(input.shape)
    if len(shape) < 2 or shape[-1] != shape[-2]:
        raise ShapeError(
            "linalg.matrix_power: A must be batches of square matrices, but they are "
            f"{' by '.join(map(str, shape[-2:]))} matrices"
        )
    if n < 0:
        return matrix_power(inv(input), -n)
    if n == 0:
        one = eye(shape[-1], dtype=input.dtype, device=input.device)
        return one.expand(shape).contiguous()
    result, square = None, input
    while True:
        if n & 1:
            result = square if result is None else matmul(result, square)
        n >>= 1
        if not n:
            assert result is not None
            return result.clone() if result is input else result
        square = matmul(square, square)


@composite(
    family="composite",
    name="_farthest",
    function_in=(),
    # Each of several that are equally far has the whole gradient.
    vjp=lambda g, out, x: (_where(x.abs() == out.unsqueeze(-1), x.sign() * g.unsqueeze(-1), 0.0),),
)
def _farthest(difference: Tensor) -> Tensor:
    return difference.abs().amax(-1)


@composite(function_in=("torch",), autocast=FP32, gradient_name="CdistBackward0")
@computed_wide
def cdist(
    x1: Tensor,
    x2: Tensor,
    p: float = 2.0,
    compute_mode: str = "use_mm_for_euclid_dist_if_necessary",
) -> Tensor:
    """Return the p-norm distances between the rows of (*, P, M) and (*, R, M): (*, P, R).

    Differences are always taken before they are squared, so that close rows lose no digits.
    """
    for name, x in (("x1", x1), ("x2", x2)):
        if not x.dtype.is_floating_point:
            raise DTypeError(f"cdist only supports floating-point dtypes, {name} got: {x.dtype}")
        if x.ndim < 2:
            raise ShapeError(f"cdist only supports at least 2D tensors, {name} got: {x.ndim}D")
    if x1.shape[-1] != x2.shape[-1]:
        raise ShapeError(
            "cdist: X1 and X2 must have the same number of columns. "
            f"X1: {x1.shape[-1]} X2: {x2.shape[-1]}"
        )
    if p < 0:
        raise ShapeError(f"cdist only supports non-negative p values, got {p}")
    difference = x1.unsqueeze(-2) - x2.unsqueeze(-3)
    if not x1.shape[-1]:
        return difference.sum(-1)
    if p == 0:
        # Numbers of elements, whose gradients are zeros.
        return (
            difference.masked_fill(difference != 0, 1.0).masked_fill(difference == 0, 0.0).sum(-1)
        )
    if p == 1:
        return difference.abs().sum(-1)
    if math.isinf(p):
        return _farthest(difference)
    if p == 2:
        total = (difference * difference).sum(-1)
    elif p > 1:
        total = (difference.abs() ** p).sum(-1)
    else:
        # As that of the root below: equal coordinates have no part in the gradient.
        equal = difference == 0
        powers = difference.masked_fill(equal, 1.0).abs() ** p
        total = powers.masked_fill(equal, 0.0).sum(-1)
    # The root's slope is infinite at 0, where PyTorch's gradient is 0: keep the root away from it.
    zero = total == 0
    root = (
        total.masked_fill(zero, 1.0) ** (1.0 / p) if p != 2 else total.masked_fill(zero, 1.0).sqrt()
    )
    return root.masked_fill(zero, 0.0)
