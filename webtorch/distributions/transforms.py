"""Invertible functions with the logarithm of their Jacobian. May import floors 0 to 4."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from webtorch import linalg
from webtorch.distributions import constraints
from webtorch.distributions.utils import (
    _sum_rightmost,
    broadcast_all,
    lazy_property,
    tril_matrix_to_vec,
    vec_to_tril_matrix,
)
from webtorch.functions import public as webtorch
from webtorch.nn.functional import logsigmoid, pad, softplus
from webtorch.tensors.size import Size
from webtorch.tensors.tensor import Tensor

__all__ = [
    "AbsTransform",
    "AffineTransform",
    "CatTransform",
    "ComposeTransform",
    "CorrCholeskyTransform",
    "CumulativeDistributionTransform",
    "ExpTransform",
    "IndependentTransform",
    "LowerCholeskyTransform",
    "PositiveDefiniteTransform",
    "PowerTransform",
    "ReshapeTransform",
    "SigmoidTransform",
    "SoftmaxTransform",
    "SoftplusTransform",
    "StackTransform",
    "StickBreakingTransform",
    "TanhTransform",
    "Transform",
    "identity_transform",
]


Shape = tuple[int, ...]


class Transform:
    """A function of tensors from `domain` to `codomain`, with its inverse `inv` and log |det Jacobian|.

    With cache_size=1 the last pair of input and output is kept, so that the inverse of an output is the very input.
    """

    bijective: Any = False
    domain: Any
    codomain: Any
    # What the constructor takes beside cache_size, if it is a subclass's own: names of attributes.
    _arguments: tuple[str, ...] | None = None

    def __init__(self, cache_size: int = 0) -> None:
        if cache_size not in (0, 1):
            raise ValueError("cache_size must be 0 or 1")
        self._cache_size = cache_size
        self._inv: Any = None
        self._cached_x_y: tuple[Any, Any] = (None, None)
        super().__init__()

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "_inv": None}

    @property
    def event_dim(self) -> int:
        """The number of dims of an event, where it is the same on both sides."""
        if self.domain.event_dim == self.codomain.event_dim:
            return self.domain.event_dim
        raise ValueError("Please use either .domain.event_dim or .codomain.event_dim")

    @property
    def inv(self) -> Transform:
        """The inverse; its own inverse is this transform."""
        if self._inv is None:
            self._inv = _InverseTransform(self)
        return self._inv

    @property
    def sign(self) -> Tensor | int:
        """The sign of the derivative: 1 or -1."""
        raise NotImplementedError

    def with_cache(self, cache_size: int = 1) -> Transform:
        """Return the same transform with another cache."""
        if self._cache_size == cache_size:
            return self
        if type(self).__init__ is Transform.__init__:
            return type(self)(cache_size=cache_size)
        if self._arguments is None:
            raise NotImplementedError(f"{type(self)}.with_cache is not implemented")
        owner = next(cls for cls in type(self).__mro__ if "_arguments" in vars(cls))
        return owner(*[getattr(self, name) for name in self._arguments], cache_size=cache_size)

    def __eq__(self, other: object) -> bool:
        return self is other

    def __ne__(self, other: object) -> bool:
        return not self == other

    __hash__ = object.__hash__

    def __call__(self, x: Tensor) -> Tensor:
        """Return the value at x."""
        if not self._cache_size:
            return self._call(x)
        if self._cached_x_y[0] is not x or x is None:
            self._cached_x_y = (x, self._call(x))
        return self._cached_x_y[1]

    def _inv_call(self, y: Tensor) -> Tensor:
        if not self._cache_size:
            return self._inverse(y)
        if self._cached_x_y[1] is not y or y is None:
            self._cached_x_y = (self._inverse(y), y)
        return self._cached_x_y[0]

    def _call(self, x: Tensor) -> Tensor:
        raise NotImplementedError

    def _inverse(self, y: Tensor) -> Tensor:
        raise NotImplementedError

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        """Return log |det dy/dx| for an input and its output, one number for each event."""
        raise NotImplementedError

    def __repr__(self) -> str:
        return f"{self.__class__.__name__}()"

    def forward_shape(self, shape: Shape) -> Shape:
        """Return the shape of the output for an input shape."""
        return shape

    def inverse_shape(self, shape: Shape) -> Shape:
        """Return the shape of the input for an output shape."""
        return shape


class _InverseTransform(Transform):
    """The inverse of a transform, which does the work."""

    def __init__(self, transform: Transform) -> None:
        super().__init__(cache_size=transform._cache_size)
        self._inv = transform

    @constraints.dependent_property(is_discrete=False)
    def domain(self) -> constraints.Constraint:
        """The transform's codomain."""
        return self._inv.codomain

    @constraints.dependent_property(is_discrete=False)
    def codomain(self) -> constraints.Constraint:
        """The transform's domain."""
        return self._inv.domain

    @property
    def bijective(self) -> bool:
        """Whether the transform is."""
        return self._inv.bijective

    @property
    def sign(self) -> Tensor | int:
        """That of the transform."""
        return self._inv.sign

    @property
    def inv(self) -> Transform:
        """The transform."""
        return self._inv

    def with_cache(self, cache_size: int = 1) -> Transform:
        """Return the inverse of the transform with another cache."""
        return self.inv.with_cache(cache_size).inv

    def __getstate__(self) -> dict[str, object]:
        return self.__dict__.copy()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _InverseTransform) and self._inv == other._inv

    __hash__ = object.__hash__

    def __repr__(self) -> str:
        return f"{self.__class__.__name__}({self._inv!r})"

    def __call__(self, x: Tensor) -> Tensor:
        return self._inv._inv_call(x)

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        """Return the transform's at (y, x), negated."""
        return -self._inv.log_abs_det_jacobian(y, x)

    def forward_shape(self, shape: Shape) -> Shape:
        """Return the shape that the transform needs for an output shape."""
        return self._inv.inverse_shape(shape)

    def inverse_shape(self, shape: Shape) -> Shape:
        """Return the shape of the transform's output."""
        return self._inv.forward_shape(shape)


