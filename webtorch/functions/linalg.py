"""Systems of equations, inverses, determinants and triangular factors.

The factorisations themselves are one opaque node each (`primitive.host`): LAPACK's on the CPU, kernels by the same
methods on WebGPU (lower/templates/matrices). What LAPACK has as one function and WebGPU has no kernel for is made of
these (factors.py). All else, and every derivative, is written with other operations, so second derivatives follow.
Numbers beside the matrices (pivots, info) come back as numbers of the matrices' type.

In a compiled function nothing can be read, so a singular matrix raises nothing there: its results are
NaN, as those of the `_ex` forms.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

from webtorch.errors import DTypeError, LinAlgError, ShapeError
from webtorch.functions import joining, movement, slicing
from webtorch.functions.check import demand
from webtorch.functions.pointwise import where
from webtorch.functions.ranges import eye
from webtorch.ir.dtype import DType, bool_, complex64, complex128, float32, float64, int32, int64
from webtorch.ir.view import broadcast_shapes, numel
from webtorch.ops.comparison import eq
from webtorch.ops.primitive import (
    cast_to,
    complex_of,
    fill,
    host,
    iota,
    pairs,
    real_part,
    reduce_dims,
    shown,
)
from webtorch.ops.purity import look, warn_once
from webtorch.ops.record import BOOL, Autocast, Example, composite, return_type
from webtorch.tensors.tensor import Tensor

LINALG: tuple[str, ...] = ("linalg",)
EVERYWHERE: tuple[str, ...] = ("torch", "Tensor", "linalg")
DOUBLE_OR_FLOAT: tuple[DType, ...] = (float32, float64, complex64, complex128)
# Which results of a function of complex matrices are real.
_REAL_RESULTS = {
    "solve": (1,), "inv": (1,), "lu_factor": (1, 2), "cholesky": (1,), "eigh": (0, 2), "eigvalsh": (0, 1),
    "svd": (1, 3), "svdvals": (0, 1), "lstsq": (1, 2), "eig": (2,), "eigvals": (1,), "ldl_factor": (1, 2),
    "orthogonal_columns": (1, 2),
}  # fmt: skip


@return_type("linalg_solve_ex")
class SolveEx(NamedTuple):
    """What linalg_solve_ex returns."""

    result: Tensor
    info: Tensor


@return_type("linalg_inv_ex")
class InvEx(NamedTuple):
    """What linalg_inv_ex returns."""

    inverse: Tensor
    info: Tensor


@return_type("linalg_slogdet")
class Slogdet(NamedTuple):
    """What linalg_slogdet returns."""

    sign: Tensor
    logabsdet: Tensor


@return_type("slogdet")
class OldSlogdet(NamedTuple):
    """What slogdet returns."""

    sign: Tensor
    logabsdet: Tensor


@return_type("linalg_lu_factor")
class LUFactor(NamedTuple):
    """What linalg_lu_factor returns."""

    LU: Tensor
    pivots: Tensor


@return_type("linalg_lu_factor_ex")
class LUFactorEx(NamedTuple):
    """What linalg_lu_factor_ex returns."""

    LU: Tensor
    pivots: Tensor
    info: Tensor


@return_type("linalg_lu")
class LU(NamedTuple):
    """What linalg_lu returns."""

    P: Tensor
    L: Tensor
    U: Tensor


@return_type("lu_unpack")
class LUUnpack(NamedTuple):
    """What lu_unpack returns."""

    P: Tensor
    L: Tensor
    U: Tensor


@return_type("triangular_solve")
class TriangularSolve(NamedTuple):
    """What triangular_solve returns."""

    solution: Tensor
    cloned_coefficient: Tensor


# -- checks -------------------------------------------------------------------------------------------


def check_float(name: str, x: Tensor, what: str = "") -> None:
    """Raise PyTorch's error unless `x` has a type that LAPACK has."""
    if not isinstance(x, Tensor):
        raise TypeError(
            f"{name}(): argument '{what or 'A'}' (position 1) must be Tensor, not {type(x).__name__}"
        )
    if not x.dtype.has_gradient:
        raise DTypeError(
            f"{name}: Expected a floating point or complex tensor as input. Got {x.dtype}. "
            "Convert it with .float()."
        )
    if x.dtype not in DOUBLE_OR_FLOAT:
        raise DTypeError(
            f"{name}: Low precision dtypes not supported. Got {x.dtype}. Convert it with .float()."
        )


