"""`webtorch.quasirandom`: Sobol's sequences. Floor 5. Direction numbers are SciPy's, which has Joe and Kuo's."""

from __future__ import annotations

import functools
import importlib
from typing import Any

from webtorch.functions import public as torch
from webtorch.functions.sobol import points, scrambled
from webtorch.ir.dtype import DType
from webtorch.tensors.tensor import Tensor

__all__ = ["SobolEngine"]


@functools.lru_cache(16)
def _directions(dimension: int, bits: int) -> Tensor:
    """Return the direction numbers of so many dimensions, (dimension, bits)."""
    try:
        qmc: Any = importlib.import_module("scipy.stats.qmc")
    except ImportError as error:
        raise ImportError(
            "torch.quasirandom.SobolEngine: direction numbers are SciPy's: pip install scipy"
        ) from error
    return torch.tensor(qmc.Sobol(dimension, scramble=False, bits=bits)._sv.tolist())


def _pytorch_bits(seed: int, shape: tuple[int, ...]) -> Tensor:
    """Return the bits that PyTorch's CPU generator, a Mersenne Twister as NumPy's, gives for a seed."""
    state = importlib.import_module("numpy.random").RandomState(seed % 2**32)
    return torch.as_tensor(state.randint(0, 2**32, shape, dtype="uint32").astype("int64") % 2)


class SobolEngine:
    """Draws points of a Sobol sequence in the unit cube of `dimension` dimensions; `scramble`d ones by random matrices
    and shifts, from `seed` or torch's generator.
    """

    MAXBIT = 30
    MAXDIM = 21201

    def __init__(self, dimension: int, scramble: bool = False, seed: int | None = None) -> None:
        """Begin at the sequence's first point."""
        if dimension > self.MAXDIM or dimension < 1:
            raise ValueError(
                "Supported range of dimensionality for SobolEngine is [1, " + f"{self.MAXDIM}]"
            )
        self.seed, self.scramble, self.dimension = seed, scramble, dimension
        self.sobolstate = _directions(dimension, self.MAXBIT).clone()
        self.shift = torch.zeros(dimension, dtype=torch.int64)
        if scramble:
            self._scramble()
        self.num_generated = 0

    def draw(self, n: int = 1, out: Tensor | None = None, dtype: DType | None = None) -> Tensor:
        """Return the next n points, (n, dimension)."""
        whole = points(self.shift, self.sobolstate, 0, self.num_generated, n)
        self.num_generated += n
        found = whole.to(dtype or torch.get_default_dtype()) * 2.0**-self.MAXBIT
        if out is None:
            return found
        return out.resize_(found.shape).copy_(found)

    def draw_base2(self, m: int, out: Tensor | None = None, dtype: DType | None = None) -> Tensor:
        """Return the next 2 ** m points; all points so far must then be a power of two, for their balance."""
        n = 2**m
        total = self.num_generated + n
        if total & (total - 1):
            raise ValueError(
                "The balance properties of Sobol' points require n to be a power of 2. "
                f"{self.num_generated} points have been previously generated, then: "
                f"n={self.num_generated}+2**{m}={total}. "
                "If you still want to do this, please use 'SobolEngine.draw()' instead."
            )
        return self.draw(n=n, out=out, dtype=dtype)

    def reset(self) -> SobolEngine:
        """Go back to the first point."""
        self.num_generated = 0
        return self

    def fast_forward(self, n: int) -> SobolEngine:
        """Leave out n points."""
        self.num_generated += n
        return self

    def _scramble(self) -> None:
        bits, size = self.MAXBIT, self.dimension
        shape = size, bits + 1, bits
        drawn = torch.randint(2, shape) if self.seed is None else _pytorch_bits(self.seed, shape)
        flat = drawn.reshape(-1)
        powers = torch.tensor([2**i for i in range(bits)])
        self.shift = (flat[: size * bits].reshape(size, bits) * powers).sum(1)
        matrices = flat[size * bits :].reshape(size, bits, bits).tril()
        self.sobolstate = scrambled(self.sobolstate, matrices)

    def __repr__(self) -> str:
        parts = [f"dimension={self.dimension}"]
        if self.scramble:
            parts.append("scramble=True")
        if self.seed is not None:
            parts.append(f"seed={self.seed}")
        return f"{type(self).__name__}({', '.join(parts)})"
