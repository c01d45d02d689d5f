"""Initial values of parameters: PyTorch's `nn.init`. May import the tensor floor only.

Every function changes its tensor in place, without autograd, and returns it.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable

from webtorch.dispatch.call import dispatched
from webtorch.functions import public as webtorch
from webtorch.ir.lines import user_depth
from webtorch.ops.record import TABLE
from webtorch.tensors.tensor import Tensor

__all__ = [
    "calculate_gain",
    "constant_",
    "dirac_",
    "eye_",
    "kaiming_normal_",
    "kaiming_uniform_",
    "normal_",
    "ones_",
    "orthogonal_",
    "sparse_",
    "trunc_normal_",
    "uniform_",
    "xavier_normal_",
    "xavier_uniform_",
    "zeros_",
]


def calculate_gain(nonlinearity: str, param: object = None) -> float:
    """Return the factor by which weights grow to make up for what `nonlinearity` shrinks.

    `param` is the slope of "leaky_relu" (0.01 by default). Raises ValueError on an unknown name.
    """
    if nonlinearity == "leaky_relu":
        if param is None:
            slope = 0.01
        elif isinstance(param, (int, float)) and not isinstance(param, bool):
            slope = param
        else:
            raise ValueError(f"negative_slope {param} not a valid number")
        return math.sqrt(2.0 / (1 + slope**2))
    entry = TABLE.get(nonlinearity)
    if entry is None or entry.gain is None:
        raise ValueError(f"Unsupported nonlinearity {nonlinearity}")
    return entry.gain


@dispatched()
def uniform_(
    tensor: Tensor, a: float = 0.0, b: float = 1.0, generator: webtorch.Generator | None = None
) -> Tensor:
    """Fill with numbers uniform in [a, b)."""
    with webtorch.no_grad():
        return tensor.uniform_(a, b, generator=generator)


@dispatched()
def normal_(
    tensor: Tensor, mean: float = 0.0, std: float = 1.0, generator: webtorch.Generator | None = None
) -> Tensor:
    """Fill with normally distributed numbers."""
    with webtorch.no_grad():
        return tensor.normal_(mean, std, generator=generator)


def trunc_normal_(
    tensor: Tensor,
    mean: float = 0.0,
    std: float = 1.0,
    a: float = -2.0,
    b: float = 2.0,
    generator: webtorch.Generator | None = None,
) -> Tensor:
    """Fill with normally distributed numbers that all lie in [a, b]."""
    if mean < a - 2 * std or mean > b + 2 * std:
        warnings.warn(
            "mean is more than 2 std from [a, b] in nn.init.trunc_normal_. "
            "The distribution of values may be incorrect.",
            stacklevel=user_depth(),
        )

    def cumulative(x: float) -> float:
        """Return the standard normal distribution's probability of being at most x."""
        return (1.0 + math.erf(x / math.sqrt(2.0))) / 2.0

    # Uniform numbers between the cumulative values of the bounds, through the inverse.
    low, high = cumulative((a - mean) / std), cumulative((b - mean) / std)
    with webtorch.no_grad():
        tensor.uniform_(2 * low - 1, 2 * high - 1, generator=generator)
        tensor.copy_(webtorch.erfinv(tensor))
        tensor.mul_(std * math.sqrt(2.0)).add_(mean)
        return tensor.clamp_(min=a, max=b)


@dispatched()
def constant_(tensor: Tensor, val: float) -> Tensor:
    """Fill with `val`."""
    with webtorch.no_grad():
        return tensor.fill_(val)


def ones_(tensor: Tensor) -> Tensor:
    """Fill with ones."""
    return constant_(tensor, 1.0)


def zeros_(tensor: Tensor) -> Tensor:
    """Fill with zeros."""
    with webtorch.no_grad():
        return tensor.zero_()


def eye_(tensor: Tensor) -> Tensor:
    """Make a matrix the identity."""
    if tensor.dim() != 2:
        raise ValueError("Only tensors with 2 dimensions are supported")
    with webtorch.no_grad():
        return tensor.copy_(webtorch.eye(*tensor.shape, dtype=tensor.dtype, device=tensor.device))