def check_matrix(name: str, x: Tensor, what: str = "A", square: bool = False) -> None:
    """Raise PyTorch's error unless `x` is a batch of (square) matrices of floats."""
    check_float(name, x, what)
    if x.ndim < 2:
        raise ShapeError(
            f"{name}: The input tensor {what} must have at least 2 dimensions, but got {x.ndim}."
        )
    if square and x._shape[-1] != x._shape[-2]:
        raise ShapeError(
            f"{name}: {what} must be batches of square matrices, but they are {x._shape[-2]} by "
            f"{x._shape[-1]} matrices"
        )


def check_same_type(name: str, a: Tensor, b: Tensor) -> None:
    """Raise PyTorch's error unless both have one type."""
    if a.dtype is not b.dtype:
        raise DTypeError(
            f"{name}: Expected A and B to have the same dtype, but found A of type {a.dtype} and B of "
            f"type {b.dtype} instead"
        )


# What devices without LAPACK compute by other functions of whole arrays (factors.py).
COMPOSED: dict[str, Callable[..., tuple[Tensor, ...]]] = {}


def composed(function: Callable[..., tuple[Tensor, ...]]) -> Callable[..., tuple[Tensor, ...]]:
    """Declare what a function of whole arrays, of the same name, is made of where LAPACK is not."""
    COMPOSED[function.__name__] = function
    return function


def call(
    name: str,
    inputs: Sequence[Tensor],
    params: tuple[object, ...],
    shapes: Sequence[tuple[int, ...]],
) -> tuple[Tensor, ...]:
    """Run a function of whole arrays on stacks of matrices with the same batch dims; `shapes` are those of the
    results for one matrix. Where there are no elements the results are zeros.
    """
    batch = inputs[0]._shape[:-2]
    count = numel(batch)
    full = [(*batch, *s) for s in shapes]
    first = inputs[0]
    real = _REAL_RESULTS.get(name, ()) if first.dtype.is_complex else ()
    types = [first.dtype.to_real() if i in real else first.dtype for i in range(len(full))]
    if not all(x.numel() for x in inputs):
        return tuple(fill(s, 0, t, first.device) for s, t in zip(full, types, strict=True))
    made = None if first._in_host_memory or first.is_meta else COMPOSED.get(name)
    if made is not None:
        return made(*inputs, *params)
    flat = [x.contiguous().reshape((count, *x._shape[-2:])) for x in inputs]
    if not first.dtype.is_complex:
        found = host(name, flat, params, [(count, *s) for s in shapes])
        return tuple(r.reshape(s) for r, s in zip(found, full, strict=True))
    found = host(
        f"complex {name}", [pairs(x) for x in flat], params, [(count, *s, 2) for s in shapes]
    )
    parts = [complex_of(r).reshape(s) for r, s in zip(found, full, strict=True)]
    return tuple(real_part(r).contiguous() if i in real else r for i, r in enumerate(parts))


def check_info(name: str, info: Tensor, text: str, *results: Tensor) -> tuple[Tensor, ...]:
    """Return `results`, which are right where `info` is 0. Raises LinAlgError where it is not, RuntimeError
    where it is negative: what was given is not finite.

    Waits for the device. In a capture nothing is read: the next read of a result raises
    DeviceCheckError. On "meta" there is nothing to check.
    """
    if info.is_meta:
        return results
    if info._storage.runtime.capturing:
        holds = reduce_dims(cast_to(eq(info, 0), int32), "min", tuple(range(info.ndim)))
        message = f"{name}: {text.format('k')}"
        return tuple(demand(r, cast_to(holds, bool_), message) for r in results)
    if look.watching:
        # Who watches the call looks at it, then and at each call of the same kind.
        look.demands.append((info, partial(check_info, name, info, text)))
        return results
    # Of every example of a vmap.
    batched = bool(info.ndim or info._levels)
    for i, number in enumerate(shown(info).reshape(-1).tolist()):
        if number < 0:
            raise RuntimeError(f"torch.{name}: input tensor should not contain infs or NaNs.")
        if number:
            where_ = f"(Batch element {i}): " if batched else ""
            raise LinAlgError(f"{name}: {where_}{text.format(int(number))}")
    return results