class ComposeTransform(Transform):
    """Several transforms, the first one first."""

    _arguments = ("parts",)

    def __init__(self, parts: list[Transform], cache_size: int = 0) -> None:
        super().__init__(cache_size=cache_size)
        self.parts = [part.with_cache(cache_size) for part in parts] if cache_size else parts

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ComposeTransform) and self.parts == other.parts

    __hash__ = object.__hash__

    @constraints.dependent_property(is_discrete=False)
    def domain(self) -> constraints.Constraint:
        """That of the first part, with the dims that later parts need."""
        if not self.parts:
            return constraints.real
        event_dim = self.parts[-1].codomain.event_dim
        for part in reversed(self.parts):
            event_dim += part.domain.event_dim - part.codomain.event_dim
            event_dim = max(event_dim, part.domain.event_dim)
        return _widened(self.parts[0].domain, event_dim)

    @constraints.dependent_property(is_discrete=False)
    def codomain(self) -> constraints.Constraint:
        """That of the last part, with the dims that earlier parts have."""
        if not self.parts:
            return constraints.real
        event_dim = self.parts[0].domain.event_dim
        for part in self.parts:
            event_dim += part.codomain.event_dim - part.domain.event_dim
            event_dim = max(event_dim, part.codomain.event_dim)
        return _widened(self.parts[-1].codomain, event_dim)

    @lazy_property
    def bijective(self) -> bool:
        """Whether all parts are."""
        return all(part.bijective for part in self.parts)

    @lazy_property
    def sign(self) -> Tensor | int:
        """The product of the parts' signs."""
        sign: Tensor | int = 1
        for part in self.parts:
            sign = sign * part.sign
        return sign

    @property
    def inv(self) -> Transform:
        """The inverses of the parts, the last one first."""
        if self._inv is None:
            self._inv = ComposeTransform([part.inv for part in reversed(self.parts)])
            self._inv._inv = self
        return self._inv

    def __call__(self, x: Tensor) -> Tensor:
        for part in self.parts:
            x = part(x)
        return x

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        """Return the sum of the parts', each over the dims that are one event of the whole."""
        if not self.parts:
            return webtorch.zeros_like(x)
        points = [x]
        for part in self.parts[:-1]:
            points.append(part(points[-1]))
        points.append(y)
        event_dim = self.domain.event_dim
        total: Any = None
        for part, before, after in zip(self.parts, points, points[1:], strict=False):
            term = part.log_abs_det_jacobian(before, after)
            term = _sum_rightmost(term, event_dim - part.domain.event_dim)
            total = term if total is None else total + term
            event_dim += part.codomain.event_dim - part.domain.event_dim
        return total

    def forward_shape(self, shape: Shape) -> Shape:
        """Return the shape after all parts."""
        for part in self.parts:
            shape = part.forward_shape(shape)
        return shape

    def inverse_shape(self, shape: Shape) -> Shape:
        """Return the shape that the first part needs."""
        for part in reversed(self.parts):
            shape = part.inverse_shape(shape)
        return shape

    def __repr__(self) -> str:
        parts = ",\n    ".join(map(repr, self.parts))
        return f"{self.__class__.__name__}(\n    {parts}\n)"


