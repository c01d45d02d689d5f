"""Short-time Fourier transforms: stft and istft."""

from __future__ import annotations

from webtorch.errors import DTypeError
from webtorch.functions import creation, padding, slicing
from webtorch.functions.fft import fft_fft, fft_ifft, fft_irfft, fft_rfft
from webtorch.ir.dtype import bool_
from webtorch.ir.view import numel
from webtorch.ops import elementwise
from webtorch.ops.primitive import pad_with, pairs
from webtorch.ops.purity import warn, warn_once
from webtorch.ops.record import Autocast, composite
from webtorch.tensors.tensor import Tensor

ONE_SIDED = "Cannot have onesided output if window or input is complex"


def _check(name: str, holds: bool, text: str) -> None:
    if not holds:
        raise RuntimeError(f"{name}: {text}")


def _hop_and_width(
    name: str, x: Tensor, n_fft: int, hop: int | None, width: int | None, window: Tensor | None
) -> tuple[int, int]:
    hop = n_fft // 4 if hop is None else hop
    width = n_fft if width is None else width
    _check(name, hop > 0, f"expected hop_length > 0, but got hop_length={hop}")
    _check(
        name,
        0 < width <= n_fft,
        f"expected 0 < win_length <= n_fft, but got win_length={width} and n_fft={n_fft}",
    )
    if window is not None:
        if window._storage.runtime is not x._storage.runtime:
            raise RuntimeError(
                f"{name} input and window must be on the same device but got self on {x.device} and "
                f"window on {window.device}"
            )
        _check(
            name,
            window._shape == (width,),
            f"expected a 1D window tensor of size equal to win_length={width}, but got window with size "
            f"{list(window._shape)}",
        )
    return hop, width


def _padded_window(window: Tensor | None, width: int, n_fft: int, like: Tensor) -> Tensor | None:
    """Return the window, n_fft long with zeros on both sides; None where it is one everywhere."""
    if window is None:
        if width == n_fft:
            return None
        window = creation.ones(width, dtype=like.dtype.to_real(), device=like.device)
    left = (n_fft - width) // 2
    return pad_with(window, (left,), (n_fft - width - left,), 0) if width < n_fft else window


