"""Regions in which parameters and samples lie: each checks a tensor. May import floors 0 to 4."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from webtorch import linalg
from webtorch.functions import public as webtorch
from webtorch.tensors.tensor import Tensor

__all__ = [
    "Constraint",
    "MixtureSameFamilyConstraint",
    "boolean",
    "cat",
    "corr_cholesky",
    "dependent",
    "dependent_property",
    "greater_than",
    "greater_than_eq",
    "half_open_interval",
    "independent",
    "integer_interval",
    "interval",
    "is_dependent",
    "less_than",
    "lower_cholesky",
    "lower_triangular",
    "multinomial",
    "nonnegative",
    "nonnegative_integer",
    "one_hot",
    "positive",
    "positive_definite",
    "positive_integer",
    "positive_semidefinite",
    "real",
    "real_vector",
    "simplex",
    "square",
    "stack",
    "symmetric",
    "unit_interval",
]


class Constraint:
    """A region: `check` tells for each event whether it lies inside; an event has `event_dim` dims."""

    is_discrete: Any = False
    event_dim: Any = 0

    def check(self, value: Tensor) -> Tensor:
        """Return a bool tensor, one element for each event of `value`."""
        raise NotImplementedError

    def __repr__(self) -> str:
        return f"{self.__class__.__name__[1:]}()"


class _Dependent(Constraint):
    """A region that depends on other parameters, so that it cannot be checked by itself."""

    def __init__(
        self, *, is_discrete: Any = NotImplemented, event_dim: Any = NotImplemented
    ) -> None:
        self._is_discrete = is_discrete
        self._event_dim = event_dim
        super().__init__()

    @property
    def is_discrete(self) -> bool:
        """Whether the region is discrete. Raises NotImplementedError where that depends too."""
        if self._is_discrete is NotImplemented:
            raise NotImplementedError(".is_discrete cannot be determined statically")
        return bool(self._is_discrete)

    @property
    def event_dim(self) -> int:
        """The number of dims of an event. Raises NotImplementedError where that depends too."""
        if self._event_dim is NotImplemented:
            raise NotImplementedError(".event_dim cannot be determined statically")
        return int(self._event_dim)

    def __call__(
        self, *, is_discrete: Any = NotImplemented, event_dim: Any = NotImplemented
    ) -> Any:
        """Return the same with what is known of it."""
        return _Dependent(
            is_discrete=self._is_discrete if is_discrete is NotImplemented else is_discrete,
            event_dim=self._event_dim if event_dim is NotImplemented else event_dim,
        )

    def check(self, x: Tensor) -> Tensor:
        """Raise ValueError."""
        raise ValueError("Cannot determine validity of dependent constraint")


def is_dependent(constraint: object) -> bool:
    """Return whether a constraint depends on other parameters."""
    return isinstance(constraint, _Dependent)


class _DependentProperty(property, _Dependent):
    """A property of an instance that is a constraint; of the class, a dependent constraint.

    Plain, `@constraints.dependent_property`, or with what is known: `(is_discrete=False, event_dim=0)`.
    """

    def __init__(
        self,
        fn: Any = None,
        *,
        is_discrete: object = NotImplemented,
        event_dim: object = NotImplemented,
    ) -> None:
        super().__init__(fn)
        self._is_discrete = is_discrete
        self._event_dim = event_dim

    def __call__(self, fn: Any) -> Any:  # type: ignore[override]
        return _DependentProperty(fn, is_discrete=self._is_discrete, event_dim=self._event_dim)


def _require(constraint: object) -> None:
    if not isinstance(constraint, Constraint):
        raise AssertionError(
            f"base_constraint must be a Constraint, got {type(constraint).__name__}"
        )


class _IndependentConstraint(Constraint):
    """Another region for all of the last dims at once."""

    def __init__(self, base_constraint: Constraint, reinterpreted_batch_ndims: int) -> None:
        _require(base_constraint)
        if not isinstance(reinterpreted_batch_ndims, int):
            raise AssertionError(
                f"reinterpreted_batch_ndims must be an int, got {type(reinterpreted_batch_ndims).__name__}"
            )
        if reinterpreted_batch_ndims < 0:
            raise AssertionError(
                f"reinterpreted_batch_ndims must be >= 0, got {reinterpreted_batch_ndims}"
            )
        self.base_constraint = base_constraint
        self.reinterpreted_batch_ndims = reinterpreted_batch_ndims
        super().__init__()

    @property
    def is_discrete(self) -> bool:
        """That of the base."""
        return self.base_constraint.is_discrete

    @property
    def event_dim(self) -> int:
        """That of the base and the dims taken together."""
        return self.base_constraint.event_dim + self.reinterpreted_batch_ndims

    def check(self, value: Tensor) -> Tensor:
        """Whether all elements of the last dims satisfy the base."""
        result = self.base_constraint.check(value)
        kept = result.dim() - self.reinterpreted_batch_ndims
        if kept < 0:
            raise ValueError(f"Expected value.dim() >= {self.event_dim} but got {value.dim()}")
        return result.reshape((*result.shape[:kept], -1)).all(-1)

    def __repr__(self) -> str:
        return f"{self.__class__.__name__[1:]}({self.base_constraint!r}, {self.reinterpreted_batch_ndims})"


class MixtureSameFamilyConstraint(Constraint):
    """The region of a mixture: that of its components, with their dim put in."""

    def __init__(self, base_constraint: Constraint) -> None:
        _require(base_constraint)
        self.base_constraint = base_constraint
        super().__init__()

    @property
    def is_discrete(self) -> bool:
        """That of the components."""
        return self.base_constraint.is_discrete

    @property
    def event_dim(self) -> int:
        """That of the components."""
        return self.base_constraint.event_dim

    def check(self, value: Tensor) -> Tensor:
        """Whether a value lies in the region of every component."""
        result = self.base_constraint.check(value.unsqueeze(-1 - self.event_dim))
        if value.dim() < self.event_dim:
            raise ValueError(f"Expected value.dim() >= {self.event_dim} but got {value.dim()}")
        kept = value.dim() - self.event_dim
        return result.reshape((*result.shape[:kept], -1)).all(-1)

    def __repr__(self) -> str:
        return f"{self.__class__.__name__}({self.base_constraint!r})"


class _Boolean(Constraint):
    is_discrete = True

    def check(self, value: Tensor) -> Tensor:
        """Whether each number is 0 or 1."""
        return (value == 0) | (value == 1)


class _OneHot(Constraint):
    is_discrete = True
    event_dim = 1

    def check(self, value: Tensor) -> Tensor:
        """Whether each vector has one 1 and zeros."""
        return boolean.check(value).all(-1) & (value.sum(-1) == 1)


class _Bounded(Constraint):
    """A region with bounds, which its repr shows."""

    def __repr__(self) -> str:
        bounds = [
            f"{name}={getattr(self, name)}"
            for name in ("lower_bound", "upper_bound")
            if name in self.__dict__
        ]
        return f"{self.__class__.__name__[1:]}({', '.join(bounds)})"


class _Above(_Bounded):
    def __init__(self, lower_bound: Tensor | float) -> None:
        self.lower_bound = lower_bound
        super().__init__()


class _Below(_Bounded):
    def __init__(self, upper_bound: Tensor | float) -> None:
        self.upper_bound = upper_bound
        super().__init__()


class _Between(_Bounded):
    def __init__(self, lower_bound: Tensor | float, upper_bound: Tensor | float) -> None:
        self.lower_bound = lower_bound
        self.upper_bound = upper_bound
        super().__init__()


class _IntegerInterval(_Between):
    is_discrete = True

    def check(self, value: Tensor) -> Tensor:
        """Whether each number is whole and within both bounds."""
        return (value % 1 == 0) & (value >= self.lower_bound) & (value <= self.upper_bound)


class _IntegerGreaterThan(_Above):
    is_discrete = True

    def check(self, value: Tensor) -> Tensor:
        """Whether each number is whole and at least the bound."""
        return (value % 1 == 0) & (value >= self.lower_bound)


class _Real(Constraint):
    def check(self, value: Tensor) -> Tensor:
        """Whether each number is not NaN."""
        return value == value


class _GreaterThan(_Above):
    def check(self, value: Tensor) -> Tensor:
        """Whether each number is above the bound."""
        return value > self.lower_bound


class _GreaterThanEq(_Above):
    def check(self, value: Tensor) -> Tensor:
        """Whether each number is at least the bound."""
        return value >= self.lower_bound


class _LessThan(_Below):
    def check(self, value: Tensor) -> Tensor:
        """Whether each number is below the bound."""
        return value < self.upper_bound


class _Interval(_Between):
    def check(self, value: Tensor) -> Tensor:
        """Whether each number is within both bounds, which belong to the interval."""
        return (value >= self.lower_bound) & (value <= self.upper_bound)


class _HalfOpenInterval(_Between):
    def check(self, value: Tensor) -> Tensor:
        """Whether each number is at least the lower bound and below the upper one."""
        return (value >= self.lower_bound) & (value < self.upper_bound)


class _Simplex(Constraint):
    event_dim = 1

    def check(self, value: Tensor) -> Tensor:
        """Whether each vector has no negative number and the sum 1, to 1e-6."""
        return (value >= 0).all(dim=-1) & ((value.sum(-1) - 1).abs() < 1e-6)


class _Multinomial(Constraint):
    is_discrete = True
    event_dim = 1

    def __init__(self, upper_bound: Tensor | float) -> None:
        self.upper_bound = upper_bound

    def check(self, x: Tensor) -> Tensor:
        """Whether each vector has no negative number and a sum of at most the bound."""
        return (x >= 0).all(dim=-1) & (x.sum(dim=-1) <= self.upper_bound)


class _LowerTriangular(Constraint):
    event_dim = 2

    def check(self, value: Tensor) -> Tensor:
        """Whether each matrix is 0 above the diagonal."""
        return (value.tril() == value).all(-1).all(-1)


class _LowerCholesky(Constraint):
    event_dim = 2

    def check(self, value: Tensor) -> Tensor:
        """Whether each matrix is lower triangular with a positive diagonal."""
        positive_diagonal = (value.diagonal(dim1=-2, dim2=-1) > 0).all(-1)
        return lower_triangular.check(value) & positive_diagonal


class _CorrCholesky(Constraint):
    event_dim = 2

    def check(self, value: Tensor) -> Tensor:
        """Whether each matrix is a Cholesky factor whose rows have length 1, to rounding."""
        tolerance = webtorch.finfo(value.dtype).eps * value.size(-1) * 10
        length = value.detach().square().sum(-1).sqrt()
        return lower_cholesky.check(value) & ((length - 1).abs() <= tolerance).all(-1)


class _Square(Constraint):
    event_dim = 2

    def check(self, value: Tensor) -> Tensor:
        """Whether the matrices are square: the same for all."""
        equal = value.shape[-2] == value.shape[-1]
        return webtorch.full(value.shape[:-2], equal, dtype=webtorch.bool, device=value.device)


class _Symmetric(_Square):
    def check(self, value: Tensor) -> Tensor:
        """Whether each matrix is square and equal to its transpose, to 1e-6."""
        if value.shape[-2] != value.shape[-1]:
            return super().check(value)
        return webtorch.isclose(value, value.mT, atol=1e-6).all(-2).all(-1)


class _PositiveSemidefinite(_Symmetric):
    def check(self, value: Tensor) -> Tensor:
        """Whether each matrix is symmetric without a negative eigenvalue. Waits for the device."""
        symmetric = super().check(value)
        if not bool(symmetric.all()):
            return symmetric
        return (linalg.eigvalsh(value) >= 0).all(-1)


class _PositiveDefinite(_Symmetric):
    def check(self, value: Tensor) -> Tensor:
        """Whether each matrix is symmetric and has a Cholesky factor. Waits for the device."""
        symmetric = super().check(value)
        if not bool(symmetric.all()):
            return symmetric
        return linalg.cholesky_ex(value).info == 0


class _Sequence(Constraint):
    """Several regions, one after the other along a dim."""

    def __init__(self, cseq: Sequence[Constraint], dim: int = 0) -> None:
        if not all(isinstance(c, Constraint) for c in cseq):
            raise AssertionError("All elements of cseq must be Constraint instances")
        self.cseq = list(cseq)
        self.dim = dim
        super().__init__()

    @property
    def is_discrete(self) -> bool:
        """Whether one of the regions is."""
        return any(c.is_discrete for c in self.cseq)

    def _check_dim(self, value: Tensor) -> None:
        if not -value.dim() <= self.dim < value.dim():
            raise AssertionError(
                f"dim {self.dim} out of range for value with {value.dim()} dimensions"
            )


class _Cat(_Sequence):
    """Regions of slices of given lengths."""

    def __init__(
        self, cseq: Sequence[Constraint], dim: int = 0, lengths: Sequence[int] | None = None
    ) -> None:
        super().__init__(cseq, dim)
        self.lengths = [1] * len(self.cseq) if lengths is None else list(lengths)
        if len(self.lengths) != len(self.cseq):
            raise AssertionError(
                f"lengths ({len(self.lengths)}) must match cseq ({len(self.cseq)})"
            )

    @property
    def event_dim(self) -> int:
        """The largest of the regions'."""
        return max(c.event_dim for c in self.cseq)

    def check(self, value: Tensor) -> Tensor:
        """Whether each slice lies in its region, put together along `dim`."""
        self._check_dim(value)
        checks, start = [], 0
        for one, length in zip(self.cseq, self.lengths, strict=True):
            checks.append(one.check(value.narrow(self.dim, start, length)))
            start += length
        return webtorch.cat(checks, self.dim)