def _widened(constraint: constraints.Constraint, event_dim: int) -> constraints.Constraint:
    extra = event_dim - constraint.event_dim
    return constraints.independent(constraint, extra) if extra else constraint


identity_transform = ComposeTransform([])


class IndependentTransform(Transform):
    """Another transform whose last dims are one event."""

    _arguments = ("base_transform", "reinterpreted_batch_ndims")

    def __init__(
        self, base_transform: Transform, reinterpreted_batch_ndims: int, cache_size: int = 0
    ) -> None:
        super().__init__(cache_size=cache_size)
        self.base_transform = base_transform.with_cache(cache_size)
        self.reinterpreted_batch_ndims = reinterpreted_batch_ndims

    @constraints.dependent_property(is_discrete=False)
    def domain(self) -> constraints.Constraint:
        """The base's, with the dims taken together."""
        return constraints.independent(self.base_transform.domain, self.reinterpreted_batch_ndims)

    @constraints.dependent_property(is_discrete=False)
    def codomain(self) -> constraints.Constraint:
        """The base's, with the dims taken together."""
        return constraints.independent(self.base_transform.codomain, self.reinterpreted_batch_ndims)

    @property
    def bijective(self) -> bool:
        """Whether the base is."""
        return self.base_transform.bijective

    @property
    def sign(self) -> Tensor | int:
        """That of the base."""
        return self.base_transform.sign

    def _call(self, x: Tensor) -> Tensor:
        if x.dim() < self.domain.event_dim:
            raise ValueError("Too few dimensions on input")
        return self.base_transform(x)

    def _inverse(self, y: Tensor) -> Tensor:
        if y.dim() < self.codomain.event_dim:
            raise ValueError("Too few dimensions on input")
        return self.base_transform.inv(y)

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        """Return the base's, summed over the dims taken together."""
        result = self.base_transform.log_abs_det_jacobian(x, y)
        return _sum_rightmost(result, self.reinterpreted_batch_ndims)

    def __repr__(self) -> str:
        return (
            f"{self.__class__.__name__}({self.base_transform!r}, {self.reinterpreted_batch_ndims})"
        )

    def forward_shape(self, shape: Shape) -> Shape:
        """Return the shape of the base's output."""
        return self.base_transform.forward_shape(shape)

    def inverse_shape(self, shape: Shape) -> Shape:
        """Return the shape of the base's input."""
        return self.base_transform.inverse_shape(shape)


