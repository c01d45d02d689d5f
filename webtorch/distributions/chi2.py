"""The chi-square distribution. May import floors 0 to 4."""

from __future__ import annotations

from webtorch.distributions import constraints
from webtorch.distributions.gamma import Gamma
from webtorch.distributions.utils import Value
from webtorch.tensors.tensor import Tensor

__all__ = ["Chi2"]


class Chi2(Gamma):
    """The sum of the squares of `df` normal numbers; df need not be whole."""

    arg_constraints = {"df": constraints.positive}
    _batched = ("concentration", "rate")

    def __init__(self, df: Value, validate_args: bool | None = None) -> None:
        super().__init__(0.5 * df, 0.5, validate_args=validate_args)

    @property
    def df(self) -> Tensor:
        """The degrees of freedom."""
        return self.concentration * 2