@composite(autocast=Autocast(cpu="fp32", gpu="fp32"))
def stft(
    input: Tensor,
    n_fft: int,
    hop_length: int | None = None,
    win_length: int | None = None,
    window: Tensor | None = None,
    center: bool = True,
    pad_mode: str = "reflect",
    normalized: bool = False,
    onesided: bool | None = None,
    return_complex: bool | None = None,
    align_to_window: bool | None = None,
) -> Tensor:
    """The transforms of windows of n_fft numbers, `hop_length` apart: (*, frequencies, windows).

    With `center`, window t is centred at t * hop_length of the signal, which is padded. Of real signals only the
    first n_fft // 2 + 1 frequencies are returned, unless onesided=False.
    """
    if center and align_to_window is not None:
        raise RuntimeError("stft align_to_window should only be set when center = false")
    is_complex = input.dtype.is_complex or (window is not None and window.dtype.is_complex)
    if return_complex is None:
        if not is_complex:
            raise RuntimeError(
                "stft requires the return_complex parameter be given for real inputs, and will further "
                "require that return_complex=True in a future PyTorch release."
            )
    elif not return_complex:
        warn(
            "stft with return_complex=False is deprecated. In a future pytorch release, stft will return "
            "complex tensors for all inputs, and return_complex=False will raise an error.",
            UserWarning,
        )
    if window is None:
        warn_once(
            "A window was not provided. A rectangular window will be applied, which is known to cause spectral "
            "leakage. Other windows such as torch.hann_window or torch.hamming_window are recommended to reduce "
            "spectral leakage. To suppress this warning and use a rectangular window, explicitly set "
            "`window=torch.ones(n_fft, device=<device>)`."
        )
    if input.dtype is bool_:
        raise DTypeError("stft: not implemented for 'Bool': convert the signal with .float()")
    _check(
        "stft",
        input.dtype.has_gradient,
        f"expected a tensor of floating point or complex values, got {input.dtype}",
    )
    _check("stft", input.ndim in (1, 2), "expected a 1D or 2D tensor")
    x = input if input.ndim == 2 else input.unsqueeze(0)
    if center:
        x = padding.pad(x.unsqueeze(0), (n_fft // 2, n_fft // 2), pad_mode).squeeze(0)
    _check(
        "stft",
        0 < n_fft <= x._shape[1] or bool(align_to_window),
        f"expected 0 < n_fft < {x._shape[1]}, but got n_fft={n_fft}",
    )
    hop, width = _hop_and_width("stft", x, n_fft, hop_length, win_length, window)
    if align_to_window and width < n_fft:
        side = (n_fft - width) // 2
        x = pad_with(x, (0, side), (0, side), 0)
    frames = x.unfold(1, n_fft, hop)
    weights = _padded_window(window, width, n_fft, x)
    if weights is not None:
        frames = frames * weights
    if onesided is None:
        onesided = not is_complex
    norm = "ortho" if normalized else None
    if onesided:
        if is_complex:
            raise RuntimeError(ONE_SIDED)
        found = fft_rfft(frames, norm=norm)
    else:
        found = fft_fft(frames, norm=norm)
    found = found.transpose(1, 2)
    if input.ndim == 1:
        found = found.squeeze(0)
    return pairs(found) if return_complex is False else found


@composite()
def istft(
    input: Tensor,
    n_fft: int,
    hop_length: int | None = None,
    win_length: int | None = None,
    window: Tensor | None = None,
    center: bool = True,
    normalized: bool = False,
    onesided: bool | None = None,
    length: int | None = None,
    return_complex: bool = False,
) -> Tensor:
    """The signal whose stft is closest to `input` (*, frequencies, windows). Griffin and Lim, 1984.

    Raises RuntimeError where the windows leave a gap; in a compiled function the result is not finite there.
    """
    onesided = _check_inverse(input, n_fft, onesided)
    x = input if input.ndim == 3 else input.unsqueeze(0)
    hop, width = _hop_and_width("istft", x, n_fft, hop_length, win_length, window)
    _check(
        "istft",
        hop <= width,
        f"expected 0 < hop_length <= win_length, but got hop_length={hop} and win_length={width}",
    )
    if return_complex and onesided:
        raise RuntimeError(ONE_SIDED)
    if not return_complex and window is not None and window.dtype.is_complex:
        raise RuntimeError("Complex windows are incompatible with return_complex=False")
    weights = _padded_window(window, width, n_fft, x)
    if weights is None:
        weights = creation.ones(n_fft, dtype=x.dtype.to_real(), device=x.device)
    terms = x.transpose(1, 2)
    norm = "ortho" if normalized else None
    if return_complex:
        frames = fft_ifft(terms, norm=norm)
    else:
        if not onesided:
            terms = terms.narrow(-1, 0, n_fft // 2 + 1)
        frames = fft_irfft(terms, n=n_fft, norm=norm)
    count = x._shape[2]
    total = n_fft + hop * (count - 1)
    signal = slicing._overlap(frames * weights, (x._shape[0], total), 1, n_fft, hop)
    squares = (weights * weights).expand((1, count, n_fft))
    envelope = slicing._overlap(squares, (1, total), 1, n_fft, hop)
    start = n_fft // 2 if center else 0
    end = start + length if length is not None else total - start
    _check(
        "istft",
        numel(x._shape) > 0 and min(end, total) > start,
        f"the signal has no elements: {start} to {end} of {total}",
    )
    signal = _without_windows(signal, envelope, start, min(end, total) - start)
    if end > total:
        warn(
            "The length of signal is shorter than the length parameter. Result is being padded with zeros "
            "in the tail. Please check your center and hop_length settings.",
            UserWarning,
        )
        signal = pad_with(signal, (0, 0), (0, end - total), 0)
    return signal if input.ndim == 3 else signal.squeeze(0)


def _check_inverse(input: Tensor, n_fft: int, onesided: bool | None) -> bool:
    """Check the transforms that `istft` is given; return whether they hold half of the frequencies."""
    if not input.dtype.is_complex:
        raise RuntimeError(
            "istft requires a complex-valued input tensor matching the output from stft with "
            "return_complex=True."
        )
    _check("istft", input.numel() > 0, "input tensor cannot be empty.")
    _check(
        "istft",
        input.ndim in (2, 3),
        f"input tensor's number of dimensions must be 2 or 3, but got {input.ndim}",
    )
    bins = input._shape[-2]
    if onesided is None:
        onesided = bins != n_fft
    _check(
        "istft",
        bins == (n_fft // 2 + 1 if onesided else n_fft),
        f"expected the frequency dimension (3rd to the last) of the input tensor to match "
        f"{'n_fft / 2 + 1' if onesided else 'n_fft'} when onesided={onesided}, but got {bins}",
    )
    return onesided


def _without_windows(signal: Tensor, envelope: Tensor, start: int, length: int) -> Tensor:
    """Return part of a sum of windows divided by that of their squares, which must not be zero."""
    signal = signal.narrow(1, start, length)
    envelope = envelope.narrow(1, start, length)
    if not envelope._storage.runtime.capturing:
        least = elementwise.abs(envelope.detach()).amin().item()
        if least <= 1e-11:
            raise RuntimeError(f"istft: window overlap add min: {least:g}: the windows leave a gap")
    return signal / envelope