class ReshapeTransform(Transform):
    """The last dims in another shape of as many elements."""

    _arguments = ("in_shape", "out_shape")
    bijective = True

    def __init__(
        self, in_shape: Sequence[int], out_shape: Sequence[int], cache_size: int = 0
    ) -> None:
        self.in_shape = Size(in_shape)
        self.out_shape = Size(out_shape)
        if self.in_shape.numel() != self.out_shape.numel():
            raise ValueError("in_shape, out_shape have different numbers of elements")
        super().__init__(cache_size=cache_size)

    @constraints.dependent_property
    def domain(self) -> constraints.Constraint:
        """Real tensors of as many dims as in_shape."""
        return constraints.independent(constraints.real, len(self.in_shape))

    @constraints.dependent_property
    def codomain(self) -> constraints.Constraint:
        """Real tensors of as many dims as out_shape."""
        return constraints.independent(constraints.real, len(self.out_shape))

    def _call(self, x: Tensor) -> Tensor:
        return x.reshape(x.shape[: x.dim() - len(self.in_shape)] + self.out_shape)

    def _inverse(self, y: Tensor) -> Tensor:
        return y.reshape(y.shape[: y.dim() - len(self.out_shape)] + self.in_shape)

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        """Return zeros of the batch's shape: no volume changes."""
        return x.new_zeros(x.shape[: x.dim() - len(self.in_shape)])

    def forward_shape(self, shape: Shape) -> Shape:
        """Return the shape with out_shape at its end. Raises ValueError unless it ends with in_shape."""
        return self._changed(shape, self.in_shape, self.out_shape)

    def inverse_shape(self, shape: Shape) -> Shape:
        """Return the shape with in_shape at its end. Raises ValueError unless it ends with out_shape."""
        return self._changed(shape, self.out_shape, self.in_shape)

    @staticmethod
    def _changed(shape: Shape, old: Size, new: Size) -> Shape:
        cut = len(shape) - len(old)
        if cut < 0:
            raise ValueError("Too few dimensions on input")
        if shape[cut:] != old:
            raise ValueError(f"Shape mismatch: expected {shape[cut:]} but got {old}")
        return shape[:cut] + new


class _Plain(Transform):
    """A transform without parameters: two of one class are equal."""

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self)

    __hash__ = object.__hash__


class ExpTransform(_Plain):
    """exp(x)."""

    domain = constraints.real
    codomain = constraints.positive
    bijective = True
    sign = +1

    def _call(self, x: Tensor) -> Tensor:
        return x.exp()

    def _inverse(self, y: Tensor) -> Tensor:
        return y.log()

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        """Return x."""
        return x


class PowerTransform(Transform):
    """x ** exponent, of positive x."""

    _arguments = ("exponent",)
    domain = constraints.positive
    codomain = constraints.positive
    bijective = True

    def __init__(self, exponent: Tensor, cache_size: int = 0) -> None:
        super().__init__(cache_size=cache_size)
        (self.exponent,) = broadcast_all(exponent)

    @lazy_property
    def sign(self) -> Tensor | int:
        """The sign of the exponent."""
        return self.exponent.sign()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, PowerTransform) and _same(self.exponent, other.exponent)

    __hash__ = object.__hash__

    def _call(self, x: Tensor) -> Tensor:
        return x.pow(self.exponent)

    def _inverse(self, y: Tensor) -> Tensor:
        return y.pow(1 / self.exponent)

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        """Return log |exponent * y / x|."""
        return (self.exponent * y / x).abs().log()

    def forward_shape(self, shape: Shape) -> Shape:
        """Return the shape broadcast with that of the exponent."""
        return webtorch.broadcast_shapes(shape, self.exponent.shape)

    inverse_shape = forward_shape


def _same(a: Tensor | float, b: Tensor | float) -> bool:
    """Whether two numbers or tensors are equal everywhere."""
    same = a == b
    return bool(same.all()) if isinstance(same, Tensor) else same


def _clipped_sigmoid(x: Tensor) -> Tensor:
    limits = webtorch.finfo(x.dtype)
    return webtorch.sigmoid(x).clamp(min=limits.tiny, max=1.0 - limits.eps)


