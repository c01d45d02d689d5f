"""Padding as a function. May import the tensor floor and the op table."""

from __future__ import annotations

from collections.abc import Sequence

import webtorch
from webtorch import Tensor
from webtorch.nn.functional.table import table

__all__ = ["pad"]

_constant_pad = table("pad")


def pad(
    input: Tensor, pad: Sequence[int], mode: str = "constant", value: float | None = None
) -> Tensor:
    """Pad the last dimensions; `pad` lists (before, after), last dimension first.

    `mode` is "constant" (with `value`, 0 by default; negative sizes crop), "reflect", "replicate"
    or "circular".
    """
    if len(pad) % 2 != 0:
        raise RuntimeError("Padding length must be divisible by 2")
    if len(pad) // 2 > input.dim():
        raise RuntimeError(
            f"Padding length should be less than or equal to two times the input dimension but got "
            f"padding length {len(pad)} and input of dimension {input.dim()}"
        )
    if mode == "constant":
        if all(n == 0 for n in pad):
            return input.clone()
        return _constant_pad(input, tuple(pad), "constant", 0.0 if value is None else value)
    if mode not in _SOURCES:
        raise NotImplementedError(f"Unrecognised padding mode {mode}")
    if value is not None and value != 0:
        raise ValueError(f'Padding mode "{mode}" doesn\'t take in value argument')
    pairs = len(pad) // 2
    if input.dim() not in (pairs + 1, pairs + 2):
        raise NotImplementedError(
            "Only 2D, 3D, 4D, 5D padding with non-constant padding are supported for now: "
            f"{pairs} dimensions to pad need {pairs + 1} or {pairs + 2} dimensions, and the input "
            f"has {input.dim()}"
        )
    out = input
    for position in range(pairs):
        before, after = pad[2 * position], pad[2 * position + 1]
        if before == 0 and after == 0:
            continue
        dim = input.dim() - 1 - position
        size = input.shape[dim]
        _check(mode, size, before, after, dim)
        source = _SOURCES[mode]
        index = [source(i, size) for i in range(-before, size + after)]
        out = out.index_select(dim, webtorch.tensor(index, device=input.device))
    return out


def _reflected(i: int, size: int) -> int:
    """Return the place that position `i` mirrors; the edges are not repeated."""
    i = abs(i)
    return i if i < size else 2 * (size - 1) - i


_SOURCES = {
    "reflect": _reflected,
    "replicate": lambda i, size: min(max(i, 0), size - 1),
    "circular": lambda i, size: i % size,
}


def _check(mode: str, size: int, before: int, after: int, dim: int) -> None:
    """Raise RuntimeError when the mode cannot pad that far."""
    if mode == "reflect" and (before >= size or after >= size):
        raise RuntimeError(
            "Argument #4: Padding size should be less than the corresponding input dimension, but "
            f"got: padding ({before}, {after}) at dimension {dim} of input of size {size}"
        )
    if mode == "circular" and (before > size or after > size):
        raise RuntimeError(
            f"Padding value causes wrapping around more than once: padding ({before}, {after}) at "
            f"dimension {dim} of size {size}."
        )
    if size + before + after <= 0 or size == 0:
        raise RuntimeError(
            f"Negative padding value is resulting in an empty dimension: padding ({before}, "
            f"{after}) at dimension {dim} of size {size}."
        )
