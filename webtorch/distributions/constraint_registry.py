"""From a constraint to a transform that reaches it from all real numbers. May import floors 0 to 4."""

from __future__ import annotations

from collections.abc import Callable
from numbers import Number
from typing import Any, TypeVar

from webtorch.distributions import constraints, transforms

__all__ = ["ConstraintRegistry", "biject_to", "transform_to"]


F = TypeVar("F", bound=Callable[..., transforms.Transform])


class ConstraintRegistry:
    """A table from classes of constraints to functions that make a transform for one."""

    def __init__(self) -> None:
        self._registry: dict[type, Callable[[object], transforms.Transform]] = {}
        super().__init__()

    def register(self, constraint: Any, factory: Any = None) -> Any:
        """Add a function for a class of constraints, or for that of an instance; as a decorator without it."""
        if factory is None:
            return lambda factory: self.register(constraint, factory)
        if isinstance(constraint, constraints.Constraint):
            constraint = type(constraint)
        if not isinstance(constraint, type) or not issubclass(constraint, constraints.Constraint):
            raise TypeError(
                f"Expected constraint to be either a Constraint subclass or instance, but got {constraint}"
            )
        self._registry[constraint] = factory
        return factory

    def __call__(self, constraint: constraints.Constraint) -> transforms.Transform:
        """Return a transform from real numbers to the constraint. Raises NotImplementedError where none is known."""
        factory = self._registry.get(type(constraint))
        if factory is None:
            raise NotImplementedError(f"Cannot transform {type(constraint).__name__} constraints")
        return factory(constraint)


# biject_to gives bijections (with log_abs_det_jacobian); transform_to whatever suits optimisation best.
biject_to = ConstraintRegistry()
transform_to = ConstraintRegistry()


def _both(*kinds: object) -> Callable[[F], F]:
    def register(factory: F) -> F:
        """Add a pair of functions for one constraint to both registries."""
        for kind in kinds:
            biject_to.register(kind, factory)
            transform_to.register(kind, factory)
        return factory

    return register


@_both(constraints.real)
def _to_real(constraint: constraints.Constraint) -> transforms.Transform:
    return transforms.identity_transform


@_both(constraints.positive, constraints.nonnegative)
def _to_positive(constraint: constraints.Constraint) -> transforms.Transform:
    return transforms.ExpTransform()


@_both(constraints.greater_than, constraints.greater_than_eq)
def _to_greater_than(constraint: Any) -> transforms.Transform:
    shift = transforms.AffineTransform(constraint.lower_bound, 1)
    return transforms.ComposeTransform([transforms.ExpTransform(), shift])


@_both(constraints.less_than)
def _to_less_than(constraint: Any) -> transforms.Transform:
    shift = transforms.AffineTransform(constraint.upper_bound, -1)
    return transforms.ComposeTransform([transforms.ExpTransform(), shift])


@_both(constraints.interval, constraints.half_open_interval)
def _to_interval(constraint: Any) -> transforms.Transform:
    low, high = constraint.lower_bound, constraint.upper_bound
    numbers = isinstance(low, Number) and isinstance(high, Number)
    if numbers and (low, high) == (0, 1):
        return transforms.SigmoidTransform()
    shift = transforms.AffineTransform(low, high - low)
    return transforms.ComposeTransform([transforms.SigmoidTransform(), shift])


biject_to.register(constraints.simplex, lambda constraint: transforms.StickBreakingTransform())
transform_to.register(constraints.simplex, lambda constraint: transforms.SoftmaxTransform())
transform_to.register(
    constraints.lower_cholesky, lambda constraint: transforms.LowerCholeskyTransform()
)
for _kind in (constraints.positive_definite, constraints.positive_semidefinite):
    transform_to.register(_kind, lambda constraint: transforms.PositiveDefiniteTransform())


@_both(constraints.corr_cholesky)
def _to_corr_cholesky(constraint: constraints.Constraint) -> transforms.Transform:
    return transforms.CorrCholeskyTransform()


def _register_parts(registry: ConstraintRegistry) -> None:
    """Register what is made of other constraints: their transforms come from the same table."""
    registry.register(
        constraints.independent,
        lambda c: transforms.IndependentTransform(
            registry(c.base_constraint), c.reinterpreted_batch_ndims
        ),
    )
    registry.register(
        constraints.cat,
        lambda c: transforms.CatTransform([registry(p) for p in c.cseq], c.dim, c.lengths),
    )
    registry.register(
        constraints.stack,
        lambda c: transforms.StackTransform([registry(p) for p in c.cseq], c.dim),
    )


_register_parts(biject_to)
_register_parts(transform_to)