def identity(n: int, like: Tensor) -> Tensor:
    """Return the n x n identity in the type and on the device of `like`."""
    return eye(n, dtype=like.dtype, device=like.device)


def expand_batch(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """Return two stacks of matrices with their batch dims broadcast."""
    batch = broadcast_shapes(a._shape[:-2], b._shape[:-2])
    return a.expand((*batch, *a._shape[-2:])), b.expand((*batch, *b._shape[-2:]))


# -- triangular systems -------------------------------------------------------------------------------


def _check_equation(name: str, A: Tensor, B: Tensor, left: bool) -> None:
    """Raise ShapeError unless A X = B, or X A = B, can hold."""
    if A._shape[-2] != B._shape[-2 if left else -1]:
        raise ShapeError(
            f"{name}: Incompatible shapes of A and B for the equation "
            f"{'AX = B' if left else 'XA = B'} ({A._shape[-2]}x{A._shape[-1]} and "
            f"{B._shape[-2]}x{B._shape[-1]})"
        )


def _solve_triangular_vjp(
    g: Tensor, out: Tensor, a: Tensor, _b: Tensor, upper: bool, unit: bool
) -> tuple[Tensor, Tensor]:
    gb = _solve_triangular(a.mT, g, not upper, unit)
    ga = -(gb @ out.mT)
    shift = 1 if unit else 0
    return (ga.triu(shift) if upper else ga.tril(-shift)), gb


@composite(name="_solve_triangular", function_in=(), vjp=_solve_triangular_vjp)
def _solve_triangular(a: Tensor, b: Tensor, upper: bool, unit: bool) -> Tensor:
    (x,) = call("solve_triangular", (a, b), (upper, unit), (b._shape[-2:],))
    return x


@composite(
    name="linalg_solve_triangular",
    family="index",
    function_in=LINALG,
    gradient_name="LinalgSolveTriangularBackward0",
)
def solve_triangular(
    A: Tensor, B: Tensor, *, upper: bool, left: bool = True, unitriangular: bool = False
) -> Tensor:
    """The solution of A X = B (of X A = B where not `left`) for triangular A; batches broadcast."""
    name = "linalg.solve_triangular"
    check_matrix(name, A, "A", square=True)
    check_matrix(name, B, "B")
    check_same_type(name, A, B)
    _check_equation(name, A, B, left)
    a, b = expand_batch(A, B)
    if left:
        return _solve_triangular(a, b, upper, unitriangular)
    return _solve_triangular(a.mT, b.mT, not upper, unitriangular).mT


@composite(
    family="index",
    autocast=Autocast(cpu="fp32"),
    gradient_name="TriangularSolveBackward0",
)
def triangular_solve(
    input: Tensor,
    A: Tensor,
    upper: bool = True,
    transpose: bool = False,
    unitriangular: bool = False,
) -> TriangularSolve:
    """(solution of A X = input, a copy of A) for triangular A."""
    warn_once(
        "torch.triangular_solve is deprecated in favor of torch.linalg.solve_triangular and will be removed in "
        "a future PyTorch release. torch.linalg.solve_triangular has its arguments reversed and does not "
        "return a copy of one of the inputs. X = torch.triangular_solve(B, A).solution should be replaced with "
        "X = torch.linalg.solve_triangular(A, B)."
    )
    for x, what in ((input, "b"), (A, "A")):
        check_float("triangular_solve", x, what)
        if x.ndim < 2:
            raise ShapeError(
                f"torch.triangular_solve: Expected {what} to have at least 2 dimensions, but it has "
                f"{x.ndim} dimensions instead"
            )
    b, a = input, A
    if a._shape[-1] != a._shape[-2] or a._shape[-2] != b._shape[-2]:
        raise ShapeError(
            f"Incompatible matrix sizes for triangular_solve: each A matrix is {a._shape[-1]} by "
            f"{a._shape[-2]} but each b matrix is {b._shape[-2]} by {b._shape[-1]}"
        )
    a, b = expand_batch(a, b)
    if transpose:
        x = solve_triangular(a.mT, b, upper=not upper, unitriangular=unitriangular)
    else:
        x = solve_triangular(a, b, upper=upper, unitriangular=unitriangular)
    return TriangularSolve(x, a.clone())


# -- general systems ----------------------------------------------------------------------------------


def _solve_vjp(g: Tensor, out: Tensor, a: Tensor, _b: Tensor) -> tuple[Tensor, Tensor]:
    gb = _solve(a.mT, g)[0]
    return -(gb @ out.mT), gb


@composite(name="_solve", function_in=(), vjp=_solve_vjp)
def _solve(a: Tensor, b: Tensor) -> tuple[Tensor, ...]:
    return call("solve", (a, b), (), (b._shape[-2:], ()))


def _system(name: str, A: Tensor, B: Tensor, left: bool) -> tuple[Any, Any, bool]:
    """Return the checked operands of a system as stacks, and whether B was a stack of vectors."""
    check_matrix(name, A, "A", square=True)
    check_float(name, B, "B")
    check_same_type(name, A, B)
    if not B.ndim:
        raise ShapeError(f"{name}: The input tensor B must have at least 1 dimension.")
    vector = B.ndim == 1 or (A.ndim - 1 == B.ndim and B._shape == A._shape[:-1])
    if vector and not left:
        raise ShapeError(
            f"{name}: Vector broadcasting of the left hand side is not supported for left=False. In "
            f"this case linalg.solve is equivalent to B / A.squeeze(-1)"
        )
    b = B.unsqueeze(-1) if vector else B
    _check_equation(name, A, b, left)
    a, b = expand_batch(A, b)
    return a, b, vector


@composite(
    name="linalg_solve_ex",
    family="index",
    function_in=LINALG,
    gradient_name="LinalgSolveExBackward0",
)
def solve_ex(A: Tensor, B: Tensor, *, left: bool = True, check_errors: bool = False) -> SolveEx:
    """(the solution of A X = B, info); info is not 0 where A is singular."""
    a, b, vector = _system("linalg.solve", A, B, left)
    if left:
        x, info = _solve(a, b)
    else:
        x, info = _solve(a.mT, b.mT)
        x = x.mT
    info = cast_to(info, int32)
    if check_errors:
        (x,) = check_info("torch.linalg.solve", info, _SINGULAR, x)
    return SolveEx(x.squeeze(-1) if vector else x, info)


_SINGULAR = "The solver failed because the input matrix is singular."


@composite(
    name="linalg_solve",
    family="index",
    function_in=LINALG,
    autocast=Autocast(cpu="fp32"),
    gradient_name="LinalgSolveExBackward0",
)
def solve(A: Tensor, B: Tensor, *, left: bool = True) -> Tensor:
    """The solution of A X = B (of X A = B where not `left`). Raises LinAlgError for singular A."""
    return solve_ex(A, B, left=left, check_errors=True).result


@composite(name="_inv", function_in=(), vjp=lambda g, out, _a: (-(out.mT @ (g @ out.mT)),))
def _inv(a: Tensor) -> tuple[Tensor, ...]:
    return call("inv", (a,), (), (a._shape[-2:], ()))


@composite(
    name="linalg_inv_ex",
    family="index",
    function_in=LINALG,
    autocast=Autocast(cpu="fp32"),
    gradient_name="LinalgInvExBackward0",
)
def inv_ex(A: Tensor, *, check_errors: bool = False) -> InvEx:
    """(the inverses of matrices, info)."""
    check_matrix("linalg.inv", A, "A", square=True)
    x, info = _inv(A)
    info = cast_to(info, int32)
    if check_errors:
        (x,) = check_info(
            "linalg.inv", info, "The diagonal element {} is zero, the inversion could not be "
            "completed because the input matrix is singular.", x,
        )  # fmt: skip
    return InvEx(x, info)


@composite(
    name="linalg_inv",
    family="index",
    function_in=LINALG,
    autocast=Autocast(cpu="fp32"),
    gradient_name="LinalgInvExBackward0",
)
def inv(A: Tensor) -> Tensor:
    """The inverses of matrices (*, N, N). Raises LinAlgError for singular ones."""
    return inv_ex(A, check_errors=True).inverse


@composite(
    family="index", autocast=Autocast(cpu="fp32"), out="cast", gradient_name="LinalgInvExBackward0"
)
def inverse(input: Tensor) -> Tensor:
    """The inverses of matrices (*, N, N). Raises LinAlgError for singular ones."""
    return inv(input)


@composite(
    name="linalg_tensorsolve",
    family="index",
    function_in=LINALG,
    autocast=Autocast(cpu="fp32"),
    out="castable",
    other_names={"other": "B"},
)
def tensorsolve(A: Tensor, B: Tensor, dims: Any = None) -> Tensor:
    """The X with tensordot(A, X, X.ndim) = B."""
    a = A
    if dims is not None:
        a = movement.movedim(A, tuple(dims), tuple(range(A.ndim - len(dims), A.ndim)))
    rest = a._shape[B.ndim :]
    if numel(rest) != B.numel():
        raise ShapeError(
            "Expected self to satisfy the requirement prod(self.shape[other.ndim:]) == "
            f"prod(self.shape[:other.ndim]), but got {numel(rest)} != {B.numel()}"
        )
    x = solve(a.reshape((B.numel(), numel(rest))), B.reshape((-1,)))
    return x.reshape(rest)


@composite(
    name="linalg_tensorinv",
    family="index",
    function_in=LINALG,
    autocast=Autocast(cpu="fp32"),
    out="castable",
)
def tensorinv(A: Tensor, ind: int = 2) -> Tensor:
    """The inverse of tensordot(A, ., ind)."""
    if ind <= 0:
        raise RuntimeError(f"Expected a strictly positive integer for 'ind', but got {ind}")
    front, back = A._shape[:ind], A._shape[ind:]
    if numel(front) != numel(back):
        raise ShapeError(
            "Expected self to satisfy the requirement prod(self.shape[ind:]) == "
            f"prod(self.shape[:ind]), but got {numel(back)} != {numel(front)}"
        )
    return inv(A.reshape((numel(front), numel(back)))).reshape((*back, *front))


# -- LU -----------------------------------------------------------------------------------------------


def _lu_vjp(g: Tensor, out: Tensor, a: Tensor, _pivot: bool) -> tuple[Tensor]:
    packed, pivots = out[0], out[1]
    m, n = a._shape[-2:]
    k = min(m, n)
    perm = cast_to(_permutation_matrix(pivots, m), packed.dtype)
    gl, gu = g[0].tril(-1)[..., :k], g[0].triu()[..., :k, :]
    l1 = packed[..., :k, :k].tril(-1) + identity(k, packed)
    u1 = packed[..., :k, :k].triu()
    lower, upper = l1.mT @ gl[..., :k, :], gu[..., :k] @ u1.mT
    if m < n:
        u2, gu2 = packed[..., k:], gu[..., k:]
        lower = lower - gu2 @ u2.mT
    elif m > n:
        l2, gl2 = packed[..., k:, :], gl[..., k:, :]
        upper = upper - l2.mT @ gl2
    core = lower.tril(-1) + upper.triu()
    core = solve_triangular(u1.mT, core, upper=False, left=False)
    core = solve_triangular(l1.mT, core, upper=True, unitriangular=True)
    if m < n:
        right = solve_triangular(l1.mT, gu2, upper=True, unitriangular=True)
        core = joining.cat((core, right), -1)
    elif m > n:
        below = solve_triangular(u1.mT, gl2, upper=False, left=False)
        core = joining.cat((core, below), -2)
    return (perm @ core,)


# The rule needs the pivots, so they count as a result; nothing differentiates through them.
@composite(name="_lu", function_in=(), vjp=_lu_vjp, outputs=2, saves_values=True)
def _lu(a: Tensor, pivot: bool) -> tuple[Tensor, ...]:
    m, n = a._shape[-2:]
    return call("lu_factor", (a,), (pivot,), ((m, n), (min(m, n),), ()))


def _check_pivot(name: str, a: Tensor, pivot: bool) -> None:
    if not pivot and a._in_host_memory:
        raise RuntimeError(
            f"{name}: LU without pivoting is not implemented on the CPU. Leave pivot=True."
        )


@composite(
    name="linalg_lu_factor_ex",
    family="index",
    function_in=LINALG,
    gradient_name="LinalgLuFactorExBackward0",
)
def lu_factor_ex(A: Tensor, *, pivot: bool = True, check_errors: bool = False) -> LUFactorEx:
    """(L and U in one matrix, pivots counted from 1, info)."""
    check_matrix("torch.linalg.lu_factor", A, "A")
    _check_pivot("linalg.lu_factor", A, pivot)
    packed, pivots, info = _lu(A, pivot)
    info = cast_to(info, int32)
    if check_errors:
        packed, pivots = check_info(
            "torch.linalg.lu_factor_ex", info, "U[{0},{0}] is zero and using it on lu_solve would "
            "result in a division by zero.", packed, pivots,
        )  # fmt: skip
    return LUFactorEx(packed, cast_to(pivots, int32), info)


@composite(
    name="linalg_lu_factor",
    family="index",
    function_in=LINALG,
    gradient_name="LinalgLuFactorExBackward0",
)
def lu_factor(A: Tensor, *, pivot: bool = True) -> LUFactor:
    """(L and U in one matrix, pivots counted from 1). Raises LinAlgError where U is singular."""
    found = lu_factor_ex(A, pivot=pivot, check_errors=True)
    return LUFactor(found.LU, found.pivots)


@composite(family="index", out="truncate", gradient_name="LinalgLuFactorExBackward0")
def lu(input: Tensor, pivot: bool = True, get_infos: bool = False) -> tuple[Tensor, ...]:
    """(L and U in one matrix, pivots), and info where `get_infos`."""
    warn_once(
        "torch.lu is deprecated in favor of torch.linalg.lu_factor / torch.linalg.lu_factor_ex and will be "
        "removed in a future PyTorch release. LU, pivots = torch.lu(A, compute_pivots) should be replaced with "
        "LU, pivots = torch.linalg.lu_factor(A, compute_pivots) and LU, pivots, info = torch.lu(A, "
        "compute_pivots, get_infos=True) should be replaced with LU, pivots, info = "
        "torch.linalg.lu_factor_ex(A, compute_pivots)"
    )
    found = lu_factor_ex(input, pivot=pivot)
    if not get_infos:
        message = "U[{0},{0}] is zero: the matrix is singular."
        packed, pivots = check_info("lu", found.info, message, found.LU, found.pivots)
        return packed, pivots
    return found.LU, found.pivots, found.info


def permutation_of(pivots: Tensor, rows: int) -> Tensor:
    """Return which row of the matrix each row of L U is, int64."""
    batch, k = pivots._shape[:-1], pivots._shape[-1]
    if not k:
        return iota(rows, 0, 1, int64, pivots.device).expand((*batch, rows))
    swaps = cast_to(pivots, float64 if pivots._in_host_memory else float32)
    (found,) = host("permutation", (swaps.reshape((-1, k)),), (rows,), [(numel(batch), rows)])
    return cast_to(found, int64).reshape((*batch, rows))


def _permutation_matrix(pivots: Tensor, rows: int) -> Tensor:
    """Return P with A = P L U, in float32 unless pivots are wider."""
    perm = permutation_of(pivots, rows)
    where_ = iota(rows, 0, 1, int64, perm.device).unsqueeze(-1)
    dtype = pivots.dtype if pivots.dtype.is_floating_point else float32
    return cast_to(perm.unsqueeze(-2) == where_, dtype)


@composite(family="index", gradient_name="LuUnpackBackward0")
def lu_unpack(
    LU_data: Tensor, LU_pivots: Tensor, unpack_data: bool = True, unpack_pivots: bool = True
) -> LUUnpack:
    """(P, L, U) of what lu_factor returned; empty tensors where one is not wanted."""
    if LU_pivots.dtype is not int32 and unpack_pivots:
        raise DTypeError(
            "torch.lu_unpack: LU_pivots is expected to be a contiguous tensor of torch.int32 dtype. "
            "Note: this function is intended to be used with the output produced by "
            "torch.linalg.lu_factor"
        )
    if unpack_pivots and LU_pivots._in_host_memory:
        rows = LU_data._shape[-2]
        _check_pivots(
            "torch.lu_unpack",
            ((LU_pivots < 1) | (LU_pivots > rows)).any(),
            "between 1 and LU.size(-2) inclusive",
        )
    return _unpacked(LU_data, LU_pivots, unpack_data, unpack_pivots)


def _check_pivots(name: str, wrong: Tensor, rule: str) -> None:
    """Raise LinAlgError where pivots are `wrong`; as in PyTorch, those on the CPU are looked at."""
    check_info(
        name,
        cast_to(wrong, int32),
        f"pivots must all be {rule}. Did you properly pass the result of lu_factor?",
    )


def _unpacked(
    LU_data: Tensor, LU_pivots: Tensor, unpack_data: bool = True, unpack_pivots: bool = True
) -> LUUnpack:
    m, n = LU_data._shape[-2:]
    k = min(m, n)
    p = lower = upper = fill((0,), 0, LU_data.dtype, LU_data.device)
    if unpack_pivots:
        p = cast_to(_permutation_matrix(LU_pivots, m), LU_data.dtype)
    if unpack_data:
        lower = LU_data[..., :k].tril(-1) + identity(m, LU_data)[:, :k]
        upper = LU_data[..., :k, :].triu()
    return LUUnpack(p, lower, upper)


@composite(name="linalg_lu", family="index", function_in=LINALG, gradient_name="LinalgLuBackward0")
def linalg_lu(A: Tensor, *, pivot: bool = True) -> LU:
    """(P, L, U) with A = P L U."""
    check_matrix("linalg.lu", A, "A")
    found = lu_factor_ex(A, pivot=pivot)
    return LU(*_unpacked(found.LU, found.pivots))


@composite(
    name="linalg_lu_solve",
    family="index",
    function_in=LINALG,
    autocast=Autocast(cpu="fp32"),
    gradient_name="LinalgLuSolveBackward0",
)
def linalg_lu_solve(
    LU: Tensor, pivots: Tensor, B: Tensor, *, left: bool = True, adjoint: bool = False
) -> Tensor:
    """The solution of A X = B from A's factors; of X A = B where not `left`, with A^T if `adjoint`."""
    name = "torch.linalg.lu_solve"
    check_matrix(name, LU, "LU", square=True)
    check_matrix(name, B, "B")
    check_same_type(name, LU, B)
    if pivots.dtype is not int32:
        raise DTypeError(f"{name}: pivots should be a Tensor of scalar type torch.int32")
    if pivots._shape != LU._shape[:-1]:
        raise ShapeError(
            f"{name}: Number of pivots per batch should be same as the dimension of the matrix"
        )
    if not left:
        return linalg_lu_solve(LU, pivots, B.mH, adjoint=not adjoint).mH
    if LU._shape[-1] != B._shape[-2]:
        raise ShapeError(
            f"{name}: Incompatible shapes of A and B for the equation AX = B "
            f"({LU._shape[-2]}x{LU._shape[-1]} and {B._shape[-2]}x{B._shape[-1]})"
        )
    rows = LU._shape[-1]
    if pivots._in_host_memory:
        _check_pivots(name, (pivots < 1).any(), "greater or equal to 1")
        _check_pivots(name, (pivots > rows).any(), "smaller or equal to LU.size(-2)")
    p = cast_to(_permutation_matrix(pivots, rows), LU.dtype)
    if adjoint:
        x = solve_triangular(LU.mH, B, upper=False)
        x = solve_triangular(LU.mH, x, upper=True, unitriangular=True)
        return p @ x
    x = solve_triangular(LU, p.mT @ B, upper=False, unitriangular=True)
    return solve_triangular(LU, x, upper=True)


@composite(family="index", autocast=Autocast(cpu="fp32"), gradient_name="LinalgLuSolveBackward0")
def lu_solve(input: Tensor, LU_data: Tensor, LU_pivots: Tensor) -> Tensor:
    """The solution of A X = input from A's factors."""
    return linalg_lu_solve(LU_data, LU_pivots, input)


# -- determinants -------------------------------------------------------------------------------------


def _signed(packed: Tensor, pivots: Tensor) -> Tensor:
    """Return the sign of the permutation."""
    own = iota(pivots._shape[-1], 1, 1, int64, pivots.device)
    odd = cast_to(cast_to(pivots, int64) != own, int64).sum(-1) % 2
    return cast_to(1 - 2 * odd, packed.dtype)


def _cofactors_vjp(g: Tensor, out: Tensor, a: Tensor) -> tuple[Tensor]:
    b = _inv(a)[0].mT
    inner = (g * out).sum((-2, -1), keepdim=True)
    return (inner * b - out @ g.mT @ b,)


@composite(name="_cofactors", function_in=(), vjp=_cofactors_vjp)
def _cofactors(a: Tensor) -> Tensor:
    return call("cofactors", (a,), (), (a._shape[-2:],))[0]


@composite(
    name="_det", function_in=(), vjp=lambda g, _out, a: (g[..., None, None] * _cofactors(a),)
)
def _det(a: Tensor) -> Tensor:
    packed, pivots, _ = _lu(a, True)
    return packed.diagonal(0, -2, -1).prod(-1) * _signed(packed, pivots)


@composite(
    family="index",
    function_in=EVERYWHERE,
    gradient_name="LinalgDetBackward0",
    other_names={"A": "input"},
)
def det(input: Tensor) -> Tensor:
    """The determinants of matrices (*, N, N)."""
    check_matrix("linalg.det", input, "A", square=True)
    return _det(input)


def _slogdet_vjp(gs: tuple[Tensor | None, ...], _outs: object, a: Tensor) -> tuple[Tensor]:
    # The sign has a gradient, which is 0.
    return (a * 0 if gs[0] is None else gs[0][..., None, None] * _inv(a)[0].mT,)


@composite(name="_slogdet", function_in=(), outputs=2, vjp=_slogdet_vjp)
def _slogdet(a: Tensor) -> tuple[Tensor, Tensor]:
    packed, pivots, _ = _lu(a, True)
    d = packed.diagonal(0, -2, -1)
    return d.abs().log().sum(-1), _signed(packed, pivots) * d.sign().prod(-1)


def _complex_slogdet(a: Tensor) -> tuple[Tensor, Tensor]:
    """Return the sign (of absolute value 1) and the log of the absolute value of det(a)."""
    packed, pivots, _ = _lu(a, True)
    d = packed.diagonal(0, -2, -1)
    return d.sgn().prod(-1) * _signed(packed, pivots), d.abs().log().sum(-1)


@composite(
    name="linalg_slogdet",
    family="index",
    function_in=LINALG,
    gradient_name="LinalgSlogdetBackward0",
)
def linalg_slogdet(A: Tensor) -> Slogdet:
    """(sign, log of the absolute value) of determinants; (0, -inf) of singular matrices."""
    check_matrix("linalg.slogdet", A, "A", square=True)
    if A.dtype.is_complex:
        sign, value = _complex_slogdet(A)
        return Slogdet(sign, value)
    value, sign = _slogdet(A)
    return Slogdet(sign, value)


@composite(family="index", example=Example(((4, 4),)), gradient_name="LinalgSlogdetBackward0")
def slogdet(input: Tensor) -> OldSlogdet:
    """(sign, log of the absolute value) of determinants."""
    return OldSlogdet(*linalg_slogdet(input))


@composite(family="index")
def logdet(input: Tensor) -> Tensor:
    """The logarithms of determinants; NaN of negative ones."""
    check_matrix("logdet", input, "A", square=True)
    if input.dtype.is_complex:
        sign, value = _complex_slogdet(input)
        return sign.log() + value
    value, sign = _slogdet(input)
    return where(sign < 0, sign.log(), value)


# -- structured matrices ------------------------------------------------------------------------------


@composite(name="linalg_vander", family="index", function_in=LINALG, refuses=BOOL)
def linalg_vander(x: Tensor, *, N: int | None = None) -> Tensor:
    """The matrix of powers 0 to N - 1 of the elements, one row for each."""
    if N is not None and N <= 1:
        raise RuntimeError(f"N must be greater than 1. Got {N}")
    x = joining.atleast_1d(x)
    count = x._shape[-1] if N is None else N
    dtype = x.dtype if x.dtype.has_gradient else int64
    value = cast_to(x, dtype).unsqueeze(-1)
    ones = fill((*x._shape, 1), 1, dtype, x.device)
    if count <= 1:
        return ones[..., :count]
    return joining.cat((ones, value.expand((*x._shape, count - 1)).cumprod(-1)), -1)


@composite(name="linalg_diagonal", family="index", function_in=LINALG)
def linalg_diagonal(A: Tensor, *, offset: int = 0, dim1: int = -2, dim2: int = -1) -> Tensor:
    """The diagonals of matrices, as a view."""
    return slicing.diagonal(A, offset, dim1, dim2)
