"""What distributions share: broadcasting of parameters, probabilities and logits, properties computed once.

The name is PyTorch's, `torch.distributions.utils`. May import floors 0 to 4.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Sequence
from numbers import Number
from typing import Any

from webtorch.functions import public as webtorch
from webtorch.ir.dtype import DType
from webtorch.nn import functional
from webtorch.tensors.device import DeviceLike
from webtorch.tensors.tensor import Size, Tensor

# A parameter of a distribution: numbers broadcast against tensors.
Value = Tensor | float

euler_constant = 0.57721566490153286060

__all__ = [
    "broadcast_all",
    "clamp_probs",
    "lazy_property",
    "logits_to_probs",
    "probs_to_logits",
    "tril_matrix_to_vec",
    "vec_to_tril_matrix",
]


def broadcast_all(*values: object) -> tuple[Tensor, ...]:
    """Return the values as tensors of one shape; numbers take the dtype and device of the first tensor.

    Raises ValueError for what is neither a tensor nor a number.
    """
    first = None
    for value in values:
        if isinstance(value, Tensor):
            first = value if first is None else first
        elif not isinstance(value, Number) and not hasattr(value, "__torch_function__"):
            raise ValueError(
                "Input arguments must all be instances of Number, torch.Tensor or objects implementing "
                "__torch_function__."
            )
    options = (
        {"dtype": webtorch.get_default_dtype()}
        if first is None
        else {"dtype": first.dtype, "device": first.device}
    )
    return webtorch.broadcast_tensors(
        *[webtorch.tensor(v, **options) if isinstance(v, Number) else v for v in values]
    )


def _standard_normal(shape: Sequence[int], dtype: DType, device: DeviceLike) -> Tensor:
    return webtorch.randn(tuple(shape), dtype=dtype, device=device)


def _sum_rightmost(value: Tensor, dim: int) -> Tensor:
    """Return the sum over the last `dim` dims."""
    return value if dim == 0 else value.reshape((*value.shape[:-dim], -1)).sum(-1)


def logits_to_probs(logits: Tensor, is_binary: bool = False) -> Tensor:
    """Return probabilities of log odds (is_binary), or of log probabilities up to a constant along the last dim."""
    return webtorch.sigmoid(logits) if is_binary else functional.softmax(logits, dim=-1)


def clamp_probs(probs: Tensor) -> Tensor:
    """Return probabilities moved into [eps, 1 - eps], eps that of their dtype."""
    eps = webtorch.finfo(probs.dtype).eps
    return probs.clamp(min=eps, max=1 - eps)


def probs_to_logits(probs: Tensor, is_binary: bool = False) -> Tensor:
    """Return log odds of probabilities (is_binary), or log probabilities; both of clamped probabilities."""
    clamped = clamp_probs(probs)
    return clamped.log() - (-clamped).log1p() if is_binary else clamped.log()


def part(path: str, doc: str) -> Any:
    """Return a property that reads an attribute of a part of the instance, such as "base_dist.loc"."""
    return property(operator.attrgetter(path), doc=doc)


class lazy_property:
    """A property that is computed at its first use and kept as an attribute of the instance."""

    def __init__(self, wrapped: Callable[[Any], object]) -> None:
        self.wrapped = wrapped
        functools.update_wrapper(self, wrapped)  # type: ignore[arg-type]

    def __get__(self, instance: object, obj_type: object = None) -> Any:
        if instance is None:
            return _lazy_property_and_property(self.wrapped)
        with webtorch.enable_grad():
            value = self.wrapped(instance)
        setattr(instance, self.wrapped.__name__, value)
        return value


class _lazy_property_and_property(lazy_property, property):
    """What the class shows of a lazy property: a property for documentation, a lazy one for validation."""

    def __init__(self, wrapped: Callable[[Any], object]) -> None:
        property.__init__(self, wrapped)


def tril_matrix_to_vec(mat: Tensor, diag: int = 0) -> Tensor:
    """Return the elements on and below a diagonal of matrices, row by row."""
    n = mat.shape[-1]
    if diag < -n or diag >= n:
        raise ValueError(f"diag ({diag}) provided is outside [{-n}, {n - 1}].")
    places = [i * n + j for i in range(n) for j in range(min(n, i + diag + 1))]
    index = webtorch.tensor(places, dtype=webtorch.int64, device=mat.device)
    return mat.reshape((*mat.shape[:-2], n * n)).index_select(-1, index)


def vec_to_tril_matrix(vec: Tensor, diag: int = 0) -> Tensor:
    """Return square matrices with the elements of vectors on and below a diagonal, row by row, and 0 elsewhere."""
    count = vec.shape[-1]
    size = (
        -(1 + 2 * diag) + ((1 + 2 * diag) ** 2 + 8 * count + 4 * abs(diag) * (diag + 1)) ** 0.5
    ) / 2
    n = round(size)
    if n - size > webtorch.finfo(vec.dtype).eps:
        raise ValueError(
            f"The size of last dimension is {count} which cannot be expressed as "
            "the lower triangular part of a square D x D matrix."
        )
    # Every element's place in a vector that ends with a zero.
    places = [[count] * n for _ in range(n)]
    position = 0
    for i in range(n):
        for j in range(min(n, i + diag + 1)):
            places[i][j] = position
            position += 1
    flat = webtorch.tensor(places, dtype=webtorch.int64, device=vec.device).reshape(-1)
    padded = functional.pad(vec, [0, 1])
    return padded.index_select(-1, flat).reshape((*vec.shape[:-1], n, n))


class BinaryParameter:
    """The part of a distribution that has `probs` or `logits` of one event, and the other as a lazy property."""

    _param: Tensor

    def _set_probs_or_logits(
        self, probs: Value | None, logits: Value | None, *others: Value
    ) -> list[Tensor]:
        """Set what is given, broadcast against `others`, which are returned. Raises ValueError for both or neither."""
        if (probs is None) == (logits is None):
            raise ValueError("Either `probs` or `logits` must be specified, but not both.")
        *rest, self._param = broadcast_all(*others, probs if logits is None else logits)
        setattr(self, "probs" if logits is None else "logits", self._param)
        return rest

    def _new(self, *args: Any, **kwargs: Any) -> Tensor:
        return self._param.new(*args, **kwargs)

    @lazy_property
    def logits(self) -> Tensor:
        """Log odds."""
        return probs_to_logits(self.probs, is_binary=True)

    @lazy_property
    def probs(self) -> Tensor:
        """Probabilities."""
        return logits_to_probs(self.logits, is_binary=True)

    @property
    def param_shape(self) -> Size:
        """The shape of the parameter that was given."""
        return self._param.shape