class SigmoidTransform(_Plain):
    """1 / (1 + exp(-x)), kept inside (0, 1)."""

    domain = constraints.real
    codomain = constraints.unit_interval
    bijective = True
    sign = +1

    def _call(self, x: Tensor) -> Tensor:
        return _clipped_sigmoid(x)

    def _inverse(self, y: Tensor) -> Tensor:
        limits = webtorch.finfo(y.dtype)
        y = y.clamp(min=limits.tiny, max=1.0 - limits.eps)
        return y.log() - (-y).log1p()

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        """Return log(sigmoid(x) * (1 - sigmoid(x))), by softplus."""
        return -softplus(-x) - softplus(x)


class SoftplusTransform(_Plain):
    """log(1 + exp(x))."""

    domain = constraints.real
    codomain = constraints.positive
    bijective = True
    sign = +1

    def _call(self, x: Tensor) -> Tensor:
        return softplus(x)

    def _inverse(self, y: Tensor) -> Tensor:
        return (-(-y).expm1()).log() + y

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        """Return log(sigmoid(x)), by softplus."""
        return -softplus(-x)


class TanhTransform(_Plain):
    """tanh(x). With cache_size=1, log_prob of a sample near the ends of (-1, 1) stays exact."""

    domain = constraints.real
    codomain = constraints.interval(-1.0, 1.0)
    bijective = True
    sign = +1

    def _call(self, x: Tensor) -> Tensor:
        return x.tanh()

    def _inverse(self, y: Tensor) -> Tensor:
        return y.atanh()

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        """Return log(1 - tanh(x) ** 2), by softplus."""
        # log(1 - tanh(x)**2) without cancellation.
        return 2.0 * (math.log(2.0) - x - softplus(-2.0 * x))


class AbsTransform(_Plain):
    """|x|; the inverse takes the positive side."""

    domain = constraints.real
    codomain = constraints.positive

    def _call(self, x: Tensor) -> Tensor:
        return x.abs()

    def _inverse(self, y: Tensor) -> Tensor:
        return y


class AffineTransform(Transform):
    """loc + scale * x; event_dim of the last dims are one event."""

    _arguments = ("loc", "scale", "event_dim")
    bijective = True

    def __init__(
        self, loc: Tensor | float, scale: Tensor | float, event_dim: int = 0, cache_size: int = 0
    ) -> None:
        super().__init__(cache_size=cache_size)
        self.loc = loc
        self.scale = scale
        self._event_dim = event_dim

    @property
    def event_dim(self) -> int:
        """The number of dims of an event."""
        return self._event_dim

    @constraints.dependent_property(is_discrete=False)
    def domain(self) -> constraints.Constraint:
        """Real tensors of event_dim dims."""
        return _widened(constraints.real, self.event_dim)

    @constraints.dependent_property(is_discrete=False)
    def codomain(self) -> constraints.Constraint:
        """Real tensors of event_dim dims."""
        return _widened(constraints.real, self.event_dim)

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, AffineTransform)
            and _same(self.loc, other.loc)
            and _same(self.scale, other.scale)
        )

    __hash__ = object.__hash__

    @property
    def sign(self) -> Tensor | int:
        """The sign of the scale."""
        if isinstance(self.scale, Tensor):
            return self.scale.sign()
        return (self.scale > 0) - (self.scale < 0)

    def _call(self, x: Tensor) -> Tensor:
        return self.loc + self.scale * x

    def _inverse(self, y: Tensor) -> Tensor:
        return (y - self.loc) / self.scale

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        """Return log |scale|, summed over the event's dims."""
        shape = x.shape
        if isinstance(self.scale, Tensor):
            result = self.scale.abs().log()
        else:
            result = webtorch.full_like(x, math.log(abs(self.scale)))
        if self.event_dim:
            result = _sum_rightmost(result, self.event_dim)
            shape = shape[: -self.event_dim]
        return result.expand(shape)

    def forward_shape(self, shape: Shape) -> Shape:
        """Return the shape broadcast with those of loc and scale."""
        return webtorch.broadcast_shapes(
            shape, getattr(self.loc, "shape", ()), getattr(self.scale, "shape", ())
        )

    inverse_shape = forward_shape


