"""torch.fft, stft and istft against PyTorch: lengths of every kind, norms, dims, gradients, both devices."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
import torch

import webtorch
from tests.conftest import need_device


def _ours(theirs: torch.Tensor, device: str) -> Any:
    made = webtorch.tensor(theirs.detach().resolve_conj().numpy(), device=device)
    return made.requires_grad_(theirs.requires_grad)


def _close(ours: Any, theirs: torch.Tensor, tolerance: float = 2e-6) -> None:
    """The error counts beside the largest number: a transform is a sum of all."""
    a, b = ours.detach().cpu().numpy(), theirs.detach().resolve_conj().numpy()
    assert a.shape == b.shape and a.dtype == b.dtype
    assert np.abs(a - b).max(initial=0) <= tolerance * np.abs(b).max(initial=1e-30)


def _input(name: str, shape: tuple[int, ...]) -> torch.Tensor:
    torch.manual_seed(sum(shape))
    real = name.startswith(("rfft", "ihfft"))
    return torch.randn(shape, dtype=torch.float32 if real else torch.complex64, requires_grad=True)


def _check(name: str, shape: tuple[int, ...], device: str, **options: Any) -> None:
    x = _input(name, shape)
    y = _ours(x, device)
    expected = getattr(torch.fft, name)(x, **options)
    found = getattr(webtorch.fft, name)(y, **options)
    _close(found, expected)
    g = torch.randn_like(expected)
    (theirs,) = torch.autograd.grad(expected, x, g)
    (mine,) = webtorch.autograd.grad(found, y, _ours(g, device))
    _close(mine, theirs)


@pytest.mark.covers("A11")
@pytest.mark.parametrize("n", [1, 2, 3, 8, 17, 60, 67, 128, 131, 1000, 4096])
@pytest.mark.parametrize("name", ["fft", "ifft", "rfft", "irfft", "hfft", "ihfft"])
def test_every_length_on_the_cpu(name: str, n: int) -> None:
    options = {"n": 2 * n - 1} if name in ("irfft", "hfft") else {}
    _check(name, (2, n), "cpu", **options)


@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    ("name", "n"),
    # One product, two and three steps, mixed radices, a prime for Bluestein.
    [("fft", 5), ("ifft", 128), ("fft", 360), ("fft", 131), ("rfft", 100), ("irfft", 33), ("fft", 8192)],
)  # fmt: skip
def test_products_on_webgpu(name: str, n: int) -> None:
    need_device("webgpu")
    _check(name, (2, n) if n < 1000 else (1, n), "webgpu")


@pytest.mark.parametrize("norm", ["backward", "ortho", "forward"])
@pytest.mark.parametrize("kind", ["fft", "ifft", "rfft", "irfft", "hfft", "ihfft"])
def test_several_dims_sizes_and_norms(kind: str, norm: str) -> None:
    _check(f"{kind}n", (3, 4, 5), "cpu", norm=norm)
    _check(f"{kind}2", (3, 4, 5), "cpu", s=(6, 3), dim=(0, 2), norm=norm)
    _check(kind, (3, 4, 5), "cpu", n=7, dim=1, norm=norm)


@pytest.mark.covers("F15")
def test_second_derivatives_and_double_precision() -> None:
    x = webtorch.randn(5, dtype=webtorch.complex128, requires_grad=True)
    assert webtorch.autograd.gradcheck(lambda z: webtorch.fft.fft(z) ** 2, (x,))
    assert webtorch.autograd.gradcheck(lambda z: webtorch.fft.irfft(z, 9).pow(3), (x,))
    assert webtorch.autograd.gradgradcheck(lambda z: webtorch.fft.fft(z).abs().pow(3), (x[:2],))


def test_frequencies_and_shifts() -> None:
    for n in (1, 4, 5):
        _close(webtorch.fft.fftfreq(n, 0.3), torch.fft.fftfreq(n, 0.3))
        _close(webtorch.fft.rfftfreq(n, 0.3), torch.fft.rfftfreq(n, 0.3))
    x = torch.arange(15.0).reshape(3, 5)
    for name in ("fftshift", "ifftshift"):
        for dim in (None, 1, (0, 1)):
            _close(
                getattr(webtorch.fft, name)(_ours(x, "cpu"), dim=dim), getattr(torch.fft, name)(x, dim=dim)
            )  # fmt: skip


def test_wrong_calls() -> None:
    x = webtorch.ones(3)
    for call, text in (
        (lambda: webtorch.fft.fft(x, norm="half"), "Invalid normalization mode"),
        (lambda: webtorch.fft.fft(x, n=0), "Invalid number of data points"),
        (lambda: webtorch.fft.rfft(x * 1j), "expects a real input"),
        (lambda: webtorch.fft.fft(x.half()), "Unsupported dtype"),
        (lambda: webtorch.fft.fftn(x, dim=(0, 0)), "must be unique"),
        (lambda: webtorch.stft(x, 2), "return_complex"),
        (lambda: webtorch.istft(x, 2), "complex-valued input"),
    ):
        with pytest.raises(RuntimeError, match=text):
            call()


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"hop_length": 5, "normalized": True},
        {"win_length": 10},
        {"center": False},
        {"onesided": False},
    ],
)
def test_short_time_transforms_and_back(options: dict[str, Any]) -> None:
    torch.manual_seed(7)
    x = torch.randn(2, 100)
    width = options.get("win_length", 16)
    window = torch.hann_window(width)
    mine = _ours(window, "cpu")
    expected = torch.stft(x, 16, window=window, return_complex=True, **options)
    found = webtorch.stft(_ours(x, "cpu"), 16, window=mine, return_complex=True, **options)
    _close(found, expected)
    if options.get("center", True):
        _close(
            webtorch.istft(found, 16, window=mine, length=90, **options),
            torch.istft(expected, 16, window=window, length=90, **options),
            1e-5,
        )


@pytest.mark.covers("F15")
@pytest.mark.parametrize("device", ["cpu", "webgpu"])
def test_a_spectrogram_is_differentiated(device: str) -> None:
    need_device(device)
    torch.manual_seed(8)
    x = torch.randn(2, 64, requires_grad=True)
    y = _ours(x, device)

    def loss(t: Any, signal: Any, window: Any) -> Any:
        s = t.stft(signal, 16, 4, window=window, return_complex=True)
        back = t.istft(s * 2, 16, 4, window=window)
        return (s.abs() ** 2 + 1e-3).log().mean() + back.pow(2).sum()

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        loss(torch, x, torch.hann_window(16)).backward()
    loss(webtorch, y, webtorch.hann_window(16, device=device)).backward()
    assert x.grad is not None
    _close(y.grad, x.grad, 2e-5)
