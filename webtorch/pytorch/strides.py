"""Memory that lies otherwise than its tensors. Floor 6.

PyTorch's programs see strides: `is_contiguous(memory_format=torch.channels_last)` asks for them, `.view` succeeds or
raises by them. Kernels here write their results row-major. Layout rules (`ops/layout.py`) say which strides the
results of an operator have, `Laid` lets row-major values stand behind tensors of other strides: nothing is moved in
memory until something looks at it in a way that only the order of the strides has.

Everything here is arithmetic on sizes and strides.
"""

from __future__ import annotations

from functools import lru_cache

from webtorch.ir.view import contiguous_strides, is_contiguous
from webtorch.ops.layout import Sizes
from webtorch.tensors.storage import Storage

# ---- memory in another order --------------------------------------------------------------------


class Laid:
    """Values that lie row-major, behind tensors whose strides have no gaps but another order."""

    __slots__ = ("groups", "storage")

    def __init__(self, storage: Storage, shape: Sizes, strides: Sizes) -> None:
        self.storage = storage
        self.groups = _groups(shape, strides)

    def view(self, shape: Sizes, strides: Sizes, offset: int) -> tuple[Sizes, int] | None:
        """Return strides and offset among the values of a tensor with these; None where there are none."""
        return _view(self.groups, shape, strides, offset)

    def turned(self) -> tuple[Sizes, Sizes]:
        """Return the sizes and strides with which the values are read in the tensors' order."""
        return tuple([n for n, _, _ in self.groups]), tuple([c for _, _, c in self.groups])


@lru_cache(maxsize=1024)
def _groups(shape: Sizes, strides: Sizes) -> tuple[tuple[int, int, int], ...]:
    """Return (size, stride, stride of the values) of dims, outermost first.

    Those that follow each other in both orders are one.
    """
    dims = zip(shape, strides, contiguous_strides(shape), strict=True)
    found: list[tuple[int, int, int]] = []
    for n, step, own in sorted((d for d in dims if d[0] > 1), key=lambda d: -d[1]):
        if found and found[-1][2] == own * n:
            found[-1] = (found[-1][0] * n, step, own)
        else:
            found.append((n, step, own))
    return tuple(found)


@lru_cache(maxsize=4096)
def _view(
    groups: tuple[tuple[int, int, int], ...], shape: Sizes, strides: Sizes, offset: int
) -> tuple[Sizes, int] | None:
    # The first and the last place in each group.
    first, rest = [], offset
    for _, step, _ in groups:
        place, rest = divmod(rest, step)
        first.append(place)
    last = first.copy()
    found = []
    for n, stride in zip(shape, strides, strict=True):
        if n == 1 or not stride:
            found.append(0)
            continue
        g = next((i for i, group in enumerate(groups) if group[1] <= stride), None)
        if g is None or stride % groups[g][1]:
            return None
        times = stride // groups[g][1]
        last[g] += (n - 1) * times
        found.append(times * groups[g][2])
    if any(place >= group[0] for place, group in zip(last, groups, strict=True)):
        return None
    own = tuple(found)
    if is_contiguous(shape, own):
        own = contiguous_strides(shape)
    return own, sum(p * group[2] for p, group in zip(first, groups, strict=True))
