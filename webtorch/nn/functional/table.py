"""The way from `nn.functional` to the op table. May import floors 0 to 4."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from webtorch.dispatch.call import dispatched
from webtorch.functions.bind import NAMESPACES
from webtorch.tensors.tensor import Tensor

# Every function of the op table that PyTorch has in nn.functional, by name.
entries = NAMESPACES["nn.functional"]


def table(name: str) -> Callable[..., Any]:
    """Return the op table's function called `name`; KeyError if it has none."""
    return entries[name]


def with_indices(rank: int) -> Callable[..., tuple[Tensor, Tensor]]:
    """Return `adaptive_max_pool{rank}d_with_indices`."""
    pool = entries[f"adaptive_max_pool{rank}d"]

    @dispatched()
    def function(
        input: Tensor, output_size: int | Sequence[int | None], return_indices: bool = False
    ) -> tuple[Tensor, Tensor]:
        """Return the maxima of windows that cover the input, and where they are."""
        found: tuple[Tensor, Tensor] = pool(input, output_size, True)
        return found

    return function
