"""Window functions: torch.signal.windows, and the older torch.hann_window family. May import floors 0 and 1.

A window is a list of numbers that are computed here, in double precision, and uploaded once.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from webtorch.ops import creation
from webtorch.ops.record import composite

WINDOWS = ("signal.windows",)


def _made(
    name: str, values: Sequence[float], dtype: Any, layout: Any, device: Any, requires_grad: bool
) -> Any:
    if layout is not None and str(layout) != "torch.strided":
        raise ValueError(f"{name} is implemented for strided tensors only, got: {layout}")
    wanted = creation.chosen_dtype(dtype)
    narrow = wanted.itemsize < 4 and not name.endswith("_window")
    if not wanted.is_floating_point or narrow:
        raise ValueError(f"{name} expects float32 or float64 dtypes, got: {wanted}")
    made = creation.tensor(list(values), dtype=wanted, device=device)
    return creation.finish(made, requires_grad)


def _check(name: str, M: int) -> None:
    if M < 0:
        raise ValueError(f"{name} requires non-negative window length, got M={M}")


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


def _fixed(name: str, weights: Sequence[float], doc: str) -> None:
    def window(
        M: int,
        *,
        sym: bool = True,
        dtype: Any = None,
        layout: Any = "torch.strided",
        device: Any = None,
        requires_grad: bool = False,
    ) -> Any:
        _check(name, M)
        return _made(name, _cosines(M, weights, sym), dtype, layout, device, requires_grad)

    window.__doc__ = doc
    full = f"windows_{name}"
    composite(
        name=full, family="creation", function_in=WINDOWS, torch=f"signal.windows.{name}",
        differentiable=False,
    )(window)  # fmt: skip


_fixed("hann", (0.5, 0.5), "The Hann window, of M numbers.")
_fixed("hamming", (0.54, 0.46), "The Hamming window, of M numbers.")
_fixed("blackman", (0.42, 0.5, 0.08), "The Blackman window, of M numbers.")
_fixed(
    "nuttall",
    (0.3635819, 0.4891775, 0.1365995, 0.0106411),
    "The minimum 4-term Blackman-Harris window of Nuttall, of M numbers.",
)


def _window(function: Callable[..., Any]) -> Any:
    name = function.__name__
    return composite(
        name=f"windows_{name}", family="creation", function_in=WINDOWS,
        torch=f"signal.windows.{name}", differentiable=False,
    )(function)  # fmt: skip


@_window
def general_cosine(
    M: int,
    *,
    a: Iterable[float],
    sym: bool = True,
    dtype: Any = None,
    layout: Any = "torch.strided",
    device: Any = None,
    requires_grad: bool = False,
) -> Any:
    """The sum of cosines with the weights `a`, of alternating signs."""
    _check("general_cosine", M)
    if not isinstance(a, Iterable):
        raise TypeError("Coefficients must be a list/tuple")
    weights = list(a)
    if not weights:
        raise ValueError("Coefficients cannot be empty")
    values = _cosines(M, weights, sym)
    return _made("general_cosine", values, dtype, layout, device, requires_grad)


@_window
def general_hamming(
    M: int,
    *,
    alpha: float = 0.54,
    sym: bool = True,
    dtype: Any = None,
    layout: Any = "torch.strided",
    device: Any = None,
    requires_grad: bool = False,
) -> Any:
    """The window alpha - (1 - alpha) * cosine."""
    _check("general_hamming", M)
    values = _cosines(M, (alpha, 1 - alpha), sym)
    return _made("general_hamming", values, dtype, layout, device, requires_grad)


@_window
def bartlett(
    M: int,
    *,
    sym: bool = True,
    dtype: Any = None,
    layout: Any = "torch.strided",
    device: Any = None,
    requires_grad: bool = False,
) -> Any:
    """The triangular window, 0 at its ends."""
    _check("bartlett", M)
    return _made("bartlett", _bartlett(M, sym), dtype, layout, device, requires_grad)


@_window
def cosine(
    M: int,
    *,
    sym: bool = True,
    dtype: Any = None,
    layout: Any = "torch.strided",
    device: Any = None,
    requires_grad: bool = False,
) -> Any:
    """Half a wave of a sine, sampled in the middle of M steps."""
    _check("cosine", M)
    steps = M if sym or M == 1 else M + 1
    values = [math.sin(math.pi * (k + 0.5) / steps) for k in range(M)]
    return _made("cosine", values, dtype, layout, device, requires_grad)


@_window
def gaussian(
    M: int,
    *,
    std: float = 1.0,
    sym: bool = True,
    dtype: Any = None,
    layout: Any = "torch.strided",
    device: Any = None,
    requires_grad: bool = False,
) -> Any:
    """The bell curve of standard deviation `std`, in samples."""
    _check("gaussian", M)
    if std <= 0:
        raise ValueError(f"Standard deviation must be positive, got: {std} instead.")
    middle = (M - 1 if sym or M == 1 else M) / 2
    values = [math.exp(-(((k - middle) / std) ** 2) / 2) for k in range(M)]
    return _made("gaussian", values, dtype, layout, device, requires_grad)


@_window
def exponential(
    M: int,
    *,
    center: float | None = None,
    tau: float = 1.0,
    sym: bool = True,
    dtype: Any = None,
    layout: Any = "torch.strided",
    device: Any = None,
    requires_grad: bool = False,
) -> Any:
    """exp(-|k - center| / tau); the centre of a symmetric window is its middle."""
    _check("exponential", M)
    if tau <= 0:
        raise ValueError(f"Tau must be positive, got: {tau} instead.")
    if sym and center is not None:
        raise ValueError("Center must be None for symmetric windows")
    middle = (M - 1 if sym or M == 1 else M) / 2 if center is None else center
    values = [1.0] if M == 1 else [math.exp(-abs(k - middle) / tau) for k in range(M)]
    return _made("exponential", values, dtype, layout, device, requires_grad)


@_window
def kaiser(
    M: int,
    *,
    beta: float = 12.0,
    sym: bool = True,
    dtype: Any = None,
    layout: Any = "torch.strided",
    device: Any = None,
    requires_grad: bool = False,
) -> Any:
    """The Kaiser window of shape `beta`."""
    _check("kaiser", M)
    if beta < 0:
        raise ValueError(f"beta must be non-negative, got: {beta} instead.")
    return _made("kaiser", _kaiser(M, beta, sym), dtype, layout, device, requires_grad)


# -- torch.hann_window and the like -------------------------------------------------------------------


def _old(name: str, values: Callable[..., list[float]], doc: str) -> None:
    def window(
        window_length: int,
        periodic: bool = True,
        *,
        dtype: Any = None,
        layout: Any = "torch.strided",
        device: Any = None,
        pin_memory: bool = False,
        requires_grad: bool = False,
    ) -> Any:
        _check_old(name, window_length, dtype)
        found = values(window_length, not periodic)
        return _made(name, found, dtype, layout, device, requires_grad)

    window.__doc__ = doc
    composite(name=name, family="creation", function_in=("torch",), differentiable=False)(window)


def _check_old(name: str, length: int, dtype: Any) -> None:
    if length < 0:
        raise RuntimeError(
            f"{name} requires non-negative window_length, got window_length={length}"
        )
    if dtype is not None and not creation.chosen_dtype(dtype).is_floating_point:
        raise RuntimeError(f"{name} expects floating point dtypes, got: {dtype}")


_old("hann_window", lambda m, s: _cosines(m, (0.5, 0.5), s), "The Hann window.")
_old("blackman_window", lambda m, s: _cosines(m, (0.42, 0.5, 0.08), s), "The Blackman window.")
_old("bartlett_window", _bartlett, "The triangular window, 0 at its ends.")


@composite(family="creation", function_in=("torch",), differentiable=False)
def hamming_window(
    window_length: int,
    periodic: bool = True,
    alpha: float = 0.54,
    beta: float = 0.46,
    *,
    dtype: Any = None,
    layout: Any = "torch.strided",
    device: Any = None,
    pin_memory: bool = False,
    requires_grad: bool = False,
) -> Any:
    """The window alpha - beta * cosine."""
    _check_old("hamming_window", window_length, dtype)
    values = _cosines(window_length, (alpha, beta), not periodic)
    return _made("hamming_window", values, dtype, layout, device, requires_grad)


@composite(family="creation", function_in=("torch",), differentiable=False)
def kaiser_window(
    window_length: int,
    periodic: bool = True,
    beta: float = 12.0,
    *,
    dtype: Any = None,
    layout: Any = "torch.strided",
    device: Any = None,
    pin_memory: bool = False,
    requires_grad: bool = False,
) -> Any:
    """The Kaiser window of shape `beta`."""
    _check_old("kaiser_window", window_length, dtype)
    values = _kaiser(window_length, beta, not periodic)
    return _made("kaiser_window", values, dtype, layout, device, requires_grad)
