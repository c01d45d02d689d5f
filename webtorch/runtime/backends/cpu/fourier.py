"""Fourier transforms of whole arrays, by NumPy's pocketfft. Imports NumPy and floors 0-2.

Complex numbers are pairs along the last dim. Nothing is scaled: the sums have the factor 1 in both directions.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from webtorch.runtime.backends.cpu.lapack import Array, Results, as_complex, as_pairs, host_function


@host_function
def fft_c2c(x: Array, dims: tuple[int, ...], inverse: bool) -> Results:
    """Return the transform of pairs along `dims`."""
    run: Any = np.fft.ifftn if inverse else np.fft.fftn
    return (as_pairs(run(as_complex(x), axes=dims, norm="forward" if inverse else "backward"), x),)


@host_function
def fft_r2c(x: Array, dim: int) -> Results:
    """Return the first half of the transform of real numbers along `dim`, as pairs."""
    return (as_pairs(np.fft.rfft(x, axis=dim), x),)


@host_function
def fft_c2r(x: Array, dim: int, n: int) -> Results:
    """Return the n real numbers along `dim` that the half `x` of a transform, as pairs, stands for."""
    return (np.asarray(np.fft.irfft(as_complex(x), n, axis=dim, norm="forward"), x.dtype),)
