"""Fourier transforms of whole arrays, by NumPy's pocketfft. Imports NumPy and floors 0-2.

Complex numbers are pairs along the last dim. Nothing is scaled: the sums have the factor 1 in both directions.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from webtorch.runtime.backends.cpu.lapack import Array, Results, host_function


def _complex(x: Array) -> Array:
    return np.ascontiguousarray(x).view("c16" if x.dtype == np.float64 else "c8")[..., 0]


def _pairs(z: Array, like: Array) -> Array:
    # Before NumPy 2, transforms of float32 came in double precision.
    z = np.ascontiguousarray(z, "c16" if like.dtype == np.float64 else "c8")
    return z[..., None].view(like.dtype)


@host_function
def fft_c2c(x: Array, dims: tuple[int, ...], inverse: bool) -> Results:
    """Return the transform of pairs along `dims`."""
    run: Any = np.fft.ifftn if inverse else np.fft.fftn
    return (_pairs(run(_complex(x), axes=dims, norm="forward" if inverse else "backward"), x),)


@host_function
def fft_r2c(x: Array, dim: int) -> Results:
    """Return the first half of the transform of real numbers along `dim`, as pairs."""
    return (_pairs(np.fft.rfft(x, axis=dim), x),)


@host_function
def fft_c2r(x: Array, dim: int, n: int) -> Results:
    """Return the n real numbers along `dim` that the half `x` of a transform, as pairs, stands for."""
    return (np.asarray(np.fft.irfft(_complex(x), n, axis=dim, norm="forward"), x.dtype),)
