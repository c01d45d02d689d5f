"""The base class of distributions. May import floors 0 to 4."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any, Self

from webtorch.distributions import constraints
from webtorch.distributions.utils import lazy_property
from webtorch.functions import public as webtorch
from webtorch.ir.lines import user_depth
from webtorch.ops.primitive import shown
from webtorch.tensors.host import reads
from webtorch.tensors.size import Size
from webtorch.tensors.tensor import Tensor

__all__ = ["Distribution"]


class Distribution:
    """A distribution, or a batch of them: parameters of shape `batch_shape`, samples of shape `event_shape`.

    Parameters and values are checked unless validate_args is False (or Python runs with -O): a check reads one
    flag from the device. In a function that `webtorch.compile` captures nothing is read, so nothing is checked.
    """

    has_rsample: Any = False
    has_enumerate_support: Any = False
    _validate_args = __debug__
    # What `expand` takes over: attributes (tensors, distributions) that start with the batch, and others. A class with
    # an `__init__` of its own names its own.
    _batched: tuple[str, ...] | None = None
    _unbatched: tuple[str, ...] = ()
    # log_prob and cdf of a checked value, where the distribution has them.
    _log_prob: Callable[[Tensor], Tensor] | None = None
    _cdf: Callable[[Tensor], Tensor] | None = None

    @staticmethod
    def set_default_validate_args(value: bool) -> None:
        """Set whether parameters and values are checked where validate_args is not given."""
        if value not in [True, False]:
            raise ValueError(f"value must be True or False, not {value!r}")
        Distribution._validate_args = value

    def __init__(
        self,
        batch_shape: Size = Size(),
        event_shape: Size = Size(),
        validate_args: bool | None = None,
    ) -> None:
        self._batch_shape = batch_shape
        self._event_shape = event_shape
        if validate_args is not None:
            self._validate_args = validate_args
        if self._validate_args and reads.possible:
            self._check_parameters()
        super().__init__()

    def _check_parameters(self) -> None:
        try:
            wanted = self.arg_constraints
        except NotImplementedError:
            wanted = {}
            warnings.warn(
                f"{self.__class__} does not define `arg_constraints`. Please set `arg_constraints = {{}}` or "
                "initialize the distribution with `validate_args=False` to turn off validation.",
                stacklevel=user_depth(),
            )
        checked = []
        for name, constraint in wanted.items():
            if constraints.is_dependent(constraint):
                continue
            lazy = isinstance(getattr(type(self), name, None), lazy_property)
            if name not in self.__dict__ and lazy:
                continue
            value = getattr(self, name)
            checked.append((name, constraint, value, constraint.check(value)))
        if _all_true([valid for *_, valid in checked]):
            return
        for name, constraint, value, valid in checked:
            if not _all_true([valid]):
                raise ValueError(
                    f"Expected parameter {name} ({type(value).__name__} of shape {tuple(value.shape)}) "
                    f"of distribution {self!r} to satisfy the constraint {constraint!r}, "
                    f"but found invalid values:\n{value}"
                )

    def expand(self, batch_shape: Sequence[int], _instance: Self | None = None) -> Self:
        """Return the distribution with its parameters expanded to a batch shape. No memory is used for it.

        A subclass with an `__init__` of its own overrides this, and hands the instance that it made on as `_instance`.
        """
        if self._batched is None:
            raise NotImplementedError
        owner = next(cls for cls in type(self).__mro__ if "_batched" in vars(cls))
        new = self._get_checked_instance(owner, _instance)
        batch_shape = Size(batch_shape)
        rank = len(self._batch_shape)
        for name in self._batched:
            if name in self.__dict__:
                value = self.__dict__[name]
                shape = value.shape if isinstance(value, Tensor) else value.batch_shape
                setattr(new, name, value.expand(batch_shape + shape[rank:]))
        for name in self._unbatched:
            setattr(new, name, getattr(self, name))
        Distribution.__init__(new, batch_shape, self._event_shape, validate_args=False)
        new._validate_args = self._validate_args
        return new

    @property
    def batch_shape(self) -> Size:
        """The shape of the batch of distributions."""
        return self._batch_shape

    @property
    def event_shape(self) -> Size:
        """The shape of one sample of one distribution."""
        return self._event_shape

    @property
    def arg_constraints(self) -> Any:
        """The constraint of each parameter that is a tensor, by its name."""
        raise NotImplementedError

    @property
    def support(self) -> Any:
        """The constraint that samples satisfy."""
        raise NotImplementedError

    @property
    def mean(self) -> Tensor:
        """The mean."""
        raise NotImplementedError

    @property
    def mode(self) -> Tensor:
        """The most likely value."""
        raise NotImplementedError(f"{self.__class__} does not implement mode")

    @property
    def variance(self) -> Tensor:
        """The variance."""
        raise NotImplementedError

    @property
    def stddev(self) -> Tensor:
        """The standard deviation."""
        return self.variance.sqrt()

    def sample(self, sample_shape: Sequence[int] = Size()) -> Tensor:
        """Return samples of shape sample_shape + batch_shape + event_shape, without gradient."""
        with webtorch.no_grad():
            return self.rsample(sample_shape)

    def rsample(self, sample_shape: Sequence[int] = Size()) -> Tensor:
        """Return samples through which gradients reach the parameters."""
        raise NotImplementedError

    def sample_n(self, n: int) -> Tensor:
        """Return n samples. Deprecated: use sample((n,))."""
        warnings.warn(
            "`sample_n(n)` will be deprecated. Use `sample((n,))` instead.",
            FutureWarning,
            stacklevel=user_depth(),
        )
        return self.sample(Size((n,)))

    def log_prob(self, value: Tensor) -> Tensor:
        """Return the logarithm of the density, or of the probability, of a value.

        The value broadcasts against batch_shape + event_shape; the result has one number for each event. Raises
        ValueError, if values are checked, for another shape and for a value outside the support.
        """
        return self._at(self._log_prob, value)

    def cdf(self, value: Tensor) -> Tensor:
        """Return the probability of being at most a value. Checks the value as `log_prob` does."""
        return self._at(self._cdf, value)

    def _at(self, rule: Callable[[Tensor], Tensor] | None, value: Tensor) -> Tensor:
        """Return what a rule gives for a value, which is checked. Raises NotImplementedError without a rule."""
        if rule is None:
            raise NotImplementedError
        if self._validate_args:
            self._validate_sample(value)
        return rule(value)

    def icdf(self, value: Tensor) -> Tensor:
        """Return the value that has a cumulative probability."""
        raise NotImplementedError

    def enumerate_support(self, expand: bool = True) -> Tensor:
        """Return all values of a discrete distribution along a new first dim; without `expand`, for a batch of ones."""
        raise NotImplementedError

    def entropy(self) -> Tensor:
        """Return the entropy, in nats."""
        raise NotImplementedError

    def perplexity(self) -> Tensor:
        """Return exp(entropy)."""
        return self.entropy().exp()

    def _extended_shape(self, sample_shape: Sequence[int] = Size()) -> Size:
        return Size(sample_shape) + self._batch_shape + self._event_shape

    def _enumerated(self, values: Tensor, expand: bool) -> Tensor:
        """Return 1-d values along the first dim, before the batch."""
        values = values.view((-1,) + (1,) * len(self._batch_shape))
        return values.expand((-1, *self._batch_shape)) if expand else values

    def _full(self, like: Tensor, value: float) -> Tensor:
        """Return one number in the shape of a sample."""
        return webtorch.full(self._extended_shape(), value, dtype=like.dtype, device=like.device)

    def _validate_sample(self, value: Tensor) -> None:
        """Raise ValueError unless the shape of a value fits, and the value is in the support."""
        if not isinstance(value, Tensor):
            raise ValueError("The value argument to log_prob must be a Tensor")
        size = value.size()
        start = len(size) - len(self._event_shape)
        if size[start:] != self._event_shape:
            raise ValueError(
                f"The right-most size of value must match event_shape: {size} vs {self._event_shape}."
            )
        expected = self._batch_shape + self._event_shape
        for i, j in zip(reversed(size), reversed(expected), strict=False):
            if i != 1 and j != 1 and i != j:
                raise ValueError(
                    f"Value is not broadcastable with batch_shape+event_shape: {size} vs {expected}."
                )
        if not reads.possible:
            return
        try:
            support = self.support
        except NotImplementedError:
            warnings.warn(
                f"{self.__class__} does not define `support` to enable sample validation. Please initialize the "
                "distribution with `validate_args=False` to turn off validation.",
                stacklevel=user_depth(),
            )
            return
        if not _all_true([support.check(value)]):
            raise ValueError(
                f"Expected value argument ({type(value).__name__} of shape {tuple(value.shape)}) "
                f"to be within the support ({support!r}) of the distribution {self!r}, "
                f"but found invalid values:\n{value}"
            )

    def _get_checked_instance(self, cls: type[Distribution], _instance: Self | None = None) -> Self:
        if _instance is None and type(self).__init__ != cls.__init__:
            raise NotImplementedError(
                f"Subclass {self.__class__.__name__} of {cls.__name__} that defines a custom __init__ method "
                "must also define a custom .expand() method."
            )
        return self.__new__(type(self)) if _instance is None else _instance

    def __repr__(self) -> str:
        own = {k: self.__dict__[k] for k in self.arg_constraints if k in self.__dict__}
        shown = [f"{k}: {v if v.numel() == 1 else v.size()}" for k, v in own.items()]
        return f"{self.__class__.__name__}({', '.join(shown)})"


def _all_true(checks: list[Tensor]) -> bool:
    """Whether all elements are true; the tensors of one device are read at once."""
    # All examples of a vmap are looked at together.
    checks = [shown(check) for check in checks]
    if len({check.device for check in checks}) > 1:
        return all(bool(check.all()) for check in checks)
    whole = [check.all() for check in checks]
    return not whole or bool(webtorch.stack(whole).all())
