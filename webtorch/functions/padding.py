"""Padding: constant, reflected, replicated and circular borders."""

from __future__ import annotations

import operator
from collections.abc import Sequence

from webtorch.errors import DTypeError
from webtorch.functions.joining import join
from webtorch.functions.movement import contiguous, expanded
from webtorch.functions.repeating import flipped
from webtorch.functions.slicing import window
from webtorch.ir.dtype import (
    Scalar,
)
from webtorch.ops.layout import ChannelsLastAs
from webtorch.ops.primitive import (
    copy,
    pad_with,
)
from webtorch.ops.record import Autocast, composite
from webtorch.tensors.tensor import Tensor


def _reflect(x: Tensor, dim: int, low: int, high: int, name: str) -> list[Tensor | None]:
    size = x._shape[dim]
    if low >= size or high >= size:
        raise RuntimeError(
            "Argument #4: Padding size should be less than the corresponding input dimension, but got: "
            f"padding ({low}, {high}) at dimension {dim} of input {list(x._shape)}"
        )
    before = flipped(window(x, dim, 1, low), (dim,)) if low > 0 else None
    after = flipped(window(x, dim, size - 1 - high, high), (dim,)) if high > 0 else None
    return [before, after]


def _replicate(x: Tensor, dim: int, low: int, high: int, name: str) -> list[Tensor | None]:
    size = x._shape[dim]
    if not size:
        raise RuntimeError(
            f"replicate padding: expected a non-empty dimension {dim}, but got {list(x._shape)}"
        )

    def edge(at: int, count: int) -> Tensor | None:
        """Return one place of the dim, `count` times; None for 0 times."""
        shape = (*x._shape[:dim], count, *x._shape[dim + 1 :])
        return expanded(name, window(x, dim, at, 1), shape) if count > 0 else None

    return [edge(0, low), edge(size - 1, high)]


def _circular(x: Tensor, dim: int, low: int, high: int, name: str) -> list[Tensor | None]:
    size = x._shape[dim]
    if low > size or high > size:
        raise RuntimeError("Padding value causes wrapping around more than once.")
    before = window(x, dim, size - low, low) if low > 0 else None
    return [before, window(x, dim, 0, high) if high > 0 else None]


_EDGES = {"reflect": _reflect, "replicate": _replicate, "circular": _circular}


@composite(family="movement", function_in=("nn.functional",), layout=ChannelsLastAs(0))
def pad(
    input: Tensor, pad: Sequence[int], mode: str = "constant", value: Scalar | None = None
) -> Tensor:
    """The last dimensions with borders; `pad` lists (before, after), last dimension first. Negative counts crop.

    mode: "constant" (with `value`), "reflect", "replicate" or "circular".
    """
    rank, counts = len(input._shape), [operator.index(n) for n in pad]
    if len(counts) % 2:
        raise RuntimeError(
            "Padding length must be divisible by 2: pad takes a number before and one after for each "
            f"dimension, last dimension first, and got {len(pad)}"
        )
    if len(counts) > 2 * rank:
        raise RuntimeError(
            "Padding length should be less than or equal to two times the input dimension but got padding "
            f"length {len(counts)} and input of dimension {rank}"
        )
    if mode != "constant" and mode not in _EDGES:
        raise NotImplementedError(f"Unrecognised padding mode {mode}")
    if mode != "constant":
        if value:
            raise ValueError(f'Padding mode "{mode}" doesn\'t take in value argument')
        if len(counts) not in (2, 4, 6) or rank - len(counts) // 2 not in (1, 2):
            raise NotImplementedError(
                f"Padding size {len(counts)} is not supported for {rank}D input tensor.\n"
                "Supported combinations for non-constant padding:\n"
                "  - 2D or 3D input: padding size = 2 (pads last dimension)\n"
                "  - 3D or 4D input: padding size = 4 (pads last 2 dimensions)\n"
                "  - 4D or 5D input: padding size = 6 (pads last 3 dimensions)"
            )
    dims = len(counts) // 2
    if mode in ("reflect", "replicate") and 0 in input._shape[rank - dims - 1 :]:
        raise RuntimeError(
            f"Expected {dims + 1}D or {dims + 2}D (batch mode) tensor with possibly 0 batch size and other non-zero "
            f"dimensions for input, but got: {list(input._shape)} ({mode})"
        )
    if mode in ("reflect", "replicate") and input.dtype.kind == "bool":
        raise DTypeError(f"\"{mode}_pad\" not implemented for 'Bool': use .to(torch.uint8)")
    if mode == "replicate" or (mode == "reflect" and len(counts) < 6):
        return _pad_edges(input, counts, mode)
    return _padded(input, counts, mode, value)


@composite(name="_pad_edges", function_in=(), autocast=Autocast(cpu="fp32"), once=True)
def _pad_edges(input: Tensor, counts: list[int], mode: str) -> Tensor:
    return _padded(input, counts, mode, None)


def _padded(input: Tensor, counts: list[int], mode: str, value: Scalar | None) -> Tensor:
    rank = len(input._shape)
    low, high = [0] * rank, [0] * rank
    out = input
    for i in range(0, len(counts), 2):
        dim = rank - 1 - i // 2
        before, after = counts[i], counts[i + 1]
        size = input._shape[dim]
        if size + before + after < 0:
            raise RuntimeError(
                f"The input size {size}, plus negative padding {before} and {after} resulted in a negative "
                f"output size, which is invalid. Check dimension {dim} of your input."
            )
        start = max(-before, 0)
        cropped = out
        if before < 0 or after < 0:
            cropped = window(out, dim, start, size - start - max(-after, 0))
        # What goes round is what is left.
        whole = cropped if mode == "circular" else out
        sides: list[Tensor | None] = (
            [None, None] if mode == "constant" else _EDGES[mode](whole, dim, before, after, mode)
        )
        out = cropped
        if mode == "constant":
            low[dim], high[dim] = max(before, 0), max(after, 0)
        elif before > 0 or after > 0:
            out = join([p for p in (sides[0], out, sides[1]) if p is not None], dim)
    if any(low) or any(high):
        filler: Scalar = 0 if value is None else value
        if input.dtype.kind == "bool":
            filler = bool(filler)
        elif not input.dtype.has_gradient:
            filler = int(filler)
        out = pad_with(out, tuple(low), tuple(high), filler)
    return copy(out) if out._storage is input._storage else contiguous(out)
