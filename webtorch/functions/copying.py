"""Views as copies (torch.expand_copy and the like)."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

from webtorch.errors import ShapeError
from webtorch.functions import movement, slicing
from webtorch.ops.primitive import as_view
from webtorch.ops.record import TABLE, Example, composite
from webtorch.tensors.formats import contiguous_format
from webtorch.tensors.tensor import Tensor

FUNCTION = ("torch",)


def _copied(found: Tensor | tuple[Tensor, ...]) -> Tensor | tuple[Tensor, ...]:
    if isinstance(found, tuple):
        return tuple(movement.clone(x, memory_format=contiguous_format) for x in found)
    return movement.clone(found, memory_format=contiguous_format)


def _copying(name: str, methods: bool = False, **fields: Any) -> None:
    view = TABLE[name]

    def function(*args: object, **kwargs: object) -> Tensor | tuple[Tensor, ...]:
        """Return copies of the views."""
        return _copied(view(*args, **kwargs))

    function.__name__ = f"{name}_copy"
    function.__doc__ = f"What {name} gives, in memory of its own."
    function.__signature__ = inspect.signature(view.function)  # type: ignore[attr-defined]
    places = ("torch", "Tensor") if methods else FUNCTION
    composite(family="movement", function_in=places, **fields)(function)


for _name in """as_strided diagonal expand permute split_with_sizes squeeze t transpose unbind
    unfold unsqueeze view""".split():  # noqa: SIM905
    _copying(_name)
_copying("narrow", methods=True, aten=("narrow_copy",))
_copying("select", example=Example(((3, 5),), (1, 2)))
_copying("split", example=Example(((7, 3),), (3,)))


@composite(family="movement", function_in=FUNCTION)
def alias_copy(input: Tensor) -> Tensor:
    """A copy, row-major."""
    return movement.clone(input, memory_format=contiguous_format)


def _alone(views: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    for view in views:
        view._base = None
    return views


@composite(family="movement")
def unsafe_chunk(input: Tensor, chunks: int, dim: int = 0) -> tuple[Tensor, ...]:
    """What chunk gives, as if it had memory of its own: a write is not seen by gradients of the input."""
    return _alone(slicing.chunk(input, chunks, dim))


@composite(family="movement")
def unsafe_split(input: Tensor, split_size: int, dim: int = 0) -> tuple[Tensor, ...]:
    """What split gives, as `unsafe_chunk` does."""
    return _alone(slicing.split(input, split_size, dim))


@composite(family="movement", example=Example(((7, 3),), ([3, 4],)))
def unsafe_split_with_sizes(
    input: Tensor, split_sizes: Sequence[int], dim: int = 0
) -> tuple[Tensor, ...]:
    """What split_with_sizes gives, as `unsafe_chunk` does."""
    return _alone(slicing.split_with_sizes(input, split_sizes, dim))


@composite(
    family="movement",
    gradient_name="AsStridedScatterBackward0",
    traced=True,
    differs={"gradient": "PyTorch gives the input a gradient where it was replaced"},
)
def as_strided_scatter(
    input: Tensor,
    src: Tensor,
    size: Sequence[int],
    stride: Sequence[int],
    storage_offset: int | None = None,
) -> Tensor:
    """A copy with `src` in place of input.as_strided(size, stride, storage_offset)."""
    if tuple(size) != src._shape:
        raise ShapeError(
            "expected src to have a size equal to the slice of self. src size = "
            f"{list(src._shape)}, slice size = {list(size)}"
        )
    # Positions count in the memory that the tensor is a view of, so all of that is copied.
    whole = as_view(input, (input._storage.nbytes // input.dtype.itemsize,), (1,), 0)
    start = input._offset if storage_offset is None else storage_offset
    copy = slicing._replaced(
        "as_strided_scatter",
        whole,
        src,
        lambda x: slicing.as_strided(x, size, stride, start),
    )
    return as_view(copy, input._shape, input._strides, input._offset)