class _Stack(_Sequence):
    """Regions of elements along a dim."""

    @property
    def event_dim(self) -> int:
        """The largest of the regions', and `dim` itself if that lies within an event."""
        dim = max(c.event_dim for c in self.cseq)
        return dim + 1 if self.dim + dim < 0 else dim

    def check(self, value: Tensor) -> Tensor:
        """Whether each element along `dim` lies in its region, stacked along it."""
        self._check_dim(value)
        parts = [value.select(self.dim, i) for i in range(value.size(self.dim))]
        checks = [one.check(part) for part, one in zip(parts, self.cseq, strict=True)]
        return webtorch.stack(checks, self.dim)


dependent = _Dependent()
dependent_property = _DependentProperty
independent = _IndependentConstraint
boolean = _Boolean()
one_hot = _OneHot()
nonnegative_integer = _IntegerGreaterThan(0)
positive_integer = _IntegerGreaterThan(1)
integer_interval = _IntegerInterval
real = _Real()
real_vector = independent(real, 1)
positive = _GreaterThan(0.0)
nonnegative = _GreaterThanEq(0.0)
greater_than = _GreaterThan
greater_than_eq = _GreaterThanEq
less_than = _LessThan
multinomial = _Multinomial
unit_interval = _Interval(0.0, 1.0)
interval = _Interval
half_open_interval = _HalfOpenInterval
simplex = _Simplex()
lower_triangular = _LowerTriangular()
lower_cholesky = _LowerCholesky()
corr_cholesky = _CorrCholesky()
square = _Square()
symmetric = _Symmetric()
positive_semidefinite = _PositiveSemidefinite()
positive_definite = _PositiveDefinite()
cat = _Cat
stack = _Stack