def dirac_(tensor: Tensor, groups: int = 1) -> Tensor:
    """Make a convolution's weight (3 to 5 dimensions) pass its input channels through."""
    if tensor.dim() not in (3, 4, 5):
        raise ValueError("Only tensors with 3, 4, or 5 dimensions are supported")
    out_channels, in_channels, *kernel = tensor.shape
    if out_channels % groups != 0:
        raise ValueError("dim 0 must be divisible by groups")
    per_group = out_channels // groups
    centre = tuple(size // 2 for size in kernel)
    with webtorch.no_grad():
        tensor.zero_()
        for group in range(groups):
            for channel in range(min(per_group, in_channels)):
                tensor[(group * per_group + channel, channel, *centre)] = 1
    return tensor


def _calculate_fan_in_and_fan_out(tensor: Tensor) -> tuple[int, int]:
    """Return how many inputs feed one output of a weight, and the reverse."""
    if tensor.dim() < 2:
        raise ValueError(
            "Fan in and fan out can not be computed for tensor with fewer than 2 dimensions"
        )
    out_channels, in_channels, *kernel = tensor.shape
    field = math.prod(kernel)
    return in_channels * field, out_channels * field


def _calculate_correct_fan(tensor: Tensor, mode: str) -> int:
    """Return the fan that `mode` names."""
    lowered = mode.lower()
    if lowered not in ("fan_in", "fan_out"):
        raise ValueError(f"Mode {mode} not supported, please use one of ['fan_in', 'fan_out']")
    fan_in, fan_out = _calculate_fan_in_and_fan_out(tensor)
    return fan_in if lowered == "fan_in" else fan_out


def xavier_uniform_(
    tensor: Tensor, gain: float = 1.0, generator: webtorch.Generator | None = None
) -> Tensor:
    """Fill uniformly with variance gain^2 * 2 / (fan_in + fan_out).

    Glorot and Bengio, 2010: Understanding the difficulty of training deep feedforward networks.
    """
    fan_in, fan_out = _calculate_fan_in_and_fan_out(tensor)
    bound = math.sqrt(3.0) * gain * math.sqrt(2.0 / (fan_in + fan_out))
    return uniform_(tensor, -bound, bound, generator)


def xavier_normal_(
    tensor: Tensor, gain: float = 1.0, generator: webtorch.Generator | None = None
) -> Tensor:
    """Fill normally with variance gain^2 * 2 / (fan_in + fan_out). Glorot and Bengio, 2010."""
    fan_in, fan_out = _calculate_fan_in_and_fan_out(tensor)
    return normal_(tensor, 0.0, gain * math.sqrt(2.0 / (fan_in + fan_out)), generator)


def _kaiming_std(tensor: Tensor, a: float, mode: str, nonlinearity: str) -> float | None:
    """Return the standard deviation of the kaiming rules, None where there is nothing to fill."""
    if 0 in tensor.shape:
        warnings.warn("Initializing zero-element tensors is a no-op", stacklevel=user_depth())
        return None
    fan = _calculate_correct_fan(tensor, mode)
    return calculate_gain(nonlinearity, a) / math.sqrt(fan)


@dispatched()
def kaiming_uniform_(
    tensor: Tensor,
    a: float = 0,
    mode: str = "fan_in",
    nonlinearity: str = "leaky_relu",
    generator: webtorch.Generator | None = None,
) -> Tensor:
    """Fill uniformly with variance gain^2 / fan.

    He et al., 2015: Delving deep into rectifiers.
    """
    std = _kaiming_std(tensor, a, mode, nonlinearity)
    if std is None:
        return tensor
    bound = math.sqrt(3.0) * std
    return uniform_(tensor, -bound, bound, generator)


def kaiming_normal_(
    tensor: Tensor,
    a: float = 0,
    mode: str = "fan_in",
    nonlinearity: str = "leaky_relu",
    generator: webtorch.Generator | None = None,
) -> Tensor:
    """Fill normally with variance gain^2 / fan. He et al., 2015."""
    std = _kaiming_std(tensor, a, mode, nonlinearity)
    return tensor if std is None else normal_(tensor, 0.0, std, generator)


def orthogonal_(
    tensor: Tensor, gain: float = 1, generator: webtorch.Generator | None = None
) -> Tensor:
    """Fill with a (semi-)orthogonal matrix, later dimensions flattened, times `gain`.

    Saxe et al., 2013: Exact solutions to the nonlinear dynamics of learning. Computed on the host,
    in float64: it runs once for a parameter, and has to be orthogonal to rounding.
    """
    if tensor.dim() < 2:
        raise ValueError("Only tensors with 2 or more dimensions are supported")
    if tensor.numel() == 0:
        return tensor
    rows = tensor.shape[0]
    columns = tensor.numel() // rows
    flat = webtorch.empty((rows, columns), dtype=webtorch.float32, device="cpu")
    flat.normal_(0, 1, generator=generator)
    wide = flat if rows <= columns else flat.t()
    with webtorch.no_grad():
        q = webtorch.tensor(_orthonormal_rows(wide.tolist()), dtype=tensor.dtype)
        if rows > columns:
            q = q.t()
        tensor.copy_(q.reshape(tensor.shape)).mul_(gain)
    return tensor


def _orthonormal_rows(rows: list[list[float]]) -> list[list[float]]:
    """Return the orthonormal rows that span what `rows` span, signs as Gram-Schmidt gives them.

    Those signs (a QR decomposition with a positive diagonal) make the result uniformly distributed.
    """
    try:
        import numpy
    except ImportError:  # a browser page without NumPy: the same numbers, slower
        return _gram_schmidt(rows)
    q, r = numpy.linalg.qr(numpy.array(rows, dtype="float64").T)
    return (q * numpy.sign(numpy.diag(r))).T.tolist()


def _gram_schmidt(rows: list[list[float]]) -> list[list[float]]:
    """Return orthonormal rows; each is cleared of the earlier ones twice, against rounding."""
    basis: list[list[float]] = []
    for row in rows:
        v = row
        for _ in range(2):
            for b in basis:
                along = math.fsum(map(float.__mul__, v, b))
                v = [x - along * y for x, y in zip(v, b, strict=True)]
        norm = math.sqrt(math.fsum(x * x for x in v))
        basis.append([x / norm for x in v])
    return basis


def sparse_(
    tensor: Tensor, sparsity: float, std: float = 0.01, generator: webtorch.Generator | None = None
) -> Tensor:
    """Fill a matrix normally, with the fraction `sparsity` of each column zero. Martens, 2010."""
    if tensor.dim() != 2:
        raise ValueError("Only tensors with 2 dimensions are supported")
    rows, columns = tensor.shape
    zeros = math.ceil(sparsity * rows)
    with webtorch.no_grad():
        tensor.normal_(0, std, generator=generator)
        for column in range(columns):
            order = webtorch.randperm(rows, generator=generator).to(tensor.device)
            tensor[order[:zeros], column] = 0
    return tensor


def _deprecated(new: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Return the old name of `new`, without the underscore, which warns."""
    old = new.__name__[:-1]

    def renamed(*args: object, **kwargs: object) -> Tensor:
        """Warn, and call the function of the new name."""
        warnings.warn(
            f"`nn.init.{old}` is now deprecated in favor of `nn.init.{new.__name__}`.",
            FutureWarning,
            stacklevel=user_depth(),
        )
        return new(*args, **kwargs)

    renamed.__name__ = old
    renamed.__doc__ = f"Old name of `{new.__name__}`."
    return renamed


uniform = _deprecated(uniform_)
normal = _deprecated(normal_)
constant = _deprecated(constant_)
eye = _deprecated(eye_)
dirac = _deprecated(dirac_)
xavier_uniform = _deprecated(xavier_uniform_)
xavier_normal = _deprecated(xavier_normal_)
kaiming_uniform = _deprecated(kaiming_uniform_)
kaiming_normal = _deprecated(kaiming_normal_)
orthogonal = _deprecated(orthogonal_)
sparse = _deprecated(sparse_)
