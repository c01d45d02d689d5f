"""`associative_scan`: running results of an operation of the user's, as torch has it. May import floors 0 to 5."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from webtorch.func.vmap import vmap
from webtorch.functions import public as webtorch
from webtorch.utils._pytree import tree_flatten, tree_unflatten

__all__ = ["associative_scan"]

_Tensor = webtorch.Tensor
_Leaves = Sequence[webtorch.Tensor]


def associative_scan(
    combine_fn: Callable[[Any, Any], object],
    xs: object,
    dim: int,
    reverse: bool = False,
    combine_mode: str = "pointwise",
) -> Any:
    """Return, at each place of dimension `dim`, what `combine_fn` makes of all elements up to there.

    `xs` is a tensor or a nested structure of tensors; combine_fn(left, right) is given two such structures without that
    dimension, is associative and pure, and is called for many places at once. `reverse` begins at the end. The
    results are differentiable. PyTorch's combine_mode="pointwise" is for accelerators; both compute the same here.
    """
    leaves, spec = tree_flatten(xs)
    dim = _checked(combine_fn, leaves, dim, reverse, combine_mode)
    each = vmap(combine_fn)

    def combine(left: _Leaves, right: _Leaves) -> list[webtorch.Tensor]:
        """Combine the elements at each place of the first dimension."""
        found, given = tree_flatten(each(tree_unflatten(left, spec), tree_unflatten(right, spec)))
        if given != spec:
            raise RuntimeError(
                f"associative_scan: combine_fn returns {given}, and was given {spec}: return a structure like "
                "its arguments"
            )
        return found

    moved = [x.movedim(dim, 0) for x in leaves]
    moved = [x.flip(0) for x in moved] if reverse else moved
    found = _scan(combine, moved)
    found = [x.flip(0) for x in found] if reverse else found
    return tree_unflatten([x.movedim(0, dim) for x in found], spec)


def _checked(
    combine_fn: object, leaves: Sequence[object], dim: object, reverse: object, mode: object
) -> int:
    """Return the dimension, not negative; raise as PyTorch does for what it refuses."""
    if not callable(combine_fn):
        raise ValueError(f"Combine_fn must be a callable, but got {combine_fn}")
    if not isinstance(dim, int):
        raise ValueError("Dim must be an int, but got " + str(type(dim)))
    if not isinstance(reverse, bool):
        raise RuntimeError("Reverse must be a bool, but got " + str(type(reverse)))
    if mode not in ("pointwise", "generic"):
        raise ValueError(f"Combine_mode must either 'pointwise' or 'generic', but got {mode}")
    if not leaves:
        raise ValueError("Expected at least 1 xs leaf")
    if not all(isinstance(x, _Tensor) for x in leaves):
        raise ValueError("xs leaves must be a Tensor")
    tensors = [x for x in leaves if isinstance(x, _Tensor)]
    if mode == "pointwise" and any(x.is_cpu for x in tensors):
        raise ValueError(
            "For combine_mode='pointwise', all input tensors need to be on CUDA or XPU: here on WebGPU. Use 'generic' "
            "on the CPU"
        )
    if not -tensors[0].ndim <= dim < tensors[0].ndim:
        raise IndexError(
            f"Dimension out of range (expected to be in range of [{-tensors[0].ndim}, {tensors[0].ndim - 1}], "
            f"but got {dim})"
        )
    dim %= tensors[0].ndim
    if any(x.ndim <= dim or x.shape[dim] == 0 for x in tensors):
        raise ValueError(
            "All xs leaves must at least have 'dim' number of dimensions and scan dimension > 0"
        )
    return dim


def _scan(
    combine: Callable[[_Leaves, _Leaves], list[webtorch.Tensor]], leaves: _Leaves
) -> list[webtorch.Tensor]:
    """Return the running results along the first dimension: those of pairs of neighbours are every second one."""
    length = leaves[0].shape[0]
    if length < 2:
        return list(leaves)
    odd = _scan(combine, combine([x[0:-1:2] for x in leaves], [x[1::2] for x in leaves]))
    even = [x[:1] for x in leaves]
    if length > 2:
        between = combine([x[: (length - 1) // 2] for x in odd], [x[2::2] for x in leaves])
        even = [webtorch.cat(both) for both in zip(even, between, strict=True)]
    return [_in_turn(a, b) for a, b in zip(even, odd, strict=True)]


def _in_turn(even: webtorch.Tensor, odd: webtorch.Tensor) -> webtorch.Tensor:
    """Return the rows of both in turn; the first may have one more."""
    pairs = webtorch.stack([even[: odd.shape[0]], odd], 1).flatten(0, 1)
    return webtorch.cat([pairs, even[odd.shape[0] :]])
