"""Fourier transforms of whole arrays, by pocketfft: SciPy's where it is installed, else NumPy's.

Imports NumPy and floors 0-2. Complex numbers are pairs along the last dim. Nothing is scaled: the sums have the
factor 1 in both directions.
"""

from __future__ import annotations

import functools
import importlib

import numpy as np

from webtorch.runtime.backends.cpu.lapack import (
    Array,
    Results,
    as_complex,
    as_pairs,
    host_function,
)
from webtorch.runtime.backends.cpu.threads import get_num_threads


@functools.cache
def _scipy() -> object:
    """Return scipy.fft, which is the same code with vector instructions and threads, or None."""
    try:
        return importlib.import_module("scipy.fft")
    except ImportError:
        return None


def _run(name: str, *args: object, **options: object) -> Array:
    found = _scipy()
    if found is None:
        return np.asarray(getattr(np.fft, name)(*args, **options))
    return np.asarray(getattr(found, name)(*args, **options, workers=get_num_threads()))


@host_function
def fft_c2c(x: Array, dims: tuple[int, ...], inverse: bool) -> Results:
    """Return the transform of pairs along `dims`."""
    name, norm = ("ifftn", "forward") if inverse else ("fftn", "backward")
    return (as_pairs(_run(name, as_complex(x), axes=dims, norm=norm), x),)


@host_function
def fft_r2c(x: Array, dim: int) -> Results:
    """Return the first half of the transform of real numbers along `dim`, as pairs."""
    return (as_pairs(_run("rfft", x, axis=dim), x),)


@host_function
def fft_c2r(x: Array, dim: int, n: int) -> Results:
    """Return the n real numbers along `dim` that the half `x` of a transform, as pairs, stands for."""
    found = _run("irfft", as_complex(x), n, axis=dim, norm="forward")
    # Before NumPy 2, transforms of float32 came in double precision.
    return (np.asarray(found, x.dtype),)
