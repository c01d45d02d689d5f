"""What datasets, samplers and loaders give: the names that their types are written with. Standard library only."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from typing_extensions import TypeVar

    # With a default, as Python 3.13 has it: a plain `DataLoader` gives anything.
    Example = TypeVar("Example", covariant=True, default=Any)
    Batch = TypeVar("Batch", covariant=True, default=Any)
    Index = TypeVar("Index", covariant=True, default=Any)
else:
    from typing import TypeVar

    Example, Batch, Index = (TypeVar(n, covariant=True) for n in ("Example", "Batch", "Index"))
