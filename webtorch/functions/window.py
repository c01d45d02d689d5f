"""Window functions: torch.signal.windows, and the older torch.hann_window family.

A window is a list of numbers that are computed here, in double precision, and uploaded once.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterable, Sequence

from webtorch.functions import creation
from webtorch.functions.factory import chosen_dtype, finish, joined_signature
from webtorch.ir.dtype import DType
from webtorch.ops.record import Example, Op, composite
from webtorch.tensors.device import DeviceLike
from webtorch.tensors.formats import layout as Layout
from webtorch.tensors.tensor import Tensor

WINDOWS = ("signal.windows",)


def _made(
    name: str,
    values: Sequence[float],
    dtype: DType | None,
    layout: Layout | str | None,
    device: DeviceLike,
    requires_grad: bool,
) -> Tensor:
    if layout is not None and str(layout) != "torch.strided":
        raise ValueError(f"{name} is implemented for strided tensors only, got: {layout}")
    wanted = chosen_dtype(dtype)
    narrow = wanted.itemsize < 4 and not name.endswith("_window")
    if not wanted.is_floating_point or narrow:
        raise ValueError(f"{name} expects float32 or float64 dtypes, got: {wanted}")
    made = creation.tensor(list(values), dtype=wanted, device=device)
    return finish(made, requires_grad)


def _points(M: int, sym: bool) -> int:
    """Return one less than how many points the whole window has: a periodic one is cut at its end."""
    return max(M - 1 if sym else M, 1)


def _cosines(M: int, weights: Sequence[float], sym: bool) -> list[float]:
    last = _points(M, sym)
    if M == 1:
        return [1.0]
    return [
        math.fsum(
            (-1) ** i * w * math.cos(2 * math.pi * i * k / last) for i, w in enumerate(weights)
        )
        for k in range(M)
    ]


def _bessel_i0(x: float) -> float:
    total = term = 1.0
    k = 0
    while term > total * 1e-17:
        k += 1
        term *= (x / (2 * k)) ** 2
        total += term
    return total


def _kaiser(M: int, beta: float, sym: bool) -> list[float]:
    last = _points(M, sym)
    if M == 1:
        return [1.0]
    return [
        _bessel_i0(beta * math.sqrt(max(0.0, 1 - (2 * k / last - 1) ** 2))) / _bessel_i0(beta)
        for k in range(M)
    ]


def _bartlett(M: int, sym: bool) -> list[float]:
    last = _points(M, sym)
    return [1.0] if M == 1 else [1 - abs(2 * k / last - 1) for k in range(M)]


# -- torch.signal.windows ---------------------------------------------------------------------------


def _window(values: Callable[..., Sequence[float]]) -> Op:
    """Make the entry of a window from `values(M, sym, ...)`, which gives its numbers.

    What `values` takes besides is the window's own; all windows take the rest.
    """
    name = values.__name__

    def window(
        M: int,
        *,
        sym: bool = True,
        dtype: DType | None = None,
        layout: Layout | str = "torch.strided",
        device: DeviceLike = None,
        requires_grad: bool = False,
        **named: object,
    ) -> Tensor:
        """Make the window of M points."""
        if M < 0:
            raise ValueError(f"{name} requires non-negative window length, got M={M}")
        # A 0-d tensor of bools counts, too.
        count = operator.index(M)
        return _made(name, values(count, sym, **named), dtype, layout, device, requires_grad)

    return composite(
        name=f"windows_{name}", family="creation", function_in=WINDOWS,
        torch=f"signal.windows.{name}", differentiable=False,
    )(joined_signature(window, values))  # fmt: skip


@_window
def hann(M: int, sym: bool) -> list[float]:
    """The Hann window, of M numbers."""
    return _cosines(M, (0.5, 0.5), sym)


@_window
def hamming(M: int, sym: bool) -> list[float]:
    """The Hamming window, of M numbers."""
    return _cosines(M, (0.54, 0.46), sym)


@_window
def blackman(M: int, sym: bool) -> list[float]:
    """The Blackman window, of M numbers."""
    return _cosines(M, (0.42, 0.5, 0.08), sym)


@_window
def nuttall(M: int, sym: bool) -> list[float]:
    """The minimum 4-term Blackman-Harris window of Nuttall, of M numbers."""
    return _cosines(M, (0.3635819, 0.4891775, 0.1365995, 0.0106411), sym)


@_window
def general_cosine(M: int, sym: bool, *, a: Iterable[float]) -> list[float]:
    """The sum of cosines with the weights `a`, of alternating signs."""
    if not isinstance(a, Iterable):
        raise TypeError("Coefficients must be a list/tuple")
    weights = list(a)
    if not weights:
        raise ValueError("Coefficients cannot be empty")
    return _cosines(M, weights, sym)


@_window
def general_hamming(M: int, sym: bool, *, alpha: float = 0.54) -> list[float]:
    """The window alpha - (1 - alpha) * cosine."""
    return _cosines(M, (alpha, 1 - alpha), sym)


@_window
def bartlett(M: int, sym: bool) -> list[float]:
    """The triangular window, 0 at its ends."""
    return _bartlett(M, sym)


@_window
def cosine(M: int, sym: bool) -> list[float]:
    """Half a wave of a sine, sampled in the middle of M steps."""
    steps = M if sym or M == 1 else M + 1
    return [math.sin(math.pi * (k + 0.5) / steps) for k in range(M)]


@_window
def gaussian(M: int, sym: bool, *, std: float = 1.0) -> list[float]:
    """The bell curve of standard deviation `std`, in samples."""
    if std <= 0:
        raise ValueError(f"Standard deviation must be positive, got: {std} instead.")
    middle = (M - 1 if sym or M == 1 else M) / 2
    return [math.exp(-(((k - middle) / std) ** 2) / 2) for k in range(M)]


@_window
def exponential(M: int, sym: bool, *, center: float | None = None, tau: float = 1.0) -> list[float]:
    """exp(-|k - center| / tau); the centre of a symmetric window is its middle."""
    if tau <= 0:
        raise ValueError(f"Tau must be positive, got: {tau} instead.")
    if sym and center is not None:
        raise ValueError("Center must be None for symmetric windows")
    middle = (M - 1 if sym or M == 1 else M) / 2 if center is None else center
    return [1.0] if M == 1 else [math.exp(-abs(k - middle) / tau) for k in range(M)]


@_window
def kaiser(M: int, sym: bool, *, beta: float = 12.0) -> list[float]:
    """The Kaiser window of shape `beta`."""
    if beta < 0:
        raise ValueError(f"beta must be non-negative, got: {beta} instead.")
    return _kaiser(M, beta, sym)


# -- torch.hann_window and the like -------------------------------------------------------------------


def _old(values: Callable[..., list[float]]) -> Op:
    """Make the entry of an older window from `values(window_length, periodic, ...)`, which gives its numbers."""
    name = values.__name__

    def window(
        window_length: int,
        periodic: bool = True,
        *own: object,
        dtype: DType | None = None,
        layout: Layout | str = "torch.strided",
        device: DeviceLike = None,
        pin_memory: bool = False,
        requires_grad: bool = False,
        **named: object,
    ) -> Tensor:
        """Make the window of a length."""
        if window_length < 0:
            raise RuntimeError(
                f"{name} requires non-negative window_length, got window_length={window_length}"
            )
        if dtype is not None and not chosen_dtype(dtype).is_floating_point:
            raise RuntimeError(f"{name} expects floating point dtypes, got: {dtype}")
        found = values(window_length, periodic, *own, **named)
        return _made(name, found, dtype, layout, device, requires_grad)

    return composite(
        family="creation", function_in=("torch",), differentiable=False, factory=True,
        example=Example((), (12,)),
    )(joined_signature(window, values))  # fmt: skip


@_old
def hann_window(window_length: int, periodic: bool) -> list[float]:
    """The Hann window."""
    return _cosines(window_length, (0.5, 0.5), not periodic)


@_old
def blackman_window(window_length: int, periodic: bool) -> list[float]:
    """The Blackman window."""
    return _cosines(window_length, (0.42, 0.5, 0.08), not periodic)


@_old
def bartlett_window(window_length: int, periodic: bool) -> list[float]:
    """The triangular window, 0 at its ends."""
    return _bartlett(window_length, not periodic)


@_old
def hamming_window(
    window_length: int, periodic: bool, alpha: float = 0.54, beta: float = 0.46
) -> list[float]:
    """The window alpha - beta * cosine."""
    return _cosines(window_length, (alpha, beta), not periodic)


@_old
def kaiser_window(window_length: int, periodic: bool, beta: float = 12.0) -> list[float]:
    """The Kaiser window of shape `beta`."""
    return _kaiser(window_length, beta, not periodic)