class CorrCholeskyTransform(Transform):
    """Vectors of n (n - 1) / 2 real numbers to Cholesky factors of n by n correlation matrices.

    tanh of each number is a partial correlation; each row is broken off a stick of length 1 (Lewandowski,
    Kurowicka and Joe, 2009).
    """

    domain = constraints.real_vector
    codomain = constraints.corr_cholesky
    bijective = True

    def _call(self, x: Tensor) -> Tensor:
        eps = webtorch.finfo(x.dtype).eps
        r = vec_to_tril_matrix(x.tanh().clamp(min=-1 + eps, max=1 - eps), diag=-1)
        left = (1 - r.square()).sqrt().cumprod(-1)
        r = r + webtorch.eye(r.shape[-1], dtype=r.dtype, device=r.device)
        return r * pad(left[..., :-1], [1, 0], value=1)

    def _inverse(self, y: Tensor) -> Tensor:
        left = pad((1 - y.square().cumsum(-1))[..., :-1], [1, 0], value=1)
        t = tril_matrix_to_vec(y, diag=-1) / tril_matrix_to_vec(left, diag=-1).sqrt()
        return (t.log1p() - (-t).log1p()) / 2

    def log_abs_det_jacobian(
        self, x: Tensor, y: Tensor, intermediates: Tensor | None = None
    ) -> Tensor:
        """Return the logarithm for each vector; `intermediates` is ignored."""
        # Each column's numbers below the first enter with the root of what is left of the row.
        left = tril_matrix_to_vec(1 - y.square().cumsum(-1), diag=-2)
        of_tanh = -2 * (x + softplus(-2 * x) - math.log(2.0)).sum(-1)
        return 0.5 * left.log().sum(-1) + of_tanh

    def forward_shape(self, shape: Shape) -> Shape:
        """Return (..., n, n) for (..., n * (n - 1) / 2). Raises ValueError for other sizes."""
        if len(shape) < 1:
            raise ValueError("Too few dimensions on input")
        n = shape[-1]
        d = round((0.25 + 2 * n) ** 0.5 + 0.5)
        if d * (d - 1) // 2 != n:
            raise ValueError("Input is not a flattened lower-diagonal number")
        return shape[:-1] + (d, d)  # noqa: RUF005 - a Size stays one

    def inverse_shape(self, shape: Shape) -> Shape:
        """Return (..., n * (n - 1) / 2) for (..., n, n). Raises ValueError unless square."""
        if len(shape) < 2:
            raise ValueError("Too few dimensions on input")
        if shape[-2] != shape[-1]:
            raise ValueError("Input is not square")
        d = shape[-1]
        return shape[:-2] + (d * (d - 1) // 2,)  # noqa: RUF005 - a Size stays one


class _OfVectors(_Plain):
    """A plain transform of vectors whose size may change by `_more`."""

    _more = 0

    def _shape(self, shape: Shape, change: int) -> Shape:
        if len(shape) < 1:
            raise ValueError("Too few dimensions on input")
        return shape[:-1] + (shape[-1] + change,)  # noqa: RUF005 - a Size stays one

    def forward_shape(self, shape: Shape) -> Shape:
        """Return the shape of the output. Raises ValueError for a scalar."""
        return self._shape(shape, self._more)

    def inverse_shape(self, shape: Shape) -> Shape:
        """Return the shape of the input. Raises ValueError for a scalar."""
        return self._shape(shape, -self._more)


class SoftmaxTransform(_OfVectors):
    """softmax(x): not bijective, the inverse is the logarithm."""

    domain = constraints.real_vector
    codomain = constraints.simplex

    def _call(self, x: Tensor) -> Tensor:
        return x.softmax(-1)

    def _inverse(self, y: Tensor) -> Tensor:
        return y.log()


class StickBreakingTransform(_OfVectors):
    """Real vectors to the simplex of one dim more: each number says which part of what is left is broken off."""

    domain = constraints.real_vector
    codomain = constraints.simplex
    bijective = True
    _more = 1

    @staticmethod
    def _log_left(like: Tensor, count: int) -> Tensor:
        """Return log(count), log(count - 1), ...: for x = 0 all parts are equal."""
        return (count - webtorch.arange(like.shape[-1], dtype=like.dtype, device=like.device)).log()

    def _call(self, x: Tensor) -> Tensor:
        z = _clipped_sigmoid(x - self._log_left(x, x.shape[-1]))
        left = (1 - z).cumprod(-1)
        return pad(z, [0, 1], value=1) * pad(left, [1, 0], value=1)

    def _inverse(self, y: Tensor) -> Tensor:
        parts = y[..., :-1]
        left = (1 - parts.cumsum(-1)).clamp(min=webtorch.finfo(y.dtype).tiny)
        return parts.log() - left.log() + self._log_left(parts, y.shape[-1] - 1)

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        """Return the logarithm for each vector."""
        x = x - self._log_left(x, x.shape[-1])
        return (-x + logsigmoid(x) + y[..., :-1].log()).sum(-1)


class LowerCholeskyTransform(_Plain):
    """Square matrices to lower triangular ones with a positive diagonal."""

    domain = constraints.independent(constraints.real, 2)
    codomain = constraints.lower_cholesky

    def _call(self, x: Tensor) -> Tensor:
        return x.tril(-1) + x.diagonal(dim1=-2, dim2=-1).exp().diag_embed()

    def _inverse(self, y: Tensor) -> Tensor:
        return y.tril(-1) + y.diagonal(dim1=-2, dim2=-1).log().diag_embed()


class PositiveDefiniteTransform(_Plain):
    """Square matrices to positive definite ones."""

    domain = constraints.independent(constraints.real, 2)
    codomain = constraints.positive_definite

    def _call(self, x: Tensor) -> Tensor:
        factor = LowerCholeskyTransform()(x)
        return factor @ factor.mT

    def _inverse(self, y: Tensor) -> Tensor:
        return LowerCholeskyTransform().inv(linalg.cholesky(y))


class _Parts(Transform):
    """Several transforms, each of a part of the input along a dim."""

    transforms: list[Transform]

    def __init__(self, tseq: Sequence[Transform], dim: int = 0, cache_size: int = 0) -> None:
        if not all(isinstance(t, Transform) for t in tseq):
            raise AssertionError("All elements of tseq must be Transform instances")
        super().__init__(cache_size=cache_size)
        self.transforms = [t.with_cache(cache_size) for t in tseq] if cache_size else list(tseq)
        self.dim = dim

    @property
    def bijective(self) -> bool:
        """Whether all parts are."""
        return all(t.bijective for t in self.transforms)

    def _split(self, x: Tensor) -> list[Tensor]:
        raise NotImplementedError

    def _join(self, parts: list[Tensor]) -> Tensor:
        raise NotImplementedError

    def _check(self, x: Tensor, count: int, what: str) -> None:
        if not -x.dim() <= self.dim < x.dim():
            raise AssertionError(
                f"dim {self.dim} out of range for tensor with {x.dim()} dimensions"
            )
        if x.size(self.dim) != count:
            raise AssertionError(
                f"x.size({self.dim}) = {x.size(self.dim)} must equal {what} {count}"
            )

    def _call(self, x: Tensor) -> Tensor:
        parts = zip(self._split(x), self.transforms, strict=True)
        return self._join([t(part) for part, t in parts])

    def _inverse(self, y: Tensor) -> Tensor:
        parts = zip(self._split(y), self.transforms, strict=True)
        return self._join([t.inv(part) for part, t in parts])

    def _jacobians(self, x: Tensor, y: Tensor) -> list[Tensor]:
        parts = zip(self._split(x), self._split(y), self.transforms, strict=True)
        return [t.log_abs_det_jacobian(before, after) for before, after, t in parts]


class CatTransform(_Parts):
    """Transforms of slices of given lengths along a dim, as torch.cat puts them together."""

    _arguments = ("transforms", "dim", "lengths")

    def __init__(
        self,
        tseq: Sequence[Transform],
        dim: int = 0,
        lengths: Sequence[int] | None = None,
        cache_size: int = 0,
    ) -> None:
        super().__init__(tseq, dim, cache_size)
        self.lengths = [1] * len(self.transforms) if lengths is None else list(lengths)
        if len(self.lengths) != len(self.transforms):
            raise AssertionError(
                f"lengths ({len(self.lengths)}) must match transforms ({len(self.transforms)})"
            )

    @lazy_property
    def event_dim(self) -> int:
        """The largest of the parts."""
        return max(t.event_dim for t in self.transforms)

    @lazy_property
    def length(self) -> int:
        """The size of the dim."""
        return sum(self.lengths)

    def _split(self, x: Tensor) -> list[Tensor]:
        self._check(x, self.length, "length")
        return list(x.split(self.lengths, dim=self.dim))

    def _join(self, parts: list[Tensor]) -> Tensor:
        return webtorch.cat(parts, dim=self.dim)

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        """Return the parts' along `dim`; their sum if `dim` lies within an event."""
        found = [
            _sum_rightmost(term, self.event_dim - t.event_dim)
            for term, t in zip(self._jacobians(x, y), self.transforms, strict=True)
        ]
        dim = (self.dim - x.dim() if self.dim >= 0 else self.dim) + self.event_dim
        if dim < 0:
            return webtorch.cat(found, dim=dim)
        total: Any = sum(found)
        return total

    @constraints.dependent_property
    def domain(self) -> constraints.Constraint:
        """The parts' domains, one after the other along `dim`."""
        return constraints.cat([t.domain for t in self.transforms], self.dim, self.lengths)

    @constraints.dependent_property
    def codomain(self) -> constraints.Constraint:
        """The parts' codomains, one after the other along `dim`."""
        return constraints.cat([t.codomain for t in self.transforms], self.dim, self.lengths)


class StackTransform(_Parts):
    """Transforms of the elements along a dim, as torch.stack puts them together."""

    _arguments = ("transforms", "dim")

    def _split(self, x: Tensor) -> list[Tensor]:
        self._check(x, len(self.transforms), "len(transforms)")
        return [x.select(self.dim, i) for i in range(x.size(self.dim))]

    def _join(self, parts: list[Tensor]) -> Tensor:
        return webtorch.stack(parts, dim=self.dim)

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        """Return the parts', stacked along `dim`."""
        return self._join(self._jacobians(x, y))

    @constraints.dependent_property
    def domain(self) -> constraints.Constraint:
        """The parts' domains, stacked along `dim`."""
        return constraints.stack([t.domain for t in self.transforms], self.dim)

    @constraints.dependent_property
    def codomain(self) -> constraints.Constraint:
        """The parts' codomains, stacked along `dim`."""
        return constraints.stack([t.codomain for t in self.transforms], self.dim)


class CumulativeDistributionTransform(Transform):
    """The cumulative probability of a distribution: from its support to (0, 1)."""

    _arguments = ("distribution",)
    bijective = True
    codomain = constraints.unit_interval
    sign = +1

    def __init__(self, distribution: Any, cache_size: int = 0) -> None:
        super().__init__(cache_size=cache_size)
        self.distribution = distribution

    @property
    def domain(self) -> constraints.Constraint:
        """The distribution's support."""
        return self.distribution.support

    def _call(self, x: Tensor) -> Tensor:
        return self.distribution.cdf(x)

    def _inverse(self, y: Tensor) -> Tensor:
        return self.distribution.icdf(y)

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        """Return the distribution's log_prob of x: the density is the derivative."""
        return self.distribution.log_prob(x)
