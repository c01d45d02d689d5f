"""Correlation matrices. May import floors 0 to 4."""

from __future__ import annotations

import math
from collections.abc import Sequence

from webtorch.distributions import constraints
from webtorch.distributions.beta import Beta
from webtorch.distributions.distribution import Distribution
from webtorch.distributions.utils import Value, broadcast_all
from webtorch.functions import public as webtorch
from webtorch.tensors.size import Size
from webtorch.tensors.tensor import Tensor

__all__ = ["LKJCholesky"]


class LKJCholesky(Distribution):
    """Cholesky factors of dim by dim correlation matrices, of density in proportion to det ** (concentration - 1).

    Lewandowski, Kurowicka and Joe, "Generating random correlation matrices based on vines and extended onion method",
    2009; sampled by the onion method.
    """

    arg_constraints = {"concentration": constraints.positive}
    support = constraints.corr_cholesky
    _batched = ("concentration", "_beta")
    _unbatched = ("dim",)

    def __init__(
        self, dim: int, concentration: Value = 1.0, validate_args: bool | None = None
    ) -> None:
        if dim < 2:
            raise ValueError(
                f"Expected dim to be an integer greater than or equal to 2. Found dim={dim}."
            )
        self.dim = dim
        (self.concentration,) = broadcast_all(concentration)
        c = self.concentration
        # Row i: the squared length of its first i numbers is a beta number of i / 2 (the paper's step k).
        rows = [0, *range(dim - 1)]
        offset = webtorch.tensor(rows, dtype=c.dtype, device=c.device)
        marginal = c + 0.5 * (dim - 2)
        self._beta = Beta(0.5 * offset + 0.5, marginal.unsqueeze(-1) - 0.5 * offset)
        super().__init__(c.shape, Size((dim, dim)), validate_args)

    def sample(self, sample_shape: Sequence[int] = Size()) -> Tensor:
        """Return Cholesky factors (dim, dim), without gradient, row by row by the onion method."""
        with webtorch.no_grad():
            y = self._beta.sample(sample_shape).unsqueeze(-1)
            shape = self._extended_shape(sample_shape)
            normal = webtorch.randn(shape, dtype=y.dtype, device=y.device).tril(-1)
            length = normal.square().sum(-1, keepdim=True).sqrt()
            # The first row has no direction.
            tiny = webtorch.finfo(y.dtype).tiny
            w = y.sqrt() * (normal / length.clamp(min=tiny))
            rest = (1 - w.square().sum(-1)).clamp(min=tiny).sqrt()
            return w + rest.diag_embed()

    def _log_prob(self, value: Tensor) -> Tensor:
        c = self.concentration
        diagonal = value.diagonal(dim1=-1, dim2=-2)[..., 1:]
        order = webtorch.arange(2, self.dim + 1, device=c.device)
        order = 2 * (c - 1).unsqueeze(-1) + self.dim - order
        density = (order * diagonal.log()).sum(-1)
        less = self.dim - 1
        alpha = c + 0.5 * less
        constant = 0.5 * less * math.log(math.pi) + webtorch.mvlgamma(alpha - 0.5, less)
        return density - (constant - alpha.lgamma() * less)
