"""Dimensions whose sizes change: what the user says of them, and what the numbers in a graph are of them.

A program is recorded at the example's sizes, and again at others. Where numbers differ they are a sum of sizes, or a
product, or the export is refused: nothing is guessed.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator, Mapping, Sequence
from math import prod
from typing import Any, ClassVar

from webtorch.fx.export.signature import ValueRange
from webtorch.tensors.tensor import Tensor
from webtorch.utils import _pytree as pytree


class _Hint(enum.Enum):
    AUTO = 1
    STATIC = 2
    DYNAMIC = 3


class Dim:
    """A dimension whose size changes, by name: where the same one stands, sizes are equal."""

    AUTO: ClassVar[_Hint] = _Hint.AUTO
    STATIC: ClassVar[_Hint] = _Hint.STATIC
    DYNAMIC: ClassVar[_Hint] = _Hint.DYNAMIC

    def __init__(self, name: str, *, min: int | None = None, max: int | None = None) -> None:
        """Take the name, and the least and the largest size."""
        if not name.isidentifier():
            raise AssertionError(f"Dim name must be a valid identifier, got {name}")
        low, high = 0 if min is None else min, max
        if high is not None and high < low:
            raise AssertionError(f"Cannot create Dim with inconsistent min={low}, max={high}")
        self.__name__, self.min, self.max = name, low, high

    def __repr__(self) -> str:
        return f"Dim('{self.__name__}', min={self.min}, max={self.max})"

    @property
    def range(self) -> ValueRange:
        """The sizes that it may have."""
        return ValueRange(self.min, self.max)


def dims(*names: str, min: int | None = None, max: int | None = None) -> tuple[Dim, ...]:
    """Return a dimension for each name."""
    return tuple([Dim(name, min=min, max=max) for name in names])


class UserError(RuntimeError):
    """What was asked for cannot be exported."""


# (number of the input, number of its dimension) -> the dimension that changes there.
Marked = dict[tuple[int, int], Dim]


def marked(leaves: Sequence[object], specs: Sequence[Any]) -> Marked:
    """Return the dimensions that change, of inputs and what the user says of each: dims by number, or in order."""
    found: Marked = {}
    for i, (leaf, spec) in enumerate(zip(leaves, specs, strict=True)):
        if spec is None:
            continue
        if not isinstance(leaf, Tensor):
            raise UserError(
                f"dynamic_shapes: input {i} is no tensor, and has no dimensions: {spec!r}"
            )
        pairs = spec.items() if isinstance(spec, Mapping) else enumerate(spec)
        for d, dim in pairs:
            if dim is None or dim is Dim.STATIC or isinstance(dim, int):
                if isinstance(dim, int) and dim != leaf.shape[d]:
                    raise UserError(
                        f"dynamic_shapes: dim {d} of input {i} has size {leaf.shape[d]}, not {dim}"
                    )
                continue
            if isinstance(dim, _Hint):
                dim = Dim(f"s{len(found)}")
            if not isinstance(dim, Dim):
                raise UserError(
                    f"dynamic_shapes: expected torch.export.Dim, None or an int, got {dim!r}"
                )
            found[i, d] = dim
    return found


def specs_of(tree: Any, given: Any) -> list[object]:
    """Return what `given`, nested as the arguments are, says of each leaf."""
    if given is None:
        return [None] * len(pytree.tree_leaves(tree))
    if isinstance(tree, Tensor) or pytree.tree_structure(tree).is_leaf():
        return [given]
    if isinstance(tree, dict):
        return [s for k, v in tree.items() for s in specs_of(v, given.get(k))]
    if not isinstance(given, (list, tuple)) or len(given) != len(tree):
        raise UserError(f"dynamic_shapes: {given!r} is not nested as the argument is")
    return [s for v, g in zip(tree, given, strict=True) for s in specs_of(v, g)]


def sizes_of(leaves: Sequence[Any], where: Marked) -> dict[Dim, int]:
    """Return the sizes of the dimensions that change. Raises UserError where one has two, or one out of its range."""
    found: dict[Dim, int] = {}
    for (i, d), dim in where.items():
        size = int(leaves[i].shape[d])
        if found.setdefault(dim, size) != size:
            raise UserError(
                f"dynamic_shapes: {dim.__name__} is {found[dim]} and {size} in the example inputs"
            )
        if size < dim.min or (dim.max is not None and size > dim.max):
            raise UserError(f"dynamic_shapes: {dim.__name__} is {size}, out of {dim.range}")
    return found


def others(sizes: Mapping[Dim, int]) -> Iterator[dict[Dim, int]]:
    """Give the sizes at which a program is recorded again: each changed alone, then all of them."""
    for d, s in sizes.items():
        yield {**sizes, d: _other(d, s, 2)}
    yield {d: _other(d, s, 3) for d, s in sizes.items()}


def _other(dim: Dim, size: int, times: int) -> int:
    # What a size is divided by divides its multiples.
    for found in (size * times, size + times - 1, size - times + 1):
        if found != size and found >= max(dim.min, 2) and (dim.max is None or found <= dim.max):
            return found
    raise UserError(
        f"dynamic_shapes: {dim.__name__} is {size} of {dim.range}, too few sizes to tell what it does: leave it static"
    )


# A number of a graph: factors of sizes, and what is added; or the sizes that it is a product of, and their factor.
Formula = tuple[str, dict[Dim, int], int]


def formula_of(values: Sequence[int], sizes: Sequence[Mapping[Dim, int]]) -> Formula | None:
    """Return what a number is of sizes, from its values at the example's sizes and at others; None of a constant."""
    if len(set(values)) == 1:
        return None
    base, changing = sizes[0], list(sizes[0])
    slopes: dict[Dim, int] = {}
    for k, d in enumerate(changing, 1):
        step, rise = sizes[k][d] - base[d], values[k] - values[0]
        if rise % step == 0 and rise:
            slopes[d] = rise // step
    rest = values[0] - sum(f * base[d] for d, f in slopes.items())
    if all(v == rest + sum(f * s[d] for d, f in slopes.items()) for v, s in zip(values, sizes)):
        return "sum", slopes, rest
    factors = {d: 1 for k, d in enumerate(changing, 1) if values[k] != values[0]}
    whole = prod(base[d] for d in factors)
    if whole and values[0] % whole == 0:
        factor = values[0] // whole
        if all(v == factor * prod(s[d] for d in factors) for v, s in zip(values, sizes)):
            return "product", factors, factor
    raise UserError(
        f"torch.export: a number of the graph is {list(values)} at the sizes "
        f"{[{d.__name__: n for d, n in s.items()} for s in sizes]}, which is neither a sum nor a product of them. "
        "Leave the dimension static, or take the part that computes this number out of the exported module."
    )
