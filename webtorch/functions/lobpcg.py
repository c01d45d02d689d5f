"""Extreme eigenpairs of symmetric matrices by conjugate gradients.

Knyazev, "Toward the optimal preconditioned eigensolver", 2001. The basis of each step (approximations,
preconditioned residuals, last directions) is made orthonormal by the eigenvectors of its Gram matrix:
directions that others already span are left out (Stathopoulos and Wu, 2002).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from webtorch.errors import DTypeError, ShapeError
from webtorch.functions import joining, random, repeating, slicing
from webtorch.functions.cholesky import linalg_cholesky
from webtorch.functions.decomposition import eigh as linalg_eigh
from webtorch.functions.linalg import check_matrix, solve_triangular
from webtorch.ir.dtype import FLOATS, float64
from webtorch.ops.elementwise import rsqrt
from webtorch.ops.record import composite
from webtorch.tensors.tensor import Tensor

METHODS = ("basic", "ortho")


class Iteration:
    """The state that `tracker` sees after each step: the approximations, their residuals and how many
    have converged. `bvars["force_stop"] = True` ends the iteration.
    """

    def __init__(self, A: Tensor, B: Tensor | None, iK: Tensor | None, X: Tensor) -> None:
        self.A, self.B, self.iK = A, B, iK
        self.X: Any = X
        self.E: Any = None
        self.R: Any = None
        self.S: object = None
        self.ivars: dict[str, int] = {"istep": 0, "converged_count": 0}
        self.fvars: dict[str, float] = {}
        self.bvars: dict[str, bool] = {"force_stop": False}
        self.tvars: dict[str, object] = {}


def _weighted(b: Tensor | None, x: Tensor) -> Tensor:
    return x if b is None else b @ x


def _orthonormal(s: Tensor, b: Tensor | None, spare: float) -> Tensor:
    """Return a basis of the span of `s` that is orthonormal in the inner product of `b`."""
    gram = s.mT @ _weighted(b, s)
    scale = rsqrt(gram.diagonal().clamp(min=1e-30))
    values, vectors = linalg_eigh(gram * scale.unsqueeze(0) * scale.unsqueeze(1))
    kept = int((values > spare * values[-1:]).sum().item())
    first = values.shape[0] - kept
    columns = slicing.narrow(vectors, 1, first, kept)
    return s @ (scale.unsqueeze(1) * columns * rsqrt(slicing.narrow(values, 0, first, kept)))


def _ritz(s: Tensor, a: Tensor, n: int, largest: bool) -> tuple[Tensor, Tensor]:
    """Return the n extreme eigenvalues of `a` in the span of the orthonormal `s`, best first, and
    their coefficients.
    """
    values, vectors = linalg_eigh(s.mT @ (a @ s))
    if largest:
        values, vectors = repeating.flip(values, (0,)), repeating.flip(vectors, (1,))
    return slicing.narrow(values, 0, 0, n), slicing.narrow(vectors, 1, 0, n)


def _solve(
    state: Iteration, niter: int, tol: float, largest: bool, tracker: Callable[..., object] | None
) -> None:
    a, b, x = state.A, state.B, state.X
    n, spare = x.shape[1], 1e-10 if a.dtype is float64 else 1e-5
    x = _orthonormal(x, b, spare)
    if x.shape[1] < n:
        raise ShapeError(
            f"lobpcg: the {n} columns of X span {x.shape[1]} dimensions only. Give independent ones."
        )
    state.E, c = _ritz(x, a, n, largest)
    state.X, last = x @ c, None
    sizes = (a.norm(), 1.0 if b is None else b.norm())
    for step in range(1, niter + 1):
        x = state.X
        state.R = a @ x - _weighted(b, x) * state.E
        error = state.R.norm(dim=0) / ((sizes[0] + state.E.abs() * sizes[1]) * x.norm(dim=0))
        state.tvars["rerr"] = error
        state.ivars["istep"] = step
        state.ivars["converged_count"] = int((error <= tol).sum().item())
        if tracker is not None:
            tracker(state)
        if state.bvars["force_stop"] or state.ivars["converged_count"] == n:
            return
        w = state.R if state.iK is None else state.iK @ state.R
        parts = [w] if last is None else [w, last]
        fresh = joining.cat(parts, 1)
        for _ in range(2):
            fresh = fresh - x @ (x.mT @ _weighted(b, fresh))
        fresh = _orthonormal(fresh, b, spare)
        state.S = joining.cat([x, fresh], 1)
        state.E, c = _ritz(state.S, a, n, largest)
        last = fresh @ slicing.narrow(c, 0, n, fresh.shape[1])
        state.X = x @ slicing.narrow(c, 0, 0, n) + last
        if step % 10 == 0:
            state.X = _orthonormal(state.X, b, 0.0)
            state.E, c = _ritz(state.X, a, n, largest)
            state.X = state.X @ c


def _whole(a: Tensor, b: Tensor | None, k: int, largest: bool) -> tuple[Tensor, Tensor]:
    """Return eigenpairs with their gradients, from all of them."""
    a = (a + a.mT) / 2
    if b is None:
        values, vectors = linalg_eigh(a)
    else:
        factor = linalg_cholesky((b + b.mT) / 2)
        half = solve_triangular(factor, a, upper=False)
        values, vectors = linalg_eigh(solve_triangular(factor, half.mT, upper=False))
        vectors = solve_triangular(factor.mT, vectors, upper=True)
    if largest:
        values, vectors = repeating.flip(values, (-1,)), repeating.flip(vectors, (-1,))
    return slicing.narrow(values, -1, 0, k), slicing.narrow(vectors, -1, 0, k)


@composite(family="index", function_in=("torch",), dtypes=FLOATS, differentiable=False)
def lobpcg(
    A: Tensor,
    k: int | None = None,
    B: Tensor | None = None,
    X: Tensor | None = None,
    n: int | None = None,
    iK: Tensor | None = None,
    niter: int | None = None,
    tol: float | None = None,
    largest: bool | None = None,
    method: str | None = None,
    tracker: Callable[..., object] | None = None,
    ortho_iparams: dict[str, int] | None = None,
    ortho_fparams: dict[str, float] | None = None,
    ortho_bparams: dict[str, bool] | None = None,
) -> tuple[Tensor, Tensor]:
    """(E, X): the k largest (or smallest) eigenvalues of symmetric A X = B X E, and their vectors.

    A: (*, m, m). B: positive definite, the identity if None. X: (*, m, n) first approximations, random
    if None. iK: a preconditioner. tol: the residual relative to the norms of A and B, by default the root of
    the type's epsilon. Reads the residuals at each of at most `niter` (1000) steps. Where A or B requires a
    gradient all eigenpairs are computed, with linalg.eigh. The ortho_ parameters tune PyTorch's method,
    which "basic" and "ortho" both name here. Raises ValueError for m < 3 n.
    """
    check_matrix("lobpcg", A, "A", square=True)
    if A.dtype.is_complex:
        raise DTypeError(f"lobpcg: not implemented for {A.dtype}. Use linalg.eigh.")
    if method is not None and method not in METHODS:
        raise ValueError(f"lobpcg: method is one of {', '.join(METHODS)}, got {method!r}")
    m = A.shape[-1]
    k = (1 if X is None else X.shape[-1]) if k is None else k
    n = (k if X is None else X.shape[-1]) if n is None else n
    if m < 3 * n:
        raise ValueError(
            f"LPBPCG algorithm is not applicable when the number of A rows (={m}) is smaller than 3 x the number of "
            f"requested eigenpairs (={n}). Use linalg.eigh."
        )
    if X is not None and tuple(X.shape) != (*A.shape[:-1], n):
        raise ShapeError(f"lobpcg: X has the shape {list(X.shape)}, expected {[*A.shape[:-1], n]}")
    largest = True if largest is None else largest
    if A.requires_grad or (B is not None and B.requires_grad):
        return _whole(A, B, k, largest)
    if X is None:
        X = random.randn(*A.shape[:-1], n, dtype=A.dtype, device=A.device)
    limit = (2.220446049250313e-16 if A.dtype is float64 else 1.1920928955078125e-07) ** 0.5
    found = []
    flat: list[Any] = [
        None if t is None else t.detach().reshape((-1, *t.shape[-2:])) for t in (A, B, iK, X)
    ]
    for i in range(flat[0].shape[0]):
        given: list[Any] = [None if t is None else t[i if t.shape[0] > 1 else 0] for t in flat]
        state = Iteration(*given)
        _solve(state, 1000 if niter is None else niter, tol or limit, largest, tracker)
        found.append((state.E[:k], state.X[:, :k]))
    shape = A.shape[:-2]
    values = joining.stack([e for e, _ in found]).reshape((*shape, k))
    return values, joining.stack([x for _, x in found]).reshape((*shape, m, k))
